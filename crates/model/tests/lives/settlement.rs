//! What follows from what: the run, its attempts and money, and the one finaliser. A small stand-in for the engine, in
//! one transaction per choice; decides nothing that the model decides. Hierarchy in `limbs`, machines in `machines`.

use crate::life::{Applied, Id};
use crate::samples::{self, error};
use crate::world::{Choice, Lives, Oddity, RESERVE, Scope, World, free_number};
use model::agent::{AgentEvent, AgentKind, AgentStatus};
use model::allocation::AllocationStatus;
use model::attempt::{AttemptConsequence, AttemptEvent, AttemptStatus};
use model::hierarchy;
use model::instance::InstanceStatus;
use model::job::{FreezeState, JobEvent, JobReason, JobStatus};
use model::ledger::{Entry, EntryKind};
use model::run::{RunConsequence, RunEvent, RunReason, RunStatus};
use model::*;

#[derive(Debug)]
pub enum Stop {
    /// The rules say no: the transaction never was.
    Nothing,
    /// A change that must follow was refused, or a rule of the world was broken.
    Broken(String),
}

pub type Done = Result<(), Stop>;

/// Where an event comes from. What follows from something else may never be refused.
#[derive(Clone, Copy, PartialEq)]
pub enum Origin {
    Outside,
    Within,
}

pub struct Commit<'l> {
    pub lives: &'l mut Lives,
    pub scope: &'l Scope,
    pub world: World,
    /// What becomes of the next step that would begin.
    pub odd: Option<Oddity>,
    /// Where the row of the next child goes.
    pub making_child: Option<usize>,
}

pub fn apply(lives: &mut Lives, scope: &Scope, world: &World, choice: &Choice) -> Result<World, Stop> {
    let mut commit = Commit { lives, scope, world: *world, odd: None, making_child: None };
    commit.choose(choice)?;
    commit.settle()?;
    commit.sweep();
    Ok(commit.world)
}

/// Unpacks an answer: the new state and its consequences, or none if it had happened already.
pub fn read<C>(answer: Applied<C>, from: Origin, what: &str) -> Result<Option<(Id, std::rc::Rc<[C]>)>, Stop> {
    match answer {
        Applied::Moved(id, consequences) => Ok(Some((id, consequences))),
        Applied::Unchanged => Ok(None),
        Applied::Refused(_) if from == Origin::Outside => Err(Stop::Nothing),
        Applied::Refused(why) => Err(Stop::Broken(format!("{what} had to follow and was refused: {why}"))),
    }
}

impl Commit<'_> {
    fn choose(&mut self, choice: &Choice) -> Done {
        match choice {
            Choice::Asked(event) | Choice::Came(event) => self.run(event, Origin::Outside),
            Choice::RunDeadline => {
                let it = self.lives.run.get(self.world.run);
                // The event is the same however long the wait: which jobs are silent does not matter here.
                let (_, event) = run::deadline(it, &Limits::default(), false).ok_or(Stop::Nothing)?;
                self.run(&event, Origin::Outside)
            }
            Choice::Charged => {
                let last = *self.world.attempts.last().ok_or(Stop::Nothing)?;
                let open = self.lives.attempt.get(last).uncollected.is_zero();
                if open { self.attempt(AttemptEvent::Charged(Credits(1)), Origin::Outside) } else { Err(Stop::Nothing) }
            }
            Choice::RunItem => {
                self.take_item(0)?;
                self.go_on()
            }
            Choice::Work(_)
            | Choice::Odd(..)
            | Choice::TimePasses(_)
            | Choice::Polled(_)
            | Choice::PolledInVain(_)
            | Choice::PolledUnpaid(_)
            | Choice::Resolved(..)
            | Choice::Child(_)
            | Choice::StepDone(_)
            | Choice::StepFails(..)
            | Choice::StepLost(_)
            | Choice::StepCut(_)
            | Choice::Verified(..)
            | Choice::NotVerified(_)
            | Choice::Approved(_)
            | Choice::Rejected(_)
            | Choice::AgentTimesOut(_)
            | Choice::TaskTimesOut(_)
            | Choice::MachineLost(_) => self.tool(choice),
            Choice::Queue(job) => self.job(*job, &JobEvent::Queued { turn: 1, seq: 1 }, Origin::Outside),
            Choice::Claim(job, slot) => self.claim(*job, *slot),
            Choice::Spawn(job) => self.spawn(*job),
            Choice::Job(job, JobEvent::PlaceLost) => self.lose_place(*job),
            Choice::Job(job, event) => self.job(*job, event, Origin::Outside),
            Choice::JobDeadline(job) => {
                let it = self.lives.job.get(self.world.jobs[*job]);
                let wait = job::deadline(it, &Limits::default()).ok_or(Stop::Nothing)?;
                self.job(*job, &wait.event, Origin::Outside)
            }
            Choice::Machine(machine, event) => self.machine(*machine, event, Origin::Outside),
            Choice::MachineDeadline(machine) => {
                let it = self.lives.instance.get(self.world.instances[*machine]);
                let (_, _, event) = instance::deadline(it).ok_or(Stop::Nothing)?;
                self.machine(*machine, &event, Origin::Outside)
            }
            Choice::Slot(slot, event) => self.slot(*slot, event, Origin::Outside),
        }
    }

    pub fn run(&mut self, event: &RunEvent, from: Origin) -> Done {
        let answer = self.lives.run.step(self.world.run, event);
        let Some((id, consequences)) = read(answer, from, event.name())? else { return Ok(()) };
        self.world.run = id;
        for consequence in consequences.iter() {
            match consequence {
                RunConsequence::OpenAttempt => self.open_attempt(),
                RunConsequence::Reserve => self.attempt(AttemptEvent::Reserved(RESERVE), from)?,
                RunConsequence::CreateAgents => self.create_agents()?,
                RunConsequence::WakeAgents => self.wake_agents()?,
                RunConsequence::StopAgents { abort, .. } => self.stop_agents(*abort)?,
                RunConsequence::Settle => {
                    let status = match self.lives.run.get(self.world.run).status {
                        RunStatus::Completed => AttemptStatus::Completed,
                        RunStatus::Failed => AttemptStatus::Failed,
                        _ => AttemptStatus::Cancelled,
                    };
                    self.attempt(AttemptEvent::Ended(status), Origin::Within)?;
                }
                RunConsequence::HoldAgents => {
                    self.all_jobs(&JobEvent::HoldAsked)?;
                    let still = self.jobs_are(FreezeState::Frozen);
                    hierarchy::hold_agents(self, still)?;
                }
                RunConsequence::WakeDispatch | RunConsequence::Publish { .. } => {}
            }
        }
        Ok(())
    }

    fn attempt(&mut self, event: AttemptEvent, from: Origin) -> Done {
        let at = self.world.attempts.len().checked_sub(1).ok_or(Stop::Nothing)?;
        let answer = self.lives.attempt.step(self.world.attempts[at], &event);
        let Some((id, consequences)) = read(answer, from, attempt::name(event))? else { return Ok(()) };
        self.world.attempts[at] = id;
        for row in consequences.iter() {
            let (kind, amount) = match row {
                AttemptConsequence::Reserve(amount) => (EntryKind::Reserve, *amount),
                AttemptConsequence::Charge(amount) => (EntryKind::Charge, *amount),
                AttemptConsequence::Refund(amount) => (EntryKind::Refund, *amount),
            };
            let entry = Entry {
                org: OrgId(1),
                kind,
                amount,
                run: Some(RunId(1)),
                attempt: None,
                key: String::new(),
                from_available: false,
                memo: String::new(),
            };
            let balance = self.world.balance().after(&entry).map_err(|_| Stop::Nothing)?;
            (self.world.available, self.world.reserved) = (balance.available.micro(), balance.reserved.micro());
        }
        Ok(())
    }

    fn open_attempt(&mut self) {
        let number = self.lives.run.get(self.world.run).attempt;
        let attempt = model::attempt::Attempt { number, ..samples::attempt() };
        self.world.attempts.push(self.lives.attempt.keep(attempt));
        // What the earlier attempt left is history: all of it has ended.
        for gone in [&mut self.world.agents, &mut self.world.tasks, &mut self.world.steps, &mut self.world.jobs] {
            gone.clear();
        }
        self.world.children.fill(crate::life::NONE);
        self.world.system = None;
        self.world.due &= 1; // items of agents that are gone
        self.world.approved = false;
    }

    fn create_agents(&mut self) -> Done {
        if self.world.agents.is_empty() {
            let kind = if self.scope.machines == 0 { AgentKind::Planned } else { AgentKind::Rank };
            self.plan_agents(kind, self.scope.agents);
        }
        self.wake_agents()
    }

    fn all_jobs(&mut self, event: &JobEvent) -> Done {
        (0..self.world.jobs.len()).try_for_each(|job| self.job(job, event, Origin::Within))
    }

    fn wake_agents(&mut self) -> Done {
        self.all_jobs(&JobEvent::ReleaseAsked)?;
        let moving = self.jobs_are(FreezeState::Moving);
        hierarchy::wake_agents(self, moving)
    }

    /// Live jobs are asked to stop; agents without one end at once.
    fn stop_agents(&mut self, abort: bool) -> Done {
        let run = self.lives.run.get(self.world.run);
        let reason = match run.termination.as_ref().map(|t| t.reason) {
            Some(RunReason::StoppedByUser) if !abort => JobReason::TerminatedByUser,
            Some(RunReason::StoppedByUser | RunReason::AbortedByUser) => JobReason::AbortedByUser,
            Some(RunReason::Deadline) => JobReason::MaxDuration,
            _ => JobReason::TerminatedByServer,
        };
        for agent in 0..self.world.agents.len() {
            if let Some(job) = self.world.open_job_of(self.lives, agent) {
                self.job(job, &JobEvent::StopAsked { reason, abort }, Origin::Within)?;
            }
        }
        hierarchy::stop_agents(self)
    }

    /// A submission of an agent onto a machine, unless one is open.
    pub fn submit(&mut self, agent: usize) -> Done {
        if self.world.open_job_of(self.lives, agent).is_some() {
            return Ok(());
        }
        let (id, attempt) = (AgentId(agent as i64 + 1), self.lives.run.get(self.world.run).attempt);
        let earlier = self.world.jobs.iter().position(|job| self.lives.job.get(*job).agent == id);
        let submission = earlier.map_or(0, |job| self.lives.job.get(self.world.jobs[job]).submission) + 1;
        let gone = earlier.map(|job| self.world.jobs[job]);
        self.world.jobs.retain(|job| Some(job) != gone);
        let number = free_number(self.world.jobs.iter().map(|job| self.lives.job.get(*job).id.0));
        let job = model::job::Job { id: JobId(number), agent: id, attempt, submission, ..samples::job() };
        let job = self.lives.job.keep(job);
        self.world.jobs.push(job);
        self.count_job(None, job);
        Ok(())
    }

    /// Open jobs of this attempt; one that is on its way to its end neither stands still nor goes on.
    fn jobs_are(&self, freeze: FreezeState) -> bool {
        let open = self.world.jobs.iter().map(|job| self.lives.job.get(*job)).filter(|job| !job.status.is_end());
        open.into_iter().all(|job| job.status != JobStatus::Terminating && job.freeze == freeze)
    }

    /// What follows at the end of every commit: everything is held, every job goes on, or the run ends.
    fn settle(&mut self) -> Done {
        loop {
            let before = self.world;
            let run = self.lives.run.get(self.world.run);
            if run.status.is_end() || run.status == RunStatus::Created {
                return Ok(());
            }
            let (termination, status) = (run.termination.as_ref().map(|t| t.reason.end()), run.status);
            let run = run.clone();
            let tree = self.lives.attempt.get(*self.world.attempts.last().expect("it has begun")).tree.clone();
            match termination {
                Some(end) if tree.agents.open() + tree.superseded == 0 => {
                    if end == RunStatus::Failed && tree.agents.failed == 0 {
                        self.blame_the_system()?;
                    }
                    self.run(&RunEvent::Finalised, Origin::Within)?;
                }
                // What machines report is followed up in the same commit. Without machines everything is left to the work items.
                None if self.scope.machines > 0 => {
                    if status == RunStatus::Running && run.pause_asked.is_none() {
                        hierarchy::settle_run(self)?;
                    }
                    self.go_on()?;
                }
                _ => {}
            }
            if self.world == before {
                return Ok(());
            }
        }
    }

    /// As the engine does when the run's item is due.
    fn go_on(&mut self) -> Done {
        let jobs = hierarchy::Jobs {
            all_frozen: self.jobs_are(FreezeState::Frozen),
            all_moving: self.jobs_are(FreezeState::Moving),
        };
        hierarchy::go_on(self, jobs)
    }

    pub fn wake(&mut self, item: usize) {
        self.world.due |= 1 << item;
    }

    /// An item that is not due is not worked on.
    pub fn take_item(&mut self, item: usize) -> Done {
        if self.world.due & (1 << item) == 0 {
            return Err(Stop::Nothing);
        }
        self.world.due &= !(1 << item);
        Ok(())
    }

    /// Failed by no agent of its own: a system agent carries the cause (R3).
    fn blame_the_system(&mut self) -> Done {
        let agent = model::agent::Agent { kind: AgentKind::System, sequence: -1, ..samples::agent() };
        let agent = self.lives.agent.keep(agent);
        let answer = self.lives.agent.step(agent, &AgentEvent::Failed { error: error() });
        let (id, _) = read(answer, Origin::Within, "failed")?.expect("a new agent can fail");
        self.world.system = Some(id);
        self.world.run = self.lives.run.edited(self.world.run, |run| run.agent_count += 1);
        Ok(())
    }

    /// Forgets what has ended for good and is named by no row, and what decides nothing.
    fn sweep(&mut self) {
        let lives = &*self.lives;
        let run = lives.run.get(self.world.run);
        if run.status.is_end() || self.scope.machines > 0 {
            self.world.due = 0; // nothing reads them
        }
        for (position, agent) in self.world.agents.iter().enumerate() {
            if lives.agent.get(*agent).status.is_end() {
                self.world.due &= !(1 << (position + 1));
            }
        }
        if self.scope.idempotent || self.scope.machines > 0 {
            self.world.effects = 0; // may be repeated
        }
        if self.scope.idempotent {
            self.world.child_effects = 0;
        }
        let World { jobs, slots, instances, .. } = &mut self.world;
        slots.retain(|slot| {
            let slot = lives.slot.get(slot);
            slot.status != AllocationStatus::Failed && !slot.workdir_released
        });
        let used = |id: InstanceId| {
            jobs.iter().any(|job| lives.job.get(*job).instance == Some(id) && !lives.job.get(*job).status.is_end())
        };
        instances.retain(|it| {
            let it = lives.instance.get(it);
            it.status != InstanceStatus::Terminated || used(it.id)
        });
        slots.retain(|slot| instances.iter().any(|it| lives.instance.get(*it).id == lives.slot.get(slot).instance));
        slots.sort_by_key(|slot| lives.slot.get(*slot).id);
        instances.sort_by_key(|it| lives.instance.get(*it).id);
        jobs.sort_by_key(|job| lives.job.get(*job).agent);
    }

    pub fn status(&self, agent: usize) -> AgentStatus {
        self.lives.agent.get(self.world.agents[agent]).status
    }
}
