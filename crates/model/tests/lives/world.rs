//! A small world: one run with its agents, tasks and steps, their jobs, slots and machines, and the money. Says what
//! could happen next; what then follows is `settlement`'s.

use crate::children::{CHILD, Parent};
use crate::life::{Few, Id, Life, NONE};
use crate::samples::{self, NOW};
use crate::walks::{self, is_freeze, is_voice};
use model::agent::{Agent, AgentConsequence, AgentEvent};
use model::allocation::{Allocation, AllocationConsequence, AllocationEvent, AllocationStatus};
use model::attempt::{Attempt, AttemptConsequence, AttemptEvent};
use model::instance::{Instance, InstanceConsequence, InstanceEvent, InstanceStatus};
use model::job::{Job, JobConsequence, JobEvent, JobReason, JobStatus, LifecycleError};
use model::ledger::Balance;
use model::recovery::ErrorClass;
use model::run::{PauseReason, Run, RunConsequence, RunEvent, RunStatus, Ticket};
use model::spec::{FailureMode, PlanRules, RunKind};
use model::step::{Recorded, Step, StepConsequence, StepEvent, StepStatus, StepWait};
use model::task::{Task, TaskConsequence, TaskEvent};
use model::*;

/// How large the world is and what may happen in it.
#[derive(Debug, Clone, Copy)]
pub struct Scope {
    pub name: &'static str,
    pub agents: usize,
    pub tasks: usize,
    pub steps: usize,
    /// None: the steps are calls made by workers.
    pub machines: usize,
    /// The machines are there and ready from the start; all that can happen is that the first of them is gone.
    pub warm: bool,
    pub attempts: i64,
    pub submissions: i64,
    /// What the run, an agent and a task do when a child of theirs has failed for good.
    pub mode: FailureMode,
    pub agent_mode: FailureMode,
    pub task_mode: FailureMode,
    /// Children of one parent that run at once.
    pub parallel: i64,
    /// The second task of an agent waits for the first.
    pub chained: bool,
    pub idempotent: bool,
    /// A retry cannot be paid.
    pub poor: bool,
    pub rules: PlanRules,
    /// Nothing is asked of the run but its start and its end.
    pub quiet: bool,
    pub pauses: bool,
    pub approvals: bool,
    /// Steps may be answered without being called.
    pub odd: bool,
    pub silence: bool,
    pub holds: bool,
    pub charges: bool,
    pub deaths: bool,
    /// Agents lose their machines.
    pub losses: bool,
    /// Of the first step, and what it is to them.
    pub children: usize,
    pub parent: Option<Parent>,
    /// Steps have a `verify`.
    pub verify: bool,
}

/// Numbers of remembered states; a task's number stands at `agent × tasks + task`, and so on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct World {
    pub run: Id,
    pub attempts: Few,
    pub agents: Few,
    pub tasks: Few,
    pub steps: Few,
    /// Of the first step.
    pub children: Few,
    /// Carries the cause of a failure that no agent had.
    pub system: Option<Id>,
    pub jobs: Few,
    pub slots: Few,
    pub instances: Few,
    pub available: i64,
    pub reserved: i64,
    /// Work items that are due: the run's is bit 0, that of agent n is bit n + 1.
    pub due: u16,
    /// What the journal says of each step, two bits each: nothing, begun, done.
    pub journal: u16,
    /// What really became of each step in the world outside, two bits each: nothing, an effect, perhaps an effect.
    pub effects: u16,
    /// The same of the children.
    pub child_journal: u16,
    pub child_effects: u16,
    /// A person has approved of the one step that needs it, in this attempt.
    pub approved: bool,
}

pub struct Lives {
    pub run: Life<Run, RunEvent, RunConsequence>,
    pub attempt: Life<Attempt, AttemptEvent, AttemptConsequence>,
    pub agent: Life<Agent, AgentEvent, AgentConsequence>,
    pub task: Life<Task, TaskEvent, TaskConsequence>,
    pub step: Life<Step, StepEvent, StepConsequence>,
    pub job: Life<Job, JobEvent, JobConsequence>,
    pub slot: Life<Allocation, AllocationEvent, AllocationConsequence>,
    pub instance: Life<Instance, InstanceEvent, InstanceConsequence>,
}

/// What the org has at first, and what each attempt sets aside: a second attempt needs what the first gave back.
pub const MONEY: Credits = Credits(3);
pub const RESERVE: Credits = Credits(2);

/// Something that a person or a process outside does. Numbers are positions in the world.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Choice {
    Asked(RunEvent),
    Resolved(usize, Ticket),
    /// What the dispatcher and the clock bring.
    Came(RunEvent),
    RunDeadline,
    Charged,
    /// The run's work item is due.
    RunItem,
    /// An agent's work item is due: its holder looks what may begin.
    Work(usize),
    /// The same, and the next step is not called: its `if` is false, its input is refused, or it had begun with another input.
    Odd(usize, Oddity),
    /// The time that a step waits for has come.
    TimePasses(usize),
    /// A program takes a step that is offered.
    Polled(usize),
    /// One polls, and an earlier step of that identity was found done meanwhile.
    PolledInVain(usize),
    /// One polls, and what the step costs cannot be set aside.
    PolledUnpaid(usize),
    /// The worker of the first step asks for one of its children.
    Child(usize),
    StepDone(usize),
    StepFails(usize, ErrorClass, Effect),
    /// Its holder is gone, and its lease and its time-out have passed.
    StepLost(usize),
    /// Its holder sees that it is to stop.
    StepCut(usize),
    Verified(usize, bool),
    /// The step's `verify` could not tell.
    NotVerified(usize),
    Approved(usize),
    Rejected(usize),
    AgentTimesOut(usize),
    TaskTimesOut(usize),
    /// With files that its steps need.
    MachineLost(usize),
    Queue(usize),
    Claim(usize, usize),
    Spawn(usize),
    Job(usize, JobEvent),
    JobDeadline(usize),
    Machine(usize, InstanceEvent),
    MachineDeadline(usize),
    Slot(usize, AllocationEvent),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Oddity {
    NotNeeded,
    Refused,
    Changed,
    Timer,
    Offered,
    /// Its endpoint is to be left alone for a while, which is over.
    PutOff,
    /// The same of a task: its `if` is false, its expressions cannot be evaluated, its `for_each` gives one item.
    TaskNotNeeded,
    TaskRefused,
    OneItem,
}

impl Oddity {
    pub const ALL: [Oddity; 9] = [
        Oddity::NotNeeded,
        Oddity::Refused,
        Oddity::Changed,
        Oddity::Timer,
        Oddity::Offered,
        Oddity::PutOff,
        Oddity::TaskNotNeeded,
        Oddity::TaskRefused,
        Oddity::OneItem,
    ];

    pub fn is_of_a_task(self) -> bool {
        matches!(self, Oddity::TaskNotNeeded | Oddity::TaskRefused | Oddity::OneItem)
    }
}

/// Who brings something about, the surest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mover {
    /// Comes even if nothing is reported any more.
    Clock,
    /// What workers and runners do when all goes well.
    Work,
    Accident,
    Person,
}

impl Choice {
    pub fn mover(&self) -> Mover {
        match self {
            Choice::RunDeadline
            | Choice::JobDeadline(_)
            | Choice::MachineDeadline(_)
            | Choice::StepCut(_)
            | Choice::TimePasses(_)
            | Choice::RunItem => Mover::Clock,
            // People answer what they are asked.
            Choice::Resolved(_, Ticket::Resume | Ticket::Skip) | Choice::Approved(_) => Mover::Work,
            Choice::Asked(_) | Choice::Resolved(..) | Choice::Rejected(_) | Choice::Verified(..) => Mover::Person,
            Choice::AgentTimesOut(_)
            | Choice::TaskTimesOut(_)
            | Choice::MachineLost(_)
            | Choice::StepLost(_)
            | Choice::StepFails(..)
            | Choice::Odd(..) => Mover::Accident,
            Choice::Came(RunEvent::WorkItemDied { .. } | RunEvent::MaxDurationPassed | RunEvent::WaitedTooLong) => {
                Mover::Accident
            }
            Choice::Machine(_, InstanceEvent::ProviderConfirmedGone | InstanceEvent::SpawnFailed) => Mover::Accident,
            Choice::Job(_, JobEvent::PlaceLost | JobEvent::ProviderRefused { .. } | JobEvent::StopAsked { .. }) => {
                Mover::Accident
            }
            _ => Mover::Work,
        }
    }
}

impl Lives {
    pub fn new() -> Lives {
        Lives {
            run: Life::new(
                run::apply,
                |_| {},
                vec![(walks::RUN, |e| !walks::is_replan(e)), (walks::REPLAN, walks::is_replan)],
            ),
            attempt: Life::new(attempt::apply, tidy_attempt, vec![(walks::ATTEMPT, |_| true)]),
            agent: Life::new(agent::apply, tidy_agent, vec![(walks::AGENT, |_| true)]),
            task: Life::new(task::apply, tidy_task, vec![(walks::TASK, |_| true)]),
            step: Life::new(step::apply, tidy_step, vec![(walks::STEP, |_| true)]),
            job: Life::new(
                job::apply,
                tidy_job,
                vec![
                    (walks::JOB, |e| !is_voice(e) && !is_freeze(e)),
                    (walks::SILENCE, is_voice),
                    (walks::FREEZE, is_freeze),
                ],
            ),
            slot: Life::new(allocation::apply, |_| {}, vec![(walks::ALLOCATION, |_| true)]),
            instance: Life::new(instance::apply, tidy_instance, vec![(walks::INSTANCE, |_| true)]),
        }
    }

    pub fn world(&mut self, scope: &Scope) -> World {
        let mut run = samples::run();
        run.max_attempts = scope.attempts;
        run.spec.failure_mode = scope.mode;
        run.spec.plan = scope.rules;
        run.spec.kind = if scope.machines == 0 { RunKind::Agents } else { RunKind::Task };
        let numbers = || (1..=scope.machines as i64).filter(|_| scope.warm);
        World {
            run: self.run.keep(run),
            attempts: Few::default(),
            agents: Few::default(),
            tasks: Few::default(),
            steps: Few::default(),
            children: (0..scope.children).map(|_| NONE).collect(),
            system: None,
            jobs: Few::default(),
            slots: numbers().map(|number| self.slot.keep(warm_slot(number))).collect(),
            instances: numbers().map(|number| self.instance.keep(warm_machine(number))).collect(),
            available: MONEY.micro(),
            reserved: 0,
            due: 0,
            journal: 0,
            effects: 0,
            child_journal: 0,
            child_effects: 0,
            approved: false,
        }
    }
}

/// How many retries there were, and how many errors of late, would make the worlds endless. That both count is tested beside `decide`.
fn tidy_attempt(attempt: &mut Attempt) {
    attempt.tree.retries = 0;
    attempt.tree.retried_cost = Credits::ZERO;
    attempt.tree.errors = Default::default();
    attempt.tree.failed_tasks = attempt.tree.failed_tasks.min(1);
}

/// Everything happens at once: what waits for its next try is due.
fn tidy_agent(agent: &mut Agent) {
    agent.due_at = agent.due_at.map(|_| NOW);
    agent.ending.iter_mut().for_each(|ending| ending.retry_at = ending.retry_at.map(|_| NOW));
}

fn tidy_task(task: &mut Task) {
    task.tries = task.tries.min(task.max_tries);
    task.due_at = task.due_at.map(|_| NOW);
    task.ending.iter_mut().for_each(|ending| ending.retry_at = ending.retry_at.map(|_| NOW));
}

/// A person may have a step tried as often as he likes; tries beyond the limit decide nothing.
fn tidy_step(step: &mut Step) {
    step.tries = step.tries.min(step.max_tries);
    // A timer ends by a choice of its own.
    step.due_at = step.due_at.filter(|_| step.waits != Some(StepWait::Timer)).map(|_| NOW);
}

/// An ended job answers nothing any more, whatever it was; how often it was placed decides nothing.
fn tidy_job(job: &mut Job) {
    job.epoch = job.epoch.min(1);
    if job.status.is_end() {
        let plain = samples::job();
        let kept = Job { id: job.id, agent: job.agent, attempt: job.attempt, submission: job.submission, ..plain };
        *job = Job { status: job.status, reason: job.reason, epoch: 1, fenced: job.fenced, ..kept };
    }
}

fn tidy_instance(instance: &mut Instance) {
    instance.session = 0;
    instance.desired_version = 0;
    instance.handle = instance.handle.take().map(|_| "handle".into());
}

/// Two bits of a row of eight.
fn pair(bits: u16, position: usize) -> u16 {
    (bits >> (2 * position)) & 3
}

fn with_pair(bits: u16, position: usize, value: u16) -> u16 {
    (bits & !(3 << (2 * position))) | (value << (2 * position))
}

impl World {
    pub fn record(&mut self, step: usize, recorded: Option<Recorded>) {
        let value = match recorded {
            None | Some(Recorded::Failed) => 0, // no input of a small world changes: what failed begins again as it was
            Some(Recorded::Begun) => 1,
            Some(Recorded::Done) => 2,
        };
        match step.checked_sub(CHILD) {
            Some(child) => self.child_journal = with_pair(self.child_journal, child, value),
            None => self.journal = with_pair(self.journal, step, value),
        }
    }
    pub fn recorded(&self, step: usize) -> Option<Recorded> {
        let recorded = match step.checked_sub(CHILD) {
            Some(child) => pair(self.child_journal, child),
            None => pair(self.journal, step),
        };
        match recorded {
            0 => None,
            1 => Some(Recorded::Begun),
            _ => Some(Recorded::Done),
        }
    }
    pub fn had_effect(&mut self, step: usize, effect: Effect) {
        let value = match effect {
            Effect::None => 0,
            Effect::Done => 1,
            Effect::Perhaps => 2,
        };
        match step.checked_sub(CHILD) {
            Some(child) => self.child_effects = with_pair(self.child_effects, child, value),
            None => self.effects = with_pair(self.effects, step, value),
        }
    }
    pub fn has_no_effect_yet(&self, step: usize) -> bool {
        match step.checked_sub(CHILD) {
            Some(child) => pair(self.child_effects, child) == 0,
            None => pair(self.effects, step) == 0,
        }
    }

    pub fn balance(&self) -> Balance {
        Balance { available: Credits(self.available), reserved: Credits(self.reserved) }
    }

    pub fn open_job_of(&self, lives: &Lives, agent: usize) -> Option<usize> {
        let sequence = AgentId(agent as i64 + 1);
        let open = |id: &Id| lives.job.get(*id).agent == sequence && !lives.job.get(*id).status.is_end();
        self.jobs.iter().position(open)
    }

    pub fn instance_at(&self, lives: &Lives, id: InstanceId) -> Option<usize> {
        self.instances.iter().position(|it| lives.instance.get(*it).id == id)
    }

    pub fn slot_at(&self, lives: &Lives, id: AllocationId) -> Option<usize> {
        self.slots.iter().position(|it| lives.slot.get(*it).id == id)
    }

    /// Everything that could happen now, and everything that may be said twice, late or out of order.
    pub fn choices(&self, lives: &Lives, scope: &Scope) -> Vec<Choice> {
        let run = lives.run.get(self.run);
        let mut all = person(scope);
        if run.deleted_at.is_some() {
            return vec![];
        }
        if scope.quiet {
            all.push(Choice::Came(RunEvent::PickedUp));
            self.tool_choices(lives, scope, &mut all);
            self.child_choices(lives, scope, &mut all);
            return all;
        }
        all.extend([RunEvent::PickedUp, RunEvent::RetryCame, RunEvent::WaitedTooLong].map(Choice::Came));
        all.push(Choice::RunDeadline);
        if run.status == RunStatus::Resuming {
            all.push(Choice::Came(RunEvent::AgentsWoken));
        }
        if scope.deaths {
            all.push(Choice::Came(RunEvent::WorkItemDied { cause: "poison".into() }));
        }
        if run.status == RunStatus::Running {
            all.push(Choice::Came(RunEvent::MaxDurationPassed));
        }
        if scope.charges {
            all.push(Choice::Charged);
        }
        if scope.machines == 0 {
            self.tool_choices(lives, scope, &mut all);
        } else {
            self.machine_choices(lives, scope, &mut all);
        }
        self.child_choices(lives, scope, &mut all);
        all
    }

    fn tool_choices(&self, lives: &Lives, scope: &Scope, all: &mut Vec<Choice>) {
        all.push(Choice::RunItem);
        for agent in 0..self.agents.len() {
            all.push(Choice::Work(agent));
            if scope.odd {
                all.extend(Oddity::ALL.map(|way| Choice::Odd(agent, way)));
            }
            if lives.agent.get(self.agents[agent]).status.is_end() {
                continue;
            }
            if scope.losses {
                all.push(Choice::MachineLost(agent));
            }
            if scope.deaths {
                all.push(Choice::AgentTimesOut(agent));
                let tasks = agent * scope.tasks..(agent + 1) * scope.tasks;
                all.extend(tasks.map(Choice::TaskTimesOut));
            }
        }
        for (step, id) in self.steps.iter().enumerate().filter(|(_, id)| **id != NONE) {
            let it = lives.step.get(*id);
            match it.status {
                StepStatus::Running if it.uncertain => {
                    all.extend(tickets(step));
                    all.extend([true, false].map(|done| Choice::Verified(step, done)));
                    all.push(Choice::StepFails(step, ErrorClass::Transient, Effect::Perhaps));
                }
                StepStatus::Running if it.verifying => {
                    all.extend([true, false].map(|done| Choice::Verified(step, done)));
                    all.extend([Choice::NotVerified(step), Choice::StepDone(step)]);
                    all.push(Choice::StepFails(step, ErrorClass::Transient, Effect::Perhaps));
                }
                StepStatus::Running => {
                    let ended = [Choice::StepDone(step), Choice::StepLost(step), Choice::StepCut(step)];
                    all.extend(ended);
                    let ways = [(ErrorClass::Transient, Effect::None), (ErrorClass::Permanent, Effect::Done)];
                    all.extend(ways.map(|(class, effect)| Choice::StepFails(step, class, effect)));
                    if scope.poor {
                        all.push(Choice::StepFails(step, ErrorClass::Budget, Effect::None));
                    }
                }
                StepStatus::Waiting if it.waits == Some(StepWait::Timer) => all.push(Choice::TimePasses(step)),
                StepStatus::Waiting if it.waits == Some(StepWait::Poller) => {
                    all.extend([Choice::Polled(step), Choice::PolledInVain(step), Choice::PolledUnpaid(step)]);
                }
                StepStatus::Waiting => {
                    all.extend([Choice::Approved(step), Choice::Rejected(step)]);
                    all.extend(tickets(step));
                }
                _ => {}
            }
        }
    }

    fn machine_choices(&self, lives: &Lives, scope: &Scope, all: &mut Vec<Choice>) {
        for (j, id) in self.jobs.iter().enumerate() {
            let job = lives.job.get(*id);
            if job.status == JobStatus::Submitted {
                // The second rank keeps to the second machine: which of two is taken decides nothing.
                let home = |slot: Id| scope.warm && lives.slot.get(slot).instance.0 < job.agent.0;
                let slots = (0..self.slots.len()).filter(|slot| !home(self.slots[*slot]));
                all.extend(slots.map(|slot| Choice::Claim(j, slot)));
                if !scope.warm {
                    all.push(Choice::Queue(j));
                    all.extend((self.instances.len() < scope.machines).then_some(Choice::Spawn(j)));
                }
            }
            // The clock runs out for the first rank; the second is the one that goes on.
            if job.agent.0 == 1 || matches!(job.status, JobStatus::Submitted | JobStatus::Terminating) {
                all.push(Choice::JobDeadline(j));
            }
            if !scope.warm {
                let from_outside = [JobEvent::PlaceLost, JobEvent::ProviderRefused { why: "full".into() }];
                all.extend(from_outside.map(|event| Choice::Job(j, event)));
            }
            if scope.silence {
                let notice = JobEvent::StopAsked { reason: JobReason::Interrupted, abort: false };
                all.push(Choice::Job(j, notice));
            }
            let machine = job.instance.and_then(|it| self.instance_at(lives, it));
            let has_runner = machine.is_some_and(|it| lives.instance.get(self.instances[it]).ready_at.is_some());
            if has_runner {
                all.extend(reports(scope).into_iter().map(|event| Choice::Job(j, event)));
            }
        }
        for (i, id) in self.instances.iter().enumerate() {
            let bound = InstanceEvent::Bound { handle: "handle".into() };
            let registered = InstanceEvent::Registered {
                host: "host".into(),
                runner_version: "1".into(),
                containment: None,
                sandbox: None,
            };
            if scope.warm {
                // The first machine may vanish; the second is the one that goes on.
                all.extend(
                    (lives.instance.get(*id).id.0 == 1)
                        .then_some(Choice::Machine(i, InstanceEvent::ProviderConfirmedGone)),
                );
                continue;
            }
            let mut said = vec![bound, registered, InstanceEvent::SpawnFailed, InstanceEvent::ProviderConfirmedGone];
            if scope.silence {
                said.push(InstanceEvent::Bound { handle: "another name of it".into() });
                said.extend([InstanceEvent::Heard, InstanceEvent::DrainAsked]);
                all.push(Choice::MachineDeadline(i));
            }
            let empty = self.slots.iter().map(|slot| lives.slot.get(*slot)).all(|slot| {
                slot.instance != lives.instance.get(*id).id || !(slot.status.is_live() || slot.hold().is_some())
            });
            if empty {
                said.push(InstanceEvent::TerminateAsked);
            }
            all.extend(said.into_iter().map(|event| Choice::Machine(i, event)));
        }
        for (s, id) in self.slots.iter().enumerate() {
            if lives.slot.get(*id).status == AllocationStatus::Complete {
                all.push(Choice::Slot(s, AllocationEvent::HoldEnded));
                if scope.holds {
                    all.push(Choice::Slot(s, AllocationEvent::HoldExtended { until: NOW + 9 }));
                }
            }
        }
    }
}

fn person(scope: &Scope) -> Vec<Choice> {
    if scope.quiet {
        return [RunEvent::Started, RunEvent::CancelAsked { abort: false }].map(Choice::Asked).to_vec();
    }
    let mut asked = vec![
        RunEvent::Started,
        RunEvent::Deleted,
        RunEvent::CancelAsked { abort: false },
        RunEvent::CancelAsked { abort: true },
        RunEvent::RetryAsked { after_ms: 0 },
    ];
    if scope.pauses {
        asked.extend([RunEvent::PauseAsked { why: PauseReason::Asked }, RunEvent::ResumeAsked]);
    }
    asked.into_iter().map(Choice::Asked).collect()
}

pub fn tickets(step: usize) -> impl Iterator<Item = Choice> {
    Ticket::ALL.iter().map(move |ticket| Choice::Resolved(step, *ticket))
}

/// What a runner says, in any order and as often as it likes.
fn reports(scope: &Scope) -> Vec<JobEvent> {
    let ended = |reason: JobReason, final_offset| JobEvent::Ended {
        reason,
        exit_code: None,
        signal: None,
        message: None,
        lifecycle_error: None,
        final_offset,
        active_ms: 0,
        ended_ago_ms: 0,
    };
    let broken = |error| JobEvent::Ended {
        reason: JobReason::ExecutorError,
        exit_code: None,
        signal: None,
        message: None,
        lifecycle_error: Some(error),
        final_offset: 0,
        active_ms: 0,
        ended_ago_ms: 0,
    };
    let mut all = vec![JobEvent::Accepted, JobEvent::SyncComplete { blobs: 0 }];
    all.extend([JobReason::DoneByRunner, JobReason::ExitedWithError].map(|reason| ended(reason, 0)));
    all.extend([LifecycleError::SyncFailed, LifecycleError::KeeperDied].map(broken));
    if scope.pauses {
        all.extend([JobEvent::Froze, JobEvent::Thawed]);
    }
    if scope.silence {
        let rarer = [JobReason::MaxDuration, JobReason::AbortedByUser, JobReason::Interrupted];
        all.extend(rarer.map(|reason| ended(reason, 0)));
        all.extend(JobReason::ALL.iter().take(2).chain(&rarer).map(|reason| ended(*reason, 1)));
        all.extend([JobEvent::CommandStarted { unenforced: None }, JobEvent::Logged { to: 1 }]);
    }
    all
}

/// The lowest number that nothing here has: names of what is gone are used again, so that the worlds are finitely many.
pub fn free_number(taken: impl Iterator<Item = i64>) -> i64 {
    let taken: Vec<i64> = taken.collect();
    (1..).find(|number| !taken.contains(number)).expect("numbers do not end")
}

fn warm_machine(id: i64) -> Instance {
    Instance {
        id: InstanceId(id),
        status: InstanceStatus::Ready,
        handle: Some("handle".into()),
        ready_at: Some(NOW),
        ..samples::instance()
    }
}

fn warm_slot(id: i64) -> Allocation {
    Allocation { id: AllocationId(id), instance: InstanceId(id), ..samples::slot() }
}

/// A machine that is made now, for a job that waits.
pub fn spawning(id: i64) -> Instance {
    Instance { id: InstanceId(id), status: InstanceStatus::Spawning, ..samples::instance() }
}
