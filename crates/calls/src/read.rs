//! Where objects come from. The store implements [`Read`]; [`Memory`] is the same in memory, for tests and for exchanges.

use crate::datum::{Datum, Element};
use crate::exec_map::ExecMap;
use crate::id::{CommitId, DagId, DatumId, ExecId, ExecMapId, NodeId, Reference, TreeId};
use crate::object::Object;
use crate::record::{Commit, Dag, Exec, Node, Tree};
use crate::unreadable::{Code, Unreadable};
use crate::uri::Blob;
use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;

pub trait Read {
    /// The source itself failed, such as a database or a remote.
    type Error;
    /// The bytes that are stored under an id, unchecked.
    fn record(&mut self, of: Reference) -> Result<Option<Vec<u8>>, Self::Error>;
    fn has_blob(&mut self, blob: Blob) -> Result<bool, Self::Error>;
}

/// Why an object, or something below it, could not be had.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Fault<E> {
    #[error("{0} is missing")]
    Missing(Reference),
    #[error("the blob {} is missing", .0.uri())]
    MissingBlob(Blob),
    #[error("{at}: {why}")]
    Unreadable { at: Reference, why: Unreadable },
    #[error("{what} is larger than {limit}")]
    TooLarge { what: &'static str, limit: usize },
    #[error("{0}")]
    Source(E),
}

impl<E> Fault<E> {
    pub(crate) fn flawed(at: impl Into<Reference>, code: Code, detail: &'static str) -> Fault<E> {
        let at = at.into();
        Fault::Unreadable { at, why: Unreadable { code, record: at.kind.as_str(), detail } }
    }
    /// Whether asking again may help: what is missing may be on its way.
    pub fn may_pass(&self) -> bool {
        matches!(self, Fault::Missing(_) | Fault::MissingBlob(_) | Fault::Source(_))
    }
}

/// Reads and checks one object.
pub fn object<R: Read + ?Sized>(from: &mut R, of: Reference) -> Result<Object, Fault<R::Error>> {
    let bytes = from.record(of).map_err(Fault::Source)?.ok_or(Fault::Missing(of))?;
    Object::read(of, &bytes).map_err(|why| Fault::Unreadable { at: of, why })
}

macro_rules! readers {
    ($($name:ident $id:ident $kind:ident)*) => {$(
        pub fn $name<R: Read + ?Sized>(from: &mut R, id: $id) -> Result<$kind, Fault<R::Error>> {
            match object(from, id.into())? {
                Object::$kind(found) => Ok(found),
                other => unreachable!("{} was read as a {}", Reference::from(id), other.kind()),
            }
        }
    )*};
}

readers! {
    datum DatumId Datum
    node NodeId Node
    dag DagId Dag
    tree TreeId Tree
    commit CommitId Commit
    exec ExecId Exec
    exec_map ExecMapId ExecMap
}

/// An element of another record. One that is named by id although it is small enough to be inlined is not canonical.
pub fn element<R: Read + ?Sized>(from: &mut R, of: &Element) -> Result<Datum, Fault<R::Error>> {
    let id = match of {
        Element::Inline(datum) => return Ok(datum.clone()),
        Element::Id(id) => *id,
    };
    let found = datum(from, id)?;
    match Element::of(found.clone()).0 {
        Element::Inline(_) => Err(Fault::flawed(id, Code::InvalidPayload, "element_not_inlined")),
        Element::Id(_) => Ok(found),
    }
}

/// New records, in the order in which they may be stored: children before parents.
pub type Records = Vec<(Reference, Vec<u8>)>;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Memory {
    pub records: BTreeMap<Reference, Vec<u8>>,
    pub blobs: BTreeSet<Blob>,
}

impl Memory {
    pub fn add(&mut self, records: impl IntoIterator<Item = (Reference, Vec<u8>)>) {
        self.records.extend(records);
    }
    pub fn put(&mut self, object: &Object) -> Reference {
        let reference = object.reference();
        self.records.insert(reference, object.encode());
        reference
    }
}

impl Read for Memory {
    type Error = Infallible;
    fn record(&mut self, of: Reference) -> Result<Option<Vec<u8>>, Infallible> {
        Ok(self.records.get(&of).cloned())
    }
    fn has_blob(&mut self, blob: Blob) -> Result<bool, Infallible> {
        Ok(self.blobs.contains(&blob))
    }
}
