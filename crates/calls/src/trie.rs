//! Reads and changes the exec map as a whole: looks a node up, pins and unpins many at once, walks it. Writes only the records that differ.

use crate::exec_map::{ExecMap, LEAF_ENTRIES};
use crate::id::{ExecId, ExecMapId, NodeId};
use crate::read::{Fault, Read, Records, exec_map};
use crate::unreadable::Code;
use std::collections::BTreeMap;

/// What is pinned (`Some`) or unpinned (`None`).
pub type Changes = BTreeMap<NodeId, Option<ExecId>>;
/// Digits of a node id: no two ids share more.
const MAX_DEPTH: usize = 64;

/// The exec that is pinned for a node.
pub fn get<R: Read + ?Sized>(
    from: &mut R,
    root: Option<ExecMapId>,
    node: NodeId,
) -> Result<Option<ExecId>, Fault<R::Error>> {
    let mut next = root;
    for depth in 0..=MAX_DEPTH {
        let Some(id) = next else { return Ok(None) };
        match exec_map(from, id)? {
            ExecMap::Leaf(entries) => {
                let found = entries.binary_search_by_key(&node, |(known, _)| *known);
                return Ok(found.ok().map(|at| entries[at].1));
            }
            ExecMap::Branch(_) if depth == MAX_DEPTH => return Err(flawed(id, "execmap_too_deep")),
            ExecMap::Branch(children) => next = children[node.0.nibble(depth)],
        }
    }
    Ok(None)
}

/// The root after all changes, none if nothing is left, and the new records, children before parents.
/// The root depends on the resulting entries alone, never on the order in which they came.
pub fn change<R: Read + ?Sized>(
    from: &mut R,
    root: Option<ExecMapId>,
    changes: &Changes,
) -> Result<(Option<ExecMapId>, Records), Fault<R::Error>> {
    let changes: Vec<(NodeId, Option<ExecId>)> = changes.iter().map(|(node, exec)| (*node, *exec)).collect();
    let mut change = Change { from, records: Vec::new() };
    let part = change.part(root, &changes, 0)?;
    let root = change.written(part);
    Ok((root, change.records))
}

/// A part of the trie after a change.
enum Part {
    /// As it was; not read unless its parent may shrink.
    Same(ExecMapId),
    /// At most a leaf's entries, not written yet: they may become part of a larger leaf.
    Small(Vec<(NodeId, ExecId)>),
    /// A new branch, written.
    Large(ExecMapId),
}

struct Change<'r, R: ?Sized> {
    from: &'r mut R,
    records: Records,
}

impl<R: Read + ?Sized> Change<'_, R> {
    fn part(
        &mut self,
        old: Option<ExecMapId>,
        changes: &[(NodeId, Option<ExecId>)],
        depth: usize,
    ) -> Result<Part, Fault<R::Error>> {
        let Some(id) = old else {
            let new = changes.iter().filter_map(|(node, exec)| Some((*node, (*exec)?)));
            return Ok(self.build(new.collect(), depth));
        };
        if changes.is_empty() {
            return Ok(Part::Same(id));
        }
        match exec_map(self.from, id)? {
            ExecMap::Leaf(entries) => {
                let shares = |node: NodeId| (0..depth).all(|at| node.0.nibble(at) == changes[0].0.0.nibble(at));
                if !entries.iter().all(|(node, _)| shares(*node)) {
                    return Err(flawed(id, "execmap_entry_misplaced"));
                }
                let mut merged: BTreeMap<NodeId, ExecId> = entries.iter().copied().collect();
                for (node, exec) in changes {
                    match exec {
                        Some(exec) => drop(merged.insert(*node, *exec)),
                        None => drop(merged.remove(node)),
                    }
                }
                let merged: Vec<_> = merged.into_iter().collect();
                Ok(if merged == entries { Part::Same(id) } else { self.build(merged, depth) })
            }
            ExecMap::Branch(_) if depth >= MAX_DEPTH => Err(flawed(id, "execmap_too_deep")),
            ExecMap::Branch(children) => self.branch(id, &children, changes, depth),
        }
    }

    fn branch(
        &mut self,
        id: ExecMapId,
        children: &[Option<ExecMapId>; 16],
        changes: &[(NodeId, Option<ExecId>)],
        depth: usize,
    ) -> Result<Part, Fault<R::Error>> {
        let (mut parts, mut rest) = (Vec::with_capacity(16), changes);
        for (digit, child) in children.iter().enumerate() {
            let (here, after) = rest.split_at(rest.partition_point(|(node, _)| node.0.nibble(depth) == digit));
            rest = after;
            parts.push(self.part(*child, here, depth + 1)?);
        }
        let same = |(part, child): (&Part, &Option<ExecMapId>)| match part {
            Part::Same(_) => true,
            Part::Small(entries) => entries.is_empty() && child.is_none(),
            Part::Large(_) => false,
        };
        if parts.iter().zip(children).all(same) {
            return Ok(Part::Same(id));
        }
        let shrank = changes.iter().any(|(_, exec)| exec.is_none());
        if let Some(entries) = if shrank { self.collapsed(&parts)? } else { None } {
            return Ok(Part::Small(entries));
        }
        let children = std::array::from_fn(|_| None);
        let mut branch = ExecMap::Branch(Box::new(children));
        if let ExecMap::Branch(children) = &mut branch {
            for (child, part) in children.iter_mut().zip(parts) {
                *child = self.written(part);
            }
        }
        Ok(Part::Large(self.write(&branch)))
    }

    /// All entries of these parts, if they fit into one leaf.
    fn collapsed(&mut self, parts: &[Part]) -> Result<Option<Vec<(NodeId, ExecId)>>, Fault<R::Error>> {
        let mut all = Vec::new();
        for part in parts {
            match part {
                Part::Small(entries) => all.extend(entries),
                Part::Large(_) => return Ok(None),
                Part::Same(id) => match exec_map(self.from, *id)? {
                    ExecMap::Leaf(entries) => all.extend(entries),
                    ExecMap::Branch(_) => return Ok(None),
                },
            }
            if all.len() > LEAF_ENTRIES {
                return Ok(None);
            }
        }
        Ok(Some(all))
    }

    fn build(&mut self, entries: Vec<(NodeId, ExecId)>, depth: usize) -> Part {
        if entries.len() <= LEAF_ENTRIES {
            return Part::Small(entries);
        }
        let children = std::array::from_fn(|digit| {
            let here = entries.iter().filter(|(node, _)| node.0.nibble(depth) == digit).copied().collect();
            let part = self.build(here, depth + 1);
            self.written(part)
        });
        Part::Large(self.write(&ExecMap::Branch(Box::new(children))))
    }

    fn written(&mut self, part: Part) -> Option<ExecMapId> {
        match part {
            Part::Same(id) | Part::Large(id) => Some(id),
            Part::Small(entries) if entries.is_empty() => None,
            Part::Small(entries) => Some(self.write(&ExecMap::Leaf(entries))),
        }
    }

    fn write(&mut self, node: &ExecMap) -> ExecMapId {
        let record = node.record();
        let id = ExecMapId::of(&record);
        self.records.push((id.into(), record));
        id
    }
}

/// Every pin in the order of the node ids. Refuses a trie that is not in its one shape.
pub fn walk<R: Read + ?Sized>(
    from: &mut R,
    root: Option<ExecMapId>,
    each: &mut dyn FnMut(NodeId, ExecId),
) -> Result<usize, Fault<R::Error>> {
    match root {
        Some(root) => walk_below(from, root, &mut Vec::new(), each),
        None => Ok(0),
    }
}

fn walk_below<R: Read + ?Sized>(
    from: &mut R,
    id: ExecMapId,
    prefix: &mut Vec<usize>,
    each: &mut dyn FnMut(NodeId, ExecId),
) -> Result<usize, Fault<R::Error>> {
    match exec_map(from, id)? {
        ExecMap::Leaf(entries) => {
            let belongs = |node: NodeId| prefix.iter().enumerate().all(|(at, digit)| node.0.nibble(at) == *digit);
            if !entries.iter().all(|(node, _)| belongs(*node)) {
                return Err(flawed(id, "execmap_entry_misplaced"));
            }
            entries.iter().for_each(|(node, exec)| each(*node, *exec));
            Ok(entries.len())
        }
        ExecMap::Branch(_) if prefix.len() >= MAX_DEPTH => Err(flawed(id, "execmap_too_deep")),
        ExecMap::Branch(children) => {
            let mut count = 0;
            for (digit, child) in children.iter().enumerate().filter_map(|(digit, child)| Some((digit, (*child)?))) {
                prefix.push(digit);
                count += walk_below(from, child, prefix, each)?;
                prefix.pop();
            }
            if count > LEAF_ENTRIES { Ok(count) } else { Err(flawed(id, "execmap_branch_too_small")) }
        }
    }
}

fn flawed<E>(id: ExecMapId, detail: &'static str) -> Fault<E> {
    Fault::flawed(id, Code::InvalidPayload, detail)
}
