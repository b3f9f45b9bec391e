//! Brings a job's files into its workdir: inline bytes, cached blobs, or blobs fetched by hash. Nothing is placed that
//! was not verified, and nothing outside of the workdir.

use crate::beneath::{Beneath, steps};
use crate::cache::Cache;
use crate::clock::Backoff;
use crate::link::Line;
use futures_util::{StreamExt, TryStreamExt, stream};
use std::collections::BTreeSet;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use wire::client::ClientError;
use wire::runner::{EndCause, Stdin, SyncFile};

const FETCHES_AT_A_TIME: usize = 8;
/// A blob that arrives wrong this often is wrong where it is kept.
const WRONG_AT_MOST: u32 = 3;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Fetched {
    pub blobs: i64,
    pub bytes: i64,
}

/// Why the files are not in place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotPlaced {
    pub cause: EndCause,
    pub why: String,
}

impl NotPlaced {
    fn because(why: impl Into<String>) -> NotPlaced {
        NotPlaced { cause: EndCause::SyncFailed, why: why.into() }
    }
    fn by_system(what: &str, error: &io::Error) -> NotPlaced {
        let full = matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded);
        let cause = if full { EndCause::DiskFull } else { EndCause::SyncFailed };
        NotPlaced { cause, why: format!("{what}: {error}") }
    }
}

/// The blobs that have to travel.
pub fn missing(files: &[SyncFile], cache: &Cache) -> Vec<(String, i64)> {
    let wanted: BTreeSet<(String, i64)> =
        files.iter().filter(|file| file.inline.is_none()).map(|file| (file.hash.clone(), file.size)).collect();
    wanted.into_iter().filter(|(hash, _)| !cache.has(hash)).collect()
}

/// Fetches what is missing. Waits out a control plane that is away: the job's sync limit is counted there.
pub async fn fetch(blobs: Vec<(String, i64)>, cache: Arc<Cache>, line: Line) -> Result<Fetched, NotPlaced> {
    let sizes: Vec<i64> = stream::iter(blobs)
        .map(|(hash, _)| fetch_one(hash, cache.clone(), line.clone()))
        .buffer_unordered(FETCHES_AT_A_TIME)
        .try_collect()
        .await?;
    Ok(Fetched { blobs: sizes.len() as i64, bytes: sizes.iter().sum() })
}

async fn fetch_one(hash: String, cache: Arc<Cache>, mut line: Line) -> Result<i64, NotPlaced> {
    if hash.len() != 64 || !hash.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err(NotPlaced::because(format!("`{hash}` is not a BLAKE3 hash")));
    }
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
            Err(Trying::Control(ClientError::Problem(problem))) if problem.status < 500 && problem.status != 429 => {
                return Err(NotPlaced::because(format!("blob {hash}: {problem}")));
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
    let (path, mut file) = cache.begin(hash, next_number()).map_err(Trying::System)?;
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
                break cache.keep(&path, hash).map(|()| Some(bytes)).map_err(Trying::System);
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

/// Puts every file where it belongs. Blocking.
pub fn place(files: &[SyncFile], workdir: &Path, cache: &Cache) -> Result<(), NotPlaced> {
    let system = |error: io::Error| NotPlaced::by_system(&workdir.display().to_string(), &error);
    std::fs::create_dir_all(workdir).map_err(system)?;
    let beneath = Beneath::open(workdir).map_err(system)?;
    for file in files {
        let steps = steps(&file.path).map_err(NotPlaced::because)?;
        let content = content(file, cache)?;
        let put = beneath.create(&steps, file.mode).and_then(|mut placed| match content {
            Content::Inline(bytes) => placed.write_all(bytes),
            Content::Cached(mut blob) => io::copy(&mut blob, &mut placed).map(drop),
        });
        put.map_err(|error| NotPlaced::by_system(&file.path, &error))?;
    }
    Ok(())
}

/// Makes sure that the bytes of the standard input are in the cache, as those used last: they are not trimmed before the command
/// starts. Blocking.
pub fn place_stdin(stdin: Option<&Stdin>, cache: &Cache) -> Result<(), NotPlaced> {
    let Some(stdin) = stdin.filter(|stdin| cache.get(&stdin.hash).is_none()) else { return Ok(()) };
    let system = |error: io::Error| NotPlaced::by_system("standard input", &error);
    match &stdin.inline {
        Some(bytes) if blake3::hash(&bytes.0).to_hex().as_str() == stdin.hash => {
            let (path, mut file) = cache.begin(&stdin.hash, next_number()).map_err(system)?;
            file.write_all(&bytes.0).and_then(|()| cache.keep(&path, &stdin.hash)).map_err(system)
        }
        Some(_) => Err(NotPlaced::because("standard input arrived with other content")),
        None => Err(NotPlaced::because("standard input was not fetched")),
    }
}

/// Of a file to fetch into: no two have the same.
fn next_number() -> u64 {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    NUMBER.fetch_add(1, Ordering::Relaxed)
}

enum Content<'a> {
    Inline(&'a [u8]),
    Cached(std::fs::File),
}

fn content<'a>(file: &'a SyncFile, cache: &Cache) -> Result<Content<'a>, NotPlaced> {
    match &file.inline {
        Some(bytes) if blake3::hash(&bytes.0).to_hex().as_str() == file.hash => Ok(Content::Inline(&bytes.0)),
        Some(_) => Err(NotPlaced::because(format!("{} arrived with other content", file.path))),
        None => {
            let blob = cache.get(&file.hash);
            blob.map(Content::Cached).ok_or_else(|| NotPlaced::because(format!("{} was not fetched", file.path)))
        }
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
