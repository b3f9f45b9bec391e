//! Ends all processes that a dead keeper left, and repeats until none is left: by control group, by namespace, as descendants of the
//! runner (which is their subreaper), and by the mark that every process of a job has in its environment.

use crate::instance;
use crate::key::Key;
use crate::orders::{self, KeeperOrder};
use crate::process::{self, Process};
use crate::slot::{self, Keepers};
use nix::sys::signal::Signal;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use wire::model::boot::{BOOT_FILE, Boot, SOCKET_FILE, SocketAsk};
use wire::model::bug;
use wire::runner::EndCause;

/// A process that was killed is gone within this, or it hangs in the kernel and is looked at again.
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(200);
/// How long a runner that was asked to shut down may take before its processes are ended one by one.
const SHUTDOWN_WITHIN: Duration = Duration::from_secs(20);

/// The variable that carries a job's key, and the one that carries the folder it works in: keys repeat between
/// installations on one host, folders do not.
pub const KEY_MARK: &str = "REPL_JOB_KEY";
pub const WORKDIR_MARK: &str = "REPL_WORKDIR";

/// How a keeper's command line begins; see `slot::spawn`.
const KEEPER_WORDS: &[u8] = b"repl\0keeper\0";

/// Blocks until no process of the job is left.
pub fn end_all(instance: &Path, job: &Path, key: Key, keepers: Option<&Keepers>) {
    let groups = slot::groups_of(job);
    end_until_none_is_left(|| {
        groups.kill();
        let mut left = marked(instance, key);
        left.extend(keepers.map(strays).unwrap_or_default());
        left.extend(slot::first_of(job));
        left.extend(groups.pids().into_iter().filter_map(Process::read).filter(|process| !process.is_dead()));
        left
    });
}

fn marked(instance: &Path, key: Key) -> Vec<Process> {
    let mark = format!("{KEY_MARK}={key}");
    let ours = format!("{WORKDIR_MARK}={}/", instance.display());
    process::marked(&|entry| entry == mark.as_bytes(), &|entry| entry.starts_with(ours.as_bytes()))
}

/// A runner is a subreaper: what a dead keeper of its own had below it becomes its child. Keepers are not strays, nor
/// is what they hold.
fn strays(keepers: &Keepers) -> Vec<Process> {
    let keepers = keepers.lock().expect("no one panics with it");
    process::descendants(std::process::id() as i32, &|pid| keepers.contains(&pid))
}

/// `repl runner --dir DIR --end`: nothing of this instance runs any more when it returns, be its runner alive, dead or
/// dying. Blocking; for providers.
pub fn end(dir: &Path) -> io::Result<()> {
    let Ok(dir) = dir.canonicalize() else { return Ok(()) };
    let asked = Instant::now();
    let _lock = loop {
        if let Some(lock) = instance::lock(&dir)? {
            break Some(lock);
        }
        if asked.elapsed() > SHUTDOWN_WITHIN {
            if let Some(runner) = instance::holder(&dir) {
                runner.signal(Signal::SIGKILL);
            }
            break None;
        }
        ask_to_shut_down(&dir);
    };
    let jobs = slot::step_dirs(&dir.join("jobs"));
    for (_, job) in &jobs {
        abort(job);
    }
    for (key, job) in &jobs {
        end_all(&dir, job, *key, None);
        slot::groups_of(job).remove();
    }
    // Keepers work in the folders of their jobs. One that waits for a job leaves when its runner has, but in its own time, and one
    // that is stopped never does: when the machine is said to be gone, they are.
    if !bug!(waiting_keeper_left) {
        end_until_none_is_left(|| process::working_below(&dir.join("jobs"), KEEPER_WORDS));
    }
    // Jobs whose folder was removed were not found above.
    let ours = format!("{WORKDIR_MARK}={}/", dir.display());
    end_until_none_is_left(|| process::marked(&|entry| entry.starts_with(ours.as_bytes()), &|_| true));
    slot::discard_waiting(&dir.join("jobs"));
    Ok(())
}

fn end_until_none_is_left(look: impl Fn() -> Vec<Process>) {
    loop {
        let left = look();
        if left.is_empty() {
            return;
        }
        left.iter().for_each(|process| process.signal(Signal::SIGKILL));
        process::wait_for_an_end(&left, LOOK_AGAIN_AFTER);
    }
}

/// Asks, and waits until the runner closes the conversation by ending.
fn ask_to_shut_down(dir: &Path) {
    let asked = || -> io::Result<()> {
        let boot: Boot = serde_json::from_slice(&std::fs::read(dir.join(BOOT_FILE))?)?;
        let mut runner = UnixStream::connect(socket_path(dir))?;
        runner.set_read_timeout(Some(SHUTDOWN_WITHIN))?;
        let ask = serde_json::to_string(&SocketAsk::Shutdown { nonce: boot.nonce })?;
        writeln!(runner, "{ask}")?;
        let mut reader = BufReader::new(runner);
        reader.read_line(&mut String::new())?;
        reader.read_to_end(&mut Vec::new()).map(drop)
    };
    if asked().is_err() {
        // Starting up, or ending: its lock tells, in a moment.
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Where an instance's runner listens.
pub fn socket_path(dir: &Path) -> PathBuf {
    match std::fs::read_to_string(dir.join(format!("{SOCKET_FILE}.path"))) {
        Ok(elsewhere) => PathBuf::from(elsewhere.trim()),
        Err(_) => dir.join(SOCKET_FILE),
    }
}

/// Lets the keeper do it, which also writes down how the job ended.
fn abort(job: &Path) {
    let Ok(mut keeper) = slot::connect(job) else { return };
    let order = orders::pack(&KeeperOrder::Abort { cause: EndCause::Aborted });
    if keeper.write_all(&order).is_ok() && keeper.set_read_timeout(Some(SHUTDOWN_WITHIN)).is_ok() {
        let _ = keeper.read_to_end(&mut Vec::new()); // ends with the keeper
    }
}
