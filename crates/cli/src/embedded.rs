//! Finds, starts and ends the control plane that lives in `REPL_HOME`. Whether it lives is a lock its process holds;
//! the lock's file says where it listens. Never trusts a pid alone, and never starts two.

mod differs;
mod lock;

pub use differs::effective;
pub use lock::{Holder, find, hold};

use crate::complaint::{Complaint, Done};
use crate::private;
use crate::settings::Settings;
use nix::fcntl::{Flock, FlockArg};
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};
use wire::model::crash_point;

pub const LOG_FILE: &str = "control.log";
/// Locked while a command starts or ends the control plane, so that two first commands start one.
const START_FILE: &str = "control.start";
/// A socket's path may have 107 bytes; beyond this one it moves to a short folder.
const LONGEST_SOCKET: usize = 100;
/// Migrations of a large database included; the start says so itself when it fails earlier.
const READY_WITHIN: Duration = Duration::from_secs(120);
/// How long a control plane that another command starts may take to announce itself, and how often this command checks.
const STARTS_WITHIN: Duration = Duration::from_secs(30);
const ASK_AGAIN: Duration = Duration::from_millis(20);
/// A graceful end hands work over; it never waits for runs.
const ENDED_WITHIN: Duration = Duration::from_secs(60);
/// A larger log is rotated; one older file is kept.
const LARGEST_LOG: u64 = 16 << 20;
/// The last line of the child on its stdout, when it answers requests. Lines before it are warnings for the user.
pub const READY: &str = "ready";
/// Variables that the control plane inherits from the command that starts it; jobs inherit some of them for as long as it runs.
const INHERITED: &[&str] = &[
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "LANG",
    "LC_ALL",
    "TZ",
    "TMPDIR",
    // The provider `ssh` may need the keys of the user's agent.
    "SSH_AUTH_SOCK",
    "XDG_RUNTIME_DIR",
    "RUST_BACKTRACE",
];
/// Settings travel over a pipe; these would only contradict it.
const NOT_INHERITED: &[&str] = &[
    "REPL_URL",
    "REPL_TOKEN",
    "REPL_HOME",
    "REPL_DATABASE",
    "REPL_BLOBS",
    "REPL_LISTEN",
    "REPL_CONFIG",
    "REPL_TLS_CERT",
    "REPL_TLS_KEY",
    "REPL_CA_CERT",
    "REPL_PUBLIC_URL",
];

/// What the starter tells the process it starts.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Orders {
    pub home: PathBuf,
    pub database: Option<String>,
    pub blobs: Option<String>,
    pub listen: Option<String>,
    pub log: Option<String>,
    pub tls_cert: Option<PathBuf>,
    pub tls_key: Option<PathBuf>,
    pub ca_cert: Option<PathBuf>,
    pub public_url: Option<String>,
    pub tables: toml::Table,
    /// The settings files that were read: no job in a sandbox sees them.
    #[serde(default)]
    pub files: Vec<PathBuf>,
    /// Settings outside of tables that the user's own files say.
    #[serde(default)]
    pub in_files: Vec<String>,
    /// The database is an older copy.
    #[serde(default)]
    pub restored: bool,
}

impl Orders {
    pub fn of(settings: &Settings) -> Orders {
        Orders {
            home: settings.home.clone(),
            database: settings.database.clone(),
            blobs: settings.blobs.clone(),
            listen: settings.listen.clone(),
            log: settings.log.clone(),
            tls_cert: settings.tls_cert.clone(),
            tls_key: settings.tls_key.clone(),
            ca_cert: settings.ca_cert.clone(),
            public_url: settings.public_url.clone(),
            tables: settings.tables.clone(),
            files: settings.files.clone(),
            in_files: settings.in_files.clone(),
            restored: false,
        }
    }
}

/// Finds the control plane, or starts it; an older one is replaced. The flag says whether it was started here.
pub async fn ensure(settings: &Settings) -> Done<(Holder, bool)> {
    private::home(&settings.home)?;
    if let Some(holder) = find(&settings.home)? {
        is_on_this_host(&holder, &settings.home)?;
        if !is_older(&holder.version) {
            differs::tell(settings, &holder);
            return Ok((holder, false));
        }
    }
    let _starting = start_lock(&settings.home).await?;
    // One in the foreground does not take that lock: it is given time to say where it listens.
    let asked = Instant::now();
    while lock::is_starting(&settings.home)? && asked.elapsed() < STARTS_WITHIN {
        tokio::time::sleep(ASK_AGAIN).await;
    }
    // Another command may have started it while this one waited.
    if let Some(holder) = find(&settings.home)? {
        is_on_this_host(&holder, &settings.home)?;
        if !is_older(&holder.version) {
            differs::tell(settings, &holder);
            return Ok((holder, false));
        }
        end(&settings.home, &holder).await?;
    }
    start(settings).await.map(|holder| (holder, true))
}

/// Asks the process to end, keeping runs and machines, and waits until it is gone.
pub async fn end(home: &Path, holder: &Holder) -> Done<()> {
    is_on_this_host(holder, home)?;
    // The lock is held and was taken in this boot, so the pid in it is its holder's.
    let pid = nix::unistd::Pid::from_raw(holder.pid);
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM)
        .map_err(|error| Complaint::refused(format!("cannot end the control plane (pid {pid}): {error}")))?;
    ended(home, holder).await
}

/// Waits until no process holds the home's lock.
pub async fn ended(home: &Path, holder: &Holder) -> Done<()> {
    let path = home.join(lock::FILE);
    let file = match OpenOptions::new().read(true).open(&path) {
        Ok(file) => file,
        Err(_) => return Ok(()),
    };
    let free = tokio::task::spawn_blocking(move || lock::wait_until_free(&file));
    match tokio::time::timeout(ENDED_WITHIN, free).await {
        Ok(Ok(Ok(_))) => Ok(()),
        Ok(Ok(Err(error))) => Err(Complaint::refused(format!("cannot wait for {}: {error}", path.display()))),
        _ => Err(Complaint::refused(format!(
            "the control plane (pid {}) has not ended within {} s",
            holder.pid,
            ENDED_WITHIN.as_secs()
        ))
        .fix(format!("see {}; it is safe to kill -9 it", home.join(LOG_FILE).display()))),
    }
}

/// Where the socket of this home goes; a folder of our own when its path would be too long.
pub fn socket(home: &Path) -> Done<PathBuf> {
    let usual = home.join("control.sock");
    if usual.as_os_str().len() <= LONGEST_SOCKET {
        return Ok(usual);
    }
    let digest = blake3::hash(home.as_os_str().as_encoded_bytes()).to_hex();
    let folder = PathBuf::from(format!("/tmp/remuda-{}-{}", nix::unistd::getuid(), &digest[..12]));
    make_private(&folder)?;
    Ok(folder.join("control.sock"))
}

async fn start(settings: &Settings) -> Done<Holder> {
    let log = open_log(&settings.home)?;
    let failed = |error: std::io::Error| Complaint::usage(format!("cannot start the control plane: {error}"));
    let mut command = std::process::Command::new("/proc/self/exe");
    command
        .arg0("repl")
        .args(["control", "serve", "--home"])
        // Only shown in lists of processes: the orders contain it too.
        .arg(&settings.home)
        .current_dir("/")
        .env_clear()
        .envs(std::env::vars_os().filter(|(name, _)| is_inherited(&name.to_string_lossy())))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(log);
    // SAFETY: both are plain system calls and touch no memory of this process. Ctrl-C at our terminal is not meant for it, and what
    // our starter had open (a pipe, a terminal) must not stay open for as long as it lives.
    unsafe {
        command.pre_exec(|| {
            libc::close_range(3, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC as i32);
            nix::unistd::setsid().map(drop).map_err(Into::into)
        });
    }
    let mut child = crash_point!("control.start", command.spawn()).map_err(failed)?;
    let orders = Orders::of(settings);
    let orders = serde_json::to_vec(&orders).expect("orders are plain text");
    child.stdin.take().expect("piped").write_all(&orders).map_err(failed)?;
    let mut said = child.stdout.take().expect("piped");
    let answer = tokio::task::spawn_blocking(move || {
        let mut text = String::new();
        said.read_to_string(&mut text).map(|_| text)
    });
    let said = match tokio::time::timeout(READY_WITHIN, answer).await {
        Ok(Ok(Ok(text))) => text,
        Ok(_) => String::new(),
        Err(_) => return Err(not_started(&settings.home, "it has not become ready")),
    };
    match (find(&settings.home)?, warnings(&said)) {
        (Some(holder), Some(warnings)) => {
            for warning in warnings {
                eprintln!("repl: {warning}");
            }
            Ok(holder)
        }
        _ => Err(not_started(&settings.home, said.trim())),
    }
}

/// What the child said before the word that it is ready; none if it did not become ready.
fn warnings(said: &str) -> Option<Vec<&str>> {
    let mut lines: Vec<&str> = said.trim().lines().collect();
    (lines.pop()? == READY).then_some(lines)
}

fn not_started(home: &Path, said: &str) -> Complaint {
    let log = home.join(LOG_FILE);
    let (said, fix) = match said.split_once("\n  fix: ") {
        Some((said, fix)) => (said, fix.to_owned()),
        None => (said, format!("see {}", log.display())),
    };
    let said = said.strip_prefix("error: ").unwrap_or(said);
    let said = if said.is_empty() { "it ended at once" } else { said };
    Complaint::usage(format!("the control plane did not start: {said}")).fix(fix)
}

async fn start_lock(home: &Path) -> Done<Flock<File>> {
    let path = home.join(START_FILE);
    let file = private::open(&path, OpenOptions::new().write(true))?;
    let locked = tokio::task::spawn_blocking(move || Flock::lock(file, FlockArg::LockExclusive)).await;
    match locked {
        Ok(Ok(lock)) => Ok(lock),
        Ok(Err((_, error))) => Err(Complaint::usage(format!("cannot lock {}: {error}", path.display()))),
        Err(error) => Err(Complaint::usage(error.to_string())),
    }
}

fn is_on_this_host(holder: &Holder, home: &Path) -> Done<()> {
    if lock::is_of_this_boot(holder) {
        return Ok(());
    }
    Err(Complaint::usage(format!("the control plane of {} runs on {}", home.display(), holder.host))
        .fix(format!("work on {}, or use a REPL_HOME that is not shared between machines", holder.host)))
}

/// Whether that version comes before this program's.
fn is_older(version: &str) -> bool {
    let number = |text: &str| -> Vec<u64> { text.split(['.', '-', '+']).map_while(|part| part.parse().ok()).collect() };
    number(version) < number(env!("CARGO_PKG_VERSION"))
}

fn is_inherited(name: &str) -> bool {
    let families = ["REPL_", "OTEL_", "OPENAI_"];
    (INHERITED.contains(&name) || families.iter().any(|family| name.starts_with(family)))
        && !NOT_INHERITED.contains(&name)
}

/// A folder in a directory that all users may write to must belong to this user.
fn make_private(folder: &Path) -> Done<()> {
    match std::fs::DirBuilder::new().mode(0o700).create(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
            return Err(Complaint::file("create", folder, &error));
        }
        _ => {}
    }
    let found = std::fs::symlink_metadata(folder).map_err(|error| Complaint::file("look at", folder, &error))?;
    if !found.is_dir() || found.uid() != nix::unistd::getuid().as_raw() || found.mode() & 0o077 != 0 {
        return Err(Complaint::usage(format!("{} is not a private folder of ours", folder.display()))
            .fix("remove it, or use a shorter REPL_HOME"));
    }
    Ok(())
}

fn open_log(home: &Path) -> Done<File> {
    let path = home.join(LOG_FILE);
    if std::fs::metadata(&path).is_ok_and(|found| found.len() > LARGEST_LOG) {
        let older = home.join("control.log.1");
        std::fs::rename(&path, &older).map_err(|error| Complaint::file("move", &path, &error))?;
    }
    private::open(&path, OpenOptions::new().append(true))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_home_gets_a_short_socket() {
        assert_eq!(socket(Path::new("/home/ada/data")).unwrap(), Path::new("/home/ada/data/control.sock"));
        let home = PathBuf::from("/tmp").join("x".repeat(120));
        let path = socket(&home).unwrap();
        std::fs::remove_dir(path.parent().unwrap()).unwrap();
        assert!(path.as_os_str().len() <= LONGEST_SOCKET && path.starts_with("/tmp/"), "{path:?}");
    }

    #[test]
    fn a_child_may_warn_before_it_is_ready() {
        assert_eq!(warnings("ready\n"), Some(vec![]));
        assert_eq!(warnings("WARNING: x\nready\n"), Some(vec!["WARNING: x"]));
        for said in ["", "error: ready\n", "ready\nerror: it broke\n"] {
            assert_eq!(warnings(said), None, "{said:?}");
        }
    }

    #[test]
    fn versions_are_compared_as_numbers() {
        for (version, older) in [("0.0.9", true), ("0.1.0", false), ("0.10.0", false), ("1.0.0-rc1", false), ("", true)]
        {
            assert_eq!(is_older(version), older, "{version}");
        }
    }

    #[test]
    fn what_a_failed_start_said_is_passed_on() {
        let said = not_started(Path::new("/h"), "error: port 7 is taken\n  fix: use another");
        assert_eq!(said.to_string(), "error: the control plane did not start: port 7 is taken\n  fix: use another");
        assert_eq!(not_started(Path::new("/h"), "").fix.as_deref(), Some("see /h/control.log"));
    }
}
