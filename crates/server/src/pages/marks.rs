//! Text that a user or a program wrote, in every field that has any: no page shows a character that changes how the text around it reads,
//! and none obeys markup.

use super::full::written;
use super::tests::{enter, get, submitted, world};
use crate::hostile::World;
use crate::repeated::{self, write};
use axum::http::StatusCode;
use engine::store::artifact::{Announced, EntryKind};
use engine::store::step::Data;
use engine::store::token::Scope;
use engine::store::usage::Spent;
use model::run::LastError;
use model::{AgentId, InstanceId, RunId, StepId, TaskId, WorkflowId};
use serde_json::json;

/// Turns what follows around, and would be bold.
const EVIL: &str = "\u{202e}<i>evil\u{2066}";

fn error() -> Option<LastError> {
    Some(LastError { code: EVIL.to_owned(), message: EVIL.to_owned(), cause: Some(EVIL.to_owned()) })
}

async fn read(world: &World, path: &str) -> serde_json::Value {
    let got = world.ask("get", &format!("/api/v1{path}"), Some(&world.admin), &[], "").await;
    assert_eq!(got.status, StatusCode::OK, "{path}: {}", got.body);
    got.body
}

/// A run of agents whose names, errors, inputs, outputs and models are all hostile; the pages that show it.
async fn agents(world: &World) -> Vec<String> {
    let run = world.agents(json!([{ "name": "s", "http": { "url": "https://a.example/" } }])).await;
    let first = async |part: &str| {
        read(world, &format!("/runs/{run}/{part}")).await["data"][0]["id"].as_str().unwrap().to_owned()
    };
    let (agent, task, step) = (first("agents").await, first("tasks").await, first("steps").await);
    let (id, org): (RunId, _) = (run.parse().unwrap(), world.org);
    let ids: (AgentId, TaskId, StepId) = (agent.parse().unwrap(), task.parse().unwrap(), step.parse().unwrap());
    write(world, move |tx| {
        let mut agent = engine::store::agent::find(tx, ids.0)?.unwrap();
        (agent.name, agent.last_error) = (EVIL.to_owned(), error());
        engine::store::agent::save(tx, &agent)?;
        let mut task = engine::store::task::find(tx, ids.1)?.unwrap();
        (task.name, task.last_error) = (EVIL.to_owned(), error());
        engine::store::task::save(tx, &task)?;
        let mut step = engine::store::step::find(tx, ids.2)?.unwrap();
        (step.name, step.last_error) = (EVIL.to_owned(), error());
        engine::store::step::save(tx, &step)?;
        engine::store::step::insert_try(tx, &step)?;
        let kept = EntryKind::Link { target: EVIL.to_owned() };
        for (path, what) in [(EVIL.to_owned(), EntryKind::File { mode: 0o644 }), (format!("{EVIL}2"), kept)] {
            let new = Announced { org, run: id, attempt: 1, path: &path, size: 1, what: &what };
            engine::store::artifact::announce(tx, &new)?;
        }
        for run in [Some(id), None] {
            let usage = model::usage::Usage { turns: 1, charged: model::Credits(5), ..Default::default() };
            let (agent, model, provider) = (EVIL.to_owned(), EVIL.to_owned(), EVIL.to_owned());
            let spent = Spent { run, subject: ids.2.0, agent, model, provider, usage, ..Spent::of(org) };
            engine::store::usage::add(tx, &spent)?;
        }
        Ok(())
    })
    .await;
    let spoken = world.agents(json!([{ "name": "s", "http": { "url": "https://b.example/" } }])).await;
    let said = read(world, &format!("/runs/{spoken}/steps")).await["data"][0]["id"].as_str().unwrap().to_owned();
    let number: StepId = said.parse().unwrap();
    write(world, move |tx| {
        let mut copy = engine::store::step::find(tx, number)?.unwrap();
        (copy.id, copy.sequence, copy.name) = (StepId(1 << 40), 1_000, "copy".to_owned());
        engine::store::step::insert(tx, &copy)?;
        let input = json!({ EVIL: 1, "messages": [{ "role": EVIL, "content": EVIL }, { "role": "user", "content": [{ "text": EVIL }] }] });
        engine::store::step::insert_data(tx, copy.id, Data::Input, &input)?;
        engine::store::step::insert_data(tx, copy.id, Data::Output, &json!({ "text": EVIL }))
    })
    .await;
    let parts = ["", "/events", "/cost", "/files", "/definition", "/log"].map(|part| format!("/runs/{run}{part}"));
    let opened = [
        format!("/runs/{run}?agent={agent}"),
        format!("/runs/{run}?agent={agent}&task={task}"),
        format!("/runs/{run}/steps/{step}"),
        format!("/runs/{spoken}/steps/{}", StepId(1 << 40)),
    ];
    parts.into_iter().chain(opened).collect()
}

/// A plain run and what it left: its name, command, error, log, events; its machine and its workflow.
async fn plain(world: &World) -> Vec<String> {
    let body = json!({ "commands": [format!("echo '{EVIL}'")], "start": true, "env": { "A": EVIL } });
    let got = world.submit(&world.admin, body).await;
    assert_eq!(got.status, StatusCode::CREATED, "{}", got.body);
    let run = got.body["id"].as_str().unwrap().to_owned();
    let id: RunId = run.parse().unwrap();
    let job = world.engine.jobs(world.org, id).await.unwrap().1[0].clone();
    written(world, &run, job.id.into(), format!("{EVIL}\n").as_bytes()).await;
    let flow = job.workflow;
    let machine: Option<InstanceId> = job.instance;
    write(world, move |tx| {
        let mut run = engine::store::run::lock(tx, id)?;
        (run.name, run.last_error) = (EVIL.to_owned(), error());
        engine::store::run::save(tx, &run)?;
        let mut flow = engine::store::workflow::find(tx, flow)?.unwrap();
        (flow.error, flow.cancel_reason) = (Some(EVIL.to_owned()), Some(EVIL.to_owned()));
        engine::store::workflow::save(tx, &flow)?;
        if let Some(machine) = machine {
            let mut machine = engine::store::instance::lock(tx, machine)?;
            machine.host = Some(EVIL.to_owned());
            engine::store::instance::save(tx, &machine)?;
        }
        let body = engine::store::body!({ "by": EVIL, "list": [EVIL] });
        tx.event(engine::store::NewEvent { org: run.org, run: Some(id), kind: "run.pending", body });
        Ok(())
    })
    .await;
    let flow = WorkflowId(flow.0).to_string();
    let parts = ["", "/events", "/log", "/log?q=evil", "/definition", "/cost"].map(|part| format!("/runs/{run}{part}"));
    parts.into_iter().chain([format!("/workflows/{flow}"), format!("/new?from={run}")]).collect()
}

/// Questions with hostile inputs, one of them answered with a hostile note.
async fn questions(world: &World) -> Vec<String> {
    let (ticket, approval) = (world.ticket().await, world.approval().await);
    let note = json!({ "note": EVIL }).to_string();
    let path = format!("/api/v1/approvals/{approval}/reject");
    assert!(world.ask("post", &path, Some(&world.admin), &[], &note).await.status.is_success());
    let number: model::QuestionId = ticket.parse().unwrap();
    write(world, move |tx| {
        let mut question = engine::store::question::find(tx, number)?.unwrap();
        (question.path, question.error) = (EVIL.to_owned(), error());
        engine::store::question::save(tx, &question)
    })
    .await;
    vec!["/inbox".to_owned(), format!("/inbox?open={approval}"), format!("/inbox?open={}", "%E2%80%AE%3Ci%3Eevil")]
}

#[tokio::test]
async fn no_page_shows_a_mark_that_turns_text_around_or_obeys_markup() {
    let world = world().await;
    let (_, token) = world.engine.create_token(world.org, EVIL.into(), Scope::Admin, None, None).await.unwrap();
    let cookie = enter(&world, &token).await;
    let mut pages = agents(&world).await;
    pages.extend(plain(&world).await);
    pages.extend(questions(&world).await);
    submitted(&world, true).await;
    repeated::orphan_as(&world, EVIL.to_owned(), EVIL.to_owned()).await;
    let credits = json!({ "amount": "1", "memo": EVIL }).to_string();
    world.ask("post", "/api/v1/credits", Some(&world.admin), &[], &credits).await;
    let others = ["/runs", "/runs?q=%E2%80%AE", "/machines", "/workflows", "/calls", "/orphans", "/settings", "/new"];
    pages.extend(others.map(str::to_owned));
    pages.extend(["run", "agent", "model", "provider"].map(|by| format!("/spending?by={by}")));
    let mut shown = 0;
    for path in pages {
        let page = get(&world, &path, &cookie).await.text;
        for raw in ['\u{202e}', '\u{2066}'] {
            let at = page.find(raw).map(|at| page[..at].chars().rev().take(80).collect::<Vec<_>>());
            let before = at.map(|rest| rest.into_iter().rev().collect::<String>());
            assert_eq!(before, None, "{path} has a raw U+{:04X} behind this", raw as u32);
        }
        assert!(!page.contains("<i>evil"), "{path}: {page}");
        // Each page has at least the name of the token.
        let marks = page.matches("‹U+202E›").count();
        assert!(marks > 0, "{path} shows nothing of it: {page}");
        shown += usize::from(marks > 1);
    }
    assert!(shown >= 20, "only {shown} pages show more of it than the name of the token");
}
