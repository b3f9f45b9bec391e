//! Rows of instances. What runners report often (last seen, observed version) is in columns, and its update does not rewrite the document.

use crate::newest::made_at;
use crate::post::Meaning;
use crate::sql::{Rank, Sql};
use crate::tx::Tx;
use crate::value::Row;
use crate::{Hint, Topic, args, doc};
use model::instance::Instance;
use model::{Failure, InstanceId, OrgId, PoolId, Refused, Timestamp};

pub fn insert(tx: &mut Tx, i: &Instance) -> Result<(), Failure> {
    let row = args![
        i.id,
        i.org,
        i.created_at,
        i.pool,
        &i.name,
        i.status.as_str(),
        i.status.is_open(),
        i.desired_version,
        i.observed_version,
        i.last_seen_at,
        i.version,
        doc::write(i)
    ];
    tx.hint(Hint::Org(i.org, Topic::Machines));
    tx.post(&INSERT, row)
}

pub fn save(tx: &mut Tx, i: &Instance) -> Result<(), Failure> {
    tx.hint(Hint::Org(i.org, Topic::Machines));
    let mut next = i.clone();
    next.version += 1;
    let row = args![
        i.id,
        i.version,
        next.status.as_str(),
        next.status.is_open(),
        next.desired_version,
        next.observed_version,
        next.last_seen_at,
        next.version,
        doc::write(&next)
    ];
    tx.post_meaning(&SAVE, row, Meaning::no_row(Refused::Stale { what: "the instance" }))
}

pub fn lock(tx: &mut Tx, id: InstanceId) -> Result<Instance, Failure> {
    let row = tx.row(&LOCK, &args![id])?.ok_or_else(|| Refused::not_found("instance", id))?;
    read(&row)
}

/// Whether its row may still be locked: instances are locked after everything above them, and in the order of their ids.
pub fn may_lock(tx: &Tx, id: InstanceId) -> bool {
    tx.may_lock(Rank::Instance, id.0)
}

pub fn find(tx: &mut Tx, id: InstanceId) -> Result<Option<Instance>, Failure> {
    tx.row(&FIND, &args![id])?.map(|row| read(&row)).transpose()
}

pub fn by_name(tx: &mut Tx, name: &str) -> Result<Option<Instance>, Failure> {
    tx.row(&BY_NAME, &args![name])?.map(|row| read(&row)).transpose()
}

/// The desired document changed: the runner gets the new version.
pub fn tell(tx: &mut Tx, id: InstanceId) -> Result<(), Failure> {
    tx.post(&TELL, args![id])?;
    tx.hint(Hint::Instance(id));
    Ok(())
}

/// A heartbeat. Never moves the time back.
pub fn seen(tx: &mut Tx, id: InstanceId, at: Timestamp, observed_version: i64) -> Result<(), Failure> {
    tx.post(&SEEN, args![id, at, observed_version])
}

/// Instances of a pool that exist or may exist.
pub fn open_in(tx: &mut Tx, pool: PoolId) -> Result<Vec<Instance>, Failure> {
    tx.rows(&OPEN_IN, &args![pool])?.iter().map(read).collect()
}

pub fn page(tx: &mut Tx, org: OrgId, before: i64, limit: i64) -> Result<Vec<Instance>, Failure> {
    let at = made_at(tx, &MADE_AT, before)?;
    tx.rows(&PAGE, &args![org, at, before, limit])?.iter().map(read).collect()
}

fn read(row: &Row) -> Result<Instance, Failure> {
    let mut instance: Instance = doc::read(row, 0)?;
    instance.desired_version = row.int(1)?;
    instance.observed_version = row.int(2)?;
    instance.last_seen_at = row.opt_at(3)?;
    instance.version = row.int(4)?;
    Ok(instance)
}

pub(crate) const ALL: &[&Sql] = &[&INSERT, &SAVE, &LOCK, &FIND, &BY_NAME, &TELL, &SEEN, &OPEN_IN, &PAGE, &MADE_AT];

const INSERT: Sql = Sql::new(
    "INSERT INTO instances (id, org_id, created_at, pool_id, name, status, open, desired_version, observed_version, last_seen_at, version, doc)
     VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)",
);
const SAVE: Sql = Sql::new(
    "UPDATE instances SET status = $3, open = $4, desired_version = $5, observed_version = $6, last_seen_at = $7, version = $8, doc = $9
      WHERE id = $1 AND version = $2",
);
const LOCK: Sql =
    Sql::new("SELECT doc, desired_version, observed_version, last_seen_at, version FROM instances WHERE id = $1")
        .no_key_update()
        .locks(Rank::Instance);
const FIND: Sql =
    Sql::new("SELECT doc, desired_version, observed_version, last_seen_at, version FROM instances WHERE id = $1");
const BY_NAME: Sql =
    Sql::new("SELECT doc, desired_version, observed_version, last_seen_at, version FROM instances WHERE name = $1");
const TELL: Sql =
    Sql::new("UPDATE instances SET desired_version = desired_version + 1, version = version + 1 WHERE id = $1");
const SEEN: Sql = Sql::new(
    "UPDATE instances SET last_seen_at = $2, observed_version = $3
      WHERE id = $1 AND (last_seen_at IS NULL OR last_seen_at <= $2)",
);
const OPEN_IN: Sql = Sql::new(
    "SELECT doc, desired_version, observed_version, last_seen_at, version FROM instances
      WHERE pool_id = $1 AND open = 1 ORDER BY id",
);
const PAGE: Sql = Sql::new(
    "SELECT doc, desired_version, observed_version, last_seen_at, version FROM instances
      WHERE org_id = $1 AND (created_at, id) < ($2, $3) ORDER BY created_at DESC, id DESC LIMIT $4",
);
const MADE_AT: Sql = Sql::new("SELECT created_at FROM instances WHERE id = $1");
