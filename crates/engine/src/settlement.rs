//! The only finaliser. Ends of jobs become ends of steps, tasks, agents and the run, with money and machines, in one transaction.

use crate::intents::terminate_instance;
use crate::job::stop_reason;
use crate::run_tx::{RunTx, Tracked};
use model::agent::{Agent, AgentConsequence, AgentEvent, AgentKind, AgentStatus};
use model::allocation::{AllocationEvent, AllocationStatus};
use model::bug;
use model::job::{Job, JobEvent, JobReason, JobStatus, SlotEnd};
use model::recovery;
use model::run::{LastError, RunConsequence, RunEvent, RunOutcome, RunReason, RunStatus};
use model::spec::RetryEvent;
use model::step::StepEvent;
use model::task::TaskEvent;
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

    pub(crate) fn agent_event(&mut self, id: AgentId, event: AgentEvent) -> Result<(), Failure> {
        self.hierarchy()?;
        let at = self.at;
        let Some(kept) = self.agents.iter_mut().find(|a| a.it.id == id) else {
            return Err(model::Refused::not_found("agent", id).into());
        };
        let Outcome::Moved { next, consequences } = model::agent::apply(&kept.it, &event, at)? else { return Ok(()) };
        kept.set(next);
        for consequence in consequences {
            match consequence {
                AgentConsequence::Publish { kind } => self.publish(kind, store::body!({ "agent": id })),
                AgentConsequence::WakeAt { at } => self.wake(store::WorkKind::Run, self.run.id.0, at),
                AgentConsequence::ChildEnded { .. } => {} // settled below, when all of it is written
            }
        }
        Ok(())
    }

    /// Every live job is asked to stop; agents without one end at once; then the run may be ready for its end.
    fn stop_agents(&mut self, abort: bool) -> Result<(), Failure> {
        self.hierarchy()?;
        let attempt = self.run.attempt;
        let reason = self.run.termination.as_ref().map_or(JobReason::TerminatedByServer, |t| stop_reason(t.reason));
        let open: Vec<(JobId, AgentId)> = self
            .jobs
            .iter()
            .filter(|j| j.it.attempt == attempt && !j.it.status.is_end())
            .map(|j| (j.it.id, j.it.agent))
            .collect();
        let idle: Vec<AgentId> = self
            .agents
            .iter()
            .filter(|a| {
                a.it.attempt == attempt && !a.it.status.is_end() && !open.iter().any(|(_, agent)| *agent == a.it.id)
            })
            .map(|a| a.it.id)
            .collect();
        for agent in idle {
            self.end_children(agent, AgentStatus::Cancelled, None)?;
        }
        for (job, _) in open {
            self.job_event(job, JobEvent::StopAsked { reason, abort })?;
        }
        self.finalise()
    }

    /// A submission has ended: try again where infrastructure failed and nothing can have run twice, else end its agent.
    pub(crate) fn job_ended(&mut self, id: JobId, reason: JobReason) -> Result<(), Failure> {
        let job = self.job(id)?.clone();
        self.charge_job(id, job.gone_at.unwrap_or(self.at))?;
        self.end_active(&job);
        let mut run = self.run.clone();
        (run.exit_code, run.signal) = (job.exit_code, job.signal);
        self.set_run(run);
        // A frozen machine that dies takes its run's patience with it: who resumes wants to find what was paused.
        let may = self.run.termination.is_none() && self.run.status == RunStatus::Running;
        if may && self.resubmits(&job, reason)? {
            return self.resubmit(&job, reason);
        }
        let error = (reason.agent_end() == AgentStatus::Failed).then(|| describe(&job, reason));
        self.end_children(job.agent, reason.agent_end(), error.clone())?;
        if self.run.termination.is_none() {
            match error {
                Some(error) => self.run_event(RunEvent::AgentFailed { reason: reason.run_reason(), error })?,
                None if self.all_agents_completed() => {
                    self.run_event(RunEvent::AllAgentsCompleted { outcome: RunOutcome::Success })?;
                }
                // Ended without anybody of ours having asked: what its run wanted will not come any more.
                None if reason.agent_end() == AgentStatus::Cancelled => {
                    self.run_event(RunEvent::CancelAsked { abort: false })?;
                }
                None => {}
            }
        }
        self.finalise()
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
        self.children_event(
            job.agent,
            StepEvent::ToBeRetried { at: due, error: error.clone() },
            TaskEvent::ToBeRetried { at: due, error: error.clone() },
        )?;
        self.agent_event(job.agent, AgentEvent::ToBeRetried { at: due, error })?;
        self.run_event(RunEvent::InfrastructureFailed { retry_after_ms: pause })
    }

    fn end_children(&mut self, agent: AgentId, to: AgentStatus, error: Option<LastError>) -> Result<(), Failure> {
        match (to, error) {
            (AgentStatus::Completed, _) => {
                self.children_event(agent, StepEvent::Completed, TaskEvent::StepsEnded)?;
                self.agent_event(agent, AgentEvent::TasksEnded { outcome: RunOutcome::Success })
            }
            (AgentStatus::Failed, Some(error)) => {
                self.children_event(
                    agent,
                    StepEvent::Failed { error: error.clone() },
                    TaskEvent::Failed { error: error.clone() },
                )?;
                self.agent_event(agent, AgentEvent::Failed { error })
            }
            _ => {
                self.children_event(agent, StepEvent::Cancelled, TaskEvent::Cancelled)?;
                self.agent_event(agent, AgentEvent::Cancelled)
            }
        }
    }

    /// The command has started: so have the task and the step it is.
    pub(crate) fn begin_children(&mut self, agent: AgentId) -> Result<(), Failure> {
        self.hierarchy()?;
        let at = self.at;
        for kept in self.tasks.iter_mut().filter(|t| t.it.agent == agent && !t.it.status.is_end()) {
            move_on(kept, |t| model::task::apply(t, &TaskEvent::Begun, at), true)?;
        }
        let tasks: Vec<_> = self.tasks.iter().filter(|t| t.it.agent == agent).map(|t| t.it.id).collect();
        for kept in self.steps.iter_mut().filter(|s| tasks.contains(&s.it.task) && !s.it.status.is_end()) {
            move_on(kept, |s| model::step::apply(s, &StepEvent::Begun, at), true)?;
        }
        Ok(())
    }

    /// The same fate for every open task and step of an agent: an agent with one command has one of each.
    fn children_event(&mut self, agent: AgentId, step: StepEvent, task: TaskEvent) -> Result<(), Failure> {
        self.hierarchy()?;
        let at = self.at;
        let tasks: Vec<_> = self.tasks.iter().filter(|t| t.it.agent == agent).map(|t| t.it.id).collect();
        for kept in self.steps.iter_mut().filter(|s| tasks.contains(&s.it.task) && !s.it.status.is_end()) {
            move_on(kept, |s| model::step::apply(s, &StepEvent::Begun, at), begun_before(&step))?;
            move_on(kept, |s| model::step::apply(s, &step, at), true)?;
        }
        for kept in self.tasks.iter_mut().filter(|t| t.it.agent == agent && !t.it.status.is_end()) {
            move_on(kept, |t| model::task::apply(t, &TaskEvent::Begun, at), begun_before(&step))?;
            move_on(kept, |t| model::task::apply(t, &task, at), true)?;
        }
        Ok(())
    }

    fn all_agents_completed(&self) -> bool {
        let attempt = self.run.attempt;
        self.agents.iter().filter(|a| a.it.attempt == attempt).all(|a| a.it.status == AgentStatus::Completed)
    }

    /// Ends the run once its reason stands and nothing of it is left.
    pub(crate) fn finalise(&mut self) -> Result<(), Failure> {
        let Some(termination) = self.run.termination.clone() else { return Ok(()) };
        if self.run.status.is_end() {
            return Ok(());
        }
        self.hierarchy()?;
        let attempt = self.run.attempt;
        let open = self.jobs.iter().any(|j| j.it.attempt == attempt && !j.it.status.is_end())
            || self.agents.iter().any(|a| a.it.attempt == attempt && !a.it.status.is_end());
        if open {
            return Ok(());
        }
        let failed = termination.reason.end() == RunStatus::Failed;
        if failed && !self.agents.iter().any(|a| a.it.attempt == attempt && a.it.status == AgentStatus::Failed) {
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
            tries: 0,
            due_at: None,
            task_count: 0,
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

fn move_on<T, C>(
    kept: &mut Tracked<T>,
    step: impl FnOnce(&T) -> Result<Outcome<T, C>, model::Refused>,
    wanted: bool,
) -> Result<(), Failure> {
    if wanted && let Outcome::Moved { next, .. } = step(&kept.it)? {
        kept.set(next);
    }
    Ok(())
}

/// Only what ran can complete, fail or be retried; what is cancelled may never have begun.
fn begun_before(event: &StepEvent) -> bool {
    !matches!(event, StepEvent::Cancelled)
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
