//! Submissions of plans: answers that wait for the run's end, and plans that an org cannot pay.

use crate::hostile::{Got, World};
use axum::http::StatusCode;
use engine::store::token::Scope;
use engine::store::{Entry, EntryKind, Lane};
use model::Credits;
use serde_json::{Value, json};

async fn submit(world: &World, token: &str, wait: &str, plan: Value, start: bool) -> Got {
    let body = json!({ "type": "agents", "plan": plan, "start": start });
    world.ask("post", &format!("/api/v1/runs{wait}"), Some(token), &[], &body.to_string()).await
}

fn plan(step: Value) -> Value {
    json!({ "type": "agents", "agents": [{ "name": "a", "tasks": [{ "name": "t", "steps": [step] }] }],
        "output": { "got": "${{ agents.a.tasks.t.steps.s.output.status }}" } })
}

#[tokio::test]
async fn a_submission_that_waits_is_answered_with_the_output_in_time_and_else_with_the_run() {
    let world = World::new(true).await;
    let http = plan(json!({ "name": "s", "http": { "url": "https://works.example/" } }));
    let waits = submit(&world, &world.admin, "?wait=30s", http, true);
    // Its run is worked on as soon as it is written.
    let works = async {
        while world.engine.open_runs().await.unwrap() == 0 {
            tokio::task::yield_now().await;
        }
        world.work().await;
    };
    let (got, ()) = tokio::join!(waits, works);
    assert_eq!(got.status, StatusCode::CREATED, "{}", got.body);
    assert_eq!((&got.body["status"], &got.body["output"]), (&json!("completed"), &json!({ "got": 200 })));
    // No program takes this step.
    let waiting =
        json!({ "type": "agents", "agents": [{ "tasks": [{ "steps": [{ "name": "s", "external": "crm" }] }] }] });
    let got = submit(&world, &world.admin, "?wait=1ms", waiting, true).await;
    assert_eq!(got.status, StatusCode::CREATED, "{}", got.body);
    assert!(got.body["output"].is_null() && got.body["status"] != "completed", "{}", got.body);
    let run = world
        .ask("get", &format!("/api/v1/runs/{}", got.body["id"].as_str().unwrap()), Some(&world.admin), &[], "")
        .await;
    assert_eq!(run.status, StatusCode::OK, "it can be asked for again by its id: {}", run.body);
    for (wait, detail) in [("?wait=61s", "at most 60s"), ("?wait=soon", "wait")] {
        let got = submit(&world, &world.admin, wait, plan(json!({ "name": "s", "wait": "1s" })), true).await;
        assert_eq!(got.status, StatusCode::BAD_REQUEST, "{wait}: {}", got.body);
        assert!(got.body["detail"].as_str().unwrap().contains(detail), "{wait}: {}", got.body);
    }
}

/// A run that is only created sets nothing aside; what it may cost is compared all the same, so that a plan which could never start is refused at once.
#[tokio::test]
async fn a_plan_that_may_cost_more_than_the_org_has_is_refused_when_it_is_created() {
    let world = World::new(true).await;
    let org = world.engine.store.write(Lane::Normal, "test.org", |tx| {
        let org = engine::store::org::create(tx, "careful")?;
        tx.ledger(Entry::new(org, EntryKind::Topup, Credits::whole(1), "first"));
        Ok(org)
    });
    let token = world.token(org.await.unwrap(), Scope::Admin).await;
    // A token of a model without a price costs a micro-credit.
    for (tokens, budget, status) in [
        (1_000_000, None, StatusCode::CREATED),
        (1_000_001, None, StatusCode::PAYMENT_REQUIRED),
        (1_000_001, Some(1), StatusCode::CREATED),
    ] {
        let plan = json!({ "type": "agents", "max_tokens": tokens, "budget": budget,
            "agents": [{ "tasks": [{ "steps": [{ "llm": { "prompt": "p" } }] }] }] });
        let got = submit(&world, &token, "", plan, false).await;
        assert_eq!(got.status, status, "{tokens} {budget:?}: {}", got.body);
        if status == StatusCode::PAYMENT_REQUIRED {
            assert_eq!(got.body["code"], "insufficient_credits", "{}", got.body);
        }
    }
    let runs = world.ask("get", "/api/v1/runs?all=true", Some(&token), &[], "").await;
    assert_eq!(runs.body["data"].as_array().map(Vec::len), Some(2), "the refused one was not written: {}", runs.body);
}
