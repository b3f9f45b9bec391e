//! Rows of tasks, each within its run and attempt. Written under the run's lock.

use crate::sql::Sql;
use crate::tx::Tx;
use crate::{Hint, args, doc};
use model::children::ChildState;
use model::hierarchy::{Ending, Pick};
use model::task::{Task, TaskStatus};
use model::{AgentId, Failure, RunId, TaskId};

pub fn insert(tx: &mut Tx, task: &Task) -> Result<(), Failure> {
    let (state, ending) = columns(task);
    let row = args![
        task.id,
        task.run,
        task.attempt,
        task.agent,
        task.sequence,
        state,
        task.due_at,
        ending,
        task.cut,
        doc::write(task)
    ];
    tx.hint(Hint::Rows(task.run));
    tx.post(&INSERT, row)
}

pub fn save(tx: &mut Tx, task: &Task) -> Result<(), Failure> {
    let (state, ending) = columns(task);
    tx.hint(Hint::Rows(task.run));
    tx.post(&SAVE, args![task.id, state, task.due_at, ending, task.cut, doc::write(task)])
}

fn columns(task: &Task) -> (&'static str, bool) {
    let state = match task.child_state() {
        _ if task.replaced => "replaced",
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

/// All at this place: one, or one for each item of a `for_each`, in their order.
pub fn all_at(tx: &mut Tx, agent: AgentId, sequence: i64) -> Result<Vec<Task>, Failure> {
    let mut found: Vec<Task> = doc::read_all(tx.rows(&AT, &args![agent, sequence])?, 0)?;
    found.sort_by_key(|task| task.item);
    Ok(found)
}

/// All that an agent has now, in order of their sequence.
pub fn of_agent(tx: &mut Tx, agent: AgentId) -> Result<Vec<Task>, Failure> {
    doc::read_all(tx.rows(&OF_AGENT, &args![agent])?, 0)
}

/// Those of one attempt, in order of creation.
pub fn of_attempt(tx: &mut Tx, run: RunId, attempt: i64) -> Result<Vec<Task>, Failure> {
    doc::read_all(tx.rows(&OF_ATTEMPT, &args![run, attempt])?, 0)
}

/// Those of one attempt after an id, in order of creation; only of one agent, if it is named.
pub fn page(
    tx: &mut Tx,
    run: RunId,
    attempt: i64,
    agent: Option<AgentId>,
    after: i64,
    limit: i64,
) -> Result<Vec<Task>, Failure> {
    let rows = match agent {
        None => tx.rows(&PAGE, &args![run, attempt, after, limit])?,
        Some(agent) => tx.rows(&PAGE_OF_AGENT, &args![run, attempt, agent, after, limit])?,
    };
    doc::read_all(rows, 0)
}

/// Those of an agent that are meant, in order of their sequence.
pub fn pick(tx: &mut Tx, agent: AgentId, pick: Pick, limit: i64) -> Result<Vec<Task>, Failure> {
    let state = match pick {
        Pick::Pending => "pending",
        Pick::Due => {
            let at = tx.at();
            return doc::read_all(tx.rows(&DUE, &args![agent, at, limit])?, 0);
        }
        Pick::Running => "running",
        Pick::Failed => return doc::read_all(tx.rows(&FAILED, &args![agent, limit])?, 0),
        Pick::Open => return doc::read_all(tx.rows(&OPEN, &args![agent, limit])?, 0),
        Pick::Cut => return doc::read_all(tx.rows(&CUT, &args![agent, limit])?, 0),
        Pick::Any => return doc::read_all(tx.rows(&ANY, &args![agent, limit])?, 0),
        Pick::Waiting | Pick::Paused => return Ok(Vec::new()),
    };
    doc::read_all(tx.rows(&IN_STATE, &args![agent, state, limit])?, 0)
}

/// Those of an agent in a state, also those that are ending.
pub fn in_state(tx: &mut Tx, agent: AgentId, state: TaskStatus, limit: i64) -> Result<Vec<Task>, Failure> {
    doc::read_all(tx.rows(&ALL_IN_STATE, &args![agent, state.as_str(), limit])?, 0)
}

/// Those that an agent counts so, in order of their sequence.
pub fn counted_as(tx: &mut Tx, agent: AgentId, state: ChildState, limit: i64) -> Result<Vec<Task>, Failure> {
    doc::read_all(tx.rows(&ALL_IN_STATE, &args![agent, state.as_str(), limit])?, 0)
}

/// Those of an agent that run, also those that are ending.
pub fn in_flight(tx: &mut Tx, agent: AgentId, limit: i64) -> Result<Vec<Task>, Failure> {
    doc::read_all(tx.rows(&IN_FLIGHT, &args![agent, limit])?, 0)
}

pub(crate) const ALL: &[&Sql] = &[
    &INSERT,
    &SAVE,
    &FIND,
    &AT,
    &ANY,
    &OF_AGENT,
    &OF_ATTEMPT,
    &PAGE,
    &PAGE_OF_AGENT,
    &IN_STATE,
    &ALL_IN_STATE,
    &IN_FLIGHT,
    &DUE,
    &FAILED,
    &OPEN,
    &CUT,
];

const INSERT: Sql = Sql::new(
    "INSERT INTO tasks (id, run_id, attempt, agent_id, sequence, state, due, ending, cut, doc)
     VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)",
);
const SAVE: Sql = Sql::new("UPDATE tasks SET state = $2, due = $3, ending = $4, cut = $5, doc = $6 WHERE id = $1");
const FIND: Sql = Sql::new("SELECT doc FROM tasks WHERE id = $1");
const ANY: Sql =
    Sql::new("SELECT doc FROM tasks WHERE agent_id = $1 AND state <> 'replaced' ORDER BY sequence LIMIT $2");
const AT: Sql = Sql::new("SELECT doc FROM tasks WHERE agent_id = $1 AND sequence = $2 AND state <> 'replaced'");
const OF_AGENT: Sql =
    Sql::new("SELECT doc FROM tasks WHERE agent_id = $1 AND state <> 'replaced' ORDER BY sequence, id");
const OF_ATTEMPT: Sql =
    Sql::new("SELECT doc FROM tasks WHERE run_id = $1 AND attempt = $2 AND state <> 'replaced' ORDER BY id");
const PAGE: Sql = Sql::new(
    "SELECT doc FROM tasks WHERE run_id = $1 AND attempt = $2 AND id > $3 AND state <> 'replaced' ORDER BY id LIMIT $4",
);
const PAGE_OF_AGENT: Sql = Sql::new(
    "SELECT doc FROM tasks
      WHERE run_id = $1 AND attempt = $2 AND agent_id = $3 AND id > $4 AND state <> 'replaced' ORDER BY id LIMIT $5",
);
const IN_STATE: Sql =
    Sql::new("SELECT doc FROM tasks WHERE agent_id = $1 AND state = $2 AND ending = 0 ORDER BY sequence, id LIMIT $3");
const ALL_IN_STATE: Sql =
    Sql::new("SELECT doc FROM tasks WHERE agent_id = $1 AND state = $2 ORDER BY sequence, id LIMIT $3");
const IN_FLIGHT: Sql =
    Sql::new("SELECT doc FROM tasks WHERE agent_id = $1 AND state = 'running' ORDER BY sequence, id LIMIT $2");
const DUE: Sql = Sql::new(
    "SELECT doc FROM tasks
      WHERE agent_id = $1 AND state = 'pending' AND ending = 0 AND (due IS NULL OR due <= $2)
      ORDER BY sequence, id LIMIT $3",
);
const FAILED: Sql = Sql::new(
    "SELECT doc FROM tasks WHERE agent_id = $1 AND state IN ('failed', 'cancelled') ORDER BY sequence, id LIMIT $2",
);
const OPEN: Sql = Sql::new(
    "SELECT doc FROM tasks WHERE agent_id = $1 AND state IN ('pending', 'blocked', 'running') AND ending = 0
      ORDER BY sequence, id LIMIT $2",
);
const CUT: Sql = Sql::new("SELECT doc FROM tasks WHERE agent_id = $1 AND cut = 1 ORDER BY sequence, id LIMIT $2");
