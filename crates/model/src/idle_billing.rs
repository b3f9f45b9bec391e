//! Which account pays for a machine on which no job runs: the hold that keeps it longest, else its org as warm idle time.
//! Every millisecond is paid once. Whether such time is free is not decided here: the provider says so.

use crate::{AllocationId, Credits, Timestamp};

/// A hold on the machine, as far as money is concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Holder {
    pub allocation: AllocationId,
    pub until: Timestamp,
    /// From here on an extension has set credits aside for it.
    pub reserved_from: Option<Timestamp>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Payer {
    /// From what the org has available.
    Hold(AllocationId),
    /// From what an extension of this hold set aside.
    Extension(AllocationId),
    /// No hold: warm idle time, charged to the org's available credits.
    Idle,
}

/// A span of time and whose it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    pub payer: Payer,
    pub from: Timestamp,
    pub to: Timestamp,
}

impl Span {
    pub fn price(&self, hourly: Credits) -> Credits {
        hourly.per_hour_for(self.to.since(self.from))
    }
}

/// Who pays at this moment.
pub fn payer(holders: &[Holder], at: Timestamp) -> Payer {
    let longest = holders.iter().filter(|h| h.until > at).max_by_key(|h| (h.until, h.allocation));
    match longest {
        Some(h) if h.reserved_from.is_some_and(|from| from <= at) => Payer::Extension(h.allocation),
        Some(h) => Payer::Hold(h.allocation),
        None => Payer::Idle,
    }
}

/// The time from `from` to `to`, cut where the payer changes.
pub fn spans(holders: &[Holder], from: Timestamp, to: Timestamp) -> Vec<Span> {
    let mut cuts: Vec<Timestamp> = holders.iter().flat_map(|h| [Some(h.until), h.reserved_from]).flatten().collect();
    cuts.retain(|cut| *cut > from && *cut < to);
    cuts.sort();
    cuts.push(to);
    let (mut spans, mut begins) = (Vec::<Span>::new(), from);
    for ends in cuts.into_iter().filter(|ends| *ends > from) {
        let payer = payer(holders, begins);
        match spans.last_mut() {
            Some(last) if last.payer == payer => last.to = ends,
            _ if ends > begins => spans.push(Span { payer, from: begins, to: ends }),
            _ => {}
        }
        begins = ends;
    }
    spans
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn holder(id: i64, until: i64, reserved_from: Option<i64>) -> Holder {
        Holder { allocation: AllocationId(id), until: Timestamp(until), reserved_from: reserved_from.map(Timestamp) }
    }

    #[test]
    fn each_moment_has_one_payer() {
        let (a, b) = (AllocationId(1), AllocationId(2));
        let table = [
            (vec![], vec![(Payer::Idle, 100, 200)]),
            (vec![holder(1, 300, None)], vec![(Payer::Hold(a), 100, 200)]),
            (vec![holder(1, 150, None)], vec![(Payer::Hold(a), 100, 150), (Payer::Idle, 150, 200)]),
            (vec![holder(1, 300, Some(150))], vec![(Payer::Hold(a), 100, 150), (Payer::Extension(a), 150, 200)]),
            (
                vec![holder(1, 150, None), holder(2, 180, None)],
                vec![(Payer::Hold(b), 100, 180), (Payer::Idle, 180, 200)],
            ),
            (vec![holder(1, 90, Some(80)), holder(2, 100, None)], vec![(Payer::Idle, 100, 200)]),
        ];
        for (holders, expected) in table {
            let found: Vec<_> = spans(&holders, Timestamp(100), Timestamp(200))
                .into_iter()
                .map(|span| (span.payer, span.from.ms(), span.to.ms()))
                .collect();
            assert_eq!(found, expected, "{holders:?}");
        }
        assert_eq!(spans(&[], Timestamp(5), Timestamp(5)), []);
    }

    proptest! {
        /// For any holds and any cut of the time: the spans are adjacent and fill the time.
        #[test]
        fn no_time_is_paid_twice_or_never(
            holds in proptest::collection::vec((0i64..300, proptest::option::of(0i64..300)), 0..4),
            from in 0i64..200,
            ms in 1i64..200,
        ) {
            let holders: Vec<_> = holds.iter().zip(1..).map(|((until, reserved), id)| holder(id, *until, *reserved)).collect();
            let spans = spans(&holders, Timestamp(from), Timestamp(from + ms));
            prop_assert_eq!(spans.first().map(|s| s.from), Some(Timestamp(from)));
            prop_assert_eq!(spans.last().map(|s| s.to), Some(Timestamp(from + ms)));
            prop_assert!(spans.windows(2).all(|pair| pair[0].to == pair[1].from && pair[0].payer != pair[1].payer));
            for span in &spans {
                prop_assert_eq!(payer(&holders, span.from), span.payer);
                prop_assert_eq!(payer(&holders, span.to - 1), span.payer);
            }
        }
    }
}
