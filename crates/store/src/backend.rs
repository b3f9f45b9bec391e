//! The threads that run the closures of one database. Each owns a connection and takes closures from a queue; an inline store runs
//! them on the caller's thread.

use crate::checkpoint::Checkpoints;
use crate::durable::Durable;
use crate::lite::{self, Writer};
use crate::migrate::{LOGS, MAIN, Part};
use crate::pg::Pg;
use crate::pg_address::Address;
use crate::pg_serve::Server;
use crate::queue::{Access, Closure, Lane, Queue, Reply, Turn};
use crate::reader::{self, InlineReaders};
use crate::tx::{Context, Tx};
use model::{Effect, Failure, Trouble, TroubleKind};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

/// Readers of a SQLite file beside its writer.
const READERS: usize = 4;
/// Connections to a SQLite file for reads on the callers' threads: about as many as the runtime has threads.
const INLINE_READERS: usize = 4;
/// Connections to PostgreSQL for lease renewals and runner reports.
const RESERVED: usize = 2;

pub(crate) enum Backend {
    Inline(Mutex<Writer>),
    Threads(Threads),
}

/// Dropped with the last clone of the store: queued closures still run, then the threads end.
pub(crate) struct Threads {
    writes: Arc<Queue>,
    reads: Arc<Queue>,
    /// Connections for inline reads. SQLite files only.
    inline: Option<InlineReaders>,
    checkpoints: Option<Arc<Checkpoints>>,
    /// SQLite files with grouped commits only: a read may see a commit that is not synced yet, and is answered after that sync.
    durable: Option<Arc<Durable>>,
    threads: Vec<JoinHandle<()>>,
}

impl Backend {
    pub(crate) fn inline(part: Part, context: Arc<Context>) -> Result<Backend, Failure> {
        Ok(Backend::Inline(Mutex::new(Writer::inline(context, part)?)))
    }

    /// A database in memory has one connection: reads and writes share a queue.
    pub(crate) fn memory(part: Part, context: Arc<Context>) -> Result<Backend, Failure> {
        let writer = Writer::new(lite::open_memory(&part)?, context, part);
        let queue = Arc::new(Queue::new());
        let mut threads = Threads::new(&queue, &queue);
        threads.spawn(move || writer.serve(&queue))?;
        Ok(Backend::Threads(threads))
    }

    pub(crate) fn file(path: &Path, part: Part, context: Arc<Context>) -> Result<Backend, Failure> {
        let mut conn = lite::open_writer(path, &part)?;
        let checkpoints = Checkpoints::of(path.to_owned(), &mut conn)?;
        let mut writer = Writer::new(conn, context.clone(), part).copied_by(checkpoints.clone());
        let (writes, reads) = (Arc::new(Queue::new()), Arc::new(Queue::new()));
        let inline = (0..INLINE_READERS).map(|_| reader::open(path)).collect::<Result<_, _>>()?;
        let mut threads = Threads::new(&writes, &reads);
        threads.inline = Some(InlineReaders::new(inline, context.clone()));
        threads.checkpoints = Some(checkpoints.clone());
        threads.spawn(move || checkpoints.serve())?;
        if context.group > 1 {
            let durable = Durable::of(path, context.clone())?;
            threads.durable = Some(durable.clone());
            writer = writer.answered_by(durable.clone())?;
            threads.spawn(move || durable.serve())?;
        }
        threads.spawn(move || writer.serve(&writes))?;
        for _ in 0..READERS {
            let (conn, context, reads) = (reader::open(path)?, context.clone(), reads.clone());
            threads.spawn(move || reader::serve(conn, context, &reads))?;
        }
        Ok(Backend::Threads(threads))
    }

    /// One pool for reads and writes. Some connections serve the high lane only, so that a lease renewal never waits behind bulk work.
    pub(crate) fn postgres(address: &Address, connections: usize, context: Arc<Context>) -> Result<Backend, Failure> {
        migrate(address.clone())?;
        let queue = Arc::new(Queue::by_run());
        let mut threads = Threads::new(&queue, &queue);
        for i in 0..connections.max(1) + RESERVED {
            let (server, queue) = (Server::new(address.clone(), context.clone())?, queue.clone());
            let lanes = if i < RESERVED { 1 } else { 3 };
            threads.spawn(move || server.serve(&queue, lanes))?;
        }
        Ok(Backend::Threads(threads))
    }

    /// On an inline backend the closure has run when this is first polled.
    pub(crate) async fn ask<T, F>(
        &self,
        turn: impl Into<Turn>,
        name: &'static str,
        access: Access,
        f: F,
    ) -> Result<T, Failure>
    where
        T: Send + 'static,
        F: Fn(&mut Tx) -> Result<T, Failure> + Send + 'static,
    {
        let Backend::Threads(threads) = self else { return self.now(name, access, f) };
        let (job, answer) = Closure::boxed(name, turn.into(), access, f);
        let reads = access != Access::Write;
        if reads { &threads.reads } else { &threads.writes }.push(job);
        threads.answered(answer, reads).await
    }

    /// A few rows by their keys. On a SQLite file they are read on the caller's thread: handing them to a reader thread takes several
    /// times as long as the read. If all inline connections are in use, a reader thread does it.
    pub(crate) async fn read_inline<T, F>(&self, name: &'static str, f: F) -> Result<T, Failure>
    where
        T: Send + 'static,
        F: Fn(&mut Tx) -> Result<T, Failure> + Send + 'static,
    {
        let Backend::Threads(threads) = self else { return self.now(name, Access::PointRead, f) };
        let (job, answer) = Closure::boxed(name, Lane::Normal.into(), Access::PointRead, f);
        let left = match &threads.inline {
            Some(inline) => inline.read(job),
            None => Some(job),
        };
        if let Some(job) = left {
            threads.reads.push(job);
        }
        threads.answered(answer, true).await
    }

    pub(crate) fn now<T, F>(&self, name: &'static str, access: Access, f: F) -> Result<T, Failure>
    where
        T: Send + 'static,
        F: Fn(&mut Tx) -> Result<T, Failure> + Send + 'static,
    {
        let Backend::Inline(writer) = self else {
            panic!("{name}: only an inline store runs closures on the caller's thread")
        };
        let (job, mut answer) = Closure::boxed(name, Lane::Normal.into(), access, f);
        let context = {
            let mut writer = writer.lock().expect("panics of closures are caught");
            writer.alone(job);
            writer.context().clone()
        };
        let result = answer.try_recv().unwrap_or_else(|_| Err(closed()));
        let wrote = match &result {
            Ok(_) => access == Access::Write,
            Err(Failure::Trouble(trouble)) => trouble.effect == Effect::Perhaps,
            Err(Failure::Refused(_)) => false,
        };
        if let Some(observe) = context.observe.as_ref().filter(|_| wrote) {
            observe();
        }
        result
    }
}

impl Threads {
    fn new(writes: &Arc<Queue>, reads: &Arc<Queue>) -> Threads {
        Threads {
            writes: writes.clone(),
            reads: reads.clone(),
            inline: None,
            checkpoints: None,
            durable: None,
            threads: Vec::new(),
        }
    }

    /// The answer of a closure, after everything that it can have read is synced.
    async fn answered<T>(&self, answer: Reply<T>, reads: bool) -> Result<T, Failure> {
        let answer = answer.await.unwrap_or_else(|_| Err(closed()));
        if let Some(durable) = self.durable.as_ref().filter(|_| reads) {
            durable.read().await;
        }
        answer
    }

    fn spawn(&mut self, serve: impl FnOnce() + Send + 'static) -> Result<(), Failure> {
        // Panics of closures are caught (`run_caught`). Any other panic would leave a store that never answers: abort.
        let serve = move || {
            if catch_unwind(AssertUnwindSafe(serve)).is_err() {
                std::process::abort();
            }
        };
        let thread = std::thread::Builder::new().name("store".to_owned()).spawn(serve);
        self.threads.push(thread.map_err(|e| Trouble::internal(format!("cannot start a thread: {e}")))?);
        Ok(())
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.writes.close();
        self.reads.close();
        self.checkpoints.iter().for_each(|checkpoints| checkpoints.close());
        // The last owner may be a closure on one of these threads. Others may wait for that one to end, so none is joined then.
        let current = std::thread::current().id();
        let from_inside = self.threads.iter().any(|thread| thread.thread().id() == current);
        for thread in self.threads.drain(..).filter(|_| !from_inside) {
            let _ = thread.join();
        }
    }
}

/// On a thread of its own: the caller may be inside a tokio runtime already, where another cannot be driven.
fn migrate(address: Address) -> Result<(), Failure> {
    let migrating = std::thread::spawn(move || {
        let mut pg = Pg::new(address)?;
        MAIN.migrate_pg(&mut pg)?;
        LOGS.migrate_pg(&mut pg)
    });
    migrating.join().unwrap_or_else(|_| Err(Trouble::internal("migrating the database panicked").into()))
}

fn closed() -> Failure {
    Trouble::new(TroubleKind::Database, "the store was closed").into()
}
