//! The runner among its neighbours: its environment, its socket, its lock, its limits, and how it leaves.

use crate::house::{House, JOB};
use nix::sys::signal::Signal;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use wire::model::boot::SocketAnswer;
use wire::runner::{EndCause, Stream, What};

#[tokio::test]
async fn a_job_sees_its_own_environment_and_no_other() {
    let house = House::new().await;
    let mut job = house.job("cat; pwd; env");
    job.env = BTreeMap::from([("COLOUR".to_owned(), "red".to_owned()), ("REPL_JOB".to_owned(), "forged".to_owned())]);
    job.working_dir = Some("sub/dir".to_owned());
    job.attempt = 2;
    house.ask(job);
    house.ends().await;
    let said = house.control.see(|state| state.log(JOB).text(Stream::Stdout));
    let mut lines = said.lines();
    assert_eq!(lines.next().unwrap(), house.workdir().join("sub/dir").to_str().unwrap());
    let env: BTreeMap<&str, &str> = lines.filter_map(|line| line.split_once('=')).collect();
    assert_eq!((env["COLOUR"], env["REPL_JOB"], env["REPL_RUN"]), ("red", "job_7", "run_3"));
    assert_eq!(env["REPL_ATTEMPT"], "2");
    assert_eq!((env["REPL_JOB_KEY"], env["REPL_WORKDIR"]), ("job_7.1", house.workdir().to_str().unwrap()));
    assert!(env.contains_key("PATH") && !env.contains_key("LEAK_OF_THE_RUNNER"), "{env:?}");
    let allowed = ["COLOUR", "HOME", "LANG", "OLDPWD", "PATH", "PWD", "SHELL", "SHLVL", "TZ", "USER", "_"];
    let strange: Vec<&&str> = env.keys().filter(|name| !allowed.contains(name) && !name.starts_with("REPL_")).collect();
    assert!(strange.is_empty(), "{strange:?}");
}

fn ask(house: &House, line: &str) -> SocketAnswer {
    let mut peer = UnixStream::connect(runner::socket_path(&house.dir)).unwrap();
    writeln!(peer, "{line}").unwrap();
    let mut answer = String::new();
    BufReader::new(peer).read_line(&mut answer).unwrap();
    serde_json::from_str(&answer).unwrap()
}

#[tokio::test]
async fn the_socket_proves_who_this_is_and_takes_the_order_to_end() {
    let mut house = House::new().await;
    house.ask(house.job("echo ready; sleep 1000"));
    house.says("ready").await;
    let answer = ask(&house, r#"{"ask":"identify"}"#);
    assert_eq!((&*answer.nonce, answer.pid, answer.refused), ("nonce-1", house.runner_pid(), None));
    assert!(ask(&house, r#"{"ask":"shutdown","nonce":"guess"}"#).refused.is_some());
    assert!(ask(&house, "nonsense").refused.is_some());
    assert!(ask(&house, r#"{"ask":"shutdown","nonce":"nonce-1"}"#).refused.is_none());
    assert!(house.runner_leaves().await);
    assert_eq!(house.living(), [] as [i32; 0]);
    assert!(house.control.see(|state| state.ended(JOB).is_some()), "what can be delivered is");
}

#[tokio::test]
async fn a_long_path_has_its_socket_elsewhere() {
    let mut house = House::unstarted(|_| {});
    let long = house.dir.join("x".repeat(120));
    std::fs::create_dir(&long).unwrap();
    std::fs::rename(house.dir.join("runner.json"), long.join("runner.json")).unwrap();
    house.dir = long;
    house.start();
    house.control.until("the runner registers", |state| state.session == 1).await;
    house.ask(house.job("echo hello"));
    house.ends().await;
    assert_eq!(ask(&house, r#"{"ask":"identify"}"#).nonce, "nonce-1");
    house.control.change(|state| state.shutdown = true);
    assert!(house.runner_leaves().await);
}

#[tokio::test]
async fn a_shutdown_ends_everything_and_tells_how() {
    let mut house = House::new().await;
    house.ask(house.job("echo ready; sleep 1000"));
    house.says("ready").await;
    house.control.change(|state| state.shutdown = true);
    assert!(house.runner_leaves().await);
    let What::Ended { cause, .. } = house.ends().await else { panic!() };
    assert_eq!(cause, Some(EndCause::Stopped));
    while !house.is_deserted() {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_runner_that_is_terminated_or_superseded_leaves_its_work_alone() {
    for superseded in [false, true] {
        let mut house = House::new().await;
        house.ask(house.job("mkfifo gate; echo ready; cat gate; echo on"));
        house.says("ready").await;
        if superseded {
            house.control.change(|state| state.superseded = true);
        } else {
            house.signal_runner(Signal::SIGTERM);
        }
        assert!(house.runner_leaves().await);
        assert!(!house.living().is_empty(), "the work goes on");
        house.control.change(|state| state.superseded = false);
        house.open_gate("gate").await;
        house.start();
        let What::Ended { exit_code, .. } = house.ends().await else { panic!() };
        assert_eq!(exit_code, Some(0));
    }
}

#[tokio::test]
async fn a_second_runner_leaves_quietly() {
    let house = House::new().await;
    let dir = house.dir.clone();
    let second = move || std::process::Command::new(env!("CARGO_BIN_EXE_repl-runner")).arg("run").arg(dir).status();
    let status = tokio::task::spawn_blocking(second).await.unwrap().unwrap();
    assert!(status.success());
    house.ask(house.job("echo still here"));
    house.ends().await;
}

#[tokio::test]
async fn a_runner_whose_directory_went_away_leaves_with_all_its_work() {
    let mut house = House::new().await;
    house.ask(house.job("echo ready; cd /; sleep 1000"));
    house.says("ready").await;
    // The runner may be making a folder at this very moment.
    while std::fs::remove_dir_all(&house.dir).is_err() && house.dir.exists() {}
    assert!(house.runner_leaves().await);
    assert_eq!(house.living(), [] as [i32; 0]);
}

#[tokio::test]
async fn the_end_of_an_instance_ends_all_its_processes() {
    for runner_alive in [false, true] {
        let mut house = House::new().await;
        house.ask(house.job("setsid sleep 1000 & echo ready; sleep 1000"));
        house.says("ready").await;
        if !runner_alive {
            house.kill_runner().await;
            assert!(!house.living().is_empty());
        }
        let dir = house.dir.clone();
        tokio::task::spawn_blocking(move || runner::end(&dir).unwrap()).await.unwrap();
        assert_eq!(house.living(), [] as [i32; 0]);
        if runner_alive {
            assert!(house.runner_leaves().await);
        }
    }
}

#[tokio::test]
async fn what_runs_in_a_folder_that_somebody_removed_ends_with_its_instance() {
    let mut house = House::new().await;
    house.ask(house.job("setsid sleep 1000 & echo ready; sleep 1000"));
    house.says("ready").await;
    house.kill_runner().await;
    std::fs::remove_dir_all(house.dir.join("jobs").join(format!("{JOB}.1"))).unwrap();
    let dir = house.dir.clone();
    tokio::task::spawn_blocking(move || runner::end(&dir).unwrap()).await.unwrap();
    assert!(house.is_deserted());
}

#[tokio::test]
async fn a_keeper_that_waits_for_work_is_gone_with_its_instance() {
    let mut house = House::new().await;
    let waiting = loop {
        match house.waiting_keeper() {
            Some(pid) => break pid,
            None => tokio::task::yield_now().await,
        }
    };
    // It would leave in its own time; one that stands still would never.
    let waiting = nix::unistd::Pid::from_raw(waiting);
    nix::sys::signal::kill(waiting, Signal::SIGSTOP).unwrap();
    let dir = house.dir.clone();
    tokio::task::spawn_blocking(move || runner::end(&dir).unwrap()).await.unwrap();
    assert!(house.runner_leaves().await);
    let deserted = house.is_deserted();
    if !deserted {
        let _ = nix::sys::signal::kill(waiting, Signal::SIGKILL); // or nobody ever would
    }
    assert!(deserted);
}

#[tokio::test]
async fn heartbeats_come_at_once_and_go_on() {
    let house = House::with(|boot| boot.timings.heartbeat_every_ms = 20).await;
    while house.control.see(|state| state.beats < 5) {
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
    let mut house = House::unstarted(|_| {});
    let boot = std::fs::read(house.dir.join("runner.json")).unwrap();
    let Some(_disk) = SmallDisk::mount(&house.dir) else { return };
    std::fs::write(house.dir.join("runner.json"), boot).unwrap();
    house.start();
    house.control.until("the runner registers", |state| state.session == 1).await;
    house.ask(house.job("cat /dev/zero > filler; echo full; head -c 300000 /dev/zero; exit 9"));
    let What::Ended { exit_code, final_offset, .. } = house.ends().await else { panic!() };
    assert_eq!(exit_code, Some(9));
    house.control.see(|state| {
        let log = state.log(JOB);
        assert_eq!(log.next, final_offset);
        assert!(log.text(Stream::Stdout).starts_with("full\n"), "what was set aside took the first words");
    });
    // With the disk still full a second job must end too, one way or the other.
    let mut second = house.job("exit 0");
    (second.job, second.workdir) = (wire::model::JobId(8), "work_2".to_owned());
    house.ask(second);
    house.control.until("the second job", |state| state.ended(wire::model::JobId(8)).is_some()).await;
}
