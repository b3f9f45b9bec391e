//! Objects, refs, pins, executions and claims of calls.

use crate::support::World;
use crate::{read, write};
use ::calls::history::{empty_index, pin as pinned};
use ::calls::refs::{Moved, RefName, Swap};
use ::calls::trie;
use ::calls::{CommitId, ExecId, Id, NodeId, Read as _, Reference, Value};
use model::claim::{Orchestrator, OrchestratorEvent, OrchestratorStatus};
use model::execution::Execution;
use model::run::Run;
use model::{OrgId, Outcome, RunId, Timestamp};
use std::collections::BTreeMap;
use store::exec::{self, ExecRow};
use store::object::Objects;
use store::{claim, content, execution, object, pin, refs};

const ORG: OrgId = OrgId(1);
const OTHER: OrgId = OrgId(2);

fn record(text: &str) -> (Reference, Vec<u8>) {
    let mut records = Vec::new();
    Value::text(text).unwrap().put(&mut records).unwrap();
    records.pop().unwrap()
}

pub async fn an_object_belongs_to_one_org_and_is_kept_while_it_is_used(w: &World) {
    let kept = record("kept");
    let (of, bytes) = kept.clone();
    write(&w.store, move |tx| object::put(tx, ORG, &[kept.clone(), kept.clone()])).await.unwrap();
    let found = move |org| {
        let store = w.store.clone();
        async move { read(&store, move |tx| Objects { tx, org }.record(of)).await }
    };
    assert_eq!((found(ORG).await, found(OTHER).await), (Some(bytes.clone()), None));
    let prefix = of.id.to_string()[..6].parse().unwrap();
    assert_eq!(read(&w.store, move |tx| object::of_prefix(tx, ORG, prefix, 5)).await, [of]);
    assert_eq!(read(&w.store, move |tx| object::of_prefix(tx, OTHER, prefix, 5)).await, []);
    // A sweep whose mark began after the last use takes it; one that began before does not.
    let used = read(&w.store, |tx| Ok(tx.at())).await;
    let unused = move |before: Timestamp| {
        let store = w.store.clone();
        async move { read(&store, move |tx| object::unused(tx, ORG, None, before, 5)).await }
    };
    assert_eq!(unused(Timestamp(used.0 - 60_000)).await, []);
    assert_eq!(unused(used + 60_000).await, [of]);
    let gone = move |before| {
        let store = w.store.clone();
        async move { write(&store, move |tx| object::delete(tx, ORG, of.id, before)).await.unwrap() }
    };
    assert!(!gone(Timestamp(used.0 - 60_000)).await, "it was put again since the mark");
    assert!(gone(used + 60_000).await);
    assert_eq!(found(ORG).await, None);
}

pub async fn a_ref_changes_only_from_what_its_writer_saw(w: &World) {
    let name: RefName = "refs/heads/main".parse().unwrap();
    let [a, b] = [1, 2].map(|byte| CommitId(Id([byte; 32])));
    let swap = |expect, to| {
        let (store, name) = (w.store.clone(), name.clone());
        async move { write(&store, move |tx| refs::swap(tx, ORG, &name, Swap { expect, to })).await.unwrap() }
    };
    assert_eq!(swap(Some(a), Some(b)).await, Err(Moved(None)));
    assert_eq!(swap(None, Some(a)).await, Ok(()));
    assert_eq!(swap(None, Some(b)).await, Err(Moved(Some(a))));
    assert_eq!(swap(Some(a), Some(b)).await, Ok(()));
    assert_eq!(read(&w.store, |tx| refs::page(tx, ORG, "refs/heads/", 9)).await, [(name.clone(), b)]);
    assert_eq!(read(&w.store, |tx| refs::page(tx, OTHER, "refs/heads/", 9)).await, []);
    assert_eq!(read(&w.store, |tx| refs::page(tx, ORG, "refs/index/", 9)).await, []);
    assert_eq!(swap(Some(b), None).await, Ok(()));
    assert_eq!(read(&w.store, |tx| refs::page(tx, ORG, "refs/heads/", 9)).await, []);
}

fn exec_of(byte: u8, name: &str, ended: i64) -> ExecRow {
    ExecRow {
        id: ExecId(Id([byte; 32])),
        node: NodeId(Id([byte + 100; 32])),
        function: "dml+exec://f/x".into(),
        name: name.into(),
        ok: true,
        run: Some(RunId(byte.into())),
        ended_at: Timestamp(ended),
        bytes: 10,
    }
}

pub async fn a_pin_answers_its_node_and_keeps_what_its_result_names(w: &World) {
    let hash = "ab".repeat(32);
    let rows = [exec_of(1, "train", 100), exec_of(2, "train", 200), exec_of(3, "other", 300)];
    let (inserted, named) = (rows.clone(), hash.clone());
    write(&w.store, move |tx| {
        content::announce(tx, ORG, &named)?;
        content::kept(tx, ORG, &named)?;
        for row in &inserted {
            exec::insert(tx, ORG, row, std::slice::from_ref(&named))?;
            exec::insert(tx, ORG, row, std::slice::from_ref(&named))?;
            pin::set(tx, ORG, "p", row.node, row.id)?;
        }
        Ok(())
    })
    .await
    .unwrap();
    let [first, second, third] = rows;
    let node = first.node;
    assert_eq!(read(&w.store, move |tx| pin::find(tx, ORG, "p", node)).await, Some(first.id));
    assert_eq!(read(&w.store, move |tx| pin::find(tx, OTHER, "p", node)).await, None);
    assert_eq!(read(&w.store, |tx| pin::bytes(tx, ORG, "p")).await, 30);
    let (not, function) = (first.node, first.function.clone());
    let named = move |name: &'static str| {
        let (store, function) = (w.store.clone(), function.clone());
        async move { read(&store, move |tx| exec::newest_of_name(tx, ORG, (&function, name), not, Timestamp(900))).await }
    };
    assert_eq!(named("train").await, Some(second.clone()));
    assert_eq!(named("nothing").await, None);
    let newest =
        read(&w.store, move |tx| exec::newest_of_function(tx, ORG, "dml+exec://f/x", not, Timestamp(900))).await;
    assert_eq!(newest, Some(third.clone()));
    let of_run = read(&w.store, |tx| exec::of_run(tx, ORG, RunId(3))).await;
    assert_eq!(of_run, Some(third));
    assert_eq!(read(&w.store, |tx| exec::page(tx, ORG, Timestamp(200), 9)).await, [second, first]);
    // Contents that an exec names are not swept, however long nothing else needed them.
    let late = read(&w.store, |tx| Ok(tx.at())).await + 1_000_000;
    assert_eq!(write(&w.store, move |tx| content::condemn(tx, late, 9)).await.unwrap(), 0);
    write(&w.store, |tx| (1..=3).try_for_each(|byte| exec::forget(tx, ORG, ExecId(Id([byte; 32]))))).await.unwrap();
    assert_eq!(write(&w.store, move |tx| content::condemn(tx, late, 9)).await.unwrap(), 1);
}

pub async fn a_record_and_a_listed_artifact_keep_the_content_that_they_name(w: &World) {
    let blob = ::calls::uri::Blob::of(b"bytes");
    let hash = blob.hash.to_string();
    let mut records = Vec::new();
    Value::Uri(blob.uri()).put(&mut records).unwrap();
    let id = records[0].0.id;
    let named = hash.clone();
    write(&w.store, move |tx| {
        content::announce(tx, ORG, &named)?;
        content::kept(tx, ORG, &named)?;
        object::put(tx, ORG, &records)?;
        object::put(tx, ORG, &records)
    })
    .await
    .unwrap();
    let late = read(&w.store, |tx| Ok(tx.at())).await + 1_000_000;
    let condemned = move || {
        let store = w.store.clone();
        async move { write(&store, move |tx| content::condemn(tx, late, 9)).await.unwrap() }
    };
    assert_eq!(condemned().await, 0, "a record names it");
    assert!(write(&w.store, move |tx| object::touch(tx, ORG, &[id])).await.unwrap());
    assert!(!write(&w.store, move |tx| object::touch(tx, ORG, &[id, Id([9; 32])])).await.unwrap());
    let shared = hash.clone();
    let artifact = write(&w.store, move |tx| {
        let what = store::artifact::EntryKind::File { mode: 0o644 };
        let new = store::artifact::Announced { org: ORG, run: RunId(7), attempt: 1, path: "out", size: 5, what: &what };
        store::artifact::share(tx, &new, &shared)?;
        assert!(object::delete(tx, ORG, id, late)?);
        Ok(store::artifact::by_path(tx, RunId(7), 1, "out")?.unwrap().id)
    })
    .await
    .unwrap();
    assert_eq!(condemned().await, 0, "an artifact lists it");
    let used = hash.clone();
    assert!(write(&w.store, move |tx| content::touch(tx, ORG, &used)).await.unwrap());
    write(&w.store, move |tx| store::artifact::deleted(tx, (RunId(7), artifact))).await.unwrap();
    assert_eq!(condemned().await, 1);
    assert!(!write(&w.store, move |tx| content::touch(tx, ORG, &hash)).await.unwrap(), "it is going");
}

pub async fn many_pins_at_once_are_all_in_the_index(w: &World) {
    const MANY: u8 = 40;
    let name: RefName = "refs/index/0b9f1f5e-6f0d-4a53-8f5b-3d3f4f2b1a00".parse().unwrap();
    let (first, records) = empty_index();
    let made = name.clone();
    write(&w.store, move |tx| {
        object::put(tx, ORG, &records)?;
        refs::swap(tx, ORG, &made, Swap { expect: None, to: Some(first) }).map(|done| done.unwrap())
    })
    .await
    .unwrap();
    let answers = crate::together(&w.store, MANY.into(), |i| {
        let (name, node, exec) = (name.clone(), NodeId(Id([i as u8 * 6; 32])), ExecId(Id([i as u8; 32])));
        move |tx| {
            let index = refs::lock(tx, ORG, &name)?.unwrap();
            let mut objects = Objects { tx, org: ORG };
            let (next, records) = pinned(&mut objects, index, &BTreeMap::from([(node, exec)])).unwrap();
            object::put(tx, ORG, &records)?;
            let swap = Swap { expect: Some(index), to: Some(next) };
            refs::swap(tx, ORG, &name, swap).map(|done| done.is_ok())
        }
    })
    .await;
    assert!(answers.into_iter().all(|answer| answer.unwrap()), "the lock lets one writer after the other through");
    read(&w.store, move |tx| {
        let index = refs::find(tx, ORG, &name)?.unwrap();
        let mut objects = Objects { tx, org: ORG };
        let root = ::calls::read::commit(&mut objects, index).unwrap().execs;
        for i in 0..MANY {
            let found = trie::get(&mut objects, root, NodeId(Id([i * 6; 32]))).unwrap();
            assert_eq!(found, Some(ExecId(Id([i; 32]))));
        }
        Ok(())
    })
    .await;
}

pub async fn callers_of_a_key_share_one_execution(w: &World) {
    let made = |id: i64| {
        let store = w.store.clone();
        async move {
            let it = Execution::new(ORG, "k".into(), "n".into(), 1);
            write(&store, move |tx| execution::insert(tx, id, &it, &serde_json::json!({ "a": id }))).await
        }
    };
    made(7).await.unwrap();
    assert!(made(8).await.is_err(), "one open execution for each key");
    let terms: model::spec::RunTerms = serde_json::from_value(serde_json::json!({
        "kind": "task", "title": "true", "provider": "local", "region": "here", "stop_duration_ms": 1_000,
        "priority": "normal", "on_lost_control": "finish", "failure_mode": "fail-fast",
    }))
    .unwrap();
    let content: model::spec::RunContent =
        serde_json::from_value(serde_json::json!({ "command": { "shell": "true" } })).unwrap();
    write(&w.store, move |tx| {
        for id in [9, 8, 10] {
            let mut run = Run::created(RunId(id), ORG, format!("run-{id}"), terms.clone(), tx.at());
            if id == 10 {
                run.status = model::run::RunStatus::Cancelled;
            }
            store::run::insert(tx, &run, &content)?;
            execution::join(tx, 7, run.id)?;
        }
        Ok(())
    })
    .await
    .unwrap();
    assert_eq!(read(&w.store, |tx| execution::callers(tx, 7, 5)).await, [RunId(8), RunId(9)]);
    assert_eq!(read(&w.store, |tx| execution::open_of(tx, ORG, "k")).await, Some(7));
    assert_eq!(read(&w.store, |tx| execution::open_of(tx, OTHER, "k")).await, None);
    write(&w.store, |tx| {
        let it = execution::lock(tx, 7)?.unwrap();
        let event = model::execution::ExecutionEvent::Abandoned;
        let Outcome::Moved { next, .. } = model::execution::apply(&it, &event, tx.at())? else { panic!("it ends") };
        execution::leave(tx, 7, RunId(8))?;
        execution::save(tx, 7, &next)
    })
    .await
    .unwrap();
    assert_eq!(read(&w.store, |tx| execution::callers(tx, 7, 5)).await, [RunId(9)]);
    assert_eq!(read(&w.store, |tx| execution::open_of(tx, ORG, "k")).await, None);
    made(8).await.unwrap();
    assert_eq!(read(&w.store, |tx| execution::request(tx, 8)).await, serde_json::json!({ "a": 8 }));
    let page = read(&w.store, |tx| execution::page(tx, ORG, i64::MAX, 5)).await;
    assert_eq!(page.iter().map(|found| found.id).collect::<Vec<_>>(), [8, 7]);
    write(&w.store, |tx| execution::raise_epoch(tx, ORG, "f")).await.unwrap();
    write(&w.store, |tx| execution::raise_epoch(tx, ORG, "f")).await.unwrap();
    let (one, two) = (NodeId(Id([1; 32])), NodeId(Id([2; 32])));
    write(&w.store, move |tx| execution::raise_epoch_of_call(tx, ORG, one)).await.unwrap();
    for (org, node, raised) in [(ORG, one, 3), (ORG, two, 2), (OTHER, one, 0)] {
        assert_eq!(read(&w.store, move |tx| execution::epoch(tx, org, "f", node)).await, raised);
    }
    // What has ended long ago goes, and its number stays known if its key may come again.
    write(&w.store, |tx| {
        let it = execution::lock(tx, 8)?.unwrap();
        let event = model::execution::ExecutionEvent::Abandoned;
        let Outcome::Moved { next, .. } = model::execution::apply(&it, &event, tx.at())? else { panic!("it ends") };
        execution::save(tx, 8, &next)
    })
    .await
    .unwrap();
    let (now, open) = read(&w.store, |tx| Ok((tx.at(), execution::open_after(tx, ORG, "", 5)?))).await;
    assert_eq!(open, []);
    assert_eq!(read(&w.store, move |tx| execution::ended_before(tx, now - 1_000_000, 5)).await, []);
    let ended = read(&w.store, move |tx| execution::ended_before(tx, now + 1_000_000, 5)).await;
    assert_eq!(ended.iter().map(|it| it.id).collect::<std::collections::BTreeSet<_>>(), [7, 8].into());
    assert_eq!(read(&w.store, |tx| execution::last_attempt(tx, ORG, "k")).await, 1);
    for returns in [true, false] {
        let ended = ended.clone();
        write(&w.store, move |tx| ended.iter().try_for_each(|it| execution::forget(tx, it, returns))).await.unwrap();
    }
    assert_eq!(read(&w.store, |tx| execution::page(tx, ORG, i64::MAX, 5)).await, []);
    assert_eq!(read(&w.store, |tx| execution::last_attempt(tx, ORG, "k")).await, 1);
    assert_eq!(read(&w.store, |tx| execution::last_attempt(tx, ORG, "other")).await, 0);
}

pub async fn a_claim_is_taken_over_by_one(w: &World) {
    let now = read(&w.store, |tx| Ok(tx.at())).await;
    let owner = Orchestrator::new("k", 1, "a", "1");
    let swap = owner.swap(now).unwrap();
    assert!(write(&w.store, move |tx| claim::swap(tx, ORG, &swap)).await.unwrap());
    let late = now + model::claim::LEASE_MS;
    let found = read(&w.store, |tx| claim::find(tx, ORG, "k")).await.unwrap();
    let follower = |me: &str| {
        let it = Orchestrator::new("k", 1, me, me);
        match model::claim::apply(&it, &OrchestratorEvent::ClaimFound(found.clone()), late).unwrap() {
            Outcome::Moved { next, .. } if next.status == OrchestratorStatus::FollowExisting => next,
            other => panic!("{other:?}"),
        }
    };
    let (one, two) = (follower("b").swap(late).unwrap(), follower("c").swap(late).unwrap());
    let takes = [one, two];
    let answers = crate::together(&w.store, 2, |i| {
        let swap = takes[i].clone();
        move |tx| claim::swap(tx, ORG, &swap)
    })
    .await;
    assert_eq!(answers.into_iter().filter(|answer| *answer.as_ref().unwrap()).count(), 1);
    assert_eq!(read(&w.store, |tx| claim::find(tx, ORG, "k")).await.unwrap().fence, 2);
    write(&w.store, |tx| claim::release(tx, ORG, "k")).await.unwrap();
    assert_eq!(read(&w.store, |tx| claim::find(tx, ORG, "k")).await, None);
}
