//! Rows of agents, each within its run and attempt. Written under the run's lock.

use crate::sql::Sql;
use crate::tx::Tx;
use crate::{args, doc};
use model::agent::Agent;
use model::{Failure, RunId};

pub fn insert(tx: &mut Tx, agent: &Agent) -> Result<(), Failure> {
    tx.post(&INSERT, args![agent.id, agent.run, agent.attempt, agent.status.as_str(), doc::write(agent)])
}

pub fn save(tx: &mut Tx, agent: &Agent) -> Result<(), Failure> {
    tx.post(&SAVE, args![agent.id, agent.status.as_str(), doc::write(agent)])
}

/// Those of one attempt, in order of creation.
pub fn of_attempt(tx: &mut Tx, run: RunId, attempt: i64) -> Result<Vec<Agent>, Failure> {
    doc::read_all(tx.rows(&OF_ATTEMPT, &args![run, attempt])?, 0)
}

pub(crate) const ALL: &[&Sql] = &[&INSERT, &SAVE, &OF_ATTEMPT];

const INSERT: Sql = Sql::new("INSERT INTO agents (id, run_id, attempt, status, doc) VALUES ($1, $2, $3, $4, $5)");
const SAVE: Sql = Sql::new("UPDATE agents SET status = $2, doc = $3 WHERE id = $1");
const OF_ATTEMPT: Sql = Sql::new("SELECT doc FROM agents WHERE run_id = $1 AND attempt = $2 ORDER BY id");
