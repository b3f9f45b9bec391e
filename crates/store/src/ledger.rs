//! The ledger: every movement of credits, numbered without gaps per org, each row carrying the hash of the one before.
//! Rows are never changed (a trigger forbids it); balances live on the org row, which is locked last.

use crate::args;
use crate::post::Meaning;
use crate::sql::{Rank, Sql};
use crate::tx::Tx;
use crate::value::{Row, Value};
use model::{Credits, Failure, OrgId, Refused, RunId, Timestamp, Trouble};
use std::collections::BTreeMap;

pub use model::ledger::{Balance, Entry, EntryKind};

/// A row as it stands in the ledger.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entered {
    pub seq: i64,
    pub at: Timestamp,
    pub entry: Entry,
    pub prev_hash: Vec<u8>,
    pub hash: Vec<u8>,
}

impl Entered {
    /// Whether this row is unchanged since it was written, and follows `before` (the org's newest earlier row).
    pub fn follows(&self, before: Option<&Entered>) -> bool {
        let (seq, hash) = before.map_or((0, Vec::new()), |row| (row.seq, row.hash.clone()));
        self.seq == seq + 1 && self.prev_hash == hash && self.hash == digest(&hash, self.seq, self.at, &self.entry)
    }
}

/// An org's rows after `after`, oldest first.
pub fn after(tx: &mut Tx, org: OrgId, after: i64, limit: i64) -> Result<Vec<Entered>, Failure> {
    tx.rows(&AFTER, &args![org, after, limit])?.iter().map(|row| read(org, row)).collect()
}

/// The rows of one run, oldest first.
pub fn of_run(tx: &mut Tx, org: OrgId, run: RunId, after: i64, limit: i64) -> Result<Vec<Entered>, Failure> {
    tx.rows(&OF_RUN, &args![org, run, after, limit])?.iter().map(|row| read(org, row)).collect()
}

/// Whether a movement of this kind was made under this key.
pub fn has(tx: &mut Tx, org: OrgId, key: &str, kind: EntryKind) -> Result<bool, Failure> {
    Ok(tx.row(&HAS, &args![org, key, kind.as_str()])?.is_some())
}

/// Staged entries by org.
pub(crate) struct Accounts(BTreeMap<OrgId, Vec<Entry>>);

impl Accounts {
    pub(crate) fn of(entries: Vec<Entry>) -> Accounts {
        let mut orgs: BTreeMap<OrgId, Vec<Entry>> = BTreeMap::new();
        for entry in entries.into_iter().filter(|entry| !entry.amount.is_zero()) {
            assert!(entry.amount > Credits::ZERO, "the kind gives the sign: {entry:?}");
            orgs.entry(entry.org).or_default().push(entry);
        }
        Accounts(orgs)
    }

    /// One an org: its row, locked.
    pub(crate) fn questions(&self) -> Vec<(&'static Sql, Vec<Value>)> {
        self.0.keys().map(|org| (&LOCK, args![*org].into())).collect()
    }

    pub(crate) fn write(self, tx: &mut Tx, answers: &mut impl Iterator<Item = Vec<Row>>) -> Result<(), Failure> {
        for (org, entries) in self.0 {
            let head = answers.next().and_then(|mut rows| rows.pop()).ok_or_else(|| Refused::not_found("org", org))?;
            enter(tx, org, &head, entries)?;
        }
        Ok(())
    }
}

/// Moves the balance of an org whose row is locked, and appends the rows to its chain.
fn enter(tx: &mut Tx, org: OrgId, head: &Row, entries: Vec<Entry>) -> Result<(), Failure> {
    let had = Balance { available: head.credits(0)?, reserved: head.credits(1)? };
    let mut balance = had;
    let (mut seq, mut hash) = (head.int(2)?, head.opt_blob(3)?.unwrap_or_default());
    let (at, mut rows) = (tx.at(), Vec::new());
    for entry in entries {
        balance = balance.after(&entry)?;
        seq += 1;
        let next = digest(&hash, seq, at, &entry);
        let prev = std::mem::replace(&mut hash, next.clone());
        let attempt = entry.attempt;
        rows.push(args![
            org,
            seq,
            at,
            entry.kind.as_str(),
            entry.amount,
            entry.run,
            attempt,
            entry.key,
            entry.memo,
            entry.from_available,
            prev,
            next
        ]);
    }
    tx.post(&MOVE, args![org, balance.available - had.available, balance.reserved - had.reserved, seq, hash])?;
    tx.insert_many_meaning(&WRITE, rows, || {
        let why = "this movement of credits was made before under the same key".to_owned();
        Meaning::conflict(Refused::Conflict { why })
    })
}

/// Every field with its length, so that no two rows read the same.
fn digest(prev: &[u8], seq: i64, at: Timestamp, entry: &Entry) -> Vec<u8> {
    let mut hasher = blake3::Hasher::new();
    let mut field = |bytes: &[u8]| {
        hasher.update(&(bytes.len() as u64).to_le_bytes());
        hasher.update(bytes);
    };
    field(prev);
    field(entry.kind.as_str().as_bytes());
    field(entry.key.as_bytes());
    field(entry.memo.as_bytes());
    let numbers = [
        entry.org.0,
        seq,
        at.0,
        entry.amount.0,
        entry.run.map_or(-1, |run| run.0),
        entry.attempt.unwrap_or(-1),
        entry.from_available.into(),
    ];
    numbers.iter().for_each(|n| field(&n.to_le_bytes()));
    hasher.finalize().as_bytes().to_vec()
}

fn read(org: OrgId, row: &Row) -> Result<Entered, Failure> {
    let kind = row.str(2)?.parse().map_err(|e| Trouble::internal(format!("a ledger row's kind: {e}")))?;
    let entry = Entry {
        org,
        kind,
        amount: row.credits(3)?,
        run: row.opt_int(4)?.map(RunId),
        attempt: row.opt_int(5)?,
        key: row.text(6)?,
        memo: row.text(7)?,
        from_available: row.flag(8)?,
    };
    Ok(Entered { seq: row.int(0)?, at: row.at(1)?, entry, prev_hash: row.blob(9)?, hash: row.blob(10)? })
}

pub(crate) const ALL: &[&Sql] = &[&LOCK, &MOVE, &WRITE, &AFTER, &OF_RUN, &HAS];

const LOCK: Sql = Sql::new("SELECT available, reserved, ledger_seq, ledger_hash FROM orgs WHERE id = $1")
    .no_key_update()
    .locks(Rank::Org);

/// Relative, under `CHECK (available >= 0)`: the database refuses to overdraw a balance.
const MOVE: Sql = Sql::new(
    "UPDATE orgs SET available = available + $2, reserved = reserved + $3, ledger_seq = $4, ledger_hash = $5
      WHERE id = $1",
);

const WRITE: Sql = Sql::new(
    "INSERT INTO ledger (org_id, seq, at, kind, amount, run_id, attempt, key, memo, from_available, prev_hash, hash)
     VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)",
);

const AFTER: Sql = Sql::new(
    "SELECT seq, at, kind, amount, run_id, attempt, key, memo, from_available, prev_hash, hash FROM ledger
      WHERE org_id = $1 AND seq > $2
      ORDER BY seq LIMIT $3",
);

const OF_RUN: Sql = Sql::new(
    "SELECT seq, at, kind, amount, run_id, attempt, key, memo, from_available, prev_hash, hash FROM ledger
      WHERE org_id = $1 AND run_id = $2 AND seq > $3
      ORDER BY seq LIMIT $4",
);

const HAS: Sql = Sql::new("SELECT seq FROM ledger WHERE org_id = $1 AND key = $2 AND kind = $3");
