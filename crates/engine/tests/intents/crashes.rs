//! The control plane dies before and after every commit of every story, or its outcome is not learnt, and every item is worked on twice:
//! the stories end alike.

use crate::bench::{Bench, Harm, PRICE, spec};
use crate::machines::{Plan, ended};
use engine::run::Action;
use model::job::JobReason;
use model::run::RunStatus;
use model::spec::{Retry, RetryEvent, RunSpec};
use model::time::{MINUTE, SECOND};
use model::{Credits, RunId};
use store::Moment;

/// Where nothing died.
pub const UNDISTURBED: &str = "undisturbed";

/// Tells the story undisturbed, and again with a death before and after each of its writes. `check` sees each time how it came out.
pub fn around_every_write<T>(story: impl Fn(&mut Bench) -> T, check: impl Fn(&Bench, T, &str)) {
    let mut bench = Bench::new();
    bench.crashes.count();
    let told = story(&mut bench);
    let writes = bench.crashes.writes.lock().unwrap().len();
    check(&bench, told, UNDISTURBED);
    assert!(writes > 5);
    for write in 0..writes {
        for moment in [Moment::Before, Moment::After] {
            let mut bench = Bench::new();
            bench.crashes.arm(write, moment);
            let told = story(&mut bench);
            check(&bench, told, &format!("died at write {write} {moment:?}"));
        }
    }
}

pub struct Story {
    pub name: &'static str,
    pub tell: fn(&mut Bench) -> RunId,
    pub status: RunStatus,
    pub code: Option<&'static str>,
    pub executions: usize,
}

const fn story(
    name: &'static str,
    tell: fn(&mut Bench) -> RunId,
    (status, code): (RunStatus, Option<&'static str>),
    executions: usize,
) -> Story {
    Story { name, tell, status, code, executions }
}

const WELL: (RunStatus, Option<&str>) = (RunStatus::Completed, None);
const CANCELLED: (RunStatus, Option<&str>) = (RunStatus::Cancelled, None);

pub const STORIES: &[Story] = &[
    story("cold", cold, WELL, 1),
    story("warm", warm, WELL, 1),
    story("long", long, WELL, 1),
    story("cancelled", cancelled, CANCELLED, 1),
    story("unplaced", cancelled_in_the_queue, CANCELLED, 0),
    story("retried", retried, (RunStatus::Failed, Some("exited_with_error")), 2),
    story("lost", machine_lost, WELL, 2),
    story("paused", paused, WELL, 1),
    story("refused", refused, (RunStatus::Failed, Some("no_capacity")), 0),
    story("unpaid", unpaid, (RunStatus::Failed, Some("budget")), 1),
    story("unprovided", unprovided, (RunStatus::Failed, Some("no_capacity")), 0),
    story("cleaned", cleaned_up, WELL, 1),
    story("prepared", prepared, WELL, 1),
    story("equipped", crate::features::story, WELL, 1),
    story("emptied", crate::features::emptied_story, WELL, 1),
    story("kept", crate::snapshots::story, WELL, 1),
    story("unreadable", crate::snapshots::refused_story, WELL, 1),
    story("saved", crate::snapshots::saved_story, WELL, 1),
    story("unsaved", crate::snapshots::unsaved_story, WELL, 1),
    story("called", crate::cached_runs::story, WELL, 1),
    story("elsewhere", elsewhere, WELL, 1),
    story("direct", crate::sources::direct, WELL, 1),
    story("indirect", crate::sources::out_of_reach, WELL, 1),
    story("stepped", crate::call_steps::story, WELL, 1),
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
    let run = bench.submit(RunSpec { retry: Some(retry), ..spec() });
    bench.advance(SECOND);
    run
}

fn machine_lost(bench: &mut Bench) -> RunId {
    bench.runners.plan = Some(Plan::Run);
    let retry = Retry { max_attempts: 3, on_events: vec![RetryEvent::Interruption], duration_ms: None, delay_ms: None };
    let run = bench.submit(RunSpec { retry: Some(retry), ..spec() });
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
    let run = bench.submit(RunSpec { any_region: true, ..spec() });
    bench.settle();
    run
}

/// The second run finds the init of the first.
fn prepared(bench: &mut Bench) -> RunId {
    let init = || RunSpec { init: Some("true".into()), init_checksum: Some("x".into()), ..spec() };
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

/// It is interrupted when its budget is used up: nothing is left to pay another machine with.
fn unpaid(bench: &mut Bench) -> RunId {
    bench.runners.plan = Some(Plan::Run);
    let retry = Retry { max_attempts: 3, on_events: vec![RetryEvent::Interruption], duration_ms: None, delay_ms: None };
    let budget = Some(Credits(PRICE.0 / 60));
    let run = bench.submit(RunSpec { retry: Some(retry), budget, ..spec() });
    bench.settle();
    let paid_until = bench.job(run).started_at.expect("it runs") + MINUTE;
    bench.advance(paid_until.since(bench.at()));
    bench.says_until_heard(run, ended(JobReason::Interrupted, None, 0, MINUTE));
    bench.advance(30 * SECOND);
    run
}

/// It waits for a machine when its provider is taken out of the settings.
fn unprovided(bench: &mut Bench) -> RunId {
    bench.runners.plan = Some(Plan::Run);
    let before: Vec<RunId> = (0..2).map(|_| bench.submit(spec())).collect();
    bench.settle();
    let run = bench.submit(spec());
    bench.restart_without_providers();
    bench.advance(10 * SECOND);
    bench.restart_with_providers();
    before.into_iter().for_each(|run| bench.exits(run, 0));
    run
}

fn judge(story: &Story, bench: &mut Bench, run: RunId, how: &str) {
    eprintln!("{} {how}", story.name);
    // The items of the interrupted worker are taken over.
    bench.advance(if how.contains("unheard") { MINUTE } else { 10 * SECOND });
    bench.expect_end(run, story.status, story.code);
    assert_eq!(bench.runners.executions(run), story.executions, "{} {how}", story.name);
    bench.check();
    bench.check_made_once();
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

/// From the n-th write of a story on, the control plane is another one; or it is the same and has not heard of the commit.
fn harm_everywhere(name: &str, harms: &[Harm]) {
    let story = STORIES.iter().find(|story| story.name == name).expect("it is told above");
    let mut undisturbed = Bench::brief();
    (story.tell)(&mut undisturbed);
    undisturbed.settle();
    let writes = undisturbed.crashes.writes.lock().unwrap().clone();
    for (n, write) in writes.iter().enumerate() {
        for harm in harms {
            let mut bench = Bench::brief();
            bench.crashes.arm_with(n, *harm);
            let run = (story.tell)(&mut bench);
            judge(story, &mut bench, run, &format!("{harm:?} write {n}, {write}").to_lowercase());
            assert!(bench.crashes.has_struck(), "{} {harm:?} {n}", story.name);
            if matches!(harm, Harm::Dies(_)) {
                assert_eq!(bench.starts, undisturbed.starts + 1, "it died once");
            }
        }
    }
}

macro_rules! harmed {
    ($($name:ident)*) => {
        /// Dying at any commit changes nothing.
        mod dying {
            $(#[test]
            fn $name() {
                use super::{Harm, Moment, harm_everywhere};
                harm_everywhere(stringify!($name), &[Harm::Dies(Moment::Before), Harm::Dies(Moment::After)]);
            })*
        }
        /// Not learning of a commit changes nothing.
        mod unheard {
            $(#[test]
            fn $name() {
                super::harm_everywhere(stringify!($name), &[super::Harm::Unheard]);
            })*
        }
        #[test]
        fn every_story_is_harmed() {
            let harmed = [$(stringify!($name)),*];
            assert_eq!(STORIES.iter().map(|story| story.name).collect::<Vec<_>>(), harmed);
        }
    };
}

harmed!(cold warm long cancelled unplaced retried lost paused refused unpaid unprovided cleaned prepared equipped emptied kept unreadable saved unsaved called elsewhere direct indirect stepped);
