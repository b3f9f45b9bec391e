//! A control plane made of canned answers, on a port of its own. Remembers everything it was asked.

use base64::Engine as _;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex};

pub struct Script {
    pub url: String,
    asked: Arc<Mutex<Vec<Asked>>>,
    home: tempfile::TempDir,
}

#[derive(Debug, Clone)]
pub struct Asked {
    pub method: String,
    /// Without its query.
    pub path: String,
    headers: BTreeMap<String, String>,
    pub body: Value,
    pub raw: Vec<u8>,
}

impl Asked {
    pub fn route(&self) -> String {
        format!("{} {}", self.method, self.path)
    }
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", String::as_str)
    }
}

impl Script {
    /// An empty answer breaks the connection.
    pub fn new(answer: impl Fn(&Asked) -> Vec<u8> + Send + Sync + 'static) -> Script {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let asked: Arc<Mutex<Vec<Asked>>> = Arc::default();
        let (seen, answer) = (asked.clone(), Arc::new(answer));
        std::thread::spawn(move || {
            for peer in listener.incoming().flatten() {
                let (seen, answer) = (seen.clone(), answer.clone());
                std::thread::spawn(move || converse(peer, &seen, &*answer));
            }
        });
        Script { url, asked, home: tempfile::tempdir().unwrap() }
    }

    pub fn home(&self) -> &Path {
        self.home.path()
    }
    pub fn asked(&self, route: &str) -> Vec<Asked> {
        self.all(|asked| asked.route() == route)
    }
    pub fn all(&self, wanted: impl Fn(&Asked) -> bool) -> Vec<Asked> {
        self.asked.lock().unwrap().iter().filter(|asked| wanted(asked)).cloned().collect()
    }
}

fn converse(peer: TcpStream, seen: &Mutex<Vec<Asked>>, answer: &dyn Fn(&Asked) -> Vec<u8>) {
    let mut reader = BufReader::new(peer.try_clone().unwrap());
    let Some(asked) = read(&mut reader) else { return };
    seen.lock().unwrap().push(asked.clone());
    let bytes = answer(&asked);
    let mut peer = peer;
    // A reader that went away is part of the play.
    peer.write_all(&bytes).ok();
    if bytes.ends_with(STAYS_OPEN) {
        let mut rest = Vec::new();
        reader.read_to_end(&mut rest).ok();
    }
}

fn read(reader: &mut impl std::io::BufRead) -> Option<Asked> {
    let mut line = String::new();
    reader.read_line(&mut line).ok().filter(|read| *read > 0)?;
    let mut words = line.split_whitespace();
    let (method, target) = (words.next()?.to_owned(), words.next()?.to_owned());
    let path = target.split('?').next().unwrap_or_default().to_owned();
    let mut headers = BTreeMap::new();
    for line in reader.by_ref().lines() {
        let line = line.ok()?;
        match line.split_once(": ") {
            Some((name, value)) => headers.insert(name.to_lowercase(), value.to_owned()),
            None => break,
        };
    }
    let length = headers.get("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
    let mut raw = vec![0; length];
    reader.read_exact(&mut raw).ok()?;
    let body = serde_json::from_slice(&raw).unwrap_or(Value::Null);
    Some(Asked { method, path, headers, body, raw })
}

pub fn answer(status: u16, body: &Value) -> Vec<u8> {
    let body = if status == 204 { String::new() } else { body.to_string() };
    format!("HTTP/1.1 {status} Said\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}", body.len()).into_bytes()
}

pub fn problem(status: u16, code: &str, detail: &str) -> Vec<u8> {
    answer(status, &json!({"status": status, "code": code, "title": code, "detail": detail}))
}

/// A comment as the last word of a stream that is not closed.
const STAYS_OPEN: &[u8] = b": open\n\n";

/// Frames as server-sent events; `end` is the status told at the end, `open` keeps the connection, none breaks it.
pub fn stream(frames: &[Value], end: Option<&str>) -> Vec<u8> {
    let mut text = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n".to_owned();
    for frame in frames {
        let length = base64::engine::general_purpose::STANDARD.decode(frame["data"].as_str().unwrap()).unwrap().len();
        let after = frame["offset"].as_i64().unwrap() + length as i64;
        text.push_str(&format!("id: job_1:{after}\nevent: log\ndata: {frame}\n\n"));
    }
    match end {
        Some("open") => text.push_str(": open\n\n"),
        Some(status) => text
            .push_str(&format!("event: end\ndata: {}\n\n", json!({"status": status, "exit_code": null, "cut": false}))),
        None => {}
    }
    text.into_bytes()
}

pub fn frame(offset: i64, stream: &str, bytes: &[u8]) -> Value {
    let data = base64::engine::general_purpose::STANDARD.encode(bytes);
    json!({"job": "job_1", "stream": stream, "offset": offset, "at": 0, "data": data})
}

/// A run as the API shows it, with what matters to the test laid over it.
pub fn run_view(id: &str, over: Value) -> Value {
    let mut view = json!({
        "id": id, "name": "brave-otter", "type": "task", "status": "running", "phase": "running", "attempt_number": 1,
        "max_attempts": 3, "plan_version": 1, "agent_count": 1, "task_count": 1, "step_count": 1,
        "failure_mode": "fail-fast", "max_agents": 10, "priority": "normal", "credits_reserved": "0.01",
        "credits_reserved_micro": 10000, "credits_charged": "0.000003", "credits_charged_micro": 3,
        "credits_refunded": "0", "credits_refunded_micro": 0, "created_at": 0, "command": "x", "context": {},
        "late_evidence": [], "links": {},
    });
    for (name, value) in over.as_object().unwrap() {
        view[name] = value.clone();
    }
    view
}
