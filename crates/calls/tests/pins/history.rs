//! Histories drawn as lists of parents: fast-forwards, merge bases, and the index that is amended.

use calls::history::{amend, empty_index, is_fast_forward, merge_bases, pin};
use calls::record::{Commit, Tree};
use calls::trie::{Changes, get};
use calls::{CommitId, DagId, ExecId, Fault, Id, Memory, NodeId, Object, TreeId, read};
use std::collections::BTreeMap;

/// Commits by letters; each names its parents.
struct History {
    memory: Memory,
    commits: BTreeMap<char, CommitId>,
}

impl History {
    fn of(drawn: &[(char, &str)]) -> History {
        let mut history = History { memory: Memory::default(), commits: BTreeMap::new() };
        for (name, parents) in drawn {
            let tree = Tree { dags: [(calls::name::Name::new(&name.to_string()).unwrap(), DagId(Id([1; 32])))].into() };
            let tree = TreeId(history.memory.put(&Object::Tree(tree)).id);
            let parents = parents.chars().map(|parent| history.commits[&parent]).collect();
            let id = history.memory.put(&Object::Commit(Commit { tree, parents, execs: None })).id;
            history.commits.insert(*name, CommitId(id));
        }
        history
    }
    fn fast_forward(&mut self, old: char, new: char) -> bool {
        is_fast_forward(&mut self.memory, self.commits[&old], self.commits[&new]).unwrap()
    }
    fn bases(&mut self, left: char, right: char) -> String {
        let bases = merge_bases(&mut self.memory, self.commits[&left], self.commits[&right]).unwrap();
        self.commits.iter().filter(|(_, id)| bases.contains(id)).map(|(name, _)| *name).collect()
    }
}

#[test]
fn a_fast_forward_loses_nothing() {
    let mut drawn = History::of(&[('a', ""), ('b', "a"), ('c', "a"), ('d', "bc"), ('x', "")]);
    for (old, new, is) in
        [('a', 'd', true), ('c', 'd', true), ('d', 'd', true), ('d', 'a', false), ('b', 'c', false), ('x', 'd', false)]
    {
        assert_eq!(drawn.fast_forward(old, new), is, "{old} to {new}");
    }
}

#[test]
fn histories_meet_at_their_newest_common_commits() {
    let mut drawn = History::of(&[
        ('a', ""),
        ('b', "a"),
        ('c', "a"),
        ('d', "b"),
        ('e', "bc"),
        ('f', "cb"),
        ('g', "e"),
        ('h', "f"),
        ('x', ""),
    ]);
    for (left, right, met) in [
        ('b', 'c', "a"),
        ('d', 'e', "b"),
        ('d', 'd', "d"),
        ('a', 'g', "a"),
        // A criss-cross merge has two.
        ('g', 'h', "bc"),
        ('a', 'x', ""),
    ] {
        assert_eq!(drawn.bases(left, right), met, "{left} and {right}");
        assert_eq!(drawn.bases(right, left), met, "{right} and {left}");
    }
}

#[test]
fn a_missing_commit_is_named() {
    let mut drawn = History::of(&[('a', ""), ('b', "a"), ('c', "b")]);
    let b = drawn.commits[&'b'];
    drawn.memory.records.remove(&b.into());
    let fault = is_fast_forward(&mut drawn.memory, drawn.commits[&'a'], drawn.commits[&'c']).unwrap_err();
    assert_eq!(fault, Fault::Missing(b.into()));
}

#[test]
fn a_pin_amends_the_index_and_makes_no_history() {
    let mut memory = Memory::default();
    let (index, records) = empty_index();
    memory.add(records);
    let pins: BTreeMap<NodeId, ExecId> = (0..40).map(|n| (NodeId(Id([n; 32])), ExecId(Id([n + 100; 32])))).collect();
    let (all, records) = pin(&mut memory, index, &pins).unwrap();
    memory.add(records);
    let amended = read::commit(&mut memory, all).unwrap();
    assert_eq!(amended.parents, read::commit(&mut memory, index).unwrap().parents);
    for (node, exec) in &pins {
        assert_eq!(get(&mut memory, amended.execs, *node), Ok(Some(*exec)));
    }
    assert_eq!(pin(&mut memory, all, &pins), Ok((all, vec![])), "pinned so already");
    // One after the other they give the same commit.
    let mut one_by_one = index;
    for (node, exec) in &pins {
        let (next, records) = pin(&mut memory, one_by_one, &BTreeMap::from([(*node, *exec)])).unwrap();
        memory.add(records);
        one_by_one = next;
    }
    assert_eq!(one_by_one, all);
    let none: Changes = pins.keys().map(|node| (*node, None)).collect();
    assert_eq!(amend(&mut memory, all, &none).unwrap().0, index);
}
