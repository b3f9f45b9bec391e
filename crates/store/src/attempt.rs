//! Rows of attempts: money as plain columns under checks, so that no code can overdraw one.

use crate::args;
use crate::sql::Sql;
use crate::tx::Tx;
use crate::value::Row;
use model::attempt::Attempt;
use model::{Failure, RunId, Trouble};

pub fn insert(tx: &mut Tx, a: &Attempt) -> Result<(), Failure> {
    tx.exec(
        &INSERT,
        &args![
            a.run,
            a.number,
            a.status.as_str(),
            a.reserved,
            a.charged,
            a.refunded,
            a.uncollected,
            a.opened_at,
            a.ended_at
        ],
    )
    .map(drop)
}

pub fn save(tx: &mut Tx, a: &Attempt) -> Result<(), Failure> {
    tx.exec(
        &SAVE,
        &args![a.run, a.number, a.status.as_str(), a.reserved, a.charged, a.refunded, a.uncollected, a.ended_at],
    )
    .map(drop)
}

pub fn find(tx: &mut Tx, run: RunId, number: i64) -> Result<Option<Attempt>, Failure> {
    tx.row(&FIND, &args![run, number])?.map(|row| read(&row)).transpose()
}

pub fn of_run(tx: &mut Tx, run: RunId) -> Result<Vec<Attempt>, Failure> {
    tx.rows(&OF_RUN, &args![run])?.iter().map(read).collect()
}

fn read(row: &Row) -> Result<Attempt, Failure> {
    Ok(Attempt {
        run: RunId(row.int(0)?),
        number: row.int(1)?,
        status: row.str(2)?.parse().map_err(|e| Trouble::internal(format!("an attempt's status: {e}")))?,
        reserved: row.credits(3)?,
        charged: row.credits(4)?,
        refunded: row.credits(5)?,
        uncollected: row.credits(6)?,
        opened_at: row.at(7)?,
        ended_at: row.opt_at(8)?,
    })
}

pub(crate) const ALL: &[&Sql] = &[&INSERT, &SAVE, &FIND, &OF_RUN];

const INSERT: Sql = Sql::new(
    "INSERT INTO attempts (run_id, number, status, reserved, charged, refunded, uncollected, opened_at, ended_at)
     VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)",
);
const SAVE: Sql = Sql::new(
    "UPDATE attempts SET status = $3, reserved = $4, charged = $5, refunded = $6, uncollected = $7, ended_at = $8
      WHERE run_id = $1 AND number = $2",
);
const FIND: Sql = Sql::new(
    "SELECT run_id, number, status, reserved, charged, refunded, uncollected, opened_at, ended_at FROM attempts
      WHERE run_id = $1 AND number = $2",
);
const OF_RUN: Sql = Sql::new(
    "SELECT run_id, number, status, reserved, charged, refunded, uncollected, opened_at, ended_at FROM attempts
      WHERE run_id = $1 ORDER BY number",
);
