//! The state machine of an attempt, one try of a whole run. Holds its credits and counters. Never reopened.

use crate::children::Children;
use crate::job_counters::JobCounters;
use crate::recovery::ErrorWindow;
use crate::{AgentId, Credits, Outcome, Refused, RunId, StepId, Timestamp, moved, string_enum, unchanged};
use serde::{Deserialize, Serialize};

string_enum! {
    pub enum AttemptStatus { Open = "open", Completed = "completed", Failed = "failed", Cancelled = "cancelled" }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Attempt {
    pub run: RunId,
    pub number: i64,
    pub status: AttemptStatus,
    pub reserved: Credits,
    pub charged: Credits,
    pub refunded: Credits,
    /// What a provider billed beyond the reservation; never collected.
    pub uncollected: Credits,
    pub opened_at: Timestamp,
    pub ended_at: Option<Timestamp>,
    pub tree: TreeCounters,
}

impl Attempt {
    /// An attempt for which nothing has been reserved yet.
    pub fn open(run: RunId, number: i64, at: Timestamp) -> Attempt {
        Attempt {
            run,
            number,
            status: AttemptStatus::Open,
            reserved: Credits::ZERO,
            charged: Credits::ZERO,
            refunded: Credits::ZERO,
            uncollected: Credits::ZERO,
            opened_at: at,
            ended_at: None,
            tree: Default::default(),
        }
    }
}

/// What an attempt counts of its agents and of what is below them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct TreeCounters {
    /// Agents of the current plan version by state.
    pub agents: Children,
    /// Open agents of earlier plan versions: on their way to their end.
    pub superseded: i64,
    /// Tasks of the current plan version that failed, or were skipped because of an error.
    pub failed_tasks: i64,
    /// Steps that a worker has begun and not ended. A pause waits for them.
    pub in_flight: i64,
    /// The agent that makes the next plan version.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub planner: Option<AgentId>,
    /// The one step of a run of `type: external`, whose children a program outside begins.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub program: Option<StepId>,
    /// Something that must end was left for the next commit.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub unfinished: bool,
    /// Set aside for steps that run.
    pub held: Credits,
    /// Retries of steps, tasks and agents so far.
    pub retries: i64,
    /// What tries after the first of a step, its task or its agent have cost.
    pub retried_cost: Credits,
    pub errors: ErrorWindow,
    /// Its open jobs.
    pub jobs: JobCounters,
}

impl Attempt {
    pub fn left(&self) -> Credits {
        self.reserved - self.charged - self.refunded
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttemptEvent {
    Reserved(Credits),
    Charged(Credits),
    Ended(AttemptStatus),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttemptConsequence {
    Reserve(Credits),
    Charge(Credits),
    Refund(Credits),
}

use AttemptConsequence as C;
use AttemptEvent as E;
use AttemptStatus as S;

/// A completed attempt is charged at least this (R19).
pub const MINIMUM_CHARGE: Credits = Credits(1);

pub fn apply(attempt: &Attempt, event: &AttemptEvent, at: Timestamp) -> Result<Outcome<Attempt, C>, Refused> {
    if let E::Reserved(amount) | E::Charged(amount) = event {
        assert!(*amount >= Credits::ZERO, "the type gives the sign: {event:?}");
    }
    let mut next = attempt.clone();
    match (attempt.status, *event) {
        (S::Open, E::Reserved(amount)) => {
            next.reserved = attempt.reserved + amount;
            moved(next, rows([C::Reserve(amount)]))
        }
        (S::Open, E::Charged(asked)) => {
            // Never above what was set aside: the rest is on us and on record.
            let amount = asked.min(attempt.left());
            next.charged = attempt.charged + amount;
            next.uncollected = attempt.uncollected + (asked - amount);
            moved(next, rows([C::Charge(amount)]))
        }
        (S::Open, E::Ended(status)) if status != S::Open => {
            let missing = if status == S::Completed { MINIMUM_CHARGE - next.charged } else { Credits::ZERO };
            let least = missing.max(Credits::ZERO).min(next.left());
            next.charged = next.charged + least;
            let rest = next.left();
            next.refunded = next.refunded + rest;
            next.status = status;
            next.ended_at = Some(at);
            moved(next, rows([C::Charge(least), C::Refund(rest)]))
        }
        (ended, E::Ended(_)) if ended != S::Open => unchanged(),
        (status, event) => Err(Refused::not_from("attempt", status, name(event), &[])),
    }
}

/// Zero amounts write no row (R28).
fn rows(all: impl IntoIterator<Item = AttemptConsequence>) -> Vec<AttemptConsequence> {
    let amount = |row: &C| match row {
        C::Reserve(amount) | C::Charge(amount) | C::Refund(amount) => *amount,
    };
    all.into_iter().filter(|row| !amount(row).is_zero()).collect()
}

pub fn name(event: AttemptEvent) -> &'static str {
    match event {
        E::Reserved(_) => "reserved",
        E::Charged(_) => "charged",
        E::Ended(_) => "ended",
    }
}
