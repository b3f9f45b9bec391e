//! Calls of tools that are under way in this process, and how they come to their end.

use super::hints::RunHints;
use super::large::PutAway;
use crate::TimerFuture;
use crate::dialogue::ChildFailure;
use crate::step::Place;
use adapters::{ToolAnswer, ToolFailure};
use model::recovery::{ErrorClass, StepFailure};
use model::run::LastError;
use model::step::ToolKind;
use model::{Effect, StepId, Timestamp};
use serde_json::Value;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::task::{Context, Poll};

/// The code of a failure of a call that had its effect, and whose output cannot be used.
pub(crate) const INVALID_OUTPUT: &str = "invalid_output";

/// Bytes of a step's output, as JSON.
pub(crate) const MAX_OUTPUT_BYTES: usize = 256 * 1024;

/// A try of a step, as its holder names it in every report.
pub(super) type Try = (StepId, i64);

/// A call that is under way in this process.
pub(super) struct OpenCall {
    pub(super) of: Try,
    /// Of a step of the plan; a child of one has no place in it.
    pub(super) place: Option<Place>,
    pub(super) idempotent: bool,
    pub(super) called: Option<Called>,
    pub(super) tool: ToolKind,
    /// Bytes of text that the tool has written to its log so far.
    pub(super) said: Arc<AtomicI64>,
    pub(super) future: Pin<Box<dyn Future<Output = Result<ToolAnswer, ToolFailure>> + Send>>,
    pub(super) limit: Option<TimerFuture>,
}

impl OpenCall {
    fn ended(&mut self, found: Found) -> Ended {
        let called = self.called.take();
        let said = self.said.load(Ordering::Relaxed);
        Ended { of: self.of, place: self.place, found, called, tool: self.tool, said, put_away: None }
    }

    pub(super) fn held(&self) -> Held {
        Held { of: self.of, idempotent: self.idempotent, said: self.said.load(Ordering::Relaxed) }
    }
}

/// What a commit has to know of a call that is under way.
#[derive(Debug, Clone, Copy)]
pub(super) struct Held {
    pub(super) of: Try,
    pub(super) idempotent: bool,
    /// Bytes of text that the tool has written to its log so far.
    pub(super) said: i64,
}

/// A call that came to its end, or was given up.
pub(super) struct Ended {
    pub(super) of: Try,
    /// Of a step of the plan; a child of one has no place in it.
    pub(super) place: Option<Place>,
    pub(super) found: Found,
    pub(super) called: Option<Called>,
    pub(super) tool: ToolKind,
    /// Bytes of text that the tool wrote to its log.
    pub(super) said: i64,
    /// Where most of its output is.
    pub(super) put_away: Option<PutAway>,
}

/// What a call was sent to, and when its try began.
#[derive(Debug, Clone)]
pub(super) struct Called {
    pub(super) endpoint: String,
    pub(super) began_at: Timestamp,
}

pub(super) enum Found {
    Answer(ToolAnswer),
    Failed(ToolFailure),
    /// Of a dialogue: a turn of it, or a list of tools, was not answered.
    ChildFailed(ChildFailure),
    /// Cut off, because this process ends.
    Cut,
}

pub(super) enum Woken {
    Ended(Vec<Ended>),
    Look,
    Time,
    Closing,
}

pub(super) fn poll_acts(
    acts: &mut Vec<OpenCall>,
    hints: &mut RunHints,
    timer: &mut TimerFuture,
    deadline: &mut Option<TimerFuture>,
    closing: Pin<&mut impl Future<Output = ()>>,
    context: &mut Context<'_>,
) -> Poll<Woken> {
    if let Poll::Ready(ended) = poll_ended(acts, context) {
        return Poll::Ready(Woken::Ended(ended));
    }
    if closing.poll(context).is_ready() {
        return Poll::Ready(Woken::Closing);
    }
    if deadline.as_mut().is_some_and(|deadline| deadline.as_mut().poll(context).is_ready()) {
        return Poll::Ready(Woken::Time);
    }
    if timer.as_mut().poll(context).is_ready() || hints.poll(context).is_ready() {
        return Poll::Ready(Woken::Look);
    }
    Poll::Pending
}

/// Those that have ended, as soon as there is one.
pub(super) fn poll_ended(acts: &mut Vec<OpenCall>, context: &mut Context<'_>) -> Poll<Vec<Ended>> {
    let mut ended = Vec::new();
    acts.retain_mut(|act| match poll_act(act, context) {
        Poll::Ready(found) => {
            ended.push(act.ended(found));
            false
        }
        Poll::Pending => true,
    });
    if ended.is_empty() { Poll::Pending } else { Poll::Ready(ended) }
}

/// The limit is looked at first: a process that stood still for longer must not go on with what others have given up.
fn poll_act(act: &mut OpenCall, context: &mut Context<'_>) -> Poll<Found> {
    if act.limit.as_mut().is_some_and(|limit| limit.as_mut().poll(context).is_ready()) {
        return Poll::Ready(Found::Failed(timed_out()));
    }
    act.future.as_mut().poll(context).map(|found| match found {
        Ok(answer) => Found::Answer(answer),
        Err(failure) => Found::Failed(failure),
    })
}

pub(super) fn cut_all(acts: &mut Vec<OpenCall>) -> Vec<Ended> {
    acts.drain(..).map(|mut act| act.ended(Found::Cut)).collect()
}

pub(crate) fn output_problem(output: &Value, schema: Option<&Value>) -> Option<ToolFailure> {
    let bytes = output.to_string().len();
    if bytes > MAX_OUTPUT_BYTES {
        return Some(too_large(format!("its output has {bytes} bytes: {MAX_OUTPUT_BYTES} are allowed")));
    }
    schema_problem(output, schema)
}

pub(super) fn too_large(message: String) -> ToolFailure {
    failed(ErrorClass::Permanent, Effect::Done, "output_too_large", message)
}

pub(crate) fn schema_problem(output: &Value, schema: Option<&Value>) -> Option<ToolFailure> {
    let compiled = plan::OutputSchema::compile(schema?);
    let problems = compiled.map_err(|why| vec![why]).and_then(|schema| schema.validate(output)).err()?;
    Some(invalid_output(format!("its output does not match its schema: {}", problems.join("; "))))
}

pub(super) fn invalid_output(message: String) -> ToolFailure {
    failed(ErrorClass::InvalidOutput, Effect::Done, INVALID_OUTPUT, message)
}

fn failed(class: ErrorClass, effect: Effect, code: &str, message: String) -> ToolFailure {
    let error = LastError { code: code.into(), message, cause: None };
    ToolFailure { failure: StepFailure { class, effect, retry_after_ms: None, error }, usage: None }
}

fn timed_out() -> ToolFailure {
    failed(ErrorClass::Transient, Effect::Perhaps, "timeout", "the step's time limit passed".into())
}

pub(super) fn no_tool(tool: ToolKind) -> ToolFailure {
    failed(ErrorClass::Permanent, Effect::None, "no_tool", format!("this worker has no tool `{tool}`"))
}

pub(super) fn cut_off() -> LastError {
    LastError { code: "cut_off".into(), message: "the worker that called its tool was stopped".into(), cause: None }
}

pub(super) fn holder_gone() -> LastError {
    LastError { code: "holder_gone".into(), message: "the worker that called its tool is gone".into(), cause: None }
}
