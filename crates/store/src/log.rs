//! Logs: one byte sequence per job. Chunks arrive in order (a gap is refused, an overlap trimmed), live as rows, and are gathered
//! into one file when the job has ended. On SQLite they have their own database and writer. Never lost once acknowledged.

use crate::args;
use crate::backend::Backend;
use crate::blob::{BlobName, Blobs};
use crate::hint::Hint;
use crate::log_file::{self, Frame, Gathering, LogStream, Placed};
use crate::queue::Lane;
use crate::sql::Sql;
use crate::tx::Tx;
use crate::value::Row;
use model::bug;
use model::time::HOUR;
use model::{Failure, JobId, OrgId, Refused, Timestamp};
use std::sync::Arc;

/// Payload of one row: what a reader must take at once.
const ROW_BYTES: usize = 256 * 1024;
/// Rows a reader takes at once.
const PAGE_ROWS: i64 = 64;
/// Rows deleted in one transaction, so that nobody waits for a sweep.
const SWEEP_ROWS: i64 = 200;
/// Rows stay so long after they were gathered: whoever was reading them finishes.
const ROWS_KEPT_MS: i64 = HOUR;

/// Consecutive frames of one job. Offsets count payload bytes of all streams together, from 0 in each epoch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chunk {
    pub job: JobId,
    pub epoch: i64,
    pub offset: i64,
    pub frames: Vec<Frame>,
}

/// How far a job's log is durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Logged {
    /// In the chunk's epoch: what the runner sends next.
    pub next_offset: i64,
    /// In the job's whole sequence: what readers count.
    pub total: i64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    pub frames: Vec<Placed>,
    /// Where the next page begins.
    pub next_offset: i64,
    /// Nothing comes after `next_offset`, ever.
    pub done: bool,
}

#[derive(Clone)]
pub struct Logs {
    pub(crate) backend: Arc<Backend>,
    pub(crate) blobs: Blobs,
    /// Bytes kept of one job's log; what comes after is counted, marked and dropped.
    pub(crate) quota: i64,
}

impl Logs {
    /// Durable when this returns. Refused with the expected offset when something is missing before the chunk.
    pub async fn append(&self, chunk: Chunk) -> Result<Logged, Failure> {
        let quota = self.quota;
        self.backend.ask(Lane::High, "log.append", false, move |tx| append(tx, &chunk, quota)).await
    }

    /// How far the log of this job and epoch reaches.
    pub async fn reached(&self, job: JobId, epoch: i64) -> Result<Logged, Failure> {
        let reach = move |tx: &mut Tx| {
            let head = tx.row(&HEAD, &args![job])?.as_ref().map(Head::read).transpose()?;
            Ok(head.map_or(Logged { next_offset: 0, total: 0 }, |head| head.logged(epoch)))
        };
        self.backend.glance("log.reached", reach).await
    }

    /// The job has ended: its log is what is durable now. `lost` bytes were announced and never came; readers see a mark.
    pub async fn seal(&self, job: JobId, lost: i64) -> Result<i64, Failure> {
        let seal = move |tx: &mut Tx| {
            let head = Head::lock(tx, job, 0)?;
            tx.post(&SEAL, args![job, lost])?;
            tx.hint(Hint::Logs(job));
            Ok(head.next_offset)
        };
        self.backend.ask(Lane::Normal, "log.seal", false, seal).await
    }

    /// What comes from offset `from` on, about `max_bytes` of it.
    pub async fn read(&self, job: JobId, from: i64, max_bytes: i64) -> Result<Page, Failure> {
        // Rows and head are of one snapshot: a log that was gathered meanwhile is still whole in its rows.
        let look = move |tx: &mut Tx| {
            let mut rows = tx.rows(&CHUNKS_BELOW, &args![job, from, from.saturating_add(max_bytes), PAGE_ROWS])?;
            if rows.is_empty() {
                rows = tx.rows(&CHUNKS, &args![job, from, 1])?; // beyond a gap, or there is none
            }
            Ok((rows, tx.row(&HEAD, &args![job])?))
        };
        let (rows, head) = self.backend.glance("log.read", look).await?;
        let Some(head) = head.as_ref().map(Head::read).transpose()? else {
            return Ok(Page { frames: Vec::new(), next_offset: from, done: false });
        };
        let has_rows = rows.first().is_some_and(|row| row.int(0).is_ok_and(|starts| starts <= from));
        let frames = match head.gathered {
            Some(org) if !has_rows => log_file::read(self.blobs.open(&BlobName::Log { org, job })?, from, max_bytes)?,
            _ => frames_of(&rows, from, max_bytes)?,
        };
        Ok(head.page(frames, from))
    }

    /// Puts a sealed log into one file: file first, pointer second; rows are deleted an hour later by `sweep`.
    pub async fn gather(&self, org: OrgId, job: JobId) -> Result<(), Failure> {
        let mut gathering = Gathering::begin(self.blobs.begin()?)?;
        let mut from = 0;
        loop {
            let look = move |tx: &mut Tx| tx.rows(&CHUNKS, &args![job, from, PAGE_ROWS]);
            let rows = self.backend.ask(Lane::Normal, "log.gathering", true, look).await?;
            for row in &rows {
                from = row.int(1)?;
                gathering.add(&row.blob(2)?, row.int(0)?, from)?;
            }
            if rows.is_empty() {
                break;
            }
        }
        let gathered_before =
            move |tx: &mut Tx| Ok(tx.row(&HEAD, &args![job])?.map(|row| row.opt_int(6)).transpose()?.flatten());
        if self.backend.ask(Lane::Normal, "log.gathering", true, gathered_before).await?.is_some() {
            return Ok(());
        }
        gathering.finish()?.keep_async(BlobName::Log { org, job }).await?;
        let point = move |tx: &mut Tx| {
            let at = tx.at();
            tx.post(&POINT, args![job, org, at])
        };
        self.backend.ask(Lane::Low, "log.gathered", false, point).await
    }

    /// Deletes some rows of logs gathered more than an hour ago; true while there are more.
    pub async fn sweep(&self) -> Result<bool, Failure> {
        self.backend.ask(Lane::Low, "log.sweep", false, sweep).await
    }
}

fn append(tx: &mut Tx, chunk: &Chunk, quota: i64) -> Result<Logged, Failure> {
    let mut head = Head::lock(tx, chunk.job, chunk.epoch)?;
    if chunk.epoch < head.epoch && !bug!(old_epoch_accepted) {
        let job = chunk.job.to_string();
        return Err(Refused::OldEpoch { job, given: chunk.epoch, current: head.epoch }.into());
    }
    if chunk.epoch > head.epoch {
        (head.epoch, head.base) = (chunk.epoch, head.next_offset);
    }
    let expected = head.next_offset - head.base;
    if chunk.offset > expected {
        return Err(Refused::LogGap { expected, given: chunk.offset }.into());
    }
    let ends = chunk.offset + chunk.frames.iter().map(|frame| frame.data.len() as i64).sum::<i64>();
    if ends <= expected || head.sealed {
        return Ok(Logged { next_offset: expected.max(ends), total: head.next_offset });
    }
    let repeated = if bug!(log_overlap_kept) { 0 } else { expected - chunk.offset };
    let frames = after(&chunk.frames, repeated);
    store(tx, &head, chunk.job, frames, quota)?;
    let cut = (head.base + ends > quota).then(|| head.cut_at.unwrap_or(head.next_offset.max(quota)));
    head.next_offset = head.base + ends;
    tx.post(&ADVANCE, args![chunk.job, head.epoch, head.base, head.next_offset, cut])?;
    tx.hint(Hint::Logs(chunk.job));
    Ok(Logged { next_offset: ends, total: head.next_offset })
}

/// Writes the frames as rows, up to the quota.
fn store(tx: &mut Tx, head: &Head, job: JobId, frames: Vec<Frame>, quota: i64) -> Result<(), Failure> {
    let (mut starts, mut rows, mut row, mut size) = (head.next_offset, Vec::new(), Vec::new(), 0);
    let mut room = (quota - starts).max(0) as usize;
    let mut frames = frames.into_iter().peekable();
    while let Some(mut frame) = frames.next() {
        frame.data.truncate(room);
        room -= frame.data.len();
        size += frame.data.len();
        row.push(frame);
        let next = frames.peek().map_or(usize::MAX, |next| next.data.len());
        if size.saturating_add(next) > ROW_BYTES && size > 0 {
            rows.push(args![job, starts, starts + size as i64, log_file::encode(&row)]);
            starts += std::mem::take(&mut size) as i64;
            row.clear();
        }
    }
    tx.insert_many(&WRITE, rows)
}

/// The frames without their first `skip` bytes.
fn after(frames: &[Frame], skip: i64) -> Vec<Frame> {
    let (mut skip, mut rest) = (skip as usize, Vec::with_capacity(frames.len()));
    for frame in frames {
        let cut = skip.min(frame.data.len());
        skip -= cut;
        if cut < frame.data.len() {
            rest.push(Frame { data: frame.data[cut..].to_vec(), ..*frame });
        }
    }
    rest
}

fn frames_of(rows: &[Row], from: i64, max_bytes: i64) -> Result<Vec<Placed>, Failure> {
    let mut frames = Vec::new();
    for row in rows {
        if row.int(0)? >= from.saturating_add(max_bytes) && !frames.is_empty() {
            break;
        }
        log_file::decode(&row.blob(2)?, row.int(0)?, from, &mut frames)?;
    }
    Ok(frames)
}

fn sweep(tx: &mut Tx) -> Result<bool, Failure> {
    let before = tx.at() - ROWS_KEPT_MS;
    let Some(row) = tx.row(&SWEEPABLE, &args![before])? else { return Ok(false) };
    let job = row.int(0)?;
    if (tx.exec(&DELETE_SOME, &args![job, SWEEP_ROWS])? as i64) < SWEEP_ROWS {
        tx.post(&SWEPT, args![job])?;
    }
    Ok(true)
}

/// What is known of a job's log.
struct Head {
    epoch: i64,
    /// Where this epoch begins in the job's sequence.
    base: i64,
    next_offset: i64,
    /// Where the quota cut it.
    cut_at: Option<i64>,
    sealed: bool,
    lost: i64,
    gathered: Option<OrgId>,
}

impl Head {
    /// The row that makes appends of one job come one after the other.
    fn lock(tx: &mut Tx, job: JobId, epoch: i64) -> Result<Head, Failure> {
        if let Some(row) = tx.row(&LOCK, &args![job])? {
            return Head::read(&row);
        }
        tx.post(&START, args![job, epoch])?;
        Head::read(&tx.row(&LOCK, &args![job])?.expect("it was inserted, by us or by another"))
    }

    fn read(row: &Row) -> Result<Head, Failure> {
        Ok(Head {
            epoch: row.int(0)?,
            base: row.int(1)?,
            next_offset: row.int(2)?,
            cut_at: row.opt_int(3)?,
            sealed: row.flag(4)?,
            lost: row.int(5)?,
            gathered: row.opt_int(6)?.map(OrgId),
        })
    }

    fn logged(&self, epoch: i64) -> Logged {
        let next_offset = if epoch == self.epoch { self.next_offset - self.base } else { 0 };
        Logged { next_offset, total: self.next_offset }
    }

    /// Frames that were read become a page, with the marks that belong there.
    fn page(&self, mut frames: Vec<Placed>, from: i64) -> Page {
        let mut next_offset = frames.last().map_or(from, |last| last.next);
        if let Some(cut_at) = self.cut_at.filter(|cut_at| next_offset >= *cut_at) {
            if from <= cut_at {
                let note =
                    format!("[remuda: the log is longer than allowed; what follows byte {cut_at} was not kept]\n");
                frames.push(mark(cut_at, self.next_offset, note));
            }
            next_offset = self.next_offset;
        }
        let done = self.sealed && (next_offset >= self.next_offset || bug!(log_done_while_gathered));
        if done && self.lost > 0 {
            let note = format!("[remuda: the last {} bytes of the log never arrived]\n", self.lost);
            frames.push(mark(next_offset, next_offset, note));
        }
        Page { frames, next_offset, done }
    }
}

fn mark(offset: i64, next: i64, note: String) -> Placed {
    Placed { offset, next, frame: Frame { stream: LogStream::Runner, at: Timestamp(0), data: note.into_bytes() } }
}

pub(crate) const ALL: &[&Sql] =
    &[&HEAD, &LOCK, &START, &ADVANCE, &WRITE, &CHUNKS, &CHUNKS_BELOW, &SEAL, &POINT, &SWEEPABLE, &DELETE_SOME, &SWEPT];

const HEAD: Sql =
    Sql::new("SELECT epoch, base, next_offset, cut_at, sealed, lost, gathered_org FROM log_heads WHERE job_id = $1");
const LOCK: Sql = HEAD.no_key_update();
const START: Sql = Sql::new(
    "INSERT INTO log_heads (job_id, epoch, base, next_offset) VALUES ($1, $2, 0, 0)
         ON CONFLICT (job_id) DO NOTHING",
);
const ADVANCE: Sql =
    Sql::new("UPDATE log_heads SET epoch = $2, base = $3, next_offset = $4, cut_at = $5 WHERE job_id = $1");
const WRITE: Sql = Sql::new("INSERT INTO log_chunks (job_id, starts, ends, frames) VALUES ($1, $2, $3, $4)");
const CHUNKS: Sql =
    Sql::new("SELECT starts, ends, frames FROM log_chunks WHERE job_id = $1 AND ends > $2 ORDER BY ends LIMIT $3");
/// What a page needs and no more: a reader of a large log must not read it many times over.
const CHUNKS_BELOW: Sql = Sql::new(
    "SELECT starts, ends, frames FROM log_chunks
      WHERE job_id = $1 AND ends > $2 AND starts < $3 ORDER BY ends LIMIT $4",
);
const SEAL: Sql = Sql::new("UPDATE log_heads SET sealed = 1, lost = $2 WHERE job_id = $1 AND sealed = 0");
const POINT: Sql =
    Sql::new("UPDATE log_heads SET gathered_org = $2, gathered_at = $3 WHERE job_id = $1 AND gathered_at IS NULL");
const SWEEPABLE: Sql =
    Sql::new("SELECT job_id FROM log_heads WHERE swept = 0 AND gathered_at < $1 ORDER BY gathered_at LIMIT 1");
const DELETE_SOME: Sql = Sql::new(
    "DELETE FROM log_chunks
      WHERE job_id = $1 AND ends IN (SELECT ends FROM log_chunks WHERE job_id = $1 ORDER BY ends LIMIT $2)",
);
const SWEPT: Sql = Sql::new("UPDATE log_heads SET swept = 1 WHERE job_id = $1");
