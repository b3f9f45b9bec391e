//! The runs: newest first, filtered by what stands in the address, fifty to a page. Without any run: how to begin.

use super::region;
use super::session::{Viewer, Visitor};
use super::shell::{self, Head};
use super::{OrShown as _, PageResult, parts};
use crate::input::Query;
use crate::problem::HandlerResult;
use crate::run::Filter;
use crate::{Shared, run};
use axum::extract::State;
use axum::http::Uri;
use engine::Scope;
use maud::{Markup, html};
use model::run::RunStatus;
use wire::api::RunView;

/// What the listing is filtered by: `open`, `all`, or a state.
fn choices() -> Vec<&'static str> {
    ["open", "all"].into_iter().chain(RunStatus::ALL.iter().map(|status| status.as_str())).collect()
}

#[derive(Debug, Default, Clone, serde::Deserialize)]
#[serde(default)]
pub(crate) struct Wanted {
    /// `all` unless given.
    show: Option<String>,
    /// A text in their name or command.
    q: Option<String>,
    cursor: Option<String>,
}

impl Wanted {
    fn read(query: &str) -> HandlerResult<Wanted> {
        let uri: Uri = format!("/?{query}").parse().unwrap_or_default();
        let read = axum::extract::Query::<Wanted>::try_from_uri(&uri);
        Ok(read.map_err(|error| model::Refused::invalid("query", error.body_text()))?.0)
    }
    fn show(&self) -> &str {
        self.show.as_deref().unwrap_or("all")
    }
    fn q(&self) -> Option<&str> {
        self.q.as_deref().filter(|text| !text.trim().is_empty())
    }
    /// The address of this page of the listing.
    fn place(&self) -> String {
        let cursor = self.cursor.as_ref().map(|cursor| format!("cursor={}", encoded(cursor)));
        [self.query()].into_iter().filter(|query| !query.is_empty()).chain(cursor).collect::<Vec<_>>().join("&")
    }
    /// The address of this listing, without where it goes on.
    fn query(&self) -> String {
        let pairs = [("show", self.show.as_deref()), ("q", self.q())];
        let pairs = pairs.into_iter().filter_map(|(key, value)| Some(format!("{key}={}", encoded(value?))));
        pairs.collect::<Vec<_>>().join("&")
    }
}

fn encoded(text: &str) -> String {
    percent_encoding::utf8_percent_encode(text, percent_encoding::NON_ALPHANUMERIC).to_string()
}

/// The page of the list that a form came from, by the query that its button carried.
pub(crate) fn address(query: &str) -> String {
    let place = Wanted::read(query).map(|wanted| wanted.place()).unwrap_or_default();
    if place.is_empty() { "/runs".to_owned() } else { format!("/runs?{place}") }
}

async fn listed(state: &Shared, viewer: Viewer, wanted: &Wanted) -> HandlerResult<wire::api::Page<RunView>> {
    let show = wanted.show();
    let status = RunStatus::ALL.iter().any(|status| status.as_str() == show).then(|| show.to_owned());
    let filter = Filter::of(show == "all", status, wanted.q().map(str::to_owned), wanted.cursor.clone());
    Ok(run::list(State(state.clone()), viewer.reader(), Query(filter)).await?.0)
}

pub(crate) async fn page(State(state): State<Shared>, visitor: Visitor, uri: Uri) -> PageResult {
    let wanted = Wanted::read(uri.query().unwrap_or_default()).or_shown(&visitor)?;
    let query = wanted.place();
    let src = if query.is_empty() { "/ui/runs".to_owned() } else { format!("/ui/runs?{query}") };
    let list = region::live(&state, visitor.viewer(), &src).await.or_shown(&visitor)?;
    let body = html! {
        div.title {
            h1 { "Runs" }
            @if visitor.viewer().may(Scope::Write) { a.button.primary href="/new" { "New run" } }
        }
        (filters(&wanted))
        (list)
    };
    Ok(shell::full(&state, &visitor, Head { title: "Runs", under: "/runs" }, &body).await)
}

fn filters(wanted: &Wanted) -> Markup {
    html! {
        form.filters method="get" action="/runs" role="search" {
            label { span { "Show" }
                select name="show" {
                    @for choice in choices() { option value=(choice) selected[choice == wanted.show()] { (choice) } }
                }
            }
            label { span { "Name or command" }
                input type="search" name="q" id="search" value=(parts::visible(wanted.q().unwrap_or_default())) maxlength="200" spellcheck="false";
            }
            button type="submit" { "Filter" }
        }
        @if wanted.q().is_some() { p.quiet { "Looked for in the newest 10,000 runs." } }
    }
}

/// The table of runs.
pub(crate) async fn region(state: &Shared, viewer: Viewer, query: &str) -> HandlerResult<Markup> {
    let wanted = Wanted::read(query)?;
    let runs = listed(state, viewer, &wanted).await?;
    let (base, writes) = (format!("/runs?{}", wanted.query()), viewer.may(Scope::Write));
    if runs.data.is_empty() {
        return Ok(empty(viewer, &wanted));
    }
    let to = |action: &str| format!("/runs?do={action}&at={}", encoded(&wanted.place()));
    Ok(html! {
        div.scroll tabindex="0" role="region" aria-label="Runs" {
            table.list {
                thead { tr {
                    @if writes { th.pick scope="col" { span.away { "Choose" } input type="checkbox" data-all hidden aria-label="Choose all"; } }
                    th scope="col" { "State" } th scope="col" { "Name" } th scope="col" { "What" }
                    th scope="col" { "Where" } th.r scope="col" { "Cost" } th.r scope="col" { "Took" } th.r scope="col" { "Age" }
                } }
                tbody data-list=[wanted.cursor.is_none().then_some("runs")] { @for run in &runs.data { (row(run, writes)) } }
            }
        }
        @if writes { div.actions.several {
            span.quiet { "The chosen:" } (parts::button("Cancel", &to("cancel"), "danger")) (parts::button("Retry", &to("retry"), ""))
        } }
        (parts::more(base.trim_end_matches('?'), runs.next_cursor.as_deref(), wanted.cursor.is_none()))
    })
}

fn row(run: &RunView, writes: bool) -> Markup {
    let ended = run.completed_at.or(run.cancelled_at);
    html! {
        tr id=(run.id) {
            @if writes { td.pick { input type="checkbox" form="act" name="run" value=(format!("{} {}", run.id, super::run::seen(run))) aria-label=(parts::visible(&format!("Choose {}", run.name))); } }
            td { (parts::state(&run.status))
                @if let Some(phase) = run.phase.as_ref().filter(|phase| **phase != run.status && ended.is_none()) {
                    span.phase { (phase) }
                }
                @if run.outcome.as_deref().is_some_and(|it| it != "success") { span.phase { (run.outcome.as_deref().unwrap_or_default()) } }
            }
            td { a.row href=(format!("/runs/{}", run.id)) { (parts::visible(&run.name)) } }
            td.clip { (what(run, parts::short)) }
            td { @match &run.instance { Some(machine) => code { (machine) }, None => span.quiet { "–" } } }
            td.r { (parts::credits(&run.credits_charged)) }
            td.r { (parts::lasted(run.started_at, ended)) }
            td.r { (parts::time(run.created_at)) }
        }
    }
}

/// What it runs, with its text cut by `cut`: a command may have 128 KiB.
pub(crate) fn what(run: &RunView, cut: fn(&str) -> String) -> Markup {
    match (&run.task, run.kind.as_str()) {
        (Some(task), _) => html! { span { (cut(task)) } },
        (None, "agents") => {
            let agents = parts::made_of(run.agent_count, run.planned_agents, "agent", "agents");
            html! { span.quiet { (agents) ", " (parts::made_of(run.step_count, run.planned_steps, "step", "steps")) } }
        }
        (None, "external") => html! { span.quiet { "external, " (parts::counted(run.step_count, "step", "steps")) } },
        _ => html! { code { (cut(&run.command)) } },
    }
}

/// Nothing to list: because of the filter, or because there is nothing yet.
fn empty(viewer: Viewer, wanted: &Wanted) -> Markup {
    if wanted.show() != "all" || wanted.q().is_some() || wanted.cursor.is_some() {
        return html! { p.empty { "No run matches. " a href="/runs" { "Show all" } } };
    }
    html! {
        section.card.first {
            h2 { "No runs yet" }
            p { "A run is a command on a machine, or a plan of agents. From a terminal:" }
            ul.commands {
                li { (parts::command("repl run -c 'echo hello'")) span.quiet { "run a command and follow it" } }
                li { (parts::command("repl run --file train.py -- python3 train.py")) span.quiet { "send a file along" } }
                li { (parts::command("repl run plan.yaml")) span.quiet { "run a plan of agents" } }
            }
            @if viewer.may(Scope::Write) { (super::new_run::small_form()) }
        }
    }
}
