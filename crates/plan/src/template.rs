//! A JSON value in which texts may hold `${{ … }}`, and its rendering. Only `${{` is special: `{{ }}` and `{% %}` are ordinary text.
//!
//! A text that is one expression and nothing else takes the value of the expression with its type. In headers and variables it becomes
//! text even then: a value from outside must not turn into `{secret: NAME}` there.

use crate::evaluator::{MAX_DEPTH, MAX_READ_BYTES, MAX_RENDERED_BYTES, evaluate};
use crate::expression::{BadExpression, Expression, Reference, Segment};
use crate::url::UrlTemplate;
use model::step::ToolKind;
use serde_json::{Map, Value};
use std::collections::BTreeMap;

const OPEN: &str = "${{";
const CLOSE: &str = "}}";

/// A part of a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Piece {
    Plain(String),
    Value(Expression),
}

/// Why a value is no template, and where in it: the keys and positions that lead there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadTemplate {
    pub place: Vec<Segment>,
    pub error: BadExpression,
}

/// Why a template could not be rendered. This is an error of the plan or of its data: trying again gives the same.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}{why}", self.expression.as_ref().map(|it| format!("${{{{ {it} }}}}: ")).unwrap_or_default())]
pub struct RenderError {
    pub expression: Option<String>,
    pub why: String,
}

impl RenderError {
    pub(crate) fn new(why: impl Into<String>) -> RenderError {
        RenderError { expression: None, why: why.into() }
    }
}

/// Splits a text at its expressions. An expression ends at the first `}}` that is outside of quotes and of braces it opened itself.
pub fn scan(text: &str) -> Result<Vec<Piece>, BadExpression> {
    let mut pieces = Vec::new();
    let mut rest = text;
    while let Some(start) = rest.find(OPEN) {
        let inner = &rest[start + OPEN.len()..];
        let Some(end) = closing(inner) else {
            let hint = Some("close it with }}".to_owned());
            return Err(BadExpression { why: "`${{` is not closed".to_owned(), hint });
        };
        if start > 0 {
            pieces.push(Piece::Plain(rest[..start].to_owned()));
        }
        pieces.push(Piece::Value(Expression::parse(&inner[..end])?));
        rest = &inner[end + CLOSE.len()..];
    }
    if !rest.is_empty() {
        pieces.push(Piece::Plain(rest.to_owned()));
    }
    Ok(pieces)
}

fn closing(inner: &str) -> Option<usize> {
    let bytes = inner.as_bytes();
    let (mut at, mut quote, mut braces) = (0, None, 0usize);
    while at < bytes.len() {
        match (quote, bytes[at]) {
            (Some(_), b'\\') => at += 1,
            (Some(open), byte) if byte == open => quote = None,
            (Some(_), _) => {}
            (None, byte @ (b'"' | b'\'')) => quote = Some(byte),
            (None, b'{') => braces += 1,
            (None, b'}') if braces > 0 => braces -= 1,
            (None, b'}') if bytes.get(at + 1) == Some(&b'}') => return Some(at),
            (None, _) => {}
        }
        at += 1;
    }
    None
}

/// Whether a text holds an expression, or the beginning of one.
pub fn has_expression(text: &str) -> bool {
    text.contains(OPEN)
}

#[derive(Debug, Clone, PartialEq)]
enum Node {
    /// No expression inside.
    Plain(Value),
    /// One expression and nothing else: the value keeps its type.
    Whole(Expression),
    Text(Vec<Piece>),
    Url(UrlTemplate),
    List(Vec<Node>),
    Map(Vec<(String, Node)>),
}

/// A parsed template.
#[derive(Debug, Clone, PartialEq)]
pub struct Template {
    node: Node,
}

/// What a text in a template becomes.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Reading {
    Value,
    Text,
    Url,
}

impl Template {
    pub fn parse(value: &Value) -> Result<Template, BadTemplate> {
        Ok(Template { node: node(value, Reading::Value, MAX_DEPTH)? })
    }

    /// What a tool is given. Headers and variables stay text, and an address is put together by the rules of `UrlTemplate`.
    pub fn for_tool(tool: ToolKind, input: &Value) -> Result<Template, BadTemplate> {
        let Value::Object(fields) = input else { return Template::parse(input) };
        let within = |name: &str| match (name, tool) {
            ("url", ToolKind::Http | ToolKind::Mcp) => Reading::Url,
            ("headers", ToolKind::Http | ToolKind::Mcp) => Reading::Text,
            ("env", ToolKind::Command | ToolKind::Exec | ToolKind::Mcp) => Reading::Text,
            ("argv" | "shell", ToolKind::Command | ToolKind::Exec | ToolKind::Mcp) => Reading::Text,
            _ => Reading::Value,
        };
        let mut nodes = Vec::with_capacity(fields.len());
        for (name, value) in fields {
            let inner = node(value, within(name), MAX_DEPTH).map_err(|bad| bad.below(Segment::Key(name.clone())))?;
            nodes.push((name.clone(), inner));
        }
        Ok(Template { node: Node::Map(nodes) })
    }

    /// All that its expressions read, each once. The caller loads the outputs that are named, and no others.
    pub fn references(&self) -> Vec<&Reference> {
        let mut found = Vec::new();
        collect(&self.node, &mut found);
        found.sort();
        found.dedup();
        found
    }

    pub fn render(&self, scope: &Scope) -> Result<Value, RenderError> {
        let mut left = MAX_RENDERED_BYTES;
        render_node(&self.node, scope, &mut left)
    }
}

/// All that the expressions of a template read, each once.
pub fn references(template: &Template) -> Vec<&Reference> {
    template.references()
}

/// The template's value.
pub fn render(template: &Template, scope: &Scope) -> Result<Value, RenderError> {
    template.render(scope)
}

impl BadTemplate {
    fn below(mut self, segment: Segment) -> BadTemplate {
        self.place.insert(0, segment);
        self
    }
}

fn node(value: &Value, reading: Reading, depth: usize) -> Result<Node, BadTemplate> {
    let bad = |error| BadTemplate { place: Vec::new(), error };
    let Some(inner) = depth.checked_sub(1) else {
        let why = format!("nested deeper than {MAX_DEPTH} levels");
        return Err(bad(BadExpression { why, hint: None }));
    };
    Ok(match value {
        Value::String(text) if reading == Reading::Url => Node::Url(UrlTemplate::parse(text).map_err(bad)?),
        Value::String(text) if has_expression(text) => {
            let mut pieces = scan(text).map_err(bad)?;
            match pieces.pop() {
                Some(Piece::Value(only)) if pieces.is_empty() && reading == Reading::Value => Node::Whole(only),
                last => Node::Text(pieces.into_iter().chain(last).collect()),
            }
        }
        Value::Array(list) => {
            let nodes: Result<Vec<Node>, BadTemplate> = list
                .iter()
                .enumerate()
                .map(|(at, item)| node(item, reading, inner).map_err(|bad| bad.below(Segment::Index(at as i64))))
                .collect();
            match nodes? {
                nodes if nodes.iter().all(|node| matches!(node, Node::Plain(_))) => Node::Plain(value.clone()),
                nodes => Node::List(nodes),
            }
        }
        Value::Object(fields) => {
            let mut nodes = Vec::with_capacity(fields.len());
            for (name, item) in fields {
                let found = node(item, reading, inner).map_err(|bad| bad.below(Segment::Key(name.clone())))?;
                nodes.push((name.clone(), found));
            }
            if nodes.iter().all(|(_, node)| matches!(node, Node::Plain(_))) {
                Node::Plain(value.clone())
            } else {
                Node::Map(nodes)
            }
        }
        plain => Node::Plain(plain.clone()),
    })
}

fn collect<'t>(node: &'t Node, found: &mut Vec<&'t Reference>) {
    let of_pieces = |pieces: &'t [Piece], found: &mut Vec<&'t Reference>| {
        for piece in pieces {
            if let Piece::Value(expression) = piece {
                found.extend(&expression.reads);
            }
        }
    };
    match node {
        Node::Plain(_) => {}
        Node::Whole(expression) => found.extend(&expression.reads),
        Node::Text(pieces) => of_pieces(pieces, found),
        Node::Url(url) => of_pieces(url.pieces(), found),
        Node::List(nodes) => nodes.iter().for_each(|node| collect(node, found)),
        Node::Map(nodes) => nodes.iter().for_each(|(_, node)| collect(node, found)),
    }
}

fn render_node(node: &Node, scope: &Scope, left: &mut usize) -> Result<Value, RenderError> {
    match node {
        Node::Plain(value) => spend(left, size_of(value)).map(|()| value.clone()),
        Node::Whole(expression) => {
            let value = scope.evaluate(expression)?;
            spend(left, size_of(&value)).map(|()| value)
        }
        Node::Text(pieces) => {
            let text = text_of(pieces, scope)?;
            spend(left, text.len()).map(|()| Value::String(text))
        }
        Node::Url(url) => {
            let text = url.render(scope)?;
            spend(left, text.len()).map(|()| Value::String(text))
        }
        Node::List(nodes) => {
            nodes.iter().map(|node| render_node(node, scope, left)).collect::<Result<_, _>>().map(Value::Array)
        }
        Node::Map(nodes) => {
            let mut fields = Map::new();
            for (name, node) in nodes {
                spend(left, name.len())?;
                fields.insert(name.clone(), render_node(node, scope, left)?);
            }
            Ok(Value::Object(fields))
        }
    }
}

fn text_of(pieces: &[Piece], scope: &Scope) -> Result<String, RenderError> {
    let mut text = String::new();
    for piece in pieces {
        match piece {
            Piece::Plain(plain) => text.push_str(plain),
            Piece::Value(expression) => text.push_str(&as_text(scope.evaluate(expression)?)),
        }
        if text.len() > MAX_RENDERED_BYTES {
            return Err(too_large());
        }
    }
    Ok(text)
}

/// A value within a text: texts as they are, anything else as JSON.
pub(crate) fn as_text(value: Value) -> String {
    match value {
        Value::String(text) => text,
        other => other.to_string(),
    }
}

pub(crate) fn too_large() -> RenderError {
    RenderError::new(format!("the result is larger than {MAX_RENDERED_BYTES} bytes"))
}

fn spend(left: &mut usize, bytes: usize) -> Result<(), RenderError> {
    *left = left.checked_sub(bytes).ok_or_else(too_large)?;
    Ok(())
}

/// About as many bytes as its JSON text has.
fn size_of(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len() + 2,
        Value::Array(list) => 2 + list.iter().map(|item| size_of(item) + 1).sum::<usize>(),
        Value::Object(fields) => 2 + fields.iter().map(|(name, item)| name.len() + size_of(item) + 4).sum::<usize>(),
        _ => 8,
    }
}

/// The values that expressions may name. The roots are `inputs`, `run`, `tasks`, `steps`, `args`, `item` and `agents`.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Scope {
    roots: Map<String, Value>,
}

impl Scope {
    pub fn new() -> Scope {
        Scope::default()
    }

    pub fn with(mut self, root: &str, value: Value) -> Scope {
        self.roots.insert(root.to_owned(), value);
        self
    }

    pub(crate) fn evaluate(&self, expression: &Expression) -> Result<Value, RenderError> {
        let why = |why| RenderError { expression: Some(expression.source.clone()), why };
        let context = self.only(&expression.reads).map_err(why)?;
        evaluate(&expression.source, &context).map_err(why)
    }

    /// Exactly the values that are read, so that a small expression does not copy a large run.
    fn only(&self, reads: &[Reference]) -> Result<Map<String, Value>, String> {
        let mut wanted = Wanted::default();
        for reference in reads {
            wanted.add(reference);
        }
        let mut left = MAX_READ_BYTES;
        match wanted.pick(&self.roots, &mut left) {
            Some(context) => Ok(context),
            None => Err(format!("it reads more than {MAX_READ_BYTES} bytes")),
        }
    }
}

/// The names that are read, as a tree. A position in a list ends the tree: the whole list is taken.
#[derive(Default)]
struct Wanted {
    whole: bool,
    below: BTreeMap<String, Wanted>,
}

impl Wanted {
    fn add(&mut self, reference: &Reference) {
        let mut here = self.below.entry(reference.root.clone()).or_default();
        for segment in &reference.rest {
            match segment {
                Segment::Key(name) => here = here.below.entry(name.clone()).or_default(),
                Segment::Index(_) => break,
            }
        }
        here.whole = true;
    }

    /// None if it is more than may be read.
    fn pick(&self, fields: &Map<String, Value>, left: &mut usize) -> Option<Map<String, Value>> {
        let mut picked = Map::new();
        for (name, wanted) in &self.below {
            let Some(value) = fields.get(name) else { continue };
            let value = match value {
                Value::Object(inner) if !wanted.whole => Value::Object(wanted.pick(inner, left)?),
                value => {
                    *left = left.checked_sub(size_of(value))?;
                    value.clone()
                }
            };
            picked.insert(name.clone(), value);
        }
        Some(picked)
    }
}
