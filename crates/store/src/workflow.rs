//! Rows of workflows: one row a workflow, its whole DAG inside, so that a running one never meets a changed blueprint.

use crate::hint::{Hint, Topic};
use crate::newest::made_at;
use crate::post::Meaning;
use crate::sql::{Rank, Sql};
use crate::tx::Tx;
use crate::{args, doc};
use model::workflow::Workflow;
use model::{Failure, InstanceId, OrgId, Refused, WorkflowId};

pub fn insert(tx: &mut Tx, w: &Workflow) -> Result<(), Failure> {
    let row = args![
        w.id,
        w.org,
        w.created_at,
        w.intent.as_str(),
        w.status.as_str(),
        !w.status.is_end(),
        w.job,
        w.instance,
        w.manifest,
        w.version,
        doc::write(w)
    ];
    tx.hint(Hint::Org(w.org, Topic::Workflows));
    tx.post(&INSERT, row)
}

pub fn save(tx: &mut Tx, w: &Workflow) -> Result<(), Failure> {
    let mut next = w.clone();
    next.version += 1;
    let row = args![
        w.id,
        w.version,
        next.status.as_str(),
        !next.status.is_end(),
        next.instance,
        next.version,
        doc::write(&next)
    ];
    tx.hint(Hint::Org(w.org, Topic::Workflows));
    tx.post_meaning(&SAVE, row, Meaning::no_row(Refused::Stale { what: "the workflow" }))
}

pub fn lock(tx: &mut Tx, id: WorkflowId) -> Result<Workflow, Failure> {
    let row = tx.row(&LOCK, &args![id])?.ok_or_else(|| Refused::not_found("workflow", id))?;
    doc::read(&row, 0)
}

pub fn find(tx: &mut Tx, id: WorkflowId) -> Result<Option<Workflow>, Failure> {
    tx.row(&FIND, &args![id])?.map(|row| doc::read(&row, 0)).transpose()
}

pub fn of_instance(tx: &mut Tx, instance: InstanceId) -> Result<Vec<Workflow>, Failure> {
    doc::read_all(tx.rows(&OF_INSTANCE, &args![instance])?, 0)
}

pub fn page(tx: &mut Tx, org: OrgId, before: i64, limit: i64) -> Result<Vec<Workflow>, Failure> {
    let at = made_at(tx, &MADE_AT, before)?;
    doc::page(tx.rows(&PAGE, &args![org, at, before, limit])?, 0)
}

pub(crate) const ALL: &[&Sql] = &[&INSERT, &SAVE, &LOCK, &FIND, &OF_INSTANCE, &PAGE, &MADE_AT];

const INSERT: Sql = Sql::new(
    "INSERT INTO workflows (id, org_id, created_at, intent, status, open, job_id, instance_id, manifest_id, version, doc)
     VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)",
);
const SAVE: Sql = Sql::new(
    "UPDATE workflows SET status = $3, open = $4, instance_id = $5, version = $6, doc = $7
      WHERE id = $1 AND version = $2",
);
const LOCK: Sql = Sql::new("SELECT doc FROM workflows WHERE id = $1").no_key_update().locks(Rank::Workflow);
const FIND: Sql = Sql::new("SELECT doc FROM workflows WHERE id = $1");
const OF_INSTANCE: Sql = Sql::new("SELECT doc FROM workflows WHERE instance_id = $1 ORDER BY id DESC LIMIT 20");
const PAGE: Sql = Sql::new(
    "SELECT doc FROM workflows
      WHERE org_id = $1 AND (created_at, id) < ($2, $3) ORDER BY created_at DESC, id DESC LIMIT $4",
);
const MADE_AT: Sql = Sql::new("SELECT created_at FROM workflows WHERE id = $1");
