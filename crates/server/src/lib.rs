//! HTTP, SSE, auth. Only authenticates, decodes and encodes: every writing transaction is a function of `engine`.
#![allow(clippy::disallowed_methods, reason = "lives in real time: the engine below it does not")]

mod agents;
mod allocation;
mod artifact;
mod audit;
mod auth;
#[cfg(test)]
mod awaited;
mod binary;
mod blob;
mod cache;
mod call;
mod call_log;
mod control;
mod dag;
mod definition;
mod event;
mod exact;
mod follow;
#[cfg(test)]
mod hostile;
mod hub;
mod input;
mod instance;
mod ledger;
mod limit;
mod listen;
mod log;
mod manifest;
mod message;
mod metrics;
#[cfg(test)]
mod network;
mod openapi;
mod orphan;
mod pages;
#[cfg(test)]
mod polled;
mod pool;
mod problem;
mod provider;
mod question;
mod relay;
#[cfg(test)]
mod repeated;
mod routes;
mod run;
mod run_log;
mod runner;
mod secret;
mod serve;
mod settings;
mod snapshot;
mod step;
#[cfg(test)]
mod strict;
mod submit;
mod tls;
mod token;
mod token_cache;
mod tools;
mod tree;
mod unique;
mod usage;
mod view;
mod worker;
mod workflow;

/// Bounds of what is sent, for the manual.
pub use blob::BLOB_BYTES;
/// Execution adapters of calls: `dml-exec-local`, the suite of `repl adapter check`, and exchanges with workers.
pub use engine::adapters::call as adapter;
pub use engine::adapters::registry::BadSetting;
pub use engine::adapters::remote;
/// What `repl runner host` and `repl runner relay` do on a host of a provider `ssh`.
pub use engine::adapters::ssh::{relay::relay as relay_on_host, remote::answer as answer_on_host};
/// Servers of agents on their machines, and calls of them: what `repl mcp-serve` and `repl mcp-call` do.
pub use engine::adapters::tool::mcp::stdio as mcp;
/// Artifacts of one run in sum.
pub use engine::artifact::RUN_BYTES as ARTIFACT_BYTES;
pub use input::{BODY_BYTES, COMPLETION_BYTES};
pub use pages::{PagesConfig, run_commands};
pub use serve::{FirstToken, Ready, make_owner_token, owner_proof, run};
pub use settings::{Config, Role, Settings, StoreConfig};
pub use submit::MAX_PROVIDERS;

pub use tls::TlsFiles;

use engine::Engine;
use hub::Hub;
use std::sync::Arc;
use std::sync::atomic::AtomicI64;
use tokio::sync::watch;

/// What every request may use.
pub(crate) struct AppState {
    pub(crate) engine: Engine,
    pub(crate) hub: Hub,
    pub(crate) sources: event::Sources,
    pub(crate) tokens: token_cache::TokenCache,
    pub(crate) limits: limit::Limits,
    pub(crate) started_at: i64,
    pub(crate) url: Option<String>,
    /// True once the process is on its way out: streams end, nothing new is accepted.
    pub(crate) closing: watch::Sender<bool>,
    /// When the last request arrived.
    pub(crate) asked_at: AtomicI64,
    pub(crate) requests: AtomicI64,
    /// Requests that were answered 500.
    pub(crate) failures: AtomicI64,
    pub(crate) pages: pages::Pages,
    /// What looks at this machine, and the data folder that it looks at.
    pub(crate) doctor: (settings::Doctor, std::path::PathBuf),
}

pub(crate) type Shared = Arc<AppState>;

pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");

pub(crate) fn now_ms() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| since.as_millis() as i64)
}
