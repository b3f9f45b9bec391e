//! A thousand followers of one run: each receives every event, the database is read once for all of them, and the memory of each is measured.

use super::Plan;
use super::bare::memory_mb;
use super::figure::{Figure, Goal};
use super::plane::{Plane, Setup};
use crate::complaint::Done;
use futures_util::future::try_join_all;
use std::time::Instant;

pub async fn measure(plan: &Plan) -> Done<Vec<Figure>> {
    let plane = Plane::start(&Setup { machines: 1, ..Setup::default() }).await?;
    plane.warm_up(1).await?;
    let count = plan.size(1000);
    let mut found = Repeats::default();
    for _ in plan.repeats("followers") {
        once(&plane, count, &mut found).await?;
    }
    Ok(vec![
        Figure::new("followers", format!("events heard by all of {count}"), "of 1", &found.heard)
            .goal(Goal::AtLeast(1.0)),
        Figure::new("followers", "reads from event to last follower", "", &found.reads)
            .beside("with one follower", &found.reads, &found.reads_of_one)
            .goal(Goal::AtMost(2.0)),
        Figure::new("followers", "memory of a follower", "KB", &found.kb),
        Figure::new("followers", "cancel to the last of all", "ms", &found.took_ms),
    ])
}

#[derive(Default)]
struct Repeats {
    heard: Vec<f64>,
    reads: Vec<f64>,
    reads_of_one: Vec<f64>,
    kb: Vec<f64>,
    took_ms: Vec<f64>,
}

async fn once(plane: &Plane, count: usize, found: &mut Repeats) -> Done<()> {
    let alone = follow(plane, 1).await?;
    let before = memory_mb(plane.pid, "Rss:");
    let many = follow(plane, count).await?;
    found.reads_of_one.push(alone.reads as f64);
    found.reads.push(many.reads as f64);
    found.heard.push(if many.everybody_heard_all { 1.0 } else { 0.0 });
    found.kb.push((many.rss_mb - before).max(0.0) * 1024.0 / count as f64);
    found.took_ms.push(many.took_ms);
    Ok(())
}

struct Followed {
    reads: u64,
    everybody_heard_all: bool,
    rss_mb: f64,
    took_ms: f64,
}

/// So many follow a run while it is cancelled; what it took from the moment all were there.
async fn follow(plane: &Plane, count: usize) -> Done<Followed> {
    let run = plane.submit("echo up; exec sleep 1000").await?;
    plane.client.events(&format!("/api/v1/runs/{run}/logs"), None).await?.next().await?;
    let path = format!("/api/v1/runs/{run}/events");
    let mut streams = try_join_all((0..count).map(|_| plane.client.events(&path, None))).await?;
    // A follower that has received the newest event has all events so far.
    let newest: wire::api::Page<wire::api::EventView> = plane.client.get(&format!("{path}?limit=1000")).await?;
    let reached = newest.data.last().map_or(0, |event| event.number);
    let mut heard = try_join_all(streams.iter_mut().map(|stream| async move {
        let mut last = 0;
        while last < reached {
            let Some(event) = stream.next().await? else { break };
            last = event.id.parse().unwrap_or(last);
        }
        Ok::<i64, wire::client::ClientError>(last)
    }))
    .await?;
    let rss_mb = memory_mb(plane.pid, "Rss:");
    let before = plane.counts().await?.reads();
    let began = Instant::now();
    plane
        .client
        .post::<_, serde_json::Value>(&format!("/api/v1/runs/{run}/cancel"), &serde_json::json!({ "abort": true }))
        .await?;
    let followed = streams.iter_mut().zip(&mut heard).map(|(stream, last)| async move {
        let mut gapless = true;
        while let Some(event) = stream.next().await? {
            let number = event.id.parse::<i64>().unwrap_or(0);
            gapless &= number == *last + 1;
            *last = number;
        }
        Ok::<(bool, i64), wire::client::ClientError>((gapless, *last))
    });
    let ends = try_join_all(followed).await?;
    let took_ms = super::bare::ms(began);
    let reads = plane.counts().await?.reads() - before;
    let all: wire::api::Page<wire::api::EventView> = plane.client.get(&format!("{path}?limit=1000")).await?;
    let end = all.data.last().map_or(0, |event| event.number);
    let everybody_heard_all = end > reached && ends.iter().all(|(gapless, last)| *gapless && *last == end);
    Ok(Followed { reads, everybody_heard_all, rss_mb, took_ms })
}
