//! Results of calls that are kept: what there is, where each came from, and which are to answer no more.

use super::act::Sent;
use super::run::paging;
use super::session::Visitor;
use super::shell::{self, Head};
use super::{OrShown as _, PageResult, parts};
use crate::auth::Reader;
use crate::input::{Path, Query};
use crate::problem::HandlerResult;
use crate::{Shared, cache};
use axum::extract::State;
use axum::http::Uri;
use axum::response::Response;
use engine::store::token::Scope;
use maud::{Markup, html};
use wire::api::{Backtrack, Invalidate};

pub(crate) async fn page(State(state): State<Shared>, visitor: Visitor, uri: Uri) -> PageResult {
    let asked = paging(uri.query().unwrap_or_default(), 50);
    let first = asked.cursor.is_none();
    let reader = Reader(visitor.token.clone());
    let kept = cache::list(State(state.clone()), reader, Query(asked)).await.or_shown(&visitor)?.0;
    let body = html! {
        div.title { h1 { "Calls" } }
        @if kept.data.is_empty() {
            p.empty { "No result is kept. A run that is submitted with a cache leaves one: " (parts::command("repl run --cache -c 'make report'")) }
        } @else {
            div.scroll tabindex="0" role="region" aria-label="Results" { table.list {
                thead { tr { th scope="col" { "State" } th scope="col" { "Result" } th scope="col" { "Name" } th scope="col" { "Made by" } th.r scope="col" { "Size" } th.r scope="col" { "Made" } th.r scope="col" { "Last used" } } }
                tbody { @for it in &kept.data { tr id=(it.exec) {
                    td { (parts::state(&it.status)) } td { a.row href=(format!("/calls/{}", it.exec)) { (short(&it.exec)) } } td { (parts::visible(&it.name)) }
                    td { @match &it.run { Some(run) => a href=(format!("/runs/{run}")) { (run) }, None => span.quiet { "–" } } }
                    td.r.num { (parts::bytes(it.bytes)) } td.r { (parts::time(it.ended_at)) } td.r { (parts::time(it.used_at)) }
                } } }
            } }
        }
        (parts::more("/calls", kept.next_cursor.as_deref(), first))
    };
    Ok(shell::full(&state, &visitor, Head { title: "Calls", under: "/calls" }, &body).await)
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
            @if writes { div.actions { (parts::button("Invalidate", &format!("/calls/{}/invalidate", it.node), "danger")) } } }
        h2 { "Where it came from" }
        (parts::facts(vec![
            ("Run", it.run.as_ref().map(|run| html! { a href=(format!("/runs/{run}")) { (run) } })),
            ("Job", it.job.as_ref().map(|job| html! { code { (job) } })),
            ("Machine", it.instance.as_ref().map(|machine| html! { code { (machine) } })),
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
                tr { td { (parts::visible(name)) } td { (parts::json(value)) } }
            } }
        } }
        h2 { "Value" }
        (parts::json(&it.value))
    }
}

/// `POST /calls/{id}/invalidate`.
pub(crate) async fn invalidate(Path(id): Path<String>, sent: Sent) -> Response {
    let answer = forgotten(&sent, &id).await;
    sent.answered(answer, "/calls").await
}

async fn forgotten(sent: &Sent, id: &str) -> HandlerResult {
    let body = Invalidate { result: Some(id.to_owned()), all: false };
    let asked = sent.asked(body, "invalidate", id, &sent.request);
    cache::invalidate(sent.shared(), sent.writer("invalidate")?, asked).await
}
