//! Hashes of files and the documents of their folders: what a run names is the hash of the root. Files are read by several threads, piece
//! by piece, and only those that are not remembered.

use super::memory::Memory;
use super::progress::Progress;
use super::walk::{Files, Found, FoundFile};
use crate::complaint::{Complaint, Done};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use wire::api::FilesBody;
use wire::model::tree::{BLOB_BYTES, DOCUMENT_BYTES, Entry, MAX_CACHED_FILES, MAX_DEPTH, MAX_ENTRIES, Node, Tree};

/// A tree that is ready to be sent.
pub struct Hashed {
    pub root: FilesBody,
    /// Where the bytes of each content are; of several files with the same content, one.
    pub files: BTreeMap<String, FoundFile>,
    /// Documents of folders, each behind those it names.
    pub folders: Vec<FolderDocument>,
}

pub struct FolderDocument {
    pub hash: String,
    pub tree: Tree,
}

/// None when there is nothing to send. What would be refused later is refused before any file is read: a tree that no runner would make, a
/// file that no server would store, more files than the key of a cached run may list.
pub async fn hash(files: &Files, is_cached: bool, memory_folder: &Path, sources: Vec<PathBuf>) -> Done<Option<Hashed>> {
    if files.found.is_empty() {
        return Ok(None);
    }
    is_small_enough(files, MAX_ENTRIES, if is_cached { MAX_CACHED_FILES as u64 } else { MAX_ENTRIES })?;
    let mut memory = Memory::open(memory_folder, &sources.iter().map(PathBuf::as_path).collect::<Vec<_>>());
    let all: Vec<(&str, &FoundFile)> = files.files().collect();
    let unread: Vec<&FoundFile> =
        all.iter().map(|(_, file)| *file).filter(|file| memory.hash_of(file).is_none()).collect();
    let read_at_ns = now_ns();
    let fresh = read_all(&unread)?;
    for (file, hash) in unread.iter().zip(&fresh) {
        memory.learn(file, hash, read_at_ns);
    }
    let fresh: BTreeMap<&Path, &String> = unread.iter().map(|file| file.path.as_path()).zip(&fresh).collect();
    let hash_of = |file: &FoundFile| match fresh.get(file.path.as_path()) {
        Some(hash) => (*hash).clone(),
        None => memory.hash_of(file).expect("it is fresh or remembered").to_owned(),
    };
    let hashes: BTreeMap<&str, String> = all.iter().map(|(name, file)| (*name, hash_of(file))).collect();
    memory.save(all.iter().map(|(_, file)| *file));
    assemble(files, &hashes).map(Some)
}

/// Counts as a runner does: what is sent, and every folder on the way to it. The key of a cached run lists what is sent only.
fn is_small_enough(files: &Files, most: u64, most_listed: u64) -> Done<()> {
    let mut folders: BTreeSet<&str> = BTreeSet::new();
    let (mut leaves, mut empty) = (0, BTreeSet::new());
    for (name, found) in &files.found {
        match found {
            Found::Folder => {
                empty.insert(name.as_str());
            }
            Found::File(file) if file.size > BLOB_BYTES => {
                let (size, most) = (crate::show::size(file.size), crate::show::size(BLOB_BYTES));
                let text = format!("{} has {size}: a file that is sent has at most {most}", file.path.display());
                return Err(Complaint::usage(text).fix("send it in parts, or let the command fetch it"));
            }
            Found::File(_) | Found::Link { .. } => leaves += 1,
        }
        let mut inner = name.as_str();
        // All folders above one that is known are known.
        while let Some((folder, _)) = inner.rsplit_once('/')
            && folders.insert(folder)
        {
            inner = folder;
        }
    }
    empty.retain(|folder| !folders.contains(folder));
    empty.remove("");
    let entries = (folders.len() + empty.len()) as u64 + leaves;
    if entries > most {
        return Err(Complaint::usage(format!(
            "{entries} files, folders and links are more than a run may have ({most})"
        ))
        .fix("send an archive, or only the folders that the run needs"));
    }
    let listed = leaves + empty.len() as u64;
    if listed > most_listed {
        let text = format!(
            "{listed} files, links and empty folders are more than a run with --cache may have ({most_listed})"
        );
        return Err(Complaint::usage(text).fix("leave out --cache, or send an archive"));
    }
    Ok(())
}

fn now_ns() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}

/// Their hashes, in their order. Blocks this thread, which has nothing else to do.
fn read_all(files: &[&FoundFile]) -> Done<Vec<String>> {
    let threads = std::thread::available_parallelism().map_or(2, usize::from).min(8).min(files.len().max(1));
    let progress = Progress::new("reading", files.len(), files.iter().map(|file| file.size).sum());
    let (next, failed) = (AtomicUsize::new(0), AtomicBool::new(false));
    let found: Mutex<Vec<(usize, Done<String>)>> = Mutex::new(Vec::with_capacity(files.len()));
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while !failed.load(Ordering::Relaxed) {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    let Some(file) = files.get(at) else { break };
                    let hash = read_one(file, &progress);
                    failed.fetch_or(hash.is_err(), Ordering::Relaxed);
                    found.lock().expect("no thread panics while it holds this").push((at, hash));
                }
            });
        }
    });
    progress.done();
    let mut found = found.into_inner().expect("no thread panicked");
    found.sort_by_key(|(at, _)| *at);
    found.into_iter().map(|(_, hash)| hash).collect()
}

fn read_one(file: &FoundFile, progress: &Progress) -> Done<String> {
    let failed = |error: std::io::Error| Complaint::file("read", &file.path, &error);
    let mut source = std::fs::File::open(&file.path).map_err(failed)?;
    let mut hasher = blake3::Hasher::new();
    let size = std::io::copy(&mut source, &mut hasher).map_err(failed)?;
    if size as i64 != file.size {
        return Err(changed(&file.path));
    }
    progress.advance(1, file.size);
    Ok(hasher.finalize().to_hex().to_string())
}

pub fn changed(path: &Path) -> Complaint {
    Complaint::refused(format!("{} changed while it was being sent", path.display())).fix("run the command again")
}

#[derive(Default)]
struct Folder<'a> {
    entries: BTreeMap<&'a str, Inner<'a>>,
}

enum Inner<'a> {
    Folder(Folder<'a>),
    Leaf(Node),
}

fn assemble(files: &Files, hashes: &BTreeMap<&str, String>) -> Done<Hashed> {
    let mut root = Folder::default();
    let mut contents = BTreeMap::new();
    for (name, found) in &files.found {
        let leaf = match found {
            Found::Folder => None,
            Found::Link { target, .. } => Some(Node::Link { target: target.clone() }),
            Found::File(file) => {
                let hash = hashes[name.as_str()].clone();
                contents.entry(hash.clone()).or_insert_with(|| file.clone());
                Some(Node::File { hash, size: file.size, mode: file.mode })
            }
        };
        insert(&mut root, name, leaf)?;
    }
    let mut folders = Vec::new();
    let hash = close(&root, &mut folders, &mut BTreeMap::new())?;
    let root = FilesBody { tree: hash, files: files.count() as i64, bytes: files.bytes() };
    Ok(Hashed { root, files: contents, folders })
}

fn insert<'a>(root: &mut Folder<'a>, name: &'a str, leaf: Option<Node>) -> Done<()> {
    let both = || {
        Complaint::usage(format!("{name} would be both a file and a folder"))
            .fix("give one of them another name: --file PATH:DEST")
    };
    let mut steps: Vec<&str> = name.split('/').collect();
    if steps.len() > MAX_DEPTH {
        return Err(Complaint::usage(format!("{name} is more than {MAX_DEPTH} folders deep")));
    }
    let last = if leaf.is_some() { steps.pop() } else { None };
    let mut folder = root;
    for step in steps {
        let inner = folder.entries.entry(step).or_insert_with(|| Inner::Folder(Folder::default()));
        folder = match inner {
            Inner::Folder(inner) => inner,
            Inner::Leaf(_) => return Err(both()),
        };
    }
    if let (Some(last), Some(leaf)) = (last, leaf)
        && folder.entries.insert(last, Inner::Leaf(leaf)).is_some()
    {
        return Err(both());
    }
    Ok(())
}

/// Children before parents; a document that occurs twice is kept once.
fn close(folder: &Folder<'_>, done: &mut Vec<FolderDocument>, seen: &mut BTreeMap<String, ()>) -> Done<String> {
    let mut entries = Vec::with_capacity(folder.entries.len());
    for (name, inner) in &folder.entries {
        let node = match inner {
            Inner::Leaf(node) => node.clone(),
            Inner::Folder(folder) => Node::Folder { hash: close(folder, done, seen)? },
        };
        entries.push(Entry { name: (*name).to_owned(), node });
    }
    let tree = Tree::of(entries);
    let document = tree.document();
    if document.len() as i64 > DOCUMENT_BYTES {
        return Err(Complaint::usage(format!("one folder has {} entries, which is too many", tree.entries.len()))
            .fix("divide it into several folders, or send an archive"));
    }
    let hash = blake3::hash(&document).to_hex().to_string();
    if seen.insert(hash.clone(), ()).is_none() {
        done.push(FolderDocument { hash: hash.clone(), tree });
    }
    Ok(hash)
}

#[cfg(test)]
mod tests {
    use super::super::tests::place;
    use super::super::{source, walk};
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    async fn hashed(dir: &Path, sources: &[&str]) -> Hashed {
        let sources: Vec<_> = sources.iter().map(|text| source(text, dir).unwrap()).collect();
        let paths = sources.iter().map(|source| source.path.clone()).collect();
        hash(&walk(&sources, false).unwrap(), false, &dir.join(".memory"), paths).await.unwrap().unwrap()
    }

    #[tokio::test]
    async fn a_tree_is_known_by_contents_names_and_modes() {
        let dir = place(&["a/x", "a/deep/y", "b/x", "b/deep/y"]);
        let (one, other) = (hashed(dir.path(), &["a:t"]).await, hashed(dir.path(), &["b:t"]).await);
        assert_eq!(one.root.tree, other.root.tree, "the same files under the same names");
        assert_eq!((one.root.files, one.root.bytes), (2, 2));
        assert_eq!(one.files[&blake3::hash(b"y").to_hex().to_string()].path, dir.path().join("a/deep/y"));
        let order: Vec<usize> = one.folders.iter().map(|folder| folder.tree.entries.len()).collect();
        assert_eq!(order, [1, 2, 1], "children before parents");
        assert_eq!(one.folders.last().unwrap().hash, one.root.tree);
        std::fs::set_permissions(dir.path().join("b/x"), std::fs::Permissions::from_mode(0o755)).unwrap();
        assert_ne!(hashed(dir.path(), &["b:t"]).await.root.tree, other.root.tree, "an executable is another file");
        std::fs::create_dir(dir.path().join("a/empty")).unwrap();
        assert_ne!(hashed(dir.path(), &["a:t"]).await.root.tree, one.root.tree, "an empty folder is there too");
    }

    /// What is remembered is wrong here, and nothing but the tree can tell: a file that were read again would be known by its bytes.
    #[tokio::test]
    async fn an_unchanged_file_is_not_read_again() {
        let dir = place(&["t/known", "t/changed", "t/new"]);
        let (sources, memory) = ([source("t", dir.path()).unwrap()], dir.path().join(".memory"));
        let paths = [sources[0].path.clone()];
        let (mut before, files) = (Memory::open(&memory, &[paths[0].as_path()]), walk(&sources, false).unwrap());
        let false_hash = "f".repeat(64);
        for (name, file) in files.files().filter(|(name, _)| *name != "t/new") {
            let mut seen = file.clone();
            seen.stamp.inode += u64::from(name == "t/changed");
            before.learn(&seen, &false_hash, i64::MAX);
        }
        before.save(files.files().map(|(_, file)| file));
        let again = hash(&walk(&sources, false).unwrap(), false, &memory, paths.to_vec()).await.unwrap().unwrap();
        let entries = again.folders.iter().flat_map(|folder| &folder.tree.entries);
        let hashes: BTreeMap<&str, &str> = entries
            .filter_map(|entry| match &entry.node {
                Node::File { hash, .. } => Some((entry.name.as_str(), hash.as_str())),
                _ => None,
            })
            .collect();
        let read = |name: &str| {
            let bytes = std::fs::read(dir.path().join("t").join(name)).unwrap();
            blake3::hash(&bytes).to_hex().to_string()
        };
        let (changed, new) = (read("changed"), read("new"));
        let expected = [("changed", changed.as_str()), ("known", false_hash.as_str()), ("new", new.as_str())];
        assert_eq!(hashes, BTreeMap::from(expected));
    }

    #[tokio::test]
    async fn a_tree_is_counted_before_it_is_read() {
        let dir = place(&["t/a/x", "t/a/deep/er/y", "t/a-b", "t/c/x"]);
        std::fs::create_dir_all(dir.path().join("t/empty/inner")).unwrap();
        std::os::unix::fs::symlink("a", dir.path().join("t/l")).unwrap();
        let files = walk(&[source("t:.", dir.path()).unwrap()], false).unwrap();
        // 4 files, 1 link; a, a/deep, a/deep/er, c, empty, empty/inner.
        assert!(is_small_enough(&files, 11, 11).is_ok());
        let refused = is_small_enough(&files, 10, 10).unwrap_err();
        assert!(refused.code == 2 && refused.text.starts_with("11 files") && refused.fix.is_some(), "{refused}");
        // Files, links and the empty folder that is named.
        assert!(is_small_enough(&files, 11, 6).is_ok());
        let refused = is_small_enough(&files, 11, 5).unwrap_err();
        assert!(
            refused.code == 2 && refused.text.starts_with("6 files") && refused.text.contains("--cache"),
            "{refused}"
        );
        let sent = hashed(dir.path(), &["t:."]).await;
        let entries: usize = sent.folders.iter().map(|folder| folder.tree.entries.len()).sum();
        assert_eq!(entries, 11, "no folder occurs twice here: the documents have as many entries");
    }

    /// Sparse: nothing of it is on a disk, and reading it would take minutes.
    #[tokio::test]
    async fn a_file_that_no_server_would_store_is_refused_before_it_is_read() {
        let dir = place(&["t/a", "t/large"]);
        let large = std::fs::File::options().write(true).open(dir.path().join("t/large")).unwrap();
        large.set_len(BLOB_BYTES as u64 + 1).unwrap();
        let sources = [source("t", dir.path()).unwrap()];
        let done = hash(&walk(&sources, false).unwrap(), false, &dir.path().join(".memory"), vec![]).await;
        let refused = done.err().unwrap();
        assert!(refused.code == 2 && refused.text.contains("t/large has 64.0 GB"), "{refused}");
        large.set_len(BLOB_BYTES as u64).unwrap();
        assert!(is_small_enough(&walk(&sources, false).unwrap(), MAX_ENTRIES, MAX_ENTRIES).is_ok());
    }

    #[tokio::test]
    async fn a_name_is_a_file_or_a_folder() {
        let dir = place(&["a", "b/c"]);
        let sources = [source("a:n", dir.path()).unwrap(), source("b/c:n/c", dir.path()).unwrap()];
        let done = hash(&walk(&sources, false).unwrap(), false, &dir.path().join(".memory"), vec![]).await;
        assert!(done.err().unwrap().text.contains("both a file and a folder"));
    }
}
