//! Rows of artifacts: the row stands before the bytes are sent, is unique in its attempt, and outlives its bytes.

use crate::args;
use crate::sql::Sql;
use crate::tx::Tx;
use crate::value::Row;
use model::{ArtifactId, Failure, OrgId, RunId, Timestamp};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Artifact {
    pub id: ArtifactId,
    pub org: OrgId,
    pub run: RunId,
    pub attempt: i64,
    pub path: String,
    /// `uploading`, `final`, `deleted`.
    pub state: String,
    pub size: i64,
    pub hash: Option<String>,
    pub created_at: Timestamp,
    pub expires_at: Option<Timestamp>,
    pub deleted_at: Option<Timestamp>,
}

impl Artifact {
    /// Name of its bytes in the blob store.
    pub fn object(&self) -> String {
        format!("{}/{}/{}/{}", self.org, self.run, self.attempt, self.id)
    }
}

/// Announces an upload; a second one of the same path takes the first one's place.
pub fn announce(tx: &mut Tx, org: OrgId, run: RunId, attempt: i64, path: &str) -> Result<Artifact, Failure> {
    let (id, at) = (tx.next_id(), tx.at());
    tx.post(&ANNOUNCE, args![id, org, run, attempt, path, at])?;
    let row = tx.row(&BY_PATH, &args![run, attempt, path])?.expect("it was just written");
    read(&row)
}

pub fn finalise(tx: &mut Tx, id: ArtifactId, size: i64, hash: &str) -> Result<(), Failure> {
    tx.post(&FINALISE, args![id, size, hash])
}

/// The run has ended: what it left expires, once and for all, at this time.
pub fn date(tx: &mut Tx, run: RunId, expires_at: Timestamp) -> Result<(), Failure> {
    tx.post(&DATE, args![run, expires_at])
}

pub fn find(tx: &mut Tx, id: ArtifactId) -> Result<Option<Artifact>, Failure> {
    tx.row(&FIND, &args![id])?.map(|row| read(&row)).transpose()
}

pub fn of_run(tx: &mut Tx, run: RunId, after: i64, limit: i64) -> Result<Vec<Artifact>, Failure> {
    tx.rows(&OF_RUN, &args![run, after, limit])?.iter().map(read).collect()
}

/// Bytes a run's attempt has used so far.
pub fn bytes_of(tx: &mut Tx, run: RunId) -> Result<i64, Failure> {
    tx.row(&BYTES_OF, &args![run])?.expect("a sum is a row").opt_int(0).map(|sum| sum.unwrap_or(0))
}

pub fn expired(tx: &mut Tx, at: Timestamp, limit: i64) -> Result<Vec<Artifact>, Failure> {
    tx.rows(&EXPIRED, &args![at, limit])?.iter().map(read).collect()
}

pub fn deleted(tx: &mut Tx, id: ArtifactId) -> Result<(), Failure> {
    let at = tx.at();
    tx.post(&DELETED, args![id, at])
}

fn read(row: &Row) -> Result<Artifact, Failure> {
    Ok(Artifact {
        id: ArtifactId(row.int(0)?),
        org: OrgId(row.int(1)?),
        run: RunId(row.int(2)?),
        attempt: row.int(3)?,
        path: row.text(4)?,
        state: row.text(5)?,
        size: row.int(6)?,
        hash: row.opt_text(7)?,
        created_at: row.at(8)?,
        expires_at: row.opt_at(9)?,
        deleted_at: row.opt_at(10)?,
    })
}

pub(crate) const ALL: &[&Sql] = &[&ANNOUNCE, &BY_PATH, &FINALISE, &DATE, &FIND, &OF_RUN, &BYTES_OF, &EXPIRED, &DELETED];

const ANNOUNCE: Sql = Sql::new(
    "INSERT INTO artifacts (id, org_id, run_id, attempt, path, state, size, created_at) VALUES ($1, $2, $3, $4, $5, 'uploading', 0, $6)
         ON CONFLICT (run_id, attempt, path) DO NOTHING",
);
const BY_PATH: Sql = Sql::new(
    "SELECT id, org_id, run_id, attempt, path, state, size, hash, created_at, expires_at, deleted_at FROM artifacts
      WHERE run_id = $1 AND attempt = $2 AND path = $3",
);
const FINALISE: Sql =
    Sql::new("UPDATE artifacts SET state = 'final', size = $2, hash = $3 WHERE id = $1 AND deleted_at IS NULL");
const DATE: Sql = Sql::new("UPDATE artifacts SET expires_at = $2 WHERE run_id = $1 AND expires_at IS NULL");
const FIND: Sql = Sql::new(
    "SELECT id, org_id, run_id, attempt, path, state, size, hash, created_at, expires_at, deleted_at FROM artifacts
      WHERE id = $1",
);
const OF_RUN: Sql = Sql::new(
    "SELECT id, org_id, run_id, attempt, path, state, size, hash, created_at, expires_at, deleted_at FROM artifacts
      WHERE run_id = $1 AND id > $2 ORDER BY id LIMIT $3",
);
const BYTES_OF: Sql = Sql::new("SELECT sum(size) FROM artifacts WHERE run_id = $1");
const EXPIRED: Sql = Sql::new(
    "SELECT id, org_id, run_id, attempt, path, state, size, hash, created_at, expires_at, deleted_at FROM artifacts
      WHERE deleted_at IS NULL AND expires_at IS NOT NULL AND expires_at <= $1
      ORDER BY expires_at LIMIT $2",
);
const DELETED: Sql = Sql::new("UPDATE artifacts SET state = 'deleted', deleted_at = $2 WHERE id = $1");
