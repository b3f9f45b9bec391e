//! A person at a terminal of their own: a private home, a folder to work in, and a transcript of what was typed and said.
//! Ends every process it started, also when a test fails.

use serde_json::Value;
use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};

pub struct Session {
    place: tempfile::TempDir,
    transcript: String,
}

impl Session {
    pub fn new() -> Session {
        // Short: a socket's path is.
        let place = tempfile::Builder::new().prefix("repl-").tempdir().unwrap();
        std::fs::create_dir(place.path().join("here")).unwrap();
        std::fs::create_dir(place.path().join("bin")).unwrap();
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_repl"), place.path().join("bin/repl")).unwrap();
        Session { place, transcript: String::new() }
    }

    /// Where commands run.
    pub fn here(&self) -> PathBuf {
        self.place.path().join("here")
    }
    pub fn home(&self) -> PathBuf {
        self.place.path().join("home")
    }

    pub fn shell(&self, line: &str) -> Command {
        let mut command = Command::new("/bin/sh");
        command
            .args(["-c", line])
            .env_clear()
            .env("PATH", format!("{}:/usr/local/bin:/usr/bin:/bin", self.place.path().join("bin").display()))
            .env("HOME", self.place.path())
            .env("REPL_HOME", self.home())
            .current_dir(self.here())
            .stdin(Stdio::null());
        command
    }

    /// Types a line and notes what is said: `!` before stderr, `=` before the exit code unless it is 0.
    pub fn type_in(&mut self, line: &str) -> Output {
        let output = self.shell(line).output().unwrap();
        self.transcript.push_str(&format!("$ {line}\n{}", String::from_utf8_lossy(&output.stdout)));
        if !output.stdout.is_empty() && !output.stdout.ends_with(b"\n") {
            self.transcript.push_str("⏎\n");
        }
        for line in String::from_utf8_lossy(&output.stderr).lines() {
            self.transcript.push_str(&format!("! {line}\n"));
        }
        match output.status.code() {
            Some(0) => {}
            code => self.transcript.push_str(&format!("= {code:?}\n").replace("Some(", "").replace(')', "")),
        }
        output
    }

    /// Runs a line that must go well and gives back its stdout.
    pub fn quietly(&self, line: &str) -> String {
        let output = self.shell(line).output().unwrap();
        assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Starts a line without waiting for it.
    pub fn begin(&self, line: &str) -> Child {
        self.shell(line).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    /// Returns when this has happened to the run. Its output may be seen a moment before.
    pub fn wait_for(&self, run: &str, event: &str) {
        let mut events = self.begin(&format!("exec repl events {run} -f"));
        let mut lines = BufReader::new(events.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().contains(event)), "{run} ended without {event}");
        events.kill().unwrap();
        events.wait().unwrap();
    }

    pub fn json(&self, line: &str) -> Value {
        serde_json::from_str(&self.quietly(line)).unwrap()
    }

    /// The pid of this home's control plane.
    pub fn control_plane(&self) -> i32 {
        self.json("repl control status --json")["pid"].as_i64().unwrap() as i32
    }

    /// Notes which fields an answer has, not what they say.
    pub fn shape(&mut self, line: &str) {
        let shape = shape(&self.json(line));
        self.transcript.push_str(&format!("$ {line}\n{shape}\n"));
    }

    /// Notes the names of the fields only: what they hold depends on how far the run is by then.
    pub fn names(&mut self, line: &str) {
        let answer = self.json(line);
        let names: Vec<&str> = answer.as_object().unwrap().keys().map(String::as_str).collect();
        self.transcript.push_str(&format!("$ {line}\n{{{}}}\n", names.join(", ")));
    }

    /// The transcript, with what differs between two sessions taken out.
    pub fn transcript(&self) -> String {
        self.transcript.replace(&self.place.path().display().to_string(), "~")
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // One that a test has ended is not started again: it may not be able to.
        let stopped = self.shell("! repl control status || exec repl control stop --all").output();
        if !std::thread::panicking() {
            let output = stopped.unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        }
    }
}

/// Returns when that process is gone.
pub fn wait_for_the_end_of(pid: i32) {
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    use std::os::fd::{AsFd as _, FromRawFd as _, OwnedFd};
    // SAFETY: asks for a new descriptor and touches nothing else.
    let opened = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    if opened < 0 {
        return; // gone already
    }
    // SAFETY: the descriptor was opened above and belongs to nothing else.
    let process = unsafe { OwnedFd::from_raw_fd(opened as i32) };
    poll(&mut [PollFd::new(process.as_fd(), PollFlags::POLLIN)], PollTimeout::NONE).unwrap();
}

/// Names and kinds of fields; of a list, its first entry.
fn shape(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(_) => "bool".to_owned(),
        Value::Number(_) => "number".to_owned(),
        Value::String(_) => "text".to_owned(),
        Value::Array(list) => format!("[{}]", list.first().map(shape).unwrap_or_default()),
        Value::Object(fields) => {
            let fields: Vec<String> = fields.iter().map(|(name, value)| format!("{name}: {}", shape(value))).collect();
            format!("{{{}}}", fields.join(", "))
        }
    }
}

/// What no two sessions have in common.
pub const REDACTED: &[(&str, &str)] = &[
    (r"\b(run|job|alc|ins|pol|wfl|mft|agt|tsk|stp|art|tok|org|qst)_[0-9a-z]+\b", "${1}_ID"),
    (r"\b127\.0\.0\.1:\d+", "127.0.0.1:[port]"),
    (r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ", "[time]"),
    (r"\b\d+(\.\d+)?(ms|s|m|h|d)( \d+(ms|s|m|h))?\b( ago)?", "[span]"),
    (r"\b0\.0\d+\b", "[credits]"),
    (r"\b[0-9a-f]{64}\b", "[hash]"),
    (r"\b(exec|key) +[0-9a-f]{12}\b", "$1 [digits]"),
    (r"(?m)^machine +local, .*$", "machine  local, [host]"),
    (r"\brepl-[0-9a-z]{6,8}-[0-9a-z]+-[0-9a-z]+\b", "[machine]"),
    (r"\brmd_[\w-]+", "[token]"),
    (r"(?m)^(host|containment|sandbox|topology|desired)  +.*$", "$1  [$1]"),
    (r"\bpid \d+", "pid [pid]"),
    (r"\b\d+ cores? and [\d.]+[KMGT]B of memory", "[host]"),
    (r"\b\d+ cpu, [\d.]+ [KMGT]B", "[host]"),
    (r" of \d+ machines exist", " of [cores] machines exist"),
    (r"\b999999\.\d+", "[balance]"),
    (r"  +", "  "),
    // A run that took a third of a second costs something; how busy this machine is is unknown.
    (r"\b0 credits", "[credits] credits"),
    (r"(?m)^(run_ID  .*?  (?:\d+|-)  )0  ", "${1}[credits]  "),
];
