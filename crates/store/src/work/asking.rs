//! Permits of providers. An item of a kind that calls a provider is leased only while this process holds fewer items of that provider than
//! its share, so a provider that hangs or is dead takes no permit from items of other providers, nor from items that only change rows. A due
//! item of a provider that has its share is parked, so that later claims do not meet it again, and comes back, oldest first, when fewer are
//! held.
//!
//! In `work.org_id` a provider is minus the id of its first pool. A workflow that belongs to no pool (the cleanup of a manifest may call
//! several providers) has the number -9223372036854775807, which no pool has.

use super::{Candidate, WorkKind, parking};
use crate::args;
use crate::sql::Sql;
use crate::tx::Tx;
use model::time::SECOND;
use model::{Failure, Timestamp};
use std::collections::BTreeMap;

const CONTROL: i64 = 0;
/// Items of each provider that one claim brings back although the provider has its share.
const AT_ONCE: i64 = 100;
/// What is decided about a machine by its silence does not wait for its provider's permits longer than this: then its item is leased
/// without one, and its holder decides by rows only.
const UNASKED_AFTER_MS: i64 = 30 * SECOND;

/// What a process holds of the permits of providers.
#[derive(Debug, Clone)]
pub struct Asking {
    /// Items of one provider that one process may hold.
    pub of_one_provider: i64,
    /// Items that this process holds, by provider.
    pub held: BTreeMap<i64, i64>,
    /// Whether parked items are looked for.
    pub brings_back: bool,
}

impl Asking {
    pub(super) fn unbounded() -> Asking {
        Asking { of_one_provider: i64::MAX, held: BTreeMap::new(), brings_back: true }
    }

    fn free(&self, provider: i64) -> i64 {
        self.of_one_provider - self.held.get(&provider).copied().unwrap_or(0)
    }

    /// Whether this process may lease one of the parked items of these providers.
    pub fn may_bring_back(&self, parked: &[i64]) -> bool {
        parked.iter().any(|provider| self.free(*provider) > 0)
    }

    /// Parked items are due again: of each provider as many as it has permits free, and machines that have waited for too long.
    pub(super) fn bring_back(&self, tx: &mut Tx) -> Result<(), Failure> {
        if !self.brings_back {
            return Ok(());
        }
        let (mut back, waited_since) = (BTreeMap::new(), tx.at() - UNASKED_AFTER_MS);
        for provider in parked(tx)? {
            let mut found = tx.rows(&PARKED_INSTANCES, &args![provider, waited_since, AT_ONCE])?;
            let free = self.free(provider).clamp(0, AT_ONCE);
            if free > 0 {
                found.extend(tx.rows(&parking::PARKED, &args![provider, free])?);
            }
            for row in found {
                let (kind, subject) = (row.str(0)?.to_owned(), row.int(1)?);
                let parked = args![kind.as_str(), subject, row.int(2)?, row.int(3)?, CONTROL, provider];
                back.insert((kind, subject), parked);
            }
        }
        tx.insert_many(&parking::PARK, back.into_values().collect())
    }

    /// Of the due items those that may be leased, up to `limit`. Those of providers that have their share are parked; how many. Items
    /// whose holders have died are taken over all the same.
    pub(super) fn within_limit(
        &self,
        tx: &mut Tx,
        due: Vec<Candidate>,
        limit: usize,
    ) -> Result<(Vec<Candidate>, usize), Failure> {
        let (mut asking, waited_since) = (self.clone(), tx.at() - UNASKED_AFTER_MS);
        let (mut leased, mut parked) = (Vec::new(), Vec::new());
        for item in due {
            let full = item.owner.is_none() && item.org.is_some_and(|provider| asking.free(provider) <= 0);
            match item.org {
                Some(provider) if full && !item.has_waited(waited_since) => {
                    let class = parking::PARKED_CLASS;
                    parked.push(args![item.kind.as_str(), item.subject, item.generation, item.fence, class, provider]);
                }
                _ if leased.len() >= limit => {}
                of => {
                    if let Some(provider) = of.filter(|_| !full) {
                        *asking.held.entry(provider).or_default() += 1;
                    }
                    leased.push(Candidate { unasked: full, ..item });
                }
            }
        }
        let count = parked.len();
        tx.insert_many(&parking::PARK, parked)?;
        Ok((leased, count))
    }
}

impl Candidate {
    fn has_waited(&self, since: Timestamp) -> bool {
        self.kind == WorkKind::Instance && self.due <= since
    }
}

/// Providers of which items are parked.
pub fn parked(tx: &mut Tx) -> Result<Vec<i64>, Failure> {
    tx.rows(&PARKED_PROVIDERS, &args![AT_ONCE])?.iter().map(|row| row.int(0)).collect()
}

/// Due items with the provider that each of them calls. Only kinds that call providers have one.
pub(super) const DUE: Sql = Sql::new(
    "SELECT kind, subject, gen, fence, worker, boot, alone, deaths, deaths_alone,
            CASE work.kind
                 WHEN 'allocation' THEN (
                      SELECT -min(firsts.id)
                        FROM allocations JOIN instances ON instances.id = allocations.instance_id
                                         JOIN pools ON pools.id = instances.pool_id
                                         JOIN pools AS firsts ON firsts.provider = pools.provider
                       WHERE allocations.id = work.subject)
                 WHEN 'departure' THEN (
                      SELECT -min(firsts.id)
                        FROM pools JOIN pools AS firsts ON firsts.provider = pools.provider WHERE pools.id = work.subject)
                 WHEN 'hosts' THEN (
                      SELECT -min(firsts.id)
                        FROM pools JOIN pools AS firsts ON firsts.provider = pools.provider WHERE pools.id = work.subject)
                 WHEN 'instance' THEN (
                      SELECT -min(firsts.id)
                        FROM instances JOIN pools ON pools.id = instances.pool_id
                                       JOIN pools AS firsts ON firsts.provider = pools.provider
                       WHERE instances.id = work.subject)
                 WHEN 'orphan' THEN (
                      SELECT -min(firsts.id)
                        FROM orphans JOIN pools AS firsts ON firsts.provider = orphans.provider
                       WHERE orphans.id = work.subject)
                 WHEN 'scan' THEN (
                      SELECT -min(firsts.id)
                        FROM pools JOIN pools AS firsts ON firsts.provider = pools.provider WHERE pools.id = work.subject)
                 WHEN 'scan_name' THEN (
                      SELECT -min(firsts.id)
                        FROM instances JOIN pools ON pools.id = instances.pool_id
                                       JOIN pools AS firsts ON firsts.provider = pools.provider
                       WHERE instances.id = work.subject)
                 WHEN 'workflow' THEN COALESCE(
                      (SELECT -min(firsts.id)
                         FROM workflows LEFT JOIN jobs ON jobs.id = workflows.job_id
                                        LEFT JOIN instances ON instances.id = workflows.instance_id
                                        JOIN pools ON pools.id = COALESCE(instances.pool_id, jobs.pool_id)
                                        JOIN pools AS firsts ON firsts.provider = pools.provider
                        WHERE workflows.id = work.subject), -9223372036854775807)
            END, leased_at, due FROM work
      WHERE class = $4 AND due <= $1
        AND (worker IS NULL OR NOT EXISTS (
             SELECT 1 FROM workers WHERE workers.id = work.worker AND workers.boot = work.boot AND workers.beat_at > $2))
      ORDER BY due LIMIT $3",
)
.skip_locked();
/// Each step of the recursion is one look into the index, however many items of a provider are parked.
pub(super) const PARKED_PROVIDERS: Sql = Sql::new(
    "WITH RECURSIVE pools (number) AS (
        SELECT min(org_id) FROM work WHERE class = 2 AND org_id < 0
         UNION ALL
        SELECT (SELECT min(org_id) FROM work WHERE class = 2 AND org_id > pools.number AND org_id < 0)
          FROM pools WHERE pools.number IS NOT NULL)
     SELECT number FROM pools WHERE number IS NOT NULL LIMIT $1",
);
pub(super) const PARKED_INSTANCES: Sql = Sql::new(
    "SELECT kind, subject, gen, fence FROM work WHERE class = 2 AND org_id = $1 AND due <= $2 AND kind = 'instance'
      ORDER BY due LIMIT $3",
)
.skip_locked();
