//! The state machine of an Orchestrator (seed 003 §1.2), and the claims by which several of them agree on one execution (§1.3).
//! A claim is changed only by compare-and-swap on its own record; a takeover raises its fence.

use crate::time::SECOND;
use crate::{Outcome, Refused, Timestamp, moved, string_enum, unchanged};
use serde::{Deserialize, Serialize};

string_enum! {
    pub enum OrchestratorStatus {
        LookupClaim = "lookup_claim", ClaimedOwner = "claimed_owner", FollowExisting = "follow_existing",
        JobPending = "job_pending", DoneOk = "done_ok", DoneError = "done_error",
    }
}

/// At least three polls fit into a lease, so that one lost poll does not cost the claim.
pub const LEASE_MS: i64 = 30 * SECOND;

/// Which Orchestrator works on an execution key. Kept at `refs/exec-claims/<key>` or in a row; the lease is measured by the store's clock.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Claim {
    pub key: String,
    pub attempt: i64,
    pub owner: String,
    /// Drawn for each try to claim: an owner recognises its own claim after an answer was lost.
    pub nonce: String,
    /// Raised by each takeover. Writes with an older fence are refused.
    pub fence: i64,
    /// Raised by each change: what compare-and-swap compares.
    pub version: i64,
    pub lease_until: Timestamp,
    /// The backend's job, once it was submitted.
    pub job: Option<String>,
}

impl Claim {
    pub fn is_stale(&self, now: Timestamp) -> bool {
        now >= self.lease_until
    }
    /// The backend job's name: the same for every owner, so that submitting twice makes one job (R114).
    pub fn job_name(&self) -> String {
        format!("{}-{}", self.key, self.attempt)
    }
}

/// A change of a claim that succeeds only while the claim is the one that the writer saw.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimSwap {
    /// The version that the writer saw; none if there was no claim.
    pub expect: Option<i64>,
    pub to: Claim,
}

impl ClaimSwap {
    /// The claim afterwards, or the one that is there instead.
    pub fn apply(&self, stored: Option<&Claim>) -> Result<Claim, Option<Claim>> {
        if stored.map(|claim| claim.version) == self.expect { Ok(self.to.clone()) } else { Err(stored.cloned()) }
    }
}

/// One Orchestrator at work on one execution key.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Orchestrator {
    pub key: String,
    pub attempt: i64,
    pub me: String,
    pub nonce: String,
    pub status: OrchestratorStatus,
    /// The claim as it was last seen.
    pub claim: Option<Claim>,
    /// The result dag of a finished job.
    pub result: Option<String>,
}

impl Orchestrator {
    pub fn new(key: &str, attempt: i64, me: &str, nonce: &str) -> Orchestrator {
        let (key, me, nonce) = (key.to_owned(), me.to_owned(), nonce.to_owned());
        Orchestrator { key, attempt, me, nonce, status: S::LookupClaim, claim: None, result: None }
    }

    pub fn owns(&self, claim: &Claim) -> bool {
        claim.owner == self.me && claim.nonce == self.nonce
    }

    /// The change of the claim that its state asks for now: create, take over, or refresh the lease. None: nothing to write.
    pub fn swap(&self, now: Timestamp) -> Option<ClaimSwap> {
        let lease_until = now + LEASE_MS;
        match (self.status, &self.claim) {
            (S::LookupClaim, None) => {
                let to = Claim {
                    key: self.key.clone(),
                    attempt: self.attempt,
                    owner: self.me.clone(),
                    nonce: self.nonce.clone(),
                    fence: 1,
                    version: 1,
                    lease_until,
                    job: None,
                };
                Some(ClaimSwap { expect: None, to })
            }
            // Key, attempt and job stay: the new owner finds the job that was submitted.
            (S::FollowExisting, Some(claim)) if claim.is_stale(now) => {
                let (owner, nonce) = (self.me.clone(), self.nonce.clone());
                let to = Claim {
                    owner,
                    nonce,
                    fence: claim.fence + 1,
                    version: claim.version + 1,
                    lease_until,
                    ..claim.clone()
                };
                Some(ClaimSwap { expect: Some(claim.version), to })
            }
            (S::ClaimedOwner | S::JobPending, Some(claim)) if self.owns(claim) => {
                let to =
                    Claim { version: claim.version + 1, lease_until, job: Some(claim.job_name()), ..claim.clone() };
                Some(ClaimSwap { expect: Some(claim.version), to })
            }
            _ => None,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OrchestratorEvent {
    /// There was no claim, and this one was created.
    ClaimCreated(Claim),
    /// There is a claim.
    ClaimFound(Claim),
    /// The lease of the claim that is followed is not over.
    LeaseActive,
    /// The lease was over, and compare-and-swap put this claim in its place.
    TakenOver(Claim),
    /// The job is submitted, and the claim names it.
    Submitted(Claim),
    /// The backend says queued or running; the owner has refreshed its lease.
    JobRunning(Claim),
    /// Result objects and refs are published.
    JobSucceeded { result: String },
    /// The failure's dag and refs are published.
    JobFailed { result: String },
    /// The backend does not know the job any more; a failure's dag was made and published (R116).
    JobVanished { result: String },
    /// A compare-and-swap failed: this claim is there.
    SwapLost(Claim),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OrchestratorConsequence {
    /// Submit the job by its name. Repeated after a crash, it finds the same job.
    Submit {
        job: String,
    },
    /// Answer the adapter.
    AnswerPending,
    AnswerDone {
        ok: bool,
        result: String,
    },
}

use OrchestratorConsequence as C;
use OrchestratorEvent as E;
use OrchestratorStatus as S;

pub fn apply(
    it: &Orchestrator,
    event: &OrchestratorEvent,
    at: Timestamp,
) -> Result<Outcome<Orchestrator, OrchestratorConsequence>, Refused> {
    let mut next = it.clone();
    let seen = |next: &mut Orchestrator, claim: &Claim, status| {
        next.claim = Some(claim.clone());
        next.status = status;
    };
    match (it.status, event) {
        (S::LookupClaim, E::ClaimCreated(claim)) if it.owns(claim) => {
            seen(&mut next, claim, S::ClaimedOwner);
            moved(next, [C::Submit { job: claim.job_name() }])
        }
        // Its own: the answer to the creation was lost.
        (S::LookupClaim, E::ClaimFound(claim) | E::SwapLost(claim)) if it.owns(claim) => {
            seen(&mut next, claim, S::ClaimedOwner);
            moved(next, [C::Submit { job: claim.job_name() }])
        }
        (S::LookupClaim, E::ClaimFound(claim) | E::SwapLost(claim)) => {
            seen(&mut next, claim, S::FollowExisting);
            moved(next, [])
        }
        (S::FollowExisting, E::LeaseActive) => {
            next.status = S::JobPending;
            moved(next, [C::AnswerPending])
        }
        (S::FollowExisting, E::TakenOver(claim)) => {
            let old = it.claim.as_ref();
            let was_stale = old.is_some_and(|old| old.is_stale(at) && claim.fence == old.fence + 1);
            if !it.owns(claim) || !was_stale {
                return Err(Refused::Fenced { what: format!("the execution {}", it.key) });
            }
            seen(&mut next, claim, S::ClaimedOwner);
            moved(next, [C::Submit { job: claim.job_name() }])
        }
        (S::ClaimedOwner, E::Submitted(claim)) if it.owns(claim) => {
            seen(&mut next, claim, S::JobPending);
            moved(next, [C::AnswerPending])
        }
        (S::JobPending, E::JobRunning(claim)) if it.follows(claim) => {
            seen(&mut next, claim, S::JobPending);
            moved(next, [C::AnswerPending])
        }
        // Another owner's claim is there, or the same one was changed: look at it again.
        (S::FollowExisting | S::ClaimedOwner | S::JobPending, E::SwapLost(claim) | E::ClaimFound(claim)) => {
            if it.claim.as_ref() == Some(claim) && it.status == S::FollowExisting {
                return unchanged();
            }
            seen(&mut next, claim, S::FollowExisting);
            moved(next, [])
        }
        (S::JobPending, E::JobSucceeded { result }) => done(next, true, result),
        (S::JobPending, E::JobFailed { result } | E::JobVanished { result }) => done(next, false, result),
        (S::DoneOk | S::DoneError, _) => unchanged(),
        (status, event) => Err(Refused::not_from("orchestrator", status, name(event), &[])),
    }
}

impl Orchestrator {
    /// The claim is the one that was seen, perhaps with a longer lease.
    fn follows(&self, claim: &Claim) -> bool {
        self.claim.as_ref().is_some_and(|seen| seen.fence == claim.fence && seen.version <= claim.version)
    }
}

fn done(
    mut next: Orchestrator,
    ok: bool,
    result: &str,
) -> Result<Outcome<Orchestrator, OrchestratorConsequence>, Refused> {
    next.status = if ok { S::DoneOk } else { S::DoneError };
    next.result = Some(result.to_owned());
    moved(next, [C::AnswerDone { ok, result: result.to_owned() }])
}

pub fn name(event: &OrchestratorEvent) -> &'static str {
    match event {
        E::ClaimCreated(_) => "claim_created",
        E::ClaimFound(_) => "claim_found",
        E::LeaseActive => "lease_active",
        E::TakenOver(_) => "taken_over",
        E::Submitted(_) => "submitted",
        E::JobRunning(_) => "job_running",
        E::JobSucceeded { .. } => "job_succeeded",
        E::JobFailed { .. } => "job_failed",
        E::JobVanished { .. } => "job_vanished",
        E::SwapLost(_) => "swap_lost",
    }
}
