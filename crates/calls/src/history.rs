//! Commits as history: what is a fast-forward, where two histories met, and how pins amend the index.

use crate::id::{CommitId, ExecId, NodeId, Reference};
use crate::object::Object;
use crate::read::{Fault, Read, Records, commit};
use crate::record::{Commit, Tree};
use crate::trie::{self, Changes};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Commits that are walked at most. Pins amend, so history grows only by what people commit.
pub const MAX_COMMITS: usize = 1_000_000;

/// All ancestors of a commit, itself included.
fn ancestors<R: Read + ?Sized>(
    from: &mut R,
    start: CommitId,
    stop_at: Option<CommitId>,
) -> Result<BTreeSet<CommitId>, Fault<R::Error>> {
    let mut seen = BTreeSet::from([start]);
    let mut next = VecDeque::from([start]);
    while let Some(id) = next.pop_front() {
        if stop_at == Some(id) {
            break;
        }
        for parent in commit(from, id)?.parents {
            if seen.insert(parent) {
                next.push_back(parent);
            }
        }
        if seen.len() > MAX_COMMITS {
            return Err(Fault::TooLarge { what: "a history", limit: MAX_COMMITS });
        }
    }
    Ok(seen)
}

/// Whether a ref at `old` may move to `new` without losing anything: `old` is an ancestor of `new`, or the same.
pub fn is_fast_forward<R: Read + ?Sized>(from: &mut R, old: CommitId, new: CommitId) -> Result<bool, Fault<R::Error>> {
    Ok(ancestors(from, new, Some(old))?.contains(&old))
}

/// The commits that two histories have in common and that are no ancestors of another such one: none, one, or more after
/// criss-cross merges. In the order of their ids.
pub fn merge_bases<R: Read + ?Sized>(
    from: &mut R,
    left: CommitId,
    right: CommitId,
) -> Result<Vec<CommitId>, Fault<R::Error>> {
    let (of_left, of_right) = (ancestors(from, left, None)?, ancestors(from, right, None)?);
    let mut bases: BTreeSet<CommitId> = of_left.intersection(&of_right).copied().collect();
    let mut older = BTreeSet::new();
    for common in &bases {
        older.extend(commit(from, *common)?.parents);
    }
    // An ancestor of a common commit is a common commit whose child is one too.
    bases.retain(|base| !older.contains(base));
    Ok(bases.into_iter().collect())
}

/// The first commit of an index: an empty tree, nothing pinned.
pub fn empty_index() -> (CommitId, Records) {
    let tree = Tree::default();
    let first = Commit { tree: tree.id(), parents: Vec::new(), execs: None };
    (first.id(), [Object::Tree(tree), Object::Commit(first)].iter().map(|it| (it.reference(), it.encode())).collect())
}

/// The index commit with some pins set. It has the same parents and tree: a pin replaces the commit and makes no history.
/// If all were pinned so already, it is the same commit and there are no records.
pub fn pin<R: Read + ?Sized>(
    from: &mut R,
    index: CommitId,
    pins: &BTreeMap<NodeId, ExecId>,
) -> Result<(CommitId, Records), Fault<R::Error>> {
    amend(from, index, &pins.iter().map(|(node, exec)| (*node, Some(*exec))).collect())
}

/// The index commit with some pins set and others removed.
pub fn amend<R: Read + ?Sized>(
    from: &mut R,
    index: CommitId,
    changes: &Changes,
) -> Result<(CommitId, Records), Fault<R::Error>> {
    let old = commit(from, index)?;
    let (execs, mut records) = trie::change(from, old.execs, changes)?;
    if execs == old.execs {
        return Ok((index, Vec::new()));
    }
    let amended = Commit { execs, ..old };
    let id = amended.id();
    records.push((Reference::from(id), amended.record()));
    Ok((id, records))
}
