//! Databases in memory of inline stores. A simulation opens thousands of stores, and a new database costs more than a short
//! simulation does in it (its schema, its prepared statements): so a database can be used by one store after the other.

use crate::conn::lite_failure;
use crate::lite::{open_memory, word};
use crate::migrate::Part;
use model::Failure;
use rusqlite::Connection;

/// A migrated, empty database that no store uses at the moment.
pub struct MemoryDatabase {
    part: &'static str,
    conn: Connection,
}

impl MemoryDatabase {
    /// What it is for: an inline store has one for `main` and one for `logs`.
    pub fn part(&self) -> &'static str {
        self.part
    }
}

/// How inline stores share databases: `take` gives one for this part, if there is one, and `put_back` gets it when the store is closed.
#[derive(Clone, Copy)]
pub struct Reuse {
    pub take: fn(part: &str) -> Option<MemoryDatabase>,
    pub put_back: fn(MemoryDatabase),
}

/// A database as the migrations leave it. One transaction is open until `close`; the store's own are savepoints in it.
pub(crate) fn open(part: &Part, reuse: Option<Reuse>) -> Result<Connection, Failure> {
    let reused = reuse.and_then(|reuse| (reuse.take)(part.name()));
    let conn = match reused {
        Some(database) => database.conn,
        None => open_memory(part)?,
    };
    word(&conn, "BEGIN IMMEDIATE").map_err(|e| lite_failure(e, "BEGIN"))?;
    Ok(conn)
}

/// Rolls back everything that the store wrote. A database where that fails is dropped.
pub(crate) fn close(part: &Part, conn: Connection, reuse: Option<Reuse>) {
    if let Some(reuse) = reuse.filter(|_| word(&conn, "ROLLBACK").is_ok()) {
        (reuse.put_back)(MemoryDatabase { part: part.name(), conn });
    }
}
