//! One step: what it was called with, what it answered, its tries, and what was decided about its failures.

use super::session::{Viewer, Visitor};
use super::shell::{self, Head};
use super::{OrShown as _, PageResult, parts};
use crate::auth::Reader;
use crate::input::Path;
use crate::{Shared, question, tree};
use axum::extract::State;
use engine::store::token::Scope;
use maud::{Markup, html};
use wire::api::{QuestionDetailView, RunView, StepDetailView, StepView};

pub(crate) async fn page(
    State(state): State<Shared>,
    visitor: Visitor,
    Path((run, step)): Path<(String, String)>,
) -> PageResult {
    let reader = Reader(visitor.token.clone());
    let found = tree::step(State(state.clone()), reader, Path((run.clone(), step))).await.or_shown(&visitor)?.0;
    let of = super::run::one(&state, visitor.viewer(), &run).await.or_shown(&visitor)?;
    let mut open = Vec::new();
    for id in &found.questions {
        let reader = || visitor.viewer().reader();
        let asked = match question::escalation(State(state.clone()), reader(), Path(id.clone())).await {
            Err(_) => question::approval(State(state.clone()), reader(), Path(id.clone())).await,
            ticket => ticket,
        };
        open.extend(asked.ok().map(|it| it.0).filter(|it| it.question.status == "open"));
    }
    let body = shown(&of, &found, &open, visitor.viewer());
    Ok(shell::full(&state, &visitor, Head { title: &found.step.name, under: "/runs" }, &body).await)
}

fn shown(of: &RunView, detail: &StepDetailView, open: &[QuestionDetailView], viewer: Viewer) -> Markup {
    let (run, step) = (&of.id, &detail.step);
    html! {
        p.crumbs { a href="/runs" { "Runs" } " / " a href=(format!("/runs/{run}")) { (run) } " / "
            a href=(format!("/runs/{run}?agent={}&task={}", step.agent, step.task)) { (step.task) } " / " (step.id) }
        div.title { h1 { (parts::visible(&step.name)) } (parts::state(&step.status)) }
        @if let Some(error) = &step.last_error { (parts::error(error)) }
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
            ("May be repeated", Some(html! { (if step.idempotent { "yes" } else { "no" }) })),
            ("Key", step.key.as_ref().map(|it| html! { code { (it) } })),
        ]))
        @if viewer.may(Scope::Write) { (actions(of, step)) }
        @for ticket in open { (super::question::card(ticket, viewer.may(Scope::Approve))) }
        @if !detail.questions.is_empty() {
            p { "People were asked: " @for id in &detail.questions { a href=(format!("/inbox?open={id}")) { (id) } " " } }
        }
        @if let Some(talk) = detail.input.as_ref().and_then(|input| input.get("messages")).and_then(|it| it.as_array()) {
            h2 { "Conversation" }
            (conversation(talk))
        }
        h2 { "Input" }
        @match &detail.input { Some(input) => (parts::json(input)), None => p.quiet { "None yet." } }
        h2 { "Output" }
        @match &detail.output { Some(output) => (parts::json(output)), None => p.quiet { "None yet." } }
        @if !detail.earlier_tries.is_empty() { h2 { "Earlier tries" } (tries(&detail.earlier_tries)) }
    }
}

/// A word to the model that the step talks with, and a new attempt of a run that has failed.
fn actions(run: &RunView, step: &StepView) -> Markup {
    let to = |action: &str| format!("/runs/{}/{action}?seen={}", run.id, super::run::seen(run));
    let is_over = run.completed_at.or(run.cancelled_at).is_some();
    html! {
        @if step.tool == "llm" && !is_over {
            div.line {
                label for="say" { "Say something to its agent" }
                input id="say" form="act" name="text" autocomplete="off";
                input type="hidden" form="act" name="agent" value=(step.agent);
                (parts::button("Send", &to("send"), ""))
            }
        }
        @if run.status == "failed" && step.status == "failed" {
            div.actions { (parts::button("Try again", &to("retry"), "primary")) span.quiet { "Opens the next attempt of its run; finished steps keep their answers." } }
        }
    }
}

fn conversation(messages: &[serde_json::Value]) -> Markup {
    html! {
        ol.talk { @for message in messages {
            @let role = message.get("role").and_then(|it| it.as_str()).unwrap_or("?");
            li data-role=(role) {
                strong { (parts::visible(role)) }
                @match message.get("content") { Some(content) => (parts::json(content)), None => (parts::json(message)) }
            }
        } }
    }
}

fn tries(all: &[StepView]) -> Markup {
    html! {
        div.scroll tabindex="0" role="region" aria-label="Earlier tries" { table.list {
            thead { tr { th.r scope="col" { "Try" } th scope="col" { "State" } th scope="col" { "Failure" } th scope="col" { "Effect" } th scope="col" { "Decision" } th.r scope="col" { "Took" } } }
            tbody { @for it in all { tr {
                td.r.num { (it.tries) } td { (parts::state(&it.status)) }
                td { @if let Some(error) = &it.last_error { (error.code) " " (parts::visible(&error.message)) } }
                td { (it.error_effect.as_deref().unwrap_or("–")) } td { (it.decision.as_deref().unwrap_or("–")) }
                td.r { (parts::lasted(it.began_at, it.ended_at)) }
            } } }
        } }
    }
}
