//! LRU cache of the blobs that this instance has fetched, by hash, so that a second run fetches nothing. Bounded in bytes.
//! Keeps only bytes whose hash it has computed itself.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;
use wire::model::crash_point;

const MOST_BYTES: u64 = 2 << 30;

pub struct Cache {
    dir: PathBuf,
    most: u64,
    /// Bytes in the cache; none until they are first counted. Only a cache that is over its bound is listed again.
    total: Mutex<Option<u64>>,
    number: AtomicU64,
}

impl Cache {
    pub fn open(instance: &Path) -> io::Result<Cache> {
        Cache::bounded(instance, MOST_BYTES)
    }

    fn bounded(instance: &Path, most: u64) -> io::Result<Cache> {
        let dir = instance.join("blobs");
        // What an earlier runner had begun to fetch is in here.
        let _ = fs::remove_dir_all(dir.join(DRAFTS));
        fs::create_dir_all(dir.join(DRAFTS))?;
        Ok(Cache { dir, most, total: Mutex::new(None), number: AtomicU64::new(0) })
    }

    pub fn path(&self, hash: &str) -> PathBuf {
        self.dir.join(hash.get(..2).unwrap_or("xx")).join(hash)
    }

    /// The blob, marked as used now.
    pub fn get(&self, hash: &str) -> Option<File> {
        let file = File::open(self.path(hash)).ok()?;
        // Only the order of use: a file system that does not keep it loses nothing else.
        let _ = file.set_modified(SystemTime::now());
        Some(file)
    }

    pub fn has(&self, hash: &str) -> bool {
        self.path(hash).exists()
    }

    /// A file to fetch into. Two fetches of one blob are two files.
    pub fn begin(&self, hash: &str) -> io::Result<(PathBuf, File)> {
        let number = self.number.fetch_add(1, Ordering::Relaxed);
        let path = self.dir.join(DRAFTS).join(format!("{hash}.{number}"));
        Ok((path.clone(), File::create(path)?))
    }

    /// Its content has been verified.
    pub fn keep(&self, fetched: &Path, hash: &str, bytes: u64) -> io::Result<()> {
        let path = self.path(hash);
        fs::create_dir_all(path.parent().expect("a blob lies in a folder"))?;
        let kept = crash_point!("cache.keep", fs::rename(fetched, &path));
        if let Some(total) = self.total.lock().expect("no panic while it is locked").as_mut() {
            *total += bytes;
        }
        kept
    }

    /// A small blob whose content has been verified.
    pub fn put(&self, hash: &str, bytes: &[u8]) -> io::Result<()> {
        let (path, mut file) = self.begin(hash)?;
        file.write_all(bytes)?;
        self.keep(&path, hash, bytes.len() as u64)
    }

    /// Once a job's files are in place: what is over the bound goes, the least recently used first.
    pub fn trim(&self) {
        let mut total = self.total.lock().expect("no panic while it is locked");
        if total.is_some_and(|total| total <= self.most) {
            return;
        }
        let mut entries = self.entries();
        entries.sort_by_key(|(_, used, _)| *used);
        let mut bytes: u64 = entries.iter().map(|(.., bytes)| bytes).sum();
        for (path, _, size) in entries {
            if bytes <= self.most {
                break;
            }
            if fs::remove_file(path).is_ok() {
                bytes -= size;
            }
        }
        *total = Some(bytes);
    }

    fn entries(&self) -> Vec<(PathBuf, SystemTime, u64)> {
        let list = |dir: PathBuf| fs::read_dir(dir).into_iter().flatten().flatten();
        let describe = |entry: fs::DirEntry| {
            let about = entry.metadata().ok()?;
            Some((entry.path(), about.modified().ok()?, about.len()))
        };
        let folders = list(self.dir.clone()).filter(|entry| entry.file_name() != DRAFTS);
        folders.flat_map(|folder| list(folder.path())).filter_map(describe).collect()
    }
}

const DRAFTS: &str = "drafts";

#[test]
fn the_least_recently_used_go_first() {
    let dir = tempfile::tempdir().unwrap();
    let cache = Cache::bounded(dir.path(), 25).unwrap();
    for (age, hash) in [(30, "old"), (20, "used"), (10, "new")] {
        let (path, mut file) = cache.begin(hash).unwrap();
        file.write_all(&[0; 10]).unwrap();
        file.set_modified(SystemTime::now() - std::time::Duration::from_secs(age)).unwrap();
        cache.keep(&path, hash, 10).unwrap();
    }
    cache.get("old").unwrap();
    cache.trim();
    let here = |cache: &Cache| ["old", "used", "new", "more"].map(|hash| cache.has(hash));
    assert_eq!(here(&cache), [true, false, true, false]);
    cache.put("more", &[0; 10]).unwrap();
    cache.trim();
    assert_eq!(here(&cache).into_iter().filter(|is| *is).count(), 2, "what came later counts");
    let (half, _) = cache.begin("half").unwrap();
    Cache::bounded(dir.path(), 25).unwrap();
    assert!(!half.exists());
}
