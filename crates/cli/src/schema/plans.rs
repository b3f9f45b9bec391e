//! The tables of keys and bounds of plans in `docs/agents.md`, made from the tables that the check of a plan uses.

use super::tests::{bounds_of, count, filled, in_bytes, is_stored, root};
use plan::fields::{Kind, RUN, SECRET, Table};
use std::collections::BTreeSet;
use wire::model::{plan as bounds, spec};

#[test]
fn the_manual_shows_the_code_of_plans() {
    let name = "docs/agents.md";
    let manual = std::fs::read_to_string(root().join(name)).unwrap();
    is_stored(name, &filled(&manual, &[("keys", keys()), ("bounds", limits())]));
}

#[test]
fn every_key_of_the_schema_has_a_row() {
    fn names_in(schema: &serde_json::Value, found: &mut BTreeSet<String>) {
        if let Some(properties) = schema.get("properties").and_then(|it| it.as_object()) {
            // Conditions on other keys name keys, too, and say nothing of them.
            found.extend(
                properties.iter().filter(|(_, it)| it.get("description").is_some()).map(|(key, _)| key.clone()),
            );
        }
        if let Some(definitions) = schema.get("$defs").and_then(|it| it.as_object()) {
            definitions.values().for_each(|inner| names_in(inner, found));
        }
    }
    let (mut names, rows) = (BTreeSet::new(), keys());
    names_in(&plan::schema(), &mut names);
    assert!(names.len() > 80, "{names:?}");
    let missing: Vec<&String> = names.iter().filter(|name| !rows.contains(&format!("\n| `{name}` |"))).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

/// Bounds that need no row, with the reason.
const NO_ROW: &[(&str, &str)] = &[("MAX_PROBLEMS", "mistakes that are told at once; nothing is refused because of it")];

#[test]
fn every_bound_of_a_plan_has_a_row() {
    let files = [
        "plan/src/check.rs",
        "plan/src/evaluator.rs",
        "plan/src/expression.rs",
        "plan/src/fields.rs",
        "plan/src/output.rs",
        "plan/src/problem.rs",
        "model/src/plan.rs",
    ];
    let bounds = bounds_of(&files.map(|file| format!("crates/{file}")), "pub const ");
    assert!(bounds.len() > 8 && bounds.iter().any(|name| name == "MAX_PLANNED_STEPS"), "{bounds:?}");
    let own = std::fs::read_to_string(root().join("crates/cli/src/schema/plans.rs")).unwrap();
    let (_, table) = own.split_once("\nfn limits() -> String {").unwrap();
    let silent: Vec<&String> = bounds
        .iter()
        .filter(|name| !table.contains(name.as_str()) && NO_ROW.iter().all(|(exempt, _)| exempt != name))
        .collect();
    assert!(silent.is_empty(), "these have no row in `limits()`, and no reason in `NO_ROW`: {silent:?}");
}

/// One table for each object, the outermost first.
fn keys() -> String {
    let (mut text, mut tables, mut next) = (String::new(), vec![&RUN], 0);
    while let Some(table) = tables.get(next).copied() {
        next += 1;
        text.push_str(&format!("### {}\n\n", heading(table)));
        let needed = needed(table);
        if !needed.is_empty() {
            text.push_str(&format!("{needed}\n\n"));
        }
        text.push_str("| key | value | meaning |\n|---|---|---|\n");
        for field in table.fields {
            let about = field.about.replace('|', "\\|");
            text.push_str(&format!("| `{}` | {} | {about} |\n", field.name, kind(field.kind, &mut tables)));
        }
        text.push('\n');
    }
    text
}

fn heading(table: &Table) -> String {
    format!("Keys of {}", table.what)
}

/// Which of its keys must be there.
fn needed(table: &Table) -> String {
    let quoted = |names: &[&str]| names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>();
    let required =
        (!table.required.is_empty()).then(|| format!("{} must be there.", quoted(table.required).join(" and ")));
    let one =
        table.exactly_one.iter().map(|group| format!("Exactly one of {} must be there.", quoted(group).join(", ")));
    let most = table.at_most_one.iter().map(|group| format!("{} exclude each other.", quoted(group).join(" and ")));
    required.into_iter().chain(one).chain(most).collect::<Vec<_>>().join(" ")
}

/// As the manual names it; tables that it leads to are added to those that are shown.
fn kind(kind: Kind, tables: &mut Vec<&'static Table>) -> String {
    let mut link = |table: &'static Table| {
        if !tables.iter().any(|known| std::ptr::eq(*known, table)) {
            tables.push(table);
        }
        let kept = |c: &char| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_');
        let anchor: String = heading(table).to_lowercase().chars().filter(kept).collect();
        format!("[{}](#{})", table.what, anchor.replace(' ', "-"))
    };
    let words = |words: &[&str]| words.iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(", ");
    match kind {
        Kind::Word(word) => format!("`{word}`"),
        Kind::Name => "name".to_owned(),
        Kind::Text | Kind::Shell => "text".to_owned(),
        Kind::Template => "template".to_owned(),
        Kind::Flag => "`true` or `false`".to_owned(),
        Kind::Count { min, max } => format!("whole number, {} to {}", count(min as u64), count(max as u64)),
        Kind::Number { min, max } => format!("number, {min} to {max}"),
        Kind::Credits => "credits".to_owned(),
        Kind::Duration => "duration".to_owned(),
        Kind::Memory => "size".to_owned(),
        Kind::Cpu => "number".to_owned(),
        Kind::Gpu => "`KIND[:N]`, or a number".to_owned(),
        Kind::OneOf(all) => words(all),
        Kind::SomeOf(all) => format!("list of {}", words(all)),
        Kind::Texts => "list of texts".to_owned(),
        Kind::Argv => "list of templates".to_owned(),
        Kind::Any => "any JSON value".to_owned(),
        Kind::Values => "map of JSON values".to_owned(),
        Kind::Items(most) => format!("list of up to {} values", count(most as u64)),
        Kind::Scalars => "map of templates".to_owned(),
        Kind::Headers | Kind::Variables => format!("map; each value a template or {}", link(&SECRET)),
        Kind::Secret => "name of a secret".to_owned(),
        Kind::Schema => "JSON schema".to_owned(),
        Kind::Schemas => "map of JSON schemas".to_owned(),
        Kind::Inner(table) => format!("map: {}", link(table)),
        Kind::List(table, usize::MAX) => format!("list; each entry {}", link(table)),
        Kind::List(table, most) => format!("list of up to {}; each entry {}", count(most as u64), link(table)),
        Kind::Named(table) => format!("map; each value {}", link(table)),
        Kind::Either(kinds) => kinds.iter().map(|one| self::kind(*one, tables)).collect::<Vec<_>>().join(", or "),
    }
}

fn limits() -> String {
    let rows: &[(&str, String)] = &[
        ("a plan, as a JSON document", in_bytes(plan::MAX_DOCUMENT_BYTES)),
        ("agents", count(bounds::MAX_PLANNED_AGENTS as u64)),
        ("steps of all agents", count(bounds::MAX_PLANNED_STEPS as u64)),
        ("items of `for_each`", plan::fields::MAX_FOR_EACH.to_string()),
        ("attempts at anything", format!("1 to {}", spec::MAX_ATTEMPTS)),
        ("an expression", in_bytes(plan::expression::MAX_EXPRESSION_BYTES)),
        ("operators, filters and subscripts of an expression", plan::expression::MAX_OPERATORS.to_string()),
        ("values that an expression reads, together", in_bytes(plan::MAX_READ_BYTES)),
        ("what an expression or a template gives", in_bytes(plan::MAX_RENDERED_BYTES)),
        ("lists and maps below one another in a value", plan::MAX_DEPTH.to_string()),
        ("a JSON schema, as JSON", in_bytes(plan::output::MAX_SCHEMA_BYTES)),
        ("different JSON schemas of a plan", count(plan::output::MAX_SCHEMAS as u64)),
    ];
    let lines = rows.iter().map(|(what, value)| format!("| {what} | {value} |\n"));
    format!("| what | at most |\n|---|---|\n{}", lines.collect::<String>())
}
