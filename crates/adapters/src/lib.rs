//! Everything we do not own: providers of machines. Knows no database and decides nothing.
#![allow(clippy::disallowed_methods, reason = "lives in real time: the engine below it does not")]

pub mod conformance;
pub mod fake;
pub mod local;
pub mod provider;

pub use fake::FakeProvider;
pub use local::{LocalProvider, LocalSettings};
pub use provider::{Capabilities, Handle, Listed, Order, Provider, ProviderFuture, Seen};
