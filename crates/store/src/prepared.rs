//! A connection to SQLite that keeps what it has prepared, found by where a statement's text lies: rusqlite's own cache copies and hashes
//! the text each time, a tenth of what a short statement takes. Never looks at what a statement says.

use rusqlite::{Connection, PrepFlags, Statement};
use std::cell::RefCell;
use std::collections::HashMap;
use std::ops::Deref;
use std::rc::Rc;

/// Statements are a few hundred, times the row counts of multi-row inserts. Beyond it all are prepared anew.
const MOST: usize = 2048;

pub(crate) struct Lite {
    /// They end before their connection: fields are dropped in this order.
    prepared: RefCell<HashMap<Place, Statement<'static>>>,
    /// It has no other owner; and unlike a box it may be moved while statements point to what is in it.
    conn: Rc<Connection>,
}

/// Where a text lies that is never freed, and how long it is.
type Place = (usize, usize);

// SAFETY: as of a connection, which may be handed from thread to thread: its statements go with it, and nobody else has one.
unsafe impl Send for Lite {}

impl Lite {
    pub(crate) fn new(conn: Connection) -> Lite {
        Lite { prepared: RefCell::default(), conn: Rc::new(conn) }
    }

    /// With the statement of this text, as it was left by whoever had it before: reset, with old arguments.
    pub(crate) fn with<T>(
        &self,
        text: &'static str,
        f: impl FnOnce(&mut Statement<'_>) -> rusqlite::Result<T>,
    ) -> rusqlite::Result<T> {
        let (mut prepared, place) = (self.prepared.borrow_mut(), (text.as_ptr() as usize, text.len()));
        if let Some(statement) = prepared.get_mut(&place) {
            return f(statement);
        }
        if prepared.len() >= MOST {
            prepared.clear();
        }
        let statement = self.conn.prepare_with_flags(text, PrepFlags::SQLITE_PREPARE_PERSISTENT)?;
        // SAFETY: the connection stays where it is until we are dropped, and then statements end first.
        let statement = unsafe { std::mem::transmute::<Statement<'_>, Statement<'static>>(statement) };
        f(prepared.entry(place).or_insert(statement))
    }
}

impl Deref for Lite {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        &self.conn
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changes(lite: &Lite, text: &'static str, key: i64) -> rusqlite::Result<usize> {
        lite.with(text, |statement| statement.execute([key]))
    }

    #[test]
    fn a_statement_is_prepared_once_and_works_again_after_it_has_failed() {
        let lite = Lite::new(Connection::open_in_memory().unwrap());
        lite.execute_batch("CREATE TABLE t (key INTEGER PRIMARY KEY)").unwrap();
        let insert = "INSERT INTO t VALUES ($1)";
        for key in 0..3 {
            assert_eq!(changes(&lite, insert, key), Ok(1));
            assert!(changes(&lite, insert, key).is_err(), "it is there");
        }
        assert!(changes(&lite, "INSERT INTO nothing VALUES ($1)", 1).is_err());
        assert_eq!(lite.prepared.borrow().len(), 1);
        // It follows a change of the schema, and another thread.
        lite.execute_batch("DROP TABLE t; CREATE TABLE t (key INTEGER PRIMARY KEY, more)").unwrap();
        lite.execute_batch("ALTER TABLE t DROP COLUMN more").unwrap();
        std::thread::spawn(move || assert_eq!(changes(&lite, insert, 1), Ok(1))).join().unwrap();
    }

    #[test]
    fn no_more_than_so_many_are_kept() {
        let lite = Lite::new(Connection::open_in_memory().unwrap());
        lite.execute_batch("CREATE TABLE t (key INTEGER PRIMARY KEY)").unwrap();
        for key in 0..MOST as i64 + 10 {
            let text: &'static str = format!("INSERT INTO t VALUES ($1 + {key} - {key})").leak();
            assert_eq!(changes(&lite, text, key), Ok(1));
        }
        assert_eq!(lite.prepared.borrow().len(), 10);
    }
}
