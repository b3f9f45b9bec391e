//! What a step of kind `command`, `exec` or `mcp` is started with on its machine, from its evaluated input: a text for the shell or
//! arguments, variables, and the JSON that it reads. Values never pass through a shell: they are arguments and variables. The process of an
//! `mcp` step is a small client of ours, which asks the server that the machine holds for the whole agent.

use adapters::tool::mcp::stdio;
use model::plan::STEP_TIMEOUT_MS;
use model::spec::Command;
use model::step::ToolKind;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// One command, as its machine starts it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Started {
    pub(crate) command: Command,
    pub(crate) env: BTreeMap<String, String>,
    /// Variables whose values are secrets, by the secrets' names.
    pub(crate) secrets: BTreeMap<String, String>,
    /// What it reads as its standard input.
    pub(crate) stdin: Option<Vec<u8>>,
    /// The MCP server that it asks.
    pub(crate) server: Option<Server>,
}

/// A server that the machine holds until the job ends: one for all calls of the agent that name it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Server {
    /// Made of the program and its variables: whatever else differs, calls with the same ones ask the same server.
    pub name: String,
    pub argv: Vec<String>,
}

/// Who calls, for a step of kind `mcp`.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Caller<'s> {
    pub(crate) key: &'s str,
    pub(crate) timeout_ms: Option<i64>,
}

/// Whether a machine could start it. The words say what is wrong and where.
pub(crate) fn check(tool: ToolKind, input: &Value) -> Result<(), String> {
    read(tool, input, Caller::default()).map(drop)
}

pub(crate) fn read(tool: ToolKind, input: &Value, caller: Caller<'_>) -> Result<Started, String> {
    let command = match (input.get("shell"), input.get("argv")) {
        (Some(Value::String(text)), None) if tool == ToolKind::Command && !text.trim().is_empty() => {
            Command::Shell(text.clone())
        }
        (None, Some(Value::Array(argv))) if !argv.is_empty() => {
            Command::Argv(argv.iter().enumerate().map(|(n, value)| argument(n, value)).collect::<Result<_, _>>()?)
        }
        _ => return Err(format!("a step of kind `{tool}` needs a command")),
    };
    let (env, secrets) = variables(input.get("env"))?;
    if tool == ToolKind::Mcp {
        let Command::Argv(argv) = command else { return Err("an MCP server needs a program".into()) };
        let name = plan::content(tool, &json!({ "argv": argv, "env": env, "secrets": secrets }));
        let within_ms = caller.timeout_ms.unwrap_or(STEP_TIMEOUT_MS);
        let request = stdio::Request::new(input, caller.key, within_ms)?;
        let stdin = serde_json::to_vec(&request).map_err(|error| error.to_string())?;
        let command = Command::Argv(vec!["repl".into(), stdio::CALL.into()]);
        return Ok(Started { command, env, secrets, stdin: Some(stdin), server: Some(Server { name, argv }) });
    }
    let stdin = (tool == ToolKind::Exec).then(|| input.get("input").map_or_else(|| "{}".to_owned(), Value::to_string));
    Ok(Started { command, env, secrets, stdin: stdin.map(String::into_bytes), server: None })
}

fn argument(n: usize, value: &Value) -> Result<String, String> {
    let text = text(value).ok_or_else(|| format!("argument {n} is a list or an object: pass it as JSON text"))?;
    if text.contains('\0') || (n == 0 && text.is_empty()) {
        return Err(format!("argument {n} is not one that a process can be given"));
    }
    Ok(text)
}

/// Texts, and secrets by their names.
pub(crate) fn variables(env: Option<&Value>) -> Result<(BTreeMap<String, String>, BTreeMap<String, String>), String> {
    let (mut plain, mut secrets) = (BTreeMap::new(), BTreeMap::new());
    for (name, value) in env.and_then(Value::as_object).into_iter().flatten() {
        if let Some(secret) = value.get("secret").and_then(Value::as_str) {
            secrets.insert(name.clone(), secret.to_owned());
            continue;
        }
        let text =
            text(value).ok_or_else(|| format!("the variable {name} is a list or an object: pass it as JSON text"))?;
        if text.contains('\0') {
            return Err(format!("the variable {name} has a zero byte, which no environment can hold"));
        }
        plain.insert(name.clone(), text);
    }
    Ok((plain, secrets))
}

fn text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(_) | Value::Bool(_) => Some(value.to_string()),
        Value::Null => Some(String::new()),
        Value::Array(_) | Value::Object(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_arguments_and_variables() {
        let input = json!({ "argv": ["grep", "$(rm -rf /)", 7], "env": { "A": "'; exit", "N": 1.5, "K": { "secret": "KEY" } } });
        let started = read(ToolKind::Command, &input, Caller::default()).unwrap();
        assert_eq!(started.command, Command::Argv(vec!["grep".into(), "$(rm -rf /)".into(), "7".into()]));
        assert_eq!(started.env, BTreeMap::from([("A".into(), "'; exit".into()), ("N".into(), "1.5".into())]));
        assert_eq!((started.secrets["K"].as_str(), started.stdin), ("KEY", None));
        let exec = read(ToolKind::Exec, &json!({ "argv": ["./x"], "input": { "a": [1] } }), Caller::default()).unwrap();
        assert_eq!(exec.stdin.as_deref(), Some(br#"{"a":[1]}"#.as_slice()));
        assert_eq!(
            read(ToolKind::Exec, &json!({ "argv": ["./x"] }), Caller::default()).unwrap().stdin.as_deref(),
            Some(b"{}".as_slice())
        );
    }

    #[test]
    fn a_server_is_the_same_for_the_same_program_and_variables() {
        let caller = Caller { key: "k", timeout_ms: Some(5_000) };
        let of = |input: Value| read(ToolKind::Mcp, &input, caller).unwrap();
        let first = of(
            json!({ "argv": ["./s", "-v"], "tool": "add", "arguments": { "a": 1 }, "env": { "K": { "secret": "KEY" } } }),
        );
        assert_eq!(first.command, Command::Argv(vec!["repl".into(), "mcp-call".into()]));
        let asked: Value = serde_json::from_slice(first.stdin.as_deref().unwrap()).unwrap();
        assert_eq!(asked, json!({ "tool": "add", "arguments": { "a": 1 }, "key": "k", "timeout_ms": 5000 }));
        let name = |started: Started| started.server.unwrap().name;
        let (name_of_first, argv) = (first.server.clone().unwrap().name, first.server.unwrap().argv);
        assert_eq!(argv, ["./s", "-v"]);
        let other_tool = json!({ "argv": ["./s", "-v"], "tool": "sub", "env": { "K": { "secret": "KEY" } } });
        assert_eq!(name(of(other_tool)), name_of_first);
        for other in [
            json!({ "argv": ["./s"], "tool": "add", "env": { "K": { "secret": "KEY" } } }),
            json!({ "argv": ["./s", "-v"], "tool": "add", "env": { "K": "KEY" } }),
            json!({ "argv": ["./s", "-v"], "tool": "add" }),
        ] {
            assert_ne!(name(of(other.clone())), name_of_first, "{other}");
        }
        let list = of(json!({ "argv": ["./s"], "tools": ["add"] }));
        let asked: Value = serde_json::from_slice(list.stdin.as_deref().unwrap()).unwrap();
        assert_eq!(asked, json!({ "tools": ["add"], "key": "k", "timeout_ms": 5000 }));
    }

    #[test]
    fn what_no_process_can_be_given_is_refused() {
        let bad = [
            (ToolKind::Command, json!({})),
            (ToolKind::Command, json!({ "shell": " " })),
            (ToolKind::Command, json!({ "argv": [] })),
            (ToolKind::Command, json!({ "argv": [""] })),
            (ToolKind::Command, json!({ "argv": ["x", ["y"]] })),
            (ToolKind::Command, json!({ "argv": ["x", "a\u{0}b"] })),
            (ToolKind::Command, json!({ "shell": "x", "env": { "A": {} } })),
            (ToolKind::Command, json!({ "shell": "x", "env": { "A": "\u{0}" } })),
            (ToolKind::Exec, json!({ "shell": "x" })),
            (ToolKind::Mcp, json!({ "shell": "x", "tool": "t" })),
            (ToolKind::Mcp, json!({ "argv": ["x"], "tool": 7 })),
            (ToolKind::Mcp, json!({ "argv": ["x"], "tool": "t", "arguments": "text" })),
        ];
        for (tool, input) in bad {
            assert!(check(tool, &input).is_err(), "{input}");
        }
    }
}
