//! How an end is passed up the tree of a run: when a step ends, its task decides whether it has ended too, then its agent, then the run; and
//! what happens to siblings. The engine's transactions and the tests' explorer run this code, each over its own [`Rows`].
//!
//! Each parent decides from its counters ([`crate::children`]). Rows are read by id, and only those that change; a cancel of many
//! children stops after [`CHUNK`] rows, and the run's work item goes on with the rest in the next commit.

mod begin;
mod child;
mod end;
mod fail;
mod hold;

pub use begin::{answer_offered, begin_agents, begin_rank, begin_steps, end_timer, may_be_taken, take_step};
pub use child::{MAX_OPEN_CHILDREN, NewChild, add_child, begin_child, complete_child, fail_child, lose_child};
pub use end::{
    cancel_rank, cancel_step, complete_rank, complete_step, continue_endings, is_current, is_to_stop, renew_agent,
    resubmit_rank, settle_run, stop_agents, supersede_agent,
};
pub use fail::{
    Verified, approve_step, ask_approval, expire_agent, expire_task, fail_agent, fail_dialogue, fail_rank, fail_step,
    lose_step, refuse_step, resolve_ticket, verified,
};
pub use hold::{Jobs, go_on, hold_agents, wake_agents};

use crate::agent::{Agent, AgentConsequence, AgentEvent, AgentKind};
use crate::attempt::Attempt;
use crate::children::{ChildState, Children};
use crate::recovery::EscalationLimits;
use crate::run::{LastError, Run, RunEvent, RunReason};
use crate::step::{Offer, Step, StepConsequence, StepEvent, StepWait};
use crate::task::{Task, TaskConsequence, TaskEvent};
use crate::{AgentId, Outcome, Refused, StepId, TaskId, Timestamp, string_enum};
use serde::{Deserialize, Serialize};

/// Rows that one commit may cancel, hold or wake.
pub const CHUNK: usize = 200;

string_enum! {
    pub enum EndKind { Failed = "failed", Skipped = "skipped", Cancelled = "cancelled", Retried = "retried", Renewed = "renewed" }
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
        !matches!(self.to, EndKind::Retried | EndKind::Renewed)
    }
    pub fn failed(error: LastError) -> Ending {
        Ending { to: EndKind::Failed, error: Some(error), ..Ending::cancelled() }
    }
    pub fn skipped(error: LastError) -> Ending {
        Ending { to: EndKind::Skipped, error: Some(error), ..Ending::cancelled() }
    }
    /// Of an agent whose machine is lost: what is in flight comes to its end first.
    pub fn renewed(error: LastError, at: Timestamp) -> Ending {
        Ending { to: EndKind::Renewed, ..Ending::retried(error, at) }
    }
    pub fn retried(error: LastError, at: Timestamp) -> Ending {
        Ending { to: EndKind::Retried, error: Some(error), retry_at: Some(at), ..Ending::cancelled() }
    }
}

/// Which children of a parent are meant, in order of their sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pick {
    Pending,
    /// Pending, and the time of their next try has come.
    Due,
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
    /// Whatever its state.
    Any,
}

/// Whether a step may begin, which its record, its input, its price and its policy decide.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ready {
    Go,
    /// Not in this commit: its input is not evaluated yet, its machine is not there, or too many steps run.
    Later,
    /// A step of this identity and key has finished in this run: its record answers.
    Recorded,
    /// One was begun, perhaps in an earlier attempt, and its outcome is unknown.
    Unknown,
    /// Its `if` is false.
    NotNeeded,
    /// A step of the tool `wait`: nothing is called, and it is over at this time.
    Wait {
        until: Timestamp,
    },
    /// A step of the tool `external`: it begins when a program of the user's takes it.
    Offer(Offer),
    /// Its endpoint asked to be left alone until then.
    NotBefore {
        at: Timestamp,
    },
    /// A person has to approve its input first.
    Ask,
    /// It cannot be called with what its expressions gave, or a person said no.
    Refused(LastError),
    /// A person decides: it had begun with another input.
    Escalate(LastError),
    /// Not even its own maximum can be paid.
    Unaffordable(LastError),
}

/// Whether a task may begin, which its `if` and its `for_each` decide.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TaskReady {
    Go,
    /// Not in this commit: its expressions are not evaluated yet.
    Later,
    /// Its `if` is false.
    NotNeeded,
    /// Its `for_each` gave so many items.
    Each {
        items: i64,
    },
    /// Its expressions cannot be evaluated.
    Refused(LastError),
}

/// The rows of one run's tree, as a transaction or a simulated world holds them.
pub trait Rows {
    type Error: From<Refused>;

    fn at(&self) -> Timestamp;
    /// The fence of the work item whose holder begins steps in this commit.
    fn fence(&self) -> i64;
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
    /// Children of a step that are open, in order of their sequence. There are never more than [`MAX_OPEN_CHILDREN`].
    fn open_children(&mut self, parent: StepId) -> Result<Vec<StepId>, Self::Error>;

    fn task_ready(&mut self, task: &Task) -> Result<TaskReady, Self::Error>;
    /// One more pending task of the same plan as `first`, for another item.
    fn add_item(&mut self, first: &Task, item: i64) -> Result<(), Self::Error>;
    fn ready(&mut self, step: &Step) -> Result<Ready, Self::Error>;
    /// Whether a failure of this step counts among those of the run: of many refusals by one endpoint only the first does.
    fn is_counted(&self, _: &Step) -> bool {
        true
    }
    /// `next` is what an event makes of this step: what its try has cost is charged here, and what was set aside for it is released, before
    /// anything above it is settled.
    fn step_moves(&mut self, _: &Step, next: Step) -> Result<Step, Self::Error> {
        Ok(next)
    }
    /// Its row says that it runs, that it waits for a time, or that it is offered.
    fn step_begun(&mut self, step: &Step) -> Result<(), Self::Error>;
    /// The time of a step of the tool `wait` has come: its output is written.
    fn timer_ended(&mut self, step: &Step) -> Result<(), Self::Error>;

    /// How many tasks the plan of an agent has.
    fn planned_tasks(&mut self, agent: &Agent) -> Result<i64, Self::Error>;
    /// Makes the rows of an agent's tasks, or of a task's steps; how many.
    fn make_tasks(&mut self, agent: &Agent) -> Result<i64, Self::Error>;
    fn make_steps(&mut self, task: &Task) -> Result<i64, Self::Error>;
    /// Makes the row of a child, pending.
    fn make_child(&mut self, parent: &Step, child: NewChild) -> Result<StepId, Self::Error>;
    /// A fresh pending row in the place of one that has ended. The old row stays as history.
    fn replace_task(&mut self, ended: &Task) -> Result<(), Self::Error>;
    /// The row becomes history, and none takes its place before its agent begins anew.
    fn retire_task(&mut self, task: TaskId) -> Result<(), Self::Error>;
    fn replace_step(&mut self, ended: &Step) -> Result<(), Self::Error>;

    /// Whether a rank may be submitted to a machine now. If not, the implementation makes the run's item due again.
    fn may_submit(&mut self, agent: &Agent) -> Result<bool, Self::Error>;
    /// The agent has begun: its work item is woken, or a job is submitted for it.
    fn agent_begun(&mut self, agent: &Agent) -> Result<(), Self::Error>;
    /// The agent has ended: its machine, if it has one, is let go.
    fn agent_ended(&mut self, agent: AgentId);
    /// Whether the agent has an open job. The end of a rank's decides the rank's.
    fn has_job(&mut self, agent: AgentId) -> Result<bool, Self::Error>;
    fn wake_agent(&mut self, agent: AgentId, at: Timestamp);
    fn wake_run(&mut self, at: Timestamp);
    fn publish(&mut self, kind: &'static str, agent: AgentId);
    fn run_event(&mut self, event: RunEvent) -> Result<(), Self::Error>;
    /// A person decides what becomes of this step, or whether it may begin.
    fn open_ticket(&mut self, step: &Step) -> Result<(), Self::Error>;
    fn open_approval(&mut self, step: &Step) -> Result<(), Self::Error>;
    /// The step waits no longer: what a person was asked is answered, or needs no answer any more.
    fn close_question(&mut self, step: &Step, what: StepWait) -> Result<(), Self::Error>;
    /// Tickets of this run that are not resolved.
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
    /// It is ending: open children without a holder are cancelled.
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
        None if children.failed > 0 => Next::Ends(Ends::As(Ending::failed(child_failed()))),
        None if children.cancelled > 0 => Next::Ends(Ends::As(Ending::cancelled())),
        None => Next::Ends(Ends::Well),
    }
}

fn child_failed() -> LastError {
    LastError { code: "child_failed".into(), message: "something below it failed".into(), cause: None }
}

/// Whether anything of an agent of this kind may begin. While a new plan is made, only its planner works.
fn may_begin(run: &Run, kind: AgentKind) -> bool {
    run.begins_steps() && (!run.replanning || kind == AgentKind::Planner)
}

/// Moves an agent and counts it. The caller settles what follows from its end.
pub fn agent_event<R: Rows>(rows: &mut R, id: AgentId, event: &AgentEvent) -> Result<bool, R::Error> {
    let agent = rows.agent(id)?;
    let Outcome::Moved { mut next, consequences } = rows.apply_agent(&agent, event)? else {
        return Ok(false);
    };
    next.keep_time(rows.at());
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
            AgentConsequence::ChildEnded { .. } => rows.agent_ended(id),
        }
    }
    Ok(true)
}

fn task_event<R: Rows>(rows: &mut R, id: TaskId, event: &TaskEvent) -> Result<bool, R::Error> {
    let task = rows.task(id)?;
    let Outcome::Moved { mut next, consequences } = rows.apply_task(&task, event)? else {
        return Ok(false);
    };
    let mut agent = rows.agent(task.agent)?;
    agent.tasks.shift(task.child_state(), next.child_state());
    if *event == TaskEvent::Begun {
        next.active_from_ms = agent.active_ms_at(rows.at());
    }
    rows.set_agent(agent);
    rows.set_task(next);
    for consequence in consequences {
        let TaskConsequence::WakeAt { at } = consequence;
        rows.wake_agent(task.agent, at);
    }
    Ok(true)
}

fn step_event<R: Rows>(rows: &mut R, id: StepId, event: &StepEvent) -> Result<bool, R::Error> {
    let step = rows.step(id)?;
    debug_assert!(!step.replaced, "history does not change: {step:?}");
    let Outcome::Moved { next, consequences } = rows.apply_step(&step, event)? else {
        return Ok(false);
    };
    let next = rows.step_moves(&step, next)?;
    rows.set_step(next.clone());
    match step.parent {
        Some(parent) => child::count(rows, parent, &step, &next)?,
        None => count(rows, &step, &next)?,
    }
    let asked_about = next.verifying && !step.verifying;
    if child::is_worked_on(&step) && (asked_about || !child::is_worked_on(&next)) {
        child::end_children(rows, &step, &next)?;
    }
    for consequence in consequences {
        match consequence {
            _ if !child::has_driver(rows, &step)? => {}
            StepConsequence::WakeAt { at } => rows.wake_agent(step.agent, at),
            StepConsequence::ChildEnded { .. } => {
                let now = rows.at();
                rows.wake_agent(step.agent, now); // the next one may begin
            }
        }
    }
    match step.waits {
        Some(StepWait::Timer | StepWait::Poller) | None => {}
        Some(question) if next.waits == Some(question) => {}
        Some(question) => close_question(rows, &next, question)?,
    }
    Ok(true)
}

/// The task counts its step in another state.
fn count<R: Rows>(rows: &mut R, before: &Step, after: &Step) -> Result<(), R::Error> {
    let (from, to) = (before.child_state(), after.child_state());
    if from == to {
        return Ok(());
    }
    let mut task = rows.task(after.task)?;
    task.steps.shift(from, to);
    rows.set_task(task);
    let acting = child::acts(after) - child::acts(before);
    count_in_flight(rows, after, acting, waits(to) - waits(from))
}

fn waits(state: ChildState) -> i64 {
    i64::from(state == ChildState::Waiting)
}

/// The pause of an escalated run ends with the last of its tickets: its work item looks.
fn close_question<R: Rows>(rows: &mut R, step: &Step, question: StepWait) -> Result<(), R::Error> {
    rows.close_question(step, question)?;
    if question == StepWait::Ticket {
        let now = rows.at();
        rows.wake_run(now);
    }
    Ok(())
}

/// An agent counts its steps that are being worked on; the attempt counts only those that a worker acts on, because steps on a machine
/// can be frozen.
fn count_in_flight<R: Rows>(rows: &mut R, step: &Step, acting: i64, waiting: i64) -> Result<(), R::Error> {
    if acting == 0 && waiting == 0 {
        return Ok(());
    }
    let mut agent = rows.agent(step.agent)?;
    agent.acting += acting;
    agent.waiting += waiting;
    agent.keep_time(rows.at());
    rows.set_agent(agent);
    if acting == 0 || step.needs_machine() {
        return Ok(());
    }
    let mut attempt = rows.attempt()?;
    attempt.tree.in_flight += acting;
    let still = attempt.tree.in_flight == 0;
    rows.set_attempt(attempt)?;
    if still && rows.run().pause_asked.is_some() {
        let now = rows.at();
        rows.wake_run(now); // what the pause waits for
    }
    Ok(())
}
