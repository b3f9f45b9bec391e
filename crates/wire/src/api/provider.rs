//! Providers: where machines come from, what they cost, and whether they do what they promise.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ProviderView {
    pub name: String,
    pub kind: Option<String>,
    /// `settings`, `added`, or `left` (deleted from the settings, and it still has machines).
    pub source: String,
    pub regions: Vec<String>,
    pub max_instances: i64,
    /// Its machines that are not terminated.
    pub instances: i64,
    /// Of an ordinary machine in its first region.
    pub price_per_hour: String,
    /// Its machines cost their owner money: it is taken only by who names it.
    pub bills: bool,
    /// It has machines that are cheaper and may be taken away at any time.
    pub spot: bool,
    /// As `KIND:N`, with as many as one machine can have.
    pub gpus: Vec<String>,
    /// The workdir outlives the runner, so a held idle runner may be retired.
    pub workdir_survives_runner: bool,
    /// No new machine is made there; it goes with its last one.
    pub leaving: bool,
    /// Only these orgs may use it; null: every org.
    pub orgs: Option<Vec<String>>,
    /// Its hosts, where it has several.
    #[serde(default)]
    pub hosts: Vec<HostView>,
    /// Of one that is being removed: hosts on which something of ours stays, because they could not be asked.
    #[serde(default)]
    pub stays: Vec<StaysView>,
}

/// A host on which machines of a provider are made.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct HostView {
    pub host: String,
    /// `up`, `down`, or `unknown` until it has been asked.
    pub status: String,
    /// Why it is down.
    pub why: Option<String>,
    /// Unix time in ms.
    pub down_since: Option<i64>,
    pub architecture: Option<String>,
    pub os_release: Option<String>,
    pub cpu_milli: Option<i64>,
    pub memory_bytes: Option<i64>,
    /// The model of each of its GPUs, in the order of their numbers.
    pub gpus: Vec<String>,
    /// Why no command there can have a sandbox; null: it can, or that is not known.
    pub no_sandbox: Option<String>,
    /// Machines at once, which share what it has.
    pub slots: i64,
    /// Its machines that are not terminated.
    pub instances: i64,
}

/// What is left on a host of a provider that is being removed.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct StaysView {
    pub host: String,
    /// Folders there.
    pub what: String,
    /// Why they could not be removed.
    pub why: String,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct NewProvider {
    /// 1 to 32 characters of a-z, 0-9 and -.
    pub name: String,
    /// Any kind but `exec`, which stands in the settings only.
    pub kind: String,
    /// What a table `[providers.NAME]` of the settings would have.
    #[serde(default)]
    pub keys: BTreeMap<String, serde_json::Value>,
    /// Only these orgs may use it, by name.
    #[serde(default)]
    pub orgs: Option<Vec<String>>,
    /// Credits per hour of one of its machines, as decimal text. `[prices]` of the settings wins.
    #[serde(default)]
    pub price_per_hour: Option<String>,
}

/// What one type of machine costs.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PriceView {
    pub provider: String,
    pub region: String,
    pub spot: bool,
    pub instance_type: Option<String>,
    pub cpu_milli: Option<i64>,
    pub memory_bytes: Option<i64>,
    pub gpu: Option<String>,
    pub price_per_hour: String,
    pub price_per_hour_micro: i64,
}

/// What a provider did with a machine that was made to try it.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ProviderReport {
    pub provider: String,
    pub instance: String,
    pub passed: bool,
    pub cases: Vec<ProviderCase>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ProviderCase {
    pub name: String,
    pub passed: bool,
    /// What was not as it should be.
    pub why: Option<String>,
}
