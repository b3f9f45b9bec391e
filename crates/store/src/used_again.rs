//! Databases in memory for inline stores, used one after the other: a simulation lives thousands of short lives, and a fresh database
//! would spend most of one on its schema and on preparing statements. Each life is one transaction that is taken back at its end.

use crate::conn::lite_failure;
use crate::lite::{open_memory, word};
use crate::migrate::Part;
use model::Failure;
use rusqlite::Connection;
use std::collections::BTreeMap;
use std::sync::Mutex;

/// More threads than this do not simulate at once.
const MOST: usize = 64;

static IDLE: Mutex<BTreeMap<&str, Vec<Connection>>> = Mutex::new(BTreeMap::new());

/// One as the migrations leave it, inside the transaction that will be taken back.
pub(crate) fn take(part: &Part) -> Result<Connection, Failure> {
    let idle = IDLE.lock().expect("no panic while it is locked").get_mut(part.name()).and_then(Vec::pop);
    let conn = idle.map_or_else(|| open_memory(part), Ok)?;
    word(&conn, "BEGIN IMMEDIATE").map_err(|e| lite_failure(e, "BEGIN"))?;
    Ok(conn)
}

/// Whatever happened to it did not happen. One that cannot be taken back is not used again.
pub(crate) fn put_back(part: &Part, conn: Connection) {
    if word(&conn, "ROLLBACK").is_ok() {
        let mut idle = IDLE.lock().expect("no panic while it is locked");
        let idle = idle.entry(part.name()).or_default();
        if idle.len() < MOST {
            idle.push(conn);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::{Database, Entry, EntryKind, Options, Store, org};
    use model::Credits;

    /// One at a time on this thread, so the second is the first one's database.
    #[test]
    fn a_database_that_is_used_again_remembers_nothing() {
        for _ in 0..3 {
            let store = Store::inline(&Options::new(Database::Memory)).unwrap();
            let made = store.write_now("test", |tx| {
                let id = org::create(tx, "test")?;
                tx.ledger(Entry::new(id, EntryKind::Topup, Credits(5), "first"));
                Ok(id)
            });
            let id = made.expect("its name is free, and its ledger empty");
            let again = store.write_now("test", |tx| org::create(tx, "test"));
            assert!(again.is_err(), "a write that is refused takes nothing back but itself");
            let found = store.read_now("test", move |tx| org::find(tx, id)).unwrap();
            assert_eq!((id.0, found.available, found.ledger_seq), (1, Credits(5), 1));
        }
    }
}
