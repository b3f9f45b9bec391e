//! A provider as its row has it: added by a person, or copied from the settings so that its machines can be ended after it was deleted
//! there.

use crate::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

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
    /// A copy of what the settings say.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub of_settings: bool,
    /// It goes when the last of its machines is gone, and makes no new one.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub leaving: bool,
    pub added_by: String,
    pub added_at: Timestamp,
}
