//! Rows of attempts: money in columns with CHECK constraints, so that the database refuses to overdraw one.

use crate::sql::Sql;
use crate::tx::Tx;
use crate::value::{Row, Value};
use crate::{Hint, args, doc};
use model::attempt::Attempt;
use model::{Failure, RunId, Trouble};

pub fn insert(tx: &mut Tx, a: &Attempt) -> Result<(), Failure> {
    tx.hint(Hint::Rows(a.run));
    let mut values = saved(a).to_vec();
    values.push(a.opened_at.into());
    tx.post(&INSERT, values)
}

pub fn save(tx: &mut Tx, a: &Attempt) -> Result<(), Failure> {
    tx.hint(Hint::Rows(a.run));
    tx.post(&SAVE, saved(a))
}

/// Its key and what changes.
fn saved(a: &Attempt) -> [Value; 9] {
    args![
        a.run,
        a.number,
        a.status.as_str(),
        a.reserved,
        a.charged,
        a.refunded,
        a.uncollected,
        a.ended_at,
        doc::write(&a.tree)
    ]
}

pub fn find(tx: &mut Tx, run: RunId, number: i64) -> Result<Option<Attempt>, Failure> {
    tx.row(&FIND, &args![run, number])?.map(|row| read(&row)).transpose()
}

pub fn of_run(tx: &mut Tx, run: RunId) -> Result<Vec<Attempt>, Failure> {
    tx.rows(&OF_RUN, &args![run])?.iter().map(read).collect()
}

fn read(row: &Row) -> Result<Attempt, Failure> {
    let attempt = read_at(row, 2, RunId(row.int(0)?), row.int(1)?)?;
    Ok(Attempt { tree: doc::read_once(row, 9)?, ..attempt })
}

/// An attempt whose columns, from its status on, begin at `column` of a wider row. Its counters are not read.
pub(crate) fn read_at(row: &Row, column: usize, run: RunId, number: i64) -> Result<Attempt, Failure> {
    let status = row.str(column)?.parse().map_err(|e| Trouble::internal(format!("an attempt's status: {e}")))?;
    Ok(Attempt {
        run,
        number,
        status,
        reserved: row.credits(column + 1)?,
        charged: row.credits(column + 2)?,
        refunded: row.credits(column + 3)?,
        uncollected: row.credits(column + 4)?,
        opened_at: row.at(column + 5)?,
        ended_at: row.opt_at(column + 6)?,
        tree: Default::default(),
    })
}

pub(crate) const ALL: &[&Sql] = &[&INSERT, &SAVE, &FIND, &OF_RUN];

const INSERT: Sql = Sql::new(
    "INSERT INTO attempts (run_id, number, status, reserved, charged, refunded, uncollected, ended_at, tree, opened_at)
     VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)",
);
const SAVE: Sql = Sql::new(
    "UPDATE attempts SET status = $3, reserved = $4, charged = $5, refunded = $6, uncollected = $7, ended_at = $8, tree = $9
      WHERE run_id = $1 AND number = $2",
);
const FIND: Sql = Sql::new(
    "SELECT run_id, number, status, reserved, charged, refunded, uncollected, opened_at, ended_at, tree FROM attempts
      WHERE run_id = $1 AND number = $2",
);
const OF_RUN: Sql = Sql::new(
    "SELECT run_id, number, status, reserved, charged, refunded, uncollected, opened_at, ended_at, tree FROM attempts
      WHERE run_id = $1 ORDER BY number",
);
