//! Outputs that are too large for their row become artifacts, and steps that follow get a reference.

use crate::agents::{agent, check, found, once, step, submit_agents, task};
use crate::bench::{Bench, now};
use crate::commands::ends_with_upload;
use crate::crashes::around_every_write;
use crate::machines::Does;
use crate::offers::{done, end, external, offered, take};
use adapters::tool::fake::Fate;
use model::plan::{AgentPlan, MachinePlan, StepPlan};
use model::run::RunStatus;
use model::step::{StepStatus, ToolKind};
use model::time::MINUTE;
use model::{ArtifactId, RunId};
use serde_json::{Value, json};

fn output(bench: &Bench, run: RunId, name: &str) -> Value {
    let step = found(bench, run, name).id;
    now(bench.engine.step(bench.org, run, step)).unwrap().output.unwrap()
}

/// The step `page` answers with this body.
fn answers(bench: &Bench, body: Value) {
    bench.tool.decide_by(Box::new(move |call, _| match call.input["of"] == "page" {
        true => Fate::answer(json!({ "status": 200, "headers": {}, "body": body })),
        false => Fate::answer(call.input.clone()),
    }));
}

fn plan(page: StepPlan) -> Vec<model::plan::AgentPlan> {
    let input = json!({ "of": "after", "status": "${{ steps.page.output.status }}",
        "bytes": "${{ steps.page.output.body.bytes }}" });
    vec![agent("one", vec![task("all", vec![page, StepPlan { input, ..step("after") }])])]
}

fn bytes(bench: &Bench, run: RunId, reference: &Value) -> Vec<u8> {
    let id: ArtifactId = reference["artifact"].as_str().unwrap().parse().unwrap();
    let (artifact, download) = now(bench.engine.open_artifact(bench.org, run, id)).unwrap();
    assert_eq!(Some(artifact.path.as_str()), reference["path"].as_str());
    download.read_all().unwrap()
}

#[test]
fn a_body_that_is_too_large_for_its_row_is_an_artifact_of_the_run() {
    let (text, list) = ("x".repeat(300 << 10), json!(vec!["y".repeat(1 << 10); 300]));
    for (body, stored) in [(json!(text), text.into_bytes()), (list.clone(), list.to_string().into_bytes())] {
        let mut bench = Bench::new();
        answers(&bench, body);
        let run = submit_agents(&mut bench, plan(once("page")));
        bench.settle();
        assert_eq!(bench.run(run).status, RunStatus::Completed, "{:?}", bench.run(run).last_error);
        let (page, after) = (output(&bench, run, "page"), output(&bench, run, "after"));
        assert_eq!(after, json!({ "of": "after", "status": 200, "bytes": stored.len() }));
        assert_eq!(bytes(&bench, run, &page["body"]), stored);
        check(&bench);
    }
}

#[test]
fn an_output_is_compared_with_its_schema_before_it_is_put_away_and_has_a_limit() {
    let number = json!({ "type": "object", "properties": { "body": { "type": "number" } } });
    let table = [
        (json!("x".repeat(300 << 10)), Some(number), "invalid_output"),
        (json!("x".repeat(9 << 20)), None, "output_too_large"),
    ];
    for (body, output, code) in table {
        let mut bench = Bench::new();
        answers(&bench, body);
        let run = submit_agents(&mut bench, plan(StepPlan { output, max_tries: 1, ..once("page") }));
        bench.settle();
        let page = found(&bench, run, "page");
        assert_eq!((page.status, page.last_error.unwrap().code.as_str()), (StepStatus::Failed, code));
        check(&bench);
    }
}

/// What a command or a program on a machine answers: uploaded whole, compared with its schema, and named by what follows.
#[test]
fn an_output_of_a_machine_that_is_too_large_for_its_row_stays_its_artifact() {
    let list = json!({ "type": "array" });
    let text = json!(vec!["y".repeat(1 << 10); 300]).to_string();
    for (tool, schema, fits) in [
        (ToolKind::Command, None, true),
        (ToolKind::Exec, Some(list.clone()), true),
        (ToolKind::Command, Some(json!({ "type": "string" })), false),
        (ToolKind::Mcp, None, false),
    ] {
        let mut bench = Bench::new();
        bench.runners.script = Some(Box::new(|_| Does::Runs));
        let input = match tool {
            ToolKind::Mcp => json!({ "argv": ["./server"], "tool": "t", "arguments": {} }),
            _ => json!({ "argv": ["./big"] }),
        };
        let big = StepPlan { input, output: schema, max_tries: 1, ..StepPlan::new("big", tool) };
        let after = json!({ "of": "after", "bytes": "${{ steps.big.output.bytes }}" });
        let steps = vec![big, StepPlan { input: after, ..step("after") }];
        let one = AgentPlan { machine: Some(MachinePlan::default()), ..agent("one", vec![task("all", steps)]) };
        let run = submit_agents(&mut bench, vec![one]);
        bench.settle();
        ends_with_upload(&mut bench, run, "big", &text);
        bench.advance(MINUTE);
        let (big, end) = (found(&bench, run, "big"), bench.run(run));
        if fits {
            assert_eq!(end.status, RunStatus::Completed, "{:?}", end.last_error);
            let reference = output(&bench, run, "big");
            assert_eq!(bytes(&bench, run, &reference), text.as_bytes());
            assert_eq!(output(&bench, run, "after"), json!({ "of": "after", "bytes": text.len() }));
        } else {
            assert_eq!((big.status, big.last_error.unwrap().code.as_str()), (StepStatus::Failed, "invalid_output"));
        }
        check(&bench);
    }
}

/// What a program reports of a step that it has taken; again, if its answer was lost.
#[test]
fn an_output_of_a_program_that_is_too_large_for_its_row_is_an_artifact_of_the_run() {
    let body = json!(vec!["y".repeat(1 << 10); 300]);
    for (schema, status) in [(None, StepStatus::Completed), (Some(json!({ "type": "string" })), StepStatus::Failed)] {
        let after = json!({ "of": "after", "bytes": "${{ steps.a.output.bytes }}" });
        let big = StepPlan { output: schema, max_tries: 1, ..external("a") };
        let (mut bench, run) = offered(vec![big, StepPlan { input: after, ..step("after") }]);
        let taken = take(&bench);
        let ends: Vec<_> = (0..2).map(|_| end(&mut bench, &taken, done(body.clone())).unwrap()).collect();
        assert_eq!(found(&bench, run, "a").status, status);
        if status == StepStatus::Failed {
            continue;
        }
        assert_eq!(ends[0], ends[1]);
        assert_eq!(bench.run(run).status, RunStatus::Completed, "{:?}", bench.run(run).last_error);
        assert_eq!(bytes(&bench, run, &output(&bench, run, "a")), body.to_string().into_bytes());
        assert_eq!(output(&bench, run, "after"), json!({ "of": "after", "bytes": body.to_string().len() }));
        check(&bench);
    }
    let (mut bench, _) = offered(vec![external("a")]);
    let taken = take(&bench);
    let refused = end(&mut bench, &taken, done(json!("x".repeat(9 << 20)))).unwrap_err();
    assert!(refused.to_string().contains("8 MiB"), "{refused}");
}

#[test]
fn dying_around_every_commit_of_a_large_output_leaves_it_whole_or_begins_again() {
    let story = |bench: &mut Bench| {
        answers(bench, json!("x".repeat(300 << 10)));
        let run = submit_agents(bench, plan(step("page")));
        bench.advance(3 * MINUTE);
        run
    };
    around_every_write(story, |bench, run, place| {
        assert_eq!(bench.run(run).status, RunStatus::Completed, "{place}");
        let page = output(bench, run, "page");
        assert_eq!(bytes(bench, run, &page["body"]).len(), 300 << 10, "{place}");
        check(bench);
    });
}
