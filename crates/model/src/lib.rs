//! The entities, their states and events, and the transition rules. Pure: no clock, no randomness, no I/O.
//!
//! Every entity with a status has one function `apply(&entity, &event, at)`; its consequences are data, which the caller writes.

pub mod agent;
pub mod allocation;
pub mod attempt;
pub mod boot;
pub mod children;
pub mod claim;
pub mod credits;
pub mod execution;
pub mod fault;
pub mod feature;
pub mod hierarchy;
pub mod hold;
pub mod host;
pub mod id;
pub mod idle_billing;
pub mod instance;
pub mod job;
pub mod job_counters;
pub mod ledger;
pub mod limits;
pub mod log;
pub mod manifest;
pub mod names;
pub mod offer;
pub mod orphan;
pub mod plan;
pub mod pool;
pub mod provider_row;
pub mod question;
pub mod recovery;
pub mod refused;
pub mod run;
pub mod secret;
pub mod snapshot;
pub mod spec;
pub mod step;
pub mod string_enum;
pub mod stub;
pub mod task;
pub mod time;
pub mod tree;
pub mod usage;
pub mod workflow;
#[cfg(bug_zoo)]
mod zoo;

pub use credits::Credits;
pub use id::*;
pub use limits::Limits;
pub use refused::{Effect, Failure, Refused, Trouble, TroubleKind};
pub use time::Timestamp;

/// What a life did with an event: moved on, with rows to write, or it had happened already.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome<E, C> {
    Moved { next: E, consequences: Vec<C> },
    Unchanged,
}

pub fn moved<E, C>(next: E, consequences: impl Into<Vec<C>>) -> Result<Outcome<E, C>, Refused> {
    Ok(Outcome::Moved { next, consequences: consequences.into() })
}

/// A repeated event: reported twice, asked twice.
pub fn unchanged<E, C>() -> Result<Outcome<E, C>, Refused> {
    Ok(Outcome::Unchanged)
}
