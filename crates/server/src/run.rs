//! Routes of runs.

use crate::auth::{Reader, Writer};
use crate::problem::{Answer, Problem};
use crate::routes::{Asked, Paging, Path, Query, answered, id, page, part};
use crate::{Shared, now_ms, submit, view};
use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::IntoResponse as _;
use engine::run::{Action, Render};
use engine::view::{Picture, Which};
use model::run::RunStatus;
use model::{OrgId, Refused, RunId, Timestamp};
use serde::Deserialize;
use std::sync::Arc;
use wire::api::{ActionBody, Page, RunView, Submit};

/// Most runs are shown in so much: the answer is made while other submissions wait for the database.
const SHOWN_BYTES: usize = 2048;

pub(crate) async fn submit(State(house): State<Shared>, writer: Writer, asked: Asked<Submit>) -> Answer {
    let key = asked.key(writer.org());
    let dry_run = asked.value.dry_run;
    let submission = submit::submission(&house.engine.house, writer.org(), asked.value)?;
    if dry_run {
        // Nothing is written, so nothing is kept under the key either: asked again, it is planned again.
        let plan = house.engine.plan(&submission).await?;
        return Ok(Json(view::plan(&submission.spec, &plan)).into_response());
    }
    answered(house.engine.submit(submission, key, render()).await?)
}

#[derive(Debug, Default, Deserialize, utoipa::IntoParams)]
#[serde(default)]
#[into_params(parameter_in = Query)]
pub(crate) struct Filter {
    /// Also those that have ended.
    all: Option<bool>,
    /// The open run of this name, or the newest.
    name: Option<String>,
    /// Only these, open or ended.
    status: Option<String>,
    /// How many at most; 50 unless given.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<i64>,
    /// `next_cursor` of the page before.
    cursor: Option<String>,
}

pub(crate) async fn list(
    State(house): State<Shared>,
    reader: Reader,
    Query(filter): Query<Filter>,
) -> Answer<Json<Page<RunView>>> {
    let paging = Paging { limit: filter.limit, cursor: filter.cursor };
    let (limit, before) = (paging.limit()?, paging.before()?);
    let (status, now) = (filter.status.as_deref().map(status).transpose()?, Timestamp(now_ms()));
    let show = |p: &Picture| view::run(p, now);
    if let Some(name) = filter.name {
        let named = house.engine.named_picture(reader.org(), name).await?;
        let kept = named.filter(|p| status.is_none_or(|wanted| wanted == p.run.status));
        return Ok(Json(Page { data: kept.iter().map(show).collect(), next_cursor: None }));
    }
    let which = match status {
        Some(status) => Which::Of(status),
        None if filter.all == Some(true) => Which::All,
        None => Which::Open,
    };
    Ok(page(house.engine.pictures(reader.org(), which, before, limit).await?, limit, |p| p.run.id.0, show))
}

fn status(text: &str) -> Result<RunStatus, Problem> {
    text.parse().map_err(|e: model::words::UnknownWord| Refused::invalid("status", e.to_string()).into())
}

pub(crate) async fn show(
    State(house): State<Shared>,
    reader: Reader,
    Path(run): Path<String>,
) -> Answer<Json<RunView>> {
    let picture = house.engine.picture(reader.org(), id("run", &run)?).await?;
    Ok(Json(view::run(&picture, Timestamp(now_ms()))))
}

pub(crate) async fn tree(
    State(house): State<Shared>,
    reader: Reader,
    Path(run): Path<String>,
) -> Answer<Json<wire::api::Tree>> {
    let tree = house.engine.tree(reader.org(), id("run", &run)?).await?;
    Ok(Json(view::tree(&tree, Timestamp(now_ms()))))
}

pub(crate) async fn why(
    State(house): State<Shared>,
    reader: Reader,
    Path(run): Path<String>,
) -> Answer<Json<wire::api::Why>> {
    let (picture, why) = house.engine.why(reader.org(), id("run", &run)?).await?;
    Ok(Json(wire::api::Why {
        run: picture.run.id.to_string(),
        status: picture.run.status.to_string(),
        phase: picture.run.phase.map(|p| p.to_string()),
        summary: why.summary,
        facts: why.facts,
        next: why.next,
    }))
}

pub(crate) async fn attempts(
    State(house): State<Shared>,
    reader: Reader,
    Path(run): Path<String>,
    Query(paging): Query<Paging>,
) -> Answer {
    let attempts = house.engine.attempts(reader.org(), id("run", &run)?).await?;
    part(attempts.iter().map(view::attempt).collect(), &paging)
}

pub(crate) async fn agents(
    State(house): State<Shared>,
    reader: Reader,
    Path(run): Path<String>,
    Query(paging): Query<Paging>,
) -> Answer {
    let tree = house.engine.tree(reader.org(), id("run", &run)?).await?;
    part(tree.agents.iter().map(view::agent).collect(), &paging)
}

pub(crate) async fn tasks(
    State(house): State<Shared>,
    reader: Reader,
    Path(run): Path<String>,
    Query(paging): Query<Paging>,
) -> Answer {
    let tree = house.engine.tree(reader.org(), id("run", &run)?).await?;
    part(tree.tasks.iter().map(view::task).collect(), &paging)
}

pub(crate) async fn steps(
    State(house): State<Shared>,
    reader: Reader,
    Path(run): Path<String>,
    Query(paging): Query<Paging>,
) -> Answer {
    let tree = house.engine.tree(reader.org(), id("run", &run)?).await?;
    part(tree.steps.iter().map(view::step).collect(), &paging)
}

pub(crate) async fn jobs(
    State(house): State<Shared>,
    reader: Reader,
    Path(run): Path<String>,
    Query(paging): Query<Paging>,
) -> Answer {
    let jobs = house.engine.seen_jobs(reader.org(), id("run", &run)?).await?;
    part(jobs.iter().map(view::job).collect(), &paging)
}

pub(crate) async fn start(
    State(house): State<Shared>,
    writer: Writer,
    Path(run): Path<String>,
    asked: Asked<ActionBody>,
) -> Answer {
    act(&house, writer.org(), &run, Action::Start, &asked).await
}

pub(crate) async fn cancel(
    State(house): State<Shared>,
    writer: Writer,
    Path(run): Path<String>,
    asked: Asked<ActionBody>,
) -> Answer {
    act(&house, writer.org(), &run, Action::Cancel { abort: asked.value.abort }, &asked).await
}

pub(crate) async fn pause(
    State(house): State<Shared>,
    writer: Writer,
    Path(run): Path<String>,
    asked: Asked<ActionBody>,
) -> Answer {
    act(&house, writer.org(), &run, Action::Pause, &asked).await
}

pub(crate) async fn resume(
    State(house): State<Shared>,
    writer: Writer,
    Path(run): Path<String>,
    asked: Asked<ActionBody>,
) -> Answer {
    act(&house, writer.org(), &run, Action::Resume, &asked).await
}

pub(crate) async fn retry(
    State(house): State<Shared>,
    writer: Writer,
    Path(run): Path<String>,
    asked: Asked<ActionBody>,
) -> Answer {
    act(&house, writer.org(), &run, Action::Retry { force: asked.value.force }, &asked).await
}

pub(crate) async fn delete(State(house): State<Shared>, writer: Writer, Path(run): Path<String>) -> Answer<StatusCode> {
    house.engine.delete(writer.org(), id("run", &run)?).await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn act(house: &Shared, org: OrgId, run: &str, action: Action, asked: &Asked<ActionBody>) -> Answer {
    let run: RunId = id("run", run)?;
    answered(house.engine.act_on(org, run, action, asked.key(org), render()).await?)
}

fn render() -> Render {
    let now = Timestamp(now_ms());
    Arc::new(move |picture: &Picture| {
        let mut body = Vec::with_capacity(SHOWN_BYTES);
        serde_json::to_writer(&mut body, &view::run(picture, now)).expect("a view is plain data");
        body
    })
}
