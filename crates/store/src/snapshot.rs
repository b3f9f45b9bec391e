//! Rows of snapshots. The tree of one that is ready is pinned: the sweep of contents never takes it.

use crate::newest::made_at;
use crate::sql::Sql;
use crate::tx::Tx;
use crate::{args, doc};
use model::snapshot::Snapshot;
use model::{Failure, OrgId, SnapshotId};

/// The tree that must stay.
fn tree(s: &Snapshot) -> Option<String> {
    let stays = s.tree.as_ref().filter(|_| s.deleted_at.is_none() && s.error.is_none());
    stays.map(|tree| tree.hash.clone())
}

pub fn insert(tx: &mut Tx, s: &Snapshot) -> Result<(), Failure> {
    tx.post(&INSERT, args![s.id, s.org, s.created_at, s.status.as_str(), tree(s), doc::write(s)])
}

pub fn save(tx: &mut Tx, s: &Snapshot) -> Result<(), Failure> {
    tx.post(&SAVE, args![s.id, s.status.as_str(), tree(s), doc::write(s)])
}

pub fn find(tx: &mut Tx, id: SnapshotId) -> Result<Option<Snapshot>, Failure> {
    tx.row(&FIND, &args![id])?.map(|row| doc::read(&row, 0)).transpose()
}

/// Newest first, without those that were deleted.
pub fn page(tx: &mut Tx, org: OrgId, before: i64, limit: i64) -> Result<Vec<Snapshot>, Failure> {
    let at = made_at(tx, &MADE_AT, before)?;
    doc::page(tx.rows(&PAGE, &args![org, at, before, limit])?, 0)
}

pub(crate) const ALL: &[&Sql] = &[&INSERT, &SAVE, &FIND, &PAGE, &MADE_AT];

const INSERT: Sql =
    Sql::new("INSERT INTO snapshots (id, org_id, created_at, status, tree, doc) VALUES ($1, $2, $3, $4, $5, $6)");
const SAVE: Sql =
    Sql::new("UPDATE snapshots SET status = $2, tree = $3, doc = $4 WHERE id = $1 AND status <> 'deleted'");
const FIND: Sql = Sql::new("SELECT doc FROM snapshots WHERE id = $1");
const PAGE: Sql = Sql::new(
    "SELECT doc FROM snapshots
      WHERE org_id = $1 AND (created_at, id) < ($2, $3) AND status <> 'deleted' ORDER BY created_at DESC, id DESC LIMIT $4",
);
const MADE_AT: Sql = Sql::new("SELECT created_at FROM snapshots WHERE id = $1");
