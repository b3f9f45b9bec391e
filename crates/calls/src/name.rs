//! Names that people give: of nodes in a dag, of dags in a tree, of heads and remotes. At most 255 bytes of UTF-8 in normalization form C.

use serde::{Deserialize, Serialize};
use std::borrow::Borrow;
use std::fmt;
use unicode_normalization::{UnicodeNormalization, is_nfc};

pub const MAX_NAME_BYTES: usize = 255;

/// Keeps what [`Name::new`] checked.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct Name(String);

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadName {
    #[error("a name is empty: give it at least one character")]
    Empty,
    #[error("a name has {bytes} bytes: at most {MAX_NAME_BYTES} are possible")]
    TooLong { bytes: usize },
    #[error("`{}` contains a control character", name.escape_debug())]
    Control { name: String },
}

impl Name {
    /// Puts the text into normalization form C, then checks it.
    pub fn new(text: &str) -> Result<Name, BadName> {
        let name = if is_nfc(text) { text.to_owned() } else { text.nfc().collect() };
        match name.len() {
            0 => Err(BadName::Empty),
            bytes if bytes > MAX_NAME_BYTES => Err(BadName::TooLong { bytes }),
            _ if name.contains(char::is_control) => Err(BadName::Control { name }),
            _ => Ok(Name(name)),
        }
    }
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The name as one segment of a key or of a path: every byte but letters, digits, `-`, `_`, `~` and inner dots as `%XX`.
    pub fn encoded(&self) -> String {
        let mut text = String::new();
        for (at, byte) in self.0.bytes().enumerate() {
            match byte {
                b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'~' => text.push(byte as char),
                // A leading dot would make `.`, `..` or a hidden file.
                b'.' if at > 0 => text.push('.'),
                _ => text.push_str(&format!("%{byte:02X}")),
            }
        }
        text
    }

    /// Reads what [`Name::encoded`] wrote, and nothing else.
    pub fn decoded(text: &str) -> Option<Name> {
        let (mut bytes, mut rest) = (Vec::new(), text.as_bytes());
        while let Some((first, after)) = rest.split_first() {
            if *first == b'%' {
                let digits = std::str::from_utf8(after.get(..2)?).ok()?;
                bytes.push(u8::from_str_radix(digits, 16).ok()?);
                rest = &after[2..];
            } else {
                bytes.push(*first);
                rest = after;
            }
        }
        let name = Name::new(std::str::from_utf8(&bytes).ok()?).ok()?;
        (name.encoded() == text).then_some(name)
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}
impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}
impl Borrow<str> for Name {
    fn borrow(&self) -> &str {
        &self.0
    }
}
impl<'de> Deserialize<'de> for Name {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        Name::new(&String::deserialize(d)?).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_normalised_and_bounded() {
        assert_eq!(Name::new("e\u{301}").unwrap().as_str(), "\u{e9}");
        assert_eq!(Name::new(""), Err(BadName::Empty));
        assert_eq!(Name::new(&"a".repeat(256)), Err(BadName::TooLong { bytes: 256 }));
        assert!(Name::new(&"a".repeat(255)).is_ok());
        assert!(Name::new("a\nb").is_err());
    }

    #[test]
    fn an_encoded_name_is_one_safe_segment_and_reads_back() {
        for (name, encoded) in [
            ("main", "main"),
            ("team/x", "team%2Fx"),
            ("..", "%2E."),
            (".git", "%2Egit"),
            ("a.b", "a.b"),
            ("50%", "50%25"),
            ("é", "%C3%A9"),
        ] {
            let name = Name::new(name).unwrap();
            assert_eq!(name.encoded(), encoded);
            assert_eq!(Name::decoded(encoded), Some(name));
        }
        for bad in ["..", "a/b", "%2f", "%41", "%", "%zz", "", "%FF"] {
            assert_eq!(Name::decoded(bad), None, "{bad}");
        }
    }
}
