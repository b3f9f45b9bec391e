//! From pending to running: agents in order, a job and its launch-run workflow for each, placed at once where there is room.

use crate::intents::launch_run;
use crate::run_tx::{RunTx, Tracked};
use model::bug;
use model::hierarchy::{self, Rows};
use model::job::{FreezeState, Job, JobReason, JobStatus};
use model::run::{RunEvent, RunStatus};
use model::{AgentId, Failure, InstanceId, JobId, RunId, WorkflowId};
use store::{Tx, WorkKind};

/// The machine on which an earlier submission may still run although we have given up on it. Nothing new starts before it is
/// surely gone: by the provider's word, or by that of a person, who says so of the job (`instance_lost`).
pub(crate) fn fencing(tx: &mut Tx, run: RunId) -> Result<Option<InstanceId>, Failure> {
    if bug!(replaced_before_fenced) {
        return Ok(None);
    }
    for job in store::job::of_run(tx, run)? {
        let Some(id) = job.instance.filter(|_| job.fenced && job.reason != Some(JobReason::InstanceLost)) else {
            continue;
        };
        let machine = store::instance::find(tx, id)?;
        // A runner that never registered was never given anything.
        if machine.is_some_and(|machine| machine.status.is_open() && machine.ready_at.is_some()) {
            return Ok(Some(id));
        }
    }
    Ok(None)
}

impl RunTx<'_> {
    /// Moves the run on as far as rows alone can: due → pending → running → jobs placed.
    /// A transaction that holds an instance already may not take a pool's lock any more: then the run's own item goes on.
    pub(crate) fn dispatch(&mut self) -> Result<(), Failure> {
        if !self.instances.is_empty() {
            self.wake(WorkKind::Run, self.run.id.0, self.at);
            return Ok(());
        }
        if self.run.termination.is_some() {
            return Ok(());
        }
        match self.run.status {
            RunStatus::Retrying if self.run.retry_at.is_some_and(|due| due <= self.at) => {
                if fencing(self.tx, self.run.id)?.is_some() {
                    return Ok(()); // the run's item looks again
                }
                self.run_event(RunEvent::RetryCame)
            }
            RunStatus::Retrying => {
                if let Some(due) = self.run.retry_at {
                    self.wake(WorkKind::Run, self.run.id.0, due);
                }
                Ok(())
            }
            RunStatus::Pending => self.run_event(RunEvent::PickedUp),
            _ => Ok(()),
        }
    }

    /// Agents of this attempt in one go, in order; those that exist and wait are begun again.
    pub(crate) fn create_agents(&mut self) -> Result<(), Failure> {
        if self.run.agent_count == 0 {
            self.plan_agents()?;
        }
        hierarchy::wake_agents(self, true)
    }

    /// A submission of an agent onto a machine, unless one is open.
    pub(crate) fn submit(&mut self, agent: AgentId) -> Result<(), Failure> {
        if self.has_job(agent)? {
            return Ok(());
        }
        let job = self.submit_job(agent)?;
        self.place(job)
    }

    /// The job, its workflow and its manifest: rows before any act.
    fn submit_job(&mut self, agent: AgentId) -> Result<JobId, Failure> {
        // Jobs of an attempt are told in the order of their ids, and the one before may be another process's.
        let before = self.jobs.iter().map(|job| job.it.id.0).max().unwrap_or(0);
        let (id, workflow) = (JobId(self.tx.next_id_after(before)), WorkflowId(self.tx.next_id()));
        let (provider, region) = (self.run.spec.provider.clone(), self.run.spec.region.clone());
        let pool = store::pool::ensure(self.tx, &provider, &region)?;
        let job = Job {
            id,
            org: self.run.org,
            run: self.run.id,
            attempt: self.run.attempt,
            agent,
            submission: self.run.submission,
            workflow,
            pool,
            status: JobStatus::Submitted,
            queue_seq: None,
            turn: None,
            instance: None,
            allocation: None,
            warm: false,
            epoch: 0,
            reason: None,
            message: None,
            exit_code: None,
            signal: None,
            lifecycle_error: None,
            submitted_at: self.at,
            placed_at: None,
            accepted_at: None,
            running_at: None,
            started_at: None,
            freeze: FreezeState::Moving,
            stop_asked_at: None,
            abort: false,
            remove_at: None,
            gone_at: None,
            stopped_at: None,
            fenced: false,
            ended_at: None,
            stop_duration_ms: self.run.spec.stop_duration_ms,
            silent_since: None,
            lost: false,
            final_offset: None,
            logged_to: 0,
            log_cut: false,
            active_ms: 0,
            price_micro: 0,
            windows: 0,
            charged_to: None,
            synced_blobs: 0,
            unenforced: None,
            version: 1,
        };
        self.jobs.push(Tracked::new(job));
        launch_run::begin(self, id, workflow)?;
        Ok(id)
    }
}
