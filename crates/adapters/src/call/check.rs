//! The conformance suite of execution adapters: makes calls with a real exchange in a folder, asks the adapter as an Executor does, and
//! says of each case what was expected and what came.

use super::{Adapters, Unanswered};
use crate::remote::{Access, Remote, RemoteError};
use calls::adapter::{AdapterAnswer, Closing, Ended, How, Operation, Request, VERSION, read, read_closing};
use calls::exchange::{accept, snapshot};
use calls::function::Function;
use calls::record::{ExecStatus, Node};
use calls::refs::RefName;
use calls::value::BadValue;
use calls::{CommitId, DagId, Id, Memory, NodeId, Object, Value, json};
use model::Trouble;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// What is checked, and how.
pub struct Check {
    pub adapters: Adapters,
    /// What the adapter executes.
    pub function: Function,
    pub inputs: Vec<Value>,
    /// Where exchanges are made: a folder of the caller's.
    pub folder: PathBuf,
    /// How long one execution may take.
    pub within: Duration,
}

/// One line of the report.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Case {
    pub name: &'static str,
    pub expected: &'static str,
    /// What came instead.
    pub failed: Option<String>,
    /// What came, where that is of interest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub came: Option<String>,
}

type Came = Result<Option<String>, String>;

/// One call of the suite: its own exchange, key and execution.
struct Call {
    remote: Remote,
    snapshot: CommitId,
    request: Request,
}

impl Check {
    /// All cases in their order.
    pub async fn run(&self) -> Result<Vec<Case>, RemoteError> {
        let mut cases = Vec::new();
        let mut say = |name, expected, came: Came| {
            let (failed, came) = match came {
                Ok(came) => (None, came),
                Err(why) => (Some(why), None),
            };
            cases.push(Case { name, expected, failed, came });
        };
        let first = self.call(1)?;
        let begun = self.invoke(&first.request).await;
        let came = begun.as_ref().map(|answer| Some(shown(answer))).map_err(|none| none.to_string());
        say("answers", "`invoke` is answered by one JSON document and exit code 0, within the time and bytes", came);
        let end = self.end(&first.request, begun).await;
        let came = end.as_ref().map(|(answer, _)| Some(shown(answer))).map_err(Clone::clone);
        say("finishes", "asked again with its newest token it comes to `done`", came);
        let (done, token) = match end {
            Ok((done, token)) => (Ok(done), token),
            Err(why) => (Err(why), None),
        };
        say(
            "result",
            "the result is a dag on the remote: whole, valid, on top of the snapshot, without execs",
            first.result(&done),
        );
        let again = Request { token, ..first.request.clone() };
        say("done_again", "asked again after `done` it gives the same answer", self.same(&again, &done).await);
        say(
            "no_token",
            "asked without a token it finds the execution by key and attempt",
            self.same(&first.request, &done).await,
        );
        let second = self.call(2)?;
        say(
            "at_once",
            "two invocations of a new execution at once are both answered, and end alike",
            self.at_once(&second).await,
        );
        say(
            "other_attempt",
            "another attempt at the same key is an execution of its own",
            self.other_attempt(&second).await,
        );
        self.refusals(&mut say).await?;
        self.closings(&mut say, &first).await?;
        Ok(cases)
    }

    async fn refusals(&self, say: &mut impl FnMut(&'static str, &'static str, Came)) -> Result<(), RemoteError> {
        let call = self.call(3)?;
        let mut document = serde_json::to_value(&call.request).unwrap_or_default();
        document["version"] = (VERSION + 98).into();
        let came = self.refuses(document.to_string().as_bytes()).await;
        say("other_version", "a version that it does not know is refused, by `failed` or an exit code", came);
        document["version"] = VERSION.into();
        document["operation"] = "explode".into();
        say(
            "other_operation",
            "an operation that it does not know is refused",
            self.refuses(document.to_string().as_bytes()).await,
        );
        say("garbage", "what is not a request is refused", self.refuses(b"not a request\n").await);
        let nowhere = Request { remote: format!("file://{}/nowhere", self.folder.display()), ..call.request.clone() };
        let came = match self.settled(&nowhere).await {
            Ok(AdapterAnswer::Done { .. }) => Err("it answered `done`".to_owned()),
            Ok(answer) => Ok(Some(shown(&answer))),
            Err(_) => Ok(Some("no answer, tried again later".to_owned())),
        };
        say("no_remote", "without its remote it does not answer `done`", came);
        Ok(())
    }

    async fn closings(
        &self,
        say: &mut impl FnMut(&'static str, &'static str, Came),
        finished: &Call,
    ) -> Result<(), RemoteError> {
        let never = self.call(4)?;
        say(
            "cancel_unknown",
            "`cancel` of what was never begun is `done`",
            self.closes(&never.request, Operation::Cancel).await,
        );
        let begun = self.call(5)?;
        self.invoke(&begun.request).await.ok();
        say("cancel", "`cancel` of what was begun is `done`", self.closes(&begun.request, Operation::Cancel).await);
        say("cancel_again", "`cancel` may come twice", self.closes(&begun.request, Operation::Cancel).await);
        say("cleanup", "`cleanup` after the end is `done`", self.closes(&finished.request, Operation::Cleanup).await);
        say("cleanup_again", "`cleanup` may come twice", self.closes(&finished.request, Operation::Cleanup).await);
        for call in [&never, &begun] {
            self.closes(&call.request, Operation::Cleanup).await.ok();
        }
        Ok(())
    }

    async fn invoke(&self, request: &Request) -> Result<AdapterAnswer, Unanswered> {
        self.adapters.invoke(request, &[]).await
    }

    /// Follows an execution to its end as an Executor does: the newest token, and the wait that was asked for.
    async fn end(
        &self,
        request: &Request,
        first: Result<AdapterAnswer, Unanswered>,
    ) -> Result<(AdapterAnswer, Option<String>), String> {
        let until = Instant::now() + self.within;
        let (mut answer, mut last) = (first.map_err(|none| none.to_string())?, None);
        loop {
            match answer {
                AdapterAnswer::Pending { token, retry_after_ms } => {
                    let wait = Duration::from_millis(retry_after_ms.unwrap_or(100).max(0) as u64);
                    if Instant::now() + wait > until {
                        return Err(format!("it is still `pending` after {} s", self.within.as_secs()));
                    }
                    tokio::time::sleep(wait).await;
                    let next = Request { token: Some(token.clone()), ..request.clone() };
                    last = Some(token);
                    answer = self.invoke(&next).await.map_err(|none| none.to_string())?;
                }
                AdapterAnswer::Failed { code, message } => {
                    return Err(format!("`failed`, {code}: {message}; --function and --input say what it is asked"));
                }
                done @ AdapterAnswer::Done { .. } => return Ok((done, last)),
            }
        }
    }

    /// `done` or `failed`, or why not.
    async fn settled(&self, request: &Request) -> Result<AdapterAnswer, String> {
        let first = self.invoke(request).await;
        match first {
            Ok(answer @ AdapterAnswer::Failed { .. }) => Ok(answer),
            first => self.end(request, first).await.map(|(answer, _)| answer),
        }
    }

    async fn same(&self, request: &Request, done: &Result<AdapterAnswer, String>) -> Came {
        let Ok(done) = done else { return Err("there was no `done`".to_owned()) };
        let again = self.settled(request).await?;
        if again == *done { Ok(None) } else { Err(format!("first {}, then {}", shown(done), shown(&again))) }
    }

    async fn at_once(&self, call: &Call) -> Came {
        let (one, other) = tokio::join!(self.settled(&call.request), self.settled(&call.request));
        let (one, other) = (one?, other?);
        call.result(&Ok(one.clone()))?;
        if one == other { Ok(None) } else { Err(format!("{} and {}", shown(&one), shown(&other))) }
    }

    async fn other_attempt(&self, call: &Call) -> Came {
        let next = Request { attempt: 2, ..call.request.clone() };
        let came = self.settled(&next).await.and_then(|answer| call.result(&Ok(answer)));
        self.closes(&next, Operation::Cleanup).await.ok();
        self.closes(&call.request, Operation::Cleanup).await.ok();
        came
    }

    /// `failed`, or no valid answer at all.
    async fn refuses(&self, document: &[u8]) -> Came {
        let sent = self.adapters.send(self.function.adapter(), document, &[]).await;
        let ended = sent.map_err(|none| none.to_string())?;
        match (read(&ended), &ended) {
            (Ok(AdapterAnswer::Failed { code, .. }), _) => Ok(Some(format!("`failed`, {code}"))),
            (Ok(answer), _) => Err(format!("it answered {}", shown(&answer))),
            (Err(_), Ended { how: How::TimedOut, .. }) => Err("it did not answer".to_owned()),
            (Err(_), Ended { how: How::Exited(0), stdout, .. }) if read_closing(&ended).is_ok() => {
                Err(format!("it answered {}", String::from_utf8_lossy(stdout).trim()))
            }
            (Err(_), Ended { how, .. }) => Ok(Some(match how {
                How::Exited(code) => format!("exit code {code}"),
                how => format!("{how:?}"),
            })),
        }
    }

    async fn closes(&self, request: &Request, operation: Operation) -> Came {
        let until = Instant::now() + self.within;
        let mut request = Request { operation, ..request.clone() };
        loop {
            match self.adapters.close(&request, &[]).await.map_err(|none| none.to_string())? {
                Closing::Done => return Ok(None),
                Closing::Failed { code, message } => return Err(format!("`failed`, {code}: {message}")),
                Closing::Pending { token, retry_after_ms } => {
                    let wait = Duration::from_millis(retry_after_ms.unwrap_or(100).max(0) as u64);
                    if Instant::now() + wait > until {
                        return Err(format!("it is still `pending` after {} s", self.within.as_secs()));
                    }
                    tokio::time::sleep(wait).await;
                    request.token = Some(token);
                }
            }
        }
    }

    /// A call with an exchange of its own.
    fn call(&self, number: u8) -> Result<Call, RemoteError> {
        let (mut memory, inputs, node) = self.node().map_err(|bad| Trouble::internal(bad.to_string()))?;
        let (snapshot, records) = snapshot(node);
        memory.add(records);
        let uri = format!("file://{}/exchange-{number}", self.folder.display());
        let remote = Remote::open(&uri, Access::Write)?;
        let execution = format!("00000000-0000-4000-8000-{number:012}");
        let name: RefName = format!("refs/exec/{execution}").parse()?;
        remote.push(&mut memory, &name, snapshot, false)?;
        let request = Request {
            version: VERSION,
            operation: Operation::Invoke,
            node,
            function: self.function.uri().as_str().to_owned(),
            inputs,
            snapshot: name.to_string(),
            remote: uri,
            // Of this suite: a second check of the same adapter is other executions.
            key: Id::of(format!("{}/{execution}", self.folder.display()).as_bytes()),
            execution,
            attempt: 1,
            token: None,
        };
        Ok(Call { remote, snapshot, request })
    }

    fn node(&self) -> Result<(Memory, Vec<NodeId>, NodeId), BadValue> {
        let mut memory = Memory::default();
        let mut inputs = Vec::new();
        for value in &self.inputs {
            let mut records = Vec::new();
            let value = value.element(&mut records)?;
            memory.add(records);
            inputs.push(NodeId(memory.put(&Object::Node(Node::Literal { value })).id));
        }
        let mut records = Vec::new();
        let function = Value::Uri(self.function.uri().clone()).element(&mut records)?;
        memory.add(records);
        let node = NodeId(memory.put(&Object::Node(Node::Call { function, inputs: inputs.clone() })).id);
        Ok((memory, inputs, node))
    }
}

impl Call {
    /// Checks the result as an Executor does before it pins it, and shows it.
    fn result(&self, done: &Result<AdapterAnswer, String>) -> Came {
        let Ok(AdapterAnswer::Done { status, result }) = done else { return Err("there was no `done`".to_owned()) };
        let name: RefName = self.request.snapshot.parse().map_err(|bad: calls::refs::BadRef| bad.to_string())?;
        let mut made = self.remote.fetch(&name).map_err(|error| error.to_string())?;
        let at = made.commit;
        accept(&mut made, self.snapshot, at, *result).map_err(|fault| fault.to_string())?;
        let word = if *status == ExecStatus::Ok { "ok" } else { "error" };
        Ok(Some(format!("{word}, {}", self.value(&mut made, *result).unwrap_or_else(|| result.to_string()))))
    }

    fn value(&self, from: &mut crate::remote::Opened, result: DagId) -> Option<String> {
        let root = calls::read::dag(from, result).ok()?.root;
        let Node::Literal { value } = calls::read::node(from, root).ok()? else { return None };
        Some(json::shown(&Value::load_element(from, &value).ok()?))
    }
}

fn shown(answer: &AdapterAnswer) -> String {
    match answer {
        AdapterAnswer::Pending { .. } => "`pending`".to_owned(),
        AdapterAnswer::Done { status, result } => format!("`done`, {}, {}", status.as_str(), &result.to_string()[..8]),
        AdapterAnswer::Failed { code, .. } => format!("`failed`, {code}"),
    }
}
