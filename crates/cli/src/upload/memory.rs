//! Hashes of files that were read before, so that an unchanged tree is not read again. One file for each set of sources, below the
//! home; losing it costs time and nothing else. A hash is trusted only while size, both times and inode of the file are the same.

use super::walk::{FoundFile, Stamp};
use crate::private;
use std::collections::HashMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

const HEADING: &str = "remuda hashes 1";
/// A file that changed so shortly before it was read may change again within the same tick of its file system's clock.
const SETTLED_NS: i64 = 2_000_000_000;
/// What was not used for so long is deleted.
const KEPT: Duration = Duration::from_secs(30 * 24 * 3600);

#[derive(Default)]
pub struct Memory {
    /// None: nothing is remembered.
    place: Option<PathBuf>,
    known: HashMap<PathBuf, Remembered>,
    learnt: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Remembered {
    size: i64,
    stamp: Stamp,
    hash: String,
}

impl Memory {
    /// What is remembered of these sources. Anything unreadable is as good as nothing.
    pub fn open(folder: &Path, sources: &[&Path]) -> Memory {
        let mut hasher = blake3::Hasher::new();
        for source in sources {
            let whole = source.canonicalize().unwrap_or_else(|_| source.to_path_buf());
            hasher.update(whole.as_os_str().as_encoded_bytes());
            hasher.update(&[0]);
        }
        let place = folder.join(&hasher.finalize().to_hex().as_str()[..16]);
        let text = private::read(&place).ok().flatten().unwrap_or_default();
        Memory { known: read(&text), place: Some(place), learnt: false }
    }

    pub fn hash_of(&self, file: &FoundFile) -> Option<&str> {
        let known = self.known.get(&file.path)?;
        (known.size == file.size && known.stamp == file.stamp).then_some(known.hash.as_str())
    }

    /// Remembers a file that was read, unless it changed so lately that the next change might look the same.
    pub fn learn(&mut self, file: &FoundFile, hash: &str, read_at_ns: i64) {
        let Stamp { modified_ns, changed_ns, .. } = file.stamp;
        if modified_ns.max(changed_ns) > read_at_ns - SETTLED_NS {
            return;
        }
        self.known.insert(file.path.clone(), Remembered { size: file.size, stamp: file.stamp, hash: hash.to_owned() });
        self.learnt = true;
    }

    /// Writes what was learnt about these files and forgets the others.
    pub fn save<'a>(&self, files: impl Iterator<Item = &'a FoundFile>) {
        let Some(place) = self.place.as_ref().filter(|_| self.learnt) else { return };
        let mut text = format!("{HEADING}\n");
        for file in files {
            let (Some(known), Some(path)) = (self.known.get(&file.path), file.path.to_str()) else { continue };
            let Remembered { size, stamp, hash } = known;
            if !path.contains('\n') {
                let _ =
                    writeln!(text, "{size} {} {} {} {hash} {path}", stamp.modified_ns, stamp.changed_ns, stamp.inode);
            }
        }
        let folder = place.parent().expect("it lies in a folder");
        // Not worth a complaint: without it the next command reads the files again.
        let _ = private::folder(folder).and_then(|()| private::note(place, text.as_bytes()));
        forget_old(folder);
    }
}

fn forget_old(folder: &Path) {
    let now = SystemTime::now();
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let modified = entry.metadata().and_then(|about| about.modified());
        if modified.is_ok_and(|at| now.duration_since(at).is_ok_and(|age| age > KEPT)) {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

fn read(text: &str) -> HashMap<PathBuf, Remembered> {
    let mut lines = text.lines();
    if lines.next() != Some(HEADING) {
        return HashMap::new();
    }
    lines.filter_map(read_line).collect()
}

fn read_line(line: &str) -> Option<(PathBuf, Remembered)> {
    let mut words = line.splitn(6, ' ');
    let mut number = || words.next()?.parse::<i64>().ok();
    let (size, modified_ns, changed_ns, inode) = (number()?, number()?, number()?, number()? as u64);
    let (hash, path) = (words.next()?, words.next()?);
    let stamp = Stamp { modified_ns, changed_ns, inode };
    wire::model::spec::is_hash(hash).then(|| (PathBuf::from(path), Remembered { size, stamp, hash: hash.to_owned() }))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LATER: i64 = 10 * SETTLED_NS;

    fn file(path: &str, size: i64, modified_ns: i64) -> FoundFile {
        let stamp = Stamp { modified_ns, changed_ns: 5, inode: 7 };
        FoundFile { path: path.into(), size, mode: 0o644, stamp }
    }

    #[test]
    fn a_hash_is_good_while_the_file_is_the_same() {
        let dir = tempfile::tempdir().unwrap();
        let hash = "a".repeat(64);
        let mut moved = file("/p/moved", 3, 100);
        moved.stamp.changed_ns = LATER - 1;
        let there = [file("/p/with space", 3, 100), file("/p/lately", 3, LATER - 1), moved];
        let mut memory = Memory::open(&dir.path().join("hashes"), &[dir.path()]);
        there.iter().for_each(|file| memory.learn(file, &hash, LATER));
        memory.save(there.iter());
        let again = Memory::open(&dir.path().join("hashes"), &[dir.path()]);
        assert_eq!(again.hash_of(&there[0]), Some(hash.as_str()));
        for lately in &there[1..] {
            assert_eq!(again.hash_of(lately), None, "{lately:?} may change again in the same moment");
        }
        let other_inode = FoundFile { stamp: Stamp { inode: 8, ..there[0].stamp }, ..there[0].clone() };
        let other_change = FoundFile { stamp: Stamp { changed_ns: 6, ..there[0].stamp }, ..there[0].clone() };
        for changed in [file("/p/with space", 4, 100), file("/p/with space", 3, 101), other_inode, other_change] {
            assert_eq!(again.hash_of(&changed), None, "{changed:?}");
        }
        assert_eq!(Memory::open(&dir.path().join("hashes"), &[Path::new("/")]).hash_of(&there[0]), None);
    }

    #[test]
    fn a_name_with_a_newline_does_not_become_another_file() {
        let dir = tempfile::tempdir().unwrap();
        let hash = "a".repeat(64);
        let forged = file("/p/forged", 3, 100);
        let odd = file(&format!("/p/odd\n3 100 5 7 {hash} /p/forged"), 3, 100);
        let mut memory = Memory::open(dir.path(), &[dir.path()]);
        memory.learn(&odd, &hash, LATER);
        memory.save(std::iter::once(&odd));
        let again = Memory::open(dir.path(), &[dir.path()]);
        assert_eq!((again.hash_of(&forged), again.hash_of(&odd)), (None, None));
    }

    #[test]
    fn what_was_not_used_for_long_goes_when_something_is_learnt() {
        let dir = tempfile::tempdir().unwrap();
        let place = |name: &str| dir.path().join(name);
        for (name, age) in [("old", KEPT + Duration::from_secs(60)), ("young", KEPT - Duration::from_secs(3600))] {
            let file = std::fs::File::create(place(name)).unwrap();
            file.set_modified(SystemTime::now() - age).unwrap();
        }
        let mut memory = Memory::open(dir.path(), &[dir.path()]);
        let there = [file("/p/a", 3, 100)];
        memory.save(there.iter());
        assert!(place("old").exists(), "nothing was learnt, and nothing is written");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2);
        memory.learn(&there[0], &"a".repeat(64), LATER);
        memory.save(there.iter());
        assert!(!place("old").exists() && place("young").exists());
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2);
    }

    #[test]
    fn a_spoilt_memory_is_an_empty_one() {
        let line = format!("1 2 3 4 {} /p", "a".repeat(64));
        assert_eq!(read(&format!("{HEADING}\n{line}\n")).len(), 1);
        for text in
            ["", &format!("remuda hashes 2\n{line}\n"), "remuda hashes 1\n1 2 3\n", "remuda hashes 1\n1 2 3 4 zz /p\n"]
        {
            assert!(read(text).is_empty(), "{text}");
        }
    }
}
