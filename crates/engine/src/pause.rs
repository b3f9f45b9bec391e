//! Pausing and resuming a run, in two steps each: what runs is told to stand still or to go on, and when every machine has said that it
//! does, the run is paused or running. Never ends anything: a job that ends meanwhile ends as it would have.

use crate::run_tx::RunTx;
use model::agent::{AgentEvent, AgentStatus};
use model::bug;
use model::job::{FreezeState, JobEvent, JobStatus};
use model::run::{PauseReason, RunEvent, RunStatus};
use model::{AgentId, Failure, JobId};

impl RunTx<'_> {
    /// Nothing new starts, and what runs is frozen. A job without a machine is held at once.
    pub(crate) fn hold_jobs(&mut self) -> Result<(), Failure> {
        self.frost_of_all(&JobEvent::HoldAsked)?;
        self.settle_pause()
    }

    pub(crate) fn release_jobs(&mut self) -> Result<(), Failure> {
        self.hierarchy()?;
        for agent in self.agents_that_are(AgentStatus::Paused) {
            self.agent_event(agent, AgentEvent::Woken)?;
        }
        self.frost_of_all(&JobEvent::ReleaseAsked)?;
        self.settle_pause()
    }

    fn frost_of_all(&mut self, event: &JobEvent) -> Result<(), Failure> {
        let open: Vec<JobId> = self.open_jobs().map(|(id, _)| id).collect();
        open.into_iter().try_for_each(|job| self.job_event(job, event.clone()).map(drop))
    }

    /// Says that everything is held, or that everybody goes on, as soon as that is so.
    pub(crate) fn settle_pause(&mut self) -> Result<(), Failure> {
        if self.run.termination.is_some() {
            return Ok(());
        }
        let all =
            |run_tx: &RunTx<'_>, wanted: FreezeState| run_tx.open_jobs().all(|(_, freeze)| freeze == Some(wanted));
        match self.run.status {
            RunStatus::Running if self.run.pause_asked && all(self, FreezeState::Frozen) => {
                self.hierarchy()?;
                for agent in [AgentStatus::Pending, AgentStatus::Running].map(|is| self.agents_that_are(is)).concat() {
                    self.agent_event(agent, AgentEvent::Held)?;
                }
                if !bug!(paused_time_counts) {
                    self.stop_clock();
                }
                self.run_event(RunEvent::EverythingHeld { why: PauseReason::Asked })
            }
            RunStatus::Resuming if all(self, FreezeState::Moving) => {
                self.run_event(RunEvent::AgentsWoken)?;
                self.hierarchy()?;
                for agent in self.agents_that_are(AgentStatus::Pending) {
                    self.agent_event(agent, AgentEvent::Begun)?;
                }
                if self.jobs.iter().any(|job| job.it.status == JobStatus::Running) {
                    self.begin_active();
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Open jobs of this attempt; one that is on its way to its end neither stands still nor goes on.
    fn open_jobs(&self) -> impl Iterator<Item = (JobId, Option<FreezeState>)> {
        let mine = self.jobs.iter().map(|job| &job.it).filter(|job| job.attempt == self.run.attempt);
        mine.filter(|job| !job.status.is_end())
            .map(|job| (job.id, (job.status != JobStatus::Terminating).then_some(job.freeze)))
    }

    fn agents_that_are(&self, status: AgentStatus) -> Vec<AgentId> {
        let mine = self.agents.iter().map(|agent| &agent.it).filter(|agent| agent.attempt == self.run.attempt);
        mine.filter(|agent| agent.status == status).map(|agent| agent.id).collect()
    }
}
