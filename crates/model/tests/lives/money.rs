//! Money: whatever is asked in whatever order, nothing is negative, nothing appears or vanishes, and the rows add up to
//! what the attempt says.

use crate::samples::{self, NOW};
use model::attempt::{self, Attempt, AttemptConsequence, AttemptEvent, AttemptStatus};
use model::ledger::{Balance, Entry, EntryKind};
use model::{Credits, OrgId, Outcome, Refused, RunId};
use proptest::prelude::*;

fn entry(kind: EntryKind, amount: i64, from_available: bool) -> Entry {
    Entry {
        org: OrgId(1),
        kind,
        amount: Credits(amount),
        run: Some(RunId(1)),
        attempt: Some(1),
        key: "key".into(),
        from_available,
        memo: "memo".into(),
    }
}

fn entries() -> impl Strategy<Value = Vec<(EntryKind, i64, bool)>> {
    let kind = prop::sample::select(EntryKind::ALL.to_vec());
    prop::collection::vec((kind, 0i64..1_000, any::<bool>()), 0..60)
}

fn asked() -> impl Strategy<Value = Vec<AttemptEvent>> {
    let end = prop::sample::select(vec![AttemptStatus::Completed, AttemptStatus::Failed, AttemptStatus::Cancelled]);
    let one = prop_oneof![
        4 => (0i64..50).prop_map(|amount| AttemptEvent::Reserved(Credits(amount))),
        8 => (0i64..50).prop_map(|amount| AttemptEvent::Charged(Credits(amount))),
        1 => end.prop_map(AttemptEvent::Ended),
    ];
    prop::collection::vec(one, 0..40)
}

proptest! {
    #[test]
    fn a_balance_is_never_negative_and_nothing_is_lost(entries in entries()) {
        let mut balance = Balance::default();
        let (mut put_in, mut used) = (0, 0);
        for (kind, amount, from_available) in entries {
            // No event charges or gives back what was not set aside: attempts see to that.
            let bounded = matches!((kind, from_available), (EntryKind::Charge, false) | (EntryKind::Refund, _));
            let amount = if bounded { amount.min(balance.reserved.micro()) } else { amount };
            match balance.after(&entry(kind, amount, from_available)) {
                Ok(next) => {
                    balance = next;
                    match (kind, from_available) {
                        (EntryKind::Topup, _) | (EntryKind::Adjust, false) => put_in += amount,
                        (EntryKind::Charge, _) | (EntryKind::Adjust, true) => used += amount,
                        (EntryKind::Reserve | EntryKind::Refund, _) => {}
                    }
                }
                Err(refused) => {
                    let short = Refused::Unaffordable { needed: Credits(amount), available: balance.available };
                    prop_assert_eq!(refused, short);
                }
            }
            prop_assert!(balance.available >= Credits::ZERO && balance.reserved >= Credits::ZERO);
            prop_assert_eq!(balance.available.micro() + balance.reserved.micro(), put_in - used);
        }
    }

    #[test]
    fn an_attempt_charges_no_more_than_it_reserved_and_gives_the_rest_back(events in asked()) {
        let mut it = samples::attempt();
        let (mut reserved, mut charged, mut refunded) = (0, 0, 0);
        let mut asked = 0;
        for event in events {
            let Ok(Outcome::Moved { next, consequences }) = attempt::apply(&it, &event, NOW) else {
                prop_assert!(it.status != AttemptStatus::Open, "an open attempt refuses nothing");
                continue;
            };
            it = next;
            for row in consequences {
                let (sum, amount) = match row {
                    AttemptConsequence::Reserve(amount) => (&mut reserved, amount),
                    AttemptConsequence::Charge(amount) => (&mut charged, amount),
                    AttemptConsequence::Refund(amount) => (&mut refunded, amount),
                };
                prop_assert!(amount > Credits::ZERO, "zero amounts write no row");
                *sum += amount.micro();
            }
            if let AttemptEvent::Charged(amount) = event {
                asked += amount.micro();
            }
            prop_assert_eq!((reserved, charged, refunded), (it.reserved.micro(), it.charged.micro(), it.refunded.micro()));
            prop_assert!(it.charged <= it.reserved);
            prop_assert!(charged + it.uncollected.micro() >= asked, "what was used is charged or on record");
            if it.status != AttemptStatus::Open {
                prop_assert_eq!(charged + refunded, reserved);
            }
        }
    }
}

#[test]
fn a_completed_attempt_costs_something_if_it_can() {
    let table = [
        (AttemptStatus::Completed, 5, 0, 1),
        (AttemptStatus::Completed, 5, 3, 3),
        (AttemptStatus::Completed, 0, 0, 0),
        (AttemptStatus::Failed, 5, 0, 0),
        (AttemptStatus::Cancelled, 5, 2, 2),
    ];
    for (status, reserved, charged, expected) in table {
        let open = Attempt { reserved: Credits(reserved), charged: Credits(charged), ..samples::attempt() };
        let Ok(Outcome::Moved { next, .. }) = attempt::apply(&open, &AttemptEvent::Ended(status), NOW) else {
            panic!("an open attempt can end")
        };
        assert_eq!(next.charged, Credits(expected), "{status} with {reserved} reserved and {charged} charged");
    }
}
