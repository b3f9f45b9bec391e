//! Plans of agents: one row each, written once.

use crate::sql::Sql;
use crate::tx::Tx;
use crate::{args, doc};
use model::plan::AgentPlan;
use model::{Failure, RunId};

pub fn insert(tx: &mut Tx, run: RunId, version: i64, sequence: i64, plan: &AgentPlan) -> Result<(), Failure> {
    tx.post(&INSERT, args![run, version, sequence, doc::write(plan)])
}

pub fn find(tx: &mut Tx, run: RunId, version: i64, sequence: i64) -> Result<Option<AgentPlan>, Failure> {
    tx.row(&FIND, &args![run, version, sequence])?.map(|row| doc::read_once(&row, 0)).transpose()
}

/// Those of one version's agents with their sequence numbers, in order.
pub fn of_version(tx: &mut Tx, run: RunId, version: i64) -> Result<Vec<(i64, AgentPlan)>, Failure> {
    let rows = tx.rows(&OF_VERSION, &args![run, version])?;
    rows.iter().map(|row| Ok((row.int(0)?, doc::read_once(row, 1)?))).collect()
}

pub(crate) const ALL: &[&Sql] = &[&INSERT, &FIND, &OF_VERSION];

const INSERT: Sql = Sql::new("INSERT INTO plans (run_id, version, sequence, doc) VALUES ($1, $2, $3, $4)");
const FIND: Sql = Sql::new("SELECT doc FROM plans WHERE run_id = $1 AND version = $2 AND sequence = $3");
const OF_VERSION: Sql =
    Sql::new("SELECT sequence, doc FROM plans WHERE run_id = $1 AND version = $2 ORDER BY sequence");
