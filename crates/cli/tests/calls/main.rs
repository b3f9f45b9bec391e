//! Execution adapters with the real binary: the conformance suite, the example, and `dml-exec-local`.

mod adapter;
