//! Calls of tools that hang: what else goes on meanwhile, how their ends are recorded, and what becomes of them when their process is told
//! to stop or does not hear that it should look.

use crate::agents::{agent, check, found, resolve, step, submit_agents, task, tree};
use crate::bench::{Bench, Harm, now, spec};
use adapters::tool::fake::Fate;
use engine::run::Action;
use model::RunId;
use model::plan::{StepPlan, TaskPlan};
use model::run::{RunStatus, Ticket};
use model::step::{Step, StepStatus};
use model::time::{MINUTE, SECOND};
use serde_json::json;
use std::collections::BTreeMap;
use store::WorkKind;
use store::work::ItemState;

/// The item of the run's first agent.
fn item(bench: &Bench, run: RunId) -> ItemState {
    let agent = tree(bench, run).agents[0].id;
    let read = move |tx: &mut store::Tx| store::work::find(tx, WorkKind::Agent, agent.0);
    now(bench.store.read("test.item", read)).unwrap().unwrap()
}

fn obeys(bench: &Bench) {
    bench.tool.decide_by(Box::new(|call, _| Fate::answer(call.input.clone())));
}

/// How often each write was made since `count`.
fn writes(bench: &Bench) -> BTreeMap<&'static str, usize> {
    let mut writes = BTreeMap::new();
    for name in bench.crashes.writes.lock().unwrap().iter() {
        *writes.entry(*name).or_default() += 1;
    }
    writes
}

/// A process that is told to stop aborts its calls, records each and gives its items back. The next process repeats what may be repeated,
/// and asks about the rest at once: no worker has to wait until a dead one could no longer report.
#[test]
fn a_holder_that_is_told_to_stop_cuts_its_acts_off_and_records_each() {
    let mut bench = Bench::new();
    bench.tool.decide_by(Box::new(|call, _| match call.input["of"].as_str() {
        Some("again" | "once") => Fate::hang(),
        _ => Fate::answer(call.input.clone()),
    }));
    let again = submit_agents(&mut bench, vec![agent("one", vec![task("all", vec![step("again"), step("after")])])]);
    let once = StepPlan { idempotent: false, ..step("once") };
    let once = submit_agents(&mut bench, vec![agent("one", vec![task("all", vec![once, step("after")])])]);
    bench.settle();
    assert_eq!(bench.tool.hanging().len(), 2);
    bench.close();

    let of = |bench: &Bench, run, name| -> Step { found(bench, run, name) };
    for (run, name) in [(again, "again"), (once, "once")] {
        let seen = bench.tool.seen_of(&of(&bench, run, name).key.unwrap());
        assert_eq!((seen.calls, seen.cut), (1, 1), "{name}");
        let item = item(&bench, run);
        assert_eq!((item.owner, item.deaths), (None, 0), "{name}: it was given back, and its holder did not die of it");
    }
    assert_eq!(of(&bench, again, "again").status, StepStatus::Pending, "recorded before the process was gone");
    assert!(of(&bench, once, "once").uncertain, "recorded before the process was gone");

    obeys(&bench);
    bench.restart();
    bench.settle();
    let repeated = of(&bench, again, "again");
    assert_eq!((repeated.status, repeated.tries), (StepStatus::Completed, 2));
    assert_eq!(bench.run(again).status, RunStatus::Completed);
    assert_eq!(bench.run(once).status, RunStatus::Paused);
    let uncertain = of(&bench, once, "once");
    assert_eq!(bench.tool.seen_of(&uncertain.key.unwrap()).calls, 1, "never silently repeated");
    resolve(&mut bench, Ticket::Done);
    bench.advance(SECOND);
    assert_eq!(bench.run(once).status, RunStatus::Completed);
    check(&bench);
}

/// The same runs with and without 64 calls that hang for minutes: classes of work have permits and claims of their own.
#[test]
fn acts_that_hang_hold_up_nothing_else() {
    let told = |hanging: usize| {
        let mut bench = Bench::new();
        bench.tool.decide_by(Box::new(|call, _| match call.input["of"] == "hang" {
            true => Fate::hang(),
            false => Fate::answer(call.input.clone()),
        }));
        for n in 0..hanging {
            let slow = StepPlan { timeout_ms: 30 * MINUTE, ..step("hang") };
            submit_agents(&mut bench, vec![agent(&format!("agent-{n}"), vec![task("all", vec![slow])])]);
        }
        bench.settle();
        assert_eq!(bench.tool.hanging().len(), hanging);
        bench.crashes.count();
        let plain = bench.submit(spec());
        let agents = submit_agents(&mut bench, vec![agent("one", vec![task("all", vec![step("a"), step("b")])])]);
        bench.advance(5 * MINUTE);
        assert_eq!(bench.run(plain).status, RunStatus::Completed, "submitted, placed, run and settled meanwhile");
        assert_eq!(bench.run(agents).status, RunStatus::Completed);
        assert_eq!(bench.tool.hanging().len(), hanging, "they still hang");
        check(&bench);
        writes(&bench)
    };
    let (alone, beside) = (told(0), told(64));
    assert!(alone["work.claim"] > 10, "{alone:?}");
    assert_eq!(alone, beside, "as many claims and other writes");
}

/// Calls that end while a commit of their agent is waited for, or at the same moment, are recorded together.
#[test]
fn ends_that_arrive_together_share_one_commit() {
    const CALLS: usize = 10;
    let mut bench = Bench::new();
    bench.tool.decide_by(Box::new(|_, _| Fate::hang()));
    let steps = (0..CALLS).map(|n| step(&n.to_string())).collect();
    let all = TaskPlan { parallel: CALLS as i64, ..task("all", steps) };
    let run = submit_agents(&mut bench, vec![agent("one", vec![all])]);
    bench.settle();
    let hanging = bench.tool.hanging();
    assert_eq!(hanging.len(), CALLS);
    bench.crashes.count();
    for call in hanging {
        assert!(bench.tool.tell(call.number, Fate::answer(json!({}))));
    }
    bench.settle();
    assert_eq!(bench.run(run).status, RunStatus::Completed);
    assert_eq!(writes(&bench)["agent.advance"], 1, "{:?}", writes(&bench));
    check(&bench);
}

/// The commit of a cancel is not followed by its hints: the holder of a call looks by itself.
#[test]
fn a_holder_that_hears_nothing_looks_after_five_seconds() {
    let mut bench = Bench::new();
    bench.tool.decide_by(Box::new(|_, _| Fate::hang()));
    let slow = StepPlan { timeout_ms: 30 * MINUTE, ..step("s") };
    let run = submit_agents(&mut bench, vec![agent("one", vec![task("all", vec![slow])])]);
    bench.settle();
    let key = found(&bench, run, "s").key.unwrap();
    // Hints go with the answer to the caller. The client asks again, and is answered from the record of its key.
    bench.crashes.arm_with(0, Harm::Unheard);
    bench.act(run, Action::Cancel { abort: false }).unwrap();
    assert!(bench.crashes.has_struck());
    bench.poll();
    bench.elapse(5 * SECOND - 1);
    bench.poll();
    assert_eq!(bench.tool.seen_of(&key).cut, 0, "nobody has told it");
    bench.elapse(1);
    bench.poll();
    assert_eq!(bench.tool.seen_of(&key).cut, 1);
    bench.settle();
    assert_eq!(bench.run(run).status, RunStatus::Cancelled);
    check(&bench);
}

/// A panic of a tool is a mistake of this program. Its process lives on: the item is worked on again, without waiting for the end of a lease.
#[test]
fn an_item_whose_holder_panics_is_worked_on_again() {
    let mut bench = Bench::new();
    let mut calls = 0;
    bench.tool.decide_by(Box::new(move |call, _| {
        calls += 1;
        assert!(calls > 1, "the tool has a mistake");
        Fate::answer(call.input.clone())
    }));
    let run = submit_agents(&mut bench, vec![agent("one", vec![task("all", vec![step("s")])])]);
    bench.advance(5 * SECOND);
    assert_eq!(bench.run(run).status, RunStatus::Completed);
    assert_eq!(item(&bench, run).deaths, 0);
    check(&bench);
}
