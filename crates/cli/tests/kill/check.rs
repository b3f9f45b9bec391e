//! The checks after a process was killed: each run ended as its command did, its log is complete and without repetition, it is paid once,
//! no resource is untracked, and no process is left. The commands' own record is compared with what the product reports.

use crate::world::{Expected, World};
use serde_json::Value;
use std::collections::BTreeMap;
use wire::model::fault::Role;

pub fn settled(world: &World) {
    let runs = world.json(&["ps", "--all", "--limit", "100"]);
    let runs: BTreeMap<&str, &Value> =
        runs.as_array().unwrap().iter().map(|run| (run["id"].as_str().unwrap(), run)).collect();
    let begun = world.begun();
    for (run, _) in &begun {
        assert!(world.expected.borrow().iter().any(|expected| expected.run == *run), "{run} is nobody's: {begun:?}");
    }
    world.expected.borrow().iter().for_each(|expected| began_as_often_as_it_may(world, expected, &begun));
    let expected = world.expected.borrow();
    let asked = || expected.iter().filter(|expected| !expected.deleted);
    for expected in asked() {
        the_run(world, expected, runs.get(expected.run.as_str()).copied());
    }
    // A job that said nothing has no log.
    let spoke = |job: &Value| job["epoch"] != 0 && !(job["epoch"] == 1 && job["final_offset"] == 0);
    let logs = || asked().map(|it| world.home.jobs(&it.run).iter().filter(|job| spoke(job)).count()).sum::<usize>();
    world.until("logs are gathered", || gathered(world) >= logs());
    for expected in asked() {
        the_log(world, expected); // from its file now
    }
    nothing_is_untracked(world);
    world.home.adds_up();
}

fn the_run(world: &World, expected: &Expected, listed: Option<&Value>) {
    let run = &expected.run;
    let status = world.json(&["status", run]);
    if let Some(listed) = listed {
        assert_eq!(listed["status"], status["run"]["status"], "{run}");
    }
    let ended = ["completed", "failed", "cancelled"].contains(&status["run"]["status"].as_str().unwrap());
    assert!(ended, "{run} has not ended: {status}");
    the_log(world, expected);
    if expected.planned {
        return;
    }
    let attempts = status["run"]["attempt_number"].as_i64().unwrap();
    let rows = world.json(&["credits", "ledger", "--run", run]);
    let of = |kind: &str| rows.as_array().unwrap().iter().filter(|row| row["kind"] == kind).count() as i64;
    assert_eq!((of("reserve"), of("refund")), (attempts, attempts), "paid once an attempt: {rows}");
    assert!(of("charge") <= attempts, "{rows}");
}

fn the_log(world: &World, expected: &Expected) {
    let out = world.insist(&["logs", &expected.run], 0).out();
    // A dead keeper takes its work with it; by policy the run tries again, and that log is whole.
    let is_whole = if world.spot.role == Role::Keeper { out.ends_with(&expected.out) } else { out == expected.out };
    assert!(is_whole, "the log of {} has a gap or a repeat:\n{out}", expected.run);
}

fn began_as_often_as_it_may(world: &World, expected: &Expected, begun: &[(String, String)]) {
    let jobs: Vec<&str> = begun.iter().filter(|(run, _)| *run == expected.run).map(|(_, job)| job.as_str()).collect();
    let once = jobs.iter().all(|job| jobs.iter().filter(|other| other == &job).count() == 1);
    assert!(once, "an effect twice: {jobs:?}");
    if world.spot.role == Role::Keeper {
        let again = *expected.begun.start()..=expected.begun.end() + 1;
        assert!(again.contains(&jobs.len()), "{} began: {jobs:?}", expected.run);
    } else {
        assert!(expected.begun.contains(&jobs.len()), "{} began: {jobs:?}", expected.run);
    }
}

/// Logs that are in one file.
pub fn gathered(world: &World) -> usize {
    let orgs = std::fs::read_dir(world.home.data().join("blobs")).into_iter().flatten().flatten();
    orgs.map(|org| std::fs::read_dir(org.path().join("logs")).map_or(0, Iterator::count)).sum()
}

/// What is on this machine is known to the control plane, by name.
fn nothing_is_untracked(world: &World) {
    let known = world.json(&["instance", "ls", "--all"]);
    let known: Vec<&str> = known.as_array().unwrap().iter().map(|it| it["name"].as_str().unwrap()).collect();
    let folders = std::fs::read_dir(world.home.data().join("instances")).into_iter().flatten().flatten();
    for name in folders.map(|folder| folder.file_name().to_string_lossy().into_owned()) {
        assert!(name.starts_with('.') || known.contains(&name.as_str()), "{name} is nobody's: {known:?}");
    }
    for process in world.home.processes() {
        let dir = process.words.strip_prefix("repl runner --dir ").map(|rest| rest.split(' ').next().unwrap());
        let is_known = dir.is_none_or(|dir| known.iter().any(|name| dir.ends_with(name)));
        assert!(is_known, "{process:?} is nobody's: {known:?}");
    }
}
