//! Idempotency keys: a key, its effect and its response commit in one transaction. A second request with the same key waits for the
//! first (on the unique index) and gets the same response. A refused transaction rolls back its key with its effects; the refusal is
//! then recorded by a transaction of its own.

use crate::args;
use crate::post::Meaning;
use crate::sql::Sql;
use crate::tx::Tx;
use model::bug;
use model::time::DAY;
use model::{Failure, OrgId, Refused, Timestamp, Trouble, TroubleKind};

/// Not counting outages: a client could not repeat its request during one.
pub const KEPT_MS: i64 = DAY;
/// How long a caller should wait when the first use of its key has not ended yet.
const BUSY_AFTER_MS: i64 = 1_000;

/// A key in its scope, with the hash of the whole request it was sent with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Key {
    pub org: OrgId,
    /// Method and route, e.g. `POST /runs`.
    pub route: String,
    pub key: String,
    pub hash: [u8; 32],
    /// The id of the request. A stored refusal names it, so that every repetition names the request that was refused.
    pub request: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Looked {
    /// Never used: reserved for this transaction, which must end with `record`.
    Fresh,
    /// Used before for the same request: this was the answer.
    Replay { status: i64, body: Vec<u8> },
}

/// Finds the answer given under this key, or reserves it. Should come first in its transaction.
pub fn lookup(tx: &mut Tx, key: &Key) -> Result<Looked, Failure> {
    let at = tx.at();
    if bug!(key_checked_then_inserted) && tx.row(&FIND, &args![key.org, &key.route, &key.key])?.is_none() {
        return Ok(Looked::Fresh);
    }
    let reserved = tx.exec(&RESERVE, &args![key.org, &key.route, &key.key, key.hash.as_slice(), at]).map_err(busy)?;
    if reserved == 1 {
        return Ok(Looked::Fresh);
    }
    let row =
        tx.row(&FIND, &args![key.org, &key.route, &key.key])?.ok_or(Refused::KeyBusy { after_ms: BUSY_AFTER_MS })?;
    if row.blob(0)? != key.hash && !bug!(key_without_its_request) {
        return Err(Refused::KeyReused.into());
    }
    match row.opt_int(1)?.zip(row.opt_blob(2)?) {
        Some((status, body)) => Ok(Looked::Replay { status, body }),
        None => Err(Refused::KeyBusy { after_ms: BUSY_AFTER_MS }.into()),
    }
}

/// The answer given under this key before, for a request that cannot do its work in one transaction. Reserves nothing.
pub fn known(tx: &mut Tx, key: &Key) -> Result<Option<(i64, Vec<u8>)>, Failure> {
    let Some(row) = tx.row(&FIND, &args![key.org, &key.route, &key.key])? else { return Ok(None) };
    if row.blob(0)? != key.hash {
        return Err(Refused::KeyReused.into());
    }
    Ok(row.opt_int(1)?.zip(row.opt_blob(2)?))
}

/// The answer that goes with the key, in the transaction that has the effect.
pub fn record(tx: &mut Tx, key: &Key, status: i64, body: &[u8]) -> Result<(), Failure> {
    if bug!(key_checked_then_inserted) {
        let at = tx.at();
        tx.exec(&RESERVE, &args![key.org, &key.route, &key.key, key.hash.as_slice(), at])?;
        return tx.exec(&RECORD, &args![key.org, &key.route, &key.key, status, body]).map(drop);
    }
    let bug = Trouble::internal(format!("a response is recorded once, after lookup: {} {}", key.route, key.key));
    let meaning = Meaning::no_row(bug).certain(true); // this transaction made the row
    tx.post_meaning(&RECORD, args![key.org, &key.route, &key.key, status, body], meaning)
}

/// A key as the table has it, for the audit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredKey {
    pub org: OrgId,
    pub route: String,
    pub key: String,
    pub rows: i64,
    /// Rows with a status and rows with a body.
    pub answers: (i64, i64),
}

/// Keys after this one, in order.
pub fn after(tx: &mut Tx, last: Option<&StoredKey>, limit: i64) -> Result<Vec<StoredKey>, Failure> {
    let (org, route, key) = last.map_or((OrgId(0), "", ""), |last| (last.org, &last.route, &last.key));
    let rows = tx.rows(&AFTER, &args![org, route, key, limit])?;
    let read = |row: &crate::value::Row| {
        Ok(StoredKey {
            org: OrgId(row.int(0)?),
            route: row.text(1)?,
            key: row.text(2)?,
            rows: row.int(3)?,
            answers: (row.int(4)?, row.int(5)?),
        })
    };
    rows.iter().map(read).collect()
}

/// Deletes keys from before then, at most `limit`; how many.
pub fn expire(tx: &mut Tx, before: Timestamp, limit: i64) -> Result<u64, Failure> {
    tx.exec(&EXPIRE, &args![before, limit])
}

/// The wait for the first use ran out (PostgreSQL's lock timeout).
fn busy(failure: Failure) -> Failure {
    match failure {
        Failure::Trouble(trouble) if trouble.kind == TroubleKind::Timeout => {
            Refused::KeyBusy { after_ms: BUSY_AFTER_MS }.into()
        }
        other => other,
    }
}

pub(crate) const ALL: &[&Sql] = &[&RESERVE, &FIND, &RECORD, &AFTER, &EXPIRE];

const RESERVE: Sql = Sql::new(
    "INSERT INTO idempotency (org_id, route, key, hash, at) VALUES ($1, $2, $3, $4, $5)
         ON CONFLICT (org_id, route, key) DO NOTHING",
);
const FIND: Sql = Sql::new("SELECT hash, status, body FROM idempotency WHERE org_id = $1 AND route = $2 AND key = $3");
const RECORD: Sql = Sql::new(
    "UPDATE idempotency SET status = $4, body = $5
      WHERE org_id = $1 AND route = $2 AND key = $3 AND status IS NULL",
);
const AFTER: Sql = Sql::new(
    "SELECT org_id, route, key, count(*), count(status), count(body)
       FROM idempotency
      WHERE (org_id, route, key) > ($1, $2, $3)
      GROUP BY org_id, route, key
      ORDER BY org_id, route, key LIMIT $4",
);
const EXPIRE: Sql = Sql::new(
    "DELETE FROM idempotency
      WHERE (org_id, route, key) IN (SELECT org_id, route, key FROM idempotency WHERE at < $1 ORDER BY at LIMIT $2)",
);
