//! What the errors of a model's server mean. Servers agree on little but the status, so codes, types and texts are looked at too.

use crate::tool::{ToolFailure, exchange};
use model::Effect;
use model::recovery::ErrorClass;
use serde_json::Value;
use std::time::Duration;

/// The prompt does not fit: the caller makes it shorter, once.
pub const CONTEXT_LENGTH: &str = "context_length";

/// How servers say that the prompt is too long, in lower case.
const TOO_LONG: [&str; 9] = [
    "context_length",
    "context length",
    "context window",
    "context size",
    "maximum context",
    "prompt is too long",
    "input is too long",
    "too many tokens",
    "exceeds the available context",
];
const OUT_OF_MONEY: [&str; 4] = ["insufficient_quota", "exceeded your current quota", "credit balance", "billing"];
const OVERLOADED: [&str; 2] = ["overloaded", "rate_limit"];

pub fn of_status(status: u16, text: &str) -> ToolFailure {
    let lower = text.to_ascii_lowercase();
    let message = format!("HTTP {status}: {}", exchange::shown(&said(text)));
    if matches!(status, 400 | 413 | 422 | 500) && contains(&lower, &TOO_LONG) {
        return ToolFailure::new(ErrorClass::Permanent, Effect::Done, CONTEXT_LENGTH, message);
    }
    if matches!(status, 402 | 429) && (status == 402 || contains(&lower, &OUT_OF_MONEY)) {
        // Waiting does not help, unlike with other answers 429.
        return ToolFailure::new(ErrorClass::Permanent, Effect::None, "quota", message);
    }
    match status {
        529 => ToolFailure::new(ErrorClass::RateLimited, Effect::None, "overloaded", message),
        503 if contains(&lower, &OVERLOADED) => {
            ToolFailure::new(ErrorClass::RateLimited, Effect::None, "overloaded", message)
        }
        _ => match exchange::failed_status(status) {
            Some((class, effect, code)) => ToolFailure::new(class, effect, code, message),
            // A success without a chat in it, or a redirect: `base_url` is wrong.
            None => not_a_model(&message),
        },
    }
}

/// An error in the midst of a stream that began with status 200.
pub fn in_stream(error: &Value) -> ToolFailure {
    let text = error.to_string();
    let lower = text.to_ascii_lowercase();
    let status = ["status", "code", "status_code"].iter().find_map(|field| {
        let value = error.get(field)?;
        value.as_u64().or_else(|| value.as_str()?.parse().ok()).filter(|status| (400..600).contains(status))
    });
    if contains(&lower, &TOO_LONG) {
        return ToolFailure::new(ErrorClass::Permanent, Effect::Done, CONTEXT_LENGTH, said(&text));
    }
    let status = status.map(|status| status as u16).or(contains(&lower, &OUT_OF_MONEY).then_some(402));
    if let Some(status) = status {
        let mut failed = of_status(status, &text);
        // The model had begun.
        if failed.failure.effect == Effect::None {
            failed.failure.effect = Effect::Perhaps;
        }
        return failed;
    }
    if contains(&lower, &OVERLOADED) {
        return ToolFailure::new(ErrorClass::RateLimited, Effect::Perhaps, "overloaded", said(&text));
    }
    ToolFailure::new(ErrorClass::Unknown, Effect::Perhaps, "in_stream", said(&text))
}

pub fn invalid_input(why: &str) -> ToolFailure {
    ToolFailure::new(ErrorClass::Permanent, Effect::None, "invalid_input", format!("llm: {why}"))
}

/// What answers is no chat server, or not a sane one.
pub fn not_a_model(what: &str) -> ToolFailure {
    let message = format!("the server does not answer as a chat server does (is base_url right?): {what}");
    ToolFailure::new(ErrorClass::Permanent, Effect::Done, "not_a_model", message)
}

pub fn cut() -> ToolFailure {
    ToolFailure::new(ErrorClass::Transient, Effect::Perhaps, "cut", "the stream ended before the answer did")
}

pub fn silent(within: Duration) -> ToolFailure {
    let message = format!("nothing arrived for {} ms", within.as_millis());
    ToolFailure::new(ErrorClass::Transient, Effect::Perhaps, "timeout", message)
}

fn contains(text: &str, needles: &[&str]) -> bool {
    needles.iter().any(|needle| text.contains(needle))
}

/// The message inside an error document, else the whole text.
fn said(text: &str) -> String {
    let parsed: Option<Value> = serde_json::from_str(text).ok();
    let error = parsed.as_ref().map(|value| value.get("error").unwrap_or(value));
    let message = error.and_then(|error| error.get("message").unwrap_or(error).as_str());
    message.unwrap_or(text).to_owned()
}
