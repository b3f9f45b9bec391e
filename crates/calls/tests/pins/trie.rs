//! The trie against a sorted map: the same entries, one shape, and few new bytes for a pin.

use calls::exec_map::ExecMap;
use calls::trie::{Changes, change, get, walk};
use calls::{ExecId, ExecMapId, Fault, Id, Memory, NodeId, Object};
use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use std::collections::BTreeMap;

/// Ids that share their first digits now and then, so that small tries are deep.
fn node() -> impl Strategy<Value = NodeId> {
    (0u8..4, 0u8..3, any::<u8>()).prop_map(|(first, second, last)| {
        let mut bytes = [0; 32];
        (bytes[0], bytes[1], bytes[31]) = (first, second, last);
        NodeId(Id(bytes))
    })
}

fn changes() -> impl Strategy<Value = Changes> {
    let exec = any::<u8>().prop_map(|byte| ExecId(Id([byte; 32])));
    btree_map(node(), prop::option::weighted(0.7, exec), 0..60)
}

fn apply(memory: &mut Memory, root: Option<ExecMapId>, changes: &Changes) -> Option<ExecMapId> {
    let (root, records) = change(memory, root, changes).unwrap();
    for (reference, bytes) in &records {
        assert_eq!(Object::decode(bytes).map(|object| object.reference()), Ok(*reference));
    }
    memory.add(records);
    root
}

fn entries(memory: &mut Memory, root: Option<ExecMapId>) -> BTreeMap<NodeId, ExecId> {
    let mut all = BTreeMap::new();
    let mut last = None;
    let count = walk(memory, root, &mut |node, exec| {
        assert!(last < Some(node), "in the order of the ids");
        last = Some(node);
        all.insert(node, exec);
    });
    assert_eq!(count, Ok(all.len()));
    all
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn it_holds_what_a_sorted_map_holds_in_one_shape(batches in vec(changes(), 1..6)) {
        let mut memory = Memory::default();
        let (mut root, mut expected) = (None, BTreeMap::new());
        for batch in &batches {
            root = apply(&mut memory, root, batch);
            for (node, exec) in batch {
                match exec {
                    Some(exec) => drop(expected.insert(*node, *exec)),
                    None => drop(expected.remove(node)),
                }
            }
        }
        prop_assert_eq!(&entries(&mut memory, root), &expected);
        for node in batches.iter().flat_map(BTreeMap::keys) {
            prop_assert_eq!(get(&mut memory, root, *node), Ok(expected.get(node).copied()));
        }
        // The same entries at once, and one by one from the last to the first.
        let all: Changes = expected.iter().map(|(node, exec)| (*node, Some(*exec))).collect();
        prop_assert_eq!(apply(&mut memory, None, &all), root);
        let mut again = None;
        for (node, exec) in all.iter().rev() {
            again = apply(&mut memory, again, &Changes::from([(*node, *exec)]));
        }
        prop_assert_eq!(again, root);
    }

    #[test]
    fn pinning_what_is_pinned_writes_nothing(batch in changes()) {
        let mut memory = Memory::default();
        let root = apply(&mut memory, None, &batch);
        prop_assert_eq!(change(&mut memory, root, &batch), Ok((root, vec![])));
    }
}

fn hashed(number: u64) -> Id {
    Id::of(&number.to_be_bytes())
}

#[test]
fn a_pin_writes_a_few_kibibytes_however_many_there_are() {
    let most = std::env::var("CALLS_PINS").ok().map_or(100_000, |number| number.parse().expect("a number of pins"));
    let mut memory = Memory::default();
    let (mut root, mut pinned) = (None, 0);
    let mut bytes_at = BTreeMap::new();
    for size in [1_000, most] {
        let more: Changes = (pinned..size).map(|n| (NodeId(hashed(n)), Some(ExecId(hashed(n))))).collect();
        root = apply(&mut memory, root, &more);
        pinned = size;
        let one = |n: u64| Changes::from([(NodeId(hashed(1 << 40 | n)), Some(ExecId(hashed(n))))]);
        let bytes = (0..100).map(|n| {
            let (_, records) = change(&mut memory, root, &one(n)).unwrap();
            records.iter().map(|(_, bytes)| bytes.len()).sum::<usize>()
        });
        bytes_at.insert(size, bytes.sum::<usize>() / 100);
    }
    assert!(bytes_at[&most] <= 4_096, "bytes of a pin by the number of pins: {bytes_at:?}");
    assert!(bytes_at[&most] <= 3 * bytes_at[&1_000], "bytes of a pin by the number of pins: {bytes_at:?}");
}

#[test]
fn a_trie_in_another_shape_is_refused() {
    let mut memory = Memory::default();
    let entry = |first: u8| (NodeId(Id([first; 32])), ExecId(Id([9; 32])));
    let mut put = |node: ExecMap| ExecMapId(memory.put(&Object::ExecMap(node)).id);
    let leaf = put(ExecMap::Leaf(vec![entry(0x10)]));
    let branch = |digit: usize| {
        let mut children = [None; 16];
        children[digit] = Some(leaf);
        ExecMap::Branch(Box::new(children))
    };
    let (small, misplaced) = (put(branch(1)), put(branch(2)));
    for (root, why) in [(small, "execmap_branch_too_small"), (misplaced, "execmap_entry_misplaced")] {
        let fault = walk(&mut memory, Some(root), &mut |_, _| {}).unwrap_err();
        assert!(matches!(fault, Fault::Unreadable { why: found, .. } if found.detail == why), "{fault}");
    }
    let near = Changes::from([(NodeId(Id([0x20; 32])), Some(ExecId(Id([1; 32]))))]);
    assert!(change(&mut memory, Some(misplaced), &near).is_err());
}
