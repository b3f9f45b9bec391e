//! What goes to a worker and what comes back: a snapshot commit with the call node's closure alone, and the result commit on top of it.

use crate::builtin::value_of;
use crate::history::is_fast_forward;
use crate::id::{CommitId, DagId, NodeId};
use crate::name::Name;
use crate::object::Object;
use crate::reach::{Closure, available};
use crate::read::{Fault, Read, Records, commit, dag, tree};
use crate::record::{Commit, Dag, Tree};
use crate::unreadable::Code;
use std::collections::BTreeSet;

/// The dag of a snapshot.
const CALL: &str = "call";
/// A worker makes its result in a few steps.
pub const MAX_RESULT_COMMITS: usize = 1_000;
/// Records of one result.
pub const MAX_RESULT_OBJECTS: usize = 1 << 20;

/// The commit for `refs/exec/<uuid>`, with the records that are new. It has no parents and no exec map: a worker must not read what else
/// the org has computed.
pub fn snapshot(call: NodeId) -> (CommitId, Records) {
    let dag = Dag::of(call);
    let name = Name::new(CALL).expect("a name");
    let tree = Tree { dags: [(name, dag.id())].into() };
    let commit = Commit { tree: tree.id(), parents: Vec::new(), execs: None };
    let id = commit.id();
    let objects = [Object::Dag(dag), Object::Tree(tree), Object::Commit(commit)];
    (id, objects.iter().map(|object| (object.reference(), object.encode())).collect())
}

/// Checks what a worker made of a snapshot, and gives the result's closure: `result` must be a dag in the tree of a commit that is a
/// fast-forward of the snapshot, complete and valid, and its root a value. Commits with an exec map are refused: the Executor alone writes
/// execs (R154).
pub fn accept<R: Read + ?Sized>(
    from: &mut R,
    snapshot: CommitId,
    made: CommitId,
    result: DagId,
) -> Result<Closure, Fault<R::Error>> {
    let mut seen = BTreeSet::from([snapshot]);
    let mut next = vec![made];
    while let Some(id) = next.pop() {
        if !seen.insert(id) {
            continue;
        }
        if seen.len() > MAX_RESULT_COMMITS {
            return Err(Fault::TooLarge { what: "the history of a result", limit: MAX_RESULT_COMMITS });
        }
        let found = commit(from, id)?;
        if found.execs.is_some() {
            return Err(Fault::flawed(id, Code::InvalidKind, "exec_in_a_result"));
        }
        next.extend(found.parents);
    }
    if !is_fast_forward(from, snapshot, made)? {
        return Err(Fault::flawed(made, Code::InvalidPayload, "not_a_fast_forward"));
    }
    let shown = commit(from, made)?.tree;
    if !tree(from, shown)?.dags.values().any(|dag| *dag == result) {
        return Err(Fault::flawed(made, Code::InvalidPayload, "result_not_in_its_tree"));
    }
    let whole = available(from, result.into(), MAX_RESULT_OBJECTS)?;
    let root = dag(from, result)?.root;
    // No backend would execute a call that stands here, and a builtin whose inputs do not fit never gives a value.
    match value_of(from, root)? {
        Some(_) => Ok(whole),
        None => Err(Fault::flawed(root, Code::InvalidKind, "result_is_no_value")),
    }
}
