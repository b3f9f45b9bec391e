//! Every kind of node of every intent under every fault. What strikes commits is told by the stories of `crashes`; what a node's own work
//! meets is told here. A kind of node without a row is a failure, and so is a fault that a row says nothing of.

use crate::bench::{Bench, now, spec};
use crate::cleanups::forgotten;
use crate::crashes::STORIES;
use crate::features;
use crate::machines::{Plan, broken, fact};
use crate::regions::full_here;
use adapters::fake::{Call, Fate};
use engine::runner::What;
use model::job::LifecycleError;
use model::run::RunStatus;
use model::spec::RunSpec;
use model::time::{HOUR, MINUTE, SECOND};
use model::workflow::{Intent, NodeStatus};
use model::{RunId, TroubleKind};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;

/// What becomes of a node under one fault.
enum Cell {
    /// Told and judged here.
    Tale(Tale),
    /// The fault strikes each commit of this story of `crashes`, in which the node comes to this end.
    Commits(&'static str, NodeStatus),
    /// It cannot happen, and why.
    Never(&'static str),
}

struct Tale {
    tell: fn(&mut Bench) -> RunId,
    /// How the node ends.
    node: NodeStatus,
    run: (RunStatus, Option<&'static str>),
    executions: usize,
    /// That were ever made.
    machines: usize,
}

struct Row {
    kind: (Intent, &'static str),
    /// The story in which it ends well: the control plane dies before and after each of its commits, and works on each item twice.
    story: &'static str,
    before: Cell,
    /// Its work is done, and its worker hears of a failure.
    after: Cell,
    times_out: Cell,
    compensation: Cell,
}

use Cell::{Commits, Never};
use NodeStatus::{Completed as DONE, Failed as FAILS};

const WELL: (RunStatus, Option<&str>) = (RunStatus::Completed, None);
const NO_MACHINE: (RunStatus, Option<&str>) = (RunStatus::Failed, Some("no_capacity"));
const ROWS_ONLY: &str = "it reads and writes rows, which are there or are not";
const ONE_COMMIT: &str = "it begins and ends in one commit";
/// What then happens is in the model's patterns: it falls back to a machine of its own.
const ONE_WRITER: &str =
    "a slot is taken between its choice and its claim only where several transactions write at once";
const SAME_COMMIT: &str = "it is looked at in the commit in which the node before it has found the tree, and only that tree's absence fails it";
const OWN_SLOT: &str = "its slot was made, or claimed, as the job's, and no other takes it while the job is open: R94";
const NOTHING_MADE: &str = "it has made nothing that could be left";

const fn tale(
    tell: fn(&mut Bench) -> RunId,
    node: NodeStatus,
    run: (RunStatus, Option<&'static str>),
    executions: usize,
    machines: usize,
) -> Cell {
    Cell::Tale(Tale { tell, node, run, executions, machines })
}

/// A node that decides from rows in one commit.
const fn decides(kind: (Intent, &'static str), story: &'static str) -> Row {
    let after = Commits(story, DONE);
    Row {
        kind,
        story,
        before: Never(ROWS_ONLY),
        after,
        times_out: Never(ONE_COMMIT),
        compensation: Never(NOTHING_MADE),
    }
}

fn matrix() -> Vec<Row> {
    use Intent::{
        CleanupManifest as CLEANUP, CreateSnapshot as SNAPSHOT, LaunchRun as LAUNCH, TerminateInstance as END,
    };
    vec![
        Row {
            before: Never("a run whose budget is used up ends before it asks for another machine: the story `unpaid`"),
            ..decides((LAUNCH, "check-budget"), "cold")
        },
        Row {
            before: Commits("unprovided", FAILS),
            times_out: tale(waits_too_long, FAILS, NO_MACHINE, 0, 2),
            compensation: Commits("unprovided", FAILS),
            ..decides((LAUNCH, "resolve-instance"), "cold")
        },
        decides((LAUNCH, "choose-machine"), "cold"),
        Row { before: Never(ONE_WRITER), ..decides((LAUNCH, "claim-warm-allocation"), "warm") },
        Row {
            kind: (LAUNCH, "spawn-instance"),
            story: "cold",
            before: tale(no_machine_there, FAILS, WELL, 1, 1),
            after: tale(made_unheard, DONE, WELL, 1, 1),
            times_out: tale(never_made, FAILS, NO_MACHINE, 0, 0),
            compensation: tale(cannot_be_ended_for_an_hour, FAILS, NO_MACHINE, 0, 1),
        },
        Row {
            before: tale(gone_before_it_came_up, FAILS, WELL, 1, 2),
            times_out: tale(never_comes_up, FAILS, (RunStatus::Failed, Some("boot_limit")), 0, 3),
            ..decides((LAUNCH, "wait-for-boot"), "cold")
        },
        Row {
            before: tale(features::install_fails, FAILS, (RunStatus::Failed, Some("executor_error")), 0, 1),
            times_out: tale(features::install_never_ends, FAILS, (RunStatus::Failed, Some("executor_error")), 0, 1),
            compensation: Never("what a script has left is cleared before it is run again: `features.rs`"),
            ..decides((LAUNCH, "install-feature"), "equipped")
        },
        Row { before: Never(OWN_SLOT), ..decides((LAUNCH, "create-allocation"), "cold") },
        decides((LAUNCH, "choose-sync"), "cold"),
        Row {
            before: Commits("indirect", FAILS),
            times_out: tale(crate::sources::never_ends, FAILS, WELL, 1, 1),
            compensation: Commits("indirect", FAILS),
            ..decides((LAUNCH, "sync-direct"), "direct")
        },
        Row {
            before: tale(no_files, FAILS, (RunStatus::Failed, Some("executor_error")), 0, 1),
            times_out: tale(files_never_come, FAILS, (RunStatus::Failed, Some("sync_limit")), 0, 1),
            ..decides((LAUNCH, "sync-files"), "cold")
        },
        Row {
            before: tale(keeper_dies, DONE, (RunStatus::Failed, Some("executor_error")), 1, 1),
            times_out: tale(too_long, DONE, (RunStatus::Failed, Some("deadline")), 1, 1),
            ..decides((LAUNCH, "await-completion"), "cold")
        },
        decides((LAUNCH, "choose-end"), "cold"),
        Row { before: Commits("unsaved", FAILS), ..decides((LAUNCH, "snapshot-run"), "saved") },
        decides((LAUNCH, "finalize-run"), "cold"),
        decides((END, "validate"), "cleaned"),
        Row {
            times_out: tale(job_that_does_not_stop, DONE, (RunStatus::Cancelled, None), 1, 1),
            ..decides((END, "drain-allocations"), "cleaned")
        },
        decides((END, "cleanup-features"), "emptied"),
        Row {
            before: tale(features::removal_fails, FAILS, WELL, 1, 1),
            times_out: tale(features::removal_never_ends, FAILS, WELL, 1, 1),
            ..decides((END, "remove-feature"), "emptied")
        },
        Row {
            kind: (END, "terminate"),
            story: "cleaned",
            before: tale(end_fails_for_an_hour, DONE, WELL, 1, 1),
            after: tale(end_unheard, DONE, WELL, 1, 1),
            times_out: tale(end_fails_for_an_hour, DONE, WELL, 1, 1),
            compensation: Never("an end is not taken back"),
        },
        Row {
            before: tale(crate::snapshots::machine_leaves_before_it_is_looked_at, FAILS, WELL, 1, 1),
            compensation: tale(crate::snapshots::machine_leaves_before_it_is_looked_at, FAILS, WELL, 1, 1),
            ..decides((SNAPSHOT, "validate"), "kept")
        },
        decides((SNAPSHOT, "prepare-instance"), "kept"),
        Row {
            before: Commits("unreadable", FAILS),
            times_out: tale(crate::snapshots::silent_story, FAILS, WELL, 1, 1),
            compensation: Commits("unreadable", FAILS),
            ..decides((SNAPSHOT, "create-provider-snapshot"), "kept")
        },
        Row { before: Never(SAME_COMMIT), ..decides((SNAPSHOT, "register"), "kept") },
        decides((CLEANUP, "load-resources"), "cleaned"),
        decides((CLEANUP, "sort-by-priority"), "cleaned"),
        decides((CLEANUP, "cleanup-loop"), "cleaned"),
        Row {
            before: tale(cleanup_cannot_end_it, DONE, WELL, 1, 1),
            times_out: tale(cleanup_waits_in_vain, FAILS, WELL, 1, 1),
            ..decides((CLEANUP, "clean"), "cleaned")
        },
        decides((CLEANUP, "delete"), "cleaned"),
    ]
}

/// Its provider is full and stays so.
fn waits_too_long(bench: &mut Bench) -> RunId {
    bench.config.limits.pending_ms = 20 * MINUTE;
    bench.restart();
    bench.runners.plan = Some(Plan::Run);
    let before: Vec<RunId> = (0..2).map(|_| bench.submit(spec())).collect();
    bench.settle();
    let run = bench.submit(spec());
    bench.advance(21 * MINUTE);
    before.into_iter().for_each(|run| bench.exits(run, 0));
    run
}

fn anywhere() -> RunSpec {
    RunSpec { any_region: true, ..spec() }
}

fn no_machine_there(bench: &mut Bench) -> RunId {
    full_here(bench, Fate::FailBefore(TroubleKind::Capacity));
    bench.submit(anywhere())
}

/// It is found by its name.
fn made_unheard(bench: &mut Bench) -> RunId {
    full_here(bench, Fate::FailAfter(TroubleKind::Timeout));
    bench.submit(anywhere())
}

/// The call does not return.
fn never_made(bench: &mut Bench) -> RunId {
    bench.runners.unborn = true;
    let (run, goes_on) = crate::provider_faults::a_spawn_in_hand(bench, spec());
    bench.pass(10 * MINUTE + 2 * 19 * SECOND);
    goes_on();
    bench.spawns_hang.store(false, Ordering::Relaxed);
    bench.advance(MINUTE);
    run
}

fn fails_until(bench: &mut Bench, call: Call, ms: i64) {
    bench.fate(move |asked, _, _| if asked == call { Fate::FailBefore(TroubleKind::Network) } else { Fate::Obey });
    bench.advance(ms);
    bench.check();
    bench.fate(|_, _, _| Fate::Obey);
}

/// It was made, its making seems to have failed, and neither can it be looked up nor ended.
fn cannot_be_ended_for_an_hour(bench: &mut Bench) -> RunId {
    bench.runners.unborn = true;
    bench.fate(|call, _, _| match call {
        Call::Spawn => Fate::FailAfter(TroubleKind::Auth),
        Call::Find | Call::List | Call::Terminate => Fate::FailBefore(TroubleKind::Network),
        _ => Fate::Obey,
    });
    let run = bench.submit(spec());
    bench.advance(HOUR);
    bench.check();
    bench.fate(|_, _, _| Fate::Obey);
    run
}

fn gone_before_it_came_up(bench: &mut Bench) -> RunId {
    bench.runners.unborn = true;
    let run = bench.submit(spec());
    bench.settle();
    bench.provider.destroy(&bench.name_of(run));
    bench.runners.unborn = false;
    bench.advance(MINUTE);
    run
}

fn never_comes_up(bench: &mut Bench) -> RunId {
    bench.runners.unborn = true;
    let run = bench.submit(spec());
    bench.advance(2 * HOUR);
    run
}

fn says(bench: &mut Bench, run: RunId, what: What) {
    let job = bench.job(run);
    let said = fact(job.id, job.epoch, job.step, what);
    bench.report(job.instance.unwrap(), vec![said], Vec::new()).unwrap().unwrap();
}

fn no_files(bench: &mut Bench) -> RunId {
    bench.runners.plan = Some(Plan::Pull);
    let run = bench.submit(spec());
    bench.settle();
    says(bench, run, broken(LifecycleError::SyncFailed, 0));
    run
}

fn files_never_come(bench: &mut Bench) -> RunId {
    bench.runners.plan = Some(Plan::Pull);
    let run = bench.submit(spec());
    bench.advance(2 * HOUR);
    run
}

fn keeper_dies(bench: &mut Bench) -> RunId {
    bench.runners.plan = Some(Plan::Run);
    let run = bench.submit(spec());
    bench.settle();
    says(bench, run, broken(LifecycleError::KeeperDied, SECOND));
    run
}

fn too_long(bench: &mut Bench) -> RunId {
    bench.runners.plan = Some(Plan::Run);
    let run = bench.submit(RunSpec { max_duration_ms: Some(MINUTE), ..spec() });
    bench.advance(3 * MINUTE);
    run
}

/// Its machine is to end at once, and nothing that is said arrives there.
fn job_that_does_not_stop(bench: &mut Bench) -> RunId {
    bench.runners.plan = Some(Plan::Run);
    let run = bench.submit(spec());
    bench.settle();
    let machine = bench.job(run).instance.unwrap();
    bench.cut_off(run);
    bench.terminate(machine, true).unwrap();
    bench.advance(30 * MINUTE);
    run
}

fn idle(bench: &mut Bench) -> RunId {
    let run = bench.submit(spec());
    bench.settle();
    run
}

fn end_fails_for_an_hour(bench: &mut Bench) -> RunId {
    let run = idle(bench);
    fails_until(bench, Call::Terminate, HOUR);
    bench.advance(2 * MINUTE);
    run
}

fn end_unheard(bench: &mut Bench) -> RunId {
    let run = idle(bench);
    bench.fate(|call, before, _| match call {
        Call::Terminate if before < 3 => Fate::FailAfter(TroubleKind::Timeout),
        _ => Fate::Obey,
    });
    bench.advance(5 * MINUTE);
    run
}

/// Its machine's end fails for a while, and the cleanup waits for it.
fn cleanup_cannot_end_it(bench: &mut Bench) -> RunId {
    let run = forgotten(bench, spec());
    fails_until(bench, Call::Terminate, 30 * MINUTE);
    bench.advance(5 * MINUTE);
    run
}

fn cleanup_waits_in_vain(bench: &mut Bench) -> RunId {
    let run = forgotten(bench, spec());
    fails_until(bench, Call::Terminate, 2 * HOUR + 10 * MINUTE);
    bench.advance(5 * MINUTE);
    run
}

/// How each kind of node has ended, in all workflows there are.
fn ends(bench: &Bench) -> BTreeSet<(Intent, String, NodeStatus)> {
    let all = now(bench.engine.workflows(bench.org, i64::MAX, 1000)).unwrap();
    let of = |workflow: &model::workflow::Workflow| {
        let intent = workflow.intent;
        workflow.nodes.iter().map(|node| (intent, node.kind.clone(), node.status)).collect::<Vec<_>>()
    };
    all.iter().flat_map(of).collect()
}

fn play(row: &Row, tale: &Tale, fault: &str) {
    let (intent, kind) = row.kind;
    eprintln!("{intent} {kind}: {fault}");
    let mut bench = Bench::brief();
    let run = (tale.tell)(&mut bench);
    bench.advance(MINUTE);
    let found = ends(&bench);
    let ends: Vec<_> = found.iter().filter(|(_, of, _)| of == kind).map(|(.., end)| *end).collect();
    assert!(found.contains(&(intent, kind.to_owned(), tale.node)), "{kind} is {ends:?}, and not {}", tale.node);
    bench.expect_end(run, tale.run.0, tale.run.1);
    assert_eq!(bench.runners.executions(run), tale.executions);
    bench.check();
    bench.runners.unborn = false;
    bench.check_all_gone_after(3 * HOUR);
    bench.check_made_once();
    assert_eq!(bench.provider.made().len(), tale.machines, "machines");
}

fn cells(row: &Row) -> [(&'static str, &Cell); 4] {
    let Row { before, after, times_out, compensation, .. } = row;
    [("before", before), ("after", after), ("times out", times_out), ("compensation", compensation)]
}

fn play_all(is_meant: impl Fn(Intent) -> bool) {
    for row in matrix().iter().filter(|row| is_meant(row.kind.0)) {
        for (fault, cell) in cells(row) {
            if let Cell::Tale(tale) = cell {
                play(row, tale, fault);
            }
        }
    }
}

#[test]
fn launches_end_right_under_every_fault() {
    play_all(|intent| intent == Intent::LaunchRun);
}

#[test]
fn everything_else_ends_right_under_every_fault() {
    play_all(|intent| intent != Intent::LaunchRun);
}

#[test]
fn every_kind_of_node_has_a_row_and_every_fault_of_it_an_answer() {
    let matrix = matrix();
    let known: BTreeSet<_> = engine::workflow::node_kinds().into_iter().collect();
    let rows: BTreeSet<_> = matrix.iter().map(|row| row.kind).collect();
    assert_eq!(rows, known, "a kind of node that is new needs a row here");
    assert_eq!(rows.len(), matrix.len(), "one row each");
    let told: BTreeMap<&str, _> = STORIES
        .iter()
        .map(|story| {
            let mut bench = Bench::brief();
            (story.tell)(&mut bench);
            bench.settle();
            (story.name, ends(&bench))
        })
        .collect();
    for row in &matrix {
        let (intent, kind) = row.kind;
        let meets = |story: &str, end: NodeStatus| {
            assert!(
                told[story].contains(&(intent, kind.to_owned(), end)),
                "{kind} of {intent} is not {end} in {story}"
            );
        };
        meets(row.story, DONE);
        for (fault, cell) in cells(row) {
            match cell {
                Commits(story, end) => meets(story, *end),
                Never(why) => assert!(!why.is_empty(), "{kind} {fault}"),
                Cell::Tale(_) => {}
            }
        }
    }
}
