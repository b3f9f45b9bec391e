//! What many viewers, many runs and many steps cost: counted in reads of the database and in bytes, never in time.

use super::tests::{HOST, enter, get, submitted};
use crate::hostile::World;
use axum::body::Body;
use axum::http::{Request, StatusCode};
use engine::store::{Hint, Lane, Topic, Tx};
use futures_util::StreamExt as _;
use futures_util::stream::BoxStream;
use model::{RunId, StepId, Timestamp};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Viewers of one run.
const VIEWERS: usize = 1_000;
/// Ids of rows that tests make: far from those that the store gives out.
const FAR: i64 = 1 << 40;
/// How long changes go on, and how many are under way at once.
const CHANGING: Duration = Duration::from_millis(2_200);
const AT_ONCE: usize = 50;

/// A size that the suite keeps small: `PAGES_ROWS=100000` is the size that is promised.
fn rows() -> usize {
    std::env::var("PAGES_ROWS").ok().and_then(|rows| rows.parse().ok()).unwrap_or(10_000)
}

/// Asked over the unix socket, which has no rate limit.
async fn world() -> World {
    World::new(true).await
}

type Stream = BoxStream<'static, Result<axum::body::Bytes, axum::Error>>;

async fn follow(world: &World, cookie: &str, run: &str) -> Stream {
    let request = Request::builder().uri(format!("/ui/live?r=/ui/runs/{run}/head"));
    let request = request.header("host", HOST).header("cookie", cookie).body(Body::empty()).unwrap();
    let mut stream = world.raw(request).await.into_body().into_data_stream().boxed();
    hears(&mut stream).await;
    stream
}

/// Waits for the next version of a region.
async fn hears(stream: &mut Stream) {
    let mut heard = String::new();
    while !heard.contains("event: v") {
        heard += std::str::from_utf8(&stream.next().await.unwrap().unwrap()).unwrap();
    }
}

fn reads(world: &World) -> u64 {
    world.engine.store.counts().reads.values().sum()
}

/// A run with this many viewers is cancelled, and each of them fetches what has changed: how many reads that takes.
async fn cost_of_a_change(viewers: usize) -> u64 {
    let world = world().await;
    let run = submitted(&world, false).await;
    let cookie = enter(&world, &world.admin).await;
    let mut streams = Vec::new();
    for _ in 0..viewers {
        streams.push(follow(&world, &cookie, &run).await);
    }
    let before = reads(&world);
    let cancelled = world
        .ask("post", &format!("/api/v1/runs/{run}/cancel"), Some(&world.admin), &[("idempotency-key", "k")], "{}")
        .await;
    assert!(cancelled.status.is_success(), "{:?}", cancelled.body);
    for stream in &mut streams {
        hears(stream).await;
        let shown = get(&world, &format!("/ui/runs/{run}/head"), &cookie).await;
        assert!(shown.status == StatusCode::OK && shown.text.contains("cancelled"), "{}", shown.text);
    }
    reads(&world) - before
}

#[tokio::test]
async fn a_change_costs_a_thousand_viewers_the_reads_of_one() {
    let (one, many) = (cost_of_a_change(1).await, cost_of_a_change(VIEWERS).await);
    assert!(many <= one + 2, "{many} reads for {VIEWERS} viewers, {one} for one");
}

/// A run's page is loaded by so many people at once.
#[tokio::test]
async fn a_crowd_that_loads_a_page_shares_its_regions() {
    let world = world().await;
    let run = submitted(&world, false).await;
    let cookie = enter(&world, &world.admin).await;
    let page = format!("/runs/{run}");
    let loads = || world.state.pages.live.loads.load(Ordering::Relaxed);
    get(&world, &page, &cookie).await;
    let one = loads();
    for shown in futures_util::future::join_all((0..VIEWERS).map(|_| get(&world, &page, &cookie))).await {
        assert_eq!(shown.status, StatusCode::OK, "{}", shown.text);
    }
    let many = loads() - one;
    assert!(many <= one * VIEWERS as u64 / 10, "{many} renders for {VIEWERS} loads, {one} for one");
}

/// Kept for docs/performance.md in the file that `PAGES_FIGURES` names.
pub(super) fn figure(text: String) {
    use std::io::Write as _;
    let Some(path) = std::env::var_os("PAGES_FIGURES") else { return };
    let mut file = std::fs::OpenOptions::new().append(true).create(true).open(path).unwrap();
    file.write_all(format!("{text}\n").as_bytes()).unwrap();
}

/// So many runs like this one, submitted after it: rows as a submission writes them, put there by the store's own functions.
async fn copies_of_run(world: &World, like: &str, from: usize, to: usize) {
    let like: RunId = like.parse().unwrap();
    for first in (from..to).step_by(500) {
        let copies = move |tx: &mut Tx| {
            let (run, content) = engine::store::run::find_with_content(tx, like)?.expect("the run is there");
            let attempt = engine::store::attempt::find(tx, like, run.attempt)?.expect("a run has an attempt");
            for number in (first..to.min(first + 500)).map(|number| number as i64) {
                let id = RunId(FAR + number);
                let created_at = Timestamp(run.created_at.ms() + 1 + number);
                let copy = model::run::Run { id, name: format!("copy-{number}"), created_at, ..run.clone() };
                engine::store::run::insert(tx, &copy, &content)?;
                engine::store::attempt::insert(tx, &model::attempt::Attempt { run: id, ..attempt.clone() })?;
            }
            Ok(())
        };
        world.engine.store.write(Lane::Low, "test.copies", copies).await.unwrap();
    }
}

/// So many steps behind the last one of a run's task.
async fn copies_of_step(world: &World, like: &str, from: usize, to: usize) {
    let like: RunId = like.parse().unwrap();
    for first in (from..to).step_by(500) {
        let copies = move |tx: &mut Tx| {
            let attempt = engine::store::run::find(tx, like)?.expect("the run is there").attempt;
            let last =
                engine::store::step::page(tx, like, attempt, engine::store::step::Below::Attempt, 0, 1)?.remove(0);
            for number in (first..to.min(first + 500)).map(|number| number as i64) {
                let (id, name) = (StepId(FAR + number), format!("copy-{number}"));
                let copy = model::step::Step { id, name, sequence: 1_000 + number, ..last.clone() };
                engine::store::step::insert(tx, &copy)?;
            }
            Ok(())
        };
        world.engine.store.write(Lane::Low, "test.copies", copies).await.unwrap();
    }
}

/// What one look at a page costs: reads, steps of the database, bytes, and the time for people to read.
async fn cost_of_a_look(world: &World, path: &str, cookie: &str) -> (u64, u64, usize, Duration) {
    get(world, path, cookie).await;
    let (before, began) = (world.engine.store.counts(), Instant::now());
    let shown = get(world, path, cookie).await;
    let (after, took) = (world.engine.store.counts(), began.elapsed());
    assert_eq!(shown.status, StatusCode::OK, "{path}");
    let sum = |counts: &engine::store::Counts| counts.reads.values().sum::<u64>();
    (sum(&after) - sum(&before), after.read_steps - before.read_steps, shown.text.len(), took)
}

#[tokio::test]
async fn a_page_of_runs_costs_the_same_however_many_runs_there_are() {
    let world = world().await;
    let cookie = enter(&world, &world.admin).await;
    let run = submitted(&world, true).await;
    copies_of_run(&world, &run, 0, 100).await;
    let few = cost_of_a_look(&world, "/runs", &cookie).await;
    let few_failed = cost_of_a_look(&world, "/runs?show=failed", &cookie).await;
    copies_of_run(&world, &run, 100, rows()).await;
    let many = cost_of_a_look(&world, "/runs", &cookie).await;
    assert!(many.1 <= 2 * few.1 && many.0 == few.0, "{many:?} with {} runs, {few:?} with a hundred", rows());
    assert!(many.2 <= 60 * 1024, "{} bytes", many.2);
    // No run has failed: a filter that looked for one in all of them would be found out.
    let none = cost_of_a_look(&world, "/runs?show=failed", &cookie).await;
    assert!(
        none.1 <= 2 * few_failed.1 && none.0 == few_failed.0,
        "{none:?} with {} runs, {few_failed:?} with a hundred",
        rows()
    );
    figure(format!("failed ones of 100 runs {few_failed:?}, of {} runs {none:?}", rows()));
    // A search looks through the newest 10,000 and no further.
    let found = cost_of_a_look(&world, "/runs?q=nowhere", &cookie).await;
    assert!(found.1 <= 60 * 10_000, "{found:?} for a text that no run has");
    figure(format!("a search of {} runs: {found:?}", rows()));
    figure(format!("100 runs {few:?}, {} runs {many:?}", rows()));
}

#[tokio::test]
async fn a_run_of_many_steps_opens_like_one_of_a_few() {
    let world = world().await;
    let cookie = enter(&world, &world.admin).await;
    let call = |n: usize| serde_json::json!({ "name": format!("s{n}"), "http": { "url": "https://a.example/" } });
    let run = world.agents((0..10).map(call).collect()).await;
    let page = format!("/runs/{run}");
    let ten = cost_of_a_look(&world, &page, &cookie).await;
    // One page of steps, so that both show the same number of rows.
    copies_of_step(&world, &run, 0, 200).await;
    let few = cost_of_a_look(&world, &page, &cookie).await;
    copies_of_step(&world, &run, 200, rows()).await;
    let many = cost_of_a_look(&world, &page, &cookie).await;
    assert!(many.1 <= 2 * few.1 && many.0 == few.0, "{many:?} with {} steps, {few:?} with 210", rows());
    assert!(many.2 <= 60 * 1024, "{} bytes", many.2);
    // Ten steps are ten rows instead of a hundred, and none is looked for beyond them.
    assert!(many.0 <= ten.0 + 1 && many.1 <= 2 * 10 * ten.1, "{many:?} with {} steps, {ten:?} with 10", rows());
    figure(format!("10 steps {ten:?}"));
    figure(format!("210 steps {few:?}, {} steps {many:?}", rows()));
}

/// However often the runs of a list change, it is rendered at most twice a second, and its last state is told.
#[tokio::test]
async fn a_list_that_changes_a_thousand_times_a_second_is_rendered_twice_a_second() {
    let world = world().await;
    let cookie = enter(&world, &world.admin).await;
    let run = submitted(&world, true).await;
    copies_of_run(&world, &run, 0, 49).await;
    let request = Request::builder().uri("/ui/live?r=/ui/runs").header("host", HOST).header("cookie", &cookie);
    let mut stream = world.raw(request.body(Body::empty()).unwrap()).await.into_body().into_data_stream().boxed();
    hears(&mut stream).await;
    let (began, before, mut changes) = (Instant::now(), world.state.pages.live.renders.load(Ordering::Relaxed), 0);
    let org = world.org;
    while began.elapsed() < CHANGING {
        let change = |number: usize| {
            let id = RunId(FAR + (number % 49) as i64);
            let change = move |tx: &mut Tx| {
                let mut run = engine::store::run::lock(tx, id)?;
                run.name = format!("changed-{number}");
                engine::store::run::save(tx, &run)?;
                tx.hint(Hint::Org(org, Topic::Runs));
                Ok(())
            };
            world.engine.store.write(Lane::Normal, "test.change", change)
        };
        let all = futures_util::future::join_all((changes..changes + AT_ONCE).map(change)).await;
        all.into_iter().for_each(|done| done.unwrap());
        changes += AT_ONCE;
    }
    let renders = world.state.pages.live.renders.load(Ordering::Relaxed) - before;
    let most = 2 + began.elapsed().as_millis() as u64 / 500;
    assert!((1..=most).contains(&renders), "{renders} renders for {changes} changes, at most {most}");
    figure(format!("{changes} changes in {:?}: {renders} renders", began.elapsed()));
    // What is shown in the end is what is there.
    let last = format!("changed-{}<", changes - 1);
    while !get(&world, "/ui/runs", &cookie).await.text.contains(&last) {
        hears(&mut stream).await;
    }
}
