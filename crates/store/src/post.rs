//! Posted statements: the closure does not wait for their answer. PostgreSQL gets them together with the next statement that is waited
//! for, SQLite at once. `Meaning` tells in advance which answers are failures. Never reordered; the commit waits for all of them.

use crate::sql::ArgumentOrder;
use crate::value::Value;
use model::{Failure, Refused};
use std::borrow::Cow;

pub(crate) struct Posted {
    pub(crate) text: Cow<'static, str>,
    pub(crate) order: ArgumentOrder,
    pub(crate) args: Vec<Value>,
    pub(crate) meaning: Meaning,
}

/// Which answers are failures, beyond errors.
#[derive(Default)]
pub(crate) struct Meaning {
    no_row: Option<Failure>,
    /// This transaction has locked the row: its absence would be a bug, so COMMIT is sent without waiting for this answer.
    certain: bool,
    conflict: Option<Refused>,
}

impl Meaning {
    /// No row changed: that is this failure.
    pub(crate) fn no_row(failure: impl Into<Failure>) -> Meaning {
        Meaning { no_row: Some(failure.into()), ..Meaning::default() }
    }

    /// No other transaction can have changed the row meanwhile.
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
