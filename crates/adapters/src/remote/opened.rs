//! One ref of a remote, opened: reads records and blobs out of its segments.

use super::bucket::Bucket;
use super::manifest::Segment;
use super::segment::{Index, Place};
use super::{blob_key, missing};
use calls::object::MAX_RECORD_BYTES;
use calls::uri::Blob;
use calls::{CommitId, Id, Read, Reference};
use model::Trouble;
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

/// After so many records of one segment the rest of it is read at once: a closure is mostly whole segments.
const READS: u32 = 16;
/// Whole segments in memory, of about 64 MiB at most.
const KEPT: usize = 4;
/// A larger segment is read record by record.
const MOST_KEPT_BYTES: u64 = 256 << 20;
const PIECE: u64 = 1 << 20;

pub struct Opened {
    bucket: Arc<dyn Bucket>,
    pub commit: CommitId,
    parts: Vec<Part>,
    /// Parts that are in memory, the oldest first.
    kept: VecDeque<usize>,
}

struct Part {
    segment: Segment,
    index: Arc<Index>,
    reads: u32,
    whole: Option<Vec<u8>>,
}

impl Opened {
    pub(super) fn new(bucket: Arc<dyn Bucket>, commit: CommitId, parts: Vec<(Arc<Index>, Segment)>) -> Opened {
        let part = |(index, segment)| Part { segment, index, reads: 0, whole: None };
        Opened { bucket, commit, parts: parts.into_iter().map(part).collect(), kept: VecDeque::new() }
    }

    /// Whether the remote has an object, and with it everything below.
    pub fn has(&self, reference: Reference) -> bool {
        self.parts.iter().any(|part| part.index.find(reference).is_some())
    }
    pub(super) fn home_of(&self, blob: Blob) -> Option<u64> {
        self.parts.iter().find_map(|part| part.index.find_blob(blob)).map(|place| place.at)
    }
    pub(super) fn segments(&self) -> impl Iterator<Item = &Segment> {
        self.parts.iter().map(|part| &part.segment)
    }
    /// Objects in all of its segments.
    pub fn objects(&self) -> u64 {
        self.segments().map(|segment| segment.objects).sum()
    }

    /// The bytes of a blob. Reading them fails at the end if they are not the blob's.
    pub fn blob(&self, blob: Blob) -> Option<BlobBytes> {
        let home = self.home_of(blob)?;
        Some(BlobBytes {
            bucket: Arc::clone(&self.bucket),
            key: blob_key(home, blob.hash),
            blob,
            at: 0,
            piece: io::Cursor::default(),
            hash: blake3::Hasher::new(),
        })
    }

    fn read(&mut self, at: usize, place: Place) -> Result<Option<Vec<u8>>, Trouble> {
        let part = &mut self.parts[at];
        let key = part.segment.key();
        part.reads += 1;
        if part.whole.is_none() && part.reads > READS && part.segment.index_at <= MOST_KEPT_BYTES {
            part.whole = Some(self.bucket.range(&key, 0, part.segment.index_at)?.ok_or_else(|| missing(&key))?);
            self.kept.push_back(at);
            if self.kept.len() > KEPT
                && let Some(oldest) = self.kept.pop_front()
            {
                self.parts[oldest].whole = None;
                self.parts[oldest].reads = 0;
            }
        }
        // An index that points out of its segment gives fewer bytes, which are not the record's.
        let end = place.at.saturating_add(place.bytes);
        match &self.parts[at].whole {
            Some(whole) => {
                let [from, to] = [place.at, end].map(|at| (at as usize).min(whole.len()));
                Ok(Some(whole[from..to].to_vec()))
            }
            None => {
                let bytes = place.bytes.min(MAX_RECORD_BYTES as u64 + 1);
                self.bucket.range(&key, place.at, bytes)?.map(Some).ok_or_else(|| missing(&key))
            }
        }
    }
}

impl Read for Opened {
    type Error = Trouble;

    fn record(&mut self, of: Reference) -> Result<Option<Vec<u8>>, Trouble> {
        let found = self.parts.iter().enumerate().find_map(|(at, part)| Some((at, part.index.find(of)?)));
        match found {
            Some((at, place)) => self.read(at, place),
            None => Ok(None),
        }
    }

    /// Its last byte is there, and so the whole: a blob appears with all its bytes.
    fn has_blob(&mut self, blob: Blob) -> Result<bool, Trouble> {
        let Some(home) = self.home_of(blob) else { return Ok(false) };
        let last = blob.bytes.saturating_sub(1);
        let read = self.bucket.range(&blob_key(home, blob.hash), last, 1)?;
        Ok(read.is_some_and(|read| read.len() as u64 == blob.bytes.min(1)))
    }
}

/// Reads a blob piece by piece, and compares its hash at the end.
pub struct BlobBytes {
    bucket: Arc<dyn Bucket>,
    key: String,
    blob: Blob,
    at: u64,
    piece: io::Cursor<Vec<u8>>,
    hash: blake3::Hasher,
}

impl io::Read for BlobBytes {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = self.piece.read(into)?;
        if read > 0 || into.is_empty() {
            return Ok(read);
        }
        let piece = PIECE.min(self.blob.bytes - self.at);
        if piece > 0 {
            let bytes =
                self.bucket.range(&self.key, self.at, piece).map_err(|trouble| io::Error::other(trouble.what))?;
            let bytes = bytes.filter(|bytes| bytes.len() as u64 == piece);
            let bytes = bytes.ok_or_else(|| io::Error::other(format!("{} is cut short", self.key)))?;
            self.hash.update(&bytes);
            self.at += piece;
            self.piece = io::Cursor::new(bytes);
            return self.piece.read(into);
        }
        if Id(*self.hash.finalize().as_bytes()) != self.blob.hash {
            return Err(io::Error::new(io::ErrorKind::InvalidData, format!("{} does not have its hash", self.key)));
        }
        Ok(0)
    }
}
