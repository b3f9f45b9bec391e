//! Two processes at once on PostgreSQL: jobs of one run are placed in one transaction, without a deadlock; a question that many
//! people answer has one taker, there and on SQLite, and so has an offered step.

#[allow(dead_code, reason = "the tests of the store use more of it")]
#[path = "../../store/tests/support/postgres.rs"]
mod postgres;

use adapters::fake::{FakeSettings, Fate, MachineState};
use adapters::{FakeProvider, Provider};
use calls::cached_run::{FUNCTION, RunValue, Stream};
use calls::call::Call;
use calls::function::Function;
use calls::key::{Epoch, execution_key};
use calls::reach::available;
use engine::cache::Garbage;
use engine::durable::{Answered, Asker, End, Request, StepRender};
use engine::offer::{Poll, Taken};
use engine::question::{Verdict, Word};
use engine::run::{Action, Plans, Render, Submission};
use engine::runner::{Fact, Introduction, What};
use engine::{Config, Engine, EngineContext, Presence};
use model::execution::{Execution, ExecutionEvent, apply};
use model::instance::Instance;
use model::job::{Job, JobReason, JobStatus};
use model::plan::{AgentPlan, StepPlan, TaskPlan};
use model::run::RunStatus;
use model::spec::{Command, RunSpec};
use model::step::{StepWait, ToolKind};
use model::time::HOUR;
use model::{Credits, Failure, OrgId, Outcome, QuestionId, Refused, RunId, StepId};
use postgres::Postgres;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use store::{Database, Installation, Options, Store};

const MACHINES: usize = 6;
const CLIENTS: usize = 4;
/// Runs whose two jobs were placed in their submission, side by side with the runs of the other clients.
const PLACED_AT_ONCE: usize = 100;
/// A client that has submitted so many runs will not find two free machines often enough.
const MOST_RUNS_EACH: usize = 250;
/// A run that is not done after so many looks never will be.
const MOST_ROUNDS: usize = 2_000;

struct Never;

impl engine::Timer for Never {
    fn after(&self, _: i64) -> engine::TimerFuture {
        Box::pin(std::future::pending())
    }
}

/// A control plane over this database. Of several each has a store, and thus connections and ids, of its own.
fn control_plane(database: Database, blobs: &Path, provider: &Arc<FakeProvider>) -> Arc<Engine> {
    control_plane_of(Config::default(), database, blobs, provider)
}

fn control_plane_of(config: Config, database: Database, blobs: &Path, provider: &Arc<FakeProvider>) -> Arc<Engine> {
    let options = Options { blobs: Some(blobs.to_owned()), lease_ms: HOUR, ..Options::new(database) };
    let store = Store::open(&options).unwrap();
    let context = EngineContext {
        config,
        installation: Installation::new("t3stt3st", [7; 32]),
        providers: BTreeMap::from([("fake".to_owned(), provider.clone() as Arc<dyn Provider>)]).into(),
        tools: Default::default(),
        models: Default::default(),
        control_urls: engine::ControlUrls::only("test:"),
        control_ca: None,
        presence: Presence::alone(),
        blob_source: store.blobs().source(),
        timer: Arc::new(Never),
    };
    Arc::new(Engine::new(context, store).unwrap())
}

async fn submit(engine: &Engine, org: OrgId, nodes: i64, gigabytes: i64) -> RunId {
    let spec: RunSpec = serde_json::from_value(json!({
        "kind": "task", "command": { "shell": "true" }, "provider": "fake", "region": "here", "stop_duration_ms": 0,
        "priority": "normal", "on_lost_control": "finish", "failure_mode": "fail-fast", "nodes": nodes,
        "resources": { "memory_bytes": gigabytes << 30 },
    }))
    .unwrap();
    let render: Render = Arc::new(|snapshot| snapshot.run.id.to_string().into_bytes());
    let answer = engine
        .submit(Submission { org, by: None, name: None, spec, plans: Default::default(), start: true }, None, render)
        .await
        .unwrap();
    String::from_utf8(answer.body).unwrap().parse().unwrap()
}

/// Does all that is due.
async fn work(engine: &Engine, worker: &store::Worker) {
    loop {
        let mut items = Vec::new();
        for class in store::WorkClass::ALL {
            items.extend(engine.claim(worker, class, 32).await.unwrap());
        }
        if items.is_empty() {
            return;
        }
        for item in items {
            engine.work_on(item).await;
        }
    }
}

async fn register(engine: &Engine, provider: &FakeProvider) {
    for (name, machine) in provider.machines() {
        assert_eq!(machine.state, MachineState::Running);
        let boot = machine.boot;
        let instance = engine.recognise(&name, &boot.token).await.unwrap();
        let who = Introduction {
            name,
            nonce: boot.nonce,
            version: "1".to_owned(),
            host: "here".to_owned(),
            containment: None,
            sandbox: None,
        };
        engine.register(instance.id, who).await.unwrap();
    }
}

/// The runner of a placed job says that its command has run well.
async fn finish(engine: &Engine, job: &Job) {
    assert!(is_heard(engine, job).await);
}

/// The same; false if the job had ended before.
async fn is_heard(engine: &Engine, job: &Job) -> bool {
    let instance: Instance = engine.find_instance(job.instance.unwrap()).await.unwrap().unwrap();
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
    let taken = engine.report(&instance, vec![fact], Vec::new()).await.unwrap();
    taken.refused.is_empty()
}

/// One client: submits a run of two ranks, finishes what is placed, until it has completed.
async fn drive(engine: Arc<Engine>, worker: store::Worker, org: OrgId) -> bool {
    let run = submit(&engine, org, 2, 1).await;
    let placed = engine.jobs(org, run).await.unwrap().1.iter().all(|job| job.instance.is_some());
    for _ in 0..MOST_ROUNDS {
        let (seen, jobs) = engine.jobs(org, run).await.unwrap();
        if seen.status.is_end() {
            assert_eq!((seen.status, jobs.len()), (RunStatus::Completed, 2), "{seen:?}");
            assert_eq!(jobs.iter().map(|job| job.agent).collect::<BTreeSet<_>>().len(), 2);
            return placed;
        }
        for job in jobs.iter().filter(|job| job.status == JobStatus::Provisioning) {
            finish(&engine, job).await;
        }
        work(&engine, &worker).await;
        tokio::task::yield_now().await;
    }
    panic!("{run} never ends: {:?}", engine.jobs(org, run).await)
}

#[test]
fn two_ranks_of_a_run_are_placed_in_one_transaction_and_nobody_waits_in_a_circle() {
    let postgres = Postgres::start();
    let url = postgres.database();
    let mut settings = FakeSettings::default();
    settings.capabilities.max_instances = MACHINES as i64;
    let provider = Arc::new(FakeProvider::new(settings, Box::new(|_, _| Fate::Obey)));
    let blobs = tempfile::tempdir().unwrap();
    let engines = [(); 2].map(|()| control_plane(Database::Postgres(url.clone()), blobs.path(), &provider));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_all().build().unwrap();
    runtime.block_on(async {
        let org = engines[0].ensure_org("test").await.unwrap();
        let mut workers = Vec::new();
        for (engine, name) in engines.iter().zip(["one", "two"]) {
            let worker = engine.start_worker(name.to_owned()).await.unwrap();
            engine.beat(&worker).await.unwrap();
            workers.push(worker);
        }
        // The smaller machines fit better and are younger.
        let mut earlier = Vec::new();
        for gigabytes in [8, 4] {
            earlier.push(submit(&engines[0], org, MACHINES as i64 / 2, gigabytes).await);
        }
        work(&engines[0], &workers[0]).await;
        register(&engines[0], &provider).await;
        for run in earlier {
            for job in engines[0].jobs(org, run).await.unwrap().1 {
                finish(&engines[0], &job).await;
            }
        }
        assert_eq!(provider.machines().len(), MACHINES);
        let at_once = Arc::new(AtomicUsize::new(0));
        let clients: Vec<_> = (0..CLIENTS)
            .map(|client| {
                let (engine, worker) = (engines[client % 2].clone(), workers[client % 2].clone());
                let at_once = at_once.clone();
                tokio::spawn(async move {
                    for _ in 0..MOST_RUNS_EACH {
                        if at_once.load(Ordering::Relaxed) >= PLACED_AT_ONCE {
                            return;
                        }
                        let placed = drive(engine.clone(), worker.clone(), org).await;
                        at_once.fetch_add(usize::from(placed), Ordering::Relaxed);
                    }
                })
            })
            .collect();
        for client in clients {
            client.await.unwrap();
        }
        let at_once = at_once.load(Ordering::Relaxed);
        assert!(at_once >= PLACED_AT_ONCE, "only {at_once} runs found two free machines in their submission");
        assert_eq!(postgres.deadlocks(), 0);
        let audit = engines[0].audit().await.unwrap();
        assert!(audit.broken.is_empty(), "{:#?}", audit.broken);
    });
}

const APPROVERS: usize = 20;

/// A run whose only step asks a person.
async fn submit_asking(engine: &Engine, org: OrgId) -> RunId {
    let ask = StepPlan { input: json!({ "message": "go?" }), ..StepPlan::new("ask", ToolKind::Approval) };
    submit_steps(engine, org, vec![ask]).await
}

async fn submit_steps(engine: &Engine, org: OrgId, steps: Vec<StepPlan>) -> RunId {
    let spec: RunSpec = serde_json::from_value(json!({
        "kind": "agents", "command": { "argv": [] }, "provider": "fake", "region": "here", "stop_duration_ms": 0,
        "priority": "normal", "on_lost_control": "finish", "failure_mode": "fail-fast",
    }))
    .unwrap();
    let agents = vec![AgentPlan::new("one", vec![TaskPlan { parallel: 3, ..TaskPlan::new("all", steps) }])];
    let render: Render = Arc::new(|snapshot| snapshot.run.id.to_string().into_bytes());
    let plans = Plans { agents, ..Plans::default() };
    let submission = Submission { org, by: None, name: None, spec, plans, start: true };
    let answer = engine.submit(submission, None, render).await.unwrap();
    String::from_utf8(answer.body).unwrap().parse().unwrap()
}

async fn approve(engine: Arc<Engine>, org: OrgId, id: QuestionId, client: usize) -> Option<usize> {
    let verdict = Verdict::Approve { answer: Some(json!(client)), input: None };
    let word = Word { by: format!("client-{client}"), verdict, note: None };
    match engine.answer(org, id, word, None).await {
        Ok(_) => Some(client),
        Err(Failure::Refused(Refused::NotFrom { .. })) => None,
        Err(failure) => panic!("{failure:?}"),
    }
}

/// Of all that approve at the same moment one is told that it was his, and his answer is the step's output.
async fn one_taker(engines: &[Arc<Engine>]) {
    let engine = &engines[0];
    let org = engine.ensure_org("test").await.unwrap();
    let worker = engine.start_worker("one".to_owned()).await.unwrap();
    engine.beat(&worker).await.unwrap();
    let run = submit_asking(engine, org).await;
    work(engine, &worker).await;
    let open = engine.questions(org, StepWait::Approval, true, i64::MAX, 10).await.unwrap();
    assert_eq!(open.len(), 1);
    let clients: Vec<_> = (0..APPROVERS)
        .map(|client| tokio::spawn(approve(engines[client % engines.len()].clone(), org, open[0].id, client)))
        .collect();
    let mut takers = Vec::new();
    for client in clients {
        takers.extend(client.await.unwrap());
    }
    assert_eq!(takers.len(), 1, "{takers:?}");
    work(engine, &worker).await;
    let step = engine.tree(org, run).await.unwrap().steps[0].id;
    assert_eq!(engine.step(org, run, step).await.unwrap().output, Some(json!(takers[0])));
    assert_eq!(engine.run(org, run).await.unwrap().status, RunStatus::Completed);
    let audit = engine.audit().await.unwrap();
    assert!(audit.broken.is_empty(), "{:#?}", audit.broken);
}

/// What is told once of a control plane on SQLite, and once of two that share a PostgreSQL.
fn on_both(story: impl AsyncFn(&[Arc<Engine>])) {
    let postgres = Postgres::start();
    let url = postgres.database();
    let folder = tempfile::tempdir().unwrap();
    let provider = Arc::new(FakeProvider::new(FakeSettings::default(), Box::new(|_, _| Fate::Obey)));
    let open = |database| control_plane(database, folder.path(), &provider);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_all().build().unwrap();
    runtime.block_on(async {
        story(&[open(Database::File(folder.path().join("remuda.db")))]).await;
        story(&[open(Database::Postgres(url.clone())), open(Database::Postgres(url.clone()))]).await;
    });
    assert_eq!(postgres.deadlocks(), 0);
}

#[test]
fn of_twenty_clients_that_approve_at_once_one_is_the_taker() {
    on_both(async |planes| one_taker(planes).await);
}

/// Each offered step has one taker, whose report ends it; runs are taken from side by side.
async fn one_taker_each(engines: &[Arc<Engine>]) {
    let engine = &engines[0];
    let org = engine.ensure_org("test").await.unwrap();
    let worker = engine.start_worker("one".to_owned()).await.unwrap();
    engine.beat(&worker).await.unwrap();
    let external = |name: &str| StepPlan {
        input: json!({ "tool": "crm", "input": name }),
        ..StepPlan::new(name, ToolKind::External)
    };
    let mut runs = Vec::new();
    for _ in 0..3 {
        runs.push(submit_steps(engine, org, vec![external("a"), external("b")]).await);
    }
    work(engine, &worker).await;
    let programs: Vec<_> =
        (0..APPROVERS).map(|n| tokio::spawn(take_and_end(engines[n % engines.len()].clone(), org))).collect();
    let mut taken = Vec::new();
    for program in programs {
        taken.extend(program.await.unwrap());
    }
    assert_eq!((taken.len(), taken.iter().collect::<BTreeSet<_>>().len()), (6, 6), "{taken:?}");
    work(engine, &worker).await;
    for run in runs {
        assert_eq!(engine.run(org, run).await.unwrap().status, RunStatus::Completed);
    }
    let audit = engine.audit().await.unwrap();
    assert!(audit.broken.is_empty(), "{:#?}", audit.broken);
}

/// What one program does: a step, if there is one, and none after it.
async fn take_and_end(engine: Arc<Engine>, org: OrgId) -> Option<StepId> {
    let poll = Poll { org, tools: vec!["crm".into()], lease_ms: HOUR };
    let render: StepRender<Taken> = Arc::new(|_| None);
    let Some(Answered::Now(taken)) = engine.poll_step(&poll, None, &render).await.unwrap() else { return None };
    let (request, at) = (Request::plain(Asker::Org(org), taken.run), (taken.step, taken.fence));
    let end = End::Completed { output: taken.input, cost: Credits::ZERO };
    engine.end_step(request, at, end, None).await.unwrap();
    Some(taken.step)
}

#[test]
fn of_twenty_programs_that_poll_at_once_each_step_has_one_taker() {
    on_both(async |planes| one_taker_each(planes).await);
}

const CLAIMERS: usize = 100;

/// A warm machine with one free slot and a held folder, made by a first run.
async fn one_warm_slot(engine: &Engine, org: OrgId, provider: &FakeProvider) -> Job {
    let worker = engine.start_worker("one".to_owned()).await.unwrap();
    engine.beat(&worker).await.unwrap();
    let run = submit(engine, org, 1, 1).await;
    work(engine, &worker).await;
    register(engine, provider).await;
    let job = engine.jobs(org, run).await.unwrap().1.remove(0);
    finish(engine, &job).await;
    engine.jobs(org, run).await.unwrap().1.remove(0)
}

/// The one slot goes to one of a hundred runs that want it at the same moment; the others wait.
async fn one_claims(engines: &[Arc<Engine>], provider: &FakeProvider) {
    let org = engines[0].ensure_org("test").await.unwrap();
    let machine = one_warm_slot(&engines[0], org, provider).await.instance;
    let clients: Vec<_> = (0..CLAIMERS)
        .map(|client| {
            let engine = engines[client % engines.len()].clone();
            tokio::spawn(async move { submit(&engine, org, 1, 1).await })
        })
        .collect();
    let mut winners = Vec::new();
    for client in clients {
        let run = client.await.unwrap();
        let job = engines[0].jobs(org, run).await.unwrap().1.remove(0);
        assert!(job.instance.is_none() || job.instance == machine, "there is room for no other machine");
        winners.extend(job.instance.map(|_| run));
    }
    assert_eq!(winners.len(), 1, "{winners:?}");
    let audit = engines[0].audit().await.unwrap();
    assert!(audit.broken.is_empty(), "{:#?}", audit.broken);
}

/// A hold that needs its machine is extended and the machine terminated at the same moment.
async fn extend_and_end(
    engines: &[Arc<Engine>],
    org: OrgId,
    job: &Job,
    force: bool,
) -> (Result<(), Failure>, Result<(), Failure>) {
    let (slot, machine) = (job.allocation.unwrap(), job.instance.unwrap());
    let (one, other) = (engines[0].clone(), engines[engines.len() - 1].clone());
    let extends = tokio::spawn(async move {
        let shown = Arc::new(|_: &engine::allocation::AllocationOverview| Vec::new());
        one.extend(org, slot, Some(2 * HOUR), None, shown).await.map(drop)
    });
    let ends = tokio::spawn(async move {
        let shown = Arc::new(|_: &engine::instance::InstanceOverview| Vec::new());
        other.terminate_instance((org, "a test".to_owned()), machine, force, None, shown).await.map(drop)
    });
    (extends.await.unwrap(), ends.await.unwrap())
}

/// Without force one of both wins; with force a person does, and the hold is as long as it was then.
async fn one_of_both(engines: &[Arc<Engine>], provider: &FakeProvider) {
    let org = engines[0].ensure_org("test").await.unwrap();
    let job = one_warm_slot(&engines[0], org, provider).await;
    let until = || async {
        let slot = engines[0].allocation(org, job.allocation.unwrap()).await.unwrap().allocation;
        slot.debug_hold_until.unwrap()
    };
    let first = until().await;
    let (extended, ended) = extend_and_end(engines, org, &job, false).await;
    extended.unwrap();
    assert!(matches!(ended, Err(Failure::Refused(Refused::Held { .. }))), "the hold is named: {ended:?}");
    let second = until().await;
    assert!(second > first);
    let (extended, ended) = extend_and_end(engines, org, &job, true).await;
    ended.unwrap();
    match extended {
        Ok(()) => assert!(until().await >= second, "it came first"),
        Err(Failure::Refused(Refused::Conflict { why })) => {
            assert!(why.contains("went with it") || why.contains("without a hold"), "{why}");
            assert!(until().await <= second, "a loser has changed nothing");
        }
        Err(failure) => panic!("{failure:?}"),
    }
}

#[test]
fn of_a_hundred_claims_on_one_slot_and_of_an_extension_and_an_end_one_wins() {
    let postgres = Postgres::start();
    let folder = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_all().build().unwrap();
    let provider = || {
        let mut settings = FakeSettings::default();
        (settings.capabilities.max_instances, settings.capabilities.keeps_workdirs) = (1, false);
        Arc::new(FakeProvider::new(settings, Box::new(|_, _| Fate::Obey)))
    };
    let urls = [postgres.database(), postgres.database()];
    runtime.block_on(async {
        for (number, race) in [true, false].into_iter().enumerate() {
            let lite = provider();
            let file = Database::File(folder.path().join(format!("remuda-{number}.db")));
            let alone = [control_plane(file, folder.path(), &lite)];
            let (many, url) = (provider(), urls[number].clone());
            let open = || control_plane(Database::Postgres(url.clone()), folder.path(), &many);
            let shared = [open(), open()];
            match race {
                true => {
                    one_claims(&alone, &lite).await;
                    one_claims(&shared, &many).await;
                }
                false => {
                    one_of_both(&alone, &lite).await;
                    one_of_both(&shared, &many).await;
                }
            }
        }
    });
    assert_eq!(postgres.deadlocks(), 0);
}

/// Of each database.
const PINS: usize = 1_000;

/// Executions whose results are all here, and wait to be pinned.
async fn staged(engine: &Arc<Engine>, org: OrgId) {
    let render: Render = Arc::new(|snapshot| snapshot.run.id.to_string().into_bytes());
    let submitted = (0..PINS).map(|number| {
        let spec: RunSpec = serde_json::from_value(json!({
            "kind": "task", "command": { "shell": "true" }, "provider": "fake", "region": "here", "stop_duration_ms": 0,
            "priority": "normal", "on_lost_control": "finish", "failure_mode": "fail-fast",
            "call": { "caller": { "salt": number.to_string(), "errors": false } },
        }))
        .unwrap();
        let submission = Submission { org, by: None, name: None, spec, plans: Default::default(), start: true };
        let (engine, render) = (engine.clone(), render.clone());
        tokio::spawn(async move { engine.submit(submission, None, render).await.map(drop) })
    });
    for answer in submitted.collect::<Vec<_>>() {
        answer.await.unwrap().unwrap();
    }
    let value = RunValue {
        exit_code: 0,
        stdout: Stream::of(b"out".to_vec()),
        stderr: Stream::of(Vec::new()),
        artifacts: BTreeMap::new(),
    };
    let (dag, records) = value.dag().unwrap();
    let write = move |tx: &mut store::Tx| {
        store::object::put(tx, org, &records)?;
        for found in store::execution::page(tx, org, i64::MAX, PINS as i64)? {
            let at = tx.at();
            let events = [ExecutionEvent::NotPinned, ExecutionEvent::Done { ok: true, result: dag.to_string() }];
            let staged = events.iter().try_fold(found.it, |it, event| match apply(&it, event, at)? {
                Outcome::Moved { next, .. } => Ok::<_, Failure>(next),
                Outcome::Unchanged => Ok(it),
            })?;
            store::execution::save(tx, found.id, &staged)?;
        }
        Ok(())
    };
    engine.store.write(store::Lane::Normal, "test.stage", write).await.unwrap();
}

async fn work_on(engine: Arc<Engine>, item: store::Item) {
    engine.work_on(item).await;
}

/// All pins are there, in the rows and in the index, and few commits were made for them.
async fn share_commits(engines: &[Arc<Engine>]) {
    let engine = &engines[0];
    let org = engine.ensure_org("default").await.unwrap();
    staged(engine, org).await;
    for engine in engines {
        let worker = engine.start_worker("w".into()).await.unwrap();
        engine.beat(&worker).await.unwrap();
        let mut worked = tokio::task::JoinSet::new();
        loop {
            let items = engine.claim(&worker, store::WorkClass::Control, PINS).await.unwrap();
            items.into_iter().for_each(|item| drop(worked.spawn(work_on(engine.clone(), item))));
            match worked.join_next().await {
                Some(ended) => ended.unwrap(),
                None => break,
            }
        }
    }
    let index = engine.indexes(org).await.unwrap().remove(0);
    assert_eq!(index.pins, PINS as i64);
    let commit = index.commit.unwrap();
    let (pins, commits) = engine
        .store
        .read("test.read", move |tx| {
            let mut objects = store::object::Objects { tx, org };
            let root = calls::read::commit(&mut objects, commit).unwrap().execs;
            let mut pins = 0;
            calls::trie::walk(&mut objects, root, &mut |_, _| pins += 1).unwrap();
            let prefix = calls::id::Prefix { low: calls::Id([0; 32]), high: calls::Id([0xff; 32]) };
            let all = store::object::of_prefix(tx, org, prefix, i64::MAX)?;
            Ok((pins, all.iter().filter(|object| object.kind == calls::Kind::Commit).count()))
        })
        .await
        .unwrap();
    assert_eq!(pins, PINS);
    assert!(commits <= MOST_COMMITS, "{commits} commits for {PINS} pins");
}

/// A worker has 32 items in hand at most, and all that wait at the same time share a commit.
const MOST_COMMITS: usize = 100;

#[test]
fn a_thousand_pins_at_once_share_few_commits() {
    let postgres = Postgres::start();
    let url = postgres.database();
    let folder = tempfile::tempdir().unwrap();
    let provider = Arc::new(FakeProvider::new(FakeSettings::default(), Box::new(|_, _| Fate::Obey)));
    let open = |database| control_plane(database, folder.path(), &provider);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_all().build().unwrap();
    runtime.block_on(async {
        share_commits(&[open(Database::File(folder.path().join("pins.db")))]).await;
        share_commits(&[open(Database::Postgres(url))]).await;
    });
    assert_eq!(postgres.deadlocks(), 0);
}

/// A collection takes what was unused for so long. Longer than any transaction here takes.
const WINDOW_MS: i64 = 3_000;
/// Objects that collections have to take before the writers stop, and the pins after which they stop in any case.
const ENOUGH_SWEPT: i64 = 200;
const MOST_PINS: usize = 5_000;
const PINS_AT_ONCE: usize = 20;

/// An execution whose result is staged and waits to be pinned: call, result and row in one transaction.
async fn answered(engine: &Engine, org: OrgId, number: usize) {
    let call = Call::of(&Function::parse(FUNCTION).unwrap(), &[calls::Value::Int(number as i64)]).unwrap();
    let stdout = Stream::of(format!("{number} {}", "long ".repeat(20)).into_bytes());
    let stderr = Stream::of(Vec::new());
    let (dag, records) = RunValue { exit_code: 0, stdout, stderr, artifacts: BTreeMap::new() }.dag().unwrap();
    let key = execution_key(&org.to_string(), call.node, &Epoch::Counter(0)).to_string();
    let write = move |tx: &mut store::Tx| {
        store::object::put(tx, org, &call.records)?;
        store::object::put(tx, org, &records)?;
        let (id, at) = (tx.next_id(), tx.at());
        let new = Execution::new(org, key.clone(), call.node.to_string(), 1);
        let mut it = Execution { function: FUNCTION.to_owned(), asked: true, ..new };
        for event in [ExecutionEvent::NotPinned, ExecutionEvent::Done { ok: true, result: dag.to_string() }] {
            if let Outcome::Moved { next, .. } = apply(&it, &event, at)? {
                it = next;
            }
        }
        let spec = RunSpec::task(Command::Shell("true".to_owned()), "fake", "here");
        let request = json!({ "name": "", "work": { "run": { "run": RunId(tx.next_id()), "spec": spec } } });
        store::execution::insert(tx, id, &it, &request)?;
        tx.wake(store::WorkKind::Execution, id, at);
        Ok(())
    };
    engine.store.write(store::Lane::Normal, "test.answered", write).await.unwrap();
}

/// Stages and pins until the collections have taken enough; how many.
async fn pins_beside(engine: Arc<Engine>, org: OrgId, from: usize, swept: Arc<AtomicI64>) -> usize {
    let worker = engine.start_worker(format!("w{from}")).await.unwrap();
    engine.beat(&worker).await.unwrap();
    let mut number = from;
    while swept.load(Ordering::Relaxed) < ENOUGH_SWEPT && number < from + MOST_PINS {
        for _ in 0..PINS_AT_ONCE {
            answered(&engine, org, number).await;
            number += 1;
        }
        work(&engine, &worker).await;
    }
    work(&engine, &worker).await;
    number - from
}

#[test]
fn a_collection_beside_two_writers_loses_nothing_that_is_pinned() {
    let postgres = Postgres::start();
    let url = postgres.database();
    let folder = tempfile::tempdir().unwrap();
    let provider = Arc::new(FakeProvider::new(FakeSettings::default(), Box::new(|_, _| Fate::Obey)));
    let open = || {
        let mut config = Config::default();
        config.calls.unnamed_kept_ms = WINDOW_MS;
        control_plane_of(config, Database::Postgres(url.clone()), folder.path(), &provider)
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_all().build().unwrap();
    runtime.block_on(async {
        let [one, two, collector] = [open(), open(), open()];
        let org = collector.ensure_org("default").await.unwrap();
        let swept = Arc::new(AtomicI64::new(0));
        let writers = [(one, 0), (two, MOST_PINS)].map(|(engine, from)| {
            let swept = swept.clone();
            tokio::spawn(async move { pins_beside(engine, org, from, swept).await })
        });
        while writers.iter().any(|writer| !writer.is_finished()) {
            let asked = Garbage { older_than_ms: HOUR, max_bytes: i64::MAX };
            let found = collector.collect_garbage(org, asked).await.unwrap();
            swept.fetch_add(found.objects, Ordering::Relaxed);
        }
        let mut pinned = 0;
        for writer in writers {
            pinned += writer.await.unwrap();
        }
        assert!(swept.load(Ordering::Relaxed) >= ENOUGH_SWEPT, "{pinned} pins, and nothing was garbage");
        let read = move |tx: &mut store::Tx| {
            let pins = store::pin::page(tx, org, "default", i64::MAX, 2 * MOST_PINS as i64)?;
            let damaged: Vec<String> = pins
                .iter()
                .filter_map(|pin| {
                    let whole = available(&mut store::object::Objects { tx, org }, pin.exec.id.into(), 1_000);
                    whole.err().map(|fault| format!("{}: {fault}", pin.exec.id))
                })
                .collect();
            let index = store::refs::page(tx, org, "refs/index/", 2)?[0].1;
            let root = calls::read::commit(&mut store::object::Objects { tx, org }, index).unwrap().execs;
            let mut in_index = 0;
            calls::trie::walk(&mut store::object::Objects { tx, org }, root, &mut |_, _| in_index += 1).unwrap();
            Ok((pins.len(), in_index, damaged))
        };
        assert_eq!(collector.store.read("test.pins", read).await.unwrap(), (pinned, pinned, Vec::new()));
    });
    assert_eq!(postgres.deadlocks(), 0);
}

const RACES: usize = 20;

/// A command ends well and its run is cancelled at the same moment, again and again on one machine: the run has one end, and who was told
/// that the cancel is accepted sees it cancelled.
async fn one_end(engines: &[Arc<Engine>], provider: &FakeProvider) {
    let engine = &engines[0];
    let org = engine.ensure_org("test").await.unwrap();
    one_warm_slot(engine, org, provider).await;
    let worker = engine.start_worker("two".to_owned()).await.unwrap();
    engine.beat(&worker).await.unwrap();
    for race in 0..RACES {
        let run = submit(engine, org, 1, 1).await;
        let mut job = engine.jobs(org, run).await.unwrap().1.remove(0);
        for _ in 0..MOST_ROUNDS {
            if job.instance.is_some() {
                break;
            }
            work(engine, &worker).await;
            job = engine.jobs(org, run).await.unwrap().1.remove(0);
        }
        let (one, other) = (engine.clone(), engines[engines.len() - 1].clone());
        let ends = async move { is_heard(&one, &job).await };
        let cancels = async move {
            let render: Render = Arc::new(|_| Vec::new());
            other.act_on(org, run, Action::Cancel { abort: false }, None, render).await.map(drop)
        };
        // Each of them is the first to be started in half of the races.
        let (ends, cancels) = if race % 2 == 0 {
            let ends = tokio::spawn(ends);
            (ends, tokio::spawn(cancels))
        } else {
            let cancels = tokio::spawn(cancels);
            (tokio::spawn(ends), cancels)
        };
        ends.await.unwrap();
        let cancelled = cancels.await.unwrap();
        work(engine, &worker).await;
        let status = engine.run(org, run).await.unwrap().status;
        let expected = match cancelled {
            Ok(()) => RunStatus::Cancelled,
            Err(Failure::Refused(Refused::NotFrom { .. })) => RunStatus::Completed,
            Err(failure) => panic!("{failure:?}"),
        };
        assert_eq!(status, expected, "race {race}");
        let read = move |tx: &mut store::Tx| store::event::after(tx, org, Some(run), 0, 1_000);
        let events = engine.store.read("test.events", read).await.unwrap();
        let ends =
            events.iter().filter(|event| ["run.completed", "run.failed", "run.cancelled"].contains(&&*event.kind));
        assert_eq!(ends.count(), 1, "race {race}: {events:?}");
    }
    let audit = engine.audit().await.unwrap();
    assert!(audit.broken.is_empty(), "{:#?}", audit.broken);
}

#[test]
fn a_run_that_completes_while_it_is_cancelled_has_one_end() {
    let postgres = Postgres::start();
    let url = postgres.database();
    let folder = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_all().build().unwrap();
    let provider = || {
        let mut settings = FakeSettings::default();
        settings.capabilities.max_instances = 1;
        Arc::new(FakeProvider::new(settings, Box::new(|_, _| Fate::Obey)))
    };
    runtime.block_on(async {
        let here = provider();
        let sqlite = Database::File(folder.path().join("race.db"));
        one_end(&[control_plane(sqlite, folder.path(), &here)], &here).await;
        let here = provider();
        let planes = [(); 2].map(|()| control_plane(Database::Postgres(url.clone()), folder.path(), &here));
        one_end(&planes, &here).await;
    });
    assert_eq!(postgres.deadlocks(), 0);
}
