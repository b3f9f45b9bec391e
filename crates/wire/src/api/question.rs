//! What people are asked about steps: tickets (`/escalations`) and approvals, and how they answer.

use super::ErrorView;
use serde::{Deserialize, Serialize};

/// A ticket or an approval.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct QuestionView {
    pub id: String,
    pub run: String,
    pub attempt: i64,
    /// The step, and its names: `agent/task/step`.
    pub step: String,
    pub path: String,
    pub tool: String,
    /// `open`, `approved`, `rejected`, `expired`, `resolved` or `withdrawn` (the step needs no answer any more).
    pub status: String,
    /// `low`, `medium`, `high` or `critical`.
    pub severity: String,
    /// The step's key with the input that was asked about: an approval is good for nothing else.
    pub key: String,
    /// Of an approval: a step, `agent/task/step`, that was begun with the same tool and input before: by an earlier plan under another name,
    /// or by an earlier dialogue of the same step.
    #[serde(default)]
    pub same_as: Option<String>,
    #[serde(default)]
    pub same_as_step: Option<String>,
    /// Why a ticket was opened.
    pub error: Option<ErrorView>,
    pub asked_at: i64,
    /// An approval that is not given by then is a refusal.
    pub expires_at: Option<i64>,
    /// Who answered, when and what.
    pub answered_by: Option<String>,
    pub answered_at: Option<i64>,
    /// Of a ticket: `resume`, `skip`, `retry`, `abort`, `done` or `not_done`.
    pub action: Option<String>,
    pub note: Option<String>,
    /// The step's key with the input that the person put in the place of the one that was asked about.
    pub edited_key: Option<String>,
}

/// A question with all that is needed to answer it.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct QuestionDetailView {
    #[serde(flatten)]
    pub question: QuestionView,
    pub run_name: String,
    /// What the step was or would be called with.
    pub input: Option<serde_json::Value>,
    /// What a person put in its place.
    pub edited_input: Option<serde_json::Value>,
    /// What a person answered: the step's output.
    pub answer: Option<serde_json::Value>,
    /// Actions, or verbs, that are possible now.
    pub allowed: Vec<String>,
}

/// `POST /escalations/{id}/resolve`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ResolveBody {
    /// `resume`, `skip`, `retry` or `abort`; of a step whose outcome is unknown also `done` or `not_done`.
    pub action: String,
    #[serde(default)]
    pub note: Option<String>,
    /// With `done`: what the step would have answered.
    #[serde(default)]
    pub output: Option<serde_json::Value>,
}

/// `POST /approvals/{id}/approve`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default, deny_unknown_fields)]
pub struct ApproveBody {
    /// Of a step of the tool `approval`: its output.
    pub answer: Option<serde_json::Value>,
    /// Takes the place of the input that was asked about. Both are kept.
    pub input: Option<serde_json::Value>,
    pub note: Option<String>,
}

/// `POST /approvals/{id}/reject`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default, deny_unknown_fields)]
pub struct RejectBody {
    pub note: Option<String>,
}
