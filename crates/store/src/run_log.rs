//! The frames of a run that has several logs, in one order: each stored frame gets the run's next number, in the transaction that stores it.
//! Knows where frames are; their bytes are the logs' own.

use crate::args;
use crate::hint::Hint;
use crate::log::Logs;
use crate::log_file::Placed;
use crate::queue::{Access, Lane};
use crate::sql::{Rank, Sql};
use crate::tx::Tx;
use crate::value::Row;
use model::log::LogId;
use model::{Failure, RunId};

/// Rows of chunks that a reader takes at once.
const PAGE_ROWS: i64 = 64;

/// A frame of one of a run's logs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunFrame {
    /// In the run, from 1.
    pub number: i64,
    pub log: LogId,
    pub placed: Placed,
}

/// A row of chunks that was just written.
pub(crate) struct Written {
    pub(crate) starts: i64,
    pub(crate) ends: i64,
    pub(crate) frames: i64,
}

/// Gives numbers to frames in the transaction that stores them. The row of the run makes appends to its logs come one after the other.
pub(crate) fn number(tx: &mut Tx, run: RunId, log: LogId, written: &[Written]) -> Result<(), Failure> {
    if written.is_empty() {
        return Ok(());
    }
    tx.exec(&START, &args![run])?;
    let mut next = tx.row(&LOCK, &args![run])?.expect("it was inserted, by us or by another").int(0)?;
    let (subject, of) = log.key();
    for row in written {
        next += row.frames;
        tx.post(&WRITE, args![run, next - 1, row.frames, subject, of, row.starts, row.ends])?;
    }
    tx.post(&ADVANCE, args![run, next])?;
    tx.hint(Hint::RunLogs(run));
    Ok(())
}

/// The log was deleted.
pub(crate) fn forget(tx: &mut Tx, log: LogId) -> Result<(), Failure> {
    tx.post(&FORGET, args![log.key().0, log.key().1])
}

/// Which frames a row of chunks holds.
struct Held {
    last: i64,
    count: i64,
    log: LogId,
    starts: i64,
    ends: i64,
}

impl Logs {
    /// Frames of all logs of a run behind `after`, in the order in which they were stored, about `max_bytes` of them. None: there are no more.
    pub async fn read_run(&self, run: RunId, after: i64, max_bytes: i64) -> Result<Vec<RunFrame>, Failure> {
        let look = move |tx: &mut Tx| {
            let rows = tx.rows(&AFTER, &args![run, after, PAGE_ROWS])?;
            rows.iter().map(read).collect::<Result<Vec<Held>, Failure>>()
        };
        let held = self.backend.ask(Lane::Normal, "log.of_run", Access::Read, look).await?;
        let (mut frames, mut bytes) = (Vec::new(), 0);
        for Held { last, count, log, starts, ends } in held {
            if bytes >= max_bytes {
                break;
            }
            let page = self.read(log, starts, ends - starts).await?;
            let inside = page.frames.into_iter().filter(|placed| placed.next <= ends && placed.offset < ends);
            for (number, placed) in (last - count + 1..).zip(inside).filter(|(number, _)| *number > after) {
                bytes += placed.next - placed.offset;
                frames.push(RunFrame { number, log, placed });
            }
        }
        Ok(frames)
    }

    /// The number of the last frame that was stored of a run.
    pub async fn last_of_run(&self, run: RunId) -> Result<i64, Failure> {
        let look = move |tx: &mut Tx| tx.row(&NEXT, &args![run])?.map_or(Ok(0), |row| Ok(row.int(0)? - 1));
        self.backend.read_inline("log.last_of_run", look).await
    }
}

fn read(row: &Row) -> Result<Held, Failure> {
    let log = LogId::from_key(row.int(2)?, row.int(3)?);
    Ok(Held { last: row.int(0)?, count: row.int(1)?, log, starts: row.int(4)?, ends: row.int(5)? })
}

pub(crate) const ALL: &[&Sql] = &[&START, &LOCK, &NEXT, &ADVANCE, &WRITE, &AFTER, &FORGET];

const START: Sql = Sql::new("INSERT INTO run_logs (run_id, next_frame) VALUES ($1, 1) ON CONFLICT (run_id) DO NOTHING");
const NEXT: Sql = Sql::new("SELECT next_frame FROM run_logs WHERE run_id = $1");
const LOCK: Sql = NEXT.no_key_update().locks(Rank::RunLog);
const ADVANCE: Sql = Sql::new("UPDATE run_logs SET next_frame = $2 WHERE run_id = $1");
const WRITE: Sql = Sql::new(
    "INSERT INTO run_frames (run_id, last, count, subject, number, starts, ends) VALUES ($1, $2, $3, $4, $5, $6, $7)",
);
const AFTER: Sql = Sql::new(
    "SELECT last, count, subject, number, starts, ends FROM run_frames
      WHERE run_id = $1 AND last > $2 ORDER BY last LIMIT $3",
);
const FORGET: Sql = Sql::new("DELETE FROM run_frames WHERE subject = $1 AND number = $2");
