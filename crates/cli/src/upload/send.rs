//! Sends what the control plane does not have. It is asked about folders first: one that is there is there with all that is in it, so an
//! unchanged tree is one question. Small files travel together, large ones alone, several at a time; folders follow what they name.

use super::hashing::{FolderDocument, Hashed, changed};
use super::progress::Progress;
use super::walk::FoundFile;
use crate::complaint::{Complaint, Done};
use crate::control_plane::{API, ControlPlane};
use futures_util::stream::{self, StreamExt as _, TryStreamExt as _};
use std::collections::{BTreeMap, BTreeSet};
use wire::api::BlobList;
use wire::client::{ClientError, Method};
use wire::model::crash_point;
use wire::pack;

/// Requests on their way at the same time.
const AT_ONCE: usize = 8;
/// Hashes in one question: a body has 1 MiB.
const ASKED_AT_ONCE: usize = 10_000;
const TRIES: usize = 3;
const CHUNK: usize = 256 << 10;

/// What had to travel.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sent {
    pub blobs: usize,
    pub bytes: i64,
}

/// Sends what is missing. What was there when it was asked about may have been deleted since, if no run had used it for long: then it is
/// asked about again.
pub async fn send(plane: &ControlPlane, hashed: &Hashed, mut missing: Missing) -> Done<Sent> {
    let mut sent = Sent::default();
    for _ in 0..TRIES {
        if try_send(plane, hashed, &missing, &mut sent).await? {
            return Ok(sent);
        }
        missing = Missing::ask(plane, hashed).await?;
    }
    Err(Complaint::refused("files were deleted by the control plane while they were being sent")
        .fix("run the command again"))
}

/// False when something had gone that was there before.
async fn try_send(plane: &ControlPlane, hashed: &Hashed, missing: &Missing, sent: &mut Sent) -> Done<bool> {
    let files: Vec<(&str, &FoundFile)> = missing.files(hashed).collect();
    let Sent { blobs, bytes } = missing.amount(hashed);
    let progress = Progress::new("sending", blobs, bytes);
    let done = send_files(plane, files, &progress).await;
    progress.done();
    done?;
    (sent.blobs, sent.bytes) = (sent.blobs + blobs, sent.bytes + bytes);
    send_folders(plane, hashed.folders.iter().filter(|folder| missing.folders.contains(&folder.hash))).await
}

/// What the control plane does not have.
#[derive(Default)]
pub struct Missing {
    folders: BTreeSet<String>,
    files: Vec<String>,
}

impl Missing {
    pub fn is_empty(&self) -> bool {
        self.folders.is_empty() && self.files.is_empty()
    }

    pub fn amount(&self, hashed: &Hashed) -> Sent {
        let sizes = self.files(hashed).map(|(_, file)| file.size);
        Sent { blobs: self.files(hashed).count(), bytes: sizes.sum() }
    }

    /// Of our own files only, whatever else was answered.
    fn files<'a>(&'a self, hashed: &'a Hashed) -> impl Iterator<Item = (&'a str, &'a FoundFile)> {
        self.files.iter().filter_map(|hash| Some((hash.as_str(), hashed.files.get(hash)?)))
    }

    /// From the root down, and only into folders that are not there.
    pub async fn ask(plane: &ControlPlane, hashed: &Hashed) -> Done<Missing> {
        let by_hash: BTreeMap<&str, &FolderDocument> =
            hashed.folders.iter().map(|folder| (folder.hash.as_str(), folder)).collect();
        let (mut asked, mut level) = (BTreeSet::new(), BTreeSet::from([hashed.root.tree.as_str()]));
        let (mut missing, mut files) = (Missing::default(), BTreeSet::new());
        while !level.is_empty() {
            asked.extend(level.iter().copied());
            let absent = question(plane, level.iter().copied(), true).await?;
            let absent: Vec<&FolderDocument> =
                absent.iter().filter_map(|hash| by_hash.get(hash.as_str())).copied().collect();
            level.clear();
            for folder in &absent {
                for child in folder.tree.children() {
                    if !child.is_tree {
                        files.insert(child.hash);
                    } else if !asked.contains(child.hash) {
                        level.insert(child.hash);
                    }
                }
            }
            missing.folders.extend(absent.into_iter().map(|folder| folder.hash.clone()));
        }
        missing.files = question(plane, files.into_iter(), false).await?;
        Ok(missing)
    }
}

async fn question<'a>(
    plane: &ControlPlane,
    hashes: impl Iterator<Item = &'a str>,
    as_trees: bool,
) -> Done<Vec<String>> {
    let hashes: Vec<String> = hashes.map(str::to_owned).collect();
    let mut missing = Vec::new();
    for hashes in hashes.chunks(ASKED_AT_ONCE) {
        let list = match as_trees {
            true => BlobList { trees: hashes.to_vec(), ..BlobList::default() },
            false => BlobList { hashes: hashes.to_vec(), ..BlobList::default() },
        };
        let answer: BlobList = plane.question("/blobs/missing", &list).await?;
        missing.extend(if as_trees { answer.trees } else { answer.hashes });
    }
    Ok(missing)
}

async fn send_files(plane: &ControlPlane, files: Vec<(&str, &FoundFile)>, progress: &Progress) -> Done<()> {
    let (small, large): (Vec<_>, Vec<_>) = files.into_iter().partition(|(_, file)| file.size <= pack::BLOB_BYTES);
    let mut packs: Vec<Vec<(&str, &FoundFile)>> = Vec::new();
    let mut bytes = 0;
    for (hash, file) in small {
        if packs.last().is_none_or(|pack| pack.len() == pack::PACK_BLOBS) || bytes + file.size > pack::PACK_BYTES as i64
        {
            packs.push(Vec::new());
            bytes = 0;
        }
        bytes += file.size;
        packs.last_mut().expect("one was just begun").push((hash, file));
    }
    // A single small file goes by itself, as large ones do: there is nothing to pack it with.
    let (alone, packs): (Vec<_>, Vec<_>) = packs.into_iter().partition(|pack| pack.len() == 1);
    let alone = alone.into_iter().flatten().chain(large);
    let packed = stream::iter(packs).map(|pack| send_pack(plane, pack, progress)).buffer_unordered(AT_ONCE);
    packed.try_collect::<Vec<()>>().await?;
    let puts = stream::iter(alone).map(|(hash, file)| put(plane, hash, file, progress)).buffer_unordered(AT_ONCE);
    puts.try_collect::<Vec<()>>().await?;
    Ok(())
}

async fn send_pack(plane: &ControlPlane, files: Vec<(&str, &FoundFile)>, progress: &Progress) -> Done<()> {
    let mut packed = Vec::new();
    let bytes: i64 = files.iter().map(|(_, file)| file.size).sum();
    for (hash, file) in &files {
        let content = std::fs::read(&file.path).map_err(|error| Complaint::file("read", &file.path, &error))?;
        if blake3::hash(&content).to_hex().as_str() != *hash {
            return Err(changed(&file.path));
        }
        pack::push(&mut packed, false, hash, &content);
    }
    put_bytes(plane, "/packs", packed).await?;
    progress.advance(files.len(), bytes);
    Ok(())
}

/// One after the other, in their order: each names only what is there by then.
async fn send_folders<'a>(plane: &ControlPlane, folders: impl Iterator<Item = &'a FolderDocument>) -> Done<bool> {
    let (mut packed, mut count) = (Vec::new(), 0);
    for folder in folders {
        let document = folder.tree.document();
        let is_large = document.len() as i64 > pack::BLOB_BYTES;
        let is_full = count == pack::PACK_BLOBS || packed.len() + document.len() > pack::PACK_BYTES;
        if count > 0 && (is_full || is_large) {
            if !put_bytes(plane, "/packs", std::mem::take(&mut packed)).await? {
                return Ok(false);
            }
            count = 0;
        }
        if is_large {
            if !put_bytes(plane, &format!("/trees/{}", folder.hash), document).await? {
                return Ok(false);
            }
        } else {
            pack::push(&mut packed, true, &folder.hash, &document);
            count += 1;
        }
    }
    if count == 0 { Ok(true) } else { put_bytes(plane, "/packs", packed).await }
}

/// False when something that the bytes name is not there any more.
async fn put_bytes(plane: &ControlPlane, path: &str, bytes: Vec<u8>) -> Done<bool> {
    let (route, bytes) = (&format!("{API}{path}"), bytes::Bytes::from(bytes));
    plane
        .patiently(|client| {
            let (length, body) = (bytes.len() as u64, stream::iter([std::io::Result::Ok(bytes.clone())]));
            let request = client.request(Method::PUT, route).stream(body, Some(length));
            async move {
                match crash_point!("blob.pack", request.send().await) {
                    Ok(_) => Ok(true),
                    Err(ClientError::Problem(problem)) if problem.code == "gone" => Ok(false),
                    Err(error) => Err(error),
                }
            }
        })
        .await
}

async fn put(plane: &ControlPlane, hash: &str, file: &FoundFile, progress: &Progress) -> Done<()> {
    let (route, path) = (&format!("{API}/blobs/{hash}"), &file.path);
    let sent = plane.patiently(|client| async move {
        let body = match tokio::fs::File::open(path).await {
            Ok(file) => pieces(file),
            Err(error) => return Ok(Err(Complaint::file("read", path, &error))),
        };
        let request = client.request(Method::PUT, route).stream(body, Some(file.size as u64));
        match crash_point!("blob.put", request.send().await) {
            Ok(_) => Ok(Ok(())),
            Err(ClientError::Problem(problem)) if problem.code == "invalid" => Ok(Err(changed(path))),
            Err(error) => Err(error),
        }
    });
    sent.await??;
    progress.advance(1, file.size);
    Ok(())
}

/// A file as the body of a request.
pub fn pieces(file: tokio::fs::File) -> impl futures_util::Stream<Item = std::io::Result<bytes::Bytes>> + Send {
    use tokio::io::AsyncReadExt as _;
    stream::try_unfold(file, |mut file| async move {
        let mut piece = bytes::BytesMut::with_capacity(CHUNK);
        let read = file.read_buf(&mut piece).await?;
        Ok(if read == 0 { None } else { Some((piece.freeze(), file)) })
    })
}
