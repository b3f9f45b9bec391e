//! The runner among its neighbours: its environment, its socket, its lock, its limits, and how it leaves.

use crate::host::{JOB, RunnerUnderTest, STEP};
use nix::sys::signal::Signal;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use wire::model::boot::SocketAnswer;
use wire::runner::{EndCause, Stream, What};

#[tokio::test]
async fn a_job_sees_its_own_environment_and_no_other() {
    let host = RunnerUnderTest::new().await;
    let mut job = host.job("cat; pwd; env");
    job.env = BTreeMap::from([("COLOUR".to_owned(), "red".to_owned()), ("REPL_JOB".to_owned(), "forged".to_owned())]);
    job.working_dir = Some("sub/dir".to_owned());
    job.attempt = 2;
    host.ask(job);
    host.ends().await;
    let said = host.control.see(|state| state.log(JOB).text(Stream::Stdout));
    let mut lines = said.lines();
    assert_eq!(lines.next().unwrap(), host.workdir().join("sub/dir").to_str().unwrap());
    let env: BTreeMap<&str, &str> = lines.filter_map(|line| line.split_once('=')).collect();
    assert_eq!((env["COLOUR"], env["REPL_JOB"], env["REPL_RUN"]), ("red", "job_7", "run_3"));
    assert_eq!(env["REPL_ATTEMPT"], "2");
    assert_eq!((env["REPL_JOB_KEY"], env["REPL_WORKDIR"]), ("job_7.1.stp_1.1", host.workdir().to_str().unwrap()));
    assert!(env.contains_key("PATH") && !env.contains_key("LEAK_OF_THE_RUNNER"), "{env:?}");
    let allowed = ["COLOUR", "HOME", "LANG", "OLDPWD", "PATH", "PWD", "SHELL", "SHLVL", "TZ", "USER", "_"];
    let strange: Vec<&&str> = env.keys().filter(|name| !allowed.contains(name) && !name.starts_with("REPL_")).collect();
    assert!(strange.is_empty(), "{strange:?}");
}

fn ask(host: &RunnerUnderTest, line: &str) -> SocketAnswer {
    let mut peer = UnixStream::connect(runner::socket_path(&host.dir)).unwrap();
    writeln!(peer, "{line}").unwrap();
    let mut answer = String::new();
    BufReader::new(peer).read_line(&mut answer).unwrap();
    serde_json::from_str(&answer).unwrap()
}

#[tokio::test]
async fn the_socket_proves_who_this_is_and_takes_the_order_to_end() {
    let mut host = RunnerUnderTest::new().await;
    host.ask(host.job("echo ready; sleep 1000"));
    host.says("ready").await;
    let answer = ask(&host, r#"{"ask":"identify"}"#);
    assert_eq!((&*answer.nonce, answer.pid, answer.refused), ("nonce-1", host.runner_pid(), None));
    assert!(ask(&host, r#"{"ask":"shutdown","nonce":"guess"}"#).refused.is_some());
    assert!(ask(&host, "nonsense").refused.is_some());
    assert!(ask(&host, r#"{"ask":"shutdown","nonce":"nonce-1"}"#).refused.is_none());
    assert!(host.runner_leaves().await);
    assert_eq!(host.living(), [] as [i32; 0]);
    assert!(host.control.see(|state| state.ended(JOB).is_some()), "what can be delivered is");
}

#[tokio::test]
async fn a_long_path_has_its_socket_elsewhere() {
    let mut host = RunnerUnderTest::unstarted(|_| {});
    let long = host.dir.join("x".repeat(120));
    std::fs::create_dir(&long).unwrap();
    std::fs::rename(host.dir.join("runner.json"), long.join("runner.json")).unwrap();
    host.dir = long;
    host.start();
    host.control.until("the runner registers", |state| state.session == 1).await;
    host.ask(host.job("echo hello"));
    host.ends().await;
    assert_eq!(ask(&host, r#"{"ask":"identify"}"#).nonce, "nonce-1");
    host.control.change(|state| state.shutdown = true);
    assert!(host.runner_leaves().await);
}

#[tokio::test]
async fn a_shutdown_ends_everything_and_tells_how() {
    let mut host = RunnerUnderTest::new().await;
    host.ask(host.job("echo ready; sleep 1000"));
    host.says("ready").await;
    host.control.change(|state| state.shutdown = true);
    assert!(host.runner_leaves().await);
    let What::Ended { cause, .. } = host.ends().await else { panic!() };
    assert_eq!(cause, Some(EndCause::Stopped));
    while !host.is_deserted() {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_runner_that_is_terminated_or_superseded_leaves_its_work_alone() {
    for superseded in [false, true] {
        let mut host = RunnerUnderTest::new().await;
        host.ask(host.job("mkfifo gate; echo ready; cat gate; echo on"));
        host.says("ready").await;
        if superseded {
            host.control.change(|state| state.superseded = true);
        } else {
            host.signal_runner(Signal::SIGTERM);
        }
        assert!(host.runner_leaves().await);
        assert!(!host.living().is_empty(), "the work goes on");
        host.control.change(|state| state.superseded = false);
        host.open_gate("gate").await;
        host.start();
        let What::Ended { exit_code, .. } = host.ends().await else { panic!() };
        assert_eq!(exit_code, Some(0));
    }
}

#[tokio::test]
async fn a_second_runner_leaves_quietly() {
    let host = RunnerUnderTest::new().await;
    let dir = host.dir.clone();
    let second = move || std::process::Command::new(env!("CARGO_BIN_EXE_repl-runner")).arg("run").arg(dir).status();
    let status = tokio::task::spawn_blocking(second).await.unwrap().unwrap();
    assert!(status.success());
    host.ask(host.job("echo still here"));
    host.ends().await;
}

#[tokio::test]
async fn a_runner_whose_directory_went_away_leaves_with_all_its_work() {
    let mut host = RunnerUnderTest::new().await;
    host.ask(host.job("echo ready; cd /; sleep 1000"));
    host.says("ready").await;
    // The runner may be making a folder at this very moment.
    while std::fs::remove_dir_all(&host.dir).is_err() && host.dir.exists() {}
    assert!(host.runner_leaves().await);
    assert_eq!(host.living(), [] as [i32; 0]);
}

#[tokio::test]
async fn the_end_of_an_instance_ends_all_its_processes() {
    for runner_alive in [false, true] {
        let mut host = RunnerUnderTest::new().await;
        host.ask(host.job("setsid sleep 1000 & echo ready; sleep 1000"));
        host.says("ready").await;
        if !runner_alive {
            host.kill_runner().await;
            assert!(!host.living().is_empty());
        }
        let dir = host.dir.clone();
        tokio::task::spawn_blocking(move || runner::end(&dir).unwrap()).await.unwrap();
        assert_eq!(host.living(), [] as [i32; 0]);
        if runner_alive {
            assert!(host.runner_leaves().await);
        }
    }
}

#[tokio::test]
async fn what_runs_in_a_folder_that_somebody_removed_ends_with_its_instance() {
    let mut host = RunnerUnderTest::new().await;
    host.ask(host.job("setsid sleep 1000 & echo ready; sleep 1000"));
    host.says("ready").await;
    host.kill_runner().await;
    std::fs::remove_dir_all(host.folder(JOB, STEP)).unwrap();
    let dir = host.dir.clone();
    tokio::task::spawn_blocking(move || runner::end(&dir).unwrap()).await.unwrap();
    assert!(host.is_deserted());
}

#[tokio::test]
async fn a_keeper_that_waits_for_work_is_gone_with_its_instance() {
    let mut host = RunnerUnderTest::new().await;
    let waiting = loop {
        match host.waiting_keeper() {
            Some(pid) => break pid,
            None => tokio::task::yield_now().await,
        }
    };
    // It would leave in its own time; one that stands still would never.
    let waiting = nix::unistd::Pid::from_raw(waiting);
    nix::sys::signal::kill(waiting, Signal::SIGSTOP).unwrap();
    let dir = host.dir.clone();
    tokio::task::spawn_blocking(move || runner::end(&dir).unwrap()).await.unwrap();
    assert!(host.runner_leaves().await);
    let deserted = host.is_deserted();
    if !deserted {
        let _ = nix::sys::signal::kill(waiting, Signal::SIGKILL); // nothing else ever would
    }
    assert!(deserted);
}

#[tokio::test]
async fn heartbeats_come_at_once_and_go_on() {
    let host = RunnerUnderTest::with(|boot| boot.timings.heartbeat_every_ms = 20).await;
    while host.control.see(|state| state.beats < 5) {
        tokio::task::yield_now().await;
    }
}

/// A small file system of its own, where one may be mounted.
struct SmallDisk(std::path::PathBuf);

impl SmallDisk {
    fn mount(at: &std::path::Path) -> Option<SmallDisk> {
        let flags = nix::mount::MsFlags::empty();
        nix::mount::mount(Some("tmpfs"), at, Some("tmpfs"), flags, Some("size=6m")).ok()?;
        Some(SmallDisk(at.to_owned()))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = nix::mount::umount2(&self.0, nix::mount::MntFlags::MNT_DETACH);
    }
}

#[tokio::test]
async fn a_full_disk_loses_no_outcome() {
    let mut host = RunnerUnderTest::unstarted(|_| {});
    let boot = std::fs::read(host.dir.join("runner.json")).unwrap();
    let Some(_disk) = SmallDisk::mount(&host.dir) else {
        return crate::host::skip("disk", "no small file system can be mounted here");
    };
    std::fs::write(host.dir.join("runner.json"), boot).unwrap();
    host.start();
    host.control.until("the runner registers", |state| state.session == 1).await;
    host.ask(host.job("cat /dev/zero > filler; echo full; head -c 300000 /dev/zero; exit 9"));
    let What::Ended { exit_code, final_offset, .. } = host.ends().await else { panic!() };
    assert_eq!(exit_code, Some(9));
    host.control.see(|state| {
        let log = state.log(JOB);
        assert_eq!(log.next, final_offset);
        assert!(log.text(Stream::Stdout).starts_with("full\n"), "what was set aside took the first words");
    });
    // With the disk still full a second job must end too, one way or the other.
    let mut second = host.job("exit 0");
    (second.job, second.workdir) = (wire::model::JobId(8), "work_2".to_owned());
    host.ask(second);
    host.control.until("the second job", |state| state.ended(wire::model::JobId(8)).is_some()).await;
}
