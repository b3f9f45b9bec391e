//! The `repl` binary.

fn main() {}
