//! Migrations: embedded SQL files, applied in order, all that are missing in one transaction with the row of `schema`. A migration
//! expands the schema; what a release no longer uses is removed by a later one. There is no downgrade. A database is refused if it
//! needs a newer binary, or if it is older than the base migration.

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
    ($version:expr, $min_binary:expr, $file:literal) => {
        Migration {
            version: $version,
            min_binary: $min_binary,
            sqlite: include_str!(concat!("../migrations/sqlite/", $file)),
            postgres: include_str!(concat!("../migrations/postgres/", $file)),
        }
    };
}

/// Version of the base migrations. Builds before the first release numbered theirs from 1 to 6, with other tables; a database of
/// such a build is refused. A change of a base migration before the release must raise this number.
const BASE: i64 = 168;

pub(crate) const MAIN: Part = Part { name: "main", migrations: &[migration!(BASE, BASE, "0001_base.sql")] };

pub(crate) const LOGS: Part = Part { name: "logs", migrations: &[migration!(BASE, BASE, "0001_logs.sql")] };

const SCHEMA: &str = "CREATE TABLE IF NOT EXISTS schema (part TEXT NOT NULL PRIMARY KEY, version BIGINT NOT NULL, min_binary BIGINT NOT NULL)";
const VERSION: &str = "SELECT version, min_binary FROM schema WHERE part = $1";
const NOTE: &str = "INSERT INTO schema (part, version, min_binary) VALUES ($1, $2, $3)
                        ON CONFLICT (part) DO UPDATE SET version = excluded.version, min_binary = excluded.min_binary";

/// Processes that start together migrate one after the other: the lock's number is arbitrary, and neither the migration nor the wait
/// for it has a time limit.
const ALONE: &str =
    "SET LOCAL statement_timeout = 0; SET LOCAL lock_timeout = 0; SELECT pg_advisory_xact_lock(7265816)";

impl Part {
    pub(crate) fn name(&self) -> &'static str {
        self.name
    }

    pub(crate) fn has_ids(&self) -> bool {
        self.name == MAIN.name
    }

    /// The migrations that a database at (version, min_binary) still needs; all of them for an empty one. `place`: what to call the
    /// database in a refusal.
    fn missing(&self, found: Option<(i64, i64)>, place: &str) -> Result<&'static [Migration], Failure> {
        let Some((version, min_binary)) = found else { return Ok(self.migrations) };
        let versions = || self.migrations.iter().map(|migration| migration.version);
        let (base, newest) = (versions().next().unwrap_or(0), versions().next_back().unwrap_or(0));
        if version < base {
            let why = format!(
                "{place} was made by a build before the first release (schema {version}) and cannot be read by this one (schema \
                 {base} and later): move it away, or start with an empty home or database"
            );
            return Err(Refused::Conflict { why }.into());
        }
        if min_binary > newest {
            let why =
                format!("{place} is of a newer version (schema {version}, this binary knows {newest}): upgrade repl");
            return Err(Refused::Conflict { why }.into());
        }
        let known = versions().take_while(|known| *known <= version).count();
        Ok(&self.migrations[known..])
    }

    pub(crate) fn migrate_lite(&self, lite: &mut rusqlite::Connection) -> Result<(), Failure> {
        let failed = |e| lite_failure(e, "migrating the database");
        let place = format!("the database {}", lite.path().unwrap_or_default());
        let tx = lite.transaction_with_behavior(TransactionBehavior::Immediate).map_err(failed)?;
        tx.execute_batch(SCHEMA).map_err(failed)?;
        let found =
            tx.query_row(VERSION, [self.name], |row| Ok((row.get(0)?, row.get(1)?))).optional().map_err(failed)?;
        for migration in self.missing(found, &place)? {
            tx.execute_batch(migration.sqlite).map_err(failed)?;
            tx.execute(NOTE, rusqlite::params![self.name, migration.version, migration.min_binary]).map_err(failed)?;
        }
        crash_point!("store.migrate", tx.commit()).map_err(failed)
    }

    pub(crate) fn migrate_pg(&self, pg: &mut Pg) -> Result<(), Failure> {
        let part = *self;
        pg.with_client(async |client| {
            let tx = client.transaction().await?;
            tx.batch_execute(ALONE).await?;
            tx.batch_execute(SCHEMA).await?;
            let found = tx.query_opt(VERSION, &[&part.name]).await?.map(|row| (row.get(0), row.get(1)));
            let missing = match part.missing(found, "the PostgreSQL database") {
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
    use rusqlite::Connection;

    /// Three releases of one schema: a base, an expansion, and the removal of what the expansion replaced.
    const RELEASES: &[Migration] = &[
        Migration { version: 7, min_binary: 7, sqlite: "CREATE TABLE t (a BIGINT)", postgres: "" },
        Migration {
            version: 8,
            min_binary: 7,
            sqlite: "ALTER TABLE t ADD COLUMN b BIGINT; UPDATE t SET b = 10 * a",
            postgres: "",
        },
        Migration { version: 9, min_binary: 8, sqlite: "ALTER TABLE t DROP COLUMN a", postgres: "" },
    ];

    fn binary(releases: usize) -> Part {
        Part { name: "test", migrations: &RELEASES[..releases] }
    }

    fn opened_by(releases: usize, conn: &mut Connection) -> Result<(), String> {
        binary(releases).migrate_lite(conn).map_err(|failure| failure.to_string())
    }

    fn ints(conn: &Connection, query: &str) -> Vec<i64> {
        let mut statement = conn.prepare(query).unwrap();
        let columns = statement.column_count();
        statement.query_row([], |row| (0..columns).map(|i| row.get(i)).collect()).unwrap()
    }

    const STATE: &str = "SELECT version, min_binary FROM schema WHERE part = 'test'";

    #[test]
    fn a_database_follows_its_binaries_and_refuses_those_that_are_too_old() {
        let mut conn = Connection::open_in_memory().unwrap();
        opened_by(1, &mut conn).unwrap();
        conn.execute_batch("INSERT INTO t VALUES (4)").unwrap();
        assert_eq!(ints(&conn, STATE), [7, 7]);
        // The second release expands: rows are carried over, and the first still works with the result.
        opened_by(2, &mut conn).unwrap();
        assert_eq!(ints(&conn, "SELECT a, b FROM t"), [4, 40]);
        opened_by(1, &mut conn).unwrap();
        assert_eq!(ints(&conn, STATE), [8, 7], "an older binary leaves the version alone");
        // The third contracts: the first is refused, the second is not.
        opened_by(3, &mut conn).unwrap();
        opened_by(2, &mut conn).unwrap();
        let refused = opened_by(1, &mut conn).unwrap_err();
        assert!(refused.contains("newer version (schema 9, this binary knows 7): upgrade repl"), "{refused}");
        assert_eq!((ints(&conn, STATE), ints(&conn, "SELECT b FROM t")), (vec![9, 8], vec![40]));
    }

    #[test]
    fn an_empty_database_gets_every_migration_at_once() {
        let mut conn = Connection::open_in_memory().unwrap();
        opened_by(3, &mut conn).unwrap();
        assert_eq!(ints(&conn, STATE), [9, 8]);
    }

    #[test]
    fn a_migration_that_fails_leaves_the_database_as_it_was() {
        const BROKEN: &[Migration] = &[
            Migration { version: 7, min_binary: 7, sqlite: "CREATE TABLE t (a BIGINT)", postgres: "" },
            Migration {
                version: 8,
                min_binary: 8,
                sqlite: "CREATE TABLE u (a BIGINT); NO SUCH STATEMENT",
                postgres: "",
            },
        ];
        let mut conn = Connection::open_in_memory().unwrap();
        opened_by(1, &mut conn).unwrap();
        Part { name: "test", migrations: BROKEN }.migrate_lite(&mut conn).unwrap_err();
        assert_eq!(ints(&conn, STATE), [7, 7]);
        assert_eq!(ints(&conn, "SELECT count(*) FROM sqlite_master WHERE name = 'u'"), [0]);
    }

    #[test]
    fn migrations_are_numbered_one_after_the_other_from_the_base() {
        for part in [MAIN, LOGS] {
            assert!(
                part.migrations.iter().map(|migration| migration.version).eq(BASE..BASE + part.migrations.len() as i64)
            );
        }
    }
}
