//! A step that is begun again with another input than before: what must not be repeated is a person's to decide.

use crate::agents::{agent, agents_spec, check, once, open_ticket, resolve, step, submit, task, tree};
use crate::bench::{Bench, now};
use crate::dialogues::turn;
use adapters::ToolCall;
use adapters::tool::fake::Fate;
use engine::run::Plans;
use model::plan::{Policy, RunPlan, StepPlan, ToolPlan};
use model::recovery::ErrorClass;
use model::run::{RunStatus, Ticket};
use model::spec::{FailureMode, RunSpec};
use model::step::{Step, StepStatus, StepWait, ToolKind};
use model::time::{MINUTE, SECOND};
use model::{Effect, RunId};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// What was paid, in this order.
type Paid = Arc<Mutex<Vec<Value>>>;

/// The first step is called anew in each attempt and answers with another number each time, unless `same`; what pays is called with that
/// number. The last step fails in the first attempt.
fn pays(bench: &Bench, same: bool) -> Paid {
    let paid = Paid::default();
    let (noted, mut drawn, mut failed) = (paid.clone(), 0, false);
    bench.tool.decide_by(Box::new(move |call, _| match call.input["of"].as_str() {
        Some("draw") => {
            drawn += 1;
            Fate::answer(json!({ "amount": if same { 1 } else { drawn } }))
        }
        Some("pay") => {
            noted.lock().unwrap().push(call.input["amount"].clone());
            Fate::answer(json!("paid"))
        }
        Some("last") if !std::mem::replace(&mut failed, true) => Fate::fail(ErrorClass::Permanent, Effect::Done),
        _ => match turn(call) {
            Some(1) => asks_to_pay(call),
            Some(_) => {
                Fate::answer(json!({ "message": { "content": "done", "tool_calls": [] }, "finish_reason": "stop" }))
            }
            None => Fate::answer(call.input.clone()),
        },
    }));
    paid
}

/// The model asks for a payment of the number that it was told.
fn asks_to_pay(call: &ToolCall) -> Fate {
    let messages = call.input["messages"].as_array().unwrap();
    let prompt = messages.iter().find(|message| message["role"] == "user").unwrap()["content"].as_str().unwrap();
    let amount: i64 = prompt.strip_prefix("pay ").unwrap().parse().unwrap();
    let calls = json!([{ "name": "pay", "arguments": { "amount": amount } }]);
    Fate::answer(json!({ "message": { "content": "", "tool_calls": calls }, "finish_reason": "stop" }))
}

const AMOUNT: &str = "${{ steps.draw.output.amount }}";

fn begin(bench: &mut Bench, second: StepPlan) -> RunId {
    let pay = ToolPlan {
        tool: ToolKind::Http,
        description: String::new(),
        args: BTreeMap::from([("amount".to_owned(), json!({ "type": "integer" }))]),
        policy: Policy::Allow,
        idempotent: false,
        timeout_ms: Some(30 * SECOND),
        input: json!({ "of": "pay", "amount": "${{ args.amount }}" }),
    };
    let shared = RunPlan { tools: BTreeMap::from([("pay".to_owned(), pay)]), ..RunPlan::default() };
    let draw = StepPlan { rerun: true, ..step("draw") };
    let agents = vec![agent("one", vec![task("all", vec![draw, second, step("last")])])];
    let spec = RunSpec { failure_mode: FailureMode::Retry, ..agents_spec() };
    let run = submit(bench, spec, Plans { agents, shared, ..Plans::default() });
    bench.advance(2 * MINUTE);
    run
}

fn pay() -> StepPlan {
    StepPlan { input: json!({ "of": "pay", "amount": AMOUNT }), ..once("pay") }
}

/// A model that calls the tool `pay`.
fn talk() -> StepPlan {
    let input = json!({ "model": "default", "prompt": format!("pay {AMOUNT}"), "tools": ["pay"], "max_turns": 5 });
    StepPlan { input, idempotent: true, ..StepPlan::new("talk", ToolKind::Llm) }
}

/// The step that the open ticket is about.
fn asked_about(bench: &Bench, run: RunId) -> Step {
    let id = open_ticket(bench);
    let questions = now(bench.engine.questions(bench.org, StepWait::Ticket, true, i64::MAX, 10)).unwrap();
    let question = questions.into_iter().find(|question| question.id == id).unwrap();
    tree(bench, run).steps.into_iter().find(|step| step.id == question.step).unwrap()
}

/// Of the second attempt, after the first step has answered otherwise.
#[track_caller]
fn is_asked(bench: &Bench, run: RunId, paid: &Paid) {
    let found = bench.run(run);
    assert_eq!((found.status, found.attempt), (RunStatus::Paused, 2), "{:?}", found.last_error);
    let asked = asked_about(bench, run);
    assert_eq!((asked.status, asked.uncertain), (StepStatus::Waiting, false), "{asked:?}");
    assert_eq!(asked.last_error.unwrap().code, "input_changed");
    assert_eq!(*paid.lock().unwrap(), [json!(1)], "not called with the other number");
    check(bench);
}

#[test]
fn a_step_that_must_not_be_repeated_is_not_begun_with_another_input_unless_a_person_says_so() {
    for second in [pay, talk] {
        for (ticket, expected) in [(Ticket::Resume, vec![json!(1), json!(2)]), (Ticket::Skip, vec![json!(1)])] {
            let mut bench = Bench::new();
            let paid = pays(&bench, false);
            let run = begin(&mut bench, second());
            is_asked(&bench, run, &paid);
            resolve(&mut bench, ticket);
            bench.advance(MINUTE);
            let found = bench.run(run);
            assert_eq!(found.status, RunStatus::Completed, "{ticket} {:?}", tree(&bench, run).steps);
            assert_eq!(*paid.lock().unwrap(), expected, "{ticket}");
            check(&bench);
        }
    }
}

#[test]
fn the_same_input_answers_from_the_record_and_what_may_be_repeated_is_called_with_another() {
    let anew = || StepPlan { idempotent: true, ..pay() };
    type MakeStep = fn() -> StepPlan;
    let table: [(MakeStep, bool, Vec<Value>); 3] =
        [(pay, true, vec![json!(1)]), (talk, true, vec![json!(1)]), (anew, false, vec![json!(1), json!(2)])];
    for (second, same, expected) in table {
        let mut bench = Bench::new();
        let paid = pays(&bench, same);
        let run = begin(&mut bench, second());
        let found = bench.run(run);
        assert_eq!((found.status, found.attempt), (RunStatus::Completed, 2), "{:?}", found.last_error);
        assert_eq!(*paid.lock().unwrap(), expected);
        check(&bench);
    }
}

/// The first payment is answered with an error that a retry of the run begins it again for; `same`: with the same amount.
fn fails_to_pay(bench: &Bench, same: bool) -> Paid {
    let paid = Paid::default();
    let (noted, mut drawn) = (paid.clone(), 0);
    bench.tool.decide_by(Box::new(move |call, _| match call.input["of"].as_str() {
        Some("draw") => {
            drawn += 1;
            Fate::answer(json!({ "amount": if same { 1 } else { drawn } }))
        }
        Some("pay") => {
            let mut paid = noted.lock().unwrap();
            paid.push(call.input["amount"].clone());
            if paid.len() == 1 { Fate::fail(ErrorClass::Permanent, Effect::Done) } else { Fate::answer(json!("paid")) }
        }
        _ => Fate::answer(call.input.clone()),
    }));
    paid
}

#[test]
fn a_step_that_failed_after_its_effect_is_begun_again_with_its_input_and_with_no_other() {
    let mut bench = Bench::new();
    let paid = fails_to_pay(&bench, true);
    let run = begin(&mut bench, pay());
    assert_eq!((bench.run(run).status, bench.run(run).attempt), (RunStatus::Completed, 2));
    assert_eq!(*paid.lock().unwrap(), [json!(1), json!(1)]);
    let mut bench = Bench::new();
    let paid = fails_to_pay(&bench, false);
    let run = begin(&mut bench, pay());
    is_asked(&bench, run, &paid);
    resolve(&mut bench, Ticket::Resume);
    bench.advance(MINUTE);
    assert_eq!((bench.run(run).status, paid.lock().unwrap().clone()), (RunStatus::Completed, vec![json!(1), json!(2)]));
    check(&bench);
}
