//! Logs: one byte sequence per job, or per try of a step. Chunks arrive in order (a gap is refused, an overlap trimmed), are stored as rows, and are
//! gathered into one file when the command has ended. On SQLite they have their own database file and writer thread. What was acknowledged is
//! kept until its retention ends; then the head remains, marked as deleted.

use crate::args;
use crate::backend::Backend;
use crate::blob::{BlobName, Blobs};
use crate::hint::Hint;
use crate::log_file::{self, Frame, Gathering, LogStream, Placed};
use crate::queue::{Access, Lane};
use crate::run_log::{self, Written};
use crate::sql::{Rank, Sql};
use crate::tx::Tx;
use crate::value::Row;
use model::bug;
use model::log::LogId;
use model::{Failure, OrgId, Refused, RunId, Timestamp};
use std::sync::Arc;

/// Payload of one row: what a reader must take at once.
const ROW_BYTES: usize = 256 * 1024;
/// Rows a reader takes at once.
const PAGE_ROWS: i64 = 64;
/// Rows deleted in one transaction, so that other writes do not wait for a sweep.
const SWEEP_ROWS: i64 = 200;

/// Consecutive frames of one log. Offsets count payload bytes of all streams together, from 0 in each epoch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chunk {
    pub log: LogId,
    pub epoch: i64,
    pub offset: i64,
    pub frames: Vec<Frame>,
}

/// How far a log is durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Logged {
    /// In the chunk's epoch: what the runner sends next.
    pub next_offset: i64,
    /// In the whole sequence: what readers count.
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

/// A log whose rows, or whose file, may be past their retention.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Old {
    pub log: LogId,
    pub org: OrgId,
    pub kept_from: Timestamp,
    /// It is marked as deleted, and some of its bytes may still be there.
    pub deleted: bool,
}

#[derive(Clone)]
pub struct Logs {
    pub(crate) backend: Arc<Backend>,
    pub(crate) blobs: Blobs,
    /// Bytes kept of one log; what comes after is counted, marked and dropped.
    pub(crate) quota: i64,
}

impl Logs {
    /// Durable when this returns. Refused with the expected offset when something is missing before the chunk.
    pub async fn append(&self, chunk: Chunk) -> Result<Logged, Failure> {
        let quota = self.quota;
        self.backend.ask(Lane::High, "log.append", Access::Write, move |tx| append(tx, &chunk, quota, None)).await
    }

    /// The same for one of several logs of a run: its frames also get the run's numbers.
    pub async fn append_in_run(&self, run: RunId, chunk: Chunk) -> Result<Logged, Failure> {
        let quota = self.quota;
        self.backend.ask(Lane::High, "log.append", Access::Write, move |tx| append(tx, &chunk, quota, Some(run))).await
    }

    /// How far this log reaches in this epoch.
    pub async fn reached(&self, log: impl Into<LogId>, epoch: i64) -> Result<Logged, Failure> {
        let (subject, number) = log.into().key();
        let reach = move |tx: &mut Tx| {
            let head = tx.row(&HEAD, &args![subject, number])?.as_ref().map(Head::read).transpose()?;
            Ok(head.map_or(Logged { next_offset: 0, total: 0 }, |head| head.logged(epoch)))
        };
        self.backend.read_inline("log.reached", reach).await
    }

    /// Bytes before `from` will not come: the log goes on there, behind a note that says so. Nothing changes if it reaches that far.
    pub async fn begin_at(&self, log: impl Into<LogId>, epoch: i64, from: i64) -> Result<(), Failure> {
        let log = log.into();
        self.backend.ask(Lane::Normal, "log.begin_at", Access::Write, move |tx| begin_at(tx, log, epoch, from)).await
    }

    /// The command has ended: no more bytes are accepted. `lost` bytes were announced and never arrived; readers see a note.
    pub async fn seal(&self, log: impl Into<LogId>, lost: i64) -> Result<i64, Failure> {
        let log = log.into();
        let (subject, number) = log.key();
        let seal = move |tx: &mut Tx| {
            let head = Head::lock(tx, log, 0)?;
            tx.post(&SEAL, args![subject, number, lost])?;
            tx.hint(Hint::Logs(log));
            Ok(head.next_offset)
        };
        self.backend.ask(Lane::Normal, "log.seal", Access::Write, seal).await
    }

    /// What comes from offset `from` on, about `max_bytes` of it.
    pub async fn read(&self, log: impl Into<LogId>, from: i64, max_bytes: i64) -> Result<Page, Failure> {
        let log = log.into();
        let (subject, number) = log.key();
        // Rows and head are of one snapshot: a log that is gathered meanwhile is still complete in its rows.
        let look = move |tx: &mut Tx| {
            let mut rows =
                tx.rows(&CHUNKS_BELOW, &args![subject, number, from, from.saturating_add(max_bytes), PAGE_ROWS])?;
            if rows.is_empty() {
                rows = tx.rows(&CHUNKS, &args![subject, number, from, 1])?; // beyond a gap, or there is none
            }
            Ok((rows, tx.row(&HEAD, &args![subject, number])?))
        };
        let (rows, head) = self.backend.ask(Lane::Normal, "log.read", Access::Read, look).await?;
        let Some(head) = head.as_ref().map(Head::read).transpose()? else {
            return Ok(Page { frames: Vec::new(), next_offset: from, done: false });
        };
        let has_rows = rows.first().is_some_and(|row| row.int(0).is_ok_and(|starts| starts <= from));
        let frames = match head.gathered {
            _ if head.deleted => Vec::new(),
            Some(org) if !has_rows => match self.blobs.open(&BlobName::Log { org, log }) {
                Ok(file) => log_file::read(file, from, max_bytes)?,
                Err(missing) => return self.deleted_meanwhile(log, from, missing).await,
            },
            _ => frames_of(&rows, from, max_bytes)?,
        };
        Ok(head.page(frames, from))
    }

    /// The file is missing: if it was deleted after the head was read, the head is marked by now. Otherwise the file is lost.
    async fn deleted_meanwhile(&self, log: LogId, from: i64, missing: Failure) -> Result<Page, Failure> {
        let (subject, number) = log.key();
        let look = move |tx: &mut Tx| tx.row(&HEAD, &args![subject, number]);
        let head = self.backend.read_inline("log.read", look).await?.as_ref().map(Head::read).transpose()?;
        head.filter(|head| head.deleted).map(|head| head.page(Vec::new(), from)).ok_or(missing)
    }

    /// Copies a sealed log into one file, then points the head to it. The sweep deletes the rows later.
    pub async fn gather(&self, org: OrgId, log: impl Into<LogId>) -> Result<(), Failure> {
        let log = log.into();
        let (subject, number) = log.key();
        let mut gathering = Gathering::begin(self.blobs.begin()?)?;
        let mut from = 0;
        loop {
            let look = move |tx: &mut Tx| tx.rows(&CHUNKS, &args![subject, number, from, PAGE_ROWS]);
            let rows = self.backend.ask(Lane::Normal, "log.gathering", Access::Read, look).await?;
            for row in &rows {
                from = row.int(1)?;
                gathering.add(&row.blob(2)?, row.int(0)?, from)?;
            }
            if rows.is_empty() {
                break;
            }
        }
        let gathered_before = move |tx: &mut Tx| {
            Ok(tx.row(&HEAD, &args![subject, number])?.map(|row| row.opt_int(6)).transpose()?.flatten())
        };
        if self.backend.ask(Lane::Normal, "log.gathering", Access::Read, gathered_before).await?.is_some() {
            return Ok(());
        }
        gathering.finish()?.keep_async(BlobName::Log { org, log }).await?;
        let point = move |tx: &mut Tx| {
            let at = tx.at();
            tx.post(&POINT, args![subject, number, org, at])
        };
        self.backend.ask(Lane::Low, "log.gathered", Access::Write, point).await
    }

    /// Logs older than `hot_ms` that still have rows, and logs older than `keep_ms`; and the current time. Oldest first, at most `limit`
    /// of each.
    pub async fn old(&self, hot_ms: i64, keep_ms: i64, limit: i64) -> Result<(Vec<Old>, Timestamp), Failure> {
        let look = move |tx: &mut Tx| {
            let at = tx.at();
            let mut rows = tx.rows(&TO_DELETE, &args![at - keep_ms, limit])?;
            rows.extend(tx.rows(&TO_SWEEP, &args![at - hot_ms, at - keep_ms, limit])?);
            Ok((rows.iter().map(read_old).collect::<Result<_, _>>()?, at))
        };
        self.backend.ask(Lane::Low, "log.old", Access::Read, look).await
    }

    /// Retention counts from the end of the run, as far as it is known now.
    pub async fn keep_from(&self, logs: Vec<(LogId, Timestamp)>) -> Result<(), Failure> {
        let put = move |tx: &mut Tx| {
            logs.iter().try_for_each(|(log, from)| tx.post(&KEEP_FROM, args![log.key().0, log.key().1, *from]))
        };
        self.backend.ask(Lane::Low, "log.keep_from", Access::Write, put).await
    }

    /// Deletes some rows of a log whose file is read from now on; true while there are more.
    pub async fn sweep(&self, log: impl Into<LogId>) -> Result<bool, Failure> {
        let log = log.into();
        self.backend.ask(Lane::Low, "log.sweep", Access::Write, move |tx| delete_rows(tx, log, 1)).await
    }

    /// Marks it as deleted, for readers. The bytes are deleted afterwards; after a crash in between the next sweep continues.
    pub async fn mark_deleted(&self, log: impl Into<LogId>) -> Result<(), Failure> {
        let log = log.into();
        let (subject, number) = log.key();
        let mark = move |tx: &mut Tx| {
            let at = tx.at();
            tx.post(&MARK_DELETED, args![subject, number, at])?;
            tx.hint(Hint::Logs(log));
            Ok(())
        };
        self.backend.ask(Lane::Low, "log.mark_deleted", Access::Write, mark).await
    }

    /// Deletes what is left of a log that is marked: its file, then some rows; true while there are more.
    pub async fn delete(&self, org: OrgId, log: impl Into<LogId>) -> Result<bool, Failure> {
        let log = log.into();
        self.blobs.delete(&BlobName::Log { org, log })?;
        self.backend.ask(Lane::Low, "log.delete", Access::Write, move |tx| delete_rows(tx, log, 2)).await
    }

    /// When these logs were deleted; none where there is something to read. Those of whom nothing was ever written are left out.
    pub async fn deleted(&self, logs: Vec<LogId>) -> Result<Vec<Option<Timestamp>>, Failure> {
        let look = move |tx: &mut Tx| {
            let asked: Vec<_> =
                logs.iter().map(|log| (&DELETED_AT, args![log.key().0, log.key().1].to_vec())).collect();
            let found = tx.rows_of_each(&asked)?;
            found.iter().filter_map(|rows| rows.first()).map(|row| row.opt_at(0)).collect()
        };
        self.backend.ask(Lane::Normal, "log.deleted", Access::Read, look).await
    }
}

fn append(tx: &mut Tx, chunk: &Chunk, quota: i64, run: Option<RunId>) -> Result<Logged, Failure> {
    let (mut head, (subject, number)) = (Head::lock(tx, chunk.log, chunk.epoch)?, chunk.log.key());
    if chunk.epoch < head.epoch && !bug!(old_epoch_accepted) {
        let job = chunk.log.to_string();
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
    let written = store(tx, &head, chunk.log, frames, quota)?;
    if let Some(run) = run {
        run_log::number(tx, run, chunk.log, &written)?;
    }
    let cut = (head.base + ends > quota).then(|| head.cut_at.unwrap_or(head.next_offset.max(quota)));
    head.next_offset = head.base + ends;
    tx.post(&ADVANCE, args![subject, number, head.epoch, head.base, head.next_offset, cut])?;
    tx.hint(Hint::Logs(chunk.log));
    Ok(Logged { next_offset: ends, total: head.next_offset })
}

fn begin_at(tx: &mut Tx, log: LogId, epoch: i64, from: i64) -> Result<(), Failure> {
    let (mut head, (subject, number)) = (Head::lock(tx, log, epoch)?, log.key());
    if epoch > head.epoch {
        (head.epoch, head.base) = (epoch, head.next_offset);
    }
    let expected = head.next_offset - head.base;
    if epoch < head.epoch || head.sealed || from <= expected {
        return Ok(());
    }
    let note = format!("[remuda: bytes {expected} to {from} of the log were lost with the database]\n").into_bytes();
    let (starts, ends) = (head.next_offset, head.next_offset + note.len() as i64);
    let frame = Frame { stream: LogStream::Runner, at: tx.at(), data: note };
    tx.insert_many(&WRITE, vec![args![subject, number, starts, ends, log_file::encode(&[frame])]])?;
    tx.post(&ADVANCE, args![subject, number, head.epoch, ends - from, ends, head.cut_at])?;
    tx.hint(Hint::Logs(log));
    Ok(())
}

/// Writes the frames as rows, up to the quota.
fn store(tx: &mut Tx, head: &Head, log: LogId, frames: Vec<Frame>, quota: i64) -> Result<Vec<Written>, Failure> {
    let (mut starts, mut rows, mut row, mut size) = (head.next_offset, Vec::new(), Vec::new(), 0);
    let mut written = Vec::new();
    let (mut room, (subject, number)) = ((quota - starts).max(0) as usize, log.key());
    let mut frames = frames.into_iter().peekable();
    while let Some(mut frame) = frames.next() {
        frame.data.truncate(room);
        room -= frame.data.len();
        size += frame.data.len();
        row.push(frame);
        let next = frames.peek().map_or(usize::MAX, |next| next.data.len());
        if size.saturating_add(next) > ROW_BYTES && size > 0 {
            let ends = starts + size as i64;
            written.push(Written { starts, ends, frames: row.len() as i64 });
            rows.push(args![subject, number, starts, ends, log_file::encode(&row)]);
            starts += std::mem::take(&mut size) as i64;
            row.clear();
        }
    }
    tx.insert_many(&WRITE, rows)?;
    Ok(written)
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

/// In small pieces; with the last of them the log is in its next state.
fn delete_rows(tx: &mut Tx, log: LogId, then: i64) -> Result<bool, Failure> {
    let (subject, number) = log.key();
    let more = (tx.exec(&DELETE_SOME, &args![subject, number, SWEEP_ROWS])? as i64) == SWEEP_ROWS;
    if !more && then == 2 {
        run_log::forget(tx, log)?;
    }
    if !more {
        tx.post(&SWEPT, args![subject, number, then])?;
    }
    Ok(more)
}

fn read_old(row: &Row) -> Result<Old, Failure> {
    let (log, org) = (LogId::from_key(row.int(0)?, row.int(1)?), OrgId(row.int(2)?));
    Ok(Old { log, org, kept_from: row.at(3)?, deleted: row.opt_int(4)?.is_some() })
}

/// What is known of a log.
struct Head {
    epoch: i64,
    /// Where this epoch begins in the sequence.
    base: i64,
    next_offset: i64,
    /// Where the quota cut it.
    cut_at: Option<i64>,
    sealed: bool,
    lost: i64,
    gathered: Option<OrgId>,
    deleted: bool,
}

impl Head {
    /// The row that makes appends of one log come one after the other.
    fn lock(tx: &mut Tx, log: LogId, epoch: i64) -> Result<Head, Failure> {
        let (subject, number) = log.key();
        if let Some(row) = tx.row(&LOCK, &args![subject, number])? {
            return Head::read(&row);
        }
        tx.post(&START, args![subject, number, epoch])?;
        Head::read(&tx.row(&LOCK, &args![subject, number])?.expect("it was inserted, by us or by another"))
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
            deleted: row.opt_int(7)?.is_some(),
        })
    }

    fn logged(&self, epoch: i64) -> Logged {
        let next_offset = if epoch == self.epoch { self.next_offset - self.base } else { 0 };
        Logged { next_offset, total: self.next_offset }
    }

    /// Frames that were read become a page, with the marks that belong there.
    fn page(&self, mut frames: Vec<Placed>, from: i64) -> Page {
        if self.deleted {
            let note = || mark(from, self.next_offset, "[remuda: this log is too old and was deleted]\n".to_owned());
            let frames = (from < self.next_offset).then(note).into_iter().collect();
            return Page { frames, next_offset: self.next_offset.max(from), done: true };
        }
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

pub(crate) const ALL: &[&Sql] = &[
    &HEAD,
    &LOCK,
    &START,
    &ADVANCE,
    &WRITE,
    &CHUNKS,
    &CHUNKS_BELOW,
    &SEAL,
    &POINT,
    &TO_SWEEP,
    &TO_DELETE,
    &KEEP_FROM,
    &MARK_DELETED,
    &DELETED_AT,
    &DELETE_SOME,
    &SWEPT,
];

const HEAD: Sql = Sql::new(
    "SELECT epoch, base, next_offset, cut_at, sealed, lost, gathered_org, deleted_at FROM log_heads
      WHERE subject = $1 AND number = $2",
);
const LOCK: Sql = HEAD.no_key_update().locks(Rank::Log);
const START: Sql = Sql::new(
    "INSERT INTO log_heads (subject, number, epoch, base, next_offset) VALUES ($1, $2, $3, 0, 0)
         ON CONFLICT (subject, number) DO NOTHING",
);
const ADVANCE: Sql = Sql::new(
    "UPDATE log_heads SET epoch = $3, base = $4, next_offset = $5, cut_at = $6 WHERE subject = $1 AND number = $2",
);
const WRITE: Sql =
    Sql::new("INSERT INTO log_chunks (subject, number, starts, ends, frames) VALUES ($1, $2, $3, $4, $5)");
const CHUNKS: Sql = Sql::new(
    "SELECT starts, ends, frames FROM log_chunks
      WHERE subject = $1 AND number = $2 AND ends > $3 ORDER BY ends LIMIT $4",
);
/// What a page needs and no more: a reader of a large log must not read it many times over.
const CHUNKS_BELOW: Sql = Sql::new(
    "SELECT starts, ends, frames FROM log_chunks
      WHERE subject = $1 AND number = $2 AND ends > $3 AND starts < $4 ORDER BY ends LIMIT $5",
);
const SEAL: Sql =
    Sql::new("UPDATE log_heads SET sealed = 1, lost = $3 WHERE subject = $1 AND number = $2 AND sealed = 0");
const POINT: Sql = Sql::new(
    "UPDATE log_heads SET gathered_org = $3, gathered_at = $4, kept_from = $4
      WHERE subject = $1 AND number = $2 AND gathered_at IS NULL",
);
/// Those that are to be deleted anyhow are not swept first.
const TO_SWEEP: Sql = Sql::new(
    "SELECT subject, number, gathered_org, kept_from, deleted_at FROM log_heads
      WHERE swept = 0 AND kept_from IS NOT NULL AND kept_from <= $1 AND kept_from > $2 ORDER BY kept_from LIMIT $3",
);
const TO_DELETE: Sql = Sql::new(
    "SELECT subject, number, gathered_org, kept_from, deleted_at FROM log_heads
      WHERE swept < 2 AND kept_from IS NOT NULL AND kept_from <= $1 ORDER BY kept_from LIMIT $2",
);
const KEEP_FROM: Sql =
    Sql::new("UPDATE log_heads SET kept_from = $3 WHERE subject = $1 AND number = $2 AND kept_from < $3");
const MARK_DELETED: Sql =
    Sql::new("UPDATE log_heads SET deleted_at = $3 WHERE subject = $1 AND number = $2 AND deleted_at IS NULL");
const DELETED_AT: Sql = Sql::new("SELECT deleted_at FROM log_heads WHERE subject = $1 AND number = $2");
const DELETE_SOME: Sql = Sql::new(
    "DELETE FROM log_chunks
      WHERE subject = $1 AND number = $2
        AND ends IN (SELECT ends FROM log_chunks WHERE subject = $1 AND number = $2 ORDER BY ends LIMIT $3)",
);
const SWEPT: Sql = Sql::new("UPDATE log_heads SET swept = $3 WHERE subject = $1 AND number = $2 AND swept < $3");
