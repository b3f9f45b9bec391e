//! The inbox: approvals with the exact input that they are about, tickets with their error; answered right there.

use super::region;
use super::session::{Viewer, Visitor};
use super::shell::{self, Head};
use super::{OrShown as _, PageResult, parts};
use crate::Shared;
use crate::input::{Path, Query};
use crate::problem::HandlerResult;
use crate::question::{self, Filter};
use axum::extract::State;
use axum::http::Uri;
use engine::store::token::Scope;
use maud::{Markup, html};
use wire::api::{QuestionDetailView, QuestionView};

/// Questions of each kind that are listed.
const LISTED: i64 = 100;

pub(crate) async fn page(State(state): State<Shared>, visitor: Visitor, uri: Uri) -> PageResult {
    let query = uri.query().map_or_else(String::new, |query| format!("?{query}"));
    let list = region::live(&state, visitor.viewer(), &format!("/ui/inbox{query}")).await.or_shown(&visitor)?;
    let body = html! { div.title { h1 { "Inbox" } } (list) };
    Ok(shell::full(&state, &visitor, Head { title: "Inbox", under: "/inbox" }, &body).await)
}

/// Open tickets and approvals, oldest first, and whether there are more.
async fn open(state: &Shared, viewer: Viewer) -> HandlerResult<(Vec<(&'static str, QuestionView)>, bool)> {
    let filter = || Query(Filter::open(LISTED));
    let tickets = question::escalations(State(state.clone()), viewer.reader(), filter()).await?.0;
    let approvals = question::approvals(State(state.clone()), viewer.reader(), filter()).await?.0;
    let more = tickets.next_cursor.is_some() || approvals.next_cursor.is_some();
    let tickets = tickets.data.into_iter().map(|it| ("ticket", it));
    let approvals = approvals.data.into_iter().map(|it| ("approval", it));
    let mut all: Vec<_> = tickets.chain(approvals).filter(|(_, it)| it.status == "open").collect();
    all.sort_by(|left, right| (left.1.asked_at, &left.1.id).cmp(&(right.1.asked_at, &right.1.id)));
    Ok((all, more))
}

/// How many wait for an answer.
pub(crate) async fn count(state: &Shared, viewer: Viewer) -> HandlerResult<Markup> {
    let (open, more) = open(state, viewer).await?;
    Ok(html! { @if !open.is_empty() { span.count data-count=(open.len()) { (open.len()) @if more { "+" } } } })
}

/// The list, and one of them with all that is needed to answer it: the oldest, unless the address names another.
pub(crate) async fn region(state: &Shared, viewer: Viewer, query: &str) -> HandlerResult<Markup> {
    let (all, more) = open(state, viewer).await?;
    let named = query.split('&').find_map(|pair| pair.strip_prefix("open="));
    let chosen = named.and_then(|id| all.iter().find(|(_, it)| it.id == id)).or(all.first());
    let Some((kind, chosen)) = chosen else {
        return Ok(html! { p.empty { "Nothing waits for an answer." } });
    };
    let (state, id) = (State(state.clone()), Path(chosen.id.clone()));
    let detail = match *kind {
        "ticket" => question::escalation(state, viewer.reader(), id).await?.0,
        _ => question::approval(state, viewer.reader(), id).await?.0,
    };
    Ok(html! {
        div.inbox {
            nav.letters aria-label="Open questions" {
                ul { @for (kind, it) in &all {
                    li id=(format!("l-{}", it.id)) {
                        a href=(format!("/inbox?open={}", it.id)) aria-current=[(it.id == chosen.id).then_some("true")] {
                            strong { (parts::visible(&it.path)) }
                            span { span.phase { (kind) } " " (parts::time(it.asked_at)) }
                        }
                    }
                } }
                @if more { p.quiet { "The newest " (LISTED) " of each kind." } }
            }
            (card(&detail, viewer.may(Scope::Approve)))
        }
    })
}

pub(crate) fn card(it: &QuestionDetailView, may: bool) -> Markup {
    let q = &it.question;
    let is_ticket = it.allowed.iter().any(|word| word == "resume");
    let to = |action: &str| format!("/inbox/{}/{action}", q.id);
    let can = |word: &str| it.allowed.iter().any(|allowed| allowed == word);
    html! {
        article.card.question id=(q.id) aria-labelledby=(format!("{}-h", q.id)) {
            div.title {
                h2 id=(format!("{}-h", q.id)) { (if is_ticket { "Ticket" } else { "Approval" }) " · " (parts::visible(&q.path)) }
                span.phase { (q.severity) } code { (q.tool) }
            }
            p.quiet { "Run " a href=(format!("/runs/{}", q.run)) { (parts::visible(&it.run_name)) } ", step "
                a href=(format!("/runs/{}/steps/{}", q.run, q.step)) { (q.step) } ", asked " (parts::time(q.asked_at))
                @if let Some(at) = q.expires_at { ", expires " (parts::time(at)) } }
            @if let Some(error) = &q.error { (parts::error(error)) }
            @if let (Some(path), Some(step)) = (&q.same_as, &q.same_as_step) {
                p.bad { "The same call was begun before, as " a href=(format!("/runs/{}/steps/{step}", q.run)) { (parts::visible(path)) } "." }
            }
            @if let Some(input) = &it.input {
                details.block open { summary { "Exact input" } (parts::json(input)) }
            }
            @if may && is_ticket { (ticket(q.id.as_str(), it, &to)) }
            @else if may {
                @if can("edit") || can("answer") {
                    @let field = format!("{}-json", q.id);
                    details.block { summary { (if can("answer") { "Answer with a value" } else { "Edit the input" }) }
                        label for=(field) { "JSON" }
                        textarea id=(field) form="act" name=(format!("json-{}", q.id)) rows="8" spellcheck="false" {
                            @if can("edit") { (it.input.as_ref().map(|input| serde_json::to_string_pretty(input).unwrap_or_default()).unwrap_or_default()) }
                        }
                        (parts::button(if can("answer") { "Approve with this answer" } else { "Approve this input" }, &to(if can("answer") { "answer" } else { "edit" }), ""))
                    }
                }
                (note(&q.id))
                div.actions { (parts::button("Approve", &to("approve"), "primary")) (parts::button("Reject", &to("reject"), "danger")) }
            } @else { p.quiet { "A token with the scope approve answers this." } }
        }
    }
}

fn ticket(id: &str, it: &QuestionDetailView, to: &dyn Fn(&str) -> String) -> Markup {
    let label = |word: &str| match word {
        "resume" => "Resume",
        "skip" => "Skip the step",
        "retry" => "Try again",
        "abort" => "Abort the run",
        "done" => "It was done",
        "not_done" => "It was not done",
        _ => "Decide",
    };
    html! {
        @if it.allowed.iter().any(|word| word == "done") {
            @let field = format!("{id}-json");
            details.block { summary { "What it would have answered" }
                label for=(field) { "JSON, for “it was done”" }
                textarea id=(field) form="act" name=(format!("json-{id}")) rows="4" spellcheck="false" {}
            }
        }
        (note(id))
        div.actions { @for word in &it.allowed {
            (parts::button(label(word), &to(word), if word == "abort" { "danger" } else { "" }))
        } }
    }
}

fn note(id: &str) -> Markup {
    html! { label.note { span { "Note" } input form="act" name=(format!("note-{id}")) maxlength="4000" autocomplete="off"; } }
}
