//! Results that are kept: what there is, why a run was not answered by one, and where one came from.

use super::CachedFrom;
use serde::{Deserialize, Serialize};

/// A result that answers runs that are the same.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PinView {
    /// The call node, which is the key.
    pub node: String,
    pub exec: String,
    /// `ok`, or `error` if the exit code was not 0.
    pub status: String,
    /// The name of the run that asked first; empty if it had none.
    pub name: String,
    /// The run that executed it.
    pub run: Option<String>,
    /// Of the result: output, artifacts and records.
    pub bytes: i64,
    pub ended_at: i64,
    /// When it last answered a run; written at most once an hour.
    pub used_at: i64,
}

/// Why a call was executed.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CacheWhy {
    /// The cached run, or the execution of a call (`cal_…`).
    pub run: String,
    /// The call node, which is the key.
    pub node: Option<String>,
    /// A kept result answered it when it was submitted.
    pub hit: bool,
    /// What it is compared with: the newest execution before it of a run of the same name, else of the same function.
    pub with: Option<PinView>,
    /// What is not the same, one sentence each.
    pub differences: Vec<String>,
    /// Another reason.
    pub note: Option<String>,
    pub cached_from: Option<CachedFrom>,
}

/// What two calls differ in.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CallDiff {
    /// The call node of the first, which is its key.
    pub first: String,
    /// Of the second. It may be the same: an execution of one call can end differently from another.
    pub second: String,
    /// What is not the same, one sentence each. Of variables only the names.
    pub differences: Vec<String>,
}

/// Which results are not to answer any more: exactly one of the three.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default, deny_unknown_fields)]
pub struct Invalidate {
    /// A run, an execution of a call (`cal_…`), its node, or the first digits of an exec.
    pub result: Option<String>,
    /// All results of cached runs.
    pub all: bool,
    /// All results of this function, `dml+exec://ADAPTER/PATH?QUERY`.
    pub function: Option<String>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Invalidated {
    /// How many results answered until now.
    pub results: i64,
}

/// What may go. Without a field, as the settings say.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default, deny_unknown_fields)]
pub struct CollectGarbage {
    /// Results that answered no run for so long.
    pub older_than_ms: Option<i64>,
    /// What remains in sum; results that were used longest ago go first.
    pub max_bytes: Option<i64>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct GarbageCollected {
    /// Results that answer no run any more.
    pub results: i64,
    /// Records that were deleted, and those that are left.
    pub objects: i64,
    pub objects_left: i64,
    pub bytes_left: i64,
    /// Records of single results that are missing or cannot be read: the calls are executed again.
    #[serde(default)]
    pub damaged: i64,
}

/// Rows of pins, beside the index.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PinsRebuilt {
    /// That were looked at.
    pub rows: i64,
    /// That were made, or corrected.
    pub made: i64,
    /// That the index does not have.
    pub removed: i64,
    /// Rows of execs that were made of their records.
    pub execs: i64,
    /// Pins whose result cannot be read: the call is executed again.
    pub damaged: i64,
}

/// Where a result came from.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Backtrack {
    pub exec: String,
    pub node: String,
    pub function: String,
    pub status: String,
    pub started_at: i64,
    pub ended_at: i64,
    /// The run that executed it, with its job and machine.
    pub run: Option<String>,
    pub job: Option<String>,
    pub instance: Option<String>,
    /// What all attempts of that run were charged; none if its row is gone.
    pub credits: Option<String>,
    pub credits_micro: Option<i64>,
    /// What it was executed with, by name. Of variables only the names.
    pub inputs: serde_json::Value,
    /// Of inputs that are results themselves, by the input's name: the newest execution of that call, or the dag that it is the root of.
    #[serde(default)]
    pub made_by: std::collections::BTreeMap<String, String>,
    pub value: serde_json::Value,
}
