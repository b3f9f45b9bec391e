//! Fetches blobs by their hash into the cache. Nothing is kept that was not verified.

use crate::beneath::steps;
use crate::cache::Cache;
use crate::clock::Backoff;
use crate::link::Line;
use futures_util::{StreamExt, TryStreamExt, stream};
use std::collections::BTreeSet;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use wire::client::ClientError;
use wire::model::spec::is_hash;
use wire::pack;
use wire::runner::{BlobsAsked, EndCause, Stdin};

const FETCHES_AT_A_TIME: usize = 8;
/// A blob that arrives wrong this often is wrong where it is kept.
const WRONG_AT_MOST: u32 = 3;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Fetched {
    pub blobs: i64,
    pub bytes: i64,
}

impl Fetched {
    pub fn and(self, more: Fetched) -> Fetched {
        Fetched { blobs: self.blobs + more.blobs, bytes: self.bytes + more.bytes }
    }
}

/// Why the files are not in place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotPlaced {
    pub cause: EndCause,
    pub why: String,
}

impl NotPlaced {
    pub fn because(why: impl Into<String>) -> NotPlaced {
        NotPlaced { cause: EndCause::SyncFailed, why: why.into() }
    }
    pub fn by_system(what: &str, error: &io::Error) -> NotPlaced {
        let full = matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded);
        let cause = if full { EndCause::DiskFull } else { EndCause::SyncFailed };
        NotPlaced { cause, why: format!("{what}: {error}") }
    }
}

/// Fetches what is missing: small blobs together, large ones alone, several at a time. Waits out a control plane that is away: the job's
/// sync limit is counted there.
pub async fn fetch(blobs: Vec<(String, i64)>, cache: Arc<Cache>, line: Line) -> Result<Fetched, NotPlaced> {
    if let Some((bad, _)) = blobs.iter().find(|(hash, _)| !is_hash(hash)) {
        return Err(NotPlaced::because(format!("`{bad}` is not a BLAKE3 hash")));
    }
    let (small, large): (Vec<_>, Vec<_>) = blobs.into_iter().partition(|(_, size)| *size <= pack::BLOB_BYTES);
    let unpacked: Vec<(Vec<String>, Fetched)> = stream::iter(packs(small))
        .map(|hashes| fetch_pack(hashes, cache.clone(), line.clone()))
        .buffer_unordered(FETCHES_AT_A_TIME)
        .try_collect()
        .await?;
    let mut fetched = Fetched::default();
    let mut alone: Vec<String> = large.into_iter().map(|(hash, _)| hash).collect();
    for (left, got) in unpacked {
        alone.extend(left);
        fetched = fetched.and(got);
    }
    let sizes: Vec<i64> = stream::iter(alone)
        .map(|hash| fetch_one(hash, cache.clone(), line.clone()))
        .buffer_unordered(FETCHES_AT_A_TIME)
        .try_collect()
        .await?;
    Ok(fetched.and(Fetched { blobs: sizes.len() as i64, bytes: sizes.iter().sum() }))
}

/// What is asked for with one request.
fn packs(small: Vec<(String, i64)>) -> Vec<Vec<String>> {
    let mut packs: Vec<Vec<String>> = Vec::new();
    let mut bytes = 0;
    for (hash, size) in small {
        let is_full = |pack: &Vec<String>| pack.len() == pack::PACK_BLOBS || bytes + size > pack::PACK_BYTES as i64;
        if packs.last().is_none_or(is_full) {
            packs.push(Vec::new());
            bytes = 0;
        }
        bytes += size;
        packs.last_mut().expect("one was just begun").push(hash);
    }
    packs
}

/// Returns what did not come along, too: it is fetched alone, and then its absence has a reason.
async fn fetch_pack(
    hashes: Vec<String>,
    cache: Arc<Cache>,
    mut line: Line,
) -> Result<(Vec<String>, Fetched), NotPlaced> {
    let mut backoff = Backoff::default();
    loop {
        match try_fetch_pack(&hashes, &cache, &line).await {
            Ok(done) => return Ok(done),
            Err(Trying::System(error)) => return Err(NotPlaced::by_system("fetching files", &error)),
            Err(Trying::Control(error)) if error.is_final() => {
                return Err(NotPlaced::because(format!("{} files: {error}", hashes.len())));
            }
            Err(Trying::Control(error)) => {
                tracing::debug!(%error, "a pack of files did not arrive, trying again");
                line.try_again_after(backoff.next()).await;
            }
        }
    }
}

async fn try_fetch_pack(hashes: &[String], cache: &Cache, line: &Line) -> Result<(Vec<String>, Fetched), Trying> {
    let asked = BlobsAsked { hashes: hashes.to_vec() };
    let request = line.client.request(wire::client::Method::POST, "/runner/v1/blobs").json(&asked);
    let mut response = request.send().await.map_err(Trying::Control)?;
    let mut wanted: BTreeSet<&str> = hashes.iter().map(String::as_str).collect();
    let (mut unpacker, mut fetched) = (pack::Unpacker::default(), Fetched::default());
    while let Some(piece) = response.chunk().await.map_err(Trying::Control)? {
        let blobs = unpacker.feed(&piece).map_err(|error| Trying::Control(ClientError::Protocol(error.to_string())))?;
        for blob in blobs {
            // What arrives with other content is asked for alone, like what does not arrive.
            if blake3::hash(&blob.bytes).to_hex().as_str() == blob.hash && wanted.remove(blob.hash.as_str()) {
                cache.put(&blob.hash, &blob.bytes).map_err(Trying::System)?;
                fetched.blobs += 1;
                fetched.bytes += blob.bytes.len() as i64;
            }
        }
    }
    Ok((wanted.into_iter().map(str::to_owned).collect(), fetched))
}

async fn fetch_one(hash: String, cache: Arc<Cache>, mut line: Line) -> Result<i64, NotPlaced> {
    let (mut wrong, mut backoff) = (0, Backoff::default());
    loop {
        match try_fetch(&hash, &cache, &line).await {
            Ok(Some(bytes)) => return Ok(bytes),
            Ok(None) => {
                wrong += 1;
                if wrong == WRONG_AT_MOST {
                    return Err(NotPlaced::because(format!("blob {hash} arrived with other content")));
                }
            }
            Err(Trying::System(error)) => return Err(NotPlaced::by_system("fetching files", &error)),
            Err(Trying::Control(error)) if error.is_final() => {
                return Err(NotPlaced::because(format!("blob {hash}: {error}")));
            }
            Err(Trying::Control(error)) => {
                tracing::debug!(%hash, %error, "a blob did not arrive, trying again");
                line.try_again_after(backoff.next()).await;
            }
        }
    }
}

enum Trying {
    Control(ClientError),
    System(io::Error),
}

/// None when the bytes are not what the hash says.
async fn try_fetch(hash: &str, cache: &Cache, line: &Line) -> Result<Option<i64>, Trying> {
    let request = line.client.request(wire::client::Method::GET, &format!("/runner/v1/blobs/{hash}"));
    let mut response = request.send().await.map_err(Trying::Control)?;
    let (path, mut file) = cache.begin(hash).map_err(Trying::System)?;
    let (mut hasher, mut bytes) = (blake3::Hasher::new(), 0);
    let outcome = loop {
        match response.chunk().await {
            Ok(Some(chunk)) => {
                hasher.update(&chunk);
                bytes += chunk.len() as i64;
                if let Err(error) = file.write_all(&chunk) {
                    break Err(Trying::System(error));
                }
            }
            Ok(None) if hasher.finalize().to_hex().as_str() == hash => {
                break cache.keep(&path, hash, bytes as u64).map(|()| Some(bytes)).map_err(Trying::System);
            }
            Ok(None) => break Ok(None),
            Err(error) => break Err(Trying::Control(error)),
        }
    };
    if !matches!(outcome, Ok(Some(_))) {
        let _ = std::fs::remove_file(path);
    }
    outcome
}

/// Makes sure that the bytes of the standard input are in the cache, as those used last: they are not trimmed before the command
/// starts. Blocking.
pub fn place_stdin(stdin: Option<&Stdin>, cache: &Cache) -> Result<(), NotPlaced> {
    let Some(stdin) = stdin.filter(|stdin| cache.get(&stdin.hash).is_none()) else { return Ok(()) };
    match &stdin.inline {
        Some(bytes) if blake3::hash(&bytes.0).to_hex().as_str() == stdin.hash => {
            cache.put(&stdin.hash, &bytes.0).map_err(|error| NotPlaced::by_system("standard input", &error))
        }
        Some(_) => Err(NotPlaced::because("standard input arrived with other content")),
        None => Err(NotPlaced::because("standard input was not fetched")),
    }
}

/// A job's own folder below the instance's, and where in it the command starts.
pub fn workdir(instance: &Path, name: &str, start: Option<&str>) -> Result<(PathBuf, PathBuf), NotPlaced> {
    let is_ours = name.strip_prefix("work_").is_some_and(|number| number.parse::<u64>().is_ok());
    if !is_ours {
        return Err(NotPlaced::because(format!("`{name}` is not a workdir")));
    }
    let workdir = instance.join(name);
    let inside = match start.filter(|start| !matches!(*start, "" | "." | "./")) {
        Some(start) => {
            steps(start).map_err(NotPlaced::because)?.iter().fold(workdir.clone(), |dir, step| dir.join(step))
        }
        None => workdir.clone(),
    };
    Ok((workdir, inside))
}
