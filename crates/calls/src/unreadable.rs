//! Why a record could not be read. Five codes for programs, and for people the record's type and what exactly was wrong with it.

use std::fmt;

/// The five codes of a read error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Code {
    /// The first three bytes do not announce a record of a known type and version.
    InvalidHeader,
    /// Something is too short or too long: a count, a length, the record itself.
    InvalidBounds,
    /// A type or a kind that may not stand here.
    InvalidKind,
    /// Well-formed, and not the canonical form of any value.
    InvalidPayload,
    /// Text that is not UTF-8, or not in Unicode normalization form C.
    InvalidUtf8,
}

impl Code {
    pub const ALL: &'static [Code] =
        &[Code::InvalidHeader, Code::InvalidBounds, Code::InvalidKind, Code::InvalidPayload, Code::InvalidUtf8];

    pub const fn as_str(self) -> &'static str {
        match self {
            Code::InvalidHeader => "invalid_header",
            Code::InvalidBounds => "invalid_bounds",
            Code::InvalidKind => "invalid_kind",
            Code::InvalidPayload => "invalid_payload",
            Code::InvalidUtf8 => "invalid_utf8",
        }
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// A record that is not what it should be. Shown as `invalid_payload: record_type=datum;detail=set_not_sorted`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{code}: record_type={record};detail={detail}")]
pub struct Unreadable {
    pub code: Code,
    /// `datum`, `node`, …; `unknown` if the header does not say.
    pub record: &'static str,
    /// One stable word per check.
    pub detail: &'static str,
}

/// What is wrong with some bytes, before it is known of which record they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Flaw(pub Code, pub &'static str);

impl Flaw {
    pub fn of(self, record: &'static str) -> Unreadable {
        Unreadable { code: self.0, record, detail: self.1 }
    }
}

pub(crate) const fn bounds(detail: &'static str) -> Flaw {
    Flaw(Code::InvalidBounds, detail)
}
pub(crate) const fn kind(detail: &'static str) -> Flaw {
    Flaw(Code::InvalidKind, detail)
}
pub(crate) const fn payload(detail: &'static str) -> Flaw {
    Flaw(Code::InvalidPayload, detail)
}
pub(crate) const fn text(detail: &'static str) -> Flaw {
    Flaw(Code::InvalidUtf8, detail)
}
