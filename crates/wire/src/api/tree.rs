//! What is below a run: attempts, agents, tasks, steps and the jobs on machines.

use super::{ErrorView, RunView};
use serde::{Deserialize, Serialize};

/// The run with the first agents, tasks and steps of its current attempt.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Tree {
    pub run: RunView,
    pub agents: Vec<AgentView>,
    /// There are more agents, tasks, steps or jobs than these: the pages of `/agents`, `/tasks`, `/steps` and `/jobs` have them all.
    #[serde(default)]
    pub cut: bool,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AttemptView {
    pub run: String,
    pub number: i64,
    pub status: String,
    pub credits_reserved: String,
    pub credits_reserved_micro: i64,
    pub credits_charged: String,
    pub credits_charged_micro: i64,
    pub credits_refunded: String,
    pub credits_refunded_micro: i64,
    pub uncollected_micro: i64,
    pub opened_at: i64,
    pub ended_at: Option<i64>,
}

/// Children by state, those that have no row yet included.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct CountsView {
    pub pending: i64,
    pub running: i64,
    pub waiting: i64,
    pub paused: i64,
    pub completed: i64,
    pub partial: i64,
    pub skipped: i64,
    pub failed: i64,
    pub cancelled: i64,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AgentView {
    pub id: String,
    pub name: String,
    /// `rank`, `planned`, `planner` or `system`.
    pub kind: String,
    pub attempt: i64,
    #[serde(default)]
    pub plan_version: i64,
    pub sequence: i64,
    pub status: String,
    pub outcome: Option<String>,
    pub tries: i64,
    #[serde(default)]
    pub max_tries: i64,
    pub last_error: Option<ErrorView>,
    pub started_at: Option<i64>,
    pub ended_at: Option<i64>,
    /// In the tree: what agents of this name have used in all attempts of the run, their machines included.
    #[serde(default)]
    pub credits_charged: Option<String>,
    #[serde(default)]
    pub credits_charged_micro: Option<i64>,
    #[serde(default)]
    pub task_counts: CountsView,
    #[serde(default)]
    pub tasks: Vec<TaskView>,
    #[serde(default)]
    pub jobs: Vec<JobView>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TaskView {
    pub id: String,
    pub name: String,
    pub agent: String,
    #[serde(default)]
    pub sequence: i64,
    pub status: String,
    #[serde(default)]
    pub outcome: Option<String>,
    /// Its `if` was false, or its `for_each` gave no item.
    #[serde(default)]
    pub unneeded: bool,
    pub tries: i64,
    #[serde(default)]
    pub max_tries: i64,
    pub last_error: Option<ErrorView>,
    pub started_at: Option<i64>,
    pub ended_at: Option<i64>,
    #[serde(default)]
    pub step_counts: CountsView,
    #[serde(default)]
    pub steps: Vec<StepView>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct StepView {
    pub id: String,
    pub name: String,
    #[serde(default)]
    pub agent: String,
    pub task: String,
    /// The step that it is part of: a turn or a call of a model's loop, a durable step of a program.
    #[serde(default)]
    pub parent: Option<String>,
    #[serde(default)]
    pub sequence: i64,
    pub tool: String,
    pub status: String,
    #[serde(default)]
    pub idempotent: bool,
    /// It was begun, and whether it had its effect is unknown: a person is asked.
    pub uncertain: bool,
    /// It was begun, whether it had its effect is unknown, and its `verify` is called: a child of it.
    #[serde(default)]
    pub verifying: bool,
    /// It ended; whether it had its effect is unknown.
    #[serde(default)]
    pub outcome_unknown: bool,
    /// The record of an earlier try answered: its tool was not called.
    #[serde(default)]
    pub replayed: bool,
    /// Its `if` was false.
    #[serde(default)]
    pub unneeded: bool,
    /// What it waits for: `approval`, `ticket`, `timer` or `poller` (a program that takes it).
    #[serde(default)]
    pub waits: Option<String>,
    /// It is pending, and not called before `due_at`, because this endpoint asked for a pause (429).
    #[serde(default)]
    pub held_back_by: Option<String>,
    /// When it goes on by itself.
    #[serde(default)]
    pub due_at: Option<i64>,
    /// Made of its names and its exact input; tools hand it on, so that a repetition can be recognised.
    #[serde(default)]
    pub key: Option<String>,
    pub tries: i64,
    #[serde(default)]
    pub max_tries: i64,
    pub last_error: Option<ErrorView>,
    /// What its last failure was, whether it may have had an effect (`none`, `perhaps`, `done`), and what was decided by which rule.
    #[serde(default)]
    pub error_class: Option<String>,
    #[serde(default)]
    pub error_effect: Option<String>,
    #[serde(default)]
    pub decision: Option<String>,
    #[serde(default)]
    pub rule: Option<String>,
    pub started_at: Option<i64>,
    /// When its present try began.
    #[serde(default)]
    pub began_at: Option<i64>,
    pub ended_at: Option<i64>,
    /// What all its tries have cost. Its turns and calls, which are steps too, say what they have cost themselves.
    #[serde(default)]
    pub credits_charged: String,
    #[serde(default)]
    pub credits_charged_micro: i64,
}

/// A step with what it was called with, what it answered, and its earlier tries.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct StepDetailView {
    #[serde(flatten)]
    pub step: StepView,
    pub input: Option<serde_json::Value>,
    pub output: Option<serde_json::Value>,
    /// Oldest first, without the present one.
    pub earlier_tries: Vec<StepView>,
    /// The last approval and the last ticket about it.
    pub questions: Vec<String>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct JobView {
    pub id: String,
    pub run: String,
    pub agent: String,
    pub attempt: i64,
    pub submission: i64,
    pub status: String,
    pub phase: Option<String>,
    pub reason: Option<String>,
    pub message: Option<String>,
    pub exit_code: Option<i32>,
    pub signal: Option<i32>,
    pub workflow: String,
    pub instance: Option<String>,
    pub allocation: Option<String>,
    pub warm: bool,
    pub epoch: i64,
    pub submitted_at: i64,
    pub placed_at: Option<i64>,
    pub running_at: Option<i64>,
    pub started_at: Option<i64>,
    pub ended_at: Option<i64>,
    pub final_offset: Option<i64>,
    pub log_cut: bool,
    pub active_ms: i64,
    /// When its machine was last heard, up to the end of the job.
    #[serde(default)]
    pub last_seen_at: Option<i64>,
    /// Limits that its machine could not enforce, and why.
    pub unenforced: Option<String>,
}
