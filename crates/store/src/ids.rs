//! New ids, from a block that this process has reserved in the database. A block is reserved in a transaction of its own, so a closure that
//! is rolled back leaves a gap in the ids and nothing else. No id is given out twice, nor the one whose slug is `none`.

use crate::args;
use crate::id_mark::IdMark;
use crate::sql::Sql;
use crate::value::Value;
use model::Failure;
use std::sync::Mutex;

/// A database that has given out none begins at `$2`; one that is older than the mark beside it goes on at the mark, `$3`.
pub(crate) const TAKE_BLOCK: Sql = Sql::new(
    "UPDATE ids SET next = (CASE WHEN next = 1 THEN $2 WHEN next < $3 THEN $3 ELSE next END) + $1 WHERE id = 1 RETURNING next",
);
/// Never lowered.
pub(crate) const RAISE: Sql = Sql::new("UPDATE ids SET next = $1 WHERE id = 1 AND next < $1");

pub(crate) const ALL: &[&Sql] = &[&TAKE_BLOCK, &RAISE];

/// Small, so that ids stay short to type although every restart loses the rest of a block.
const BLOCK: i64 = 1024;
/// Each block is twice as large as the last, up to this many doublings: reserving a block is a commit of its own.
const DOUBLINGS: u32 = 6;
/// A transaction begins with at least this many ids, ten for each closure of a full group; one that needs more runs again after a
/// larger block was taken.
const ENOUGH: i64 = 640;

pub(crate) struct Ids {
    block: Mutex<Block>,
    /// Where a database that has given out none begins.
    first: i64,
    /// SQLite files only.
    mark: Option<IdMark>,
}

struct Block {
    next: i64,
    end: i64,
    /// Set by a transaction that ran dry.
    wanted: i64,
    /// Blocks taken before this one.
    taken: u32,
}

impl Ids {
    pub(crate) fn new(first: i64, mark: Option<IdMark>) -> Ids {
        Ids { block: Mutex::new(Block { next: 0, end: 0, wanted: 0, taken: 0 }), first, mark }
    }

    /// The arguments of `TAKE_BLOCK` for a block of this size.
    pub(crate) fn asked(&self, size: i64) -> Vec<Value> {
        let marked = self.mark.as_ref().map_or(1, IdMark::found);
        args![size, self.first.max(marked), marked].into()
    }

    /// How large a block must be taken before the next transaction begins, if any.
    pub(crate) fn short_of(&self) -> Option<i64> {
        let block = self.block.lock().expect("no panic while ids are locked");
        let left = block.end - block.next;
        let size = BLOCK << block.taken.min(DOUBLINGS);
        (left < ENOUGH.max(block.wanted)).then_some(size.max(2 * block.wanted))
    }

    /// The block `next - size .. next` is reserved now, and given out as soon as the mark says so. What is left of the old one is a gap.
    pub(crate) fn add(&self, next: i64, size: i64) -> Result<(), Failure> {
        self.mark.as_ref().map_or(Ok(()), |mark| mark.raise(next))?;
        let mut block = self.block.lock().expect("no panic while ids are locked");
        // Another thread may have brought a larger block meanwhile.
        if next - size > block.next {
            *block = Block { next: next - size, end: next, wanted: 0, taken: block.taken + 1 };
        }
        Ok(())
    }

    /// What is left of a block from before `floor` was given out is a gap: the next one is above it, because blocks only grow.
    pub(crate) fn pass(&self, floor: i64) {
        let mut block = self.block.lock().expect("no panic while ids are locked");
        if block.next <= floor {
            block.next = block.end;
        }
    }

    /// `used` tells how many this transaction has taken, so that a dry run asks for enough the next time.
    pub(crate) fn take(&self, used: i64) -> Option<i64> {
        let mut block = self.block.lock().expect("no panic while ids are locked");
        if model::unslug("none") == Some(block.next) {
            block.next += 1;
        }
        if block.next >= block.end {
            block.wanted = block.wanted.max(2 * (used + ENOUGH));
            return None;
        }
        block.next += 1;
        Some(block.next - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_id_that_reads_none_is_never_given() {
        let none = model::unslug("none").unwrap();
        let ids = Ids::new(1, None);
        ids.add(none + 2, 4).unwrap();
        assert_eq!(std::iter::from_fn(|| ids.take(0)).collect::<Vec<_>>(), [none - 2, none - 1, none + 1]);
    }

    #[test]
    fn a_block_from_before_another_process_had_its_own_is_passed_over() {
        let ids = Ids::new(1, None);
        ids.add(BLOCK + 1, BLOCK).unwrap();
        ids.pass(0);
        assert_eq!(ids.take(0), Some(1));
        ids.pass(BLOCK + 7);
        assert_eq!((ids.take(0), ids.short_of().is_some()), (None, true));
        ids.add(3 * BLOCK + 1, BLOCK).unwrap();
        assert_eq!(ids.take(0), Some(2 * BLOCK + 1));
    }

    #[test]
    fn blocks_grow_while_they_are_used_up() {
        let ids = Ids::new(1, None);
        let mut next = 1;
        let sizes = std::iter::from_fn(|| {
            let size = ids.short_of()?;
            next += size;
            ids.add(next, size).unwrap();
            std::iter::from_fn(|| ids.take(0)).take((size - ENOUGH + 1) as usize).for_each(drop);
            Some(size / BLOCK)
        });
        assert_eq!(sizes.take(9).collect::<Vec<_>>(), [1, 2, 4, 8, 16, 32, 64, 64, 64]);
    }

    #[test]
    fn a_transaction_that_ran_dry_gets_a_larger_block() {
        let ids = Ids::new(1, None);
        assert_eq!(ids.short_of(), Some(BLOCK));
        ids.add(BLOCK + 1, BLOCK).unwrap();
        assert_eq!(ids.short_of(), None);
        let used = std::iter::from_fn(|| ids.take(BLOCK)).count() as i64;
        assert_eq!(used, BLOCK);
        assert!(ids.short_of().unwrap() > 2 * BLOCK);
    }
}
