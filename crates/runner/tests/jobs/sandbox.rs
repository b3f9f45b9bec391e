//! A step in a sandbox: what it can reach, and that everything else about it is as without one. Each for the user of these tests, and for
//! one without privileges. Where no sandbox can be made the tests are skipped, with the reason on stderr.

use crate::containment::{a_long_time, no_sleeper_is_left};
use crate::host::{JOB, Plain, RunnerUnderTest, STEP, step};
use crate::stops::frozen;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::collections::BTreeMap;
use wire::model::StepId;
use wire::model::step::StepTry;
use wire::runner::{Command, DesiredServer, DesiredState, EndCause, Sandbox, Secret, Stream, What};

const HOST_NETWORK: Sandbox = Sandbox { network: true };
const NO_NETWORK: Sandbox = Sandbox { network: false };

async fn started(mut host: RunnerUnderTest, as_nobody: bool) -> Option<RunnerUnderTest> {
    host.as_nobody = as_nobody;
    host.start();
    host.control.until("the runner registers", |state| state.session == 1).await;
    let told = host.control.see(|state| state.registers[0].sandbox.clone()).unwrap();
    if told.starts_with("none: ") {
        crate::host::skip("sandbox", &format!("there is no sandbox on this host: {told}"));
        return None;
    }
    assert!(told.starts_with("bubblewrap"), "{told}");
    Some(host)
}

async fn host(as_nobody: bool) -> Option<RunnerUnderTest> {
    started(RunnerUnderTest::unstarted(|_| {}), as_nobody).await
}

fn sandboxed(host: &RunnerUnderTest, script: &str) -> Plain {
    Plain { sandbox: Some(HOST_NETWORK), ..host.job(script) }
}

fn said(host: &RunnerUnderTest) -> String {
    host.control.see(|state| state.log(JOB).text(Stream::Stdout))
}

fn exit_code(end: &What) -> Option<i32> {
    let What::Ended { exit_code, .. } = end else { panic!("{end:?}") };
    *exit_code
}

/// Tries to get at everything that is not the job's: prints `GOT …` for what it got.
fn thief(host: &RunnerUnderTest) -> String {
    let (dir, folder) = (host.dir.display(), host.dir.parent().unwrap().display());
    let control = host.control.path.display();
    let step = host.folder(JOB, STEP);
    let step = step.display();
    let home = nix::unistd::User::from_uid(nix::unistd::Uid::effective()).unwrap().unwrap().dir;
    let home = home.display();
    let runner = host.runner_pid();
    format!(
        "for it in {dir}/runner.json {dir}/runner.sock {dir}/journal {dir}/work_2/other {folder}/token {control} \
             {step}/exit {step}/keeper.sock {home}/.bashrc {home}/.ssh $SSH_AUTH_SOCK $XDG_RUNTIME_DIR/bus; do
           test -e $it && echo GOT $it
         done
         for it in / /etc /usr /var/tmp {dir} {folder} {step} /proc/sys/kernel/core_pattern /proc/sysrq-trigger; do
           test -w $it && echo GOT writing $it
         done
         test -d /proc/{runner}/root/ && test \"$(cat /proc/{runner}/comm)\" = repl-runner && echo GOT the runner
         grep -q '^CapEff:.0*$' /proc/self/status || echo GOT privileges
         ls -A {home} | sed 's/^/GOT home /'
         echo done >mine; echo private >/tmp/it; cat mine /tmp/it"
    )
}

async fn gets_nothing(host: RunnerUnderTest) {
    std::fs::create_dir(host.dir.join("work_2")).unwrap();
    std::fs::write(host.dir.join("work_2/other"), "theirs").unwrap();
    std::fs::write(host.dir.parent().unwrap().join("token"), "secret").unwrap();
    host.control.change(|state| state.kept_workdirs.push("work_2".to_owned()));
    let mut job = sandboxed(&host, &thief(&host));
    let agent = host.dir.parent().unwrap().join("token").display().to_string();
    job.env = BTreeMap::from([("SSH_AUTH_SOCK".to_owned(), agent)]);
    host.ask(job);
    let end = host.ends().await;
    let (out, err) = host.control.see(|state| {
        let log = state.log(JOB);
        (log.text(Stream::Stdout), log.text(Stream::Stderr))
    });
    assert_eq!((out.as_str(), exit_code(&end)), ("done\nprivate\n", Some(0)), "{err} {end:?}");
    assert_eq!(std::fs::read_to_string(host.workdir().join("mine")).unwrap(), "done\n");
}

#[tokio::test]
async fn a_thief_in_a_sandbox_gets_nothing() {
    for as_nobody in [false, true] {
        if let Some(host) = host(as_nobody).await {
            gets_nothing(host).await;
        }
    }
}

/// A folder that no private `/tmp` hides, and whose paths are too long for sockets.
#[tokio::test]
async fn a_thief_gets_nothing_where_the_home_is_a_folder_of_its_own() {
    let place = std::path::Path::new(env!("CARGO_TARGET_TMPDIR"));
    let folder = tempfile::Builder::new().prefix(&"long".repeat(15)).tempdir_in(place).unwrap();
    if let Some(host) = started(RunnerUnderTest::unstarted_in(folder, |_| {}), false).await {
        gets_nothing(host).await;
    }
}

#[tokio::test]
async fn without_a_network_there_is_only_the_loopback_of_its_own() {
    for as_nobody in [false, true] {
        let Some(host) = host(as_nobody).await else { continue };
        let script = "tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' '";
        host.ask(Plain { sandbox: Some(NO_NETWORK), ..host.job(script) });
        let end = host.ends().await;
        assert_eq!((said(&host).as_str(), exit_code(&end)), ("lo\n", Some(0)));
    }
}

#[tokio::test]
async fn a_command_ends_as_it_would_without_a_sandbox() {
    for (script, expected) in [
        ("exit 7", (Some(7), None)),
        ("kill -SEGV $$", (None, Some(11))),
        ("no-such-program-at-all", (Some(127), None)),
        ("sleep 1000 & setsid sleep 1000 & exit 3", (Some(3), None)),
    ] {
        let Some(host) = host(false).await else { return };
        host.ask(sandboxed(&host, script));
        let end = host.ends().await;
        let What::Ended { exit_code, signal, cause: None, started: true, .. } = end else { panic!("{end:?}") };
        assert_eq!((exit_code, signal), expected, "{script}");
    }
    let Some(host) = host(false).await else { return };
    let mut job = sandboxed(&host, "");
    job.command = Command::Argv(vec!["no-such-program".to_owned()]);
    host.ask(job);
    let end = host.ends().await;
    let What::Ended { exit_code: Some(127), message: Some(message), .. } = &end else { panic!("{end:?}") };
    assert_eq!(message, "no-such-program: not found");
}

#[tokio::test]
async fn a_handler_in_a_sandbox_runs_when_the_job_is_stopped() {
    for as_nobody in [false, true] {
        let Some(host) = host(as_nobody).await else { continue };
        // The handler waits for the test: it would be over before the end of bwrap could cut it short.
        let handler = "echo stops; cat gate; echo bye; exit 9";
        host.ask(sandboxed(&host, &format!("mkfifo gate; trap '{handler}' TERM; echo ready; sleep 1000 & wait")));
        host.says("ready").await;
        host.want(DesiredState::Stopped);
        host.says("stops").await;
        host.open_gate("gate").await;
        let end = host.ends().await;
        let What::Ended { exit_code, signal, cause, .. } = end else { panic!() };
        assert_eq!((exit_code, signal, cause), (Some(9), None, Some(EndCause::Stopped)));
        assert!(said(&host).contains("bye"));
    }
}

#[tokio::test]
async fn a_sandbox_outlives_its_runner() {
    for as_nobody in [false, true] {
        let Some(mut host) = host(as_nobody).await else { continue };
        host.ask(sandboxed(&host, "mkfifo gate; echo ready; cat gate; echo after; exit 5"));
        host.says("ready").await;
        host.kill_runner().await;
        host.start();
        host.control.until("another runner registers", |state| state.session == 2).await;
        host.open_gate("gate").await;
        assert_eq!(exit_code(&host.ends().await), Some(5));
        assert!(said(&host).ends_with("after\n"));
    }
}

#[tokio::test]
async fn everything_in_a_sandbox_ends_with_its_keeper() {
    for (as_nobody, way) in [(false, ""), (false, "pidns"), (false, "sweep"), (true, "")] {
        let mut unstarted = RunnerUnderTest::unstarted(|_| {});
        unstarted.containment = way;
        let Some(mut host) = started(unstarted, as_nobody).await else { continue };
        let long = a_long_time();
        host.ask(sandboxed(&host, &format!("(env -i setsid sleep {long} &); echo ready; sleep {long}")));
        host.says("ready").await;
        let keeper = Pid::from_raw(host.keeper_pid());
        // Nothing but the kernel ends it.
        host.kill_runner().await;
        kill(keeper, Signal::SIGKILL).unwrap();
        no_sleeper_is_left(&host, &long).await;
        host.start();
        let end = host.ends().await;
        let What::Ended { cause, .. } = end else { panic!() };
        assert_eq!(cause, Some(EndCause::KeeperDied), "{way}");
    }
}

#[tokio::test]
async fn a_sandbox_stands_still_and_goes_on() {
    for (as_nobody, way) in [(false, ""), (false, "sweep"), (true, "")] {
        let mut unstarted = RunnerUnderTest::unstarted(|_| {});
        unstarted.containment = way;
        let Some(host) = started(unstarted, as_nobody).await else { continue };
        host.ask(sandboxed(&host, "echo ready; while :; do :; done"));
        host.says("ready").await;
        host.control.change(|state| {
            state.desired.iter_mut().for_each(|job| (job.state, job.answer) = (DesiredState::Frozen, true));
        });
        let is = |state: &crate::control::State, wanted: &str| {
            state.facts.iter().any(|fact| format!("{:?}", fact.what).starts_with(wanted))
        };
        host.control.until("it stands still", |state| is(state, "Froze")).await;
        frozen(&host, &host.living(), true).await;
        host.control.change(|state| state.desired.iter_mut().for_each(|job| job.state = DesiredState::Running));
        host.control.until("it goes on", |state| is(state, "Thawed")).await;
        host.want(DesiredState::Aborted);
        host.ends().await;
    }
}

#[tokio::test]
async fn its_limits_output_and_artifacts_are_as_without_one() {
    for as_nobody in [false, true] {
        let Some(host) = host(as_nobody).await else { continue };
        let mut job =
            sandboxed(&host, "echo '{\"a\": 1}' >\"$REPL_OUTPUT\"; mkdir out; echo kept >out/file; cat; id -u");
        job.artifacts = vec!["out/*".to_owned()];
        job.limits.memory_bytes = Some(64 << 20);
        host.ask(job);
        let end = host.ends().await;
        let What::Ended { output: Some(wire::runner::Output::Json(json)), .. } = &end else { panic!("{end:?}") };
        assert_eq!(json.trim(), "{\"a\": 1}");
        host.control.until("the artifact is there", |state| !state.artifacts.is_empty()).await;
        let artifacts = host.control.see(|state| state.artifacts.clone());
        assert_eq!(artifacts[&(JOB, "out/file".to_owned())], b"kept\n");
        let user = if as_nobody { "65534".to_owned() } else { nix::unistd::geteuid().to_string() };
        assert_eq!(said(&host), format!("{user}\n"), "it is the same user, and its stdin is empty");
    }
}

#[tokio::test]
async fn a_sandboxed_step_finds_its_programme_its_socket_and_its_server() {
    for as_nobody in [false, true] {
        let Some(host) = host(as_nobody).await else { continue };
        let asking = StepTry { id: StepId(5), number: 1 };
        let mut calls = step(asking, "test -S $REPL_STEPS || exit 8; test -S $REPL_MCP || sleep 0.1; repl mcp-call");
        calls.sandbox = Some(HOST_NETWORK);
        calls.steps_token = Some(Secret("a-token-of-the-step".to_owned()));
        calls.server = Some(DesiredServer { name: "files".to_owned(), argv: vec!["files".to_owned()] });
        calls.tail = true;
        host.ask(host.open_job(vec![calls]));
        host.control.until("the step ends", |state| state.ended_step(asking).is_some()).await;
        let end = host.control.see(|state| state.ended_step(asking).cloned().unwrap());
        let What::Ended { exit_code, stdout_tail, .. } = &end else { panic!() };
        let tail = String::from_utf8_lossy(&stdout_tail.as_ref().unwrap().0).into_owned();
        assert_eq!(*exit_code, Some(0), "{tail} {end:?}");
        // The server is in a sandbox of its own, as its second process.
        assert!(tail.contains("\"server\": \"files\", \"pid\": 2,"), "{tail}");
    }
}
