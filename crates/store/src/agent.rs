//! Rows of agents, each within its run and attempt. Written under the run's lock.

use crate::sql::Sql;
use crate::tx::Tx;
use crate::{Hint, args, doc};
use model::agent::{Agent, AgentStatus};
use model::hierarchy::{Ending, Pick};
use model::{AgentId, Failure, RunId, Timestamp};

pub fn insert(tx: &mut Tx, agent: &Agent) -> Result<(), Failure> {
    let (state, ending) = columns(agent);
    let row = args![
        agent.id,
        agent.run,
        agent.attempt,
        agent.sequence,
        state,
        agent.due_at,
        ending,
        agent.cut,
        doc::write(agent)
    ];
    tx.hint(Hint::Rows(agent.run));
    tx.post(&INSERT, row)
}

pub fn save(tx: &mut Tx, agent: &Agent) -> Result<(), Failure> {
    let (state, ending) = columns(agent);
    tx.hint(Hint::Rows(agent.run));
    tx.post(&SAVE, args![agent.id, state, agent.due_at, ending, agent.cut, doc::write(agent)])
}

fn columns(agent: &Agent) -> (&'static str, bool) {
    (agent.child_state().as_str(), agent.stopping || agent.ending.as_ref().is_some_and(Ending::is_final))
}

pub fn find(tx: &mut Tx, id: AgentId) -> Result<Option<Agent>, Failure> {
    tx.row(&FIND, &args![id])?.map(|row| doc::read(&row, 0)).transpose()
}

/// Those of one attempt, in order of creation.
pub fn of_attempt(tx: &mut Tx, run: RunId, attempt: i64) -> Result<Vec<Agent>, Failure> {
    doc::read_all(tx.rows(&OF_ATTEMPT, &args![run, attempt])?, 0)
}

/// Those of one attempt after an id, in order of creation.
pub fn page(tx: &mut Tx, run: RunId, attempt: i64, after: i64, limit: i64) -> Result<Vec<Agent>, Failure> {
    doc::read_all(tx.rows(&PAGE, &args![run, attempt, after, limit])?, 0)
}

/// Those of one attempt that are meant, in order of their sequence.
pub fn pick(tx: &mut Tx, run: RunId, attempt: i64, pick: Pick, limit: i64) -> Result<Vec<Agent>, Failure> {
    let state = match pick {
        Pick::Pending => "pending",
        Pick::Due => {
            let at = tx.at();
            return doc::read_all(tx.rows(&DUE, &args![run, attempt, at, limit])?, 0);
        }
        Pick::Running => "running",
        Pick::Paused => "paused",
        Pick::Open => return doc::read_all(tx.rows(&OPEN, &args![run, attempt, limit])?, 0),
        Pick::Cut => return doc::read_all(tx.rows(&CUT, &args![run, attempt, limit])?, 0),
        Pick::Waiting | Pick::Failed | Pick::Any => return Ok(Vec::new()),
    };
    doc::read_all(tx.rows(&IN_STATE, &args![run, attempt, state, limit])?, 0)
}

/// Those of one attempt in a state, in order of their sequence.
pub fn in_state(tx: &mut Tx, run: RunId, attempt: i64, state: AgentStatus, limit: i64) -> Result<Vec<Agent>, Failure> {
    doc::read_all(tx.rows(&IN_STATE, &args![run, attempt, state.as_str(), limit])?, 0)
}

/// When the first of an agent's tasks and steps that wait for their next try begins.
pub fn next_due(tx: &mut Tx, agent: AgentId, after: Timestamp) -> Result<Option<Timestamp>, Failure> {
    tx.row(&NEXT_DUE, &args![agent, after])?.map_or(Ok(None), |row| row.opt_at(0))
}

pub(crate) const ALL: &[&Sql] = &[&INSERT, &SAVE, &FIND, &OF_ATTEMPT, &PAGE, &IN_STATE, &DUE, &NEXT_DUE, &OPEN, &CUT];

const INSERT: Sql = Sql::new(
    "INSERT INTO agents (id, run_id, attempt, sequence, state, due, ending, cut, doc)
     VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)",
);
const SAVE: Sql = Sql::new("UPDATE agents SET state = $2, due = $3, ending = $4, cut = $5, doc = $6 WHERE id = $1");
const FIND: Sql = Sql::new("SELECT doc FROM agents WHERE id = $1");
const OF_ATTEMPT: Sql = Sql::new("SELECT doc FROM agents WHERE run_id = $1 AND attempt = $2 ORDER BY id");
const PAGE: Sql =
    Sql::new("SELECT doc FROM agents WHERE run_id = $1 AND attempt = $2 AND id > $3 ORDER BY id LIMIT $4");
const IN_STATE: Sql =
    Sql::new("SELECT doc FROM agents WHERE run_id = $1 AND attempt = $2 AND state = $3 ORDER BY sequence LIMIT $4");
const DUE: Sql = Sql::new(
    "SELECT doc FROM agents
      WHERE run_id = $1 AND attempt = $2 AND state = 'pending' AND ending = 0 AND (due IS NULL OR due <= $3)
      ORDER BY sequence LIMIT $4",
);
const NEXT_DUE: Sql = Sql::new(
    "SELECT min(due) FROM (
        SELECT due FROM tasks WHERE agent_id = $1 AND state = 'pending' AND due > $2
         UNION ALL
        SELECT steps.due FROM tasks JOIN steps ON steps.task_id = tasks.id AND steps.parent_id IS NULL
         WHERE tasks.agent_id = $1 AND tasks.state = 'running' AND steps.state IN ('pending', 'waiting')
           AND steps.due > $2
         UNION ALL
        SELECT child.due FROM tasks
          JOIN steps ON steps.task_id = tasks.id AND steps.parent_id IS NULL
          JOIN steps AS child ON child.parent_id = steps.id
         WHERE tasks.agent_id = $1 AND tasks.state = 'running' AND steps.state IN ('running', 'waiting')
           AND child.state = 'pending' AND child.due > $2) AS waiting",
);
const OPEN: Sql = Sql::new(
    "SELECT doc FROM agents
      WHERE run_id = $1 AND attempt = $2 AND state IN ('pending', 'running', 'paused') AND ending = 0
      ORDER BY sequence LIMIT $3",
);
const CUT: Sql =
    Sql::new("SELECT doc FROM agents WHERE run_id = $1 AND attempt = $2 AND cut = 1 ORDER BY sequence LIMIT $3");
