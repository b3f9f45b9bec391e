//! The web pages: what the API shows, for people. Made of the API's handlers and views, so that a page never knows more than the API.
//! Everything works without script; the script keeps regions of a page up to date.

mod act;
#[cfg(test)]
mod acts;
#[cfg(test)]
mod answers;
pub(crate) mod asset;
#[cfg(test)]
mod buttons;
mod cache;
#[cfg(test)]
mod crowd;
#[cfg(test)]
mod doors;
mod drawing;
#[cfg(test)]
mod followed;
mod fragments;
#[cfg(test)]
mod full;
mod guard;
mod image;
mod instance;
mod live;
mod log;
mod log_search;
mod log_text;
mod log_window;
mod login;
#[cfg(test)]
mod long;
#[cfg(test)]
mod marks;
mod new_run;
mod orphan;
mod parts;
mod question;
#[cfg(test)]
mod quiet;
mod region;
mod run;
mod run_list;
mod said;
mod session;
mod settings;
mod shell;
#[cfg(test)]
mod slots;
#[cfg(test)]
mod stale;
mod step;
#[cfg(test)]
mod tests;
mod ticket;
mod tree;
mod usage;
#[cfg(test)]
mod waits;
mod workflow;

pub(crate) use guard::headers;
pub use run::run_commands;
pub(crate) use ticket::open;

use crate::problem::Problem;
use crate::{Shared, VERSION};
use axum::Router;
use axum::extract::Request;
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware;
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::{get, post};
use engine::Hint;
use engine::adapters::tool::address::OwnAddresses;
use maud::{Markup, html};
use serde::{Deserialize, Serialize};
use session::Visitor;

/// The table `[pages]` of the settings.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PagesConfig {
    /// Serve pages over plain HTTP to other machines too: cookies can be read on the way.
    pub insecure: bool,
}

/// Four random bits each.
const LABEL_CHARS: usize = 32;

/// What a process knows about its pages.
pub(crate) struct Pages {
    pub(crate) config: PagesConfig,
    /// Where browsers reach this server, if the settings say so.
    pub(crate) public_url: Option<String>,
    /// Whether TCP is served over TLS.
    pub(crate) has_tls: bool,
    sessions: session::Sessions,
    failures: login::Failures,
    live: live::Live,
    tickets: ticket::Tickets,
    /// Unguessable: stands before the control id in the host name of what `repl ui` opens. Cookies ignore ports, so another program of this
    /// machine would get the session's cookie if it could lead a browser to this name at its own port.
    label: String,
    layouts: drawing::graph::Layouts,
    searches: log_search::Searches,
    windows: log_window::WindowCache,
    /// Where tools of steps must not connect to: the port of `repl ui` is one of them.
    own: OwnAddresses,
}

impl Pages {
    pub(crate) fn new(config: PagesConfig, public_url: Option<String>, has_tls: bool, own: OwnAddresses) -> Pages {
        Pages {
            own,
            config,
            public_url,
            has_tls,
            sessions: Default::default(),
            failures: Default::default(),
            live: Default::default(),
            tickets: Default::default(),
            label: blake3::hash(engine::new_secret().as_bytes()).to_hex()[..LABEL_CHARS].to_owned(),
            layouts: Default::default(),
            searches: Default::default(),
            windows: Default::default(),
        }
    }

    /// Browsers that follow pages of this process.
    pub(crate) fn open_streams(&self) -> u64 {
        self.live.streams.load(std::sync::atomic::Ordering::Relaxed)
    }

    /// The host name under which the port of `repl ui` answers.
    pub(crate) fn own_name(&self, control_id: &str) -> String {
        format!("{}.{control_id}.localhost", self.label)
    }

    /// Forgets what is known of sessions, so that those that have ended are refused.
    pub(crate) fn forget_sessions(&self) {
        self.sessions.forget();
    }
}

/// Sessions are looked up again when a token was revoked or a session ended, here or in another process.
pub(crate) fn follow(state: &Shared) {
    let mut bell = state.hub.follow(Hint::Tokens);
    let state = std::sync::Arc::downgrade(state);
    tokio::spawn(async move {
        loop {
            bell.rung().await;
            match state.upgrade() {
                Some(state) => state.pages.forget_sessions(),
                None => return,
            }
        }
    });
}

/// By which listener a request came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Door {
    /// The one that also serves the API: people sign in with a token.
    Server,
    /// The port that `repl ui` opens on the loopback interface: people enter with a ticket.
    Own,
}

/// The pages beside the API.
pub(crate) fn beside_api(state: &Shared) -> Router<Shared> {
    let login = Router::new().route("/login", get(login::show).post(login::enter));
    guarded(common().merge(login), state, Door::Server)
}

/// The pages alone: what the port of `repl ui` serves.
pub(crate) fn alone(state: Shared) -> Router {
    let own = Router::new().route("/ticket", get(ticket::enter));
    let routes = guarded(common().merge(own).fallback(nowhere), &state, Door::Own);
    crate::routes::dressed(routes, state)
}

fn guarded(routes: Router<Shared>, state: &Shared, door: Door) -> Router<Shared> {
    let routes = routes.method_not_allowed_fallback(not_that_way);
    routes.layer(middleware::from_fn_with_state((state.clone(), door), guard::guard))
}

fn common() -> Router<Shared> {
    Router::new()
        .route("/", get(run_list::page))
        .route("/logout", post(login::leave))
        .route("/static/{name}", get(asset::get))
        .route("/ui/live", get(live::stream))
        .route("/ui/{*region}", get(region::fragment))
        .route("/runs", get(run_list::page).post(act::on_several))
        .route("/new", get(new_run::page).post(new_run::submit))
        .route("/runs/{id}", get(run::page))
        .route("/runs/{id}/steps/{step}", get(step::page))
        .route("/runs/{id}/artifacts/{artifact}", get(run::artifact))
        .route("/runs/{id}/artifacts/{artifact}/preview", get(image::preview))
        .route("/runs/{id}/steps/{step}/{part}", get(step::part))
        .route("/runs/{id}/log/raw", get(log::raw))
        .route("/runs/{id}/definition/raw", get(run::raw_definition))
        .route("/runs/{id}/output/raw", get(run::raw))
        .route("/runs/{id}/inputs/raw", get(run::raw))
        .route("/runs/{id}/error/raw", get(run::raw))
        .route("/runs/{id}/{part}", get(run::part_page).post(act::on_run))
        .route("/inbox", get(question::page))
        .route("/inbox/{id}/{action}", get(question::part).post(act::on_question))
        .route("/allocations/{id}/{action}", post(act::on_allocation))
        .route("/machines", get(instance::page))
        .route("/machines/{id}/terminate", post(instance::terminate))
        .route("/workflows", get(workflow::list))
        .route("/workflows/{id}", get(workflow::page))
        .route("/workflows/{id}/nodes/{node}", get(workflow::output))
        .route("/workflows/{id}/{action}", post(workflow::act))
        .route("/calls", get(cache::page))
        .route("/calls/{id}", get(cache::one))
        .route("/calls/{id}/{action}", get(cache::part).post(cache::act))
        .route("/spending", get(usage::page))
        .route("/orphans", get(orphan::page))
        .route("/orphans/{action}", post(orphan::act))
        .route("/settings", get(settings::page))
        .route("/settings/tokens/{id}/revoke", post(settings::revoke))
}

async fn nowhere(visitor: Result<Visitor, Response>, request: Request) -> Response {
    let problem =
        Problem::new(StatusCode::NOT_FOUND, "not_found", format!("there is nothing at {}", request.uri().path()));
    match visitor {
        Ok(visitor) => Refusal::of(visitor, problem).into_response(),
        Err(response) => response,
    }
}

async fn not_that_way(visitor: Visitor, request: Request) -> Response {
    let detail = format!("{} is not possible at {}", request.method(), request.uri().path());
    Refusal::of(visitor, Problem::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", detail)).into_response()
}

/// What a browser gets for an address that leads nowhere.
pub(crate) fn nothing_at(path: &str) -> Response {
    let body = html! { h1 { "Nothing is here" } p { code { (parts::visible(path)) } " leads nowhere. " a href="/" { "To the runs" } } };
    guard::refused(StatusCode::NOT_FOUND, &body)
}

/// A page, or why there is none, as a page.
pub(crate) type PageResult = Result<Response, Refusal>;

/// A problem shown to a signed-in person.
pub(crate) struct Refusal(Box<(Visitor, Problem, Option<String>)>);

impl Refusal {
    pub(crate) fn of(visitor: Visitor, problem: Problem) -> Refusal {
        Refusal(Box::new((visitor, problem, None)))
    }

    /// The same of an act, with the address that shows what it was about as it is now.
    pub(crate) fn about(visitor: Visitor, problem: Problem, now_at: &str) -> Refusal {
        Refusal(Box::new((visitor, problem, Some(now_at.to_owned()))))
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let (visitor, problem, now_at) = *self.0;
        let body = parts::problem(&problem, now_at.as_deref());
        let status = problem.status();
        let hidden = problem.into_response().extensions_mut().remove::<crate::problem::Hidden>();
        let mut response = shell::page(&visitor, shell::Head::plain("Not possible"), &body);
        *response.status_mut() = status;
        if let Some(hidden) = hidden {
            response.extensions_mut().insert(hidden);
        }
        response
    }
}

/// Attaches the visitor to a problem, so that `?` shows it as a page.
pub(crate) trait OrShown<T> {
    fn or_shown(self, visitor: &Visitor) -> Result<T, Refusal>;
}

impl<T, E: Into<Problem>> OrShown<T> for Result<T, E> {
    fn or_shown(self, visitor: &Visitor) -> Result<T, Refusal> {
        self.map_err(|error| Refusal::of(visitor.clone(), error.into()))
    }
}

/// HTML that no cache keeps.
fn private_html(body: Markup) -> Response {
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8")),
        (header::CACHE_CONTROL, HeaderValue::from_static("private, no-store")),
    ];
    (headers, body.into_string()).into_response()
}

/// A page for people who are not signed in.
fn bare(title: &str, body: &Markup) -> Markup {
    html! {
        (maud::DOCTYPE)
        html lang="en" {
            head { (shell::head(title)) }
            body.bare { main id="main" { (body) } }
        }
    }
}

fn see_other(to: &str) -> Response {
    Redirect::to(to).into_response()
}

/// Names the build: fragments of another build reload the page.
fn build() -> String {
    format!("{VERSION}-{}", asset::script().hash)
}
