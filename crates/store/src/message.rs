//! Rows of messages to agents. Written under the run's lock. A row is made once, and taken once: by the turn of a dialogue that it is part of.

use crate::args;
use crate::sql::Sql;
use crate::tx::Tx;
use crate::value::Row;
use model::{Failure, MessageId, OrgId, RunId, Timestamp};

/// What a person says to an agent of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    pub id: MessageId,
    pub org: OrgId,
    pub run: RunId,
    /// By its name: what no turn took in one attempt is taken in the next.
    pub agent: String,
    pub at: Timestamp,
    pub text: String,
}

pub fn insert(tx: &mut Tx, m: &Message) -> Result<(), Failure> {
    tx.post(&INSERT, args![m.id, m.org, m.run, m.agent.as_str(), m.at, m.text.as_str()])
}

/// Those that no turn has taken, oldest first.
pub fn waiting(tx: &mut Tx, run: RunId, agent: &str, limit: i64) -> Result<Vec<(MessageId, String)>, Failure> {
    let rows = tx.rows(&WAITING, &args![run, agent, limit])?;
    rows.iter().map(|row| Ok((MessageId(row.int(0)?), row.text(1)?))).collect()
}

/// The turn that this message is part of, in the dialogue of a step, which is named as the journal does.
pub fn take(tx: &mut Tx, id: MessageId, dialogue: &str, turn: &str) -> Result<(), Failure> {
    tx.post(&TAKE, args![id, dialogue, turn])
}

/// What the turns of a dialogue have taken, in whichever attempt, oldest first: the turn and the text.
pub fn taken(tx: &mut Tx, run: RunId, dialogue: &str) -> Result<Vec<(String, String)>, Failure> {
    let read = |row: &Row| Ok((row.text(0)?, row.text(1)?));
    tx.rows(&TAKEN, &args![run, dialogue])?.iter().map(read).collect()
}

/// How many a run has had.
pub fn count(tx: &mut Tx, run: RunId) -> Result<i64, Failure> {
    tx.row(&COUNT, &args![run])?.expect("a count is a row").int(0)
}

pub(crate) const ALL: &[&Sql] = &[&INSERT, &WAITING, &TAKE, &TAKEN, &COUNT];

const INSERT: Sql =
    Sql::new("INSERT INTO messages (id, org_id, run_id, agent, at, body) VALUES ($1, $2, $3, $4, $5, $6)");
const WAITING: Sql = Sql::new(
    "SELECT id, body FROM messages WHERE run_id = $1 AND agent = $2 AND turn IS NULL ORDER BY at, id LIMIT $3",
);
/// Never taken twice: the turn that has it is not changed.
const TAKE: Sql = Sql::new("UPDATE messages SET dialogue = $2, turn = $3 WHERE id = $1 AND turn IS NULL");
const TAKEN: Sql = Sql::new(
    "SELECT turn, body FROM messages WHERE run_id = $1 AND dialogue = $2 AND turn IS NOT NULL ORDER BY at, id",
);
const COUNT: Sql = Sql::new("SELECT count(*) FROM messages WHERE run_id = $1");
