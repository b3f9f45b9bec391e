//! The life of a step: one tool invocation. Each try is counted; a started step whose outcome is unknown is `uncertain`, never silently repeated.

use crate::run::LastError;
use crate::{Outcome, Refused, RunId, StepId, TaskId, Timestamp, moved, string_enum, unchanged};
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

impl StepStatus {
    pub fn is_end(self) -> bool {
        matches!(self, StepStatus::Completed | StepStatus::Failed | StepStatus::Skipped | StepStatus::Cancelled)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    pub id: StepId,
    pub run: RunId,
    pub attempt: i64,
    pub task: TaskId,
    pub sequence: i64,
    pub name: String,
    pub tool: Tool,
    pub status: StepStatus,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub uncertain: bool,
    pub tries: i64,
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
    Failed { error: LastError },
    ToBeRetried { at: Timestamp, error: LastError },
    OutcomeUnknown,
    Skipped { error: LastError },
    Cancelled,
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
        (S::Pending | S::Running | S::Waiting, E::Failed { error }) => end(next, S::Failed, at, Some(error.clone())),
        (S::Pending | S::Running | S::Waiting, E::Skipped { error }) => end(next, S::Skipped, at, Some(error.clone())),
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
        (S::Pending | S::Running | S::Waiting, E::Cancelled) => end(next, S::Cancelled, at, None),
        (S::Completed, E::Completed) | (S::Failed, E::Failed { .. }) | (S::Skipped, E::Skipped { .. }) => unchanged(),
        (ended, E::Cancelled) if ended.is_end() => unchanged(),
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
        E::Skipped { .. } => "skipped",
        E::Cancelled => "cancelled",
    }
}
