//! A step that calls a function (`call:` in a plan). It is answered by a kept result, or waits for the execution of the same call, which it
//! shares with all other callers. A repeated try finds what was begun: by content, and without a cache by the step's key.

use crate::Engine;
use crate::call::{CallAsked, CallSeen};
use adapters::{Tool, ToolAnswer, ToolCall, ToolFailure, ToolFuture, ToolLog};
use model::execution::ExecutionStatus;
use model::recovery::ErrorClass;
use model::run::LastError;
use model::{Effect, Failure, OrgId, RunId};
use serde_json::Value;
use std::future::poll_fn;
use std::task::Poll;
use store::{Hint, Topic};
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;

/// Hints may be lost: the execution is looked at so often in any case.
const LOOK_EVERY_MS: i64 = 5_000;
const FIELDS: [&str; 3] = ["function", "inputs", "cache"];

pub(crate) struct CallTool {
    pub(crate) engine: Engine,
    pub(crate) org: OrgId,
    pub(crate) run: RunId,
    /// Of the run: what another attempt repeats is executed anew if it wants no cache.
    pub(crate) attempt: i64,
}

impl Tool for CallTool {
    fn call<'a>(&'a self, call: &'a ToolCall, _: &'a dyn ToolLog) -> ToolFuture<'a> {
        Box::pin(async move {
            let seen = self.result(call).await?;
            answer(&seen)
        })
    }
}

impl CallTool {
    /// The call when it is over.
    async fn result(&self, call: &ToolCall) -> Result<CallSeen, ToolFailure> {
        let asked = self.asked(&call.input)?;
        let step = format!("{} in attempt {}", call.key, self.attempt);
        // Before the look: a change after it rings.
        let mut hints = self.engine.store.hints();
        let mut seen = self.engine.call_by_run(asked, self.run, &step).await.map_err(failed)?;
        while let Some(id) = seen.id.filter(|_| !seen.status.is_end()) {
            let mut heard = Box::pin(heard(&mut hints, self.org));
            let mut timer = self.engine.context.timer.after(LOOK_EVERY_MS);
            poll_fn(|context| match heard.as_mut().poll(context) {
                Poll::Ready(()) => Poll::Ready(()),
                Poll::Pending => timer.as_mut().poll(context),
            })
            .await;
            drop(heard);
            seen = self.engine.called(self.org, id).await.map_err(failed)?;
        }
        Ok(seen)
    }

    fn asked(&self, input: &Value) -> Result<CallAsked, ToolFailure> {
        let invalid = |why: String| ToolFailure::new(ErrorClass::Permanent, Effect::None, "invalid_input", why);
        let unknown = input.as_object().and_then(|all| all.keys().find(|name| !FIELDS.contains(&name.as_str())));
        if let Some(name) = unknown {
            return Err(invalid(format!("a call has no field `{name}`")));
        }
        let function = input["function"].as_str().ok_or_else(|| invalid("a call needs `function`".to_owned()))?;
        let inputs = match &input["inputs"] {
            Value::Null => Vec::new(),
            Value::Array(inputs) => inputs.clone(),
            _ => return Err(invalid("`inputs` must be a list".to_owned())),
        };
        let cache = input["cache"].as_bool().unwrap_or(true);
        Ok(CallAsked { org: self.org, function: function.to_owned(), inputs, cache })
    }
}

/// Ready when an execution of the org may have changed.
async fn heard(hints: &mut Receiver<Hint>, org: OrgId) {
    loop {
        match hints.recv().await {
            Ok(Hint::Org(of, Topic::Calls)) if of == org => return,
            Ok(Hint::Everything) | Err(RecvError::Lagged(_)) => return,
            Ok(_) => {}
            Err(RecvError::Closed) => std::future::pending().await,
        }
    }
}

/// What the control plane itself refuses or cannot do now.
fn failed(failure: Failure) -> ToolFailure {
    match failure {
        Failure::Refused(refused) => {
            ToolFailure::new(ErrorClass::Permanent, Effect::None, refused.code(), refused.to_string())
        }
        Failure::Trouble(trouble) => ToolFailure::new(ErrorClass::Transient, Effect::None, "call", trouble.to_string()),
    }
}

/// The value is the step's output. A function that failed would fail again: its error is kept. What was never executed may be later.
fn answer(seen: &CallSeen) -> Result<ToolAnswer, ToolFailure> {
    let Some(result) = &seen.result else {
        let unknown =
            || LastError { code: "result_gone".into(), message: "its result was deleted".into(), cause: None };
        let error = seen.error.clone().unwrap_or_else(unknown);
        let class = match (error.code.as_str(), seen.status) {
            ("cancelled", ExecutionStatus::FailedTerminal) => ErrorClass::Cancelled,
            _ if seen.may_pass => ErrorClass::Transient,
            _ => ErrorClass::Permanent,
        };
        return Err(ToolFailure::new(class, Effect::Perhaps, &error.code, error.message));
    };
    let value = result.value.clone().unwrap_or_default();
    if result.ok {
        return Ok(ToolAnswer { output: value, usage: None });
    }
    let said = |name: &str| value.get(name).and_then(Value::as_str).map(str::to_owned);
    let exit = value.get("exit_code").map(|code| format!("the command exited with code {code}"));
    let message = said("message").or(exit).unwrap_or_else(|| value.to_string().chars().take(2_000).collect());
    let code = said("type").unwrap_or_else(|| "function_failed".to_owned());
    Err(ToolFailure::new(ErrorClass::Permanent, Effect::Done, &code, message))
}
