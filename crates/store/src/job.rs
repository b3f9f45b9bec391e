//! Rows of jobs, and the pool's waiting list, which is an index over them.

use crate::post::Meaning;
use crate::sql::Sql;
use crate::tx::Tx;
use crate::{args, doc};
use model::job::{self, Job};
use model::job_counters::JobPick;
use model::pool::Turns;
use model::spec::Priority;
use model::{AgentId, Failure, InstanceId, JobId, OrgId, PoolId, Refused, RunId, Timestamp};

pub fn insert(tx: &mut Tx, job: &Job, priority: Priority) -> Result<(), Failure> {
    let row = args![
        job.id,
        job.org,
        job.run,
        job.attempt,
        job.agent,
        job.status.as_str(),
        !job.status.is_end(),
        job.pool,
        rank(priority),
        job.queue_seq,
        job.turn,
        job.instance,
        job.allocation,
        job.epoch,
        job::can_stop(job),
        freeze(job),
        job.version,
        doc::write(job)
    ];
    tx.post(&INSERT, row)
}

pub fn save(tx: &mut Tx, job: &Job) -> Result<(), Failure> {
    let mut next = job.clone();
    next.version += 1;
    let row = args![
        next.id,
        job.version,
        next.status.as_str(),
        !next.status.is_end(),
        next.pool,
        next.queue_seq,
        next.turn,
        next.instance,
        next.allocation,
        next.epoch,
        job::can_stop(&next),
        freeze(&next),
        next.version,
        doc::write(&next)
    ];
    tx.post_meaning(&SAVE, row, Meaning::no_row(Refused::Stale { what: "the job" }))
}

pub fn find(tx: &mut Tx, id: JobId) -> Result<Option<Job>, Failure> {
    tx.row(&FIND, &args![id])?.map(|row| doc::read(&row, 0)).transpose()
}

/// The freeze state of a job that can be asked to stand still or to go on.
fn freeze(job: &Job) -> Option<&'static str> {
    job::can_move(job).then_some(job.freeze.as_str())
}

/// The open job of an agent, if it has one.
pub fn open_of_agent(tx: &mut Tx, agent: AgentId) -> Result<Option<Job>, Failure> {
    tx.row(&OPEN_OF_AGENT, &args![agent])?.map(|row| doc::read(&row, 0)).transpose()
}

/// Open jobs of an attempt, as many as are meant, in order of their ids.
pub fn pick(tx: &mut Tx, run: RunId, attempt: i64, pick: JobPick, limit: i64) -> Result<Vec<Job>, Failure> {
    let sql = match pick {
        JobPick::Open => &OPEN,
        JobPick::Active => &ACTIVE,
        JobPick::ToStop => &TO_STOP,
        JobPick::ToAbort => &TO_ABORT,
        JobPick::ToHold => &TO_HOLD,
        JobPick::ToRelease => &TO_RELEASE,
    };
    doc::read_all(tx.rows(sql, &args![run, attempt, limit])?, 0)
}

/// Jobs of a run that have ended although their machine's row is open.
pub fn ended_on_open_machines(tx: &mut Tx, run: RunId) -> Result<Vec<Job>, Failure> {
    doc::read_all(tx.rows(&ENDED_ON_OPEN_MACHINES, &args![run])?, 0)
}

pub fn of_run(tx: &mut Tx, run: RunId) -> Result<Vec<Job>, Failure> {
    doc::read_all(tx.rows(&OF_RUN, &args![run])?, 0)
}

/// A job, and the time of its machine's last heartbeat.
#[derive(Debug, Clone)]
pub struct JobWithLastSeen {
    pub job: Job,
    pub last_seen_at: Option<Timestamp>,
}

/// Jobs of a run after this attempt and id, in the order of `of_run`.
pub fn seen_page(tx: &mut Tx, run: RunId, after: (i64, i64), limit: i64) -> Result<Vec<JobWithLastSeen>, Failure> {
    let rows = tx.rows(&SEEN_PAGE, &args![run, after.0, after.1, limit])?;
    rows.iter().map(|row| Ok(JobWithLastSeen { job: doc::read_once(row, 0)?, last_seen_at: row.opt_at(1)? })).collect()
}

/// The open job of an instance, if it has one.
pub fn on_instance(tx: &mut Tx, instance: InstanceId) -> Result<Option<Job>, Failure> {
    tx.row(&ON_INSTANCE, &args![instance])?.map(|row| doc::read(&row, 0)).transpose()
}

/// All open jobs on a machine. There is one at most; the audit looks whether that is so.
pub fn open_on(tx: &mut Tx, instance: InstanceId) -> Result<Vec<Job>, Failure> {
    doc::read_all(tx.rows(&ON_INSTANCE, &args![instance])?, 0)
}

/// The head of a waiting list: which job is placed next, and its turn.
#[derive(Debug, Clone, Copy)]
pub struct Head {
    pub id: JobId,
    pub turn: Option<i64>,
}

/// The first of `waiting`.
pub fn head(tx: &mut Tx, pool: PoolId) -> Result<Option<Head>, Failure> {
    tx.row(&HEAD, &args![pool])?.map(|row| Ok(Head { id: JobId(row.int(0)?), turn: row.opt_int(1)? })).transpose()
}

/// The waiting list of this pool: high priority before normal, then the orgs in turn, then by submission.
pub fn waiting(tx: &mut Tx, pool: PoolId, limit: i64) -> Result<Vec<Job>, Failure> {
    doc::read_all(tx.rows(&WAITING, &args![pool, limit])?, 0)
}

pub fn count_waiting(tx: &mut Tx, pool: PoolId) -> Result<i64, Failure> {
    tx.row(&COUNT_WAITING, &args![pool])?.expect("a count is a row").int(0)
}

/// How many stand before this job in the list; none if it does not wait.
pub fn count_before(tx: &mut Tx, job: &Job, priority: Priority) -> Result<i64, Failure> {
    let row = args![job.pool, rank(priority), job.turn, job.queue_seq];
    tx.row(&COUNT_BEFORE, &row)?.expect("a count is a row").int(0)
}

/// What an org's next turn is counted from. The caller holds the pool's lock.
pub fn turns(tx: &mut Tx, pool: PoolId, priority: Priority, org: OrgId) -> Result<Turns, Failure> {
    let row = tx.row(&TURNS, &args![pool, rank(priority), org])?.expect("aggregates are a row");
    Ok(Turns { served_next: row.opt_int(0)?, latest: row.opt_int(1)?, own_latest: row.opt_int(2)? })
}

fn rank(priority: Priority) -> i64 {
    match priority {
        Priority::High => 0,
        Priority::Normal => 1,
    }
}

pub(crate) const ALL: &[&Sql] = &[
    &INSERT,
    &SAVE,
    &FIND,
    &OPEN_OF_AGENT,
    &OPEN,
    &ACTIVE,
    &TO_STOP,
    &TO_ABORT,
    &TO_HOLD,
    &TO_RELEASE,
    &ENDED_ON_OPEN_MACHINES,
    &OF_RUN,
    &SEEN_PAGE,
    &ON_INSTANCE,
    &HEAD,
    &WAITING,
    &COUNT_WAITING,
    &COUNT_BEFORE,
    &TURNS,
];

const INSERT: Sql = Sql::new(
    "INSERT INTO jobs (id, org_id, run_id, attempt, agent_id, status, open, pool_id, priority, queue_seq, turn, instance_id, allocation_id, epoch, can_stop, freeze_state, version, doc)
     VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18)",
);
const SAVE: Sql = Sql::new(
    "UPDATE jobs SET status = $3, open = $4, pool_id = $5, queue_seq = $6, turn = $7, instance_id = $8, allocation_id = $9, epoch = $10, can_stop = $11, freeze_state = $12, version = $13, doc = $14
      WHERE id = $1 AND version = $2",
);
const FIND: Sql = Sql::new("SELECT doc FROM jobs WHERE id = $1");
const OPEN_OF_AGENT: Sql = Sql::new("SELECT doc FROM jobs WHERE agent_id = $1 AND open = 1");

macro_rules! picked {
    ($condition:literal) => {
        Sql::new(concat!(
            "SELECT doc FROM jobs WHERE run_id = $1 AND attempt = $2 AND open = 1 AND ",
            $condition,
            " ORDER BY id LIMIT $3"
        ))
    };
}
const OPEN: Sql = Sql::new("SELECT doc FROM jobs WHERE run_id = $1 AND attempt = $2 AND open = 1 ORDER BY id LIMIT $3");
const ACTIVE: Sql = picked!("status = 'running'");
const TO_STOP: Sql = picked!("can_stop = 2");
const TO_ABORT: Sql = picked!("can_stop > 0");
const TO_HOLD: Sql = picked!("freeze_state IN ('moving', 'thawing')");
const TO_RELEASE: Sql = picked!("freeze_state IN ('freezing', 'frozen')");
const ENDED_ON_OPEN_MACHINES: Sql = Sql::new(
    "SELECT j.doc FROM jobs j JOIN instances i ON i.id = j.instance_id
      WHERE j.run_id = $1 AND j.open = 0 AND i.open = 1 ORDER BY j.attempt, j.id",
);
const OF_RUN: Sql = Sql::new("SELECT doc FROM jobs WHERE run_id = $1 ORDER BY attempt, id");
const SEEN_PAGE: Sql = Sql::new(
    "SELECT j.doc, i.last_seen_at FROM jobs j LEFT JOIN instances i ON i.id = j.instance_id
      WHERE j.run_id = $1 AND (j.attempt, j.id) > ($2, $3) ORDER BY j.attempt, j.id LIMIT $4",
);
const ON_INSTANCE: Sql = Sql::new("SELECT doc FROM jobs WHERE instance_id = $1 AND open = 1");
const WAITING: Sql = Sql::new(
    "SELECT doc FROM jobs
      WHERE pool_id = $1 AND queue_seq IS NOT NULL
      ORDER BY priority, turn, queue_seq LIMIT $2",
);
const HEAD: Sql = Sql::new(
    "SELECT id, turn FROM jobs
      WHERE pool_id = $1 AND queue_seq IS NOT NULL
      ORDER BY priority, turn, queue_seq LIMIT 1",
);
const COUNT_WAITING: Sql = Sql::new("SELECT count(*) FROM jobs WHERE pool_id = $1 AND queue_seq IS NOT NULL");
const COUNT_BEFORE: Sql = Sql::new(
    "SELECT count(*) FROM jobs
      WHERE pool_id = $1 AND queue_seq IS NOT NULL AND (priority < $2
             OR (priority = $2 AND (turn < $3 OR (turn = $3 AND queue_seq < $4))))",
);
const TURNS: Sql = Sql::new(
    "SELECT (SELECT min(turn) FROM jobs WHERE pool_id = $1 AND priority = $2 AND queue_seq IS NOT NULL),
            (SELECT max(turn) FROM jobs WHERE pool_id = $1 AND priority = $2 AND turn IS NOT NULL),
            (SELECT max(turn) FROM jobs WHERE pool_id = $1 AND priority = $2 AND org_id = $3 AND turn IS NOT NULL)",
);
