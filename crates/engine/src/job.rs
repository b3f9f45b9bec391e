//! The work item of a job: the deadlines of its states, and what follows for the job from the state of its machine.

use crate::run_tx::RunTx;
use crate::{Engine, EngineContext};
use model::bug;
use model::job::{JobEvent, JobReason, JobStatus};
use model::run::RunEvent;
use model::time::{Outage, deadline_without};
use model::{Failure, JobId, RunId, Timestamp};
use store::{Item, Lane, Tx, WorkKind};

impl RunTx<'_> {
    /// The job's item is due when its state's limit passes; our outages can only make that later, which is found out then.
    pub(crate) fn rearm(&mut self, id: JobId) -> Result<(), Failure> {
        let limits = self.context.config.limits;
        if let Some(wait) = model::job::deadline(self.job(id)?, &limits) {
            self.wake(WorkKind::Job, id.0, wait.from + wait.ms);
        }
        Ok(())
    }

    /// Active time of the run starts with its first running job.
    pub(crate) fn begin_active(&mut self) {
        if self.run.active_since.is_none() {
            let mut next = self.run.clone();
            next.active_since = Some(self.at);
            self.set_run(next);
            self.rearm_run();
        }
    }

    pub(crate) fn rearm_run(&mut self) {
        if let Some((due, _)) = self.deadline() {
            self.wake(WorkKind::Run, self.run.id.0, due);
        }
    }

    /// The run's deadline, our outages not yet taken out.
    pub(crate) fn deadline(&self) -> Option<(Timestamp, RunEvent)> {
        let mine = self.attempts.iter().find(|attempt| attempt.it.number == self.run.attempt);
        let silent = mine.is_some_and(|attempt| attempt.it.tree.jobs.silent() > 0);
        model::run::deadline(&self.run, &self.context.config.limits, silent)
    }
}

/// The reason with which a run's end reaches its jobs.
pub(crate) fn stop_reason(reason: model::run::RunReason) -> JobReason {
    use model::run::RunReason;
    match reason {
        RunReason::StoppedByUser => JobReason::TerminatedByUser,
        RunReason::AbortedByUser => JobReason::AbortedByUser,
        RunReason::Deadline => JobReason::MaxDuration,
        RunReason::Budget => JobReason::Budget,
        _ => JobReason::TerminatedByServer,
    }
}

impl Engine {
    /// A job's item is due: its limit passed, or its machine was heard, fell silent or is gone.
    pub(crate) async fn reconcile_job(&self, item: Item) -> Result<(), Failure> {
        let id = JobId(item.subject);
        let known = self.store.read_inline("job.find", move |tx| store::job::find(tx, id)).await?;
        let Some((run, epoch)) = known.map(|job| (job.run, job.epoch)) else { return self.done(item).await };
        let logged = self.logs.reached(id, epoch).await?.next_offset;
        let context = self.context.clone();
        self.store
            .write(Lane::Normal.of(run), "job.reconcile", move |tx| {
                store::work::hold(tx, &item)?;
                let next = reconcile(tx, &context, run, id, logged)?;
                store::work::finish(tx, &item, next);
                Ok(())
            })
            .await
    }
}

fn reconcile(
    tx: &mut Tx,
    context: &EngineContext,
    run: RunId,
    id: JobId,
    logged: i64,
) -> Result<Option<Timestamp>, Failure> {
    let mut run_tx = RunTx::open(tx, context, run)?;
    let Ok(job) = run_tx.job(id).cloned() else { return Ok(None) }; // of an earlier attempt: it has ended
    if let Some(instance) = job.instance.filter(|_| !job.status.is_end())
        && let Some(event) = sign_of_life(run_tx.tx, instance)?
    {
        run_tx.job_event(id, event)?;
    }
    if run_tx.job(id)?.status == JobStatus::Terminating {
        run_tx.job_event(id, JobEvent::Logged { to: logged })?;
    }
    let mut next = None;
    if model::job::is_in_no_list(run_tx.job(id)?) {
        run_tx.to_place.push_back(id); // it has changed its pool
    }
    let limits = &context.config.limits;
    if let Some(wait) = model::job::deadline(run_tx.job(id)?, limits) {
        let mut outages: Vec<Outage> = store::worker::outages(run_tx.tx, wait.from)?;
        if bug!(deadline_with_outages) {
            outages.clear();
        }
        let due = deadline_without(wait.from, wait.ms, &outages);
        if due <= run_tx.at {
            run_tx.job_event(id, wait.event)?;
            next = model::job::deadline(run_tx.job(id)?, limits).map(|wait| (wait.from + wait.ms).max(run_tx.at));
        } else {
            next = Some(due);
        }
    }
    run_tx.close()?;
    Ok(next)
}

/// What the machine's state says about its job: a level, not an edge, so it may be asked any number of times.
fn sign_of_life(tx: &mut Tx, instance: model::InstanceId) -> Result<Option<JobEvent>, Failure> {
    use model::instance::InstanceStatus as I;
    let found = store::instance::find(tx, instance)?;
    let lost = found.as_ref().is_some_and(|instance| instance.lost_at.is_some());
    let queued = found.as_ref().and_then(|instance| instance.queued.clone());
    Ok(match found.map(|instance| instance.status) {
        Some(I::Unreachable) => Some(JobEvent::FellSilent),
        Some(I::Lost) => Some(JobEvent::DeclaredLost),
        Some(I::Ready) => Some(JobEvent::HeardAgain),
        Some(I::Terminated) | None => Some(JobEvent::GaveUpOn),
        // It may have been ended in the very transaction that gave it up.
        Some(I::Draining | I::Terminating) if lost => Some(JobEvent::DeclaredLost),
        Some(I::Booting) => Some(match queued {
            Some(queue) => JobEvent::MachineQueued { why: queue.why },
            None => JobEvent::MachineStarted,
        }),
        Some(I::Spawning | I::Draining | I::Terminating) => None,
    })
}
