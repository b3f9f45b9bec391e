//! The state machine of a snapshot: a workdir kept as a tree in the blob store, from which later runs start. Only a person deletes one.

use crate::tree::TreeRef;
use crate::{
    AllocationId, InstanceId, ManifestId, OrgId, Outcome, Refused, RunId, SnapshotId, Timestamp, WorkflowId, moved,
    string_enum, unchanged,
};
use serde::{Deserialize, Serialize};

string_enum! {
    pub enum SnapshotStatus { Making = "making", Ready = "ready", Failed = "failed", Deleted = "deleted" }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    pub id: SnapshotId,
    pub org: OrgId,
    pub status: SnapshotStatus,
    /// The run whose folder it is of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<RunId>,
    pub allocation: AllocationId,
    pub instance: InstanceId,
    /// Name of the folder on that machine.
    pub workdir: String,
    pub workflow: WorkflowId,
    pub manifest: ManifestId,
    /// All of it is here, from then on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tree: Option<TreeRef>,
    /// Its runner is to send the folder.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub asked: bool,
    /// Why it could not be made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    pub created_at: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deleted_at: Option<Timestamp>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SnapshotEvent {
    /// Its machine may be asked for the folder.
    Prepared,
    /// The runner has sent the whole folder.
    Taken {
        tree: TreeRef,
    },
    /// Runs may start from it.
    Registered,
    Failed {
        why: String,
    },
    Deleted,
}

use SnapshotEvent as E;
use SnapshotStatus as S;

pub fn apply(snapshot: &Snapshot, event: &SnapshotEvent, at: Timestamp) -> Result<Outcome<Snapshot, ()>, Refused> {
    let mut next = snapshot.clone();
    match (snapshot.status, event) {
        (S::Making, E::Prepared) if snapshot.asked || snapshot.tree.is_some() => return unchanged(),
        (S::Making, E::Prepared) => next.asked = true,
        (S::Making, E::Taken { .. }) if snapshot.tree.is_some() => return unchanged(),
        (S::Making, E::Taken { tree }) => (next.tree, next.asked) = (Some(tree.clone()), false),
        (S::Making, E::Registered) if snapshot.tree.is_some() => {
            (next.status, next.ready_at) = (S::Ready, Some(at));
        }
        (S::Making, E::Failed { why }) => {
            (next.status, next.asked, next.error) = (S::Failed, false, Some(why.clone()));
        }
        // What a person has deleted while it was made is not made any more.
        (S::Making | S::Ready | S::Failed, E::Deleted) => {
            (next.status, next.asked, next.deleted_at) = (S::Deleted, false, Some(at));
        }
        (S::Ready, E::Registered | E::Taken { .. } | E::Prepared)
        | (S::Failed, E::Failed { .. } | E::Taken { .. })
        | (S::Deleted, _) => return unchanged(),
        (state, event) => return Err(Refused::not_from("snapshot", state, format!("{event:?}"), &[])),
    }
    moved(next, [])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn making() -> Snapshot {
        Snapshot {
            id: SnapshotId(1),
            org: OrgId(1),
            status: S::Making,
            run: None,
            allocation: AllocationId(1),
            instance: InstanceId(1),
            workdir: "work_1".into(),
            workflow: WorkflowId(1),
            manifest: ManifestId(1),
            tree: None,
            asked: false,
            error: None,
            created_at: Timestamp(0),
            ready_at: None,
            deleted_at: None,
        }
    }

    fn after(events: &[SnapshotEvent]) -> Result<Snapshot, Refused> {
        events.iter().try_fold(making(), |snapshot, event| {
            Ok(match apply(&snapshot, event, Timestamp(5))? {
                Outcome::Moved { next, .. } => next,
                _ => snapshot,
            })
        })
    }

    #[test]
    fn a_snapshot_is_ready_once_all_of_it_is_here_and_never_again_after_its_deletion() {
        let tree = || TreeRef { hash: "0".repeat(64), files: 1, bytes: 1 };
        let (taken, failed) = (E::Taken { tree: tree() }, E::Failed { why: "no".into() });
        let table: &[(&[SnapshotEvent], Option<SnapshotStatus>)] = &[
            (&[E::Prepared, taken.clone(), E::Registered], Some(S::Ready)),
            (&[taken.clone(), E::Prepared, E::Registered, E::Registered], Some(S::Ready)),
            (&[E::Registered], None),
            (&[E::Prepared, failed.clone(), taken.clone()], Some(S::Failed)),
            (&[taken.clone(), E::Registered, failed.clone()], None),
            (&[E::Deleted, taken.clone(), E::Registered, failed.clone()], Some(S::Deleted)),
            (&[failed, E::Deleted, E::Deleted], Some(S::Deleted)),
        ];
        for (events, end) in table {
            assert_eq!(after(events).ok().map(|snapshot| snapshot.status), *end, "{events:?}");
        }
    }
}
