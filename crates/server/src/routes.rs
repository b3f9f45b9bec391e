//! The list of all routes, and the layers that every request passes: a request id, a size limit, a decoded body, an idempotency key.

use crate::input::{self, BODY_BYTES};
pub(crate) use crate::input::{Asked, Nothing, Path, Query};
use crate::listen::Peer;
use crate::problem::{HandlerResult, Hidden, PROBLEM, Problem};
use crate::{
    Shared, allocation, artifact, audit, auth, blob, cache, call, control, dag, definition, event, instance, ledger,
    log, manifest, message, metrics, openapi, orphan, pool, provider, question, run, runner, secret, snapshot, step,
    token, tree, usage, workflow,
};
use axum::Router;
use axum::body::Body;
use axum::extract::{MatchedPath, Request, State};
use axum::handler::Handler as _;
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post, put};
use engine::{Key, Lane, Tx};
use futures_util::FutureExt as _;
use model::{Failure, Refused};
use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::sync::OnceLock;
use std::sync::atomic::Ordering;

pub(crate) fn router(state: Shared) -> Router {
    dressed(everything(&state), state)
}

/// The API and the web pages: what is served over TCP.
pub(crate) fn with_pages(state: Shared) -> Router {
    dressed(everything(&state).merge(crate::pages::beside_api(&state)), state)
}

fn everything(state: &Shared) -> Router<Shared> {
    let with_token = || middleware::from_fn_with_state(state.clone(), auth::recognised);
    let for_everybody = || middleware::from_fn_with_state(state.clone(), auth::unrecognised);
    let api = api()
        .layer(middleware::from_fn(described))
        .fallback(nowhere)
        .method_not_allowed_fallback(not_that_way)
        .layer(with_token());
    let local = Router::new().route("/control/v1/ui", post(crate::pages::open)).layer(with_token());
    let measured = Router::new().route("/metrics", get(metrics::metrics)).layer(with_token());
    let open = Router::new()
        .route("/api/v1/openapi.json", get(openapi::document))
        .route("/api/v1/docs", get(openapi::page))
        .route("/api/v1/docs/style.css", get(openapi::style))
        .route("/api/v1/docs/script.js", get(openapi::script))
        .route("/healthz", get(control::healthz))
        .route("/readyz", get(control::readyz))
        // Not of the API: only for a process that can read the installation's file.
        .route("/control/v1/token", post(control::owner_token))
        .fallback(nowhere)
        .method_not_allowed_fallback(not_that_way)
        .layer(for_everybody());
    let machines = Router::new()
        .route("/register", post(runner::register))
        .route("/desired", get(runner::desired))
        .route("/heartbeat", post(runner::heartbeat))
        .route("/report", post(runner::report))
        .route("/binary/{target}/{hash}", get(crate::binary::binary))
        .route("/snapshots", post(runner::snapshot))
        .route("/features", post(runner::feature))
        .route("/blobs", post(runner::blobs))
        .route("/blobs/{hash}", get(runner::blob).put(runner::put_blob))
        .route("/trees/{hash}", put(runner::put_tree))
        .route("/jobs/{job}/artifacts", put(runner::artifact))
        // The other routes count each request of a runner by its name, and each one without a good token by its address.
        .fallback(nowhere.layer(for_everybody()))
        .method_not_allowed_fallback(not_that_way.layer(for_everybody()));
    open.nest("/api/v1", api).nest("/runner/v1", machines).merge(measured).merge(local)
}

/// What every request goes through, whatever it is for.
pub(crate) fn dressed(routes: Router<Shared>, state: Shared) -> Router {
    routes.layer(middleware::from_fn_with_state(state.clone(), numbered)).with_state(state)
}

/// One line a route: what is served and what is described are the same list. After the summary come the query's type (`?Type,`),
/// the body's type, `=>`, the answer, and after `|` what else it may answer beside what every route may.
macro_rules! api {
    ($($method:ident $path:literal $handler:path, $scope:ident, $summary:literal, $(? $query:path,)? $($body:ident)?
        => $status:literal $($answer:ident $(of $item:ident)?)? $(| $also:literal $($other:ident)?)*;)+) => {
        fn api() -> Router<Shared> {
            Router::new()$(.route($path, $method($handler)))+
        }
        pub(crate) const API: &[openapi::Route] = &[$(openapi::Route {
            method: stringify!($method),
            path: $path,
            scope: stringify!($scope),
            summary: $summary,
            query: openapi::query!($($query)?),
            body: stringify!($($body)?),
            status: $status,
            answer: stringify!($($answer)?),
            item: stringify!($($($item)?)?),
            also: &[$(($also, stringify!($($other)?))),*],
        }),+];
    };
}

api! {
    post "/runs" run::submit, write, "Submit a run; with `start` it starts at once", ?run::Waiting, Submit => 201 RunView | 200 DryRun | 402;
    get "/runs" run::list, read, "Runs, newest first: open ones, or `all`", ?run::Filter, => 200 Page of RunView;
    get "/runs/{id}" run::show, read, "One run", => 200 RunView;
    delete "/runs/{id}" run::delete, write, "Hide a run that has ended or never started", => 204 | 409;
    get "/runs/{id}/tree" tree::tree, read, "The run with its first agents, tasks and steps, and its jobs", => 200 Tree;
    get "/runs/{id}/why" run::why, read, "Why it waits or failed, and what to do", => 200 Why;
    get "/runs/{id}/definition" definition::show, read, "What was submitted, as a run file says it", => 200 Definition;
    get "/runs/{id}/attempts" run::attempts, read, "Its attempts, with their money", => 200 Page of AttemptView;
    get "/runs/{id}/agents" tree::agents, read, "Agents of the current attempt", ?tree::AgentFilter, => 200 Page of AgentView;
    get "/runs/{id}/tasks" tree::tasks, read, "Tasks of the current attempt", ?tree::TaskFilter, => 200 Page of TaskView;
    get "/runs/{id}/steps" tree::steps, read, "Steps of the current attempt", ?tree::StepFilter, => 200 Page of StepView;
    get "/runs/{id}/steps/{step}" tree::step, read, "One step with its input, its output and its earlier tries", => 200 StepDetailView;
    get "/runs/{id}/jobs" run::jobs, read, "Every submission onto a machine", => 200 Page of JobView;
    get "/runs/{id}/ledger" ledger::of_run, read, "Its ledger rows", => 200 Page of LedgerRow;
    get "/runs/{id}/usage" usage::of_run, read, "What it has used: tokens, turns, machine time and credits, by agent, model and step", ?Paging, => 200 RunUsageView;
    get "/runs/{id}/events" event::events, read, "Its events; a stream with `Accept: text/event-stream`", => 200 Page of EventView;
    get "/runs/{id}/logs" log::logs, read, "Its log as a stream of frames, ended by `event: end`", ?log::Wanted, => 200 Stream of LogFrame | 410;
    get "/runs/{id}/artifacts" artifact::list, read, "What it left behind", => 200 Page of ArtifactView;
    get "/runs/{id}/artifacts/{artifact}" artifact::get, read, "The bytes of one artifact", => 200 Bytes | 409 | 410;
    post "/runs/{id}/steps" step::begin, write, "Ask to do a durable step of this run", BeginStep => 200 StepAnswer;
    get "/runs/{id}/steps/recorded" step::recorded, write, "What a finished durable step answered", ?step::Recorded, => 200 StepAnswer | 409;
    post "/runs/{id}/steps/{step}/complete" step::complete, write, "A durable step is done; `next` begins in the same commit", CompleteStep => 200 StepAnswer;
    post "/runs/{id}/steps/{step}/fail" step::fail, write, "A durable step has failed", FailStep => 200 StepAnswer;
    post "/runs/{id}/steps/{step}/heartbeat" step::heartbeat, write, "Its program lives", BeatStep => 200 StepBeat;
    post "/steps/poll" step::poll, write, "Take the oldest `external` step that is offered to one of these tools, and wait for one", PollSteps => 200 PolledStep | 204;
    post "/runs/{id}/messages" message::send, write, "Say something to an agent that talks with a model: its next turn takes it", SendMessage => 201 MessageView;
    post "/runs/{id}/finish" step::finish, write, "End a run of `type: external`", FinishBody => 200 RunView;
    post "/runs/{id}/start" run::start, write, "Start a run that was only created", ActionBody => 200 RunView | 402;
    post "/runs/{id}/cancel" run::cancel, write, "Ask it to end; `abort` kills at once", ActionBody => 200 RunView;
    post "/runs/{id}/stop" run::cancel, write, "The same as cancel", ActionBody => 200 RunView;
    post "/runs/{id}/pause" run::pause, write, "Freeze what runs; nothing new starts", ActionBody => 200 RunView;
    post "/runs/{id}/resume" run::resume, write, "Let a paused run go on", ActionBody => 200 RunView | 402;
    post "/runs/{id}/retry" run::retry, write, "Open the next attempt of a failed run", ActionBody => 200 RunView | 402 | 410;
    get "/escalations" question::escalations, read, "Tickets about steps: open ones, or `all`, in either `order`", ?question::Filter, => 200 Page of QuestionView;
    get "/escalations/{id}" question::escalation, read, "One ticket with what is known of its step", => 200 QuestionDetailView;
    post "/escalations/{id}/resolve" question::resolve, approve, "Decide what becomes of the step", ResolveBody => 200 QuestionDetailView;
    get "/approvals" question::approvals, read, "Approvals of steps: open ones, or `all`, in either `order`", ?question::Filter, => 200 Page of QuestionView;
    get "/approvals/{id}" question::approval, read, "One approval with the input that it is about", => 200 QuestionDetailView;
    post "/approvals/{id}/approve" question::approve, approve, "Let the step begin, with another input if one is given; or answer it", ApproveBody => 200 QuestionDetailView;
    post "/approvals/{id}/reject" question::reject, approve, "The step fails and is not called", RejectBody => 200 QuestionDetailView;
    post "/blobs/missing" blob::missing, write, "Which of these contents are not here yet", BlobList => 200 BlobList;
    put "/blobs/{hash}" blob::put, write, "Send a file's bytes under their BLAKE3 hash", Bytes => 204;
    get "/blobs/{hash}" blob::get, read, "The bytes of a file", => 200 Bytes;
    put "/trees/{hash}" blob::put_tree, write, "Send a folder's document, behind everything that it names", Bytes => 204 | 410;
    put "/packs" blob::put_pack, write, "Send many small blobs and folders' documents at once", Bytes => 204 | 410;
    get "/instances" instance::list, read, "Machines that are not terminated, newest first, or `all`", ?instance::Filter, => 200 Page of InstanceView;
    get "/instances/{id}" instance::show, read, "One machine", => 200 InstanceView;
    post "/instances/{id}/drain" instance::drain, write, "Take a machine out of the pool; it ends when its job has", => 200 InstanceView;
    post "/instances/{id}/terminate" instance::terminate, write, "End a machine; `force` also under a job or hold", TerminateBody => 200 InstanceView;
    get "/allocations" allocation::list, read, "Slots, newest first", ?allocation::Filter, => 200 Page of AllocationView;
    get "/allocations/{id}" allocation::show, read, "One slot", => 200 AllocationView;
    post "/allocations/{id}/extend" allocation::extend, write, "Keep a finished slot's folder longer", ExtendBody => 200 AllocationView | 402;
    post "/allocations/{id}/release" allocation::release, write, "Give a hold up", => 200 AllocationView;
    get "/workflows" workflow::list, read, "Workflows, newest first", => 200 Page of WorkflowView;
    get "/workflows/{id}" workflow::show, read, "One workflow with its nodes", => 200 WorkflowView;
    post "/workflows/{id}/cancel" workflow::cancel, write, "Cancel what it does", CancelBody => 200 WorkflowView;
    post "/workflows/{id}/retry" workflow::retry, write, "A new workflow with the same input", => 200 WorkflowView | 410;
    get "/manifests" manifest::list, read, "Manifests, newest first", => 200 Page of ManifestView;
    get "/manifests/{id}" manifest::show, read, "One manifest with what it owns", => 200 ManifestView;
    post "/allocations/{id}/snapshot" snapshot::create, write, "Keep the folder of a slot as a snapshot", => 201 SnapshotView;
    get "/snapshots" snapshot::list, read, "Snapshots of workdirs, newest first", => 200 Page of SnapshotView;
    get "/snapshots/{id}" snapshot::show, read, "One snapshot", => 200 SnapshotView;
    get "/cache" cache::list, read, "Results of cached runs that are kept, newest first", => 200 Page of PinView;
    get "/cache/why/{id}" cache::why, read, "What a cached run or a call differs in from the one before it", => 200 CacheWhy | 409;
    get "/cache/diff" cache::diff, read, "What two calls differ in: function, inputs, status and value", ?cache::Two, => 200 CallDiff | 404 | 409 | 410;
    post "/cache/invalidate" cache::invalidate, write, "Let results answer no run any more", Invalidate => 200 Invalidated | 404 | 409 | 410;
    post "/cache/gc" cache::collect, write, "Delete results that answered no run for long, and what nothing needs", CollectGarbage => 200 GarbageCollected;
    post "/cache/rebuild" cache::rebuild, write, "Make the rows of pins again from the index, which is the authority", => 200 PinsRebuilt;
    get "/backtrack/{value}" cache::backtrack, read, "Where a result came from: a run, a call, or the first digits of an exec or key", => 200 Backtrack | 409 | 410;
    post "/calls" call::ask, write, "Call a function: a kept result answers at once, otherwise it is executed", ?run::Waiting, AskCall => 202 CallView | 200 CallView | 402;
    get "/calls" call::list, read, "Executions of calls, newest first", => 200 Page of CallView;
    get "/calls/{id}" call::show, read, "One execution of a call; with `wait` when it is over", ?run::Waiting, => 200 CallView;
    post "/calls/{id}/cancel" call::cancel, write, "Want it no longer: it ends with its last caller", => 200 CallView;
    get "/dag/refs" dag::refs, read, "Refs of calls: heads, indexes, and what heads of remotes were", ?dag::Filter, => 200 Page of RefView;
    put "/dag/refs" dag::set, write, "Move a head, or what a remote's head was, if it is where it is expected", SetRef => 200 RefView | 404 | 409 | 410;
    delete "/dag/refs" dag::delete, write, "Delete a head, or what a remote's head was", ?dag::Gone, => 204 | 404 | 409;
    get "/dag/log" dag::log, read, "Commits from one on, children before parents", ?dag::Log, => 200 Page of CommitView | 404 | 410 | 413;
    get "/dag/object" dag::show, read, "One object by its first digits, or what a ref points to", ?dag::Named, => 200 ObjectView | 404 | 410 | 413;
    get "/dag/indexes" dag::indexes, read, "Where results of calls are pinned, by project", => 200 Page of IndexView;
    get "/dag/records" dag::below, read, "All records below a commit, children before parents", ?dag::Below, => 200 Bytes | 404 | 410 | 413;
    put "/dag/records" dag::put, write, "Send records of calls; nothing leads to them before a ref is set", Bytes => 204;
    delete "/snapshots/{id}" snapshot::delete, write, "Delete a snapshot; runs that started from it keep their files", => 204;
    get "/orphans" orphan::list, read, "What providers list and no row knows, newest first", ?orphan::Filter, => 200 Page of OrphanView;
    get "/orphans/tally" orphan::tally, read, "How many orphans nobody keeps, and what they cost", => 200 OrphanTally;
    get "/orphans/scans" orphan::scans, read, "The last scan of each provider and region", => 200 Page of ScanView;
    post "/orphans/scan" orphan::scan, write, "List every provider now", ScanBody => 200 ScanReport;
    get "/orphans/unlisted" orphan::unlisted, read, "Runners of this installation that no row knows, after the loss of a database", => 200 Page of UnlistedView;
    post "/orphans/import" orphan::import, admin, "Track again what runs on machines that no row knows", ImportBody => 200 ImportReport;
    get "/orphans/whitelist" orphan::whitelist, read, "Orphans on the whitelist", => 200 Page of WhitelistView;
    post "/orphans/whitelist" orphan::keep, admin, "Keep an orphan, and say why", WhitelistBody => 200 WhitelistView | 404;
    delete "/orphans/whitelist/{id}" orphan::unkeep, admin, "Warn of it again", ?orphan::Of, => 204;
    get "/orphans/{id}" orphan::show, read, "One orphan by its provider's id, with rows that may be about it", ?orphan::Of, => 200 OrphanDetailView;
    post "/orphans/{id}/terminate" orphan::terminate, admin, "End an orphan whose id was typed by a person", ?orphan::Of, EndOrphanBody => 200 OrphanView;
    get "/credits" ledger::balance, read, "The org's balance", => 200 BalanceView;
    post "/credits" ledger::add, admin, "Add credits", AddCredits => 200 BalanceView;
    get "/credits/ledger" ledger::rows, read, "The org's ledger, oldest first", => 200 Page of LedgerRow;
    get "/credits/usage" usage::of_org, read, "What was used within a span, by run, agent, model, provider or day", ?usage::Span, => 200 UsageView;
    get "/secrets" secret::list, read, "Names of secrets", => 200 Page of SecretView;
    put "/secrets/{name}" secret::put, write, "Set a secret; the answer says what of it logs will not hide", SecretBody => 200 SecretStored;
    delete "/secrets/{name}" secret::delete, write, "Delete a secret", => 204;
    get "/tokens" token::list, admin, "Tokens of the org, without their text", => 200 Page of TokenView;
    post "/tokens" token::create, admin, "Make a token; its text is in this answer only", NewToken => 201 TokenView;
    get "/tokens/current" token::current, read, "The token this request was made with, without its text", => 200 TokenView;
    delete "/tokens/{id}" token::revoke, admin, "Revoke a token", => 204;
    get "/pools" pool::pools, read, "Where placement is decided", => 200 Page of PoolView;
    get "/pools/waiting" pool::waiting, read, "The newest runs that wait to begin, each with why", => 200 Page of Waiting;
    get "/doctor" control::doctor, admin, "What works on the control plane's machine, and what is missing", => 200 Page of Finding;
    get "/providers" provider::list, read, "Where machines come from", => 200 Page of ProviderView;
    post "/providers" provider::add, admin, "Set up a provider beside those of the settings", NewProvider => 201 ProviderView | 409;
    get "/providers/prices" provider::prices, read, "What machines cost, by provider, region, spot and type", ?provider::Priced, => 200 Page of PriceView;
    get "/providers/{id}" provider::show, read, "One provider", => 200 ProviderView;
    delete "/providers/{id}" provider::remove, admin, "No new machine there; when its last machine is gone, what it has put on hosts goes, and then it", ?provider::Removal, => 204 | 409;
    post "/providers/{id}/test" provider::test, admin, "Make a machine there, look at it, end it, and say what went as it should", => 200 ProviderReport;
    get "/audit" audit::audit, admin, "Every invariant, recomputed", => 200 AuditReport;
    post "/control/stop" control::stop, admin, "End idle machines and this process", StopBody => 200 Stopped;
}

async fn nowhere(request: Request) -> Response {
    let path = request.uri().path();
    let wants_page = request
        .headers()
        .get(header::ACCEPT)
        .and_then(|it| it.to_str().ok())
        .is_some_and(|it| it.contains("text/html"));
    if wants_page && !path.starts_with("/api/") && !path.starts_with("/runner/") {
        return crate::pages::nothing_at(path);
    }
    Problem::new(StatusCode::NOT_FOUND, "not_found", format!("there is nothing at {path}")).into_response()
}

async fn not_that_way(request: Request) -> Problem {
    let detail = format!("{} is not possible at {}", request.method(), request.uri().path());
    Problem::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", detail)
}

/// Parameters that the description of a route does not have are refused.
async fn described(request: Request, next: Next) -> Response {
    static KNOWN: OnceLock<HashMap<(String, String), Vec<String>>> = OnceLock::new();
    if request.uri().query().is_none_or(str::is_empty) {
        return next.run(request).await;
    }
    let known = KNOWN.get_or_init(|| {
        let names = |route: &openapi::Route| route.query().into_iter().map(|parameter| parameter.name).collect();
        API.iter()
            .map(|route| ((route.method.to_uppercase(), format!("/api/v1{}", route.path)), names(route)))
            .collect()
    });
    let method = if request.method() == Method::HEAD { Method::GET } else { request.method().clone() };
    let path = request.extensions().get::<MatchedPath>().map_or_else(String::new, |path| path.as_str().to_owned());
    let names = known.get(&(method.to_string(), path)).map_or(&[][..], Vec::as_slice);
    match input::check_query(request.uri(), names) {
        Ok(()) => next.run(request).await,
        Err(problem) => problem.into_response(),
    }
}

/// Every answer carries a request id; a problem carries it in its document too. A panic on the way is a problem like any other.
async fn numbered(State(state): State<Shared>, mut request: Request, next: Next) -> Response {
    state.asked_at.store(crate::now_ms(), Ordering::Relaxed);
    let number = state.requests.fetch_add(1, Ordering::Relaxed);
    let id = format!("req_{}{}", model::slug(state.started_at), model::slug(number));
    request.extensions_mut().insert(RequestId(id.clone()));
    let answered = match input::check_address(request.uri()) {
        Ok(()) => AssertUnwindSafe(next.run(bounded(request))).catch_unwind().await,
        Err(problem) => Ok(problem.into_response()),
    };
    let mut response = answered.unwrap_or_else(|panic| {
        Problem::internal(format!("panicked: {}", engine::panic_text(&*panic))).into_response()
    });
    if response.status() == StatusCode::INTERNAL_SERVER_ERROR {
        state.failures.fetch_add(1, Ordering::Relaxed);
    }
    if let Some(Hidden(cause)) = response.extensions_mut().remove::<Hidden>() {
        tracing::warn!(request = id, status = response.status().as_u16(), "{cause}");
    }
    let mut response = if is_problem(&response) { with_request_id(response, &id).await } else { response };
    let headers = response.headers_mut();
    crate::pages::headers(headers);
    if let Ok(value) = HeaderValue::from_str(&id) {
        headers.insert("x-request-id", value);
    }
    response
}

/// The id of a request, for what is remembered of it.
#[derive(Clone)]
pub(crate) struct RequestId(pub(crate) String);

/// A remote client must not keep a handler busy by sending its body for ever.
fn bounded(request: Request) -> Request {
    if Peer::of(request.extensions()) == Peer::Local {
        request
    } else {
        request.map(|body| input::steady(body, input::PIECE_WITHIN))
    }
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
    // A repeated refusal is the document of the request that was refused.
    if document["request_id"].is_null() {
        document["request_id"] = id.into();
    }
    parts.headers.remove(header::CONTENT_LENGTH);
    Response::from_parts(parts, Body::from(document.to_string()))
}

/// The stored or fresh answer of a repeatable request.
pub(crate) fn answered(answer: engine::run::KeyedResponse) -> HandlerResult {
    let status =
        u16::try_from(answer.status).ok().and_then(|code| StatusCode::from_u16(code).ok()).unwrap_or(StatusCode::OK);
    let kind = if status.is_client_error() { PROBLEM } else { HeaderValue::from_static("application/json") };
    let mut response = (status, [(header::CONTENT_TYPE, kind)], answer.body).into_response();
    if answer.replayed {
        response.headers_mut().insert("idempotent-replayed", HeaderValue::from_static("true"));
    }
    Ok(response)
}

/// The answer to a question that changes nothing: stored only if the asker wants to hear the same again.
pub(crate) async fn settled(state: &Shared, key: Option<Key>, body: &impl serde::Serialize) -> HandlerResult {
    let body = serde_json::to_vec(body).expect("a view is plain data");
    if key.is_none() {
        return answered(engine::run::KeyedResponse { status: 200, body, replayed: false });
    }
    answered(state.engine.keyed(Lane::Normal, "answer.keep", key, 200, move |_| Ok(body.clone())).await?)
}

/// Answers from the key, if it has an answer; else acts, and keeps the answer or the refusal under the key. For acts of more than one
/// transaction, which may be begun again without harm.
pub(crate) async fn once<V: serde::Serialize>(
    state: &Shared,
    key: Option<Key>,
    status: i64,
    act: impl Future<Output = Result<V, Failure>>,
) -> HandlerResult {
    if let Some(before) = state.engine.answered_before(key.clone()).await? {
        return answered(before);
    }
    match act.await {
        Ok(view) => {
            let body = serde_json::to_vec(&view).expect("a view is plain data");
            if key.is_none() {
                return answered(engine::run::KeyedResponse { status, body, replayed: false });
            }
            let kept = move |_: &mut Tx| Ok(body.clone());
            answered(state.engine.keyed(Lane::Normal, "answer.keep", key, status, kept).await?)
        }
        Err(Failure::Refused(refused)) => {
            let refusal = move |_: &mut Tx| Err(refused.clone().into());
            answered(state.engine.keyed(Lane::Normal, "answer.keep", key, status, refusal).await?)
        }
        Err(trouble) => Err(trouble.into()),
    }
}

/// An id in a path; one that cannot be read names nothing.
pub(crate) fn id<I: std::str::FromStr<Err = model::BadId>>(what: &'static str, text: &str) -> Result<I, Problem> {
    text.parse().map_err(|_| Refused::not_found(what, text).into())
}

/// Where a listing goes on, and how long a page is.
#[derive(Debug, Default, serde::Deserialize, utoipa::IntoParams)]
#[serde(default)]
#[into_params(parameter_in = Query)]
pub(crate) struct Paging {
    /// How many at most; 50 unless given.
    #[param(minimum = 1, maximum = 1000)]
    pub(crate) limit: Option<i64>,
    /// `next_cursor` of the page before.
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

/// A page of what `keep` lets through: full, or the last. `read` gives what follows a number, `number` is where one stands.
pub(crate) async fn gather<E, F: Future<Output = Result<Vec<E>, model::Failure>>>(
    start: i64,
    limit: i64,
    read: impl Fn(i64) -> F,
    number: impl Fn(&E) -> i64,
    keep: impl Fn(&E) -> bool,
) -> Result<Vec<E>, Problem> {
    let (mut kept, mut from) = (Vec::new(), start);
    loop {
        let found = read(from).await?;
        let more = found.len() as i64 == limit;
        from = found.last().map_or(from, &number);
        kept.extend(found.into_iter().filter(&keep));
        if !more || kept.len() as i64 >= limit {
            kept.truncate(limit as usize);
            return Ok(kept);
        }
    }
}

/// A page of something that is read as a whole.
pub(crate) fn part<V: serde::Serialize>(all: Vec<V>, paging: &Paging) -> HandlerResult {
    let (limit, after) = (paging.limit()?, paging.after()?);
    let (limit, after) = (limit as usize, usize::try_from(after).unwrap_or(usize::MAX));
    let next = after.saturating_add(limit);
    let next_cursor = (next < all.len()).then(|| model::slug(next as i64));
    let data: Vec<V> = all.into_iter().skip(after).take(limit).collect();
    Ok(axum::Json(wire::api::Page { data, next_cursor }).into_response())
}

/// Bytes that a run wrote: a browser must save them and never show them as a page of this server.
pub(crate) fn download(name: &str, bytes: Body) -> Response {
    const KEPT: &percent_encoding::AsciiSet =
        &percent_encoding::NON_ALPHANUMERIC.remove(b'.').remove(b'-').remove(b'_').remove(b'~');
    let name = percent_encoding::utf8_percent_encode(name, KEPT);
    let headers = [
        (header::CONTENT_TYPE, "application/octet-stream".to_owned()),
        (header::CONTENT_DISPOSITION, format!("attachment; filename*=UTF-8''{name}")),
        (header::CONTENT_SECURITY_POLICY, "sandbox".to_owned()),
    ];
    (headers, bytes).into_response()
}
