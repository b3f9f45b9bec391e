//! A run is cancelled wherever it is: it ends cancelled, costs what it used, and leaves nothing running.

use crate::bench::{Bench, spec};
use crate::machines::Plan;
use adapters::fake::{Call, Fate};
use engine::run::{Action, Submission};
use model::job::JobReason;
use model::run::{Phase, RunStatus};
use model::spec::{Retry, RetryEvent, RunSpec};
use model::time::{MINUTE, SECOND};
use model::{Credits, RunId, TroubleKind};

struct Stage {
    name: &'static str,
    reach: fn(&mut Bench) -> RunId,
    /// How long the end may take: a runner that answers needs none.
    within_ms: i64,
}

const STAGES: &[Stage] = &[
    Stage { name: "created", reach: created, within_ms: 0 },
    Stage { name: "queued", reach: queued, within_ms: 0 },
    Stage { name: "spawning", reach: spawning, within_ms: 80 * SECOND },
    Stage { name: "booting", reach: booting, within_ms: 80 * SECOND },
    Stage { name: "pulling", reach: pulling, within_ms: 0 },
    Stage { name: "running", reach: running, within_ms: 0 },
    Stage { name: "unreachable", reach: unreachable, within_ms: 80 * SECOND },
    Stage { name: "terminating", reach: terminating, within_ms: 80 * SECOND },
    Stage { name: "retrying", reach: retrying, within_ms: 0 },
];

fn created(bench: &mut Bench) -> RunId {
    let submission =
        Submission { org: bench.org, by: None, name: None, spec: spec(), plans: Default::default(), start: false };
    let answer = crate::bench::now(bench.engine.submit(submission, None, crate::bench::shown())).unwrap();
    String::from_utf8(answer.body).unwrap().parse().unwrap()
}

fn queued(bench: &mut Bench) -> RunId {
    bench.runners.plan = Some(Plan::Run);
    for _ in 0..2 {
        bench.submit(spec());
        bench.settle();
    }
    let run = bench.submit(spec());
    assert_eq!(bench.run(run).phase, Some(Phase::Queued));
    run
}

fn spawning(bench: &mut Bench) -> RunId {
    bench.fate(|call, n, _| match call {
        Call::Spawn if n < 2 => Fate::FailBefore(TroubleKind::Network),
        _ => Fate::Obey,
    });
    let run = bench.submit(spec());
    bench.settle();
    assert_eq!(bench.run(run).phase, Some(Phase::Provisioning));
    run
}

fn booting(bench: &mut Bench) -> RunId {
    bench.runners.unborn = true;
    let run = bench.submit(spec());
    bench.settle();
    assert_eq!(bench.run(run).phase, Some(Phase::Provisioning));
    run
}

fn pulling(bench: &mut Bench) -> RunId {
    bench.runners.plan = Some(Plan::Pull);
    let run = bench.submit(spec());
    bench.settle();
    assert_eq!(bench.run(run).phase, Some(Phase::Pulling));
    run
}

fn running(bench: &mut Bench) -> RunId {
    bench.runners.plan = Some(Plan::Run);
    let run = bench.submit(spec());
    bench.settle();
    assert_eq!(bench.run(run).phase, Some(Phase::Running));
    run
}

fn unreachable(bench: &mut Bench) -> RunId {
    let run = running(bench);
    bench.cut_off(run);
    bench.advance(2 * MINUTE);
    assert_eq!(bench.run(run).phase, Some(Phase::Unreachable));
    run
}

fn terminating(bench: &mut Bench) -> RunId {
    let run = running(bench);
    bench.cut_off(run);
    bench.cancel(run);
    bench.settle();
    assert_eq!(bench.run(run).phase, Some(Phase::Terminating));
    run
}

fn retrying(bench: &mut Bench) -> RunId {
    bench.runners.plan = Some(Plan::Run);
    let retry = Retry { max_attempts: 3, on_events: vec![RetryEvent::Interruption], duration_ms: None, delay_ms: None };
    let run = bench.submit(RunSpec { retry: Some(retry), ..spec() });
    bench.settle();
    bench.say(run, crate::machines::ended(JobReason::Interrupted, None, 0, 0));
    assert_eq!(bench.run(run).status, RunStatus::Retrying);
    run
}

#[test]
fn a_run_is_cancelled_wherever_it_is() {
    for stage in STAGES {
        for abort in [false, true] {
            eprintln!("{} abort {abort}", stage.name);
            let mut bench = Bench::brief();
            let run = (stage.reach)(&mut bench);
            bench.act(run, Action::Cancel { abort }).unwrap();
            bench.act(run, Action::Cancel { abort }).unwrap(); // asked twice
            bench.settle();
            bench.advance(stage.within_ms);
            assert_eq!(bench.run(run).status, RunStatus::Cancelled);
            bench.act(run, Action::Cancel { abort }).unwrap(); // reached already
            let ran = bench.runners.executions(run) > 0;
            let (reserved, charged, refunded) = bench.money(run, 1);
            assert_eq!(reserved, charged + refunded);
            assert!(ran || charged == Credits::ZERO, "{charged} for nothing");
            bench.check();
            let others = bench.runners.began.clone();
            others.into_iter().filter(|(of, ..)| *of != run).for_each(|(of, ..)| bench.exits(of, 0));
            bench.runners.unborn = false;
            bench.runners.deaf.clear();
            bench.check_all_gone_after(35 * MINUTE);
        }
    }
}

#[test]
fn an_abort_makes_the_same_end_quicker() {
    let mut bench = Bench::brief();
    bench.runners.plan = Some(Plan::Run);
    let run = bench.submit(RunSpec { stop_duration_ms: 10 * MINUTE, ..spec() });
    bench.settle();
    bench.cut_off(run);
    bench.cancel(run);
    bench.advance(30 * SECOND);
    assert_eq!(bench.run(run).status, RunStatus::Running, "ten minutes to stop");
    bench.act(run, Action::Cancel { abort: true }).unwrap();
    bench.advance(61 * SECOND);
    assert_eq!(bench.run(run).status, RunStatus::Cancelled);
    assert!(bench.job(run).fenced, "nobody said that it is gone");
    bench.check();
}
