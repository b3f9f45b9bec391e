//! Rows of objects: immutable records of calls, each under the hash of its bytes, each of one org. Never decides what is garbage.

use crate::sql::Sql;
use crate::tx::Tx;
use crate::{args, content};
use calls::id::Prefix;
use calls::uri::Blob;
use calls::{Id, Kind, Object, Reference};
use model::{Failure, OrgId, Timestamp, Trouble, bug};
use std::collections::BTreeMap;

/// Objects of one org, as the transaction sees them.
pub struct Objects<'t> {
    pub tx: &'t mut Tx,
    pub org: OrgId,
}

impl calls::Read for Objects<'_> {
    type Error = Failure;

    fn record(&mut self, of: Reference) -> Result<Option<Vec<u8>>, Failure> {
        let row = self.tx.row(&FIND, &args![self.org, &of.id.0[..]])?;
        row.map(|row| row.blob(1)).transpose()
    }

    fn has_blob(&mut self, blob: Blob) -> Result<bool, Failure> {
        content::is_here(self.tx, self.org, &blob.hash.to_string())
    }
}

/// Keeps records. One that is here already counts as used now, so that a sweep that is under way leaves it.
pub fn put(tx: &mut Tx, org: OrgId, records: &[(Reference, Vec<u8>)]) -> Result<(), Failure> {
    let at = tx.at();
    let mut rows: Vec<_> =
        records.iter().map(|(of, bytes)| args![org, &of.id.0[..], of.kind as i64, at, bytes.clone()]).collect();
    // A record may come twice in one batch, which a statement of many rows cannot take; and two writers lock rows in one order.
    rows.sort_by(|left, right| key(left).cmp(key(right)));
    rows.dedup_by(|later, earlier| later[1] == earlier[1]);
    tx.insert_many(&PUT, rows)?;
    let names: BTreeMap<Id, Blob> =
        records.iter().filter_map(|(of, bytes)| Some((of.id, Object::named_blob(bytes)?))).collect();
    tx.insert_many(
        &NAMES,
        names.iter().map(|(id, blob)| args![org, &id.0[..], blob.hash.to_string()]).collect::<Vec<_>>(),
    )
}

/// Objects are about to be named by a ref: they count as used now. False if one of them is not here.
pub fn touch(tx: &mut Tx, org: OrgId, ids: &[Id]) -> Result<bool, Failure> {
    let at = tx.at();
    let mut ids: Vec<&Id> = ids.iter().collect();
    ids.sort(); // two writers lock rows in one order
    for id in ids {
        if tx.exec(&TOUCH, &args![org, &id.0[..], at])? == 0 {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The records of many objects; those that are not here are left out.
pub fn many(tx: &mut Tx, org: OrgId, ids: &[Id]) -> Result<Vec<Vec<u8>>, Failure> {
    Ok(each(tx, org, ids)?.into_iter().flatten().collect())
}

/// The record of each of many objects, in one question.
pub fn each(tx: &mut Tx, org: OrgId, ids: &[Id]) -> Result<Vec<Option<Vec<u8>>>, Failure> {
    let questions: Vec<_> = ids.iter().map(|id| (&FIND, args![org, &id.0[..]].to_vec())).collect();
    let answers = tx.rows_of_each(&questions)?;
    answers.iter().map(|rows| rows.first().map(|row| row.blob(1)).transpose()).collect()
}

fn key(row: &[crate::Value; 5]) -> &[u8] {
    match &row[1] {
        crate::Value::Blob(id) => id,
        _ => &[],
    }
}

/// The first `limit` objects whose id begins with some digits.
pub fn of_prefix(tx: &mut Tx, org: OrgId, prefix: Prefix, limit: i64) -> Result<Vec<Reference>, Failure> {
    let rows = tx.rows(&OF_PREFIX, &args![org, &prefix.low.0[..], &prefix.high.0[..], limit])?;
    rows.iter().map(|row| reference(row.blob(0)?, row.int(1)?)).collect()
}

/// Objects after an id that were not used since `before`.
pub fn unused(
    tx: &mut Tx,
    org: OrgId,
    after: Option<Id>,
    before: Timestamp,
    limit: i64,
) -> Result<Vec<Reference>, Failure> {
    let after = after.map_or(Vec::new(), |id| id.0.to_vec());
    let rows = tx.rows(&UNUSED, &args![org, after, before, limit])?;
    rows.iter().map(|row| reference(row.blob(0)?, row.int(1)?)).collect()
}

/// Deletes an object unless it was used since `before`; whether it is gone.
pub fn delete(tx: &mut Tx, org: OrgId, id: Id, before: Timestamp) -> Result<bool, Failure> {
    let before = if bug!(sweep_takes_what_was_put_again) { Timestamp(i64::MAX) } else { before };
    let gone = tx.exec(&DELETE, &args![org, &id.0[..], before])? == 1;
    if gone {
        tx.post(&FORGET_NAMES, args![org, &id.0[..]])?;
    }
    Ok(gone)
}

pub fn count(tx: &mut Tx, org: OrgId) -> Result<(i64, i64), Failure> {
    let row = tx.row(&COUNT, &args![org])?.expect("a count is a row");
    Ok((row.int(0)?, row.int(1)?))
}

fn reference(id: Vec<u8>, kind: i64) -> Result<Reference, Failure> {
    let kind = Kind::ALL.iter().copied().find(|known| *known as i64 == kind);
    let kind = kind.ok_or_else(|| Trouble::internal("an object is of an unknown kind"))?;
    Ok(Reference { kind, id: id_of(&id)? })
}

/// An id from its column.
pub(crate) fn id_of(bytes: &[u8]) -> Result<Id, Failure> {
    let bytes = bytes.try_into().map_err(|_| Trouble::internal("an id has 32 bytes"))?;
    Ok(Id(bytes))
}

pub(crate) const ALL: &[&Sql] = &[&FIND, &PUT, &NAMES, &TOUCH, &OF_PREFIX, &UNUSED, &DELETE, &FORGET_NAMES, &COUNT];

const FIND: Sql = Sql::new("SELECT kind, bytes FROM objects WHERE org_id = $1 AND id = $2");
const PUT: Sql = Sql::new(
    "INSERT INTO objects (org_id, id, kind, used_at, bytes) VALUES ($1, $2, $3, $4, $5)
         ON CONFLICT (org_id, id) DO UPDATE
            SET used_at = CASE WHEN objects.used_at > excluded.used_at THEN objects.used_at ELSE excluded.used_at END",
);
const NAMES: Sql = Sql::new(
    "INSERT INTO object_contents (org_id, object, hash) VALUES ($1, $2, $3) ON CONFLICT (org_id, object) DO NOTHING",
);
const TOUCH: Sql = Sql::new(
    "UPDATE objects SET used_at = CASE WHEN used_at > $3 THEN used_at ELSE $3 END WHERE org_id = $1 AND id = $2",
);
const OF_PREFIX: Sql =
    Sql::new("SELECT id, kind FROM objects WHERE org_id = $1 AND id >= $2 AND id <= $3 ORDER BY id LIMIT $4");
const UNUSED: Sql =
    Sql::new("SELECT id, kind FROM objects WHERE org_id = $1 AND id > $2 AND used_at < $3 ORDER BY id LIMIT $4");
const DELETE: Sql = Sql::new("DELETE FROM objects WHERE org_id = $1 AND id = $2 AND used_at < $3");
const FORGET_NAMES: Sql = Sql::new("DELETE FROM object_contents WHERE org_id = $1 AND object = $2");
const COUNT: Sql =
    Sql::new("SELECT count(*), CAST(coalesce(sum(length(bytes)), 0) AS BIGINT) FROM objects WHERE org_id = $1");
