//! The folder of one execution: what was started there, and what became of it.

use super::NAME;
use crate::local::{Trace, lock, remove_tree};
use calls::adapter::{Closing, Request};
use model::Trouble;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};
use std::fs::{self, DirBuilder, File};
use std::io::{self, Read as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

pub struct Job {
    pub folder: PathBuf,
    name: String,
}

pub enum State {
    None,
    Running,
    Ended(Ended),
    Cancelled,
    Lost,
}

/// How a program ended: the file `exit`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ended {
    Code(i32),
    Signal(i32),
    NotStarted(String),
}

pub const HELD: &str = "held";
pub const STARTED: &str = "started";
pub const EXIT: &str = "exit";
pub const INPUT: &str = "input";
pub const OUTPUT: &str = "output";
pub const ERRORS: &str = "errors";
pub const PROGRAM: &str = "program";
pub const WORK: &str = "work";
const CANCELLED: &str = "cancelled";
const LOCK: &str = "lock";

impl Job {
    /// Beside the exchange, in a folder that is the user's own.
    pub fn of(request: &Request) -> Result<Job, String> {
        let why = format!("{NAME} works with remotes of this machine, not with {}", request.remote);
        let remote = crate::remote::local_folder(&request.remote).ok_or(why)?;
        let name = format!("{}-{}", request.key, request.attempt);
        Ok(Job { folder: remote.join("local").join(&name), name })
    }

    /// Says which execution, to people. Invocations find it by its key and attempt.
    pub fn token(&self) -> String {
        self.name.clone()
    }

    fn has(&self, file: &str) -> bool {
        self.folder.join(file).exists()
    }

    pub fn state(&self) -> io::Result<State> {
        if !self.folder.exists() {
            return Ok(State::None);
        }
        // Under the lock nothing is half started.
        let _locked = self.locked()?;
        // The order of reading: a program that ends meanwhile has written its exit before the holder lets go.
        let is_held = self.holder()?.is_some();
        match fs::read(self.folder.join(EXIT)) {
            Ok(exit) => Ok(State::Ended(serde_json::from_slice(&exit)?)),
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            Err(_) if self.has(CANCELLED) => Ok(State::Cancelled),
            Err(_) if is_held => Ok(State::Running),
            Err(_) if self.has(STARTED) => Ok(State::Lost),
            Err(_) => Ok(State::None),
        }
    }

    /// The process that holds the program, if it lives.
    fn holder(&self) -> io::Result<Option<Trace>> {
        let is_taken = matches!(lock::share(&self.folder.join(HELD)).map_err(plain)?, lock::Share::Taken);
        match fs::read(self.folder.join(STARTED)) {
            Ok(trace) if is_taken => Ok(Some(serde_json::from_slice(&trace)?)),
            _ => Ok(None),
        }
    }

    fn locked(&self) -> io::Result<lock::Locked> {
        let locked = lock::take(&self.folder.join(LOCK)).map_err(plain)?;
        locked.ok_or_else(|| io::Error::other("the execution was removed meanwhile"))
    }

    fn make(&self) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(0o700).create(self.folder.join(WORK))
    }

    /// Starts the program, or finds that another invocation did. Returns when its holder is there.
    pub fn start(&self, program: &Path, inputs: &str) -> io::Result<()> {
        self.make()?;
        let _locked = self.locked()?;
        if self.has(STARTED) || self.has(CANCELLED) {
            return Ok(());
        }
        fs::write(self.folder.join(INPUT), inputs)?;
        fs::write(self.folder.join(PROGRAM), program.as_os_str().as_encoded_bytes())?;
        let mut command = Command::new("/proc/self/exe");
        command.arg0(NAME).arg(super::HOLD).arg(&self.folder).current_dir("/");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        // SAFETY: setsid is async-signal-safe and touches no memory of this process.
        unsafe {
            command.pre_exec(|| nix::unistd::setsid().map(drop).map_err(io::Error::from));
        }
        let mut child = command.spawn()?;
        // It closes its stdout when it holds the folder; it goes on without us.
        let mut said = String::new();
        child.stdout.take().map(|mut out| out.read_to_string(&mut said)).transpose()?;
        if said.trim() == "ready" { Ok(()) } else { Err(io::Error::other("the program's holder did not start")) }
    }

    /// Ends the program and all processes of its session.
    pub fn cancel(&self) -> io::Result<Closing> {
        self.make()?;
        let _locked = self.locked()?;
        if !self.has(EXIT) {
            File::create(self.folder.join(CANCELLED))?;
        }
        if let Some(trace) = self.holder()?
            && let Some(living) = trace.hold()?
        {
            killpg(Pid::from_raw(trace.pid), Signal::SIGKILL).ok();
            living.ends_within(std::time::Duration::from_secs(10))?;
        }
        Ok(Closing::Done)
    }

    pub fn remove(&self) -> io::Result<Closing> {
        if self.folder.exists() {
            self.cancel()?;
            remove_tree(&self.folder).map_err(plain)?;
        }
        Ok(Closing::Done)
    }

    pub fn output(&self, most: u64) -> io::Result<Vec<u8>> {
        let mut read = Vec::new();
        File::open(self.folder.join(OUTPUT))?.take(most + 1).read_to_end(&mut read)?;
        Ok(read)
    }

    /// The last lines that it wrote to stderr.
    pub fn errors(&self, most: usize) -> Vec<String> {
        let mut read = Vec::new();
        let bounded = File::open(self.folder.join(ERRORS)).and_then(|mut file| {
            let length = file.metadata()?.len();
            io::Seek::seek(&mut file, io::SeekFrom::Start(length.saturating_sub(64 << 10)))?;
            file.take(64 << 10).read_to_end(&mut read)
        });
        let text = bounded.map(|_| String::from_utf8_lossy(&read).into_owned()).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(most)..].iter().map(|line| line.to_string()).collect()
    }
}

fn plain(trouble: Trouble) -> io::Error {
    io::Error::other(trouble.what)
}
