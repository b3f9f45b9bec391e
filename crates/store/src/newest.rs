//! Pages of lists that begin with the newest. Ids are not in the order of time: each process takes them from its own block.

use crate::args;
use crate::sql::Sql;
use crate::tx::Tx;
use model::{Failure, Refused};

/// When the row was made that a page begins behind; `i64::MAX` is no row, and the first page.
pub(crate) fn made_at(tx: &mut Tx, of: &'static Sql, before: i64) -> Result<i64, Failure> {
    if before == i64::MAX {
        return Ok(i64::MAX);
    }
    let row = tx.row(of, &args![before])?;
    row.ok_or_else(|| Refused::invalid("cursor", "names nothing that is there: begin again without it"))?.int(0)
}
