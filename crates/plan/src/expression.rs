//! One expression, the text between `${{` and `}}`: which values it reads, and whether it is one at all.
//!
//! `minijinja` parses and evaluates it. Before that, the tokens are read here: names are found (also `tasks["a-b"]`), and what could make
//! evaluation expensive is refused (`*`, `~`, calls), because the evaluator counts instructions, not bytes.

use crate::evaluator::{FILTERS, TESTS, compiles};
use crate::nearest::suggestion;
use std::fmt;

/// Longer ones belong into a step of their own.
pub const MAX_EXPRESSION_BYTES: usize = 4 * 1024;
/// Operators, filters and subscripts of one expression. Each may copy what it is given once.
pub const MAX_OPERATORS: usize = 32;
/// Different values that one expression may name.
const MAX_READS: usize = 64;

/// A part of a name: `.topic`, `["a-b"]` or `[0]`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Segment {
    Key(String),
    Index(i64),
}

/// A value that an expression reads: `tasks.sources.steps.page.output.status`. A computed subscript ends it, since what it picks is only
/// known later; the value up to there is what is read.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Reference {
    pub root: String,
    pub rest: Vec<Segment>,
}

impl Reference {
    /// The name at this position behind the root.
    pub fn key(&self, position: usize) -> Option<&str> {
        match self.rest.get(position) {
            Some(Segment::Key(name)) => Some(name),
            _ => None,
        }
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.root)?;
        self.rest.iter().try_for_each(|segment| match segment {
            Segment::Key(name) => f.write_str(&attribute(name)),
            Segment::Index(index) => write!(f, "[{index}]"),
        })
    }
}

/// How a name is written behind a dot; `-` would be read as minus.
pub fn attribute(name: &str) -> String {
    let word =
        name.bytes().enumerate().all(|(at, b)| b == b'_' || b.is_ascii_alphabetic() || at > 0 && b.is_ascii_digit());
    if word && !name.is_empty() { format!(".{name}") } else { format!("[{name:?}]") }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expression {
    pub source: String,
    pub reads: Vec<Reference>,
}

/// Why a text is no expression.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{why}")]
pub struct BadExpression {
    pub why: String,
    pub hint: Option<String>,
}

fn bad<T>(why: impl Into<String>) -> Result<T, BadExpression> {
    Err(BadExpression { why: why.into(), hint: None })
}

fn hinted<T>(why: impl Into<String>, hint: impl Into<String>) -> Result<T, BadExpression> {
    Err(BadExpression { why: why.into(), hint: Some(hint.into()) })
}

impl Expression {
    pub fn parse(source: &str) -> Result<Expression, BadExpression> {
        let source = source.trim();
        if source.is_empty() {
            return hinted("the expression is empty", "write it like ${{ inputs.topic }}");
        }
        if source.len() > MAX_EXPRESSION_BYTES {
            return bad(format!("the expression is longer than {MAX_EXPRESSION_BYTES} bytes"));
        }
        let tokens = tokens(source)?;
        let operators = tokens.iter().filter(|token| token.is_operator()).count();
        if operators > MAX_OPERATORS {
            return bad(format!("the expression has {operators} operators; {MAX_OPERATORS} are allowed"));
        }
        let reads = reads(&tokens)?;
        compiles(source).map_err(|why| BadExpression { why, hint: None })?;
        Ok(Expression { source: source.to_owned(), reads })
    }
}

#[derive(Debug, Clone, PartialEq)]
enum Token {
    Word(String),
    Text(String),
    Int(i64),
    Float,
    Sign(&'static str),
}

impl Token {
    fn is_operator(&self) -> bool {
        match self {
            Token::Sign(sign) => !matches!(*sign, "." | "," | ":" | ")" | "]" | "}" | "(" | "="),
            Token::Word(word) => matches!(word.as_str(), "and" | "or" | "not" | "in" | "is" | "if"),
            _ => false,
        }
    }
}

/// Longest first. What is not here is not part of expressions.
const SIGNS: &[&str] = &[
    "==", "!=", "<=", ">=", "//", "**", ".", ",", ":", "(", ")", "[", "]", "{", "}", "+", "-", "/", "%", "<", ">", "|",
    "=", "*", "~",
];

fn tokens(source: &str) -> Result<Vec<Token>, BadExpression> {
    let mut tokens = Vec::new();
    let mut rest = source;
    while let Some(first) = rest.chars().next() {
        let length = match first {
            ' ' | '\t' | '\r' | '\n' => first.len_utf8(),
            '"' | '\'' => {
                let (text, length) = quoted(rest, first)?;
                tokens.push(Token::Text(text));
                length
            }
            'a'..='z' | 'A'..='Z' | '_' => {
                let length = rest.bytes().take_while(|b| b.is_ascii_alphanumeric() || *b == b'_').count();
                tokens.push(Token::Word(rest[..length].to_owned()));
                length
            }
            '0'..='9' => {
                let (token, length) = number(rest)?;
                tokens.push(token);
                length
            }
            _ => match SIGNS.iter().copied().find(|sign| rest.starts_with(sign)) {
                Some(sign @ ("*" | "**")) => {
                    return hinted(format!("`{sign}` is not part of expressions"), "compute it in a step");
                }
                Some("~") => return hinted("`~` is not part of expressions", "write several ${{ … }} in one text"),
                Some(sign) => {
                    tokens.push(Token::Sign(sign));
                    sign.len()
                }
                None => return bad(format!("`{first}` is not part of expressions")),
            },
        };
        rest = &rest[length..];
    }
    Ok(tokens)
}

/// The text and the length of what stands in quotes. An escape keeps its second character; that is exact for `\"`, `\'` and `\\`, and
/// names have no others.
fn quoted(rest: &str, quote: char) -> Result<(String, usize), BadExpression> {
    let mut text = String::new();
    let mut chars = rest.char_indices().skip(1);
    while let Some((at, c)) = chars.next() {
        match c {
            '\\' => text.extend(chars.next().map(|(_, escaped)| escaped)),
            _ if c == quote => return Ok((text, at + quote.len_utf8())),
            _ => text.push(c),
        }
    }
    bad("a quote is not closed")
}

fn number(rest: &str) -> Result<(Token, usize), BadExpression> {
    let digits = |from: usize| rest.bytes().skip(from).take_while(u8::is_ascii_digit).count();
    let whole = digits(0);
    let fraction = if rest[whole..].starts_with('.') { digits(whole + 1) } else { 0 };
    let length = if fraction > 0 { whole + 1 + fraction } else { whole };
    if rest[length..].starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_') {
        return hinted("a number is followed by a letter", "write numbers like 10 or 0.5");
    }
    match rest[..length].parse() {
        Ok(int) => Ok((Token::Int(int), length)),
        Err(_) if fraction > 0 => Ok((Token::Float, length)),
        Err(_) => bad(format!("`{}` is too large", &rest[..length])),
    }
}

/// Words that are part of the language.
const KEYWORDS: &[&str] =
    &["and", "or", "not", "in", "is", "if", "else", "true", "false", "none", "True", "False", "None"];

fn reads(tokens: &[Token]) -> Result<Vec<Reference>, BadExpression> {
    let sign = |at: usize, wanted: &str| matches!(tokens.get(at), Some(Token::Sign(sign)) if *sign == wanted);
    let word = |at: usize, wanted: &str| matches!(tokens.get(at), Some(Token::Word(word)) if word == wanted);
    let mut found = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        let Token::Word(name) = &tokens[at] else {
            at += 1;
            continue;
        };
        let before = |n: usize| at.checked_sub(n);
        let behind = |n: usize, wanted: &str| before(n).is_some_and(|at| sign(at, wanted));
        let is_test = before(1).is_some_and(|at| word(at, "is"))
            || before(1).is_some_and(|at| word(at, "not")) && before(2).is_some_and(|at| word(at, "is"));
        if behind(1, "|") {
            known("filter", name, FILTERS)?;
        } else if is_test && name != "not" {
            known("test", name, TESTS)?;
        } else if behind(1, ".") {
            if sign(at + 1, "(") {
                return hinted(
                    format!("`.{name}(…)`: values have no methods"),
                    format!("filters: {}", FILTERS.join(", ")),
                );
            }
        } else if sign(at + 1, "(") && !KEYWORDS.contains(&name.as_str()) {
            return hinted(format!("`{name}(…)`: there are no functions"), format!("filters: {}", FILTERS.join(", ")));
        } else if !KEYWORDS.contains(&name.as_str()) && !is_argument(tokens, at) {
            let (reference, next) = chain(tokens, at, name);
            found.push(reference);
            at = next;
            continue;
        }
        at += 1;
    }
    found.sort();
    found.dedup();
    if found.len() > MAX_READS { bad(format!("the expression reads more than {MAX_READS} values")) } else { Ok(found) }
}

/// `attribute=` of a filter is a name, not a value.
fn is_argument(tokens: &[Token], at: usize) -> bool {
    let opens = at > 0 && matches!(tokens[at - 1], Token::Sign("(" | ","));
    opens && matches!(tokens.get(at + 1), Some(Token::Sign("=")))
}

fn chain(tokens: &[Token], start: usize, root: &str) -> (Reference, usize) {
    let mut rest = Vec::new();
    let mut at = start + 1;
    loop {
        match (tokens.get(at), tokens.get(at + 1), tokens.get(at + 2)) {
            // A method call is refused where its name is read.
            (Some(Token::Sign(".")), Some(Token::Word(_)), Some(Token::Sign("("))) => break,
            (Some(Token::Sign(".")), Some(Token::Word(name)), _) => {
                rest.push(Segment::Key(name.clone()));
                at += 2;
            }
            (Some(Token::Sign("[")), Some(Token::Text(name)), Some(Token::Sign("]"))) => {
                rest.push(Segment::Key(name.clone()));
                at += 3;
            }
            (Some(Token::Sign("[")), Some(Token::Int(index)), Some(Token::Sign("]"))) => {
                rest.push(Segment::Index(*index));
                at += 3;
            }
            _ => break,
        }
    }
    (Reference { root: root.to_owned(), rest }, at)
}

fn known(what: &str, name: &str, names: &[&str]) -> Result<(), BadExpression> {
    if names.contains(&name) {
        Ok(())
    } else {
        hinted(format!("no {what} is called `{name}`"), suggestion(name, names))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_expression_reads_is_found_in_its_text() {
        for (source, reads) in [
            ("inputs.topic", "inputs.topic"),
            ("tasks.a.steps.b.output.status == 200", "tasks.a.steps.b.output.status"),
            ("tasks['a-b'].steps[\"s\"].output[0].x", "tasks[\"a-b\"].steps.s.output[0].x"),
            ("steps.x.output[inputs.key].y", "inputs.key steps.x.output"),
            ("'inputs.no' if args.q is not defined else args.q|default('x')", "args.q"),
            ("item|map(attribute='inputs')|join(', ')", "item"),
            ("[inputs.a, {'run': inputs.b}]|length > 1", "inputs.a inputs.b"),
            ("not true", ""),
            ("(inputs.a).b", "inputs.a"),
        ] {
            let found = Expression::parse(source).unwrap_or_else(|why| panic!("{source}: {why}"));
            let shown: Vec<String> = found.reads.iter().map(Reference::to_string).collect();
            assert_eq!(shown.join(" "), reads, "{source}");
        }
    }

    #[test]
    fn what_is_no_expression_is_refused_with_a_reason() {
        for (source, why) in [
            ("", "empty"),
            ("inputs.", "syntax"),
            ("inputs.a * 3", "`*` is not part"),
            ("[1] ** 2", "`**` is not part"),
            ("inputs.a ~ 'x'", "`~` is not part"),
            ("range(10)", "there are no functions"),
            ("inputs.a.upper()", "no methods"),
            ("inputs.a|uper", "no filter is called `uper`"),
            ("inputs.a is strng", "no test is called `strng`"),
            ("'open", "not closed"),
            ("1e9", "followed by a letter"),
            ("99999999999999999999", "too large"),
            ("inputs.a ? 1 : 2", "`?` is not part"),
            ("a b", "syntax"),
        ] {
            let error = Expression::parse(source).expect_err(source).to_string();
            assert!(error.contains(why), "{source}: {error}");
        }
        let long = "1 + ".repeat(MAX_OPERATORS + 1) + "1";
        assert!(Expression::parse(&long).unwrap_err().why.contains("operators"));
        let deep = "(".repeat(2000) + "1" + &")".repeat(2000);
        assert!(Expression::parse(&deep).is_err(), "nesting is bounded by the parser");
        assert!(Expression::parse(&"x".repeat(MAX_EXPRESSION_BYTES + 1)).is_err());
    }
}
