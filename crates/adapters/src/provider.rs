//! The trait of all providers. A handle is text, so that any process of the control plane can use it. A provider never decides whether to act.

use crate::ssh::Dial;
use model::boot::Boot;
use model::host::HostFacts;
pub use model::orphan::Listed;
use model::orphan::ResourceType;
use model::provider_row::Stays;
use model::spec::{Gpu, OnLostControl, Resources, Sandbox};
use model::{Credits, Timestamp, Trouble, TroubleKind};
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;

/// A call to the provider. It may fail, and it may have had its effect although it failed (`Trouble::effect`).
pub type ProviderFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, Trouble>> + Send + 'a>>;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Capabilities {
    pub regions: Vec<String>,
    /// As many instances as may exist at once.
    pub max_instances: i64,
    /// The workdir outlives the runner: a hold does not need the machine.
    pub keeps_workdirs: bool,
    /// The machine costs its owner money while it exists: it is taken only by who asked for this provider.
    pub bills: bool,
    /// `inspect` tells a machine whose runner is gone from one whose runner lives.
    pub sees_runner: bool,
    /// `spawn` by the name of a machine whose runner is gone starts one there; else the machine does so by itself.
    pub restarts_runner: bool,
    /// A name is remembered when its machine is terminated, until it is forgotten: a late order makes no second machine.
    pub remembers_names: bool,
    /// It has machines that are cheaper and may be taken away at any time.
    pub spot: bool,
    /// Kinds of GPUs, each with as many as one machine can have.
    pub gpus: Vec<Gpu>,
    pub default_on_lost_control: OnLostControl,
    /// Login user of allocations.
    pub user: String,
    /// The largest machine there can be here, but for its GPUs; what is not said has no bound that is known before it is asked for.
    pub largest: Resources,
}

impl Default for Capabilities {
    /// Of a provider that can do everything that does not cost anything.
    fn default() -> Capabilities {
        Capabilities {
            regions: Vec::new(),
            max_instances: 1,
            keeps_workdirs: true,
            bills: false,
            sees_runner: true,
            restarts_runner: true,
            remembers_names: true,
            spot: false,
            gpus: Vec::new(),
            default_on_lost_control: OnLostControl::Finish,
            user: String::new(),
            largest: Resources::default(),
        }
    }
}

/// A machine to be made. Its row, with this name, is committed before the call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Order {
    pub boot: Boot,
    pub region: String,
    pub resources: Resources,
    /// One that may be taken away at any time.
    pub spot: bool,
    /// As the provider itself named it when it said the price.
    pub instance_type: Option<String>,
    /// Which of the provider's rooms, where it has several.
    pub place: Option<String>,
    /// What the machine is made from, as its provider names it; none: the provider's own choice.
    pub image: Option<String>,
    /// At least so large; none: the provider's own choice.
    pub disk_bytes: Option<i64>,
    /// For the machine's first start, as its provider takes it.
    pub user_data: Option<String>,
    /// For people who look at the provider's own lists.
    pub labels: BTreeMap<String, String>,
}

impl Order {
    /// An ordinary machine of no particular type.
    pub fn new(boot: Boot, region: impl Into<String>, resources: Resources) -> Order {
        Order {
            boot,
            region: region.into(),
            disk_bytes: resources.disk_bytes,
            resources,
            spot: false,
            instance_type: None,
            place: None,
            image: None,
            user_data: None,
            labels: BTreeMap::new(),
        }
    }
}

/// A host of a provider on which machines are made. Which one is chosen stands in the machine's row before it is made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Room {
    pub place: String,
    /// Machines at once.
    pub slots: i64,
}

/// What each host has answered.
pub type Looks = Vec<(String, Result<HostFacts, Trouble>)>;

/// What a host is told when it is asked whether it can be used: for whom, and how its runners would reach the control plane.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LookAsk {
    pub control_id: String,
    pub control_url: String,
}

pub use model::host::Platform;

/// How the link of a machine's runner to the control plane ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Linked {
    /// It was there, and is not any more.
    Ended,
    /// The runner dials by itself, or is gone.
    Unneeded,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Handle(pub String);

/// What the provider knows of a machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Seen {
    /// Accepted, and waiting to be started: nothing is paid for it yet, and its runner is not expected.
    Queued { since: Option<Timestamp>, why: String },
    /// It exists and is the one with our nonce.
    Alive,
    /// The machine is there, its runner is not: spawning again by name brings it back.
    RunnerGone,
    /// Surely gone.
    Gone,
    /// A machine has the name but another nonce: it is not ours and must not be touched.
    Stranger,
}

/// What one type of machine costs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PriceLine {
    pub region: String,
    pub spot: bool,
    pub instance_type: Option<String>,
    pub resources: Resources,
    pub per_hour: Credits,
}

/// Which of the control plane's addresses the runners of a provider dial.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// Runners are processes of the control plane's host.
    Host,
    /// Runners are on other machines: the setting `public_url`.
    Public,
    /// The same where it is set and they can reach it; else the provider carries their connections (`Provider::link`).
    Relay,
}

/// What a runner is told to dial when there is no address: its provider puts the relay's socket in its place.
pub const RELAY_URL: &str = "relay:";

/// Which part of a provider's list is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListAsk {
    pub prefix: String,
    /// Only of this region; of all without one.
    pub region: Option<String>,
    /// `next` of the page before.
    pub after: Option<String>,
    /// As many at most.
    pub limit: usize,
}

impl ListAsk {
    /// The first page of what is named so, in all regions.
    pub fn of(prefix: &str) -> ListAsk {
        ListAsk { prefix: prefix.to_owned(), region: None, after: None, limit: LIST_PAGE }
    }
}

/// A page is in memory as a whole, so its length is limited.
pub const LIST_PAGE: usize = 200;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ListedPage {
    pub listed: Vec<Listed>,
    /// Where the next page begins; none behind the last.
    pub next: Option<String>,
    /// Parts of the provider, for example hosts, that could not be asked for this page, each with the reason. What is there is not listed,
    /// and nothing follows from its absence. Where no part could be asked, `list` is an error.
    pub incomplete: Vec<String>,
}

pub trait Provider: Send + Sync {
    fn name(&self) -> &str;
    fn capabilities(&self) -> Capabilities;
    fn reach(&self) -> Reach;
    /// Credits per instance-hour of a machine that is made for this.
    fn price(&self, asked: &Resources, region: &str, spot: bool) -> Credits;
    /// What the provider calls the machine that is made for this, if it has such names.
    fn instance_type(&self, _asked: &Resources, _region: &str) -> Option<String> {
        None
    }
    /// Its prices, for people: of each type of machine in each region.
    fn prices(&self) -> Vec<PriceLine> {
        let capabilities = self.capabilities();
        let mut lines = Vec::new();
        for region in capabilities.regions {
            for spot in [false, true].into_iter().filter(|spot| capabilities.spot || !spot) {
                let resources = self.size_for(&Resources::default());
                let per_hour = self.price(&resources, &region, spot);
                lines.push(PriceLine { region: region.clone(), spot, instance_type: None, resources, per_hour });
            }
        }
        lines
    }
    /// The size of the machine that is made for a run that asks for this: at least as large, if `capabilities` say that it can be.
    fn size_for(&self, asked: &Resources) -> Resources;
    /// Whether its machines can make sandboxes, as far as that is known before there is one. Otherwise why not.
    fn can_sandbox(&self) -> Result<(), String> {
        Ok(())
    }
    /// Architecture and operating system of all its machines, where they are known before there is one. Results are kept only for those.
    fn platform(&self) -> Option<Platform> {
        None
    }
    /// The sandbox of a plain task that does not say whether it wants one.
    fn default_sandbox(&self) -> Option<Sandbox> {
        None
    }
    /// Idempotent by name: a machine that exists already is returned (its runner started again if it is gone).
    fn spawn<'a>(&'a self, order: &'a Order) -> ProviderFuture<'a, Handle>;
    /// The machine of this name, also one that is gone and not yet forgotten; `inspect` tells them apart.
    fn find_by_name<'a>(&'a self, name: &'a str) -> ProviderFuture<'a, Option<Handle>>;
    /// The same where the machine's room is known.
    fn find_at<'a>(&'a self, name: &'a str, _place: Option<&'a str>) -> ProviderFuture<'a, Option<Handle>> {
        self.find_by_name(name)
    }
    /// Its hosts, where it has several and the control plane is to choose one for each machine.
    fn rooms(&self) -> Vec<Room> {
        Vec::new()
    }
    /// What each of its hosts has, by its name; an error where no machine could be made now.
    fn look<'a>(&'a self, _ask: &'a LookAsk) -> ProviderFuture<'a, Looks> {
        Box::pin(std::future::ready(Ok(Looks::new())))
    }
    /// On which of its hosts a machine is.
    fn room_of(&self, _handle: &Handle) -> Option<String> {
        None
    }
    fn inspect<'a>(&'a self, handle: &'a Handle, nonce: &'a str) -> ProviderFuture<'a, Seen>;
    /// Ends the machine and everything on it. Ok means that it is surely gone, now or before; `Trouble` that it may still exist.
    /// A machine with another nonce is left alone. An empty `nonce` stands for a machine that `list` gives without one.
    fn terminate<'a>(&'a self, handle: &'a Handle, nonce: &'a str) -> ProviderFuture<'a, ()>;
    /// What exists under names that begin so, whatever else it is named; a page at a time, in an order that stays.
    fn list<'a>(&'a self, ask: &'a ListAsk) -> ProviderFuture<'a, ListedPage>;
    /// Deletes what is no machine, by a person's word only. Gone already is fine.
    fn delete<'a>(&'a self, kind: ResourceType, _handle: &'a Handle) -> ProviderFuture<'a, ()> {
        let what = format!("the provider `{}` has no {kind}", self.name());
        Box::pin(std::future::ready(Err(Trouble::new(TroubleKind::InvalidSpec, what))))
    }
    /// Deletes a workdir whose runner is gone (only where workdirs survive their runner).
    fn remove_workdir<'a>(&'a self, handle: &'a Handle, workdir: &'a str) -> ProviderFuture<'a, ()>;
    /// Deletes what the provider keeps of a terminated machine. Called when no workdir of it is held any more.
    fn forget<'a>(&'a self, handle: &'a Handle) -> ProviderFuture<'a, ()>;
    /// Where a workdir is, for people.
    fn workdir_path(&self, handle: &Handle, workdir: &str) -> Option<String>;
    /// Carries the connections of a machine's runner to the control plane, for as long as it is waited for.
    fn link<'a>(&'a self, _handle: &'a Handle, _dial: Dial) -> ProviderFuture<'a, Linked> {
        Box::pin(std::future::ready(Ok(Linked::Unneeded)))
    }
    /// The provider is removed: what this control plane has put on its hosts goes. No machine is left when it is called. Answers what stays
    /// all the same, host by host; may be repeated.
    fn leave<'a>(&'a self, _control_id: &'a str) -> ProviderFuture<'a, Vec<Stays>> {
        Box::pin(std::future::ready(Ok(Vec::new())))
    }
}

/// `work_1`, `work_2`, …: the only folders of an instance that a caller may ask to have removed.
pub(crate) fn is_workdir(name: &str) -> bool {
    let number = name.strip_prefix("work_").unwrap_or("");
    number.parse::<u32>().is_ok_and(|n| n.to_string() == number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_workdir_is_work_and_a_number() {
        for (name, is) in [
            ("work_1", true),
            ("work_4294967295", true),
            ("work_", false),
            ("work_01", false),
            ("work_+1", false),
            ("work_1/..", false),
            ("../work_1", false),
            ("work_1\n", false),
            ("jobs", false),
            ("", false),
        ] {
            assert_eq!(is_workdir(name), is, "{name:?}");
        }
    }
}
