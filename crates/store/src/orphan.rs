//! Rows of orphans, of the whitelist and of scans. They belong to the installation. A scan replaces what a provider said; who asked for an
//! orphan's end and who was told of it are columns of their own, so that neither overwrites the other.

use crate::hint::Hint;
use crate::sql::Sql;
use crate::tx::Tx;
use crate::value::Row;
use crate::{args, doc};
use model::orphan::{Listed, Whitelisted};
use model::{Failure, OrgId, OrphanId, PoolId, Timestamp, Trouble};
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Orphan {
    pub id: OrphanId,
    pub provider: String,
    pub pool: PoolId,
    pub listed: Listed,
    pub first_seen_at: Timestamp,
    pub seen_at: Timestamp,
    pub ending: Option<Ending>,
    /// Why the end that was asked for last was refused for good: no worker tries it any more, and a person may ask again.
    pub refused: Option<String>,
    /// Also one whose time is up.
    pub whitelisted: Option<Whitelisted>,
}

/// The end that a person has asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ending {
    pub at: Timestamp,
    pub org: OrgId,
    pub by: String,
    /// Why the last try did not end it.
    pub error: Option<String>,
}

/// The last scan of a pool.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Scan {
    pub started_at: Timestamp,
    pub finished_at: Timestamp,
    /// Pages that were read, what they listed, and what of it is tracked, adopted, young, ours and others'.
    pub pages: i64,
    pub listed: i64,
    pub tracked: i64,
    pub adopted: i64,
    pub young: i64,
    pub orphans: i64,
    pub foreign: i64,
    /// Why it could not be listed to the end: then nothing is known of what was not seen.
    pub error: Option<String>,
    /// When it was last listed to the end.
    pub complete_at: Option<Timestamp>,
    /// How often the program of `[notify]` has failed since it was last told.
    pub notify_tries: i64,
}

/// Writes what a scan that began at `scan` has seen.
pub fn seen(tx: &mut Tx, provider: &str, pool: PoolId, scan: Timestamp, listed: &Listed) -> Result<(), Failure> {
    let control_id = listed.inferred().map_or_else(String::new, |name| name.control_id);
    let id = tx.next_id();
    let at = tx.at();
    let price = listed.price_micro.unwrap_or(0);
    tx.hint(Hint::Orphans);
    tx.post(&SEEN, args![id, provider, &listed.handle, pool, control_id, price, at, scan, doc::write(listed)])
}

/// Of a pool that was listed to the end, up to `limit` of those that were not seen again; how many.
pub fn vanished(tx: &mut Tx, pool: PoolId, scan: Timestamp, limit: i64) -> Result<u64, Failure> {
    tx.hint(Hint::Orphans);
    tx.exec(&VANISHED, &args![pool, scan, limit])
}

/// It is tracked, or gone.
pub fn remove(tx: &mut Tx, provider: &str, provider_id: &str) -> Result<(), Failure> {
    tx.hint(Hint::Orphans);
    tx.post(&REMOVE, args![provider, provider_id])
}

pub fn find(tx: &mut Tx, id: OrphanId) -> Result<Option<Orphan>, Failure> {
    tx.row(&FIND, &args![id])?.as_ref().map(read).transpose()
}

/// Those with this id at their provider: one of each provider at most.
pub fn by_handle(tx: &mut Tx, provider_id: &str) -> Result<Vec<Orphan>, Failure> {
    tx.rows(&BY_HANDLE, &args![provider_id])?.iter().map(read).collect()
}

/// Newest first, before this id.
pub fn page(tx: &mut Tx, before: i64, limit: i64) -> Result<Vec<Orphan>, Failure> {
    tx.rows(&PAGE, &args![before, limit])?.iter().map(read).collect()
}

/// How many of this control id (empty: of none) that are not on the whitelist, counted up to `most`, and what they cost per hour.
pub fn count(tx: &mut Tx, control_id: &str, most: i64) -> Result<(i64, i64), Failure> {
    let at = tx.at();
    let prices = tx.rows(&PRICES, &args![control_id, at, most])?;
    let sum = prices.iter().try_fold(0i64, |sum, row| row.int(0).map(|price| sum.saturating_add(price)))?;
    Ok((prices.len() as i64, sum))
}

/// Those of this control id (empty: of none) that are not on the whitelist and not yet announced, oldest first.
pub fn untold(tx: &mut Tx, control_id: &str, limit: i64) -> Result<Vec<Orphan>, Failure> {
    let at = tx.at();
    tx.rows(&UNTOLD, &args![control_id, at, limit])?.iter().map(read).collect()
}

pub fn told(tx: &mut Tx, id: OrphanId) -> Result<(), Failure> {
    let at = tx.at();
    tx.post(&TOLD, args![id, at])
}

pub fn end_asked(tx: &mut Tx, id: OrphanId, org: OrgId, by: &str) -> Result<(), Failure> {
    let at = tx.at();
    tx.hint(Hint::Orphans);
    tx.post(&END_ASKED, args![id, at, org, by])
}

pub fn end_failed(tx: &mut Tx, id: OrphanId, why: &str) -> Result<(), Failure> {
    tx.hint(Hint::Orphans);
    tx.post(&END_FAILED, args![id, why])
}

/// Its end was refused for good: it is not ending any more, and its row says why.
pub fn end_refused(tx: &mut Tx, id: OrphanId, why: &str) -> Result<(), Failure> {
    tx.hint(Hint::Orphans);
    tx.post(&END_REFUSED, args![id, why])
}

/// Sets or replaces the entry.
pub fn keep(tx: &mut Tx, w: &Whitelisted) -> Result<(), Failure> {
    let row = args![
        &w.provider,
        &w.provider_id,
        w.kind.as_str(),
        &w.reason,
        &w.acknowledged_by,
        w.acknowledged_at,
        w.expires_at,
        w.notes.as_deref()
    ];
    tx.hint(Hint::Orphans);
    tx.post(&KEEP, row)
}

/// Whether there was one.
pub fn unkeep(tx: &mut Tx, provider: &str, provider_id: &str) -> Result<bool, Failure> {
    tx.hint(Hint::Orphans);
    Ok(tx.exec(&UNKEEP, &args![provider, provider_id])? > 0)
}

/// Entries with this id at their provider.
pub fn kept(tx: &mut Tx, provider_id: &str) -> Result<Vec<Whitelisted>, Failure> {
    tx.rows(&KEPT, &args![provider_id])?.iter().map(|row| read_kept(row, 0)).collect()
}

/// In the order of provider and id, after these.
pub fn kept_page(tx: &mut Tx, after: (&str, &str), limit: i64) -> Result<Vec<Whitelisted>, Failure> {
    tx.rows(&KEPT_PAGE, &args![after.0, after.1, limit])?.iter().map(|row| read_kept(row, 0)).collect()
}

/// Entries whose time is up are deleted, and people are told of their orphans anew. How many.
pub fn expire(tx: &mut Tx, limit: i64) -> Result<i64, Failure> {
    let at = tx.at();
    let rows = tx.rows(&EXPIRED, &args![at, limit])?;
    for row in &rows {
        tx.hint(Hint::Orphans);
        tx.post(&UNKEEP, args![row.str(0)?, row.str(1)?])?;
        tx.post(&TELL_AGAIN, args![row.str(0)?, row.str(1)?])?;
    }
    Ok(rows.len() as i64)
}

pub fn save_scan(tx: &mut Tx, pool: PoolId, scan: &Scan) -> Result<(), Failure> {
    tx.hint(Hint::Orphans);
    tx.post(&SAVE_SCAN, args![pool, doc::write(scan)])
}

pub fn scan_of(tx: &mut Tx, pool: PoolId) -> Result<Option<Scan>, Failure> {
    tx.row(&SCAN, &args![pool])?.map(|row| doc::read_once(&row, 0)).transpose()
}

fn read(row: &Row) -> Result<Orphan, Failure> {
    let ending = match row.opt_at(5)? {
        Some(at) => {
            Some(Ending { at, org: OrgId(row.opt_int(6)?.unwrap_or(0)), by: row.text(7)?, error: row.opt_text(8)? })
        }
        None => None,
    };
    let refused = if ending.is_none() { row.opt_text(8)? } else { None };
    let whitelisted = if row.opt_text(9)?.is_some() { Some(read_kept(row, 9)?) } else { None };
    Ok(Orphan {
        id: OrphanId(row.int(0)?),
        provider: row.text(1)?,
        pool: PoolId(row.int(2)?),
        first_seen_at: row.at(3)?,
        seen_at: row.at(4)?,
        ending,
        refused,
        whitelisted,
        listed: doc::read_once(row, 17)?,
    })
}

fn read_kept(row: &Row, from: usize) -> Result<Whitelisted, Failure> {
    let kind = row.str(from + 2)?.parse().map_err(|e| Trouble::internal(format!("a resource's kind: {e}")))?;
    Ok(Whitelisted {
        provider: row.text(from)?,
        provider_id: row.text(from + 1)?,
        kind,
        reason: row.text(from + 3)?,
        acknowledged_by: row.text(from + 4)?,
        acknowledged_at: row.at(from + 5)?,
        expires_at: row.opt_at(from + 6)?,
        notes: row.opt_text(from + 7)?,
    })
}

pub(crate) const ALL: &[&Sql] = &[
    &SEEN,
    &VANISHED,
    &REMOVE,
    &FIND,
    &BY_HANDLE,
    &PAGE,
    &PRICES,
    &UNTOLD,
    &TOLD,
    &END_ASKED,
    &END_FAILED,
    &END_REFUSED,
    &KEEP,
    &UNKEEP,
    &KEPT,
    &KEPT_PAGE,
    &EXPIRED,
    &TELL_AGAIN,
    &SAVE_SCAN,
    &SCAN,
];

/// An older scan never puts the time back.
const SEEN: Sql = Sql::new(
    "INSERT INTO orphans (id, provider, provider_id, pool_id, control_id, price_micro, first_seen_at, seen_at, doc)
     VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)
         ON CONFLICT (provider, provider_id) DO UPDATE
        SET pool_id = excluded.pool_id, control_id = excluded.control_id, price_micro = excluded.price_micro, doc = excluded.doc,
            seen_at = CASE WHEN orphans.seen_at < excluded.seen_at THEN excluded.seen_at ELSE orphans.seen_at END",
);
const VANISHED: Sql =
    Sql::new("DELETE FROM orphans WHERE id IN (SELECT id FROM orphans WHERE pool_id = $1 AND seen_at < $2 LIMIT $3)");
const REMOVE: Sql = Sql::new("DELETE FROM orphans WHERE provider = $1 AND provider_id = $2");
const FIND: Sql = Sql::new(
    "SELECT o.id, o.provider, o.pool_id, o.first_seen_at, o.seen_at, o.ending_at, o.ending_org, o.ending_by, o.ending_error,
            w.provider, w.provider_id, w.kind, w.reason, w.acknowledged_by, w.acknowledged_at, w.expires_at, w.notes, o.doc
       FROM orphans AS o
       LEFT JOIN orphan_whitelist AS w ON w.provider = o.provider AND w.provider_id = o.provider_id
      WHERE o.id = $1",
);
const BY_HANDLE: Sql = Sql::new(
    "SELECT o.id, o.provider, o.pool_id, o.first_seen_at, o.seen_at, o.ending_at, o.ending_org, o.ending_by, o.ending_error,
            w.provider, w.provider_id, w.kind, w.reason, w.acknowledged_by, w.acknowledged_at, w.expires_at, w.notes, o.doc
       FROM orphans AS o
       LEFT JOIN orphan_whitelist AS w ON w.provider = o.provider AND w.provider_id = o.provider_id
      WHERE o.provider_id = $1 ORDER BY o.id LIMIT 100",
);
const PAGE: Sql = Sql::new(
    "SELECT o.id, o.provider, o.pool_id, o.first_seen_at, o.seen_at, o.ending_at, o.ending_org, o.ending_by, o.ending_error,
            w.provider, w.provider_id, w.kind, w.reason, w.acknowledged_by, w.acknowledged_at, w.expires_at, w.notes, o.doc
       FROM orphans AS o
       LEFT JOIN orphan_whitelist AS w ON w.provider = o.provider AND w.provider_id = o.provider_id
      WHERE o.id < $1 ORDER BY o.id DESC LIMIT $2",
);
const PRICES: Sql = Sql::new(
    "SELECT o.price_micro FROM orphans AS o
      WHERE o.control_id = $1 AND NOT EXISTS (
            SELECT 1 FROM orphan_whitelist AS w
             WHERE w.provider = o.provider AND w.provider_id = o.provider_id
               AND (w.expires_at IS NULL OR w.expires_at > $2))
      ORDER BY o.id LIMIT $3",
);
const UNTOLD: Sql = Sql::new(
    "SELECT o.id, o.provider, o.pool_id, o.first_seen_at, o.seen_at, o.ending_at, o.ending_org, o.ending_by, o.ending_error,
            w.provider, w.provider_id, w.kind, w.reason, w.acknowledged_by, w.acknowledged_at, w.expires_at, w.notes, o.doc
       FROM orphans AS o
       LEFT JOIN orphan_whitelist AS w ON w.provider = o.provider AND w.provider_id = o.provider_id
      WHERE o.control_id = $1 AND o.notified_at IS NULL
        AND (w.provider IS NULL OR w.expires_at <= $2) ORDER BY o.id LIMIT $3",
);
const TOLD: Sql = Sql::new("UPDATE orphans SET notified_at = $2 WHERE id = $1");
const END_ASKED: Sql =
    Sql::new("UPDATE orphans SET ending_at = $2, ending_org = $3, ending_by = $4, ending_error = NULL WHERE id = $1");
const END_REFUSED: Sql = Sql::new("UPDATE orphans SET ending_at = NULL, ending_error = $2 WHERE id = $1");
const END_FAILED: Sql = Sql::new("UPDATE orphans SET ending_error = $2 WHERE id = $1");
const KEEP: Sql = Sql::new(
    "INSERT INTO orphan_whitelist
            (provider, provider_id, kind, reason, acknowledged_by, acknowledged_at, expires_at, notes)
     VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
         ON CONFLICT (provider, provider_id) DO UPDATE
        SET kind = excluded.kind, reason = excluded.reason, acknowledged_by = excluded.acknowledged_by,
            acknowledged_at = excluded.acknowledged_at, expires_at = excluded.expires_at, notes = excluded.notes",
);
const UNKEEP: Sql = Sql::new("DELETE FROM orphan_whitelist WHERE provider = $1 AND provider_id = $2");
const KEPT: Sql = Sql::new(
    "SELECT provider, provider_id, kind, reason, acknowledged_by, acknowledged_at, expires_at, notes FROM orphan_whitelist
      WHERE provider >= '' AND provider_id = $1 ORDER BY provider LIMIT 100",
);
const KEPT_PAGE: Sql = Sql::new(
    "SELECT provider, provider_id, kind, reason, acknowledged_by, acknowledged_at, expires_at, notes FROM orphan_whitelist
      WHERE (provider, provider_id) > ($1, $2) ORDER BY provider, provider_id LIMIT $3",
);
const EXPIRED: Sql =
    Sql::new("SELECT provider, provider_id FROM orphan_whitelist WHERE expires_at <= $1 ORDER BY expires_at LIMIT $2");
const TELL_AGAIN: Sql = Sql::new("UPDATE orphans SET notified_at = NULL WHERE provider = $1 AND provider_id = $2");
const SAVE_SCAN: Sql =
    Sql::new("INSERT INTO scans (pool_id, doc) VALUES ($1, $2) ON CONFLICT (pool_id) DO UPDATE SET doc = excluded.doc");
const SCAN: Sql = Sql::new("SELECT doc FROM scans WHERE pool_id = $1");
