//! Pausing and resuming the agents of a run, in chunks. A pause waits for acts in flight; nothing new begins meanwhile.

use super::{CHUNK, Pick, Rows, agent_event, begin_agents};
use crate::agent::AgentEvent;
use crate::run::{RunEvent, RunStatus};

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
    begin_agents(rows)
}
