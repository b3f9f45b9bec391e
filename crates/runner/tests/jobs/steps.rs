//! A job with several steps: one after the other and side by side in one workdir, each with its own keeper, log and end.

use crate::files::{inline, tree};
use crate::host::{JOB, RunnerUnderTest, peak, step};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use wire::model::StepId;
use wire::model::step::StepTry;
use wire::runner::{
    DesiredState, DesiredStep, EndCause, Limits, OnLostControl, Output, Secret, Stdin, Stream, SyncTree, What,
};

const ONE: StepTry = StepTry { id: StepId(1), number: 1 };
const TWO: StepTry = StepTry { id: StepId(2), number: 1 };

impl RunnerUnderTest {
    /// The control plane begins these steps, and has seen the others end.
    fn list(&self, steps: Vec<DesiredStep>) {
        self.control.change(|state| state.desired[0].steps = steps);
    }

    async fn step_ends(&self, step: StepTry) -> (Option<i32>, Option<EndCause>) {
        self.control.until("the step ends", |state| state.ended_step(step).is_some()).await;
        match self.control.see(|state| state.ended_step(step).cloned()) {
            Some(What::Ended { exit_code, cause, .. }) => (exit_code, cause),
            other => panic!("{other:?}"),
        }
    }

    async fn step_says(&self, step: StepTry, text: &str) {
        let says = |log: String| log.contains(text);
        self.control.until(text, |state| says(state.log_of(JOB, step).text(Stream::Stdout))).await;
    }

    fn said(&self, step: StepTry) -> String {
        self.control.see(|state| state.log_of(JOB, step).text(Stream::Stdout))
    }

    async fn is_forgotten(&self, step: StepTry) {
        while self.folder(JOB, step).exists() {
            tokio::task::yield_now().await;
        }
    }
}

#[tokio::test]
async fn two_steps_one_after_the_other_share_a_workdir() {
    let host = RunnerUnderTest::new().await;
    let mut job = host.open_job(vec![step(ONE, "cat sent; rm sent; echo made > made; pwd; exit 3")]);
    job.files = inline(tree(&[("sent", b"sent once\n", 0o644)]));
    host.ask(job);
    assert_eq!(host.step_ends(ONE).await, (Some(3), None));
    // The control plane has heard that the files are in place, and names them no more.
    host.control.change(|state| state.desired[0].files = None);
    host.list(vec![step(TWO, "cat made; ls; pwd")]);
    assert_eq!(host.step_ends(TWO).await, (Some(0), None));
    let workdir = host.workdir();
    assert_eq!(host.said(ONE), format!("sent once\n{}\n", workdir.display()));
    assert_eq!(host.said(TWO), format!("made\nmade\n{}\n", workdir.display()), "files are brought once");
    host.is_forgotten(ONE).await;
    host.control.see(|state| {
        let of_job = |wanted: fn(&What) -> bool| state.facts.iter().filter(|fact| wanted(&fact.what)).count();
        assert_eq!(of_job(|what| matches!(what, What::SyncComplete { .. })), 1);
        assert!(
            state
                .facts
                .iter()
                .all(|fact| fact.step.is_some() == matches!(fact.what, What::Started { .. } | What::Ended { .. }))
        );
    });
}

/// The database was restored from an older copy, or lost and what runs imported: it lists a step whose end another database was told.
#[tokio::test]
async fn a_step_that_is_still_listed_at_a_fresh_registration_is_told_again() {
    let host = RunnerUnderTest::new().await;
    host.ask(host.open_job(vec![step(ONE, "echo ran >> ../ran; echo out; exit 3")]));
    assert_eq!(host.step_ends(ONE).await, (Some(3), None));
    // The next report is sent when the answer to the one before has arrived: the first end is acknowledged.
    host.list(vec![step(ONE, ""), step(TWO, "true")]);
    assert_eq!(host.step_ends(TWO).await, (Some(0), None));
    host.control.change(|state| {
        state.facts.clear();
        state.logs.clear();
        state.forgotten = state.session;
    });
    assert_eq!(host.step_ends(ONE).await, (Some(3), None), "what is listed is not known to have ended");
    assert_eq!(host.said(ONE), "out\n");
    assert_eq!(std::fs::read_to_string(host.dir.join("ran")).unwrap(), "ran\n", "it is told again, not run again");
    assert_eq!(host.control.see(|state| state.registers.len()), 2, "by the same runner");
}

#[tokio::test]
async fn two_steps_run_side_by_side() {
    let host = RunnerUnderTest::new().await;
    host.ask(host.open_job(vec![step(ONE, "mkfifo a b; echo ready; cat a; echo hi > b; echo met")]));
    host.step_says(ONE, "ready").await;
    host.list(vec![step(ONE, ""), step(TWO, "echo hi > a; cat b; echo met")]);
    assert_eq!((host.step_ends(ONE).await, host.step_ends(TWO).await), ((Some(0), None), (Some(0), None)));
    assert_eq!((host.said(ONE), host.said(TWO)), ("ready\nhi\nmet\n".to_owned(), "hi\nmet\n".to_owned()));
}

#[tokio::test]
async fn what_a_step_leaves_running_is_ended_with_it_and_nothing_else_is() {
    let host = RunnerUnderTest::new().await;
    host.ask(host.open_job(vec![
        step(ONE, "setsid sh -c 'exec sleep 5017' >/dev/null 2>&1 & echo left"),
        step(TWO, "mkfifo gate; echo ready; cat gate; sleep 5018"),
    ]));
    host.step_says(TWO, "ready").await;
    assert_eq!(host.step_ends(ONE).await, (Some(0), None));
    assert_eq!(host.named("5017"), [] as [i32; 0], "the daemon is gone when the end is told");
    host.open_gate("gate").await;
    host.step_says(TWO, "go").await;
    assert!(host.control.see(|state| state.ended_step(TWO).is_none()));
    host.control.change(|state| state.desired.clear());
    host.is_forgotten(TWO).await;
    assert_eq!(host.living(), [] as [i32; 0]);
}

#[tokio::test]
async fn a_killed_keeper_ends_its_own_step_only() {
    for way in ["", "pidns", "sweep"] {
        let mut host = RunnerUnderTest::unstarted(|_| {});
        host.containment = way;
        host.start();
        host.ask(host.open_job(vec![
            step(ONE, "setsid sleep 5019 & echo ready; sleep 5019"),
            step(TWO, "mkfifo gate; echo ready; cat gate; exit 4"),
        ]));
        host.step_says(ONE, "ready").await;
        host.step_says(TWO, "ready").await;
        kill(Pid::from_raw(host.keeper_of(ONE)), Signal::SIGKILL).unwrap();
        assert_eq!(host.step_ends(ONE).await, (None, Some(EndCause::KeeperDied)), "{way}");
        assert_eq!(host.named("5019"), [] as [i32; 0], "{way}");
        host.open_gate("gate").await;
        assert_eq!(host.step_ends(TWO).await, (Some(4), None), "{way}: the other goes on to its end");
    }
}

#[tokio::test]
async fn a_runner_killed_between_two_steps_keeps_the_job() {
    let mut host = RunnerUnderTest::new().await;
    host.ask(host.open_job(vec![step(ONE, "echo one > made")]));
    assert_eq!(host.step_ends(ONE).await, (Some(0), None));
    host.list(Vec::new());
    host.is_forgotten(ONE).await;
    host.kill_runner().await;
    host.list(vec![step(TWO, "cat made; echo two >> ran")]);
    host.start();
    assert_eq!(host.step_ends(TWO).await, (Some(0), None));
    assert_eq!(host.said(TWO), "one\n");
    host.kill_runner().await;
    host.start();
    host.control.until("the new runner", |state| state.session == 3).await;
    host.list(vec![step(TWO, "cat made; echo two >> ran"), step(StepTry { number: 2, ..TWO }, "cat ran")]);
    let again = StepTry { number: 2, ..TWO };
    assert_eq!(host.step_ends(again).await, (Some(0), None));
    assert_eq!(host.said(again), "two\n", "a try that ended is never started again");
}

#[tokio::test]
async fn a_runner_killed_while_two_steps_run_finds_both() {
    let mut host = RunnerUnderTest::new().await;
    host.ask(host.open_job(vec![
        step(ONE, "mkfifo a; echo ready; cat a; exit 1"),
        step(TWO, "mkfifo b; echo ready; cat b; exit 2"),
    ]));
    host.step_says(ONE, "ready").await;
    host.step_says(TWO, "ready").await;
    host.kill_runner().await;
    host.open_gate("a").await;
    host.start();
    assert_eq!(host.step_ends(ONE).await, (Some(1), None));
    host.open_gate("b").await;
    assert_eq!(host.step_ends(TWO).await, (Some(2), None));
    assert_eq!((host.said(ONE), host.said(TWO)), ("ready\ngo".to_owned(), "ready\ngo".to_owned()));
}

#[tokio::test]
async fn steps_share_the_limits_of_their_job() {
    if runner::limits("memory").is_none() {
        return crate::host::skip("limits", "memory cannot be limited on this host");
    }
    let mut host = RunnerUnderTest::unstarted(|_| {});
    host.limits = Limits { cpu_milli: None, memory_bytes: Some(64 << 20) };
    host.start();
    // Each alone stays below the limit; both together do not.
    let holds = r#"mkfifo NAME; exec perl -e '$| = 1; vec($held, (40 << 20) - 1, 8) = 1; print "holds\n"; open(F, "<", "NAME"); <F>'"#;
    host.ask(host.open_job(vec![step(ONE, &holds.replace("NAME", "one"))]));
    host.step_says(ONE, "holds").await;
    host.list(vec![step(ONE, ""), step(TWO, &holds.replace("NAME", "two"))]);
    // Whichever the kernel takes, exactly one of them is said to have been ended for want of memory.
    let (first, second) = (|| async { host.step_ends(ONE).await }, || async { host.step_ends(TWO).await });
    let (victim, other, gate) = tokio::select! {
        end = first() => (end, TWO, "two"),
        end = second() => (end, ONE, "one"),
    };
    assert_eq!(victim.1, Some(EndCause::OutOfMemory));
    host.step_says(other, "holds").await;
    host.open_gate(gate).await;
    assert_eq!(host.step_ends(other).await, (Some(0), None));
}

#[tokio::test]
async fn a_job_stays_until_it_is_closed() {
    let host = RunnerUnderTest::new().await;
    host.ask(host.open_job(vec![step(ONE, "echo one > made")]));
    host.step_ends(ONE).await;
    host.list(Vec::new());
    host.is_forgotten(ONE).await;
    let closed = |what: &What| matches!(what, What::Closed { .. });
    assert!(host.control.see(|state| !state.facts.iter().any(|fact| closed(&fact.what))));
    assert!(host.workdir().join("made").exists());
    host.control.change(|state| state.desired[0].closed = true);
    host.control.until("it is closed", |state| state.facts.iter().any(|fact| closed(&fact.what))).await;
    host.control.change(|state| state.desired.clear());
    while host.workdir().exists() {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_stopped_job_without_steps_says_that_nothing_is_left() {
    let host = RunnerUnderTest::new().await;
    host.ask(host.open_job(Vec::new()));
    host.control
        .until("it is synced", |state| state.facts.iter().any(|fact| matches!(fact.what, What::SyncComplete { .. })))
        .await;
    host.want(DesiredState::Stopped);
    host.control
        .until("it is gone", |state| state.facts.iter().any(|fact| matches!(fact.what, What::Closed { .. })))
        .await;
}

#[tokio::test]
async fn a_pause_is_confirmed_when_every_step_stands_still() {
    let host = RunnerUnderTest::new().await;
    host.ask(host.open_job(vec![step(ONE, "mkfifo a; echo ready; cat a"), step(TWO, "mkfifo b; echo ready; cat b")]));
    host.step_says(ONE, "ready").await;
    host.step_says(TWO, "ready").await;
    host.control.change(|state| (state.desired[0].state, state.desired[0].answer) = (DesiredState::Frozen, true));
    let said = |state: &crate::control::State, what: fn(&What) -> bool| {
        state.facts.iter().filter(|fact| what(&fact.what)).count()
    };
    host.control.until("it stands still", |state| said(state, |what| matches!(what, What::Froze)) == 1).await;
    host.control.change(|state| (state.desired[0].state, state.desired[0].answer) = (DesiredState::Running, true));
    host.control.until("it goes on", |state| said(state, |what| matches!(what, What::Thawed)) == 1).await;
    host.open_gate("a").await;
    host.open_gate("b").await;
    assert_eq!((host.step_ends(ONE).await.0, host.step_ends(TWO).await.0), (Some(0), Some(0)));
}

#[tokio::test]
async fn one_step_is_stopped_beside_another() {
    let host = RunnerUnderTest::new().await;
    host.ask(host.open_job(vec![
        step(ONE, "trap 'exit 7' TERM; echo ready; sleep 1000 & wait"),
        step(TWO, "mkfifo gate; echo ready; cat gate"),
    ]));
    host.step_says(ONE, "ready").await;
    host.step_says(TWO, "ready").await;
    host.control.change(|state| state.desired[0].steps[0].state = DesiredState::Stopped);
    assert_eq!(host.step_ends(ONE).await, (Some(7), Some(EndCause::Stopped)));
    host.open_gate("gate").await;
    assert_eq!(host.step_ends(TWO).await, (Some(0), None));
}

#[tokio::test]
async fn an_older_try_is_ended_before_the_next_begins() {
    let host = RunnerUnderTest::new().await;
    host.ask(host.open_job(vec![
        step(ONE, "echo $$ > pid; echo ready; sleep 1000"),
        step(TWO, "mkfifo gate; echo ready; cat gate"),
    ]));
    host.step_says(ONE, "ready").await;
    host.step_says(TWO, "ready").await;
    let next = StepTry { number: 2, ..ONE };
    host.list(vec![step(next, "kill -0 $(cat pid) 2>/dev/null && echo both; echo alone"), step(TWO, "")]);
    assert_eq!(host.step_ends(next).await, (Some(0), None));
    assert_eq!(host.said(next), "alone\n");
    host.open_gate("gate").await;
    assert_eq!(host.step_ends(TWO).await, (Some(0), None));
}

#[tokio::test]
async fn a_try_that_the_control_plane_refuses_is_ended_alone() {
    let host = RunnerUnderTest::new().await;
    host.control.change(|state| state.refuse_tries.insert(ONE));
    host.ask(host.open_job(vec![step(ONE, "sleep 5020"), step(TWO, "mkfifo gate; echo ready; cat gate; exit 6")]));
    host.step_says(TWO, "ready").await;
    host.control.until("it is refused", |state| state.facts.iter().any(|fact| fact.step == Some(ONE))).await;
    while !host.named("5020").is_empty() {
        tokio::task::yield_now().await;
    }
    host.open_gate("gate").await;
    assert_eq!(host.step_ends(TWO).await, (Some(6), None));
    assert!(host.control.see(|state| state.ended_step(ONE).is_none()), "nothing more is told of it");
}

#[tokio::test]
async fn a_job_that_stops_without_its_control_plane_stops_every_step() {
    let host = RunnerUnderTest::with(|boot| {
        (boot.timings.degraded_after_ms, boot.timings.panic_after_ms) = (100, 300);
    })
    .await;
    let mut job = host.open_job(vec![step(ONE, "echo ready; sleep 1000"), step(TWO, "echo ready; sleep 1000")]);
    job.on_lost_control = OnLostControl::Stop;
    host.ask(job);
    host.step_says(ONE, "ready").await;
    host.step_says(TWO, "ready").await;
    host.control.change(|state| state.down = true);
    while !host.living().is_empty() {
        tokio::task::yield_now().await;
    }
}

fn output(host: &RunnerUnderTest, step: StepTry) -> (Option<Output>, Option<EndCause>, Option<String>) {
    match host.control.see(|state| state.ended_step(step).cloned()) {
        Some(What::Ended { output, cause, message, .. }) => (output, cause, message),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn json_left_in_the_output_file_is_told_with_the_end() {
    let mut host = RunnerUnderTest::new().await;
    let failing = StepTry { id: StepId(3), number: 1 };
    host.ask(host.open_job(vec![
        step(ONE, r#"mkfifo gate; echo ready; cat gate; echo '{"n": 1.50}' > "$REPL_OUTPUT""#),
        step(TWO, r#"printf '{"n": ' > "$REPL_OUTPUT""#),
        step(failing, r#"echo nonsense > "$REPL_OUTPUT"; exit 5"#),
    ]));
    host.step_says(ONE, "ready").await;
    // Also where the runner that hears of the end is not the one that began it.
    host.kill_runner().await;
    host.open_gate("gate").await;
    host.start();
    assert_eq!(host.step_ends(ONE).await, (Some(0), None));
    assert_eq!(output(&host, ONE).0, Some(Output::Json("{\"n\": 1.50}\n".to_owned())), "as it was written");
    assert_eq!(host.step_ends(TWO).await, (Some(0), Some(EndCause::InvalidOutput)));
    let (none, _, message) = output(&host, TWO);
    assert!(none.is_none() && message.unwrap().contains("$REPL_OUTPUT cannot be used: it is not JSON"));
    assert_eq!(host.step_ends(failing).await, (Some(5), None), "its exit code says more");
}

#[tokio::test]
async fn a_large_output_travels_as_an_artifact_and_a_larger_one_not_at_all() {
    let host = RunnerUnderTest::new().await;
    let of = |bytes: usize| {
        format!(r#"{{ echo '"'; head -c {bytes} /dev/zero | tr '\0' x; echo '"'; }} | tr -d '\n' > "$REPL_OUTPUT""#)
    };
    host.ask(host.open_job(vec![step(ONE, &of(100_000)), step(TWO, &of(9_000_000))]));
    assert_eq!(host.step_ends(ONE).await, (Some(0), None));
    let path = ".repl/output/stp_1.1.json".to_owned();
    assert_eq!(output(&host, ONE).0, Some(Output::Artifact { path: path.clone(), size: 100_002 }));
    assert_eq!(host.control.see(|state| state.artifacts[&(JOB, path)].len()), 100_002);
    assert_eq!(host.step_ends(TWO).await, (Some(0), Some(EndCause::InvalidOutput)));
    assert!(output(&host, TWO).2.unwrap().ends_with("it is larger than 8 MiB"));
}

#[tokio::test]
async fn the_end_of_the_standard_output_is_told_where_it_is_asked_for() {
    let host = RunnerUnderTest::new().await;
    let mut asked = step(ONE, "seq 1 2000; echo to-stderr >&2; echo my hunter22-secret");
    asked.tail = true;
    asked.secrets.insert("PASSWORD".to_owned(), Secret("hunter22-secret".to_owned()));
    host.ask(host.open_job(vec![asked, step(TWO, "echo not asked")]));
    host.step_ends(ONE).await;
    host.step_ends(TWO).await;
    let tail = |step| match host.control.see(|state| state.ended_step(step).cloned()) {
        Some(What::Ended { stdout_tail, .. }) => stdout_tail.map(|tail| String::from_utf8(tail.0).unwrap()),
        other => panic!("{other:?}"),
    };
    let told = tail(ONE).unwrap();
    assert_eq!(told.len(), 4096);
    assert!(told.contains("1999\n2000\nmy ") && !told.contains("hunter22") && !told.contains("stderr"), "{told}");
    assert_eq!(tail(TWO), None);
}

#[tokio::test]
async fn what_a_step_keeps_is_laid_into_another_workdir() {
    let host = RunnerUnderTest::new().await;
    let mut first =
        step(ONE, "mkdir -p out/deep; echo a > out/a; echo b > out/deep/b; chmod 750 out/a; ln -s a out/l; echo x > x");
    first.keep = vec!["out".to_owned()];
    let mut failing = step(TWO, "exit 1");
    failing.keep = vec!["out".to_owned()];
    host.ask(host.open_job(vec![first, failing]));
    assert_eq!(host.step_ends(ONE).await, (Some(0), None));
    host.step_ends(TWO).await;
    let kept = |step| match host.control.see(|state| state.ended_step(step).cloned()) {
        Some(What::Ended { kept, .. }) => kept,
        other => panic!("{other:?}"),
    };
    assert_eq!(kept(TWO), None, "only what ended well keeps anything");
    let tree = kept(ONE).unwrap();
    assert_eq!((tree.files, tree.bytes), (2, 4));
    // Another job has another workdir.
    host.control.change(|state| state.desired.clear());
    while host.workdir().exists() {
        tokio::task::yield_now().await;
    }
    let mut second = step(StepTry { id: StepId(5), number: 1 }, "cat out/a out/deep/b out/l; stat -c %a out/a; ls");
    second.restore = vec![SyncTree { hash: tree.hash, inline: Default::default(), plain_modes: false }];
    let mut job = host.open_job(vec![second]);
    (job.job, job.workdir) = (wire::model::JobId(8), "work_2".to_owned());
    host.ask(job);
    let five = StepTry { id: StepId(5), number: 1 };
    assert_eq!(host.step_ends(five).await, (Some(0), None));
    let said = host.control.see(|state| state.log_of(wire::model::JobId(8), five).text(Stream::Stdout));
    assert_eq!(said, "a\nb\na\n750\nout\n");
}

#[tokio::test]
async fn the_standard_output_of_an_exec_is_its_answer_and_not_its_log() {
    let host = RunnerUnderTest::new().await;
    let mut small = step(ONE, r#"cat; echo 'my log' >&2"#);
    small.answers = true;
    let bytes = br#"{"a": 1}"#.to_vec();
    let hash = blake3::hash(&bytes).to_hex().to_string();
    small.stdin = Some(Stdin { hash, size: 8, inline: Some(wire::Base64(bytes)) });
    let mut none = step(TWO, "echo no JSON");
    none.answers = true;
    host.ask(host.open_job(vec![small, none]));
    assert_eq!(host.step_ends(ONE).await, (Some(0), None));
    assert_eq!(output(&host, ONE).0, Some(Output::Json(r#"{"a": 1}"#.to_owned())));
    assert_eq!(host.said(ONE), "", "its log has its standard error only");
    assert_eq!(host.step_ends(TWO).await, (Some(0), Some(EndCause::InvalidOutput)));
    let why = output(&host, TWO).2.unwrap();
    assert!(why.starts_with("what it wrote to its standard output cannot be used: it is not JSON"), "{why}");
}

/// It is refused, and neither keeper nor runner keeps it in memory or on the disk.
#[tokio::test]
async fn an_answer_of_a_gigabyte_is_refused() {
    const BYTES: u64 = 1_000_000_000;
    let host = RunnerUnderTest::new().await;
    let command = format!("mkfifo go; head -c {BYTES} /dev/zero | tr '\\0' x; echo written >&2; read x < go");
    let mut large = step(ONE, &command);
    large.answers = true;
    host.ask(host.open_job(vec![large]));
    let written = |log: String| log.contains("written");
    host.control.until("it is written", |state| written(state.log_of(JOB, ONE).text(Stream::Stderr))).await;
    for (who, pid) in [("keeper", host.keeper_of(ONE)), ("runner", host.runner_pid())] {
        let peak = peak(pid);
        assert!(peak < 64 << 20, "the {who} took {} MiB", peak >> 20);
    }
    let kept = host.folder(JOB, ONE).join("io/output").metadata().unwrap().len();
    assert!(kept < 9 << 20, "{kept} bytes of it are on the disk");
    std::fs::write(host.workdir().join("go"), "\n").unwrap();
    assert_eq!(host.step_ends(ONE).await, (Some(0), Some(EndCause::InvalidOutput)));
    assert!(output(&host, ONE).2.unwrap().ends_with("it is larger than 8 MiB"));
}
