//! From the bottom up: an end changes its parent's counters, and from these the parent decides whether it has ended too.

use super::begin::begin_rank;
use super::fail::agent_failed;
use super::{CHUNK, EndKind, Ending, Ends, Next, Pick, Rows, agent_event, next, step_event, task_event};
use crate::agent::{Agent, AgentEvent, AgentKind, AgentStatus};
use crate::children::{ChildState, Children};
use crate::run::{LastError, RunEvent, RunOutcome, RunReason, RunStatus};
use crate::step::{Step, StepEvent, StepStatus};
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

/// Whether a report about this try of a step is about what is open. Anything else is late evidence.
pub fn is_current(step: &Step, try_number: i64) -> bool {
    step.status == StepStatus::Running && step.tries == try_number && !step.replaced
}

/// A try of a step has done its work. A report about an older try, or about a step that has ended, changes nothing.
pub fn complete_step<R: Rows>(rows: &mut R, id: StepId, try_number: i64) -> Result<(), R::Error> {
    let step = rows.step(id)?;
    if step.parent.is_some() {
        return super::complete_child(rows, id, try_number);
    }
    if is_current(&step, try_number) && step_event(rows, id, &StepEvent::Completed)? {
        let (at, window) = (rows.at(), rows.limits().window_ms);
        let mut attempt = rows.attempt()?;
        attempt.tree.errors.note(at, window, false);
        rows.set_attempt(attempt)?;
        settle_task(rows, step.task)?;
    }
    Ok(())
}

/// A step whose run, agent or task ends was cut off. `unknown`: it may have had an effect.
pub fn cancel_step<R: Rows>(rows: &mut R, id: StepId, try_number: i64, unknown: bool) -> Result<(), R::Error> {
    let step = rows.step(id)?;
    if !is_current(&step, try_number) {
        return Ok(());
    }
    step_event(rows, id, &StepEvent::Cancelled { unknown })?;
    settle_step(rows, &step)
}

/// What follows from the end of a step, or of one of its tries: its task looks at its counters. That of a child matters only where
/// something above it ends or begins anew, and may have waited for this try only.
pub(super) fn settle_step<R: Rows>(rows: &mut R, step: &Step) -> Result<(), R::Error> {
    let waited_for = is_to_stop(rows, step)? || rows.agent(step.agent)?.ending.is_some();
    if step.parent.is_some() && !waited_for {
        return Ok(());
    }
    settle_task(rows, step.task)
}

/// Whether the holder of a step has to cut it off: its task, its agent or its run ends. An agent that begins anew waits for what is in
/// flight.
pub fn is_to_stop<R: Rows>(rows: &mut R, step: &Step) -> Result<bool, R::Error> {
    let ends = |ending: &Ending| ending.to != EndKind::Renewed;
    let above = rows.task(step.task)?.ending.is_some() || rows.agent(step.agent)?.ending.as_ref().is_some_and(ends);
    Ok(above || rows.run().termination.is_some())
}

/// An agent's machine is lost, and with it files that its steps need. When nothing below it is in flight it begins anew on another
/// machine, with fresh rows; steps whose files are not needed answer from their records.
pub fn renew_agent<R: Rows>(rows: &mut R, id: AgentId, at: Timestamp, error: LastError) -> Result<(), R::Error> {
    let mut agent = rows.agent(id)?;
    if agent.status.is_end() || agent.ending.is_some() {
        return Ok(());
    }
    agent.ending = Some(Ending::renewed(error, at));
    rows.set_agent(agent);
    settle_agent(rows, id)
}

fn renew<R: Rows>(rows: &mut R, id: AgentId, ending: &Ending, room: &mut usize) -> Result<Advance, R::Error> {
    if rows.agent(id)?.acting > 0 {
        return Ok(Advance::Open);
    }
    for task in rows.tasks(id, Pick::Running, *room)? {
        let running = rows.task(task)?;
        rows.set_task(Task { ending: Some(Ending::cancelled()), ..running });
        advance_task(rows, task, room)?;
        *room = room.saturating_sub(1);
    }
    for task in rows.tasks(id, Pick::Any, *room)? {
        rows.retire_task(task)?;
        *room -= 1;
    }
    if !rows.tasks(id, Pick::Any, 1)?.is_empty() {
        cut_agent(rows, id)?;
        return Ok(Advance::Open);
    }
    let mut agent = rows.agent(id)?;
    agent.tasks = Children::planned(rows.planned_tasks(&agent)?);
    agent.task_count = 0;
    rows.set_agent(agent);
    let (at, error) = retried(rows, ending);
    agent_event(rows, id, &AgentEvent::Renewed { at, error })?;
    Ok(Advance::Open)
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

/// A rank's machine was lost before its work was done: it begins again on another one after a pause. In place while anything else of
/// the run lives; else the whole run waits.
pub fn resubmit_rank<R: Rows>(rows: &mut R, id: AgentId, after_ms: i64, error: &LastError) -> Result<(), R::Error> {
    let due = rows.at() + after_ms;
    undo_rank(rows, id, due, error)?;
    let tree = rows.attempt()?.tree;
    if tree.jobs.open() + tree.agents.running > 0 {
        return settle_run(rows);
    }
    rows.run_event(RunEvent::InfrastructureFailed { retry_after_ms: after_ms })
}

fn undo_rank<R: Rows>(rows: &mut R, id: AgentId, due: Timestamp, error: &LastError) -> Result<(), R::Error> {
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
        EndKind::Retried | EndKind::Renewed => {
            retry_task(rows, task.id, &ending, room)?;
            return Ok(Advance::Open);
        }
        EndKind::Cancelled => drop(task_event(rows, task.id, &TaskEvent::Cancelled)?),
        EndKind::Skipped => {
            task_event(rows, task.id, &TaskEvent::Skipped { error })?;
            count_failed_task(rows, task.agent)?;
            release_dependents(rows, &task, true, room)?;
        }
        EndKind::Failed => {
            task_event(rows, task.id, &TaskEvent::Failed { error: error.clone() })?;
            count_failed_task(rows, task.agent)?;
            agent_failed(rows, task.agent, ending.reason, error)?;
        }
    }
    Ok(Advance::Over)
}

/// Puts fresh rows in the place of what failed, as many as this commit has room for, and then begins the task's next try.
fn retry_task<R: Rows>(rows: &mut R, id: TaskId, ending: &Ending, room: &mut usize) -> Result<(), R::Error> {
    for step in rows.steps(id, Pick::Failed, *room)? {
        let ended = rows.step(step)?;
        let mut task = rows.task(id)?;
        task.steps.shift(ended.child_state(), ChildState::Pending);
        rows.set_task(task);
        rows.replace_step(&ended)?;
        rows.set_step(Step { replaced: true, ..ended });
        *room -= 1;
    }
    let task = rows.task(id)?;
    if task.steps.failed + task.steps.cancelled > 0 {
        return cut_task(rows, task);
    }
    let (at, error) = retried(rows, ending);
    task_event(rows, id, &TaskEvent::ToBeRetried { at, error }).map(drop)
}

fn retried<R: Rows>(rows: &R, ending: &Ending) -> (Timestamp, LastError) {
    (ending.retry_at.unwrap_or_else(|| rows.at()), ending.error.clone().unwrap_or_else(cancelled))
}

/// Of the current plan version: what an earlier one failed at is the new plan's reason, not its failure.
fn count_failed_task<R: Rows>(rows: &mut R, agent: AgentId) -> Result<(), R::Error> {
    if rows.agent(agent)?.plan_version != rows.run().plan_version {
        return Ok(());
    }
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

/// A task whose `if` is false, or whose `for_each` gave no item, counts as completed: what waited for it may begin.
pub(super) fn not_needed<R: Rows>(rows: &mut R, task: &Task) -> Result<(), R::Error> {
    end_pending_steps(rows, task.id, ChildState::Completed)?;
    task_event(rows, task.id, &TaskEvent::NotNeeded)?;
    let mut room = CHUNK;
    release_dependents(rows, task, false, &mut room)?;
    settle_agent(rows, task.agent)
}

/// Steps of a task that has not begun have no rows: they end as counted.
fn end_pending_steps<R: Rows>(rows: &mut R, id: TaskId, to: ChildState) -> Result<(), R::Error> {
    let mut task = rows.task(id)?;
    let pending = task.steps.pending;
    task.steps.shift_many(ChildState::Pending, to, pending);
    rows.set_task(task);
    Ok(())
}

fn skip_pending<R: Rows>(rows: &mut R, id: TaskId, room: &mut usize) -> Result<(), R::Error> {
    let Some(error) = rows.task(id)?.ending.and_then(|ending| ending.error) else { return Ok(()) };
    end_pending_steps(rows, id, ChildState::Cancelled)?;
    *room = room.saturating_sub(1);
    task_event(rows, id, &TaskEvent::Skipped { error }).map(drop)
}

fn advance_agent<R: Rows>(rows: &mut R, id: AgentId, room: &mut usize) -> Result<Advance, R::Error> {
    let agent = rows.agent(id)?;
    if agent.status.is_end() {
        return Ok(Advance::Over);
    }
    if let Some(ending) = agent.ending.as_ref().filter(|ending| ending.to == EndKind::Renewed) {
        return renew(rows, id, &ending.clone(), room);
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
        Next::Goes if agent.ending.is_none() && agent.kind != AgentKind::Rank => {
            let now = rows.at();
            rows.wake_agent(id, now);
            Ok(Advance::Open)
        }
        Next::Goes | Next::Cancel => Ok(Advance::Open),
        Next::Ends(ends) => end_agent(rows, &agent, ends, room),
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
            rows.wake_agent(agent, rows.at()); // the holder of its item stops what it does
            advance_task(rows, id, room)?;
        }
    }
    let left = if retried { Vec::new() } else { rows.tasks(agent.id, Pick::Open, 1)? };
    Ok(if left.is_empty() { Swept::All } else { Swept::Cut })
}

fn end_agent<R: Rows>(rows: &mut R, agent: &Agent, ends: Ends, room: &mut usize) -> Result<Advance, R::Error> {
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
        EndKind::Retried | EndKind::Renewed => {
            retry_agent(rows, agent.id, &ending, room)?;
            return Ok(Advance::Open);
        }
        EndKind::Cancelled => drop(agent_event(rows, agent.id, &AgentEvent::Cancelled)?),
        EndKind::Skipped => drop(agent_event(rows, agent.id, &AgentEvent::Skipped { error })?),
        EndKind::Failed => {
            agent_event(rows, agent.id, &AgentEvent::Failed { error: error.clone() })?;
            fail_run(rows, agent, ending.reason, error)?;
        }
    }
    Ok(Advance::Over)
}

/// An agent has failed for good. While a planner works, and once its plan has come, the failures of earlier agents are what the plan is
/// about; only a run without money ends all the same.
fn fail_run<R: Rows>(rows: &mut R, agent: &Agent, asked: Option<RunReason>, error: LastError) -> Result<(), R::Error> {
    let reason = match agent.kind {
        AgentKind::Planner => RunReason::PlannerFailed,
        _ => asked.unwrap_or(RunReason::AgentFailed),
    };
    let run = rows.run();
    let superseded = agent.plan_version != run.plan_version || (run.replanning && agent.kind != AgentKind::Planner);
    if superseded && asked.is_none() {
        return Ok(());
    }
    rows.run_event(RunEvent::AgentFailed { reason, error })
}

fn retry_agent<R: Rows>(rows: &mut R, id: AgentId, ending: &Ending, room: &mut usize) -> Result<(), R::Error> {
    for task in rows.tasks(id, Pick::Failed, *room)? {
        let ended = rows.task(task)?;
        let mut agent = rows.agent(id)?;
        agent.tasks.shift(ended.child_state(), ChildState::Pending);
        rows.set_agent(agent);
        rows.replace_task(&ended)?;
        rows.set_task(Task { replaced: true, ..ended });
        *room -= 1;
    }
    let agent = rows.agent(id)?;
    if agent.tasks.failed + agent.tasks.cancelled > 0 {
        return cut_agent(rows, id);
    }
    let (at, error) = retried(rows, ending);
    agent_event(rows, id, &AgentEvent::ToBeRetried { at, error }).map(drop)
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
                // Agents were cancelled without a cancel of the run: the run cannot complete, so it is cancelled.
                _ => RunEvent::CancelAsked { abort: false },
            };
            rows.run_event(event)?;
            rows.finalise()
        }
        (None, _) => super::begin_agents(rows),
    }
}

/// A termination stands: every agent ends. Jobs have been asked to stop, and end their ranks themselves.
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
            if agent.kind == AgentKind::Rank && rows.has_job(id)? {
                agent.stopping = true;
                rows.set_agent(agent);
                continue;
            }
            let begun = agent.status != AgentStatus::Pending;
            agent.ending = Some(Ending::cancelled());
            rows.set_agent(agent);
            if begun {
                let now = rows.at();
                rows.wake_agent(id, now); // its holder cuts its acts off
            }
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
