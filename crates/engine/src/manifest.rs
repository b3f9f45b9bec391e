//! The work item of a manifest: seals it when its workflow is dead, and when its retention is over ends what no job or hold uses, by
//! cleanup-manifest. A manifest whose resources have all ended by themselves is deleted without a workflow. Never ends anything itself.

use crate::intents::cleanup_manifest;
use crate::{Engine, EngineContext};
use model::allocation::AllocationStatus;
use model::bug;
use model::instance::{Instance, InstanceStatus};
use model::manifest::{Manifest, ManifestEvent, ManifestStatus, ResourceKind};
use model::snapshot::SnapshotStatus;
use model::time::{HOUR, MINUTE};
use model::workflow::{Workflow, WorkflowStatus};
use model::{AllocationId, Failure, InstanceId, ManifestId, Outcome, Refused, SnapshotId, Timestamp, WorkflowId};
use store::{Item, Lane, Tx, WorkKind};

/// A workflow ends by its own deadlines. What is still a draft after this is looked at: its workflow may be gone.
const DRAFT_LOOK_MS: i64 = 24 * HOUR;
/// What is in use, or cannot be ended, is looked at again after this.
const LOOK_AGAIN_MS: i64 = HOUR;
/// A hold that ends now is released by the allocation's own item in the meantime.
const SOONEST_MS: i64 = MINUTE;

/// Whether a resource may be ended, by the rows alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standing {
    /// Nothing of it is left, or its own retention applies to it.
    Ended,
    /// Another workflow ends it already.
    Leaving,
    /// A job uses it, a person holds it until then, or it goes with its machine.
    Kept(Option<Timestamp>),
    /// No job or hold uses it.
    Free,
}

/// The manifest stands before any node has begun.
pub(crate) fn open_manifest(tx: &mut Tx, workflow: &Workflow) -> Result<(), Failure> {
    tx.wake(WorkKind::Manifest, workflow.manifest.0, workflow.created_at + DRAFT_LOOK_MS);
    store::manifest::insert(tx, &Manifest::draft(workflow))
}

/// The workflow has ended: what it made is kept for as long as its intent says.
pub(crate) fn seal(
    tx: &mut Tx,
    context: &EngineContext,
    id: ManifestId,
    outcome: WorkflowStatus,
) -> Result<(), Failure> {
    let manifest = store::manifest::find(tx, id)?.ok_or_else(|| Refused::not_found("manifest", id))?;
    let retain_ms = context.config.retention_ms(manifest.intent);
    changed(tx, &manifest, &ManifestEvent::WorkflowEnded { outcome, retain_ms }).map(drop)
}

fn changed(tx: &mut Tx, manifest: &Manifest, event: &ManifestEvent) -> Result<Manifest, Failure> {
    let at = tx.at();
    let Outcome::Moved { next, .. } = model::manifest::apply(manifest, event, at)? else {
        return Ok(manifest.clone());
    };
    store::manifest::save(tx, &next)?;
    if let Some(due) = next.retain_until.filter(|_| next.status == ManifestStatus::Sealed) {
        tx.wake(WorkKind::Manifest, next.id.0, due);
    }
    Ok(next)
}

/// A machine has ended: the cleanup and the snapshots that wait for it go on.
pub(crate) fn machine_gone(tx: &mut Tx, instance: &Instance) -> Result<(), Failure> {
    for (snapshot, _) in &instance.sends {
        if let Some(snapshot) = store::snapshot::find(tx, *snapshot)? {
            let at = tx.at();
            tx.wake(WorkKind::Workflow, snapshot.workflow.0, at);
        }
    }
    let Some(manifest) = store::manifest::find(tx, instance.manifest)? else { return Ok(()) };
    let at = tx.at();
    let is_due = manifest.status == ManifestStatus::Sealed && manifest.retain_until.is_some_and(|due| due <= at);
    match manifest.cleanup {
        Some(cleanup) => tx.wake(WorkKind::Workflow, cleanup.0, at),
        // Its retention was over while the machine was still there.
        None if is_due => tx.wake(WorkKind::Manifest, manifest.id.0, at),
        None => {}
    }
    Ok(())
}

/// Lets go of what has ended. Returns the rest; nothing is left: the manifest is deleted.
pub(crate) fn release_ended(
    tx: &mut Tx,
    context: &EngineContext,
    manifest: &Manifest,
) -> Result<Vec<Standing>, Failure> {
    let mut left = Vec::new();
    for (kind, id) in store::manifest::resources(tx, manifest.id)? {
        match standing(tx, context, manifest.id, (kind, id))? {
            Standing::Ended => store::manifest::release(tx, manifest.id, kind, id)?,
            standing => left.push(standing),
        }
    }
    if left.is_empty() {
        changed(tx, manifest, &ManifestEvent::Emptied)?;
    }
    Ok(left)
}

/// When what is left is worth another look.
pub(crate) fn next_look(left: &[Standing], at: Timestamp) -> Timestamp {
    let held = left.iter().filter_map(|standing| match standing {
        Standing::Kept(until) => *until,
        Standing::Free => Some(at),
        Standing::Ended | Standing::Leaving => None,
    });
    held.min().map_or(at + LOOK_AGAIN_MS, |until| until.max(at + SOONEST_MS).min(at + LOOK_AGAIN_MS))
}

pub(crate) fn standing(
    tx: &mut Tx,
    context: &EngineContext,
    manifest: ManifestId,
    (kind, id): (ResourceKind, i64),
) -> Result<Standing, Failure> {
    match kind {
        ResourceKind::Allocation => slot_standing(tx, AllocationId(id)),
        ResourceKind::Instance => {
            let Some(instance) = store::instance::find(tx, InstanceId(id))? else { return Ok(Standing::Ended) };
            machine_standing(tx, context, manifest, &instance)
        }
        // They end by a retention of their own.
        ResourceKind::Run | ResourceKind::Artifact | ResourceKind::Object | ResourceKind::Feature => {
            Ok(Standing::Ended)
        }
        ResourceKind::Snapshot => {
            Ok(match store::snapshot::find(tx, SnapshotId(id))?.map(|snapshot| snapshot.status) {
                Some(SnapshotStatus::Making | SnapshotStatus::Ready) => Standing::Kept(None), // a person deletes it
                Some(SnapshotStatus::Failed | SnapshotStatus::Deleted) | None => Standing::Ended,
            })
        }
    }
}

fn slot_standing(tx: &mut Tx, id: AllocationId) -> Result<Standing, Failure> {
    let Some(slot) = store::allocation::find(tx, id)? else { return Ok(Standing::Ended) };
    Ok(match slot.status {
        AllocationStatus::Failed => Standing::Ended,
        AllocationStatus::Complete if slot.workdir_released => Standing::Ended,
        AllocationStatus::Complete => Standing::Kept(slot.debug_hold_until),
        AllocationStatus::Available | AllocationStatus::Claimed | AllocationStatus::Active => Standing::Kept(None),
    })
}

/// A claim moves the machine to the manifest of the job that claims it, so a machine of another manifest is in use.
pub(crate) fn machine_standing(
    tx: &mut Tx,
    context: &EngineContext,
    manifest: ManifestId,
    instance: &Instance,
) -> Result<Standing, Failure> {
    Ok(match instance.status {
        InstanceStatus::Terminated => Standing::Ended,
        InstanceStatus::Terminating | InstanceStatus::Draining => Standing::Leaving,
        _ if bug!(cleanup_under_a_job) => Standing::Free,
        _ if instance.manifest != manifest => Standing::Kept(None),
        _ if store::job::on_instance(tx, instance.id)?.is_some() => Standing::Kept(None),
        _ => match crate::instance::held(tx, context, instance)? {
            Some((until, _)) => Standing::Kept(Some(until)),
            None => Standing::Free,
        },
    })
}

impl Engine {
    pub(crate) async fn reconcile_manifest(&self, item: Item) -> Result<(), Failure> {
        let context = self.context.clone();
        self.store
            .write(Lane::Low, "manifest.reconcile", move |tx| {
                store::work::hold(tx, &item)?;
                let next = reconcile(tx, &context, ManifestId(item.subject))?;
                store::work::finish(tx, &item, next);
                Ok(())
            })
            .await
    }
}

/// Returns when to look again; none: nothing more happens to it.
fn reconcile(tx: &mut Tx, context: &EngineContext, id: ManifestId) -> Result<Option<Timestamp>, Failure> {
    let at = tx.at();
    let Some(manifest) = store::manifest::find(tx, id)? else { return Ok(None) };
    match manifest.status {
        ManifestStatus::Deleted => return Ok(None),
        ManifestStatus::Draft => return look_at_draft(tx, context, &manifest),
        ManifestStatus::Sealed => {}
    }
    let Some(retain_until) = manifest.retain_until else {
        release_ended(tx, context, &manifest)?; // a person has deleted what it owned, and has woken it
        return Ok(None);
    };
    if retain_until > at {
        return Ok(Some(retain_until));
    }
    if is_open(tx, manifest.cleanup)? {
        return Ok(Some(at + LOOK_AGAIN_MS)); // its end wakes this item
    }
    let left = release_ended(tx, context, &manifest)?;
    if left.is_empty() {
        return Ok(None);
    }
    if left.contains(&Standing::Free) {
        cleanup_manifest::begin(tx, &manifest)?;
        return Ok(Some(at + LOOK_AGAIN_MS));
    }
    Ok(Some(next_look(&left, at)))
}

/// A draft whose workflow is gone or has ended is sealed as that workflow's end would have sealed it (R128).
fn look_at_draft(tx: &mut Tx, context: &EngineContext, manifest: &Manifest) -> Result<Option<Timestamp>, Failure> {
    let at = tx.at();
    let workflow = store::workflow::find(tx, manifest.workflow)?;
    let outcome = workflow.as_ref().map_or(WorkflowStatus::Failed, |workflow| workflow.status);
    if outcome.is_end() {
        tracing::warn!(manifest = %manifest.id, workflow = %manifest.workflow, "its workflow is dead: it is sealed");
        seal(tx, context, manifest.id, outcome)?;
        return Ok(None); // the seal wakes it
    }
    // A workflow follows the job that it works for. One that was left behind is looked at by its own item.
    tx.wake(WorkKind::Workflow, manifest.workflow.0, at);
    Ok(Some(at + DRAFT_LOOK_MS))
}

pub(crate) fn is_open(tx: &mut Tx, workflow: Option<WorkflowId>) -> Result<bool, Failure> {
    let Some(id) = workflow else { return Ok(false) };
    Ok(store::workflow::find(tx, id)?.is_some_and(|workflow| !workflow.status.is_end()))
}
