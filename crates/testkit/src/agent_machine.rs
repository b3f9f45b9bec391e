//! The job of a planned agent on a simulated machine: its commands come and go until it is stopped, and share its workdir. What is here is
//! on the machine's disk, or in its keepers: it goes on without a runner.

use crate::chance::Chance;
use crate::machine::{Key, Later, Plan, Progress, claim};
use crate::program::Program;
use crate::truth;
use engine::desired::{DesiredJob, DesiredStep};
use engine::durable::StepClaim;
use engine::runner::{Fact, StepChunk, What};
use engine::store::{Frame, LogStream};
use model::job::{FreezeState, JobReason, JobStatus, LifecycleError};
use model::step::StepTry;
use model::{JobId, Timestamp};
use std::collections::BTreeMap;

#[derive(Default)]
pub struct AgentWork {
    pub synced: bool,
    /// Nothing of it is left, and that was said.
    pub closed: bool,
    /// Everything stands still.
    pub still: bool,
    pub commands: BTreeMap<StepTry, Command>,
    /// Not acknowledged yet, numbered in the order they happened.
    pub facts: Vec<(u64, Option<StepTry>, What)>,
    next_fact: u64,
}

pub struct Command {
    claim: StepClaim,
    plan: Plan,
    pub stage: CommandStage,
    written: i64,
    pub acknowledged: i64,
    began_ms: i64,
    stopping: bool,
    listed: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CommandStage {
    Waiting,
    Running,
    Ended,
}

/// The next thing that happens to a command by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moves {
    Began,
    Wrote,
    Ended { exit_code: Option<i32>, reason: JobReason },
    KeeperDied,
}

fn later(ms: i64, key: Key, step: StepTry, moves: Moves) -> Later {
    (ms, key, Progress::Command { step, moves })
}

fn killed() -> Moves {
    Moves::Ended { exit_code: None, reason: JobReason::TerminatedByServer }
}

impl AgentWork {
    pub fn fact(&mut self, step: Option<StepTry>, what: What) {
        self.facts.push((self.next_fact, step, what));
        self.next_fact += 1;
    }

    pub fn is_working(&self) -> bool {
        self.commands.values().any(|command| command.stage != CommandStage::Ended)
    }

    /// Brings it to what the document says of it; nothing, if the document does not list it.
    pub fn obey(&mut self, key: Key, wanted: Option<&DesiredJob>, chance: &mut Chance, all: &mut Vec<Later>) {
        self.commands.values_mut().for_each(|command| command.listed = false);
        if let Some(wanted) = wanted {
            self.learn(key, wanted, chance, all);
        }
        for (step, command) in &mut self.commands {
            if !command.listed
                && command.stage != CommandStage::Ended
                && !std::mem::replace(&mut command.stopping, true)
            {
                all.push(later(0, key, *step, killed()));
            }
        }
        let told = |step: &StepTry| !self.facts.iter().any(|(_, of, _)| *of == Some(*step));
        self.commands.retain(|step, command| command.stage != CommandStage::Ended || command.listed || !told(step));
        let stopped =
            wanted.is_some_and(|wanted| wanted.job.status == JobStatus::Terminating && wanted.steps.is_empty());
        if stopped && self.commands.is_empty() && !std::mem::replace(&mut self.closed, true) {
            let reason = JobReason::DoneByRunner;
            self.fact(None, What::Closed { reason, message: None, lifecycle_error: None });
        }
    }

    fn learn(&mut self, key: Key, wanted: &DesiredJob, chance: &mut Chance, all: &mut Vec<Later>) {
        let stops = wanted.job.status == JobStatus::Terminating;
        if self.next_fact == 0 && !stops {
            self.fact(None, What::Accepted);
            all.push((chance.between(0, 4000), key, Progress::Synced));
        }
        let still = matches!(wanted.job.freeze, FreezeState::Freezing | FreezeState::Frozen);
        let answers = matches!(wanted.job.freeze, FreezeState::Freezing | FreezeState::Thawing);
        if answers && !stops {
            self.fact(None, if still { What::Froze } else { What::Thawed });
        }
        self.still = still && !stops;
        for step in &wanted.steps {
            self.learn_step(key, wanted, step, stops, chance, all);
        }
    }

    fn learn_step(
        &mut self,
        key: Key,
        wanted: &DesiredJob,
        step: &DesiredStep,
        stops: bool,
        chance: &mut Chance,
        all: &mut Vec<Later>,
    ) {
        let command = self.commands.entry(step.step).or_insert_with(|| {
            all.push(later(0, key, step.step, Moves::Began));
            Command {
                claim: claim(wanted, step),
                plan: Plan::of(wanted, step),
                stage: CommandStage::Waiting,
                written: 0,
                acknowledged: 0,
                began_ms: 0,
                stopping: false,
                listed: true,
            }
        });
        command.listed = true;
        let ends = (stops || step.stopped) && command.stage != CommandStage::Ended;
        if ends && !std::mem::replace(&mut command.stopping, true) {
            let within = if wanted.job.abort { 0 } else { chance.between(0, command.plan.stop_ms + 1) };
            all.push(later(within, key, step.step, killed()));
        }
    }

    /// It begins: what happens to it by itself.
    pub fn begin(&mut self, key: Key, step: StepTry, now_ms: i64) -> Vec<Later> {
        let Some(command) = self.commands.get_mut(&step) else { return Vec::new() };
        (command.stage, command.began_ms) = (CommandStage::Running, now_ms);
        let plan = command.plan;
        self.fact(Some(step), What::Started { unenforced: None });
        let code = plan.exit_code;
        let reason = if code == 0 { JobReason::DoneByRunner } else { JobReason::ExitedWithError };
        let end = match plan.max_ms.filter(|max| *max < plan.ms) {
            Some(max) => (max, Moves::Ended { exit_code: None, reason: JobReason::MaxDuration }),
            None => (plan.ms, Moves::Ended { exit_code: Some(code), reason }),
        };
        vec![later(plan.ms / 2, key, step, Moves::Wrote), later(end.0, key, step, end.1)]
    }

    /// What asks about durable steps while the command runs.
    pub fn program(&self, step: StepTry) -> Option<Program> {
        let command = self.commands.get(&step)?;
        Some(Program::new(command.claim, command.plan.steps?))
    }

    pub fn wrote(&mut self, step: StepTry) {
        if let Some(command) = self.commands.get_mut(&step) {
            command.written = (command.written + command.plan.bytes / 3).min(command.plan.bytes);
        }
    }

    pub fn end(&mut self, step: StepTry, now_ms: i64, moves: Moves) {
        let Some(command) = self.commands.get_mut(&step) else { return };
        let started = command.stage == CommandStage::Running;
        command.stage = CommandStage::Ended;
        let (reason, exit_code, lifecycle_error) = match moves {
            Moves::Ended { exit_code, reason } => (reason, exit_code, None),
            _ => (JobReason::ExecutorError, None, Some(LifecycleError::KeeperDied)),
        };
        if exit_code.is_some() {
            command.written = command.plan.bytes;
        }
        let (final_offset, active_ms) = (command.written, if started { (now_ms - command.began_ms).max(0) } else { 0 });
        self.fact(
            Some(step),
            What::Ended {
                reason,
                exit_code,
                signal: (started && exit_code.is_none() && lifecycle_error.is_none()).then_some(9),
                message: None,
                lifecycle_error,
                final_offset,
                active_ms,
                ended_ago_ms: 0,
                output: None,
                stdout_tail: None,
                started,
                kept: None,
            },
        );
    }

    /// All that was not acknowledged, and the number of the last fact.
    pub fn report(&self, (job, epoch): Key, now_ms: i64) -> (Vec<Fact>, Vec<StepChunk>, Option<u64>) {
        let facts = self.facts.iter().map(|(_, step, what)| Fact { job, epoch, step: *step, what: what.clone() });
        let unsent = self.commands.iter().filter(|(_, command)| command.acknowledged < command.written);
        let chunks = unsent.map(|(step, command)| {
            let data = output(*step, command.acknowledged, command.written);
            let frame = Frame { stream: LogStream::Stdout, at: Timestamp(now_ms), data };
            StepChunk { job, epoch, step: *step, offset: command.acknowledged, frames: vec![frame] }
        });
        (facts.collect(), chunks.collect(), self.facts.last().map(|(number, ..)| *number))
    }

    pub fn acknowledged(&mut self, upto: u64) {
        self.facts.retain(|(number, ..)| *number > upto);
    }

    /// The control plane wants to hear no more of it: of one command, or of all.
    pub fn disown(&mut self, key: Key, which: Option<StepTry>) -> Vec<Later> {
        let is_meant = |step: &StepTry| which.is_none_or(|which| which == *step);
        self.facts.retain(|(_, step, _)| step.is_some_and(|step| !is_meant(&step)));
        let meant = self.commands.iter_mut().filter(|(step, _)| is_meant(step));
        meant
            .map(|(step, command)| {
                command.acknowledged = command.written;
                command.stopping = true;
                later(0, key, *step, killed())
            })
            .collect()
    }
}

/// The bytes that a try of a command writes, computed from the try.
pub fn output(step: StepTry, from: i64, to: i64) -> Vec<u8> {
    truth::output(JobId(step.id.0), step.number, from, to)
}
