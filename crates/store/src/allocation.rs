//! Rows of allocations. The warm pool is a query over them, never a structure.

use crate::newest::made_at;
use crate::post::Meaning;
use crate::sql::Sql;
use crate::tx::Tx;
use crate::{Hint, Topic, args, doc};
use model::allocation::Allocation;
use model::bug;
use model::pool::Slot;
use model::{AllocationId, Failure, InstanceId, JobId, OrgId, PoolId, Refused};

pub fn insert(tx: &mut Tx, a: &Allocation) -> Result<(), Failure> {
    tx.hint(Hint::Org(a.org, Topic::Machines));
    let row = args![
        a.id,
        a.org,
        a.created_at,
        a.instance,
        a.job,
        a.status.as_str(),
        kept(a),
        a.debug_hold_until,
        a.version,
        doc::write(a)
    ];
    tx.post(&INSERT, row)
}

/// Compare-and-set by version: the later of two claims is refused.
pub fn save(tx: &mut Tx, a: &Allocation) -> Result<(), Failure> {
    tx.hint(Hint::Org(a.org, Topic::Machines));
    let mut next = a.clone();
    next.version += 1;
    let seen = if bug!(claim_without_compare) { find(tx, a.id)?.map_or(0, |now| now.version) } else { a.version };
    let row = args![
        a.id,
        seen,
        next.job,
        next.status.as_str(),
        kept(&next),
        next.debug_hold_until,
        next.version,
        doc::write(&next)
    ];
    tx.post_meaning(&SAVE, row, Meaning::no_row(Refused::Stale { what: "the allocation" }))
}

pub fn find(tx: &mut Tx, id: AllocationId) -> Result<Option<Allocation>, Failure> {
    tx.row(&FIND, &args![id])?.map(|row| doc::read(&row, 0)).transpose()
}

/// Free slots of a pool on instances that are ready.
pub fn available(tx: &mut Tx, pool: PoolId) -> Result<Vec<Slot>, Failure> {
    let mut slots = Vec::new();
    for row in tx.rows(&AVAILABLE, &args![pool])? {
        let (slot, instance): (Allocation, model::instance::Instance) = (doc::read(&row, 0)?, doc::read(&row, 1)?);
        slots.push(Slot {
            allocation: slot.id,
            instance: instance.id,
            org: slot.org,
            resources: instance.resources,
            spot: instance.spot,
            init_checksum: instance.init_checksum,
            features: instance.features,
            version: slot.version,
        });
    }
    Ok(slots)
}

pub fn of_instance(tx: &mut Tx, instance: InstanceId) -> Result<Vec<Allocation>, Failure> {
    doc::read_all(tx.rows(&OF_INSTANCE, &args![instance])?, 0)
}

/// Slots whose workdir the machine must keep: free, in use or held.
pub fn kept_on(tx: &mut Tx, instance: InstanceId) -> Result<Vec<Allocation>, Failure> {
    doc::read_all(tx.rows(&KEPT_ON, &args![instance])?, 0)
}

/// The same, by their ids alone: of a machine that had many short runs they are many, and their rows are not read for it.
pub fn kept_ids(tx: &mut Tx, instance: InstanceId) -> Result<Vec<AllocationId>, Failure> {
    tx.rows(&KEPT_IDS, &args![instance])?.iter().map(|row| row.int(0).map(AllocationId)).collect()
}

pub fn of_job(tx: &mut Tx, job: JobId) -> Result<Vec<Allocation>, Failure> {
    doc::read_all(tx.rows(&OF_JOB, &args![job])?, 0)
}

/// Finished ones whose folder is still kept.
pub fn count_held(tx: &mut Tx) -> Result<i64, Failure> {
    tx.row(&COUNT_HELD, &args![])?.expect("a count is a row").int(0)
}

pub fn page(tx: &mut Tx, org: OrgId, before: i64, limit: i64) -> Result<Vec<Allocation>, Failure> {
    let at = made_at(tx, &MADE_AT, before)?;
    doc::page(tx.rows(&PAGE, &args![org, at, before, limit])?, 0)
}

/// Finished ones whose folder is held now.
pub fn held_page(tx: &mut Tx, org: OrgId, before: i64, limit: i64) -> Result<Vec<Allocation>, Failure> {
    let (at, now) = (made_at(tx, &MADE_AT, before)?, tx.at());
    doc::page(tx.rows(&HELD_PAGE, &args![org, at, before, limit, now])?, 0)
}

/// Whether the folder of this allocation is still kept.
fn kept(a: &Allocation) -> bool {
    !a.workdir_released
}

pub(crate) const ALL: &[&Sql] = &[
    &INSERT,
    &SAVE,
    &FIND,
    &AVAILABLE,
    &OF_INSTANCE,
    &KEPT_ON,
    &KEPT_IDS,
    &OF_JOB,
    &COUNT_HELD,
    &PAGE,
    &HELD_PAGE,
    &MADE_AT,
];

const INSERT: Sql = Sql::new(
    "INSERT INTO allocations (id, org_id, created_at, instance_id, job_id, status, kept, hold_until, version, doc)
     VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)",
);
const SAVE: Sql = Sql::new(
    "UPDATE allocations SET job_id = $3, status = $4, kept = $5, hold_until = $6, version = $7, doc = $8
      WHERE id = $1 AND version = $2",
);
const FIND: Sql = Sql::new("SELECT doc FROM allocations WHERE id = $1");
const AVAILABLE: Sql = Sql::new(
    "SELECT a.doc, i.doc FROM instances i
       JOIN allocations a ON a.instance_id = i.id AND a.status = 'AVAILABLE'
      WHERE i.pool_id = $1 AND i.open = 1 AND i.status = 'ready'
      ORDER BY a.id",
);
const OF_INSTANCE: Sql = Sql::new("SELECT doc FROM allocations WHERE instance_id = $1 ORDER BY id");
const KEPT_ON: Sql = Sql::new("SELECT doc FROM allocations WHERE instance_id = $1 AND kept = 1 ORDER BY id");
const KEPT_IDS: Sql = Sql::new("SELECT id FROM allocations WHERE instance_id = $1 AND kept = 1 ORDER BY id");
const OF_JOB: Sql = Sql::new("SELECT doc FROM allocations WHERE job_id = $1 ORDER BY id");
const COUNT_HELD: Sql =
    Sql::new("SELECT count(*) FROM allocations WHERE kept = 1 AND status IN ('COMPLETE', 'FAILED')");
const PAGE: Sql = Sql::new(
    "SELECT doc FROM allocations
      WHERE org_id = $1 AND (created_at, id) < ($2, $3) ORDER BY created_at DESC, id DESC LIMIT $4",
);
const HELD_PAGE: Sql = Sql::new(
    "SELECT doc FROM allocations
      WHERE org_id = $1 AND (created_at, id) < ($2, $3) AND kept = 1 AND hold_until IS NOT NULL AND hold_until > $5
        AND status IN ('COMPLETE', 'FAILED')
      ORDER BY created_at DESC, id DESC LIMIT $4",
);
const MADE_AT: Sql = Sql::new("SELECT created_at FROM allocations WHERE id = $1");
