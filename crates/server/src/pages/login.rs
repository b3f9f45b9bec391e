//! Signing in with a token, and signing out.

use super::session::{self, Form, Visitor};
use super::{Door, bare, guard, private_html, see_other};
use crate::Shared;
use crate::input::Query;
use crate::limit::Who;
use crate::listen::Peer;
use crate::problem::Problem;
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use maud::{Markup, html};
use model::{Failure, Refused};
use std::collections::HashMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Failed attempts to sign in that one address may make within a minute.
const FAILURES: usize = 10;
const WITHIN: Duration = Duration::from_secs(60);
/// Addresses that are remembered.
const ADDRESSES: usize = 10_000;

#[derive(Default)]
pub(crate) struct Failures(Mutex<HashMap<Who, Vec<Instant>>>);

impl Failures {
    /// Whether this address may try. A failure that is older than a minute is forgotten.
    fn may_try(&self, who: Who) -> bool {
        let mut all = self.0.lock().expect("no panic while locked");
        let Some(times) = all.get_mut(&who) else { return true };
        times.retain(|at| at.elapsed() < WITHIN);
        times.len() < FAILURES
    }

    fn note(&self, who: Who) {
        let mut all = self.0.lock().expect("no panic while locked");
        if all.len() >= ADDRESSES {
            all.retain(|_, times| times.last().is_some_and(|at| at.elapsed() < WITHIN));
        }
        if all.len() < ADDRESSES || all.contains_key(&who) {
            all.entry(who).or_default().push(Instant::now());
        }
    }
}

#[derive(Debug, Default, serde::Deserialize)]
#[serde(default)]
pub(crate) struct Wanted {
    next: Option<String>,
}

pub(crate) async fn show(
    State(state): State<Shared>,
    visitor: Result<Visitor, Response>,
    Query(wanted): Query<Wanted>,
) -> Response {
    if visitor.is_ok() {
        return see_other(&place(wanted.next.as_deref()));
    }
    private_html(bare("Sign in", &form(&state, wanted.next.as_deref(), None)))
}

pub(crate) async fn enter(State(state): State<Shared>, request: Request) -> Response {
    let who = match Peer::of(request.extensions()) {
        Peer::Remote(address) => Who::stranger(address),
        Peer::Local => Who::stranger([0, 0, 0, 0].into()),
    };
    let Some(sent) = Form::read(request.into_body()).await else {
        return guard::refused(
            StatusCode::BAD_REQUEST,
            &form(&state, None, Some("This form cannot be read. Send it again.")),
        );
    };
    let next = sent.get("next");
    let again = |status: StatusCode, why: &str| guard::refused(status, &form(&state, next, Some(why)));
    if !state.pages.failures.may_try(who) {
        return again(StatusCode::TOO_MANY_REQUESTS, "Too many attempts from this address. Try again in a minute.");
    }
    let token = match state.tokens.check(&state.engine, sent.get("token").unwrap_or_default().trim()).await {
        Ok(token) => token,
        Err(Failure::Refused(Refused::Unauthorized { why })) => {
            state.pages.failures.note(who);
            return again(StatusCode::UNAUTHORIZED, &format!("That token is not good: {why}."));
        }
        Err(failure) => return Problem::from(failure).into_response(),
    };
    match session::open(&state, Door::Server, &token).await {
        Ok(cookie) => ([(header::SET_COOKIE, cookie)], see_other(&place(next))).into_response(),
        Err(failure) => Problem::from(failure).into_response(),
    }
}

pub(crate) async fn leave(State(state): State<Shared>, visitor: Visitor, request: Request) -> Response {
    if let Err(response) = Form::of(&visitor, request).await {
        return response;
    }
    let to = if visitor.door == Door::Server { "/login" } else { "/" };
    match session::end(&state, &visitor).await {
        Ok(cookie) => ([(header::SET_COOKIE, cookie)], see_other(to)).into_response(),
        Err(failure) => Problem::from(failure).into_response(),
    }
}

/// A path of this server; anything else leads to the first page.
fn place(next: Option<&str>) -> String {
    let is_ours = |next: &&str| {
        let second = next.as_bytes().get(1);
        next.starts_with('/') && !matches!(second, Some(b'/' | b'\\')) && next.bytes().all(|b| b.is_ascii_graphic())
    };
    next.filter(is_ours).unwrap_or("/").to_owned()
}

fn form(state: &Shared, next: Option<&str>, why: Option<&str>) -> Markup {
    html! {
        form.card.login method="post" action="/login" {
            h1 { "Remuda" }
            p.quiet { "Control plane " code { (state.engine.context.installation.control_id) } }
            @if let Some(why) = why { p.bad role="alert" { (why) } }
            label for="token" { "Token" }
            input id="token" name="token" type="password" autocomplete="current-password" required autofocus
                placeholder="rmd_…" spellcheck="false";
            @if let Some(next) = next { input type="hidden" name="next" value=(next); }
            button.primary type="submit" { "Sign in" }
            p.quiet { "A token is made by " code { "repl token create NAME --scope write" } "." }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sign_in_leads_to_this_server_only() {
        for (next, to) in [
            (None, "/"),
            (Some("/runs/run_1?tab=log"), "/runs/run_1?tab=log"),
            (Some("//evil.example"), "/"),
            (Some("/\\evil.example"), "/"),
            (Some("https://evil.example"), "/"),
            (Some("/a\nb"), "/"),
        ] {
            assert_eq!(place(next), to, "{next:?}");
        }
    }

    #[test]
    fn an_address_fails_ten_times_a_minute_and_others_are_not_held_back() {
        let failures = Failures::default();
        let (one, other) = (Who::stranger([192, 0, 2, 1].into()), Who::stranger([192, 0, 2, 2].into()));
        for n in 0..FAILURES {
            assert!(failures.may_try(one), "{n}");
            failures.note(one);
        }
        assert!(!failures.may_try(one));
        assert!(failures.may_try(other));
    }
}
