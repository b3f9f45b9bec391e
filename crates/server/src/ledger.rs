//! Routes of credits: balance, ledger, and adding.

use crate::auth::{Admin, Reader};
use crate::problem::HandlerResult;
use crate::routes::{Asked, Paging, Path, Query, answered, id, page};
use crate::{Shared, view};
use axum::Json;
use axum::extract::State;
use model::{Credits, Refused};
use std::sync::Arc;
use wire::api::{AddCredits, BalanceView, LedgerRow, Page};

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
    let render =
        Arc::new(|org: &engine::org::Org| serde_json::to_vec(&view::balance(org)).expect("a view is plain data"));
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
