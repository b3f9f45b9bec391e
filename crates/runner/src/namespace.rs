//! A PID namespace around a job. Its first process dies with the keeper, and then the kernel kills all other processes in the
//! namespace; no process can leave it by forking. This module makes namespaces; `containment` decides whether to.

use crate::pages;
use nix::errno::Errno;
use nix::mount::{MsFlags, mount};
use nix::sched::CloneFlags;
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;
use std::fs::OpenOptions;
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::process::Command;

/// The pid of the first process, as the others see it.
pub const FIRST: i32 = 1;
/// For a few calls before the first process waits; untouched pages cost nothing.
const STACK_BYTES: usize = 256 << 10;

/// The end of a job as its first process saw it. That one's own end means no more than that all the rest is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    Exited(i32),
    Signaled(i32),
}

/// A namespace with a command in it.
pub struct Namespace {
    /// Its first process, a child of ours.
    pub first: Pid,
    line: UnixStream,
}

/// Why there is no command in a namespace.
pub enum Missing {
    /// The namespace could not be made: the command may be started without one.
    Namespace(io::Error),
    /// The system does not start this command, here or anywhere.
    Command(io::Error),
}

/// What the first process says, each in one message.
enum Word {
    Unmade(i32),
    Refused(i32),
    Started,
    Ended(End),
}

/// Whether one can be made: makes one and lets it go.
pub fn probe(user: bool) -> io::Result<()> {
    let (first, line) = born(user, &mut |line| {
        let word = proc_of_its_own().map_or_else(|error| Word::Unmade(error as i32), |()| Word::Started);
        let _ = word.send(line);
    })?;
    let said = released(first, &line, user);
    collect(first);
    match said? {
        Word::Started => Ok(()),
        other => Err(other.into_error()),
    }
}

impl Namespace {
    /// `before` hears of the first process while nothing else is in the namespace.
    pub fn with(command: &mut Command, user: bool, before: impl FnOnce(Pid)) -> Result<Namespace, Missing> {
        let mut life = |line: &UnixStream| match proc_of_its_own() {
            Ok(()) => live(command, line),
            Err(error) => drop(Word::Unmade(error as i32).send(line)),
        };
        let (first, line) = born(user, &mut life).map_err(Missing::Namespace)?;
        before(first);
        let said = released(first, &line, user);
        Namespace::begun(first, line, said).inspect_err(|_| collect(first))
    }

    /// One that another program has made, with `repl first` in it.
    pub fn made(first: Pid, line: UnixStream) -> Result<Namespace, Missing> {
        let said = released(first, &line, false);
        Namespace::begun(first, line, said)
    }

    fn begun(first: Pid, line: UnixStream, said: io::Result<Word>) -> Result<Namespace, Missing> {
        match said {
            Ok(Word::Started) => Ok(Namespace { first, line }),
            Ok(Word::Refused(errno)) => Err(Missing::Command(io::Error::from_raw_os_error(errno))),
            other => Err(Missing::Namespace(other.map_or_else(|error| error, Word::into_error))),
        }
    }

    /// How the command ended, once the first process has. None when that one was killed from outside.
    pub fn end(&self) -> Option<End> {
        match Word::hear(&self.line) {
            Ok(Word::Ended(end)) => Some(end),
            _ => None,
        }
    }
}

/// A first process waits for the byte that starts it. If its parent died before, the byte never arrives.
pub fn waits_for_leave(mut line: &UnixStream) -> bool {
    line.read(&mut [0]).is_ok_and(|heard| heard == 1)
}

/// Clones this process into a namespace. There it waits for a word before it lives: its ids are given to it from here.
fn born(user: bool, life: &mut dyn FnMut(&UnixStream)) -> io::Result<(Pid, UnixStream)> {
    let (ours, theirs) = UnixStream::pair()?;
    let mut flags = CloneFlags::CLONE_NEWPID | CloneFlags::CLONE_NEWNS;
    flags.set(CloneFlags::CLONE_NEWUSER, user);
    let our_end = ours.as_raw_fd();
    let mut stack = vec![0; STACK_BYTES];
    let first = || {
        // SAFETY: a copy of this process, alone with its copy of the descriptor; so the end of our end is heard.
        unsafe { libc::close(our_end) };
        let named = nix::sys::prctl::set_name(c"repl-first");
        let bound = named.and_then(|()| nix::sys::prctl::set_pdeathsig(Signal::SIGKILL));
        // From here on it dies with its parent.
        if bound.is_ok() && waits_for_leave(&theirs) {
            life(&theirs);
        }
        // SAFETY: nothing of this copy is to be cleaned up, above all not what it shares with its original.
        unsafe { libc::_exit(0) }
    };
    // SAFETY: without shared memory this is a fork. The copy has one thread, and where it came from a process with
    // more (a probe), it makes system calls only.
    let pid = unsafe { nix::sched::clone(Box::new(first), &mut stack, flags, Some(libc::SIGCHLD)) }?;
    Ok((pid, ours))
}

/// Gives the first process its ids and the word to go on, and hears what came of it.
fn released(first: Pid, mut line: &UnixStream, user: bool) -> io::Result<Word> {
    if user {
        keep_ids(first)?;
    }
    line.write_all(&[0])?;
    Word::hear(line)
}

/// Maps every user and group id to itself if this process has the privilege; otherwise only its own, and all others appear as
/// `nobody`.
fn keep_ids(of: Pid) -> io::Result<()> {
    for (file, own) in [("uid_map", nix::unistd::geteuid().as_raw()), ("gid_map", nix::unistd::getegid().as_raw())] {
        let known = std::fs::read_to_string(format!("/proc/self/{file}"))?;
        let same = |line: &str| {
            let mut words = line.split_ascii_whitespace();
            Some(format!("{0} {0} {1}\n", words.next()?, words.nth(1)?))
        };
        let all: String = known.lines().filter_map(same).collect();
        if put(of, file, &all).is_ok() {
            continue;
        }
        if file == "gid_map" {
            put(of, "setgroups", "deny")?;
        }
        put(of, file, &format!("{own} {own} 1\n"))?;
    }
    Ok(())
}

/// The kernel takes such a file in one write.
fn put(of: Pid, file: &str, text: &str) -> io::Result<()> {
    OpenOptions::new().write(true).open(format!("/proc/{of}/{file}"))?.write_all(text.as_bytes())
}

/// A process that looks itself up in /proc must find itself. Other mounts stay shared as before.
fn proc_of_its_own() -> nix::Result<()> {
    const NONE: Option<&str> = None;
    mount(NONE, "/proc", NONE, MsFlags::MS_PRIVATE, NONE)?;
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    mount(Some("proc"), "/proc", Some("proc"), flags, NONE)
}

/// There is no command: says why.
pub fn refuse(error: &io::Error, line: &UnixStream) {
    let _ = Word::Refused(error.raw_os_error().unwrap_or(libc::EINVAL)).send(line);
}

/// The life of a first process: starts the command, collects every orphan, and when the command has ended it ends,
/// which ends all that is left.
pub fn live(command: &mut Command, line: &UnixStream) {
    let child = match command.spawn() {
        Ok(child) => Pid::from_raw(child.id() as i32),
        Err(error) => return refuse(&error, line),
    };
    let _ = Word::Started.send(line);
    let Ok(line) = let_go_of_the_rest(line) else { return };
    pages::let_go();
    loop {
        let end = match waitpid(None, None) {
            Ok(WaitStatus::Exited(pid, code)) if pid == child => End::Exited(code),
            Ok(WaitStatus::Signaled(pid, signal, _)) if pid == child => End::Signaled(signal as i32),
            Ok(_) | Err(Errno::EINTR) => continue,
            Err(_) => return,
        };
        return drop(Word::Ended(end).send(&line));
    }
}

/// What was copied from the keeper is the keeper's: its pipes, its log, its folder.
fn let_go_of_the_rest(line: &UnixStream) -> io::Result<UnixStream> {
    std::env::set_current_dir("/")?;
    // SAFETY: descriptor 0 becomes another name of the line, all others are closed; their owners never run again in this process.
    unsafe {
        if libc::dup2(line.as_raw_fd(), 0) < 0 {
            return Err(io::Error::last_os_error());
        }
        libc::close_range(1, libc::c_uint::MAX, 0);
        Ok(std::os::fd::FromRawFd::from_raw_fd(0))
    }
}

/// Ends a first process that is of no use, and all that is with it.
fn collect(first: Pid) {
    let _ = nix::sys::signal::kill(first, Signal::SIGKILL);
    while waitpid(first, None) == Err(Errno::EINTR) {}
}

impl Word {
    fn send(&self, mut line: &UnixStream) -> io::Result<()> {
        let (kind, value) = match self {
            Word::Unmade(errno) => (0, *errno),
            Word::Refused(errno) => (1, *errno),
            Word::Started => (2, 0),
            Word::Ended(End::Exited(code)) => (3, *code),
            Word::Ended(End::Signaled(signal)) => (4, *signal),
        };
        let mut message = [kind; 5];
        message[1..].copy_from_slice(&i32::to_le_bytes(value));
        line.write_all(&message)
    }

    fn hear(mut line: &UnixStream) -> io::Result<Word> {
        let mut message = [0; 5];
        line.read_exact(&mut message)?;
        let value = i32::from_le_bytes([message[1], message[2], message[3], message[4]]);
        Ok(match message[0] {
            0 => Word::Unmade(value),
            1 => Word::Refused(value),
            2 => Word::Started,
            3 => Word::Ended(End::Exited(value)),
            _ => Word::Ended(End::Signaled(value)),
        })
    }

    fn into_error(self) -> io::Error {
        match self {
            Word::Unmade(errno) | Word::Refused(errno) => io::Error::from_raw_os_error(errno),
            Word::Started | Word::Ended(_) => io::Error::other("it ended at once"),
        }
    }
}
