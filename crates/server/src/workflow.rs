//! Routes of workflows.

use crate::auth::{Reader, Writer};
use crate::problem::HandlerResult;
use crate::routes::{Asked, Nothing, Paging, Path, Query, answered, id, page};
use crate::{Shared, view};
use axum::Json;
use axum::extract::State;
use engine::workflow::WorkflowRender;
use model::workflow::Workflow;
use std::sync::Arc;
use wire::api::{CancelBody, Page, WorkflowView};

pub(crate) async fn list(
    State(state): State<Shared>,
    reader: Reader,
    Query(paging): Query<Paging>,
) -> HandlerResult<Json<Page<WorkflowView>>> {
    let (limit, before) = (paging.limit()?, paging.before()?);
    let found = state.engine.workflows(reader.org(), before, limit).await?;
    Ok(page(found, limit, |w| w.id.0, show_one))
}

pub(crate) async fn show(
    State(state): State<Shared>,
    reader: Reader,
    Path(workflow): Path<String>,
) -> HandlerResult<Json<WorkflowView>> {
    let found = state.engine.workflow(reader.org(), id("workflow", &workflow)?).await?;
    Ok(Json(show_one(&found)))
}

pub(crate) async fn cancel(
    State(state): State<Shared>,
    writer: Writer,
    Path(workflow): Path<String>,
    asked: Asked<CancelBody>,
) -> HandlerResult {
    let (workflow, key) = (id("workflow", &workflow)?, asked.key(writer.org()));
    answered(state.engine.cancel_workflow(&writer.0, workflow, asked.value.reason, key, render()).await?)
}

pub(crate) async fn retry(
    State(state): State<Shared>,
    writer: Writer,
    Path(workflow): Path<String>,
    asked: Asked<Nothing>,
) -> HandlerResult {
    let (workflow, key) = (id("workflow", &workflow)?, asked.key(writer.org()));
    answered(state.engine.retry_workflow(&writer.0, workflow, key, render()).await?)
}

fn render() -> WorkflowRender {
    Arc::new(|workflow: &Workflow| serde_json::to_vec(&show_one(workflow)).expect("a view is plain data"))
}

fn show_one(workflow: &Workflow) -> WorkflowView {
    let run = workflow.input.get("run").and_then(|run| run.as_str()).map(str::to_owned);
    view::workflow(workflow, run)
}
