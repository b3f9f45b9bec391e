//! Ledger arithmetic: what an entry does to a balance. Amounts are positive; the type gives the sign.

use crate::{Credits, OrgId, Refused, RunId, string_enum};
use serde::{Deserialize, Serialize};

string_enum! {
    pub enum EntryKind { Topup = "topup", Reserve = "reserve", Charge = "charge", Refund = "refund", Adjust = "adjust" }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    pub org: OrgId,
    pub kind: EntryKind,
    pub amount: Credits,
    pub run: Option<RunId>,
    pub attempt: Option<i64>,
    /// Says once and for all what this movement is for: a second entry of the same kind and key is refused.
    pub key: String,
    /// A charge for a hold or idle time draws on what is available; a run's draws on its reservation.
    pub from_available: bool,
    pub memo: String,
}

impl Entry {
    pub fn new(org: OrgId, kind: EntryKind, amount: Credits, key: impl Into<String>) -> Entry {
        let (key, memo) = (key.into(), String::new());
        Entry { org, kind, amount, run: None, attempt: None, key, from_available: false, memo }
    }
    pub fn of(mut self, run: RunId, attempt: i64) -> Entry {
        (self.run, self.attempt) = (Some(run), Some(attempt));
        self
    }
    pub fn memo(mut self, memo: impl Into<String>) -> Entry {
        self.memo = memo.into();
        self
    }
    /// A charge that no reservation covers: the org's own time. An adjustment downwards.
    pub fn from_available(mut self) -> Entry {
        self.from_available = true;
        self
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Balance {
    pub available: Credits,
    pub reserved: Credits,
}

impl Balance {
    /// The balance after the entry, or why there cannot be one.
    pub fn after(self, entry: &Entry) -> Result<Balance, Refused> {
        debug_assert!(entry.amount >= Credits::ZERO, "the type gives the sign");
        let next = self.moved(entry);
        if next.available < Credits::ZERO {
            return Err(Refused::Unaffordable { needed: entry.amount, available: self.available });
        }
        assert!(next.reserved >= Credits::ZERO, "more was charged or refunded than reserved: {entry:?}");
        Ok(next)
    }

    /// The sums after the entry, also where there may be no such entry: the audit reads ledgers that may be damaged.
    pub fn moved(self, entry: &Entry) -> Balance {
        let Balance { available, reserved } = self;
        let amount = entry.amount;
        match (entry.kind, entry.from_available) {
            (EntryKind::Topup, _) => Balance { available: available + amount, reserved },
            (EntryKind::Reserve, _) => Balance { available: available - amount, reserved: reserved + amount },
            (EntryKind::Charge, true) | (EntryKind::Adjust, true) => {
                Balance { available: available - amount, reserved }
            }
            (EntryKind::Charge, false) => Balance { available, reserved: reserved - amount },
            (EntryKind::Refund, _) => Balance { available: available + amount, reserved: reserved - amount },
            (EntryKind::Adjust, false) => Balance { available: available + amount, reserved },
        }
    }
}
