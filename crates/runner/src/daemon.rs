//! The daemon: one loop that owns all state, receives events and then advances every job and step that can advance. Slow operations run
//! in other tasks, and their results come back as events.

mod accept;
mod features;
mod keepers;
mod open;
mod reconcile;
mod recover;
mod servers;
mod snapshots;
mod workdirs;
mod world;

use crate::artifacts::Shortfall;
use crate::cache::Cache;
use crate::clock::Backoff;
use crate::instance::Instance;
use crate::job::Job;
use crate::journal::Journal;
use crate::key::{JobKey, Key};
use crate::link::{Heard, Inventory, KeptStub, Line, Link};
use crate::orders::{KeeperOrder, Told};
use crate::report::{self, Sent};
use crate::slot::{self, Keepers, Slot};
use crate::step::Step;
use crate::sync::{Fetched, NotPlaced};
use nix::fcntl::Flock;
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::AbortHandle;
use wire::client::{Client, ClientError};
use wire::model::{SnapshotId, crash_point};
use wire::runner::{EndCause, KnownJob, ReportAnswer};

/// How long a runner that was told to shut down by its control plane tries to deliver what it knows.
const DELIVER_WITHIN: Duration = Duration::from_secs(10);
/// A process that is not dead this long after SIGKILL hangs in the kernel; the daemon does not wait for it any longer.
const DIE_WITHIN: Duration = Duration::from_secs(20);

pub enum Event {
    Link(Heard),
    Slot(io::Result<Slot>),
    /// The files of a job.
    Synced(JobKey, Result<Fetched, NotPlaced>),
    /// What a step reads.
    Brought(Key, Result<Fetched, NotPlaced>),
    Told(Key, Told),
    KeeperGone(Key),
    Contained(Key),
    Uploaded(Key, Shortfall),
    Answered(Sent, Result<ReportAnswer, ClientError>),
    ShutDown,
    Terminated,
    DirectoryGone,
}

/// Why a runner leaves. Only a shutdown ends work; the others leave it to its keepers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Leaving {
    ShutDown,
    Superseded,
    Terminated,
    /// The control plane has been silent too long, and nothing here needs a runner.
    Idle,
}

/// How long the control plane has been silent, in words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Silence {
    None,
    Degraded,
    Panic,
}

#[derive(Debug, Clone, Copy)]
struct Closing {
    deliver_until: Instant,
    die_until: Instant,
}

enum Warm {
    None,
    Preparing,
    Ready(Slot),
}

pub struct Daemon {
    instance: Arc<Instance>,
    journal: Journal,
    boot_id: String,
    jobs: BTreeMap<JobKey, Job>,
    /// Of all jobs.
    steps: BTreeMap<Key, Step>,
    /// Features that are being installed or removed, or were, by the requests that ask for it.
    features: BTreeMap<(String, i64), AbortHandle>,
    /// Folders that are being sent for snapshots.
    snapshots: BTreeMap<SnapshotId, AbortHandle>,
    warm: Warm,
    slots_made: u64,
    slot_due: Option<Instant>,
    slot_backoff: Backoff,
    keepers: Keepers,
    cache: Arc<Cache>,
    line: Line,
    /// To the control plane without this runner's token: what processes of jobs ask is asked with theirs.
    steps_line: Client,
    up: watch::Sender<bool>,
    inventory: Arc<Mutex<Inventory>>,
    reopen: Arc<Notify>,
    renew: Arc<Notify>,
    session: Option<i64>,
    version: i64,
    in_flight: bool,
    report_due: Option<Instant>,
    report_backoff: Backoff,
    last_heard: Instant,
    silence: Silence,
    /// Since when the control plane has answered that it does not list this runner.
    unlisted: Option<Instant>,
    closing: Option<Closing>,
    events: mpsc::UnboundedSender<Event>,
}

pub async fn serve(instance: Instance, lock: Flock<File>) -> io::Result<()> {
    let (events, mut heard) = mpsc::unbounded_channel();
    if let Err(error) = instance.lay_tools() {
        tracing::warn!(%error, "commands do not find repl on their PATH");
    }
    let mut daemon = Daemon::new(instance, events)?;
    daemon.recover()?;
    let socket = world::watch(&daemon, lock)?;
    daemon.follow();
    let leaving = daemon.run(&mut heard).await;
    tracing::info!(?leaving, "the runner leaves");
    crate::socket::remove(&socket);
    if let Warm::Ready(slot) = std::mem::replace(&mut daemon.warm, Warm::None) {
        drop(slot.keeper); // its keeper leaves, having had no orders
        slot::discard(&slot.dir);
    }
    Ok(())
}

impl Daemon {
    fn new(instance: Instance, events: mpsc::UnboundedSender<Event>) -> io::Result<Daemon> {
        let boot = &instance.boot;
        let token = format!("{}.{}", boot.name, boot.token);
        let client =
            Client::trusting(&boot.control_url, Some(&token), boot.control_ca.as_deref()).map_err(io::Error::other)?;
        let steps_line =
            Client::trusting(&boot.control_url, None, boot.control_ca.as_deref()).map_err(io::Error::other)?;
        let (up, is_up) = watch::channel(false);
        Ok(Daemon {
            steps_line,
            journal: Journal::open(&instance.dir)?,
            cache: Arc::new(Cache::open(&instance.dir)?),
            instance: Arc::new(instance),
            boot_id: crate::process::boot_id(),
            jobs: BTreeMap::new(),
            steps: BTreeMap::new(),
            features: BTreeMap::new(),
            snapshots: BTreeMap::new(),
            warm: Warm::None,
            slots_made: 0,
            slot_due: None,
            slot_backoff: Backoff::default(),
            keepers: Keepers::default(),
            line: Line::new(client, is_up),
            up,
            inventory: Arc::default(),
            reopen: Arc::default(),
            renew: Arc::default(),
            session: None,
            version: 0,
            in_flight: false,
            report_due: None,
            report_backoff: Backoff::default(),
            last_heard: Instant::now(),
            silence: Silence::None,
            unlisted: None,
            closing: None,
            events,
        })
    }

    fn follow(&self) {
        let link = Link {
            line: self.line.clone(),
            dir: self.instance.dir.clone(),
            boot: self.instance.boot.clone(),
            containment: self.instance.way.word(),
            inventory: self.inventory.clone(),
            reopen: self.reopen.clone(),
            renew: self.renew.clone(),
            heard: self.events.clone(),
        };
        tokio::spawn(link.run());
    }

    async fn run(&mut self, events: &mut mpsc::UnboundedReceiver<Event>) -> Leaving {
        loop {
            if let Some(leaving) = self.advance(Instant::now()) {
                return leaving;
            }
            let first = match self.next_due() {
                None => events.recv().await,
                Some(due) => tokio::time::timeout_at(due.into(), events.recv()).await.unwrap_or(None),
            };
            // Whatever has happened by now is heard before anything is told: it may all fit into one batch.
            let mut next = first;
            while let Some(event) = next {
                if let Some(leaving) = self.hear(event, Instant::now()) {
                    return leaving;
                }
                next = events.try_recv().ok();
            }
        }
    }

    fn hear(&mut self, event: Event, now: Instant) -> Option<Leaving> {
        match event {
            Event::Link(heard) => return self.hear_link(heard, now),
            Event::Answered(sent, answer) => self.hear_answer(&sent, answer, now),
            Event::Slot(made) => self.hear_slot(made, now),
            Event::Synced(key, synced) => self.hear_synced(key, synced),
            Event::Brought(key, brought) => self.hear_brought(key, brought),
            Event::Told(key, told) => self.hear_keeper(key, told, now),
            Event::KeeperGone(key) => self.keeper_gone(key),
            Event::Contained(key) => self.contained(key),
            Event::Uploaded(key, shortfall) => self.tell_end(key, &shortfall),
            Event::ShutDown => self.close(Duration::from_secs(2), now),
            Event::DirectoryGone => self.close(Duration::ZERO, now),
            Event::Terminated => return Some(Leaving::Terminated),
        }
        None
    }

    fn hear_link(&mut self, heard: Heard, now: Instant) -> Option<Leaving> {
        match heard {
            Heard::Superseded => return Some(Leaving::Superseded),
            Heard::Lost(why) => {
                tracing::debug!(%why, "the control plane does not answer");
                self.link_is(false);
                return None;
            }
            Heard::Unlisted => {
                self.hear_unlisted(now);
                return None;
            }
            Heard::Terminated => {
                // Results are still taken from a session that was open; a new one is refused.
                self.close(if self.session.is_some() { DELIVER_WITHIN } else { Duration::ZERO }, now);
                return None;
            }
            Heard::Registered(registered) => {
                self.unlisted = None;
                self.session = Some(registered.session);
                self.report_due = None;
                self.reconcile(registered.desired, true, now);
            }
            Heard::Desired(desired) if desired.version >= self.version => self.reconcile(*desired, false, now),
            Heard::Desired(_) => {}
            Heard::Beat(beat) => {
                if !beat.session_current || beat.desired_version > self.version {
                    self.ask_the_stream();
                }
            }
        }
        self.heard_control(now);
        None
    }

    fn hear_answer(&mut self, sent: &Sent, answer: Result<ReportAnswer, ClientError>, now: Instant) {
        self.in_flight = false;
        match answer {
            Ok(answer) => {
                self.heard_control(now);
                if !answer.session_current {
                    self.ask_the_stream();
                }
                let moved = report::settle(&mut self.jobs, &mut self.steps, sent, &answer);
                for refused in answer.refused {
                    self.disown(JobKey { job: refused.job, epoch: refused.epoch }, refused.step);
                }
                if moved {
                    self.report_backoff.reset();
                } else {
                    self.report_due = Some(now + self.report_backoff.next());
                }
            }
            Err(error) => {
                match error.problem() {
                    Some(problem) if problem.status < 500 && problem.status != 429 => self.renew.notify_one(),
                    _ => self.link_is(false),
                }
                tracing::debug!(%error, "a report was not acknowledged");
                self.report_due = Some(now + self.report_backoff.next());
            }
        }
    }

    /// The database was lost: everything here works on and waits to be tracked again. For a day this is no silence. Nothing can be
    /// delivered meanwhile, so output is spooled as if the line were down.
    fn hear_unlisted(&mut self, now: Instant) {
        let since = *self.unlisted.get_or_insert(now);
        let limit = Duration::from_millis(self.instance.boot.timings.unlisted_for_ms.max(0) as u64);
        if now.saturating_duration_since(since) < limit {
            (self.last_heard, self.silence) = (now, Silence::None);
        }
        self.session = None;
        self.link_is(false);
    }

    /// Only the stream says with certainty which session it is of: an answer may belong to one this runner itself has
    /// replaced.
    fn ask_the_stream(&self) {
        self.reopen.notify_one();
    }

    fn heard_control(&mut self, now: Instant) {
        self.last_heard = now;
        self.silence = Silence::None;
        self.link_is(true);
    }

    fn link_is(&mut self, up: bool) {
        if self.up.send_replace(up) != up {
            tracing::info!(up, "the line to the control plane");
            self.steps.values().for_each(|step| step.order(KeeperOrder::Link { up }));
        }
    }

    /// Does everything that can be done now.
    fn advance(&mut self, now: Instant) -> Option<Leaving> {
        self.forget_delivered();
        self.let_servers_go();
        self.open_ready(now);
        self.settle_jobs();
        self.report(now);
        self.prepare_slot(now);
        self.note_inventory();
        self.fall_silent(now);
        self.may_leave(now)
    }

    fn next_due(&self) -> Option<Instant> {
        let timings = &self.instance.boot.timings;
        let silent_for = |ms: i64| self.last_heard + Duration::from_millis(ms.max(0) as u64);
        let silence = match self.silence {
            Silence::None => Some(silent_for(timings.degraded_after_ms)),
            Silence::Degraded => Some(silent_for(timings.panic_after_ms)),
            Silence::Panic => None,
        };
        let company = self.jobs.values().filter_map(|job| job.company_until).filter(|_| !self.in_flight).min();
        let report = self.report_due.filter(|_| !self.in_flight);
        let closing = self.closing.map(|closing| {
            let now = Instant::now();
            if closing.deliver_until > now { closing.deliver_until } else { closing.die_until }
        });
        [silence, company, report, closing, self.slot_due].into_iter().flatten().min()
    }

    fn report(&mut self, now: Instant) {
        if self.in_flight || self.report_due.is_some_and(|due| due > now) {
            return;
        }
        self.report_due = None;
        for job in self.jobs.values_mut().filter(|job| job.company_until.is_some_and(|until| until <= now)) {
            job.company_until = None;
        }
        let Some(session) = self.session else { return };
        let Some((batch, sent)) = report::collect(&mut self.jobs, &mut self.steps, session, now) else { return };
        self.in_flight = true;
        let (client, events) = (self.line.client.clone(), self.events.clone());
        tokio::spawn(async move {
            let answer = crash_point!("report.post", client.post("/runner/v1/report", &batch).await);
            let _ = events.send(Event::Answered(sent, answer));
        });
    }

    fn note_inventory(&self) {
        let known = |job: &Job| {
            let mut steps = self.steps_of(job.key).filter(|step| !step.is_server()).peekable();
            let ended = steps.peek().is_some() && steps.all(|step| step.ended.is_some());
            KnownJob { job: job.key.job, epoch: job.key.epoch, ended }
        };
        let stubs = self.jobs.values().filter_map(|job| self.kept_stub(job)).collect();
        let mut inventory = self.inventory.lock().expect("no one panics with it");
        inventory.jobs = self.jobs.values().map(known).collect();
        inventory.stubs = stubs;
        inventory.observed_version = self.version;
    }

    /// Of a job that has begun here.
    fn kept_stub(&self, job: &Job) -> Option<KeptStub> {
        let stub = self.journal.stub(job.key)?.clone();
        let mut steps = self.steps_of(job.key).filter(|step| !step.is_server()).peekable();
        let output = steps.peek().and_then(|step| step.folder()).map(std::path::Path::to_owned);
        let (mut started, mut ended) = (false, true);
        for step in steps {
            started |= step.told_started || step.ended.is_some();
            ended &= step.ended.is_some();
        }
        Some(KeptStub { key: job.key, stub, started, ended, output })
    }

    /// The control plane is silent: commands go on and their output is spooled. After the limit each job's `on_lost_control` decides.
    fn fall_silent(&mut self, now: Instant) {
        let timings = &self.instance.boot.timings;
        let silent_ms = now.saturating_duration_since(self.last_heard).as_millis() as i64;
        let silence = match silent_ms {
            ms if ms >= timings.panic_after_ms => Silence::Panic,
            ms if ms >= timings.degraded_after_ms => Silence::Degraded,
            _ => Silence::None,
        };
        if silence <= self.silence {
            return;
        }
        self.silence = silence;
        tracing::warn!(?silence, silent_ms, "the control plane is silent");
        if silence == Silence::Panic {
            for job in self.jobs.values().filter(|job| job.stops_when_lost()) {
                let within_ms = job.stop_within_ms();
                let stop = |step: &Step| step.order(KeeperOrder::Stop { cause: EndCause::ControlLost, within_ms });
                self.steps_of(job.key).for_each(stop);
            }
        }
    }

    fn may_leave(&self, now: Instant) -> Option<Leaving> {
        let alive = self.steps.values().any(Step::has_processes);
        if let Some(closing) = self.closing {
            let undelivered = self.steps.values().any(|step| !step.is_delivered());
            let done = !alive && (!undelivered || now >= closing.deliver_until);
            return (done || now >= closing.die_until).then_some(Leaving::ShutDown);
        }
        // What is waiting for its control plane is not idle, unless it was to be given up.
        let given_up =
            |step: &Step| step.ended.is_some() && self.jobs.get(&step.key.of).is_some_and(|job| job.stops_when_lost());
        let idle = !alive && self.steps.values().all(|step| step.is_delivered() || given_up(step));
        // The control plane gives no work to a runner that is not listed; what has ended here may still be tracked and delivered.
        let unneeded = self.unlisted.is_some() && self.steps.values().all(Step::is_delivered) && !self.places_files();
        ((self.silence == Silence::Panic && idle) || unneeded).then_some(Leaving::Idle)
    }

    fn places_files(&self) -> bool {
        self.jobs.values().any(|job| matches!(job.files, crate::job::Placing::UnderWay(_)))
    }

    /// Ends everything, then leaves; delivers what it can meanwhile.
    fn close(&mut self, deliver: Duration, now: Instant) {
        if self.closing.is_some() {
            return;
        }
        self.closing = Some(Closing { deliver_until: now + deliver, die_until: now + deliver.max(DIE_WITHIN) });
        for key in self.steps.keys().copied().collect::<Vec<_>>() {
            self.cut(key, EndCause::Stopped, "the runner was shut down");
        }
    }

    fn steps_of(&self, job: JobKey) -> impl Iterator<Item = &Step> {
        self.steps.range(job.steps()).map(|(_, step)| step)
    }

    /// What concerns all steps of a job together.
    fn settle_jobs(&mut self) {
        for (key, job) in &mut self.jobs {
            let mut steps = self.steps.range(key.steps()).map(|(_, step)| step).peekable();
            let any = steps.peek().is_some();
            job.tell_stillness(steps);
            job.tell_closed(any);
        }
    }

    fn forget_delivered(&mut self) {
        let done = |step: &&Step| step.is_delivered() && (!step.listed || step.is_server());
        let done: Vec<Key> = self.steps.values().filter(done).map(|step| step.key).collect();
        for key in done {
            if key.is_server() {
                self.forget_socket(key);
            }
            if let Err(error) = self.journal.forget(key) {
                tracing::warn!(%key, %error, "a step that is over stays in the journal");
            }
            if let Some(output) = self.steps.remove(&key).and_then(|step| step.output) {
                tokio::task::spawn_blocking(move || slot::discard(&output.dir));
            }
        }
        let over = |job: &Job| !job.listed && self.steps_of(job.key).next().is_none();
        let over: Vec<JobKey> = self.jobs.values().filter(|job| over(job)).map(|job| job.key).collect();
        for key in over {
            self.jobs.remove(&key);
            if let Err(error) = self.journal.forget_stub(key) {
                tracing::warn!(%key, %error, "the stub of a job that is over stays in the journal");
            }
        }
    }
}
