//! The output of the tool `http`: status, some headers, and the body as JSON, text, or base64.

use crate::tool::{ToolFailure, exchange};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use model::Effect;
use model::recovery::ErrorClass;
use reqwest::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderMap};
use serde_json::{Map, Value, json};

/// Headers that a later step can use. Cookies are not among them: they are credentials.
const KEPT: [&str; 14] = [
    "cache-control",
    "content-disposition",
    "content-encoding",
    "content-language",
    "content-length",
    "content-range",
    "content-type",
    "date",
    "etag",
    "expires",
    "last-modified",
    "link",
    "location",
    "x-request-id",
];

pub fn of(status: u16, headers: &HeaderMap, body: Vec<u8>) -> Result<Value, ToolFailure> {
    let (body, encoding) = readable(headers, body)?;
    Ok(json!({"status": status, "headers": kept(headers), "body": body, "encoding": encoding}))
}

fn kept(headers: &HeaderMap) -> Map<String, Value> {
    let found = KEPT.iter().filter_map(|name| {
        let values: Vec<_> = headers.get_all(*name).iter().filter_map(|value| value.to_str().ok()).collect();
        (!values.is_empty()).then(|| ((*name).to_owned(), Value::String(values.join(", "))))
    });
    found.collect()
}

/// The body, and how it is written: `json`, `text` or `base64`.
fn readable(headers: &HeaderMap, body: Vec<u8>) -> Result<(Value, &'static str), ToolFailure> {
    // Asked for identity, the server packed it all the same. It stays packed: what it unpacks to has no bound.
    let packed = headers.get(CONTENT_ENCODING).is_some_and(|value| value != "identity");
    if !packed && is_json(headers) && !body.is_empty() {
        return serde_json::from_slice(&body).map(|value| (value, "json")).map_err(|error| {
            let text = String::from_utf8_lossy(&body);
            let message = format!("the answer says that it is JSON, and is not: {error}: {}", exchange::shown(&text));
            ToolFailure::new(ErrorClass::InvalidOutput, Effect::Done, "invalid_output", message)
        });
    }
    match String::from_utf8(body) {
        // PostgreSQL cannot store NUL in a text.
        Ok(text) if !packed && !text.contains('\0') => Ok((Value::String(text), "text")),
        Ok(text) => Ok((Value::String(STANDARD.encode(text)), "base64")),
        Err(error) => Ok((Value::String(STANDARD.encode(error.as_bytes())), "base64")),
    }
}

fn is_json(headers: &HeaderMap) -> bool {
    let Some(text) = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()) else { return false };
    let kind = text.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    kind == "application/json" || kind.ends_with("+json")
}
