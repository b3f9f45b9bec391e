//! The identity of a step and the key of what it does. The same identity and key mean the same effect: its record answers, and the tool is
//! handed the key so that it can recognise a repetition.

use model::RunId;
use model::step::ToolKind;
use serde_json::Value;
use std::fmt;

/// Changing what is hashed needs a new context, or old records would answer for other inputs.
const KEY: &str = "remuda step key 1";
const CONTENT: &str = "remuda step content 1";

/// Up to here, a float holds each whole number exactly.
const MAX_EXACT: f64 = 9_007_199_254_740_992.0;

/// A step by its logical names, never by row ids: a retry and a new attempt find the same record.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Identity {
    pub agent: String,
    /// With its position if the task was made for an item: `mail[0]`.
    pub task: String,
    /// Below a step that has children, their path: `write/t3/c1`.
    pub step: String,
    /// Raised when a finished step is to run again.
    pub generation: i64,
}

pub fn identity(agent: &str, task: &str, step: &str, generation: i64) -> Identity {
    Identity { agent: agent.to_owned(), task: task.to_owned(), step: step.to_owned(), generation }
}

impl fmt::Display for Identity {
    /// Unambiguous: names contain neither `/` nor `#`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}#{}", self.agent, self.task, self.step, self.generation)
    }
}

/// It is no text that an identity is written as.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not agent/task/step#generation")]
pub struct BadIdentity;

impl std::str::FromStr for Identity {
    type Err = BadIdentity;

    fn from_str(text: &str) -> Result<Identity, BadIdentity> {
        let (names, generation) = text.rsplit_once('#').ok_or(BadIdentity)?;
        let mut names = names.splitn(3, '/');
        let mut next = || names.next().ok_or(BadIdentity);
        let (agent, task, step) = (next()?, next()?, next()?);
        Ok(identity(agent, task, step, generation.parse().map_err(|_| BadIdentity)?))
    }
}

/// The key of a step with its rendered input. Secrets stand in it as `{secret: NAME}`: their values are not hashed.
pub fn key(run: RunId, identity: &Identity, tool: ToolKind, input: &Value) -> String {
    let mut hasher = blake3::Hasher::new_derive_key(KEY);
    for part in [&run.to_string(), &identity.agent, &identity.task, &identity.step, &identity.generation.to_string()] {
        write_text(part, &mut hasher);
    }
    write_text(tool.as_str(), &mut hasher);
    write(input, &mut hasher);
    hasher.finalize().to_hex().to_string()
}

/// The hash of what a step does, whatever its name. After a new plan it finds a step that was begun under another name.
pub fn content(tool: ToolKind, input: &Value) -> String {
    let mut hasher = blake3::Hasher::new_derive_key(CONTENT);
    write_text(tool.as_str(), &mut hasher);
    write(input, &mut hasher);
    hasher.finalize().to_hex().to_string()
}

/// JSON in one spelling: keys sorted by their bytes, no spaces. A number that is whole is written without a fraction, any other one with the
/// fewest digits that give it back and an exponent (`1.5e0`), since libraries spell it in different ways.
pub fn canonical(value: &Value) -> String {
    let mut text = String::new();
    write(value, &mut text);
    text
}

/// Where canonical JSON goes: a hash, or a text.
trait Sink {
    fn put(&mut self, text: &str);
}

impl Sink for blake3::Hasher {
    fn put(&mut self, text: &str) {
        self.update(text.as_bytes());
    }
}

impl Sink for String {
    fn put(&mut self, text: &str) {
        self.push_str(text);
    }
}

fn write_text(text: &str, to: &mut impl Sink) {
    to.put(&Value::from(text).to_string());
}

fn write(value: &Value, to: &mut impl Sink) {
    match value {
        Value::Number(number) => match number.as_f64().filter(|_| number.is_f64()) {
            Some(float) if float.fract() == 0.0 && float.abs() < MAX_EXACT => to.put(&(float as i64).to_string()),
            Some(float) => to.put(&format!("{float:e}")),
            None => to.put(&number.to_string()),
        },
        Value::Array(list) => {
            to.put("[");
            for (at, item) in list.iter().enumerate() {
                to.put(if at > 0 { "," } else { "" });
                write(item, to);
            }
            to.put("]");
        }
        Value::Object(fields) => {
            let mut sorted: Vec<(&String, &Value)> = fields.iter().collect();
            sorted.sort_by_key(|(name, _)| *name);
            to.put("{");
            for (at, (name, item)) in sorted.into_iter().enumerate() {
                to.put(if at > 0 { "," } else { "" });
                write_text(name, to);
                to.put(":");
                write(item, to);
            }
            to.put("}");
        }
        scalar => to.put(&scalar.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn run() -> RunId {
        RunId(12345)
    }

    #[test]
    fn an_identity_is_read_as_it_is_written() {
        for written in [identity("a", "mail[0]", "send", 1), identity("a", "t", "write/t3/c1", 12)] {
            assert_eq!(written.to_string().parse(), Ok(written));
        }
        for bad in ["", "a/b#1", "a/b/c", "a/b/c#x"] {
            assert_eq!(bad.parse::<Identity>(), Err(BadIdentity), "{bad}");
        }
    }

    #[test]
    fn json_has_one_spelling() {
        let value = json!({ "b": [1.0, 1.5, -0.0, 1e300, true, null], "a": { "ü\"": "\n" } });
        assert_eq!(canonical(&value), r#"{"a":{"ü\"":"\n"},"b":[1,1.5e0,0,1e300,true,null]}"#);
        let other: Value =
            serde_json::from_str(r#"{ "a": {"ü\"": "\u000a"}, "b": [1, 1.50, 0, 1e+300, true, null] }"#).unwrap();
        assert_eq!(canonical(&value), canonical(&other));
    }

    /// Records are found by these. A change here makes every recorded step run again.
    #[test]
    fn keys_are_what_they_were() {
        let page = identity("research", "sources", "page", 1);
        let input = json!({ "method": "GET", "url": "https://data.example/figures", "query": { "topic": "solar" } });
        let send = identity("research", "mail[0]", "send/t3/c1", 2);
        let secret = json!({ "headers": { "Authorization": { "secret": "TOKEN" } } });
        let found = [
            key(run(), &page, ToolKind::Http, &input),
            key(run(), &send, ToolKind::Http, &secret),
            key(run(), &page, ToolKind::Llm, &Value::Null),
            content(ToolKind::Http, &input),
        ];
        assert_eq!(
            found,
            [
                "3ff74c0db742ba37c241393c26010c799dc46a54773e54fa5f59ae95bb813193",
                "e97312be7bbb4dd9d7e3a29a7806f41fe7d532c86eb2f0b01bf97a462c0bdf8a",
                "8b95b9a03beb9ded172e30fa3d92145c9ae9129cefbd1cf9aca7c27960741fa3",
                "3cea1b6fa3ac952b54c0c530f97efda8a9c0b38cad2be0a0224f1e33880e71ac",
            ]
        );
        assert_eq!(send.to_string(), "research/mail[0]/send/t3/c1#2");
    }

    #[test]
    fn whatever_differs_gives_another_key() {
        let input = json!({ "a": "b" });
        let mut keys = std::collections::BTreeSet::new();
        for id in [
            identity("a", "b", "c", 1),
            identity("ab", "", "c", 1),
            identity("a", "b", "c", 2),
            identity("a", "bc", "", 1),
        ] {
            for tool in [ToolKind::Http, ToolKind::Exec] {
                for input in [&input, &json!({ "a": "c" }), &json!({ "a": ["b"] }), &json!(null)] {
                    assert!(keys.insert(key(run(), &id, tool, input)), "{id} {tool} {input}");
                }
            }
        }
    }
}
