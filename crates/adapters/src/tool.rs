//! The trait of tools: one call with one effect, under the step's key. A tool never decides whether a step is tried
//! again, and knows no database. Tools that a worker of the control plane calls implement [`Tool`]; commands run on machines.

pub mod address;
pub mod connector;
mod exchange;
pub mod fake;
mod header;
pub mod http;
pub mod llm;
pub mod mask;
pub mod mcp;
mod sse;

pub use fake::FakeTool;

use model::Effect;
use model::plan::STEP_TIMEOUT_MS;
use model::recovery::{ErrorClass, StepFailure};
use model::run::LastError;
use serde_json::Value;
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

/// One try of a step. The row that says so is committed before the call.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolCall {
    /// The same for every try of the step. A tool hands it to the far side, which can recognise a repetition by it.
    pub key: String,
    /// The step's input with its expressions evaluated. Secrets are named in it, never contained.
    pub input: Value,
    /// Values of the secrets that the input names. They never appear in outputs, errors or logs.
    pub secrets: BTreeMap<String, String>,
    /// The step's time limit, if it has one. The caller enforces it; a tool that connects leaves itself time to say that nothing was sent.
    pub timeout_ms: Option<i64>,
}

impl ToolCall {
    /// How long the whole call may take.
    pub(crate) fn limit(&self) -> Duration {
        Duration::from_millis(self.timeout_ms.unwrap_or(STEP_TIMEOUT_MS).max(1) as u64)
    }
}

/// What a try used, for the price table.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ToolUsage {
    /// Model or endpoint, as the price table names it.
    pub of: String,
    pub input_tokens: i64,
    pub output_tokens: i64,
    /// The far side did not say: the numbers are ours.
    pub estimated: bool,
}

#[derive(Debug, Clone, PartialEq)]
pub struct ToolAnswer {
    pub output: Value,
    pub usage: Option<ToolUsage>,
}

/// A try that failed. Its [`StepFailure`] says which class of error it was and whether the effect may have happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolFailure {
    pub failure: StepFailure,
    /// What was used all the same: a model's answer that was cut off is paid.
    pub usage: Option<ToolUsage>,
}

impl ToolFailure {
    pub fn new(class: ErrorClass, effect: Effect, code: &str, message: impl Into<String>) -> ToolFailure {
        let error = LastError { code: code.to_owned(), message: message.into(), cause: None };
        ToolFailure { failure: StepFailure { class, effect, retry_after_ms: None, error }, usage: None }
    }

    pub fn retry_after_ms(mut self, wait_ms: Option<i64>) -> ToolFailure {
        self.failure.retry_after_ms = wait_ms;
        self
    }

    pub fn using(mut self, usage: Option<ToolUsage>) -> ToolFailure {
        self.usage = usage;
        self
    }
}

/// Text of a step as it comes: a model's words, a program's stderr. The holder of the step stores it in the step's log.
pub trait ToolLog: Send + Sync {
    fn write(&self, text: &[u8]);
}

/// Dropping it cuts the act off. Whether it had an effect by then is unknown.
pub type ToolFuture<'a> = Pin<Box<dyn Future<Output = Result<ToolAnswer, ToolFailure>> + Send + 'a>>;

/// Scheme, host and port of an address.
pub(crate) fn origin(url: &str) -> Option<String> {
    let origin = url::Url::parse(url).ok()?.origin();
    origin.is_tuple().then(|| origin.ascii_serialization())
}

pub trait Tool: Send + Sync {
    /// Names of secrets that a call needs beside those that its input names: the key of a model's server.
    fn secrets(&self, _input: &Value) -> Vec<String> {
        Vec::new()
    }

    /// What a call of this input is sent to, if the far side may ask for a pause that holds for all calls: scheme, host and port, and of
    /// a model its name.
    fn endpoint(&self, _input: &Value) -> Option<String> {
        None
    }

    /// The caller enforces the time limit by dropping the future.
    fn call<'a>(&'a self, call: &'a ToolCall, log: &'a dyn ToolLog) -> ToolFuture<'a>;
}
