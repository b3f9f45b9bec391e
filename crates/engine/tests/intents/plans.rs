//! What plans say with expressions, items, conditions and waits, and dialogues with models: on a tool in memory.

use crate::agents::{agent, agents_spec, check, found, step, submit, task, tree};
use crate::bench::Bench;
use adapters::ToolUsage;
use adapters::tool::fake::Fate;
use engine::run::{Action, Plans};
use model::plan::{AgentPlan, Policy, RunPlan, StepPlan, TaskPlan, ToolPlan};
use model::run::{RunOutcome, RunReason, RunStatus};
use model::spec::{PlanRules, RunSpec};
use model::step::{StepStatus, ToolKind};
use model::time::{HOUR, MINUTE, SECOND};
use model::{Credits, RunId};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

fn with_input(name: &str, input: Value) -> StepPlan {
    StepPlan { input, ..step(name) }
}

fn shared() -> RunPlan {
    let inputs = json!({ "people": ["ann", "bob", "cy"], "topic": "sun" });
    RunPlan { inputs: inputs.as_object().unwrap().clone(), ..RunPlan::default() }
}

fn submit_shared(bench: &mut Bench, agents: Vec<AgentPlan>) -> RunId {
    submit(bench, agents_spec(), Plans { shared: shared(), agents, ..Plans::default() })
}

/// Every call is answered with its own input, and noted.
fn noted(bench: &Bench) -> Arc<Mutex<Vec<String>>> {
    let inputs = Arc::new(Mutex::new(Vec::new()));
    let notes = inputs.clone();
    bench.tool.decide_by(Box::new(move |call, _| {
        notes.lock().unwrap().push(call.input.to_string());
        Fate::answer(json!({ "got": call.input }))
    }));
    inputs
}

#[test]
fn an_input_is_evaluated_with_what_earlier_steps_answered() {
    let mut bench = Bench::new();
    let inputs = noted(&bench);
    let first = with_input("first", json!({ "of": "first", "about": "${{ inputs.topic }}" }));
    let second = with_input("second", json!({ "of": "${{ steps.first.output.got.about }}!", "n": "${{ 1 + 1 }}" }));
    let third = with_input("third", json!({ "of": "${{ tasks.one.steps.second.output.got.of }}" }));
    let tasks = vec![task("one", vec![first, second]), task("two", vec![third])];
    let run = submit_shared(&mut bench, vec![agent("a", tasks)]);
    bench.settle();
    assert_eq!(bench.run(run).status, RunStatus::Completed, "{:?}", bench.run(run).last_error);
    let expected = [r#"{"about":"sun","of":"first"}"#, r#"{"n":2,"of":"sun!"}"#, r#"{"of":"sun!"}"#];
    assert_eq!(*inputs.lock().unwrap(), expected);
    check(&bench);
}

#[test]
fn an_expression_that_cannot_be_evaluated_fails_its_step_without_a_call() {
    let mut bench = Bench::new();
    let bad = with_input("bad", json!({ "of": "${{ inputs.topic.nothing }}" }));
    let run = submit_shared(&mut bench, vec![agent("a", vec![task("one", vec![bad])])]);
    bench.settle();
    let bad = found(&bench, run, "bad");
    assert_eq!((bad.status, bad.tries), (StepStatus::Failed, 0));
    assert_eq!(bad.last_error.unwrap().code, "invalid_input");
    assert!(bench.tool.seen().is_empty());
    check(&bench);
}

#[test]
fn a_step_or_task_whose_condition_is_false_is_not_needed_and_others_go_on() {
    let mut bench = Bench::new();
    let no = "${{ inputs.topic == 'wind' }}";
    let steps = vec![step("a"), StepPlan { condition: Some(no.into()), ..step("b") }, step("c")];
    let skipped = TaskPlan { condition: Some(no.into()), ..task("two", vec![step("d")]) };
    let after = TaskPlan { after: vec![1], ..task("three", vec![step("e")]) };
    let plan = AgentPlan { parallel: 3, ..agent("a", vec![task("one", steps), skipped, after]) };
    let run = submit_shared(&mut bench, vec![plan]);
    bench.settle();
    let run_now = bench.run(run);
    assert_eq!((run_now.status, run_now.outcome), (RunStatus::Completed, Some(RunOutcome::Success)));
    assert!(found(&bench, run, "b").unneeded);
    let tasks = tree(&bench, run).tasks;
    assert!(tasks[1].unneeded && tasks[1].step_count == 0, "{:?}", tasks[1]);
    assert_eq!(bench.tool.seen().len(), 3, "a, c and e");
    check(&bench);
}

#[test]
fn a_task_is_made_for_each_item_and_what_waits_for_it_waits_for_all() {
    for (parallel, item) in [(1, "each"), (3, "each"), (3, "none")] {
        let mut bench = Bench::new();
        let inputs = noted(&bench);
        let list = if item == "none" { json!([]) } else { json!("${{ inputs.people }}") };
        let mail = with_input("send", json!({ "of": "send", "to": "${{ item }}" }));
        let mail = TaskPlan { for_each: Some(list), ..task("mail", vec![mail]) };
        let after = TaskPlan { after: vec![0], ..task("after", vec![step("z")]) };
        let plan = AgentPlan { parallel, ..agent("a", vec![mail, after]) };
        let run = submit_shared(&mut bench, vec![plan]);
        bench.settle();
        let found = bench.run(run);
        assert_eq!(found.status, RunStatus::Completed, "{:?}", found.last_error);
        let mut names: Vec<String> = tree(&bench, run).tasks.into_iter().map(|task| task.name).collect();
        names.sort();
        if item == "none" {
            assert_eq!((names, found.task_count), (vec!["after".to_owned(), "mail".to_owned()], 2));
        } else {
            assert_eq!(
                (names, found.task_count),
                (["after", "mail[0]", "mail[1]", "mail[2]"].map(str::to_owned).to_vec(), 4)
            );
            let sent = inputs.lock().unwrap()[..3].to_vec();
            assert_eq!(sent, ["ann", "bob", "cy"].map(|to| format!(r#"{{"of":"send","to":"{to}"}}"#)));
        }
        check(&bench);
    }
}

#[test]
fn a_wait_calls_nothing_and_goes_on_when_its_time_has_come_but_not_while_the_run_is_paused() {
    let mut bench = Bench::new();
    let wait = StepPlan { input: json!({ "for": "10m" }), timeout_ms: HOUR, ..StepPlan::new("rest", ToolKind::Wait) };
    let run = submit_shared(&mut bench, vec![agent("a", vec![task("one", vec![step("a"), wait, step("b")])])]);
    bench.advance(9 * MINUTE);
    let rest = found(&bench, run, "rest");
    assert_eq!((rest.status, bench.tool.seen().len()), (StepStatus::Waiting, 1));
    bench.act(run, Action::Pause).unwrap();
    bench.advance(5 * MINUTE);
    assert_eq!(bench.run(run).status, RunStatus::Paused);
    assert_eq!(found(&bench, run, "rest").status, StepStatus::Waiting);
    bench.restart();
    bench.act(run, Action::Resume).unwrap();
    bench.advance(MINUTE);
    assert_eq!(bench.run(run).status, RunStatus::Completed);
    assert_eq!(bench.tool.seen().len(), 2);
    check(&bench);
}

#[test]
fn a_run_that_waits_can_be_cancelled() {
    let mut bench = Bench::new();
    let wait = StepPlan { input: json!({ "for": "10m" }), ..StepPlan::new("rest", ToolKind::Wait) };
    let run = submit_shared(&mut bench, vec![agent("a", vec![task("one", vec![wait])])]);
    bench.settle();
    bench.cancel(run);
    bench.settle();
    assert_eq!(bench.run(run).status, RunStatus::Cancelled);
    assert_eq!(found(&bench, run, "rest").status, StepStatus::Cancelled);
    check(&bench);
}

fn talk() -> Vec<AgentPlan> {
    let input = json!({ "model": "default", "prompt": "Find it.", "tools": ["search"], "max_turns": 5 });
    let llm = StepPlan { input, idempotent: true, timeout_ms: HOUR, ..StepPlan::new("write", ToolKind::Llm) };
    vec![agent("a", vec![task("one", vec![llm, step("after")])])]
}

fn with_search(policy: Policy) -> RunPlan {
    let search = ToolPlan {
        tool: ToolKind::Http,
        description: String::new(),
        args: BTreeMap::from([("q".to_owned(), json!({ "type": "string" }))]),
        policy,
        idempotent: false,
        timeout_ms: Some(30 * SECOND),
        input: json!({ "of": "search", "q": "${{ args.q }}" }),
    };
    RunPlan { tools: BTreeMap::from([("search".to_owned(), search)]), ..shared() }
}

/// A model that asks for two calls, and then answers with how many results it got.
fn model_answers(input: &Value) -> Value {
    let results = input["messages"].as_array().unwrap().iter().filter(|message| message["role"] == "tool").count();
    let calls = match results {
        0 => json!([{ "name": "search", "arguments": { "q": "x" } }, { "name": "search", "arguments": { "q": "y" } }]),
        _ => json!([]),
    };
    json!({ "message": { "content": format!("{results} results"), "tool_calls": calls }, "finish_reason": "stop" })
}

fn obey(bench: &Bench, hangs: &'static str) {
    bench.tool.decide_by(Box::new(move |call, _| match call.input.get("messages") {
        Some(_) => {
            let usage = ToolUsage { of: "default".into(), input_tokens: 1_000, output_tokens: 10, estimated: false };
            Fate::answer(model_answers(&call.input)).using(usage)
        }
        None if call.input["q"] == hangs => Fate::hang(),
        None => Fate::answer(call.input.clone()),
    }));
}

#[test]
fn turns_and_calls_of_a_dialogue_are_steps_of_their_own_and_each_is_charged() {
    let mut bench = Bench::new();
    obey(&bench, "nothing");
    let run = submit(
        &mut bench,
        agents_spec(),
        Plans { shared: with_search(Policy::Allow), agents: talk(), ..Plans::default() },
    );
    bench.settle();
    let run_now = bench.run(run);
    assert_eq!(run_now.status, RunStatus::Completed, "{:?}", run_now.last_error);
    let names: Vec<String> = tree(&bench, run).steps.into_iter().map(|step| step.name).collect();
    assert_eq!(names, ["write", "after", "write/t1", "write/t1/c1", "write/t1/c2", "write/t2"]);
    assert_eq!(run_now.step_count, 6);
    let used = found(&bench, run, "write/t1").usage.unwrap();
    assert_eq!((used.input_tokens, used.charged), (1_000, Credits(1_010)), "one credit for a million tokens");
    assert_eq!(bench.snapshot(run).attempt.unwrap().charged, Credits(2_020));
    check(&bench);
}

#[test]
fn a_holder_that_dies_in_a_dialogue_repeats_no_turn_and_no_call_that_has_ended() {
    let mut bench = Bench::new();
    obey(&bench, "y");
    let shared = RunPlan { tools: with_search(Policy::Allow).tools, ..shared() };
    let run = submit(&mut bench, agents_spec(), Plans { shared, agents: talk(), ..Plans::default() });
    bench.settle();
    assert_eq!(bench.tool.hanging().len(), 1);
    bench.restart();
    obey(&bench, "nothing");
    bench.advance(5 * MINUTE);
    // The call that was cut is not repeatable: a person is asked, and says that it did not happen.
    crate::agents::resolve(&mut bench, model::run::Ticket::NotDone);
    bench.advance(MINUTE);
    assert_eq!(bench.run(run).status, RunStatus::Completed, "{:?}", bench.run(run).last_error);
    for name in ["write/t1", "write/t1/c1", "write/t2"] {
        assert_eq!(bench.tool.seen_of(&found(&bench, run, name).key.unwrap()).calls, 1, "{name}");
    }
    check(&bench);
}

#[test]
fn a_call_that_a_person_has_to_approve_waits_and_its_refusal_is_told_to_the_model() {
    for approve in [true, false] {
        let mut bench = Bench::new();
        obey(&bench, "nothing");
        let run = submit(
            &mut bench,
            agents_spec(),
            Plans { shared: with_search(Policy::Ask), agents: talk(), ..Plans::default() },
        );
        bench.settle();
        assert_eq!(bench.tool.seen().len(), 1, "only the first turn");
        for _ in 0..2 {
            crate::questions::answer_first(&mut bench, approve);
        }
        bench.settle();
        assert_eq!(bench.run(run).status, RunStatus::Completed, "{:?}", bench.run(run).last_error);
        let call = found(&bench, run, "write/t1/c1");
        assert_eq!(call.status, if approve { StepStatus::Completed } else { StepStatus::Failed });
        assert_eq!(bench.tool.seen().len(), if approve { 5 } else { 3 });
        check(&bench);
    }
}

#[test]
fn a_turn_that_cannot_be_paid_is_not_asked_and_ends_the_run() {
    let mut bench = Bench::new();
    obey(&bench, "nothing");
    // The first turn may cost about 4,200 tokens and costs 1,010; then too little is left for the second.
    let spec = RunSpec {
        budget: Some(Credits(5_000)),
        plan: PlanRules { estimate: Credits(5_000), ..PlanRules::default() },
        ..agents_spec()
    };
    let run =
        submit(&mut bench, spec, Plans { shared: with_search(Policy::Allow), agents: talk(), ..Plans::default() });
    bench.settle();
    let found_run = bench.run(run);
    assert_eq!(found_run.status, RunStatus::Failed);
    assert_eq!(found_run.termination.unwrap().reason, RunReason::Budget);
    assert_eq!(found(&bench, run, "write/t2").tries, 0, "nothing was asked");
    let attempt = bench.snapshot(run).attempt.unwrap();
    assert_eq!((attempt.charged, attempt.reserved), (Credits(1_010), attempt.charged + attempt.refunded));
    check(&bench);
}
