//! The `verify` of a step whose outcome is unknown: what it says decides, and nothing is repeated unless it says that nothing happened.

use crate::agents::{
    agent, agents_spec, check, found, once, open_ticket, resolve, step, submit, submit_agents, task, tree,
};
use crate::bench::{Bench, now};
use crate::crashes::around_every_write;
use adapters::tool::fake::Fate;
use engine::run::{Action, Plans};
use model::plan::{AgentPlan, RunPlan, StepPlan};
use model::recovery::{ErrorClass, Rule};
use model::run::{RunStatus, Ticket};
use model::step::{StepStatus, StepWait, ToolKind};
use model::time::{MINUTE, SECOND};
use model::{Effect, RunId};
use serde_json::{Value, json};
use std::sync::atomic::{AtomicU32, Ordering};

fn verifies(input: Value, outcome: Option<&str>) -> StepPlan {
    let outcome = outcome.map(str::to_owned);
    let verify = StepPlan { input, outcome, idempotent: true, ..StepPlan::new("verify", ToolKind::Http) };
    StepPlan { verify: Some(Box::new(verify)), ..once("pay") }
}

fn plan(pay: StepPlan) -> Vec<AgentPlan> {
    let after = StepPlan { input: json!({ "of": "after", "got": "${{ steps.pay.output }}" }), ..step("after") };
    vec![agent("one", vec![task("all", vec![pay, after])])]
}

/// The first `pay` is cut off although it happened; `verify` answers as told.
fn cut_off(bench: &Bench, happened: bool, says: Value) {
    bench.tool.decide_by(Box::new(move |call, number| match call.input["of"].as_str() {
        Some("pay") if number == 1 && happened => Fate::fail(ErrorClass::Transient, Effect::Perhaps).happened(),
        Some("pay") if number == 1 => Fate::fail(ErrorClass::Transient, Effect::Perhaps),
        Some("verify") => Fate::answer(json!({ "status": 200, "body": says })),
        _ => Fate::answer(call.input.clone()),
    }));
}

fn calls(bench: &Bench, run: RunId, name: &str) -> (u32, u32) {
    let seen = bench.tool.seen_of(&found(bench, run, name).key.unwrap());
    (seen.calls, seen.effects)
}

fn output(bench: &Bench, run: RunId, name: &str) -> Option<Value> {
    let step = found(bench, run, name).id;
    now(bench.engine.step(bench.org, run, step)).unwrap().output
}

#[test]
fn what_verify_says_decides_about_a_step_whose_outcome_is_unknown() {
    let receipt = json!({ "outcome": "done", "output": { "receipt": 7 } });
    // What it says -> calls and effects of the step, its output.
    let table = [
        (json!("done"), true, (1, 1), Value::Null),
        (json!(" done\n"), true, (1, 1), Value::Null),
        (receipt, true, (1, 1), json!({ "receipt": 7 })),
        (json!("not_done"), false, (2, 1), json!({ "of": "pay" })),
        (json!({ "outcome": "not_done" }), false, (2, 1), json!({ "of": "pay" })),
    ];
    for (says, happened, expected, answered) in table {
        let mut bench = Bench::new();
        cut_off(&bench, happened, says.clone());
        let run = submit_agents(&mut bench, plan(verifies(json!({ "of": "verify" }), None)));
        bench.advance(MINUTE);
        assert_eq!(bench.run(run).status, RunStatus::Completed, "{says}: {:?}", bench.run(run).last_error);
        assert_eq!((calls(&bench, run, "pay"), output(&bench, run, "pay")), (expected, Some(answered)), "{says}");
        assert_eq!(calls(&bench, run, "pay/verify").0, 1);
        check(&bench);
    }
}

#[test]
fn an_outcome_is_an_expression_over_what_verify_answered() {
    let outcome = "${{ {'outcome': 'done', 'output': output.body[0]} if output.body else 'not_done' }}";
    for (body, expected) in [(json!([{ "id": 3 }]), json!({ "id": 3 })), (json!([]), json!({ "of": "pay" }))] {
        let mut bench = Bench::new();
        cut_off(&bench, body != json!([]), body);
        let run = submit_agents(&mut bench, plan(verifies(json!({ "of": "verify" }), Some(outcome))));
        bench.advance(MINUTE);
        assert_eq!(bench.run(run).status, RunStatus::Completed, "{:?}", bench.run(run).last_error);
        assert_eq!(output(&bench, run, "pay"), Some(expected));
        check(&bench);
    }
}

#[test]
fn a_verify_that_cannot_tell_leads_to_a_ticket_that_says_so() {
    let schema = json!({ "type": "object" });
    let table = [
        (verifies(json!({ "of": "verify" }), None), json!("perhaps"), "neither `done` nor `not_done` but \"perhaps\""),
        (verifies(json!({ "of": "broken" }), None), json!("done"), "the script fails this call"),
        (verifies(json!({ "of": "${{ inputs.none }}" }), None), json!("done"), "none"),
        (verifies(json!({ "of": "verify" }), Some("${{ output.no.thing }}")), json!("done"), "`outcome`"),
        (StepPlan { output: Some(schema), ..verifies(json!({ "of": "verify" }), None) }, json!("done"), "schema"),
    ];
    for (pay, says, expected) in table {
        let mut bench = Bench::new();
        bench.tool.decide_by(Box::new(move |call, _| match call.input["of"].as_str() {
            Some("pay") => Fate::fail(ErrorClass::Transient, Effect::Perhaps).happened(),
            Some("broken") => Fate::fail(ErrorClass::Permanent, Effect::None),
            Some("verify") => Fate::answer(json!({ "status": 200, "body": says })),
            _ => Fate::answer(call.input.clone()),
        }));
        let plans = Plans { shared: RunPlan::default(), agents: plan(pay), ..Plans::default() };
        let run = submit(&mut bench, agents_spec(), plans);
        bench.advance(MINUTE);
        let pay = found(&bench, run, "pay");
        assert!(pay.uncertain && !pay.verifying && !pay.by_children, "{pay:?}");
        assert_eq!(pay.judged.unwrap().rule, Rule::OutcomeUnknown);
        let ticket = now(bench.engine.question(bench.org, StepWait::Ticket, open_ticket(&bench))).unwrap();
        let error = ticket.question.error.unwrap();
        assert_eq!(error.code, "not_verified");
        assert!(error.message.contains(expected), "{}", error.message);
        assert_eq!(ticket.input, Some(json!({ "of": "pay" })));
        resolve(&mut bench, Ticket::Skip);
        bench.advance(SECOND);
        assert_eq!(calls(&bench, run, "pay"), (1, 1), "never silently repeated");
        check(&bench);
    }
}

/// A second try is asked about by a second `verify`: what the first one said is not about it.
#[test]
fn each_try_is_asked_about_anew_and_tries_have_an_end() {
    let mut bench = Bench::new();
    bench.tool.decide_by(Box::new(move |call, _| match call.input["of"].as_str() {
        Some("pay") => Fate::fail(ErrorClass::Transient, Effect::Perhaps),
        Some("verify") => Fate::answer(json!({ "body": "not_done" })),
        _ => Fate::answer(call.input.clone()),
    }));
    let run = submit_agents(&mut bench, plan(verifies(json!({ "of": "verify" }), None)));
    bench.advance(2 * MINUTE);
    let pay = found(&bench, run, "pay");
    assert_eq!((pay.status, pay.tries), (StepStatus::Failed, 3), "{pay:?}");
    let asked: Vec<_> = tree(&bench, run).steps.into_iter().filter(|step| step.name == "pay/verify").collect();
    assert_eq!(asked.len(), 3);
    for verify in asked {
        assert_eq!(bench.tool.seen_of(&verify.key.unwrap()).calls, 1, "each has a key of its own");
    }
    check(&bench);
}

/// What an earlier attempt left open is asked about before it is begun in a later one.
#[test]
fn a_step_that_an_earlier_attempt_left_open_is_verified() {
    for (says, expected) in [("done", (1, 1)), ("not_done", (2, 2))] {
        let mut bench = Bench::new();
        bench.tool.decide_by(Box::new(|call, _| match call.input["of"].as_str() {
            Some("pay") => Fate::hang().happened(),
            _ => Fate::fail(ErrorClass::Permanent, Effect::None),
        }));
        let both = model::plan::TaskPlan {
            parallel: 2,
            ..task("all", vec![verifies(json!({ "of": "verify" }), None), step("bad")])
        };
        let run = submit_agents(&mut bench, vec![agent("one", vec![both])]);
        bench.advance(MINUTE);
        assert_eq!(bench.run(run).status, RunStatus::Failed);
        let left = found(&bench, run, "pay");
        assert!(left.status == StepStatus::Cancelled && left.outcome_unknown, "{left:?}");
        bench.tool.decide_by(Box::new(move |call, _| match call.input["of"].as_str() {
            Some("verify") => Fate::answer(json!({ "body": says })),
            _ => Fate::answer(call.input.clone()),
        }));
        bench.act(run, Action::Retry { force: false }).unwrap();
        bench.advance(2 * MINUTE);
        assert_eq!(bench.run(run).status, RunStatus::Completed, "{says}: {:?}", bench.run(run).last_error);
        assert_eq!(calls(&bench, run, "pay"), expected, "{says}");
        check(&bench);
    }
}

#[test]
fn a_run_that_ends_while_it_is_verified_leaves_the_outcome_unknown() {
    let mut bench = Bench::new();
    bench.tool.decide_by(Box::new(|call, _| match call.input["of"].as_str() {
        Some("pay") => Fate::fail(ErrorClass::Transient, Effect::Perhaps).happened(),
        _ => Fate::hang(),
    }));
    let run = submit_agents(&mut bench, plan(verifies(json!({ "of": "verify" }), None)));
    bench.advance(SECOND);
    assert!(found(&bench, run, "pay").verifying);
    check(&bench);
    bench.cancel(run);
    bench.advance(MINUTE);
    assert_eq!(bench.run(run).status, RunStatus::Cancelled);
    let pay = found(&bench, run, "pay");
    assert!(pay.status == StepStatus::Cancelled && pay.outcome_unknown && !pay.verifying, "{pay:?}");
    check(&bench);
}

/// The control plane dies before and after each commit of a step that is cut off, verified and begun again.
#[test]
fn dying_around_every_commit_of_a_verify_repeats_no_effect() {
    let story = |bench: &mut Bench| {
        let happened = AtomicU32::new(0);
        bench.tool.decide_by(Box::new(move |call, _| match call.input["of"].as_str() {
            // The first call is lost on its way; the second happens, and its answer is lost.
            Some("pay") if happened.fetch_add(1, Ordering::Relaxed) == 0 => {
                Fate::fail(ErrorClass::Transient, Effect::Perhaps)
            }
            Some("pay") => {
                happened.store(2, Ordering::Relaxed);
                Fate::fail(ErrorClass::Transient, Effect::Perhaps).happened()
            }
            Some("verify") if happened.load(Ordering::Relaxed) >= 2 => Fate::answer(json!({ "body": "done" })),
            Some("verify") => Fate::answer(json!({ "body": "not_done" })),
            _ => Fate::answer(call.input.clone()),
        }));
        let run = submit_agents(bench, plan(verifies(json!({ "of": "verify" }), None)));
        bench.advance(5 * MINUTE);
        run
    };
    around_every_write(story, |bench, run, place| {
        assert_eq!(bench.run(run).status, RunStatus::Completed, "{place}");
        let (calls, effects) = calls(bench, run, "pay");
        assert!(calls <= 2 && effects <= 1, "{place}: {calls} calls, {effects} effects");
        check(bench);
    });
}
