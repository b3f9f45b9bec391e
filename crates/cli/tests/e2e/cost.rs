//! What a run costs in waits for a disk: counted by the processes themselves, never timed.

use crate::api::Api;
use crate::gate::Gate;
use crate::home::Home;
use serde_json::json;
use std::collections::BTreeMap;

/// Written on the clock's account, not on a run's.
const ON_THE_CLOCK: &[&str] = &["worker.beat", "instance.flush", "sweep.run"];

type Counts = BTreeMap<String, u64>;

/// What was counted since `before`, without what did not move.
fn since(before: &Counts, now: &Counts) -> Counts {
    let moved =
        now.iter().map(|(name, count)| (name.clone(), count.saturating_sub(before.get(name).copied().unwrap_or(0))));
    moved.filter(|(_, count)| *count > 0).collect()
}

fn writes(counts: &Counts) -> BTreeMap<&str, u64> {
    let names = counts.iter().filter_map(|(name, count)| {
        let name = name.strip_prefix("remuda_store_writes_total{name=\"")?.strip_suffix("\"}")?;
        Some((name, *count))
    });
    names.filter(|(name, _)| !ON_THE_CLOCK.contains(name)).collect()
}

fn commits(counts: &Counts) -> u64 {
    counts.iter().filter(|(name, _)| name.starts_with("remuda_store_commits_total")).map(|(_, count)| count).sum()
}

fn body(command: &str) -> serde_json::Value {
    json!({ "commands": [command], "start": true })
}

fn id(run: &serde_json::Value) -> String {
    run["id"].as_str().unwrap().to_owned()
}

/// Submits, and follows to the end.
fn run(api: &Api, command: &str) {
    let run = id(&api.post_all("/runs", vec![body(command)])[0]);
    let events = api.events(&format!("/runs/{run}/logs"));
    assert_eq!(events.last().unwrap().1["status"], "completed", "{events:?}");
}

/// Everything that follows from the ends of so many runs has been done.
fn gathered(api: &Api, runs: u64) {
    let done = |counts: &Counts| writes(counts).get("log.gathered").copied().unwrap_or(0) >= runs;
    while !done(&api.metrics()) {
        std::thread::yield_now();
    }
}

#[test]
fn a_warm_start_waits_three_times_for_a_disk() {
    const TRIES: u64 = 5;
    let home = Home::of_machines(1);
    home.done(&["control", "start"]);
    let api = Api::of(&home);
    run(&api, "echo warm");
    let mut seen = Vec::new();
    for tried in 1..=TRIES {
        gathered(&api, tried);
        let gate = Gate::new(&home, &format!("gate{tried}"));
        let before = api.metrics();
        let run = id(&api.post_all("/runs", vec![body(&format!("echo first; {}", gate.wait()))])[0]);
        assert_eq!(api.first_bytes(&run), b"first\n");
        let spent = since(&before, &api.metrics());
        gate.open();
        api.events(&format!("/runs/{run}/logs"));
        let waits = spent.get("remuda_runner_durable_waits_total").copied().unwrap_or(0);
        seen.push((
            writes(&spent).into_iter().map(|(name, count)| (name.to_owned(), count)).collect::<Vec<_>>(),
            waits,
        ));
    }
    // The submission; then the start and the first output, which were one report and committed side by side. Between them
    // the runner's journal. A machine too busy to start a shell within a second may need one report more, but not always.
    let three = ["log.append", "run.submit", "runner.report"].map(|name| (name.to_owned(), 1)).to_vec();
    assert!(seen.contains(&(three, 1)), "{seen:?}");
}

#[test]
fn a_run_that_does_nothing_takes_six_commits_at_most() {
    const RUNS: u64 = 20;
    let home = Home::of_machines(1);
    home.done(&["control", "start"]);
    let api = Api::of(&home);
    run(&api, "true");
    // What the first run leaves to be done counts here, and what the last one leaves does not.
    let before = api.metrics();
    for _ in 0..RUNS {
        run(&api, "true");
    }
    let spent = since(&before, &api.metrics());
    let clock: u64 = ON_THE_CLOCK
        .iter()
        .filter_map(|name| spent.get(&format!("remuda_store_writes_total{{name=\"{name}\"}}")))
        .sum();
    let commits = commits(&spent) - clock;
    assert!(commits <= 6 * RUNS, "{commits} commits for {RUNS} runs: {:?}", writes(&spent));
}
