//! What the local provider starts in these tests, and the hands that reach into its world. The stand-in takes the lock,
//! answers on the socket and does no work; the real runner is tried end to end elsewhere.

pub mod sshd;

use adapters::conformance::{Deed, MACHINES, Subject};
use adapters::local::LocalTimeouts;
use adapters::{Capabilities, ExecProvider, ExecSettings, LocalProvider, LocalSettings, Order, Provider, Reach};
use model::boot::{BOOT_FILE, Boot, LOCK_FILE, SOCKET_FILE, SocketAnswer, SocketAsk};
use model::spec::Resources;
use nix::sys::signal::{SigHandler, Signal, kill, signal};
use nix::unistd::Pid;
use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

/// Where each stand-in says that it serves.
const READY_FILE: &str = "ready.sock";
/// One line per start, beside the instance's directory so that it outlives it.
const STARTS: &str = "starts-";
/// What the stand-ins of this root are to do wrong.
const MISCHIEF_FILE: &str = "mischief";
const ENVIRONMENT_FILE: &str = "environment";
pub const ENDED_FILE: &str = "ended";
/// A stand-in whose test was killed goes by itself.
const LIVES_AT_MOST_S: u32 = 120;
/// This very test binary, asked to be a runner.
const ASKED: &str = "ADAPTERS_STANDIN";

pub struct Local {
    _home: tempfile::TempDir,
    root: PathBuf,
    provider: LocalProvider,
    /// The same folders, made by the example of a program.
    exec: Option<ExecProvider>,
    ready: UnixListener,
    seen: Mutex<BTreeSet<String>>,
}

pub fn local() -> Local {
    let home = tempfile::tempdir().unwrap();
    let root = home.path().join("instances");
    local_at(home, root)
}

/// With its machines in this folder of the home.
pub fn local_at(home: tempfile::TempDir, root: PathBuf) -> Local {
    fs::create_dir_all(&root).unwrap();
    let ready = UnixListener::bind(root.join(READY_FILE)).unwrap();
    let provider = LocalProvider::new(settings(&root));
    Local { _home: home, root, provider, exec: None, ready, seen: Mutex::default() }
}

/// What a program is believed to do that says nothing of itself.
#[allow(dead_code, reason = "the conformance suite alone uses it")]
fn plain() -> Capabilities {
    Capabilities {
        sees_runner: false,
        restarts_runner: false,
        remembers_names: false,
        keeps_workdirs: false,
        ..Capabilities::default()
    }
}

/// Machines that `examples/providers/folder.py` makes.
#[allow(dead_code, reason = "the conformance suite alone uses it")]
pub fn exec() -> Local {
    made_by("folder.py", Capabilities::default())
}

/// The same, of a program that says of itself only what each must do.
#[allow(dead_code, reason = "the conformance suite alone uses it")]
pub fn exec_plain() -> Local {
    made_by("folder.py", plain())
}

/// A program that does no more than that.
#[allow(dead_code, reason = "the conformance suite alone uses it")]
pub fn exec_least() -> Local {
    made_by("plain.py", plain())
}

#[allow(dead_code, reason = "the conformance suite alone uses it")]
fn made_by(example: &str, can: Capabilities) -> Local {
    let mut local = local();
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/providers").join(example);
    let words = [example.as_path(), &local.root, script()].map(|path| path.to_str().unwrap().to_owned());
    let settings = ExecSettings {
        env: std::collections::BTreeMap::new(),
        name: "folder".to_owned(),
        exec: words.to_vec(),
        folder: local.root.clone(),
        timeout: Duration::from_secs(60),
        capabilities: Capabilities { regions: vec!["here".into()], max_instances: MACHINES, ..can },
        reach: Reach::Host,
        price_per_hour: model::Credits(7),
        spot_price: model::Credits(7),
    };
    local.exec = Some(ExecProvider::new(settings));
    local
}

pub fn settings(root: &Path) -> LocalSettings {
    LocalSettings { max_instances: MACHINES, ..LocalSettings::new(root, script()) }
}

impl Local {
    pub fn dir(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }
    /// For processes that will not answer: nothing may depend on how soon another one does.
    pub fn hasty(&self) -> LocalProvider {
        let soon = Duration::from_millis(300);
        let timeouts = LocalTimeouts { answer: soon, shutdown: soon, sigterm: soon, ..LocalTimeouts::default() };
        LocalProvider::new(LocalSettings { timeouts, ..settings(&self.root) })
    }
    pub fn local(&self) -> &LocalProvider {
        &self.provider
    }
    pub fn mischief(&self, what: &str) {
        fs::write(self.root.join(MISCHIEF_FILE), what).unwrap();
    }
    pub fn environment(&self, name: &str) -> BTreeSet<String> {
        let text = fs::read_to_string(self.dir(name).join(ENVIRONMENT_FILE)).unwrap();
        text.lines().map(str::to_owned).collect()
    }
    /// The process that holds the lock, by its own word.
    pub fn pid(&self, name: &str) -> Pid {
        Pid::from_raw(fs::read_to_string(self.dir(name).join(LOCK_FILE)).unwrap().parse().unwrap())
    }
    pub fn wait_ready(&self, name: &str) {
        let mut seen = self.seen.lock().unwrap();
        while !seen.remove(name) {
            let mut who = String::new();
            self.ready.accept().unwrap().0.read_to_string(&mut who).unwrap();
            seen.insert(who);
        }
    }
    pub fn wait_dead(&self, name: &str) {
        let lock = File::open(self.dir(name).join(LOCK_FILE)).unwrap();
        lock.lock_shared().unwrap();
        lock.unlock().unwrap();
    }
    /// Returns when it stands still, if that is what it was told: until then it may answer.
    pub fn signal(&self, name: &str, signal: Signal) {
        let pid = self.pid(name);
        kill(pid, signal).unwrap();
        while signal == Signal::SIGSTOP && !stands_still(pid) {
            std::thread::yield_now();
        }
    }
}

/// Every thread of it.
fn stands_still(pid: Pid) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let stats = threads.map(|thread| std::fs::read_to_string(thread.unwrap().path().join("stat")).unwrap_or_default());
    stats.into_iter().all(|stat| stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with('T')))
}

impl Subject for Local {
    fn provider(&self) -> &dyn Provider {
        match &self.exec {
            Some(exec) => exec,
            None => &self.provider,
        }
    }
    fn await_runner<'a>(&'a self, name: &'a str) -> Deed<'a> {
        Box::pin(async move { self.wait_ready(name) })
    }
    fn kill_runner(&self, name: &str) {
        self.signal(name, Signal::SIGKILL);
        self.wait_dead(name);
    }
    fn replace_by_stranger<'a>(&'a self, name: &'a str) -> Deed<'a> {
        self.kill_runner(name);
        let path = self.dir(name).join(BOOT_FILE);
        let mut boot: Boot = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        boot.nonce = "of somebody else".to_owned();
        fs::write(&path, serde_json::to_vec(&boot).unwrap()).unwrap();
        Box::pin(async move {
            // Started by the provider of another process, which knows the directory's rules as ours does.
            let theirs = Order::new(boot, "", Resources::default());
            self.provider.spawn(&theirs).await.unwrap();
            self.wait_ready(name);
        })
    }
    /// Not where a program stands before the folders: it knows machines by their file.
    fn lose_nonce(&self, name: &str) -> bool {
        self.exec.is_none() && fs::remove_file(self.dir(name).join(BOOT_FILE)).is_ok()
    }
    fn starts(&self, name: &str) -> usize {
        fs::read_to_string(self.root.join(format!("{STARTS}{name}"))).map_or(0, |starts| starts.lines().count())
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        for entry in fs::read_dir(&self.root).into_iter().flatten().flatten() {
            let lock = entry.path().join(LOCK_FILE);
            let held = File::open(&lock).is_ok_and(|file| file.try_lock_shared().is_err());
            if let (true, Ok(pid)) = (held, fs::read_to_string(lock).unwrap_or_default().parse()) {
                let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
            }
        }
    }
}

/// What the provider starts: the environment is cleared on the way, so the arguments carry everything.
pub fn script() -> &'static Path {
    static SCRIPT: OnceLock<(tempfile::TempDir, PathBuf)> = OnceLock::new();
    let (_, path) = SCRIPT.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("repl");
        let me = std::env::current_exe().unwrap();
        let text = format!(
            "#!/bin/sh\nexport {ASKED}=\"$*\"\nexec '{}' --ignored --exact support::standin --nocapture\n",
            me.display()
        );
        let mut file = OpenOptions::new().create_new(true).write(true).mode(0o700).open(&path).unwrap();
        file.write_all(text.as_bytes()).unwrap();
        (folder, path)
    });
    path
}

#[test]
#[ignore = "is the runner that the other tests start"]
fn standin() {
    let Ok(asked) = std::env::var(ASKED) else { return };
    let words: Vec<&str> = asked.split(' ').collect();
    match words[..] {
        ["runner", "host", exe] => {
            return adapters::ssh::remote::answer(Path::new(exe), || Ok(()), std::io::stdin(), std::io::stdout())
                .unwrap();
        }
        ["runner", "relay", _] => return adapters::ssh::relay::relay(std::io::stdin(), std::io::stdout()).unwrap(),
        _ => {}
    }
    let ["runner", "--dir", dir, more @ ..] = words.as_slice() else { panic!("started as {asked:?}") };
    let dir = Path::new(dir);
    let root = dir.parent().unwrap();
    let mischief = fs::read_to_string(root.join(MISCHIEF_FILE)).unwrap_or_default();
    if more == ["--end"] {
        assert_ne!(mischief, "cannot clean up");
        end_runner(dir);
        fs::write(dir.join(ENDED_FILE), "").unwrap();
        return;
    }
    assert_eq!(std::env::current_dir().unwrap(), dir.canonicalize().unwrap());
    nix::unistd::alarm::set(LIVES_AT_MOST_S);
    if mischief == "deaf" {
        // SAFETY: ignoring a signal runs no handler.
        unsafe { signal(Signal::SIGTERM, SigHandler::SigIgn) }.unwrap();
    }
    be_a_runner(dir, root, &mischief);
}

/// As the real one does with a runner that still lives.
fn end_runner(dir: &Path) {
    let Ok(lock) = File::open(dir.join(LOCK_FILE)) else { return };
    if let (Err(_), Ok(pid)) = (lock.try_lock_shared(), fs::read_to_string(dir.join(LOCK_FILE)).unwrap().parse()) {
        kill(Pid::from_raw(pid), Signal::SIGKILL).unwrap();
        lock.lock_shared().unwrap();
    }
}

fn be_a_runner(dir: &Path, root: &Path, mischief: &str) {
    let boot: Boot = serde_json::from_slice(&fs::read(dir.join(BOOT_FILE)).unwrap()).unwrap();
    let starts = root.join(format!("{STARTS}{}", boot.name));
    writeln!(OpenOptions::new().create(true).append(true).open(starts).unwrap(), "{}", std::process::id()).unwrap();
    let mut lock = OpenOptions::new().create(true).truncate(false).write(true).open(dir.join(LOCK_FILE)).unwrap();
    if lock.try_lock().is_err() {
        return;
    }
    lock.set_len(0).unwrap();
    write!(lock, "{}", std::process::id()).unwrap();
    let variables: String = std::env::vars().map(|(name, _)| format!("{name}\n")).collect();
    fs::write(dir.join(ENVIRONMENT_FILE), variables).unwrap();
    let _ = fs::remove_file(dir.join(SOCKET_FILE));
    let socket = UnixListener::bind(dir.join(SOCKET_FILE)).unwrap();
    write!(UnixStream::connect(root.join(READY_FILE)).unwrap(), "{}", boot.name).unwrap();
    for stream in socket.incoming() {
        if answer(&stream.unwrap(), &boot, mischief) {
            return;
        }
    }
}

/// Whether that was the order to end.
fn answer(mut stream: &UnixStream, boot: &Boot, mischief: &str) -> bool {
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).unwrap();
    let Ok(ask) = serde_json::from_str::<SocketAsk>(&line) else { return false };
    let own = if mischief == "another nonce" { "mine" } else { &boot.nonce };
    let refused = match &ask {
        SocketAsk::Shutdown { nonce } if nonce != own => Some("not me".to_owned()),
        _ => None,
    };
    let ends = matches!(ask, SocketAsk::Shutdown { .. }) && refused.is_none() && mischief != "deaf";
    let answer =
        SocketAnswer { name: boot.name.clone(), nonce: own.to_owned(), pid: std::process::id() as i32, refused };
    let _ = writeln!(stream, "{}", serde_json::to_string(&answer).unwrap());
    ends
}
