//! The instance's directory: who this runner is, what lies where, and that nobody else runs here.

use crate::cgroup::{Layout, Limits};
use crate::process::{self, Process};
use nix::fcntl::{Flock, FlockArg};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use wire::model::boot::{BOOT_FILE, Boot, LOCK_FILE};

pub struct Instance {
    /// Without symbolic links: it is compared with what processes carry in their environment.
    pub dir: PathBuf,
    pub boot: Boot,
    pub layout: Layout,
    pub containment: &'static str,
}

impl Instance {
    pub fn open(dir: &Path) -> io::Result<Instance> {
        let dir = dir.canonicalize()?;
        let text = std::fs::read(dir.join(BOOT_FILE))?;
        let boot = serde_json::from_slice(&text)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, format!("{BOOT_FILE}: {error}")))?;
        // What jobs say and what they were sent is nobody else's.
        for private in ["jobs", "blobs"] {
            std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir.join(private))?;
        }
        let layout = Layout::discover();
        let containment = containment_of(&layout);
        Ok(Instance { dir, boot, layout, containment })
    }

    pub fn jobs(&self) -> PathBuf {
        self.dir.join("jobs")
    }

    pub fn limits(&self) -> Limits {
        Limits { cpu_milli: self.boot.cpu_milli, memory_bytes: self.boot.memory_bytes }
    }

    /// A name for control groups that no other instance on this host has.
    pub fn group_prefix(&self) -> String {
        let own = blake3::hash(format!("{} {} {}", self.dir.display(), self.boot.name, self.boot.nonce).as_bytes());
        format!("remuda-{}-", &own.to_hex()[..12])
    }

    pub fn group_name(&self, number: u64) -> String {
        format!("{}{}-{number}", self.group_prefix(), std::process::id())
    }
}

pub fn containment_of(layout: &Layout) -> &'static str {
    if layout.contains() { "cgroup" } else { "sweep" }
}

/// Writes into the lock who holds it, for those who must end a holder that no longer answers.
pub fn sign(mut lock: &File) -> io::Result<()> {
    let pid = std::process::id() as i32;
    let started = Process::read(pid).map_or(0, |process| process.started);
    lock.set_len(0)?;
    writeln!(lock, "{pid} {started} {}", process::boot_id())
}

/// The process that signed the lock, if it is still the same one.
pub fn holder(dir: &Path) -> Option<Process> {
    let text = std::fs::read_to_string(dir.join(LOCK_FILE)).ok()?;
    let mut words = text.split_ascii_whitespace();
    let (pid, started, boot) = (words.next()?.parse().ok()?, words.next()?.parse::<u64>().ok()?, words.next()?);
    Process::read(pid).filter(|process| process.started == started && boot == process::boot_id())
}

/// Held for life. `None` when another process holds it.
pub fn lock(dir: &Path) -> io::Result<Option<Flock<File>>> {
    let file = OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(dir.join(LOCK_FILE))?;
    match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
        Ok(lock) => Ok(Some(lock)),
        Err((_, nix::errno::Errno::EWOULDBLOCK)) => Ok(None),
        Err((_, error)) => Err(error.into()),
    }
}

/// Whether the lock that is held is still the one others would find.
pub fn is_ours(dir: &Path, lock: &File) -> bool {
    match (std::fs::metadata(dir.join(LOCK_FILE)), lock.metadata()) {
        (Ok(there), Ok(held)) => (there.dev(), there.ino()) == (held.dev(), held.ino()),
        _ => false,
    }
}
