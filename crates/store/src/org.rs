//! Orgs: owners of runs, machines and credits. Balances change only through the ledger.

use crate::args;
use crate::sql::Sql;
use crate::tx::Tx;
use crate::value::Row;
use model::{Credits, Failure, OrgId, Refused, Timestamp};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Org {
    pub id: OrgId,
    pub name: String,
    pub available: Credits,
    pub reserved: Credits,
    /// Number of the newest ledger row.
    pub ledger_seq: i64,
    pub created_at: Timestamp,
}

/// A new org with nothing in it: credits come by a topup row.
pub fn create(tx: &mut Tx, name: &str) -> Result<OrgId, Failure> {
    let (id, at) = (OrgId(tx.next_id()), tx.at());
    if tx.exec(&CREATE, &args![id, name, at])? == 0 {
        return Err(Refused::Conflict { why: format!("there is an org named {name} already") }.into());
    }
    Ok(id)
}

pub fn find(tx: &mut Tx, id: OrgId) -> Result<Org, Failure> {
    tx.row(&FIND, &args![id])?.map_or_else(|| Err(Refused::not_found("org", id).into()), |row| read(&row))
}

/// What the org could still spend in this transaction: its balance after what is staged already.
pub fn spendable(tx: &mut Tx, id: OrgId) -> Result<Credits, Failure> {
    let org = find(tx, id)?;
    let mut balance = model::ledger::Balance { available: org.available, reserved: org.reserved };
    for entry in tx.staged_entries().iter().filter(|entry| entry.org == id) {
        match balance.after(entry) {
            Ok(next) => balance = next,
            Err(_) => return Ok(Credits::ZERO), // the whole transaction will be refused for it
        }
    }
    Ok(balance.available)
}

pub fn by_name(tx: &mut Tx, name: &str) -> Result<Option<Org>, Failure> {
    tx.row(&BY_NAME, &args![name])?.as_ref().map(read).transpose()
}

/// All orgs, by id, after `after`.
pub fn page(tx: &mut Tx, after: OrgId, limit: i64) -> Result<Vec<Org>, Failure> {
    tx.rows(&PAGE, &args![after, limit])?.iter().map(read).collect()
}

fn read(row: &Row) -> Result<Org, Failure> {
    Ok(Org {
        id: OrgId(row.int(0)?),
        name: row.text(1)?,
        available: row.credits(2)?,
        reserved: row.credits(3)?,
        ledger_seq: row.int(4)?,
        created_at: row.at(5)?,
    })
}

pub(crate) const ALL: &[&Sql] = &[&CREATE, &FIND, &BY_NAME, &PAGE];

const CREATE: Sql = Sql::new(
    "INSERT INTO orgs (id, name, available, reserved, ledger_seq, created_at) VALUES ($1, $2, 0, 0, 0, $3)
         ON CONFLICT (name) DO NOTHING",
);
const FIND: Sql = Sql::new("SELECT id, name, available, reserved, ledger_seq, created_at FROM orgs WHERE id = $1");
const BY_NAME: Sql = Sql::new("SELECT id, name, available, reserved, ledger_seq, created_at FROM orgs WHERE name = $1");
const PAGE: Sql = Sql::new(
    "SELECT id, name, available, reserved, ledger_seq, created_at FROM orgs WHERE id > $1 ORDER BY id LIMIT $2",
);
