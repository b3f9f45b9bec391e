//! Processes of this host as /proc shows them. A pid alone is never signalled: it may have been reused, so the
//! start time is compared, and the signal is sent through a pidfd.

use nix::sys::signal::Signal;
use std::collections::BTreeMap;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Process {
    pub pid: i32,
    pub parent: i32,
    /// Clock ticks since boot: with the pid, an identity.
    pub started: u64,
    pub state: char,
}

impl Process {
    pub fn read(pid: i32) -> Option<Process> {
        let stat = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
        let stat = String::from_utf8_lossy(&stat);
        // The name stands in parentheses and may contain anything, more parentheses too.
        let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
        let state = fields.next()?.chars().next()?;
        let parent = fields.next()?.parse().ok()?;
        let started = fields.nth(17)?.parse().ok()?;
        Some(Process { pid, parent, started, state })
    }

    /// Names this very process in words, for a file that others read later.
    pub fn signature(&self) -> String {
        format!("{} {} {}\n", self.pid, self.started, boot_id())
    }

    /// The process so named, if it is still the same one and lives.
    pub fn by_signature(text: &str) -> Option<Process> {
        let mut words = text.split_ascii_whitespace();
        let (pid, started, boot) = (words.next()?.parse().ok()?, words.next()?.parse::<u64>().ok()?, words.next()?);
        let process = Process::read(pid).filter(|process| process.started == started && boot == boot_id());
        process.filter(|process| !process.is_dead())
    }

    pub fn is_dead(&self) -> bool {
        matches!(self.state, 'Z' | 'X')
    }

    /// Signals this very process; does nothing when it is gone.
    pub fn signal(&self, signal: Signal) {
        let Some(handle) = self.handle() else { return };
        // SAFETY: a plain system call on an open descriptor, no pointers but a null.
        unsafe {
            libc::syscall(
                libc::SYS_pidfd_send_signal,
                std::os::fd::AsRawFd::as_raw_fd(&handle),
                signal as i32,
                std::ptr::null::<libc::siginfo_t>(),
                0,
            )
        };
    }

    /// A descriptor that becomes readable when it ends; none when it is gone or another has its pid.
    fn handle(&self) -> Option<OwnedFd> {
        // SAFETY: pidfd_open returns a new descriptor or -1.
        let raw = unsafe { libc::syscall(libc::SYS_pidfd_open, self.pid, 0) } as i32;
        if raw < 0 {
            return None;
        }
        // SAFETY: the descriptor is new and ours.
        let handle = unsafe { OwnedFd::from_raw_fd(raw) };
        Process::read(self.pid).is_some_and(|now| now.started == self.started).then_some(handle)
    }
}

/// Every process that can be seen.
pub fn all() -> Vec<Process> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter_map(Process::read).collect()
}

/// The living ones below `root`, parents before their children; `root` itself and what `skip` names are not among them,
/// nor what is below those.
pub fn descendants(root: i32, skip: &dyn Fn(i32) -> bool) -> Vec<Process> {
    let mut children: BTreeMap<i32, Vec<Process>> = BTreeMap::new();
    for process in all() {
        children.entry(process.parent).or_default().push(process);
    }
    let (mut found, mut next) = (Vec::new(), vec![root]);
    while let Some(parent) = next.pop() {
        for process in children.remove(&parent).into_iter().flatten().filter(|process| !skip(process.pid)) {
            next.push(process.pid);
            if !process.is_dead() {
                found.push(process);
            }
        }
    }
    found
}

/// The living ones that were started with an entry in their environment for each of these.
pub fn marked(first: &dyn Fn(&[u8]) -> bool, second: &dyn Fn(&[u8]) -> bool) -> Vec<Process> {
    let has = |pid: i32| {
        let environ = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        let some = |is: &dyn Fn(&[u8]) -> bool| environ.split(|byte| *byte == 0).any(is);
        some(first) && some(second)
    };
    all().into_iter().filter(|process| !process.is_dead() && has(process.pid)).collect()
}

/// The living ones whose working folder is below this one, removed or not, and whose command line begins so.
pub fn working_below(folder: &Path, words: &[u8]) -> Vec<Process> {
    let is_below = |pid: i32| std::fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|at| at.starts_with(folder));
    let is_named = |pid: i32| std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line.starts_with(words));
    all().into_iter().filter(|it| !it.is_dead() && is_below(it.pid) && is_named(it.pid)).collect()
}

/// Waits until one of them has ended, at most this long.
pub fn wait_for_an_end(of: &[Process], most: Duration) {
    let handles: Vec<OwnedFd> = of.iter().take(64).filter_map(Process::handle).collect();
    if handles.len() < of.len().min(64) {
        return; // one has ended already
    }
    let mut watched: Vec<nix::poll::PollFd> =
        handles.iter().map(|handle| nix::poll::PollFd::new(handle.as_fd(), nix::poll::PollFlags::POLLIN)).collect();
    let most = u16::try_from(most.as_millis()).unwrap_or(u16::MAX);
    let _ = nix::poll::poll(&mut watched, most); // interrupted or not, the caller looks again
}

/// Which boot of the host this is.
pub fn boot_id() -> String {
    let text = std::fs::read_to_string(Path::new("/proc/sys/kernel/random/boot_id")).unwrap_or_default();
    text.trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn a_child_is_found_by_descent_and_by_mark_and_ends_by_signal() {
        let mut child = Command::new("sleep").arg("1000").env("REPL_TEST_MARK", "m (1) )").spawn().unwrap();
        let pid = child.id() as i32;
        let ours = |found: Vec<Process>| found.into_iter().find(|process| process.pid == pid);
        assert!(ours(descendants(std::process::id() as i32, &|_| false)).is_some());
        assert!(ours(descendants(std::process::id() as i32, &|skipped| skipped == pid)).is_none());
        let is_mark = |entry: &[u8]| entry == b"REPL_TEST_MARK=m (1) )";
        // The mark shows once the new image is in place.
        let process = loop {
            if let Some(process) = ours(marked(&is_mark, &|_| true)) {
                break process;
            }
        };
        assert!(ours(marked(&is_mark, &|entry| entry == b"OTHER=x")).is_none());
        Process { started: process.started + 1, ..process }.signal(Signal::SIGKILL);
        assert!(child.try_wait().unwrap().is_none(), "another process with the same pid is left alone");
        process.signal(Signal::SIGKILL);
        wait_for_an_end(&[process], Duration::from_secs(10));
        assert!(child.try_wait().unwrap().is_some());
    }
}
