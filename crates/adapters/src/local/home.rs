//! The directory that is an instance: its files, its locks, and whether a runner lives in it. Never starts or ends anything.

use super::lock::{self, Locked, Share};
use super::process::{Living, Trace};
use super::trouble::at;
use model::boot::{BOOT_FILE, Boot, LOCK_FILE};
use model::{Trouble, TroubleKind, crash_point};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Which process was started here; see `process::Trace`.
const PROCESS_FILE: &str = "pid.json";
/// Locked exclusively by a process that starts or ends a runner here; locked for reading by one that only looks.
const CHANGE_LOCK_FILE: &str = "provider.lock";
/// The machine was ended for good: a name is used once.
const TERMINATED_FILE: &str = "terminated";
const LOG_FILE: &str = "runner.log";
/// A log larger than this is put aside at the next start, so that two of them are the most there is.
const LOG_BYTES: u64 = 4 * 1024 * 1024;

pub struct Home {
    pub dir: PathBuf,
}

/// Whether a runner lives here.
pub enum Life {
    /// The process we know.
    Known(Living),
    /// A process holds the runner's lock, but its pid is not recorded yet.
    Unknown,
    None,
}

/// The right to change this directory.
pub struct Change {
    _lock: Locked,
    /// No runner was ever started here.
    pub fresh: bool,
}

impl Home {
    pub fn exists(&self) -> bool {
        self.dir.is_dir()
    }

    pub fn boot(&self) -> Result<Option<Boot>, Trouble> {
        self.read(BOOT_FILE)
    }

    pub fn write_boot(&self, boot: &Boot) -> Result<(), Trouble> {
        crash_point!("local.boot", self.write(BOOT_FILE, boot))
    }

    pub fn write_trace(&self, trace: &Trace) -> Result<(), Trouble> {
        crash_point!("local.trace", self.write(PROCESS_FILE, trace))
    }

    /// When the folder was made, in Unix ms; where the file system does not remember that, when it was last changed.
    pub fn created_ms(&self) -> Option<i64> {
        let folder = std::fs::metadata(&self.dir).ok()?;
        let made = folder.created().or_else(|_| folder.modified()).ok()?;
        i64::try_from(made.duration_since(std::time::UNIX_EPOCH).ok()?.as_millis()).ok()
    }

    pub fn is_terminated(&self) -> bool {
        self.dir.join(TERMINATED_FILE).exists()
    }

    pub fn mark_terminated(&self) -> Result<(), Trouble> {
        crash_point!("local.terminated", self.write(TERMINATED_FILE, &true))
    }

    /// Waits for others who change this directory; each of them is bounded. None if there is no directory.
    pub fn change(&self) -> Result<Option<Change>, Trouble> {
        let locked = lock::take(&self.dir.join(CHANGE_LOCK_FILE))?;
        let fresh = || ![BOOT_FILE, PROCESS_FILE].iter().any(|file| self.dir.join(file).exists());
        Ok(locked.map(|lock| Change { _lock: lock, fresh: fresh() }))
    }

    pub fn create(&self) -> Result<Change, Trouble> {
        loop {
            match DirBuilder::new().mode(0o700).create(&self.dir) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(at(&self.dir)(error)),
            }
            if let Some(change) = self.change()? {
                return Ok(change);
            }
        }
    }

    /// For callers that hold the change lock: no other process starts a runner meanwhile.
    pub fn life(&self) -> Result<Life, Trouble> {
        if let Some(living) = self.known()? {
            return Ok(Life::Known(living));
        }
        // Shared with others who look; a runner has it for itself.
        let held = matches!(lock::share(&self.dir.join(LOCK_FILE))?, Share::Taken);
        Ok(if held { Life::Unknown } else { Life::None })
    }

    /// For callers that only look; none while another process is starting or ending it. Trying the runner's lock at the moment a
    /// runner takes it would send that runner away, hence the read lock.
    pub fn life_if_settled(&self) -> Result<Option<Life>, Trouble> {
        if let Some(living) = self.known()? {
            return Ok(Some(Life::Known(living)));
        }
        match lock::share(&self.dir.join(CHANGE_LOCK_FILE))? {
            Share::Shared(_looking) => self.life().map(Some),
            Share::Taken => Ok(None),
            Share::NoFile => Ok(Some(Life::None)),
        }
    }

    pub fn log(&self) -> Result<File, Trouble> {
        let path = self.dir.join(LOG_FILE);
        if std::fs::metadata(&path).is_ok_and(|log| log.len() > LOG_BYTES) {
            std::fs::rename(&path, path.with_extension("log.1")).map_err(at(&path))?;
        }
        OpenOptions::new().create(true).append(true).mode(0o600).open(&path).map_err(at(&path))
    }

    fn known(&self) -> Result<Option<Living>, Trouble> {
        let Some(trace) = self.read::<Trace>(PROCESS_FILE)? else { return Ok(None) };
        trace.hold().map_err(at(&self.dir))
    }

    fn read<T: DeserializeOwned>(&self, file: &str) -> Result<Option<T>, Trouble> {
        let path = self.dir.join(file);
        match std::fs::read(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes).map(Some).map_err(|error| {
                let what = format!("{} cannot be read ({error}): remove the folder by hand", path.display());
                Trouble::new(TroubleKind::Internal, what)
            }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(at(&path)(error)),
        }
    }

    /// Whole or not at all, and for our eyes only. Writers hold the change lock, so one temporary name is enough.
    fn write(&self, file: &str, what: &impl Serialize) -> Result<(), Trouble> {
        let (path, new) = (self.dir.join(file), self.dir.join(format!("{file}.new")));
        let written = write_new(&new, what).and_then(|()| std::fs::rename(&new, &path));
        written.map_err(at(&path))
    }
}

fn write_new(path: &Path, what: &impl Serialize) -> io::Result<()> {
    let mut file = OpenOptions::new().create(true).truncate(true).write(true).mode(0o600).open(path)?;
    file.write_all(&serde_json::to_vec(what)?)?;
    file.sync_all()
}
