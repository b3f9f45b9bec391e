//! Rows of runs. A run's row is the lock of everything below it.

use crate::post::Meaning;
use crate::sql::{Rank, Sql};
use crate::tx::Tx;
use crate::value::Row;
use crate::{Hint, args, doc};
use model::allocation::Allocation;
use model::attempt::{Attempt, TreeCounters};
use model::instance::Instance;
use model::job::Job;
use model::log::LogId;
use model::run::{Run, RunStatus};
use model::spec::RunContent;
use model::{Failure, OrgId, QuestionId, Refused, RunId, Timestamp};

/// A new run. What it works with is written here, and never again.
pub fn insert(tx: &mut Tx, run: &Run, content: &RunContent) -> Result<(), Failure> {
    tx.hint(Hint::Rows(run.id));
    let open = !run.status.is_end();
    let row = args![
        run.id,
        run.org,
        &run.name,
        run.status.as_str(),
        run.attempt,
        open,
        run.created_at,
        run.deleted_at,
        run.last_at,
        run.version,
        doc::write(run)
    ];
    let why = format!("a run named `{}` is open already: choose another --name or wait for its end", run.name);
    tx.post_meaning(&INSERT, row, Meaning::conflict(Refused::Conflict { why }))?;
    let command = content.command.shown();
    let found_by: String = format!("{}\n{command}", run.name).chars().take(FOUND_BY).collect();
    tx.post(&INSERT_CONTENT, args![run.id, doc::write(content), found_by.to_lowercase()])
}

/// Characters of a run that a search looks through.
const FOUND_BY: usize = 2_048;
/// How many of the newest runs it looks through.
pub const SEARCHED: i64 = 10_000;

/// Of the newest [`SEARCHED`] runs, those of this kind whose name or command holds this text in any case, as they are shown.
pub fn page_found(
    tx: &mut Tx,
    org: OrgId,
    (which, text): (Which, &str),
    before: i64,
    limit: i64,
) -> Result<Vec<Shown>, Failure> {
    let at = submitted(tx, before)?;
    let oldest = tx.row(&NEWEST_FROM, &args![org, SEARCHED - 1])?;
    let (from_at, from) = oldest.map_or(Ok((i64::MIN, 0)), |row| Ok::<_, Failure>((row.int(0)?, row.int(1)?)))?;
    let escaped = |c: char| "!%_".contains(c).then_some('!').into_iter().chain([c]);
    let like: String = text.to_lowercase().chars().flat_map(escaped).collect();
    let which = match which {
        Which::All => "all",
        Which::Open => "open",
        Which::Of(status) => status.as_str(),
    };
    let rows = tx.rows(&SHOWN_FOUND, &args![org, at, before, limit, format!("%{like}%"), from_at, from, which])?;
    let shown: Vec<Shown> = rows.iter().map(read_shown).collect::<Result<_, _>>()?;
    shown.into_iter().map(|shown| with_goal(tx, shown)).collect()
}

/// What a run works with.
pub fn content(tx: &mut Tx, id: RunId) -> Result<RunContent, Failure> {
    let row = tx.row(&CONTENT, &args![id])?.ok_or_else(|| Refused::not_found("run", id))?;
    doc::read_once(&row, 0)
}

/// A run with what it works with, by one statement.
pub fn find_with_content(tx: &mut Tx, id: RunId) -> Result<Option<(Run, RunContent)>, Failure> {
    let row = tx.row(&FIND_WITH_CONTENT, &args![id])?;
    row.map(|row| Ok((doc::read_once(&row, 0)?, doc::read_once(&row, 1)?))).transpose()
}

/// Compare-and-set by version. The caller holds the row's lock, so losing means a bug or a changed hand.
pub fn save(tx: &mut Tx, run: &Run) -> Result<(), Failure> {
    tx.hint(Hint::Rows(run.id));
    let mut next = run.clone();
    next.version += 1;
    let open = !next.status.is_end() && next.deleted_at.is_none();
    let row = args![
        next.id,
        run.version,
        next.status.as_str(),
        next.attempt,
        open,
        next.deleted_at,
        next.last_at,
        next.version,
        doc::write(&next)
    ];
    tx.post_meaning(&SAVE, row, Meaning::no_row(Refused::Stale { what: "the run" }))
}

/// The run, locked: the first thing a transaction about a run does.
pub fn lock(tx: &mut Tx, id: RunId) -> Result<Run, Failure> {
    let row = tx.row(&LOCK, &args![id])?.ok_or_else(|| Refused::not_found("run", id))?;
    let run: Run = doc::read(&row, 0)?;
    tx.not_before(run.last_at);
    Ok(run)
}

pub fn find(tx: &mut Tx, id: RunId) -> Result<Option<Run>, Failure> {
    tx.row(&FIND, &args![id])?.map(|row| doc::read(&row, 0)).transpose()
}

/// Each of these runs, if it is there, and what its attempt counts: enough to see that nothing is to be done. Locks nothing, and all
/// are asked for at once.
pub fn read_inline(tx: &mut Tx, ids: &[RunId]) -> Result<Vec<Option<(Run, TreeCounters)>>, Failure> {
    let asked: Vec<_> = ids.iter().map(|id| (&SNAPSHOT, args![*id].to_vec())).collect();
    let read = |row: &Row| Ok((doc::read_once(row, 0)?, doc::read_opt(row, 1)?.unwrap_or_default()));
    let read = |rows: Vec<Row>| rows.first().map(read).transpose();
    tx.rows_of_each(&asked)?.into_iter().map(read).collect()
}

/// The run of each of these jobs, deleted or not; all are asked for at once.
pub fn of_logs(tx: &mut Tx, logs: &[LogId]) -> Result<Vec<Option<Run>>, Failure> {
    let of = |log: &LogId| match log {
        LogId::Job(job) => (&OF_JOB, args![*job].to_vec()),
        LogId::Step(step) => (&OF_STEP, args![step.id].to_vec()),
    };
    let asked: Vec<_> = logs.iter().map(of).collect();
    let read = |rows: Vec<Row>| rows.first().map(|row| doc::read_once(row, 0)).transpose();
    tx.rows_of_each(&asked)?.into_iter().map(read).collect()
}

/// The open run of that name, else the newest by time. Ids are not in the order of time: each process takes them from its own block.
pub fn by_name(tx: &mut Tx, org: OrgId, name: &str) -> Result<Option<Run>, Failure> {
    tx.row(&BY_NAME, &args![org, name])?.map(|row| doc::read(&row, 0)).transpose()
}

/// When the run that a page begins behind was submitted. Newest first is by that: ids come from each process's own block.
fn submitted(tx: &mut Tx, before: i64) -> Result<i64, Failure> {
    if before == i64::MAX {
        return Ok(i64::MAX);
    }
    let row = tx.row(&SUBMITTED, &args![before])?;
    row.ok_or_else(|| Refused::invalid("cursor", "names no run: begin again without it"))?.int(0)
}

/// Runs submitted before the run `before` (newest first), at most `limit`; deleted ones are not shown.
pub fn page(tx: &mut Tx, org: OrgId, open_only: bool, before: i64, limit: i64) -> Result<Vec<Run>, Failure> {
    let sql = if open_only { &PAGE_OPEN } else { &PAGE };
    let at = submitted(tx, before)?;
    doc::page(tx.rows(sql, &args![org, at, before, limit])?, 0)
}

/// A run with what is shown beside it: its attempt's money, its last job, and where that was.
#[derive(Debug, Clone)]
pub struct Shown {
    pub run: Run,
    pub content: RunContent,
    pub attempt: Option<Attempt>,
    pub job: Option<Job>,
    pub allocation: Option<Allocation>,
    pub instance: Option<Instance>,
    /// The last heartbeat of the worker that holds the item of an open run, or of any worker while none holds it, because each of them
    /// may claim it (R141). An old heartbeat means that no worker drives the run.
    pub beat_at: Option<Timestamp>,
    /// The oldest ticket about one of its steps that is not resolved.
    pub ticket: Option<QuestionId>,
    /// What a planner makes its plan for.
    pub goal: Option<String>,
}

/// Which runs a page is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Which {
    Open,
    All,
    Of(RunStatus),
}

/// A page of runs as they are shown, by one statement however many there are. Shorter than `limit` only if it is the last.
pub fn page_shown(tx: &mut Tx, org: OrgId, which: Which, before: i64, limit: i64) -> Result<Vec<Shown>, Failure> {
    let at = submitted(tx, before)?;
    let rows = match which {
        Which::Open => tx.rows(&SHOWN_OPEN, &args![org, at, before, limit]),
        Which::All => tx.rows(&SHOWN, &args![org, at, before, limit]),
        Which::Of(status) => tx.rows(&SHOWN_OF, &args![org, at, before, limit, status.as_str()]),
    };
    let shown: Vec<Shown> = rows?.iter().map(read_shown).collect::<Result<_, _>>()?;
    shown.into_iter().map(|shown| with_goal(tx, shown)).collect()
}

/// Few runs have a goal, and it may be long: it is read beside.
fn with_goal(tx: &mut Tx, shown: Shown) -> Result<Shown, Failure> {
    let goal = if shown.run.spec.plan.goal { crate::plan::shared(tx, shown.run.id)?.goal } else { None };
    Ok(Shown { goal, ..shown })
}

pub fn find_shown(tx: &mut Tx, id: RunId) -> Result<Option<Shown>, Failure> {
    match tx.row(&SHOWN_ONE, &args![id])? {
        Some(row) => read_shown(&row).and_then(|shown| with_goal(tx, shown)).map(Some),
        None => Ok(None),
    }
}

fn read_shown(row: &Row) -> Result<Shown, Failure> {
    let run: Run = doc::read_once(row, 0)?;
    let attempt = match row.opt_text(1)? {
        None => None,
        Some(_) => Some(crate::attempt::read_at(row, 1, run.id, run.attempt)?),
    };
    let mut instance: Option<Instance> = doc::read_opt(row, 10)?;
    if let Some(instance) = &mut instance {
        instance.last_seen_at = row.opt_at(11)?; // newer than the document
    }
    let beat_at = row.opt_at(12)?.filter(|at| at.ms() > 0 && run.status != RunStatus::Created);
    let (job, allocation) = (doc::read_opt(row, 8)?, doc::read_opt(row, 9)?);
    let ticket = row.opt_int(14)?.map(QuestionId);
    Ok(Shown {
        attempt,
        job,
        allocation,
        instance,
        beat_at,
        content: doc::read_once(row, 13)?,
        ticket,
        goal: None,
        run,
    })
}

/// Ids after `after`, for the audit: deleted ones too.
pub fn ids_after(tx: &mut Tx, after: i64, limit: i64) -> Result<Vec<RunId>, Failure> {
    tx.rows(&IDS, &args![after, limit])?.iter().map(|row| row.int(0).map(RunId)).collect()
}

pub fn count_open(tx: &mut Tx) -> Result<i64, Failure> {
    tx.row(&COUNT_OPEN, &args![])?.expect("a count is a row").int(0)
}

/// The columns, for the audit to compare with the document: (status, attempt, open, version).
pub fn columns(tx: &mut Tx, id: RunId) -> Result<Option<(String, i64, bool, i64)>, Failure> {
    let row = tx.row(&COLUMNS, &args![id])?;
    row.map(|row| Ok((row.text(0)?, row.int(1)?, row.flag(2)?, row.int(3)?))).transpose()
}

pub(crate) const ALL: &[&Sql] = &[
    &INSERT,
    &INSERT_CONTENT,
    &CONTENT,
    &FIND_WITH_CONTENT,
    &SAVE,
    &LOCK,
    &FIND,
    &SNAPSHOT,
    &OF_JOB,
    &OF_STEP,
    &BY_NAME,
    &PAGE,
    &PAGE_OPEN,
    &SUBMITTED,
    &IDS,
    &COUNT_OPEN,
    &COLUMNS,
    &SHOWN,
    &SHOWN_OPEN,
    &SHOWN_OF,
    &SHOWN_ONE,
    &SHOWN_FOUND,
    &NEWEST_FROM,
];

const INSERT: Sql = Sql::new(
    "INSERT INTO runs (id, org_id, name, status, attempt, open, created_at, deleted_at, last_at, version, doc)
     VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)",
);
const INSERT_CONTENT: Sql = Sql::new("INSERT INTO run_contents (run_id, doc, found_by) VALUES ($1, $2, $3)");
const CONTENT: Sql = Sql::new("SELECT doc FROM run_contents WHERE run_id = $1");
const FIND_WITH_CONTENT: Sql =
    Sql::new("SELECT r.doc, c.doc FROM runs r JOIN run_contents c ON c.run_id = r.id WHERE r.id = $1");
const SAVE: Sql = Sql::new(
    "UPDATE runs SET status = $3, attempt = $4, open = $5, deleted_at = $6, last_at = $7, version = $8, doc = $9
      WHERE id = $1 AND version = $2",
);
const LOCK: Sql = Sql::new("SELECT doc FROM runs WHERE id = $1").no_key_update().locks(Rank::Run);
const FIND: Sql = Sql::new("SELECT doc FROM runs WHERE id = $1");
const SNAPSHOT: Sql = Sql::new(
    "SELECT r.doc, t.tree FROM runs r LEFT JOIN attempts t ON t.run_id = r.id AND t.number = r.attempt WHERE r.id = $1",
);
const OF_JOB: Sql = Sql::new("SELECT r.doc FROM jobs j JOIN runs r ON r.id = j.run_id WHERE j.id = $1");
const OF_STEP: Sql = Sql::new("SELECT r.doc FROM steps s JOIN runs r ON r.id = s.run_id WHERE s.id = $1");
const BY_NAME: Sql = Sql::new(
    "SELECT doc FROM runs
      WHERE org_id = $1 AND name = $2 AND deleted_at IS NULL
      ORDER BY open DESC, created_at DESC, id DESC LIMIT 1",
);
const PAGE: Sql = Sql::new(
    "SELECT doc FROM runs
      WHERE org_id = $1 AND (created_at, id) < ($2, $3) AND deleted_at IS NULL
      ORDER BY created_at DESC, id DESC LIMIT $4",
);
const PAGE_OPEN: Sql = Sql::new(
    "SELECT doc FROM runs
      WHERE org_id = $1 AND (created_at, id) < ($2, $3) AND open = 1
      ORDER BY created_at DESC, id DESC LIMIT $4",
);
const SUBMITTED: Sql = Sql::new("SELECT created_at FROM runs WHERE id = $1");
const IDS: Sql = Sql::new("SELECT id FROM runs WHERE id > $1 ORDER BY id LIMIT $2");
const COUNT_OPEN: Sql = Sql::new("SELECT count(*) FROM runs WHERE open = 1");
const COLUMNS: Sql = Sql::new("SELECT status, attempt, open, version FROM runs WHERE id = $1");

macro_rules! shown {
    ($($condition:literal)+) => {
        Sql::new(concat!(
            "SELECT r.doc, t.status, t.reserved, t.charged, t.refunded, t.uncollected, t.opened_at, t.ended_at, j.doc, a.doc, i.doc, i.last_seen_at,
                    CASE WHEN r.open = 0 THEN NULL WHEN k.id IS NULL THEN (SELECT max(beat_at) FROM workers) ELSE k.beat_at END, c.doc,
                    (SELECT min(id) FROM questions q WHERE q.run_id = r.id AND q.kind = 'ticket' AND q.open = 1)
               FROM runs r
               JOIN run_contents c ON c.run_id = r.id
               LEFT JOIN attempts t ON t.run_id = r.id AND t.number = r.attempt
               LEFT JOIN jobs j ON j.id = (SELECT max(id) FROM jobs WHERE run_id = r.id AND attempt = r.attempt)
               LEFT JOIN allocations a ON a.id = j.allocation_id
               LEFT JOIN instances i ON i.id = j.instance_id
               LEFT JOIN work w ON w.kind = 'run' AND w.subject = r.id AND r.open = 1
               LEFT JOIN workers k ON k.id = w.worker AND k.boot = w.boot
              WHERE ", $($condition),+
        ))
    };
}
const SHOWN: Sql = shown!(
    "r.org_id = $1 AND (r.created_at, r.id) < ($2, $3) AND r.deleted_at IS NULL"
    " ORDER BY r.created_at DESC, r.id DESC LIMIT $4"
);
const SHOWN_OPEN: Sql = shown!(
    "r.org_id = $1 AND (r.created_at, r.id) < ($2, $3) AND r.open = 1"
    " ORDER BY r.created_at DESC, r.id DESC LIMIT $4"
);
const SHOWN_OF: Sql = shown!(
    "r.org_id = $1 AND (r.created_at, r.id) < ($2, $3) AND r.deleted_at IS NULL AND r.status = $5"
    " ORDER BY r.created_at DESC, r.id DESC LIMIT $4"
);
const SHOWN_FOUND: Sql = shown!(
    "r.org_id = $1 AND (r.created_at, r.id) < ($2, $3) AND (r.created_at, r.id) >= ($6, $7) AND r.deleted_at IS NULL"
    " AND c.found_by LIKE $5 ESCAPE '!' AND ($8 = 'all' OR r.status = $8 OR ($8 = 'open' AND r.open = 1)) ORDER BY r.created_at DESC, r.id DESC LIMIT $4"
);
/// The oldest run that a search looks at, if there are so many.
const NEWEST_FROM: Sql = Sql::new(
    "SELECT created_at, id FROM runs WHERE org_id = $1 AND deleted_at IS NULL
      ORDER BY created_at DESC, id DESC LIMIT 1 OFFSET $2",
);
const SHOWN_ONE: Sql = shown!("r.id = $1");
