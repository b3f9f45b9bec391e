//! Workflows with their nodes, and manifests with what they own.

use serde::{Deserialize, Serialize};

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
    /// The workflow one of whose nodes this one is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<String>,
    /// Why its end was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cancel_reason: Option<String>,
    pub created_at: i64,
    pub ended_at: Option<i64>,
    /// Hash of the executed DAG's shape.
    pub topology: String,
    #[serde(default)]
    pub nodes: Vec<NodeView>,
    /// What could not be compensated within 5 minutes and may still exist.
    #[serde(default)]
    pub orphan_risks: Vec<OrphanRiskView>,
    /// The patterns that have changed its nodes, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub patterns: Vec<PatternView>,
}

/// With cancel of a workflow.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default, deny_unknown_fields)]
pub struct CancelBody {
    /// Why, shown with the workflow later.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PatternView {
    /// insert-and-reconverge, conditional-branch, parallel-fan-out, retry-with-alternative.
    pub pattern: String,
    /// The node that asked for it, or that failed.
    pub by: String,
    /// The node that waits for what it brought, or whose place that takes.
    pub target: String,
    /// What it brought or opened.
    pub nodes: Vec<String>,
    pub at: i64,
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
    /// When its effect was undone after it had failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compensated_at: Option<i64>,
    /// The pattern that brought it; none: it is one of the intent's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pattern: Option<String>,
    /// With `pattern`: the node that waits for it, or whose place it takes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub of: Option<String>,
    /// The workflow that does its work.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub child: Option<String>,
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
    /// When nothing of what it owned was left.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deleted_at: Option<i64>,
    /// The workflow that cleans it up, or did last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cleanup: Option<String>,
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
