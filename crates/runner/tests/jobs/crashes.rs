//! What survives what: runners and keepers are killed, answers get lost, the control plane goes away and returns.

use crate::house::{House, JOB};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use wire::runner::{EndCause, Fact, Stream, What};

fn ends(facts: &[Fact]) -> usize {
    facts.iter().filter(|fact| matches!(fact.what, What::Ended { .. })).count()
}

#[tokio::test]
async fn a_killed_runner_changes_nothing() {
    let mut house = House::new().await;
    house.ask(house.job("mkfifo a b; echo one; cat a >/dev/null; echo two; cat b >/dev/null; echo three; exit 5"));
    house.says("one").await;
    house.kill_runner().await;
    house.open_gate("a").await;
    house.start();
    house.says("two").await;
    house.kill_runner().await;
    house.open_gate("b").await;
    while !house.living().is_empty() {
        tokio::task::yield_now().await;
    }
    house.start();
    let What::Ended { exit_code, cause, .. } = house.ends().await else { panic!() };
    assert_eq!((exit_code, cause), (Some(5), None));
    house.control.see(|state| {
        assert_eq!(state.log(JOB).text(Stream::Stdout), "one\ntwo\nthree\n");
        assert_eq!(state.registers.len(), 3);
        let known: Vec<bool> = state.registers.iter().map(|register| !register.jobs.is_empty()).collect();
        assert_eq!(known, [false, true, true], "a new runner says what it found");
    });
}

#[tokio::test]
async fn output_has_no_gap_and_no_repeat_over_many_kills() {
    let mut house = House::new().await;
    house.ask(house.job("seq 1 400000"));
    let whole: String = (1..=400000).map(|n| format!("{n}\n")).collect();
    for part in 1..=4 {
        let enough = whole.len() as i64 * part / 6;
        house.control.until("some more output", |state| state.log(JOB).next >= enough).await;
        house.kill_runner().await;
        house.start();
    }
    house.ends().await;
    assert!(house.control.see(|state| state.log(JOB).text(Stream::Stdout)) == whole);
}

#[tokio::test]
async fn a_runner_killed_at_any_moment_of_a_start_starts_it_once() {
    for facts_seen in 0..4 {
        let mut house = House::new().await;
        house.ask(house.job("echo ran >> ../ran; echo done"));
        house.control.until("that moment", |state| state.facts.len() >= facts_seen).await;
        house.kill_runner().await;
        house.start();
        house.ends().await;
        assert_eq!(std::fs::read_to_string(house.dir.join("ran")).unwrap(), "ran\n", "after {facts_seen} facts");
        assert_eq!(house.control.see(|state| state.log(JOB).text(Stream::Stdout)), "done\n");
    }
}

#[tokio::test]
async fn a_killed_keeper_takes_its_processes_along() {
    let house = House::new().await;
    house.ask(house.job("setsid sh -c 'sleep 1000 & env -i sleep 1000 & wait' & sleep 1000 & echo ready; sleep 1000"));
    house.says("ready").await;
    kill(Pid::from_raw(house.keeper_pid()), Signal::SIGKILL).unwrap();
    let What::Ended { cause, started, final_offset, .. } = house.ends().await else { panic!() };
    assert_eq!((cause, started, final_offset), (Some(EndCause::KeeperDied), true, 6));
    assert_eq!(house.living(), [] as [i32; 0]);
}

#[tokio::test]
async fn keeper_and_runner_killed_together_leave_nothing() {
    let mut house = House::new().await;
    house.ask(house.job("setsid sleep 1000 & echo ready; sleep 1000"));
    house.says("ready").await;
    let keeper = house.keeper_pid();
    house.kill_runner().await;
    kill(Pid::from_raw(keeper), Signal::SIGKILL).unwrap();
    house.start();
    let What::Ended { cause, .. } = house.ends().await else { panic!() };
    assert_eq!(cause, Some(EndCause::KeeperDied));
    assert_eq!(house.living(), [] as [i32; 0]);
}

#[tokio::test]
async fn an_epoch_that_ended_is_never_started_again() {
    let mut house = House::new().await;
    house.ask(house.job("echo ran >> ../ran"));
    house.ends().await;
    house.kill_runner().await;
    house.start();
    house.control.until("the new runner", |state| state.session == 2).await;
    let mut second = house.job("echo second");
    second.job = wire::model::JobId(8);
    house.ask(second);
    house.control.until("the second job", |state| state.ended(wire::model::JobId(8)).is_some()).await;
    assert_eq!(std::fs::read_to_string(house.dir.join("ran")).unwrap(), "ran\n");
    assert!(house.control.see(|state| state.registers[1].jobs[0].ended));
}

#[tokio::test]
async fn lost_answers_repeat_facts_and_no_output() {
    let house = House::new().await;
    house.control.change(|state| state.lose_answers = 4);
    house.ask(house.job("echo hello; exit 2"));
    house.control.until("all answers were lost", |state| state.lose_answers == 0).await;
    house.control.until("the end, twice at most", |state| ends(&state.facts) >= 1).await;
    house.control.change(|state| state.desired.clear());
    while house.dir.join("jobs").join(format!("{JOB}.1")).exists() {
        tokio::task::yield_now().await;
    }
    house.control.see(|state| {
        assert_eq!(state.log(JOB).text(Stream::Stdout), "hello\n");
        let ends: Vec<String> = state.facts.iter().map(|fact| format!("{:?}", fact.what)).collect();
        let mut different = ends.clone();
        different.sort();
        different.dedup();
        assert_eq!(different.len(), 4, "repeats are the same fact: {ends:?}");
    });
}

#[tokio::test]
async fn results_wait_for_a_control_plane_that_is_away() {
    let house = House::new().await;
    let mut job = house.job("mkfifo gate; echo ready; cat gate; seq 1 20000; echo kept > kept; exit 8");
    job.artifacts = vec!["kept".to_owned()];
    house.ask(job);
    house.says("ready").await;
    house.control.change(|state| state.down = true);
    house.open_gate("gate").await;
    while !house.living().is_empty() {
        tokio::task::yield_now().await;
    }
    assert!(house.control.see(|state| state.ended(JOB).is_none()));
    house.control.change(|state| state.down = false);
    let What::Ended { exit_code, .. } = house.ends().await else { panic!() };
    assert_eq!(exit_code, Some(8));
    house.control.see(|state| {
        let expected: String = "ready\ngo"
            .chars()
            .chain((1..=20000).flat_map(|n| format!("{n}\n").into_bytes()).map(char::from))
            .collect();
        assert_eq!(state.log(JOB).text(Stream::Stdout), expected);
        assert_eq!(state.artifacts[&(JOB, "kept".to_owned())], b"kept\n");
    });
}
