//! A process that is started again whenever it dies, as a supervisor of an installation would. Its log is kept and shown
//! when a test fails. The process ends when this value is dropped.

use crate::process::{self, HANGS_AFTER_MS};
use nix::sys::signal::Signal;
use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// On a busy machine a single fsync may take many seconds.
const SAYS_SOMETHING_WITHIN: Duration = Duration::from_millis(3 * HANGS_AFTER_MS as u64);

pub struct KeptUp {
    state: Arc<Mutex<State>>,
    heard: Receiver<String>,
    watch: Option<std::thread::JoinHandle<()>>,
}

struct State {
    wanted: bool,
    pid: i32,
}

impl KeptUp {
    /// Starts it, and again when it ends.
    pub fn start(mut command: Command) -> KeptUp {
        command.stdout(Stdio::null()).stderr(Stdio::piped());
        let state = Arc::new(Mutex::new(State { wanted: true, pid: 0 }));
        let (tell, heard) = channel();
        let watched = state.clone();
        let watch = std::thread::spawn(move || watch(&mut command, &watched, &tell));
        KeptUp { state, heard, watch: Some(watch) }
    }

    /// Waits for a line with this word, from whichever process of it.
    #[track_caller]
    pub fn hears(&self, word: &str) {
        let mut said = Vec::new();
        loop {
            match self.heard.recv_timeout(SAYS_SOMETHING_WITHIN) {
                Ok(line) if line.contains(word) => return,
                Ok(line) => said.push(line),
                Err(_) => panic!("never says `{word}` (stopped: {}): {said:?}", self.is_stopped()),
            }
        }
    }

    pub fn pid(&self) -> i32 {
        self.state.lock().unwrap().pid
    }

    pub fn is_stopped(&self) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid())).unwrap_or_default();
        stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
    }
}

fn watch(command: &mut Command, state: &Mutex<State>, tell: &Sender<String>) {
    loop {
        let mut child = {
            let mut state = state.lock().unwrap();
            if !state.wanted {
                return;
            }
            let child = command.spawn().unwrap();
            state.pid = child.id() as i32;
            child
        };
        let lines = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
        lines.for_each(|line| drop(tell.send(line)));
        child.wait().unwrap();
    }
}

impl Drop for KeptUp {
    fn drop(&mut self) {
        let pid = {
            let mut state = self.state.lock().unwrap();
            state.wanted = false;
            state.pid
        };
        for signal in [Signal::SIGCONT, Signal::SIGTERM] {
            nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), signal).ok();
        }
        if !process::ends(pid) {
            process::kill(pid);
        }
        self.watch.take().map(std::thread::JoinHandle::join);
    }
}
