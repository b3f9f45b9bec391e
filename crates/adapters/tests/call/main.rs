//! Execution adapters as real processes: what their answers and failures become.

mod invoke;
