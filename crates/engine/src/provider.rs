//! Providers that a person adds and removes, beside those of the settings, which win. Each has a row; every process makes its set from the
//! settings and the rows, when it starts and when a row changes. A provider goes when the last of its machines is gone.

use crate::provider_set::{Listing, Listings};
use crate::{Engine, EngineContext};
use adapters::registry::{EXEC, ProviderTable};
use adapters::{PriceLine, Reach};
use model::provider_row::{Departure, ProviderRow, Stays};
use model::{Failure, Refused};
use std::collections::BTreeMap;
use store::{Lane, Tx, WorkKind};

/// A provider as it is set up now.
#[derive(Clone)]
pub struct ProviderOverview {
    pub name: String,
    pub listing: Listing,
    /// None of one that only the settings of this process know.
    pub kind: Option<String>,
    /// Its machines that are not terminated.
    pub instances: i64,
    /// The same by host, where it has several.
    pub on: BTreeMap<String, i64>,
    /// What stays on hosts of one that is being removed.
    pub stays: Vec<Stays>,
}

impl Engine {
    /// When a process starts: the settings are copied into rows, and what was deleted there stays for as long as it has machines.
    pub async fn open_providers(&self) -> Result<(), Failure> {
        let (own, context) = (self.context.providers.of_settings(), self.context.clone());
        self.store
            .write(Lane::Normal, "provider.copy", move |tx| {
                let rows = store::provider::all(tx)?;
                for (name, table) in &own {
                    let copy = copy(tx, name, table);
                    let same = rows.iter().find(|row| row.name == *name);
                    if same.is_none_or(|row| ProviderRow { added_at: copy.added_at, ..row.clone() } != copy) {
                        store::provider::put(tx, &copy)?;
                    }
                }
                let known = store::host::all(tx)?;
                for (name, listing) in context.providers.own() {
                    let hosts = crate::host::joined(listing.provider.as_ref(), &known);
                    if hosts.iter().any(|host| !known.contains(host)) {
                        crate::host::wake(tx, &context, &name)?;
                    }
                }
                for row in rows.iter().filter(|row| row.of_settings && !own.contains_key(&row.name)) {
                    if !row.leaving {
                        leave(tx, row, None)?;
                    }
                }
                Ok(())
            })
            .await?;
        self.read_providers().await
    }

    /// The set as the settings and the rows have it now.
    pub async fn read_providers(&self) -> Result<(), Failure> {
        let read = |tx: &mut Tx| Ok((store::provider::all(tx)?, store::host::all(tx)?));
        let (rows, hosts) = self.store.read("provider.all", read).await?;
        self.context.set_providers(&rows, &hosts);
        Ok(())
    }

    pub async fn add_provider(&self, wanted: ProviderRow) -> Result<ProviderOverview, Failure> {
        let (name, context) = (wanted.name.clone(), self.context.clone());
        if context.providers.of_settings().contains_key(&name) {
            let why = format!("[providers.{name}] stands in the settings, which win: choose another name");
            return Err(Refused::Conflict { why }.into());
        }
        if wanted.kind == EXEC {
            let why = format!(
                "`{EXEC}` starts a program of the control plane's host, so it stands in the settings only: [providers.{name}]"
            );
            return Err(Refused::invalid("kind", why).into());
        }
        let made = context.providers.make(&wanted)?;
        if made.provider.reach() == Reach::Public && context.control_urls.public.is_none() {
            let why =
                "its machines must be able to dial the control plane: set public_url in config.toml or REPL_PUBLIC_URL";
            return Err(Refused::invalid("public_url", why).into());
        }
        let found = self.try_hosts(&made.provider).await?;
        let regions = made.provider.capabilities().regions;
        self.store
            .write(Lane::Normal, "provider.add", move |tx| {
                let added_at = tx.at();
                let row = ProviderRow { added_at, ..wanted.clone() };
                match store::provider::find(tx, &row.name)? {
                    Some(known) if ProviderRow { added_at, added_by: row.added_by.clone(), ..known.clone() } == row => {
                        Ok(())
                    }
                    Some(known) if known.leaving => {
                        let why = format!(
                            "a provider `{0}` is still being removed: repl provider remove {0} says what it waits for",
                            known.name
                        );
                        Err(Refused::Conflict { why }.into())
                    }
                    Some(known) => {
                        let why = format!("there is a provider `{0}` already: repl provider remove {0}", known.name);
                        Err(Refused::Conflict { why }.into())
                    }
                    None => {
                        store::provider::put(tx, &row)?;
                        for region in &regions {
                            let pool = store::pool::ensure(tx, &row.name, region)?;
                            tx.wake(WorkKind::Scan, pool.0, added_at);
                        }
                        Ok(())
                    }
                }
            })
            .await?;
        self.read_providers().await?;
        if !found.is_empty() {
            self.keep_hosts(&made.provider, found).await?;
        }
        self.provider_picture(&name).await
    }

    /// From now on it makes no machine. Its idle machines end, the others when their jobs have; with `force` all of them now. Then its hosts
    /// are cleared (`departure`). Answers how often that was tried before.
    pub async fn remove_provider(&self, name: &str, force: bool, by: String) -> Result<i64, Failure> {
        if self.context.providers.of_settings().contains_key(name) {
            let why = format!("`{name}` stands in the settings: delete [providers.{name}] there and restart");
            return Err(Refused::Conflict { why }.into());
        }
        let named = name.to_owned();
        let forced_by = force.then(|| by.clone());
        let tried = self
            .store
            .write(Lane::Normal, "provider.leave", move |tx| {
                let row = store::provider::find(tx, &named)?.ok_or_else(|| Refused::not_found("provider", &named))?;
                leave(tx, &row, forced_by.clone())?;
                Ok(row.departure.tries)
            })
            .await?;
        self.read_providers().await?;
        if force {
            self.force_out(name, &by).await?;
        }
        Ok(tried)
    }

    pub async fn list_providers(&self) -> Result<Vec<ProviderOverview>, Failure> {
        let all = self.context.providers.all();
        let (rows, open) = self
            .store
            .read("provider.page", |tx| {
                let mut open: BTreeMap<String, (i64, BTreeMap<String, i64>)> = BTreeMap::new();
                for pool in store::pool::all(tx)? {
                    let (all, on) = open.entry(pool.provider).or_default();
                    for instance in store::instance::open_in(tx, pool.id)? {
                        *all += 1;
                        *on.entry(instance.place.unwrap_or_default()).or_default() += 1;
                    }
                }
                Ok((store::provider::all(tx)?, open))
            })
            .await?;
        let picture = |(name, listing): (&String, &Listing)| ProviderOverview {
            name: name.clone(),
            listing: listing.clone(),
            kind: rows.iter().find(|row| row.name == *name).map(|row| row.kind.clone()),
            instances: open.get(name).map_or(0, |(all, _)| *all),
            on: open.get(name).map_or_else(BTreeMap::new, |(_, on)| on.clone()),
            stays: rows.iter().find(|row| row.name == *name).map_or_else(Vec::new, |row| row.departure.stays.clone()),
        };
        Ok(all.iter().map(picture).collect())
    }

    pub async fn provider_picture(&self, name: &str) -> Result<ProviderOverview, Failure> {
        let found = self.list_providers().await?.into_iter().find(|it| it.name == name);
        found.ok_or_else(|| Refused::not_found("provider", name).into())
    }

    /// What machines cost, by provider, region, spot and type.
    pub fn prices(&self, only: Option<&str>) -> Result<Vec<(String, PriceLine)>, Refused> {
        if let Some(name) = only {
            self.context.provider(name)?;
        }
        let all = self.context.providers.all();
        let wanted = all.iter().filter(|(name, _)| only.is_none_or(|only| only == *name));
        let lines = |(name, listing): (&String, &Listing)| {
            listing.provider.prices().into_iter().map(|line| (name.clone(), line)).collect::<Vec<_>>()
        };
        Ok(wanted.flat_map(lines).collect())
    }
}

impl EngineContext {
    fn set_providers(&self, rows: &[ProviderRow], hosts: &[model::host::Host]) {
        let mut listings: Listings = self.providers.own();
        for row in rows.iter().filter(|row| !self.providers.of_settings().contains_key(&row.name)) {
            match self.providers.make(row) {
                Ok(made) => drop(listings.insert(row.name.clone(), made)),
                Err(refused) => tracing::error!(provider = %row.name, %refused, "it cannot be used as its row says"),
            }
        }
        for listing in listings.values_mut() {
            listing.hosts = crate::host::joined(listing.provider.as_ref(), hosts);
        }
        self.providers.replace(listings);
    }
}

/// No new machine is made there, and each job that waits for one and each idle machine there is reconciled.
fn leave(tx: &mut Tx, row: &ProviderRow, forced_by: Option<String>) -> Result<(), Failure> {
    let forced_by = forced_by.or_else(|| row.departure.forced_by.clone());
    let departure = Departure { forced_by, ..row.departure.clone() };
    store::provider::put(tx, &ProviderRow { leaving: true, departure, ..row.clone() })?;
    crate::departure::wake(tx, &row.name, &row.name)?;
    let at = tx.at();
    for pool in store::pool::all(tx)?.into_iter().filter(|pool| pool.provider == row.name) {
        tx.wake(WorkKind::Pool, pool.id.0, at);
        for instance in store::instance::open_in(tx, pool.id)? {
            tx.wake(WorkKind::Instance, instance.id.0, at);
        }
    }
    Ok(())
}

fn copy(tx: &mut Tx, name: &str, table: &ProviderTable) -> ProviderRow {
    ProviderRow {
        name: name.to_owned(),
        kind: table.kind.clone().unwrap_or_default(),
        keys: table.keys.clone(),
        orgs: table.orgs.clone(),
        price_per_hour: None,
        of_settings: true,
        leaving: false,
        departure: Departure::default(),
        added_by: "the settings".to_owned(),
        added_at: tx.at(),
    }
}
