//! From pending to running: agents in order, a job and its launch-run workflow for each, placed at once where there is room.

use crate::intents::launch_run;
use crate::run::LOOK_AGAIN_MS;
use crate::run_tx::RunTx;
use model::agent::{Agent, AgentKind};
use model::bug;
use model::hierarchy::{self, Pick, Rows};
use model::job::{Job, JobReason};
use model::plan::MachinePlan;
use model::run::{RunEvent, RunStatus};
use model::spec::Resources;
use model::step::StepTry;
use model::{AgentId, Failure, InstanceId, JobId, RunId, StepId, WorkflowId};
use std::collections::BTreeSet;
use store::{Tx, WorkKind};

/// Earlier submissions that may still run although we have given up on them. Nothing new of their agent starts before their machine is
/// surely gone: the provider says so, or a user does (`repl retry --force`, which ends the job as `instance_lost`).
fn fenced(tx: &mut Tx, run: RunId) -> Result<Vec<Job>, Failure> {
    if bug!(replaced_before_fenced) {
        return Ok(Vec::new());
    }
    let mut fenced = store::job::ended_on_open_machines(tx, run)?;
    fenced.retain(|job| job.fenced && job.reason != Some(JobReason::InstanceLost));
    let mut live = Vec::new();
    for job in fenced {
        let machine = job.instance.map(|id| store::instance::find(tx, id)).transpose()?.flatten();
        // A runner that never registered was never given anything.
        if machine.is_some_and(|machine| machine.status.is_open() && machine.ready_at.is_some()) {
            live.push(job);
        }
    }
    Ok(live)
}

/// The machine on which a submission of this run may still run although we have given up on it.
pub(crate) fn fencing(tx: &mut Tx, run: RunId) -> Result<Option<InstanceId>, Failure> {
    Ok(fenced(tx, run)?.first().and_then(|job| job.instance))
}

/// The same of one of its agents.
pub(crate) fn fencing_agent(tx: &mut Tx, run: RunId, agent: AgentId) -> Result<Option<InstanceId>, Failure> {
    Ok(fenced(tx, run)?.iter().find(|job| job.agent == agent).and_then(|job| job.instance))
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
                if self.all_are_fenced()? {
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
            RunStatus::Running => self.begin_due(),
            _ => Ok(()),
        }
    }

    /// Agents whose pause before the next try is over; and the run's item is woken when the next one's is.
    fn begin_due(&mut self) -> Result<(), Failure> {
        if self.attempt()?.it.tree.agents.pending == 0 {
            return Ok(());
        }
        hierarchy::begin_agents(self)?;
        for id in self.agents(Pick::Pending, hierarchy::CHUNK)? {
            if let Some(due) = Rows::agent(self, id)?.due_at.filter(|due| *due > self.at) {
                self.wake_run(due);
            }
        }
        Ok(())
    }

    /// Whether every agent that could begin has an earlier submission that may still run. In a new attempt every agent waits for
    /// all submissions of the earlier attempts.
    fn all_are_fenced(&mut self) -> Result<bool, Failure> {
        let fenced = fenced(self.tx, self.run.id)?;
        if fenced.iter().any(|job| job.attempt != self.run.attempt) {
            return Ok(true);
        }
        let agents: BTreeSet<AgentId> = fenced.iter().map(|job| job.agent).collect();
        Ok(!agents.is_empty() && agents.len() as i64 >= self.attempt()?.it.tree.agents.pending)
    }

    /// A transaction that holds an instance may not lock a pool any more, and nothing is submitted while an earlier submission of the
    /// same agent may still run: then the run's item goes on.
    pub(crate) fn may_submit_to_a_machine(&mut self, agent: &Agent) -> Result<bool, Failure> {
        if !self.instances.is_empty() {
            self.wake_run(self.at);
            return Ok(false);
        }
        let fenced = agent.submissions > 0 && fencing_agent(self.tx, self.run.id, agent.id)?.is_some();
        if fenced {
            self.wake_run(self.at + LOOK_AGAIN_MS);
        }
        Ok(!fenced)
    }

    /// Agents of this attempt in one go, in order; those that exist and wait are begun again.
    pub(crate) fn create_agents(&mut self) -> Result<(), Failure> {
        if self.run.agent_count == 0 {
            self.plan_agents()?;
        }
        hierarchy::wake_agents(self, true)
    }

    /// A submission of an agent onto a machine, unless one is open. It is placed at the end of the transaction.
    pub(crate) fn submit(&mut self, agent: AgentId) -> Result<(), Failure> {
        if self.has_job(agent)? {
            return Ok(());
        }
        let job = self.submit_job(agent)?;
        self.to_place.push_back(job);
        Ok(())
    }

    /// The step of a rank's next job: the next try of the one it has begun before, or one whose row is made when the machine has everything.
    fn next_try_of(&mut self, agent: &Agent) -> Result<StepTry, Failure> {
        if let Some(importing) = self.importing {
            return Ok(importing.step);
        }
        let begun = if agent.task_count == 0 { None } else { Some(self.task_at(agent.id, 0)?) };
        let begun = begun.map(|task| self.steps(task, Pick::Pending, 1)).transpose()?.unwrap_or_default();
        match begun.first() {
            Some(step) => Ok(StepTry { id: *step, number: self.step(*step)?.tries + 1 }),
            None => Ok(StepTry { id: StepId(self.tx.next_id()), number: 1 }),
        }
    }

    /// The job, its workflow and its manifest: rows before any act.
    fn submit_job(&mut self, agent: AgentId) -> Result<JobId, Failure> {
        // Jobs of an attempt are told in the order of their ids, and the one before may be another process's.
        let before = self.attempt()?.it.tree.jobs.last.map_or(0, |last| last.0);
        let mut submitter = Rows::agent(self, agent)?;
        submitter.submissions += 1;
        let (step, machine, no_sandbox) = match submitter.kind {
            AgentKind::Rank => (Some(self.next_try_of(&submitter)?), MachinePlan::default(), false),
            _ => {
                let plan = self.plan_of(&submitter)?;
                let planned = crate::desired::is_of_planner(&submitter, &self.run);
                let no_sandbox = self.run.spec.sandbox.is_some_and(|sandbox| !plan.is_in_sandbox(sandbox, planned));
                (None, plan.machine.clone().unwrap_or_default(), no_sandbox)
            }
        };
        self.set_agent(submitter.clone());
        let id = match self.importing {
            Some(importing) => importing.job,
            None => JobId(self.tx.next_id_after(before)),
        };
        let workflow = WorkflowId(self.tx.next_id());
        let named = machine.provider.is_some();
        let provider = machine.provider.clone().unwrap_or_else(|| self.run.spec.provider.clone());
        let any_region = named && machine.region.is_none();
        let region = match &machine.region {
            Some(region) => region.clone(),
            None if named => self.cheapest_region(&provider, &machine, no_sandbox)?,
            None => self.run.spec.region.clone(),
        };
        let resources = Some(machine.resources).filter(|asked| *asked != Resources::default());
        let pool = store::pool::ensure(self.tx, &provider, &region)?;
        // The epoch of a job rises with each placement.
        let epoch = self.importing.map_or(0, |importing| importing.epoch - 1);
        let submitted = Job::submitted(id, &self.run, &submitter, workflow, pool, self.at);
        let job = Job { step, resources, provider, spot: machine.spot, any_region, no_sandbox, epoch, ..submitted };
        self.set_job(job)?;
        let mut attempt = Rows::attempt(self)?;
        attempt.tree.jobs.last = Some(id);
        self.set_attempt(attempt)?;
        launch_run::begin(self, id, workflow)?;
        Ok(id)
    }
}
