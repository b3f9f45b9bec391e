//! Several processes at once on PostgreSQL, and the same on SQLite: of several that take the same thing at the same moment one gets it, and
//! no transactions deadlock.

mod call;
mod pins;
mod placement;
#[allow(dead_code, reason = "the tests of the store use more of it")]
#[path = "../../../store/tests/support/postgres.rs"]
mod postgres;
mod questions;
mod races;

use adapters::fake::{FakeSettings, Fate, MachineState};
use adapters::{FakeProvider, Provider};
use engine::run::{Render, Submission};
use engine::runner::{Fact, Introduction, What};
use engine::{Config, Engine, EngineContext, Presence};
use model::instance::Instance;
use model::job::{Job, JobReason};
use model::spec::RunSpec;
use model::time::HOUR;
use model::{OrgId, RunId};
use postgres::Postgres;
use serde_json::json;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use store::{Database, Installation, Options, Store};

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

/// The runners of these machines introduce themselves.
async fn register(engine: &Engine, provider: &FakeProvider, which: impl Fn(&String) -> bool) {
    for (name, machine) in provider.machines().into_iter().filter(|(name, _)| which(name)) {
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

/// A warm machine with one free slot and a held folder, made by a first run.
async fn one_warm_slot(engine: &Engine, org: OrgId, provider: &FakeProvider) -> Job {
    let worker = engine.start_worker("one".to_owned()).await.unwrap();
    engine.beat(&worker).await.unwrap();
    let run = submit(engine, org, 1, 1).await;
    work(engine, &worker).await;
    register(engine, provider, |_| true).await;
    let job = engine.jobs(org, run).await.unwrap().1.remove(0);
    finish(engine, &job).await;
    engine.jobs(org, run).await.unwrap().1.remove(0)
}
