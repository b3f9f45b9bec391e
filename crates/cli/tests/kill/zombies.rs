//! A worker that is stopped for longer than its lease and then goes on: meanwhile another does its work, and whatever the zombie
//! still wants to write is refused.

use crate::check;
use crate::cluster::Cluster;
use crate::kept_up::KeptUp;
use crate::process;
use crate::recorder::{Recorder, Reply};
use crate::world::{Spot, World, count};
use nix::sys::signal::Signal;
use wire::model::fault::Moment;

/// Between two transactions, with a log's file in hand that another has long put in its place.
pub fn stopped_between_transactions() {
    let zombie = Spot::parse("worker/blob.keep", Moment::Before);
    wakes_up_too_late(&zombie);
}

/// In an open transaction, with its rows locked: the database ends the transaction, so that no other one waits longer than that.
pub fn stopped_inside_a_transaction() {
    let zombie = Spot::parse("log.seal", Moment::Before);
    wakes_up_too_late(&zombie);
}

fn wakes_up_too_late(spot: &Spot) {
    let cluster = Cluster::start();
    let world = World::shared(&cluster.database("world"), "", spot, "REPL_STOP", 2);
    let run = world.submit(&[], "seq 1 300; exit 6", 6, &count(300));
    world.ends(&run);
    world.until("a worker is stopped", || world.kept_up.iter().any(|worker| worker.is_stopped()));
    let zombie = world.kept_up.iter().find(|worker| worker.is_stopped()).unwrap();
    // The other worker is not held up: it takes over the items of the stopped one.
    let other = world.submit(&[], "echo 1", 0, "1\n");
    world.ends(&other);
    world.until("another gathers the zombie's log", || check::gathered(&world) == 2);
    assert!(zombie.is_stopped(), "it has slept through all of it");
    process::signal(zombie.pid(), Signal::SIGCONT);
    // "another worker has taken the item over", or, where its connection had died with its transaction, "another holder has taken over".
    zombie.hears("has taken");
    // It is of use again, and has done no harm.
    let last = world.submit(&[], "echo 2", 0, "2\n");
    world.ends(&last);
    check::settled(&world);
    world.closes();
}

/// Where a worker that has lost an agent to another reports what it did meanwhile.
pub const REPORTS: &str = "worker/agent.report";

/// A worker is stopped while it calls a tool. Another takes the agent over and calls it again under the same key. Both get an answer, and
/// the first dies while it reports its own.
pub fn died_while_it_reported(spot: &Spot) {
    let cluster = Cluster::start();
    let allowed = "[tools]\nallow = [\"127.0.0.1\"]\n";
    let mut world = World::shared(&cluster.database("world"), allowed, spot, "REPL_CRASH", 1);
    let recorder = Recorder::answering(|_, _| Reply::Held("both"));
    let step = format!("{{http: {{url: \"{}\"}}}}", recorder.url("/slow"));
    let run = world.submit_plan(&format!("type: agents\nagents:\n- tasks:\n  - steps: [{step}]\n"));
    recorder.hears("/slow", 1);
    let zombie = world.kept_up[1].pid();
    process::signal(zombie, Signal::SIGSTOP);
    let server = world.server.clone();
    let other = KeptUp::start(world.home.repl(&["worker", "--server", &server]));
    other.hears("working");
    world.kept_up.push(other);
    recorder.hears("/slow", 2);
    recorder.release("both");
    world.ends(&run);
    process::signal(zombie, Signal::SIGCONT);
    world.has_died();
    let keys: Vec<_> = recorder.records().into_iter().map(|record| record.key).collect();
    assert!(keys.len() == 2 && keys[0].is_some() && keys[0] == keys[1], "{keys:?}");
    check::settled(&world);
    world.closes();
}
