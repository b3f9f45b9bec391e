//! Puts a streamed answer together. Servers cut tool calls into fragments in different ways, leave out ids, indexes and ends.

use super::trouble;
use crate::tool::{ToolFailure, exchange};
use serde_json::{Value, json};

/// No answer has more. A server that says so is not believed: its usage is estimated.
const MOST_TOKENS: i64 = 1_000_000_000;

#[derive(Debug, Default)]
pub struct Completion {
    content: Option<String>,
    refusal: Option<String>,
    calls: Vec<Call>,
    finish_reason: Option<String>,
    usage: Option<(i64, i64)>,
    /// Thoughts are paid like the answer, and not kept.
    thought_bytes: usize,
    done: bool,
}

#[derive(Debug, Default)]
struct Call {
    index: Option<u64>,
    id: Option<String>,
    name: String,
    arguments: String,
}

impl Completion {
    /// Takes a chunk of a stream, or a whole answer. Returns the text to show.
    pub fn take(&mut self, chunk: &Value) -> String {
        // Also in chunks without choices: the last one has the usage.
        if let Some(usage) = chunk.get("usage").filter(|usage| usage.is_object()) {
            self.take_usage(usage);
        }
        let Some(choice) = chunk["choices"].get(0) else { return String::new() };
        if let Some(reason) = choice["finish_reason"].as_str().filter(|reason| !reason.is_empty()) {
            self.finish_reason = Some(reason.to_owned());
        }
        let part = if choice["delta"].is_object() { &choice["delta"] } else { &choice["message"] };
        for field in ["reasoning_content", "reasoning"] {
            self.thought_bytes += part[field].as_str().map_or(0, str::len);
        }
        if let Some(refusal) = part["refusal"].as_str() {
            self.refusal.get_or_insert_default().push_str(refusal);
        }
        for (place, fragment) in part["tool_calls"].as_array().into_iter().flatten().enumerate() {
            // A whole answer has no indexes; neither have the chunks of some servers.
            let whole = choice["delta"].is_null();
            self.fragment(fragment, whole.then_some(place as u64));
        }
        let text = part["content"].as_str().unwrap_or_default();
        if part["content"].is_string() {
            self.content.get_or_insert_default().push_str(text);
        }
        text.to_owned()
    }

    fn take_usage(&mut self, usage: &Value) {
        let tokens = |field: &str| usage[field].as_i64().filter(|tokens| (0..=MOST_TOKENS).contains(tokens));
        if let (Some(input), Some(output)) = (tokens("prompt_tokens"), tokens("completion_tokens")) {
            // Some servers count as they go. The last numbers are the whole, and zeros say nothing.
            if input + output > 0 {
                self.usage = Some((input, output));
            }
        }
    }

    fn fragment(&mut self, fragment: &Value, place: Option<u64>) {
        let index = fragment["index"].as_u64().or(place);
        let id = fragment["id"].as_str().filter(|id| !id.is_empty());
        let function = &fragment["function"];
        let name = function["name"].as_str().unwrap_or_default();
        let at = self.call_of(index, id, name);
        let call = &mut self.calls[at];
        call.id = call.id.take().or_else(|| id.map(str::to_owned));
        // The name is repeated by some servers, and cut by others before the arguments begin.
        if call.name != name && call.arguments.is_empty() {
            call.name.push_str(name);
        }
        match &function["arguments"] {
            Value::String(text) => call.arguments.push_str(text),
            Value::Null => {}
            whole => call.arguments = whole.to_string(),
        }
    }

    /// The call that a fragment belongs to, a new one if none.
    fn call_of(&mut self, index: Option<u64>, id: Option<&str>, name: &str) -> usize {
        let found = match (index, id) {
            (Some(index), _) => self.calls.iter().rposition(|call| call.index == Some(index)),
            (None, Some(id)) => self.calls.iter().rposition(|call| call.id.as_deref() == Some(id)),
            // Neither: a name begins a call, anything else goes on with the last one.
            (None, None) if name.is_empty() => self.calls.len().checked_sub(1),
            (None, None) => None,
        };
        // Some servers give every call index 0 and tell them apart by their ids.
        let same = found.filter(|at| match (&self.calls[*at].id, id) {
            (Some(known), Some(id)) => known == id || name.is_empty(),
            _ => true,
        });
        same.unwrap_or_else(|| {
            self.calls.push(Call { index, ..Call::default() });
            self.calls.len() - 1
        })
    }

    pub fn done(&mut self) {
        self.done = true;
    }

    pub fn is_done(&self) -> bool {
        self.done
    }

    /// The server said how the answer ended. The usage may still come.
    pub fn is_finished(&self) -> bool {
        self.done || self.finish_reason.is_some()
    }

    pub fn usage(&self) -> Option<(i64, i64)> {
        self.usage
    }

    /// Of everything that the model wrote.
    pub fn bytes(&self) -> usize {
        let calls: usize = self.calls.iter().map(|call| call.name.len() + call.arguments.len()).sum();
        let texts = [&self.content, &self.refusal].into_iter().flatten().map(String::len).sum::<usize>();
        texts + calls + self.thought_bytes
    }

    /// `{message: {content, tool_calls, refusal?, json?}, finish_reason}`.
    pub fn output(&self, wants_json: bool) -> Result<Value, ToolFailure> {
        if !self.is_finished() {
            return Err(trouble::cut());
        }
        if self.finish_reason.is_none() && self.content.is_none() && self.calls.is_empty() && self.refusal.is_none() {
            return Err(trouble::not_a_model("an answer without a message"));
        }
        let calls: Vec<Value> = self.calls.iter().map(Call::output).collect();
        // Not every server says `tool_calls`, and some say nothing at all.
        let reason = match self.finish_reason.as_deref() {
            None | Some("stop" | "function_call") if !calls.is_empty() => "tool_calls",
            None => "stop",
            Some(reason) => reason,
        };
        let mut message = json!({"content": self.content, "tool_calls": calls});
        if let Some(refusal) = &self.refusal {
            message["refusal"] = Value::String(refusal.clone());
        }
        if wants_json && calls.is_empty() && self.refusal.is_none() {
            // A wrong answer is an answer: the caller tells the model what is wrong with it.
            match self.json(reason) {
                Ok(value) => message["json"] = value,
                Err(why) => message["json_error"] = why.into(),
            }
        }
        Ok(json!({"message": message, "finish_reason": reason}))
    }

    fn json(&self, reason: &str) -> Result<Value, String> {
        let text = self.content.as_deref().unwrap_or_default();
        let read = serde_json::from_str(unfenced(text));
        read.map_err(|error| format!("it is no JSON (it ended with `{reason}`): {error}: {}", exchange::shown(text)))
    }
}

impl Call {
    /// Arguments that are no JSON object are handed on as text, marked: they are never guessed.
    fn output(&self) -> Value {
        let text = if self.arguments.trim().is_empty() { "{}" } else { &self.arguments };
        match serde_json::from_str::<Value>(text) {
            Ok(arguments) if arguments.is_object() => json!({"name": self.name, "arguments": arguments}),
            _ => json!({"name": self.name, "arguments": null, "unparseable": self.arguments}),
        }
    }
}

/// Without the fence that models like to put around JSON.
fn unfenced(text: &str) -> &str {
    let text = text.trim();
    let inner =
        text.strip_prefix("```json").or_else(|| text.strip_prefix("```")).and_then(|rest| rest.strip_suffix("```"));
    inner.unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_usage_that_cannot_be_is_not_believed() {
        let used = |input: i64, output: i64| {
            let mut answer = Completion::default();
            answer.take(&json!({ "usage": { "prompt_tokens": input, "completion_tokens": output } }));
            answer.usage()
        };
        assert_eq!(used(10, 5), Some((10, 5)));
        for (input, output) in [(i64::MAX, i64::MAX), (i64::MAX, 1), (1, MOST_TOKENS + 1), (-5, 7), (0, 0)] {
            assert_eq!(used(input, output), None, "{input} and {output}");
        }
    }
}
