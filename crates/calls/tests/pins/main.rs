//! The exec map as a trie, pins as amendments of the index commit, and history.

mod history;
mod trie;
