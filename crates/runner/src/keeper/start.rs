//! From an order to a running command: finds the program as a shell would, and starts it in the way its processes are
//! held together here. Never decides how the job ends.

use crate::cgroup::Groups;
use crate::containment::Way;
use crate::namespace::{FIRST, Missing, Namespace};
use crate::orders::Start;
use crate::slot;
use nix::errno::Errno;
use nix::sys::signal::{SigSet, Signal};
use nix::unistd::Pid;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

pub struct Begun {
    /// The child whose end is the command's: itself, or the first process of its namespace.
    pub main: Pid,
    pub namespace: Option<Namespace>,
    /// What the reader of the log should know about it.
    pub note: Option<String>,
}

pub fn begin(order: &Start, held: (&Groups, Way), dir: &Path, out: (OwnedFd, OwnedFd)) -> io::Result<Begun> {
    if !order.dir.is_dir() {
        return Err(io::Error::other(format!("{} is not there", order.dir.display())));
    }
    let (groups, way) = held;
    let parent = Arc::new(AtomicI32::new(std::process::id() as i32));
    let mut command = command(order, groups, &parent, out)?;
    let mut note = None;
    if let Way::Namespace { user } = way {
        parent.store(FIRST, Ordering::Relaxed);
        match Namespace::with(&mut command, user, |first| slot::note_first(dir, first)) {
            Ok(namespace) => return Ok(Begun { main: namespace.first, namespace: Some(namespace), note }),
            Err(Missing::Command(error)) => return Err(error),
            Err(Missing::Namespace(error)) => {
                note = Some(format!("no PID namespace could be made ({error}): the command runs without one"));
            }
        }
        parent.store(std::process::id() as i32, Ordering::Relaxed);
    }
    let child = command.spawn()?;
    Ok(Begun { main: Pid::from_raw(child.id() as i32), namespace: None, note })
}

fn command(
    order: &Start,
    groups: &Groups,
    parent: &Arc<AtomicI32>,
    (stdout, stderr): (OwnedFd, OwnedFd),
) -> io::Result<Command> {
    let (name, arguments) = order.argv.split_first().ok_or(io::ErrorKind::InvalidInput)?;
    let program = find_program(name, order)?;
    let (doors, parent) = (groups.doors(), parent.clone());
    let mut command = Command::new(program);
    command.arg0(name).args(arguments).env_clear().envs(order.env.iter().map(|(name, value)| (name, value)));
    command.current_dir(&order.dir).stdin(Stdio::null()).stdout(stdout).stderr(stderr);
    // SAFETY: between fork and exec, only system calls on what was prepared before.
    unsafe { command.pre_exec(move || become_the_job(&doors, parent.load(Ordering::Relaxed))) };
    Ok(command)
}

/// As a shell looks for it: by the job's own PATH, and a folder that may not be read holds nothing.
fn find_program(name: &str, order: &Start) -> io::Result<PathBuf> {
    if name.contains('/') {
        return Ok(order.dir.join(name));
    }
    let path = order.env.iter().find(|(variable, _)| variable == "PATH").map_or("", |(_, value)| value);
    let mut refused = Errno::ENOENT;
    for folder in path.split(':') {
        let program = order.dir.join(folder).join(name);
        if program.is_file() {
            match nix::unistd::access(&program, nix::unistd::AccessFlags::X_OK) {
                Ok(()) => return Ok(program),
                Err(_) => refused = Errno::EACCES,
            }
        }
    }
    Err(refused.into())
}

fn become_the_job(doors: &[File], parent: i32) -> io::Result<()> {
    nix::unistd::setsid()?;
    for door in doors {
        // A group we cannot join limits nothing; the sweep still finds the process.
        let _ = nix::unistd::write(door, b"0");
    }
    nix::sys::prctl::set_pdeathsig(Signal::SIGKILL)?;
    if nix::unistd::getppid().as_raw() != parent {
        return Err(Errno::ESRCH.into()); // the keeper died before the line above
    }
    SigSet::all().thread_unblock()?;
    // SAFETY: the default action has no code of ours. Rust ignores this signal, commands expect it.
    unsafe { nix::sys::signal::signal(Signal::SIGPIPE, nix::sys::signal::SigHandler::SigDfl) }?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn a_namespace_that_cannot_be_made_is_said_and_done_without() {
        // This thread alone gives up what it takes to make one; an ordinary user never had it.
        // SAFETY: the plain system call concerns the calling thread only, which is what is wanted here.
        unsafe { libc::syscall(libc::SYS_setresuid, -1, 65534, -1) };
        let order = Start {
            key: String::new(),
            argv: ["/bin/sh", "-c", "echo here; exit 3"].map(str::to_owned).to_vec(),
            env: Vec::new(),
            secrets: Vec::new(),
            dir: PathBuf::from("/"),
            merge: false,
            max_duration_ms: None,
            stop_duration_ms: 0,
            spool_bytes: 0,
        };
        let (mut said, out) = std::io::pipe().unwrap();
        let err = File::options().write(true).open("/dev/null").unwrap();
        let held = (&Groups::default(), Way::Namespace { user: false });
        let begun = begin(&order, held, Path::new("/nowhere"), (out.into(), err.into())).unwrap();
        assert!(begun.note.unwrap().contains("Operation not permitted") && begun.namespace.is_none());
        let ended = nix::sys::wait::waitpid(begun.main, None).unwrap();
        assert_eq!(ended, nix::sys::wait::WaitStatus::Exited(begun.main, 3));
        let mut text = String::new();
        said.read_to_string(&mut text).unwrap();
        assert_eq!(text, "here\n");
    }
}
