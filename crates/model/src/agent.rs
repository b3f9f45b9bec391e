//! The life of an agent: a run's logical worker, a sequence of tasks. A plain task has one; a system agent carries a cause nobody else has.

use crate::children::{ChildState, Children};
use crate::hierarchy::Ending;
use crate::run::{LastError, RunOutcome};
use crate::spec::FailureMode;
use crate::{AgentId, Outcome, Refused, RunId, Timestamp, moved, string_enum, unchanged};
use serde::{Deserialize, Serialize};

string_enum! {
    pub enum AgentStatus { Pending = "pending", Running = "running", Paused = "paused", Completed = "completed", Failed = "failed", Cancelled = "cancelled" }
}
string_enum! {
    /// `rank`: has one machine and one command. `planned`: works through a plan. `planner`: makes one. `system`: carries a cause.
    pub enum AgentKind { Rank = "rank", Planned = "planned", Planner = "planner", System = "system" }
}

impl Agent {
    /// As its attempt counts it.
    pub fn child_state(&self) -> ChildState {
        match (self.status, self.outcome) {
            (AgentStatus::Pending, _) => ChildState::Pending,
            (AgentStatus::Running, _) => ChildState::Running,
            (AgentStatus::Paused, _) => ChildState::Paused,
            (AgentStatus::Completed, Some(RunOutcome::Partial)) => ChildState::Partial,
            (AgentStatus::Completed, Some(RunOutcome::Skipped)) => ChildState::Skipped,
            (AgentStatus::Completed, _) => ChildState::Completed,
            (AgentStatus::Failed, _) => ChildState::Failed,
            (AgentStatus::Cancelled, _) => ChildState::Cancelled,
        }
    }
}

impl AgentStatus {
    pub fn is_end(self) -> bool {
        matches!(self, AgentStatus::Completed | AgentStatus::Failed | AgentStatus::Cancelled)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Agent {
    pub id: AgentId,
    pub run: RunId,
    pub attempt: i64,
    pub plan_version: i64,
    pub sequence: i64,
    pub kind: AgentKind,
    pub name: String,
    pub status: AgentStatus,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<RunOutcome>,
    /// What it does when one of its tasks has failed for good.
    pub mode: FailureMode,
    /// How many of its tasks may run at once.
    pub parallel: i64,
    pub tries: i64,
    pub max_tries: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub due_at: Option<Timestamp>,
    /// Its tasks by state, those without a row included.
    pub tasks: Children,
    /// Tasks that have a row.
    pub task_count: i64,
    /// Set when it must end and something below it is still in flight.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ending: Option<Ending>,
    /// A commit had no room to cancel all of its open tasks: the run's work item goes on with them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cut: bool,
    /// Its job was asked to stop because the run ends; the job's end decides how the agent ends.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stopping: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_error: Option<LastError>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<Timestamp>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AgentEvent {
    Begun,
    TasksEnded { outcome: RunOutcome },
    Failed { error: LastError },
    ToBeRetried { at: Timestamp, error: LastError },
    Skipped { error: LastError },
    Held,
    Woken,
    Cancelled,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AgentConsequence {
    /// To the run: one of its agents has ended.
    ChildEnded {
        ended: AgentStatus,
    },
    WakeAt {
        at: Timestamp,
    },
    Publish {
        kind: &'static str,
    },
}

use AgentConsequence as C;
use AgentEvent as E;
use AgentStatus as S;

pub fn apply(agent: &Agent, event: &AgentEvent, at: Timestamp) -> Result<Outcome<Agent, C>, Refused> {
    let mut next = agent.clone();
    match (agent.status, event) {
        (S::Pending, E::Begun) => {
            next.status = S::Running;
            next.started_at = agent.started_at.or(Some(at));
            next.due_at = None;
            next.tries += 1;
            moved(next, [C::Publish { kind: "agent.running" }])
        }
        (S::Running, E::Begun) => unchanged(),
        // Also while held or not yet going on after a pause: its machine may have been done before it was frozen.
        (S::Pending | S::Running | S::Paused, E::TasksEnded { outcome }) => {
            next.outcome = Some(*outcome);
            end(next, S::Completed, at, None)
        }
        (S::Pending | S::Running | S::Paused, E::Skipped { error }) => {
            next.outcome = Some(RunOutcome::Skipped);
            end(next, S::Completed, at, Some(error.clone()))
        }
        (S::Pending | S::Running | S::Paused, E::Failed { error }) => end(next, S::Failed, at, Some(error.clone())),
        (S::Running, E::ToBeRetried { at: due, error }) => {
            // Never rests in failed: the run keeps an open agent (R2).
            next.status = S::Pending;
            next.ending = None;
            next.due_at = Some(*due);
            next.last_error = Some(error.clone());
            moved(next, [C::WakeAt { at: *due }, C::Publish { kind: "agent.pending" }])
        }
        // What begins again when it is woken is the next try.
        (S::Paused, E::ToBeRetried { at: due, error }) => {
            next.tries += 1;
            next.ending = None;
            next.due_at = Some(*due);
            next.last_error = Some(error.clone());
            moved(next, [])
        }
        (S::Pending | S::Running, E::Held) => {
            if agent.status == S::Running {
                next.tries -= 1; // what begins again after the pause is the same try
            }
            next.status = S::Paused;
            moved(next, [C::Publish { kind: "agent.paused" }])
        }
        (S::Paused, E::Held) => unchanged(),
        (S::Paused, E::Woken) => {
            next.status = S::Pending;
            moved(next, [C::WakeAt { at }, C::Publish { kind: "agent.pending" }])
        }
        (S::Pending | S::Running, E::Woken) => unchanged(),
        (S::Pending | S::Running | S::Paused, E::Cancelled) => end(next, S::Cancelled, at, None),
        (S::Completed, E::TasksEnded { .. } | E::Skipped { .. }) | (S::Failed, E::Failed { .. }) => unchanged(),
        (ended, E::Cancelled) if ended.is_end() => unchanged(), // an end is a sink
        (state, event) => Err(Refused::not_from("agent", state, name(event), &[])),
    }
}

fn end(
    mut next: Agent,
    to: AgentStatus,
    at: Timestamp,
    error: Option<LastError>,
) -> Result<Outcome<Agent, C>, Refused> {
    next.status = to;
    next.ended_at = Some(at);
    next.due_at = None;
    next.ending = None;
    next.cut = false;
    if error.is_some() {
        next.last_error = error;
    }
    let kind = match to {
        S::Completed => "agent.completed",
        S::Failed => "agent.failed",
        _ => "agent.cancelled",
    };
    moved(next, [C::ChildEnded { ended: to }, C::Publish { kind }])
}

pub fn name(event: &AgentEvent) -> &'static str {
    match event {
        E::Begun => "begun",
        E::TasksEnded { .. } => "tasks_ended",
        E::Failed { .. } => "failed",
        E::ToBeRetried { .. } => "to_be_retried",
        E::Skipped { .. } => "skipped",
        E::Held => "held",
        E::Woken => "woken",
        E::Cancelled => "cancelled",
    }
}
