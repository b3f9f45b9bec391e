//! Pauses and resumes a run, each in two steps. First every job is asked to freeze or thaw; its runner does so and reports. When all have
//! reported, the run is `paused`, or `running` again. Never ends anything: a job that ends meanwhile ends as it would have.

use crate::run_tx::RunTx;
use model::Failure;
use model::bug;
use model::hierarchy;
use model::job::JobEvent;
use model::job_counters::JobPick;
use model::run::RunStatus;

impl RunTx<'_> {
    /// Nothing new starts, and what runs is frozen. A job without a machine is held at once.
    pub(crate) fn hold_jobs(&mut self) -> Result<(), Failure> {
        self.ask_jobs(JobPick::ToHold, &JobEvent::HoldAsked)?;
        self.settle_pause()
    }

    pub(crate) fn release_jobs(&mut self) -> Result<(), Failure> {
        hierarchy::wake_agents(self, false)?;
        self.ask_jobs(JobPick::ToRelease, &JobEvent::ReleaseAsked)?;
        self.settle_pause()
    }

    /// Completes a pause when every job is frozen, and a resume when every job moves again.
    pub(crate) fn settle_pause(&mut self) -> Result<(), Failure> {
        let waits = self.run.pause_asked.is_some() || self.run.status == RunStatus::Resuming;
        if self.run.termination.is_some() || !waits {
            return Ok(());
        }
        let jobs = self.attempt()?.it.tree.jobs.clone();
        match self.run.status {
            RunStatus::Running if self.run.pause_asked.is_some() && jobs.all_frozen() => {
                if !bug!(paused_time_counts) {
                    self.stop_clock();
                }
                hierarchy::hold_agents(self, true)
            }
            RunStatus::Resuming if jobs.all_moving() => {
                hierarchy::wake_agents(self, true)?;
                if jobs.active > 0 {
                    self.begin_active();
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }
}
