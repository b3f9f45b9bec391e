//! The life of a step: one tool invocation. Each try is counted; a started step whose outcome is unknown is `uncertain`, never silently repeated.

use crate::children::ChildState;
use crate::run::LastError;
use crate::{AgentId, Outcome, Refused, RunId, StepId, TaskId, Timestamp, moved, string_enum, unchanged};
use serde::{Deserialize, Serialize};

string_enum! {
    pub enum StepStatus {
        Pending = "pending", Running = "running", Waiting = "waiting", Completed = "completed", Failed = "failed",
        Skipped = "skipped", Cancelled = "cancelled",
    }
}
string_enum! {
    /// What a step invokes. Only `command` needs a machine.
    pub enum Tool { Command = "command", Http = "http", Llm = "llm", Mcp = "mcp", Call = "call" }
}

impl Step {
    /// As its task counts it. An uncertain step waits for a person: no holder works on it.
    pub fn child_state(&self) -> ChildState {
        match self.status {
            StepStatus::Pending => ChildState::Pending,
            StepStatus::Running if self.uncertain => ChildState::Waiting,
            StepStatus::Running => ChildState::Running,
            StepStatus::Waiting => ChildState::Waiting,
            StepStatus::Completed => ChildState::Completed,
            StepStatus::Failed => ChildState::Failed,
            StepStatus::Skipped => ChildState::Skipped,
            StepStatus::Cancelled => ChildState::Cancelled,
        }
    }
}

impl StepStatus {
    pub fn is_end(self) -> bool {
        matches!(self, StepStatus::Completed | StepStatus::Failed | StepStatus::Skipped | StepStatus::Cancelled)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Step {
    pub id: StepId,
    pub run: RunId,
    pub attempt: i64,
    pub agent: AgentId,
    pub task: TaskId,
    pub sequence: i64,
    pub name: String,
    pub tool: Tool,
    /// May run again under the same key even if its outcome is unknown.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub idempotent: bool,
    pub status: StepStatus,
    /// Running, begun by a holder that is gone, and nobody knows whether it had an effect.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub uncertain: bool,
    /// Ended without anybody knowing whether it had an effect.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub outcome_unknown: bool,
    /// The next try, if its end is reported, names this number.
    pub tries: i64,
    pub max_tries: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub due_at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_error: Option<LastError>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<Timestamp>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StepEvent {
    Begun,
    ApprovalAsked,
    Approved,
    Completed,
    Failed {
        error: LastError,
    },
    ToBeRetried {
        at: Timestamp,
        error: LastError,
    },
    OutcomeUnknown,
    /// A person decides what becomes of it: a ticket was opened.
    Escalated {
        error: LastError,
    },
    Skipped {
        error: LastError,
    },
    /// `unknown`: it was cut off, and may have had an effect.
    Cancelled {
        unknown: bool,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StepConsequence {
    ChildEnded { ended: StepStatus },
    WakeAt { at: Timestamp },
}

use StepConsequence as C;
use StepEvent as E;
use StepStatus as S;

pub fn apply(step: &Step, event: &StepEvent, at: Timestamp) -> Result<Outcome<Step, C>, Refused> {
    let mut next = step.clone();
    match (step.status, event) {
        (S::Pending, E::Begun) => {
            next.status = S::Running;
            next.started_at = step.started_at.or(Some(at));
            next.tries += 1;
            next.due_at = None;
            moved(next, [])
        }
        (S::Running, E::Begun) => unchanged(),
        (S::Pending, E::ApprovalAsked) => {
            next.status = S::Waiting;
            moved(next, [])
        }
        (S::Waiting, E::ApprovalAsked) | (S::Pending, E::Approved) => unchanged(),
        (S::Waiting, E::Approved) => {
            next.status = S::Pending;
            moved(next, [C::WakeAt { at }])
        }
        (S::Running, E::Completed) => end(next, S::Completed, at, None),
        (S::Running | S::Waiting, E::Failed { error }) => end(next, S::Failed, at, Some(error.clone())),
        (S::Running | S::Waiting, E::Skipped { error }) => end(next, S::Skipped, at, Some(error.clone())),
        (S::Running, E::ToBeRetried { at: due, error }) => {
            next.status = S::Pending;
            next.uncertain = false; // whoever tries again has found out, or it does not matter
            next.due_at = Some(*due);
            next.last_error = Some(error.clone());
            moved(next, [C::WakeAt { at: *due }])
        }
        (S::Running, E::OutcomeUnknown) if step.uncertain => unchanged(),
        (S::Running, E::OutcomeUnknown) => {
            next.uncertain = true;
            moved(next, [C::WakeAt { at }])
        }
        // Its last try has ended: what is open is what a person says to it.
        (S::Running, E::Escalated { error }) => {
            next.status = S::Waiting;
            next.uncertain = false;
            next.last_error = Some(error.clone());
            moved(next, [])
        }
        (S::Waiting, E::Escalated { .. }) => unchanged(),
        (S::Pending | S::Running | S::Waiting, E::Cancelled { unknown }) => {
            next.outcome_unknown = *unknown || step.uncertain;
            end(next, S::Cancelled, at, None)
        }
        (S::Completed, E::Completed) | (S::Failed, E::Failed { .. }) | (S::Skipped, E::Skipped { .. }) => unchanged(),
        (ended, E::Cancelled { .. }) if ended.is_end() => unchanged(),
        (state, event) => Err(Refused::not_from("step", state, name(event), &[])),
    }
}

fn end(mut next: Step, to: StepStatus, at: Timestamp, error: Option<LastError>) -> Result<Outcome<Step, C>, Refused> {
    next.status = to;
    next.ended_at = Some(at);
    next.due_at = None;
    next.uncertain = false;
    if error.is_some() {
        next.last_error = error;
    }
    moved(next, [C::ChildEnded { ended: to }])
}

pub fn name(event: &StepEvent) -> &'static str {
    match event {
        E::Begun => "begun",
        E::ApprovalAsked => "approval_asked",
        E::Approved => "approved",
        E::Completed => "completed",
        E::Failed { .. } => "failed",
        E::ToBeRetried { .. } => "to_be_retried",
        E::OutcomeUnknown => "outcome_unknown",
        E::Escalated { .. } => "escalated",
        E::Skipped { .. } => "skipped",
        E::Cancelled { .. } => "cancelled",
    }
}
