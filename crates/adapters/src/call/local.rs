//! The adapter `dml-exec-local`: a function is a program of this machine, `dml+exec://dml-exec-local/PATH?blake3=DIGEST`. It reads the
//! inputs as a JSON list on stdin and prints its value as JSON. Each execution has a folder beside the exchange, named by its key and
//! attempt, so that every invocation finds it; a process of ours holds the program and notes how it ended.

mod hold;
mod job;

use super::exchange::{Exchange, ExchangeError};
use calls::adapter::{AdapterAnswer, Closing, MAX_BYTES, Operation, Request, VERSION};
use calls::cached_run::error_value;
use calls::function::Function;
use calls::record::ExecStatus;
use calls::{Id, Value, json};
use job::{Ended, Job, State};
use percent_encoding::percent_decode_str;
use std::io::{self, Read as _, Write};
use std::os::unix::ffi::OsStringExt as _;
use std::path::PathBuf;

pub const NAME: &str = "dml-exec-local";
/// `dml-exec-local hold FOLDER`: the process that holds a program.
const HOLD: &str = "hold";
const POLL_AFTER_MS: i64 = 200;
/// Of what a program prints.
const MAX_OUTPUT_BYTES: u64 = 16 << 20;
/// Lines of stderr that an error shows.
const MAX_STACK: usize = 50;

/// Is the adapter: one request on stdin, one answer on stdout. An error is a transient failure.
pub fn main(mut words: impl Iterator<Item = std::ffi::OsString>, mut out: impl Write) -> io::Result<()> {
    match (words.next(), words.next()) {
        (Some(word), Some(folder)) if word == HOLD => hold::hold(&PathBuf::from(folder), out),
        (None, _) => {
            let mut text = String::new();
            io::stdin().take(MAX_BYTES as u64 + 1).read_to_string(&mut text)?;
            writeln!(out, "{}", answer(&text)?)
        }
        _ => Err(io::Error::other("it takes no arguments: a request is read from stdin")),
    }
}

fn answer(text: &str) -> io::Result<String> {
    let request: Request =
        serde_json::from_str(text).map_err(|error| io::Error::other(format!("no request: {error}")))?;
    if request.version != VERSION {
        return Err(io::Error::other(format!("version {} is not spoken here, only {VERSION}", request.version)));
    }
    let job = match Job::of(&request) {
        Ok(job) => job,
        Err(why) => return Ok(failed("remote_not_local", why).document()),
    };
    let closed = match request.operation {
        Operation::Invoke => return invoke(&request, &job).map(|answer| answer.document()),
        Operation::Cancel => job.cancel()?,
        Operation::Cleanup => job.remove()?,
    };
    Ok(match closed {
        Closing::Done => serde_json::json!({"version": VERSION, "answer": "done"}).to_string(),
        Closing::Pending { token, retry_after_ms } => AdapterAnswer::Pending { token, retry_after_ms }.document(),
        Closing::Failed { code, message } => AdapterAnswer::Failed { code, message }.document(),
    })
}

fn failed(code: &str, message: impl Into<String>) -> AdapterAnswer {
    AdapterAnswer::Failed { code: code.to_owned(), message: message.into() }
}

fn invoke(request: &Request, job: &Job) -> io::Result<AdapterAnswer> {
    match job.state()? {
        State::None => begin(request, job),
        State::Running => Ok(pending(job)),
        State::Cancelled => Ok(failed("cancelled", "the execution was cancelled")),
        State::Lost => Ok(failed("lost", "the process that held the program ended before the program did")),
        State::Ended(ended) => finish(request, job, &ended),
    }
}

fn pending(job: &Job) -> AdapterAnswer {
    AdapterAnswer::Pending { token: job.token(), retry_after_ms: Some(POLL_AFTER_MS) }
}

fn begin(request: &Request, job: &Job) -> io::Result<AdapterAnswer> {
    let program = match program(&request.function) {
        Ok(program) => program,
        Err((code, message)) => return Ok(failed(code, message)),
    };
    let inputs = Exchange::open(request).and_then(|mut exchange| exchange.inputs());
    let inputs = match inputs {
        Err(ExchangeError::NotAValue(node)) => {
            return Ok(failed("not_a_value", ExchangeError::NotAValue(node).to_string()));
        }
        inputs => inputs.map_err(io::Error::other)?,
    };
    let inputs: serde_json::Value = inputs.iter().map(json::to_json).collect();
    job.start(&program, &inputs.to_string())?;
    Ok(pending(job))
}

/// The program of a function, which must be the one that the digest names: another program is another function.
fn program(function: &str) -> Result<PathBuf, (&'static str, String)> {
    let bad = |why: String| ("not_a_function", why);
    let function = Function::parse(function).map_err(|error| bad(error.to_string()))?;
    let rest = function.uri().as_str().split_once(NAME).map_or("", |(_, rest)| rest);
    let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
    let path = PathBuf::from(std::ffi::OsString::from_vec(percent_decode_str(path).collect()));
    let bytes = std::fs::read(&path).map_err(|error| ("no_program", format!("{}: {error}", path.display())))?;
    let digest = Id::of(&bytes);
    match query.strip_prefix("blake3=") {
        Some(named) if named == digest.to_string() => Ok(path),
        Some(_) => {
            Err(("program_changed", format!("{} has the digest {digest}: write ?blake3={digest}", path.display())))
        }
        None => Err(bad(format!("a function names its program by digest: write ?blake3={digest}"))),
    }
}

fn finish(request: &Request, job: &Job, ended: &Ended) -> io::Result<AdapterAnswer> {
    let error = |kind: &str, message: String| {
        let stack = job.errors(MAX_STACK);
        error_value(kind, &message, &request.function, &stack).map_err(io::Error::other)
    };
    let (status, value) = match ended {
        Ended::Signal(signal) => {
            return Ok(failed(
                "signalled",
                format!("signal {signal} ended the program; it said: {}", job.errors(3).join("\n")),
            ));
        }
        Ended::NotStarted(why) => return Ok(failed("not_started", why.clone())),
        Ended::Code(0) => match output(job) {
            Ok(value) => (ExecStatus::Ok, value),
            Err(why) => (ExecStatus::Error, error("not_a_value", why)?),
        },
        Ended::Code(code) => (ExecStatus::Error, error("exit", format!("the program ended with exit code {code}"))?),
    };
    Exchange::open(request).and_then(|exchange| exchange.publish(status, &value)).map_err(io::Error::other)
}

fn output(job: &Job) -> Result<Value, String> {
    let text = job.output(MAX_OUTPUT_BYTES).map_err(|error| error.to_string())?;
    if text.len() as u64 > MAX_OUTPUT_BYTES {
        return Err(format!("the program printed more than {MAX_OUTPUT_BYTES} bytes"));
    }
    let text = String::from_utf8(text).map_err(|_| "the program printed bytes that are not UTF-8".to_owned())?;
    json::parse(&text).map_err(|error| format!("the program did not print one JSON value: {error}"))
}
