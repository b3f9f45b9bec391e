//! The same statements without the store: a recording of what a store sends to its database, and a bare connection that runs it again.
//! `repl bench` compares the store with it. Never part of what serves.

use model::{Failure, Trouble};
use rusqlite::backup::Backup;
use rusqlite::config::DbConfig;
use rusqlite::{Connection, Statement as Prepared, StatementStatus, ffi};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread::ThreadId;
use std::time::Duration;
use store::{Recorded, Recorder, Value};

/// As many as the store's own connections keep.
const CACHED_STATEMENTS: usize = 1024;
/// For SQLite's backup: as many as there are, in one step.
const ALL_PAGES: i32 = -1;

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

/// Every statement of a store; see `store::Options::recorder`. Closures run on several threads, each one after the other.
#[derive(Debug, Default)]
pub struct Recording(Mutex<Vec<(ThreadId, Said)>>);

impl Recording {
    /// The hook that fills it.
    pub fn recorder(self: Arc<Recording>) -> Recorder {
        Arc::new(move |recorded| self.hear(recorded))
    }

    fn hear(&self, recorded: Recorded<'_>) {
        let mut all = self.0.lock().expect("nothing panics while hearing");
        let thread = std::thread::current().id();
        match recorded {
            Recorded::Closure(name) => all.push((thread, Said { name, statements: Vec::new() })),
            Recorded::Statement { text, args } => {
                let mine = all.iter_mut().rev().find(|(of, _)| *of == thread);
                let statement = || Statement { text: text.to_owned(), args: args.to_vec() };
                // None: its closure had begun when the recording was taken.
                mine.into_iter().for_each(|(_, said)| said.statements.push(statement()));
            }
        }
    }

    /// Everything heard so far; what comes later is heard anew.
    pub fn take(&self) -> Vec<Said> {
        let all = std::mem::take(&mut *self.0.lock().expect("nothing panics while hearing"));
        all.into_iter().map(|(_, said)| said).collect()
    }
}

/// A plain connection to a SQLite file, as durable as the store's own.
pub struct Plain {
    conn: Connection,
}

impl Plain {
    pub fn open(path: &Path) -> Result<Plain, Failure> {
        let set_up = || {
            let conn = Connection::open(path)?;
            conn.set_prepared_statement_cache_capacity(CACHED_STATEMENTS);
            conn.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
            conn.busy_timeout(Duration::from_secs(5))?;
            conn.execute_batch(SET_UP)?;
            Ok(conn)
        };
        set_up().map(|conn| Plain { conn }).map_err(trouble)
    }

    /// Says it all again, so many closures to a commit. Answers are read and dropped.
    pub fn say(&mut self, all: &[Said], at_once: usize) -> Result<(), Failure> {
        for group in all.chunks(at_once.max(1)) {
            self.conn.execute_batch("BEGIN IMMEDIATE").map_err(trouble)?;
            for statement in group.iter().flat_map(|said| &said.statements) {
                run(&self.conn, statement).map_err(trouble)?;
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

/// What statements cost SQLite, counted by SQLite itself.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Cost {
    /// Instructions of its virtual machine.
    pub vm_steps: i64,
    /// Pages that were looked at, in the cache or on the disk, times their size.
    pub bytes_read: i64,
    /// Pages that the commit wrote, times their size.
    pub bytes_written: i64,
}

impl Plain {
    /// Says this in one commit, and counts.
    pub fn cost(&mut self, said: &Said) -> Result<Cost, Failure> {
        let (page, before) = (self.page_size()?, self.pages());
        self.conn.execute_batch("BEGIN IMMEDIATE").map_err(trouble)?;
        let mut vm_steps = 0;
        for statement in &said.statements {
            vm_steps += run(&self.conn, statement).map_err(trouble)?;
        }
        self.conn.execute_batch("COMMIT").map_err(trouble)?;
        let after = self.pages();
        Ok(Cost { vm_steps, bytes_read: (after.0 - before.0) * page, bytes_written: (after.1 - before.1) * page })
    }

    fn page_size(&self) -> Result<i64, Failure> {
        self.conn.query_row(PAGE_SIZE, [], |row| row.get(0)).map_err(trouble)
    }

    /// Pages looked at and written since the connection was opened.
    fn pages(&self) -> (i64, i64) {
        let looked_at = self.status(ffi::SQLITE_DBSTATUS_CACHE_HIT) + self.status(ffi::SQLITE_DBSTATUS_CACHE_MISS);
        (looked_at, self.status(ffi::SQLITE_DBSTATUS_CACHE_WRITE))
    }

    fn status(&self, counter: i32) -> i64 {
        let (mut now, mut most) = (0, 0);
        // SAFETY: the connection is open as long as `self` lives, and both numbers outlive the call.
        let result = unsafe { ffi::sqlite3_db_status(self.conn.handle(), counter, &mut now, &mut most, 0) };
        assert_eq!(result, ffi::SQLITE_OK, "SQLite has this counter");
        i64::from(now)
    }
}

/// A whole copy of a database that may be in use, page by page.
pub fn copy(from: &Path, to: &Path) -> Result<(), Failure> {
    let copied = || {
        let (from, mut to) = (Connection::open(from)?, Connection::open(to)?);
        Backup::new(&from, &mut to)?.step(ALL_PAGES).map(drop)
    };
    copied().map_err(trouble)
}

/// How many steps SQLite's virtual machine took.
fn run(conn: &Connection, statement: &Statement) -> rusqlite::Result<i64> {
    let mut prepared = conn.prepare_cached(&statement.text)?;
    for index in 1..=prepared.parameter_count() {
        bind(&mut prepared, index, &statement.args)?;
    }
    let mut rows = prepared.raw_query();
    while rows.next()?.is_some() {}
    drop(rows);
    Ok(i64::from(prepared.reset_status(StatementStatus::VmStep)))
}

/// SQLite numbers `$2` by its first appearance, so the argument is found by the parameter's name.
fn bind(prepared: &mut Prepared<'_>, index: usize, args: &[Value]) -> rusqlite::Result<()> {
    let number: Option<usize> = prepared.parameter_name(index).and_then(|name| name[1..].parse().ok());
    match number.and_then(|number| args.get(number - 1)).expect("a recorded statement has its arguments") {
        Value::Null => prepared.raw_bind_parameter(index, rusqlite::types::Null),
        Value::Int(number) => prepared.raw_bind_parameter(index, number),
        Value::Text(text) => prepared.raw_bind_parameter(index, text),
        Value::Blob(bytes) => prepared.raw_bind_parameter(index, bytes),
    }
}

/// As durable as the store's own connection, and with the same options.
const SET_UP: &str = "PRAGMA synchronous = FULL; PRAGMA foreign_keys = ON; PRAGMA temp_store = MEMORY; PRAGMA journal_size_limit = 67108864;
     PRAGMA journal_mode = WAL;
     CREATE TABLE IF NOT EXISTS bare (id INTEGER PRIMARY KEY, body BLOB NOT NULL);";
const PAGE_SIZE: &str = "PRAGMA page_size";
const INSERT: &str = "INSERT INTO bare (body) VALUES (?1)";

fn trouble(error: rusqlite::Error) -> Failure {
    Trouble::internal(format!("a plain connection: {error}")).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use store::{Database, Options, Store, org};

    /// What was recorded from one database makes the same rows in another.
    #[test]
    fn a_recording_makes_the_same_rows_again() {
        let folder = tempfile::tempdir().unwrap();
        let (path, copied) = (folder.path().join("a.db"), folder.path().join("b.db"));
        drop(Store::open(&Options::new(Database::File(path.clone()))).unwrap());
        copy(&path, &copied).unwrap();
        let recording = Arc::new(Recording::default());
        let store =
            Store::inline(&Options { recorder: Some(recording.clone().recorder()), ..Options::new(Database::Memory) })
                .unwrap();
        store.write_now("make", |tx| org::create(tx, "recorded")).unwrap();
        let said: Vec<Said> = recording.take().into_iter().filter(|said| said.name == "make").collect();
        assert_eq!(said.len(), 1);
        Plain::open(&copied).unwrap().say(&said, 16).unwrap();
        let found: i64 = Connection::open(&copied)
            .unwrap()
            .query_row("SELECT count(*) FROM orgs WHERE name = 'recorded'", [], |row| row.get(0))
            .unwrap();
        assert_eq!(found, 1);
    }
}
