//! Providers that hang or are dead: how many calls of them are under way, what else goes on meanwhile, and how often they are asked again.

use crate::bench::{Bench, settings, spec};
use adapters::FakeProvider;
use adapters::fake::{Call, FakeSettings, Fate};
use engine::Config;
use model::run::{Phase, RunStatus};
use model::spec::RunSpec;
use model::time::{HOUR, MINUTE, SECOND};
use model::{RunId, TroubleKind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

const MACHINES: usize = 40;
const SHARE: usize = engine::work::ASKS_OF_ONE_PROVIDER as usize;

/// A second provider whose machines are never made, because no call that makes one returns; and how many such calls there were.
fn another_that_hangs(bench: &mut Bench) -> Arc<AtomicUsize> {
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = calls.clone();
    let settings = FakeSettings { name: "other".to_owned(), ..settings(2 * MACHINES as i64) };
    let other = FakeProvider::new(
        settings,
        Box::new(move |call, _| match call {
            Call::Spawn => {
                counted.fetch_add(1, Ordering::Relaxed);
                Fate::Hang
            }
            _ => Fate::Obey,
        }),
    );
    let context = Arc::get_mut(&mut bench.engine.context).expect("nothing else has it yet");
    context.providers.insert("other".to_owned(), engine::Listing::of(Arc::new(other)));
    calls
}

fn inspects(bench: &Bench) -> usize {
    bench.calls.lock().unwrap().iter().filter(|call| **call == Call::Inspect).count()
}

#[test]
fn a_provider_whose_calls_hang_has_its_permits_and_no_others() {
    let mut bench = Bench::new();
    let calls = another_that_hangs(&mut bench);
    let there = RunSpec { provider: "other".to_owned(), providers: vec!["other".to_owned()], ..spec() };
    let hung: Vec<RunId> = (0..MACHINES).map(|_| bench.submit(there.clone())).collect();
    bench.settle();
    assert_eq!(calls.load(Ordering::Relaxed), SHARE, "as many calls as it has permits");
    bench.crashes.count();
    let runs: Vec<RunId> = (0..20).map(|_| bench.submit(spec())).collect();
    bench.advance(MINUTE);
    for run in runs {
        bench.expect_end(run, RunStatus::Completed, None);
    }
    assert_eq!(calls.load(Ordering::Relaxed), SHARE, "the others wait");
    assert!(hung.iter().all(|run| bench.run(*run).status == RunStatus::Running));
    // The time limit of a node counts whether its call has begun or waits for a permit.
    bench.advance(12 * MINUTE);
    bench.settle();
    assert!(hung.iter().all(|run| bench.run(*run).status == RunStatus::Failed));
}

/// What is decided by silence waits for no permit: 16 calls a minute would be too slow for 40 machines.
#[test]
fn machines_of_a_provider_that_hangs_are_seen_to_be_silent_in_time() {
    let mut bench = Bench::with(settings(MACHINES as i64), Config::default());
    let runs: Vec<RunId> = (0..MACHINES).map(|_| bench.running(spec())).collect();
    bench.fate(|call, _, _| if call == Call::Inspect { Fate::Hang } else { Fate::Obey });
    for run in &runs {
        bench.cut_off(*run);
    }
    bench.settle();
    assert_eq!(inspects(&bench), SHARE, "as many calls as it has permits");
    bench.advance(160 * SECOND);
    for run in &runs {
        assert_eq!(bench.run(*run).phase, Some(Phase::Unreachable));
    }
    // Each question ends after a minute, so that in the end every machine has been asked about.
    bench.advance(HOUR);
    let asked = inspects(&bench);
    assert!((2 * MACHINES..25 * MACHINES).contains(&asked), "{asked} questions about {MACHINES} machines");
}

#[test]
fn a_machine_whose_provider_does_not_answer_is_asked_about_ever_more_rarely() {
    let mut bench = Bench::new();
    let run = bench.running(spec());
    let name = bench.cut_off(run);
    bench.fate(|call, _, _| match call {
        Call::Inspect => Fate::FailBefore(TroubleKind::Network),
        _ => Fate::Obey,
    });
    bench.advance(30 * SECOND);
    assert!(inspects(&bench) >= 5, "every 5 s at first: {}", inspects(&bench));
    bench.advance(2 * HOUR);
    let asked = inspects(&bench);
    assert!((30..80).contains(&asked), "every 5 minutes in the end: {asked}");
    // Its runner is gone, as its provider says when it answers again.
    bench.provider.kill_runner(&name);
    bench.fate(|_, _, _| Fate::Obey);
    bench.advance(5 * MINUTE + 30 * SECOND);
    assert!(inspects(&bench) >= 1);
    assert_eq!(bench.provider.machine(&name).unwrap().starts, 2, "it was started again");
    bench.check();
}
