//! Snapshots of workdirs: made by create-snapshot, listed, deleted by a person, and looked up by runs that start from one.

use crate::Engine;
use crate::intents::create_snapshot::{self, Source};
use crate::run::KeyedResponse;
use model::allocation::{Allocation, AllocationStatus};
use model::instance::{Instance, InstanceStatus};
use model::snapshot::{Snapshot, SnapshotEvent, SnapshotStatus};
use model::tree::TreeRef;
use model::{AllocationId, Failure, InstanceId, OrgId, Outcome, Refused, SnapshotId};
use std::sync::Arc;
use store::idempotency::Key;
use store::{Lane, Tx, WorkKind};

/// Turns a snapshot into the bytes that are answered.
pub type SnapshotRender = Arc<dyn Fn(&Snapshot) -> Vec<u8> + Send + Sync>;

impl Engine {
    /// A person wants the folder of an allocation as it is now.
    pub async fn create_snapshot(
        &self,
        org: OrgId,
        id: AllocationId,
        key: Option<Key>,
        render: SnapshotRender,
    ) -> Result<KeyedResponse, Failure> {
        self.keyed(Lane::Normal, "snapshot.create", key, 201, move |tx| {
            let slot = store::allocation::find(tx, id)?.filter(|slot| slot.org == org);
            let slot = slot.ok_or_else(|| Refused::not_found("allocation", id))?;
            let instance = store::instance::find(tx, slot.instance)?;
            can_be_read(&slot, instance.as_ref())?;
            let run = match slot.job {
                Some(job) => store::job::find(tx, job)?.map(|job| job.run),
                None => None,
            };
            let source =
                Source { org, run, allocation: id, instance: slot.instance, workdir: slot.workdir, tree: None };
            Ok(render(&create_snapshot::begin(tx, source)?))
        })
        .await
    }

    pub async fn workdir_snapshots(&self, org: OrgId, before: i64, limit: i64) -> Result<Vec<Snapshot>, Failure> {
        self.store.read("snapshot.page", move |tx| store::snapshot::page(tx, org, before, limit)).await
    }

    pub async fn workdir_snapshot(&self, org: OrgId, id: SnapshotId) -> Result<Snapshot, Failure> {
        self.store.read_inline("snapshot.find", move |tx| owned(tx, org, id)).await
    }

    /// What a run that starts from it finds in its workdir.
    pub async fn snapshot_tree(&self, org: OrgId, id: SnapshotId) -> Result<TreeRef, Failure> {
        let snapshot = self.workdir_snapshot(org, id).await?;
        match (snapshot.status, snapshot.tree) {
            (SnapshotStatus::Ready, Some(tree)) => Ok(tree),
            (SnapshotStatus::Making, _) => {
                let why = format!("{id} is still being made: repl snapshot show {id}");
                Err(Refused::Conflict { why }.into())
            }
            (status, _) => Err(Refused::Gone { what: "snapshot", why: format!("it is {status}") }.into()),
        }
    }

    /// Deleted twice is deleted. Runs that have started from it keep their files.
    pub async fn delete_snapshot(&self, org: OrgId, id: SnapshotId) -> Result<(), Failure> {
        self.store
            .write(Lane::Normal, "snapshot.delete", move |tx| {
                let snapshot = owned(tx, org, id)?;
                let deleted = changed(tx, &snapshot, &SnapshotEvent::Deleted)?;
                let at = tx.at();
                tx.wake(WorkKind::Manifest, deleted.manifest.0, at);
                tx.wake(WorkKind::Workflow, deleted.workflow.0, at);
                Ok(())
            })
            .await
    }

    /// A runner has sent the folder that it was asked for, or could not.
    pub async fn snapshot_taken(
        &self,
        instance: InstanceId,
        id: SnapshotId,
        taken: Result<TreeRef, String>,
    ) -> Result<(), Failure> {
        self.store
            .write(Lane::Normal, "snapshot.taken", move |tx| {
                let found = store::snapshot::find(tx, id)?.filter(|snapshot| snapshot.instance == instance);
                let snapshot = found.ok_or_else(|| Refused::not_found("snapshot", id))?;
                if snapshot.status != SnapshotStatus::Making {
                    return Ok(()); // said twice, or deleted meanwhile
                }
                let event = match taken.clone() {
                    Ok(tree) => match store::content::pin(tx, snapshot.org, &tree.hash) {
                        Ok(()) => SnapshotEvent::Taken { tree },
                        Err(Failure::Refused(refused)) => SnapshotEvent::Failed { why: refused.to_string() },
                        Err(trouble) => return Err(trouble),
                    },
                    Err(why) => SnapshotEvent::Failed { why },
                };
                changed(tx, &snapshot, &event)?;
                let at = tx.at();
                tx.wake(WorkKind::Workflow, snapshot.workflow.0, at);
                Ok(())
            })
            .await
    }
}

/// The folder is there, and a runner to send it.
pub(crate) fn can_be_read(slot: &Allocation, instance: Option<&Instance>) -> Result<(), Refused> {
    let kept = match slot.status {
        AllocationStatus::Active => true,
        AllocationStatus::Complete => !slot.workdir_released,
        AllocationStatus::Available | AllocationStatus::Claimed | AllocationStatus::Failed => false,
    };
    let id = slot.id;
    let why = match instance {
        _ if !kept => {
            format!("{id} is {} and has no folder to keep: take a snapshot while its run works or is held", slot.status)
        }
        Some(instance) if instance.status == InstanceStatus::Ready => return Ok(()),
        Some(instance) => {
            format!(
                "{}, the machine of {id}, is {}: only one that is ready can send a folder",
                instance.id, instance.status
            )
        }
        None => format!("the machine of {id} is gone"),
    };
    Err(Refused::Conflict { why })
}

/// One event of a snapshot, with what follows: its machine is told, and a tree that is not needed any more is let go.
pub(crate) fn changed(tx: &mut Tx, snapshot: &Snapshot, event: &SnapshotEvent) -> Result<Snapshot, Failure> {
    let at = tx.at();
    let Outcome::Moved { next, .. } = model::snapshot::apply(snapshot, event, at)? else { return Ok(snapshot.clone()) };
    store::snapshot::save(tx, &next)?;
    if next.asked != snapshot.asked {
        let mut instance = store::instance::lock(tx, next.instance)?;
        instance.sends.retain(|(id, _)| *id != next.id);
        if next.asked {
            instance.sends.push((next.id, next.workdir.clone()));
        }
        instance.desired_version += 1;
        store::instance::save(tx, &instance)?;
        tx.hint(store::Hint::Instance(instance.id));
    }
    let ends = matches!(next.status, SnapshotStatus::Failed | SnapshotStatus::Deleted);
    if let Some(tree) = next.tree.as_ref().filter(|_| ends) {
        store::content::unpin(tx, next.org, &tree.hash)?;
    }
    Ok(next)
}

fn owned(tx: &mut Tx, org: OrgId, id: SnapshotId) -> Result<Snapshot, Failure> {
    let found = store::snapshot::find(tx, id)?.filter(|snapshot| snapshot.org == org);
    found.ok_or_else(|| Refused::not_found("snapshot", id).into())
}
