//! Texts as long as they may be: no page that lists or shows them weighs more than 60 KB, and what a page cuts is saved whole.

use super::full::{MOST_BYTES, failed, heavy};
use super::tests::{enter, get, submitted, world};
use crate::hostile::World;
use crate::repeated::{self, write};
use axum::http::StatusCode;
use calls::function::Function;
use calls::record::{Dag, Exec, ExecStatus, Node, Provenance};
use calls::{ExecId, NodeId, Records, Value};
use engine::store::artifact::{Announced, EntryKind};
use engine::store::exec::ExecRow;
use engine::store::question::Data;
use model::{QuestionId, RunId, Timestamp, WorkflowId};
use serde_json::json;

/// Ids of rows that tests make: far from those that the store gives out.
const FAR: i64 = 1 << 40;
/// More than any page lists.
const ROWS: i64 = 60;
/// The longest command, and the longest path.
const COMMAND: usize = 128 * 1024 - 64;
const PATH: usize = 4_000;
const FUNCTION: &str = "dml+exec://dml-exec-none/f";

async fn shown(world: &World, path: &str, cookie: &str) -> String {
    let page = get(world, path, cookie).await;
    assert_eq!(page.status, StatusCode::OK, "{path}: {}", page.text);
    page.text
}

/// A result of a call that is kept: of this value, applied to these inputs. A node stands for the result of another call.
async fn kept(world: &World, inputs: &[Result<Value, NodeId>], value: Value) -> (ExecId, NodeId) {
    let mut records = Records::new();
    let put = |records: &mut Records, node: &Node| {
        records.push((node.id().into(), node.record()));
        node.id()
    };
    let mut nodes = Vec::new();
    for input in inputs {
        nodes.push(match input {
            Ok(value) => {
                let literal = Node::Literal { value: value.element(&mut records).unwrap() };
                put(&mut records, &literal)
            }
            Err(node) => *node,
        });
    }
    let function = Value::Uri(Function::parse(FUNCTION).unwrap().uri().clone()).element(&mut records).unwrap();
    let node = put(&mut records, &Node::Call { function, inputs: nodes });
    let root = Node::Literal { value: value.element(&mut records).unwrap() };
    let root = put(&mut records, &root);
    let dag = Dag::of(root);
    let provenance = Provenance::default();
    let exec = Exec { node, status: ExecStatus::Ok, result: dag.id(), started_ms: 0, ended_ms: 1, provenance };
    let id = exec.id();
    records.extend([(dag.id().into(), dag.record()), (id.into(), exec.record())]);
    let (org, project) = (world.org, world.engine.context.config.calls.project.clone());
    write(world, move |tx| {
        engine::store::object::put(tx, org, &records)?;
        let (name, ended_at) = (heavy(1_000), Timestamp(1));
        let row = ExecRow { id, node, function: FUNCTION.into(), name, ok: true, run: None, ended_at, bytes: 9 };
        engine::store::exec::insert(tx, org, &row, &[])?;
        engine::store::pin::set(tx, org, &project, node, id)
    })
    .await;
    (id, node)
}

fn text(text: &str) -> Value {
    Value::text(text).unwrap()
}

/// Runs with the longest command and error, one of them with files of the longest paths; results of calls with long inputs.
async fn filled(world: &World) -> Vec<String> {
    let body = json!({ "commands": [heavy(COMMAND)], "start": true });
    let got = world.submit(&world.admin, body).await;
    assert_eq!(got.status, StatusCode::CREATED, "{}", got.body);
    let (run, org) = (got.body["id"].as_str().unwrap().to_owned(), world.org);
    let id: RunId = run.parse().unwrap();
    write(world, move |tx| {
        let (mut run, content) = engine::store::run::find_with_content(tx, id)?.unwrap();
        let attempt = engine::store::attempt::find(tx, id, run.attempt)?.unwrap();
        let mut error = failed(&heavy(60_000));
        error.cause = Some(heavy(60_000));
        run.last_error = Some(error);
        for n in 0..ROWS {
            let (id, name) = (RunId(FAR + n), format!("{n}-{}", "n".repeat(60)));
            engine::store::run::insert(tx, &model::run::Run { id, name, ..run.clone() }, &content)?;
            engine::store::attempt::insert(tx, &model::attempt::Attempt { run: id, ..attempt.clone() })?;
            let link = EntryKind::Link { target: heavy(PATH) };
            let what = if n % 2 == 0 { EntryKind::File { mode: 0o644 } } else { link };
            let path = format!("{n}/{}.png", heavy(PATH));
            let new = Announced { org, run: RunId(FAR), attempt: 1, path: &path, size: 1, what: &what };
            let artifact = engine::store::artifact::announce(tx, &new)?;
            engine::store::artifact::finalise(tx, (artifact.run, artifact.id), 1, "00")?;
        }
        Ok(())
    })
    .await;
    let mut last = None;
    for n in 0..ROWS {
        let input = Ok(text(&format!("{n} {}", heavy(if n == ROWS - 1 { 60_000 } else { 6 }))));
        last = Some(kept(world, &[input], text(&heavy(60_000))).await.0);
        if n < 40 {
            let body = json!({ "function": FUNCTION, "inputs": [n] });
            let asked = world.ask("post", "/api/v1/calls", Some(&world.admin), &[], &body.to_string()).await;
            assert_eq!(asked.status, StatusCode::ACCEPTED, "{}", asked.body);
        }
    }
    let of = RunId(FAR);
    let runs = ["/runs".to_owned(), "/runs?q=n".to_owned(), format!("/runs/{run}"), format!("/runs/{of}")];
    let others = [format!("/runs/{of}/files"), "/calls".to_owned(), format!("/calls/{}", last.unwrap())];
    runs.into_iter().chain(others).collect()
}

#[tokio::test]
async fn no_page_of_the_longest_texts_weighs_more_than_60_kb() {
    let world = world().await;
    let cookie = enter(&world, &world.admin).await;
    let mut heavy = Vec::new();
    for path in filled(&world).await {
        let bytes = shown(&world, &path, &cookie).await.len();
        super::crowd::figure(format!("{path}: {bytes} bytes"));
        heavy.extend((bytes > MOST_BYTES).then(|| format!("{path} has {bytes} bytes")));
    }
    assert_eq!(heavy, Vec::<String>::new());
    let files = shown(&world, &format!("/runs/{}/files", RunId(FAR)), &cookie).await;
    assert!(files.contains("repl artifact ls") && files.contains("cursor="), "{files}");
    // The plan of a run shows the beginning of its command beside the form, which holds all of it.
    let command = "a".repeat(100_000);
    let form = super::tests::form_token(&shown(&world, "/new", &cookie).await);
    let planned = super::tests::post(&world, "/new?do=plan", &cookie, &format!("csrf={form}&command={command}")).await;
    assert_eq!(planned.status, StatusCode::OK);
    assert!(planned.text.len() < command.len() + MOST_BYTES, "{} bytes", planned.text.len());
}

/// Each text that a page cuts is a download there.
#[tokio::test]
async fn what_a_page_cuts_is_saved_whole() {
    let world = world().await;
    let cookie = enter(&world, &world.admin).await;
    let long = json!({ "text": "long ".repeat(20_000) });
    let run = submitted(&world, true).await;
    let approval = world.approval().await;
    let (id, asked): (RunId, QuestionId) = (run.parse().unwrap(), approval.parse().unwrap());
    let flow = world.engine.jobs(world.org, id).await.unwrap().1[0].workflow;
    let value = long.clone();
    write(&world, move |tx| {
        let mut run = engine::store::run::lock(tx, id)?;
        run.last_error = Some(failed(&"long ".repeat(20_000)));
        (run.status, run.completed_at) = (model::run::RunStatus::Completed, Some(tx.at()));
        engine::store::run::save(tx, &run)?;
        let mut question = engine::store::question::find(tx, asked)?.unwrap();
        question.status = model::question::QuestionStatus::Approved;
        engine::store::question::save(tx, &question)?;
        engine::store::question::insert_data(tx, asked, Data::Edited, &value)?;
        engine::store::question::insert_data(tx, asked, Data::Answer, &value)?;
        let mut flow = engine::store::workflow::lock(tx, flow)?;
        std::sync::Arc::make_mut(&mut flow.nodes[0]).output = Some(json!("long ".repeat(2_000)));
        engine::store::workflow::save(tx, &flow)
    })
    .await;
    let flow = WorkflowId(flow.0);
    let node = world.ask("get", &format!("/api/v1/workflows/{flow}"), Some(&world.admin), &[], "").await.body;
    let node =
        node["nodes"].as_array().unwrap().iter().find(|node| node["output"].is_string()).unwrap()["name"].clone();
    let (exec, _) = kept(&world, &[Ok(text(&"long ".repeat(20_000)))], text(&"long ".repeat(20_000))).await;
    let table = [
        (format!("/runs/{run}"), format!("/runs/{run}/error/raw")),
        (format!("/inbox?open={approval}"), format!("/inbox/{approval}/edited")),
        (format!("/inbox?open={approval}"), format!("/inbox/{approval}/answer")),
        (format!("/workflows/{flow}"), format!("/workflows/{flow}/nodes/{}", node.as_str().unwrap())),
        (format!("/calls/{exec}"), format!("/calls/{exec}/inputs")),
        (format!("/calls/{exec}"), format!("/calls/{exec}/value")),
    ];
    for (page, download) in table {
        let text = shown(&world, &page, &cookie).await;
        assert!(text.contains(&format!(r#"<a href="{download}" download>"#)), "{page} does not lead to {download}");
        let saved = get(&world, &download, &cookie).await;
        let (kind, policy) = (saved.header("content-disposition"), saved.header("content-security-policy"));
        assert!(saved.status == StatusCode::OK && kind.starts_with("attachment") && policy == "sandbox", "{download}");
        assert!(saved.text.contains(&"long ".repeat(2_000)), "{download}");
    }
    for nothing in
        [format!("/runs/{run}/output/raw"), format!("/calls/{exec}/other"), format!("/workflows/{flow}/nodes/x")]
    {
        assert_eq!(get(&world, &nothing, &cookie).await.status, StatusCode::NOT_FOUND, "{nothing}");
    }
}

/// A result that was made of another one leads to it.
#[tokio::test]
async fn an_input_that_is_a_result_leads_to_where_it_came_from() {
    let world = world().await;
    let cookie = enter(&world, &world.admin).await;
    let (first, node) = kept(&world, &[Ok(Value::Int(1))], Value::Int(2)).await;
    let (second, _) = kept(&world, &[Ok(Value::Int(3)), Err(node)], Value::Int(4)).await;
    let page = shown(&world, &format!("/calls/{second}"), &cookie).await;
    assert_eq!(page.matches(&format!(r#"<a href="/calls/{first}">"#)).count(), 1, "{page}");
    shown(&world, &format!("/calls/{first}"), &cookie).await;
    let asked = world.ask("get", &format!("/api/v1/backtrack/{second}"), Some(&world.admin), &[], "").await;
    assert_eq!(asked.body["made_by"], json!({ "1": first.to_string() }), "{}", asked.body);
}

/// A run file names files and holds none: who runs it again from a page is told that they are missing.
#[tokio::test]
async fn a_run_that_was_sent_with_files_is_not_run_again_without_a_word() {
    let world = world().await;
    let cookie = enter(&world, &world.admin).await;
    let run = submitted(&world, false).await;
    let (again, part) = (format!("/new?from={run}"), format!("/runs/{run}/definition"));
    let warned = "has none of them";
    assert!(!shown(&world, &again, &cookie).await.contains(warned));
    assert!(shown(&world, &part, &cookie).await.contains("Run again with changes"));
    let id: RunId = run.parse().unwrap();
    write(&world, move |tx| {
        let mut run = engine::store::run::lock(tx, id)?;
        run.spec.sent_files = true;
        engine::store::run::save(tx, &run)
    })
    .await;
    for path in [&again, &part] {
        let page = shown(&world, path, &cookie).await;
        assert!(page.contains(warned) && page.contains(&format!("repl run {run}.yaml")), "{page}");
    }
    assert!(!shown(&world, &part, &cookie).await.contains("Run again with changes"));
}

/// What a machine does, since when, and what it has cost.
#[tokio::test]
async fn a_machine_says_since_when_it_is_busy_or_idle_and_what_it_costs_so_far() {
    let world = world().await;
    let cookie = enter(&world, &world.admin).await;
    let placed = repeated::placed(&world).await;
    let machine = placed["instance"].as_str().unwrap().to_owned();
    let number: model::InstanceId = machine.parse().unwrap();
    let set = async |idle: Option<Timestamp>| {
        write(&world, move |tx| {
            let mut machine = engine::store::instance::lock(tx, number)?;
            (machine.price_micro, machine.idle_since) = (7_200_000, idle);
            machine.created_at = Timestamp(tx.at().ms() - model::time::HOUR / 2);
            engine::store::instance::save(tx, &machine)
        })
        .await;
    };
    set(None).await;
    let path = format!("/api/v1/instances/{machine}");
    let busy = world.ask("get", &path, Some(&world.admin), &[], "").await.body;
    let (age, cost) = (busy["machine_ms"].as_i64().unwrap(), busy["credits_so_far_micro"].as_i64().unwrap());
    assert!(busy["busy_since"].is_i64() && age >= model::time::HOUR / 2, "{busy}");
    assert_eq!(cost, age * 2, "7.2 credits an hour are 2 micro-credits a millisecond");
    let page = shown(&world, "/machines", &cookie).await;
    assert!(page.contains("busy <time") && page.contains(r#"<span class="num">3.6"#), "{page}");
}
