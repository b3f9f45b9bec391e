//! Scripted runners: one for every machine the provider has. They register, obey their desired document and repeat what was not
//! acknowledged; what becomes of a job is decided by the test, beforehand. Also the record of what really ran.

use crate::bench::{Bench, now};
use adapters::fake::MachineState;
use engine::desired::{Desired, DesiredJob, DesiredStep};
use engine::feature::FeatureSaid;
use engine::runner::{Fact, Introduction, Output, StepChunk, Taken, What};
use model::feature::FeatureState;
use model::job::{FreezeState, Job, JobReason, LifecycleError};
use model::spec::{BlobSource, Command};
use model::step::StepTry;
use model::stub::SealedStub;
use model::{Failure, InstanceId, JobId, Refused, RunId, Timestamp};
use std::collections::{BTreeMap, BTreeSet};
use store::unlisted::{Unlisted, UnlistedJob};
use store::{Frame, LogStream};

/// How far a runner takes a job by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Plan {
    /// Never accepts it.
    Ignore,
    /// Accepts it, and its files never come.
    Pull,
    /// Runs until it is told otherwise.
    Run,
    /// Ends at once with this code.
    Exit(i32),
}

/// What a runner does that cannot read in the blob store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reading {
    /// It says so.
    Fails,
    /// It goes on trying.
    Hangs,
}

/// What a command does when it is started.
pub type Script = Box<dyn FnMut(&DesiredStep) -> Does>;

#[derive(Default)]
pub struct Runners {
    pub plan: Option<Plan>,
    /// Machines that say nothing and hear nothing.
    pub deaf: Vec<String>,
    /// They cannot read in the blob store although they are told to; or they try to, and never come to an end.
    pub out_of_reach: Option<Reading>,
    /// Where each was told to read, whenever that was something else.
    pub sources: Vec<BlobSource>,
    /// What plain commands that end well have kept.
    pub kept: Option<model::tree::TreeRef>,
    /// Inits do not end well.
    pub inits_fail: bool,
    /// Scripts of features that end badly, and that never end.
    pub broken: Vec<String>,
    pub endless: Vec<String>,
    /// Every script of a feature that was run: the machine, the feature, and what was done.
    pub scripts: Vec<(String, String, &'static str)>,
    /// Machines whose runner never comes up.
    pub unborn: bool,
    /// The time a runner says a job was active.
    pub active_ms: i64,
    processes: BTreeMap<String, Process>,
    /// What commands of planned agents do; without it each ends well at once.
    pub script: Option<Script>,
    /// Commands of planned agents that really began, by what they were started with.
    pub commands: Vec<Command>,
    /// Every execution of a command that really began.
    pub began: Vec<(RunId, JobId, i64)>,
}

/// What a command of a planned agent does.
#[derive(Debug, Clone)]
pub enum Does {
    /// Until it is stopped, or the test ends it.
    Runs,
    Ends(What),
}

impl Does {
    pub fn answers(json: serde_json::Value) -> Does {
        let mut end = ended(JobReason::DoneByRunner, Some(0), 0, 0);
        if let What::Ended { output, .. } = &mut end {
            *output = Some(Output::Json(json.to_string()));
        }
        Does::Ends(end)
    }
    pub fn exits(code: i32) -> Does {
        let reason = if code == 0 { JobReason::DoneByRunner } else { JobReason::ExitedWithError };
        Does::Ends(ended(reason, Some(code), 0, 0))
    }
}

#[derive(Default)]
struct Process {
    starts: u32,
    instance: Option<InstanceId>,
    streaming: bool,
    works: BTreeMap<(JobId, i64), Work>,
    agents: BTreeMap<(JobId, i64), AgentWork>,
    /// Features that are there.
    has: BTreeSet<String>,
}

/// The job of a planned agent: its commands come and go.
#[derive(Default)]
struct AgentWork {
    facts: Vec<(Option<StepTry>, What)>,
    acknowledged: usize,
    /// Whether each has ended.
    commands: BTreeMap<StepTry, bool>,
    still: bool,
    closed: bool,
}

#[derive(Default)]
struct Work {
    step: Option<StepTry>,
    facts: Vec<What>,
    acknowledged: usize,
    started: bool,
    over: bool,
    still: bool,
    stub: Option<SealedStub>,
}

impl Runners {
    /// Every stream breaks: each living runner registers again.
    pub fn disconnect(&mut self) {
        for process in self.processes.values_mut() {
            process.instance = None;
            process.streaming = false;
        }
    }
    fn is_deaf(&self, name: &str) -> bool {
        self.deaf.iter().any(|deaf| deaf == name)
    }
    /// How often a command of this run began.
    pub fn executions(&self, run: RunId) -> usize {
        self.began.iter().filter(|(of, ..)| *of == run).count()
    }
}

impl Bench {
    /// Every runner does what it can do now. True if anything was said.
    pub fn runners_act(&mut self) -> bool {
        let mut acted = false;
        for (name, machine) in self.provider.machines() {
            let process = self.runners.processes.entry(name.clone()).or_default();
            if machine.state != MachineState::Running {
                acted |= self.ended(&name);
                continue;
            }
            if process.starts < machine.starts {
                // A new process: jobs live on in their keepers, the connection does not.
                (process.starts, process.instance, process.streaming) = (machine.starts, None, false);
            }
            if self.runners.is_deaf(&name) || self.runners.unborn {
                continue;
            }
            acted |= match self.runners.processes[&name].instance {
                None => self.register(&name),
                Some(_) => self.obey(&name),
            };
        }
        acted
    }

    /// The process is gone: its stream closes.
    fn ended(&mut self, name: &str) -> bool {
        let process = self.runners.processes.get_mut(name).expect("it was just seen");
        let was = std::mem::take(&mut process.streaming);
        let Some(instance) = process.instance.take().filter(|_| was) else { return false };
        self.engine.context.presence.stream(instance, false);
        let closed = now(self.engine.stream_closed(instance));
        self.unless_dead(closed);
        true
    }

    fn register(&mut self, name: &str) -> bool {
        let boot = self.provider.machine(name).expect("it was just seen").boot;
        let registered = now(async {
            self.engine.check_runner(&boot.name, &boot.token)?;
            let instance = self.engine.listed(self.introduction(name, &boot.nonce)).await?;
            let who = Introduction {
                name: boot.name.clone(),
                nonce: boot.nonce.clone(),
                version: "1".to_owned(),
                host: "bench".to_owned(),
                containment: None,
                sandbox: None,
            };
            self.engine.register(instance.id, who).await
        });
        match registered {
            Err(_) if self.revive() => {}
            Err(Failure::Refused(Refused::Unlisted { .. })) if self.has_work(name) => return false, // it waits
            Err(Failure::Refused(_)) => self.provider.kill_runner(name), // no row wants it any more
            Err(failure) => panic!("{failure:?}"),
            Ok(instance) => {
                let process = self.runners.processes.get_mut(name).expect("it was just seen");
                (process.instance, process.streaming) = (Some(instance.id), true);
                // What was not acknowledged by another process is said again to this one.
                process.works.values_mut().for_each(|work| work.acknowledged = 0);
                process.agents.values_mut().for_each(|work| work.acknowledged = 0);
                self.engine.context.presence.stream(instance.id, true);
            }
        }
        true
    }

    /// What a runner says of itself and of its jobs.
    pub fn introduction(&self, name: &str, nonce: &str) -> Unlisted {
        let job = |((job, epoch), work): (&(JobId, i64), &Work)| UnlistedJob {
            job: *job,
            epoch: *epoch,
            started: work.started,
            ended: work.over,
            log_from: 0,
            stub: work.stub.clone(),
        };
        let works = &self.runners.processes[name].works;
        let (host, version) = ("bench".to_owned(), "1".to_owned());
        let jobs = works.iter().map(job).collect();
        Unlisted { name: name.to_owned(), nonce: nonce.to_owned(), host, version, jobs, seen_at: Timestamp(0) }
    }

    /// Its command ends and no server is told.
    pub fn ends_alone(&mut self, name: &str, code: i32) {
        let active_ms = self.runners.active_ms;
        let process = self.runners.processes.get_mut(name).expect("it has a runner");
        process.works.values_mut().for_each(|work| work.exit(code, active_ms));
    }

    fn has_work(&self, name: &str) -> bool {
        self.runners.processes[name].works.values().any(|work| work.acknowledged < work.facts.len() || !work.over)
    }

    /// Takes the desired document, goes on with its jobs and says what is new.
    fn obey(&mut self, name: &str) -> bool {
        let instance = self.runners.processes[name].instance.expect("it has registered");
        let desired = now(self.engine.desired(instance)).unwrap();
        if desired.shutdown {
            self.provider.kill_runner(name);
            return true;
        }
        let changed = self.change_features(name, &desired);
        self.go_on(name, &desired);
        self.send(name) || changed
    }

    /// Does with its features what it is asked for. A runner that is asked again for what is there says so, and runs nothing.
    fn change_features(&mut self, name: &str, desired: &Desired) -> bool {
        let mut changed = false;
        for feature in desired.instance.features.clone() {
            let installs = match feature.state {
                FeatureState::Installing => true,
                FeatureState::Removing => false,
                _ => continue,
            };
            let (process, script) = (self.runners.processes.get_mut(name).unwrap(), feature.name.clone());
            if self.runners.endless.contains(&script) {
                continue;
            }
            let breaks = self.runners.broken.contains(&script);
            let is_done = process.has.contains(&script) == installs;
            if !is_done {
                let act = if installs { "install" } else { "remove" };
                self.runners.scripts.push((name.to_owned(), script.clone(), act));
                match (breaks, installs) {
                    (true, _) => {}
                    (false, true) => drop(process.has.insert(script.clone())),
                    (false, false) => drop(process.has.remove(&script)),
                }
            }
            let done = if breaks && !is_done { Err("exit status: 1".to_owned()) } else { Ok(()) };
            let said = FeatureSaid { name: script, request: feature.request, done };
            let told = now(self.engine.feature_said(desired.instance.id, said));
            changed |= self.unless_dead(told).is_some();
        }
        changed
    }

    fn go_on(&mut self, name: &str, desired: &Desired) {
        if let Some(wanted) = desired.job.as_ref().filter(|wanted| wanted.job.step.is_none()) {
            return self.go_on_for_agent(name, wanted);
        }
        let plan = self.runners.plan.unwrap_or(Plan::Exit(0));
        let works = &mut self.runners.processes.get_mut(name).expect("it was just seen").works;
        if let Some(wanted) = &desired.job {
            let (key, job) = ((wanted.job.id, wanted.job.epoch), &wanted.job);
            let work = works.entry(key).or_default();
            work.step = wanted.steps.first().map(|step| step.step);
            work.stub = Some(wanted.stub.clone());
            let stopped = job.stop_asked_at.is_some();
            if work.facts.is_empty() && (plan != Plan::Ignore || stopped) {
                work.facts.push(What::Accepted);
            }
            if stopped && !work.over {
                let reason = if job.abort { JobReason::AbortedByUser } else { JobReason::TerminatedByServer };
                work.end(reason, None, self.runners.active_ms);
            }
            let still = matches!(job.freeze, FreezeState::Freezing | FreezeState::Frozen);
            if still != work.still && !work.over {
                work.still = still;
                work.facts.push(if still { What::Froze } else { What::Thawed });
            }
            if still {
                return;
            }
            if self.runners.sources.last() != Some(&wanted.source) {
                self.runners.sources.push(wanted.source);
            }
            if let (BlobSource::Direct, Some(reading), false) =
                (wanted.source, self.runners.out_of_reach, work.over || work.started)
            {
                let said = work.facts.iter().any(|fact| matches!(fact, What::SourceFailed { .. }));
                if reading == Reading::Fails && !said {
                    work.facts.push(What::SourceFailed { why: "the bucket cannot be reached from here".into() });
                }
                return;
            }
            if !work.started && !work.over && matches!(plan, Plan::Run | Plan::Exit(_)) {
                work.started = true;
                work.facts.extend([What::SyncComplete { blobs: 0 }, What::Started { unenforced: None }]);
                self.runners.began.push((job.run, job.id, job.epoch));
            }
            if let (Plan::Exit(_), false, Some(checksum)) = (plan, work.over, &wanted.run.spec.init_checksum)
                && !self.runners.inits_fail
            {
                work.facts.push(What::Initialised { checksum: checksum.clone() });
            }
            if let (Plan::Exit(code), false) = (plan, work.over) {
                work.exit(code, self.runners.active_ms);
                let keeps = wanted.steps.first().is_some_and(|step| !step.keep.is_empty());
                if let Some(What::Ended { kept, .. }) = work.facts.last_mut().filter(|_| keeps && code == 0) {
                    kept.clone_from(&self.runners.kept);
                }
            }
        }
    }

    /// A job whose steps come one by one, until it is stopped.
    fn go_on_for_agent(&mut self, name: &str, wanted: &DesiredJob) {
        let Runners { processes, script, commands, plan, .. } = &mut self.runners;
        if matches!(plan, Some(Plan::Ignore)) {
            return;
        }
        let agents = &mut processes.get_mut(name).expect("it was just seen").agents;
        let work = agents.entry((wanted.job.id, wanted.job.epoch)).or_default();
        let stopped = wanted.job.stop_asked_at.is_some();
        if work.facts.is_empty() {
            work.facts.extend([(None, What::Accepted), (None, What::SyncComplete { blobs: 0 })]);
        }
        let still = matches!(wanted.job.freeze, FreezeState::Freezing | FreezeState::Frozen);
        if still != work.still && !stopped {
            work.still = still;
            work.facts.push((None, if still { What::Froze } else { What::Thawed }));
        }
        for step in wanted.steps.iter().filter(|_| !still) {
            let begun = work.commands.contains_key(&step.step);
            if !begun && !stopped && !step.stopped {
                commands.push(step.command.clone());
                work.facts.push((Some(step.step), What::Started { unenforced: None }));
                work.commands.insert(step.step, false);
                let does = script.as_mut().map_or(Does::exits(0), |script| script(step));
                if let Does::Ends(end) = does {
                    work.end(step.step, end);
                }
            }
            if (stopped || step.stopped) && work.commands.get(&step.step) != Some(&true) {
                work.end(step.step, ended(JobReason::TerminatedByServer, None, 0, 0));
            }
        }
        if stopped && wanted.steps.is_empty() && !std::mem::replace(&mut work.closed, true) {
            work.facts.push((None, closed(JobReason::DoneByRunner)));
        }
    }

    /// A command of a planned agent that runs comes to its end.
    pub fn command_ends(&mut self, step: StepTry, end: What) {
        for process in self.runners.processes.values_mut() {
            for work in process.agents.values_mut().filter(|work| work.commands.contains_key(&step)) {
                work.end(step, end.clone());
            }
        }
        self.settle();
    }

    /// Everything that was not acknowledged, in one report.
    pub fn send(&mut self, name: &str) -> bool {
        let process = &self.runners.processes[name];
        let Some(instance) = process.instance else { return false };
        let mut facts = Vec::new();
        for ((job, epoch), work) in &process.works {
            let fresh = work.facts.iter().skip(work.acknowledged);
            facts.extend(fresh.map(|what| fact(*job, *epoch, work.step, what.clone())));
        }
        for ((job, epoch), work) in &process.agents {
            let fresh = work.facts.iter().skip(work.acknowledged);
            facts.extend(fresh.map(|(step, what)| Fact { job: *job, epoch: *epoch, step: *step, what: what.clone() }));
        }
        if facts.is_empty() {
            return false;
        }
        let said = self.report(instance, facts.clone(), Vec::new());
        if let Some(Ok(_)) = said {
            let process = self.runners.processes.get_mut(name).expect("it was just seen");
            process.works.values_mut().for_each(|work| work.acknowledged = work.facts.len());
            process.agents.values_mut().for_each(|work| work.acknowledged = work.facts.len());
        }
        true
    }

    /// What the server does with a report. None: the control plane died over it.
    pub fn report(
        &mut self,
        instance: InstanceId,
        facts: Vec<Fact>,
        chunks: Vec<StepChunk>,
    ) -> Option<Result<Taken, Failure>> {
        let at = self.at();
        let taken = now(async {
            let instance = self.engine.find_instance(instance).await?.expect("it is known");
            self.engine.heartbeat(&instance, instance.observed_version, at).await?;
            self.engine.report(&instance, facts, chunks).await
        });
        (!self.revive()).then_some(taken)
    }

    pub fn heartbeats(&mut self) {
        let alive: Vec<(String, InstanceId)> = self
            .runners
            .processes
            .iter()
            .filter(|(name, _)| !self.runners.is_deaf(name))
            .filter_map(|(name, process)| Some((name.clone(), process.instance?)))
            .collect();
        let at = self.at();
        for (name, id) in alive {
            if self.provider.machine(&name).is_none_or(|machine| machine.state != MachineState::Running) {
                continue;
            }
            let beaten = now(async {
                let instance = self.engine.find_instance(id).await?.expect("it is known");
                self.engine.heartbeat(&instance, instance.desired_version, at).await
            });
            self.unless_dead(beaten);
        }
    }

    /// One fact of a job, said by the runner that has it.
    pub fn say(&mut self, run: RunId, what: What) -> Taken {
        let job = self.job(run);
        self.say_of(&job, what)
    }

    pub fn say_of(&mut self, job: &Job, what: What) -> Taken {
        let fact = fact(job.id, job.epoch, job.step, what);
        self.report(job.instance.expect("it is placed"), vec![fact], Vec::new()).expect("nobody dies here").unwrap()
    }

    /// One fact of a job, repeated until the control plane has taken it.
    pub fn says_until_heard(&mut self, run: RunId, what: What) {
        let job = self.job(run);
        let said = fact(job.id, job.epoch, job.step, what);
        let instance = job.instance.expect("it is placed");
        while self.report(instance, vec![said.clone()], Vec::new()).is_none() {}
    }

    /// The command of a running job ends by itself.
    pub fn exits(&mut self, run: RunId, code: i32) {
        let job = self.job(run);
        self.exits_of(&job, code);
    }

    pub fn exits_of(&mut self, job: &Job, code: i32) {
        let active_ms = self.runners.active_ms;
        for process in self.runners.processes.values_mut() {
            if let Some(work) = process.works.get_mut(&(job.id, job.epoch)) {
                work.exit(code, active_ms);
            }
        }
        self.settle();
    }

    pub fn name_of(&self, run: RunId) -> String {
        self.snapshot(run).instance.expect("it has a machine").name
    }

    /// From now on nothing from this run's machine arrives, and nothing arrives there. The stream breaks.
    pub fn cut_off(&mut self, run: RunId) -> String {
        self.cut_off_machine(self.name_of(run))
    }

    pub fn cut_off_machine(&mut self, name: String) -> String {
        self.runners.deaf.push(name.clone());
        let process = self.runners.processes.get_mut(&name).expect("it has registered");
        if let Some(instance) = process.instance.take() {
            process.streaming = false;
            self.engine.context.presence.stream(instance, false);
            now(self.engine.stream_closed(instance)).unwrap();
        }
        name
    }

    pub fn reconnect(&mut self, name: &str) {
        self.runners.deaf.retain(|deaf| deaf != name);
    }
}

impl AgentWork {
    fn end(&mut self, step: StepTry, end: What) {
        self.commands.insert(step, true);
        self.facts.push((Some(step), end));
    }
}

pub fn closed(reason: JobReason) -> What {
    What::Closed { reason, message: None, lifecycle_error: None }
}

impl Work {
    fn exit(&mut self, code: i32, active_ms: i64) {
        let reason = if code == 0 { JobReason::DoneByRunner } else { JobReason::ExitedWithError };
        self.end(reason, Some(code), active_ms);
    }
    fn end(&mut self, reason: JobReason, exit_code: Option<i32>, active_ms: i64) {
        self.over = true;
        self.facts.push(ended(reason, exit_code, 0, active_ms));
    }
}

/// A fact as a runner tells it: of the job, or of its one step.
pub fn fact(job: JobId, epoch: i64, step: Option<StepTry>, what: What) -> Fact {
    let of_step = matches!(what, What::Started { .. } | What::Ended { .. });
    Fact { job, epoch, step: step.filter(|_| of_step), what }
}

pub fn ended(reason: JobReason, exit_code: Option<i32>, final_offset: i64, active_ms: i64) -> What {
    What::Ended {
        reason,
        exit_code,
        signal: None,
        message: None,
        lifecycle_error: None,
        final_offset,
        active_ms,
        ended_ago_ms: 0,
        output: None,
        stdout_tail: None,
        started: true,
        kept: None,
    }
}

/// An end that the command did not come to by itself, told by a runner that lives.
pub fn broken(error: LifecycleError, active_ms: i64) -> What {
    let reason = match error {
        LifecycleError::SyncFailed | LifecycleError::KeeperDied => JobReason::ExecutorError,
        LifecycleError::ControlLost => JobReason::ControlLost,
        LifecycleError::Interrupted => JobReason::Interrupted,
    };
    let lifecycle_error = Some(error);
    What::Ended {
        reason,
        exit_code: None,
        signal: None,
        message: None,
        lifecycle_error,
        final_offset: 0,
        active_ms,
        ended_ago_ms: 0,
        output: None,
        stdout_tail: None,
        started: true,
        kept: None,
    }
}

pub fn chunk(job: &Job, offset: i64, text: &str) -> StepChunk {
    let frame = Frame { stream: LogStream::Stdout, at: model::Timestamp(1), data: text.as_bytes().to_vec() };
    let step = job.step.expect("a plain task has one step");
    StepChunk { job: job.id, epoch: job.epoch, step, offset, frames: vec![frame] }
}
