//! The restart of a control plane with very many open runs, all due: the time until it answers, and until it has reconciled all of
//! them, compared with writing as many rows on a bare connection.

use super::figure::{Figure, Goal};
use super::plane::{Home, Plane, Setup};
use super::{Plan, bare};
use crate::complaint::{Complaint, Done};
use std::time::{Duration, Instant};
use testkit::bare::Plain;
use testkit::rehearsal::{Database, Rehearsal};
use wire::api::Health;

/// About what the rows of one run hold in sum.
const ROW_BYTES: usize = 1500;
/// Rows to a commit in the comparison.
const AT_ONCE: usize = 100;
const RECOVERS_WITHIN: Duration = Duration::from_secs(600);

pub async fn measure(plan: &Plan) -> Done<Vec<Figure>> {
    let count = plan.size(100_000);
    let (mut ready, mut ours, mut raw) = (Vec::new(), Vec::new(), Vec::new());
    for _ in plan.repeats("recovery") {
        raw.push(write(count)?);
        let home = plan.crowd.home(count).await?;
        let rehearsal = Rehearsal::open(home.path(), Database::File(home.database()), false).await?;
        rehearsal.wake_everybody().await?;
        drop(rehearsal);
        let began = Instant::now();
        let plane = Plane::start_in(home, &Setup { machines: 1, ..Setup::default() }).await?;
        let health: Health = plane.client.get("/readyz").await?;
        debug_assert_eq!(health.status, "ready");
        ready.push(began.elapsed().as_secs_f64());
        while plane.counts().await?.sum("remuda_work_due") > 0 {
            if began.elapsed() > RECOVERS_WITHIN {
                return Err(Complaint::refused(format!("{count} runs were not looked at within {RECOVERS_WITHIN:?}")));
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        ours.push(began.elapsed().as_secs_f64());
    }
    Ok(vec![
        Figure::new("recovery", format!("{count} open runs, start to /readyz"), "s", &ready).goal(Goal::AtMost(1.0)),
        Figure::new("recovery", format!("{count} open runs, all due, until all are looked at"), "s", &ours)
            .beside(format!("as many rows, bare, by {AT_ONCE}"), &ours, &raw)
            .goal(Goal::AtMost(3.0)),
    ])
}

fn write(rows: usize) -> Done<f64> {
    let home = Home::new()?;
    let mut plain = Plain::open(&home.path().join("bare.db"))?;
    let began = Instant::now();
    plain.write(rows, ROW_BYTES, AT_ONCE)?;
    Ok(bare::ms(began) / 1e3)
}
