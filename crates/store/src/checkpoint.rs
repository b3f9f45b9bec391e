//! Checkpoints: copying committed pages from SQLite's write-ahead log (WAL) into the database file, on a thread of its own. A checkpoint
//! syncs twice and copies every page, and the writer thread should do neither. Durability does not depend on it: the WAL is synced.

use crate::fatal::end_process;
use crate::lite;
use model::Failure;
use rusqlite::{Connection, ErrorCode, OpenFlags};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Arc, Condvar, Mutex};

/// Pages added to the WAL before a checkpoint is requested, 16 MB. Four times SQLite's default: most of them are the same pages
/// again, the ends of tables and indexes, and each page is copied once.
const REQUEST_AT: i32 = 4000;
/// SQLite restarts the WAL from its beginning only when a checkpoint has copied all of it, which never happens while the writer appends.
/// So the writer itself checkpoints the few pages that were added during the thread's checkpoint. At this length, 48 MB, the writer
/// checkpoints even if the thread has not.
const TOO_LONG: i32 = 3 * REQUEST_AT;

/// Shared by the writer thread of one file and the thread that checkpoints it.
pub(crate) struct Checkpoints {
    path: PathBuf,
    /// Pages in the WAL after the last commit.
    length: AtomicI32,
    /// The thread has just checkpointed, so that few pages are left for the writer.
    has_copied: AtomicBool,
    asked: Mutex<Asked>,
    changed: Condvar,
}

#[derive(Default)]
struct Asked {
    wanted: bool,
    closed: bool,
}

impl Checkpoints {
    /// For the file of this writer connection. Replaces SQLite's automatic checkpoints on it.
    pub(crate) fn of(path: PathBuf, writer: &mut Connection) -> Result<Arc<Checkpoints>, Failure> {
        let checkpoints = Arc::new(Checkpoints {
            path,
            length: AtomicI32::new(0),
            has_copied: AtomicBool::new(false),
            asked: Mutex::default(),
            changed: Condvar::new(),
        });
        let told = checkpoints.clone();
        let note = move |_: &mut rusqlite::hooks::Wal, pages| {
            told.length.store(pages, Ordering::Relaxed);
            Ok(())
        };
        writer.wal_hook(Some(note)).map_err(|error| crate::conn::lite_failure(error, "checkpoint"))?;
        Ok(checkpoints)
    }

    /// The thread: checkpoints at each request, until closed.
    pub(crate) fn serve(&self) {
        let mut conn = None;
        while self.is_wanted() {
            if conn.is_none() {
                conn = self.open();
            }
            if let Some(conn) = &conn {
                self.copy_all(conn);
            }
        }
    }

    /// Twice: the second copies what was added during the first, in about a hundredth of its time.
    fn copy_all(&self, conn: &Connection) {
        copy(conn);
        let left = copy(conn);
        self.has_copied.store(left.is_some_and(|pages| pages < REQUEST_AT / 4), Ordering::Release);
    }

    pub(crate) fn close(&self) {
        self.asked.lock().expect("nothing panics while it is locked").closed = true;
        self.changed.notify_one();
    }

    fn ask(&self) {
        self.asked.lock().expect("nothing panics while it is locked").wanted = true;
        self.changed.notify_one();
    }

    /// Waits for a request; false when closed.
    fn is_wanted(&self) -> bool {
        let asked = self.asked.lock().expect("nothing panics while it is locked");
        let waits = |asked: &mut Asked| !asked.wanted && !asked.closed;
        let mut asked = self.changed.wait_while(asked, waits).expect("nothing panics while it is locked");
        asked.wanted = false;
        !asked.closed
    }

    fn open(&self) -> Option<Connection> {
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let opened = Connection::open_with_flags(&self.path, flags).and_then(|conn| lite::set_up(&conn).map(|()| conn));
        // Without this connection the writer checkpoints alone, at `TOO_LONG`.
        opened.inspect_err(|error| tracing::warn!(%error, "cannot open a connection for checkpoints: the writer checkpoints instead")).ok()
    }
}

/// The writer's side: when to request a checkpoint.
pub(crate) struct Asks {
    of: Arc<Checkpoints>,
    /// The length of the WAL at which the next checkpoint is requested.
    next: i32,
}

impl Asks {
    pub(crate) fn new(of: Arc<Checkpoints>) -> Asks {
        Asks { of, next: REQUEST_AT }
    }

    /// Called by the writer thread after each group, when its callers were answered.
    pub(crate) fn request_if_due(&mut self, writer: &Connection) {
        let length = self.of.length.load(Ordering::Relaxed);
        if length < self.next - REQUEST_AT {
            self.next = REQUEST_AT; // the WAL was restarted
        }
        if self.of.has_copied.swap(false, Ordering::Acquire) {
            copy(writer);
            return;
        }
        if length < self.next {
            return;
        }
        self.next = length + REQUEST_AT;
        if length >= TOO_LONG {
            copy(writer);
        } else {
            self.of.ask();
        }
    }
}

/// A passive checkpoint: copies all pages that no reader still needs in their old version. Returns how many pages are left, if that is
/// known. Another checkpoint at the same moment is no failure, nor is a full disk: the WAL keeps the pages.
pub(crate) fn copy(conn: &Connection) -> Option<i32> {
    let copied = conn
        .prepare_cached("PRAGMA wal_checkpoint(PASSIVE)")
        .and_then(|mut words| words.query_row([], |row| Ok(row.get::<_, i32>(1)? - row.get::<_, i32>(2)?)));
    let failed = match copied {
        Ok(left) => return Some(left),
        Err(error) => error,
    };
    if failed.sqlite_error_code() == Some(ErrorCode::SystemIoFailure) {
        end_process(failed);
    }
    tracing::warn!(error = %failed, "a checkpoint failed: it is tried again");
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::migrate::MAIN;

    fn length_of(path: &std::path::Path) -> u64 {
        std::fs::metadata(path).map_or(0, |file| file.len())
    }

    /// A file whose every commit adds about a hundred pages to its WAL.
    struct Written {
        folder: tempfile::TempDir,
        conn: Connection,
        checkpoints: Arc<Checkpoints>,
        asks: Asks,
    }

    impl Written {
        fn new() -> Written {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("t.db");
            let mut conn = lite::open_writer(&path, &MAIN).unwrap();
            conn.execute_batch("PRAGMA synchronous = OFF; CREATE TABLE filled (body BLOB)").unwrap();
            let checkpoints = Checkpoints::of(path, &mut conn).unwrap();
            Written { folder, conn, asks: Asks::new(checkpoints.clone()), checkpoints }
        }

        /// A hundred pages and a commit.
        fn commit(&mut self) -> i32 {
            self.conn.execute("INSERT INTO filled VALUES (zeroblob(400000))", []).unwrap();
            self.asks.request_if_due(&self.conn);
            self.checkpoints.length.load(Ordering::Relaxed)
        }

        fn file(&self) -> u64 {
            length_of(&self.folder.path().join("t.db"))
        }
    }

    #[test]
    fn the_thread_checkpoints_and_the_wal_is_restarted() {
        let mut written = Written::new();
        let before = written.file();
        while !written.checkpoints.asked.lock().unwrap().wanted {
            assert!(written.commit() < 2 * REQUEST_AT, "no checkpoint was requested");
        }
        assert_eq!(written.file(), before, "the writer copies nothing");
        std::thread::scope(|scope| {
            let copying = scope.spawn(|| {
                let conn = written.checkpoints.open().unwrap();
                assert!(written.checkpoints.is_wanted());
                written.checkpoints.copy_all(&conn);
            });
            copying.join().unwrap();
        });
        assert!(written.file() > before + 4000 * 900, "what was in the log is in the file");
        assert!(written.commit() < 200, "and the log is used from its start again");
        assert_eq!(written.asks.next, REQUEST_AT);
        assert!(!written.checkpoints.asked.lock().unwrap().wanted, "a short WAL is not checkpointed");
    }

    #[test]
    fn the_writer_checkpoints_what_was_added_while_the_thread_did() {
        let mut written = Written::new();
        let (other, reader) = (written.checkpoints.open().unwrap(), written.checkpoints.open().unwrap());
        reader.execute_batch("BEGIN; SELECT count(*) FROM filled").unwrap();
        while !written.checkpoints.asked.lock().unwrap().wanted {
            written.commit();
        }
        written.checkpoints.copy_all(&other);
        assert!(
            !written.checkpoints.has_copied.load(Ordering::Acquire),
            "as long as a reader is open, its pages are left"
        );
        reader.execute_batch("COMMIT").unwrap();
        // A page that a reader still needs is not copied: so it is as if this commit had come during the checkpoint.
        reader.execute_batch("BEGIN; SELECT count(*) FROM filled").unwrap();
        written.commit();
        copy(&other);
        reader.execute_batch("COMMIT").unwrap();
        let longer = written.commit();
        assert!(longer > REQUEST_AT, "the log goes on, because something is left in it");
        written.checkpoints.has_copied.store(true, Ordering::Release);
        assert!(written.commit() > longer, "the writer copies after it has committed");
        assert!(written.commit() < 200, "and so nothing was left");
    }

    #[test]
    fn a_wal_that_the_thread_does_not_checkpoint_is_checkpointed_by_the_writer() {
        let mut written = Written::new();
        let longest = (0..300).map(|_| written.commit()).max().unwrap();
        assert!((TOO_LONG..TOO_LONG + 200).contains(&longest), "{longest} pages");
    }

    #[test]
    fn a_transaction_that_is_rolled_back_leaves_nothing_in_the_wal_however_large_it_was() {
        let written = Written::new();
        let log = written.folder.path().join("t.db-wal");
        let before = length_of(&log);
        written.conn.execute_batch("BEGIN IMMEDIATE; INSERT INTO filled VALUES (zeroblob(30000000))").unwrap();
        assert_eq!(length_of(&log), before, "it has not ended");
        written.conn.execute_batch("ROLLBACK").unwrap();
        assert_eq!(length_of(&log), before);
    }

    #[test]
    fn the_thread_ends_when_it_is_closed() {
        let written = Written::new();
        std::thread::scope(|scope| {
            let serving = scope.spawn(|| written.checkpoints.serve());
            written.checkpoints.ask();
            written.checkpoints.close();
            serving.join().unwrap();
        });
    }
}
