//! The world of one story: a home whose processes are armed at one spot, a recorder that is never killed, and a user who types a
//! command again when it failed. Never looks inside the product.

use crate::home::Home;
use crate::kept_up::KeptUp;
use crate::process::{self, Ended, HANGS_AFTER_MS};
use serde_json::Value;
use std::cell::RefCell;
use std::fmt;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use wire::model::fault::{Moment, POINTS, Role};

/// Short, so that a dead worker's items are taken over while a test waits.
const LEASE_MS: i64 = 1500;
/// How often a command is repeated while processes die.
const TRIES: usize = 5;

/// Where a process dies.
#[derive(Debug, Clone)]
pub struct Spot {
    pub role: Role,
    pub name: &'static str,
    moment: Moment,
}

impl Spot {
    pub fn of(role: Role, name: &'static str, moment: Moment) -> Spot {
        Spot { role, name, moment }
    }

    /// `name`, reached by the first role it is registered for, or `role/name`.
    pub fn parse(text: &'static str, moment: Moment) -> Spot {
        let (role, name) = text.split_once('/').map_or((None, text), |(role, name)| (Some(role), name));
        let (_, roles) = POINTS.iter().find(|(known, _)| *known == name).unwrap_or_else(|| panic!("no point {name}"));
        let is_meant = |known: &&Role| role.is_none_or(|role| known.to_string() == role);
        let role = *roles.iter().find(is_meant).unwrap_or_else(|| panic!("{text} is not registered so"));
        Spot { role, name, moment }
    }
}

impl fmt::Display for Spot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}:{}", self.role, self.name, self.moment)
    }
}

/// What a run must have come to.
pub struct Expected {
    pub run: String,
    pub code: i32,
    pub out: String,
    /// How often its command may have begun, if no keeper died.
    pub begun: RangeInclusive<usize>,
    /// It was deleted, so that commands no longer show it.
    pub deleted: bool,
    /// It is of agents: what it pays is its models' matter.
    pub planned: bool,
}

pub struct World {
    /// A server without a worker, and workers; none where the control plane is embedded.
    pub kept_up: Vec<KeptUp>,
    pub home: Home,
    pub spot: Spot,
    /// Where the server listens that is a process of its own.
    pub server: String,
    mark: PathBuf,
    /// Written to by the work itself: what it says happened, happened.
    record: PathBuf,
    pub expected: RefCell<Vec<Expected>>,
}

impl World {
    /// `also` arms further deaths.
    pub fn new(settings: &str, also: &str, spot: &Spot) -> World {
        let mut home = Home::with(settings);
        let (mark, record) = (home.here().join("died"), home.here().join("record"));
        std::fs::write(&record, "").unwrap();
        home.set("REPL_CRASH", &format!("{also},{spot}@{}", mark.display()));
        let (spot, server) = (spot.clone(), String::new());
        World { kept_up: Vec::new(), home, spot, server, mark, record, expected: RefCell::default() }
    }

    /// On PostgreSQL: a server and `workers` beside it. `signal` is the variable that says what happens at the spot.
    pub fn shared(database: &str, settings: &str, spot: &Spot, variable: &str, workers: usize) -> World {
        let mut world = World::new(&format!("{settings}[timings]\nlease_ms = {LEASE_MS}\n"), "", spot);
        world.home.unset("REPL_CRASH");
        world.home.set(variable, &format!("{spot}@{}", world.mark.display()));
        world.home.set("REPL_DATABASE", database);
        let probe = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = probe.local_addr().unwrap().to_string();
        drop(probe);
        let server = KeptUp::start(world.home.repl(&["server", "--listen", &address, "--no-worker"]));
        server.hears("serving");
        world.kept_up.push(server);
        for _ in 0..workers {
            let worker = KeptUp::start(world.home.repl(&["worker", "--server", &address]));
            worker.hears("working");
            world.kept_up.push(worker);
        }
        let token = std::fs::read_to_string(world.home.data().join("token")).unwrap();
        world.home.set("REPL_TOKEN", &token);
        world.home.set("REPL_URL", &format!("http://{address}"));
        world.server = address;
        world
    }

    /// Machines first, then those who would end them.
    pub fn closes(mut self) {
        for machine in self.json(&["instance", "ls"]).as_array().unwrap() {
            self.insist(&["instance", "terminate", machine["id"].as_str().unwrap(), "--force"], 0);
        }
        self.until("machines end", || self.json(&["instance", "ls"]).as_array().unwrap().is_empty());
        self.kept_up.clear();
    }

    /// A command line that says in the record who it is when it begins.
    pub fn recorded(&self, command: &str) -> String {
        format!("echo $REPL_RUN $REPL_JOB >> {}; {command}", self.record.display())
    }

    /// (run, job) of everything that began.
    pub fn begun(&self) -> Vec<(String, String)> {
        let text = std::fs::read_to_string(&self.record).unwrap();
        text.lines().map(|line| line.split_once(' ').unwrap()).map(|(run, job)| (run.into(), job.into())).collect()
    }

    /// Submits a command that records itself; the same key, however often it is typed.
    pub fn submit(&self, flags: &[&str], command: &str, code: i32, out: &str) -> String {
        let key = format!("key-{}", self.expected.borrow().len());
        let again = if self.spot.role == Role::Keeper { &["--retry", "3"][..] } else { &[] };
        let command = self.recorded(command);
        let words =
            [&["run", "--detach", "--json", "--idempotency-key", &key], again, flags, &["-c", &command]].concat();
        let said = self.insist(&words, 0);
        let run: Value = serde_json::from_slice(&said.stdout).unwrap();
        let run = run["id"].as_str().unwrap().to_owned();
        self.expected.borrow_mut().push(Expected {
            run: run.clone(),
            code,
            out: out.to_owned(),
            begun: 1..=1,
            deleted: false,
            planned: false,
        });
        run
    }

    /// Submits a plan of agents that starts no command; the same key, however often it is typed.
    pub fn submit_plan(&self, plan: &str) -> String {
        let key = format!("key-{}", self.expected.borrow().len());
        self.home.write("plan.repl.yml", plan);
        let words = ["run", "plan.repl.yml", "--detach", "--json", "--idempotency-key", &key];
        let run: Value = serde_json::from_slice(&self.insist(&words, 0).stdout).unwrap();
        let run = run["id"].as_str().unwrap().to_owned();
        let (code, out) = (0, String::new());
        let expected = Expected { run: run.clone(), code, out, begun: 0..=0, deleted: false, planned: true };
        self.expected.borrow_mut().push(expected);
        run
    }

    /// By policy the run begins this often.
    pub fn begins(&self, run: &str, times: RangeInclusive<usize>) {
        self.expected.borrow_mut().iter_mut().find(|expected| expected.run == run).unwrap().begun = times;
    }

    pub fn delete(&self, run: &str) {
        self.insist(&["delete", run], 0);
        self.expected.borrow_mut().iter_mut().find(|expected| expected.run == run).unwrap().deleted = true;
    }

    /// Follows the run to its end, which is what was expected of it.
    pub fn ends(&self, run: &str) {
        let code = self.expected.borrow().iter().find(|expected| expected.run == run).unwrap().code;
        self.insist(&["attach", run], code);
    }

    /// Types a command until it ends with this code: its control plane may die under it, or it may be the one that dies.
    #[track_caller]
    pub fn insist(&self, words: &[&str], code: i32) -> Ended {
        let mut ended = self.home.say(words);
        for _ in 1..TRIES {
            if ended.code == code {
                break;
            }
            ended = self.home.say(words);
        }
        assert_eq!(ended.code, code, "{words:?} does not succeed: {ended}");
        ended
    }

    pub fn json(&self, words: &[&str]) -> Value {
        serde_json::from_slice(&self.insist(&[words, &["--json"]].concat(), 0).stdout).unwrap()
    }

    /// Waits for something, as a user does who looks again and again; looking is what starts a dead control plane.
    #[track_caller]
    #[expect(clippy::disallowed_methods, reason = "only to say of a test that hangs what it waited for")]
    pub fn until(&self, what: &str, is_so: impl Fn() -> bool) {
        let gives_up = Instant::now() + Duration::from_millis(HANGS_AFTER_MS.into());
        while !is_so() {
            assert!(Instant::now() < gives_up, "{what}: in vain");
            self.home.say(&["ps"]);
        }
    }

    /// Waits for a command of a run while it repeats `repl ps`, as a user would: the control plane may have died, and the next `repl`
    /// command starts it again.
    pub fn meets<T: Send>(&self, wait: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| {
            let met = scope.spawn(wait);
            while !met.is_finished() {
                self.home.say(&["ps"]);
            }
            met.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Waits until the process that the story kills has reached its crash point.
    pub fn has_died(&self) {
        self.until(&format!("{} is never reached", self.spot), || self.mark.exists());
    }

    /// The process of the only machine, when there is one.
    pub fn runner(&self) -> Option<i32> {
        let found = self.home.processes().into_iter().filter(|process| process.words.starts_with("repl runner --dir"));
        let found: Vec<_> = found.filter(|process| !process.words.contains("--end")).collect();
        found.iter().find(|one| !found.iter().any(|other| other.pid == one.parent)).map(|process| process.pid)
    }

    pub fn kill_runner(&self) {
        self.until("a runner", || self.runner().is_some());
        process::kill(self.runner().unwrap());
    }
}

pub fn count(to: usize) -> String {
    (1..=to).map(|n| format!("{n}\n")).collect()
}
