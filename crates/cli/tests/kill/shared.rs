//! The same on PostgreSQL, with a server and a worker as processes of their own: each dies at its points and is started again by
//! its supervisor. All worlds of a story share one cluster, each with its own database.

use crate::check;
use crate::cluster::Cluster;
use crate::stories::Story;
use crate::world::{Spot, World};
use std::sync::atomic::{AtomicUsize, Ordering};
use wire::model::fault::{Moment, POINTS, Role};

/// Worlds at a time: they mostly wait.
const AT_A_TIME: usize = 3;
/// The suite takes one in so many, another share each day; `KILL_POSTGRES=all` takes every one.
const SHARES: u64 = 4;
/// Only an embedded control plane writes down where it is, waits for a disk itself, and keeps a mark of its ids.
const NOT_HERE: &[&str] = &["control.announce", "database.sync", "ids.mark"];

/// Stories that need nothing but a server and a worker.
pub fn can_tell(story: &Story) -> bool {
    !story.settings.contains("[timings]") && story.also.is_empty() && !spots(story).is_empty() && story.shared
}

fn spots(story: &Story) -> Vec<Spot> {
    let mut spots = Vec::new();
    for name in story.points.iter().filter(|name| !NOT_HERE.contains(name)) {
        let first = Spot::parse(name, Moment::Before);
        let (_, roles) = POINTS.iter().find(|(known, _)| *known == first.name).expect("it was just parsed");
        let meant = roles.iter().filter(|role| !name.contains('/') || **role == first.role);
        for role in meant.filter(|role| matches!(role, Role::Server | Role::Worker)) {
            spots.extend([Moment::Before, Moment::After].map(|moment| Spot::of(*role, first.name, moment)));
        }
    }
    spots
}

pub fn tell(story: &Story) {
    let cluster = Cluster::start();
    let chosen: Vec<Spot> = todays(spots(story));
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let worlds: Vec<_> = (0..AT_A_TIME)
            .map(|_| {
                scope.spawn(|| {
                    while let Some((number, spot)) = take(&next, &chosen) {
                        eprintln!("{}: {spot}", story.name);
                        let database = cluster.database(&format!("world{number}"));
                        let world = World::shared(&database, story.settings, spot, "REPL_CRASH", 1);
                        (story.tell)(&world);
                        world.has_died();
                        check::settled(&world);
                        world.closes();
                    }
                })
            })
            .collect();
        let failed = worlds.into_iter().map(|world| world.join()).filter(Result::is_err).count();
        assert_eq!(failed, 0, "see above");
    });
}

fn take<'s>(next: &AtomicUsize, spots: &'s [Spot]) -> Option<(usize, &'s Spot)> {
    let number = next.fetch_add(1, Ordering::Relaxed);
    spots.get(number).map(|spot| (number, spot))
}

fn todays(spots: Vec<Spot>) -> Vec<Spot> {
    let is_todays = |at: usize| is_todays(at, SHARES, "KILL_POSTGRES");
    spots.into_iter().enumerate().filter(|(at, _)| is_todays(*at)).map(|(_, spot)| spot).collect()
}

/// Whether this one is in today's share, or `variable` asks for all of them.
#[expect(clippy::disallowed_methods, reason = "which share it is today is no matter of any run")]
pub fn is_todays(number: usize, shares: u64, variable: &str) -> bool {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let day = since.as_secs() / 86_400;
    (number as u64 + day).is_multiple_of(shares) || std::env::var(variable).is_ok_and(|wanted| wanted == "all")
}
