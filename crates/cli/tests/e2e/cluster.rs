//! A PostgreSQL of one test: made from nothing, reached by a unix socket, gone with the test however that ends. Or a database of
//! one test on a server that was started for many.

use crate::process::HANGS_AFTER_MS;
use nix::sys::signal::Signal;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::mpsc::Receiver;
use std::time::Duration;

/// Serves for as long as its stdin is open: the shell outlives a killed test just long enough to end the server. Every line it
/// is told is an immediate restart, without so much as a checkpoint.
const SERVE: &str = r#"serve() { "$0" -D data -k "$PWD" -c listen_addresses= -c fsync=off -c max_connections=300 2>&1 & pid=$!; }
serve; while read -r _; do kill -QUIT $pid; wait $pid; serve; done; kill -QUIT $pid; kill -CONT $pid; wait"#;
const READY: &str = "ready to accept connections";

pub struct Cluster {
    folder: tempfile::TempDir,
    shell: Child,
    said: Mutex<Receiver<String>>,
}

impl Cluster {
    pub fn start() -> Cluster {
        let programs = programs();
        let folder = tempfile::Builder::new().prefix("e2epg").tempdir().unwrap();
        let owner = owner(folder.path());
        let mut initdb = Command::new(programs.join("initdb"));
        initdb.args(["-A", "trust", "-U", "remuda", "--no-sync", "-E", "UTF8", "--locale=C", "-D", "data"]);
        let made = as_owner(&mut initdb, owner).current_dir(folder.path()).output().unwrap();
        assert!(made.status.success(), "initdb: {}", String::from_utf8_lossy(&made.stderr));
        let mut shell = Command::new("sh");
        shell.args(["-c", SERVE]).arg(programs.join("postgres")).current_dir(folder.path());
        shell.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut shell = as_owner(&mut shell, owner).spawn().unwrap();
        let stdout = BufReader::new(shell.stdout.take().unwrap());
        // Always read to the end: the process must not block on a full pipe.
        let (tell, said) = std::sync::mpsc::channel();
        std::thread::spawn(move || stdout.lines().map_while(Result::ok).for_each(|line| drop(tell.send(line))));
        let cluster = Cluster { folder, shell, said: Mutex::new(said) };
        cluster.hear(READY);
        cluster
    }

    pub fn url(&self) -> String {
        format!("postgres:///postgres?user=remuda&host={}", self.folder.path().display())
    }

    /// Where its socket is.
    #[allow(dead_code, reason = "the tests of a cut line put something in between")]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The only value that this question has for an answer.
    pub fn ask(&self, question: &str) -> String {
        let asked = Command::new(programs().join("psql")).args(["-Atc", question, &self.url()]).output().unwrap();
        assert!(asked.status.success(), "{question}: {}", String::from_utf8_lossy(&asked.stderr));
        String::from_utf8(asked.stdout).unwrap().trim().to_owned()
    }

    /// All rows, as text.
    #[allow(dead_code, reason = "the test of secrets looks for them there")]
    pub fn dump(&self) -> Vec<u8> {
        let dumped = Command::new(programs().join("pg_dump")).args(["--data-only", &self.url()]).output().unwrap();
        assert!(dumped.status.success(), "pg_dump: {}", String::from_utf8_lossy(&dumped.stderr));
        dumped.stdout
    }

    /// Every session is lost in the middle of whatever it does; returns when the server has recovered.
    pub fn restart(&self) {
        while self.said.lock().unwrap().try_recv().is_ok() {}
        self.shell.stdin.as_ref().unwrap().write_all(b"again\n").unwrap();
        self.hear(READY);
    }

    /// Every process of it stands still: sessions stay open, and nothing is answered.
    #[allow(dead_code, reason = "the oracle of effects stops it")]
    pub fn stop(&self) {
        let server = self.pid();
        // First the one that starts the others: none is missed.
        told(server, Signal::SIGSTOP);
        children(server).into_iter().for_each(|pid| told(pid, Signal::SIGSTOP));
    }

    #[allow(dead_code, reason = "the oracle of effects stops it")]
    pub fn go_on(&self) {
        let server = self.pid();
        children(server).into_iter().chain([server]).for_each(|pid| told(pid, Signal::SIGCONT));
    }

    fn pid(&self) -> i32 {
        let said = std::fs::read_to_string(self.folder.path().join("data/postmaster.pid")).unwrap();
        said.lines().next().unwrap().trim().parse().unwrap()
    }

    fn hear(&self, word: &str) {
        loop {
            let line = self.said.lock().unwrap().recv_timeout(Duration::from_millis(HANGS_AFTER_MS.into()));
            if line.unwrap_or_else(|_| panic!("PostgreSQL never says `{word}`")).contains(word) {
                return;
            }
        }
    }
}

impl Cluster {
    /// A database of its own, for those who share a cluster.
    #[allow(dead_code, reason = "the kill test has many worlds on one cluster")]
    pub fn database(&self, name: &str) -> String {
        let mut createdb = Command::new(programs().join("createdb"));
        let made = createdb.args(["-U", "remuda", "-h"]).arg(self.folder.path()).arg(name).output().unwrap();
        assert!(made.status.success(), "createdb: {}", String::from_utf8_lossy(&made.stderr));
        format!("postgres:///{name}?user=remuda&host={}", self.folder.path().display())
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        drop(self.shell.stdin.take());
        self.shell.wait().ok();
    }
}

/// A database of one test on a server that other tests share; dropped with the test.
pub struct Database {
    server: String,
    name: String,
}

impl Database {
    /// `server` is the address of any database there.
    pub fn new(server: &str, name: &str) -> Database {
        let database = Database { server: server.to_owned(), name: name.to_lowercase() };
        database.tell(&format!("CREATE DATABASE \"{}\"", database.name));
        database
    }

    pub fn url(&self) -> String {
        let (_, parameters) = self.server.split_once('?').expect("postgres:///NAME?host=…");
        format!("postgres:///{}?{parameters}", self.name)
    }

    fn tell(&self, words: &str) {
        let told = Command::new(programs().join("psql")).args(["-qc", words, &self.server]).output().unwrap();
        assert!(told.status.success(), "{words}: {}", String::from_utf8_lossy(&told.stderr));
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.tell(&format!("DROP DATABASE \"{}\" WITH (FORCE)", self.name));
        }
    }
}

/// A session may end by itself at any moment.
fn told(pid: i32, signal: Signal) {
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), signal).ok();
}

/// Processes that a process has started and that live.
#[allow(dead_code, reason = "the oracle of effects stops them")]
fn children(parent: i32) -> Vec<i32> {
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let parent_of = |pid: i32| -> Option<i32> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // Behind the name, which may hold anything: the state, then the parent.
        stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
    };
    pids.filter(|pid| parent_of(*pid) == Some(parent)).collect()
}

fn programs() -> PathBuf {
    let installed = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut folders: Vec<PathBuf> = installed.map(|version| version.path().join("bin")).collect();
    folders.extend(std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()));
    let found = folders.into_iter().find(|folder| folder.join("initdb").is_file());
    found.expect(
        "PostgreSQL's `initdb` is needed for this test: install postgresql (Debian: apt-get install postgresql)",
    )
}

/// PostgreSQL refuses to run as root; then an ordinary user owns the folder.
fn owner(folder: &Path) -> Option<(u32, u32)> {
    if !nix::unistd::Uid::effective().is_root() {
        return None;
    }
    let user = ["postgres", "nobody"].iter().find_map(|name| nix::unistd::User::from_name(name).ok().flatten());
    let user = user.expect("running as root needs a user `postgres` or `nobody` for PostgreSQL");
    std::os::unix::fs::chown(folder, Some(user.uid.as_raw()), Some(user.gid.as_raw())).unwrap();
    Some((user.uid.as_raw(), user.gid.as_raw()))
}

fn as_owner(command: &mut Command, owner: Option<(u32, u32)>) -> &mut Command {
    match owner {
        Some((user, group)) => command.uid(user).gid(group),
        None => command,
    }
}
