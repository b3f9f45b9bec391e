//! The machine of a planned agent: asked for when its first command is ready, kept for the whole agent, let go when the agent has ended.
//! Decides whether a command may begin there, and what becomes of agent and steps when the machine is lost. Never starts anything: the
//! machine's runner reads what it should do from the desired document.

use crate::command;
use crate::dispatch::fencing_agent;
use crate::job::stop_reason;
use crate::run::LOOK_AGAIN_MS;
use crate::run_tx::RunTx;
use crate::settlement::describe;
use crate::step::is_in_flight;
use model::agent::{AgentKind, AgentStatus};
use model::hierarchy::{self, Ending, Ready, Rows};
use model::job::{Job, JobEvent, JobReason, JobStatus};
use model::recovery;
use model::run::LastError;
use model::step::{OnMachine, Step, ToolKind};
use model::{AgentId, Failure, JobId, Timestamp};
use serde_json::Value;
use store::WorkKind;
use store::step::JournalRow;

/// The longest input of one command: the kernel takes no longer argument either.
const INPUT_BYTES: i64 = 128 << 10;
/// Inputs of all commands that a machine's document lists at once. As standard input they grow by a third, and a document of
/// `wire::runner::DOCUMENT_BYTES` has to have room for the job beside them.
const INPUTS_BYTES: i64 = 192 << 10;

impl RunTx<'_> {
    /// Whether a command may begin on its agent's machine now. An agent without a machine gets one.
    pub(crate) fn readiness_on_machine(&mut self, step: &Step, input: &Value) -> Result<Ready, Failure> {
        if let Err(why) = command::check(step.tool, input) {
            return Ok(Ready::Refused(refusal("invalid_input", why)));
        }
        let bytes = length(input);
        if bytes > INPUT_BYTES {
            let why = format!("its input has {bytes} bytes, and {INPUT_BYTES} are possible: put it into a file");
            return Ok(Ready::Refused(refusal("input_too_large", why)));
        }
        let Some(job) = self.open_job_of(step.agent)? else {
            self.ask_for_machine(step.agent)?;
            return Ok(Ready::Later);
        };
        if self.job(job)?.status != JobStatus::Running {
            return Ok(Ready::Later);
        }
        let beside = self.commands_on(step.agent, job)?;
        // What has to be there before this one begins may still be on its way there.
        let restoring = beside.iter().any(|other| other.on.as_ref().is_some_and(|on| !on.restores.is_empty()));
        let taken: i64 = beside.iter().filter_map(|other| other.on.as_ref()).map(|on| on.input_bytes).sum();
        Ok(if restoring || taken + bytes > INPUTS_BYTES { Ready::Later } else { Ready::Go })
    }

    /// Commands of an agent that were begun in this job and have not ended.
    fn commands_on(&mut self, agent: AgentId, job: JobId) -> Result<Vec<Step>, Failure> {
        let on_job = |step: &Step| is_in_flight(step) && step.on.as_ref().is_some_and(|on| on.job == job);
        Ok(self.acted_on(agent)?.into_iter().filter(on_job).collect())
    }

    fn ask_for_machine(&mut self, id: AgentId) -> Result<(), Failure> {
        let agent = Rows::agent(self, id)?;
        if let Some(at) = agent.machine_at.filter(|at| *at > self.at) {
            self.look_again_at(at);
            return Ok(());
        }
        // A transaction that holds an instance may not lock a pool any more, and nothing is submitted while an earlier submission of the
        // same agent may still run.
        let fenced = agent.submissions > 0 && fencing_agent(self.tx, self.run.id, id)?.is_some();
        if fenced || !self.instances.is_empty() {
            self.look_again_at(self.at + LOOK_AGAIN_MS);
            return Ok(());
        }
        self.submit(id)
    }

    fn look_again_at(&mut self, at: Timestamp) {
        if let Some(acting) = &mut self.acting {
            acting.look_at = acting.look_at.into_iter().chain([at]).min();
        }
    }

    /// A command has begun: its machine is told in the same commit.
    pub(crate) fn begun_on_machine(&mut self, step: &Step, input: &Value) -> Result<(), Failure> {
        let Some(id) = self.open_job_of(step.agent)? else { return Ok(()) };
        let job = self.job(id)?.clone();
        let mut agent = Rows::agent(self, step.agent)?;
        let restores = std::mem::take(&mut agent.restores);
        if !restores.is_empty() {
            Rows::set_agent(self, agent);
        }
        let on = OnMachine {
            job: id,
            epoch: job.epoch,
            input_bytes: length(input),
            restores,
            stopping: false,
            log_end: None,
            kept: None,
        };
        Rows::set_step(self, Step { on: Some(on), ..step.clone() });
        job.instance.into_iter().for_each(|instance| self.tell(instance));
        Ok(())
    }

    /// A finished command answers from its record where nothing needs the files that it left, or they are here, or can be laid here.
    pub(crate) fn record_holds(&mut self, step: &Step, row: &JournalRow) -> Result<Ready, Failure> {
        if step.tool != ToolKind::Command {
            return Ok(Ready::Recorded);
        }
        let recorded = store::step::find(self.tx, row.step)?;
        let on = recorded.and_then(|recorded| recorded.on);
        let here = self.open_job_of(step.agent)?;
        if here.is_some() && on.as_ref().map(|on| on.job) == here {
            return Ok(Ready::Recorded);
        }
        match &step.files {
            Some(globs) if globs.is_empty() => Ok(Ready::Recorded),
            Some(_) if let Some(tree) = self.kept_tree(on)? => {
                let mut agent = Rows::agent(self, step.agent)?;
                agent.restores.push(tree);
                agent.in_workdir += 1;
                Rows::set_agent(self, agent);
                Ok(Ready::Recorded)
            }
            _ if step.may_be_repeated() || self.is_resumed(step)? => Ok(Ready::Go),
            _ => Ok(Ready::Escalate(workdir_gone())),
        }
    }

    /// What a command has left, if it is still here as a whole.
    fn kept_tree(&mut self, on: Option<OnMachine>) -> Result<Option<String>, Failure> {
        let Some(tree) = on.and_then(|on| on.kept) else { return Ok(None) };
        let here = store::content::is_tree_here(self.tx, self.run.org, &tree)?;
        Ok(here.then_some(tree))
    }

    /// Commands whose task, agent or run ends are asked to end; their machine says when they have. If the whole agent ends, so does its
    /// job: a machine that does not answer is given up by the job's own limit.
    pub(crate) fn stop_commands(&mut self, id: AgentId) -> Result<(), Failure> {
        let Some(job) = self.open_job_of(id)? else { return Ok(()) };
        let agent = Rows::agent(self, id)?;
        if agent.ending.as_ref().is_some_and(Ending::is_final) || self.run.termination.is_some() {
            let termination = self.run.termination.as_ref();
            let reason =
                termination.map_or(JobReason::TerminatedByServer, |termination| stop_reason(termination.reason));
            return self.job_event(job, JobEvent::StopAsked { reason, abort: false }).map(drop);
        }
        for step in self.commands_on(id, job)? {
            let Some(on) = step.on.clone().filter(|on| !on.stopping) else { continue };
            if hierarchy::is_to_stop(self, &step)? {
                Rows::set_step(self, Step { on: Some(OnMachine { stopping: true, ..on }), ..step });
                self.job(job)?.instance.into_iter().for_each(|instance| self.tell(instance));
            }
        }
        Ok(())
    }

    /// Jobs of agents that have ended are closed: their machines are free for others.
    pub(crate) fn let_machines_go(&mut self) -> Result<(), Failure> {
        while let Some(id) = self.to_let_go.pop() {
            let agent = Rows::agent(self, id)?;
            if agent.kind == AgentKind::Rank {
                continue; // the end of its job was its own
            }
            if let Some(job) = self.open_job_of(id)? {
                let done = agent.status == AgentStatus::Completed;
                let reason = if done { JobReason::DoneByRunner } else { JobReason::TerminatedByServer };
                self.job_event(job, JobEvent::StopAsked { reason, abort: false })?;
            }
        }
        Ok(())
    }

    /// The job of a planned agent has ended. If its agent has not, its machine is lost, and what was in flight there too. The agent goes on
    /// with another machine where infrastructure failed and that may be tried again; records of steps decide what is repeated.
    pub(crate) fn machine_ended(&mut self, job: &Job, reason: JobReason) -> Result<(), Failure> {
        let agent = Rows::agent(self, job.agent)?;
        let lost = self.commands_on(agent.id, job.id)?;
        let ends = agent.status.is_end()
            || agent.ending.as_ref().is_some_and(Ending::is_final)
            || self.run.termination.is_some();
        let error = describe(job, reason);
        let again = self.may_submit_again(job, reason, true) || agent.status == AgentStatus::Pending;
        let due = self.at + recovery::infrastructure_pause(job.submission);
        match (ends, again) {
            (true, _) => {}
            (false, true) if agent.in_workdir > 0 => {
                hierarchy::renew_agent(self, agent.id, due, error.clone())?;
                for step in &lost {
                    hierarchy::cancel_step(self, step.id, step.tries, !step.idempotent)?;
                }
            }
            (false, true) => {
                let mut agent = agent.clone();
                agent.machine_at = Some(due);
                Rows::set_agent(self, agent);
                Rows::wake_agent(self, job.agent, due);
            }
            (false, false) => hierarchy::fail_agent(self, agent.id, error.clone())?,
        }
        for step in &lost {
            self.wake(WorkKind::StepLog, step.id.0, self.at);
            self.lose_command(step, &error)?;
        }
        hierarchy::settle_run(self)?;
        self.settle_pause()
    }
}

fn length(input: &Value) -> i64 {
    input.to_string().len() as i64
}

fn refusal(code: &str, message: String) -> LastError {
    LastError { code: code.into(), message, cause: None }
}

fn workdir_gone() -> LastError {
    let message = "it has finished in a workdir that is gone, its files were not kept, and it is not known to be safe to run it again";
    refusal("workdir_gone", message.into())
}
