//! Runs of different sizes, held workdirs and full pools: no run waits for a hold, and no held files are deleted with a machine.

use crate::gate::Gate;
use crate::home::Home;
use crate::process;
use serde_json::Value;
use std::path::PathBuf;

fn allocation_of(home: &Home, run: &str) -> Value {
    let allocation = home.status(run)["allocation"].as_str().unwrap().to_owned();
    home.json(&["allocation", "show", &allocation])
}

fn workdir_of(home: &Home, run: &str) -> PathBuf {
    allocation_of(home, run)["path"].as_str().unwrap().into()
}

#[test]
fn a_held_machine_takes_runs_of_any_size_and_its_workdir_stays() {
    let home = Home::of_machines(1);
    home.run(&["--name", "small", "--memory", "64MB"], "echo precious > kept");
    let small = home.status("@last")["id"].as_str().unwrap().to_owned();
    let kept = workdir_of(&home, &small).join("kept");
    let machine = home.instances()[0]["id"].clone();
    assert!(home.instances()[0]["held_until"].is_i64());
    let larger = home.run(&["--memory", "128MB"], "echo fits");
    assert_eq!((larger.code, &*larger.out()), (0, "fits\n"), "{larger}");
    let left = home.instances();
    assert!(left.len() == 1 && left[0]["id"] == machine, "what a run asks for limits the run: {left:?}");
    assert_eq!(std::fs::read_to_string(&kept).unwrap(), "precious\n", "the hold protects the workdir");
    assert_eq!(allocation_of(&home, &small)["held"], true);
    let smaller = home.run(&["--memory", "32MB"], "true");
    assert_eq!(smaller.code, 0);
    assert_eq!(home.status("@last")["warm"], true);
    // The hold can still be prolonged, and given up.
    home.done(&["extend", &small]);
    assert!(
        allocation_of(&home, &small)["debug_hold_until"].as_i64()
            > allocation_of(&home, "@last")["debug_hold_until"].as_i64()
    );
    home.done(&["release", &small]);
    process::vanishes(kept.parent().unwrap());
    assert_eq!(allocation_of(&home, &small)["held"], false);
    home.adds_up();
}

#[test]
fn a_larger_run_takes_the_idle_machine_beside_a_busy_one() {
    let home = Home::of_machines(2);
    let gate = Gate::new(&home, "gate");
    let busy = home.detach(&["--memory", "64MB"], &gate.wait());
    assert_eq!(home.run(&["--memory", "64MB"], "true").code, 0);
    let idle = home.status("@last")["instance"].clone();
    let larger = home.run(&["--memory", "256MB"], "true");
    assert_eq!(larger.code, 0, "{larger}");
    assert_eq!((&home.status("@last")["instance"], &home.status("@last")["warm"]), (&idle, &true.into()));
    assert_ne!(home.status(&busy)["instance"], idle);
    assert_eq!(home.instances().len(), 2);
    // The limit counts those that are of this state, wherever they are in the list.
    let of_state = |state: &str| home.json(&["instance", "ls", "--state", state, "--limit", "1"]);
    let at_work = of_state("launch-run:");
    assert_eq!((at_work.as_array().unwrap().len(), &at_work[0]["id"]), (1, &home.status(&busy)["instance"]));
    assert_eq!((&of_state("idle:")[0]["id"], of_state("spawn:").as_array().unwrap().len()), (&idle, 0));
    gate.open();
    assert_eq!(home.attach(&busy).code, 0);
    home.adds_up();
}

#[test]
fn one_that_waits_is_told_for_what() {
    let home = Home::of_machines(1);
    let gate = Gate::new(&home, "gate");
    let first = home.detach(&["--memory", "64MB"], &gate.wait());
    let second = home.detach(&["--memory", "128MB"], "true");
    let third = home.detach(&[], "true");
    let why = home.json(&["why", &second]);
    assert_eq!(why["phase"], "queued");
    assert!(why["summary"].as_str().unwrap().contains("next in line"), "{why}");
    assert!(why["facts"][0].as_str().unwrap().contains("1 of 1 machines"), "{why}");
    assert!(!why["next"].as_array().unwrap().is_empty());
    assert!(home.done(&["why", &third]).out().contains("waits behind 1 run on local"));
    let machine = home.status(&first)["instance"].as_str().unwrap().to_owned();
    home.say(&["instance", "terminate", &machine]).refused(1, &[&first, "--force"]);
    gate.open();
    for run in [&first, &second, &third] {
        let ended = home.attach(run);
        assert_eq!(ended.code, 0, "{ended}");
    }
    home.adds_up();
}

#[test]
fn a_hold_is_prolonged_never_shortened_and_outlives_its_machine() {
    let home = Home::new();
    assert_eq!(home.run(&["--hold", "1m"], "echo x > f").code, 0);
    let until = || allocation_of(&home, "@last")["debug_hold_until"].as_i64().unwrap();
    let first = until();
    home.done(&["extend"]);
    let longer = until();
    assert!(longer > first + 25 * 60_000, "30 minutes from now on");
    home.done(&["extend", "1m"]);
    assert_eq!(until(), longer, "never shortened");
    home.done(&["extend", "2h"]);
    assert!(until() > longer + 60 * 60_000);
    // A folder that outlives its runner blocks no other run.
    let (machine, runner) = (home.instances()[0]["id"].as_str().unwrap().to_owned(), home.the("repl runner"));
    home.done(&["instance", "terminate", &machine]);
    assert!(process::ends(runner));
    let workdir = workdir_of(&home, "@last");
    assert_eq!(std::fs::read_to_string(workdir.join("f")).unwrap(), "x\n");
    home.done(&["release", "@last"]);
    process::vanishes(&workdir);
    home.say(&["extend", "@last"]).refused(1, &["hold"]);
}

#[test]
fn whatever_has_an_id_is_found_by_its_beginning() {
    let home = Home::new();
    assert_eq!(home.run(&[], "true").code, 0);
    let id = |list: &[&str]| home.json(list)[0]["id"].as_str().unwrap().to_owned();
    for noun in ["instance", "allocation", "workflow", "manifest"] {
        let id = id(&[noun, "ls"]);
        let (prefix, slug) = id.split_once('_').unwrap();
        assert_eq!(home.json(&[noun, "show", &id])["id"], id, "{noun}");
        // A bare number of these could be a run's.
        if !matches!(noun, "allocation" | "workflow") {
            assert_eq!(home.json(&[noun, "show", slug])["id"], id, "{noun} {slug}");
        }
        let unknown = format!("{prefix}_zzzzzz");
        home.say(&[noun, "show", &unknown]).refused(1, &["no such", noun, &unknown]);
    }
    let token = home.json(&["token", "create", "visitor"])["id"].as_str().unwrap().to_owned();
    home.done(&["token", "delete", token.split_once('_').unwrap().1]);
}
