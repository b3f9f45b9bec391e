//! Functions as a user calls them: executed once, then answered from the kept result; what goes wrong is said.

use crate::home::Home;
use serde_json::Value;
use std::os::unix::fs::PermissionsExt as _;

/// A server executes only the adapters that its settings list.
const SETTINGS: &str = "[calls]\nadapters = [\"dml-exec-*\"]\n";

/// The function of a program with this text.
fn function(home: &Home, name: &str, text: &str) -> String {
    let (draft, program) = (home.write(&format!("{name}.draft"), text), home.here().join(name));
    std::fs::set_permissions(&draft, std::fs::Permissions::from_mode(0o755)).unwrap();
    std::fs::rename(draft, &program).unwrap();
    format!("dml+exec://dml-exec-local{}?blake3={}", program.display(), blake3::hash(text.as_bytes()).to_hex())
}

fn value(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

#[test]
fn a_function_is_executed_once_for_the_same_inputs() {
    let home = Home::with(SETTINGS);
    let mark = home.here().join("mark");
    let echo = function(&home, "echo", &format!("#!/bin/sh\necho x >> {}\ncat\n", mark.display()));
    home.write("more.json", "{\"a\": [true, null]}");
    let first = home.done(&["call", &echo, "1", "@more.json", "\"two\""]);
    assert_eq!(value(&first.out()), value(r#"[1, {"a": [true, null]}, "two"]"#));
    assert!(first.stderr.contains("ran cal_"), "{}", first.stderr);
    let second = home.done(&["call", &echo, "1", "@more.json", "\"two\""]);
    assert_eq!(second.out(), first.out());
    assert!(second.stderr.contains("hit "), "{}", second.stderr);
    let other = home.done(&["call", &echo, "2", "--json"]);
    assert_eq!(value(&other.out())["result"]["value"], value("[2]"));
    let lines = || std::fs::read_to_string(&mark).unwrap().lines().count();
    assert_eq!(lines(), 2);
    home.done(&["call", &echo, "2", "--no-cache"]);
    assert_eq!(lines(), 3, "it was executed although a result is kept");
    let list = value(&home.done(&["call", "ls", "--json"]).out());
    assert_eq!(list.as_array().unwrap().len(), 3, "hits are no executions: {list}");
    // Not by their place in the list: each control plane of a cluster takes ids from a block of its own.
    let first = first.stderr.split_whitespace().find(|word| word.starts_with("cal_")).unwrap().to_owned();
    let other = value(&other.out())["id"].as_str().unwrap().to_owned();
    let diff = home.done(&["call", "diff", &first, &other]);
    assert!(diff.out().starts_with("input 0: 1, now 2\ninput 1: "), "{}", diff.out());
    let show = home.done(&["call", "show", &other]);
    assert!(show.out().contains("completed_ok") && show.out().contains("[2]"), "{}", show.out());
}

#[test]
fn a_value_of_a_function_is_followed_back_to_function_and_inputs() {
    let (home, other) = (Home::with(SETTINGS), Home::new());
    let echo = function(&home, "echo", "#!/bin/sh\ncat\n");
    let text = "a text that is longer than what is inlined";
    let called = value(&home.done(&["call", &echo, "1", &format!("{text:?}"), "--json"]).out());
    let exec = called["result"]["exec"].as_str().unwrap();
    let record = value(&home.done(&["dag", "show", exec]).out());
    let dag = record["result"].as_str().unwrap();
    let root = value(&home.done(&["dag", "show", dag]).out())["root"].as_str().unwrap().to_owned();
    for named in [exec, dag, &root, called["node"].as_str().unwrap()] {
        let said = home.done(&["backtrack", named]).out();
        for part in [&exec[..12], "function", &echo, "input 0", "input 1", text, "value"] {
            assert!(said.contains(part), "{named}: no {part} in {said}");
        }
        assert!(!said.contains("machine") && !said.contains("command"), "{said}");
    }
    // Elsewhere it is known by its record alone.
    let remote = format!("file://{}", home.here().join("remote").display());
    home.done(&["dag", "branch", "main"]);
    home.done(&["dag", "push", &remote]);
    other.done(&["dag", "pull", &remote]);
    let said = other.done(&["backtrack", exec]).out();
    assert!(said.contains(&echo) && said.contains(text), "{said}");
}

#[test]
fn a_run_is_a_function_and_shares_its_result_with_cached_runs() {
    let home = Home::with(SETTINGS);
    let mark = home.here().join("mark");
    let command = format!("echo x >> {}; echo out", mark.display());
    let document = serde_json::json!({ "commands": [command] }).to_string();
    let called = home.done(&["call", "dml+exec://dml-exec-repl/run", &document]);
    let seen = value(&called.out());
    assert_eq!((&seen["exit_code"], &seen["stdout"]), (&0.into(), &value(r#"{"$bytes": "b3V0Cg=="}"#)));
    assert!(called.stderr.contains("ran run_"), "{}", called.stderr);
    let run = home.run(&["--cache"], &command);
    assert!(run.stderr.contains("cached from run_"), "{}", run.stderr);
    let again = home.done(&["call", "dml+exec://dml-exec-repl/run", &document]);
    assert!(again.stderr.contains("hit "), "{}", again.stderr);
    assert_eq!(std::fs::read_to_string(&mark).unwrap(), "x\n");
    home.adds_up();
}

#[test]
fn a_call_that_cannot_be_made_says_what_to_do() {
    let home = Home::with(SETTINGS);
    let fails = function(&home, "fails", "#!/bin/sh\necho 'no such table' >&2\nexit 4\n");
    let said = home.say(&["call", &fails]);
    assert_eq!((said.code, value(&said.out())["type"].as_str()), (1, Some("exit")), "{}", said.stderr);
    assert!(said.out().contains("no such table"));
    for (words, text) in [
        (vec!["call", "/bin/sh", "1"], "write it as dml+exec://"),
        (vec!["call", "dml+exec://../x"], "not the name of an adapter"),
        (vec!["call", "dml+exec://sh/x"], "[calls] adapters"),
        (vec!["call", &fails, "{bad"], "write JSON"),
        (vec!["call", &fails, "@missing.json"], "missing.json"),
        (vec!["call", "show", "cal_zzz"], "cal_zzz"),
        (vec!["call"], "FUNCTION"),
    ] {
        let said = home.say(&words);
        assert!(said.code != 0 && said.stderr.contains(text), "{words:?}: {}", said.stderr);
    }
    let gone = function(&home, "gone", "#!/bin/sh\n");
    std::fs::write(home.here().join("gone"), "#!/bin/sh\necho 1\n").unwrap();
    let said = home.say(&["call", &gone]);
    assert!(said.code == 1 && said.stderr.contains("program_changed"), "{}", said.stderr);
}

#[test]
fn a_step_of_a_plan_calls_a_function_and_its_value_is_the_output() {
    let home = Home::with(SETTINGS);
    let mark = home.here().join("mark");
    let echo = function(&home, "echo", &format!("#!/bin/sh\necho x >> {}\ncat\n", mark.display()));
    let fails = function(&home, "fails", "#!/bin/sh\nexit 4\n");
    let step = |function: &str, input: &str| {
        format!("{{name: f, call: {{function: \"{function}\", inputs: [1, \"{input}\"]}}}}")
    };
    let plan = |steps: &str| format!("type: agents\nagents:\n- name: a\n  tasks:\n  - name: t\n    steps: [{steps}]\n");
    let chained = format!("{{name: g, call: {{function: \"{echo}\", inputs: [\"${{{{ steps.f.output }}}}\"]}}}}");
    let file = home.write("plan.yaml", plan(&format!("{}, {chained}", step(&echo, "two"))));
    for name in ["first", "second"] {
        home.done(&["run", file.to_str().unwrap(), "--name", name]);
        let status = home.done(&["status", name]).out();
        assert!(status.contains("call"), "{status}");
    }
    let calls = value(&home.done(&["call", "ls", "--json"]).out());
    let shown = |call: &Value| value(&home.done(&["call", "show", call["id"].as_str().unwrap(), "--json"]).out());
    let seen: Vec<Value> =
        calls.as_array().unwrap().iter().map(|call| shown(call)["result"]["value"].clone()).collect();
    assert!(seen.contains(&value(r#"[[1, "two"]]"#)), "an output is an input of the next: {seen:?}");
    assert_eq!(std::fs::read_to_string(&mark).unwrap(), "x\nx\n", "the second run was answered by the kept result");
    let file = home.write("fails.yaml", plan(&step(&fails, "x")));
    let said = home.say(&["run", file.to_str().unwrap(), "--name", "third"]);
    assert_ne!(said.code, 0);
    let why = home.done(&["why", "third"]).out();
    assert!(why.contains("the program ended with exit code 4 (exit)"), "{why}");
    let file = home.write("refused.yaml", plan(&step("dml+exec://sh/x", "x")));
    let said = home.say(&["run", file.to_str().unwrap()]);
    assert!(said.code != 0 && said.stderr.contains("[calls] adapters"), "{}", said.stderr);
}

#[test]
fn the_output_of_a_call_step_is_followed_back_to_its_run_and_its_cost() {
    let home = Home::with(SETTINGS);
    let plan = |text: &str| {
        let call = format!(
            "{{function: \"dml+exec://dml-exec-repl/run\", inputs: [{{commands: [\"echo {text}\"], env: {{MODE: fast}}}}]}}"
        );
        home.write(
            "plan.yaml",
            format!(
                "type: agents\nagents:\n- name: a\n  tasks:\n  - name: t\n    steps: [{{name: f, call: {call}}}]\n"
            ),
        )
    };
    for (name, text) in [("first", "one"), ("second", "two")] {
        home.done(&["run", plan(text).to_str().unwrap(), "--name", name]);
    }
    let calls = value(&home.done(&["call", "ls", "--json"]).out());
    let shown = |call: &Value| value(&home.done(&["call", "show", call["id"].as_str().unwrap(), "--json"]).out());
    let all: Vec<Value> = calls.as_array().unwrap().iter().map(shown).collect();
    // Of each: base64 of what it has written.
    let of = |out: &str| all.iter().find(|call| call["result"]["value"]["stdout"]["$bytes"] == out).unwrap();
    let (one, two) = (of("b25lCg=="), of("dHdvCg=="));
    let dag = value(&home.done(&["dag", "show", two["result"]["exec"].as_str().unwrap()]).out());
    let root = value(&home.done(&["dag", "show", dag["result"].as_str().unwrap()]).out())["root"].clone();
    let from = value(&home.done(&["backtrack", root.as_str().unwrap(), "--json"]).out());
    assert_eq!((&from["run"], &from["exec"]), (&two["run"], &two["result"]["exec"]), "by its value alone");
    assert!(from["credits_micro"].as_i64().unwrap() > 0, "{from}");
    let run = value(&home.done(&["status", from["run"].as_str().unwrap(), "--json"]).out());
    assert!(run["run"]["name"].as_str().unwrap().starts_with("call:"), "{run}");
    let said = home.done(&["backtrack", two["result"]["exec"].as_str().unwrap()]).out();
    for part in ["echo two", "MODE", "credits", from["run"].as_str().unwrap()] {
        assert!(said.contains(part), "no {part} in {said}");
    }
    // Why the second was not answered by the first, and how both are let go.
    let why = home.done(&["cache", "why", two["id"].as_str().unwrap()]).out();
    assert!(why.contains("echo two") && why.contains(one["run"].as_str().unwrap()), "{why}");
    let done = home.done(&["cache", "invalidate", "--function", "dml+exec://dml-exec-repl/run"]);
    assert!(done.stderr.contains("2 results answer no run any more"), "{}", done.stderr);
    let rebuilt = home.done(&["cache", "rebuild"]);
    assert!(rebuilt.stderr.contains("0 rows looked at, 0 made, 0 removed"), "{}", rebuilt.stderr);
    home.adds_up();
}

#[test]
fn the_adapter_for_runs_passes_the_check_as_a_program() {
    let home = Home::with(SETTINGS);
    let function = ["--function", "dml+exec://dml-exec-repl/run", "--input", r#"{"commands": ["echo out; exit 3"]}"#];
    let said = home.say(&[&["adapter", "check", "dml-exec-repl", "--json"], &function[..]].concat());
    let report = value(&said.out());
    let bad: Vec<&Value> =
        report["cases"].as_array().unwrap().iter().filter(|case| !case["failed"].is_null()).collect();
    assert!(said.code == 0 && bad.is_empty(), "{bad:#?} {}", said.stderr);
    let result = report["cases"].as_array().unwrap().iter().find(|case| case["name"] == "result").unwrap();
    assert!(result["came"].as_str().unwrap().starts_with("error, {"), "{result}");
}
