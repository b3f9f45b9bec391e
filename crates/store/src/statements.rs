//! Every statement of the crate, for the tests that prepare all of them on both databases and check their plans.
//! A module with statements lists them in its `ALL` and is listed here.

use crate::sql::Sql;

#[rustfmt::skip]
const MODULES: &[&[&Sql]] = &[
    crate::agent::ALL,
    crate::allocation::ALL,
    crate::artifact::ALL,
    crate::attempt::ALL,
    crate::claim::ALL,
    crate::content::ALL,
    crate::exec::ALL,
    crate::execution::ALL,
    crate::object::ALL,
    crate::pin::ALL,
    crate::refs::ALL,
    crate::instance::ALL,
    crate::job::ALL,
    crate::manifest::ALL,
    crate::snapshot::ALL,
    crate::message::ALL,
    crate::orphan::ALL,
    crate::unlisted::ALL,
    crate::pool::ALL,
    crate::provider::ALL,
    crate::host::ALL,
    crate::run::ALL,
    crate::plan::ALL,
    crate::question::ALL,
    crate::step::ALL,
    crate::task::ALL,
    crate::workflow::ALL,
    crate::event::ALL,
    crate::idempotency::ALL,
    crate::ids::ALL,
    crate::ledger::ALL,
    crate::org::ALL,
    crate::secret::ALL,
    crate::endpoint::ALL,
    crate::token::ALL,
    crate::session::ALL,
    crate::usage::ALL,
    crate::work::ALL,
    crate::worker::ALL,
];

/// Those of the logs, which have their own database on SQLite.
pub fn of_logs() -> impl Iterator<Item = &'static Sql> {
    crate::log::ALL.iter().chain(crate::run_log::ALL).copied()
}

pub fn of_main() -> impl Iterator<Item = &'static Sql> {
    MODULES.iter().copied().flatten().copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lite::open_memory;
    use crate::migrate::LOGS;
    use crate::sql::Lock;

    /// Without a rank it is not asserted that locks are taken in one order. What skips locked rows never waits.
    #[test]
    fn what_may_wait_for_a_row_names_its_rank() {
        let waits = |sql: &&Sql| matches!(sql.lock, Lock::KeyShare | Lock::NoKeyUpdate);
        let unranked: Vec<&str> =
            of_main().chain(of_logs()).filter(waits).filter(|sql| sql.rank.is_none()).map(|sql| sql.text).collect();
        assert_eq!(unranked, [""; 0]);
        let (main, logs) = (of_main().filter(waits).count(), of_logs().filter(waits).count());
        assert!(main > 5 && logs == 2, "{main} of the main database, {logs} of the logs");
    }

    #[test]
    fn the_logs_find_rows_by_an_index() {
        let logs = open_memory(&LOGS).unwrap();
        for sql in of_logs() {
            let mut plan = logs.prepare(&format!("EXPLAIN QUERY PLAN {}", sql.text)).unwrap();
            let lines = plan.raw_query().mapped(|row| row.get::<_, String>(3)).collect::<Result<Vec<_>, _>>().unwrap();
            assert!(
                !lines.iter().any(|line| line.starts_with("SCAN") && !line.contains("USING")),
                "{lines:?}: {}",
                sql.text
            );
        }
    }
}
