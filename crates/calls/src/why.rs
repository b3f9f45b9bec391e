//! Why a run was not answered from its cache: what exactly differs between two call nodes.

use crate::cached_run::LINES;
use crate::id::NodeId;
use crate::json::shown;
use crate::read::{Fault, Read, node};
use crate::record::Node;
use crate::unreadable::Code;
use crate::value::{Map, Value};
use std::collections::BTreeSet;
use std::fmt;

/// One thing that is not the same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Difference {
    /// They are calls of different functions; their inputs are not compared.
    Function {
        before: String,
        after: String,
    },
    /// A word of the command, counted from 0.
    Argument {
        position: usize,
        before: Option<String>,
        after: Option<String>,
    },
    File {
        path: String,
        change: Change,
    },
    /// Whether a file is executable.
    Mode {
        path: String,
        executable: bool,
    },
    /// The values of variables are not shown: some are secret.
    Variable {
        name: String,
        change: Change,
    },
    /// Any other line of the key, or an input of any other function.
    Line {
        line: String,
        before: String,
        after: String,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    Added,
    Removed,
    Changed,
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Change::Added => "was added",
            Change::Removed => "was removed",
            Change::Changed => "was changed",
        })
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Difference::Function { before, after } => write!(f, "another function: {before}, now {after}"),
            Difference::Argument { position, before: Some(before), after: Some(after) } => {
                write!(f, "argument {position}: {before}, now {after}")
            }
            Difference::Argument { position, before: Some(before), .. } => {
                write!(f, "argument {position} was removed: {before}")
            }
            Difference::Argument { position, after, .. } => {
                write!(f, "argument {position} was added: {}", after.as_deref().unwrap_or(""))
            }
            Difference::File { path, change } => write!(f, "file {path} {change}"),
            Difference::Mode { path, executable } => {
                write!(f, "file {path} is {} executable", if *executable { "now" } else { "no longer" })
            }
            Difference::Variable { name, change } => write!(f, "variable {name} {change}"),
            Difference::Line { line, before, after } => write!(f, "{line}: {before}, now {after}"),
        }
    }
}

/// What differs from one call node to another. Nothing if they are the same.
pub fn differences<R: Read + ?Sized>(
    from: &mut R,
    before: NodeId,
    after: NodeId,
) -> Result<Vec<Difference>, Fault<R::Error>> {
    if before == after {
        return Ok(Vec::new());
    }
    let (old_function, old) = call(from, before)?;
    let (new_function, new) = call(from, after)?;
    if old_function != new_function {
        return Ok(vec![Difference::Function { before: shown(&old_function), after: shown(&new_function) }]);
    }
    let is_run = matches!(&old_function, Value::Uri(uri) if uri.as_str() == crate::cached_run::FUNCTION);
    let mut found = Vec::new();
    for position in 0..old.len().max(new.len()) {
        let (old, new) = (old.get(position), new.get(position));
        if old == new {
            continue;
        }
        let load = |from: &mut R, input: Option<&NodeId>| input.map(|input| literal(from, *input)).transpose();
        let (old, new) = (load(from, old)?, load(from, new)?);
        let line = LINES.get(position).filter(|_| is_run);
        found.extend(of_line(line.copied(), position, old, new));
    }
    Ok(found)
}

fn call<R: Read + ?Sized>(from: &mut R, id: NodeId) -> Result<(Value, Vec<NodeId>), Fault<R::Error>> {
    match node(from, id)? {
        Node::Call { function, inputs } => {
            let function = Value::load_element(from, &function)?;
            let is_uri = matches!(function, Value::Uri(_));
            if is_uri {
                Ok((function, inputs))
            } else {
                Err(Fault::flawed(id, Code::InvalidKind, "function_not_a_uri"))
            }
        }
        _ => Err(Fault::flawed(id, Code::InvalidKind, "not_a_call")),
    }
}

/// The value of an input that is a literal; the id of any other node.
fn literal<R: Read + ?Sized>(from: &mut R, id: NodeId) -> Result<Input, Fault<R::Error>> {
    match node(from, id)? {
        Node::Literal { value } => Value::load_element(from, &value).map(Input::Value),
        _ => Ok(Input::Node(id)),
    }
}

enum Input {
    Value(Value),
    Node(NodeId),
}

impl Input {
    fn shown(&self, line: Option<&str>) -> String {
        match self {
            Input::Value(Value::Bytes(path)) if line == Some("working_dir") => {
                format!("\"{}\"", path.as_slice().escape_ascii())
            }
            // A hash: its first digits are enough to tell two apart.
            Input::Value(Value::Bytes(hash)) if line == Some("stdin") => {
                hash.as_slice().iter().take(4).map(|byte| format!("{byte:02x}")).collect()
            }
            Input::Value(value) => shown(value),
            Input::Node(id) => format!("the result of {}", &id.to_string()[..8]),
        }
    }
}

fn of_line(line: Option<&str>, position: usize, old: Option<Input>, new: Option<Input>) -> Vec<Difference> {
    match (line, &old, &new) {
        (Some("argv"), Some(Input::Value(Value::List(old))), Some(Input::Value(Value::List(new)))) => {
            arguments(old, new)
        }
        (Some("files"), Some(Input::Value(Value::Map(old))), Some(Input::Value(Value::Map(new)))) => files(old, new),
        (Some("env"), Some(Input::Value(Value::Map(old))), Some(Input::Value(Value::Map(new)))) => {
            let variable = |(name, change)| Difference::Variable { name, change };
            changes(old, new).into_iter().map(variable).collect()
        }
        _ => {
            let said = |input: Option<Input>| input.map_or("absent".to_owned(), |input| input.shown(line));
            let line = line.map_or(format!("input {position}"), str::to_owned);
            vec![Difference::Line { line, before: said(old), after: said(new) }]
        }
    }
}

fn arguments(old: &[Value], new: &[Value]) -> Vec<Difference> {
    let differ = |position: &usize| old.get(*position) != new.get(*position);
    let told = |position: usize| Difference::Argument {
        position,
        before: old.get(position).map(word),
        after: new.get(position).map(word),
    };
    (0..old.len().max(new.len())).filter(differ).map(told).collect()
}

fn files(old: &Map, new: &Map) -> Vec<Difference> {
    let mut found = Vec::new();
    for (key, change) in keys(old, new) {
        let path = word(key);
        match (change, old.get(key), new.get(key)) {
            (Change::Changed, Some(Value::List(before)), Some(Value::List(after))) => {
                if before.first() != after.first() {
                    found.push(Difference::File { path: path.clone(), change });
                }
                if before.get(1) != after.get(1) {
                    found.push(Difference::Mode { path, executable: after.get(1) == Some(&Value::Bool(true)) });
                }
            }
            _ => found.push(Difference::File { path, change }),
        }
    }
    found
}

fn changes(old: &Map, new: &Map) -> Vec<(String, Change)> {
    keys(old, new).into_iter().map(|(key, change)| (word(key), change)).collect()
}

/// The keys whose values differ, in the order of their words.
fn keys<'v>(old: &'v Map, new: &'v Map) -> Vec<(&'v Value, Change)> {
    let (mut found, mut known) = (Vec::new(), BTreeSet::new());
    for (key, value) in old.iter() {
        known.insert(word(key));
        match new.get(key) {
            None => found.push((key, Change::Removed)),
            Some(now) if now != value => found.push((key, Change::Changed)),
            Some(_) => {}
        }
    }
    found.extend(new.iter().filter(|(key, _)| !known.contains(&word(key))).map(|(key, _)| (key, Change::Added)));
    found.sort_by_key(|(key, _)| word(key));
    found
}

/// Bytes and texts as a person reads them.
fn word(value: &Value) -> String {
    match value {
        Value::Bytes(bytes) => String::from_utf8_lossy(bytes.as_slice()).into_owned(),
        Value::String(text) => text.as_str().to_owned(),
        other => shown(other),
    }
}
