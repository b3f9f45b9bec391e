//! Deleting what no ref names any more, beside writers that know nothing of it.
//!
//! In two steps, because a writer may name an old segment again (a new branch shares those of another one). The first sweep that finds a
//! key unnamed and older than the window writes a mark for it under `condemned/`; a sweep that finds it still unnamed when the mark is
//! older than the window deletes it. A writer does not share what is marked, and gives up if it takes longer than [`PUSH_WITHIN`], half of
//! the shortest window. So a writer that found no mark has moved its ref before the mark is old enough, and the sweep sees the ref.

use super::bucket::Listed;
use super::manifest::Pointer;
use super::segment::Entry;
use super::{Remote, RemoteError, blob_key, manifest_key};
use model::{Trouble, TroubleKind};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

pub const PUSH_WITHIN: Duration = Duration::from_secs(6 * 3600);
/// A shorter window could delete what a writer has just written.
pub const MIN_WINDOW: Duration = Duration::from_secs(12 * 3600);
/// Usual.
pub const WINDOW: Duration = Duration::from_secs(24 * 3600);

const CONDEMNED: &str = "condemned";

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Swept {
    pub deleted: usize,
    /// Marked now: a later sweep deletes them.
    pub condemned: usize,
    /// Named again: no longer marked.
    pub spared: usize,
}

impl Remote {
    /// One sweep. `now_ms` is Unix milliseconds by a clock that is about that of the store.
    pub fn sweep(&self, now_ms: i64, window: Duration) -> Result<Swept, RemoteError> {
        if window < MIN_WINDOW {
            let what = format!("the window of a sweep is at least {} hours", MIN_WINDOW.as_secs() / 3600);
            return Err(Trouble::new(TroubleKind::InvalidSpec, what).into());
        }
        let before_ms = now_ms.saturating_sub(window.as_millis() as i64);
        // Candidates first, refs second: what is written after this is no candidate. Parents before children.
        let mut found = Vec::new();
        for folder in ["manifests", "segments", "blobs"] {
            found.extend(self.bucket.list(folder)?);
        }
        let marks: BTreeMap<String, i64> =
            self.bucket.list(CONDEMNED)?.into_iter().map(|mark| (mark.key, mark.modified_ms)).collect();
        let live = self.live()?;
        let mut swept = Swept::default();
        let mut of_something = BTreeSet::new();
        for Listed { key, modified_ms } in found {
            let mark = mark_of(&key);
            of_something.insert(mark.clone());
            match (live.contains(&key), marks.get(&mark)) {
                (true, Some(_)) => {
                    self.bucket.delete(&mark)?;
                    swept.spared += 1;
                }
                (true, None) => {}
                (false, Some(marked_ms)) if *marked_ms < before_ms => {
                    self.bucket.delete(&key)?;
                    self.bucket.delete(&mark)?;
                    swept.deleted += 1;
                }
                (false, None) if modified_ms < before_ms => {
                    self.bucket.create(&mark, b"")?;
                    swept.condemned += 1;
                }
                (false, _) => {}
            }
        }
        for mark in marks.keys().filter(|mark| !of_something.contains(*mark)) {
            self.bucket.delete(mark)?;
        }
        for draft in self.bucket.list(super::file::DRAFTS)?.iter().filter(|draft| draft.modified_ms < before_ms) {
            self.bucket.delete(&draft.key)?;
            swept.deleted += 1;
        }
        Ok(swept)
    }

    /// Every key that a ref needs. Any doubt ends the sweep: it deletes nothing.
    fn live(&self) -> Result<BTreeSet<String>, RemoteError> {
        let mut live = BTreeSet::new();
        for listed in self.bucket.list("refs")? {
            let Some((_, pointer)) = self.pointer(&listed.key.parse()?)? else { continue };
            let Pointer::At { manifest: name, .. } = &pointer else { continue };
            live.insert(manifest_key(name));
            for segment in self.manifest(&pointer)?.1.segments {
                let is_new = live.insert(segment.key());
                if is_new && segment.blobs > 0 {
                    for (entry, place) in self.index(&segment)?.entries() {
                        if let Some(Entry::Blob(blob)) = entry {
                            live.insert(blob_key(place.at, blob.hash));
                        }
                    }
                }
            }
        }
        Ok(live)
    }

    /// Keys of what the sweeps have marked.
    pub(super) fn condemned(&self) -> Result<BTreeSet<String>, RemoteError> {
        let prefix = format!("{CONDEMNED}/");
        let key = |mark: Listed| mark.key.strip_prefix(&prefix).map(|key| key.replace('+', "/"));
        Ok(self.bucket.list(CONDEMNED)?.into_iter().filter_map(key).collect())
    }
}

fn mark_of(key: &str) -> String {
    format!("{CONDEMNED}/{}", key.replace('/', "+"))
}
