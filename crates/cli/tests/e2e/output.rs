//! What a command writes is what arrives: every byte, each stream its own, in one order that never changes, however much.

use crate::api::Api;
use crate::home::Home;
use crate::process::{self, Running};
use std::io::Read as _;

#[test]
fn bytes_are_bytes() {
    let home = Home::new();
    let every: Vec<u8> = (0..=255).cycle().take(70_000).collect();
    home.write("bytes", &every);
    let ended = home.run(&["--file", "bytes"], "cat bytes; cat bytes >&2; printf x");
    assert_eq!(ended.stdout, [&every[..], b"x"].concat());
    let stderr = process::end_of(&mut home.shell("repl logs @last --stream stderr 2>&1 >/dev/null"));
    assert_eq!(stderr.stdout, every);
}

#[test]
fn a_line_of_a_megabyte_stays_one() {
    let home = Home::new();
    let ended = home.run(&[], "head -c 1048576 /dev/zero | tr '\\000' a; echo; echo next");
    assert_eq!(ended.stdout, [&vec![b'a'; 1 << 20][..], b"\nnext\n"].concat());
    assert_eq!(home.done(&["logs", "@last"]).stdout, ended.stdout);
}

#[test]
fn both_streams_are_interleaved_the_same_in_every_replay() {
    let home = Home::new();
    // More than a pipe holds each time, so that the two really alternate.
    let command =
        "for i in $(seq 1 20); do head -c 70000 /dev/zero | tr '\\0' o; head -c 70000 /dev/zero | tr '\\0' e >&2; done";
    let ended = home.run(&[], command);
    let expected = |letter: &str| letter.repeat(20 * 70_000);
    assert!(ended.out() == expected("o") && ended.stderr.starts_with(&expected("e")));
    let api = Api::of(&home);
    let run = home.status("@last")["id"].as_str().unwrap().to_owned();
    let replay = || {
        let events = api.events(&format!("/runs/{run}/logs"));
        let frames = events.iter().filter(|(kind, _)| kind == "log");
        frames
            .map(|(_, frame)| (frame["stream"].clone(), frame["offset"].clone(), frame["data"].clone()))
            .collect::<Vec<_>>()
    };
    let first = replay();
    assert!(first.len() > 20, "{} frames", first.len());
    assert_eq!(first, replay());
    // The order that a terminal shows.
    let terminal = || process::end_of(&mut home.shell("repl logs @last 2>&1")).out();
    assert_eq!(terminal(), terminal());
}

#[test]
fn merged_streams_have_their_exact_order() {
    let home = Home::new();
    let command = "for i in $(seq 1 500); do echo o$i; echo e$i >&2; done";
    let ended = home.run(&["--merge"], command);
    assert_eq!(ended.out(), (1..=500).map(|i| format!("o{i}\ne{i}\n")).collect::<String>());
    assert_eq!(home.done(&["logs", "@last"]).stdout, ended.stdout);
}

/// Everything arrives, and no process on the way keeps all of it in memory.
#[test]
fn a_hundred_megabytes_are_not_lost_and_not_remembered() {
    const BYTES: u64 = 100 << 20;
    const BOUND: u64 = 64 << 20;
    let home = Home::new();
    let go = crate::gate::Gate::new(&home, "go");
    let end = crate::gate::Gate::new(&home, "end");
    let command =
        format!("echo ready; {}; yes 'a line of thirty-two bytes, told' | head -c {BYTES}; {}", go.wait(), end.wait());
    let mut followed = Running::start(&mut home.repl(&["run", "-c", &command]));
    assert_eq!(followed.line(), "ready");
    let (follower, serves) = (followed.pid(), home.control_plane());
    let (runner, keepers) = (
        home.the("repl runner"),
        home.processes().into_iter().filter(|p| p.words == "repl keeper").map(|p| p.pid).collect::<Vec<_>>(),
    );
    go.open();
    let expected = "a line of thirty-two bytes, told\n".repeat(64);
    let mut stdout = followed.child.stdout.take().unwrap();
    let (mut buffer, mut seen) = (vec![0; 33 * 64], 0);
    while seen < BYTES {
        let wanted = buffer.len().min((BYTES - seen) as usize);
        stdout.read_exact(&mut buffer[..wanted]).unwrap();
        assert!(buffer[..wanted] == expected.as_bytes()[..wanted], "around byte {seen}");
        seen += wanted as u64;
    }
    for (who, pid) in [("follower", follower), ("control plane", serves), ("runner", runner)]
        .into_iter()
        .chain(keepers.into_iter().map(|pid| ("keeper", pid)))
    {
        let peak = process::peak(pid);
        assert!(peak < BOUND, "the {who} took {} MiB", peak >> 20);
    }
    end.open();
    assert_eq!(stdout.read(&mut buffer).unwrap(), 0);
    assert_eq!(followed.end().code, 0);
    // What was told once is told again, from the gathered log.
    let sum = process::end_of(&mut home.shell(&format!(
        "a=$(repl logs @last | tail -c +7 | sha256sum); b=$(yes 'a line of thirty-two bytes, told' | head -c {BYTES} | sha256sum); test \"$a\" = \"$b\""
    )));
    assert_eq!(sum.code, 0, "{sum}");
}

#[test]
fn a_log_that_is_no_longer_kept_says_so_and_its_run_is_still_there() {
    let home = Home::with("[timings]\nsweep_every_ms = 50\n[logs]\nhot_ms = 1\nkeep_ms = 1\n");
    let run = home.detach(&[], "echo hello; exit 3");
    let refused = loop {
        let read = home.say(&["logs", "-f", &run]);
        if read.code != 0 {
            break read;
        }
    };
    assert_eq!((refused.code, &*refused.out()), (1, ""), "{refused}");
    let why = "the log is gone: logs are kept for 1ms after the end of their run";
    assert!(refused.stderr.contains(why) && refused.stderr.contains(&run), "{refused}");
    assert_eq!((&home.status(&run)["status"], &home.status(&run)["exit_code"]), (&"failed".into(), &3.into()));
    let told = home.done(&["why", &run]).out();
    assert!(told.contains("its log is no longer kept"), "{told}");
    home.adds_up();
}
