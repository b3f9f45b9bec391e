//! The first line of a log that says what went wrong. What was found is remembered; where one search reached its bounds, the next one goes on. Opening
//! a log never waits for its turn to search: without one the log is shown from its end.

use super::of_run::RunScan;
use super::{FAILURE, Needle, Place, READ_BYTES, RunPlace, Scan, Searches, off_the_reactor};
use crate::pages::log_window;
use crate::problem::Problem;
use engine::log::{LogStream, Logs};
use model::log::LogId;
use model::{Failure, RunId};
use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use tokio::runtime::Handle;

/// Logs of which something is remembered.
const MOST_KNOWN: usize = 1_024;
/// Shown before a failure in the log of a run of agents.
const BEFORE_LINES: usize = 10;
const BEFORE_BYTES: i64 = 8 * 1024;

/// A line, and the window in which it stands behind a few others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Failing {
    pub(crate) log: LogId,
    pub(crate) offset: i64,
    pub(crate) stream: LogStream,
    pub(crate) from: i64,
}

#[derive(Debug, Clone, Copy)]
enum Known<P> {
    Found(Failing),
    Nowhere,
    /// What is before it was searched.
    UpTo(P),
}

/// What is known of logs to which nothing is added any more, the newest first.
struct Memory<K, P>(Mutex<VecDeque<(K, Known<P>)>>);

impl<K, P> Default for Memory<K, P> {
    fn default() -> Memory<K, P> {
        Memory(Mutex::default())
    }
}

impl<K: PartialEq, P: Copy> Memory<K, P> {
    fn get(&self, of: &K) -> Option<Known<P>> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.iter().find(|(it, _)| it == of).map(|(_, known)| *known)
    }

    fn put(&self, of: K, what: Known<P>) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|(it, _)| *it != of);
        known.truncate(MOST_KNOWN - 1);
        known.push_front((of, what));
    }
}

#[derive(Default)]
pub(super) struct Failures {
    of_logs: Memory<LogId, Place>,
    /// With how many frames a run had: one that is retried writes more.
    of_runs: Memory<(RunId, i64), RunPlace>,
}

impl Searches {
    /// Of one log that is complete.
    pub(crate) async fn first_failure(&self, logs: &Logs, log: LogId) -> Result<Option<Failing>, Problem> {
        let known = &self.failures.of_logs;
        let from = match known.get(&log) {
            Some(Known::Found(it)) => return Ok(Some(it)),
            Some(Known::Nowhere) => return Ok(None),
            Some(Known::UpTo(place)) => place,
            None => Place::default(),
        };
        let Ok(turn) = self.turns.clone().try_acquire_owned() else { return Ok(None) };
        let mut scan = Scan { most_bytes: self.most_bytes, ..Scan::new(failure(), from, 1) };
        let (of, handle) = (logs.clone(), Handle::current());
        let read = move |at| handle.block_on(of.read(log, at, READ_BYTES));
        let (found, complete) = off_the_reactor(turn, move |over| scan.all(&read, over)).await?;
        match (found.hits.first(), found.go_on) {
            (Some(hit), _) => {
                let from = log_window::few_before(logs, log, hit.offset).await?;
                let it = Failing { log, offset: hit.offset, stream: hit.stream, from };
                known.put(log, Known::Found(it));
                Ok(Some(it))
            }
            (None, Some(place)) => {
                known.put(log, Known::UpTo(place));
                Ok(None)
            }
            (None, None) => {
                if complete {
                    known.put(log, Known::Nowhere);
                }
                Ok(None)
            }
        }
    }

    /// Of all logs of a run that has ended and has written so many frames.
    pub(crate) async fn first_failure_of_run(
        &self,
        logs: &Logs,
        run: RunId,
        frames: i64,
    ) -> Result<Option<Failing>, Problem> {
        let known = &self.failures.of_runs;
        let from = match known.get(&(run, frames)) {
            Some(Known::Found(it)) => return Ok(Some(it)),
            Some(Known::Nowhere) => return Ok(None),
            Some(Known::UpTo(place)) => place,
            None => RunPlace::default(),
        };
        let Ok(turn) = self.turns.clone().try_acquire_owned() else { return Ok(None) };
        let mut scan = RunScan::first(failure(), from, self.most_bytes);
        let (of, handle) = (logs.clone(), Handle::current());
        let read = move |after| handle.block_on(of.read_run(run, after, READ_BYTES));
        let found = off_the_reactor(turn, move |over| scan.all(&read, over)).await?;
        let what = match (found.hits.first(), found.go_on) {
            (Some(it), _) => {
                let from = frames_before(logs, run, it.frame).await?;
                Known::Found(Failing { log: it.log, offset: it.hit.offset, stream: it.hit.stream, from })
            }
            (None, Some(place)) => Known::UpTo(place),
            (None, None) => Known::Nowhere,
        };
        known.put((run, frames), what);
        Ok(if let Known::Found(it) = what { Some(it) } else { None })
    }
}

fn failure() -> Needle {
    Needle::expression(FAILURE).expect("it is ours, and a test reads it")
}

/// Behind which frame a few lines are seen before this one.
async fn frames_before(logs: &Logs, run: RunId, frame: i64) -> Result<i64, Failure> {
    let earliest = (frame - 1 - BEFORE_LINES as i64).max(0);
    let near = logs.read_run(run, earliest, READ_BYTES).await?;
    let (mut from, mut lines, mut bytes) = (frame - 1, 0, 0);
    for one in near.iter().rev().filter(|one| one.number < frame) {
        lines += one.placed.frame.data.iter().filter(|byte| **byte == b'\n').count();
        bytes += one.placed.frame.data.len() as i64;
        if bytes > BEFORE_BYTES {
            break;
        }
        from = one.number - 1;
        if lines >= BEFORE_LINES {
            break;
        }
    }
    Ok(from)
}
