//! The tree of a run in its transaction: agents, tasks and steps are read by id, when they are needed, and written once. What follows from
//! what is decided by `model::hierarchy`; this file only brings it the rows.

use crate::run_tx::{RunTx, Tracked};
use model::agent::{Agent, AgentKind, AgentStatus};
use model::attempt::Attempt;
use model::children::Children;
use model::hierarchy::{Ending, Pick, Rows};
use model::plan::{AgentPlan, StepPlan, TaskPlan};
use model::recovery::EscalationLimits;
use model::run::{Run, RunEvent};
use model::spec::RunKind;
use model::step::{Step, StepStatus, Tool};
use model::task::{Task, TaskStatus};
use model::{AgentId, Failure, Refused, StepId, TaskId, Timestamp, Trouble};
use store::WorkKind;

impl RunTx<'_> {
    /// The plan of an agent. That of a plain task follows from the run itself: one task with one command.
    fn plan_of(&mut self, agent: &Agent) -> Result<AgentPlan, Failure> {
        if agent.kind == AgentKind::Rank {
            return Ok(self.single_command());
        }
        let found = store::plan::find(self.tx, self.run.id, agent.plan_version, agent.sequence)?;
        found.ok_or_else(|| Trouble::internal("an agent's plan is missing").into())
    }

    fn single_command(&self) -> AgentPlan {
        let shown = self.run.spec.command.shown();
        let name: String = shown.lines().next().unwrap_or_default().chars().take(80).collect();
        let step = StepPlan { max_tries: 1, ..StepPlan::new(&name, Tool::Command) };
        AgentPlan::new("rank-0", vec![TaskPlan::new("main", vec![step])])
    }

    /// Agents of the current plan version, as rows; what is below them is only counted until they begin.
    pub(crate) fn plan_agents(&mut self) -> Result<(), Failure> {
        let (kind, plans) = match self.run.spec.kind {
            RunKind::Agents => {
                (AgentKind::Planned, store::plan::of_version(self.tx, self.run.id, self.run.plan_version)?)
            }
            _ => (AgentKind::Rank, vec![(0, self.single_command())]),
        };
        for (sequence, plan) in plans {
            self.add_agent(kind, sequence, &plan)?;
        }
        Ok(())
    }

    pub(crate) fn add_agent(&mut self, kind: AgentKind, sequence: i64, plan: &AgentPlan) -> Result<AgentId, Failure> {
        let id = AgentId(self.tx.next_id());
        let timeout_ms = (kind != AgentKind::Rank).then_some(plan.timeout_ms);
        self.agents.push(Tracked::new(Agent {
            id,
            run: self.run.id,
            attempt: self.run.attempt,
            plan_version: self.run.plan_version,
            sequence,
            kind,
            name: plan.name.clone(),
            status: AgentStatus::Pending,
            outcome: None,
            mode: plan.mode,
            parallel: plan.parallel,
            tries: 0,
            max_tries: plan.max_tries,
            timeout_ms,
            due_at: None,
            tasks: Children::planned(plan.tasks.len() as i64),
            task_count: 0,
            ending: None,
            cut: false,
            stopping: false,
            last_error: None,
            started_at: None,
            ended_at: None,
        }));
        let mut attempt = Rows::attempt(self)?;
        attempt.tree.agents.pending += 1;
        self.set_attempt(attempt)?;
        let mut run = self.run.clone();
        run.agent_count += 1;
        self.set_run(run);
        Ok(id)
    }

    fn add_task(&mut self, agent: &Agent, sequence: i64, plan: &TaskPlan, waits_for: i64, dependents: Vec<i64>) {
        let id = TaskId(self.tx.next_id());
        self.tasks.push(Tracked::new(Task {
            id,
            run: self.run.id,
            attempt: agent.attempt,
            agent: agent.id,
            sequence,
            name: plan.name.clone(),
            status: TaskStatus::Pending,
            outcome: None,
            mode: plan.mode,
            parallel: plan.parallel,
            tries: 0,
            max_tries: plan.max_tries,
            timeout_ms: (agent.kind != AgentKind::Rank).then_some(plan.timeout_ms),
            due_at: None,
            waits_for,
            dependents,
            steps: Children::planned(plan.steps.len() as i64),
            step_count: 0,
            ending: None,
            cut: false,
            last_error: None,
            started_at: None,
            ended_at: None,
        }));
    }

    fn add_step(&mut self, task: &Task, sequence: i64, plan: &StepPlan) {
        let id = StepId(self.tx.next_id());
        self.steps.push(Tracked::new(Step {
            id,
            run: self.run.id,
            attempt: task.attempt,
            agent: task.agent,
            task: task.id,
            sequence,
            name: plan.name.clone(),
            tool: plan.tool,
            idempotent: plan.idempotent,
            status: StepStatus::Pending,
            uncertain: false,
            outcome_unknown: false,
            tries: 0,
            max_tries: plan.max_tries,
            timeout_ms: task.timeout_ms.is_some().then_some(plan.timeout_ms),
            due_at: None,
            last_error: None,
            started_at: None,
            ended_at: None,
        }));
    }
}

fn is_final(ending: &Option<Ending>) -> bool {
    ending.as_ref().is_some_and(Ending::is_final)
}

fn agent_fits(agent: &Agent, pick: Pick) -> bool {
    match pick {
        Pick::Pending => agent.status == AgentStatus::Pending,
        Pick::Running => agent.status == AgentStatus::Running,
        Pick::Paused => agent.status == AgentStatus::Paused,
        Pick::Open => !agent.status.is_end() && !is_final(&agent.ending) && !agent.stopping,
        Pick::Cut => agent.cut,
        Pick::Waiting | Pick::Failed => false,
    }
}

fn task_fits(task: &Task, pick: Pick) -> bool {
    match pick {
        Pick::Pending => task.status == TaskStatus::Pending && task.waits_for == 0 && !is_final(&task.ending),
        Pick::Running => task.status == TaskStatus::Running && !is_final(&task.ending),
        Pick::Failed => matches!(task.status, TaskStatus::Failed | TaskStatus::Cancelled),
        Pick::Open => !task.status.is_end() && !is_final(&task.ending),
        Pick::Cut => task.cut,
        Pick::Waiting | Pick::Paused => false,
    }
}

fn step_fits(step: &Step, pick: Pick) -> bool {
    let waits = step.status == StepStatus::Waiting || step.uncertain;
    match pick {
        Pick::Pending => step.status == StepStatus::Pending,
        Pick::Running => step.status == StepStatus::Running && !step.uncertain,
        Pick::Waiting => waits,
        Pick::Failed => matches!(step.status, StepStatus::Failed | StepStatus::Cancelled),
        Pick::Open => step.status == StepStatus::Pending || waits,
        Pick::Paused | Pick::Cut => false,
    }
}

/// What is held in memory is newer than what the database has. `read` brings the rows that the database would pick; those held here
/// are judged as they are now.
fn merged<T: Clone, K: PartialEq + Copy>(
    held: &mut Vec<Tracked<T>>,
    read: Vec<T>,
    key: impl Fn(&T) -> K,
    fits: impl Fn(&T) -> bool,
    sequence: impl Fn(&T) -> i64,
    limit: usize,
) -> Vec<K> {
    for row in read {
        if !held.iter().any(|it| key(&it.it) == key(&row)) {
            held.push(Tracked::clean(row));
        }
    }
    let mut found: Vec<(i64, K)> =
        held.iter().filter(|it| fits(&it.it)).map(|it| (sequence(&it.it), key(&it.it))).collect();
    found.sort_by_key(|(sequence, _)| *sequence);
    found.into_iter().map(|(_, key)| key).take(limit).collect()
}

impl Rows for RunTx<'_> {
    type Error = Failure;

    fn at(&self) -> Timestamp {
        self.at
    }
    fn run(&self) -> &Run {
        &self.run
    }
    fn limits(&self) -> EscalationLimits {
        self.context.config.escalation
    }
    /// Steps of plans have no price yet: what was reserved at the start covers them.
    fn pays_for_retry(&mut self) -> Result<bool, Failure> {
        Ok(true)
    }

    fn attempt(&mut self) -> Result<Attempt, Failure> {
        RunTx::attempt(self).map(|attempt| attempt.it.clone())
    }
    fn set_attempt(&mut self, attempt: Attempt) -> Result<(), Failure> {
        RunTx::attempt(self)?.set(attempt);
        Ok(())
    }

    fn agent(&mut self, id: AgentId) -> Result<Agent, Failure> {
        if let Some(held) = self.agents.iter().find(|agent| agent.it.id == id) {
            return Ok(held.it.clone());
        }
        let agent = store::agent::find(self.tx, id)?.ok_or_else(|| Refused::not_found("agent", id))?;
        self.agents.push(Tracked::clean(agent.clone()));
        Ok(agent)
    }
    fn set_agent(&mut self, agent: Agent) {
        let held =
            self.agents.iter_mut().find(|held| held.it.id == agent.id).expect("it was read before it is changed");
        held.set(agent);
    }
    fn task(&mut self, id: TaskId) -> Result<Task, Failure> {
        if let Some(held) = self.tasks.iter().find(|task| task.it.id == id) {
            return Ok(held.it.clone());
        }
        let task = store::task::find(self.tx, id)?.ok_or_else(|| Refused::not_found("task", id))?;
        self.tasks.push(Tracked::clean(task.clone()));
        Ok(task)
    }
    fn set_task(&mut self, task: Task) {
        let held = self.tasks.iter_mut().find(|held| held.it.id == task.id).expect("it was read before it is changed");
        held.set(task);
    }
    fn step(&mut self, id: StepId) -> Result<Step, Failure> {
        if let Some(held) = self.steps.iter().find(|step| step.it.id == id) {
            return Ok(held.it.clone());
        }
        let step = store::step::find(self.tx, id)?.ok_or_else(|| Refused::not_found("step", id))?;
        self.steps.push(Tracked::clean(step.clone()));
        Ok(step)
    }
    fn set_step(&mut self, step: Step) {
        let held = self.steps.iter_mut().find(|held| held.it.id == step.id).expect("it was read before it is changed");
        held.set(step);
    }

    fn agents(&mut self, pick: Pick, limit: usize) -> Result<Vec<AgentId>, Failure> {
        let attempt = self.run.attempt;
        let all_here = self.agents.iter().filter(|agent| agent.it.attempt == attempt).count() as i64;
        let read = if all_here >= self.run.agent_count {
            Vec::new()
        } else {
            let most = (limit + self.agents.len()) as i64;
            store::agent::pick(self.tx, self.run.id, attempt, pick, most)?
        };
        let fits =
            |agent: &Agent| agent.attempt == attempt && agent.kind != AgentKind::System && agent_fits(agent, pick);
        Ok(merged(&mut self.agents, read, |agent| agent.id, fits, |agent| agent.sequence, limit))
    }

    fn tasks(&mut self, agent: AgentId, pick: Pick, limit: usize) -> Result<Vec<TaskId>, Failure> {
        let count = self.agent(agent)?.task_count;
        let here =
            self.tasks.iter().filter(|task| task.it.agent == agent && !self.replaced_tasks.contains(&task.it.id));
        let read = if here.count() as i64 >= count {
            Vec::new()
        } else {
            store::task::pick(self.tx, agent, pick, (limit + self.tasks.len()) as i64)?
        };
        let replaced = &self.replaced_tasks;
        let fits = |task: &Task| task.agent == agent && !replaced.contains(&task.id) && task_fits(task, pick);
        Ok(merged(&mut self.tasks, read, |task| task.id, fits, |task| task.sequence, limit))
    }

    fn steps(&mut self, task: TaskId, pick: Pick, limit: usize) -> Result<Vec<StepId>, Failure> {
        let count = self.task(task)?.step_count;
        let here = self.steps.iter().filter(|step| step.it.task == task && !self.replaced_steps.contains(&step.it.id));
        let read = if here.count() as i64 >= count {
            Vec::new()
        } else {
            store::step::pick(self.tx, task, pick, (limit + self.steps.len()) as i64)?
        };
        let replaced = &self.replaced_steps;
        let fits = |step: &Step| step.task == task && !replaced.contains(&step.id) && step_fits(step, pick);
        Ok(merged(&mut self.steps, read, |step| step.id, fits, |step| step.sequence, limit))
    }

    fn task_at(&mut self, agent: AgentId, sequence: i64) -> Result<TaskId, Failure> {
        let here = |task: &&Tracked<Task>| task.it.agent == agent && task.it.sequence == sequence;
        let current = |task: &&Tracked<Task>| !self.replaced_tasks.contains(&task.it.id);
        if let Some(held) = self.tasks.iter().filter(here).find(current) {
            return Ok(held.it.id);
        }
        let task = store::task::at(self.tx, agent, sequence)?.ok_or_else(|| Trouble::internal("a task is missing"))?;
        let id = task.id;
        self.tasks.push(Tracked::clean(task));
        Ok(id)
    }

    fn make_tasks(&mut self, agent: &Agent) -> Result<i64, Failure> {
        let plan = self.plan_of(agent)?;
        let dependents = plan.dependents();
        for (sequence, (task, dependents)) in plan.tasks.iter().zip(dependents).enumerate() {
            self.add_task(agent, sequence as i64, task, task.after.len() as i64, dependents);
        }
        let made = plan.tasks.len() as i64;
        let mut run = self.run.clone();
        run.task_count += made;
        self.set_run(run);
        Ok(made)
    }

    fn make_steps(&mut self, task: &Task) -> Result<i64, Failure> {
        let agent = Rows::agent(self, task.agent)?;
        let plan = self.plan_of(&agent)?;
        let steps = &plan.tasks[task.sequence as usize].steps;
        for (sequence, step) in steps.iter().enumerate() {
            self.add_step(task, sequence as i64, step);
        }
        let made = steps.len() as i64;
        let mut run = self.run.clone();
        run.step_count += made;
        self.set_run(run);
        Ok(made)
    }

    fn replace_task(&mut self, ended: &Task) -> Result<(), Failure> {
        let agent = Rows::agent(self, ended.agent)?;
        let plan = self.plan_of(&agent)?;
        self.replaced_tasks.push(ended.id);
        self.add_task(&agent, ended.sequence, &plan.tasks[ended.sequence as usize], 0, ended.dependents.clone());
        Ok(())
    }

    fn replace_step(&mut self, ended: &Step) -> Result<(), Failure> {
        let task = Rows::task(self, ended.task)?;
        let agent = Rows::agent(self, ended.agent)?;
        let plan = self.plan_of(&agent)?;
        self.replaced_steps.push(ended.id);
        self.add_step(&task, ended.sequence, &plan.tasks[task.sequence as usize].steps[ended.sequence as usize]);
        Ok(())
    }

    fn agent_begun(&mut self, agent: &Agent) -> Result<(), Failure> {
        if agent.kind == AgentKind::Rank { self.submit(agent.id) } else { Ok(()) }
    }

    fn has_job(&mut self, agent: AgentId) -> Result<bool, Failure> {
        Ok(self.jobs.iter().any(|job| job.it.agent == agent && !job.it.status.is_end()))
    }

    /// The agent's steps that need no machine are driven by the holder of its work item.
    fn wake_agent(&mut self, _agent: AgentId, at: Timestamp) {
        self.wake_run(at);
    }
    fn wake_run(&mut self, at: Timestamp) {
        self.wake(WorkKind::Run, self.run.id.0, at);
    }
    fn publish(&mut self, kind: &'static str, agent: AgentId) {
        RunTx::publish(self, kind, store::body!({ "agent": agent }));
    }
    fn run_event(&mut self, event: RunEvent) -> Result<(), Failure> {
        RunTx::run_event(self, event)
    }
    fn finalise(&mut self) -> Result<(), Failure> {
        RunTx::finalise(self)
    }

    // A rank's step belongs to its job, whose end decides: it never asks a person and never makes a plan.
    fn open_ticket(&mut self, step: &Step) -> Result<(), Failure> {
        Err(Trouble::internal(format!("{} of a plain task cannot be escalated", step.id)).into())
    }
    fn open_tickets(&mut self) -> Result<i64, Failure> {
        Ok(0)
    }
    fn open_planner(&mut self) -> Result<(), Failure> {
        Err(Trouble::internal("a plain task has no planner").into())
    }
    fn plan_made(&mut self, planner: AgentId) -> Result<(), Failure> {
        Err(Trouble::internal(format!("{planner} of a plain task cannot make a plan")).into())
    }
}
