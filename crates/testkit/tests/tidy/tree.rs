//! The files of the checkout as the rules see them: a path and a text each. Owns reading and what counts as a test;
//! never judges.

use crate::lexer::{Lexed, lex};
use std::fmt;
use std::fs;
use std::path::Path;

/// Folders that were not written by hand.
const SKIPPED: &[&str] = &["target", ".git", "node_modules"];
/// Files judged as text. Snapshots and the lock file are written by tools.
const EXTENSIONS: &[&str] = &["rs", "toml", "sql", "md", "sh", "py"];
/// Scripts without an extension live here.
const SCRIPTS: &[&str] = &["scripts/", ".ci/"];

pub struct Tree {
    pub files: Vec<File>,
}

impl Tree {
    pub fn read(root: &Path) -> Tree {
        let mut files = Vec::new();
        walk(root, "", &mut files);
        files.sort_by(|a, b| a.path.cmp(&b.path));
        Tree { files }
    }

    /// A small tree for showing that a rule can fail.
    pub fn of(samples: &[(&str, &str)]) -> Tree {
        Tree { files: samples.iter().map(|(path, text)| File::new(path, text)).collect() }
    }

    pub fn rust(&self) -> impl Iterator<Item = &File> {
        self.files.iter().filter(|file| file.path.ends_with(".rs"))
    }

    /// What is shipped: Rust below `src`, less the tests in it. The rules about code say nothing about tests.
    pub fn shipped(&self) -> impl Iterator<Item = &File> {
        self.rust().filter(|file| file.path.contains("/src/") && !file.is_test())
    }

    /// Of the crates of this workspace. Below them, `fuzz` folders are workspaces of their own.
    pub fn manifests(&self) -> impl Iterator<Item = &File> {
        let ours = |file: &&File| file.path.starts_with("crates/") && file.path.ends_with("/Cargo.toml");
        self.files.iter().filter(ours).filter(|file| !file.path.ends_with("/fuzz/Cargo.toml"))
    }

    pub fn documents(&self) -> impl Iterator<Item = &File> {
        self.files.iter().filter(|file| file.path.ends_with(".md"))
    }

    pub fn holds(&self, path: &str) -> bool {
        let folder = format!("{}/", path.trim_end_matches('/'));
        self.files.iter().any(|file| file.path == path || file.path.starts_with(&folder))
    }
}

pub struct File {
    /// From the root of the checkout, with `/`.
    pub path: String,
    pub text: String,
    /// Empty for what is not Rust.
    pub lexed: Lexed,
}

impl File {
    fn new(path: &str, text: &str) -> File {
        let lexed = if path.ends_with(".rs") { lex(text) } else { Lexed::default() };
        File { path: path.to_owned(), text: text.to_owned(), lexed }
    }

    /// The crate a path belongs to: `crates/<name>/…`.
    pub fn krate(&self) -> &str {
        self.path.strip_prefix("crates/").and_then(|rest| rest.split('/').next()).unwrap_or("")
    }

    pub fn is_test(&self) -> bool {
        self.path.contains("/tests/") || self.path.ends_with("/tests.rs")
    }

    /// The number of lines before `#[cfg(test)] mod … {`: what is shipped. A `mod tests;` elsewhere ends nothing.
    pub fn shipped_lines(&self) -> usize {
        let lines: Vec<&str> = self.lexed.code.lines().map(str::trim).collect();
        let opens_tests = |at: usize| {
            lines[at] == "#[cfg(test)]"
                && lines.get(at + 1).is_some_and(|next| next.starts_with("mod ") && next.ends_with('{'))
        };
        (0..lines.len()).find(|at| opens_tests(*at)).unwrap_or(lines.len())
    }

    /// Shipped lines of code, numbered from 1, with strings and comments blanked out.
    pub fn code(&self) -> impl Iterator<Item = (usize, &str)> {
        self.lexed.code.lines().take(self.shipped_lines()).enumerate().map(|(at, line)| (at + 1, line))
    }

    pub fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        self.text.lines().enumerate().map(|(at, line)| (at + 1, line))
    }

    pub fn complain(&self, line: usize, what: impl Into<String>) -> Complaint {
        Complaint { path: self.path.clone(), line, what: what.into() }
    }
}

#[derive(Debug)]
pub struct Complaint {
    path: String,
    line: usize,
    what: String,
}

impl fmt::Display for Complaint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.what)
    }
}

fn walk(folder: &Path, below: &str, files: &mut Vec<File>) {
    for entry in fs::read_dir(folder).expect("the checkout is readable") {
        let entry = entry.expect("the checkout is readable");
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = if below.is_empty() { name.clone() } else { format!("{below}/{name}") };
        // A file that goes away meanwhile was no source.
        let Ok(kind) = entry.file_type() else { continue };
        if kind.is_dir() && !SKIPPED.contains(&name.as_str()) {
            walk(&entry.path(), &path, files);
        } else if kind.is_file() {
            // Other files count as existing, so that documents may name them, but are not read.
            let judged = is_judged(&path);
            let text = if judged { fs::read_to_string(entry.path()).unwrap_or_default() } else { String::new() };
            files.push(File::new(&path, &text));
        }
    }
}

fn is_judged(path: &str) -> bool {
    let extension = path.rsplit_once('.').map_or("", |(_, extension)| extension);
    EXTENSIONS.contains(&extension) || SCRIPTS.iter().any(|folder| path.starts_with(folder))
}
