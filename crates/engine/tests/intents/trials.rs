//! Trials of providers (`repl provider test`): the machine that a trial makes has a row before the first call of its provider, and is ended
//! wherever the control plane dies meanwhile.

use crate::bench::{Bench, now, settings};
use adapters::fake::{Call, FakeSettings, Fate, MachineState};
use engine::Config;
use model::TroubleKind;
use model::instance::InstanceStatus;
use model::time::{MINUTE, SECOND};
use std::cmp::Ordering::{Equal, Greater, Less};
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};
use store::Moment;

/// Longer than a trial may take.
const A_WHILE_MS: i64 = 15 * MINUTE;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Death {
    None,
    AtWrite(usize, Moment),
    /// The provider does what it was asked to, and who asked dies before it is answered.
    AtCall(usize),
}

/// How many calls the provider got.
fn try_with(death: Death) -> usize {
    let mut bench = Bench::new();
    let crashes = bench.crashes.clone();
    crashes.count();
    let mut calls = 0;
    match death {
        Death::None => {}
        Death::AtWrite(write, moment) => crashes.arm(write, moment),
        Death::AtCall(at) => bench.fate(move |_, _, _| {
            calls += 1;
            match (calls - 1).cmp(&at) {
                Less => Fate::Obey,
                Equal => {
                    crashes.dead.store(true, Ordering::Relaxed);
                    Fate::FailAfter(TroubleKind::Timeout)
                }
                Greater => Fate::FailBefore(TroubleKind::Timeout), // the dead ask nothing
            }
        }),
    }
    let tried = now(bench.engine.test_provider(bench.org, "fake"));
    if death == Death::None {
        assert_eq!(*bench.crashes.writes.lock().unwrap(), ["provider.test", "provider.tested"]);
        let (_, cases) = tried.unwrap();
        assert!(cases.iter().all(|(_, result)| result.is_ok()), "{cases:?}");
    } else {
        tried.unwrap_err();
        assert!(bench.revive(), "{death:?}");
    }
    let called = bench.calls.lock().unwrap().len();
    bench.fate(|_, _, _| Fate::Obey);
    for moment in ["at once", "after a while"] {
        now(bench.engine.scan_now(None)).unwrap();
        let untracked = now(bench.engine.orphans(i64::MAX, 10)).unwrap();
        assert_eq!(untracked, [], "{death:?}, {moment}");
        bench.advance(A_WHILE_MS);
    }
    let machines = bench.provider.machines();
    assert!(machines.values().all(|it| it.state == MachineState::Gone), "{death:?}: {machines:?}");
    assert!(bench.provider.made().values().all(|times| *times == 1), "{death:?}: made twice");
    let rows = now(bench.engine.list_instances(bench.org, i64::MAX, 10)).unwrap();
    let expected = if death == Death::AtWrite(0, Moment::Before) { 0 } else { 1 };
    assert_eq!(rows.len(), expected, "{death:?}");
    assert!(rows.iter().all(|row| row.instance.status == InstanceStatus::Terminated), "{death:?}: {rows:?}");
    called
}

#[test]
fn the_machine_of_a_trial_is_tracked_and_ended_wherever_the_control_plane_dies() {
    let calls = try_with(Death::None);
    assert!(calls >= 8, "{calls}");
    for write in 0..2 {
        for moment in [Moment::Before, Moment::After] {
            try_with(Death::AtWrite(write, moment));
        }
    }
    for call in 0..calls {
        try_with(Death::AtCall(call));
    }
}

/// Its handle is known from the call that made it, so its end does not wait for the name to appear.
#[test]
fn the_machine_of_a_trial_is_ended_at_once_by_a_provider_that_does_not_find_it_by_its_name() {
    let mut bench = Bench::with(FakeSettings { list_lag_calls: u32::MAX, ..settings(4) }, Config::default());
    let (id, cases) = now(bench.engine.test_provider(bench.org, "fake")).unwrap();
    let failed: Vec<&str> = cases.iter().filter(|(_, result)| result.is_err()).map(|(case, _)| *case).collect();
    assert_eq!(failed, ["it_is_found_by_its_name", "its_list_has_it"]);
    bench.settle();
    assert_eq!(now(bench.engine.instance(bench.org, id)).unwrap().status, InstanceStatus::Terminated);
}

/// A call that does not return is given up with its trial, and its machine ends as that of every trial does.
#[test]
fn a_trial_whose_call_does_not_return_is_given_up_in_time() {
    let mut bench = Bench::new();
    bench.fate(|call, _, _| if call == Call::Find { Fate::Hang } else { Fate::Obey });
    let (engine, org) = (bench.engine.clone(), bench.org);
    let mut tried = Box::pin(async move { engine.test_provider(org, "fake").await });
    let mut poll = || tried.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    assert!(poll().is_pending());
    bench.pass(10 * MINUTE - 19 * SECOND);
    assert!(poll().is_pending());
    bench.pass(2 * 19 * SECOND);
    let Poll::Ready(Ok((_, cases))) = poll() else { panic!("it is given up") };
    assert_eq!(cases, [("its_calls_return", Err("it did not answer within 600 s".to_owned()))]);
    bench.fate(|_, _, _| Fate::Obey);
    bench.advance(A_WHILE_MS);
    assert!(bench.provider.machines().values().all(|machine| machine.state == MachineState::Gone));
    bench.check();
}
