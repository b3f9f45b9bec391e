//! Files on their way in and out: verified, placed below the workdir and nowhere else, fetched once.

use crate::house::{House, JOB};
use wire::Base64;
use wire::model::JobId;
use wire::runner::{EndCause, Stream, SyncFile, What};

pub fn file(path: &str, bytes: &[u8], inline: bool) -> SyncFile {
    SyncFile {
        path: path.to_owned(),
        hash: blake3::hash(bytes).to_hex().to_string(),
        size: bytes.len() as i64,
        mode: 0o640,
        inline: inline.then(|| Base64(bytes.to_vec())),
    }
}

#[tokio::test]
async fn files_arrive_and_travel_only_once() {
    let house = House::new().await;
    let large = vec![b'L'; 300_000];
    let hash = blake3::hash(&large).to_hex().to_string();
    house.control.change(|state| state.blobs.insert(hash, large.clone()));
    for (number, fetched) in [(1, 1), (2, 0)] {
        let mut job = house.job("cat in/small; wc -c < in/deep/large; stat -c %a in/small; ./run");
        job.job = JobId(number);
        job.workdir = format!("work_{number}");
        let mut script = file("run", b"#!/bin/sh\necho ran\n", true);
        script.mode = 0o755;
        job.files = vec![file("in/small", b"small\n", true), file("in/deep/large", &large, false), script];
        house.ask(job);
        house.control.until("its end", |state| state.ended(JobId(number)).is_some()).await;
        house.control.see(|state| {
            assert_eq!(state.log(JobId(number)).text(Stream::Stdout), "small\n300000\n640\nran\n");
            let synced = state.facts.iter().find_map(|fact| match fact.what {
                What::SyncComplete { fetched_blobs, .. } if fact.job == JobId(number) => Some(fetched_blobs),
                _ => None,
            });
            assert_eq!(synced, Some(fetched), "job {number}");
        });
    }
    assert_eq!(house.control.see(|state| state.blobs_served), 1);
}

#[tokio::test]
async fn files_that_cannot_be_placed_keep_the_job_from_starting() {
    let house = House::new().await;
    let mut wrong = file("a", b"right", true);
    wrong.inline = Some(Base64(b"wrong".to_vec()));
    let missing = file("b", b"nobody has this", false);
    let cases = [file("../escaped", b"x", true), file("/tmp/escaped", b"x", true), wrong, missing];
    for (number, bad) in cases.into_iter().enumerate() {
        let id = JobId(number as i64 + 1);
        let mut job = house.job("touch ran");
        (job.job, job.files) = (id, vec![bad.clone()]);
        house.ask(job);
        house.control.until(&bad.path, |state| state.ended(id).is_some()).await;
        house.control.see(|state| {
            let Some(What::Ended { cause, started, message, .. }) = state.ended(id) else { panic!() };
            assert_eq!((*cause, *started), (Some(EndCause::SyncFailed), false), "{}: {message:?}", bad.path);
            assert!(state.log(id).text(Stream::Runner).contains(message.as_deref().unwrap()));
        });
    }
    assert!(!house.dir.join("escaped").exists() && !house.workdir().join("ran").exists());
}

#[tokio::test]
async fn artifacts_are_uploaded_before_the_end_is_told() {
    let house = House::new().await;
    let mut job = house.job(
        "mkdir -p out/deep; echo 1 > out/a; echo 2 > out/deep/b; ln -s /etc/passwd out/leak; : > empty
              : > \"$(printf 'out/\\377')\"; echo said; exit 1",
    );
    job.artifacts = vec!["out/*".to_owned(), "empty".to_owned(), "*.csv".to_owned()];
    house.ask(job);
    let What::Ended { exit_code, message, final_offset, .. } = house.ends().await else { panic!() };
    assert_eq!(exit_code, Some(1));
    assert!(message.unwrap().contains("out/leak: leads out of the workdir"));
    house.control.until("the whole log", |state| state.log(JOB).next == final_offset).await;
    house.control.see(|state| {
        let said = state.log(JOB).text(Stream::Runner);
        let lines: Vec<&str> = said.lines().collect();
        let expected = [
            "artifact not uploaded: out/leak: leads out of the workdir",
            "artifact not uploaded: out/\u{fffd}: the name is not UTF-8",
            "no file matches the artifact glob *.csv",
        ];
        assert_eq!(lines, expected);
        let names: Vec<(&str, &[u8])> = state.artifacts.iter().map(|((_, name), bytes)| (&**name, &**bytes)).collect();
        assert_eq!(names, [("empty", &b""[..]), ("out/a", b"1\n"), ("out/deep/b", b"2\n")]);
    });
}

#[tokio::test]
async fn workdirs_nobody_keeps_are_removed() {
    let house = House::new().await;
    house.ask(house.job("touch here"));
    house.ends().await;
    assert!(house.workdir().join("here").exists());
    std::fs::create_dir(house.dir.join("work_of_others")).unwrap();
    let mut second = house.job("true");
    (second.job, second.workdir) = (JobId(8), "work_2".to_owned());
    house.control.change(|state| {
        state.desired = vec![second];
        state.kept_workdirs = vec!["work_3".to_owned()];
    });
    house.control.until("the second job", |state| state.ended(JobId(8)).is_some()).await;
    while house.workdir().exists() {
        tokio::task::yield_now().await;
    }
    assert!(house.dir.join("work_of_others").exists() && house.dir.join("work_2").exists());
}
