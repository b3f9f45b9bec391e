//! How jobs end before their time: by signal, by order, by the clock, and with nothing left behind.

use crate::host::{JOB, RunnerUnderTest, STEP};
use nix::sys::signal::Signal;
use wire::runner::{DesiredState, EndCause, OnLostControl, Stream, What};

struct End {
    exit_code: Option<i32>,
    signal: Option<i32>,
    cause: Option<EndCause>,
    started: bool,
    active_ms: i64,
}

async fn end_of(host: &RunnerUnderTest) -> End {
    let What::Ended { exit_code, signal, cause, started, active_ms, .. } = host.ends().await else { panic!() };
    End { exit_code, signal, cause, started, active_ms }
}

#[tokio::test]
async fn a_signal_is_told() {
    let host = RunnerUnderTest::new().await;
    host.ask(host.job("kill -SEGV $$"));
    let end = end_of(&host).await;
    assert_eq!((end.exit_code, end.signal, end.cause), (None, Some(11), None));
}

#[tokio::test]
async fn children_left_behind_do_not_survive() {
    let host = RunnerUnderTest::new().await;
    host.ask(host.job(
        "sleep 1000 & setsid sleep 1000 & (setsid sh -c 'sleep 1000 & env -i sleep 1000 & wait' &) ; \
         nohup sleep 1000 >/dev/null 2>&1 & echo left; exit 4",
    ));
    let end = end_of(&host).await;
    assert_eq!((end.exit_code, end.cause), (Some(4), None));
    assert_eq!(host.living(), [] as [i32; 0]);
}

#[tokio::test]
async fn a_stop_lets_the_command_say_goodbye() {
    let host = RunnerUnderTest::new().await;
    host.ask(host.job("trap 'echo bye; exit 7' TERM; echo ready; sleep 1000 & wait"));
    host.says("ready").await;
    host.want(DesiredState::Stopped);
    let end = end_of(&host).await;
    assert_eq!((end.exit_code, end.cause), (Some(7), Some(EndCause::Stopped)));
    assert!(host.control.see(|state| state.has(JOB, Stream::Stdout, "bye")));
}

#[tokio::test]
async fn a_command_that_ignores_a_stop_is_killed() {
    let host = RunnerUnderTest::new().await;
    let mut job = host.job("trap '' TERM; echo ready; while :; do sleep 1000; done");
    job.stop_duration_ms = 50;
    host.ask(job);
    host.says("ready").await;
    host.want(DesiredState::Stopped);
    let end = end_of(&host).await;
    assert_eq!((end.signal, end.cause), (Some(9), Some(EndCause::Stopped)));
}

#[tokio::test]
async fn an_abort_asks_nobody() {
    let host = RunnerUnderTest::new().await;
    host.ask(host.job("trap 'echo bye' TERM; echo ready; while :; do sleep 1000; done"));
    host.says("ready").await;
    host.want(DesiredState::Aborted);
    let end = end_of(&host).await;
    assert_eq!((end.signal, end.cause), (Some(9), Some(EndCause::Aborted)));
    assert!(!host.control.see(|state| state.has(JOB, Stream::Stdout, "bye")));
}

#[tokio::test]
async fn max_duration_is_enforced_here() {
    let host = RunnerUnderTest::new().await;
    let mut job = host.job("echo ready; sleep 1000");
    job.max_duration_ms = Some(150);
    host.ask(job);
    let end = end_of(&host).await;
    assert_eq!((end.signal, end.cause), (Some(Signal::SIGTERM as i32), Some(EndCause::MaxDuration)));
    assert!((150..10_000).contains(&end.active_ms), "{}", end.active_ms);
}

#[tokio::test]
async fn a_job_stopped_before_it_was_heard_of_never_starts() {
    let host = RunnerUnderTest::new().await;
    let mut job = host.job("touch ran");
    job.state = DesiredState::Stopped;
    host.ask(job);
    let end = end_of(&host).await;
    assert_eq!((end.started, end.cause), (false, Some(EndCause::Stopped)));
    assert!(!host.workdir().join("ran").exists());
}

#[tokio::test]
async fn a_frozen_job_stands_still_and_can_be_stopped() {
    let host = RunnerUnderTest::new().await;
    host.ask(host.job("trap 'echo bye; exit 9' TERM; mkfifo gate; echo ready; cat gate; echo on; sleep 1000 & wait"));
    host.says("ready").await;
    let threads = host.living();
    host.want(DesiredState::Frozen);
    frozen(&host, &threads, true).await;
    host.want(DesiredState::Running);
    frozen(&host, &threads, false).await;
    host.open_gate("gate").await;
    host.says("on").await;
    host.want(DesiredState::Frozen);
    frozen(&host, &host.living(), true).await;
    host.want(DesiredState::Stopped);
    let end = end_of(&host).await;
    assert_eq!((end.exit_code, end.cause), (Some(9), Some(EndCause::Stopped)));
}

/// Paused and resumed before this machine heard of either: the control plane gets the confirmation that it waits for, though nothing had to change.
#[tokio::test]
async fn a_job_that_never_stood_still_says_that_it_goes_on_when_asked() {
    let host = RunnerUnderTest::new().await;
    host.ask(host.job("mkfifo gate; echo ready; cat gate"));
    host.says("ready").await;
    let goes_on = |fact: &wire::runner::Fact| matches!(fact.what, What::Thawed);
    host.control.change(|state| state.desired.iter_mut().for_each(|job| job.answer = true));
    host.control.until("it goes on", |state| state.facts.iter().any(goes_on)).await;
    host.open_gate("gate").await;
    host.ends().await;
}

/// By group the kernel says so in the group's events; one by one it shows in each process's state.
pub async fn frozen(host: &RunnerUnderTest, pids: &[i32], wanted: bool) {
    let groups = std::fs::read_to_string(host.folder(JOB, STEP).join("groups.json")).unwrap();
    let groups: serde_json::Value = serde_json::from_str(&groups).unwrap();
    let is_frozen = || match groups["v2"].as_str() {
        Some(group) => std::fs::read_to_string(format!("{group}/cgroup.events")).unwrap().contains("frozen 1"),
        None => pids.iter().all(|pid| {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            stat.contains(") T") || stat.contains(") D")
        }),
    };
    while is_frozen() != wanted {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_job_no_longer_wanted_is_ended_and_forgotten() {
    let host = RunnerUnderTest::new().await;
    host.ask(host.job("echo ready; sleep 1000"));
    host.says("ready").await;
    host.control.change(|state| state.desired.clear());
    end_of(&host).await;
    let folder = host.folder(JOB, STEP);
    while folder.exists() {
        tokio::task::yield_now().await;
    }
    assert_eq!(host.living(), [] as [i32; 0]);
}

#[tokio::test]
async fn a_disowned_job_is_ended_and_tells_no_more() {
    let host = RunnerUnderTest::new().await;
    host.ask(host.job("echo ready; sleep 1000"));
    host.says("ready").await;
    host.control.change(|state| state.refuse.insert(JOB));
    host.want(DesiredState::Frozen); // so that it has something to tell
    while !host.living().is_empty() {
        tokio::task::yield_now().await;
    }
    assert!(host.control.see(|state| state.ended(JOB).is_none()));
}

#[tokio::test]
async fn a_runner_whose_machine_was_terminated_ends_what_it_has_and_leaves() {
    let mut host = RunnerUnderTest::new().await;
    host.ask(host.job("echo ready; sleep 1000")); // which would be finished without a control plane
    host.says("ready").await;
    host.control.change(|state| (state.forgotten, state.answers_410) = (1, Some("gone")));
    assert!(host.runner_leaves().await);
    assert_eq!(host.living(), [] as [i32; 0]);
    // One that starts on such a machine does not stay either.
    host.start();
    assert!(host.runner_leaves().await);
}

/// A runner that is not listed, which its control plane answers to each beat, 50 ms apart.
async fn unlisted(unlisted_for_ms: i64) -> RunnerUnderTest {
    let host = RunnerUnderTest::with(|boot| {
        boot.timings.heartbeat_every_ms = 50;
        boot.timings.degraded_after_ms = 100;
        boot.timings.panic_after_ms = 400;
        boot.timings.unlisted_for_ms = unlisted_for_ms;
    })
    .await;
    let mut job = host.job("trap 'exit 5' TERM; mkfifo gate; echo ready; cat gate & wait; seq 1 20000; exit 6");
    job.on_lost_control = OnLostControl::Stop;
    host.ask(job);
    host.says("ready").await;
    host.control.change(|state| (state.forgotten, state.answers_410) = (1, Some("unlisted")));
    host
}

#[tokio::test]
async fn a_job_of_a_runner_that_is_not_listed_works_on_and_is_delivered_later() {
    let mut host = unlisted(60_000).await;
    host.control.until("longer than a control plane may be silent", |state| state.refused >= 40).await;
    assert!(!host.living().is_empty());
    host.open_gate("gate").await;
    while !host.living().is_empty() {
        tokio::task::yield_now().await;
    }
    assert!(host.control.see(|state| state.ended(JOB).is_none()));
    host.control.change(|state| state.answers_410 = None);
    let ended = end_of(&host).await;
    assert_eq!((ended.exit_code, ended.cause), (Some(6), None));
    let written: String = (1..=20000).map(|n| format!("{n}\n")).collect();
    assert!(host.control.see(|state| state.log(JOB).text(Stream::Stdout)) == format!("ready\ngo{written}"));
    // With nothing left to do, a runner that is not listed leaves.
    host.control.change(|state| (state.forgotten, state.answers_410) = (i64::MAX, Some("unlisted")));
    assert!(host.runner_leaves().await);
}

#[tokio::test]
async fn a_runner_that_is_not_listed_for_too_long_counts_as_lost() {
    let mut host = unlisted(100).await;
    assert!(host.runner_leaves().await, "its job is stopped, and nothing is left to do");
    host.control.change(|state| state.answers_410 = None);
    host.start();
    assert_eq!(end_of(&host).await.cause, Some(EndCause::ControlLost));
}

#[tokio::test]
async fn a_lost_control_plane_ends_work_only_where_it_is_asked_to() {
    for (policy, cause) in [(OnLostControl::Stop, Some(EndCause::ControlLost)), (OnLostControl::Finish, None)] {
        let mut host = RunnerUnderTest::with(|boot| {
            boot.timings.heartbeat_every_ms = 50;
            boot.timings.degraded_after_ms = 100;
            boot.timings.panic_after_ms = 400;
        })
        .await;
        let mut job = host.job("trap 'exit 5' TERM; mkfifo gate; echo ready; cat gate & wait; exit 6");
        job.on_lost_control = policy;
        host.ask(job);
        host.says("ready").await;
        host.control.change(|state| state.down = true);
        if policy == OnLostControl::Stop {
            // Nothing is left to do here: the runner leaves, its results wait on disk for the next one.
            assert!(host.runner_leaves().await);
            host.start();
        } else {
            host.open_gate("gate").await;
        }
        host.control.change(|state| state.down = false);
        assert_eq!(end_of(&host).await.cause, cause);
    }
}
