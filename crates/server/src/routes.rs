//! The map of the API, and what every request goes through: a request id, a size limit, a decoded body, a key that makes it repeatable.

use crate::problem::{Answer, Problem};
use crate::{
    Shared, allocation, artifact, audit, blob, control, event, instance, ledger, log, manifest, metrics, openapi, pool,
    run, runner, secret, token, workflow,
};
use axum::Router;
use axum::body::Body;
use axum::extract::{FromRequest, MatchedPath, Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post, put};
use engine::store::Lane;
use engine::store::idempotency::Key;
use model::{OrgId, Refused};
use serde::de::DeserializeOwned;
use std::sync::atomic::Ordering;
use tokio_stream::StreamExt as _;

/// Bodies other than blobs.
const BODY_BYTES: usize = 1024 * 1024;
/// A runner's batch of log frames and facts, base64 included.
const REPORT_BYTES: usize = 8 * 1024 * 1024;
/// What is read and dropped of a body that is too large, so that its sender hears why.
const DRAINED_BYTES: usize = 16 * 1024 * 1024;

pub(crate) fn router(house: Shared) -> Router {
    let api = api()
        .fallback(nowhere)
        .method_not_allowed_fallback(not_that_way)
        .layer(middleware::from_fn_with_state(house.clone(), crate::auth::recognised));
    let measured = Router::new()
        .route("/metrics", get(metrics::metrics))
        .layer(middleware::from_fn_with_state(house.clone(), crate::auth::recognised));
    let machines = Router::new()
        .route("/register", post(runner::register))
        .route("/desired", get(runner::desired))
        .route("/heartbeat", post(runner::heartbeat))
        .route("/report", post(runner::report))
        .route("/blobs/{hash}", get(runner::blob))
        .route("/jobs/{job}/artifacts", put(runner::artifact));
    Router::new()
        .route("/api/v1/openapi.json", get(openapi::document))
        .route("/api/v1/docs", get(openapi::page))
        .nest("/api/v1", api)
        .nest("/runner/v1", machines)
        // Not of the API: only for those who can read the installation's file.
        .route("/control/v1/token", post(control::owner_token))
        .route("/healthz", get(control::healthz))
        .route("/readyz", get(control::readyz))
        .merge(measured)
        .fallback(nowhere)
        .method_not_allowed_fallback(not_that_way)
        .layer(middleware::from_fn_with_state(house.clone(), numbered))
        .with_state(house)
}

/// One line a route: what is served and what is described are the same list.
macro_rules! api {
    ($($method:ident $path:literal $handler:path, $scope:ident, $summary:literal, $($body:ident)? => $status:literal $($answer:ident $(of $item:ident)?)?;)+) => {
        fn api() -> Router<Shared> {
            Router::new()$(.route($path, $method($handler)))+
        }
        pub(crate) const API: &[openapi::Route] = &[$(openapi::Route {
            method: stringify!($method),
            path: $path,
            scope: stringify!($scope),
            summary: $summary,
            body: stringify!($($body)?),
            status: $status,
            answer: stringify!($($answer)?),
            item: stringify!($($($item)?)?),
        }),+];
    };
}

api! {
    post "/runs" run::submit, write, "Submit a run; with `start` it starts at once", Submit => 201 RunView;
    get "/runs" run::list, read, "Runs, newest first: open ones, or `all`", => 200 Page of RunView;
    get "/runs/{id}" run::show, read, "One run", => 200 RunView;
    delete "/runs/{id}" run::delete, write, "Hide a run that has ended or never started", => 204;
    get "/runs/{id}/tree" run::tree, read, "The run with its agents, tasks, steps and jobs", => 200 Tree;
    get "/runs/{id}/why" run::why, read, "Why it waits or failed, and what to do", => 200 Why;
    get "/runs/{id}/attempts" run::attempts, read, "Its attempts, with their money", => 200 Page of AttemptView;
    get "/runs/{id}/agents" run::agents, read, "Agents of the current attempt", => 200 Page of AgentView;
    get "/runs/{id}/tasks" run::tasks, read, "Tasks of the current attempt", => 200 Page of TaskView;
    get "/runs/{id}/steps" run::steps, read, "Steps of the current attempt", => 200 Page of StepView;
    get "/runs/{id}/jobs" run::jobs, read, "Every submission onto a machine", => 200 Page of JobView;
    get "/runs/{id}/ledger" ledger::of_run, read, "Its ledger rows", => 200 Page of LedgerRow;
    get "/runs/{id}/events" event::events, read, "Its events; a stream with `Accept: text/event-stream`", => 200 Page of EventView;
    get "/runs/{id}/logs" log::logs, read, "Its log as a stream of frames, ended by `event: end`", => 200 LogFrame;
    get "/runs/{id}/artifacts" artifact::list, read, "What it left behind", => 200 Page of ArtifactView;
    get "/runs/{id}/artifacts/{artifact}" artifact::get, read, "The bytes of one artifact", => 200;
    post "/runs/{id}/start" run::start, write, "Start a run that was only created", ActionBody => 200 RunView;
    post "/runs/{id}/cancel" run::cancel, write, "Ask it to end; `abort` kills at once", ActionBody => 200 RunView;
    post "/runs/{id}/stop" run::cancel, write, "The same as cancel", ActionBody => 200 RunView;
    post "/runs/{id}/pause" run::pause, write, "Freeze what runs; nothing new starts", ActionBody => 200 RunView;
    post "/runs/{id}/resume" run::resume, write, "Let a paused run go on", ActionBody => 200 RunView;
    post "/runs/{id}/retry" run::retry, write, "Open the next attempt of a failed run", ActionBody => 200 RunView;
    post "/blobs/missing" blob::missing, write, "Which of these contents are not here yet", BlobList => 200 BlobList;
    put "/blobs/{hash}" blob::put, write, "Send a file's bytes under their BLAKE3 hash", => 204;
    get "/blobs/{hash}" blob::get, read, "The bytes of a file", => 200;
    get "/instances" instance::list, read, "Machines; `state` filters by a prefix of workflow_state", => 200 Page of InstanceView;
    get "/instances/{id}" instance::show, read, "One machine", => 200 InstanceView;
    post "/instances/{id}/terminate" instance::terminate, write, "End a machine; `force` also under a job or hold", TerminateBody => 200 InstanceView;
    get "/allocations" allocation::list, read, "Slots, newest first", => 200 Page of AllocationView;
    get "/allocations/{id}" allocation::show, read, "One slot", => 200 AllocationView;
    post "/allocations/{id}/extend" allocation::extend, write, "Keep a finished slot's folder longer", ExtendBody => 200 AllocationView;
    post "/allocations/{id}/release" allocation::release, write, "Give a hold up", => 200 AllocationView;
    get "/workflows" workflow::list, read, "Workflows, newest first", => 200 Page of WorkflowView;
    get "/workflows/{id}" workflow::show, read, "One workflow with its nodes", => 200 WorkflowView;
    post "/workflows/{id}/cancel" workflow::cancel, write, "Cancel what it does", => 200 WorkflowView;
    post "/workflows/{id}/retry" workflow::retry, write, "A new workflow with the same input", => 200 WorkflowView;
    get "/manifests" manifest::list, read, "Manifests, newest first", => 200 Page of ManifestView;
    get "/manifests/{id}" manifest::show, read, "One manifest with what it owns", => 200 ManifestView;
    get "/credits" ledger::balance, read, "The org's balance", => 200 BalanceView;
    post "/credits" ledger::add, admin, "Add credits", AddCredits => 200 BalanceView;
    get "/credits/ledger" ledger::rows, read, "The org's ledger, oldest first", => 200 Page of LedgerRow;
    get "/credits/usage" ledger::usage, read, "What was charged since a time, by run", => 200 UsageView;
    get "/secrets" secret::list, read, "Names of secrets", => 200 Page of SecretView;
    put "/secrets/{name}" secret::put, write, "Set a secret; the answer says what of it logs will not hide", SecretBody => 200 SecretStored;
    delete "/secrets/{name}" secret::delete, write, "Delete a secret", => 204;
    get "/tokens" token::list, admin, "Tokens of the org, without their text", => 200 Page of TokenView;
    post "/tokens" token::create, admin, "Make a token; its text is in this answer only", NewToken => 201 TokenView;
    get "/tokens/current" token::current, read, "The token this request was made with, without its text", => 200 TokenView;
    delete "/tokens/{id}" token::revoke, admin, "Revoke a token", => 204;
    get "/pools" pool::pools, read, "Where placement is decided", => 200 Page of PoolView;
    get "/providers" pool::providers, read, "Where machines come from", => 200 Page of ProviderView;
    get "/audit" audit::audit, admin, "Every invariant, recomputed", => 200 AuditReport;
    post "/control/stop" control::stop, admin, "End idle machines and this process", => 200;
}

async fn nowhere(request: Request) -> Problem {
    Problem::new(StatusCode::NOT_FOUND, "not_found", format!("there is nothing at {}", request.uri().path()))
}

async fn not_that_way(request: Request) -> Problem {
    let detail = format!("{} is not possible at {}", request.method(), request.uri().path());
    Problem::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", detail)
}

/// Every answer carries a request id; a problem carries it in its document too.
async fn numbered(State(house): State<Shared>, request: Request, next: Next) -> Response {
    house.asked_at.store(crate::now_ms(), Ordering::Relaxed);
    let number = house.requests.fetch_add(1, Ordering::Relaxed);
    let id = format!("req_{}{}", model::slug(house.started_at), model::slug(number));
    let response = next.run(request).await;
    let mut response = if is_problem(&response) { with_request_id(response, &id).await } else { response };
    if let Ok(value) = HeaderValue::from_str(&id) {
        response.headers_mut().insert("x-request-id", value);
    }
    response
}

fn is_problem(response: &Response) -> bool {
    response.headers().get(header::CONTENT_TYPE).is_some_and(|value| value == "application/problem+json")
}

async fn with_request_id(response: Response, id: &str) -> Response {
    let (mut parts, body) = response.into_parts();
    let bytes = axum::body::to_bytes(body, BODY_BYTES).await.unwrap_or_default();
    let Ok(mut document) = serde_json::from_slice::<serde_json::Value>(&bytes) else {
        return Response::from_parts(parts, Body::from(bytes));
    };
    document["request_id"] = id.into();
    parts.headers.remove(header::CONTENT_LENGTH);
    Response::from_parts(parts, Body::from(document.to_string()))
}

/// A decoded JSON body, and what is needed to recognise the request when it comes again. An empty body is `{}`.
pub(crate) struct Asked<T> {
    pub(crate) value: T,
    route: String,
    hash: [u8; 32],
    key: Option<String>,
}

impl<T> Asked<T> {
    pub(crate) fn key(&self, org: OrgId) -> Option<Key> {
        self.key.as_ref().map(|key| Key { org, route: self.route.clone(), key: key.clone(), hash: self.hash })
    }
}

impl<T: DeserializeOwned> FromRequest<Shared> for Asked<T> {
    type Rejection = Problem;
    async fn from_request(request: Request, _: &Shared) -> Result<Self, Problem> {
        let matched =
            request.extensions().get::<MatchedPath>().map_or_else(String::new, |path| path.as_str().to_owned());
        let route = format!("{} {matched}", request.method());
        let place = request.uri().path_and_query().map_or_else(String::new, ToString::to_string);
        let key = key_of(&request)?;
        let limit = if matched.starts_with("/runner/") { REPORT_BYTES } else { BODY_BYTES };
        let bytes = bytes_of(request, limit).await?;
        let (value, canonical) = decode(&bytes)?;
        let mut hasher = blake3::Hasher::new();
        hasher.update(place.as_bytes());
        hasher.update(&[0]);
        hasher.update(canonical.as_bytes());
        Ok(Asked { value, route, hash: *hasher.finalize().as_bytes(), key })
    }
}

fn key_of(request: &Request) -> Result<Option<String>, Problem> {
    let Some(value) = request.headers().get("idempotency-key") else { return Ok(None) };
    let bad = || Refused::invalid("Idempotency-Key", "must be 1 to 255 printable ASCII characters");
    let text = value.to_str().map_err(|_| bad())?;
    if text.is_empty() || text.len() > 255 || !text.bytes().all(|b| (0x20..0x7f).contains(&b)) {
        return Err(bad().into());
    }
    Ok(Some(text.to_owned()))
}

/// A body that is too large is still read to its end, up to a bound: whoever is writing it would never see the answer.
async fn bytes_of(request: Request, limit: usize) -> Result<Vec<u8>, Problem> {
    let announced = request
        .headers()
        .get(header::CONTENT_LENGTH)
        .and_then(|v| v.to_str().ok())
        .and_then(|v| v.parse::<usize>().ok());
    let (mut bytes, mut length) = (Vec::new(), 0);
    let mut pieces = request.into_body().into_data_stream();
    while announced.is_none_or(|length| length <= DRAINED_BYTES) && length <= DRAINED_BYTES {
        let Some(piece) = pieces.next().await else { break };
        let piece = piece.map_err(|error| {
            Problem::new(StatusCode::BAD_REQUEST, "invalid_body", format!("the body ended early: {error}"))
        })?;
        length += piece.len();
        if length <= limit {
            bytes.extend_from_slice(&piece);
        }
    }
    if length > limit || announced.is_some_and(|length| length > limit) {
        let detail = format!("the body is larger than {} KiB", limit / 1024);
        return Err(Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", detail)
            .fix("send files as blobs: PUT /api/v1/blobs/{hash}"));
    }
    Ok(bytes)
}

/// The value, and the same JSON with sorted keys and no spaces: two spellings of one request are one request.
fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<(T, String), Problem> {
    let text: &[u8] = if bytes.is_empty() { b"{}" } else { bytes };
    let bad = |error: serde_json::Error| {
        Problem::new(StatusCode::BAD_REQUEST, "invalid_body", format!("the body cannot be read: {error}"))
            .fix("send a JSON object with content-type application/json")
    };
    let value: serde_json::Value = serde_json::from_slice(text).map_err(bad)?;
    let canonical = value.to_string();
    Ok((serde_json::from_value(value).map_err(bad)?, canonical))
}

/// The stored or fresh answer of a repeatable request.
pub(crate) fn answered(answer: engine::run::Answer) -> Answer {
    let status =
        u16::try_from(answer.status).ok().and_then(|code| StatusCode::from_u16(code).ok()).unwrap_or(StatusCode::OK);
    let mut response = (status, [(header::CONTENT_TYPE, "application/json")], answer.body).into_response();
    if answer.replayed {
        response.headers_mut().insert("idempotent-replayed", HeaderValue::from_static("true"));
    }
    Ok(response)
}

/// The answer to a question that changes nothing: stored only if the asker wants to hear the same again.
pub(crate) async fn settled(house: &Shared, key: Option<Key>, body: &impl serde::Serialize) -> Answer {
    let body = serde_json::to_vec(body).expect("a view is plain data");
    if key.is_none() {
        return answered(engine::run::Answer { status: 200, body, replayed: false });
    }
    answered(house.engine.keyed(Lane::Normal, "answer.keep", key, 200, move |_| Ok(body.clone())).await?)
}

/// An id in a path; one that cannot be read names nothing.
pub(crate) fn id<I: std::str::FromStr<Err = model::BadId>>(what: &'static str, text: &str) -> Result<I, Problem> {
    text.parse().map_err(|_| Refused::not_found(what, text).into())
}

/// Where a listing goes on, and how long a page is.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(default)]
pub(crate) struct Paging {
    pub(crate) limit: Option<i64>,
    pub(crate) cursor: Option<String>,
}

impl Paging {
    pub(crate) fn limit(&self) -> Result<i64, Problem> {
        match self.limit {
            None => Ok(50),
            Some(limit) if (1..=1000).contains(&limit) => Ok(limit),
            Some(_) => Err(Refused::invalid("limit", "must lie between 1 and 1000").into()),
        }
    }
    /// Newest first: everything before this number.
    pub(crate) fn before(&self) -> Result<i64, Problem> {
        self.number(i64::MAX)
    }
    /// Oldest first: everything after this number.
    pub(crate) fn after(&self) -> Result<i64, Problem> {
        self.number(0)
    }
    fn number(&self, start: i64) -> Result<i64, Problem> {
        match &self.cursor {
            None => Ok(start),
            Some(text) => model::unslug(text)
                .ok_or_else(|| Refused::invalid("cursor", format!("`{text}` is not a cursor of ours")).into()),
        }
    }
}

/// A page knows where the next one begins only if it is full.
pub(crate) fn page<E, V>(
    found: Vec<E>,
    limit: i64,
    number: impl Fn(&E) -> i64,
    show: impl Fn(&E) -> V,
) -> axum::Json<wire::api::Page<V>> {
    let next_cursor =
        if found.len() as i64 == limit { found.last().map(|last| model::slug(number(last))) } else { None };
    axum::Json(wire::api::Page { data: found.iter().map(show).collect(), next_cursor })
}
