//! Brings what was committed from SQLite's write-ahead log into the database file, on a thread of its own: that waits for the
//! disk twice and copies every page, and whoever commits should do neither. Says nothing about what is durable: the log is.

use crate::fatal::end_process;
use crate::lite;
use model::Failure;
use rusqlite::{Connection, ErrorCode, OpenFlags};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Arc, Condvar, Mutex};

/// Pages that were added to the log since somebody last looked, 16 MB. Four times SQLite's own number: most of them are the same
/// pages again, the ends of tables and indexes, and are copied once.
const WORTH_A_LOOK: i32 = 4000;
/// A log begins anew only when nothing is left in it, and while the writer writes something always is: the writer itself brings over
/// the little that was added while the other thread copied. At this length, 48 MB, it does so though nobody else has.
const TOO_LONG: i32 = 3 * WORTH_A_LOOK;

/// What the writer of one file and the thread that copies for it know of each other.
pub(crate) struct Checkpoints {
    path: PathBuf,
    /// Pages in the log after the last commit.
    length: AtomicI32,
    /// The other thread has just copied, so that little is left.
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
    /// Of a file whose writer this is: from now on its commits copy nothing by themselves.
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

    /// Copies whenever it is asked to, until it is closed.
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

    /// Twice: the second time brings over what was added during the first, which takes a hundredth of its time.
    fn copy_all(&self, conn: &Connection) {
        copy(conn);
        let left = copy(conn);
        self.has_copied.store(left.is_some_and(|pages| pages < WORTH_A_LOOK / 4), Ordering::Release);
    }

    pub(crate) fn close(&self) {
        self.asked.lock().expect("nothing panics while it is locked").closed = true;
        self.changed.notify_one();
    }

    fn ask(&self) {
        self.asked.lock().expect("nothing panics while it is locked").wanted = true;
        self.changed.notify_one();
    }

    /// Waits until somebody asks; false when nobody will any more.
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
        // The writer does it alone then, less often.
        opened.inspect_err(|error| tracing::warn!(%error, "the log of the database is copied by its writer")).ok()
    }
}

/// The writer's side: when to ask.
pub(crate) struct Asks {
    of: Arc<Checkpoints>,
    /// The length of the log at which somebody looks at it.
    next: i32,
}

impl Asks {
    pub(crate) fn new(of: Arc<Checkpoints>) -> Asks {
        Asks { of, next: WORTH_A_LOOK }
    }

    /// After a commit, and after everybody was answered.
    pub(crate) fn look(&mut self, writer: &Connection) {
        let length = self.of.length.load(Ordering::Relaxed);
        if length < self.next - WORTH_A_LOOK {
            self.next = WORTH_A_LOOK; // it has begun anew
        }
        if self.of.has_copied.swap(false, Ordering::Acquire) {
            copy(writer);
            return;
        }
        if length < self.next {
            return;
        }
        self.next = length + WORTH_A_LOOK;
        if length >= TOO_LONG {
            copy(writer);
        } else {
            self.of.ask();
        }
    }
}

/// As much as nobody reads any more; how many pages are left, if it is known. That somebody else copies at this moment is no failure, nor is a full disk: the log stays.
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
    tracing::warn!(error = %failed, "the log of the database could not be copied: it is tried again");
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::migrate::MAIN;

    fn length_of(path: &std::path::Path) -> u64 {
        std::fs::metadata(path).map_or(0, |file| file.len())
    }

    /// A file whose every commit adds pages to its log, and how long the log is.
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
            self.asks.look(&self.conn);
            self.checkpoints.length.load(Ordering::Relaxed)
        }

        fn file(&self) -> u64 {
            length_of(&self.folder.path().join("t.db"))
        }
    }

    #[test]
    fn the_other_thread_is_asked_and_the_log_begins_anew() {
        let mut written = Written::new();
        let before = written.file();
        while !written.checkpoints.asked.lock().unwrap().wanted {
            assert!(written.commit() < 2 * WORTH_A_LOOK, "nobody was asked");
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
        assert_eq!(written.asks.next, WORTH_A_LOOK);
        assert!(!written.checkpoints.asked.lock().unwrap().wanted, "nobody looks at a short one");
    }

    #[test]
    fn what_was_added_while_the_other_thread_copied_is_brought_over_by_the_writer() {
        let mut written = Written::new();
        let (other, reader) = (written.checkpoints.open().unwrap(), written.checkpoints.open().unwrap());
        reader.execute_batch("BEGIN; SELECT count(*) FROM filled").unwrap();
        while !written.checkpoints.asked.lock().unwrap().wanted {
            written.commit();
        }
        written.checkpoints.copy_all(&other);
        assert!(
            !written.checkpoints.has_copied.load(Ordering::Acquire),
            "as long as somebody reads, everything is left"
        );
        reader.execute_batch("COMMIT").unwrap();
        // What somebody may still read as it was is not copied over: so it is as if this commit had come during the copy.
        reader.execute_batch("BEGIN; SELECT count(*) FROM filled").unwrap();
        written.commit();
        copy(&other);
        reader.execute_batch("COMMIT").unwrap();
        let longer = written.commit();
        assert!(longer > WORTH_A_LOOK, "the log goes on, because something is left in it");
        written.checkpoints.has_copied.store(true, Ordering::Release);
        assert!(written.commit() > longer, "the writer copies after it has committed");
        assert!(written.commit() < 200, "and so nothing was left");
    }

    #[test]
    fn a_log_that_nobody_copies_is_copied_by_its_writer() {
        let mut written = Written::new();
        let longest = (0..300).map(|_| written.commit()).max().unwrap();
        assert!((TOO_LONG..TOO_LONG + 200).contains(&longest), "{longest} pages");
    }

    #[test]
    fn a_transaction_that_is_taken_back_leaves_nothing_in_the_log_however_large_it_was() {
        let written = Written::new();
        let log = written.folder.path().join("t.db-wal");
        let before = length_of(&log);
        written.conn.execute_batch("BEGIN IMMEDIATE; INSERT INTO filled VALUES (zeroblob(30000000))").unwrap();
        assert_eq!(length_of(&log), before, "it has not ended");
        written.conn.execute_batch("ROLLBACK").unwrap();
        assert_eq!(length_of(&log), before);
    }

    #[test]
    fn whoever_copies_ends_when_it_is_told_to() {
        let written = Written::new();
        std::thread::scope(|scope| {
            let serving = scope.spawn(|| written.checkpoints.serve());
            written.checkpoints.ask();
            written.checkpoints.close();
            serving.join().unwrap();
        });
    }
}
