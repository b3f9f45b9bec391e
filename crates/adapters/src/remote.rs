//! Remotes: repositories of objects in a folder (`file://`) or a bucket (`s3://`), for people who push and pull, and for the exchange
//! with workers. A ref names a commit and a manifest; the manifest lists immutable segments that hold everything below the commit. There
//! are no loose objects: pushing ten new objects writes one segment, one manifest and one ref. All calls block.
//!
//! Three rules keep a remote readable whatever is killed: a key is written before any key that names it; nothing but a ref is ever
//! changed; and a sweep deletes only what no ref named for the whole of its window.

pub mod bucket;
mod file;
mod manifest;
mod opened;
mod push;
mod s3;
mod segment;
mod sweep;

pub use file::Folder;
pub use opened::{BlobBytes, Opened};
pub use push::{Pushed, Source};
pub use s3::S3;
pub use sweep::{MIN_WINDOW, Swept, WINDOW};

use bucket::Bucket;
use calls::object::Meta;
use calls::refs::{BadRef, RefName};
use calls::{CommitId, Fault, Unreadable};
use manifest::{MAX_MANIFEST_BYTES, MAX_REF_BYTES, Manifest, Pointer};
use model::{Trouble, TroubleKind};
use percent_encoding::percent_decode_str;
use segment::Index;
use std::collections::BTreeMap;
use std::io::Read as _;
use std::os::unix::ffi::OsStringExt as _;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

const SCHEMA: &str = "meta/schema";

pub struct Remote {
    bucket: Arc<dyn Bucket>,
    /// Indexes of segments that were read: what the remote has. Segments never change, so neither do these.
    indexes: Mutex<BTreeMap<String, Arc<Index>>>,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RemoteError {
    #[error("`{uri}` is not a remote: {why}")]
    Uri { uri: String, why: &'static str },
    #[error("there is no repository at this address: push something to it first")]
    NoRepository,
    #[error("the remote is written in version {found} of the encoding, this program reads version {ours}")]
    Schema { found: i64, ours: i64 },
    #[error("the remote has no {name}")]
    NoRef { name: RefName },
    #[error(
        "{name} is at {remote}, which is not an ancestor of {pushed}: pull and build on it, or push with --force to replace it"
    )]
    NotFastForward { name: RefName, remote: CommitId, pushed: CommitId },
    #[error("{name} was changed by others {tries} times in a row: push again")]
    Contended { name: RefName, tries: usize },
    #[error("{name} is not {expected} any more")]
    Moved { name: RefName, expected: CommitId },
    #[error(
        "this store ignores {condition}, so two writers would overwrite one another: use a store with conditional puts"
    )]
    Unconditional { condition: &'static str },
    #[error("{key}: {why}")]
    Damaged { key: String, why: Unreadable },
    #[error(transparent)]
    Ref(#[from] BadRef),
    /// What is pushed is not whole, or could not be read.
    #[error(transparent)]
    Source(Fault<Trouble>),
    #[error(transparent)]
    Trouble(#[from] Trouble),
}

/// What a remote is opened for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    Read,
    /// Makes the repository if there is none.
    Write,
}

impl Remote {
    pub fn open(uri: &str, access: Access) -> Result<Remote, RemoteError> {
        let bad = |why| RemoteError::Uri { uri: uri.to_owned(), why };
        match uri.split_once("://") {
            Some(("file", path)) => Remote::at(Arc::new(Folder::new(folder(path).map_err(bad)?)), access),
            Some(("s3", _)) => Remote::in_s3(S3::new(uri)?, access),
            _ => Err(bad("write file:///PATH or s3://BUCKET/PREFIX")),
        }
    }

    /// A store that ignores the conditions of puts is refused before anything is written to it.
    pub fn in_s3(s3: S3, access: Access) -> Result<Remote, RemoteError> {
        if access == Access::Write {
            s3.probe()?;
        }
        Remote::at(Arc::new(s3), access)
    }

    pub fn at(bucket: Arc<dyn Bucket>, access: Access) -> Result<Remote, RemoteError> {
        let remote = Remote { bucket, indexes: Mutex::default() };
        remote.check_schema(access)?;
        Ok(remote)
    }

    fn check_schema(&self, access: Access) -> Result<(), RemoteError> {
        let ours = Meta::CURRENT;
        let found = self.bucket.whole(SCHEMA, MAX_REF_BYTES)?;
        let found = match (found, access) {
            (Some(found), _) => found,
            (None, Access::Read) => return Err(RemoteError::NoRepository),
            (None, Access::Write) => {
                // Another writer may be first; what is there then is read.
                self.bucket.swap(SCHEMA, None, &ours.encode())?;
                self.bucket.whole(SCHEMA, MAX_REF_BYTES)?.ok_or(RemoteError::NoRepository)?
            }
        };
        match Meta::decode(&found) {
            Ok(meta) if meta == ours => Ok(()),
            Ok(meta) => Err(RemoteError::Schema { found: meta.schema, ours: ours.schema }),
            Err(why) => Err(RemoteError::Damaged { key: SCHEMA.to_owned(), why }),
        }
    }

    /// All refs that are not deleted, in the order of their names.
    pub fn refs(&self) -> Result<Vec<(RefName, CommitId)>, RemoteError> {
        let mut refs = Vec::new();
        for listed in self.bucket.list("refs")? {
            let name: RefName = listed.key.parse()?;
            // One that was deleted since it was listed is none.
            if let Some((_, Pointer::At { commit, .. })) = self.pointer(&name)? {
                refs.push((name, commit));
            }
        }
        Ok(refs)
    }

    pub fn commit(&self, name: &RefName) -> Result<Option<CommitId>, RemoteError> {
        Ok(match self.pointer(name)? {
            Some((_, Pointer::At { commit, .. })) => Some(commit),
            _ => None,
        })
    }

    /// Everything below a ref, to be read.
    pub fn fetch(&self, name: &RefName) -> Result<Opened, RemoteError> {
        match self.pointer(name)? {
            Some((_, pointer @ Pointer::At { .. })) => self.opened(&pointer),
            _ => Err(RemoteError::NoRef { name: name.clone() }),
        }
    }

    /// Deletes a ref if it is still at this commit. Its objects stay until a sweep.
    pub fn delete(&self, name: &RefName, expected: CommitId) -> Result<(), RemoteError> {
        let moved = || RemoteError::Moved { name: name.clone(), expected };
        let Some((was, Pointer::At { commit, .. })) = self.pointer(name)? else { return Err(moved()) };
        let deleted = Pointer::Deleted { version: manifest::VERSION, deleted: unique()? }.document();
        let key = name.to_string();
        if commit != expected || !self.swap(&key, Some(&was), &deleted)? {
            return Err(moved());
        }
        self.bucket.remove(&key, &deleted)?;
        Ok(())
    }

    /// The document of a ref as it is stored, and read.
    fn pointer(&self, name: &RefName) -> Result<Option<(Vec<u8>, Pointer)>, RemoteError> {
        let key = name.to_string();
        let Some(bytes) = self.bucket.whole(&key, MAX_REF_BYTES)? else { return Ok(None) };
        let pointer = Pointer::read(&bytes).map_err(|why| RemoteError::Damaged { key, why })?;
        Ok(Some((bytes, pointer)))
    }

    fn manifest(&self, pointer: &Pointer) -> Result<(CommitId, Manifest), RemoteError> {
        let Pointer::At { commit, manifest, hash, .. } = pointer else {
            return Err(Trouble::internal("a deleted ref has no manifest").into());
        };
        let key = manifest_key(manifest);
        let bytes = self.bucket.whole(&key, MAX_MANIFEST_BYTES)?.ok_or_else(|| missing(&key))?;
        let manifest = Manifest::read(&bytes, *hash).map_err(|why| RemoteError::Damaged { key, why })?;
        Ok((*commit, manifest))
    }

    fn opened(&self, pointer: &Pointer) -> Result<Opened, RemoteError> {
        let (commit, manifest) = self.manifest(pointer)?;
        let parts = manifest.segments.into_iter().map(|segment| Ok((self.index(&segment)?, segment)));
        Ok(Opened::new(Arc::clone(&self.bucket), commit, parts.collect::<Result<_, RemoteError>>()?))
    }

    fn index(&self, segment: &manifest::Segment) -> Result<Arc<Index>, RemoteError> {
        let known = self.indexes.lock().expect("no holder panics").get(&segment.name).cloned();
        if let Some(index) = known {
            return Ok(index);
        }
        let key = segment.key();
        let bytes = segment.bytes() - segment.index_at;
        let read = self.bucket.range(&key, segment.index_at, bytes)?.ok_or_else(|| missing(&key))?;
        let index = Index::read(read, segment.entries(), segment.index)
            .map_err(|why| RemoteError::Damaged { key, why })
            .map(Arc::new)?;
        self.indexes.lock().expect("no holder panics").insert(segment.name.clone(), Arc::clone(&index));
        Ok(index)
    }

    /// Changes a ref. An answer that was lost is looked up: the document names something that is used once.
    fn swap(&self, key: &str, from: Option<&[u8]>, to: &[u8]) -> Result<bool, Trouble> {
        match self.bucket.swap(key, from, to) {
            Err(trouble) if trouble.effect == model::Effect::Perhaps => {
                let is = self.bucket.whole(key, MAX_REF_BYTES)?;
                if is.as_deref() == Some(to) { Ok(true) } else { Err(trouble) }
            }
            known => known,
        }
    }
}

fn manifest_key(name: &str) -> String {
    format!("manifests/{name}")
}

fn blob_key(home: u64, hash: calls::Id) -> String {
    format!("blobs/{home:016x}/{hash}")
}

fn missing(key: &str) -> Trouble {
    Trouble::new(TroubleKind::NotFound, format!("{key} is missing on the remote"))
}

/// The folder of a `file://` remote.
pub(crate) fn local_folder(uri: &str) -> Option<PathBuf> {
    folder(uri.strip_prefix("file://")?).ok()
}

/// The path of a `file://` URI. There is no other host.
fn folder(path: &str) -> Result<PathBuf, &'static str> {
    if !path.starts_with('/') || path.contains(['?', '#']) {
        return Err("write file:///PATH, an absolute path of this machine");
    }
    let path = PathBuf::from(std::ffi::OsString::from_vec(percent_decode_str(path).collect()));
    let plain = path.components().all(|part| part != std::path::Component::ParentDir);
    if plain { Ok(path) } else { Err("the path contains `..`") }
}

/// A name that no other writer chooses.
fn unique() -> Result<String, Trouble> {
    let mut number = [0; 8];
    let source = std::path::Path::new("/dev/urandom");
    std::fs::File::open(source).and_then(|mut file| file.read_exact(&mut number)).map_err(crate::local::at(source))?;
    Ok(format!("{:016x}", u64::from_be_bytes(number)))
}
