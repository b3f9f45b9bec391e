//! The tables: what the fixtures say, what the code does, and what `docs/lifecycles.md` shows must be one thing.

use crate::charting::markdown;
use crate::fixture::{self, Fixture};
use crate::walks::walked;
use model::job::JobReason;
use std::path::PathBuf;

fn fixtures() -> impl Iterator<Item = Fixture> {
    fixture::ALL.iter().map(|(name, _)| fixture::named(name))
}

#[test]
fn the_code_does_what_the_tables_say_and_nothing_else() {
    let mut report = String::new();
    for fixture in fixtures() {
        let diff = fixture.diff(&walked(fixture.name));
        if !diff.is_empty() {
            report += &format!("--- fixtures/{}.txt\n+++ the code\n{diff}", fixture.name);
        }
    }
    assert!(report.is_empty(), "\n{report}");
}

#[test]
fn whatever_is_in_no_table_is_refused_or_changes_nothing() {
    for fixture in fixtures() {
        let chart = walked(fixture.name);
        let still = chart.still();
        for row in &chart.moves {
            assert!(!still.contains_key(&(row.from.clone(), row.event.clone())), "{row}");
        }
        let moving = chart.moves.iter().filter(|row| !fixture.ours.contains_key(row));
        assert_eq!(moving.count(), 0, "{}: {still:#?}", fixture.name);
    }
}

#[test]
fn every_row_of_a_seed_holds_or_names_its_resolution() {
    let complaints: Vec<String> = fixtures().flat_map(|fixture| fixture.seed_complaints()).collect();
    assert!(complaints.is_empty(), "\n{}", complaints.join("\n"));
}

#[test]
fn every_row_of_ours_says_where_it_comes_from() {
    let complaints: Vec<String> = fixtures().flat_map(|fixture| fixture.unexplained()).collect();
    assert!(complaints.is_empty(), "\n{}", complaints.join("\n"));
}

#[test]
fn every_reason_ends_a_job_its_agent_and_its_run_as_written() {
    let written = include_str!("../fixtures/reasons.txt");
    let rows: Vec<&str> = written.lines().filter(|line| !line.starts_with('#') && !line.is_empty()).collect();
    let done: Vec<String> = JobReason::ALL.iter().map(|reason| reason_row(*reason)).collect();
    assert_eq!(rows, done);
}

fn reason_row(reason: JobReason) -> String {
    let retry = reason.retry_event().map_or("-", |event| event.as_str());
    format!("{reason} -> {} | {retry} | {} | {}", reason.end(), reason.agent_end(), reason.run_reason())
}

#[test]
fn the_document_shows_the_code() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/lifecycles.md");
    let expected = document();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, &expected).expect("docs/lifecycles.md is written");
    }
    let shown = std::fs::read_to_string(&path).unwrap_or_default();
    let hint = "run `UPDATE_DOCS=1 cargo nextest run -p model the_document_shows_the_code`";
    if let Some(line) = first_difference(&shown, &expected) {
        panic!("docs/lifecycles.md is out of date ({hint}): {line}");
    }
}

fn first_difference(shown: &str, expected: &str) -> Option<String> {
    let at = shown.lines().zip(expected.lines()).position(|(a, b)| a != b);
    let at = at.or_else(|| (shown != expected).then(|| shown.lines().count().min(expected.lines().count())))?;
    let line = |text: &str| text.lines().nth(at).unwrap_or("(the end)").to_owned();
    Some(format!("line {}:\n- {}\n+ {}", at + 1, line(shown), line(expected)))
}

fn document() -> String {
    let mut text = String::from(
        "# Lifecycles\n\n\
         Every status, every event, and where it leads: made from the code's own tables by\n\
         `UPDATE_DOCS=1 cargo nextest run -p model the_document_shows_the_code`. A state in which something more is known is\n\
         followed by it in brackets: `running (to failed)` is a run whose end is decided and not yet reached.\n\
         `R17` names the resolution where the sources contradict each other, `page 3` the page of the design; what is in no line\n\
         is refused.\n\n\
         A launch-run ends *cancelled* when its job was ended by a person's cancel, of the run or of the workflow, whether the job waited or\n\
         ran. A job that ends by itself before the cancel reaches it has its launch-run *completed*.\n",
    );
    for fixture in fixtures() {
        text += &format!("\n{}", markdown(&fixture, &walked(fixture.name)));
    }
    text += "\n## Why a job ends\n\n| reason | job | retry event | agent | run reason |\n|---|---|---|---|---|\n";
    for reason in JobReason::ALL {
        text += &format!("| {} |\n", reason_row(*reason).replace(" -> ", " | "));
    }
    text
}
