//! Pushing a commit: what the remote does not have goes into a new segment, children before parents; then the manifest; then the ref.

use super::manifest::{self, Manifest, Pointer, Segment};
use super::segment::{Builder, Entry};
use super::{Opened, Remote, RemoteError, blob_key, manifest_key, missing, sweep, unique};
use calls::history::is_fast_forward;
use calls::reach::{Closure, closure};
use calls::refs::RefName;
use calls::uri::Blob;
use calls::{Code, CommitId, Fault, Id, Memory, Read, Reference, Unreadable};
use model::{Trouble, TroubleKind};
use std::cell::Cell;
use std::collections::BTreeSet;
use std::fmt::Display;
use std::io;
use std::time::Instant;

/// Others who push to the same ref at the same time come first this often.
const TRIES: usize = 16;
/// Objects of one push.
const MAX_OBJECTS: usize = 1 << 24;
/// A segment is written when it has this much, so that it fits into memory.
const SEGMENT_BYTES: usize = 64 << 20;
/// Smaller segments are merged when there are too many.
const SMALL_BYTES: u64 = 32 << 20;
const MAX_SMALL: usize = 64;
/// As many of the smallest are merged as have this much together.
const MERGED_BYTES: u64 = 48 << 20;
const MERGED: usize = 48;
const MAX_SEGMENTS: usize = 8_192;
/// Heads of which a new ref may share segments.
const SHARED_REFS: usize = 32;

/// Where pushed objects come from: the store, or memory.
pub trait Source: Read {
    fn blob(&mut self, blob: Blob) -> Result<Option<Box<dyn io::Read + '_>>, Self::Error>;
}

/// Without blobs.
impl Source for Memory {
    fn blob(&mut self, _: Blob) -> Result<Option<Box<dyn io::Read + '_>>, Self::Error> {
        Ok(None)
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pushed {
    /// Where the ref was.
    pub previous: Option<CommitId>,
    /// What was sent.
    pub objects: usize,
    pub blobs: usize,
    pub bytes: u64,
    /// Segments that were written.
    pub segments: usize,
    /// Older segments that are now part of a new one.
    pub merged: usize,
}

impl Remote {
    /// Moves a ref to a commit, after everything below the commit is there. Fast-forward only unless forced.
    pub fn push<S>(&self, from: &mut S, name: &RefName, commit: CommitId, force: bool) -> Result<Pushed, RemoteError>
    where
        S: Source,
        S::Error: Display,
    {
        for _ in 0..TRIES {
            if let Some(pushed) = self.try_push(from, name, commit, force)? {
                return Ok(pushed);
            }
        }
        Err(RemoteError::Contended { name: name.clone(), tries: TRIES })
    }

    /// None: the ref was changed meanwhile.
    fn try_push<S>(
        &self,
        from: &mut S,
        name: &RefName,
        commit: CommitId,
        force: bool,
    ) -> Result<Option<Pushed>, RemoteError>
    where
        S: Source,
        S::Error: Display,
    {
        let began = Instant::now();
        let stored = self.pointer(name)?;
        let previous = match &stored {
            Some((_, Pointer::At { commit, .. })) => Some(*commit),
            _ => None,
        };
        let mut pushed = Pushed { previous, objects: 0, blobs: 0, bytes: 0, segments: 0, merged: 0 };
        if previous == Some(commit) {
            return Ok(Some(pushed));
        }
        let builds_on_it = previous.map(|old| is_fast_forward(from, old, commit)).transpose().map_err(source)?;
        if let (Some(false), Some(remote), false) = (builds_on_it, previous, force) {
            return Err(RemoteError::NotFastForward { name: name.clone(), remote, pushed: commit });
        }
        let known = match &stored {
            Some((_, pointer)) if builds_on_it == Some(true) => Present::own(self.opened(pointer)?),
            _ => Present::shared(self.shareable()?),
        };
        let new = closure(from, [commit.into()], &|reference| known.has(reference), MAX_OBJECTS).map_err(source)?;
        let kept = known.kept();
        let manifest = self.send(from, &new, kept, &known, &mut pushed)?;
        if began.elapsed() > sweep::PUSH_WITHIN {
            let what = "the push took too long, a sweep may have begun to delete what it wrote: push again";
            return Err(Trouble::new(TroubleKind::Timeout, what).into());
        }
        let was = stored.as_ref().map(|(bytes, _)| bytes.as_slice());
        let document = self.write_manifest(&manifest, commit)?.document();
        Ok(self.swap(&name.to_string(), was, &document)?.then_some(pushed))
    }

    /// What heads have, if no sweep has condemned it. See `sweep` for why this is safe.
    fn shareable(&self) -> Result<Vec<Opened>, RemoteError> {
        let mut found = Vec::new();
        for listed in self.bucket.list("refs/heads")?.into_iter().take(SHARED_REFS) {
            let Some((_, pointer @ Pointer::At { .. })) = self.pointer(&listed.key.parse()?)? else { continue };
            // A ref that is damaged, or was deleted meanwhile, helps nothing and hinders nothing.
            let Ok(opened) = self.opened(&pointer) else { continue };
            found.push(opened);
        }
        let condemned = self.condemned()?;
        found.retain(|opened| opened.segments().all(|segment| !condemned.contains(&segment.key())));
        Ok(found)
    }

    fn send<S>(
        &self,
        from: &mut S,
        new: &Closure,
        kept: Vec<Segment>,
        known: &Present,
        pushed: &mut Pushed,
    ) -> Result<Manifest, RemoteError>
    where
        S: Source,
        S::Error: Display,
    {
        let mut sending = Sending { remote: self, builder: Builder::new(), written: Vec::new(), pushed };
        sending.blobs(from, new, known)?;
        for reference in &new.objects {
            let record = from.record(*reference).map_err(|error| source(Fault::Source(error)))?;
            let record = record.ok_or(RemoteError::Source(Fault::Missing(*reference)))?;
            sending.builder.add(*reference, &record);
            sending.pushed.objects += 1;
            if sending.builder.bytes() >= SEGMENT_BYTES {
                sending.write()?;
            }
        }
        let kept = sending.merge(kept)?;
        sending.write()?;
        let segments: Vec<Segment> = kept.into_iter().chain(sending.written).collect();
        if segments.len() > MAX_SEGMENTS {
            return Err(RemoteError::Source(Fault::TooLarge { what: "a manifest", limit: MAX_SEGMENTS }));
        }
        Ok(Manifest { version: manifest::VERSION, segments })
    }

    fn write_manifest(&self, manifest: &Manifest, commit: CommitId) -> Result<Pointer, RemoteError> {
        let (name, document) = (unique()?, manifest.document());
        self.bucket.create(&manifest_key(&name), &document)?;
        Ok(Pointer::At { version: manifest::VERSION, commit, manifest: name, hash: Id::of(&document) })
    }
}

fn source<E: Display>(fault: Fault<E>) -> RemoteError {
    RemoteError::Source(match fault {
        Fault::Missing(reference) => Fault::Missing(reference),
        Fault::MissingBlob(blob) => Fault::MissingBlob(blob),
        Fault::Unreadable { at, why } => Fault::Unreadable { at, why },
        Fault::TooLarge { what, limit } => Fault::TooLarge { what, limit },
        Fault::Source(error) => Fault::Source(Trouble::internal(error.to_string())),
    })
}

/// Refs whose segments the new manifest may name. What is in the segments of one ref is there with everything below it.
struct Present(Vec<(Opened, Cell<bool>)>);

impl Present {
    /// The ref builds on what it has: all of that stays.
    fn own(opened: Opened) -> Present {
        Present(vec![(opened, Cell::new(true))])
    }
    fn shared(found: Vec<Opened>) -> Present {
        Present(found.into_iter().map(|opened| (opened, Cell::new(false))).collect())
    }
    fn has(&self, reference: Reference) -> bool {
        let found = self.0.iter().find(|(opened, _)| opened.has(reference));
        found.inspect(|(_, used)| used.set(true)).is_some()
    }
    /// The home of a blob in the segments that stay.
    fn home_of(&self, blob: Blob) -> Option<u64> {
        self.0.iter().filter(|(_, used)| used.get()).find_map(|(opened, _)| opened.home_of(blob))
    }
    /// The segments that stay: of each ref that the walk came to, all of them.
    fn kept(&self) -> Vec<Segment> {
        let mut names = BTreeSet::new();
        let used = self.0.iter().filter(|(_, used)| used.get()).flat_map(|(opened, _)| opened.segments());
        used.filter(|segment| names.insert(segment.name.clone())).cloned().collect()
    }
}

struct Sending<'a> {
    remote: &'a Remote,
    builder: Builder,
    written: Vec<Segment>,
    pushed: &'a mut Pushed,
}

impl Sending<'_> {
    /// Blobs first: a segment that names them comes later.
    fn blobs<S>(&mut self, from: &mut S, new: &Closure, known: &Present) -> Result<(), RemoteError>
    where
        S: Source,
        S::Error: Display,
    {
        let home = u64::from_str_radix(&unique()?, 16).map_err(|error| Trouble::internal(error.to_string()))?;
        for blob in new.blobs.iter().filter(|blob| known.home_of(**blob).is_none()) {
            let bytes = from.blob(*blob).map_err(|error| source(Fault::Source(error)))?;
            let bytes = bytes.ok_or(RemoteError::Source(Fault::MissingBlob(*blob)))?;
            let mut checked = Checked { from: bytes, hash: blake3::Hasher::new(), read: 0 };
            self.remote.bucket.create_from(&blob_key(home, blob.hash), &mut checked, blob.bytes)?;
            if (checked.hash.finalize().as_bytes(), checked.read) != (&blob.hash.0, blob.bytes) {
                let what = format!("the blob {} changed while it was sent: push again", blob.hash);
                return Err(Trouble::internal(what).into());
            }
            self.builder.add_blob(*blob, home);
            self.pushed.blobs += 1;
            self.pushed.bytes += blob.bytes;
        }
        Ok(())
    }

    /// Writes what was collected as one segment.
    fn write(&mut self) -> Result<(), RemoteError> {
        if self.builder.is_empty() {
            return Ok(());
        }
        let built = std::mem::replace(&mut self.builder, Builder::new()).build();
        let (index_at, objects, blobs, index) = (built.index_at, built.objects, built.blobs, built.index);
        let segment = Segment { name: unique()?, index_at, objects, blobs, index };
        self.remote.bucket.create(&segment.key(), &built.bytes)?;
        self.pushed.bytes += built.bytes.len() as u64;
        self.pushed.segments += 1;
        self.written.push(segment);
        Ok(())
    }

    /// If there are too many small segments, the smallest of them become part of the one that is being written. Those that stay are
    /// returned. Each time an object is copied its segment is larger by a multiple, so it is copied seldom.
    fn merge(&mut self, kept: Vec<Segment>) -> Result<Vec<Segment>, RemoteError> {
        let mut small: Vec<&Segment> = kept.iter().filter(|segment| segment.bytes() < SMALL_BYTES).collect();
        if small.len() < MAX_SMALL {
            return Ok(kept);
        }
        small.sort_by_key(|segment| segment.bytes());
        let mut room = MERGED_BYTES.saturating_sub(self.builder.bytes() as u64);
        let mut merged = BTreeSet::new();
        for segment in small.into_iter().take(MERGED) {
            let Some(left) = room.checked_sub(segment.bytes()) else { break };
            room = left;
            self.copy(segment)?;
            merged.insert(segment.name.clone());
        }
        self.pushed.merged += merged.len();
        Ok(kept.into_iter().filter(|segment| !merged.contains(&segment.name)).collect())
    }

    fn copy(&mut self, segment: &Segment) -> Result<(), RemoteError> {
        let key = segment.key();
        let index = self.remote.index(segment)?;
        let data = self.remote.bucket.range(&key, 0, segment.index_at)?.ok_or_else(|| missing(&key))?;
        let damaged = |code, detail| {
            let why = Unreadable { code, record: "segment", detail };
            RemoteError::Damaged { key: key.clone(), why }
        };
        for (entry, place) in index.entries() {
            match entry {
                Some(Entry::Blob(blob)) => self.builder.add_blob(blob, place.at),
                Some(Entry::Record(reference)) => {
                    let end = place.at.saturating_add(place.bytes) as usize;
                    let record = data.get(place.at as usize..end);
                    let record = record.ok_or_else(|| damaged(Code::InvalidBounds, "entry_outside"))?;
                    self.builder.add(reference, record);
                }
                None => return Err(damaged(Code::InvalidKind, "entry_kind_unknown")),
            }
        }
        Ok(())
    }
}

/// Hashes and counts what is read.
struct Checked<R> {
    from: R,
    hash: blake3::Hasher,
    read: u64,
}

impl<R: io::Read> io::Read for Checked<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = self.from.read(into)?;
        self.hash.update(&into[..read]);
        self.read += read as u64;
        Ok(read)
    }
}
