//! Durable steps: what a program sends before and after it does something, and what it is told.

use super::ErrorView;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A step that a program wants to do.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct BeginStep {
    pub name: String,
    /// Tells steps of one name apart; without it their input does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// What it does it with, at most 256 KiB.
    #[serde(default)]
    pub input: Value,
    /// May be done again if its outcome is unknown. Otherwise a person is asked.
    #[serde(default)]
    pub idempotent: bool,
    /// How long the program may be silent; 60 s unless given. Heartbeats renew it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_ms: Option<i64>,
    /// Decimal credits that are set aside until it has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_cost: Option<String>,
    /// How long to wait for a step that another process does, for a person, or for the end of a pause; at most 60 s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_ms: Option<i64>,
}

/// What became of a step that was asked for, or reported about.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct StepAnswer {
    /// `go`: do it. `completed`: its output is here. `failed` and `skipped`: it will not be done. Of a `next` also `held`, `waiting` and
    /// `paused`: ask for it by itself.
    pub state: String,
    pub id: Option<String>,
    /// To be sent with its end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fence: Option<i64>,
    /// The same in every try and attempt. Pass it on, so that a remote service can recognise a repetition.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease_ms: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<ErrorView>,
    /// What became of the step that was to begin with the end of this one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(no_recursion))]
    pub next: Option<Box<StepAnswer>>,
    /// Status of the run, if it was finished with this step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run_status: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct CompleteStep {
    pub fence: i64,
    /// At most 256 KiB; of a step that was taken by a poll 8 MiB, which become an artifact of the run.
    #[serde(default)]
    pub output: Value,
    /// Decimal credits that it has cost, at most its `max_cost`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<String>,
    /// Begins in the same commit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<BeginStep>,
    /// Ends the run, which is of `type: external`, in the same commit: this was its last step. Not together with `next`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finish: Option<FinishBody>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct FailStep {
    pub fence: i64,
    pub message: String,
    /// `failed` unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// What kind of error it is: `transient`, `rate_limited`, `resource`, `invalid_output` or `permanent`. Unless given, `permanent`; of a
    /// step that was polled for and whose effect is not `done`, `transient`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<String>,
    /// Whether it did something: `none`, `done` or `perhaps`. Unless given, `done`; of a step that was polled for, `perhaps`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effect: Option<String>,
}

/// What a program can do: it gets the oldest `external` step of a plan that is offered under one of these names.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct PollSteps {
    /// Names of tools, at most 20.
    pub tools: Vec<String>,
    /// How long to wait for a step; 30 s unless given, at most 60 s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_ms: Option<i64>,
    /// How long the program may be silent while it works on the step; 60 s unless given. Heartbeats renew it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_ms: Option<i64>,
}

/// A step that a program has taken: it reports the end with this fence, at `/runs/{run}/steps/{id}/complete` or `/fail`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PolledStep {
    pub run: String,
    pub run_name: String,
    pub id: String,
    /// Its agent, task and name.
    pub path: String,
    pub tool: String,
    pub fence: i64,
    /// The same in every try and attempt. Pass it on, so that a remote service can recognise a repetition.
    pub key: String,
    pub input: Value,
    /// May be done again if its outcome is unknown.
    pub idempotent: bool,
    pub lease_ms: i64,
    /// When its time is up. Heartbeats do not move it.
    pub deadline_at: Option<i64>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct BeatStep {
    pub fence: i64,
    /// From now on; as before unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_ms: Option<i64>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct StepBeat {
    /// `go`, `pause` (end this step, then wait) or `cancel` (stop: the step is cancelled).
    pub state: String,
}

/// The end of a run of `type: external`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default, deny_unknown_fields)]
pub struct FinishBody {
    /// What the run answers, at most 256 KiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output: Option<Value>,
    /// Why it failed; without it the run is completed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}
