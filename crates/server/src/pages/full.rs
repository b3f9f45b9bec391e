//! Pages of worlds that are full: none weighs more than 60 KB, nothing is cut without a way to the rest, and what matters stands first. What a
//! step has cost and written, and what is found in the log of a run of agents.

use super::tests::{enter, get, submitted, world};
use crate::hostile::World;
use crate::repeated::{self, write};
use axum::http::StatusCode;
use engine::store::log::Chunk;
use engine::store::log_file::{Frame, LogStream};
use engine::store::usage::Spent;
use model::agent::AgentStatus;
use model::log::LogId;
use model::run::LastError;
use model::step::{OnMachine, StepStatus, StepTry};
use model::task::TaskStatus;
use model::{AgentId, InstanceId, JobId, QuestionId, RunId, StepId, TaskId, Timestamp};
use serde_json::{Value, json};

/// Of a page without a log.
pub(super) const MOST_BYTES: usize = 60 * 1024;
/// Ids of rows that tests make: far from those that the store gives out.
const FAR: i64 = 1 << 40;
/// More than any page lists.
const ROWS: i64 = 150;

async fn read(world: &World, path: &str) -> Value {
    world.ask("get", &format!("/api/v1{path}"), Some(&world.admin), &[], "").await.body
}

async fn shown(world: &World, path: &str, cookie: &str) -> String {
    let page = get(world, path, cookie).await;
    assert_eq!(page.status, StatusCode::OK, "{path}: {}", page.text);
    page.text
}

pub(super) fn failed(message: &str) -> LastError {
    LastError { code: "scripted".to_owned(), message: message.to_owned(), cause: None }
}

/// A run of agents with many agents, of which one has many tasks, of which one has many steps. The last of each failed, the one before it runs.
async fn grown(world: &World) -> (String, String, String) {
    let call = |n: usize| json!({ "name": format!("s{n}"), "http": { "url": "https://a.example/" } });
    let run = world.agents((0..3).map(call).collect()).await;
    let (agent, task) =
        (read(world, &format!("/runs/{run}/agents")).await, read(world, &format!("/runs/{run}/tasks")).await);
    let named = |page: &Value| page["data"][0]["id"].as_str().unwrap().to_owned();
    let (agent, task) = (named(&agent), named(&task));
    let id: RunId = run.parse().unwrap();
    let (of, within): (AgentId, TaskId) = (agent.parse().unwrap(), task.parse().unwrap());
    write(world, move |tx| {
        let agent = engine::store::agent::find(tx, of)?.unwrap();
        let task = engine::store::task::find(tx, within)?.unwrap();
        let step =
            engine::store::step::page(tx, id, agent.attempt, engine::store::step::Below::Task(within), 0, 1)?.remove(0);
        let at = tx.at();
        for n in 0..ROWS {
            let (name, ended) = (format!("copy-{n}-of-a-name-of-usual-length"), (n < ROWS - 2).then_some(at));
            let word = if n == ROWS - 1 {
                "failed"
            } else if n == ROWS - 2 {
                "running"
            } else {
                "completed"
            };
            let error = (n == ROWS - 1).then(|| failed(&"it failed: ".repeat(1_000)));
            let (started_at, ended_at, last_error, sequence) = (Some(at), ended, error.clone(), 1_000 + n);
            let status: AgentStatus = word.parse().unwrap();
            let copy = model::agent::Agent {
                id: AgentId(FAR + n),
                name: name.clone(),
                status,
                started_at,
                ended_at,
                last_error,
                sequence,
                ..agent.clone()
            };
            engine::store::agent::insert(tx, &copy)?;
            let (status, last_error): (TaskStatus, _) = (word.parse().unwrap(), error.clone());
            let copy = model::task::Task {
                id: TaskId(FAR + n),
                name: name.clone(),
                status,
                started_at,
                ended_at,
                last_error,
                sequence,
                ..task.clone()
            };
            engine::store::task::insert(tx, &copy)?;
            let (status, last_error): (StepStatus, _) = (word.parse().unwrap(), error);
            let copy = model::step::Step {
                id: StepId(FAR + n),
                name,
                status,
                started_at,
                ended_at,
                last_error,
                sequence,
                ..step.clone()
            };
            engine::store::step::insert(tx, &copy)?;
        }
        Ok(())
    })
    .await;
    (run, agent, task)
}

#[tokio::test]
async fn children_that_failed_or_run_stand_first_however_late_they_were_made() {
    let world = world().await;
    let cookie = enter(&world, &world.admin).await;
    let (run, agent, task) = grown(&world).await;
    let paths = ["".to_owned(), format!("?agent={agent}"), format!("?agent={agent}&task={task}")];
    for (level, path) in paths.into_iter().enumerate() {
        let page = shown(&world, &format!("/ui/runs/{run}/tree{path}"), &cookie).await;
        let tree = page.split("<ul class=\"tree\"").nth(1).unwrap();
        let inner = tree.split("<ul>").nth(level).unwrap_or(tree).split("</ul>").next().unwrap();
        let at = |n: i64| inner.find(&format!(">copy-{n}-")).unwrap_or_else(|| panic!("no {n} in {path}: {inner}"));
        assert!(at(ROWS - 1) < at(ROWS - 2) && at(ROWS - 2) < at(0), "{path}");
        assert_eq!(inner.matches(&format!(">copy-{}-", ROWS - 1)).count(), 1, "{path}: it is shown once");
        assert!(page.contains("Next page"), "{path}");
    }
    // One that is opened is shown, also if it is not among the first.
    let late = AgentId(FAR + 100).to_string();
    assert!(shown(&world, &format!("/ui/runs/{run}/tree?agent={late}"), &cookie).await.contains(">copy-100-"));
}

/// A word that weighs much more as HTML.
pub(super) fn heavy(bytes: usize) -> String {
    "\"<&>\" ".repeat(bytes / 6)
}

async fn filled(world: &World) -> Vec<String> {
    let (run, agent, task) = grown(world).await;
    let org = world.org;
    // Lists of machines, orphans, tokens, secrets' names, questions, events and amounts.
    let placed = repeated::placed(world).await;
    let machine: InstanceId = placed["instance"].as_str().unwrap().parse().unwrap();
    let step = json!({ "name": "send", "http": { "method": "POST", "url": "https://mail.example/", "body": heavy(60_000) }, "policy": "ask" });
    let asking = world.agents(json!([step])).await;
    let asked = read(world, "/approvals").await["data"][0].clone();
    let question: QuestionId = asked["id"].as_str().unwrap().parse().unwrap();
    let id: RunId = run.parse().unwrap();
    write(world, move |tx| {
        let machine = engine::store::instance::lock(tx, machine)?;
        let question = engine::store::question::find(tx, question)?.unwrap();
        for n in 0..ROWS {
            let (number, name) = (InstanceId(FAR + n), format!("{}-{n}", machine.name));
            engine::store::instance::insert(tx, &model::instance::Instance { id: number, name, ..machine.clone() })?;
            let number = QuestionId(FAR + n);
            engine::store::question::insert(tx, &model::question::Question { id: number, ..question.clone() })?;
            let usage = model::usage::Usage { turns: 1, charged: model::Credits(1_000 + n), ..Default::default() };
            let name = |what: &str| format!("{what}-{n}-of-a-name-of-usual-length");
            let (agent, model, provider) = (name("agent"), name("model"), name("provider"));
            let spent = Spent {
                run: Some(if n % 2 == 0 { id } else { RunId(FAR + n) }),
                subject: FAR + n,
                agent,
                model,
                provider,
                usage,
                ..Spent::of(org)
            };
            engine::store::usage::add(tx, &spent)?;
        }
        Ok(())
    })
    .await;
    for n in 0..ROWS {
        repeated::orphan_as(world, "repl-testtest-none-1".to_owned(), format!("i-{n}-0123456789abcdef")).await;
        let name = format!("token-{n}-of-a-name-of-usual-length");
        world.engine.create_token(world.org, name, engine::store::token::Scope::Read, None, None).await.unwrap();
        if n % 3 == 0 {
            let paused = world.ask("post", &format!("/api/v1/runs/{asking}/pause"), Some(&world.admin), &[], "").await;
            assert!(paused.status.is_success(), "{}", paused.body);
            world.ask("post", &format!("/api/v1/runs/{asking}/resume"), Some(&world.admin), &[], "").await;
        }
    }
    let plain = submitted(world, true).await;
    let of = |part: &str| format!("/runs/{asking}{part}");
    vec![
        format!("/runs/{run}"),
        format!("/runs/{run}?agent={agent}"),
        format!("/runs/{run}?agent={agent}&task={task}"),
        format!("/runs/{run}/cost"),
        format!("/runs/{plain}"),
        of("/events"),
        of("/definition"),
        format!("/runs/{asking}/steps/{}", asked["step"].as_str().unwrap()),
        "/inbox".to_owned(),
        "/machines".to_owned(),
        "/orphans".to_owned(),
        "/settings".to_owned(),
        "/spending?by=agent".to_owned(),
        "/spending".to_owned(),
        "/workflows".to_owned(),
    ]
}

#[tokio::test]
async fn no_page_of_a_full_world_weighs_more_than_60_kb() {
    let world = world().await;
    let cookie = enter(&world, &world.admin).await;
    let mut heavy = Vec::new();
    for path in filled(&world).await {
        let bytes = shown(&world, &path, &cookie).await.len();
        super::crowd::figure(format!("{path}: {bytes} bytes"));
        heavy.extend((bytes > MOST_BYTES).then(|| format!("{path} has {bytes} bytes")));
    }
    assert_eq!(heavy, Vec::<String>::new());
    // What does not fit has a way to the rest.
    for (path, ways) in [
        ("/orphans", vec!["cursor="]),
        ("/settings", vec!["tokens="]),
        ("/inbox", vec!["/inbox?approvals=", "/input\" download"]),
    ] {
        let page = shown(&world, path, &cookie).await;
        for way in ways {
            assert!(page.contains(way), "{path}: {way}");
        }
    }
}

/// Each open question is on one page, the oldest first, also when there are many more than one page lists.
#[tokio::test]
async fn every_question_is_reached_oldest_first() {
    let world = world().await;
    let cookie = enter(&world, &world.token(world.org, engine::store::token::Scope::Approve).await).await;
    let (approval, ticket) = (world.approval().await, world.ticket().await);
    let first: QuestionId = approval.parse().unwrap();
    write(&world, move |tx| {
        let question = engine::store::question::find(tx, first)?.unwrap();
        for n in 0..ROWS {
            let id = QuestionId(FAR + n);
            engine::store::question::insert(tx, &model::question::Question { id, ..question.clone() })?;
        }
        Ok(())
    })
    .await;
    let (mut path, mut seen) = ("/inbox".to_owned(), Vec::new());
    loop {
        let page = shown(&world, &path, &cookie).await;
        let listed = page.split(r#"<li id="l-"#).skip(1).map(|rest| rest.split('"').next().unwrap().to_owned());
        seen.extend(listed);
        let Some(next) = page.split(r#"<a rel="next" href=""#).nth(1) else { break };
        path = next.split('"').next().unwrap().replace("&amp;", "&");
    }
    let rest = (0..ROWS).map(|n| QuestionId(FAR + n).to_string());
    assert_eq!(seen, [approval, ticket].into_iter().chain(rest).collect::<Vec<_>>());
    // One that is named is open, whichever page it is on.
    let last = QuestionId(FAR + ROWS - 1).to_string();
    assert!(shown(&world, &format!("/inbox?open={last}"), &cookie).await.contains(&format!(r#"id="{last}-h""#)));
}

/// A question says what became of its step before.
#[tokio::test]
async fn a_ticket_has_the_history_of_its_step() {
    let world = world().await;
    let cookie = enter(&world, &world.admin).await;
    let ticket = world.ticket().await;
    assert!(!shown(&world, "/inbox", &cookie).await.contains("History"));
    let step: StepId = read(&world, &format!("/escalations/{ticket}")).await["step"].as_str().unwrap().parse().unwrap();
    write(&world, move |tx| {
        let mut earlier = engine::store::step::find(tx, step)?.unwrap();
        earlier.last_error = Some(failed("the other end hung up"));
        engine::store::step::insert_try(tx, &earlier)
    })
    .await;
    let page = shown(&world, "/inbox", &cookie).await;
    assert!(page.contains("History: 1 earlier try") && page.contains("the other end hung up"), "{page}");
}

pub(super) async fn written(world: &World, run: &str, log: LogId, data: &[u8]) {
    written_at(world, run, log, 0, data).await;
}

/// The same, behind what was written before; where it ends.
pub(super) async fn written_at(world: &World, run: &str, log: LogId, offset: i64, data: &[u8]) -> i64 {
    let frame = Frame { stream: LogStream::Stdout, at: Timestamp(0), data: data.to_vec() };
    let (run, chunk): (RunId, _) = (run.parse().unwrap(), Chunk { log, epoch: 1, offset, frames: vec![frame] });
    world.engine.logs.append_in_run(run, chunk).await.unwrap();
    offset + data.len() as i64
}

#[tokio::test]
async fn a_step_shows_what_it_has_cost_and_written() {
    let world = world().await;
    let cookie = enter(&world, &world.admin).await;
    let run = world.agents(json!([{ "name": "s", "http": { "url": "https://a.example/" } }])).await;
    let step = read(&world, &format!("/runs/{run}/steps")).await["data"][0]["id"].as_str().unwrap().to_owned();
    let (id, number): (RunId, StepId) = (run.parse().unwrap(), step.parse().unwrap());
    let page = format!("/runs/{run}/steps/{step}");
    let before = shown(&world, &page, &cookie).await;
    assert!(!before.contains("<dt>Cost</dt>") && !before.contains("<h2>Log</h2>"), "{before}");
    let org = world.org;
    write(&world, move |tx| {
        // As if a machine had executed it.
        let mut step = engine::store::step::find(tx, number)?.unwrap();
        let (job, restores) = (JobId(1), Vec::new());
        step.on =
            Some(OnMachine { job, epoch: 1, input_bytes: 0, restores, stopping: false, log_end: None, kept: None });
        engine::store::step::save(tx, &step)?;
        let charged = model::Credits(1_500_000);
        let usage = model::usage::Usage { charged, turns: 2, input_tokens: 7, ..Default::default() };
        engine::store::usage::add(tx, &Spent { run: Some(id), subject: number.0, usage, ..Spent::of(org) })
    })
    .await;
    written(&world, &run, LogId::Step(StepTry { id: number, number: 1 }), b"hello from the step\n").await;
    let after = shown(&world, &page, &cookie).await;
    assert!(after.contains(r#"<dt>Cost</dt><dd><span class="num">1.5</span></dd>"#), "{after}");
    assert!(after.contains("7 in, 0 out") && after.contains("hello from the step"), "{after}");
    let log = format!("/runs/{run}/log?step={step}");
    assert!(after.contains(&log), "{after}");
    let found = shown(&world, &format!("{log}&q=from"), &cookie).await;
    assert!(found.contains("1 line<") && found.contains(&format!("{}&amp;from=0#o0-", log)), "{found}");
    let raw = get(&world, &format!("/runs/{run}/log/raw?step={step}"), &cookie).await;
    assert_eq!((raw.status, raw.text.as_str()), (StatusCode::OK, "hello from the step\n"));
}

#[tokio::test]
async fn the_log_of_a_run_of_agents_is_searched_whole_and_by_step_and_keeps_its_colours() {
    let world = world().await;
    let cookie = enter(&world, &world.admin).await;
    let call = |n: usize| json!({ "name": format!("s{n}"), "http": { "url": "https://a.example/" } });
    let run = world.agents((0..2).map(call).collect()).await;
    let steps = read(&world, &format!("/runs/{run}/steps")).await;
    let step = |n: usize| steps["data"][n]["id"].as_str().unwrap().to_owned();
    let log = |n: usize| LogId::Step(StepTry { id: step(n).parse().unwrap(), number: 1 });
    written(&world, &run, log(0), b"\x1b[31mred begins\nred goes on: the needle\n").await;
    written(&world, &run, log(1), b"nothing\nanother needle here\n").await;
    let page = shown(&world, &format!("/runs/{run}/log"), &cookie).await;
    assert_eq!(page.matches(r#"<span class="ink1">red"#).count(), 2, "{page}");
    let found = shown(&world, &format!("/runs/{run}/log?q=needle"), &cookie).await;
    assert!(found.contains("2 lines") && found.matches("<mark>needle</mark>").count() == 2, "{found}");
    assert!(found.contains(&format!("/runs/{run}/log?from=1#{}-8-", step(1))), "{found}");
    assert!(shown(&world, &format!("/runs/{run}/log?q=nothing"), &cookie).await.contains("1 line<"));
    let none = shown(&world, &format!("/runs/{run}/log?q=need.e"), &cookie).await;
    assert!(none.contains("0 lines"), "{none}");
    assert!(shown(&world, &format!("/runs/{run}/log?q=need.e&re=1"), &cookie).await.contains("2 lines"));
}

/// Download says that a log is gone, as the API does.
#[tokio::test]
async fn a_log_that_was_deleted_is_not_downloaded_as_an_empty_file() {
    let world = world().await;
    let cookie = enter(&world, &world.admin).await;
    let run = submitted(&world, true).await;
    let id: RunId = run.parse().unwrap();
    let job = world.engine.jobs(world.org, id).await.unwrap().1[0].id;
    written(&world, &run, job.into(), b"hello").await;
    world.engine.logs.seal(job, 0).await.unwrap();
    world.engine.logs.gather(world.org, job).await.unwrap();
    write(&world, move |tx| {
        let mut run = engine::store::run::lock(tx, id)?;
        (run.status, run.completed_at) = (model::run::RunStatus::Failed, Some(tx.at()));
        engine::store::run::save(tx, &run)
    })
    .await;
    let raw = format!("/runs/{run}/log/raw");
    let there = get(&world, &raw, &cookie).await;
    assert_eq!((there.status, there.text.as_str()), (StatusCode::OK, "hello"));
    world.engine.logs.mark_deleted(job).await.unwrap();
    for path in [raw, format!("/runs/{run}/log/raw?job={job}"), format!("/runs/{run}/log")] {
        let gone = get(&world, &path, &cookie).await;
        assert_eq!(gone.status, StatusCode::GONE, "{path}: {}", gone.text);
        assert!(gone.text.contains("logs are kept for"), "{path}: {}", gone.text);
    }
}

/// A run that waits for an answer says so, and leads to the question.
#[tokio::test]
async fn a_run_that_waits_for_an_approval_leads_to_it() {
    let world = world().await;
    let cookie = enter(&world, &world.admin).await;
    let approval = world.approval().await;
    let run = read(&world, &format!("/approvals/{approval}")).await["run"].as_str().unwrap().to_owned();
    let page = shown(&world, &format!("/runs/{run}"), &cookie).await;
    assert!(page.contains("a step of it waits for a person"), "{page}");
    assert!(page.contains(&format!(r#"<a href="/inbox?open={approval}">"#)), "{page}");
    for command in ["repl artifact get", "repl status"] {
        assert!(page.contains(&format!("{command} {run}")), "{command}");
    }
}
