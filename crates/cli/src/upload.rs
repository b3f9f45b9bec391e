//! Which files travel with a run: the walk, the names they get there, their hashes, and sending only what is missing.
//! Never reads a whole file into memory.

use crate::complaint::{Complaint, Done};
use crate::control_plane::ControlPlane;
use futures_util::stream::{self, StreamExt as _, TryStreamExt as _};
use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Component, Path, PathBuf};
use wire::api::{BlobList, FileEntry};
use wire::client::{ClientError, Method};
use wire::model::crash_point;

/// Files on their way at the same time.
const AT_ONCE: usize = 8;
/// Hashes in one question: a body has 1 MiB.
const ASKED_AT_ONCE: usize = 10_000;
const CHUNK: usize = 256 << 10;

/// Something of this machine and the name it gets on the other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    pub path: PathBuf,
    pub dest: String,
}

/// Reads `PATH[:DEST]` as seen from `base`. A relative path keeps itself; an absolute one, or one that leaves the
/// folder, lands under its last name; a DEST with a slash at its end is a folder to land in.
pub fn source(text: &str, base: &Path) -> Done<Source> {
    let whole = Path::new(text);
    let (path, dest) = match text.rsplit_once(':') {
        // A colon may be part of a name.
        Some((path, dest)) if !base.join(whole).exists() && !path.is_empty() => (Path::new(path), Some(dest)),
        _ => (whole, None),
    };
    let path = match path.strip_prefix("~") {
        Ok(rest) => PathBuf::from(std::env::var_os("HOME").unwrap_or_default()).join(rest),
        Err(_) => path.to_owned(),
    };
    let found = base.join(&path);
    if let Err(error) = std::fs::metadata(&found) {
        return Err(
            Complaint::file("send", &found, &error).fix("check the path after --file; it is seen from this folder")
        );
    }
    let last_name = || found.canonicalize().ok().and_then(|path| Some(path.file_name()?.to_str()?.to_owned()));
    let own = match kept(&path) {
        Some(own) => own,
        None => last_name().ok_or_else(|| no_name(&path))?,
    };
    let dest = match dest {
        None => own,
        Some(folder) if folder.ends_with('/') => join(folder, &last_name().ok_or_else(|| no_name(&path))?),
        Some(dest) => dest.to_owned(),
    };
    let dest = dest.trim_end_matches('/').trim_start_matches("./").to_owned();
    let dest = if dest == "." { String::new() } else { dest };
    if !dest.is_empty() && !wire::model::spec::is_inside(&dest) {
        return Err(Complaint::usage(format!("`{text}`: the destination must stay below the working folder"))
            .fix("write it like --file data/train.csv:input/train.csv"));
    }
    Ok(Source { path: found, dest })
}

/// The path itself, cleaned, if it stays below where we are.
fn kept(path: &Path) -> Option<String> {
    let mut parts = Vec::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::Normal(name) => parts.push(name.to_str()?),
            Component::ParentDir | Component::RootDir | Component::Prefix(_) => return None,
        }
    }
    Some(parts.join("/"))
}

fn no_name(path: &Path) -> Complaint {
    Complaint::usage(format!("{} has no name of its own that could be kept", path.display()))
        .fix("say where it should land: --file PATH:DEST")
}

fn join(folder: &str, name: &str) -> String {
    let folder = folder.trim_end_matches('/');
    if folder.is_empty() { name.to_owned() } else { format!("{folder}/{name}") }
}

/// Every file behind the sources, by its name on the other side.
pub struct Files {
    pub found: BTreeMap<String, PathBuf>,
    /// What was left out and why, for the user to hear.
    pub notes: Vec<String>,
}

pub fn walk(sources: &[Source]) -> Done<Files> {
    let mut files = Files { found: BTreeMap::new(), notes: Vec::new() };
    for source in sources {
        if source.path.is_dir() {
            walk_folder(source, &mut files)?;
        } else {
            add(&mut files, source.dest.clone(), source.path.clone())?;
        }
    }
    Ok(files)
}

/// Hidden files too, but not what `.gitignore` names, and never `.git` itself.
fn walk_folder(source: &Source, files: &mut Files) -> Done<()> {
    let walk = ignore::WalkBuilder::new(&source.path)
        .hidden(false)
        .require_git(false)
        .follow_links(true)
        .filter_entry(|entry| entry.file_name() != ".git")
        .sort_by_file_name(|left, right| left.cmp(right))
        .build();
    for entry in walk {
        let entry = match entry {
            Ok(entry) => entry,
            Err(error) => {
                files.notes.push(format!("left out: {error}"));
                continue;
            }
        };
        if !entry.file_type().is_some_and(|kind| kind.is_file()) {
            continue;
        }
        let below = entry.path().strip_prefix(&source.path).unwrap_or(entry.path());
        match below.to_str() {
            Some(below) => add(files, join(&source.dest, below), entry.path().to_owned())?,
            None => files.notes.push(format!("left out: {} is not UTF-8", entry.path().display())),
        }
    }
    Ok(())
}

fn add(files: &mut Files, dest: String, path: PathBuf) -> Done<()> {
    match files.found.get(&dest) {
        Some(other) if *other != path => {
            Err(Complaint::usage(format!("both {} and {} would become {dest}", other.display(), path.display()))
                .fix("give one of them another name: --file PATH:DEST"))
        }
        _ => {
            files.found.insert(dest, path);
            Ok(())
        }
    }
}

/// Names, sizes, modes and BLAKE3 hashes, in the order of the names.
pub async fn hash(files: &Files) -> Done<Vec<FileEntry>> {
    let all: Vec<(String, PathBuf)> = files.found.iter().map(|(dest, path)| (dest.clone(), path.clone())).collect();
    let hashed = stream::iter(all).map(|(dest, path)| async move {
        let worked = tokio::task::spawn_blocking(move || hash_one(dest, &path)).await;
        worked.map_err(|error| Complaint::refused(error.to_string()))?
    });
    hashed.buffered(AT_ONCE).try_collect().await
}

fn hash_one(dest: String, path: &Path) -> Done<FileEntry> {
    let failed = |error: std::io::Error| Complaint::file("read", path, &error);
    let mut file = std::fs::File::open(path).map_err(failed)?;
    let mode = file.metadata().map_err(failed)?.permissions().mode() & 0o777;
    let mut hasher = blake3::Hasher::new();
    let size = std::io::copy(&mut file, &mut hasher).map_err(failed)?;
    Ok(FileEntry { path: dest, hash: hasher.finalize().to_hex().to_string(), size: size as i64, mode })
}

/// What had to travel.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sent {
    pub blobs: usize,
    pub bytes: i64,
}

/// Sends what the control plane does not have.
pub async fn send(plane: &ControlPlane, files: &Files, entries: &[FileEntry]) -> Done<Sent> {
    let by_hash: BTreeMap<&str, &FileEntry> = entries.iter().map(|entry| (entry.hash.as_str(), entry)).collect();
    let hashes: Vec<String> = by_hash.keys().map(|hash| hash.to_string()).collect();
    let mut missing = Vec::new();
    for hashes in hashes.chunks(ASKED_AT_ONCE) {
        let answer: BlobList = plane.question("/blobs/missing", &BlobList { hashes: hashes.to_vec() }).await?;
        missing.extend(answer.hashes);
    }
    let sent = Sent {
        blobs: missing.len(),
        bytes: missing.iter().filter_map(|hash| by_hash.get(hash.as_str())).map(|entry| entry.size).sum(),
    };
    let puts = missing
        .iter()
        .filter_map(|hash| by_hash.get(hash.as_str()))
        .map(|entry| put(plane, &files.found[&entry.path], entry));
    stream::iter(puts).buffer_unordered(AT_ONCE).try_collect::<Vec<()>>().await?;
    Ok(sent)
}

async fn put(plane: &ControlPlane, path: &Path, entry: &FileEntry) -> Done<()> {
    let route = &format!("{}/blobs/{}", crate::control_plane::API, entry.hash);
    let sent = plane.patiently(|client| async move {
        let body = match tokio::fs::File::open(path).await {
            Ok(file) => pieces(file),
            Err(error) => return Ok(Err(Complaint::file("read", path, &error))),
        };
        let request = client.request(Method::PUT, route).stream(body, Some(entry.size as u64));
        match crash_point!("blob.put", request.send().await) {
            Ok(_) => Ok(Ok(())),
            Err(ClientError::Problem(problem)) if problem.code == "invalid" => Ok(Err(changed(path))),
            Err(error) => Err(error),
        }
    });
    sent.await?
}

fn changed(path: &Path) -> Complaint {
    Complaint::refused(format!("{} changed while it was being sent", path.display())).fix("run the command again")
}

fn pieces(file: tokio::fs::File) -> impl futures_util::Stream<Item = std::io::Result<bytes::Bytes>> + Send {
    use tokio::io::AsyncReadExt as _;
    stream::try_unfold(file, |mut file| async move {
        let mut piece = bytes::BytesMut::with_capacity(CHUNK);
        let read = file.read_buf(&mut piece).await?;
        Ok(if read == 0 { None } else { Some((piece.freeze(), file)) })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(files: &[&str]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for path in files {
            let path = dir.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, path.file_name().unwrap().as_encoded_bytes()).unwrap();
        }
        dir
    }

    #[test]
    fn a_path_keeps_itself_unless_it_leads_elsewhere() {
        let dir = place(&["here/data/a.txt", "lib/x.py", "here/odd:name"]);
        let base = dir.path().join("here");
        let absolute = dir.path().join("lib").display().to_string();
        let table = [
            ("data/a.txt", "data/a.txt"),
            ("./data//a.txt", "data/a.txt"),
            (".", ""),
            ("data", "data"),
            ("data/", "data"),
            ("../lib", "lib"),
            (absolute.as_str(), "lib"),
            ("data/a.txt:b.txt", "b.txt"),
            ("data/a.txt:in/", "in/a.txt"),
            ("data:.", ""),
            ("odd:name", "odd:name"),
        ];
        for (text, dest) in table {
            assert_eq!(source(text, &base).unwrap().dest, dest, "{text}");
        }
        for bad in ["gone", "gone:x", "data:../x", "data:/x", ""] {
            let code = source(bad, &base).map_err(|complaint| complaint.code);
            assert!(code == Err(2) || bad.is_empty(), "{bad}: {code:?}");
        }
    }

    #[test]
    fn a_folder_brings_what_git_would() {
        let dir = place(&["p/a.py", "p/.env", "p/.git/config", "p/out/big", "p/sub/b.py", "p/sub/c.tmp"]);
        std::fs::write(dir.path().join("p/.gitignore"), "out/\n*.tmp\n").unwrap();
        std::os::unix::fs::symlink("a.py", dir.path().join("p/link.py")).unwrap();
        std::os::unix::fs::symlink("gone", dir.path().join("p/broken")).unwrap();
        let files = walk(&[source("p", dir.path()).unwrap()]).unwrap();
        let names: Vec<&str> = files.found.keys().map(String::as_str).collect();
        assert_eq!(names, ["p/.env", "p/.gitignore", "p/a.py", "p/link.py", "p/sub/b.py"]);
        assert_eq!(files.notes.len(), 1, "the broken link is mentioned: {:?}", files.notes);
    }

    #[test]
    fn two_files_never_share_a_name() {
        let dir = place(&["a/x", "b/x"]);
        let both = [source("a/x:x", dir.path()).unwrap(), source("b/x:x", dir.path()).unwrap()];
        assert_eq!(walk(&both).err().unwrap().code, 2);
        let twice = [source("a", dir.path()).unwrap(), source("a/x", dir.path()).unwrap()];
        assert_eq!(walk(&twice).unwrap().found.len(), 1);
    }

    #[tokio::test]
    async fn files_are_known_by_their_content_and_mode() {
        let dir = place(&["x", "y"]);
        std::fs::set_permissions(dir.path().join("x"), std::fs::Permissions::from_mode(0o755)).unwrap();
        let files = walk(&[source("x", dir.path()).unwrap(), source("y", dir.path()).unwrap()]).unwrap();
        let entries = hash(&files).await.unwrap();
        assert_eq!((entries[0].mode, entries[0].size), (0o755, 1));
        assert_eq!(entries[1].hash, blake3::hash(b"y").to_hex().to_string());
    }
}
