//! The sandbox of a step: bubblewrap (`bwrap`) around the first process of a PID namespace, which starts the command. The keeper stays
//! outside, where the command cannot reach it: its log, its exit record, its socket and the job's control groups are not in the sandbox.
//! This module says what is visible there and tries whether one can be made; `keeper::start` makes it.

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde::{Deserialize, Serialize};
use std::ffi::{OsStr, OsString};
use std::io::{self, Read as _};
use std::os::fd::{AsFd as _, RawFd};
use std::path::{Path, PathBuf};
use std::process::{ChildStderr, Command, Stdio};
use std::sync::OnceLock;

/// `repl first FD PROGRAM…`: the first process in a sandbox.
pub const FIRST_WORD: &str = "first";
const PROGRAM: &str = "bwrap";
/// Where it is looked for beside the runner's own PATH.
const USUAL: &str = "/usr/local/bin:/usr/bin:/bin";
/// Empty for each sandbox, and its own. `/var/run` is a link to one of them.
const PRIVATE: [&str; 2] = ["/tmp", "/run"];
/// As root, some of these files can be written without any privilege.
const READ_ONLY: [&str; 2] = ["/proc/sys", "/proc/sysrq-trigger"];
/// Names in `/dev` of what a job with GPUs may open; `*` is any ending.
const GPU_DEVICES: [&str; 2] = ["nvidia*", "dri"];
/// Sockets of the user's session: they lie in folders that are not visible.
pub const UNSET: [&str; 2] = ["SSH_AUTH_SOCK", "XDG_RUNTIME_DIR"];

/// Far longer than a sandbox takes. A host is asked for all that it has within 30 s.
const PROBED_WITHIN_MS: u16 = 10_000;
const SAID_BYTES: usize = 4 << 10;

/// What a machine without a sandbox needs.
pub const FIX: &str =
    "install bubblewrap (Debian, Ubuntu: apt install bubblewrap); `repl doctor` on that host says what is missing";

/// One sandbox, as a keeper is told to make it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sandbox {
    pub bwrap: PathBuf,
    /// This very programme, and the name under which the command finds it.
    pub repl: PathBuf,
    pub repl_as: PathBuf,
    /// The host's network; without it there is only a loopback interface of its own.
    pub network: bool,
    /// Files and folders that are not visible: folders are empty, files are `/dev/null`.
    pub hidden: Vec<PathBuf>,
    /// Folders that are empty as well, but can be written: what is written there is gone with the sandbox.
    pub private: Vec<PathBuf>,
    /// Folders in which the command may write, at their own places; they may lie in what is hidden.
    pub writable: Vec<PathBuf>,
    pub devices: Vec<PathBuf>,
}

impl Sandbox {
    /// The arguments of bwrap up to the program. Everything is read-only but what is said otherwise; later mounts lie over earlier ones.
    pub fn arguments(&self, dir: &Path) -> Vec<OsString> {
        let mut all = Arguments(Vec::new());
        all.words(&["--die-with-parent", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--cap-drop", "ALL"]);
        if !self.network {
            all.words(&["--unshare-net"]);
        }
        all.words(&["--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"]);
        READ_ONLY.iter().for_each(|path| all.bind("--ro-bind-try", path.as_ref()));
        self.devices.iter().for_each(|path| all.bind("--dev-bind-try", path));
        let private = outermost(PRIVATE.iter().map(PathBuf::from).chain(self.private.iter().cloned()));
        private.iter().for_each(|path| all.push("--tmpfs", &[path.as_os_str()]));
        // In a private folder a file is not there anyway; a folder is, because something is bound into it.
        let hidden = outermost(self.hidden.iter().cloned());
        let hidden: Vec<&PathBuf> = hidden.iter().filter(|path| path.is_dir() || !lies_in(path, &private)).collect();
        for path in &hidden {
            match path.is_dir() {
                true => all.push("--tmpfs", &[path.as_os_str()]),
                false => all.push("--ro-bind", &["/dev/null".as_ref(), path.as_os_str()]),
            }
        }
        all.push("--ro-bind", &[self.repl.as_os_str(), self.repl_as.as_os_str()]);
        self.writable.iter().for_each(|path| all.bind("--bind", path));
        // Last: what was bound has made its folders there.
        for path in hidden.iter().filter(|path| path.is_dir()) {
            all.push("--remount-ro", &[path.as_os_str()]);
        }
        UNSET.iter().for_each(|name| all.push("--unsetenv", &[name.as_ref()]));
        all.push("--chdir", &[dir.as_os_str()]);
        all.words(&["--as-pid-1"]);
        all.0
    }

    /// The whole command line: bwrap tells on `info` which process is the first, and the first talks with the keeper on `line`.
    pub fn command(&self, dir: &Path, (line, info): (RawFd, RawFd), argv: &[String]) -> Command {
        let mut command = Command::new(&self.bwrap);
        command.args(self.arguments(dir)).args(["--info-fd", &info.to_string(), "--"]);
        command.arg(&self.repl_as).args([FIRST_WORD, &line.to_string()]).args(argv);
        command
    }
}

struct Arguments(Vec<OsString>);

impl Arguments {
    fn words(&mut self, words: &[&str]) {
        self.0.extend(words.iter().map(OsString::from));
    }
    fn push(&mut self, option: &str, values: &[&OsStr]) {
        self.0.push(option.into());
        self.0.extend(values.iter().map(OsString::from));
    }
    /// At its own place.
    fn bind(&mut self, option: &str, path: &Path) {
        self.push(option, &[path.as_os_str(), path.as_os_str()]);
    }
}

/// Those that lie in none of the others. The root is never among them: nothing would be left.
fn outermost(paths: impl Iterator<Item = PathBuf>) -> Vec<PathBuf> {
    let mut sorted: Vec<PathBuf> =
        paths.filter_map(|path| path.canonicalize().ok()).filter(|path| path.parent().is_some()).collect();
    sorted.sort();
    let mut kept: Vec<PathBuf> = Vec::new();
    for path in sorted {
        if !lies_in(&path, &kept) {
            kept.push(path);
        }
    }
    kept
}

fn lies_in(path: &Path, folders: &[PathBuf]) -> bool {
    folders.iter().any(|folder| path.starts_with(folder))
}

/// The user's own folder, by the environment and by the system's list of users.
pub fn homes() -> Vec<PathBuf> {
    let listed = nix::unistd::User::from_uid(nix::unistd::geteuid()).ok().flatten().map(|user| user.dir);
    // `/nonexistent` and the like are no folders of anybody's.
    std::env::var_os("HOME").map(PathBuf::from).into_iter().chain(listed).filter(|home| home.is_dir()).collect()
}

/// What of `/dev` a command may open beside the usual: the devices of GPUs, if it was given any.
pub fn devices(gpus: Option<&String>) -> Vec<PathBuf> {
    match gpus.map(|gpus| gpus.trim()) {
        None | Some("" | "-1") => Vec::new(),
        Some(_) => gpu_devices_in(Path::new("/dev")),
    }
}

fn gpu_devices_in(dev: &Path) -> Vec<PathBuf> {
    let is_one = |name: &str| {
        GPU_DEVICES.iter().any(|wanted| match wanted.strip_suffix('*') {
            Some(beginning) => name.starts_with(beginning),
            None => name == *wanted,
        })
    };
    let entries = std::fs::read_dir(dev).into_iter().flatten().flatten();
    entries.filter(|entry| entry.file_name().to_str().is_some_and(is_one)).map(|entry| entry.path()).collect()
}

/// The programme that makes sandboxes here.
pub fn program() -> Result<PathBuf, String> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(std::env::split_paths(USUAL)).collect::<Vec<_>>();
    let found = folders.iter().map(|folder| folder.join(PROGRAM)).find(|it| it.is_file());
    found.ok_or_else(|| "bubblewrap (bwrap) is not installed".to_owned())
}

/// What makes sandboxes on this machine, e.g. `bubblewrap 0.8.0`; otherwise why there are none. Only a success is remembered: a package
/// may be installed meanwhile.
pub fn can() -> Result<&'static str, String> {
    static WORKS: OnceLock<String> = OnceLock::new();
    if let Some(version) = WORKS.get() {
        return Ok(version);
    }
    let version = probe(true)?;
    Ok(WORKS.get_or_init(|| version))
}

/// Makes a sandbox and lets it go.
pub fn probe(network: bool) -> Result<String, String> {
    try_out(program()?, network, PROBED_WITHIN_MS)
}

fn try_out(bwrap: PathBuf, network: bool, within_ms: u16) -> Result<String, String> {
    let sandbox = Sandbox {
        repl: "/dev/null".into(),
        repl_as: "/run/repl".into(),
        bwrap,
        network,
        hidden: Vec::new(),
        private: homes(),
        writable: Vec::new(),
        devices: Vec::new(),
    };
    let mut command = Command::new(&sandbox.bwrap);
    command.args(sandbox.arguments(Path::new("/"))).args(["--", "/bin/sh", "-c", "echo works >&2"]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let failed = |error: io::Error| format!("bwrap cannot be started: {error}");
    let mut child = command.spawn().map_err(failed)?;
    let said = heard(child.stderr.take().expect("it is a pipe"), within_ms).map_err(failed)?;
    if said.is_none() {
        let _ = child.kill();
    }
    // Its word counts, not its exit code: a runner's reaper may have collected the child before this.
    let _ = child.wait();
    let said = said.ok_or_else(|| format!("bwrap said nothing for {} s", within_ms / 1000))?;
    let said = String::from_utf8_lossy(&said);
    match said.lines().next() {
        _ if said.lines().any(|line| line == "works") => Ok(version(&sandbox.bwrap)),
        Some(line) => Err(line.to_owned()),
        None => Err("bwrap ended without a word".to_owned()),
    }
}

/// What it says until it ends, or so much of it that no more is needed. None: it has said nothing for so long.
fn heard(mut from: ChildStderr, within_ms: u16) -> io::Result<Option<Vec<u8>>> {
    let (mut said, mut piece) = (Vec::new(), [0; 512]);
    while said.len() < SAID_BYTES {
        if poll(&mut [PollFd::new(from.as_fd(), PollFlags::POLLIN)], PollTimeout::from(within_ms))? == 0 {
            return Ok(None);
        }
        match from.read(&mut piece)? {
            0 => break,
            length => said.extend_from_slice(&piece[..length]),
        }
    }
    Ok(Some(said))
}

fn version(bwrap: &Path) -> String {
    let said = Command::new(bwrap).arg("--version").output().map(|done| done.stdout).unwrap_or_default();
    let said = String::from_utf8_lossy(&said).trim().to_owned();
    if said.is_empty() { "bubblewrap".to_owned() } else { said }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sandbox(hidden: &[&Path], writable: &[&Path]) -> Sandbox {
        Sandbox {
            bwrap: "/usr/bin/bwrap".into(),
            repl: "/bin/repl".into(),
            repl_as: "/h/bin/repl".into(),
            network: true,
            hidden: hidden.iter().map(PathBuf::from).collect(),
            private: Vec::new(),
            writable: writable.iter().map(PathBuf::from).collect(),
            devices: Vec::new(),
        }
    }

    fn text(sandbox: &Sandbox) -> String {
        let words: Vec<String> =
            sandbox.arguments(Path::new("/")).iter().map(|word| word.to_string_lossy().into_owned()).collect();
        words.join(" ")
    }

    #[test]
    fn a_bwrap_that_hangs_is_killed_and_makes_no_sandbox() {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("bwrap");
        std::fs::write(&program, "#!/bin/sh\nexec cat /dev/zero >/dev/null\n").unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o700)).unwrap();
        assert_eq!(try_out(program, true, 100), Err("bwrap said nothing for 0 s".to_owned()));
    }

    #[test]
    fn a_workdir_lies_over_what_hides_its_neighbours() {
        let said = text(&sandbox(&[Path::new("/usr/share")], &[Path::new("/usr/share/work")]));
        let at = |part: &str| said.find(part).unwrap_or_else(|| panic!("{part}: {said}"));
        assert!(at("--ro-bind / /") < at("--tmpfs /usr/share "));
        assert!(at("--tmpfs /usr/share ") < at("--bind /usr/share/work /usr/share/work"));
        assert!(at("--bind /usr/share/work ") < at("--remount-ro /usr/share "));
        assert!(!said.contains("--unshare-net"));
        let none = Sandbox { network: false, ..sandbox(&[], &[]) };
        assert!(text(&none).contains("--unshare-net"));
    }

    #[test]
    fn gpus_are_found_by_the_names_of_their_devices() {
        let dev = tempfile::tempdir().unwrap();
        for name in ["nvidia0", "nvidiactl", "null", "drifter"] {
            std::fs::write(dev.path().join(name), "").unwrap();
        }
        std::fs::create_dir(dev.path().join("dri")).unwrap();
        let mut found = gpu_devices_in(dev.path());
        found.sort();
        assert_eq!(found, ["dri", "nvidia0", "nvidiactl"].map(|name| dev.path().join(name)));
        let said = text(&Sandbox { devices: found, ..sandbox(&[], &[]) });
        assert!(said.contains("--dev-bind-try") && said.contains("nvidiactl"), "{said}");
    }

    #[test]
    fn nothing_hides_the_root_and_nothing_is_hidden_twice() {
        let dir = tempfile::tempdir_in("/tmp").unwrap();
        let said =
            text(&sandbox(&[Path::new("/"), dir.path(), Path::new("/usr/share/doc"), Path::new("/usr/share")], &[]));
        assert!(!said.contains("--tmpfs / "), "{said}");
        let at = |part: &str| said.find(part).unwrap_or_else(|| panic!("{part}: {said}"));
        assert!(at("--tmpfs /tmp ") < at(&format!("--tmpfs {}", dir.path().display())), "{said}");
        assert!(said.contains("--tmpfs /usr/share ") && !said.contains("--tmpfs /usr/share/doc"), "{said}");
        let file = text(&sandbox(&[Path::new("/etc/passwd")], &[]));
        assert!(file.contains("--ro-bind /dev/null /etc/passwd") && !file.contains("--remount-ro"), "{file}");
    }
}
