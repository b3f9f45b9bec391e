//! The code's own table of a life: every state against every event, asked of its `step`. Shown as Markdown for people.

use crate::fixture::Fixture;
use model::{Outcome, Refused, Timestamp};
use std::collections::{BTreeMap, BTreeSet};

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Move {
    pub from: String,
    pub event: String,
    pub to: String,
}

impl Move {
    pub fn new(from: impl Into<String>, event: impl Into<String>, to: impl Into<String>) -> Move {
        Move { from: from.into(), event: event.into(), to: to.into() }
    }
}

impl std::fmt::Display for Move {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} -> {} -> {}", self.from, self.event, self.to)
    }
}

/// What a life does with every event in every state.
#[derive(Debug, Default, Clone)]
pub struct Chart {
    pub moves: BTreeSet<Move>,
    /// Answered with "it is so already".
    pub unchanged: BTreeSet<(String, String)>,
    pub refused: BTreeSet<(String, String)>,
}

/// How the states and events of a life are called in its table.
pub struct Names<E, V> {
    pub state: fn(&E) -> String,
    pub event: fn(&V) -> String,
}

impl Chart {
    pub fn record<E, V, C>(
        &mut self,
        names: &Names<E, V>,
        entity: &E,
        event: &V,
        result: &Result<Outcome<E, C>, Refused>,
    ) {
        let (from, called) = ((names.state)(entity), (names.event)(event));
        match result {
            Ok(Outcome::Moved { next, .. }) => drop(self.moves.insert(Move::new(from, called, (names.state)(next)))),
            Ok(Outcome::Unchanged) => drop(self.unchanged.insert((from, called))),
            Err(_) => drop(self.refused.insert((from, called))),
        }
    }

    /// Pairs of state and event that never move, and what they answer.
    pub fn still(&self) -> BTreeMap<(String, String), &'static str> {
        let moves = |pair: &(String, String)| self.moves.iter().any(|m| m.from == pair.0 && m.event == pair.1);
        let of = |pairs: &BTreeSet<(String, String)>, answer: &'static str| {
            pairs.iter().filter(|pair| !moves(pair)).map(|pair| (pair.clone(), answer)).collect::<Vec<_>>()
        };
        of(&self.refused, "refused").into_iter().chain(of(&self.unchanged, "unchanged")).collect()
    }
}

pub fn chart<E, V, C>(
    names: &Names<E, V>,
    entities: &[E],
    events: &[V],
    step: impl Fn(&E, &V, Timestamp) -> Result<Outcome<E, C>, Refused>,
) -> Chart {
    let mut chart = Chart::default();
    for entity in entities {
        for event in events {
            chart.record(names, entity, event, &step(entity, event, crate::samples::NOW));
        }
    }
    chart
}

/// The table for people: the code's rows, gathered and ordered as they are written down; then what changes nothing.
/// What is not named is refused.
pub fn markdown(fixture: &Fixture, chart: &Chart) -> String {
    let mut text = format!("## {}\n\n| from | event | to | why |\n|---|---|---|---|\n", fixture.title);
    for line in &fixture.lines {
        let rows: Vec<&Move> = chart.moves.iter().filter(|row| line.covers(row)).collect();
        let (from, events) = (listed(rows.iter().map(|row| &row.from)), listed(rows.iter().map(|row| &row.event)));
        let to = if line.to == "=" { "the same" } else { &line.to };
        text += &format!("| {from} | {events} | {to} | {} |\n", line.mark);
    }
    let mut quiet: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    let still = chart.still();
    for ((from, event), _) in still.iter().filter(|(_, answer)| **answer == "unchanged") {
        quiet.entry(from).or_default().push(event);
    }
    if !quiet.is_empty() {
        text += "\nAnswered with \"it is so already\":\n\n";
        for (from, events) in quiet {
            text += &format!("- {from}: {}\n", events.join(", "));
        }
    }
    text
}

fn listed<'m>(words: impl Iterator<Item = &'m String>) -> String {
    let words: BTreeSet<&str> = words.map(String::as_str).collect();
    words.into_iter().collect::<Vec<_>>().join(", ")
}
