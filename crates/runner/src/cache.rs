//! Blobs this instance has fetched, by hash, so that a second run fetches nothing. Bounded; the least recently used go.
//! Trusts nothing it did not hash itself.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;
use wire::model::crash_point;

const MOST_BYTES: u64 = 2 << 30;

pub struct Cache {
    dir: PathBuf,
    most: u64,
}

impl Cache {
    pub fn open(instance: &Path) -> io::Result<Cache> {
        Cache::bounded(instance, MOST_BYTES)
    }

    fn bounded(instance: &Path, most: u64) -> io::Result<Cache> {
        let dir = instance.join("blobs");
        fs::create_dir_all(&dir)?;
        let cache = Cache { dir, most };
        // What a runner that died had begun to fetch.
        for (path, ..) in cache.entries().into_iter().filter(|(path, ..)| path.extension().is_some()) {
            let _ = fs::remove_file(path);
        }
        Ok(cache)
    }

    /// The blob, marked as used now.
    pub fn get(&self, hash: &str) -> Option<File> {
        let file = File::open(self.dir.join(hash)).ok()?;
        // Only the order of use: a file system that does not keep it loses nothing else.
        let _ = file.set_modified(SystemTime::now());
        Some(file)
    }

    pub fn has(&self, hash: &str) -> bool {
        self.path(hash).exists()
    }

    pub fn path(&self, hash: &str) -> PathBuf {
        self.dir.join(hash)
    }

    /// A file to fetch into. Two fetches of one blob are two files.
    pub fn begin(&self, hash: &str, number: u64) -> io::Result<(PathBuf, File)> {
        let path = self.dir.join(format!("{hash}.{number}"));
        Ok((path.clone(), File::create(path)?))
    }

    /// Its content has been verified.
    pub fn keep(&self, fetched: &Path, hash: &str) -> io::Result<()> {
        crash_point!("cache.keep", fs::rename(fetched, self.dir.join(hash)))
    }

    /// Once a job's files are in place: what is over the bound goes, the least recently used first.
    pub fn trim(&self) {
        let mut entries = self.entries();
        entries.sort_by_key(|(_, used, _)| *used);
        let mut total: u64 = entries.iter().map(|(.., bytes)| bytes).sum();
        for (path, _, bytes) in entries {
            if total <= self.most {
                return;
            }
            if fs::remove_file(path).is_ok() {
                total -= bytes;
            }
        }
    }

    fn entries(&self) -> Vec<(PathBuf, SystemTime, u64)> {
        let entries = fs::read_dir(&self.dir).into_iter().flatten().flatten();
        let describe = |entry: fs::DirEntry| {
            let about = entry.metadata().ok()?;
            Some((entry.path(), about.modified().ok()?, about.len()))
        };
        entries.filter_map(describe).collect()
    }
}

#[test]
fn the_least_recently_used_go_first() {
    let dir = tempfile::tempdir().unwrap();
    let cache = Cache::bounded(dir.path(), 25).unwrap();
    for (age, hash) in [(30, "old"), (20, "used"), (10, "new")] {
        let (path, mut file) = cache.begin(hash, 1).unwrap();
        io::Write::write_all(&mut file, &[0; 10]).unwrap();
        file.set_modified(SystemTime::now() - std::time::Duration::from_secs(age)).unwrap();
        cache.keep(&path, hash).unwrap();
    }
    cache.get("old").unwrap();
    cache.trim();
    assert_eq!(["old", "used", "new"].map(|hash| cache.has(hash)), [true, false, true]);
    cache.begin("half", 1).unwrap();
    let again = Cache::bounded(dir.path(), 25).unwrap();
    assert!(!again.dir.join("half.1").exists());
}
