//! What a user asked for: the run's specification as it was accepted, defaults filled in. Never changes after submission.

mod blob_source;
mod resources;

pub use blob_source::BlobSource;
pub use resources::{GPU_PATTERN, Gpu, MAX_GPUS, Resources, show_cpu, show_memory};

use crate::feature::MAX_FEATURES;
use crate::host::{Platform, Wanted};
use crate::plan::DEFAULT_MAX_AGENTS;
use crate::recovery::{MAX_RETRY_DELAY_MS, OnExhausted};
use crate::time::{DAY, SECOND};
use crate::tree::{TreeRef, check_cached};
use crate::{Credits, Refused, hold::MAX_HOLD_MS, string_enum};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

string_enum! {
    pub enum RunKind { Task = "task", Service = "service", DevEnvironment = "dev-environment", Agents = "agents", External = "external" }
}

impl RunKind {
    /// Active while it is running: no machine of its own says how long it worked.
    pub fn has_no_machine_time(self) -> bool {
        matches!(self, RunKind::Agents | RunKind::External)
    }
}

string_enum! {
    pub enum Priority { High = "high", Normal = "normal" }
}
string_enum! {
    /// What the parent does when a child has failed for good.
    pub enum FailureMode { FailFast = "fail-fast", Continue = "continue", Retry = "retry" }
}
string_enum! {
    /// What a runner does when it has lost its control plane for good.
    pub enum OnLostControl { Finish = "finish", Stop = "stop" }
}
string_enum! {
    /// What a retry policy may react to.
    pub enum RetryEvent { Error = "error", NoCapacity = "no-capacity", Interruption = "interruption" }
}

string_enum! {
    /// What a sandbox has of its machine's network.
    pub enum Network { Host = "host", None = "none" }
}

/// Processes of a run that run in a sandbox, and in which.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Sandbox {
    pub network: Network,
    /// Only those that a model has asked for: calls of an agent's tools, and commands of a plan that a planner made.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub only_models: bool,
}

impl Sandbox {
    pub const DEFAULT: Sandbox = Sandbox { network: Network::Host, only_models: false };

    /// Around a process that a model has asked for, or has not.
    pub fn around(self, by_model: bool) -> Option<Sandbox> {
        (by_model || !self.only_models).then_some(self)
    }
}

/// How a sandbox is asked for: `true`, `false`, or `{network: none}`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged, expecting = "must be true, false or {network: host} or {network: none}")]
pub enum SandboxAsked {
    Flag(bool),
    Terms(SandboxTerms),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SandboxTerms {
    pub network: Network,
}

impl SandboxAsked {
    pub fn sandbox(self) -> Option<Sandbox> {
        match self {
            SandboxAsked::Flag(asked) => asked.then_some(Sandbox::DEFAULT),
            SandboxAsked::Terms(terms) => Some(Sandbox { network: terms.network, ..Sandbox::DEFAULT }),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Command {
    /// One text for `sh -c`.
    Shell(String),
    /// Several texts for one shell, in order; the first that fails ends the run. See [`script`].
    Script(Vec<String>),
    Argv(Vec<String>),
}

impl Command {
    /// As people read it.
    pub fn shown(&self) -> String {
        match self {
            Command::Shell(text) => text.clone(),
            Command::Script(entries) => entries.join("\n"),
            Command::Argv(argv) => argv.join(" "),
        }
    }

    /// Why the program of these words is not found where a shell would have understood them, if that is so.
    pub fn needs_shell(&self) -> Option<String> {
        let Command::Argv(argv) = self else { return None };
        let first = argv.first()?;
        let why = if SHELL_WORDS.contains(&first.as_str()) {
            "is a word of the shell, not a program"
        } else if argv.len() == 1 && first.contains(char::is_whitespace) {
            "was looked for as one program"
        } else {
            return None;
        };
        Some(format!("`{first}` {why}: a line for a shell is written after -c"))
    }

    /// Whether a word of it looks like a file of its user's, which is on the machine only if it was sent.
    pub fn names_file(&self) -> bool {
        let text = self.shown();
        let mut words = text.split(|c: char| c.is_whitespace() || ";|&<>()'\"=".contains(c));
        words.any(|word| {
            let Some((stem, ending)) = word.rsplit_once('.') else { return false };
            let is_ending = (1..=4).contains(&ending.len()) && ending.bytes().all(|byte| byte.is_ascii_alphabetic());
            is_ending && !stem.is_empty() && !word.starts_with(['/', '-', '$']) && !word.contains("://")
        })
    }

    fn is_empty(&self) -> bool {
        match self {
            Command::Shell(text) => text.trim().is_empty(),
            Command::Script(entries) => entries.iter().all(|text| text.trim().is_empty()),
            Command::Argv(argv) => argv.first().is_none_or(String::is_empty),
        }
    }

    /// Bytes of its longest form, which is what the kernel is given.
    fn bytes(&self) -> usize {
        match self {
            Command::Shell(text) => text.len(),
            Command::Script(entries) => script(entries).len(),
            Command::Argv(argv) => argv.iter().map(String::len).sum(),
        }
    }
}

/// What a shell does itself, and no program of that name can do for it.
const SHELL_WORDS: &[&str] = &[
    "cd", "export", "source", ".", "alias", "unset", "set", "eval", "exec", "ulimit", "umask", "wait", "if", "for",
    "while",
];

/// The text for `sh -c` that runs these entries in one shell, each as if it were typed, until one fails. `cd`, `export` and `exit` work
/// as in a script.
///
/// Each entry is quoted and given to `eval`, so that an open quote, a here-document or a syntax error ends with its entry. The status is
/// looked at in a command of its own: `eval … || exit` would switch `set -e` off inside the entry. The newlines at the end of each entry
/// keep a trailing comment or backslash from reaching what follows (bash reads on beyond an `eval` whose text ends in the middle of a
/// continued line, hence two). Needs only what POSIX says of a shell.
pub fn script(entries: &[String]) -> String {
    let quoted = |entry: &String| entry.replace('\'', r"'\''");
    let step = |entry: &String| format!("eval '{}\n\n'\ncase $? in 0) ;; *) exit ;; esac\n", quoted(entry));
    entries.iter().map(step).collect()
}

/// What the command reads as its standard input: bytes kept under their hash, like a file's.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct StdinRef {
    pub hash: String,
    pub size: i64,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Retry {
    /// First attempt included.
    pub max_attempts: i64,
    pub on_events: Vec<RetryEvent>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<i64>,
    /// Pause before a new attempt after an error, instead of the growing one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay_ms: Option<i64>,
}

/// How a run deals with its agents.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PlanRules {
    /// Agents that run at once.
    pub max_agents: i64,
    /// How often a planner may make a new plan because too much failed.
    pub replans: i64,
    pub on_exhausted: OnExhausted,
    /// The most that models may cost: what a start reserves.
    #[serde(default)]
    pub estimate: Credits,
    /// Machines that its agents may have at once.
    #[serde(default)]
    pub machines: i64,
    /// A planner makes its first plan too.
    #[serde(default)]
    pub goal: bool,
}

impl Default for PlanRules {
    fn default() -> PlanRules {
        PlanRules {
            max_agents: DEFAULT_MAX_AGENTS,
            replans: 0,
            on_exhausted: OnExhausted::Abort,
            estimate: Credits::ZERO,
            machines: 0,
            goal: false,
        }
    }
}

/// That a run may be answered with the result of an earlier one that was the same.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Cache {
    /// Part of the key: another salt, another result.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub salt: String,
    /// A kept exit code other than 0 is an answer, too.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub errors: bool,
}

/// How a run takes part in a call.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CallPart {
    /// It asks: a result that is kept answers it, or the run that executes the call.
    Caller(Cache),
    /// It executes the call, in an environment that has nothing of its host.
    Backend {
        /// Number of the execution.
        execution: i64,
        /// Of its provider's hosts, which differ, it runs on those that are this one: its key says so.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        platform: Option<Platform>,
    },
}

impl CallPart {
    pub fn caller(&self) -> Option<&Cache> {
        match self {
            CallPart::Caller(cache) => Some(cache),
            CallPart::Backend { .. } => None,
        }
    }
    pub fn backend(&self) -> Option<i64> {
        match self {
            CallPart::Backend { execution, .. } => Some(*execution),
            CallPart::Caller(_) => None,
        }
    }
    pub fn platform(&self) -> Option<&Platform> {
        match self {
            CallPart::Backend { platform, .. } => platform.as_ref(),
            CallPart::Caller(_) => None,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RunSpec {
    pub kind: RunKind,
    pub command: Command,
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Names only; values are looked up when the job is delivered.
    #[serde(default)]
    pub secrets: Vec<String>,
    /// The tree of files that is laid into its workdir.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub files: Option<TreeRef>,
    /// Without one the command reads from `/dev/null`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdin: Option<StdinRef>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub working_dir: Option<String>,
    #[serde(default)]
    pub resources: Resources,
    pub provider: String,
    pub region: String,
    /// The user named no region: where it has no machine, the provider's others are tried.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub any_region: bool,
    /// Providers that may be tried, in this order, where the user named them; the first that could have a machine is `provider`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub providers: Vec<String>,
    /// A machine that may be taken away at any time will do; where there is none, an ordinary one is taken.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub spot: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_duration_ms: Option<i64>,
    pub stop_duration_ms: i64,
    /// Asked for with `--hold`; otherwise 5 or 15 minutes by outcome.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hold_ms: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<Credits>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry: Option<Retry>,
    pub priority: Priority,
    #[serde(default)]
    pub artifacts: Vec<String>,
    #[serde(default)]
    pub merge: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<Sandbox>,
    pub on_lost_control: OnLostControl,
    pub failure_mode: FailureMode,
    #[serde(default)]
    pub plan: PlanRules,
    /// Machines, each with one rank of the run, which all begin together.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub nodes: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub init_checksum: Option<String>,
    /// A script that prepares its machine, once for all runs with the same one: `init_checksum` is its hash.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub init: Option<String>,
    /// Names of `[features]` of the settings that its machine must have.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub features: Vec<String>,
    /// The tree of the snapshot that it starts from: laid into its workdir before its files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<TreeRef>,
    /// Its workdir becomes a snapshot when it has ended well.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub save_snapshot: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call: Option<CallPart>,
}

impl RunSpec {
    /// A task with the defaults of every field but these.
    pub fn task(command: Command, provider: &str, region: &str) -> RunSpec {
        RunSpec {
            kind: RunKind::Task,
            command,
            env: BTreeMap::new(),
            secrets: Vec::new(),
            files: None,
            stdin: None,
            working_dir: None,
            resources: Resources::default(),
            provider: provider.to_owned(),
            region: region.to_owned(),
            any_region: false,
            providers: Vec::new(),
            spot: false,
            max_duration_ms: None,
            stop_duration_ms: DEFAULT_STOP_DURATION_MS,
            hold_ms: None,
            budget: None,
            retry: None,
            priority: Priority::Normal,
            artifacts: Vec::new(),
            merge: false,
            sandbox: None,
            on_lost_control: OnLostControl::Finish,
            failure_mode: FailureMode::FailFast,
            plan: PlanRules::default(),
            nodes: 1,
            init_checksum: None,
            init: None,
            base: None,
            save_snapshot: false,
            features: Vec::new(),
            call: None,
        }
    }
}

/// What of a specification decides how a run is dealt with: small, and part of the run's document, which is written at every event.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RunTerms {
    pub kind: RunKind,
    /// The beginning of its command, for people.
    pub title: String,
    /// It was sent with files or a standard input.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub sent_files: bool,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub has_artifacts: bool,
    #[serde(default)]
    pub resources: Resources,
    pub provider: String,
    pub region: String,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub any_region: bool,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub providers: Vec<String>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub spot: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_duration_ms: Option<i64>,
    pub stop_duration_ms: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hold_ms: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<Credits>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry: Option<Retry>,
    pub priority: Priority,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<Sandbox>,
    pub on_lost_control: OnLostControl,
    pub failure_mode: FailureMode,
    #[serde(default)]
    pub plan: PlanRules,
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub nodes: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub init_checksum: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub features: Vec<String>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub save_snapshot: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call: Option<CallPart>,
}

/// What a run works with: as large as its owner likes, written once and read where it is needed.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RunContent {
    pub command: Command,
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    #[serde(default)]
    pub secrets: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub files: Option<TreeRef>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdin: Option<StdinRef>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub working_dir: Option<String>,
    #[serde(default)]
    pub artifacts: Vec<String>,
    #[serde(default)]
    pub merge: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub init: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<TreeRef>,
}

impl RunTerms {
    /// What a machine of this size must have for this run.
    pub fn wanted<'a>(&'a self, resources: &'a Resources) -> Wanted<'a> {
        Wanted { resources, sandbox: self.sandbox.is_some(), platform: self.platform() }
    }
    /// The only hosts on which it may run.
    pub fn platform(&self) -> Option<&Platform> {
        self.call.as_ref().and_then(CallPart::platform)
    }
    pub fn max_attempts(&self) -> i64 {
        self.retry.as_ref().map_or(DEFAULT_MAX_ATTEMPTS, |retry| retry.max_attempts)
    }
    /// Whether the policy itself (not a person) tries again after such an end.
    pub fn retries_on(&self, event: RetryEvent) -> bool {
        self.retry.as_ref().is_some_and(|retry| retry.on_events.contains(&event))
    }
}

fn one() -> i64 {
    1
}

fn is_one(number: &i64) -> bool {
    *number == 1
}

pub const DEFAULT_MAX_DURATION_MS: i64 = DAY;
pub const DEFAULT_STOP_DURATION_MS: i64 = 10 * SECOND;
pub const DEFAULT_MAX_ATTEMPTS: i64 = 3;

// Bounds of what one run may ask for; each keeps one row, one document or one environment of reasonable size.
/// The longest single argument that Linux takes, without the byte that ends it.
pub const MAX_COMMAND_BYTES: usize = 128 * 1024 - 1;
/// What is piped in is kept by the control plane and fetched whole by the machine before the command starts.
pub const MAX_STDIN_BYTES: i64 = 1 << 30;
/// Letters of a command that are kept with its run.
const MAX_TITLE: usize = 80;
/// It travels in the document that a machine is told, for as long as its job is open.
pub const MAX_INIT_BYTES: usize = 64 * 1024;
/// A word or a version, not data.
pub const MAX_SALT_BYTES: usize = 1024;
pub const MAX_ENV: usize = 500;
/// Names and values together: they travel in the document that a machine is told.
pub const MAX_ENV_BYTES: usize = 128 * 1024;
/// A pattern of artifacts, the working directory, a place for files: a path as system calls take it.
pub const MAX_PATH_BYTES: usize = 4_096;
pub const MAX_ATTEMPTS: i64 = 100;
pub const MAX_NODES: i64 = 1_000;
pub const MIN_MEMORY_BYTES: i64 = 4 * 1024 * 1024;

impl RunSpec {
    /// Its steps are begun by a program elsewhere: no runner takes part.
    fn check_external(&self) -> Result<(), Refused> {
        let why = "a run of `type: external` has no machine: your own program begins its steps";
        check(self.command.is_empty(), "commands", why)?;
        check(self.env.is_empty(), "env", why)?;
        check(self.secrets.is_empty(), "secrets", why)?;
        check(self.files.is_none(), "files", why)?;
        check(self.stdin.is_none(), "stdin", why)?;
        check(self.artifacts.is_empty(), "artifacts", why)?;
        check(self.sandbox.is_none(), "sandbox", why)?;
        check(self.init.is_none(), "init", why)?;
        check(self.features.is_empty(), "features", why)?;
        check(self.base.is_none(), "snapshot", why)?;
        check(!self.save_snapshot, "save_snapshot", why)
    }

    /// What is answered from a kept result leaves nothing else behind.
    fn check_cache(&self) -> Result<(), Refused> {
        let Some(cache) = self.call.as_ref().and_then(CallPart::caller) else { return Ok(()) };
        check(self.kind == RunKind::Task, "cache", "only a run of `type: task` has one command whose result is kept")?;
        check(!self.save_snapshot, "cache", "a kept result has no workdir to save: leave out save_snapshot or cache")?;
        check(
            self.features.is_empty(),
            "cache",
            "a kept result does not know what a feature installs: leave out features or cache",
        )?;
        check_cached(self.files.as_ref().map_or(0, |tree| tree.files))?;
        check(cache.salt.len() <= MAX_SALT_BYTES, "cache.salt", format!("longer than {MAX_SALT_BYTES} bytes"))
    }

    /// Everything that can be refused by looking at the specification alone.
    pub fn check(&self) -> Result<(), Refused> {
        match self.kind {
            RunKind::Task => check(!self.command.is_empty(), "commands", "a command is needed, e.g. -c 'echo hello'")?,
            RunKind::External => self.check_external()?,
            RunKind::Agents => {
                check(
                    self.command.is_empty(),
                    "commands",
                    "agents have commands in their steps, not a command of their own",
                )?;
                check(self.plan.max_agents > 0, "max_agents", "must be above zero")?;
            }
            other => {
                return Err(Refused::invalid("type", format!("`{other}` is not supported here: use task")));
            }
        }
        check(
            self.command.bytes() <= MAX_COMMAND_BYTES,
            "commands",
            "longer than 128 KiB: put it into a file and send it with --file",
        )?;
        let several = self.features.iter().enumerate().any(|(n, name)| self.features[..n].contains(name));
        check(!several, "features", "one is named twice")?;
        check(self.features.len() <= MAX_FEATURES, "features", format!("more than {MAX_FEATURES}"))?;
        if let Some(init) = &self.init {
            check(!init.trim().is_empty(), "init", "an empty script prepares nothing: leave it out")?;
            check(init.len() <= MAX_INIT_BYTES, "init", "longer than 64 KiB: let it download or unpack what it needs")?;
        }
        check(self.env.len() <= MAX_ENV, "env", "more than 500 variables")?;
        let bytes: usize = self.env.iter().map(|(name, value)| name.len() + value.len()).sum();
        check(bytes <= MAX_ENV_BYTES, "env", "more than 128 KiB in sum: put it into a file and send it with --file")?;
        for name in self.env.keys().chain(&self.secrets) {
            check_variable(name).map_err(|why| Refused::invalid("env", why))?;
        }
        if let Some(tree) = &self.files {
            check(is_hash(&tree.hash), "files.hash", format!("`{}` is not a BLAKE3 hash in hex", tree.hash))?;
            check(tree.files >= 0 && tree.bytes >= 0, "files", "counts must not be negative")?;
        }
        if let Some(stdin) = &self.stdin {
            check(is_hash(&stdin.hash), "stdin", format!("`{}` is not a BLAKE3 hash in hex", stdin.hash))?;
            check(
                (0..=MAX_STDIN_BYTES).contains(&stdin.size),
                "stdin",
                "larger than 1 GiB: send it as a file with --file and read it from there",
            )?;
        }
        if let Some(dir) = &self.working_dir {
            check(is_inside(dir), "working_dir", format!("`{dir}` must stay below the run's folder"))?;
        }
        for glob in &self.artifacts {
            check(is_inside(glob), "artifacts", format!("`{glob}` must stay below the run's folder"))?;
        }
        check(self.max_duration_ms.is_none_or(|ms| ms > 0), "max_duration", "must be longer than nothing, e.g. 2h")?;
        check((1..=MAX_NODES).contains(&self.nodes), "nodes", format!("must lie between 1 and {MAX_NODES}"))?;
        check(self.stop_duration_ms >= 0, "stop_duration", "must not be negative, e.g. 10s")?;
        check(self.hold_ms.is_none_or(|ms| (0..=MAX_HOLD_MS).contains(&ms)), "hold", "must lie between 0s and 24h")?;
        check(
            self.budget.is_none_or(|b| b > Credits::ZERO),
            "budget",
            "must be a positive number of credits, e.g. 5 or 0.25",
        )?;
        self.resources.check()?;
        self.check_cache()?;
        if let Some(retry) = &self.retry {
            check(
                (1..=MAX_ATTEMPTS).contains(&retry.max_attempts),
                "retry",
                "must lie between 1 and 100 attempts, the first included",
            )?;
            check(
                retry.delay_ms.is_none_or(|ms| (0..=MAX_RETRY_DELAY_MS).contains(&ms)),
                "retry.delay",
                "must lie between 0s and 24h",
            )?;
        }
        Ok(())
    }

    pub fn terms(&self) -> RunTerms {
        RunTerms {
            kind: self.kind,
            title: self.command.shown().lines().next().unwrap_or_default().chars().take(MAX_TITLE).collect(),
            sent_files: self.files.is_some() || self.stdin.is_some() || self.base.is_some(),
            has_artifacts: !self.artifacts.is_empty(),
            resources: self.resources.clone(),
            provider: self.provider.clone(),
            region: self.region.clone(),
            any_region: self.any_region,
            providers: self.providers.clone(),
            spot: self.spot,
            max_duration_ms: self.max_duration_ms,
            stop_duration_ms: self.stop_duration_ms,
            hold_ms: self.hold_ms,
            budget: self.budget,
            retry: self.retry.clone(),
            priority: self.priority,
            sandbox: self.sandbox,
            on_lost_control: self.on_lost_control,
            failure_mode: self.failure_mode,
            plan: self.plan,
            nodes: self.nodes,
            init_checksum: self.init_checksum.clone(),
            features: self.features.clone(),
            save_snapshot: self.save_snapshot,
            call: self.call.clone(),
        }
    }

    pub fn content(&self) -> RunContent {
        RunContent {
            command: self.command.clone(),
            env: self.env.clone(),
            secrets: self.secrets.clone(),
            files: self.files.clone(),
            stdin: self.stdin.clone(),
            working_dir: self.working_dir.clone(),
            artifacts: self.artifacts.clone(),
            merge: self.merge,
            init: self.init.clone(),
            base: self.base.clone(),
        }
    }
}

fn check(ok: bool, field: &str, why: impl Into<String>) -> Result<(), Refused> {
    if ok { Ok(()) } else { Err(Refused::invalid(field, why)) }
}

/// What a run may be called, for a sentence that begins with the name.
pub const NAME_RULE: &str = "must be 1 to 63 letters, digits, `-`, `_` or `.`, beginning with a letter or digit";

/// Names are words people type: they must not look like flags or paths.
pub fn is_name(name: &str) -> bool {
    let plain = name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b));
    plain && name.len() <= 63 && name.bytes().next().is_some_and(|b| b.is_ascii_alphanumeric())
}

/// Why a variable or a secret may not have a reserved name.
pub const RESERVED: &str = "names beginning with REPL_ are reserved for the environment of a job; use another name";

/// A name that the runner may set in the environment of a job (`REPL_RUN`, `REPL_JOB`, …).
pub fn is_reserved(name: &str) -> bool {
    name.starts_with("REPL_")
}

/// Whether a run may have a variable of this name, or why not.
pub fn check_variable(name: &str) -> Result<(), String> {
    if !is_variable(name) {
        return Err(format!("`{name}` is not a variable name: letters, digits and _, not beginning with a digit"));
    }
    if is_reserved(name) {
        return Err(format!("`{name}`: {RESERVED}"));
    }
    Ok(())
}

/// A name the shell would accept.
fn is_variable(name: &str) -> bool {
    let mut bytes = name.bytes();
    bytes.next().is_some_and(|b| b.is_ascii_alphabetic() || b == b'_')
        && bytes.all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

/// A relative path that cannot leave the folder it is relative to.
pub fn is_inside(path: &str) -> bool {
    !path.is_empty()
        && path.len() <= MAX_PATH_BYTES
        && !path.starts_with('/')
        && !path.contains('\0')
        && path.split('/').all(|part| part != "..")
}

pub fn is_hash(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
}

#[cfg(test)]
mod tests;
