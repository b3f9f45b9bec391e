//! The exec map of a commit: which exec is pinned for each call node. A radix-16 trie over node ids, stored as records.
//! Its shape follows from its entries alone: up to 16 entries are one leaf, more are a branch by the next digit.

use crate::cbor::{Reader, Writer};
use crate::id::{ExecId, ExecMapId, Id, NodeId, Reference};
use crate::object::Kind;
use crate::unreadable::{Flaw, bounds, kind, payload};

pub const LEAF_ENTRIES: usize = 16;
const WIDTH: usize = 16;
const LEAF: i64 = 0;
const BRANCH: i64 = 1;

/// One node of the trie, as a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExecMap {
    /// In the order of the node ids.
    Leaf(Vec<(NodeId, ExecId)>),
    /// By the digit at this depth.
    Branch(Box<[Option<ExecMapId>; WIDTH]>),
}

impl ExecMap {
    pub fn record(&self) -> Vec<u8> {
        let mut writer = Kind::ExecMap.writer();
        self.write(&mut writer);
        writer.0
    }
    pub fn id(&self) -> ExecMapId {
        ExecMapId::of(&self.record())
    }

    /// `[0, entries]` with 64 bytes an entry, or `[1, bits, children]` with 32 bytes a child.
    pub(crate) fn write(&self, to: &mut Writer) {
        match self {
            ExecMap::Leaf(entries) => {
                to.array(2);
                to.int(LEAF);
                let bytes: Vec<u8> = entries.iter().flat_map(|(node, exec)| [node.0.0, exec.0.0]).flatten().collect();
                to.bytes(&bytes);
            }
            ExecMap::Branch(children) => {
                to.array(3);
                to.int(BRANCH);
                let bit = |(digit, child): (usize, &Option<ExecMapId>)| i64::from(child.is_some()) << digit;
                to.int(children.iter().enumerate().map(bit).sum());
                let bytes: Vec<u8> = children.iter().flatten().flat_map(|child| child.0.0).collect();
                to.bytes(&bytes);
            }
        }
    }

    pub(crate) fn read(from: &mut Reader) -> Result<ExecMap, Flaw> {
        let fields = from.array()?;
        if fields == 0 {
            return Err(bounds("wrong_field_count"));
        }
        match (from.int()?, fields) {
            (LEAF, 2) => read_leaf(from.bytes()?),
            (BRANCH, 3) => read_branch(from.int()?, from.bytes()?),
            (LEAF | BRANCH, _) => Err(bounds("wrong_field_count")),
            _ => Err(kind("execmap_kind_unknown")),
        }
    }

    pub(crate) fn references(&self) -> Vec<Reference> {
        match self {
            ExecMap::Leaf(entries) => entries.iter().map(|(_, exec)| (*exec).into()).collect(),
            ExecMap::Branch(children) => children.iter().flatten().map(|child| (*child).into()).collect(),
        }
    }
}

fn ids(bytes: &[u8]) -> Result<Vec<Id>, Flaw> {
    let (ids, rest) = bytes.as_chunks::<{ Id::BYTES }>();
    if rest.is_empty() { Ok(ids.iter().copied().map(Id).collect()) } else { Err(bounds("execmap_length")) }
}

fn read_leaf(bytes: &[u8]) -> Result<ExecMap, Flaw> {
    let (pairs, rest) = bytes.as_chunks::<{ 2 * Id::BYTES }>();
    if !rest.is_empty() || !(1..=LEAF_ENTRIES).contains(&pairs.len()) {
        return Err(bounds("execmap_length"));
    }
    let ids = ids(bytes)?;
    let entries: Vec<_> = ids.chunks(2).map(|pair| (NodeId(pair[0]), ExecId(pair[1]))).collect();
    if !entries.windows(2).all(|pair| pair[0].0 < pair[1].0) {
        return Err(payload("execmap_not_strictly_sorted"));
    }
    Ok(ExecMap::Leaf(entries))
}

fn read_branch(bits: i64, bytes: &[u8]) -> Result<ExecMap, Flaw> {
    let bits = u16::try_from(bits).map_err(|_| bounds("execmap_bits"))?;
    let mut ids = ids(bytes)?.into_iter();
    if ids.len() != bits.count_ones() as usize || bits == 0 {
        return Err(bounds("execmap_length"));
    }
    let child = |digit: usize| (bits >> digit & 1 == 1).then(|| ids.next().map(ExecMapId)).flatten();
    let digits: [usize; WIDTH] = std::array::from_fn(|digit| digit);
    Ok(ExecMap::Branch(Box::new(digits.map(child))))
}
