//! `repl adapter check` on the example, on `dml-exec-local` and on adapters that do it wrong.

use serde_json::Value;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tempfile::TempDir;

struct Place(TempDir);

impl Place {
    fn new() -> Place {
        Place(tempfile::tempdir().unwrap())
    }
    fn repl(&self, words: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_repl"));
        command.args(words).env_clear().env("PATH", "/usr/local/bin:/usr/bin:/bin");
        command.env("HOME", self.0.path()).env("TMPDIR", self.0.path()).current_dir(self.0.path());
        command.output().unwrap()
    }
    fn script(&self, name: &str, text: &str) -> PathBuf {
        let (draft, path) = (self.0.path().join("draft"), self.0.path().join(name));
        std::fs::write(&draft, text).unwrap();
        std::fs::set_permissions(&draft, std::fs::Permissions::from_mode(0o755)).unwrap();
        std::fs::rename(draft, &path).unwrap();
        path
    }
    /// The report on a program, and the exit code.
    fn check(&self, program: &str, more: &[&str]) -> (i32, Value) {
        let words: Vec<&str> = ["adapter", "check", program, "--json"].iter().chain(more).copied().collect();
        let output = self.repl(&words);
        let report = serde_json::from_slice(&output.stdout);
        let report = report.unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&output.stderr)));
        (output.status.code().unwrap(), report)
    }
    fn left(&self) -> Vec<String> {
        let names = std::fs::read_dir(self.0.path()).unwrap().flatten();
        names.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
    }
}

fn failed(report: &Value) -> Vec<&str> {
    let cases = report["cases"].as_array().unwrap();
    cases.iter().filter(|case| !case["failed"].is_null()).map(|case| case["name"].as_str().unwrap()).collect()
}

fn case<'r>(report: &'r Value, name: &str) -> &'r Value {
    report["cases"].as_array().unwrap().iter().find(|case| case["name"] == name).unwrap()
}

#[test]
fn the_example_passes_the_check_and_leaves_nothing() {
    let place = Place::new();
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/calls/dml-exec-words");
    let lines = std::fs::read_to_string(&example).unwrap().lines().count();
    assert!(lines <= 40, "an example is short: {lines} lines");
    let example = example.to_str().unwrap();
    let (code, report) = place.check(example, &["--input", r#""two words""#, "--input", "5"]);
    assert_eq!((code, failed(&report)), (0, vec![]), "{report:#}");
    assert_eq!(case(&report, "result")["came"], r#"ok, {"words":3}"#);
    assert_eq!(place.left(), [""; 0]);
    let output = place.repl(&["adapter", "check", example]);
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.contains("ok    finishes") && said.ends_with("all 16 cases passed\n"), "{said}");
}

#[test]
fn the_adapter_for_processes_passes_the_check() {
    let place = Place::new();
    let program =
        place.script("sum.py", "#!/usr/bin/env python3\nimport json, sys\nprint(sum(json.load(sys.stdin)))\n");
    let function = |digest: &str| format!("dml+exec://dml-exec-local{}?blake3={digest}", program.display());
    let digest = digest_of(&program);
    let (code, report) =
        place.check("dml-exec-local", &["--function", &function(&digest), "--input", "4", "--input", "38"]);
    assert_eq!((code, failed(&report)), (0, vec![]), "{report:#}");
    assert_eq!(case(&report, "result")["came"], "ok, 42");

    // A program that fails has a result, too: the error, with what it said.
    let (code, report) = place.check("dml-exec-local", &["--function", &function(&digest), "--input", r#""text""#]);
    assert_eq!((code, failed(&report)), (0, vec![]), "{report:#}");
    let came = case(&report, "result")["came"].as_str().unwrap();
    assert!(came.starts_with("error, {"), "{came}");

    // Another program is another function.
    let (code, report) = place.check("dml-exec-local", &["--function", &function(&"ab".repeat(32))]);
    let why = case(&report, "finishes")["failed"].as_str().unwrap();
    assert!(code == 1 && why.contains("program_changed") && why.contains(&digest), "{why}");
    assert_eq!(place.left(), ["sum.py"]);
}

fn digest_of(program: &Path) -> String {
    blake3::hash(&std::fs::read(program).unwrap()).to_hex().to_string()
}

#[test]
fn a_cancel_ends_the_program() {
    let place = Place::new();
    let program = place.script("sleep.sh", "#!/bin/sh\necho $$ >../../../../pid; exec sleep 1000\n");
    let function = format!("dml+exec://dml-exec-local{}?blake3={}", program.display(), digest_of(&program));
    let (_, report) = place.check("dml-exec-local", &["--function", &function, "--timeout", "1s"]);
    assert_eq!(
        failed(&report),
        ["finishes", "result", "done_again", "no_token", "at_once", "other_attempt"],
        "{report:#}"
    );
    for process in std::fs::read_dir("/proc").unwrap().flatten() {
        let words = std::fs::read(process.path().join("environ")).unwrap_or_default();
        let words = String::from_utf8_lossy(&words).into_owned();
        assert!(!words.contains(place.0.path().to_str().unwrap()), "{} is left", process.path().display());
    }
}

/// An adapter cannot tell an Executor not to pin: a `done` with an error is pinned, as a failure of the function. What says nothing about the
/// function is `failed`.
#[test]
fn a_program_that_was_killed_or_lost_is_no_result() {
    let place = Place::new();
    for (name, script, code, said) in [
        ("killed.sh", "kill -9 $$", "signalled", "signal 9 ended the program"),
        ("lost.sh", "kill -9 $PPID", "lost", "ended before the program did"),
    ] {
        let program = place.script(name, &format!("#!/bin/sh\n{script}\n"));
        let function = format!("dml+exec://dml-exec-local{}?blake3={}", program.display(), digest_of(&program));
        let (exit, report) = place.check("dml-exec-local", &["--function", &function, "--timeout", "5s"]);
        let why = case(&report, "finishes")["failed"].as_str().unwrap();
        assert!(exit == 1 && why.contains(&format!("`failed`, {code}: ")) && why.contains(said), "{name}: {why}");
        assert_eq!(case(&report, "answers")["failed"], Value::Null, "{name}");
        assert_eq!(case(&report, "cleanup")["failed"], Value::Null, "{name}");
        assert_eq!(case(&report, "result")["failed"], "there was no `done`", "{name}");
        std::fs::remove_file(program).unwrap();
        assert_eq!(place.left(), [""; 0], "{name}");
    }
}

#[test]
fn what_an_adapter_does_wrong_is_named() {
    let place = Place::new();
    let done = format!(r#"{{"version":1,"answer":"done","status":"ok","result":"{}"}}"#, "ab".repeat(32));
    let always = ["result", "at_once", "other_attempt", "other_version", "other_operation", "garbage", "no_remote"];
    let table: [(&str, &[&str], &str, &str); 4] = [
        (&format!("echo '{done}'"), &always, "result", "result_not_in_its_tree"),
        ("echo hello", &[], "answers", "hello"),
        ("exit 3", &[], "answers", "exited with code 3"),
        (
            r#"echo '{"version":1,"answer":"failed","code":"no_function","message":"none"}'"#,
            &[],
            "finishes",
            "no_function",
        ),
    ];
    for (number, (script, expected, name, said)) in table.into_iter().enumerate() {
        let program = place.script(&format!("dml-exec-bad{number}"), &format!("#!/bin/sh\n{script}\n"));
        let (code, report) = place.check(program.to_str().unwrap(), &["--timeout", "2s"]);
        assert_eq!(code, 1);
        assert!(expected.is_empty() || failed(&report) == expected, "{script}: {:?}", failed(&report));
        let why = case(&report, name)["failed"].as_str().unwrap();
        assert!(why.contains(said), "{script}: {why}");
    }
}

#[test]
fn a_check_that_cannot_be_made_says_why() {
    let place = Place::new();
    for (words, said) in [
        (&["adapter", "check", "./dml-exec-none"][..], "there is no file ./dml-exec-none"),
        (&["adapter", "check", "dml-exec-x", "--function", "/bin/sh"], "write it as dml+exec://"),
        (&["adapter", "check", "dml-exec-x", "--function", "dml+exec://sh/x"], "write dml+exec://dml-exec-x/NAME"),
        (&["adapter", "check", "../x_y"], "there is no file"),
        (&["adapter", "check", "sh_x"], "not the name of an adapter"),
        (&["adapter", "check", "dml-exec-x", "--input", "{"], "--input"),
        (&["adapter", "inputs", "nothing"], "cannot read nothing"),
    ] {
        let output = place.repl(words);
        let said_ = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && said_.contains(said), "{words:?}: {said_}");
    }
    let output = place.repl(&["adapter", "check", "dml-exec-none"]);
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.code() == Some(1) && said.contains("there is no program `dml-exec-none` on $PATH"), "{said}");
}
