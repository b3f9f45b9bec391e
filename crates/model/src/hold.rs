//! How long a finished allocation is kept, and by how much that may be prolonged. Shortened only when a user asks.

use crate::bug;
use crate::time::{HOUR, MINUTE};
use crate::{Credits, Refused, Timestamp};
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hold {
    pub until: Timestamp,
    pub completed_at: Timestamp,
}

/// What the extensions of one hold set aside, used and gave back. At the end of the hold `charged + refunded = reserved`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub struct HoldAccount {
    pub reserved: Credits,
    pub charged: Credits,
    pub refunded: Credits,
    /// The time that was set aside for begins here: where the hold would have ended without any extension.
    pub from: Option<Timestamp>,
}

impl HoldAccount {
    pub fn left(&self) -> Credits {
        self.reserved - self.charged - self.refunded
    }
    pub fn reserved(mut self, amount: Credits, from: Timestamp) -> HoldAccount {
        self.reserved = self.reserved + amount;
        self.from = self.from.or(Some(from));
        self
    }
    /// As much of it as was set aside: the amount that is charged, and the account after it.
    pub fn charged(mut self, asked: Credits) -> (Credits, HoldAccount) {
        let amount = asked.min(self.left());
        self.charged = self.charged + amount;
        (amount, self)
    }
    /// The hold is over: what goes back, and the account after it.
    pub fn closed(mut self) -> (Credits, HoldAccount) {
        let rest = self.left();
        self.refunded = self.refunded + rest;
        (rest, self)
    }
}

/// The longest hold that a run may ask for.
pub const MAX_HOLD_MS: i64 = crate::time::DAY;

/// `[holds]` in the settings.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HoldLimits {
    pub default_debug_hold_ms: i64,
    pub failure_debug_hold_ms: i64,
    /// A slot that failed on a machine that answers (files that could not be brought, a dead keeper) is held like one whose command failed.
    pub hold_on_failure: bool,
    pub ssh_extension_ms: i64,
    pub max_ssh_extension_ms: i64,
    pub explicit_extension_ms: i64,
    pub max_explicit_extension_ms: i64,
    pub absolute_max_debug_hold_ms: i64,
}

impl Default for HoldLimits {
    fn default() -> Self {
        HoldLimits {
            default_debug_hold_ms: 5 * MINUTE,
            failure_debug_hold_ms: 15 * MINUTE,
            hold_on_failure: false,
            ssh_extension_ms: 5 * MINUTE,
            max_ssh_extension_ms: 2 * HOUR,
            explicit_extension_ms: 30 * MINUTE,
            max_explicit_extension_ms: 8 * HOUR,
            absolute_max_debug_hold_ms: 24 * HOUR,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extension {
    Ssh,
    /// `repl extend`, without a duration.
    Asked,
    /// `repl extend ALC 2h`.
    AskedFor {
        ms: i64,
    },
}

impl HoldLimits {
    pub fn after(&self, clean_exit: bool, asked_ms: Option<i64>) -> i64 {
        let by_outcome = if clean_exit { self.default_debug_hold_ms } else { self.failure_debug_hold_ms };
        asked_ms.unwrap_or(by_outcome).min(self.absolute_max_debug_hold_ms)
    }

    /// `max(hold_until, min(now + extension, completed_at + cap))`.
    pub fn extended(&self, hold: Hold, by: Extension, now: Timestamp) -> Timestamp {
        let (ms, cap) = match by {
            Extension::Ssh => (self.ssh_extension_ms, self.max_ssh_extension_ms),
            Extension::Asked => (self.explicit_extension_ms, self.max_explicit_extension_ms),
            Extension::AskedFor { ms } => (ms, self.absolute_max_debug_hold_ms),
        };
        let asked = (now + ms).min(hold.completed_at + cap);
        if bug!(hold_shortened) { asked } else { hold.until.max(asked) }
    }

    /// The ordering chain of the settings, checked at start-up.
    pub fn check(&self) -> Result<(), Refused> {
        let chain = [
            ("default_debug_hold_ms", self.default_debug_hold_ms),
            ("max_ssh_extension_ms", self.max_ssh_extension_ms),
            ("max_explicit_extension_ms", self.max_explicit_extension_ms),
            ("absolute_max_debug_hold_ms", self.absolute_max_debug_hold_ms),
        ];
        for pair in chain.windows(2) {
            if pair[0].1 > pair[1].1 {
                return Err(Refused::invalid(
                    format!("holds.{}", pair[0].0),
                    format!("must not be larger than holds.{}", pair[1].0),
                ));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hold_is_prolonged_up_to_its_cap_and_never_shortened() {
        let limits = HoldLimits::default();
        let hold = Hold { until: Timestamp(5 * MINUTE), completed_at: Timestamp(0) };
        let table = [
            (Extension::Asked, 0, 30 * MINUTE),
            (Extension::Asked, 8 * HOUR, 8 * HOUR),
            (Extension::Asked, 9 * HOUR, 8 * HOUR),
            (Extension::Ssh, 0, 5 * MINUTE),
            (Extension::Ssh, 2 * HOUR, 2 * HOUR),
            (Extension::AskedFor { ms: 48 * HOUR }, 0, 24 * HOUR),
            (Extension::AskedFor { ms: MINUTE }, 0, 5 * MINUTE),
        ];
        for (by, now, until) in table {
            assert_eq!(limits.extended(hold, by, Timestamp(now)), Timestamp(until), "{by:?} at {now}");
        }
    }
}
