//! Objects of every kind: some by name, for the golden vectors, and arbitrary ones for properties.

use calls::datum::{Datum, Element};
use calls::exec_map::ExecMap;
use calls::name::Name;
use calls::record::{Builtin, Commit, Dag, Exec, ExecStatus, Node, Provenance, Tree};
use calls::scalar::{Bytes, Float, Text};
use calls::uri::{Blob, Uri};
use calls::{CommitId, DagId, DatumId, ExecId, ExecMapId, Id, NodeId, Object, TreeId, Value};
use proptest::collection::{btree_map, vec};
use proptest::prelude::*;

/// Ids that are easy to see in a dump.
pub fn id(byte: u8) -> Id {
    Id([byte; 32])
}

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

/// The objects above values that have a golden vector.
pub fn named() -> Vec<(&'static str, Object)> {
    let node = |byte| NodeId(id(byte));
    let uri = |text: &str| Datum::Uri(Uri::new(text).unwrap());
    let full = ExecMap::Branch(Box::new(std::array::from_fn(|digit| (digit != 3).then(|| ExecMapId(id(digit as u8))))));
    let exec = Exec {
        node: node(0x11),
        status: ExecStatus::Ok,
        result: DagId(id(0x22)),
        started_ms: 1_700_000_000_000,
        ended_ms: 1_700_000_001_500,
        provenance: Provenance::default(),
    };
    let known = Provenance {
        execution: Some("0b9f1f5e-6f0d-4a53-8f5b-3d3f4f2b1a00".into()),
        run: Some("run_9ix".into()),
        job: Some("job_1".into()),
        instance: Some("ins_2".into()),
    };
    vec![
        ("blob", Object::Datum(Datum::Uri(Blob::of(b"contents").uri()))),
        ("node-literal-inline", Object::Node(Node::Literal { value: Element::Inline(Datum::Int(5)) })),
        ("node-literal-by-id", Object::Node(Node::Literal { value: Element::Id(DatumId(id(0xaa))) })),
        (
            "node-call",
            Object::Node(Node::Call {
                function: Element::Id(DatumId(id(0xf0))),
                inputs: vec![node(2), node(1), node(2)],
            }),
        ),
        (
            "node-call-inline-function",
            Object::Node(Node::Call { function: Element::Inline(uri("dml+exec://a/f")), inputs: vec![] }),
        ),
        ("node-import", Object::Node(Node::Import { dag: DagId(id(0x33)) })),
        ("node-builtin", Object::Node(Node::Builtin { function: Builtin::MapGet, inputs: vec![node(1), node(2)] })),
        ("dag", Object::Dag(Dag::of(node(0x44)))),
        (
            "dag-named",
            Object::Dag(Dag {
                root: node(0x44),
                names: [("b", 1), ("aa", 2), ("é", 3)].map(|(text, byte)| (name(text), node(byte))).into(),
            }),
        ),
        ("tree-empty", Object::Tree(Tree::default())),
        ("tree", Object::Tree(Tree { dags: [(name("result"), DagId(id(0x55)))].into() })),
        ("commit-first", Object::Commit(Commit { tree: TreeId(id(0x66)), parents: vec![], execs: None })),
        (
            "commit-merge",
            Object::Commit(Commit {
                tree: TreeId(id(0x66)),
                parents: vec![CommitId(id(9)), CommitId(id(8))],
                execs: Some(ExecMapId(id(7))),
            }),
        ),
        ("exec-ok", Object::Exec(exec.clone())),
        ("exec-error", Object::Exec(Exec { status: ExecStatus::Error, provenance: known, ..exec })),
        ("execmap-leaf", Object::ExecMap(ExecMap::Leaf(vec![(node(1), ExecId(id(3))), (node(2), ExecId(id(4)))]))),
        ("execmap-branch", Object::ExecMap(full)),
    ]
}

fn any_id() -> impl Strategy<Value = Id> {
    any::<[u8; 32]>().prop_map(Id)
}

fn scalar() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::Bool),
        any::<i64>().prop_map(Value::Int),
        (-300i64..300).prop_map(Value::Int),
        any::<f64>().prop_map(|float| Value::Float(Float::new(float))),
        any::<f32>().prop_map(|float| Value::Float(Float::new(f64::from(float)))),
        (-2000i32..2000).prop_map(|n| Value::Float(Float::new(f64::from(n) / 8.0))),
        vec(any::<u8>(), 0..50).prop_map(|bytes| Value::Bytes(Bytes::new(bytes).unwrap())),
        ".{0,20}".prop_map(|text| Value::String(Text::new(&text).unwrap())),
        "[a-z]{1,5}:[a-z0-9/]{0,40}".prop_filter_map("reserved", |text| Uri::new(text).ok()).prop_map(Value::Uri),
    ]
}

pub fn value() -> impl Strategy<Value = Value> {
    scalar().prop_recursive(4, 40, 6, |below| {
        prop_oneof![
            vec(below.clone(), 0..6).prop_map(Value::List),
            vec(below.clone(), 0..6).prop_filter_map("an element twice", |values| Value::set(values).ok()),
            vec((below.clone(), below), 0..6).prop_filter_map("a key twice", |entries| Value::map(entries).ok()),
        ]
    })
}

fn datum() -> impl Strategy<Value = Object> {
    value().prop_map(|value| {
        let mut records = Vec::new();
        value.put(&mut records).unwrap();
        Object::decode(&records.last().unwrap().1).unwrap()
    })
}

fn element() -> impl Strategy<Value = Element> {
    value().prop_map(|value| value.element(&mut Vec::new()).unwrap())
}

fn node() -> impl Strategy<Value = Node> {
    let inputs = || vec(any_id().prop_map(NodeId), 0..5);
    let function = "dml\\+exec://[a-z]{1,8}/[a-z]{0,20}".prop_map(|text| Uri::new(text).unwrap());
    let function = function.prop_map(|uri| Element::of(Datum::Uri(uri)).0);
    prop_oneof![
        element().prop_map(|value| Node::Literal { value }),
        (function, inputs()).prop_map(|(function, inputs)| Node::Call { function, inputs }),
        any_id().prop_map(|id| Node::Import { dag: DagId(id) }),
        (0..Builtin::ALL.len(), inputs()).prop_map(|(at, inputs)| Node::Builtin { function: Builtin::ALL[at], inputs }),
    ]
}

fn names() -> impl Strategy<Value = Vec<(Name, Id)>> {
    let name = "[a-zé]{1,3}|.{1,30}".prop_filter_map("no name", |text| Name::new(&text).ok());
    btree_map(name, any_id(), 0..6).prop_map(|names| names.into_iter().collect())
}

fn exec_map() -> impl Strategy<Value = ExecMap> {
    let leaf = btree_map(any_id(), any_id(), 1..=16);
    let leaf = leaf.prop_map(|all| ExecMap::Leaf(all.into_iter().map(|(n, e)| (NodeId(n), ExecId(e))).collect()));
    let branch = proptest::array::uniform16(proptest::option::of(any_id().prop_map(ExecMapId)));
    let branch = branch.prop_filter("empty", |all| all.iter().any(Option::is_some));
    prop_oneof![leaf, branch.prop_map(|children| ExecMap::Branch(Box::new(children)))]
}

pub fn object() -> impl Strategy<Value = Object> {
    let commit = (any_id(), vec(any_id(), 0..3), proptest::option::of(any_id())).prop_filter_map(
        "a parent twice",
        |(tree, parents, execs)| {
            let twice = parents.len() == 2 && parents[0] == parents[1];
            let parents = parents.into_iter().map(CommitId).collect();
            (!twice).then_some(Commit { tree: TreeId(tree), parents, execs: execs.map(ExecMapId) })
        },
    );
    let word = || proptest::option::of("[a-z_0-9]{0,12}");
    let provenance = (word(), word(), word(), word()).prop_map(|(execution, run, job, instance)| Provenance {
        execution,
        run,
        job,
        instance,
    });
    let exec = (any_id(), any::<bool>(), any_id(), any::<(i64, i64)>(), provenance).prop_map(
        |(node, ok, result, (started_ms, ended_ms), provenance)| {
            let status = if ok { ExecStatus::Ok } else { ExecStatus::Error };
            Exec { node: NodeId(node), status, result: DagId(result), started_ms, ended_ms, provenance }
        },
    );
    prop_oneof![
        4 => datum(),
        2 => node().prop_map(Object::Node),
        1 => (any_id(), names()).prop_map(|(root, names)| {
            let names = names.into_iter().map(|(name, id)| (name, NodeId(id))).collect();
            Object::Dag(Dag { root: NodeId(root), names })
        }),
        1 => names().prop_map(|names| {
            Object::Tree(Tree { dags: names.into_iter().map(|(name, id)| (name, DagId(id))).collect() })
        }),
        1 => commit.prop_map(Object::Commit),
        1 => exec.prop_map(Object::Exec),
        1 => exec_map().prop_map(Object::ExecMap),
    ]
}
