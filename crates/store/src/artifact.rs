//! Rows of artifacts: a row is written before the upload, its path is unique in its attempt, and it remains after its bytes are deleted.

use crate::args;
use crate::hint::Hint;
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
    pub what: EntryKind,
    /// `uploading`, `final`, `failed`, `deleted`.
    pub state: String,
    /// While it is being uploaded: what it announced, which counts against the run's bytes.
    pub size: i64,
    pub hash: Option<String>,
    pub created_at: Timestamp,
    pub expires_at: Option<Timestamp>,
    pub deleted_at: Option<Timestamp>,
    /// A download is under way: the bytes are kept until then, even past their expiry.
    pub lease_until: Option<Timestamp>,
    /// Its bytes are a content of the org, named by `hash`: this row neither brought them nor takes them away.
    pub in_contents: bool,
}

/// What an artifact is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EntryKind {
    File {
        mode: u32,
    },
    /// A folder with nothing in it.
    Folder,
    /// A symbolic link that stays inside the workdir.
    Link {
        target: String,
    },
}

impl EntryKind {
    pub fn kind(&self) -> &'static str {
        match self {
            EntryKind::File { .. } => "file",
            EntryKind::Folder => "folder",
            EntryKind::Link { .. } => "link",
        }
    }
    pub fn mode(&self) -> Option<u32> {
        match self {
            EntryKind::File { mode } => Some(*mode),
            _ => None,
        }
    }
    pub fn target(&self) -> Option<&str> {
        match self {
            EntryKind::Link { target } => Some(target),
            _ => None,
        }
    }
}

impl Artifact {
    /// Name of its bytes in the blob store.
    pub fn object(&self) -> String {
        format!("{}/{}/{}/{}", self.org, self.run, self.attempt, self.id)
    }
}

/// What is about to be uploaded.
pub struct Announced<'a> {
    pub org: OrgId,
    pub run: RunId,
    pub attempt: i64,
    pub path: &'a str,
    pub size: i64,
    pub what: &'a EntryKind,
}

/// Reserves the name and the bytes; a second upload of the same path takes the first one's place.
pub fn announce(tx: &mut Tx, new: &Announced<'_>) -> Result<Artifact, Failure> {
    let (id, at) = (tx.next_id(), tx.at());
    let (kind, mode) = (new.what.kind(), i64::from(new.what.mode().unwrap_or(0)));
    let target = new.what.target();
    tx.hint(Hint::Run(new.run));
    tx.post(&ANNOUNCE, args![id, new.org, new.run, new.attempt, new.path, new.size, at, kind, mode, target])?;
    by_path(tx, new.run, new.attempt, new.path).map(|found| found.expect("it was just written"))
}

/// An artifact whose bytes are among the org's contents already: final at once.
pub fn share(tx: &mut Tx, new: &Announced<'_>, hash: &str) -> Result<(), Failure> {
    let (id, at) = (tx.next_id(), tx.at());
    let (kind, mode) = (new.what.kind(), i64::from(new.what.mode().unwrap_or(0)));
    let target = new.what.target();
    tx.hint(Hint::Run(new.run));
    tx.post(&SHARE, args![id, new.org, new.run, new.attempt, new.path, new.size, at, kind, mode, target, hash])
}

pub fn by_path(tx: &mut Tx, run: RunId, attempt: i64, path: &str) -> Result<Option<Artifact>, Failure> {
    tx.row(&BY_PATH, &args![run, attempt, path])?.map(|row| read(&row)).transpose()
}

/// Its bytes are durable. False if it was given up or deleted meanwhile.
pub fn finalise(tx: &mut Tx, (run, id): (RunId, ArtifactId), size: i64, hash: &str) -> Result<bool, Failure> {
    tx.hint(Hint::Run(run));
    Ok(tx.exec(&FINALISE, &args![id, size, hash])? == 1)
}

/// The run's attempt has ended: uploads that did not get through are marked failed, and their bytes are free again.
pub fn give_up(tx: &mut Tx, run: RunId) -> Result<(), Failure> {
    tx.post(&FREE, args![run])?;
    tx.post(&GIVE_UP, args![run])
}

/// A download begins: its bytes stay until `until`, or longer if another download needs them longer.
pub fn lease(tx: &mut Tx, id: ArtifactId, until: Timestamp) -> Result<(), Failure> {
    tx.post(&LEASE, args![id, until])
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

/// Adds to the bytes that a run's artifacts take, those on their way included, and returns the sum.
pub fn reserve(tx: &mut Tx, run: RunId, more: i64) -> Result<i64, Failure> {
    tx.exec(&RESERVE, &args![run, more])?;
    tx.row(&RESERVED, &args![run])?.expect("it was just written").int(0)
}

/// Uploads of a run that neither got through nor were given up.
pub fn uploading(tx: &mut Tx, run: RunId) -> Result<i64, Failure> {
    tx.row(&UPLOADING, &args![run])?.expect("a count is a row").int(0)
}

/// Artifacts that no run of their org owns, after `after`.
pub fn unowned(tx: &mut Tx, after: ArtifactId, limit: i64) -> Result<Vec<Artifact>, Failure> {
    tx.rows(&UNOWNED, &args![after, limit])?.iter().map(read).collect()
}

pub fn expired(tx: &mut Tx, at: Timestamp, limit: i64) -> Result<Vec<Artifact>, Failure> {
    tx.rows(&EXPIRED, &args![at, limit])?.iter().map(read).collect()
}

pub fn deleted(tx: &mut Tx, (run, id): (RunId, ArtifactId)) -> Result<(), Failure> {
    let at = tx.at();
    tx.hint(Hint::Run(run));
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
        lease_until: row.opt_at(11)?,
        what: match (row.text(12)?.as_str(), row.opt_text(14)?) {
            ("folder", _) => EntryKind::Folder,
            ("link", Some(target)) => EntryKind::Link { target },
            _ => EntryKind::File { mode: row.int(13)? as u32 },
        },
        in_contents: row.opt_int(15)? == Some(1),
    })
}

pub(crate) const ALL: &[&Sql] = &[
    &ANNOUNCE, &SHARE, &BY_PATH, &FINALISE, &FREE, &GIVE_UP, &LEASE, &DATE, &FIND, &OF_RUN, &RESERVE, &RESERVED,
    &UPLOADING, &UNOWNED, &EXPIRED, &DELETED,
];

const ANNOUNCE: Sql = Sql::new(
    "INSERT INTO artifacts (id, org_id, run_id, attempt, path, state, size, created_at, kind, mode, target)
         VALUES ($1, $2, $3, $4, $5, 'uploading', $6, $7, $8, $9, $10)
         ON CONFLICT (run_id, attempt, path) DO UPDATE
            SET state = 'uploading', size = excluded.size, kind = excluded.kind, mode = excluded.mode, target = excluded.target
          WHERE artifacts.deleted_at IS NULL AND artifacts.expires_at IS NULL",
);
const SHARE: Sql = Sql::new(
    "INSERT INTO artifacts (id, org_id, run_id, attempt, path, state, size, created_at, kind, mode, target, hash, in_contents)
         VALUES ($1, $2, $3, $4, $5, 'final', $6, $7, $8, $9, $10, $11, 1)",
);
const BY_PATH: Sql = Sql::new(
    "SELECT id, org_id, run_id, attempt, path, state, size, hash, created_at, expires_at, deleted_at, lease_until, kind, mode, target, in_contents
       FROM artifacts
      WHERE run_id = $1 AND attempt = $2 AND path = $3",
);
const FINALISE: Sql =
    Sql::new("UPDATE artifacts SET state = 'final', size = $2, hash = $3 WHERE id = $1 AND state = 'uploading'");
/// The run's lock is held, so no upload is announced between this and the next statement.
const FREE: Sql = Sql::new(
    "UPDATE artifact_totals
            SET bytes = bytes - (SELECT coalesce(sum(size), 0) FROM artifacts WHERE run_id = $1 AND state = 'uploading')
          WHERE run_id = $1",
);
const GIVE_UP: Sql =
    Sql::new("UPDATE artifacts SET state = 'failed', size = 0 WHERE run_id = $1 AND state = 'uploading'");
const LEASE: Sql = Sql::new(
    "UPDATE artifacts SET lease_until = $2 WHERE id = $1 AND (lease_until IS NULL OR lease_until < $2) AND deleted_at IS NULL",
);
const DATE: Sql = Sql::new("UPDATE artifacts SET expires_at = $2 WHERE run_id = $1 AND expires_at IS NULL");
const FIND: Sql = Sql::new(
    "SELECT id, org_id, run_id, attempt, path, state, size, hash, created_at, expires_at, deleted_at, lease_until, kind, mode, target, in_contents
       FROM artifacts
      WHERE id = $1",
);
const OF_RUN: Sql = Sql::new(
    "SELECT id, org_id, run_id, attempt, path, state, size, hash, created_at, expires_at, deleted_at, lease_until, kind, mode, target, in_contents
       FROM artifacts
      WHERE run_id = $1 AND id > $2 ORDER BY id LIMIT $3",
);
const RESERVE: Sql = Sql::new(
    "INSERT INTO artifact_totals (run_id, bytes) VALUES ($1, $2)
         ON CONFLICT (run_id) DO UPDATE SET bytes = artifact_totals.bytes + excluded.bytes",
);
const RESERVED: Sql = Sql::new("SELECT bytes FROM artifact_totals WHERE run_id = $1");
const UPLOADING: Sql = Sql::new("SELECT count(*) FROM artifacts WHERE run_id = $1 AND state = 'uploading'");
const UNOWNED: Sql = Sql::new(
    "SELECT id, org_id, run_id, attempt, path, state, size, hash, created_at, expires_at, deleted_at, lease_until, kind, mode, target, in_contents
       FROM artifacts
      WHERE id > $1
        AND NOT EXISTS (SELECT 1 FROM runs WHERE runs.id = artifacts.run_id AND runs.org_id = artifacts.org_id)
      ORDER BY id LIMIT $2",
);
const EXPIRED: Sql = Sql::new(
    "SELECT id, org_id, run_id, attempt, path, state, size, hash, created_at, expires_at, deleted_at, lease_until, kind, mode, target, in_contents
       FROM artifacts
      WHERE deleted_at IS NULL AND expires_at IS NOT NULL AND expires_at <= $1
        AND (lease_until IS NULL OR lease_until <= $1)
      ORDER BY expires_at LIMIT $2",
);
const DELETED: Sql = Sql::new("UPDATE artifacts SET state = 'deleted', deleted_at = $2 WHERE id = $1");
