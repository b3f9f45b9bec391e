//! What the run of an execution left: its streams, its artifacts, its exit code, as one value. Bytes become contents of the org. A run that was
//! stopped from outside, or a part of whose output is missing, has no value.

use crate::Engine;
use crate::artifact::name_of;
use crate::cached_run::{FOLDER, LINK};
use calls::cached_run::{Artifact, End, RunValue, Stream, pinned};
use calls::record::ExecStatus;
use calls::uri::Blob;
use calls::{DagId, Id, Records};
use model::job::{Job, JobReason};
use model::run::{LastError, Run, RunStatus};
use model::{Failure, OrgId, Refused, Trouble, TroubleKind};
use std::collections::BTreeMap;
use std::io::Read as _;
use store::artifact::{Artifact as Left, EntryKind};
use store::blob::{BlobHash, Upload, blocking};
use store::log_file::LogStream;

const PAGE_BYTES: i64 = 256 * 1024;
const PAGE_ARTIFACTS: i64 = 500;
const PIECE: usize = 256 * 1024;

pub(super) enum Collected {
    Result {
        ok: bool,
        dag: DagId,
        records: Records,
    },
    /// It says nothing about the call, and why.
    Nothing(LastError),
}

impl Engine {
    pub(super) async fn collect(&self, run: &Run) -> Result<Collected, Failure> {
        let (org, id, attempt) = (run.org, run.id, run.attempt);
        let jobs = self.store.read("execution.jobs", move |tx| store::job::of_run(tx, id)).await?;
        let job = jobs.into_iter().rfind(|job| job.attempt == attempt);
        let Some(job) = job else { return Ok(Collected::Nothing(never_began(run))) };
        let end = end_of(run, &job);
        let (left, artifacts_are_whole) = self.left_by(run).await?;
        if pinned(end, !job.log_cut, artifacts_are_whole).is_none() {
            return Ok(Collected::Nothing(why_not(run, &job, end, artifacts_are_whole)));
        }
        let (stdout, stderr, logs_are_whole) = self.streams(org, &job).await?;
        let Some(status) = pinned(end, logs_are_whole, artifacts_are_whole) else {
            return Ok(Collected::Nothing(why_not(run, &job, end, artifacts_are_whole)));
        };
        let mut artifacts = BTreeMap::new();
        for entry in left {
            let path = entry.path.clone().into_bytes();
            artifacts.insert(path, self.kept_artifact(org, entry).await?);
        }
        let exit_code = job.exit_code.unwrap_or(0).into();
        let value = RunValue { exit_code, stdout, stderr, artifacts };
        let (dag, records) = value.dag().map_err(|bad| Refused::invalid("result", bad.to_string()))?;
        Ok(Collected::Result { ok: status == ExecStatus::Ok, dag, records })
    }

    /// Artifacts of the last attempt, and whether all of them arrived.
    async fn left_by(&self, run: &Run) -> Result<(Vec<Left>, bool), Failure> {
        let (mut all, mut after) = (Vec::new(), 0);
        loop {
            let (id, since) = (run.id, after);
            let read = move |tx: &mut store::Tx| store::artifact::of_run(tx, id, since, PAGE_ARTIFACTS);
            let page = self.store.read("execution.artifacts", read).await?;
            let Some(last) = page.last() else { break };
            after = last.id.0;
            all.extend(page.into_iter().filter(|left| left.attempt == run.attempt));
        }
        let whole = all.iter().all(|left| left.state == "final");
        Ok((all, whole))
    }

    /// What was written to each stream. What does not fit into a value becomes a content.
    async fn streams(&self, org: OrgId, job: &Job) -> Result<(Stream, Stream, bool), Failure> {
        let mut sinks = [self.blobs.begin()?, self.blobs.begin()?];
        let mut small = [Vec::new(), Vec::new()];
        let (mut from, mut whole) = (0, !job.log_cut);
        loop {
            let page = self.logs.read(job.id, from, PAGE_BYTES).await?;
            for placed in &page.frames {
                whole &= placed.offset == from && placed.next - placed.offset == placed.frame.data.len() as i64;
                from = placed.next;
                let sink = match placed.frame.stream {
                    LogStream::Stdout => 0,
                    LogStream::Stderr => 1,
                    LogStream::Runner => continue,
                };
                sinks[sink].write(&placed.frame.data)?;
                if small[sink].len() <= calls::scalar::MAX_BYTES {
                    small[sink].extend_from_slice(&placed.frame.data);
                }
            }
            whole &= page.next_offset == from; // bytes that were dropped are counted
            from = page.next_offset;
            if page.frames.is_empty() {
                break;
            }
        }
        let mut streams = Vec::new();
        for (sink, small) in sinks.into_iter().zip(small) {
            streams.push(match small.len() > calls::scalar::MAX_BYTES {
                true => Stream::Blob(self.kept_content(org, sink).await?),
                false => Stream::of(small),
            });
        }
        let stderr = streams.pop().unwrap_or(Stream::Bytes(Vec::new()));
        Ok((streams.pop().unwrap_or(Stream::Bytes(Vec::new())), stderr, whole))
    }

    /// The bytes of an artifact as a content, which outlives the run that made it.
    async fn kept_artifact(&self, org: OrgId, left: Left) -> Result<Artifact, Failure> {
        let (text, mode) = match &left.what {
            EntryKind::Link { target } => (target.clone().into_bytes(), LINK),
            EntryKind::Folder => (Vec::new(), FOLDER),
            EntryKind::File { mode } => return self.kept_file(org, &left, *mode).await,
        };
        let mut upload = self.blobs.begin()?;
        upload.write(&text)?;
        Ok(Artifact { blob: self.kept_content(org, upload).await?, mode })
    }

    async fn kept_file(&self, org: OrgId, left: &Left, mode: u32) -> Result<Artifact, Failure> {
        let hash = left.hash.clone().ok_or_else(|| Trouble::internal("a final artifact has no hash"))?;
        if self.missing_blobs(org, vec![hash.clone()]).await?.is_empty() {
            let hash: BlobHash = hash.parse()?;
            return Ok(Artifact { blob: Blob { hash: Id(hash.0), bytes: left.size as u64 }, mode });
        }
        let (blobs, name) = (self.blobs.clone(), name_of(left));
        let upload = blocking(move || {
            let (mut from, mut upload) = (blobs.open(&name)?, blobs.begin()?);
            let mut piece = vec![0; PIECE];
            loop {
                let read = from.read(&mut piece).map_err(|error| {
                    Trouble::new(TroubleKind::Database, format!("an artifact cannot be read: {error}"))
                })?;
                if read == 0 {
                    return Ok(upload);
                }
                upload.write(&piece[..read])?;
            }
        });
        Ok(Artifact { blob: self.kept_content(org, upload.await?).await?, mode })
    }

    async fn kept_content(&self, org: OrgId, upload: Upload) -> Result<Blob, Failure> {
        let stored = upload.stored();
        self.keep_blob(org, &stored.hash.to_string(), upload).await?;
        Ok(Blob { hash: Id(stored.hash.0), bytes: stored.size as u64 })
    }
}

/// How the run ended, as far as its result is concerned.
fn end_of(run: &Run, job: &Job) -> End {
    match (run.status, job.reason, job.exit_code, job.signal) {
        (RunStatus::Cancelled, ..) => End::Cancelled,
        (_, _, _, Some(_)) => End::Signalled,
        (_, Some(JobReason::DoneByRunner | JobReason::ExitedWithError), Some(code), None) => End::Exited(code),
        (_, Some(JobReason::LimitsExceeded), ..) => End::OutOfMemory,
        (_, Some(JobReason::MaxDuration), ..) => End::TimedOut,
        _ => End::Interrupted,
    }
}

fn never_began(run: &Run) -> LastError {
    let message = format!("{}, which was to execute it, ended before it began", run.id);
    LastError { code: "not_executed".into(), message, cause: run.last_error.as_ref().map(|e| e.message.clone()) }
}

/// Why a run's end is no result.
fn why_not(run: &Run, job: &Job, end: End, artifacts_are_whole: bool) -> LastError {
    let by = run.id;
    let said = run.last_error.as_ref().map(|error| error.message.clone());
    let (code, message) = match end {
        End::Exited(_) if !artifacts_are_whole => ("artifacts_missing", format!("not all artifacts of {by} arrived")),
        End::Exited(_) => ("log_cut", format!("a part of the output of {by} is missing")),
        End::Cancelled => ("cancelled", format!("{by}, which executed it, was cancelled")),
        _ => {
            let reason = job.reason.map_or_else(|| "failed".to_owned(), |reason| reason.to_string());
            let message = format!("{by}, which executed it, failed: {}", said.clone().unwrap_or(reason.clone()));
            return LastError { code: reason, message, cause: None };
        }
    };
    LastError { code: code.into(), message, cause: said }
}
