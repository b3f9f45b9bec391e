//! Identities. Inside they are `i64`; outside they are a prefix and a base-36 slug (`run_9ix` is run 12345).
//! Never invents an id: numbers come from the store.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// An id text that could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not an id of the form {expected}_<slug>")]
pub struct BadId {
    pub text: String,
    pub expected: &'static str,
}

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident $prefix:literal)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub i64);

        impl $name {
            pub const PREFIX: &'static str = $prefix;
            pub fn slug(self) -> String { slug(self.0) }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result { f.write_str(Spelt::id($prefix, self.0).as_str()) }
        }
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result { fmt::Display::fmt(self, f) }
        }
        impl FromStr for $name {
            type Err = BadId;
            fn from_str(text: &str) -> Result<Self, BadId> {
                let bad = || BadId { text: text.to_owned(), expected: $prefix };
                read(text, $prefix).map($name).ok_or_else(bad)
            }
        }
        impl Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
                s.serialize_str(Spelt::id($prefix, self.0).as_str())
            }
        }
        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
                d.deserialize_str(Spelling($prefix)).map($name)
            }
        }
    )*};
}

ids! {
    OrgId "org"
    RunId "run"
    AgentId "agt"
    TaskId "tsk"
    StepId "stp"
    /// One submission of an agent onto one instance.
    JobId "job"
    AllocationId "alc"
    InstanceId "ins"
    PoolId "pol"
    WorkflowId "wfl"
    ManifestId "mft"
    ArtifactId "art"
    SnapshotId "snp"
    /// A ticket or an approval.
    QuestionId "qst"
    /// What a provider lists and no row knows.
    OrphanId "orp"
    TokenId "tok"
    /// What a person says to an agent.
    MessageId "msg"
    /// An execution of a call.
    CallId "cal"
}

/// Base 36, lower case, no padding: the shortest name that survives in a cloud's name field.
pub fn slug(id: i64) -> String {
    Spelt::slug(id).as_str().to_owned()
}

/// An id as it is spelt, written from its end: every document names half a dozen, so nothing is allocated for it.
struct Spelt {
    bytes: [u8; Spelt::MOST],
    from: usize,
}

impl Spelt {
    /// A prefix of three letters, `_`, and the thirteen digits of the largest number.
    const MOST: usize = 3 + 1 + 13;

    fn slug(id: i64) -> Spelt {
        debug_assert!(id >= 0, "ids are never negative");
        let (mut spelt, mut n) = (Spelt { bytes: [0; Spelt::MOST], from: Spelt::MOST }, id.unsigned_abs());
        loop {
            spelt.put(b"0123456789abcdefghijklmnopqrstuvwxyz"[(n % 36) as usize]);
            n /= 36;
            if n == 0 {
                return spelt;
            }
        }
    }

    fn id(prefix: &str, id: i64) -> Spelt {
        let mut spelt = Spelt::slug(id);
        spelt.put(b'_');
        prefix.bytes().rev().for_each(|letter| spelt.put(letter));
        spelt
    }

    fn put(&mut self, letter: u8) {
        self.from -= 1;
        self.bytes[self.from] = letter;
    }

    fn as_str(&self) -> &str {
        std::str::from_utf8(&self.bytes[self.from..]).expect("letters and digits")
    }
}

/// Reads the number of an id with this prefix.
struct Spelling(&'static str);

impl serde::de::Visitor<'_> for Spelling {
    type Value = i64;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "an id of the form {}_<slug>", self.0)
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<i64, E> {
        read(text, self.0).ok_or_else(|| E::custom(BadId { text: text.to_owned(), expected: self.0 }))
    }
}

fn read(text: &str, prefix: &str) -> Option<i64> {
    text.strip_prefix(prefix)?.strip_prefix('_').and_then(unslug)
}

/// Reads a slug back. Upper case, signs and leading zeros are refused, so that every id has one spelling.
pub fn unslug(text: &str) -> Option<i64> {
    let plain = text.bytes().all(|b| b.is_ascii_digit() || b.is_ascii_lowercase());
    if !plain || text.is_empty() || text.len() > 13 || (text.len() > 1 && text.starts_with('0')) {
        return None;
    }
    i64::from_str_radix(text, 36).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_run_shows_its_slug() {
        assert_eq!(RunId(12345).to_string(), "run_9ix");
        assert_eq!("run_9ix".parse::<RunId>().unwrap(), RunId(12345));
        assert_eq!(serde_json::to_string(&JobId(i64::MAX)).unwrap(), "\"job_1y2p0ij32e8e7\"");
        assert_eq!(serde_json::from_str::<JobId>("\"job_1y2p0ij32e8e7\"").unwrap(), JobId(i64::MAX));
        let bad = serde_json::from_str::<RunId>("\"job_9ix\"").unwrap_err().to_string();
        assert!(bad.contains("`job_9ix` is not an id of the form run_<slug>"), "{bad}");
    }

    #[test]
    fn what_is_not_an_id_is_refused() {
        for text in ["", "run_", "run_9IX", "run_-1", "run_09", "job_9ix", "run9ix", "run_zzzzzzzzzzzzzz"] {
            assert!(text.parse::<RunId>().is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn every_id_reads_back(n in 0i64..i64::MAX) {
            prop_assert_eq!(unslug(&slug(n)), Some(n));
        }
    }
}
