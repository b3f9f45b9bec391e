//! A scripted server of models, spoken to as OpenAI's is. A conversation is named by the first word of its prompt; its turns are counted
//! by the messages of the model in it, so the server needs no memory to know where a conversation stands. It writes every request down.

use crate::listener::{self, Listener, Request};
use crate::process::HANGS_AFTER_MS;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::Write as _;
use std::net::TcpStream;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

/// What is answered to one request.
#[derive(Debug, Clone)]
pub enum Reply {
    /// Streamed in pieces, with usage at the end.
    Text(&'static str),
    Json(Value),
    /// Calls of tools, each a name and the text of its arguments, cut into fragments.
    Calls(Vec<(&'static str, String)>),
    /// The same, and nothing is said of what it used.
    WithoutUsage(Box<Reply>),
    /// With this usage, whatever it says.
    Using(i64, i64, Box<Reply>),
    /// `429` with this `Retry-After`.
    RateLimited(&'static str),
    /// `529`, as overloaded servers say it.
    Overloaded,
    Status(u16, &'static str),
    Html,
    /// The stream ends in the middle of the answer.
    CutOff,
    /// An event that is no JSON.
    Garbled,
    /// Nothing comes, as long as the other side waits.
    Hang,
    /// Comes when the test lets this conversation through.
    Held(Box<Reply>),
}

/// One request, as the server understood it.
#[derive(Debug, Clone)]
pub struct Asked {
    pub conversation: String,
    /// The first is 1.
    pub turn: usize,
    pub headers: BTreeMap<String, String>,
    /// What its user said behind the prompt.
    pub said: Vec<String>,
}

/// For each conversation its turns, for each turn what its tries are answered. The last one is said again and again.
pub type Script = BTreeMap<String, Vec<Vec<Reply>>>;

pub struct ModelServer {
    listener: Listener,
    talk: Arc<Talk>,
}

struct Talk {
    script: Script,
    asked: Mutex<(Vec<Asked>, Vec<String>)>,
    changed: Condvar,
}

impl ModelServer {
    pub fn start(script: Script) -> ModelServer {
        let talk = Arc::new(Talk { script, asked: Mutex::default(), changed: Condvar::new() });
        let talks = talk.clone();
        let listener = Listener::start(move |request, stream| talks.answer(&request, stream));
        ModelServer { listener, talk }
    }

    /// `base_url` of the settings.
    pub fn url(&self) -> String {
        format!("{}/v1", self.listener.url())
    }

    pub fn asked(&self) -> Vec<Asked> {
        self.talk.asked.lock().unwrap().0.clone()
    }

    /// How often this turn was asked for.
    pub fn count(&self, conversation: &str, turn: usize) -> usize {
        self.asked().iter().filter(|asked| asked.conversation == conversation && asked.turn == turn).count()
    }

    /// Waits until this turn has been asked for so often.
    #[track_caller]
    pub fn hears(&self, conversation: &str, turn: usize, times: usize) {
        let limit = Duration::from_millis(HANGS_AFTER_MS.into());
        let heard = |asked: &[Asked]| {
            asked.iter().filter(|asked| asked.conversation == conversation && asked.turn == turn).count() >= times
        };
        let asked = self.talk.asked.lock().unwrap();
        let (asked, _) = self.talk.changed.wait_timeout_while(asked, limit, |asked| !heard(&asked.0)).unwrap();
        assert!(heard(&asked.0), "turn {turn} of {conversation} is not asked for {times} times");
    }

    /// What is held in this conversation is answered, now and later.
    pub fn release(&self, conversation: &str) {
        self.talk.asked.lock().unwrap().1.push(conversation.to_owned());
        self.talk.changed.notify_all();
    }
}

impl Talk {
    fn answer(&self, request: &Request, stream: &mut TcpStream) {
        let body: Value = serde_json::from_str(&request.body).unwrap_or_default();
        let messages = body["messages"].as_array().cloned().unwrap_or_default();
        let by = |role: &str| messages.iter().filter(|message| message["role"] == role).count();
        let prompt = messages.iter().find(|message| message["role"] == "user");
        let prompt = prompt.and_then(|message| message["content"].as_str()).unwrap_or_default();
        let conversation = prompt.split_whitespace().next().unwrap_or_default().to_owned();
        let turn = by("assistant") + 1;
        let users = messages.iter().filter(|message| message["role"] == "user").skip(1);
        let said = users.filter_map(|message| message["content"].as_str()).map(str::to_owned).collect();
        let asked = Asked { conversation: conversation.clone(), turn, headers: request.headers.clone(), said };
        let tries = {
            let mut book = self.asked.lock().unwrap();
            book.0.push(asked);
            self.changed.notify_all();
            book.0.iter().filter(|asked| asked.conversation == conversation && asked.turn == turn).count()
        };
        let turns = self.script.get(&conversation);
        match turns.and_then(|turns| turns.get(turn - 1)) {
            Some(replies) => self.say(&conversation, &replies[(tries - 1).min(replies.len() - 1)], stream),
            None => listener::answer(stream, 400, &[], &format!("no turn {turn} of `{conversation}` is in the script")),
        }
    }

    fn say(&self, conversation: &str, reply: &Reply, stream: &mut TcpStream) {
        match reply {
            Reply::RateLimited(seconds) => {
                listener::answer(
                    stream,
                    429,
                    &[("retry-after", (*seconds).to_owned())],
                    "{\"error\":{\"message\":\"slow down\"}}",
                );
            }
            Reply::Overloaded => listener::answer(stream, 529, &[], "{\"error\":{\"type\":\"overloaded_error\"}}"),
            Reply::Status(status, text) => listener::answer(stream, *status, &[], text),
            Reply::Html => {
                let headers = [("content-type", "text/html".to_owned())];
                listener::answer(stream, 200, &headers, "<!doctype html><html><body>Welcome to nginx!</body></html>");
            }
            Reply::CutOff => {
                stream_of(stream, &[chunk(&json!({ "content": "half of an ans" }), None)]);
                listener::cut(stream);
            }
            Reply::Garbled => stream_of(stream, &["{\"choices\": [{\"delta\"".to_owned()]),
            Reply::Hang => listener::hang(stream),
            Reply::Held(reply) => {
                let limit = Duration::from_millis(HANGS_AFTER_MS.into());
                let book = self.asked.lock().unwrap();
                let held = |book: &(Vec<Asked>, Vec<String>)| !book.1.iter().any(|name| name == conversation);
                drop(self.changed.wait_timeout_while(book, limit, |book| held(book)).unwrap());
                self.say(conversation, reply, stream);
            }
            Reply::WithoutUsage(reply) => stream_of(stream, &pieces(reply, None)),
            Reply::Using(input, output, reply) => stream_of(stream, &pieces(reply, Some((*input, *output)))),
            plain => stream_of(stream, &pieces(plain, Some((100, 20)))),
        }
    }
}

/// The events of an answer.
fn pieces(reply: &Reply, usage: Option<(i64, i64)>) -> Vec<String> {
    let mut events = vec![chunk(&json!({ "role": "assistant", "content": "" }), None)];
    let mut text = |text: &str| {
        let parts: Vec<char> = text.chars().collect();
        events.extend(parts.chunks(7).map(|part| chunk(&json!({ "content": part.iter().collect::<String>() }), None)));
    };
    let reason = match reply {
        Reply::Text(said) => {
            text(said);
            "stop"
        }
        Reply::Json(value) => {
            text(&value.to_string());
            "stop"
        }
        Reply::Calls(calls) => {
            for (index, (name, arguments)) in calls.iter().enumerate() {
                let id = format!("call-{index}");
                let begun = json!({ "index": index, "id": id, "type": "function", "function": { "name": name, "arguments": "" } });
                events.push(chunk(&json!({ "tool_calls": [begun] }), None));
                let parts: Vec<char> = arguments.chars().collect();
                for part in parts.chunks(5) {
                    let more = json!({ "index": index, "function": { "arguments": part.iter().collect::<String>() } });
                    events.push(chunk(&json!({ "tool_calls": [more] }), None));
                }
            }
            "tool_calls"
        }
        other => panic!("{other:?} is no answer"),
    };
    events.push(chunk(&json!({}), Some(reason)));
    if let Some((input, output)) = usage {
        let usage = json!({ "prompt_tokens": input, "completion_tokens": output, "total_tokens": 0 });
        events.push(json!({ "choices": [], "usage": usage }).to_string());
    }
    events.push("[DONE]".to_owned());
    events
}

fn chunk(delta: &Value, reason: Option<&str>) -> String {
    json!({ "object": "chat.completion.chunk", "choices": [{ "index": 0, "delta": delta, "finish_reason": reason }] })
        .to_string()
}

/// Server-sent events; the other side may go away at any of them.
fn stream_of(stream: &mut TcpStream, events: &[String]) {
    let head = "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-type: text/event-stream\r\n\r\n";
    let sent = stream.write_all(head.as_bytes());
    events.iter().fold(sent, |sent, event| sent.and_then(|()| write!(stream, "data: {event}\n\n"))).ok();
}
