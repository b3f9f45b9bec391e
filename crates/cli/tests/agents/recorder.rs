//! The oracle of effects: an HTTP server that no test kills and that writes every request down before it answers. What it has heard
//! happened, whatever the product says about it.

use crate::listener::{self, Listener, Request};
use crate::process::HANGS_AFTER_MS;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::net::TcpStream;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

#[derive(Debug, Clone)]
pub struct Recorded {
    pub method: String,
    pub path: String,
    pub key: Option<String>,
    pub headers: BTreeMap<String, String>,
    pub body: String,
}

/// How the recorder answers once it has written a request down.
#[derive(Debug, Clone)]
pub enum Reply {
    Json(Value),
    Status(u16, &'static str),
    /// `429` with so many seconds to wait.
    Busy(&'static str),
    Redirect(String),
    Text(String),
    /// The connection ends before anything is answered.
    Cut,
    /// Nothing is answered, as long as the other side waits.
    Hang,
    /// Answered when the test lets this word through.
    Held(&'static str),
}

pub struct Recorder {
    listener: Listener,
    book: Arc<Book>,
}

#[derive(Default)]
struct Book {
    pages: Mutex<Pages>,
    changed: Condvar,
}

#[derive(Default)]
struct Pages {
    records: Vec<Recorded>,
    let_through: BTreeSet<String>,
}

impl Recorder {
    /// Answers everything with what it was, and how often its path was asked for.
    pub fn start() -> Recorder {
        Recorder::answering(|record, times| Reply::Json(json!({ "path": record.path, "times": times })))
    }

    /// `reply` is told the request and how often its method and path came, this one included.
    pub fn answering(reply: impl Fn(&Recorded, usize) -> Reply + Send + Sync + 'static) -> Recorder {
        let book = Arc::new(Book::default());
        let writes = book.clone();
        let listener = Listener::start(move |request, stream| {
            let (record, times) = writes.write(request);
            writes.send(reply(&record, times), stream);
        });
        Recorder { listener, book }
    }

    pub fn url(&self, path: &str) -> String {
        format!("{}{path}", self.listener.url())
    }

    pub fn records(&self) -> Vec<Recorded> {
        self.book.pages.lock().unwrap().records.clone()
    }

    /// How often this path was asked for.
    pub fn count(&self, path: &str) -> usize {
        self.records().iter().filter(|record| record.path == path).count()
    }

    /// Lets everything through that is held at this word, now and later.
    pub fn release(&self, word: &str) {
        self.book.pages.lock().unwrap().let_through.insert(word.to_owned());
        self.book.changed.notify_all();
    }

    /// Waits until so many requests were written down in all, and no longer than this.
    pub fn hears_in_all(&self, count: usize, at_most: Duration) -> bool {
        self.book.within(at_most, |pages| pages.records.len() >= count)
    }

    /// Waits until so many requests for this path were written down.
    #[track_caller]
    pub fn hears(&self, path: &str, times: usize) {
        let heard = |pages: &Pages| pages.records.iter().filter(|record| record.path == path).count() >= times;
        assert!(self.book.until(heard), "{path} is not asked for {times} times: {:?}", self.records());
    }
}

/// The key of a call of an MCP tool.
fn key_of_call(body: &str) -> Option<String> {
    let message: Value = serde_json::from_str(body).ok()?;
    message["params"]["_meta"]["idempotencyKey"].as_str().map(str::to_owned)
}

impl Recorded {
    /// The method of an MCP message.
    pub fn message(&self) -> Option<String> {
        let message: Value = serde_json::from_str(&self.body).ok()?;
        message["method"].as_str().map(str::to_owned)
    }

    /// As an MCP server without sessions answers.
    pub fn mcp(&self) -> Reply {
        let message: Value = serde_json::from_str(&self.body).unwrap_or_default();
        let result = match message["method"].as_str() {
            Some("server/discover") => json!({
                "resultType": "complete", "supportedVersions": ["2026-07-28"], "capabilities": { "tools": {} },
                "ttlMs": 0, "cacheScope": "private", "serverInfo": { "name": "recorder", "version": "1" },
            }),
            Some("tools/call") => json!({ "resultType": "complete", "content": [] }),
            _ => return Reply::Status(400, "no such message"),
        };
        Reply::Json(json!({ "jsonrpc": "2.0", "id": message["id"], "result": result }))
    }
}

impl Book {
    fn write(&self, request: Request) -> (Recorded, usize) {
        let mut pages = self.pages.lock().unwrap();
        let key = request.headers.get("idempotency-key").cloned().or_else(|| key_of_call(&request.body));
        let Request { method, path, headers, body } = request;
        let record = Recorded { method, path, key, headers, body };
        pages.records.push(record.clone());
        self.changed.notify_all();
        let same = |other: &&Recorded| other.method == record.method && other.path == record.path;
        let times = pages.records.iter().filter(same).count();
        (record, times)
    }

    fn send(&self, reply: Reply, stream: &mut TcpStream) {
        let json = |body: &Value| (vec![("content-type", "application/json".to_owned())], body.to_string());
        match reply {
            Reply::Json(body) => {
                let (headers, body) = json(&body);
                listener::answer(stream, 200, &headers, &body);
            }
            Reply::Status(status, body) => listener::answer(stream, status, &[], body),
            Reply::Busy(seconds) => listener::answer(stream, 429, &[("retry-after", seconds.to_owned())], "slower"),
            Reply::Redirect(to) => listener::answer(stream, 302, &[("location", to)], ""),
            Reply::Text(body) => listener::answer(stream, 200, &[("content-type", "text/plain".to_owned())], &body),
            Reply::Cut => listener::cut(stream),
            Reply::Hang => listener::hang(stream),
            Reply::Held(word) => {
                self.until(|pages| pages.let_through.contains(word));
                let (headers, body) = json(&json!({ "held": word }));
                listener::answer(stream, 200, &headers, &body);
            }
        }
    }

    fn until(&self, is_so: impl Fn(&Pages) -> bool) -> bool {
        self.within(Duration::from_millis(HANGS_AFTER_MS.into()), is_so)
    }

    fn within(&self, limit: Duration, is_so: impl Fn(&Pages) -> bool) -> bool {
        let pages = self.pages.lock().unwrap();
        let (pages, _) = self.changed.wait_timeout_while(pages, limit, |pages| !is_so(pages)).unwrap();
        is_so(&pages)
    }
}
