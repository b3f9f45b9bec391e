//! Routes of what is below a run: agents, tasks and steps in pages, one step with its data, and the tree of the first of them.

use crate::auth::Reader;
use crate::problem::{HandlerResult, Problem};
use crate::routes::{Paging, Path, Query, gather, id, page};
use crate::{Shared, now_ms, view};
use axum::Json;
use axum::extract::State;
use engine::view::Below;
use model::agent::{Agent, AgentStatus};
use model::step::{Step, StepStatus};
use model::task::{Task, TaskStatus};
use model::{AgentId, Failure, Refused, RunId, Timestamp};
use serde::Deserialize;
use std::str::FromStr;
use wire::api::{AgentView, Page, StepDetailView, StepView, TaskView, Tree};

/// Rows that are read at once when a page is looked for by status.
const LOOKED_THROUGH: i64 = 1_000;

#[derive(Debug, Default, Deserialize, utoipa::IntoParams)]
#[serde(default)]
#[into_params(parameter_in = Query)]
pub(crate) struct AgentFilter {
    /// Only these.
    status: Option<String>,
    /// How many at most; 50 unless given.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<i64>,
    /// `next_cursor` of the page before.
    cursor: Option<String>,
}

#[derive(Debug, Default, Deserialize, utoipa::IntoParams)]
#[serde(default)]
#[into_params(parameter_in = Query)]
pub(crate) struct TaskFilter {
    /// Only of this agent.
    agent: Option<String>,
    /// Only these.
    status: Option<String>,
    /// How many at most; 50 unless given.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<i64>,
    /// `next_cursor` of the page before.
    cursor: Option<String>,
}

#[derive(Debug, Default, Deserialize, utoipa::IntoParams)]
#[serde(default)]
#[into_params(parameter_in = Query)]
pub(crate) struct StepFilter {
    /// Only of this agent.
    agent: Option<String>,
    /// Only of this task.
    task: Option<String>,
    /// Only these.
    status: Option<String>,
    /// How many at most; 50 unless given.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<i64>,
    /// `next_cursor` of the page before.
    cursor: Option<String>,
}

impl AgentFilter {
    pub(crate) fn first(limit: i64, cursor: Option<String>) -> AgentFilter {
        AgentFilter { status: None, limit: Some(limit), cursor }
    }
}

impl TaskFilter {
    pub(crate) fn of(agent: String, limit: i64, cursor: Option<String>) -> TaskFilter {
        TaskFilter { agent: Some(agent), status: None, limit: Some(limit), cursor }
    }
}

impl StepFilter {
    pub(crate) fn of(task: String, limit: i64, cursor: Option<String>) -> StepFilter {
        StepFilter { agent: None, task: Some(task), status: None, limit: Some(limit), cursor }
    }
}

pub(crate) async fn tree(
    State(state): State<Shared>,
    reader: Reader,
    Path(run): Path<String>,
) -> HandlerResult<Json<Tree>> {
    let tree = state.engine.tree(reader.org(), id("run", &run)?).await?;
    Ok(Json(view::tree(&tree, Timestamp(now_ms()))))
}

pub(crate) async fn agents(
    State(state): State<Shared>,
    reader: Reader,
    Path(run): Path<String>,
    Query(filter): Query<AgentFilter>,
) -> HandlerResult<Json<Page<AgentView>>> {
    let (org, run): (_, RunId) = (reader.org(), id("run", &run)?);
    let status: Option<AgentStatus> = word(filter.status.as_deref())?;
    let paging = Paging { limit: filter.limit, cursor: filter.cursor };
    let read = |after, limit| state.engine.agents(org, run, after, limit);
    let found = of_status(&paging, read, |agent: &Agent| agent.id.0, |agent| agent.status, status).await?;
    Ok(page(found, paging.limit()?, |agent| agent.id.0, view::agent))
}

pub(crate) async fn tasks(
    State(state): State<Shared>,
    reader: Reader,
    Path(run): Path<String>,
    Query(filter): Query<TaskFilter>,
) -> HandlerResult<Json<Page<TaskView>>> {
    let (org, run): (_, RunId) = (reader.org(), id("run", &run)?);
    let agent: Option<AgentId> = named("agent", filter.agent.as_deref())?;
    let status: Option<TaskStatus> = word(filter.status.as_deref())?;
    let paging = Paging { limit: filter.limit, cursor: filter.cursor };
    let read = |after, limit| state.engine.tasks(org, run, agent, after, limit);
    let found = of_status(&paging, read, |task: &Task| task.id.0, |task| task.status, status).await?;
    Ok(page(found, paging.limit()?, |task| task.id.0, view::task))
}

pub(crate) async fn steps(
    State(state): State<Shared>,
    reader: Reader,
    Path(run): Path<String>,
    Query(filter): Query<StepFilter>,
) -> HandlerResult<Json<Page<StepView>>> {
    let (org, run): (_, RunId) = (reader.org(), id("run", &run)?);
    let agent = named::<AgentId>("agent", filter.agent.as_deref())?;
    let below = match (named("task", filter.task.as_deref())?, agent) {
        (Some(task), _) => Below::Task(task),
        (None, Some(agent)) => Below::Agent(agent),
        (None, None) => Below::Attempt,
    };
    let status: Option<StepStatus> = word(filter.status.as_deref())?;
    let paging = Paging { limit: filter.limit, cursor: filter.cursor };
    let read = |after, limit| state.engine.steps(org, run, below, after, limit);
    let found = of_status(&paging, read, |step: &Step| step.id.0, |step| step.status, status).await?;
    // A task that is not the agent's has no steps of it.
    let found = found.into_iter().filter(|step| agent.is_none_or(|agent| step.agent == agent)).collect();
    Ok(page(found, paging.limit()?, |step: &Step| step.id.0, view::step))
}

pub(crate) async fn step(
    State(state): State<Shared>,
    reader: Reader,
    Path((run, step)): Path<(String, String)>,
) -> HandlerResult<Json<StepDetailView>> {
    let detail = state.engine.step(reader.org(), id("run", &run)?, id("step", &step)?).await?;
    Ok(Json(view::step_detail(detail)))
}

/// One page of those in a status. Without one, a page is read as it is asked for.
async fn of_status<E, S: PartialEq + Copy, F: Future<Output = Result<Vec<E>, Failure>>>(
    paging: &Paging,
    read: impl Fn(i64, i64) -> F,
    number: impl Fn(&E) -> i64,
    status: impl Fn(&E) -> S,
    wanted: Option<S>,
) -> Result<Vec<E>, Problem> {
    let (limit, after) = (paging.limit()?, paging.after()?);
    let Some(wanted) = wanted else { return Ok(read(after, limit).await?) };
    let keep = |it: &E| status(it) == wanted;
    let mut found = gather(after, LOOKED_THROUGH, |from| read(from, LOOKED_THROUGH), number, keep).await?;
    found.truncate(limit as usize);
    Ok(found)
}

fn word<W: FromStr<Err = model::string_enum::UnknownWord>>(text: Option<&str>) -> Result<Option<W>, Problem> {
    text.map(|text| text.parse().map_err(|e: W::Err| Refused::invalid("status", e.to_string()).into())).transpose()
}

/// An id in a query.
fn named<I: FromStr<Err = model::BadId>>(field: &'static str, text: Option<&str>) -> Result<Option<I>, Problem> {
    let bad = |text: &str| Refused::invalid(field, format!("`{text}` is not the id of one"));
    text.map(|text| text.parse().map_err(|_| bad(text).into())).transpose()
}
