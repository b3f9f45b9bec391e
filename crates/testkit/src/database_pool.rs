//! Databases in memory that simulations use one after the other (`store::Reuse`).

use std::collections::BTreeMap;
use std::sync::Mutex;
use store::{MemoryDatabase, Reuse};

/// More threads than this do not simulate at once.
const MOST: usize = 64;

pub const REUSE: Reuse = Reuse { take, put_back };

static IDLE: Mutex<BTreeMap<&str, Vec<MemoryDatabase>>> = Mutex::new(BTreeMap::new());

fn take(part: &str) -> Option<MemoryDatabase> {
    IDLE.lock().expect("no panic while it is locked").get_mut(part)?.pop()
}

fn put_back(database: MemoryDatabase) {
    let mut idle = IDLE.lock().expect("no panic while it is locked");
    let idle = idle.entry(database.part()).or_default();
    if idle.len() < MOST {
        idle.push(database);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::Credits;
    use store::{Database, Entry, EntryKind, Options, Store, org};

    #[test]
    fn a_database_that_is_used_again_is_empty() {
        // One at a time on this thread, so the second store gets the first one's database.
        for _ in 0..3 {
            let store = Store::inline(&Options { reuse: Some(REUSE), ..Options::new(Database::Memory) }).unwrap();
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
            drop(store);
            assert!(!IDLE.lock().unwrap()["main"].is_empty(), "the database was put back");
        }
    }
}
