//! Ends that a person, a limit or a signal brings: cancelled, aborted, out of time, killed, tried again. No process survives.

use crate::gate::Gate;
use crate::home::Home;
use crate::process::{self, Running};

#[test]
fn a_cancelled_run_may_say_goodbye() {
    let home = Home::new();
    let command = "trap 'echo bye; exit 0' TERM; echo ready; while :; do sleep 0.05; done";
    let mut followed = Running::start(&mut home.repl(&["run", "--name", "polite", "-c", command]));
    assert_eq!(followed.line(), "ready");
    home.done(&["cancel", "polite"]);
    let ended = followed.end();
    assert_eq!((ended.code, &*ended.out()), (143, "bye\n"), "{ended}");
    let status = home.status("@last");
    assert_eq!((&status["status"], &status["termination_reason"]), (&"cancelled".into(), &"stopped_by_user".into()));
    home.done(&["cancel", "@last"]);
    home.adds_up();
}

#[test]
fn one_that_does_not_listen_is_killed_when_its_time_is_over() {
    let home = Home::new();
    let command = "trap '' TERM; echo ready; while :; do sleep 0.05; done";
    let mut followed =
        Running::start(&mut home.repl(&["run", "--stop-duration", "300ms", "--name", "deaf", "-c", command]));
    assert_eq!(followed.line(), "ready");
    home.done(&["cancel", "deaf"]);
    assert_eq!(followed.end().code, 143);
    assert_eq!(home.jobs("@last")[0]["reason"], "terminated_by_user");
    home.adds_up();
}

#[test]
fn an_aborted_run_is_not_asked() {
    let home = Home::new();
    let command = "trap 'echo never' TERM; echo ready; while :; do sleep 0.05; done";
    let mut followed =
        Running::start(&mut home.repl(&["run", "--stop-duration", "1h", "--name", "now", "-c", command]));
    assert_eq!(followed.line(), "ready");
    home.done(&["cancel", "--abort", "now"]);
    let ended = followed.end();
    assert_eq!((ended.code, &*ended.out()), (143, ""), "{ended}");
    assert_eq!(home.jobs("@last")[0]["status"], "aborted");
    home.adds_up();
}

#[test]
fn one_that_waits_for_a_machine_is_cancelled_without_one() {
    let home = Home::of_machines(1);
    let gate = Gate::new(&home, "gate");
    let first = home.detach(&[], &gate.wait());
    let second = home.detach(&[], "echo never");
    assert_eq!(home.status(&second)["phase"], "queued");
    home.done(&["cancel", &second]);
    let ended = home.attach(&second);
    assert_eq!((ended.code, &*ended.out()), (143, ""), "{ended}");
    assert_eq!(home.status(&second)["credits_charged_micro"], 0);
    gate.open();
    assert_eq!(home.attach(&first).code, 0);
    home.adds_up();
}

#[test]
fn ends_by_time_and_signal_have_their_codes() {
    let home = Home::new();
    let table: &[(&[&str], &str, i32, &str)] = &[
        (&["--max-duration", "1s"], "sleep 60", 124, "deadline"),
        (
            &["--max-duration", "1s", "--stop-duration", "100ms"],
            "trap '' TERM; while :; do sleep 0.05; done",
            124,
            "deadline",
        ),
        (&[], "kill -9 $$", 137, "job_failed"),
        (&[], "kill -TERM $$", 143, "job_failed"),
        (&[], "kill -SEGV $$", 139, "job_failed"),
        (&[], "exit 255", 255, "job_failed"),
        (&[], "no-such-program-here", 127, "job_failed"),
    ];
    for (flags, command, code, reason) in table {
        let ended = home.run(flags, command);
        assert_eq!(ended.code, *code, "{command}: {ended}");
        assert_eq!(home.status("@last")["termination_reason"], *reason, "{command}");
    }
    home.adds_up();
}

#[test]
fn nobody_that_a_command_left_behind_survives() {
    let home = Home::new();
    let pids = Gate::new(&home, "pids");
    // Forked, in a session of its own, daemonised twice over, and with an empty environment.
    let command = format!(
        "sleep 1000 & a=$!; setsid sleep 1001 & b=$!; (setsid sh -c 'sleep 1002 & echo $! > c; wait' &) ; \
         env -i /bin/sh -c 'sleep 1003 & echo $! > d'; while [ ! -s c ]; do sleep 0.01; done; echo $a $b $(cat c d) > {}",
        home.here().join("pids").display()
    );
    let run = home.detach(&[], &command);
    let pids: Vec<i32> = pids.hear().split_whitespace().map(|pid| pid.parse().unwrap()).collect();
    assert_eq!(pids.len(), 4);
    let ended = home.attach(&run);
    assert_eq!(ended.code, 0, "{ended}");
    for pid in pids {
        let state = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        assert!(state.is_empty() || state.contains(") Z"), "the end of a run is told when nobody is left: {state}");
    }
    let left = home.processes().into_iter().filter(|process| process.words.starts_with("sleep")).collect::<Vec<_>>();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn the_children_of_a_cancelled_run_go_with_it() {
    let home = Home::new();
    let pid = Gate::new(&home, "pid");
    let command = format!("setsid sh -c 'trap \"\" TERM; while :; do sleep 1; done' & {}; wait", pid.say("$!"));
    let run = home.detach(&["--stop-duration", "200ms"], &command);
    let child: i32 = pid.hear().parse().unwrap();
    home.done(&["cancel", &run]);
    assert_eq!(home.attach(&run).code, 143);
    assert!(process::ends(child));
}

#[test]
fn a_failed_run_is_tried_again_three_times_in_all() {
    let home = Home::new();
    let count = home.here().join("count");
    let command = format!("echo x >> {0}; exit $(wc -l < {0})", count.display());
    assert_eq!(home.run(&["--name", "again"], &command).code, 1);
    for code in [2, 3] {
        home.done(&["retry", "@last"]);
        let ended = home.attach("@last");
        assert_eq!(ended.code, code, "{ended}");
    }
    home.say(&["retry", "@last"]).refused(1, &["all 3 attempts are used"]);
    assert_eq!(home.status("@last")["attempt_number"], 3);
    // And by itself, when asked to.
    let ended = home.run(&["--retry", "3"], &format!("echo try; {command}"));
    assert_eq!((ended.code, ended.out().matches("try").count()), (6, 3), "{ended}");
    // One that went well is not repeated.
    let ended = home.run(&["--retry", "3"], "echo try");
    assert_eq!((ended.code, &*ended.out()), (0, "try\n"));
    home.adds_up();
}

/// Whether its machine has heard of the pause by then or not: a pause that is taken back at once delays nothing.
#[test]
fn a_run_that_is_paused_and_resumed_at_once_goes_on() {
    let home = Home::new();
    let go = home.here().join("go");
    let command = format!("echo ready; until [ -e {} ]; do :; done; echo done", go.display());
    let mut followed = Running::start(&mut home.repl(&["run", "--name", "back", "-c", &command]));
    assert_eq!(followed.line(), "ready");
    let mut events = Running::start(&mut home.repl(&["events", "back", "-f"]));
    home.done(&["pause", "back"]);
    home.done(&["resume", "back"]);
    while home.status("back")["status"] != "running" {
        events.line();
    }
    std::fs::write(go, "").unwrap();
    let ended = followed.end();
    assert_eq!((ended.code, &*ended.out()), (0, "done\n"), "{ended}");
    home.adds_up();
}

/// Paused by a person while it runs: nothing of it moves, whatever it waits for has come, until it is resumed.
#[test]
fn a_paused_run_stands_still_until_it_is_resumed() {
    let home = Home::new();
    let go = home.here().join("go");
    let command = format!("echo ready; until [ -e {} ]; do :; done; echo done", go.display());
    let mut followed = Running::start(&mut home.repl(&["run", "--name", "still", "-c", &command]));
    assert_eq!(followed.line(), "ready");
    let mut events = Running::start(&mut home.repl(&["events", "still", "-f"]));
    home.done(&["pause", "still"]);
    home.done(&["pause", "still"]); // said twice is said once
    while !events.line().contains("run.paused") {}
    std::fs::write(go, "").unwrap();
    // A loop that is not frozen sees the file within one of these.
    for _ in 0..20 {
        assert_eq!(home.status("still")["status"], "paused");
    }
    assert!(home.done(&["why", "still"]).out().contains("repl resume"));
    home.say(&["retry", "still"]).refused(1, &["paused", "resume"]);
    home.done(&["resume", "still"]);
    let ended = followed.end();
    assert_eq!((ended.code, &*ended.out()), (0, "done\n"), "{ended}");
    assert_eq!(events.end().code, 0);
    home.say(&["pause", "still"]).refused(1, &["completed"]);
    home.adds_up();
}

#[test]
fn a_paused_run_can_be_cancelled() {
    let home = Home::new();
    let mut followed =
        Running::start(&mut home.repl(&["run", "--name", "still", "-c", "echo ready; while :; do :; done"]));
    assert_eq!(followed.line(), "ready");
    let mut events = Running::start(&mut home.repl(&["events", "still", "-f"]));
    home.done(&["pause", "still"]);
    while !events.line().contains("run.paused") {}
    home.done(&["cancel", "still"]);
    assert_eq!((followed.end().code, events.end().code), (143, 0));
    home.adds_up();
}
