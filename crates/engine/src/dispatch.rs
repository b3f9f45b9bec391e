//! From pending to running: agents in order, a job and its launch-run workflow for each, placed at once where there is room.

use crate::intents::launch_run;
use crate::run_tx::{RunTx, Tracked};
use model::agent::{Agent, AgentEvent, AgentKind, AgentStatus};
use model::bug;
use model::job::{FreezeState, Job, JobReason, JobStatus};
use model::run::{RunEvent, RunStatus};
use model::step::{Step, StepStatus, Tool};
use model::task::{Task, TaskStatus};
use model::{AgentId, Failure, InstanceId, JobId, RunId, StepId, TaskId, WorkflowId};
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
        self.hierarchy()?;
        let attempt = self.run.attempt;
        if !self.agents.iter().any(|a| a.it.attempt == attempt) {
            self.plan_single_command();
        }
        let pending: Vec<AgentId> = self
            .agents
            .iter()
            .filter(|a| a.it.attempt == attempt && a.it.status == AgentStatus::Pending)
            .map(|a| a.it.id)
            .collect();
        pending.into_iter().try_for_each(|agent| self.begin_agent(agent))
    }

    /// A plain task is one agent with one task with one command.
    fn plan_single_command(&mut self) {
        let (run, attempt) = (self.run.id, self.run.attempt);
        let (agent, task, step) = (AgentId(self.tx.next_id()), TaskId(self.tx.next_id()), StepId(self.tx.next_id()));
        let shown = self.run.spec.command.shown();
        let shown = shown.lines().next().unwrap_or_default();
        self.agents.push(Tracked::new(Agent {
            id: agent,
            run,
            attempt,
            plan_version: self.run.plan_version,
            sequence: 0,
            kind: AgentKind::Rank,
            name: "rank-0".into(),
            status: AgentStatus::Pending,
            outcome: None,
            tries: 0,
            due_at: None,
            task_count: 1,
            last_error: None,
            started_at: None,
            ended_at: None,
        }));
        self.tasks.push(Tracked::new(Task {
            id: task,
            run,
            attempt,
            agent,
            sequence: 0,
            name: "main".into(),
            status: TaskStatus::Pending,
            tries: 0,
            due_at: None,
            step_count: 1,
            last_error: None,
            started_at: None,
            ended_at: None,
        }));
        self.steps.push(Tracked::new(Step {
            id: step,
            run,
            attempt,
            task,
            sequence: 0,
            name: shown.chars().take(80).collect(),
            tool: Tool::Command,
            status: StepStatus::Pending,
            uncertain: false,
            tries: 0,
            due_at: None,
            last_error: None,
            started_at: None,
            ended_at: None,
        }));
        let mut next = self.run.clone();
        (next.agent_count, next.task_count, next.step_count) = (1, 1, 1);
        self.set_run(next);
    }

    fn begin_agent(&mut self, agent: AgentId) -> Result<(), Failure> {
        self.agent_event(agent, AgentEvent::Begun)?;
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
