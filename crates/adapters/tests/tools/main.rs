//! The tools that a worker calls, against servers on 127.0.0.1 that misbehave by script.

mod connector;
mod every;
mod http;
mod llm;
mod mcp;
mod server;
mod stdio;

use adapters::tool::address::{AddressPolicy, Profile};
use adapters::tool::connector::Connector;
use adapters::{ToolCall, ToolFailure, ToolLog};
use model::Effect;
use model::recovery::ErrorClass;
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// A step's log, kept.
#[derive(Default)]
pub struct Kept(Mutex<Vec<u8>>);

impl Kept {
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().unwrap()).into_owned()
    }
}

impl ToolLog for Kept {
    fn write(&self, text: &[u8]) {
        self.0.lock().unwrap().extend_from_slice(text);
    }
}

pub fn embedded() -> Arc<Connector> {
    Arc::new(Connector::new(AddressPolicy::new(Profile::Embedded, Vec::new(), Vec::new())))
}

pub fn call(input: Value, secrets: &[(&str, &str)]) -> ToolCall {
    let secrets = secrets.iter().map(|(name, value)| (name.to_string(), value.to_string()));
    ToolCall { key: "step-key".to_owned(), input, secrets: BTreeMap::from_iter(secrets), timeout_ms: None }
}

pub fn is(failed: &ToolFailure, class: ErrorClass, effect: Effect, code: &str) {
    let failure = &failed.failure;
    let found = (failure.class, failure.effect, failure.error.code.as_str());
    assert_eq!(found, (class, effect, code), "{}", failure.error.message);
}
