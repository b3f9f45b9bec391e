//! Refs and objects of calls: heads, the log of commits, single objects.

use serde::{Deserialize, Serialize};

/// A name that points to a commit.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RefView {
    /// As it is stored: `refs/heads/main`.
    pub name: String,
    /// As people write it: `main`, or `origin/main` of a remote.
    pub short: String,
    pub commit: String,
    /// Where it was before, in the answer to a change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub previous: Option<String>,
}

/// Moves a head, or what a remote's head was when it was last seen.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct SetRef {
    /// A head's name, `refs/heads/…` or `refs/remotes/…/…`.
    pub name: String,
    /// Where it is to point: `index`, a head, a ref, or the first digits of a commit.
    pub from: String,
    /// Where it must be now: a commit, or `none` if it must not exist. Anywhere, if it is left out.
    #[serde(default)]
    pub expect: Option<String>,
    /// Also if commits are lost by it.
    #[serde(default)]
    pub force: bool,
}

/// A commit of a log.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CommitView {
    pub id: String,
    pub parents: Vec<String>,
    pub tree: String,
    /// The root of its exec map; none if nothing was pinned.
    pub execs: Option<String>,
    /// Refs that point to it.
    pub refs: Vec<String>,
}

/// An immutable object.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ObjectView {
    pub id: String,
    pub kind: String,
    /// Of its record.
    pub bytes: i64,
    /// What it says, for people: docs/calls.md.
    pub object: serde_json::Value,
}

/// Where results are pinned.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct IndexView {
    /// `[calls] project` of the control plane that pinned them.
    pub project: String,
    /// As it is stored: `refs/index/…`.
    pub name: String,
    /// None before the first pin.
    pub commit: Option<String>,
    pub pins: i64,
    /// New results are pinned here.
    pub current: bool,
}
