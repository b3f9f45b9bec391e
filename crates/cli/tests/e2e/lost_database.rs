//! The database is deleted while commands run: none of them ends, and what they do is tracked again by one command.

use crate::gate::Gate;
use crate::home::Home;
use crate::hosts::Hosts;
use crate::process;
use serde_json::Value;

/// Kills the control plane and deletes its database; `installation.json` is what an operator has kept.
fn lose_database(home: &Home) {
    process::kill(home.control_plane());
    for entry in std::fs::read_dir(home.data()).unwrap().flatten() {
        if entry.file_name().to_string_lossy().starts_with("remuda") {
            std::fs::remove_file(entry.path()).unwrap();
        }
    }
    assert!(home.data().join("installation.json").exists());
}

/// The report once so many runners have introduced themselves. Each look is a command, so this is no busy wait.
fn report_of(home: &Home, runners: usize) -> Value {
    loop {
        let report = home.json(&["orphans", "recovery-report"]);
        if report["runners"].as_array().unwrap().len() == runners {
            return report;
        }
    }
}

#[test]
fn what_runs_when_the_database_is_lost_is_tracked_again_once() {
    let home = Home::of_machines(4);
    let (gate, pid) = (Gate::new(&home, "gate"), Gate::new(&home, "pid"));
    let (other_gate, other_pid) = (Gate::new(&home, "other-gate"), Gate::new(&home, "other-pid"));
    let command = format!("echo before; {}; {}; echo after; echo kept > made; exit 6", pid.say("$$"), gate.wait());
    let run = home.detach(&["--name", "train", "--artifact", "made"], &command);
    let other = home.detach(&[], &format!("echo one; {}; {}; echo two", other_pid.say("$$"), other_gate.wait()));
    let works: Vec<i32> = [&pid, &other_pid].iter().map(|said| said.hear().parse().unwrap()).collect();
    lose_database(&home);

    let report = report_of(&home, 2);
    let name = |it: &Value| it["inferred_info"]["control_id"].as_str().unwrap().to_owned();
    let resources = report["resources"].as_array().unwrap();
    assert_eq!(resources.len(), 2, "{report}");
    let runners = report["runners"].as_array().unwrap();
    assert!(runners.iter().all(|it| name(it) == name(&resources[0])), "{report}");
    let jobs: Vec<&Value> = runners.iter().flat_map(|it| it["jobs"].as_array().unwrap()).collect();
    assert!(
        jobs.iter().all(|job| job["sealed"] == true && job["lacks"].is_null() && job["ended"] == false),
        "{report}"
    );
    let shown = home.done(&["orphans", "recovery-report"]).out();
    assert!(shown.contains("train") && shown.contains("--import"), "{shown}");

    // A new run has an id that no lost one can have had.
    assert!(home.json(&["run", "--detach", "-c", "true"])["id"].as_str().unwrap().len() > run.len() + 3);
    let imported = home.json(&["orphans", "recovery-report", "--import"])["import"].take();
    assert_eq!(imported["imported"].as_array().unwrap().len(), 2, "{imported}");
    let again = home.json(&["orphans", "recovery-report", "--import"]);
    assert_eq!(again["import"], serde_json::json!({ "imported": [], "left": [] }), "a second time changes nothing");
    assert_eq!(again["resources"].as_array().unwrap().len(), 0, "{again}");
    assert!(works.iter().all(|work| process::lives(*work)), "nobody's process ends");

    gate.open();
    other_gate.open();
    let ended = home.attach(&run);
    assert_eq!((ended.code, ended.out().as_str()), (6, "before\nafter\n"), "{ended}");
    let ended = home.attach(&other);
    assert_eq!((ended.code, ended.out().as_str()), (0, "one\ntwo\n"), "{ended}");
    let status = home.status(&run);
    assert_eq!((status["name"].as_str(), status["status"].as_str()), (Some("train"), Some("failed")), "{status}");
    assert_eq!(home.done(&["artifact", "get", &run, "made", "--output", "-"]).out(), "kept\n");
    home.say(&["retry", &run]).refused(1, &["imported", "repl run"]);
    home.adds_up();
}

#[test]
fn what_runs_on_a_host_without_a_way_back_is_tracked_again_too() {
    let Some(hosts) = Hosts::start(&["a"]) else { return };
    let home = Home::with(&hosts.settings(""));
    if home.is_many() {
        return; // the database of several servers is not a file
    }
    let gates = ["far", "near"].map(|name| (Gate::new(&home, name), Gate::new(&home, &format!("{name}-go"))));
    let command = |(said, go): &(Gate, Gate)| format!("echo before; {}; {}; echo after", said.say("$$"), go.wait());
    let far = home.detach(&["--provider", "lab", "--name", "far"], &command(&gates[0]));
    let near = home.detach(&["--name", "near"], &command(&gates[1]));
    let pids: Vec<String> = gates.iter().map(|(said, _)| said.hear()).collect();
    lose_database(&home);
    let report = report_of(&home, 2);
    let resources = report["resources"].as_array().unwrap();
    let mut providers: Vec<&str> = resources.iter().map(|it| it["provider"].as_str().unwrap()).collect();
    providers.sort_unstable();
    assert_eq!(providers, ["lab", "local"], "{report}");
    let imported = home.json(&["orphans", "recovery-report", "--import"])["import"].take();
    assert_eq!(imported["imported"].as_array().unwrap().len(), 2, "{imported}");
    let again = home.json(&["orphans", "recovery-report", "--import"]);
    assert_eq!(again["import"], serde_json::json!({ "imported": [], "left": [] }), "a second time changes nothing");
    assert!(process::lives(pids[1].parse().unwrap()), "nobody's process ends");
    for ((_, go), run) in gates.iter().zip([&far, &near]) {
        go.open();
        let ended = home.attach(run);
        assert_eq!((ended.code, ended.out().as_str()), (0, "before\nafter\n"), "{ended}");
    }
    home.adds_up();
    home.stop();
    drop(hosts);
}

#[test]
fn an_idle_runner_of_a_lost_database_leaves() {
    let home = Home::of_machines(4);
    assert_eq!(home.run(&[], "true").code, 0);
    let idle = home.the("repl runner");
    lose_database(&home);
    home.done(&["ls"]);
    assert!(process::ends(idle), "nobody will give it work");
}
