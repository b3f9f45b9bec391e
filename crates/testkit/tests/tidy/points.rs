//! The list of crash points and the sources agree: whatever can kill a process is listed, and whatever is listed is somewhere.
//! Knows a point by how it is written; never runs one.

use crate::tree::{Complaint, File, Tree};
use std::collections::BTreeMap;

const LIST: &str = "crates/model/src/fault.rs";
/// What stands before the name of a point, blanks left out.
const OPENINGS: &[&str] = &[
    "Lane::High,",
    "Lane::Normal,",
    "Lane::Low,",
    ".write(turn,",
    ".keyed(",
    ".keyed(turn,",
    ".ask_about_steps(",
    "crash_point!(",
];

/// What stands after the name of a read.
const READ: &str = ",Access::Read";

pub fn every_crash_point_is_registered(tree: &Tree) -> Vec<Complaint> {
    let list = tree.rust().find(|file| file.path == LIST);
    let mut listed: BTreeMap<&str, (usize, bool)> = BTreeMap::new();
    for (line, name) in list.into_iter().flat_map(registered) {
        listed.insert(name, (line, false));
    }
    let mut complaints = Vec::new();
    // What testkit writes, no process that serves ever does.
    for file in tree.shipped().filter(|file| file.path != LIST && file.krate() != "testkit") {
        for (line, name) in used(file) {
            match listed.get_mut(name) {
                Some((_, seen)) => *seen = true,
                None => {
                    complaints.push(file.complain(line, format!("`{name}` is not among the crash points of {LIST}")))
                }
            }
        }
    }
    let unused = listed.iter().filter(|(_, (_, seen))| !seen);
    complaints.extend(list.into_iter().flat_map(|file| {
        unused
            .clone()
            .map(|(name, (line, _))| file.complain(*line, format!("no code reaches the crash point `{name}`")))
    }));
    complaints
}

fn registered(file: &File) -> Vec<(usize, &str)> {
    let from = file.code().find(|(_, code)| code.contains("const POINTS")).map_or(usize::MAX, |(line, _)| line);
    let strings = file.lexed.strings.iter().map(|(line, text)| (*line, text.as_str()));
    strings.filter(|(line, _)| *line >= from && *line <= file.shipped_lines()).collect()
}

/// Names after one of the openings. A read of the store, `…, Access::Read`, changes nothing and is no point.
fn used(file: &File) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    let (mut strings, mut at) = (file.lexed.strings.iter(), 0);
    let code = &file.lexed.code;
    // A literal is two quotes in the code, with blanks between them.
    while let Some(open) = code[at..].find('"').map(|found| at + found) {
        let Some(close) = code[open + 1..].find('"').map(|found| open + 1 + found) else { break };
        let Some((line, text)) = strings.next() else { break };
        let before: String = code[..open].chars().rev().filter(|c| !c.is_whitespace()).take(80).collect();
        let before = of_no_run(before.chars().rev().collect());
        let after: String = code[close + 1..].chars().filter(|c| !c.is_whitespace()).take(READ.len()).collect();
        let is_point = OPENINGS.iter().any(|opening| before.ends_with(opening)) && after != READ;
        if is_point && *line <= file.shipped_lines() && !text.starts_with("test.") {
            found.push((*line, text.as_str()));
        }
        at = close + 1;
    }
    found
}

/// `Lane::High.of(run),` reads like `Lane::High,`.
fn of_no_run(before: String) -> String {
    match before.strip_suffix("),").and_then(|lane| lane.rsplit_once(".of(")) {
        Some((lane, _)) => format!("{lane},"),
        None => before,
    }
}
