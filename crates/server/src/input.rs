//! Everything that comes in with a request, decoded: path, query, body. What cannot be read is refused here with a problem document
//! that names the field, so that no handler meets a NUL, an unknown field or a half-decoded name.

use crate::Shared;
use crate::exact::Exact;
use crate::problem::Problem;
use crate::routes::RequestId;
use crate::unique::{self, Unread};
use axum::body::{Body, BodyDataStream};
use axum::extract::{FromRequest, FromRequestParts, MatchedPath, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, Uri, header};
use engine::Key;
use model::{OrgId, Refused};
use percent_encoding::percent_decode_str;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::time::Duration;
use tokio_stream::StreamExt as _;

/// Bodies other than blobs.
pub const BODY_BYTES: usize = 1024 * 1024;
/// A submission, whose plan may have 100,000 steps.
const PLAN_BYTES: usize = plan::MAX_DOCUMENT_BYTES + BODY_BYTES;
const SUBMISSIONS: &str = "POST /api/v1/runs";
const CALLS: &str = "POST /api/v1/calls";
/// The end of a step, whose output may become an artifact of 8 MiB.
pub const COMPLETION_BYTES: usize = (8 << 20) + BODY_BYTES;
const COMPLETIONS: &str = "POST /api/v1/runs/{id}/steps/{step}/complete";
/// A runner's batch of log frames and facts, base64 included.
const REPORT_BYTES: usize = 8 * 1024 * 1024;
/// What is read and dropped of a body that is too large, so that its sender hears why.
const DRAINED_BYTES: usize = 16 * 1024 * 1024;
/// A body that is decoded as a whole is here within this time; any body sends something at least this often.
const BODY_WITHIN: Duration = Duration::from_secs(60);
pub(crate) const PIECE_WITHIN: Duration = Duration::from_secs(30);
/// The runner's protocol ignores what it does not know, so that runners and control planes of different versions work together.
const RUNNERS: &str = "/runner/";

/// Refuses an address that is not UTF-8 once decoded, or has a NUL in it.
pub(crate) fn check_address(uri: &Uri) -> Result<(), Problem> {
    for (what, text) in [("path", uri.path()), ("query", uri.query().unwrap_or_default())] {
        let decoded = percent_decode_str(text).decode_utf8();
        let decoded = decoded.map_err(|_| Problem::from(Refused::invalid(what, "is not UTF-8 when it is decoded")))?;
        if decoded.contains('\0') {
            return Err(Refused::invalid(what, "has a NUL character (%00) in it").into());
        }
    }
    Ok(())
}

/// Refuses parameters that the route does not have.
pub(crate) fn check_query(uri: &Uri, known: &[String]) -> Result<(), Problem> {
    for pair in uri.query().unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
        let name = pair.split_once('=').map_or(pair, |(name, _)| name).replace('+', " ");
        let name = percent_decode_str(&name).decode_utf8_lossy();
        if !known.iter().any(|known| *known == name) {
            return Err(unknown("query parameter", &name, known.iter().map(String::as_str)));
        }
    }
    Ok(())
}

/// Parts of the path, decoded.
pub(crate) struct Path<T>(pub(crate) T);

impl<T: DeserializeOwned + Send> FromRequestParts<Shared> for Path<T> {
    type Rejection = Problem;
    async fn from_request_parts(parts: &mut Parts, state: &Shared) -> Result<Self, Problem> {
        let read = axum::extract::Path::<T>::from_request_parts(parts, state).await;
        let bad = |rejection: axum::extract::rejection::PathRejection| Refused::invalid("path", rejection.body_text());
        Ok(Path(read.map_err(bad)?.0))
    }
}

/// The query, decoded. Which parameters there are is checked before, against the description of the route.
pub(crate) struct Query<T>(pub(crate) T);

impl<T: DeserializeOwned> FromRequestParts<Shared> for Query<T> {
    type Rejection = Problem;
    async fn from_request_parts(parts: &mut Parts, _: &Shared) -> Result<Self, Problem> {
        let read = axum::extract::Query::<T>::try_from_uri(&parts.uri);
        read.map(|query| Query(query.0)).map_err(|rejection| {
            let text = rejection.body_text();
            let why = text.strip_prefix("Failed to deserialize query string: ").unwrap_or(&text);
            let (field, why) = why.split_once(": ").unwrap_or(("query", why));
            Refused::invalid(field, why).into()
        })
    }
}

/// The header by which a stream is resumed, if it is sent: `read` says what is in it, or that it cannot be read.
pub(crate) fn last_event_id<T>(
    headers: &HeaderMap,
    shape: &str,
    read: impl Fn(&str) -> Option<T>,
) -> Result<Option<T>, Problem> {
    let bad = || Problem::from(Refused::invalid("Last-Event-ID", format!("must be {shape}")));
    let Some(value) = headers.get("last-event-id") else { return Ok(None) };
    let text = value.to_str().map_err(|_| bad())?.trim();
    if text.is_empty() { Ok(None) } else { read(text).map(Some).ok_or_else(bad) }
}

/// How the routes of keys begin that belong to actions of web pages; those of the API begin with a method.
pub(crate) const OF_PAGES: &str = "page ";

/// A decoded JSON body, and what is needed to recognise the request when it comes again. An empty body is `{}`.
pub(crate) struct Asked<T> {
    pub(crate) value: T,
    route: String,
    hash: [u8; 32],
    key: Option<String>,
    request: String,
}

/// The body of a request that says all there is to say by its path.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Nothing {}

impl<T> Asked<T> {
    /// A request that did not come as JSON: an action of a web page, done once under this key.
    pub(crate) fn made(value: T, action: &str, subject: &str, key: String, request: String) -> Asked<T> {
        let hash = *blake3::hash(subject.as_bytes()).as_bytes();
        Asked { value, route: format!("{OF_PAGES}{action}"), hash, key: Some(key), request }
    }

    pub(crate) fn key(&self, org: OrgId) -> Option<Key> {
        let (route, hash, request) = (self.route.clone(), self.hash, self.request.clone());
        self.key.as_ref().map(|key| Key { org, route, key: key.clone(), hash, request })
    }
}

impl<T: DeserializeOwned> FromRequest<Shared> for Asked<T> {
    type Rejection = Problem;
    async fn from_request(request: Request, _: &Shared) -> Result<Self, Problem> {
        let matched =
            request.extensions().get::<MatchedPath>().map_or_else(String::new, |path| path.as_str().to_owned());
        let route = format!("{} {matched}", request.method());
        let place = request.uri().path_and_query().map_or_else(String::new, ToString::to_string);
        let (key, of_runner) = (key_of(&request)?, matched.starts_with(RUNNERS));
        let kind = request.headers().get(header::CONTENT_TYPE).cloned();
        let id = request.extensions().get::<RequestId>().map_or_else(String::new, |id| id.0.clone());
        let limit = match route.as_str() {
            _ if of_runner => REPORT_BYTES,
            SUBMISSIONS => PLAN_BYTES,
            COMPLETIONS => COMPLETION_BYTES,
            _ => BODY_BYTES,
        };
        let bytes = bytes_of(request, limit).await?;
        if let Some(kind) = kind.filter(|_| !bytes.is_empty()) {
            is_json(&kind)?;
        }
        if matches!(route.as_str(), SUBMISSIONS | CALLS) {
            check_integers(&bytes)?;
        }
        let (value, canonical) = decode(&bytes, of_runner)?;
        let mut hasher = blake3::Hasher::new();
        hasher.update(place.as_bytes());
        hasher.update(&[0]);
        hasher.update(canonical.as_bytes());
        Ok(Asked { value, route, hash: *hasher.finalize().as_bytes(), key, request: id })
    }
}

/// An input of a call is another value, and has another key, once an integer in it was rounded.
fn check_integers(body: &[u8]) -> Result<(), Problem> {
    let text = std::str::from_utf8(body).unwrap_or_default();
    let Some(number) = engine::call::rounded(text) else { return Ok(()) };
    let why = format!(
        "the integer {number} does not fit into 64 bits, and would be rounded: write it as a string, or as a float"
    );
    Err(Refused::invalid("body", why).into())
}

fn key_of(request: &Request) -> Result<Option<String>, Problem> {
    let Some(value) = request.headers().get("idempotency-key") else { return Ok(None) };
    let bad = || Refused::invalid("Idempotency-Key", "must be 1 to 255 printable ASCII characters");
    let text = value.to_str().map_err(|_| bad())?;
    if text.is_empty() || text.len() > 255 || !text.bytes().all(|b| (0x20..0x7f).contains(&b)) {
        return Err(bad().into());
    }
    Ok(Some(text.to_owned()))
}

/// `application/json` with any parameters, and `+json` types.
fn is_json(kind: &axum::http::HeaderValue) -> Result<(), Problem> {
    let text = kind.to_str().unwrap_or_default();
    let kind = text.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    if kind == "application/json" || (kind.starts_with("application/") && kind.ends_with("+json")) {
        return Ok(());
    }
    let detail = format!("the body's content type is `{text}`, and only JSON is read here");
    Err(Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type", detail)
        .fix("send it with content-type application/json (curl --json)"))
}

/// A body whose next piece did not come in time.
#[derive(Debug, thiserror::Error)]
#[error("nothing came for too long")]
struct Stalled;

/// A body that ends with an error when its sender stops sending.
pub(crate) fn steady(body: Body, within: Duration) -> Body {
    let pieces = body.into_data_stream().timeout(within);
    Body::from_stream(pieces.map(|piece| piece.map_err(|_| axum::Error::new(Stalled)).flatten()))
}

/// A body that is stored while it arrives, and the length that its sender announced.
pub(crate) struct Pieces {
    announced: Option<u64>,
    body: Body,
}

impl FromRequest<Shared> for Pieces {
    type Rejection = Problem;
    async fn from_request(request: Request, _: &Shared) -> Result<Self, Problem> {
        Ok(Pieces { announced: announced(request.headers()), body: request.into_body() })
    }
}

impl Pieces {
    /// Refused before the first byte is stored if its sender announces more. The reader of the pieces still has to count them.
    pub(crate) fn of_at_most(self, limit: i64) -> Result<BodyDataStream, Refused> {
        if self.announced.is_some_and(|length| length > limit as u64) {
            return Err(Refused::TooLarge { what: "the upload", limit: format!("{limit} bytes") });
        }
        Ok(self.body.into_data_stream())
    }
}

fn announced<T: std::str::FromStr>(headers: &HeaderMap) -> Option<T> {
    headers.get(header::CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// A body that is too large is still read to its end, up to a bound: a client that is still sending would not see the answer.
async fn bytes_of(request: Request, limit: usize) -> Result<Vec<u8>, Problem> {
    let announced: Option<usize> = announced(request.headers());
    let body = read_body(request.into_body(), announced, limit);
    let (bytes, length) = tokio::time::timeout(BODY_WITHIN, body).await.map_err(|_| too_slow())??;
    if length > limit || announced.is_some_and(|length| length > limit) {
        let detail = format!("the body is larger than {} KiB", limit / 1024);
        return Err(Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", detail)
            .fix("send files as blobs: PUT /api/v1/blobs/{hash}"));
    }
    Ok(bytes)
}

async fn read_body(body: Body, announced: Option<usize>, limit: usize) -> Result<(Vec<u8>, usize), Problem> {
    let (mut bytes, mut length) = (Vec::new(), 0);
    let mut pieces = body.into_data_stream();
    while announced.is_none_or(|length| length <= DRAINED_BYTES) && length <= DRAINED_BYTES {
        let Some(piece) = pieces.next().await else { break };
        let piece = piece.map_err(|error| {
            if is_stalled(&error) {
                return too_slow();
            }
            Problem::new(StatusCode::BAD_REQUEST, "invalid_body", format!("the body ended early: {error}"))
        })?;
        length += piece.len();
        if length <= limit {
            bytes.extend_from_slice(&piece);
        }
    }
    Ok((bytes, length))
}

fn is_stalled(error: &(dyn std::error::Error + 'static)) -> bool {
    error.is::<Stalled>() || error.source().is_some_and(is_stalled)
}

fn too_slow() -> Problem {
    Problem::new(StatusCode::REQUEST_TIMEOUT, "too_slow", "the body did not arrive in time").fix(format!(
        "send a body within {} s, and some of it every {} s",
        BODY_WITHIN.as_secs(),
        PIECE_WITHIN.as_secs()
    ))
}

/// The value, and the same JSON with sorted keys and no spaces: two spellings of one request are one request.
fn decode<T: DeserializeOwned>(bytes: &[u8], of_runner: bool) -> Result<(T, String), Problem> {
    let text: &[u8] = if bytes.is_empty() { b"{}" } else { bytes };
    let bad = |detail: String| {
        Problem::new(StatusCode::BAD_REQUEST, "invalid_body", format!("the body cannot be read: {detail}"))
            .fix("send a JSON object with content-type application/json")
    };
    let mut value = unique::parse(text).map_err(|unread| match unread {
        Unread::Json(error) => bad(error.to_string()),
        Unread::Twice(path) => {
            let detail = format!("{path}: this key is there twice");
            Problem::new(StatusCode::BAD_REQUEST, "invalid", detail).fix("leave one of them out")
        }
    })?;
    if !value.is_object() {
        return Err(bad("it is not a JSON object".into()));
    }
    match nul_in(&value) {
        // A report must not be repeated for ever because of a character that a job's error text had in it.
        Some(_) if of_runner => without_nul(&mut value),
        Some(field) => return Err(Refused::invalid(field, "has a NUL character in it").into()),
        None => {}
    }
    let canonical = value.to_string();
    if of_runner {
        let read = serde_json::from_value(value).map_err(|error| bad(error.to_string()))?;
        return Ok((read, canonical));
    }
    match serde_path_to_error::deserialize(Exact(value)) {
        Ok(value) => Ok((value, canonical)),
        Err(error) => Err(misread(&error.path().to_string(), &error.inner().to_string())),
    }
}

/// serde names an unknown field and the known ones; a person wants the nearest.
fn misread(path: &str, said: &str) -> Problem {
    let mut quoted = said.split('`').skip(1).step_by(2);
    match (said.strip_prefix("unknown field"), quoted.next()) {
        (Some(_), Some(_)) => unknown("field", path, quoted),
        _ if path == "." => {
            Problem::new(StatusCode::BAD_REQUEST, "invalid_body", format!("the body cannot be read: {said}"))
        }
        _ => Refused::invalid(path, said).into(),
    }
}

fn unknown<'a>(what: &str, name: &str, known: impl Iterator<Item = &'a str>) -> Problem {
    let (last, known) = (name.rsplit('.').next().unwrap_or(name), known.collect::<Vec<_>>());
    let fix = match known.as_slice() {
        [] => "leave it out: there are none here".to_owned(),
        known => plan::nearest::suggestion(last, known),
    };
    Problem::new(StatusCode::BAD_REQUEST, "invalid", format!("{name}: there is no such {what}")).fix(fix)
}

/// Where the first NUL is, in a value or in a name.
fn nul_in(value: &Value) -> Option<String> {
    fn find(value: &Value, path: &str) -> Option<String> {
        let at = |part: &str| if path.is_empty() { part.to_owned() } else { format!("{path}.{part}") };
        match value {
            Value::String(text) => text.contains('\0').then(|| path.to_owned()),
            Value::Array(all) => all.iter().enumerate().find_map(|(n, one)| find(one, &at(&n.to_string()))),
            Value::Object(all) => all.iter().find_map(|(name, one)| {
                if name.contains('\0') { Some(at(&name.replace('\0', "\u{fffd}"))) } else { find(one, &at(name)) }
            }),
            _ => None,
        }
    }
    find(value, "")
}

fn without_nul(value: &mut Value) {
    match value {
        Value::String(text) => *text = text.replace('\0', "\u{fffd}"),
        Value::Array(all) => all.iter_mut().for_each(without_nul),
        Value::Object(all) => {
            all.retain(|name, _| !name.contains('\0'));
            all.values_mut().for_each(without_nul);
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_nul_is_found_wherever_it_is() {
        let table = [
            (json!({ "name": "a\0" }), Some("name")),
            (json!({ "env": { "A": "x", "B": "\0" } }), Some("env.B")),
            (json!({ "env": { "A\0": "x" } }), Some("env.A\u{fffd}")),
            (json!({ "argv": ["a", "b\0c"] }), Some("argv.1")),
            (json!({ "argv": ["a"], "n": 0, "t": true, "x": null }), None),
        ];
        for (value, found) in table {
            assert_eq!(nul_in(&value).as_deref(), found, "{value}");
            let mut cleaned = value.clone();
            without_nul(&mut cleaned);
            assert_eq!(nul_in(&cleaned), None, "{cleaned}");
        }
    }

    #[test]
    fn addresses_are_utf8_without_nul() {
        for (uri, good) in [
            ("/a/b?x=%C3%A4", true),
            ("/a%00b", false),
            ("/a?x=%00", false),
            ("/a?%00=x", false),
            ("/%FF", false),
            ("/a?x=%C3", false),
            ("/a?x=%zz", true),
        ] {
            assert_eq!(check_address(&uri.parse().unwrap()).is_ok(), good, "{uri}");
        }
    }

    #[test]
    fn what_is_sent_as_json_says_so() {
        for (kind, good) in [
            ("application/json", true),
            ("Application/JSON; charset=utf-8", true),
            ("application/merge-patch+json", true),
            ("text/plain", false),
            ("application/x-www-form-urlencoded", false),
            ("", false),
        ] {
            assert_eq!(is_json(&axum::http::HeaderValue::from_static(kind)).is_ok(), good, "{kind}");
        }
    }
}
