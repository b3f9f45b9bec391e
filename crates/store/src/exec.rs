//! Rows of execs: which executions of a node there were, by which run, and which contents their results name.

use crate::args;
use crate::object::id_of;
use crate::sql::Sql;
use crate::tx::Tx;
use crate::value::Row;
use calls::{ExecId, NodeId};
use model::{Failure, OrgId, RunId, Timestamp};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExecRow {
    pub id: ExecId,
    pub node: NodeId,
    /// The URI of the function.
    pub function: String,
    /// What the run that asked first was called.
    pub name: String,
    pub ok: bool,
    /// The run that executed it.
    pub run: Option<RunId>,
    pub ended_at: Timestamp,
    /// Of its result: records and contents.
    pub bytes: i64,
}

/// Writes the row and what its result names. Written twice, it is the same.
pub fn insert(tx: &mut Tx, org: OrgId, exec: &ExecRow, contents: &[String]) -> Result<(), Failure> {
    let id = exec.id.0.0.to_vec();
    let e = exec;
    let (node, run) = (&e.node.0.0[..], e.run);
    tx.post(&INSERT, args![org, id.clone(), node, &e.function, &e.name, e.ok, run, e.ended_at, e.bytes])?;
    tx.insert_many(&NAMES, contents.iter().map(|hash| args![org, id.clone(), hash.as_str()]).collect())
}

pub fn find(tx: &mut Tx, org: OrgId, id: ExecId) -> Result<Option<ExecRow>, Failure> {
    tx.row(&FIND, &args![org, &id.0.0[..]])?.map(|row| read(&row, 0)).transpose()
}

/// The row of each of many execs, in one question.
pub fn each(tx: &mut Tx, org: OrgId, ids: &[ExecId]) -> Result<Vec<Option<ExecRow>>, Failure> {
    let questions: Vec<_> = ids.iter().map(|id| (&FIND, args![org, &id.0.0[..]].to_vec())).collect();
    let answers = tx.rows_of_each(&questions)?;
    answers.iter().map(|rows| rows.first().map(|row| read(row, 0)).transpose()).collect()
}

/// Newest first.
pub fn of_node(tx: &mut Tx, org: OrgId, node: NodeId, limit: i64) -> Result<Vec<ExecRow>, Failure> {
    tx.rows(&OF_NODE, &args![org, &node.0.0[..], limit])?.iter().map(|row| read(row, 0)).collect()
}

/// The newest `limit` execs of each of many nodes, in one question.
pub fn of_nodes(tx: &mut Tx, org: OrgId, nodes: &[NodeId], limit: i64) -> Result<Vec<ExecId>, Failure> {
    let questions: Vec<_> = nodes.iter().map(|node| (&OF_NODE, args![org, &node.0.0[..], limit].to_vec())).collect();
    let answers = tx.rows_of_each(&questions)?;
    answers.iter().flatten().map(|row| Ok(ExecId(id_of(&row.blob(0)?)?))).collect()
}

/// The newest exec of a function that a run of this name asked for; of another node than `not`, ended by `before`.
pub fn newest_of_name(
    tx: &mut Tx,
    org: OrgId,
    (function, name): (&str, &str),
    not: NodeId,
    before: Timestamp,
) -> Result<Option<ExecRow>, Failure> {
    let row = tx.row(&OF_NAME, &args![org, function, name, &not.0.0[..], before])?;
    row.map(|row| read(&row, 0)).transpose()
}

/// The same whatever its name.
pub fn newest_of_function(
    tx: &mut Tx,
    org: OrgId,
    function: &str,
    not: NodeId,
    before: Timestamp,
) -> Result<Option<ExecRow>, Failure> {
    tx.row(&OF_FUNCTION, &args![org, function, &not.0.0[..], before])?.map(|row| read(&row, 0)).transpose()
}

/// The newest exec whose result names a content.
pub fn of_content(tx: &mut Tx, org: OrgId, hash: &str) -> Result<Option<ExecRow>, Failure> {
    tx.row(&OF_CONTENT, &args![org, hash])?.map(|row| read(&row, 0)).transpose()
}

pub fn of_run(tx: &mut Tx, org: OrgId, run: RunId) -> Result<Option<ExecRow>, Failure> {
    tx.row(&OF_RUN, &args![org, run])?.map(|row| read(&row, 0)).transpose()
}

/// Newest first, those that ended at `before` or earlier.
pub fn page(tx: &mut Tx, org: OrgId, before: Timestamp, limit: i64) -> Result<Vec<ExecRow>, Failure> {
    tx.rows(&PAGE, &args![org, before, limit])?.iter().map(|row| read(row, 0)).collect()
}

/// The exec is gone with its record: contents that it alone named wait for being needed again.
pub fn forget(tx: &mut Tx, org: OrgId, id: ExecId) -> Result<(), Failure> {
    tx.post(&FORGET_NAMES, args![org, &id.0.0[..]])?;
    tx.post(&FORGET, args![org, &id.0.0[..]])
}

pub(crate) const COLUMNS: usize = 8;

pub(crate) fn read(row: &Row, from: usize) -> Result<ExecRow, Failure> {
    Ok(ExecRow {
        id: ExecId(id_of(&row.blob(from)?)?),
        node: NodeId(id_of(&row.blob(from + 1)?)?),
        function: row.text(from + 2)?,
        name: row.text(from + 3)?,
        ok: row.flag(from + 4)?,
        run: row.opt_int(from + 5)?.map(RunId),
        ended_at: row.at(from + 6)?,
        bytes: row.int(from + 7)?,
    })
}

pub(crate) const ALL: &[&Sql] =
    &[&INSERT, &NAMES, &FIND, &OF_NODE, &OF_NAME, &OF_FUNCTION, &OF_CONTENT, &OF_RUN, &PAGE, &FORGET, &FORGET_NAMES];

const INSERT: Sql = Sql::new(
    "INSERT INTO execs (org_id, id, node, function, name, ok, run_id, ended_at, bytes)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)
         ON CONFLICT (org_id, id) DO NOTHING",
);
const NAMES: Sql = Sql::new(
    "INSERT INTO exec_contents (org_id, exec, hash) VALUES ($1, $2, $3) ON CONFLICT (org_id, exec, hash) DO NOTHING",
);
const FIND: Sql =
    Sql::new("SELECT id, node, function, name, ok, run_id, ended_at, bytes FROM execs WHERE org_id = $1 AND id = $2");
const OF_NODE: Sql = Sql::new(
    "SELECT id, node, function, name, ok, run_id, ended_at, bytes FROM execs
      WHERE org_id = $1 AND node = $2 ORDER BY ended_at DESC LIMIT $3",
);
const OF_NAME: Sql = Sql::new(
    "SELECT id, node, function, name, ok, run_id, ended_at, bytes FROM execs
      WHERE org_id = $1 AND function = $2 AND name = $3 AND node <> $4 AND ended_at <= $5 ORDER BY ended_at DESC LIMIT 1",
);
const OF_FUNCTION: Sql = Sql::new(
    "SELECT id, node, function, name, ok, run_id, ended_at, bytes FROM execs
      WHERE org_id = $1 AND function = $2 AND node <> $3 AND ended_at <= $4 ORDER BY ended_at DESC LIMIT 1",
);
const OF_CONTENT: Sql = Sql::new(
    "SELECT e.id, e.node, e.function, e.name, e.ok, e.run_id, e.ended_at, e.bytes
       FROM exec_contents AS c JOIN execs AS e ON e.org_id = c.org_id AND e.id = c.exec
      WHERE c.org_id = $1 AND c.hash = $2 ORDER BY e.ended_at DESC LIMIT 1",
);
const OF_RUN: Sql = Sql::new(
    "SELECT id, node, function, name, ok, run_id, ended_at, bytes FROM execs WHERE org_id = $1 AND run_id = $2 LIMIT 1",
);
const PAGE: Sql = Sql::new(
    "SELECT id, node, function, name, ok, run_id, ended_at, bytes FROM execs
      WHERE org_id = $1 AND ended_at <= $2 ORDER BY ended_at DESC, id LIMIT $3",
);
const FORGET: Sql = Sql::new("DELETE FROM execs WHERE org_id = $1 AND id = $2");
const FORGET_NAMES: Sql = Sql::new("DELETE FROM exec_contents WHERE org_id = $1 AND exec = $2");
