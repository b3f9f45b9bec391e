//! Manifests past their retention: what no job uses is ended, what a job uses or a person holds stays, and in the end nothing is owned.

use crate::bench::{Bench, now, settings, spec};
use crate::holds::slot_of;
use crate::machines::Plan;
use adapters::fake::{Call, Fate};
use engine::Config;
use engine::workflow::WorkflowRender;
use model::instance::{Instance, InstanceStatus};
use model::manifest::{Manifest, ManifestStatus, ResourceKind};
use model::run::RunStatus;
use model::snapshot::{Snapshot, SnapshotStatus};
use model::spec::RunSpec;
use model::time::{HOUR, MINUTE};
use model::workflow::{Intent, NodeStatus, Workflow, WorkflowStatus};
use model::{InstanceId, ManifestId, RunId, SnapshotId, TroubleKind, WorkflowId};
use std::sync::Arc;
use store::{Lane, Tx, WorkKind};

pub fn manifest_of(bench: &Bench, run: RunId) -> (Manifest, Vec<(ResourceKind, i64)>) {
    let workflow = now(bench.engine.workflow(bench.org, bench.job(run).workflow)).unwrap();
    now(bench.engine.manifest(bench.org, workflow.manifest)).unwrap()
}

/// A write of the test's own, repeated if the control plane dies of it.
pub fn written(bench: &mut Bench, change: impl Fn(&mut Tx) + Send + Sync + Clone + 'static) {
    loop {
        let change = change.clone();
        let done = now(bench.store.write(Lane::Normal, "test", move |tx| {
            change(tx);
            Ok(())
        }));
        if !bench.revive() {
            return done.unwrap();
        }
    }
}

/// A machine that its run has left and that no idle time ends.
pub fn forgotten(bench: &mut Bench, spec: RunSpec) -> RunId {
    let run = bench.submit(spec);
    bench.settle();
    let machine = bench.job(run).instance.unwrap();
    written(bench, move |tx| {
        let instance = store::instance::lock(tx, machine).unwrap();
        store::instance::save(tx, &Instance { idle_since: None, ..instance }).unwrap();
    });
    run
}

fn cleanups(bench: &Bench) -> Vec<Workflow> {
    let all = now(bench.engine.workflows(bench.org, i64::MAX, 1000)).unwrap();
    all.into_iter().filter(|workflow| workflow.intent == Intent::CleanupManifest).collect()
}

fn machine(bench: &Bench, id: InstanceId) -> Instance {
    now(bench.engine.find_instance(id)).unwrap().unwrap()
}

#[test]
fn what_nobody_uses_is_ended_after_the_retention_and_the_manifest_is_deleted() {
    let mut bench = Bench::new();
    let run = forgotten(&mut bench, spec());
    let id = bench.job(run).instance.unwrap();
    bench.advance(29 * MINUTE);
    assert_eq!((machine(&bench, id).status, cleanups(&bench).len()), (InstanceStatus::Ready, 0));
    bench.advance(2 * MINUTE);
    assert_eq!(machine(&bench, id).status, InstanceStatus::Terminated);
    let (manifest, owned) = manifest_of(&bench, run);
    assert_eq!((manifest.status, owned), (ManifestStatus::Deleted, Vec::new()));
    let [cleanup] = &cleanups(&bench)[..] else { panic!("one is enough") };
    assert_eq!((cleanup.status, manifest.cleanup), (WorkflowStatus::Completed, Some(cleanup.id)));
    let names: Vec<&str> = cleanup.nodes.iter().map(|node| node.name.as_str()).collect();
    let order =
        ["load-resources", "sort-by-priority", "cleanup-loop", "clean-allocation", "clean-instance-fake", "delete"];
    assert_eq!(names, order, "what has the higher priority comes first");
    bench.check();
    bench.check_all_gone();
}

#[test]
fn what_has_ended_by_itself_needs_no_workflow() {
    let mut bench = Bench::brief();
    let run = bench.submit(spec());
    bench.advance(10 * MINUTE);
    assert_eq!(manifest_of(&bench, run).0.status, ManifestStatus::Deleted);
    assert_eq!(cleanups(&bench), Vec::new());
    bench.check_all_gone();
    bench.advance(25 * HOUR);
    let left = now(bench.engine.manifests(bench.org, i64::MAX, 100)).unwrap();
    assert!(left.iter().all(|manifest| manifest.status == ManifestStatus::Deleted), "{left:#?}");
}

#[test]
fn an_old_manifest_that_expires_under_a_new_job_leaves_the_job_alone() {
    let mut bench = Bench::new();
    let first = bench.submit(spec());
    bench.settle();
    bench.runners.plan = Some(Plan::Run);
    let second = bench.submit(spec());
    bench.settle();
    let id = bench.job(second).instance.unwrap();
    assert_eq!(bench.job(first).instance, Some(id), "the same machine");
    let (old, new) = (manifest_of(&bench, first).0.id, manifest_of(&bench, second).0.id);
    assert_eq!(machine(&bench, id).manifest, new, "it has moved with the claim");
    bench.advance(2 * HOUR);
    assert_eq!(bench.run(second).status, RunStatus::Running);
    let (manifest, _) = now(bench.engine.manifest(bench.org, old)).unwrap();
    assert_eq!(manifest.status, ManifestStatus::Deleted, "what it owned belongs to the other one");
    assert!(manifest_of(&bench, second).1.contains(&(ResourceKind::Instance, id.0)));
    bench.exits(second, 0);
    bench.expect_end(second, RunStatus::Completed, None);
    bench.check();
    bench.check_all_gone();
}

/// The rows of the manifest say that it owns the machine: the machine's own row and its job say otherwise, and win.
#[test]
fn a_cleanup_that_meets_a_job_on_its_machine_ends_nothing() {
    let mut bench = Bench::new();
    let run = forgotten(&mut bench, spec());
    let old = manifest_of(&bench, run).0.id;
    bench.runners.plan = Some(Plan::Run);
    let other = bench.submit(spec());
    bench.settle();
    let id = bench.job(other).instance.unwrap();
    for owner in [old, manifest_of(&bench, other).0.id] {
        written(&mut bench, move |tx| {
            store::manifest::own(tx, old, &[(ResourceKind::Instance, id.0)]).unwrap();
            let instance = store::instance::lock(tx, id).unwrap();
            store::instance::save(tx, &Instance { manifest: owner, ..instance }).unwrap();
        });
        bench.advance(2 * HOUR);
        assert_eq!(bench.run(other).status, RunStatus::Running, "{owner}");
        assert_eq!(machine(&bench, id).status, InstanceStatus::Ready);
    }
}

#[test]
fn a_hold_keeps_the_machine_that_it_needs() {
    let mut settings = settings(4);
    settings.capabilities.keeps_workdirs = false;
    let mut bench = Bench::with(settings, Config::default());
    let run = forgotten(&mut bench, RunSpec { hold_ms: Some(2 * HOUR), ..spec() });
    let id = bench.job(run).instance.unwrap();
    bench.advance(2 * HOUR - MINUTE);
    assert_eq!(machine(&bench, id).status, InstanceStatus::Ready);
    assert_eq!(manifest_of(&bench, run).0.status, ManifestStatus::Sealed);
    assert_eq!(cleanups(&bench), Vec::new(), "nothing to do");
    bench.advance(3 * MINUTE);
    assert_eq!(machine(&bench, id).status, InstanceStatus::Terminated);
    assert_eq!(manifest_of(&bench, run).0.status, ManifestStatus::Deleted);
    assert!(slot_of(&bench, run).workdir_released);
    bench.check();
}

#[test]
fn a_draft_whose_workflow_is_dead_is_sealed_and_cleaned_up() {
    let mut bench = Bench::new();
    let run = forgotten(&mut bench, spec());
    let (sealed, _) = manifest_of(&bench, run);
    let draft =
        Manifest { status: ManifestStatus::Draft, outcome: None, sealed_at: None, retain_until: None, ..sealed };
    written(&mut bench, move |tx| store::manifest::save(tx, &draft).unwrap());
    bench.advance(25 * HOUR);
    let (manifest, _) = manifest_of(&bench, run);
    assert_eq!((manifest.status, manifest.outcome), (ManifestStatus::Deleted, Some(WorkflowStatus::Completed)));
    bench.check_all_gone();
}

/// Another machine of the same manifest, at a provider that is not set up any more.
fn with_a_stranded_machine(bench: &mut Bench, manifest: ManifestId, like: Instance) -> InstanceId {
    with_a_machine_stranded_at(bench, manifest, like, ("elsewhere", 0))
}

fn with_a_machine_stranded_at(
    bench: &mut Bench,
    manifest: ManifestId,
    like: Instance,
    (provider, number): (&str, i64),
) -> InstanceId {
    let id = InstanceId(like.id.0 + 1_000_000 + number);
    let provider = provider.to_owned();
    written(bench, move |tx| {
        let (provider, name) = (provider.clone(), format!("{}x{number}", like.name));
        let stranded = Instance { id, provider, name, handle: None, version: 1, ..like.clone() };
        store::instance::insert(tx, &stranded).unwrap();
        store::manifest::own(tx, manifest, &[(ResourceKind::Instance, id.0)]).unwrap();
    });
    id
}

#[test]
fn a_provider_that_cannot_end_its_machine_does_not_keep_the_others() {
    let mut bench = Bench::new();
    let run = forgotten(&mut bench, spec());
    let id = bench.job(run).instance.unwrap();
    let (own, like) = (manifest_of(&bench, run).0.id, machine(&bench, id));
    let stranded = with_a_stranded_machine(&mut bench, own, like);
    bench.advance(31 * MINUTE);
    assert_eq!(machine(&bench, id).status, InstanceStatus::Terminated);
    assert_eq!(machine(&bench, stranded).status, InstanceStatus::Terminating);
    bench.advance(2 * HOUR);
    let [cleanup] = &cleanups(&bench)[..] else { panic!("one is enough") };
    assert_eq!(cleanup.status, WorkflowStatus::Completed, "{cleanup:#?}");
    let branch = cleanup.nodes.iter().find(|node| node.name == "clean-instance-elsewhere").unwrap();
    assert_eq!((branch.status, branch.isolated), (NodeStatus::Failed, true));
    let (manifest, owned) = manifest_of(&bench, run);
    assert_eq!((manifest.status, owned), (ManifestStatus::Sealed, vec![(ResourceKind::Instance, stranded.0)]));
}

/// A cleanup has sixteen branches. What does not fit into it is another's, whatever becomes of the first ones.
#[test]
fn a_manifest_of_more_providers_than_a_cleanup_has_branches_is_cleaned_up_by_several() {
    let mut bench = Bench::new();
    let run = forgotten(&mut bench, spec());
    let id = bench.job(run).instance.unwrap();
    let (own, like) = (manifest_of(&bench, run).0.id, machine(&bench, id));
    let stranded: Vec<InstanceId> = (0..20)
        .map(|number| {
            // By its name each comes before the provider that works.
            let provider = format!("elsewhere{number:02}");
            with_a_machine_stranded_at(&mut bench, own, like.clone(), (&provider, number))
        })
        .collect();
    bench.advance(6 * HOUR);
    assert_eq!(machine(&bench, id).status, InstanceStatus::Terminated);
    for id in &stranded {
        assert_eq!(machine(&bench, *id).status, InstanceStatus::Terminating, "each is asked to end");
    }
    let all = cleanups(&bench);
    assert_eq!(all.len(), 2, "{all:#?}");
    let (manifest, owned) = manifest_of(&bench, run);
    assert_eq!((manifest.status, owned.len()), (ManifestStatus::Sealed, stranded.len()));
}

/// The end of a machine takes long at one provider, and never comes at another. What has a lower priority waits for both, no longer than it
/// must, and is not kept by the one that fails.
#[test]
fn what_has_a_lower_priority_begins_when_the_higher_ones_have_ended() {
    let mut bench = Bench::new();
    let run = forgotten(&mut bench, spec());
    let id = bench.job(run).instance.unwrap();
    let (own, like) = (manifest_of(&bench, run).0.id, machine(&bench, id));
    with_a_stranded_machine(&mut bench, own, like);
    let snapshot = a_snapshot(&mut bench, own, run);
    bench.fate(|call, _, _| match call {
        Call::Terminate => Fate::FailBefore(TroubleKind::Network),
        _ => Fate::Obey,
    });
    let branches = |bench: &Bench| {
        let [cleanup] = &cleanups(bench)[..] else { panic!("one is enough") };
        let branch = |name: &&str| {
            let node = cleanup.nodes.iter().find(|node| node.name == format!("clean-{name}")).unwrap();
            (node.status, node.output.clone())
        };
        ["allocation", "instance-elsewhere", "instance-fake", "snapshot"].each_ref().map(branch)
    };
    let statuses = |bench: &Bench| branches(bench).map(|(status, _)| status);
    use NodeStatus::{Completed, Failed, Running};
    bench.advance(31 * MINUTE);
    assert_eq!(statuses(&bench), [Completed, Running, Running, Running], "both providers at once");
    bench.fate(|_, _, _| Fate::Obey);
    bench.advance(20 * MINUTE);
    assert_eq!(statuses(&bench), [Completed, Running, Completed, Running]);
    bench.advance(2 * HOUR);
    assert_eq!(statuses(&bench), [Completed, Failed, Completed, Completed], "the failure of one is its own");
    let last = branches(&bench)[3].1.clone().unwrap();
    let (ended, kept) = (last["ended"].as_i64(), last["kept"].as_i64());
    assert_eq!((ended, kept), (Some(0), Some(1)), "a person deletes snapshots");
    let left = manifest_of(&bench, run).1;
    assert!(left.contains(&(ResourceKind::Snapshot, snapshot.0)), "{left:?}");
}

/// A snapshot that is ready, of the folder of this run.
fn a_snapshot(bench: &mut Bench, manifest: ManifestId, run: RunId) -> SnapshotId {
    let (slot, org) = (slot_of(bench, run), bench.org);
    let id = SnapshotId(slot.id.0 + 2_000_000);
    written(bench, move |tx| {
        let at = tx.at();
        let snapshot = Snapshot {
            id,
            org,
            status: SnapshotStatus::Ready,
            run: Some(run),
            allocation: slot.id,
            instance: slot.instance,
            workdir: slot.workdir.clone(),
            workflow: WorkflowId(1),
            manifest,
            tree: None,
            asked: true,
            error: None,
            created_at: at,
            ready_at: Some(at),
            deleted_at: None,
        };
        store::snapshot::insert(tx, &snapshot).unwrap();
        store::manifest::own(tx, manifest, &[(ResourceKind::Snapshot, id.0)]).unwrap();
    });
    id
}

#[test]
fn a_machine_whose_end_takes_longer_than_its_cleanup_is_not_forgotten() {
    let mut bench = Bench::new();
    let run = forgotten(&mut bench, spec());
    let id = bench.job(run).instance.unwrap();
    bench.fate(|call, _, _| match call {
        Call::Terminate => Fate::FailBefore(TroubleKind::Network),
        _ => Fate::Obey,
    });
    bench.advance(31 * MINUTE + HOUR);
    assert_eq!(machine(&bench, id).status, InstanceStatus::Terminating);
    assert_eq!(manifest_of(&bench, run).0.status, ManifestStatus::Sealed);
    bench.fate(|_, _, _| Fate::Obey);
    bench.advance(HOUR + 2 * MINUTE);
    assert_eq!(machine(&bench, id).status, InstanceStatus::Terminated);
    assert_eq!(manifest_of(&bench, run).0.status, ManifestStatus::Deleted);
    bench.check_all_gone();
}

#[test]
fn a_manifest_is_deleted_once_whatever_wakes_its_item() {
    let mut bench = Bench::new();
    let run = forgotten(&mut bench, spec());
    bench.advance(31 * MINUTE);
    let (deleted, _) = manifest_of(&bench, run);
    let id = deleted.id;
    written(&mut bench, move |tx| {
        let at = tx.at();
        tx.wake(WorkKind::Manifest, id.0, at);
    });
    bench.advance(HOUR);
    assert_eq!(manifest_of(&bench, run).0, deleted);
    assert_eq!(cleanups(&bench).len(), 1);
}

/// What it has begun to end goes on to its end; the rest is left to the cleanup that begins at the manifest's next look.
#[test]
fn a_cleanup_that_is_cancelled_leaves_the_rest_to_the_next_one() {
    let mut bench = Bench::new();
    let run = forgotten(&mut bench, spec());
    let id = bench.job(run).instance.unwrap();
    bench.fate(|call, _, _| match call {
        Call::Terminate => Fate::FailBefore(TroubleKind::Network),
        _ => Fate::Obey,
    });
    bench.advance(31 * MINUTE);
    let cleanup = manifest_of(&bench, run).0.cleanup.expect("it is under way");
    let shown: WorkflowRender = Arc::new(|workflow| workflow.status.to_string().into_bytes());
    now(bench.engine.cancel_workflow(bench.org, cleanup, Some("not now".into()), None, shown)).unwrap();
    bench.settle();
    let ended = now(bench.engine.workflow(bench.org, cleanup)).unwrap();
    assert_eq!((ended.status, ended.error.as_deref()), (WorkflowStatus::Cancelled, Some("cancelled: not now")));
    assert!(ended.nodes.iter().all(|node| node.status.is_end()), "{ended:#?}");
    assert_eq!((machine(&bench, id).status, cleanups(&bench).len()), (InstanceStatus::Terminating, 1));
    bench.fate(|_, _, _| Fate::Obey);
    bench.advance(30 * MINUTE);
    let (manifest, _) = manifest_of(&bench, run);
    assert_eq!((machine(&bench, id).status, manifest.status), (InstanceStatus::Terminated, ManifestStatus::Sealed));
    bench.advance(HOUR);
    assert_eq!(manifest_of(&bench, run).0.status, ManifestStatus::Deleted);
    bench.check();
}
