//! Rows of refs: names that point to commits. A ref changes only from what its writer saw.

use crate::args;
use crate::object::id_of;
use crate::sql::{Rank, Sql};
use crate::tx::Tx;
use calls::CommitId;
use calls::refs::{Moved, RefName, Swap};
use model::{Failure, OrgId, Trouble};

pub fn find(tx: &mut Tx, org: OrgId, name: &RefName) -> Result<Option<CommitId>, Failure> {
    read(tx, &FIND, org, name)
}

/// The same, and no other transaction changes it before this one ends.
pub fn lock(tx: &mut Tx, org: OrgId, name: &RefName) -> Result<Option<CommitId>, Failure> {
    read(tx, &LOCK, org, name)
}

fn read(tx: &mut Tx, sql: &Sql, org: OrgId, name: &RefName) -> Result<Option<CommitId>, Failure> {
    let row = tx.row(sql, &args![org, name.to_string()])?;
    row.map(|row| Ok(CommitId(id_of(&row.blob(0)?)?))).transpose()
}

/// Compare-and-swap on this one ref. What it is instead, if it is not what was expected.
pub fn swap(tx: &mut Tx, org: OrgId, name: &RefName, swap: Swap) -> Result<Result<(), Moved>, Failure> {
    let key = name.to_string();
    let changed = match (swap.expect, swap.to) {
        (None, Some(to)) => tx.exec(&CREATE, &args![org, key, &to.0.0[..]])?,
        (Some(expect), Some(to)) => tx.exec(&CHANGE, &args![org, key, &expect.0.0[..], &to.0.0[..]])?,
        (Some(expect), None) => tx.exec(&DELETE, &args![org, key, &expect.0.0[..]])?,
        (None, None) => u64::from(find(tx, org, name)?.is_none()),
    };
    Ok(if changed == 1 { Ok(()) } else { Err(Moved(find(tx, org, name)?)) })
}

/// All refs whose name begins so, in order.
pub fn page(tx: &mut Tx, org: OrgId, prefix: &str, limit: i64) -> Result<Vec<(RefName, CommitId)>, Failure> {
    after(tx, org, prefix, "", limit)
}

/// The same, those behind a name.
pub fn after(
    tx: &mut Tx,
    org: OrgId,
    prefix: &str,
    after: &str,
    limit: i64,
) -> Result<Vec<(RefName, CommitId)>, Failure> {
    // `0` is the byte after `/`, with which every prefix ends.
    let end = format!("{}0", prefix.trim_end_matches('/'));
    let rows = tx.rows(&PAGE, &args![org, prefix, end, after, limit])?;
    let read = |row: &crate::Row| {
        let name = row.str(0)?.parse().map_err(|_| Trouble::internal("a ref has no such name"))?;
        Ok((name, CommitId(id_of(&row.blob(1)?)?)))
    };
    rows.iter().map(read).collect()
}

pub(crate) const ALL: &[&Sql] = &[&FIND, &LOCK, &CREATE, &CHANGE, &DELETE, &PAGE];

const FIND: Sql = Sql::new("SELECT target FROM refs WHERE org_id = $1 AND name = $2");
const LOCK: Sql =
    Sql::new("SELECT target FROM refs WHERE org_id = $1 AND name = $2").no_key_update().locks(Rank::Index);
const CREATE: Sql =
    Sql::new("INSERT INTO refs (org_id, name, target) VALUES ($1, $2, $3) ON CONFLICT (org_id, name) DO NOTHING");
const CHANGE: Sql = Sql::new("UPDATE refs SET target = $4 WHERE org_id = $1 AND name = $2 AND target = $3");
const DELETE: Sql = Sql::new("DELETE FROM refs WHERE org_id = $1 AND name = $2 AND target = $3");
const PAGE: Sql = Sql::new(
    "SELECT name, target FROM refs WHERE org_id = $1 AND name >= $2 AND name < $3 AND name > $4 ORDER BY name LIMIT $5",
);
