//! The tree below a run in a small world: its rows, and what happens to it from outside. What follows from what is the model's own
//! code (`model::hierarchy`), the same that the engine runs.

use crate::children::{CHILD, Parent};
use crate::life::NONE;
use crate::samples::{self, NOW, error};
use crate::settlement::{Commit, Done, Origin, Stop};
use crate::world::{Choice, Oddity};
use model::agent::{Agent, AgentConsequence, AgentEvent, AgentKind, AgentStatus};
use model::attempt::Attempt;
use model::children::{ChildState, Children};
use model::hierarchy::{self, Ending, NewChild, Pick, Ready, Rows, TaskReady, Verified};
use model::recovery::{ErrorClass, EscalationLimits, StepFailure};
use model::run::{Run, RunEvent, RunStatus, Ticket};
use model::spec::FailureMode;
use model::step::{Recorded, Step, StepConsequence, StepEvent, StepStatus, StepWait, ToolKind};
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
                self.take_item(*agent + 1)?;
                self.begin_steps(*agent)
            }
            Choice::Odd(agent, way) => {
                self.take_item(*agent + 1)?;
                self.odd = Some(*way);
                self.begin_steps(*agent)?;
                if self.odd.is_some() { Err(Stop::Nothing) } else { Ok(()) }
            }
            Choice::TimePasses(step) if self.waits_for(*step, StepWait::Timer) => {
                let run = self.lives.run.get(self.world.run);
                if run.status != RunStatus::Running || run.termination.is_some() || run.pause_asked.is_some() {
                    return Err(Stop::Nothing); // looked at when the run goes on
                }
                hierarchy::end_timer(self, step_id(*step))?;
                self.begin_steps(self.agent_of(*step / self.scope.steps))
            }
            Choice::Polled(step) if self.waits_for(*step, StepWait::Poller) => {
                match hierarchy::take_step(self, step_id(*step))? {
                    true => Ok(()),
                    false => Err(Stop::Nothing), // nothing of its run begins now
                }
            }
            Choice::PolledInVain(step) if self.waits_for(*step, StepWait::Poller) => {
                hierarchy::answer_offered(self, step_id(*step), Ready::Recorded)?;
                self.begin_steps(self.agent_of(*step / self.scope.steps))
            }
            Choice::PolledUnpaid(step) if self.waits_for(*step, StepWait::Poller) => {
                if !hierarchy::may_be_taken(self, step_id(*step))? {
                    return Err(Stop::Nothing);
                }
                hierarchy::answer_offered(self, step_id(*step), Ready::Unaffordable(error()))
            }
            Choice::Child(position) => self.ask_for_child(*position),
            // The step's `verify` says, or the holder that was given up reports late.
            Choice::Verified(step, true) if self.is_verifying(*step) => {
                self.ended(*step, Effect::Done, |rows, id, _| hierarchy::verified(rows, id, Verified::Done))
            }
            Choice::Verified(step, false) if self.is_verifying(*step) => {
                self.ended(*step, Effect::None, |rows, id, _| hierarchy::verified(rows, id, Verified::NotDone))
            }
            Choice::NotVerified(step) if self.is_verifying(*step) => {
                hierarchy::verified(self, step_id(*step), Verified::Unclear(error()))
            }
            Choice::StepDone(step) if self.is_verifying(*step) => {
                self.ended(*step, Effect::Done, hierarchy::complete_step)
            }
            // A person has found out what became of it.
            Choice::Verified(step, true) if self.is_uncertain(*step) => {
                self.ended(*step, Effect::Done, hierarchy::complete_step)
            }
            Choice::Verified(step, false) if self.is_uncertain(*step) => {
                let failure = failure(ErrorClass::Permanent, Effect::Done);
                self.ended(*step, Effect::None, |rows, id, tries| hierarchy::fail_step(rows, id, tries, &failure))
            }
            Choice::StepDone(step) if self.is_acted_on(*step) => {
                self.ended(*step, Effect::Done, hierarchy::complete_step)
            }
            // A holder that was given up reports late, and knows no more than the rows.
            Choice::StepFails(step, class, Effect::Perhaps) if self.is_uncertain(*step) || self.is_verifying(*step) => {
                let (failure, tries) = (failure(*class, Effect::Perhaps), self.step_at(*step).map_or(0, |it| it.tries));
                hierarchy::fail_step(self, step_id(*step), tries, &failure)
            }
            // What failed although it did something may be begun again by a retry of what is above it.
            Choice::StepFails(step, class, effect) if self.is_acted_on(*step) => {
                let failure = failure(*class, *effect);
                self.ended(*step, Effect::None, |rows, id, tries| hierarchy::fail_step(rows, id, tries, &failure))
            }
            Choice::StepLost(step) if self.is_acted_on(*step) => {
                self.ended(*step, Effect::Perhaps, |rows, id, tries| hierarchy::lose_step(rows, id, tries, &error()))
            }
            Choice::StepCut(step) if self.is_acted_on(*step) => {
                let it = self.step_at(*step).expect("it is acted on").clone();
                if !hierarchy::is_to_stop(self, &it)? {
                    return Err(Stop::Nothing);
                }
                self.world.had_effect(*step, Effect::Perhaps);
                hierarchy::cancel_step(self, it.id, it.tries, !it.idempotent)
            }
            Choice::Approved(step) if self.waits_for(*step, StepWait::Approval) => {
                self.world.approved = true;
                hierarchy::approve_step(self, step_id(*step))
            }
            // Rejected, or expired.
            Choice::Rejected(step) if self.waits_for(*step, StepWait::Approval) => {
                hierarchy::refuse_step(self, step_id(*step), error(), false)
            }
            Choice::AgentTimesOut(agent) if self.status(*agent) == AgentStatus::Running => {
                hierarchy::expire_agent(self, agent_id(*agent))
            }
            Choice::MachineLost(agent) if !self.status(*agent).is_end() => {
                hierarchy::renew_agent(self, agent_id(*agent), NOW, error())
            }
            Choice::TaskTimesOut(task)
                if self.is_running(*task) && self.status(self.agent_of(*task)) == AgentStatus::Running =>
            {
                hierarchy::expire_task(self, task_id(*task))
            }
            Choice::Resolved(step, ticket) if self.waits_for(*step, StepWait::Ticket) => {
                let run = self.lives.run.get(self.world.run);
                let only_unknown = matches!(ticket, Ticket::Done | Ticket::NotDone) && !self.is_uncertain(*step);
                let refused = only_unknown || (*ticket == Ticket::Retry && run.status != RunStatus::Paused);
                if run.termination.is_some() || refused {
                    return Err(Stop::Nothing);
                }
                match ticket {
                    Ticket::Done => self.world.had_effect(*step, Effect::Done),
                    Ticket::NotDone | Ticket::Resume | Ticket::Retry => self.world.had_effect(*step, Effect::None),
                    Ticket::Skip | Ticket::Abort => {}
                }
                hierarchy::resolve_ticket(self, step_id(*step), *ticket)
            }
            _ => Err(Stop::Nothing),
        }
    }

    fn is_acted_on(&self, step: usize) -> bool {
        self.step_at(step).is_some_and(|it| it.status == StepStatus::Running && !it.is_unknown())
    }

    fn is_verifying(&self, step: usize) -> bool {
        self.step_at(step).is_some_and(|it| it.verifying)
    }

    fn is_uncertain(&self, step: usize) -> bool {
        self.step_at(step).is_some_and(|it| it.uncertain)
    }

    /// The end of a try, and what the holder begins in the same commit.
    fn ended(&mut self, step: usize, effect: Effect, end: impl FnOnce(&mut Self, StepId, i64) -> Done) -> Done {
        self.world.had_effect(step, effect);
        let (id, tries) = (step_id(step), self.step_at(step).map_or(0, |it| it.tries));
        end(self, id, tries)?;
        if step >= CHILD {
            return Ok(()); // the worker of its parent asks for the next one
        }
        self.begin_steps(self.agent_of(step / self.scope.steps))
    }

    fn begin_steps(&mut self, agent: usize) -> Done {
        if self.world.agents.len() <= agent {
            return Ok(());
        }
        hierarchy::begin_steps(self, agent_id(agent)).map(drop)
    }

    fn is_running(&self, task: usize) -> bool {
        let known = self.world.tasks.get(task).copied().filter(|id| *id != NONE).map(|id| self.lives.task.get(id));
        known.is_some_and(|it| it.status == TaskStatus::Running && it.ending.is_none())
    }

    pub fn waits_for(&self, step: usize, what: StepWait) -> bool {
        self.step_at(step).is_some_and(|it| it.waits == Some(what))
    }

    pub fn step_at(&self, step: usize) -> Option<&Step> {
        self.world.step_number(step).map(|id| self.lives.step.get(id))
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
        let parent = self.scope.parent.filter(|_| position == 0 && !rank);
        Step {
            by_children: parent.is_some(),
            id: step_id(position),
            agent: agent_id(self.agent_of(task)),
            task: task_id(task),
            sequence: (position % self.scope.steps) as i64,
            tool: match parent {
                _ if rank => ToolKind::Command,
                Some(Parent::Program) => ToolKind::External,
                Some(Parent::Act) | None => ToolKind::Http,
            },
            idempotent: self.scope.idempotent,
            verifiable: self.scope.verify && !rank,
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
    fn fence(&self) -> i64 {
        1
    }
    fn ready(&mut self, step: &Step) -> Result<Ready, Stop> {
        let position = at(step.id.0);
        if position >= CHILD {
            return Ok(self.child_ready(step, position));
        }
        if step.tool == ToolKind::Command {
            return Ok(Ready::Go); // a rank's job decides
        }
        Ok(match self.world.recorded(position) {
            Some(Recorded::Done) => Ready::Recorded,
            Some(Recorded::Begun) if !step.idempotent => Ready::Unknown,
            _ if self.odd.is_some_and(|odd| !odd.is_of_a_task()) => match self.odd.take() {
                Some(Oddity::NotNeeded) => Ready::NotNeeded,
                Some(Oddity::Timer) => Ready::Wait { until: NOW + 1 },
                Some(Oddity::Offered) => Ready::Offer(samples::offer()),
                Some(Oddity::PutOff) => Ready::NotBefore { at: NOW },
                Some(Oddity::Refused) => Ready::Refused(error()),
                _ => Ready::Escalate(error()),
            },
            _ if position == 0 && self.scope.approvals && !step.by_children && !self.world.approved => Ready::Ask,
            _ => Ready::Go,
        })
    }
    fn task_ready(&mut self, _: &Task) -> Result<TaskReady, Stop> {
        let Some(odd) = self.odd.filter(|odd| odd.is_of_a_task()) else { return Ok(TaskReady::Go) };
        self.odd = None;
        Ok(match odd {
            Oddity::TaskNotNeeded => TaskReady::NotNeeded,
            Oddity::TaskRefused => TaskReady::Refused(error()),
            _ => TaskReady::Each { items: 1 },
        })
    }
    /// A small world has a fixed number of places: only one item is made.
    fn add_item(&mut self, _: &Task, _: i64) -> Result<(), Stop> {
        Err(Stop::Broken("there is no place for another item".to_owned()))
    }
    fn timer_ended(&mut self, _: &Step) -> Result<(), Stop> {
        Ok(())
    }
    fn step_begun(&mut self, step: &Step) -> Result<(), Stop> {
        if at(step.id.0) >= CHILD {
            return self.child_begun(step, at(step.id.0));
        }
        let again = !step.by_children
            && step.tool != ToolKind::Command
            && !step.idempotent
            && !self.world.has_no_effect_yet(at(step.id.0));
        if again { Err(Stop::Broken(format!("an effect may be repeated: {step:?}"))) } else { Ok(()) }
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
        if task.replaced {
            return;
        }
        self.world.tasks[position] = self.lives.task.keep(task);
    }
    fn step(&mut self, id: StepId) -> Result<Step, Stop> {
        Ok(self.step_at(at(id.0)).expect("a row of this world").clone())
    }
    fn set_step(&mut self, step: Step) {
        let position = at(step.id.0);
        if step.replaced {
            return; // another row is in its place
        }
        // What was never called has nothing to say of what an earlier row did.
        let was_unknown = self.step_at(position).is_some_and(Step::is_unknown);
        let called = step.tries > 0 || step.replayed || step.is_unknown() || was_unknown;
        if called && (position < CHILD || step.key.is_some()) {
            self.world.record(position, step.recorded());
        }
        // What was decided is kept for people: no move reads it.
        *self.world.step_slot(position) = self.lives.step.keep(Step { judged: None, ..step });
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
            Pick::Due => agent.status == AgentStatus::Pending && agent.ending.is_none(),
            Pick::Running => agent.status == AgentStatus::Running,
            Pick::Paused => agent.status == AgentStatus::Paused,
            Pick::Open => !agent.status.is_end() && !is_final(&agent.ending) && !agent.stopping,
            Pick::Cut => agent.cut,
            Pick::Failed => matches!(agent.status, AgentStatus::Failed | AgentStatus::Cancelled),
            Pick::Any => true,
            Pick::Waiting => false,
        };
        let all = self.world.agents.iter().map(|id| self.lives.agent.get(*id));
        Ok(all.filter(fits).map(|agent| agent.id).take(limit).collect())
    }

    fn tasks(&mut self, agent: AgentId, pick: Pick, limit: usize) -> Result<Vec<TaskId>, Stop> {
        let fits = |task: &&Task| match pick {
            Pick::Pending | Pick::Due => {
                task.status == TaskStatus::Pending && task.waits_for == 0 && !is_final(&task.ending)
            }
            Pick::Running => task.status == TaskStatus::Running && !is_final(&task.ending),
            Pick::Open => !task.status.is_end() && !is_final(&task.ending),
            Pick::Cut => task.cut,
            Pick::Failed => matches!(task.status, TaskStatus::Failed | TaskStatus::Cancelled),
            Pick::Any => true,
            Pick::Paused | Pick::Waiting => false,
        };
        let first = at(agent.0) * self.scope.tasks;
        let made = self.world.tasks[first..first + self.scope.tasks].iter().filter(|id| **id != NONE);
        Ok(made.map(|id| self.lives.task.get(*id)).filter(fits).map(|task| task.id).take(limit).collect())
    }

    fn steps(&mut self, task: TaskId, pick: Pick, limit: usize) -> Result<Vec<StepId>, Stop> {
        let waits = |step: &Step| step.child_state() == ChildState::Waiting;
        let fits = |step: &&Step| match pick {
            Pick::Pending | Pick::Due => step.status == StepStatus::Pending,
            Pick::Running => step.child_state() == ChildState::Running,
            Pick::Waiting => waits(step),
            Pick::Open => step.status == StepStatus::Pending || waits(step),
            Pick::Failed => matches!(step.status, StepStatus::Failed | StepStatus::Cancelled),
            Pick::Any => true,
            Pick::Paused | Pick::Cut => false,
        };
        let first = at(task.0) * self.scope.steps;
        let made = self.world.steps[first..first + self.scope.steps].iter().filter(|id| **id != NONE);
        Ok(made.map(|id| self.lives.step.get(*id)).filter(fits).map(|step| step.id).take(limit).collect())
    }

    fn open_children(&mut self, parent: StepId) -> Result<Vec<StepId>, Stop> {
        Ok(self.rows_of_children(parent))
    }
    fn make_child(&mut self, parent: &Step, child: NewChild) -> Result<StepId, Stop> {
        Ok(self.make_child_row(parent, child))
    }

    fn task_at(&mut self, agent: AgentId, sequence: i64) -> Result<TaskId, Stop> {
        Ok(task_id(at(agent.0) * self.scope.tasks + sequence as usize))
    }

    fn planned_tasks(&mut self, _: &Agent) -> Result<i64, Stop> {
        Ok(self.scope.tasks as i64)
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
        self.forget_steps(position);
        Ok(())
    }

    fn retire_task(&mut self, task: TaskId) -> Result<(), Stop> {
        let position = at(task.0);
        self.world.tasks[position] = NONE;
        self.forget_steps(position);
        self.world.run = self.lives.run.edited(self.world.run, |run| run.task_count -= 1);
        Ok(())
    }

    fn replace_step(&mut self, ended: &Step) -> Result<(), Stop> {
        let position = at(ended.id.0);
        let fresh = self.fresh_step(position);
        self.world.steps[position] = self.lives.step.keep(fresh);
        if position == 0 {
            self.forget_children();
        }
        Ok(())
    }

    fn may_submit(&mut self, _: &Agent) -> Result<bool, Stop> {
        Ok(true)
    }
    fn agent_begun(&mut self, agent: &Agent) -> Result<(), Stop> {
        let position = at(agent.id.0);
        if agent.kind == AgentKind::Rank {
            return self.submit(position);
        }
        self.wake(position + 1);
        Ok(())
    }
    /// Machines of planned agents are not in this world.
    fn agent_ended(&mut self, _: AgentId) {}
    fn has_job(&mut self, agent: AgentId) -> Result<bool, Stop> {
        Ok(self.world.open_job_of(self.lives, at(agent.0)).is_some())
    }
    fn wake_agent(&mut self, agent: AgentId, _: Timestamp) {
        self.wake(at(agent.0) + 1);
    }
    fn wake_run(&mut self, _: Timestamp) {
        self.wake(0);
    }
    fn publish(&mut self, _: &'static str, _: AgentId) {}
    fn run_event(&mut self, event: RunEvent) -> Result<(), Stop> {
        Commit::run(self, &event, Origin::Within)
    }
    fn open_ticket(&mut self, _: &Step) -> Result<(), Stop> {
        Ok(())
    }
    fn open_approval(&mut self, _: &Step) -> Result<(), Stop> {
        Ok(())
    }
    fn close_question(&mut self, _: &Step, _: StepWait) -> Result<(), Stop> {
        Ok(())
    }
    fn open_tickets(&mut self) -> Result<i64, Stop> {
        let all = (0..self.world.steps.len()).chain(CHILD..CHILD + self.scope.children);
        Ok(all.filter(|step| self.waits_for(*step, StepWait::Ticket)).count() as i64)
    }
    fn open_planner(&mut self) -> Result<(), Stop> {
        self.plan_agents(AgentKind::Planner, 1);
        let mut attempt = Rows::attempt(self)?;
        attempt.tree.planner = Some(agent_id(self.world.agents.len() - 1));
        self.set_attempt(attempt)?;
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
    /// Rows of a task's steps that another task's will take the place of.
    fn forget_steps(&mut self, task: usize) {
        let steps = task * self.scope.steps..(task + 1) * self.scope.steps;
        let gone = self.world.steps[steps.clone()].iter().filter(|id| **id != NONE).count();
        self.world.steps[steps].fill(NONE);
        self.world.run = self.lives.run.edited(self.world.run, |run| run.step_count -= gone as i64);
        if task == 0 {
            self.forget_children();
        }
    }

    /// Agents of the earlier version end; the new one's take their place.
    fn supersede(&mut self) -> Done {
        let mut attempt = Rows::attempt(self)?;
        attempt.tree.superseded += attempt.tree.agents.open();
        attempt.tree.agents = Children::default();
        attempt.tree.failed_tasks = 0;
        attempt.tree.planner = None;
        self.set_attempt(attempt)?;
        let version = self.lives.run.get(self.world.run).plan_version;
        self.plan_agents(AgentKind::Planned, self.scope.agents);
        let old = self.world.agents.iter().map(|id| self.lives.agent.get(*id));
        let old: Vec<AgentId> =
            old.filter(|agent| agent.plan_version < version && !agent.status.is_end()).map(|agent| agent.id).collect();
        old.into_iter().try_for_each(|agent| hierarchy::supersede_agent(self, agent))
    }
}
