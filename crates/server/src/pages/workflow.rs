//! Workflows: the durable steps behind runs and machines, as a list and as a graph with its table.

use super::act::{Sent, answer_of, no_action, stale};
use super::drawing::Tone;
use super::drawing::graph::{Node, graph};
use super::region;
use super::said::Said;
use super::session::{Viewer, Visitor};
use super::shell::{self, Head};
use super::{OrShown as _, PageResult, parts, run};
use crate::input::{Nothing, Path, Query};
use crate::problem::HandlerResult;
use crate::routes::download;
use crate::{Shared, manifest, workflow};
use axum::extract::State;
use axum::http::Uri;
use axum::response::Response;
use engine::Scope;
use maud::{Markup, html};
use model::Refused;
use model::time::show_duration;
use wire::api::{CancelBody, NodeView, WorkflowView};

pub(crate) async fn list(State(state): State<Shared>, visitor: Visitor, uri: Uri) -> PageResult {
    let query = uri.query().map_or_else(String::new, |query| format!("?{query}"));
    let shown = region::live(&state, visitor.viewer(), &format!("/ui/workflows{query}")).await.or_shown(&visitor)?;
    let body = html! { div.title { h1 { "Workflows" } } (shown) };
    Ok(shell::full(&state, &visitor, Head { title: "Workflows", under: "/workflows" }, &body).await)
}

pub(crate) async fn list_region(state: &Shared, viewer: Viewer, query: &str) -> HandlerResult<Markup> {
    let paging = run::paging(query, 50);
    let first = paging.cursor.is_none();
    let page = workflow::list(State(state.clone()), viewer.reader(), Query(paging)).await?.0;
    Ok(html! {
        @if page.data.is_empty() { p.empty { "No workflow yet: the first run starts one." } } @else {
            div.scroll tabindex="0" role="region" aria-label="Workflows" { table.list {
                thead { tr { th scope="col" { "State" } th scope="col" { "Workflow" } th scope="col" { "Intent" } th scope="col" { "Run" } th scope="col" { "Machine" } th.r scope="col" { "Took" } th.r scope="col" { "Age" } } }
                tbody data-list=[first.then_some("workflows")] { @for it in &page.data { tr id=(it.id) {
                    td { (parts::state(&it.status)) } td { a.row href=(format!("/workflows/{}", it.id)) { (it.id) } } td { (it.intent) }
                    td { @if let Some(run) = &it.run { a href=(format!("/runs/{run}")) { (run) } } @else { span.quiet { "–" } } }
                    td { @if let Some(machine) = &it.instance { code { (machine) } } @else { span.quiet { "–" } } }
                    td.r { (parts::lasted(Some(it.created_at), it.ended_at)) } td.r { (parts::time(it.created_at)) }
                } } }
            } }
        }
        (parts::more("/workflows", page.next_cursor.as_deref(), first))
    })
}

pub(crate) async fn page(State(state): State<Shared>, visitor: Visitor, Path(id): Path<String>) -> PageResult {
    let shown = region::live(&state, visitor.viewer(), &format!("/ui/workflows/{id}")).await.or_shown(&visitor)?;
    let body = html! { p.crumbs { a href="/workflows" { "Workflows" } " / " (id) } (shown) };
    Ok(shell::full(&state, &visitor, Head { title: &id, under: "/workflows" }, &body).await)
}

pub(crate) async fn region(state: &Shared, viewer: Viewer, id: &str) -> HandlerResult<Markup> {
    let it = workflow::show(State(state.clone()), viewer.reader(), Path(id.to_owned())).await?.0;
    let owned = manifest::show(State(state.clone()), viewer.reader(), Path(it.manifest.clone())).await?.0;
    let drawn = drawn(state, &it);
    Ok(html! {
        div.title { h1 { (it.intent) } (parts::state(&it.status)) @if viewer.may(Scope::Write) { (actions(&it)) } }
        @if let Some(error) = &it.error { div.error { (parts::long(error)) } }
        (parts::facts(vec![
            ("Run", it.run.as_ref().map(|run| html! { a href=(format!("/runs/{run}")) { (run) } })),
            ("Machine", it.instance.as_ref().map(|machine| html! { code { (machine) } })),
            ("Began", Some(parts::time(it.created_at))),
            ("Took", Some(parts::lasted(Some(it.created_at), it.ended_at))),
            ("Part of", it.parent.as_ref().map(|parent| html! { a href=(format!("/workflows/{parent}")) { (parent) } })),
            ("Cancelled because", it.cancel_reason.as_ref().map(|why| html! { (parts::visible(why)) })),
        ]))
        @if let Some(drawn) = drawn { (drawn) }
        h2 { "Nodes" }
        div.scroll tabindex="0" role="region" aria-label="Nodes" { table.list {
            thead { tr { th scope="col" { "State" } th scope="col" { "Node" } th scope="col" { "After" } th.r scope="col" { "Tries" } th.r scope="col" { "Took" } th scope="col" { "Result" } } }
            tbody { @for node in &it.nodes { (row(&it.id, node)) } }
        } }
        h2 { "Manifest " code { (owned.id) } }
        p { (parts::state(&owned.status)) @if let Some(outcome) = &owned.outcome { " " (outcome) } }
        @if !owned.resources.is_empty() { div.scroll tabindex="0" role="region" aria-label="Resources" { table.list {
            thead { tr { th scope="col" { "Kind" } th scope="col" { "Id" } } }
            tbody { @for it in &owned.resources { tr { td { (it.kind) } td { code { (it.id) } } } } }
        } } }
        @if !it.orphan_risks.is_empty() {
            h2 { "May be left behind" }
            ul { @for risk in &it.orphan_risks { li { (risk.kind) " " code { (parts::visible(&risk.name)) } " at " (parts::visible(risk.provider.as_deref().unwrap_or("?"))) ": " (parts::visible(risk.error.as_deref().unwrap_or("its end was not confirmed"))) } } }
        }
    })
}

fn drawn(state: &Shared, it: &WorkflowView) -> Option<Markup> {
    let tone = |status: &str| match status {
        "completed" => Tone::Done,
        "failed" => Tone::Failed,
        "running" => Tone::Runs,
        "skipped" => Tone::Stopped,
        _ => Tone::Waits,
    };
    let nodes: Vec<Node> = it
        .nodes
        .iter()
        .map(|node| Node {
            name: node.name.clone(),
            href: Some(format!("#n-{}", node.name)),
            tone: tone(&node.status),
            status: node.status.clone(),
            detail: node.started_at.zip(node.ended_at).map(|(from, to)| show_duration((to - from).max(0))),
        })
        .collect();
    let place = |name: &str| it.nodes.iter().position(|node| node.name == name);
    let edges: Vec<(usize, usize)> = it
        .nodes
        .iter()
        .enumerate()
        .flat_map(|(to, node)| node.after.iter().filter_map(move |name| Some((place(name)?, to))))
        .collect();
    graph(&format!("Graph of {}", it.id), &nodes, &edges, &state.pages.layouts)
}

fn row(workflow: &str, node: &NodeView) -> Markup {
    html! {
        tr id=(format!("n-{}", node.name)) {
            td { (parts::state(&node.status)) } td { (parts::visible(&node.name)) }
            td.quiet { (parts::visible(&node.after.join(", "))) } td.r.num { (node.tries) } td.r { (parts::lasted(node.started_at, node.ended_at)) }
            td {
                @if let Some(error) = &node.error { @if !parts::is_short(error) { a href=(format!("/workflows/{workflow}/nodes/{}", node.name)) download { "Download" } " " } span.bad { (parts::short(error)) } }
                @if let Some(child) = &node.child { a href=(format!("/workflows/{child}")) { (child) } }
                @if let Some(output) = node.output.as_ref().filter(|it| !it.is_null()) { details { summary { "Output" } (parts::json_up_to(output, 1024, Some(&format!("/workflows/{workflow}/nodes/{}", node.name)))) } }
                @if node.compensated_at.is_some() { span.phase { "undone" } }
            }
        }
    }
}

fn actions(it: &WorkflowView) -> Markup {
    let to = |action: &str| format!("/workflows/{}/{action}?seen={}", it.id, it.status);
    html! {
        div.actions {
            @match it.status.as_str() {
                "pending" | "running" => {
                    label { span { "Reason" } input form="act" name="reason" maxlength="500" autocomplete="off"; }
                    (parts::button("Cancel", &to("cancel"), "danger"))
                }
                "failed" => (parts::button("Retry", &to("retry"), "primary")),
                _ => {}
            }
        }
    }
}

/// `GET /workflows/{id}/nodes/{node}`: what a node answered, or why it failed, as a file.
pub(crate) async fn output(
    State(state): State<Shared>,
    visitor: Visitor,
    Path((id, name)): Path<(String, String)>,
) -> Result<Response, super::Refusal> {
    let shown = workflow::show(State(state), visitor.viewer().reader(), Path(id.clone())).await.or_shown(&visitor)?.0;
    let node = shown.nodes.into_iter().find(|node| node.name == name);
    let node = node.ok_or_else(|| Refused::not_found("node", name.as_str())).or_shown(&visitor)?;
    let value = node.output.or_else(|| node.error.map(Into::into));
    let value = value.ok_or_else(|| Refused::not_found("output", name.as_str())).or_shown(&visitor)?;
    Ok(download(&format!("{id}-{name}.json"), format!("{value:#}").into()))
}

/// `POST /workflows/{id}/{cancel,retry}`. A retry is another workflow, and leads there.
pub(crate) async fn act(Path((id, action)): Path<(String, String)>, sent: Sent) -> Response {
    match to_workflow(&sent, &id, &action).await {
        Ok(answer) if answer.status().is_success() => {
            let now: Result<WorkflowView, _> = answer_of(Ok(answer)).await;
            let to = format!("/workflows/{}", now.map_or(id, |it| it.id));
            sent.done(&to, Said::of(&format!("workflow-{action}")))
        }
        refused => sent.answered(refused, &format!("/workflows/{id}"), "").await,
    }
}

/// Whether the workflow is still in the state that the page showed; a repetition was judged before.
async fn as_seen(sent: &Sent, id: &str, repeated: bool) -> HandlerResult<()> {
    let now = workflow::show(sent.shared(), sent.visitor.viewer().reader(), Path(id.to_owned())).await?.0;
    if repeated || now.status == sent.button.seen {
        Ok(())
    } else {
        stale(format!("the workflow is {} now", now.status))
    }
}

async fn to_workflow(sent: &Sent, id: &str, action: &str) -> HandlerResult {
    let (writer, shared, path, seen) = (sent.writer(action)?, sent.shared(), Path(id.to_owned()), &sent.button.seen);
    match action {
        "cancel" => {
            let body = CancelBody { reason: sent.form.get("reason").map(str::to_owned) };
            let asked = sent.asked(body, "cancel-workflow", id, seen);
            as_seen(sent, id, sent.is_repeated(&asked).await?).await?;
            workflow::cancel(shared, writer, path, asked).await
        }
        "retry" => {
            let asked = sent.asked(Nothing {}, "retry-workflow", id, seen);
            as_seen(sent, id, sent.is_repeated(&asked).await?).await?;
            workflow::retry(shared, writer, path, asked).await
        }
        other => no_action(other),
    }
}
