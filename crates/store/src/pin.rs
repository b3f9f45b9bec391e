//! Rows of pins: which exec answers a call node. The read path beside the index commit, which has the same pins as a trie.

use crate::args;
use crate::exec::{self, ExecRow};
use crate::hint::{Hint, Topic};
use crate::object::id_of;
use crate::sql::Sql;
use crate::tx::Tx;
use calls::{ExecId, NodeId};
use model::time::HOUR;
use model::{Failure, OrgId, Timestamp};

/// The use of a pin is written at most so often.
const USE_NOTED_MS: i64 = HOUR;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pin {
    /// Rises with each pin.
    pub id: i64,
    pub node: NodeId,
    pub used_at: Timestamp,
    pub exec: ExecRow,
}

pub fn find(tx: &mut Tx, org: OrgId, project: &str, node: NodeId) -> Result<Option<ExecId>, Failure> {
    let row = tx.row(&FIND, &args![org, project, &node.0.0[..]])?;
    row.map(|row| Ok(ExecId(id_of(&row.blob(0)?)?))).transpose()
}

pub fn set(tx: &mut Tx, org: OrgId, project: &str, node: NodeId, exec: ExecId) -> Result<(), Failure> {
    let (at, id) = (tx.at(), tx.next_id());
    tx.hint(Hint::Org(org, Topic::Calls));
    tx.post(&SET, args![org, project, &node.0.0[..], &exec.0.0[..], at, id])
}

/// It answered a caller.
pub fn used(tx: &mut Tx, org: OrgId, project: &str, node: NodeId) -> Result<(), Failure> {
    let at = tx.at();
    tx.post(&USED, args![org, project, &node.0.0[..], at, at - USE_NOTED_MS])
}

/// Whether its last use is so long ago that one is to be noted.
pub fn is_stale(tx: &mut Tx, org: OrgId, project: &str, node: NodeId) -> Result<bool, Failure> {
    let noted = tx.row(&USED_AT, &args![org, project, &node.0.0[..]])?.map(|row| row.at(0)).transpose()?;
    let at = tx.at();
    Ok(noted.is_some_and(|noted| noted < at - USE_NOTED_MS))
}

pub fn remove(tx: &mut Tx, org: OrgId, project: &str, node: NodeId) -> Result<(), Failure> {
    tx.hint(Hint::Org(org, Topic::Calls));
    tx.post(&REMOVE, args![org, project, &node.0.0[..]])
}

/// Pins with their execs, newest first.
pub fn page(tx: &mut Tx, org: OrgId, project: &str, before: i64, limit: i64) -> Result<Vec<Pin>, Failure> {
    read(tx, &PAGE, org, project, before, limit)
}

/// Those that were not used since then, longest unused first.
pub fn unused(tx: &mut Tx, org: OrgId, project: &str, since: Timestamp, limit: i64) -> Result<Vec<Pin>, Failure> {
    read(tx, &UNUSED, org, project, since.0, limit)
}

/// Pins of one function.
pub fn of_function(tx: &mut Tx, org: OrgId, project: &str, function: &str, limit: i64) -> Result<Vec<NodeId>, Failure> {
    let rows = tx.rows(&OF_FUNCTION, &args![org, project, function, limit])?;
    rows.iter().map(|row| Ok(NodeId(id_of(&row.blob(0)?)?))).collect()
}

/// The sum of bytes of what is pinned.
pub fn bytes(tx: &mut Tx, org: OrgId, project: &str) -> Result<i64, Failure> {
    tx.row(&BYTES, &args![org, project])?.expect("a sum is a row").int(0)
}

/// How many pins each project of an org has, in the order of their names.
pub fn projects(tx: &mut Tx, org: OrgId, limit: i64) -> Result<Vec<(String, i64)>, Failure> {
    tx.rows(&PROJECTS, &args![org, limit])?.iter().map(|row| Ok((row.text(0)?, row.int(1)?))).collect()
}

/// All pins of a project, in the order of their nodes, those behind a node.
pub fn after(
    tx: &mut Tx,
    org: OrgId,
    project: &str,
    node: Option<NodeId>,
    limit: i64,
) -> Result<Vec<(NodeId, ExecId)>, Failure> {
    let from = node.map_or(Vec::new(), |node| node.0.0.to_vec());
    let rows = tx.rows(&AFTER, &args![org, project, from, limit])?;
    rows.iter().map(|row| Ok((NodeId(id_of(&row.blob(0)?)?), ExecId(id_of(&row.blob(1)?)?)))).collect()
}

fn read(tx: &mut Tx, sql: &Sql, org: OrgId, project: &str, from: i64, limit: i64) -> Result<Vec<Pin>, Failure> {
    let rows = tx.rows(sql, &args![org, project, from, limit])?;
    let pin = |row: &crate::Row| {
        let exec = exec::read(row, 0)?;
        Ok(Pin { id: row.int(exec::COLUMNS + 1)?, node: exec.node, used_at: row.at(exec::COLUMNS)?, exec })
    };
    rows.iter().map(pin).collect()
}

pub(crate) const ALL: &[&Sql] =
    &[&FIND, &SET, &USED, &USED_AT, &REMOVE, &PAGE, &UNUSED, &OF_FUNCTION, &BYTES, &PROJECTS, &AFTER];

const FIND: Sql = Sql::new("SELECT exec FROM pins WHERE org_id = $1 AND project = $2 AND node = $3");
const SET: Sql = Sql::new(
    "INSERT INTO pins (org_id, project, node, exec, used_at, id) VALUES ($1, $2, $3, $4, $5, $6)
         ON CONFLICT (org_id, project, node) DO UPDATE
            SET exec = excluded.exec, used_at = excluded.used_at, id = excluded.id",
);
const USED_AT: Sql = Sql::new("SELECT used_at FROM pins WHERE org_id = $1 AND project = $2 AND node = $3");
const USED: Sql =
    Sql::new("UPDATE pins SET used_at = $4 WHERE org_id = $1 AND project = $2 AND node = $3 AND used_at < $5");
const REMOVE: Sql = Sql::new("DELETE FROM pins WHERE org_id = $1 AND project = $2 AND node = $3");
const PAGE: Sql = Sql::new(
    "SELECT e.id, e.node, e.function, e.name, e.ok, e.run_id, e.ended_at, e.bytes, p.used_at, p.id
       FROM pins AS p JOIN execs AS e ON e.org_id = p.org_id AND e.id = p.exec
      WHERE p.org_id = $1 AND p.project = $2 AND p.id < $3
      ORDER BY p.id DESC LIMIT $4",
);
const UNUSED: Sql = Sql::new(
    "SELECT e.id, e.node, e.function, e.name, e.ok, e.run_id, e.ended_at, e.bytes, p.used_at, p.id
       FROM pins AS p JOIN execs AS e ON e.org_id = p.org_id AND e.id = p.exec
      WHERE p.org_id = $1 AND p.project = $2 AND p.used_at < $3
      ORDER BY p.used_at LIMIT $4",
);
const OF_FUNCTION: Sql = Sql::new(
    "SELECT p.node FROM execs AS e JOIN pins AS p ON p.org_id = e.org_id AND p.node = e.node AND p.exec = e.id
      WHERE e.org_id = $1 AND p.project = $2 AND e.function = $3 LIMIT $4",
);
const BYTES: Sql = Sql::new(
    "SELECT CAST(coalesce(sum(e.bytes), 0) AS BIGINT)
       FROM pins AS p JOIN execs AS e ON e.org_id = p.org_id AND e.id = p.exec
      WHERE p.org_id = $1 AND p.project = $2",
);
const PROJECTS: Sql =
    Sql::new("SELECT project, count(*) FROM pins WHERE org_id = $1 GROUP BY project ORDER BY project LIMIT $2");
const AFTER: Sql =
    Sql::new("SELECT node, exec FROM pins WHERE org_id = $1 AND project = $2 AND node > $3 ORDER BY node LIMIT $4");
