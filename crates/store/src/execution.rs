//! Rows of executions, of the runs that wait for them, and of the epochs of functions. At most one execution of a key is open.

use crate::hint::{Hint, Topic};
use crate::sql::{Rank, Sql};
use crate::tx::Tx;
use crate::value::Row;
use crate::{args, doc};
use calls::NodeId;
use model::execution::Execution;
use model::{Failure, OrgId, RunId, Timestamp, Trouble};

/// An execution with the number under which its work item finds it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Numbered {
    pub id: i64,
    pub it: Execution,
}

pub fn insert(tx: &mut Tx, id: i64, it: &Execution, request: &serde_json::Value) -> Result<(), Failure> {
    let request = request.to_string();
    tx.hint(Hint::Org(it.org, Topic::Calls));
    tx.post(&INSERT, args![id, it.org, &it.key, !it.status.is_end(), it.ended_at, doc::write(it), request])
}

/// The caller has locked it.
pub fn save(tx: &mut Tx, id: i64, it: &Execution) -> Result<(), Failure> {
    tx.hint(Hint::Org(it.org, Topic::Calls));
    tx.post(&SAVE, args![id, !it.status.is_end(), it.ended_at, doc::write(it)])
}

pub fn find(tx: &mut Tx, id: i64) -> Result<Option<Execution>, Failure> {
    tx.row(&FIND, &args![id])?.map(|row| doc::read(&row, 0)).transpose()
}

/// The same, and no other transaction changes it or joins it before this one ends.
pub fn lock(tx: &mut Tx, id: i64) -> Result<Option<Execution>, Failure> {
    tx.row(&LOCK, &args![id])?.map(|row| doc::read(&row, 0)).transpose()
}

/// The execution of this key that is open.
pub fn open_of(tx: &mut Tx, org: OrgId, key: &str) -> Result<Option<i64>, Failure> {
    tx.row(&OPEN_OF, &args![org, key])?.map(|row| row.int(0)).transpose()
}

/// The newest execution of this key, open or not.
pub fn newest_of(tx: &mut Tx, org: OrgId, key: &str) -> Result<Option<Numbered>, Failure> {
    let read = |row: Row| Ok(Numbered { id: row.int(0)?, it: doc::read(&row, 1)? });
    tx.row(&NEWEST_OF, &args![org, key])?.map(read).transpose()
}

/// The attempt of the newest execution of this key, also of one whose row was deleted; 0 if there was none.
pub fn last_attempt(tx: &mut Tx, org: OrgId, key: &str) -> Result<i64, Failure> {
    // The rows first: a deletion writes the number in the transaction in which it takes the row.
    if let Some(newest) = newest_of(tx, org, key)? {
        return Ok(newest.it.attempt);
    }
    tx.row(&DELETED_ATTEMPT, &args![org, key])?.map_or(Ok(0), |row| row.int(0))
}

/// Open executions of an org in the order of their keys, those behind a key.
pub fn open_after(tx: &mut Tx, org: OrgId, key: &str, limit: i64) -> Result<Vec<Execution>, Failure> {
    tx.rows(&OPEN_AFTER, &args![org, key, limit])?.iter().map(|row| doc::read(row, 0)).collect()
}

/// Executions that ended before `since`, the earliest first.
pub fn ended_before(tx: &mut Tx, since: Timestamp, limit: i64) -> Result<Vec<Numbered>, Failure> {
    let read = |row: &Row| Ok(Numbered { id: row.int(0)?, it: doc::read(row, 1)? });
    tx.rows(&ENDED_BEFORE, &args![since, limit])?.iter().map(read).collect()
}

/// Deletes the row of an execution that has ended, with its request and callers. If its key may come again, its attempt stays known.
pub fn forget(tx: &mut Tx, ended: &Numbered, key_returns: bool) -> Result<(), Failure> {
    let it = &ended.it;
    if key_returns {
        tx.post(&REMEMBER_ATTEMPT, args![it.org, &it.key, it.attempt])?;
    }
    tx.post(&FORGET_CALLERS, args![ended.id])?;
    tx.post(&FORGET, args![ended.id])
}

/// What is executed.
pub fn request(tx: &mut Tx, id: i64) -> Result<serde_json::Value, Failure> {
    let row = tx.row(&REQUEST, &args![id])?.ok_or_else(|| Trouble::internal("an execution has no request"))?;
    serde_json::from_str(row.str(0)?).map_err(|error| Trouble::internal(format!("a request: {error}")).into())
}

/// Newest first.
pub fn page(tx: &mut Tx, org: OrgId, before: i64, limit: i64) -> Result<Vec<Numbered>, Failure> {
    let read = |row: &Row| Ok(Numbered { id: row.int(0)?, it: doc::read(row, 1)? });
    tx.rows(&PAGE, &args![org, before, limit])?.iter().map(read).collect()
}

/// This run waits for it.
pub fn join(tx: &mut Tx, id: i64, run: RunId) -> Result<(), Failure> {
    tx.post(&JOIN, args![id, run])
}

/// This run waits no longer.
pub fn leave(tx: &mut Tx, id: i64, run: RunId) -> Result<(), Failure> {
    tx.post(&LEAVE, args![id, run])
}

/// Open runs that wait for it, in order, up to `limit`.
pub fn callers(tx: &mut Tx, id: i64, limit: i64) -> Result<Vec<RunId>, Failure> {
    tx.rows(&CALLERS, &args![id, limit])?.iter().map(|row| row.int(0).map(RunId)).collect()
}

/// Open executions that this run waits for, in order, up to `limit`.
pub fn of_caller(tx: &mut Tx, run: RunId, limit: i64) -> Result<Vec<Numbered>, Failure> {
    let read = |row: &Row| Ok(Numbered { id: row.int(0)?, it: doc::read(row, 1)? });
    tx.rows(&OF_CALLER, &args![run, limit])?.iter().map(read).collect()
}

/// How often the results of a function, or this one of its calls, were invalidated. Both only rise, so that no sum comes twice.
pub fn epoch(tx: &mut Tx, org: OrgId, function: &str, node: NodeId) -> Result<i64, Failure> {
    tx.row(&EPOCH, &args![org, function, of_node(node)])?.expect("a sum is a row").int(0)
}

/// From now on no execution that is in flight answers new callers of this function.
pub fn raise_epoch(tx: &mut Tx, org: OrgId, function: &str) -> Result<(), Failure> {
    tx.exec(&RAISE, &args![org, function]).map(drop)
}

/// The same for one call.
pub fn raise_epoch_of_call(tx: &mut Tx, org: OrgId, node: NodeId) -> Result<(), Failure> {
    tx.exec(&RAISE, &args![org, of_node(node)]).map(drop)
}

/// Where the invalidations of one call are counted, beside those of functions. No function is called so: those are URIs.
fn of_node(node: NodeId) -> String {
    format!("call {node}")
}

pub(crate) const ALL: &[&Sql] = &[
    &INSERT,
    &SAVE,
    &FIND,
    &LOCK,
    &OPEN_OF,
    &NEWEST_OF,
    &DELETED_ATTEMPT,
    &OPEN_AFTER,
    &ENDED_BEFORE,
    &REMEMBER_ATTEMPT,
    &FORGET_CALLERS,
    &FORGET,
    &REQUEST,
    &PAGE,
    &JOIN,
    &LEAVE,
    &CALLERS,
    &OF_CALLER,
    &EPOCH,
    &RAISE,
];

const INSERT: Sql = Sql::new(
    "INSERT INTO executions (id, org_id, key, open, ended_at, doc, request) VALUES ($1, $2, $3, $4, $5, $6, $7)",
);
const SAVE: Sql = Sql::new("UPDATE executions SET open = $2, ended_at = $3, doc = $4 WHERE id = $1");
const FIND: Sql = Sql::new("SELECT doc FROM executions WHERE id = $1");
const LOCK: Sql = Sql::new("SELECT doc FROM executions WHERE id = $1").no_key_update().locks(Rank::Execution);
const OPEN_OF: Sql = Sql::new("SELECT id FROM executions WHERE org_id = $1 AND key = $2 AND open = 1");
const NEWEST_OF: Sql =
    Sql::new("SELECT id, doc FROM executions WHERE org_id = $1 AND key = $2 ORDER BY id DESC LIMIT 1");
const DELETED_ATTEMPT: Sql = Sql::new("SELECT attempt FROM attempts_of_calls WHERE org_id = $1 AND key = $2");
const OPEN_AFTER: Sql =
    Sql::new("SELECT doc FROM executions WHERE org_id = $1 AND open = 1 AND key > $2 ORDER BY key LIMIT $3");
const ENDED_BEFORE: Sql =
    Sql::new("SELECT id, doc FROM executions WHERE open = 0 AND ended_at < $1 ORDER BY ended_at LIMIT $2");
const REMEMBER_ATTEMPT: Sql = Sql::new(
    "INSERT INTO attempts_of_calls (org_id, key, attempt) VALUES ($1, $2, $3)
         ON CONFLICT (org_id, key) DO UPDATE SET attempt = CASE
            WHEN attempts_of_calls.attempt > excluded.attempt THEN attempts_of_calls.attempt ELSE excluded.attempt END",
);
const FORGET_CALLERS: Sql = Sql::new("DELETE FROM callers WHERE execution_id = $1");
const FORGET: Sql = Sql::new("DELETE FROM executions WHERE id = $1 AND open = 0");
const REQUEST: Sql = Sql::new("SELECT request FROM executions WHERE id = $1");
const PAGE: Sql = Sql::new("SELECT id, doc FROM executions WHERE org_id = $1 AND id < $2 ORDER BY id DESC LIMIT $3");
const JOIN: Sql = Sql::new(
    "INSERT INTO callers (execution_id, run_id) VALUES ($1, $2) ON CONFLICT (execution_id, run_id) DO NOTHING",
);
const LEAVE: Sql = Sql::new("DELETE FROM callers WHERE execution_id = $1 AND run_id = $2");
const CALLERS: Sql = Sql::new(
    "SELECT callers.run_id FROM callers JOIN runs ON runs.id = callers.run_id
      WHERE callers.execution_id = $1 AND runs.open = 1 AND runs.deleted_at IS NULL ORDER BY callers.run_id LIMIT $2",
);
const OF_CALLER: Sql = Sql::new(
    "SELECT executions.id, executions.doc FROM callers JOIN executions ON executions.id = callers.execution_id
      WHERE callers.run_id = $1 AND executions.open = 1 ORDER BY executions.id LIMIT $2",
);
const EPOCH: Sql =
    Sql::new("SELECT CAST(coalesce(sum(counter), 0) AS BIGINT) FROM epochs WHERE org_id = $1 AND function IN ($2, $3)");
const RAISE: Sql = Sql::new(
    "INSERT INTO epochs (org_id, function, counter) VALUES ($1, $2, 1)
         ON CONFLICT (org_id, function) DO UPDATE SET counter = epochs.counter + 1",
);
