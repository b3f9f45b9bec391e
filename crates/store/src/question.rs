//! Rows of questions to people: approvals and tickets. Written under the run's lock.

use crate::sql::Sql;
use crate::tx::Tx;
use crate::{Hint, Topic, args, doc};
use model::question::{Question, QuestionStatus};
use model::step::StepWait;
use model::{Failure, OrgId, QuestionId, RunId, StepId, Timestamp, Trouble};
use serde_json::Value;

pub fn insert(tx: &mut Tx, question: &Question) -> Result<(), Failure> {
    let q = question;
    tx.hint(Hint::Org(q.org, Topic::Inbox));
    let row =
        args![q.id, q.org, q.run, q.step, q.kind.as_str(), q.key.as_str(), is_open(q), q.expires_at, doc::write(q)];
    tx.post(&INSERT, row)
}

pub fn save(tx: &mut Tx, question: &Question) -> Result<(), Failure> {
    tx.hint(Hint::Org(question.org, Topic::Inbox));
    tx.post(&SAVE, args![question.id, is_open(question), doc::write(question)])
}

fn is_open(question: &Question) -> bool {
    question.status == QuestionStatus::Open
}

pub fn find(tx: &mut Tx, id: QuestionId) -> Result<Option<Question>, Failure> {
    tx.row(&FIND, &args![id])?.map(|row| doc::read_once(&row, 0)).transpose()
}

/// The last one that was asked about a step.
pub fn last_of_step(tx: &mut Tx, step: StepId, kind: StepWait) -> Result<Option<Question>, Failure> {
    tx.row(&LAST_OF_STEP, &args![step, kind.as_str()])?.map(|row| doc::read_once(&row, 0)).transpose()
}

/// The last approval that was asked for of a step with this key, in whichever attempt.
pub fn last_of_key(tx: &mut Tx, run: RunId, key: &str) -> Result<Option<Question>, Failure> {
    tx.row(&LAST_OF_KEY, &args![run, key])?.map(|row| doc::read_once(&row, 0)).transpose()
}

pub fn count_open(tx: &mut Tx, run: RunId, kind: StepWait) -> Result<i64, Failure> {
    tx.row(&COUNT_OPEN, &args![run, kind.as_str()])?.expect("a count is a row").int(0)
}

/// When the first open approval of a run expires.
pub fn next_expiry(tx: &mut Tx, run: RunId) -> Result<Option<Timestamp>, Failure> {
    tx.row(&NEXT_EXPIRY, &args![run])?.expect("a minimum is a row").opt_at(0)
}

/// Open approvals of a run whose time is up.
pub fn expired(tx: &mut Tx, run: RunId, limit: i64) -> Result<Vec<Question>, Failure> {
    let at = tx.at();
    doc::read_all(tx.rows(&EXPIRED, &args![run, at, limit])?, 0)
}

/// Which questions a page is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Which {
    pub kind: StepWait,
    /// Only those without an answer.
    pub open: bool,
    pub run: Option<RunId>,
    pub oldest_first: bool,
}

/// Those of an org that come after the one with this id: newest first, or oldest first.
pub fn page(tx: &mut Tx, org: OrgId, which: Which, from: i64, limit: i64) -> Result<Vec<Question>, Failure> {
    let kind = which.kind.as_str();
    let (all, open, of_run, open_of_run) = match which.oldest_first {
        false => (&PAGE, &PAGE_OPEN, &PAGE_OF_RUN, &PAGE_OPEN_OF_RUN),
        true => (&OLDEST, &OLDEST_OPEN, &OLDEST_OF_RUN, &OLDEST_OPEN_OF_RUN),
    };
    let rows = match (which.run, which.open) {
        (None, true) => tx.rows(open, &args![org, kind, from, limit])?,
        (None, false) => tx.rows(all, &args![org, kind, from, limit])?,
        (Some(run), true) => tx.rows(open_of_run, &args![org, run, kind, from, limit])?,
        (Some(run), false) => tx.rows(of_run, &args![org, run, kind, from, limit])?,
    };
    doc::read_all(rows, 0)
}

/// What belongs to a question and is as large as its owner likes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Data {
    /// The step's input as it was asked about.
    Input,
    /// The input that a person put in its place.
    Edited,
    /// What a person answered.
    Answer,
}

impl Data {
    fn as_str(self) -> &'static str {
        match self {
            Data::Input => "input",
            Data::Edited => "edited",
            Data::Answer => "answer",
        }
    }
}

/// Written once: a second write of the same question's data fails.
pub fn insert_data(tx: &mut Tx, id: QuestionId, kind: Data, body: &Value) -> Result<(), Failure> {
    tx.post(&INSERT_DATA, args![id, kind.as_str(), body.to_string()])
}

pub fn data(tx: &mut Tx, id: QuestionId, kind: Data) -> Result<Option<Value>, Failure> {
    let unreadable = |error| Trouble::internal(format!("a question's data cannot be read: {error}"));
    let row = tx.row(&FIND_DATA, &args![id, kind.as_str()])?;
    row.map(|row| serde_json::from_str(row.str(0)?).map_err(|error| unreadable(error).into())).transpose()
}

pub(crate) const ALL: &[&Sql] = &[
    &INSERT,
    &SAVE,
    &FIND,
    &LAST_OF_STEP,
    &LAST_OF_KEY,
    &COUNT_OPEN,
    &NEXT_EXPIRY,
    &EXPIRED,
    &PAGE,
    &PAGE_OPEN,
    &PAGE_OF_RUN,
    &PAGE_OPEN_OF_RUN,
    &OLDEST,
    &OLDEST_OPEN,
    &OLDEST_OF_RUN,
    &OLDEST_OPEN_OF_RUN,
    &INSERT_DATA,
    &FIND_DATA,
];

const INSERT: Sql = Sql::new(
    "INSERT INTO questions (id, org_id, run_id, step_id, kind, key, open, expires, doc)
     VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)",
);
const SAVE: Sql = Sql::new("UPDATE questions SET open = $2, doc = $3 WHERE id = $1");
const FIND: Sql = Sql::new("SELECT doc FROM questions WHERE id = $1");
const LAST_OF_STEP: Sql =
    Sql::new("SELECT doc FROM questions WHERE step_id = $1 AND kind = $2 ORDER BY id DESC LIMIT 1");
const LAST_OF_KEY: Sql =
    Sql::new("SELECT doc FROM questions WHERE run_id = $1 AND key = $2 AND kind = 'approval' ORDER BY id DESC LIMIT 1");
const COUNT_OPEN: Sql = Sql::new("SELECT count(*) FROM questions WHERE run_id = $1 AND kind = $2 AND open = 1");
const NEXT_EXPIRY: Sql =
    Sql::new("SELECT min(expires) FROM questions WHERE run_id = $1 AND kind = 'approval' AND open = 1");
const EXPIRED: Sql = Sql::new(
    "SELECT doc FROM questions
      WHERE run_id = $1 AND kind = 'approval' AND open = 1 AND expires <= $2 ORDER BY id LIMIT $3",
);
const PAGE: Sql =
    Sql::new("SELECT doc FROM questions WHERE org_id = $1 AND kind = $2 AND id < $3 ORDER BY id DESC LIMIT $4");
const PAGE_OPEN: Sql = Sql::new(
    "SELECT doc FROM questions WHERE org_id = $1 AND kind = $2 AND open = 1 AND id < $3 ORDER BY id DESC LIMIT $4",
);
const PAGE_OF_RUN: Sql = Sql::new(
    "SELECT doc FROM questions
      WHERE org_id = $1 AND run_id = $2 AND kind = $3 AND id < $4 ORDER BY id DESC LIMIT $5",
);
const PAGE_OPEN_OF_RUN: Sql = Sql::new(
    "SELECT doc FROM questions
      WHERE org_id = $1 AND run_id = $2 AND kind = $3 AND open = 1 AND id < $4 ORDER BY id DESC LIMIT $5",
);
const OLDEST: Sql =
    Sql::new("SELECT doc FROM questions WHERE org_id = $1 AND kind = $2 AND id > $3 ORDER BY id LIMIT $4");
const OLDEST_OPEN: Sql =
    Sql::new("SELECT doc FROM questions WHERE org_id = $1 AND kind = $2 AND open = 1 AND id > $3 ORDER BY id LIMIT $4");
const OLDEST_OF_RUN: Sql = Sql::new(
    "SELECT doc FROM questions
      WHERE org_id = $1 AND run_id = $2 AND kind = $3 AND id > $4 ORDER BY id LIMIT $5",
);
const OLDEST_OPEN_OF_RUN: Sql = Sql::new(
    "SELECT doc FROM questions
      WHERE org_id = $1 AND run_id = $2 AND kind = $3 AND open = 1 AND id > $4 ORDER BY id LIMIT $5",
);
const INSERT_DATA: Sql = Sql::new("INSERT INTO question_data (question_id, kind, body) VALUES ($1, $2, $3)");
const FIND_DATA: Sql = Sql::new("SELECT body FROM question_data WHERE question_id = $1 AND kind = $2");
