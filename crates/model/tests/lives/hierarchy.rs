//! The tree below a run in a small world: its rows, and what happens to it from outside. What follows from what is the model's own
//! code (`model::hierarchy`), the same that the engine runs.

use crate::life::NONE;
use crate::samples::{self, NOW, error};
use crate::settlement::{Commit, Done, Origin, Stop};
use crate::world::Choice;
use model::agent::{Agent, AgentConsequence, AgentEvent, AgentKind, AgentStatus};
use model::attempt::Attempt;
use model::children::Children;
use model::hierarchy::{self, Ending, Pick, Rows};
use model::recovery::{ErrorClass, EscalationLimits, StepFailure};
use model::run::{Run, RunEvent, RunStatus, Ticket};
use model::spec::FailureMode;
use model::step::{Step, StepConsequence, StepEvent, StepStatus, Tool};
use model::task::{Task, TaskConsequence, TaskEvent, TaskStatus};
use model::*;

impl From<Refused> for Stop {
    /// Whatever the tree does follows from something: it may not be refused.
    fn from(refused: Refused) -> Stop {
        Stop::Broken(format!("it had to follow and was refused: {refused}"))
    }
}

impl Commit<'_> {
    pub fn tool(&mut self, choice: &Choice) -> Done {
        match choice {
            Choice::Work(agent) => {
                let begun = hierarchy::begin_steps(self, agent_id(*agent))?;
                if begun.is_empty() { Err(Stop::Nothing) } else { Ok(()) }
            }
            // Somebody has found out what became of it.
            Choice::Verified(step, true) if self.is_uncertain(*step) => hierarchy::complete_step(self, step_id(*step)),
            Choice::Verified(step, false) if self.is_uncertain(*step) => {
                hierarchy::fail_step(self, step_id(*step), &failure(ErrorClass::Permanent, Effect::Done))
            }
            Choice::StepDone(step) if self.is_acted_on(*step) => hierarchy::complete_step(self, step_id(*step)),
            Choice::StepFails(step, class, effect) if self.is_acted_on(*step) => {
                hierarchy::fail_step(self, step_id(*step), &failure(*class, *effect))
            }
            Choice::StepLost(step) if self.is_acted_on(*step) => hierarchy::lose_step(self, step_id(*step), &error()),
            Choice::StepCut(step) if self.is_acted_on(*step) && self.is_to_stop(*step) => {
                let unknown = !self.lives.step.get(self.world.steps[*step]).idempotent;
                hierarchy::cancel_step(self, step_id(*step), unknown)
            }
            Choice::ApprovalAsked(step) if self.may_begin(*step) => hierarchy::ask_approval(self, step_id(*step)),
            Choice::Approved(step) if self.waits_for_approval(*step) => hierarchy::approve_step(self, step_id(*step)),
            // Rejected, or expired.
            Choice::Rejected(step) if self.waits_for_approval(*step) => {
                hierarchy::fail_step(self, step_id(*step), &failure(ErrorClass::Permanent, Effect::None))
            }
            Choice::AgentTimesOut(agent) if self.status(*agent) == AgentStatus::Running => {
                hierarchy::expire_agent(self, agent_id(*agent))
            }
            Choice::TaskTimesOut(task)
                if self.is_running(*task) && self.status(self.agent_of(*task)) == AgentStatus::Running =>
            {
                hierarchy::expire_task(self, task_id(*task))
            }
            Choice::Resolved(step, ticket) if self.has_ticket(*step) => {
                let run = self.lives.run.get(self.world.run);
                let refused = *ticket == Ticket::Retry && run.status != RunStatus::Paused;
                if run.termination.is_some() || refused {
                    return Err(Stop::Nothing);
                }
                hierarchy::resolve_ticket(self, step_id(*step), *ticket)
            }
            _ => Err(Stop::Nothing),
        }
    }

    fn is_acted_on(&self, step: usize) -> bool {
        self.step_at(step).is_some_and(|it| it.status == StepStatus::Running && !it.uncertain)
    }

    fn is_uncertain(&self, step: usize) -> bool {
        self.step_at(step).is_some_and(|it| it.uncertain)
    }

    /// Its task, its agent or its run ends.
    fn is_to_stop(&self, step: usize) -> bool {
        let task = step / self.scope.steps;
        let (task, agent) = (self.lives.task.get(self.world.tasks[task]), self.agent_of(task));
        let agent = self.lives.agent.get(self.world.agents[agent]);
        task.ending.is_some() || agent.ending.is_some() || self.lives.run.get(self.world.run).termination.is_some()
    }

    /// The next step of a task that runs, in a run that goes on.
    fn may_begin(&self, step: usize) -> bool {
        let task = step / self.scope.steps;
        let run = self.lives.run.get(self.world.run);
        let goes_on = run.status == RunStatus::Running && run.termination.is_none() && run.pause_asked.is_none();
        let agent = self.lives.agent.get(self.world.agents[self.agent_of(task)]);
        let free = self.is_running(task) && agent.status == AgentStatus::Running && agent.ending.is_none();
        goes_on && free && self.step_at(step).is_some_and(|it| it.status == StepStatus::Pending)
    }

    fn is_running(&self, task: usize) -> bool {
        let known = self.world.tasks.get(task).copied().filter(|id| *id != NONE).map(|id| self.lives.task.get(id));
        known.is_some_and(|it| it.status == TaskStatus::Running && it.ending.is_none())
    }

    fn waits_for_approval(&self, step: usize) -> bool {
        self.step_at(step).is_some_and(|it| it.status == StepStatus::Waiting && it.last_error.is_none())
    }

    pub fn has_ticket(&self, step: usize) -> bool {
        self.step_at(step)
            .is_some_and(|it| it.uncertain || (it.status == StepStatus::Waiting && it.last_error.is_some()))
    }

    pub fn step_at(&self, step: usize) -> Option<&Step> {
        let id = self.world.steps.get(step).copied().filter(|id| *id != NONE)?;
        Some(self.lives.step.get(id))
    }

    pub fn agent_of(&self, task: usize) -> usize {
        task / self.scope.tasks
    }

    /// Agents of a plan version, as rows; what is below them is only counted until they begin.
    pub fn plan_agents(&mut self, kind: AgentKind, count: usize) {
        let plan_version = self.lives.run.get(self.world.run).plan_version;
        for _ in 0..count {
            let position = self.world.agents.len();
            let agent = Agent {
                id: agent_id(position),
                sequence: position as i64,
                plan_version,
                kind,
                mode: self.scope.agent_mode,
                parallel: self.scope.parallel,
                tasks: Children::planned(self.scope.tasks as i64),
                ..samples::agent()
            };
            self.world.agents.push(self.lives.agent.keep(agent));
            (0..self.scope.tasks).for_each(|_| self.world.tasks.push(NONE));
            (0..self.scope.tasks * self.scope.steps).for_each(|_| self.world.steps.push(NONE));
        }
        self.world.run = self.lives.run.edited(self.world.run, |run| run.agent_count += count as i64);
        let last = self.world.attempts.len() - 1;
        let attempt = self.world.attempts[last];
        self.world.attempts[last] =
            self.lives.attempt.edited(attempt, |attempt| attempt.tree.agents.pending += count as i64);
    }

    fn fresh_task(&mut self, position: usize) -> Task {
        let agent = self.lives.agent.get(self.world.agents[self.agent_of(position)]);
        // A rank has one task with one command; its failure is its agent's.
        let rank = agent.kind == AgentKind::Rank;
        let sequence = position % self.scope.tasks;
        let chained = self.scope.chained && !rank;
        Task {
            id: task_id(position),
            agent: agent.id,
            sequence: sequence as i64,
            mode: if rank { FailureMode::FailFast } else { self.scope.task_mode },
            parallel: self.scope.parallel,
            steps: Children::planned(self.scope.steps as i64),
            waits_for: i64::from(chained && sequence > 0),
            dependents: if chained && sequence == 0 { vec![1] } else { vec![] },
            ..samples::task()
        }
    }

    fn fresh_step(&self, position: usize) -> Step {
        let task = position / self.scope.steps;
        let rank = self.lives.agent.get(self.world.agents[self.agent_of(task)]).kind == AgentKind::Rank;
        Step {
            id: step_id(position),
            agent: agent_id(self.agent_of(task)),
            task: task_id(task),
            sequence: (position % self.scope.steps) as i64,
            tool: if rank { Tool::Command } else { Tool::Http },
            idempotent: self.scope.idempotent,
            ..samples::step()
        }
    }
}

fn failure(class: ErrorClass, effect: Effect) -> StepFailure {
    StepFailure { class, effect, retry_after_ms: None, error: error() }
}

fn is_final(ending: &Option<Ending>) -> bool {
    ending.as_ref().is_some_and(Ending::is_final)
}

pub fn agent_id(position: usize) -> AgentId {
    AgentId(position as i64 + 1)
}

pub fn task_id(position: usize) -> TaskId {
    TaskId(position as i64 + 1)
}

pub fn step_id(position: usize) -> StepId {
    StepId(position as i64 + 1)
}

fn at(id: i64) -> usize {
    id as usize - 1
}

impl Rows for Commit<'_> {
    type Error = Stop;

    fn at(&self) -> Timestamp {
        NOW
    }
    fn run(&self) -> &Run {
        self.lives.run.get(self.world.run)
    }
    fn limits(&self) -> EscalationLimits {
        EscalationLimits::default()
    }
    fn pays_for_retry(&mut self) -> Result<bool, Stop> {
        Ok(!self.scope.poor)
    }

    fn attempt(&mut self) -> Result<Attempt, Stop> {
        let last = self.world.attempts.last().ok_or(Stop::Nothing)?;
        Ok(self.lives.attempt.get(*last).clone())
    }
    fn set_attempt(&mut self, attempt: Attempt) -> Result<(), Stop> {
        let last = self.world.attempts.len() - 1;
        self.world.attempts[last] = self.lives.attempt.keep(attempt);
        Ok(())
    }
    fn agent(&mut self, id: AgentId) -> Result<Agent, Stop> {
        Ok(self.lives.agent.get(self.world.agents[at(id.0)]).clone())
    }
    fn set_agent(&mut self, agent: Agent) {
        let position = at(agent.id.0);
        self.world.agents[position] = self.lives.agent.keep(agent);
    }
    fn task(&mut self, id: TaskId) -> Result<Task, Stop> {
        Ok(self.lives.task.get(self.world.tasks[at(id.0)]).clone())
    }
    fn set_task(&mut self, task: Task) {
        let position = at(task.id.0);
        self.world.tasks[position] = self.lives.task.keep(task);
    }
    fn step(&mut self, id: StepId) -> Result<Step, Stop> {
        Ok(self.lives.step.get(self.world.steps[at(id.0)]).clone())
    }
    fn set_step(&mut self, step: Step) {
        let position = at(step.id.0);
        self.world.steps[position] = self.lives.step.keep(step);
    }

    fn apply_agent(&mut self, agent: &Agent, event: &AgentEvent) -> Result<Outcome<Agent, AgentConsequence>, Refused> {
        self.lives.agent.apply(agent, event)
    }
    fn apply_task(&mut self, task: &Task, event: &TaskEvent) -> Result<Outcome<Task, TaskConsequence>, Refused> {
        self.lives.task.apply(task, event)
    }
    fn apply_step(&mut self, step: &Step, event: &StepEvent) -> Result<Outcome<Step, StepConsequence>, Refused> {
        self.lives.step.apply(step, event)
    }

    fn agents(&mut self, pick: Pick, limit: usize) -> Result<Vec<AgentId>, Stop> {
        let fits = |agent: &&Agent| match pick {
            Pick::Pending => agent.status == AgentStatus::Pending,
            Pick::Running => agent.status == AgentStatus::Running,
            Pick::Paused => agent.status == AgentStatus::Paused,
            Pick::Open => !agent.status.is_end() && !is_final(&agent.ending) && !agent.stopping,
            Pick::Cut => agent.cut,
            Pick::Failed => matches!(agent.status, AgentStatus::Failed | AgentStatus::Cancelled),
            Pick::Waiting => false,
        };
        let all = self.world.agents.iter().map(|id| self.lives.agent.get(*id));
        Ok(all.filter(fits).map(|agent| agent.id).take(limit).collect())
    }

    fn tasks(&mut self, agent: AgentId, pick: Pick, limit: usize) -> Result<Vec<TaskId>, Stop> {
        let fits = |task: &&Task| match pick {
            Pick::Pending => task.status == TaskStatus::Pending && task.waits_for == 0 && !is_final(&task.ending),
            Pick::Running => task.status == TaskStatus::Running && !is_final(&task.ending),
            Pick::Open => !task.status.is_end() && !is_final(&task.ending),
            Pick::Cut => task.cut,
            Pick::Failed => matches!(task.status, TaskStatus::Failed | TaskStatus::Cancelled),
            Pick::Paused | Pick::Waiting => false,
        };
        let first = at(agent.0) * self.scope.tasks;
        let made = self.world.tasks[first..first + self.scope.tasks].iter().filter(|id| **id != NONE);
        Ok(made.map(|id| self.lives.task.get(*id)).filter(fits).map(|task| task.id).take(limit).collect())
    }

    fn steps(&mut self, task: TaskId, pick: Pick, limit: usize) -> Result<Vec<StepId>, Stop> {
        let waits = |step: &Step| step.status == StepStatus::Waiting || step.uncertain;
        let fits = |step: &&Step| match pick {
            Pick::Pending => step.status == StepStatus::Pending,
            Pick::Running => step.status == StepStatus::Running && !step.uncertain,
            Pick::Waiting => waits(step),
            Pick::Open => step.status == StepStatus::Pending || waits(step),
            Pick::Failed => matches!(step.status, StepStatus::Failed | StepStatus::Cancelled),
            Pick::Paused | Pick::Cut => false,
        };
        let first = at(task.0) * self.scope.steps;
        let made = self.world.steps[first..first + self.scope.steps].iter().filter(|id| **id != NONE);
        Ok(made.map(|id| self.lives.step.get(*id)).filter(fits).map(|step| step.id).take(limit).collect())
    }

    fn task_at(&mut self, agent: AgentId, sequence: i64) -> Result<TaskId, Stop> {
        Ok(task_id(at(agent.0) * self.scope.tasks + sequence as usize))
    }

    fn make_tasks(&mut self, agent: &Agent) -> Result<i64, Stop> {
        let first = at(agent.id.0) * self.scope.tasks;
        for position in first..first + self.scope.tasks {
            let task = self.fresh_task(position);
            self.world.tasks[position] = self.lives.task.keep(task);
        }
        let made = self.scope.tasks as i64;
        self.world.run = self.lives.run.edited(self.world.run, |run| run.task_count += made);
        Ok(made)
    }

    fn make_steps(&mut self, task: &Task) -> Result<i64, Stop> {
        let first = at(task.id.0) * self.scope.steps;
        for position in first..first + self.scope.steps {
            let step = self.fresh_step(position);
            self.world.steps[position] = self.lives.step.keep(step);
        }
        let made = self.scope.steps as i64;
        self.world.run = self.lives.run.edited(self.world.run, |run| run.step_count += made);
        Ok(made)
    }

    fn replace_task(&mut self, ended: &Task) -> Result<(), Stop> {
        let position = at(ended.id.0);
        // What it waited for has ended; rows of its steps are made anew when it begins.
        let fresh = Task { waits_for: 0, ..self.fresh_task(position) };
        self.world.tasks[position] = self.lives.task.keep(fresh);
        let first = position * self.scope.steps;
        let gone = self.world.steps[first..first + self.scope.steps].iter().filter(|id| **id != NONE).count();
        self.world.steps[first..first + self.scope.steps].fill(NONE);
        self.world.run = self.lives.run.edited(self.world.run, |run| run.step_count -= gone as i64);
        Ok(())
    }

    fn replace_step(&mut self, ended: &Step) -> Result<(), Stop> {
        let position = at(ended.id.0);
        let fresh = self.fresh_step(position);
        self.world.steps[position] = self.lives.step.keep(fresh);
        Ok(())
    }

    fn agent_begun(&mut self, agent: &Agent) -> Result<(), Stop> {
        if agent.kind == AgentKind::Rank { self.submit(at(agent.id.0)) } else { Ok(()) }
    }
    fn has_job(&mut self, agent: AgentId) -> Result<bool, Stop> {
        Ok(self.world.open_job_of(self.lives, at(agent.0)).is_some())
    }
    fn wake_agent(&mut self, _: AgentId, _: Timestamp) {}
    fn wake_run(&mut self, _: Timestamp) {}
    fn publish(&mut self, _: &'static str, _: AgentId) {}
    fn run_event(&mut self, event: RunEvent) -> Result<(), Stop> {
        Commit::run(self, &event, Origin::Within)
    }
    fn open_ticket(&mut self, _: &Step) -> Result<(), Stop> {
        Ok(())
    }
    fn open_tickets(&mut self) -> Result<i64, Stop> {
        Ok((0..self.world.steps.len()).filter(|step| self.has_ticket(*step)).count() as i64)
    }
    fn open_planner(&mut self) -> Result<(), Stop> {
        self.plan_agents(AgentKind::Planner, 1);
        hierarchy::begin_agents(self)
    }
    /// The new version has as many agents as the first.
    fn plan_made(&mut self, _: AgentId) -> Result<(), Stop> {
        self.run_event(RunEvent::Replanned)?;
        self.supersede()
    }
    /// Done at the end of every commit.
    fn finalise(&mut self) -> Result<(), Stop> {
        Ok(())
    }
}

impl Commit<'_> {
    /// Agents of the earlier version end; the new one's take their place.
    fn supersede(&mut self) -> Done {
        let mut attempt = Rows::attempt(self)?;
        attempt.tree.superseded += attempt.tree.agents.open();
        attempt.tree.agents = Children::default();
        attempt.tree.failed_tasks = 0;
        self.set_attempt(attempt)?;
        let version = self.lives.run.get(self.world.run).plan_version;
        self.plan_agents(AgentKind::Planned, self.scope.agents);
        let old = self.world.agents.iter().map(|id| self.lives.agent.get(*id));
        let old: Vec<AgentId> =
            old.filter(|agent| agent.plan_version < version && !agent.status.is_end()).map(|agent| agent.id).collect();
        old.into_iter().try_for_each(|agent| hierarchy::supersede_agent(self, agent))
    }
}
