//! The exchange of one execution as its Executor sees it: a `file://` remote in a folder that only this user may enter. The call's closure
//! goes there before the adapter is asked; what its worker made is read from there and checked; after the end the folder is removed.

use crate::remote::{Access, Opened, Remote, RemoteError, Source};
use calls::exchange::{accept, snapshot};
use calls::refs::{BadRef, RefName};
use calls::uri::Blob;
use calls::{DagId, Fault, NodeId, Read, Records, Reference};
use model::Trouble;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_encode};
use std::fmt::Display;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

/// All that stands for itself in the path of a URI.
const PATH: &AsciiSet = &NON_ALPHANUMERIC.remove(b'/').remove(b'-').remove(b'_').remove(b'.').remove(b'~');

#[derive(Debug, Clone)]
pub struct Handover {
    folder: PathBuf,
    name: RefName,
}

/// What a worker made, whole and valid.
pub struct Made {
    pub records: Records,
    pub blobs: Vec<Blob>,
    from: Opened,
}

/// Why there is no result.
#[derive(Debug, thiserror::Error)]
pub enum NoResult {
    #[error(
        "the adapter answered `done`, and no result is on the remote: it must put the result there first (repl adapter result)"
    )]
    NotThere,
    #[error(transparent)]
    Remote(#[from] RemoteError),
    #[error("the result is not valid: {0}")]
    Fault(Fault<Trouble>),
}

impl NoResult {
    /// Whether looking again may help.
    pub fn may_pass(&self) -> bool {
        match self {
            NoResult::NotThere => true,
            NoResult::Remote(error) => {
                matches!(error, RemoteError::Trouble(_) | RemoteError::NoRepository | RemoteError::NoRef { .. })
            }
            NoResult::Fault(fault) => fault.may_pass(),
        }
    }
}

impl Handover {
    /// `root` is the folder of all exchanges; `execution` is the UUID of one.
    pub fn new(root: &Path, execution: &str) -> Result<Handover, BadRef> {
        Ok(Handover { folder: root.join(execution), name: format!("refs/exec/{execution}").parse()? })
    }

    /// The remote, as the adapter is told. What an adapter puts beside it goes with the folder.
    pub fn uri(&self) -> String {
        let path = self.folder.join("exchange");
        format!("file://{}", percent_encode(path.as_os_str().as_bytes(), PATH))
    }

    pub fn name(&self) -> &RefName {
        &self.name
    }

    /// Puts the call with everything below it on the remote, unless it is there: a worker may have built on it.
    pub fn export<S>(&self, from: &mut S, node: NodeId) -> Result<(), RemoteError>
    where
        S: Source,
        S::Error: Display,
    {
        let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.folder);
        made.map_err(|error| Trouble::internal(format!("cannot make {}: {error}", self.folder.display())))?;
        let remote = Remote::open(&self.uri(), Access::Write)?;
        if remote.commit(&self.name)?.is_some() {
            return Ok(());
        }
        let (commit, records) = snapshot(node);
        remote.push(&mut Snapshot { records, below: from }, &self.name, commit, false).map(drop)
    }

    /// The result of an adapter that answered `done`, checked.
    pub fn fetch(&self, node: NodeId, result: DagId) -> Result<Made, NoResult> {
        let mut from = Remote::open(&self.uri(), Access::Read)?.fetch(&self.name)?;
        let (at, first) = (from.commit, snapshot(node).0);
        if at == first {
            return Err(NoResult::NotThere);
        }
        let closure = accept(&mut from, first, at, result).map_err(NoResult::Fault)?;
        let mut records = Records::new();
        for object in closure.objects {
            let record = from.record(object).map_err(RemoteError::from)?;
            records.push((object, record.ok_or(NoResult::Fault(Fault::Missing(object)))?));
        }
        Ok(Made { records, blobs: closure.blobs.into_iter().collect(), from })
    }

    /// Removes all of it. Doing it again changes nothing.
    pub fn remove(&self) -> io::Result<()> {
        match std::fs::remove_dir_all(&self.folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed,
        }
    }
}

impl Made {
    /// The bytes of a blob that the result names.
    pub fn open(&mut self, blob: Blob) -> Result<impl io::Read + '_, NoResult> {
        self.from.blob(blob).ok_or(NoResult::Fault(Fault::MissingBlob(blob)))
    }
}

/// The records of a snapshot on top of the call's closure.
struct Snapshot<'a, S> {
    records: Records,
    below: &'a mut S,
}

impl<S: Read> Read for Snapshot<'_, S> {
    type Error = S::Error;
    fn record(&mut self, of: Reference) -> Result<Option<Vec<u8>>, S::Error> {
        match self.records.iter().find(|(made, _)| *made == of) {
            Some((_, record)) => Ok(Some(record.clone())),
            None => self.below.record(of),
        }
    }
    fn has_blob(&mut self, blob: Blob) -> Result<bool, S::Error> {
        self.below.has_blob(blob)
    }
}

impl<S: Source> Source for Snapshot<'_, S> {
    fn blob(&mut self, blob: Blob) -> Result<Option<Box<dyn io::Read + '_>>, S::Error> {
        self.below.blob(blob)
    }
}
