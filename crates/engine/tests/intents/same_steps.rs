//! A step of a new plan that does what a step of an earlier plan did under another name: a person is asked, once.

use crate::agents::{agent, agents_spec, check, found, step, submit, task};
use crate::bench::{Bench, now};
use adapters::tool::fake::Fate;
use engine::run::Plans;
use model::plan::{RunPlan, StepPlan};
use model::recovery::ErrorClass;
use model::run::RunStatus;
use model::spec::{FailureMode, PlanRules, RunSpec};
use model::step::{StepStatus, StepWait, ToolKind};
use model::time::MINUTE;
use model::{Effect, RunId};
use serde_json::{Value, json};

fn charge(amount: i64) -> Value {
    json!({ "method": "POST", "url": "https://pay.example/", "json": { "amount": amount } })
}

/// The first plan pays 5 and then fails; the second one has these steps.
fn replanned(bench: &mut Bench, steps: Value) -> RunId {
    let answer = json!({ "agents": [{ "name": "better", "tasks": [{ "name": "again", "steps": steps }] }] });
    bench.tool.decide_by(Box::new(move |call, _| match call.input["of"].as_str() {
        Some("bad") => Fate::fail(ErrorClass::Permanent, Effect::Done),
        Some("plan") => Fate::answer(answer.clone()),
        _ => Fate::answer(json!("paid")),
    }));
    let rules = PlanRules { replans: 1, ..PlanRules::default() };
    let spec = RunSpec { failure_mode: FailureMode::Continue, plan: rules, ..agents_spec() };
    let planner = agent("planner", vec![task("plan", vec![step("plan")])]);
    let pay = StepPlan { input: charge(5), ..StepPlan::new("pay", ToolKind::Http) };
    let first = agent("one", vec![task("all", vec![pay, step("bad")])]);
    let document = json!({ "type": "agents", "failure_mode": "continue",
        "planner": { "exec": ["./plan"], "allow": ["http"] }, "agents": [{ "tasks": [{ "steps": [{ "wait": "1s" }] }] }] });
    let shared = RunPlan { document: Some(document), ..RunPlan::default() };
    let run = submit(bench, spec, Plans { shared, agents: vec![first], planner: Some(planner), ..Plans::default() });
    bench.advance(MINUTE);
    assert_eq!(bench.run(run).plan_version, 2, "{:?}", bench.run(run).last_error);
    run
}

fn post(name: &str, amount: i64) -> Value {
    json!({ "name": name, "http": { "method": "POST", "url": "https://pay.example/", "json": { "amount": amount } } })
}

#[test]
fn a_step_that_does_what_an_earlier_plan_did_needs_an_approval_that_names_it() {
    for approve in [true, false] {
        let mut bench = Bench::new();
        let run = replanned(&mut bench, json!([post("charge", 5)]));
        let waits = found(&bench, run, "charge");
        assert_eq!((waits.status, waits.waits), (StepStatus::Waiting, Some(StepWait::Approval)));
        let open = now(bench.engine.questions(bench.org, StepWait::Approval, true, i64::MAX, 10)).unwrap();
        let same = open[0].same_as.clone().unwrap();
        assert_eq!((open.len(), same.path.as_str()), (1, "one/all/pay"));
        let (_, why) = now(bench.engine.why(bench.org, run)).unwrap();
        assert!(why.facts.iter().any(|fact| fact.contains("one/all/pay")), "{:?}", why.facts);
        crate::questions::answer_first(&mut bench, approve);
        bench.advance(MINUTE);
        let charge = found(&bench, run, "charge");
        assert_eq!(charge.status, if approve { StepStatus::Completed } else { StepStatus::Failed });
        let seen = charge.key.map_or(0, |key| bench.tool.seen_of(&key).calls);
        assert_eq!(seen, u32::from(approve), "asked and called once");
        check(&bench);
    }
}

#[test]
fn what_no_earlier_plan_did_begins_without_a_question() {
    let twice = json!([post("charge", 6), post("charge-again", 6)]);
    let mut get = post("look", 5);
    get["http"] = json!({ "url": "https://pay.example/" });
    let mut again = post("charge", 5);
    again["idempotent"] = json!(true);
    for steps in [twice, json!([get]), json!([again])] {
        let mut bench = Bench::new();
        let run = replanned(&mut bench, steps.clone());
        assert_eq!(bench.run(run).status, RunStatus::Completed, "{steps}: {:?}", bench.run(run).last_error);
        check(&bench);
    }
}
