//! An execution whose adapter is a program: the call's closure is exported, the program is asked, what its worker made is fetched and
//! checked, and at the end the program is asked to clean up. The newest token is stored before the next question.

use super::{ExecutionNow, Work, changed, node_of};
use crate::Engine;
use adapters::call::handover::{Handover, NoResult};
use adapters::call::{Adapters, Unanswered};
use adapters::remote::{RemoteError, Source};
use calls::adapter::{AdapterAnswer, Closing as Closed, Operation, Request, VERSION};
use calls::reach::closure;
use calls::record::ExecStatus;
use calls::uri::Blob;
use calls::{DagId, Fault, Memory, NodeId, Records, Reference};
use model::execution::{Closing, Execution, ExecutionEvent};
use model::run::LastError;
use model::{Failure, OrgId, Refused, Trouble, crash_point};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use store::blob::{BlobHash, BlobName, Blobs, Upload, blocking};
use store::object::Objects;
use store::{Item, Lane, Tx};

/// Records of a call and of a result.
const MAX_RECORDS: usize = 100_000;
/// Unless the adapter says when it is to be asked again.
const ASKED_AFTER_MS: i64 = 1_000;
/// An adapter cannot make the Executor ask more often.
const SOONEST_MS: i64 = 100;
const PIECE: usize = 256 * 1024;

/// How this process executes calls of functions.
#[derive(Debug, Clone)]
pub struct Executor {
    pub adapters: Adapters,
    /// The folder of all exchanges.
    pub exchange: PathBuf,
}

impl Engine {
    /// One question to the adapter. Its answer is stored before anything follows from it.
    pub(super) async fn ask_adapter(&self, item: Item, seen: &ExecutionNow) -> Result<(), Failure> {
        let Work::Adapter { inputs, uuid } = &seen.request.work else { return Ok(()) };
        self.refresh_claim(item, &seen.it).await?;
        let event = match self.asked(&seen.it, inputs, uuid).await? {
            Ok(answer) => event_of(&seen.it, answer),
            Err(event) => event,
        };
        self.store
            .write(Lane::Normal, "execution.heard", move |tx| {
                store::work::hold(tx, &item)?;
                let Some(it) = store::execution::lock(tx, item.subject)? else { return Ok(()) };
                changed(tx, item.subject, &it, event.clone()).map(drop)
            })
            .await
    }

    async fn asked(
        &self,
        it: &Execution,
        inputs: &[NodeId],
        uuid: &str,
    ) -> Result<Result<AdapterAnswer, ExecutionEvent>, Failure> {
        let Some(executor) = &self.executor else { return Ok(Err(not_here(it))) };
        let handover = Handover::new(&executor.exchange, uuid).map_err(|bad| Trouble::internal(bad.to_string()))?;
        let exported = crash_point!("exchange.export", self.export(it, &handover).await?);
        if let Err(event) = exported {
            return Ok(Err(event));
        }
        let request = request(it, inputs, (uuid, &handover), Operation::Invoke)?;
        let answer = crash_point!("adapter.invoke", executor.adapters.invoke(&request, &[]).await);
        Ok(answer.map_err(|none| unanswered(&none)))
    }

    /// The call and everything below it goes to the exchange, where the adapter's worker reads it.
    async fn export(&self, it: &Execution, handover: &Handover) -> Result<Result<(), ExecutionEvent>, Failure> {
        let (org, node) = (it.org, node_of(it)?);
        let read = move |tx: &mut Tx| {
            let mut objects = Objects { tx, org };
            let below = match closure(&mut objects, [node.into()], &|_| false, MAX_RECORDS) {
                Ok(below) => below,
                Err(Fault::Source(failure)) => return Err(failure),
                Err(fault) => return Ok(Err(fault.to_string())),
            };
            let mut memory = Memory::default();
            for object in below.objects {
                memory.add(calls::Read::record(&mut objects, object)?.map(|record| (object, record)));
            }
            memory.blobs = below.blobs;
            Ok(Ok(memory))
        };
        let memory = match self.store.read("execution.closure", read).await? {
            Ok(memory) => memory,
            Err(why) => {
                let error = LastError {
                    code: "inputs".into(),
                    message: format!("an input cannot be read: {why}"),
                    cause: None,
                };
                return Ok(Err(ExecutionEvent::NonRetryableFailure { error }));
            }
        };
        let (handover, blobs) = (handover.clone(), self.blobs.clone());
        let exported = blocking(move || Ok(handover.export(&mut Contents { memory, blobs, org }, node))).await?;
        Ok(exported.map_err(|error| ExecutionEvent::TransientFailure { error: exchange_error(&error) }))
    }

    /// What the worker made comes into the store: its records, and its blobs as contents of the org. Whether all of it is here.
    pub(super) async fn fetch_result(&self, item: Item, seen: &ExecutionNow) -> Result<bool, Failure> {
        let (Work::Adapter { uuid, .. }, Some(done)) = (&seen.request.work, &seen.it.done) else { return Ok(false) };
        let Some(executor) = &self.executor else {
            self.execution_event(item, not_here(&seen.it)).await?;
            return Ok(false);
        };
        let handover = Handover::new(&executor.exchange, uuid).map_err(|bad| Trouble::internal(bad.to_string()))?;
        let (org, node) = (seen.it.org, node_of(&seen.it)?);
        let result: DagId = done.result.parse().map_err(|_| Trouble::internal("an execution has no result"))?;
        let blobs = self.blobs.clone();
        let fetched = blocking(move || Ok(fetched(&handover, &blobs, node, result))).await?;
        let (records, uploads) = match fetched {
            Ok(fetched) => fetched,
            Err(Missed::Failure(failure)) => return Err(failure),
            Err(Missed::Result(none)) => {
                let error = LastError { code: "result".into(), message: none.to_string(), cause: None };
                let event = match none.may_pass() {
                    true => ExecutionEvent::TransientFailure { error },
                    false => ExecutionEvent::ResultRefused { error },
                };
                self.execution_event(item, event).await?;
                return Ok(false);
            }
        };
        for upload in uploads {
            let hash = upload.stored().hash.to_string();
            self.keep_blob(org, &hash, upload).await?;
        }
        let records = Arc::new(records);
        self.store
            .write(Lane::Normal, "execution.fetch", move |tx| {
                store::work::hold(tx, &item)?;
                store::object::put(tx, org, &records)
            })
            .await?;
        Ok(true)
    }

    /// After the end: the adapter stops its work, then removes what it made; then the exchange goes. The answers change no result.
    pub(super) async fn close_adapter(&self, item: Item, seen: &ExecutionNow) -> Result<(), Failure> {
        let (Work::Adapter { inputs, uuid }, Some(closing)) = (&seen.request.work, seen.it.closing) else {
            return Ok(());
        };
        let operation = match closing {
            Closing::Cancel => Operation::Cancel,
            Closing::Cleanup => Operation::Cleanup,
        };
        let (mut done, mut retry_after_ms) = (true, None);
        if let Some(executor) = &self.executor {
            let handover = Handover::new(&executor.exchange, uuid).map_err(|bad| Trouble::internal(bad.to_string()))?;
            let request = request(&seen.it, inputs, (uuid, &handover), operation)?;
            match crash_point!("adapter.close", executor.adapters.close(&request, &[]).await) {
                Ok(Closed::Done) => {}
                Ok(Closed::Failed { code, message }) => {
                    tracing::warn!(execution = %uuid, code, message, "an adapter left something behind");
                }
                Ok(Closed::Pending { retry_after_ms: after, .. }) => {
                    (done, retry_after_ms) = (false, Some(after.unwrap_or(ASKED_AFTER_MS).max(SOONEST_MS)));
                }
                Err(none) => {
                    tracing::warn!(execution = %uuid, %none, "an adapter was not heard");
                    done = !none.trouble.retry;
                }
            }
            let last = seen.it.closed(done, retry_after_ms, seen.at).closing.is_none();
            if last {
                let removed = blocking(move || Ok(handover.remove())).await?;
                removed
                    .unwrap_or_else(|error| tracing::warn!(execution = %uuid, %error, "an exchange was left behind"));
            }
        }
        self.store
            .write(Lane::Normal, "execution.close", move |tx| {
                store::work::hold(tx, &item)?;
                let Some(it) = store::execution::lock(tx, item.subject)? else { return Ok(()) };
                let at = tx.at();
                store::execution::save(tx, item.subject, &it.closed(done, retry_after_ms, at))
            })
            .await
    }
}

fn event_of(it: &Execution, answer: AdapterAnswer) -> ExecutionEvent {
    match answer {
        AdapterAnswer::Pending { token, retry_after_ms } => {
            let after = retry_after_ms.unwrap_or(ASKED_AFTER_MS).max(SOONEST_MS);
            ExecutionEvent::Pending { token, seen: it.token_version, retry_after_ms: Some(after) }
        }
        AdapterAnswer::Done { status, result } => {
            ExecutionEvent::Done { ok: status == ExecStatus::Ok, result: result.to_string() }
        }
        AdapterAnswer::Failed { code, message } => {
            ExecutionEvent::NonRetryableFailure { error: LastError { code, message, cause: None } }
        }
    }
}

fn unanswered(none: &Unanswered) -> ExecutionEvent {
    let error = LastError { code: none.code.into(), message: none.trouble.what.clone(), cause: None };
    match none.trouble.retry {
        true => ExecutionEvent::TransientFailure { error },
        false => ExecutionEvent::NonRetryableFailure { error },
    }
}

fn not_here(it: &Execution) -> ExecutionEvent {
    let message = format!("{} cannot be executed here: this process starts no adapters", it.function);
    ExecutionEvent::NonRetryableFailure { error: LastError { code: "not_allowed".into(), message, cause: None } }
}

fn exchange_error(error: &RemoteError) -> LastError {
    let message = format!("the call could not be handed to its adapter: {error}");
    LastError { code: "exchange".into(), message, cause: None }
}

fn request(
    it: &Execution,
    inputs: &[NodeId],
    (uuid, handover): (&str, &Handover),
    operation: Operation,
) -> Result<Request, Failure> {
    Ok(Request {
        version: VERSION,
        operation,
        node: node_of(it)?,
        function: it.function.clone(),
        inputs: inputs.to_vec(),
        snapshot: handover.name().to_string(),
        remote: handover.uri(),
        execution: uuid.to_owned(),
        key: it.key.parse().map_err(|_| Trouble::internal("an execution has no key"))?,
        attempt: it.attempt,
        token: it.token.clone(),
    })
}

enum Missed {
    Result(NoResult),
    Failure(Failure),
}

fn fetched(handover: &Handover, blobs: &Blobs, node: NodeId, result: DagId) -> Result<(Records, Vec<Upload>), Missed> {
    let mut made = handover.fetch(node, result).map_err(Missed::Result)?;
    if made.records.len() > MAX_RECORDS {
        let fault = Fault::TooLarge { what: "a result", limit: MAX_RECORDS };
        return Err(Missed::Result(NoResult::Fault(fault)));
    }
    let mut uploads = Vec::new();
    for blob in made.blobs.clone() {
        let mut from = made.open(blob).map_err(Missed::Result)?;
        uploads.push(copied(&mut from, blobs).map_err(Missed::Failure)?);
    }
    Ok((made.records, uploads))
}

fn copied(from: &mut impl io::Read, blobs: &Blobs) -> Result<Upload, Failure> {
    let mut upload = blobs.begin()?;
    let mut piece = vec![0; PIECE];
    loop {
        let read =
            from.read(&mut piece).map_err(|error| Trouble::internal(format!("a blob cannot be read: {error}")))?;
        if read == 0 {
            return Ok(upload);
        }
        upload.write(&piece[..read])?;
    }
}

/// Records of a call, with contents of its org as blobs.
struct Contents {
    memory: Memory,
    blobs: Blobs,
    org: OrgId,
}

impl calls::Read for Contents {
    type Error = Trouble;
    fn record(&mut self, of: Reference) -> Result<Option<Vec<u8>>, Trouble> {
        Ok(self.memory.records.get(&of).cloned())
    }
    fn has_blob(&mut self, blob: Blob) -> Result<bool, Trouble> {
        Ok(self.memory.blobs.contains(&blob))
    }
}

impl Source for Contents {
    fn blob(&mut self, blob: Blob) -> Result<Option<Box<dyn io::Read + '_>>, Trouble> {
        let name = BlobName::Content { org: self.org, hash: BlobHash(blob.hash.0) };
        match self.blobs.open(&name) {
            Ok(bytes) => Ok(Some(Box::new(bytes))),
            Err(Failure::Refused(Refused::NotFound { .. })) => Ok(None),
            Err(failure) => Err(Trouble::internal(failure.to_string())),
        }
    }
}
