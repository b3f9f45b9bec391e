//! Runners with a good token that no row knows, or whose jobs none does: what they have said of themselves, until they are tracked again or
//! leave. They belong to the installation.

use crate::sql::Sql;
use crate::tx::Tx;
use crate::value::Row;
use crate::{args, doc};
use model::stub::SealedStub;
use model::{Failure, JobId, Timestamp};
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unlisted {
    pub name: String,
    pub nonce: String,
    pub host: String,
    pub version: String,
    pub jobs: Vec<UnlistedJob>,
    #[serde(skip)]
    pub seen_at: Timestamp,
}

/// A job that such a runner has. Only a stub with a good seal is proof of anything.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnlistedJob {
    pub job: JobId,
    pub epoch: i64,
    pub started: bool,
    pub ended: bool,
    pub log_from: i64,
    pub stub: Option<SealedStub>,
}

/// Sets or replaces what it says.
pub fn seen(tx: &mut Tx, runner: &Unlisted) -> Result<(), Failure> {
    let at = tx.at();
    tx.post(&SEEN, args![&runner.name, at, doc::write(runner)])
}

pub fn find(tx: &mut Tx, name: &str) -> Result<Option<Unlisted>, Failure> {
    tx.row(&FIND, &args![name])?.as_ref().map(read).transpose()
}

/// In the order of their names, after this one.
pub fn page(tx: &mut Tx, after: &str, limit: i64) -> Result<Vec<Unlisted>, Failure> {
    tx.rows(&PAGE, &args![after, limit])?.iter().map(read).collect()
}

pub fn forget(tx: &mut Tx, name: &str) -> Result<(), Failure> {
    tx.post(&FORGET, args![name])
}

/// Up to `limit` of those that have not been heard of since then; how many.
pub fn forget_silent(tx: &mut Tx, since: Timestamp, limit: i64) -> Result<u64, Failure> {
    tx.exec(&FORGET_SILENT, &args![since, limit])
}

fn read(row: &Row) -> Result<Unlisted, Failure> {
    let runner: Unlisted = doc::read_once(row, 1)?;
    Ok(Unlisted { seen_at: row.at(0)?, ..runner })
}

pub(crate) const ALL: &[&Sql] = &[&SEEN, &FIND, &PAGE, &FORGET, &FORGET_SILENT];

const SEEN: Sql = Sql::new(
    "INSERT INTO unlisted (name, seen_at, doc) VALUES ($1, $2, $3)
         ON CONFLICT (name) DO UPDATE SET seen_at = excluded.seen_at, doc = excluded.doc",
);
const FIND: Sql = Sql::new("SELECT seen_at, doc FROM unlisted WHERE name = $1");
const PAGE: Sql = Sql::new("SELECT seen_at, doc FROM unlisted WHERE name > $1 ORDER BY name LIMIT $2");
const FORGET: Sql = Sql::new("DELETE FROM unlisted WHERE name = $1");
const FORGET_SILENT: Sql =
    Sql::new("DELETE FROM unlisted WHERE name IN (SELECT name FROM unlisted WHERE seen_at < $1 LIMIT $2)");
