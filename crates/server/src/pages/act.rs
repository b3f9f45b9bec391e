//! Actions of pages: what the API's handlers do, done once. The key of an action is made of the session, the action, what it is about and
//! the version that the page showed: a double click is one act, and a button on a page that is out of date is refused.

use super::session::{Form, Visitor};
use super::{OrShown as _, Refusal, run as run_page, see_other};
use crate::auth::{Approver, Writer};
use crate::input::{Asked, Nothing, Path, Query};
use crate::problem::{HandlerResult, Problem};
use crate::routes::RequestId;
use crate::{Shared, allocation, message, question, run};
use axum::extract::{Extension, Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use engine::store::token::Scope;
use model::Refused;
use serde_json::Value;
use wire::api::{ActionBody, ApproveBody, ExtendBody, RejectBody, ResolveBody, SendMessage};

/// Runs of one page.
const SEVERAL: usize = 50;

/// What a button carries in its address.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(default)]
pub(crate) struct Shown {
    /// The state that the page showed.
    seen: String,
    /// The run whose page it was.
    run: Option<String>,
}

pub(crate) fn writer(visitor: &Visitor, what: &str) -> Result<Writer, Problem> {
    visitor.token.must(Scope::Write, what)?;
    Ok(Writer(visitor.token.clone()))
}

/// The answer of an API handler as an answer to a form: back to a page, or the problem as a page.
pub(crate) async fn after(visitor: &Visitor, answer: HandlerResult, to: &str) -> Response {
    match answer {
        Ok(answer) if answer.status().is_success() => see_other(to),
        // A refusal that is remembered under the key comes as a document.
        Ok(answer) => Refusal::of(visitor.clone(), document(answer).await).into_response(),
        Err(problem) => Refusal::of(visitor.clone(), problem).into_response(),
    }
}

/// What a handler of the API answers, as the type that it was.
pub(crate) async fn answer_of<T: serde::de::DeserializeOwned>(answer: HandlerResult) -> HandlerResult<T> {
    let bytes = axum::body::to_bytes(answer?.into_body(), 16 << 20).await.unwrap_or_default();
    serde_json::from_slice(&bytes).map_err(|error| Problem::internal(error.to_string()))
}

async fn document(answer: Response) -> Problem {
    let status = answer.status();
    let bytes = axum::body::to_bytes(answer.into_body(), 1 << 20).await.unwrap_or_default();
    let document: Value = serde_json::from_slice(&bytes).unwrap_or_default();
    let text = |name: &str| document[name].as_str().map(str::to_owned);
    let problem = Problem::new(status, "refused", text("detail").unwrap_or_default());
    match text("fix") {
        Some(fix) => problem.fix(fix),
        None => problem,
    }
}

/// `POST /runs/{id}/{action}`.
pub(crate) async fn on_run(
    State(state): State<Shared>,
    visitor: Visitor,
    Path((id, action)): Path<(String, String)>,
    Query(shown): Query<Shown>,
    Extension(request_id): Extension<RequestId>,
    request: Request,
) -> Result<Response, Refusal> {
    let form = match Form::of(&visitor, request).await {
        Ok(form) => form,
        Err(response) => return Ok(response),
    };
    let writer = writer(&visitor, &action).or_shown(&visitor)?;
    let (route, key) = (format!("POST /runs/{{id}}/{action}"), visitor.action_key(&action, &id, &shown.seen));
    if action == "send" {
        let (text, agent) = (form.get("text").unwrap_or_default().to_owned(), form.get("agent").map(str::to_owned));
        let subject = format!("{id} {agent:?} {text}");
        let key = visitor.action_key(&action, &subject, &shown.seen);
        let asked = Asked::made(SendMessage { agent, text }, &route, &subject, key, request_id.0);
        let answer = message::send(State(state), writer, Path(id.clone()), asked).await;
        return Ok(after(&visitor, answer, &format!("/runs/{id}")).await);
    }
    let body = ActionBody { abort: form.get("abort").is_some(), force: form.get("force").is_some() };
    let asked = Asked::made(body, &route, &id, key, request_id.0);
    if state.engine.answered_before(asked.key(writer.org())).await.or_shown(&visitor)?.is_none() {
        fresh(&state, &visitor, &id, &shown.seen).await.or_shown(&visitor)?;
    }
    let (shared, path) = (State(state.clone()), Path(id.clone()));
    let answer = match action.as_str() {
        "start" => run::start(shared, writer, path, asked).await,
        "cancel" => run::cancel(shared, writer, path, asked).await,
        "pause" => run::pause(shared, writer, path, asked).await,
        "resume" => run::resume(shared, writer, path, asked).await,
        "retry" => run::retry(shared, writer, path, asked).await,
        other => {
            let detail = format!("a run has no action `{other}`");
            Err(Problem::new(StatusCode::NOT_FOUND, "not_found", detail))
        }
    };
    Ok(after(&visitor, answer, &format!("/runs/{id}")).await)
}

/// What is done to several runs.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(default)]
pub(crate) struct Several {
    r#do: String,
}

/// `POST /runs?do=…`: to each run that was chosen, one after the other. Those that refuse are named, the others are done.
pub(crate) async fn on_several(
    State(state): State<Shared>,
    visitor: Visitor,
    Query(what): Query<Several>,
    Extension(request_id): Extension<RequestId>,
    request: Request,
) -> Result<Response, Refusal> {
    let form = match Form::of(&visitor, request).await {
        Ok(form) => form,
        Err(response) => return Ok(response),
    };
    let mut refused = Vec::new();
    for chosen in form.all("run").take(SEVERAL) {
        let Some((id, seen)) = chosen.split_once(' ') else { continue };
        if let Err(problem) = one_of_several(&state, &visitor, (&what.r#do, id, seen), &request_id).await {
            refused.push(format!("{id}: {}", problem.detail()));
        }
    }
    if refused.is_empty() {
        return Ok(see_other("/runs"));
    }
    Err(Refusal::of(visitor, Problem::new(StatusCode::CONFLICT, "conflict", refused.join("; "))))
}

async fn one_of_several(
    state: &Shared,
    visitor: &Visitor,
    (action, id, seen): (&str, &str, &str),
    request_id: &RequestId,
) -> Result<(), Problem> {
    let writer = writer(visitor, action)?;
    let (route, key) = (format!("POST /runs/{{id}}/{action}"), visitor.action_key(action, id, seen));
    let asked = Asked::made(ActionBody::default(), &route, id, key, request_id.0.clone());
    if state.engine.answered_before(asked.key(writer.org())).await?.is_none() {
        fresh(state, visitor, id, seen).await?;
    }
    let (shared, path) = (State(state.clone()), Path(id.to_owned()));
    let answer = match action {
        "cancel" => run::cancel(shared, writer, path, asked).await?,
        "retry" => run::retry(shared, writer, path, asked).await?,
        other => return Err(Refused::invalid("do", format!("`{other}` is not done to several runs")).into()),
    };
    if answer.status().is_success() { Ok(()) } else { Err(document(answer).await) }
}

/// Whether the run is still in the state and attempt that the page showed.
async fn fresh(state: &Shared, visitor: &Visitor, id: &str, seen: &str) -> Result<(), Problem> {
    let now = run_page::one(state, visitor.viewer(), id).await?;
    let shown = seen.rsplit_once('.').map_or("", |(shown, _)| shown);
    if shown == format!("{}.{}", now.status, now.attempt_number) {
        return Ok(());
    }
    let detail = format!("the page was out of date: the run is {} now, in attempt {}", now.status, now.attempt_number);
    Err(Problem::new(StatusCode::CONFLICT, "stale", detail).fix(format!("look at it again: /runs/{id}")))
}

/// `POST /allocations/{id}/{extend,release}`.
pub(crate) async fn on_allocation(
    State(state): State<Shared>,
    visitor: Visitor,
    Path((id, action)): Path<(String, String)>,
    Query(shown): Query<Shown>,
    Extension(request_id): Extension<RequestId>,
    request: Request,
) -> Result<Response, Refusal> {
    if let Err(response) = Form::of(&visitor, request).await {
        return Ok(response);
    }
    let writer = writer(&visitor, &action).or_shown(&visitor)?;
    let (route, key) = (format!("POST /allocations/{{id}}/{action}"), visitor.action_key(&action, &id, &shown.seen));
    let (shared, path) = (State(state), Path(id.clone()));
    let answer = match action.as_str() {
        "extend" => {
            let asked = Asked::made(ExtendBody { duration_ms: None }, &route, &id, key, request_id.0);
            allocation::extend(shared, writer, path, asked).await
        }
        "release" => {
            let asked = Asked::made(Nothing {}, &route, &id, key, request_id.0);
            allocation::release(shared, writer, path, asked).await
        }
        other => Err(Problem::new(StatusCode::NOT_FOUND, "not_found", format!("no action `{other}`"))),
    };
    let back = shown.run.map_or_else(|| "/machines".to_owned(), |run| format!("/runs/{run}"));
    Ok(after(&visitor, answer, &back).await)
}

/// `POST /inbox/{id}/{action}`: an approval or a ticket is answered.
pub(crate) async fn on_question(
    State(state): State<Shared>,
    visitor: Visitor,
    Path((id, action)): Path<(String, String)>,
    Extension(request_id): Extension<RequestId>,
    request: Request,
) -> Result<Response, Refusal> {
    let form = match Form::of(&visitor, request).await {
        Ok(form) => form,
        Err(response) => return Ok(response),
    };
    let json = form.get(&format!("json-{id}")).map(read_json).transpose().or_shown(&visitor)?;
    let note = form.get(&format!("note-{id}")).map(str::to_owned);
    visitor.token.must(Scope::Approve, &action).or_shown(&visitor)?;
    let approver = Approver(visitor.token.clone());
    let route = format!("POST /inbox/{{id}}/{action}");
    let subject = format!("{id} {json:?} {note:?}");
    let key = visitor.action_key(&action, &id, &subject);
    let (shared, path) = (State(state), Path(id.clone()));
    let answer = match action.as_str() {
        "approve" | "edit" | "answer" => {
            let body = ApproveBody {
                answer: json.clone().filter(|_| action == "answer"),
                input: json.filter(|_| action == "edit"),
                note,
            };
            question::approve(shared, approver, path, Asked::made(body, &route, &subject, key, request_id.0)).await
        }
        "reject" => {
            let asked = Asked::made(RejectBody { note }, &route, &subject, key, request_id.0);
            question::reject(shared, approver, path, asked).await
        }
        _ => {
            let output = json.filter(|_| action == "done");
            let body = ResolveBody { action: action.clone(), note, output };
            question::resolve(shared, approver, path, Asked::made(body, &route, &subject, key, request_id.0)).await
        }
    };
    Ok(after(&visitor, answer, "/inbox").await)
}

fn read_json(text: &str) -> Result<Value, Refused> {
    serde_json::from_str(text).map_err(|error| Refused::invalid("JSON", error.to_string()))
}
