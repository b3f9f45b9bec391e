//! Sums of what was used, for people who look at costs. Each charge adds to one row, in its own transaction; the ledger stays the account.

use crate::args;
use crate::sql::Sql;
use crate::tx::Tx;
use crate::value::{Row, Value};
use model::time::{DAY, HOUR};
use model::usage::{Usage, UsageBy};
use model::{Failure, OrgId, RunId, StepId, Timestamp};

/// A charge, and what it is summed under. Empty names: it belongs to no agent, model or provider.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spent {
    pub org: OrgId,
    pub run: Option<RunId>,
    /// A step, or a machine that no run uses; 0: neither.
    pub subject: i64,
    pub agent: String,
    pub model: String,
    pub provider: String,
    pub usage: Usage,
}

impl Spent {
    pub fn of(org: OrgId) -> Spent {
        let (agent, model, provider) = (String::new(), String::new(), String::new());
        Spent { org, run: None, subject: 0, agent, model, provider, usage: Usage::default() }
    }
}

/// Adds to the row of this hour. Rows of a run are written under its lock, those of a machine under the machine's.
pub fn add(tx: &mut Tx, spent: &Spent) -> Result<(), Failure> {
    let Spent { org, run, subject, agent, model, provider, usage } = spent;
    if usage.is_zero() {
        return Ok(());
    }
    let hour = tx.at().ms() / HOUR * HOUR;
    tx.post(
        &ADD,
        args![
            *org,
            run.map_or(0, |run| run.0),
            *subject,
            agent.as_str(),
            model.as_str(),
            provider.as_str(),
            hour,
            usage.turns,
            usage.calls,
            usage.estimated,
            usage.input_tokens,
            usage.output_tokens,
            usage.machine_ms,
            usage.charged
        ],
    )
}

/// All that a run has used.
pub fn of_run(tx: &mut Tx, org: OrgId, run: RunId) -> Result<Usage, Failure> {
    sums(&tx.row(&OF_RUN, &args![org, run])?.expect("a sum is a row"), 0)
}

/// Usage by name, the dearest first. An empty name: what belongs to none.
pub type Named = Vec<(String, Usage)>;

/// What a run has used by agent, by model or by provider: the dearest.
pub fn of_run_by(tx: &mut Tx, org: OrgId, run: RunId, by: UsageBy, limit: i64) -> Result<Named, Failure> {
    let statement = match by {
        UsageBy::Model => &OF_RUN_BY_MODEL,
        UsageBy::Provider => &OF_RUN_BY_PROVIDER,
        UsageBy::Agent | UsageBy::Run | UsageBy::Day => &OF_RUN_BY_AGENT,
    };
    named(&tx.rows(statement, &args![org, run, limit])?)
}

/// What the steps of a run behind this one have used, in the order of their ids.
pub fn steps(
    tx: &mut Tx,
    org: OrgId,
    run: RunId,
    after: StepId,
    limit: i64,
) -> Result<Vec<(StepId, String, Usage)>, Failure> {
    let rows = tx.rows(&STEPS, &args![org, run, after.0.max(0), limit])?;
    rows.iter().map(|row| Ok((StepId(row.int(0)?), row.text(1)?, sums(row, 2)?))).collect()
}

/// What a run has used that belongs to no step: its machines, and the least that an attempt costs.
pub fn beside_steps(tx: &mut Tx, org: OrgId, run: RunId) -> Result<Usage, Failure> {
    sums(&tx.row(&BESIDE_STEPS, &args![org, run])?.expect("a sum is a row"), 0)
}

/// All that an org has used in the hours from the one to before the other.
pub fn of_org(tx: &mut Tx, org: OrgId, from: Timestamp, to: Timestamp) -> Result<Usage, Failure> {
    sums(&tx.row(&OF_ORG, &args![org, from, to])?.expect("a sum is a row"), 0)
}

/// The same in parts: the dearest, or of days the last. Runs and days are named by their number.
pub fn of_org_by(
    tx: &mut Tx,
    org: OrgId,
    span: (Timestamp, Timestamp),
    by: UsageBy,
    limit: i64,
) -> Result<Named, Failure> {
    let statement = match by {
        UsageBy::Run => &BY_RUN,
        UsageBy::Agent => &BY_AGENT,
        UsageBy::Model => &BY_MODEL,
        UsageBy::Provider => &BY_PROVIDER,
        UsageBy::Day => {
            return named(&tx.rows(&BY_DAY, &args![org, span.0, span.1, limit, DAY])?);
        }
    };
    named(&tx.rows(statement, &args![org, span.0, span.1, limit])?)
}

fn named(rows: &[Row]) -> Result<Named, Failure> {
    let name = |row: &Row| match row.value(0)? {
        Value::Int(number) => Ok(number.to_string()),
        _ => row.text(0),
    };
    rows.iter().map(|row| Ok((name(row)?, sums(row, 1)?))).collect()
}

/// Sums whose columns begin here. Those of no rows are NULL.
fn sums(row: &Row, from: usize) -> Result<Usage, Failure> {
    let sum = |at: usize| Ok::<i64, Failure>(row.opt_int(from + at)?.unwrap_or(0));
    Ok(Usage {
        turns: sum(0)?,
        calls: sum(1)?,
        estimated: sum(2)?,
        input_tokens: sum(3)?,
        output_tokens: sum(4)?,
        machine_ms: sum(5)?,
        charged: model::Credits(sum(6)?),
    })
}

pub(crate) const ALL: &[&Sql] = &[
    &ADD,
    &OF_RUN,
    &OF_RUN_BY_AGENT,
    &OF_RUN_BY_MODEL,
    &OF_RUN_BY_PROVIDER,
    &STEPS,
    &BESIDE_STEPS,
    &OF_ORG,
    &BY_RUN,
    &BY_AGENT,
    &BY_MODEL,
    &BY_PROVIDER,
    &BY_DAY,
];

const ADD: Sql = Sql::new(
    "INSERT INTO usage (org_id, run_id, subject, agent, model, provider, hour,
                        turns, calls, estimated, input_tokens, output_tokens, machine_ms, charged)
     VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)
         ON CONFLICT (org_id, run_id, subject, agent, model, provider, hour) DO UPDATE
        SET turns = usage.turns + excluded.turns, calls = usage.calls + excluded.calls,
            estimated = usage.estimated + excluded.estimated,
            input_tokens = usage.input_tokens + excluded.input_tokens,
            output_tokens = usage.output_tokens + excluded.output_tokens,
            machine_ms = usage.machine_ms + excluded.machine_ms, charged = usage.charged + excluded.charged",
);

macro_rules! summed {
    ($before:literal, $after:literal) => {
        Sql::new(concat!(
            "SELECT ",
            $before,
            "sum(turns), sum(calls), sum(estimated), sum(input_tokens), sum(output_tokens), sum(machine_ms), sum(charged)
       FROM usage WHERE org_id = $1 AND ",
            $after
        ))
    };
}

const OF_RUN: Sql = summed!("", "run_id = $2");
const OF_RUN_BY_AGENT: Sql = summed!("agent, ", "run_id = $2 GROUP BY agent ORDER BY 8 DESC, agent LIMIT $3");
const OF_RUN_BY_MODEL: Sql = summed!("model, ", "run_id = $2 GROUP BY model ORDER BY 8 DESC, model LIMIT $3");
const OF_RUN_BY_PROVIDER: Sql =
    summed!("provider, ", "run_id = $2 GROUP BY provider ORDER BY 8 DESC, provider LIMIT $3");
const STEPS: Sql =
    summed!("subject, max(model), ", "run_id = $2 AND subject > $3 GROUP BY subject ORDER BY subject LIMIT $4");
const BESIDE_STEPS: Sql = summed!("", "run_id = $2 AND subject = 0");

const OF_ORG: Sql = summed!("", "hour >= $2 AND hour < $3");
const BY_RUN: Sql = summed!("run_id, ", "hour >= $2 AND hour < $3 GROUP BY run_id ORDER BY 8 DESC, run_id LIMIT $4");
const BY_AGENT: Sql = summed!("agent, ", "hour >= $2 AND hour < $3 GROUP BY agent ORDER BY 8 DESC, agent LIMIT $4");
const BY_MODEL: Sql = summed!("model, ", "hour >= $2 AND hour < $3 GROUP BY model ORDER BY 8 DESC, model LIMIT $4");
const BY_PROVIDER: Sql =
    summed!("provider, ", "hour >= $2 AND hour < $3 GROUP BY provider ORDER BY 8 DESC, provider LIMIT $4");
const BY_DAY: Sql = summed!("hour / $5 * $5, ", "hour >= $2 AND hour < $3 GROUP BY 1 ORDER BY 1 DESC LIMIT $4");
