//! Routes of pools.

use crate::Shared;
use crate::auth::Reader;
use crate::problem::HandlerResult;
use crate::routes::{Paging, Query, part};
use crate::view;
use axum::extract::State;
use wire::api::{PoolView, Waiting};

pub(crate) async fn pools(State(state): State<Shared>, _: Reader, Query(paging): Query<Paging>) -> HandlerResult {
    let found = state.engine.pools().await?;
    let data = found.into_iter().map(|p| PoolView {
        id: p.pool.id.to_string(),
        provider: p.pool.provider,
        region: p.pool.region,
        instances: p.room.instances,
        max_instances: p.room.max_instances,
        available: p.available,
        busy: p.busy,
        waiting: p.waiting,
    });
    part(data.collect(), &paging)
}

/// Runs that are explained at once.
const EXPLAINED: usize = 20;

/// Newest first; those beyond the first are found by their state.
pub(crate) async fn waiting(
    State(state): State<Shared>,
    reader: Reader,
    Query(paging): Query<Paging>,
) -> HandlerResult {
    let found = state.engine.waiting(reader.org(), EXPLAINED).await?;
    let data = found.into_iter().map(|(it, why)| Waiting {
        run: it.run.id.to_string(),
        name: it.run.name,
        created_at: it.run.created_at.ms(),
        summary: why.summary,
        facts: why.facts,
        spans: why.spans.iter().map(view::why_span).collect(),
    });
    part(data.collect(), &paging)
}
