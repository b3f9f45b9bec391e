//! Rows of file contents: which bytes an org has sent, who names them, when they were needed last. A row stands before its bytes
//! and goes after them; nobody is told that bytes are here while they may be on their way out. Never touches the bytes.

use crate::args;
use crate::sql::Sql;
use crate::tx::Tx;
use crate::value::Row;
use model::{Failure, OrgId, Refused, RunId, Timestamp, Trouble, TroubleKind};

/// A content whose bytes are to be deleted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Going {
    pub org: OrgId,
    pub hash: String,
}

/// Bytes are about to be kept under this hash. While older ones are being deleted, the sender has to try again.
pub fn announce(tx: &mut Tx, org: OrgId, hash: &str) -> Result<(), Failure> {
    let at = tx.at();
    if tx.exec(&ANNOUNCE, &args![org, hash, at])? == 0 {
        let why = "the same bytes, unused for long, are being deleted at this moment: send them again";
        return Err(Trouble::new(TroubleKind::Timeout, why).into());
    }
    Ok(())
}

/// Whether its row says that it is here.
pub fn is_here(tx: &mut Tx, org: OrgId, hash: &str) -> Result<bool, Failure> {
    Ok(tx.row(&IS_HERE, &args![org, hash])?.is_some())
}

/// This run needs them: they stay as long as it is open. Refused for bytes that are not here any more.
pub fn use_by(tx: &mut Tx, org: OrgId, run: RunId, hashes: &[String]) -> Result<(), Failure> {
    let at = tx.at();
    let mut hashes: Vec<&String> = hashes.iter().collect();
    hashes.sort(); // two runs with the same files lock their rows in the same order
    hashes.dedup();
    for hash in &hashes {
        if tx.exec(&USE, &args![org, hash.as_str(), at])? == 0 {
            return Err(Refused::invalid("files", format!("the bytes {hash} are not here: send them first")).into());
        }
    }
    let rows = hashes.into_iter().map(|hash| args![run, org, hash.as_str()]).collect();
    tx.insert_many(&USED_BY, rows)
}

/// The run has ended: from now on its files only wait for being needed again.
pub fn used_until_now(tx: &mut Tx, run: RunId) -> Result<(), Failure> {
    let at = tx.at();
    tx.exec(&USED_UNTIL, &args![run, at]).map(drop)
}

/// Marks up to `limit` contents that no open run names and nobody needed since `before`.
pub fn condemn(tx: &mut Tx, before: Timestamp, limit: i64) -> Result<u64, Failure> {
    tx.exec(&CONDEMN, &args![before, limit])
}

/// Those that are marked: their bytes are to be deleted, also by whoever takes over from a sweep that died.
pub fn going(tx: &mut Tx, limit: i64) -> Result<Vec<Going>, Failure> {
    let read = |row: &Row| Ok(Going { org: OrgId(row.int(0)?), hash: row.text(1)? });
    tx.rows(&GOING, &args![limit])?.iter().map(read).collect()
}

/// Its bytes are deleted. The row stays a while, so that whoever has just seen the bytes here is refused and not deceived.
pub fn gone(tx: &mut Tx, content: &Going) -> Result<(), Failure> {
    let at = tx.at();
    tx.exec(&FORGET_USES, &args![content.org, &content.hash])?;
    tx.exec(&GONE, &args![content.org, &content.hash, at]).map(drop)
}

/// Deletes up to `limit` rows whose bytes went before `before`.
pub fn forget(tx: &mut Tx, before: Timestamp, limit: i64) -> Result<u64, Failure> {
    tx.exec(&FORGET, &args![before, limit])
}

pub(crate) const ALL: &[&Sql] =
    &[&ANNOUNCE, &IS_HERE, &USE, &USED_BY, &USED_UNTIL, &CONDEMN, &GOING, &FORGET_USES, &GONE, &FORGET];

const ANNOUNCE: Sql = Sql::new(
    "INSERT INTO contents (org_id, hash, used_at) VALUES ($1, $2, $3)
         ON CONFLICT (org_id, hash) DO UPDATE SET used_at = excluded.used_at, going = 0
      WHERE contents.going <> 1",
);
const IS_HERE: Sql = Sql::new("SELECT used_at FROM contents WHERE org_id = $1 AND hash = $2 AND going = 0");
const USE: Sql = Sql::new("UPDATE contents SET used_at = $3 WHERE org_id = $1 AND hash = $2 AND going = 0");
const USED_BY: Sql = Sql::new(
    "INSERT INTO content_uses (run_id, org_id, hash) VALUES ($1, $2, $3)
         ON CONFLICT (run_id, org_id, hash) DO NOTHING",
);
const USED_UNTIL: Sql = Sql::new(
    "UPDATE contents SET used_at = $2
      WHERE going = 0 AND (org_id, hash) IN (SELECT org_id, hash FROM content_uses WHERE run_id = $1)",
);
const CONDEMN: Sql = Sql::new(
    "UPDATE contents SET going = 1
      WHERE going = 0 AND (org_id, hash) IN (
            SELECT old.org_id, old.hash FROM contents AS old
             WHERE old.going = 0 AND old.used_at < $1 AND NOT EXISTS (
                   SELECT 1 FROM content_uses AS used
                     JOIN runs ON runs.id = used.run_id AND runs.open = 1
                    WHERE used.org_id = old.org_id AND used.hash = old.hash)
             ORDER BY old.used_at LIMIT $2)",
);
const GOING: Sql = Sql::new("SELECT org_id, hash FROM contents WHERE going = 1 ORDER BY used_at LIMIT $1");
const FORGET_USES: Sql = Sql::new("DELETE FROM content_uses WHERE org_id = $1 AND hash = $2");
const GONE: Sql = Sql::new("UPDATE contents SET going = 2, used_at = $3 WHERE org_id = $1 AND hash = $2 AND going = 1");
const FORGET: Sql = Sql::new(
    "DELETE FROM contents
      WHERE (org_id, hash) IN (SELECT org_id, hash FROM contents WHERE going = 2 AND used_at < $1 ORDER BY used_at LIMIT $2)",
);
