//! Segments: many records in one immutable file, and an index by which they are found. Owns the format; reads and writes nothing.
//!
//! A segment is [`MAGIC`], the records one after another, and the index: entries of [`ENTRY`] bytes in the order of kind and id. An entry
//! is the kind (1 byte), the id (32), where the record begins (8, big-endian) and how long it is (8). A blob has an entry, too (kind
//! [`BLOB`], its hash, the number of its home, its size); its bytes are in `blobs/<home>/<hash>`.

use calls::uri::Blob;
use calls::{Code, Id, Kind, Reference, Unreadable};
use std::collections::BTreeMap;

pub const MAGIC: &[u8] = b"dml-segment-1\n";
pub const ENTRY: usize = 49;
/// Sorts behind every kind of record.
pub const BLOB: u8 = 255;

type Key = [u8; 33];

fn key(kind: u8, id: Id) -> Key {
    let mut key = [kind; 33];
    key[1..].copy_from_slice(&id.0);
    key
}

fn key_of(reference: Reference) -> Key {
    key(reference.kind as u8, reference.id)
}

/// Collects records until they are as many as one segment should have.
pub struct Builder {
    data: Vec<u8>,
    entries: BTreeMap<Key, (u64, u64)>,
}

/// The bytes of a segment, and what its manifest says about it.
pub struct Built {
    pub bytes: Vec<u8>,
    pub index_at: u64,
    pub objects: u64,
    pub blobs: u64,
    pub index: Id,
}

impl Builder {
    pub fn new() -> Builder {
        Builder { data: MAGIC.to_vec(), entries: BTreeMap::new() }
    }
    pub fn bytes(&self) -> usize {
        self.data.len() + self.entries.len() * ENTRY
    }
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
    pub fn add(&mut self, reference: Reference, record: &[u8]) {
        if let std::collections::btree_map::Entry::Vacant(free) = self.entries.entry(key_of(reference)) {
            free.insert((self.data.len() as u64, record.len() as u64));
            self.data.extend_from_slice(record);
        }
    }
    pub fn add_blob(&mut self, blob: Blob, home: u64) {
        self.entries.insert(key(BLOB, blob.hash), (home, blob.bytes));
    }
    pub fn build(self) -> Built {
        let Builder { data: mut bytes, entries } = self;
        let index_at = bytes.len() as u64;
        let blobs = entries.keys().filter(|key| key[0] == BLOB).count() as u64;
        for (key, (at, length)) in &entries {
            bytes.extend_from_slice(key);
            bytes.extend_from_slice(&at.to_be_bytes());
            bytes.extend_from_slice(&length.to_be_bytes());
        }
        let index = Id::of(&bytes[index_at as usize..]);
        Built { index_at, objects: entries.len() as u64 - blobs, blobs, index, bytes }
    }
}

/// The index of a segment as it is stored, searched in place: a million objects are 49 MB and no allocation each.
pub struct Index(Vec<u8>);

/// Where a record is in its segment; for a blob, its home and size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    pub at: u64,
    pub bytes: u64,
}

impl Index {
    pub fn read(bytes: Vec<u8>, entries: u64, hash: Id) -> Result<Index, Unreadable> {
        let flawed = |code, detail| Err(Unreadable { code, record: "segment", detail });
        if bytes.len() as u64 != entries.saturating_mul(ENTRY as u64) {
            return flawed(Code::InvalidBounds, "index_length");
        }
        if Id::of(&bytes) != hash {
            return flawed(Code::InvalidPayload, "index_hash");
        }
        Ok(Index(bytes))
    }
    pub fn find(&self, reference: Reference) -> Option<Place> {
        self.find_key(&key_of(reference))
    }
    pub fn find_blob(&self, blob: Blob) -> Option<Place> {
        self.find_key(&key(BLOB, blob.hash)).filter(|place| place.bytes == blob.bytes)
    }
    /// Every entry in its order; none for an entry of a kind that is not known here.
    pub fn entries(&self) -> impl Iterator<Item = (Option<Entry>, Place)> {
        self.0.as_chunks::<ENTRY>().0.iter().map(|entry| {
            let (key, place) = split(entry);
            let id = Id(std::array::from_fn(|at| key[1 + at]));
            let of = match key[0] {
                BLOB => Some(Entry::Blob(Blob { hash: id, bytes: place.bytes })),
                kind => {
                    let kind = Kind::ALL.iter().find(|known| **known as u8 == kind);
                    kind.map(|kind| Entry::Record(Reference { kind: *kind, id }))
                }
            };
            (of, place)
        })
    }

    fn find_key(&self, key: &Key) -> Option<Place> {
        let entries = self.0.as_chunks::<ENTRY>().0;
        let found = entries.binary_search_by(|entry| split(entry).0.cmp(key)).ok()?;
        Some(split(&entries[found]).1)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Entry {
    Record(Reference),
    Blob(Blob),
}

fn split(entry: &[u8; ENTRY]) -> (Key, Place) {
    let number = |at: usize| u64::from_be_bytes(std::array::from_fn(|byte| entry[at + byte]));
    (std::array::from_fn(|at| entry[at]), Place { at: number(33), bytes: number(41) })
}
