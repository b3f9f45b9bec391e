//! The hierarchy below a run: what the end of a step does to its task, of a task to its agent, of an agent to its run.
//! Part of the stand-in for the engine; machines and money are in `settlement`.

use crate::life::Applied;
use crate::samples::{self, NOW, error};
use crate::settlement::{Commit, Done, Origin, Stop};
use crate::world::Choice;
use model::agent::{AgentEvent, AgentStatus};
use model::run::{RunEvent, RunOutcome, RunReason, RunStatus};
use model::spec::FailureMode;
use model::step::{StepEvent, StepStatus};
use model::task::{TaskEvent, TaskStatus};
use std::ops::Range;

/// Tries of a task and of an agent, the first included.
const TRIES: i64 = 2;

impl Commit<'_> {
    pub fn tool(&mut self, choice: &Choice) -> Done {
        match choice {
            // Too late: it has ended.
            Choice::AgentTimesOut(agent) if self.status(*agent).is_end() => {
                self.agent(*agent, &AgentEvent::Failed { error: error() }, Origin::Outside)
            }
            Choice::AgentTimesOut(agent) => self.agent_failed(*agent, RunReason::AgentFailed),
            Choice::TaskTimesOut(task) if self.is_going_on(self.agent_of(*task)) => {
                self.fail_task(*task)?;
                self.agent_failed(self.agent_of(*task), RunReason::AgentFailed)
            }
            Choice::TaskSkipped(task) if self.is_going_on(self.agent_of(*task)) => {
                self.end_steps(*task, &StepEvent::Skipped { error: error() })?;
                self.task(*task, &TaskEvent::Skipped { error: error() }, Origin::Outside)?;
                self.advance(self.agent_of(*task))
            }
            Choice::StepBegins(step) => {
                let task = step / self.scope.steps;
                let run = self.lives.run.get(self.world.run);
                if run.pause_asked || !self.is_going_on(self.agent_of(task)) {
                    return Err(Stop::Nothing);
                }
                self.step(*step, &StepEvent::Begun, Origin::Outside)?;
                self.task(task, &TaskEvent::Begun, Origin::Within)
            }
            Choice::Step(step, event) => {
                let agent = self.agent_of(step / self.scope.steps);
                self.step(*step, event, Origin::Outside)?;
                if self.status(agent).is_end() { Ok(()) } else { self.advance(agent) }
            }
            Choice::StepFails(step) => self.step_failed(*step),
            _ => Err(Stop::Nothing),
        }
    }

    /// A step has failed for good; what that means its parents' failure mode says.
    fn step_failed(&mut self, step: usize) -> Done {
        let task = step / self.scope.steps;
        let agent = self.agent_of(task);
        let status = self.lives.step.get(self.world.steps[step]).status;
        if !matches!(status, StepStatus::Running | StepStatus::Waiting) || !self.is_going_on(agent) {
            return Err(Stop::Nothing);
        }
        if self.scope.mode == FailureMode::Continue {
            self.task(task, &TaskEvent::Begun, Origin::Within)?;
            self.step(step, &StepEvent::Skipped { error: error() }, Origin::Within)?;
            return self.advance(agent);
        }
        self.step(step, &StepEvent::Failed { error: error() }, Origin::Within)?;
        self.task(task, &TaskEvent::Begun, Origin::Within)?;
        let again = self.scope.mode == FailureMode::Retry;
        if again && self.lives.task.get(self.world.tasks[task]).tries < TRIES {
            self.renew_steps(task);
            return self.task(task, &TaskEvent::ToBeRetried { at: NOW, error: error() }, Origin::Within);
        }
        self.fail_task(task)?;
        if again && self.lives.agent.get(self.world.agents[agent]).tries < TRIES {
            self.renew_tasks(agent);
            return self.agent(agent, &AgentEvent::ToBeRetried { at: NOW, error: error() }, Origin::Within);
        }
        self.agent_failed(agent, RunReason::AgentFailed)
    }

    /// From the beginning; what is done answers from the journal (R42).
    fn renew_steps(&mut self, task: usize) {
        for step in self.steps_of(task) {
            let it = self.lives.step.get(self.world.steps[step]);
            if it.status != StepStatus::Completed {
                let fresh = model::step::Step { sequence: it.sequence, ..samples::step() };
                self.world.steps[step] = self.lives.step.keep(fresh);
            }
        }
    }

    fn renew_tasks(&mut self, agent: usize) {
        for task in self.tasks_of(agent) {
            let it = self.lives.task.get(self.world.tasks[task]);
            if it.status != TaskStatus::Completed {
                let fresh = model::task::Task { sequence: it.sequence, step_count: it.step_count, ..samples::task() };
                self.world.tasks[task] = self.lives.task.keep(fresh);
                self.renew_steps(task);
            }
        }
    }

    /// Ends every task whose steps have ended, and the agent when all its tasks have.
    fn advance(&mut self, agent: usize) -> Done {
        for task in self.tasks_of(agent) {
            let statuses: Vec<StepStatus> =
                self.steps_of(task).map(|step| self.lives.step.get(self.world.steps[step]).status).collect();
            let open = !self.lives.task.get(self.world.tasks[task]).status.is_end();
            if open && statuses.iter().all(|status| status.is_end()) {
                let skipped = statuses.iter().all(|status| *status == StepStatus::Skipped);
                let event = if skipped { TaskEvent::AllStepsSkipped } else { TaskEvent::StepsEnded };
                self.task(task, &event, Origin::Within)?;
            }
        }
        let statuses: Vec<TaskStatus> =
            self.tasks_of(agent).map(|task| self.lives.task.get(self.world.tasks[task]).status).collect();
        if !statuses.iter().all(|status| status.is_end()) {
            return Ok(());
        }
        let event = if statuses.iter().all(|status| *status == TaskStatus::Skipped) {
            AgentEvent::Skipped { error: error() }
        } else if statuses.contains(&TaskStatus::Skipped) {
            AgentEvent::TasksEnded { outcome: RunOutcome::Partial }
        } else {
            AgentEvent::TasksEnded { outcome: RunOutcome::Success }
        };
        self.agent(agent, &event, Origin::Within)
    }

    /// Its machine has everything it needs.
    pub fn work_begins(&mut self, agent: usize) -> Done {
        for task in self.tasks_of(agent) {
            self.task(task, &TaskEvent::Begun, Origin::Within)?;
            for step in self.steps_of(task) {
                self.step(step, &StepEvent::Begun, Origin::Within)?;
            }
        }
        Ok(())
    }

    /// Its machine was lost: what had begun begins again elsewhere.
    pub fn work_is_undone(&mut self, agent: usize) -> Done {
        for task in self.tasks_of(agent) {
            for step in self.steps_of(task) {
                if self.lives.step.get(self.world.steps[step]).status == StepStatus::Running {
                    self.step(step, &StepEvent::ToBeRetried { at: NOW, error: error() }, Origin::Within)?;
                }
            }
            if self.lives.task.get(self.world.tasks[task]).status == TaskStatus::Running {
                self.task(task, &TaskEvent::ToBeRetried { at: NOW, error: error() }, Origin::Within)?;
            }
        }
        Ok(())
    }

    /// An agent whose machine did its work.
    pub fn complete_agent(&mut self, agent: usize) -> Done {
        for task in self.tasks_of(agent) {
            for step in self.steps_of(task) {
                self.step(step, &StepEvent::Begun, Origin::Within)?;
                self.step(step, &StepEvent::Completed, Origin::Within)?;
            }
            self.task(task, &TaskEvent::Begun, Origin::Within)?;
            self.task(task, &TaskEvent::StepsEnded, Origin::Within)?;
        }
        self.agent(agent, &AgentEvent::TasksEnded { outcome: RunOutcome::Success }, Origin::Within)
    }

    pub fn agent_failed(&mut self, agent: usize, reason: RunReason) -> Done {
        if self.scope.mode == FailureMode::Continue {
            return self.skip_agent(agent);
        }
        for task in self.tasks_of(agent) {
            if !self.lives.task.get(self.world.tasks[task]).status.is_end() {
                self.fail_task(task)?;
            }
        }
        self.agent(agent, &AgentEvent::Failed { error: error() }, Origin::Within)?;
        self.run(&RunEvent::AgentFailed { reason, error: error() }, Origin::Within)
    }

    pub fn cancel_agent(&mut self, agent: usize) -> Done {
        for task in self.tasks_of(agent) {
            self.end_steps(task, &StepEvent::Cancelled)?;
            self.task(task, &TaskEvent::Cancelled, Origin::Within)?;
        }
        self.agent(agent, &AgentEvent::Cancelled, Origin::Within)
    }

    pub fn skip_agent(&mut self, agent: usize) -> Done {
        for task in self.tasks_of(agent) {
            if !self.lives.task.get(self.world.tasks[task]).status.is_end() {
                self.end_steps(task, &StepEvent::Skipped { error: error() })?;
                self.task(task, &TaskEvent::Skipped { error: error() }, Origin::Within)?;
            }
        }
        self.agent(agent, &AgentEvent::Skipped { error: error() }, Origin::Within)
    }

    fn fail_task(&mut self, task: usize) -> Done {
        self.end_steps(task, &StepEvent::Failed { error: error() })?;
        self.task(task, &TaskEvent::Failed { error: error() }, Origin::Within)
    }

    fn end_steps(&mut self, task: usize, event: &StepEvent) -> Done {
        for step in self.steps_of(task) {
            if !self.lives.step.get(self.world.steps[step]).status.is_end() {
                self.step(step, event, Origin::Within)?;
            }
        }
        Ok(())
    }

    pub fn agent(&mut self, agent: usize, event: &AgentEvent, from: Origin) -> Done {
        let answer = self.lives.agent.step(self.world.agents[agent], event);
        keep(&mut self.world.agents[agent], answer, from, model::agent::name(event))
    }

    fn task(&mut self, task: usize, event: &TaskEvent, from: Origin) -> Done {
        let answer = self.lives.task.step(self.world.tasks[task], event);
        keep(&mut self.world.tasks[task], answer, from, model::task::name(event))
    }

    fn step(&mut self, step: usize, event: &StepEvent, from: Origin) -> Done {
        let answer = self.lives.step.step(self.world.steps[step], event);
        keep(&mut self.world.steps[step], answer, from, model::step::name(event))
    }

    /// A call of a worker's that cannot be held: it finishes or is cut.
    pub fn is_in_flight(&self, agent: usize) -> bool {
        let running = |step: usize| self.lives.step.get(self.world.steps[step]).status == StepStatus::Running;
        self.scope.machines == 0 && self.tasks_of(agent).any(|task| self.steps_of(task).any(running))
    }

    fn is_going_on(&self, agent: usize) -> bool {
        let run = self.lives.run.get(self.world.run);
        run.status == RunStatus::Running && run.termination.is_none() && self.status(agent) == AgentStatus::Running
    }

    fn agent_of(&self, task: usize) -> usize {
        task / self.scope.tasks
    }

    fn tasks_of(&self, agent: usize) -> Range<usize> {
        agent * self.scope.tasks..(agent + 1) * self.scope.tasks
    }

    fn steps_of(&self, task: usize) -> Range<usize> {
        task * self.scope.steps..(task + 1) * self.scope.steps
    }
}

/// For lives whose consequences only tell their parents, which is done here already.
fn keep<C>(place: &mut u16, answer: Applied<C>, from: Origin, what: &str) -> Done {
    match answer {
        Applied::Moved(id, _) => *place = id,
        Applied::Unchanged => {}
        Applied::Refused(_) if from == Origin::Outside => return Err(Stop::Nothing),
        Applied::Refused(why) => return Err(Stop::Broken(format!("{what} had to follow and was refused: {why}"))),
    }
    Ok(())
}
