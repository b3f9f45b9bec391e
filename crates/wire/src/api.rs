//! The public API under `/api/v1`: what people and programs send and get. Times are Unix milliseconds, amounts decimal strings beside `*_micro`.
//!
//! | call | body → answer |
//! |---|---|
//! | `POST /runs` | [`Submit`] → 201 [`RunView`]; with `dry_run` 200 [`Plan`] |
//! | `GET /runs?status=&all=&name=&limit=&cursor=` | [`Page`] of [`RunView`]; open runs unless `all=true` |
//! | `GET /runs/{id}` · `/tree` · `/why` | [`RunView`] · [`Tree`] · [`Why`] |
//! | `GET /runs/{id}/attempts` `/agents` `/tasks` `/steps` `/jobs` `/artifacts` `/ledger` | [`Page`] of the noun's view |
//! | `GET /runs/{id}/events` | SSE when asked for by `Accept: text/event-stream` (`id:` the number, `event:` the kind, data [`EventView`]), else a [`Page`] |
//! | `GET /runs/{id}/logs?stream=&job=&tail=&since_ms=&follow=` | SSE: `id:` `<job>:<offset after>`, event `log`, data [`LogFrame`]; event `attempt`, data [`LogAttempt`], before each further attempt; ends with event `end`, data [`LogEnd`] |
//! | `POST /runs/{id}/start` `/cancel` `/stop` `/retry` `/pause` `/resume` | [`ActionBody`] (may be empty) → [`RunView`] |
//! | `DELETE /runs/{id}` | 204 |
//! | `POST /blobs/missing` · `PUT /blobs/{hash}` · `GET /blobs/{hash}` | [`BlobList`] → [`BlobList`] · bytes → 204 · bytes |
//! | `PUT /trees/{hash}` · `PUT /packs` | a folder's document (`model::tree`) → 204 · many small blobs and trees ([`crate::pack`]) → 204 |
//! | `GET /runs/{id}/artifacts/{artifact}` | bytes |
//! | `GET /instances` `/instances/{id}`, `POST /instances/{id}/terminate` | [`InstanceView`]; [`TerminateBody`] |
//! | `GET /allocations` `/allocations/{id}`, `POST /allocations/{id}/extend` `/release` | [`AllocationView`]; [`ExtendBody`] |
//! | `GET /workflows` `/workflows/{id}`, `POST /workflows/{id}/cancel` `/retry` | [`WorkflowView`] |
//! | `GET /manifests` `/manifests/{id}` | [`ManifestView`] |
//! | `GET /credits` · `POST /credits` · `GET /credits/ledger` · `GET /credits/usage` | [`BalanceView`] · [`AddCredits`] · [`Page`] of [`LedgerRow`] · [`UsageView`] |
//! | `GET /secrets`, `PUT /secrets/{name}`, `DELETE /secrets/{name}` | [`SecretView`]; [`SecretBody`] |
//! | `GET /tokens`, `POST /tokens`, `DELETE /tokens/{id}` | [`TokenView`]; [`NewToken`] → 201 [`TokenView`] with `token` |
//! | `GET /pools`, `GET /providers`, `GET /audit` | [`PoolView`], [`ProviderView`], [`AuditReport`] |

use crate::Base64;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// One page of a listing.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Page<T> {
    pub data: Vec<T>,
    #[serde(default)]
    pub next_cursor: Option<String>,
}

/// What a run should be. Like every public body it refuses fields it does not know: a typo must not mean "no limit".
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default, deny_unknown_fields)]
pub struct Submit {
    pub name: Option<String>,
    /// `task` (others are refused with `unsupported`).
    #[serde(rename = "type")]
    pub kind: Option<String>,
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
    pub provider: Option<String>,
    pub region: Option<String>,
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
    /// `finish` or `stop`.
    pub on_lost_control: Option<String>,
    /// Start at once (the usual way); otherwise the run rests in `created`.
    pub start: bool,
    /// Only check, place and price: nothing is written, answer 200 with a [`Plan`].
    pub dry_run: bool,
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
    pub files: FilesPlan,
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

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default, deny_unknown_fields)]
pub struct ResourcesBody {
    pub cpu_milli: Option<i64>,
    pub memory_bytes: Option<i64>,
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

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default, deny_unknown_fields)]
pub struct TerminateBody {
    /// Name the hold or the live job it ends.
    pub force: bool,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default, deny_unknown_fields)]
pub struct ExtendBody {
    pub duration_ms: Option<i64>,
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
    pub agent_count: i64,
    pub task_count: i64,
    pub step_count: i64,
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
    pub links: BTreeMap<String, String>,
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
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Tree {
    pub run: RunView,
    pub agents: Vec<AgentView>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AttemptView {
    pub run: String,
    pub number: i64,
    pub status: String,
    pub credits_reserved: String,
    pub credits_reserved_micro: i64,
    pub credits_charged: String,
    pub credits_charged_micro: i64,
    pub credits_refunded: String,
    pub credits_refunded_micro: i64,
    pub uncollected_micro: i64,
    pub opened_at: i64,
    pub ended_at: Option<i64>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AgentView {
    pub id: String,
    pub name: String,
    pub kind: String,
    pub attempt: i64,
    pub sequence: i64,
    pub status: String,
    pub outcome: Option<String>,
    pub tries: i64,
    pub last_error: Option<ErrorView>,
    pub started_at: Option<i64>,
    pub ended_at: Option<i64>,
    #[serde(default)]
    pub tasks: Vec<TaskView>,
    #[serde(default)]
    pub jobs: Vec<JobView>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TaskView {
    pub id: String,
    pub name: String,
    pub agent: String,
    pub status: String,
    pub tries: i64,
    pub last_error: Option<ErrorView>,
    pub started_at: Option<i64>,
    pub ended_at: Option<i64>,
    #[serde(default)]
    pub steps: Vec<StepView>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct StepView {
    pub id: String,
    pub name: String,
    pub task: String,
    pub tool: String,
    pub status: String,
    pub uncertain: bool,
    pub tries: i64,
    pub last_error: Option<ErrorView>,
    pub started_at: Option<i64>,
    pub ended_at: Option<i64>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct JobView {
    pub id: String,
    pub run: String,
    pub agent: String,
    pub attempt: i64,
    pub submission: i64,
    pub status: String,
    pub phase: Option<String>,
    pub reason: Option<String>,
    pub message: Option<String>,
    pub exit_code: Option<i32>,
    pub signal: Option<i32>,
    pub workflow: String,
    pub instance: Option<String>,
    pub allocation: Option<String>,
    pub warm: bool,
    pub epoch: i64,
    pub submitted_at: i64,
    pub placed_at: Option<i64>,
    pub running_at: Option<i64>,
    pub started_at: Option<i64>,
    pub ended_at: Option<i64>,
    pub final_offset: Option<i64>,
    pub log_cut: bool,
    pub active_ms: i64,
    /// When its machine was last heard, up to the end of the job.
    #[serde(default)]
    pub last_seen_at: Option<i64>,
    /// Limits that its machine could not enforce, and why.
    pub unenforced: Option<String>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct EventView {
    pub number: i64,
    pub at: i64,
    pub kind: String,
    pub run: Option<String>,
    pub body: serde_json::Value,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LogFrame {
    pub job: String,
    pub stream: String,
    pub offset: i64,
    pub at: i64,
    pub data: Base64,
}

/// Another attempt begins in a log; sent before the first of its frames as event `attempt`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LogAttempt {
    pub attempt: i64,
    pub max_attempts: i64,
}

/// The log is complete as far as it will ever be (`cut` says that a tail is missing), or (`follow=false`) as far as it is now.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LogEnd {
    pub status: String,
    pub exit_code: Option<i32>,
    pub cut: bool,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ArtifactView {
    pub id: String,
    pub run: String,
    pub attempt: i64,
    pub path: String,
    /// `file`, `folder` (an empty one) or `link`.
    pub kind: String,
    /// Permission bits of a file.
    pub mode: Option<u32>,
    /// Where a link leads, relative to its folder.
    pub target: Option<String>,
    pub size: i64,
    /// `uploading`, `final`, `failed` or `deleted`.
    pub state: String,
    pub created_at: i64,
    pub expires_at: Option<i64>,
    pub deleted_at: Option<i64>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default, deny_unknown_fields)]
pub struct BlobList {
    /// Files.
    pub hashes: Vec<String>,
    /// Folders' documents: here only if everything below them is.
    pub trees: Vec<String>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct InstanceView {
    pub id: String,
    pub name: String,
    pub provider: String,
    pub region: String,
    pub status: String,
    /// `<workflow>:<phase>`.
    pub workflow_state: String,
    pub cpu_milli: Option<i64>,
    pub memory_bytes: Option<i64>,
    pub price_per_hour: String,
    pub price_per_hour_micro: i64,
    pub manifest: String,
    pub handle: Option<String>,
    pub host: Option<String>,
    pub runner_version: Option<String>,
    pub containment: Option<String>,
    pub job: Option<String>,
    pub run: Option<String>,
    pub desired_version: i64,
    pub observed_version: i64,
    pub created_at: i64,
    pub ready_at: Option<i64>,
    pub last_seen_at: Option<i64>,
    pub idle_since: Option<i64>,
    pub terminated_at: Option<i64>,
    pub held_until: Option<i64>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AllocationView {
    pub id: String,
    pub instance: String,
    pub job: Option<String>,
    pub run: Option<String>,
    pub manifest: Option<String>,
    /// AVAILABLE, CLAIMED, ACTIVE, COMPLETE, FAILED.
    pub status: String,
    pub user: String,
    pub workdir: String,
    /// Where the workdir is on the machine, as far as we know.
    pub path: Option<String>,
    pub debug_hold_until: Option<i64>,
    pub held: bool,
    pub created_at: i64,
    pub completed_at: Option<i64>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct WorkflowView {
    pub id: String,
    pub intent: String,
    pub status: String,
    pub manifest: String,
    pub job: Option<String>,
    pub run: Option<String>,
    pub instance: Option<String>,
    pub error: Option<String>,
    pub created_at: i64,
    pub ended_at: Option<i64>,
    /// Hash of the executed DAG's shape.
    pub topology: String,
    #[serde(default)]
    pub nodes: Vec<NodeView>,
    /// What could not be compensated within 5 minutes and may still exist.
    #[serde(default)]
    pub orphan_risks: Vec<OrphanRiskView>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct OrphanRiskView {
    /// The node that made it.
    pub node: String,
    /// instance, snapshot, object, …
    pub kind: String,
    /// What it is called where it exists.
    pub name: String,
    pub provider: Option<String>,
    /// Why the last try of the compensation failed.
    pub error: Option<String>,
    pub at: i64,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct NodeView {
    pub name: String,
    pub logical: String,
    pub after: Vec<String>,
    pub status: String,
    pub tries: i64,
    pub output: Option<serde_json::Value>,
    pub error: Option<String>,
    pub waiting_until: Option<i64>,
    pub started_at: Option<i64>,
    pub ended_at: Option<i64>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ManifestView {
    pub id: String,
    pub workflow: String,
    pub intent: String,
    /// DRAFT, SEALED, DELETED.
    pub status: String,
    pub outcome: Option<String>,
    pub created_at: i64,
    pub sealed_at: Option<i64>,
    pub retain_until: Option<i64>,
    #[serde(default)]
    pub resources: Vec<ResourceView>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ResourceView {
    pub kind: String,
    pub id: String,
    pub priority: i64,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct BalanceView {
    pub org: String,
    pub available: String,
    pub available_micro: i64,
    pub reserved: String,
    pub reserved_micro: i64,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct AddCredits {
    /// Decimal credits.
    pub amount: String,
    #[serde(default)]
    pub memo: Option<String>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LedgerRow {
    pub seq: i64,
    pub at: i64,
    /// topup, reserve, charge, refund, adjust.
    pub kind: String,
    pub amount: String,
    pub amount_micro: i64,
    pub run: Option<String>,
    pub attempt: Option<i64>,
    pub key: String,
    pub memo: String,
    pub hash: String,
}

/// Spending by run within a span.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct UsageView {
    pub from: i64,
    pub to: i64,
    pub total: String,
    pub total_micro: i64,
    pub runs: Vec<UsageRow>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct UsageRow {
    /// None: holds and idle machines.
    pub run: Option<String>,
    pub name: Option<String>,
    pub charged: String,
    pub charged_micro: i64,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SecretView {
    pub name: String,
    pub created_at: i64,
    pub updated_at: i64,
}

/// A secret was stored; what of it logs will not hide.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SecretStored {
    pub name: String,
    /// Whether its whole value is replaced by `***` in the logs of runs.
    pub masked: bool,
    /// What its owner should know about that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

#[derive(Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct SecretBody {
    pub value: String,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct NewToken {
    pub name: String,
    /// read, write, admin.
    pub scopes: Vec<String>,
    #[serde(default)]
    pub expires_at: Option<i64>,
}

#[derive(Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TokenView {
    pub id: String,
    pub name: String,
    pub scopes: Vec<String>,
    pub created_at: i64,
    pub expires_at: Option<i64>,
    /// Only in the answer to its creation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PoolView {
    pub id: String,
    pub provider: String,
    pub region: String,
    pub instances: i64,
    pub max_instances: i64,
    pub available: i64,
    pub busy: i64,
    pub waiting: i64,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ProviderView {
    pub name: String,
    pub regions: Vec<String>,
    pub max_instances: i64,
    pub price_per_hour: String,
    /// The workdir outlives the runner, so a held idle runner may be retired.
    pub workdir_survives_runner: bool,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AuditReport {
    pub clean: bool,
    pub checked: BTreeMap<String, i64>,
    pub broken: Vec<BrokenInvariant>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct BrokenInvariant {
    pub invariant: String,
    pub subject: String,
    pub detail: String,
}

/// `POST /control/stop`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default, deny_unknown_fields)]
pub struct StopBody {
    /// Ends open runs too.
    pub all: bool,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Stopped {
    pub cancelled_runs: i64,
    /// What goes on without a control plane, and is found again by the next one.
    pub open_runs: i64,
    pub instances: i64,
}

/// `GET /healthz` and `/readyz`. All but `status` only over the unix socket or with a token.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct Health {
    pub status: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub control_plane_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started_at: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
}
