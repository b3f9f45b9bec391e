//! Counters of a parent's children by state. A task counts its steps, an agent its tasks, an attempt its agents, so that "has
//! everything ended?" and "may another one begin?" are answered without reading the children.

use crate::run::RunOutcome;
use serde::{Deserialize, Serialize};

/// Where a child is, as its parent counts it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChildState {
    Pending,
    Running,
    /// Waits for a person: an approval, a ticket, or the word on an unknown outcome.
    Waiting,
    Paused,
    Completed,
    /// Completed, with something below it skipped.
    Partial,
    Skipped,
    Failed,
    Cancelled,
}

impl ChildState {
    pub fn as_str(self) -> &'static str {
        match self {
            ChildState::Pending => "pending",
            ChildState::Running => "running",
            ChildState::Waiting => "waiting",
            ChildState::Paused => "paused",
            ChildState::Completed => "completed",
            ChildState::Partial => "partial",
            ChildState::Skipped => "skipped",
            ChildState::Failed => "failed",
            ChildState::Cancelled => "cancelled",
        }
    }
}

/// How many children are in which state. A child whose row is not made yet counts as pending.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct Children {
    #[serde(skip_serializing_if = "is_zero")]
    pub pending: i64,
    #[serde(skip_serializing_if = "is_zero")]
    pub running: i64,
    #[serde(skip_serializing_if = "is_zero")]
    pub waiting: i64,
    #[serde(skip_serializing_if = "is_zero")]
    pub paused: i64,
    #[serde(skip_serializing_if = "is_zero")]
    pub completed: i64,
    #[serde(skip_serializing_if = "is_zero")]
    pub partial: i64,
    #[serde(skip_serializing_if = "is_zero")]
    pub skipped: i64,
    #[serde(skip_serializing_if = "is_zero")]
    pub failed: i64,
    #[serde(skip_serializing_if = "is_zero")]
    pub cancelled: i64,
}

impl Children {
    /// Children of a parent that has not begun.
    pub fn planned(count: i64) -> Children {
        Children { pending: count, ..Children::default() }
    }

    pub fn is_empty(&self) -> bool {
        self.total() == 0
    }

    pub fn total(&self) -> i64 {
        self.open() + self.completed + self.partial + self.skipped + self.failed + self.cancelled
    }

    pub fn open(&self) -> i64 {
        self.pending + self.running + self.waiting + self.paused
    }

    pub fn add(&mut self, state: ChildState) {
        *self.of(state) += 1;
    }

    pub fn shift(&mut self, from: ChildState, to: ChildState) {
        self.shift_many(from, to, 1);
    }

    pub fn shift_many(&mut self, from: ChildState, to: ChildState, count: i64) {
        *self.of(from) -= count;
        *self.of(to) += count;
        debug_assert!(*self.of(from) >= 0, "more children left {from:?} than were in it: {self:?}");
    }

    /// What a parent whose children have all ended, none of them failed or cancelled, has come to.
    pub fn outcome(&self) -> RunOutcome {
        match self {
            _ if self.skipped > 0 && self.completed + self.partial == 0 => RunOutcome::Skipped,
            _ if self.skipped + self.partial > 0 => RunOutcome::Partial,
            _ => RunOutcome::Success,
        }
    }

    fn of(&mut self, state: ChildState) -> &mut i64 {
        match state {
            ChildState::Pending => &mut self.pending,
            ChildState::Running => &mut self.running,
            ChildState::Waiting => &mut self.waiting,
            ChildState::Paused => &mut self.paused,
            ChildState::Completed => &mut self.completed,
            ChildState::Partial => &mut self.partial,
            ChildState::Skipped => &mut self.skipped,
            ChildState::Failed => &mut self.failed,
            ChildState::Cancelled => &mut self.cancelled,
        }
    }
}

fn is_zero(count: &i64) -> bool {
    *count == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shift_keeps_the_total() {
        let mut children = Children::planned(3);
        children.shift(ChildState::Pending, ChildState::Running);
        children.shift(ChildState::Running, ChildState::Skipped);
        assert_eq!((children.total(), children.open(), children.skipped), (3, 2, 1));
    }

    #[test]
    fn some_skipped_is_partial_and_all_skipped_is_skipped() {
        let ended = |completed, partial, skipped| Children { completed, partial, skipped, ..Children::default() };
        let table = [
            (ended(2, 0, 0), RunOutcome::Success),
            (ended(1, 0, 1), RunOutcome::Partial),
            (ended(1, 1, 0), RunOutcome::Partial),
            (ended(0, 1, 1), RunOutcome::Partial),
            (ended(0, 0, 2), RunOutcome::Skipped),
            (ended(0, 0, 0), RunOutcome::Success),
        ];
        for (children, outcome) in table {
            assert_eq!(children.outcome(), outcome, "{children:?}");
        }
    }
}
