//! Who asked for what: each event of a run that follows at once from a request says whose request it was, and no other event does.

use crate::bench::{Bench, now, shown, spec};
use crate::holds::{finished, shown as slot_shown, slot_of};
use crate::machines::Plan;
use engine::Actor;
use engine::run::{Action, Submission};
use model::RunId;
use std::sync::Arc;

const CI: &str = "the token `ci` (tok_1)";

fn ci(bench: &Bench) -> Actor {
    Actor { org: bench.org, by: Some(CI.to_owned()) }
}

/// Kinds of the events that name the token.
fn of_ci(bench: &Bench, run: RunId) -> Vec<String> {
    let events = now(bench.engine.events(bench.org, run, 0, 1000)).unwrap().1;
    events.into_iter().filter(|event| event.body["by"] == CI).map(|event| event.kind).collect()
}

fn asks(bench: &Bench, run: RunId, action: Action) {
    now(bench.engine.act_on(ci(bench), run, action, None, shown())).unwrap();
}

#[test]
fn what_is_asked_of_a_run_is_told_with_who_asked() {
    let mut bench = Bench::new();
    bench.runners.plan = Some(Plan::Run);
    let by = Some(CI.to_owned());
    let submission =
        Submission { org: bench.org, by, name: None, spec: spec(), plans: Default::default(), start: false };
    let body = now(bench.engine.submit(submission, None, shown())).unwrap().body;
    let run: RunId = String::from_utf8(body).unwrap().parse().unwrap();
    assert_eq!(of_ci(&bench, run), ["run.created"]);
    asks(&bench, run, Action::Start);
    assert_eq!(of_ci(&bench, run)[1..], ["run.pending", "run.running"]);
    bench.settle();
    asks(&bench, run, Action::Pause);
    bench.settle();
    asks(&bench, run, Action::Resume);
    bench.settle();
    let before = of_ci(&bench, run).len();
    asks(&bench, run, Action::Cancel { abort: true });
    assert_eq!(of_ci(&bench, run)[before..], ["run.terminating"]);
    bench.settle();
    assert_eq!(of_ci(&bench, run).len(), before + 1, "its end follows by itself");
    for kind in ["run.pausing", "run.resuming"] {
        assert!(of_ci(&bench, run).contains(&kind.to_owned()), "{kind}: {:?}", of_ci(&bench, run));
    }
    now(bench.engine.delete(ci(&bench), run)).unwrap();
    let org = bench.org;
    let read = move |tx: &mut store::Tx| store::event::after(tx, org, Some(run), 0, 1000);
    let last = now(bench.store.read("test.events", read)).unwrap().pop().unwrap();
    assert_eq!((last.kind.as_str(), last.body["by"].as_str()), ("run.deleted", Some(CI)));
    bench.check();
}

#[test]
fn what_is_asked_of_a_kept_folder_is_told_among_the_events_of_its_run() {
    let mut bench = Bench::new();
    let run = finished(&mut bench, 1, spec());
    let slot = slot_of(&bench, run).id;
    now(bench.engine.extend(ci(&bench), slot, None, None, slot_shown())).unwrap();
    for _ in 0..2 {
        now(bench.engine.release(ci(&bench), slot, None, slot_shown())).unwrap();
    }
    assert_eq!(of_ci(&bench, run), ["allocation.extended", "allocation.released"], "released twice it is told once");
    asks(&bench, run, Action::Retry { force: false });
    assert!(of_ci(&bench, run).contains(&"run.retrying".to_owned()), "{:?}", of_ci(&bench, run));
    bench.check();
}

#[test]
fn the_end_of_a_launch_is_told_with_who_asked() {
    let mut bench = Bench::new();
    bench.runners.plan = Some(Plan::Run);
    let run = bench.submit(spec());
    bench.settle();
    let named: engine::workflow::WorkflowRender = Arc::new(|workflow| workflow.id.to_string().into_bytes());
    let workflow = bench.job(run).workflow;
    now(bench.engine.cancel_workflow(ci(&bench), workflow, None, None, named)).unwrap();
    assert_eq!(of_ci(&bench, run), ["run.terminating"]);
    bench.settle();
    bench.check();
}
