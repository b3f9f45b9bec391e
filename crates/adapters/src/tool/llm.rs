//! The tool `llm`: one turn of a chat with an OpenAI-compatible server, streamed. The model's text goes to the step's log as it comes.
//! Knows nothing of loops, budgets or policies: the caller makes a turn of them, and pays what this one says was used.

mod answer;
mod request;
mod settings;
mod trouble;

pub use settings::{LlmModel, LlmSettings, Models};

use crate::tool::connector::{Connector, Trail};
use crate::tool::exchange;
use crate::tool::mask::Mask;
use crate::tool::sse::Events;
use crate::tool::{Tool, ToolAnswer, ToolCall, ToolFailure, ToolFuture, ToolLog, ToolUsage};
use answer::Completion;
use request::{Dialect, Turn};
use reqwest::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use reqwest::{Client, Response};
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

/// Bytes of a whole answer. A model's longest answers have some hundred thousand.
const LARGEST_ANSWER: usize = 32 << 20;

pub struct LlmTool {
    connector: Arc<Connector>,
    models: Models,
    /// What the servers turned out to accept, by URL and model, so that a refused request is not repeated at each turn.
    dialects: Mutex<BTreeMap<(String, String), Dialect>>,
}

impl LlmTool {
    pub fn new(connector: Arc<Connector>, models: Models) -> LlmTool {
        LlmTool { connector, models, dialects: Mutex::new(BTreeMap::new()) }
    }

    async fn turn(&self, call: &ToolCall, log: &dyn ToolLog) -> Result<ToolAnswer, ToolFailure> {
        let turn = request::read(call, &self.models).map_err(|why| trouble::invalid_input(&why))?;
        let client = self.connector.open(&turn.url, &mut Trail::default(), turn.first_token_within).await?;
        let place = (turn.url.to_string(), turn.model.clone());
        let mut dialect = self.dialects().get(&place).copied().unwrap_or_default();
        loop {
            let body = turn.body(dialect);
            let response = self.ask(&client, &turn, call, &body).await?;
            let status = response.status().as_u16();
            if status == 200 {
                self.dialects().insert(place, dialect);
                return Reading { turn: &turn, log, asked_bytes: body.len() }.read(response).await;
            }
            let wait_ms = exchange::retry_after_ms(response.headers(), SystemTime::now());
            let text = exchange::beginning(response).await;
            // The server refused a field before it did anything: ask again in the way that it understands.
            match dialect.without_what_is_refused(status, &text, turn.wants_json()) {
                Some(simpler) => dialect = simpler,
                None => return Err(trouble::of_status(status, &text).retry_after_ms(wait_ms)),
            }
        }
    }

    async fn ask(&self, client: &Client, turn: &Turn, call: &ToolCall, body: &str) -> Result<Response, ToolFailure> {
        let mut request = client
            .post(turn.url.clone())
            .header(CONTENT_TYPE, "application/json")
            .header(ACCEPT, "text/event-stream, application/json")
            .header("idempotency-key", &call.key)
            .body(body.to_owned());
        if let Some(key) = &turn.api_key {
            let mut value = HeaderValue::from_str(&format!("Bearer {key}"))
                .map_err(|_| trouble::invalid_input("the API key is no text for a header"))?;
            value.set_sensitive(true);
            request = request.header(AUTHORIZATION, value);
        }
        match tokio::time::timeout(turn.first_token_within, exchange::send(request)).await {
            Ok(result) => result,
            Err(_) => Err(trouble::silent(turn.first_token_within)),
        }
    }

    fn dialects(&self) -> std::sync::MutexGuard<'_, BTreeMap<(String, String), Dialect>> {
        self.dialects.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Tool for LlmTool {
    fn secrets(&self, input: &Value) -> Vec<String> {
        let found = input["model"].as_str().and_then(|model| self.models.find(model).ok());
        found.and_then(|found| found.settings.api_key.clone()).into_iter().collect()
    }

    /// Servers limit each model by itself.
    fn endpoint(&self, input: &Value) -> Option<String> {
        let found = self.models.find(input["model"].as_str()?).ok()?;
        let origin = crate::tool::origin(&found.settings.base_url)?;
        Some(format!("{origin} model {}", found.model))
    }

    fn call<'a>(&'a self, call: &'a ToolCall, log: &'a dyn ToolLog) -> ToolFuture<'a> {
        Box::pin(async move {
            let mask = Mask::new(&call.secrets);
            let log = mask.log(log);
            mask.result(self.turn(call, &log).await)
        })
    }
}

/// An answer that is being read.
struct Reading<'a> {
    turn: &'a Turn,
    log: &'a dyn ToolLog,
    asked_bytes: usize,
}

impl Reading<'_> {
    async fn read(self, mut response: Response) -> Result<ToolAnswer, ToolFailure> {
        let mut answer = Completion::default();
        let ended = self.pieces(&mut response, &mut answer).await;
        let usage = self.usage(&answer);
        match ended.and_then(|()| answer.output(self.turn.wants_json())) {
            Ok(output) => Ok(ToolAnswer { output, usage: Some(usage) }),
            // What was received is paid, even if it was cut off.
            Err(failed) => Err(failed.using(Some(usage))),
        }
    }

    /// Reads to the end of the stream, or of the one JSON document that some servers send instead.
    async fn pieces(&self, response: &mut Response, answer: &mut Completion) -> Result<(), ToolFailure> {
        let (mut kind, mut events, mut document, mut size) = (None, Events::default(), Vec::new(), 0);
        let mut within = self.turn.first_token_within;
        while !answer.is_done() {
            let piece = match self.next(response, within).await {
                Ok(Some(piece)) => piece,
                Ok(None) => break,
                // The server said how the answer ended, and then closed the connection rudely.
                Err(_) if answer.is_finished() => return Ok(()),
                Err(failed) => return Err(failed),
            };
            within = self.turn.silent_for;
            size += piece.len();
            if size > LARGEST_ANSWER {
                return Err(trouble::not_a_model(&format!("an answer of more than {LARGEST_ANSWER} bytes")));
            }
            match *kind.get_or_insert_with(|| Kind::of(&piece)) {
                Kind::Events => {
                    for data in events.feed(&piece).map_err(|_| trouble::not_a_model("an event that does not end"))? {
                        self.event(&data, answer)?;
                    }
                }
                Kind::Document => document.extend_from_slice(&piece),
            }
        }
        match kind {
            Some(Kind::Document) => self.document(&document, answer),
            _ => events.finish().map_or(Ok(()), |data| self.event(&data, answer)),
        }
    }

    async fn next(&self, response: &mut Response, within: Duration) -> Result<Option<Vec<u8>>, ToolFailure> {
        match tokio::time::timeout(within, response.chunk()).await {
            Ok(Ok(piece)) => Ok(piece.map(Into::into)),
            Ok(Err(error)) => Err(exchange::broken(&error)),
            Err(_) => Err(trouble::silent(within)),
        }
    }

    fn event(&self, data: &str, answer: &mut Completion) -> Result<(), ToolFailure> {
        if data.trim() == "[DONE]" {
            answer.done();
            return Ok(());
        }
        let chunk: Value = serde_json::from_str(data).map_err(|error| {
            trouble::not_a_model(&format!("an event that is no JSON ({error}): {}", exchange::shown(data)))
        })?;
        self.take(&chunk, answer)
    }

    fn document(&self, document: &[u8], answer: &mut Completion) -> Result<(), ToolFailure> {
        let text = String::from_utf8_lossy(document);
        match serde_json::from_str(&text) {
            Ok(whole) => {
                self.take(&whole, answer)?;
                answer.done();
                Ok(())
            }
            // A document that begins as JSON and does not end was cut off.
            Err(error) if error.is_eof() && !text.trim().is_empty() => Err(trouble::cut()),
            Err(_) => Err(trouble::not_a_model(exchange::shown(&text))),
        }
    }

    fn take(&self, chunk: &Value, answer: &mut Completion) -> Result<(), ToolFailure> {
        if let Some(error) = chunk.get("error").filter(|error| !error.is_null()) {
            return Err(trouble::in_stream(error));
        }
        let said = answer.take(chunk);
        if !said.is_empty() {
            self.log.write(said.as_bytes());
        }
        Ok(())
    }

    fn usage(&self, answer: &Completion) -> ToolUsage {
        let of = self.turn.price_name.clone();
        match answer.usage() {
            Some((input_tokens, output_tokens)) => ToolUsage { of, input_tokens, output_tokens, estimated: false },
            None => ToolUsage {
                of,
                input_tokens: tokens(self.asked_bytes),
                output_tokens: tokens(answer.bytes()),
                estimated: true,
            },
        }
    }
}

#[derive(Clone, Copy)]
enum Kind {
    Events,
    Document,
}

impl Kind {
    /// By what is sent, whatever the headers say: some servers call one JSON document an event stream, and the other way round.
    fn of(first: &[u8]) -> Kind {
        let text = String::from_utf8_lossy(first);
        match text.trim_start_matches('\u{feff}').trim_start().chars().next() {
            Some('{' | '[' | '<') => Kind::Document,
            _ => Kind::Events,
        }
    }
}

/// Four bytes are about one token.
fn tokens(bytes: usize) -> i64 {
    bytes.div_ceil(4) as i64
}
