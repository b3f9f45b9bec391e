//! Locks on files between processes. Owns taking and giving them back; never decides what a lock means.

use super::trouble::at;
use model::Trouble;
use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

/// Given back by word, not by closing: a child between fork and exec still has the descriptor, and with it the lock.
pub struct Locked(File);

impl Drop for Locked {
    fn drop(&mut self) {
        let _ = self.0.unlock();
    }
}

/// Waits for the lock; none if there is no such folder (any more).
pub fn take(path: &Path) -> Result<Option<Locked>, Trouble> {
    loop {
        let file = match OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(at(path)(error)),
        };
        file.lock().map_err(at(path))?;
        let locked = Locked(file);
        // The previous holder may have removed the folder; a new one may have its name now.
        let same = match (locked.0.metadata(), std::fs::metadata(path)) {
            (Ok(held), Ok(named)) => (held.dev(), held.ino()) == (named.dev(), named.ino()),
            _ => false,
        };
        if same {
            return Ok(Some(locked));
        }
    }
}

pub enum Share {
    Shared(Locked),
    /// Another process holds it exclusively.
    Taken,
    NoFile,
}

/// Shares the lock with others who only look, or says at once that it cannot.
pub fn share(path: &Path) -> Result<Share, Trouble> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Share::NoFile),
        Err(error) => return Err(at(path)(error)),
    };
    match file.try_lock_shared() {
        Ok(()) => Ok(Share::Shared(Locked(file))),
        Err(TryLockError::WouldBlock) => Ok(Share::Taken),
        Err(TryLockError::Error(error)) => Err(at(path)(error)),
    }
}
