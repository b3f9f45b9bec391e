//! Machines that are processes of this host: a directory each, with a detached runner in it. Owns starting, finding and
//! ending them. Never touches a process or directory whose nonce is not the one it was asked for.

mod home;
mod host;
pub(crate) mod lock;
mod process;
mod socket;
mod trouble;

use crate::provider::{
    Capabilities, Handle, ListAsk, Listed, ListedPage, Order, Platform, Provider, ProviderFuture, Reach, Seen,
    is_workdir,
};
use home::{Home, Life};
pub(crate) use host::facts;
use model::boot::{Boot, SocketAnswer, SocketAsk};
use model::orphan::{ListedStatus, ResourceType};
use model::spec::{Resources, Sandbox};
use model::{Credits, Timestamp, Trouble, TroubleKind, crash_point, names};
use nix::sys::signal::Signal;
use nix::unistd::{User, geteuid};
use process::Living;
pub(crate) use process::Trace;
use std::ffi::OsStr;
use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, OnceLock};
use std::time::Duration;
pub(crate) use trouble::at;
use trouble::{busy, silent, stranger};

pub const REGION: &str = "local";
pub const DEFAULT_PRICE: Credits = Credits(10_000);

/// Held while the living are counted and one more is started.
const ROOM_LOCK_FILE: &str = ".room.lock";
/// A directory on its way out: no longer a machine, perhaps not yet all deleted.
const FORGOTTEN: &str = ".forgotten-";
/// How long each step may take before the next, harder one. A runner that is asked politely ends its jobs first, so that
/// has the longest.
#[derive(Debug, Clone)]
pub struct LocalTimeouts {
    pub answer: Duration,
    pub shutdown: Duration,
    pub sigterm: Duration,
    pub sigkill: Duration,
    pub cleanup: Duration,
}

impl Default for LocalTimeouts {
    fn default() -> LocalTimeouts {
        LocalTimeouts {
            answer: Duration::from_secs(5),
            shutdown: Duration::from_secs(20),
            sigterm: Duration::from_secs(3),
            sigkill: Duration::from_secs(5),
            cleanup: Duration::from_secs(30),
        }
    }
}

#[derive(Debug, Clone)]
pub struct LocalSettings {
    /// As runs and pools name the provider.
    pub name: String,
    /// Where the instances' directories are.
    pub root: PathBuf,
    /// Started as `exe runner --dir DIR`. A path that stays valid when the binary on disk is replaced: `/proc/self/exe`.
    pub exe: PathBuf,
    pub max_instances: i64,
    /// What each of them has: all that this host has. They share it, and what a job may use of it is limited with the job.
    pub size: Resources,
    pub price_per_hour: Credits,
    pub timeouts: LocalTimeouts,
    /// Of plain tasks that do not say whether they want one.
    pub sandbox: Option<Sandbox>,
    /// Whether this host can make sandboxes; otherwise why not.
    pub can_sandbox: fn() -> Result<(), String>,
    /// Files and folders of the control plane that no job in a sandbox may see.
    pub hidden: Vec<PathBuf>,
    /// Words before the runner's own: a program that starts it where it is not ended with a login.
    pub before: Vec<String>,
}

impl LocalSettings {
    /// As many instances as cores, each at the default price.
    pub fn new(root: impl Into<PathBuf>, exe: impl Into<PathBuf>) -> LocalSettings {
        LocalSettings {
            name: crate::registry::LOCAL.to_owned(),
            root: root.into(),
            exe: exe.into(),
            max_instances: host::cores(),
            size: host::size(),
            price_per_hour: DEFAULT_PRICE,
            timeouts: LocalTimeouts::default(),
            sandbox: None,
            can_sandbox: || Ok(()),
            hidden: Vec::new(),
            before: Vec::new(),
        }
    }
}

#[derive(Debug, Clone)]
pub struct LocalProvider {
    settings: Arc<LocalSettings>,
}

impl LocalProvider {
    pub fn new(settings: LocalSettings) -> LocalProvider {
        LocalProvider { settings: Arc::new(settings) }
    }

    /// The same machines, whose runners are started by these words.
    pub(crate) fn started_by(&self, before: Vec<String>) -> LocalProvider {
        LocalProvider::new(LocalSettings { before, ..LocalSettings::clone(&self.settings) })
    }

    /// Everything here waits for files, locks and processes, so it runs where waiting is allowed.
    fn act<'a, T: Send + 'static>(
        &self,
        what: impl FnOnce(LocalProvider) -> Result<T, Trouble> + Send + 'static,
    ) -> ProviderFuture<'a, T> {
        let provider = self.clone();
        Box::pin(async move {
            match tokio::task::spawn_blocking(move || what(provider)).await {
                Ok(result) => result,
                Err(error) => Err(Trouble::internal(format!("the local provider failed: {error}")).perhaps()),
            }
        })
    }

    /// Only names of ours become paths, so no handle leads out of the root.
    fn home(&self, name: &str) -> Result<Home, Trouble> {
        match names::parse(name) {
            Some(_) => Ok(Home { dir: self.settings.root.join(name) }),
            None => Err(Trouble::new(TroubleKind::InvalidSpec, format!("`{name}` is not the name of an instance"))),
        }
    }

    fn spawn_now(&self, order: &Order) -> Result<Handle, Trouble> {
        let name = &order.boot.name;
        let home = self.home(name)?;
        if !self.settings.root.is_dir() {
            let made = DirBuilder::new().recursive(true).mode(0o700).create(&self.settings.root);
            made.map_err(at(&self.settings.root))?;
        }
        let change = home.create()?;
        let hidden = self.settings.hidden.iter().map(|path| path.display().to_string()).collect();
        let started = self.ensure_runner(&home, &Boot { hidden, ..order.boot.clone() });
        if started.is_err() && change.fresh {
            // Nothing half-done stays behind; another who waits for this directory makes a new one.
            let _ = folder::remove(&home.dir);
        }
        started.map(|()| Handle(name.clone()))
    }

    fn ensure_runner(&self, home: &Home, boot: &Boot) -> Result<(), Trouble> {
        if home.is_terminated() {
            let what = format!("{} was terminated: a machine's name is used once", boot.name);
            return Err(Trouble::new(TroubleKind::NotFound, what));
        }
        let before = home.boot()?;
        if before.as_ref().is_some_and(|before| before.nonce != boot.nonce) {
            return Err(stranger(home));
        }
        if before.as_ref() != Some(boot) {
            home.write_boot(boot)?;
        }
        if !matches!(home.life()?, Life::None) {
            return Ok(());
        }
        self.start_runner(home)
    }

    fn start_runner(&self, home: &Home) -> Result<(), Trouble> {
        let _room = lock::take(&self.settings.root.join(ROOM_LOCK_FILE))?;
        let living = self.count_living(home)?;
        if living >= self.settings.max_instances {
            let what = format!(
                "{living} local instances are running and {} are allowed: wait, or raise [providers.{}] max_instances",
                self.settings.max_instances, self.settings.name
            );
            return Err(Trouble::new(TroubleKind::Capacity, what));
        }
        let mut child = crash_point!("local.start", self.start(home, &self.settings.before, &[]))?;
        // Until it is reaped its pid cannot be given to another.
        let recorded = match Trace::of(child.id() as i32) {
            Ok(Some(trace)) => home.write_trace(&trace),
            Ok(None) => Ok(()),
            Err(error) => Err(at(&home.dir)(error)),
        };
        if recorded.is_err() {
            let _ = child.kill();
        }
        process::reap(child);
        recorded
    }

    fn start(&self, home: &Home, before: &[String], more: &[&OsStr]) -> Result<std::process::Child, Trouble> {
        let log = home.log()?;
        let mut args: Vec<&OsStr> = vec!["runner".as_ref(), "--dir".as_ref(), home.dir.as_ref()];
        args.extend(more);
        process::start(before, &self.settings.exe, &args, &home.dir, &log).map_err(|error| self.cannot_start(error))
    }

    fn cannot_start(&self, error: io::Error) -> Trouble {
        let exe = self.settings.exe.display();
        match error.raw_os_error() {
            Some(libc::ENOENT | libc::EACCES | libc::ENOEXEC | libc::ENOTDIR) => Trouble::new(
                TroubleKind::InvalidSpec,
                format!(
                    "cannot start {exe} as a runner ({error}): put the repl binary back and restart the control plane"
                ),
            ),
            Some(libc::EAGAIN | libc::ENOMEM) => Trouble::new(
                TroubleKind::Capacity,
                format!("this host has no room for another process ({error}): end some, or raise its process limit"),
            ),
            _ => at(&self.settings.exe)(error),
        }
    }

    fn inspect_now(&self, name: &str, nonce: &str) -> Result<Seen, Trouble> {
        let home = self.home(name)?;
        if !home.exists() || home.is_terminated() {
            return Ok(Seen::Gone);
        }
        if home.boot()?.is_some_and(|boot| boot.nonce != nonce) {
            return Ok(Seen::Stranger);
        }
        match home.life_if_settled()? {
            Some(Life::None) => Ok(if home.exists() { Seen::RunnerGone } else { Seen::Gone }),
            None => Err(busy(&home)),
            Some(Life::Unknown) => match self.ask(&home, &SocketAsk::Identify) {
                Ok((answer, _)) => Ok(if answer.nonce == nonce { Seen::Alive } else { Seen::Stranger }),
                Err(_) => Err(silent(&home)),
            },
            Some(Life::Known(_)) => match self.ask(&home, &SocketAsk::Identify) {
                Ok((answer, _)) if answer.nonce != nonce => Ok(Seen::Stranger),
                Ok(_) => Ok(Seen::Alive),
                // Starting, stopped or stuck; but it is the process we started here, and it ended or it is alive.
                Err(_) => match home.life_if_settled()? {
                    Some(Life::None) => Ok(Seen::RunnerGone),
                    Some(_) => Ok(Seen::Alive),
                    None => Err(busy(&home)),
                },
            },
        }
    }

    fn terminate_now(&self, name: &str, nonce: &str) -> Result<(), Trouble> {
        let home = self.home(name)?;
        let Some(change) = home.change()? else { return Ok(()) };
        if home.is_terminated() {
            return Ok(());
        }
        let nonce = &self.nonce_to_end(&home, nonce)?;
        if let Some(living) = self.living(&home, nonce)? {
            self.end(&home, &living, nonce)?;
        }
        if !change.fresh {
            crash_point!("local.clean_up", self.clean_up(&home))?;
        }
        home.mark_terminated()
    }

    /// The nonce by which the machine's runner is ended, if the caller means this machine. An empty one means a folder whose nonce cannot be
    /// read: what its runner says counts there.
    fn nonce_to_end(&self, home: &Home, nonce: &str) -> Result<String, Trouble> {
        if !nonce.is_empty() {
            return match home.boot()? {
                Some(boot) if boot.nonce != nonce => Err(stranger(home)),
                _ => Ok(nonce.to_owned()),
            };
        }
        match home.boot() {
            Ok(Some(_)) => Err(stranger(home)),
            Ok(None) | Err(_) => {
                let said = self.ask(home, &SocketAsk::Identify).map(|(answer, _)| answer.nonce);
                Ok(said.unwrap_or_default())
            }
        }
    }

    /// The process to end. If its pid is not recorded yet, it first proves its nonce over the socket, and is recorded.
    fn living(&self, home: &Home, nonce: &str) -> Result<Option<Living>, Trouble> {
        match home.life()? {
            Life::None => Ok(None),
            Life::Known(living) => Ok(Some(living)),
            Life::Unknown => match self.ask(home, &SocketAsk::Identify) {
                Ok((answer, _)) if answer.nonce != nonce => Err(stranger(home)),
                Ok((_, Some(trace))) => {
                    home.write_trace(&trace)?;
                    trace.hold().map_err(at(&home.dir))
                }
                Ok((_, None)) | Err(_) => Err(silent(home)),
            },
        }
    }

    /// Asks, then insists, then kills. Each step is bounded, and each is tried only on the process we hold.
    fn end(&self, home: &Home, living: &Living, nonce: &str) -> Result<(), Trouble> {
        let timeouts = &self.settings.timeouts;
        let ended = |within| living.ends_within(within).map_err(at(&home.dir));
        match self.ask(home, &SocketAsk::Shutdown { nonce: nonce.to_owned() }) {
            Ok((answer, _)) if answer.nonce != nonce || answer.refused.is_some() => return Err(stranger(home)),
            Ok(_) if ended(timeouts.shutdown)? => return Ok(()),
            Ok(_) | Err(_) => {}
        }
        for (signal, within) in [(Signal::SIGTERM, timeouts.sigterm), (Signal::SIGKILL, timeouts.sigkill)] {
            living.signal(signal).map_err(at(&home.dir))?;
            if ended(within)? {
                return Ok(());
            }
        }
        let what = format!("the runner in {} does not end: asked again later", home.dir.display());
        Err(Trouble::new(TroubleKind::Timeout, what))
    }

    fn ask(&self, home: &Home, ask: &SocketAsk) -> io::Result<(SocketAnswer, Option<Trace>)> {
        socket::ask(&home.dir, ask, self.settings.timeouts.answer)
    }

    /// Ends keepers and processes that a runner left when it died.
    fn clean_up(&self, home: &Home) -> Result<(), Trouble> {
        let within = self.settings.timeouts.cleanup;
        let mut child = self.start(home, &[], &["--end".as_ref()])?;
        let in_time = match Trace::of(child.id() as i32).and_then(|trace| trace.map_or(Ok(None), |trace| trace.hold()))
        {
            Ok(Some(living)) => living.ends_within(within).map_err(at(&home.dir))?,
            Ok(None) => true,
            Err(error) => return Err(at(&home.dir)(error)),
        };
        if !in_time {
            let _ = child.kill();
        }
        let status = child.wait().map_err(at(&home.dir))?;
        match (in_time, status.success()) {
            (true, true) => Ok(()),
            (false, _) => Err(Trouble::new(
                TroubleKind::Timeout,
                format!("processes of {} did not end within {within:?}: asked again later", home.dir.display()),
            )),
            (true, false) => {
                let what = format!("processes of {} may be left ({status}): see its runner.log", home.dir.display());
                Err(Trouble { retry: true, ..Trouble::internal(what).perhaps() })
            }
        }
    }

    /// How many machines run beside this one.
    fn count_living(&self, besides: &Home) -> Result<i64, Trouble> {
        let mut living = 0;
        for name in self.names("")? {
            let home = Home { dir: self.settings.root.join(&name) };
            // Whatever is being started or ended at this moment is not surely dead.
            let is_machine = names::parse(&name).is_some() && home.dir != besides.dir;
            living +=
                i64::from(is_machine && !home.is_terminated() && !matches!(home.life_if_settled()?, Some(Life::None)));
        }
        Ok(living)
    }

    /// Folders here, in order. Only their names are in memory.
    fn names(&self, prefix: &str) -> Result<Vec<String>, Trouble> {
        let entries = match std::fs::read_dir(&self.settings.root) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(at(&self.settings.root)(error)),
        };
        let mut names = Vec::new();
        for entry in entries {
            let entry = entry.map_err(at(&self.settings.root))?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.starts_with(prefix) && !name.starts_with('.') && entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                names.push(name);
            }
        }
        names.sort();
        Ok(names)
    }

    fn list_now(&self, ask: &ListAsk) -> Result<ListedPage, Trouble> {
        if ask.region.as_deref().is_some_and(|region| region != REGION) {
            return Ok(ListedPage::default());
        }
        let mut names = self.names(&ask.prefix)?;
        names.retain(|name| ask.after.as_ref().is_none_or(|after| name > after));
        let more = names.len() > ask.limit;
        names.truncate(ask.limit);
        let next = names.last().filter(|_| more).cloned();
        Ok(ListedPage {
            listed: names.into_iter().map(|name| self.listed(name)).collect(),
            next,
            ..ListedPage::default()
        })
    }

    /// What a folder tells. One that cannot be read is there all the same.
    fn listed(&self, name: String) -> Listed {
        let home = Home { dir: self.settings.root.join(&name) };
        let status = match home.life_if_settled() {
            _ if home.is_terminated() => ListedStatus::Ended,
            Ok(Some(Life::None)) => ListedStatus::Stopped,
            Ok(Some(_)) => ListedStatus::Running,
            Ok(None) | Err(_) => ListedStatus::Unclear,
        };
        let runs = !matches!(status, ListedStatus::Stopped | ListedStatus::Ended);
        Listed {
            kind: ResourceType::Instance,
            handle: name.clone(),
            name,
            nonce: home.boot().ok().flatten().map(|boot| boot.nonce),
            status,
            instance_type: None,
            region: REGION.to_owned(),
            created_at: home.created_ms().map(Timestamp),
            ip: None,
            last_seen: None,
            price_micro: Some(if runs { self.settings.price_per_hour.0 } else { 0 }),
        }
    }

    fn remove_workdir_now(&self, name: &str, workdir: &str) -> Result<(), Trouble> {
        let home = self.home(name)?;
        if !is_workdir(workdir) {
            return Err(Trouble::new(
                TroubleKind::InvalidSpec,
                format!("`{workdir}` is not a workdir: they are work_1, work_2, …"),
            ));
        }
        let Some(_change) = home.change()? else { return Ok(()) };
        if !matches!(home.life()?, Life::None) {
            return Err(Trouble::new(
                TroubleKind::InvalidSpec,
                format!("the runner of {name} is alive: its workdirs are its own to remove"),
            ));
        }
        // A workdir that is a link is removed as a link: what it points to is not ours.
        remove_tree(&home.dir.join(workdir))
    }

    fn forget_now(&self, name: &str) -> Result<(), Trouble> {
        let home = self.home(name)?;
        let forgotten = self.settings.root.join(format!("{FORGOTTEN}{name}"));
        // Left by one of us that ended in the middle.
        remove_tree(&forgotten)?;
        let Some(_change) = home.change()? else { return Ok(()) };
        if !home.is_terminated() {
            let what = format!("{name} is not terminated: only what is gone is forgotten");
            return Err(Trouble::new(TroubleKind::InvalidSpec, what));
        }
        // Moved first: a directory that is half deleted must not look like a machine.
        crash_point!("local.forget", std::fs::rename(&home.dir, &forgotten)).map_err(at(&home.dir))?;
        remove_tree(&forgotten)
    }
}

/// What `/etc/os-release` says of this host; none where there is no such file.
fn platform_of_host() -> Option<Platform> {
    static KNOWN: OnceLock<Option<Platform>> = OnceLock::new();
    let read = || {
        let text = std::fs::read_to_string("/etc/os-release").ok()?;
        Some(Platform { architecture: std::env::consts::ARCH.to_owned(), os_release: os_release(&text)? })
    };
    KNOWN.get_or_init(read).clone()
}

/// Id and version, or the build of a distribution without versions.
fn os_release(text: &str) -> Option<String> {
    let field = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='))?;
        Some(line.trim_matches(['"', '\'']).to_owned()).filter(|value| !value.is_empty())
    };
    let version = field("VERSION_ID").or_else(|| field("BUILD_ID"));
    Some(format!("{} {}", field("ID")?, version.unwrap_or_default()).trim_end().to_owned())
}

impl Provider for LocalProvider {
    fn name(&self) -> &str {
        &self.settings.name
    }
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            regions: vec![REGION.to_owned()],
            max_instances: self.settings.max_instances,
            keeps_workdirs: true,
            bills: false,
            gpus: self.settings.size.gpu.iter().cloned().collect(),
            user: login_user(),
            largest: self.settings.size.clone(),
            ..Capabilities::default()
        }
    }
    fn reach(&self) -> Reach {
        Reach::Host
    }
    fn price(&self, _asked: &Resources, _region: &str, _spot: bool) -> Credits {
        self.settings.price_per_hour
    }
    fn size_for(&self, _asked: &Resources) -> Resources {
        self.settings.size.clone()
    }
    fn can_sandbox(&self) -> Result<(), String> {
        (self.settings.can_sandbox)()
    }
    fn platform(&self) -> Option<Platform> {
        platform_of_host()
    }
    fn default_sandbox(&self) -> Option<Sandbox> {
        self.settings.sandbox
    }
    fn spawn<'a>(&'a self, order: &'a Order) -> ProviderFuture<'a, Handle> {
        let order = order.clone();
        self.act(move |provider| provider.spawn_now(&order))
    }
    fn find_by_name<'a>(&'a self, name: &'a str) -> ProviderFuture<'a, Option<Handle>> {
        let name = name.to_owned();
        self.act(move |provider| {
            let home = provider.home(&name)?;
            Ok(home.exists().then_some(Handle(name)))
        })
    }
    fn inspect<'a>(&'a self, handle: &'a Handle, nonce: &'a str) -> ProviderFuture<'a, Seen> {
        let (name, nonce) = (handle.0.clone(), nonce.to_owned());
        self.act(move |provider| provider.inspect_now(&name, &nonce))
    }
    fn terminate<'a>(&'a self, handle: &'a Handle, nonce: &'a str) -> ProviderFuture<'a, ()> {
        let (name, nonce) = (handle.0.clone(), nonce.to_owned());
        self.act(move |provider| provider.terminate_now(&name, &nonce))
    }
    fn list<'a>(&'a self, ask: &'a ListAsk) -> ProviderFuture<'a, ListedPage> {
        let ask = ask.clone();
        self.act(move |provider| provider.list_now(&ask))
    }
    fn remove_workdir<'a>(&'a self, handle: &'a Handle, workdir: &'a str) -> ProviderFuture<'a, ()> {
        let (name, workdir) = (handle.0.clone(), workdir.to_owned());
        self.act(move |provider| provider.remove_workdir_now(&name, &workdir))
    }
    fn forget<'a>(&'a self, handle: &'a Handle) -> ProviderFuture<'a, ()> {
        let name = handle.0.clone();
        self.act(move |provider| provider.forget_now(&name))
    }
    fn workdir_path(&self, handle: &Handle, workdir: &str) -> Option<String> {
        let home = self.home(&handle.0).ok()?;
        is_workdir(workdir).then(|| home.dir.join(workdir).to_string_lossy().into_owned())
    }
}

pub(crate) fn remove_tree(path: &Path) -> Result<(), Trouble> {
    let removed = match std::fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() => folder::remove(path),
        Ok(_) => std::fs::remove_file(path),
        Err(error) => Err(error),
    };
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(at(path)(error)),
        _ => Ok(()),
    }
}

/// Whether the machine in this folder was ended for good.
pub(crate) fn is_terminated(machine: &Path) -> bool {
    Home { dir: machine.to_owned() }.is_terminated()
}

/// Read once: who we are does not change while we run, and capabilities are asked for inside transactions.
pub(crate) fn login_user() -> String {
    static NAME: LazyLock<String> = LazyLock::new(|| match User::from_uid(geteuid()) {
        Ok(Some(user)) => user.name,
        _ => std::env::var("USER").unwrap_or_else(|_| geteuid().to_string()),
    });
    NAME.clone()
}
