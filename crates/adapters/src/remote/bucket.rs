//! What a remote needs of the place where it is stored: immutable keys, and refs that change by compare-and-swap. This is all that
//! differs between a folder and S3.

use model::Trouble;
use std::io;

/// Keys are `/`-separated and made by us: letters, digits, `-`, `_`, `~`, `%`, `+` and inner dots. All calls block.
pub trait Bucket: Send + Sync {
    /// All bytes of a key; an error if it has more than `most`.
    fn whole(&self, key: &str, most: u64) -> Result<Option<Vec<u8>>, Trouble>;
    /// A part of a key. Fewer bytes if the key ends before.
    fn range(&self, key: &str, at: u64, bytes: u64) -> Result<Option<Vec<u8>>, Trouble>;
    /// Makes a key that is there with all its bytes or not at all. The caller chose a name that no other writer chooses.
    fn create(&self, key: &str, bytes: &[u8]) -> Result<(), Trouble>;
    /// The same for more bytes than should be in memory.
    fn create_from(&self, key: &str, from: &mut dyn io::Read, bytes: u64) -> Result<(), Trouble>;
    /// Changes a key if it has exactly the bytes `from` (none: if it is not there). False: it has others. `to` is a document
    /// that no other writer writes, so that reading it back tells which of them came first. An error with the effect `Perhaps` leaves
    /// open which.
    fn swap(&self, key: &str, from: Option<&[u8]>, to: &[u8]) -> Result<bool, Trouble>;
    /// Removes a key if it has exactly these bytes. False also where the store has no such operation.
    fn remove(&self, key: &str, from: &[u8]) -> Result<bool, Trouble>;
    /// All keys below a folder.
    fn list(&self, folder: &str) -> Result<Vec<Listed>, Trouble>;
    /// Deletes a key that only one writer ever made. One that is not there is deleted already.
    fn delete(&self, key: &str) -> Result<(), Trouble>;
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    pub key: String,
    /// When it was written, by the store's clock: Unix milliseconds.
    pub modified_ms: i64,
}
