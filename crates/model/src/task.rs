//! The state machine of a task: a sequence of steps of one agent.

use crate::agent::{Agent, AgentKind};
use crate::children::{ChildState, Children};
use crate::hierarchy::Ending;
use crate::plan::TaskPlan;
use crate::run::{LastError, RunOutcome};
use crate::spec::FailureMode;
use crate::{AgentId, Outcome, Refused, RunId, TaskId, Timestamp, moved, string_enum, unchanged};
use serde::{Deserialize, Serialize};

string_enum! {
    pub enum TaskStatus { Pending = "pending", Running = "running", Completed = "completed", Failed = "failed", Skipped = "skipped", Cancelled = "cancelled" }
}

impl Task {
    /// As its agent counts it.
    pub fn child_state(&self) -> ChildState {
        match self.status {
            TaskStatus::Pending => ChildState::Pending,
            TaskStatus::Running => ChildState::Running,
            TaskStatus::Completed if self.outcome == Some(RunOutcome::Partial) => ChildState::Partial,
            TaskStatus::Completed => ChildState::Completed,
            TaskStatus::Failed => ChildState::Failed,
            TaskStatus::Skipped => ChildState::Skipped,
            TaskStatus::Cancelled => ChildState::Cancelled,
        }
    }
}

impl TaskStatus {
    pub fn is_end(self) -> bool {
        !matches!(self, TaskStatus::Pending | TaskStatus::Running)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Task {
    pub id: TaskId,
    pub run: RunId,
    pub attempt: i64,
    pub agent: AgentId,
    /// Its place in its agent's plan. The tasks that a `for_each` makes share one.
    pub sequence: i64,
    /// With its position if it was made for an item: `mail[0]`.
    pub name: String,
    /// Its plan has a `for_each` that was not evaluated yet: when it may begin, one task is made for each item.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub each: bool,
    /// The position of its item, if it was made for one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub item: Option<i64>,
    /// Completed without being begun: its `if` was false, or there was no item.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unneeded: bool,
    pub status: TaskStatus,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<RunOutcome>,
    /// What it does when one of its steps has failed for good.
    pub mode: FailureMode,
    /// How many of its steps may run at once.
    pub parallel: i64,
    pub tries: i64,
    pub max_tries: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub due_at: Option<Timestamp>,
    /// Dependencies that have not ended yet, and the tasks (by sequence) that depend on this one.
    #[serde(default)]
    pub waits_for: i64,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dependents: Vec<i64>,
    /// Its steps by state, those without a row included.
    pub steps: Children,
    /// Steps that have a row.
    pub step_count: i64,
    /// Set when it must end and something below it is still in flight.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ending: Option<Ending>,
    /// A commit had no room to cancel all of its open steps: the run's work item goes on with them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cut: bool,
    /// Active time of its agent when its present try began.
    #[serde(default)]
    pub active_from_ms: i64,
    /// A retry has replaced it by another row: it is kept as history and counted nowhere.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub replaced: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_error: Option<LastError>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<Timestamp>,
}

impl Task {
    /// A task that has not begun and waits for no other. Its steps are only counted until it does. A rank's time is its run's.
    pub fn planned(id: TaskId, agent: &Agent, sequence: i64, plan: &TaskPlan) -> Task {
        Task {
            id,
            run: agent.run,
            attempt: agent.attempt,
            agent: agent.id,
            sequence,
            name: plan.name.clone(),
            each: plan.for_each.is_some(),
            item: None,
            unneeded: false,
            status: TaskStatus::Pending,
            outcome: None,
            mode: plan.mode,
            parallel: plan.parallel,
            tries: 0,
            max_tries: plan.max_tries,
            timeout_ms: (agent.kind != AgentKind::Rank).then_some(plan.timeout_ms),
            due_at: None,
            waits_for: 0,
            dependents: Vec::new(),
            steps: Children::planned(plan.steps.len() as i64),
            step_count: 0,
            ending: None,
            cut: false,
            active_from_ms: 0,
            replaced: false,
            last_error: None,
            started_at: None,
            ended_at: None,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TaskEvent {
    Begun,
    /// Its `if` is false, or its `for_each` gave no item. That counts as completed.
    NotNeeded,
    StepsEnded {
        outcome: RunOutcome,
    },
    AllStepsSkipped,
    Failed {
        error: LastError,
    },
    ToBeRetried {
        at: Timestamp,
        error: LastError,
    },
    Skipped {
        error: LastError,
    },
    Cancelled,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TaskConsequence {
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
        (S::Pending, E::NotNeeded) => {
            next.unneeded = true;
            next.outcome = Some(RunOutcome::Success);
            end(next, S::Completed, at, None)
        }
        (S::Running, E::StepsEnded { outcome }) => {
            next.outcome = Some(*outcome);
            end(next, S::Completed, at, None)
        }
        (S::Running, E::AllStepsSkipped) => end(next, S::Skipped, at, None), // R37: skipped, not failed
        (S::Running, E::Failed { error }) => end(next, S::Failed, at, Some(error.clone())),
        (S::Pending | S::Running, E::Skipped { error }) => end(next, S::Skipped, at, Some(error.clone())),
        (S::Running, E::ToBeRetried { at: due, error }) => {
            next.status = S::Pending;
            next.ending = None;
            next.due_at = Some(*due);
            next.last_error = Some(error.clone());
            moved(next, [C::WakeAt { at: *due }])
        }
        (S::Pending | S::Running, E::Cancelled) => end(next, S::Cancelled, at, None),
        (S::Completed, E::StepsEnded { .. } | E::NotNeeded)
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
    next.ending = None;
    next.cut = false;
    if error.is_some() {
        next.last_error = error;
    }
    moved(next, [])
}

pub fn name(event: &TaskEvent) -> &'static str {
    match event {
        E::Begun => "begun",
        E::NotNeeded => "not_needed",
        E::StepsEnded { .. } => "steps_ended",
        E::AllStepsSkipped => "all_steps_skipped",
        E::Failed { .. } => "failed",
        E::ToBeRetried { .. } => "to_be_retried",
        E::Skipped { .. } => "skipped",
        E::Cancelled => "cancelled",
    }
}
