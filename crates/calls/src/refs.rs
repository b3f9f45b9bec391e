//! Refs, the only mutable things: a name that points to a commit, changed by compare-and-swap on that one ref.

use crate::id::{CommitId, Id};
use crate::name::Name;
use std::fmt;
use std::str::FromStr;

/// Which ref. Shown as the key it is stored under: `refs/heads/main`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RefName {
    /// A branch: history that people keep.
    Head(Name),
    /// Where an Executor pins.
    Index(Uuid),
    /// The snapshot of one execution, which its worker fast-forwards to the result.
    Exec(Uuid),
    /// The claim of one execution key.
    Claim(Id),
    /// What a remote's head was when it was last seen. Never written by its readers.
    Remote { remote: Name, head: Name },
}

/// A UUID in its usual spelling, lower case.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Uuid(String);

impl Uuid {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Uuid {
    /// The same for the same text.
    pub fn derived(from: &str) -> Uuid {
        let id = crate::Id::of(from.as_bytes()).to_string();
        Uuid(format!("{}-{}-{}-{}-{}", &id[..8], &id[8..12], &id[12..16], &id[16..20], &id[20..32]))
    }
}

impl FromStr for Uuid {
    type Err = BadRef;
    fn from_str(text: &str) -> Result<Uuid, BadRef> {
        let dash = |at| matches!(at, 8 | 13 | 18 | 23);
        let good = |(at, c): (usize, u8)| if dash(at) { c == b'-' } else { matches!(c, b'0'..=b'9' | b'a'..=b'f') };
        let whole = text.len() == 36 && text.bytes().enumerate().all(good);
        if whole {
            Ok(Uuid(text.to_owned()))
        } else {
            Err(BadRef { text: text.to_owned(), why: "not a UUID in lower case" })
        }
    }
}

impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not the name of a ref: {why}")]
pub struct BadRef {
    pub text: String,
    pub why: &'static str,
}

impl fmt::Display for RefName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RefName::Head(name) => write!(f, "refs/heads/{}", name.encoded()),
            RefName::Index(uuid) => write!(f, "refs/index/{uuid}"),
            RefName::Exec(uuid) => write!(f, "refs/exec/{uuid}"),
            RefName::Claim(key) => write!(f, "refs/exec-claims/{key}"),
            RefName::Remote { remote, head } => write!(f, "refs/remotes/{}/{}", remote.encoded(), head.encoded()),
        }
    }
}

impl FromStr for RefName {
    type Err = BadRef;
    /// Reads exactly what `Display` writes: a key has one spelling, and no part of it leads out of its folder.
    fn from_str(text: &str) -> Result<RefName, BadRef> {
        let bad = |why| BadRef { text: text.to_owned(), why };
        let name = |part: &str| Name::decoded(part).ok_or_else(|| bad("a name is encoded as %XX, at most 255 bytes"));
        let parts: Vec<&str> = text.split('/').collect();
        match parts[..] {
            ["refs", "heads", head] => Ok(RefName::Head(name(head)?)),
            ["refs", "index", uuid] => Ok(RefName::Index(uuid.parse()?)),
            ["refs", "exec", uuid] => Ok(RefName::Exec(uuid.parse()?)),
            ["refs", "exec-claims", key] => {
                Ok(RefName::Claim(key.parse().map_err(|_| bad("an execution key has 64 digits of 0-9a-f"))?))
            }
            ["refs", "remotes", remote, head] => Ok(RefName::Remote { remote: name(remote)?, head: name(head)? }),
            _ => Err(bad("refs are refs/heads/…, refs/index/…, refs/exec/…, refs/exec-claims/… and refs/remotes/…/…")),
        }
    }
}

/// A change of one ref, possible only while it is what the writer saw.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Swap {
    /// None: the ref must not exist.
    pub expect: Option<CommitId>,
    /// None: the ref is deleted.
    pub to: Option<CommitId>,
}

/// The ref is not what the writer saw: read it again, and decide again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the ref was changed meanwhile: it is {}", .0.map_or("gone".to_owned(), |id| id.to_string()))]
pub struct Moved(pub Option<CommitId>);

impl Swap {
    /// What the ref is afterwards.
    pub fn apply(&self, current: Option<CommitId>) -> Result<Option<CommitId>, Moved> {
        if current == self.expect { Ok(self.to) } else { Err(Moved(current)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ref_has_one_spelling() {
        let uuid = "0b9f1f5e-6f0d-4a53-8f5b-3d3f4f2b1a00";
        let key = "ab".repeat(32);
        for good in [
            "refs/heads/main".to_owned(),
            "refs/heads/team%2Fx".to_owned(),
            format!("refs/index/{uuid}"),
            format!("refs/exec/{uuid}"),
            format!("refs/exec-claims/{key}"),
            "refs/remotes/origin/main".to_owned(),
        ] {
            assert_eq!(good.parse::<RefName>().map(|name| name.to_string()), Ok(good));
        }
        for bad in [
            "refs/heads/",
            "refs/heads/..",
            "refs/heads/a/b",
            "refs/heads/a%2fb",
            "refs/heads/../../etc/passwd",
            "refs/index/main",
            "refs/index/0B9F1F5E-6F0D-4A53-8F5B-3D3F4F2B1A00",
            "refs/exec/0b9f1f5e",
            "refs/exec-claims/ab",
            "refs/remotes/origin",
            "refs/tags/a",
            "heads/main",
            "",
        ] {
            assert!(bad.parse::<RefName>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_ref_changes_only_from_what_the_writer_saw() {
        let [a, b, c] = [1, 2, 3].map(|byte| Some(CommitId(Id([byte; 32]))));
        let table = [
            (None, None, a, Ok(a)),
            (a, a, b, Ok(b)),
            (a, a, None, Ok(None)),
            (b, a, c, Err(Moved(b))),
            (a, None, b, Err(Moved(a))),
            (None, a, b, Err(Moved(None))),
        ];
        for (current, expect, to, result) in table {
            assert_eq!(Swap { expect, to }.apply(current), result);
        }
    }
}
