//! The address of an `http` or `mcp` tool as a template. Scheme and host come from the plan or from the run's inputs, never from arguments
//! of a model or outputs of steps; values behind the host are percent-encoded, so that they cannot change the path's structure.

use crate::evaluator::MAX_RENDERED_BYTES;
use crate::expression::{BadExpression, Expression};
use crate::template::{Piece, RenderError, Scope, as_text, scan, too_large};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

/// All but the unreserved characters of RFC 3986.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
/// Roots whose values the caller of the run gave.
const TRUSTED: &[&str] = &["inputs", "run"];

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UrlTemplate {
    pieces: Vec<Piece>,
}

impl UrlTemplate {
    pub fn parse(text: &str) -> Result<UrlTemplate, BadExpression> {
        let pieces = scan(text)?;
        let url = UrlTemplate { pieces };
        url.check()?;
        Ok(url)
    }

    pub fn pieces(&self) -> &[Piece] {
        &self.pieces
    }

    fn check(&self) -> Result<(), BadExpression> {
        let refused = |why: &str, hint: &str| Err(BadExpression { why: why.to_owned(), hint: Some(hint.to_owned()) });
        if let [Piece::Plain(text)] = &self.pieces[..] {
            return check_whole(text).or_else(|why| refused(&why, "write it like https://api.example/path"));
        }
        if self.pieces.is_empty() {
            return refused("the address is empty", "write it like https://api.example/path");
        }
        // A trusted expression in front may be a whole base address: a `/` behind it then ends the host. Rendering looks again.
        let mut host_ended = false;
        let mut literal = String::new();
        let mut base = false;
        for piece in &self.pieces {
            match piece {
                Piece::Plain(text) => {
                    if !host_ended && host_part(text).contains('@') {
                        return refused(
                            "a user name or password must not stand in an address",
                            "use headers with {secret: NAME}",
                        );
                    }
                    literal.push_str(text);
                    host_ended = host_ended || behind_host(&literal) || base && text.contains(['/', '?', '#']);
                }
                Piece::Value(expression) if !host_ended => {
                    if !is_trusted(expression) {
                        let why = format!("`{}` must not decide the scheme or host", expression.source);
                        return refused(&why, "write the host out, or take it from inputs");
                    }
                    base = true;
                }
                Piece::Value(_) => {}
            }
        }
        if !base && !literal.starts_with("http://") && !literal.starts_with("https://") {
            return refused(
                "the address must begin with http:// or https://",
                "write it like https://api.example/path",
            );
        }
        Ok(())
    }

    pub fn render(&self, scope: &Scope) -> Result<String, RenderError> {
        let mut url = String::new();
        for piece in &self.pieces {
            match piece {
                Piece::Plain(text) => url.push_str(text),
                Piece::Value(expression) => {
                    let value = as_text(scope.evaluate(expression)?);
                    if behind_host(&url) {
                        url.extend(utf8_percent_encode(&value, ENCODED));
                    } else if is_trusted(expression) {
                        url.push_str(&value);
                    } else {
                        let why = "it would decide the scheme or host of the address".to_owned();
                        return Err(RenderError { expression: Some(expression.source.clone()), why });
                    }
                }
            }
            if url.len() > MAX_RENDERED_BYTES {
                return Err(too_large());
            }
        }
        check_whole(&url).map_err(RenderError::new)?;
        Ok(url)
    }
}

fn is_trusted(expression: &Expression) -> bool {
    expression.reads.iter().all(|reference| TRUSTED.contains(&reference.root.as_str()))
}

/// What of a piece in front may belong to the host.
fn host_part(text: &str) -> &str {
    let rest = text.split_once("://").map_or(text, |(_, rest)| rest);
    rest.split(['/', '?', '#']).next().unwrap_or_default()
}

/// Whether the text so far includes the end of the host.
fn behind_host(text: &str) -> bool {
    text.split_once("://").is_some_and(|(_, rest)| rest.contains(['/', '?', '#']))
}

/// What must hold for the whole address. The texts do not repeat it: it may be long.
fn check_whole(url: &str) -> Result<(), String> {
    let Some(rest) = url.strip_prefix("https://").or_else(|| url.strip_prefix("http://")) else {
        return Err("the address must begin with http:// or https://".to_owned());
    };
    if url.contains(|c: char| c.is_control() || c.is_whitespace() || c == '\\') {
        return Err("the address must not contain spaces, control characters or backslashes".to_owned());
    }
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let host = &rest[..end];
    if host.contains('@') {
        return Err("a user name or password must not stand in an address".to_owned());
    }
    if host.is_empty() || host.starts_with(':') {
        return Err("the address has no host".to_owned());
    }
    let path = rest[end..].split(['?', '#']).next().unwrap_or_default();
    let dots = |segment: &str| matches!(segment.to_ascii_lowercase().replace("%2e", ".").as_str(), "." | "..");
    if path.split('/').any(dots) {
        return Err("the path of the address must not contain `.` or `..` segments".to_owned());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn scope() -> Scope {
        Scope::new()
            .with(
                "inputs",
                json!({ "base": "https://a.example/v1", "host": "a.example", "bad": "https://u:p@a.example" }),
            )
            .with("args", json!({ "q": "x/../y?z=1&ü", "dots": "..", "host": "evil.example/" }))
    }

    #[test]
    fn values_behind_the_host_are_encoded() {
        for (text, url) in [
            ("https://h.example/${{ args.q }}", "https://h.example/x%2F..%2Fy%3Fz%3D1%26%C3%BC"),
            (
                "${{ inputs.base }}/${{ args.q }}?a=${{ args.dots }}",
                "https://a.example/v1/x%2F..%2Fy%3Fz%3D1%26%C3%BC?a=..",
            ),
            ("https://${{ inputs.host }}:81/a", "https://a.example:81/a"),
            ("${{ inputs.base }}", "https://a.example/v1"),
        ] {
            assert_eq!(UrlTemplate::parse(text).unwrap().render(&scope()).as_deref(), Ok(url), "{text}");
        }
    }

    #[test]
    fn an_address_that_outputs_could_turn_elsewhere_is_refused() {
        for (text, words) in [
            ("https://${{ args.host }}/x", "must not decide"),
            ("${{ args.host }}", "must not decide"),
            ("https://h.example${{ args.host }}/", "must not decide"),
            ("${{ steps.a.output.url }}/x", "must not decide"),
            ("https://user:pw@h.example/", "user name"),
            ("https://${{ inputs.host }}@h.example/", "user name"),
            ("ftp://h.example/", "http://"),
            ("file:///etc/passwd", "http://"),
            ("https:///x", "no host"),
            ("https://h.example/a/../b", "segments"),
            ("https://h.example/a b", "spaces"),
            ("", "empty"),
        ] {
            assert!(UrlTemplate::parse(text).expect_err(text).why.contains(words), "{text}");
        }
        for (text, words) in [
            ("${{ inputs.bad }}/x", "user name"),
            ("${{ inputs.host }}/${{ args.host }}", "decide the scheme"),
            ("https://h.example/${{ args.dots }}/x", "segments"),
        ] {
            let error = UrlTemplate::parse(text).unwrap().render(&scope()).expect_err(text);
            assert!(error.why.contains(words), "{text}: {error}");
        }
    }
}
