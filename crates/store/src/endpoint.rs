//! Rows of endpoints that answered 429 (too many requests), with the end of the pause, by org: all runs of the org wait.

use crate::args;
use crate::sql::{Rank, Sql};
use crate::tx::Tx;
use model::{Failure, OrgId, Timestamp};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pause {
    /// Nothing of the org is sent there before.
    pub not_before: Timestamp,
    /// When a refusal was last counted as a failure. Refusals of calls that were under way by then belong to the same storm.
    pub noted_at: Timestamp,
}

pub fn find(tx: &mut Tx, org: OrgId, endpoint: &str) -> Result<Option<Pause>, Failure> {
    let row = tx.row(&FIND, &args![org, endpoint])?;
    row.map(|row| Ok(Pause { not_before: row.at(0)?, noted_at: row.at(1)? })).transpose()
}

/// A pause only grows. A transaction that notes several does so in the order of their endpoints, before it locks a run.
pub fn note(tx: &mut Tx, org: OrgId, endpoint: &str, pause: Pause) -> Result<(), Failure> {
    tx.exec(&NOTE, &args![org, endpoint, pause.not_before, pause.noted_at]).map(drop)
}

/// Deletes up to `limit` of those that were over before this time; how many.
pub fn forget(tx: &mut Tx, before: Timestamp, limit: i64) -> Result<u64, Failure> {
    tx.exec(&FORGET, &args![before, limit])
}

pub(crate) const ALL: &[&Sql] = &[&FIND, &NOTE, &FORGET];

const FIND: Sql = Sql::new("SELECT not_before, noted_at FROM endpoints WHERE org_id = $1 AND endpoint = $2");
const NOTE: Sql = Sql::new(
    "INSERT INTO endpoints (org_id, endpoint, not_before, noted_at) VALUES ($1, $2, $3, $4)
         ON CONFLICT (org_id, endpoint) DO UPDATE
        SET not_before = CASE WHEN excluded.not_before > endpoints.not_before
                              THEN excluded.not_before ELSE endpoints.not_before END,
            noted_at = excluded.noted_at",
)
.locks(Rank::Endpoint);
const FORGET: Sql = Sql::new(
    "DELETE FROM endpoints
      WHERE (org_id, endpoint) IN (SELECT org_id, endpoint FROM endpoints WHERE not_before < $1 LIMIT $2)",
);
