//! Rows of tasks, each within its run and attempt. Written under the run's lock.

use crate::sql::Sql;
use crate::tx::Tx;
use crate::{args, doc};
use model::task::Task;
use model::{Failure, RunId};

pub fn insert(tx: &mut Tx, task: &Task) -> Result<(), Failure> {
    tx.post(&INSERT, args![task.id, task.run, task.attempt, task.agent, task.status.as_str(), doc::write(task)])
}

pub fn save(tx: &mut Tx, task: &Task) -> Result<(), Failure> {
    tx.post(&SAVE, args![task.id, task.status.as_str(), doc::write(task)])
}

/// Those of one attempt, in order of creation.
pub fn of_attempt(tx: &mut Tx, run: RunId, attempt: i64) -> Result<Vec<Task>, Failure> {
    doc::read_all(tx.rows(&OF_ATTEMPT, &args![run, attempt])?, 0)
}

pub(crate) const ALL: &[&Sql] = &[&INSERT, &SAVE, &OF_ATTEMPT];

const INSERT: Sql =
    Sql::new("INSERT INTO tasks (id, run_id, attempt, agent_id, status, doc) VALUES ($1, $2, $3, $4, $5, $6)");
const SAVE: Sql = Sql::new("UPDATE tasks SET status = $2, doc = $3 WHERE id = $1");
const OF_ATTEMPT: Sql = Sql::new("SELECT doc FROM tasks WHERE run_id = $1 AND attempt = $2 ORDER BY id");
