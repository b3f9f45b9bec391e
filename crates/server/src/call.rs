//! Routes of calls: a function and its inputs, answered from a kept result or by an execution that can be waited for.

use crate::auth::{Reader, Writer};
use crate::problem::{HandlerResult, Problem};
use crate::routes::{Asked, Nothing, Paging, Path, Query, answered, id, once, page};
use crate::run::Waiting;
use crate::{Shared, submit, view};
use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::IntoResponse as _;
use engine::EngineContext;
use engine::call::{CallAnswer, CallAsked, CallRender, CallSeen};
use engine::execution::Numbered;
use engine::run::Submission;
use engine::{Hint, Topic};
use model::{CallId, Failure, OrgId, Refused};
use std::sync::Arc;
use std::time::Duration;
use wire::api::{AskCall, CallFailureView, CallResultView, CallView, Page, Submit};

pub(crate) async fn ask(
    State(state): State<Shared>,
    writer: Writer,
    Query(waiting): Query<Waiting>,
    asked: Asked<AskCall>,
) -> HandlerResult {
    let wait = waiting.ms()?;
    let (org, key) = (writer.org(), asked.key(writer.org()));
    if let Some(before) = state.engine.answered_before(key.clone()).await? {
        return answered(before);
    }
    let AskCall { function, inputs, cache } = asked.value;
    let asks = CallAsked { org, function, inputs, cache: cache.unwrap_or(true) };
    match state.engine.call(asks, key.clone(), render()).await {
        Ok(CallAnswer::Hit(hit)) => Ok(Json(shown(&hit)).into_response()),
        Ok(CallAnswer::Asked(response)) => match wait.filter(|_| response.status == 202) {
            Some(ms) => {
                let call: CallView =
                    serde_json::from_slice(&response.body).map_err(|error| Problem::internal(error.to_string()))?;
                let call = over_within(&state, org, id("call", call.id.as_deref().unwrap_or_default())?, ms).await?;
                let status = if call.ended { StatusCode::OK } else { StatusCode::ACCEPTED };
                Ok((status, Json(call)).into_response())
            }
            None => answered(response),
        },
        Err(failure) => once::<CallView>(&state, key, 202, async { Err(failure) }).await,
    }
}

/// The document of a run, as `POST /runs` takes it.
pub(crate) fn document(
    context: &EngineContext,
    org: (OrgId, &str),
    document: serde_json::Value,
) -> Result<Submission, Failure> {
    let body: Submit =
        serde_json::from_value(document).map_err(|error| Refused::invalid("inputs[0]", error.to_string()))?;
    if submit::is_of_agents(&body) || body.snapshot.is_some() || body.dry_run {
        let why = "a call executes one command: no `type`, `snapshot` or `dry_run`";
        return Err(Refused::invalid("inputs[0]", why).into());
    }
    Ok(submit::submission(context, org, body)?)
}

pub(crate) async fn list(
    State(state): State<Shared>,
    reader: Reader,
    Query(paging): Query<Paging>,
) -> HandlerResult<Json<Page<CallView>>> {
    let (limit, before) = (paging.limit()?, paging.before()?);
    let found = state.engine.calls(reader.org(), before, limit).await?;
    Ok(page(found, limit, |it| it.id, listed))
}

pub(crate) async fn show(
    State(state): State<Shared>,
    reader: Reader,
    Path(call): Path<String>,
    Query(waiting): Query<Waiting>,
) -> HandlerResult<Json<CallView>> {
    let wait = waiting.ms()?;
    Ok(Json(over_within(&state, reader.org(), id("call", &call)?, wait.unwrap_or(0)).await?))
}

pub(crate) async fn cancel(
    State(state): State<Shared>,
    writer: Writer,
    Path(call): Path<String>,
    asked: Asked<Nothing>,
) -> HandlerResult {
    let org = writer.org();
    answered(state.engine.cancel_call(org, id("call", &call)?, asked.key(org), render()).await?)
}

/// The call as it is when it is over, or when the time is up.
async fn over_within(state: &Shared, org: OrgId, call: CallId, ms: i64) -> Result<CallView, Problem> {
    let mut bell = state.hub.follow(Hint::Org(org, Topic::Calls));
    let mut closing = state.closing.subscribe();
    let until = tokio::time::Instant::now() + Duration::from_millis(ms as u64);
    loop {
        let seen = state.engine.called(org, call).await?;
        if seen.status.is_end() || *closing.borrow() || tokio::time::Instant::now() >= until {
            return Ok(shown(&seen));
        }
        tokio::select! {
            () = bell.rung() => {}
            () = tokio::time::sleep_until(until) => {}
            _ = closing.changed() => {}
        }
    }
}

fn render() -> CallRender {
    Arc::new(|seen| serde_json::to_vec(&shown(seen)).expect("a view is plain data"))
}

fn shown(seen: &CallSeen) -> CallView {
    let result = seen.result.as_ref().map(|result| CallResultView {
        exec: result.exec.clone(),
        status: if result.ok { "ok".to_owned() } else { "error".to_owned() },
        value: result.value.clone(),
    });
    CallView {
        id: seen.id.map(|id| id.to_string()),
        function: seen.function.clone(),
        node: seen.node.clone(),
        status: seen.status.to_string(),
        attempt: seen.attempt,
        ended: seen.status.is_end(),
        result,
        error: view::error(&seen.error),
        asked_again_at: seen.not_before.filter(|_| !seen.status.is_end()).map(|at| at.ms()),
        started_at: seen.started_at.map(|at| at.ms()),
        ended_at: seen.ended_at.map(|at| at.ms()),
        run: seen.run.map(|run| run.to_string()),
        failure: seen
            .failure
            .as_ref()
            .map(|failure| CallFailureView { dag: failure.dag.clone(), value: failure.value.clone() }),
    }
}

fn listed(numbered: &Numbered) -> CallView {
    let it = &numbered.it;
    CallView {
        id: Some(CallId(numbered.id).to_string()),
        function: it.function.clone(),
        node: it.node.clone(),
        status: it.status.to_string(),
        attempt: it.attempt,
        ended: it.status.is_end(),
        result: None,
        error: view::error(&it.error),
        asked_again_at: it.not_before.filter(|_| !it.status.is_end()).map(|at| at.ms()),
        started_at: it.started_at.map(|at| at.ms()),
        ended_at: it.ended_at.map(|at| at.ms()),
        run: None,
        failure: None,
    }
}

#[cfg(test)]
mod tests;
