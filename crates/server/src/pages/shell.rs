//! What every page has around it: navigation, the one form that actions use, the line that screen readers hear.

use super::session::{self, Visitor};
use super::{Door, asset, build, parts, private_html, question, region};
use crate::Shared;
use axum::http::header;
use axum::response::Response;
use maud::{DOCTYPE, Markup, html};

/// Title and place of a page.
pub(crate) struct Head<'p> {
    pub(crate) title: &'p str,
    /// The entry of the navigation that it belongs to.
    pub(crate) under: &'p str,
}

impl<'p> Head<'p> {
    pub(crate) fn plain(title: &'p str) -> Head<'p> {
        Head { title, under: "" }
    }
}

/// Path, name and key of each page that the navigation leads to.
const PLACES: [(&str, &str, &str); 8] = [
    ("/runs", "Runs", "r"),
    ("/inbox", "Inbox", "i"),
    ("/machines", "Machines", "m"),
    ("/workflows", "Workflows", "w"),
    ("/calls", "Calls", "c"),
    ("/spending", "Spending", "s"),
    ("/orphans", "Orphans", "o"),
    ("/settings", "Settings", "t"),
];

pub(crate) fn head(title: &str) -> Markup {
    html! {
        meta charset="utf-8";
        meta name="viewport" content="width=device-width, initial-scale=1";
        meta name="color-scheme" content="light dark";
        title { (parts::visible(title)) " · Remuda" }
        link rel="icon" type="image/svg+xml" href=(asset::icon().path);
        link rel="stylesheet" href=(asset::style().path);
        script src=(asset::script().path) defer {}
    }
}

/// A page with the number of open questions in its navigation.
pub(crate) async fn full(state: &Shared, visitor: &Visitor, head: Head<'_>, body: &Markup) -> Response {
    let count = question::counted(state, visitor.viewer()).await.ok();
    let badge = count.as_ref().map(|count| region::around("/ui/inbox/count", question::badge(count.as_deref())));
    let title = count.flatten().map(|count| format!("({count}) {}", head.title));
    let head = Head { title: title.as_deref().unwrap_or(head.title), ..head };
    let mut response = private_html(dressed(visitor, &head, badge.as_ref(), body));
    if visitor.said.is_some() {
        response.headers_mut().insert(header::SET_COOKIE, session::said_cookie(state, visitor.door, None));
    }
    response
}

/// The same without a read, for refusals.
pub(crate) fn page(visitor: &Visitor, head: Head<'_>, body: &Markup) -> Response {
    private_html(dressed(visitor, &head, None, body))
}

fn dressed(visitor: &Visitor, at: &Head<'_>, count: Option<&Markup>, body: &Markup) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" data-build=(build()) data-script=(asset::script().path) {
            head { (head(at.title)) }
            body {
                a.skip href="#main" { "To the content" }
                header.top {
                    a.brand href="/" { "Remuda" }
                    nav aria-label="Pages" {
                        @for (path, name, key) in PLACES {
                            a href=(path) data-go=(key) aria-current=[(at.under == path).then_some("page")] {
                                (name)
                                @if path == "/inbox" { @if let Some(count) = count { (count) } }
                            }
                        }
                    }
                    form.out method="post" action="/logout" {
                        input type="hidden" name="csrf" value=(visitor.form_token());
                        span.who title=(format!("scope {}", visitor.token.scope.as_str())) { (parts::visible(&visitor.token.name)) }
                        button.link type="submit" { "Sign out" }
                    }
                }
                // Buttons anywhere in a page belong to this form: fragments hold no secret.
                // Its first button is disabled, so that Enter in a field presses none of the others.
                form id="act" method="post" hidden {
                    button type="submit" disabled { "None" }
                    input type="hidden" name="csrf" value=(visitor.form_token());
                }
                main id="main" tabindex="-1" { @if let Some(said) = visitor.said { (said.line()) } (body) }
                footer.foot {
                    // The port of `repl ui` serves no API.
                    @if visitor.door == Door::Server { a href="/api/v1/docs" { "API" } }
                    button.link type="button" id="keys" hidden { "Keyboard" }
                    span id="said" role="status" {}
                }
            }
        }
    }
}
