//! Many at once: every run gets its turn, in order, alone on its machine, and is paid once.

use crate::api::Api;
use crate::gate::Gate;
use crate::home::Home;
use serde_json::{Value, json};
use std::collections::BTreeMap;

const RUNS: usize = 200;
const MACHINES: usize = 4;

#[test]
fn two_hundred_at_once_share_four_machines_one_at_a_time() {
    let home = Home::of_machines(MACHINES);
    let api = Api::of(&home);
    // The folder above a workdir is the machine's: a command that finds another run there exits with code 99.
    let command = |n: usize| format!("mkdir ../busy || exit 99; echo run {n}; rmdir ../busy");
    let bodies = (0..RUNS).map(|n| json!({ "commands": [command(n)], "start": true })).collect();
    let runs = api.post_all("/runs", bodies);
    let mut jobs = Vec::new();
    for (n, run) in runs.iter().enumerate() {
        let id = run["id"].as_str().unwrap();
        let events = api.events(&format!("/runs/{id}/logs"));
        let (last, said) = events.split_last().unwrap();
        assert_eq!((&last.1["status"], &last.1["exit_code"]), (&json!("completed"), &json!(0)), "{id}: {events:?}");
        assert_eq!(crate::api::text_of(said), format!("run {n}\n"));
        jobs.extend(api.get(&format!("/runs/{id}/jobs"))["data"].as_array().unwrap().clone());
    }
    assert_eq!(jobs.len(), RUNS, "nobody was tried twice");
    one_at_a_time(&jobs);
    // Two servers accept side by side: there, of two at the same moment, neither came first.
    if !home.is_many() {
        in_order_of_submission(&jobs);
    }
    home.adds_up();
    let charged: Vec<Value> = home.json(&["credits", "ledger", "--limit", "100000"]).as_array().unwrap().clone();
    let ends: BTreeMap<&str, usize> = charged.iter().fold(BTreeMap::new(), |mut ends, row| {
        *ends.entry(row["kind"].as_str().unwrap()).or_default() += 1;
        ends
    });
    assert_eq!((ends["reserve"], ends["charge"]), (RUNS, RUNS), "each reserved once and paid once");
}

fn number(job: &Value, field: &str) -> i64 {
    job[field].as_i64().unwrap_or_else(|| panic!("no {field} in {job}"))
}

fn one_at_a_time(jobs: &[Value]) {
    let mut machines: BTreeMap<&str, Vec<(i64, i64)>> = BTreeMap::new();
    for job in jobs {
        let span = (number(job, "placed_at"), number(job, "ended_at"));
        machines.entry(job["instance"].as_str().unwrap()).or_default().push(span);
    }
    assert!(machines.len() <= MACHINES, "{machines:?}");
    for (machine, mut spans) in machines {
        spans.sort_unstable();
        let apart = spans.windows(2).all(|pair| pair[0].1 <= pair[1].0);
        assert!(apart, "two at once on {machine}: {spans:?}");
    }
}

fn in_order_of_submission(jobs: &[Value]) {
    let mut spans: Vec<(i64, i64)> =
        jobs.iter().map(|job| (number(job, "submitted_at"), number(job, "placed_at"))).collect();
    spans.sort_unstable();
    let mut latest = (i64::MIN, i64::MIN);
    for span in spans {
        // Of two in the same millisecond either may be the first.
        assert!(span.1 >= latest.1 || span.0 == latest.0, "{span:?} went before {latest:?}");
        latest = latest.max(span);
    }
}

#[test]
fn a_single_machine_serves_in_order_and_the_urgent_first() {
    let home = Home::of_machines(1);
    let gate = Gate::new(&home, "gate");
    let order = home.here().join("order");
    let first = home.detach(&[], &gate.wait());
    let mut runs = Vec::new();
    for (name, priority) in
        [("a", "normal"), ("b", "normal"), ("c", "high"), ("d", "normal"), ("e", "high"), ("f", "normal")]
    {
        let command = format!("echo {name} >> {}", order.display());
        runs.push(home.detach(&["--priority", priority, "--name", name], &command));
    }
    for (run, before) in runs.iter().zip([2, 3, 0, 4, 1, 5]) {
        let why = home.done(&["why", run]).out();
        let expected = if before == 0 { "next in line".to_owned() } else { format!("waits behind {before} run") };
        assert!(why.contains(&expected), "{why}");
    }
    gate.open();
    for run in runs.iter().chain([&first]) {
        assert_eq!(home.attach(run).code, 0);
    }
    assert_eq!(std::fs::read_to_string(order).unwrap().replace('\n', ""), "ceabdf");
    home.adds_up();
}
