//! Pausing and resuming a run, in two steps each: what runs is told to stand still or to go on, and when every machine has said that it
//! does, the run is paused or running. Never ends anything: a job that ends meanwhile ends as it would have.

use crate::run_tx::RunTx;
use model::bug;
use model::hierarchy;
use model::job::{FreezeState, JobEvent, JobStatus};
use model::run::RunStatus;
use model::{Failure, JobId};

impl RunTx<'_> {
    /// Nothing new starts, and what runs is frozen. A job without a machine is held at once.
    pub(crate) fn hold_jobs(&mut self) -> Result<(), Failure> {
        self.freeze_all(&JobEvent::HoldAsked)?;
        self.settle_pause()
    }

    pub(crate) fn release_jobs(&mut self) -> Result<(), Failure> {
        hierarchy::wake_agents(self, false)?;
        self.freeze_all(&JobEvent::ReleaseAsked)?;
        self.settle_pause()
    }

    fn freeze_all(&mut self, event: &JobEvent) -> Result<(), Failure> {
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
            RunStatus::Running if self.run.pause_asked.is_some() && all(self, FreezeState::Frozen) => {
                if !bug!(paused_time_counts) {
                    self.stop_clock();
                }
                hierarchy::hold_agents(self, true)
            }
            RunStatus::Resuming if all(self, FreezeState::Moving) => {
                hierarchy::wake_agents(self, true)?;
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
}
