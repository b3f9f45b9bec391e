//! Shrinks the list of faults of a failed simulation while the same check still fails: by halves, then one by one. Runs at most
//! a given number of simulations.

use crate::sim::{Decision, Report, run_with};

/// Worlds that are lived for it at most.
const MOST_TRIES: usize = 600;

/// The world with the fewest faults that was found to break like this one; itself, if none does.
pub fn shrink(broken: &Report) -> Report {
    let wanted = broken.sort();
    fewest(broken.decisions(), |only| {
        let again = run_with(broken.seed, only);
        (again.sort() == wanted).then_some(again)
    })
    .unwrap_or_else(|| run_with(broken.seed, &broken.decisions()))
}

/// `breaks` gives what came of it if it still breaks.
fn fewest<T>(mut kept: Vec<Decision>, mut breaks: impl FnMut(&[Decision]) -> Option<T>) -> Option<T> {
    let mut best = None;
    let mut size = kept.len();
    let mut tries = 0;
    while size > 0 && tries < MOST_TRIES {
        let mut from = 0;
        let mut shrunk = false;
        while from < kept.len() && tries < MOST_TRIES {
            let without: Vec<Decision> = [&kept[..from], &kept[(from + size).min(kept.len())..]].concat();
            tries += 1;
            match breaks(&without) {
                Some(broken) => {
                    (kept, best, shrunk) = (without, Some(broken), true);
                }
                None => from += size,
            }
        }
        // What could not go before may go now that others have gone.
        size = if size == 1 && shrunk { 1 } else { size / 2 };
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::Kind;

    fn decisions(numbers: impl IntoIterator<Item = u64>) -> Vec<Decision> {
        numbers.into_iter().map(|number| Decision { kind: Kind::Lost, number }).collect()
    }

    #[test]
    fn what_is_needed_is_kept_and_nothing_else() {
        for needed in [vec![3], vec![0, 99], vec![10, 11, 60], vec![]] {
            let needed = decisions(needed);
            let breaks = |only: &[Decision]| needed.iter().all(|one| only.contains(one)).then(|| only.to_vec());
            assert_eq!(fewest(decisions(0..100), breaks), Some(needed.clone()));
        }
        assert_eq!(fewest(decisions(0..4), |_| None::<()>), None);
    }
}
