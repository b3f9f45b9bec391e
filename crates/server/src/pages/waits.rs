//! What a run waits for stands on top of its page, also where a machine of it works meanwhile; what works as it should has no such box. Durations
//! in it can be counted on.

use super::followed::write;
use super::tests::{enter, get, submitted, world};
use crate::hostile::World;
use crate::repeated;
use axum::http::StatusCode;
use model::job::{Job, JobStatus};
use model::run::{Called, Phase, Run, RunStatus};
use model::{AgentId, JobId, RunId, Timestamp};
use serde_json::{Value, json};

/// Ids of rows that tests make: far from those that the store gives out.
const FAR: i64 = 1 << 40;
const WHY: &str = r#"<section class="why""#;

async fn read(world: &World, path: &str) -> Value {
    let got = world.ask("get", &format!("/api/v1{path}"), Some(&world.admin), &[], "").await;
    assert_eq!(got.status, StatusCode::OK, "{path}: {}", got.body);
    got.body
}

async fn change(world: &World, run: &str, change: fn(&mut Run)) {
    let id: RunId = run.parse().unwrap();
    write(world, move |tx| {
        let mut run = engine::store::run::lock(tx, id)?;
        change(&mut run);
        engine::store::run::save(tx, &run)
    })
    .await;
}

/// A job of this run on a machine, at work.
async fn working(world: &World, run: &str) {
    let placed = repeated::placed(world).await;
    let like: RunId = placed["id"].as_str().unwrap().parse().unwrap();
    let like = world.engine.jobs(world.org, like).await.unwrap().1.remove(0);
    let id: RunId = run.parse().unwrap();
    write(world, move |tx| {
        let (status, running_at, at) = (JobStatus::Running, Some(tx.at()), tx.at());
        let (placed_at, allocation, instance, agent) = (Some(at), None, None, AgentId(FAR));
        let job = Job { id: JobId(FAR), run: id, status, placed_at, running_at, ..like.clone() };
        let job = Job { agent, allocation, instance, ..job };
        engine::store::job::insert(tx, &job, model::spec::Priority::Normal)
    })
    .await;
    change(world, run, |run| run.phase = Some(Phase::Running)).await;
}

#[tokio::test]
async fn a_run_whose_machine_works_leads_to_the_approval_it_waits_for() {
    let world = world().await;
    let cookie = enter(&world, &world.admin).await;
    let approval = world.approval().await;
    let asked = read(&world, &format!("/approvals/{approval}")).await;
    let run = asked["run"].as_str().unwrap();
    working(&world, run).await;
    assert_eq!(read(&world, &format!("/runs/{run}")).await["phase"], "running");
    let page = get(&world, &format!("/runs/{run}"), &cookie).await.text;
    assert!(page.contains("a step of it waits for a person"), "{page}");
    assert!(page.contains(&format!(r#"href="/inbox?open={approval}">Answer</a>"#)), "{page}");
    // Since when it waits, for the script.
    assert!(page.contains(&format!(r#" data-since="{}""#, asked["asked_at"])), "{page}");
}

#[tokio::test]
async fn a_plan_that_works_has_no_warning_and_one_that_waits_has() {
    let world = world().await;
    let cookie = enter(&world, &world.admin).await;
    let run = world.agents(json!([{ "name": "s", "external": { "tool": "crm", "input": 1 } }])).await;
    let page = async || get(&world, &format!("/runs/{run}"), &cookie).await.text;
    assert!(page().await.contains(WHY), "it waits for a program");
    let body = json!({ "tools": ["crm"] }).to_string();
    let taken = world.ask("post", "/api/v1/steps/poll", Some(&world.admin), &[], &body).await;
    assert_eq!(taken.status, StatusCode::OK, "{}", taken.body);
    assert_eq!(read(&world, &format!("/runs/{run}/why")).await["attention"], false);
    assert!(!page().await.contains(WHY), "{}", page().await);
    working(&world, &run).await;
    assert!(!page().await.contains(WHY), "{}", page().await);
    // A warning about a run at work, with the time that is left.
    change(&world, &run, |run| run.credits_end_at = Some(Timestamp(crate::now_ms() + 600_000))).await;
    let page = page().await;
    let until = read(&world, &format!("/runs/{run}/why")).await["spans"].as_array().unwrap().clone();
    let until = until.iter().find_map(|span| span["until"].as_i64()).expect("the time that is left");
    assert!(page.contains(WHY) && page.contains(&format!(r#" data-until="{until}""#)), "{page}");
    assert!(page.contains("the credits set aside for it end in "), "{page}");
}

#[tokio::test]
async fn a_run_that_was_not_started_has_no_warning_and_one_that_follows_another_leads_to_it() {
    let world = world().await;
    let cookie = enter(&world, &world.admin).await;
    let (other, run) = (submitted(&world, false).await, submitted(&world, false).await);
    let page = async || get(&world, &format!("/runs/{run}"), &cookie).await.text;
    assert!(!page().await.contains(WHY), "{}", page().await);
    let executes: RunId = other.parse().unwrap();
    let id: RunId = run.parse().unwrap();
    write(&world, move |tx| {
        let mut run = engine::store::run::lock(tx, id)?;
        assert_eq!(run.status, RunStatus::Created);
        run.call = Some(Called { node: "00".into(), execution: Some(1), run: Some(executes), exec: None });
        engine::store::run::save(tx, &run)
    })
    .await;
    let page = page().await;
    assert!(page.contains(WHY) && page.contains("which executes the same command"), "{page}");
    assert!(page.contains(&format!(r#"<dt>Waits for</dt><dd><a href="/runs/{other}">"#)), "{page}");
}

/// Every duration of the summary and of the facts stands where the answer says, with the moment from which it counts.
#[tokio::test]
async fn the_api_says_where_durations_stand() {
    let world = world().await;
    let approval = world.approval().await;
    let asked = read(&world, &format!("/approvals/{approval}")).await;
    let why = read(&world, &format!("/runs/{}/why", asked["run"].as_str().unwrap())).await;
    let span = &why["spans"][0];
    let fact = why["facts"][span["fact"].as_u64().unwrap() as usize].as_str().unwrap();
    let words = &fact[span["start"].as_u64().unwrap() as usize..span["end"].as_u64().unwrap() as usize];
    assert!(fact.contains(&format!(" for {words}")) && words.ends_with('s'), "{words}: {why}");
    assert_eq!((&span["since"], &span["until"]), (&asked["asked_at"], &Value::Null), "{why}");
}

/// Approved without an answer it would be refused: it has one button, and the field stands open with the schema.
#[tokio::test]
async fn an_approval_that_asks_for_an_answer_is_not_approved_without_one() {
    let world = world().await;
    let cookie = enter(&world, &world.admin).await;
    for (schema, allowed) in [
        (Value::Null, json!(["approve", "answer", "reject"])),
        (json!({ "type": "object", "required": ["colour"] }), json!(["answer", "reject"])),
    ] {
        let asks = !schema.is_null();
        let mut step = json!({ "message": "which one?" });
        if asks {
            step["answer"] = schema;
        }
        let run = world.agents(json!([{ "name": "s", "approval": step }])).await;
        let open = read(&world, &format!("/approvals?run={run}")).await;
        let id = open["data"][0]["id"].as_str().unwrap().to_owned();
        assert_eq!(read(&world, &format!("/approvals/{id}")).await["allowed"], allowed);
        let page = get(&world, &format!("/inbox?open={id}"), &cookie).await.text;
        let has = |action: &str| page.contains(&format!(r#"formaction="/inbox/{id}/{action}""#));
        assert_eq!((has("approve"), has("answer"), has("reject")), (!asks, true, true), "{page}");
        assert_eq!(page.contains("The answer must match this schema:"), asks, "{page}");
        let field = page.split("<textarea").next().unwrap();
        assert_eq!(field.matches("<details").count() > field.matches("</details>").count(), !asks, "{page}");
        let answered =
            world.ask("post", &format!("/api/v1/approvals/{id}/approve"), Some(&world.admin), &[], "{}").await;
        assert_eq!(answered.status, if asks { StatusCode::BAD_REQUEST } else { StatusCode::OK }, "{}", answered.body);
    }
}
