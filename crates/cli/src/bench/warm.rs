//! The warm start: the time from the submission to the first byte of output at the client, over the socket, on an idle machine.

use super::bare::{self, Commits};
use super::figure::{Figure, Goal, percentile};
use super::plane::{Plane, Setup};
use super::{Plan, plane};
use crate::complaint::{Complaint, Done};
use std::time::{Duration, Instant};

/// What we may add to a process and three waits for the disk.
const OURS_MS: f64 = 5.0;
const COMMITS: f64 = 3.0;
/// Long enough for a machine to wait for work again, with its next keeper at hand.
const PAUSE: Duration = Duration::from_millis(25);

pub async fn measure(plan: &Plan) -> Done<Vec<Figure>> {
    let plane = Plane::start(&Setup { machines: 1, ..Setup::default() }).await?;
    plane.warm_up(1).await?;
    let mut commits = Commits::in_folder(plane.home.path())?;
    let (mut halves, mut slowest, mut bounds) = (Vec::new(), Vec::new(), Vec::new());
    for _ in plan.repeats("warm") {
        let (mut ours, mut shells, mut waits) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..plan.size(100).max(20) {
            shells.push(bare::first_byte_of_a_shell()?);
            waits.push(commits.one()?);
            ours.push(start(&plane).await?);
            tokio::time::sleep(PAUSE).await;
        }
        halves.push(percentile(&ours, 0.5));
        slowest.push(percentile(&ours, 0.99));
        bounds.push(percentile(&shells, 0.5) + COMMITS * percentile(&waits, 0.5) + OURS_MS);
    }
    Ok(vec![
        Figure::new("warm", "submit to first byte, p50", "ms", &halves)
            .beside("sh + 3 commits + 5 ms", &halves, &bounds)
            .goal(Goal::AtMost(1.0)),
        Figure::new("warm", "submit to first byte, p99", "ms", &slowest)
            .beside("its p50", &slowest, &halves)
            .goal(Goal::AtMost(5.0)),
    ])
}

/// One warm start, in ms. The run's end is waited for, and not counted.
async fn start(plane: &Plane) -> Done<f64> {
    let began = Instant::now();
    let run = plane::submit(&plane.client, "echo x").await?;
    let mut log = plane.client.events(&format!("/api/v1/runs/{run}/logs"), None).await?;
    let first = log.next().await?;
    let took = bare::ms(began);
    if first.is_none_or(|event| event.event != "log") {
        return Err(Complaint::refused(format!("run {run} said nothing")));
    }
    while log.next().await?.is_some() {}
    Ok(took)
}
