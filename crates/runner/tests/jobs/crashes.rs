//! What survives what: runners and keepers are killed, answers get lost, the control plane goes away and returns.

use crate::host::{JOB, RunnerUnderTest, STEP};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs::OpenOptions;
use std::io::Write as _;
use wire::runner::{EndCause, Fact, Stream, What};

fn ends(facts: &[Fact]) -> usize {
    facts.iter().filter(|fact| matches!(fact.what, What::Ended { .. })).count()
}

#[tokio::test]
async fn a_killed_runner_changes_nothing() {
    let mut host = RunnerUnderTest::new().await;
    host.ask(host.job("mkfifo a b; echo one; cat a >/dev/null; echo two; cat b >/dev/null; echo three; exit 5"));
    host.says("one").await;
    host.kill_runner().await;
    host.open_gate("a").await;
    host.start();
    host.says("two").await;
    host.kill_runner().await;
    host.open_gate("b").await;
    while !host.living().is_empty() {
        tokio::task::yield_now().await;
    }
    host.start();
    let What::Ended { exit_code, cause, .. } = host.ends().await else { panic!() };
    assert_eq!((exit_code, cause), (Some(5), None));
    host.control.see(|state| {
        assert_eq!(state.log(JOB).text(Stream::Stdout), "one\ntwo\nthree\n");
        assert_eq!(state.registers.len(), 3);
        let known: Vec<bool> = state.registers.iter().map(|register| !register.jobs.is_empty()).collect();
        assert_eq!(known, [false, true, true], "a new runner says what it found");
    });
}

#[tokio::test]
async fn output_has_no_gap_and_no_repeat_over_many_kills() {
    let mut host = RunnerUnderTest::new().await;
    host.ask(host.job("seq 1 400000"));
    let whole: String = (1..=400000).map(|n| format!("{n}\n")).collect();
    for part in 1..=4 {
        let enough = whole.len() as i64 * part / 6;
        host.control.until("some more output", |state| state.log(JOB).next >= enough).await;
        host.kill_runner().await;
        host.start();
    }
    host.ends().await;
    assert!(host.control.see(|state| state.log(JOB).text(Stream::Stdout)) == whole);
}

#[tokio::test]
async fn a_runner_killed_at_any_moment_of_a_start_starts_it_once() {
    for facts_seen in 0..4 {
        let mut host = RunnerUnderTest::new().await;
        host.ask(host.job("echo ran >> ../ran; echo done"));
        host.control.until("that moment", |state| state.facts.len() >= facts_seen).await;
        host.kill_runner().await;
        host.start();
        host.ends().await;
        assert_eq!(std::fs::read_to_string(host.dir.join("ran")).unwrap(), "ran\n", "after {facts_seen} facts");
        assert_eq!(host.control.see(|state| state.log(JOB).text(Stream::Stdout)), "done\n");
    }
}

#[tokio::test]
async fn a_killed_keeper_takes_its_processes_along() {
    let host = RunnerUnderTest::new().await;
    host.ask(host.job("setsid sh -c 'sleep 1000 & env -i sleep 1000 & wait' & sleep 1000 & echo ready; sleep 1000"));
    host.says("ready").await;
    kill(Pid::from_raw(host.keeper_pid()), Signal::SIGKILL).unwrap();
    let What::Ended { cause, started, final_offset, .. } = host.ends().await else { panic!() };
    assert_eq!((cause, started, final_offset), (Some(EndCause::KeeperDied), true, 6));
    assert_eq!(host.living(), [] as [i32; 0]);
}

#[tokio::test]
async fn keeper_and_runner_killed_together_leave_nothing() {
    let mut host = RunnerUnderTest::new().await;
    host.ask(host.job("setsid sleep 1000 & echo ready; sleep 1000"));
    host.says("ready").await;
    let keeper = host.keeper_pid();
    host.kill_runner().await;
    kill(Pid::from_raw(keeper), Signal::SIGKILL).unwrap();
    host.start();
    let What::Ended { cause, .. } = host.ends().await else { panic!() };
    assert_eq!(cause, Some(EndCause::KeeperDied));
    assert_eq!(host.living(), [] as [i32; 0]);
}

/// Whatever a power cut has left of it: its folder with the mark that it began, the folder without the mark, or nothing.
#[tokio::test]
async fn a_job_of_an_earlier_boot_of_the_host_is_interrupted_and_not_started_again() {
    for (left, said) in [("all", 6), ("no mark", 6), ("nothing", 0)] {
        let mut host = RunnerUnderTest::new().await;
        host.ask(host.job("echo ran >> ../ran; setsid sleep 1000 & echo ready; sleep 1000"));
        host.says("ready").await;
        host.restart_of_the_host().await;
        let folder = host.folder(JOB, STEP);
        match left {
            "no mark" => {
                OpenOptions::new().write(true).open(folder.join("exit")).unwrap().write_all(&[0; 4096]).unwrap()
            }
            "nothing" => std::fs::remove_dir_all(&folder).unwrap(),
            _ => {}
        }
        host.start();
        let What::Ended { cause, message, started, final_offset, .. } = host.ends().await else { panic!() };
        assert_eq!((cause, started, final_offset), (Some(EndCause::Interrupted), true, said), "{left}");
        assert!(message.as_deref().unwrap().starts_with("the host was restarted"), "{left}: {message:?}");
        assert_eq!(std::fs::read_to_string(host.dir.join("ran")).unwrap(), "ran\n", "{left}");
        assert_eq!(host.living(), [] as [i32; 0]);
    }
}

/// Its exit record was written before the power cut: how it ended is known.
#[tokio::test]
async fn a_job_that_ended_before_the_host_was_restarted_ends_as_it_did() {
    let mut host = RunnerUnderTest::new().await;
    host.ask(host.job("mkfifo gate; echo ready; cat gate >/dev/null; exit 3"));
    host.says("ready").await;
    host.control.change(|state| state.down = true);
    host.open_gate("gate").await;
    // Behind the mark that it began, of 4096 bytes, stands how it ended.
    while std::fs::read(host.folder(JOB, STEP).join("exit")).unwrap()[4096] == 0 {
        tokio::task::yield_now().await;
    }
    host.restart_of_the_host().await;
    host.control.change(|state| state.down = false);
    host.start();
    let What::Ended { cause, exit_code, .. } = host.ends().await else { panic!() };
    assert_eq!((cause, exit_code), (None, Some(3)));
}

#[tokio::test]
async fn an_epoch_that_ended_is_never_started_again() {
    let mut host = RunnerUnderTest::new().await;
    host.ask(host.job("echo ran >> ../ran"));
    host.ends().await;
    host.kill_runner().await;
    host.start();
    host.control.until("the new runner", |state| state.session == 2).await;
    let mut second = host.job("echo second");
    second.job = wire::model::JobId(8);
    host.ask(second);
    host.control.until("the second job", |state| state.ended(wire::model::JobId(8)).is_some()).await;
    assert_eq!(std::fs::read_to_string(host.dir.join("ran")).unwrap(), "ran\n");
    assert!(host.control.see(|state| state.registers[1].jobs[0].ended));
}

#[tokio::test]
async fn lost_answers_repeat_facts_and_no_output() {
    let host = RunnerUnderTest::new().await;
    host.control.change(|state| state.lose_answers = 4);
    host.ask(host.job("echo hello; exit 2"));
    host.control.until("all answers were lost", |state| state.lose_answers == 0).await;
    host.control.until("the end, twice at most", |state| ends(&state.facts) >= 1).await;
    host.control.change(|state| state.desired.clear());
    while host.folder(JOB, STEP).exists() {
        tokio::task::yield_now().await;
    }
    host.control.see(|state| {
        assert_eq!(state.log(JOB).text(Stream::Stdout), "hello\n");
        // Each repetition says anew how long ago the end was: that only grows.
        let mut ages = Vec::new();
        let mut timeless = |mut what: What| {
            if let What::Ended { ended_ago_ms, .. } = &mut what {
                ages.push(std::mem::take(ended_ago_ms));
            }
            format!("{what:?}")
        };
        let ends: Vec<String> = state.facts.iter().map(|fact| timeless(fact.what.clone())).collect();
        assert!(ages.is_sorted(), "{ages:?}");
        let mut different = ends.clone();
        different.sort();
        different.dedup();
        assert_eq!(different.len(), 4, "repeats are the same fact: {ends:?}");
    });
}

#[tokio::test]
async fn results_wait_for_a_control_plane_that_is_away() {
    let host = RunnerUnderTest::new().await;
    let mut job = host.job("mkfifo gate; echo ready; cat gate; seq 1 20000; echo kept > kept; exit 8");
    job.artifacts = vec!["kept".to_owned()];
    host.ask(job);
    host.says("ready").await;
    host.control.change(|state| state.down = true);
    host.open_gate("gate").await;
    while !host.living().is_empty() {
        tokio::task::yield_now().await;
    }
    assert!(host.control.see(|state| state.ended(JOB).is_none()));
    host.control.change(|state| state.down = false);
    let What::Ended { exit_code, .. } = host.ends().await else { panic!() };
    assert_eq!(exit_code, Some(8));
    host.control.see(|state| {
        let expected: String = "ready\ngo"
            .chars()
            .chain((1..=20000).flat_map(|n| format!("{n}\n").into_bytes()).map(char::from))
            .collect();
        assert_eq!(state.log(JOB).text(Stream::Stdout), expected);
        assert_eq!(state.artifacts[&(JOB, "kept".to_owned())], b"kept\n");
    });
}
