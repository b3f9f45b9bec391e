//! The protocol of execution adapters: one JSON document on stdin, one on stdout. What an adapter may answer, and what everything else
//! means. An adapter is a stateless program; it never writes exec records.

use crate::id::{DagId, Id, NodeId};
use crate::record::ExecStatus;
use serde::{Deserialize, Serialize};

pub const VERSION: i64 = 1;
/// Of a request and of an answer.
pub const MAX_BYTES: usize = 1 << 20;
/// Then the adapter's process group is killed.
pub const TIMEOUT_MS: i64 = 30_000;
/// A token is stored in a row.
pub const MAX_TOKEN_BYTES: usize = 64 << 10;
/// An adapter cannot make its callers wait longer without being asked again.
pub const MAX_RETRY_AFTER_MS: i64 = 3_600_000;
/// Of what an adapter wrote to stderr, its end is shown.
const SHOWN_BYTES: usize = 2_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Operation {
    /// Begin, or find what was begun, and say how it is.
    Invoke,
    Cancel,
    /// Remove what the execution left. Its outcome never changes the result.
    Cleanup,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    pub version: i64,
    pub operation: Operation,
    pub node: NodeId,
    pub function: String,
    pub inputs: Vec<NodeId>,
    /// `refs/exec/<uuid>`: the closure of the call node.
    pub snapshot: String,
    /// Where the snapshot is, and where the result goes.
    pub remote: String,
    /// The execution's UUID.
    pub execution: String,
    /// The execution key. With the attempt it names the backend's job, so that an invocation without a token finds it.
    pub key: Id,
    pub attempt: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AdapterAnswer {
    Pending {
        token: String,
        retry_after_ms: Option<i64>,
    },
    /// The result is a dag for both statuses.
    Done {
        status: ExecStatus,
        result: DagId,
    },
    /// For good: not tried again.
    Failed {
        code: String,
        message: String,
    },
}

/// To `cancel` and `cleanup`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Closing {
    Pending { token: String, retry_after_ms: Option<i64> },
    Done,
    Failed { code: String, message: String },
}

/// How an adapter's process ended, with the beginning of what it wrote.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    pub how: How,
    /// At most one byte more than [`MAX_BYTES`] is kept, by which it is seen that there was more.
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    Exited(i32),
    Signalled(i32),
    TimedOut,
    /// The program is not there or could not be started.
    NotStarted,
}

/// An adapter did not answer as it should: a transient failure, tried again.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct NoAnswer {
    /// Stable word for programs.
    pub code: &'static str,
    /// For people: what happened, and what the adapter wrote to stderr.
    pub message: String,
}

/// The fields of every answer.
#[derive(Deserialize)]
struct Document {
    version: i64,
    answer: String,
    token: Option<String>,
    retry_after_ms: Option<i64>,
    status: Option<String>,
    result: Option<String>,
    code: Option<String>,
    message: Option<String>,
}

/// The answer to `invoke`.
pub fn read(ended: &Ended) -> Result<AdapterAnswer, NoAnswer> {
    let document = document(ended)?;
    match document.answer.as_str() {
        "pending" => {
            pending(ended, document).map(|(token, retry_after_ms)| AdapterAnswer::Pending { token, retry_after_ms })
        }
        "failed" => failed(ended, document).map(|(code, message)| AdapterAnswer::Failed { code, message }),
        "done" => {
            let status = match document.status.as_deref() {
                Some("ok") => ExecStatus::Ok,
                Some("error") => ExecStatus::Error,
                _ => return Err(malformed(ended, "`done` needs `status`: ok or error")),
            };
            let result = document.result.as_deref().and_then(|result| result.parse().ok());
            let result = result.ok_or_else(|| malformed(ended, "`done` needs `result`: the id of a dag, 64 digits"))?;
            Ok(AdapterAnswer::Done { status, result })
        }
        other => Err(malformed(ended, &format!("`answer` is `{}`, not pending, done or failed", cut(other)))),
    }
}

/// The answer to `cancel` and `cleanup`.
pub fn read_closing(ended: &Ended) -> Result<Closing, NoAnswer> {
    let document = document(ended)?;
    match document.answer.as_str() {
        "pending" => pending(ended, document).map(|(token, retry_after_ms)| Closing::Pending { token, retry_after_ms }),
        "failed" => failed(ended, document).map(|(code, message)| Closing::Failed { code, message }),
        "done" => Ok(Closing::Done),
        other => Err(malformed(ended, &format!("`answer` is `{}`, not pending, done or failed", cut(other)))),
    }
}

fn document(ended: &Ended) -> Result<Document, NoAnswer> {
    // First: an adapter that writes more is killed for it, and the signal would not say why.
    if ended.stdout.len() > MAX_BYTES {
        return Err(none(ended, "too_large", &format!("the adapter answered more than {MAX_BYTES} bytes")));
    }
    match ended.how {
        How::Exited(0) => {}
        How::Exited(code) => return Err(none(ended, "exited", &format!("the adapter exited with code {code}"))),
        How::Signalled(signal) => return Err(none(ended, "killed", &format!("signal {signal} ended the adapter"))),
        How::TimedOut => {
            return Err(none(ended, "timed_out", &format!("the adapter did not answer in {} s", TIMEOUT_MS / 1000)));
        }
        How::NotStarted => return Err(none(ended, "not_started", "the adapter could not be started")),
    }
    if ended.stdout.trim_ascii().is_empty() {
        return Err(none(ended, "empty", "the adapter answered nothing on stdout"));
    }
    let value: serde_json::Value = serde_json::from_slice(&ended.stdout).map_err(|error| {
        none(
            ended,
            "not_json",
            &format!("the adapter's answer is not one JSON document ({error}): {}", start(&ended.stdout)),
        )
    })?;
    // The version first: another version may have other fields.
    match value.get("version").and_then(serde_json::Value::as_i64) {
        Some(VERSION) => {}
        Some(other) => {
            return Err(none(ended, "version", &format!("the adapter speaks version {other}, we {VERSION}")));
        }
        None => return Err(malformed(ended, &format!("`version` is missing: {VERSION}"))),
    }
    let document: Document = serde_json::from_value(value).map_err(|error| malformed(ended, &error.to_string()))?;
    debug_assert_eq!(document.version, VERSION);
    Ok(document)
}

fn pending(ended: &Ended, document: Document) -> Result<(String, Option<i64>), NoAnswer> {
    let token = document.token.ok_or_else(|| malformed(ended, "`pending` needs `token`"))?;
    if token.len() > MAX_TOKEN_BYTES {
        return Err(malformed(ended, &format!("`token` has {} bytes: at most {MAX_TOKEN_BYTES}", token.len())));
    }
    match document.retry_after_ms {
        Some(ms) if ms < 0 => Err(malformed(ended, "`retry_after_ms` is negative")),
        ms => Ok((token, ms.map(|ms| ms.min(MAX_RETRY_AFTER_MS)))),
    }
}

fn failed(ended: &Ended, document: Document) -> Result<(String, String), NoAnswer> {
    let both = document.code.zip(document.message);
    let (code, message) = both.ok_or_else(|| malformed(ended, "`failed` needs `code` and `message`"))?;
    Ok((cut(&code).to_owned(), cut(&message).to_owned()))
}

fn malformed(ended: &Ended, why: &str) -> NoAnswer {
    none(ended, "malformed", &format!("the adapter's answer is malformed: {why}"))
}

fn none(ended: &Ended, code: &'static str, what: &str) -> NoAnswer {
    let stderr = String::from_utf8_lossy(&ended.stderr);
    let said = stderr.trim();
    let skipped = said.len().saturating_sub(SHOWN_BYTES);
    let skipped = (skipped..=said.len()).find(|at| said.is_char_boundary(*at)).unwrap_or(0);
    let message = if said.is_empty() { what.to_owned() } else { format!("{what}; it said: {}", &said[skipped..]) };
    NoAnswer { code, message }
}

/// At most [`SHOWN_BYTES`] of a text.
fn cut(text: &str) -> &str {
    let end = (0..=SHOWN_BYTES.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    &text[..end]
}

fn start(bytes: &[u8]) -> String {
    String::from_utf8_lossy(&bytes[..bytes.len().min(80)]).escape_debug().to_string()
}

impl Request {
    pub fn document(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("a request is plain data")
    }
}

/// The documents that adapters write; ours use these.
impl AdapterAnswer {
    pub fn document(&self) -> String {
        let document = match self {
            AdapterAnswer::Pending { token, retry_after_ms } => {
                serde_json::json!({"version": VERSION, "answer": "pending", "token": token, "retry_after_ms": retry_after_ms})
            }
            AdapterAnswer::Done { status, result } => {
                serde_json::json!({"version": VERSION, "answer": "done", "status": status.as_str(), "result": result})
            }
            AdapterAnswer::Failed { code, message } => {
                serde_json::json!({"version": VERSION, "answer": "failed", "code": code, "message": message})
            }
        };
        document.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(stdout: &str) -> Ended {
        Ended { how: How::Exited(0), stdout: stdout.into(), stderr: b"some words\n".to_vec() }
    }

    #[test]
    fn the_three_answers_read_back() {
        let result = DagId(Id([7; 32]));
        for answer in [
            AdapterAnswer::Pending { token: "t".into(), retry_after_ms: None },
            AdapterAnswer::Pending { token: String::new(), retry_after_ms: Some(500) },
            AdapterAnswer::Done { status: ExecStatus::Ok, result },
            AdapterAnswer::Done { status: ExecStatus::Error, result },
            AdapterAnswer::Failed { code: "no_such_image".into(), message: "there is none".into() },
        ] {
            assert_eq!(read(&ended(&answer.document())), Ok(answer));
        }
        let slow = r#"{"version":1,"answer":"pending","token":"t","retry_after_ms":99999999999,"more":1}"#;
        let answer = AdapterAnswer::Pending { token: "t".into(), retry_after_ms: Some(MAX_RETRY_AFTER_MS) };
        assert_eq!(read(&ended(slow)), Ok(answer), "waits are bounded, unknown fields ignored");
        assert_eq!(read_closing(&ended(r#"{"version":1,"answer":"done"}"#)), Ok(Closing::Done));
        assert!(read_closing(&ended(r#"{"version":1,"answer":"gone"}"#)).is_err());
    }

    #[test]
    fn anything_else_is_a_transient_failure_that_a_person_can_act_on() {
        let big = "x".repeat(MAX_BYTES + 1);
        let long = format!(r#"{{"version":1,"answer":"pending","token":"{}"}}"#, "x".repeat(MAX_TOKEN_BYTES + 1));
        for (stdout, code, said) in [
            ("", "empty", "nothing on stdout"),
            (" \n", "empty", "nothing on stdout"),
            ("Traceback (most recent call last)", "not_json", "Traceback"),
            ("{} {}", "not_json", "not one JSON document"),
            ("[]", "malformed", "`version` is missing"),
            ("{}", "malformed", "`version` is missing"),
            (r#"{"version":2,"answer":"pending"}"#, "version", "speaks version 2"),
            (r#"{"version":1}"#, "malformed", "answer"),
            (r#"{"version":1,"answer":"maybe"}"#, "malformed", "`maybe`"),
            (r#"{"version":1,"answer":"pending"}"#, "malformed", "needs `token`"),
            (r#"{"version":1,"answer":"pending","token":5}"#, "malformed", "invalid type"),
            (r#"{"version":1,"answer":"pending","token":"t","retry_after_ms":-1}"#, "malformed", "negative"),
            (&long, "malformed", "at most"),
            (r#"{"version":1,"answer":"done"}"#, "malformed", "needs `status`"),
            (r#"{"version":1,"answer":"done","status":"ok"}"#, "malformed", "the id of a dag"),
            (r#"{"version":1,"answer":"done","status":"ok","result":"abc"}"#, "malformed", "the id of a dag"),
            (r#"{"version":1,"answer":"failed","code":"c"}"#, "malformed", "`code` and `message`"),
            (&big, "too_large", "more than"),
        ] {
            let none = read(&ended(stdout)).unwrap_err();
            assert_eq!(none.code, code, "{stdout:.100}");
            assert!(none.message.contains(said) && none.message.ends_with("it said: some words"), "{none}");
        }
        let good = AdapterAnswer::Pending { token: "t".into(), retry_after_ms: None }.document();
        for (how, code) in [
            (How::Exited(1), "exited"),
            (How::Signalled(9), "killed"),
            (How::TimedOut, "timed_out"),
            (How::NotStarted, "not_started"),
        ] {
            let none = read(&Ended { how, ..ended(&good) }).unwrap_err();
            assert_eq!(none.code, code, "an answer counts only from a program that ended well");
        }
        let killed = Ended { how: How::Signalled(9), ..ended(&big) };
        assert_eq!(read(&killed).unwrap_err().code, "too_large", "it was killed because it wrote too much");
        let endless = Ended { how: How::Exited(3), stdout: vec![], stderr: "ä".repeat(5_000).into_bytes() };
        assert!(read(&endless).unwrap_err().message.len() < 3_000);
    }

    #[test]
    fn a_request_reads_back_and_is_bounded_by_its_inputs() {
        let request = Request {
            version: VERSION,
            operation: Operation::Invoke,
            node: NodeId(Id([1; 32])),
            function: "dml+exec://dml-exec-local/f".into(),
            inputs: vec![NodeId(Id([2; 32]))],
            snapshot: "refs/exec/0b9f1f5e-6f0d-4a53-8f5b-3d3f4f2b1a00".into(),
            remote: "file:///exchange".into(),
            execution: "0b9f1f5e-6f0d-4a53-8f5b-3d3f4f2b1a00".into(),
            key: Id([3; 32]),
            attempt: 1,
            token: None,
        };
        let document = request.document();
        assert_eq!(serde_json::from_slice::<Request>(&document).unwrap(), request);
        assert!(!String::from_utf8(document).unwrap().contains("token"), "no token, no field");
    }
}
