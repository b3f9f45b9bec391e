//! Warm slots: a folder with its blocks allocated, its workdir and control groups made and its keeper waiting, so that
//! starting a step is one journal entry, two renames and one order. Also connects a runner to keepers that an earlier runner started.

use crate::cgroup::{Groups, Layout};
use crate::containment::Way;
use crate::instance::Instance;
use crate::key::Key;
use crate::process::Process;
use crate::{exit, output, spool};
use nix::unistd::Pid;
use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use wire::model::{crash_point, fault};
use wire::runner::Limits;

const SOCKET: &str = "keeper.sock";
const GROUPS: &str = "groups.json";
const FIRST: &str = "first";
/// An empty folder that becomes the workdir: making one takes a while on some file systems, renaming it does not.
const WORKDIR: &str = "work";
/// Folders of slots that wait; anything else in `jobs` is a step's key.
const WAITING: &str = "next.";

/// Children of this runner that are keepers; every other child is a stray of a keeper that died.
pub type Keepers = Arc<Mutex<BTreeSet<i32>>>;

pub struct Slot {
    pub dir: PathBuf,
    pub keeper: UnixStream,
    /// Of its control groups.
    name: String,
}

/// Blocking: a few small files, one sync, one process.
pub fn prepare(instance: &Instance, keepers: &Keepers, number: u64) -> io::Result<Slot> {
    let dir = instance.jobs().join(format!("{WAITING}{number}"));
    std::fs::create_dir(&dir)?;
    let made = fill(instance, keepers, number, &dir);
    if made.is_err() {
        let _ = folder::remove(&dir);
    }
    made
}

fn fill(instance: &Instance, keepers: &Keepers, number: u64, dir: &Path) -> io::Result<Slot> {
    exit::prepare(dir)?;
    spool::prepare(dir)?;
    std::fs::create_dir(dir.join(WORKDIR))?;
    std::fs::create_dir(output::shared(dir))?;
    let name = instance.group_name(number);
    write_groups(dir, &instance.layout.make(&name))?;
    let listener = UnixListener::bind(short_path(&File::open(dir)?))?;
    // Connected before it exists: a runner that dies now is noticed by the keeper as its end.
    let keeper = connect(dir)?;
    spawn(keepers, dir, listener, instance.way)?;
    Ok(Slot { dir: dir.to_owned(), keeper, name })
}

fn write_groups(dir: &Path, groups: &Groups) -> io::Result<()> {
    std::fs::write(dir.join(GROUPS), serde_json::to_vec(groups)?)
}

/// The name of a socket has at most 107 bytes, a folder's path may have more.
fn short_path(dir: &File) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}/{SOCKET}", dir.as_raw_fd()))
}

pub fn connect(dir: &Path) -> io::Result<UnixStream> {
    UnixStream::connect(short_path(&File::open(dir)?))
}

/// From the running image, so that an upgrade of the file on disk does not matter; with nothing of our environment but what
/// arms its crash points, and the bug that a test lets in.
fn spawn(keepers: &Keepers, dir: &Path, listener: UnixListener, way: Way) -> io::Result<()> {
    let complaints = File::create(dir.join("keeper.err"))?;
    let mut command = Command::new("/proc/self/exe");
    command.arg0("repl").arg("keeper").arg(way.argument()).env_clear().current_dir(dir);
    let armed_by = fault::VARIABLES.iter().chain(&[fault::BUG]);
    command.envs(armed_by.filter_map(|name| Some((name, std::env::var_os(name)?))));
    command.stdin(OwnedFd::from(listener)).stdout(Stdio::null()).stderr(complaints);
    // Locked during the start, so that the reaper does not take the new child for a stray process.
    let mut keepers = keepers.lock().expect("no one panics with it");
    let child = crash_point!("keeper.fork", command.spawn())?;
    keepers.insert(child.id() as i32);
    Ok(())
}

impl Slot {
    /// Makes this workdir of the folder that waits for it. One that is there already stays as it is, if anything is in it.
    pub fn make_workdir(&self, workdir: &Path) {
        // If this fails, the caller that needs the folder makes it.
        let _ = std::fs::rename(self.dir.join(WORKDIR), workdir);
    }

    /// Limits the step that is to begin here; how, and what could not be limited, is kept in the folder. `beside` is the folder of a step of
    /// the same job that is under way: both share what the job may use.
    pub fn limit(&self, layout: &Layout, limits: Limits, beside: Option<&Path>) -> io::Result<Groups> {
        let mut groups = groups_of(&self.dir);
        if let Some(shared) = beside.and_then(|beside| groups_of(beside).share(&self.name)) {
            groups.remove();
            groups = shared;
        } else if limits != Limits::default() {
            layout.limit(&mut groups, &self.name, limits);
        } else {
            return Ok(groups);
        }
        write_groups(&self.dir, &groups).inspect_err(|_| groups.remove())?;
        Ok(groups)
    }

    /// From here on the folder is the step's.
    pub fn assign(&mut self, key: Key) -> io::Result<()> {
        let dir = self.dir.with_file_name(key.to_string());
        crash_point!("slot.assign", std::fs::rename(&self.dir, &dir))?;
        self.dir = dir;
        Ok(())
    }
}

pub fn groups_of(dir: &Path) -> Groups {
    std::fs::read(dir.join(GROUPS)).ok().and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default()
}

/// Written before anything else is in the namespace, so that the process that ends the job can check whether the namespace is empty.
pub fn note_first(dir: &Path, first: Pid) {
    // Without room for it the namespace still dies with its keeper.
    let _ = Process::read(first.as_raw()).map(|first| std::fs::write(dir.join(FIRST), first.signature()));
}

/// The first process of the job's namespace, while it lives.
pub fn first_of(dir: &Path) -> Option<Process> {
    Process::by_signature(&std::fs::read_to_string(dir.join(FIRST)).ok()?)
}

/// Removes a folder whose keeper is gone.
pub fn discard(dir: &Path) {
    groups_of(dir).remove();
    let _ = folder::remove(dir);
}

/// Slots another runner left behind: their keepers leave by themselves, having had no orders.
pub fn discard_waiting(jobs: &Path) {
    for entry in std::fs::read_dir(jobs).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with(WAITING) {
            discard(&entry.path());
        }
    }
}

/// The folders of steps, by key.
pub fn step_dirs(jobs: &Path) -> Vec<(Key, PathBuf)> {
    let entries = std::fs::read_dir(jobs).into_iter().flatten().flatten();
    entries.filter_map(|entry| Some((entry.file_name().to_str()?.parse().ok()?, entry.path()))).collect()
}
