//! Orphans: what providers list and no row knows, by section, with what they cost. Kept with a reason, or ended by typing their id.

use super::act::{Sent, answer_of, no_action};
use super::region;
use super::session::{Viewer, Visitor};
use super::shell::{self, Head};
use super::{OrShown as _, PageResult, parts, run};
use crate::auth::Admin;
use crate::input::{Path, Query};
use crate::problem::HandlerResult;
use crate::routes::Paging;
use crate::{Shared, orphan};
use axum::extract::State;
use axum::http::Uri;
use axum::response::Response;
use engine::Scope;
use maud::{Markup, html};
use model::Refused;
use wire::api::{EndOrphanBody, OrphanView, Page, ScanBody, ScanView, WhitelistBody};

/// Sections in the order in which they matter.
const SECTIONS: [(&str, &str); 5] = [
    ("current_session", "Of this control plane, named by this session"),
    ("other_sessions", "Of this control plane, named earlier"),
    ("unknown", "With names that tell nothing"),
    ("tailscale", "In the network of Tailscale"),
    ("other_installations", "Of other installations"),
];

/// Orphans of one page, each with its forms.
const LISTED: i64 = 30;

pub(crate) async fn page(State(state): State<Shared>, visitor: Visitor, uri: Uri) -> PageResult {
    let query = uri.query().map_or_else(String::new, |query| format!("?{query}"));
    let viewer = visitor.viewer();
    let shown = region::live(&state, viewer, &format!("/ui/orphans{query}")).await.or_shown(&visitor)?;
    let page = Sent::page();
    let scan = format!("/orphans/scan?seen={page}");
    let body = html! {
        div.title { h1 { "Orphans" }
            @if viewer.may(Scope::Write) { div.actions { (parts::button("Scan now", &scan, "primary")) } } }
        // The version of the buttons of orphans: their part of the page is the same for all who see it.
        input type="hidden" form="act" name="page" value=(page);
        (shown)
    };
    Ok(shell::full(&state, &visitor, Head { title: "Orphans", under: "/orphans" }, &body).await)
}

pub(crate) async fn region(state: &Shared, viewer: Viewer, query: &str) -> HandlerResult<Markup> {
    let paging = run::paging(query, LISTED);
    let first = paging.cursor.is_none();
    let shared = || State(state.clone());
    let filter = Query(orphan::Filter::everything(paging));
    let all = orphan::list(shared(), viewer.reader(), filter).await?.0;
    let tally = orphan::tally(shared(), viewer.reader()).await?.0;
    let scans = answer_of(orphan::scans(shared(), viewer.reader(), Query(Paging::default())).await).await;
    let scans: Page<ScanView> = scans?;
    let admin = viewer.may(Scope::Admin);
    Ok(html! {
        p { @if tally.orphans == 0 { "Nothing is left behind that costs." } @else {
            (tally.orphans) " that no person keeps, " (parts::credits(&tally.estimated_hourly_cost)) " credits an hour." }
            @if !tally.not_scanned.is_empty() { " Not listed to their end: " (tally.not_scanned.join(", ")) "." } }
        @for (section, title) in SECTIONS {
            @let here: Vec<&OrphanView> = all.data.iter().filter(|it| it.section == section).collect();
            @if !here.is_empty() { h2 { (title) } (table(title, &here, admin)) }
        }
        (parts::more("/orphans", all.next_cursor.as_deref(), first))
        h2 { "Last scans" }
        @if scans.data.is_empty() { p.empty { "No provider has been listed yet." } } @else {
            div.scroll tabindex="0" role="region" aria-label="Last scans" { table.list {
                thead { tr { th scope="col" { "Provider" } th scope="col" { "Finished" } th.r scope="col" { "Listed" } th.r scope="col" { "Known" } th.r scope="col" { "Orphans" } th scope="col" { "Error" } } }
                tbody { @for it in &scans.data { tr {
                    td { (it.provider) " " span.quiet { (it.region) } } td { @match it.finished_at { Some(at) => (parts::time(at)), None => "never" } }
                    td.r.num { (it.listed) } td.r.num { (it.tracked) } td.r.num { (it.orphans) } td { (parts::visible(it.error.as_deref().unwrap_or_default())) }
                } } }
            } }
        }
    })
}

fn table(title: &str, all: &[&OrphanView], decides: bool) -> Markup {
    html! {
        div.scroll tabindex="0" role="region" aria-label=(title) { table.list {
            thead { tr { th scope="col" { "Severity" } th scope="col" { "Id" } th scope="col" { "Provider" } th scope="col" { "State" } th.r scope="col" { "Per hour" } th.r scope="col" { "Seen" } @if decides { th scope="col" { "Decide" } } } }
            tbody { @for it in all { tr {
                td { (it.severity) @if it.whitelisted.is_some() { span.phase { "kept" } } @if it.ending_at.is_some() { span.phase { "ending" } } }
                td { code { (parts::visible(&it.provider_id)) } br; span.quiet { (parts::visible(&it.name)) }
                    @if let Some(error) = &it.ending_error { p.bad { (parts::visible(error)) } } }
                td { (parts::visible(&it.provider)) " " span.quiet { (parts::visible(&it.region)) } } td { (parts::visible(&it.status)) }
                td.r { @match &it.estimated_hourly_cost { Some(cost) => (parts::credits(cost)), None => "?" } } td.r { (parts::time(it.seen_at)) }
                @if decides { td { @if it.whitelisted.is_none() { (decide(it)) } } }
            } } }
        } }
    }
}

/// The name of a field of the form: a provider chose the id, which may hold any letters.
fn field_of(name: &str, id: &str) -> String {
    format!("{name}-{}", percent_encoding::utf8_percent_encode(id, percent_encoding::CONTROLS))
}

fn decide(it: &OrphanView) -> Markup {
    let field = |name: &str| field_of(name, &it.provider_id);
    let to = |action: &str| {
        let encode = |text| percent_encoding::utf8_percent_encode(text, percent_encoding::NON_ALPHANUMERIC);
        format!("/orphans/{action}?id={}&provider={}", encode(&it.provider_id), encode(&it.provider))
    };
    html! {
        details { summary { "Keep or end" }
            label { span { "Reason to keep it" } input form="act" name=(field("reason")) maxlength="500" autocomplete="off"; }
            (parts::button("Keep", &to("keep"), ""))
            @if it.section == "other_installations" {
                p.quiet { "Another control plane started it, and may still need it. To end it all the same: "
                    (parts::command(&format!("repl orphans terminate {} --force", it.provider_id))) }
            } @else {
                label { span { "Type its id to end it" } input form="act" name=(field("typed")) autocomplete="off" spellcheck="false"; }
                (parts::button("Terminate", &to("terminate"), "danger"))
            }
        }
    }
}

/// `POST /orphans/{scan,keep,terminate}`.
pub(crate) async fn act(Path(action): Path<String>, sent: Sent) -> Response {
    let answer = to_orphan(&sent, &action).await;
    let said = if action == "terminate" { "orphan-terminate" } else { action.as_str() };
    sent.answered(answer, "/orphans", said).await
}

async fn to_orphan(sent: &Sent, action: &str) -> HandlerResult {
    let (shared, id, provider) = (sent.shared(), sent.button.id.clone(), sent.button.provider.clone());
    let about = format!("{} {id}", provider.as_deref().unwrap_or_default());
    if action == "scan" {
        let asked = sent.asked(ScanBody::default(), action, "", &sent.button.seen);
        return orphan::scan(shared, sent.writer(action)?, asked).await;
    }
    let admin = Admin(sent.may(Scope::Admin, action)?);
    let field = |name: &str| sent.field(&field_of(name, &id));
    // Each page as it is loaded: what was refused may be tried again when the page has shown why.
    let page = sent.field("page");
    if page.is_empty() {
        return Err(Refused::invalid("page", "is missing: load the page of orphans again").into());
    }
    let version = |said: &str| format!("{page} {said}");
    match action {
        "keep" => {
            let (provider_id, reason) = (id.clone(), field("reason"));
            let body = WhitelistBody { provider_id, provider, reason: reason.clone(), expires_at: None, notes: None };
            orphan::keep(shared, admin, sent.asked(body, action, &about, &version(&reason))).await
        }
        "terminate" => {
            let body = EndOrphanBody { confirm: field("typed"), force: false };
            let asked = sent.asked(body, "terminate-orphan", &about, &version(&field("typed")));
            orphan::terminate(shared, admin, Path(id.clone()), Query(orphan::Of::provider(provider)), asked).await
        }
        other => no_action(other),
    }
}
