//! The state machine of a manifest: the owner of every resource that a workflow makes. Sealed with its outcome, also after a failure (R128).

use crate::time::{HOUR, MINUTE};
use crate::workflow::{Intent, Workflow, WorkflowStatus};
use crate::{ManifestId, OrgId, Outcome, Refused, Timestamp, WorkflowId, moved, string_enum, unchanged};
use serde::{Deserialize, Serialize};

string_enum! {
    pub enum ManifestStatus { Draft = "DRAFT", Sealed = "SEALED", Deleted = "DELETED" }
}
string_enum! {
    pub enum ResourceKind {
        Allocation = "allocation", Run = "run", Artifact = "artifact", Feature = "feature", Object = "object", Instance = "instance", Snapshot = "snapshot",
    }
}

impl ResourceKind {
    /// What is cleaned up first has the larger number.
    pub fn priority(self) -> i64 {
        match self {
            ResourceKind::Allocation => 90,
            ResourceKind::Run => 80,
            ResourceKind::Artifact => 70,
            ResourceKind::Feature => 65,
            ResourceKind::Object => 60,
            ResourceKind::Instance => 50,
            ResourceKind::Snapshot => 10,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    pub id: ManifestId,
    pub org: OrgId,
    pub workflow: WorkflowId,
    pub intent: Intent,
    pub status: ManifestStatus,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<WorkflowStatus>,
    pub created_at: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sealed_at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retain_until: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deleted_at: Option<Timestamp>,
}

impl Manifest {
    /// A manifest that owns nothing yet, of a workflow that has not begun.
    pub fn draft(workflow: &Workflow) -> Manifest {
        Manifest {
            id: workflow.manifest,
            org: workflow.org,
            workflow: workflow.id,
            intent: workflow.intent,
            status: ManifestStatus::Draft,
            outcome: None,
            created_at: workflow.created_at,
            sealed_at: None,
            retain_until: None,
            deleted_at: None,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ManifestEvent {
    WorkflowEnded {
        outcome: WorkflowStatus,
    },
    /// Everything it owned has gone or belongs to others now.
    Emptied,
}

/// How long what a workflow made is kept for others to claim; none: for ever.
pub fn retention_ms(intent: Intent) -> Option<i64> {
    match intent {
        Intent::LaunchRun => Some(30 * MINUTE),
        Intent::TerminateInstance => Some(5 * MINUTE),
        Intent::CreateSnapshot => None,
        Intent::CleanupManifest => Some(24 * HOUR),
    }
}

use ManifestEvent as E;
use ManifestStatus as S;

pub fn apply(manifest: &Manifest, event: &ManifestEvent, at: Timestamp) -> Result<Outcome<Manifest, ()>, Refused> {
    let mut next = manifest.clone();
    match (manifest.status, event) {
        (S::Draft, E::WorkflowEnded { outcome }) => {
            next.status = S::Sealed;
            next.outcome = Some(*outcome);
            next.sealed_at = Some(at);
            next.retain_until = retention_ms(manifest.intent).map(|ms| at + ms);
            moved(next, [])
        }
        (S::Sealed, E::WorkflowEnded { outcome }) if manifest.outcome == Some(*outcome) => unchanged(),
        (S::Sealed, E::Emptied) => {
            next.status = S::Deleted;
            next.deleted_at = Some(at);
            moved(next, [])
        }
        (S::Deleted, E::Emptied | E::WorkflowEnded { .. }) => unchanged(),
        (state, event) => Err(Refused::not_from("manifest", state, format!("{event:?}"), &[])),
    }
}
