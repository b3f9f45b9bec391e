//! The tree of a run in its transaction: agents, tasks and steps are read by id, when they are needed, and written once. `model::hierarchy`
//! decides; this file only gives it the rows.

use crate::run_tx::{RunTx, Tracked};
use model::agent::{Agent, AgentKind, AgentStatus};
use model::attempt::Attempt;
use model::children::ChildState;
use model::hierarchy::{self, Ending, MAX_OPEN_CHILDREN, NewChild, Pick, Ready, Rows, TaskReady};
use model::plan::{AgentPlan, StepPlan, TaskPlan};
use model::recovery::EscalationLimits;
use model::run::{Run, RunEvent};
use model::spec::RunKind;
use model::step::{Step, StepWait, ToolKind};
use model::task::{Task, TaskStatus};
use model::{AgentId, Failure, Refused, StepId, TaskId, Timestamp, Trouble};
use std::sync::Arc;
use store::WorkKind;

impl RunTx<'_> {
    /// The plan of an agent. That of a plain task follows from the run itself: one task with one command. The holder of an agent's item has
    /// the agent's plan at hand: no commit of it reads a row whose size grows with the agent.
    pub(crate) fn plan_of(&mut self, agent: &Agent) -> Result<Arc<AgentPlan>, Failure> {
        if agent.kind == AgentKind::Rank {
            return Ok(self.single_command(agent.sequence).into());
        }
        if self.run.spec.kind == RunKind::External {
            return Ok(external_program().into());
        }
        if let Some(acting) = self.acting.as_ref().filter(|acting| acting.agent == agent.id) {
            return Ok(acting.plan.clone());
        }
        let found = store::plan::find(self.tx, self.run.id, agent.plan_version, agent.sequence)?;
        found.map(Arc::new).ok_or_else(|| Trouble::internal("an agent's plan is missing").into())
    }

    fn single_command(&self, rank: i64) -> AgentPlan {
        let step = StepPlan { max_tries: 1, ..StepPlan::new(&self.run.spec.title, ToolKind::Command) };
        AgentPlan::new(&format!("rank-{rank}"), vec![TaskPlan::new("main", vec![step])])
    }

    /// Agents of the current plan version, as rows; what is below them is only counted until they begin.
    pub(crate) fn plan_agents(&mut self) -> Result<(), Failure> {
        if self.run.spec.plan.goal && self.run.plan_version == 1 {
            self.run_event(RunEvent::ReplanAsked)?;
            return self.add_planner();
        }
        let (kind, plans) = match self.run.spec.kind {
            RunKind::Agents => {
                (AgentKind::Planned, store::plan::of_version(self.tx, self.run.id, self.run.plan_version)?)
            }
            RunKind::External => (AgentKind::Planned, vec![(0, external_program())]),
            _ => (AgentKind::Rank, (0..self.run.spec.nodes).map(|rank| (rank, self.single_command(rank))).collect()),
        };
        for (sequence, plan) in plans {
            self.add_agent(kind, sequence, &plan)?;
        }
        Ok(())
    }

    /// Whether a plan says how long it may take. The time of a command, and of a program outside, is the run's.
    fn is_planned(&self, kind: AgentKind) -> bool {
        kind != AgentKind::Rank && self.run.spec.kind != RunKind::External
    }

    pub(crate) fn add_agent(&mut self, kind: AgentKind, sequence: i64, plan: &AgentPlan) -> Result<AgentId, Failure> {
        let id = AgentId(self.tx.next_id());
        let timeout_ms = self.is_planned(kind).then_some(plan.timeout_ms);
        let agent = Agent { timeout_ms, ..Agent::planned(id, &self.run, kind, sequence, plan) };
        self.agents.push(Tracked::new(agent));
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
        let timeout_ms = self.is_planned(agent.kind).then_some(plan.timeout_ms);
        let task = Task::planned(id, agent, sequence, plan);
        self.tasks.push(Tracked::new(Task { waits_for, dependents, timeout_ms, ..task }));
    }

    /// A program outside may begin steps from now on.
    fn begin_program(&mut self, agent: AgentId) -> Result<(), Failure> {
        let begun = hierarchy::begin_rank(self, agent)?;
        let Some(program) = begun.first().copied() else { return Ok(()) }; // it had begun before a pause
        let mut attempt = Rows::attempt(self)?;
        attempt.tree.program = Some(program);
        self.set_attempt(attempt)
    }

    /// The id of a rank's step was taken with its job.
    fn next_step_id(&mut self, agent: AgentId) -> StepId {
        let mine = self.jobs.iter().map(|job| &job.it).filter(|job| job.agent == agent);
        let of_job = mine.max_by_key(|job| job.id).and_then(|job| job.step);
        of_job.map_or_else(|| StepId(self.tx.next_id()), |step| step.id)
    }

    fn add_step(&mut self, task: &Task, sequence: i64, plan: &StepPlan) {
        let id = self.next_step_id(task.agent);
        // A program outside is what it begins.
        let by_children = plan.tool == ToolKind::Llm || self.run.spec.kind == RunKind::External;
        let tries = self.tries_before_import();
        self.steps.push(Tracked::new(Step { by_children, tries, ..Step::planned(id, task, sequence, plan) }));
    }
}

/// What a run of `type: external` does: its one step is what a program outside begins below it.
fn external_program() -> AgentPlan {
    let step = StepPlan { max_tries: 1, ..StepPlan::new("program", ToolKind::External) };
    AgentPlan::new("program", vec![TaskPlan::new("main", vec![step])])
}

fn is_final(ending: &Option<Ending>) -> bool {
    ending.as_ref().is_some_and(Ending::is_final)
}

fn is_due(due_at: Option<Timestamp>, at: Timestamp) -> bool {
    due_at.is_none_or(|due| due <= at)
}

fn agent_fits(agent: &Agent, pick: Pick, at: Timestamp) -> bool {
    match pick {
        Pick::Due => agent.status == AgentStatus::Pending && is_due(agent.due_at, at) && !is_final(&agent.ending),
        Pick::Pending => agent.status == AgentStatus::Pending,
        Pick::Running => agent.status == AgentStatus::Running,
        Pick::Paused => agent.status == AgentStatus::Paused,
        Pick::Open => !agent.status.is_end() && !is_final(&agent.ending) && !agent.stopping,
        Pick::Cut => agent.cut,
        Pick::Any => true,
        Pick::Waiting | Pick::Failed => false,
    }
}

fn task_fits(task: &Task, pick: Pick, at: Timestamp) -> bool {
    let pending = task.status == TaskStatus::Pending && task.waits_for == 0 && !is_final(&task.ending);
    match pick {
        _ if task.replaced => false,
        Pick::Pending => pending,
        Pick::Due => pending && is_due(task.due_at, at),
        Pick::Running => task.status == TaskStatus::Running && !is_final(&task.ending),
        Pick::Failed => matches!(task.status, TaskStatus::Failed | TaskStatus::Cancelled),
        Pick::Open => !task.status.is_end() && !is_final(&task.ending),
        Pick::Cut => task.cut,
        Pick::Any => true,
        Pick::Waiting | Pick::Paused => false,
    }
}

fn step_fits(step: &Step, pick: Pick, at: Timestamp) -> bool {
    let state = step.child_state();
    match pick {
        _ if step.replaced || step.parent.is_some() => false,
        Pick::Pending => state == ChildState::Pending,
        Pick::Due => state == ChildState::Pending && is_due(step.due_at, at),
        Pick::Running => state == ChildState::Running,
        Pick::Waiting => state == ChildState::Waiting,
        Pick::Failed => matches!(state, ChildState::Failed | ChildState::Cancelled),
        Pick::Open => matches!(state, ChildState::Pending | ChildState::Waiting),
        Pick::Any => true,
        Pick::Paused | Pick::Cut => false,
    }
}

/// What is held in memory is newer than what the database has. `read` brings the rows that the database would pick; those held here
/// are judged as they are now.
fn merged<T: Clone, K: PartialEq + Copy, O: Ord>(
    held: &mut Vec<Tracked<T>>,
    read: Vec<T>,
    key: impl Fn(&T) -> K,
    fits: impl Fn(&T) -> bool,
    order: impl Fn(&T) -> O,
    limit: usize,
) -> Vec<K> {
    for row in read {
        if !held.iter().any(|it| key(&it.it) == key(&row)) {
            held.push(Tracked::clean(row));
        }
    }
    let mut found: Vec<(O, K)> = held.iter().filter(|it| fits(&it.it)).map(|it| (order(&it.it), key(&it.it))).collect();
    found.sort_by(|(one, _), (other, _)| one.cmp(other));
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
    fn pays_for_retry(&mut self) -> Result<bool, Failure> {
        self.has_credits_to_retry()
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
        if step.tries > held.it.tries && held.it.tries > 0 {
            self.earlier_tries.push(held.it.clone());
        }
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
        let at = self.at;
        let fits =
            |agent: &Agent| agent.attempt == attempt && agent.kind != AgentKind::System && agent_fits(agent, pick, at);
        Ok(merged(&mut self.agents, read, |agent| agent.id, fits, |agent| agent.sequence, limit))
    }

    fn tasks(&mut self, agent: AgentId, pick: Pick, limit: usize) -> Result<Vec<TaskId>, Failure> {
        let count = self.agent(agent)?.task_count;
        let here = self.tasks.iter().filter(|task| task.it.agent == agent && !task.it.replaced);
        let read = if here.count() as i64 >= count {
            Vec::new()
        } else {
            store::task::pick(self.tx, agent, pick, (limit + self.tasks.len()) as i64)?
        };
        let at = self.at;
        let fits = |task: &Task| task.agent == agent && task_fits(task, pick, at);
        // The tasks of one `for_each` share their place, and come in the order of their items.
        let order = |task: &Task| (task.sequence, task.item.unwrap_or(0));
        Ok(merged(&mut self.tasks, read, |task| task.id, fits, order, limit))
    }

    fn steps(&mut self, task: TaskId, pick: Pick, limit: usize) -> Result<Vec<StepId>, Failure> {
        let count = self.task(task)?.step_count;
        let here = self.steps.iter().filter(|step| step.it.task == task && !step.it.replaced);
        let read = if here.count() as i64 >= count {
            Vec::new()
        } else {
            store::step::pick(self.tx, task, pick, (limit + self.steps.len()) as i64)?
        };
        let at = self.at;
        let fits = |step: &Step| step.task == task && step_fits(step, pick, at);
        Ok(merged(&mut self.steps, read, |step| step.id, fits, |step| step.sequence, limit))
    }

    fn open_children(&mut self, parent: StepId) -> Result<Vec<StepId>, Failure> {
        let read = store::step::open_children(self.tx, parent, MAX_OPEN_CHILDREN)?;
        let fits = |step: &Step| step.parent == Some(parent) && !step.status.is_end();
        let most = MAX_OPEN_CHILDREN as usize;
        Ok(merged(&mut self.steps, read, |step| step.id, fits, |step| step.sequence, most))
    }

    fn make_child(&mut self, parent: &Step, child: NewChild) -> Result<StepId, Failure> {
        let (id, task) = (StepId(self.tx.next_id()), Rows::task(self, parent.task)?);
        let plan = StepPlan {
            idempotent: child.idempotent,
            max_tries: child.max_tries,
            ..StepPlan::new(&format!("{}/{}", parent.name, child.name), child.tool)
        };
        self.steps.push(Tracked::new(Step {
            timeout_ms: child.timeout_ms,
            parent: Some(parent.id),
            item: child.item,
            // A turn is a call of its tool, although the step that it belongs to works by its children.
            by_children: false,
            // Numbered through its attempt: ids of several servers have no order, and `repl step get` means the newest.
            ..Step::planned(id, &task, self.run.step_count, &plan)
        }));
        let mut run = self.run.clone();
        run.step_count += 1;
        self.set_run(run);
        Ok(id)
    }

    fn task_at(&mut self, agent: AgentId, sequence: i64) -> Result<TaskId, Failure> {
        let here = |task: &&Tracked<Task>| task.it.agent == agent && task.it.sequence == sequence && !task.it.replaced;
        if let Some(held) = self.tasks.iter().find(here) {
            return Ok(held.it.id);
        }
        let task = store::task::at(self.tx, agent, sequence)?.ok_or_else(|| Trouble::internal("a task is missing"))?;
        let id = task.id;
        self.tasks.push(Tracked::clean(task));
        Ok(id)
    }

    fn planned_tasks(&mut self, agent: &Agent) -> Result<i64, Failure> {
        self.plan_of(agent).map(|plan| plan.tasks.len() as i64)
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
        self.add_task(&agent, ended.sequence, &plan.tasks[ended.sequence as usize], 0, ended.dependents.clone());
        let fresh = self.tasks.last_mut().expect("just added");
        fresh.set(Task { name: ended.name.clone(), each: ended.each, item: ended.item, ..fresh.it.clone() });
        Ok(())
    }

    fn retire_task(&mut self, task: TaskId) -> Result<(), Failure> {
        let retired = Rows::task(self, task)?;
        Rows::set_task(self, Task { replaced: true, ..retired });
        let mut run = self.run.clone();
        run.task_count -= 1;
        self.set_run(run);
        Ok(())
    }

    fn replace_step(&mut self, ended: &Step) -> Result<(), Failure> {
        let task = Rows::task(self, ended.task)?;
        let agent = Rows::agent(self, ended.agent)?;
        let plan = self.plan_of(&agent)?;
        self.add_step(&task, ended.sequence, &plan.tasks[task.sequence as usize].steps[ended.sequence as usize]);
        Ok(())
    }

    fn task_ready(&mut self, task: &Task) -> Result<TaskReady, Failure> {
        Ok(self.task_readiness(task))
    }
    fn add_item(&mut self, first: &Task, item: i64) -> Result<(), Failure> {
        let (id, name) = (TaskId(self.tx.next_id()), format!("{}[{item}]", first.name));
        self.tasks.push(Tracked::new(Task { id, name, each: false, item: Some(item), ..first.clone() }));
        let mut run = self.run.clone();
        run.task_count += 1;
        self.set_run(run);
        Ok(())
    }
    fn timer_ended(&mut self, step: &Step) -> Result<(), Failure> {
        self.note_timer(step)
    }
    fn fence(&self) -> i64 {
        self.acting.as_ref().map_or(0, |acting| acting.fence)
    }
    fn ready(&mut self, step: &Step) -> Result<Ready, Failure> {
        self.readiness(step)
    }
    fn is_counted(&self, step: &Step) -> bool {
        !self.uncounted.contains(&step.id)
    }
    fn step_moves(&mut self, step: &Step, next: Step) -> Result<Step, Failure> {
        let charged = self.charge_call(step, next)?;
        self.release_hold(charged)
    }
    fn step_begun(&mut self, step: &Step) -> Result<(), Failure> {
        self.note_begun(step)
    }

    fn may_submit(&mut self, agent: &Agent) -> Result<bool, Failure> {
        self.may_submit_to_a_machine(agent)
    }
    fn agent_begun(&mut self, agent: &Agent) -> Result<(), Failure> {
        if agent.kind == AgentKind::Rank {
            return if self.replaying { Ok(()) } else { self.submit(agent.id) };
        }
        if self.run.spec.kind == RunKind::External {
            return self.begin_program(agent.id);
        }
        Rows::wake_agent(self, agent.id, self.at);
        Ok(())
    }

    /// Its job is closed when everything else has been decided.
    fn agent_ended(&mut self, agent: AgentId) {
        self.to_let_go.push(agent);
    }

    fn has_job(&mut self, agent: AgentId) -> Result<bool, Failure> {
        self.open_job_of(agent).map(|job| job.is_some())
    }

    /// The agent's steps that need no machine are driven by the holder of its work item. The holder itself looks again before it gives
    /// the item back, and need not be woken.
    fn wake_agent(&mut self, agent: AgentId, at: Timestamp) {
        let is_rank = |held: &Tracked<Agent>| held.it.id == agent && held.it.kind == AgentKind::Rank;
        if self.agents.iter().any(is_rank) || self.run.spec.kind == RunKind::External {
            return; // its job, or a program outside, drives it
        }
        match &mut self.acting {
            // What begins later is found by its due time when the item is given back.
            Some(acting) if acting.agent == agent => acting.again |= at <= self.at,
            _ => self.wake(WorkKind::Agent, agent.0, at),
        }
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

    fn open_ticket(&mut self, step: &Step) -> Result<(), Failure> {
        self.ask(step, StepWait::Ticket)
    }
    fn open_approval(&mut self, step: &Step) -> Result<(), Failure> {
        self.ask(step, StepWait::Approval)
    }
    fn close_question(&mut self, step: &Step, what: StepWait) -> Result<(), Failure> {
        self.withdraw(step, what)
    }
    fn open_tickets(&mut self) -> Result<i64, Failure> {
        self.count_open(StepWait::Ticket)
    }
    fn open_planner(&mut self) -> Result<(), Failure> {
        self.add_planner()
    }
    fn plan_made(&mut self, planner: AgentId) -> Result<(), Failure> {
        self.next_plan(planner)
    }
}
