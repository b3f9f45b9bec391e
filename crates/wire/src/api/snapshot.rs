//! Snapshots: workdirs that were kept as trees, from which runs start.

use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SnapshotView {
    pub id: String,
    /// making, ready, failed, deleted.
    pub status: String,
    /// The run whose folder it is of.
    pub run: Option<String>,
    pub allocation: String,
    pub instance: String,
    /// The workflow that makes it.
    pub workflow: String,
    pub manifest: String,
    /// BLAKE3 of its root folder's document, once all of it is here.
    pub tree: Option<String>,
    pub files: Option<i64>,
    pub bytes: Option<i64>,
    /// Why it could not be made.
    pub error: Option<String>,
    pub created_at: i64,
    pub ready_at: Option<i64>,
    pub deleted_at: Option<i64>,
}
