//! Rows of claims: which Orchestrator works on an execution key. Written only by compare-and-swap.

use crate::sql::Sql;
use crate::tx::Tx;
use crate::{args, doc};
use model::bug;
use model::claim::{Claim, ClaimSwap};
use model::{Failure, OrgId};

pub fn find(tx: &mut Tx, org: OrgId, key: &str) -> Result<Option<Claim>, Failure> {
    tx.row(&FIND, &args![org, key])?.map(|row| doc::read(&row, 0)).transpose()
}

/// Whether the claim is now what the writer wanted; otherwise another one was there.
pub fn swap(tx: &mut Tx, org: OrgId, swap: &ClaimSwap) -> Result<bool, Failure> {
    let to = &swap.to;
    let expect = match swap.expect {
        Some(_) if bug!(takeover_without_compare) => find(tx, org, &to.key)?.map(|claim| claim.version),
        expect => expect,
    };
    let changed = match expect {
        None => tx.exec(&CREATE, &args![org, &to.key, to.version, doc::write(to)])?,
        Some(expect) => tx.exec(&CHANGE, &args![org, &to.key, expect, to.version, doc::write(to)])?,
    };
    Ok(changed == 1)
}

/// The execution has ended: its claim goes with it.
pub fn release(tx: &mut Tx, org: OrgId, key: &str) -> Result<(), Failure> {
    tx.post(&RELEASE, args![org, key])
}

pub(crate) const ALL: &[&Sql] = &[&FIND, &CREATE, &CHANGE, &RELEASE];

const FIND: Sql = Sql::new("SELECT doc FROM claims WHERE org_id = $1 AND key = $2");
const CREATE: Sql = Sql::new(
    "INSERT INTO claims (org_id, key, version, doc) VALUES ($1, $2, $3, $4) ON CONFLICT (org_id, key) DO NOTHING",
);
const CHANGE: Sql =
    Sql::new("UPDATE claims SET version = $4, doc = $5 WHERE org_id = $1 AND key = $2 AND version = $3");
const RELEASE: Sql = Sql::new("DELETE FROM claims WHERE org_id = $1 AND key = $2");
