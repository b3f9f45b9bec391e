//! `repl doctor`: what works on this machine and what is missing, each with its fix. Changes nothing and starts nothing. What runs depend
//! on is asked of the control plane, which may be in another control group than this command, or on another machine.

use crate::complaint::{self, Complaint, Done, REFUSED};
use crate::control_plane::ControlPlane;
use crate::embedded;
use crate::settings::Settings;
use crate::show::{self, Colour, paint};
use runner::Way;
use serde::Serialize;
use std::borrow::Cow;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use wire::api::{BalanceView, Finding, Health, Page};
use wire::client::Client;

/// Below this a run's log or a database may not find room.
const ENOUGH_DISK: u64 = 1 << 30;
/// A control plane with its runners and followers; below it, many at once may fail.
const ENOUGH_FILES: u64 = 1024;
/// File systems on which a database's shared memory does not work.
const NETWORK_FILE_SYSTEMS: &[(i64, &str)] =
    &[(0x6969, "NFS"), (0xff53_4d42, "CIFS"), (0x517b, "SMB"), (0x0102_1997, "9p"), (0x6573_5546, "FUSE")];

/// Say what works on this machine and what is missing, with the fix
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  repl doctor
  repl doctor --json | jq '.[] | select(.state != \"fine\")'")]
pub struct DoctorArgs {
    #[command(flatten)]
    json: crate::args::Json,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum State {
    Fine,
    /// Works, with less.
    Limited,
    Broken,
}

#[derive(Debug, Serialize)]
struct Check {
    check: Cow<'static, str>,
    state: State,
    detail: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    fix: Option<String>,
}

impl Check {
    fn fine(check: &'static str, detail: impl Into<String>) -> Check {
        Check { check: check.into(), state: State::Fine, detail: detail.into(), fix: None }
    }
    fn limited(check: &'static str, detail: impl Into<String>, fix: impl Into<String>) -> Check {
        Check { check: check.into(), state: State::Limited, detail: detail.into(), fix: Some(fix.into()) }
    }
    fn broken(check: &'static str, detail: impl Into<String>, fix: impl Into<String>) -> Check {
        Check { check: check.into(), state: State::Broken, detail: detail.into(), fix: Some(fix.into()) }
    }
}

pub async fn doctor(settings: &Settings, args: DoctorArgs) -> Done {
    let mut checks = vec![
        Check::fine("version", format!("repl {}", env!("CARGO_PKG_VERSION"))),
        settings_files(settings),
        home(&settings.home),
        installation(settings),
        disk(&nearest_existing(&settings.home)),
        file_system(&nearest_existing(&settings.home)),
        socket(settings),
    ];
    let (reached, client) = control_plane(settings).await;
    checks.extend(reached);
    checks.extend(of_runs(client.as_ref(), settings.url.as_deref()).await);
    let broken = checks.iter().any(|check| check.state == State::Broken);
    if args.json.json {
        show::json(&checks)?;
    } else {
        checks.iter().for_each(print);
    }
    Ok(if broken { REFUSED } else { 0 })
}

/// Of a control plane's findings those that are about its data folder, which the command has looked at itself if it is the same.
const OF_FOLDER: [&str; 3] = ["data folder", "disk", "file system"];

/// What runs depend on, as the control plane finds it. Without one it is what the next command's control plane will inherit from here.
/// `url` names a control plane that need not be on this machine.
async fn of_runs(client: Option<&Client>, url: Option<&str>) -> Vec<Check> {
    const CHECK: &str = "checked by";
    let asked = match client {
        Some(client) => client.get::<Page<Finding>>("/api/v1/doctor").await.map_err(|error| error.to_string()),
        None if url.is_none() => return machine().into(),
        None => Err("it could not be asked".to_owned()),
    };
    match asked {
        Ok(page) => {
            let found = page.data.into_iter().filter(|it| url.is_some() || !OF_FOLDER.contains(&it.check.as_str()));
            let by = url.map_or_else(|| "the control plane".to_owned(), |url| format!("the control plane at {url}"));
            let by = Check::fine(CHECK, format!("{by}, which begins the runs: what follows holds for it"));
            std::iter::once(by).chain(found.map(Check::from)).collect()
        }
        Err(why) => {
            let detail = format!("this command: what follows holds here, not for the control plane ({why})");
            let by = Check::limited(CHECK, detail, "ask with a token that has the scope admin");
            std::iter::once(by).chain(machine()).collect()
        }
    }
}

impl From<Finding> for Check {
    fn from(found: Finding) -> Check {
        let state = match found.state.as_str() {
            "fine" => State::Fine,
            "broken" => State::Broken,
            _ => State::Limited,
        };
        Check { check: found.check.into(), state, detail: found.detail, fix: found.fix }
    }
}

/// What runs on this machine depend on.
fn machine() -> [Check; 7] {
    [containment(), limits(), namespaces(), open_files(), shell(), sandbox(), ssh()]
}

/// What a control plane says of its own machine, for its pages. `folder` is its data folder.
pub fn findings(folder: &Path) -> Vec<Finding> {
    let place = nearest_existing(folder);
    let checks = [home(folder), disk(&place), file_system(&place)].into_iter().chain(machine());
    let state = |state: State| match state {
        State::Fine => "fine",
        State::Limited => "limited",
        State::Broken => "broken",
    };
    let finding = |it: Check| Finding {
        check: it.check.into_owned(),
        state: state(it.state).into(),
        detail: it.detail,
        fix: it.fix,
    };
    checks.map(finding).collect()
}

fn print(check: &Check) {
    let mark = match check.state {
        State::Fine => paint(Colour::Green, "✓"),
        State::Limited => paint(Colour::Yellow, "!"),
        State::Broken => paint(Colour::Red, "✗"),
    };
    /// Where details begin.
    const INDENT: usize = 19;
    println!("{mark} {:<16} {}", check.check, show::wrapped(&check.detail, INDENT, INDENT));
    if let Some(fix) = &check.fix {
        println!("  {:<16} {}", "", show::wrapped(&paint(Colour::Dim, &format!("fix: {fix}")), INDENT, INDENT + 5));
    }
}

fn settings_files(settings: &Settings) -> Check {
    let files: Vec<String> = settings.files.iter().map(|path| path.display().to_string()).collect();
    Check::fine("settings", if files.is_empty() { "defaults and environment".to_owned() } else { files.join(", ") })
}

fn home(folder: &Path) -> Check {
    let home = folder.display();
    let place = nearest_existing(folder);
    if nix::unistd::access(&place, nix::unistd::AccessFlags::W_OK).is_err() {
        return Check::broken("data folder", format!("{home} cannot be written"), "set REPL_HOME to a folder of yours");
    }
    match std::fs::metadata(folder) {
        Ok(found) if found.uid() != nix::unistd::geteuid().as_raw() => Check::broken(
            "data folder",
            format!("{home} belongs to another user (uid {})", found.uid()),
            "run repl as that user, or set REPL_HOME to a folder of yours",
        ),
        Ok(found) if found.mode() & 0o077 != 0 => {
            Check::limited("data folder", format!("{home} is open to others"), format!("chmod 700 {home}"))
        }
        Ok(_) => Check::fine("data folder", home.to_string()),
        Err(_) => Check::fine("data folder", format!("{home} (made by the first run)")),
    }
}

/// Without this file machines cannot be recognised after the loss of the database, nor secrets be read.
fn installation(settings: &Settings) -> Check {
    let path = settings.home.join("installation.json");
    let detail = match path.exists() {
        true => format!("back up {}: with it runs can be tracked again after the loss of the database", path.display()),
        false => format!("{} (made by the first run): back it up then", path.display()),
    };
    Check::fine("identity", detail)
}

fn disk(place: &Path) -> Check {
    match nix::sys::statvfs::statvfs(place) {
        Ok(found) => {
            let free = found.blocks_available() * found.fragment_size();
            let text = format!("{} free", show::size(free as i64));
            if free >= ENOUGH_DISK {
                Check::fine("disk", text)
            } else {
                Check::limited("disk", text, "free some space, or set REPL_HOME to a larger disk")
            }
        }
        Err(error) => Check::limited("disk", format!("cannot ask: {error}"), "check the data folder"),
    }
}

fn file_system(place: &Path) -> Check {
    let kind = nix::sys::statfs::statfs(place).map(|found| found.filesystem_type().0 & 0xffff_ffff);
    let network = kind.ok().and_then(|kind| NETWORK_FILE_SYSTEMS.iter().find(|(magic, _)| *magic == kind));
    match network {
        Some((_, name)) => Check::broken(
            "file system",
            format!("the data folder is on {name}, where the database would not be safe"),
            "set REPL_HOME to a local disk, or use PostgreSQL (REPL_DATABASE)",
        ),
        None => Check::fine("file system", "local"),
    }
}

fn socket(settings: &Settings) -> Check {
    match embedded::socket(&settings.home) {
        Ok(path) if path.starts_with(&settings.home) => Check::fine("socket", path.display().to_string()),
        Ok(path) => Check::fine("socket", format!("{} (the data folder's path is too long for one)", path.display())),
        Err(complaint) => Check::broken("socket", complaint.text, complaint.fix.unwrap_or_default()),
    }
}

/// Whether it answers and knows us, and what to ask it by if both is so.
async fn control_plane(settings: &Settings) -> (Vec<Check>, Option<Client>) {
    let plane = match ControlPlane::find(settings) {
        Ok(Some(plane)) => plane,
        Ok(None) => return (vec![Check::fine("control plane", "not running (the next command starts it)")], None),
        Err(complaint) => {
            let fix = complaint.fix.unwrap_or_default();
            return (vec![Check::broken("control plane", complaint.text, fix)], None);
        }
    };
    let client = plane.client();
    let ready = ready(settings, &client).await;
    if ready.state != State::Fine {
        return (vec![ready], None);
    }
    match client.get::<BalanceView>("/api/v1/credits").await {
        Ok(balance) => {
            let detail = format!("organisation {}, {} credits", balance.org, balance.available);
            (vec![ready, Check::fine("access", detail)], Some(client))
        }
        Err(error) => {
            let access = Check::broken("access", error.to_string(), complaint::signing_in(client.base()));
            (vec![ready, access], None)
        }
    }
}

async fn ready(settings: &Settings, client: &Client) -> Check {
    match client.get::<Health>("/readyz").await {
        Ok(health) => {
            let version = health.version.map(|version| format!(", version {version}")).unwrap_or_default();
            let from = settings
                .url_from
                .as_ref()
                .map_or_else(|| ", of this home".to_owned(), |from| format!(", named by {from}"));
            Check::fine("control plane", format!("{} at {}{version}{from}", health.status, client.base()))
        }
        Err(error) => match complaint::other_scheme(&error, client.base()) {
            Some((spoken, right)) => Check::broken(
                "control plane",
                format!("{}: this port speaks {spoken}", client.base()),
                format!("use {right}"),
            ),
            None => {
                let said = Complaint::of_answer(&error, client.base()).text;
                Check::broken("control plane", said, fix_of_reach(settings))
            }
        },
    }
}

fn fix_of_reach(settings: &Settings) -> String {
    match &settings.url {
        Some(_) => {
            let from = settings.url_from.as_ref().map_or_else(String::new, |from| format!("is {from} right, and "));
            format!("{from}is the control plane running there?")
        }
        None => format!("see {}; `repl control stop` and try again", settings.home.join(embedded::LOG_FILE).display()),
    }
}

/// Which way is used, and why not a better one.
fn containment() -> Check {
    const CHECK: &str = "containment";
    let found = runner::containment(None);
    if let Some(nonsense) = found.nonsense {
        let said = format!("REPL_CONTAINMENT is {nonsense}, which is no way: ignored");
        return Check::broken(CHECK, said, "set it to cgroup, pidns or sweep, or not at all");
    }
    let why: Vec<String> = found.passed_over.iter().map(|(way, why)| format!("{way}: {why}")).collect();
    let instead = format!("; not by {}", why.join(", nor by "));
    let chosen = std::env::var_os("REPL_CONTAINMENT").is_some_and(|choice| !choice.is_empty());
    let or_unset = if chosen { "unset REPL_CONTAINMENT, or " } else { "" };
    match found.way {
        Way::Cgroup => Check::fine(CHECK, "by cgroup: whatever a run leaves behind is ended with it"),
        Way::Namespace { user: false } => {
            Check::fine(CHECK, format!("by pidns: the kernel ends whatever is in a run's PID namespace{instead}"))
        }
        Way::Namespace { user: true } => Check::limited(
            CHECK,
            format!("by pidns in a user namespace, in which sudo and the like do not work{instead}"),
            "let this user write to a cgroup (systemd: Delegate=yes), or set REPL_CONTAINMENT=sweep",
        ),
        Way::Sweep => Check::limited(
            CHECK,
            format!("by sweep: what a run leaves behind is looked for by descent and by environment{instead}"),
            format!("{or_unset}let this user write to a cgroup (systemd: Delegate=yes) or make user namespaces"),
        ),
    }
}

/// Whether `--memory` and `--cpu` can be enforced.
fn limits() -> Check {
    limits_of(runner::limits("memory"), runner::limits("cpu"), nix::unistd::geteuid().is_root())
}

/// `memory` and `cpu` name the version of control groups that can limit it, if one can.
fn limits_of(memory: Option<&str>, cpu: Option<&str>, is_root: bool) -> Check {
    let fix = if is_root {
        "make a cgroup with the memory and cpu controllers writable here (docs/containment.md)"
    } else {
        "run the control plane in a cgroup of your own: repl control stop, then \
         systemd-run --user --scope -p Delegate=yes repl control start (docs/containment.md)"
    };
    match (memory, cpu) {
        (Some(memory), Some(cpu)) if memory == cpu => {
            Check::fine("limits", format!("--memory and --cpu are enforced (cgroup {memory})"))
        }
        (Some(memory), Some(cpu)) => {
            Check::fine("limits", format!("--memory (cgroup {memory}) and --cpu (cgroup {cpu}) are enforced"))
        }
        (Some(memory), None) => Check::limited(
            "limits",
            format!("only --memory is enforced (cgroup {memory}), --cpu only chooses a machine"),
            fix,
        ),
        (None, Some(cpu)) => Check::limited(
            "limits",
            format!("only --cpu is enforced (cgroup {cpu}), --memory only chooses a machine"),
            fix,
        ),
        (None, None) => Check::limited("limits", "--memory and --cpu choose a machine but are not enforced on it", fix),
    }
}

fn namespaces() -> Check {
    let number = |path: &str| std::fs::read_to_string(path).ok().and_then(|text| text.trim().parse::<i64>().ok());
    let allowed = number("/proc/sys/user/max_user_namespaces").unwrap_or(0) > 0
        && number("/proc/sys/kernel/unprivileged_userns_clone").unwrap_or(1) != 0
        && number("/proc/sys/kernel/apparmor_restrict_unprivileged_userns").unwrap_or(0) == 0;
    if allowed {
        Check::fine("user namespaces", "allowed")
    } else {
        Check::limited("user namespaces", "not allowed for this user", "sysctl user.max_user_namespaces=10000")
    }
}

fn open_files() -> Check {
    match nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE) {
        Ok((_, hard)) if hard < ENOUGH_FILES => {
            Check::limited("open files", format!("at most {hard}"), "raise the limit: ulimit -Hn 4096")
        }
        Ok((soft, hard)) => Check::fine("open files", format!("{soft}, up to {hard}")),
        Err(error) => Check::limited("open files", error.to_string(), "raise the limit: ulimit -Hn 4096"),
    }
}

fn shell() -> Check {
    match nix::unistd::access("/bin/sh", nix::unistd::AccessFlags::X_OK) {
        Ok(()) => Check::fine("shell", "/bin/sh"),
        Err(_) => Check::broken(
            "shell",
            "/bin/sh is missing, so -c cannot work",
            "install a shell, or use `repl run -- ARGV`",
        ),
    }
}

/// What the provider `ssh` needs here. An agent that has left is the usual reason why a key that worked is refused.
fn ssh() -> Check {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let client = std::env::split_paths(&path).map(|folder| folder.join("ssh")).find(|file| file.is_file());
    let agent = std::env::var_os("SSH_AUTH_SOCK").filter(|socket| !socket.is_empty()).map(std::path::PathBuf::from);
    ssh_of(client, agent)
}

fn ssh_of(client: Option<std::path::PathBuf>, agent: Option<std::path::PathBuf>) -> Check {
    let Some(client) = client else {
        return Check::limited("ssh", "there is no `ssh`: no hosts by ssh", "install the OpenSSH client");
    };
    match agent {
        Some(socket) if !socket.exists() => Check::limited(
            "ssh",
            format!("the agent is gone: SSH_AUTH_SOCK names {}, which does not exist", socket.display()),
            "start `repl control` where an agent runs, or name a key: repl provider add ssh … --identity FILE",
        ),
        Some(_) => Check::fine("ssh", format!("{}, with an agent", client.display())),
        None => Check::fine("ssh", format!("{}, without an agent", client.display())),
    }
}

/// Makes a sandbox, with and without a network. Without one the boundary is the user.
fn sandbox() -> Check {
    let user = nix::unistd::User::from_uid(nix::unistd::getuid()).ok().flatten();
    let user = user.map_or_else(|| nix::unistd::getuid().to_string(), |user| user.name);
    let others = format!("runs without one act as the user {user} and can see its files and each other");
    match (runner::sandbox(), runner::sandbox_without_network()) {
        (Ok(version), Ok(())) => {
            Check::fine("sandbox", format!("{version}, with and without a network; {others} (docs/sandbox.md)"))
        }
        (Ok(version), Err(why)) => Check::limited(
            "sandbox",
            format!("{version}, but not without a network: {why}; {others}"),
            "let this user make network namespaces",
        ),
        (Err(why), _) => Check::limited(
            "sandbox",
            format!("none ({why}): {others}; tools that start processes are refused for models"),
            format!(
                "{}; else run only what you would run yourself, or give Remuda a user of its own",
                runner::SANDBOX_FIX
            ),
        ),
    }
}

/// The folder itself, or the one in which it would be made.
fn nearest_existing(path: &Path) -> std::path::PathBuf {
    path.ancestors().find(|it| it.exists()).unwrap_or(Path::new("/")).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_home_is_judged_before_it_exists() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("a/b/c");
        assert_eq!(nearest_existing(&place), dir.path());
        assert_eq!(disk(dir.path()).check, "disk");
        assert_eq!(file_system(dir.path()).state, State::Fine);
    }

    #[test]
    fn limits_are_told_with_the_way_to_get_them() {
        let (both, mixed) = (limits_of(Some("v2"), Some("v2"), true), limits_of(Some("v1"), Some("v2"), false));
        assert!(both.state == State::Fine && both.fix.is_none());
        assert_eq!(both.detail, "--memory and --cpu are enforced (cgroup v2)");
        assert_eq!(mixed.detail, "--memory (cgroup v1) and --cpu (cgroup v2) are enforced");
        for (memory, cpu, detail) in [
            (Some("v1"), None, "only --memory is enforced (cgroup v1), --cpu only chooses a machine"),
            (None, Some("v1"), "only --cpu is enforced (cgroup v1), --memory only chooses a machine"),
            (None, None, "--memory and --cpu choose a machine but are not enforced on it"),
        ] {
            for (is_root, fix) in
                [(true, "make a cgroup with the memory and cpu"), (false, "systemd-run --user --scope")]
            {
                let found = limits_of(memory, cpu, is_root);
                assert_eq!((found.state, found.detail.as_str()), (State::Limited, detail));
                assert!(found.fix.as_ref().is_some_and(|said| said.contains(fix)), "{:?}", found.fix);
            }
        }
    }

    #[test]
    fn an_agent_that_has_left_is_named() {
        let client = || Some(std::path::PathBuf::from("/usr/bin/ssh"));
        let gone = ssh_of(client(), Some("/nowhere/agent.7".into()));
        assert!(gone.state == State::Limited && gone.detail.contains("/nowhere/agent.7"), "{}", gone.detail);
        assert_eq!(ssh_of(client(), Some("/".into())).state, State::Fine);
        assert_eq!(ssh_of(client(), None).state, State::Fine);
        assert!(ssh_of(None, None).detail.contains("no `ssh`"));
    }
}
