//! Rows of steps, each within its run and attempt. Written under the run's lock.

use crate::sql::Sql;
use crate::tx::Tx;
use crate::{args, doc};
use model::hierarchy::Pick;
use model::step::Step;
use model::{Failure, RunId, StepId, TaskId};

pub fn insert(tx: &mut Tx, step: &Step) -> Result<(), Failure> {
    let state = step.child_state().as_str();
    tx.post(&INSERT, args![step.id, step.run, step.attempt, step.task, step.sequence, state, doc::write(step)])
}

pub fn save(tx: &mut Tx, step: &Step) -> Result<(), Failure> {
    tx.post(&SAVE, args![step.id, step.child_state().as_str(), doc::write(step)])
}

/// A retry has put another row in this one's place: it is history, and counted by nobody.
pub fn replaced(tx: &mut Tx, id: StepId) -> Result<(), Failure> {
    tx.post(&REPLACED, args![id])
}

pub fn find(tx: &mut Tx, id: StepId) -> Result<Option<Step>, Failure> {
    tx.row(&FIND, &args![id])?.map(|row| doc::read(&row, 0)).transpose()
}

/// Those of one attempt, in order of creation.
pub fn of_attempt(tx: &mut Tx, run: RunId, attempt: i64) -> Result<Vec<Step>, Failure> {
    doc::read_all(tx.rows(&OF_ATTEMPT, &args![run, attempt])?, 0)
}

/// Those of a task that are meant, in order of their sequence.
pub fn pick(tx: &mut Tx, task: TaskId, pick: Pick, limit: i64) -> Result<Vec<Step>, Failure> {
    let state = match pick {
        Pick::Pending => "pending",
        Pick::Running => "running",
        Pick::Waiting => "waiting",
        Pick::Failed => return doc::read_all(tx.rows(&FAILED, &args![task, limit])?, 0),
        Pick::Open => return doc::read_all(tx.rows(&OPEN, &args![task, limit])?, 0),
        Pick::Paused | Pick::Cut => return Ok(Vec::new()),
    };
    doc::read_all(tx.rows(&IN_STATE, &args![task, state, limit])?, 0)
}

pub(crate) const ALL: &[&Sql] = &[&INSERT, &SAVE, &REPLACED, &FIND, &OF_ATTEMPT, &IN_STATE, &FAILED, &OPEN];

const INSERT: Sql = Sql::new(
    "INSERT INTO steps (id, run_id, attempt, task_id, sequence, state, doc) VALUES ($1, $2, $3, $4, $5, $6, $7)",
);
const SAVE: Sql = Sql::new("UPDATE steps SET state = $2, doc = $3 WHERE id = $1");
const REPLACED: Sql = Sql::new("UPDATE steps SET state = 'replaced' WHERE id = $1");
const FIND: Sql = Sql::new("SELECT doc FROM steps WHERE id = $1");
const OF_ATTEMPT: Sql =
    Sql::new("SELECT doc FROM steps WHERE run_id = $1 AND attempt = $2 AND state <> 'replaced' ORDER BY id");
const IN_STATE: Sql = Sql::new("SELECT doc FROM steps WHERE task_id = $1 AND state = $2 ORDER BY sequence LIMIT $3");
const FAILED: Sql = Sql::new(
    "SELECT doc FROM steps WHERE task_id = $1 AND state IN ('failed', 'cancelled') ORDER BY sequence LIMIT $2",
);
const OPEN: Sql =
    Sql::new("SELECT doc FROM steps WHERE task_id = $1 AND state IN ('pending', 'waiting') ORDER BY sequence LIMIT $2");
