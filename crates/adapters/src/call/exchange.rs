//! What the program behind an adapter does with a request: reads the inputs of the call from the remote, and puts its result there.

use crate::remote::{Access, Opened, Remote, RemoteError};
use calls::adapter::{AdapterAnswer, Request};
use calls::call::value_of;
use calls::name::Name;
use calls::record::{Commit, Dag, ExecStatus, Node, Tree};
use calls::refs::RefName;
use calls::uri::Blob;
use calls::value::BadValue;
use calls::{Fault, Memory, NodeId, Object, Read, Reference, Value};
use model::Trouble;
use std::io;

/// The dag of a result in the tree of its commit.
const RESULT: &str = "result";

pub struct Exchange<'a> {
    request: &'a Request,
    remote: Remote,
    name: RefName,
    snapshot: Opened,
}

#[derive(Debug, thiserror::Error)]
pub enum ExchangeError {
    #[error(transparent)]
    Remote(#[from] RemoteError),
    #[error("an input cannot be read: {0}")]
    Input(#[from] Fault<Trouble>),
    #[error("the input {0} is not a value: only literals and imports of literals are")]
    NotAValue(NodeId),
    #[error("the result cannot be stored: {0}")]
    Value(#[from] BadValue),
}

impl<'a> Exchange<'a> {
    pub fn open(request: &'a Request) -> Result<Exchange<'a>, ExchangeError> {
        let name: RefName = request.snapshot.parse().map_err(RemoteError::Ref)?;
        let remote = Remote::open(&request.remote, Access::Read)?;
        let snapshot = remote.fetch(&name)?;
        Ok(Exchange { request, remote, name, snapshot })
    }

    /// The values of the call's inputs, in their order.
    pub fn inputs(&mut self) -> Result<Vec<Value>, ExchangeError> {
        let value = |input: &NodeId| value_of(&mut self.snapshot, *input)?.ok_or(ExchangeError::NotAValue(*input));
        self.request.inputs.iter().map(value).collect()
    }

    /// Puts a value on the remote as the call's result: a dag, in a commit on top of the snapshot. Doing it again
    /// changes nothing.
    pub fn publish(mut self, status: ExecStatus, value: &Value) -> Result<AdapterAnswer, ExchangeError> {
        let mut made = Memory::default();
        let mut records = Vec::new();
        let value = value.element(&mut records)?;
        made.add(records);
        let root = NodeId(made.put(&Object::Node(Node::Literal { value })).id);
        let result = Dag::of(root);
        made.put(&Object::Dag(result.clone()));
        let name = Name::new(RESULT).map_err(|bad| Trouble::internal(bad.to_string())).map_err(RemoteError::from)?;
        let tree = Tree { dags: [(name, result.id())].into() };
        made.put(&Object::Tree(tree.clone()));
        let answer = AdapterAnswer::Done { status, result: result.id() };
        let at = self.snapshot.commit;
        if calls::read::commit(&mut self.snapshot, at)?.tree == tree.id() {
            return Ok(answer);
        }
        let commit = Commit { tree: tree.id(), parents: vec![at], execs: None };
        made.put(&Object::Commit(commit.clone()));
        let mut both = Both { made, snapshot: self.snapshot };
        self.remote.push(&mut both, &self.name, commit.id(), false)?;
        Ok(answer)
    }
}

/// What was made here, on top of what the remote has.
struct Both {
    made: Memory,
    snapshot: Opened,
}

impl Read for Both {
    type Error = Trouble;
    fn record(&mut self, of: Reference) -> Result<Option<Vec<u8>>, Trouble> {
        match self.made.records.get(&of) {
            Some(record) => Ok(Some(record.clone())),
            None => self.snapshot.record(of),
        }
    }
    fn has_blob(&mut self, blob: Blob) -> Result<bool, Trouble> {
        self.snapshot.has_blob(blob)
    }
}

impl crate::remote::Source for Both {
    fn blob(&mut self, blob: Blob) -> Result<Option<Box<dyn io::Read + '_>>, Trouble> {
        Ok(self.snapshot.blob(blob).map(|bytes| Box::new(bytes) as Box<dyn io::Read>))
    }
}
