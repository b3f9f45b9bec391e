//! Routes of allocations: what is held, prolonging and giving up.

use crate::auth::{Reader, Writer};
use crate::problem::HandlerResult;
use crate::routes::{Asked, Nothing, Paging, Path, Query, answered, id, page};
use crate::{Shared, now_ms};
use axum::Json;
use axum::extract::State;
use engine::allocation::{AllocationOverview, SlotRender};
use model::AllocationId;
use serde::Deserialize;
use std::sync::Arc;
use wire::api::{AllocationView, ExtendBody, Page};

#[derive(Debug, Default, Deserialize, utoipa::IntoParams)]
#[serde(default)]
#[into_params(parameter_in = Query)]
pub(crate) struct Filter {
    /// Only those whose folder is held after their end.
    held: Option<bool>,
    /// How many at most; 50 unless given.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<i64>,
    /// `next_cursor` of the page before.
    cursor: Option<String>,
}

impl Filter {
    pub(crate) fn held(limit: i64, cursor: Option<String>) -> Filter {
        Filter { held: Some(true), limit: Some(limit), cursor }
    }
}

pub(crate) async fn list(
    State(state): State<Shared>,
    reader: Reader,
    Query(filter): Query<Filter>,
) -> HandlerResult<Json<Page<AllocationView>>> {
    let paging = Paging { limit: filter.limit, cursor: filter.cursor };
    let (limit, before) = (paging.limit()?, paging.before()?);
    let found = match filter.held {
        Some(true) => state.engine.held_allocations(reader.org(), before, limit).await?,
        _ => state.engine.allocations(reader.org(), before, limit).await?,
    };
    Ok(page(found, limit, |p| p.allocation.id.0, |p| view(p, now_ms())))
}

pub(crate) async fn show(
    State(state): State<Shared>,
    reader: Reader,
    Path(slot): Path<String>,
) -> HandlerResult<Json<AllocationView>> {
    let snapshot = state.engine.allocation(reader.org(), id("allocation", &slot)?).await?;
    Ok(Json(view(&snapshot, now_ms())))
}

pub(crate) async fn extend(
    State(state): State<Shared>,
    writer: Writer,
    Path(slot): Path<String>,
    asked: Asked<ExtendBody>,
) -> HandlerResult {
    let (slot, key): (AllocationId, _) = (id("allocation", &slot)?, asked.key(writer.org()));
    if asked.value.duration_ms.is_some_and(|ms| ms <= 0) {
        return Err(model::Refused::invalid("duration", "must be longer than nothing, e.g. 2h").into());
    }
    answered(state.engine.extend(&writer.0, slot, asked.value.duration_ms, key, render()).await?)
}

pub(crate) async fn release(
    State(state): State<Shared>,
    writer: Writer,
    Path(slot): Path<String>,
    asked: Asked<Nothing>,
) -> HandlerResult {
    let (slot, key): (AllocationId, _) = (id("allocation", &slot)?, asked.key(writer.org()));
    answered(state.engine.release(&writer.0, slot, key, render()).await?)
}

fn render() -> SlotRender {
    let now = now_ms();
    Arc::new(move |snapshot: &AllocationOverview| {
        serde_json::to_vec(&view(snapshot, now)).expect("a view is plain data")
    })
}

fn view(snapshot: &AllocationOverview, now: i64) -> AllocationView {
    let a = &snapshot.allocation;
    AllocationView {
        id: a.id.to_string(),
        instance: a.instance.to_string(),
        job: a.job.map(|j| j.to_string()),
        run: snapshot.run.map(|r| r.to_string()),
        manifest: a.manifest.map(|m| m.to_string()),
        status: a.status.to_string(),
        user: a.user.clone(),
        workdir: a.workdir.clone(),
        path: snapshot.path.clone(),
        debug_hold_until: a.debug_hold_until.map(|at| at.ms()),
        held: a.hold().is_some_and(|hold| hold.until.ms() > now),
        created_at: a.created_at.ms(),
        completed_at: a.completed_at.map(|at| at.ms()),
    }
}
