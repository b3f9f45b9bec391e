//! The worker loop: renews its lease, claims due items, works on them, and sleeps until the next due time or a hint.

use crate::now_ms;
use engine::{Engine, Hint, WorkClass, Worker};
use model::{Failure, Timestamp};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, Semaphore, broadcast, watch};

/// Items of the class `control` worked on at once by one process, without those that have a permit of their provider; those of the class `act`
/// are a setting (`worker.act_permits`).
const CONTROL_PERMITS: usize = 16;
/// Items that have a permit of their provider. The engine gives so few to each provider that only memory bounds their sum.
const ASKS: usize = 4_096;
/// Links wait for most of their time and are never put off for one another: only memory bounds them.
const LINKS: usize = 4_096;
/// A worker that is told to stop waits for so long until the holders of its items have recorded what became of them.
const HOLDERS_MAY_END_WITHIN: Duration = Duration::from_secs(10);
/// The fallback poll for lost hints. No longer than the time between two lease renewals, so that items of a dead worker are taken over in time.
const LONGEST_SLEEP: Duration = Duration::from_secs(5);
const PRESENCE_EVERY: Duration = Duration::from_secs(20);

/// The engine's timer in a process that serves.
pub(crate) struct Clockwork;

impl engine::Timer for Clockwork {
    fn after(&self, ms: i64) -> engine::TimerFuture {
        Box::pin(tokio::time::sleep(Duration::from_millis(ms.max(0) as u64)))
    }
}

/// Works until told to stop, then gives everything back.
pub(crate) async fn work(engine: Engine, name: String, closing: watch::Receiver<bool>) -> Result<(), Failure> {
    let worker = engine.start_worker(name).await?;
    engine.beat(&worker).await?;
    engine.arm_sweep().await?;
    engine.arm_scans().await?;
    let beating = tokio::spawn(beat(engine.clone(), worker.clone(), closing.clone()));
    let acts = engine.context.config.worker.act_permits as usize;
    let classes = [(WorkClass::Control, CONTROL_PERMITS), (WorkClass::Act, acts), (WorkClass::Link, LINKS)];
    let classes = classes.map(|(class, permits)| Class {
        engine: engine.clone(),
        worker: worker.clone(),
        class,
        permits: Arc::new(Semaphore::new(permits)),
        asks: Arc::new(Semaphore::new(ASKS)),
        most: permits as u32,
        freed: Arc::default(),
    });
    let loops = classes.each_ref().map(|class| class.work(closing.clone()));
    let [control, act, link] = loops;
    tokio::join!(control, act, link);
    // A call may take hours, so it is not waited for: its holder cuts it off, records that, and gives its item back.
    engine.cut_links();
    engine.cut_acts();
    let [control, act, link] = classes.each_ref().map(|class| class.permits.acquire_many(class.most));
    let asking = classes[0].asks.acquire_many(ASKS as u32);
    let all = async { tokio::join!(control, act, link, asking) };
    // An item that is still held then is free when the worker's lease is over.
    let _ = tokio::time::timeout(HOLDERS_MAY_END_WITHIN, all).await;
    beating.abort();
    engine.stop_worker(&worker).await
}

/// The loop of one class of work: its permits and due times are its own.
struct Class {
    engine: Engine,
    worker: Worker,
    class: WorkClass,
    permits: Arc<Semaphore>,
    /// Of items that have a permit of their provider: they take no other.
    asks: Arc<Semaphore>,
    most: u32,
    /// An item has ended: one that waits for its org's share, or for its provider's, may begin.
    freed: Arc<Notify>,
}

impl Class {
    async fn work(&self, mut closing: watch::Receiver<bool>) {
        let mut hints = self.engine.hints();
        // Items of a dead worker have no due time until a claim frees them: a claim is made at least this often.
        let mut claim_by = tokio::time::Instant::now();
        let longest = LONGEST_SLEEP.min(beat_every(&self.engine));
        while !*closing.borrow() {
            let net = tokio::time::Instant::now() >= claim_by;
            if net {
                claim_by = tokio::time::Instant::now() + longest;
            }
            let (sleep, due) = match self.turn(net, &mut closing).await {
                Ok(rest) => rest,
                Err(failure) => {
                    tracing::warn!(%failure, "nothing could be claimed");
                    (Duration::from_secs(1), None)
                }
            };
            tokio::select! {
                () = tokio::time::sleep(sleep.min(longest)) => {}
                () = woken(&mut hints, due) => {}
                () = self.freed.notified(), if self.class != WorkClass::Link => {}
                _ = closing.changed() => {}
            }
        }
    }

    /// Takes a permit, claims no more than there are permits for, and starts what is due. `net`: whatever seems to be due.
    async fn turn(&self, net: bool, closing: &mut watch::Receiver<bool>) -> Result<Rest, Failure> {
        let next = self.engine.next_due(self.class).await?;
        let due = next.map(|due| due.ms() - now_ms());
        let seems_due = due.is_some_and(|ms| ms <= 0);
        let claimed = if seems_due || net {
            // Nothing is claimed that would have to wait for a permit.
            tokio::select! {
                permit = self.permits.acquire() => drop(permit.expect("never closed")),
                _ = closing.changed() => return Ok((Duration::ZERO, None)),
            }
            self.engine.claim(&self.worker, self.class, self.permits.available_permits().max(1)).await?
        } else {
            Vec::new()
        };
        if claimed.is_empty() {
            return Ok(match due {
                Some(ms) if ms > 0 => (LONGEST_SLEEP.min(Duration::from_millis(ms as u64 + 1)), next),
                Some(_) => (Duration::from_millis(200), None), // another worker was quicker, or a suspect waits for its turn
                None => (LONGEST_SLEEP, None),
            });
        }
        for item in claimed {
            let permits = if item.asks.is_some() { &self.asks } else { &self.permits };
            let permit = permits.clone().acquire_owned().await.expect("never closed");
            let (engine, freed, class) = (self.engine.clone(), self.freed.clone(), self.class);
            tokio::spawn(async move {
                engine.work_on(item).await;
                drop(permit);
                if class == WorkClass::Act || engine.some_wait_for_providers() {
                    freed.notify_one();
                }
            });
        }
        Ok((Duration::ZERO, None))
    }
}

/// How long to sleep without a hint, and the next due time: a hint about something later does not end the sleep.
type Rest = (Duration, Option<Timestamp>);

/// A hint that work may be due before what is waited for; hints about other things are slept through.
async fn woken(hints: &mut broadcast::Receiver<Hint>, due: Option<Timestamp>) {
    loop {
        match hints.recv().await {
            Ok(Hint::Work(at)) if due.is_some_and(|due| due <= at) => {}
            Ok(Hint::Work(_) | Hint::Everything) | Err(broadcast::error::RecvError::Lagged(_)) => return,
            Ok(_) => {}
            Err(broadcast::error::RecvError::Closed) => return std::future::pending().await,
        }
    }
}

fn beat_every(engine: &Engine) -> Duration {
    Duration::from_millis(engine.beat_every_ms() as u64)
}

async fn beat(engine: Engine, worker: Worker, mut closing: watch::Receiver<bool>) {
    let every = beat_every(&engine);
    while !*closing.borrow() {
        tokio::select! {
            () = tokio::time::sleep(every) => {}
            _ = closing.changed() => return,
        }
        if let Err(failure) = engine.beat(&worker).await {
            tracing::warn!(%failure, "this worker's beat failed");
        }
    }
}

/// What this process hears from machines is written down, so that workers elsewhere do not miss them. Until told to stop.
pub(crate) async fn remember(engine: Engine, mut closing: watch::Receiver<bool>) {
    let missed_after = Duration::from_millis(engine.context.config.timings.unreachable_after_ms as u64);
    let every = PRESENCE_EVERY.min(missed_after / 3);
    while !*closing.borrow() {
        tokio::select! {
            () = tokio::time::sleep(every) => {}
            _ = closing.changed() => {}
        }
        if let Err(failure) = engine.flush_presence().await {
            tracing::warn!(%failure, "signs of life could not be written down");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::adapters::fake::{Call, FakeSettings, Fate as MachineFate};
    use engine::adapters::tool::fake::Fate;
    use engine::adapters::{FakeProvider, FakeTool};
    use engine::run::{Plans, Render, Submission};
    use engine::runner::{Fact, Introduction, What};
    use engine::store::{Database, Installation, Options, Store, WorkKind};
    use futures_util::FutureExt as _;
    use model::job::{Job, JobReason};
    use model::plan::{AgentPlan, StepPlan, TaskPlan};
    use model::run::RunStatus;
    use model::spec::{Command, RunKind, RunSpec};
    use model::step::ToolKind;
    use model::{OrgId, RunId};
    use serde_json::json;
    use std::collections::BTreeMap;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn who_waits_for_something_is_woken_for_what_comes_before_it() {
        let (due, before, after) = (Some(Timestamp(100)), Hint::Work(Timestamp(99)), Hint::Work(Timestamp(100)));
        for (waits_for, hint, wakes) in [
            (due, before, true),
            (due, after, false),
            (due, Hint::Everything, true),
            (due, Hint::Run(RunId(1)), false),
            (None, after, true),
        ] {
            let (bell, mut hints) = broadcast::channel(4);
            bell.send(hint).unwrap();
            assert_eq!(woken(&mut hints, waits_for).now_or_never().is_some(), wakes, "{hint:?} for {waits_for:?}");
        }
        // A receiver that has missed hints wakes.
        let (bell, mut hints) = broadcast::channel(1);
        for _ in 0..3 {
            bell.send(after).unwrap();
        }
        assert!(woken(&mut hints, due).now_or_never().is_some());
    }

    /// Calls that may be under way at once.
    const ACTS: usize = 2;

    struct World {
        engine: Engine,
        org: OrgId,
        tool: Arc<FakeTool>,
        provider: Arc<FakeProvider>,
        /// Calls of the provider `dead` that make a machine. None of them returns.
        spawns: Arc<AtomicUsize>,
        hints: broadcast::Receiver<Hint>,
        worker: tokio::task::JoinHandle<Result<(), Failure>>,
        closing: watch::Sender<bool>,
    }

    impl World {
        /// A worker whose tool hangs, and one of whose providers does.
        async fn new() -> World {
            let tool = Arc::new(FakeTool::new(Box::new(|_, _| Fate::hang())));
            let provider = Arc::new(FakeProvider::new(FakeSettings::default(), Box::new(|_, _| MachineFate::Obey)));
            let spawns = Arc::new(AtomicUsize::new(0));
            let counted = spawns.clone();
            let mut dead = FakeSettings { name: "dead".to_owned(), ..FakeSettings::default() };
            dead.capabilities.max_instances = 100;
            let hangs = move |call: Call, _: &str| {
                counted.fetch_add(usize::from(call == Call::Spawn), Ordering::Relaxed);
                MachineFate::Hang
            };
            let dead = Arc::new(FakeProvider::new(dead, Box::new(hangs)));
            let mut config = engine::Config::default();
            config.worker.act_permits = ACTS as i64;
            let store = Store::open(&Options::new(Database::Memory)).unwrap();
            let context = engine::EngineContext {
                config,
                blob_source: store.blobs().source(),
                installation: Installation::new("testtest", [7; 32]),
                providers: BTreeMap::from([
                    ("fake".to_owned(), provider.clone() as Arc<dyn engine::Provider>),
                    ("dead".to_owned(), dead as Arc<dyn engine::Provider>),
                ])
                .into(),
                tools: BTreeMap::from([(ToolKind::Http, tool.clone() as Arc<dyn engine::Tool>)]),
                models: Default::default(),
                control_urls: engine::ControlUrls::only("test:"),
                control_ca: None,
                presence: engine::Presence::alone(),
                timer: Arc::new(Clockwork),
            };
            let engine = Engine::new(context, store).unwrap();
            let org = engine.ensure_org("default").await.unwrap();
            let (closing, closed) = watch::channel(false);
            let hints = engine.store.hints();
            let worker = tokio::spawn(work(engine.clone(), "one".to_owned(), closed));
            World { engine, org, tool, provider, spawns, hints, worker, closing }
        }

        async fn submit(&self, spec: RunSpec, agents: Vec<AgentPlan>) -> RunId {
            let plans = Plans { agents, ..Plans::default() };
            let submission = Submission { org: self.org, by: None, name: None, spec, plans, start: true };
            let render: Render = Arc::new(|snapshot| snapshot.run.id.to_string().into_bytes());
            let answer = self.engine.submit(submission, None, render).await.unwrap();
            String::from_utf8(answer.body).unwrap().parse().unwrap()
        }

        /// Looks again each time something has changed.
        async fn until<T>(&mut self, mut look: impl AsyncFnMut(&World) -> Option<T>) -> T {
            loop {
                if let Some(found) = look(self).await {
                    return found;
                }
                let _ = self.hints.recv().await;
            }
        }

        /// The run gets a machine of the provider that works, and completes there.
        async fn run_to_its_end(&mut self, run: RunId) {
            let org = self.org;
            let placed = async |world: &World| {
                let job = world.engine.jobs(org, run).await.unwrap().1.pop()?;
                (job.instance.is_some() && !world.provider.machines().is_empty()).then_some(job)
            };
            let job = self.until(placed).await;
            does_its_work(self, &job).await;
            let ended = async |world: &World| {
                let status = world.engine.run(org, run).await.unwrap().status;
                status.is_end().then_some(status)
            };
            assert_eq!(self.until(ended).await, RunStatus::Completed);
        }

        async fn hang(&self, calls: usize) {
            while self.tool.hanging().len() < calls {
                tokio::task::yield_now().await;
            }
        }
    }

    /// The runner of a machine that has just been made registers, and says that the job's command has run well.
    async fn does_its_work(world: &World, job: &Job) {
        let (name, machine) = world.provider.machines().into_iter().next().unwrap();
        let instance = world.engine.recognise(&name, &machine.boot.token).await.unwrap();
        let who = Introduction {
            name,
            nonce: machine.boot.nonce,
            version: "1".to_owned(),
            host: "here".to_owned(),
            containment: None,
            sandbox: None,
        };
        world.engine.register(instance.id, who).await.unwrap();
        let instance = world.engine.find_instance(instance.id).await.unwrap().unwrap();
        let ended = What::Ended {
            reason: JobReason::DoneByRunner,
            exit_code: Some(0),
            signal: None,
            message: None,
            lifecycle_error: None,
            final_offset: 0,
            active_ms: 1,
            ended_ago_ms: 0,
            output: None,
            stdout_tail: None,
            started: true,
            kept: None,
        };
        let fact = Fact { job: job.id, epoch: job.epoch, step: job.step, what: ended };
        let taken = world.engine.report(&instance, vec![fact], Vec::new()).await.unwrap();
        assert!(taken.refused.is_empty(), "{:?}", taken.refused);
    }

    /// All permits of acts are taken by calls that hang: runs on machines are placed and end all the same, and other calls wait for a permit.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn calls_that_hang_take_no_permit_of_other_work() {
        let mut world = World::new().await;
        let plain = RunSpec {
            providers: vec!["fake".to_owned()],
            ..RunSpec::task(Command::Shell("true".to_owned()), "fake", "here")
        };
        let agents = RunSpec { kind: RunKind::Agents, command: Command::Argv(Vec::new()), ..plain.clone() };
        for n in 0..3 * ACTS {
            let step =
                StepPlan { input: json!({ "of": n }), timeout_ms: 3_600_000, ..StepPlan::new("s", ToolKind::Http) };
            let agent = AgentPlan::new("one", vec![TaskPlan::new("all", vec![step])]);
            world.submit(agents.clone(), vec![agent]).await;
        }
        world.hang(ACTS).await;
        let run = world.submit(plain, Vec::new()).await;
        world.run_to_its_end(run).await;
        let hanging = world.tool.hanging();
        assert_eq!(hanging.len(), ACTS, "as many as there are permits, and no more");
        // The next call begins when one has ended.
        assert!(world.tool.tell(hanging[0].number, Fate::answer(json!({}))));
        while world.tool.seen().len() <= ACTS {
            tokio::task::yield_now().await;
        }
        assert!(world.tool.hanging().len() <= ACTS);
        world.worker.abort();
    }

    /// A provider hangs with a call for each of 40 machines: it has its permits and no other, and a run on another provider is placed and ends.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_provider_that_hangs_takes_no_permit_of_other_work() {
        let mut world = World::new().await;
        let at = |provider: &str| RunSpec {
            providers: vec![provider.to_owned()],
            ..RunSpec::task(Command::Shell("true".to_owned()), provider, "here")
        };
        for _ in 0..40 {
            world.submit(at("dead"), Vec::new()).await;
        }
        let share = engine::work::ASKS_OF_ONE_PROVIDER as usize;
        while world.spawns.load(Ordering::Relaxed) < share {
            tokio::task::yield_now().await;
        }
        let run = world.submit(at("fake"), Vec::new()).await;
        world.run_to_its_end(run).await;
        assert_eq!(world.spawns.load(Ordering::Relaxed), share, "as many as it has permits");
        world.worker.abort();
    }

    /// What a process does on SIGTERM: calls under way are cut off, their ends recorded, and their items given back, so that no other worker has to
    /// wait until its lease is over.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_worker_that_is_told_to_stop_cuts_its_calls_off_and_gives_their_items_back() {
        let mut world = World::new().await;
        let spec = RunSpec {
            kind: RunKind::Agents,
            providers: vec!["fake".to_owned()],
            ..RunSpec::task(Command::Argv(Vec::new()), "fake", "here")
        };
        let mut runs = Vec::new();
        for idempotent in [true, false] {
            let step = StepPlan { idempotent, timeout_ms: 3_600_000, ..StepPlan::new("s", ToolKind::Http) };
            let agent = AgentPlan::new("one", vec![TaskPlan::new("all", vec![step])]);
            runs.push(world.submit(spec.clone(), vec![agent]).await);
        }
        world.hang(ACTS).await;
        world.closing.send(true).unwrap();
        (&mut world.worker).await.unwrap().unwrap();
        let seen: Vec<_> = world.tool.seen().values().map(|tally| (tally.calls, tally.cut)).collect();
        assert_eq!(seen, [(1, 1), (1, 1)], "each was called once and cut off");
        for run in runs {
            let agent = world.engine.tree(world.org, run).await.unwrap().agents[0].id;
            let of = move |tx: &mut engine::store::Tx| engine::store::work::find(tx, WorkKind::Agent, agent.0);
            let item = world.engine.store.read("test.item", of).await.unwrap().unwrap();
            assert_eq!((item.owner, item.deaths), (None, 0), "it was given back, and its holder did not die of it");
        }
    }
}
