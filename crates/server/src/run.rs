//! Routes of runs.

use crate::auth::{Reader, Writer};
use crate::problem::{HandlerResult, Problem};
use crate::routes::{Asked, Paging, Path, Query, answered, id, page, part};
use crate::{Shared, agents, now_ms, step, submit, view};
use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::IntoResponse as _;
use engine::external::FirstRender;
use engine::run::{Action, KeyedResponse, Render};
use engine::view::{RunSnapshot, Which};
use engine::{Hint, Token};
use model::run::RunStatus;
use model::spec::RunKind;
use model::tree::TreeRef;
use model::{Failure, OrgId, Refused, RunId, SnapshotId, Timestamp};
use serde::Deserialize;
use std::sync::Arc;
use std::time::Duration;
use wire::api::{ActionBody, JobView, Page, RunView, Submit};

/// Most runs are shown in so much: the answer is made while other submissions wait for the database.
const SHOWN_BYTES: usize = 2048;

/// Of a text that runs are looked for by.
const LONGEST_TEXT: usize = 200;

/// The longest that a submission waits for the run's end.
const LONGEST_WAIT_MS: i64 = 60 * model::time::SECOND;

#[derive(Debug, Default, Deserialize, utoipa::IntoParams)]
#[serde(default)]
#[into_params(parameter_in = Query)]
pub(crate) struct Waiting {
    /// Answer when it is over, with its output, or after this long, e.g. `30s`; at most 60s.
    #[param(pattern = r"^([1-9][0-9]{0,3}ms|[1-5]?[0-9]s)$")]
    wait: Option<String>,
}

impl Waiting {
    pub(crate) fn ms(&self) -> Result<Option<i64>, Problem> {
        let Some(text) = &self.wait else { return Ok(None) };
        let ms = model::time::parse_duration(text).map_err(|why| Refused::invalid("wait", why.to_string()))?;
        if ms > LONGEST_WAIT_MS { Err(Refused::invalid("wait", "at most 60s").into()) } else { Ok(Some(ms)) }
    }
}

pub(crate) async fn submit(
    State(state): State<Shared>,
    writer: Writer,
    Query(waiting): Query<Waiting>,
    asked: Asked<Submit>,
) -> HandlerResult {
    let wait_ms = waiting.ms()?;
    let key = asked.key(writer.org());
    let dry_run = asked.value.dry_run;
    let first = submit::first_step(&asked.value, wait_ms.is_some())?;
    let mut submission = if submit::is_of_agents(&asked.value) {
        let asked = agents::submission(&state.engine.context, writer.org(), asked.value)?;
        if dry_run {
            let (available, machines) = state.engine.check_agents(&asked.submission).await?;
            return Ok(Json(agents::dry_run(&asked, available, &machines)).into_response());
        }
        asked.submission
    } else {
        let named = asked.value.snapshot.clone();
        let org = writer.org();
        let limited = state.engine.context.limits_orgs();
        let named_providers: Vec<String> = asked.value.provider.iter().chain(&asked.value.providers).cloned().collect();
        state.engine.know_hosts(&named_providers).await?;
        let name = if limited { state.engine.balance(org).await?.name } else { String::new() };
        let mut submission = submit::submission(&state.engine.context, (org, &name), asked.value)?;
        if let Some(named) = named {
            submission.spec.base = Some(tree_of(&state, org, &named).await?);
            submission.spec.check()?;
        }
        submission
    };
    if dry_run {
        // Nothing is written, so nothing is kept under the key either: asked again, it is planned again.
        let plan = state.engine.plan(&submission).await?;
        return Ok(Json(view::plan(&submission.spec, &plan)).into_response());
    }
    submission.by = Some(writer.0.described());
    let response = match first {
        Some(first) => state.engine.submit_with_step(submission, first, key, render_with_step()).await?,
        None => state.engine.submit(submission, key, render()).await?,
    };
    match wait_ms {
        Some(ms) if response.status == 201 => ended_within(&state, writer.org(), response, ms).await,
        _ => answered(response),
    }
}

/// The files of the snapshot that a run is to start from.
async fn tree_of(state: &Shared, org: OrgId, named: &str) -> Result<TreeRef, Failure> {
    let none = || Refused::invalid("snapshot", format!("there is no snapshot `{named}` (repl snapshot ls)"));
    let id: SnapshotId = named.parse().map_err(|_| none())?;
    match state.engine.snapshot_tree(org, id).await {
        Err(Failure::Refused(Refused::NotFound { .. })) => Err(none().into()),
        Err(Failure::Refused(Refused::Gone { why, .. })) => {
            Err(Refused::invalid("snapshot", format!("`{named}` cannot be used: {why}")).into())
        }
        other => other,
    }
}

/// The run as it is when it has ended, or when the time is up. A client whose time is up can ask again by the run's id.
async fn ended_within(state: &Shared, org: OrgId, response: KeyedResponse, ms: i64) -> HandlerResult {
    let run: RunView = serde_json::from_slice(&response.body).map_err(|error| Problem::internal(error.to_string()))?;
    let id: RunId = id("run", &run.id)?;
    let mut bell = state.hub.follow(Hint::Run(id));
    let mut closing = state.closing.subscribe();
    let until = tokio::time::Instant::now() + Duration::from_millis(ms as u64);
    loop {
        let snapshot = state.engine.snapshot(org, id).await?;
        let over = snapshot.run.status.is_end() || *closing.borrow() || tokio::time::Instant::now() >= until;
        if over {
            let view = shown(state, org, &snapshot).await?;
            return Ok((StatusCode::CREATED, Json(view)).into_response());
        }
        tokio::select! {
            () = bell.rung() => {}
            () = tokio::time::sleep_until(until) => {}
            _ = closing.changed() => {}
        }
    }
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
    /// Of the newest 10,000 runs, those whose name or command holds this text in any case: open or ended ones, unless `status` names a
    /// state, or `all=false` asks for open ones.
    q: Option<String>,
    /// How many at most; 50 unless given.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<i64>,
    /// `next_cursor` of the page before.
    cursor: Option<String>,
}

impl Filter {
    pub(crate) fn of(all: bool, status: Option<String>, q: Option<String>, cursor: Option<String>) -> Filter {
        Filter { all: Some(all), status, q, cursor, ..Filter::default() }
    }
}

pub(crate) async fn list(
    State(state): State<Shared>,
    reader: Reader,
    Query(filter): Query<Filter>,
) -> HandlerResult<Json<Page<RunView>>> {
    let paging = Paging { limit: filter.limit, cursor: filter.cursor };
    let (limit, before) = (paging.limit()?, paging.before()?);
    let (status, now) = (filter.status.as_deref().map(status).transpose()?, Timestamp(now_ms()));
    let show = |p: &RunSnapshot| view::run(p, now);
    if let Some(name) = filter.name {
        if filter.q.is_some() {
            return Err(Refused::invalid("q", "give either `name` or `q`, not both").into());
        }
        let named = state.engine.run_by_name(reader.org(), name).await?;
        let kept = named.filter(|p| status.is_none_or(|wanted| wanted == p.run.status));
        return Ok(Json(Page { data: kept.iter().map(show).collect(), next_cursor: None }));
    }
    if let Some(text) = filter.q {
        if text.chars().count() > LONGEST_TEXT {
            return Err(Refused::invalid("q", format!("at most {LONGEST_TEXT} characters")).into());
        }
        let which = match status {
            Some(status) => Which::Of(status),
            None if filter.all == Some(false) => Which::Open,
            None => Which::All,
        };
        let found = state.engine.search_runs(reader.org(), (which, text), before, limit).await?;
        return Ok(page(found, limit, |p| p.run.id.0, show));
    }
    let which = match status {
        Some(status) => Which::Of(status),
        None if filter.all == Some(true) => Which::All,
        None => Which::Open,
    };
    Ok(page(state.engine.list_runs(reader.org(), which, before, limit).await?, limit, |p| p.run.id.0, show))
}

fn status(text: &str) -> Result<RunStatus, Problem> {
    text.parse().map_err(|e: model::string_enum::UnknownWord| Refused::invalid("status", e.to_string()).into())
}

pub(crate) async fn show(
    State(state): State<Shared>,
    reader: Reader,
    Path(run): Path<String>,
) -> HandlerResult<Json<RunView>> {
    let snapshot = state.engine.snapshot(reader.org(), id("run", &run)?).await?;
    Ok(Json(shown(&state, reader.org(), &snapshot).await?))
}

/// A run by itself: of a run of agents also its plan, what it was given and what it answers.
async fn shown(state: &Shared, org: OrgId, snapshot: &RunSnapshot) -> HandlerResult<RunView> {
    let view = view::run(snapshot, Timestamp(now_ms()));
    if !matches!(snapshot.run.spec.kind, RunKind::Agents | RunKind::External) {
        return Ok(view);
    }
    let values = state.engine.run_values(org, snapshot.run.id).await?;
    let (task, inputs, output) = (values.goal, values.inputs, values.output);
    let context = view::context(&snapshot.run, values.plan);
    Ok(RunView { task, context, inputs, output, output_error: values.output_error, ..view })
}

pub(crate) async fn why(
    State(state): State<Shared>,
    reader: Reader,
    Path(run): Path<String>,
) -> HandlerResult<Json<wire::api::Why>> {
    let (snapshot, why) = state.engine.why(reader.org(), id("run", &run)?).await?;
    Ok(Json(wire::api::Why {
        run: snapshot.run.id.to_string(),
        status: snapshot.run.status.to_string(),
        phase: snapshot.run.phase.map(|p| p.to_string()),
        summary: why.summary,
        facts: why.facts,
        next: why.next,
        spans: why.spans.iter().map(view::why_span).collect(),
        attention: why.attention,
    }))
}

pub(crate) async fn attempts(
    State(state): State<Shared>,
    reader: Reader,
    Path(run): Path<String>,
    Query(paging): Query<Paging>,
) -> HandlerResult {
    let attempts = state.engine.attempts(reader.org(), id("run", &run)?).await?;
    part(attempts.iter().map(view::attempt).collect(), &paging)
}

pub(crate) async fn jobs(
    State(state): State<Shared>,
    reader: Reader,
    Path(run): Path<String>,
    Query(paging): Query<Paging>,
) -> HandlerResult<Json<Page<JobView>>> {
    let limit = paging.limit()?;
    let jobs = state.engine.seen_jobs(reader.org(), id("run", &run)?, paging.after()?, limit).await?;
    Ok(page(jobs, limit, |seen| seen.job.id.0, view::job))
}

pub(crate) async fn start(
    State(state): State<Shared>,
    writer: Writer,
    Path(run): Path<String>,
    asked: Asked<ActionBody>,
) -> HandlerResult {
    act(&state, &writer.0, &run, Action::Start, &asked).await
}

pub(crate) async fn cancel(
    State(state): State<Shared>,
    writer: Writer,
    Path(run): Path<String>,
    asked: Asked<ActionBody>,
) -> HandlerResult {
    act(&state, &writer.0, &run, Action::Cancel { abort: asked.value.abort }, &asked).await
}

pub(crate) async fn pause(
    State(state): State<Shared>,
    writer: Writer,
    Path(run): Path<String>,
    asked: Asked<ActionBody>,
) -> HandlerResult {
    act(&state, &writer.0, &run, Action::Pause, &asked).await
}

pub(crate) async fn resume(
    State(state): State<Shared>,
    writer: Writer,
    Path(run): Path<String>,
    asked: Asked<ActionBody>,
) -> HandlerResult {
    act(&state, &writer.0, &run, Action::Resume, &asked).await
}

pub(crate) async fn retry(
    State(state): State<Shared>,
    writer: Writer,
    Path(run): Path<String>,
    asked: Asked<ActionBody>,
) -> HandlerResult {
    act(&state, &writer.0, &run, Action::Retry { force: asked.value.force }, &asked).await
}

pub(crate) async fn delete(
    State(state): State<Shared>,
    writer: Writer,
    Path(run): Path<String>,
) -> HandlerResult<StatusCode> {
    state.engine.delete(&writer.0, id("run", &run)?).await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn act(state: &Shared, by: &Token, run: &str, action: Action, asked: &Asked<ActionBody>) -> HandlerResult {
    let run: RunId = id("run", run)?;
    answered(state.engine.act_on(by, run, action, asked.key(by.org), render()).await?)
}

fn render_with_step() -> FirstRender {
    let now = Timestamp(now_ms());
    Arc::new(move |snapshot, standing| {
        let view = RunView { step: Some(step::became(standing)), ..view::run(snapshot, now) };
        serde_json::to_vec(&view).expect("a view is plain data")
    })
}

pub(crate) fn render() -> Render {
    let now = Timestamp(now_ms());
    Arc::new(move |snapshot: &RunSnapshot| {
        let mut body = Vec::with_capacity(SHOWN_BYTES);
        serde_json::to_writer(&mut body, &view::run(snapshot, now)).expect("a view is plain data");
        body
    })
}
