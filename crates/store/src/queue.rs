//! What waits for a thread that owns a connection: boxed closures in three lanes, bounded.
//! Never runs anything itself.

use crate::tx::Tx;
use model::{Failure, Trouble, TroubleKind};
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Condvar, Mutex};
use tokio::sync::oneshot;

/// More than a group commit clears in seconds: beyond it callers are told to come back.
const WAITING_LIMIT: usize = 8192;
/// Every so many turns the lowest waiting lane goes first, so that nothing starves.
const TURNS_OF_THE_HIGH: u64 = 16;

/// Who goes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lane {
    /// Lease renewals and runner reports: lateness there looks like death.
    High,
    Normal,
    /// Bulk work, in chunks of at most 200 rows.
    Low,
}

/// A closure with somebody waiting for its answer.
pub(crate) trait Job: Send {
    fn name(&self) -> &'static str;
    fn lane(&self) -> Lane;
    fn reads(&self) -> bool;
    /// May be called again: then the last value counts.
    fn run(&mut self, tx: &mut Tx) -> Result<(), Failure>;
    fn answer(self: Box<Self>, verdict: Result<(), Failure>);
}

/// Runs the closure and its staged rows; a panic is trouble of this closure alone.
pub(crate) fn run_caught(job: &mut dyn Job, tx: &mut Tx) -> Result<(), Failure> {
    let name = job.name();
    catch_unwind(AssertUnwindSafe(|| {
        job.run(tx)?;
        tx.flush()
    }))
    .unwrap_or_else(|panic| {
        let text = panic
            .downcast_ref::<String>()
            .map(String::as_str)
            .or(panic.downcast_ref::<&str>().copied())
            .unwrap_or("no message");
        Err(Trouble::internal(format!("{name} panicked: {text}")).into())
    })
}

pub(crate) struct Closure<T, F> {
    name: &'static str,
    lane: Lane,
    reads: bool,
    f: F,
    value: Option<T>,
    answer: oneshot::Sender<Result<T, Failure>>,
}

pub(crate) type Answer<T> = oneshot::Receiver<Result<T, Failure>>;

impl<T: Send + 'static, F: Fn(&mut Tx) -> Result<T, Failure> + Send + 'static> Closure<T, F> {
    pub(crate) fn boxed(name: &'static str, lane: Lane, reads: bool, f: F) -> (Box<dyn Job>, Answer<T>) {
        let (answer, receiver) = oneshot::channel();
        (Box::new(Closure { name, lane, reads, f, value: None, answer }), receiver)
    }
}

impl<T: Send, F: Fn(&mut Tx) -> Result<T, Failure> + Send> Job for Closure<T, F> {
    fn name(&self) -> &'static str {
        self.name
    }
    fn lane(&self) -> Lane {
        self.lane
    }
    fn reads(&self) -> bool {
        self.reads
    }
    fn run(&mut self, tx: &mut Tx) -> Result<(), Failure> {
        self.value = None;
        self.value = Some((self.f)(tx)?);
        Ok(())
    }
    fn answer(self: Box<Self>, verdict: Result<(), Failure>) {
        let Closure { value, answer, .. } = *self;
        let result = verdict.map(|()| value.expect("a closure that succeeded left a value"));
        // An error here means that the caller went away; the transaction stands.
        let _ = answer.send(result);
    }
}

pub(crate) struct Queue {
    waiting: Mutex<Waiting>,
    arrived: Condvar,
}

#[derive(Default)]
struct Waiting {
    lanes: [VecDeque<Box<dyn Job>>; 3],
    turns: u64,
    closed: bool,
}

impl Queue {
    pub(crate) fn new() -> Queue {
        Queue { waiting: Mutex::default(), arrived: Condvar::new() }
    }

    pub(crate) fn push(&self, job: Box<dyn Job>) {
        let mut waiting = self.waiting.lock().expect("no panic while the queue is locked");
        let lane = &mut waiting.lanes[job.lane() as usize];
        let refused =
            if lane.len() >= WAITING_LIMIT { Some("too many writes are waiting for the database") } else { None };
        let refused = if waiting.closed { Some("the store is closed") } else { refused };
        if let Some(why) = refused {
            drop(waiting);
            return job.answer(Err(Trouble::new(TroubleKind::Database, why).into()));
        }
        waiting.lanes[job.lane() as usize].push_back(job);
        drop(waiting);
        // All: a thread reserved for the high lane may be the one that wakes.
        self.arrived.notify_all();
    }

    /// Waits for a job of one of the first `lanes` lanes; `None` when the queue is closed and empty.
    pub(crate) fn wait(&self, lanes: usize) -> Option<Box<dyn Job>> {
        let mut waiting = self.waiting.lock().expect("no panic while the queue is locked");
        loop {
            if let Some(job) = waiting.next(lanes) {
                return Some(job);
            }
            if waiting.closed {
                return None;
            }
            waiting = self.arrived.wait(waiting).expect("no panic while the queue is locked");
        }
    }

    /// What waits now, without waiting for more.
    pub(crate) fn take(&self) -> Option<Box<dyn Job>> {
        self.waiting.lock().expect("no panic while the queue is locked").next(3)
    }

    pub(crate) fn close(&self) {
        self.waiting.lock().expect("no panic while the queue is locked").closed = true;
        self.arrived.notify_all();
    }
}

impl Waiting {
    fn next(&mut self, lanes: usize) -> Option<Box<dyn Job>> {
        self.turns += 1;
        let lanes = &mut self.lanes[..lanes];
        if self.turns.is_multiple_of(TURNS_OF_THE_HIGH) {
            return lanes.iter_mut().rev().find_map(VecDeque::pop_front);
        }
        lanes.iter_mut().find_map(VecDeque::pop_front)
    }
}
