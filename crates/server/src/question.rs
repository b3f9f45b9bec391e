//! Routes of what people are asked about steps: tickets (`/escalations`) and approvals. Each is answered once, by a token that may.

use crate::auth::{Approver, Reader};
use crate::problem::{HandlerResult, Problem};
use crate::routes::{Asked, Paging, Path, Query, answered, id, page};
use crate::{Shared, now_ms, view};
use axum::Json;
use axum::extract::State;
use engine::question::{QuestionDetail, QuestionRender, Verdict, Which, Word};
use model::question::{Question, QuestionStatus};
use model::run::Ticket;
use model::step::{StepWait, ToolKind};
use model::{Refused, RunId, Timestamp};
use serde::Deserialize;
use std::sync::Arc;
use wire::api::{ApproveBody, Page, QuestionDetailView, QuestionView, RejectBody, ResolveBody};

/// Characters of a note.
pub(crate) const MAX_NOTE: usize = 4_000;

/// Of the words of `order` the first holds where none is given.
pub(crate) const ORDERS: [&str; 2] = ["newest", "oldest"];

#[derive(Debug, Default, Deserialize, utoipa::IntoParams)]
#[serde(default)]
#[into_params(parameter_in = Query)]
pub(crate) struct Filter {
    /// Also those that are answered, or need no answer any more.
    all: Option<bool>,
    /// Only of this run.
    run: Option<String>,
    /// `newest` unless given, or `oldest` first.
    order: Option<String>,
    /// How many at most; 50 unless given.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<i64>,
    /// `next_cursor` of the page before.
    cursor: Option<String>,
}

impl Filter {
    /// Those that are open, oldest first.
    pub(crate) fn open(limit: i64, cursor: Option<String>) -> Filter {
        Filter { limit: Some(limit), cursor, order: Some("oldest".to_owned()), ..Filter::default() }
    }
}

pub(crate) async fn escalations(
    State(state): State<Shared>,
    reader: Reader,
    Query(filter): Query<Filter>,
) -> HandlerResult<Json<Page<QuestionView>>> {
    list(&state, &reader, StepWait::Ticket, filter).await
}

pub(crate) async fn approvals(
    State(state): State<Shared>,
    reader: Reader,
    Query(filter): Query<Filter>,
) -> HandlerResult<Json<Page<QuestionView>>> {
    list(&state, &reader, StepWait::Approval, filter).await
}

async fn list(
    state: &Shared,
    reader: &Reader,
    kind: StepWait,
    filter: Filter,
) -> HandlerResult<Json<Page<QuestionView>>> {
    let paging = Paging { limit: filter.limit, cursor: filter.cursor };
    let oldest_first = match filter.order.as_deref() {
        None => false,
        Some(word) if ORDERS.contains(&word) => word == ORDERS[1],
        Some(other) => return Err(Refused::invalid("order", format!("`{other}` is neither newest nor oldest")).into()),
    };
    let (limit, now) = (paging.limit()?, Timestamp(now_ms()));
    let from = if oldest_first { paging.after()? } else { paging.before()? };
    let run = match &filter.run {
        Some(run) => {
            Some(run.parse::<RunId>().map_err(|_| Refused::invalid("run", format!("`{run}` is not the id of one")))?)
        }
        None => None,
    };
    let which = Which { kind, open: filter.all != Some(true), run, oldest_first };
    let found = state.engine.questions_of(reader.org(), which, from, limit).await?;
    Ok(page(found, limit, |question| question.id.0, |question| shown(question, now)))
}

pub(crate) async fn escalation(
    State(state): State<Shared>,
    reader: Reader,
    Path(question): Path<String>,
) -> HandlerResult<Json<QuestionDetailView>> {
    show(&state, &reader, StepWait::Ticket, &question).await
}

pub(crate) async fn approval(
    State(state): State<Shared>,
    reader: Reader,
    Path(question): Path<String>,
) -> HandlerResult<Json<QuestionDetailView>> {
    show(&state, &reader, StepWait::Approval, &question).await
}

async fn show(
    state: &Shared,
    reader: &Reader,
    kind: StepWait,
    question: &str,
) -> HandlerResult<Json<QuestionDetailView>> {
    let id = id(model::question::what(kind), question)?;
    let detail = state.engine.question(reader.org(), kind, id).await?;
    Ok(Json(detailed(&detail, Timestamp(now_ms()))))
}

pub(crate) async fn resolve(
    State(state): State<Shared>,
    approver: Approver,
    Path(question): Path<String>,
    asked: Asked<ResolveBody>,
) -> HandlerResult {
    let ResolveBody { action, note, output } = &asked.value;
    let ticket: Ticket =
        action.parse().map_err(|e: model::string_enum::UnknownWord| Refused::invalid("action", e.to_string()))?;
    let verdict = match (ticket, output) {
        (Ticket::Done, Some(output)) => Verdict::Done { output: output.clone() },
        (_, None) => Verdict::Resolve(ticket),
        (_, Some(_)) => return Err(Refused::invalid("output", "only goes with the action `done`").into()),
    };
    let note = note.clone();
    answer(&state, &approver, &question, StepWait::Ticket, verdict, note, &asked).await
}

pub(crate) async fn approve(
    State(state): State<Shared>,
    approver: Approver,
    Path(question): Path<String>,
    asked: Asked<ApproveBody>,
) -> HandlerResult {
    let ApproveBody { answer: said, input, note } = asked.value.clone();
    let verdict = Verdict::Approve { answer: said, input };
    answer(&state, &approver, &question, StepWait::Approval, verdict, note, &asked).await
}

pub(crate) async fn reject(
    State(state): State<Shared>,
    approver: Approver,
    Path(question): Path<String>,
    asked: Asked<RejectBody>,
) -> HandlerResult {
    let note = asked.value.note.clone();
    answer(&state, &approver, &question, StepWait::Approval, Verdict::Reject, note, &asked).await
}

async fn answer<T>(
    state: &Shared,
    approver: &Approver,
    question: &str,
    kind: StepWait,
    verdict: Verdict,
    note: Option<String>,
    asked: &Asked<T>,
) -> HandlerResult {
    let id = id(model::question::what(kind), question)?;
    check_note(note.as_deref())?;
    let by = format!("{} ({})", approver.0.name, approver.0.id);
    let (org, word) = (approver.org(), Word { by, verdict, note });
    answered(state.engine.answer_shown(org, id, word, asked.key(org), render()).await?)
}

fn check_note(note: Option<&str>) -> Result<(), Problem> {
    match note {
        Some(note) if note.chars().count() > MAX_NOTE => {
            Err(Refused::invalid("note", format!("must not be longer than {MAX_NOTE} characters")).into())
        }
        _ => Ok(()),
    }
}

fn render() -> QuestionRender {
    let now = Timestamp(now_ms());
    Arc::new(move |detail| serde_json::to_vec(&detailed(detail, now)).expect("a view is plain data"))
}

/// An approval whose time is up is shown as expired, also before its row says so.
fn status(question: &Question, now: Timestamp) -> QuestionStatus {
    match question.status {
        QuestionStatus::Open if question.is_expired(now) => QuestionStatus::Expired,
        status => status,
    }
}

fn shown(question: &Question, now: Timestamp) -> QuestionView {
    let q = question;
    let answer = q.answer.as_ref();
    QuestionView {
        id: q.id.to_string(),
        run: q.run.to_string(),
        attempt: q.attempt,
        step: q.step.to_string(),
        path: q.path.clone(),
        tool: q.tool.to_string(),
        status: status(q, now).to_string(),
        severity: q.severity.to_string(),
        key: q.key.clone(),
        same_as: q.same_as.as_ref().map(|same| same.path.clone()),
        same_as_step: q.same_as.as_ref().map(|same| same.step.to_string()),
        error: view::error(&q.error),
        asked_at: q.asked_at.ms(),
        expires_at: view::ms(q.expires_at),
        answered_by: answer.map(|answer| answer.by.clone()),
        answered_at: answer.map(|answer| answer.at.ms()),
        action: answer.and_then(|answer| answer.ticket).map(|ticket| ticket.to_string()),
        note: answer.and_then(|answer| answer.note.clone()),
        edited_key: answer.and_then(|answer| answer.edited_key.clone()),
    }
}

fn detailed(detail: &QuestionDetail, now: Timestamp) -> QuestionDetailView {
    QuestionDetailView {
        question: shown(&detail.question, now),
        run_name: detail.run_name.clone(),
        input: detail.input.clone(),
        edited_input: detail.edited.clone(),
        answer: detail.answer.clone(),
        allowed: allowed(detail, now).into_iter().map(str::to_owned).collect(),
    }
}

fn allowed(detail: &QuestionDetail, now: Timestamp) -> Vec<&'static str> {
    let question = &detail.question;
    let uncertain = detail.step.as_ref().is_some_and(|step| step.uncertain);
    match (status(question, now), question.kind) {
        (QuestionStatus::Open, StepWait::Ticket) if uncertain => Ticket::ALL.iter().map(|it| it.as_str()).collect(),
        (QuestionStatus::Open, StepWait::Ticket) => vec!["resume", "skip", "retry", "abort"],
        (QuestionStatus::Open, StepWait::Approval) if question.tool == ToolKind::Approval => {
            // With a schema of the answer it is not approved without one.
            let asks = detail.input.as_ref().and_then(|input| input.get("answer")).is_some_and(|it| !it.is_null());
            if asks { vec!["answer", "reject"] } else { vec!["approve", "answer", "reject"] }
        }
        (QuestionStatus::Open, StepWait::Approval) => vec!["approve", "edit", "reject"],
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use crate::hostile::{Got, World};
    use axum::http::StatusCode;
    use engine::store::token::Scope;
    use serde_json::{Value, json};

    async fn get(world: &World, path: &str) -> Value {
        let got = world.ask("get", &format!("/api/v1{path}"), Some(&world.admin), &[], "").await;
        assert_eq!(got.status, StatusCode::OK, "{path}: {}", got.body);
        got.body
    }

    async fn post(world: &World, path: &str, body: Value) -> Got {
        world.ask("post", &format!("/api/v1{path}"), Some(&world.admin), &[], &body.to_string()).await
    }

    #[tokio::test]
    async fn a_ticket_is_shown_and_resolved_with_the_output_of_its_step() {
        let world = World::new(true).await;
        let id = world.ticket().await;
        let shown = get(&world, &format!("/escalations/{id}")).await;
        assert_eq!(
            (&shown["path"], &shown["status"], &shown["severity"]),
            (&json!("a/t/pay"), &json!("open"), &json!("critical"))
        );
        assert_eq!(shown["error"]["code"], "scripted");
        assert_eq!(shown["allowed"], json!(["resume", "skip", "retry", "abort", "done", "not_done"]));
        assert_eq!(shown["input"]["url"], "https://pay.example/perhaps");
        let run = get(&world, &format!("/runs/{}", shown["run"].as_str().unwrap())).await;
        assert_eq!((&run["escalation_ticket_id"], &run["pause_reason"]), (&json!(id), &json!("escalated")));
        assert_eq!((&run["max_agents"], &run["context"]["replan_count"]), (&json!(10), &json!(0)));
        for (body, field) in [
            (json!({ "action": "explode" }), "action"),
            (json!({ "action": "skip", "output": 1 }), "output"),
            (json!({ "action": "skip", "note": "x".repeat(5_000) }), "note"),
            (json!({ "action": "done", "output": "x".repeat(300 << 10) }), "output"),
        ] {
            let got = post(&world, &format!("/escalations/{id}/resolve"), body).await;
            assert_eq!(got.status, StatusCode::BAD_REQUEST, "{}", got.body);
            assert!(got.body["detail"].as_str().unwrap().starts_with(field), "{}", got.body);
        }
        let body = json!({ "action": "done", "output": { "id": 7 }, "note": "the bank says so" });
        let got = post(&world, &format!("/escalations/{id}/resolve"), body.clone()).await;
        assert_eq!(got.status, StatusCode::OK, "{}", got.body);
        let answered = |field: &str| got.body[field].clone();
        assert_eq!((answered("status"), answered("action")), (json!("resolved"), json!("done")));
        assert!(got.body["answered_by"].as_str().unwrap().starts_with("owner (tok_"), "{}", got.body);
        assert!(got.body["answered_at"].is_i64() && got.body["allowed"] == json!([]));
        assert_eq!(post(&world, &format!("/escalations/{id}/resolve"), body).await.status, StatusCode::CONFLICT);
        let steps = get(&world, &format!("/runs/{}/steps", run["id"].as_str().unwrap())).await;
        let step = steps["data"][0]["id"].as_str().unwrap();
        let step = get(&world, &format!("/runs/{}/steps/{step}", run["id"].as_str().unwrap())).await;
        assert_eq!((&step["output"], &step["questions"]), (&json!({ "id": 7 }), &json!([id])));
        assert_eq!(get(&world, "/escalations").await["data"], json!([]));
        assert_eq!(get(&world, "/escalations?all=true").await["data"][0]["id"], json!(id));
    }

    #[tokio::test]
    async fn questions_are_listed_newest_first_or_oldest_first() {
        let world = World::new(true).await;
        let ids = [world.approval().await, world.approval().await, world.approval().await];
        let listed = async |query: &str| -> Vec<String> {
            let (mut all, mut next) = (Vec::new(), String::new());
            loop {
                let page = get(&world, &format!("/approvals?limit=2{query}{next}")).await;
                all.extend(page["data"].as_array().unwrap().iter().map(|it| it["id"].as_str().unwrap().to_owned()));
                match page["next_cursor"].as_str() {
                    Some(cursor) => next = format!("&cursor={cursor}"),
                    None => return all,
                }
            }
        };
        let run = get(&world, &format!("/approvals/{}", ids[0])).await["run"].as_str().unwrap().to_owned();
        let newest: Vec<String> = ids.iter().rev().cloned().collect();
        for also in ["", "&all=true"] {
            assert_eq!(listed(also).await, newest);
            assert_eq!(listed(&format!("{also}&order=oldest")).await, ids);
            assert_eq!(listed(&format!("{also}&order=oldest&run={run}")).await, ids[..1]);
        }
        let odd = world.ask("get", "/api/v1/approvals?order=x", Some(&world.admin), &[], "").await;
        assert_eq!(odd.status, StatusCode::BAD_REQUEST, "{}", odd.body);
    }

    #[tokio::test]
    async fn an_approval_is_given_by_a_token_that_may_do_nothing_else() {
        let world = World::new(true).await;
        let id = world.approval().await;
        let approver = world.token(world.org, Scope::Approve).await;
        let path = format!("/api/v1/approvals/{id}/approve");
        let submit = world.submit(&approver, json!({ "commands": ["true"] })).await;
        assert_eq!(submit.status, StatusCode::FORBIDDEN);
        let edit = json!({ "input": { "method": "POST", "url": "https://mail.example/other" }, "note": "better so" });
        let got = world.ask("post", &path, Some(&approver), &[], &edit.to_string()).await;
        assert_eq!(got.status, StatusCode::OK, "{}", got.body);
        assert_eq!((&got.body["status"], &got.body["edited_input"]), (&json!("approved"), &edit["input"]));
        assert_eq!(got.body["input"]["url"], "https://mail.example/");
        world.work().await;
        let run = got.body["run"].as_str().unwrap();
        let steps = get(&world, &format!("/runs/{run}/steps?status=completed")).await;
        assert_eq!((&steps["data"][0]["key"], &steps["data"][0]["tries"]), (&got.body["edited_key"], &json!(1)));
        assert_eq!(get(&world, &format!("/runs/{run}")).await["status"], "completed");
    }

    #[tokio::test]
    async fn the_tree_is_read_in_pages_with_filters() {
        let world = World::new(true).await;
        let call =
            |name: &str, path: &str| json!({ "name": name, "http": { "url": format!("https://a.example/{path}") } });
        let run = world.agents(json!([call("one", ""), call("two", ""), call("three", "perhaps")])).await;
        let tree = get(&world, &format!("/runs/{run}/tree")).await;
        assert_eq!((&tree["cut"], &tree["run"]["step_count"]), (&json!(false), &json!(3)));
        let (agent, task) = (&tree["agents"][0], &tree["agents"][0]["tasks"][0]);
        assert_eq!(task["step_counts"]["completed"], 2);
        let third = &task["steps"][2];
        assert_eq!(
            (&third["error_class"], &third["error_effect"], &third["decision"]),
            (&json!("transient"), &json!("perhaps"), &json!("retry"))
        );
        let steps = format!("/runs/{run}/steps");
        let (agent, task) = (agent["id"].as_str().unwrap(), task["id"].as_str().unwrap());
        for (query, names) in [
            ("?limit=2".to_owned(), vec!["one", "two"]),
            ("?status=completed&limit=1".to_owned(), vec!["one"]),
            ("?status=pending".to_owned(), vec!["three"]),
            (format!("?task={task}"), vec!["one", "two", "three"]),
            (format!("?agent={agent}&status=failed"), vec![]),
            (format!("?agent={agent}"), vec!["one", "two", "three"]),
            ("?agent=agt_9999".to_owned(), vec![]),
        ] {
            let page = get(&world, &format!("{steps}{query}")).await;
            let found: Vec<&str> =
                page["data"].as_array().unwrap().iter().map(|it| it["name"].as_str().unwrap()).collect();
            assert_eq!(found, names, "{query}");
        }
        let first = get(&world, &format!("{steps}?limit=2")).await;
        let next = get(&world, &format!("{steps}?limit=2&cursor={}", first["next_cursor"].as_str().unwrap())).await;
        assert_eq!((&next["data"][0]["name"], &next["next_cursor"]), (&json!("three"), &Value::Null));
        for (path, field) in [("steps?status=odd", "status"), ("steps?task=x", "task"), ("tasks?agent=run_1", "agent")]
        {
            let got = world.ask("get", &format!("/api/v1/runs/{run}/{path}"), Some(&world.admin), &[], "").await;
            assert_eq!(got.status, StatusCode::BAD_REQUEST, "{path}");
            assert!(got.body["detail"].as_str().unwrap().starts_with(field), "{}", got.body);
        }
    }
}
