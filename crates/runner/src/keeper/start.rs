//! Starts a command: finds the program as a shell would, and starts it in the containment that this host
//! uses. Never decides how the job ends.

use crate::cgroup::Groups;
use crate::containment::Way;
use crate::namespace::{FIRST, Missing, Namespace};
use crate::orders::Start;
use crate::sandbox::{self, Sandbox};
use crate::slot;
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::sys::signal::{SigSet, Signal};
use nix::unistd::Pid;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsRawFd as _, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

/// CLONE_INTO_CGROUP, which libc has in a type too small for it.
const INTO_CGROUP: u64 = 0x2_0000_0000;
/// What a command's new files are masked with: the usual value, the same wherever and by whom the runner was started.
const JOB_UMASK: libc::mode_t = 0o022;

pub struct Begun {
    /// The child whose end is the command's: itself, or the first process of its namespace.
    pub main: Pid,
    pub namespace: Option<Namespace>,
    /// `main` is bwrap: a signal to it would end everything at once.
    pub sandboxed: bool,
    /// What the reader of the log should know about it.
    pub note: Option<String>,
}

/// The command's ends.
pub struct Pipes {
    /// Without one it reads from `/dev/null`.
    pub stdin: Option<OwnedFd>,
    pub stdout: OwnedFd,
    pub stderr: OwnedFd,
}

pub fn begin(order: &Start, held: (&Groups, Way), dir: &Path, pipes: Pipes) -> io::Result<Begun> {
    if !order.dir.is_dir() {
        return Err(io::Error::other(format!("{} is not there", order.dir.display())));
    }
    if let Some(sandbox) = &order.sandbox {
        return begin_in_sandbox(order, sandbox, held.0, dir, pipes);
    }
    let (groups, way) = held;
    let parent = Arc::new(AtomicI32::new(std::process::id() as i32));
    let inside = Arc::new(AtomicBool::new(false));
    let mut command = plain_command(order)?;
    dress(&mut command, order, groups, (&parent, &inside), pipes);
    let mut note = None;
    if let Way::Namespace { user } = way {
        parent.store(FIRST, Ordering::Relaxed);
        match Namespace::with(&mut command, user, |first| slot::note_first(dir, first)) {
            Ok(namespace) => {
                return Ok(Begun { main: namespace.first, namespace: Some(namespace), sandboxed: false, note });
            }
            Err(Missing::Command(error)) => return Err(error),
            Err(Missing::Namespace(error)) => {
                note = Some(format!("no PID namespace could be made ({error}): the command runs without one"));
            }
        }
        parent.store(std::process::id() as i32, Ordering::Relaxed);
    }
    let main = spawn(&mut command, groups, &inside)?;
    Ok(Begun { main, namespace: None, sandboxed: false, note })
}

/// In its control group, if it has one.
fn spawn(command: &mut Command, groups: &Groups, inside: &AtomicBool) -> io::Result<Pid> {
    if let Some(group) = groups.open() {
        inside.store(true, Ordering::Relaxed);
        match born_in(&group, command) {
            Ok(begun) => return begun,
            Err(_) => inside.store(false, Ordering::Relaxed), // too old a system: then it joins by itself
        }
    }
    Ok(Pid::from_raw(command.spawn()?.id() as i32))
}

/// bwrap and all that is in the sandbox are in the job's control group, and end with this keeper. Without a sandbox the command does not
/// run: what it said about that is in the log.
fn begin_in_sandbox(order: &Start, sandbox: &Sandbox, groups: &Groups, dir: &Path, pipes: Pipes) -> io::Result<Begun> {
    let (line, theirs) = UnixStream::pair()?;
    let (told, info) = io::pipe()?;
    let kept = [theirs.as_raw_fd(), info.as_raw_fd()];
    let mut command = sandbox.command(&order.dir, (kept[0], kept[1]), &order.argv);
    let inside = Arc::new(AtomicBool::new(false));
    let parent = Arc::new(AtomicI32::new(std::process::id() as i32));
    dress(&mut command, order, groups, (&parent, &inside), pipes);
    // The sandbox has its own way into the folder: here it may be one that leads elsewhere.
    command.current_dir("/");
    // SAFETY: between fork and exec, only system calls on descriptors that are open.
    unsafe { command.pre_exec(move || kept.iter().try_for_each(|fd| stays_open(*fd))) };
    let main = spawn(&mut command, groups, &inside).map_err(|error| no_sandbox(&error.to_string()))?;
    drop((command, theirs, info));
    let made = first_process(told).ok_or(None).and_then(|first| {
        slot::note_first(dir, first);
        Namespace::made(first, line).map_err(Some)
    });
    match made {
        Ok(namespace) => Ok(Begun { main, namespace: Some(namespace), sandboxed: true, note: None }),
        Err(missing) => {
            let _ = nix::sys::signal::kill(main, Signal::SIGKILL);
            while nix::sys::wait::waitpid(main, None) == Err(Errno::EINTR) {}
            Err(match missing {
                Some(Missing::Command(error)) => error,
                Some(Missing::Namespace(error)) => no_sandbox(&error.to_string()),
                None => no_sandbox("bwrap has failed"),
            })
        }
    }
}

fn no_sandbox(why: &str) -> io::Error {
    io::Error::other(format!("no sandbox could be made ({why}), and without one it does not run: {}", sandbox::FIX))
}

fn stays_open(fd: RawFd) -> io::Result<()> {
    // SAFETY: the descriptor is open in this process until it becomes bwrap.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    fcntl(fd, FcntlArg::F_SETFD(FdFlag::empty()))?;
    Ok(())
}

/// What bwrap tells: `{"child-pid": N, …}`. Nothing when it has failed.
fn first_process(mut told: io::PipeReader) -> Option<Pid> {
    let (mut text, mut piece) = (Vec::new(), [0; 512]);
    while !text.contains(&b'}') {
        match told.read(&mut piece) {
            Ok(read @ 1..) => text.extend_from_slice(&piece[..read]),
            Ok(0) => break,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => break,
        }
    }
    let info: serde_json::Value = serde_json::from_slice(&text).ok()?;
    Some(Pid::from_raw(info["child-pid"].as_i64()? as i32))
}

/// Starts the command as a member of the group from its first moment. To join later takes the kernel a grace period of all
/// cores, about ten milliseconds, which would be most of a warm start. The outer error: this system cannot do it.
fn born_in(group: &File, command: &mut Command) -> io::Result<io::Result<Pid>> {
    let (mut ours, theirs) = io::pipe()?;
    // SAFETY: all zero is a valid value of this plain struct.
    let mut wish: libc::clone_args = unsafe { std::mem::zeroed() };
    wish.flags = INTO_CGROUP;
    wish.exit_signal = libc::SIGCHLD as u64;
    wish.cgroup = group.as_raw_fd() as u64;
    // SAFETY: without shared memory this is a fork, and a keeper has one thread.
    let pid = unsafe { libc::syscall(libc::SYS_clone3, &raw const wish, size_of::<libc::clone_args>()) };
    match pid {
        ..0 => Err(io::Error::last_os_error()),
        0 => {
            let error = command.exec();
            let _ = (&theirs).write_all(&error.raw_os_error().unwrap_or(libc::EINVAL).to_le_bytes());
            // SAFETY: nothing of this copy is to be cleaned up, above all not what it shares with its original.
            unsafe { libc::_exit(127) }
        }
        pid => {
            drop(theirs);
            let pid = Pid::from_raw(pid as i32);
            let mut errno = [0; 4];
            // Its end of the pipe closes when it becomes the command.
            if ours.read_exact(&mut errno).is_ok() {
                while nix::sys::wait::waitpid(pid, None) == Err(Errno::EINTR) {}
                return Ok(Err(io::Error::from_raw_os_error(i32::from_le_bytes(errno))));
            }
            Ok(Ok(pid))
        }
    }
}

fn plain_command(order: &Start) -> io::Result<Command> {
    let (name, arguments) = order.argv.split_first().ok_or(io::ErrorKind::InvalidInput)?;
    let path = order.env.iter().find(|(variable, _)| variable == "PATH").map_or("", |(_, value)| value);
    let mut command = Command::new(find_program(name, &order.dir, path)?);
    command.arg0(name).args(arguments);
    Ok(command)
}

/// Gives a command its environment, folder and streams, and makes it a process of the job.
fn dress(
    command: &mut Command,
    order: &Start,
    groups: &Groups,
    (parent, inside): (&Arc<AtomicI32>, &Arc<AtomicBool>),
    pipes: Pipes,
) {
    let (doors, parent, inside) = (groups.doors(), parent.clone(), inside.clone());
    command.env_clear().envs(order.env.iter().map(|(name, value)| (name, value)));
    let stdin = pipes.stdin.map_or_else(Stdio::null, Stdio::from);
    command.current_dir(&order.dir).stdin(stdin).stdout(pipes.stdout).stderr(pipes.stderr);
    // SAFETY: between fork and exec, only system calls on what was prepared before.
    unsafe {
        command.pre_exec(move || {
            // The group it was born in has the first door.
            let joined = usize::from(inside.load(Ordering::Relaxed));
            let doors = doors.get(joined..).unwrap_or_default();
            become_the_job(doors, parent.load(Ordering::Relaxed))
        })
    };
}

/// As a shell looks for it: by the job's own PATH, and a folder that may not be read holds nothing.
pub fn find_program(name: &str, dir: &Path, path: &str) -> io::Result<PathBuf> {
    if name.contains('/') {
        return Ok(dir.join(name));
    }
    let mut refused = Errno::ENOENT;
    for folder in path.split(':') {
        let program = dir.join(folder).join(name);
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
    nix::sys::stat::umask(nix::sys::stat::Mode::from_bits_truncate(JOB_UMASK));
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
            tail: false,
            answers: false,
            max_duration_ms: None,
            stop_duration_ms: 0,
            spool_bytes: 0,
            groups: Groups::default(),
            stdin: None,
            note: None,
            sandbox: None,
        };
        let (mut said, out) = std::io::pipe().unwrap();
        let err = File::options().write(true).open("/dev/null").unwrap();
        let held = (&Groups::default(), Way::Namespace { user: false });
        let pipes = Pipes { stdin: None, stdout: out.into(), stderr: err.into() };
        let begun = begin(&order, held, Path::new("/nowhere"), pipes).unwrap();
        assert!(begun.note.unwrap().contains("Operation not permitted") && begun.namespace.is_none());
        let ended = nix::sys::wait::waitpid(begun.main, None).unwrap();
        assert_eq!(ended, nix::sys::wait::WaitStatus::Exited(begun.main, 3));
        let mut text = String::new();
        said.read_to_string(&mut text).unwrap();
        assert_eq!(text, "here\n");
    }
}
