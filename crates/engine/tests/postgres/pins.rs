//! Pins of one index: many at once share commits, and a collection takes nothing that is pinned.

use crate::postgres::Postgres;
use crate::{control_plane, control_plane_of, work};
use adapters::FakeProvider;
use adapters::fake::{FakeSettings, Fate};
use calls::cached_run::{FUNCTION, RunValue, Stream};
use calls::call::Call;
use calls::function::Function;
use calls::key::{Epoch, execution_key};
use calls::reach::available;
use engine::cache::Garbage;
use engine::run::{Render, Submission};
use engine::{Config, Engine};
use model::execution::{Execution, ExecutionEvent, apply};
use model::spec::{Command, RunSpec};
use model::time::HOUR;
use model::{Failure, OrgId, Outcome, RunId};
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use store::Database;

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
