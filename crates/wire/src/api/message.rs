//! What a person says to an agent that talks with a model.

use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct SendMessage {
    /// The name or the id of the agent; not needed while only one of the run talks with a model.
    #[serde(default)]
    pub agent: Option<String>,
    /// At most 16 KiB. The model reads it as a message of its user.
    pub text: String,
}

/// A stored message. The events `message.sent` and `message.delivered` of the run tell what becomes of it.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct MessageView {
    pub id: String,
    pub run: String,
    /// The name of the agent whose next turn takes it.
    pub agent: String,
    pub at: i64,
}
