//! The provider fails at any call of a machine's life, before or after its effect, once or for a while: the run settles, the
//! money is right, and no machine is left without a row.

use crate::bench::{Bench, PRICE, now, settings, spec};
use crate::machines::Plan;
use adapters::fake::{Call, Fate};
use adapters::{Order, Provider as _};
use engine::Config;
use model::instance::InstanceStatus;
use model::run::RunStatus;
use model::spec::{Retry, RetryEvent, RunSpec};
use model::time::{MINUTE, SECOND};
use model::workflow::{NodeStatus, Workflow};
use model::{Credits, RunId, TroubleKind};
use std::future::Future;
use std::sync::atomic::Ordering;
use std::task::{Context, Waker};
use store::{Moment, WorkClass, WorkKind};

const KINDS: [TroubleKind; 6] = [
    TroubleKind::Capacity,
    TroubleKind::RateLimit,
    TroubleKind::Network,
    TroubleKind::Timeout,
    TroubleKind::Internal,
    TroubleKind::Auth,
];

/// A cold run, a minute of work, and the end of its machine.
fn whole_life(bench: &mut Bench) -> model::RunId {
    bench.runners.plan = Some(Plan::Run);
    let run = bench.submit(spec());
    bench.advance(MINUTE);
    if bench.run(run).status == RunStatus::Running {
        bench.exits(run, 0);
    }
    // As long as a machine is there its row says so, at every moment and not only in the end.
    for _ in 0..5 * 60 {
        bench.advance(SECOND);
        bench.check();
    }
    run
}

fn calls_of_a_whole_life() -> Vec<Call> {
    let mut bench = Bench::brief();
    whole_life(&mut bench);
    std::mem::take(&mut *bench.calls.lock().unwrap())
}

#[test]
fn one_failing_call_delays_and_breaks_nothing() {
    let calls = calls_of_a_whole_life();
    assert!(calls.contains(&Call::Spawn) && calls.contains(&Call::Terminate) && calls.contains(&Call::Forget));
    for (n, call) in calls.iter().enumerate() {
        for kind in KINDS {
            for (fate, how) in [(Fate::FailBefore(kind), "before"), (Fate::FailAfter(kind), "after")] {
                let mut bench = Bench::brief();
                let mut left = n as i64;
                bench.fate(move |_, _, _| {
                    left -= 1;
                    if left == -1 { fate } else { Fate::Obey }
                });
                let run = whole_life(&mut bench);
                eprintln!("{:?} fails {how} its effect by {kind:?}", *call);
                let hopeless = *call == Call::Spawn && !model::Trouble::new(kind, "").retry && how == "before";
                let status = if hopeless { RunStatus::Failed } else { RunStatus::Completed };
                bench.expect_end(run, status, hopeless.then_some("no_capacity"));
                let (reserved, charged, refunded) = bench.money(run, 1);
                assert_eq!(reserved, charged + refunded);
                assert_eq!(charged > Credits::ZERO, !hopeless);
                bench.check();
                bench.check_all_gone_after(MINUTE);
            }
        }
    }
}

#[test]
fn every_kind_of_call_may_fail_for_a_while() {
    for call in [Call::Find, Call::Inspect, Call::Terminate, Call::RemoveWorkdir, Call::Forget] {
        for kind in KINDS {
            for fate in [Fate::FailBefore(kind), Fate::FailAfter(kind)] {
                let mut bench = Bench::brief();
                bench.fate(move |asked, before, _| if asked == call && before < 6 { fate } else { Fate::Obey });
                eprintln!("{call:?}: {fate:?}");
                let run = whole_life(&mut bench);
                bench.expect_end(run, RunStatus::Completed, None);
                bench.check();
                bench.check_all_gone_after(5 * MINUTE);
            }
        }
    }
}

#[test]
fn a_provider_that_refuses_every_machine_ends_the_run_and_takes_nothing() {
    let mut bench = Bench::brief();
    bench.fate(|call, _, _| if call == Call::Spawn { Fate::FailBefore(TroubleKind::Capacity) } else { Fate::Obey });
    let run = bench.submit(spec());
    bench.advance(30 * SECOND);
    bench.expect_end(run, RunStatus::Failed, Some("no_capacity"));
    assert_eq!(bench.money(run, 1), (PRICE, Credits::ZERO, PRICE));
    assert_eq!(bench.calls.lock().unwrap().iter().filter(|call| **call == Call::Spawn).count(), 3, "tried three times");
    bench.check();
    bench.check_all_gone_after(MINUTE);
}

#[test]
fn a_spawn_that_timed_out_is_looked_up_by_name() {
    let mut bench = Bench::brief();
    bench.fate(|call, _, _| if call == Call::Spawn { Fate::FailAfter(TroubleKind::Timeout) } else { Fate::Obey });
    let run = whole_life(&mut bench);
    bench.expect_end(run, RunStatus::Completed, None);
    assert_eq!(bench.calls.lock().unwrap().iter().filter(|call| **call == Call::Spawn).count(), 1);
    bench.check_all_gone_after(MINUTE);
}

/// The machine exists, every answer is lost, and the list does not show it yet: "not found" must not count as gone.
#[test]
fn a_machine_nobody_could_see_is_found_and_ended() {
    for lag in [1, 3, 4, 6] {
        for runner_comes in [false, true] {
            let mut slow = settings(2);
            slow.list_lag_calls = lag;
            let mut bench = Bench::with(slow, Config::default());
            bench.runners.unborn = !runner_comes;
            bench.runners.plan = Some(Plan::Run);
            bench.fate(
                |call, _, _| {
                    if call == Call::Spawn { Fate::FailAfter(TroubleKind::Timeout) } else { Fate::Obey }
                },
            );
            let run = bench.submit(spec());
            for _ in 0..20 {
                bench.advance(SECOND);
                bench.check();
            }
            bench.runners.unborn = false;
            bench.advance(20 * MINUTE);
            eprintln!("lag {lag}, runner comes: {runner_comes}: {:?}", bench.end(run));
            if bench.run(run).status == RunStatus::Running {
                bench.exits(run, 0);
            }
            assert!(bench.run(run).status.is_end());
            bench.check();
            bench.check_all_gone();
        }
    }
}

/// Who made it died before writing so; the next one is refused, and the list does not show the first one's machine yet.
#[test]
fn a_machine_nobody_wrote_down_is_looked_for_until_it_must_be_seen() {
    for (lag, outage_ms) in [(0, 0), (1, 0), (3, 0), (6, 0), (3, 10 * MINUTE), (6, 10 * MINUTE)] {
        let mut slow = settings(2);
        slow.list_lag_calls = lag;
        let mut bench = Bench::with(slow, Config::default());
        bench.runners.unborn = true;
        bench.fate(|call, before, _| match call {
            Call::Spawn if before > 0 => Fate::FailBefore(TroubleKind::Auth),
            _ => Fate::Obey,
        });
        let run = bench.submit(spec());
        bench.crashes.arm(writes_until_it_is_made(), Moment::Before);
        bench.advance(SECOND);
        assert_eq!(bench.starts, 2, "it died once");
        if lag == 0 {
            bench.runners.unborn = false; // it is seen at once, and as good as one that was made now
            bench.advance(20 * SECOND);
            bench.expect_end(run, RunStatus::Completed, None);
            continue;
        }
        bench.expect_end(run, RunStatus::Failed, Some("no_capacity"));
        bench.outage(outage_ms); // in which no worker could look
        bench.check_all_gone_after(10 * MINUTE);
    }
}

/// As many as there are between a submission and word of its new machine.
fn writes_until_it_is_made() -> usize {
    let mut bench = Bench::brief();
    bench.submit(spec());
    bench.crashes.count();
    bench.settle();
    let writes = bench.crashes.writes.lock().unwrap();
    writes.iter().position(|write| *write == "workflow.record").expect("the machine is written down")
}

/// The failed making is undone; while that fails too, it is tried again, and the machine is never forgotten.
#[test]
fn a_compensation_that_fails_is_tried_again() {
    for kind in KINDS {
        for call in [Call::Find, Call::Terminate] {
            let mut bench = Bench::brief();
            let (mut spawned, mut failures) = (false, 0);
            bench.fate(move |asked, _, _| match asked {
                Call::Spawn if !spawned => {
                    spawned = true;
                    Fate::FailAfter(TroubleKind::Internal) // it happened, and looks hopeless
                }
                Call::Spawn => Fate::FailBefore(TroubleKind::Auth),
                asked if asked == call && failures < 8 => {
                    failures += 1;
                    Fate::FailBefore(kind)
                }
                _ => Fate::Obey,
            });
            bench.runners.unborn = true;
            let run = bench.submit(spec());
            bench.advance(3 * MINUTE);
            bench.runners.unborn = false;
            bench.advance(20 * MINUTE);
            eprintln!("{call:?} {kind:?}: {:?}", bench.end(run));
            assert!(bench.run(run).status.is_end());
            bench.check();
            bench.check_all_gone();
        }
    }
}

#[test]
fn a_machine_that_goes_slowly_is_waited_for_and_forgotten() {
    let mut slow = settings(2);
    slow.gone_lag_calls = 5;
    let mut bench = Bench::with(slow, Config::default());
    let run = bench.submit(spec());
    bench.settle();
    bench.expect_end(run, RunStatus::Completed, None);
    bench.check_all_gone();
}

/// A machine with another nonce has the name of ours: it is not touched, and the run does not depend on it.
#[test]
fn a_stranger_is_never_touched() {
    let mut bench = Bench::brief();
    let run = bench.submit(spec());
    bench.settle();
    let name = bench.name_of(run);
    bench.provider.replace_by_stranger(&name);
    bench.runners.deaf.push(name.clone());
    bench.advance(40 * MINUTE);
    let machine = bench.provider.machine(&name).expect("it is still there");
    assert_eq!((machine.state, machine.workdirs_removed.len()), (adapters::fake::MachineState::Running, 0));
    let ours = bench.snapshot(run).instance.unwrap();
    assert_eq!((ours.status, ours.displaced), (InstanceStatus::Terminated, true), "ours has ended all the same");
    let shown = now(bench.engine.instance_picture(bench.org, ours.id)).unwrap().workflow_state;
    assert_eq!(shown, "terminate:lost");
    let org = bench.org;
    let told = now(bench.store.read("test", move |tx| store::event::after(tx, org, None, 0, 1000))).unwrap();
    assert!(told.iter().any(|event| event.kind == "instance.lost" && event.body.to_string().contains(&name)));
    let (_, why) = now(bench.engine.why(bench.org, run)).unwrap();
    assert!(why.facts.iter().any(|fact| fact.contains("somebody else's machine")), "{why:?}");
    let next = bench.submit(spec());
    bench.settle();
    bench.expect_end(next, RunStatus::Completed, None);
    let audit = now(bench.engine.audit()).unwrap();
    assert!(audit.broken.is_empty(), "{:?}", audit.broken);
}

#[test]
fn no_capacity_is_tried_again_by_policy_with_growing_pauses() {
    let mut bench = Bench::brief();
    bench.fate(
        |call, before, _| {
            if call == Call::Spawn && before < 6 { Fate::FailBefore(TroubleKind::Capacity) } else { Fate::Obey }
        },
    );
    let retry = Retry { max_attempts: 5, on_events: vec![RetryEvent::NoCapacity], duration_ms: None, delay_ms: None };
    let run = bench.submit(RunSpec { retry: Some(retry), ..spec() });
    bench.advance(2 * MINUTE);
    bench.expect_end(run, RunStatus::Completed, None);
    let jobs = bench.jobs(run);
    assert_eq!(jobs.iter().map(|job| job.submission).collect::<Vec<_>>(), [1, 2, 3]);
    assert!(jobs.iter().all(|job| job.attempt == 1), "infrastructure uses no attempt");
    let pauses: Vec<i64> =
        jobs.windows(2).map(|pair| pair[1].submitted_at.since(pair[0].ended_at.expect("it has ended"))).collect();
    assert_eq!(pauses, [15 * SECOND, 30 * SECOND]);
    assert_eq!(bench.money(run, 1).0, PRICE, "one reservation for all submissions");
    bench.check();
}

/// A run, and the worker that makes a machine for it, with the call in hand: it goes on when it is told to.
pub fn a_spawn_in_hand(bench: &mut Bench, spec: RunSpec) -> (RunId, impl FnOnce() + use<>) {
    bench.spawns_hang.store(true, Ordering::Relaxed);
    let run = bench.submit(spec);
    let items = now(bench.engine.claim(&bench.worker, WorkClass::Control, 32)).unwrap();
    let (spawns, others): (Vec<_>, Vec<_>) = items.into_iter().partition(|item| item.kind == WorkKind::Workflow);
    others.into_iter().for_each(|item| now(bench.engine.work_on(item)));
    let (maker, workflow) = (bench.engine.clone(), spawns[0]);
    let mut spawn = Box::pin(async move { maker.work_on(workflow).await });
    let mut poll = move || spawn.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    assert!(poll().is_pending());
    (run, move || assert!(poll().is_ready()))
}

/// R145: the call never returns. After 10 minutes the node has failed, the run ends, and what the call may yet make is ended.
#[test]
fn a_spawn_that_never_returns_is_given_up_after_ten_minutes() {
    let mut bench = Bench::brief();
    bench.runners.unborn = true;
    let (run, goes_on) = a_spawn_in_hand(&mut bench, spec());
    bench.pass(10 * MINUTE - 19 * SECOND);
    assert_eq!(bench.run(run).status, RunStatus::Running, "the call is waited for");
    bench.pass(2 * 19 * SECOND);
    goes_on();
    bench.expect_end(run, RunStatus::Failed, Some("no_capacity"));
    let said = bench.run(run).last_error.unwrap().message;
    assert!(said.contains("no machine could be started: timed out after 10m"), "{said}");
    let workflow = workflow_of(&bench, run);
    let spawn = workflow.nodes.iter().find(|node| node.name == "spawn-instance").unwrap();
    assert_eq!((spawn.status, spawn.uncertain), (NodeStatus::Failed, true));
    bench.spawns_hang.store(false, Ordering::Relaxed);
    bench.check_all_gone_after(10 * MINUTE);
}

fn workflow_of(bench: &Bench, run: RunId) -> Workflow {
    now(bench.engine.workflow(bench.org, bench.job(run).workflow)).unwrap()
}

/// The worker died after the call and before it was recorded: the next one takes the node over and repeats the call.
#[test]
fn a_spawn_whose_worker_died_is_taken_over() {
    let mut bench = Bench::brief();
    let run = bench.submit(spec());
    bench.crashes.arm(writes_until_it_is_made(), Moment::Before);
    bench.runners.unborn = true; // or its registration would end the node first
    bench.settle();
    assert_eq!(bench.starts, 2, "it died once");
    let workflow = workflow_of(&bench, run);
    let spawn = workflow.nodes.iter().find(|node| node.name == "spawn-instance").unwrap();
    assert_eq!((spawn.status, spawn.tries, spawn.uncertain), (NodeStatus::Completed, 2, true));
    bench.runners.unborn = false;
    bench.settle();
    bench.expect_end(run, RunStatus::Completed, None);
    bench.check();
}

/// Its spawn call failed by its answer, and while that is compensated its runner registers, which the list does not show yet: nothing
/// begins on a machine that is to end, and everything ends.
#[test]
fn a_runner_that_comes_while_its_failed_making_is_undone_begins_nothing() {
    for lag in [1, 3, 6] {
        let mut slow = settings(2);
        slow.list_lag_calls = lag;
        let mut bench = Bench::brief_with(slow);
        bench.runners.plan = Some(Plan::Run);
        bench.fate(|call, _, _| if call == Call::Spawn { Fate::FailAfter(TroubleKind::Auth) } else { Fate::Obey });
        let run = bench.submit(spec());
        now(bench.engine.claim(&bench.worker, WorkClass::Control, 32))
            .unwrap()
            .into_iter()
            .for_each(|item| now(bench.engine.work_on(item)));
        assert!(bench.runners_act(), "its runner comes before anything is undone");
        while bench.runners_act() {}
        bench.provider.kill_runner(&bench.name_of(run));
        bench.advance(5 * MINUTE);
        eprintln!("lag {lag}");
        bench.expect_end(run, RunStatus::Failed, Some("no_capacity"));
        assert_eq!(bench.runners.executions(run), 0);
        bench.check();
        bench.check_all_gone_after(5 * MINUTE);
    }
}

/// A spawn is under way while its run is cancelled; it comes to its end a little, or much too late. Perhaps the list does not show at
/// once what it has made, and it goes so slowly that its maker gives up.
#[test]
fn a_machine_that_comes_after_its_run_was_cancelled_is_ended() {
    let lates = [SECOND, 3 * MINUTE, 10 * MINUTE];
    for (late_ms, lag) in lates.into_iter().flat_map(|late_ms| [(late_ms, 0), (late_ms, 3)]) {
        let mut slow = settings(2);
        (slow.list_lag_calls, slow.gone_lag_calls) = (lag, lag);
        let mut bench = Bench::brief_with(slow);
        bench.runners.unborn = lag > 0;
        let (run, goes_on) = a_spawn_in_hand(&mut bench, spec());
        bench.cancel(run);
        bench.advance(late_ms);
        bench.spawns_hang.store(false, Ordering::Relaxed);
        goes_on();
        eprintln!("{late_ms} ms late, lag {lag}");
        bench.advance(2 * MINUTE);
        assert_eq!(bench.run(run).status, RunStatus::Cancelled);
        bench.check();
        bench.check_all_gone_after(5 * MINUTE);
    }
}

/// A person terminates the machine while the call that makes it is in hand. Without force the job there keeps it; with force the run ends,
/// and what the call makes later is ended.
#[test]
fn a_machine_that_a_person_terminates_while_it_is_made_is_ended() {
    for (force, late_ms) in [(false, SECOND), (true, SECOND), (true, 3 * MINUTE)] {
        let mut bench = Bench::brief();
        bench.runners.unborn = force;
        let (run, goes_on) = a_spawn_in_hand(&mut bench, spec());
        let machine = bench.job(run).instance.unwrap();
        let ended = bench.terminate(machine, force);
        assert_eq!(ended.is_ok(), force, "{ended:?}");
        bench.advance(late_ms);
        bench.spawns_hang.store(false, Ordering::Relaxed);
        goes_on();
        bench.advance(2 * MINUTE);
        eprintln!("force {force}, {late_ms} ms late");
        let status = if force { RunStatus::Cancelled } else { RunStatus::Completed };
        assert_eq!(bench.run(run).status, status);
        bench.check();
        bench.check_all_gone_after(10 * MINUTE);
        bench.check_made_once();
    }
}

/// The same, and its runner never comes up to be told so.
#[test]
fn a_machine_that_a_fenced_worker_makes_again_is_ended_again() {
    for lag in [0, 3] {
        let mut slow = settings(2);
        slow.gone_lag_calls = lag;
        let mut bench = Bench::with(slow, Config::default());
        bench.runners.unborn = true;
        let (run, goes_on) = a_spawn_in_hand(&mut bench, spec());
        bench.spawns_hang.store(false, Ordering::Relaxed);
        bench.restart();
        bench.settle();
        bench.cancel(run);
        bench.check_all_gone();
        goes_on();
        assert_eq!(bench.provider.machines().len(), 1, "it is there again");
        bench.advance(MINUTE);
        bench.check_all_gone();
    }
}

/// The same, but the others were refused one, so that no worker has a handle of the machine; and the list does not show it at once.
#[test]
fn a_machine_that_a_fenced_worker_makes_for_nobody_is_ended() {
    for lag in [0, 1, 3] {
        let mut slow = settings(2);
        slow.list_lag_calls = lag;
        let mut bench = Bench::with(slow, Config::default());
        bench.runners.unborn = true;
        let (run, goes_on) = a_spawn_in_hand(&mut bench, spec());
        bench.spawns_hang.store(false, Ordering::Relaxed);
        bench.fate(|call, before, _| match call {
            Call::Spawn if before == 0 => Fate::FailBefore(TroubleKind::Auth),
            _ => Fate::Obey,
        });
        bench.restart();
        bench.check_all_gone();
        bench.expect_end(run, RunStatus::Failed, Some("no_capacity"));
        goes_on();
        assert_eq!(bench.provider.machines().len(), 1, "it is there");
        eprintln!("lag {lag}");
        bench.check_all_gone_after(5 * MINUTE);
    }
}

/// A worker stood still with its call in hand while others made the machine, ended it and forgot it. Then it goes on.
#[test]
fn a_machine_that_is_made_again_after_its_end_is_ended_again() {
    let mut bench = Bench::brief();
    let run = bench.submit(spec());
    bench.settle();
    let name = bench.name_of(run);
    let made = bench.provider.machine(&name).expect("it is there");
    bench.check_all_gone();
    let order = Order::new(made.boot, made.region, made.resources);
    now(bench.provider.spawn(&order)).expect("nobody remembers the name");
    bench.advance(MINUTE);
    bench.check_all_gone();
}
