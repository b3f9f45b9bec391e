//! A remote in a folder of this machine. Files appear by rename when all their bytes are synced; refs change under a lock of their own.

use super::bucket::{Bucket, Listed};
use super::unique;
use crate::local::{at, lock};
use model::{Trouble, TroubleKind};
use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

/// Files that are being written, or were left by a process that died.
pub const DRAFTS: &str = "drafts";
const LOCKS: &str = "locks";

pub struct Folder {
    root: PathBuf,
}

impl Folder {
    /// The folder is made when something is written into it.
    pub fn new(root: impl Into<PathBuf>) -> Folder {
        Folder { root: root.into() }
    }

    fn path(&self, key: &str) -> PathBuf {
        debug_assert!(
            !key.is_empty() && key.split('/').all(|part| !part.is_empty() && !part.starts_with('.')),
            "{key}"
        );
        self.root.join(key)
    }

    /// Writes a file under another name, syncs it, and gives it its name.
    fn write(&self, key: &str, write: impl FnOnce(&mut File) -> io::Result<()>) -> Result<(), Trouble> {
        let path = self.path(key);
        let folder = path.parent().unwrap_or(&self.root);
        let drafts = self.root.join(DRAFTS);
        for needed in [folder, &drafts] {
            fs::create_dir_all(needed).map_err(at(needed))?;
        }
        let draft = drafts.join(unique()?);
        let written = File::create_new(&draft).and_then(|mut file| {
            write(&mut file)?;
            file.sync_all()?;
            fs::rename(&draft, &path)?;
            File::open(folder)?.sync_all()
        });
        written.map_err(|error| {
            fs::remove_file(&draft).ok();
            at(&path)(error)
        })
    }

    fn locked(&self, key: &str) -> Result<(lock::Locked, PathBuf), Trouble> {
        let folder = self.root.join(LOCKS);
        // Keys have no `+`: two keys never have one lock.
        let path = folder.join(key.replace('/', "+"));
        loop {
            fs::create_dir_all(&folder).map_err(at(&folder))?;
            if let Some(locked) = lock::take(&path)? {
                return Ok((locked, path));
            }
        }
    }

    fn walk(&self, folder: &Path, key: &str, found: &mut Vec<Listed>) -> Result<(), Trouble> {
        let Some(entries) = present(fs::read_dir(folder)).map_err(at(folder))? else { return Ok(()) };
        for entry in entries {
            let entry = entry.map_err(at(folder))?;
            let Some(name) = entry.file_name().to_str().map(str::to_owned) else { continue };
            let (path, key) = (entry.path(), format!("{key}/{name}"));
            // Another process may have removed it since the folder was read.
            let Some(about) = present(entry.metadata()).map_err(at(&path))? else { continue };
            if about.is_dir() {
                self.walk(&path, &key, found)?;
            } else if about.is_file() {
                let since = about.modified().map_err(at(&path))?.duration_since(UNIX_EPOCH).unwrap_or_default();
                found.push(Listed { key, modified_ms: since.as_millis() as i64 });
            }
        }
        Ok(())
    }
}

fn present<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(found) => Ok(Some(found)),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Ok(None),
        Err(error) => Err(error),
    }
}

impl Bucket for Folder {
    fn whole(&self, key: &str, most: u64) -> Result<Option<Vec<u8>>, Trouble> {
        let path = self.path(key);
        let Some(file) = present(File::open(&path)).map_err(at(&path))? else { return Ok(None) };
        let mut bytes = Vec::new();
        file.take(most + 1).read_to_end(&mut bytes).map_err(at(&path))?;
        if bytes.len() as u64 > most {
            let what = format!("{} has more than {most} bytes", path.display());
            return Err(Trouble::new(TroubleKind::InvalidSpec, what));
        }
        Ok(Some(bytes))
    }

    fn range(&self, key: &str, start: u64, bytes: u64) -> Result<Option<Vec<u8>>, Trouble> {
        let path = self.path(key);
        let Some(file) = present(File::open(&path)).map_err(at(&path))? else { return Ok(None) };
        let there = file.metadata().map_err(at(&path))?.len().saturating_sub(start).min(bytes);
        let mut part = vec![0; there as usize];
        file.read_exact_at(&mut part, start).map_err(at(&path))?;
        Ok(Some(part))
    }

    fn create(&self, key: &str, bytes: &[u8]) -> Result<(), Trouble> {
        self.write(key, |file| file.write_all(bytes))
    }

    fn create_from(&self, key: &str, from: &mut dyn io::Read, _bytes: u64) -> Result<(), Trouble> {
        self.write(key, |file| io::copy(from, file).map(drop))
    }

    fn swap(&self, key: &str, from: Option<&[u8]>, to: &[u8]) -> Result<bool, Trouble> {
        let _held = self.locked(key)?;
        let path = self.path(key);
        let is = present(fs::read(&path)).map_err(at(&path))?;
        if is.as_deref() != from {
            return Ok(false);
        }
        self.write(key, |file| file.write_all(to))?;
        Ok(true)
    }

    fn remove(&self, key: &str, from: &[u8]) -> Result<bool, Trouble> {
        let (held, lock) = self.locked(key)?;
        let path = self.path(key);
        let is = present(fs::read(&path)).map_err(at(&path))?;
        if is.as_deref() != Some(from) {
            return Ok(false);
        }
        fs::remove_file(&path).map_err(at(&path))?;
        // While it is held: a process that waits for it notices, and makes another.
        fs::remove_file(&lock).ok();
        drop(held);
        Ok(true)
    }

    fn list(&self, folder: &str) -> Result<Vec<Listed>, Trouble> {
        let mut found = Vec::new();
        self.walk(&self.path(folder), folder, &mut found)?;
        found.sort_by(|a, b| a.key.cmp(&b.key));
        Ok(found)
    }

    fn delete(&self, key: &str) -> Result<(), Trouble> {
        let path = self.path(key);
        present(fs::remove_file(&path)).map_err(at(&path))?;
        // The folder of one push's blobs: no later push writes into it. It stays while there are others in it.
        if let (3, Some(folder)) = (key.split('/').count(), path.parent()) {
            fs::remove_dir(folder).ok();
        }
        Ok(())
    }
}
