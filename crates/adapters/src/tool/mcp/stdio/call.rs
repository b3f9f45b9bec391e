//! `repl mcp-call`: the process of one step. Has no runtime and no protocol of its own: it waits for the holder of the server.

use super::{LONGEST_REQUEST, Request, SOCKET_VARIABLE, Said, ServerAnswer};
use crate::tool::ToolFailure;
use model::Effect;
use model::recovery::ErrorClass;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// A holder that has just been started listens within a few of these.
const TRY_AGAIN_AFTER: Duration = Duration::from_millis(10);
/// The holder judges time limits. One that is silent for this much longer hangs.
const HOLDER_ANSWERS_WITHIN: Duration = Duration::from_secs(2);

/// Writes a [`ServerAnswer`] to `out` in every case that it can tell.
pub fn call(mut out: impl Write) -> io::Result<()> {
    let mut text = String::new();
    io::stdin().take(LONGEST_REQUEST).read_to_string(&mut text)?;
    let answer = match serde_json::from_str(&text) {
        Ok(request) => ask(&request),
        Err(error) => failed(ErrorClass::Permanent, Effect::None, "invalid_input", format!("mcp: {error}")),
    };
    out.write_all(&serde_json::to_vec(&answer)?)?;
    out.flush()
}

fn ask(request: &Request) -> ServerAnswer {
    let Some(socket) = std::env::var_os(SOCKET_VARIABLE).map(PathBuf::from) else {
        let why = "this machine's runner does not hold MCP servers".to_owned();
        return failed(ErrorClass::Permanent, Effect::None, "not_connected", why);
    };
    let limit = Duration::from_millis(request.timeout_ms.max(1) as u64);
    let holder = match connect(&socket, limit) {
        Ok(holder) => holder,
        Err(error) => {
            let why = format!("the process that holds the server does not answer: {error}");
            return failed(ErrorClass::Transient, Effect::None, "not_connected", why);
        }
    };
    exchange(holder, request, limit + HOLDER_ANSWERS_WITHIN).unwrap_or_else(|error| {
        let why = format!("the process that holds the server was lost: {error}");
        failed(ErrorClass::Transient, Effect::Perhaps, "cut", why)
    })
}

fn connect(socket: &std::path::Path, limit: Duration) -> io::Result<UnixStream> {
    let began = Instant::now();
    loop {
        match UnixStream::connect(socket) {
            Ok(holder) => return Ok(holder),
            Err(error) if began.elapsed() >= limit => return Err(error),
            Err(_) => std::thread::sleep(TRY_AGAIN_AFTER),
        }
    }
}

fn exchange(mut holder: UnixStream, request: &Request, limit: Duration) -> io::Result<ServerAnswer> {
    let deadline = Instant::now() + limit;
    let mut line = serde_json::to_vec(request)?;
    line.push(b'\n');
    holder.set_write_timeout(Some(limit))?;
    holder.write_all(&line)?;
    let mut said = BufReader::new(holder.try_clone()?);
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        holder.set_read_timeout(Some(left.max(Duration::from_millis(1))))?;
        let mut line = Vec::new();
        if said.read_until(b'\n', &mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        match serde_json::from_slice(&line)? {
            Said::Log(text) => io::stderr().write_all(text.as_bytes())?,
            Said::Answer(answer) => return Ok(answer),
        }
    }
}

fn failed(class: ErrorClass, effect: Effect, code: &str, message: String) -> ServerAnswer {
    ToolFailure::new(class, effect, code, message).into()
}
