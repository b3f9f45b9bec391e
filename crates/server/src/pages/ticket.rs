//! How `repl ui` opens the pages of an embedded control plane: a port of its own on the loopback interface, and a ticket that opens
//! one session within a minute.

use super::{Door, bare, guard, private_html, session};
use crate::auth::Reader;
use crate::input::Query;
use crate::listen::{self, Peer};
use crate::problem::{HandlerResult, Problem};
use crate::{Shared, pages};
use axum::Json;
use axum::extract::{Extension, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use engine::Token;
use engine::new_secret;
use maud::html;
use model::{Trouble, TroubleKind};
use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::sync::Mutex;
use std::time::{Duration, Instant};
use tokio::net::TcpListener;
use tokio::sync::OnceCell;

/// How long a ticket is good.
const GOOD_FOR: Duration = Duration::from_secs(60);
/// Tickets at once.
const MOST: usize = 100;

#[derive(Default)]
pub(crate) struct Tickets {
    port: OnceCell<u16>,
    open: Mutex<HashMap<[u8; 32], (Token, Instant)>>,
}

/// `POST /control/v1/ui`, over the unix socket: a link that opens the pages once.
pub(crate) async fn open(
    State(state): State<Shared>,
    Extension(peer): Extension<Peer>,
    Reader(token): Reader,
) -> HandlerResult<Json<wire::api::PagesLink>> {
    if peer != Peer::Local {
        let detail = "pages of this control plane are opened on its own machine";
        return Err(Problem::new(StatusCode::FORBIDDEN, "forbidden", detail).fix("sign in with a token at /login"));
    }
    let port = *state.pages.tickets.port.get_or_try_init(|| listen(&state)).await?;
    let ticket = new_secret();
    let mut open = state.pages.tickets.open.lock().expect("no panic while locked");
    open.retain(|_, (_, until)| *until > Instant::now());
    if open.len() >= MOST {
        return Err(Problem::new(StatusCode::TOO_MANY_REQUESTS, "rate_limited", "too many tickets are open")
            .fix("try again in a minute")
            .retry_after(60));
    }
    open.insert(*blake3::hash(ticket.as_bytes()).as_bytes(), (token, Instant::now() + GOOD_FOR));
    let host = state.pages.own_name(&state.engine.context.installation.control_id.to_string());
    Ok(Json(wire::api::PagesLink { url: format!("http://{host}:{port}/ticket?t={ticket}") }))
}

#[cfg(test)]
impl Tickets {
    /// As if this link had been made so long ago.
    pub(crate) fn age(&self, url: &str, by: Duration) {
        let text = url.split("t=").nth(1).unwrap();
        let mut open = self.open.lock().unwrap();
        open.get_mut(blake3::hash(text.as_bytes()).as_bytes()).unwrap().1 -= by;
    }
}

async fn listen(state: &Shared) -> Result<u16, Problem> {
    let failed = |error: std::io::Error| {
        Problem::from(Trouble::new(TroubleKind::Internal, format!("cannot listen on the loopback interface: {error}")))
    };
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    // Tools of steps never connect to the control plane, and this is a part of it.
    state.pages.own.add(address);
    let (app, closing) = (pages::alone(state.clone()), state.closing.subscribe());
    tokio::spawn(listen::tcp(listener, None, app, listen::Bounds::default(), closing));
    Ok(address.port())
}

#[derive(Debug, Default, serde::Deserialize)]
#[serde(default)]
pub(crate) struct Shown {
    t: String,
}

/// The only GET that changes something: the ticket is used up, and a session begins.
pub(crate) async fn enter(State(state): State<Shared>, Query(shown): Query<Shown>) -> Response {
    let hash = *blake3::hash(shown.t.as_bytes()).as_bytes();
    let found = state.pages.tickets.open.lock().expect("no panic while locked").remove(&hash);
    let Some((token, _)) = found.filter(|(_, until)| *until > Instant::now()) else { return needed() };
    match session::open(&state, Door::Own, &token).await {
        Ok(cookie) => {
            let headers =
                [(header::SET_COOKIE, cookie), (header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"))];
            (headers, super::see_other("/")).into_response()
        }
        Err(failure) => Problem::from(failure).into_response(),
    }
}

/// The answer without a session.
pub(crate) fn needed() -> Response {
    let mut response = private_html(bare(
        "Closed",
        &html! {
            div.card {
                h1 { "This door is closed" }
                p { "A link opens these pages once, within a minute, and a session ends with the control plane. Open them again with " code { "repl ui" } "." }
            }
        },
    ));
    *response.status_mut() = StatusCode::UNAUTHORIZED;
    guard::headers(response.headers_mut());
    response
}
