//! Spending: what there is, what is reserved, what was spent by day and by one other thing, and the ledger.

use super::drawing::bars::{Amount, columns, rows};
use super::session::{Viewer, Visitor};
use super::shell::{self, Head};
use super::{OrShown as _, PageResult, parts, region, run};
use crate::input::Query;
use crate::problem::HandlerResult;
use crate::routes::Paging;
use crate::{Shared, ledger, usage};
use axum::extract::State;
use axum::http::Uri;
use maud::{Markup, html};
use model::time::DAY;
use model::{Credits, Timestamp};
use wire::api::UsageView;

const BY: [&str; 4] = ["run", "agent", "model", "provider"];

#[derive(Debug, Default, Clone, serde::Deserialize)]
#[serde(default)]
struct Wanted {
    by: Option<String>,
    cursor: Option<String>,
}

pub(crate) async fn page(State(state): State<Shared>, visitor: Visitor, uri: Uri) -> PageResult {
    let query = uri.query().map_or_else(String::new, |query| format!("?{query}"));
    let shown = region::live(&state, visitor.viewer(), &format!("/ui/spending{query}")).await.or_shown(&visitor)?;
    let body = html! { div.title { h1 { "Spending" } } (shown) };
    Ok(shell::full(&state, &visitor, Head { title: "Spending", under: "/spending" }, &body).await)
}

pub(crate) async fn region(state: &Shared, viewer: Viewer, query: &str) -> HandlerResult<Markup> {
    let uri: Uri = format!("/?{query}").parse().unwrap_or_default();
    let wanted = axum::extract::Query::<Wanted>::try_from_uri(&uri).map(|it| it.0).unwrap_or_default();
    let by = BY.into_iter().find(|by| Some(*by) == wanted.by.as_deref()).unwrap_or("run");
    let shared = || State(state.clone());
    let balance = ledger::balance(shared(), viewer.reader()).await?.0;
    let days = usage::of_org(shared(), viewer.reader(), Query(usage::Span::by("day"))).await?.0;
    let used = usage::of_org(shared(), viewer.reader(), Query(usage::Span::by(by))).await?.0;
    let first = wanted.cursor.is_none();
    let paging = Paging { limit: Some(50), cursor: wanted.cursor };
    let entries = ledger::rows(shared(), viewer.reader(), Query(paging)).await?.0;
    Ok(html! {
        dl.facts {
            div { dt { "Available" } dd.money { (parts::credits(&balance.available)) } }
            div { dt { "Reserved" } dd.money { (parts::credits(&balance.reserved)) } }
            div { dt { "Spent in 30 days" } dd.money { (parts::credits(&days.total.charged)) } }
        }
        h2 { "By day" }
        @let drawn = by_day(&days);
        @if drawn.is_empty() { p.empty { "Nothing was spent within 30 days." } } @else {
            (columns("Credits by day", &drawn, written))
            details.block { summary { "As a table" } (run::groups("Table by day", &days.groups)) }
        }
        nav.tabs aria-label="Spent by" { @for one in BY { a href=(format!("/spending?by={one}")) aria-current=[(one == by).then_some("page")] { "By " (one) } } }
        (rows(&format!("Credits by {by}"), &amounts(&used), written))
        (run::groups(&format!("Table by {by}"), &used.groups))
        h2 { "Ledger" }
        div.scroll tabindex="0" role="region" aria-label="Ledger" { table.list {
            thead { tr { th.r scope="col" { "#" } th scope="col" { "When" } th scope="col" { "Kind" } th.r scope="col" { "Credits" } th scope="col" { "Run" } th scope="col" { "Memo" } } }
            tbody { @for row in &entries.data { tr id=(format!("s{}", row.seq)) {
                td.r.num { (row.seq) } td { (parts::time(row.at)) } td { (row.kind) } td.r { (parts::credits(&row.amount)) }
                td { @if let Some(run) = &row.run { a href=(format!("/runs/{run}")) { (run) } } @else { span.quiet { "–" } } }
                td { (parts::visible(&row.memo)) }
            } } }
        } }
        (parts::more(&format!("/spending?by={by}"), entries.next_cursor.as_deref(), first))
    })
}

/// Every day of the span in its order, also those on which nothing was spent.
fn by_day(days: &UsageView) -> Vec<Amount> {
    let spent = amounts(days);
    let value = |day: &str| spent.iter().find(|amount| amount.name == day).map_or(0, |amount| amount.value);
    if spent.iter().all(|amount| amount.value == 0) {
        return Vec::new();
    }
    let names = (days.from.div_euclid(DAY)..=days.to.div_euclid(DAY)).map(|day| Timestamp(day * DAY).date());
    names.map(|name| Amount { value: value(&name), name, href: None }).collect()
}

fn amounts(used: &UsageView) -> Vec<Amount> {
    let amount = |group: &wire::api::UsageGroup| Amount {
        name: parts::visible(group.name.as_deref().or(group.key.as_deref()).unwrap_or("other")),
        href: group
            .key
            .as_ref()
            .filter(|key| used.by == "run" && key.starts_with("run_"))
            .map(|key| format!("/runs/{key}")),
        value: group.usage.charged_micro,
    };
    used.groups.groups.iter().map(amount).collect()
}

fn written(micro: i64) -> String {
    let text = Credits(micro).to_string();
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}
