//! Complete runs per second: many clients submit, four warm machines run one process per run; and the commits of a run.

use super::Plan;
use super::bare::shells_a_second;
use super::figure::{Figure, Goal};
use super::plane::{Plane, Setup, submit};
use crate::complaint::Done;
use futures_util::future::try_join_all;
use std::time::Instant;
use wire::api::{Page, RunView};

const MACHINES: usize = 4;
const CLIENTS: usize = 16;

pub async fn measure(plan: &Plan) -> Done<Vec<Figure>> {
    let plane = Plane::start(&Setup { machines: MACHINES, ..Setup::default() }).await?;
    plane.warm_up(MACHINES).await?;
    let count = plan.size(400).max(64);
    let (mut ours, mut shells, mut commits) = (Vec::new(), Vec::new(), Vec::new());
    for _ in plan.repeats("runs") {
        shells.push(shells_a_second(200)?);
        let before = plane.counts().await?.commits();
        ours.push(a_second(&plane, count).await?);
        commits.push((plane.counts().await?.commits() - before) as f64 / count as f64);
    }
    Ok(vec![
        Figure::new("runs", "no-op runs, 4 machines", "/s", &ours)
            .beside("sh -c true, one by one", &ours, &shells)
            .goal(Goal::AtLeast(0.1)),
        Figure::new("runs", "commits of a run, state and logs", "", &commits).goal(Goal::AtMost(6.0)),
    ])
}

async fn a_second(plane: &Plane, count: usize) -> Done<f64> {
    let left = std::cell::Cell::new(count);
    let one_client = || async {
        let mut last = None;
        while left.get() > 0 {
            left.set(left.get() - 1);
            last = Some(submit(&plane.client, "true").await?);
        }
        Done::Ok(last)
    };
    let began = Instant::now();
    let last = try_join_all((0..CLIENTS).map(|_| one_client())).await?;
    for run in last.into_iter().flatten() {
        plane.end_of(&run).await?;
    }
    // They are served in the order they came, so hardly any is left.
    loop {
        let open: Page<RunView> = plane.client.get("/api/v1/runs?limit=1").await?;
        let Some(run) = open.data.first() else { break };
        plane.end_of(&run.id).await?;
    }
    Ok(count as f64 / began.elapsed().as_secs_f64())
}
