//! Immutable records of every kind: how they are written, read back and checked, and which others they name.
//! A record is the CBOR array `[type, version, body]`; its id is the BLAKE3-256 hash of all of its bytes.

use crate::cbor::{Reader, Writer};
use crate::datum::Datum;
use crate::exec_map::ExecMap;
use crate::id::{Id, Reference};
use crate::record::{Commit, Dag, Exec, Node, Tree};
use crate::unreadable::{Code, Flaw, Unreadable, bounds};
use crate::uri::Blob;
use std::fmt;

/// The version of the encoding. Another one is another header, and therefore another id.
pub const VERSION: u8 = 1;
/// A list or a dag may have about a million elements.
pub const MAX_RECORD_BYTES: usize = 64 << 20;
/// An array of three.
const RECORD: u8 = 0x83;
const META: u8 = 1;
const TOMBSTONE: u8 = 8;

/// What a record is. The numbers stand in its header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    Datum = 2,
    Node = 3,
    Dag = 4,
    Tree = 5,
    Commit = 6,
    Exec = 9,
    /// A node of the trie that maps call nodes to their pinned execs.
    ExecMap = 11,
}

impl Kind {
    pub const ALL: &'static [Kind] =
        &[Kind::Datum, Kind::Node, Kind::Dag, Kind::Tree, Kind::Commit, Kind::Exec, Kind::ExecMap];
    pub(crate) const HEADER_BYTES: usize = 3;

    pub const fn as_str(self) -> &'static str {
        match self {
            Kind::Datum => "datum",
            Kind::Node => "node",
            Kind::Dag => "dag",
            Kind::Tree => "tree",
            Kind::Commit => "commit",
            Kind::Exec => "exec",
            Kind::ExecMap => "execmap",
        }
    }

    /// A writer that has written the header.
    pub(crate) fn writer(self) -> Writer {
        Writer(vec![RECORD, self as u8, VERSION])
    }
    /// A record from its encoded body.
    pub(crate) fn record(self, body: &[u8]) -> Vec<u8> {
        [&[RECORD, self as u8, VERSION], body].concat()
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Object {
    Datum(Datum),
    Node(Node),
    Dag(Dag),
    Tree(Tree),
    Commit(Commit),
    Exec(Exec),
    ExecMap(ExecMap),
}

impl Object {
    pub fn kind(&self) -> Kind {
        match self {
            Object::Datum(_) => Kind::Datum,
            Object::Node(_) => Kind::Node,
            Object::Dag(_) => Kind::Dag,
            Object::Tree(_) => Kind::Tree,
            Object::Commit(_) => Kind::Commit,
            Object::Exec(_) => Kind::Exec,
            Object::ExecMap(_) => Kind::ExecMap,
        }
    }

    pub fn encode(&self) -> Vec<u8> {
        let mut writer = self.kind().writer();
        match self {
            Object::Datum(datum) => datum.write(&mut writer),
            Object::Node(node) => node.write(&mut writer),
            Object::Dag(dag) => dag.write(&mut writer),
            Object::Tree(tree) => tree.write(&mut writer),
            Object::Commit(commit) => commit.write(&mut writer),
            Object::Exec(exec) => exec.write(&mut writer),
            Object::ExecMap(map) => map.write(&mut writer),
        }
        writer.0
    }

    pub fn reference(&self) -> Reference {
        Reference { kind: self.kind(), id: Id::of(&self.encode()) }
    }

    /// Reads one record. Accepts exactly what [`Object::encode`] writes.
    pub fn decode(bytes: &[u8]) -> Result<Object, Unreadable> {
        let kind = header(bytes)?;
        let body = &bytes[Kind::HEADER_BYTES..];
        read_body(kind, body).map_err(|flaw| flaw.of(kind.as_str()))
    }

    /// Reads the record that is stored under an id: it must be of that kind and hash to that id.
    pub fn read(expected: Reference, bytes: &[u8]) -> Result<Object, Unreadable> {
        let object = Object::decode(bytes)?;
        let wrong = |code, detail| Err(Unreadable { code, record: object.kind().as_str(), detail });
        if object.kind() != expected.kind {
            return wrong(Code::InvalidKind, "not_the_kind_it_is_named_as");
        }
        if Id::of(bytes) != expected.id {
            return wrong(Code::InvalidPayload, "id_mismatch");
        }
        Ok(object)
    }

    /// The objects that this one names: its children. Those come first on export and last on a sweep.
    pub fn references(&self) -> Vec<Reference> {
        match self {
            Object::Datum(datum) => datum.references().into_iter().map(Reference::from).collect(),
            Object::Node(node) => node.references(),
            Object::Dag(dag) => dag.references(),
            Object::Tree(tree) => tree.references(),
            Object::Commit(commit) => commit.references(),
            Object::Exec(exec) => exec.references(),
            Object::ExecMap(map) => map.references(),
        }
    }

    /// The blob that a record names, without decoding records that cannot name one: a datum that is a URI begins with `[7, …]`.
    pub fn named_blob(bytes: &[u8]) -> Option<Blob> {
        let body = bytes.get(Kind::HEADER_BYTES..)?;
        let may_be = bytes[1] == Kind::Datum as u8 && body.starts_with(&[0x82, 0x07]);
        if may_be { Object::decode(bytes).ok()?.blob() } else { None }
    }

    /// The blob that must be there for this record to be complete.
    pub fn blob(&self) -> Option<Blob> {
        match self {
            Object::Datum(Datum::Uri(uri)) => uri.blob(),
            _ => None,
        }
    }
}

fn header(bytes: &[u8]) -> Result<Kind, Unreadable> {
    let unknown = |code, detail| Unreadable { code, record: "unknown", detail };
    if bytes.len() > MAX_RECORD_BYTES {
        return Err(unknown(Code::InvalidBounds, "record_too_long"));
    }
    let [RECORD, number, version, ..] = *bytes else {
        let short = bytes.len() < Kind::HEADER_BYTES;
        return Err(unknown(Code::InvalidHeader, if short { "too_short" } else { "not_a_record" }));
    };
    if number == TOMBSTONE && version == VERSION {
        let read = Tombstone::decode(bytes);
        return Err(read.err().unwrap_or(Unreadable {
            code: Code::InvalidPayload,
            record: "tombstone",
            detail: "excised",
        }));
    }
    let kind = Kind::ALL.iter().copied().find(|kind| *kind as u8 == number);
    let kind = kind.ok_or_else(|| unknown(Code::InvalidHeader, "type_unknown"))?;
    if version == VERSION {
        return Ok(kind);
    }
    Err(Unreadable { code: Code::InvalidHeader, record: kind.as_str(), detail: "version_unknown" })
}

fn read_body(kind: Kind, body: &[u8]) -> Result<Object, Flaw> {
    let mut from = Reader::new(body);
    let object = match kind {
        Kind::Datum => Object::Datum(Datum::read(&mut from)?),
        Kind::Node => Object::Node(Node::read(&mut from)?),
        Kind::Dag => Object::Dag(Dag::read(&mut from)?),
        Kind::Tree => Object::Tree(Tree::read(&mut from)?),
        Kind::Commit => Object::Commit(Commit::read(&mut from)?),
        Kind::Exec => Object::Exec(Exec::read(&mut from)?),
        Kind::ExecMap => Object::ExecMap(ExecMap::read(&mut from)?),
    };
    from.end()?;
    Ok(object)
}

/// Stands in the place of a record that was removed on purpose, under the id of that record. Reading it is always an error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tombstone {
    /// Given by the person who removed the record; shown, never interpreted.
    pub reason: i64,
    pub message: String,
}

impl Tombstone {
    const MAX_MESSAGE_BYTES: usize = 4_096;

    pub fn encode(&self) -> Vec<u8> {
        let mut writer = Writer(vec![RECORD, TOMBSTONE, VERSION]);
        writer.array(2);
        writer.int(self.reason);
        writer.text(&self.message);
        writer.0
    }

    pub fn decode(bytes: &[u8]) -> Result<Tombstone, Unreadable> {
        let read = || {
            let body = bytes.strip_prefix(&[RECORD, TOMBSTONE, VERSION]).ok_or(bounds("not_a_tombstone"))?;
            let mut from = Reader::new(body);
            from.fields(2)?;
            let tombstone = Tombstone { reason: from.int()?, message: from.text()?.to_owned() };
            from.end()?;
            let fits = tombstone.message.len() <= Tombstone::MAX_MESSAGE_BYTES;
            if fits { Ok(tombstone) } else { Err(bounds("message_too_long")) }
        };
        read().map_err(|flaw: Flaw| flaw.of("tombstone"))
    }
}

/// The content of `meta/schema`: by which version of the encoding a repository is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Meta {
    pub schema: i64,
}

impl Meta {
    pub const CURRENT: Meta = Meta { schema: VERSION as i64 };

    pub fn encode(&self) -> Vec<u8> {
        let mut writer = Writer(vec![RECORD, META, VERSION]);
        writer.array(1);
        writer.int(self.schema);
        writer.0
    }

    pub fn decode(bytes: &[u8]) -> Result<Meta, Unreadable> {
        let read = || {
            let body = bytes.strip_prefix(&[RECORD, META, VERSION]).ok_or(Flaw(Code::InvalidHeader, "not_a_meta"))?;
            let mut from = Reader::new(body);
            from.fields(1)?;
            let meta = Meta { schema: from.int()? };
            from.end()?;
            Ok(meta)
        };
        read().map_err(|flaw: Flaw| flaw.of("meta"))
    }
}
