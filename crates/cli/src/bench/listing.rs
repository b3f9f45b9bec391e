//! A page of runs: fifty of very many, beside fifty of a hundred.

use super::figure::{Figure, Goal, percentile};
use super::plane::{Plane, Setup};
use super::{Plan, bare, crowd};
use crate::complaint::Done;
use std::time::Instant;
use wire::api::{Page, RunView};

const FEW: usize = 100;
const PAGE: usize = 50;

pub async fn measure(plan: &Plan) -> Done<Vec<Figure>> {
    let count = plan.size(100_000);
    // One machine may exist and none is asked for: every run waits, and nothing moves while we look.
    let setup = Setup { machines: 1, ..Setup::default() };
    let many = Plane::start_in(plan.crowd.home(count).await?, &setup).await?;
    let few = Plane::start_in(crowd::filled(FEW).await?, &setup).await?;
    let mut figures = Vec::new();
    for (what, path) in [("open ones", "/api/v1/runs?limit=50"), ("all", "/api/v1/runs?all=true&limit=50")] {
        let (mut of_many, mut of_few) = (Vec::new(), Vec::new());
        for _ in plan.repeats("listing") {
            let (mut slow, mut quick) = (Vec::new(), Vec::new());
            for _ in 0..40 {
                slow.push(list(&many, path).await?);
                quick.push(list(&few, path).await?);
            }
            of_many.push(percentile(&slow, 0.5));
            of_few.push(percentile(&quick, 0.5));
        }
        figures.push(
            Figure::new("listing", format!("50 of {count} runs, {what}"), "ms", &of_many)
                .beside(format!("50 of {FEW}"), &of_many, &of_few)
                .goal(Goal::AtMost(3.0)),
        );
    }
    Ok(figures)
}

async fn list(plane: &Plane, path: &str) -> Done<f64> {
    let began = Instant::now();
    let page: Page<RunView> = plane.client.get(path).await?;
    debug_assert_eq!(page.data.len(), PAGE);
    Ok(bare::ms(began))
}
