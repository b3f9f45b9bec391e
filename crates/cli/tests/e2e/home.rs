//! A home of one test: its own data folder, its own folder to type in, its own control plane: the embedded one or, if the tests
//! are asked to, several processes on PostgreSQL. Whatever a test does to it, no process is left behind: at its end the test looks
//! for processes that still use the home.

use crate::process::{self, Ended};
use crate::servers::{ASKED_BY, OWN_SERVER, Recipe, Servers};
use nix::sys::signal::Signal;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

pub struct Home {
    place: tempfile::TempDir,
    /// Where the control plane keeps its data.
    data: PathBuf,
    /// Variables that every command of this home sees.
    env: Vec<(String, String)>,
    /// Ends what a killed test left. It gets the home's path on stdin, so that it does not count as a process that uses the home.
    heir: Child,
    /// What the tests are asked to run on instead of an embedded control plane.
    asked: Option<String>,
    /// Started with the first command.
    servers: OnceLock<Servers>,
}

/// Of each log of a home whose test failed.
const SHOWN_LINES: usize = 60;

const HEIR: &str = r#"read -r repl; read -r home; cat; REPL_HOME="$home" "$repl" control stop --all"#;
/// The same for several processes: kills every process that has the home in its environment.
const HEIR_OF_MANY: &str = r#"read -r _; read -r home; cat; [ -n "$home" ] || exit
for dir in /proc/[0-9]*; do grep -qsF "$home" "$dir/environ" && kill -9 "${dir#/proc/}"; done; rm -rf "$home""#;

impl Home {
    pub fn new() -> Home {
        // Short: a socket's path is.
        let place = tempfile::Builder::new().prefix("e2e").tempdir().unwrap();
        std::fs::create_dir(place.path().join("here")).unwrap();
        let data = place.path().join("home");
        let asked = std::env::var(ASKED_BY).ok();
        let heir = heir(&data, asked.is_some());
        Home { place, data, env: Vec::new(), heir, asked, servers: OnceLock::new() }
    }

    /// With several servers and workers on a PostgreSQL of its own, whatever the tests are asked to run on.
    pub fn of_many(settings: &str) -> Home {
        let mut home = Home::with(settings);
        home.asked = Some(OWN_SERVER.to_owned());
        end(&mut home.heir);
        home.heir = heir(&home.data, true);
        home
    }

    /// With its data in a folder that the caller chooses.
    pub fn on(folder: &Path) -> Home {
        let mut home = Home::new();
        home.data = folder.join("home");
        end(&mut home.heir);
        home.heir = heir(&home.data, home.asked.is_some());
        home
    }

    /// With settings in the user's own file.
    pub fn with(settings: &str) -> Home {
        let home = Home::new();
        home.configure(settings);
        home
    }

    /// From now on every command has these settings.
    pub fn configure(&self, settings: &str) {
        let path = self.place.path().join(".config/remuda/config.toml");
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, settings).unwrap();
    }

    /// A pool of exactly so many machines.
    pub fn of_machines(count: usize) -> Home {
        Home::with(&format!("[providers.local]\nmax_instances = {count}\n"))
    }

    pub fn set(&mut self, name: &str, value: &str) {
        self.env.push((name.to_owned(), value.to_owned()));
    }

    pub fn unset(&mut self, name: &str) {
        self.env.retain(|(set, _)| set != name);
    }

    pub fn data(&self) -> &Path {
        &self.data
    }

    /// Where commands are typed.
    pub fn here(&self) -> PathBuf {
        self.place.path().join("here")
    }

    pub fn write(&self, name: &str, text: impl AsRef<[u8]>) -> PathBuf {
        let path = self.here().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
        path
    }

    pub fn repl(&self, words: &[&str]) -> Command {
        let mut command = Command::new(program());
        command
            .args(words)
            .env_clear()
            .env("PATH", "/usr/local/bin:/usr/bin:/bin")
            .env("HOME", self.place.path())
            .env("REPL_HOME", self.data())
            .envs(self.pointed(&words.join(" ")))
            .envs(self.env.iter().map(|(name, value)| (name, value)))
            .current_dir(self.here())
            .stdin(Stdio::null());
        command
    }

    /// A line of the shell in which `repl` is ours.
    pub fn shell(&self, line: &str) -> Command {
        let mut shell = Command::new("/bin/sh");
        let path = format!("{}:/usr/local/bin:/usr/bin:/bin", program().parent().unwrap().display());
        shell
            .args(["-c", line])
            .env_clear()
            .env("PATH", path)
            .env("HOME", self.place.path())
            .env("REPL_HOME", self.data())
            .envs(self.pointed(line.trim_start_matches("repl ")))
            .envs(self.env.iter().map(|(name, value)| (name, value)))
            .current_dir(self.here())
            .stdin(Stdio::null());
        shell
    }

    /// What points a command at one of several servers; nothing for an embedded control plane, which is found by the home.
    fn pointed(&self, line: &str) -> Vec<(String, String)> {
        let Some(servers) = self.servers() else { return Vec::new() };
        let token = std::fs::read_to_string(self.data().join("token")).unwrap();
        vec![("REPL_URL".to_owned(), servers.for_command(line)), ("REPL_TOKEN".to_owned(), token.trim().to_owned())]
    }

    pub fn is_many(&self) -> bool {
        self.asked.is_some()
    }

    /// The processes of a home that has several.
    pub fn many(&self) -> &Servers {
        self.servers().expect("an embedded control plane is one process")
    }

    fn servers(&self) -> Option<&Servers> {
        let asked = self.asked.as_ref()?;
        let start = || {
            let text = |path: &Path| path.to_str().unwrap().to_owned();
            let mut env = vec![("PATH".to_owned(), "/usr/local/bin:/usr/bin:/bin".to_owned())];
            env.extend([("HOME".to_owned(), text(self.place.path())), ("REPL_HOME".to_owned(), text(self.data()))]);
            env.extend(self.env.iter().cloned());
            let recipe = Recipe { program: program(), env, folder: self.here(), logs: self.place.path().to_owned() };
            Servers::start(recipe, asked, &self.place.path().file_name().unwrap().to_string_lossy())
        };
        Some(self.servers.get_or_init(start))
    }

    /// Where the control plane answers, started if need be.
    pub fn url(&self) -> String {
        match self.servers() {
            Some(servers) => servers.url(),
            // A kill test may end the control plane between the two commands: then it is started again.
            None => (0..100)
                .find_map(|_| {
                    self.done(&["control", "start"]);
                    let said = self.say(&["control", "status", "--json"]);
                    let status: Value = serde_json::from_slice(&said.stdout).unwrap();
                    status["url"].as_str().map(str::to_owned)
                })
                .expect("a control plane that stays up"),
        }
    }

    /// Types a command and waits for its end.
    pub fn say(&self, words: &[&str]) -> Ended {
        process::end_of(&mut self.repl(words))
    }

    /// The same, and it must go well.
    pub fn done(&self, words: &[&str]) -> Ended {
        let ended = self.say(words);
        assert_eq!(ended.code, 0, "{words:?}: {ended}");
        ended
    }

    pub fn json(&self, words: &[&str]) -> Value {
        let words = [words, &["--json"]].concat();
        serde_json::from_slice(&self.done(&words).stdout).unwrap_or_else(|error| panic!("{words:?}: {error}"))
    }

    /// `repl run` with these flags and this command, followed.
    pub fn run(&self, flags: &[&str], command: &str) -> Ended {
        self.say(&[&["run"], flags, &["-c", command]].concat())
    }

    /// `repl run --detach`; the id of the run.
    pub fn detach(&self, flags: &[&str], command: &str) -> String {
        let run = self.json(&[&["run", "--detach"], flags, &["-c", command]].concat());
        run["id"].as_str().unwrap().to_owned()
    }

    pub fn attach(&self, run: &str) -> Ended {
        self.say(&["attach", run])
    }

    /// The run object.
    pub fn status(&self, run: &str) -> Value {
        self.json(&["status", run])["run"].take()
    }

    /// The jobs of a run, in the order they were made.
    pub fn jobs(&self, run: &str) -> Vec<Value> {
        let agents = self.json(&["status", run])["agents"].take();
        let jobs = agents.as_array().unwrap().iter().flat_map(|agent| agent["jobs"].as_array().unwrap().clone());
        jobs.collect()
    }

    pub fn instances(&self) -> Vec<Value> {
        self.json(&["instance", "ls"]).as_array().unwrap().clone()
    }

    /// The process that served the last command.
    pub fn control_plane(&self) -> i32 {
        if let Some(servers) = self.servers() {
            return servers.last();
        }
        self.json(&["control", "status"])["pid"].as_i64().unwrap() as i32
    }

    /// Ends every run, every machine and the control plane.
    pub fn stop(&self) {
        let Some(servers) = self.servers() else {
            // One that the test has ended is not started again: it may not be able to.
            if self.say(&["control", "status"]).code == 1 {
                return;
            }
            let stopped = self.say(&["control", "stop", "--all"]);
            return assert_eq!(stopped.code, 0, "control stop --all: {stopped}");
        };
        if servers.have_ended() {
            return;
        }
        for run in self.json(&["ps"]).as_array().unwrap() {
            self.say(&["cancel", "--abort", run["id"].as_str().unwrap()]); // it may have ended meanwhile
        }
        let is_runner = |process: &process::Process| process.words.starts_with("repl runner");
        let runners: Vec<_> = self.processes().into_iter().filter(is_runner).collect();
        for machine in self.instances() {
            self.done(&["instance", "terminate", "--force", machine["id"].as_str().unwrap()]);
        }
        for runner in runners {
            assert!(process::ends(runner.pid), "{runner:?} goes on");
        }
        servers.end(Signal::SIGTERM);
    }

    /// Every invariant, and every credit where it belongs.
    pub fn adds_up(&self) {
        let report = self.say(&["audit", "--json"]);
        assert_eq!(report.code, 0, "the audit is clean: {report}");
        let rows = self.json(&["credits", "ledger", "--limit", "100000"]);
        let sum = |kind: &str| -> i64 {
            let rows = rows.as_array().unwrap().iter().filter(|row| row["kind"] == kind);
            rows.map(|row| row["amount_micro"].as_i64().unwrap()).sum()
        };
        let balance = self.json(&["credits", "balance"]);
        let left = |name: &str| balance[name].as_i64().unwrap();
        assert_eq!(left("reserved_micro"), sum("reserve") - sum("charge") - sum("refund"), "{balance}");
        assert_eq!(left("available_micro"), sum("topup") - sum("reserve") + sum("refund"), "{balance}");
    }

    /// What every part of it said about itself.
    fn show_logs(&self) {
        let members = (0..4).map(|n| self.place.path().join(format!("member-{n}.log")));
        let machines = std::fs::read_dir(self.data().join("instances")).into_iter().flatten().flatten();
        let runners = machines.map(|machine| machine.path().join("runner.log"));
        for path in members.chain([self.data().join("control.log")]).chain(runners) {
            if let Ok(log) = std::fs::read_to_string(&path) {
                let lines: Vec<&str> = log.lines().collect();
                let last = lines[lines.len().saturating_sub(SHOWN_LINES)..].join("\n");
                eprintln!("--- {}\n{last}", path.strip_prefix(self.place.path()).unwrap_or(&path).display());
            }
        }
    }

    /// All processes that use this home, however they were started.
    pub fn processes(&self) -> Vec<process::Process> {
        process::that_know(&[self.place.path(), self.data()])
    }

    /// The one process of this home whose command line begins so, for example `repl runner`.
    pub fn the(&self, words: &str) -> i32 {
        let all = self.processes();
        let named: Vec<_> = all.iter().filter(|process| process.words.starts_with(words)).collect();
        // A child has its parent's words until it becomes a program of its own.
        let is_own = |process: &process::Process| !named.iter().any(|other| other.pid == process.parent);
        let found: Vec<_> = named.iter().filter(|process| is_own(process)).collect();
        assert_eq!(found.len(), 1, "one `{words}` among {all:?}");
        found[0].pid
    }
}

/// The binary that was built for this test, or the one that a variable names.
pub fn program() -> PathBuf {
    std::env::var_os("CARGO_BIN").map_or_else(|| env!("CARGO_BIN_EXE_repl").into(), PathBuf::from)
}

fn heir(data: &Path, of_many: bool) -> Child {
    use std::io::Write as _;
    use std::os::unix::process::CommandExt as _;
    let mut heir = Command::new("/bin/sh")
        .args(["-c", if of_many { HEIR_OF_MANY } else { HEIR }])
        .env_clear()
        .current_dir("/")
        .process_group(0) // a signal to the test's process group must not end it too
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    writeln!(heir.stdin.as_mut().unwrap(), "{}\n{}", program().display(), data.display()).unwrap();
    heir
}

fn end(child: &mut Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

impl Drop for Home {
    fn drop(&mut self) {
        end(&mut self.heir);
        let failed = std::thread::panicking();
        if failed {
            self.show_logs(); // now: a machine that is ended is forgotten, with what it said
        }
        match (self.asked.is_some(), self.servers.get()) {
            (true, Some(servers)) if failed => servers.end(Signal::SIGKILL),
            (true, None) => {}
            (false, _) if !self.data().exists() => {}
            (false, _) if failed => drop(self.say(&["control", "stop", "--all"])),
            _ => self.stop(),
        }
        let left = self.processes();
        for process in &left {
            // A test that fails must not leave work for the next one.
            process::kill(process.pid);
        }
        assert!(failed || left.is_empty(), "left behind: {left:?}");
    }
}
