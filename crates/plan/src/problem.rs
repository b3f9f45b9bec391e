//! What is wrong with a document: where, why, and what to write instead. Several problems are collected, up to a limit.

use std::fmt;

/// A reader mends a file in rounds; more than this at once is not read.
pub const MAX_PROBLEMS: usize = 20;

/// One thing that is wrong (or, as a warning, that has no effect).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Where it stands: `agents[0].tasks[2].steps[1].http.url`. Empty for the document itself.
    pub path: String,
    pub why: String,
    /// What to write instead, if that is known.
    pub hint: Option<String>,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.path.is_empty() {
            write!(f, "{}: ", self.path)?;
        }
        f.write_str(&self.why)?;
        self.hint.as_ref().map_or(Ok(()), |hint| write!(f, ": {hint}"))
    }
}

/// A place in the document while it is walked. It becomes text only if something is wrong there.
#[derive(Debug, Clone, Copy)]
pub enum At<'a> {
    Root,
    Key(&'a At<'a>, &'a str),
    Index(&'a At<'a>, usize),
}

impl<'a> At<'a> {
    pub fn key(&'a self, name: &'a str) -> At<'a> {
        At::Key(self, name)
    }
    pub fn index(&'a self, index: usize) -> At<'a> {
        At::Index(self, index)
    }
}

impl fmt::Display for At<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            At::Root => Ok(()),
            At::Key(At::Root, name) => f.write_str(&step_of_path("", name)),
            At::Key(outer, name) => write!(f, "{outer}{}", step_of_path(".", name)),
            At::Index(outer, index) => write!(f, "{outer}[{index}]"),
        }
    }
}

/// How a key continues a path: `.name`, or `["two words"]`.
pub fn step_of_path(dot: &str, name: &str) -> String {
    let plain = !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-".contains(&b));
    if plain { format!("{dot}{name}") } else { format!("[{name:?}]") }
}

/// Collects problems. Walkers look at `full` and stop early: nothing after the last problem that is kept is worth finding.
#[derive(Debug, Default)]
pub struct Problems {
    list: Vec<Problem>,
}

impl Problems {
    pub fn add(&mut self, at: At<'_>, why: impl Into<String>) {
        self.push(at, why.into(), None);
    }

    pub fn hint(&mut self, at: At<'_>, why: impl Into<String>, hint: impl Into<String>) {
        self.push(at, why.into(), Some(hint.into()));
    }

    /// Readers of quantities say what is wrong and then `: write …`, which is the hint.
    pub fn quantity(&mut self, at: At<'_>, why: &str) {
        match why.split_once(": write ") {
            Some((why, fix)) => self.hint(at, why, format!("write {fix}")),
            None => self.add(at, why),
        }
    }

    fn push(&mut self, at: At<'_>, why: String, hint: Option<String>) {
        if !self.full() {
            self.list.push(Problem { path: at.to_string(), why, hint });
        }
    }

    pub fn full(&self) -> bool {
        self.list.len() >= MAX_PROBLEMS
    }

    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    pub fn into_list(self) -> Vec<Problem> {
        self.list
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_reads_as_a_path_and_the_list_ends() {
        let tools = At::Root.key("tools");
        let at = tools.key("a b");
        assert_eq!(at.key("http").to_string(), "tools[\"a b\"].http");
        let mut problems = Problems::default();
        for n in 0..2 * MAX_PROBLEMS {
            problems.hint(At::Root.key("agents").index(n), "no", "yes");
        }
        assert!(problems.full());
        let list = problems.into_list();
        assert_eq!((list.len(), list[1].to_string()), (MAX_PROBLEMS, "agents[1]: no: yes".to_owned()));
    }
}
