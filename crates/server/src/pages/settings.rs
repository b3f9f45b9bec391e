//! Settings that a person looks at: tokens, names of secrets, providers, and what works on this machine.

use super::act::{Sent, answer_of};
use super::session::Visitor;
use super::shell::{self, Head};
use super::{OrShown as _, PageResult, parts};
use crate::auth::{Admin, Reader};
use crate::input::{Path, Query};
use crate::problem::HandlerResult;
use crate::routes::Paging;
use crate::{Shared, control, provider, secret, token};
use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use engine::Scope;
use maud::{Markup, html};
use wire::api::{Finding, Page, ProviderView};

/// Rows of each table.
const LISTED: i64 = 40;

/// Where each listing goes on.
#[derive(Debug, Default, Clone, serde::Deserialize)]
#[serde(default)]
pub(crate) struct Wanted {
    tokens: Option<String>,
    secrets: Option<String>,
    providers: Option<String>,
}

pub(crate) async fn page(State(state): State<Shared>, visitor: Visitor, Query(wanted): Query<Wanted>) -> PageResult {
    let reader = || Reader(visitor.token.clone());
    let shared = || State(state.clone());
    let paging = |cursor: &Option<String>| Query(Paging { limit: Some(LISTED), cursor: cursor.clone() });
    let more = |name: &str, label: &str, next: &Option<String>, cursor: &Option<String>| {
        parts::more_of("/settings", name, label, (next.as_deref(), cursor.is_none()))
    };
    let is_admin = visitor.viewer().may(Scope::Admin);
    let tokens = match is_admin {
        true => Some(
            token::list(shared(), Admin(visitor.token.clone()), paging(&wanted.tokens)).await.or_shown(&visitor)?.0,
        ),
        false => None,
    };
    let secrets = secret::list(shared(), reader(), paging(&wanted.secrets)).await.or_shown(&visitor)?.0;
    let providers = answer_of(provider::list(shared(), reader(), paging(&wanted.providers)).await).await;
    let providers: Page<ProviderView> = providers.or_shown(&visitor)?;
    let findings: Vec<Finding> = match is_admin {
        true => {
            let found = control::doctor(
                shared(),
                Admin(visitor.token.clone()),
                Query(Paging { limit: Some(200), cursor: None }),
            )
            .await;
            answer_of::<Page<Finding>>(found).await.or_shown(&visitor)?.data
        }
        false => Vec::new(),
    };
    let own = visitor.token.id.to_string();
    let body = html! {
        div.title { h1 { "Settings" } }
        (parts::facts(vec![
            ("Signed in with", Some(html! { (parts::visible(&visitor.token.name)) " " code { (own) } })),
            ("Scope", Some(html! { (visitor.token.scope.as_str()) })),
            ("Until", Some(parts::time(visitor.until.ms()))),
            ("Version", Some(html! { (crate::VERSION) })),
        ]))
        h2 { "Tokens" }
        @if let Some(tokens) = &tokens {
            div.scroll tabindex="0" role="region" aria-label="Tokens" { table.list {
                thead { tr { th scope="col" { "Name" } th scope="col" { "Id" } th scope="col" { "Scope" } th.r scope="col" { "Made" } th.r scope="col" { "Ends" } th scope="col" { "Act" } } }
                tbody { @for it in &tokens.data { tr id=(it.id) {
                    td { (parts::visible(&it.name)) @if it.id == own { span.phase { "yours" } } } td { code { (it.id) } } td { (it.scopes.join(", ")) }
                    td.r { (parts::time(it.created_at)) } td.r { @match it.expires_at { Some(at) => (parts::time(at)), None => "–" } }
                    td { (parts::button("Revoke", &format!("/settings/tokens/{}/revoke", it.id), "danger")) }
                } } }
            } }
            (more("tokens", "Further tokens", &tokens.next_cursor, &wanted.tokens))
            p.quiet { "A new one: " (parts::command("repl token create NAME --scope write")) }
        } @else { p.quiet { "A token with the scope admin lists them." } }
        h2 { "Secrets" }
        @if secrets.data.is_empty() { p.quiet { "None. " (parts::command("repl secret set NAME")) } } @else {
            div.scroll tabindex="0" role="region" aria-label="Secrets" { table.list {
                thead { tr { th scope="col" { "Name" } th.r scope="col" { "Set" } } }
                tbody { @for it in &secrets.data { tr { td { code { (parts::visible(&it.name)) } } td.r { (parts::time(it.updated_at)) } } } }
            } }
            (more("secrets", "Further secrets", &secrets.next_cursor, &wanted.secrets))
        }
        h2 { "Providers" }
        div.scroll tabindex="0" role="region" aria-label="Providers" { table.list {
            thead { tr { th scope="col" { "Name" } th scope="col" { "Kind" } th scope="col" { "Regions" } th.r scope="col" { "Machines" } th.r scope="col" { "Per hour" } th scope="col" { "From" } } }
            tbody { @for it in &providers.data { tr {
                td { (parts::visible(&it.name)) @if it.leaving { span.phase { "leaving" } } } td { (it.kind.as_deref().unwrap_or("–")) } td { (it.regions.join(", ")) }
                td.r.num { (it.instances) " of " (it.max_instances) } td.r { (parts::credits(&it.price_per_hour)) } td { (it.source) }
            } } }
        } }
        (more("providers", "Further providers", &providers.next_cursor, &wanted.providers))
        @if !findings.is_empty() { (health(&findings)) }
    };
    Ok(shell::full(&state, &visitor, Head { title: "Settings", under: "/settings" }, &body).await)
}

pub(crate) async fn revoke(Path(id): Path<String>, sent: Sent) -> Response {
    let answer = ended(&sent, id).await;
    sent.answered(answer, "/settings", "revoke").await
}

async fn ended(sent: &Sent, id: String) -> HandlerResult {
    let admin = Admin(sent.may(Scope::Admin, "revoke")?);
    let answer = token::revoke(sent.shared(), admin, Path(id)).await?;
    sent.state.pages.forget_sessions();
    Ok(answer.into_response())
}

/// What `repl doctor` says of the machine that serves these pages.
fn health(found: &[Finding]) -> Markup {
    html! {
        h2 { "This machine" }
        div.scroll tabindex="0" role="region" aria-label="This machine" { table.list {
            thead { tr { th scope="col" { "State" } th scope="col" { "Check" } th scope="col" { "Found" } } }
            tbody { @for it in found { tr id=(format!("d-{}", it.check.replace(' ', "-"))) {
                td { (parts::state(&it.state)) } td { (it.check) }
                td { (parts::visible(&it.detail)) @if let Some(fix) = &it.fix { br; span.quiet { "What helps: " (parts::visible(fix)) } } }
            } } }
        } }
    }
}
