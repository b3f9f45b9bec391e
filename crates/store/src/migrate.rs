//! Migrations: embedded, in order, each in one transaction with the schema row. They expand; what a release no longer uses is
//! removed a release later. Never goes back, never opens a database that needs a newer binary.

use crate::conn::lite_failure;
use crate::pg::Pg;
use model::{Failure, Refused, crash_point};
use rusqlite::{OptionalExtension, TransactionBehavior};

pub(crate) struct Migration {
    version: i64,
    /// The oldest schema version a binary must know to work with the result.
    min_binary: i64,
    sqlite: &'static str,
    postgres: &'static str,
}

/// A database, or a part of one that has its own file on SQLite.
#[derive(Clone, Copy)]
pub(crate) struct Part {
    name: &'static str,
    migrations: &'static [Migration],
}

macro_rules! migration {
    ($version:literal, $min_binary:literal, $file:literal) => {
        Migration {
            version: $version,
            min_binary: $min_binary,
            sqlite: include_str!(concat!("../migrations/sqlite/", $file)),
            postgres: include_str!(concat!("../migrations/postgres/", $file)),
        }
    };
}

pub(crate) const MAIN: Part = Part {
    name: "main",
    migrations: &[
        migration!(1, 1, "0001_base.sql"),
        migration!(2, 1, "0002_entities.sql"),
        // A binary that knows no turns would put its jobs at the end of the list, so it is not let in.
        migration!(3, 3, "0003_turns.sql"),
        // One that knows no contents would send files without a row, which nobody would ever delete.
        migration!(4, 4, "0004_contents.sql"),
        migration!(5, 4, "0005_newest_first.sql"),
        // An older binary would delete files that a stored tree still names.
        migration!(6, 6, "0006_trees.sql"),
    ],
};

pub(crate) const LOGS: Part = Part {
    name: "logs",
    // A binary that knows no retention would look for a file that was deleted.
    migrations: &[migration!(1, 1, "0001_logs.sql"), migration!(2, 2, "0002_log_retention.sql")],
};

const SCHEMA: &str = "CREATE TABLE IF NOT EXISTS schema (part TEXT NOT NULL PRIMARY KEY, version BIGINT NOT NULL, min_binary BIGINT NOT NULL)";
const VERSION: &str = "SELECT version, min_binary FROM schema WHERE part = $1";
const NOTE: &str = "INSERT INTO schema (part, version, min_binary) VALUES ($1, $2, $3)
                        ON CONFLICT (part) DO UPDATE SET version = excluded.version, min_binary = excluded.min_binary";

/// The number is ours by choice. A migration may take as long as it needs, and so may whoever waits for another's.
const ALONE: &str =
    "SET LOCAL statement_timeout = 0; SET LOCAL lock_timeout = 0; SELECT pg_advisory_xact_lock(7265816)";

impl Part {
    pub(crate) fn name(&self) -> &'static str {
        self.name
    }

    pub(crate) fn has_ids(&self) -> bool {
        self.name == MAIN.name
    }

    /// What a database at (version, min_binary) still needs.
    fn missing(&self, found: Option<(i64, i64)>) -> Result<impl Iterator<Item = &'static Migration> + use<>, Failure> {
        let ours = self.migrations.last().map_or(0, |newest| newest.version);
        let (version, min_binary) = found.unwrap_or((0, 0));
        if min_binary > ours {
            let why = format!(
                "the database is of a newer version (schema {version}, this binary knows {ours}): upgrade repl"
            );
            return Err(Refused::Conflict { why }.into());
        }
        Ok(self.migrations.iter().filter(move |migration| migration.version > version))
    }

    pub(crate) fn migrate_lite(&self, lite: &mut rusqlite::Connection) -> Result<(), Failure> {
        let failed = |e| lite_failure(e, "migrating the database");
        let tx = lite.transaction_with_behavior(TransactionBehavior::Immediate).map_err(failed)?;
        tx.execute_batch(SCHEMA).map_err(failed)?;
        let found =
            tx.query_row(VERSION, [self.name], |row| Ok((row.get(0)?, row.get(1)?))).optional().map_err(failed)?;
        for migration in self.missing(found)? {
            tx.execute_batch(migration.sqlite).map_err(failed)?;
            tx.execute(NOTE, rusqlite::params![self.name, migration.version, migration.min_binary]).map_err(failed)?;
        }
        crash_point!("store.migrate", tx.commit()).map_err(failed)
    }

    /// Servers that start together take turns.
    pub(crate) fn migrate_pg(&self, pg: &mut Pg) -> Result<(), Failure> {
        let part = *self;
        pg.with_client(async |client| {
            let tx = client.transaction().await?;
            tx.batch_execute(ALONE).await?;
            tx.batch_execute(SCHEMA).await?;
            let found = tx.query_opt(VERSION, &[&part.name]).await?.map(|row| (row.get(0), row.get(1)));
            let missing = match part.missing(found) {
                Ok(missing) => missing,
                Err(refused) => return Ok(Err(refused)),
            };
            for migration in missing {
                tx.batch_execute(migration.postgres).await?;
                tx.execute(NOTE, &[&part.name, &migration.version, &migration.min_binary]).await?;
            }
            crash_point!("store.migrate", tx.commit().await).map(Ok)
        })?
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(found: Option<(i64, i64)>) -> Result<usize, String> {
        MAIN.missing(found).map(Iterator::count).map_err(|failure| failure.to_string())
    }

    #[test]
    fn a_newer_database_is_opened_only_if_it_allows_us() {
        let ours = MAIN.migrations.len() as i64;
        assert_eq!(check(None), Ok(MAIN.migrations.len()));
        assert_eq!(check(Some((ours, 1))), Ok(0));
        assert_eq!(check(Some((ours + 1, ours))), Ok(0), "it has only been expanded");
        assert!(check(Some((ours + 1, ours + 1))).unwrap_err().contains("upgrade repl"));
    }

    #[test]
    fn migrations_are_numbered_from_one() {
        for part in [MAIN, LOGS] {
            assert!(part.migrations.iter().map(|migration| migration.version).eq(1..=part.migrations.len() as i64));
        }
    }
}
