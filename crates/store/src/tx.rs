//! One transaction as a closure sees it: statements that run at once, and rows that are staged and written at the end in the order
//! of locks (events, ledger, wakes and finishes). Never commits: the thread that runs the closure does.

use crate::conn::{Conn, take_steps};
use crate::crash::{CrashHook, Observer};
use crate::event::NewEvent;
use crate::hint::{Hint, Hints, Topic};
use crate::ids::Ids;
use crate::inline::Reuse;
use crate::ledger::Entry;
use crate::post::{Meaning, Posted};
use crate::queue::Access;
use crate::recorder::{Recorded, Recorder};
use crate::sql::{Lock, Rank, Sql};
use crate::tally::Tally;
use crate::value::{Row, Value};
use crate::work::{Finish, WorkKind};
use crate::{Clock, event, ledger, work};
use model::{Failure, Timestamp, Trouble, TroubleKind};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Rows of one multi-row statement; more are sent in several.
const ROWS_AT_ONCE: usize = 64;
/// What one call of `Store::read_inline` may read.
const POINT_ROWS: usize = 16;
const POINT_BYTES: usize = 64 * 1024;

pub struct Tx {
    conn: Conn,
    context: Arc<Context>,
    access: Access,
    /// What a point read has read so far: rows and bytes.
    rows_read: usize,
    bytes_read: usize,
    /// The time of the transaction; none until it is first asked for.
    at: Option<Timestamp>,
    /// The latest time of a run that was read.
    last: Option<Timestamp>,
    /// The first statement error. Everything after it fails too, on both databases alike, and nothing is committed.
    broken: Option<Failure>,
    ids_used: i64,
    out_of_ids: bool,
    /// The last lock in the order of locks: its rank, and the id of the row.
    locked: Option<(Rank, i64)>,
    /// Work items whose fence this transaction has checked and locked.
    held: BTreeMap<(WorkKind, i64), i64>,
    staged: Staged,
}

/// Shared by all threads of one store.
pub(crate) struct Context {
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) ids: Ids,
    pub(crate) hints: Hints,
    pub(crate) crash: Option<CrashHook>,
    pub(crate) observe: Option<Observer>,
    pub(crate) disk_full: AtomicBool,
    pub(crate) lease_ms: i64,
    pub(crate) group: usize,
    pub(crate) recorder: Option<Recorder>,
    pub(crate) reuse: Option<Reuse>,
    pub(crate) tally: Tally,
}

impl Context {
    /// Notes whether a write found the disk full.
    pub(crate) fn learn(&self, verdict: &Result<(), Failure>, reads: bool) {
        match verdict {
            Ok(()) if !reads => self.disk_full.store(false, Ordering::Relaxed),
            Err(Failure::Trouble(trouble)) if trouble.kind == TroubleKind::DiskFull => {
                self.disk_full.store(true, Ordering::Relaxed);
            }
            _ => {}
        }
    }
}

#[derive(Default)]
struct Staged {
    events: Vec<NewEvent>,
    entries: Vec<Entry>,
    wakes: BTreeMap<(WorkKind, i64), Timestamp>,
    finishes: BTreeMap<(WorkKind, i64), Finish>,
    hints: BTreeSet<Hint>,
}

impl Tx {
    pub(crate) fn new(conn: Conn, context: Arc<Context>, access: Access) -> Tx {
        Tx {
            conn,
            context,
            access,
            rows_read: 0,
            bytes_read: 0,
            at: None,
            last: None,
            broken: None,
            ids_used: 0,
            out_of_ids: false,
            locked: None,
            held: BTreeMap::new(),
            staged: Staged::default(),
        }
    }

    /// The time of this transaction: the store's clock on SQLite, the database's on PostgreSQL.
    pub fn at(&mut self) -> Timestamp {
        let at = self.clock_at();
        self.last.map_or(at, |last| at.max(last))
    }

    /// A run's time never goes backwards, even if the clock does: raises `at()` to `last`, and returns it.
    pub fn not_before(&mut self, last: Timestamp) -> Timestamp {
        self.last = self.last.max(Some(last));
        self.at()
    }

    /// The time of the clock, which may be earlier than the last change of the run if the clock was set back.
    pub(crate) fn clock_at(&mut self) -> Timestamp {
        if let Some(at) = self.at {
            return at;
        }
        let at = self.conn.at().unwrap_or_else(|failure| {
            self.broken.get_or_insert(failure);
            None
        });
        let at = at.unwrap_or_else(|| self.context.clock.now());
        *self.at.insert(at)
    }

    /// How long a lease is valid without a renewal.
    pub(crate) fn lease_ms(&self) -> i64 {
        self.context.lease_ms
    }

    /// Runs a statement; how many rows it changed.
    pub fn exec(&mut self, sql: &Sql, args: &[Value]) -> Result<u64, Failure> {
        debug_assert!(self.access == Access::Write, "a read may not write: {}", sql.text);
        self.ready(sql, args)?;
        self.record(sql, args);
        let result = self.conn.exec(sql, args);
        self.noting(result)
    }

    pub fn rows(&mut self, sql: &Sql, args: &[Value]) -> Result<Vec<Row>, Failure> {
        self.ready(sql, args)?;
        self.record(sql, args);
        let result = self.conn.rows(sql, args);
        self.count(result.as_deref().unwrap_or_default(), sql.text);
        self.noting(result)
    }

    /// The only row, if there is one.
    pub fn row(&mut self, sql: &Sql, args: &[Value]) -> Result<Option<Row>, Failure> {
        let mut rows = self.rows(sql, args)?;
        debug_assert!(rows.len() < 2, "one row was expected from {}", sql.text);
        Ok(rows.pop())
    }

    /// The rows of several independent statements: on PostgreSQL one round trip for all of them.
    pub(crate) fn rows_of_each(&mut self, asked: &[(&Sql, Vec<Value>)]) -> Result<Vec<Vec<Row>>, Failure> {
        if asked.is_empty() {
            return Ok(Vec::new());
        }
        asked.iter().try_for_each(|(sql, args)| self.ready(sql, args))?;
        asked.iter().for_each(|(sql, args)| self.record(sql, args));
        let result = self.conn.rows_of_each(asked);
        for (rows, (sql, _)) in result.iter().flatten().zip(asked) {
            self.count(rows, sql.text);
        }
        self.noting(result)
    }

    /// Runs a statement whose answer the closure does not need: PostgreSQL gets it with the next one that is waited for. An error is
    /// reported then, and ends the transaction like any other.
    pub fn post(&mut self, sql: &Sql, args: impl Into<Vec<Value>>) -> Result<(), Failure> {
        self.post_meaning(sql, args, Meaning::default())
    }

    pub(crate) fn post_meaning(
        &mut self,
        sql: &Sql,
        args: impl Into<Vec<Value>>,
        meaning: Meaning,
    ) -> Result<(), Failure> {
        debug_assert!(self.access == Access::Write, "a read may not write: {}", sql.text);
        debug_assert!(sql.lock == Lock::None, "what locks rows reads them: {}", sql.text);
        let args = args.into();
        self.ready(sql, &args)?;
        self.record(sql, &args);
        let result = self.conn.post(Posted { text: Cow::Borrowed(sql.text), order: sql.order, args, meaning });
        self.noting(result)
    }

    /// Many rows by one statement: `sql` is the insert of a single row, `… VALUES ($1, $2) …`, and is repeated. Posted.
    pub fn insert_many<const N: usize>(&mut self, sql: &Sql, rows: Vec<[Value; N]>) -> Result<(), Failure> {
        self.insert_many_meaning(sql, rows, Meaning::default)
    }

    pub(crate) fn insert_many_meaning<const N: usize>(
        &mut self,
        sql: &Sql,
        rows: Vec<[Value; N]>,
        meaning: impl Fn() -> Meaning,
    ) -> Result<(), Failure> {
        let mut rows = rows.into_iter().peekable();
        while rows.peek().is_some() {
            self.ready(sql, &[])?;
            let args: Vec<Value> = rows.by_ref().take(ROWS_AT_ONCE).flatten().collect();
            let many = args.len() / N;
            let (text, order) = (sql.for_rows(many, N), sql.order.for_rows(many));
            if let Some(recorder) = &self.context.recorder {
                recorder(Recorded::Statement { text: &text, args: &args });
            }
            let result = self.conn.post(Posted { text, order, args, meaning: meaning() });
            self.noting(result)?;
        }
        Ok(())
    }

    /// A unique id. When the process's block of ids is used up, the closure runs again with a larger block.
    pub fn next_id(&mut self) -> i64 {
        debug_assert!(self.access == Access::Write, "a read needs no ids");
        let id = self.context.ids.take(self.ids_used);
        self.ids_used += 1;
        id.unwrap_or_else(|| {
            self.out_of_ids = true;
            self.broken.get_or_insert_with(|| Trouble::internal("the block of ids is used up").into());
            0
        })
    }

    /// An id greater than `floor`, which may come from another process.
    pub fn next_id_after(&mut self, floor: i64) -> i64 {
        self.context.ids.pass(floor);
        self.next_id()
    }

    /// A closure begins: it is counted, and recorded if there is a recorder.
    pub(crate) fn begins(&self, name: &'static str) {
        self.context.tally.ran(name, self.access != Access::Write);
        if let Some(recorder) = &self.context.recorder {
            recorder(Recorded::Closure(name));
        }
    }

    /// Asserts the bounds of a point read: it runs on a thread that serves other requests too, and must not keep it.
    fn count(&mut self, rows: &[Row], text: &str) {
        if cfg!(debug_assertions) && self.access == Access::PointRead {
            self.rows_read += rows.len();
            self.bytes_read += rows.iter().flat_map(|row| &row.0).map(Value::bytes).sum::<usize>();
            debug_assert!(
                self.rows_read <= POINT_ROWS && self.bytes_read <= POINT_BYTES,
                "{} rows and {} bytes are too many for `read_inline`, use `read`: {text}",
                self.rows_read,
                self.bytes_read
            );
        }
    }

    fn record(&self, sql: &Sql, args: &[Value]) {
        if let Some(recorder) = &self.context.recorder {
            recorder(Recorded::Statement { text: &self.conn.text_of(sql), args });
        }
    }

    /// Stages a hint: sent once, after the commit.
    pub fn hint(&mut self, hint: Hint) {
        self.staged.hints.insert(hint);
    }

    /// Makes the work item of this subject due at `at`, or earlier if it already is. Staged: written last in the transaction.
    pub fn wake(&mut self, kind: WorkKind, subject: i64, at: Timestamp) {
        let due = self.staged.wakes.entry((kind, subject)).or_insert(at);
        *due = at.min(*due);
    }

    /// Staged; numbered without gaps in its run's stream (or its org's, without a run) when the transaction ends.
    pub fn event(&mut self, event: NewEvent) {
        self.staged.events.push(event);
    }

    /// Staged; the org's balance moves, and is judged, when the transaction ends.
    pub fn ledger(&mut self, entry: Entry) {
        self.staged.entries.push(entry);
    }

    /// Movements of this transaction that its balances do not show yet.
    pub(crate) fn staged_entries(&self) -> &[Entry] {
        &self.staged.entries
    }

    pub(crate) fn finish(&mut self, item: (WorkKind, i64), finish: Finish) {
        self.staged.finishes.insert(item, finish);
    }

    pub(crate) fn note_held(&mut self, item: (WorkKind, i64), fence: i64) {
        self.held.insert(item, fence);
    }

    pub(crate) fn holds(&self, item: (WorkKind, i64), fence: i64) -> bool {
        self.held.get(&item) == Some(&fence)
    }

    /// Writes what was staged, in the order of locks: the rows that it depends on are read first, by one round trip; its own rows are
    /// posted. Called once, after the closure.
    pub(crate) fn flush(&mut self) -> Result<(), Failure> {
        let staged = std::mem::take(&mut self.staged);
        debug_assert!(
            self.access == Access::Write
                || (staged.events.is_empty() && staged.entries.is_empty() && staged.wakes.is_empty()),
            "a read may not write"
        );
        let mut hints = staged.hints;
        for event in &staged.events {
            hints.extend(event.run.map(Hint::Run));
            hints.extend(event.run.map(|_| Hint::Org(event.org, Topic::Runs)));
        }
        hints.extend(staged.entries.iter().map(|entry| Hint::Org(entry.org, Topic::Money)));
        // What was woken while it was held is due as soon as it is finished.
        let at_once = (!staged.finishes.is_empty()).then_some(Timestamp(0));
        hints.extend(at_once.into_iter().chain(staged.wakes.values().min().copied()).min().map(Hint::Work));
        let streams = event::Streams::of(staged.events);
        let accounts = ledger::Accounts::of(staged.entries);
        // The heads of event streams are always locked before the rows of orgs.
        let mut asked = streams.questions();
        asked.extend(accounts.questions());
        let mut answers = self.rows_of_each(&asked)?.into_iter();
        streams.write(self, &mut answers)?;
        accounts.write(self, &mut answers)?;
        work::flush(self, staged.wakes, staged.finishes)?;
        self.staged.hints = hints;
        Ok(())
    }

    /// Returns the connection, with the hints to send after the commit.
    pub(crate) fn end(self) -> Ended {
        let steps = take_steps();
        if self.access != Access::Write {
            self.context.tally.stepped(steps);
        }
        Ended { conn: self.conn, broken: self.broken, out_of_ids: self.out_of_ids, hints: self.staged.hints }
    }

    fn ready(&mut self, sql: &Sql, args: &[Value]) -> Result<(), Failure> {
        if let Some(rank) = sql.rank {
            let lock = (rank, args.first().and_then(Value::as_int).unwrap_or_default());
            debug_assert!(self.may_lock(lock.0, lock.1), "{lock:?} is locked after {:?}: {}", self.locked, sql.text);
            self.locked = self.locked.max(Some(lock));
        }
        if self.broken.is_none() && !self.conn.in_transaction() {
            // A further statement would be committed by itself.
            self.broken = Some(
                Trouble::new(TroubleKind::DiskFull, "the database ended the transaction: its disk is full").into(),
            );
        }
        self.broken.clone().map_or(Ok(()), Err)
    }

    /// Whether this row may be locked after all those that this transaction has locked.
    pub(crate) fn may_lock(&self, rank: Rank, id: i64) -> bool {
        self.locked.is_none_or(|last| last <= (rank, id))
    }

    fn noting<T>(&mut self, result: Result<T, Failure>) -> Result<T, Failure> {
        if let Err(failure) = &result {
            self.broken.get_or_insert_with(|| failure.clone());
        }
        result
    }
}

pub(crate) struct Ended {
    pub(crate) conn: Conn,
    pub(crate) broken: Option<Failure>,
    pub(crate) out_of_ids: bool,
    pub(crate) hints: BTreeSet<Hint>,
}
