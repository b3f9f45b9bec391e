//! What runs and orgs have used: tokens, turns, calls of tools, machine time, credits.

use serde::{Deserialize, Serialize};

/// Sums. Those of a grouping add up to the total, and the credits to what the ledger has charged.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct UsageSums {
    pub input_tokens: i64,
    pub output_tokens: i64,
    /// Answers of models, also those that could not be used.
    pub turns: i64,
    /// Of these turns, those whose tokens are estimated: the model's server did not count them.
    pub estimated_turns: i64,
    /// Calls of tools that models asked for.
    pub tool_calls: i64,
    pub machine_ms: i64,
    pub charged: String,
    pub charged_micro: i64,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct UsageGroup {
    /// The id of a run, the name of an agent, model or provider, or the day (UTC) as `2026-01-31`. None: what belongs to none, such as idle
    /// machines, which have no run, or machines, which have no model.
    pub key: Option<String>,
    /// Of a run: its name.
    #[serde(default)]
    pub name: Option<String>,
    #[serde(flatten)]
    pub usage: UsageSums,
}

/// The dearest groups, and the sum of those that are not listed.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct UsageGroups {
    pub groups: Vec<UsageGroup>,
    #[serde(default)]
    pub others: Option<UsageSums>,
}

/// The usage of an org within a span of whole hours.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct UsageView {
    pub from: i64,
    pub to: i64,
    /// `run`, `agent`, `model`, `provider` or `day`.
    pub by: String,
    pub total: UsageSums,
    #[serde(flatten)]
    pub groups: UsageGroups,
}

/// The usage of a run in all its attempts.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RunUsageView {
    pub run: String,
    /// The version of the prices by which models are charged now. Each charge in the ledger names that by which it was made.
    #[serde(default)]
    pub prices: String,
    pub total: UsageSums,
    pub agents: UsageGroups,
    pub models: UsageGroups,
    pub providers: UsageGroups,
    /// Of the total, what belongs to no step: machines.
    pub beside_steps: UsageSums,
    /// A page of the steps that have used anything, each with its turns.
    pub steps: Vec<StepUsageView>,
    #[serde(default)]
    pub next_cursor: Option<String>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct StepUsageView {
    pub step: String,
    pub attempt: i64,
    /// `agent/task/step`.
    pub path: String,
    /// None: a step of a program, which says itself what it has cost.
    pub model: Option<String>,
    #[serde(flatten)]
    pub usage: UsageSums,
}
