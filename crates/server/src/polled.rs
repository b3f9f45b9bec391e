//! Polls for `external` steps of plans, by the route that programs use: authorization, waiting, and that one of several pollers gets the step.

use crate::hostile::{Got, World};
use axum::http::StatusCode;
use engine::durable::StepClaim;
use engine::store::token::Scope;
use model::step::StepTry;
use model::{JobId, StepId};
use serde_json::{Value, json};
use std::sync::Arc;

const PROGRAMS: usize = 20;

async fn poll(world: &World, token: &str, body: Value) -> Got {
    world.ask("post", "/api/v1/steps/poll", Some(token), &[], &body.to_string()).await
}

/// A run whose only step is offered.
async fn offered(world: &World) -> String {
    world.agents(json!([{ "name": "s", "external": { "tool": "crm", "input": { "n": 1 } } }])).await
}

async fn report(world: &World, taken: &Value, how: &str, body: Value) -> Got {
    let (run, step) = (taken["run"].as_str().unwrap(), taken["id"].as_str().unwrap());
    let path = format!("/api/v1/runs/{run}/steps/{step}/{how}");
    world.ask("post", &path, Some(&world.admin), &[], &body.to_string()).await
}

#[tokio::test]
async fn a_program_takes_a_step_and_ends_it_by_the_routes_of_durable_steps() {
    let world = World::new(true).await;
    let run = offered(&world).await;
    let taken = poll(&world, &world.admin, json!({ "tools": ["crm"], "wait_ms": 0, "lease_ms": 5_000 })).await;
    assert_eq!(taken.status, StatusCode::OK, "{}", taken.body);
    let taken = taken.body;
    assert_eq!((&taken["run"], &taken["input"], &taken["fence"]), (&json!(run), &json!({ "n": 1 }), &json!(1)));
    assert_eq!((&taken["path"], &taken["lease_ms"]), (&json!("a/t/s"), &json!(5_000)));
    assert!(taken["deadline_at"].is_i64() && !taken["key"].as_str().unwrap().is_empty());
    let beat = report(&world, &taken, "heartbeat", json!({ "fence": 1 })).await;
    assert_eq!(beat.body, json!({ "state": "go" }));
    for (body, field) in [
        (json!({ "fence": 1, "message": "x", "class": "budget" }), "class"),
        (json!({ "fence": 1, "message": "x", "effect": "maybe" }), "effect"),
    ] {
        let got = report(&world, &taken, "fail", body).await;
        assert_eq!(got.status, StatusCode::BAD_REQUEST, "{}", got.body);
        assert!(got.body["detail"].as_str().unwrap().starts_with(field), "{}", got.body);
    }
    let again = json!({ "fence": 1, "message": "busy", "class": "transient", "effect": "none" });
    assert_eq!(report(&world, &taken, "fail", again).await.body["state"], "failed");
    let why = world.ask("get", &format!("/api/v1/runs/{run}/steps"), Some(&world.admin), &[], "").await;
    assert_eq!(
        (&why.body["data"][0]["status"], &why.body["data"][0]["decision"]),
        (&json!("pending"), &json!("retry"))
    );
}

#[tokio::test]
async fn an_output_that_is_larger_than_other_bodies_may_be_becomes_an_artifact() {
    let world = World::new(true).await;
    let run = offered(&world).await;
    let taken = poll(&world, &world.admin, json!({ "tools": ["crm"], "wait_ms": 0 })).await.body;
    let of = |mebibytes: usize| json!({ "fence": 1, "output": "x".repeat(mebibytes << 20) });
    assert_eq!(report(&world, &taken, "complete", of(10)).await.status, StatusCode::PAYLOAD_TOO_LARGE);
    let done = report(&world, &taken, "complete", of(3)).await;
    assert_eq!((done.status, &done.body["state"]), (StatusCode::OK, &json!("completed")), "{}", done.body);
    let listed = world.ask("get", &format!("/api/v1/runs/{run}/artifacts"), Some(&world.admin), &[], "").await;
    let artifact = &listed.body["data"][0];
    assert_eq!((&artifact["state"], &artifact["size"]), (&json!("final"), &json!(3 << 20)), "{}", listed.body);
}

#[tokio::test]
async fn a_waiting_program_is_woken_by_the_commit_that_offers_a_step() {
    let world = World::new(true).await;
    let wait = poll(&world, &world.admin, json!({ "tools": ["crm"], "wait_ms": 60_000 }));
    let (taken, run) = tokio::join!(wait, offered(&world));
    assert_eq!((taken.status, &taken.body["run"]), (StatusCode::OK, &json!(run)), "{}", taken.body);
    let done = report(&world, &taken.body, "complete", json!({ "fence": 1, "output": 7 })).await;
    assert_eq!(done.body["state"], "completed", "{}", done.body);
    world.work().await;
    let run = world.ask("get", &format!("/api/v1/runs/{run}"), Some(&world.admin), &[], "").await;
    assert_eq!(run.body["status"], "completed", "{}", run.body);
    // Nothing is offered, and the control plane is about to end: the poll returns at once.
    let wait = poll(&world, &world.admin, json!({ "tools": ["crm"] }));
    let (none, _) = tokio::join!(wait, async { world.state.closing.send_replace(true) });
    assert_eq!((none.status, none.body), (StatusCode::NO_CONTENT, Value::Null));
}

#[tokio::test]
async fn tokens_that_may_write_poll_and_those_of_jobs_and_of_other_orgs_get_nothing() {
    let world = World::new(true).await;
    let run = offered(&world).await;
    let ask = json!({ "tools": ["crm"], "wait_ms": 0 });
    let other = world.engine.ensure_org("other").await.unwrap();
    let stranger = world.token(other, Scope::Admin).await;
    assert_eq!(poll(&world, &stranger, ask.clone()).await.status, StatusCode::NO_CONTENT);
    let step = StepTry { id: StepId(1), number: 1 };
    let claim = StepClaim { org: world.org, run: run.parse().unwrap(), attempt: 1, job: JobId(1), epoch: 1, step };
    let of_job = claim.token(&world.engine.context.installation);
    assert_eq!(poll(&world, &of_job, ask.clone()).await.status, StatusCode::FORBIDDEN);
    for (body, field) in [
        (json!({ "tools": [] }), "tools"),
        (json!({ "tools": ["a\u{0}"] }), "tools"),
        (json!({ "tools": ["crm"], "wait_ms": 60_001 }), "wait_ms"),
        (json!({ "tools": ["crm"], "lease_ms": 10 }), "lease_ms"),
        (json!({ "tools": ["crm"], "lease": 10 }), "lease"),
    ] {
        let got = poll(&world, &world.admin, body).await;
        assert_eq!(got.status, StatusCode::BAD_REQUEST, "{}", got.body);
        assert!(got.body["detail"].as_str().unwrap().contains(field), "{}", got.body);
    }
    let writer = world.token(world.org, Scope::Write).await;
    assert_eq!(poll(&world, &writer, ask).await.status, StatusCode::OK);
}

#[tokio::test(flavor = "multi_thread")]
async fn of_twenty_programs_that_wait_one_takes_the_step() {
    let world = Arc::new(World::new(true).await);
    let programs: Vec<_> = (0..PROGRAMS)
        .map(|_| {
            let world = world.clone();
            let ask = json!({ "tools": ["crm"], "wait_ms": 60_000 });
            tokio::spawn(async move { poll(&world, &world.admin, ask).await })
        })
        .collect();
    let run = offered(&world).await;
    let mut programs = futures_util::stream::FuturesUnordered::from_iter(programs);
    let first = futures_util::StreamExt::next(&mut programs).await.unwrap().unwrap();
    assert_eq!((first.status, &first.body["run"]), (StatusCode::OK, &json!(run)), "{}", first.body);
    world.state.closing.send_replace(true);
    while let Some(other) = futures_util::StreamExt::next(&mut programs).await {
        assert_eq!(other.unwrap().status, StatusCode::NO_CONTENT);
    }
}
