//! What every request for a page passes: the host it names, how it came, where its form was, and whose session it is.

use super::session::Visitor;
use super::{Door, bare, private_html};
use crate::Shared;
use crate::limit::Who;
use crate::listen::Peer;
use crate::problem::Problem;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::Response;
use maud::{Markup, html};
use std::net::IpAddr;

const POLICY: &str =
    "default-src 'self'; base-uri 'none'; object-src 'none'; frame-ancestors 'none'; form-action 'self'";

/// Headers of every answer of this origin, the API's included. An answer that has a stricter policy keeps it.
pub(crate) fn headers(headers: &mut HeaderMap) {
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    let policy = headers.entry(header::CONTENT_SECURITY_POLICY);
    policy.or_insert(HeaderValue::from_static(POLICY));
    let referrer = headers.entry(header::REFERRER_POLICY);
    referrer.or_insert(HeaderValue::from_static("same-origin"));
}

/// Refuses what may not come this way, finds the session, and counts the request: by the session's token, or by the client's address.
/// The order matters: an address whose bucket is empty causes no read of the database.
pub(crate) async fn guard(State((state, door)): State<(Shared, Door)>, mut request: Request, next: Next) -> Response {
    let peer = Peer::of(request.extensions());
    let refusal = refusal(&state, door, &request);
    let visitor = match &refusal {
        Some(_) => Ok(None),
        None => visitor(&state, door, peer, request.headers()).await,
    };
    let counted = visitor.and_then(|visitor| {
        let who = match (&visitor, peer) {
            (_, Peer::Local) => return Ok((visitor, None)),
            (Some(visitor), Peer::Remote(_)) => Who::Token(visitor.token.id),
            (None, Peer::Remote(address)) => Who::stranger(address),
        };
        state.limits.take(who).map(|left| (visitor, Some((who, left))))
    });
    let (visitor, counted) = match counted {
        Ok(counted) => counted,
        Err(problem) => return too_many(&problem),
    };
    if let Some(refusal) = refusal {
        return refusal;
    }
    request.extensions_mut().insert(door);
    if let Some(visitor) = visitor {
        request.extensions_mut().insert(visitor);
    }
    let mut response = next.run(request).await;
    if let Some((who, left)) = counted {
        who.note(response.headers_mut(), left);
    }
    response
}

/// Whose session it is. A session that was read a moment ago is found whatever others at its address do; any other cookie is looked up
/// only while the address may still be wrong.
async fn visitor(state: &Shared, door: Door, peer: Peer, headers: &HeaderMap) -> Result<Option<Visitor>, Problem> {
    if let Some(visitor) = Visitor::remembered(state, door, headers) {
        return Ok(Some(visitor));
    }
    state.limits.admit(peer)?;
    Ok(Visitor::of(state, door, headers).await)
}

/// Why this request is not for these pages, or not to be answered here.
fn refusal(state: &Shared, door: Door, request: &Request) -> Option<Response> {
    let host = request.headers().get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    let Some(origin) = our_origin(state, door, host) else {
        return Some(refused(StatusCode::MISDIRECTED_REQUEST, &misdirected(state, door)));
    };
    if door == Door::Server && is_readable_on_the_way(state, request, &origin) {
        return Some(refused(StatusCode::FORBIDDEN, &plain_http()));
    }
    let is_read = request.method() == Method::GET || request.method() == Method::HEAD;
    (!is_read && !is_from_here(request.headers(), &origin)).then(|| refused(StatusCode::FORBIDDEN, &foreign_form()))
}

fn too_many(problem: &Problem) -> Response {
    let mut response = refused(problem.status(), &super::parts::problem(problem, None));
    response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    response
}

/// The origin that this host name stands for, if it is one of ours.
fn our_origin(state: &Shared, door: Door, host: &str) -> Option<String> {
    let name = host.rsplit_once(':').filter(|(_, port)| port.bytes().all(|b| b.is_ascii_digit()));
    let name = name.map_or(host, |(name, _)| name);
    let control_id = state.engine.context.installation.control_id.to_string();
    if door == Door::Own {
        let own = state.pages.own_name(&control_id);
        return name.eq_ignore_ascii_case(&own).then(|| format!("http://{}", host.to_ascii_lowercase()));
    }
    if let Some((scheme, authority)) = state.pages.public_url.as_deref().and_then(|url| url.split_once("://"))
        && authority.trim_end_matches('/').eq_ignore_ascii_case(host)
    {
        return Some(format!("{}://{}", scheme.to_ascii_lowercase(), host.to_ascii_lowercase()));
    }
    let own = format!("{control_id}.localhost");
    let is_ip = name.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>().is_ok();
    let scheme = if state.pages.has_tls { "https" } else { "http" };
    (is_ip || name.eq_ignore_ascii_case(&own)).then(|| format!("{scheme}://{}", host.to_ascii_lowercase()))
}

/// Whether others on the network can read this request. A proxy in front of us that speaks TLS is known by the public URL.
fn is_readable_on_the_way(state: &Shared, request: &Request, origin: &str) -> bool {
    let is_near = match Peer::of(request.extensions()) {
        Peer::Local => true,
        Peer::Remote(address) => address.to_canonical().is_loopback(),
    };
    !origin.starts_with("https://") && !is_near && !state.pages.config.insecure
}

/// A form of another site must not act here with this browser's cookie.
fn is_from_here(headers: &HeaderMap, origin: &str) -> bool {
    let text = |name: &str| headers.get(name).map(|value| value.to_str().unwrap_or_default());
    text("sec-fetch-site").is_none_or(|site| site == "same-origin")
        && text("origin").is_some_and(|from| from.eq_ignore_ascii_case(origin))
}

/// Whether cookies of this server are for HTTPS only.
pub(crate) fn is_secure(state: &Shared, door: Door) -> bool {
    let public = state.pages.public_url.as_deref().is_some_and(|url| url.starts_with("https://"));
    door == Door::Server && public
}

pub(crate) fn refused(status: StatusCode, body: &Markup) -> Response {
    let mut response = private_html(bare("Not possible", body));
    *response.status_mut() = status;
    response
}

fn misdirected(state: &Shared, door: Door) -> Markup {
    if door == Door::Own {
        // Which name it is, other programs of this machine must not learn here.
        return html! {
            h1 { "Not this name" }
            p { "These pages answer to one name only, which is in the link that " code { "repl ui" } " makes. Open them again with it." }
        };
    }
    let own = format!("{}.localhost", state.engine.context.installation.control_id);
    html! {
        h1 { "Not this name" }
        p { "These pages answer to an IP address, to " code { (own) }
            @if let Some(url) = &state.pages.public_url { " and to " a href=(url) { (url) } }
            ". For another name, set " code { "REPL_PUBLIC_URL" } "." }
    }
}

fn plain_http() -> Markup {
    html! {
        h1 { "Not over plain HTTP" }
        p { "Cookies could be read on the way. Serve TLS, set " code { "REPL_PUBLIC_URL" }
            " to the https address of the proxy in front of this server, or set "
            code { "insecure = true" } " in the table " code { "[pages]" } "." }
    }
}

fn foreign_form() -> Markup {
    html! {
        h1 { "Not from here" }
        p { "This request did not come from a page of this server, so nothing was done. "
            a href="/" { "Open the pages" } " and try it there." }
    }
}
