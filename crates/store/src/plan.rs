//! Plans of agents, and what the agents of a run share: one row each, written once.

use crate::sql::Sql;
use crate::tx::Tx;
use crate::{args, doc};
use model::plan::{AgentPlan, RunPlan};
use model::{Failure, RunId};

pub fn insert(tx: &mut Tx, run: RunId, version: i64, sequence: i64, plan: &AgentPlan) -> Result<(), Failure> {
    tx.post(&INSERT, args![run, version, sequence, doc::write(plan)])
}

pub fn find(tx: &mut Tx, run: RunId, version: i64, sequence: i64) -> Result<Option<AgentPlan>, Failure> {
    tx.row(&FIND, &args![run, version, sequence])?.map(|row| doc::read_once(&row, 0)).transpose()
}

/// Stored beside the plans of the run's agents, under a version that none of them has.
const SHARED: (i64, i64) = (-1, 0);

pub fn insert_shared(tx: &mut Tx, run: RunId, plan: &RunPlan) -> Result<(), Failure> {
    tx.post(&INSERT, args![run, SHARED.0, SHARED.1, doc::write(plan)])
}

/// What the agents of a run share; nothing for a run that was submitted without it.
pub fn shared(tx: &mut Tx, run: RunId) -> Result<RunPlan, Failure> {
    let row = tx.row(&FIND, &args![run, SHARED.0, SHARED.1])?;
    row.map_or_else(|| Ok(RunPlan::default()), |row| doc::read_once(&row, 0))
}

/// A plan version as it was written, beside what was compiled from it.
const SOURCE: i64 = -1;

pub fn insert_source(tx: &mut Tx, run: RunId, version: i64, source: &serde_json::Value) -> Result<(), Failure> {
    tx.post(&INSERT, args![run, version, SOURCE, doc::write(source)])
}

pub fn source(tx: &mut Tx, run: RunId, version: i64) -> Result<Option<serde_json::Value>, Failure> {
    tx.row(&FIND, &args![run, version, SOURCE])?.map(|row| doc::read_once(&row, 0)).transpose()
}

/// The document of a run of agents as it was submitted, beside what they share.
const DOCUMENT: (i64, i64) = (-1, -2);

pub fn insert_document(tx: &mut Tx, run: RunId, document: &serde_json::Value) -> Result<(), Failure> {
    tx.post(&INSERT, args![run, DOCUMENT.0, DOCUMENT.1, doc::write(document)])
}

pub fn document(tx: &mut Tx, run: RunId) -> Result<Option<serde_json::Value>, Failure> {
    tx.row(&FIND, &args![run, DOCUMENT.0, DOCUMENT.1])?.map(|row| doc::read_once(&row, 0)).transpose()
}

/// A place that no agent of any version and attempt has.
pub fn next_sequence(tx: &mut Tx, run: RunId) -> Result<i64, Failure> {
    tx.row(&LAST, &args![run])?.map_or(Ok(0), |row| Ok(row.opt_int(0)?.map_or(0, |last| last + 1)))
}

/// Those of one version's agents with their sequence numbers, in order.
pub fn of_version(tx: &mut Tx, run: RunId, version: i64) -> Result<Vec<(i64, AgentPlan)>, Failure> {
    let rows = tx.rows(&OF_VERSION, &args![run, version])?;
    rows.iter().map(|row| Ok((row.int(0)?, doc::read_once(row, 1)?))).collect()
}

pub(crate) const ALL: &[&Sql] = &[&INSERT, &FIND, &LAST, &OF_VERSION];

const INSERT: Sql = Sql::new("INSERT INTO plans (run_id, version, sequence, doc) VALUES ($1, $2, $3, $4)");
const FIND: Sql = Sql::new("SELECT doc FROM plans WHERE run_id = $1 AND version = $2 AND sequence = $3");
const LAST: Sql = Sql::new("SELECT max(sequence) FROM plans WHERE run_id = $1");
const OF_VERSION: Sql =
    Sql::new("SELECT sequence, doc FROM plans WHERE run_id = $1 AND version = $2 AND sequence >= 0 ORDER BY sequence");
