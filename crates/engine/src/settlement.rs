//! The only finaliser. Ends of jobs become ends of steps, tasks, agents and the run, with money and machines, in one transaction.

use crate::intents::terminate_instance;
use crate::job::stop_reason;
use crate::run_tx::{RunTx, Tracked};
use model::agent::{Agent, AgentKind, AgentStatus};
use model::allocation::{AllocationEvent, AllocationStatus};
use model::bug;
use model::children::Children;
use model::hierarchy;
use model::job::{Job, JobEvent, JobReason, JobStatus, SlotEnd};
use model::recovery;
use model::run::{LastError, RunConsequence, RunEvent, RunReason, RunStatus};
use model::spec::{FailureMode, RetryEvent};
use model::{AgentId, Failure, JobId, Outcome};

/// What a run leaves is kept so long after its end.
/// Submissions, first included, while the command cannot have started yet and no policy was given.
const SUBMISSIONS_BEFORE_START: i64 = 3;

impl RunTx<'_> {
    pub(crate) fn run_event(&mut self, event: RunEvent) -> Result<(), Failure> {
        let Outcome::Moved { next, consequences } = model::run::apply(&self.run, &event, self.at)? else {
            return Ok(());
        };
        self.set_run(next);
        // What happened is told before what follows from it.
        let (told, done): (Vec<_>, Vec<_>) =
            consequences.into_iter().partition(|c| matches!(c, RunConsequence::Publish { .. }));
        for consequence in told.into_iter().chain(done) {
            self.run_consequence(consequence)?;
        }
        if let Some((due, _)) = model::run::deadline(&self.run) {
            self.wake(store::WorkKind::Run, self.run.id.0, due);
        }
        Ok(())
    }

    fn run_consequence(&mut self, consequence: RunConsequence) -> Result<(), Failure> {
        match consequence {
            RunConsequence::Publish { kind } => {
                let run = &self.run;
                let body = store::body!({
                    "status": run.status, "attempt": run.attempt, "name": run.name, "outcome": run.outcome, "exit_code": run.exit_code,
                    "reason": run.termination.as_ref().map(|t| t.reason), "last_error": run.last_error, "retry_at": run.retry_at,
                });
                self.publish(kind, body);
                Ok(())
            }
            RunConsequence::OpenAttempt => self.open_attempt(),
            RunConsequence::Reserve => self.reserve_for_start(),
            RunConsequence::WakeDispatch => self.dispatch(),
            RunConsequence::CreateAgents => self.create_agents(),
            RunConsequence::HoldAgents => self.hold_jobs(),
            RunConsequence::WakeAgents => self.release_jobs(),
            RunConsequence::StopAgents { abort, .. } => self.stop_agents(abort),
            RunConsequence::Settle => self.settle(),
        }
    }

    /// Every live job is asked to stop; agents without one end at once; then the run may be ready for its end.
    fn stop_agents(&mut self, abort: bool) -> Result<(), Failure> {
        let attempt = self.run.attempt;
        let reason = self.run.termination.as_ref().map_or(JobReason::TerminatedByServer, |t| stop_reason(t.reason));
        let mine = self.jobs.iter().filter(|j| j.it.attempt == attempt && !j.it.status.is_end());
        let open: Vec<JobId> = mine.map(|j| j.it.id).collect();
        for job in open {
            self.job_event(job, JobEvent::StopAsked { reason, abort })?;
        }
        hierarchy::stop_agents(self)
    }

    /// A submission has ended: try again where infrastructure failed and nothing can have run twice, else end its agent.
    pub(crate) fn job_ended(&mut self, id: JobId, reason: JobReason) -> Result<(), Failure> {
        let job = self.job(id)?.clone();
        self.charge_job(id, job.stopped_at.or(job.gone_at).unwrap_or(self.at))?;
        self.end_active(&job);
        let mut run = self.run.clone();
        (run.exit_code, run.signal) = (job.exit_code, job.signal);
        self.set_run(run);
        // A frozen machine that dies takes its run's patience with it: who resumes wants to find what was paused.
        let may = self.run.termination.is_none() && self.run.status == RunStatus::Running;
        if may && self.resubmits(&job, reason)? {
            return self.resubmit(&job, reason);
        }
        match reason.agent_end() {
            AgentStatus::Completed => hierarchy::complete_rank(self, job.agent)?,
            AgentStatus::Failed => {
                hierarchy::fail_rank(self, job.agent, reason.run_reason(), describe(&job, reason))?;
            }
            _ => hierarchy::cancel_rank(self, job.agent)?,
        }
        hierarchy::settle_run(self)
    }

    /// Infrastructure failures repeat by policy; without one, only while the command cannot have begun.
    fn resubmits(&mut self, job: &Job, reason: JobReason) -> Result<bool, Failure> {
        let never_began = self.never_began(job)?;
        let spec = &self.run.spec;
        Ok(match (reason.retry_event(), &spec.retry) {
            (Some(event @ (RetryEvent::NoCapacity | RetryEvent::Interruption)), Some(retry))
                if retry.on_events.contains(&event) =>
            {
                let in_time = retry.duration_ms.is_none_or(|ms| self.at.since(self.run.created_at) < ms);
                job.submission < retry.max_attempts && in_time
            }
            (Some(RetryEvent::NoCapacity | RetryEvent::Interruption), _) if reason != JobReason::NoCapacity => {
                never_began && job.submission < SUBMISSIONS_BEFORE_START
            }
            _ => false,
        })
    }

    /// Surely: its runner said so (an end without any exit status), or no runner was ever given it.
    fn never_began(&mut self, job: &Job) -> Result<bool, Failure> {
        if model::job::may_have_started(job) && !bug!(repeated_after_it_began) {
            return Ok(false);
        }
        if !job.fenced {
            return Ok(job.exit_code.is_none() && job.signal.is_none());
        }
        if self.context.presence.never_delivered(job.id) {
            return Ok(true);
        }
        Ok(match job.instance {
            Some(instance) => self.instance(instance)?.it.ready_at.is_none(),
            None => true,
        })
    }

    fn resubmit(&mut self, job: &Job, reason: JobReason) -> Result<(), Failure> {
        let (error, pause) = (describe(job, reason), recovery::infrastructure_pause(job.submission));
        let due = self.at + pause;
        hierarchy::undo_rank(self, job.agent, due, &error)?;
        self.run_event(RunEvent::InfrastructureFailed { retry_after_ms: pause })
    }

    /// Ends the run once its reason stands and nothing of it is left.
    pub(crate) fn finalise(&mut self) -> Result<(), Failure> {
        let Some(termination) = self.run.termination.clone() else { return Ok(()) };
        if self.run.status.is_end() {
            return Ok(());
        }
        let attempt = self.run.attempt;
        let tree = self.attempt()?.it.tree.clone();
        let jobs = self.jobs.iter().any(|j| j.it.attempt == attempt && !j.it.status.is_end());
        if jobs || tree.agents.open() + tree.superseded > 0 {
            return Ok(());
        }
        if termination.reason.end() == RunStatus::Failed && tree.agents.failed == 0 {
            self.add_system_agent(termination.reason);
        }
        self.run_event(RunEvent::Finalised)?;
        self.retry_by_policy(termination.reason)
    }

    /// R3: a failed run has a failed agent; when none did it, one of ours carries the cause.
    fn add_system_agent(&mut self, reason: RunReason) {
        let error = self.run.last_error.clone().unwrap_or_else(|| LastError {
            code: reason.to_string(),
            message: format!("the run ended: {reason}"),
            cause: None,
        });
        let id = AgentId(self.tx.next_id());
        self.agents.push(Tracked::new(Agent {
            id,
            run: self.run.id,
            attempt: self.run.attempt,
            plan_version: self.run.plan_version,
            sequence: -1,
            kind: AgentKind::System,
            name: "system".into(),
            status: AgentStatus::Failed,
            outcome: None,
            mode: FailureMode::FailFast,
            parallel: 1,
            tries: 0,
            max_tries: 1,
            timeout_ms: None,
            due_at: None,
            tasks: Children::default(),
            task_count: 0,
            ending: None,
            cut: false,
            stopping: false,
            last_error: Some(error),
            started_at: None,
            ended_at: Some(self.at),
        }));
        let mut next = self.run.clone();
        next.agent_count += 1;
        self.set_run(next);
    }

    fn settle(&mut self) -> Result<(), Failure> {
        self.settle_attempt()?;
        if self.run.spec.files.is_some() || self.run.spec.stdin.is_some() {
            store::content::used_until_now(self.tx, self.run.id)?;
        }
        if !self.run.spec.artifacts.is_empty() {
            store::artifact::give_up(self.tx, self.run.id)?;
        }
        store::artifact::date(self.tx, self.run.id, self.at + self.context.config.timings.artifacts_kept_ms)
    }

    /// `retry` on errors opens the next attempt after a pause, if it can be paid.
    fn retry_by_policy(&mut self, reason: RunReason) -> Result<(), Failure> {
        let again = self.run.status == RunStatus::Failed
            && reason == RunReason::JobFailed
            && self.run.attempt < self.run.max_attempts
            && self.run.spec.retries_on(RetryEvent::Error)
            && self.last_reason().and_then(JobReason::retry_event) == Some(RetryEvent::Error);
        if !again {
            return Ok(());
        }
        // The budget is the whole run's: this attempt has used of it too. What it gives back is on its way in this very transaction.
        let spent = self.spent_before()? + self.attempt()?.it.charged;
        let available = store::org::spendable(self.tx, self.run.org)?;
        let refused = match crate::ledger::estimate(self.context, &self.run.spec, spent) {
            Ok(needed) if needed <= available => None,
            Ok(needed) => Some(model::Refused::Unaffordable { needed, available }),
            Err(Failure::Refused(refused)) => Some(refused),
            Err(failure) => return Err(failure),
        };
        if let Some(refused) = refused {
            self.publish("run.retry_unaffordable", store::body!({ "why": refused.to_string() }));
            return Ok(());
        }
        self.run_event(RunEvent::RetryAsked { after_ms: model::run::pause_before_retry(&self.run) })
    }

    fn last_reason(&self) -> Option<JobReason> {
        self.jobs.iter().rev().find(|j| j.it.attempt == self.run.attempt).and_then(|j| j.it.reason)
    }

    fn end_active(&mut self, job: &Job) {
        let others = self.jobs.iter().any(|j| j.it.id != job.id && j.it.status == JobStatus::Running);
        if !others {
            self.stop_clock();
        }
    }

    pub(crate) fn stop_clock(&mut self) {
        if let Some(since) = self.run.active_since {
            let mut next = self.run.clone();
            next.active_since = None;
            next.active_ms += self.at.since(since);
            self.set_run(next);
        }
    }

    /// The job has left its slot. What becomes of the slot is the job's to say; a machine that is on its way out gets no new one.
    pub(crate) fn slot_ended(&mut self, id: JobId, how: SlotEnd) -> Result<(), Failure> {
        let job = self.job(id)?.clone();
        let (Some(slot), Some(instance)) = (job.allocation, job.instance) else { return Ok(()) };
        let failed = |replenish| AllocationEvent::LifecycleFailed { replenish };
        match how {
            SlotEnd::Used => {
                let clean_exit = job.exit_code == Some(0);
                let hold = self.context.config.holds.after(clean_exit, self.run.spec.hold_ms);
                self.allocation_event(slot, AllocationEvent::RunFinished { hold_until: self.at + hold })
            }
            SlotEnd::Undone if self.allocation(slot)?.it.status != AllocationStatus::Claimed => Ok(()),
            SlotEnd::Undone if !crate::instance::stays(self.instance(instance)?.it.status) => {
                self.allocation_event(slot, failed(false))
            }
            SlotEnd::Undone => {
                let workdir = self.next_workdir(instance)?;
                self.allocation_event(slot, AllocationEvent::RolledBack { workdir })?;
                self.machine_idle(instance)
            }
            SlotEnd::Failed => self.allocation_event(slot, failed(true)),
            SlotEnd::Interrupted => {
                self.allocation_event(slot, failed(false))?;
                terminate_instance::begin_in(self, instance, "its provider takes it back")
            }
            SlotEnd::Fenced => {
                self.allocation_event(slot, failed(false))?;
                terminate_instance::begin_in(self, instance, "a job on it was fenced")
            }
        }
    }
}

/// One sentence for people and a code for programs.
pub(crate) fn describe(job: &Job, reason: JobReason) -> LastError {
    let message = match (reason, job.exit_code, job.signal) {
        (JobReason::ExitedWithError, _, Some(signal)) => format!("the command was killed by signal {signal}"),
        (JobReason::ExitedWithError, Some(code), _) => format!("the command exited with code {code}"),
        (JobReason::MaxDuration, ..) => "the command ran longer than max_duration".to_owned(),
        (JobReason::Budget, ..) => "the budget is used up".to_owned(),
        _ => job.message.clone().unwrap_or_else(|| reason.as_str().replace('_', " ")),
    };
    LastError { code: reason.to_string(), message, cause: job.message.clone() }
}
