//! What belongs to an object, in the order in which it may be stored, and what is refused of a worker.

use calls::datum::Element;
use calls::exchange::{accept, snapshot};
use calls::history::{empty_index, pin};
use calls::name::Name;
use calls::reach::{available, closure};
use calls::record::{Commit, Dag, Exec, ExecStatus, Node, Provenance, Tree};
use calls::uri::{Blob, Uri};
use calls::{Code, CommitId, DagId, ExecId, Fault, Memory, NodeId, Object, Reference, TreeId, Value};
use std::collections::BTreeMap;

const LIMIT: usize = 10_000;
const EVERYTHING: fn(Reference) -> bool = |_| false;

fn put(memory: &mut Memory, object: Object) -> Reference {
    memory.put(&object)
}

fn literal(memory: &mut Memory, value: &Value) -> NodeId {
    let mut records = Vec::new();
    let value = value.element(&mut records).unwrap();
    memory.add(records);
    NodeId(put(memory, Object::Node(Node::Literal { value })).id)
}

fn call(memory: &mut Memory, inputs: Vec<NodeId>) -> NodeId {
    let uri = Uri::new("dml+exec://dml-exec-local/a-function-with-a-long-name").unwrap();
    let mut records = Vec::new();
    let function: Element = Value::Uri(uri).element(&mut records).unwrap();
    memory.add(records);
    NodeId(put(memory, Object::Node(Node::Call { function, inputs })).id)
}

/// An index with one pinned call, whose result holds a blob.
fn world() -> (Memory, CommitId, NodeId, DagId, Blob) {
    let mut memory = Memory::default();
    let long = Value::text("a text that is longer than thirty-two bytes").unwrap();
    let input = literal(&mut memory, &Value::List(vec![long, Value::Int(1)]));
    let node = call(&mut memory, vec![input, input]);
    let blob = Blob::of(b"a large result");
    memory.blobs.insert(blob);
    let root = literal(&mut memory, &Value::Uri(blob.uri()));
    let dag = DagId(put(&mut memory, Object::Dag(Dag::of(root))).id);
    let exec = Exec {
        node,
        status: ExecStatus::Ok,
        result: dag,
        started_ms: 1,
        ended_ms: 2,
        provenance: Provenance::default(),
    };
    let exec = ExecId(put(&mut memory, Object::Exec(exec)).id);
    let (index, records) = empty_index();
    memory.add(records);
    let (index, records) = pin(&mut memory, index, &BTreeMap::from([(node, exec)])).unwrap();
    memory.add(records);
    (memory, index, node, dag, blob)
}

#[test]
fn a_closure_holds_all_that_is_below_it_children_first() {
    let (mut memory, index, .., blob) = world();
    // Something that nothing names, and the index before the pin.
    literal(&mut memory, &Value::Int(99));
    let all = available(&mut memory, index.into(), LIMIT).unwrap();
    assert_eq!(all.blobs, [blob].into());
    for (at, reference) in all.objects.iter().enumerate() {
        let object = Object::decode(&memory.records[reference]).unwrap();
        for below in object.references() {
            let place = all.objects.iter().position(|known| *known == below);
            assert!(place.is_some_and(|place| place < at), "{below} comes before {reference}");
        }
    }
    assert_eq!(all.objects.last(), Some(&index.into()));
    let (old_index, lonely) = (1, 1);
    assert_eq!(all.objects.len(), memory.records.len() - old_index - lonely, "each once, and nothing else");
}

#[test]
fn a_walk_stops_at_what_the_other_side_has() {
    let (mut memory, index, node, ..) = world();
    let had = closure(&mut memory, [index.into()], &EVERYTHING, LIMIT).unwrap();
    let more = call(&mut memory, vec![node]);
    let dag = put(&mut memory, Object::Dag(Dag::of(more)));
    let new = closure(&mut memory, [dag], &|reference| had.objects.contains(&reference), LIMIT).unwrap();
    assert_eq!(new.objects, [more.into(), dag], "two new objects, two to send");
}

#[test]
fn what_is_missing_is_named_and_size_is_bounded() {
    let (mut memory, index, node, dag, blob) = world();
    assert!(matches!(closure(&mut memory, [index.into()], &EVERYTHING, 3), Err(Fault::TooLarge { limit: 3, .. })));
    memory.blobs.clear();
    assert_eq!(available(&mut memory, dag.into(), LIMIT), Err(Fault::MissingBlob(blob)));
    memory.records.remove(&node.into());
    assert_eq!(available(&mut memory, index.into(), LIMIT), Err(Fault::Missing(node.into())));
}

fn result_on(memory: &mut Memory, parent: CommitId, dag: DagId, execs: bool) -> CommitId {
    let tree = Tree { dags: [(Name::new("result").unwrap(), dag)].into() };
    let tree = TreeId(put(memory, Object::Tree(tree)).id);
    let (_, index, ..) = world();
    let execs = execs.then(|| calls::read::commit(memory, index).unwrap().execs).flatten();
    CommitId(put(memory, Object::Commit(Commit { tree, parents: vec![parent], execs })).id)
}

#[test]
fn a_snapshot_holds_the_call_alone_and_a_result_is_checked() {
    let (mut memory, index, node, dag, blob) = world();
    let (base, records) = snapshot(node);
    memory.add(records);
    let sent = closure(&mut memory, [base.into()], &EVERYTHING, LIMIT).unwrap();
    let kinds = |name: &str| sent.objects.iter().filter(|it| it.kind.as_str() == name).count();
    assert_eq!((kinds("exec"), kinds("execmap"), kinds("commit")), (0, 0, 1), "a worker does not see the index");

    let good = result_on(&mut memory, base, dag, false);
    let found = accept(&mut memory, base, good, dag).unwrap();
    assert!(found.objects.contains(&dag.into()) && found.blobs.contains(&blob));

    let with_execs = result_on(&mut memory, base, dag, true);
    let on_top = result_on(&mut memory, with_execs, dag, false);
    let elsewhere = result_on(&mut memory, index, dag, false);
    let (other, records) = snapshot(NodeId(calls::Id([5; 32])));
    memory.add(records);
    let unrelated = result_on(&mut memory, other, dag, false);
    let another = DagId(put(&mut memory, Object::Dag(Dag::of(node))).id);
    let with_a_call = result_on(&mut memory, base, another, false);
    for (made, result, code, detail) in [
        (with_a_call, another, Code::InvalidKind, "result_is_no_value"),
        (with_execs, dag, Code::InvalidKind, "exec_in_a_result"),
        (on_top, dag, Code::InvalidKind, "exec_in_a_result"),
        (elsewhere, dag, Code::InvalidKind, "exec_in_a_result"),
        (unrelated, dag, Code::InvalidPayload, "not_a_fast_forward"),
        (good, another, Code::InvalidPayload, "result_not_in_its_tree"),
    ] {
        let fault = accept(&mut memory, base, made, result).unwrap_err();
        let Fault::Unreadable { why, .. } = fault else { panic!("{fault}") };
        assert_eq!((why.code, why.detail), (code, detail));
        assert!(!fault.may_pass(), "asking again does not help");
    }
    memory.blobs.clear();
    let fault = accept(&mut memory, base, good, dag).unwrap_err();
    assert!(fault.may_pass(), "a blob may be on its way: {fault}");
}

#[test]
fn another_execution_of_a_node_is_another_exec_and_a_pin_takes_the_place_of_the_one_before() {
    let (mut memory, index, node, dag, _) = world();
    let run_as = |execution: &str| Exec {
        node,
        status: ExecStatus::Ok,
        result: dag,
        started_ms: 1,
        ended_ms: 2,
        provenance: Provenance { execution: Some(execution.to_owned()), ..Provenance::default() },
    };
    let before = calls::read::commit(&mut memory, index).unwrap().execs;
    let first = calls::trie::get(&mut memory, before, node).unwrap().unwrap();
    let [second, third] = ["a", "b"].map(|execution| ExecId(memory.put(&Object::Exec(run_as(execution))).id));
    assert!(first != second && second != third, "equal in all but the execution");
    let (amended, records) = pin(&mut memory, index, &BTreeMap::from([(node, third)])).unwrap();
    memory.add(records);
    let after = calls::read::commit(&mut memory, amended).unwrap().execs;
    assert_eq!(calls::trie::get(&mut memory, after, node), Ok(Some(third)));
}
