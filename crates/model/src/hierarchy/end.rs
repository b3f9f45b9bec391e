//! From the bottom up: an end changes its parent's counters, and from these the parent decides whether it has ended too.

use super::begin::{begin_rank, begin_tasks};
use super::fail::agent_failed;
use super::{CHUNK, EndKind, Ending, Ends, Next, Pick, Rows, agent_event, may_begin, next, step_event, task_event};
use crate::agent::{Agent, AgentEvent, AgentKind, AgentStatus};
use crate::children::ChildState;
use crate::run::{LastError, RunEvent, RunOutcome, RunReason, RunStatus};
use crate::step::StepEvent;
use crate::task::{Task, TaskEvent};
use crate::{AgentId, StepId, TaskId, Timestamp};

/// What became of a parent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Advance {
    /// Something below it is open.
    Open,
    /// It has ended.
    Over,
}

pub fn complete_step<R: Rows>(rows: &mut R, id: StepId) -> Result<(), R::Error> {
    let step = rows.step(id)?;
    if !step.status.is_end() && step_event(rows, id, &StepEvent::Completed)? {
        let (at, window) = (rows.at(), rows.limits().window_ms);
        let mut attempt = rows.attempt()?;
        attempt.tree.errors.note(at, window, false);
        rows.set_attempt(attempt)?;
        settle_task(rows, step.task)?;
    }
    Ok(())
}

/// A step whose run, agent or task ends was cut off. `unknown`: it may have had an effect.
pub fn cancel_step<R: Rows>(rows: &mut R, id: StepId, unknown: bool) -> Result<(), R::Error> {
    let step = rows.step(id)?;
    step_event(rows, id, &StepEvent::Cancelled { unknown })?;
    settle_task(rows, step.task)
}

/// A rank's job has done its work.
pub fn complete_rank<R: Rows>(rows: &mut R, id: AgentId) -> Result<(), R::Error> {
    begin_rank(rows, id)?;
    for task in rows.tasks(id, Pick::Running, CHUNK)? {
        for step in rows.steps(task, Pick::Running, CHUNK)? {
            step_event(rows, step, &StepEvent::Completed)?;
        }
        settle_task(rows, task)?;
    }
    Ok(())
}

/// A rank's job was stopped. What never began is only counted as cancelled.
pub fn cancel_rank<R: Rows>(rows: &mut R, id: AgentId) -> Result<(), R::Error> {
    for task in rows.tasks(id, Pick::Running, CHUNK)? {
        for step in rows.steps(task, Pick::Running, CHUNK)? {
            step_event(rows, step, &StepEvent::Cancelled { unknown: false })?;
        }
    }
    end_agent_with(rows, id, Ending::cancelled())
}

/// A rank's machine was lost before its work was done: everything that had begun begins again on another one.
pub fn undo_rank<R: Rows>(rows: &mut R, id: AgentId, due: Timestamp, error: &LastError) -> Result<(), R::Error> {
    for task in rows.tasks(id, Pick::Running, CHUNK)? {
        for step in rows.steps(task, Pick::Running, CHUNK)? {
            step_event(rows, step, &StepEvent::ToBeRetried { at: due, error: error.clone() })?;
        }
        task_event(rows, task, &TaskEvent::ToBeRetried { at: due, error: error.clone() })?;
    }
    match rows.agent(id)?.status {
        AgentStatus::Pending => Ok(()), // it has been undone
        _ => agent_event(rows, id, &AgentEvent::ToBeRetried { at: due, error: error.clone() }).map(drop),
    }
}

/// A newer plan takes the place of this agent's.
pub fn supersede_agent<R: Rows>(rows: &mut R, id: AgentId) -> Result<(), R::Error> {
    end_agent_with(rows, id, Ending::cancelled())
}

/// Gives an agent its end, now or as soon as nothing below it is in flight. The first end wins.
fn end_agent_with<R: Rows>(rows: &mut R, id: AgentId, ending: Ending) -> Result<(), R::Error> {
    let mut agent = rows.agent(id)?;
    if agent.status.is_end() {
        return Ok(());
    }
    let decided = agent.ending.as_ref().is_some_and(|earlier| earlier.is_final() || !ending.is_final());
    if !decided {
        agent.ending = Some(ending);
        rows.set_agent(agent);
    }
    settle_agent(rows, id)
}

pub(super) fn settle_task<R: Rows>(rows: &mut R, id: TaskId) -> Result<(), R::Error> {
    let agent = rows.task(id)?.agent;
    let mut room = CHUNK;
    let task = advance_task(rows, id, &mut room)?;
    // An agent that is ending may have waited for this step only.
    if task == Advance::Over || rows.agent(agent)?.ending.is_some() { settle_agent(rows, agent) } else { Ok(()) }
}

pub(super) fn settle_agent<R: Rows>(rows: &mut R, id: AgentId) -> Result<(), R::Error> {
    let mut room = CHUNK;
    match advance_agent(rows, id, &mut room)? {
        Advance::Over => settle_run(rows),
        Advance::Open => Ok(()),
    }
}

fn advance_task<R: Rows>(rows: &mut R, id: TaskId, room: &mut usize) -> Result<Advance, R::Error> {
    loop {
        let mut task = rows.task(id)?;
        if task.status.is_end() {
            return Ok(Advance::Over);
        }
        match next(&task.steps, task.ending.as_ref()) {
            Next::Goes => return Ok(Advance::Open),
            // Its steps have no rows yet: they end as counted.
            Next::Cancel if task.step_count == 0 => {
                let pending = task.steps.pending;
                task.steps.shift_many(ChildState::Pending, ChildState::Cancelled, pending);
                rows.set_task(task);
            }
            Next::Cancel => {
                let retried = task.ending.as_ref().is_some_and(|ending| ending.to == EndKind::Retried);
                let pick = if retried { Pick::Waiting } else { Pick::Open };
                let open = rows.steps(id, pick, *room)?;
                if open.is_empty() {
                    cut_task(rows, task)?;
                    return Ok(Advance::Open);
                }
                for step in open {
                    step_event(rows, step, &StepEvent::Cancelled { unknown: false })?;
                    *room -= 1;
                }
            }
            Next::Ends(ends) => return end_task(rows, task, ends, room),
        }
    }
}

/// This commit has no room left: the run's work item goes on.
fn cut_task<R: Rows>(rows: &mut R, mut task: Task) -> Result<(), R::Error> {
    task.cut = true;
    let agent = task.agent;
    rows.set_task(task);
    cut_agent(rows, agent)
}

fn cut_agent<R: Rows>(rows: &mut R, id: AgentId) -> Result<(), R::Error> {
    let mut agent = rows.agent(id)?;
    agent.cut = true;
    rows.set_agent(agent);
    leave_the_rest(rows)
}

fn leave_the_rest<R: Rows>(rows: &mut R) -> Result<(), R::Error> {
    let mut attempt = rows.attempt()?;
    attempt.tree.unfinished = true;
    rows.set_attempt(attempt)?;
    let now = rows.at();
    rows.wake_run(now);
    Ok(())
}

fn end_task<R: Rows>(rows: &mut R, task: Task, ends: Ends, room: &mut usize) -> Result<Advance, R::Error> {
    let ending = match ends {
        Ends::Well => {
            let event = match task.steps.outcome() {
                RunOutcome::Skipped => TaskEvent::AllStepsSkipped,
                outcome => TaskEvent::StepsEnded { outcome },
            };
            task_event(rows, task.id, &event)?;
            return release_dependents(rows, &task, event == TaskEvent::AllStepsSkipped, room).map(|()| Advance::Over);
        }
        Ends::As(ending) => ending,
    };
    let error = ending.error.clone().unwrap_or_else(cancelled);
    match ending.to {
        EndKind::Retried => {
            retry_task(rows, &task, &ending, error)?;
            return Ok(Advance::Open);
        }
        EndKind::Cancelled => drop(task_event(rows, task.id, &TaskEvent::Cancelled)?),
        EndKind::Skipped => {
            task_event(rows, task.id, &TaskEvent::Skipped { error })?;
            count_failed_task(rows)?;
            release_dependents(rows, &task, true, room)?;
        }
        EndKind::Failed => {
            task_event(rows, task.id, &TaskEvent::Failed { error: error.clone() })?;
            count_failed_task(rows)?;
            agent_failed(rows, task.agent, ending.reason, error)?;
        }
    }
    Ok(Advance::Over)
}

fn retry_task<R: Rows>(rows: &mut R, task: &Task, ending: &Ending, error: LastError) -> Result<(), R::Error> {
    for id in rows.steps(task.id, Pick::Failed, CHUNK)? {
        let ended = rows.step(id)?;
        let mut task = rows.task(task.id)?;
        task.steps.shift(ended.child_state(), ChildState::Pending);
        rows.set_task(task);
        rows.replace_step(&ended)?;
    }
    let at = ending.retry_at.unwrap_or_else(|| rows.at());
    task_event(rows, task.id, &TaskEvent::ToBeRetried { at, error }).map(drop)
}

fn count_failed_task<R: Rows>(rows: &mut R) -> Result<(), R::Error> {
    let mut attempt = rows.attempt()?;
    attempt.tree.failed_tasks += 1;
    rows.set_attempt(attempt)
}

/// Tasks that waited for this one wait for one less; if it was skipped, so are they (R47).
fn release_dependents<R: Rows>(rows: &mut R, task: &Task, skipped: bool, room: &mut usize) -> Result<(), R::Error> {
    let mut released: Vec<(i64, bool)> = task.dependents.iter().map(|sequence| (*sequence, skipped)).collect();
    while let Some((sequence, skipped)) = released.pop() {
        let id = rows.task_at(task.agent, sequence)?;
        let mut dependent = rows.task(id)?;
        dependent.waits_for -= 1;
        let skips = skipped && !dependent.status.is_end() && dependent.ending.is_none();
        if skips {
            let message = format!("`{}`, which it waits for, was skipped", task.name);
            let error = LastError { code: "upstream_failed".into(), message, cause: None };
            dependent.ending = Some(Ending::skipped(error));
        }
        rows.set_task(dependent.clone());
        if skips {
            // Pending, so nothing below it is in flight: it ends here, and its own dependents after it.
            skip_pending(rows, id, room)?;
            released.extend(dependent.dependents.iter().map(|sequence| (*sequence, true)));
        }
    }
    Ok(())
}

fn skip_pending<R: Rows>(rows: &mut R, id: TaskId, room: &mut usize) -> Result<(), R::Error> {
    let mut task = rows.task(id)?;
    let Some(error) = task.ending.clone().and_then(|ending| ending.error) else { return Ok(()) };
    let pending = task.steps.pending;
    task.steps.shift_many(ChildState::Pending, ChildState::Cancelled, pending);
    rows.set_task(task);
    *room = room.saturating_sub(1);
    task_event(rows, id, &TaskEvent::Skipped { error }).map(drop)
}

fn advance_agent<R: Rows>(rows: &mut R, id: AgentId, room: &mut usize) -> Result<Advance, R::Error> {
    let agent = rows.agent(id)?;
    if agent.status.is_end() {
        return Ok(Advance::Over);
    }
    if let Some(ending) = agent.ending.clone()
        && end_tasks(rows, &agent, &ending, room)? == Swept::Cut
    {
        cut_agent(rows, id)?;
        return Ok(Advance::Open);
    }
    let agent = rows.agent(id)?;
    if agent.status.is_end() {
        return Ok(Advance::Over); // by what followed from the end of one of its tasks
    }
    match next(&agent.tasks, agent.ending.as_ref()) {
        Next::Goes if agent.ending.is_none() && agent.kind != AgentKind::Rank && may_begin(rows.run(), agent.kind) => {
            begin_tasks(rows, id)?;
            if rows.agent(id)?.tasks != agent.tasks {
                let now = rows.at();
                rows.wake_agent(id, now);
            }
            Ok(Advance::Open)
        }
        Next::Goes | Next::Cancel => Ok(Advance::Open),
        Next::Ends(ends) => end_agent(rows, &agent, ends),
    }
}

#[derive(PartialEq, Eq)]
enum Swept {
    All,
    Cut,
}

/// Every task of an agent that ends is told so: those that nothing is in flight of end at once.
fn end_tasks<R: Rows>(rows: &mut R, agent: &Agent, ending: &Ending, room: &mut usize) -> Result<Swept, R::Error> {
    let retried = ending.to == EndKind::Retried;
    if agent.task_count == 0 {
        if !retried {
            let mut agent = agent.clone();
            let pending = agent.tasks.pending;
            agent.tasks.shift_many(ChildState::Pending, ChildState::Cancelled, pending);
            rows.set_agent(agent);
        }
        return Ok(Swept::All);
    }
    // A retry takes over the tasks that have not begun.
    let pick = if retried { Pick::Running } else { Pick::Open };
    let open = rows.tasks(agent.id, pick, (*room).max(1))?;
    for id in open {
        if *room == 0 {
            return Ok(Swept::Cut);
        }
        let mut task = rows.task(id)?;
        if !task.ending.as_ref().is_some_and(Ending::is_final) {
            task.ending = Some(Ending::cancelled());
            rows.set_task(task);
            *room -= 1;
            let agent = rows.task(id)?.agent;
            rows.wake_agent(agent, rows.at()); // whoever acts on its steps is to stop
            advance_task(rows, id, room)?;
        }
    }
    let left = if retried { Vec::new() } else { rows.tasks(agent.id, Pick::Open, 1)? };
    Ok(if left.is_empty() { Swept::All } else { Swept::Cut })
}

fn end_agent<R: Rows>(rows: &mut R, agent: &Agent, ends: Ends) -> Result<Advance, R::Error> {
    let ending = match ends {
        Ends::Well => {
            let event = match agent.tasks.outcome() {
                RunOutcome::Skipped => AgentEvent::Skipped { error: all_skipped() },
                outcome => AgentEvent::TasksEnded { outcome },
            };
            agent_event(rows, agent.id, &event)?;
            if agent.kind == AgentKind::Planner {
                rows.plan_made(agent.id)?;
            }
            return Ok(Advance::Over);
        }
        Ends::As(ending) => ending,
    };
    let error = ending.error.clone().unwrap_or_else(cancelled);
    match ending.to {
        EndKind::Retried => {
            retry_agent(rows, agent, &ending, error)?;
            return Ok(Advance::Open);
        }
        EndKind::Cancelled => drop(agent_event(rows, agent.id, &AgentEvent::Cancelled)?),
        EndKind::Skipped => drop(agent_event(rows, agent.id, &AgentEvent::Skipped { error })?),
        EndKind::Failed => {
            agent_event(rows, agent.id, &AgentEvent::Failed { error: error.clone() })?;
            let reason = match agent.kind {
                AgentKind::Planner => RunReason::PlannerFailed,
                _ => ending.reason.unwrap_or(RunReason::AgentFailed),
            };
            match ending.reason {
                None if rows.run().replanning && agent.kind != AgentKind::Planner => {} // its failure is the planner's input
                _ => rows.run_event(RunEvent::AgentFailed { reason, error })?,
            }
        }
    }
    Ok(Advance::Over)
}

fn retry_agent<R: Rows>(rows: &mut R, agent: &Agent, ending: &Ending, error: LastError) -> Result<(), R::Error> {
    for id in rows.tasks(agent.id, Pick::Failed, CHUNK)? {
        let ended = rows.task(id)?;
        let mut agent = rows.agent(agent.id)?;
        agent.tasks.shift(ended.child_state(), ChildState::Pending);
        rows.set_agent(agent);
        rows.replace_task(&ended)?;
    }
    let at = ending.retry_at.unwrap_or_else(|| rows.at());
    agent_event(rows, agent.id, &AgentEvent::ToBeRetried { at, error }).map(drop)
}

/// The run looks at its counters: it has ended, it is to be ended, or other agents may begin.
pub fn settle_run<R: Rows>(rows: &mut R) -> Result<(), R::Error> {
    let run = rows.run();
    if run.status.is_end() || run.status == RunStatus::Created {
        return Ok(());
    }
    let tree = rows.attempt()?.tree;
    let open = tree.agents.open() + tree.superseded;
    match (&rows.run().termination, open) {
        (Some(_), _) => rows.finalise(),
        (None, 0) if tree.agents.total() == 0 => Ok(()), // before its agents are made
        (None, 0) => {
            let event = match tree.agents.cancelled {
                0 => RunEvent::AllAgentsCompleted { outcome: tree.agents.outcome() },
                // Ended although nobody asked the run: what it wanted will not come any more.
                _ => RunEvent::CancelAsked { abort: false },
            };
            rows.run_event(event)?;
            rows.finalise()
        }
        (None, _) => super::begin_agents(rows),
    }
}

/// A termination stands: every agent ends. Jobs have been asked to stop, and end their agents themselves.
pub fn stop_agents<R: Rows>(rows: &mut R) -> Result<(), R::Error> {
    let mut room = CHUNK;
    loop {
        let open = rows.agents(Pick::Open, room.max(1))?;
        if open.is_empty() {
            return rows.finalise();
        }
        for id in open {
            if room == 0 {
                return leave_the_rest(rows);
            }
            room -= 1;
            let mut agent = rows.agent(id)?;
            if rows.has_job(id)? {
                agent.stopping = true;
                rows.set_agent(agent);
                continue;
            }
            agent.ending = Some(Ending::cancelled());
            rows.set_agent(agent);
            let now = rows.at();
            rows.wake_agent(id, now);
            advance_agent(rows, id, &mut room)?;
        }
    }
}

/// Goes on where earlier commits had no room.
pub fn continue_endings<R: Rows>(rows: &mut R) -> Result<(), R::Error> {
    let mut attempt = rows.attempt()?;
    attempt.tree.unfinished = false;
    rows.set_attempt(attempt)?;
    let mut room = CHUNK;
    for id in rows.agents(Pick::Cut, CHUNK)? {
        let mut agent = rows.agent(id)?;
        agent.cut = false;
        rows.set_agent(agent);
        for task in rows.tasks(id, Pick::Cut, CHUNK)? {
            let mut cut = rows.task(task)?;
            cut.cut = false;
            rows.set_task(cut);
            advance_task(rows, task, &mut room)?;
        }
        if advance_agent(rows, id, &mut room)? == Advance::Over {
            settle_run(rows)?;
        }
        if room == 0 {
            return leave_the_rest(rows);
        }
    }
    Ok(())
}

fn cancelled() -> LastError {
    LastError { code: "cancelled".into(), message: "cancelled".into(), cause: None }
}

fn all_skipped() -> LastError {
    LastError { code: "all_skipped".into(), message: "all of its tasks were skipped".into(), cause: None }
}
