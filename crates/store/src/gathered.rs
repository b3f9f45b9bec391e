//! SQLite's log, written a commit at a time. SQLite writes every page of it by two calls of the system, and a submission leaves a
//! dozen pages; here they are gathered and written together when the last page of their transaction has come, which is before anybody
//! can see one of them. What is not known to be such a page is written at once. Never decides what is on disk: see `durable`.

use model::{Failure, Trouble, TroubleKind, bug};
use rusqlite::ffi::{self, SQLITE_OK, sqlite3_file, sqlite3_io_methods, sqlite3_vfs};
use std::ffi::{CStr, c_int, c_void};
use std::slice;
use std::sync::OnceLock;

/// By this name a connection asks for it. The file itself and everything but the log is as SQLite does it.
const NAME: &CStr = c"gathered-log";
/// In the log each page comes after so many bytes. Four of them say how large the database is after a transaction whose last page
/// this is, and nothing before any other.
const HEADER: usize = 24;
const SIZE_AFTER: std::ops::Range<usize> = 4..8;
/// So much is not kept back any longer: the rest of its transaction has no bound.
const MOST: usize = 96 * 1024;
/// SQLite's own write takes no more at a time than fits into seventeen bits.
const ONE_CALL: usize = 0x1f000;

/// The name, for whoever opens the connection that writes.
pub(crate) fn name() -> Result<&'static CStr, Failure> {
    static REGISTERED: OnceLock<c_int> = OnceLock::new();
    match *REGISTERED.get_or_init(register) {
        SQLITE_OK => Ok(NAME),
        code => {
            Err(Trouble::new(TroubleKind::Database, format!("SQLite refuses a way to write its log: {code}")).into())
        }
    }
}

/// What of the log is yet to be written.
#[derive(Default)]
struct Gathered {
    bytes: Vec<u8>,
    /// Where they belong.
    from: i64,
    /// Where the last write ended, written or not. What is written again, as after a transaction that was taken back, does not begin here.
    end: i64,
    announced: Option<Announced>,
}

/// The page that its header was about.
#[derive(Clone, Copy, PartialEq)]
enum Announced {
    One,
    Last,
}

/// Writes to the file, by SQLite's own function.
type Write<'a> = &'a mut dyn FnMut(&[u8], i64) -> c_int;

impl Gathered {
    fn take(&mut self, bytes: &[u8], at: i64, write: Write) -> c_int {
        let follows = at == self.end;
        self.end = at + bytes.len() as i64;
        match self.announced.take() {
            Some(page) if follows => {
                self.keep(bytes, at);
                if (page == Announced::Last && !bug!(last_page_kept_back)) || self.bytes.len() >= MOST {
                    self.let_go(write)
                } else {
                    SQLITE_OK
                }
            }
            _ if follows && bytes.len() == HEADER => {
                let last = bytes[SIZE_AFTER] != [0; 4];
                self.announced = Some(if last { Announced::Last } else { Announced::One });
                self.keep(bytes, at);
                SQLITE_OK
            }
            _ => match self.let_go(write) {
                SQLITE_OK => write(bytes, at),
                failed => failed,
            },
        }
    }

    fn keep(&mut self, bytes: &[u8], at: i64) {
        if self.bytes.is_empty() {
            self.from = at;
        }
        self.bytes.extend_from_slice(bytes);
    }

    /// Before anybody looks at the file. What cannot be written is forgotten: its transaction has failed.
    fn let_go(&mut self, write: Write) -> c_int {
        let mut at = self.from;
        let written = self.bytes.chunks(ONE_CALL).try_for_each(|part| {
            let code = write(part, at);
            at += part.len() as i64;
            if code == SQLITE_OK { Ok(()) } else { Err(code) }
        });
        self.bytes.clear();
        written.err().unwrap_or(SQLITE_OK)
    }
}

/// What SQLite takes for a file and hands to every function below: it begins as one.
#[repr(C)]
struct LogFile {
    file: sqlite3_file,
    log: *mut Log,
}

struct Log {
    gathered: Gathered,
    /// SQLite's own file, which lives in as many bytes as it asks for.
    own: Box<[u64]>,
}

impl Log {
    fn own(&mut self) -> *mut sqlite3_file {
        self.own.as_mut_ptr().cast()
    }

    fn let_go(&mut self) -> c_int {
        let own = self.own();
        // SAFETY: it was opened, and is closed only with us.
        self.gathered.let_go(&mut |bytes, at| unsafe { write_own(own, bytes, at) })
    }
}

/// # Safety
/// `own` is open.
unsafe fn methods(own: *mut sqlite3_file) -> &'static sqlite3_io_methods {
    // SAFETY: as long as a file is open it names functions that are there for ever.
    unsafe { &*(*own).pMethods }
}

/// # Safety
/// `own` is open.
unsafe fn write_own(own: *mut sqlite3_file, bytes: &[u8], at: i64) -> c_int {
    // SAFETY: the bytes are there, and fewer than `ONE_CALL` or as many as SQLite had.
    unsafe { methods(own).xWrite.expect("a file is written")(own, bytes.as_ptr().cast(), bytes.len() as c_int, at) }
}

/// # Safety
/// `file` was opened by `open` as a log, and SQLite uses a file in one thread at a time.
unsafe fn log_of<'a>(file: *mut sqlite3_file) -> &'a mut Log {
    // SAFETY: then this is what `open` put there.
    unsafe { &mut *(*file.cast::<LogFile>()).log }
}

fn register() -> c_int {
    // SAFETY: SQLite's functions of a file system are there for ever, and so is what we add to them. Those that we take over as they are
    // do not ask through whom they were called.
    unsafe {
        let own = ffi::sqlite3_vfs_find(std::ptr::null());
        if own.is_null() {
            return ffi::SQLITE_ERROR;
        }
        let mut ours = Box::new(*own);
        ours.zName = NAME.as_ptr();
        ours.szOsFile = ours.szOsFile.max(size_of::<LogFile>() as c_int);
        ours.pAppData = own.cast();
        ours.xOpen = Some(open);
        ffi::sqlite3_vfs_register(Box::into_raw(ours), 0)
    }
}

/// A log with what gathers before it; every other file as SQLite opens it.
unsafe extern "C" fn open(
    vfs: *mut sqlite3_vfs,
    name: ffi::sqlite3_filename,
    file: *mut sqlite3_file,
    flags: c_int,
    out: *mut c_int,
) -> c_int {
    // SAFETY: `register` has put SQLite's own there, and SQLite gives us room for either file.
    unsafe {
        let own: *mut sqlite3_vfs = (*vfs).pAppData.cast();
        let open_own = (*own).xOpen.expect("files are opened");
        if flags & ffi::SQLITE_OPEN_WAL == 0 {
            return open_own(own, name, file, flags, out);
        }
        let room = (*own).szOsFile as usize / size_of::<u64>() + 1;
        let mut log = Box::new(Log { gathered: Gathered::default(), own: vec![0; room].into() });
        (*file).pMethods = std::ptr::null();
        let code = open_own(own, name, log.own(), flags, out);
        if code == SQLITE_OK {
            (*file.cast::<LogFile>()).log = Box::into_raw(log);
            (*file).pMethods = &METHODS;
        }
        code
    }
}

/// Says to SQLite's own file what was said to ours; where that looks at the file, after it was given what it lacks. If that fails, a page was
/// lost that SQLite takes for written: an I/O error ends its transaction, whatever it was asked to do.
macro_rules! passed_on {
    ($name:ident, $method:ident $(, $arg:ident: $type:ty)* $(; $before:ident)?) => {
        unsafe extern "C" fn $name(file: *mut sqlite3_file $(, $arg: $type)*) -> c_int {
            // SAFETY: SQLite calls it with a file that `open` made, and with what the function of its own file expects.
            unsafe {
                let log = log_of(file);
                $(if log.$before() != SQLITE_OK {
                    return ffi::SQLITE_IOERR_WRITE;
                })?
                methods(log.own()).$method.expect("every file has it")(log.own() $(, $arg)*)
            }
        }
    };
}

passed_on!(read, xRead, into: *mut c_void, length: c_int, at: i64; let_go);
passed_on!(truncate, xTruncate, size: i64; let_go);
passed_on!(sync, xSync, flags: c_int; let_go);
passed_on!(file_size, xFileSize, size: *mut i64; let_go);
passed_on!(lock, xLock, level: c_int);
passed_on!(unlock, xUnlock, level: c_int);
passed_on!(is_reserved, xCheckReservedLock, answer: *mut c_int);
passed_on!(control, xFileControl, what: c_int, argument: *mut c_void);
passed_on!(sector_size, xSectorSize);
passed_on!(characteristics, xDeviceCharacteristics);

unsafe extern "C" fn write(file: *mut sqlite3_file, bytes: *const c_void, length: c_int, at: i64) -> c_int {
    // SAFETY: SQLite calls it with a file that `open` made and with so many bytes.
    unsafe {
        let log = log_of(file);
        let (own, bytes) = (log.own(), slice::from_raw_parts(bytes.cast::<u8>(), length as usize));
        log.gathered.take(bytes, at, &mut |bytes, at| write_own(own, bytes, at))
    }
}

/// What it still holds was never committed.
unsafe extern "C" fn close(file: *mut sqlite3_file) -> c_int {
    // SAFETY: SQLite closes a file once, and calls nothing with it afterwards.
    unsafe {
        let mut log = Box::from_raw((*file.cast::<LogFile>()).log);
        methods(log.own()).xClose.expect("every file has it")(log.own())
    }
}

/// The first version: a log is neither shared nor mapped.
static METHODS: sqlite3_io_methods = sqlite3_io_methods {
    iVersion: 1,
    xClose: Some(close),
    xRead: Some(read),
    xWrite: Some(write),
    xTruncate: Some(truncate),
    xSync: Some(sync),
    xFileSize: Some(file_size),
    xLock: Some(lock),
    xUnlock: Some(unlock),
    xCheckReservedLock: Some(is_reserved),
    xFileControl: Some(control),
    xSectorSize: Some(sector_size),
    xDeviceCharacteristics: Some(characteristics),
    xShmMap: None,
    xShmLock: None,
    xShmBarrier: None,
    xShmUnmap: None,
    xFetch: None,
    xUnfetch: None,
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint;
    use proptest::prelude::*;
    use rusqlite::{Connection, OpenFlags};
    use std::collections::BTreeMap;
    use std::path::Path;

    const PAGE: usize = 512;

    /// What was written to the file, where, and how long.
    fn written(writes: &[(Vec<u8>, i64)]) -> Vec<(i64, usize)> {
        let (mut gathered, mut calls) = (Gathered::default(), Vec::new());
        for (bytes, at) in writes {
            let mut write = |bytes: &[u8], at| {
                calls.push((at, bytes.len()));
                SQLITE_OK
            };
            assert_eq!(gathered.take(bytes, *at, &mut write), SQLITE_OK);
        }
        calls
    }

    fn header(last: bool) -> Vec<u8> {
        let mut header = vec![0; HEADER];
        header[SIZE_AFTER.end - 1] = u8::from(last);
        header
    }

    /// The beginning of a log, and a page of it after the other from there.
    fn pages(ends: &[bool]) -> Vec<(Vec<u8>, i64)> {
        let mut writes = vec![(vec![0; 32], 0)];
        for end in ends {
            let at = writes.last().map_or(0, |(bytes, at)| at + bytes.len() as i64);
            writes.extend([(header(*end), at), (vec![1; PAGE], at + HEADER as i64)]);
        }
        writes
    }

    #[test]
    fn the_pages_of_a_transaction_are_one_write() {
        let one = (HEADER + PAGE) as i64;
        assert_eq!(
            written(&pages(&[false, false, true, true])),
            [(0, 32), (32, 3 * one as usize), (32 + 3 * one, one as usize)]
        );
    }

    #[test]
    fn what_is_no_new_page_is_written_at_once_after_what_came_before_it() {
        let one = (HEADER + PAGE) as i64;
        let mut writes = pages(&[false, false]);
        // A page that is written again, and its header: the last of a transaction then need not be the last in the file.
        writes.extend([(vec![2; PAGE], 32 + HEADER as i64), (header(true), 32)]);
        let again = [(32 + HEADER as i64, PAGE), (32, HEADER)];
        assert_eq!(written(&writes), [&[(0, 32), (32, 2 * one as usize)][..], &again].concat());
    }

    #[test]
    fn a_long_transaction_is_written_in_parts() {
        let calls = written(&pages(&[false; 400]));
        assert!((2..=4).contains(&calls.len()), "{calls:?}");
        assert!(calls.iter().all(|(_, length)| *length < MOST + PAGE + HEADER));
    }

    #[test]
    fn a_write_that_fails_fails_its_transaction_and_is_forgotten() {
        let (mut gathered, writes) = (Gathered::default(), pages(&[false, true]));
        let codes: Vec<_> = writes
            .iter()
            .map(|(bytes, at)| {
                gathered.take(bytes, *at, &mut |_, at| if at == 0 { SQLITE_OK } else { ffi::SQLITE_FULL })
            })
            .collect();
        assert_eq!(codes, [SQLITE_OK, SQLITE_OK, SQLITE_OK, SQLITE_OK, ffi::SQLITE_FULL]);
        assert_eq!(gathered.let_go(&mut |_, _| panic!("nothing is left")), SQLITE_OK);
    }

    #[derive(Debug, Clone)]
    enum Act {
        Put {
            key: i64,
            bytes: i64,
        },
        Remove {
            key: i64,
        },
        /// Some of what follows is taken back, or everything since the last commit.
        Savepoint,
        TakeBack,
        Commit,
        RollBack,
        /// Somebody else copies the log, so that it may begin anew.
        Copy,
    }

    fn act() -> impl Strategy<Value = Act> {
        prop_oneof![
            6 => (0..40_i64, 1..9000_i64).prop_map(|(key, bytes)| Act::Put { key, bytes }),
            2 => (0..40_i64).prop_map(|key| Act::Remove { key }),
            1 => Just(Act::Savepoint),
            1 => Just(Act::TakeBack),
            3 => Just(Act::Commit),
            1 => Just(Act::RollBack),
            1 => Just(Act::Copy),
        ]
    }

    fn rows(conn: &Connection) -> BTreeMap<i64, i64> {
        let mut read = conn.prepare_cached("SELECT key, length(bytes) FROM t").unwrap();
        read.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).unwrap().map(Result::unwrap).collect()
    }

    /// What another process finds in the files as they are now.
    fn found_in_a_copy(path: &Path) -> BTreeMap<i64, i64> {
        let folder = tempfile::tempdir().unwrap();
        for end in ["", "-wal"] {
            std::fs::copy(format!("{}{end}", path.display()), folder.path().join(format!("copy{end}"))).unwrap();
        }
        let copy = Connection::open(folder.path().join("copy")).unwrap();
        let sound: String = copy.query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
        assert_eq!(sound, "ok");
        rows(&copy)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        /// With so few pages at hand that most transactions write some before they end, and read them again.
        #[test]
        fn others_and_the_files_know_of_everything_committed_and_nothing_else(acts in prop::collection::vec(act(), 1..120)) {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("t.db");
            let ours = Connection::open_with_flags_and_vfs(&path, OpenFlags::default(), name().unwrap()).unwrap();
            ours.execute_batch(
                "PRAGMA page_size = 1024; PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL; PRAGMA cache_size = 8; PRAGMA wal_autocheckpoint = 0;
                 CREATE TABLE t (key INTEGER PRIMARY KEY, bytes BLOB); BEGIN IMMEDIATE; SAVEPOINT s",
            )
            .unwrap();
            let other = Connection::open(&path).unwrap();
            let (mut committed, mut saved, mut now) = <(BTreeMap<_, _>, BTreeMap<_, _>, BTreeMap<_, _>)>::default();
            for act in acts {
                match act {
                    Act::Put { key, bytes } => {
                        ours.execute("INSERT OR REPLACE INTO t VALUES ($1, randomblob($2))", [key, bytes]).unwrap();
                        now.insert(key, bytes);
                    }
                    Act::Remove { key } => {
                        ours.execute("DELETE FROM t WHERE key = $1", [key]).unwrap();
                        now.remove(&key);
                    }
                    Act::Savepoint => {
                        ours.execute_batch("RELEASE s; SAVEPOINT s").unwrap();
                        saved = now.clone();
                    }
                    Act::TakeBack => {
                        ours.execute_batch("ROLLBACK TO s").unwrap();
                        now = saved.clone();
                    }
                    Act::Commit => {
                        ours.execute_batch("COMMIT").unwrap();
                        (committed, saved) = (now.clone(), now.clone());
                        prop_assert_eq!(&rows(&other), &committed);
                        prop_assert_eq!(&found_in_a_copy(&path), &committed);
                        ours.execute_batch("BEGIN IMMEDIATE; SAVEPOINT s").unwrap();
                    }
                    Act::RollBack => {
                        ours.execute_batch("ROLLBACK; BEGIN IMMEDIATE; SAVEPOINT s").unwrap();
                        (now, saved) = (committed.clone(), committed.clone());
                    }
                    Act::Copy => drop(checkpoint::copy(&other)),
                }
                prop_assert_eq!(&rows(&ours), &now);
                prop_assert_eq!(&rows(&other), &committed);
            }
        }
    }
}
