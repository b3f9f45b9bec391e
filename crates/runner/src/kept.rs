//! What a step leaves for another workdir: files below its own that match its globs, sent as a tree (`model::tree`) when the command has
//! ended well and before the end is reported. What the control plane has already is sent again; that changes nothing.

use crate::artifacts::{self, Item};
use crate::clock::Backoff;
use crate::link::Line;
use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};
use std::collections::BTreeMap;
use std::io::{self, Read};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use wire::client::{ClientError, Method};
use wire::model::crash_point;
use wire::model::tree::{Entry, Node, Tree, TreeRef};

const UPLOADS_AT_A_TIME: usize = 10;
const PIECE: usize = 256 << 10;
/// Tries of one upload while the control plane answers; while it is away the end waits.
const TRIES: u32 = 5;

/// A file, and what its bytes hash to.
struct Hashed {
    path: PathBuf,
    hash: String,
    size: u64,
}

/// Folders of the tree that is made, by their names.
#[derive(Default)]
struct Folder {
    folders: BTreeMap<String, Folder>,
    others: BTreeMap<String, Node>,
}

/// All that the globs find, as a tree that is with the control plane; otherwise why not.
pub async fn keep(workdir: &Path, globs: Vec<String>, line: &Line) -> Result<TreeRef, String> {
    let workdir = workdir.to_owned();
    let search = tokio::task::spawn_blocking(move || read(&workdir, &globs));
    let (root, files) = search.await.expect("a search does not panic")?;
    let (count, bytes) = (files.len() as i64, files.iter().map(|file| file.size as i64).sum());
    let sent = stream::iter(files).map(|file| send(line.clone(), What::File(file))).buffer_unordered(UPLOADS_AT_A_TIME);
    sent.try_collect::<Vec<()>>().await?;
    let mut documents = Vec::new();
    let hash = root.documents(&mut documents);
    // A folder is sent behind what it names.
    for (hash, document) in documents {
        send(line.clone(), What::Tree { hash, document }).await?;
    }
    Ok(TreeRef { hash, files: count, bytes })
}

/// Blocking: finds the files and hashes them.
fn read(workdir: &Path, globs: &[String]) -> Result<(Folder, Vec<Hashed>), String> {
    let found = artifacts::find(workdir, globs);
    if let Some(problem) = found.problems.first() {
        return Err(problem.clone());
    }
    let (mut root, mut files) = (Folder::default(), Vec::new());
    for (name, item) in found.files {
        let (folder, last) = root.enter(&name);
        match item {
            Item::Folder => drop(folder.folders.entry(last).or_default()),
            Item::Link(target) => drop(folder.others.insert(last, Node::Link { target })),
            Item::File(path) => {
                let (hashed, mode) = hash(path).map_err(|error| format!("{name}: {error}"))?;
                let node = Node::File { hash: hashed.hash.clone(), size: hashed.size as i64, mode };
                folder.others.insert(last, node);
                files.push(hashed);
            }
        }
    }
    Ok((root, files))
}

/// Another process of the same user may have put something else there since the search: no link is followed, no FIFO waited for.
fn open(path: &Path) -> io::Result<std::fs::File> {
    let file = std::fs::OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path)?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(io::Error::other("not a file any more")) }
}

fn hash(path: PathBuf) -> io::Result<(Hashed, u32)> {
    let mut file = open(&path)?;
    let mode = file.metadata()?.permissions().mode() & 0o777;
    let (mut hasher, mut size, mut piece) = (blake3::Hasher::new(), 0, vec![0; PIECE]);
    loop {
        match file.read(&mut piece)? {
            0 => break,
            read => {
                hasher.update(&piece[..read]);
                size += read as u64;
            }
        }
    }
    Ok((Hashed { path, hash: hasher.finalize().to_hex().to_string(), size }, mode))
}

impl Folder {
    /// The folder in which this path is, and its last name.
    fn enter(&mut self, path: &str) -> (&mut Folder, String) {
        let (folders, last) = path.rsplit_once('/').map_or((None, path), |(folders, last)| (Some(folders), last));
        let mut at = self;
        for name in folders.into_iter().flat_map(|folders| folders.split('/')) {
            at = at.folders.entry(name.to_owned()).or_default();
        }
        (at, last.to_owned())
    }

    /// Its hash; its document and those below it are added, the innermost first.
    fn documents(&self, all: &mut Vec<(String, Vec<u8>)>) -> String {
        let mut entries = Vec::new();
        for (name, folder) in &self.folders {
            let hash = folder.documents(all);
            entries.push(Entry { name: name.clone(), node: Node::Folder { hash } });
        }
        entries.extend(self.others.iter().map(|(name, node)| Entry { name: name.clone(), node: node.clone() }));
        let document = Tree::of(entries).document();
        let hash = blake3::hash(&document).to_hex().to_string();
        all.push((hash.clone(), document));
        hash
    }
}

enum What {
    File(Hashed),
    Tree { hash: String, document: Vec<u8> },
}

async fn send(mut line: Line, what: What) -> Result<(), String> {
    let (mut tries, mut backoff) = (0, Backoff::default());
    loop {
        let why = match try_send(&line, &what).await {
            Ok(()) => return Ok(()),
            Err(error) if line.is_away(&error) => {
                line.try_again_after(backoff.next()).await;
                continue;
            }
            Err(error) if error.is_final() => return Err(error.to_string()),
            Err(error) => error.to_string(),
        };
        tries += 1;
        if tries == TRIES {
            return Err(why);
        }
        line.try_again_after(backoff.next()).await;
    }
}

async fn try_send(line: &Line, what: &What) -> Result<(), ClientError> {
    let request = match what {
        What::File(Hashed { path, hash, size }) => {
            let request = line.client.request(Method::PUT, &format!("/runner/v1/blobs/{hash}"));
            let file = open(path).map_err(|error| ClientError::Protocol(format!("{}: {error}", path.display())))?;
            request.stream(artifacts::pieces(tokio::fs::File::from_std(file), *size), Some(*size))
        }
        What::Tree { hash, document } => {
            let request = line.client.request(Method::PUT, &format!("/runner/v1/trees/{hash}"));
            let document = Bytes::from(document.clone());
            let length = document.len() as u64;
            request.stream(stream::iter([Ok::<_, io::Error>(document)]), Some(length))
        }
    };
    crash_point!("kept.put", request.send().await).map(drop)
}
