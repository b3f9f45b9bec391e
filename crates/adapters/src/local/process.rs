//! Processes, identified safely: a pid counts only together with its boot id and start time, and signals are sent through a
//! pidfd, which cannot come to mean another process. Never finds a process by its name.

use nix::sys::signal::Signal;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The only variables that a runner inherits; the rest of the control plane's environment may hold secrets.
const ENVIRONMENT: [&str; 9] =
    ["PATH", "HOME", "USER", "SHELL", "LANG", "TZ", "TMPDIR", "REPL_LOG", "REPL_CONTAINMENT"];

/// The kernel's mark of a process that can do nothing any more but end.
const PF_EXITING: u64 = 0x4;
const LEAVES_WITHIN: Duration = Duration::from_secs(5);

/// Which process it was: the same pid after a reboot, or of a later process, is not it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trace {
    pub pid: i32,
    /// Clock ticks between the boot and the start of the process.
    pub start_ticks: u64,
    pub boot_id: String,
}

impl Trace {
    /// None when no such process lives (one that only waits to be reaped does not).
    pub fn of(pid: i32) -> io::Result<Option<Trace>> {
        let boot_id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned();
        Ok(stat(pid)?.map(|stat| Trace { pid, start_ticks: stat.start_ticks, boot_id }))
    }

    /// Takes hold of the process if it lives. The descriptor comes first and the comparison second: from then on the
    /// descriptor means this process and no later one.
    pub fn hold(&self) -> io::Result<Option<Living>> {
        // SAFETY: pidfd_open takes two integers and returns a new descriptor or -1.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, self.pid, 0) };
        if fd < 0 {
            let error = io::Error::last_os_error();
            return if error.raw_os_error() == Some(libc::ESRCH) { Ok(None) } else { Err(error) };
        }
        // SAFETY: the kernel has just returned this descriptor, and nothing else in the process uses it.
        let living = Living { fd: unsafe { OwnedFd::from_raw_fd(fd as i32) } };
        if Trace::of(self.pid)?.as_ref() != Some(self) {
            return Ok(None);
        }
        // Its sockets close a moment before it is dead: a caller that noticed the closed socket must not find it alive.
        let leaving = stat(self.pid)?.is_none_or(|stat| stat.flags & PF_EXITING != 0);
        Ok(if leaving && living.ends_within(LEAVES_WITHIN)? { None } else { Some(living) })
    }
}

/// A process we can wait for and signal without fear of its pid being given to another.
#[derive(Debug)]
pub struct Living {
    fd: OwnedFd,
}

impl Living {
    pub fn signal(&self, signal: Signal) -> io::Result<()> {
        // SAFETY: a valid descriptor, a valid signal, no siginfo and no flags.
        let sent = unsafe {
            let no_info = std::ptr::null::<libc::siginfo_t>();
            libc::syscall(libc::SYS_pidfd_send_signal, self.fd.as_raw_fd(), signal as i32, no_info, 0)
        };
        let error = io::Error::last_os_error();
        if sent == 0 || error.raw_os_error() == Some(libc::ESRCH) { Ok(()) } else { Err(error) }
    }

    /// Whether the process ended within `limit`. Woken by the kernel, not by looking again and again.
    pub fn ends_within(&self, limit: Duration) -> io::Result<bool> {
        use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
        let until = Instant::now() + limit;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
            match poll(&mut [PollFd::new(self.fd.as_fd(), PollFlags::POLLIN)], timeout) {
                Ok(ready) => return Ok(ready > 0),
                Err(nix::errno::Errno::EINTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}

/// Starts `exe args…` in `dir`: a session of its own, no terminal, our environment left behind, output into `log`. The words of `before`
/// are a program that becomes the one named after it, with the same pid.
pub fn start(before: &[String], exe: &Path, args: &[&std::ffi::OsStr], dir: &Path, log: &File) -> io::Result<Child> {
    let mut command = match before {
        [] => Command::new(exe),
        [program, words @ ..] => {
            let mut command = Command::new(program);
            command.args(words).arg(exe);
            command
        }
    };
    if before.is_empty() {
        command.arg0("repl");
    }
    command.args(args).current_dir(dir).env_clear();
    let passed_on = ENVIRONMENT.iter().chain(&model::fault::VARIABLES);
    command.envs(passed_on.filter_map(|name| Some((name, std::env::var_os(name)?))));
    command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log.try_clone()?);
    // SAFETY: setsid is async-signal-safe and touches no memory of this process.
    unsafe {
        command.pre_exec(|| nix::unistd::setsid().map(drop).map_err(io::Error::from));
    }
    command.spawn()
}

/// Waits for a child in the background, so that it leaves no zombie however long it lives.
pub fn reap(mut child: Child) {
    let waits = std::thread::Builder::new().name("reap".to_owned()).stack_size(64 * 1024);
    if let Err(error) = waits.spawn(move || child.wait()) {
        // It stays a zombie until we exit, which is then its only cost.
        tracing::warn!(%error, "no thread to wait for a runner");
    }
}

struct Stat {
    flags: u64,
    start_ticks: u64,
}

fn stat(pid: i32) -> io::Result<Option<Stat>> {
    match std::fs::read_to_string(format!("/proc/{pid}/stat")) {
        Ok(stat) => Ok(parse_stat(&stat)),
        Err(error) if error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::ESRCH) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Fields 9 and 22 of a living process. The name in field 2 may hold spaces and brackets, so it is counted from its end.
fn parse_stat(stat: &str) -> Option<Stat> {
    let mut fields = stat[stat.rfind(')')? + 1..].split_ascii_whitespace();
    if matches!(fields.next()?, "Z" | "X" | "x") {
        return None;
    }
    Some(Stat { flags: fields.nth(5)?.parse().ok()?, start_ticks: fields.nth(12)?.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_with_a_strange_name_is_read() {
        let stat = |state| format!("7 (a) b ( c)) {state} 1 7 7 0 -1 4194564 1 0 0 0 0 0 0 0 20 0 1 0 4242 1 1 1");
        let read = parse_stat(&stat("S")).unwrap();
        assert_eq!((read.start_ticks, read.flags & PF_EXITING), (4242, PF_EXITING));
        assert!(parse_stat(&stat("Z")).is_none(), "a zombie does not live");
    }

    #[test]
    fn a_pid_alone_is_not_a_process() {
        let me = Trace::of(std::process::id() as i32).unwrap().expect("we live");
        assert!(me.hold().unwrap().is_some());
        let earlier = Trace { start_ticks: me.start_ticks - 1, ..me.clone() };
        let elsewhen = Trace { boot_id: "another".to_owned(), ..me };
        assert!(earlier.hold().unwrap().is_none());
        assert!(elsewhen.hold().unwrap().is_none());
    }

    #[test]
    fn the_end_of_a_process_is_noticed() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let living = Trace::of(child.id() as i32).unwrap().unwrap().hold().unwrap().unwrap();
        assert!(!living.ends_within(Duration::ZERO).unwrap());
        living.signal(Signal::SIGKILL).unwrap();
        assert!(living.ends_within(Duration::from_secs(60)).unwrap());
        child.wait().unwrap();
        living.signal(Signal::SIGKILL).expect("a process that is gone is not an error");
    }
}
