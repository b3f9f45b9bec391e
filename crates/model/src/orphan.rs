//! What a provider lists beside what we know: which of it is ours, which is an orphan, and how much that matters. Decides nothing about
//! ending one: an orphan is only ever ended by the word of a person.

use crate::instance::{Instance, InstanceStatus, SPAWN_LIMIT_MS};
use crate::names::{self, ResourceName};
use crate::time::{HOUR, MINUTE};
use crate::{Refused, Timestamp, bug, string_enum};
use serde::{Deserialize, Serialize};

string_enum! {
    /// What is listed.
    pub enum ResourceType {
        Instance = "instance", Volume = "volume", Snapshot = "snapshot", TailscaleMachine = "tailscale_machine",
    }
}

string_enum! {
    /// What its provider says of it.
    pub enum ListedStatus {
        Running = "running", Stopped = "stopped", Ending = "ending", Ended = "ended", Unclear = "unclear",
    }
}

string_enum! {
    /// Which part of the report an orphan is in, in the order of the report.
    pub enum OrphanSection {
        CurrentSession = "current_session", OtherSessions = "other_sessions", Tailscale = "tailscale",
        OtherInstallations = "other_installations", Unknown = "unknown",
    }
}

string_enum! {
    pub enum OrphanSeverity { Warning = "WARNING", Info = "INFO", Caution = "CAUTION" }
}

/// One resource as its provider lists it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listed {
    pub kind: ResourceType,
    pub name: String,
    /// What the provider calls it.
    pub handle: String,
    /// The tag that was put on it when it was made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nonce: Option<String>,
    pub status: ListedStatus,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance_type: Option<String>,
    pub region: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created_at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ip: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_seen: Option<Timestamp>,
    /// Micro-credits per hour while it is as it is; none where the provider cannot say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub price_micro: Option<i64>,
}

impl Listed {
    /// It exists, or its provider cannot say that it does not.
    pub fn is_there(&self) -> bool {
        self.status != ListedStatus::Ended
    }

    /// What its name says.
    pub fn inferred(&self) -> Option<ResourceName> {
        match self.kind {
            ResourceType::TailscaleMachine => names::parse_tailscale(&self.name),
            _ => names::parse(&self.name),
        }
    }

    pub fn age_ms(&self, now: Timestamp) -> Option<i64> {
        self.created_at.map(|created| now.since(created))
    }

    /// The transaction that writes its row may not have ended yet.
    pub fn is_young(&self, limits: &OrphanLimits, now: Timestamp) -> bool {
        self.age_ms(now).is_some_and(|age| age < limits.min_age_ms)
    }
}

/// What a listed resource is, compared with the row that bears its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compared {
    /// Its row knows it.
    Tracked,
    /// Its row does not know how its making ended: this is it.
    Adopt,
    /// Its row says that it has ended, but it is there: the reconciler of that row ends it.
    ThereAgain,
    /// It has ended.
    Ended,
    Orphan,
}

/// `row` is the row that bears the name, or of a Tailscale machine the one that its name tells of. Only the nonce proves that both are the same.
pub fn compare(provider: &str, listed: &Listed, row: Option<&Instance>) -> Compared {
    if !listed.is_there() {
        return Compared::Ended;
    }
    let Some(row) = row else { return Compared::Orphan };
    if listed.kind == ResourceType::TailscaleMachine {
        return if row.status.is_open() { Compared::Tracked } else { Compared::Orphan };
    }
    let proven = listed.nonce.as_deref() == Some(&row.nonce) || bug!(adopted_without_nonce);
    let is_another =
        listed.nonce.is_some() && !proven || row.handle.as_ref().is_some_and(|known| *known != listed.handle);
    if listed.kind != ResourceType::Instance || row.provider != provider || is_another {
        return Compared::Orphan;
    }
    match row.status {
        InstanceStatus::Terminated if proven && !row.displaced => Compared::ThereAgain,
        InstanceStatus::Terminated => Compared::Orphan,
        _ if row.handle.is_none() && proven => Compared::Adopt,
        _ if row.handle.is_none() => Compared::Orphan,
        _ => Compared::Tracked,
    }
}

/// Whose it is likely to be, and how much it matters. `session`: since when the oldest live process of this installation has been up.
pub fn classify(listed: &Listed, control_id: &str, session: Option<Timestamp>) -> (OrphanSection, OrphanSeverity) {
    use OrphanSection as S;
    use OrphanSeverity as V;
    let Some(name) = listed.inferred() else { return (S::Unknown, V::Caution) };
    if name.control_id != control_id {
        return (S::OtherInstallations, V::Info);
    }
    let severity = if is_of_session(listed, session) { V::Warning } else { V::Info };
    match (listed.kind, severity) {
        (ResourceType::TailscaleMachine, severity) => (S::Tailscale, severity),
        (_, V::Warning) => (S::CurrentSession, V::Warning),
        (_, severity) => (S::OtherSessions, severity),
    }
}

/// Made since the session began.
pub fn is_of_session(listed: &Listed, session: Option<Timestamp>) -> bool {
    session.zip(listed.created_at).is_some_and(|(began, created)| created >= began)
}

/// How surely a row is about the resource with this name: the same name, the same instance, the same manifest.
pub fn confidence(name: &str, inferred: &ResourceName, row: &Instance) -> Option<i64> {
    match () {
        () if row.name == name => Some(100),
        () if row.id.0 == inferred.resource => Some(80),
        () if Some(row.manifest.0) == inferred.manifest => Some(50),
        () => None,
    }
}

/// An orphan on the whitelist: a person has looked into it and keeps it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Whitelisted {
    pub provider: String,
    pub provider_id: String,
    pub kind: ResourceType,
    pub reason: String,
    pub acknowledged_by: String,
    pub acknowledged_at: Timestamp,
    pub expires_at: Option<Timestamp>,
    pub notes: Option<String>,
}

pub const MAX_REASON: usize = 1_000;
pub const MAX_NOTES: usize = 4_000;

impl Whitelisted {
    pub fn check(&self, now: Timestamp) -> Result<(), Refused> {
        if self.reason.trim().is_empty() {
            return Err(Refused::invalid("reason", "is required: say why this resource is kept"));
        }
        for (field, text, most) in
            [("reason", Some(&self.reason), MAX_REASON), ("notes", self.notes.as_ref(), MAX_NOTES)]
        {
            if text.is_some_and(|text| text.chars().count() > most) {
                return Err(Refused::invalid(field, format!("has more than {most} characters")));
            }
        }
        if self.expires_at.is_some_and(|expires| expires <= now) {
            return Err(Refused::invalid("expires_at", "lies in the past: give a time to come, or none to keep it"));
        }
        Ok(())
    }

    pub fn holds_at(&self, now: Timestamp) -> bool {
        self.expires_at.is_none_or(|expires| expires > now)
    }
}

/// Settings of the scanner.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct OrphanLimits {
    /// How often each provider's region is listed.
    pub scan_every_ms: i64,
    /// What is younger is left out of scheduled scans.
    pub min_age_ms: i64,
}

impl Default for OrphanLimits {
    fn default() -> OrphanLimits {
        OrphanLimits { scan_every_ms: HOUR, min_age_ms: 15 * MINUTE }
    }
}

impl OrphanLimits {
    /// A machine that is still being made is no orphan.
    pub fn check(&self) -> Result<(), Refused> {
        if self.scan_every_ms < MINUTE {
            return Err(Refused::invalid("orphans.scan_every_ms", format!("must be at least {MINUTE}")));
        }
        if self.min_age_ms <= SPAWN_LIMIT_MS {
            let why = format!("must be larger than the time that making a machine may take ({SPAWN_LIMIT_MS})");
            return Err(Refused::invalid("orphans.min_age_ms", why));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
