//! Begins agents, tasks and steps, each up to the limit of its parent. Rows of tasks and steps are made here, when their parent begins.

use super::end::{is_to_stop, not_needed, settle_step, settle_task};
use super::fail::{ask_a_person, ask_what_happened, refuse_step, refuse_task};
use super::{CHUNK, Pick, Ready, Rows, TaskReady, agent_event, may_begin, step_event, task_event};
use crate::agent::{Agent, AgentEvent, AgentKind, AgentStatus};
use crate::spec::RunKind;
use crate::step::{Step, StepEvent, StepWait};
use crate::task::{Task, TaskEvent};
use crate::{AgentId, StepId, TaskId, Timestamp};

/// Begins as many pending agents as the run's limit allows, and as one commit has room for. Ranks begin together, however many. While a
/// plan is made, only its planner begins.
pub fn begin_agents<R: Rows>(rows: &mut R) -> Result<(), R::Error> {
    let run = rows.run();
    if !may_begin(run, AgentKind::Planner) {
        return Ok(());
    }
    if run.replanning {
        let planner = rows.attempt()?.tree.planner;
        return match planner {
            Some(id) if is_free(&rows.agent(id)?, rows.at()) => begin_agent(rows, id),
            _ => Ok(()),
        };
    }
    let limit = if run.spec.kind == RunKind::Agents { run.spec.plan.max_agents } else { i64::MAX };
    let agents = rows.attempt()?.tree.agents;
    let room = (limit - agents.running).min(agents.pending);
    if room <= 0 {
        return Ok(());
    }
    let most = (room as usize).min(CHUNK);
    let mut begun = 0;
    for id in rows.agents(Pick::Due, most)? {
        let agent = rows.agent(id)?;
        if agent.kind != AgentKind::Rank || rows.may_submit(&agent)? {
            begin_agent(rows, id)?;
            begun += 1;
        }
    }
    if begun == most && room as usize > most {
        let now = rows.at();
        rows.wake_run(now); // there is room for more than one commit begins
    }
    Ok(())
}

fn is_free(agent: &Agent, now: Timestamp) -> bool {
    agent.status == AgentStatus::Pending && is_due(agent.due_at, now) && agent.ending.is_none()
}

/// The holder of its work item, or its machine, begins what is below it.
fn begin_agent<R: Rows>(rows: &mut R, id: AgentId) -> Result<(), R::Error> {
    agent_event(rows, id, &AgentEvent::Begun)?;
    let agent = rows.agent(id)?;
    rows.agent_begun(&agent)
}

/// Begins the tasks of an agent that may begin, and makes their steps' rows.
fn begin_tasks<R: Rows>(rows: &mut R, id: AgentId) -> Result<Begun, R::Error> {
    let mut agent = rows.agent(id)?;
    if !takes_work(&agent) {
        return Ok(Begun::All);
    }
    if agent.task_count == 0 {
        agent.task_count = rows.make_tasks(&agent)?;
        rows.set_agent(agent.clone());
    }
    let room = (agent.parallel - agent.tasks.running).min(agent.tasks.pending);
    if room <= 0 {
        return Ok(Begun::All);
    }
    // One after the other: no task overtakes the one that waits for its next try.
    let pick = if agent.parallel == 1 || agent.kind == AgentKind::Rank { Pick::Pending } else { Pick::Due };
    for task in rows.tasks(id, pick, room as usize)? {
        let task = rows.task(task)?;
        if !is_due(task.due_at, rows.at()) && agent.kind != AgentKind::Rank {
            continue;
        }
        // Its expressions decide once: a further try of a task that has begun goes on with its steps.
        let ready = if task.step_count > 0 { TaskReady::Go } else { rows.task_ready(&task)? };
        match ready {
            TaskReady::Go => begin_task(rows, task.id)?,
            TaskReady::Later => {}
            answer => {
                answer_task(rows, &task, answer)?;
                return Ok(Begun::LookAgain);
            }
        }
    }
    Ok(Begun::All)
}

/// A task that is not begun as it stands.
fn answer_task<R: Rows>(rows: &mut R, task: &Task, answer: TaskReady) -> Result<(), R::Error> {
    match answer {
        TaskReady::NotNeeded | TaskReady::Each { items: ..=0 } => not_needed(rows, task),
        TaskReady::Each { items } => make_items(rows, task, items),
        TaskReady::Refused(error) => {
            task_event(rows, task.id, &TaskEvent::Begun)?;
            refuse_task(rows, task.id, error)
        }
        TaskReady::Go | TaskReady::Later => Ok(()),
    }
}

/// The row of a `for_each` becomes that of its first item, and the others stand beside it. What waited for it waits for all of them.
fn make_items<R: Rows>(rows: &mut R, task: &Task, items: i64) -> Result<(), R::Error> {
    let more = items - 1;
    let first = Task { each: false, item: Some(0), name: format!("{}[0]", task.name), ..task.clone() };
    rows.set_task(first);
    for item in 1..items {
        rows.add_item(task, item)?;
    }
    let mut agent = rows.agent(task.agent)?;
    agent.tasks.pending += more;
    agent.task_count += more;
    rows.set_agent(agent);
    for sequence in &task.dependents {
        let dependent = rows.task_at(task.agent, *sequence)?;
        let mut dependent = rows.task(dependent)?;
        dependent.waits_for += more;
        rows.set_task(dependent);
    }
    Ok(())
}

/// A rank's work begins when its machine has everything, whatever its run is asked meanwhile.
fn takes_work(agent: &Agent) -> bool {
    let able =
        if agent.kind == AgentKind::Rank { !agent.status.is_end() } else { agent.status == AgentStatus::Running };
    able && agent.ending.is_none()
}

fn begin_task<R: Rows>(rows: &mut R, id: TaskId) -> Result<(), R::Error> {
    task_event(rows, id, &TaskEvent::Begun)?;
    let mut task = rows.task(id)?;
    if task.step_count == 0 {
        task.step_count = rows.make_steps(&task)?;
        rows.set_task(task);
    }
    Ok(())
}

/// Begins the steps of an agent that may begin now; the holder of its work item acts on them after the commit. Steps that are answered
/// without being called end here, and what waited for them begins, up to [`CHUNK`] of them a commit.
pub fn begin_steps<R: Rows>(rows: &mut R, id: AgentId) -> Result<Vec<StepId>, R::Error> {
    let mut begun = Vec::new();
    for _ in 0..CHUNK {
        let agent = rows.agent(id)?;
        if !may_begin(rows.run(), agent.kind) || !takes_work(&agent) {
            return Ok(begun);
        }
        end_timers(rows, id)?;
        if begin_tasks(rows, id)? == Begun::LookAgain {
            continue;
        }
        if begin_steps_of(rows, id, &mut begun)? == Begun::All {
            return Ok(begun);
        }
    }
    let now = rows.at();
    rows.wake_agent(id, now);
    Ok(begun)
}

/// Steps of the tool `wait` whose time has come.
fn end_timers<R: Rows>(rows: &mut R, id: AgentId) -> Result<(), R::Error> {
    let agent = rows.agent(id)?;
    if agent.waiting == 0 {
        return Ok(());
    }
    for task in rows.tasks(id, Pick::Running, agent.parallel as usize)? {
        let most = rows.task(task)?.parallel as usize;
        for step in rows.steps(task, Pick::Waiting, most)? {
            if rows.step(step)?.due_at.is_some_and(|due| due <= rows.at()) {
                end_timer(rows, step)?;
            }
        }
    }
    Ok(())
}

/// The time that a step waits for has come.
pub fn end_timer<R: Rows>(rows: &mut R, id: StepId) -> Result<(), R::Error> {
    let step = rows.step(id)?;
    if step.waits != Some(StepWait::Timer) || step.replaced {
        return Ok(());
    }
    rows.timer_ended(&step)?;
    step_event(rows, id, &StepEvent::Completed)?;
    settle_task(rows, step.task)
}

#[derive(PartialEq, Eq)]
enum Begun {
    All,
    /// One was answered without a call: others may begin now.
    LookAgain,
}

fn begin_steps_of<R: Rows>(rows: &mut R, id: AgentId, begun: &mut Vec<StepId>) -> Result<Begun, R::Error> {
    let agent = rows.agent(id)?;
    if !takes_work(&agent) {
        return Ok(Begun::All);
    }
    for task in rows.tasks(id, Pick::Running, agent.parallel as usize)? {
        let task = rows.task(task)?;
        for step in steps_with_room(rows, &agent, &task)? {
            let step = rows.step(step)?;
            match rows.ready(&step)? {
                Ready::Go => {
                    let fence = rows.fence();
                    step_event(rows, step.id, &StepEvent::Begun { fence })?;
                    let step = rows.step(step.id)?;
                    rows.step_begun(&step)?;
                    begun.push(step.id);
                }
                Ready::Later => {}
                answer => {
                    answer_step(rows, &step, answer)?;
                    return Ok(Begun::LookAgain);
                }
            }
        }
    }
    Ok(Begun::All)
}

/// The next steps of a task for which there is room.
fn steps_with_room<R: Rows>(rows: &mut R, agent: &Agent, task: &Task) -> Result<Vec<StepId>, R::Error> {
    let room = (task.parallel - task.steps.running - task.steps.waiting).min(task.steps.pending);
    if task.ending.is_some() || room <= 0 {
        return Ok(Vec::new());
    }
    let ordered = task.parallel == 1 || agent.kind == AgentKind::Rank;
    let picked = rows.steps(task.id, if ordered { Pick::Pending } else { Pick::Due }, room as usize)?;
    let mut free = Vec::with_capacity(picked.len());
    for id in picked {
        if is_due(rows.step(id)?.due_at, rows.at()) || agent.kind == AgentKind::Rank {
            free.push(id);
        }
    }
    Ok(free)
}

/// A step that is not called now: its record, a person, or its own input decides.
pub(super) fn answer_step<R: Rows>(rows: &mut R, step: &Step, answer: Ready) -> Result<(), R::Error> {
    match answer {
        Ready::Recorded => {
            step_event(rows, step.id, &StepEvent::Replayed)?;
            settle_step(rows, step)
        }
        Ready::NotNeeded => {
            step_event(rows, step.id, &StepEvent::NotNeeded)?;
            settle_step(rows, step)
        }
        Ready::Unknown => {
            let step = rows.step(step.id)?;
            ask_what_happened(rows, &step)
        }
        Ready::Wait { until } => {
            step_event(rows, step.id, &StepEvent::TimerSet { until })?;
            let step = rows.step(step.id)?;
            rows.step_begun(&step)
        }
        Ready::Offer(offer) => {
            step_event(rows, step.id, &StepEvent::Offered { offer })?;
            let step = rows.step(step.id)?;
            rows.step_begun(&step)
        }
        Ready::NotBefore { at } => {
            let mut agent = rows.agent(step.agent)?;
            agent.put_off = agent.put_off.max(Some(at));
            rows.set_agent(agent);
            step_event(rows, step.id, &StepEvent::PutOff { until: at }).map(drop)
        }
        Ready::Ask => super::ask_approval(rows, step.id),
        Ready::Escalate(error) => {
            step_event(rows, step.id, &StepEvent::Escalated { error })?;
            ask_a_person(rows, step.id)
        }
        Ready::Refused(error) => refuse_step(rows, step.id, error, false),
        Ready::Unaffordable(error) => refuse_step(rows, step.id, error, true),
        Ready::Go | Ready::Later => Ok(()),
    }
}

/// Whether a program that polls may take a step: it is offered, and its agent may begin something now.
pub fn may_be_taken<R: Rows>(rows: &mut R, id: StepId) -> Result<bool, R::Error> {
    let step = rows.step(id)?;
    if step.waits != Some(StepWait::Poller) || step.replaced {
        return Ok(false);
    }
    let agent = rows.agent(step.agent)?;
    Ok(may_begin(rows.run(), agent.kind) && takes_work(&agent) && !is_to_stop(rows, &step)?)
}

/// A program that polls takes a step. Whether it has begun.
pub fn take_step<R: Rows>(rows: &mut R, id: StepId) -> Result<bool, R::Error> {
    if !may_be_taken(rows, id)? {
        return Ok(false);
    }
    let fence = rows.fence();
    step_event(rows, id, &StepEvent::Begun { fence })
}

/// A step is still offered, and no program is to take it any more: an earlier one of its identity was found done, whose record answers,
/// or it cannot be paid.
pub fn answer_offered<R: Rows>(rows: &mut R, id: StepId, answer: Ready) -> Result<(), R::Error> {
    let step = rows.step(id)?;
    if step.waits == Some(StepWait::Poller) && !step.replaced { answer_step(rows, &step, answer) } else { Ok(()) }
}

/// A rank's machine has everything: its task and its command run.
pub fn begin_rank<R: Rows>(rows: &mut R, id: AgentId) -> Result<Vec<StepId>, R::Error> {
    let mut begun = Vec::new();
    begin_tasks(rows, id)?;
    begin_steps_of(rows, id, &mut begun)?;
    Ok(begun)
}

fn is_due(due_at: Option<Timestamp>, now: Timestamp) -> bool {
    due_at.is_none_or(|due| due <= now)
}
