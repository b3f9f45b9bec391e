//! The bench: a real engine over a database in memory, a provider whose faults are scripted, a clock that only tests move.
//! A crash loses everything but the database and the machines; the bench then starts the control plane again.

use crate::machines::{Plan, Runners};
use crate::slow::SlowProvider;
use adapters::fake::{Call, FakeSettings, Fate};
use adapters::{FakeProvider, FakeTool};
use engine::instance::InstanceOverview;
use engine::run::{Action, KeyedResponse, Render, Submission};
use engine::view::RunSnapshot;
use engine::{Config, Engine, EngineContext, Presence, Provider};
use model::job::Job;
use model::run::{Phase, Run};
use model::spec::{BlobSource, Command, RunSpec};
use model::step::ToolKind;
use model::time::{MINUTE, SECOND};
use model::{Credits, Failure, InstanceId, OrgId, RunId, Timestamp};
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use store::blob::Blobs;
use store::idempotency::Key;
use store::{Clock, CrashHook, Database, Installation, Item, Moment, Options, Store, WorkClass, WorkKind, Worker};

pub const PRICE: Credits = Credits(36_000_000); // 10,000 micro-credits a second: windows are easy to read
const BEGINNING_MS: i64 = 1_000_000_000;
/// Beats may not be further apart than 20 s, or the gap is an outage of ours.
const LONGEST_STEP_MS: i64 = 19 * SECOND;
/// As the server does it.
const FLUSH_EVERY_MS: i64 = 20 * SECOND;
/// The life of a lease, and some beats.
const FOUND_OUT_MS: i64 = 40 * SECOND;
/// More items at one moment than this, and something wakes itself for ever.
const MOST_ITEMS: usize = 300;

pub struct Bench {
    clock: Arc<Hands>,
    pub crashes: Arc<Crashes>,
    pub calls: Arc<Mutex<Vec<Call>>>,
    pub store: Store,
    pub provider: Arc<FakeProvider>,
    /// What steps of agents call.
    pub tool: Arc<FakeTool>,
    /// What is told of questions.
    notifier: Option<Arc<FakeTool>>,
    /// Items whose holder waits for something in the world.
    under_way: Vec<Pin<Box<dyn Future<Output = ()>>>>,
    /// While true, a spawn is under way and does not come to an end.
    pub spawns_hang: Arc<AtomicBool>,
    pub config: Config,
    pub engine: Engine,
    pub worker: Worker,
    pub org: OrgId,
    pub runners: Runners,
    /// Every claimed item is worked on twice.
    pub twice: bool,
    /// The settings know no provider.
    bare: bool,
    /// Of the blob store, as the engine sees it.
    blob_source: BlobSource,
    /// A worker has not learnt what became of its write.
    finds_out: bool,
    /// How often the control plane was started.
    pub starts: usize,
    keys: usize,
    flushed_at: Timestamp,
}

/// Polled once: an inline store and a fake provider answer at once.
pub fn now<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("nothing here waits for anything"),
    }
}

pub struct Hands(AtomicI64);

/// A timer whose time the test moves.
struct HandsTimer(Arc<Hands>);

impl engine::Timer for HandsTimer {
    fn after(&self, ms: i64) -> engine::TimerFuture {
        let (hands, until) = (self.0.clone(), self.0.now() + ms);
        Box::pin(std::future::poll_fn(move |_| if hands.now() >= until { Poll::Ready(()) } else { Poll::Pending }))
    }
}

impl Clock for Hands {
    fn now(&self) -> Timestamp {
        Timestamp(self.0.load(Ordering::Relaxed))
    }
}

/// What goes wrong at one write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Harm {
    /// The control plane dies before the commit, or after it.
    Dies(Moment),
    /// It is committed, and its caller, which lives on, does not learn so.
    Unheard,
}

/// Where something goes wrong: at the n-th write from now.
#[derive(Default)]
pub struct Crashes {
    armed: Mutex<Option<(usize, Harm)>>,
    pub writes: Mutex<Vec<&'static str>>,
    seen: AtomicUsize,
    pub dead: AtomicBool,
    /// A caller has just not learnt what became of its write.
    unheard: AtomicBool,
}

impl Crashes {
    pub fn arm(&self, write: usize, moment: Moment) {
        self.arm_with(write, Harm::Dies(moment));
    }
    pub fn arm_with(&self, write: usize, harm: Harm) {
        *self.armed.lock().unwrap() = Some((write, harm));
        self.seen.store(0, Ordering::Relaxed);
    }
    pub fn has_struck(&self) -> bool {
        self.armed.lock().unwrap().is_none()
    }
    /// From here on writes are counted.
    pub fn count(&self) {
        self.writes.lock().unwrap().clear();
    }
    fn hook(self: Arc<Crashes>) -> CrashHook {
        Arc::new(move |name, moment| {
            if self.dead.load(Ordering::Relaxed) {
                return moment == Moment::Before; // a dead process writes nothing
            }
            if moment == Moment::Before {
                self.writes.lock().unwrap().push(name);
                self.seen.fetch_add(1, Ordering::Relaxed);
            }
            let here = self.seen.load(Ordering::Relaxed) - 1;
            let strikes = |(write, harm): &mut (usize, Harm)| {
                let at = if let Harm::Dies(at) = *harm { at } else { Moment::After };
                (*write, at) == (here, moment)
            };
            let struck = self.armed.lock().unwrap().take_if(strikes);
            match struck {
                Some((_, Harm::Dies(_))) => self.dead.store(true, Ordering::Relaxed),
                Some((_, Harm::Unheard)) => self.unheard.store(true, Ordering::Relaxed),
                None => {}
            }
            struck.is_some()
        })
    }
}

impl Bench {
    pub fn new() -> Bench {
        Bench::with(settings(4), Config::default())
    }

    /// Holds and idle times are short, so that a whole life is a few minutes.
    pub fn brief() -> Bench {
        Bench::brief_with(settings(2))
    }

    pub fn brief_with(settings: FakeSettings) -> Bench {
        let mut config = Config::default();
        config.timings.idle_duration_ms = MINUTE;
        config.timings.idle_duration_paid_ms = MINUTE;
        config.manifests.launch_run_ms = 2 * MINUTE;
        config.features = crate::features::known();
        (config.holds.default_debug_hold_ms, config.holds.failure_debug_hold_ms) = (20 * SECOND, 40 * SECOND);
        Bench::with(settings, config)
    }

    pub fn with(settings: FakeSettings, config: Config) -> Bench {
        let (clock, crashes) = (Arc::new(Hands(AtomicI64::new(BEGINNING_MS))), Arc::new(Crashes::default()));
        let store = Store::inline(&Options {
            clock: clock.clone(),
            crash: Some(crashes.clone().hook()),
            ..Options::new(Database::Memory)
        })
        .unwrap();
        let provider = Arc::new(FakeProvider::new(settings, Box::new(|_, _| Fate::Obey)));
        let spawns_hang = Arc::new(AtomicBool::new(false));
        let tool = Arc::new(FakeTool::obedient());
        let engine = open(&config, &provider, &tool, &spawns_hang, &store, &clock);
        let org = now(engine.ensure_org("bench")).unwrap();
        let worker = start(&engine).unwrap();
        let mut bench = Bench {
            clock,
            crashes,
            calls: Arc::default(),
            store,
            provider,
            tool,
            notifier: None,
            under_way: Vec::new(),
            spawns_hang,
            config,
            engine,
            worker,
            org,
            runners: Runners::default(),
            twice: false,
            bare: false,
            blob_source: BlobSource::ControlPlane,
            finds_out: false,
            starts: 1,
            keys: 0,
            flushed_at: Timestamp(BEGINNING_MS),
        };
        bench.fate(|_, _, _| Fate::Obey);
        bench.crashes.count();
        bench
    }

    /// Decides every call from now on: which call, the how-manieth of its kind, and of which machine.
    pub fn fate(&mut self, mut decide: impl FnMut(Call, usize, &str) -> Fate + Send + 'static) {
        let calls = self.calls.clone();
        calls.lock().unwrap().clear();
        self.provider.decide_by(Box::new(move |call, about| {
            let mut calls = calls.lock().unwrap();
            let before = calls.iter().filter(|earlier| **earlier == call).count();
            calls.push(call);
            decide(call, before, about)
        }));
    }

    pub fn at(&self) -> Timestamp {
        self.clock.now()
    }

    /// An outage: time passes without a control plane, without heartbeats and work.
    pub fn outage(&mut self, ms: i64) {
        self.clock.0.fetch_add(ms, Ordering::Relaxed);
        self.restart();
    }

    /// The clock is set; the next beat notices it.
    pub fn jump(&mut self, ms: i64) {
        self.clock.0.fetch_add(ms, Ordering::Relaxed);
        self.beat();
    }

    /// Time in which we live and whatever is due waits for its turn.
    pub fn pass(&mut self, ms: i64) {
        for _ in 0..ms / LONGEST_STEP_MS {
            self.clock.0.fetch_add(LONGEST_STEP_MS, Ordering::Relaxed);
            self.beat();
        }
    }

    /// Time passes as it does: beats, heartbeats, due work, runners that do what they are told.
    pub fn advance(&mut self, ms: i64) {
        let until = self.at() + ms;
        self.settle();
        while self.at() < until {
            let due = |class| now(self.engine.next_due(class)).unwrap();
            let due = WorkClass::ALL.into_iter().filter_map(due).min();
            let due = due.map_or(i64::MAX, |due| due.ms() - self.at().ms());
            let step = due.clamp(1, LONGEST_STEP_MS).min(until.since(self.at()));
            self.clock.0.fetch_add(step, Ordering::Relaxed);
            self.beat();
            self.settle();
        }
    }

    fn beat(&mut self) {
        let beaten = now(self.engine.beat(&self.worker));
        self.unless_dead(beaten);
        self.heartbeats();
        if self.at().since(self.flushed_at) >= FLUSH_EVERY_MS {
            self.flushed_at = self.at();
            let flushed = now(self.engine.flush_presence());
            self.unless_dead(flushed);
        }
    }

    /// Claims and works until nothing is due.
    pub fn drain(&mut self) -> bool {
        let mut busy = false;
        for _ in 0..MOST_ITEMS {
            let went_on = self.poll_under_way();
            if self.start_if_dead() {
                continue;
            }
            let Some(items) = self.claim_all() else { continue };
            if items.is_empty() && !went_on {
                return busy;
            }
            busy = true;
            for item in items {
                self.work_on(item);
                if self.start_if_dead() {
                    break; // what else was claimed died with its holder
                }
            }
        }
        panic!("something wakes itself for ever: {:?}", self.crashes.writes.lock().unwrap().iter().rev().take(20));
    }

    /// What is due, of every class; none if the control plane died of it.
    fn claim_all(&mut self) -> Option<Vec<Item>> {
        let (mut items, starts) = (Vec::new(), self.starts);
        for class in WorkClass::ALL {
            let claimed = now(self.engine.claim(&self.worker, class, 32));
            items.extend(self.unless_dead(claimed).unwrap_or_default());
            if self.starts != starts {
                return None;
            }
        }
        Some(items)
    }

    fn work_on(&mut self, item: Item) {
        let before = self.under_way.len();
        for _ in 0..if self.twice { 2 } else { 1 } {
            let engine = self.engine.clone();
            self.under_way.push(Box::pin(async move { engine.work_on(item).await }));
            self.poll_under_way();
        }
        let waits = matches!(item.kind, WorkKind::Agent | WorkKind::Notify | WorkKind::OrphanNotice);
        let waits = waits || item.asks.is_some();
        assert!(waits || self.under_way.len() <= before, "only acts and what calls a provider wait: {item:?}");
    }

    /// An orderly end of the process: it claims nothing more, cuts its acts off and gives everything back.
    pub fn close(&mut self) {
        self.engine.cut_acts();
        self.poll_under_way();
        assert!(self.under_way.is_empty(), "every holder has come to its end");
        now(self.engine.stop_worker(&self.worker)).unwrap();
    }

    /// What is under way goes on; nothing is claimed.
    pub fn poll(&mut self) {
        self.poll_under_way();
    }

    /// Time in which nothing happens, not even a beat.
    pub fn elapse(&mut self, ms: i64) {
        self.clock.0.fetch_add(ms, Ordering::Relaxed);
    }

    /// Goes on with what is under way; true if something came to its end.
    fn poll_under_way(&mut self) -> bool {
        let before = self.under_way.len();
        let mut context = Context::from_waker(Waker::noop());
        self.under_way.retain_mut(|work| work.as_mut().poll(&mut context).is_pending());
        self.under_way.len() != before
    }

    /// Until neither we nor the runners have anything to do at this moment; or, when a worker has not learnt what became of its write, until
    /// it has found out.
    pub fn settle(&mut self) {
        for _ in 0..100 {
            let (worked, acted) = (self.drain(), self.runners_act());
            if !worked && !acted {
                if std::mem::take(&mut self.finds_out) {
                    self.advance(FOUND_OUT_MS);
                }
                return;
            }
        }
        panic!("the runners and the control plane never come to rest");
    }

    /// The result, unless it was not heard or the control plane died meanwhile: then it is started again.
    pub fn unless_dead<T>(&mut self, result: Result<T, Failure>) -> Option<T> {
        match (self.revive(), result) {
            (true, _) => None,
            (false, Ok(value)) => Some(value),
            (false, Err(failure)) => panic!("{failure:?}"),
        }
    }

    /// Starts the control plane again if it is dead. True: what was asked last was not answered.
    pub fn revive(&mut self) -> bool {
        let unheard = self.crashes.unheard.load(Ordering::Relaxed);
        self.start_if_dead() || unheard
    }

    /// What workers do not learn they find out by themselves.
    fn start_if_dead(&mut self) -> bool {
        self.finds_out |= self.crashes.unheard.swap(false, Ordering::Relaxed);
        let dead = self.crashes.dead.load(Ordering::Relaxed);
        if dead {
            self.restart();
        }
        dead
    }

    /// Another process over the same database: nothing that was in memory is left, every stream is broken.
    pub fn restart(&mut self) {
        self.starts += 1;
        self.crashes.dead.store(false, Ordering::Relaxed);
        self.under_way.clear();
        self.engine = open(&self.config, &self.provider, &self.tool, &self.spawns_hang, &self.store, &self.clock);
        let context = Arc::get_mut(&mut self.engine.context).expect("nobody else has it yet");
        context.blob_source = self.blob_source;
        if self.bare {
            context.providers = Default::default();
        }
        if let Some(program) = self.notifier.clone() {
            self.notifying(program);
        }
        self.runners.disconnect();
        match start(&self.engine) {
            Ok(worker) => self.worker = worker,
            Err(_) => return self.restart(), // died again, while it started
        }
        self.crashes.dead.store(false, Ordering::Relaxed);
    }

    /// The database is lost, and another one is made for the same installation. Machines and what runs there stay.
    pub fn lose_database(&mut self) {
        self.lose_database_for("bench");
    }

    /// The new one has another org.
    pub fn lose_database_for(&mut self, org: &str) {
        self.store = Store::inline(&Options {
            clock: self.clock.clone(),
            crash: Some(self.crashes.clone().hook()),
            first_id: self.at().ms(),
            ..Options::new(Database::Memory)
        })
        .unwrap();
        self.restart();
        self.org = now(self.engine.ensure_org(org)).unwrap();
    }

    /// From now on this program is told of questions.
    pub fn notifying(&mut self, program: Arc<FakeTool>) {
        self.engine = self.engine.clone().notifying(program.clone(), 30 * SECOND);
        self.notifier = Some(program);
    }

    /// Another process whose settings know no provider any more.
    pub fn restart_without_providers(&mut self) {
        self.bare = true;
        self.restart();
    }

    /// Another process, whose blob store machines can read themselves.
    pub fn restart_with_direct_blobs(&mut self) {
        self.blob_source = Blobs::fake(BlobSource::Direct).source();
        self.restart();
    }

    /// Another process whose settings know the provider again.
    pub fn restart_with_providers(&mut self) {
        self.bare = false;
        self.restart();
    }

    pub fn key(&mut self) -> Key {
        self.keys += 1;
        let hash = [self.keys as u8; 32];
        Key {
            org: self.org,
            route: "POST /test".to_owned(),
            key: format!("key-{}", self.keys),
            hash,
            request: String::new(),
        }
    }

    /// A client that repeats its request with the same key until it is answered.
    pub fn submit(&mut self, spec: RunSpec) -> RunId {
        let key = self.key();
        let answer = self.submit_with(spec, key).unwrap();
        String::from_utf8(answer.body).unwrap().parse().unwrap()
    }

    /// A run whose command has started and does not end by itself.
    pub fn running(&mut self, spec: RunSpec) -> RunId {
        self.runners.plan = Some(Plan::Run);
        let run = self.submit(spec);
        self.settle();
        assert_eq!(self.run(run).phase, Some(Phase::Running));
        run
    }

    pub fn submit_with(&mut self, spec: RunSpec, key: Key) -> Result<KeyedResponse, Failure> {
        loop {
            let submission = Submission {
                org: self.org,
                by: None,
                name: None,
                spec: spec.clone(),
                plans: Default::default(),
                start: true,
            };
            let answer = now(self.engine.submit(submission, Some(key.clone()), shown()));
            if !self.revive() {
                return answer;
            }
        }
    }

    pub fn act(&mut self, run: RunId, action: Action) -> Result<(), Failure> {
        let key = self.key();
        loop {
            let answer = now(self.engine.act_on(self.org, run, action, Some(key.clone()), shown()));
            if !self.revive() {
                return answer.map(drop);
            }
        }
    }

    pub fn cancel(&mut self, run: RunId) {
        self.act(run, Action::Cancel { abort: false }).unwrap();
    }

    pub fn terminate(&mut self, id: InstanceId, force: bool) -> Result<(), Failure> {
        let key = self.key();
        self.terminate_with(id, force, key).map(drop)
    }

    pub fn terminate_with(&mut self, id: InstanceId, force: bool, key: Key) -> Result<KeyedResponse, Failure> {
        loop {
            let shown = Arc::new(|snapshot: &InstanceOverview| snapshot.workflow_state.clone().into_bytes());
            let answer =
                now(self.engine.terminate_instance((self.org, "a test".into()), id, force, Some(key.clone()), shown));
            if !self.revive() {
                return answer;
            }
        }
    }

    pub fn snapshot_of(&self, run: RunId) -> Option<RunSnapshot> {
        now(self.engine.snapshot(self.org, run)).ok()
    }
    pub fn snapshot(&self, run: RunId) -> RunSnapshot {
        now(self.engine.snapshot(self.org, run)).unwrap()
    }
    pub fn run(&self, run: RunId) -> Run {
        self.snapshot(run).run
    }
    pub fn jobs(&self, run: RunId) -> Vec<Job> {
        now(self.engine.jobs(self.org, run)).unwrap().1
    }
    pub fn job(&self, run: RunId) -> Job {
        self.jobs(run).pop().expect("it has a job")
    }
    pub fn balance(&self) -> store::org::Org {
        now(self.engine.balance(self.org)).unwrap()
    }
}

pub fn settings(max_instances: i64) -> FakeSettings {
    let mut settings = FakeSettings { price_per_hour: PRICE, ..FakeSettings::default() };
    settings.capabilities.max_instances = max_instances;
    settings
}

pub fn shown() -> Render {
    Arc::new(|snapshot| snapshot.run.id.to_string().into_bytes())
}

fn open(
    config: &Config,
    provider: &Arc<FakeProvider>,
    tool: &Arc<FakeTool>,
    hangs: &Arc<AtomicBool>,
    store: &Store,
    clock: &Arc<Hands>,
) -> Engine {
    let provider: Arc<dyn Provider> = Arc::new(SlowProvider { near: provider.clone(), hangs: hangs.clone() });
    let context = EngineContext {
        config: config.clone(),
        installation: Installation::new("b3nchm4n", [7; 32]),
        providers: BTreeMap::from([("fake".to_owned(), provider)]).into(),
        tools: [ToolKind::Http, ToolKind::Llm, ToolKind::Mcp]
            .map(|kind| (kind, tool.clone() as Arc<dyn engine::Tool>))
            .into(),
        models: Default::default(),
        control_urls: engine::ControlUrls::only("bench:"),
        control_ca: None,
        presence: Presence::alone(),
        blob_source: store.blobs().source(),
        timer: Arc::new(HandsTimer(clock.clone())),
    };
    Engine::new(context, store.clone()).unwrap().reading(crate::call_steps::document)
}

/// As the server does it.
fn start(engine: &Engine) -> Result<Worker, Failure> {
    now(async {
        engine.look_for_everyone().await?;
        let worker = engine.start_worker("only".to_owned()).await?;
        engine.beat(&worker).await?;
        engine.arm_sweep().await?;
        Ok(worker)
    })
}

pub fn spec() -> RunSpec {
    RunSpec { providers: vec!["fake".to_owned()], ..RunSpec::task(Command::Shell("true".to_owned()), "fake", "here") }
}
