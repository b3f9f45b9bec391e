//! How many closures share a commit. Sharing saves each of them a commit, but the first ones wait for the others: it pays only while
//! a commit takes long compared with the closures.

use std::time::Duration;

/// A group ends at either limit, so that its first caller does not wait long for the others.
pub(crate) const MOST_CLOSURES: usize = 64;
const MOST_WORK: Duration = Duration::from_millis(5);
/// Closures that arrive while a group runs are taken until it has worked for this many times the duration of a commit.
const WORTH_A_COMMIT: u32 = 2;

pub(crate) struct GroupLimit {
    most: usize,
    /// Moving average of the duration of a commit; the newest counts a quarter.
    commit_takes: Duration,
}

impl GroupLimit {
    /// `most`: closures that share a commit.
    pub(crate) fn new(most: usize) -> GroupLimit {
        GroupLimit { most, commit_takes: Duration::ZERO }
    }

    pub(crate) fn commit_took(&mut self, time: Duration) {
        self.commit_takes = (self.commit_takes * 3 + time) / 4;
    }

    /// Whether a group that has `taken` so many closures and `worked` so long takes another. `waited`: how many were queued when it began.
    ///
    /// Closures that arrive meanwhile are taken only for a short time: sixteen clients that are always answered together would also send
    /// their next requests together, and the writer would be idle in between.
    pub(crate) fn takes_more(&self, taken: usize, waited: usize, worked: Duration) -> bool {
        let enough = if taken < waited { MOST_WORK } else { MOST_WORK.min(self.commit_takes * WORTH_A_COMMIT) };
        taken == 0 || (taken < self.most && worked < enough)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_ends_when_another_share_is_not_worth_the_wait() {
        let cheap = Duration::from_micros(300);
        let dear = Duration::from_millis(4);
        for (commit_takes, taken, waited, worked_us, more, why) in [
            (cheap, 0, 1, 9_000, true, "the first closure is always taken"),
            (cheap, 3, 10, 1_300, true, "a closure that was queued from the start is taken"),
            (cheap, 3, 1, 550, true, "one that arrived meanwhile too, while the commit takes long beside the work"),
            (cheap, 5, 1, 650, false, "and then no more"),
            (dear, 15, 1, 4_900, true, "on a slow disk everybody shares"),
            (dear, 15, 1, 5_000, false, "until the group has worked for so long that its first have waited enough"),
            (cheap, 20, 100, 5_000, false, "even if it was queued from the start"),
            (dear, 64, 100, 10, false, "and never more than so many"),
        ] {
            let group_limit = GroupLimit { most: MOST_CLOSURES, commit_takes };
            assert_eq!(group_limit.takes_more(taken, waited, Duration::from_micros(worked_us)), more, "{why}");
        }
        assert!(!GroupLimit { most: 1, commit_takes: dear }.takes_more(1, 9, Duration::ZERO), "each by itself");
    }

    #[test]
    fn one_slow_commit_does_not_make_it_believe_in_a_slow_disk() {
        let mut group_limit = GroupLimit::new(MOST_CLOSURES);
        (0..40).for_each(|_| group_limit.commit_took(Duration::from_micros(200)));
        group_limit.commit_took(Duration::from_millis(8));
        let at_once = group_limit.commit_takes;
        (0..8).for_each(|_| group_limit.commit_took(Duration::from_micros(200)));
        assert!(at_once > Duration::from_millis(2) && group_limit.commit_takes < Duration::from_micros(420));
    }
}
