//! Calls: which were answered by a kept result and which were executed, which results are kept, and where each came from.

use super::act::{Sent, no_action, stale};
use super::region;
use super::run::paging;
use super::session::{Viewer, Visitor};
use super::shell::{self, Head};
use super::{OrShown as _, PageResult, parts};
use crate::auth::Reader;
use crate::input::{Nothing, Path, Query};
use crate::problem::HandlerResult;
use crate::routes::{Paging, download};
use crate::{Shared, cache, call};
use axum::extract::State;
use axum::http::Uri;
use axum::response::Response;
use engine::Scope;
use maud::{Markup, html};
use model::Refused;
use wire::api::{Backtrack, CallView, Invalidate};

/// HTML bytes of one input of a call: there are up to twenty, of which few are long.
const INPUT: usize = 2 * 1024;
/// Executions that are listed; older ones have left results.
const EXECUTIONS: i64 = 30;

pub(crate) async fn page(State(state): State<Shared>, visitor: Visitor, uri: Uri) -> PageResult {
    let query = uri.query().map_or_else(String::new, |query| format!("?{query}"));
    let shown = region::live(&state, visitor.viewer(), &format!("/ui/calls{query}")).await.or_shown(&visitor)?;
    let body = html! { div.title { h1 { "Calls" } } (shown) };
    Ok(shell::full(&state, &visitor, Head { title: "Calls", under: "/calls" }, &body).await)
}

/// What was called, newest first, and which results are kept.
pub(crate) async fn region(state: &Shared, viewer: Viewer, query: &str) -> HandlerResult<Markup> {
    let asked = paging(query, 50);
    let first = asked.cursor.is_none();
    let shared = || State(state.clone());
    let recent = Query(Paging { limit: Some(EXECUTIONS), cursor: None });
    let called = call::list(shared(), viewer.reader(), recent).await?.0;
    let kept = cache::list(shared(), viewer.reader(), Query(asked)).await?.0;
    Ok(html! {
        @if first && !called.data.is_empty() { (executions(&called.data, viewer.may(Scope::Write))) }
        h2 { "Results that are kept" }
        @if kept.data.is_empty() {
            p.empty { "No result is kept. A run that is submitted with a cache leaves one: " (parts::command("repl run --cache -c 'make report'")) }
        } @else {
            div.scroll tabindex="0" role="region" aria-label="Results" { table.list {
                thead { tr { th scope="col" { "State" } th scope="col" { "Result" } th scope="col" { "Name" } th scope="col" { "Made by" } th.r scope="col" { "Size" } th.r scope="col" { "Made" } th.r scope="col" { "Last used" } } }
                tbody { @for it in &kept.data { tr id=(it.exec) {
                    td { (parts::state(&it.status)) } td { a.row href=(format!("/calls/{}", it.exec)) { (short(&it.exec)) } } td { (parts::short(&it.name)) }
                    td { @match &it.run { Some(run) => a href=(format!("/runs/{run}")) { (run) }, None => span.quiet { "–" } } }
                    td.r.num { (parts::bytes(it.bytes)) } td.r { (parts::time(it.ended_at)) } td.r { (parts::time(it.used_at)) }
                } } }
            } }
        }
        (parts::more("/calls", kept.next_cursor.as_deref(), first))
    })
}

/// Each execution: whether a kept result answered it, or what became of it.
fn executions(all: &[CallView], writes: bool) -> Markup {
    html! {
        h2 { "Executions" }
        div.scroll tabindex="0" role="region" aria-label="Executions" { table.list {
            thead { tr { th scope="col" { "State" } th scope="col" { "Call" } th scope="col" { "Function" } th scope="col" { "Run" } th.r scope="col" { "Attempt" } th.r scope="col" { "Took" } th scope="col" { "Why" } @if writes { th scope="col" { "Act" } } } }
            tbody { @for it in all { @let id = it.id.as_deref().unwrap_or("–"); tr id=(format!("c-{id}")) {
                td { (parts::state(word(it))) } td { code { (id) } } td { (parts::short(&it.function)) }
                td { @match &it.run { Some(run) => a href=(format!("/runs/{run}")) { (run) }, None => span.quiet { "–" } } }
                td.r.num { (it.attempt) } td.r { (parts::lasted(it.started_at, it.ended_at)) }
                td { @if let Some(error) = &it.error { (parts::short(&error.message)) } @else if it.status == "pinned_hit" { "a kept result answered" } }
                @if writes { td { @if !it.ended { (parts::button("Cancel", &format!("/calls/{id}/cancel?seen={}", it.status), "danger")) } } }
            } } }
        } }
    }
}

/// The state of an execution in the words that all pages use.
fn word(it: &CallView) -> &'static str {
    match it.status.as_str() {
        "pinned_hit" => "hit",
        "completed_ok" => "completed",
        "completed_error" | "failed_terminal" => "failed",
        "retry_wait" => "retrying",
        _ => "running",
    }
}

/// The beginning of a hash, which names it.
fn short(hash: &str) -> &str {
    hash.get(..16).unwrap_or(hash)
}

pub(crate) async fn one(State(state): State<Shared>, visitor: Visitor, Path(id): Path<String>) -> PageResult {
    let reader = Reader(visitor.token.clone());
    let it = cache::backtrack(State(state.clone()), reader, Path(id)).await.or_shown(&visitor)?.0;
    let body = origin(&it, visitor.viewer().may(Scope::Write));
    Ok(shell::full(&state, &visitor, Head { title: short(&it.exec), under: "/calls" }, &body).await)
}

fn origin(it: &Backtrack, writes: bool) -> Markup {
    html! {
        p.crumbs { a href="/calls" { "Calls" } " / " (short(&it.exec)) }
        div.title { h1 { (parts::visible(&it.function)) } (parts::state(&it.status))
            @if writes { div.actions { (parts::button("Invalidate", &format!("/calls/{}/invalidate?seen={}", it.node, Sent::page()), "danger")) } } }
        h2 { "Where it came from" }
        (parts::facts(vec![
            ("Run", it.run.as_ref().map(|run| html! { a href=(format!("/runs/{run}")) { (run) } })),
            ("Job", it.job.as_ref().map(|job| match &it.run {
                Some(run) => html! { a href=(format!("/runs/{run}/log?job={job}")) { (job) } },
                None => html! { code { (job) } },
            })),
            ("Machine", it.instance.as_ref().map(|machine| html! { a href=(format!("/machines#{machine}")) { (machine) } })),
            ("Cost", it.credits.as_deref().map(parts::credits)),
            ("Made", Some(parts::time(it.ended_at))),
            ("Took", Some(parts::lasted(Some(it.started_at), Some(it.ended_at)))),
            ("Exec", Some(html! { code { (it.exec) } })),
            ("Key", Some(html! { code { (it.node) } })),
        ]))
        h2 { "Made of" }
        div.scroll tabindex="0" role="region" aria-label="Inputs" { table.list {
            thead { tr { th scope="col" { "Input" } th scope="col" { "Value" } } }
            tbody { @for (name, value) in it.inputs.as_object().into_iter().flatten() {
                tr { td { (parts::visible(name)) @if let Some(exec) = it.made_by.get(name) { br; a href=(format!("/calls/{exec}")) { "result " (short(exec)) } } }
                    td { (parts::json_up_to(value, INPUT, Some(&format!("/calls/{}/inputs", it.exec)))) } }
            } }
        } }
        h2 { "Value" }
        (parts::json_or(&it.value, &format!("/calls/{}/value", it.exec)))
    }
}

/// `GET /calls/{id}/{inputs,value}`: the whole of it, as a file.
pub(crate) async fn part(
    State(state): State<Shared>,
    visitor: Visitor,
    Path((id, part)): Path<(String, String)>,
) -> PageResult {
    let reader = Reader(visitor.token.clone());
    let it = cache::backtrack(State(state), reader, Path(id)).await.or_shown(&visitor)?.0;
    let value = match part.as_str() {
        "inputs" => it.inputs,
        "value" => it.value,
        _ => return Err(Refused::not_found("part of a call", part.as_str())).or_shown(&visitor),
    };
    Ok(download(&format!("{}-{part}.json", short(&it.exec)), format!("{value:#}").into()))
}

/// `POST /calls/{id}/{invalidate,cancel}`.
pub(crate) async fn act(Path((id, action)): Path<(String, String)>, sent: Sent) -> Response {
    let answer = to_call(&sent, &id, &action).await;
    let said = if action == "cancel" { "call-cancel" } else { action.as_str() };
    sent.answered(answer, "/calls", said).await
}

async fn to_call(sent: &Sent, id: &str, action: &str) -> HandlerResult {
    let (shared, writer) = (sent.shared(), sent.writer(action)?);
    match action {
        "invalidate" => {
            let body = Invalidate { result: Some(id.to_owned()), ..Invalidate::default() };
            cache::invalidate(shared, writer, sent.asked(body, action, id, &sent.button.seen)).await
        }
        "cancel" => {
            let asked = sent.asked(Nothing {}, "cancel-call", id, &sent.button.seen);
            if !sent.is_repeated(&asked).await? {
                let now = call::show(
                    sent.shared(),
                    sent.visitor.viewer().reader(),
                    Path(id.to_owned()),
                    Query(Default::default()),
                )
                .await?
                .0;
                // A call that goes on is given up whatever it waits for just now.
                if now.ended {
                    stale(format!("the call is {} now", now.status.replace('_', " ")))?;
                }
            }
            call::cancel(shared, writer, Path(id.to_owned()), asked).await
        }
        other => no_action(other),
    }
}
