//! The writer thread of a SQLite file: runs queued closures in groups, one transaction for each group. The only place that sends
//! BEGIN IMMEDIATE and COMMIT to SQLite. Callers are answered after the sync of their commit (`durable`).

use crate::checkpoint::{Asks, Checkpoints};
use crate::conn::{Conn, lite_failure};
use crate::crash::{self, Moment};
use crate::durable::{Committed, Durable};
use crate::fatal::end_process;
use crate::group_limit::GroupLimit;
use crate::ids::TAKE_BLOCK;
use crate::migrate::Part;
use crate::queue::{Job, Queue, run_caught};
use crate::tx::{Context, Tx};
use crate::{Hint, inline};
use model::bug;
use model::{Failure, Refused, Trouble, TroubleKind, crash_point};
use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Number of groups that run each closure in a savepoint after one failed after writing: such failures seldom come alone.
const GROUPS_APART: u32 = 64;
/// Prepared statements that a connection keeps. There are about 200 texts, and of an insert of many rows one for each number of rows.
const CACHED_STATEMENTS: usize = 1024;

/// The connection that writes. There is one per file.
pub(crate) struct Writer {
    conn: Option<Conn>,
    context: Arc<Context>,
    part: Part,
    words: &'static Words,
    /// Number of groups to come whose closures run in savepoints.
    apart: u32,
    group_limit: GroupLimit,
    /// Files only: requests for checkpoints.
    asks: Option<Asks>,
    /// Files with grouped commits only: syncs and then answers. Otherwise COMMIT itself syncs.
    durable: Option<Arc<Durable>>,
    /// The connection's count of changed rows when the open transaction began.
    changes_before: u64,
}

/// The statements that begin, commit and roll back a transaction.
struct Words {
    begin: &'static str,
    keep: &'static str,
    take_back: &'static [&'static str],
    /// An outer transaction is always open, so reads need not begin one.
    inside: bool,
}

const OWN: Words = Words { begin: "BEGIN IMMEDIATE", keep: "COMMIT", take_back: &["ROLLBACK"], inside: false };
/// Savepoints inside an outer transaction, which is rolled back when an inline store is closed.
const INSIDE: Words =
    Words { begin: "SAVEPOINT one", keep: "RELEASE one", take_back: &["ROLLBACK TO one", "RELEASE one"], inside: true };

/// A closure that has run in a group.
pub(crate) struct Ran {
    job: Box<dyn Job>,
    verdict: Result<(), Failure>,
    hints: BTreeSet<Hint>,
    out_of_ids: bool,
}

/// How a group may go on.
enum Filled {
    Well,
    /// SQLite has rolled back the transaction, as it does on a full disk.
    Ended,
    /// The last closure failed after it had written: its rows are in the same transaction as those of the others.
    Spoilt,
}

impl Writer {
    pub(crate) fn new(conn: Connection, context: Arc<Context>, part: Part) -> Writer {
        Writer::of(conn, context, part, &OWN)
    }

    fn of(conn: Connection, context: Arc<Context>, part: Part, words: &'static Words) -> Writer {
        let group_limit = GroupLimit::new(context.group);
        Writer {
            conn: Some(Conn::Lite(conn)),
            context,
            part,
            words,
            apart: 0,
            group_limit,
            asks: None,
            durable: None,
            changes_before: 0,
        }
    }

    /// The thread that serves `checkpoints` checkpoints the WAL of this writer.
    pub(crate) fn copied_by(mut self, checkpoints: Arc<Checkpoints>) -> Writer {
        self.asks = Some(Asks::new(checkpoints));
        self
    }

    /// Its commits do not sync: `durable` does, and then answers. The page cache of 8 MB holds the ends of all tables and indexes.
    pub(crate) fn answered_by(mut self, durable: Arc<Durable>) -> Result<Writer, Failure> {
        self.lite()
            .execute_batch("PRAGMA synchronous = NORMAL; PRAGMA cache_size = -8192")
            .map_err(|e| lite_failure(e, "PRAGMA"))?;
        self.durable = Some(durable);
        Ok(self)
    }

    /// For an inline store: see `inline`.
    pub(crate) fn inline(context: Arc<Context>, part: Part) -> Result<Writer, Failure> {
        let conn = inline::open(&part, context.reuse)?;
        Ok(Writer::of(conn, context, part, &INSIDE))
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Until the queue is closed and empty.
    pub(crate) fn serve(mut self, queue: &Queue) {
        while let Some(first) = queue.wait(3) {
            let (mut first, waited) = (Some(first), 1 + queue.waiting());
            self.group(waited, &|| queue.waiting() > 0, &mut || first.take().or_else(|| queue.take()));
            if let (Some(asks), Some(Conn::Lite(lite))) = (&mut self.asks, &self.conn) {
                asks.request_if_due(lite);
            }
        }
        self.durable.iter().for_each(|durable| durable.close());
    }

    /// Runs queued closures without waiting for more, commits once, then has the callers answered. `waited`: how many were queued when
    /// it began. `more`: whether closures are queued for the next group.
    fn group(&mut self, waited: usize, more: &dyn Fn() -> bool, next: &mut dyn FnMut() -> Option<Box<dyn Job>>) {
        if let Err(failure) = self.begin() {
            return next().into_iter().for_each(|job| self.refuse(job, &failure));
        }
        let apart = self.apart > 0;
        self.apart = self.apart.saturating_sub(1);
        let (group, filled) = self.fill(apart, waited, next);
        match filled {
            Filled::Well => match self.timed_commit(&group) {
                // After a group of several the next closures are near: the writer should not wait for the sync.
                Ok(number) => {
                    let busy = group.len() > 1 || more();
                    self.settle(number, group, busy);
                }
                Err(_) => self.again(group),
            },
            Filled::Ended => self.again(group),
            Filled::Spoilt => {
                self.tell("ROLLBACK");
                self.apart = GROUPS_APART;
                if group.len() == 1 {
                    return self.settle(None, group, more()); // only its own rows were rolled back
                }
                let mut jobs = group.into_iter().map(|ran| ran.job);
                while let Some(first) = jobs.next() {
                    let mut first = Some(first);
                    self.group(1 + jobs.len(), more, &mut || first.take().or_else(|| jobs.next()));
                }
            }
        }
    }

    /// Runs closures in the open transaction. `apart`: each in a savepoint, so that the rows of one that fails can be rolled back alone.
    /// A savepoint copies every page that is touched, a fifth of the time of a submission, and closures rarely fail after they have
    /// written: so savepoints are used only for a while after one did.
    #[expect(clippy::disallowed_methods, reason = "measures the group; the closures do not see it")]
    fn fill(
        &mut self,
        apart: bool,
        waited: usize,
        next: &mut dyn FnMut() -> Option<Box<dyn Job>>,
    ) -> (Vec<Ran>, Filled) {
        let (started, mut group) = (Instant::now(), Vec::new());
        while self.group_limit.takes_more(group.len(), waited, started.elapsed()) {
            let Some(job) = next() else { break };
            if apart {
                self.tell("SAVEPOINT closure");
            }
            let before = self.lite().total_changes();
            let ran = self.run(job);
            let undone = ran.verdict.is_err() || ran.job.reads();
            let spoilt = undone && !apart && self.lite().total_changes() != before;
            if apart {
                if undone {
                    self.tell("ROLLBACK TO closure");
                }
                self.tell("RELEASE closure");
            }
            group.push(ran);
            if self.lite().is_autocommit() && !bug!(ended_transaction_unseen) {
                return (group, Filled::Ended);
            }
            if spoilt {
                return (group, Filled::Spoilt);
            }
        }
        (group, Filled::Well)
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "measures the commit, for the size of groups; the closures do not see it"
    )]
    fn timed_commit(&mut self, group: &[Ran]) -> Result<Option<u64>, Failure> {
        let began = Instant::now();
        let number = self.commit(group)?;
        self.group_limit.commit_took(began.elapsed());
        Ok(number)
    }

    /// The group's transaction was rolled back: each closure runs again in a transaction of its own.
    fn again(&mut self, group: Vec<Ran>) {
        for ran in group {
            self.alone(ran.job);
        }
    }

    /// A transaction of one closure.
    pub(crate) fn alone(&mut self, job: Box<dyn Job>) {
        if self.words.inside && job.reads() {
            let ran = self.run(job);
            return self.settle(None, vec![ran], false);
        }
        if let Err(failure) = self.begin() {
            return self.refuse(job, &failure);
        }
        let (mut ran, mut number) = (self.run(job), None);
        if self.lite().is_autocommit() {
            ran.verdict = Err(disk_full());
        } else if ran.verdict.is_err() || ran.job.reads() {
            self.take_back();
        } else {
            match self.commit(std::slice::from_ref(&ran)) {
                Ok(committed) => number = committed,
                Err(failure) => ran.verdict = Err(failure),
            }
        }
        self.settle(number, vec![ran], false);
    }

    /// BEGIN failed: answers with that failure.
    fn refuse(&self, job: Box<dyn Job>, failure: &Failure) {
        let verdict = Err(failure.clone());
        self.context.learn(&verdict, job.reads());
        job.answer(verdict);
    }

    /// Runs one closure. After a refusal or a panic the caller rolls back its rows.
    fn run(&mut self, mut job: Box<dyn Job>) -> Ran {
        let mut tx = Tx::new(
            self.conn.take().expect("the writer has its connection between closures"),
            self.context.clone(),
            job.access(),
        );
        let result = run_caught(&mut *job, &mut tx);
        let ended = tx.end();
        self.conn = Some(ended.conn);
        // A closure that ignored a statement's error has not succeeded.
        let verdict = result.and(ended.broken.map_or(Ok(()), Err));
        Ran { job, verdict, hints: ended.hints, out_of_ids: ended.out_of_ids }
    }

    fn begin(&mut self) -> Result<(), Failure> {
        self.take_ids()?;
        self.changes_before = self.lite().total_changes();
        word(self.lite(), self.words.begin).map_err(|e| lite_failure(e, "BEGIN"))
    }

    fn take_back(&self) {
        self.words.take_back.iter().for_each(|words| self.tell(words));
    }

    /// Commits, or rolls back. An I/O error here ends the process (see `fatal`). Returns the number of the commit if it must be synced.
    fn commit(&mut self, group: &[Ran]) -> Result<Option<u64>, Failure> {
        let wrote = || group.iter().filter(|ran| ran.verdict.is_ok() && !ran.job.reads());
        for ran in wrote() {
            if crash::reached(self.context.crash.as_ref(), ran.job.name(), Moment::Before) {
                self.take_back();
                return Err(Trouble::internal("crashed before the commit").into());
            }
        }
        if bug!(hint_before_commit) {
            self.context.hints.committed(group.iter().flat_map(|ran| ran.hints.clone()).collect());
        }
        let wrote_rows = self.lite().total_changes() != self.changes_before;
        let number = self.durable.as_ref().filter(|_| wrote_rows).map(|durable| durable.begins());
        if let Err(error) = word(self.lite(), self.words.keep) {
            if error.sqlite_error_code() == Some(ErrorCode::SystemIoFailure) {
                end_process(error);
            }
            self.take_back();
            self.settle(number, Vec::new(), true); // its number counts as synced: it wrote nothing
            return Err(lite_failure(error, "COMMIT"));
        }
        if wrote().next().is_some() {
            self.context.tally.committed(!self.part.has_ids());
        }
        for ran in wrote() {
            if crash::reached(self.context.crash.as_ref(), ran.job.name(), Moment::After) {
                return Err(Trouble::internal("crashed after the commit").perhaps().into());
            }
        }
        Ok(number)
    }

    /// After the commit: answers the callers once it, and every commit that they can have read, is synced. A closure that ran out of ids wrote
    /// nothing and runs again.
    fn settle(&mut self, number: Option<u64>, group: Vec<Ran>, has_more_to_do: bool) {
        let (dry, group): (Vec<Ran>, Vec<Ran>) = group.into_iter().partition(|ran| ran.out_of_ids);
        match &self.durable {
            Some(durable) if number.is_some() || !durable.has_reached(durable.seen()) => {
                durable.then_answer(Committed { number: durable.seen(), group }, has_more_to_do);
            }
            _ => release(&self.context, group),
        }
        self.again(dry);
    }

    /// Reserves a block of ids, in a transaction of its own, before the next one begins.
    fn take_ids(&mut self) -> Result<(), Failure> {
        if let Some(size) = self.context.ids.short_of().filter(|_| self.part.has_ids()) {
            let conn = self.conn.as_mut().expect("the writer has its connection between closures");
            let rows = crash_point!("ids.take", conn.rows(&TAKE_BLOCK, &self.context.ids.asked(size)))?;
            self.context.ids.add(rows[0].int(0)?, size)?;
            self.context.tally.committed(false);
        }
        Ok(())
    }

    fn lite(&self) -> &Connection {
        self.conn.as_ref().expect("the writer has its connection between closures").lite()
    }

    /// A statement that fails only if SQLite has already ended the transaction, which the callers check.
    fn tell(&self, words: &str) {
        let _ = word(self.lite(), words);
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        if let (true, Some(Conn::Lite(lite))) = (self.words.inside, self.conn.take()) {
            inline::close(&self.part, lite, self.context.reuse);
        }
    }
}

/// Sends the answers and hints of a group that is synced, or that has written nothing.
pub(crate) fn release(context: &Context, group: Vec<Ran>) {
    let mut hints = BTreeSet::new();
    for ran in group {
        if ran.verdict.is_ok() && !bug!(hint_before_commit) {
            hints.extend(ran.hints);
        }
        context.learn(&ran.verdict, ran.job.reads());
        ran.job.answer(ran.verdict);
    }
    crash_point!("hints.tell", context.hints.committed(hints));
}

/// Runs a statement without arguments, such as COMMIT, from the statement cache.
pub(crate) fn word(lite: &Connection, words: &str) -> rusqlite::Result<()> {
    lite.prepare_cached(words)?.execute([]).map(drop)
}

/// Opens the file for its one writer, and migrates it.
pub(crate) fn open_writer(path: &Path, part: &Part) -> Result<Connection, Failure> {
    let mut conn = Connection::open(path).map_err(|e| cannot_open(path, e))?;
    set_up(&conn).map_err(|e| cannot_open(path, e))?;
    let mode: String =
        conn.query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0)).map_err(|e| cannot_open(path, e))?;
    if mode != "wal" {
        return Err(Trouble::new(
            TroubleKind::Database,
            format!("{} does not support write-ahead logging", path.display()),
        )
        .into());
    }
    part.migrate_lite(&mut conn)?;
    // Pages are written to the WAL at COMMIT only: a transaction that is rolled back leaves nothing there.
    conn.execute_batch("PRAGMA cache_spill = OFF").map_err(|e| cannot_open(path, e))?;
    Ok(conn)
}

/// A database in memory copies each page that a savepoint changes and never reads from a disk: small pages are cheaper.
const SMALL_PAGES: &str = "PRAGMA page_size = 1024";

pub(crate) fn open_memory(part: &Part) -> Result<Connection, Failure> {
    let failed = |e| cannot_open(Path::new(":memory:"), e);
    let mut conn = Connection::open_in_memory().map_err(failed)?;
    conn.execute_batch(SMALL_PAGES).map_err(failed)?;
    set_up(&conn).map_err(failed)?;
    part.migrate_lite(&mut conn)?;
    Ok(conn)
}

pub(crate) fn set_up(conn: &Connection) -> rusqlite::Result<()> {
    conn.set_prepared_statement_cache_capacity(CACHED_STATEMENTS);
    // Otherwise SQLite prepares a statement again when an argument that its plan might depend on changes: half of the time of a claim.
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    conn.busy_timeout(Duration::from_secs(5))?;
    conn.execute_batch("PRAGMA synchronous = FULL; PRAGMA foreign_keys = ON; PRAGMA temp_store = MEMORY; PRAGMA journal_size_limit = 67108864;")
}

pub(crate) fn cannot_open(path: &Path, error: rusqlite::Error) -> Failure {
    if error.sqlite_error_code() == Some(ErrorCode::NotADatabase) {
        return Refused::Conflict { why: format!("{} is not a database of ours", path.display()) }.into();
    }
    let kind = match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => TroubleKind::DiskFull, // its message asks the user to free space
        _ => TroubleKind::Database,
    };
    Trouble::new(kind, format!("cannot open {}: {error}", path.display())).into()
}

fn disk_full() -> Failure {
    Trouble::new(TroubleKind::DiskFull, "the disk of the database is full: free some space").into()
}
