//! `repl orphans`: what providers list and no row knows. Shows and keeps; ends one only when a person types its id.

mod recovery;
mod report;

use crate::args::{Json, Listing};
use crate::complaint::{Complaint, Done};
use crate::control_plane::{ControlPlane, PROVIDERS_ASKED_WITHIN};
use crate::say::one_line;
use crate::settings::Settings;
use crate::show;
use std::io::{BufRead as _, IsTerminal as _};
use wire::api::{
    EndOrphanBody, ImportBody, ImportReport, OrphanDetailView, OrphanTally, OrphanView, ScanBody, ScanReport, ScanView,
    UnlistedView, WhitelistBody, WhitelistView,
};
use wire::client::encode;

/// What a recovery report goes through.
const MOST: usize = 100_000;

#[derive(Debug, clap::Subcommand)]
pub enum Orphan {
    /// List orphans, grouped by whose they are likely to be
    #[command(
        visible_alias = "ls",
        after_help = "Examples:
  repl orphans list
  repl orphans list --provider local --include-whitelisted
  repl orphans list --json"
    )]
    List {
        /// Only of this provider
        #[arg(long)]
        provider: Option<String>,
        /// Also those on the whitelist
        #[arg(long)]
        include_whitelisted: bool,
        #[command(flatten)]
        listing: Listing,
    },
    /// Everything about one, with rows that may be about it
    #[command(
        visible_alias = "show",
        after_help = "Examples:
  repl orphans inspect i-0abc123def456"
    )]
    Inspect {
        #[command(flatten)]
        of: Of,
        #[command(flatten)]
        json: Json,
    },
    /// Ask every provider now what it lists; otherwise that happens every hour
    #[command(after_help = "Examples:
  repl orphans scan
  repl orphans scan --provider local --verbose")]
    Scan {
        /// Only this provider
        #[arg(long)]
        provider: Option<String>,
        /// Show what each list was made of
        #[arg(long, short)]
        verbose: bool,
        #[command(flatten)]
        json: Json,
    },
    /// Keep one: it is no longer warned of
    #[command(after_help = "Examples:
  repl orphans whitelist i-0abc123 --reason 'Test instance for debugging'
  repl orphans whitelist i-0abc123 --reason 'Temp keep' --expires 2027-02-07")]
    Whitelist {
        #[command(flatten)]
        of: Of,
        /// Why it is kept
        #[arg(long)]
        reason: String,
        /// Warn of it again from this day on (00:00 UTC)
        #[arg(long, value_name = "YYYY-MM-DD")]
        expires: Option<String>,
        /// What else is to be known
        #[arg(long)]
        notes: Option<String>,
        #[command(flatten)]
        json: Json,
    },
    /// Warn of one again
    #[command(after_help = "Examples:
  repl orphans unwhitelist i-0abc123")]
    Unwhitelist {
        #[command(flatten)]
        of: Of,
    },
    /// Everything that is named like ours, by installation and manifest
    #[command(after_help = "Examples:
  repl orphans recovery-report
  repl orphans recovery-report --import
  repl orphans recovery-report --import --org default")]
    RecoveryReport {
        /// Track again what runs on machines that the database does not know
        #[arg(long)]
        import: bool,
        /// Takes imported runs whose own org is not here
        #[arg(long, requires = "import", value_name = "ORG")]
        org: Option<String>,
        #[command(flatten)]
        json: Json,
    },
    /// End one; asks for its id once more
    #[command(after_help = "Examples:
  repl orphans terminate i-0abc123
  echo i-0abc123 | repl orphans terminate i-0abc123")]
    Terminate {
        #[command(flatten)]
        of: Of,
        /// Also one of another installation
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        json: Json,
    },
}

#[derive(Debug, clap::Args)]
pub struct Of {
    /// The provider's id of it
    #[arg(value_name = "PROVIDER_ID")]
    id: String,
    /// Which provider, where several know the id
    #[arg(long)]
    provider: Option<String>,
}

impl Of {
    fn query(&self) -> String {
        self.provider.as_ref().map_or_else(String::new, |provider| format!("?provider={}", encode(provider)))
    }
}

pub async fn orphan(settings: &Settings, command: Orphan) -> Done {
    match command {
        Orphan::List { provider, include_whitelisted, listing } => {
            let plane = ControlPlane::reach(settings).await?;
            list(&plane, provider.as_deref(), include_whitelisted, listing).await
        }
        Orphan::Inspect { of, json } => {
            let plane = ControlPlane::reach(settings).await?;
            let found: OrphanDetailView = plane.get(&format!("/orphans/{}{}", encode(&of.id), of.query())).await?;
            if json.json { show::json(&found) } else { Ok(report::detail(&found)) }
        }
        Orphan::Scan { provider, verbose, json } => {
            let plane = ControlPlane::reach(settings).await?;
            scan(&plane, provider, verbose, json).await
        }
        Orphan::Whitelist { of, reason, expires, notes, json } => {
            let expires_at = expires.as_deref().map(|text| expiry(text, show::now_ms())).transpose()?;
            if reason.trim().is_empty() {
                return Err(Complaint::usage("--reason is empty").fix("say why it is kept: --reason 'for debugging'"));
            }
            let plane = ControlPlane::reach(settings).await?;
            let body = WhitelistBody { provider_id: of.id, provider: of.provider, reason, expires_at, notes };
            let kept: WhitelistView = plane.post("/orphans/whitelist", &body).await?;
            if json.json {
                return show::json(&kept);
            }
            let until = kept.expires_at.map_or_else(String::new, |at| format!(" until {}", show::clock(at)));
            println!("{} is kept{until}", one_line(&kept.provider_id));
            Ok(0)
        }
        Orphan::Unwhitelist { of } => {
            let plane = ControlPlane::reach(settings).await?;
            plane.delete(&format!("/orphans/whitelist/{}{}", encode(&of.id), of.query())).await?;
            println!("{} is warned of again", one_line(&of.id));
            Ok(0)
        }
        Orphan::RecoveryReport { import, org, json } => recover(settings, import, org, json).await,
        Orphan::Terminate { of, force, json } => terminate(settings, of, force, json).await,
    }
}

/// Everything that is named like ours, and the runners that wait to be tracked again. With `import` they are, and what is left is shown.
async fn recover(settings: &Settings, import: bool, org: Option<String>, json: Json) -> Done {
    let plane = ControlPlane::reach(settings).await?;
    let imported: Option<ImportReport> = match import {
        true => Some(plane.post_within("/orphans/import", &ImportBody { org }, PROVIDERS_ASKED_WITHIN).await?),
        false => None,
    };
    let scans: ScanReport =
        plane.question_within("/orphans/scan", &ScanBody::default(), PROVIDERS_ASKED_WITHIN).await?;
    let found: Vec<OrphanView> = plane.list("/orphans?include_whitelisted=true", MOST).await?;
    let runners: Vec<UnlistedView> = plane.list("/orphans/unlisted", MOST).await?;
    if json.json {
        let report = serde_json::json!({
            "scans": scans.scans, "resources": found, "runners": runners, "import": imported,
        });
        return show::json(&report);
    }
    if let Some(imported) = &imported {
        recovery::imported(imported);
    }
    recovery::report(&found, &runners);
    report::not_scanned(&scans.scans);
    if !import && runners.iter().flat_map(|runner| &runner.jobs).any(|job| job.lacks.is_none()) {
        println!("\nTo track them again: repl orphans recovery-report --import");
    }
    Ok(0)
}

async fn list(plane: &ControlPlane, provider: Option<&str>, all: bool, listing: Listing) -> Done {
    let only = provider.map_or_else(String::new, |provider| format!("&provider={}", encode(provider)));
    let path = format!("/orphans?include_whitelisted={all}{only}");
    let found: Vec<OrphanView> = plane.list(&path, listing.limit).await?;
    if listing.json {
        return show::json(&found);
    }
    let mut scans: Vec<ScanView> = plane.list("/orphans/scans", MOST).await?;
    scans.retain(|scan| provider.is_none_or(|only| only == scan.provider));
    report::list(&found);
    report::not_scanned(&scans);
    if found.len() == listing.limit {
        eprintln!("repl: there may be more: repl orphans list --limit {}", listing.limit * 10);
    }
    Ok(0)
}

async fn scan(plane: &ControlPlane, provider: Option<String>, verbose: bool, json: Json) -> Done {
    let body = ScanBody { provider: provider.clone() };
    let report: ScanReport = plane.question_within("/orphans/scan", &body, PROVIDERS_ASKED_WITHIN).await?;
    if json.json {
        return show::json(&report);
    }
    if verbose {
        report::scans(&report.scans);
    }
    let only = provider.map_or_else(String::new, |provider| format!("?provider={}", encode(&provider)));
    let found: Vec<OrphanView> = plane.list(&format!("/orphans{only}"), 100).await?;
    report::list(&found);
    report::not_scanned(&report.scans);
    Ok(if report.scans.iter().all(|scan| scan.scanned) { 0 } else { 1 })
}

/// A person types the id; nothing else stands for that.
async fn terminate(settings: &Settings, of: Of, force: bool, json: Json) -> Done {
    let plane = ControlPlane::reach(settings).await?;
    let path = format!("/orphans/{}", encode(&of.id));
    let found: OrphanDetailView = plane.get(&format!("{path}{}", of.query())).await?;
    let it = &found.orphan;
    if std::io::stdin().is_terminal() {
        eprintln!(
            "repl: {} {} ({}) will be gone for good.",
            it.resource_type,
            one_line(&it.provider_id),
            one_line(&it.name)
        );
        eprint!("repl: type its id to terminate it: ");
    }
    let mut typed = String::new();
    std::io::stdin().lock().read_line(&mut typed).map_err(|error| Complaint::usage(error.to_string()))?;
    let confirm = typed.trim_end_matches(['\r', '\n']).to_owned();
    if confirm != of.id {
        return Err(Complaint::refused("its id was not typed: nothing is terminated")
            .fix(format!("type {} when asked, or pipe it in", one_line(&of.id))));
    }
    let ending: OrphanView =
        plane.post(&format!("{path}/terminate{}", of.query()), &EndOrphanBody { confirm, force }).await?;
    if json.json {
        return show::json(&ending);
    }
    println!("{} is being terminated; `repl orphans list` no longer shows it once it is gone", one_line(&of.id));
    Ok(0)
}

/// Said before a run. It never holds one up, and what cannot be asked is not warned of.
pub async fn preflight(plane: &ControlPlane) {
    let Ok(tally) = plane.client().get::<OrphanTally>("/api/v1/orphans/tally").await else { return };
    if tally.orphans > 0 {
        let cost = show::credits(&tally.estimated_hourly_cost);
        let found = show::count(tally.orphans, "orphaned resource");
        eprintln!("repl: warning: {found} (est. {cost}/hr): see `repl orphans list`");
    }
    if !tally.not_scanned.is_empty() {
        let all = one_line(&tally.not_scanned.join(", "));
        eprintln!("repl: warning: not scanned for orphans: {all}; see `repl orphans scan`");
    }
}

/// The first moment of a day in UTC.
fn expiry(text: &str, now: i64) -> Done<i64> {
    let wrong = || {
        Complaint::usage(format!("--expires `{}` is no day", one_line(text)))
            .fix("write it as YYYY-MM-DD, e.g. 2027-02-07")
    };
    let parts: Vec<&str> = text.split('-').collect();
    let [year, month, day] = parts[..] else { return Err(wrong()) };
    if (year.len(), month.len(), day.len()) != (4, 2, 2) || !text.bytes().all(|b| b.is_ascii_digit() || b == b'-') {
        return Err(wrong());
    }
    let number = |text: &str| text.parse::<i64>().map_err(|_| wrong());
    let at = show::midnight(number(year)?, number(month)?, number(day)?).ok_or_else(wrong)?;
    if at <= now {
        return Err(Complaint::usage(format!("--expires {text} lies in the past")).fix("give a day to come, or none"));
    }
    Ok(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_expiry_is_a_day_to_come() {
        assert_eq!(expiry("2024-02-07", 0).unwrap(), 1_707_264_000_000);
        assert_eq!(expiry("2024-02-29", 0).unwrap(), 1_709_164_800_000);
        for text in ["", "tomorrow", "2024-2-7", "2023-02-29", "2024-13-01", "2024-00-10", "2024-01-00", "+024-01-01"] {
            let complaint = expiry(text, 0).unwrap_err();
            assert!(complaint.text.contains("is no day"), "{text}: {complaint}");
        }
        let past = expiry("2024-02-07", 1_707_264_000_000).unwrap_err();
        assert!(past.text.contains("lies in the past"), "{past}");
    }
}
