//! What a job may use is the job's own: whatever ran on the machine before it, and however its processes are held together.

use crate::containment::house_of_nobody;
use crate::host::{RunnerUnderTest, skip};
use wire::model::JobId;
use wire::runner::{EndCause, Limits, Stream, What};

const TAKES_200_MB: &str = "head -c 200000000 /dev/zero | tail -c 199000000 >/dev/null";
const MEMORY: Limits = Limits { cpu_milli: None, memory_bytes: Some(64 << 20) };
const CPU: Limits = Limits { cpu_milli: Some(100), memory_bytes: None };

fn enforced(controller: &str) -> bool {
    let enforced = runner::limits(controller).is_some();
    if !enforced {
        skip("limits", &format!("{controller} cannot be limited on this host"));
    }
    enforced
}

fn ask(host: &RunnerUnderTest, number: i64, script: &str, limits: Limits) {
    let mut job = host.job(script);
    (job.job, job.workdir, job.limits) = (JobId(number), format!("work_{number}"), limits);
    host.ask(job);
}

async fn end(host: &RunnerUnderTest, number: i64) -> (Option<i32>, Option<EndCause>) {
    host.control.until("its end", |state| state.ended(JobId(number)).is_some()).await;
    match host.control.see(|state| state.ended(JobId(number)).cloned()) {
        Some(What::Ended { exit_code, cause, .. }) => (exit_code, cause),
        other => panic!("{other:?}"),
    }
}

fn groups(host: &RunnerUnderTest, number: i64) -> serde_json::Value {
    let groups = std::fs::read(host.folder(JobId(number), crate::host::STEP).join("groups.json")).unwrap();
    serde_json::from_slice(&groups).unwrap()
}

#[tokio::test]
async fn memory_is_limited_job_by_job_in_every_way() {
    if !enforced("memory") {
        return;
    }
    for way in ["cgroup", "pidns", "sweep"] {
        if runner::containment(Some(way)).way.word() != way {
            skip("containment", &format!("{way} is not to be had on this host"));
            continue;
        }
        let mut host = RunnerUnderTest::unstarted(|boot| boot.memory_bytes = Some(32 << 20));
        host.containment = way;
        host.start();
        host.control.until("the runner registers", |state| state.session == 1).await;
        let table =
            [(MEMORY, Some(EndCause::OutOfMemory)), (Limits::default(), None), (MEMORY, Some(EndCause::OutOfMemory))];
        for (number, (limits, cause)) in (1..).zip(table) {
            ask(&host, number, TAKES_200_MB, limits);
            assert_eq!(end(&host, number).await.1, cause, "{way}: job {number} with {limits:?}");
        }
        host.control.see(|state| {
            let told = state.facts.iter().filter_map(|fact| match &fact.what {
                What::Started { unenforced } => Some(unenforced.clone()),
                _ => None,
            });
            assert_eq!(told.collect::<Vec<_>>(), [None, None, None], "{way}");
        });
    }
}

#[tokio::test]
async fn groups_of_limits_go_with_their_job() {
    if !enforced("memory") || !enforced("cpu") {
        return;
    }
    let host = RunnerUnderTest::new().await;
    let both = Limits { cpu_milli: Some(100), ..MEMORY };
    ask(&host, 1, "mkfifo gate; echo ready; cat gate", both);
    host.control.until("ready", |state| state.has(JobId(1), Stream::Stdout, "ready")).await;
    let groups = groups(&host, 1);
    let paths: Vec<&str> = groups.as_object().unwrap().values().filter_map(|value| value.as_str()).collect();
    assert!(paths.len() >= 2 || runner::limits("cpu") == Some("v2"), "{groups}");
    let inside = |path: &&&str| !std::fs::read_to_string(format!("{path}/cgroup.procs")).unwrap().is_empty();
    assert_eq!(paths.iter().filter(inside).count(), paths.len(), "the command is in each: {groups}");
    let gate = host.dir.join("work_1/gate");
    tokio::task::spawn_blocking(move || std::fs::write(gate, "go").unwrap()).await.unwrap();
    assert_eq!(end(&host, 1).await, (Some(0), None));
    assert_eq!(paths.iter().filter(|path| std::path::Path::new(path).exists()).count(), 0, "{groups}");
}

/// The kernel says how often it held the job back: nothing here is measured.
#[tokio::test]
async fn a_job_without_limits_is_not_held_back_by_those_of_the_one_before() {
    if !enforced("cpu") {
        return;
    }
    let host = RunnerUnderTest::new().await;
    let spin = "mkfifo gate; echo ready; cat gate >/dev/null & i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done
        echo spun; wait";
    for (number, limits, held_back) in [(1, CPU, true), (2, Limits::default(), false), (3, CPU, true)] {
        ask(&host, number, spin, limits);
        host.control.until("spun", |state| state.has(JobId(number), Stream::Stdout, "spun")).await;
        let groups = groups(&host, number);
        // The limit is on the parent of the leaf. Version 2 counts there only if the controller was handed down; nothing is held back else.
        let leaf = ["cpu", "v2", "limiting"].into_iter().find_map(|kind| groups[kind].as_str());
        let stat = leaf.and_then(|leaf| std::fs::read_to_string(format!("{leaf}/../cpu.stat")).ok());
        let count = stat.iter().flat_map(|text| text.lines()).find_map(|line| line.strip_prefix("nr_throttled "));
        assert_eq!(count.is_some_and(|count| count != "0"), held_back, "job {number}: {groups}: {stat:?}");
        let gate = host.dir.join(format!("work_{number}/gate"));
        tokio::task::spawn_blocking(move || std::fs::write(gate, "go").unwrap()).await.unwrap();
        end(&host, number).await;
    }
}

#[tokio::test]
async fn what_cannot_be_enforced_is_told_once_and_the_job_runs() {
    let Some(host) = house_of_nobody().await else { return };
    for (number, attempt, limits) in [(1, 1, MEMORY), (2, 2, MEMORY), (3, 1, Limits::default())] {
        let mut job = host.job("echo ran");
        (job.job, job.workdir, job.limits, job.attempt) = (JobId(number), format!("work_{number}"), limits, attempt);
        host.ask(job);
        assert_eq!(end(&host, number).await, (Some(0), None));
        let limited = limits != Limits::default();
        host.control.see(|state| {
            let note = state.log(JobId(number)).text(Stream::Runner);
            assert_eq!(note.contains("--memory is not enforced"), limited && attempt == 1, "job {number}: {note}");
            let told = state.facts.iter().find_map(|fact| match &fact.what {
                What::Started { unenforced } if fact.job == JobId(number) => Some(unenforced.is_some()),
                _ => None,
            });
            assert_eq!(told, Some(limited), "job {number}");
        });
    }
}
