//! What a runner is told when it is started: written by a provider into the instance's directory (`runner.json`, 0600),
//! read by the runner. Everything else reaches it through its desired document.

use serde::{Deserialize, Serialize};

pub const BOOT_FILE: &str = "runner.json";
/// Held with `flock` for as long as the runner lives; a free lock means the process is gone.
pub const LOCK_FILE: &str = "runner.lock";
/// 0600 unix socket on which the runner proves its identity by nonce and takes `shutdown`.
pub const SOCKET_FILE: &str = "runner.sock";

#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Boot {
    /// `repl-<control_id>-<manifest>-<instance>`.
    pub name: String,
    pub nonce: String,
    pub instance: crate::InstanceId,
    pub control_id: String,
    /// `unix:/path/control.sock` or `http(s)://host:port`.
    pub control_url: String,
    /// PEM of the authorities that are trusted beside those of the system when it is https.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub control_ca: Option<String>,
    /// HMAC(installation key, name), so that it survives loss of the database.
    pub token: String,
    /// The size of this machine as its provider knows it. What a job may use of it is said with the job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_milli: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<i64>,
    /// The numbers of the GPUs that its jobs may use; none where the host has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpus: Option<Vec<i64>>,
    pub timings: BootTimings,
    /// Files and folders on this machine that a job in a sandbox does not see, beside the machine's own folder and its user's home.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hidden: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct BootTimings {
    pub heartbeat_every_ms: i64,
    pub degraded_after_ms: i64,
    pub panic_after_ms: i64,
    pub log_spool_bytes: u64,
    /// How long a runner that its control plane does not list, after the loss of the database, counts as in touch with it.
    #[serde(default = "a_day")]
    pub unlisted_for_ms: i64,
}

fn a_day() -> i64 {
    crate::time::DAY
}

impl Default for BootTimings {
    fn default() -> Self {
        BootTimings {
            heartbeat_every_ms: 10_000,
            degraded_after_ms: 120_000,
            panic_after_ms: 900_000,
            log_spool_bytes: 1 << 30,
            unlisted_for_ms: a_day(),
        }
    }
}

/// One line of JSON to the runner's socket, answered by one line.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "snake_case")]
pub enum SocketAsk {
    Identify,
    /// Ends the runner and every process of every job on it.
    Shutdown {
        nonce: String,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct SocketAnswer {
    pub name: String,
    pub nonce: String,
    pub pid: i32,
    #[serde(default)]
    pub refused: Option<String>,
}
