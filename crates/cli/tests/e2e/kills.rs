//! `kill -9` of every part while a run is at work: nothing accepted is lost, nothing is told or paid twice, nothing hangs.

use crate::gate::Gate;
use crate::home::Home;
use crate::process::{self, Running};
use nix::sys::signal::Signal;

/// A command that counts to `to` in two halves, with a gate between them.
fn count(gate: &Gate, to: usize) -> String {
    format!("seq 1 {}; {}; seq {} {to}; exit 6", to / 2, gate.wait(), to / 2 + 1)
}

fn counted(to: usize) -> String {
    (1..=to).map(|n| format!("{n}\n")).collect()
}

fn paid_once(home: &Home, run: &str) {
    let rows = home.json(&["credits", "ledger", "--run", run]);
    let of = |kind: &str| rows.as_array().unwrap().iter().filter(|row| row["kind"] == kind).count();
    assert_eq!((of("reserve"), of("refund")), (1, 1), "{rows}");
    assert!(of("charge") <= 1, "{rows}");
    home.adds_up();
}

#[test]
fn a_follower_survives_the_death_of_the_control_plane() {
    let home = Home::new();
    let gate = Gate::new(&home, "gate");
    let mut followed = Running::start(&mut home.repl(&["run", "-c", &count(&gate, 2000)]));
    assert_eq!(followed.line(), "1");
    process::kill(home.control_plane());
    gate.open();
    let ended = followed.end();
    assert_eq!(ended.code, 6, "{ended}");
    assert_eq!(format!("1\n{}", ended.out()), counted(2000), "no gap and no repeat");
    paid_once(&home, "@last");
}

#[test]
fn what_ends_while_nobody_watches_is_told_afterwards() {
    let home = Home::new();
    let (gate, pid) = (Gate::new(&home, "gate"), Gate::new(&home, "pid"));
    let run =
        home.detach(&["--artifact", "made"], &format!("{}; echo kept > made; {}", pid.say("$$"), count(&gate, 2000)));
    let work: i32 = pid.hear().parse().unwrap();
    process::kill(home.control_plane());
    gate.open();
    assert!(process::ends(work));
    let ended = home.attach(&run);
    assert_eq!((ended.code, ended.out()), (6, counted(2000)), "{}", ended.stderr);
    home.done(&["artifact", "get", &run]);
    assert_eq!(std::fs::read_to_string(home.here().join("made")).unwrap(), "kept\n");
    paid_once(&home, &run);
}

#[test]
fn an_accepted_run_is_not_lost_whenever_the_control_plane_dies() {
    let home = Home::of_machines(2);
    // Right after the answer: the first while its machine is being made, the others on their way to a warm one.
    for n in 0..6 {
        let run = home.detach(&[], &format!("echo {n}"));
        process::kill(home.control_plane());
        let ended = home.attach(&run);
        assert_eq!((ended.code, ended.out()), (0, format!("{n}\n")), "{ended}");
        assert_eq!(home.jobs(&run).len(), 1, "nothing was begun twice");
    }
    home.adds_up();
}

#[test]
fn a_queue_survives_the_death_of_the_control_plane() {
    let home = Home::of_machines(1);
    let (gate, begun, order) = (Gate::new(&home, "gate"), Gate::new(&home, "begun"), home.here().join("order"));
    let mut runs = vec![home.detach(&[], &format!("{}; {}", begun.say("yes"), gate.wait()))];
    for name in ["a", "b", "c"] {
        runs.push(home.detach(&[], &format!("echo {name} >> {}", order.display())));
    }
    // One that had not begun yet would wait for a control plane, which the next command starts, after the gate.
    begun.hear();
    process::kill(home.control_plane());
    gate.open();
    for run in &runs {
        let ended = home.attach(run);
        assert_eq!(ended.code, 0, "{ended}");
    }
    assert_eq!(std::fs::read_to_string(order).unwrap(), "a\nb\nc\n");
    home.adds_up();
}

#[test]
fn the_death_of_a_runner_changes_nothing() {
    let home = Home::new();
    let gate = Gate::new(&home, "gate");
    let mut followed = Running::start(&mut home.repl(&["run", "-c", &count(&gate, 20_000)]));
    assert_eq!(followed.line(), "1");
    process::kill(home.the("repl runner"));
    gate.open();
    let ended = followed.end();
    assert_eq!(ended.code, 6, "{ended}");
    assert_eq!(format!("1\n{}", ended.out()), counted(20_000), "no gap and no repeat");
    assert_eq!(home.jobs("@last").len(), 1);
    paid_once(&home, "@last");
    assert_eq!(home.run(&[], "exit 4").code, 4, "and its machine is still of use");
}

#[test]
fn runner_and_control_plane_may_die_together() {
    let home = Home::new();
    let (gate, pid) = (Gate::new(&home, "gate"), Gate::new(&home, "pid"));
    let run = home.detach(&[], &format!("{}; {}", pid.say("$$"), count(&gate, 2000)));
    let work: i32 = pid.hear().parse().unwrap();
    process::kill(home.control_plane());
    process::kill(home.the("repl runner"));
    gate.open();
    assert!(process::ends(work));
    let ended = home.attach(&run);
    assert_eq!((ended.code, ended.out()), (6, counted(2000)), "{}", ended.stderr);
    paid_once(&home, &run);
}

#[test]
fn the_death_of_a_keeper_ends_its_processes_and_its_run() {
    let home = Home::new();
    let pids = Gate::new(&home, "pids");
    let command = format!("setsid sleep 1000 & {}; wait", pids.say("$PPID $$ $!"));
    let run = home.detach(&[], &command);
    let pids: Vec<i32> = pids.hear().split(' ').map(|pid| pid.parse().unwrap()).collect();
    process::kill(pids[0]);
    let ended = home.attach(&run);
    assert_eq!(ended.code, 1, "there is no code: {ended}");
    assert_eq!(home.jobs(&run)[0]["reason"], "executor_error");
    for pid in &pids[1..] {
        assert!(process::ends(*pid), "the end is told when nobody is left");
    }
    let status = home.status(&run);
    let slot = home.json(&["allocation", "show", status["allocation"].as_str().unwrap()]);
    assert_eq!((&slot["status"], &slot["held"]), (&"FAILED".into(), &false.into()), "{slot}");
    home.adds_up();
    assert_eq!(home.run(&[], "exit 4").code, 4);
    let next = home.status("@last");
    assert_eq!((&next["instance"], &next["warm"]), (&status["instance"], &true.into()), "its machine is well");
}

#[test]
fn a_machine_that_dies_with_everything_on_it_ends_its_run_by_policy() {
    let home = Home::new();
    let pids = Gate::new(&home, "pids");
    let die = |run: &str| {
        let found: Vec<i32> = pids.hear().split(' ').map(|pid| pid.parse().unwrap()).collect();
        process::kill(home.the("repl runner"));
        found.into_iter().for_each(process::kill);
        home.attach(run)
    };
    let command = format!("{}; exec sleep 1000", pids.say("$PPID $$"));
    let run = home.detach(&[], &command);
    let ended = die(&run);
    assert_eq!((ended.code, &home.status(&run)["status"]), (1, &"failed".into()), "{ended}");
    // Asked to, it tries again, and only then.
    let once = home.here().join("once");
    let command = format!("test -e {0} && exit 5; touch {0}; {command}", once.display());
    let run = home.detach(&["--retry", "2"], &command);
    let ended = die(&run);
    assert_eq!(ended.code, 5, "{ended}");
    assert_eq!(home.status(&run)["attempt_number"], 2);
    home.adds_up();
}

#[test]
fn a_graceful_restart_fails_nobody() {
    let home = Home::new();
    let gate = Gate::new(&home, "gate");
    let mut followed = Running::start(&mut home.repl(&["run", "-c", &count(&gate, 2000)]));
    assert_eq!(followed.line(), "1");
    let first = home.control_plane();
    process::signal(first, Signal::SIGTERM);
    assert!(process::ends(first));
    gate.open();
    let ended = followed.end();
    assert_eq!(ended.code, 6, "{ended}");
    assert_eq!(format!("1\n{}", ended.out()), counted(2000));
    paid_once(&home, "@last");
}

#[test]
fn a_stopped_control_plane_finds_its_runs_again() {
    let home = Home::of_machines(2);
    let gate = Gate::new(&home, "gate");
    let run = home.detach(&[], &count(&gate, 2000));
    assert_eq!(home.run(&[], "true").code, 0);
    home.done(&["control", "stop"]);
    home.the("repl runner"); // the idle machine is gone, the busy one is not
    gate.open();
    let ended = home.attach(&run);
    assert_eq!((ended.code, ended.out()), (6, counted(2000)), "{}", ended.stderr);
    home.adds_up();
}
