//! Hosts of providers that have several: asks each what it has and whether it can be used, keeps the answers in rows, and says under a
//! pool's lock which host, share and GPUs a new machine gets.

use crate::provider_set::Listing;
use crate::run::Plans;
use crate::{Engine, EngineContext};
use adapters::{LookAsk, Looks, Provider};
use model::host::{self, Host, NotTaken, Place, Used, Wanted};
use model::instance::{Instance, InstanceStatus};
use model::pool::{Room, Slot};
use model::time::HOUR;
use model::{Failure, InstanceId, PoolId, Refused, Timestamp, Trouble, TroubleKind};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use store::pool::Pool;
use store::{Item, Lane, Tx, WorkKind};

/// Hosts that are up are asked again after this.
const UP_MS: i64 = HOUR;

/// The hosts of one pool and what its open machines have of them. Read under the pool's lock it stays true until the commit.
pub(crate) struct HostsNow {
    hosts: Vec<Host>,
    used: BTreeMap<String, Used>,
    places: BTreeMap<InstanceId, String>,
    ending: Vec<String>,
}

impl HostsNow {
    /// None where the provider has no choice of hosts. `unwritten`: machines that the transaction has announced.
    pub(crate) fn read<'a>(
        tx: &mut Tx,
        context: &EngineContext,
        pool: &Pool,
        unwritten: impl Iterator<Item = &'a Instance>,
    ) -> Result<Option<HostsNow>, Failure> {
        let provider = context.provider(&pool.provider)?;
        if provider.rooms().is_empty() {
            return Ok(None);
        }
        let rows = store::host::of(tx, &pool.provider)?;
        let hosts = joined(provider.as_ref(), &rows);
        let mut now = HostsNow { hosts, used: BTreeMap::new(), places: BTreeMap::new(), ending: Vec::new() };
        for instance in store::instance::open_in(tx, pool.id)? {
            now.count(&instance);
        }
        for instance in unwritten.filter(|instance| instance.pool == pool.id && instance.status.is_open()) {
            if !now.places.contains_key(&instance.id) {
                now.count(instance);
            }
        }
        Ok(Some(now))
    }

    fn count(&mut self, instance: &Instance) {
        let place = instance.place.clone().unwrap_or_default();
        let used = self.used.entry(place.clone()).or_default();
        used.machines += 1;
        used.gpus.extend(instance.gpus.iter().flatten().copied());
        if matches!(instance.status, InstanceStatus::Terminating | InstanceStatus::Draining) {
            self.ending.push(place.clone());
        }
        self.places.insert(instance.id, place);
    }

    /// Where a machine for this is made now, and why each other host is not taken.
    pub(crate) fn choose<'a>(&self, asked: impl Into<Wanted<'a>>) -> (Option<Place>, Vec<(String, NotTaken)>) {
        host::choose(&self.hosts, &self.used, asked)
    }

    /// Only of hosts on which a machine for this could be: there is room for one, or all of them are full.
    pub(crate) fn room<'a>(&self, asked: impl Into<Wanted<'a>>) -> Room {
        let asked: Wanted<'a> = asked.into();
        let could = |name: &String| self.hosts.iter().any(|host| host.name == *name && host.could(asked).is_ok());
        let instances = self.places.values().filter(|place| could(place)).count() as i64;
        let ending = self.ending.iter().filter(|place| could(place)).count() as i64;
        let max_instances = if self.choose(asked).0.is_some() { instances + 1 } else { instances };
        Room { instances, max_instances, ending }
    }

    /// An idle machine elsewhere is of no use to who asks for this, and its end makes no room for it.
    pub(crate) fn retain<'a>(&self, slots: &mut Vec<Slot>, asked: impl Into<Wanted<'a>>) {
        let asked: Wanted<'a> = asked.into();
        slots.retain(|slot| {
            let host = self.places.get(&slot.instance).and_then(|place| self.hosts.iter().find(|it| it.name == *place));
            host.is_none_or(|host| host.could(asked).is_ok())
        });
    }
}

/// The hosts of a provider, with what is known of each.
pub(crate) fn joined(provider: &dyn Provider, rows: &[Host]) -> Vec<Host> {
    let of = |room: adapters::Room| {
        let known = rows.iter().find(|row| row.provider == provider.name() && row.name == room.place);
        let unknown = Host::unknown(provider.name(), &room.place, room.slots);
        known.map_or(unknown, |known| Host { slots: room.slots, ..known.clone() })
    };
    provider.rooms().into_iter().map(of).collect()
}

/// Wakes the work item that asks the provider's hosts.
pub(crate) fn wake(tx: &mut Tx, context: &EngineContext, provider: &str) -> Result<(), Failure> {
    let region = context.provider(provider)?.capabilities().regions.into_iter().next();
    let pool = store::pool::ensure(tx, provider, region.as_deref().unwrap_or(provider))?;
    let at = tx.at();
    tx.wake(WorkKind::Hosts, pool.0, at);
    Ok(())
}

impl Engine {
    /// Works on the item of a provider with several hosts.
    pub(crate) async fn look_at_hosts(&self, item: Item) -> Result<(), Failure> {
        let id = PoolId(item.subject);
        let pool = self.store.read_inline("provider.pool", move |tx| store::pool::find(tx, id)).await?;
        let listing = pool.as_ref().and_then(|pool| self.context.providers.all().get(&pool.provider).cloned());
        let (Some(pool), Some(listing)) = (pool, listing.filter(|it| !it.leaving && !it.provider.rooms().is_empty()))
        else {
            return self.done(item).await;
        };
        let found = self.ask_hosts(&listing.provider).await?;
        let provider = listing.provider.clone();
        self.store
            .write(Lane::Normal, "provider.hosts", move |tx| {
                store::work::hold(tx, &item)?;
                let next = record(tx, provider.as_ref(), &pool, &found)?;
                store::work::finish(tx, &item, Some(next));
                Ok(())
            })
            .await?;
        self.read_providers().await
    }

    /// The same, for a request that waits for the answer.
    pub async fn see_hosts(&self, name: &str) -> Result<(), Failure> {
        let provider = self.context.provider(name)?;
        if provider.rooms().is_empty() {
            return Ok(());
        }
        let found = self.ask_hosts(&provider).await?;
        self.keep_hosts(&provider, found).await
    }

    /// Hosts of these providers that have never been asked are asked now: whether a run fits there is known when it is submitted.
    pub async fn know_hosts(&self, names: &[String]) -> Result<(), Failure> {
        let all = self.context.providers.all();
        for name in names {
            let unknown = |listing: &&Listing| listing.hosts.iter().any(|it| it.facts.is_none() && it.down.is_none());
            if all.get(name).filter(unknown).is_some() {
                self.see_hosts(name).await?;
            }
        }
        Ok(())
    }

    /// The same for the providers that agents of these plans name.
    pub(crate) async fn know_hosts_of(&self, plans: &Plans) -> Result<(), Failure> {
        let machines = plans.agents.iter().chain(&plans.planner).filter_map(|agent| agent.machine.as_ref());
        let named: BTreeSet<&String> = machines.filter_map(|machine| machine.provider.as_ref()).collect();
        self.know_hosts(&named.into_iter().cloned().collect::<Vec<_>>()).await
    }

    /// Before a provider is added: what its hosts have. Refused if one of them cannot be used for a reason that does not pass by itself, or
    /// if none can be reached; no file or process of Remuda is left there then.
    pub(crate) async fn try_hosts(&self, provider: &Arc<dyn Provider>) -> Result<Looks, Failure> {
        let found = self.ask_hosts(provider).await?;
        let troubles = || found.iter().filter_map(|(_, answer)| answer.as_ref().err());
        let passes =
            |it: &&Trouble| matches!(it.kind, TroubleKind::Network | TroubleKind::Timeout | TroubleKind::RateLimit);
        let lasting = troubles().find(|it| !passes(it));
        let all_are_down = !found.is_empty() && troubles().count() == found.len();
        let Some(trouble) = lasting.or_else(|| troubles().next().filter(|_| all_are_down)) else { return Ok(found) };
        let refused = Refused::invalid("hosts", trouble.what.clone());
        if let Err(stays) = provider.leave(&self.context.installation.control_id).await {
            tracing::warn!(provider = provider.name(), %stays, "what was copied to its hosts may be left there");
        }
        Err(refused.into())
    }

    pub(crate) async fn keep_hosts(&self, provider: &Arc<dyn Provider>, found: Looks) -> Result<(), Failure> {
        let provider = provider.clone();
        self.store
            .write(Lane::Normal, "provider.seen", move |tx| {
                let region = provider.capabilities().regions.into_iter().next().unwrap_or_default();
                let id = store::pool::ensure(tx, provider.name(), &region)?;
                let pool = store::pool::find(tx, id)?.ok_or_else(|| Refused::not_found("pool", id))?;
                let next = record(tx, provider.as_ref(), &pool, &found)?;
                tx.wake(WorkKind::Hosts, id.0, next);
                Ok(())
            })
            .await?;
        self.read_providers().await
    }

    async fn ask_hosts(&self, provider: &Arc<dyn Provider>) -> Result<Looks, Failure> {
        let control_url = self.context.url_for(provider.reach()).to_owned();
        let ask = LookAsk { control_id: self.context.installation.control_id.clone(), control_url };
        Ok(provider.look(&ask).await?)
    }
}

/// Writes what has changed; rows of hosts that the settings do not name any more go. Answers when they are asked again.
fn record(tx: &mut Tx, provider: &dyn Provider, pool: &Pool, found: &Looks) -> Result<Timestamp, Failure> {
    let (at, rows) = (tx.at(), store::host::of(tx, provider.name())?);
    let (mut next, mut better) = (at + UP_MS, false);
    for known in joined(provider, &rows) {
        let Some((_, answer)) = found.iter().find(|(name, _)| *name == known.name) else { continue };
        let seen = known.seen(answer.clone(), at);
        if let Some(down) = &seen.down {
            tracing::warn!(provider = provider.name(), host = %seen.name, why = %down.why, "a host cannot be used");
        }
        better |= seen.down.is_none() && (known.down.is_some() || known.facts != seen.facts);
        next = next.min(seen.asked_again_at(at).unwrap_or(next));
        if !rows.contains(&seen) {
            store::host::put(tx, &seen)?;
        }
    }
    let named: Vec<String> = provider.rooms().into_iter().map(|room| room.place).collect();
    for gone in rows.iter().filter(|row| !named.contains(&row.name)) {
        store::host::remove(tx, &gone.provider, &gone.name)?;
    }
    if better {
        tx.wake(WorkKind::Pool, pool.id.0, at);
    }
    Ok(next)
}
