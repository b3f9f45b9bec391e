//! The socket by which processes of a job reach the routes of durable steps, and no others: HTTP/1.1 with plain bodies, relayed to the
//! control plane over this runner's own line. The caller sends its step token; this runner adds none of its own.

use crate::{output, socket};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::task::AbortHandle;
use wire::client::{Client, ClientError, Method};

/// Where a process finds the socket, and the token that it sends there.
pub const VARIABLE: &str = "REPL_STEPS";
pub const TOKEN_VARIABLE: &str = "REPL_STEP_TOKEN";
const FILE: &str = "steps.sock";

const HEAD_BYTES: usize = 16 << 10;
const BODY_BYTES: usize = 1 << 20;
/// The control plane lets a request wait for a minute.
const ANSWER_WITHIN: Duration = Duration::from_secs(90);
/// A connection without a request is closed.
const IDLE_FOR: Duration = Duration::from_secs(120);
/// What of a request is passed on.
const PASSED_ON: [&str; 3] = ["authorization", "idempotency-key", "content-type"];

/// Serves for as long as it is kept.
pub struct StepsSocket {
    path: PathBuf,
    task: AbortHandle,
}

impl Drop for StepsSocket {
    fn drop(&mut self) {
        self.task.abort();
        socket::remove(&self.path);
    }
}

/// Where the socket of a step lies: in its folder, or, where that path is too long for a socket, in a folder of its own.
pub fn path(folder: &Path) -> io::Result<PathBuf> {
    socket::place(&output::shared(folder), FILE)
}

/// What an earlier runner served at the same path is replaced.
pub fn serve(folder: &Path, control: Client) -> io::Result<StepsSocket> {
    let path = path(folder)?;
    let _ = std::fs::remove_file(&path);
    // The runner's umask keeps other users out. Nothing more is done by this name: processes of the job can replace what it means.
    let listener = UnixListener::bind(&path)?;
    let task = tokio::spawn(async move {
        loop {
            match listener.accept().await {
                Ok((peer, _)) => drop(tokio::spawn(relay(peer, control.clone()))),
                Err(error) => {
                    tracing::warn!(%error, "a process that wants a durable step could not be heard");
                    tokio::time::sleep(Duration::from_secs(1)).await;
                }
            }
        }
    });
    Ok(StepsSocket { path, task: task.abort_handle() })
}

struct Asked {
    method: Method,
    path: String,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
    closes: bool,
}

struct Reply {
    status: u16,
    kind: &'static str,
    body: Vec<u8>,
}

async fn relay(mut peer: UnixStream, control: Client) {
    let mut read = Vec::new();
    loop {
        let asked = match tokio::time::timeout(IDLE_FOR, next(&mut peer, &mut read)).await {
            Ok(Ok(Some(asked))) => asked,
            Ok(Err(refused)) => return drop(say(&mut peer, &refused, true).await),
            Ok(Ok(None)) | Err(_) => return,
        };
        let answer =
            if is_open(&asked.method, &asked.path) { pass_on(&control, &asked).await } else { nowhere(&asked) };
        if say(&mut peer, &answer, asked.closes).await.is_err() || asked.closes {
            return;
        }
    }
}

/// The routes of durable steps.
fn is_open(method: &Method, path: &str) -> bool {
    let plain = path.split('?').next().unwrap_or_default();
    let Some(rest) = plain.strip_prefix("/api/v1/runs/") else { return false };
    let parts: Vec<&str> = rest.split('/').collect();
    // What is decoded elsewhere must not become another path there.
    if parts.iter().any(|part| part.is_empty() || part.contains(['%', '\\']) || *part == "." || *part == "..") {
        return false;
    }
    match (method.as_str(), parts.as_slice()) {
        ("POST", [_, "steps"]) | ("GET", [_, "steps", "recorded"]) => true,
        ("POST", [_, "steps", _, act]) => matches!(*act, "complete" | "fail" | "heartbeat"),
        _ => false,
    }
}

async fn pass_on(control: &Client, asked: &Asked) -> Reply {
    let mut request = control.request(asked.method.clone(), &asked.path).within(ANSWER_WITHIN);
    for (name, value) in asked.headers.iter().filter(|(name, _)| PASSED_ON.contains(&name.as_str())) {
        request = request.header(name, value);
    }
    let sent = match request.bytes(asked.body.clone()).send().await {
        Ok(response) => {
            let status = response.status();
            response.bytes().await.map(|body| Reply { status, kind: "application/json", body: body.to_vec() })
        }
        Err(error) => Err(error),
    };
    sent.unwrap_or_else(|error| match error {
        ClientError::Problem(refused) => {
            problem(refused.status, serde_json::to_value(&refused).expect("a problem is plain data"))
        }
        error => problem(503, serde_json::json!({ "status": 503, "code": "unreachable", "detail": error.to_string() })),
    })
}

fn problem(status: u16, document: serde_json::Value) -> Reply {
    Reply { status, kind: "application/problem+json", body: document.to_string().into_bytes() }
}

fn nowhere(asked: &Asked) -> Reply {
    let detail = format!("{} {} is not open to a job: only its durable steps are", asked.method, asked.path);
    problem(404, serde_json::json!({ "status": 404, "code": "not_found", "detail": detail }))
}

fn bad(status: u16, detail: &str) -> Reply {
    problem(status, serde_json::json!({ "status": status, "code": "invalid", "detail": detail }))
}

/// The next request of a connection; none at its end.
async fn next(peer: &mut UnixStream, read: &mut Vec<u8>) -> Result<Option<Asked>, Reply> {
    let head = loop {
        if let Some(end) = read.windows(4).position(|bytes| bytes == b"\r\n\r\n") {
            break end;
        }
        if read.len() > HEAD_BYTES {
            return Err(bad(431, "the head of the request is too long"));
        }
        if !more(peer, read).await {
            return Ok(None);
        }
    };
    let text =
        String::from_utf8(read[..head].to_vec()).map_err(|_| bad(400, "the head of the request is not UTF-8"))?;
    let (mut asked, length) = parse(&text)?;
    while read.len() < head + 4 + length {
        if !more(peer, read).await {
            return Ok(None);
        }
    }
    asked.body = read[head + 4..head + 4 + length].to_vec();
    read.drain(..head + 4 + length);
    Ok(Some(asked))
}

async fn more(peer: &mut UnixStream, read: &mut Vec<u8>) -> bool {
    matches!(peer.read_buf(read).await, Ok(bytes) if bytes > 0)
}

fn parse(head: &str) -> Result<(Asked, usize), Reply> {
    let mut lines = head.split("\r\n");
    let first: Vec<&str> = lines.next().unwrap_or_default().split(' ').collect();
    let [method, path, version] = first.as_slice() else { return Err(bad(400, "this is not HTTP")) };
    if !version.starts_with("HTTP/1.") || !path.starts_with('/') {
        return Err(bad(400, "only HTTP/1 is spoken here"));
    }
    let method = Method::from_bytes(method.as_bytes()).map_err(|_| bad(400, "an unknown method"))?;
    let mut headers = Vec::new();
    for line in lines {
        let Some((name, value)) = line.split_once(':') else { return Err(bad(400, "a header without a name")) };
        headers.push((name.trim().to_ascii_lowercase(), value.trim().to_owned()));
    }
    let of = |name: &str| headers.iter().find(|(found, _)| found == name).map(|(_, value)| value.as_str());
    if of("transfer-encoding").is_some() {
        return Err(bad(411, "send the body with its length"));
    }
    let length = of("content-length").map_or(Ok(0), str::parse).map_err(|_| bad(400, "content-length is no number"))?;
    if length > BODY_BYTES {
        return Err(bad(413, "a body has at most 1 MiB"));
    }
    let closes = of("connection").is_some_and(|value| value.eq_ignore_ascii_case("close")) || *version == "HTTP/1.0";
    Ok((Asked { method, path: (*path).to_owned(), headers, body: Vec::new(), closes }, length))
}

async fn say(peer: &mut UnixStream, answer: &Reply, closes: bool) -> io::Result<()> {
    let Reply { status, kind, body } = answer;
    let reason = if (200..300).contains(status) { "OK" } else { "Refused" };
    let connection = if closes { "connection: close\r\n" } else { "" };
    let length = body.len();
    let head =
        format!("HTTP/1.1 {status} {reason}\r\ncontent-type: {kind}\r\ncontent-length: {length}\r\n{connection}\r\n");
    peer.write_all(&[head.as_bytes(), body].concat()).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_durable_steps_are_open() {
        let open = [
            ("POST", "/api/v1/runs/run_1/steps"),
            ("POST", "/api/v1/runs/run_1/steps/stp_1/complete"),
            ("POST", "/api/v1/runs/run_1/steps/stp_1/fail"),
            ("POST", "/api/v1/runs/run_1/steps/stp_1/heartbeat"),
            ("GET", "/api/v1/runs/run_1/steps/recorded?name=a%2Fb"),
        ];
        let closed = [
            ("GET", "/api/v1/runs/run_1/steps"),
            ("GET", "/api/v1/runs/run_1"),
            ("POST", "/api/v1/runs"),
            ("POST", "/api/v1/runs/run_1/cancel"),
            ("POST", "/api/v1/runs/run_1/steps/../cancel"),
            ("POST", "/api/v1/runs/run_1%2fcancel/steps"),
            ("POST", "/api/v1/runs//steps"),
            ("GET", "/api/v1/secrets"),
            ("POST", "/runner/v1/report"),
            ("DELETE", "/api/v1/runs/run_1/steps"),
        ];
        for (method, path) in open {
            assert!(is_open(&Method::from_bytes(method.as_bytes()).unwrap(), path), "{method} {path}");
        }
        for (method, path) in closed {
            assert!(!is_open(&Method::from_bytes(method.as_bytes()).unwrap(), path), "{method} {path}");
        }
    }

    #[test]
    fn a_head_is_read_or_refused_with_a_reason() {
        let (asked, length) = parse("POST /x HTTP/1.1\r\nHost: x\r\nContent-Length: 3").ok().unwrap();
        assert_eq!((asked.method, asked.path.as_str(), length, asked.closes), (Method::POST, "/x", 3, false));
        let refused = [
            ("POST /x", 400),
            ("POST x HTTP/1.1", 400),
            ("POST /x HTTP/2", 400),
            ("POST /x HTTP/1.1\r\nbad", 400),
            ("POST /x HTTP/1.1\r\ncontent-length: x", 400),
            ("POST /x HTTP/1.1\r\ncontent-length: 2000000", 413),
            ("POST /x HTTP/1.1\r\ntransfer-encoding: chunked", 411),
        ];
        for (head, status) in refused {
            assert_eq!(parse(head).err().map(|answer| answer.status), Some(status), "{head}");
        }
    }
}
