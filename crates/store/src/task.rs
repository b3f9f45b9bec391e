//! Rows of tasks, each within its run and attempt. Written under the run's lock.

use crate::sql::Sql;
use crate::tx::Tx;
use crate::{args, doc};
use model::children::ChildState;
use model::hierarchy::{Ending, Pick};
use model::task::Task;
use model::{AgentId, Failure, RunId, TaskId};

pub fn insert(tx: &mut Tx, task: &Task) -> Result<(), Failure> {
    let (state, ending) = columns(task);
    let row =
        args![task.id, task.run, task.attempt, task.agent, task.sequence, state, ending, task.cut, doc::write(task)];
    tx.post(&INSERT, row)
}

pub fn save(tx: &mut Tx, task: &Task) -> Result<(), Failure> {
    let (state, ending) = columns(task);
    tx.post(&SAVE, args![task.id, state, ending, task.cut, doc::write(task)])
}

/// A retry has put another row in this one's place: it is history, and counted by nobody.
pub fn replaced(tx: &mut Tx, id: TaskId) -> Result<(), Failure> {
    tx.post(&REPLACED, args![id])
}

fn columns(task: &Task) -> (&'static str, bool) {
    let state = match task.child_state() {
        ChildState::Pending if task.waits_for > 0 => "blocked",
        state => state.as_str(),
    };
    (state, task.ending.as_ref().is_some_and(Ending::is_final))
}

pub fn find(tx: &mut Tx, id: TaskId) -> Result<Option<Task>, Failure> {
    tx.row(&FIND, &args![id])?.map(|row| doc::read(&row, 0)).transpose()
}

/// The one at this place of its agent's plan.
pub fn at(tx: &mut Tx, agent: AgentId, sequence: i64) -> Result<Option<Task>, Failure> {
    tx.row(&AT, &args![agent, sequence])?.map(|row| doc::read(&row, 0)).transpose()
}

/// Those of one attempt, in order of creation.
pub fn of_attempt(tx: &mut Tx, run: RunId, attempt: i64) -> Result<Vec<Task>, Failure> {
    doc::read_all(tx.rows(&OF_ATTEMPT, &args![run, attempt])?, 0)
}

/// Those of an agent that are meant, in order of their sequence.
pub fn pick(tx: &mut Tx, agent: AgentId, pick: Pick, limit: i64) -> Result<Vec<Task>, Failure> {
    let state = match pick {
        Pick::Pending => "pending",
        Pick::Running => "running",
        Pick::Failed => return doc::read_all(tx.rows(&FAILED, &args![agent, limit])?, 0),
        Pick::Open => return doc::read_all(tx.rows(&OPEN, &args![agent, limit])?, 0),
        Pick::Cut => return doc::read_all(tx.rows(&CUT, &args![agent, limit])?, 0),
        Pick::Waiting | Pick::Paused => return Ok(Vec::new()),
    };
    doc::read_all(tx.rows(&IN_STATE, &args![agent, state, limit])?, 0)
}

pub(crate) const ALL: &[&Sql] = &[&INSERT, &SAVE, &REPLACED, &FIND, &AT, &OF_ATTEMPT, &IN_STATE, &FAILED, &OPEN, &CUT];

const INSERT: Sql = Sql::new(
    "INSERT INTO tasks (id, run_id, attempt, agent_id, sequence, state, ending, cut, doc)
     VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)",
);
const SAVE: Sql = Sql::new("UPDATE tasks SET state = $2, ending = $3, cut = $4, doc = $5 WHERE id = $1");
const REPLACED: Sql = Sql::new("UPDATE tasks SET state = 'replaced' WHERE id = $1");
const FIND: Sql = Sql::new("SELECT doc FROM tasks WHERE id = $1");
const AT: Sql = Sql::new("SELECT doc FROM tasks WHERE agent_id = $1 AND sequence = $2 AND state <> 'replaced'");
const OF_ATTEMPT: Sql =
    Sql::new("SELECT doc FROM tasks WHERE run_id = $1 AND attempt = $2 AND state <> 'replaced' ORDER BY id");
const IN_STATE: Sql =
    Sql::new("SELECT doc FROM tasks WHERE agent_id = $1 AND state = $2 AND ending = 0 ORDER BY sequence LIMIT $3");
const FAILED: Sql = Sql::new(
    "SELECT doc FROM tasks WHERE agent_id = $1 AND state IN ('failed', 'cancelled') ORDER BY sequence LIMIT $2",
);
const OPEN: Sql = Sql::new(
    "SELECT doc FROM tasks WHERE agent_id = $1 AND state IN ('pending', 'blocked', 'running') AND ending = 0
      ORDER BY sequence LIMIT $2",
);
const CUT: Sql = Sql::new("SELECT doc FROM tasks WHERE agent_id = $1 AND cut = 1 ORDER BY sequence LIMIT $2");
