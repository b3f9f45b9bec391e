//! The runner protocol, `/runner/v1/…`. The runner dials out; the control plane answers. Fields are only added, unknown ones ignored.
//!
//! | call | body → answer |
//! |---|---|
//! | `POST register` | [`Register`] → [`Registered`]; 410 with the code `unlisted` if no row knows it or one of its jobs |
//! | `GET desired?session=N` | SSE, event `desired`, data [`Desired`]: at once, then whenever it changes; `event: superseded` ends an older session |
//! | `POST heartbeat` | [`Heartbeat`] → [`Beat`] |
//! | `POST report` | [`ReportBatch`] → [`ReportAnswer`]: durable when answered |
//! | `POST snapshots` | [`SnapshotTaken`] → 204: durable when answered |
//! | `GET blobs/{hash}` | the bytes |
//! | `POST blobs` | [`BlobsAsked`] → the small ones of them as a [`crate::pack`] |
//! | `PUT blobs/{hash}`, `PUT trees/{hash}` | the bytes of a file, or the document of a folder, that a step has left → 204 |
//! | `PUT jobs/{job}/artifacts?epoch=E&path=P&kind=K&size=S&mode=M&target=T` | the bytes → 204 |
//!
//! Authorization: `Bearer <name>.<token>` with name and token of the boot file.

use crate::Base64;
use model::step::StepTry;
use model::stub::SealedStub;
use model::tree::TreeRef;
use model::{InstanceId, JobId, RunId, SnapshotId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Register {
    pub name: String,
    pub nonce: String,
    pub version: String,
    pub host: String,
    /// Every job this runner knows of, ended or not, until the control plane no longer lists it.
    pub jobs: Vec<KnownJob>,
    /// The stubs of those that it has been given one of.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stubs: Vec<KnownStub>,
    #[serde(default)]
    pub cpu_milli: Option<i64>,
    #[serde(default)]
    pub memory_bytes: Option<i64>,
    /// How processes of a dead keeper are ended here: `cgroup`, `pid_namespace` or `sweep`.
    #[serde(default)]
    pub containment: Option<String>,
    /// What makes sandboxes here, or `none: …` and why there are none.
    #[serde(default)]
    pub sandbox: Option<String>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct KnownJob {
    pub job: JobId,
    pub epoch: i64,
    pub ended: bool,
}

/// A job as it could be tracked again after the loss of the database. Only the stub is proof; the rest is the runner's word.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KnownStub {
    pub job: JobId,
    pub epoch: i64,
    pub stub: SealedStub,
    /// Its command was started.
    pub started: bool,
    pub ended: bool,
    /// The first byte of its log that is still here.
    pub log_from: i64,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Registered {
    pub session: i64,
    pub control_plane_id: String,
    pub desired: Desired,
}

/// The longest a desired document may be. It lists what is open, so it does not grow with what was done.
pub const DOCUMENT_BYTES: usize = 512 << 10;

/// All that an instance should be doing. Level-triggered: the runner reconciles itself with the newest version.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Desired {
    pub version: i64,
    pub instance: InstanceId,
    pub jobs: Vec<DesiredJob>,
    /// Workdirs that must stay (live or held); any other `work_N` is deleted.
    pub kept_workdirs: Vec<String>,
    /// Folders that are to be sent as they are now: each is answered by `POST snapshots`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub snapshots: Vec<DesiredSnapshot>,
    /// What is to be installed on the machine, or removed from it: each is answered by `POST features`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub features: Vec<DesiredFeature>,
    /// End all processes and exit.
    #[serde(default)]
    pub shutdown: bool,
}

/// A feature that the runner installs or removes, by scripts for `sh -e`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct DesiredFeature {
    pub name: String,
    /// Names what `install` makes: a machine that has it does not run the script again.
    pub checksum: String,
    /// Another number is another request, though everything else is the same.
    pub request: i64,
    pub act: FeatureAct,
    #[serde(default)]
    pub install: String,
    /// Also run before an installation where an earlier one stopped half-way.
    pub remove: String,
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    #[serde(default)]
    pub secrets: BTreeMap<String, Secret>,
    /// How long a script may take.
    pub within_ms: i64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FeatureAct {
    Install,
    Remove,
    #[serde(other)]
    Unknown,
}

/// A feature was installed or removed, or could not be.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct FeatureDone {
    pub name: String,
    pub request: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DesiredSnapshot {
    pub snapshot: SnapshotId,
    /// Name of the folder below the instance's directory.
    pub workdir: String,
}

/// A folder was sent, or could not be.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SnapshotTaken {
    pub snapshot: SnapshotId,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tree: Option<TreeRef>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// A machine's work for one agent: files and a folder, and the commands that run there, one after the other or side by side. It stays on
/// the machine until the control plane closes or stops it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct DesiredJob {
    pub job: JobId,
    pub run: RunId,
    /// Given with the job; changes only when the job goes to another allocation. A try of a step that ended is never started again.
    pub epoch: i64,
    /// Of all its steps.
    pub state: DesiredState,
    /// The control plane waits to be told that it stands still, or goes on: said even if nothing had to change for it, as when it
    /// was paused and resumed before any of this was heard.
    #[serde(default)]
    pub answer: bool,
    /// Name of the folder below the instance's directory, e.g. `work_1`.
    pub workdir: String,
    pub env: BTreeMap<String, String>,
    /// Values reach the process's environment; the journal holds names only; masked in logs (6 bytes and longer).
    #[serde(default)]
    pub secrets: BTreeMap<String, Secret>,
    /// Until the control plane has heard that they are in place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub files: Option<SyncTree>,
    /// Laid into the workdir before `files`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<SyncTree>,
    /// Where it reads what these name.
    #[serde(default, skip_serializing_if = "BlobSource::is_control_plane")]
    pub source: BlobSource,
    /// What prepares the machine before its command starts, unless it has ended well here before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub init: Option<Init>,
    /// Enforced on a control group around all its steps; without them it may use the whole machine.
    #[serde(default)]
    pub limits: Limits,
    /// Which attempt of its run this is, counted from 1; commands find it in `REPL_ATTEMPT`.
    #[serde(default = "first")]
    pub attempt: i64,
    pub stop_duration_ms: i64,
    pub on_lost_control: OnLostControl,
    /// Those that have begun and whose end the control plane has not seen.
    #[serde(default)]
    pub steps: Vec<DesiredStep>,
    /// No step will be added: the job is over when those that are listed have ended.
    #[serde(default)]
    pub closed: bool,
    /// Kept by the runner, who introduces itself with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stub: Option<SealedStub>,
    /// Its result is kept for other runs: its commands get no variable of the host, and its files are executable for all users or for none.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub clean: bool,
}

/// Where a runner reads the contents of files.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BlobSource {
    /// From the blob store itself.
    Direct,
    /// By `GET /runner/v1/blobs/{hash}`; also what a source means that this runner does not know.
    #[default]
    #[serde(other)]
    ControlPlane,
}

impl BlobSource {
    fn is_control_plane(&self) -> bool {
        *self == BlobSource::ControlPlane
    }
}

/// One try of one command.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct DesiredStep {
    pub step: StepTry,
    /// Of this step alone; the sharper of this and the job's is done.
    #[serde(default = "running")]
    pub state: DesiredState,
    /// Where the command starts, relative to the workdir.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub working_dir: Option<String>,
    pub command: Command,
    /// Added to the job's; a name in both has the value of the step.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub secrets: BTreeMap<String, Secret>,
    /// What the command reads as its standard input; nothing without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdin: Option<Stdin>,
    /// Trees that are laid into the workdir, in this order, before the command starts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub restore: Vec<SyncTree>,
    /// Globs below the workdir: what they find is kept as a tree when the command has ended well.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub keep: Vec<String>,
    /// Globs below the workdir, uploaded when the command has ended.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub artifacts: Vec<String>,
    /// Of active time; enforced here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_duration_ms: Option<i64>,
    /// One pipe for both streams: their exact order, all as stdout.
    #[serde(default)]
    pub merge: bool,
    /// What it has written last to its standard output is told with its end.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub tail: bool,
    /// Its standard output is its answer, as if it had written that to `$REPL_OUTPUT`, and not part of its log.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub answers: bool,
    /// The MCP server that the command asks, at the socket that it finds in `REPL_MCP`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server: Option<DesiredServer>,
    /// How far the control plane's durable log of this try reaches.
    pub log_offset: i64,
    /// By which its processes do durable steps. Without one they do none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steps_token: Option<Secret>,
    /// The command, and the server that it asks, run in a sandbox; where none can be made they do not run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<Sandbox>,
}

/// A sandbox around a command: it sees the machine's files read-only and without its user's and the runner's own, and writes in its workdir.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sandbox {
    /// The machine's network; otherwise none.
    pub network: bool,
}

/// A server that belongs to a job: held by `repl mcp-serve` from the first step that names it until the job ends. It has the workdir and the
/// variables of that step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DesiredServer {
    /// Steps of one job with the same name share it.
    pub name: String,
    pub argv: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DesiredState {
    Running,
    Frozen,
    /// SIGTERM to the tree, `stop_duration`, SIGKILL.
    Stopped,
    /// SIGKILL at once.
    Aborted,
    #[serde(other)]
    Unknown,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Command {
    /// `sh -c TEXT` (`SHELL` is not consulted).
    Shell(String),
    Argv(Vec<String>),
}

#[derive(Clone, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Secret(pub String);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(…)")
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnLostControl {
    Finish,
    Stop,
    #[serde(other)]
    Unknown,
}

/// A script for `sh -e`, run in the folder `$REPL_INIT`, which stays for all jobs of the machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Init {
    pub script: String,
    pub checksum: String,
}

/// The files of a job: the root of their tree (`model::tree`).
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SyncTree {
    /// BLAKE3 of the root folder's document, in hex.
    pub hash: String,
    /// Every document and file of the tree by its hash, when they are few and small; otherwise nothing, and the runner fetches them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub inline: BTreeMap<String, Base64>,
    /// Files are laid down as 755 or 644, by whether their owner may execute them, and not with the mode that they have in the tree.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub plain_modes: bool,
}

/// Blobs that are small enough to travel together.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct BlobsAsked {
    pub hashes: Vec<String>,
}

/// Bytes fetched like a file's and read by the command from a pipe: it cannot change what is kept here.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Stdin {
    /// BLAKE3 in hex.
    pub hash: String,
    pub size: i64,
    /// The bytes themselves when there are at most 64 KiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inline: Option<Base64>,
}

/// What a job may use of its machine.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_milli: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<i64>,
}

fn first() -> i64 {
    1
}

fn running() -> DesiredState {
    DesiredState::Running
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Heartbeat {
    pub session: i64,
    pub observed_version: i64,
    pub nonce: String,
    #[serde(default)]
    pub usage: Usage,
    pub jobs: Vec<KnownJob>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Usage {
    pub cpu_milli: i64,
    pub memory_bytes: i64,
    pub disk_free_bytes: i64,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Beat {
    pub control_plane_id: String,
    pub desired_version: i64,
    /// False when a newer session has registered: this process must exit and leave keepers alone.
    pub session_current: bool,
}

/// Facts and log bytes travel together, so that a start and its first output cost one wait.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ReportBatch {
    pub session: i64,
    /// In the order they happened. Repeated until acknowledged; repeats change nothing.
    pub facts: Vec<Fact>,
    pub logs: Vec<LogChunk>,
    /// How often this runner has waited for its disk since it started. For tests and benchmarks; no decision depends on it.
    #[serde(default)]
    pub durable_waits: u64,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Fact {
    pub job: JobId,
    pub epoch: i64,
    /// Which try of which step it is about; none where it is about the job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<StepTry>,
    /// Runner's wall clock, for people; never decides anything.
    pub at_ms: i64,
    pub what: What,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum What {
    /// Of a job: the runner has it and is fetching its files.
    Accepted,
    /// Of a job: its files are in place.
    SyncComplete { fetched_blobs: i64, fetched_bytes: i64 },
    /// Of a job: what its files name cannot be read where it was told to. It waits to be told another source.
    SourceFailed { why: String },
    /// Of a step: the command was started.
    Started {
        /// Limits of the job that this machine cannot enforce, and why.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        unenforced: Option<String>,
    },
    /// Of a step: the init with this checksum has ended well on this machine, now or for an earlier job.
    Initialised { checksum: String },
    /// Of a job: every step of it stands still, as asked; also said of one of which none has begun.
    Froze,
    /// Of a job: it goes on.
    Thawed,
    /// Of a job, when no step was listed whose end would say it: it was closed or stopped, or its files could not be brought. Nothing of it
    /// is left, and no step of it will start.
    Closed {
        /// Why, unless the control plane has closed it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cause: Option<EndCause>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        message: Option<String>,
    },
    /// Of a step: everything of it is gone: processes, pipes; log is complete up to `final_offset`; artifacts are uploaded.
    Ended {
        /// Exit status when it ended by itself or by our signal.
        #[serde(default)]
        exit_code: Option<i32>,
        #[serde(default)]
        signal: Option<i32>,
        /// Why the runner ended it or could not run it; none when the command simply ended.
        #[serde(default)]
        cause: Option<EndCause>,
        #[serde(default)]
        message: Option<String>,
        final_offset: i64,
        /// Time in which the command ran and was not frozen.
        active_ms: i64,
        /// Whether the command was ever started.
        started: bool,
        /// How long before this report was sent, by the runner's clock: the end is told behind its output, which may take a while.
        #[serde(default)]
        ended_ago_ms: i64,
        /// What the command has left in `$REPL_OUTPUT`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        output: Option<Output>,
        /// The end of its standard output, where it was asked for: at most [`TAIL_BYTES`].
        #[serde(default, skip_serializing_if = "Option::is_none")]
        stdout_tail: Option<Base64>,
        /// The tree of what `keep` has found: all of it is with the control plane.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        kept: Option<TreeRef>,
    },
    #[serde(other)]
    Unknown,
}

/// The most JSON that a command may leave as its output. What does not fit into the step's row stays an artifact of the run.
pub const OUTPUT_BYTES: usize = 8 << 20;
/// The most of it that travels inside a report.
pub const INLINE_OUTPUT_BYTES: usize = 64 << 10;
pub const TAIL_BYTES: usize = 4 << 10;

/// JSON that a step has produced.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Output {
    /// The text itself, checked by the runner, at most [`INLINE_OUTPUT_BYTES`].
    Json(String),
    /// It was uploaded as an artifact of this name.
    Artifact { path: String, size: i64 },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EndCause {
    /// Asked for by the desired document.
    Stopped,
    Aborted,
    MaxDuration,
    OutOfMemory,
    DiskFull,
    /// The command ended well, and what it left in `$REPL_OUTPUT` is no JSON, or too large.
    InvalidOutput,
    /// Files could not be brought into place.
    SyncFailed,
    /// The keeper was killed or could not live: its processes were ended, and how the command would have ended is unknown.
    KeeperDied,
    /// The command could not be started.
    ExecutorError,
    ControlLost,
    Interrupted,
    #[serde(other)]
    Unknown,
}

/// Consecutive frames of the byte sequence of one try. `offset` counts payload bytes of all streams together.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct LogChunk {
    pub job: JobId,
    pub epoch: i64,
    pub step: StepTry,
    pub offset: i64,
    pub frames: Vec<Frame>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Frame {
    pub stream: Stream,
    /// Runner's wall clock when the bytes were read from the pipe.
    pub at_ms: i64,
    /// At most 64 KiB.
    pub data: Base64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stream {
    Stdout,
    Stderr,
    /// Notes of the runner itself: what it fetched, why it killed.
    Runner,
    #[serde(other)]
    Unknown,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ReportAnswer {
    /// For every chunk in the batch: how far the durable log reaches now. A runner whose chunk began beyond it sends again from there.
    pub log_offsets: Vec<LogReach>,
    /// Facts that were refused (an old epoch, an unknown job, an old try): the runner drops them and ends the processes.
    pub refused: Vec<RefusedFact>,
    pub session_current: bool,
}

/// How far the durable log of a try reaches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogReach {
    pub job: JobId,
    pub epoch: i64,
    pub step: StepTry,
    pub offset: i64,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RefusedFact {
    pub job: JobId,
    pub epoch: i64,
    /// None: the whole epoch of the job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<StepTry>,
    pub code: String,
    pub message: String,
}
