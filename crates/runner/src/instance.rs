//! The directory of an instance: the runner's identity, the layout of its files, and the lock that allows one runner at a time.

use crate::cgroup::Layout;
use crate::containment::{self, Way};
use crate::process::Process;
use nix::fcntl::{Flock, FlockArg};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use wire::model::boot::{BOOT_FILE, Boot, LOCK_FILE};

/// A lock without a living runner is free within this time, or another process is ending what is left here.
const FREED_WITHIN: Duration = Duration::from_secs(10);
const TRY_AGAIN_AFTER: Duration = Duration::from_millis(2);

pub struct Instance {
    /// Without symbolic links: it is compared with what processes carry in their environment.
    pub dir: PathBuf,
    pub boot: Boot,
    pub layout: Layout,
    pub way: Way,
}

impl Instance {
    pub fn open(dir: &Path) -> io::Result<Instance> {
        let dir = dir.canonicalize()?;
        let text = std::fs::read(dir.join(BOOT_FILE))?;
        let boot = serde_json::from_slice(&text)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, format!("{BOOT_FILE}: {error}")))?;
        // Output and files of jobs must not be readable by other users.
        for private in ["jobs", "blobs"] {
            std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir.join(private))?;
        }
        let (containment, layout) = containment::discover(&containment::choice());
        if let Some(nonsense) = containment.nonsense {
            tracing::warn!(%nonsense, "{} is none of cgroup, pidns, sweep", containment::CHOICE);
        }
        Ok(Instance { dir, boot, layout, way: containment.way })
    }

    /// A folder that every command has on its PATH, with this very programme as `repl`.
    pub fn tools(&self) -> PathBuf {
        self.dir.join("bin")
    }

    /// Another runner may have been another version: the link is laid anew.
    pub fn lay_tools(&self) -> io::Result<()> {
        let (tools, draft) = (self.tools(), self.tools().join(".repl"));
        std::fs::create_dir_all(&tools)?;
        let _ = std::fs::remove_file(&draft);
        std::os::unix::fs::symlink(std::env::current_exe()?, &draft)?;
        std::fs::rename(&draft, tools.join("repl"))
    }

    /// This programme's file on disk; after an upgrade, the file that took its place.
    pub fn image(&self) -> io::Result<PathBuf> {
        let path = std::env::current_exe()?.into_os_string().into_string();
        let path = path.map_err(|_| io::Error::other("the path of this programme is not UTF-8"))?;
        Ok(PathBuf::from(path.trim_end_matches(" (deleted)")))
    }

    pub fn jobs(&self) -> PathBuf {
        self.dir.join("jobs")
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

/// Writes into the lock who holds it, for those who must end a holder that no longer answers.
fn sign(mut lock: &File) -> io::Result<()> {
    let own = Process::read(std::process::id() as i32).ok_or_else(|| io::Error::other("/proc does not know us"))?;
    lock.set_len(0)?;
    lock.write_all(own.signature().as_bytes())
}

/// The process that signed the lock, if it is still the same one and lives.
pub fn holder(dir: &Path) -> Option<Process> {
    Process::by_signature(&std::fs::read_to_string(dir.join(LOCK_FILE)).ok()?)
}

/// The lock of a runner, signed. `None` when another runner lives here.
pub fn lock_to_serve(dir: &Path) -> io::Result<Option<Flock<File>>> {
    let asked = Instant::now();
    lock_unless_served(dir, || {
        std::thread::sleep(TRY_AGAIN_AFTER);
        asked.elapsed() < FREED_WITHIN
    })
}

/// Held does not mean served: of a runner that was killed while it started a keeper, the child has the lock too until it
/// becomes that keeper. If this runner gave up then, no runner would serve the jobs here. `wait` says whether to go on waiting.
fn lock_unless_served(dir: &Path, mut wait: impl FnMut() -> bool) -> io::Result<Option<Flock<File>>> {
    loop {
        if let Some(lock) = lock(dir)? {
            sign(&lock)?;
            return Ok(Some(lock));
        }
        if holder(dir).is_some() || !wait() {
            return Ok(None);
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process;
    use std::process::Command;

    fn signed_by(dir: &Path, process: Process) -> Flock<File> {
        let lock = lock(dir).unwrap().unwrap();
        std::fs::write(dir.join(LOCK_FILE), process.signature()).unwrap();
        lock
    }

    #[test]
    fn a_lock_left_by_a_killed_runner_is_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let mut runner = Command::new("sleep").arg("1000").spawn().unwrap();
        let process = Process::read(runner.id() as i32).unwrap();
        let mut left = Some(signed_by(dir.path(), process));
        let served = lock_unless_served(dir.path(), || panic!("a living runner is not waited for")).unwrap();
        assert!(served.is_none());
        runner.kill().unwrap();
        process::wait_for_an_end(&[process], Duration::from_secs(10));
        // Dead, but not reaped.
        assert!(lock_unless_served(dir.path(), || false).unwrap().is_none());
        let mut waited = 0;
        let taken = lock_unless_served(dir.path(), || {
            waited += 1;
            drop(left.take());
            true
        });
        assert!(taken.unwrap().is_some());
        assert_eq!(waited, 1);
        assert_eq!(holder(dir.path()).unwrap().pid, std::process::id() as i32);
        runner.wait().unwrap();
    }
}
