//! Calls of functions: what is asked, and how an execution is.

use super::ErrorView;
use serde::{Deserialize, Serialize};

/// A function and the values it is applied to.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct AskCall {
    /// `dml+exec://ADAPTER/PATH?QUERY`.
    pub function: String,
    /// Values as JSON; `{"$bytes": …}`, `{"$uri": …}`, `{"$set": …}`, `{"$map": …}` and `{"$float": …}` are what JSON lacks. The adapter
    /// `dml-exec-repl` takes one input, the document of a run.
    #[serde(default)]
    pub inputs: Vec<serde_json::Value>,
    /// A kept result answers (the default). If false, the call is executed, and its result replaces the kept one.
    pub cache: Option<bool>,
}

/// A call: a hit, or an execution and how it is.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CallView {
    /// None: a kept result answered at once.
    pub id: Option<String>,
    pub function: String,
    /// The call node, which is the key of the result.
    pub node: String,
    /// `resolve_call_node`, `poll_adapter`, `integrate_ok`, `integrate_error` or `retry_wait` while it lasts; then `pinned_hit`,
    /// `completed_ok`, `completed_error` or `failed_terminal`.
    pub status: String,
    pub attempt: i64,
    /// It is over: `result` or `error` says how.
    pub ended: bool,
    /// None in listings.
    pub result: Option<CallResultView>,
    /// Why it failed, or what is tried again.
    pub error: Option<ErrorView>,
    /// When the adapter is asked again.
    pub asked_again_at: Option<i64>,
    pub started_at: Option<i64>,
    pub ended_at: Option<i64>,
    /// The run that executes it, if one does.
    pub run: Option<String>,
    /// The run that executed it failed, or is gone, and said nothing about the call: why, as a value. It answers no other caller.
    #[serde(default)]
    pub failure: Option<CallFailureView>,
}

/// Why a run that executed a call has left no result.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CallFailureView {
    pub dag: String,
    /// `type`, `message`, `origin` and `stack`. None: it was deleted.
    pub value: Option<serde_json::Value>,
}

/// The result of a call.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CallResultView {
    pub exec: String,
    /// `ok`, or `error` if the value describes a failure of the function.
    pub status: String,
    /// None: it was deleted, or is no value.
    pub value: Option<serde_json::Value>,
}
