//! Ids of objects: the BLAKE3-256 hash of a record's bytes, of which the first three are its type and version.
//! Shown in 64 hexadecimal digits; people may write the first few if these are unique.

use crate::object::Kind;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// The hash of a record, whatever its kind.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Id(pub [u8; 32]);

impl Id {
    pub const BYTES: usize = 32;

    /// The id of a record, from all of its bytes.
    pub fn of(record: &[u8]) -> Id {
        Id(*blake3::hash(record).as_bytes())
    }
    /// The digit at a depth of the exec map's trie, 0 … 15.
    pub fn nibble(&self, depth: usize) -> usize {
        let byte = self.0[depth / 2];
        usize::from(if depth.is_multiple_of(2) { byte >> 4 } else { byte & 0xf })
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}
impl fmt::Debug for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A text that is no id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not an id: {expected} digits of 0-9a-f")]
pub struct BadId {
    pub text: String,
    pub expected: &'static str,
}

impl FromStr for Id {
    type Err = BadId;
    fn from_str(text: &str) -> Result<Id, BadId> {
        let whole = Prefix::from_str(text).ok().filter(|_| text.len() == 64);
        whole.map(|prefix| prefix.low).ok_or_else(|| BadId { text: text.to_owned(), expected: "64" })
    }
}
impl Serialize for Id {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}
impl<'de> Deserialize<'de> for Id {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        String::deserialize(d)?.parse().map_err(serde::de::Error::custom)
    }
}

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident $kind:ident)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub Id);

        impl $name {
            pub const KIND: Kind = Kind::$kind;
            pub fn of(record: &[u8]) -> $name { $name(Id::of(record)) }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result { fmt::Display::fmt(&self.0, f) }
        }
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result { fmt::Display::fmt(&self.0, f) }
        }
        impl FromStr for $name {
            type Err = BadId;
            fn from_str(text: &str) -> Result<Self, BadId> { text.parse().map($name) }
        }
        impl From<$name> for Reference {
            fn from(id: $name) -> Reference { Reference { kind: Kind::$kind, id: id.0 } }
        }
    )*};
}

ids! {
    /// A value.
    DatumId Datum
    /// A literal, a call, an import or a builtin.
    NodeId Node
    DagId Dag
    TreeId Tree
    CommitId Commit
    ExecId Exec
    /// One node of the exec map's trie.
    ExecMapId ExecMap
}

/// An object as another one, or a ref, names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Reference {
    pub kind: Kind,
    pub id: Id,
}

impl fmt::Display for Reference {
    /// The key it is stored under: `objects/datums/<id>`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "objects/{}s/{}", self.kind, self.id)
    }
}

impl FromStr for Reference {
    type Err = BadId;
    fn from_str(text: &str) -> Result<Reference, BadId> {
        let bad = || BadId { text: text.to_owned(), expected: "objects/<kind>s/ and 64" };
        let (kind, id) = text.strip_prefix("objects/").and_then(|rest| rest.split_once('/')).ok_or_else(bad)?;
        let kind = Kind::ALL.iter().find(|known| kind.strip_suffix('s') == Some(known.as_str())).ok_or_else(bad)?;
        Ok(Reference { kind: *kind, id: id.parse()? })
    }
}

/// The first digits of an id, as a person writes them: all ids from `low` to `high`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Prefix {
    pub low: Id,
    pub high: Id,
}

/// Fewer digits would name half of a small repository.
pub const MIN_PREFIX: usize = 4;

impl FromStr for Prefix {
    type Err = BadId;
    fn from_str(text: &str) -> Result<Prefix, BadId> {
        let digit = |c: u8| matches!(c, b'0'..=b'9' | b'a'..=b'f').then(|| (c as char).to_digit(16).unwrap_or(0) as u8);
        let digits: Option<Vec<u8>> = text.bytes().map(digit).collect();
        let digits = digits.filter(|digits| (MIN_PREFIX..=64).contains(&digits.len()));
        let digits = digits.ok_or_else(|| BadId { text: text.to_owned(), expected: "4 to 64" })?;
        let filled = |with: u8| {
            let nibble = |at: usize| digits.get(at).copied().unwrap_or(with);
            Id(std::array::from_fn(|at| nibble(2 * at) << 4 | nibble(2 * at + 1)))
        };
        Ok(Prefix { low: filled(0), high: filled(0xf) })
    }
}

/// What some digits name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found {
    One(Id),
    None,
    /// The first two of them, to show.
    Several(Id, Id),
}

impl Prefix {
    pub fn covers(&self, id: Id) -> bool {
        (self.low..=self.high).contains(&id)
    }

    /// Which of these it names. The same id may come more than once.
    pub fn pick(&self, ids: impl IntoIterator<Item = Id>) -> Found {
        let mut found = Found::None;
        for id in ids.into_iter().filter(|id| self.covers(*id)) {
            match found {
                Found::None => found = Found::One(id),
                Found::One(first) if first != id => return Found::Several(first, id),
                _ => {}
            }
        }
        found
    }
}

/// The fewest digits, at least eight, that tell an id from its neighbours in the sorted list of all ids.
pub fn shortened(id: Id, neighbours: &[Id]) -> String {
    let common = |other: &Id| (0..64).take_while(|depth| id.nibble(*depth) == other.nibble(*depth)).count();
    let longest = neighbours.iter().filter(|other| **other != id).map(common).max().unwrap_or(0);
    id.to_string()[..(longest + 1).clamp(8, 64)].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(text: &str) -> Id {
        format!("{text:0<64}").parse().unwrap()
    }

    #[test]
    fn an_id_may_be_shortened_while_it_is_unique() {
        let all = [id("abcd1234"), id("abcd9"), id("ffff")];
        let pick = |text: &str| text.parse::<Prefix>().unwrap().pick(all);
        assert_eq!(pick("abcd1"), Found::One(all[0]));
        assert_eq!(pick("abcd"), Found::Several(all[0], all[1]));
        assert_eq!(pick("0123"), Found::None);
        assert_eq!(pick(&all[2].to_string()), Found::One(all[2]));
        for bad in ["abc", "ABCD", "abcg", "", &"a".repeat(65)] {
            assert!(bad.parse::<Prefix>().is_err(), "{bad}");
        }
        assert!("abcd".parse::<Id>().is_err(), "a prefix is no id");
    }

    #[test]
    fn the_shown_digits_are_enough_to_find_it_again() {
        let all = [id("abcdef0123"), id("abcdef0124"), id("ff")];
        assert_eq!(shortened(all[0], &all), "abcdef0123");
        assert_eq!(shortened(all[2], &all), "ff000000");
        for one in all {
            assert_eq!(shortened(one, &all).parse::<Prefix>().unwrap().pick(all), Found::One(one));
        }
    }

    #[test]
    fn a_reference_reads_as_the_key_it_is_stored_under() {
        let reference = Reference { kind: Kind::ExecMap, id: id("ab") };
        assert_eq!(reference.to_string(), format!("objects/execmaps/{}", id("ab")));
        for kind in Kind::ALL {
            let reference = Reference { kind: *kind, id: id("cd") };
            assert_eq!(reference.to_string().parse(), Ok(reference));
        }
        for bad in ["objects/refs/ab", "objects/datums/ab", "datums/ab", "objects/datum/ab"] {
            assert!(bad.parse::<Reference>().is_err(), "{bad}");
        }
    }
}
