//! What a power cut leaves of a SQLite file: everything that a caller was told, whole transactions, and a sound file. Alone in its
//! process: the VFS of `disk` is the default of all SQLite connections there.

mod disk;

use model::fault::{self, Moment};
use rusqlite::Connection;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use store::{Database, Lane, Options, Sql, Store, Tx, args};
use tokio::sync::watch;

const WRITERS: i64 = 16;
const CUTS: usize = 24;
/// Answers between two cuts: so that the log is copied and begins anew several times.
const BETWEEN: usize = 60;

const TABLE: Sql = Sql::new("CREATE TABLE pairs (id BIGINT PRIMARY KEY, other BIGINT NOT NULL, body BLOB NOT NULL)");
const PAIR: Sql = Sql::new("INSERT INTO pairs (id, other, body) VALUES ($1, $2, zeroblob($3)), ($2, $1, zeroblob($3))");
const COUNT: Sql = Sql::new("SELECT count(*) FROM pairs");

/// What callers were told.
#[derive(Default)]
struct Told {
    /// Pairs whose writers were answered.
    written: Mutex<BTreeSet<i64>>,
    /// The largest count of rows that a read has returned.
    seen: AtomicI64,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_callers_were_told_is_there_after_a_power_cut() {
    let folder = tempfile::tempdir().unwrap();
    disk::insert(folder.path());
    let path = folder.path().join("t.db");
    watch_syncs(format!("{}-wal", path.display()));
    let store = Store::open(&Options::new(Database::File(path.clone()))).unwrap();
    store.write(Lane::Normal, "table", |tx| tx.exec(&TABLE, &args![]).map(drop)).await.unwrap();
    let (told, (counts, mut counted)) = (Arc::new(Told::default()), watch::channel(0));
    let mut tasks: Vec<_> =
        (1..=WRITERS).map(|writer| tokio::spawn(write(store.clone(), told.clone(), counts.clone(), writer))).collect();
    tasks.push(tokio::spawn(read(store.clone(), told.clone())));
    let (mut at_stake, mut luck) = (0, Luck(7));
    for cut in 1..=CUTS {
        counted.wait_for(|count| *count >= cut * BETWEEN).await.unwrap();
        let chance = luck.next() % 5 * 25; // nothing, something or everything of what was not synced
        // First what was told, then the files: what is told in between is not checked.
        let (written, seen) = (told.written.lock().unwrap().clone(), told.seen.load(Ordering::SeqCst));
        let (files, lost) = disk::after_a_cut(&mut || luck.next() % 100 < chance);
        at_stake += lost;
        let left = tempfile::tempdir().unwrap();
        for (name, bytes) in files {
            std::fs::write(left.path().join(Path::new(&name).file_name().unwrap()), bytes).unwrap();
        }
        judge(&left.path().join("t.db"), &written, seen, &format!("cut {cut}, {chance} in a hundred"));
    }
    // The folder outlives every owner of the store: a store whose log is removed ends the process.
    for task in tasks {
        task.abort();
        let _ = task.await;
    }
    drop(store);
    assert!(at_stake > CUTS, "cuts came when something was under way");
    let copied = std::fs::metadata(&path).unwrap().len();
    assert!(copied > 8 << 20, "the log was copied meanwhile: {copied} bytes");
}

/// The store syncs the WAL itself, past the VFS: its crash point reports when.
fn watch_syncs(log: String) {
    let began = AtomicU64::new(0);
    fault::arm(move |name, moment| match (name, moment) {
        ("database.sync", Moment::Before) => began.store(disk::mark(), Ordering::SeqCst),
        ("database.sync", Moment::After) => disk::synced(&log, began.load(Ordering::SeqCst)),
        _ => {}
    });
}

async fn write(store: Store, told: Arc<Told>, counts: watch::Sender<usize>, writer: i64) {
    let mut luck = Luck(writer as u64);
    for number in 0.. {
        let (id, bytes) = (number * WRITERS + writer, (luck.next() % 20_000) as i64);
        let pair = move |tx: &mut Tx| tx.exec(&PAIR, &args![id, -id, bytes]).map(drop);
        store.write(Lane::Normal, "pair", pair).await.unwrap();
        told.written.lock().unwrap().insert(id);
        counts.send_modify(|count| *count += 1);
    }
}

async fn read(store: Store, told: Arc<Told>) {
    loop {
        let count = |tx: &mut Tx| tx.row(&COUNT, &args![])?.expect("a count is a row").int(0);
        let seen = store.read_inline("count", count).await.unwrap();
        told.seen.fetch_max(seen, Ordering::SeqCst);
        tokio::task::yield_now().await;
    }
}

fn judge(path: &Path, written: &BTreeSet<i64>, seen: i64, when: &str) {
    let left = Connection::open(path).unwrap();
    let sound: String = left.query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
    assert_eq!(sound, "ok", "{when}");
    let mut rows = left.prepare("SELECT id FROM pairs").unwrap();
    let found: BTreeSet<i64> = rows.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect();
    let lost: Vec<_> = written.difference(&found).collect();
    assert!(lost.is_empty(), "{when}: {lost:?} were answered and are lost");
    assert!(found.len() as i64 >= seen, "{when}: somebody saw {seen} rows, and {} are left", found.len());
    assert!(found.iter().all(|id| found.contains(&-id)), "{when}: half of a transaction is there");
}

/// The same for each caller that begins with the same number.
struct Luck(u64);

impl Luck {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        self.0 >> 33
    }
}
