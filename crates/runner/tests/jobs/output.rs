//! What a job says: every byte of each stream, in order, once.

use crate::host::{JOB, RunnerUnderTest, peak};
use wire::runner::{Command, Secret, Stream, What};

fn exit_code(end: &What) -> Option<i32> {
    match end {
        What::Ended { exit_code, .. } => *exit_code,
        other => panic!("{other:?} is no end"),
    }
}

#[tokio::test]
async fn a_command_says_hello_and_its_exit_code_is_told() {
    let host = RunnerUnderTest::new().await;
    host.ask(host.job("echo hello; echo oops >&2; exit 3"));
    let end = host.ends().await;
    let What::Ended { exit_code, signal, cause, final_offset, started, .. } = end else { panic!() };
    assert_eq!((exit_code, signal, cause, final_offset, started), (Some(3), None, None, 11, true));
    host.control.see(|state| {
        let log = state.log(JOB);
        assert_eq!((log.text(Stream::Stdout), log.text(Stream::Stderr)), ("hello\n".to_owned(), "oops\n".to_owned()));
        let kinds: Vec<&str> = state.facts.iter().map(|fact| kind(&fact.what)).collect();
        assert_eq!(kinds, ["accepted", "sync_complete", "started", "ended"]);
        assert!(state.batches[0] >= 3, "a warm start is told in one batch: {:?}", state.batches);
    });
}

fn kind(what: &What) -> &'static str {
    match what {
        What::Accepted => "accepted",
        What::SyncComplete { .. } => "sync_complete",
        What::SourceFailed { .. } => "source_failed",
        What::Started { .. } => "started",
        What::Initialised { .. } => "initialised",
        What::Froze => "froze",
        What::Thawed => "thawed",
        What::Ended { .. } => "ended",
        What::Closed { .. } => "closed",
        What::Unknown => "unknown",
    }
}

#[tokio::test]
async fn twenty_megabytes_of_anything_arrive_exactly() {
    let host = RunnerUnderTest::new().await;
    let mut job = host.job("head -c 20000000 /dev/urandom | tee kept");
    job.artifacts = vec!["kept".to_owned()];
    host.ask(job);
    host.ends().await;
    host.control.see(|state| {
        let (said, kept) = (state.log(JOB).stream(Stream::Stdout), &state.artifacts[&(JOB, "kept".to_owned())]);
        assert_eq!(said.len(), 20_000_000);
        assert!(said == *kept, "the log is what was written");
    });
    let peak = peak(host.runner_pid());
    assert!(peak < 80 << 20, "the runner's memory is bounded: {} MiB", peak >> 20);
}

#[tokio::test]
async fn a_line_of_a_megabyte_is_one_line() {
    let host = RunnerUnderTest::new().await;
    host.ask(host.job("head -c 1000000 /dev/zero | tr '\\0' x; echo; echo end"));
    host.ends().await;
    let said = host.control.see(|state| state.log(JOB).text(Stream::Stdout));
    assert_eq!(said.lines().map(str::len).collect::<Vec<_>>(), [1_000_000, 3]);
}

const BOTH: &str = "i=0; while [ $i -lt 2000 ]; do echo out $i; echo err $i >&2; i=$((i+1)); done";

#[tokio::test]
async fn each_stream_is_exact() {
    let host = RunnerUnderTest::new().await;
    host.ask(host.job(BOTH));
    host.ends().await;
    let expected = |word: &str| (0..2000).map(|i| format!("{word} {i}\n")).collect::<String>();
    host.control.see(|state| {
        assert_eq!(state.log(JOB).text(Stream::Stdout), expected("out"));
        assert_eq!(state.log(JOB).text(Stream::Stderr), expected("err"));
    });
}

#[tokio::test]
async fn merged_streams_keep_their_order() {
    let host = RunnerUnderTest::new().await;
    let mut job = host.job(BOTH);
    job.merge = true;
    host.ask(job);
    host.ends().await;
    let expected: String = (0..2000).map(|i| format!("out {i}\nerr {i}\n")).collect();
    host.control.see(|state| {
        assert_eq!(state.log(JOB).text(Stream::Stdout), expected);
        assert_eq!(state.log(JOB).text(Stream::Stderr), "");
    });
}

#[tokio::test]
async fn secrets_reach_the_command_and_never_the_log() {
    let host = RunnerUnderTest::new().await;
    let mut job = host.job(
        "mkfifo gate; printf 'begin hunt'; cat gate; printf 'er22-secret end\\n'; \
         test \"$TOKEN\" = hunter22-secret && echo $TOKEN $PIN >&2",
    );
    job.secrets.insert("TOKEN".to_owned(), Secret("hunter22-secret".to_owned()));
    job.secrets.insert("PIN".to_owned(), Secret("1234".to_owned()));
    host.ask(job);
    host.says("begin ").await;
    host.open_gate("gate").await;
    assert_eq!(exit_code(&host.ends().await), Some(0));
    host.control.see(|state| {
        // The gate's own word came in between, so the first two halves never were one secret.
        assert_eq!(state.log(JOB).text(Stream::Stdout), "begin huntgoer22-secret end\n");
        assert_eq!(state.log(JOB).text(Stream::Stderr), "*** 1234\n");
    });
    let journal = std::fs::read(host.dir.join("journal")).unwrap();
    assert!(!String::from_utf8_lossy(&journal).contains("hunter22"), "the journal knows no secret");
}

#[tokio::test]
async fn a_secret_cut_in_two_is_hidden() {
    let host = RunnerUnderTest::new().await;
    let mut job = host.job("mkfifo gate; printf 'begin hunt'; cat gate >/dev/null; printf 'er22-secret end\\n'");
    job.secrets.insert("TOKEN".to_owned(), Secret("hunter22-secret".to_owned()));
    host.ask(job);
    host.says("begin ").await;
    host.open_gate("gate").await;
    host.ends().await;
    assert_eq!(host.control.see(|state| state.log(JOB).text(Stream::Stdout)), "begin *** end\n");
}

#[tokio::test]
async fn a_small_spool_holds_the_job_back_and_loses_nothing() {
    let host = RunnerUnderTest::with(|boot| boot.timings.log_spool_bytes = 256 << 10).await;
    host.ask(host.job("head -c 5000000 /dev/zero"));
    host.ends().await;
    assert_eq!(host.control.see(|state| state.log(JOB).stream(Stream::Stdout).len()), 5_000_000);
}

#[tokio::test]
async fn a_full_spool_without_a_control_plane_is_marked() {
    let host = RunnerUnderTest::with(|boot| boot.timings.log_spool_bytes = 256 << 10).await;
    host.ask(host.job("mkfifo gate; echo ready; cat gate; head -c 5000000 /dev/zero; touch done"));
    host.says("ready").await;
    host.control.change(|state| state.down = true);
    host.open_gate("gate").await;
    host.control.change(|state| state.down = false);
    assert_eq!(exit_code(&host.ends().await), Some(0));
    host.control.see(|state| {
        let log = state.log(JOB);
        let (said, marks) = (log.stream(Stream::Stdout).len(), log.text(Stream::Runner));
        assert!(said == 5_000_008 || marks.contains("bytes of output dropped"), "{said} bytes, marks: {marks}");
    });
}

#[tokio::test]
async fn a_command_that_is_not_there_says_so() {
    let host = RunnerUnderTest::new().await;
    for (argv, code) in [(vec!["no-such-command", "x"], 127), (vec!["./plain"], 126)] {
        let mut job = host.job("");
        job.job = wire::model::JobId(code);
        job.command = Command::Argv(argv.into_iter().map(str::to_owned).collect());
        job.files = crate::files::inline(crate::files::tree(&[("plain", b"text", 0o640)]));
        let id = job.job;
        host.ask(job);
        host.control.until("its end", |state| state.ended(id).is_some()).await;
        host.control.see(|state| {
            assert_eq!(exit_code(state.ended(id).unwrap()), Some(code as i32));
            assert!(!state.log(id).text(Stream::Runner).is_empty());
        });
    }
}
