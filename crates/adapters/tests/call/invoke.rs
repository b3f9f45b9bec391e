//! Scripts as adapters: right answers, and every way in which a program can fail to answer.

use adapters::call::{Adapters, Own, Unanswered};
use calls::adapter::{AdapterAnswer, Closing, MAX_BYTES, Operation, Request, VERSION};
use calls::record::ExecStatus;
use calls::{DagId, Id, NodeId};
use model::{Effect, TroubleKind};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::Duration;
use tempfile::TempDir;

const DAG: &str = "abababababababababababababababababababababababababababababababab";

/// A folder of adapters, which is all of the path beside the system's.
struct Folder(TempDir);

impl Folder {
    fn new() -> Folder {
        Folder(tempfile::tempdir().unwrap())
    }
    fn path(&self) -> &Path {
        self.0.path()
    }
    /// Written under another name first: a file that a forked process still has open for writing cannot be executed.
    fn script(&self, name: &str, body: &str) {
        let draft = self.path().join("draft");
        std::fs::write(&draft, format!("#!/bin/sh\ncd {}\n{body}\n", self.path().display())).unwrap();
        std::fs::set_permissions(&draft, std::fs::Permissions::from_mode(0o755)).unwrap();
        std::fs::rename(draft, self.path().join(name)).unwrap();
    }
    fn adapters(&self) -> Adapters {
        let path = format!("{}:/usr/local/bin:/usr/bin:/bin", self.path().display());
        Adapters { path: path.into(), ..Adapters::new(vec!["dml-exec-*".to_owned()]) }
    }
    fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path().join(name)).unwrap_or_default()
    }
}

fn request(operation: Operation, token: Option<&str>) -> Request {
    Request {
        version: VERSION,
        operation,
        node: NodeId(Id([1; 32])),
        function: "dml+exec://dml-exec-test/f".into(),
        inputs: vec![NodeId(Id([2; 32]))],
        snapshot: "refs/exec/0b9f1f5e-6f0d-4a53-8f5b-3d3f4f2b1a00".into(),
        remote: "file:///exchange".into(),
        execution: "0b9f1f5e-6f0d-4a53-8f5b-3d3f4f2b1a00".into(),
        key: Id([3; 32]),
        attempt: 1,
        token: token.map(str::to_owned),
    }
}

async fn invoke(adapters: &Adapters) -> Result<AdapterAnswer, Unanswered> {
    adapters.invoke(&request(Operation::Invoke, None), &[]).await
}

#[tokio::test]
async fn an_adapter_gets_the_request_and_few_variables_and_answers_once() {
    let folder = Folder::new();
    folder.script(
        "dml-exec-test",
        &format!(r#"cat >request; env >environment; echo '{{"version":1,"answer":"done","status":"error","result":"{DAG}"}}'"#),
    );
    let adapters = folder.adapters();
    let asked = request(Operation::Invoke, Some("the newest"));
    let done = Ok(AdapterAnswer::Done { status: ExecStatus::Error, result: DAG.parse::<DagId>().unwrap() });
    // Answered twice, it is the same answer.
    for _ in 0..2 {
        assert_eq!(adapters.invoke(&asked, &[("REPL_TOKEN", "t0".to_owned())]).await, done);
    }
    assert_eq!(serde_json::from_str::<Request>(&folder.read("request")).unwrap(), asked);
    let environment = folder.read("environment");
    assert!(environment.contains("REPL_TOKEN=t0\n") && environment.contains("PATH="), "{environment}");
    assert!(!environment.contains("CARGO"), "the rest of the environment stays here: {environment}");
}

#[tokio::test]
async fn a_token_may_change_with_each_answer_and_is_passed_on_as_it_is() {
    let folder = Folder::new();
    let script = r#"read -r line
case "$line" in
  *'"operation":"cancel"'*) echo '{"version":1,"answer":"done"}' ;;
  *'"token":"two \" words"'*) echo '{"version":1,"answer":"failed","code":"no_such_image","message":"there is none"}' ;;
  *'"token":"one"'*) echo '{"version":1,"answer":"pending","token":"two \" words","retry_after_ms":5}' ;;
  *) echo '{"version":1,"answer":"pending","token":"one"}' ;;
esac"#;
    folder.script("dml-exec-test", script);
    let adapters = folder.adapters();
    let mut token = None;
    let mut seen = Vec::new();
    let end = loop {
        let asked = Request { token: token.clone(), ..request(Operation::Invoke, None) };
        match adapters.invoke(&asked, &[]).await.unwrap() {
            AdapterAnswer::Pending { token: newest, .. } => {
                seen.push(newest.clone());
                token = Some(newest);
            }
            end => break end,
        }
    };
    assert_eq!(seen, ["one", "two \" words"]);
    assert_eq!(end, AdapterAnswer::Failed { code: "no_such_image".into(), message: "there is none".into() });
    let closed = adapters.close(&request(Operation::Cancel, token.as_deref()), &[]).await;
    assert_eq!(closed, Ok(Closing::Done));
}

#[tokio::test]
async fn anything_else_is_transient_and_says_what_the_adapter_said() {
    let good = r#"echo '{"version":1,"answer":"pending","token":"t"}'"#;
    let table = [
        ("echo Traceback; echo no disk >&2".to_owned(), "not_json", "Traceback"),
        ("echo no disk >&2".to_owned(), "empty", "it said: no disk"),
        (format!("{good}; {good}"), "not_json", "not one JSON document"),
        (format!("{good}; echo no disk >&2; exit 3"), "exited", "code 3; it said: no disk"),
        (format!("{good}; kill -9 $$"), "killed", "signal 9"),
        (r#"echo '{"version":1,"answer":"done","status":"ok"}'"#.to_owned(), "malformed", "the id of a dag"),
        ("head -c 3000000 /dev/zero".to_owned(), "too_large", "more than"),
        // It would not end by itself: it ignores that its output is not read.
        ("trap '' PIPE; yes 2>/dev/null; sleep 1000".to_owned(), "too_large", "more than"),
        ("yes 'no disk' | head -c 1000000 >&2; exit 1".to_owned(), "exited", "no disk"),
    ];
    for (script, code, said) in table {
        let folder = Folder::new();
        folder.script("dml-exec-test", &script);
        let none = invoke(&folder.adapters()).await.unwrap_err();
        assert_eq!(none.code, code, "{script}: {none}");
        assert!(none.trouble.what.contains(said) && none.trouble.what.len() < 3_000, "{script}: {none}");
        assert!(none.trouble.retry && none.trouble.effect == Effect::Perhaps, "{script}");
    }
}

#[tokio::test]
async fn an_adapter_that_hangs_is_killed_with_everything_it_started() {
    let folder = Folder::new();
    folder.script("dml-exec-test", "sleep 1000 & echo $! >child; mv child started; wait");
    let adapters = Adapters { within: Duration::from_millis(500), ..folder.adapters() };
    let none = invoke(&adapters).await.unwrap_err();
    assert_eq!((none.code, none.trouble.kind), ("timed_out", TroubleKind::Timeout));
    has_ended(folder.read("started").trim()).await;
}

#[tokio::test]
async fn an_adapter_does_not_outlive_a_caller_that_gave_up() {
    let folder = Folder::new();
    folder.script("dml-exec-test", "echo $$ >me; mv me started; sleep 1000");
    let adapters = folder.adapters();
    let started = async {
        while folder.read("started").is_empty() {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        answer = invoke(&adapters) => panic!("{answer:?}"),
        () = started => {}
    }
    has_ended(folder.read("started").trim()).await;
}

async fn has_ended(pid: &str) {
    assert!(!pid.is_empty(), "it was started");
    let lives = || std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "));
    let gone = async {
        while lives() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), gone).await.expect("it is killed");
}

#[tokio::test]
async fn a_process_that_an_adapter_leaves_behind_does_not_delay_its_answer() {
    let folder = Folder::new();
    folder.script(
        "dml-exec-test",
        r#"sleep 1000 & echo $! >child; mv child started; echo '{"version":1,"answer":"pending","token":"t"}'"#,
    );
    let answer = invoke(&folder.adapters()).await.unwrap();
    assert!(matches!(answer, AdapterAnswer::Pending { .. }));
    // The work of an adapter may go on in the background; this test ends it.
    let pid = folder.read("started").trim().parse().unwrap();
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL).unwrap();
}

#[tokio::test]
async fn a_uri_never_chooses_what_is_executed() {
    let folder = Folder::new();
    folder.script("dml-exec-test", "touch executed");
    folder.script("other", "touch executed");
    std::fs::write(folder.path().join("dml-exec-plain"), "no program").unwrap();
    let adapters = folder.adapters();
    for (function, code, said) in [
        ("dml+exec:///bin/sh", "not_a_function", "not the name of an adapter"),
        ("dml+exec://../x", "not_a_function", "not the name of an adapter"),
        ("dml+exec://dml-exec-test/../../bin/sh", "not_a_function", "segment"),
        ("/bin/sh", "not_a_function", "dml+exec://"),
        ("dml+exec://sh/x", "not_allowed", "`[calls] adapters`"),
        ("dml+exec://other/x", "not_allowed", "`[calls] adapters`"),
    ] {
        let asked = Request { function: function.into(), ..request(Operation::Invoke, None) };
        let none = adapters.invoke(&asked, &[]).await.unwrap_err();
        assert_eq!(none.code, code, "{function}");
        assert!(none.trouble.what.contains(said) && !none.trouble.retry, "{function}: {none}");
    }
    for function in ["dml+exec://dml-exec-none/x", "dml+exec://dml-exec-plain/x"] {
        let asked = Request { function: function.into(), ..request(Operation::Invoke, None) };
        let none = adapters.invoke(&asked, &[]).await.unwrap_err();
        assert_eq!((none.code, none.trouble.effect), ("not_started", Effect::None), "{function}");
        assert!(none.trouble.what.contains("on $PATH") && none.trouble.retry, "{none}");
    }
    // Relative folders of the path are those of a working directory, which others may write to.
    let here = std::env::current_dir().unwrap();
    let up = "../".repeat(here.components().count());
    let relative = format!("{up}{}", folder.path().strip_prefix("/").unwrap().display());
    let none = invoke(&Adapters { path: relative.into(), ..adapters.clone() }).await.unwrap_err();
    assert_eq!(none.code, "not_started");
    let many = Request { inputs: vec![NodeId(Id([2; 32])); MAX_BYTES / 64], ..request(Operation::Invoke, None) };
    let none = adapters.invoke(&many, &[]).await.unwrap_err();
    assert_eq!((none.code, none.trouble.retry), ("request_too_large", false));
    assert_eq!(folder.read("executed"), "");
    assert!(!folder.path().join("executed").exists());
}

#[tokio::test]
async fn adapters_of_our_own_need_not_be_on_the_path() {
    let folder = Folder::new();
    folder.script("repl", r#"echo '{"version":1,"answer":"failed","code":"c","message":"own"}'"#);
    let program = folder.path().join("repl");
    let own = Own { path: program.clone(), program, names: &["dml-exec-test"], variables: Vec::new() };
    let adapters = Adapters { own: Some(own), path: "/nowhere".into(), ..folder.adapters() };
    // The script's interpreter is named by its path.
    assert!(matches!(invoke(&adapters).await, Ok(AdapterAnswer::Failed { message, .. }) if message == "own"));
}
