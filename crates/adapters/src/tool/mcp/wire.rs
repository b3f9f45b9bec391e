//! Carries the messages of one MCP session over HTTP: by a client that reaches judged addresses only, with bounded answers, and with a
//! memory of what was sent and what went wrong, since the protocol layer above knows errors as texts only.

use crate::tool::{ToolFailure, exchange};
use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use model::Effect;
use model::recovery::ErrorClass;
use reqwest::Response;
use reqwest::header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use rmcp::model::{ClientJsonRpcMessage, ClientRequest, ErrorData, JsonRpcMessage, ServerJsonRpcMessage};
use rmcp::transport::streamable_http_client::{
    SseError, StreamableHttpClient, StreamableHttpError, StreamableHttpPostResponse,
};
use sse_stream::{Sse, SseStream};
use std::collections::HashMap;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};
use tokio::sync::watch;

/// Bytes of one answer, be it a document or a stream.
const LARGEST_ANSWER: usize = 8 << 20;
const SESSION: &str = "mcp-session-id";
/// For the message that ends a session. The step has its answer by then.
const GOODBYE_WITHIN: Duration = Duration::from_secs(2);

#[derive(Clone)]
pub struct Wire {
    client: reqwest::Client,
    headers: HeaderMap,
    notes: Arc<Mutex<Notes>>,
    /// Closed when the [`Caller`] is gone.
    caller: watch::Receiver<()>,
}

/// Held by the call. The layer above works in tasks of its own, which a dropped call does not end: dropping this does, by ending every
/// request under way.
pub struct Caller(#[expect(dead_code, reason = "its drop is the message")] watch::Sender<()>);

#[derive(Default)]
struct Notes {
    /// The call of the tool was handed to the HTTP client.
    called: bool,
    /// The first thing that went wrong.
    failed: Option<ToolFailure>,
}

/// For the layer above, which shows it and does not look into it.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Broken(String);

type Failed = StreamableHttpError<Broken>;

impl Wire {
    pub fn new(client: reqwest::Client, headers: HeaderMap) -> (Wire, Caller) {
        let (sender, caller) = watch::channel(());
        (Wire { client, headers, notes: Arc::default(), caller }, Caller(sender))
    }

    /// Returns when the call was dropped or has its answer.
    fn caller_gone(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut caller = self.caller.clone();
        async move { while caller.changed().await.is_ok() {} }
    }

    /// What a failure is, by what was seen here. Before the tool was called nothing can have happened.
    pub fn explain(&self, failed: ToolFailure) -> ToolFailure {
        let mut notes = self.notes();
        let answered = failed.failure.effect == Effect::Done;
        let mut failed = notes.failed.take().filter(|_| !answered).unwrap_or(failed);
        if !notes.called {
            failed.failure.effect = Effect::None;
        }
        failed
    }

    fn notes(&self) -> MutexGuard<'_, Notes> {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn failed(&self, failed: ToolFailure) -> Failed {
        let message = failed.failure.error.message.clone();
        self.notes().failed.get_or_insert(failed);
        StreamableHttpError::Client(Broken(message))
    }

    fn headers(&self, session: Option<&str>, protocol: HashMap<HeaderName, HeaderValue>) -> HeaderMap {
        let mut headers = self.headers.clone();
        headers.extend(protocol);
        if let Some(session) = session.and_then(|session| HeaderValue::from_str(session).ok()) {
            headers.insert(SESSION, session);
        }
        headers
    }

    async fn answer(
        &self,
        message: &ClientJsonRpcMessage,
        in_session: bool,
        response: Response,
    ) -> Result<StreamableHttpPostResponse, Failed> {
        let status = response.status().as_u16();
        if let Some((class, effect, code)) = exchange::failed_status(status) {
            let wait_ms = exchange::retry_after_ms(response.headers(), SystemTime::now());
            let text = exchange::beginning(response).await;
            if let Some(answer) = older_server(message, status, &text) {
                return Ok(answer);
            }
            if let Ok(error @ JsonRpcMessage::Error(_)) = serde_json::from_str::<ServerJsonRpcMessage>(&text)
                && matches!(status, 400 | 404 | 422)
            {
                return Ok(StreamableHttpPostResponse::Json(error, None));
            }
            let what = format!("HTTP {status}: {}", exchange::shown(&text));
            if status == 404 && in_session {
                // The server forgot the session, and looked at nothing else. The next try begins a new one.
                return Err(self.failed(ToolFailure::new(
                    ErrorClass::Transient,
                    Effect::None,
                    "session_expired",
                    what,
                )));
            }
            return Err(self.failed(ToolFailure::new(class, effect, code, what).retry_after_ms(wait_ms)));
        }
        let header = |name: &str| response.headers().get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
        let (session, kind) = (header(SESSION), header(CONTENT_TYPE.as_str()).unwrap_or_default());
        if matches!(status, 202 | 204) || !matches!(message, JsonRpcMessage::Request(_)) {
            return Ok(StreamableHttpPostResponse::Accepted);
        }
        if kind.starts_with("text/event-stream") {
            return Ok(StreamableHttpPostResponse::Sse(self.events(response), session));
        }
        let body = exchange::body(response, LARGEST_ANSWER).await.map_err(|failed| self.failed(failed))?;
        let Some(body) = body else { return Err(self.failed(too_large())) };
        match serde_json::from_slice(&body) {
            Ok(message) => Ok(StreamableHttpPostResponse::Json(message, session)),
            Err(error) => {
                let text = String::from_utf8_lossy(&body);
                let what = format!("the answer is no message of MCP: {error}: {}", exchange::shown(&text));
                Err(self.failed(ToolFailure::new(ErrorClass::InvalidOutput, Effect::Done, "invalid_output", what)))
            }
        }
    }

    /// The events of an answer. The stream ends after [`LARGEST_ANSWER`] bytes.
    fn events(&self, response: Response) -> BoxStream<'static, Result<Sse, SseError>> {
        let (wire, mut received) = (self.clone(), 0);
        let bytes = response.bytes_stream().map(move |piece| {
            let piece = piece.map_err(|error| wire.failed(exchange::broken(&error)));
            let piece = piece.map_err(|error| std::io::Error::other(error.to_string()))?;
            received += piece.len();
            if received > LARGEST_ANSWER {
                return Err(std::io::Error::other(wire.failed(too_large()).to_string()));
            }
            Ok(piece)
        });
        SseStream::from_bytes_stream(bytes).take_until(Box::pin(self.caller_gone())).boxed()
    }
}

impl StreamableHttpClient for Wire {
    type Error = Broken;

    async fn post_message(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session_id: Option<Arc<str>>,
        _auth_header: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<StreamableHttpPostResponse, Failed> {
        let body = serde_json::to_vec(&message)?;
        if matches!(&message, JsonRpcMessage::Request(request) if matches!(request.request, ClientRequest::CallToolRequest(_)))
        {
            self.notes().called = true;
        }
        let request = self
            .client
            .post(uri.as_ref())
            .headers(self.headers(session_id.as_deref(), custom_headers))
            .header(CONTENT_TYPE, "application/json")
            .header(ACCEPT, "application/json, text/event-stream")
            .body(body);
        let exchanged = async {
            let response = exchange::send(request).await.map_err(|failed| self.failed(failed))?;
            self.answer(&message, session_id.is_some(), response).await
        };
        tokio::select! {
            answer = exchanged => answer,
            () = self.caller_gone() => Err(StreamableHttpError::TransportChannelClosed),
        }
    }

    async fn delete_session(
        &self,
        uri: Arc<str>,
        session_id: Arc<str>,
        _auth_header: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<(), Failed> {
        let headers = self.headers(Some(&session_id), custom_headers);
        let request = self.client.delete(uri.as_ref()).headers(headers).timeout(GOODBYE_WITHIN);
        // The server forgets idle sessions by itself.
        let _ = exchange::send(request).await;
        Ok(())
    }

    /// Messages that the server sends by itself, and the rest of an answer that was cut: a step needs neither.
    async fn get_stream(
        &self,
        _uri: Arc<str>,
        _session_id: Option<Arc<str>>,
        _last_event_id: Option<String>,
        _auth_header: Option<String>,
        _custom_headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<BoxStream<'static, Result<Sse, SseError>>, Failed> {
        Err(StreamableHttpError::ServerDoesNotSupportSse)
    }
}

/// A server that does not know the newest way to begin a session may refuse it with a status instead of an error of JSON-RPC, or
/// without the id of the request. Told in the protocol's own words, the layer above begins in the older way.
fn older_server(message: &ClientJsonRpcMessage, status: u16, text: &str) -> Option<StreamableHttpPostResponse> {
    let JsonRpcMessage::Request(request) = message else { return None };
    if !matches!(request.request, ClientRequest::DiscoverRequest(_)) || !matches!(status, 400 | 404 | 405 | 406 | 422) {
        return None;
    }
    let error = match serde_json::from_str::<ServerJsonRpcMessage>(text) {
        Ok(JsonRpcMessage::Error(error)) => error.error,
        _ => ErrorData::invalid_request(format!("HTTP {status}"), None),
    };
    Some(StreamableHttpPostResponse::Json(ServerJsonRpcMessage::error(error, Some(request.id.clone())), None))
}

fn too_large() -> ToolFailure {
    let message = format!("the answer has more than {LARGEST_ANSWER} bytes");
    ToolFailure::new(ErrorClass::Permanent, Effect::Done, "too_large", message)
}
