//! A hook that hears every statement of a store, with its arguments. `repl bench` runs the same statements on a bare connection.

use crate::value::Value;
use std::sync::Arc;

pub enum Recorded<'a> {
    /// A closure of this name begins; the statements that follow are its own.
    Closure(&'static str),
    /// A statement is about to run: its text as this database gets it, and its arguments.
    Statement { text: &'a str, args: &'a [Value] },
}

/// See `Options::recorder`. Called on the thread that runs the closure.
pub type Recorder = Arc<dyn Fn(Recorded<'_>) + Send + Sync>;
