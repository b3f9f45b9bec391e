//! Sessions: which browser is whose. A session stands for a token; what it may do is what the token may do. Sessions of `repl ui` live
//! in memory and end with the process, all others are rows. Never accepted by the API.

use super::said::{self, Said};
use super::{Door, guard, see_other};
use crate::{Shared, now_ms};
use axum::body::Body;
use axum::extract::{FromRequestParts, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use engine::new_secret;
use engine::{Scope, Token};
use model::{Failure, OrgId, Timestamp, TokenId};
use percent_encoding::percent_decode_str;
use std::collections::HashMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// How long a session lasts at most.
const LASTS_MS: i64 = 12 * model::time::HOUR;
/// A session that was read is believed for so long; a hint ends this earlier.
const BELIEVED_FOR: Duration = Duration::from_secs(5);
/// Sessions that are remembered at once; when there are more, all are read again.
const KEPT: usize = 10_000;
/// Sessions of `repl ui` at once; the oldest is dropped.
const IN_MEMORY: usize = 1_000;
/// A form's bytes.
const FORM_BYTES: usize = 1024 * 1024;

/// A signed-in person.
#[derive(Clone)]
pub(crate) struct Visitor {
    pub(crate) token: Token,
    pub(crate) secret: String,
    pub(crate) until: Timestamp,
    pub(crate) door: Door,
    /// What was done a moment ago, for the page that is reached after it.
    pub(crate) said: Option<Said>,
}

/// Which fragments a person may see: nothing in them depends on more than this.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Viewer {
    pub(crate) org: OrgId,
    pub(crate) scope: u8,
}

impl Viewer {
    pub(crate) fn may(self, scope: Scope) -> bool {
        self.scope >= scope as u8
    }
    /// A token that reads what this viewer may read.
    pub(crate) fn reader(self) -> crate::auth::Reader {
        let scope = Scope::ALL.into_iter().find(|scope| *scope as u8 == self.scope).unwrap_or(Scope::Read);
        crate::auth::Reader(Token {
            id: TokenId(0),
            org: self.org,
            name: String::new(),
            scope,
            created_at: Timestamp(0),
            expires_at: None,
            revoked_at: None,
        })
    }
}

impl Visitor {
    pub(crate) fn viewer(&self) -> Viewer {
        Viewer { org: self.token.org, scope: self.token.scope as u8 }
    }

    /// What forms of this session carry: another site cannot know it.
    pub(crate) fn form_token(&self) -> String {
        URL_SAFE_NO_PAD.encode(blake3::derive_key("remuda 2026 pages form token", self.secret.as_bytes()))
    }

    /// The key under which an action of this session is done once.
    pub(crate) fn action_key(&self, action: &str, entity: &str, version: &str) -> String {
        let text = [&self.secret, action, entity, version].map(|part| format!("{}:{part}", part.len())).concat();
        format!("ui-{}", URL_SAFE_NO_PAD.encode(blake3::derive_key("remuda 2026 pages action", text.as_bytes())))
    }

    /// Of a request's cookie, if its session was read a moment ago: costs no read.
    pub(crate) fn remembered(state: &Shared, door: Door, headers: &HeaderMap) -> Option<Visitor> {
        let secret = cookie(headers, &cookie_name(state, door))?;
        let (token, until) = state.pages.sessions.remembered(blake3::hash(secret.as_bytes()).as_bytes())?;
        Some(Visitor { token, secret: secret.to_owned(), until, door, said: said(state, door, headers) })
    }

    /// Of a request's cookie, if it is good.
    pub(crate) async fn of(state: &Shared, door: Door, headers: &HeaderMap) -> Option<Visitor> {
        let secret = cookie(headers, &cookie_name(state, door))?;
        let (token, until) = state.pages.sessions.check(state, door, secret).await?;
        Some(Visitor { token, secret: secret.to_owned(), until, door, said: said(state, door, headers) })
    }

    /// Whether the session is still good.
    pub(crate) async fn is_good(&self, state: &Shared) -> bool {
        state.pages.sessions.check(state, self.door, &self.secret).await.is_some()
    }
}

#[derive(Default)]
pub(crate) struct Sessions {
    memory: Mutex<Memory>,
}

#[derive(Default)]
struct Memory {
    /// Rows that were read a moment ago.
    read: HashMap<[u8; 32], (Token, Timestamp, Instant)>,
    /// Sessions of `repl ui`, and when they end.
    own: HashMap<[u8; 32], (TokenId, Timestamp)>,
    forgotten: u64,
}

impl Sessions {
    pub(crate) fn forget(&self) {
        let mut memory = self.memory.lock().expect("no panic while locked");
        memory.forgotten += 1;
        memory.read.clear();
    }

    fn remembered(&self, hash: &[u8; 32]) -> Option<(Token, Timestamp)> {
        let memory = self.memory.lock().expect("no panic while locked");
        let (token, until, believed) = memory.read.get(hash)?;
        (is_good(token, *until) && *believed > Instant::now()).then(|| (token.clone(), *until))
    }

    async fn check(&self, state: &Shared, door: Door, secret: &str) -> Option<(Token, Timestamp)> {
        let hash = *blake3::hash(secret.as_bytes()).as_bytes();
        if let Some(found) = self.remembered(&hash) {
            return Some(found);
        }
        let (own, forgotten) = {
            let memory = self.memory.lock().expect("no panic while locked");
            (memory.own.get(&hash).copied(), memory.forgotten)
        };
        let (token, until) = match door {
            Door::Server => state.engine.check_session(secret).await.ok()?,
            Door::Own => {
                let (token, until) = own?;
                (state.engine.good_token(token).await.ok()??, until)
            }
        };
        if !is_good(&token, until) {
            return None;
        }
        let mut memory = self.memory.lock().expect("no panic while locked");
        // What was read before something was revoked is not remembered after it.
        if memory.forgotten == forgotten {
            if memory.read.len() >= KEPT {
                memory.read.clear();
            }
            memory.read.insert(hash, (token.clone(), until, Instant::now() + BELIEVED_FOR));
        }
        Some((token, until))
    }
}

fn is_good(token: &Token, until: Timestamp) -> bool {
    let now = now_ms();
    until.ms() > now && token.expires_at.is_none_or(|end| end.ms() > now)
}

/// Opens a session of this token; the answer sets its cookie.
pub(crate) async fn open(state: &Shared, door: Door, token: &Token) -> Result<HeaderValue, Failure> {
    let (secret, latest) = (new_secret(), Timestamp(now_ms() + LASTS_MS));
    let until = token.expires_at.map_or(latest, |end| end.min(latest));
    match door {
        Door::Server => state.engine.open_session(secret.clone(), token.id, until).await?,
        Door::Own => {
            let mut memory = state.pages.sessions.memory.lock().expect("no panic while locked");
            if memory.own.len() >= IN_MEMORY
                && let Some(oldest) = memory.own.iter().min_by_key(|(_, (_, until))| *until).map(|(hash, _)| *hash)
            {
                memory.own.remove(&oldest);
            }
            memory.own.insert(*blake3::hash(secret.as_bytes()).as_bytes(), (token.id, until));
        }
    }
    Ok(set_cookie(state, door, &secret, (until.ms() - now_ms()) / 1000))
}

/// Ends a session; the answer removes its cookie.
pub(crate) async fn end(state: &Shared, visitor: &Visitor) -> Result<HeaderValue, Failure> {
    let hash = *blake3::hash(visitor.secret.as_bytes()).as_bytes();
    state.pages.sessions.memory.lock().expect("no panic while locked").own.remove(&hash);
    if visitor.door == Door::Server {
        state.engine.end_session(&visitor.secret).await?;
    }
    state.pages.forget_sessions();
    // Streams of this session look again.
    state.hub.ring(engine::Hint::Tokens);
    Ok(set_cookie(state, visitor.door, "", 0))
}

/// Named by the control plane: cookies do not know ports, and two of them may be on one host.
fn cookie_name(state: &Shared, door: Door) -> String {
    let prefix = if guard::is_secure(state, door) { "__Host-" } else { "" };
    format!("{prefix}remuda_{}", state.engine.context.installation.control_id)
}

fn set_cookie(state: &Shared, door: Door, value: &str, seconds: i64) -> HeaderValue {
    cookie_of(&cookie_name(state, door), state, door, value, seconds)
}

/// A cookie for the page that is reached after an act; without an act, its end.
pub(crate) fn said_cookie(state: &Shared, door: Door, said: Option<Said>) -> HeaderValue {
    let value = said.map_or_else(String::new, Said::written);
    cookie_of(&said_name(state, door), state, door, &value, if said.is_some() { said::SECONDS } else { 0 })
}

fn said(state: &Shared, door: Door, headers: &HeaderMap) -> Option<Said> {
    Said::read(cookie(headers, &said_name(state, door))?)
}

fn said_name(state: &Shared, door: Door) -> String {
    format!("{}_said", cookie_name(state, door))
}

fn cookie_of(name: &str, state: &Shared, door: Door, value: &str, seconds: i64) -> HeaderValue {
    let secure = if guard::is_secure(state, door) { "; Secure" } else { "" };
    let text = format!("{name}={value}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Lax{secure}");
    HeaderValue::from_str(&text).expect("a cookie is ASCII")
}

fn cookie<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    let all = headers.get_all(header::COOKIE).into_iter().filter_map(|value| value.to_str().ok());
    all.flat_map(|value| value.split(';')).find_map(|pair| {
        let (key, value) = pair.trim().split_once('=')?;
        (key == name && !value.is_empty()).then_some(value)
    })
}

impl FromRequestParts<Shared> for Visitor {
    type Rejection = Response;
    async fn from_request_parts(parts: &mut Parts, _: &Shared) -> Result<Visitor, Response> {
        if let Some(visitor) = parts.extensions.get::<Visitor>() {
            return Ok(visitor.clone());
        }
        let is_fragment = parts.uri.path().starts_with("/ui/");
        match parts.extensions.get::<Door>() {
            _ if is_fragment => Err(StatusCode::UNAUTHORIZED.into_response()),
            Some(Door::Server) => {
                let wanted = parts.uri.path_and_query().map_or("/", |place| place.as_str());
                let next = percent_encoding::utf8_percent_encode(wanted, percent_encoding::NON_ALPHANUMERIC);
                Err(see_other(&if wanted == "/" { "/login".to_owned() } else { format!("/login?next={next}") }))
            }
            _ => Err(super::ticket::needed()),
        }
    }
}

/// The fields of a form that this session's own page has sent.
pub(crate) struct Form(Vec<(String, String)>);

impl Form {
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str()).filter(|value| !value.is_empty())
    }
    pub(crate) fn all<'f>(&'f self, name: &'f str) -> impl Iterator<Item = &'f str> {
        self.0.iter().filter(move |(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// Reads a body without checking whose it is: for signing in.
    pub(crate) async fn read(body: Body) -> Option<Form> {
        let bytes = axum::body::to_bytes(body, FORM_BYTES).await.ok()?;
        let text = std::str::from_utf8(&bytes).ok()?;
        text.split('&').filter(|pair| !pair.is_empty()).map(pair).collect::<Option<_>>().map(Form)
    }

    /// The form, if it carries this session's form token.
    pub(crate) async fn of(visitor: &Visitor, request: Request) -> Result<Form, Response> {
        let refused = |status| guard::refused(status, &super::parts::stale_form());
        let form = Form::read(request.into_body()).await.ok_or_else(|| refused(StatusCode::BAD_REQUEST))?;
        let (sent, wanted) = (form.get("csrf").unwrap_or_default(), visitor.form_token());
        // Compared by their hashes: how long it takes says nothing about the text.
        if blake3::hash(sent.as_bytes()) == blake3::hash(wanted.as_bytes()) {
            Ok(form)
        } else {
            Err(refused(StatusCode::FORBIDDEN))
        }
    }
}

fn pair(text: &str) -> Option<(String, String)> {
    let decoded = |text: &str| {
        let spaced = text.replace('+', " ");
        let text = percent_decode_str(&spaced).decode_utf8().ok()?.replace("\r\n", "\n");
        (!text.contains('\0')).then_some(text)
    };
    let (name, value) = text.split_once('=').unwrap_or((text, ""));
    Some((decoded(name)?, decoded(value)?))
}
