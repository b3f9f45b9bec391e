//! Calls: a function applied to inputs, whose identity is its content, so that the same thing is never computed twice.
//! Objects and their canonical encoding, the exec map, refs and history, the protocol of adapters, and the key of a cached run.
//! Pure: no clock, no randomness, no I/O. Storing objects and executing calls is the work of others.

pub mod adapter;
mod builtin;
pub mod cached_run;
pub mod call;
mod cbor;
pub mod datum;
pub mod exchange;
pub mod exec_map;
pub mod function;
pub mod history;
pub mod id;
pub mod json;
pub mod key;
pub mod name;
pub mod object;
pub mod reach;
pub mod read;
pub mod record;
pub mod refs;
pub mod scalar;
pub mod trie;
pub mod unreadable;
pub mod uri;
pub mod value;
pub mod why;

pub use id::{CommitId, DagId, DatumId, ExecId, ExecMapId, Id, NodeId, Reference, TreeId};
pub use object::{Kind, Object};
pub use read::{Fault, Memory, Read, Records};
pub use unreadable::{Code, Unreadable};
pub use value::Value;
