//! What many viewers, many runs and many steps cost: counted in reads of the database and in bytes, never in time.

use super::tests::{HOST, enter, get, submitted, world};
use crate::hostile::World;
use axum::body::Body;
use axum::http::{Request, StatusCode};
use futures_util::StreamExt as _;
use futures_util::stream::BoxStream;

/// Viewers of one run.
const VIEWERS: usize = 1_000;

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

#[tokio::test]
async fn a_page_of_runs_reads_and_weighs_the_same_however_many_runs_there_are() {
    let world = world().await;
    let cookie = enter(&world, &world.admin).await;
    let mut seen = Vec::new();
    for count in [60, 240] {
        for _ in 0..count {
            submitted(&world, false).await;
        }
        get(&world, "/runs", &cookie).await;
        let before = reads(&world);
        let shown = get(&world, "/runs", &cookie).await;
        assert_eq!(shown.text.matches("<tr id=").count(), 50);
        assert!(shown.text.len() <= 60 * 1024, "{} bytes", shown.text.len());
        seen.push(reads(&world) - before);
    }
    assert_eq!(seen[0], seen[1]);
}
