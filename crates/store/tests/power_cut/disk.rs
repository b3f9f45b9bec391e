//! A model of a disk: a VFS that wraps SQLite's own and remembers what was written to each file since its last sync. A power cut may lose
//! any of that, sector by sector, in any order.

use rusqlite::ffi::{self, SQLITE_OK, sqlite3_file, sqlite3_io_methods, sqlite3_vfs};
use std::collections::BTreeMap;
use std::ffi::{CStr, c_int, c_void};
use std::path::Path;
use std::sync::Mutex;

/// A disk writes a sector completely or not at all.
const SECTOR: usize = 512;

static DISK: Mutex<Disk> =
    Mutex::new(Disk { watched: String::new(), open: BTreeMap::new(), files: BTreeMap::new(), last: 0 });

struct Disk {
    /// The folder whose files count.
    watched: String,
    /// By the address of what SQLite has opened: which file it is, and the functions that write it.
    open: BTreeMap<usize, (String, &'static sqlite3_io_methods)>,
    files: BTreeMap<String, File>,
    /// The number of the last change.
    last: u64,
}

#[derive(Default, Clone)]
struct File {
    /// What was there when its last sync began.
    kept: Vec<u8>,
    since: Vec<(u64, Change)>,
}

#[derive(Clone)]
enum Change {
    Written { at: usize, bytes: Vec<u8> },
    Cut { length: usize },
}

impl Change {
    fn make(&self, file: &mut Vec<u8>) {
        match self {
            Change::Cut { length } => file.truncate(*length),
            Change::Written { at, bytes } => {
                file.resize(file.len().max(at + bytes.len()), 0);
                file[*at..at + bytes.len()].copy_from_slice(bytes);
            }
        }
    }

    /// Some of it, perhaps all or nothing.
    fn make_some(&self, file: &mut Vec<u8>, happens: &mut dyn FnMut() -> bool) {
        let Change::Written { at, bytes } = self else {
            return if happens() {
                self.make(file)
            };
        };
        let mut from = 0;
        while from < bytes.len() {
            let to = bytes.len().min((at + from) / SECTOR * SECTOR + SECTOR - at);
            if happens() {
                Change::Written { at: at + from, bytes: bytes[from..to].to_vec() }.make(file);
            }
            from = to;
        }
    }
}

/// Makes it the default VFS of this process; files in this folder are recorded.
pub fn insert(folder: &Path) {
    DISK.lock().unwrap().watched = folder.display().to_string();
    // SAFETY: SQLite's own functions are there for ever, and so is what is added to them.
    let code = unsafe {
        let own = ffi::sqlite3_vfs_find(std::ptr::null());
        let mut ours = Box::new(*own);
        ours.zName = c"power-cut".as_ptr();
        ours.pAppData = own.cast();
        ours.xOpen = Some(open);
        ffi::sqlite3_vfs_register(Box::into_raw(ours), 1)
    };
    assert_eq!(code, SQLITE_OK);
}

/// What is written from now on may come after a sync that begins now.
pub fn mark() -> u64 {
    DISK.lock().unwrap().last
}

/// A sync that began at `mark` has ended.
pub fn synced(path: &str, mark: u64) {
    let mut disk = DISK.lock().unwrap();
    let Some(file) = disk.files.get_mut(path) else { return };
    let later = file.since.partition_point(|(number, _)| *number <= mark);
    file.since.drain(..later).for_each(|(_, change)| change.make(&mut file.kept));
}

/// The files as they would be found. `happens`: whether a sector that was not synced is there all the same. And how much was at stake.
pub fn after_a_cut(happens: &mut dyn FnMut() -> bool) -> (BTreeMap<String, Vec<u8>>, usize) {
    let files = DISK.lock().unwrap().files.clone();
    let at_stake = files.values().map(|file| file.since.len()).sum();
    let mut left = BTreeMap::new();
    for (path, mut file) in files {
        file.since.iter().for_each(|(_, change)| change.make_some(&mut file.kept, happens));
        left.insert(path, file.kept);
    }
    (left, at_stake)
}

fn note(file: *mut sqlite3_file, change: Change) {
    let mut disk = DISK.lock().unwrap();
    disk.last += 1;
    let (number, path) = (disk.last, disk.open[&(file as usize)].0.clone());
    disk.files.entry(path).or_default().since.push((number, change));
}

fn own(file: *mut sqlite3_file) -> (String, &'static sqlite3_io_methods) {
    DISK.lock().unwrap().open[&(file as usize)].clone()
}

unsafe extern "C" fn open(
    vfs: *mut sqlite3_vfs,
    name: ffi::sqlite3_filename,
    file: *mut sqlite3_file,
    flags: c_int,
    out: *mut c_int,
) -> c_int {
    // SAFETY: SQLite's own is where `insert` put it, and what it opens begins with its functions, which are copied and partly replaced.
    unsafe {
        let own: *mut sqlite3_vfs = (*vfs).pAppData.cast();
        let code = (*own).xOpen.unwrap()(own, name, file, flags, out);
        let counts = flags & (ffi::SQLITE_OPEN_MAIN_DB | ffi::SQLITE_OPEN_WAL) != 0;
        if code != SQLITE_OK || !counts || name.is_null() {
            return code;
        }
        let path = CStr::from_ptr(name).to_string_lossy().into_owned();
        let mut disk = DISK.lock().unwrap();
        if path.starts_with(&disk.watched) {
            let functions = &*(*file).pMethods;
            disk.open.insert(file as usize, (path, functions));
            (*file).pMethods = Box::into_raw(Box::new(sqlite3_io_methods {
                xClose: Some(close),
                xWrite: Some(write),
                xTruncate: Some(truncate),
                xSync: Some(sync),
                ..*functions
            }));
        }
        code
    }
}

unsafe extern "C" fn write(file: *mut sqlite3_file, bytes: *const c_void, length: c_int, at: i64) -> c_int {
    // SAFETY: SQLite calls it with what it would call its own with.
    unsafe {
        let copy = std::slice::from_raw_parts(bytes.cast::<u8>(), length as usize).to_vec();
        let code = own(file).1.xWrite.unwrap()(file, bytes, length, at);
        note(file, Change::Written { at: at as usize, bytes: copy });
        code
    }
}

unsafe extern "C" fn truncate(file: *mut sqlite3_file, length: i64) -> c_int {
    // SAFETY: as above.
    let code = unsafe { own(file).1.xTruncate.unwrap()(file, length) };
    note(file, Change::Cut { length: length as usize });
    code
}

unsafe extern "C" fn sync(file: *mut sqlite3_file, flags: c_int) -> c_int {
    let (mark, (path, functions)) = (mark(), own(file));
    // SAFETY: as above.
    let code = unsafe { functions.xSync.unwrap()(file, flags) };
    assert_eq!(code, SQLITE_OK);
    synced(&path, mark);
    code
}

unsafe extern "C" fn close(file: *mut sqlite3_file) -> c_int {
    let (_, functions) = DISK.lock().unwrap().open.remove(&(file as usize)).unwrap();
    // SAFETY: as above.
    unsafe { functions.xClose.unwrap()(file) }
}
