//! The state machine of a manifest: the owner of every resource that a workflow makes. Sealed with its outcome, also after a failure (R128).

use crate::time::{HOUR, MINUTE, SECOND};
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
    /// The workflow that cleans it up, or did last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cleanup: Option<WorkflowId>,
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
            cleanup: None,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ManifestEvent {
    WorkflowEnded {
        outcome: WorkflowStatus,
        /// How long what it owns is kept for others to claim; none: until a person deletes it.
        retain_ms: Option<i64>,
    },
    /// Everything it owned has gone or belongs to others now.
    Emptied,
}

/// `[manifests]` in the settings: how long what a workflow made is kept after its end. Then cleanup-manifest ends what no job uses and no hold keeps.
/// What create-snapshot made is kept until a person deletes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Retention {
    pub launch_run_ms: i64,
    pub terminate_instance_ms: i64,
    /// Of every other intent.
    pub other_ms: i64,
}

impl Default for Retention {
    fn default() -> Retention {
        Retention { launch_run_ms: 30 * MINUTE, terminate_instance_ms: 5 * MINUTE, other_ms: 24 * HOUR }
    }
}

impl Retention {
    pub fn of(&self, intent: Intent) -> Option<i64> {
        match intent {
            Intent::LaunchRun => Some(self.launch_run_ms),
            Intent::TerminateInstance => Some(self.terminate_instance_ms),
            Intent::CreateSnapshot => None,
            Intent::CleanupManifest => Some(self.other_ms),
        }
    }

    pub fn check(&self) -> Result<(), Refused> {
        let Retention { launch_run_ms, terminate_instance_ms, other_ms } = *self;
        let all = [
            ("launch_run_ms", launch_run_ms),
            ("terminate_instance_ms", terminate_instance_ms),
            ("other_ms", other_ms),
        ];
        match all.into_iter().find(|(_, ms)| *ms < SECOND) {
            Some((name, _)) => Err(Refused::invalid(format!("manifests.{name}"), format!("must be at least {SECOND}"))),
            None => Ok(()),
        }
    }
}

use ManifestEvent as E;
use ManifestStatus as S;

pub fn apply(manifest: &Manifest, event: &ManifestEvent, at: Timestamp) -> Result<Outcome<Manifest, ()>, Refused> {
    let mut next = manifest.clone();
    match (manifest.status, event) {
        (S::Draft, E::WorkflowEnded { outcome, retain_ms }) => {
            next.status = S::Sealed;
            next.outcome = Some(*outcome);
            next.sealed_at = Some(at);
            next.retain_until = retain_ms.map(|ms| at + ms);
            moved(next, [])
        }
        (S::Sealed, E::WorkflowEnded { outcome, .. }) if manifest.outcome == Some(*outcome) => unchanged(),
        (S::Sealed, E::Emptied) => {
            next.status = S::Deleted;
            next.deleted_at = Some(at);
            moved(next, [])
        }
        (S::Deleted, E::Emptied | E::WorkflowEnded { .. }) => unchanged(),
        (state, event) => Err(Refused::not_from("manifest", state, format!("{event:?}"), &[])),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_cleaned_up_in_the_order_of_their_priorities() {
        let mut all: Vec<(i64, &str)> = ResourceKind::ALL.iter().map(|kind| (kind.priority(), kind.as_str())).collect();
        all.sort_by_key(|(priority, _)| std::cmp::Reverse(*priority));
        let expected = [
            (90, "allocation"),
            (80, "run"),
            (70, "artifact"),
            (65, "feature"),
            (60, "object"),
            (50, "instance"),
            (10, "snapshot"),
        ];
        assert_eq!(all, expected);
    }

    #[test]
    fn what_a_workflow_made_is_kept_as_long_as_its_intent_says() {
        let kept = Retention::default();
        let table = [
            (Intent::LaunchRun, Some(30 * MINUTE)),
            (Intent::TerminateInstance, Some(5 * MINUTE)),
            (Intent::CreateSnapshot, None),
            (Intent::CleanupManifest, Some(24 * HOUR)),
        ];
        assert_eq!(table.map(|(intent, _)| (intent, kept.of(intent))), table);
    }

    #[test]
    fn a_retention_of_nothing_is_refused_by_name() {
        Retention::default().check().unwrap();
        let none = Retention { terminate_instance_ms: 0, ..Retention::default() };
        let refused = none.check().unwrap_err().to_string();
        assert!(refused.starts_with("manifests.terminate_instance_ms: must be at least 1000"), "{refused}");
    }
}
