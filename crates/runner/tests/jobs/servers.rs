//! MCP servers of a job: one per name, held from the first step that names it until the job ends, whatever happens to the runner. The
//! server is a stand-in (`tests/bin/repl-runner.rs`); what real ones do is tested where they are held.

use crate::host::{RunnerUnderTest, step};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::collections::BTreeMap;
use wire::model::StepId;
use wire::model::step::StepTry;
use wire::runner::{Command, DesiredServer, DesiredState, DesiredStep, EndCause, Output, Secret, What};

fn call(number: i64, server: &str) -> DesiredStep {
    let step = step(StepTry { id: StepId(number), number: 1 }, "");
    DesiredStep {
        command: Command::Argv(vec!["repl".into(), "mcp-call".into()]),
        server: Some(DesiredServer { name: format!("name of {server}"), argv: vec![server.to_owned(), "word".into()] }),
        env: BTreeMap::from([("COLOUR".to_owned(), "green".to_owned())]),
        answers: true,
        steps_token: Some(Secret("step-token".into())),
        ..step
    }
}

impl RunnerUnderTest {
    /// The control plane begins this call, and has seen those before it end.
    async fn calls(&self, number: i64, server: &str) -> Value {
        self.control.change(|state| state.desired[0].steps = vec![call(number, server)]);
        self.answer(number).await
    }

    async fn answer(&self, number: i64) -> Value {
        let step = StepTry { id: StepId(number), number: 1 };
        self.control.until("the call ends", |state| state.ended_step(step).is_some()).await;
        match self.control.see(|state| state.ended_step(step).cloned()) {
            Some(What::Ended { output: Some(Output::Json(text)), .. }) => serde_json::from_str(&text).unwrap(),
            other => panic!("{other:?}"),
        }
    }

    fn pid_of(&self, answer: &Value) -> i32 {
        answer["pid"].as_i64().unwrap() as i32
    }
}

fn lives(pid: i32) -> bool {
    kill(Pid::from_raw(pid), None).is_ok()
}

#[tokio::test]
async fn a_server_is_kept_from_call_to_call_and_ends_with_its_job() {
    let host = RunnerUnderTest::new().await;
    host.ask(host.open_job(vec![call(1, "a")]));
    let first = host.answer(1).await;
    assert_eq!((&first["server"], &first["answered"], &first["colour"]), (&"a".into(), &0.into(), &"green".into()));
    assert_eq!(first["token"], "", "a server does no durable steps");
    let second = host.calls(2, "a").await;
    assert_eq!((&second["pid"], &second["answered"]), (&first["pid"], &1.into()));
    let other = host.calls(3, "b").await;
    assert_ne!(other["pid"], first["pid"], "another name, another server");
    host.control.change(|state| state.desired[0].steps.clear());
    host.want(DesiredState::Stopped);
    host.control
        .until("the job is closed", |state| state.facts.iter().any(|fact| matches!(fact.what, What::Closed { .. })))
        .await;
    assert_eq!(host.living(), [] as [i32; 0], "nothing of it is left when that is told");
    let told = host.control.see(|state| state.facts.iter().filter_map(|fact| fact.step).map(|step| step.number).min());
    assert_eq!(told, Some(1), "the control plane hears of steps only");
}

#[tokio::test]
async fn a_server_outlives_its_runner() {
    let mut host = RunnerUnderTest::new().await;
    host.ask(host.open_job(vec![call(1, "a")]));
    let first = host.answer(1).await;
    host.kill_runner().await;
    host.start();
    host.control.until("the new runner", |state| state.session == 2).await;
    let second = host.calls(2, "a").await;
    assert_eq!((&second["pid"], &second["answered"]), (&first["pid"], &1.into()));
    // The job is gone from the document: what the runner before it had started is ended, too.
    host.control.change(|state| state.desired.clear());
    while lives(host.pid_of(&first)) {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_server_that_has_died_is_started_again_for_the_next_call() {
    let host = RunnerUnderTest::new().await;
    host.ask(host.open_job(vec![call(1, "a")]));
    let first = host.answer(1).await;
    kill(Pid::from_raw(host.pid_of(&first)), Signal::SIGKILL).unwrap();
    while lives(host.pid_of(&first)) {
        tokio::task::yield_now().await;
    }
    let is_server = |name: &str| name.contains(".-");
    let folders = || std::fs::read_dir(host.dir.join("jobs")).unwrap().flatten().map(|entry| entry.file_name());
    while folders().any(|name| is_server(&name.to_string_lossy())) {
        tokio::task::yield_now().await;
    }
    let second = host.calls(2, "a").await;
    assert_ne!(second["pid"], first["pid"]);
    assert_eq!(second["answered"], 0);
}

#[tokio::test]
async fn a_job_has_so_many_servers_and_no_more() {
    let host = RunnerUnderTest::new().await;
    host.ask(host.open_job(vec![call(1, "s1")]));
    host.answer(1).await;
    for number in 2..=16 {
        host.calls(number, &format!("s{number}")).await;
    }
    host.control.change(|state| state.desired[0].steps = vec![call(17, "s17")]);
    let step = StepTry { id: StepId(17), number: 1 };
    host.control.until("the call is refused", |state| state.ended_step(step).is_some()).await;
    match host.control.see(|state| state.ended_step(step).cloned()) {
        Some(What::Ended { cause: Some(EndCause::ExecutorError), message: Some(message), started: false, .. }) => {
            assert!(message.contains("16 MCP servers"), "{message}");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(host.calls(18, "s3").await["answered"], 1);
}
