//! What is deleted by time alone, and what stays: items of ended subjects, files that runs were sent with.

use crate::bench::{Bench, now, settings, shown, spec};
use crate::machines::{Plan, chunk, ended};
use engine::Config;
use engine::content::Small;
use engine::run::{Action, Submission};
use model::job::{Job, JobReason};
use model::log::LogLimits;
use model::run::RunStatus;
use model::spec::{RunSpec, StdinRef};
use model::time::{HOUR, MINUTE, SECOND};
use model::tree::{Entry, Node, Tree, TreeRef};
use model::{JobId, Refused, RunId};
use store::blob::{BlobHash, BlobName};
use store::{Moment, WorkKind};

const KEPT_MS: i64 = 2 * HOUR;

fn bench() -> Bench {
    let mut config = Config::default();
    config.timings.contents_kept_ms = KEPT_MS;
    Bench::with(settings(2), config)
}

/// Sends a file and the folder it is in, as a client does that tries until it is answered; the hash of the file.
pub fn send(bench: &mut Bench, bytes: &[u8]) -> String {
    let hash = BlobHash::of(bytes).to_string();
    let pack = [
        Small { is_tree: false, hash: hash.clone(), bytes: bytes.to_vec() },
        Small { is_tree: true, hash: tree_of(&hash), bytes: document(&hash) },
    ];
    loop {
        let kept = now(bench.engine.keep_pack(bench.org, pack.to_vec()));
        if !bench.revive() {
            kept.unwrap();
            return hash;
        }
    }
}

fn document(hash: &str) -> Vec<u8> {
    let node = Node::File { hash: hash.into(), size: 4, mode: 0o644 };
    Tree::of(vec![Entry { name: "data".into(), node }]).document()
}

fn tree_of(hash: &str) -> String {
    BlobHash::of(&document(hash)).to_string()
}

pub fn with_file(hash: &str) -> RunSpec {
    RunSpec { files: Some(TreeRef { hash: tree_of(hash), files: 1, bytes: 4 }), ..spec() }
}

fn has_bytes(bench: &Bench, hash: &str) -> bool {
    bench.engine.blobs.has(&BlobName::Content { org: bench.org, hash: hash.parse::<BlobHash>().unwrap() }).unwrap()
}

/// Whether a run with this file would have to send anything.
fn is_missing(bench: &Bench, hash: &str) -> bool {
    let trees = now(bench.engine.missing_trees(bench.org, vec![tree_of(hash)])).unwrap();
    let files = now(bench.engine.missing_blobs(bench.org, vec![hash.to_owned()])).unwrap();
    assert!(!trees.is_empty() || files.is_empty(), "a tree that is here has its files");
    !trees.is_empty()
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
    bench.advance(24 * HOUR); // some wait for a deadline that no longer matters
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
    let submission = Submission {
        org: bench.org,
        by: None,
        name: None,
        spec: with_file(&hash),
        plans: Default::default(),
        start: true,
    };
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
    bench.runners.plan = Some(Plan::Pull);
    let run = bench.submit(stdin(&hash, 4));
    bench.settle();
    let desired = now(bench.engine.desired(bench.job(run).instance.unwrap())).unwrap().job.unwrap();
    assert_eq!(desired.inline[&hash], b"data", "so little travels with the job");
    bench.runners.plan = Some(Plan::Run);
    bench.settle();
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

/// Whenever the sweep dies, what it began is ended by the next one, and no client is told that bytes are present which are not.
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

const HOT_MS: i64 = HOUR;
const LOG_KEPT_MS: i64 = 4 * HOUR;

fn with_logs() -> Bench {
    let logs = LogLimits { hot_ms: HOT_MS, keep_ms: LOG_KEPT_MS };
    let config = Config { logs, ..Config::default() };
    let mut bench = Bench::with(settings(2), config);
    bench.runners.plan = Some(Plan::Run);
    bench
}

/// A running job that has written this much.
fn writing(bench: &mut Bench, text: &str) -> (RunId, Job) {
    let run = bench.submit(spec());
    bench.settle();
    let job = write_as(bench, run, text);
    (run, job)
}

fn write_as(bench: &mut Bench, run: RunId, text: &str) -> Job {
    let job = bench.job(run);
    let said = chunk(&job, 0, text);
    bench.report(job.instance.unwrap(), Vec::new(), vec![said]).expect("nobody dies here").unwrap();
    job
}

/// The command ends after what it has written.
fn finishes(bench: &mut Bench, run: RunId, code: i32, text: &str) {
    let reason = if code == 0 { JobReason::DoneByRunner } else { JobReason::ExitedWithError };
    bench.say(run, ended(reason, Some(code), text.len() as i64, SECOND));
    bench.settle();
}

/// What a reader gets of a job's log.
fn log_of(bench: &Bench, job: JobId) -> String {
    let page = now(bench.engine.logs.read(job, 0, 1 << 20)).unwrap();
    String::from_utf8(page.frames.into_iter().flat_map(|placed| placed.frame.data).collect()).unwrap()
}

fn has_file(bench: &Bench, job: JobId) -> bool {
    bench.engine.blobs.has(&BlobName::Log { org: bench.org, log: job.into() }).unwrap()
}

/// Whether its rows are still there: a gathered log without them is read from its file.
fn has_rows(bench: &Bench, job: JobId) -> bool {
    let (old, _) = now(bench.engine.logs.old(i64::MIN / 2, i64::MAX / 2, 100)).unwrap();
    old.iter().any(|log| log.log == job.into())
}

fn refused_log(bench: &Bench, run: RunId) -> Option<String> {
    let (run, jobs) = now(bench.engine.jobs(bench.org, run)).unwrap();
    let jobs = jobs.iter().map(|job| job.id).collect();
    now(bench.engine.log_is_kept(&run, jobs)).err().map(|failure| failure.refused().unwrap().to_string())
}

#[test]
fn a_log_is_hot_then_a_file_then_gone_from_the_end_of_its_run() {
    let mut bench = with_logs();
    let (run, job) = writing(&mut bench, "hello");
    bench.advance(LOG_KEPT_MS + HOUR);
    assert_eq!(log_of(&bench, job.id), "hello", "an open run keeps its log");
    finishes(&mut bench, run, 1, "hello");
    bench.advance(HOT_MS - 10 * MINUTE);
    assert!(has_rows(&bench, job.id) && has_file(&bench, job.id));
    bench.advance(20 * MINUTE);
    assert!(!has_rows(&bench, job.id) && has_file(&bench, job.id));
    assert_eq!((log_of(&bench, job.id), refused_log(&bench, run)), ("hello".to_owned(), None));
    bench.advance(LOG_KEPT_MS - HOT_MS - 20 * MINUTE);
    assert_eq!(log_of(&bench, job.id), "hello");
    bench.advance(20 * MINUTE);
    assert!(!has_file(&bench, job.id));
    assert!(log_of(&bench, job.id).contains("was deleted"), "{}", log_of(&bench, job.id));
    let why = refused_log(&bench, run).expect("nothing is left to read");
    assert!(why.starts_with("the log is gone: logs are kept for 4h after the end of their run"), "{why}");
    let (_, why) = now(bench.engine.why(bench.org, run)).unwrap();
    assert!(why.facts.iter().any(|fact| fact.contains("its log is no longer kept")), "{why:?}");
    assert!(!why.next.iter().any(|next| next.contains("repl logs")), "{why:?}");
    bench.expect_end(run, RunStatus::Failed, Some("exited_with_error"));
    bench.check();
}

/// What was written before a retry belongs to the same run: it goes with the rest.
#[test]
fn a_run_that_is_tried_again_keeps_all_its_logs() {
    let mut bench = with_logs();
    let (run, first) = writing(&mut bench, "first");
    finishes(&mut bench, run, 1, "first");
    bench.advance(LOG_KEPT_MS - 30 * MINUTE);
    bench.act(run, Action::Retry { force: false }).unwrap();
    bench.settle();
    let second = write_as(&mut bench, run, "second");
    bench.advance(HOUR);
    assert_eq!((log_of(&bench, first.id), refused_log(&bench, run)), ("first".to_owned(), None));
    finishes(&mut bench, run, 0, "second");
    bench.advance(LOG_KEPT_MS - 10 * MINUTE);
    assert_eq!((log_of(&bench, first.id), log_of(&bench, second.id)), ("first".to_owned(), "second".to_owned()));
    bench.advance(20 * MINUTE);
    assert!(!has_file(&bench, first.id) && !has_file(&bench, second.id));
    assert!(refused_log(&bench, run).is_some());
    bench.check();
}

#[test]
fn the_log_of_a_deleted_run_goes_too() {
    let mut bench = with_logs();
    let (run, job) = writing(&mut bench, "hello");
    finishes(&mut bench, run, 0, "hello");
    now(bench.engine.delete(bench.org, run)).unwrap();
    bench.advance(LOG_KEPT_MS - 10 * MINUTE);
    assert!(has_file(&bench, job.id));
    bench.advance(20 * MINUTE);
    assert!(!has_file(&bench, job.id));
    bench.check();
}

/// However often it dies on the way, a reader finds the whole log or the mark, and in the end no bytes are left.
#[test]
fn a_deletion_that_dies_is_taken_up_again() {
    for write in 0..8 {
        for moment in [Moment::Before, Moment::After] {
            let mut bench = with_logs();
            let (run, job) = writing(&mut bench, "hello");
            finishes(&mut bench, run, 0, "hello");
            for before in [HOT_MS, LOG_KEPT_MS - HOT_MS] {
                bench.advance(before - 4 * MINUTE);
                bench.crashes.arm(write, moment);
                for _ in 0..3 {
                    bench.advance(3 * MINUTE);
                    let told = log_of(&bench, job.id);
                    assert!(told == "hello" || told.contains("was deleted"), "write {write} {moment:?}: {told}");
                }
            }
            assert!(!has_file(&bench, job.id) && !has_rows(&bench, job.id), "write {write} {moment:?}");
            assert!(refused_log(&bench, run).is_some());
            bench.check();
        }
    }
}

/// A sweep reads what is old and nothing else: logs that wait for their time are not looked at again and again.
#[test]
fn a_log_is_looked_at_a_few_times_in_its_life() {
    let mut bench = with_logs();
    for _ in 0..5 {
        let (run, _) = writing(&mut bench, "hello");
        finishes(&mut bench, run, 0, "hello");
    }
    bench.advance(10 * MINUTE);
    bench.crashes.count();
    bench.advance(LOG_KEPT_MS + HOUR);
    let writes = bench.crashes.writes.lock().unwrap();
    let count = |name: &str| writes.iter().filter(|write| **write == name).count();
    assert_eq!((count("log.sweep"), count("log.mark_deleted"), count("log.delete")), (5, 5, 5));
    assert!(count("log.keep_from") <= 5, "{}", count("log.keep_from"));
}
