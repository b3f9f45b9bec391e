//! SIGKILL before and after every crash point: the real binary dies there, the component that is responsible for it starts it again, and
//! the promises of docs/reliability.md hold. A registered point that no story reaches is a failure.

#[allow(dead_code, reason = "the end-to-end tests use the rest")]
#[path = "../e2e/api.rs"]
mod api;
mod cached;
mod called;
mod check;
#[allow(dead_code, reason = "the end-to-end tests use the rest")]
#[path = "../e2e/cluster.rs"]
mod cluster;
#[allow(dead_code, reason = "the end-to-end tests use the rest")]
#[path = "../e2e/gate.rs"]
mod gate;
#[allow(dead_code, reason = "the end-to-end tests use the rest")]
#[path = "../e2e/home.rs"]
mod home;
mod kept_up;
#[allow(dead_code, reason = "the tests of agents use the rest")]
#[path = "../agents/listener.rs"]
mod listener;
#[allow(dead_code, reason = "the end-to-end tests use the rest")]
#[path = "../e2e/process.rs"]
mod process;
mod puppet;
#[allow(dead_code, reason = "the tests of agents use the rest")]
#[path = "../agents/recorder.rs"]
mod recorder;
#[allow(dead_code, reason = "the end-to-end tests use the rest")]
#[path = "../e2e/servers.rs"]
mod servers;
mod shared;
mod stories;
mod world;
mod zombies;

use libtest_mimic::{Arguments, Failed, Trial};
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use stories::STORIES;
use wire::model::fault::{Moment, POINTS, Role};
use world::{Spot, World};

/// The suite kills at each point at one of the two moments, at the other one the next day; `KILL_SQLITE=all` at both.
const SHARES: u64 = 2;

fn main() {
    let mut trials = vec![Trial::test("every_registered_point_has_a_story", || guarded(every_point_has_a_story))];
    let points = STORIES.iter().flat_map(|story| story.points.iter().map(move |name| (story, name)));
    for (number, (story, name)) in points.enumerate() {
        for (half, moment) in [Moment::Before, Moment::After].into_iter().enumerate() {
            let spot = Spot::parse(name, moment);
            let trial = Trial::test(format!("{}::{spot}", story.name), move || {
                guarded(|| {
                    let world = World::new(story.settings, story.also, &spot);
                    (story.tell)(&world);
                    world.has_died();
                    check::settled(&world);
                })
            });
            // Listed all the same, so that a suite that runs over midnight finds every test that it has listed.
            trials.push(trial.with_ignored_flag(!shared::is_todays(number + half, SHARES, "KILL_SQLITE")));
        }
    }
    for story in STORIES.iter().filter(|story| shared::can_tell(story)) {
        trials.push(Trial::test(format!("postgres::{}", story.name), || guarded(|| shared::tell(story))));
    }
    let between = "zombies::stopped_between_transactions";
    trials.push(Trial::test(between, || guarded(zombies::stopped_between_transactions)));
    let inside = "zombies::stopped_inside_a_transaction";
    trials.push(Trial::test(inside, || guarded(zombies::stopped_inside_a_transaction)));
    for moment in [Moment::Before, Moment::After] {
        let spot = Spot::parse(zombies::REPORTS, moment);
        let name = format!("zombies::died_while_it_reported::{spot}");
        trials.push(Trial::test(name, move || guarded(|| zombies::died_while_it_reported(&spot))));
    }
    for (point, moment) in [("adapter.invoke", Moment::After), ("execution.integrate", Moment::Before)] {
        let spot = Spot::parse(point, moment);
        let name = format!("called::stopped_while_it_owned::{spot}");
        trials.push(Trial::test(name, move || guarded(|| called::stopped_while_it_owned(&spot))));
    }
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}

/// A panic is a failed test, and what it said has been printed.
fn guarded(test: impl FnOnce()) -> Result<(), Failed> {
    catch_unwind(AssertUnwindSafe(test)).map_err(|_| "see above".into())
}

/// A pool change takes a second provider that has room where the first has none: `crates/engine/tests/intents/placement.rs` has one. Messages
/// to agents are in `crates/engine/tests/intents/messages.rs`, retention and snapshots in `crashes.rs` there. Providers that are added, tried
/// and removed are in `crates/cli/tests/e2e/providers.rs`; each of their writes may be repeated. What hosts
/// have answered is asked for again when it was not written (`ssh.rs` there has hosts). That a kept result is in use (noted an hour after
/// the last note), executions that ended months ago or killed their workers, and pins that are not those of the index are in
/// `crates/engine/tests/intents/call_deaths.rs`, whose control plane dies before and after each of these writes.
const UNREACHED: &[&str] = &[
    "runner/snapshot.put",
    "server/cache.rebuild",
    "server/call.used",
    "server/execution.fail_caller",
    "server/execution.forget",
    "server/execution.give_up",
    "server/job.change_pool",
    "server/manifest.reconcile",
    "server/message.send",
    "server/provider.abandon",
    "server/provider.force",
    "server/provider.hosts",
    "server/provider.seen",
    "server/provider.test",
    "server/provider.tested",
    "server/snapshot.create",
    "server/snapshot.delete",
    "server/snapshot.taken",
];

/// On SQLite server and worker are one process: to die as either is to die as both.
fn every_point_has_a_story() {
    let process = |role: Role| if role == Role::Worker { Role::Server } else { role };
    let told: BTreeSet<String> = STORIES
        .iter()
        .flat_map(|story| story.points)
        .chain([&zombies::REPORTS])
        .map(|name| Spot::parse(name, Moment::Before))
        .map(|spot| format!("{}/{}", process(spot.role), spot.name))
        .collect();
    let untold: BTreeSet<String> = POINTS
        .iter()
        .flat_map(|(name, roles)| roles.iter().map(move |role| format!("{}/{name}", process(*role))))
        .filter(|point| !told.contains(point))
        .collect();
    let known: BTreeSet<String> = UNREACHED.iter().map(|point| (*point).to_owned()).collect();
    let untold: Vec<&String> = untold.symmetric_difference(&known).collect();
    assert!(untold.is_empty(), "no story in stories.rs reaches {untold:?}");
}
