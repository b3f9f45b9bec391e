//! A provider as its row has it: added by a person, or copied from the settings so that its machines can be ended after it was deleted
//! there.

use crate::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Machines that one host of a provider may be split into.
pub const MOST_SLOTS: i64 = 256;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProviderRow {
    pub name: String,
    pub kind: String,
    /// What only this kind understands.
    #[serde(default)]
    pub keys: Map<String, Value>,
    /// Only these orgs may use it; every org without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub orgs: Option<Vec<String>>,
    /// Credits per hour of one of its machines, as decimal text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub price_per_hour: Option<String>,
    /// A copy of what the settings say.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub of_settings: bool,
    /// It goes when the last of its machines is gone, and makes no new one.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub leaving: bool,
    /// How often its hosts were asked to let go of what is ours, and what stays on those that did not.
    #[serde(default, skip_serializing_if = "Departure::is_new")]
    pub departure: Departure,
    pub added_by: String,
    pub added_at: Timestamp,
}

/// How far a provider that is being removed has come with its hosts.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Departure {
    pub tries: i64,
    /// Since when its machines have ended, and what is left of them is being removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clearing_since: Option<Timestamp>,
    /// Who wants it gone with its machines and the folders that are held there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forced_by: Option<String>,
    /// Hosts that the last try could not clear.
    #[serde(default)]
    pub stays: Vec<Stays>,
}

/// What stays on a host, where, and why it could not be removed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stays {
    pub host: String,
    /// Folders, as a person would name them there.
    pub what: String,
    pub why: String,
}

impl Departure {
    fn is_new(&self) -> bool {
        *self == Departure::default()
    }
}
