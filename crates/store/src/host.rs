//! Rows of hosts: what each host of a provider has, and whether it could be used when it was asked last.

use crate::sql::Sql;
use crate::tx::Tx;
use crate::{Hint, args, doc};
use model::Failure;
use model::host::Host;

/// Of every provider, in the order of their names.
pub fn all(tx: &mut Tx) -> Result<Vec<Host>, Failure> {
    doc::read_all(tx.rows(&EVERY, &args![])?, 0)
}

/// Of one provider, also those that its settings do not name any more.
pub fn of(tx: &mut Tx, provider: &str) -> Result<Vec<Host>, Failure> {
    doc::read_all(tx.rows(&OF, &args![provider])?, 0)
}

/// Sets or replaces it. Every process reads its providers again.
pub fn put(tx: &mut Tx, host: &Host) -> Result<(), Failure> {
    tx.post(&PUT, args![&host.provider, &host.name, doc::write(host)])?;
    tx.hint(Hint::Providers);
    Ok(())
}

pub fn remove(tx: &mut Tx, provider: &str, name: &str) -> Result<(), Failure> {
    tx.post(&REMOVE, args![provider, name])
}

/// All of a provider that goes.
pub fn remove_all(tx: &mut Tx, provider: &str) -> Result<(), Failure> {
    tx.post(&REMOVE_ALL, args![provider])
}

pub(crate) const ALL: &[&Sql] = &[&EVERY, &OF, &PUT, &REMOVE, &REMOVE_ALL];

/// Bounded by what people set up.
const EVERY: Sql = Sql::new("SELECT doc FROM hosts ORDER BY provider, name LIMIT 10000");
const OF: Sql = Sql::new("SELECT doc FROM hosts WHERE provider = $1 ORDER BY name LIMIT 1000");
const PUT: Sql = Sql::new(
    "INSERT INTO hosts (provider, name, doc) VALUES ($1, $2, $3)
         ON CONFLICT (provider, name) DO UPDATE SET doc = excluded.doc",
);
const REMOVE: Sql = Sql::new("DELETE FROM hosts WHERE provider = $1 AND name = $2");
const REMOVE_ALL: Sql = Sql::new("DELETE FROM hosts WHERE provider = $1");
