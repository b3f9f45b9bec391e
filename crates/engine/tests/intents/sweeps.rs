//! What is deleted by time alone, and what stays: items of ended subjects, files that runs were sent with.

use crate::bench::{Bench, now, settings, shown, spec};
use crate::machines::Plan;
use engine::Config;
use engine::run::{Action, Submission};
use model::run::RunStatus;
use model::spec::{FileRef, RunSpec, StdinRef};
use model::time::{HOUR, MINUTE};
use model::{Refused, RunId};
use store::blob::{BlobHash, BlobName};
use store::{Moment, WorkKind};

const KEPT_MS: i64 = 2 * HOUR;

fn bench() -> Bench {
    let mut config = Config::default();
    config.timings.contents_kept_ms = KEPT_MS;
    Bench::with(settings(2), config)
}

fn send(bench: &mut Bench, bytes: &[u8]) -> String {
    loop {
        let mut upload = bench.engine.blobs.begin().unwrap();
        upload.write(bytes).unwrap();
        let hash = upload.stored().hash.to_string();
        let kept = now(bench.engine.keep_blob(bench.org, &hash, upload));
        if !bench.revive() {
            kept.unwrap();
            return hash;
        }
    }
}

fn with_file(hash: &str) -> RunSpec {
    RunSpec { files: vec![FileRef { path: "data".into(), hash: hash.into(), size: 4, mode: 0o644 }], ..spec() }
}

fn has_bytes(bench: &Bench, hash: &str) -> bool {
    bench.engine.blobs.has(&BlobName::Content { org: bench.org, hash: hash.parse::<BlobHash>().unwrap() }).unwrap()
}

fn is_missing(bench: &Bench, hash: &str) -> bool {
    !now(bench.engine.missing_blobs(bench.org, vec![hash.to_owned()])).unwrap().is_empty()
}

fn failed(bench: &mut Bench, hash: &str) -> RunId {
    bench.runners.plan = Some(Plan::Exit(1));
    let run = bench.submit(with_file(hash));
    bench.settle();
    assert_eq!(bench.run(run).status, RunStatus::Failed);
    run
}

#[test]
fn items_are_deleted_once_their_subject_has_ended() {
    let mut bench = Bench::brief();
    let run = bench.submit(spec());
    bench.settle();
    let job = bench.job(run);
    let subjects = [
        (WorkKind::Run, run.0),
        (WorkKind::Job, job.id.0),
        (WorkKind::Gather, job.id.0),
        (WorkKind::Workflow, job.workflow.0),
        (WorkKind::Instance, job.instance.unwrap().0),
        (WorkKind::Allocation, job.allocation.unwrap().0),
    ];
    let there = |bench: &Bench| {
        let known = |(kind, subject)| now(bench.store.read("test", move |tx| store::work::find(tx, kind, subject)));
        subjects.into_iter().filter(|item| known(*item).unwrap().is_some()).count()
    };
    assert!(there(&bench) > 3);
    bench.check_all_gone();
    bench.advance(24 * HOUR); // some wait for a deadline that nobody needs any more
    assert_eq!(there(&bench), 0);
    bench.check();
    let again = bench.submit(spec());
    bench.settle();
    bench.expect_end(again, RunStatus::Completed, None);
}

#[test]
fn a_file_stays_while_a_run_is_open_and_a_while_after() {
    let mut bench = bench();
    let hash = send(&mut bench, b"data");
    bench.runners.plan = Some(Plan::Run);
    let run = bench.submit(with_file(&hash));
    bench.advance(KEPT_MS + HOUR);
    assert!(has_bytes(&bench, &hash) && !is_missing(&bench, &hash), "an open run needs it");
    bench.exits(run, 0);
    bench.advance(KEPT_MS - 10 * MINUTE);
    assert!(has_bytes(&bench, &hash), "and so might the next");
    bench.advance(20 * MINUTE);
    assert!(!has_bytes(&bench, &hash) && is_missing(&bench, &hash));
    let submission = Submission { org: bench.org, name: None, spec: with_file(&hash), start: true };
    let refused = now(bench.engine.submit(submission, None, shown())).unwrap_err();
    assert!(matches!(refused.refused(), Some(Refused::Invalid { .. })), "{refused:?}");
    send(&mut bench, b"data");
    let again = bench.submit(with_file(&hash));
    bench.settle();
    bench.exits(again, 0);
    bench.expect_end(again, RunStatus::Completed, None);
    bench.check();
}

/// What is piped in is kept as a file is: while its run is open, and for a retry a while after.
#[test]
fn standard_input_stays_as_long_as_its_run_needs_it() {
    let mut bench = bench();
    let stdin = |hash: &str, size| RunSpec { stdin: Some(StdinRef { hash: hash.into(), size }), ..spec() };
    let key = bench.key();
    let refused = bench.submit_with(stdin(&"0".repeat(64), 4), key.clone()).unwrap_err();
    assert!(refused.to_string().contains("never sent"), "{refused}");
    let hash = send(&mut bench, b"data");
    let refused = bench.submit_with(stdin(&hash, 5), key).unwrap_err();
    assert!(refused.to_string().contains("there are 4 bytes"), "{refused}");
    bench.runners.plan = Some(Plan::Run);
    let run = bench.submit(stdin(&hash, 4));
    bench.settle();
    let desired = now(bench.engine.desired(bench.job(run).instance.unwrap())).unwrap().job.unwrap();
    assert_eq!(desired.inline[&hash], b"data", "so little travels with the job");
    bench.advance(KEPT_MS + HOUR);
    assert!(has_bytes(&bench, &hash), "an open run needs it");
    bench.exits(run, 1);
    bench.advance(KEPT_MS - 10 * MINUTE);
    bench.act(run, Action::Retry { force: false }).unwrap();
    bench.settle();
    bench.exits(run, 1);
    bench.advance(KEPT_MS + 30 * MINUTE);
    assert!(!has_bytes(&bench, &hash));
    let refused = bench.act(run, Action::Retry { force: false }).unwrap_err();
    assert!(matches!(refused.refused(), Some(Refused::Gone { .. })), "{refused:?}");
    bench.check();
}

#[test]
fn a_file_that_is_needed_again_is_kept_again() {
    let mut bench = bench();
    let hash = send(&mut bench, b"data");
    for _ in 0..3 {
        failed(&mut bench, &hash);
        bench.advance(KEPT_MS - 10 * MINUTE);
    }
    assert!(has_bytes(&bench, &hash));
    bench.advance(30 * MINUTE);
    assert!(!has_bytes(&bench, &hash));
}

#[test]
fn a_run_whose_files_are_gone_is_not_tried_again() {
    let mut bench = bench();
    let hash = send(&mut bench, b"data");
    let run = failed(&mut bench, &hash);
    bench.advance(KEPT_MS + 30 * MINUTE);
    for _ in 0..2 {
        let refused = bench.act(run, Action::Retry { force: false }).unwrap_err();
        assert!(matches!(refused.refused(), Some(Refused::Gone { .. })), "{refused:?}");
        bench.advance(2 * HOUR); // also when the row is gone too
    }
    send(&mut bench, b"data");
    bench.act(run, Action::Retry { force: false }).unwrap();
    bench.settle();
    assert_eq!(bench.run(run).attempt, 2);
    bench.check();
}

/// Whenever the sweep dies, what it began is ended by the next one, and nobody is told that bytes are here which are not.
#[test]
fn a_sweep_that_dies_is_taken_up_again() {
    for write in 0..6 {
        for moment in [Moment::Before, Moment::After] {
            let mut bench = bench();
            let hashes = [send(&mut bench, b"data"), send(&mut bench, b"more")];
            bench.advance(KEPT_MS - 4 * MINUTE);
            bench.crashes.arm(write, moment);
            for _ in 0..4 {
                bench.advance(5 * MINUTE);
                for hash in &hashes {
                    assert!(has_bytes(&bench, hash) || is_missing(&bench, hash), "write {write} {moment:?}");
                }
            }
            for hash in &hashes {
                assert!(!has_bytes(&bench, hash) && is_missing(&bench, hash), "write {write} {moment:?}");
            }
            send(&mut bench, b"data");
            assert!(!is_missing(&bench, &hashes[0]));
            bench.check();
        }
    }
}
