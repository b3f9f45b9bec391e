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
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result { write!(f, "{}_{}", $prefix, slug(self.0)) }
        }
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result { fmt::Display::fmt(self, f) }
        }
        impl FromStr for $name {
            type Err = BadId;
            fn from_str(text: &str) -> Result<Self, BadId> {
                text.strip_prefix($prefix)
                    .and_then(|rest| rest.strip_prefix('_'))
                    .and_then(unslug)
                    .map($name)
                    .ok_or_else(|| BadId { text: text.to_owned(), expected: $prefix })
            }
        }
        impl Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> { s.collect_str(self) }
        }
        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
                String::deserialize(d)?.parse().map_err(serde::de::Error::custom)
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
    EscalationId "esc"
    TokenId "tok"
}

/// Base 36, lower case, no padding: the shortest name that survives in a cloud's name field.
pub fn slug(id: i64) -> String {
    debug_assert!(id >= 0, "ids are never negative");
    let mut n = id.unsigned_abs();
    let mut digits = Vec::with_capacity(13);
    loop {
        digits.push(char::from_digit((n % 36) as u32, 36).expect("a digit below 36"));
        n /= 36;
        if n == 0 {
            break;
        }
    }
    digits.iter().rev().collect()
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
