//! Rows of manifests and of what they own. The primary key of `resources` gives every resource exactly one owner.

use crate::newest::made_at;
use crate::sql::Sql;
use crate::tx::Tx;
use crate::{args, doc};
use model::manifest::{Manifest, ResourceKind};
use model::{Failure, ManifestId, OrgId, Trouble};

pub fn insert(tx: &mut Tx, m: &Manifest) -> Result<(), Failure> {
    tx.post(&INSERT, args![m.id, m.org, m.created_at, m.workflow, m.status.as_str(), m.retain_until, doc::write(m)])
}

/// A manifest that was deleted meanwhile stays so.
pub fn save(tx: &mut Tx, m: &Manifest) -> Result<(), Failure> {
    tx.post(&SAVE, args![m.id, m.status.as_str(), m.retain_until, doc::write(m)])
}

pub fn find(tx: &mut Tx, id: ManifestId) -> Result<Option<Manifest>, Failure> {
    tx.row(&FIND, &args![id])?.map(|row| doc::read(&row, 0)).transpose()
}

/// Makes this manifest the owner, in place of the previous one.
pub fn own(tx: &mut Tx, manifest: ManifestId, resources: &[(ResourceKind, i64)]) -> Result<(), Failure> {
    let rows = resources.iter().map(|(kind, id)| args![kind.as_str(), *id, manifest]).collect();
    tx.insert_many(&OWN, rows)
}

/// Lets go of a resource that has ended. One that belongs to another manifest by now stays there.
pub fn release(tx: &mut Tx, manifest: ManifestId, kind: ResourceKind, id: i64) -> Result<(), Failure> {
    tx.post(&RELEASE, args![kind.as_str(), id, manifest])
}

pub fn resources(tx: &mut Tx, manifest: ManifestId) -> Result<Vec<(ResourceKind, i64)>, Failure> {
    let rows = tx.rows(&RESOURCES, &args![manifest])?;
    rows.iter()
        .map(|row| {
            let kind = row.str(0)?.parse().map_err(|e| Trouble::internal(format!("a resource's kind: {e}")))?;
            Ok((kind, row.int(1)?))
        })
        .collect()
}

pub fn owner(tx: &mut Tx, kind: ResourceKind, id: i64) -> Result<Option<ManifestId>, Failure> {
    tx.row(&OWNER, &args![kind.as_str(), id])?.map(|row| row.int(0).map(ManifestId)).transpose()
}

pub fn page(tx: &mut Tx, org: OrgId, before: i64, limit: i64) -> Result<Vec<Manifest>, Failure> {
    let at = made_at(tx, &MADE_AT, before)?;
    doc::page(tx.rows(&PAGE, &args![org, at, before, limit])?, 0)
}

pub(crate) const ALL: &[&Sql] = &[&INSERT, &SAVE, &FIND, &OWN, &RELEASE, &RESOURCES, &OWNER, &PAGE, &MADE_AT];

const INSERT: Sql = Sql::new(
    "INSERT INTO manifests (id, org_id, created_at, workflow_id, status, retain_until, doc)
     VALUES ($1, $2, $3, $4, $5, $6, $7)",
);
const SAVE: Sql =
    Sql::new("UPDATE manifests SET status = $2, retain_until = $3, doc = $4 WHERE id = $1 AND status <> 'DELETED'");
const FIND: Sql = Sql::new("SELECT doc FROM manifests WHERE id = $1");
const OWN: Sql = Sql::new(
    "INSERT INTO resources (kind, resource_id, manifest_id) VALUES ($1, $2, $3)
         ON CONFLICT (kind, resource_id) DO UPDATE SET manifest_id = excluded.manifest_id",
);
const RELEASE: Sql = Sql::new("DELETE FROM resources WHERE kind = $1 AND resource_id = $2 AND manifest_id = $3");
const RESOURCES: Sql =
    Sql::new("SELECT kind, resource_id FROM resources WHERE manifest_id = $1 ORDER BY kind, resource_id LIMIT 1000");
const OWNER: Sql = Sql::new("SELECT manifest_id FROM resources WHERE kind = $1 AND resource_id = $2");
const PAGE: Sql = Sql::new(
    "SELECT doc FROM manifests
      WHERE org_id = $1 AND (created_at, id) < ($2, $3) ORDER BY created_at DESC, id DESC LIMIT $4",
);
const MADE_AT: Sql = Sql::new("SELECT created_at FROM manifests WHERE id = $1");
