//! Calls of MCP servers that are programs on machines, and servers whose tools are listed for a model: what machines are told, what the
//! client's word means, and that a list is asked for once.

use crate::agents::{agent, agents_spec, found, submit, submit_agents, task, tree};
use crate::bench::{Bench, now};
use crate::crashes::{UNDISTURBED, around_every_write};
use crate::machines::{Does, ended};
use adapters::ToolCall;
use adapters::tool::fake::Fate;
use engine::run::Plans;
use model::RunId;
use model::job::JobReason;
use model::plan::{AgentPlan, MachinePlan, Policy, RunPlan, StepPlan, ToolPlan};
use model::run::RunStatus;
use model::spec::Command;
use model::step::{StepStatus, ToolKind};
use model::time::{MINUTE, SECOND};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use store::step::Data;

fn add(name: &str, idempotent: bool) -> StepPlan {
    let input = json!({ "argv": ["./server"], "tool": "add", "arguments": { "n": 1 }, "env": { "A": "b" } });
    StepPlan { input, idempotent, ..StepPlan::new(name, ToolKind::Mcp) }
}

fn on_machine(steps: Vec<StepPlan>) -> AgentPlan {
    AgentPlan { machine: Some(MachinePlan::default()), ..agent("one", vec![task("all", steps)]) }
}

#[test]
fn a_machine_is_told_of_the_server_and_of_the_call() {
    let mut bench = Bench::new();
    bench.runners.script = Some(Box::new(|_| Does::Runs));
    let run = submit_agents(&mut bench, vec![on_machine(vec![add("a", false)])]);
    bench.settle();
    let step = found(&bench, run, "a");
    assert!(step.stdio && step.status == StepStatus::Running, "{step:?}");
    let instance = bench.job(run).instance.unwrap();
    let desired = now(bench.engine.desired(instance)).unwrap().job.unwrap();
    let told = &desired.steps[0];
    assert_eq!(told.command, Command::Argv(vec!["repl".into(), "mcp-call".into()]));
    assert_eq!(told.server.as_ref().unwrap().argv, ["./server"]);
    assert!(told.answers && told.env["A"] == "b");
    assert_eq!(told.max_duration_ms, Some(35 * SECOND), "the client judges its 30 s by itself");
    let asked: Value = serde_json::from_slice(&desired.inline[&told.stdin.as_ref().unwrap().hash]).unwrap();
    let key = step.key.clone().unwrap();
    assert_eq!(asked, json!({ "tool": "add", "arguments": { "n": 1 }, "key": key, "timeout_ms": 30_000 }));
    let Does::Ends(end) = Does::answers(json!({ "output": { "content": [], "structured": 1 } })) else {
        unreachable!()
    };
    bench.command_ends(step.present_try(), end);
    bench.settle();
    assert_eq!(bench.run(run).status, RunStatus::Completed);
    let id = found(&bench, run, "a").answer.unwrap();
    let output = now(bench.store.read("test", move |tx| store::step::data(tx, id, Data::Output))).unwrap().unwrap();
    assert_eq!(output, json!({ "content": [], "structured": 1 }));
    bench.check();
    bench.check_all_gone();
}

#[test]
fn what_the_client_says_of_a_call_has_a_class_and_an_effect() {
    use StepStatus::{Completed, Failed, Running};
    let failed = |class: &str, effect: &str| {
        Does::answers(json!({ "failed": { "class": class, "effect": effect, "code": "c", "message": "m" } }))
    };
    let exits = |code| Does::Ends(ended(JobReason::ExitedWithError, Some(code), 0, 5));
    // (what it says, idempotent) -> (status, tries, code)
    let table = [
        (Does::answers(json!({ "output": 7 })), false, (Completed, 1, None)),
        (failed("permanent", "done"), true, (Failed, 1, Some("c"))),
        (failed("transient", "none"), false, (Failed, 3, Some("c"))),
        (failed("transient", "perhaps"), true, (Failed, 3, Some("c"))),
        (failed("transient", "perhaps"), false, (Running, 1, Some("c"))),
        (Does::answers(json!({ "what": 7 })), false, (Running, 1, Some("mcp_client"))),
        (Does::exits(0), false, (Running, 1, Some("mcp_client"))),
        (exits(101), true, (Failed, 3, Some("mcp_client"))),
        (exits(101), false, (Running, 1, Some("mcp_client"))),
    ];
    for (does, idempotent, (status, tries, code)) in table {
        let mut bench = Bench::new();
        let what = format!("{does:?} {idempotent}");
        bench.runners.script = Some(Box::new(move |_| does.clone()));
        let run = submit_agents(&mut bench, vec![on_machine(vec![add("a", idempotent)])]);
        bench.advance(MINUTE);
        let step = found(&bench, run, "a");
        assert_eq!((step.status, step.tries), (status, tries), "{what}: {step:?}");
        assert_eq!(step.last_error.map(|error| error.code).as_deref(), code, "{what}");
        bench.check();
    }
}

/// Which turn is asked for; none of a call or a list.
fn turn(call: &ToolCall) -> Option<usize> {
    let messages = call.input["messages"].as_array()?;
    Some(messages.iter().filter(|message| message["role"] == "assistant").count() + 1)
}

fn listed() -> Value {
    let input = json!({ "type": "object", "properties": { "n": { "type": "integer" } }, "required": ["n"] });
    json!({ "tools": [{ "name": "add", "description": "Adds.", "input": input }] })
}

/// One turn that calls the server's tool, and one that ends the dialogue.
fn talks(call: &ToolCall) -> Fate {
    let says = |calls: Value| {
        Fate::answer(json!({ "message": { "content": "done", "tool_calls": calls }, "finish_reason": "stop" }))
    };
    match turn(call) {
        None if call.input.get("tool").is_none() => Fate::answer(listed()),
        None => Fate::answer(json!({ "content": [], "structured": call.input["arguments"]["n"] })),
        Some(1) => {
            assert_eq!(call.input["tools"][0]["name"], "sums__add");
            says(json!([{ "name": "sums__add", "arguments": { "n": 5 } }]))
        }
        Some(_) => says(json!([])),
    }
}

fn begin(bench: &mut Bench, server: Value, policy: Policy) -> RunId {
    let sums = ToolPlan {
        tool: ToolKind::Mcp,
        description: String::new(),
        args: BTreeMap::new(),
        policy,
        idempotent: true,
        timeout_ms: Some(30 * SECOND),
        input: server,
    };
    let input = json!({ "model": "default", "prompt": "go", "tools": ["sums"], "max_turns": 5 });
    let talk = StepPlan { input, idempotent: true, ..StepPlan::new("talk", ToolKind::Llm) };
    let shared = RunPlan { tools: BTreeMap::from([("sums".to_owned(), sums)]), ..RunPlan::default() };
    submit(bench, agents_spec(), Plans { agents: vec![on_machine(vec![talk])], shared, ..Plans::default() })
}

fn calls(bench: &Bench) -> Vec<u32> {
    bench.tool.seen().values().map(|seen| seen.calls).collect()
}

#[test]
fn dying_around_every_commit_asks_for_no_list_that_was_recorded() {
    let story = |bench: &mut Bench| {
        bench.tool.decide_by(Box::new(|call, _| talks(call)));
        let run = begin(bench, json!({ "url": "https://mcp.example/" }), Policy::Allow);
        bench.advance(2 * MINUTE);
        run
    };
    around_every_write(story, |bench, run, place| {
        assert_eq!(bench.run(run).status, RunStatus::Completed, "{place}");
        let names: Vec<String> = tree(bench, run).steps.into_iter().map(|step| step.name).collect();
        assert_eq!(names, ["talk", "talk/tools/sums", "talk/t1", "talk/t1/c1", "talk/t2"], "{place}");
        let again: u32 = calls(bench).iter().map(|calls| calls - 1).sum();
        assert!(again <= u32::from(place != UNDISTURBED), "{place}: {:?}", calls(bench));
        bench.check();
    });
}

#[test]
fn a_model_calls_a_program_only_after_a_person_has_agreed() {
    let mut bench = Bench::new();
    bench.tool.decide_by(Box::new(|call, _| talks(call)));
    bench.runners.script = Some(Box::new(|step| {
        assert!(step.by_model, "its processes get no token for steps");
        Does::answers(json!({ "output": listed() }))
    }));
    let run = begin(&mut bench, json!({ "argv": ["./server"] }), Policy::Ask);
    bench.settle();
    assert_eq!(bench.runners.commands.len(), 1, "the list is asked for, and nothing is called");
    let waits = found(&bench, run, "talk/t1/c1");
    assert!(waits.stdio && waits.status == StepStatus::Waiting, "{waits:?}");
    bench.runners.script = Some(Box::new(|_| Does::answers(json!({ "output": { "content": [], "structured": 5 } }))));
    crate::questions::answer_first(&mut bench, true);
    bench.settle();
    assert_eq!(bench.run(run).status, RunStatus::Completed, "{:?}", bench.run(run).last_error);
    assert_eq!(bench.runners.commands.len(), 2);
    bench.check();
    bench.check_all_gone();
}

#[test]
fn a_list_that_cannot_be_had_fails_the_step_with_its_reason() {
    let mut bench = Bench::new();
    let never = json!({ "failed": { "class": "transient", "effect": "none", "code": "timeout", "message": "the server did not begin a session within 30000 ms" } });
    bench.runners.script = Some(Box::new(move |_| Does::answers(never.clone())));
    let run = begin(&mut bench, json!({ "argv": ["./server"] }), Policy::Ask);
    bench.advance(MINUTE);
    let step = found(&bench, run, "talk");
    assert_eq!(step.status, StepStatus::Failed);
    let error = step.last_error.unwrap();
    assert_eq!(error.code, "timeout");
    assert!(error.message.contains("`sums` cannot be listed: the server did not begin a session"), "{}", error.message);
    assert_eq!(found(&bench, run, "talk/tools/sums").tries, 3);
    bench.check();
}
