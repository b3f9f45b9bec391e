//! What providers list and no row knows, and what people have said about it.

use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct OrphanView {
    pub provider: String,
    /// What the provider calls it.
    pub provider_id: String,
    /// instance, volume, snapshot or tailscale_machine.
    pub resource_type: String,
    pub name: String,
    /// current_session, other_sessions, tailscale, other_installations or unknown.
    pub section: String,
    /// WARNING, INFO or CAUTION.
    pub severity: String,
    /// What its name says; null if it cannot be read.
    pub inferred_info: Option<InferredView>,
    pub created_at: Option<i64>,
    pub age_ms: Option<i64>,
    pub likely_current_session: bool,
    /// So young that its row may still be written.
    pub young: bool,
    /// Credits per hour, if its provider can say.
    pub estimated_hourly_cost: Option<String>,
    pub estimated_hourly_cost_micro: Option<i64>,
    pub status: String,
    pub instance_type: Option<String>,
    pub region: String,
    pub ip: Option<String>,
    pub last_seen: Option<i64>,
    pub first_seen_at: i64,
    pub seen_at: i64,
    pub whitelisted: Option<WhitelistView>,
    /// Since when its end is under way, by a person's word.
    pub ending_at: Option<i64>,
    /// Why it has not ended yet; without `ending_at`, why its end was refused for good: it may be asked for again.
    pub ending_error: Option<String>,
    pub tailscale: Option<TailscaleView>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct InferredView {
    pub control_id: String,
    /// Null where the name says `none`.
    pub manifest_slug: Option<String>,
    pub instance_slug: String,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TailscaleView {
    pub machine_id: String,
    pub machine_name: String,
    pub tailscale_ip: Option<String>,
    pub instance_id_slug: Option<String>,
    pub last_seen: Option<i64>,
    pub age_ms: Option<i64>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct OrphanDetailView {
    pub orphan: OrphanView,
    /// Rows of this org that may be about it, the surest first.
    pub matches: Vec<OrphanMatchView>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct OrphanMatchView {
    pub instance: String,
    pub name: String,
    pub status: String,
    /// 100 the same name, 80 the same instance, 50 the same manifest.
    pub confidence: i64,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default, deny_unknown_fields)]
pub struct ScanBody {
    /// Only this provider.
    pub provider: Option<String>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ScanReport {
    pub scans: Vec<ScanView>,
}

/// The last scan of a provider's region. One that was never scanned has only zeros.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ScanView {
    pub provider: String,
    pub region: String,
    /// Listed to its end. If not, nothing is known of what was not seen.
    pub scanned: bool,
    pub error: Option<String>,
    pub started_at: Option<i64>,
    pub finished_at: Option<i64>,
    /// When it was last listed to its end.
    pub complete_at: Option<i64>,
    pub pages: i64,
    pub listed: i64,
    pub tracked: i64,
    pub adopted: i64,
    pub young: i64,
    pub orphans: i64,
    /// Of other installations.
    pub foreign: i64,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct WhitelistBody {
    pub provider_id: String,
    /// Which provider, where several know the id.
    #[serde(default)]
    pub provider: Option<String>,
    /// Why it is kept.
    pub reason: String,
    #[serde(default)]
    pub expires_at: Option<i64>,
    #[serde(default)]
    pub notes: Option<String>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct WhitelistView {
    pub provider: String,
    pub provider_id: String,
    pub resource_type: String,
    pub reason: String,
    pub acknowledged_by: String,
    pub acknowledged_at: i64,
    pub expires_at: Option<i64>,
    pub notes: Option<String>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct EndOrphanBody {
    /// The provider's id once more, as a person has typed it.
    pub confirm: String,
    /// Also one of another installation.
    #[serde(default)]
    pub force: bool,
}

/// What is not on the whitelist: of this installation, and with names that tell nothing.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct OrphanTally {
    /// Counted up to 1000 of each.
    pub orphans: i64,
    pub estimated_hourly_cost: String,
    pub estimated_hourly_cost_micro: i64,
    /// `provider/region` of what was not listed to its end the last time.
    pub not_scanned: Vec<String>,
}

/// A runner of this installation that no row knows, or one of whose jobs none does.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct UnlistedView {
    pub name: String,
    /// What the machine's name says; null if it cannot be read.
    pub inferred_info: Option<InferredView>,
    pub host: String,
    pub seen_at: i64,
    pub jobs: Vec<UnlistedJobView>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct UnlistedJobView {
    pub job: String,
    pub epoch: i64,
    pub ended: bool,
    /// Bears the seal of this installation. Without it nothing that the runner says of the job is believed, and it is not imported.
    pub sealed: bool,
    pub run: Option<String>,
    pub run_name: Option<String>,
    pub org: Option<String>,
    pub command: Option<String>,
    pub started_at: Option<i64>,
    /// Why it cannot be imported; null if it can.
    pub lacks: Option<String>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default, deny_unknown_fields)]
pub struct ImportBody {
    /// Takes the runs whose own org is not here: its name or id.
    pub org: Option<String>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ImportReport {
    pub imported: Vec<ImportedView>,
    /// Runners of which nothing was imported.
    pub left: Vec<NotImportedView>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ImportedView {
    /// Of the machine.
    pub name: String,
    pub instance: String,
    pub run: String,
    pub run_name: String,
    pub job: String,
    pub org: String,
    /// The first byte of its log that is not lost.
    pub log_from: i64,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct NotImportedView {
    pub name: String,
    pub why: String,
}
