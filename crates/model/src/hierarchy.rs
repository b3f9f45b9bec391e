//! How an end travels up the tree of a run: a step ends, its task decides, its agent decides, its run decides; and what the siblings do
//! meanwhile. The engine's transactions and the explorer of the tests run this same code over their own [`Rows`].
//!
//! Each parent decides from its counters ([`crate::children`]). Rows are read by id, and only those that change; a cancel of many
//! children stops after [`CHUNK`] rows, and the run's work item goes on with the rest in the next commit.

mod begin;
mod end;
mod fail;
mod hold;

pub use begin::{begin_agents, begin_rank, begin_steps};
pub use end::{
    cancel_rank, cancel_step, complete_rank, complete_step, continue_endings, settle_run, stop_agents, supersede_agent,
    undo_rank,
};
pub use fail::{
    approve_step, ask_approval, expire_agent, expire_task, fail_rank, fail_step, lose_step, resolve_ticket,
};
pub use hold::{hold_agents, wake_agents};

use crate::agent::{Agent, AgentConsequence, AgentEvent, AgentKind};
use crate::attempt::Attempt;
use crate::children::{ChildState, Children};
use crate::recovery::EscalationLimits;
use crate::run::{LastError, Run, RunEvent, RunReason, RunStatus};
use crate::step::{Step, StepConsequence, StepEvent};
use crate::task::{Task, TaskConsequence, TaskEvent};
use crate::{AgentId, Outcome, Refused, StepId, TaskId, Timestamp, string_enum};
use serde::{Deserialize, Serialize};

/// Rows that one commit may cancel, hold or wake.
pub const CHUNK: usize = 200;

string_enum! {
    pub enum EndKind { Failed = "failed", Skipped = "skipped", Cancelled = "cancelled", Retried = "retried" }
}

/// A task or an agent that must end, or be tried again, as soon as nothing below it is in flight. Nothing below it begins any more.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Ending {
    pub to: EndKind,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<LastError>,
    /// The run's reason, if this end is to end the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<RunReason>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_at: Option<Timestamp>,
}

impl Ending {
    pub fn cancelled() -> Ending {
        Ending { to: EndKind::Cancelled, error: None, reason: None, retry_at: None }
    }
    /// Whether this parent will be over: a retry begins again.
    pub fn is_final(&self) -> bool {
        self.to != EndKind::Retried
    }
    pub fn failed(error: LastError) -> Ending {
        Ending { to: EndKind::Failed, error: Some(error), ..Ending::cancelled() }
    }
    pub fn skipped(error: LastError) -> Ending {
        Ending { to: EndKind::Skipped, error: Some(error), ..Ending::cancelled() }
    }
    pub fn retried(error: LastError, at: Timestamp) -> Ending {
        Ending { to: EndKind::Retried, error: Some(error), retry_at: Some(at), ..Ending::cancelled() }
    }
}

/// Which children of a parent are meant, in order of their sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pick {
    Pending,
    Running,
    Paused,
    /// Steps that wait for a person, or whose outcome is unknown.
    Waiting,
    /// Failed or cancelled: what a retry of the parent begins anew.
    Failed,
    /// Open, not on the way to an end (a retry is none), and, of steps, not in flight.
    Open,
    /// Has open children that a commit had no room to cancel.
    Cut,
}

/// The rows of one run's tree, as a transaction or a simulated world holds them.
pub trait Rows {
    type Error: From<Refused>;

    fn at(&self) -> Timestamp;
    fn run(&self) -> &Run;
    fn limits(&self) -> EscalationLimits;
    /// Whether what is set aside for the run pays for one more try.
    fn pays_for_retry(&mut self) -> Result<bool, Self::Error>;

    fn attempt(&mut self) -> Result<Attempt, Self::Error>;
    fn set_attempt(&mut self, attempt: Attempt) -> Result<(), Self::Error>;
    fn agent(&mut self, id: AgentId) -> Result<Agent, Self::Error>;
    fn set_agent(&mut self, agent: Agent);
    fn task(&mut self, id: TaskId) -> Result<Task, Self::Error>;
    fn set_task(&mut self, task: Task);
    fn step(&mut self, id: StepId) -> Result<Step, Self::Error>;
    fn set_step(&mut self, step: Step);

    /// One move of a life. A test overrides these to see which moves are made.
    fn apply_agent(&mut self, agent: &Agent, event: &AgentEvent) -> Result<Outcome<Agent, AgentConsequence>, Refused> {
        crate::agent::apply(agent, event, self.at())
    }
    fn apply_task(&mut self, task: &Task, event: &TaskEvent) -> Result<Outcome<Task, TaskConsequence>, Refused> {
        crate::task::apply(task, event, self.at())
    }
    fn apply_step(&mut self, step: &Step, event: &StepEvent) -> Result<Outcome<Step, StepConsequence>, Refused> {
        crate::step::apply(step, event, self.at())
    }

    fn agents(&mut self, pick: Pick, limit: usize) -> Result<Vec<AgentId>, Self::Error>;
    fn tasks(&mut self, agent: AgentId, pick: Pick, limit: usize) -> Result<Vec<TaskId>, Self::Error>;
    fn steps(&mut self, task: TaskId, pick: Pick, limit: usize) -> Result<Vec<StepId>, Self::Error>;
    fn task_at(&mut self, agent: AgentId, sequence: i64) -> Result<TaskId, Self::Error>;

    /// Makes the rows of an agent's tasks, or of a task's steps; how many.
    fn make_tasks(&mut self, agent: &Agent) -> Result<i64, Self::Error>;
    fn make_steps(&mut self, task: &Task) -> Result<i64, Self::Error>;
    /// A fresh pending row in the place of one that has ended. The old row stays as history.
    fn replace_task(&mut self, ended: &Task) -> Result<(), Self::Error>;
    fn replace_step(&mut self, ended: &Step) -> Result<(), Self::Error>;

    /// The agent has begun: whoever drives its steps is told.
    fn agent_begun(&mut self, agent: &Agent) -> Result<(), Self::Error>;
    /// Whether the agent has an open job. Its end decides the agent's.
    fn has_job(&mut self, agent: AgentId) -> Result<bool, Self::Error>;
    fn wake_agent(&mut self, agent: AgentId, at: Timestamp);
    fn wake_run(&mut self, at: Timestamp);
    fn publish(&mut self, kind: &'static str, agent: AgentId);
    fn run_event(&mut self, event: RunEvent) -> Result<(), Self::Error>;
    /// A person decides what becomes of this step.
    fn open_ticket(&mut self, step: &Step) -> Result<(), Self::Error>;
    /// Tickets of this run that nobody has resolved.
    fn open_tickets(&mut self) -> Result<i64, Self::Error>;
    /// Opens a planner agent, because too much has failed.
    fn open_planner(&mut self) -> Result<(), Self::Error>;
    /// The planner has ended well: its plan becomes the run's next version, or the run fails.
    fn plan_made(&mut self, planner: AgentId) -> Result<(), Self::Error>;
    /// Nothing below the run is open: ends it if its reason stands.
    fn finalise(&mut self) -> Result<(), Self::Error>;
}

/// What a parent does next, decided from its counters.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Next {
    /// Children run, wait for a person, or may begin.
    Goes,
    /// It is ending: open children that nobody works on are cancelled.
    Cancel,
    /// Nothing below it is open.
    Ends(Ends),
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Ends {
    Well,
    As(Ending),
}

fn next(children: &Children, ending: Option<&Ending>) -> Next {
    match ending {
        // Those that wait for a person belong to this try; pending ones are taken over by the next. If all was done before its
        // time was up could be noticed, there is nothing to try again.
        Some(ending) if ending.to == EndKind::Retried => match children {
            _ if children.open() + children.failed + children.cancelled == 0 => Next::Ends(Ends::Well),
            _ if children.waiting > 0 => Next::Cancel,
            _ if children.running > 0 => Next::Goes,
            _ => Next::Ends(Ends::As(ending.clone())),
        },
        Some(_) if children.pending + children.waiting + children.paused > 0 => Next::Cancel,
        Some(_) if children.running > 0 => Next::Goes,
        Some(ending) => Next::Ends(Ends::As(ending.clone())),
        None if children.open() > 0 => Next::Goes,
        None if children.cancelled > 0 => Next::Ends(Ends::As(Ending::cancelled())),
        None => Next::Ends(Ends::Well),
    }
}

/// Whether anything of an agent of this kind may begin. While a new plan is made, only its planner works.
fn may_begin(run: &Run, kind: AgentKind) -> bool {
    let goes_on = run.status == RunStatus::Running && run.termination.is_none() && run.pause_asked.is_none();
    goes_on && (!run.replanning || kind == AgentKind::Planner)
}

/// Moves an agent and counts it. The caller settles what follows from its end.
pub fn agent_event<R: Rows>(rows: &mut R, id: AgentId, event: &AgentEvent) -> Result<bool, R::Error> {
    let agent = rows.agent(id)?;
    let Outcome::Moved { next, consequences } = rows.apply_agent(&agent, event)? else {
        return Ok(false);
    };
    let (from, to) = (agent.child_state(), next.child_state());
    if agent.kind != AgentKind::System && from != to {
        let mut attempt = rows.attempt()?;
        if agent.plan_version == rows.run().plan_version {
            attempt.tree.agents.shift(from, to);
        } else if next.status.is_end() && !agent.status.is_end() {
            attempt.tree.superseded -= 1;
        }
        rows.set_attempt(attempt)?;
    }
    rows.set_agent(next);
    for consequence in consequences {
        match consequence {
            AgentConsequence::Publish { kind } => rows.publish(kind, id),
            AgentConsequence::WakeAt { at } => rows.wake_run(at),
            AgentConsequence::ChildEnded { .. } => {}
        }
    }
    Ok(true)
}

fn task_event<R: Rows>(rows: &mut R, id: TaskId, event: &TaskEvent) -> Result<bool, R::Error> {
    let task = rows.task(id)?;
    let Outcome::Moved { next, consequences } = rows.apply_task(&task, event)? else {
        return Ok(false);
    };
    let mut agent = rows.agent(task.agent)?;
    agent.tasks.shift(task.child_state(), next.child_state());
    rows.set_agent(agent);
    rows.set_task(next);
    for consequence in consequences {
        match consequence {
            TaskConsequence::WakeAt { at } => rows.wake_agent(task.agent, at),
            TaskConsequence::ChildEnded { .. } => {}
        }
    }
    Ok(true)
}

fn step_event<R: Rows>(rows: &mut R, id: StepId, event: &StepEvent) -> Result<bool, R::Error> {
    let step = rows.step(id)?;
    let Outcome::Moved { next, consequences } = rows.apply_step(&step, event)? else {
        return Ok(false);
    };
    let (from, to) = (step.child_state(), next.child_state());
    if from != to {
        let mut task = rows.task(step.task)?;
        task.steps.shift(from, to);
        rows.set_task(task);
        count_in_flight(rows, step.agent, from, to)?;
    }
    rows.set_step(next);
    for consequence in consequences {
        match consequence {
            StepConsequence::WakeAt { at } => rows.wake_agent(step.agent, at),
            StepConsequence::ChildEnded { .. } => {}
        }
    }
    Ok(true)
}

/// Steps that a worker acts on are counted in the attempt. A rank's command is its machine's: that can be frozen.
fn count_in_flight<R: Rows>(rows: &mut R, agent: AgentId, from: ChildState, to: ChildState) -> Result<(), R::Error> {
    let change = i64::from(to == ChildState::Running) - i64::from(from == ChildState::Running);
    if change == 0 || rows.agent(agent)?.kind == AgentKind::Rank {
        return Ok(());
    }
    let mut attempt = rows.attempt()?;
    attempt.tree.in_flight += change;
    rows.set_attempt(attempt)
}
