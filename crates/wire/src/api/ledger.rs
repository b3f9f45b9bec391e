//! Credits: the balance and the ledger.

use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct BalanceView {
    pub org: String,
    pub available: String,
    pub available_micro: i64,
    pub reserved: String,
    pub reserved_micro: i64,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct AddCredits {
    /// Decimal credits.
    pub amount: String,
    #[serde(default)]
    pub memo: Option<String>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LedgerRow {
    pub seq: i64,
    pub at: i64,
    /// topup, reserve, charge, refund, adjust.
    pub kind: String,
    pub amount: String,
    pub amount_micro: i64,
    pub run: Option<String>,
    pub attempt: Option<i64>,
    pub key: String,
    pub memo: String,
    pub hash: String,
}
