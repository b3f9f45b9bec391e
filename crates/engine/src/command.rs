//! What a step of kind `command` or `exec` is started with, from its evaluated input: a text for the shell or arguments, variables, and
//! the JSON that an `exec` reads. Values never pass through a shell: they are arguments and variables.

use model::spec::Command;
use model::step::ToolKind;
use serde_json::Value;
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
}

/// Whether a machine could start it. The words say what is wrong and where.
pub(crate) fn check(tool: ToolKind, input: &Value) -> Result<(), String> {
    read(tool, input).map(drop)
}

pub(crate) fn read(tool: ToolKind, input: &Value) -> Result<Started, String> {
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
    let stdin = (tool == ToolKind::Exec).then(|| input.get("input").map_or_else(|| "{}".to_owned(), Value::to_string));
    Ok(Started { command, env, secrets, stdin: stdin.map(String::into_bytes) })
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
    use serde_json::json;

    #[test]
    fn values_are_arguments_and_variables() {
        let input = json!({ "argv": ["grep", "$(rm -rf /)", 7], "env": { "A": "'; exit", "N": 1.5, "K": { "secret": "KEY" } } });
        let started = read(ToolKind::Command, &input).unwrap();
        assert_eq!(started.command, Command::Argv(vec!["grep".into(), "$(rm -rf /)".into(), "7".into()]));
        assert_eq!(started.env, BTreeMap::from([("A".into(), "'; exit".into()), ("N".into(), "1.5".into())]));
        assert_eq!((started.secrets["K"].as_str(), started.stdin), ("KEY", None));
        let exec = read(ToolKind::Exec, &json!({ "argv": ["./x"], "input": { "a": [1] } })).unwrap();
        assert_eq!(exec.stdin.as_deref(), Some(br#"{"a":[1]}"#.as_slice()));
        assert_eq!(read(ToolKind::Exec, &json!({ "argv": ["./x"] })).unwrap().stdin.as_deref(), Some(b"{}".as_slice()));
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
        ];
        for (tool, input) in bad {
            assert!(check(tool, &input).is_err(), "{input}");
        }
    }
}
