//! One recorded submission as a script for pgbench: the same statements with the same locks, and ids, keys and sequence numbers that
//! differ each time. For benchmarks only.

use crate::bare::{Said, Statement};
use std::collections::BTreeSet;
use std::fmt::Write as _;
use store::Value;

/// Tables whose rows have a new id as their first column.
const WITH_IDS: &[&str] = &["manifests", "agents", "tasks", "steps", "jobs", "workflows", "runs"];

/// Columns whose text must be new each time, by table and place.
const UNIQUE_TEXTS: &[(&str, usize)] = &[("idempotency", 2), ("runs", 2), ("ledger", 7)];

/// The whole transaction. Run it in `prepared` mode.
pub fn script(said: &Said) -> String {
    let rules = Rules::of(said);
    let mut text = String::from("\\set id random(1000000, 9000000000000000)\nBEGIN;\n");
    for statement in &said.statements {
        let _ = write!(text, "{}", rules.filled(statement));
        text.push_str(match table(&statement.text) {
            Some(("SELECT", "pools")) if statement.text.contains("next_seq") => " \\gset pool_\n",
            Some(("SELECT", "orgs")) => " \\gset org_\n",
            _ => ";\n",
        });
    }
    text.push_str("COMMIT;\n");
    text
}

struct Rules {
    ids: BTreeSet<i64>,
    texts: BTreeSet<String>,
}

impl Rules {
    fn of(said: &Said) -> Rules {
        let (mut ids, mut texts) = (BTreeSet::new(), BTreeSet::new());
        for statement in &said.statements {
            let Some(("INSERT", table)) = table(&statement.text) else { continue };
            if let Some(Value::Int(id)) = statement.args.first().filter(|_| WITH_IDS.contains(&table)) {
                ids.insert(*id);
            }
            for (_, place) in UNIQUE_TEXTS.iter().filter(|(name, _)| *name == table) {
                if let Some(Value::Text(text)) = statement.args.get(*place) {
                    texts.insert(text.clone());
                }
            }
        }
        Rules { ids, texts }
    }

    fn filled(&self, statement: &Statement) -> String {
        let table = table(&statement.text);
        // From the last to the first: `$1` is a part of `$12`.
        let mut text = statement.text.replace('\n', " ");
        for (at, value) in statement.args.iter().enumerate().rev() {
            let value = match (table, at) {
                (Some(("UPDATE", "pools")), 1) => "(:pool_next_seq::bigint + 1)".to_owned(),
                (Some(("INSERT", "jobs")), 9) => "(:pool_next_seq::bigint)".to_owned(),
                (Some(("UPDATE", "orgs")), 3) | (Some(("INSERT", "ledger")), 1) => {
                    "(:org_ledger_seq::bigint + 1)".to_owned()
                }
                _ => self.shown(value),
            };
            text = text.replace(&format!("${}", at + 1), &value);
        }
        text
    }

    fn shown(&self, value: &Value) -> String {
        let first = self.ids.first().copied().unwrap_or(0);
        match value {
            Value::Null => "NULL".to_owned(),
            Value::Int(id) if self.ids.contains(id) => format!("(:id::bigint + {})", id - first),
            Value::Int(number) => format!("({number})::bigint"),
            Value::Text(text) if self.texts.contains(text) => format!("('{}' || :id::text)", &quoted(text)),
            Value::Text(text) => format!("'{}'", quoted(text)),
            Value::Blob(bytes) => {
                let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
                format!("'\\x{hex}'::bytea")
            }
        }
    }
}

/// A colon before a letter would be a variable of pgbench, even inside of a text.
fn quoted(text: &str) -> String {
    text.replace('\'', "''").replace(':', ": ").replace('\n', " ")
}

/// What a statement does, and to which table.
fn table(text: &str) -> Option<(&str, &str)> {
    let mut words = text.split_whitespace();
    let verb = words.next()?;
    let before = match verb {
        "INSERT" => "INTO",
        "SELECT" => "FROM",
        "UPDATE" => return words.next().map(|table| (verb, table)),
        _ => return None,
    };
    words.find(|word| *word == before)?;
    words.next().map(|table| (verb, table))
}

#[cfg(test)]
mod tests {
    use super::*;
    use store::args;

    fn said(text: &str, args: &[Value]) -> Statement {
        Statement { text: text.to_owned(), args: args.to_vec() }
    }

    #[test]
    fn what_must_differ_differs_and_the_rest_is_as_it_was() {
        let said = Said {
            name: "run.submit",
            statements: vec![
                said("SELECT id, next_seq FROM pools WHERE id = $1 FOR NO KEY UPDATE", &args![8]),
                said("INSERT INTO jobs (id, run_id, doc) VALUES ($1, $2, $3)", &args![2001, 2000, "{\"a\":null}"]),
                said("INSERT INTO runs (id, org_id, name) VALUES ($1, $2, $3)", &args![2000, 1, "run-x"]),
            ],
        };
        let lines: Vec<String> = script(&said).lines().map(str::to_owned).collect();
        assert_eq!(lines[2], "SELECT id, next_seq FROM pools WHERE id = (8)::bigint FOR NO KEY UPDATE \\gset pool_");
        assert_eq!(
            lines[3],
            "INSERT INTO jobs (id, run_id, doc) VALUES ((:id::bigint + 1), (:id::bigint + 0), '{\"a\": null}');"
        );
        assert_eq!(
            lines[4],
            "INSERT INTO runs (id, org_id, name) VALUES ((:id::bigint + 0), (1)::bigint, ('run-x' || :id::text));"
        );
    }
}
