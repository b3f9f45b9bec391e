//! Queues of closures for the threads that own connections: three lanes, bounded. On PostgreSQL, where several threads would wait for the
//! same row lock, writes of one run wait here and occupy one connection at a time.

use crate::tx::Tx;
use model::{Failure, RunId, Trouble, TroubleKind};
use std::any::Any;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Condvar, Mutex};
use tokio::sync::oneshot;

/// More than the writer completes in seconds: further callers are refused and may retry.
const WAITING_LIMIT: usize = 8192;
/// Queued writes of one run: more of them are a mistake of a client.
const WAITING_LIMIT_OF_RUN: usize = 1024;
/// Every 16th closure is taken from the lowest lane first, so that none starves.
const TURNS_OF_THE_HIGH: u64 = 16;

/// Priority of a closure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lane {
    /// Lease renewals and runner reports: if they are late, a live worker or machine is taken for dead.
    High,
    Normal,
    /// Bulk work, in chunks of at most 200 rows.
    Low,
}

impl Lane {
    /// This lane, for a write that locks `run`: it waits in memory while another write of that run is under way.
    pub fn of(self, run: RunId) -> Turn {
        Turn { lane: self, run: Some(run) }
    }
}

/// The place of a write in the queue: its lane, and the run whose other writes it waits for. A write that locks no run is a plain `Lane`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Turn {
    pub(crate) lane: Lane,
    pub(crate) run: Option<RunId>,
}

impl From<Lane> for Turn {
    fn from(lane: Lane) -> Turn {
        Turn { lane, run: None }
    }
}

/// What a closure does with the database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    Write,
    Read,
    /// A read of a few rows by their keys, short enough for the caller's own thread. Bounds: `Tx::count`.
    PointRead,
}

/// A closure whose caller waits for its answer.
pub(crate) trait Job: Send {
    fn name(&self) -> &'static str;
    fn turn(&self) -> Turn;
    fn access(&self) -> Access;
    fn reads(&self) -> bool {
        self.access() != Access::Write
    }
    /// May be called again: then the last value counts.
    fn run(&mut self, tx: &mut Tx) -> Result<(), Failure>;
    fn answer(self: Box<Self>, verdict: Result<(), Failure>);
}

/// Runs the closure and its staged rows; a panic is trouble of this closure alone.
pub(crate) fn run_caught(job: &mut dyn Job, tx: &mut Tx) -> Result<(), Failure> {
    let name = job.name();
    tx.begins(name);
    catch_unwind(AssertUnwindSafe(|| {
        job.run(tx)?;
        tx.flush()
    }))
    .unwrap_or_else(|panic| Err(Trouble::internal(format!("{name} panicked: {}", panic_text(&*panic))).into()))
}

/// What a panic said.
pub fn panic_text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("no message")
}

pub(crate) struct Closure<T, F> {
    name: &'static str,
    turn: Turn,
    access: Access,
    f: F,
    value: Option<T>,
    answer: oneshot::Sender<Result<T, Failure>>,
}

pub(crate) type Reply<T> = oneshot::Receiver<Result<T, Failure>>;

impl<T: Send + 'static, F: Fn(&mut Tx) -> Result<T, Failure> + Send + 'static> Closure<T, F> {
    pub(crate) fn boxed(name: &'static str, turn: Turn, access: Access, f: F) -> (Box<dyn Job>, Reply<T>) {
        let (answer, receiver) = oneshot::channel();
        (Box::new(Closure { name, turn, access, f, value: None, answer }), receiver)
    }
}

impl<T: Send, F: Fn(&mut Tx) -> Result<T, Failure> + Send> Job for Closure<T, F> {
    fn name(&self) -> &'static str {
        self.name
    }
    fn turn(&self) -> Turn {
        self.turn
    }
    fn access(&self) -> Access {
        self.access
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
    lanes: [VecDeque<Ticket>; 3],
    /// Everything that waits in a lane, in line or parked.
    counts: [usize; 3],
    /// None for SQLite: its one writer never waits for a row lock.
    runs: Option<HashMap<RunId, OfRun>>,
    arrivals: u64,
    turns: u64,
    closed: bool,
}

/// A job and when it came.
struct Ticket {
    number: u64,
    job: Box<dyn Job>,
}

/// A run with writes that are queued or under way.
#[derive(Default)]
struct OfRun {
    under_way: bool,
    waiting: usize,
    /// Writes that reached the head of their lane while another write of the run was under way. Higher lanes first, then first come.
    parked: BTreeMap<(usize, u64), Box<dyn Job>>,
}

impl Queue {
    /// For a single writer thread, or for reads: every thread serves every lane.
    pub(crate) fn new() -> Queue {
        Queue { waiting: Mutex::default(), arrived: Condvar::new() }
    }

    /// For threads that would wait for each other's row locks: one write of a run is under way at a time. The thread that took it calls
    /// `done` with its turn.
    pub(crate) fn by_run() -> Queue {
        let waiting = Waiting { runs: Some(HashMap::new()), ..Waiting::default() };
        Queue { waiting: Mutex::new(waiting), arrived: Condvar::new() }
    }

    pub(crate) fn push(&self, job: Box<dyn Job>) {
        let mut waiting = self.waiting.lock().expect("no panic while the queue is locked");
        if let Some(why) = waiting.refusal(job.turn()) {
            drop(waiting);
            return job.answer(Err(Trouble::new(TroubleKind::Database, why).into()));
        }
        waiting.enter(job);
        let alike = waiting.runs.is_none();
        drop(waiting);
        if alike {
            return self.arrived.notify_one();
        }
        // All: a thread reserved for the high lane may be the one that wakes.
        self.arrived.notify_all();
    }

    /// Waits for a job of one of the first `lanes` lanes; `None` when the queue is closed and nothing more will come out of it.
    pub(crate) fn wait(&self, lanes: usize) -> Option<Box<dyn Job>> {
        let mut waiting = self.waiting.lock().expect("no panic while the queue is locked");
        loop {
            if let Some(job) = waiting.next(lanes) {
                return Some(job);
            }
            // A parked write returns to its lane, perhaps to one that only this thread serves.
            if waiting.closed && waiting.counts[..lanes].iter().all(|count| *count == 0) {
                return None;
            }
            waiting = self.arrived.wait(waiting).expect("no panic while the queue is locked");
        }
    }

    /// What waits now, without waiting for more.
    pub(crate) fn take(&self) -> Option<Box<dyn Job>> {
        self.waiting.lock().expect("no panic while the queue is locked").next(3)
    }

    /// How many could be taken now.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.lock().expect("no panic while the queue is locked").counts.iter().sum()
    }

    /// The closure with this turn was answered: the next write of its run may start.
    pub(crate) fn done(&self, turn: Turn) {
        let Some(run) = turn.run else { return };
        if self.waiting.lock().expect("no panic while the queue is locked").leave(run) {
            self.arrived.notify_all();
        }
    }

    pub(crate) fn close(&self) {
        self.waiting.lock().expect("no panic while the queue is locked").closed = true;
        self.arrived.notify_all();
    }
}

impl Waiting {
    fn refusal(&self, turn: Turn) -> Option<&'static str> {
        let of_run = turn.run.zip(self.runs.as_ref()).and_then(|(run, runs)| runs.get(&run));
        if self.closed {
            Some("the store is closed")
        } else if self.counts[turn.lane as usize] >= WAITING_LIMIT {
            Some("too many writes are waiting for the database")
        } else if of_run.is_some_and(|run| run.waiting >= WAITING_LIMIT_OF_RUN) {
            Some("too many writes of this run are waiting")
        } else {
            None
        }
    }

    fn enter(&mut self, job: Box<dyn Job>) {
        let Turn { lane, run } = job.turn();
        if let Some((run, runs)) = run.zip(self.runs.as_mut()) {
            runs.entry(run).or_default().waiting += 1;
        }
        self.arrivals += 1;
        self.counts[lane as usize] += 1;
        self.lanes[lane as usize].push_back(Ticket { number: self.arrivals, job });
    }

    fn next(&mut self, lanes: usize) -> Option<Box<dyn Job>> {
        self.turns += 1;
        let lowest_first = self.turns.is_multiple_of(TURNS_OF_THE_HIGH);
        for i in 0..lanes {
            let lane = if lowest_first { lanes - 1 - i } else { i };
            while let Some(ticket) = self.lanes[lane].pop_front() {
                if let Some(job) = self.admit(lane, ticket) {
                    self.counts[lane] -= 1;
                    return Some(job);
                }
            }
        }
        None
    }

    /// The job, unless another write of its run is under way: then it is parked.
    fn admit(&mut self, lane: usize, ticket: Ticket) -> Option<Box<dyn Job>> {
        let Ticket { number, job } = ticket;
        let Some((run, runs)) = job.turn().run.zip(self.runs.as_mut()) else { return Some(job) };
        let run = runs.get_mut(&run).expect("it was entered");
        if run.under_way {
            run.parked.insert((lane, number), job);
            return None;
        }
        (run.under_way, run.waiting) = (true, run.waiting - 1);
        Some(job)
    }

    /// True when a parked write has returned to its lane.
    fn leave(&mut self, id: RunId) -> bool {
        let Some(runs) = self.runs.as_mut() else { return false };
        let run = runs.get_mut(&id).expect("one of its writes was under way");
        run.under_way = false;
        if let Some(((lane, number), job)) = run.parked.pop_first() {
            self.lanes[lane].push_front(Ticket { number, job });
            return true;
        }
        if run.waiting == 0 {
            runs.remove(&id);
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(turn: impl Into<Turn>, name: &'static str) -> (Box<dyn Job>, Reply<()>) {
        Closure::boxed(name, turn.into(), Access::Write, |_: &mut Tx| Ok(()))
    }

    /// The names of what can be taken now, without anything being done.
    fn taken(queue: &Queue) -> Vec<&'static str> {
        std::iter::from_fn(|| queue.take()).map(|job| job.name()).collect()
    }

    #[test]
    fn one_write_of_a_run_is_out_at_a_time_in_the_order_they_came() {
        let (queue, a, b) = (Queue::by_run(), RunId(1), RunId(2));
        let turn = Lane::Normal.of(a);
        for name in ["a1", "a2", "a3"] {
            queue.push(job(turn, name).0);
        }
        queue.push(job(Lane::Normal.of(b), "b1").0);
        queue.push(job(Lane::Normal, "no run").0);
        assert_eq!(taken(&queue), ["a1", "b1", "no run"]);
        queue.push(job(turn, "a4").0);
        queue.push(job(Lane::High.of(a), "a report").0);
        assert_eq!(taken(&queue), [] as [&str; 0]);
        for next in ["a report", "a2", "a3", "a4"] {
            queue.done(turn);
            assert_eq!(taken(&queue), [next]);
        }
        queue.done(turn);
        queue.done(Lane::Normal.of(b));
        assert!(queue.waiting.lock().unwrap().runs.as_ref().unwrap().is_empty(), "nothing is remembered of idle runs");
    }

    #[test]
    fn one_thread_takes_everything_as_it_comes() {
        let queue = Queue::new();
        for name in ["a1", "a2"] {
            queue.push(job(Lane::Normal.of(RunId(1)), name).0);
        }
        assert_eq!(taken(&queue), ["a1", "a2"]);
    }

    #[test]
    fn a_run_that_is_asked_too_often_is_refused_and_others_are_not() {
        let queue = Queue::by_run();
        let turn = Lane::Normal.of(RunId(1));
        for _ in 0..WAITING_LIMIT_OF_RUN {
            queue.push(job(turn, "many").0);
        }
        let (refused, mut answer) = job(turn, "one more");
        queue.push(refused);
        let failure = answer.try_recv().expect("it is answered at once").unwrap_err();
        assert!(failure.to_string().contains("too many writes of this run"), "{failure}");
        let (other, mut answer) = job(Lane::Normal.of(RunId(2)), "another run");
        queue.push(other);
        assert!(answer.try_recv().is_err(), "it waits");
    }

    #[test]
    fn what_is_parked_when_the_queue_closes_still_runs() {
        let queue = Queue::by_run();
        let turn = Lane::Normal.of(RunId(1));
        queue.push(job(turn, "first").0);
        queue.push(job(turn, "second").0);
        assert_eq!(taken(&queue), ["first"]);
        queue.close();
        std::thread::scope(|scope| {
            let other = scope.spawn(|| queue.wait(3).map(|job| job.name()));
            queue.done(turn);
            assert_eq!(other.join().unwrap(), Some("second"));
        });
    }
}
