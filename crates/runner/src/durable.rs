//! Every sync of the runner goes through here and is counted per thread: syncs on the daemon's thread delay its jobs, syncs on
//! other threads (preparation) do not. During a warm start the daemon waits for one sync.

use std::cell::Cell;
use std::fs::File;
use std::io;

thread_local! {
    static WAITS: Cell<u64> = const { Cell::new(0) };
}

/// The bytes are on disk when it returns.
pub fn sync_data(file: &File) -> io::Result<()> {
    WAITS.set(WAITS.get() + 1);
    file.sync_data()
}

/// The bytes, and that there is such a file, are on disk when it returns.
pub fn sync_all(file: &File) -> io::Result<()> {
    WAITS.set(WAITS.get() + 1);
    file.sync_all()
}

/// How often the calling thread has waited.
pub fn waits() -> u64 {
    WAITS.get()
}
