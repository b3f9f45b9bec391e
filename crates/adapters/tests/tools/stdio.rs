//! MCP servers that are programs: what one remembers lasts from call to call, and whatever one does ends each call with a class and an
//! effect. The holder of the server serves in a thread; a real program is the server.

use adapters::tool::mcp::stdio::{self, ServerAnswer};
use model::Effect;
use model::recovery::ErrorClass::{self, Permanent, Transient};
use serde_json::{Value, json};
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

struct Holder {
    socket: PathBuf,
    _dir: tempfile::TempDir,
}

impl Holder {
    fn of(program: &[&str]) -> Holder {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("mcp.sock");
        let argv: Vec<OsString> = program.iter().map(OsString::from).collect();
        let at = socket.clone();
        std::thread::spawn(move || stdio::serve(&at, argv));
        Holder { socket, _dir: dir }
    }

    /// The scripted server, with these words.
    fn scripted(words: &[&str]) -> Holder {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/tools/mcp_server.py");
        Holder::of(&[&["python3", script], words].concat())
    }

    fn begin(&self, asked: Value, timeout_ms: i64) -> UnixStream {
        let mut whole = json!({ "key": "step-key", "timeout_ms": timeout_ms });
        whole.as_object_mut().unwrap().extend(asked.as_object().unwrap().clone());
        let mut caller = loop {
            match UnixStream::connect(&self.socket) {
                Ok(caller) => break caller,
                Err(_) => std::thread::yield_now(), // its thread is about to listen
            }
        };
        writeln!(caller, "{whole}").unwrap();
        caller
    }

    /// The answer, and what the server has written to its standard error meanwhile.
    fn ask(&self, asked: Value, timeout_ms: i64) -> (ServerAnswer, String) {
        end(self.begin(asked, timeout_ms))
    }

    fn call(&self, tool: &str, arguments: Value) -> ServerAnswer {
        self.ask(json!({ "tool": tool, "arguments": arguments }), 20_000).0
    }
}

fn end(caller: UnixStream) -> (ServerAnswer, String) {
    let mut log = String::new();
    for line in BufReader::new(caller).lines() {
        let said: Value = serde_json::from_str(&line.unwrap()).unwrap();
        match said.get("answer") {
            Some(answer) => return (serde_json::from_value(answer.clone()).unwrap(), log),
            None => log.push_str(said["log"].as_str().unwrap()),
        }
    }
    panic!("no answer: {log}");
}

fn output(answer: ServerAnswer) -> Value {
    match answer {
        ServerAnswer::Output(output) => output,
        failed => panic!("{failed:?}"),
    }
}

#[track_caller]
fn is(answer: ServerAnswer, class: ErrorClass, effect: Effect, code: &str, words: &str) {
    let ServerAnswer::Failed { class: was, effect: had, code: called, message } = answer else { panic!("{answer:?}") };
    assert_eq!((was, had, called.as_str()), (class, effect, code), "{message}");
    assert!(message.contains(words), "{message}");
}

#[test]
fn a_server_remembers_from_call_to_call_and_is_started_again_when_it_has_died() {
    let holder = Holder::scripted(&[]);
    let first = output(holder.call("add", json!({ "n": 2 })));
    let second = output(holder.call("add", json!({ "n": 3 })));
    assert_eq!((&first["structured"]["total"], &second["structured"]["total"]), (&json!(2), &json!(5)));
    assert_eq!(first["structured"]["pid"], second["structured"]["pid"], "one process");
    assert_eq!(first["structured"]["key"], "step-key");
    is(holder.call("die", json!({})), Transient, Effect::Perhaps, "cut", "out of cheese");
    let third = output(holder.call("add", json!({ "n": 1 })));
    assert_eq!(third["structured"]["total"], 1, "what it knew died with it");
    assert_ne!(first["structured"]["pid"], third["structured"]["pid"]);
}

#[test]
fn each_failure_of_a_program_has_a_class_and_an_effect() {
    let holder = Holder::scripted(&[]);
    is(holder.call("fail", json!({})), Permanent, Effect::Done, "tool_error", "the disk is full");
    is(holder.call("nothing", json!({})), Permanent, Effect::Done, "mcp_error", "unknown");
    is(holder.call("big", json!({})), Permanent, Effect::Done, "output_too_large", "bytes");
    assert_eq!(output(holder.call("garbage", json!({})))["content"], json!([]), "what is no message is passed over");
    let never = holder.ask(json!({ "tool": "hang" }), 300).0;
    is(never, Transient, Effect::Perhaps, "timeout", "did not answer within 300 ms");
    output(holder.call("add", json!({ "n": 1 })));
    is(holder.call("flood", json!({})), Permanent, Effect::Perhaps, "cut", "no message of MCP");
    assert_eq!(output(holder.call("add", json!({ "n": 1 })))["structured"]["total"], 1, "another one is started");
    is(holder.ask(json!({ "tool": 7 }), 1_000).0, Permanent, Effect::None, "invalid_input", "mcp");
}

#[test]
fn a_server_with_which_no_session_begins_has_done_nothing() {
    let mute = Holder::scripted(&["--mute"]);
    is(mute.ask(json!({ "tool": "add" }), 300).0, Transient, Effect::None, "timeout", "begin a session within 300 ms");
    let exits = Holder::scripted(&["--exit"]);
    is(exits.call("add", json!({})), Transient, Effect::None, "not_connected", "no licence");
    let none = Holder::of(&["./no-such-server"]);
    is(none.call("add", json!({})), Permanent, Effect::None, "not_started", "./no-such-server: not found");
    let cat = Holder::of(&["cat"]);
    let echoed = cat.ask(json!({ "tool": "add" }), 1_000).0;
    assert!(matches!(&echoed, ServerAnswer::Failed { effect: Effect::None, .. }), "{echoed:?}");
}

#[test]
fn calls_are_made_side_by_side_and_one_that_is_given_up_holds_up_no_other() {
    let holder = Holder::scripted(&[]);
    let hangs = holder.begin(json!({ "tool": "hang" }), 60_000);
    output(holder.call("add", json!({ "n": 1 })));
    drop(hangs);
    let (answer, log) = holder.ask(json!({ "tool": "log" }), 20_000);
    output(answer);
    assert!(log.is_empty() || log == "working on it\n", "{log}");
}

#[test]
fn tools_are_listed_with_their_schemas_and_without_their_hints() {
    let names = |answer: ServerAnswer| -> Vec<String> {
        let list = output(answer);
        list["tools"].as_array().unwrap().iter().map(|tool| tool["name"].as_str().unwrap().to_owned()).collect()
    };
    let holder = Holder::scripted(&[]);
    let whole = output(holder.ask(json!({}), 20_000).0);
    assert_eq!(
        whole["tools"][0],
        json!({ "name": "add", "description": "Does add.", "input": {
            "type": "object", "properties": { "n": { "type": "integer" } }, "required": ["n"], "additionalProperties": false } })
    );
    assert_eq!(names(holder.ask(json!({}), 20_000).0), ["add", "fail", "env"], "every page is read");
    assert_eq!(names(holder.ask(json!({ "tools": ["env"] }), 20_000).0), ["env"]);
    let missing = holder.ask(json!({ "tools": ["env", "read"] }), 20_000).0;
    is(missing, Permanent, Effect::None, "unknown_tool", "no tool `read`");
    let many = Holder::scripted(&["--many"]);
    is(many.ask(json!({}), 20_000).0, Permanent, Effect::None, "too_many_tools", "more than 128 tools");
    assert_eq!(names(many.ask(json!({ "tools": ["t7"] }), 20_000).0), ["t7"]);
    is(Holder::scripted(&["--wordy"]).ask(json!({}), 20_000).0, Permanent, Effect::None, "too_many_tools", "bytes");
}
