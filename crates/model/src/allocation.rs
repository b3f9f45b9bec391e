//! The state machine of an allocation: the binding of a job to an instance. Allocations that are `AVAILABLE` are the warm pool.

use crate::hold::{Hold, HoldAccount};
use crate::{
    AllocationId, InstanceId, JobId, ManifestId, OrgId, Outcome, Refused, Timestamp, moved, string_enum, unchanged,
};
use serde::{Deserialize, Serialize};

string_enum! {
    /// Spelled as the execution document spells them.
    pub enum AllocationStatus { Available = "AVAILABLE", Claimed = "CLAIMED", Active = "ACTIVE", Complete = "COMPLETE", Failed = "FAILED" }
}

impl AllocationStatus {
    pub fn is_live(self) -> bool {
        matches!(self, AllocationStatus::Claimed | AllocationStatus::Active)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Allocation {
    pub id: AllocationId,
    pub org: OrgId,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub manifest: Option<ManifestId>,
    pub instance: InstanceId,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<JobId>,
    pub status: AllocationStatus,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub debug_hold_until: Option<Timestamp>,
    /// Extensions so far, for the keys of their reservations.
    pub extensions: i64,
    /// What those extensions set aside.
    #[serde(default)]
    pub account: HoldAccount,
    pub user: String,
    pub workdir: String,
    /// Set once the workdir has been given up; it may be deleted from then on.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub workdir_released: bool,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completed_at: Option<Timestamp>,
    pub version: i64,
}

impl Allocation {
    /// The first slot of a machine.
    pub fn free(id: AllocationId, org: OrgId, instance: InstanceId, user: String, at: Timestamp) -> Allocation {
        Allocation {
            id,
            org,
            manifest: None,
            instance,
            job: None,
            status: AllocationStatus::Available,
            debug_hold_until: None,
            extensions: 0,
            account: HoldAccount::default(),
            user,
            workdir: "work_1".into(),
            workdir_released: false,
            created_at: at,
            updated_at: at,
            completed_at: None,
            version: 1,
        }
    }

    /// The hold of a finished allocation, while it lasts.
    pub fn hold(&self) -> Option<Hold> {
        let (until, completed) = (self.debug_hold_until?, self.completed_at?);
        let ended = matches!(self.status, AllocationStatus::Complete | AllocationStatus::Failed);
        (ended && !self.workdir_released).then_some(Hold { until, completed_at: completed })
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AllocationEvent {
    Claimed {
        job: JobId,
    },
    /// Compensation: the claim is undone; the next user gets a clean folder.
    RolledBack {
        workdir: String,
    },
    SyncComplete,
    RunFinished {
        hold_until: Timestamp,
    },
    /// Sync failure, dead keeper, lost machine, spot interruption: never an exit code. `replenish`: the machine itself is well, and a
    /// new slot is opened on it (R135, R136). `hold_until`: its folder is held all the same (`hold_on_failure`).
    LifecycleFailed {
        replenish: bool,
        hold_until: Option<Timestamp>,
    },
    HoldExtended {
        until: Timestamp,
    },
    HoldEnded,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AllocationConsequence {
    /// Open a new slot on the same instance if it is healthy.
    Replenish,
    TellRunner,
    WakePool,
    WakeAt {
        at: Timestamp,
    },
}

use AllocationConsequence as C;
use AllocationEvent as E;
use AllocationStatus as S;

pub fn apply(slot: &Allocation, event: &AllocationEvent, at: Timestamp) -> Result<Outcome<Allocation, C>, Refused> {
    let mut next = slot.clone();
    next.updated_at = at;
    match (slot.status, event) {
        (S::Available, E::Claimed { job }) => {
            next.status = S::Claimed;
            next.job = Some(*job);
            moved(next, [C::TellRunner])
        }
        (S::Claimed | S::Active, E::Claimed { job }) if slot.job == Some(*job) => unchanged(),
        (S::Claimed, E::RolledBack { workdir }) => {
            next.status = S::Available;
            next.job = None;
            next.workdir = workdir.clone();
            moved(next, [C::TellRunner, C::WakePool])
        }
        (S::Available, E::RolledBack { .. }) => unchanged(),
        (S::Claimed, E::SyncComplete) => {
            next.status = S::Active;
            moved(next, [])
        }
        (S::Active | S::Complete, E::SyncComplete) => unchanged(),
        (S::Active, E::RunFinished { hold_until }) => {
            next.status = S::Complete;
            next.completed_at = Some(at);
            next.debug_hold_until = Some(*hold_until);
            moved(next, [C::WakeAt { at: *hold_until }, C::TellRunner, C::Replenish])
        }
        (S::Available | S::Claimed | S::Active, E::LifecycleFailed { replenish, hold_until }) => {
            next.status = S::Failed;
            next.completed_at = Some(at);
            next.debug_hold_until = *hold_until;
            next.workdir_released = hold_until.is_none();
            let then = if *replenish { C::Replenish } else { C::WakePool };
            let mut consequences = vec![C::TellRunner, then];
            consequences.extend(hold_until.map(|at| C::WakeAt { at }));
            moved(next, consequences)
        }
        (S::Complete | S::Failed, E::HoldExtended { until }) if slot.hold().is_some() => {
            // A hold is never shortened.
            if slot.debug_hold_until.is_some_and(|held| held >= *until) {
                return unchanged();
            }
            next.debug_hold_until = Some(*until);
            moved(next, [C::WakeAt { at: *until }])
        }
        (S::Complete, E::HoldEnded) if slot.workdir_released => unchanged(),
        (S::Failed, E::HoldEnded) if slot.hold().is_none() => unchanged(),
        (S::Complete | S::Failed, E::HoldEnded) => {
            next.workdir_released = true;
            next.debug_hold_until = Some(slot.debug_hold_until.map_or(at, |held| held.min(at)));
            moved(next, [C::TellRunner, C::WakePool])
        }
        (S::Complete, E::RunFinished { .. }) | (S::Failed, E::LifecycleFailed { .. }) => unchanged(),
        // First write wins: a failure that comes after the completion changes nothing, and the other way round.
        (S::Complete, E::LifecycleFailed { .. }) | (S::Failed, E::RunFinished { .. } | E::SyncComplete) => unchanged(),
        (state, event) => Err(Refused::not_from("allocation", state, name(event), &[])),
    }
}

pub fn deadline(slot: &Allocation) -> Option<Timestamp> {
    slot.hold().map(|hold| hold.until)
}

pub fn name(event: &AllocationEvent) -> &'static str {
    match event {
        E::Claimed { .. } => "claimed",
        E::RolledBack { .. } => "rolled_back",
        E::SyncComplete => "sync_complete",
        E::RunFinished { .. } => "run_finished",
        E::LifecycleFailed { .. } => "lifecycle_failed",
        E::HoldExtended { .. } => "hold_extended",
        E::HoldEnded => "hold_ended",
    }
}

#[test]
fn a_failed_slot_that_is_held_is_extended_and_released_like_a_finished_one() {
    let at = Timestamp(1_000);
    let free = Allocation::free(AllocationId(1), OrgId(1), InstanceId(1), "me".into(), at);
    let used = Allocation { status: S::Active, job: Some(JobId(1)), ..free };
    let step = |slot: &Allocation, event: &E| match apply(slot, event, at) {
        Ok(Outcome::Moved { next, consequences }) => (next, consequences),
        other => panic!("{event:?}: {other:?}"),
    };
    let (failed, then) = step(&used, &E::LifecycleFailed { replenish: true, hold_until: Some(at + 50) });
    assert_eq!((failed.status, failed.hold().map(|hold| hold.until)), (S::Failed, Some(at + 50)));
    assert_eq!(then, [C::TellRunner, C::Replenish, C::WakeAt { at: at + 50 }]);
    let (longer, _) = step(&failed, &E::HoldExtended { until: at + 90 });
    assert_eq!(longer.debug_hold_until, Some(at + 90));
    let (released, _) = step(&longer, &E::HoldEnded);
    assert!(released.workdir_released && released.hold().is_none());
    assert!(matches!(apply(&released, &E::HoldEnded, at), Ok(Outcome::Unchanged)));
    let (without, _) = step(&used, &E::LifecycleFailed { replenish: true, hold_until: None });
    assert!(without.workdir_released && without.hold().is_none());
}
