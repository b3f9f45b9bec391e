//! Lays a job's files into its workdir: reads the tree's documents, has missing blobs fetched, and makes folders, files and links. Nothing
//! is placed that was not verified, and nothing outside of the workdir.

use crate::beneath::Beneath;
use crate::cache::Cache;
use crate::link::Line;
use crate::sync::{self, Fetched, NotPlaced};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::AsRawFd as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use wire::model::tree::{MAX_DEPTH, MAX_ENTRIES, Node, Tree, stays_inside};
use wire::runner::SyncTree;

/// A tree whose documents are all here and read.
pub struct Files {
    root: String,
    folders: BTreeMap<String, Tree>,
    /// Bytes that came with the order itself.
    inline: BTreeMap<String, Vec<u8>>,
    /// Files become 755 or 644.
    plain_modes: bool,
}

impl Files {
    /// A tree that came whole with the order; none if it has to be fetched.
    pub fn inline(tree: &SyncTree) -> Option<Result<Files, NotPlaced>> {
        if tree.inline.is_empty() {
            return None;
        }
        let inline = tree.inline.iter().map(|(hash, bytes)| (hash.clone(), bytes.0.clone())).collect();
        let plain_modes = tree.plain_modes;
        let mut files = Files { root: tree.hash.clone(), folders: BTreeMap::new(), inline, plain_modes };
        Some(files.read_inline().map(|()| files))
    }

    fn read_inline(&mut self) -> Result<(), NotPlaced> {
        for (hash, bytes) in &self.inline {
            if blake3::hash(bytes).to_hex().as_str() != hash {
                return Err(NotPlaced::because(format!("blob {hash} arrived with other content")));
            }
        }
        let mut level = vec![self.root.clone()];
        while let Some(hash) = level.pop() {
            let document = self.inline.get(&hash);
            let document = document.ok_or_else(|| NotPlaced::because(format!("the folder {hash} did not arrive")))?;
            let tree = parse(document)?;
            level.extend(folders_of(&tree).filter(|hash| !self.folders.contains_key(*hash)).map(str::to_owned));
            self.folders.insert(hash, tree);
        }
        Ok(())
    }

    /// Fetches the documents level by level, and then the files that are not in the cache; only those are counted.
    pub async fn fetch(tree: &SyncTree, cache: Arc<Cache>, line: Line) -> Result<(Files, Fetched), NotPlaced> {
        let (root, plain_modes) = (tree.hash.clone(), tree.plain_modes);
        let mut files = Files { root, folders: BTreeMap::new(), inline: BTreeMap::new(), plain_modes };
        let mut level = vec![tree.hash.clone()];
        for _ in 0..MAX_DEPTH {
            if level.is_empty() {
                break;
            }
            // The size of a document is not known: the few that are too large for a pack are fetched alone.
            let missing = level.iter().filter(|hash| !cache.has(hash)).map(|hash| (hash.clone(), 0)).collect();
            sync::fetch(missing, cache.clone(), line.clone()).await?;
            let (read, from) = (std::mem::take(&mut level), cache.clone());
            let trees = tokio::task::spawn_blocking(move || read_documents(read, &from)).await;
            for (hash, tree) in trees.expect("reading documents does not panic")? {
                level.extend(folders_of(&tree).map(str::to_owned));
                files.folders.insert(hash, tree);
            }
            level.retain(|hash| !files.folders.contains_key(hash));
            level.sort();
            level.dedup();
        }
        let fetched = sync::fetch(files.missing(&cache), cache, line).await?;
        Ok((files, fetched))
    }

    fn missing(&self, cache: &Cache) -> Vec<(String, i64)> {
        let files = self.folders.values().flat_map(|tree| &tree.entries).filter_map(|entry| match &entry.node {
            Node::File { hash, size, .. } => Some((hash.clone(), *size)),
            _ => None,
        });
        let wanted: BTreeMap<String, i64> = files.collect();
        wanted.into_iter().filter(|(hash, _)| !cache.has(hash)).collect()
    }

    /// Files, folders and links that are to be made, each as often as it is named.
    pub fn entries(&self) -> u64 {
        self.unfolded(&self.root, &mut BTreeMap::new(), 0)
    }

    fn unfolded<'a>(&'a self, hash: &'a str, known: &mut BTreeMap<&'a str, u64>, depth: usize) -> u64 {
        if let Some(count) = known.get(hash) {
            return *count;
        }
        let Some(tree) = self.folders.get(hash).filter(|_| depth < MAX_DEPTH) else { return 0 };
        let inner = folders_of(tree).map(|inner| self.unfolded(inner, known, depth + 1));
        let count = inner.fold(tree.entries.len() as u64, u64::saturating_add);
        known.insert(hash, count);
        count
    }

    /// Blocking. Ends early, with a reason, once it is cut.
    pub fn place(&self, workdir: &Path, cache: &Cache, is_cut: &AtomicBool) -> Result<(), NotPlaced> {
        if self.entries() > MAX_ENTRIES {
            return Err(NotPlaced::because(format!("more than {MAX_ENTRIES} files in one tree")));
        }
        let system = |error: io::Error| NotPlaced::by_system(&workdir.display().to_string(), &error);
        std::fs::create_dir_all(workdir).map_err(system)?;
        let root = Beneath::open(workdir).map_err(system)?;
        let mut placing = Placing { files: self, cache, is_cut, clones: true };
        placing.folder(&root, &self.root, &mut Vec::new())
    }
}

struct Placing<'a> {
    files: &'a Files,
    cache: &'a Cache,
    is_cut: &'a AtomicBool,
    /// Whether the file system shares blocks between files, until it says that it does not.
    clones: bool,
}

impl<'a> Placing<'a> {
    fn folder(&mut self, folder: &Beneath, hash: &str, path: &mut Vec<&'a str>) -> Result<(), NotPlaced> {
        let files = self.files;
        let Some(tree) = files.folders.get(hash).filter(|_| path.len() < MAX_DEPTH) else {
            return Err(NotPlaced::because(format!("`{}` was not fetched, or is too deep", path.join("/"))));
        };
        for entry in &tree.entries {
            if self.is_cut.load(Ordering::Relaxed) {
                return Err(NotPlaced::because("cut short"));
            }
            path.push(&entry.name);
            let failed = |path: &[&str], error: io::Error| NotPlaced::by_system(&path.join("/"), &error);
            match &entry.node {
                Node::Folder { hash } => {
                    let inner = folder.enter(&entry.name).map_err(|error| failed(path, error))?;
                    self.folder(&inner, hash, path)?;
                }
                Node::File { hash, mode, .. } => {
                    self.file(folder, &entry.name, hash, *mode).map_err(|error| failed(path, error))?;
                }
                Node::Link { target } if stays_inside(target, path.len() - 1) => {
                    folder.link(&entry.name, target).map_err(|error| failed(path, error))?;
                }
                Node::Link { .. } => {
                    return Err(NotPlaced::because(format!("the link `{}` leaves the workdir", path.join("/"))));
                }
            }
            path.pop();
        }
        Ok(())
    }

    fn file(&mut self, folder: &Beneath, name: &str, hash: &str, mode: u32) -> io::Result<()> {
        let mode = match (self.files.plain_modes, mode & 0o100 != 0) {
            (false, _) => mode,
            (true, true) => 0o755,
            (true, false) => 0o644,
        };
        if let Some(bytes) = self.files.inline.get(hash) {
            return folder.file(name, mode)?.write_all(bytes);
        }
        let mut blob = self.cache.get(hash).ok_or_else(|| io::Error::other("it was not fetched"))?;
        let mut placed = folder.file(name, mode)?;
        if self.clones {
            match clone(&blob, &placed) {
                Ok(()) => return Ok(()),
                Err(_) => self.clones = false,
            }
        }
        io::copy(&mut blob, &mut placed).map(drop)
    }
}

/// Shares the blocks of one file with another. The job may write to its file and the cached blob stays as it is, which a hard link would
/// not promise: jobs run as the user who owns the cache.
fn clone(from: &File, to: &File) -> io::Result<()> {
    // SAFETY: both descriptors are open, and the call has no memory of ours to touch.
    match unsafe { libc::ioctl(to.as_raw_fd(), libc::FICLONE, from.as_raw_fd()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn read_documents(hashes: Vec<String>, cache: &Cache) -> Result<Vec<(String, Tree)>, NotPlaced> {
    let read = |hash: String| {
        let mut bytes = Vec::new();
        let mut file = cache.get(&hash).ok_or_else(|| NotPlaced::because(format!("blob {hash} was not fetched")))?;
        io::Read::read_to_end(&mut file, &mut bytes)
            .map_err(|error| NotPlaced::by_system("reading a folder", &error))?;
        Ok((hash, parse(&bytes)?))
    };
    hashes.into_iter().map(read).collect()
}

fn parse(document: &[u8]) -> Result<Tree, NotPlaced> {
    Tree::parse(document).map_err(|refused| NotPlaced::because(refused.to_string()))
}

fn folders_of(tree: &Tree) -> impl Iterator<Item = &str> {
    tree.children().filter(|child| child.is_tree).map(|child| child.hash)
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::Base64;
    use wire::model::tree::Entry;

    fn hash(bytes: &[u8]) -> String {
        blake3::hash(bytes).to_hex().to_string()
    }

    /// A tree of these folders, the last one being the root.
    fn tree(folders: Vec<Vec<Entry>>, blobs: &[&[u8]]) -> SyncTree {
        let documents: Vec<Vec<u8>> = folders.into_iter().map(|entries| Tree::of(entries).document()).collect();
        let root = hash(documents.last().unwrap());
        let all = documents.iter().map(Vec::as_slice).chain(blobs.iter().copied());
        let inline = all.map(|bytes| (hash(bytes), Base64(bytes.to_vec()))).collect();
        SyncTree { hash: root, inline, plain_modes: false }
    }
    fn entry(name: &str, node: Node) -> Entry {
        Entry { name: name.to_owned(), node }
    }
    fn place(tree: &SyncTree) -> (tempfile::TempDir, Result<(), NotPlaced>) {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::open(dir.path()).unwrap();
        let placed = Files::inline(tree)
            .unwrap()
            .and_then(|files| files.place(&dir.path().join("work_1"), &cache, &AtomicBool::new(false)));
        (dir, placed)
    }

    #[test]
    fn folders_files_modes_and_links_are_as_they_were() {
        let empty = Tree::default().document();
        let inner = vec![
            entry("run", Node::File { hash: hash(b"#!"), size: 2, mode: 0o755 }),
            entry("up", Node::Link { target: "../a".into() }),
        ];
        let inner_hash = hash(&Tree::of(inner.clone()).document());
        let root = vec![
            entry("a", Node::File { hash: hash(b"A"), size: 1, mode: 0o600 }),
            entry("empty", Node::Folder { hash: hash(&empty) }),
            entry("in", Node::Folder { hash: inner_hash }),
        ];
        let (dir, placed) = place(&tree(vec![vec![], inner, root], &[b"A", b"#!"]));
        placed.unwrap();
        let at = |path: &str| dir.path().join("work_1").join(path);
        let mode = |path: &str| std::os::unix::fs::PermissionsExt::mode(&at(path).metadata().unwrap().permissions());
        assert_eq!((mode("a") & 0o777, mode("in/run") & 0o777), (0o600, 0o755));
        assert_eq!(std::fs::read_dir(at("empty")).unwrap().count(), 0);
        assert_eq!(std::fs::read_link(at("in/up")).unwrap(), Path::new("../a"));
        assert_eq!(std::fs::read(at("in/up")).unwrap(), b"A");
    }

    #[test]
    fn a_tree_that_unfolds_without_end_is_not_begun() {
        let mut folders = vec![vec![]];
        let mut inner = hash(&Tree::default().document());
        for _ in 0..9 {
            let node = || Node::Folder { hash: inner.clone() };
            let entries: Vec<Entry> = (0..10).map(|number| entry(&number.to_string(), node())).collect();
            inner = hash(&Tree::of(entries.clone()).document());
            folders.push(entries);
        }
        let bomb = tree(folders, &[]);
        let files = Files::inline(&bomb).unwrap().unwrap();
        assert_eq!(files.entries(), 1_111_111_110);
        let (dir, placed) = place(&bomb);
        assert!(placed.unwrap_err().why.contains("more than"));
        assert!(!dir.path().join("work_1/0").exists());
    }

    #[test]
    fn a_link_that_leaves_and_bytes_that_are_others_are_refused() {
        let (_, out) = place(&tree(vec![vec![entry("l", Node::Link { target: "../x".into() })]], &[]));
        assert!(out.unwrap_err().why.contains("leaves the workdir"));
        let mut lying = tree(vec![vec![entry("a", Node::File { hash: hash(b"A"), size: 1, mode: 0o600 })]], &[b"A"]);
        lying.inline.insert(hash(b"A"), Base64(b"B".to_vec()));
        assert!(place(&lying).1.unwrap_err().why.contains("other content"));
        let missing = tree(vec![vec![entry("d", Node::Folder { hash: hash(b"gone") })]], &[]);
        assert!(place(&missing).1.unwrap_err().why.contains("did not arrive"));
    }
}
