//! Rules about every text of the checkout, documents included: nothing unfinished, nothing of one person's machine,
//! and no document that names a file which is not there.

use crate::lexer::has_word;
use crate::tree::{Complaint, File, Tree};

/// Put together here, so that this file does not name them itself.
const MARKS: &[&str] = &[concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X")];
const MACHINE_PATHS: &[&str] = &[concat!("/wo", "rk/"), concat!("/ro", "ot/"), concat!("/tmp/br", "ief")];
const REGISTRIES: &[&str] = &[
    concat!("index.crates", ".io"),
    concat!("static.crates", ".io"),
    concat!("pypi", ".org"),
    concat!("pythonhosted", ".org"),
    concat!("deb.debian", ".org"),
    concat!("registry.npmjs", ".org"),
];
/// Where a path in a document starts if it means a file of this checkout.
const OUR_FOLDERS: &[&str] = &["crates/", "scripts/", "docs/", ".ci/", ".config/"];

pub fn no_text_is_unfinished(tree: &Tree) -> Vec<Complaint> {
    let mut complaints = Vec::new();
    for file in &tree.files {
        for (line, text) in file.lines() {
            let found = MARKS.iter().filter(|mark| has_word(text, mark));
            complaints.extend(found.map(|mark| file.complain(line, format!("`{mark}`: do it, or open an issue"))));
        }
    }
    complaints
}

pub fn no_text_knows_a_machine(tree: &Tree) -> Vec<Complaint> {
    let mut complaints = Vec::new();
    for file in &tree.files {
        for (line, text) in file.lines() {
            let paths = MACHINE_PATHS.iter().filter(|path| starts_path(text, path));
            complaints.extend(paths.map(|path| file.complain(line, format!("`{path}` is a path of one machine"))));
            let hosts = REGISTRIES.iter().filter(|host| text.contains(*host));
            complaints.extend(
                hosts.map(|host| file.complain(line, format!("`{host}`: name packages, not where they are kept"))),
            );
        }
    }
    complaints
}

/// Tables of documents whose last column is headed `test` name functions of tests. What stands in parentheses says more about one.
pub fn tables_of_tests_name_only_tests_that_exist(tree: &Tree) -> Vec<Complaint> {
    let mut complaints = Vec::new();
    for file in tree.documents() {
        let mut of_tests = false;
        for (line, text) in file.lines() {
            let Some(cell) =
                text.trim_end().strip_suffix('|').and_then(|row| row.rsplit_once('|')).map(|(_, it)| it.trim())
            else {
                of_tests = false;
                continue;
            };
            of_tests |= cell == "test";
            let code = |text: &str| text.split('`').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>();
            for named in code(&without_parentheses(cell)).iter().filter(|_| of_tests) {
                let function = format!("fn {}(", named.rsplit("::").next().unwrap_or(named));
                if !tree.rust().any(|file| file.text.contains(&function)) {
                    complaints.push(file.complain(line, format!("there is no test `{named}`")));
                }
            }
        }
    }
    complaints
}

fn without_parentheses(text: &str) -> String {
    let (mut depth, mut left) = (0, String::new());
    for sign in text.chars() {
        match sign {
            '(' => depth += 1,
            ')' => depth -= 1,
            sign if depth <= 0 => left.push(sign),
            _ => {}
        }
    }
    left
}

pub fn documents_name_only_what_exists(tree: &Tree) -> Vec<Complaint> {
    let mut complaints = Vec::new();
    for file in tree.documents() {
        let folder = file.path.rsplit_once('/').map_or("", |(folder, _)| folder);
        for (line, text) in file.lines() {
            for named in named_files(text, folder) {
                if !tree.holds(&named) {
                    complaints.push(file.complain(line, format!("`{named}` is not there")));
                }
            }
        }
    }
    complaints
}

/// A word for a state that people meet is a word they can look up.
pub fn the_glossary_knows_every_state(tree: &Tree) -> Vec<Complaint> {
    let glossary = tree.files.iter().find(|file| file.path == "GLOSSARY.md").map_or("", |file| file.text.as_str());
    let mut complaints = Vec::new();
    for file in tree.shipped().filter(|file| file.krate() == "model") {
        for line in state_lines(file) {
            let words = file.lexed.strings.iter().filter(|(at, _)| *at == line);
            let unknown = words.filter(|(_, word)| !glossary.contains(&format!("`{word}`")));
            complaints
                .extend(unknown.map(|(_, word)| file.complain(line, format!("GLOSSARY.md does not know `{word}`"))));
        }
    }
    complaints
}

/// The lines of every `enum …Status { … }` and of `enum Phase { … }`.
fn state_lines(file: &File) -> Vec<usize> {
    let (mut lines, mut inside) = (Vec::new(), false);
    for (number, code) in file.code() {
        inside |= code.contains("enum ") && (code.contains("Status {") || code.contains("enum Phase {"));
        if inside {
            lines.push(number);
        }
        inside &= !code.contains('}');
    }
    lines
}

/// `{home}` + the path is a user's own folder and fine; the path from the root of a disk is not.
fn starts_path(text: &str, path: &str) -> bool {
    text.match_indices(path).any(|(at, _)| {
        let before = text[..at].chars().next_back();
        !before.is_some_and(|c| c.is_alphanumeric() || "._-~})]>*$".contains(c))
    })
}

/// Files a line of a document names: link targets, and paths in backquotes that start in one of our folders.
fn named_files(line: &str, folder: &str) -> Vec<String> {
    let mut named = Vec::new();
    for (at, _) in line.match_indices("](") {
        let target = line[at + 2..].split([')', '#', ' ']).next().unwrap_or("");
        let elsewhere = target.is_empty() || target.contains("://") || target.starts_with("mailto:");
        if !elsewhere {
            named.push(join(folder, target));
        }
    }
    for quoted in line.split('`').skip(1).step_by(2) {
        let path = quoted.trim_start_matches("./").split([' ', ':']).next().unwrap_or("").trim_end_matches('/');
        let upper_case_document =
            path.ends_with(".md") && !path.contains('/') && path.starts_with(|c: char| c.is_uppercase());
        let ours = OUR_FOLDERS.iter().any(|folder| path.starts_with(folder)) || upper_case_document;
        // `<noun>.rs`, `*.rs` and `{a,b}` stand for several.
        if ours && !path.contains(['<', '*', '{', '…']) {
            named.push(path.to_owned());
        }
    }
    named
}

fn join(folder: &str, target: &str) -> String {
    let mut parts: Vec<&str> = folder.split('/').filter(|part| !part.is_empty()).collect();
    for part in target.trim_end_matches('/').split('/') {
        match part {
            ".." => drop(parts.pop()),
            "." | "" => {}
            part => parts.push(part),
        }
    }
    parts.join("/")
}

#[test]
fn a_link_is_read_from_where_it_stands() {
    let check = |line, folder, expected: &[&str]| assert_eq!(named_files(line, folder), expected, "{line}");
    check("see [the map](../../ARCHITECTURE.md#map)", "docs/decisions", &["ARCHITECTURE.md"]);
    check("`./scripts/test fmt` and `crates/<name>/src`", "", &["scripts/test"]);
    check("[site](https://example.org) and `run.rs`", "", &[]);
    check("`crates/model/src/run.rs::apply`", "", &["crates/model/src/run.rs"]);
}
