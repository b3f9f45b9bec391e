//! Calls of several processes at once: each waits for its own key alone, and the first index of an org is made once.

use crate::postgres::Postgres;
use crate::races::waiting;
use crate::{control_plane, finish, register, work};
use adapters::FakeProvider;
use adapters::fake::{FakeSettings, Fate};
use calls::history::empty_index;
use calls::refs::{RefName, Swap, Uuid};
use engine::cache::{CountRender, Invalid};
use engine::run::{Render, Submission};
use engine::{Config, Engine};
use model::claim::Orchestrator;
use model::run::RunStatus;
use model::spec::RunSpec;
use model::{Failure, OrgId, RunId};
use serde_json::json;
use std::sync::{Arc, Mutex, mpsc};
use store::{Database, Lane, Tx};
use tokio::task::JoinHandle;

/// A transaction that stays open after `act` until the sender is dropped.
async fn held(
    engine: &Arc<Engine>,
    act: impl Fn(&mut Tx) -> Result<(), Failure> + Send + Sync + 'static,
) -> (mpsc::Sender<()>, JoinHandle<Result<(), Failure>>) {
    let ((has, is_held), (release, released)) = (mpsc::channel::<()>(), mpsc::channel::<()>());
    let (holder, channels) = (engine.clone(), Mutex::new((has, released)));
    let holds = tokio::spawn(async move {
        let hold = move |tx: &mut Tx| {
            act(tx)?;
            let channels = channels.lock().unwrap();
            let _ = channels.0.send(());
            let _ = channels.1.recv(); // until the other end is dropped
            Ok(())
        };
        holder.store.write(Lane::Normal, "test.hold", hold).await
    });
    tokio::task::spawn_blocking(move || is_held.recv().unwrap()).await.unwrap();
    (release, holds)
}

async fn submit(engine: &Engine, org: OrgId, salt: &str) -> RunId {
    let spec: RunSpec = serde_json::from_value(json!({
        "kind": "task", "command": { "shell": "true" }, "provider": "fake", "region": "here", "stop_duration_ms": 0,
        "priority": "normal", "on_lost_control": "finish", "failure_mode": "fail-fast",
        "call": { "caller": { "salt": salt, "errors": false } },
    }))
    .unwrap();
    let render: Render = Arc::new(|snapshot| snapshot.run.id.to_string().into_bytes());
    let asked = Submission { org, by: None, name: None, spec, plans: Default::default(), start: true };
    String::from_utf8(engine.submit(asked, None, render).await.unwrap().body).unwrap().parse().unwrap()
}

fn two_processes(postgres: &Postgres, act: impl AsyncFn(&[Arc<Engine>; 2], OrgId, &FakeProvider)) {
    let folder = tempfile::tempdir().unwrap();
    let provider = Arc::new(FakeProvider::new(FakeSettings::default(), Box::new(|_, _| Fate::Obey)));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_all().build().unwrap();
    let url = postgres.database();
    runtime.block_on(async {
        let planes = [(); 2].map(|()| control_plane(Database::Postgres(url.clone()), folder.path(), &provider));
        let org = planes[0].ensure_org("test").await.unwrap();
        act(&planes, org, &provider).await;
    });
    assert_eq!(postgres.deadlocks(), 0);
}

#[test]
fn while_the_claim_of_one_key_is_written_another_key_begins_and_ends() {
    let postgres = Postgres::start();
    two_processes(&postgres, async |planes, org, provider| {
        let (release, holds) = held(&planes[0], move |tx| {
            let swap = Orchestrator::new(&"a".repeat(64), 1, "me", "me").swap(tx.at()).expect("it claims");
            assert!(store::claim::swap(tx, org, &swap)?, "nobody has claimed it");
            Ok(())
        })
        .await;
        let engine = &planes[1];
        let worker = engine.start_worker("other".to_owned()).await.unwrap();
        engine.beat(&worker).await.unwrap();
        let caller = submit(engine, org, "b").await;
        work(engine, &worker).await;
        register(engine, provider, |_| true).await;
        work(engine, &worker).await;
        let called = engine.run(org, caller).await.unwrap().call.unwrap();
        let (execution, backend) = (called.execution.unwrap(), called.run.unwrap());
        let claim = move |tx: &mut Tx| {
            let it = store::execution::find(tx, execution)?.unwrap();
            store::claim::find(tx, org, &it.key)
        };
        let begun = engine.store.read("test.claim", claim).await.unwrap().expect("it has begun");
        assert!(begun.job.is_some());
        let job = engine.jobs(org, backend).await.unwrap().1.remove(0);
        finish(engine, &job).await;
        work(engine, &worker).await;
        assert_eq!(engine.run(org, caller).await.unwrap().status, RunStatus::Completed);
        assert_eq!(engine.store.read("test.claim", claim).await.unwrap(), None, "it has ended");
        assert!(!holds.is_finished(), "all this time the other claim was being written");
        drop(release);
        holds.await.unwrap().unwrap();
    });
}

#[test]
fn of_two_processes_that_make_the_first_index_at_once_both_go_on() {
    let postgres = Postgres::start();
    two_processes(&postgres, async |planes, org, _| {
        let index = RefName::Index(Uuid::derived(&format!("index of {org} {}", Config::default().calls.project)));
        let (release, holds) = held(&planes[0], move |tx| {
            let (first, records) = empty_index();
            store::object::put(tx, org, &records)?;
            let made = store::refs::swap(tx, org, &index, Swap { expect: None, to: Some(first) })?;
            assert!(made.is_ok(), "it is the first");
            Ok(())
        })
        .await;
        let count: CountRender = Arc::new(|count| count.to_string().into_bytes());
        let other = planes[1].clone();
        let invalidates = tokio::spawn(async move { other.invalidate(org, Invalid::Runs, None, count).await });
        waiting(&planes[0], 1).await;
        drop(release);
        holds.await.unwrap().unwrap();
        assert_eq!(invalidates.await.unwrap().unwrap().body, b"0");
    });
}
