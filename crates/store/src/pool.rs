//! Rows of pools. A pool's row is the lock under which every placement in it is decided.

use crate::args;
use crate::sql::{Rank, Sql};
use crate::tx::Tx;
use crate::value::Row;
use model::{Failure, PoolId, Refused};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pool {
    pub id: PoolId,
    pub provider: String,
    pub region: String,
    /// The next place in the waiting list.
    pub next_seq: i64,
}

/// The pool of this provider and region, made when it is first needed.
pub fn ensure(tx: &mut Tx, provider: &str, region: &str) -> Result<PoolId, Failure> {
    if let Some(row) = tx.row(&BY_NAME, &args![provider, region])? {
        return row.int(0).map(PoolId);
    }
    let id = tx.next_id();
    tx.post(&INSERT, args![id, provider, region])?;
    tx.row(&BY_NAME, &args![provider, region])?.expect("it was just made").int(0).map(PoolId)
}

pub fn lock(tx: &mut Tx, id: PoolId) -> Result<Pool, Failure> {
    let row = tx.row(&LOCK, &args![id])?.ok_or_else(|| Refused::not_found("pool", id))?;
    read(&row)
}

/// The next place in the waiting list. The caller holds the lock.
pub fn next_seq(tx: &mut Tx, pool: &mut Pool) -> Result<i64, Failure> {
    let seq = pool.next_seq;
    pool.next_seq += 1;
    tx.post(&ADVANCE, args![pool.id, pool.next_seq])?;
    Ok(seq)
}

pub fn find(tx: &mut Tx, id: PoolId) -> Result<Option<Pool>, Failure> {
    tx.row(&FIND, &args![id])?.map(|row| read(&row)).transpose()
}

pub fn all(tx: &mut Tx) -> Result<Vec<Pool>, Failure> {
    tx.rows(&EVERY, &args![])?.iter().map(read).collect()
}

fn read(row: &Row) -> Result<Pool, Failure> {
    Ok(Pool { id: PoolId(row.int(0)?), provider: row.text(1)?, region: row.text(2)?, next_seq: row.int(3)? })
}

pub(crate) const ALL: &[&Sql] = &[&BY_NAME, &INSERT, &LOCK, &ADVANCE, &FIND, &EVERY];

const BY_NAME: Sql = Sql::new("SELECT id FROM pools WHERE provider = $1 AND region = $2");
const INSERT: Sql = Sql::new(
    "INSERT INTO pools (id, provider, region, next_seq) VALUES ($1, $2, $3, 1)
         ON CONFLICT (provider, region) DO NOTHING",
);
const LOCK: Sql =
    Sql::new("SELECT id, provider, region, next_seq FROM pools WHERE id = $1").no_key_update().locks(Rank::Pool);
const ADVANCE: Sql = Sql::new("UPDATE pools SET next_seq = $2 WHERE id = $1");
const FIND: Sql = Sql::new("SELECT id, provider, region, next_seq FROM pools WHERE id = $1");
/// Bounded by what is configured: one row a provider and region.
const EVERY: Sql = Sql::new("SELECT id, provider, region, next_seq FROM pools ORDER BY id LIMIT 1000");
