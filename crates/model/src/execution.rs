//! The state machine of an execution: what an Executor does about one attempt at a call node (seed 003 §1.1). Holds the adapter's newest
//! token, the stored answer and the last safe state. Never reads a clock and never looks at a token.

use crate::bug;
use crate::recovery::{backoff, jitter};
use crate::run::LastError;
use crate::{OrgId, Outcome, Refused, RunId, Timestamp, moved, string_enum, unchanged};
use serde::{Deserialize, Serialize};

string_enum! {
    pub enum ExecutionStatus {
        ResolveCallNode = "resolve_call_node", PollAdapter = "poll_adapter",
        IntegrateOk = "integrate_ok", IntegrateError = "integrate_error", RetryWait = "retry_wait",
        PinnedHit = "pinned_hit", CompletedOk = "completed_ok", CompletedError = "completed_error",
        FailedTerminal = "failed_terminal",
    }
}

impl ExecutionStatus {
    pub fn is_end(self) -> bool {
        matches!(self, S::PinnedHit | S::CompletedOk | S::CompletedError | S::FailedTerminal)
    }
}

string_enum! {
    /// What the adapter is still to be asked after the end. The answers change nothing about the end.
    pub enum Closing { Cancel = "cancel", Cleanup = "cleanup" }
}

/// How often an adapter is asked to stop or to clean up. After that it is left alone.
pub const MAX_CLOSINGS: i64 = 10;

/// Failures in a row after which an execution ends. Any valid answer of the adapter starts the count again.
pub const MAX_TRIES: i64 = 3;

#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Execution {
    pub org: OrgId,
    /// The execution key: 64 hexadecimal digits.
    pub key: String,
    /// The call node.
    pub node: String,
    pub attempt: i64,
    /// The URI of the function.
    #[serde(default)]
    pub function: String,
    /// A caller that is no run has asked for it (`POST /calls`) and has not cancelled.
    #[serde(default)]
    pub asked: bool,
    pub status: ExecutionStatus,
    /// Where `retry_wait` resumes: the last safe state.
    pub resume: Option<ExecutionStatus>,
    pub failures: i64,
    /// No caller polls or retries before this. One time for all callers of the execution.
    pub not_before: Option<Timestamp>,
    pub token: Option<String>,
    /// Raised with each stored token: a poll says which version it was made with.
    pub token_version: i64,
    pub done: Option<Answered>,
    /// The exec that is pinned for the node, at a hit or at the end.
    pub exec: Option<String>,
    pub error: Option<LastError>,
    pub started_at: Option<Timestamp>,
    pub ended_at: Option<Timestamp>,
    #[serde(default)]
    pub closing: Option<Closing>,
    /// It failed because retries did not help, or because workers died on it: the same call may go well another time.
    #[serde(default)]
    pub gave_up: bool,
}

/// The adapter's final answer, as it was stored: exec records are made from this alone.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Answered {
    pub ok: bool,
    /// The result dag, for success and failure alike.
    pub result: String,
    pub at: Timestamp,
}

impl Execution {
    pub fn new(org: OrgId, key: String, node: String, attempt: i64) -> Execution {
        Execution {
            org,
            key,
            node,
            attempt,
            function: String::new(),
            asked: false,
            status: S::ResolveCallNode,
            resume: None,
            failures: 0,
            not_before: None,
            token: None,
            token_version: 0,
            done: None,
            exec: None,
            error: None,
            started_at: None,
            ended_at: None,
            closing: None,
            gave_up: false,
        }
    }

    /// When the execution is to be looked at again, if nothing happens before.
    pub fn deadline(&self) -> Option<Timestamp> {
        if self.status.is_end() && self.closing.is_none() { None } else { self.not_before }
    }

    /// After an answer to `cancel` or `cleanup`: the next question, or the same one again later. `done` is false for every other answer.
    pub fn closed(&self, done: bool, retry_after_ms: Option<i64>, at: Timestamp) -> Execution {
        let mut next = self.clone();
        next.failures += 1;
        if done || next.failures >= MAX_CLOSINGS {
            next.closing = match self.closing {
                Some(Closing::Cancel) => Some(Closing::Cleanup),
                _ => None,
            };
            (next.failures, next.not_before) = (0, None);
        } else {
            let pause = backoff(next.failures, jitter(drawn_from(&next.key), next.failures));
            next.not_before = Some(at + retry_after_ms.unwrap_or(pause).max(0));
        }
        next
    }

    /// The state that an answer of the adapter is an answer in, also while a retry is waited for.
    fn safe_state(&self) -> ExecutionStatus {
        self.resume.unwrap_or(self.status)
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExecutionEvent {
    /// The active index has an exec for the node. One with status ERROR is a hit, too (R113).
    Pinned {
        exec: String,
    },
    NotPinned,
    /// The result of an input is an ERROR, so the call cannot be made.
    InputFailed {
        error: LastError,
    },
    /// `seen` is the version of the token that the adapter was polled with.
    Pending {
        token: String,
        seen: i64,
        retry_after_ms: Option<i64>,
    },
    Done {
        ok: bool,
        result: String,
    },
    /// A time-out, garbage, a remote that does not answer, result objects that are not there yet.
    TransientFailure {
        error: LastError,
    },
    /// The adapter answered `failed`.
    NonRetryableFailure {
        error: LastError,
    },
    WaitOver,
    /// Result objects are here and valid; exec, trie, commit and ref are in this transaction.
    Integrated {
        exec: String,
    },
    /// Another execution of the node was pinned OK first.
    PinnedByAnother {
        exec: String,
    },
    /// Of an adapter that is a run of this system: its backend failed or lost its job, and says nothing about the call. `result` is the dag
    /// that says why (R116); it is never pinned.
    JobFailed {
        error: LastError,
        result: String,
    },
    /// Workers died on it again and again.
    WorkItemDied {
        error: LastError,
    },
    /// A record of the result is not valid, or is one that a worker may not write (R154).
    ResultRefused {
        error: LastError,
    },
    /// The last caller cancelled.
    Abandoned,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExecutionConsequence {
    /// Invoke the adapter with the stored token, not before the stored time.
    Poll,
    /// Fetch and check the result dag, then write the exec and pin it.
    Integrate,
    /// Ask the adapter to stop the work, then to clean up.
    Cancel,
    /// Ask the adapter to remove what it made. The outcome changes nothing here.
    Cleanup,
    /// Callers that wait can be answered.
    TellCallers,
}

use ExecutionConsequence as C;
use ExecutionEvent as E;
use ExecutionStatus as S;

pub fn apply(
    execution: &Execution,
    event: &ExecutionEvent,
    at: Timestamp,
) -> Result<Outcome<Execution, ExecutionConsequence>, Refused> {
    let mut next = execution.clone();
    match (execution.status, event) {
        // Reported late: an end stays as it is.
        (end, _) if end.is_end() => unchanged(),
        (_, E::Abandoned) => {
            let error =
                LastError { code: "cancelled".into(), message: "its last caller cancelled".into(), cause: None };
            end(next, S::FailedTerminal, Some(error), at, C::Cancel)
        }
        (_, E::WorkItemDied { error }) => {
            next.gave_up = true;
            end(next, S::FailedTerminal, Some(error.clone()), at, C::Cancel)
        }
        (S::ResolveCallNode, E::Pinned { exec }) => {
            next.exec = Some(exec.clone());
            next.status = S::PinnedHit;
            next.ended_at = Some(at);
            moved(next, [C::TellCallers])
        }
        (S::ResolveCallNode, E::InputFailed { error }) => {
            next.status = S::FailedTerminal;
            next.error = Some(error.clone());
            next.ended_at = Some(at);
            moved(next, [C::TellCallers])
        }
        (S::ResolveCallNode, E::NotPinned) => {
            next.status = S::PollAdapter;
            next.started_at = Some(at);
            moved(next, [C::Poll])
        }
        (S::ResolveCallNode, event) => refused(execution, event),
        (S::RetryWait, E::WaitOver) => wait_over(next, at),
        // Two pollers of one execution failed: one wait for both.
        (S::RetryWait, E::TransientFailure { .. }) => unchanged(),
        (_, E::TransientFailure { error }) => stumble(next, error, at),
        (_, E::Pinned { .. } | E::NotPinned | E::InputFailed { .. } | E::WaitOver) => unchanged(),
        (_, event) if execution.safe_state() == S::PollAdapter => polled(next, event, at),
        (_, event) => integrated(next, event, at),
    }
}

type Applied = Result<Outcome<Execution, ExecutionConsequence>, Refused>;

fn refused(execution: &Execution, event: &ExecutionEvent) -> Applied {
    Err(Refused::not_from("execution", execution.status, name(event), &[]))
}

/// An answer of the adapter, or of an earlier poll that took longer.
fn polled(mut next: Execution, event: &ExecutionEvent, at: Timestamp) -> Applied {
    match event {
        // An older token never overwrites a newer one (R115).
        E::Pending { seen, .. } if *seen < next.token_version && !bug!(older_token_overwrites) => unchanged(),
        E::Pending { seen, .. } if *seen > next.token_version => Err(Refused::Stale { what: "the execution's token" }),
        E::Pending { token, retry_after_ms, .. } => {
            next.token = Some(token.clone());
            next.token_version += 1;
            next.not_before = retry_after_ms.map(|ms| at + ms.max(0));
            moved(answered(next, S::PollAdapter), [C::Poll])
        }
        E::Done { ok, result } => {
            next.done = Some(Answered { ok: *ok, result: result.clone(), at });
            next.not_before = None;
            moved(answered(next, if *ok { S::IntegrateOk } else { S::IntegrateError }), [C::Integrate])
        }
        E::NonRetryableFailure { error } => end(next, S::FailedTerminal, Some(error.clone()), at, C::Cleanup),
        E::JobFailed { error, result } => {
            next.done = Some(Answered { ok: false, result: result.clone(), at });
            end(next, S::FailedTerminal, Some(error.clone()), at, C::Cleanup)
        }
        event => refused(&next, event),
    }
}

/// `done` is stored; it is an end only when its result is here and pinned.
fn integrated(mut next: Execution, event: &ExecutionEvent, at: Timestamp) -> Applied {
    match event {
        E::Integrated { exec } => {
            next.exec = Some(exec.clone());
            let status = if next.safe_state() == S::IntegrateOk { S::CompletedOk } else { S::CompletedError };
            end(next, status, None, at, C::Cleanup)
        }
        E::PinnedByAnother { exec } => {
            next.exec = Some(exec.clone());
            end(next, S::PinnedHit, None, at, C::Cleanup)
        }
        E::ResultRefused { error } => end(next, S::FailedTerminal, Some(error.clone()), at, C::Cleanup),
        // Of a poll that was under way when `done` came: the first answer counts.
        _ => unchanged(),
    }
}

fn answered(mut next: Execution, status: ExecutionStatus) -> Execution {
    next.status = status;
    (next.resume, next.failures, next.error) = (None, 0, None);
    next
}

fn stumble(mut next: Execution, error: &LastError, at: Timestamp) -> Applied {
    next.failures += 1;
    // The wait after the last try ends at once.
    let wait_ms = if next.failures < MAX_TRIES {
        backoff(next.failures, jitter(drawn_from(&next.key), next.failures))
    } else {
        0
    };
    next.resume = Some(next.status);
    next.status = S::RetryWait;
    next.error = Some(error.clone());
    next.not_before = Some(at + wait_ms);
    moved(next, [])
}

fn wait_over(mut next: Execution, at: Timestamp) -> Applied {
    if next.not_before.is_some_and(|due| at < due) {
        return unchanged();
    }
    if next.failures >= MAX_TRIES {
        let error = next.error.clone();
        next.gave_up = true;
        return end(next, S::FailedTerminal, error, at, C::Cleanup);
    }
    let resume = next.resume.take().unwrap_or(S::PollAdapter);
    next.status = resume;
    next.not_before = None;
    moved(next, [if resume == S::PollAdapter { C::Poll } else { C::Integrate }])
}

fn end(
    mut next: Execution,
    status: ExecutionStatus,
    error: Option<LastError>,
    at: Timestamp,
    then: ExecutionConsequence,
) -> Applied {
    let began = next.started_at.is_some();
    next.status = status;
    next.error = error;
    (next.resume, next.not_before, next.ended_at) = (None, None, Some(at));
    next.failures = 0;
    if began {
        next.closing = Some(if then == C::Cancel { Closing::Cancel } else { Closing::Cleanup });
    }
    // Before the first poll the adapter knows nothing of it.
    moved(next, if began { vec![then, C::TellCallers] } else { vec![C::TellCallers] })
}

/// A number for the jitter: the same for the same key.
fn drawn_from(key: &str) -> RunId {
    RunId(key.bytes().fold(0i64, |number, byte| number.wrapping_mul(31).wrapping_add(i64::from(byte))))
}

pub fn name(event: &ExecutionEvent) -> &'static str {
    match event {
        E::Pinned { .. } => "pinned",
        E::NotPinned => "not_pinned",
        E::InputFailed { .. } => "input_failed",
        E::Pending { .. } => "pending",
        E::Done { ok: true, .. } => "done(ok)",
        E::Done { ok: false, .. } => "done(error)",
        E::TransientFailure { .. } => "transient_failure",
        E::NonRetryableFailure { .. } => "non_retryable_failure",
        E::WaitOver => "wait_over",
        E::Integrated { .. } => "integrated",
        E::PinnedByAnother { .. } => "pinned_by_another",
        E::JobFailed { .. } => "job_failed",
        E::WorkItemDied { .. } => "work_item_died",
        E::ResultRefused { .. } => "result_refused",
        E::Abandoned => "abandoned",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_adapter_is_asked_to_stop_then_to_clean_up_and_not_for_ever() {
        let at = Timestamp(1_000);
        let begun = Execution { started_at: Some(at), ..Execution::new(OrgId(1), "ab".repeat(32), "n".into(), 1) };
        let Ok(Outcome::Moved { next: left, .. }) = apply(&begun, &E::Abandoned, at) else { panic!("it ends") };
        assert_eq!((left.closing, left.deadline()), (Some(Closing::Cancel), None), "at once");
        let later = left.closed(false, Some(500), at);
        assert_eq!((later.closing, later.deadline()), (Some(Closing::Cancel), Some(at + 500)));
        let stopped = later.closed(true, None, at);
        assert_eq!((stopped.closing, stopped.failures, stopped.deadline()), (Some(Closing::Cleanup), 0, None));
        let mut deaf = stopped.clone();
        for _ in 1..MAX_CLOSINGS {
            deaf = deaf.closed(false, None, at);
            assert!(deaf.deadline().is_some_and(|due| due > at), "it waits before it asks again");
        }
        for over in [stopped.closed(true, None, at), deaf.closed(false, None, at)] {
            assert_eq!((over.closing, over.deadline(), over.status), (None, None, S::FailedTerminal));
        }
        let fresh = Execution::new(OrgId(1), "ab".repeat(32), "n".into(), 1);
        let Ok(Outcome::Moved { next, .. }) = apply(&fresh, &E::Abandoned, at) else { panic!("it ends") };
        assert_eq!(next.closing, None, "an adapter that was never asked knows nothing of it");
    }
}
