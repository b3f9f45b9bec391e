//! The same statements without us: what a store says to its database can be recorded, and said again on a plain connection.
//! For benchmarks, which compare the store with what the database alone takes. Never used by whoever serves.

use crate::lite;
use crate::value::Value;
use model::{Failure, Trouble};
use rusqlite::Connection;
use std::path::Path;
use std::sync::Mutex;

/// One statement as it was sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Statement {
    pub text: String,
    pub args: Vec<Value>,
}

/// What one closure said, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Said {
    pub name: &'static str,
    pub statements: Vec<Statement>,
}

/// Hears every statement of a store; see `Options::recording`.
#[derive(Debug, Default)]
pub struct Recording(Mutex<Vec<Said>>);

impl Recording {
    /// Everything heard so far; what comes later is heard anew.
    pub fn take(&self) -> Vec<Said> {
        std::mem::take(&mut *self.0.lock().expect("nothing panics while hearing"))
    }

    pub(crate) fn begins(&self, name: &'static str) {
        self.0.lock().expect("nothing panics while hearing").push(Said { name, statements: Vec::new() });
    }

    pub(crate) fn hear(&self, text: String, args: &[Value]) {
        if let Some(said) = self.0.lock().expect("nothing panics while hearing").last_mut() {
            said.statements.push(Statement { text, args: args.to_vec() });
        }
    }
}

/// A plain connection to a SQLite file, as durable as the store's own.
pub struct Plain {
    conn: Connection,
}

impl Plain {
    pub fn open(path: &Path) -> Result<Plain, Failure> {
        let conn = Connection::open(path).map_err(trouble)?;
        lite::set_up(&conn).map_err(trouble)?;
        conn.execute_batch(
            "PRAGMA journal_mode = WAL; CREATE TABLE IF NOT EXISTS bare (id INTEGER PRIMARY KEY, body BLOB NOT NULL);",
        )
        .map_err(trouble)?;
        Ok(Plain { conn })
    }

    /// Says it all again, so many closures to a commit. Answers are read and dropped.
    pub fn say(&mut self, all: &[Said], at_once: usize) -> Result<(), Failure> {
        for group in all.chunks(at_once.max(1)) {
            self.conn.execute_batch("BEGIN IMMEDIATE").map_err(trouble)?;
            for statement in group.iter().flat_map(|said| &said.statements) {
                crate::conn::say(&self.conn, &statement.text, &statement.args)?;
            }
            self.conn.execute_batch("COMMIT").map_err(trouble)?;
        }
        Ok(())
    }

    /// So many rows of so many bytes, that many to a commit.
    pub fn write(&mut self, rows: usize, bytes: usize, at_once: usize) -> Result<(), Failure> {
        let body = vec![b'x'; bytes];
        let mut left = rows;
        while left > 0 {
            self.conn.execute_batch("BEGIN IMMEDIATE").map_err(trouble)?;
            let mut insert = self.conn.prepare_cached(INSERT).map_err(trouble)?;
            for _ in 0..left.min(at_once.max(1)) {
                insert.execute([&body]).map_err(trouble)?;
                left -= 1;
            }
            self.conn.execute_batch("COMMIT").map_err(trouble)?;
        }
        Ok(())
    }
}

/// A whole copy of a database that may be in use.
pub fn copy(from: &Path, to: &Path) -> Result<(), Failure> {
    let conn = Connection::open(from).map_err(trouble)?;
    conn.execute(COPY, [to.to_string_lossy()]).map(drop).map_err(trouble)
}

const COPY: &str = "VACUUM INTO ?1";
const INSERT: &str = "INSERT INTO bare (body) VALUES (?1)";

fn trouble(error: rusqlite::Error) -> Failure {
    Trouble::internal(format!("a plain connection: {error}")).into()
}
