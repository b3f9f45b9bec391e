//! Transport to a control plane: JSON, streamed bodies and server-sent events over a unix socket, http or https.
//! Owns no routes and never tries again on its own: what an answer means, and whether to repeat, is the caller's business.

mod sse;

pub use sse::{Event, EventParser, Events};

use bytes::Bytes;
use futures_util::Stream;
use model::refused::with_causes;
pub use reqwest::Method;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Duration;

/// A plain question is answered within this; streams have no limit in sum.
pub const ANSWER_WITHIN: Duration = Duration::from_secs(30);
const CONNECT_WITHIN: Duration = Duration::from_secs(5);
/// Shorter than a control plane keeps an idle connection (10 s), so that no request meets one that is being closed.
const IDLE_FOR: Duration = Duration::from_secs(8);
/// The largest answer that is read as a whole. Streams (downloads, events) have no limit in sum, and are never in memory as a whole.
pub const LARGEST_ANSWER: usize = 64 << 20;
/// The largest problem document. It may quote a field of the request, and a JSON body has at most 1 MiB.
const LARGEST_PROBLEM: usize = 2 << 20;
/// What is shown to a person of an answer that is not a problem document.
const SHOWN_OF_A_STRANGE_ANSWER: usize = 200;

#[derive(Clone)]
pub struct Client {
    http: reqwest::Client,
    base: String,
    root: String,
    token: Option<String>,
}

/// Why a question was not answered as asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ClientError {
    /// No answer, or the connection broke: once the request was sent, its effect is unknown.
    #[error("cannot reach the control plane: {0}")]
    Unreachable(String),
    #[error("{0}")]
    Problem(Box<Problem>),
    /// The answer is not of this protocol: another program listens there.
    #[error("unexpected answer: {0}")]
    Protocol(String),
    /// The answer exceeds a limit of this client. The rest of it was not read.
    #[error("the control plane sends too much: {0}")]
    TooMuch(String),
}

impl ClientError {
    /// The control plane does not know this runner, or one of its jobs, since its database was lost. It may again.
    pub fn is_unlisted(&self) -> bool {
        self.problem().is_some_and(|problem| problem.code == model::refused::UNLISTED)
    }

    /// What is asked for has existed and is gone for good.
    pub fn is_gone(&self) -> bool {
        self.problem().is_some_and(|problem| problem.code == model::refused::GONE)
    }

    /// Asking again brings the same answer.
    pub fn is_final(&self) -> bool {
        let refused = |problem: &Problem| problem.status < 500 && problem.status != 429;
        !self.is_unlisted() && self.problem().is_some_and(refused)
    }

    pub fn problem(&self) -> Option<&Problem> {
        match self {
            ClientError::Problem(problem) => Some(problem),
            _ => None,
        }
    }
}

/// An RFC 9457 problem document.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Problem {
    pub status: u16,
    pub code: String,
    pub title: String,
    pub detail: String,
    /// What the reader can do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fix: Option<String>,
    /// The actions that are possible instead of a refused one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub allowed: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.detail.is_empty() { &self.title } else { &self.detail })
    }
}

impl Client {
    /// `base` is `unix:/path/to.sock`, `http://host:port` or `https://host`.
    pub fn new(base: &str, token: Option<&str>) -> Result<Client, ClientError> {
        Client::trusting(base, token, None)
    }

    /// The same; `authorities` is PEM of certificates that are trusted beside those of the system.
    pub fn trusting(base: &str, token: Option<&str>, authorities: Option<&str>) -> Result<Client, ClientError> {
        let bad = |why: &str| ClientError::Protocol(format!("`{base}` is not an address of a control plane: {why}"));
        let builder = reqwest::Client::builder()
            .no_proxy()
            .http1_only()
            .tcp_nodelay(true)
            .connect_timeout(CONNECT_WITHIN)
            .pool_idle_timeout(IDLE_FOR)
            .redirect(reqwest::redirect::Policy::none())
            .tls_backend_preconfigured(tls(base.starts_with("https:"), authorities).map_err(|why| bad(&why))?);
        let (builder, root) = if let Some(path) = base.strip_prefix("unix:") {
            if !path.starts_with('/') {
                return Err(bad("a socket needs an absolute path, as in unix:/run/control.sock"));
            }
            (builder.unix_socket(std::path::PathBuf::from(path)), "http://localhost".to_owned())
        } else if base.starts_with("http://") || base.starts_with("https://") {
            (builder, base.trim_end_matches('/').to_owned())
        } else {
            return Err(bad("it begins with unix:, http:// or https://"));
        };
        reqwest::Url::parse(&root).map_err(|error| bad(&error.to_string()))?;
        // Redirects are errors (`refused`): a token goes to the address it was given for and to no other.
        let http = builder.build().map_err(|error| bad(&with_causes(&error)))?;
        Ok(Client { http, base: base.to_owned(), root, token: token.map(str::to_owned) })
    }

    /// The address as it was given.
    pub fn base(&self) -> &str {
        &self.base
    }

    /// `path` begins with `/` and is already encoded; see [`encode`] for parts of it that are not ours.
    pub fn request(&self, method: Method, path: &str) -> Request {
        let mut builder = self.http.request(method, format!("{}{path}", self.root));
        if let Some(token) = &self.token {
            builder = builder.bearer_auth(token);
        }
        Request { builder, has_query: path.contains('?'), query: String::new() }
    }

    pub async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        self.request(Method::GET, path).within(ANSWER_WITHIN).send().await?.json().await
    }

    pub async fn post<B: Serialize + ?Sized, T: DeserializeOwned>(
        &self,
        path: &str,
        body: &B,
    ) -> Result<T, ClientError> {
        self.request(Method::POST, path).json(body).within(ANSWER_WITHIN).send().await?.json().await
    }

    /// A DELETE, or any other call whose answer has no body that matters.
    pub async fn call(&self, method: Method, path: &str) -> Result<(), ClientError> {
        self.request(method, path).within(ANSWER_WITHIN).send().await.map(drop)
    }

    /// Follows server-sent events; `last_event_id` resumes behind that event.
    pub async fn events(&self, path: &str, last_event_id: Option<&str>) -> Result<Events, ClientError> {
        let mut request = self.request(Method::GET, path).header("accept", "text/event-stream");
        if let Some(id) = last_event_id {
            request = request.header("last-event-id", id);
        }
        let response = tokio::time::timeout(ANSWER_WITHIN, request.send())
            .await
            .map_err(|_| ClientError::Unreachable("no answer to a request for events".to_owned()))??;
        Ok(response.events())
    }
}

/// One question on its way.
#[must_use = "a request does nothing until it is sent"]
pub struct Request {
    builder: reqwest::RequestBuilder,
    has_query: bool,
    query: String,
}

impl Request {
    pub fn query(mut self, name: &str, value: impl ToString) -> Request {
        let joint = if self.has_query || !self.query.is_empty() { '&' } else { '?' };
        self.query.push(joint);
        self.query.push_str(&encode(name));
        self.query.push('=');
        self.query.push_str(&encode(&value.to_string()));
        self
    }
    pub fn header(mut self, name: &str, value: &str) -> Request {
        self.builder = self.builder.header(name, value);
        self
    }
    pub fn json<B: Serialize + ?Sized>(mut self, body: &B) -> Request {
        self.builder = self.builder.json(body);
        self
    }
    pub fn bytes(mut self, body: impl Into<Bytes>) -> Request {
        self.builder = self.builder.body(body.into());
        self
    }
    /// A body that is never in memory as a whole; `length` is announced when known.
    pub fn stream<S, E>(mut self, body: S, length: Option<u64>) -> Request
    where
        S: Stream<Item = Result<Bytes, E>> + Send + 'static,
        E: Into<Box<dyn std::error::Error + Send + Sync>> + 'static,
    {
        if let Some(length) = length {
            self.builder = self.builder.header("content-length", length);
        }
        self.builder = self.builder.body(reqwest::Body::wrap_stream(body));
        self
    }
    /// Limits the whole exchange, body included; without it there is none.
    pub fn within(mut self, limit: Duration) -> Request {
        self.builder = self.builder.timeout(limit);
        self
    }

    /// Any status outside 200–299 is an error.
    pub async fn send(self) -> Result<Response, ClientError> {
        let (http, request) = self.builder.build_split();
        let mut request = request.map_err(|error| ClientError::Protocol(with_causes(&error)))?;
        if !self.query.is_empty() {
            let url = format!("{}{}", request.url(), self.query);
            *request.url_mut() = reqwest::Url::parse(&url).map_err(|error| ClientError::Protocol(error.to_string()))?;
        }
        let response = http.execute(request).await.map_err(|error| ClientError::Unreachable(with_causes(&error)))?;
        if response.status().is_success() { Ok(Response { response }) } else { Err(refused(response).await) }
    }
}

/// An answer whose head has arrived and says it went well.
#[derive(Debug)]
pub struct Response {
    response: reqwest::Response,
}

impl Response {
    pub fn status(&self) -> u16 {
        self.response.status().as_u16()
    }
    pub fn header(&self, name: &str) -> Option<&str> {
        self.response.headers().get(name).and_then(|value| value.to_str().ok())
    }
    pub async fn json<T: DeserializeOwned>(self) -> Result<T, ClientError> {
        read(&self.bytes().await?)
    }
    /// The whole body, which has at most [`LARGEST_ANSWER`] bytes.
    pub async fn bytes(self) -> Result<Bytes, ClientError> {
        let mut response = self.response;
        let too_much = || ClientError::TooMuch(format!("an answer of more than {} MiB", LARGEST_ANSWER >> 20));
        if response.content_length().is_some_and(|length| length > LARGEST_ANSWER as u64) {
            return Err(too_much());
        }
        match beginning(&mut response, LARGEST_ANSWER).await {
            Ok((body, true)) => Ok(body),
            Ok((_, false)) => Err(too_much()),
            Err(error) => Err(ClientError::Unreachable(with_causes(&error))),
        }
    }
    /// The next piece of the body; `None` at its end. A body cut short is an error, never an end.
    pub async fn chunk(&mut self) -> Result<Option<Bytes>, ClientError> {
        self.response.chunk().await.map_err(|error| ClientError::Unreachable(with_causes(&error)))
    }
    pub fn events(self) -> Events {
        Events::new(self)
    }
}

/// Decodes the body of an answer.
pub fn read<T: DeserializeOwned>(body: &[u8]) -> Result<T, ClientError> {
    serde_json::from_slice(body).map_err(|error| ClientError::Protocol(format!("{error} in {}", excerpt(body))))
}

/// At most `limit` bytes of a body, and whether that is all of it. What is announced is not allocated before it arrives.
async fn beginning(response: &mut reqwest::Response, limit: usize) -> Result<(Bytes, bool), reqwest::Error> {
    let Some(first) = response.chunk().await? else { return Ok((Bytes::new(), true)) };
    let mut body = bytes::BytesMut::from(first);
    while body.len() <= limit {
        match response.chunk().await? {
            Some(piece) => body.extend_from_slice(&piece),
            None => return Ok((body.freeze(), true)),
        }
    }
    body.truncate(limit);
    Ok((body.freeze(), false))
}

/// Percent-encodes what is not plainly safe in one part of a path or query.
pub fn encode(part: &str) -> String {
    let mut encoded = String::with_capacity(part.len());
    for byte in part.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => encoded.push(byte as char),
            _ => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    encoded
}

/// The one spelling of a control plane's address, under which its token is kept: scheme and host in lower case, without a
/// default port, a slash at the end, or anything that is not part of the address.
pub fn normal(base: &str) -> Result<String, ClientError> {
    let bad = |why: &str| ClientError::Protocol(format!("`{base}` is not an address of a control plane: {why}"));
    let base = base.trim();
    if let Some(path) = base.strip_prefix("unix:") {
        return if path.starts_with('/') {
            Ok(base.to_owned())
        } else {
            Err(bad("a socket needs an absolute path, as in unix:/run/control.sock"))
        };
    }
    let begins = |scheme: &str| base.get(..scheme.len()).is_some_and(|start| start.eq_ignore_ascii_case(scheme));
    if !begins("http://") && !begins("https://") {
        return Err(bad("it begins with unix:, http:// or https://"));
    }
    let url = reqwest::Url::parse(base).map_err(|error| bad(&error.to_string()))?;
    if !url.username().is_empty() || url.password().is_some() {
        return Err(bad("leave out the name and password before the @: a token is sent instead"));
    }
    if url.query().is_some() || url.fragment().is_some() {
        return Err(bad("leave out what follows the ? or #"));
    }
    Ok(url.as_str().trim_end_matches('/').to_owned())
}

async fn refused(mut response: reqwest::Response) -> ClientError {
    let status = response.status();
    if status.is_redirection() {
        let elsewhere = response.headers().get("location").and_then(|place| place.to_str().ok()).unwrap_or("nowhere");
        let said = format!("{status}: it points to {elsewhere}, where the token is not sent");
        return ClientError::Protocol(said);
    }
    // Also within a time: a request without a limit of its own (a download) must not wait for the end of a refusal.
    let read = tokio::time::timeout(ANSWER_WITHIN, beginning(&mut response, LARGEST_PROBLEM)).await;
    let Ok(Ok((body, _))) = read else {
        return ClientError::Unreachable(format!("the connection broke in an answer {status}"));
    };
    match serde_json::from_slice::<Problem>(&body) {
        Ok(mut problem) if !problem.code.is_empty() || !problem.title.is_empty() => {
            problem.status = status.as_u16();
            ClientError::Problem(Box::new(problem))
        }
        _ => ClientError::Protocol(format!("{status}: {}", excerpt(&body))),
    }
}

fn excerpt(body: &[u8]) -> String {
    String::from_utf8_lossy(&body[..body.len().min(SHOWN_OF_A_STRANGE_ANSWER)]).into_owned()
}

/// For https: what this machine trusts (Mozilla's list on one that has none), and `authorities`. Without https nothing is loaded.
fn tls(https: bool, authorities: Option<&str>) -> Result<rustls::ClientConfig, String> {
    let mut roots = rustls::RootCertStore::empty();
    if https {
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        if roots.is_empty() {
            roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
        }
        if let Some(authorities) = authorities {
            add(&mut roots, authorities).map_err(|why| format!("the certificate of its authority: {why}"))?;
        }
    }
    Ok(rustls::ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("ring speaks TLS 1.2 and 1.3")
        .with_root_certificates(roots)
        .with_no_client_auth())
}

fn add(roots: &mut rustls::RootCertStore, authorities: &str) -> Result<(), String> {
    let before = roots.len();
    for certificate in CertificateDer::pem_slice_iter(authorities.as_bytes()) {
        let certificate = certificate.map_err(|error| error.to_string())?;
        roots.add(certificate).map_err(|error| error.to_string())?;
    }
    if roots.len() == before { Err("there is none in it (it must be PEM)".to_owned()) } else { Ok(()) }
}

#[cfg(test)]
mod tests;
