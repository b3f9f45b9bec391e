//! Shares of orgs in the acts that workers hold. An org that has its share gets no more: due acts of it that a claim meets are parked, so
//! that the next claim does not meet them again, and come back, oldest first, when fewer are held. So an org with many due acts costs one
//! write each, and delays no other org. Nor may orgs that have not reached their shares fill all permits together: the more an org holds,
//! the more permits it leaves free.

use super::Candidate;
use crate::args;
use crate::sql::Sql;
use crate::tx::Tx;
use crate::worker;
use model::Failure;
use std::collections::BTreeMap;

const ACT: i64 = 1;
/// Acts whose org has its share, and items whose provider has (see `asking`): the latter have a negative `org_id`.
pub(super) const PARKED_CLASS: i64 = 2;
/// Orgs with parked acts that one claim looks at, and acts of each that it brings back.
const AT_ONCE: i64 = 100;
/// An org that holds this many acts leaves one permit free for others, twice as many two, and so on.
const HELD_FOR_ONE_LEFT: i64 = 8;

/// How many acts may be held, by the settings.
#[derive(Debug, Clone, Copy)]
pub struct Shares {
    /// Of one org, by all workers together.
    pub of_one_org: i64,
    /// Of all orgs, by each worker.
    pub of_one_worker: i64,
}

impl Shares {
    pub(super) const UNBOUNDED: Shares = Shares { of_one_org: i64::MAX, of_one_worker: i64::MAX };

    /// Whether an org that holds so many may hold one more, while so many permits of all workers are free.
    fn allow(self, held: i64, free: i64) -> bool {
        held < self.of_one_org && free > held / HELD_FOR_ONE_LEFT
    }

    /// Permits of all living workers that are free. Acts of dead workers count as held until they are taken over.
    fn free(self, tx: &mut Tx) -> Result<i64, Failure> {
        let workers = worker::living(tx)?.len().max(1) as i64;
        let held = tx.row(&HELD_ACTS, &args![])?.expect("a count is a row").int(0)?;
        Ok(self.of_one_worker.saturating_mul(workers) - held)
    }
}

/// Of the due acts those that may be leased, up to `limit`. Those of orgs that have their share are parked; how many. One whose holder has
/// died is counted among those that are held already.
pub(super) fn within_limit(
    tx: &mut Tx,
    due: Vec<Candidate>,
    limit: usize,
    shares: Shares,
) -> Result<(Vec<Candidate>, usize), Failure> {
    let of_orgs = due.iter().any(|item| item.org.is_some() && item.owner.is_none());
    let mut free = if of_orgs { shares.free(tx)? } else { 0 };
    let mut held = BTreeMap::new();
    let (mut leased, mut parked) = (Vec::new(), Vec::new());
    for item in due {
        let Some(org) = item.org.filter(|_| item.owner.is_none()) else {
            leased.extend((leased.len() < limit).then_some(item));
            continue;
        };
        let of_org = match held.get(&org) {
            Some(known) => *known,
            None => held_of_org(tx, org)?,
        };
        if !shares.allow(of_org, free) {
            parked.push(args![item.kind.as_str(), item.subject, item.generation, item.fence, PARKED_CLASS, org]);
            held.insert(org, of_org);
        } else if leased.len() < limit {
            leased.push(item);
            held.insert(org, of_org + 1);
            free -= 1;
        }
    }
    let count = parked.len();
    tx.insert_many(&PARK, parked)?;
    Ok((leased, count))
}

/// Parked acts of orgs that hold less than their share are due again.
pub(super) fn bring_back(tx: &mut Tx, shares: Shares) -> Result<(), Failure> {
    let mut back = Vec::new();
    for (org, free) in free_shares(tx, shares)? {
        for row in tx.rows(&PARKED, &args![org, free.min(AT_ONCE)])? {
            back.push(args![row.str(0)?, row.int(1)?, row.int(2)?, row.int(3)?, ACT, org]);
        }
    }
    tx.insert_many(&PARK, back)
}

/// Whether a claim would bring a parked act back.
pub fn may_bring_back(tx: &mut Tx, shares: Shares) -> Result<bool, Failure> {
    Ok(!free_shares(tx, shares)?.is_empty())
}

/// Orgs with parked acts that may hold more, and at most how much more.
fn free_shares(tx: &mut Tx, shares: Shares) -> Result<Vec<(i64, i64)>, Failure> {
    let orgs = tx.rows(&PARKED_ORGS, &args![AT_ONCE])?;
    if orgs.is_empty() {
        return Ok(Vec::new());
    }
    let (permits, mut found) = (shares.free(tx)?, Vec::new());
    for row in orgs {
        let org = row.int(0)?;
        let held = held_of_org(tx, org)?;
        if shares.allow(held, permits) {
            found.push((org, permits.min(shares.of_one_org - held)));
        }
    }
    Ok(found)
}

/// Never more than the share of an org, and those whose holders have died.
fn held_of_org(tx: &mut Tx, org: i64) -> Result<i64, Failure> {
    tx.row(&HELD_OF_ORG, &args![org])?.expect("a count is a row").int(0)
}

/// The rows exist and are locked: this only changes their class.
pub(super) const PARK: Sql = Sql::new(
    "INSERT INTO work (kind, subject, gen, fence, class, org_id) VALUES ($1, $2, $3, $4, $5, $6)
         ON CONFLICT (kind, subject) DO UPDATE SET class = excluded.class, org_id = excluded.org_id",
);
/// Each step of the recursion is one look into the index, however many acts an org has.
pub(super) const PARKED_ORGS: Sql = Sql::new(
    "WITH RECURSIVE orgs (org) AS (
        SELECT min(org_id) FROM work WHERE class = 2 AND org_id > 0
         UNION ALL
        SELECT (SELECT min(org_id) FROM work WHERE class = 2 AND org_id > orgs.org) FROM orgs WHERE orgs.org IS NOT NULL)
     SELECT org FROM orgs WHERE org IS NOT NULL LIMIT $1",
);
pub(super) const PARKED: Sql =
    Sql::new("SELECT kind, subject, gen, fence FROM work WHERE class = 2 AND org_id = $1 ORDER BY due LIMIT $2")
        .skip_locked();
pub(super) const HELD_ACTS: Sql =
    Sql::new("SELECT count(*) FROM work WHERE class = 1 AND worker IS NOT NULL AND org_id IS NOT NULL AND org_id > 0");
pub(super) const HELD_OF_ORG: Sql =
    Sql::new("SELECT count(*) FROM work WHERE class = 1 AND org_id = $1 AND worker IS NOT NULL");
