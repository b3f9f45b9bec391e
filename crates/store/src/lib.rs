//! Everything durable: SQL on SQLite and PostgreSQL, logs, blobs, and hints (notifications after a commit).
//! The only crate that knows a database. What may happen next is decided in `model`, not here.

pub mod agent;
pub mod allocation;
pub mod artifact;
pub mod attempt;
mod backend;
pub mod blob;
mod checkpoint;
pub mod claim;
mod conn;
pub mod content;
mod crash;
mod doc;
mod durable;
pub mod endpoint;
pub mod event;
pub mod exec;
pub mod execution;
mod fatal;
mod group_limit;
mod guard;
mod hint;
pub mod host;
mod id_mark;
pub mod idempotency;
mod ids;
mod inline;
mod installation;
pub mod instance;
pub mod job;
pub mod ledger;
mod lite;
pub mod log;
pub mod log_file;
pub mod manifest;
pub mod message;
mod migrate;
mod newest;
pub mod object;
pub mod org;
pub mod orphan;
mod pg;
mod pg_address;
mod pg_error;
mod pg_hints;
mod pg_serve;
mod pg_value;
pub mod pin;
pub mod plan;
pub mod pool;
mod post;
mod private;
pub mod provider;
pub mod question;
mod queue;
mod reader;
mod recorder;
pub mod refs;
pub mod run;
pub mod run_log;
pub mod secret;
pub mod session;
#[cfg(test)]
#[path = "../../testkit/tests/support/skip.rs"]
mod skip;
pub mod snapshot;
mod sql;
pub mod statements;
pub mod step;
mod tally;
pub mod task;
pub mod token;
mod tx;
pub mod unlisted;
pub mod usage;
mod value;
pub mod work;
pub mod worker;
pub mod workflow;

pub use blob::{BlobHash, BlobName, Blobs};
pub use crash::{CrashHook, Moment, Observer};
pub use event::{Event, NewEvent};
pub use hint::{Hint, Topic};
pub use inline::{MemoryDatabase, Reuse};
pub use installation::Installation;
pub use ledger::{Entry, EntryKind};
pub use log::Logs;
pub use log_file::{Frame, LogStream, Placed};
use queue::Access;
pub use queue::{Lane, Turn, panic_text};
pub use recorder::{Recorded, Recorder};
pub use sql::{Lock, Rank, Sql};
pub use tally::Counts;
pub use tx::Tx;
pub use value::{Row, Value};
pub use work::{Item, WorkClass, WorkKind};
pub use worker::Worker;

use backend::Backend;
use guard::Guard;
use hint::Hints;
use id_mark::IdMark;
use ids::Ids;
use migrate::{LOGS, MAIN};
use model::{Failure, Refused, Timestamp, Trouble};
use pg_address::Address;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tally::Tally;
use tokio::sync::broadcast;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tx::Context;

/// The clock of transactions on SQLite. On PostgreSQL the database's clock is used instead.
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
    /// The folder of blobs. By default in memory for a database in memory, and beside the file of SQLite.
    pub blobs: Option<PathBuf>,
    pub clock: Arc<dyn Clock>,
    /// Connections to PostgreSQL, besides those for the high lane.
    pub connections: usize,
    /// Writes that share one commit on SQLite at most; 1 gives each its own.
    pub group: usize,
    /// Bytes kept of one job's log.
    pub log_quota_bytes: i64,
    /// A worker that has not renewed its lease for this long counts as dead.
    pub lease_ms: i64,
    /// The first id of a database that has given out none. One that is made for an installation which exists begins beyond all that may
    /// still be out there: at the present time in ms.
    pub first_id: i64,
    /// Hears every statement, for benchmarks.
    pub recorder: Option<Recorder>,
    /// Inline stores only: a simulated process dies at a crash point where this returns true.
    pub crash: Option<CrashHook>,
    /// Inline stores only: called after each write.
    pub observe: Option<Observer>,
    /// Inline stores only: where their databases come from and go to. Without it each store makes its own.
    pub reuse: Option<Reuse>,
}

impl Options {
    pub fn new(database: Database) -> Options {
        Options {
            database,
            blobs: None,
            clock: Arc::new(SystemClock),
            connections: 8,
            group: group_limit::MOST_CLOSURES,
            log_quota_bytes: 1 << 30,
            lease_ms: worker::LEASE_MS,
            first_id: 1,
            recorder: None,
            crash: None,
            observe: None,
            reuse: None,
        }
    }
}

/// A handle to the database. Clones share it.
#[derive(Clone)]
pub struct Store {
    inner: Arc<Inner>,
}

struct Inner {
    context: Arc<Context>,
    main: Arc<Backend>,
    logs: Logs,
    // Last field: the lock of the file is released after the threads have ended.
    _guard: Option<Guard>,
}

impl Store {
    pub fn open(options: &Options) -> Result<Store, Failure> {
        match &options.database {
            Database::Memory => {
                let context = context(options, None, None, None);
                let (main, logs) = (Backend::memory(MAIN, context.clone())?, Backend::memory(LOGS, context.clone())?);
                Store::of(options, context, Arc::new(main), Arc::new(logs), None)
            }
            Database::File(path) => {
                let guard = Guard::take(path)?;
                for file in [path, &logs_path(path)] {
                    drop(private::file(file)?);
                    for end in ["-wal", "-shm"] {
                        let mut beside = file.as_os_str().to_owned();
                        beside.push(end);
                        private::file_if_there(Path::new(&beside))?;
                    }
                }
                let context = context(options, Some(IdMark::open(path)?), None, None);
                let main = Backend::file(path, MAIN, context.clone())?;
                let logs = Backend::file(&logs_path(path), LOGS, context.clone())?;
                Store::of(options, context, Arc::new(main), Arc::new(logs), Some(guard))
            }
            Database::Postgres(url) => {
                let address = Address::parse(url)?;
                let (committed, to_tell) = unbounded_channel();
                let context = context(options, None, None, Some(committed));
                let main = Arc::new(Backend::postgres(&address, options.connections, context.clone())?);
                let hints = context.hints.only_here();
                start_hints(pg_hints::serve(address, hints, to_tell))?;
                Store::of(options, context, main.clone(), main, None)
            }
        }
    }

    /// A database in memory whose closures run on the caller's thread: for simulation.
    pub fn inline(options: &Options) -> Result<Store, Failure> {
        let context = context(options, None, options.crash.clone(), None);
        let (main, logs) = (Backend::inline(MAIN, context.clone())?, Backend::inline(LOGS, context.clone())?);
        Store::of(options, context, Arc::new(main), Arc::new(logs), None)
    }

    /// One transaction. The closure may run again, so it has no effect but on `tx`; the answer comes after the commit.
    /// A write that locks a run names it, `Lane::Normal.of(run)`; on PostgreSQL it then waits in memory for that run's other writes.
    pub async fn write<T, F>(&self, turn: impl Into<Turn>, name: &'static str, f: F) -> Result<T, Failure>
    where
        T: Send + 'static,
        F: Fn(&mut Tx) -> Result<T, Failure> + Send + Sync + 'static,
    {
        self.inner.main.ask(turn, name, Access::Write, f).await
    }

    /// A consistent view, at most one page long. Never waits for writers (except in memory).
    pub async fn read<T, F>(&self, name: &'static str, f: F) -> Result<T, Failure>
    where
        T: Send + 'static,
        F: Fn(&mut Tx) -> Result<T, Failure> + Send + Sync + 'static,
    {
        self.inner.main.ask(Lane::Normal, name, Access::Read, f).await
    }

    /// A read of a few rows by their keys, on the caller's own thread if the database is a SQLite file. At most 16 rows and 64 KiB,
    /// asserted in debug builds on every database.
    pub async fn read_inline<T, F>(&self, name: &'static str, f: F) -> Result<T, Failure>
    where
        T: Send + 'static,
        F: Fn(&mut Tx) -> Result<T, Failure> + Send + Sync + 'static,
    {
        self.inner.main.read_inline(name, f).await
    }

    /// `write` without a runtime, for an inline store.
    pub fn write_now<T, F>(&self, name: &'static str, f: F) -> Result<T, Failure>
    where
        T: Send + 'static,
        F: Fn(&mut Tx) -> Result<T, Failure> + Send + Sync + 'static,
    {
        self.inner.main.now(name, Access::Write, f)
    }

    /// `read` without a runtime, for an inline store.
    pub fn read_now<T, F>(&self, name: &'static str, f: F) -> Result<T, Failure>
    where
        T: Send + 'static,
        F: Fn(&mut Tx) -> Result<T, Failure> + Send + Sync + 'static,
    {
        self.inner.main.now(name, Access::Read, f)
    }

    /// Hints of all commits, of this process and (on PostgreSQL) of others. `Lagged` means: read everything again.
    pub fn hints(&self) -> broadcast::Receiver<Hint> {
        self.inner.context.hints.listen()
    }

    /// No id up to this one is given out from now on: it was seen outside, and the database does not know it. Another process that has
    /// reserved a block of ids before uses that up. One that is too great to be an id of ours is refused: beyond it there would soon be
    /// no ids left.
    pub async fn pass_ids(&self, seen: i64) -> Result<(), Failure> {
        if seen > model::names::MAX_SEEN_ID {
            return Err(Refused::invalid("id", format!("{seen} is greater than any id that was ever given out")).into());
        }
        let raise = move |tx: &mut Tx| tx.exec(&ids::RAISE, &args![seen.saturating_add(1)]).map(drop);
        self.write(Lane::Normal, "ids.pass", raise).await?;
        self.inner.context.ids.pass(seen);
        Ok(())
    }

    pub fn logs(&self) -> &Logs {
        &self.inner.logs
    }

    pub fn blobs(&self) -> &Blobs {
        &self.inner.logs.blobs
    }

    /// Counters since it was opened.
    pub fn counts(&self) -> Counts {
        self.inner.context.tally.counts()
    }

    /// False after a write failed because the disk was full, until one succeeds.
    pub fn writable(&self) -> bool {
        !self.inner.context.disk_full.load(Ordering::Relaxed)
    }

    fn of(
        options: &Options,
        context: Arc<Context>,
        main: Arc<Backend>,
        logs: Arc<Backend>,
        guard: Option<Guard>,
    ) -> Result<Store, Failure> {
        let blobs = match (&options.blobs, &options.database) {
            (Some(folder), _) => Blobs::folder(folder)?,
            (None, Database::Memory) => Blobs::memory(),
            (None, Database::File(path)) => Blobs::folder(path.with_file_name("blobs"))?,
            (None, Database::Postgres(_)) => {
                return Err(Refused::invalid("blobs", "with PostgreSQL, say where blobs go: set REPL_BLOBS").into());
            }
        };
        let logs = Logs { backend: logs, blobs, quota: options.log_quota_bytes };
        Ok(Store { inner: Arc::new(Inner { context, main, logs, _guard: guard }) })
    }
}

/// `remuda.db` has its logs in `remuda-logs.db`.
fn logs_path(database: &Path) -> PathBuf {
    let stem = database.file_stem().unwrap_or_default().to_string_lossy();
    let extension = database.extension().map_or(String::new(), |extension| format!(".{}", extension.to_string_lossy()));
    database.with_file_name(format!("{stem}-logs{extension}"))
}

/// Starts the thread that exchanges hints with other processes.
fn start_hints(serve: impl Future<Output = ()> + Send + 'static) -> Result<(), Failure> {
    let trouble = |e: std::io::Error| Trouble::internal(format!("cannot start a thread: {e}"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(trouble)?;
    let thread = std::thread::Builder::new().name("store-hints".to_owned());
    thread.spawn(move || runtime.block_on(serve)).map_err(trouble)?;
    Ok(())
}

fn context(
    options: &Options,
    mark: Option<IdMark>,
    crash: Option<CrashHook>,
    others: Option<UnboundedSender<BTreeSet<Hint>>>,
) -> Arc<Context> {
    Arc::new(Context {
        clock: options.clock.clone(),
        ids: Ids::new(options.first_id, mark),
        hints: Hints::new(others),
        crash,
        observe: options.observe.clone(),
        disk_full: AtomicBool::new(false),
        lease_ms: options.lease_ms,
        group: options.group.max(1),
        recorder: options.recorder.clone(),
        reuse: options.reuse,
        tally: Tally::default(),
    })
}
