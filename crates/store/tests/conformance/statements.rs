//! Every statement of the crate is understood by both databases, and finds its rows by an index.

use crate::support::postgres::Postgres;
use crate::support::{On, World, block_on};
use store::{Row, Sql, Tx, Value, args, statements};

/// Read whole by design: a handful of rows each.
const SMALL: &[&str] = &["ids", "monitor", "workers", "orgs", "pools", "outages"];

#[test]
fn postgres_prepares_every_statement() {
    let postgres = Postgres::start();
    let world = World::new(On::Postgres, Some(&postgres));
    for sql in statements::of_main().chain(statements::of_logs()) {
        let prepare = leaked(format!("PREPARE a_test AS {}", sql.with_lock()));
        let prepared = block_on(world.store.write(store::Lane::Normal, "prepare", move |tx| {
            tx.exec(&prepare, &args![])?;
            tx.exec(&Sql::new("DEALLOCATE a_test"), &args![])
        }));
        assert!(prepared.is_ok(), "{prepared:?}: {}", sql.text);
    }
}

#[test]
fn sqlite_finds_rows_by_an_index() {
    let world = World::new(On::File, None);
    let mut scans = Vec::new();
    for sql in statements::of_main() {
        let explain = leaked(format!("EXPLAIN QUERY PLAN {}", sql.text));
        let plan = block_on(world.store.read("explain", move |tx: &mut Tx| tx.rows(&explain, &vec![Value::Null; 64])));
        let plan = plan.unwrap_or_else(|failure| panic!("{failure}: {}", sql.text));
        scans.extend(plan.iter().filter_map(scanned).map(|line| format!("{line}: {}", sql.text)));
    }
    assert!(scans.is_empty(), "these read whole tables:\n{}", scans.join("\n"));
}

/// The line of a plan that reads a whole large table.
fn scanned(line: &Row) -> Option<String> {
    let text = line.text(3).unwrap();
    let table = text.strip_prefix("SCAN ")?.split(' ').next()?.to_owned();
    let fine = SMALL.contains(&table.as_str()) || text.contains("USING") || table == "CONSTANT";
    (!fine).then_some(text)
}

fn leaked(text: String) -> Sql {
    Sql::new(Box::leak(text.into_boxed_str()))
}
