//! A provider that exists only in memory, for tests and simulation: every call may fail before or after its effect, lists
//! lag, machines die. Has no clock, thread or randomness: the caller decides what fails, and delays are counted in calls.

use crate::provider::{
    Capabilities, Handle, ListAsk, Listed, ListedPage, LookAsk, Looks, Order, Platform, Provider, ProviderFuture,
    Reach, Room, Seen, is_workdir,
};
use model::boot::Boot;
use model::host::HostFacts;
use model::orphan::{ListedStatus, ResourceType};
use model::spec::Resources;
use model::{Credits, Trouble, TroubleKind, names};
use std::collections::{BTreeMap, BTreeSet};
use std::future::poll_fn;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Poll;

/// A call of the provider, as passed to the test or simulator that decides its outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Call {
    Spawn,
    Find,
    Inspect,
    Terminate,
    List,
    RemoveWorkdir,
    Forget,
    Delete,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    Obey,
    /// Nothing happened, and the caller is told why.
    FailBefore(TroubleKind),
    /// It happened, but the caller hears only this.
    FailAfter(TroubleKind),
    /// Nothing happens, and the call does not return.
    Hang,
}

/// Decides each call's fate; the text is the machine's name (or the prefix of a list).
pub type Decide = Box<dyn FnMut(Call, &str) -> Fate + Send>;
/// The cursor that a page gives, for the one that it was asked with.
pub type Next = fn(Option<&str>) -> String;

#[derive(Debug, Clone)]
pub struct FakeSettings {
    pub name: String,
    pub capabilities: Capabilities,
    pub reach: Reach,
    pub price_per_hour: Credits,
    /// Of a region, ordinary or spot, where it differs.
    pub prices: BTreeMap<(String, bool), Credits>,
    /// The size of every machine, whatever is asked for; without it each is as large as it was asked to be.
    pub one_size: Option<Resources>,
    /// So many calls of `list` and `find_by_name` do not see a new machine yet.
    pub list_lag_calls: u32,
    /// So many calls of `terminate` and `inspect` after the first `terminate` find the machine still there.
    pub gone_lag_calls: u32,
    /// A new machine waits in a queue of the provider until it is told to start.
    pub queues: bool,
    /// Its hosts, each with room for one machine, and what they say of themselves; none: the control plane chooses no host.
    pub hosts: Vec<(String, HostFacts)>,
}

impl Default for FakeSettings {
    fn default() -> FakeSettings {
        FakeSettings {
            name: "fake".to_owned(),
            capabilities: Capabilities {
                regions: vec!["here".to_owned(), "there".to_owned()],
                max_instances: 4,
                user: "somebody".to_owned(),
                ..Capabilities::default()
            },
            reach: Reach::Host,
            price_per_hour: Credits(10_000),
            prices: BTreeMap::new(),
            one_size: None,
            list_lag_calls: 0,
            gone_lag_calls: 0,
            queues: false,
            hosts: Vec::new(),
        }
    }
}

/// What this provider says of a machine that waits.
pub const QUEUED: &str = "all nodes are busy";

/// The real state of a simulated machine, independent of what the control plane knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Machine {
    pub boot: Boot,
    pub region: String,
    pub resources: Resources,
    pub spot: bool,
    pub state: MachineState,
    /// How often a runner was started here: the first time and each return.
    pub starts: u32,
    pub workdirs_removed: Vec<String>,
    unseen_calls: u32,
    going_calls: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MachineState {
    /// Accepted, and not started.
    Queued,
    Running,
    /// The machine is there, its runner is not.
    RunnerGone,
    /// `terminate` was called; it is on its way out.
    Going,
    Gone,
}

pub struct FakeProvider {
    settings: FakeSettings,
    world: Mutex<World>,
}

struct World {
    machines: BTreeMap<String, Machine>,
    /// What another program made at this provider, by handle.
    others: BTreeMap<String, Listed>,
    /// What every page of a list says of parts that could not be asked.
    incomplete: Vec<String>,
    /// Handles of those that were ended.
    ended_others: BTreeSet<String>,
    decide: Decide,
    /// They cannot be listed.
    unlisted: Vec<String>,
    /// Regions whose list does not come.
    hanging: Vec<String>,
    /// So many pages of lists come, then none does.
    pages_left: Option<u64>,
    /// Machines whose lookup by name does not return.
    hanging_names: Vec<String>,
    /// Calls that end or delete something do not return.
    ends_hang: bool,
    /// What every page of a list says of the next one, given the cursor it was asked for.
    next: Option<Next>,
    /// Of the pages that were listed.
    longest_page: usize,
    changes: u64,
    /// How often a machine was made under each name, forgotten ones too.
    made: BTreeMap<String, u32>,
}

impl FakeProvider {
    pub fn new(settings: FakeSettings, decide: Decide) -> FakeProvider {
        FakeProvider {
            settings,
            world: Mutex::new(World {
                machines: BTreeMap::new(),
                others: BTreeMap::new(),
                incomplete: Vec::new(),
                ended_others: BTreeSet::new(),
                decide,
                unlisted: Vec::new(),
                hanging: Vec::new(),
                pages_left: None,
                hanging_names: Vec::new(),
                ends_hang: false,
                next: None,
                longest_page: 0,
                changes: 0,
                made: BTreeMap::new(),
            }),
        }
    }

    /// One on which nothing goes wrong until it is told otherwise.
    pub fn obedient() -> FakeProvider {
        FakeProvider::new(FakeSettings::default(), Box::new(|_, _| Fate::Obey))
    }

    pub fn decide_by(&self, decide: Decide) {
        self.world().decide = decide;
    }

    /// Every machine there ever was and that is not forgotten, by name.
    pub fn machines(&self) -> BTreeMap<String, Machine> {
        self.world().machines.clone()
    }

    pub fn machine(&self, name: &str) -> Option<Machine> {
        self.world().machines.get(name).cloned()
    }

    /// How often a machine was made under each name, whether or not anything still knows of it.
    pub fn made(&self) -> BTreeMap<String, u32> {
        self.world().made.clone()
    }

    /// The runner process dies; the machine stays.
    pub fn kill_runner(&self, name: &str) {
        self.change(name, |machine| {
            if machine.state == MachineState::Running {
                machine.state = MachineState::RunnerGone;
            }
        });
    }

    /// The machine leaves its provider's queue.
    pub fn start(&self, name: &str) {
        self.change(name, |machine| {
            if machine.state == MachineState::Queued {
                machine.state = MachineState::Running;
                machine.starts += 1;
            }
        });
    }

    /// The machine itself is gone: reclaimed by its provider, without power, or deleted by hand.
    pub fn destroy(&self, name: &str) {
        self.change(name, |machine| machine.state = MachineState::Gone);
    }

    /// From now on another machine, with another nonce, has this name.
    pub fn replace_by_stranger(&self, name: &str) {
        self.change(name, |machine| machine.boot.nonce.push_str("-of-somebody-else"));
    }

    /// Something that this provider lists although it was not made by `spawn`.
    pub fn place(&self, other: Listed) {
        let mut world = self.world();
        world.ended_others.remove(&other.handle);
        world.others.insert(other.handle.clone(), other);
    }

    /// From now on these regions, and no others, cannot be listed.
    pub fn unlisted_regions(&self, regions: &[&str]) {
        self.world().unlisted = regions.iter().map(|region| (*region).to_owned()).collect();
    }

    /// From now on the lists of these regions, and of no others, do not come.
    pub fn hanging_regions(&self, regions: &[&str]) {
        self.world().hanging = regions.iter().map(|region| (*region).to_owned()).collect();
    }

    /// So many more pages of lists come; then they hang.
    pub fn pages_left(&self, pages: u64) {
        self.world().pages_left = Some(pages);
    }

    /// From now on these names, and no others, cannot be looked up: the call hangs.
    pub fn hanging_names(&self, names: &[String]) {
        self.world().hanging_names = names.to_vec();
    }

    /// Whether calls of `terminate` and `delete` hang from now on.
    pub fn hanging_ends(&self, hang: bool) {
        self.world().ends_hang = hang;
    }

    /// From now on lists do not end: behind each page there is another, with this cursor.
    pub fn endless_lists(&self, next: Option<Next>) {
        self.world().next = next;
    }

    /// How many resources the longest page had that was ever listed.
    pub fn longest_page(&self) -> usize {
        self.world().longest_page
    }

    /// From now on these parts of the provider cannot be asked when it is listed.
    pub fn list_without(&self, parts: &[&str]) {
        self.world().incomplete = parts.iter().map(|part| (*part).to_owned()).collect();
    }

    /// What was placed leaves without a trace.
    pub fn unplace(&self, handle: &str) {
        self.world().others.remove(handle);
    }

    /// What was placed and is still there, by handle.
    pub fn placed(&self) -> BTreeMap<String, Listed> {
        self.world().others.clone()
    }

    /// Another number whenever something may have happened to a machine.
    pub fn changes(&self) -> u64 {
        self.world().changes
    }

    fn change(&self, name: &str, what: impl FnOnce(&mut Machine)) {
        let mut world = self.world();
        world.changes += 1;
        if let Some(machine) = world.machines.get_mut(name) {
            what(machine);
        }
    }

    fn world(&self) -> MutexGuard<'_, World> {
        // Every change is one assignment, so a panic elsewhere leaves nothing half-done here.
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The whole act happens here and now; the future only carries its result.
    fn act<'a, T: Send + 'a>(
        &self,
        call: Call,
        about: &str,
        effect: impl FnOnce(&FakeSettings, &mut World) -> Result<T, Trouble>,
    ) -> ProviderFuture<'a, T> {
        let mut world = self.world();
        world.changes += 1;
        let result = match (world.decide)(call, about) {
            Fate::Obey => effect(&self.settings, &mut world),
            Fate::FailBefore(kind) => Err(failed(kind, call, about)),
            Fate::FailAfter(kind) => effect(&self.settings, &mut world).and(Err(failed(kind, call, about).perhaps())),
            Fate::Hang => return Box::pin(std::future::pending()),
        };
        Box::pin(std::future::ready(result))
    }
}

impl Provider for FakeProvider {
    fn platform(&self) -> Option<Platform> {
        Some(Platform { architecture: "fake".into(), os_release: "fake 1".into() })
    }
    fn name(&self) -> &str {
        &self.settings.name
    }
    fn capabilities(&self) -> Capabilities {
        self.settings.capabilities.clone()
    }
    fn reach(&self) -> Reach {
        self.settings.reach
    }
    fn price(&self, _asked: &Resources, region: &str, spot: bool) -> Credits {
        price(&self.settings, region, spot)
    }
    fn rooms(&self) -> Vec<Room> {
        self.settings.hosts.iter().map(|(host, _)| Room { place: host.clone(), slots: 1 }).collect()
    }
    fn look<'a>(&'a self, _ask: &'a LookAsk) -> ProviderFuture<'a, Looks> {
        let found = self.settings.hosts.iter().map(|(host, facts)| (host.clone(), Ok(facts.clone()))).collect();
        Box::pin(std::future::ready(Ok(found)))
    }
    fn size_for(&self, asked: &Resources) -> Resources {
        self.settings.one_size.clone().unwrap_or_else(|| asked.clone())
    }
    fn spawn<'a>(&'a self, order: &'a Order) -> ProviderFuture<'a, Handle> {
        self.act(Call::Spawn, &order.boot.name, |settings, world| spawn(settings, world, order))
    }
    fn find_by_name<'a>(&'a self, name: &'a str) -> ProviderFuture<'a, Option<Handle>> {
        if self.world().hanging_names.iter().any(|hanging| hanging == name) {
            return Box::pin(std::future::pending());
        }
        self.act(Call::Find, name, |_, world| {
            check_name(name)?;
            let machine = world.machines.get_mut(name);
            let seen = machine.is_some_and(is_seen);
            Ok(seen.then(|| Handle(name.to_owned())))
        })
    }
    fn inspect<'a>(&'a self, handle: &'a Handle, nonce: &'a str) -> ProviderFuture<'a, Seen> {
        self.act(Call::Inspect, &handle.0, |_, world| {
            if let Some(other) = world.others.get(&handle.0) {
                return Ok(match other.nonce.as_deref() {
                    _ if !other.is_there() => Seen::Gone,
                    Some(tag) if tag != nonce => Seen::Stranger,
                    _ => Seen::Alive,
                });
            }
            if world.ended_others.contains(&handle.0) {
                return Ok(Seen::Gone);
            }
            check_name(&handle.0)?;
            let Some(machine) = world.machines.get_mut(&handle.0) else { return Ok(Seen::Gone) };
            go_on(machine);
            Ok(match machine.state {
                MachineState::Gone => Seen::Gone,
                _ if machine.boot.nonce != nonce => Seen::Stranger,
                MachineState::Queued => Seen::Queued { since: None, why: QUEUED.to_owned() },
                MachineState::RunnerGone => Seen::RunnerGone,
                MachineState::Running | MachineState::Going => Seen::Alive,
            })
        })
    }
    fn terminate<'a>(&'a self, handle: &'a Handle, nonce: &'a str) -> ProviderFuture<'a, ()> {
        if self.world().ends_hang {
            return Box::pin(std::future::pending());
        }
        self.act(Call::Terminate, &handle.0, |settings, world| {
            if let Some(other) = world.others.get(&handle.0) {
                if other.nonce.as_deref().unwrap_or("") != nonce {
                    return Err(stranger(&handle.0));
                }
                world.others.remove(&handle.0);
                world.ended_others.insert(handle.0.clone());
                return Ok(());
            }
            check_name(&handle.0)?;
            let Some(machine) = world.machines.get_mut(&handle.0) else { return Ok(()) };
            match machine.state {
                MachineState::Gone => return Ok(()),
                _ if machine.boot.nonce != nonce => return Err(stranger(&handle.0)),
                MachineState::Queued | MachineState::Running | MachineState::RunnerGone => {
                    machine.state = MachineState::Going;
                    machine.going_calls = settings.gone_lag_calls;
                }
                MachineState::Going => {}
            }
            go_on(machine);
            if machine.state == MachineState::Gone {
                return Ok(());
            }
            Err(Trouble::new(TroubleKind::Timeout, format!("{} is still going", handle.0)))
        })
    }
    fn list<'a>(&'a self, ask: &'a ListAsk) -> ProviderFuture<'a, ListedPage> {
        Box::pin(async move {
            let hangs = || {
                let world = self.world();
                let region = ask.region.as_ref().is_some_and(|region| world.hanging.contains(region));
                region || world.pages_left == Some(0)
            };
            poll_fn(|_| if hangs() { Poll::Pending } else { Poll::Ready(()) }).await;
            let listed = self.act(Call::List, &ask.prefix, |settings, world| {
                if let Some(region) = ask.region.as_ref().filter(|region| world.unlisted.contains(region)) {
                    return Err(Trouble::new(TroubleKind::Network, format!("{region} cannot be listed")));
                }
                let mut page = list(settings, world, ask);
                page.next = world.next.map(|next| next(ask.after.as_deref())).or(page.next);
                world.longest_page = world.longest_page.max(page.listed.len());
                world.pages_left = world.pages_left.map(|left| left.saturating_sub(1));
                Ok(page)
            });
            listed.await
        })
    }
    fn delete<'a>(&'a self, kind: ResourceType, handle: &'a Handle) -> ProviderFuture<'a, ()> {
        if self.world().ends_hang {
            return Box::pin(std::future::pending());
        }
        self.act(Call::Delete, &handle.0, |_, world| {
            if world.others.get(&handle.0).is_some_and(|other| other.kind == kind) {
                world.others.remove(&handle.0);
            }
            Ok(())
        })
    }
    fn remove_workdir<'a>(&'a self, handle: &'a Handle, workdir: &'a str) -> ProviderFuture<'a, ()> {
        self.act(Call::RemoveWorkdir, &handle.0, |_, world| {
            check_name(&handle.0)?;
            if !is_workdir(workdir) {
                return Err(Trouble::new(TroubleKind::InvalidSpec, format!("`{workdir}` is not a workdir")));
            }
            let Some(machine) = world.machines.get_mut(&handle.0) else { return Ok(()) };
            if machine.state == MachineState::Running {
                let what = format!("the runner of {} is alive: its workdirs are its own to remove", handle.0);
                return Err(Trouble::new(TroubleKind::InvalidSpec, what));
            }
            machine.workdirs_removed.push(workdir.to_owned());
            Ok(())
        })
    }
    fn forget<'a>(&'a self, handle: &'a Handle) -> ProviderFuture<'a, ()> {
        self.act(Call::Forget, &handle.0, |_, world| {
            check_name(&handle.0)?;
            match world.machines.get(&handle.0).map(|machine| machine.state) {
                None => Ok(()),
                Some(MachineState::Gone) => {
                    world.machines.remove(&handle.0);
                    Ok(())
                }
                Some(_) => {
                    let what = format!("{} is not terminated: only what is gone is forgotten", handle.0);
                    Err(Trouble::new(TroubleKind::InvalidSpec, what))
                }
            }
        })
    }
    fn workdir_path(&self, _handle: &Handle, _workdir: &str) -> Option<String> {
        None
    }
}

fn spawn(settings: &FakeSettings, world: &mut World, order: &Order) -> Result<Handle, Trouble> {
    let name = &order.boot.name;
    check_name(name)?;
    let living = world.machines.values().filter(|m| m.state != MachineState::Gone).count() as i64;
    match world.machines.get_mut(name) {
        Some(machine) if machine.state == MachineState::Gone => {
            let what = format!("{name} was terminated: a machine's name is used once");
            return Err(Trouble::new(TroubleKind::NotFound, what));
        }
        Some(machine) if machine.boot.nonce != order.boot.nonce => return Err(stranger(name)),
        Some(machine) => {
            if machine.state == MachineState::RunnerGone {
                machine.state = MachineState::Running;
                machine.starts += 1;
            }
            machine.boot = order.boot.clone();
        }
        None if living >= settings.capabilities.max_instances => {
            return Err(Trouble::new(TroubleKind::Capacity, format!("no more than {living} machines are allowed")));
        }
        None => {
            let machine = Machine {
                boot: order.boot.clone(),
                region: order.region.clone(),
                resources: order.resources.clone(),
                spot: order.spot,
                state: if settings.queues { MachineState::Queued } else { MachineState::Running },
                starts: u32::from(!settings.queues),
                workdirs_removed: Vec::new(),
                unseen_calls: settings.list_lag_calls,
                going_calls: 0,
            };
            world.machines.insert(name.clone(), machine);
            *world.made.entry(name.clone()).or_default() += 1;
        }
    }
    Ok(Handle(name.clone()))
}

fn price(settings: &FakeSettings, region: &str, spot: bool) -> Credits {
    settings.prices.get(&(region.to_owned(), spot)).copied().unwrap_or(settings.price_per_hour)
}

/// By handle, which is what a page begins behind.
fn list(settings: &FakeSettings, world: &mut World, ask: &ListAsk) -> ListedPage {
    let is_asked_for = |name: &str, handle: &str, region: &str| {
        name.starts_with(&ask.prefix)
            && ask.region.as_deref().is_none_or(|asked| asked == region)
            && ask.after.as_deref().is_none_or(|after| handle > after)
    };
    let mut found: BTreeMap<&str, Listed> = BTreeMap::new();
    for (name, machine) in &mut world.machines {
        if is_asked_for(name, name, &machine.region) && is_seen(machine) {
            found.insert(name, listed(settings, name, machine));
        }
    }
    let others = world.others.iter().filter(|(handle, other)| is_asked_for(&other.name, handle, &other.region));
    found.extend(others.map(|(handle, other)| (handle.as_str(), other.clone())));
    let more = found.len() > ask.limit;
    let listed: Vec<Listed> = found.into_values().take(ask.limit).collect();
    let next = listed.last().filter(|_| more).map(|last| last.handle.clone());
    ListedPage { listed, next, incomplete: world.incomplete.clone() }
}

fn listed(settings: &FakeSettings, name: &str, machine: &Machine) -> Listed {
    Listed {
        kind: ResourceType::Instance,
        name: name.to_owned(),
        handle: name.to_owned(),
        nonce: Some(machine.boot.nonce.clone()),
        status: match machine.state {
            MachineState::Queued => ListedStatus::Stopped,
            MachineState::Running => ListedStatus::Running,
            MachineState::RunnerGone => ListedStatus::Stopped,
            MachineState::Going => ListedStatus::Ending,
            MachineState::Gone => ListedStatus::Ended,
        },
        instance_type: None,
        region: machine.region.clone(),
        // It has no clock.
        created_at: None,
        ip: None,
        last_seen: None,
        price_micro: Some(price(settings, &machine.region, machine.spot).0),
    }
}

/// One more look at a list in which a new machine is not yet.
fn is_seen(machine: &mut Machine) -> bool {
    let seen = machine.unseen_calls == 0;
    machine.unseen_calls = machine.unseen_calls.saturating_sub(1);
    seen
}

/// One more question to a machine on its way out.
fn go_on(machine: &mut Machine) {
    if machine.state == MachineState::Going {
        match machine.going_calls.checked_sub(1) {
            Some(left) => machine.going_calls = left,
            None => machine.state = MachineState::Gone,
        }
    }
}

fn check_name(name: &str) -> Result<(), Trouble> {
    match names::parse(name) {
        Some(_) => Ok(()),
        None => Err(Trouble::new(TroubleKind::InvalidSpec, format!("`{name}` is not the name of an instance"))),
    }
}

fn stranger(name: &str) -> Trouble {
    Trouble::new(TroubleKind::NotFound, format!("{name} is another machine than the one asked for: left alone"))
}

fn failed(kind: TroubleKind, call: Call, about: &str) -> Trouble {
    Trouble::new(kind, format!("{call:?} {about}: {kind:?}, as the script wants it"))
}
