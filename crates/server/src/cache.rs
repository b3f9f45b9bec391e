//! Routes of kept results: what there is, why a run was not answered by one, what is invalidated and collected, where one came from.

use crate::Shared;
use crate::auth::{Reader, Writer};
use crate::input::Nothing;
use crate::problem::HandlerResult;
use crate::routes::{Asked, Paging, Path, Query, answered, id, once, page};
use axum::Json;
use axum::extract::State;
use engine::cache::Pin;
use engine::cache::{Garbage, Invalid, Rebuilt, WhyOf};
use engine::execution::ExecRow;
use model::{CallId, Credits, Failure, OrgId, Refused};
use serde::Deserialize;
use std::sync::Arc;
use wire::api::{
    Backtrack, CacheWhy, CallDiff, CollectGarbage, GarbageCollected, Invalidate, Invalidated, Page, PinView,
    PinsRebuilt,
};

pub(crate) async fn list(
    State(state): State<Shared>,
    reader: Reader,
    Query(paging): Query<Paging>,
) -> HandlerResult<Json<Page<PinView>>> {
    let (limit, before) = (paging.limit()?, paging.before()?);
    let found = state.engine.pins(reader.org(), before, limit).await?;
    Ok(page(found, limit, |pin| pin.id, |pin: &Pin| shown(&pin.exec, pin.used_at.ms())))
}

pub(crate) async fn why(
    State(state): State<Shared>,
    reader: Reader,
    Path(of): Path<String>,
) -> HandlerResult<Json<CacheWhy>> {
    let asked = match of.starts_with(CallId::PREFIX) {
        true => WhyOf::Call(id("call", &of)?),
        false => WhyOf::Run(id("run", &of)?),
    };
    let why = state.engine.cache_why(reader.org(), asked).await?;
    Ok(Json(CacheWhy {
        run: of,
        node: Some(why.node.to_string()),
        hit: why.hit,
        with: why.with.as_ref().map(|exec| shown(exec, exec.ended_at.ms())),
        differences: why.differences,
        note: why.note,
        cached_from: why.run.as_ref().and_then(crate::view::cached_from),
    }))
}

/// Which two calls.
#[derive(Debug, Default, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct Two {
    /// A cached run, an execution of a call, or the first digits of an exec or key.
    #[param(min_length = 1)]
    first: String,
    /// The same.
    #[param(min_length = 1)]
    second: String,
}

pub(crate) async fn diff(
    State(state): State<Shared>,
    reader: Reader,
    Query(two): Query<Two>,
) -> HandlerResult<Json<CallDiff>> {
    let found = state.engine.call_diff(reader.org(), [two.first, two.second]).await?;
    let [first, second] = found.nodes.map(|node| node.to_string());
    Ok(Json(CallDiff { first, second, differences: found.differences }))
}

pub(crate) async fn invalidate(State(state): State<Shared>, writer: Writer, asked: Asked<Invalidate>) -> HandlerResult {
    let (org, key) = (writer.org(), asked.key(writer.org()));
    match named(&state, org, &asked.value).await {
        Ok(what) => {
            let render =
                Arc::new(|results| serde_json::to_vec(&Invalidated { results }).expect("a number is plain data"));
            answered(state.engine.invalidate(org, what, key, render).await?)
        }
        Err(failure) => once::<Invalidated>(&state, key, 200, async { Err(failure) }).await,
    }
}

async fn named(state: &Shared, org: OrgId, asked: &Invalidate) -> Result<Invalid, Failure> {
    match (&asked.result, asked.all, &asked.function) {
        (None, true, None) => Ok(Invalid::Runs),
        (None, false, Some(function)) => Ok(Invalid::Function(state.engine.function_uri(function)?)),
        (Some(result), false, None) => Ok(Invalid::Node(state.engine.node_named(org, result.clone()).await?)),
        _ => Err(Refused::invalid("result", "name one result or a `function`, or say `all`").into()),
    }
}

pub(crate) async fn collect(
    State(state): State<Shared>,
    writer: Writer,
    asked: Asked<CollectGarbage>,
) -> HandlerResult {
    let usual = state.engine.garbage();
    let older_than_ms = asked.value.older_than_ms.unwrap_or(usual.older_than_ms);
    let max_bytes = asked.value.max_bytes.unwrap_or(usual.max_bytes);
    for (field, number) in [("older_than_ms", older_than_ms), ("max_bytes", max_bytes)] {
        if number < 0 {
            return Err(Refused::invalid(field, "must not be negative").into());
        }
    }
    once(&state, asked.key(writer.org()), 200, async {
        let swept = state.engine.collect_garbage(writer.org(), Garbage { older_than_ms, max_bytes }).await?;
        Ok(GarbageCollected {
            results: swept.pins,
            objects: swept.objects,
            objects_left: swept.objects_left,
            bytes_left: swept.bytes_left,
            damaged: swept.damaged,
        })
    })
    .await
}

pub(crate) async fn rebuild(State(state): State<Shared>, writer: Writer, asked: Asked<Nothing>) -> HandlerResult {
    once(&state, asked.key(writer.org()), 200, async {
        let rebuilt = state.engine.rebuild_pins(writer.org()).await?;
        let Rebuilt { rows, made, removed, execs, damaged } = rebuilt;
        Ok(PinsRebuilt { rows, made, removed, execs, damaged })
    })
    .await
}

pub(crate) async fn backtrack(
    State(state): State<Shared>,
    reader: Reader,
    Path(what): Path<String>,
) -> HandlerResult<Json<Backtrack>> {
    let origin = state.engine.backtrack(reader.org(), what).await?;
    let from = origin.record.provenance;
    let charged = (!origin.attempts.is_empty()).then(|| origin.attempts.iter().map(|it| it.charged).sum::<Credits>());
    Ok(Json(Backtrack {
        exec: origin.exec.id.to_string(),
        node: origin.exec.node.to_string(),
        function: origin.exec.function,
        status: status(origin.exec.ok),
        started_at: origin.record.started_ms,
        ended_at: origin.record.ended_ms,
        run: from.run,
        job: from.job,
        instance: from.instance,
        credits: charged.map(|charged| charged.to_string()),
        credits_micro: charged.map(Credits::micro),
        inputs: serde_json::Value::Object(origin.inputs.into_iter().collect()),
        made_by: origin.made_by.into_iter().map(|(name, exec)| (name, exec.to_string())).collect(),
        value: origin.value,
    }))
}

fn status(ok: bool) -> String {
    if ok { "ok".to_owned() } else { "error".to_owned() }
}

fn shown(exec: &ExecRow, used_at: i64) -> PinView {
    PinView {
        node: exec.node.to_string(),
        exec: exec.id.to_string(),
        status: status(exec.ok),
        name: exec.name.clone(),
        run: exec.run.map(|run| run.to_string()),
        bytes: exec.bytes,
        ended_at: exec.ended_at.ms(),
        used_at,
    }
}
