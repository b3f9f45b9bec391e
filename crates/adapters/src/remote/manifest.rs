//! The documents of a remote: a ref names its commit and its manifest, a manifest the segments in which everything below the commit is.

use calls::{Code, CommitId, Id, Unreadable};
use serde::{Deserialize, Serialize};

pub const VERSION: i64 = 1;
/// Of a ref's document.
pub const MAX_REF_BYTES: u64 = 4 << 10;
/// Of a manifest.
pub const MAX_MANIFEST_BYTES: u64 = 4 << 20;

/// What a ref points to. The name of the manifest is used once, so no two writers ever write the same document.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Pointer {
    At {
        version: i64,
        commit: CommitId,
        manifest: String,
        /// Of the manifest's bytes.
        hash: Id,
    },
    /// Stands where a ref was, because S3 has no conditional delete.
    Deleted { version: i64, deleted: String },
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    pub version: i64,
    pub segments: Vec<Segment>,
}

/// A segment, with all that is needed to read its index.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Segment {
    /// 16 hexadecimal digits, used once.
    pub name: String,
    pub index_at: u64,
    pub objects: u64,
    pub blobs: u64,
    /// Hash of the index.
    pub index: Id,
}

impl Segment {
    pub fn key(&self) -> String {
        format!("segments/{}", self.name)
    }
    pub fn entries(&self) -> u64 {
        self.objects + self.blobs
    }
    pub fn bytes(&self) -> u64 {
        self.index_at + self.entries() * super::segment::ENTRY as u64
    }
}

impl Pointer {
    pub fn document(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("plain data")
    }
    pub fn read(bytes: &[u8]) -> Result<Pointer, Unreadable> {
        let read: Pointer = parse(bytes, "ref")?;
        match &read {
            Pointer::At { manifest, .. } if !is_name(manifest) => {
                Err(flaw(Code::InvalidPayload, "ref", "manifest_name"))
            }
            _ => Ok(read),
        }
    }
}

impl Manifest {
    pub fn document(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("plain data")
    }
    pub fn read(bytes: &[u8], hash: Id) -> Result<Manifest, Unreadable> {
        if Id::of(bytes) != hash {
            return Err(flaw(Code::InvalidPayload, "manifest", "id_mismatch"));
        }
        let read: Manifest = parse(bytes, "manifest")?;
        if !read.segments.iter().all(|segment| is_name(&segment.name)) {
            return Err(flaw(Code::InvalidPayload, "manifest", "segment_name"));
        }
        // Sums of these must not overflow.
        let fits =
            |segment: &Segment| [segment.index_at, segment.objects, segment.blobs].iter().all(|it| *it < 1 << 40);
        if !read.segments.iter().all(fits) {
            return Err(flaw(Code::InvalidBounds, "manifest", "segment_too_large"));
        }
        Ok(read)
    }
}

fn parse<T: serde::de::DeserializeOwned>(bytes: &[u8], record: &'static str) -> Result<T, Unreadable> {
    let value: serde_json::Value =
        serde_json::from_slice(bytes).map_err(|_| flaw(Code::InvalidHeader, record, "not_json"))?;
    if value.get("version").and_then(serde_json::Value::as_i64) != Some(VERSION) {
        return Err(flaw(Code::InvalidHeader, record, "version_unknown"));
    }
    serde_json::from_value(value).map_err(|_| flaw(Code::InvalidPayload, record, "fields"))
}

fn flaw(code: Code, record: &'static str, detail: &'static str) -> Unreadable {
    Unreadable { code, record, detail }
}

/// Names become keys and paths.
pub fn is_name(text: &str) -> bool {
    text.len() == 16 && text.bytes().all(|c| matches!(c, b'0'..=b'9' | b'a'..=b'f'))
}
