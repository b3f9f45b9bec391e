//! External systems: providers of machines, tools of steps, adapters and remotes of calls. Knows no database and takes no decision of the engine.
#![allow(clippy::disallowed_methods, reason = "lives in real time: the engine below it does not")]

pub mod call;
pub mod conformance;
pub mod exec;
pub mod fake;
pub mod local;
mod notify;
pub mod provider;
pub mod registry;
pub mod remote;
pub mod ssh;
pub mod tool;

pub use exec::{ExecProvider, ExecSettings};
pub use fake::FakeProvider;
pub use local::{LocalProvider, LocalSettings};
pub use notify::Notifier;
pub use provider::{
    Capabilities, Handle, Linked, ListAsk, Listed, ListedPage, LookAsk, Looks, Order, Platform, PriceLine, Provider,
    ProviderFuture, Reach, Room, Seen,
};
pub use ssh::{SshProvider, SshSettings};
pub use tool::{FakeTool, Tool, ToolAnswer, ToolCall, ToolFailure, ToolFuture, ToolLog, ToolUsage};
