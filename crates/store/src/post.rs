//! A statement nobody waits for: PostgreSQL gets it together with the next one somebody waits for, SQLite at once. What its
//! answer means is said beforehand. Never reordered, never left out of the commit.

use crate::sql::LockOrder;
use crate::value::Value;
use model::{Failure, Refused};
use std::borrow::Cow;

pub(crate) struct Posted {
    pub(crate) text: Cow<'static, str>,
    pub(crate) order: LockOrder,
    pub(crate) args: Vec<Value>,
    pub(crate) meaning: Meaning,
}

/// What an answer means beyond success; nothing, unless said.
#[derive(Default)]
pub(crate) struct Meaning {
    no_row: Option<Failure>,
    /// A row we hold the lock of: its absence would be a bug, so the commit need not wait for this answer.
    certain: bool,
    conflict: Option<Refused>,
}

impl Meaning {
    /// No row changed: that is this failure.
    pub(crate) fn no_row(failure: impl Into<Failure>) -> Meaning {
        Meaning { no_row: Some(failure.into()), ..Meaning::default() }
    }

    /// Nobody else can have changed the row meanwhile.
    pub(crate) fn certain(self, certain: bool) -> Meaning {
        Meaning { certain, ..self }
    }

    /// It was there already: that is this refusal.
    pub(crate) fn conflict(refused: Refused) -> Meaning {
        Meaning { conflict: Some(refused), ..Meaning::default() }
    }

    /// Whether the answer could still stop the commit although the database has nothing against it.
    pub(crate) fn may_stop_the_commit(&self) -> bool {
        self.no_row.is_some() && !self.certain
    }

    pub(crate) fn judge(self, changed: Result<u64, Failure>) -> Result<(), Failure> {
        match (changed, self.no_row, self.conflict) {
            (Ok(0), Some(failure), _) => Err(failure),
            (Err(Failure::Refused(Refused::Conflict { .. })), _, Some(refused)) => Err(refused.into()),
            (changed, _, _) => changed.map(drop),
        }
    }
}
