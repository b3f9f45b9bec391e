//! The state machine of an agent: a run's logical worker with a sequence of tasks. A plain task has one agent. A system agent is added to a run
//! that failed although none of its agents did; it carries the cause.

use crate::children::{ChildState, Children};
use crate::hierarchy::Ending;
use crate::plan::AgentPlan;
use crate::run::{LastError, Run, RunOutcome};
use crate::spec::FailureMode;
use crate::task::{Task, TaskStatus};
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

impl Agent {
    fn is_active(&self) -> bool {
        self.status == AgentStatus::Running && (self.acting > 0 || self.waiting == 0)
    }

    /// Starts or stops the clock of its active time, after something below it or its own status changed.
    pub fn keep_time(&mut self, at: Timestamp) {
        match (self.is_active(), self.active_since) {
            (true, None) => self.active_since = Some(at),
            (false, Some(since)) => {
                self.active_ms += at.since(since);
                self.active_since = None;
            }
            _ => {}
        }
    }

    pub fn active_ms_at(&self, at: Timestamp) -> i64 {
        self.active_ms + self.active_since.map_or(0, |since| at.since(since))
    }

    /// When its active time reaches this much; never, while its clock stands still.
    pub fn active_reaches(&self, ms: i64) -> Option<Timestamp> {
        self.active_since.map(|since| since + (ms - self.active_ms))
    }

    /// When its own time is up.
    pub fn deadline(&self) -> Option<Timestamp> {
        self.timeout_ms.and_then(|ms| self.active_reaches(ms))
    }

    /// When the time of one of its tasks is up.
    pub fn deadline_of(&self, task: &Task) -> Option<Timestamp> {
        if task.status != TaskStatus::Running {
            return None;
        }
        task.timeout_ms.and_then(|ms| self.active_reaches(task.active_from_ms + ms))
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
    /// Jobs that were submitted for it.
    #[serde(default)]
    pub submissions: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub due_at: Option<Timestamp>,
    /// Its tasks by state, those without a row included.
    pub tasks: Children,
    /// Tasks that have a row.
    pub task_count: i64,
    /// Tokens that its models have read and written.
    #[serde(default)]
    pub tokens: i64,
    /// `acting`: steps below it that have a holder, a machine or a program working on them. `waiting`: those that wait for a person.
    #[serde(default)]
    pub acting: i64,
    #[serde(default)]
    pub waiting: i64,
    /// Active time of the present try so far, and since when it is running on. Time in which its steps only wait for people does not
    /// count.
    #[serde(default)]
    pub active_ms: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub active_since: Option<Timestamp>,
    /// Set when it must end and something below it is still in flight.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ending: Option<Ending>,
    /// A commit had no room to cancel all of its open tasks: the run's work item goes on with them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cut: bool,
    /// Finished steps of which the files in the workdir of its present machine may be needed.
    #[serde(default)]
    pub in_workdir: i64,
    /// Trees of files that finished steps have left: to be laid into the workdir before its next command starts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub restores: Vec<String>,
    /// It gets its next machine not before this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine_at: Option<Timestamp>,
    /// Until then, a step of it may wait for an endpoint that asked to be left alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub put_off: Option<Timestamp>,
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

impl Agent {
    /// An agent that has not begun. Its tasks are only counted until it does. A rank's time is its run's.
    pub fn planned(id: AgentId, run: &Run, kind: AgentKind, sequence: i64, plan: &AgentPlan) -> Agent {
        Agent {
            id,
            run: run.id,
            attempt: run.attempt,
            plan_version: run.plan_version,
            sequence,
            kind,
            name: plan.name.clone(),
            status: AgentStatus::Pending,
            outcome: None,
            mode: plan.mode,
            parallel: plan.parallel,
            tries: 0,
            max_tries: plan.max_tries,
            submissions: 0,
            timeout_ms: (kind != AgentKind::Rank).then_some(plan.timeout_ms),
            due_at: None,
            tasks: Children::planned(plan.tasks.len() as i64),
            task_count: 0,
            tokens: 0,
            acting: 0,
            waiting: 0,
            active_ms: 0,
            active_since: None,
            ending: None,
            cut: false,
            in_workdir: 0,
            restores: Vec::new(),
            machine_at: None,
            put_off: None,
            stopping: false,
            last_error: None,
            started_at: None,
            ended_at: None,
        }
    }

    /// Carries the cause of a failed run in which no other agent failed.
    pub fn system(id: AgentId, run: &Run, error: LastError, at: Timestamp) -> Agent {
        Agent {
            status: AgentStatus::Failed,
            last_error: Some(error),
            ended_at: Some(at),
            timeout_ms: None,
            max_tries: 1,
            ..Agent::planned(id, run, AgentKind::System, -1, &AgentPlan::new("system", Vec::new()))
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AgentEvent {
    Begun,
    TasksEnded {
        outcome: RunOutcome,
    },
    Failed {
        error: LastError,
    },
    ToBeRetried {
        at: Timestamp,
        error: LastError,
    },
    /// Its machine is lost with files that its steps need: it begins anew on another one, and this is the same try.
    Renewed {
        at: Timestamp,
        error: LastError,
    },
    Skipped {
        error: LastError,
    },
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
            (next.active_ms, next.active_since) = (0, None); // a try has its own time
            next.due_at = Some(*due);
            next.last_error = Some(error.clone());
            moved(next, [C::WakeAt { at: *due }, C::Publish { kind: "agent.pending" }])
        }
        // Held, or woken and not begun again (`Held` took its try back): what begins next is the next try.
        (S::Pending | S::Paused, E::ToBeRetried { at: due, error }) => {
            next.tries += 1;
            next.ending = None;
            (next.active_ms, next.active_since) = (0, None);
            next.due_at = Some(*due);
            next.last_error = Some(error.clone());
            moved(next, [C::WakeAt { at: *due }])
        }
        (S::Pending | S::Running | S::Paused, E::Renewed { at: due, error }) => {
            next.ending = None;
            next.last_error = Some(error.clone());
            (next.in_workdir, next.restores) = (0, Vec::new());
            next.due_at = Some(*due);
            if agent.status != S::Running {
                return moved(next, [C::WakeAt { at: *due }]);
            }
            next.status = S::Pending;
            next.tries -= 1;
            moved(next, [C::WakeAt { at: *due }, C::Publish { kind: "agent.pending" }])
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
        E::Renewed { .. } => "renewed",
        E::Skipped { .. } => "skipped",
        E::Held => "held",
        E::Woken => "woken",
        E::Cancelled => "cancelled",
    }
}
