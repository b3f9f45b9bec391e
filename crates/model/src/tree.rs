//! File trees: one document per folder, each named by the hash of its bytes, so that a whole tree is named by the hash of its root. Pure:
//! reads and writes documents; hashing and storing them is the caller's.

use crate::Refused;
use crate::spec::is_hash;
use serde::{Deserialize, Serialize};

/// The largest document of one folder: about two million names.
pub const DOCUMENT_BYTES: i64 = 256 << 20;
/// One file that is sent or kept. `repl run` refuses a larger one before it is read, a server before it stores any of it.
pub const BLOB_BYTES: i64 = 64 << 30;
/// Files, folders and links in one tree, each counted as often as it is named. A folder may be named many times, so that a few documents
/// could stand for more files than any disk has. `repl run` refuses a larger tree before it sends anything, a runner before it makes a file.
pub const MAX_ENTRIES: u64 = 5_000_000;
/// Files, links and empty folders of a run with a cache: its key lists them, and the server holds that list in memory.
pub const MAX_CACHED_FILES: i64 = 100_000;
/// Folders below one another. Deeper paths are longer than any system call takes.
pub const MAX_DEPTH: usize = 1_024;
/// As file systems on Linux have it.
pub const MAX_NAME_BYTES: usize = 255;
/// Of a symbolic link, and of a path below a folder: as system calls take it.
pub const MAX_TARGET_BYTES: usize = 4_096;

/// What a run is sent with: the root of its tree, and how much there is, for people to read.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct TreeRef {
    pub hash: String,
    pub files: i64,
    pub bytes: i64,
}

/// One folder: its entries in the order of their names' bytes, no name twice. That order makes the document of a folder unique.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tree {
    pub entries: Vec<Entry>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    pub name: String,
    pub node: Node,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Node {
    File {
        hash: String,
        size: i64,
        /// Permission bits, at most 0o777.
        mode: u32,
    },
    Folder {
        hash: String,
    },
    /// A symbolic link. Its target is relative and stays inside the whole tree, which only a reader of the whole tree can check.
    Link {
        target: String,
    },
}

/// Whether the key of a run with a cache may list so many files, links and empty folders.
pub fn check_cached(files: i64) -> Result<(), Refused> {
    let why = || format!("a cached run has at most {MAX_CACHED_FILES} files: leave out --cache, or send an archive");
    if files > MAX_CACHED_FILES { Err(Refused::invalid("files", why())) } else { Ok(()) }
}

impl Tree {
    /// A folder from its entries in any order.
    pub fn of(mut entries: Vec<Entry>) -> Tree {
        entries.sort_by(|left, right| left.name.as_bytes().cmp(right.name.as_bytes()));
        Tree { entries }
    }

    pub fn document(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("a tree is plain data")
    }

    /// Reads a document and checks all that can be checked without the rest of the tree.
    pub fn parse(document: &[u8]) -> Result<Tree, Refused> {
        let tree: Tree = serde_json::from_slice(document)
            .map_err(|error| Refused::invalid("tree", format!("not the document of a folder: {error}")))?;
        for entry in &tree.entries {
            entry.check()?;
        }
        let in_order = |pair: &[Entry]| pair[0].name.as_bytes() < pair[1].name.as_bytes();
        if !tree.entries.windows(2).all(in_order) {
            return Err(Refused::invalid("tree", "entries must be in the order of their names, each name once"));
        }
        Ok(tree)
    }

    /// What must be stored before this document can be: hashes of files, and of folders.
    pub fn children(&self) -> impl Iterator<Item = Child<'_>> {
        self.entries.iter().filter_map(|entry| match &entry.node {
            Node::File { hash, .. } => Some(Child { hash, is_tree: false }),
            Node::Folder { hash } => Some(Child { hash, is_tree: true }),
            Node::Link { .. } => None,
        })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Child<'a> {
    pub hash: &'a str,
    pub is_tree: bool,
}

impl Entry {
    fn check(&self) -> Result<(), Refused> {
        let name = &self.name;
        if !is_name(name) {
            return Err(Refused::invalid("tree", format!("`{name}` is not the name of a file")));
        }
        let ok = match &self.node {
            Node::File { hash, size, mode } => is_hash(hash) && *size >= 0 && *mode <= 0o777,
            Node::Folder { hash } => is_hash(hash),
            // Shape only: how far it may climb depends on where the folder is.
            Node::Link { target } => is_target(target),
        };
        if ok { Ok(()) } else { Err(Refused::invalid("tree", format!("the entry `{name}` is malformed"))) }
    }
}

/// A path below a folder, one plain name after the other: how deep it is can be counted.
pub fn is_path(path: &str) -> bool {
    path.len() <= MAX_TARGET_BYTES && path.split('/').all(is_name)
}

/// One step of a path.
pub fn is_name(name: &str) -> bool {
    !matches!(name, "" | "." | "..") && name.len() <= MAX_NAME_BYTES && !name.contains(['/', '\0'])
}

fn is_target(target: &str) -> bool {
    !target.is_empty() && target.len() <= MAX_TARGET_BYTES && !target.starts_with('/') && !target.contains('\0')
}

/// Whether a link in a folder `depth` levels below the root stays inside the tree, judged by its text alone.
pub fn stays_inside(target: &str, depth: usize) -> bool {
    resolve(&vec!["x"; depth], target).is_some()
}

/// Where a link in `folder` leads, as steps from the root; none if it leaves the tree.
pub fn resolve<'a>(folder: &[&'a str], target: &'a str) -> Option<Vec<&'a str>> {
    if !is_target(target) {
        return None;
    }
    let mut at = folder.to_vec();
    for step in target.split('/') {
        match step {
            "" | "." => {}
            ".." => drop(at.pop()?),
            step => at.push(step),
        }
    }
    Some(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(name: &str) -> Entry {
        Entry { name: name.into(), node: Node::File { hash: "0".repeat(64), size: 1, mode: 0o644 } }
    }
    fn link(name: &str, target: &str) -> Entry {
        Entry { name: name.into(), node: Node::Link { target: target.into() } }
    }

    #[test]
    fn one_folder_has_one_document() {
        let (one, other) =
            (Tree::of(vec![file("b"), file("a-"), file("a")]), Tree::of(vec![file("a"), file("b"), file("a-")]));
        assert_eq!(one.document(), other.document());
        assert_eq!(Tree::parse(&one.document()).unwrap(), one);
        assert_eq!(Tree::parse(&Tree::default().document()).unwrap().entries, [], "an empty folder is a tree");
    }

    #[test]
    fn what_is_no_folder_is_refused() {
        let bad_names = ["", ".", "..", "a/b", "a\0", &"x".repeat(256)];
        for name in bad_names {
            assert!(Tree::parse(&Tree { entries: vec![file(name)] }.document()).is_err(), "{name:?}");
        }
        for target in ["", "/etc/passwd", "a\0b", &"x".repeat(5000)] {
            assert!(Tree::parse(&Tree { entries: vec![link("l", target)] }.document()).is_err(), "{target:?}");
        }
        let wrong = |node| Tree { entries: vec![Entry { name: "a".into(), node }] }.document();
        let hash = "0".repeat(64);
        for document in [
            wrong(Node::File { hash: "zz".into(), size: 1, mode: 0o644 }),
            wrong(Node::File { hash: hash.clone(), size: -1, mode: 0o644 }),
            wrong(Node::File { hash: hash.clone(), size: 1, mode: 0o4755 }),
            wrong(Node::Folder { hash: hash[1..].into() }),
            Tree { entries: vec![file("a"), file("a")] }.document(),
            Tree { entries: vec![file("b"), file("a")] }.document(),
            br#"{"entries":[],"more":1}"#.to_vec(),
            b"[]".to_vec(),
            b"\xff".to_vec(),
        ] {
            assert!(Tree::parse(&document).is_err(), "{}", String::from_utf8_lossy(&document));
        }
    }

    #[test]
    fn a_path_is_plain_names() {
        for (path, plain) in [
            ("a", true),
            ("a/b", true),
            ("./a", false),
            ("a//b", false),
            ("a/", false),
            ("/a", false),
            ("a/../b", false),
        ] {
            assert_eq!(is_path(path), plain, "{path}");
        }
    }

    #[test]
    fn links_stay_inside_by_their_text() {
        let table = [
            ("a", 0, true),
            ("../a", 0, false),
            ("../a", 1, true),
            ("../../a", 1, false),
            ("b/../../a", 1, true),
            ("b/../../../a", 1, false),
            ("./a//b/", 0, true),
            ("/a", 3, false),
        ];
        for (target, depth, inside) in table {
            assert_eq!(stays_inside(target, depth), inside, "{target} at {depth}");
        }
        assert_eq!(resolve(&["lib", "deep"], "../x/./y").unwrap(), ["lib", "x", "y"]);
    }
}
