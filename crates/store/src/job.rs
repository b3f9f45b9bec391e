//! Rows of jobs, and the pool's waiting list, which is an index over them.

use crate::sql::Sql;
use crate::tx::Tx;
use crate::{args, doc};
use model::job::Job;
use model::spec::Priority;
use model::{Failure, InstanceId, JobId, PoolId, Refused, RunId};

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
        job.instance,
        job.allocation,
        job.epoch,
        job.version,
        doc::write(job)
    ];
    tx.exec(&INSERT, &row).map(drop)
}

pub fn save(tx: &mut Tx, job: &Job) -> Result<(), Failure> {
    let mut next = job.clone();
    next.version += 1;
    let row = args![
        next.id,
        job.version,
        next.status.as_str(),
        !next.status.is_end(),
        next.queue_seq,
        next.instance,
        next.allocation,
        next.epoch,
        next.version,
        doc::write(&next)
    ];
    if tx.exec(&SAVE, &row)? == 0 {
        return Err(Refused::Stale { what: "the job" }.into());
    }
    Ok(())
}

pub fn find(tx: &mut Tx, id: JobId) -> Result<Option<Job>, Failure> {
    tx.row(&FIND, &args![id])?.map(|row| doc::read(&row, 0)).transpose()
}

pub fn of_attempt(tx: &mut Tx, run: RunId, attempt: i64) -> Result<Vec<Job>, Failure> {
    doc::read_all(tx.rows(&OF_ATTEMPT, &args![run, attempt])?, 0)
}

pub fn of_run(tx: &mut Tx, run: RunId) -> Result<Vec<Job>, Failure> {
    doc::read_all(tx.rows(&OF_RUN, &args![run])?, 0)
}

/// The open job of an instance, if it has one.
pub fn on_instance(tx: &mut Tx, instance: InstanceId) -> Result<Option<Job>, Failure> {
    tx.row(&ON_INSTANCE, &args![instance])?.map(|row| doc::read(&row, 0)).transpose()
}

/// Who waits for this pool, first come first: high priority before normal, then by submission.
pub fn waiting(tx: &mut Tx, pool: PoolId, limit: i64) -> Result<Vec<Job>, Failure> {
    doc::read_all(tx.rows(&WAITING, &args![pool, limit])?, 0)
}

pub fn count_waiting(tx: &mut Tx, pool: PoolId) -> Result<i64, Failure> {
    tx.row(&COUNT_WAITING, &args![pool])?.expect("a count is a row").int(0)
}

/// How many stand before this place in the list.
pub fn count_before(tx: &mut Tx, pool: PoolId, priority: Priority, queue_seq: i64) -> Result<i64, Failure> {
    tx.row(&COUNT_BEFORE, &args![pool, rank(priority), queue_seq])?.expect("a count is a row").int(0)
}

fn rank(priority: Priority) -> i64 {
    match priority {
        Priority::High => 0,
        Priority::Normal => 1,
    }
}

pub(crate) const ALL: &[&Sql] =
    &[&INSERT, &SAVE, &FIND, &OF_ATTEMPT, &OF_RUN, &ON_INSTANCE, &WAITING, &COUNT_WAITING, &COUNT_BEFORE];

const INSERT: Sql = Sql::new(
    "INSERT INTO jobs (id, org_id, run_id, attempt, agent_id, status, open, pool_id, priority, queue_seq, instance_id, allocation_id, epoch, version, doc)
     VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)",
);
const SAVE: Sql = Sql::new(
    "UPDATE jobs SET status = $3, open = $4, queue_seq = $5, instance_id = $6, allocation_id = $7, epoch = $8, version = $9, doc = $10
      WHERE id = $1 AND version = $2",
);
const FIND: Sql = Sql::new("SELECT doc FROM jobs WHERE id = $1");
const OF_ATTEMPT: Sql = Sql::new("SELECT doc FROM jobs WHERE run_id = $1 AND attempt = $2 ORDER BY id");
const OF_RUN: Sql = Sql::new("SELECT doc FROM jobs WHERE run_id = $1 ORDER BY attempt, id");
const ON_INSTANCE: Sql = Sql::new("SELECT doc FROM jobs WHERE instance_id = $1 AND open = 1");
const WAITING: Sql = Sql::new(
    "SELECT doc FROM jobs
      WHERE pool_id = $1 AND queue_seq IS NOT NULL
      ORDER BY priority, queue_seq LIMIT $2",
);
const COUNT_WAITING: Sql = Sql::new("SELECT count(*) FROM jobs WHERE pool_id = $1 AND queue_seq IS NOT NULL");
const COUNT_BEFORE: Sql = Sql::new(
    "SELECT count(*) FROM jobs
      WHERE pool_id = $1 AND queue_seq IS NOT NULL AND (priority < $2 OR (priority = $2 AND queue_seq < $3))",
);
