//! Routes of snapshots.

use crate::Shared;
use crate::auth::{Reader, Writer};
use crate::problem::HandlerResult;
use crate::routes::{Asked, Nothing, Paging, Path, Query, answered, id, page};
use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use model::snapshot::Snapshot;
use std::sync::Arc;
use wire::api::{Page, SnapshotView};

pub(crate) async fn create(
    State(state): State<Shared>,
    writer: Writer,
    Path(allocation): Path<String>,
    asked: Asked<Nothing>,
) -> HandlerResult {
    let (allocation, org) = (id("allocation", &allocation)?, writer.org());
    let render = Arc::new(|made: &Snapshot| serde_json::to_vec(&shown(made)).expect("a view is plain data"));
    answered(state.engine.create_snapshot(org, allocation, asked.key(org), render).await?)
}

pub(crate) async fn list(
    State(state): State<Shared>,
    reader: Reader,
    Query(paging): Query<Paging>,
) -> HandlerResult<Json<Page<SnapshotView>>> {
    let (limit, before) = (paging.limit()?, paging.before()?);
    let found = state.engine.workdir_snapshots(reader.org(), before, limit).await?;
    Ok(page(found, limit, |it| it.id.0, shown))
}

pub(crate) async fn show(
    State(state): State<Shared>,
    reader: Reader,
    Path(snapshot): Path<String>,
) -> HandlerResult<Json<SnapshotView>> {
    let found = state.engine.workdir_snapshot(reader.org(), id("snapshot", &snapshot)?).await?;
    Ok(Json(shown(&found)))
}

pub(crate) async fn delete(
    State(state): State<Shared>,
    writer: Writer,
    Path(snapshot): Path<String>,
) -> HandlerResult<StatusCode> {
    state.engine.delete_snapshot(writer.org(), id("snapshot", &snapshot)?).await?;
    Ok(StatusCode::NO_CONTENT)
}

fn shown(it: &Snapshot) -> SnapshotView {
    let tree = it.tree.as_ref();
    SnapshotView {
        id: it.id.to_string(),
        status: it.status.to_string(),
        run: it.run.map(|run| run.to_string()),
        allocation: it.allocation.to_string(),
        instance: it.instance.to_string(),
        workflow: it.workflow.to_string(),
        manifest: it.manifest.to_string(),
        tree: tree.map(|tree| tree.hash.clone()),
        files: tree.map(|tree| tree.files),
        bytes: tree.map(|tree| tree.bytes),
        error: it.error.clone(),
        created_at: it.created_at.ms(),
        ready_at: it.ready_at.map(|at| at.ms()),
        deleted_at: it.deleted_at.map(|at| at.ms()),
    }
}
