//! Ledger arithmetic: what an entry does to a balance, and how rows are chained. Amounts are positive; the type gives the sign.

use crate::{Credits, OrgId, Refused, RunId, Timestamp, words};
use serde::{Deserialize, Serialize};

words! {
    pub enum EntryKind { Topup = "topup", Reserve = "reserve", Charge = "charge", Refund = "refund", Adjust = "adjust" }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    pub org: OrgId,
    pub kind: EntryKind,
    pub amount: Credits,
    pub run: Option<RunId>,
    pub attempt: Option<i64>,
    pub key: String,
    /// A charge for a hold or idle time draws on what is available; a run's draws on its reservation.
    pub from_available: bool,
    pub memo: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Balance {
    pub available: Credits,
    pub reserved: Credits,
}

impl Balance {
    /// The balance after the entry, or why there cannot be one.
    pub fn after(self, entry: &Entry) -> Result<Balance, Refused> {
        let Balance { available, reserved } = self;
        let amount = entry.amount;
        debug_assert!(amount >= Credits::ZERO, "the type gives the sign");
        let next = match (entry.kind, entry.from_available) {
            (EntryKind::Topup, _) => Balance { available: available + amount, reserved },
            (EntryKind::Reserve, _) => Balance { available: available - amount, reserved: reserved + amount },
            (EntryKind::Charge, true) | (EntryKind::Adjust, true) => {
                Balance { available: available - amount, reserved }
            }
            (EntryKind::Charge, false) => Balance { available, reserved: reserved - amount },
            (EntryKind::Refund, _) => Balance { available: available + amount, reserved: reserved - amount },
            (EntryKind::Adjust, false) => Balance { available: available + amount, reserved },
        };
        if next.available < Credits::ZERO {
            return Err(Refused::Unaffordable { needed: amount, available });
        }
        assert!(next.reserved >= Credits::ZERO, "more was charged or refunded than reserved: {entry:?}");
        Ok(next)
    }
}

/// The text whose hash the next row carries: every field that must not change unseen.
pub fn chained(previous_hash: &str, seq: i64, entry: &Entry, at: Timestamp) -> String {
    let run = entry.run.map(|r| r.to_string()).unwrap_or_default();
    let attempt = entry.attempt.unwrap_or(0);
    format!(
        "{previous_hash}|{}|{seq}|{}|{}|{}|{run}|{attempt}|{}|{}",
        entry.org,
        entry.kind,
        entry.amount.micro(),
        entry.from_available,
        entry.key,
        at.ms()
    )
}
