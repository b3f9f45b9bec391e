//! The control plane dies before and after every commit of every story, and every item is worked on twice: the stories end alike.

use crate::bench::{Bench, spec};
use crate::machines::Plan;
use engine::run::Action;
use model::RunId;
use model::run::RunStatus;
use model::spec::{Retry, RetryEvent};
use model::time::{MINUTE, SECOND};
use store::Moment;

struct Story {
    name: &'static str,
    tell: fn(&mut Bench) -> RunId,
    status: RunStatus,
    code: Option<&'static str>,
    executions: usize,
}

const STORIES: &[Story] = &[
    Story { name: "cold", tell: cold, status: RunStatus::Completed, code: None, executions: 1 },
    Story { name: "warm", tell: warm, status: RunStatus::Completed, code: None, executions: 1 },
    Story { name: "long", tell: long, status: RunStatus::Completed, code: None, executions: 1 },
    Story { name: "cancelled", tell: cancelled, status: RunStatus::Cancelled, code: None, executions: 1 },
    Story { name: "unplaced", tell: cancelled_in_the_queue, status: RunStatus::Cancelled, code: None, executions: 0 },
    Story { name: "retried", tell: retried, status: RunStatus::Failed, code: Some("exited_with_error"), executions: 2 },
    Story { name: "lost", tell: machine_lost, status: RunStatus::Completed, code: None, executions: 2 },
    Story { name: "paused", tell: paused, status: RunStatus::Completed, code: None, executions: 1 },
    Story { name: "refused", tell: refused, status: RunStatus::Failed, code: Some("no_capacity"), executions: 0 },
    Story { name: "cleaned", tell: cleaned_up, status: RunStatus::Completed, code: None, executions: 1 },
    Story { name: "prepared", tell: prepared, status: RunStatus::Completed, code: None, executions: 1 },
    Story { name: "kept", tell: crate::snapshots::story, status: RunStatus::Completed, code: None, executions: 1 },
    Story { name: "called", tell: crate::cached_runs::story, status: RunStatus::Completed, code: None, executions: 1 },
    Story { name: "elsewhere", tell: elsewhere, status: RunStatus::Completed, code: None, executions: 1 },
];

fn cold(bench: &mut Bench) -> RunId {
    let run = bench.submit(spec());
    bench.settle();
    run
}

fn warm(bench: &mut Bench) -> RunId {
    cold(bench);
    cold(bench)
}

fn long(bench: &mut Bench) -> RunId {
    bench.runners.plan = Some(Plan::Run);
    let run = bench.submit(spec());
    bench.advance(2 * MINUTE);
    bench.exits(run, 0);
    run
}

fn cancelled(bench: &mut Bench) -> RunId {
    bench.runners.plan = Some(Plan::Run);
    let run = bench.submit(spec());
    bench.settle();
    bench.cancel(run);
    bench.settle();
    run
}

fn cancelled_in_the_queue(bench: &mut Bench) -> RunId {
    bench.runners.plan = Some(Plan::Run);
    let before: Vec<RunId> = (0..2).map(|_| bench.submit(spec())).collect();
    bench.settle();
    let run = bench.submit(spec());
    bench.cancel(run);
    before.into_iter().for_each(|run| bench.exits(run, 0));
    run
}

fn retried(bench: &mut Bench) -> RunId {
    bench.runners.plan = Some(Plan::Exit(3));
    let retry = Retry { max_attempts: 2, on_events: vec![RetryEvent::Error], duration_ms: None, delay_ms: None };
    let run = bench.submit(model::spec::RunSpec { retry: Some(retry), ..spec() });
    bench.advance(SECOND);
    run
}

fn machine_lost(bench: &mut Bench) -> RunId {
    bench.runners.plan = Some(Plan::Run);
    let retry = Retry { max_attempts: 3, on_events: vec![RetryEvent::Interruption], duration_ms: None, delay_ms: None };
    let run = bench.submit(model::spec::RunSpec { retry: Some(retry), ..spec() });
    bench.settle();
    let name = bench.name_of(run);
    bench.provider.destroy(&name);
    bench.advance(MINUTE);
    bench.exits(run, 0);
    run
}

fn paused(bench: &mut Bench) -> RunId {
    bench.runners.plan = Some(Plan::Run);
    let run = bench.submit(spec());
    bench.settle();
    for action in [Action::Pause, Action::Resume] {
        bench.act(run, action).unwrap();
        bench.settle();
    }
    bench.exits(run, 0);
    run
}

fn refused(bench: &mut Bench) -> RunId {
    bench.fate(|call, _, _| match call {
        adapters::fake::Call::Spawn => adapters::fake::Fate::FailBefore(model::TroubleKind::Capacity),
        _ => adapters::fake::Fate::Obey,
    });
    let run = bench.submit(spec());
    bench.advance(MINUTE);
    run
}

/// The first region has no machine, the second has one.
fn elsewhere(bench: &mut Bench) -> RunId {
    crate::regions::full_here(bench, adapters::fake::Fate::FailBefore(model::TroubleKind::Capacity));
    let run = bench.submit(model::spec::RunSpec { any_region: true, ..spec() });
    bench.settle();
    run
}

/// The second run finds the init of the first.
fn prepared(bench: &mut Bench) -> RunId {
    let init = || model::spec::RunSpec { init: Some("true".into()), init_checksum: Some("x".into()), ..spec() };
    bench.submit(init());
    bench.settle();
    let run = bench.submit(init());
    bench.settle();
    run
}

/// No idle time ends its machine: its manifest's retention does.
fn cleaned_up(bench: &mut Bench) -> RunId {
    let run = crate::cleanups::forgotten(bench, spec());
    bench.advance(2 * MINUTE + SECOND);
    run
}

fn judge(story: &Story, bench: &mut Bench, run: RunId, how: &str) {
    eprintln!("{} {how}", story.name);
    bench.advance(10 * SECOND); // the items of the interrupted worker are taken over
    bench.expect_end(run, story.status, story.code);
    assert_eq!(bench.runners.executions(run), story.executions, "{} {how}", story.name);
    bench.check();
    // A machine whose maker died may appear late: it is looked for, for 5 minutes.
    bench.check_all_gone_after(6 * MINUTE);
}

#[test]
fn every_story_ends_as_it_should() {
    for story in STORIES {
        let mut bench = Bench::brief();
        let run = (story.tell)(&mut bench);
        judge(story, &mut bench, run, "undisturbed");
        assert!(bench.act(run, Action::Start).is_ok(), "what is passed is not refused");
    }
}

#[test]
fn an_item_worked_on_twice_changes_nothing_twice() {
    for story in STORIES {
        let mut bench = Bench::brief();
        bench.twice = true;
        let run = (story.tell)(&mut bench);
        judge(story, &mut bench, run, "twice");
    }
}

/// From the n-th write of a story on, the control plane is another one.
fn die_everywhere(name: &str) {
    let story = STORIES.iter().find(|story| story.name == name).expect("it is told above");
    let mut undisturbed = Bench::brief();
    (story.tell)(&mut undisturbed);
    undisturbed.settle();
    let writes = undisturbed.crashes.writes.lock().unwrap().clone();
    for (n, write) in writes.iter().enumerate() {
        for moment in [Moment::Before, Moment::After] {
            let mut bench = Bench::brief();
            bench.crashes.arm(n, moment);
            let run = (story.tell)(&mut bench);
            judge(story, &mut bench, run, &format!("dies {moment:?} write {n}, {write}"));
            assert_eq!(bench.starts, 2, "it died once");
        }
    }
}

#[test]
fn dying_anywhere_around_a_pause_changes_nothing() {
    die_everywhere("paused");
}
#[test]
fn dying_anywhere_in_a_cold_run_changes_nothing() {
    die_everywhere("cold");
}
#[test]
fn dying_anywhere_in_a_warm_run_changes_nothing() {
    die_everywhere("warm");
}
#[test]
fn dying_anywhere_in_a_long_run_changes_nothing() {
    die_everywhere("long");
}
#[test]
fn dying_anywhere_in_a_cancelled_run_changes_nothing() {
    die_everywhere("cancelled");
}
#[test]
fn dying_anywhere_around_a_queue_changes_nothing() {
    die_everywhere("unplaced");
}
#[test]
fn dying_anywhere_in_a_retried_run_changes_nothing() {
    die_everywhere("retried");
}
#[test]
fn dying_anywhere_around_a_lost_machine_changes_nothing() {
    die_everywhere("lost");
}
#[test]
fn dying_anywhere_in_a_cleanup_changes_nothing() {
    die_everywhere("cleaned");
}
#[test]
fn dying_anywhere_around_an_init_changes_nothing() {
    die_everywhere("prepared");
}
#[test]
fn dying_anywhere_around_a_snapshot_changes_nothing() {
    die_everywhere("kept");
}
#[test]
fn dying_anywhere_between_two_regions_changes_nothing() {
    die_everywhere("elsewhere");
}
#[test]
fn dying_anywhere_around_a_refused_machine_changes_nothing() {
    die_everywhere("refused");
}
#[test]
fn dying_anywhere_in_a_cached_run_changes_nothing() {
    die_everywhere("called");
}
