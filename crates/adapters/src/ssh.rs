//! Machines on hosts that one reaches by ssh: a folder and a runner each, as on this host. Owns which host a machine is on and how a host
//! is asked; what happens there is done by the runner's own binary (`remote`). Never lets a host's shell read what a user or a model wrote.

mod binary;
mod call;
mod login;
mod mux;
mod place;
pub mod relay;
pub mod remote;
mod target;
mod trouble;

pub use binary::{BUILD, Binary, VARIABLE as BINARY_VARIABLE};
pub use mux::{Connection, Dial, DialFuture};
pub use target::Target;

use crate::local::DEFAULT_PRICE;
use crate::provider::{
    Capabilities, Handle, Linked, ListAsk, Listed, ListedPage, LookAsk, Looks, Order, Provider, ProviderFuture, Reach,
    Room, Seen, is_workdir,
};
use call::Way;
use futures_util::{StreamExt as _, stream};
use model::provider_row::Stays;
use model::spec::{OnLostControl, Resources};
use model::{Credits, Effect, Trouble, TroubleKind, names};
use remote::{Ask, Deed, Looked};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::sync::OnceCell;

/// A question that only looks, and one that starts a process.
const LOOKED_WITHIN: Duration = Duration::from_secs(30);
/// Longer than the steps of ending a machine take together; see `LocalTimeouts`.
const ENDED_WITHIN: Duration = Duration::from_secs(120);
/// A relay says that it is open within this.
const OPENED_WITHIN: Duration = Duration::from_secs(30);
/// What a host's shell may write before a relay speaks.
const CHATTER_BYTES: u64 = 64 << 10;
/// Hosts that are asked at the same time. Of 256 hosts, all of which fall silent (5 s each), a page is known within the scan's minute.
const ASKED_AT_ONCE: usize = 32;
/// One that has just failed is not asked again within this.
const ASKED_AGAIN_AFTER: Duration = Duration::from_secs(1);

#[derive(Debug, Clone)]
pub struct SshSettings {
    /// As runs and pools name the provider; also its region.
    pub name: String,
    pub hosts: Vec<Target>,
    /// Machines at once on each host.
    pub slots: i64,
    pub price_per_hour: Credits,
    pub way: SshWay,
    /// The runner's binary that is copied to hosts.
    pub binary: PathBuf,
}

/// How hosts are connected to.
#[derive(Debug, Clone, Default)]
pub struct SshWay {
    pub identity: Option<PathBuf>,
    pub known_hosts: Option<PathBuf>,
    /// Keeps the keys of hosts that are met for the first time; without it those are refused.
    pub accepted: Option<PathBuf>,
    pub dir: Option<String>,
}

impl SshSettings {
    pub fn new(name: &str, hosts: Vec<Target>, binary: impl Into<PathBuf>) -> SshSettings {
        SshSettings {
            name: name.to_owned(),
            hosts,
            slots: 1,
            price_per_hour: DEFAULT_PRICE,
            way: SshWay::default(),
            binary: binary.into(),
        }
    }
}

/// A folder on hosts, in place of `~/.repl`: its words stand in a shell's line.
pub fn check_dir(dir: &str) -> Result<(), String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | '/');
    let climbs = Path::new(dir).components().any(|part| part == std::path::Component::ParentDir);
    if dir.starts_with('/') && dir.len() > 1 && dir.chars().all(plain) && !climbs {
        return Ok(());
    }
    Err("is an absolute path of letters, digits, `.`, `_` and `-`, without `..`".to_owned())
}

#[derive(Clone)]
pub struct SshProvider {
    settings: Arc<SshSettings>,
    way: Way,
    binary: Arc<OnceCell<Binary>>,
    /// When each host last could not be reached, and why: spares callers to wait for the same again.
    unreached: Arc<Mutex<BTreeMap<String, (Instant, Trouble)>>>,
}

#[derive(Deserialize)]
struct Page {
    listed: Vec<Listed>,
    next: Option<String>,
}

impl SshProvider {
    pub fn new(settings: SshSettings) -> SshProvider {
        let SshWay { identity, known_hosts, accepted, dir } = settings.way.clone();
        let way = Way { identity, known_hosts, accepted, dir };
        SshProvider { settings: Arc::new(settings), way, binary: Arc::default(), unreached: Arc::default() }
    }

    /// Hashed once: a large file takes a moment.
    async fn binary(&self) -> Result<&Binary, Trouble> {
        let path = self.settings.binary.clone();
        let read = || async {
            match tokio::task::spawn_blocking(move || Binary::read(&path)).await {
                Ok(read) => read,
                Err(error) => Err(Trouble::internal(error.to_string())),
            }
        };
        self.binary.get_or_try_init(read).await
    }

    fn question(&self, target: &Target, deed: Deed) -> Ask {
        let dir = self.settings.way.dir.as_ref().map(PathBuf::from);
        Ask { host: target.folder(), mark: target.mark(), dir, slots: self.settings.slots, deed }
    }

    async fn ask<T: DeserializeOwned>(&self, target: &Target, deed: Deed, within: Duration) -> Result<T, Trouble> {
        let acts = matches!(deed, Deed::Spawn { .. } | Deed::Terminate { .. });
        let question =
            serde_json::to_vec(&self.question(target, deed)).map_err(|error| Trouble::internal(error.to_string()))?;
        if let Some(accepted) = self.settings.way.accepted.as_deref().and_then(Path::parent) {
            let _ = tokio::fs::create_dir_all(accepted).await;
        }
        if let Some(trouble) = self.just_unreached(target) {
            return Err(trouble);
        }
        let output = self.way.ask(target, self.binary().await?, "host", &question, within).await;
        self.note(target, &output);
        let garbage = || {
            let what = format!("{} did not answer as a host does: see that `sh` works there for the user", target.text);
            Err(Trouble::internal(what).perhaps())
        };
        match remote::heard(&output?).unwrap_or_else(garbage) {
            Ok(value) => serde_json::from_value(value).map_err(|error| {
                let trouble = Trouble::internal(format!("{} answers what we do not understand: {error}", target.text));
                if acts { trouble.perhaps() } else { trouble }
            }),
            Err(found) => Err(Trouble { what: format!("{}: {}", target.text, found.what), ..found }),
        }
    }

    fn note(&self, target: &Target, output: &Result<Vec<u8>, Trouble>) {
        let mut unreached = self.unreached.lock().unwrap_or_else(PoisonError::into_inner);
        match output {
            Ok(_) => drop(unreached.remove(&target.text)),
            Err(trouble) => drop(unreached.insert(target.text.clone(), (Instant::now(), trouble.clone()))),
        }
    }

    /// A caller that asks again at once gets the same answer.
    fn just_unreached(&self, target: &Target) -> Option<Trouble> {
        let unreached = self.unreached.lock().unwrap_or_else(PoisonError::into_inner);
        let (since, trouble) = unreached.get(&target.text)?;
        let repeated =
            trouble.effect == Effect::None && matches!(trouble.kind, TroubleKind::Network | TroubleKind::Auth);
        (repeated && since.elapsed() < ASKED_AGAIN_AFTER).then(|| trouble.clone())
    }

    /// The host and the name of a machine. A handle without a host is a name from an earlier listing: all hosts are asked for it.
    async fn at(&self, handle: &Handle) -> Result<(Option<Target>, String), Trouble> {
        let (name, target) = match handle.0.split_once('@') {
            Some((name, host)) => (name, Some(target(host)?)),
            None => (handle.0.as_str(), None),
        };
        check_name(name)?;
        let target = match target {
            Some(target) => Some(target),
            None => self.search(name).await?,
        };
        Ok((target, name.to_owned()))
    }

    /// The host that has a machine of this name. A host that cannot be asked may have it, and holds up no other.
    async fn search(&self, name: &str) -> Result<Option<Target>, Trouble> {
        let mut asked = Vec::with_capacity(self.settings.hosts.len());
        for target in &self.settings.hosts {
            let deed = Deed::Find { name: name.to_owned() };
            asked.push(async move { (target, self.ask(target, deed, LOOKED_WITHIN).await) });
        }
        let (mut unsure, mut answers) = (None, stream::iter(asked).buffer_unordered(ASKED_AT_ONCE));
        while let Some((target, answer)) = answers.next().await {
            match answer {
                Ok(true) => return Ok(Some(target.clone())),
                Ok(false) => {}
                Err(trouble) => unsure = Some(trouble),
            }
        }
        match unsure {
            Some(trouble) => Err(trouble),
            None => Ok(None),
        }
    }

    /// Without a place in the order the name decides, so that a repetition asks the same host.
    fn host_for(&self, order: &Order) -> Result<Target, Trouble> {
        if let Some(place) = &order.place {
            return target(place);
        }
        let hosts = &self.settings.hosts;
        let number = names::parse(&order.boot.name).map_or(0, |name| name.resource.unsigned_abs() as usize);
        hosts.get(number % hosts.len().max(1)).cloned().ok_or_else(|| {
            Trouble::new(TroubleKind::InvalidSpec, format!("[providers.{}] has no hosts", self.settings.name))
        })
    }

    async fn spawn_now(&self, order: &Order) -> Result<Handle, Trouble> {
        check_name(&order.boot.name)?;
        let target = self.host_for(order)?;
        let deed = Deed::Spawn { boot: Box::new(order.boot.clone()), resources: order.resources.clone() };
        let name: String = self.ask(&target, deed, ENDED_WITHIN).await?;
        Ok(handle(&name, &target))
    }

    async fn list_now(&self, ask: &ListAsk) -> Result<ListedPage, Trouble> {
        let mut page = ListedPage::default();
        if ask.region.as_ref().is_some_and(|region| *region != self.settings.name) {
            return Ok(page);
        }
        // The cursor is a host and a name on it: hosts in the settings' order, names in theirs.
        let cursor = ask.after.as_ref().and_then(|after| after.rsplit_once(' '));
        let begins = cursor.and_then(|(host, _)| self.settings.hosts.iter().position(|target| target.text == host));
        let hosts = &self.settings.hosts[begins.unwrap_or(0)..];
        let mut asked = Vec::with_capacity(hosts.len());
        for (number, target) in hosts.iter().enumerate() {
            let after = cursor.filter(|_| begins.is_some() && number == 0).map(|(_, name)| name.to_owned());
            let deed = Deed::List { prefix: ask.prefix.clone(), after, limit: ask.limit };
            asked.push(async move { (target, self.ask::<Page>(target, deed, LOOKED_WITHIN).await) });
        }
        let last = hosts.last().map(|target| &target.text);
        let mut failed = None;
        let mut answers = stream::iter(asked).buffered(ASKED_AT_ONCE);
        // A page that is full ends it: questions that are under way then are dropped.
        while page.next.is_none()
            && let Some((target, answer)) = answers.next().await
        {
            let mut found = match answer {
                Ok(found) => found,
                Err(trouble) => {
                    page.incomplete.push(not_listed(target, &trouble));
                    failed = failed.or(Some(trouble));
                    continue;
                }
            };
            let room = ask.limit - page.listed.len();
            if found.listed.len() > room {
                found.listed.truncate(room);
                found.next = found.listed.last().map(|last| last.name.clone());
            }
            page.listed.extend(found.listed.into_iter().map(|listed| self.listed(target, listed)));
            page.next = found.next.map(|name| format!("{} {name}", target.text));
            if page.listed.len() >= ask.limit && last != Some(&target.text) && page.next.is_none() {
                // Full with the last of this host: the next page begins behind it.
                page.next = page.listed.last().map(|last| format!("{} {}", target.text, last.name));
            }
        }
        match failed {
            Some(trouble) if page.incomplete.len() == self.settings.hosts.len() => Err(trouble),
            _ => Ok(page),
        }
    }

    /// What a host says of a machine there, as this provider knows it.
    fn listed(&self, target: &Target, found: Listed) -> Listed {
        let runs = found.price_micro != Some(0);
        Listed {
            handle: handle(&found.name, target).0,
            region: self.settings.name.clone(),
            ip: Some(target.host.clone()),
            price_micro: Some(if runs { self.settings.price_per_hour.0 } else { 0 }),
            ..found
        }
    }

    /// Opens a relay for the machine's runner and carries its connections until it ends.
    async fn link_now(&self, handle: &Handle, dial: Dial) -> Result<Linked, Trouble> {
        let (Some(target), name) = self.at(handle).await? else { return Ok(Linked::Unneeded) };
        let question = self.question(&target, Deed::Relay { name });
        let mut line = serde_json::to_vec(&question).map_err(|error| Trouble::internal(error.to_string()))?;
        line.push(b'\n');
        let mut child = self.way.open(&target, self.binary().await?, "relay")?;
        let (Some(mut to), Some(from), Some(stderr)) = (child.stdin.take(), child.stdout.take(), child.stderr.take())
        else {
            return Err(Trouble::internal("ssh has no pipes"));
        };
        let said = tokio::spawn(async move {
            let mut said = String::new();
            let _ = stderr.take(CHATTER_BYTES).read_to_string(&mut said).await;
            said
        });
        let mut from = BufReader::new(from);
        let opening = async {
            to.write_all(&line).await?;
            let mut heard = (&mut from).take(CHATTER_BYTES);
            let mut line = String::new();
            while heard.read_line(&mut line).await? > 0 {
                if let Some(answer) = remote::heard(line.as_bytes()) {
                    return Ok(Some(answer));
                }
                line.clear();
            }
            std::io::Result::Ok(None)
        };
        match tokio::time::timeout(OPENED_WITHIN, opening).await {
            Ok(Ok(Some(Ok(word)))) if word == relay::OPEN => {}
            Ok(Ok(Some(Ok(word)))) if word == relay::UNNEEDED => return Ok(Linked::Unneeded),
            Ok(Ok(Some(Err(trouble)))) => return Err(trouble),
            Ok(_) => {
                let _ = child.wait().await;
                return Err(self.way.failed(&target, &said.await.unwrap_or_default()));
            }
            Err(_) => {
                let what = format!("{} did not open a relay within {} s", target.text, OPENED_WITHIN.as_secs());
                return Err(Trouble::new(TroubleKind::Timeout, what));
            }
        }
        tracing::info!(host = %target.text, machine = %handle.0, "the relay is open");
        let carried = mux::dial(from, to, dial).await;
        tracing::info!(host = %target.text, machine = %handle.0, ?carried, "the relay has ended");
        Ok(Linked::Ended)
    }

    async fn look_now(&self, ask: &LookAsk) -> Looks {
        let mut asked = Vec::with_capacity(self.settings.hosts.len());
        for target in &self.settings.hosts {
            let (control_id, control_url) = (ask.control_id.clone(), ask.control_url.clone());
            asked.push(async move {
                let found = self.ask(target, Deed::Look { control_id, control_url }, LOOKED_WITHIN).await;
                (target.text.clone(), found)
            });
        }
        stream::iter(asked).buffered(ASKED_AT_ONCE).collect().await
    }

    /// Several hosts at once: one that cannot be reached takes its time, and holds up no other.
    async fn leave_now(&self, control_id: &str) -> Vec<Stays> {
        let mut asked = Vec::with_capacity(self.settings.hosts.len());
        for target in &self.settings.hosts {
            asked.push(self.stays_on(target, control_id));
        }
        stream::iter(asked).buffered(ASKED_AT_ONCE).filter_map(std::future::ready).collect().await
    }

    async fn stays_on(&self, target: &Target, control_id: &str) -> Option<Stays> {
        let why = self.leave_host(target, control_id).await.err()?.what;
        let base = self.settings.way.dir.as_deref().unwrap_or("~/.repl");
        let what = format!("{base}/{control_id}/{} and {base}/bin", target.folder());
        Some(Stays { host: target.text.clone(), what, why })
    }

    async fn leave_host(&self, target: &Target, control_id: &str) -> Result<(), Trouble> {
        // Where only a binary is, or nothing, the binary is not copied in order to be removed.
        if self.way.clear(target, LOOKED_WITHIN).await? {
            return Ok(());
        }
        self.ask::<Value>(target, Deed::Leave { control_id: control_id.to_owned() }, LOOKED_WITHIN).await.map(drop)
    }
}

impl Provider for SshProvider {
    fn name(&self) -> &str {
        &self.settings.name
    }
    fn capabilities(&self) -> Capabilities {
        let user = self.settings.hosts.iter().find_map(|host| host.user.clone());
        Capabilities {
            regions: vec![self.settings.name.clone()],
            max_instances: self.settings.slots * self.settings.hosts.len() as i64,
            default_on_lost_control: OnLostControl::Finish,
            user: user.unwrap_or_else(crate::local::login_user),
            ..Capabilities::default()
        }
    }
    fn reach(&self) -> Reach {
        Reach::Relay
    }
    fn price(&self, _asked: &Resources, _region: &str, _spot: bool) -> Credits {
        self.settings.price_per_hour
    }
    /// A machine is its host as a whole, whose size is known when its runner has registered.
    fn size_for(&self, _asked: &Resources) -> Resources {
        Resources::default()
    }
    fn rooms(&self) -> Vec<Room> {
        let room = |target: &Target| Room { place: target.text.clone(), slots: self.settings.slots };
        self.settings.hosts.iter().map(room).collect()
    }
    fn look<'a>(&'a self, ask: &'a LookAsk) -> ProviderFuture<'a, Looks> {
        Box::pin(async move { Ok(self.look_now(ask).await) })
    }
    fn room_of(&self, handle: &Handle) -> Option<String> {
        handle.0.split_once('@').map(|(_, host)| host.to_owned())
    }
    fn spawn<'a>(&'a self, order: &'a Order) -> ProviderFuture<'a, Handle> {
        Box::pin(self.spawn_now(order))
    }
    fn find_by_name<'a>(&'a self, name: &'a str) -> ProviderFuture<'a, Option<Handle>> {
        Box::pin(async move {
            check_name(name)?;
            Ok(self.search(name).await?.map(|target| handle(name, &target)))
        })
    }
    fn find_at<'a>(&'a self, name: &'a str, place: Option<&'a str>) -> ProviderFuture<'a, Option<Handle>> {
        Box::pin(async move {
            let Some(place) = place else { return self.find_by_name(name).await };
            check_name(name)?;
            let target = target(place)?;
            let found = self.ask(&target, Deed::Find { name: name.to_owned() }, LOOKED_WITHIN).await?;
            Ok(if found { Some(handle(name, &target)) } else { None })
        })
    }
    fn inspect<'a>(&'a self, handle: &'a Handle, nonce: &'a str) -> ProviderFuture<'a, Seen> {
        Box::pin(async move {
            let (Some(target), name) = self.at(handle).await? else { return Ok(Seen::Gone) };
            let looked: Looked =
                self.ask(&target, Deed::Inspect { name, nonce: nonce.to_owned() }, LOOKED_WITHIN).await?;
            Ok(looked.seen())
        })
    }
    fn terminate<'a>(&'a self, handle: &'a Handle, nonce: &'a str) -> ProviderFuture<'a, ()> {
        Box::pin(async move {
            let (Some(target), name) = self.at(handle).await? else { return Ok(()) };
            self.ask(&target, Deed::Terminate { name, nonce: nonce.to_owned() }, ENDED_WITHIN).await
        })
    }
    fn list<'a>(&'a self, ask: &'a ListAsk) -> ProviderFuture<'a, ListedPage> {
        Box::pin(self.list_now(ask))
    }
    fn remove_workdir<'a>(&'a self, handle: &'a Handle, workdir: &'a str) -> ProviderFuture<'a, ()> {
        Box::pin(async move {
            if !is_workdir(workdir) {
                check_name(handle.0.split('@').next().unwrap_or(""))?;
                let what = format!("`{workdir}` is not a workdir: they are work_1, work_2, …");
                return Err(Trouble::new(TroubleKind::InvalidSpec, what));
            }
            let (Some(target), name) = self.at(handle).await? else { return Ok(()) };
            self.ask(&target, Deed::RemoveWorkdir { name, workdir: workdir.to_owned() }, ENDED_WITHIN).await
        })
    }
    fn forget<'a>(&'a self, handle: &'a Handle) -> ProviderFuture<'a, ()> {
        Box::pin(async move {
            let (Some(target), name) = self.at(handle).await? else { return Ok(()) };
            self.ask(&target, Deed::Forget { name }, ENDED_WITHIN).await
        })
    }
    fn workdir_path(&self, handle: &Handle, workdir: &str) -> Option<String> {
        let (name, host) = handle.0.split_once('@')?;
        let (parsed, target) = (names::parse(name)?, Target::parse(host).ok()?);
        let base = self.settings.way.dir.as_deref().unwrap_or("~/.repl");
        let folder = target.folder();
        is_workdir(workdir).then(|| format!("{host}:{base}/{}/{folder}/{name}/{workdir}", parsed.control_id))
    }
    fn link<'a>(&'a self, handle: &'a Handle, dial: Dial) -> ProviderFuture<'a, Linked> {
        Box::pin(self.link_now(handle, dial))
    }
    fn leave<'a>(&'a self, control_id: &'a str) -> ProviderFuture<'a, Vec<Stays>> {
        Box::pin(async move { Ok(self.leave_now(control_id).await) })
    }
}

/// The sentence names the host by itself in most cases.
fn not_listed(target: &Target, trouble: &Trouble) -> String {
    match trouble.what.contains(&target.text) {
        true => trouble.what.clone(),
        false => format!("{}: {}", target.text, trouble.what),
    }
}

/// A machine and where it is: any process of the control plane goes on with it, also when the host has left the settings.
fn handle(name: &str, target: &Target) -> Handle {
    Handle(format!("{name}@{}", target.text))
}

fn target(text: &str) -> Result<Target, Trouble> {
    Target::parse(text).map_err(|why| Trouble::new(TroubleKind::InvalidSpec, why))
}

fn check_name(name: &str) -> Result<(), Trouble> {
    match names::parse(name) {
        Some(_) => Ok(()),
        None => Err(Trouble::new(TroubleKind::InvalidSpec, format!("`{name}` is not the name of an instance"))),
    }
}
