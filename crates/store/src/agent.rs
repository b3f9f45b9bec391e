//! Rows of agents, each within its run and attempt. Written under the run's lock.

use crate::sql::Sql;
use crate::tx::Tx;
use crate::{args, doc};
use model::agent::Agent;
use model::hierarchy::{Ending, Pick};
use model::{AgentId, Failure, RunId};

pub fn insert(tx: &mut Tx, agent: &Agent) -> Result<(), Failure> {
    let (state, ending) = columns(agent);
    let row = args![agent.id, agent.run, agent.attempt, agent.sequence, state, ending, agent.cut, doc::write(agent)];
    tx.post(&INSERT, row)
}

pub fn save(tx: &mut Tx, agent: &Agent) -> Result<(), Failure> {
    let (state, ending) = columns(agent);
    tx.post(&SAVE, args![agent.id, state, ending, agent.cut, doc::write(agent)])
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

/// Those of one attempt that are meant, in order of their sequence.
pub fn pick(tx: &mut Tx, run: RunId, attempt: i64, pick: Pick, limit: i64) -> Result<Vec<Agent>, Failure> {
    let state = match pick {
        Pick::Pending => "pending",
        Pick::Running => "running",
        Pick::Paused => "paused",
        Pick::Open => return doc::read_all(tx.rows(&OPEN, &args![run, attempt, limit])?, 0),
        Pick::Cut => return doc::read_all(tx.rows(&CUT, &args![run, attempt, limit])?, 0),
        Pick::Waiting | Pick::Failed => return Ok(Vec::new()),
    };
    doc::read_all(tx.rows(&IN_STATE, &args![run, attempt, state, limit])?, 0)
}

pub(crate) const ALL: &[&Sql] = &[&INSERT, &SAVE, &FIND, &OF_ATTEMPT, &IN_STATE, &OPEN, &CUT];

const INSERT: Sql = Sql::new(
    "INSERT INTO agents (id, run_id, attempt, sequence, state, ending, cut, doc) VALUES ($1, $2, $3, $4, $5, $6, $7, $8)",
);
const SAVE: Sql = Sql::new("UPDATE agents SET state = $2, ending = $3, cut = $4, doc = $5 WHERE id = $1");
const FIND: Sql = Sql::new("SELECT doc FROM agents WHERE id = $1");
const OF_ATTEMPT: Sql = Sql::new("SELECT doc FROM agents WHERE run_id = $1 AND attempt = $2 ORDER BY id");
const IN_STATE: Sql =
    Sql::new("SELECT doc FROM agents WHERE run_id = $1 AND attempt = $2 AND state = $3 ORDER BY sequence LIMIT $4");
const OPEN: Sql = Sql::new(
    "SELECT doc FROM agents
      WHERE run_id = $1 AND attempt = $2 AND state IN ('pending', 'running', 'paused') AND ending = 0
      ORDER BY sequence LIMIT $3",
);
const CUT: Sql =
    Sql::new("SELECT doc FROM agents WHERE run_id = $1 AND attempt = $2 AND cut = 1 ORDER BY sequence LIMIT $3");
