//! Forms of pages: what the API's handlers do, done once. The key of an action is made of the session, the action, what it is about and
//! the version that the page showed: a double click is one act, and a button on a page that is out of date is refused. What was refused
//! is not stored under the key: the same form is judged anew.

use super::said::Said;
use super::session::{Form, Visitor};
use super::{Refusal, parts, run as run_page, run_list, see_other, session};
use crate::auth::{Approver, Writer};
use crate::input::{Asked, Nothing, Path};
use crate::problem::{HandlerResult, Problem};
use crate::routes::RequestId;
use crate::{Shared, allocation, message, question, run};
use axum::extract::{FromRequest, FromRequestParts as _, Query, Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use engine::{Scope, Token};
use model::Refused;
use serde_json::Value;
use wire::api::{ActionBody, AllocationView, ApproveBody, ExtendBody, RejectBody, ResolveBody, SendMessage};

/// Runs of one page.
const SEVERAL: usize = 50;

/// What a button carries in its address.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(default)]
pub(crate) struct Button {
    /// The state that the page showed.
    pub(crate) seen: String,
    /// What is to be done, where a form has several buttons.
    pub(crate) r#do: String,
    /// The query of the list that it was in.
    pub(crate) at: String,
    /// The run whose page it was.
    pub(crate) run: Option<String>,
    /// What it is about, where that may hold any character.
    pub(crate) id: String,
    pub(crate) provider: Option<String>,
}

/// A form that a signed-in person has sent from a page of this session.
pub(crate) struct Sent {
    pub(crate) state: Shared,
    pub(crate) visitor: Visitor,
    pub(crate) form: Form,
    pub(crate) button: Button,
    pub(crate) request: String,
}

impl FromRequest<Shared> for Sent {
    type Rejection = Response;
    async fn from_request(request: Request, state: &Shared) -> Result<Sent, Response> {
        let (mut parts, body) = request.into_parts();
        let visitor = Visitor::from_request_parts(&mut parts, state).await?;
        let Query(button) = Query::try_from_uri(&parts.uri).unwrap_or_default();
        let id = parts.extensions.get::<RequestId>().map_or_else(String::new, |id| id.0.clone());
        let form = Form::of(&visitor, Request::from_parts(parts, body)).await?;
        Ok(Sent { state: state.clone(), visitor, form, button, request: id })
    }
}

impl Sent {
    /// The version of what has none: each page as it is loaded. Its buttons act once, and those of the page loaded next act again.
    pub(crate) fn page() -> String {
        engine::new_secret()
    }

    /// The person's token, if it may do this.
    pub(crate) fn may(&self, scope: Scope, what: &str) -> HandlerResult<Token> {
        self.visitor.token.must(scope, what)?;
        Ok(self.visitor.token.clone())
    }

    pub(crate) fn writer(&self, what: &str) -> HandlerResult<Writer> {
        self.may(Scope::Write, what).map(Writer)
    }

    pub(crate) fn shared(&self) -> State<Shared> {
        State(self.state.clone())
    }

    /// The request of the API that the form stands for: done once for this session, action, subject and version.
    pub(crate) fn asked<B>(&self, body: B, action: &str, about: &str, version: &str) -> Asked<B> {
        let key = self.visitor.action_key(action, about, version);
        Asked::made(body, action, &format!("{about} {version}"), key, self.request.clone())
    }

    /// A field, also an empty one.
    pub(crate) fn field(&self, name: &str) -> String {
        self.form.get(name).unwrap_or_default().to_owned()
    }

    /// The answer of the API as an answer to a form: to the page that says so, or the problem as a page that leads there.
    pub(crate) async fn answered(self, answer: HandlerResult, to: &str, said: &str) -> Response {
        match answer {
            Ok(answer) if answer.status().is_success() => self.done(to, Said::of(said)),
            // A refusal that is remembered under the key comes as a document.
            Ok(answer) => Refusal::about(self.visitor, document(answer).await, to).into_response(),
            Err(problem) => Refusal::about(self.visitor, problem, to).into_response(),
        }
    }

    /// To a page that says what was done.
    pub(crate) fn done(&self, to: &str, said: Option<Said>) -> Response {
        let mut response = see_other(to);
        if said.is_some() {
            let cookie = session::said_cookie(&self.state, self.visitor.door, said);
            response.headers_mut().insert(header::SET_COOKIE, cookie);
        }
        response
    }

    /// Whether an action was done under this key before: a repetition gets the first answer, whatever has changed since.
    pub(crate) async fn is_repeated<B>(&self, asked: &Asked<B>) -> HandlerResult<bool> {
        Ok(self.state.engine.answered_before(asked.key(self.visitor.token.org)).await?.is_some())
    }
}

/// The page was loaded before something changed: what it showed is not so any more.
pub(crate) fn stale(now: impl std::fmt::Display) -> HandlerResult<()> {
    Err(Problem::new(StatusCode::CONFLICT, "stale", format!("the page was out of date, so nothing was done: {now}")))
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

/// A page has no such button.
pub(crate) fn no_action(action: &str) -> HandlerResult {
    Err(Problem::new(StatusCode::NOT_FOUND, "not_found", format!("there is no action `{action}` here")))
}

/// `POST /runs/{id}/{action}`.
pub(crate) async fn on_run(Path((id, action)): Path<(String, String)>, sent: Sent) -> Response {
    let answer = match action.as_str() {
        "send" => say(&sent, &id).await,
        _ => to_run(&sent, (&action, &id, &sent.button.seen)).await,
    };
    sent.answered(answer, &format!("/runs/{id}"), &action).await
}

async fn say(sent: &Sent, id: &str) -> HandlerResult {
    let body = SendMessage { agent: sent.form.get("agent").map(str::to_owned), text: sent.field("text") };
    let about = format!("{id} {:?} {}", body.agent, body.text);
    let asked = sent.asked(body, "send", &about, &sent.button.seen);
    if !sent.is_repeated(&asked).await? {
        fresh(sent, id, &sent.button.seen).await?;
    }
    message::send(sent.shared(), sent.writer("send")?, Path(id.to_owned()), asked).await
}

/// One action on one run, if it still is in the state that the page showed.
async fn to_run(sent: &Sent, (action, id, seen): (&str, &str, &str)) -> HandlerResult {
    let (writer, shared, path) = (sent.writer(action)?, sent.shared(), Path(id.to_owned()));
    let asked = sent.asked(ActionBody::default(), action, id, seen);
    if !sent.is_repeated(&asked).await? {
        fresh(sent, id, seen).await?;
    }
    match action {
        "start" => run::start(shared, writer, path, asked).await,
        "cancel" => run::cancel(shared, writer, path, asked).await,
        "pause" => run::pause(shared, writer, path, asked).await,
        "resume" => run::resume(shared, writer, path, asked).await,
        "retry" => run::retry(shared, writer, path, asked).await,
        other => no_action(other),
    }
}

/// `POST /runs?do=…`: to each run that was chosen, one after the other. Those that refuse are named, the others are done.
pub(crate) async fn on_several(sent: Sent) -> Response {
    let mut refused = Vec::new();
    let action = sent.button.r#do.as_str();
    if !matches!(action, "cancel" | "retry") {
        let problem = Refused::invalid("do", format!("`{action}` is not done to several runs")).into();
        return Refusal::of(sent.visitor, problem).into_response();
    }
    for chosen in sent.form.all("run").take(SEVERAL) {
        let Some((id, seen)) = chosen.split_once(' ') else { continue };
        let problem = match to_run(&sent, (action, id, seen)).await {
            Ok(answer) if answer.status().is_success() => continue,
            Ok(answer) => document(answer).await,
            Err(problem) => problem,
        };
        refused.push(format!("{id}: {}", problem.detail()));
    }
    // Back to the part of the list that the runs were chosen from.
    let back = run_list::address(&sent.button.at);
    if refused.is_empty() {
        return sent.done(&back, Said::of("several"));
    }
    let problem = Problem::new(StatusCode::CONFLICT, "conflict", refused.join("; "));
    Refusal::about(sent.visitor, problem, &back).into_response()
}

/// Whether the run is still in the state and attempt that the page showed.
async fn fresh(sent: &Sent, id: &str, seen: &str) -> HandlerResult<()> {
    let now = run_page::one(&sent.state, sent.visitor.viewer(), id).await?;
    let shown = seen.rsplit_once('.').map_or("", |(shown, _)| shown);
    if shown == format!("{}.{}", now.status, now.attempt_number) {
        return Ok(());
    }
    stale(format!("the run is {} now, in attempt {}", now.status, now.attempt_number))
}

/// `POST /allocations/{id}/{extend,release}`.
pub(crate) async fn on_allocation(Path((id, action)): Path<(String, String)>, sent: Sent) -> Response {
    let back = sent.button.run.as_ref().map_or_else(|| "/machines".to_owned(), |run| format!("/runs/{run}"));
    match to_allocation(&sent, &id, &action).await {
        Ok(answer) if action == "extend" && answer.status().is_success() => {
            let slot: Result<AllocationView, _> = answer_of(Ok(answer)).await;
            let until = slot.ok().and_then(|slot| slot.debug_hold_until).unwrap_or(0);
            sent.done(&back, Said::until("extend", until))
        }
        answer => sent.answered(answer, &back, &action).await,
    }
}

/// Whether the folder is still kept until the moment that the page showed.
async fn kept_as_seen(sent: &Sent, id: &str) -> HandlerResult<()> {
    let now = allocation::show(sent.shared(), sent.visitor.viewer().reader(), Path(id.to_owned())).await?.0;
    if sent.button.seen == now.debug_hold_until.unwrap_or(0).to_string() {
        return Ok(());
    }
    match now.debug_hold_until.filter(|_| now.held) {
        Some(at) => stale(format!("the folder is kept until {} UTC now", parts::day_and_time(at))),
        None => stale("the folder is not kept any more"),
    }
}

async fn to_allocation(sent: &Sent, id: &str, action: &str) -> HandlerResult {
    let (writer, shared, path, seen) = (sent.writer(action)?, sent.shared(), Path(id.to_owned()), &sent.button.seen);
    match action {
        "extend" => {
            let asked = sent.asked(ExtendBody { duration_ms: None }, action, id, seen);
            if !sent.is_repeated(&asked).await? {
                kept_as_seen(sent, id).await?;
            }
            allocation::extend(shared, writer, path, asked).await
        }
        "release" => {
            let asked = sent.asked(Nothing {}, action, id, seen);
            if !sent.is_repeated(&asked).await? {
                kept_as_seen(sent, id).await?;
            }
            allocation::release(shared, writer, path, asked).await
        }
        other => no_action(other),
    }
}

/// `POST /inbox/{id}/{action}`: an approval or a ticket is answered.
pub(crate) async fn on_question(Path((id, action)): Path<(String, String)>, sent: Sent) -> Response {
    let answer = to_question(&sent, &id, &action).await;
    let said = match action.as_str() {
        "approve" | "edit" | "answer" | "reject" => action,
        _ => format!("ticket-{action}"),
    };
    // What was answered leads to the next question; what was refused, to the question as it is now.
    let to = if matches!(&answer, Ok(answer) if answer.status().is_success()) {
        "/inbox".to_owned()
    } else {
        format!("/inbox?open={id}")
    };
    sent.answered(answer, &to, &said).await
}

async fn to_question(sent: &Sent, id: &str, action: &str) -> HandlerResult {
    let json = sent.form.get(&format!("json-{id}")).map(read_json).transpose()?;
    let note = sent.form.get(&format!("note-{id}")).map(str::to_owned);
    let approver = Approver(sent.may(Scope::Approve, action)?);
    let (shared, path, said) = (sent.shared(), Path(id.to_owned()), format!("{json:?} {note:?}"));
    match action {
        "approve" | "edit" | "answer" => {
            let answer = json.clone().filter(|_| action == "answer");
            let body = ApproveBody { answer, input: json.filter(|_| action == "edit"), note };
            question::approve(shared, approver, path, sent.asked(body, action, id, &said)).await
        }
        "reject" => question::reject(shared, approver, path, sent.asked(RejectBody { note }, action, id, &said)).await,
        _ => {
            let output = json.filter(|_| action == "done");
            let body = ResolveBody { action: action.to_owned(), note, output };
            question::resolve(shared, approver, path, sent.asked(body, action, id, &said)).await
        }
    }
}

fn read_json(text: &str) -> Result<Value, Refused> {
    serde_json::from_str(text).map_err(|error| Refused::invalid("JSON", error.to_string()))
}
