//! Machines, the slots on them, and where they come from.

use serde::{Deserialize, Serialize};

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
    /// What makes sandboxes there, or `none: …` and why there are none.
    #[serde(default)]
    pub sandbox: Option<String>,
    /// What it is prepared with.
    #[serde(default)]
    pub features: Vec<FeatureView>,
    pub job: Option<String>,
    pub run: Option<String>,
    pub desired_version: i64,
    pub observed_version: i64,
    pub created_at: i64,
    pub ready_at: Option<i64>,
    pub last_seen_at: Option<i64>,
    pub idle_since: Option<i64>,
    /// Since when the job on it has it; none while no job is on it.
    #[serde(default)]
    pub busy_since: Option<i64>,
    /// How long it has existed, up to its end.
    #[serde(default)]
    pub machine_ms: i64,
    /// Its price for that time. What was charged for it stands in the ledger.
    #[serde(default)]
    pub credits_so_far: String,
    #[serde(default)]
    pub credits_so_far_micro: i64,
    pub terminated_at: Option<i64>,
    pub held_until: Option<i64>,
}

/// A feature of a machine.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct FeatureView {
    pub name: String,
    /// `installing`, `installed`, `broken` (removed before it is installed again), `removing`, or `left` (it could not be removed).
    pub state: String,
    pub checksum: String,
    pub error: Option<String>,
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
