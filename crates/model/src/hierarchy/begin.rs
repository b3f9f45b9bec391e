//! What begins next: agents up to the run's limit, tasks up to their agent's, steps up to their task's. Rows are made here, late.

use super::{Pick, Rows, agent_event, may_begin, step_event, task_event};
use crate::agent::{Agent, AgentEvent, AgentKind, AgentStatus};
use crate::step::StepEvent;
use crate::task::TaskEvent;
use crate::{AgentId, StepId, TaskId, Timestamp};

/// Begins as many pending agents as the run's limit allows.
pub fn begin_agents<R: Rows>(rows: &mut R) -> Result<(), R::Error> {
    loop {
        let run = rows.run();
        if !may_begin(run, AgentKind::Planner) {
            return Ok(());
        }
        let limit = run.spec.plan.max_agents;
        let agents = rows.attempt()?.tree.agents;
        let room = (limit - agents.running).min(agents.pending).min(super::CHUNK as i64);
        if room <= 0 {
            return Ok(());
        }
        let mut begun = 0;
        for id in rows.agents(Pick::Pending, room as usize)? {
            let agent = rows.agent(id)?;
            if may_begin(rows.run(), agent.kind) && is_due(agent.due_at, rows.at()) && agent.ending.is_none() {
                begin_agent(rows, id)?;
                begun += 1;
            }
        }
        if begun == 0 {
            return Ok(());
        }
    }
}

fn begin_agent<R: Rows>(rows: &mut R, id: AgentId) -> Result<(), R::Error> {
    agent_event(rows, id, &AgentEvent::Begun)?;
    if rows.agent(id)?.kind != AgentKind::Rank {
        begin_tasks(rows, id)?;
    }
    let agent = rows.agent(id)?;
    rows.agent_begun(&agent)
}

/// Begins the tasks of an agent that may begin, and makes their steps' rows.
pub(super) fn begin_tasks<R: Rows>(rows: &mut R, id: AgentId) -> Result<(), R::Error> {
    let mut agent = rows.agent(id)?;
    if !takes_work(&agent) {
        return Ok(());
    }
    if agent.task_count == 0 {
        agent.task_count = rows.make_tasks(&agent)?;
        rows.set_agent(agent.clone());
    }
    let room = (agent.parallel - agent.tasks.running).min(agent.tasks.pending);
    if room <= 0 {
        return Ok(());
    }
    for task in rows.tasks(id, Pick::Pending, room as usize)? {
        if is_due(rows.task(task)?.due_at, rows.at()) || agent.kind == AgentKind::Rank {
            begin_task(rows, task)?;
        } else if agent.parallel == 1 {
            break; // one after the other: no task overtakes the one that waits for its next try
        }
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

/// Begins the steps of an agent that may begin now; the holder of its work item acts on them after the commit.
pub fn begin_steps<R: Rows>(rows: &mut R, id: AgentId) -> Result<Vec<StepId>, R::Error> {
    let kind = rows.agent(id)?.kind;
    if !may_begin(rows.run(), kind) {
        return Ok(Vec::new());
    }
    begin_tasks(rows, id)?;
    begin_steps_of(rows, id)
}

fn begin_steps_of<R: Rows>(rows: &mut R, id: AgentId) -> Result<Vec<StepId>, R::Error> {
    let agent = rows.agent(id)?;
    if !takes_work(&agent) {
        return Ok(Vec::new());
    }
    let mut begun = Vec::new();
    for task in rows.tasks(id, Pick::Running, agent.parallel as usize)? {
        let task = rows.task(task)?;
        let room = (task.parallel - task.steps.running - task.steps.waiting).min(task.steps.pending);
        if task.ending.is_some() || room <= 0 {
            continue;
        }
        for step in rows.steps(task.id, Pick::Pending, room as usize)? {
            if is_due(rows.step(step)?.due_at, rows.at()) || agent.kind == AgentKind::Rank {
                step_event(rows, step, &StepEvent::Begun)?;
                begun.push(step);
            } else if task.parallel == 1 {
                break;
            }
        }
    }
    Ok(begun)
}

/// A rank's machine has everything: its task and its command run.
pub fn begin_rank<R: Rows>(rows: &mut R, id: AgentId) -> Result<Vec<StepId>, R::Error> {
    begin_tasks(rows, id)?;
    begin_steps_of(rows, id)
}

fn is_due(due_at: Option<Timestamp>, now: Timestamp) -> bool {
    due_at.is_none_or(|due| due <= now)
}
