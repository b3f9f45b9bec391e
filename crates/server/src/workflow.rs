//! Routes of workflows.

use crate::auth::{Reader, Writer};
use crate::problem::Answer;
use crate::routes::{Paging, id, page};
use crate::{Shared, view};
use axum::Json;
use axum::extract::{Path, Query, State};
use model::workflow::Workflow;
use wire::api::{Page, WorkflowView};

pub(crate) async fn list(
    State(house): State<Shared>,
    reader: Reader,
    Query(paging): Query<Paging>,
) -> Answer<Json<Page<WorkflowView>>> {
    let (limit, before) = (paging.limit()?, paging.before()?);
    let found = house.engine.workflows(reader.org(), before, limit).await?;
    Ok(page(found, limit, |w| w.id.0, show_one))
}

pub(crate) async fn show(
    State(house): State<Shared>,
    reader: Reader,
    Path(workflow): Path<String>,
) -> Answer<Json<WorkflowView>> {
    let found = house.engine.workflow(reader.org(), id("workflow", &workflow)?).await?;
    Ok(Json(show_one(&found)))
}

pub(crate) async fn cancel(
    State(house): State<Shared>,
    writer: Writer,
    Path(workflow): Path<String>,
) -> Answer<Json<WorkflowView>> {
    let found = house.engine.cancel_workflow(writer.org(), id("workflow", &workflow)?).await?;
    Ok(Json(show_one(&found)))
}

pub(crate) async fn retry(
    State(house): State<Shared>,
    writer: Writer,
    Path(workflow): Path<String>,
) -> Answer<Json<WorkflowView>> {
    let found = house.engine.retry_workflow(writer.org(), id("workflow", &workflow)?).await?;
    Ok(Json(show_one(&found)))
}

fn show_one(workflow: &Workflow) -> WorkflowView {
    let run = workflow.input.get("run").and_then(|run| run.as_str()).map(str::to_owned);
    view::workflow(workflow, run)
}
