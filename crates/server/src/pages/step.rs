//! One step: what it was called with, what it answered, its tries, and what was decided about its failures.

use super::session::{Viewer, Visitor};
use super::shell::{self, Head};
use super::{OrShown as _, PageResult, log, parts, region};
use crate::auth::Reader;
use crate::input::{Path, Query};
use crate::problem::HandlerResult;
use crate::routes::{Paging, download, id as parsed};
use crate::{Shared, question, tree, usage};
use axum::extract::State;
use engine::Scope;
use maud::{Markup, html};
use model::{Refused, StepId};
use wire::api::{QuestionDetailView, RunView, StepDetailView, StepView, UsageSums};

/// HTML bytes of a conversation, of one message of it, and of what is around one.
const TALK: usize = 16 * 1024;
const MESSAGE: usize = 4 * 1024;
const MESSAGE_FRAME: usize = 100;

pub(crate) async fn page(
    State(state): State<Shared>,
    visitor: Visitor,
    Path((run, step)): Path<(String, String)>,
) -> PageResult {
    let reader = Reader(visitor.token.clone());
    let found = tree::step(State(state.clone()), reader, Path((run.clone(), step.clone()))).await.or_shown(&visitor)?.0;
    let src = format!("/ui/runs/{run}/steps/{step}");
    let shown = region::live(&state, visitor.viewer(), &src).await.or_shown(&visitor)?;
    let log = region::live(&state, visitor.viewer(), &format!("{src}/log")).await.or_shown(&visitor)?;
    let (of, id) = (&found.step, &found.step.id);
    let body = html! {
        p.crumbs { a href="/runs" { "Runs" } " / " a href=(format!("/runs/{run}")) { (run) } " / "
            a href=(format!("/runs/{run}?agent={}&task={}", of.agent, of.task)) { (of.task) } " / " (id) }
        (shown)
        (log)
    };
    Ok(shell::full(&state, &visitor, Head { title: &of.name, under: "/runs" }, &body).await)
}

/// Everything but its log.
pub(crate) async fn region(state: &Shared, viewer: Viewer, run: &str, step: &str) -> HandlerResult<Markup> {
    let path = Path((run.to_owned(), step.to_owned()));
    let found = tree::step(State(state.clone()), viewer.reader(), path).await?.0;
    let of = super::run::one(state, viewer, run).await?;
    let mut open = Vec::new();
    for id in &found.questions {
        let asked = match question::escalation(State(state.clone()), viewer.reader(), Path(id.clone())).await {
            Err(_) => question::approval(State(state.clone()), viewer.reader(), Path(id.clone())).await,
            ticket => ticket,
        };
        open.extend(asked.ok().map(|it| it.0).filter(|it| it.question.status == "open"));
    }
    let used = cost(state, viewer, run, &found.step.id).await?;
    Ok(shown(&of, &found, &open, viewer, used.as_ref()))
}

/// Its log, which appears when there is one. What it shows then follows the bytes by a region of its own.
pub(crate) async fn log_region(state: &Shared, viewer: Viewer, run: &str, step: &str) -> HandlerResult<Markup> {
    let of = super::run::one(state, viewer, run).await?;
    let log = log::of_step(state, viewer, &of, step).await?;
    Ok(html! { @if let Some(log) = log { h2 { "Log" } (log) } })
}

/// What it has used, with the turns below it. None: nothing.
async fn cost(state: &Shared, viewer: Viewer, run: &str, step: &str) -> HandlerResult<Option<UsageSums>> {
    let id: StepId = parsed("step", step)?;
    // The first one behind the step before it.
    let paging = Paging { limit: Some(1), cursor: Some(model::slug(id.0 - 1)) };
    let used = usage::of_run(State(state.clone()), viewer.reader(), Path(run.to_owned()), Query(paging)).await?.0;
    Ok(used.steps.into_iter().find(|it| it.step == step).map(|it| it.usage))
}

/// `GET /runs/{id}/steps/{step}/{input,output,error}`: the whole of it, as a file.
pub(crate) async fn part(
    State(state): State<Shared>,
    visitor: Visitor,
    Path((run, step, part)): Path<(String, String, String)>,
) -> PageResult {
    let reader = Reader(visitor.token.clone());
    let found = tree::step(State(state), reader, Path((run, step.clone()))).await.or_shown(&visitor)?.0;
    let value = match part.as_str() {
        "input" => found.input,
        "output" => found.output,
        "error" => found.step.last_error.and_then(|error| serde_json::to_value(error).ok()),
        _ => None,
    };
    let value = value.ok_or_else(|| Refused::not_found("part of a step", part.as_str())).or_shown(&visitor)?;
    Ok(download(&format!("{step}-{part}.json"), format!("{value:#}").into()))
}

fn shown(
    of: &RunView,
    detail: &StepDetailView,
    open: &[QuestionDetailView],
    viewer: Viewer,
    used: Option<&UsageSums>,
) -> Markup {
    let (run, step) = (&of.id, &detail.step);
    let file = |part: &str| format!("/runs/{run}/steps/{}/{part}", step.id);
    html! {
        div.title { h1 { (parts::visible(&step.name)) } (parts::state(&step.status)) }
        @if let Some(error) = &step.last_error { (parts::error(error, &file("error"))) }
        (parts::facts(vec![
            ("Tool", Some(html! { code { (step.tool) } })),
            ("Try", Some(html! { span.num { (step.tries) " of " (step.max_tries) } })),
            ("Waits for", step.waits.as_ref().map(|it| html! { (it) })),
            ("Failure", step.error_class.as_ref().map(|it| html! { (it) })),
            ("Effect", step.error_effect.as_ref().map(|it| html! { (it) })),
            ("Decision", step.decision.as_ref().map(|it| html! { (it) })),
            ("Rule", step.rule.as_ref().map(|it| html! { (parts::visible(it)) })),
            ("Held back by", step.held_back_by.as_ref().map(|it| html! { (parts::visible(it)) })),
            ("Goes on", step.due_at.map(parts::time)),
            ("Began", step.began_at.map(parts::time)),
            ("Took", step.started_at.map(|at| parts::lasted(Some(at), step.ended_at))),
            ("Cost", used.map(|it| parts::credits(&it.charged))),
            ("Tokens", used.filter(|it| it.turns > 0).map(|it| html! { span.num { (it.input_tokens) " in, " (it.output_tokens) " out" } })),
            ("May be repeated", Some(html! { (if step.idempotent { "yes" } else { "no" }) })),
            ("Key", step.key.as_ref().map(|it| html! { code { (it) } })),
        ]))
        @if viewer.may(Scope::Write) { (actions(of, step)) }
        @for ticket in open { (super::question::card(ticket, viewer.may(Scope::Approve), &[])) }
        @if !detail.questions.is_empty() {
            p { "People were asked: " @for id in &detail.questions { a href=(format!("/inbox?open={id}")) { (id) } " " } }
        }
        @if let Some(talk) = detail.input.as_ref().and_then(|input| input.get("messages")).and_then(|it| it.as_array()) {
            h2 { "Conversation" }
            (conversation(talk, &file("input")))
        }
        h2 { "Input" }
        @match &detail.input { Some(input) => (parts::json_or(input, &file("input"))), None => p.quiet { "None yet." } }
        h2 { "Output" }
        @match &detail.output { Some(output) => (parts::json_or(output, &file("output"))), None => p.quiet { "None yet." } }
        @if !detail.earlier_tries.is_empty() { h2 { "Earlier tries" } (tries(&detail.earlier_tries)) }
    }
}

/// A word to the model that the step talks with, and a new attempt of a run that has failed and may be tried again.
fn actions(run: &RunView, step: &StepView) -> Markup {
    let to = |action: &str| format!("/runs/{}/{action}?seen={}", run.id, super::run::seen(run));
    // The turns below a step talk with nobody themselves, and a run that ends hears nothing more.
    let talks = step.tool == "llm" && step.parent.is_none() && step.ended_at.is_none();
    html! {
        @if talks && run.termination_reason.is_none() {
            div.line {
                label for="say" { "Say something to its agent" }
                input id="say" form="act" name="text" autocomplete="off";
                input type="hidden" form="act" name="agent" value=(step.agent);
                (parts::button("Send", &to("send"), ""))
            }
        }
        @if super::run::is_allowed(run, "retry") && step.status == "failed" {
            div.actions { (parts::button("Try again", &to("retry"), "primary")) span.quiet { "Opens the next attempt of its run; finished steps keep their answers." } }
        }
    }
}

/// The last messages, as far as a page holds them; the input has all.
fn conversation(messages: &[serde_json::Value], all: &str) -> Markup {
    let said = |message: &serde_json::Value| message.get("content").unwrap_or(message).to_string();
    let mut left = TALK;
    let fits = |message: &&serde_json::Value| {
        let text = said(message);
        left = left.saturating_sub(MESSAGE_FRAME + text.len().min(MESSAGE));
        left > 0
    };
    let shown = messages.iter().rev().take_while(fits).count().max(1).min(messages.len());
    let before = messages.len() - shown;
    html! {
        @if before > 0 {
            p.quiet { (parts::counted(before as i64, "message", "messages")) " before these. " a href=(all) download { "Download all" } }
        }
        ol.talk { @for message in &messages[before..] {
            @let role = message.get("role").and_then(|it| it.as_str()).unwrap_or("?");
            li data-role=(role) {
                strong { (parts::visible(role)) }
                @match message.get("content") { Some(content) => (parts::json_up_to(content, MESSAGE, Some(all))), None => (parts::json_up_to(message, MESSAGE, Some(all))) }
            }
        } }
    }
}

pub(crate) fn tries(all: &[StepView]) -> Markup {
    html! {
        div.scroll tabindex="0" role="region" aria-label="Earlier tries" { table.list {
            thead { tr { th.r scope="col" { "Try" } th scope="col" { "State" } th scope="col" { "Failure" } th scope="col" { "Effect" } th scope="col" { "Decision" } th.r scope="col" { "Took" } } }
            tbody { @for it in all { tr {
                td.r.num { (it.tries) } td { (parts::state(&it.status)) }
                td { @if let Some(error) = &it.last_error { (parts::error_in_short(error)) } }
                td { (it.error_effect.as_deref().unwrap_or("–")) } td { (it.decision.as_deref().unwrap_or("–")) }
                td.r { (parts::lasted(it.began_at, it.ended_at)) }
            } } }
        } }
    }
}
