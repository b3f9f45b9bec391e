//! What a run says and leaves behind: events, log frames, artifacts, and the blobs that it was given.

use crate::Base64;
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct EventView {
    pub number: i64,
    pub at: i64,
    pub kind: String,
    pub run: Option<String>,
    /// What happened, by kind. `by` names the token whose request it was, in events that follow at once from a request.
    pub body: serde_json::Value,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LogFrame {
    /// The job that wrote it, of a run with one command.
    pub job: String,
    /// The step that wrote it, of a run of agents, and in which of its tries.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<String>,
    #[serde(default, rename = "try", skip_serializing_if = "Option::is_none")]
    pub number: Option<i64>,
    /// In the log of this job, or of this try.
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
