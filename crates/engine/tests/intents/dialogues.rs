//! Dialogues with a model in memory: turns and calls are children of their step, and what has ended is never asked for again.

use crate::agents::{agent, agents_spec, check, found, once, resolve, step, submit, task, tree};
use crate::bench::{Bench, now};
use crate::crashes::{UNDISTURBED, around_every_write};
use adapters::ToolCall;
use adapters::tool::fake::Fate;
use engine::run::Plans;
use model::plan::{Policy, RunPlan, StepPlan, TaskPlan, ToolPlan};
use model::recovery::{self, ErrorClass, OnExhausted};
use model::run::{RunStatus, Ticket};
use model::spec::{FailureMode, PlanRules, RunSpec};
use model::step::{StepStatus, StepWait, ToolKind};
use model::time::{MINUTE, SECOND};
use model::{Effect, RunId};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Which turn is asked for; none of a call.
pub fn turn(call: &ToolCall) -> Option<usize> {
    let messages = call.input["messages"].as_array()?;
    Some(messages.iter().filter(|message| message["role"] == "assistant").count() + 1)
}

fn says(text: &str, calls: Value) -> Fate {
    Fate::answer(json!({ "message": { "content": text, "tool_calls": calls }, "finish_reason": "stop" }))
}

/// Two turns that call a tool, and one that ends the dialogue.
pub fn talks(call: &ToolCall) -> Fate {
    match turn(call) {
        None => Fate::answer(json!({ "seen": call.input["of"] })),
        Some(turn @ (1 | 2)) => says("", json!([{ "name": "look", "arguments": { "at": turn } }])),
        Some(_) => says("done", json!([])),
    }
}

pub fn begin(bench: &mut Bench) -> RunId {
    let (talk, shared) = talk();
    let agents = vec![agent("one", vec![task("all", vec![talk])])];
    submit(bench, agents_spec(), Plans { agents, shared, ..Plans::default() })
}

/// The step of a dialogue, and what its run shares.
pub fn talk() -> (StepPlan, RunPlan) {
    let look = ToolPlan {
        tool: ToolKind::Http,
        description: String::new(),
        args: BTreeMap::from([("at".to_owned(), json!({ "type": "integer" }))]),
        policy: Policy::Allow,
        idempotent: true,
        timeout_ms: Some(30 * SECOND),
        input: json!({ "of": "${{ args.at }}" }),
    };
    let input = json!({ "model": "default", "prompt": "go", "tools": ["look"], "max_turns": 5 });
    let talk = StepPlan { input, idempotent: true, ..StepPlan::new("talk", ToolKind::Llm) };
    (talk, RunPlan { tools: BTreeMap::from([("look".to_owned(), look)]), ..RunPlan::default() })
}

/// How often each turn and each call was begun.
fn calls(bench: &Bench) -> Vec<u32> {
    bench.tool.seen().values().map(|seen| seen.calls).collect()
}

#[test]
fn a_turn_or_call_whose_holder_died_is_begun_again_and_nothing_else_is() {
    // Turns 1 to 3, and the calls behind the first two.
    for place in 0..5 {
        let mut bench = Bench::new();
        let mut begun = 0;
        bench.tool.decide_by(Box::new(move |call, _| {
            begun += 1;
            if begun == place + 1 { Fate::hang() } else { talks(call) }
        }));
        let run = begin(&mut bench);
        bench.settle();
        assert_eq!(bench.tool.hanging().len(), 1, "place {place}");
        check(&bench);
        bench.restart();
        bench.advance(MINUTE);
        assert_eq!(bench.run(run).status, RunStatus::Completed, "place {place}");
        let mut calls = calls(&bench);
        calls.sort_unstable();
        assert_eq!(calls, [1, 1, 1, 1, 2], "place {place}");
        let steps = tree(&bench, run).steps;
        assert_eq!(steps.iter().filter(|step| step.status == StepStatus::Completed).count(), 6, "{steps:?}");
        check(&bench);
    }
}

/// A model is told of errors, but no model can say whether a call had its effect: the dialogue stops until a person has.
#[test]
fn a_call_that_may_have_happened_and_must_not_be_repeated_stops_its_dialogue() {
    for (answer, calls_in_all) in [(Ticket::Done, 5), (Ticket::NotDone, 6), (Ticket::Abort, 2)] {
        let mut bench = Bench::new();
        let mut lost = false;
        bench.tool.decide_by(Box::new(move |call, _| match turn(call) {
            None if !std::mem::replace(&mut lost, true) => Fate::fail(ErrorClass::Transient, Effect::Perhaps),
            _ => talks(call),
        }));
        let (talk, mut shared) = talk();
        shared.tools.get_mut("look").unwrap().idempotent = false;
        let agents = vec![agent("one", vec![task("all", vec![talk])])];
        let run = submit(&mut bench, agents_spec(), Plans { agents, shared, ..Plans::default() });
        bench.advance(10 * MINUTE);
        assert_eq!(bench.run(run).status, RunStatus::Paused);
        let asked = tree(&bench, run).steps.into_iter().filter(|step| step.waits == Some(StepWait::Ticket));
        assert_eq!(asked.map(|step| step.name).collect::<Vec<_>>(), ["talk/t1/c1"]);
        assert_eq!(calls(&bench), [1, 1], "one turn and its call: no other turn was asked for");
        resolve(&mut bench, answer);
        bench.advance(MINUTE);
        let end = if answer == Ticket::Abort { RunStatus::Failed } else { RunStatus::Completed };
        assert_eq!(bench.run(run).status, end, "{answer:?}: {:?}", bench.run(run).last_error);
        assert_eq!(calls(&bench).iter().sum::<u32>(), calls_in_all, "{answer:?}");
        check(&bench);
    }
}

#[test]
fn dying_around_every_commit_of_a_dialogue_asks_for_nothing_that_had_ended() {
    let story = |bench: &mut Bench| {
        bench.tool.decide_by(Box::new(|call, _| talks(call)));
        let run = begin(bench);
        bench.advance(2 * MINUTE);
        run
    };
    around_every_write(story, |bench, run, place| {
        assert_eq!(bench.run(run).status, RunStatus::Completed, "{place}");
        assert_eq!(calls(bench).len(), 5, "{place}");
        let again: u32 = calls(bench).iter().map(|calls| calls - 1).sum();
        assert!(again <= u32::from(place != UNDISTURBED), "{place}: {:?}", calls(bench));
        check(bench);
    });
}

/// The second attempt of a run whose last step failed once. What is not to run again answers from its record; what is gets another key,
/// by which the far side takes it for another effect.
#[test]
fn what_runs_again_in_a_new_attempt_is_called_under_another_key() {
    for rerun in [true, false] {
        let mut bench = Bench::new();
        let mut failed = false;
        bench.tool.decide_by(Box::new(move |call, _| match call.input["of"].as_str() {
            Some("bad") if !std::mem::replace(&mut failed, true) => Fate::fail(ErrorClass::Permanent, Effect::Done),
            Some(_) => Fate::answer(call.input.clone()),
            None => talks(call),
        }));
        let (talk, shared) = talk();
        let steps = vec![StepPlan { rerun, ..once("plain") }, StepPlan { rerun, ..talk }, step("bad")];
        let spec = RunSpec { failure_mode: FailureMode::Retry, ..agents_spec() };
        let agents = vec![agent("one", vec![task("all", steps)])];
        let run = submit(&mut bench, spec, Plans { agents, shared, ..Plans::default() });
        bench.advance(MINUTE);
        assert_eq!((bench.run(run).status, bench.run(run).attempt), (RunStatus::Completed, 2), "{rerun}");
        // The plain step, three turns and two calls, each once a key; and the step that failed, twice by one key.
        let (calls, mut keys) = (calls(&bench), if rerun { vec![1; 12] } else { vec![1; 6] });
        keys.push(2);
        assert_eq!(calls.iter().sum::<u32>(), keys.iter().sum::<u32>(), "{rerun}: {calls:?}");
        assert_eq!(calls.len(), keys.len(), "{rerun}: a call that is made again has another key");
        check(&bench);
    }
}

/// The model's first answers are failures; a turn's tries are those of its step.
fn unwilling(bench: &Bench, failures: usize) {
    let mut left = failures;
    bench.tool.decide_by(Box::new(move |call, _| match turn(call) {
        Some(2) if left > 0 => {
            left -= 1;
            Fate::fail(ErrorClass::Transient, Effect::Perhaps)
        }
        _ => talks(call),
    }));
}

fn tried(bench: &mut Bench, max_tries: i64, on_exhausted: OnExhausted) -> RunId {
    let (talk, shared) = talk();
    let rules = PlanRules { on_exhausted, ..agents_spec().plan };
    let agents = vec![agent("one", vec![task("all", vec![StepPlan { max_tries, ..talk }])])];
    submit(bench, RunSpec { plan: rules, ..agents_spec() }, Plans { agents, shared, ..Plans::default() })
}

#[test]
fn retry_of_a_dialogue_is_how_often_each_turn_is_tried() {
    for (max_tries, status) in [(1, RunStatus::Failed), (4, RunStatus::Failed), (5, RunStatus::Completed)] {
        let mut bench = Bench::new();
        unwilling(&bench, 4);
        let run = tried(&mut bench, max_tries, OnExhausted::Abort);
        bench.advance(10 * MINUTE);
        assert_eq!(bench.run(run).status, status, "{max_tries}");
        let turn = found(&bench, run, "talk/t2");
        assert_eq!(turn.tries, max_tries, "{turn:?}");
        assert_eq!(found(&bench, run, "talk").tries, 1, "the dialogue itself is not tried again");
        check(&bench);
    }
}

#[test]
fn a_dialogue_whose_turn_has_used_its_tries_goes_to_a_person() {
    let mut bench = Bench::new();
    unwilling(&bench, 5);
    let run = tried(&mut bench, 3, OnExhausted::Escalate);
    bench.advance(10 * MINUTE);
    let talk = found(&bench, run, "talk");
    assert_eq!((bench.run(run).status, talk.waits), (RunStatus::Paused, Some(StepWait::Ticket)));
    let judged = talk.judged.unwrap();
    assert_eq!((judged.class, judged.effect), (ErrorClass::Transient, Effect::Perhaps));
    assert_eq!((judged.decision, judged.rule), (recovery::Decided::Escalate, recovery::Rule::TriesUsed));
    resolve(&mut bench, Ticket::Resume);
    bench.advance(10 * MINUTE);
    assert_eq!(bench.run(run).status, RunStatus::Completed, "the failed turn has its tries anew");
    let mut calls = calls(&bench);
    calls.sort_unstable();
    assert_eq!(calls, [1, 1, 1, 1, 6], "what had finished is not asked for again");
    check(&bench);
}

/// A model whose first answers are no JSON. Its first turn calls a tool.
fn stubborn(bench: &Bench, wrong: usize) {
    let mut left = wrong;
    bench.tool.decide_by(Box::new(move |call, _| match turn(call) {
        Some(2..) if left > 0 => {
            left -= 1;
            says("no", json!([]))
        }
        Some(2..) => Fate::answer(json!({ "message": { "content": "", "tool_calls": [], "json": { "x": 1 } } })),
        _ => talks(call),
    }));
}

/// The levels that try again: the task, or the run.
fn checked(bench: &mut Bench, by_task: bool, look_again: bool) -> RunId {
    let (talk, mut shared) = talk();
    shared.tools.get_mut("look").unwrap().idempotent = look_again;
    let talk = StepPlan { output: Some(json!({ "type": "object", "required": ["x"] })), ..talk };
    let modes =
        if by_task { (FailureMode::Retry, FailureMode::FailFast) } else { (FailureMode::FailFast, FailureMode::Retry) };
    let tasks = vec![TaskPlan { mode: modes.0, ..task("all", vec![talk]) }];
    let spec = RunSpec { failure_mode: modes.1, ..agents_spec() };
    let run = submit(bench, spec, Plans { agents: vec![agent("one", tasks)], shared, ..Plans::default() });
    bench.advance(10 * MINUTE);
    run
}

/// Its answer is still invalid after two more tries: the same turns would end in the same way for ever.
#[test]
fn a_dialogue_that_failed_by_what_was_said_is_begun_anew_when_it_is_retried() {
    for by_task in [true, false] {
        let mut bench = Bench::new();
        stubborn(&bench, 3);
        let run = checked(&mut bench, by_task, true);
        assert_eq!(bench.run(run).status, RunStatus::Completed, "{:?}", bench.run(run).last_error);
        // A turn, its call, and three answers; then a turn, its call, and one answer.
        assert_eq!(calls(&bench), [1; 8], "{by_task}");
        assert_eq!(found(&bench, run, "talk").identity.as_deref(), Some("one/all/talk#1001"));
        check(&bench);
    }
}

/// After a crash, and in every attempt that follows, the second dialogue answers.
#[test]
fn dying_around_every_commit_of_a_second_dialogue_asks_for_nothing_that_had_ended() {
    let story = |bench: &mut Bench| {
        stubborn(bench, 3);
        checked(bench, true, true)
    };
    around_every_write(story, |bench, run, place| {
        assert_eq!(bench.run(run).status, RunStatus::Completed, "{place}");
        let again: u32 = calls(bench).iter().map(|calls| calls - 1).sum();
        assert!(again <= u32::from(place != UNDISTURBED), "{place}: {:?}", calls(bench));
        check(bench);
    });
}

#[test]
fn what_a_second_dialogue_does_again_and_must_not_be_repeated_needs_an_approval() {
    for approve in [true, false] {
        let mut bench = Bench::new();
        stubborn(&bench, 3);
        let run = checked(&mut bench, true, false);
        let waits = found(&bench, run, "talk/t1/c1");
        assert_eq!((waits.status, waits.waits), (StepStatus::Waiting, Some(StepWait::Approval)));
        let open = now(bench.engine.questions(bench.org, StepWait::Approval, true, i64::MAX, 10)).unwrap();
        assert_eq!(open[0].same_as.as_ref().unwrap().path, "one/all/talk/t1/c1");
        crate::questions::answer_first(&mut bench, approve);
        bench.advance(MINUTE);
        assert_eq!(bench.run(run).status, RunStatus::Completed, "a rejection is told to the model");
        assert_eq!(calls(&bench).len(), if approve { 8 } else { 7 });
        check(&bench);
    }
}
