//! Everything durable: SQL on SQLite and PostgreSQL, logs, blobs, and the hints that say "look again".
//! The only crate that knows a database. Never decides what may happen: that is `model`.

pub mod agent;
pub mod allocation;
pub mod artifact;
pub mod attempt;
pub mod instance;
pub mod job;
pub mod manifest;
pub mod pool;
pub mod run;
pub mod step;
pub mod task;
pub mod workflow;
mod conn;
mod crash;
mod doc;
pub mod event;
mod hint;
pub mod idempotency;
mod ids;
mod installation;
pub mod ledger;
mod lite;
mod migrate;
pub mod org;
mod queue;
pub mod secret;
mod sql;
pub mod statements;
pub mod token;
mod tx;
mod value;
pub mod work;
pub mod worker;

pub use crash::{CrashHook, Moment, points as crash_points};
pub use event::{Event, NewEvent};
pub use hint::Hint;
pub use installation::Installation;
pub use ledger::{Entry, EntryKind};
pub use queue::Lane;
pub use sql::{Lock, Rank, Sql};
pub use tx::Tx;
pub use value::{Row, Value};
pub use work::{Item, WorkKind};
pub use worker::Worker;

use hint::Hints;
use ids::Ids;
use migrate::MAIN;
use model::{Failure, Timestamp, Trouble, TroubleKind};
use queue::{Closure, Queue};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use tokio::sync::broadcast;
use tx::Context;

/// Readers of a SQLite file beside its writer.
const READERS: usize = 4;

/// Where time comes from. On PostgreSQL the database's clock is used instead.
pub trait Clock: Send + Sync {
    fn now(&self) -> Timestamp;
}

pub struct SystemClock;

impl Clock for SystemClock {
    #[expect(clippy::disallowed_methods, reason = "the one place that asks what time it is")]
    fn now(&self) -> Timestamp {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        Timestamp(since.map_or(0, |since| since.as_millis() as i64))
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Database {
    Memory,
    File(PathBuf),
    Postgres(String),
}

#[derive(Clone)]
pub struct Options {
    pub database: Database,
    pub clock: Arc<dyn Clock>,
    /// Inline stores only: a simulated process dies where this says so.
    pub crash: Option<CrashHook>,
}

impl Options {
    pub fn new(database: Database) -> Options {
        Options { database, clock: Arc::new(SystemClock), crash: None }
    }
}

/// The one door to the database. Cloning shares it.
#[derive(Clone)]
pub struct Store {
    inner: Arc<Inner>,
}

struct Inner {
    context: Arc<Context>,
    main: Backend,
}

/// Who runs the closures of one database.
enum Backend {
    /// On the caller's thread.
    Inline(Mutex<lite::Writer>),
    Threads(Threads),
}

struct Threads {
    writes: Arc<Queue>,
    reads: Arc<Queue>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Store {
    pub fn open(options: &Options) -> Result<Store, Failure> {
        let context = context(options, None);
        let main = match &options.database {
            Database::Memory => {
                let writer = lite::Writer::new(lite::open_memory(&MAIN)?, context.clone(), true);
                let queue = Arc::new(Queue::new());
                let thread = spawn("store", queue.clone(), move |queue| writer.serve(queue))?;
                // One connection is all a database in memory has: reads take their turn.
                Backend::Threads(Threads { writes: queue.clone(), reads: queue, threads: Mutex::new(vec![thread]) })
            }
            Database::File(path) => {
                let writer = lite::Writer::new(lite::open_writer(path, &MAIN)?, context.clone(), true);
                let (writes, reads) = (Arc::new(Queue::new()), Arc::new(Queue::new()));
                let mut threads = vec![spawn("store", writes.clone(), move |queue| writer.serve(queue))?];
                for _ in 0..READERS {
                    let (conn, context) = (lite::open_reader(path)?, context.clone());
                    threads.push(spawn("store-read", reads.clone(), move |queue| {
                        lite::serve_reads(conn, context, queue)
                    })?);
                }
                Backend::Threads(Threads { writes, reads, threads: Mutex::new(threads) })
            }
            Database::Postgres(_) => {
                return Err(Trouble::new(TroubleKind::Database, "PostgreSQL is not served yet").into());
            }
        };
        Ok(Store { inner: Arc::new(Inner { context, main }) })
    }

    /// A database in memory whose closures run on the caller's thread: for simulation.
    pub fn inline(options: &Options) -> Result<Store, Failure> {
        let context = context(options, options.crash.clone());
        let main = Backend::Inline(Mutex::new(lite::Writer::new(lite::open_memory(&MAIN)?, context.clone(), true)));
        Ok(Store { inner: Arc::new(Inner { context, main }) })
    }

    /// One transaction. The closure may run again, so it has no effect but on `tx`; the answer comes after the commit.
    pub async fn write<T, F>(&self, lane: Lane, name: &'static str, f: F) -> Result<T, Failure>
    where
        T: Send + 'static,
        F: Fn(&mut Tx) -> Result<T, Failure> + Send + Sync + 'static,
    {
        self.inner.main.ask(lane, name, false, f).await
    }

    /// A consistent view, at most one page long. Never waits for writers (except in memory).
    pub async fn read<T, F>(&self, name: &'static str, f: F) -> Result<T, Failure>
    where
        T: Send + 'static,
        F: Fn(&mut Tx) -> Result<T, Failure> + Send + Sync + 'static,
    {
        self.inner.main.ask(Lane::Normal, name, true, f).await
    }

    /// `write` without a runtime, for an inline store.
    pub fn write_now<T, F>(&self, name: &'static str, f: F) -> Result<T, Failure>
    where
        T: Send + 'static,
        F: Fn(&mut Tx) -> Result<T, Failure> + Send + Sync + 'static,
    {
        self.inner.main.now(name, false, f)
    }

    /// `read` without a runtime, for an inline store.
    pub fn read_now<T, F>(&self, name: &'static str, f: F) -> Result<T, Failure>
    where
        T: Send + 'static,
        F: Fn(&mut Tx) -> Result<T, Failure> + Send + Sync + 'static,
    {
        self.inner.main.now(name, true, f)
    }

    /// What was committed, by anybody. `Lagged` means: look at everything again.
    pub fn hints(&self) -> broadcast::Receiver<Hint> {
        self.inner.context.hints.listen()
    }

    /// False after a write has found the disk full, until one succeeds.
    pub fn writable(&self) -> bool {
        !self.inner.context.disk_full.load(Ordering::Relaxed)
    }
}

impl Backend {
    async fn ask<T, F>(&self, lane: Lane, name: &'static str, reads: bool, f: F) -> Result<T, Failure>
    where
        T: Send + 'static,
        F: Fn(&mut Tx) -> Result<T, Failure> + Send + 'static,
    {
        let Backend::Threads(threads) = self else { return self.now(name, reads, f) };
        let (job, answer) = Closure::boxed(name, lane, reads, f);
        if reads { &threads.reads } else { &threads.writes }.push(job);
        answer.await.unwrap_or_else(|_| Err(closed()))
    }

    fn now<T, F>(&self, name: &'static str, reads: bool, f: F) -> Result<T, Failure>
    where
        T: Send + 'static,
        F: Fn(&mut Tx) -> Result<T, Failure> + Send + 'static,
    {
        let Backend::Inline(writer) = self else {
            panic!("{name}: only an inline store runs closures on the caller's thread")
        };
        let (job, mut answer) = Closure::boxed(name, Lane::Normal, reads, f);
        writer.lock().expect("closures' panics are caught").alone(job);
        answer.try_recv().unwrap_or_else(|_| Err(closed()))
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.writes.close();
        self.reads.close();
        for thread in self.threads.get_mut().map(std::mem::take).unwrap_or_default() {
            // The last owner may be a closure on one of these very threads.
            if thread.thread().id() != std::thread::current().id() {
                let _ = thread.join();
            }
        }
    }
}

fn context(options: &Options, crash: Option<CrashHook>) -> Arc<Context> {
    Arc::new(Context {
        clock: options.clock.clone(),
        ids: Ids::new(),
        hints: Hints::new(None),
        crash,
        disk_full: AtomicBool::new(false),
    })
}

fn spawn(
    name: &str,
    queue: Arc<Queue>,
    serve: impl FnOnce(&Queue) + Send + 'static,
) -> Result<JoinHandle<()>, Failure> {
    let thread = std::thread::Builder::new().name(name.to_owned()).spawn(move || serve(&queue));
    thread.map_err(|e| Trouble::internal(format!("cannot start a thread: {e}")).into())
}

fn closed() -> Failure {
    Trouble::new(TroubleKind::Database, "the store was closed").into()
}
