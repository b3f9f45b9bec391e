//! What calls of tools cost: set aside before the call, charged once for each try when it has ended, refused before the call when it cannot
//! be paid.

use crate::agents::{agent, agents_spec, check, found, once, step, submit, submit_agents, task, tree};
use crate::bench::{Bench, now, settings};
use crate::{dialogues, offers};
use adapters::tool::fake::Fate;
use engine::Config;
use engine::durable::{Answered, Asker, End, Request, StepRender};
use engine::ledger::Entered;
use engine::offer::{Poll, Taken};
use engine::run::{Action, Plans};
use model::plan::{AgentPlan, StepPlan};
use model::recovery::ErrorClass;
use model::run::{RunReason, RunStatus};
use model::spec::{FailureMode, RunSpec};
use model::step::{Step, StepStatus, ToolKind};
use model::time::{MINUTE, SECOND};
use model::{Credits, Effect, RunId};
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::Arc;
use store::EntryKind;

const PRICE: Credits = Credits::whole(2);

/// Each call of these tools costs two credits.
fn bench(tools: &[&str]) -> Bench {
    let prices: BTreeMap<String, String> = tools.iter().map(|tool| ((*tool).to_owned(), "2".to_owned())).collect();
    Bench::with(settings(4), Config { tool_prices: prices.try_into().unwrap(), ..Config::default() })
}

fn one(steps: Vec<StepPlan>) -> Vec<AgentPlan> {
    vec![agent("one", vec![task("all", steps)])]
}

/// Charges of calls of tools, without the least that an attempt costs.
fn charges(bench: &Bench, run: RunId) -> Vec<Entered> {
    let rows = now(bench.engine.ledger_of_run(bench.org, run, 0, 1000)).unwrap();
    let of_calls = |row: &Entered| row.entry.kind == EntryKind::Charge && row.entry.memo.contains(" call, prices ");
    rows.into_iter().filter(of_calls).collect()
}

#[test]
fn the_price_of_a_call_is_set_aside_before_it_and_charged_after_it() {
    let mut bench = bench(&["http"]);
    bench.tool.decide_by(Box::new(|_, _| Fate::hang()));
    let run = submit_agents(&mut bench, one(vec![step("s")]));
    bench.settle();
    assert_eq!(found(&bench, run, "s").held, PRICE);
    assert!(bench.balance().reserved >= PRICE);
    assert_eq!(charges(&bench, run), [], "it has not ended");
    check(&bench);
    let call = bench.tool.hanging()[0].number;
    bench.tool.tell(call, Fate::answer(json!(1)));
    bench.settle();
    let step = found(&bench, run, "s");
    assert_eq!((step.status, step.held, step.usage.unwrap().charged), (StepStatus::Completed, Credits::ZERO, PRICE));
    let charged = charges(&bench, run);
    assert_eq!(charged.len(), 1);
    assert_eq!(charged[0].entry.key, format!("{run}:1:{}:1", step.id));
    assert!(charged[0].entry.memo.starts_with("http call, prices "), "{}", charged[0].entry.memo);
    assert_eq!((charged[0].entry.amount, bench.money(run, 1).1), (PRICE, PRICE));
    let usage = now(bench.engine.run_usage(bench.org, run, model::StepId(0), 10)).unwrap();
    assert_eq!((usage.total.charged, usage.steps.len()), (PRICE, 1));
    check(&bench);
}

#[test]
fn each_try_costs_its_call_and_a_record_costs_nothing() {
    let mut bench = bench(&["http"]);
    bench.tool.decide_by(Box::new(|call, _| match call.input["of"] == "bad" {
        true => Fate::fail(ErrorClass::Transient, Effect::None),
        false => Fate::answer(call.input.clone()),
    }));
    let spec = RunSpec { failure_mode: FailureMode::Retry, ..agents_spec() };
    let plans = Plans { agents: one(vec![once("paid"), step("bad")]), ..Plans::default() };
    let run = submit(&mut bench, spec, plans);
    bench.advance(10 * MINUTE);
    let found = bench.run(run);
    assert_eq!((found.status, found.attempt), (RunStatus::Failed, 3));
    let calls: u32 = bench.tool.seen().values().map(|seen| seen.calls).sum();
    let paid = self::found(&bench, run, "paid");
    assert!(paid.replayed && bench.tool.seen_of(&paid.key.unwrap()).calls == 1, "it answers from its record");
    let keys: std::collections::BTreeSet<String> = charges(&bench, run).into_iter().map(|row| row.entry.key).collect();
    assert_eq!(keys.len(), calls as usize);
    check(&bench);
}

#[test]
fn a_call_that_cannot_be_paid_is_not_made() {
    let mut bench = bench(&["http"]);
    let spec = RunSpec { budget: Some(Credits::whole(5)), ..agents_spec() };
    let steps = vec![step("a"), step("b"), step("c"), step("d")];
    let run = submit(&mut bench, spec, Plans { agents: one(steps), ..Plans::default() });
    bench.advance(MINUTE);
    let ended = bench.run(run);
    assert_eq!((ended.status, ended.termination.unwrap().reason), (RunStatus::Failed, RunReason::Budget));
    assert!(ended.last_error.unwrap().message.contains("a call of http costs 2 credits"));
    assert_eq!(bench.tool.seen().len(), 2, "two calls of two credits are within the budget");
    assert_eq!(bench.money(run, 1).1, Credits::whole(4));
    check(&bench);
}

#[test]
fn a_call_that_is_cut_off_is_paid_too() {
    let mut bench = bench(&["http"]);
    bench.tool.decide_by(Box::new(|_, _| Fate::hang()));
    let run = submit_agents(&mut bench, one(vec![once("s")]));
    bench.settle();
    bench.cancel(run);
    bench.advance(MINUTE);
    assert_eq!((bench.run(run).status, bench.money(run, 1).1), (RunStatus::Cancelled, PRICE));
    check(&bench);
}

#[test]
fn calls_of_a_model_cost_what_steps_cost() {
    let mut bench = bench(&["http"]);
    bench.tool.decide_by(Box::new(|call, _| dialogues::talks(call)));
    let run = dialogues::begin(&mut bench);
    bench.advance(MINUTE);
    assert_eq!(bench.run(run).status, RunStatus::Completed);
    assert_eq!(charges(&bench, run).len(), 2, "two turns call a tool");
    let tree = tree(&bench, run);
    let charged = |step: &Step| step.usage.as_ref().map_or(Credits::ZERO, |usage| usage.charged);
    assert_eq!(charged(&found(&bench, run, "talk/t1/c1")), PRICE);
    assert_eq!(tree.charged, BTreeMap::from([("one".to_owned(), tree.steps.iter().map(charged).sum())]));
    check(&bench);
}

#[test]
fn what_a_program_takes_is_set_aside_when_it_takes_it() {
    let mut bench = bench(&["external"]);
    let external = StepPlan {
        input: json!({ "tool": "crm", "input": {} }),
        timeout_ms: 30 * SECOND,
        ..StepPlan::new("s", ToolKind::External)
    };
    let run = submit_agents(&mut bench, one(vec![external]));
    bench.settle();
    assert_eq!(found(&bench, run, "s").held, Credits::ZERO, "nobody works on it");
    check(&bench);
    let poll = Poll { org: bench.org, tools: vec!["crm".into()], lease_ms: MINUTE };
    let render: StepRender<Taken> = Arc::new(|_| None);
    let Some(Answered::Now(taken)) = now(bench.engine.poll_step(&poll, None, &render)).unwrap() else {
        panic!("a step is offered")
    };
    assert_eq!(found(&bench, run, "s").held, PRICE);
    let end = |cost| {
        let request = Request::plain(Asker::Org(bench.org), taken.run);
        let end = End::Completed { output: json!(1), cost };
        now(bench.engine.end_step(request, (taken.step, taken.fence), end, None)).map(drop)
    };
    assert!(end(PRICE).is_err(), "the price is not the program's to spend");
    end(Credits::ZERO).unwrap();
    bench.settle();
    assert_eq!((bench.run(run).status, charges(&bench, run).len()), (RunStatus::Completed, 1));
    check(&bench);
}

/// A run whose one step is offered, with so much money.
fn offered(bench: &mut Bench, budget: Credits) -> RunId {
    let spec = RunSpec { budget: Some(budget), ..agents_spec() };
    let run = submit(bench, spec, Plans { agents: one(vec![offers::external("s")]), ..Plans::default() });
    bench.settle();
    run
}

#[test]
fn an_offered_step_that_cannot_be_paid_ends_its_run_and_stops_no_program() {
    let mut bench = bench(&["external"]);
    let (poor, rich) = (offered(&mut bench, Credits::whole(1)), offered(&mut bench, Credits::whole(9)));
    let taken = offers::take(&bench);
    assert_eq!(taken.run, rich, "the oldest offer cannot be paid: the next is taken");
    bench.settle();
    let ended = bench.run(poor);
    assert_eq!((ended.status, ended.termination.unwrap().reason), (RunStatus::Failed, RunReason::Budget));
    assert!(ended.last_error.unwrap().message.contains("a call of external costs 2 credits"));
    assert_eq!(found(&bench, poor, "s").tries, 0, "it has not begun");
    assert_eq!(bench.run(rich).status, RunStatus::Running);
    check(&bench);
}

/// A child of a loop: its model has called for it.
#[test]
fn a_call_of_a_model_that_is_offered_and_cannot_be_paid_ends_its_run() {
    let mut bench = bench(&["external"]);
    bench.tool.decide_by(Box::new(|call, _| dialogues::talks(call)));
    let spec = RunSpec { budget: Some(Credits::whole(1)), ..agents_spec() };
    let (talk, mut shared) = dialogues::talk();
    let look = shared.tools.get_mut("look").unwrap();
    (look.tool, look.input) = (ToolKind::External, json!({ "tool": "crm", "input": "${{ args.at }}" }));
    let run = submit(&mut bench, spec, Plans { agents: one(vec![talk]), shared, ..Plans::default() });
    bench.settle();
    assert_eq!(found(&bench, run, "talk/t1/c1").status, StepStatus::Waiting);
    assert_eq!(offers::poll(&bench), None);
    bench.advance(MINUTE);
    let ended = bench.run(run);
    assert_eq!((ended.status, ended.termination.unwrap().reason), (RunStatus::Failed, RunReason::Budget));
    check(&bench);
}

#[test]
fn nothing_is_reserved_for_an_offered_step_while_its_run_is_paused() {
    let mut bench = bench(&["external"]);
    let run = offered(&mut bench, Credits::whole(9));
    bench.act(run, Action::Pause).unwrap();
    bench.settle();
    let reserved = bench.balance().reserved;
    assert_eq!((offers::poll(&bench), offers::poll(&bench)), (None, None));
    assert_eq!(bench.balance().reserved, reserved);
    bench.act(run, Action::Resume).unwrap();
    bench.settle();
    let taken = offers::take(&bench);
    offers::end(&mut bench, &taken, offers::done(json!(1))).unwrap();
    assert_eq!((bench.run(run).status, charges(&bench, run).len()), (RunStatus::Completed, 1));
    check(&bench);
}
