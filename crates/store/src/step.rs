//! Rows of steps, each within its run and attempt. Written under the run's lock.

use crate::sql::Sql;
use crate::tx::Tx;
use crate::{args, doc};
use model::step::Step;
use model::{Failure, RunId};

pub fn insert(tx: &mut Tx, step: &Step) -> Result<(), Failure> {
    tx.post(&INSERT, args![step.id, step.run, step.attempt, step.task, step.status.as_str(), doc::write(step)])
}

pub fn save(tx: &mut Tx, step: &Step) -> Result<(), Failure> {
    tx.post(&SAVE, args![step.id, step.status.as_str(), doc::write(step)])
}

/// Those of one attempt, in order of creation.
pub fn of_attempt(tx: &mut Tx, run: RunId, attempt: i64) -> Result<Vec<Step>, Failure> {
    doc::read_all(tx.rows(&OF_ATTEMPT, &args![run, attempt])?, 0)
}

pub(crate) const ALL: &[&Sql] = &[&INSERT, &SAVE, &OF_ATTEMPT];

const INSERT: Sql =
    Sql::new("INSERT INTO steps (id, run_id, attempt, task_id, status, doc) VALUES ($1, $2, $3, $4, $5, $6)");
const SAVE: Sql = Sql::new("UPDATE steps SET status = $2, doc = $3 WHERE id = $1");
const OF_ATTEMPT: Sql = Sql::new("SELECT doc FROM steps WHERE run_id = $1 AND attempt = $2 ORDER BY id");
