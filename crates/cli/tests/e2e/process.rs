//! Processes as the kernel shows them: who knows a folder, when one ends, how much memory it took. Waits on descriptors,
//! never on a clock; the one limit is for a test that would hang for ever.

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;
use nix::unistd::Pid;
use std::io::{BufRead as _, Read as _};
use std::os::fd::{AsFd as _, FromRawFd as _, OwnedFd};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Nothing here takes this long on a machine that works; beyond it the test says what it waited for.
pub const HANGS_AFTER_MS: u16 = 60_000;

/// A command that has ended, and all it said.
pub struct Ended {
    /// 128 + n after signal n, as a shell says it.
    pub code: i32,
    pub stdout: Vec<u8>,
    pub stderr: String,
}

impl Ended {
    pub fn out(&self) -> String {
        String::from_utf8(self.stdout.clone()).unwrap()
    }

    /// Says what was wrong and what to do, with this exit code, and nothing on stdout.
    #[track_caller]
    pub fn refused(&self, code: i32, words: &[&str]) {
        assert_eq!(self.code, code, "{self}");
        assert!(self.stdout.is_empty(), "{self}");
        for word in words {
            assert!(self.stderr.contains(word), "`{word}` is missing in: {self}");
        }
    }
}

impl std::fmt::Display for Ended {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let shown = &self.stdout[..self.stdout.len().min(2_000)];
        write!(f, "exit code {}\n{}\n--- stderr\n{}", self.code, String::from_utf8_lossy(shown), self.stderr)
    }
}

/// Runs to the end.
pub fn end_of(command: &mut Command) -> Ended {
    Running::start(command).end()
}

/// A command that is still at work.
pub struct Running {
    pub child: Child,
    /// Lines of its stderr as they come.
    said: std::sync::mpsc::Receiver<String>,
    heard: String,
    words: String,
}

impl Running {
    pub fn start(command: &mut Command) -> Running {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut stderr = std::io::BufReader::new(child.stderr.take().unwrap());
        let (tell, said) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let mut line = Vec::new();
            while stderr.read_until(b'\n', &mut line).unwrap() > 0 {
                tell.send(String::from_utf8_lossy(&std::mem::take(&mut line)).into_owned()).ok();
            }
        });
        Running { child, said, heard: String::new(), words: format!("{command:?}") }
    }

    pub fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    /// Its next line on stdout, without the end of line; empty when there is none any more.
    pub fn line(&mut self) -> String {
        let stdout = self.child.stdout.as_mut().expect("still read from");
        let (mut line, mut byte) = (Vec::new(), [0]);
        loop {
            assert!(readable(stdout.as_fd()), "{} says nothing after {:?}", self.words, String::from_utf8_lossy(&line));
            match stdout.read(&mut byte).unwrap() {
                1 if byte[0] != b'\n' => line.push(byte[0]),
                _ => return String::from_utf8(line).unwrap(),
            }
        }
    }

    /// Waits for a line of its stderr that holds this word, and gives it back.
    pub fn hear(&mut self, word: &str) -> String {
        loop {
            let line = self.said.recv_timeout(Duration::from_millis(HANGS_AFTER_MS.into()));
            let line = line.unwrap_or_else(|_| panic!("{} never says {word}: {}", self.words, self.heard));
            self.heard.push_str(&line);
            if line.contains(word) {
                return line;
            }
        }
    }

    pub fn interrupt(&self) {
        signal(self.pid(), Signal::SIGINT);
    }

    /// Waits for its end; stdout is what was not read yet.
    pub fn end(mut self) -> Ended {
        let stdout = self.child.stdout.take();
        let read = std::thread::spawn(move || {
            let mut bytes = Vec::new();
            stdout.map(|mut stdout| stdout.read_to_end(&mut bytes).unwrap());
            bytes
        });
        let hangs = !ends(self.pid());
        if hangs {
            self.child.kill().unwrap();
        }
        let status = self.child.wait().unwrap();
        let code = status.code().or_else(|| std::os::unix::process::ExitStatusExt::signal(&status).map(|n| 128 + n));
        let stderr = self.said.iter().fold(self.heard.clone(), |heard, line| heard + &line);
        let ended = Ended { code: code.unwrap(), stdout: read.join().unwrap(), stderr };
        assert!(!hangs, "{} hangs: {ended}", self.words);
        ended
    }
}

#[derive(Debug)]
pub struct Process {
    pub pid: i32,
    pub parent: i32,
    pub words: String,
}

/// All other processes that have one of the folders in their command line, environment, working folder or open files.
pub fn that_know(folders: &[&Path]) -> Vec<Process> {
    let knows = |pid: i32| folders.iter().any(|folder| knows(pid, folder.to_str().unwrap()));
    let pids = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.filter(|pid| *pid != std::process::id() as i32 && knows(*pid))
        .map(|pid| Process { pid, parent: parent(pid), words: words(pid) })
        .collect()
}

fn knows(pid: i32, needle: &str) -> bool {
    let proc = format!("/proc/{pid}");
    let said = |name: &str| std::fs::read(format!("{proc}/{name}")).unwrap_or_default();
    let has = |bytes: &[u8]| bytes.windows(needle.len()).any(|part| part == needle.as_bytes());
    let leads =
        |path: std::path::PathBuf| std::fs::read_link(path).is_ok_and(|to| to.to_string_lossy().contains(needle));
    let files = std::fs::read_dir(format!("{proc}/fd")).into_iter().flatten().flatten();
    has(&said("cmdline"))
        || has(&said("environ"))
        || leads(format!("{proc}/cwd").into())
        || files.map(|file| file.path()).any(leads)
}

/// None counts as 0: it may have ended while we look.
fn parent(pid: i32) -> i32 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    status.lines().find_map(|line| line.strip_prefix("PPid:")?.trim().parse().ok()).unwrap_or(0)
}

fn words(pid: i32) -> String {
    let bytes = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&bytes).replace('\0', " ").trim_end().to_owned()
}

/// The most memory of its own that a process has had at once, in bytes. Pages of the program file are taken out: an unoptimised binary
/// has tens of megabytes of them, and they say nothing about what the process keeps.
pub fn peak(pid: i32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let kilobytes = |field: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(field)).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap()
    };
    (kilobytes("VmHWM:") - kilobytes("RssFile:")) * 1024
}

pub fn signal(pid: i32, signal: Signal) {
    nix::sys::signal::kill(Pid::from_raw(pid), signal).unwrap();
}

/// Kills for sure, and returns when it is dead.
pub fn kill(pid: i32) {
    nix::sys::signal::kill(Pid::from_raw(pid), Signal::SIGKILL).ok();
    assert!(ends(pid), "{pid} cannot be killed");
}

/// False for one that is dead, waited for or not.
pub fn lives(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

/// True once the process is dead.
pub fn ends(pid: i32) -> bool {
    // SAFETY: asks for a new descriptor and touches nothing else.
    let opened = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    if opened < 0 {
        return true; // gone already
    }
    // SAFETY: the descriptor was opened above and belongs to nothing else.
    let process = unsafe { OwnedFd::from_raw_fd(opened as i32) };
    readable(process.as_fd())
}

fn readable(descriptor: std::os::fd::BorrowedFd<'_>) -> bool {
    let mut wanted = [PollFd::new(descriptor, PollFlags::POLLIN)];
    poll(&mut wanted, PollTimeout::from(HANGS_AFTER_MS)).unwrap() > 0
}

/// Returns when there is nothing at the path any more.
pub fn vanishes(path: &Path) {
    use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
    let watch = Inotify::init(InitFlags::IN_CLOEXEC).unwrap();
    let gone = AddWatchFlags::IN_DELETE_SELF | AddWatchFlags::IN_MOVE_SELF | AddWatchFlags::IN_ATTRIB;
    while watch.add_watch(path, gone).is_ok() && path.exists() {
        assert!(readable(watch.as_fd()), "{} stays", path.display());
        watch.read_events().unwrap();
    }
}
