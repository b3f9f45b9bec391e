//! Where the log of what has failed is opened: at the first failure if it can be found now, at its end otherwise.

use super::*;
use crate::hostile::World;
use crate::pages::full::{written, written_at};
use crate::pages::tests::{enter, get, submitted, world};
use engine::store::{Lane, Tx};
use model::job::{Job, JobStatus};
use model::run::RunStatus;
use model::step::StepTry;
use model::{JobId, RunId, StepId};
use serde_json::json;

async fn write(world: &World, act: impl Fn(&mut Tx) -> Result<(), Failure> + Send + Sync + 'static) {
    world.engine.store.write(Lane::Normal, "test.write", act).await.unwrap();
}

fn lines(count: usize) -> String {
    (0..count).map(|n| format!("all is well in line {n}\n")).collect()
}

/// A command that has failed and written this.
async fn failed(world: &World, log: &str) -> (String, JobId) {
    let run = submitted(world, true).await;
    let id: RunId = run.parse().unwrap();
    let job = world.engine.jobs(world.org, id).await.unwrap().1[0].id;
    let mut offset = 0;
    for part in log.as_bytes().chunks(60_000) {
        offset = written_at(world, &run, job.into(), offset, part).await;
    }
    world.engine.logs.seal(job, 0).await.unwrap();
    world.engine.logs.gather(world.org, job).await.unwrap();
    write(world, move |tx| {
        let job = engine::store::job::find(tx, job)?.unwrap();
        engine::store::job::save(tx, &Job { status: JobStatus::Failed, ..job })?;
        ended(tx, id)
    })
    .await;
    (run, job)
}

fn ended(tx: &mut Tx, id: RunId) -> Result<(), Failure> {
    let mut run = engine::store::run::lock(tx, id)?;
    (run.status, run.completed_at) = (RunStatus::Failed, Some(tx.at()));
    engine::store::run::save(tx, &run)
}

/// The texts of the lines of a page, and which of them is marked.
fn shown(page: &str) -> (Vec<String>, Option<usize>) {
    let all: Vec<&str> = page.split("<li id=\"").skip(1).collect();
    let text = |line: &&str| line.split("<span>").nth(1).unwrap().split("</span>").next().unwrap().to_owned();
    let marked = all.iter().position(|line| line.split('>').next().unwrap().contains(" fails\""));
    (all.iter().map(text).collect(), marked)
}

#[tokio::test]
async fn a_failed_log_opens_ten_lines_before_the_line_that_says_so() {
    let world = world().await;
    let cookie = enter(&world, &world.admin).await;
    let log = format!("{}error: this went wrong\n{}error: and this\n", lines(4_000), lines(4_000));
    let (run, _) = failed(&world, &log).await;
    let page = get(&world, &format!("/runs/{run}/log"), &cookie).await;
    let (lines, marked) = shown(&page.text);
    assert_eq!((marked, lines[10].as_str()), (Some(10), "error: this went wrong"), "{}", page.text);
    assert_eq!(lines[0], "all is well in line 3990");
    let (lines, marked) = shown(&get(&world, &format!("/runs/{run}/log?from=end"), &cookie).await.text);
    assert_eq!((marked, lines.last().unwrap().as_str()), (None, "error: and this"));
}

#[tokio::test]
async fn a_failed_log_opens_at_its_end_while_others_search() {
    let world = world().await;
    let cookie = enter(&world, &world.admin).await;
    let (run, _) = failed(&world, &format!("error: this went wrong\n{}", lines(4_000))).await;
    let busy = world.state.pages.searches.turns.clone().acquire_many_owned(AT_ONCE as u32).await.unwrap();
    let page = get(&world, &format!("/runs/{run}/log"), &cookie).await;
    assert_eq!(page.status, StatusCode::OK, "{}", page.text);
    assert_eq!(shown(&page.text).0.last().unwrap(), "all is well in line 3999");
    drop(busy);
    let (lines, marked) = shown(&get(&world, &format!("/runs/{run}/log"), &cookie).await.text);
    assert_eq!((marked, lines[0].as_str()), (Some(0), "error: this went wrong"));
}

#[tokio::test]
async fn a_failure_beyond_one_search_is_found_by_those_that_follow() {
    let world = world().await;
    let quiet = lines(120_000);
    let (_, job) = failed(&world, &format!("{quiet}error: late\n")).await;
    let (searches, logs) = (Searches { most_bytes: 1, ..Searches::default() }, &world.engine.logs);
    let (mut opened, mut found) = (0, None);
    while found.is_none() {
        opened += 1;
        assert!(opened < 100, "each search begins where the one before has begun");
        found = searches.first_failure(logs, job.into()).await.unwrap();
    }
    assert!(opened > 1, "one search reads less than the log");
    assert_eq!(found.unwrap().offset, quiet.len() as i64);
    assert_eq!(searches.first_failure(logs, job.into()).await.unwrap(), found);
}

#[tokio::test]
async fn the_log_of_agents_that_failed_opens_at_the_first_failure() {
    let world = world().await;
    let cookie = enter(&world, &world.admin).await;
    let call = |n: usize| json!({ "name": format!("s{n}"), "http": { "url": "https://a.example/" } });
    let run = world.agents((0..2).map(call).collect()).await;
    let steps = world.ask("get", &format!("/api/v1/runs/{run}/steps"), Some(&world.admin), &[], "").await.body;
    let id = |n: usize| steps["data"][n]["id"].as_str().unwrap().parse::<StepId>().unwrap();
    let log = |n: usize| LogId::Step(StepTry { id: id(n), number: 1 });
    written(&world, &run, log(0), lines(20).as_bytes()).await;
    written(&world, &run, log(1), b"Traceback (most recent call last)\n").await;
    let mut offset = lines(20).len() as i64;
    for n in 0..400 {
        offset = written_at(&world, &run, log(0), offset, format!("later {n}\n").as_bytes()).await;
    }
    let before = shown(&get(&world, &format!("/runs/{run}/log"), &cookie).await.text);
    assert_eq!((before.1, before.0.last().unwrap().as_str()), (None, "later 399"), "it has not failed");
    let number: RunId = run.parse().unwrap();
    write(&world, move |tx| ended(tx, number)).await;
    let (lines, marked) = shown(&get(&world, &format!("/runs/{run}/log"), &cookie).await.text);
    let at = marked.expect("the first failure is marked");
    assert_eq!((at, lines[at].as_str()), (20, "Traceback (most recent call last)"));
}
