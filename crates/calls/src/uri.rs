//! URIs as values: RFC 3986, in canonical form only, so that one resource has one spelling. The scheme `dml` is reserved for builtins.

use crate::id::Id;
use std::fmt;

/// No URI that a program or a person writes is longer.
pub const MAX_URI_BYTES: usize = 8_192;
/// Names the functions that are evaluated and not executed.
pub const RESERVED_SCHEME: &str = "dml";
/// Bytes that are too many for a record, kept beside the records by their hash.
pub const BLOB_SCHEME: &str = "blake3";

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Uri(String);

/// Why a text is no canonical URI.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadUri {
    #[error("a URI is longer than {MAX_URI_BYTES} bytes")]
    TooLong,
    #[error("a URI begins with a scheme in lower case and a colon")]
    Scheme,
    #[error("URIs of the scheme `dml` are reserved")]
    Reserved,
    #[error("a URI contains a character that must be written as %XX")]
    Character,
    #[error("%XX takes two hexadecimal digits in upper case, and never stands for a letter, a digit or one of -._~")]
    Percent,
    #[error("the host of a URI is written in lower case, its port in digits")]
    Host,
    #[error("the path of a URI contains the segment `.` or `..`")]
    Dots,
}

impl BadUri {
    /// The word in the detail of a read error.
    pub(crate) fn detail(self) -> &'static str {
        match self {
            BadUri::TooLong => "uri_too_long",
            BadUri::Reserved => "uri_reserved",
            _ => "uri_not_canonical",
        }
    }
}

impl Uri {
    /// Accepts the canonical form only.
    pub fn new(text: impl Into<String>) -> Result<Uri, BadUri> {
        let text = text.into();
        check(&text)?;
        if text.split(':').next() == Some(RESERVED_SCHEME) { Err(BadUri::Reserved) } else { Ok(Uri(text)) }
    }
    pub fn as_str(&self) -> &str {
        &self.0
    }
    pub fn scheme(&self) -> &str {
        self.0.split(':').next().unwrap_or("")
    }

    /// The blob that it names, if it names one.
    pub fn blob(&self) -> Option<Blob> {
        let (hash, size) = self.0.strip_prefix("blake3:")?.split_once("?size=")?;
        let blob = Blob { hash: hash.parse().ok()?, bytes: size.parse().ok()? };
        (blob.uri() == *self).then_some(blob)
    }
}

impl fmt::Display for Uri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}
impl fmt::Debug for Uri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "<{}>", self.0)
    }
}

/// Bytes that are stored beside the records: the plain BLAKE3-256 hash of the contents, and their number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Blob {
    pub hash: Id,
    pub bytes: u64,
}

impl Blob {
    pub fn of(contents: &[u8]) -> Blob {
        Blob { hash: Id::of(contents), bytes: contents.len() as u64 }
    }
    /// `blake3:<hash>?size=<bytes>`. Longer than any inlined value: a blob always has a datum record of its own.
    pub fn uri(&self) -> Uri {
        Uri(format!("{BLOB_SCHEME}:{}?size={}", self.hash, self.bytes))
    }
}

fn check(text: &str) -> Result<(), BadUri> {
    if text.len() > MAX_URI_BYTES {
        return Err(BadUri::TooLong);
    }
    let (scheme, rest) = text.split_once(':').ok_or(BadUri::Scheme)?;
    let in_scheme = |c: u8| matches!(c, b'a'..=b'z' | b'0'..=b'9' | b'+' | b'.' | b'-');
    if !scheme.starts_with(|c: char| c.is_ascii_lowercase()) || !scheme.bytes().all(in_scheme) {
        return Err(BadUri::Scheme);
    }
    let (rest, fragment) = rest.split_once('#').unwrap_or((rest, ""));
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (authority, path) = match rest.strip_prefix("//") {
        Some(rest) => rest.split_at(rest.find('/').unwrap_or(rest.len())),
        None => ("", rest),
    };
    check_authority(authority)?;
    check_characters(path, b":@/")?;
    check_characters(query, b":@/?")?;
    check_characters(fragment, b":@/?")?;
    if path.split('/').any(|segment| matches!(segment, "." | "..")) { Err(BadUri::Dots) } else { Ok(()) }
}

fn check_authority(authority: &str) -> Result<(), BadUri> {
    let (user, host) = authority.rsplit_once('@').unwrap_or(("", authority));
    check_characters(user, b":")?;
    let (host, port) = match host.strip_prefix('[') {
        Some(address) => address.split_once(']').ok_or(BadUri::Host)?,
        None => host.split_at(host.find(':').unwrap_or(host.len())),
    };
    check_characters(host, b":")?;
    let port_is_good = port.is_empty()
        || port
            .strip_prefix(':')
            .is_some_and(|digits| !digits.is_empty() && digits.bytes().all(|c| c.is_ascii_digit()));
    // The digits of %XX stay in upper case.
    let mut bytes = host.bytes();
    while let Some(byte) = bytes.next() {
        match byte {
            b'%' => drop(bytes.nth(1)),
            byte if byte.is_ascii_uppercase() => return Err(BadUri::Host),
            _ => {}
        }
    }
    if port_is_good { Ok(()) } else { Err(BadUri::Host) }
}

fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~".contains(&byte)
}

fn check_characters(part: &str, also: &[u8]) -> Result<(), BadUri> {
    let mut rest = part.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        rest = after;
        if *first == b'%' {
            let digits = after.get(..2).ok_or(BadUri::Percent)?;
            let is_digit = |c: &u8| matches!(c, b'0'..=b'9' | b'A'..=b'F');
            let text = std::str::from_utf8(digits).map_err(|_| BadUri::Percent)?;
            let byte = u8::from_str_radix(text, 16).map_err(|_| BadUri::Percent)?;
            if !digits.iter().all(is_digit) || is_unreserved(byte) {
                return Err(BadUri::Percent);
            }
            rest = &after[2..];
        } else if !is_unreserved(*first) && !b"!$&'()*+,;=".contains(first) && !also.contains(first) {
            return Err(BadUri::Character);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_canonical_spelling_is_a_uri() {
        for good in [
            "s3://bucket/key%20with%20spaces",
            "https://user:pw@example.org:8443/a/b?x=1&y=/?#part",
            "dml+exec://dml-exec-repl/run?v=2",
            "urn:isbn:0451450523",
            "file:///etc/passwd",
            "http://[::1]:80/",
            "mailto:a@b.c",
        ] {
            assert_eq!(Uri::new(good).map(|uri| uri.to_string()), Ok(good.to_owned()));
        }
        for (bad, why) in [
            ("", BadUri::Scheme),
            ("no scheme", BadUri::Scheme),
            ("HTTP://example.org", BadUri::Scheme),
            ("1a:b", BadUri::Scheme),
            ("http://Example.org/", BadUri::Host),
            ("http://a:b/", BadUri::Host),
            ("http://[::1/", BadUri::Host),
            ("http://a/%7Euser", BadUri::Percent),
            ("http://a/%2f", BadUri::Percent),
            ("http://a/%2", BadUri::Percent),
            ("http://a/b c", BadUri::Character),
            ("http://a/é", BadUri::Character),
            ("http://a/#b#c", BadUri::Character),
            ("http://a/[b]", BadUri::Character),
            ("http://a/./b", BadUri::Dots),
            ("http://a/b/..", BadUri::Dots),
            ("dml://list/construct", BadUri::Reserved),
            ("dml:x", BadUri::Reserved),
        ] {
            assert_eq!(Uri::new(bad), Err(why), "{bad}");
        }
        assert_eq!(Uri::new(format!("a:{}", "x".repeat(MAX_URI_BYTES))), Err(BadUri::TooLong));
    }

    #[test]
    fn a_blob_is_a_uri_with_hash_and_size() {
        let blob = Blob::of(b"contents");
        assert_eq!(blob.bytes, 8);
        assert_eq!(blob.uri().blob(), Some(blob));
        assert_eq!(Uri::new(blob.uri().as_str()), Ok(blob.uri()));
        for other in ["blake3:ab?size=1", "https://a/", &format!("blake3:{}?size=01", blob.hash)] {
            assert_eq!(Uri::new(other).unwrap().blob(), None, "{other}");
        }
    }
}
