//! The life of a task: a sequence of steps of one agent.

use crate::run::LastError;
use crate::{AgentId, Outcome, Refused, RunId, TaskId, Timestamp, moved, string_enum, unchanged};
use serde::{Deserialize, Serialize};

string_enum! {
    pub enum TaskStatus { Pending = "pending", Running = "running", Completed = "completed", Failed = "failed", Skipped = "skipped", Cancelled = "cancelled" }
}

impl TaskStatus {
    pub fn is_end(self) -> bool {
        !matches!(self, TaskStatus::Pending | TaskStatus::Running)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Task {
    pub id: TaskId,
    pub run: RunId,
    pub attempt: i64,
    pub agent: AgentId,
    pub sequence: i64,
    pub name: String,
    pub status: TaskStatus,
    pub tries: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub due_at: Option<Timestamp>,
    pub step_count: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_error: Option<LastError>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<Timestamp>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TaskEvent {
    Begun,
    StepsEnded,
    AllStepsSkipped,
    Failed { error: LastError },
    ToBeRetried { at: Timestamp, error: LastError },
    Skipped { error: LastError },
    Cancelled,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TaskConsequence {
    ChildEnded { ended: TaskStatus },
    WakeAt { at: Timestamp },
}

use TaskConsequence as C;
use TaskEvent as E;
use TaskStatus as S;

pub fn apply(task: &Task, event: &TaskEvent, at: Timestamp) -> Result<Outcome<Task, C>, Refused> {
    let mut next = task.clone();
    match (task.status, event) {
        (S::Pending, E::Begun) => {
            next.status = S::Running;
            next.started_at = task.started_at.or(Some(at));
            next.tries += 1;
            next.due_at = None;
            moved(next, [])
        }
        (S::Running, E::Begun) => unchanged(),
        (S::Running, E::StepsEnded) => end(next, S::Completed, at, None),
        (S::Running, E::AllStepsSkipped) => end(next, S::Skipped, at, None), // R37: skipped, not failed
        (S::Pending | S::Running, E::Failed { error }) => end(next, S::Failed, at, Some(error.clone())),
        (S::Pending | S::Running, E::Skipped { error }) => end(next, S::Skipped, at, Some(error.clone())),
        (S::Running, E::ToBeRetried { at: due, error }) => {
            next.status = S::Pending;
            next.due_at = Some(*due);
            next.last_error = Some(error.clone());
            moved(next, [C::WakeAt { at: *due }])
        }
        (S::Pending | S::Running, E::Cancelled) => end(next, S::Cancelled, at, None),
        (S::Completed, E::StepsEnded)
        | (S::Skipped, E::AllStepsSkipped | E::Skipped { .. })
        | (S::Failed, E::Failed { .. }) => unchanged(),
        (ended, E::Cancelled) if ended.is_end() => unchanged(),
        (state, event) => Err(Refused::not_from("task", state, name(event), &[])),
    }
}

fn end(mut next: Task, to: TaskStatus, at: Timestamp, error: Option<LastError>) -> Result<Outcome<Task, C>, Refused> {
    next.status = to;
    next.ended_at = Some(at);
    next.due_at = None;
    if error.is_some() {
        next.last_error = error;
    }
    moved(next, [C::ChildEnded { ended: to }])
}

pub fn name(event: &TaskEvent) -> &'static str {
    match event {
        E::Begun => "begun",
        E::StepsEnded => "steps_ended",
        E::AllStepsSkipped => "all_steps_skipped",
        E::Failed { .. } => "failed",
        E::ToBeRetried { .. } => "to_be_retried",
        E::Skipped { .. } => "skipped",
        E::Cancelled => "cancelled",
    }
}
