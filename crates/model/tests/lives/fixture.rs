//! The tables as text: what the seeds say, and what we do instead, each difference with the number of its resolution.
//! Reads `tests/fixtures/*.txt`; never looks at the code.

use crate::charting::{Chart, Move};
use std::collections::{BTreeMap, BTreeSet};

#[derive(Debug)]
pub struct Fixture {
    pub name: &'static str,
    pub title: String,
    pub seeds: Vec<(Move, String)>,
    pub ours: BTreeMap<Move, String>,
    /// Ours, as the lines were written.
    pub lines: Vec<Line>,
}

#[derive(Debug)]
pub struct Line {
    pub from: Vec<String>,
    pub events: Vec<String>,
    pub to: String,
    pub mark: String,
}

impl Line {
    pub fn covers(&self, row: &Move) -> bool {
        let to = if self.to == "=" { &row.from } else { &self.to };
        self.from.contains(&row.from) && self.events.contains(&row.event) && row.to == *to
    }
    fn rows(&self) -> impl Iterator<Item = Move> {
        let pairs = self.from.iter().flat_map(|from| self.events.iter().map(move |event| (from, event)));
        pairs.map(|(from, event)| Move::new(from, event, if self.to == "=" { from } else { &self.to }))
    }
}

macro_rules! fixtures {
    ($($name:ident),+) => { &[$((stringify!($name), include_str!(concat!("../fixtures/", stringify!($name), ".txt")))),+] };
}

pub const ALL: &[(&str, &str)] = fixtures!(
    run,
    replan,
    attempt,
    agent,
    task,
    step,
    job,
    silence,
    freeze,
    allocation,
    instance,
    workflow,
    node,
    manifest,
    execution,
    orchestrator
);

pub fn named(name: &str) -> Fixture {
    let (name, text) = ALL.iter().find(|(known, _)| *known == name).expect("a fixture of that name");
    parse(name, text)
}

/// `== seed …` and `== ours` begin the two parts. A line is `state | state -> event | event -> state # mark`;
/// `=` stands for the state it came from.
fn parse(name: &'static str, text: &str) -> Fixture {
    let title = text.lines().next().and_then(|line| line.strip_prefix("# ")).expect("a title").to_owned();
    let mut fixture = Fixture { name, title, seeds: vec![], ours: BTreeMap::new(), lines: vec![] };
    let mut ours = false;
    for text in text.lines().skip(1) {
        if let Some(part) = text.strip_prefix("== ") {
            ours = part == "ours";
            continue;
        }
        let Some(line) = read(text) else { continue };
        if ours {
            for row in line.rows() {
                let twice = fixture.ours.insert(row, line.mark.clone());
                assert_eq!(twice, None, "{name}: written twice: {text}");
            }
            fixture.lines.push(line);
        } else {
            fixture.seeds.extend(line.rows().map(|row| (row, line.mark.clone())));
        }
    }
    fixture
}

fn read(text: &str) -> Option<Line> {
    let (row, mark) = text.split_once('#').unwrap_or((text, ""));
    if row.trim().is_empty() {
        return None;
    }
    let parts: Vec<&str> = row.split("->").map(str::trim).collect();
    let [from, events, to] = parts[..] else { panic!("not a row: {text}") };
    let words = |text: &str| text.split('|').map(|word| word.trim().to_owned()).collect();
    Some(Line { from: words(from), events: words(events), to: to.to_owned(), mark: mark.trim().to_owned() })
}

impl Fixture {
    /// The difference between what is written and what the code does, as a diff; empty if there is none.
    pub fn diff(&self, chart: &Chart) -> String {
        let written: BTreeSet<&Move> = self.ours.keys().collect();
        let done: BTreeSet<&Move> = chart.moves.iter().collect();
        let missing = written.difference(&done).map(|row| format!("- {row}   (written, not done)"));
        let extra = done.difference(&written).map(|row| format!("+ {row}   (done, not written)"));
        missing.chain(extra).map(|line| line + "\n").collect()
    }

    /// A seed's row holds as it stands, or in two steps (`by <event>`), or is `replaced`: the last two with a number.
    /// A mark that is no longer needed is a complaint too.
    pub fn seed_complaints(&self) -> Vec<String> {
        let mut complaints = Vec::new();
        for (row, mark) in &self.seeds {
            let direct = self.ours.contains_key(row);
            let number = mark.split([',', ' ']).any(is_number);
            if let Some(event) = mark.strip_prefix("by ").and_then(|rest| rest.split(',').next()) {
                let first = self.ours.keys().filter(|m| m.from == row.from && m.event == row.event);
                let second = |mid: &str| self.ours.keys().any(|m| m.from == mid && m.event == event && m.to == row.to);
                if direct || !number || !first.into_iter().any(|m| second(&m.to)) {
                    complaints.push(format!("{}: seed row {row} does not hold by {event}", self.name));
                }
            } else if mark.starts_with("replaced") {
                if direct || !number {
                    complaints.push(format!("{}: seed row {row} is said to be replaced, and is not", self.name));
                }
            } else if !direct {
                complaints.push(format!("{}: seed row {row} does not hold and has no mark", self.name));
            }
        }
        complaints
    }

    /// Every row of ours that no seed has says where it comes from: a resolution (R17) or a design page.
    pub fn unexplained(&self) -> Vec<String> {
        let from_a_seed = |row: &Move| self.seeds.iter().any(|(seed, _)| seed == row);
        let explained = |mark: &str| mark.split([',', ' ', ':']).any(is_number) || mark.contains("page ");
        let silent = self.ours.iter().filter(|(row, mark)| !from_a_seed(row) && !explained(mark));
        silent.map(|(row, _)| format!("{}: {row} says not where it comes from", self.name)).collect()
    }
}

/// R1 … R157.
fn is_number(word: &str) -> bool {
    word.strip_prefix('R').is_some_and(|digits| digits.parse::<u32>().is_ok_and(|n| (1..=157).contains(&n)))
}
