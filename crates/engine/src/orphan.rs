//! Orphans: asks providers what they list, compares it with the rows, adopts what a row waits for and writes down the rest. Never ends,
//! deletes or changes anything that is listed, but for one orphan whose end a person has asked for by its id.

mod ask;
mod end;
pub(crate) mod import;
mod notice;
mod page;
mod unlisted;

use crate::{Engine, EngineContext, Provider};
use adapters::ListAsk;
use adapters::exec::EVERYWHERE;
use adapters::provider::LIST_PAGE;
pub(crate) use ask::Turns;
use ask::{Limit, NO_TIME, goes_on, side_by_side};
use model::orphan::{self, OrphanSection, OrphanSeverity, Whitelisted};
use model::time::{MINUTE, SECOND};
use model::{Failure, InstanceId, ManifestId, OrgId, PoolId, Refused, Timestamp, Trouble, names};
use std::collections::BTreeSet;
use std::sync::Arc;
use store::orphan::{Orphan, Scan};
use store::pool::Pool;
pub use store::unlisted::{Unlisted, UnlistedJob};
use store::{Item, Lane, NewEvent, Tx, WorkKind};

pub use import::{IMPORT_MS, Import, ImportOutcome, Imported};
pub use unlisted::UnlistedOverview;

/// A region whose list takes longer is not listed to its end. Half of the pause between two scans.
const SCAN_MS: i64 = 30 * MINUTE;
/// The same for all regions of a scan that a person waits for. The command waits for a minute more.
pub const SCAN_NOW_MS: i64 = 4 * MINUTE;
/// Regions that one request lists at the same time: one that hangs takes its minute, and holds up no other.
const SCANNED_AT_ONCE: usize = 16;
/// Rows that one transaction of a scan removes.
const AT_ONCE: i64 = 200;
/// A provider that goes on for longer than so many pages is not listed to its end.
const MOST_PAGES: i64 = 5_000;
/// Parts of a provider that could not be asked and are remembered, and of which a person is told.
const MOST_PARTS: usize = 1_000;
const PARTS_TOLD: usize = 5;
/// What the warning before a run counts up to.
pub const MOST_COUNTED: i64 = 1_000;
/// A name that an uncertain spawn may have left is looked for once more after this.
const LOOK_AGAIN_MS: i64 = 30 * SECOND;

/// What a scan takes: everything, or what is old enough that its row would be there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Young {
    Skipped,
    Shown,
}

/// A scan of one provider and region, for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScanOverview {
    pub provider: String,
    pub region: String,
    /// None: no scan has ended yet.
    pub scan: Option<Scan>,
}

/// An orphan, for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OrphanOverview {
    pub orphan: Orphan,
    pub section: OrphanSection,
    pub severity: OrphanSeverity,
    pub of_session: bool,
    pub young: bool,
    pub now: Timestamp,
}

/// A row that may be about an orphan, and how surely.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Match {
    pub instance: InstanceId,
    pub name: String,
    pub status: String,
    pub confidence: i64,
}

/// What is not on the whitelist: of this installation, and with names that tell nothing. Counted up to `MOST_COUNTED`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    pub orphans: i64,
    pub price_micro: i64,
}

/// What a person is told of a scan that left parts of its provider out.
fn partly(incomplete: &BTreeSet<String>) -> String {
    let told: Vec<&str> = incomplete.iter().take(PARTS_TOLD).map(String::as_str).collect();
    let rest = match incomplete.len() - told.len() {
        0 => String::new(),
        more => format!("; and {more} more"),
    };
    format!("scanned in part, without {}: {}{rest}", incomplete.len(), told.join("; "))
}

impl OrphanOverview {
    pub fn is_whitelisted(&self) -> bool {
        self.orphan.whitelisted.as_ref().is_some_and(|kept| kept.holds_at(self.now))
    }
}

impl Engine {
    /// One item for each provider and region, made when the control plane starts and due at once: a database that was restored from an
    /// older copy passes the ids of what providers list before it gives out many.
    pub async fn arm_scans(&self) -> Result<(), Failure> {
        let context = self.context.clone();
        self.store
            .write(Lane::Low, "orphan.arm", move |tx| {
                let due = tx.at();
                for (provider, region) in regions(&context) {
                    let pool = store::pool::ensure(tx, &provider, &region)?;
                    tx.wake(WorkKind::Scan, pool.0, due);
                }
                Ok(())
            })
            .await
    }

    /// The hourly look. Its item's lease makes one process the leader.
    pub(crate) async fn scan_pool(&self, item: Item) -> Result<(), Failure> {
        let id = PoolId(item.subject);
        let pool = self.store.read_inline("orphan.pool", move |tx| store::pool::find(tx, id)).await?;
        let Some(pool) = pool else { return self.done(item).await };
        if !self.is_scanned(&pool).await? {
            let now = self.forget_orphans_of(pool.id).await?;
            return self.at(item, now + self.context.config.orphans.scan_every_ms).await;
        }
        let scan = self.scan(&pool, Young::Skipped, self.limit(SCAN_MS)).await?;
        self.at(item, scan.finished_at + self.context.config.orphans.scan_every_ms).await
    }

    /// Whether its provider is set up and has its region. A provider that was just added may not be known to this process yet.
    async fn is_scanned(&self, pool: &Pool) -> Result<bool, Failure> {
        let here = (pool.provider.clone(), pool.region.clone());
        if regions(&self.context).contains(&here) {
            return Ok(true);
        }
        self.read_providers().await?;
        Ok(regions(&self.context).contains(&here))
    }

    /// What was listed there cannot be listed, and so neither be shown as it is nor ended from here. Found again if it is set up again.
    async fn forget_orphans_of(&self, pool: PoolId) -> Result<Timestamp, Failure> {
        loop {
            let forget = move |tx: &mut Tx| {
                let now = tx.at();
                Ok((store::orphan::vanished(tx, pool, now + 1, AT_ONCE)?, now))
            };
            let (gone, now) = self.store.write(Lane::Low, "orphan.scan", forget).await?;
            if gone < AT_ONCE as u64 {
                return Ok(now);
            }
        }
    }

    /// Everything is listed now, what is young too; regions side by side, all of them within `SCAN_NOW_MS`. The next one begins with what
    /// there was no time for. `provider`: only this one.
    pub async fn scan_now(&self, provider: Option<&str>) -> Result<Vec<ScanOverview>, Failure> {
        if let Some(provider) = provider {
            self.context.lister(provider)?;
        }
        let mut all = regions(&self.context);
        all.retain(|(name, _)| provider.is_none_or(|only| only == name));
        let first = self.turns.scan.lock().expect("only assigned").take();
        let first = first.and_then(|first| all.iter().position(|it| *it == first)).unwrap_or(0);
        all.rotate_left(first);
        let ask = |(name, region): (String, String)| self.scan_region(name, region, self.limit(SCAN_NOW_MS));
        let scanned = side_by_side(all.clone().into_iter().map(ask).collect(), SCANNED_AT_ONCE).await;
        let mut scans = scanned.into_iter().collect::<Result<Vec<_>, Failure>>()?;
        let left_out = |it: &ScanOverview| it.scan.as_ref().is_some_and(|scan| scan.error.as_deref() == Some(NO_TIME));
        *self.turns.scan.lock().expect("only assigned") = scans.iter().position(left_out).map(|at| all[at].clone());
        scans.rotate_right(first);
        Ok(scans)
    }

    async fn scan_region(&self, provider: String, region: String, mut limit: Limit) -> Result<ScanOverview, Failure> {
        let (of, at) = (provider.clone(), region.clone());
        let find = move |tx: &mut Tx| {
            let pool = store::pool::ensure(tx, &of, &at)?;
            Ok((store::pool::find(tx, pool)?, store::orphan::scan_of(tx, pool)?))
        };
        let (pool, before) = self.store.write(Lane::Normal, "orphan.arm", find).await?;
        let pool = pool.ok_or_else(|| Trouble::internal("a pool that was just made is not there"))?;
        if limit.is_spent().await {
            let scan = Scan { error: Some(NO_TIME.to_owned()), ..before.unwrap_or_default() };
            return Ok(ScanOverview { provider, region, scan: Some(scan) });
        }
        let scan = Some(self.scan(&pool, Young::Shown, limit).await?);
        Ok(ScanOverview { provider, region, scan })
    }

    /// Page by page: each is compared and written before the next is asked for. Where a part of the provider could not be asked, what the
    /// others have is still compared, and nothing counts as vanished.
    async fn scan(&self, pool: &Pool, young: Young, limit: Limit) -> Result<Scan, Failure> {
        let id = pool.id;
        let begin = move |tx: &mut Tx| {
            while store::orphan::expire(tx, AT_ONCE)? == AT_ONCE {}
            Ok((tx.at(), store::orphan::scan_of(tx, id)?))
        };
        let (started_at, before) = self.store.write(Lane::Low, "orphan.scan", begin).await?;
        self.forget_silent_runners().await?;
        let before = before.unwrap_or_default();
        let mut scan = Scan { started_at, complete_at: before.complete_at, notify_tries: 0, ..Scan::default() };
        let listed = match self.context.lister(&pool.provider) {
            Ok(provider) => self.list_all(provider.as_ref(), pool, (young, limit), &mut scan).await,
            Err(refused) => Err(Trouble::internal(refused.to_string()).into()),
        };
        match listed {
            Ok(incomplete) if incomplete.is_empty() => self.remove_vanished(id, started_at).await?,
            Ok(incomplete) => scan.error = Some(partly(&incomplete)),
            // Nothing is said of what was not listed, least of all that it is gone.
            Err(Failure::Trouble(trouble)) => scan.error = Some(trouble.what),
            Err(refused) => return Err(refused),
        }
        let tells = self.notifier.is_some();
        let save = move |tx: &mut Tx| {
            let at = tx.at();
            let complete_at = if scan.error.is_none() { Some(at) } else { scan.complete_at };
            let scan = Scan { finished_at: at, complete_at, ..scan.clone() };
            store::orphan::save_scan(tx, id, &scan)?;
            if tells {
                tx.wake(WorkKind::OrphanNotice, id.0, at);
            }
            Ok(scan)
        };
        self.store.write(Lane::Low, "orphan.scan", save).await
    }

    /// The parts of the provider that could not be asked.
    async fn list_all(
        &self,
        provider: &dyn Provider,
        pool: &Pool,
        (young, mut limit): (Young, Limit),
        scan: &mut Scan,
    ) -> Result<BTreeSet<String>, Failure> {
        let mut incomplete = BTreeSet::new();
        let mut ask = ListAsk {
            prefix: format!("{}-", names::PREFIX),
            region: Some(pool.region.clone()),
            after: None,
            limit: LIST_PAGE,
        };
        loop {
            let page = self.within(provider.list(&ask), &mut limit).await?;
            scan.pages += 1;
            incomplete.extend(page.incomplete.into_iter().take(MOST_PARTS - incomplete.len().min(MOST_PARTS)));
            let next = page.next;
            let ours = |name: &names::ResourceName| name.control_id == self.context.installation.control_id;
            let names = page.listed.iter().filter_map(|it| it.inferred().filter(ours));
            self.pass_ids(unlisted::highest(names.flat_map(|name| name.ids()))).await?;
            self.note_page(pool, young, scan, page.listed).await?;
            if !goes_on(&mut ask, next, scan.pages, MOST_PAGES)? {
                return Ok(incomplete);
            }
        }
    }

    async fn remove_vanished(&self, pool: PoolId, scan: Timestamp) -> Result<(), Failure> {
        let remove = move |tx: &mut Tx| store::orphan::vanished(tx, pool, scan, AT_ONCE);
        while self.store.write(Lane::Low, "orphan.scan", remove).await? == AT_ONCE as u64 {}
        Ok(())
    }

    /// The last scan of every provider and region.
    pub async fn scans(&self) -> Result<Vec<ScanOverview>, Failure> {
        let context = self.context.clone();
        self.store
            .read("orphan.scans", move |tx| {
                let pools = store::pool::all(tx)?;
                let of = |provider: &str, region: &str| {
                    pools.iter().find(|pool| pool.provider == provider && pool.region == region)
                };
                let mut found = Vec::new();
                for (provider, region) in regions(&context) {
                    let scan = match of(&provider, &region) {
                        Some(pool) => store::orphan::scan_of(tx, pool.id)?,
                        None => None,
                    };
                    found.push(ScanOverview { provider, region, scan });
                }
                Ok(found)
            })
            .await
    }

    /// Newest first, before this id.
    pub async fn orphans(&self, before: i64, limit: i64) -> Result<Vec<OrphanOverview>, Failure> {
        let context = self.context.clone();
        self.store
            .read("orphan.page", move |tx| {
                let (session, now) = (store::worker::session_began(tx)?, tx.at());
                let found = store::orphan::page(tx, before, limit)?;
                Ok(found.into_iter().map(|orphan| picture(&context, orphan, session, now)).collect())
            })
            .await
    }

    /// The orphan with this id at its provider. `provider` says which, where several have one.
    pub async fn orphan(&self, provider: Option<&str>, id: &str) -> Result<OrphanOverview, Failure> {
        let (context, provider, id) = (self.context.clone(), provider.map(str::to_owned), id.to_owned());
        self.store
            .read("orphan.show", move |tx| {
                let (session, now) = (store::worker::session_began(tx)?, tx.at());
                let orphan = one(tx, provider.as_deref(), &id)?;
                Ok(picture(&context, orphan, session, now))
            })
            .await
    }

    /// Rows of this org that may be about an orphan.
    pub async fn matches(&self, org: OrgId, orphan: &Orphan) -> Result<Vec<Match>, Failure> {
        let (name, inferred) = (orphan.listed.name.clone(), orphan.listed.inferred());
        let Some(inferred) = inferred.filter(|it| it.control_id == self.context.installation.control_id) else {
            return Ok(Vec::new());
        };
        self.store
            .read("orphan.matches", move |tx| {
                let mut rows = Vec::from_iter(store::instance::by_name(tx, &name)?);
                rows.extend(store::instance::find(tx, InstanceId(inferred.resource))?);
                if let Some(manifest) = inferred.manifest {
                    for (kind, id) in store::manifest::resources(tx, ManifestId(manifest))? {
                        if kind == model::manifest::ResourceKind::Instance {
                            rows.extend(store::instance::find(tx, InstanceId(id))?);
                        }
                    }
                }
                rows.sort_by_key(|row| row.id);
                rows.dedup_by_key(|row| row.id);
                let mut matches: Vec<Match> = rows
                    .iter()
                    .filter(|row| row.org == org)
                    .filter_map(|row| {
                        let confidence = orphan::confidence(&name, &inferred, row)?;
                        let (instance, status) = (row.id, row.status.to_string());
                        Some(Match { instance, name: row.name.clone(), status, confidence })
                    })
                    .collect();
                matches.sort_by_key(|it| std::cmp::Reverse(it.confidence));
                Ok(matches)
            })
            .await
    }

    /// What a person is warned of before a run.
    pub async fn tally_orphans(&self) -> Result<Tally, Failure> {
        let ours = self.context.installation.control_id.clone();
        self.store
            .read("orphan.tally", move |tx| {
                let (ours, unknown) =
                    (store::orphan::count(tx, &ours, MOST_COUNTED)?, store::orphan::count(tx, "", MOST_COUNTED)?);
                Ok(Tally { orphans: ours.0 + unknown.0, price_micro: ours.1 + unknown.1 })
            })
            .await
    }

    /// `entry` is of the orphan with this id, whose kind and provider it takes.
    pub async fn keep_orphan(
        &self,
        org: OrgId,
        provider: Option<&str>,
        entry: Whitelisted,
    ) -> Result<Whitelisted, Failure> {
        let provider = provider.map(str::to_owned);
        self.store
            .write(Lane::Normal, "orphan.keep", move |tx| {
                let at = tx.at();
                entry.check(at)?;
                let orphan = one(tx, provider.as_deref(), &entry.provider_id)?;
                let entry = Whitelisted {
                    provider: orphan.provider,
                    kind: orphan.listed.kind,
                    acknowledged_at: at,
                    ..entry.clone()
                };
                store::orphan::keep(tx, &entry)?;
                publish(tx, org, "orphan.whitelisted", &entry.provider, &entry.provider_id, &entry.acknowledged_by);
                Ok(entry)
            })
            .await
    }

    pub async fn unkeep_orphan(
        &self,
        (org, by): (OrgId, String),
        provider: Option<&str>,
        id: &str,
    ) -> Result<(), Failure> {
        let (provider, id) = (provider.map(str::to_owned), id.to_owned());
        self.store
            .write(Lane::Normal, "orphan.keep", move |tx| {
                let mut kept = store::orphan::kept(tx, &id)?;
                kept.retain(|entry| provider.as_ref().is_none_or(|only| *only == entry.provider));
                let entry = only(kept, &id, |entry| &entry.provider)?;
                store::orphan::unkeep(tx, &entry.provider, &id)?;
                publish(tx, org, "orphan.unwhitelisted", &entry.provider, &id, &by);
                Ok(())
            })
            .await
    }

    /// In the order of provider and id, after these.
    pub async fn kept_orphans(&self, after: (String, String), limit: i64) -> Result<Vec<Whitelisted>, Failure> {
        let read = move |tx: &mut Tx| store::orphan::kept_page(tx, (&after.0, &after.1), limit);
        self.store.read("orphan.kept", read).await
    }
}

fn regions(context: &EngineContext) -> Vec<(String, String)> {
    let of = |(name, listing): (&String, &crate::Listing)| {
        let regions = listing.provider.capabilities().regions;
        regions.into_iter().map(|region| (name.clone(), region)).collect::<Vec<_>>()
    };
    let all = context.providers.all();
    let listers = context.providers.listers().keys().map(|name| (name.clone(), EVERYWHERE.to_owned()));
    all.iter().flat_map(of).chain(listers).collect()
}

impl EngineContext {
    /// Who lists what this is about: a provider, or the program of a feature.
    fn lister(&self, name: &str) -> Result<Arc<dyn Provider>, Refused> {
        self.providers.listers().get(name).map_or_else(|| self.provider(name), |lister| Ok(lister.clone()))
    }
}

fn picture(context: &EngineContext, orphan: Orphan, session: Option<Timestamp>, now: Timestamp) -> OrphanOverview {
    let (section, severity) = orphan::classify(&orphan.listed, &context.installation.control_id, session);
    let of_session = section != OrphanSection::OtherInstallations && orphan::is_of_session(&orphan.listed, session);
    let young = orphan.listed.is_young(&context.config.orphans, now);
    OrphanOverview { orphan, section, severity, of_session, young, now }
}

fn one(tx: &mut Tx, provider: Option<&str>, id: &str) -> Result<Orphan, Failure> {
    let mut found = store::orphan::by_handle(tx, id)?;
    found.retain(|orphan| provider.is_none_or(|only| only == orphan.provider));
    only(found, id, |orphan| &orphan.provider)
}

/// Two providers may call different things the same.
fn only<T>(mut found: Vec<T>, id: &str, provider: impl Fn(&T) -> &String) -> Result<T, Failure> {
    if found.len() > 1 {
        let all: Vec<&str> = found.iter().map(|it| provider(it).as_str()).collect();
        return Err(Refused::invalid("provider", format!("`{id}` is known at {}: say which", all.join(", "))).into());
    }
    found.pop().ok_or_else(|| Refused::not_found("orphan", id).into())
}

fn publish(tx: &mut Tx, org: OrgId, kind: &'static str, provider: &str, id: &str, by: &str) {
    let body = store::body!({ "provider": provider, "provider_id": id, "by": by });
    tx.event(NewEvent { org, run: None, kind, body });
}
