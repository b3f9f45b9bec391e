//! Events: what happened, numbered without gaps per run, or per org for what concerns no run.
//! Never changed after they are written; never published before their commit.

use crate::args;
use crate::sql::Sql;
use crate::tx::Tx;
use crate::value::{Row, Value};
use model::bug;
use model::{Failure, OrgId, RunId, Timestamp, Trouble};
use std::collections::BTreeMap;

/// Staged with `tx.event(…)`.
#[derive(Debug, Clone, PartialEq)]
pub struct NewEvent {
    pub org: OrgId,
    /// None: the org's own stream.
    pub run: Option<RunId>,
    pub kind: &'static str,
    pub body: Body,
}

/// What happened, as JSON: serialised where the event is made. `body!({ "run": id, … })` makes one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Body(String);

/// A body under construction, for the macro. Field names need no escaping.
pub struct Writing(Vec<u8>);

impl Default for Writing {
    fn default() -> Writing {
        let mut text = Vec::with_capacity(256);
        text.push(b'{');
        Writing(text)
    }
}

impl Writing {
    pub fn field(&mut self, name: &'static str, value: &impl serde::Serialize) {
        self.0.extend_from_slice(if self.0.len() == 1 { b"\"" } else { b",\"" });
        self.0.extend_from_slice(name.as_bytes());
        self.0.extend_from_slice(b"\":");
        serde_json::to_writer(&mut self.0, value).expect("what happened is plain data");
    }

    pub fn end(mut self) -> Body {
        self.0.push(b'}');
        Body(String::from_utf8(self.0).expect("JSON is text"))
    }
}

/// An object of fields, as `json!` writes it, without building it first: a submission tells half a dozen.
#[macro_export]
macro_rules! body {
    ({ $($name:literal : $value:expr),* $(,)? }) => {{
        let mut writing = $crate::event::Writing::default();
        $(writing.field($name, &$value);)*
        writing.end()
    }};
}

#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    pub seq: i64,
    pub at: Timestamp,
    pub kind: String,
    pub body: serde_json::Value,
}

/// The next events of a stream after number `after`, at most `limit`.
pub fn after(tx: &mut Tx, org: OrgId, run: Option<RunId>, after: i64, limit: i64) -> Result<Vec<Event>, Failure> {
    tx.rows(&AFTER, &args![org, stream(run), after, limit])?.iter().map(read).collect()
}

/// How many there are, the first number and the last: without a gap these fit together, because no number is there twice.
pub fn numbers(tx: &mut Tx, org: OrgId, run: Option<RunId>) -> Result<(i64, i64, i64), Failure> {
    let row = tx.row(&NUMBERS, &args![org, stream(run)])?.expect("a count is a row");
    Ok((row.int(0)?, row.opt_int(1)?.unwrap_or(0), row.opt_int(2)?.unwrap_or(0)))
}

/// The newest number of a stream; 0 when nothing has happened yet.
pub fn last(tx: &mut Tx, org: OrgId, run: Option<RunId>) -> Result<i64, Failure> {
    tx.row(&LAST, &args![org, stream(run)])?.map_or(Ok(0), |row| row.int(0))
}

/// Staged events by stream.
pub(crate) struct Streams(BTreeMap<(OrgId, i64), Vec<NewEvent>>);

impl Streams {
    pub(crate) fn of(events: Vec<NewEvent>) -> Streams {
        let mut streams: BTreeMap<(OrgId, i64), Vec<NewEvent>> = BTreeMap::new();
        for event in events {
            streams.entry((event.org, stream(event.run))).or_default().push(event);
        }
        Streams(streams)
    }

    /// One a stream: its numbers.
    pub(crate) fn questions(&self) -> Vec<(&'static Sql, Vec<Value>)> {
        let advance = |((org, stream), events): (&(OrgId, i64), &Vec<NewEvent>)| {
            (&ADVANCE, args![*org, *stream, events.len() as i64].into())
        };
        self.0.iter().map(advance).collect()
    }

    pub(crate) fn write(self, tx: &mut Tx, answers: &mut impl Iterator<Item = Vec<Row>>) -> Result<(), Failure> {
        if self.0.is_empty() {
            return Ok(());
        }
        let (at, mut rows) = (tx.at(), Vec::new());
        for ((org, stream), events) in self.0 {
            let head = answers.next().and_then(|mut rows| rows.pop()).expect("an upsert returns its row");
            let last = head.int(0)?;
            let first = last - events.len() as i64 + 1 + i64::from(bug!(event_numbers_with_gaps) && last % 5 == 0);
            rows.extend(
                events
                    .into_iter()
                    .zip(first..)
                    .map(|(event, seq)| args![org, stream, seq, at, event.kind, event.body.0]),
            );
        }
        tx.insert_many(&WRITE, rows)
    }
}

/// Run ids are never 0, so it stands for the org's own stream.
fn stream(run: Option<RunId>) -> i64 {
    run.map_or(0, |run| run.0)
}

fn read(row: &Row) -> Result<Event, Failure> {
    let body = serde_json::from_str(row.str(3)?)
        .map_err(|e| Trouble::internal(format!("an event's body is not JSON: {e}")))?;
    Ok(Event { seq: row.int(0)?, at: row.at(1)?, kind: row.text(2)?, body })
}

pub(crate) const ALL: &[&Sql] = &[&ADVANCE, &WRITE, &AFTER, &LAST, &NUMBERS];

/// The counter row is the lock: two transactions of one stream number one after the other.
const ADVANCE: Sql = Sql::new(
    "INSERT INTO event_heads (org_id, run_id, last) VALUES ($1, $2, $3)
         ON CONFLICT (org_id, run_id) DO UPDATE SET last = event_heads.last + excluded.last
      RETURNING last",
);

const WRITE: Sql = Sql::new("INSERT INTO events (org_id, run_id, seq, at, kind, body) VALUES ($1, $2, $3, $4, $5, $6)");

const AFTER: Sql = Sql::new(
    "SELECT seq, at, kind, body FROM events
      WHERE org_id = $1 AND run_id = $2 AND seq > $3
      ORDER BY seq LIMIT $4",
);

const NUMBERS: Sql = Sql::new("SELECT count(*), min(seq), max(seq) FROM events WHERE org_id = $1 AND run_id = $2");

const LAST: Sql = Sql::new("SELECT last FROM event_heads WHERE org_id = $1 AND run_id = $2");
