//! A simulated machine: the state on its disk and the commands that go on without a runner (`works`), and the state that is lost with the
//! runner's process. It does not call the control plane; `runner` carries its messages.

use crate::agent_machine::{AgentWork, Moves};
use crate::chance::Chance;
use crate::program::Program;
use crate::truth;
use engine::desired::{Desired, DesiredJob, DesiredStep};
use engine::durable::StepClaim;
use engine::runner::{Fact, StepChunk, What};
use engine::store::{Frame, LogStream};
use model::boot::Boot;
use model::job::{JobReason, JobStatus, LifecycleError};
use model::spec::{Command, OnLostControl};
use model::step::StepTry;
use model::stub::SealedStub;
use model::{InstanceId, JobId, RunId, Timestamp};
use std::collections::BTreeMap;

pub type Key = (JobId, i64);

pub struct Machine {
    pub boot: Boot,
    /// How often the provider has started a runner here.
    pub starts: u32,
    pub process: Option<Process>,
    /// Tells a process from those before it.
    pub process_no: u64,
    pub works: BTreeMap<Key, Work>,
    /// Jobs of planned agents.
    pub agents: BTreeMap<Key, AgentWork>,
    /// Nothing it sends arrives before this.
    pub cut_up_until_ms: i64,
    /// Nothing arrives at it before this.
    pub cut_down_until_ms: i64,
    pub asleep_until_ms: i64,
    pub gone: bool,
}

/// What a runner knows and forgets with its death.
pub struct Process {
    pub instance: Option<InstanceId>,
    pub session: i64,
    pub streaming: bool,
    pub version: i64,
    pub in_flight: Option<u64>,
    pub acknowledged_ms: i64,
}

/// A job on this machine with its one step: its keeper and its place in the journal.
pub struct Work {
    pub run: RunId,
    claim: StepClaim,
    pub step: StepTry,
    pub plan: Plan,
    pub stage: Stage,
    /// Not acknowledged yet, numbered in the order they happened.
    pub facts: Vec<(u64, What)>,
    /// Never used twice: a late acknowledgement is of what it was sent for.
    next_fact: u64,
    pub written: i64,
    pub acknowledged: i64,
    pub began_ms: Option<i64>,
    stopping: bool,
    /// By which it can be tracked again.
    pub stub: SealedStub,
    /// The last document names it.
    listed: bool,
    /// As it was told.
    end: Option<What>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    Syncing,
    Running,
    Ended,
}

/// What the command does, as its own text says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    pub ms: i64,
    pub exit_code: i32,
    pub bytes: i64,
    pub max_ms: Option<i64>,
    pub stop_ms: i64,
    pub stops_without_control: bool,
    pub steps: Option<Steps>,
}

/// Durable steps of a command's program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Steps {
    pub count: i64,
    /// They must not be repeated.
    pub once: bool,
    /// Of each, in millionths of a credit.
    pub cost: i64,
}

impl Steps {
    pub fn draw(chance: &mut Chance) -> Steps {
        Steps { count: chance.between(1, 4), once: chance.one_in(2), cost: chance.pick(&[0, 0, 10]) }
    }

    /// The text of a command with these steps.
    pub fn after(self, text: String) -> String {
        format!("{text} {} {} {}", self.count, i64::from(self.once), self.cost)
    }
}

/// What the token of a command's processes says.
pub fn claim(wanted: &DesiredJob, step: &DesiredStep) -> StepClaim {
    let job = &wanted.job;
    StepClaim {
        org: wanted.run.org,
        run: wanted.run.id,
        attempt: job.attempt,
        job: job.id,
        epoch: job.epoch,
        step: step.step,
    }
}

impl Plan {
    pub fn text(ms: i64, exit_code: i32, bytes: i64) -> String {
        format!("work {ms} {exit_code} {bytes}")
    }
    pub fn of(wanted: &DesiredJob, step: &DesiredStep) -> Plan {
        let spec = &wanted.run.spec;
        let Command::Shell(text) = &step.command else { panic!("simulated commands are texts") };
        let words: Vec<i64> = text.split(' ').skip(1).map(|word| word.parse().expect("a number")).collect();
        Plan {
            ms: words[0],
            exit_code: words[1] as i32,
            bytes: words[2],
            max_ms: step.max_duration_ms,
            stop_ms: spec.stop_duration_ms,
            stops_without_control: spec.on_lost_control == OnLostControl::Stop,
            steps: words.get(3..6).map(|words| Steps { count: words[0], once: words[1] == 1, cost: words[2] }),
        }
    }
}

/// The next thing that happens to a work by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    Synced,
    Wrote,
    Ended {
        exit_code: Option<i32>,
        reason: JobReason,
    },
    /// Not by the command: its files could not be brought, or its keeper was killed.
    Broke(LifecycleError),
    /// Of a planned agent's job.
    Command {
        step: StepTry,
        moves: Moves,
    },
}

/// After so many milliseconds.
pub type Later = (i64, Key, Progress);

impl Machine {
    pub fn new(boot: Boot) -> Machine {
        Machine {
            boot,
            starts: 0,
            process: None,
            process_no: 0,
            works: BTreeMap::new(),
            agents: BTreeMap::new(),
            cut_up_until_ms: 0,
            cut_down_until_ms: 0,
            asleep_until_ms: 0,
            gone: false,
        }
    }

    pub fn start_process(&mut self, starts: u32, now_ms: i64) {
        self.starts = starts;
        self.process_no += 1;
        self.process = Some(Process {
            instance: None,
            session: 0,
            streaming: false,
            version: 0,
            in_flight: None,
            acknowledged_ms: now_ms,
        });
    }

    /// Whatever was between it and the world is over.
    pub fn reconnect(&mut self) {
        (self.cut_up_until_ms, self.cut_down_until_ms) = (0, 0);
    }

    /// It sleeps for so long, and with it its work: neither counts the time.
    pub fn sleep(&mut self, ms: i64, now_ms: i64) {
        self.asleep_until_ms = self.asleep_until_ms.max(now_ms + ms);
        if let Some(process) = &mut self.process {
            process.acknowledged_ms += ms;
        }
        for work in self.works.values_mut() {
            work.began_ms = work.began_ms.map(|began| began + ms);
        }
    }

    /// What has to end when the control plane is away for too long.
    pub fn stops_without_control(&self) -> Vec<Key> {
        let stops = self.works.iter().filter(|(_, work)| work.stage != Stage::Ended && work.plan.stops_without_control);
        stops.map(|(key, _)| *key).collect()
    }

    pub fn is_working(&self) -> bool {
        self.works.values().any(|work| work.stage != Stage::Ended) || self.agents.values().any(AgentWork::is_working)
    }

    /// Brings the machine to what the document says. Older documents than the last are ignored.
    pub fn obey(&mut self, desired: &Desired, chance: &mut Chance) -> Vec<Later> {
        let version = desired.instance.desired_version;
        let Some(process) = self.process.as_mut().filter(|process| process.version <= version) else { return vec![] };
        process.version = version;
        let mut later = Vec::new();
        self.obey_agents(desired, chance, &mut later);
        let plain = desired.job.as_ref().filter(|job| job.job.step.is_some());
        let wanted = plain.map(|job| ((job.job.id, job.job.epoch), job));
        for (key, work) in &mut self.works {
            let listed = wanted.as_ref().is_some_and(|(wanted, _)| wanted == key);
            if !listed && work.stage != Stage::Ended && !work.stopping {
                work.stopping = true;
                later.push((0, *key, killed()));
            }
        }
        if let Some((key, job)) = wanted {
            match self.works.get_mut(&key) {
                Some(work) => work.obey(key, job, chance, &mut later),
                None => {
                    let mut work = Work::new(job);
                    if job.job.status == JobStatus::Terminating {
                        later.push((0, key, killed()));
                    } else {
                        work.fact(What::Accepted);
                        later.push((chance.between(0, 4000), key, Progress::Synced));
                    }
                    self.works.insert(key, work);
                }
            }
        }
        let listed = desired.job.as_ref().map(|job| (job.job.id, job.job.epoch));
        self.works.iter_mut().for_each(|(key, work)| work.listed = listed == Some(*key));
        self.forget_delivered();
        later
    }

    /// An end is remembered until the control plane can no longer ask for the same start again.
    pub fn forget_delivered(&mut self) {
        self.works.retain(|_, work| work.stage != Stage::Ended || !work.facts.is_empty() || work.listed);
    }

    /// A control plane that lists a job as running when its runner registers does not know of its end.
    pub fn tell_ends_again(&mut self, desired: &Desired) {
        let listed = desired.job.as_ref().map(|job| (job.job.id, job.job.epoch));
        let Some(work) = listed.and_then(|key| self.works.get_mut(&key)) else { return };
        if let Some(end) = work.end.clone().filter(|_| work.facts.is_empty()) {
            work.fact(end);
        }
    }

    fn obey_agents(&mut self, desired: &Desired, chance: &mut Chance, later: &mut Vec<Later>) {
        let wanted = desired.job.as_ref().filter(|job| job.job.step.is_none());
        let listed = wanted.map(|job| (job.job.id, job.job.epoch));
        if let Some(key) = listed {
            self.agents.entry(key).or_default();
        }
        for (key, work) in &mut self.agents {
            work.obey(*key, wanted.filter(|_| listed == Some(*key)), chance, later);
        }
        self.agents.retain(|key, work| listed == Some(*key) || !work.facts.is_empty() || work.is_working());
    }

    /// All that was not acknowledged.
    pub fn report(&self, now_ms: i64) -> (Vec<Fact>, Vec<StepChunk>, BTreeMap<Key, u64>) {
        let (mut facts, mut chunks, mut upto) = (Vec::new(), Vec::new(), BTreeMap::new());
        for (&(job, epoch), work) in &self.works {
            facts.extend(work.facts.iter().map(|(_, what)| work.told(job, epoch, what)));
            if let Some((last, _)) = work.facts.last() {
                upto.insert((job, epoch), *last);
            }
            if work.acknowledged < work.written {
                let data = truth::output(job, epoch, work.acknowledged, work.written);
                let frame = Frame { stream: LogStream::Stdout, at: Timestamp(now_ms), data };
                chunks.push(StepChunk { job, epoch, step: work.step, offset: work.acknowledged, frames: vec![frame] });
            }
        }
        for (key, work) in &self.agents {
            let (more, bytes, last) = work.report(*key, now_ms);
            facts.extend(more);
            chunks.extend(bytes);
            upto.extend(last.map(|last| (*key, last)));
        }
        (facts, chunks, upto)
    }
}

impl Work {
    fn new(wanted: &DesiredJob) -> Work {
        let [step] = &wanted.steps[..] else { panic!("a plain task is a job with one step") };
        Work {
            run: wanted.run.id,
            claim: claim(wanted, step),
            step: step.step,
            plan: Plan::of(wanted, step),
            stage: Stage::Syncing,
            facts: Vec::new(),
            next_fact: 0,
            written: 0,
            acknowledged: 0,
            began_ms: None,
            stopping: false,
            stub: wanted.stub.clone(),
            listed: true,
            end: None,
        }
    }

    fn obey(&mut self, key: Key, wanted: &DesiredJob, chance: &mut Chance, later: &mut Vec<Later>) {
        if wanted.job.status != JobStatus::Terminating || self.stage == Stage::Ended {
            return;
        }
        if wanted.job.abort {
            self.stopping = true;
            later.push((0, key, killed()));
        } else if !self.stopping {
            self.stopping = true;
            later.push((chance.between(0, self.plan.stop_ms + 1), key, killed()));
        }
    }

    fn told(&self, job: JobId, epoch: i64, what: &What) -> Fact {
        let of_step = matches!(what, What::Started { .. } | What::Ended { .. });
        Fact { job, epoch, step: of_step.then_some(self.step), what: what.clone() }
    }

    fn fact(&mut self, what: What) {
        self.facts.push((self.next_fact, what));
        self.next_fact += 1;
    }

    /// What asks about durable steps while the command runs.
    pub fn program(&self) -> Option<Program> {
        Some(Program::new(self.claim, self.plan.steps?))
    }

    /// What happens next, once it has begun.
    pub fn begin(&mut self, key: Key, now_ms: i64) -> Vec<Later> {
        self.stage = Stage::Running;
        self.began_ms = Some(now_ms);
        self.fact(What::SyncComplete { blobs: 0 });
        self.fact(What::Started { unenforced: None });
        let end = match self.plan.max_ms.filter(|max| *max < self.plan.ms) {
            Some(max) => (max, key, Progress::Ended { exit_code: None, reason: JobReason::MaxDuration }),
            None => {
                let code = self.plan.exit_code;
                let reason = if code == 0 { JobReason::DoneByRunner } else { JobReason::ExitedWithError };
                (self.plan.ms, key, Progress::Ended { exit_code: Some(code), reason })
            }
        };
        vec![(0, key, Progress::Wrote), (self.plan.ms / 2, key, Progress::Wrote), end]
    }

    pub fn write(&mut self) {
        self.written = (self.written + self.plan.bytes / 3).min(self.plan.bytes);
    }

    pub fn end(&mut self, now_ms: i64, exit_code: Option<i32>, reason: JobReason) {
        if exit_code.is_some() {
            self.written = self.plan.bytes;
        }
        let signal = exit_code.is_none().then_some(9);
        self.tell_end(now_ms, reason, exit_code, signal, None);
    }

    pub fn broke(&mut self, now_ms: i64, error: LifecycleError) {
        self.tell_end(now_ms, JobReason::ExecutorError, None, None, Some(error));
    }

    fn tell_end(
        &mut self,
        now_ms: i64,
        reason: JobReason,
        exit_code: Option<i32>,
        signal: Option<i32>,
        lifecycle_error: Option<LifecycleError>,
    ) {
        self.stage = Stage::Ended;
        let active_ms = self.began_ms.map_or(0, |began| (now_ms - began).max(0));
        let final_offset = self.written;
        let end = What::Ended {
            reason,
            exit_code,
            signal,
            message: None,
            lifecycle_error,
            final_offset,
            active_ms,
            ended_ago_ms: 0,
            output: None,
            stdout_tail: None,
            started: true,
            kept: None,
        };
        self.end = Some(end.clone());
        self.fact(end);
    }
}

/// By our signal; the control plane knows why.
fn killed() -> Progress {
    Progress::Ended { exit_code: None, reason: JobReason::TerminatedByServer }
}
