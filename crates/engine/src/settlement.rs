//! The only place where a run ends. When a job ends, one transaction ends its step, task, agent and run (decided by `model::hierarchy`),
//! charges and refunds the credits, and frees the slot.

use crate::intents::terminate_instance;
use crate::run_tx::{RunTx, Tracked};
use model::agent::{Agent, AgentKind, AgentStatus};
use model::allocation::{AllocationEvent, AllocationStatus};
use model::bug;
use model::hierarchy::{self, Rows};
use model::instance::InstanceStatus;
use model::job::{Job, JobReason, SlotEnd};
use model::recovery;
use model::run::{LastError, RunEvent, RunReason, RunStatus};
use model::spec::{FailureMode, RetryEvent, RunKind};
use model::{AgentId, Failure, InstanceId, JobId, Timestamp};
use store::WorkKind;

/// Submissions, first included, while the command cannot have started yet and no policy was given.
const SUBMISSIONS_BEFORE_START: i64 = 3;

impl RunTx<'_> {
    /// A submission has ended: try again where infrastructure failed and nothing can have run twice, else end its agent.
    pub(crate) fn job_ended(&mut self, id: JobId, reason: JobReason) -> Result<(), Failure> {
        let job = self.job(id)?.clone();
        self.charge_job(id, job.stopped_at.or(job.gone_at).unwrap_or(self.at))?;
        if Rows::agent(self, job.agent)?.kind != AgentKind::Rank {
            return self.machine_ended(&job, reason);
        }
        if self.attempt()?.it.tree.jobs.active == 0 {
            self.stop_clock();
        }
        // If a frozen machine dies, the job is not submitted again: a user who resumes the run expects the paused processes.
        let may = self.run.termination.is_none() && self.run.status == RunStatus::Running;
        if may && self.resubmits(&job, reason)? {
            let pause = recovery::infrastructure_pause(job.submission);
            hierarchy::resubmit_rank(self, job.agent, pause, &describe(&job, reason))?;
            return self.settle_pause();
        }
        let rank = Rows::agent(self, job.agent)?.sequence;
        let failed = reason.agent_end() == AgentStatus::Failed;
        self.set_run(model::run::rank_ended(&self.run, rank, failed, job.exit_code, job.signal));
        match reason.agent_end() {
            AgentStatus::Completed => hierarchy::complete_rank(self, job.agent)?,
            AgentStatus::Failed => {
                hierarchy::fail_rank(self, job.agent, reason.run_reason(), describe(&job, reason))?;
            }
            _ => hierarchy::cancel_rank(self, job.agent)?,
        }
        hierarchy::settle_run(self)?;
        self.settle_pause()
    }

    /// Infrastructure failures repeat by policy; without one, only while the command cannot have begun.
    fn resubmits(&mut self, job: &Job, reason: JobReason) -> Result<bool, Failure> {
        let never_began = self.never_began(job)?;
        Ok(self.may_submit_again(job, reason, never_began))
    }

    /// `harmless`: nothing that could be repeated has happened, so that no policy is needed.
    pub(crate) fn may_submit_again(&self, job: &Job, reason: JobReason, harmless: bool) -> bool {
        match (reason.retry_event(), &self.run.spec.retry) {
            (Some(event @ (RetryEvent::NoCapacity | RetryEvent::Interruption)), Some(retry))
                if retry.on_events.contains(&event) =>
            {
                let in_time = retry.duration_ms.is_none_or(|ms| self.at.since(self.run.created_at) < ms);
                job.submission < retry.max_attempts && in_time
            }
            (Some(RetryEvent::NoCapacity | RetryEvent::Interruption), _) if reason != JobReason::NoCapacity => {
                harmless && job.submission < SUBMISSIONS_BEFORE_START
            }
            _ => false,
        }
    }

    /// Whether the command surely never began: its runner reported so (an end without an exit status), or no runner ever got the job.
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

    /// Ends the run once it has a termination reason and no agent or job of it is open. The only place that sends `Finalised`.
    pub(crate) fn finalise(&mut self) -> Result<(), Failure> {
        let Some(termination) = self.run.termination.clone() else { return Ok(()) };
        if self.run.status.is_end() {
            return Ok(());
        }
        let tree = self.attempt()?.it.tree.clone();
        if tree.jobs.open() > 0 || tree.agents.open() + tree.superseded > 0 {
            return Ok(());
        }
        if termination.reason.end() == RunStatus::Failed && tree.agents.failed == 0 {
            self.add_system_agent(termination.reason);
        }
        self.run_event(RunEvent::Finalised)?;
        self.retry_by_policy(termination.reason)
    }

    /// R3: a failed run has a failed agent. If none of its agents failed, a system agent is added that carries the cause.
    fn add_system_agent(&mut self, reason: RunReason) {
        let error = self.run.last_error.clone().unwrap_or_else(|| LastError {
            code: reason.to_string(),
            message: format!("the run ended: {reason}"),
            cause: None,
        });
        let id = AgentId(self.tx.next_id());
        self.agents.push(Tracked::new(Agent::system(id, &self.run, error, self.at)));
        let mut next = self.run.clone();
        next.agent_count += 1;
        self.set_run(next);
    }

    pub(crate) fn settle(&mut self) -> Result<(), Failure> {
        self.settle_attempt()?;
        let of_agents = self.run.spec.kind == RunKind::Agents;
        if self.run.spec.sent_files || of_agents {
            store::content::used_until_now(self.tx, self.run.id)?;
        }
        if self.run.spec.has_artifacts || of_agents {
            store::artifact::give_up(self.tx, self.run.id)?;
        }
        store::artifact::date(self.tx, self.run.id, self.at + self.context.config.timings.artifacts_kept_ms)
    }

    /// `retry` on errors opens the next attempt after a pause, if it can be paid.
    fn retry_by_policy(&mut self, reason: RunReason) -> Result<(), Failure> {
        let by_policy = reason == RunReason::JobFailed
            && self.run.spec.retries_on(RetryEvent::Error)
            && self.failed_by().and_then(JobReason::retry_event) == Some(RetryEvent::Error);
        let by_mode = reason == RunReason::AgentFailed && self.run.spec.failure_mode == FailureMode::Retry;
        // The policy of a caller is that of the run which executes its call.
        let executes = self.run.call.is_none();
        let left = executes && self.run.status == RunStatus::Failed && self.run.attempt < self.run.max_attempts;
        if !left || !(by_policy || by_mode) {
            return Ok(());
        }
        // The budget is the whole run's: this attempt has used of it too. What it gives back is on its way in this very transaction.
        let spent = self.spent_before()? + self.attempt()?.it.charged;
        let available = store::org::spendable(self.tx, self.run.org)?;
        let refused = match crate::ledger::estimate(self.context, &self.run.spec, spent) {
            Ok(needed) => {
                let needed = needed.max(self.context.config.limits.least_to_retry());
                (needed > available).then_some(model::Refused::Unaffordable { needed, available })
            }
            Err(Failure::Refused(refused)) => Some(refused),
            Err(failure) => return Err(failure),
        };
        if let Some(refused) = refused {
            self.publish("run.retry_unaffordable", store::body!({ "why": refused.to_string() }));
            return Ok(());
        }
        self.run_event(RunEvent::RetryAsked { after_ms: model::run::pause_before_retry(&self.run) })
    }

    /// Why the job ended whose failure is the run's.
    fn failed_by(&self) -> Option<JobReason> {
        self.run.last_error.as_ref().and_then(|error| error.code.parse().ok())
    }

    pub(crate) fn stop_clock(&mut self) {
        if let Some(since) = self.run.active_since {
            let mut next = self.run.clone();
            next.active_since = None;
            next.active_ms += self.at.since(since);
            self.set_run(next);
        }
    }

    /// The job has left its slot. `how` says what happens to the slot; a machine that is being terminated gets no new one.
    pub(crate) fn slot_ended(&mut self, id: JobId, how: SlotEnd) -> Result<(), Failure> {
        self.end_slot(id, how)?;
        // One that was only waiting for its last job goes now.
        if let Some(instance) = self.job(id)?.instance {
            let machine = &self.instance(instance)?.it;
            match (machine.status, machine.workflow) {
                (InstanceStatus::Draining, _) => self.wake(WorkKind::Instance, instance.0, self.at),
                (InstanceStatus::Terminating, Some(end)) => self.wake(WorkKind::Workflow, end.0, self.at),
                _ => {}
            }
        }
        Ok(())
    }

    /// How long the folder of a failed slot is held: only where the settings ask for it, and on a machine that answers (R92).
    fn hold_of_failed(&mut self, instance: InstanceId) -> Result<Option<Timestamp>, Failure> {
        let reachable = self.instance(instance)?.it.status == InstanceStatus::Ready;
        let holds = &self.context.config.holds;
        let until = self.at + holds.after(false, self.run.spec.hold_ms);
        Ok((holds.hold_on_failure && reachable).then_some(until))
    }

    fn end_slot(&mut self, id: JobId, how: SlotEnd) -> Result<(), Failure> {
        let job = self.job(id)?.clone();
        let (Some(slot), Some(instance)) = (job.allocation, job.instance) else { return Ok(()) };
        self.forget_unfinished_init(instance)?;
        let failed = |replenish| AllocationEvent::LifecycleFailed { replenish, hold_until: None };
        match how {
            SlotEnd::Used => {
                // Of a plain task its command's, of an agent its own.
                let clean_exit =
                    job.exit_code == Some(0) || (job.step.is_none() && job.reason == Some(JobReason::DoneByRunner));
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
            SlotEnd::Failed => {
                let hold_until = self.hold_of_failed(instance)?;
                self.allocation_event(slot, AllocationEvent::LifecycleFailed { replenish: true, hold_until })
            }
            SlotEnd::Interrupted => {
                self.allocation_event(slot, failed(false))?;
                terminate_instance::begin(self, instance, "its host was restarted, or its provider takes it back")
                    .map(drop)
            }
            SlotEnd::Fenced => {
                self.allocation_event(slot, failed(false))?;
                terminate_instance::begin(self, instance, "a job on it was fenced").map(drop)
            }
        }
    }
}

impl RunTx<'_> {
    fn forget_unfinished_init(&mut self, instance: InstanceId) -> Result<(), Failure> {
        let kept = self.instance(instance)?;
        if kept.it.init_checksum.is_some() && !kept.it.init_done {
            let mut next = kept.it.clone();
            next.job_left();
            kept.set(next);
        }
        Ok(())
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
