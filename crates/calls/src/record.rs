//! The records above values: nodes, dags, trees, commits and execs. What each holds, and how it is written and read.

use crate::cbor::{Next, Reader, Writer};
use crate::datum::{Datum, Element, read_id};
use crate::id::{CommitId, DagId, ExecId, ExecMapId, NodeId, Reference, TreeId};
use crate::name::Name;
use crate::object::Kind;
use crate::unreadable::{Flaw, bounds, kind, payload, text};
use std::collections::BTreeMap;

/// A merge of more heads than this is several merges.
pub const MAX_PARENTS: usize = 16;
const MAX_INPUTS: usize = 1 << 20;
/// `run_…`, `job_…`, a UUID: no id of anything is longer.
const MAX_PROVENANCE_BYTES: usize = 255;

const LITERAL: i64 = 1;
const CALL: i64 = 2;
const IMPORT: i64 = 3;
const BUILTIN: i64 = 4;

/// A step of a computation. Its id follows from what it does and from its inputs, never from when or where it is done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Node {
    Literal {
        value: Element,
    },
    /// The seed's `DML_NODE_CALL`: executed by an adapter, and cached under its id.
    Call {
        function: Element,
        inputs: Vec<NodeId>,
    },
    /// The root of another dag.
    Import {
        dag: DagId,
    },
    /// Evaluated where it is read.
    Builtin {
        function: Builtin,
        inputs: Vec<NodeId>,
    },
}

/// The functions of the reserved scheme `dml`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Builtin {
    ListConstruct,
    ListGet,
    SetConstruct,
    MapConstruct,
    MapGet,
}

impl Builtin {
    pub const ALL: &'static [Builtin] =
        &[Builtin::ListConstruct, Builtin::ListGet, Builtin::SetConstruct, Builtin::MapConstruct, Builtin::MapGet];

    pub const fn uri(self) -> &'static str {
        match self {
            Builtin::ListConstruct => "dml://list/construct",
            Builtin::ListGet => "dml://list/get",
            Builtin::SetConstruct => "dml://set/construct",
            Builtin::MapConstruct => "dml://map/construct",
            Builtin::MapGet => "dml://map/get",
        }
    }
}

impl Node {
    /// Calls alone have execs.
    pub fn is_call(&self) -> bool {
        matches!(self, Node::Call { .. })
    }
    pub fn record(&self) -> Vec<u8> {
        let mut writer = Kind::Node.writer();
        self.write(&mut writer);
        writer.0
    }
    pub fn id(&self) -> NodeId {
        NodeId::of(&self.record())
    }

    pub(crate) fn write(&self, to: &mut Writer) {
        let inputs_of = |to: &mut Writer, inputs: &[NodeId]| {
            to.array(inputs.len());
            inputs.iter().for_each(|input| to.bytes(&input.0.0));
        };
        let head = |to: &mut Writer, fields, kind| {
            to.array(fields);
            to.int(kind);
        };
        match self {
            Node::Literal { value } => {
                head(to, 2, LITERAL);
                value.write(to);
            }
            Node::Call { function, inputs } => {
                head(to, 3, CALL);
                function.write(to);
                inputs_of(to, inputs);
            }
            Node::Import { dag } => {
                head(to, 2, IMPORT);
                to.bytes(&dag.0.0);
            }
            Node::Builtin { function, inputs } => {
                head(to, 3, BUILTIN);
                to.text(function.uri());
                inputs_of(to, inputs);
            }
        }
    }

    pub(crate) fn read(from: &mut Reader) -> Result<Node, Flaw> {
        let fields = from.array()?;
        if fields == 0 {
            return Err(bounds("wrong_field_count"));
        }
        let number = from.int()?;
        let expected = match number {
            LITERAL | IMPORT => 2,
            CALL | BUILTIN => 3,
            _ => return Err(kind("node_kind_unknown")),
        };
        if fields != expected {
            return Err(bounds("wrong_field_count"));
        }
        Ok(match number {
            LITERAL => Node::Literal { value: Element::read(from)? },
            IMPORT => Node::Import { dag: DagId(read_id(from)?) },
            CALL => Node::Call { function: read_function(from)?, inputs: read_inputs(from)? },
            _ => Node::Builtin { function: read_builtin(from)?, inputs: read_inputs(from)? },
        })
    }

    pub(crate) fn references(&self) -> Vec<Reference> {
        let datum = |element: &Element| match element {
            Element::Id(id) => Some(Reference::from(*id)),
            Element::Inline(_) => None,
        };
        match self {
            Node::Literal { value } => datum(value).into_iter().collect(),
            Node::Call { function, inputs } => {
                datum(function).into_iter().chain(inputs.iter().copied().map(Reference::from)).collect()
            }
            Node::Import { dag } => vec![(*dag).into()],
            Node::Builtin { inputs, .. } => inputs.iter().copied().map(Reference::from).collect(),
        }
    }
}

/// A function is a URI. One that is named by id is checked when it is looked up.
fn read_function(from: &mut Reader) -> Result<Element, Flaw> {
    match Element::read(from)? {
        Element::Inline(datum) if !matches!(datum, Datum::Uri(_)) => Err(kind("function_not_a_uri")),
        function => Ok(function),
    }
}

fn read_builtin(from: &mut Reader) -> Result<Builtin, Flaw> {
    let uri = from.text()?;
    Builtin::ALL.iter().copied().find(|known| known.uri() == uri).ok_or(kind("builtin_unknown"))
}

fn read_inputs(from: &mut Reader) -> Result<Vec<NodeId>, Flaw> {
    let count = from.array()?;
    if count > MAX_INPUTS {
        return Err(bounds("too_many_inputs"));
    }
    (0..count).map(|_| read_id(from).map(NodeId)).collect()
}

/// A computation: its root, and names for some of its nodes. The names are for people; no id of a node depends on them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dag {
    pub root: NodeId,
    pub names: BTreeMap<Name, NodeId>,
}

impl Dag {
    pub fn of(root: NodeId) -> Dag {
        Dag { root, names: BTreeMap::new() }
    }
    pub fn record(&self) -> Vec<u8> {
        let mut writer = Kind::Dag.writer();
        self.write(&mut writer);
        writer.0
    }
    pub fn id(&self) -> DagId {
        DagId::of(&self.record())
    }
    pub(crate) fn write(&self, to: &mut Writer) {
        to.array(2);
        to.bytes(&self.root.0.0);
        write_names(to, &self.names, |id| &id.0.0);
    }
    pub(crate) fn read(from: &mut Reader) -> Result<Dag, Flaw> {
        from.fields(2)?;
        Ok(Dag { root: NodeId(read_id(from)?), names: read_names(from, |from| read_id(from).map(NodeId))? })
    }
    pub(crate) fn references(&self) -> Vec<Reference> {
        [self.root].iter().chain(self.names.values()).copied().map(Reference::from).collect()
    }
}

/// Dags by name: what a commit shows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tree {
    pub dags: BTreeMap<Name, DagId>,
}

impl Tree {
    pub fn record(&self) -> Vec<u8> {
        let mut writer = Kind::Tree.writer();
        self.write(&mut writer);
        writer.0
    }
    pub fn id(&self) -> TreeId {
        TreeId::of(&self.record())
    }
    pub(crate) fn write(&self, to: &mut Writer) {
        write_names(to, &self.dags, |id| &id.0.0);
    }
    pub(crate) fn read(from: &mut Reader) -> Result<Tree, Flaw> {
        Ok(Tree { dags: read_names(from, |from| read_id(from).map(DagId))? })
    }
    pub(crate) fn references(&self) -> Vec<Reference> {
        self.dags.values().copied().map(Reference::from).collect()
    }
}

/// A map from names to ids, its keys in the order of their encoded bytes: the shorter name first.
fn write_names<V>(to: &mut Writer, names: &BTreeMap<Name, V>, bytes: impl Fn(&V) -> &[u8; 32]) {
    let mut sorted: Vec<(&str, &V)> = names.iter().map(|(name, value)| (name.as_str(), value)).collect();
    sorted.sort_by_key(|(name, _)| (name.len(), *name));
    to.map(sorted.len());
    for (name, value) in sorted {
        to.text(name);
        to.bytes(bytes(value));
    }
}

fn read_names<V>(from: &mut Reader, value: impl Fn(&mut Reader) -> Result<V, Flaw>) -> Result<BTreeMap<Name, V>, Flaw> {
    let mut names = BTreeMap::new();
    let mut last: Option<(usize, String)> = None;
    for _ in 0..from.map()? {
        let name = read_name(from)?;
        let this = Some((name.as_str().len(), name.as_str().to_owned()));
        if last >= this {
            return Err(payload("names_not_strictly_sorted"));
        }
        last = this;
        names.insert(name, value(from)?);
    }
    Ok(names)
}

fn read_name(from: &mut Reader) -> Result<Name, Flaw> {
    use crate::name::BadName;
    Name::new(from.text()?).map_err(|bad| match bad {
        BadName::Empty => bounds("name_empty"),
        BadName::TooLong { .. } => bounds("name_too_long"),
        BadName::Control { .. } => text("name_with_control_character"),
    })
}

/// A version of a repository: what it shows, what it came from, and which exec is pinned for each call node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Commit {
    pub tree: TreeId,
    pub parents: Vec<CommitId>,
    /// The root of the exec map's trie; none while nothing is pinned.
    pub execs: Option<ExecMapId>,
}

impl Commit {
    pub fn record(&self) -> Vec<u8> {
        let mut writer = Kind::Commit.writer();
        self.write(&mut writer);
        writer.0
    }
    pub fn id(&self) -> CommitId {
        CommitId::of(&self.record())
    }
    pub(crate) fn write(&self, to: &mut Writer) {
        to.array(3);
        to.bytes(&self.tree.0.0);
        to.array(self.parents.len());
        self.parents.iter().for_each(|parent| to.bytes(&parent.0.0));
        match &self.execs {
            Some(root) => to.bytes(&root.0.0),
            None => to.null(),
        }
    }
    pub(crate) fn read(from: &mut Reader) -> Result<Commit, Flaw> {
        from.fields(3)?;
        let tree = TreeId(read_id(from)?);
        let count = from.array()?;
        if count > MAX_PARENTS {
            return Err(bounds("too_many_parents"));
        }
        let parents = (0..count).map(|_| read_id(from).map(CommitId)).collect::<Result<Vec<_>, _>>()?;
        if parents.iter().enumerate().any(|(at, parent)| parents[..at].contains(parent)) {
            return Err(payload("parent_twice"));
        }
        let execs = match from.next()? {
            Next::Null => from.null().map(|()| None)?,
            _ => Some(ExecMapId(read_id(from)?)),
        };
        Ok(Commit { tree, parents, execs })
    }
    pub(crate) fn references(&self) -> Vec<Reference> {
        let parents = self.parents.iter().copied().map(Reference::from);
        [self.tree.into()].into_iter().chain(self.execs.map(Reference::from)).chain(parents).collect()
    }
}

/// How an execution ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ExecStatus {
    Ok = 1,
    Error = 2,
}

impl ExecStatus {
    pub const fn as_str(self) -> &'static str {
        match self {
            ExecStatus::Ok => "ok",
            ExecStatus::Error => "error",
        }
    }
}

/// The end of one execution of a call node: the seed's `DML_REC_EXEC`. There is none while the call is pending.
/// Everything in it comes from the attempt and from the adapter's answer, so that writing it twice gives one id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exec {
    pub node: NodeId,
    pub status: ExecStatus,
    /// Its root node is the call's value, or describes the failure.
    pub result: DagId,
    /// Unix milliseconds.
    pub started_ms: i64,
    pub ended_ms: i64,
    pub provenance: Provenance,
}

/// Where an execution took place. What it cost is in the ledger.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Provenance {
    /// The execution's UUID: two executions of one node are two records, even if all else is equal.
    pub execution: Option<String>,
    pub run: Option<String>,
    pub job: Option<String>,
    pub instance: Option<String>,
}

impl Exec {
    pub fn record(&self) -> Vec<u8> {
        let mut writer = Kind::Exec.writer();
        self.write(&mut writer);
        writer.0
    }
    pub fn id(&self) -> ExecId {
        ExecId::of(&self.record())
    }

    /// `exec/<2 digits>/<node>/<exec>`: where an exec is found by name. Derived; no tree stores it (R111).
    pub fn path(&self) -> String {
        let node = self.node.to_string();
        format!("exec/{}/{node}/{}", &node[..2], self.id())
    }

    pub(crate) fn write(&self, to: &mut Writer) {
        to.array(6);
        to.bytes(&self.node.0.0);
        to.int(self.status as i64);
        to.bytes(&self.result.0.0);
        to.int(self.started_ms);
        to.int(self.ended_ms);
        let from = &self.provenance;
        let fields = [&from.execution, &from.run, &from.job, &from.instance];
        to.array(fields.len());
        for field in fields {
            match field {
                Some(id) => to.text(id),
                None => to.null(),
            }
        }
    }

    pub(crate) fn read(from: &mut Reader) -> Result<Exec, Flaw> {
        from.fields(6)?;
        let node = NodeId(read_id(from)?);
        let status = match from.int()? {
            1 => ExecStatus::Ok,
            2 => ExecStatus::Error,
            _ => return Err(kind("exec_status_unknown")),
        };
        let result = DagId(read_id(from)?);
        let (started_ms, ended_ms) = (from.int()?, from.int()?);
        from.fields(4)?;
        let mut field = || match from.next()? {
            Next::Null => from.null().map(|()| None),
            _ => match from.text()? {
                id if id.len() <= MAX_PROVENANCE_BYTES => Ok(Some(id.to_owned())),
                _ => Err(bounds("provenance_too_long")),
            },
        };
        let provenance = Provenance { execution: field()?, run: field()?, job: field()?, instance: field()? };
        Ok(Exec { node, status, result, started_ms, ended_ms, provenance })
    }

    pub(crate) fn references(&self) -> Vec<Reference> {
        vec![self.node.into(), self.result.into()]
    }
}
