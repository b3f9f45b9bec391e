//! Machines: each pool as a row of its slots, what waits there, and every machine with what it does.

use super::act::{Sent, answer_of, stale};
use super::region;
use super::session::{Viewer, Visitor};
use super::shell::{self, Head};
use super::{OrShown as _, PageResult, parts};
use crate::input::{Path, Query};
use crate::problem::HandlerResult;
use crate::routes::Paging;
use crate::{Shared, allocation, instance, pool};
use axum::extract::State;
use axum::http::Uri;
use axum::response::Response;
use engine::Scope;
use maud::{Markup, html};
use model::Refused;
use model::spec::{show_cpu, show_memory};
use wire::api::{InstanceView, Page, PoolView, TerminateBody, Waiting};

/// Machines of one page, each with its form, and rows of each table beside them.
const SHOWN: i64 = 25;
const BESIDE: i64 = 15;

/// Where each listing goes on.
#[derive(Debug, Default, Clone, serde::Deserialize)]
#[serde(default)]
struct Wanted {
    pools: Option<String>,
    waiting: Option<String>,
    slots: Option<String>,
    machines: Option<String>,
}

pub(crate) async fn page(State(state): State<Shared>, visitor: Visitor, uri: Uri) -> PageResult {
    let query = uri.query().map_or_else(String::new, |query| format!("?{query}"));
    let list = region::live(&state, visitor.viewer(), &format!("/ui/machines{query}")).await.or_shown(&visitor)?;
    let body = html! { div.title { h1 { "Machines" } } (list) };
    Ok(shell::full(&state, &visitor, Head { title: "Machines", under: "/machines" }, &body).await)
}

pub(crate) async fn region(state: &Shared, viewer: Viewer, query: &str) -> HandlerResult<Markup> {
    let uri: Uri = format!("/?{query}").parse().unwrap_or_default();
    let wanted = axum::extract::Query::<Wanted>::try_from_uri(&uri).map(|it| it.0).unwrap_or_default();
    let paging = |cursor: &Option<String>| Query(Paging { limit: Some(BESIDE), cursor: cursor.clone() });
    let shared = || State(state.clone());
    let pools: Page<PoolView> = answer_of(pool::pools(shared(), viewer.reader(), paging(&wanted.pools)).await).await?;
    let filter = instance::Filter::page(SHOWN, wanted.machines.clone());
    let Page { data: machines, next_cursor: further } =
        instance::list(shared(), viewer.reader(), Query(filter)).await?.0;
    let of_slots = Query(allocation::Filter::held(SHOWN, wanted.slots.clone()));
    let slots = allocation::list(shared(), viewer.reader(), of_slots).await?.0;
    let waiting: Page<Waiting> =
        answer_of(pool::waiting(shared(), viewer.reader(), paging(&wanted.waiting)).await).await?;
    let more = |name: &str, label: &str, next: &Option<String>, cursor: &Option<String>| {
        parts::more_of("/machines", name, label, (next.as_deref(), cursor.is_none()))
    };
    let writes = viewer.may(Scope::Write);
    Ok(html! {
        @for pool in pools.data.iter().filter(|pool| pool.instances > 0 || pool.waiting > 0) { (pool_row(pool, &machines)) }
        (more("pools", "Further pools", &pools.next_cursor, &wanted.pools))
        @if !waiting.data.is_empty() {
            h2 id="waiting" { "Waiting" }
            div.scroll tabindex="0" role="region" aria-label="Waiting" { table.list {
                thead { tr { th scope="col" { "Run" } th scope="col" { "Why" } th.r scope="col" { "Since" } } }
                tbody { @for it in &waiting.data { tr id=(format!("w-{}", it.run)) {
                    td { a href=(format!("/runs/{}", it.run)) { (parts::visible(&it.name)) } }
                    td { (parts::said(&it.summary, 0, None, &it.spans)) @for (place, fact) in it.facts.iter().enumerate() { br; span.quiet { (parts::said(fact, 0, Some(place), &it.spans)) } } }
                    td.r { (parts::time(it.created_at)) }
                } } }
            } }
        }
        @if !waiting.data.is_empty() { p.quiet { a href="/runs?show=open" { "All open runs" } } }
        (more("waiting", "Further runs that wait", &waiting.next_cursor, &wanted.waiting))
        @if !slots.data.is_empty() {
            h2 { "Folders that are kept" }
            div.scroll tabindex="0" role="region" aria-label="Folders that are kept" { table.list {
                thead { tr { th scope="col" { "Slot" } th scope="col" { "Run" } th scope="col" { "Machine" } th scope="col" { "Until" } th scope="col" { "Folder" } @if writes { th scope="col" { "Act" } } } }
                tbody { @for slot in &slots.data { tr id=(slot.id) {
                    td { code { (slot.id) } } td { @if let Some(run) = &slot.run { a href=(format!("/runs/{run}")) { (run) } } }
                    td { code { (slot.instance) } } td { @if let Some(at) = slot.debug_hold_until { (parts::time(at)) } }
                    td { code { (parts::visible(slot.path.as_deref().unwrap_or(&slot.workdir))) } }
                    @if writes { td { div.actions {
                        @let seen = slot.debug_hold_until.unwrap_or(0);
                        (parts::button("Keep 30 min longer", &format!("/allocations/{}/extend?seen={seen}", slot.id), ""))
                        (parts::button("Release", &format!("/allocations/{}/release?seen={seen}", slot.id), ""))
                    } } }
                } } }
            } }
        }
        (more("slots", "Further folders", &slots.next_cursor, &wanted.slots))
        h2 { "All machines" }
        @if machines.is_empty() { p.empty { "No machine is running. One is started when a run needs it." } }
        @else { div.scroll tabindex="0" role="region" aria-label="Machines" { table.list {
            thead { tr { th scope="col" { "State" } th scope="col" { "Machine" } th scope="col" { "Where" } th scope="col" { "Size" } th scope="col" { "Run" } th.r scope="col" { "Use" } th.r scope="col" { "Per hour" } th.r scope="col" { "So far" } th.r scope="col" { "Heard" } th.r scope="col" { "Age" } @if writes { th scope="col" { "End" } } } }
            tbody { @for one in &machines { (row(one, writes)) } }
        } } }
        (more("machines", "Further machines", &further, &wanted.machines))
    })
}

/// The machines of this page by name, the others of the pool as a number; how many do what is counted for the whole pool.
fn pool_row(pool: &PoolView, machines: &[InstanceView]) -> Markup {
    let here: Vec<_> = machines.iter().filter(|it| it.provider == pool.provider && it.region == pool.region).collect();
    let others = pool.instances - here.len() as i64;
    let going = (pool.instances - pool.available - pool.busy).max(0);
    html! {
        section aria-label=(parts::visible(&format!("Pool {} {}", pool.provider, pool.region))) {
            h2 { (parts::visible(&pool.provider)) " " span.quiet { (parts::visible(&pool.region)) } }
            ul.slots {
                @for one in here { @let doing = doing(one); li data-s=(doing) title=(one.id) { (one.id) " " (doing) } }
                @if others > 0 { li { "and " (others) " more" } }
                @for _ in pool.instances..pool.max_instances.min(pool.instances + 12) { li { "empty" } }
            }
            p.quiet.num { (pool.instances) " of " (pool.max_instances) " machines"
                @if pool.instances > 0 { ": " (pool.available) " free, " (pool.busy) " busy" @if going > 0 { ", " (going) " going" } }
                @if pool.waiting > 0 { "; " a href="#waiting" { (pool.waiting) (if pool.waiting == 1 { " job waits" } else { " jobs wait" }) } } }
        }
    }
}

/// What a slot is doing, in one word.
fn doing(machine: &InstanceView) -> &'static str {
    match machine.status.as_str() {
        "draining" | "terminating" => "going",
        _ if machine.run.is_some() => "taken",
        _ if machine.held_until.is_some() => "held",
        "ready" => "free",
        _ => "coming",
    }
}

fn row(one: &InstanceView, writes: bool) -> Markup {
    html! {
        tr id=(one.id) {
            td { (parts::state(&one.status)) }
            td { code { (one.id) } @if let Some(host) = &one.host { " " span.quiet { (parts::visible(host)) } } }
            td { (parts::visible(&one.provider)) " " span.quiet { (parts::visible(&one.region)) } }
            td.num { (one.cpu_milli.map(show_cpu).unwrap_or_default()) " CPU, " (one.memory_bytes.map(show_memory).unwrap_or_default()) }
            td { @match &one.run { Some(run) => a href=(format!("/runs/{run}")) { (run) }, None => span.quiet { "–" } } }
            td.r { @match (one.busy_since, one.idle_since) {
                (Some(at), _) => { "busy " (parts::lasted(Some(at), None)) }
                (None, Some(at)) => { "idle " (parts::lasted(Some(at), None)) }
                _ => "–",
            } }
            td.r { (parts::credits(&one.price_per_hour)) }
            td.r { (parts::credits(&one.credits_so_far)) }
            td.r { @match one.last_seen_at { Some(at) => (parts::time(at)), None => "–" } }
            td.r { (parts::time(one.created_at)) }
            @if writes { td { details { summary { "End it" }
                label { span { "Type " code { (one.id) } } input form="act" name=(format!("typed-{}", one.id)) autocomplete="off" spellcheck="false"; }
                label { input type="checkbox" form="act" name=(format!("force-{}", one.id)) value="1"; " also under a job or hold" }
                (parts::button("Terminate", &format!("/machines/{}/terminate?seen={}", one.id, seen(one)), "danger"))
            } } }
        }
    }
}

/// Which state the button was shown for: the machine's and the run that it was busy with.
fn seen(one: &InstanceView) -> String {
    format!("{}.{}", one.status, one.run.as_deref().unwrap_or_default())
}

pub(crate) async fn terminate(Path(id): Path<String>, sent: Sent) -> Response {
    let answer = end(&sent, &id).await;
    sent.answered(answer, "/machines", "terminate").await
}

async fn end(sent: &Sent, id: &str) -> HandlerResult {
    let writer = sent.writer("terminate")?;
    if sent.field(&format!("typed-{id}")) != id {
        return Err(Refused::invalid("id", format!("type `{id}` to end this machine")).into());
    }
    let force = sent.form.get(&format!("force-{id}")).is_some();
    let asked = sent.asked(TerminateBody { force }, "terminate", id, &format!("{} {force}", sent.button.seen));
    if !sent.is_repeated(&asked).await? {
        let now = instance::show(sent.shared(), sent.visitor.viewer().reader(), Path(id.to_owned())).await?.0;
        if seen(&now) != sent.button.seen {
            let busy = now.run.as_ref().map_or_else(|| "no run is on it".to_owned(), |run| format!("{run} is on it"));
            stale(format!("the machine is {}, and {busy}", now.status))?;
        }
    }
    instance::terminate(sent.shared(), writer, Path(id.to_owned()), asked).await
}
