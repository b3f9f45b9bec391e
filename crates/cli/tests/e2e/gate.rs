//! A meeting point between a test and a command: a named pipe that one side opens and the other waits at.

use crate::home::Home;
use crate::process::HANGS_AFTER_MS;
use std::io::{Read as _, Write as _};
use std::path::PathBuf;
use std::time::Duration;

pub struct Gate {
    path: PathBuf,
}

impl Gate {
    pub fn new(home: &Home, name: &str) -> Gate {
        let path = home.here().join(name);
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
        Gate { path }
    }

    /// What a command writes to wait here until it is let through.
    pub fn wait(&self) -> String {
        format!("read _ < {}", self.path.display())
    }

    /// What a command writes to say a word to the test.
    pub fn say(&self, word: &str) -> String {
        format!("echo {word} > {}", self.path.display())
    }

    /// Waits for a command to come here, and lets it through, and every later one: a command whose keeper has died may be
    /// here for a moment longer, and what lets only one through would leave its successor waiting for ever.
    pub fn open(&self) {
        let path = self.path.clone();
        bounded("nobody came to the gate", move || {
            let _came = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
            let mut held = std::fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
            held.write_all(&[b'\n'; 64]).unwrap();
            // What is in a named pipe lasts as long as a process holds both its ends: until the test ends.
            std::mem::forget(held);
        });
    }

    /// What a command said here.
    pub fn hear(&self) -> String {
        let path = self.path.clone();
        bounded("nobody said anything", move || {
            let mut text = String::new();
            std::fs::File::open(path).unwrap().read_to_string(&mut text).unwrap();
            text.trim_end().to_owned()
        })
    }
}

fn bounded<T: Send + 'static>(complaint: &str, wait: impl FnOnce() -> T + Send + 'static) -> T {
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || tell.send(wait()));
    told.recv_timeout(Duration::from_millis(HANGS_AFTER_MS.into())).unwrap_or_else(|_| panic!("{complaint}"))
}
