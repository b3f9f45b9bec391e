//! The runner's journal: which tries of steps may have begun, which are frozen, and the stubs of their jobs. One append and one fdatasync
//! before a keeper is woken. Contains no secrets and no outcomes; outcomes are in the keepers' exit records.

use crate::durable;
use crate::key::{JobKey, Key};
use crate::record;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use wire::model::crash_point;
use wire::model::stub::SealedStub;

const FILE: &str = "journal";
/// Allocated and written once, so that an append on a full disk still lands and its sync moves no metadata.
const SIZE: usize = 1 << 20;

pub struct Journal {
    path: PathBuf,
    file: File,
    end: u64,
    size: u64,
    known: BTreeMap<Key, Begun>,
    stubs: BTreeMap<JobKey, Arc<SealedStub>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Begun {
    /// The boot of the host on which it may have begun.
    pub boot: String,
    pub frozen: bool,
}

#[derive(Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
enum Entry {
    Begins { key: String, boot: String },
    Frozen { key: String, on: bool },
    Forgotten { key: String },
    Stub { job: String, stub: SealedStub },
    StubForgotten { job: String },
}

impl Journal {
    pub fn open(dir: &Path) -> io::Result<Journal> {
        Journal::open_sized(dir, SIZE)
    }

    fn open_sized(dir: &Path, size: usize) -> io::Result<Journal> {
        let path = dir.join(FILE);
        if !path.exists() {
            fresh(&path, size, &[])?;
        }
        let bytes = std::fs::read(&path)?;
        let file = OpenOptions::new().write(true).open(&path)?;
        let mut journal = Journal {
            path,
            file,
            end: 0,
            size: bytes.len().max(size) as u64,
            known: BTreeMap::new(),
            stubs: BTreeMap::new(),
        };
        while let Some(body) = bytes.get(journal.end as usize..).and_then(record::open) {
            if let Ok(entry) = serde_json::from_slice(body) {
                journal.apply(entry);
            }
            journal.end += (record::HEAD + body.len()) as u64;
        }
        if bytes[journal.end as usize..].iter().any(|byte| *byte != 0) {
            // Behind a torn record old ones may stand, and a new one must not lead a reader to them.
            journal.compact()?;
        }
        Ok(journal)
    }

    pub fn known(&self) -> &BTreeMap<Key, Begun> {
        &self.known
    }

    pub fn stub(&self, job: JobKey) -> Option<&Arc<SealedStub>> {
        self.stubs.get(&job)
    }

    /// Durable with what is journalled next: a job gets its stub before its first try begins.
    pub fn keep_stub(&mut self, job: JobKey, stub: &SealedStub) -> io::Result<()> {
        if self.stub(job).is_some_and(|kept| **kept == *stub) {
            return Ok(());
        }
        self.append(Entry::Stub { job: job.to_string(), stub: stub.clone() })
    }

    /// Not synced: a stub without a job is told of once too often, and counts for nothing.
    pub fn forget_stub(&mut self, job: JobKey) -> io::Result<()> {
        match self.stubs.contains_key(&job) {
            true => self.append(Entry::StubForgotten { job: job.to_string() }),
            false => Ok(()),
        }
    }

    /// Durable when it returns: this try may have begun.
    pub fn begins(&mut self, key: Key, boot: &str) -> io::Result<()> {
        let begins = Entry::Begins { key: key.to_string(), boot: boot.to_owned() };
        crash_point!("journal.begins", self.append(begins).and_then(|()| durable::sync_data(&self.file)))
    }

    pub fn frozen(&mut self, key: Key, on: bool) -> io::Result<()> {
        let frozen = Entry::Frozen { key: key.to_string(), on };
        crash_point!("journal.frozen", self.append(frozen).and_then(|()| durable::sync_data(&self.file)))
    }

    /// Not synced: remembering a try once too often costs nothing.
    pub fn forget(&mut self, key: Key) -> io::Result<()> {
        crash_point!("journal.forget", self.append(Entry::Forgotten { key: key.to_string() }))
    }

    fn append(&mut self, entry: Entry) -> io::Result<()> {
        let sealed = record::seal(&serde_json::to_vec(&entry)?);
        if self.end + sealed.len() as u64 > self.size {
            self.compact()?;
        }
        self.file.write_all_at(&sealed, self.end)?;
        self.end += sealed.len() as u64;
        self.apply(entry);
        Ok(())
    }

    fn apply(&mut self, entry: Entry) {
        match entry {
            Entry::Begins { key, boot } => {
                if let Ok(key) = key.parse() {
                    self.known.insert(key, Begun { boot, frozen: false });
                }
            }
            Entry::Frozen { key, on } => {
                if let Some(known) = key.parse().ok().and_then(|key| self.known.get_mut(&key)) {
                    known.frozen = on;
                }
            }
            Entry::Forgotten { key } => {
                if let Ok(key) = key.parse() {
                    self.known.remove(&key);
                }
            }
            Entry::Stub { job, stub } => {
                if let Ok(job) = job.parse() {
                    self.stubs.insert(job, Arc::new(stub));
                }
            }
            Entry::StubForgotten { job } => {
                if let Ok(job) = job.parse() {
                    self.stubs.remove(&job);
                }
            }
        }
    }

    /// Writes what is still known into a new file and puts it in the old one's place.
    fn compact(&mut self) -> io::Result<()> {
        let mut kept = Vec::new();
        for (key, known) in &self.known {
            let key = key.to_string();
            let begins = Entry::Begins { key: key.clone(), boot: known.boot.clone() };
            kept.extend(record::seal(&serde_json::to_vec(&begins)?));
            if known.frozen {
                kept.extend(record::seal(&serde_json::to_vec(&Entry::Frozen { key, on: true })?));
            }
        }
        for (job, stub) in &self.stubs {
            let entry = Entry::Stub { job: job.to_string(), stub: (**stub).clone() };
            kept.extend(record::seal(&serde_json::to_vec(&entry)?));
        }
        // Twice what is kept, so that a runner with very many steps does not compact at every append.
        self.size = self.size.max(2 * kept.len() as u64);
        self.file = fresh(&self.path, self.size as usize, &kept)?;
        self.end = kept.len() as u64;
        Ok(())
    }
}

fn fresh(path: &Path, size: usize, kept: &[u8]) -> io::Result<File> {
    let new = path.with_extension("new");
    let mut file = File::create(&new)?;
    file.write_all(kept)?;
    file.write_all(&vec![0; size - kept.len()])?;
    durable::sync_all(&file)?;
    crash_point!("journal.replace", std::fs::rename(&new, path))?;
    durable::sync_all(&File::open(path.parent().expect("a file in a directory"))?)?;
    OpenOptions::new().write(true).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::JobKey;
    use wire::model::step::StepTry;
    use wire::model::{JobId, StepId};

    fn key(n: i64) -> Key {
        JobKey { job: JobId(n), epoch: 1 }.step(StepTry { id: StepId(n), number: 1 })
    }

    #[test]
    fn what_was_written_is_known_to_the_next_runner() {
        let dir = tempfile::tempdir().unwrap();
        let mut journal = Journal::open(dir.path()).unwrap();
        journal.begins(key(1), "b1").unwrap();
        journal.begins(key(2), "b1").unwrap();
        journal.frozen(key(2), true).unwrap();
        journal.forget(key(1)).unwrap();
        let again = Journal::open(dir.path()).unwrap();
        assert_eq!(again.known().clone(), BTreeMap::from([(key(2), Begun { boot: "b1".to_owned(), frozen: true })]));
        assert_eq!(std::fs::metadata(dir.path().join(FILE)).unwrap().len(), SIZE as u64);
    }

    #[test]
    fn the_stub_of_a_job_outlives_the_runner_and_a_full_journal() {
        let dir = tempfile::tempdir().unwrap();
        let (one, two) = (JobKey { job: JobId(1), epoch: 2 }, JobKey { job: JobId(2), epoch: 1 });
        let stub = |text: &str| SealedStub { text: text.into(), seal: "00".into() };
        let mut journal = Journal::open_sized(dir.path(), 600).unwrap();
        journal.keep_stub(one, &stub("first")).unwrap();
        journal.keep_stub(one, &stub("later")).unwrap();
        journal.keep_stub(two, &stub("gone")).unwrap();
        journal.forget_stub(two).unwrap();
        for n in 0..100 {
            journal.begins(key(n), "b").unwrap();
            journal.forget(key(n)).unwrap();
        }
        let again = Journal::open_sized(dir.path(), 600).unwrap();
        assert_eq!(again.stub(one).map(|kept| kept.text.as_str()), Some("later"));
        assert_eq!(again.stub(two), None);
        let end = journal.end;
        journal.keep_stub(one, &stub("later")).unwrap();
        assert_eq!(journal.end, end, "what is kept is not written again");
    }

    #[test]
    fn a_torn_end_is_overwritten() {
        let dir = tempfile::tempdir().unwrap();
        let mut journal = Journal::open(dir.path()).unwrap();
        journal.begins(key(1), "b").unwrap();
        let end = journal.end;
        journal.begins(key(2), "b").unwrap();
        journal.file.write_all_at(b"?", end + 20).unwrap();
        let mut again = Journal::open(dir.path()).unwrap();
        assert_eq!(again.known().keys().copied().collect::<Vec<_>>(), [key(1)]);
        again.begins(key(3), "b").unwrap();
        assert_eq!(Journal::open(dir.path()).unwrap().known().len(), 2);
    }

    #[test]
    fn a_full_journal_keeps_what_is_not_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        let mut journal = Journal::open_sized(dir.path(), 600).unwrap();
        journal.begins(key(999), "b").unwrap();
        for n in 0..100 {
            journal.begins(key(n), "b").unwrap();
            journal.forget(key(n)).unwrap();
        }
        for n in 100..140 {
            journal.begins(key(n), "b").unwrap();
        }
        let again = Journal::open_sized(dir.path(), 600).unwrap();
        assert_eq!(again.known(), journal.known());
        assert_eq!(again.known().len(), 41);
    }
}
