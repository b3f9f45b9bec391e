//! Push and pull. This process reads the control plane by its API and the remote by itself, so that a remote is opened with what the person
//! who types may read and write, and never with a server's files or keys.

use super::{DIGITS, HEAD, object, set};
use crate::args::Json;
use crate::complaint::{Complaint, Done};
use crate::control_plane::{API, ControlPlane};
use crate::say::one_line;
use crate::show;
use calls::name::Name;
use calls::reach::closure;
use calls::refs::RefName;
use calls::uri::Blob;
use calls::{CommitId, Fault, Object, Read, Reference};
use server::remote::{Access, Opened, Remote, RemoteError, Source, WINDOW};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::FileExt as _;
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use wire::api::{BlobList, RefView, SetRef};
use wire::client::{Method, encode};
use wire::model::{Trouble, TroubleKind};
use wire::records;

/// Objects of one push or pull.
const MAX_OBJECTS: usize = 5_000_000;
/// Bodies that were read from the remote and not sent yet.
const AHEAD: usize = 4;
/// Hashes in one question.
const ASKED_AT_ONCE: usize = 5_000;

// Not a doc comment: clap would show it as the description of the command.
// The remote of a push or pull.
#[derive(Debug, clap::Args)]
struct Far {
    /// file:///PATH or s3://BUCKET/PREFIX
    #[arg(value_name = "URI")]
    remote: String,
    /// The remote's name in refs/remotes/NAME/HEAD
    #[arg(long = "as", value_name = "NAME", default_value = "origin")]
    name: String,
}

#[derive(Debug, clap::Args)]
pub struct Push {
    #[command(flatten)]
    far: Far,
    /// Which head
    #[arg(default_value = HEAD)]
    head: String,
    /// Replace what the remote has, also if commits are lost by it
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    json: Json,
}

#[derive(Debug, clap::Args)]
pub struct Pull {
    #[command(flatten)]
    far: Far,
    /// Which head of the remote
    #[arg(default_value = HEAD)]
    head: String,
    /// Take what the remote has, also if it has lost commits since the last time
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    json: Json,
}

#[derive(Debug, clap::Args)]
pub struct Sweep {
    /// file:///PATH or s3://BUCKET/PREFIX
    #[arg(value_name = "URI")]
    remote: String,
    #[command(flatten)]
    json: Json,
}

/// What a sweep has done.
#[derive(Debug, serde::Serialize)]
struct Swept {
    /// Unneeded since an earlier sweep.
    deleted: usize,
    /// Found unneeded now.
    marked: usize,
    /// Marked earlier and needed again.
    spared: usize,
}

/// What went over the line.
#[derive(Debug, serde::Serialize)]
struct Moved {
    r#ref: String,
    commit: String,
    previous: Option<String>,
    objects: usize,
    blobs: usize,
}

/// Both names of a transfer, checked.
fn names(head: &str, remote: &str) -> Done<(RefName, RefName)> {
    let bad = |bad: calls::name::BadName| Complaint::usage(bad.to_string());
    let (head, remote) = (Name::new(head).map_err(bad)?, Name::new(remote).map_err(bad)?);
    Ok((RefName::Head(head.clone()), RefName::Remote { remote, head }))
}

fn complaint(error: RemoteError) -> Complaint {
    match &error {
        RemoteError::Uri { .. } => Complaint::usage(error.to_string()),
        RemoteError::NoRef { .. } => Complaint::refused(error.to_string()).fix("check the head's name"),
        _ => Complaint::refused(error.to_string()),
    }
}

fn damaged(error: Fault<Trouble>) -> Complaint {
    complaint(RemoteError::Source(error))
}

/// A call that blocks, off the threads that answer.
async fn blocking<T: Send + 'static>(f: impl FnOnce() -> Done<T> + Send + 'static) -> Done<T> {
    tokio::task::spawn_blocking(f)
        .await
        .map_err(|error| Complaint::refused(format!("the transfer broke off: {error}")))?
}

pub async fn push(plane: &ControlPlane, args: Push) -> Done {
    let (head, seen) = names(&args.head, &args.far.name)?;
    let found = object(plane, &head.to_string()).await?;
    let commit: CommitId = found.id.parse().map_err(|_| Complaint::refused("the control plane names no commit"))?;
    let (uri, at) = (args.far.remote.clone(), head.clone());
    let (remote, previous) = blocking(move || {
        let remote = Remote::open(&uri, Access::Write).map_err(complaint)?;
        let previous = remote.commit(&at).map_err(complaint)?;
        Ok((remote, previous))
    })
    .await?;
    let spool = download(plane, commit, previous).await?;
    let client = plane.client();
    let (handle, force, at) = (Handle::current(), args.force, head.clone());
    let pushed = blocking(move || {
        let mut source = Local { spool, client, handle };
        remote.push(&mut source, &at, commit, force).map_err(complaint)
    })
    .await?;
    let from = commit.to_string();
    set(plane, SetRef { name: seen.to_string(), from, expect: None, force: true }).await?;
    let moved = Moved {
        r#ref: head.to_string(),
        commit: commit.to_string(),
        previous: pushed.previous.map(|commit| commit.to_string()),
        objects: pushed.objects,
        blobs: pushed.blobs,
    };
    tell(&moved, "sent", &args.far.remote, args.json.json)
}

fn tell(moved: &Moved, how: &str, remote: &str, json: bool) -> Done {
    if json {
        return show::json(moved);
    }
    let (name, commit) = (one_line(&moved.r#ref), &moved.commit[..DIGITS]);
    if moved.previous.as_ref() == Some(&moved.commit) {
        eprintln!("repl: {name} is at {commit} already ({})", one_line(remote));
    } else {
        let blobs = match moved.blobs {
            0 => String::new(),
            1 => " and 1 file".to_owned(),
            many => format!(" and {many} files"),
        };
        eprintln!("repl: {name} is at {commit}: {} objects{blobs} {how} ({})", moved.objects, one_line(remote));
    }
    Ok(0)
}

pub async fn sweep(args: Sweep) -> Done {
    let (uri, now_ms) = (args.remote.clone(), show::now_ms());
    let swept = blocking(move || {
        // A repository that is not there is not made; one that is there must keep to the conditions of writes.
        Remote::open(&uri, Access::Read).map_err(complaint)?;
        let remote = Remote::open(&uri, Access::Write).map_err(complaint)?;
        remote.sweep(now_ms, WINDOW).map_err(complaint)
    })
    .await?;
    let swept = Swept { deleted: swept.deleted, marked: swept.condemned, spared: swept.spared };
    if args.json.json {
        return show::json(&swept);
    }
    let Swept { deleted, marked, spared } = swept;
    let remote = one_line(&args.remote);
    eprintln!("repl: {deleted} files deleted, {marked} marked, {spared} needed again ({remote})");
    if marked > 0 {
        eprintln!("repl: a sweep in a day deletes what is marked and still not needed");
    }
    Ok(0)
}

/// Everything below a commit, without what the remote has.
async fn download(plane: &ControlPlane, commit: CommitId, have: Option<CommitId>) -> Done<Spool> {
    let have = have.map_or_else(String::new, |commit| format!("&have={commit}"));
    let mut body = plane.download(&format!("/dag/records?of={commit}{have}")).await?;
    let mut unpacker = records::Unpacker::default();
    let bad = |error: records::Malformed| Complaint::refused(format!("the control plane sends no records: {error}"));
    let mut spool = Spool::new()?;
    while let Some(piece) = body.chunk().await.map_err(|error| plane.complaint(&error))? {
        for record in unpacker.feed(&piece).map_err(bad)? {
            spool.add(&record)?;
        }
    }
    unpacker.finish().map_err(bad)?;
    Ok(spool)
}

/// Records in a file without a name, found by their ids.
struct Spool {
    file: std::fs::File,
    end: u64,
    places: BTreeMap<Reference, (u64, u32)>,
}

impl Spool {
    fn new() -> Done<Spool> {
        let file = tempfile::tempfile().map_err(|error| spooled(&error))?;
        Ok(Spool { file, end: 0, places: BTreeMap::new() })
    }

    fn add(&mut self, record: &[u8]) -> Done<()> {
        let object = Object::decode(record)
            .map_err(|why| Complaint::refused(format!("the control plane sends what is no object: {why}")))?;
        let reference = Reference { kind: object.kind(), id: calls::Id::of(record) };
        self.file.write_all_at(record, self.end).map_err(|error| spooled(&error))?;
        self.places.insert(reference, (self.end, record.len() as u32));
        self.end += record.len() as u64;
        if self.places.len() > MAX_OBJECTS {
            return Err(Complaint::refused(format!("a push has at most {MAX_OBJECTS} objects")));
        }
        Ok(())
    }
}

fn spooled(error: &std::io::Error) -> Complaint {
    Complaint::file("write", &std::env::temp_dir(), error)
}

/// What is pushed: records of the spool, and files as the control plane has them.
struct Local {
    spool: Spool,
    client: wire::client::Client,
    handle: Handle,
}

impl Read for Local {
    type Error = Trouble;

    fn record(&mut self, of: Reference) -> Result<Option<Vec<u8>>, Trouble> {
        let Some((at, bytes)) = self.spool.places.get(&of).copied() else { return Ok(None) };
        let mut record = vec![0; bytes as usize];
        let read = self.spool.file.read_exact_at(&mut record, at);
        read.map_err(|error| Trouble::internal(format!("a record cannot be read again: {error}")))?;
        Ok(Some(record))
    }

    /// The control plane keeps what its refs lead to.
    fn has_blob(&mut self, _: Blob) -> Result<bool, Trouble> {
        Ok(true)
    }
}

impl Source for Local {
    fn blob(&mut self, blob: Blob) -> Result<Option<Box<dyn std::io::Read + '_>>, Trouble> {
        let failed = |what: String| Trouble::new(TroubleKind::Network, what);
        let client = self.client.clone();
        let fetched = self.handle.block_on(async move {
            let mut file = tempfile::tempfile().map_err(|error| failed(error.to_string()))?;
            let path = format!("{API}/blobs/{}", blob.hash);
            let answer = client.request(Method::GET, &path).send().await;
            let mut body = answer.map_err(|error| failed(error.to_string()))?;
            while let Some(piece) = body.chunk().await.map_err(|error| failed(error.to_string()))? {
                file.write_all(&piece).map_err(|error| failed(error.to_string()))?;
            }
            file.seek(SeekFrom::Start(0)).map_err(|error| failed(error.to_string()))?;
            Ok(file)
        });
        fetched.map(|file| Some(Box::new(file) as Box<dyn std::io::Read>))
    }
}

pub async fn pull(plane: &ControlPlane, args: Pull) -> Done {
    let (head, seen) = names(&args.head, &args.far.name)?;
    let seen = seen.to_string();
    let known: Vec<RefView> = plane.list("/dag/refs?kind=remotes", usize::MAX).await?;
    let previous: Option<CommitId> = known.iter().find(|it| it.name == seen).and_then(|it| it.commit.parse().ok());
    let uri = args.far.remote.clone();
    let opened = blocking(move || {
        let remote = Remote::open(&uri, Access::Read).map_err(complaint)?;
        remote.fetch(&head).map_err(complaint)
    })
    .await?;
    let commit = opened.commit;
    let mut moved = Moved {
        r#ref: seen.clone(),
        commit: commit.to_string(),
        previous: previous.map(|commit| commit.to_string()),
        objects: 0,
        blobs: 0,
    };
    if previous != Some(commit) {
        let (opened, sent, blobs) = send_records(plane, opened, previous).await?;
        (moved.objects, moved.blobs) = (sent, send_blobs(plane, opened, blobs).await?);
        let expect = Some(previous.map_or("none".to_owned(), |commit| commit.to_string()));
        let from = commit.to_string();
        set(plane, SetRef { name: seen.clone(), from, expect, force: args.force }).await?;
    }
    let told = tell(&moved, "brought", &args.far.remote, args.json.json)?;
    if !args.json.json {
        eprintln!("  repl dag branch {0} {1}/{0} makes a head of it", one_line(&args.head), one_line(&args.far.name));
    }
    Ok(told)
}

/// What the remote has and the control plane does not, children before parents. How many records that were, and which files they name.
async fn send_records(
    plane: &ControlPlane,
    mut opened: Opened,
    previous: Option<CommitId>,
) -> Done<(Opened, usize, BTreeSet<Blob>)> {
    let (bodies, mut filled) = mpsc::channel::<Vec<u8>>(AHEAD);
    let reader = tokio::task::spawn_blocking(move || -> Done<(Opened, usize, BTreeSet<Blob>)> {
        let mut known = BTreeSet::new();
        if let Some(previous) = previous.filter(|previous| opened.has((*previous).into())) {
            known.extend(closure(&mut opened, [previous.into()], &|_| false, MAX_OBJECTS).map_err(damaged)?.objects);
        }
        let root = opened.commit.into();
        let new = closure(&mut opened, [root], &|object| known.contains(&object), MAX_OBJECTS).map_err(damaged)?;
        let (mut body, mut count) = (Vec::new(), 0);
        for object in &new.objects {
            let record = opened.record(*object).map_err(Fault::Source).map_err(damaged)?;
            let record = record.ok_or_else(|| damaged(Fault::Missing(*object)))?;
            if count > 0 && (count == records::BODY_RECORDS || body.len() + record.len() > records::BODY_BYTES) {
                // A receiver that is gone says why itself.
                if bodies.blocking_send(std::mem::take(&mut body)).is_err() {
                    return Ok((opened, 0, BTreeSet::new()));
                }
                count = 0;
            }
            records::push(&mut body, &record);
            count += 1;
        }
        if count > 0 {
            bodies.blocking_send(body).ok();
        }
        Ok((opened, new.objects.len(), new.blobs))
    });
    while let Some(body) = filled.recv().await {
        let body = bytes::Bytes::from(body);
        plane
            .patiently(|client| {
                let request = client.request(Method::PUT, &format!("{API}/dag/records")).bytes(body.clone());
                async move { request.send().await.map(drop) }
            })
            .await?;
    }
    reader.await.map_err(|error| Complaint::refused(format!("the pull broke off: {error}")))?
}

/// Files that the control plane does not have; how many.
async fn send_blobs(plane: &ControlPlane, mut opened: Opened, blobs: BTreeSet<Blob>) -> Done<usize> {
    let all: Vec<Blob> = blobs.into_iter().collect();
    let mut count = 0;
    for some in all.chunks(ASKED_AT_ONCE) {
        let hashes = some.iter().map(|blob| blob.hash.to_string()).collect();
        let missing: BlobList = plane.question("/blobs/missing", &BlobList { hashes, trees: Vec::new() }).await?;
        let missing: BTreeSet<String> = missing.hashes.into_iter().collect();
        for blob in some.iter().copied().filter(|blob| missing.contains(&blob.hash.to_string())) {
            let (back, file) = blocking(move || {
                let file = fetched(&opened, blob)?;
                Ok((opened, file))
            })
            .await?;
            opened = back;
            put_file(plane, blob, file).await?;
            count += 1;
        }
    }
    Ok(count)
}

/// The bytes of a file of the remote, checked, in a file without a name.
fn fetched(opened: &Opened, blob: Blob) -> Done<std::fs::File> {
    let mut from = opened.blob(blob).ok_or_else(|| damaged(Fault::MissingBlob(blob)))?;
    let mut file = tempfile::tempfile().map_err(|error| spooled(&error))?;
    let mut piece = vec![0; 1 << 20];
    loop {
        let read = from.read(&mut piece);
        match read.map_err(|error| Complaint::refused(format!("the remote's file {}: {error}", blob.hash)))? {
            0 => return Ok(file),
            bytes => file.write_all(&piece[..bytes]).map_err(|error| spooled(&error))?,
        }
    }
}

async fn put_file(plane: &ControlPlane, blob: Blob, file: std::fs::File) -> Done<()> {
    let route = &format!("{API}/blobs/{}", encode(&blob.hash.to_string()));
    let again = &file;
    plane
        .patiently(|client| async move {
            let body = again.try_clone().and_then(|mut file| file.seek(SeekFrom::Start(0)).map(|_| file));
            let body = body.map_err(|error| wire::client::ClientError::Protocol(error.to_string()))?;
            let body = crate::upload::pieces(tokio::fs::File::from_std(body));
            client.request(Method::PUT, route).stream(body, Some(blob.bytes)).send().await.map(drop)
        })
        .await
}
