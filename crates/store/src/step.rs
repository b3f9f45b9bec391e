//! Rows of steps, each within its run and attempt. Written under the run's lock.

use crate::sql::Sql;
use crate::tx::Tx;
use crate::{Hint, args, doc};
use model::hierarchy::Pick;
use model::step::{Recorded, Step, StepStatus};
use model::{AgentId, Failure, OrgId, RunId, StepId, TaskId, Trouble};

pub fn insert(tx: &mut Tx, step: &Step) -> Result<(), Failure> {
    let parent = step.parent.map(|parent| parent.0);
    let row = args![
        step.id,
        step.run,
        step.attempt,
        step.task,
        step.sequence,
        state(step),
        step.due_at,
        parent,
        step.parent.map(|_| path(&step.name, step.item.as_deref())),
        offer_org(step),
        offer_tool(step),
        doc::write(step)
    ];
    tx.hint(Hint::Rows(step.run));
    tx.post(&INSERT, row)
}

pub fn save(tx: &mut Tx, step: &Step) -> Result<(), Failure> {
    let row = args![step.id, state(step), step.due_at, offer_org(step), offer_tool(step), doc::write(step)];
    tx.hint(Hint::Rows(step.run));
    tx.post(&SAVE, row)
}

fn offer_org(step: &Step) -> Option<i64> {
    step.offer.as_ref().map(|offer| offer.org.0)
}

fn offer_tool(step: &Step) -> Option<&str> {
    step.offer.as_ref().map(|offer| offer.tool.as_str())
}

/// Steps of running runs that are offered to this org under this name, after an id, the oldest first; each with its run.
pub fn offered(tx: &mut Tx, org: OrgId, tool: &str, after: i64, limit: i64) -> Result<Vec<(StepId, RunId)>, Failure> {
    let rows = tx.rows(&OFFERED, &args![org, tool, after, limit])?;
    rows.iter().map(|row| Ok((StepId(row.int(0)?), RunId(row.int(1)?)))).collect()
}

/// Steps of one attempt that are offered, in order of creation.
pub fn offered_of(tx: &mut Tx, run: RunId, attempt: i64, limit: i64) -> Result<Vec<Step>, Failure> {
    doc::read_all(tx.rows(&OFFERED_OF_ATTEMPT, &args![run, attempt, limit])?, 0)
}

/// A row that a retry has replaced is history, and counted nowhere.
fn state(step: &Step) -> &'static str {
    if step.replaced { "replaced" } else { step.child_state().as_str() }
}

pub fn find(tx: &mut Tx, id: StepId) -> Result<Option<Step>, Failure> {
    tx.row(&FIND, &args![id])?.map(|row| doc::read(&row, 0)).transpose()
}

/// What tells a child from the other children of its parent.
fn path(name: &str, item: Option<&str>) -> String {
    match item {
        Some(item) => format!("{name}#{item}"),
        None => name.to_owned(),
    }
}

/// Children of a step that are open, in order of their sequence.
pub fn open_children(tx: &mut Tx, parent: StepId, limit: i64) -> Result<Vec<Step>, Failure> {
    doc::read_all(tx.rows(&OPEN_CHILDREN, &args![parent, limit])?, 0)
}

/// The child of this name that is open.
pub fn open_child(tx: &mut Tx, parent: StepId, name: &str, item: Option<&str>) -> Result<Option<Step>, Failure> {
    tx.row(&OPEN_CHILD, &args![parent, path(name, item)])?.map(|row| doc::read(&row, 0)).transpose()
}

/// The one at this place of its task's plan.
pub fn at(tx: &mut Tx, task: TaskId, sequence: i64) -> Result<Option<Step>, Failure> {
    tx.row(&AT, &args![task, sequence])?.map(|row| doc::read(&row, 0)).transpose()
}

/// All that a task has now, in order of their sequence.
pub fn of_task(tx: &mut Tx, task: TaskId) -> Result<Vec<Step>, Failure> {
    doc::read_all(tx.rows(&OF_TASK, &args![task])?, 0)
}

/// Children of a step, also those that have ended, in order of their sequence.
pub fn children(tx: &mut Tx, parent: StepId) -> Result<Vec<Step>, Failure> {
    doc::read_all(tx.rows(&CHILDREN, &args![parent])?, 0)
}

/// Every row of a run: of all attempts, and those in whose place a retry has put another.
pub fn of_run(tx: &mut Tx, run: RunId) -> Result<Vec<Step>, Failure> {
    doc::read_all(tx.rows(&OF_RUN, &args![run])?, 0)
}

/// Those of one attempt, in order of creation.
pub fn of_attempt(tx: &mut Tx, run: RunId, attempt: i64) -> Result<Vec<Step>, Failure> {
    doc::read_all(tx.rows(&OF_ATTEMPT, &args![run, attempt])?, 0)
}

/// Below what the steps of a page are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Below {
    Attempt,
    Agent(AgentId),
    Task(TaskId),
}

/// Those of one attempt after an id, in order of creation.
pub fn page(tx: &mut Tx, run: RunId, attempt: i64, below: Below, after: i64, limit: i64) -> Result<Vec<Step>, Failure> {
    let rows = match below {
        Below::Attempt => tx.rows(&PAGE, &args![run, attempt, after, limit])?,
        Below::Agent(agent) => tx.rows(&PAGE_OF_AGENT, &args![run, attempt, agent, after, limit])?,
        Below::Task(task) => tx.rows(&PAGE_OF_TASK, &args![run, attempt, task, after, limit])?,
    };
    doc::read_all(rows, 0)
}

/// Those of a task in a state, in their order; children of other steps are not among them.
pub fn in_state(tx: &mut Tx, task: TaskId, state: StepStatus, limit: i64) -> Result<Vec<Step>, Failure> {
    doc::read_all(tx.rows(&IN_STATE, &args![task, state.as_str(), limit])?, 0)
}

/// Those of the plan that failed, also those that their tasks do without, in order of creation. What failed below a step was told to its
/// model or program, and is a failure of the run only if it became one of the step.
pub fn failed(tx: &mut Tx, run: RunId, attempt: i64, limit: i64) -> Result<Vec<Step>, Failure> {
    doc::read_all(tx.rows(&FAILED_OF_ATTEMPT, &args![run, attempt, limit])?, 0)
}

/// Those that are not called before a time after `at`, in order of creation.
pub fn put_off(tx: &mut Tx, run: RunId, attempt: i64, limit: i64) -> Result<Vec<Step>, Failure> {
    let at = tx.at();
    doc::read_all(tx.rows(&PUT_OFF, &args![run, attempt, at, limit])?, 0)
}

/// Those of a task that are meant, in order of their sequence.
pub fn pick(tx: &mut Tx, task: TaskId, pick: Pick, limit: i64) -> Result<Vec<Step>, Failure> {
    let state = match pick {
        Pick::Pending => "pending",
        Pick::Due => {
            let at = tx.at();
            return doc::read_all(tx.rows(&DUE, &args![task, at, limit])?, 0);
        }
        Pick::Running => "running",
        Pick::Waiting => "waiting",
        Pick::Failed => return doc::read_all(tx.rows(&FAILED, &args![task, limit])?, 0),
        Pick::Open => return doc::read_all(tx.rows(&OPEN, &args![task, limit])?, 0),
        Pick::Paused | Pick::Cut | Pick::Any => return Ok(Vec::new()),
    };
    doc::read_all(tx.rows(&IN_STATE, &args![task, state, limit])?, 0)
}

/// What a step was called with, or answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Data {
    Input,
    Output,
}

impl Data {
    fn as_str(self) -> &'static str {
        match self {
            Data::Input => "input",
            Data::Output => "output",
        }
    }
}

/// Written once: a second write of the same step's data fails.
pub fn insert_data(tx: &mut Tx, step: StepId, kind: Data, body: &serde_json::Value) -> Result<(), Failure> {
    tx.post(&INSERT_DATA, args![step, kind.as_str(), body.to_string()])
}

pub fn data(tx: &mut Tx, step: StepId, kind: Data) -> Result<Option<serde_json::Value>, Failure> {
    let row = tx.row(&FIND_DATA, &args![step, kind.as_str()])?;
    row.map(|row| serde_json::from_str(row.str(0)?).map_err(|e| unreadable(&e).into())).transpose()
}

fn unreadable(error: &serde_json::Error) -> Trouble {
    Trouble::internal(format!("a step's data cannot be read: {error}"))
}

/// A try that was followed by another.
pub fn insert_try(tx: &mut Tx, earlier: &Step) -> Result<(), Failure> {
    tx.post(&INSERT_TRY, args![earlier.id, earlier.tries, doc::write(earlier)])
}

/// Earlier tries, oldest first.
pub fn tries(tx: &mut Tx, step: StepId) -> Result<Vec<Step>, Failure> {
    doc::read_all(tx.rows(&TRIES, &args![step])?, 0)
}

/// What the journal of a run says of an identity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JournalRow {
    pub key: String,
    pub state: Recorded,
    pub step: StepId,
    /// The hash of tool and input. Written, and looked up by [`begun_elsewhere`]; not read back.
    pub content: Option<String>,
}

pub fn journal(tx: &mut Tx, run: RunId, identity: &str) -> Result<Option<JournalRow>, Failure> {
    let Some(row) = tx.row(&JOURNAL, &args![run, identity])? else { return Ok(None) };
    let state = row.str(1)?.parse().map_err(|_| Trouble::internal("a journal row of an unknown state"))?;
    Ok(Some(JournalRow { key: row.str(0)?.to_owned(), state, step: StepId(row.int(2)?), content: None }))
}

/// The first step with another identity that was begun with the same tool and input: its identity, and its row.
pub fn begun_elsewhere(
    tx: &mut Tx,
    run: RunId,
    content: &str,
    identity: &str,
) -> Result<Option<(String, StepId)>, Failure> {
    let row = tx.row(&BEGUN_ELSEWHERE, &args![run, content, identity])?;
    row.map(|row| Ok((row.str(0)?.to_owned(), StepId(row.int(1)?)))).transpose()
}

/// The same among steps whose identity begins so and does not end so.
pub fn begun_below(
    tx: &mut Tx,
    run: RunId,
    content: &str,
    beginning: &str,
    but_not: &str,
) -> Result<Option<(String, StepId)>, Failure> {
    let row = tx.row(&BEGUN_BELOW, &args![run, content, beginning, but_not])?;
    row.map(|row| Ok((row.str(0)?.to_owned(), StepId(row.int(1)?)))).transpose()
}

/// The newest finished step whose identity begins so: the last one of the last attempt. Ids say nothing about it, since each server has a
/// block of its own.
pub fn last_recorded(tx: &mut Tx, run: RunId, beginning: &str) -> Result<Option<StepId>, Failure> {
    let row = tx.row(&LAST_RECORDED, &args![run, beginning])?;
    row.map(|row| row.int(0).map(StepId)).transpose()
}

/// Replaces what the journal says of an identity.
pub fn record(tx: &mut Tx, run: RunId, identity: &str, row: &JournalRow) -> Result<(), Failure> {
    let content = row.content.clone();
    tx.post(&RECORD, args![run, identity, row.key.as_str(), row.state.as_str(), row.step, content])
}

/// This step has nothing to say of its identity any more. What the journal has from another step of that identity stays.
pub fn forget(tx: &mut Tx, run: RunId, identity: &str, step: StepId) -> Result<(), Failure> {
    tx.post(&FORGET, args![run, identity, step])
}

pub(crate) const ALL: &[&Sql] = &[
    &INSERT,
    &SAVE,
    &FIND,
    &AT,
    &OF_TASK,
    &CHILDREN,
    &OPEN_CHILDREN,
    &OPEN_CHILD,
    &OF_RUN,
    &OF_ATTEMPT,
    &PAGE,
    &PAGE_OF_AGENT,
    &PAGE_OF_TASK,
    &FAILED_OF_ATTEMPT,
    &OFFERED,
    &OFFERED_OF_ATTEMPT,
    &PUT_OFF,
    &IN_STATE,
    &DUE,
    &FAILED,
    &OPEN,
    &INSERT_DATA,
    &FIND_DATA,
    &INSERT_TRY,
    &TRIES,
    &JOURNAL,
    &BEGUN_ELSEWHERE,
    &BEGUN_BELOW,
    &LAST_RECORDED,
    &RECORD,
    &FORGET,
];

const INSERT: Sql = Sql::new(
    "INSERT INTO steps (id, run_id, attempt, task_id, sequence, state, due, parent_id, path, offer_org, offer_tool, doc)
     VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)",
);
const SAVE: Sql =
    Sql::new("UPDATE steps SET state = $2, due = $3, offer_org = $4, offer_tool = $5, doc = $6 WHERE id = $1");
const FIND: Sql = Sql::new("SELECT doc FROM steps WHERE id = $1");
const AT: Sql = Sql::new(
    "SELECT doc FROM steps WHERE task_id = $1 AND sequence = $2 AND state <> 'replaced' AND parent_id IS NULL",
);
const CHILDREN: Sql = Sql::new("SELECT doc FROM steps WHERE parent_id = $1 ORDER BY sequence, id");
const OPEN_CHILDREN: Sql = Sql::new(
    "SELECT doc FROM steps WHERE parent_id = $1 AND state IN ('pending', 'running', 'waiting') ORDER BY sequence LIMIT $2",
);
const OPEN_CHILD: Sql =
    Sql::new("SELECT doc FROM steps WHERE parent_id = $1 AND state IN ('pending', 'running', 'waiting') AND path = $2");
const OF_TASK: Sql = Sql::new(
    "SELECT doc FROM steps WHERE task_id = $1 AND state <> 'replaced' AND parent_id IS NULL ORDER BY sequence, id",
);
const OF_RUN: Sql = Sql::new("SELECT doc FROM steps WHERE run_id = $1 ORDER BY id");
const OF_ATTEMPT: Sql =
    Sql::new("SELECT doc FROM steps WHERE run_id = $1 AND attempt = $2 AND state <> 'replaced' ORDER BY id");
const PAGE: Sql = Sql::new(
    "SELECT doc FROM steps WHERE run_id = $1 AND attempt = $2 AND id > $3 AND state <> 'replaced' ORDER BY id LIMIT $4",
);
const PAGE_OF_AGENT: Sql = Sql::new(
    "SELECT s.doc FROM steps s JOIN tasks t ON t.id = s.task_id
      WHERE s.run_id = $1 AND s.attempt = $2 AND t.agent_id = $3 AND s.id > $4 AND s.state <> 'replaced'
      ORDER BY s.id LIMIT $5",
);
const PAGE_OF_TASK: Sql = Sql::new(
    "SELECT doc FROM steps
      WHERE run_id = $1 AND attempt = $2 AND task_id = $3 AND id > $4 AND state <> 'replaced' ORDER BY id LIMIT $5",
);
const FAILED_OF_ATTEMPT: Sql = Sql::new(
    "SELECT doc FROM steps
      WHERE run_id = $1 AND attempt = $2 AND state IN ('failed', 'skipped') AND parent_id IS NULL ORDER BY id LIMIT $3",
);
const OFFERED: Sql = Sql::new(
    "SELECT s.id, s.run_id FROM steps s JOIN runs r ON r.id = s.run_id
      WHERE s.offer_org = $1 AND s.offer_tool = $2 AND s.id > $3 AND r.status = 'running' ORDER BY s.id LIMIT $4",
);
const OFFERED_OF_ATTEMPT: Sql =
    Sql::new("SELECT doc FROM steps WHERE run_id = $1 AND attempt = $2 AND offer_org IS NOT NULL ORDER BY id LIMIT $3");
const PUT_OFF: Sql = Sql::new(
    "SELECT doc FROM steps WHERE run_id = $1 AND attempt = $2 AND state = 'pending' AND due > $3 ORDER BY id LIMIT $4",
);
const IN_STATE: Sql = Sql::new(
    "SELECT doc FROM steps WHERE task_id = $1 AND state = $2 AND parent_id IS NULL ORDER BY sequence LIMIT $3",
);
const DUE: Sql = Sql::new(
    "SELECT doc FROM steps
      WHERE task_id = $1 AND state = 'pending' AND (due IS NULL OR due <= $2) AND parent_id IS NULL
      ORDER BY sequence LIMIT $3",
);
const FAILED: Sql = Sql::new(
    "SELECT doc FROM steps
      WHERE task_id = $1 AND state IN ('failed', 'cancelled') AND parent_id IS NULL ORDER BY sequence LIMIT $2",
);
const OPEN: Sql = Sql::new(
    "SELECT doc FROM steps
      WHERE task_id = $1 AND state IN ('pending', 'waiting') AND parent_id IS NULL ORDER BY sequence LIMIT $2",
);

const INSERT_DATA: Sql = Sql::new("INSERT INTO step_data (step_id, kind, body) VALUES ($1, $2, $3)");
const FIND_DATA: Sql = Sql::new("SELECT body FROM step_data WHERE step_id = $1 AND kind = $2");
const INSERT_TRY: Sql = Sql::new("INSERT INTO tries (step_id, number, doc) VALUES ($1, $2, $3)");
const TRIES: Sql = Sql::new("SELECT doc FROM tries WHERE step_id = $1 ORDER BY number");
const JOURNAL: Sql = Sql::new("SELECT key, state, step_id FROM journal WHERE run_id = $1 AND identity = $2");
const BEGUN_ELSEWHERE: Sql = Sql::new(
    "SELECT identity, step_id FROM journal
      WHERE run_id = $1 AND content = $2 AND identity <> $3 ORDER BY step_id LIMIT 1",
);
const BEGUN_BELOW: Sql = Sql::new(
    "SELECT identity, step_id FROM journal
      WHERE run_id = $1 AND content = $2 AND substr(identity, 1, length($3)) = $3
        AND substr(identity, 1 + length(identity) - length($4)) <> $4 ORDER BY step_id LIMIT 1",
);
const LAST_RECORDED: Sql = Sql::new(
    "SELECT j.step_id FROM journal j JOIN steps s ON s.id = j.step_id
      WHERE j.run_id = $1 AND substr(j.identity, 1, length($2)) = $2 AND j.state = 'done'
      ORDER BY s.attempt DESC, s.sequence DESC LIMIT 1",
);
const RECORD: Sql = Sql::new(
    "INSERT INTO journal (run_id, identity, key, state, step_id, content) VALUES ($1, $2, $3, $4, $5, $6)
         ON CONFLICT (run_id, identity) DO UPDATE
        SET key = excluded.key, state = excluded.state, step_id = excluded.step_id, content = excluded.content",
);
const FORGET: Sql = Sql::new("DELETE FROM journal WHERE run_id = $1 AND identity = $2 AND step_id = $3");
