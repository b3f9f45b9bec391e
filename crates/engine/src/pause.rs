//! Pauses and resumes a run, each in two steps. First every job is asked to freeze or thaw; its runner does so and reports. When all have
//! reported, the run is `paused`, or `running` again. Never ends anything: a job that ends meanwhile ends as it would have.

use crate::run_tx::RunTx;
use model::Failure;
use model::bug;
use model::hierarchy::{self, Jobs};
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

    /// What may follow in the run by itself: the next chunk of what ends, pauses or resumes, and agents that may begin.
    pub(crate) fn go_on(&mut self) -> Result<(), Failure> {
        if !self.has_attempt() || self.run.status.is_end() {
            return Ok(());
        }
        if self.attempt()?.it.tree.unfinished {
            hierarchy::continue_endings(self)?;
            match &self.run.termination {
                Some(_) => {}
                None if self.run.pause_asked.is_some() => self.hold_jobs()?,
                None => self.release_jobs()?,
            }
        }
        if let Some(termination) = self.run.termination.clone().filter(|_| !self.run.status.is_end()) {
            return self.stop_agents(termination.abort);
        }
        let tree = &self.attempt()?.it.tree;
        if tree.unfinished {
            return Ok(()); // this commit has done its share
        }
        let jobs = Jobs { all_frozen: tree.jobs.all_frozen(), all_moving: tree.jobs.all_moving() };
        hierarchy::go_on(self, jobs)
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
