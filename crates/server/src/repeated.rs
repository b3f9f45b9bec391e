//! Every POST there is, asked twice under one key: one effect and one answer; another request under the same key is refused.

use crate::hostile::{Got, World, filled};
use crate::routes::API;
use axum::http::StatusCode;
use engine::store::idempotency::Key;
use engine::store::{Lane, Tx, WorkClass, WorkKind};
use model::allocation::AllocationStatus;
use model::orphan::{Listed, ListedStatus, ResourceType};
use model::time::HOUR;
use model::workflow::WorkflowStatus;
use model::{AllocationId, Failure, InstanceId, PoolId, Refused, RunId};
use serde_json::{Value, json};

/// Everything that a request may have changed, as its asker sees it.
async fn seen(world: &World) -> Vec<Value> {
    let mut all = Vec::new();
    for path in [
        "runs?all=true",
        "calls",
        "workflows",
        "snapshots",
        "instances?all=true",
        "allocations",
        "credits/ledger",
        "tokens",
        "escalations?all=true",
        "approvals?all=true",
        "orphans",
        "orphans/whitelist",
        "providers",
    ] {
        let got = world.ask("get", &format!("/api/v1/{path}"), Some(&world.admin), &[], "").await;
        assert_eq!(got.status, StatusCode::OK, "{path}");
        let mut things = got.body["data"].as_array().unwrap().clone();
        for field in ["queued_ms", "starting_ms", "age_ms", "machine_ms", "credits_so_far", "credits_so_far_micro"] {
            // These grow while one looks.
            things.iter_mut().filter_map(Value::as_object_mut).for_each(|thing| drop(thing.remove(field)));
        }
        all.push(Value::Array(things));
    }
    let runs: Vec<String> =
        all[0].as_array().unwrap().iter().map(|run| run["id"].as_str().unwrap().to_owned()).collect();
    for run in runs {
        let got = world.ask("get", &format!("/api/v1/runs/{run}/steps"), Some(&world.admin), &[], "").await;
        all.push(got.body["data"].clone());
        let id: RunId = run.parse().unwrap();
        let sent = world.engine.store.read("test.read", move |tx| engine::store::message::count(tx, id)).await;
        all.push(json!(sent.unwrap()));
    }
    all
}

pub(crate) async fn write(world: &World, f: impl Fn(&mut Tx) -> Result<(), Failure> + Send + Sync + 'static) {
    world.engine.store.write(Lane::Normal, "test.write", f).await.unwrap();
}

/// A run that has a machine (nothing ever starts on it).
pub(crate) async fn placed(world: &World) -> Value {
    let got = world.submit(&world.admin, json!({ "commands": ["true"], "start": true })).await;
    assert!(got.body["instance"].is_string(), "{}", got.body);
    got.body
}

/// A run that waits for the only machine.
async fn waiting(world: &World) -> String {
    placed(world).await;
    let got = world.submit(&world.admin, json!({ "commands": ["true"], "start": true })).await;
    got.body["id"].as_str().unwrap().to_owned()
}

/// A run whose orchestration was given up.
pub(crate) async fn failed(world: &World) -> String {
    let id = waiting(world).await;
    let run: RunId = id.parse().unwrap();
    let job = world.engine.jobs(world.org, run).await.unwrap().1[0].id;
    write(world, move |tx| {
        let at = tx.at();
        tx.wake(WorkKind::Job, job.0, at);
        Ok(())
    })
    .await;
    let worker = world.engine.start_worker("test".into()).await.unwrap();
    world.engine.beat(&worker).await.unwrap();
    for mut item in world.engine.claim(&worker, WorkClass::Control, 32).await.unwrap() {
        item.dead = item.kind == WorkKind::Job && item.subject == job.0;
        if item.dead {
            world.engine.work_on(item).await;
        }
    }
    id
}

/// A slot that has finished and is held.
pub(crate) async fn held(world: &World) -> String {
    placed(world).await;
    let list = world.ask("get", "/api/v1/allocations", Some(&world.admin), &[], "").await;
    let id = list.body["data"][0]["id"].as_str().unwrap().to_owned();
    let slot: AllocationId = id.parse().unwrap();
    write(world, move |tx| {
        let (at, mut slot) = (tx.at(), engine::store::allocation::find(tx, slot)?.unwrap());
        slot.status = AllocationStatus::Complete;
        (slot.completed_at, slot.debug_hold_until) = (Some(at), Some(at + HOUR));
        engine::store::allocation::save(tx, &slot)
    })
    .await;
    id
}

/// The same, on a machine that can send its folder.
async fn sendable(world: &World) -> String {
    let slot = held(world).await;
    let id: AllocationId = slot.parse().unwrap();
    write(world, move |tx| {
        let instance = engine::store::allocation::find(tx, id)?.unwrap().instance;
        let mut instance = engine::store::instance::lock(tx, instance)?;
        instance.status = model::instance::InstanceStatus::Ready;
        engine::store::instance::save(tx, &instance)
    })
    .await;
    slot
}

/// A termination that failed.
pub(crate) async fn failed_workflow(world: &World) -> String {
    let instance = placed(world).await["instance"].as_str().unwrap().to_owned();
    let path = format!("/api/v1/instances/{instance}/terminate");
    let got = world.ask("post", &path, Some(&world.admin), &[], r#"{"force":true}"#).await;
    assert_eq!(got.status, StatusCode::OK, "{}", got.body);
    let id: InstanceId = instance.parse().unwrap();
    write(world, move |tx| {
        let all = engine::store::workflow::of_instance(tx, id)?;
        let mut ending = all.into_iter().max_by_key(|workflow| workflow.id).unwrap();
        ending.status = WorkflowStatus::Failed;
        engine::store::workflow::save(tx, &ending)
    })
    .await;
    let list = world.ask("get", "/api/v1/workflows", Some(&world.admin), &[], "").await;
    list.body["data"][0]["id"].as_str().unwrap().to_owned()
}

pub(crate) async fn launching(world: &World) -> String {
    placed(world).await;
    let list = world.ask("get", "/api/v1/workflows", Some(&world.admin), &[], "").await;
    list.body["data"][0]["id"].as_str().unwrap().to_owned()
}

/// A run whose program is elsewhere.
async fn external(world: &World) -> String {
    let got = world.submit(&world.admin, json!({ "type": "external", "start": true })).await;
    assert_eq!(got.body["status"], "running", "{}", got.body);
    got.body["id"].as_str().unwrap().to_owned()
}

/// The same, with a step that has begun: both ids.
async fn begun(world: &World) -> String {
    let run = external(world).await;
    let got = world.ask("post", &format!("/api/v1/runs/{run}/steps"), Some(&world.admin), &[], r#"{"name":"s"}"#).await;
    assert_eq!(got.body["state"], "go", "{}", got.body);
    format!("{run}/{}", got.body["id"].as_str().unwrap())
}

/// A run with an agent that will talk with a model, and waits for a person before it does.
pub(crate) async fn talking(world: &World) -> String {
    let steps = json!([{ "name": "ask", "approval": "go on?" }, { "name": "talk", "llm": { "prompt": "hello" } }]);
    world.agents(steps).await
}

/// A machine with a name of ours that no row knows.
pub(crate) async fn orphan(world: &World) {
    orphan_as(world, "repl-testtest-none-1".to_owned(), "i-1".to_owned()).await;
}

pub(crate) async fn orphan_as(world: &World, name: String, handle: String) {
    write(world, move |tx| {
        let listed = Listed {
            kind: ResourceType::Instance,
            name: name.clone(),
            handle: handle.clone(),
            nonce: None,
            status: ListedStatus::Running,
            instance_type: None,
            region: "here".to_owned(),
            created_at: None,
            ip: None,
            last_seen: None,
            price_micro: None,
        };
        let at = tx.at();
        engine::store::orphan::seen(tx, "local", PoolId(1), at, &listed)
    })
    .await;
}

/// A call of a function that a program executes.
fn call(input: i64) -> Value {
    json!({ "function": "dml+exec://dml-exec-none/f", "inputs": [input] })
}

pub(crate) async fn called(world: &World) -> String {
    let got = world.ask("post", "/api/v1/calls", Some(&world.admin), &[], &call(1).to_string()).await;
    assert_eq!(got.status, StatusCode::ACCEPTED, "{}", got.body);
    got.body["id"].as_str().unwrap().to_owned()
}

/// The thing a route is about, and two bodies for it.
async fn prepared(world: &World, path: &str) -> (String, Value, Value) {
    let (plain, other) = (json!({}), json!({ "abort": true }));
    match path {
        "/runs" => (String::new(), json!({ "commands": ["true"], "start": true }), json!({ "commands": ["false"] })),
        "/runs/{id}/start" => {
            let got = world.submit(&world.admin, json!({ "commands": ["true"] })).await;
            (got.body["id"].as_str().unwrap().to_owned(), plain, other)
        }
        "/runs/{id}/cancel" | "/runs/{id}/stop" => (waiting(world).await, plain, other),
        "/runs/{id}/pause" => (waiting(world).await, plain, Value::Null),
        "/runs/{id}/resume" => {
            let id = waiting(world).await;
            let path = format!("/api/v1/runs/{id}/pause");
            let got = world.ask("post", &path, Some(&world.admin), &[], "").await;
            assert_eq!(got.body["status"], "paused", "{}", got.body);
            (id, plain, Value::Null)
        }
        "/runs/{id}/retry" => (failed(world).await, plain, json!({ "force": true })),
        "/runs/{id}/steps" => (external(world).await, json!({ "name": "s" }), json!({ "name": "other" })),
        "/runs/{id}/steps/{step}/complete" => (begun(world).await, json!({ "fence": 1 }), json!({ "fence": 2 })),
        "/runs/{id}/steps/{step}/fail" => {
            let body = |message: &str| json!({ "fence": 1, "message": message });
            (begun(world).await, body("once"), body("twice"))
        }
        "/runs/{id}/steps/{step}/heartbeat" => (begun(world).await, json!({ "fence": 1 }), json!({ "fence": 2 })),
        "/steps/poll" => {
            world.agents(json!([{ "name": "s", "external": { "tool": "crm", "input": 1 } }])).await;
            (String::new(), json!({ "tools": ["crm"], "wait_ms": 0 }), json!({ "tools": ["other"], "wait_ms": 0 }))
        }
        "/runs/{id}/finish" => (external(world).await, plain, json!({ "error": "x" })),
        "/blobs/missing" => (String::new(), json!({ "hashes": ["0".repeat(64)] }), json!({ "hashes": [] })),
        "/instances/{id}/terminate" => {
            let run = placed(world).await;
            (run["instance"].as_str().unwrap().to_owned(), json!({ "force": true }), plain)
        }
        "/instances/{id}/drain" => {
            let run = placed(world).await;
            let id: InstanceId = run["instance"].as_str().unwrap().parse().unwrap();
            write(world, move |tx| {
                let mut machine = engine::store::instance::lock(tx, id)?;
                machine.status = model::instance::InstanceStatus::Ready;
                engine::store::instance::save(tx, &machine)
            })
            .await;
            (id.to_string(), plain, Value::Null)
        }
        "/allocations/{id}/extend" => (held(world).await, json!({ "duration_ms": 7_200_000 }), plain),
        "/allocations/{id}/release" => (held(world).await, plain, Value::Null),
        "/allocations/{id}/snapshot" => (sendable(world).await, plain, Value::Null),
        "/workflows/{id}/cancel" => (launching(world).await, plain, json!({ "reason": "too dear" })),
        "/workflows/{id}/retry" => (failed_workflow(world).await, plain, Value::Null),
        "/escalations/{id}/resolve" => {
            (world.ticket().await, json!({ "action": "skip" }), json!({ "action": "abort" }))
        }
        "/approvals/{id}/approve" => (world.approval().await, plain, json!({ "note": "fine" })),
        "/approvals/{id}/reject" => (world.approval().await, plain, json!({ "note": "no" })),
        "/runs/{id}/messages" => (talking(world).await, json!({ "text": "once" }), json!({ "text": "other" })),
        "/orphans/scan" => (String::new(), plain, json!({ "provider": "other" })),
        "/orphans/import" => (String::new(), plain, json!({ "org": "other" })),
        "/orphans/whitelist" => {
            let body = |reason: &str| json!({ "provider_id": "i-1", "reason": reason });
            orphan(world).await;
            (String::new(), body("once"), body("other"))
        }
        "/orphans/{id}/terminate" => {
            orphan(world).await;
            ("i-1".to_owned(), json!({ "confirm": "i-1" }), json!({ "confirm": "i-1", "force": true }))
        }
        "/providers" => {
            let body = |max: i64| json!({ "name": "second", "kind": "local", "keys": { "max_instances": max } });
            (String::new(), body(1), body(2))
        }
        "/providers/{id}/test" => ("local".to_owned(), plain, Value::Null),
        "/credits" => (String::new(), json!({ "amount": "5" }), json!({ "amount": "6" })),
        "/tokens" => {
            let body = |name: &str| json!({ "name": name, "scopes": ["read"] });
            (String::new(), body("once"), body("other"))
        }
        "/cache/invalidate" => (String::new(), json!({ "all": true }), json!({ "result": "run_99" })),
        "/cache/gc" => (String::new(), plain, json!({ "max_bytes": 1 })),
        "/cache/rebuild" => (String::new(), plain, Value::Null),
        "/calls" => (String::new(), call(1), call(2)),
        "/calls/{id}/cancel" => (called(world).await, plain, Value::Null),
        "/control/stop" => (String::new(), plain, json!({ "all": true })),
        other => panic!("{other} is new here: say how it is asked"),
    }
}

#[tokio::test]
async fn every_post_has_one_effect_and_one_answer_under_its_key() {
    for route in API.iter().filter(|route| route.method == "post") {
        let world = World::new(true).await;
        let (id, body, other) = prepared(&world, route.path).await;
        let path = filled(route.path, &id);
        let ask = async |body: &Value| -> Got {
            let key = [("idempotency-key", "the same")];
            world.ask("post", &path, Some(&world.admin), &key, &body.to_string()).await
        };
        let before = seen(&world).await;
        let first = ask(&body).await;
        assert_eq!(first.status.as_u16(), route.status, "{}: {}", route.path, first.body);
        assert!(!first.headers.contains_key("idempotent-replayed"), "{}", route.path);
        let after = seen(&world).await;
        let heartbeat = route.path.ends_with("/heartbeat");
        // Nothing is kept in this world that could be invalidated or collected.
        let only_asks = heartbeat
            || route.path.starts_with("/cache/")
            // Who wants a call is shown by no listing.
            || matches!(route.path, "/calls/{id}/cancel" | "/blobs/missing" | "/control/stop" | "/orphans/scan" | "/orphans/import");
        assert_eq!(before == after, only_asks, "{}: the first time has an effect", route.path);
        let again = ask(&body).await;
        assert_eq!(seen(&world).await, after, "{}: the second time has none", route.path);
        if route.path == "/tokens" {
            // Shown once and kept nowhere: refused, naming what was made, and without its text.
            assert_eq!((again.status, again.body["code"].as_str()), (StatusCode::CONFLICT, Some("conflict")));
            assert!(again.body["detail"].as_str().unwrap().contains(first.body["id"].as_str().unwrap()));
            assert!(!again.body.to_string().contains(first.body["token"].as_str().unwrap()));
        } else {
            assert_eq!((again.status, &again.body), (first.status, &first.body), "{}", route.path);
            assert_eq!(again.headers["idempotent-replayed"], "true", "{}", route.path);
        }
        // With neither a subject nor a body there is no other request.
        if other.is_null() && !route.path.contains('{') {
            continue;
        }
        // Where there is only one body, another request is the same about something else.
        let (path, other) =
            if other.is_null() { (filled(route.path, &format!("{id}z")), &body) } else { (path.clone(), &other) };
        let key = [("idempotency-key", "the same")];
        let reused = world.ask("post", &path, Some(&world.admin), &key, &other.to_string()).await;
        assert_eq!(
            (reused.status, reused.body["code"].as_str()),
            (StatusCode::UNPROCESSABLE_ENTITY, Some("idempotency_key_reused")),
            "{}",
            route.path
        );
        assert_eq!(seen(&world).await, after, "{}: nor has another request", route.path);
    }
}

/// A request that is refused: its path and body, and the code of its refusal.
async fn refused(world: &World, path: &str) -> Option<(String, Value, &'static str)> {
    let none = json!({});
    Some(match path {
        "/runs" => {
            let body = json!({ "name": "taken", "commands": ["true"] });
            assert_eq!(world.submit(&world.admin, body.clone()).await.status, StatusCode::CREATED);
            (String::new(), body, "conflict")
        }
        "/runs/{id}/start" | "/runs/{id}/cancel" | "/runs/{id}/stop" | "/runs/{id}/pause" | "/runs/{id}/resume" => {
            ("run_99".to_owned(), none, "not_found")
        }
        "/runs/{id}/retry" => (waiting(world).await, none, "invalid_state_transition"),
        "/runs/{id}/steps" => (waiting(world).await, json!({ "name": "s" }), "conflict"),
        "/runs/{id}/steps/{step}/complete" | "/runs/{id}/steps/{step}/heartbeat" => {
            (format!("{}/stp_99", external(world).await), json!({ "fence": 1 }), "not_found")
        }
        "/runs/{id}/steps/{step}/fail" => {
            (format!("{}/stp_99", external(world).await), json!({ "fence": 1, "message": "x" }), "not_found")
        }
        "/runs/{id}/finish" => (waiting(world).await, none, "conflict"),
        "/instances/{id}/terminate" => {
            let run = placed(world).await;
            (run["instance"].as_str().unwrap().to_owned(), none, "conflict")
        }
        "/instances/{id}/drain" => ("ins_99".to_owned(), none, "not_found"),
        "/allocations/{id}/extend" | "/allocations/{id}/release" | "/allocations/{id}/snapshot" => {
            placed(world).await;
            let list = world.ask("get", "/api/v1/allocations", Some(&world.admin), &[], "").await;
            (list.body["data"][0]["id"].as_str().unwrap().to_owned(), none, "conflict")
        }
        "/workflows/{id}/cancel" => ("wfl_99".to_owned(), none, "not_found"),
        "/escalations/{id}/resolve" => (world.approval().await, json!({ "action": "skip" }), "not_found"),
        "/approvals/{id}/approve" | "/approvals/{id}/reject" => (world.ticket().await, none, "not_found"),
        "/workflows/{id}/retry" => (launching(world).await, none, "conflict"),
        "/runs/{id}/messages" => (waiting(world).await, json!({ "text": "x" }), "conflict"),
        "/orphans/import" => (String::new(), json!({ "org": "nobody" }), "conflict"),
        "/cache/invalidate" => (String::new(), json!({ "result": "run_99" }), "not_found"),
        "/calls/{id}/cancel" => ("cal_99".to_owned(), none, "not_found"),
        "/orphans/whitelist" => (String::new(), json!({ "provider_id": "i-9", "reason": "x" }), "not_found"),
        "/providers" => (String::new(), json!({ "name": "local", "kind": "local" }), "conflict"),
        "/providers/{id}/test" => ("nowhere".to_owned(), none, "not_found"),
        "/orphans/{id}/terminate" => ("i-9".to_owned(), json!({ "confirm": "i-9" }), "not_found"),
        // These refuse nothing but what cannot be read, or who may not ask.
        "/blobs/missing" | "/calls" | "/credits" | "/tokens" | "/control/stop" | "/steps/poll" | "/orphans/scan"
        | "/cache/gc" | "/cache/rebuild" => {
            return None;
        }
        other => panic!("{other} is new here: say how it is refused"),
    })
}

#[tokio::test]
async fn every_refusal_of_a_keyed_post_is_answered_again_byte_by_byte() {
    for route in API.iter().filter(|route| route.method == "post") {
        let world = World::new(true).await;
        let Some((id, body, code)) = refused(&world, route.path).await else { continue };
        let path = filled(route.path, &id);
        let ask = async |key: &str, body: &Value| -> Got {
            let key = [("idempotency-key", key)];
            world.ask("post", &path, Some(&world.admin), &key, &body.to_string()).await
        };
        let before = seen(&world).await;
        let first = ask("the same", &body).await;
        assert_eq!(first.body["code"], code, "{}: {}", route.path, first.body);
        assert!(!first.headers.contains_key("idempotent-replayed"), "{}", route.path);
        for _ in 0..2 {
            let again = ask("the same", &body).await;
            assert_eq!((again.status, &again.body), (first.status, &first.body), "{}", route.path);
            assert_eq!(again.headers["idempotent-replayed"], "true", "{}", route.path);
            assert_eq!(again.headers["content-type"], "application/problem+json", "{}", route.path);
            assert_ne!(again.headers["x-request-id"], first.headers["x-request-id"], "it is a request of its own");
        }
        // Another body where there is one, else the same about something else.
        let (other_path, other) = match route.path {
            "/runs" => (path.clone(), json!({ "commands": ["false"] })),
            "/orphans/import" => (path.clone(), json!({ "org": "no-one" })),
            "/cache/invalidate" => (path.clone(), json!({ "result": "run_98" })),
            "/providers" => (path.clone(), json!({ "name": "exec", "kind": "exec" })),
            "/orphans/whitelist" => (path.clone(), json!({ "provider_id": "i-8", "reason": "x" })),
            _ => (filled(route.path, &format!("{id}z")), body.clone()),
        };
        let key = [("idempotency-key", "the same")];
        let reused = world.ask("post", &other_path, Some(&world.admin), &key, &other.to_string()).await;
        assert_eq!(reused.body["code"], "idempotency_key_reused", "{}", route.path);
        let fresh = ask("another", &body).await;
        assert!(!fresh.headers.contains_key("idempotent-replayed"), "{}: judged anew", route.path);
        assert_ne!(fresh.body["request_id"], first.body["request_id"]);
        assert_eq!(seen(&world).await, before, "{}: nothing happened", route.path);
    }
}

/// One answer, whichever request came first: refusals and effects under one key, at the same moment.
#[tokio::test]
async fn a_refusal_and_an_effect_under_one_key_give_one_answer() {
    let world = World::new(true).await;
    for round in 0..20 {
        let turn = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(round));
        let key = Key {
            org: world.org,
            route: "POST /test".to_owned(),
            key: format!("key-{round}"),
            hash: [1; 32],
            request: "req_1".to_owned(),
        };
        let ask = || {
            let (engine, key, turn) = (world.engine.clone(), key.clone(), turn.clone());
            tokio::spawn(async move {
                let every_other = move |_: &mut Tx| match turn.fetch_add(1, std::sync::atomic::Ordering::Relaxed) % 2 {
                    0 => Ok(b"done".to_vec()),
                    _ => Err(Refused::Conflict { why: "not now".to_owned() }.into()),
                };
                match engine.keyed(Lane::Normal, "test.keyed", Some(key.clone()), 200, every_other).await {
                    Ok(answer) => (answer.status, answer.body),
                    Err(failure) => crate::problem::remembered(failure.refused().unwrap(), &key).unwrap(),
                }
            })
        };
        let asked: Vec<_> = (0..8).map(|_| ask()).collect();
        let mut answers = std::collections::BTreeSet::new();
        for answer in asked {
            answers.insert(answer.await.unwrap());
        }
        assert_eq!(answers.len(), 1, "{answers:?}");
    }
}
