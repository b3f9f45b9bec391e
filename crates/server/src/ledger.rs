//! Routes of credits: balance, ledger, usage, and adding.

use crate::auth::{Admin, Reader};
use crate::problem::HandlerResult;
use crate::routes::{Asked, Paging, Path, Query, answered, id, page};
use crate::{Shared, now_ms, view};
use axum::Json;
use axum::extract::State;
use engine::store::EntryKind;
use model::{Credits, Refused, RunId};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::sync::Arc;
use wire::api::{AddCredits, BalanceView, LedgerRow, Page, UsageRow, UsageView};

/// Runs that a usage report names; the total counts all.
const USAGE_ROWS: usize = 200;

pub(crate) async fn balance(State(state): State<Shared>, reader: Reader) -> HandlerResult<Json<BalanceView>> {
    Ok(Json(view::balance(&state.engine.balance(reader.org()).await?)))
}

pub(crate) async fn add(State(state): State<Shared>, admin: Admin, asked: Asked<AddCredits>) -> HandlerResult {
    let amount: Credits = asked
        .value
        .amount
        .parse()
        .map_err(|e: model::credits::BadCredits| Refused::invalid("amount", e.to_string()))?;
    if amount.is_zero() {
        return Err(Refused::invalid("amount", "must be more than nothing").into());
    }
    let memo = asked.value.memo.clone().unwrap_or_default();
    let render = Arc::new(|org: &engine::store::org::Org| {
        serde_json::to_vec(&view::balance(org)).expect("a view is plain data")
    });
    answered(state.engine.add_credits(admin.org(), amount, memo, asked.key(admin.org()), render).await?)
}

pub(crate) async fn rows(
    State(state): State<Shared>,
    reader: Reader,
    Query(paging): Query<Paging>,
) -> HandlerResult<Json<Page<LedgerRow>>> {
    let (limit, after) = (paging.limit()?, paging.after()?);
    let found = state.engine.ledger(reader.org(), after, limit).await?;
    Ok(page(found, limit, |row| row.seq, view::ledger_row))
}

pub(crate) async fn of_run(
    State(state): State<Shared>,
    reader: Reader,
    Path(run): Path<String>,
    Query(paging): Query<Paging>,
) -> HandlerResult<Json<Page<LedgerRow>>> {
    let (limit, after, run) = (paging.limit()?, paging.after()?, id("run", &run)?);
    state.engine.run(reader.org(), run).await?;
    let found = state.engine.ledger_of_run(reader.org(), run, after, limit).await?;
    Ok(page(found, limit, |row| row.seq, view::ledger_row))
}

#[derive(Debug, Default, Deserialize, utoipa::IntoParams)]
#[serde(default)]
#[into_params(parameter_in = Query)]
pub(crate) struct Span {
    /// Unix milliseconds; a day ago unless given.
    since_ms: Option<i64>,
}

/// What was charged within a span, by run; holds and idle machines have none.
pub(crate) async fn usage(
    State(state): State<Shared>,
    reader: Reader,
    Query(span): Query<Span>,
) -> HandlerResult<Json<UsageView>> {
    const DAY_MS: i64 = 24 * 60 * 60 * 1000;
    let to = now_ms();
    let from = span.since_ms.unwrap_or(to - DAY_MS);
    let mut sums: BTreeMap<Option<RunId>, Credits> = BTreeMap::new();
    let mut after = 0;
    loop {
        let rows = state.engine.ledger(reader.org(), after, 1000).await?;
        let Some(last) = rows.last() else { break };
        after = last.seq;
        for row in rows.iter().filter(|row| row.entry.kind == EntryKind::Charge && row.at.ms() >= from) {
            let sum = sums.entry(row.entry.run).or_default();
            *sum = *sum + row.entry.amount;
        }
    }
    let total: Credits = sums.values().copied().sum();
    let mut largest: Vec<(Option<RunId>, Credits)> = sums.into_iter().collect();
    largest.sort_by_key(|(_, charged)| std::cmp::Reverse(*charged));
    largest.truncate(USAGE_ROWS);
    let names = state.engine.run_names(reader.org(), largest.iter().filter_map(|(run, _)| *run).collect()).await?;
    let runs = largest.into_iter().map(|(run, charged)| UsageRow {
        name: run.and_then(|run| names.get(&run).cloned()),
        run: run.map(|run| run.to_string()),
        charged: charged.to_string(),
        charged_micro: charged.micro(),
    });
    let runs = runs.collect();
    Ok(Json(UsageView { from, to, total: total.to_string(), total_micro: total.micro(), runs }))
}
