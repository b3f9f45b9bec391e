//! Rows of providers: those that a person has added, and copies of those in the settings. They belong to the installation.

use crate::sql::Sql;
use crate::tx::Tx;
use crate::{Hint, args, doc};
use model::provider_row::ProviderRow;
use model::{Failure, InstanceId, PoolId};

/// In the order of their names.
pub fn all(tx: &mut Tx) -> Result<Vec<ProviderRow>, Failure> {
    doc::read_all(tx.rows(&EVERY, &args![])?, 0)
}

pub fn find(tx: &mut Tx, name: &str) -> Result<Option<ProviderRow>, Failure> {
    tx.row(&FIND, &args![name])?.map(|row| doc::read(&row, 0)).transpose()
}

/// Sets or replaces it. Every process reads them again.
pub fn put(tx: &mut Tx, row: &ProviderRow) -> Result<(), Failure> {
    tx.post(&PUT, args![&row.name, doc::write(row)])?;
    tx.hint(Hint::Providers);
    Ok(())
}

pub fn remove(tx: &mut Tx, name: &str) -> Result<(), Failure> {
    tx.post(&REMOVE, args![name])?;
    crate::host::remove_all(tx, name)?;
    tx.hint(Hint::Providers);
    Ok(())
}

/// Whether a machine of this pool is open, or something is still to be done about one that has ended.
pub fn is_in_use(tx: &mut Tx, pool: PoolId) -> Result<bool, Failure> {
    Ok(tx.row(&OPEN, &args![pool])?.is_some() || tx.row(&TO_DO, &args![pool, 1])?.is_some())
}

/// Machines of this pool about which something is still to be done, open or ended.
pub fn still_known(tx: &mut Tx, pool: PoolId) -> Result<Vec<InstanceId>, Failure> {
    tx.rows(&TO_DO, &args![pool, 1000])?.iter().map(|row| row.int(0).map(InstanceId)).collect()
}

pub(crate) const ALL: &[&Sql] = &[&EVERY, &FIND, &PUT, &REMOVE, &OPEN, &TO_DO];

/// Bounded by what people set up.
const EVERY: Sql = Sql::new("SELECT doc FROM providers ORDER BY name LIMIT 1000");
const FIND: Sql = Sql::new("SELECT doc FROM providers WHERE name = $1");
const PUT: Sql = Sql::new(
    "INSERT INTO providers (name, doc) VALUES ($1, $2)
         ON CONFLICT (name) DO UPDATE SET doc = excluded.doc",
);
const REMOVE: Sql = Sql::new("DELETE FROM providers WHERE name = $1");
const OPEN: Sql = Sql::new("SELECT id FROM instances WHERE pool_id = $1 AND open = 1 LIMIT 1");
const TO_DO: Sql = Sql::new(
    "SELECT i.id FROM work w JOIN instances i ON i.id = w.subject
      WHERE w.kind = 'instance' AND w.class = 0 AND w.due IS NOT NULL AND i.pool_id = $1 LIMIT $2",
);
