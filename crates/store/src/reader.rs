//! Reads of a SQLite file, each on a snapshot of its own: on the reader threads, or on the caller's thread (inline reads). Reads never
//! wait for the writer.

use crate::conn::{Conn, lite_failure};
use crate::lite::{cannot_open, set_up, word};
use crate::queue::{Job, Queue, run_caught};
use crate::tx::{Context, Tx};
use model::Failure;
use rusqlite::{Connection, OpenFlags};
use std::path::Path;
use std::sync::{Arc, Mutex};

pub(crate) fn open(path: &Path) -> Result<Connection, Failure> {
    let conn = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX)
        .map_err(|e| cannot_open(path, e))?;
    set_up(&conn).map_err(|e| cannot_open(path, e))?;
    Ok(conn)
}

/// Until the queue is closed and empty.
pub(crate) fn serve(conn: Connection, context: Arc<Context>, queue: &Queue) {
    let mut conn = conn;
    while let Some(job) = queue.wait(3) {
        conn = read_one(conn, &context, job);
    }
}

/// Connections for inline reads, on the callers' threads.
pub(crate) struct InlineReaders {
    free: Mutex<Vec<Connection>>,
    context: Arc<Context>,
}

impl InlineReaders {
    pub(crate) fn new(conns: Vec<Connection>, context: Arc<Context>) -> InlineReaders {
        InlineReaders { free: Mutex::new(conns), context }
    }

    /// Returns the closure if all connections are in use.
    pub(crate) fn read(&self, job: Box<dyn Job>) -> Option<Box<dyn Job>> {
        let free = || self.free.lock().expect("no panic while the connections are locked");
        let Some(conn) = free().pop() else { return Some(job) };
        let conn = read_one(conn, &self.context, job);
        free().push(conn);
        None
    }
}

/// One closure on a snapshot of its own.
fn read_one(conn: Connection, context: &Arc<Context>, mut job: Box<dyn Job>) -> Connection {
    if let Err(error) = word(&conn, "BEGIN DEFERRED") {
        job.answer(Err(lite_failure(error, "BEGIN")));
        return conn;
    }
    let mut tx = Tx::new(Conn::Lite(conn), context.clone(), job.access());
    let result = run_caught(&mut *job, &mut tx);
    let ended = tx.end();
    // Nothing was written: ending a read cannot fail in a way that matters.
    let _ = word(ended.conn.lite(), "ROLLBACK");
    job.answer(result.and(ended.broken.map_or(Ok(()), Err)));
    ended.conn.into_lite()
}
