//! Everything we do not own: providers of machines. Knows no database and decides nothing.

pub mod provider;

pub use provider::{Act, Capabilities, Handle, Listed, Order, Provider, Seen};
