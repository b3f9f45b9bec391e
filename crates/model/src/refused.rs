//! The two kinds of failure: a rule refuses (`Refused`), or something external fails, such as a provider or the database (`Trouble`).
//! A bug is an assertion instead.

use crate::credits::Credits;
use crate::offer::Passed;
use crate::spec::Resources;
use crate::time::Timestamp;
use serde::{Deserialize, Serialize};

/// A rule refuses. Each refusal has a code that programs can match, and a sentence that names the fix.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    #[error("no such {what}: {id}")]
    NotFound { what: &'static str, id: String },
    #[error("{what} is {state}, so `{event}` is not possible")]
    NotFrom { what: &'static str, state: String, event: String, allowed: Vec<&'static str> },
    #[error("need {needed} credits, have {available}: add credits or lower --budget")]
    Unaffordable { needed: Credits, available: Credits },
    #[error("its budget of {budget} credits is used up: earlier attempts cost {spent}")]
    BudgetSpent { budget: Credits, spent: Credits },
    #[error("{0}")]
    DoesNotFit(Box<Unfit>),
    #[error("its processes are to run in a sandbox, and machines of {place} cannot make one: {why}")]
    NoSandbox { place: String, why: String },
    #[error("provider: `{provider}` bills, and is taken only when you ask for it yourself")]
    Unasked { provider: String },
    #[error("{field}: {why}")]
    Invalid { field: String, why: String },
    #[error("{}", BadPlan::sentence(problems))]
    InvalidPlan { problems: Vec<BadPlan> },
    #[error("{why}")]
    Conflict { why: String },
    #[error("another request or worker changed {what} meanwhile")]
    Stale { what: &'static str },
    #[error("another holder has taken over {what}")]
    Fenced { what: String },
    #[error("epoch {given} of {job} is over: {current} is current")]
    OldEpoch { job: String, given: i64, current: i64 },
    #[error("try {given} of {step} is not the current one: {current} is")]
    OldTry { step: String, given: i64, current: i64 },
    #[error("expected log offset {expected}, got {given}")]
    LogGap { expected: i64, given: i64 },
    #[error("the idempotency key was used with another request: use a new key")]
    KeyReused,
    #[error("a request with this idempotency key is still under way: try again in {after_ms} ms")]
    KeyBusy { after_ms: i64 },
    #[error("not signed in: {why}")]
    Unauthorized { why: String },
    #[error("this token may not {what}: it lacks the scope {scope}")]
    Forbidden { what: String, scope: &'static str },
    #[error("held by {by} for another {}", crate::time::show_duration(*left_ms))]
    Held { until: Timestamp, left_ms: i64, by: String },
    #[error("{what} is larger than {limit}")]
    TooLarge { what: &'static str, limit: String },
    #[error("{what} is gone: {why}")]
    Gone { what: &'static str, why: String },
    /// Said to a runner with a good token: what runs there works on until a person has tracked it again.
    #[error("no record here knows {name}: see `repl orphans recovery-report`")]
    Unlisted { name: String },
}

/// The code by which a runner is told that no row knows it, or its jobs.
pub const UNLISTED: &str = "unlisted";
/// What a runner is answered whose machine was terminated.
pub const GONE: &str = "gone";

/// One thing that is wrong with a plan, and where.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BadPlan {
    /// Like `agents[0].tasks[1].depends_on`.
    pub path: String,
    pub detail: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fix: Option<String>,
}

/// No machine of a provider could ever have what is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unfit {
    /// Where a plan asks for it, like `agents.build`; none if the run does.
    pub at: Option<String>,
    pub asked: Resources,
    pub place: String,
    pub why: Passed,
    /// Providers that could, if they were asked for.
    pub others: Vec<String>,
}

impl std::fmt::Display for Unfit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Unfit { asked, place, .. } = self;
        if let Some(at) = &self.at {
            write!(f, "{at}: ")?;
        }
        match &self.why {
            Passed::TooLarge { largest } => {
                write!(f, "asked for {asked}, and the largest machine of {place} has {largest}")
            }
            why => write!(f, "asked for {asked}, and {place} has no such machine: {why}"),
        }
    }
}

impl BadPlan {
    fn sentence(problems: &[BadPlan]) -> String {
        let first = problems.first().map(|problem| match problem.path.as_str() {
            "" => problem.detail.clone(),
            path => format!("{path}: {}", problem.detail),
        });
        let more = match problems.len() {
            0 | 1 => String::new(),
            count => format!(" (and {} more)", count - 1),
        };
        format!("plan: {}{more}", first.unwrap_or_default())
    }
}

impl Refused {
    /// Stable name of this refusal in problem documents and `--json`.
    pub fn code(&self) -> &'static str {
        match self {
            Refused::NotFound { .. } => "not_found",
            Refused::NotFrom { .. } => "invalid_state_transition",
            Refused::Unaffordable { .. } => "insufficient_credits",
            Refused::BudgetSpent { .. } => "budget_spent",
            Refused::DoesNotFit(_) => "does_not_fit",
            Refused::NoSandbox { .. } => "no_sandbox",
            Refused::Unasked { .. } => "provider_not_asked_for",
            Refused::Invalid { .. } => "invalid",
            Refused::InvalidPlan { .. } => "invalid_plan",
            Refused::Conflict { .. } => "conflict",
            Refused::Stale { .. } => "stale",
            Refused::Fenced { .. } => "fenced",
            Refused::OldEpoch { .. } => "old_epoch",
            Refused::OldTry { .. } => "old_try",
            Refused::LogGap { .. } => "log_gap",
            Refused::KeyReused => "idempotency_key_reused",
            Refused::KeyBusy { .. } => "idempotency_key_busy",
            Refused::Unauthorized { .. } => "unauthorized",
            Refused::Forbidden { .. } => "forbidden",
            Refused::Held { .. } => "held",
            Refused::TooLarge { .. } => "too_large",
            Refused::Gone { .. } => GONE,
            Refused::Unlisted { .. } => UNLISTED,
        }
    }

    pub fn not_from(
        what: &'static str,
        state: impl ToString,
        event: impl ToString,
        allowed: &[&'static str],
    ) -> Refused {
        Refused::NotFrom { what, state: state.to_string(), event: event.to_string(), allowed: allowed.to_vec() }
    }
    pub fn not_found(what: &'static str, id: impl ToString) -> Refused {
        Refused::NotFound { what, id: id.to_string() }
    }
    pub fn invalid(field: impl Into<String>, why: impl Into<String>) -> Refused {
        Refused::Invalid { field: field.into(), why: why.into() }
    }
}

/// Whether a failed call may have had its effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Effect {
    None,
    /// Look by name before trying again.
    Perhaps,
    /// It happened; what came back is an error or cannot be used.
    Done,
}

impl Effect {
    pub fn as_str(self) -> &'static str {
        match self {
            Effect::None => "none",
            Effect::Perhaps => "perhaps",
            Effect::Done => "done",
        }
    }
}

/// The kind of an external failure; callers decide by it what to do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TroubleKind {
    Capacity,
    Auth,
    RateLimit,
    Quota,
    InvalidSpec,
    Region,
    Network,
    Timeout,
    NotFound,
    DiskFull,
    Database,
    Internal,
}

/// An external failure: a provider, the database, the network or a time-out.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what}")]
pub struct Trouble {
    pub kind: TroubleKind,
    pub what: String,
    pub retry: bool,
    pub effect: Effect,
    /// No sooner than after this, as who failed has said.
    pub retry_after_ms: Option<i64>,
}

/// The words of an error and of each error behind it, each said once: HTTP libraries keep the reason in the last one.
pub fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        let said = inner.to_string();
        if !text.contains(&said) {
            text = format!("{text}: {said}");
        }
        cause = inner.source();
    }
    text
}

impl Trouble {
    pub fn new(kind: TroubleKind, what: impl Into<String>) -> Trouble {
        let retry = matches!(
            kind,
            TroubleKind::Capacity
                | TroubleKind::RateLimit
                | TroubleKind::Network
                | TroubleKind::Timeout
                | TroubleKind::DiskFull
                | TroubleKind::Database
        );
        let effect = if kind == TroubleKind::Timeout { Effect::Perhaps } else { Effect::None };
        Trouble { kind, what: what.into(), retry, effect, retry_after_ms: None }
    }
    pub fn internal(what: impl Into<String>) -> Trouble {
        Trouble::new(TroubleKind::Internal, what)
    }
    pub fn perhaps(mut self) -> Trouble {
        self.effect = Effect::Perhaps;
        self
    }
}

/// Why something did not happen.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    #[error(transparent)]
    Refused(#[from] Refused),
    #[error(transparent)]
    Trouble(#[from] Trouble),
}

impl Failure {
    pub fn refused(&self) -> Option<&Refused> {
        match self {
            Failure::Refused(refused) => Some(refused),
            Failure::Trouble(_) => None,
        }
    }
}
