//! Snapshots: made from a folder that is held or at the end of a run, kept until a person deletes them, never the cause of a run's end.

use crate::bench::{Bench, now, settings, spec};
use crate::cleanups::written;
use crate::holds::finished;
use engine::Config;
use engine::snapshot::SnapshotRender;
use engine::workflow::WorkflowRender;
use model::instance::Instance;
use model::manifest::{ManifestStatus, ResourceKind};
use model::run::RunStatus;
use model::snapshot::{Snapshot, SnapshotStatus};
use model::spec::RunSpec;
use model::time::{HOUR, MINUTE};
use model::tree::TreeRef;
use model::workflow::{NodeStatus, WorkflowStatus};
use model::{AllocationId, Failure, OrgId, Refused, RunId, SnapshotId, Timestamp};
use std::sync::Arc;

fn shown() -> SnapshotRender {
    Arc::new(|snapshot| snapshot.id.to_string().into_bytes())
}

/// A folder's tree, with all that it names.
pub fn sent(bench: &mut Bench, letter: &str) -> TreeRef {
    let (org, hash) = (bench.org, letter.repeat(64));
    let tree = TreeRef { hash: hash.clone(), files: 3, bytes: 30 };
    written(bench, move |tx| {
        store::content::announce(tx, org, &hash).unwrap();
        store::content::kept(tx, org, &hash).unwrap();
        store::content::finish_tree(tx, org, &hash, &[]).unwrap();
    });
    tree
}

fn create_in(bench: &mut Bench, org: OrgId, slot: AllocationId) -> Result<SnapshotId, Failure> {
    let key = bench.key();
    loop {
        let answer = now(bench.engine.create_snapshot(org, slot, Some(key.clone()), shown()));
        if !bench.revive() {
            return answer.map(|answer| String::from_utf8(answer.body).unwrap().parse().unwrap());
        }
    }
}

pub fn create(bench: &mut Bench, run: RunId) -> Result<SnapshotId, Failure> {
    let (org, slot) = (bench.org, bench.job(run).allocation.unwrap());
    create_in(bench, org, slot)
}

pub fn find(bench: &Bench, id: SnapshotId) -> Snapshot {
    now(bench.engine.workdir_snapshot(bench.org, id)).unwrap()
}

fn machine(bench: &Bench, run: RunId) -> Instance {
    now(bench.engine.find_instance(bench.job(run).instance.unwrap())).unwrap().unwrap()
}

pub fn taken(bench: &mut Bench, id: SnapshotId, said: Result<TreeRef, String>) {
    let instance = find(bench, id).instance;
    loop {
        let told = now(bench.engine.snapshot_taken(instance, id, said.clone()));
        if !bench.revive() {
            told.unwrap();
            return bench.settle();
        }
    }
}

/// How many contents a sweep would take that never needs any.
fn condemned(bench: &Bench) -> u64 {
    let read = |tx: &mut store::Tx| store::content::condemn(tx, Timestamp(i64::MAX - 1), 100);
    now(bench.store.write(store::Lane::Low, "test", read)).unwrap()
}

#[test]
fn a_held_folder_becomes_a_snapshot_that_stays_until_a_person_deletes_it() {
    let mut bench = Bench::new();
    let run = finished(&mut bench, 0, spec());
    let tree = sent(&mut bench, "a");
    let id = create(&mut bench, run).unwrap();
    let before = machine(&bench, run).desired_version;
    bench.settle();
    assert_eq!(machine(&bench, run).sends, [(id, "work_1".to_owned())]);
    assert!(machine(&bench, run).desired_version > before, "its runner is told");
    taken(&mut bench, id, Ok(tree.clone()));
    let made = find(&bench, id);
    assert_eq!((made.status, made.tree.clone(), made.run), (SnapshotStatus::Ready, Some(tree.clone()), Some(run)));
    assert_eq!(machine(&bench, run).sends, []);
    let (manifest, owned) = now(bench.engine.manifest(bench.org, made.manifest)).unwrap();
    assert_eq!((manifest.retain_until, owned), (None, vec![(ResourceKind::Snapshot, id.0)]));
    bench.check();
    bench.check_all_gone();
    bench.advance(25 * HOUR);
    assert_eq!(find(&bench, id).status, SnapshotStatus::Ready, "for ever");
    assert_eq!(condemned(&bench), 0, "its files stay");
    assert_eq!(now(bench.engine.snapshot_tree(bench.org, id)).unwrap(), tree);
    for _ in 0..2 {
        now(bench.engine.delete_snapshot(bench.org, id)).unwrap();
        bench.settle();
    }
    assert_eq!(find(&bench, id).status, SnapshotStatus::Deleted);
    assert_eq!(now(bench.engine.manifest(bench.org, made.manifest)).unwrap().0.status, ManifestStatus::Deleted);
    assert_eq!(condemned(&bench), 1, "its files wait for the sweep");
    assert!(matches!(now(bench.engine.snapshot_tree(bench.org, id)), Err(Failure::Refused(Refused::Gone { .. }))));
}

/// Its machine is not asked for the folder any more, and what it sends late is not kept.
#[test]
fn a_snapshot_whose_workflow_is_cancelled_is_given_up_for_the_reason_that_was_said() {
    for (reason, expected) in [(Some("too large"), "cancelled: too large"), (None, "cancelled: asked")] {
        let mut bench = Bench::with(settings(4), Config::default());
        let run = finished(&mut bench, 0, RunSpec { hold_ms: Some(HOUR), ..spec() });
        let id = create(&mut bench, run).unwrap();
        bench.settle();
        assert_eq!(machine(&bench, run).sends.len(), 1, "its runner is asked");
        let workflow = find(&bench, id).workflow;
        for _ in 0..2 {
            let shown: WorkflowRender = Arc::new(|workflow| workflow.status.to_string().into_bytes());
            let reason = reason.map(str::to_owned);
            now(bench.engine.cancel_workflow(bench.org, workflow, reason, None, shown)).unwrap();
            bench.settle();
        }
        let given_up = find(&bench, id);
        assert_eq!((given_up.status, given_up.error.as_deref()), (SnapshotStatus::Failed, Some(expected)));
        assert!(machine(&bench, run).sends.is_empty());
        let ended = now(bench.engine.workflow(bench.org, workflow)).unwrap();
        assert_eq!((ended.status, ended.error.as_deref()), (WorkflowStatus::Cancelled, Some(expected)));
        let late = sent(&mut bench, "b");
        taken(&mut bench, id, Ok(late));
        assert_eq!(find(&bench, id), given_up);
        bench.expect_end(run, RunStatus::Completed, None);
        bench.check();
    }
}

#[test]
fn a_snapshot_that_cannot_be_made_fails_alone() {
    for how in ["said", "machine gone", "silent"] {
        let mut bench = Bench::with(settings(4), Config::default());
        let run = finished(&mut bench, 0, RunSpec { hold_ms: Some(4 * HOUR), ..spec() });
        let id = create(&mut bench, run).unwrap();
        bench.settle();
        match how {
            "said" => taken(&mut bench, id, Err("a file changed meanwhile".into())),
            "machine gone" => {
                bench.terminate(machine(&bench, run).id, true).unwrap();
                bench.advance(MINUTE);
            }
            _ => bench.advance(HOUR + MINUTE),
        }
        let failed = find(&bench, id);
        assert_eq!(failed.status, SnapshotStatus::Failed, "{how}: {failed:?}");
        assert!(failed.error.is_some() && machine(&bench, run).sends.is_empty(), "{how}");
        let workflow = now(bench.engine.workflow(bench.org, failed.workflow)).unwrap();
        assert_eq!(workflow.status, WorkflowStatus::Failed, "{how}");
        bench.expect_end(run, RunStatus::Completed, None);
        // What comes late changes nothing.
        let late = sent(&mut bench, "b");
        taken(&mut bench, id, Ok(late));
        assert_eq!(find(&bench, id), failed, "{how}");
        bench.check();
    }
}

#[test]
fn only_a_folder_that_is_there_is_kept_and_only_for_its_own_org() {
    let mut bench = Bench::new();
    let run = finished(&mut bench, 0, spec());
    let slot = bench.job(run).allocation.unwrap();
    let other = now(bench.engine.ensure_org("other")).unwrap();
    let not_found = |result: Result<(), Failure>| matches!(result, Err(Failure::Refused(Refused::NotFound { .. })));
    assert!(not_found(create_in(&mut bench, other, slot).map(drop)));
    let id = create(&mut bench, run).unwrap();
    assert!(not_found(now(bench.engine.workdir_snapshot(other, id)).map(drop)));
    assert!(not_found(now(bench.engine.delete_snapshot(other, id))));
    assert!(not_found(now(bench.engine.snapshot_tree(other, id)).map(drop)));
    bench.advance(20 * MINUTE);
    let refused = create(&mut bench, run);
    assert!(matches!(refused, Err(Failure::Refused(Refused::Conflict { .. }))), "its hold is over: {refused:?}");
}

#[test]
fn a_run_that_ends_well_saves_its_folder_and_one_that_cannot_ends_well_all_the_same() {
    for keeps in [true, false] {
        let mut bench = Bench::new();
        bench.runners.kept = keeps.then(|| sent(&mut bench, "c"));
        let run = bench.submit(RunSpec { save_snapshot: true, ..spec() });
        bench.settle();
        bench.expect_end(run, RunStatus::Completed, None);
        let workflow = now(bench.engine.workflow(bench.org, bench.job(run).workflow)).unwrap();
        let status = |name: &str| workflow.nodes.iter().find(|node| node.name == name).unwrap().status;
        let (snapshot, finalize) = match keeps {
            true => (NodeStatus::Completed, NodeStatus::Skipped),
            false => (NodeStatus::Failed, NodeStatus::Completed),
        };
        assert_eq!((status("snapshot-run"), status("finalize-run")), (snapshot, finalize));
        assert_eq!(workflow.status, WorkflowStatus::Completed);
        let all = now(bench.engine.workdir_snapshots(bench.org, i64::MAX, 10)).unwrap();
        let of: Vec<_> = all.iter().map(|snapshot| (snapshot.status, snapshot.run)).collect();
        assert_eq!(of, if keeps { vec![(SnapshotStatus::Ready, Some(run))] } else { Vec::new() });
        bench.check();
        bench.check_all_gone();
    }
}

// The stories of `crashes`. In each the items of a worker that died are taken over meanwhile.
const TAKEN_OVER_MS: i64 = 11_000;

fn asked_for(bench: &mut Bench) -> (RunId, SnapshotId) {
    (bench.config.timings.idle_duration_ms, bench.config.timings.idle_duration_paid_ms) = (3 * MINUTE, 3 * MINUTE);
    bench.restart();
    let run = bench.submit(RunSpec { hold_ms: Some(4 * MINUTE), ..spec() });
    bench.advance(TAKEN_OVER_MS);
    let id = create(bench, run).unwrap();
    bench.advance(TAKEN_OVER_MS);
    (run, id)
}

pub fn story(bench: &mut Bench) -> RunId {
    let (run, id) = asked_for(bench);
    let tree = sent(bench, "d");
    taken(bench, id, Ok(tree));
    bench.advance(TAKEN_OVER_MS);
    assert_eq!(find(bench, id).status, SnapshotStatus::Ready);
    run
}

/// A snapshot was asked for, and before its workflow is looked at a person terminates the machine.
pub fn machine_leaves_before_it_is_looked_at(bench: &mut Bench) -> RunId {
    let run = bench.submit(RunSpec { hold_ms: Some(4 * MINUTE), ..spec() });
    bench.settle();
    let id = create(bench, run).unwrap();
    let machine = bench.job(run).instance.unwrap();
    bench.terminate(machine, true).unwrap();
    bench.advance(MINUTE);
    assert_eq!(find(bench, id).status, SnapshotStatus::Failed);
    run
}

/// The machine cannot send the folder.
pub fn refused_story(bench: &mut Bench) -> RunId {
    let (run, id) = asked_for(bench);
    taken(bench, id, Err("a file cannot be read".into()));
    bench.advance(TAKEN_OVER_MS);
    assert_eq!(find(bench, id).status, SnapshotStatus::Failed);
    run
}

pub fn saved_story(bench: &mut Bench) -> RunId {
    bench.runners.kept = Some(sent(bench, "e"));
    let run = bench.submit(RunSpec { save_snapshot: true, ..spec() });
    bench.advance(TAKEN_OVER_MS);
    run
}

/// Its machine has not kept the folder.
pub fn unsaved_story(bench: &mut Bench) -> RunId {
    let run = bench.submit(RunSpec { save_snapshot: true, ..spec() });
    bench.advance(TAKEN_OVER_MS);
    run
}

/// The machine says nothing of it.
pub fn silent_story(bench: &mut Bench) -> RunId {
    let run = finished(bench, 0, RunSpec { hold_ms: Some(4 * HOUR), ..spec() });
    create(bench, run).unwrap();
    bench.advance(HOUR + MINUTE);
    run
}
