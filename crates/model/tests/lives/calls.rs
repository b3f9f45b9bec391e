//! Executions and claims: their tables, every short history of an execution, and several Orchestrators on one execution key.

use crate::charting::{Chart, Names, chart};
use crate::samples::{NOW, error};
use model::claim::{self, Claim, LEASE_MS, Orchestrator, OrchestratorEvent as O, OrchestratorStatus as OS};
use model::execution::{
    self, Answered, Execution, ExecutionConsequence, ExecutionEvent as E, ExecutionStatus as S, MAX_TRIES,
};
use model::{OrgId, Outcome, Timestamp};
use std::collections::{BTreeSet, HashSet, VecDeque};

const EXECUTION: Names<Execution, E> =
    Names { state: execution_state, event: |event| execution::name(event).to_owned() };

fn execution_state(it: &Execution) -> String {
    match it.resume {
        Some(resume) if it.failures >= MAX_TRIES => format!("{} ({resume}, spent)", it.status),
        Some(resume) => format!("{} ({resume})", it.status),
        None => it.status.to_string(),
    }
}

fn fresh() -> Execution {
    Execution::new(OrgId(1), "ab".repeat(32), "cd".repeat(32), 1)
}

fn executions() -> Vec<Execution> {
    let begun = Execution { started_at: Some(NOW), ..fresh() };
    let mut all = vec![fresh()];
    for (status, ok) in [(S::PollAdapter, None), (S::IntegrateOk, Some(true)), (S::IntegrateError, Some(false))] {
        let done = ok.map(|ok| Answered { ok, result: "dag".into(), at: NOW });
        let at = Execution { status, done, ..begun.clone() };
        for failures in 0..MAX_TRIES {
            all.push(Execution { failures, ..at.clone() });
        }
        for failures in 1..=MAX_TRIES {
            let not_before = Some(NOW);
            all.push(Execution { status: S::RetryWait, resume: Some(status), failures, not_before, ..at.clone() });
        }
    }
    let ends = [S::PinnedHit, S::CompletedOk, S::CompletedError, S::FailedTerminal];
    all.extend(ends.map(|status| Execution { status, ended_at: Some(NOW), ..begun.clone() }));
    all
}

fn execution_events() -> Vec<E> {
    vec![
        E::Pinned { exec: "exec".into() },
        E::NotPinned,
        E::InputFailed { error: error() },
        E::Pending { token: "token".into(), seen: 0, retry_after_ms: None },
        E::Done { ok: true, result: "dag".into() },
        E::Done { ok: false, result: "dag".into() },
        E::TransientFailure { error: error() },
        E::NonRetryableFailure { error: error() },
        E::WaitOver,
        E::Integrated { exec: "exec".into() },
        E::PinnedByAnother { exec: "other".into() },
        E::JobFailed { error: error(), result: "dag".into() },
        E::WorkItemDied { error: error() },
        E::ResultRefused { error: error() },
        E::Abandoned,
    ]
}

pub fn execution_chart() -> Chart {
    chart(&EXECUTION, &executions(), &execution_events(), execution::apply)
}

/// Every history of seven events: what must never happen does not.
#[test]
fn no_history_of_an_execution_breaks_its_promises() {
    let mut seen: HashSet<Execution> = HashSet::from([fresh()]);
    let mut layer = vec![fresh()];
    for _ in 0..7 {
        let mut next_layer = Vec::new();
        for it in &layer {
            // Answers to polls with the newest token, and with older ones.
            let pending = (0..=it.token_version).map(|seen| E::Pending {
                token: format!("after {seen}"),
                seen,
                retry_after_ms: None,
            });
            let events =
                execution_events().into_iter().filter(|event| execution::name(event) != "pending").chain(pending);
            for event in events {
                // Long after every backoff.
                let at = it.not_before.unwrap_or(NOW).max(NOW);
                let Ok(Outcome::Moved { next, consequences }) = execution::apply(it, &event, at) else { continue };
                check_move(it, &event, &next, &consequences);
                if seen.insert(next.clone()) {
                    next_layer.push(next);
                }
            }
        }
        layer = next_layer;
    }
    assert!(seen.len() > 200, "only {} states: the walk is too short", seen.len());
}

fn check_move(it: &Execution, event: &E, next: &Execution, consequences: &[ExecutionConsequence]) {
    let case = format!("{it:?}\n{event:?}\n{next:?}");
    assert!(!it.status.is_end(), "an end was left: {case}");
    assert!(next.token_version >= it.token_version, "{case}");
    if let E::Pending { seen, .. } = event {
        assert_eq!(*seen, it.token_version, "an older token was stored: {case}");
    }
    assert!(it.done.is_none() || it.done == next.done, "the stored answer changed: {case}");
    let ok = next.done.as_ref().map(|done| done.ok);
    match next.status {
        S::CompletedOk => assert!(ok == Some(true) && next.exec.is_some(), "{case}"),
        S::CompletedError => assert!(ok == Some(false) && next.exec.is_some(), "{case}"),
        S::IntegrateOk => assert_eq!(ok, Some(true), "{case}"),
        S::IntegrateError => assert_eq!(ok, Some(false), "{case}"),
        S::PinnedHit => assert!(next.exec.is_some(), "{case}"),
        S::FailedTerminal => assert!(next.exec.is_none() && next.error.is_some(), "{case}"),
        _ => assert!(next.exec.is_none(), "no exec while it is pending: {case}"),
    }
    assert_eq!(next.resume.is_some(), next.status == S::RetryWait, "{case}");
    assert!(next.failures <= MAX_TRIES, "{case}");
    assert_eq!(next.status.is_end(), consequences.contains(&ExecutionConsequence::TellCallers), "{case}");
    let began = next.started_at.is_some();
    let over = consequences.iter().any(|it| matches!(it, ExecutionConsequence::Cleanup | ExecutionConsequence::Cancel));
    assert_eq!(next.status.is_end() && began, over, "what the adapter made is cleaned up: {case}");
}

#[test]
fn three_failures_in_a_row_end_it_and_an_answer_starts_the_count_again() {
    let apply = |it: &Execution, event: E, at: Timestamp| match execution::apply(it, &event, at).unwrap() {
        Outcome::Moved { next, .. } => next,
        Outcome::Unchanged => it.clone(),
    };
    let fail = || E::TransientFailure { error: error() };
    let mut it = apply(&fresh(), E::NotPinned, NOW);
    for round in 1..MAX_TRIES {
        it = apply(&it, fail(), NOW);
        let due = it.not_before.unwrap();
        assert!(due > NOW, "it waits");
        assert_eq!(apply(&it, E::WaitOver, due - 1).status, S::RetryWait, "too early");
        it = apply(&it, E::WaitOver, due);
        assert_eq!((it.status, it.failures), (S::PollAdapter, round));
    }
    let answered = apply(&it, E::Pending { token: "t".into(), seen: 0, retry_after_ms: Some(500) }, NOW);
    assert_eq!((answered.failures, answered.not_before), (0, Some(NOW + 500)));
    let spent = apply(&it, fail(), NOW);
    assert_eq!(spent.deadline(), Some(NOW), "the last wait ends at once");
    assert_eq!(apply(&spent, E::WaitOver, NOW).status, S::FailedTerminal);
}

const ORCHESTRATOR: Names<Orchestrator, Brought> = Names { state: |it| it.status.to_string(), event: |it| it.name() };

/// An event, and whose claim it brings.
#[derive(Debug, Clone, PartialEq)]
struct Brought(O, Option<&'static str>);

impl Brought {
    fn name(&self) -> String {
        let name = claim::name(&self.0);
        self.1.map_or(name.to_owned(), |whose| format!("{name}({whose})"))
    }
}

fn claim_of(owner: &str, fence: i64) -> Claim {
    let (key, nonce) = ("key".to_owned(), format!("nonce of {owner}"));
    Claim { key, attempt: 1, owner: owner.into(), nonce, fence, version: fence, lease_until: NOW, job: None }
}

fn orchestrator(me: &str) -> Orchestrator {
    Orchestrator::new("key", 1, me, &format!("nonce of {me}"))
}

pub fn orchestrator_chart() -> Chart {
    let mut all = vec![orchestrator("me")];
    for status in OS::ALL.iter().filter(|status| **status != OS::LookupClaim) {
        // A claim of its own that was taken over has a newer fence.
        for owner in ["me", "they"] {
            let owned = *status != OS::ClaimedOwner || owner == "me";
            if owned {
                all.push(Orchestrator { status: *status, claim: Some(claim_of(owner, 1)), ..orchestrator("me") });
            }
        }
    }
    let mut events = vec![Brought(O::LeaseActive, None)];
    for result in [
        O::JobSucceeded { result: "dag".into() },
        O::JobFailed { result: "dag".into() },
        O::JobVanished { result: "dag".into() },
    ] {
        events.push(Brought(result, None));
    }
    for (owner, whose) in [("me", "mine"), ("they", "theirs")] {
        for fence in [1, 2] {
            let of = claim_of(owner, fence);
            let with = [O::ClaimCreated, O::ClaimFound, O::TakenOver, O::Submitted, O::JobRunning, O::SwapLost];
            events.extend(with.map(|event| Brought(event(of.clone()), Some(whose))));
        }
    }
    chart(&ORCHESTRATOR, &all, &events, |it, event, at| claim::apply(it, &event.0, at))
}

/// Several Orchestrators, one claim, one backend; time passes by whole leases.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct World {
    now: i64,
    stored: Option<Claim>,
    jobs: BTreeSet<String>,
    all: Vec<Orchestrator>,
    /// A swap that an Orchestrator has decided on and not yet made: it may be stopped in between for any time.
    decided: Vec<Option<(Option<i64>, Claim)>>,
}

impl World {
    /// All that one Orchestrator can do next.
    fn steps(&self, who: usize) -> Vec<World> {
        let it = &self.all[who];
        let mut worlds = Vec::new();
        let now = Timestamp(self.now);
        let after = |event: O| {
            let Ok(Outcome::Moved { next, .. }) = claim::apply(it, &event, now) else { return None };
            let mut world = self.clone();
            world.all[who] = next;
            world.decided[who] = None;
            Some(world)
        };
        if let Some((expect, to)) = &self.decided[who] {
            let swap = claim::ClaimSwap { expect: *expect, to: to.clone() };
            match swap.apply(self.stored.as_ref()) {
                Ok(claim) => {
                    let event = match it.status {
                        OS::LookupClaim => O::ClaimCreated(claim.clone()),
                        OS::FollowExisting => O::TakenOver(claim.clone()),
                        OS::ClaimedOwner => O::Submitted(claim.clone()),
                        _ => O::JobRunning(claim.clone()),
                    };
                    let mut world = after(event).expect("its own swap is an event it takes");
                    world.stored = Some(claim);
                    worlds.push(world);
                }
                Err(there) => worlds.extend(there.and_then(|claim| after(O::SwapLost(claim)))),
            }
            return worlds;
        }
        if let Some(swap) = it.swap(now) {
            let mut world = self.clone();
            world.decided[who] = Some((swap.expect, swap.to.clone()));
            // Submission comes before the claim names the job, and by name.
            if it.status == OS::ClaimedOwner {
                world.jobs.insert(it.claim.as_ref().expect("an owner has a claim").job_name());
            }
            worlds.push(world);
        }
        if let Some(claim) = self.stored.clone() {
            if it.status == OS::FollowExisting && !claim.is_stale(now) {
                worlds.extend(after(O::LeaseActive));
            }
            if it.claim.as_ref() != Some(&claim) {
                worlds.extend(after(O::ClaimFound(claim)));
            }
        }
        worlds
    }
}

#[test]
fn on_one_key_there_is_one_job_and_one_owner_per_fence_whoever_is_stopped() {
    let all: Vec<Orchestrator> = ["a", "b", "c"].map(orchestrator).into();
    let start = World { now: 0, stored: None, jobs: BTreeSet::new(), decided: vec![None; all.len()], all };
    let mut seen = HashSet::from([start.clone()]);
    let mut queue = VecDeque::from([start]);
    let (mut takeovers, mut refreshed) = (0, 0);
    while let Some(world) = queue.pop_front() {
        let mut next: Vec<World> = (0..world.all.len()).flat_map(|who| world.steps(who)).collect();
        if world.now < 2 * LEASE_MS {
            next.push(World { now: world.now + LEASE_MS, ..world.clone() });
        }
        for new in next {
            assert!(new.jobs.len() <= 1, "two jobs: {new:?}");
            let (before, after) = (world.stored.as_ref(), new.stored.as_ref());
            if let (Some(before), Some(after)) = (before, after) {
                assert!(after.fence >= before.fence && after.version >= before.version, "{new:?}");
                let same_owner = before.owner == after.owner;
                assert!(
                    same_owner || after.fence == before.fence + 1 && before.is_stale(Timestamp(new.now)),
                    "{new:?}"
                );
                assert!(before.job.is_none() || after.job == before.job, "the job was lost: {new:?}");
                assert!(after.lease_until >= before.lease_until, "a lease became shorter: {new:?}");
                takeovers += usize::from(!same_owner);
                refreshed += usize::from(same_owner && after.lease_until > before.lease_until);
            }
            // Versions grow with every lease: a few are enough.
            if after.is_none_or(|claim| claim.version <= 6) && seen.insert(new.clone()) {
                queue.push_back(new);
            }
        }
    }
    assert!(takeovers > 10, "only {takeovers} takeovers among {} states", seen.len());
    assert!(refreshed > 10, "only {refreshed} leases were refreshed among {} states", seen.len());
}
