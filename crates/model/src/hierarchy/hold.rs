//! What the run's own work item does with the tree, a bounded number of rows per commit: continues endings, pauses, resumes, and begins agents.

use super::{CHUNK, Pick, Rows, agent_event, begin_agents, continue_endings, stop_agents};
use crate::agent::AgentEvent;
use crate::plan::MAX_PLANNED_AGENTS;
use crate::run::{PauseReason, RunEvent, RunStatus, Ticket};

/// What the open jobs of the run do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Jobs {
    pub all_frozen: bool,
    pub all_moving: bool,
}

/// Everything that may follow in a run by itself. The run's work item calls it whenever it is due; each commit that leaves something
/// for another one wakes the item.
pub fn go_on<R: Rows>(rows: &mut R, jobs: Jobs) -> Result<(), R::Error> {
    if rows.run().status.is_end() || rows.run().status == RunStatus::Created {
        return Ok(());
    }
    if rows.attempt()?.tree.unfinished {
        continue_endings(rows)?;
    }
    let run = rows.run();
    let escalated = [run.pause_asked, run.pause_reason].contains(&Some(PauseReason::Escalated));
    if escalated && run.termination.is_none() && rows.open_tickets()? == 0 {
        rows.run_event(RunEvent::TicketResolved { ticket: Ticket::Resume })?;
    }
    let run = rows.run();
    match run.status {
        _ if run.status.is_end() => Ok(()),
        _ if run.termination.is_some() => stop_agents(rows),
        RunStatus::Running if run.pause_asked.is_some() => hold_agents(rows, jobs.all_frozen),
        RunStatus::Running => begin_agents(rows),
        RunStatus::Resuming => wake_agents(rows, jobs.all_moving),
        _ => Ok(()),
    }
}

/// Holds every open agent once nothing is in flight, and then says so to the run (R13). `jobs_stand_still`: every open job is frozen.
pub fn hold_agents<R: Rows>(rows: &mut R, jobs_stand_still: bool) -> Result<(), R::Error> {
    let run = rows.run();
    let pausing = run.status == RunStatus::Running && run.pause_asked.is_some() && run.termination.is_none();
    if !pausing || !jobs_stand_still || rows.attempt()?.tree.in_flight > 0 {
        return Ok(());
    }
    let mut held = 0;
    for pick in [Pick::Running, Pick::Pending] {
        for id in rows.agents(pick, CHUNK - held)? {
            agent_event(rows, id, &AgentEvent::Held)?;
            held += 1;
        }
    }
    let agents = rows.attempt()?.tree.agents;
    if agents.pending + agents.running > 0 {
        let now = rows.at();
        rows.wake_run(now);
        return Ok(());
    }
    rows.run_event(RunEvent::EverythingHeld)
}

/// Wakes every held agent; when all are awake and every job moves again, the run goes on.
pub fn wake_agents<R: Rows>(rows: &mut R, jobs_move: bool) -> Result<(), R::Error> {
    for id in rows.agents(Pick::Paused, CHUNK)? {
        agent_event(rows, id, &AgentEvent::Woken)?;
    }
    if rows.attempt()?.tree.agents.paused > 0 {
        let now = rows.at();
        rows.wake_run(now);
        return Ok(());
    }
    if rows.run().status == RunStatus::Resuming && jobs_move {
        rows.run_event(RunEvent::AgentsWoken)?;
    }
    // Agents that were not held yet when the pause was taken back: their items have seen that nothing may begin.
    let (now, most) = (rows.at(), MAX_PLANNED_AGENTS);
    for id in rows.agents(Pick::Running, most)? {
        rows.wake_agent(id, now);
    }
    begin_agents(rows)
}
