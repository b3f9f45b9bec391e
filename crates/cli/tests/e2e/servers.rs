//! A home's control plane as two servers and two workers on one PostgreSQL, as an operator would run them: each is started again
//! when it ends. Commands are pointed at the servers in turn.

use crate::cluster::{Cluster, Database};
use crate::process::{self, HANGS_AFTER_MS};
use nix::sys::signal::Signal;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

/// `postgres`: the tests run like this, each on a PostgreSQL of its own; `postgres:///…`: on that one, each in a database of its own.
pub const ASKED_BY: &str = "E2E_DATABASE";
pub const OWN_SERVER: &str = "postgres";

/// How the processes of a home are started.
#[derive(Clone)]
pub struct Recipe {
    pub program: PathBuf,
    pub env: Vec<(String, String)>,
    pub folder: PathBuf,
    /// Where what they say is kept.
    pub logs: PathBuf,
}

pub struct Servers {
    servers: Vec<Member>,
    workers: Vec<Member>,
    turn: AtomicUsize,
    /// Which server the last command was pointed at, and which the last that made a run.
    served: AtomicUsize,
    submitted: AtomicUsize,
    ended: AtomicBool,
    /// Last: its processes still speak with it.
    kept: Kept,
}

enum Kept {
    Server(Cluster),
    Database(Database),
}

impl Servers {
    pub fn start(mut recipe: Recipe, asked: &str, name: &str) -> Servers {
        let kept = if asked == OWN_SERVER {
            Kept::Server(Cluster::start())
        } else {
            Kept::Database(Database::new(asked, name))
        };
        let url = match &kept {
            Kept::Server(cluster) => cluster.url(),
            Kept::Database(database) => database.url(),
        };
        recipe.env.push(("REPL_DATABASE".to_owned(), url));
        let server = |n: usize| Member::start(&recipe, n, &["server", "--no-worker", "--listen", "127.0.0.1:0"]);
        let servers: Vec<Member> = [0, 1].into_iter().map(server).collect();
        // Machines of one worker talk to one server, those of the other to the other.
        let worker = |n: usize| Member::start(&recipe, n + 2, &["worker", "--server", &servers[n].place()]);
        let workers: Vec<Member> = [0, 1].into_iter().map(worker).collect();
        workers.iter().for_each(|worker| drop(worker.place()));
        Servers {
            servers,
            workers,
            turn: AtomicUsize::new(0),
            served: AtomicUsize::new(0),
            submitted: AtomicUsize::new(0),
            ended: AtomicBool::new(false),
            kept,
        }
    }

    /// The server whose turn it is, once it answers.
    pub fn url(&self) -> String {
        self.server(self.turn.fetch_add(1, Ordering::Relaxed) % 2)
    }

    /// The same, for what is typed after `repl`. The last run is remembered by the address it was sent to, so whatever means it
    /// goes there.
    pub fn for_command(&self, line: &str) -> String {
        if line.contains("@last") || line.starts_with("extend") {
            return self.server(self.submitted.load(Ordering::Relaxed));
        }
        let url = self.url();
        if line.starts_with("run ") || line.contains("repl run ") {
            self.submitted.store(self.served.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        url
    }

    fn server(&self, number: usize) -> String {
        self.served.store(number, Ordering::Relaxed);
        format!("http://{}", self.servers[number].place())
    }

    /// The process of the server that the last command was pointed at.
    pub fn last(&self) -> i32 {
        self.servers[self.served.load(Ordering::Relaxed)].pid()
    }

    /// `kill -9` of each in turn, by its number: two servers, then two workers. Started again by itself.
    pub fn kill(&self, number: usize) {
        process::kill(self.pid(number));
    }

    /// By the same numbers.
    pub fn pid(&self, number: usize) -> i32 {
        let members: Vec<&Member> = self.servers.iter().chain(&self.workers).collect();
        members[number].pid()
    }

    /// Every session with the database is lost.
    pub fn restart_database(&self) {
        self.own_database().restart();
    }

    /// Its processes stand still until [`Servers::database_goes_on`].
    #[allow(dead_code, reason = "the oracle of effects stops it")]
    pub fn stop_database(&self) {
        self.own_database().stop();
    }

    #[allow(dead_code, reason = "the oracle of effects stops it")]
    pub fn database_goes_on(&self) {
        self.own_database().go_on();
    }

    /// All rows of its database, as text.
    #[allow(dead_code, reason = "the test of secrets looks for them there")]
    pub fn dump_database(&self) -> Vec<u8> {
        self.own_database().dump()
    }

    fn own_database(&self) -> &Cluster {
        match &self.kept {
            Kept::Server(cluster) => cluster,
            Kept::Database(_) => panic!("a server for many tests is not restarted or stopped by one"),
        }
    }

    pub fn have_ended(&self) -> bool {
        self.ended.load(Ordering::Relaxed)
    }

    /// All of them, orderly or at once.
    pub fn end(&self, signal: Signal) {
        self.ended.store(true, Ordering::Relaxed);
        for member in self.workers.iter().chain(&self.servers) {
            member.end(signal);
        }
    }
}

/// A supervised process: it is started again whenever it dies.
struct Member {
    state: Arc<(Mutex<State>, Condvar)>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Default)]
struct State {
    pid: Option<i32>,
    /// What it said when it was ready: the address of a server.
    place: Option<String>,
    ending: bool,
}

impl Member {
    fn start(recipe: &Recipe, number: usize, words: &[&str]) -> Member {
        let state = Arc::new((Mutex::new(State::default()), Condvar::new()));
        let mut words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        let (watched, recipe) = (state.clone(), recipe.clone());
        let log = recipe.logs.join(format!("member-{number}.log"));
        let serve = move || {
            while let Some(address) = serve_once(&recipe, &words, &log, &watched) {
                // It is started on the same address, so that clients find it again.
                if words[0] == "server" {
                    *words.last_mut().unwrap() = address;
                }
            }
        };
        Member { state, thread: Mutex::new(Some(std::thread::spawn(serve))) }
    }

    /// What it said when it was ready, once it is; a process that is dead but still known is waited for.
    fn place(&self) -> String {
        self.once_ready(|state| state.place.clone().unwrap())
    }

    fn pid(&self) -> i32 {
        self.once_ready(|state| state.pid.unwrap())
    }

    fn once_ready<T>(&self, look: impl Fn(&State) -> T) -> T {
        let (state, changed) = &*self.state;
        let lives = |state: &State| state.place.is_some() && state.pid.is_some_and(process::lives);
        let (state, waited) = changed
            .wait_timeout_while(state.lock().unwrap(), Duration::from_millis(HANGS_AFTER_MS.into()), |state| {
                !lives(state)
            })
            .unwrap();
        assert!(!waited.timed_out(), "it does not start again");
        look(&state)
    }

    fn end(&self, signal: Signal) {
        let pid = {
            let mut state = self.state.0.lock().unwrap();
            state.ending = true;
            state.pid
        };
        if let Some(pid) = pid.filter(|pid| process::lives(*pid)) {
            process::signal(pid, signal);
        }
        if let Some(thread) = self.thread.lock().unwrap().take() {
            thread.join().unwrap();
        }
    }
}

/// From its start to its end; the address it had, unless it shall not come back.
fn serve_once(recipe: &Recipe, words: &[String], log: &Path, watched: &(Mutex<State>, Condvar)) -> Option<String> {
    let mut command = Command::new(&recipe.program);
    command.args(words).env_clear().envs(recipe.env.clone()).current_dir(&recipe.folder);
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let change = |f: &dyn Fn(&mut State)| {
        f(&mut watched.0.lock().unwrap());
        watched.1.notify_all();
    };
    let pid = child.id() as i32;
    change(&|state| (state.pid, state.place) = (Some(pid), None));
    if watched.0.lock().unwrap().ending {
        child.kill().unwrap(); // told to end before it listened for that
    }
    let mut kept = std::fs::OpenOptions::new().create(true).append(true).open(log).ok();
    let mut address = None;
    for line in BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok) {
        if let Some(kept) = &mut kept {
            writeln!(kept, "{line}").ok();
        }
        if let Some(ready) = line.strip_prefix("repl: serving http://").or(line.strip_prefix("repl: working")) {
            address = Some(ready.trim().to_owned());
            change(&|state| state.place.clone_from(&address));
        }
    }
    child.wait().unwrap();
    let ending = watched.0.lock().unwrap().ending;
    // One that never was ready will not be the next time either.
    address.filter(|_| !ending)
}
