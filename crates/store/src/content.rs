//! Rows of file contents: which blobs an org has sent, which tree or run names them, when they were last used. A row is written before
//! its blob and deleted after it. A content counts as present only when its blob is synced, and a tree only when everything that it
//! names is present and linked to it; what a stored tree names is not deleted. Never touches the blobs.

use crate::args;
use crate::sql::Sql;
use crate::tx::Tx;
use crate::value::Row;
use model::tree::Child;
use model::{Failure, OrgId, Refused, RunId, Timestamp, Trouble, TroubleKind};

/// `used_at` of what a tree names: the tree's own time decides, and the sweep, which goes by time, never meets it.
const BY_ITS_TREE: i64 = i64::MAX;
/// Questions that PostgreSQL answers with one wait.
const ASKED_AT_ONCE: usize = 500;

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

/// Its bytes are durable: from now on it is here. Rows that went meanwhile stay gone.
pub fn kept(tx: &mut Tx, org: OrgId, hash: &str) -> Result<(), Failure> {
    let at = tx.at();
    tx.post(&KEPT, args![org, hash, at])
}

/// Whether it is present, by its row.
pub fn is_here(tx: &mut Tx, org: OrgId, hash: &str) -> Result<bool, Failure> {
    Ok(tx.row(&IS_HERE, &args![org, hash, 0])?.is_some())
}

/// Whether a whole tree is here: its document and everything below.
pub fn is_tree_here(tx: &mut Tx, org: OrgId, hash: &str) -> Result<bool, Failure> {
    Ok(tx.row(&IS_HERE, &args![org, hash, 1])?.is_some())
}

/// Those of the hashes that are not here, as files or as whole trees.
pub fn missing(tx: &mut Tx, org: OrgId, hashes: &[String], as_trees: bool) -> Result<Vec<String>, Failure> {
    let mut missing = Vec::new();
    for asked in hashes.chunks(ASKED_AT_ONCE) {
        let questions: Vec<_> =
            asked.iter().map(|hash| (&IS_HERE, args![org, hash.as_str(), i64::from(as_trees)].to_vec())).collect();
        let answers = tx.rows_of_each(&questions)?;
        missing.extend(asked.iter().zip(answers).filter(|(_, rows)| rows.is_empty()).map(|(hash, _)| hash.clone()));
    }
    Ok(missing)
}

/// Links some of what a tree names to it. A content that is not here gets no link, which `finish_tree` notices. Each is
/// pinned first: on PostgreSQL that also locks its row against a sweep that is about to condemn it. The caller sorts them, so that two
/// uploads lock rows in the same order.
pub fn link(tx: &mut Tx, org: OrgId, tree: &str, children: &[Child<'_>]) -> Result<(), Failure> {
    for child in children {
        tx.post(&PIN, args![org, child.hash, BY_ITS_TREE, i64::from(child.is_tree)])?;
        tx.post(&LINK, args![org, tree, child.hash, i64::from(child.is_tree)])?;
    }
    Ok(())
}

/// Everything the tree names has been linked, or is not here: then which.
pub fn finish_tree(tx: &mut Tx, org: OrgId, tree: &str, children: &[Child<'_>]) -> Result<(), Failure> {
    let linked = tx.row(&LINKED, &args![org, tree])?.expect("a count is a row").int(0)?;
    if linked == children.len() as i64 {
        let at = tx.at();
        return tx.post(&WHOLE, args![org, tree, at]);
    }
    for child in children {
        if tx.row(&IS_HERE, &args![org, child.hash, i64::from(child.is_tree)])?.is_none() {
            let what = if child.is_tree { "the folder" } else { "the file" };
            let why = format!("{what} {} is not here: send it first", child.hash);
            return Err(Refused::Gone { what: "a part of the tree", why }.into());
        }
    }
    // They have come since they were linked, or were deleted and sent again: the sender tries again.
    Err(Trouble::new(TroubleKind::Timeout, "what the tree names changed meanwhile: send it again").into())
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

/// Something that was just written names this content: a sweep that has begun leaves it. False if it is not here.
pub fn touch(tx: &mut Tx, org: OrgId, hash: &str) -> Result<bool, Failure> {
    let at = tx.at();
    Ok(tx.exec(&USE, &args![org, hash, at])? == 1)
}

/// A snapshot needs this tree: it stays until `unpin`. Refused if not all of it is here.
pub fn pin(tx: &mut Tx, org: OrgId, tree: &str) -> Result<(), Failure> {
    if !is_tree_here(tx, org, tree)? || tx.exec(&PIN, &args![org, tree, BY_ITS_TREE, 1])? == 0 {
        return Err(Refused::Gone { what: "tree", why: format!("{tree} is not here as a whole") }.into());
    }
    Ok(())
}

/// From now on the tree only waits for being needed again, unless another snapshot or tree needs it. The caller has written that its own
/// snapshot does not.
pub fn unpin(tx: &mut Tx, org: OrgId, tree: &str) -> Result<(), Failure> {
    let at = tx.at();
    tx.post(&UNPIN_ROOT, args![org, tree, at])
}

/// The run has ended: from now on its files only wait for being needed again.
pub fn used_until_now(tx: &mut Tx, run: RunId) -> Result<(), Failure> {
    let at = tx.at();
    tx.exec(&USED_UNTIL, &args![run, at]).map(drop)
}

/// Marks up to `limit` contents that were not used since `before` and that nothing names: no open run, tree, result or record of a call, and
/// no artifact that is still listed.
pub fn condemn(tx: &mut Tx, before: Timestamp, limit: i64) -> Result<u64, Failure> {
    tx.exec(&CONDEMN, &args![before, limit])
}

/// Those that are marked: their blobs are to be deleted, also by the sweep that follows one that died.
pub fn going(tx: &mut Tx, limit: i64) -> Result<Vec<Going>, Failure> {
    let read = |row: &Row| Ok(Going { org: OrgId(row.int(0)?), hash: row.text(1)? });
    tx.rows(&GOING, &args![limit])?.iter().map(read).collect()
}

/// Deletes up to `limit` links of a tree that is going; how many there were. What no other tree names was used last when this one was,
/// and goes next.
pub fn unlink(tx: &mut Tx, tree: &Going, limit: i64) -> Result<u64, Failure> {
    let children = tx.rows(&CHILDREN, &args![tree.org, &tree.hash, limit])?;
    for child in &children {
        let child = child.text(0)?;
        tx.post(&UNLINK, args![tree.org, &tree.hash, child.as_str()])?;
        tx.post(&UNPIN, args![tree.org, child.as_str(), &tree.hash])?;
    }
    Ok(children.len() as u64)
}

/// Its blob is deleted. The row remains for a while, so that a client that has just been told that the blob is present is refused.
pub fn gone(tx: &mut Tx, content: &Going) -> Result<(), Failure> {
    let at = tx.at();
    tx.exec(&FORGET_USES, &args![content.org, &content.hash])?;
    tx.exec(&GONE, &args![content.org, &content.hash, at]).map(drop)
}

/// Deletes up to `limit` rows whose bytes went before `before`.
pub fn forget(tx: &mut Tx, before: Timestamp, limit: i64) -> Result<u64, Failure> {
    tx.exec(&FORGET, &args![before, limit])
}

pub(crate) const ALL: &[&Sql] = &[
    &ANNOUNCE,
    &KEPT,
    &IS_HERE,
    &PIN,
    &LINK,
    &LINKED,
    &WHOLE,
    &USE,
    &USED_BY,
    &USED_UNTIL,
    &CONDEMN,
    &GOING,
    &CHILDREN,
    &UNLINK,
    &UNPIN,
    &UNPIN_ROOT,
    &FORGET_USES,
    &GONE,
    &FORGET,
];

const ANNOUNCE: Sql = Sql::new(
    "INSERT INTO contents (org_id, hash, used_at) VALUES ($1, $2, $3)
         ON CONFLICT (org_id, hash) DO UPDATE
            SET used_at = CASE WHEN contents.used_at > excluded.used_at THEN contents.used_at ELSE excluded.used_at END, going = 0
          WHERE contents.going <> 1",
);
const KEPT: Sql = Sql::new(
    "UPDATE contents SET kept = 1, used_at = CASE WHEN used_at > $3 THEN used_at ELSE $3 END
      WHERE org_id = $1 AND hash = $2 AND going = 0",
);
const IS_HERE: Sql =
    Sql::new("SELECT used_at FROM contents WHERE org_id = $1 AND hash = $2 AND going = 0 AND kept = 1 AND tree >= $3");
/// Only what can be linked: a pin without a link would never be taken away.
const PIN: Sql = Sql::new(
    "UPDATE contents SET used_at = $3 WHERE org_id = $1 AND hash = $2 AND going = 0 AND kept = 1 AND tree >= $4",
);
const LINK: Sql = Sql::new(
    "INSERT INTO content_edges (org_id, parent, child)
         SELECT org_id, $2, hash FROM contents
          WHERE org_id = $1 AND hash = $3 AND going = 0 AND kept = 1 AND tree >= $4
         ON CONFLICT (org_id, parent, child) DO NOTHING",
);
const LINKED: Sql = Sql::new("SELECT count(*) FROM content_edges WHERE org_id = $1 AND parent = $2");
const WHOLE: Sql = Sql::new(
    "UPDATE contents SET tree = 1, used_at = CASE WHEN used_at > $3 THEN used_at ELSE $3 END
      WHERE org_id = $1 AND hash = $2 AND going = 0 AND kept = 1",
);
const USE: Sql = Sql::new(
    "UPDATE contents SET used_at = CASE WHEN used_at > $3 THEN used_at ELSE $3 END
      WHERE org_id = $1 AND hash = $2 AND going = 0 AND kept = 1",
);
const USED_BY: Sql = Sql::new(
    "INSERT INTO content_uses (run_id, org_id, hash) VALUES ($1, $2, $3)
         ON CONFLICT (run_id, org_id, hash) DO NOTHING",
);
const USED_UNTIL: Sql = Sql::new(
    "UPDATE contents SET used_at = CASE WHEN used_at > $2 THEN used_at ELSE $2 END
      WHERE going = 0 AND (org_id, hash) IN (SELECT org_id, hash FROM content_uses WHERE run_id = $1)",
);
const CONDEMN: Sql = Sql::new(
    "UPDATE contents SET going = 1
      WHERE going = 0 AND used_at < $1 AND (org_id, hash) IN (
            SELECT old.org_id, old.hash FROM contents AS old
             WHERE old.going = 0 AND old.used_at < $1 AND NOT EXISTS (
                   SELECT 1 FROM content_uses AS used
                     JOIN runs ON runs.id = used.run_id AND runs.open = 1
                    WHERE used.org_id = old.org_id AND used.hash = old.hash)
               AND NOT EXISTS (
                   SELECT 1 FROM content_edges AS edge
                    WHERE edge.org_id = old.org_id AND edge.child = old.hash)
               AND NOT EXISTS (
                   SELECT 1 FROM exec_contents AS result
                    WHERE result.org_id = old.org_id AND result.hash = old.hash)
               AND NOT EXISTS (
                   SELECT 1 FROM object_contents AS named
                    WHERE named.org_id = old.org_id AND named.hash = old.hash)
               AND NOT EXISTS (
                   SELECT 1 FROM artifacts AS shared
                    WHERE shared.org_id = old.org_id AND shared.hash = old.hash
                      AND shared.in_contents = 1 AND shared.deleted_at IS NULL)
             ORDER BY old.used_at LIMIT $2)",
);
const GOING: Sql = Sql::new("SELECT org_id, hash FROM contents WHERE going = 1 ORDER BY used_at LIMIT $1");
const CHILDREN: Sql =
    Sql::new("SELECT child FROM content_edges WHERE org_id = $1 AND parent = $2 ORDER BY child LIMIT $3");
const UNLINK: Sql = Sql::new("DELETE FROM content_edges WHERE org_id = $1 AND parent = $2 AND child = $3");
const UNPIN: Sql = Sql::new(
    "UPDATE contents SET used_at = (SELECT tree.used_at FROM contents AS tree WHERE tree.org_id = $1 AND tree.hash = $3)
      WHERE org_id = $1 AND hash = $2 AND going = 0 AND NOT EXISTS (
            SELECT 1 FROM content_edges AS edge WHERE edge.org_id = $1 AND edge.child = $2)
        AND NOT EXISTS (SELECT 1 FROM snapshots WHERE snapshots.org_id = $1 AND snapshots.tree = $2)",
);
const UNPIN_ROOT: Sql = Sql::new(
    "UPDATE contents SET used_at = $3
      WHERE org_id = $1 AND hash = $2 AND going = 0 AND NOT EXISTS (
            SELECT 1 FROM content_edges AS edge WHERE edge.org_id = $1 AND edge.child = $2)
        AND NOT EXISTS (SELECT 1 FROM snapshots WHERE snapshots.org_id = $1 AND snapshots.tree = $2)",
);
const FORGET_USES: Sql = Sql::new("DELETE FROM content_uses WHERE org_id = $1 AND hash = $2");
const GONE: Sql = Sql::new(
    "UPDATE contents SET going = 2, kept = 0, tree = 0, used_at = $3 WHERE org_id = $1 AND hash = $2 AND going = 1",
);
const FORGET: Sql = Sql::new(
    "DELETE FROM contents
      WHERE (org_id, hash) IN (SELECT org_id, hash FROM contents WHERE going = 2 AND used_at < $1 ORDER BY used_at LIMIT $2)",
);
