//! Artifacts: bytes that are reserved before they come, uploads that are cut, and what expires.

use crate::bench::{Bench, now, spec};
use crate::machines::Plan;
use engine::artifact::{Announcement, RUN_BYTES};
use model::job::Job;
use model::run::RunStatus;
use model::spec::{Retry, RetryEvent};
use model::time::{DAY, HOUR, MINUTE};
use model::{Failure, Refused, RunId};
use store::artifact::{Artifact, EntryKind};
use store::blob::BlobName;

fn running(bench: &mut Bench) -> (RunId, Job) {
    bench.runners.plan = Some(Plan::Run);
    let run = bench.submit(model::spec::RunSpec { artifacts: vec!["out/**".into()], ..spec() });
    bench.settle();
    (run, bench.job(run))
}

pub fn announce(bench: &Bench, job: &Job, path: &str, size: i64, what: EntryKind) -> Result<Artifact, Failure> {
    let new = Announcement { job: job.id, epoch: job.epoch, path: path.into(), size, what };
    now(bench.engine.announce_artifact(job.instance.unwrap(), new))
}

pub fn upload(bench: &Bench, artifact: &Artifact, bytes: &[u8]) -> Result<(), Failure> {
    let mut upload = bench.engine.blobs.begin().unwrap();
    upload.write(bytes).unwrap();
    now(bench.engine.keep_artifact(artifact, upload))
}

fn listed(bench: &Bench, run: RunId) -> Vec<(String, String)> {
    let found = now(bench.engine.artifacts(bench.org, run, 0, 10)).unwrap();
    found.into_iter().map(|artifact| (artifact.path, artifact.state)).collect()
}

pub const FILE: EntryKind = EntryKind::File { mode: 0o644 };

#[test]
fn bytes_are_reserved_when_they_are_announced() {
    let mut bench = Bench::brief();
    let (_, job) = running(&mut bench);
    let too_large =
        |result: Result<Artifact, Failure>| matches!(result, Err(Failure::Refused(Refused::TooLarge { .. })));
    let first = announce(&bench, &job, "out/a", RUN_BYTES - 10, FILE).unwrap();
    assert!(too_large(announce(&bench, &job, "out/b", 11, FILE)), "the first has not come, and counts");
    announce(&bench, &job, "out/b", 10, FILE).unwrap();
    assert!(too_large(announce(&bench, &job, "out/c", 1, FILE)));
    let again = announce(&bench, &job, "out/a", 4, FILE).unwrap();
    assert_eq!(again.id, first.id, "announced again, it takes its own place");
    announce(&bench, &job, "out/c", 1, FILE).unwrap();
    assert!(upload(&bench, &again, b"longer").is_err(), "what comes is what was announced");
    upload(&bench, &again, b"four").unwrap();
}

#[test]
fn folders_and_links_are_final_at_once_and_links_stay_inside() {
    let mut bench = Bench::brief();
    let (run, job) = running(&mut bench);
    announce(&bench, &job, "out/empty", 0, EntryKind::Folder).unwrap();
    announce(&bench, &job, "out/link", 0, EntryKind::Link { target: "../top".into() }).unwrap();
    for (path, target) in [("out/l", "../../x"), ("l", "../x"), ("l", "/etc/passwd"), ("././l", "../x"), ("./l", "x")] {
        let refused = announce(&bench, &job, path, 0, EntryKind::Link { target: target.into() });
        assert!(matches!(refused, Err(Failure::Refused(Refused::Invalid { .. }))), "{path} -> {target}");
    }
    let states: Vec<(String, String)> = listed(&bench, run);
    assert_eq!(states, [("out/empty".into(), "final".into()), ("out/link".into(), "final".into())]);
    let id = now(bench.engine.artifacts(bench.org, run, 0, 1)).unwrap()[0].id;
    assert!(now(bench.engine.open_artifact(bench.org, run, id)).is_err(), "a folder has no bytes");
}

#[test]
fn a_run_ends_with_every_upload_final_or_failed() {
    let mut bench = Bench::brief();
    let (run, job) = running(&mut bench);
    let whole = announce(&bench, &job, "out/whole", 2, FILE).unwrap();
    upload(&bench, &whole, b"ok").unwrap();
    let cut = announce(&bench, &job, "out/cut", 100, FILE).unwrap();
    bench.exits(run, 0);
    bench.expect_end(run, RunStatus::Completed, None);
    assert_eq!(listed(&bench, run)[1], ("out/cut".into(), "failed".into()));
    let late = upload(&bench, &cut, &[0; 100]).unwrap_err();
    assert!(matches!(late.refused(), Some(Refused::Conflict { .. })), "{late}");
    assert!(now(bench.engine.open_artifact(bench.org, run, cut.id)).is_err());
    let late = announce(&bench, &job, "out/late", 1, FILE).unwrap_err();
    assert!(matches!(late.refused(), Some(Refused::OldEpoch { .. })), "{late}");
    bench.check();
}

/// All attempts of a run share one limit; what an attempt announced and did not send takes nothing of it.
#[test]
fn an_attempt_that_dies_leaves_the_bytes_it_had_reserved() {
    let mut bench = Bench::brief();
    bench.runners.plan = Some(Plan::Run);
    let retry = Retry { max_attempts: 2, on_events: vec![RetryEvent::Error], duration_ms: None, delay_ms: None };
    let run = bench.submit(model::spec::RunSpec { retry: Some(retry), artifacts: vec!["out/**".into()], ..spec() });
    bench.settle();
    let job = bench.job(run);
    let whole = announce(&bench, &job, "out/whole", 2, FILE).unwrap();
    upload(&bench, &whole, b"ok").unwrap();
    announce(&bench, &job, "out/cut", RUN_BYTES - 2, FILE).unwrap();
    bench.exits(run, 1);
    bench.advance(MINUTE);
    let job = bench.job(run);
    assert_eq!(job.attempt, 2);
    announce(&bench, &job, "out/cut", RUN_BYTES - 2, FILE).unwrap();
    assert!(announce(&bench, &job, "out/more", 1, FILE).is_err(), "what got through counts");
    bench.exits(run, 0);
    bench.check();
}

/// From its expiry on no request finds it, but its bytes stay for an hour for downloads under way.
#[test]
fn an_expired_artifact_is_gone_before_its_bytes_are() {
    let mut bench = Bench::brief();
    let (run, job) = running(&mut bench);
    let [leased, other, unread] = ["out/leased", "out/other", "out/unread"].map(|path| {
        let artifact = announce(&bench, &job, path, 2, FILE).unwrap();
        upload(&bench, &artifact, b"ok").unwrap();
        artifact
    });
    bench.exits(run, 0);
    let kept = bench.engine.context.config.timings.artifacts_kept_ms;
    bench.advance(kept - 30 * MINUTE);
    let (_, download) = now(bench.engine.open_artifact(bench.org, run, leased.id)).unwrap();
    assert_eq!(download.read_all().unwrap(), b"ok");
    bench.jump(29 * MINUTE);
    now(bench.engine.open_artifact(bench.org, run, other.id)).unwrap();
    bench.jump(2 * MINUTE);
    for artifact in [&leased, &other, &unread] {
        let gone = now(bench.engine.open_artifact(bench.org, run, artifact.id)).err().unwrap();
        assert!(matches!(gone.refused(), Some(Refused::Gone { .. })), "no sweep is needed for that: {gone}");
    }
    // A minute ago they expired: at the next sweep what no client reads goes, and the rest stays.
    bench.advance(19 * MINUTE);
    let states: Vec<String> = listed(&bench, run).into_iter().map(|(_, state)| state).collect();
    assert_eq!(states, ["final", "final", "deleted"], "a download of the others may still be under way");
    let name = |artifact: &Artifact| BlobName::Artifact { org: bench.org, run, attempt: 1, artifact: artifact.id };
    let has_bytes = [&leased, &other, &unread].map(|artifact| bench.engine.blobs.has(&name(artifact)).unwrap());
    assert_eq!(has_bytes, [true, true, false]);
    bench.advance(2 * HOUR);
    assert!(listed(&bench, run).iter().all(|(_, state)| state == "deleted"));
    bench.advance(DAY);
    bench.check();
}
