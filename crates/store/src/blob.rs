//! Blobs: bytes on the file system. Synced files are named by their BLAKE3 hash within an org; artifacts and gathered logs by
//! their job or artifact. A name appears only when all its bytes are synced. Blobs are streamed, never held in memory as a whole.

use crate::installation::random;
use futures_util::{Stream, StreamExt};
use model::log::LogId;
use model::spec::BlobSource;
use model::{ArtifactId, Failure, OrgId, Refused, RunId, Trouble, TroubleKind, crash_point, slug};
use std::collections::BTreeMap;
use std::fmt;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Cursor, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// What is read from a file at once.
const PIECE: usize = 256 * 1024;
/// A draft that was not written for this long was left by a process that died.
const DRAFT_LIFE: Duration = Duration::from_secs(24 * 3600);

/// BLAKE3, 64 hexadecimal digits in lower case.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlobHash(pub [u8; 32]);

/// What a blob is called.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BlobName {
    Content { org: OrgId, hash: BlobHash },
    Artifact { org: OrgId, run: RunId, attempt: i64, artifact: ArtifactId },
    Log { org: OrgId, log: LogId },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stored {
    pub hash: BlobHash,
    pub size: i64,
}

#[derive(Clone)]
pub struct Blobs {
    place: Arc<Place>,
    source: BlobSource,
}

enum Place {
    Folder(PathBuf),
    /// For simulation.
    Memory(Mutex<BTreeMap<String, Arc<[u8]>>>),
}

impl Blobs {
    pub fn folder(root: impl Into<PathBuf>) -> Result<Blobs, Failure> {
        let root = root.into();
        let drafts = root.join("drafts");
        crate::private::folder(&root)?;
        crate::private::folder(&drafts)?;
        sweep(&drafts).map_err(|e| trouble(&drafts, e))?;
        Ok(Blobs { place: Arc::new(Place::Folder(root)), source: BlobSource::ControlPlane })
    }

    pub fn memory() -> Blobs {
        Blobs::fake(BlobSource::ControlPlane)
    }

    /// In memory, and as if machines could read it so.
    pub fn fake(source: BlobSource) -> Blobs {
        Blobs { place: Arc::new(Place::Memory(Mutex::default())), source }
    }

    /// Where machines read what is here. A folder of the control plane's host is not theirs to read.
    pub fn source(&self) -> BlobSource {
        self.source
    }

    /// Begins a blob. It is invisible until it is kept under a name, and dropping it before removes it.
    pub fn begin(&self) -> Result<Upload, Failure> {
        let draft = match &*self.place {
            Place::Memory(_) => Draft::Memory(Vec::new()),
            Place::Folder(root) => {
                let (file, path) = self.begin_file(root)?;
                Draft::File { file, path }
            }
        };
        Ok(Upload { place: self.place.clone(), draft, hasher: blake3::Hasher::new(), size: 0 })
    }

    /// A body as it arrives; refused when it is longer than `limit` bytes.
    pub async fn receive<S, B, E>(&self, mut body: S, limit: i64) -> Result<Upload, Failure>
    where
        S: Stream<Item = Result<B, E>> + Unpin,
        B: AsRef<[u8]> + Send + 'static,
        E: fmt::Display,
    {
        let mut upload = self.begin()?;
        while let Some(piece) = body.next().await {
            let piece = piece.map_err(|e| Trouble::new(TroubleKind::Network, format!("the upload broke off: {e}")))?;
            if upload.size + piece.as_ref().len() as i64 > limit {
                return Err(Refused::TooLarge { what: "the upload", limit: format!("{limit} bytes") }.into());
            }
            upload = blocking(move || upload.write(piece.as_ref()).map(|()| upload)).await?;
        }
        Ok(upload)
    }

    /// Keeps many small contents for the price of one: durable under their names when this returns. Every hash has been checked by the
    /// caller. Two calls of `syncfs` take the place of two of `fsync` for each file.
    pub fn keep_contents(&self, org: OrgId, contents: &[(BlobHash, Vec<u8>)]) -> Result<(), Failure> {
        let Place::Folder(root) = &*self.place else {
            return contents.iter().try_for_each(|(_, bytes)| {
                let mut upload = self.begin()?;
                upload.write(bytes)?;
                upload.keep_content(org, None).map(drop)
            });
        };
        let mut drafts = Vec::new();
        for (hash, bytes) in contents {
            let path = root.join(BlobName::Content { org, hash: *hash }.path());
            if path.try_exists().map_err(|e| trouble(&path, e))? {
                continue; // durable before its name appeared
            }
            let draft = self.begin_file(root)?;
            (&draft.0).write_all(bytes).map_err(|e| trouble(&draft.1.0, e))?;
            drafts.push((draft.1, path));
        }
        if drafts.is_empty() {
            return Ok(());
        }
        let kept = File::open(root).and_then(|folder| {
            nix::unistd::syncfs(&folder)?;
            for (draft, path) in &drafts {
                fs::create_dir_all(path.parent().expect("a blob lies in a folder"))?;
                crash_point!("blob.keep", fs::rename(&draft.0, path))?;
            }
            Ok(nix::unistd::syncfs(&folder)?)
        });
        kept.map_err(|e| trouble(root, e))
    }

    fn begin_file(&self, root: &Path) -> Result<(File, DraftPath), Failure> {
        let path = root.join("drafts").join(format!("{:032x}", u128::from_le_bytes(random())));
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
        Ok((file.map_err(|e| trouble(&path, e))?, DraftPath(path)))
    }

    pub fn has(&self, name: &BlobName) -> Result<bool, Failure> {
        match &*self.place {
            Place::Memory(all) => Ok(all.lock().expect("no panic while blobs are locked").contains_key(&name.path())),
            Place::Folder(root) => {
                let path = root.join(name.path());
                path.try_exists().map_err(|e| trouble(&path, e))
            }
        }
    }

    pub fn open(&self, name: &BlobName) -> Result<Download, Failure> {
        // Only the last part of its path: clients are not told where and under which number of an org it would be.
        let path = name.path();
        let gone = || Failure::from(Refused::not_found("blob", path.rsplit('/').next().unwrap_or_default()));
        match &*self.place {
            Place::Memory(all) => {
                let all = all.lock().expect("no panic while blobs are locked");
                let bytes = all.get(&name.path()).cloned().ok_or_else(gone)?;
                Ok(Download { size: bytes.len() as i64, source: Source::Memory(Cursor::new(bytes)) })
            }
            Place::Folder(root) => {
                let path = root.join(name.path());
                let file = match File::open(&path) {
                    Err(e) if e.kind() == io::ErrorKind::NotFound => return Err(gone()),
                    other => other.map_err(|e| trouble(&path, e))?,
                };
                let size = file.metadata().map_err(|e| trouble(&path, e))?.len() as i64;
                Ok(Download { size, source: Source::File(file) })
            }
        }
    }

    /// Deleting what is not there changes nothing.
    pub fn delete(&self, name: &BlobName) -> Result<(), Failure> {
        match &*self.place {
            Place::Memory(all) => drop(all.lock().expect("no panic while blobs are locked").remove(&name.path())),
            Place::Folder(root) => {
                let path = root.join(name.path());
                match crash_point!("blob.delete", fs::remove_file(&path)) {
                    Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(trouble(&path, e)),
                    _ => {}
                }
            }
        }
        Ok(())
    }
}

/// Bytes on their way to becoming a blob.
pub struct Upload {
    place: Arc<Place>,
    draft: Draft,
    hasher: blake3::Hasher,
    size: i64,
}

enum Draft {
    Memory(Vec<u8>),
    File { file: File, path: DraftPath },
}

/// Removes the draft when it is dropped; after it was renamed there is nothing to remove.
struct DraftPath(PathBuf);

impl Drop for DraftPath {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

impl Upload {
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        self.hasher.update(bytes);
        self.size += bytes.len() as i64;
        match &mut self.draft {
            Draft::Memory(all) => all.extend_from_slice(bytes),
            Draft::File { file, path } => file.write_all(bytes).map_err(|e| trouble(&path.0, e))?,
        }
        Ok(())
    }

    pub fn stored(&self) -> Stored {
        Stored { hash: BlobHash(*self.hasher.finalize().as_bytes()), size: self.size }
    }

    /// Keeps it as content of `org`, and checks that it has the hash that the sender announced.
    pub fn keep_content(self, org: OrgId, expected: Option<BlobHash>) -> Result<Stored, Failure> {
        let stored = self.stored();
        if expected.is_some_and(|expected| expected != stored.hash) {
            return Err(Refused::invalid("hash", format!("the bytes hash to {}", stored.hash)).into());
        }
        self.keep(&BlobName::Content { org, hash: stored.hash })
    }

    /// Durable under its name when this returns: file synced, renamed, folders synced.
    pub fn keep(self, name: &BlobName) -> Result<Stored, Failure> {
        let stored = self.stored();
        match (self.draft, &*self.place) {
            (Draft::Memory(bytes), Place::Memory(all)) => {
                all.lock().expect("no panic while blobs are locked").insert(name.path(), bytes.into());
            }
            (Draft::File { file, path: draft }, Place::Folder(root)) => {
                let path = root.join(name.path());
                let folder = path.parent().expect("a blob lies in a folder");
                let kept = file.sync_all().and_then(|()| make_folders(root, folder)).and_then(|()| {
                    crash_point!("blob.keep", fs::rename(&draft.0, &path))?;
                    File::open(folder)?.sync_all()
                });
                kept.map_err(|e| trouble(&path, e))?;
            }
            _ => unreachable!("a draft belongs to the place it was begun in"),
        }
        Ok(stored)
    }

    pub async fn keep_async(self, name: BlobName) -> Result<Stored, Failure> {
        blocking(move || self.keep(&name)).await
    }

    pub async fn keep_content_async(self, org: OrgId, expected: Option<BlobHash>) -> Result<Stored, Failure> {
        blocking(move || self.keep_content(org, expected)).await
    }
}

/// An open blob. It stays readable although it is deleted meanwhile.
pub struct Download {
    pub size: i64,
    source: Source,
}

enum Source {
    Memory(Cursor<Arc<[u8]>>),
    File(File),
}

impl Download {
    pub fn read_all(mut self) -> Result<Vec<u8>, Failure> {
        let mut bytes = Vec::with_capacity(self.size as usize);
        self.read_to_end(&mut bytes).map_err(|e| trouble(Path::new("a blob"), e))?;
        Ok(bytes)
    }

    /// Piece by piece, for an answer's body.
    pub fn into_stream(self) -> impl Stream<Item = io::Result<Vec<u8>>> + Send {
        futures_util::stream::try_unfold(self, |mut download| async move {
            let piece = blocking(move || {
                let mut piece = Vec::with_capacity(PIECE);
                let read = download.by_ref().take(PIECE as u64).read_to_end(&mut piece);
                read.map(|_| (piece, download)).map_err(|e| trouble(Path::new("a blob"), e))
            });
            let (piece, download) = piece.await.map_err(io::Error::other)?;
            Ok(if piece.is_empty() { None } else { Some((piece, download)) })
        })
    }
}

impl Read for Download {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match &mut self.source {
            Source::Memory(bytes) => bytes.read(into),
            Source::File(file) => file.read(into),
        }
    }
}

impl Seek for Download {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        match &mut self.source {
            Source::Memory(bytes) => bytes.seek(to),
            Source::File(file) => file.seek(to),
        }
    }
}

impl BlobName {
    /// Made of numbers and hex digits only, so that no name leaves its org's folder.
    fn path(&self) -> String {
        match self {
            BlobName::Content { org, hash } => format!("{}/content/{}/{hash}", org.slug(), &hash.to_string()[..2]),
            BlobName::Artifact { org, run, attempt, artifact } => {
                format!("{}/artifacts/{}/{}/{}", org.slug(), run.slug(), slug(*attempt), artifact.slug())
            }
            BlobName::Log { org, log: LogId::Job(job) } => format!("{}/logs/{}", org.slug(), job.slug()),
            BlobName::Log { org, log: LogId::Step(step) } => {
                format!("{}/logs/{}-{}", org.slug(), step.id.slug(), slug(step.number))
            }
        }
    }
}

impl BlobHash {
    pub fn of(bytes: &[u8]) -> BlobHash {
        BlobHash(*blake3::hash(bytes).as_bytes())
    }
}
impl fmt::Display for BlobHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}
impl fmt::Debug for BlobHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
impl FromStr for BlobHash {
    type Err = Refused;
    fn from_str(text: &str) -> Result<BlobHash, Refused> {
        let lower = text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
        let hash = blake3::Hash::from_hex(text).ok().filter(|_| lower);
        hash.map(|hash| BlobHash(*hash.as_bytes()))
            .ok_or_else(|| Refused::invalid("hash", "write 64 hexadecimal digits in lower case"))
    }
}

/// Inside a runtime: on a thread for blocking calls, so that waiting for the disk does not block the runtime's own.
pub async fn blocking<T: Send + 'static>(
    f: impl FnOnce() -> Result<T, Failure> + Send + 'static,
) -> Result<T, Failure> {
    match tokio::runtime::Handle::try_current() {
        Ok(runtime) => {
            runtime.spawn_blocking(f).await.map_err(|e| Trouble::internal(format!("a blob task ended: {e}")))?
        }
        Err(_) => f(),
    }
}

/// Each new folder is durable in the one above it.
fn make_folders(root: &Path, folder: &Path) -> io::Result<()> {
    if folder == root || folder.is_dir() {
        return Ok(());
    }
    let above = folder.parent().expect("a blob's folder is below the root");
    make_folders(root, above)?;
    match DirBuilder::new().mode(0o700).create(folder) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
        _ => {}
    }
    File::open(above)?.sync_all()
}

/// Ages are judged by the file system's own clock, which may be another machine's.
fn sweep(drafts: &Path) -> io::Result<()> {
    let probe = drafts.join(format!("{:032x}", u128::from_le_bytes(random())));
    let now = File::create_new(&probe)?.metadata()?.modified()?;
    fs::remove_file(&probe)?;
    for draft in fs::read_dir(drafts)? {
        let draft = draft?;
        let age = draft.metadata().and_then(|meta| meta.modified()).ok().and_then(|at| now.duration_since(at).ok());
        if age.is_some_and(|age| age > DRAFT_LIFE) {
            let _ = fs::remove_file(draft.path());
        }
    }
    Ok(())
}

fn trouble(path: &Path, error: io::Error) -> Failure {
    let kind = match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => TroubleKind::DiskFull,
        _ => TroubleKind::Database,
    };
    Trouble::new(kind, format!("{}: {error}", path.display())).into()
}
