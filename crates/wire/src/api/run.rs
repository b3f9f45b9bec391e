//! A run as it is submitted, planned, acted on, shown and explained.

use super::{BeginStep, StepAnswer};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What a run should be. Like every public body it refuses fields it does not know: a typo must not mean "no limit".
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default, deny_unknown_fields)]
pub struct Submit {
    pub name: Option<String>,
    /// `task`, `agents` or `external` (a program elsewhere begins its steps).
    #[serde(rename = "type")]
    pub kind: Option<String>,
    /// Of `type: agents`: what its agents do, as `repl schema agents` describes it. A run of agents takes beside it only `name`, `budget`,
    /// `max_duration_ms`, `priority`, `files`, `start` and `dry_run`, which are stronger than what the plan says.
    pub plan: Option<serde_json::Value>,
    /// Run by one `sh`, in order; the first that fails ends the run with its code. Exactly one of `commands` and `argv`.
    pub commands: Vec<String>,
    pub argv: Vec<String>,
    pub env: BTreeMap<String, String>,
    pub secrets: Vec<String>,
    /// The tree of files to lay into the workdir; everything it names has been sent before.
    pub files: Option<FilesBody>,
    /// What the command reads as its standard input.
    pub stdin: Option<StdinBody>,
    pub working_dir: Option<String>,
    pub resources: ResourcesBody,
    /// Where its machine comes from; `local` unless said here or in `providers`. One that bills is taken only if it is named.
    pub provider: Option<String>,
    /// Several, in the order in which they are tried. Either this or `provider`.
    pub providers: Vec<String>,
    /// Providers that only a file of somebody else names, like the `repl.toml` of a cloned project. One of them that bills is refused.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unasked: Vec<String>,
    pub region: Option<String>,
    /// A machine that may be taken away at any time will do. Where there is none, an ordinary one is taken.
    pub spot: bool,
    pub max_duration_ms: Option<i64>,
    pub stop_duration_ms: Option<i64>,
    pub hold_ms: Option<i64>,
    /// Decimal credits.
    pub budget: Option<String>,
    pub retry: Option<RetryBody>,
    /// `high` or `normal`.
    pub priority: Option<String>,
    pub artifacts: Vec<String>,
    pub merge: bool,
    /// Whether the command runs in a sandbox: `true`, `false`, or `{"network": "none"}`. Without it, as the provider's settings say.
    pub sandbox: Option<SandboxBody>,
    /// A script for `sh -e` that prepares the machine in `$REPL_INIT` before the command starts. A machine that a run with the same script
    /// has prepared is preferred, and it is not run there again.
    pub init: Option<String>,
    /// Names of `[features]` of the control plane's settings: its machine has them before the command starts.
    pub features: Vec<String>,
    /// Id of a snapshot: its files are laid into the workdir before those of `files`.
    pub snapshot: Option<String>,
    /// When the run has ended well, its workdir becomes a snapshot.
    pub save_snapshot: bool,
    /// Whether the result of an earlier run that was the same answers this one, and this one's result later ones: `true`, `false`, or
    /// `{"salt": "…", "errors": true}`.
    pub cache: Option<CacheBody>,
    /// `finish` or `stop`.
    pub on_lost_control: Option<String>,
    /// Of `type: external`: the first step, as `POST /runs/{id}/steps` takes it. It begins in the commit that makes the run; the answer's
    /// `step` says what became of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<BeginStep>,
    /// Start at once (the usual way); otherwise the run rests in `created`.
    pub start: bool,
    /// Only check, place and price: nothing is written, answer 200 with a [`DryRun`].
    pub dry_run: bool,
}

/// How a sandbox is asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(untagged, expecting = "must be true, false or {\"network\": \"none\"}")]
pub enum SandboxBody {
    Flag(bool),
    Terms(SandboxTermsBody),
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct SandboxTermsBody {
    /// `host` or `none`.
    pub network: String,
}

/// How a cached run is asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(untagged, expecting = "must be true, false or {\"salt\": \"…\", \"errors\": true}")]
pub enum CacheBody {
    Flag(bool),
    Terms(CacheTermsBody),
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default, deny_unknown_fields)]
pub struct CacheTermsBody {
    /// Part of the key: another salt, another result.
    pub salt: String,
    /// A kept result whose exit code is not 0 is an answer, too.
    pub errors: bool,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct FilesBody {
    /// BLAKE3 of the root folder's document, in hex.
    pub tree: String,
    /// How many files there are and how many bytes they have, for people to read.
    #[serde(default)]
    pub files: i64,
    #[serde(default)]
    pub bytes: i64,
}

/// Bytes that were sent before (`PUT /blobs/{hash}`), at most 1 GiB.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct StdinBody {
    /// BLAKE3 in hex.
    pub hash: String,
    pub size: i64,
}

/// What a dry run answers.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(untagged)]
pub enum DryRun {
    Agents(AgentsPlan),
    Task(Box<Plan>),
}

/// What would become of a run of agents, as far as it can be said now.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AgentsPlan {
    /// Always true: nothing was sent, reserved or started.
    pub dry_run: bool,
    /// None of them are known yet if a planner makes them.
    pub planned_agents: i64,
    pub planned_tasks: i64,
    pub planned_steps: i64,
    /// The most that models may cost, at their prices. Machines are charged by the hour beside it.
    pub estimate: String,
    pub estimate_micro: i64,
    pub credits_available: String,
    pub credits_available_micro: i64,
    /// Remarks on what has no effect.
    pub warnings: Vec<String>,
    /// Machines of its agents: agents that ask for the same one are one entry. None are known yet if a planner makes the agents.
    #[serde(default)]
    pub machines: Vec<AgentsMachinePlan>,
}

/// The machine that each of these agents would get if it were the only one that asked now. The fields are those of [`Plan`].
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AgentsMachinePlan {
    pub agents: Vec<String>,
    pub provider: String,
    pub region: String,
    pub pool: PoolPlan,
    pub machine: Option<String>,
    pub machine_size: ResourcesBody,
    pub warm: bool,
    pub placement: String,
    pub limits: ResourcesBody,
    pub price_per_hour: String,
    pub price_per_hour_micro: i64,
}

/// What would become of a submission, as far as it can be said now.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Plan {
    /// Always true: nothing was sent, reserved or started.
    pub dry_run: bool,
    pub command: String,
    pub provider: String,
    pub region: String,
    pub pool: PoolPlan,
    /// The machine that waits for it; none if one has to be started, or to become free, first.
    pub machine: Option<String>,
    /// What that machine has, or would have.
    pub machine_size: ResourcesBody,
    /// Whether it would start at once on a machine that waits for it.
    pub warm: bool,
    /// `now`, `start_machine`, `replace_machine` (an idle one that does not fit ends first) or `wait`.
    pub placement: String,
    /// Of a run with an init: `done` if the machine has it already, else `first`: it runs before the command.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub init: Option<String>,
    /// What the job may use; what is not limited is the machine's whole.
    pub limits: ResourcesBody,
    pub price_per_hour: String,
    pub price_per_hour_micro: i64,
    /// What its start sets aside.
    pub credits_reserved: String,
    pub credits_reserved_micro: i64,
    /// The most that it can cost over all attempts of its policy; none if nothing bounds it.
    pub credits_most: Option<String>,
    pub credits_most_micro: Option<i64>,
    pub credits_available: String,
    pub credits_available_micro: i64,
    /// The longest time that an attempt may run; none if nothing limits it.
    #[serde(default)]
    pub max_duration_ms: Option<i64>,
    /// Patterns of the files that are kept afterwards.
    #[serde(default)]
    pub artifacts: Vec<String>,
    /// The network of its sandbox, `host` or `none`; without a sandbox, nothing.
    #[serde(default)]
    pub sandbox: Option<String>,
    pub files: FilesPlan,
    /// Machines that would be tried, in this order.
    #[serde(default)]
    pub offers: Vec<OfferView>,
    /// The host on which a new machine would be, where its provider has several.
    #[serde(default)]
    pub host: Option<String>,
    /// Other hosts of that provider, and why they would not be taken.
    #[serde(default)]
    pub other_hosts: Vec<OtherHostView>,
    /// Providers that would not be tried, and why.
    #[serde(default)]
    pub passed_over: Vec<PassedOverView>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct OfferView {
    pub provider: String,
    pub region: String,
    /// It may be taken away at any time.
    pub spot: bool,
    pub instance_type: Option<String>,
    pub price_per_hour: String,
    pub price_per_hour_micro: i64,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct OtherHostView {
    pub host: String,
    pub why: String,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PassedOverView {
    pub provider: String,
    pub why: String,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PoolPlan {
    pub instances: i64,
    pub max_instances: i64,
    pub available: i64,
    /// Runs that wait there already and go first.
    pub waiting: i64,
}

/// What travels with the run.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct FilesPlan {
    pub count: i64,
    pub bytes: i64,
    /// Different contents that the control plane does not have yet, standard input included; none if its tree is not here, so that
    /// `POST /blobs/missing` has to be asked.
    pub to_send: Option<i64>,
    pub bytes_to_send: Option<i64>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default, deny_unknown_fields)]
pub struct ResourcesBody {
    pub cpu_milli: Option<i64>,
    pub memory_bytes: Option<i64>,
    /// `KIND[:N]`, e.g. `a100:2`, or `2` of any kind.
    pub gpu: Option<String>,
    /// Of its machine's disk; not a limit.
    pub disk_bytes: Option<i64>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct RetryBody {
    /// First included.
    pub max_attempts: i64,
    /// `error`, `no-capacity`, `interruption`.
    pub on_events: Vec<String>,
    #[serde(default)]
    pub duration_ms: Option<i64>,
    /// Pause before a new attempt after an error; without it 100 ms, doubled each time, at most 30 s, ±10 %.
    #[serde(default)]
    pub delay_ms: Option<i64>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default, deny_unknown_fields)]
pub struct ActionBody {
    /// With cancel: kill at once.
    pub abort: bool,
    /// With retry: a person says that the old one is surely gone.
    pub force: bool,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RunView {
    pub id: String,
    pub name: String,
    #[serde(rename = "type")]
    pub kind: String,
    pub task: Option<String>,
    pub status: String,
    pub phase: Option<String>,
    pub outcome: Option<String>,
    pub pause_reason: Option<String>,
    pub attempt_number: i64,
    pub max_attempts: i64,
    pub plan_version: i64,
    /// Agents, tasks and steps of this attempt that were made so far, those of planners and of earlier plans included.
    pub agent_count: i64,
    pub task_count: i64,
    pub step_count: i64,
    /// What the present plan has in all. A task with a `for_each` counts once. Zero while a planner makes the first plan.
    #[serde(default)]
    pub planned_agents: i64,
    #[serde(default)]
    pub planned_tasks: i64,
    #[serde(default)]
    pub planned_steps: i64,
    pub failure_mode: String,
    pub max_agents: i64,
    pub priority: String,
    pub credits_reserved: String,
    pub credits_reserved_micro: i64,
    pub credits_charged: String,
    pub credits_charged_micro: i64,
    pub credits_refunded: String,
    pub credits_refunded_micro: i64,
    pub budget: Option<String>,
    pub created_at: i64,
    /// When it was queued.
    pub started_at: Option<i64>,
    pub running_at: Option<i64>,
    pub completed_at: Option<i64>,
    pub cancelled_at: Option<i64>,
    /// From the start to the end; 0 if it was cancelled before it was started.
    pub duration_ms: Option<i64>,
    /// Where the time went, as far as it is known: waiting for a machine, getting ready there, running.
    pub queued_ms: Option<i64>,
    pub starting_ms: Option<i64>,
    pub running_ms: Option<i64>,
    pub command: String,
    pub last_error: Option<ErrorView>,
    /// When the worker that looks after this run last renewed its lease; none before the start and after the end.
    pub last_heartbeat: Option<i64>,
    pub termination_reason: Option<String>,
    pub escalation_ticket_id: Option<String>,
    /// `replan_count`: how often a planner has made another plan. `decomposition`, when the run is asked for by its id: the present plan
    /// as it was written, if a planner has made it or may make the next one.
    pub context: serde_json::Value,
    pub exit_code: Option<i32>,
    pub signal: Option<i32>,
    /// Whether the (last) job went to a machine that was waiting for it.
    pub warm: Option<bool>,
    pub instance: Option<String>,
    pub allocation: Option<String>,
    pub workdir: Option<String>,
    pub hold_until: Option<i64>,
    /// Blobs that the machine did not have and fetched.
    pub synced_blobs: Option<i64>,
    pub late_evidence: Vec<String>,
    /// Of a cached run that was answered: by which result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cached_from: Option<CachedFrom>,
    /// Of a cached run that waits: the run that executes the same command now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub follows: Option<String>,
    /// Of a run of agents, when it is asked for by its id: what it was given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inputs: Option<serde_json::Value>,
    /// Of a run of agents that has completed: what it answers, or why that cannot be said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<serde_json::Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_error: Option<String>,
    /// Of a submission with a `step`: what became of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<StepAnswer>,
    /// Actions that may be asked for now: `start`, `pause`, `resume`, `retry`, `cancel`, `delete`.
    #[serde(default)]
    pub allowed: Vec<String>,
    /// Changes whenever something about the run does.
    #[serde(default)]
    pub version: i64,
    pub links: BTreeMap<String, String>,
}

/// Where the result of a cached run came from.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CachedFrom {
    /// The run that executed the command; its row may be gone.
    pub run: Option<String>,
    /// The record of that execution.
    pub exec: String,
    /// The call node, which is the key of the result.
    pub node: String,
    /// The result was there when the run was submitted.
    pub hit: bool,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ErrorView {
    pub code: String,
    pub message: String,
    pub cause: Option<String>,
}

/// Why a run waits or failed, and what a person can do.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Why {
    pub run: String,
    pub status: String,
    pub phase: Option<String>,
    /// One sentence.
    pub summary: String,
    /// Facts behind it, most important first.
    pub facts: Vec<String>,
    /// Commands or changes that help.
    pub next: Vec<String>,
    /// Durations in the summary and the facts.
    #[serde(default)]
    pub spans: Vec<WhySpan>,
    /// It waits, has failed or was cancelled, or one of the facts is a warning. False: it works as it should, was never started or completed.
    #[serde(default)]
    pub attention: bool,
}

/// A duration in a text, and the moment since which or until which it is counted, for programs that show the text for long.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct WhySpan {
    /// In which fact, the first being 0; none: in the summary.
    pub fact: Option<i64>,
    /// Its first byte in the text (UTF-8), and the byte behind its last.
    pub start: i64,
    pub end: i64,
    /// One of the two.
    pub since: Option<i64>,
    pub until: Option<i64>,
}

/// A run that waits to begin.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Waiting {
    pub run: String,
    pub name: String,
    pub created_at: i64,
    /// One sentence.
    pub summary: String,
    pub facts: Vec<String>,
    /// Durations in the summary and the facts.
    #[serde(default)]
    pub spans: Vec<WhySpan>,
}

/// What was submitted.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Definition {
    pub run: String,
    /// In the fields of a run file. Of a run of agents, its document as it was submitted; of others with what was not said left out.
    pub definition: serde_json::Value,
    /// It was sent with files or a standard input, which a run file cannot hold.
    pub sent_files: bool,
}
