//! Leaving a run and coming back to it: detach, attach, Ctrl-C, logs that follow, pipes that close.

use crate::gate::Gate;
use crate::home::Home;
use crate::process::{Running, end_of};

#[test]
fn ctrl_c_leaves_the_run_alone() {
    let home = Home::new();
    let gate = Gate::new(&home, "gate");
    let command = format!("echo before; {}; echo after; exit 7", gate.wait());
    let mut followed = Running::start(&mut home.repl(&["run", "--name", "long", "-c", &command]));
    assert_eq!(followed.line(), "before");
    followed.interrupt();
    let left = followed.end();
    assert_eq!(left.code, 130, "{left}");
    assert!(left.stderr.contains("repl attach"), "it says how to come back: {left}");
    assert_eq!(home.status("long")["status"], "running");
    let mut followed = Running::start(&mut home.repl(&["attach", "long"]));
    assert_eq!(followed.line(), "before", "from the first output on");
    gate.open();
    assert_eq!(followed.line(), "after");
    assert_eq!(followed.end().code, 7);
    let again = home.attach("@last");
    assert_eq!((again.code, &*again.out()), (7, "before\nafter\n"));
    home.adds_up();
}

#[test]
fn logs_follow_to_the_end_and_events_with_them() {
    let home = Home::new();
    let gate = Gate::new(&home, "gate");
    let run = home.detach(&[], &format!("echo one; echo two >&2; {}; echo three; exit 5", gate.wait()));
    let mut logs = Running::start(&mut home.repl(&["logs", "-f", &run, "--stream", "stdout"]));
    let events = Running::start(&mut home.repl(&["events", "-f", "--json", &run]));
    assert_eq!(logs.line(), "one");
    gate.open();
    let logs = logs.end();
    assert_eq!((logs.code, &*logs.out()), (0, "three\n"), "reading is not running: {logs}");
    let events = events.end().out();
    let numbers: Vec<i64> = events
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap()["number"].as_i64().unwrap())
        .collect();
    assert_eq!(numbers, (1..=numbers.len() as i64).collect::<Vec<_>>(), "no gap, no repeat, and it ends");
    assert!(numbers.len() > 5, "{events}");
    assert_eq!(home.done(&["logs", &run, "--stream", "stderr"]).stderr, "two\n", "each stream to its own");
    assert_eq!(home.attach(&run).code, 5);
}

#[test]
fn a_pipe_that_reads_a_run_ends_with_it() {
    let home = Home::new();
    let ended = end_of(&mut home.shell("repl run -c 'echo a; echo b; (sleep 1000 &)' | cat"));
    assert_eq!((ended.code, &*ended.out()), (0, "a\nb\n"), "{ended}");
    // The reader ends first: then the writing `repl` ends, but not the run.
    let gate = Gate::new(&home, "gate");
    let command = format!("repl run --name goes-on -c 'seq 1 100000; {}; exit 9' | head -n 1", gate.wait());
    let ended = end_of(&mut home.shell(&command));
    assert_eq!((ended.code, &*ended.out()), (0, "1\n"), "{ended}");
    assert_eq!(home.status("goes-on")["status"], "running");
    gate.open();
    let whole = home.attach("goes-on");
    assert_eq!(whole.code, 9);
    assert_eq!(whole.out(), (1..=100_000).map(|n| format!("{n}\n")).collect::<String>());
}

#[test]
fn a_follower_may_come_at_any_time() {
    let home = Home::new();
    let gate = Gate::new(&home, "gate");
    let run = home.detach(&[], &format!("{}; seq 1 5000", gate.wait()));
    let early: Vec<Running> = (0..3).map(|_| Running::start(&mut home.repl(&["attach", &run]))).collect();
    gate.open();
    let late: Vec<Running> = (0..2).map(|_| Running::start(&mut home.repl(&["attach", &run]))).collect();
    let whole: String = (1..=5000).map(|n| format!("{n}\n")).collect();
    for follower in early.into_iter().chain(late) {
        let ended = follower.end();
        assert_eq!((ended.code, ended.out()), (0, whole.clone()));
    }
    assert_eq!(home.done(&["logs", &run, "--tail", "2"]).out(), "4999\n5000\n");
}
