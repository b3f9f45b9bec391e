//! Routes about the control plane itself: health, readiness, and the stop of an embedded one.

use crate::auth::{Admin, Owner, Trusted};
use crate::problem::{HandlerResult, Problem};
use crate::routes::{Asked, Paging, Query, answered, part, settled};
use crate::{Shared, VERSION, now_ms};
use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use std::time::Duration;
use wire::api::{Health, StopBody, Stopped, TokenView};

/// How long an orderly close waits for runs and machines to be gone.
const CLOSES_WITHIN: Duration = Duration::from_secs(60);

pub(crate) async fn healthz(State(state): State<Shared>, trusted: Trusted) -> Json<Health> {
    Json(health(&state, &trusted, "ok", None))
}

/// Ready to accept work: the database answers and can be written to.
pub(crate) async fn readyz(State(state): State<Shared>, trusted: Trusted) -> (StatusCode, Json<Health>) {
    let detail = match state.engine.open_runs().await {
        Err(failure) => Some(failure.to_string()),
        Ok(_) if !state.engine.writable() => Some("the disk is full: reads go on, writes are refused".into()),
        Ok(_) if *state.closing.borrow() => Some("closing".into()),
        Ok(_) => None,
    };
    match detail {
        None => (StatusCode::OK, Json(health(&state, &trusted, "ready", None))),
        Some(detail) => (StatusCode::SERVICE_UNAVAILABLE, Json(health(&state, &trusted, "not ready", Some(detail)))),
    }
}

/// Strangers hear the one word only.
fn health(state: &Shared, trusted: &Trusted, status: &str, detail: Option<String>) -> Health {
    let status = status.to_owned();
    if !trusted.0 {
        return Health { status, ..Health::default() };
    }
    Health {
        status,
        version: Some(VERSION.to_owned()),
        control_plane_id: Some(state.engine.context.installation.control_id.clone()),
        pid: Some(std::process::id()),
        started_at: Some(state.started_at),
        url: state.url.clone(),
        detail,
    }
}

/// What works on the machine of this control plane and what is missing: what `repl doctor` looks at there.
pub(crate) async fn doctor(State(state): State<Shared>, _: Admin, Query(paging): Query<Paging>) -> HandlerResult {
    let (look, home) = state.doctor.clone();
    let found = tokio::task::spawn_blocking(move || look(&home)).await;
    part(found.map_err(|error| Problem::internal(error.to_string()))?, &paging)
}

/// The way back for an owner who has no token left.
pub(crate) async fn owner_token(State(state): State<Shared>, _: Owner) -> HandlerResult<(StatusCode, Json<TokenView>)> {
    let (token, shown) = crate::serve::fresh_owner_token(&state.engine).await?;
    Ok((StatusCode::CREATED, Json(crate::token::view(&token, Some(shown)))))
}

/// Ends idle machines (and, with `all`, runs), then the process. Answers when they are gone.
/// Several transactions, each of which may be begun again; its answer is stored with the last, so that a repetition which
/// reaches the next process does not close that one too.
pub(crate) async fn stop(State(state): State<Shared>, admin: Admin, asked: Asked<StopBody>) -> HandlerResult {
    let key = asked.key(admin.org());
    if let Some(answer) = state.engine.answered_before(key.clone()).await? {
        return answered(answer);
    }
    let mut hints = state.engine.hints();
    let cancelled_runs = if asked.value.all { state.engine.cancel_everything(&admin.0.described()).await? } else { 0 };
    let closed = tokio::time::timeout(CLOSES_WITHIN, async {
        loop {
            let ending = state.engine.retire_idle().await?;
            let remains = state.engine.remains().await?;
            let runs_gone = !asked.value.all || remains.runs == 0;
            if runs_gone && ending == 0 {
                return Ok::<_, model::Failure>(());
            }
            // Woken by what ends; the clock is only the net below.
            let _ = tokio::time::timeout(Duration::from_millis(500), hints.recv()).await;
        }
    })
    .await;
    if let Ok(result) = closed {
        result?;
    }
    let remains = state.engine.remains().await?;
    let stopped = Stopped { cancelled_runs, open_runs: remains.runs, instances: remains.instances };
    let answer = settled(&state, key, &stopped).await?;
    state.closing.send_replace(true);
    tracing::info!(at = now_ms(), "closing by request");
    Ok(answer)
}
