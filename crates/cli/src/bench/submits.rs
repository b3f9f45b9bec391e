//! Submissions per second over the socket by many clients, compared with the same statements on a bare connection, and with a control
//! plane that commits each submission by itself.

use super::Plan;
use super::bare::Commits;
use super::figure::{Figure, Goal, percentile};
use super::plane::{Home, Plane, Setup, submit};
use crate::complaint::Done;
use futures_util::future::try_join_all;
use std::cell::Cell;
use std::path::Path;
use std::time::Instant;
use testkit::bare::{Plain, Said, copy};
use testkit::rehearsal::Rehearsal;
use wire::client::Client;

/// The store lets no more share a commit, nor more than come to so much work.
const GROUP: f64 = 64.0;
const GROUP_WORK_S: f64 = 0.005;

pub async fn measure(plan: &Plan) -> Done<Vec<Figure>> {
    let count = plan.size(3000);
    let rehearsed = Rehearsed::new(count).await?;
    let mut commits = Commits::in_folder(rehearsed.home.path())?;
    let mut found = Repeats::default();
    for _ in plan.repeats("submits") {
        // Each begins with one run, as the bare loop does: what is full is slower.
        let grouped = || fresh_plane(None);
        let alone = || fresh_plane(Some(1));
        found.bare.push(rehearsed.a_second(16)?);
        found.few.push(a_second(&grouped().await?.client, 16, count).await?);
        found.few_alone.push(a_second(&alone().await?.client, 16, count / 4).await?);
        found.many.push(a_second(&grouped().await?.client, 128, count).await?);
        found.many_alone.push(a_second(&alone().await?.client, 128, count / 4).await?);
        let waits: Vec<f64> = (0..50).map(|_| commits.one()).collect::<Done<_>>()?;
        found.commit_s.push(percentile(&waits, 0.5) / 1e3);
    }
    Ok(found.figures())
}

#[derive(Default)]
struct Repeats {
    bare: Vec<f64>,
    few: Vec<f64>,
    few_alone: Vec<f64>,
    many: Vec<f64>,
    many_alone: Vec<f64>,
    commit_s: Vec<f64>,
}

impl Repeats {
    fn figures(&self) -> Vec<Figure> {
        let unit = "/s";
        let mut figures = vec![
            Figure::new("submits", "accepted, 16 clients", unit, &self.few)
                .beside("same statements, bare, by 16", &self.few, &self.bare)
                .goal(Goal::AtLeast(0.45)),
            Figure::new("submits", "accepted, 16 clients", unit, &self.few)
                .beside("each its own commit", &self.few, &self.few_alone)
                .goal(Goal::AtLeast(2.0)),
            Figure::new("submits", "accepted, 128 clients", unit, &self.many)
                .beside("each its own commit", &self.many, &self.many_alone)
                .goal(Goal::AtLeast(3.0)),
        ];
        for (what, rates, alone, clients) in [
            ("gain of grouping, 16 clients", &self.few, &self.few_alone, 16.0),
            ("gain of grouping, 128 clients", &self.many, &self.many_alone, 128.0),
        ] {
            let gains: Vec<f64> = rates.iter().zip(alone).map(|(rate, alone)| rate / alone).collect();
            let predicted: Vec<f64> =
                alone.iter().zip(&self.commit_s).map(|(alone, commit)| predicted(*alone, *commit, clients)).collect();
            figures.push(
                Figure::new("submits", what, "×", &gains)
                    .beside("as commit and fsync predict", &gains, &predicted)
                    .goal(Goal::AtLeast(0.7)),
            );
        }
        figures
    }
}

/// Each by itself takes its own work and a commit; in groups the commit is shared.
fn predicted(alone: f64, commit_s: f64, clients: f64) -> f64 {
    let each = 1.0 / alone;
    let work = (each - commit_s).max(each * 0.05);
    let together = clients.min(GROUP).min((GROUP_WORK_S / work).ceil());
    each / (work + commit_s / together)
}

async fn fresh_plane(group: Option<usize>) -> Done<Plane> {
    busy(&Setup { machines: 1, group, ..Setup::default() }).await
}

/// A control plane whose only machine is taken: whatever is submitted is accepted, and waits.
pub async fn busy(setup: &Setup) -> Done<Plane> {
    let plane = Plane::start(setup).await?;
    let run = plane.submit("echo busy; exec sleep 100000").await?;
    plane.client.events(&format!("/api/v1/runs/{run}/logs"), None).await?.next().await?;
    Ok(plane)
}

/// So many submissions by so many clients at once; how many a second.
pub async fn a_second(client: &Client, clients: usize, count: usize) -> Done<f64> {
    let left = Cell::new(count);
    let one_client = || async {
        while left.get() > 0 {
            left.set(left.get() - 1);
            submit(client, "true").await?;
        }
        Done::Ok(())
    };
    let began = Instant::now();
    try_join_all((0..clients).map(|_| one_client())).await?;
    Ok(count as f64 / began.elapsed().as_secs_f64())
}

/// The statements of many submissions, and the database they were said to, as it was before.
struct Rehearsed {
    home: Home,
    said: Vec<Said>,
}

impl Rehearsed {
    async fn new(count: usize) -> Done<Rehearsed> {
        let home = Home::new()?;
        let rehearsal = Rehearsal::open(home.path(), testkit::rehearsal::Database::File(home.database()), true).await?;
        // The first takes the only machine; what follows waits, as it does in the other measurements.
        rehearsal.submit(0, true).await?;
        rehearsal.heard();
        copy(&home.database(), &home.path().join("before.db"))?;
        for number in 1..=count {
            rehearsal.submit(number, true).await?;
        }
        Ok(Rehearsed { said: rehearsal.heard(), home })
    }

    fn a_second(&self, at_once: usize) -> Done<f64> {
        let copy = self.home.path().join("again.db");
        fresh(&self.home.path().join("before.db"), &copy)?;
        let mut plain = Plain::open(&copy)?;
        let began = Instant::now();
        plain.say(&self.said, at_once)?;
        Ok(self.said.len() as f64 / began.elapsed().as_secs_f64())
    }
}

fn fresh(from: &Path, to: &Path) -> Done<()> {
    for end in ["", "-wal", "-shm"] {
        let _ = std::fs::remove_file(format!("{}{end}", to.display()));
    }
    std::fs::copy(from, to).map(drop).map_err(|error| crate::complaint::Complaint::file("copy", from, &error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_grouping_should_gain() {
        // A commit as dear as the work: by sixteen almost twice as fast, and never more than that.
        let gain = predicted(5000.0, 0.0001, 16.0);
        assert!((gain - 1.0 / (0.5 + 0.5 / 16.0)).abs() < 1e-9, "{gain}");
        assert!(predicted(1000.0, 0.0005, 128.0) < 2.0);
        // On a slow disk a group is full when it has worked for 5 ms, not when sixty-four share it.
        let slow = predicted(250.0, 0.0035, 128.0);
        assert!((slow - 0.004 / (0.0005 + 0.0035 / 10.0)).abs() < 1e-9, "{slow}");
        // Nothing to gain where commits cost nothing.
        assert!((predicted(1000.0, 0.0, 64.0) - 1.0).abs() < 1e-9);
    }
}
