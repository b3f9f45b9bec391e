//! The report of orphans as people read it: a section for each likely owner, the unreadable last. What was not listed is said, too.

use crate::say::one_line;
use crate::show::{self, Table};
use wire::api::{OrphanDetailView, OrphanView, ScanView};
use wire::model::time::show_duration;

const SECTIONS: &[(&str, &str)] = &[
    ("current_session", "CURRENT SESSION (WARNING)"),
    ("other_sessions", "OTHER SESSIONS (INFO)"),
    ("tailscale", "TAILSCALE"),
    ("other_installations", "OTHER INSTALLATIONS (INFO)"),
    ("unknown", "UNKNOWN (CAUTION)"),
];

pub fn list(found: &[OrphanView]) {
    print!("{}", text(found));
}

fn text(found: &[OrphanView]) -> String {
    let mut text = format!("Orphaned Resources ({} found)\n", found.len());
    for (section, title) in SECTIONS {
        let of: Vec<&OrphanView> = found.iter().filter(|it| it.section == *section).collect();
        if !of.is_empty() {
            text.push_str(&format!("\n{title}:\n"));
            of.iter().for_each(|it| text.push_str(&entry(it)));
        }
    }
    text
}

pub fn entry(it: &OrphanView) -> String {
    let (head, mut facts) = match &it.tailscale {
        Some(machine) => {
            let ip = machine.tailscale_ip.as_deref().map_or_else(|| "-".to_owned(), one_line);
            let seen = machine.last_seen.map_or_else(|| "-".to_owned(), show::ago);
            let id = format!("Id: {}", one_line(&it.provider_id));
            (one_line(&it.name), vec![format!("IP: {ip}"), format!("Last Seen: {seen}"), id])
        }
        None => {
            let head = format!("{}  {}", one_line(&it.provider_id), one_line(&it.name));
            let facts = vec![
                format!("Age: {}", age(it.age_ms)),
                format!("Est. Cost: {}", cost(it)),
                format!("Type: {}", one_line(&it.resource_type)),
            ];
            (head, facts)
        }
    };
    if it.young {
        facts.push("Young: its row may still be written".to_owned());
    }
    if let Some(kept) = &it.whitelisted {
        facts.push(format!("Kept: {}", one_line(&kept.reason)));
    }
    match (&it.ending_error, it.ending_at) {
        (Some(why), Some(_)) => facts.push(format!("Ending, asked again: {}", one_line(why))),
        (Some(why), None) => {
            let id = one_line(&it.provider_id);
            facts.push(format!("Not ended: {} (ask again: repl orphans terminate {id})", one_line(why)));
        }
        (None, Some(_)) => facts.push("Ending".to_owned()),
        (None, None) => {}
    }
    let mark = if it.tailscale.is_some() { "[ts]".to_owned() } else { format!("[{}]", one_line(&it.provider)) };
    format!("  {mark} {head}\n{:indent$}{}\n", "", facts.join(" | "), indent = mark.chars().count() + 3)
}

fn age(ms: Option<i64>) -> String {
    ms.map_or_else(|| "unknown".to_owned(), |ms| show_duration(ms / 1000 * 1000))
}

fn cost(it: &OrphanView) -> String {
    it.estimated_hourly_cost.as_ref().map_or_else(|| "unknown".to_owned(), |cost| format!("{}/hr", show::credits(cost)))
}

/// Nothing is said to be absent where a provider could not be listed.
pub fn not_scanned(scans: &[ScanView]) {
    let unknown: Vec<&ScanView> = scans.iter().filter(|scan| !scan.scanned).collect();
    if unknown.is_empty() {
        return;
    }
    println!("\nNOT SCANNED:");
    for scan in unknown {
        let why = scan.error.as_deref().map_or_else(|| "not yet: repl orphans scan".to_owned(), one_line);
        let before = scan.complete_at.map_or_else(String::new, |at| format!(" (last listed {})", show::ago(at)));
        println!("  {}/{}: {why}{before}", one_line(&scan.provider), one_line(&scan.region));
    }
}

pub fn scans(scans: &[ScanView]) {
    let mut table =
        Table::new(["PROVIDER", "PAGES", "LISTED", "TRACKED", "ADOPTED", "YOUNG", "ORPHANS", "OTHERS", "SCANNED"]);
    for it in scans {
        table.row([
            format!("{}/{}", one_line(&it.provider), one_line(&it.region)),
            it.pages.to_string(),
            it.listed.to_string(),
            it.tracked.to_string(),
            it.adopted.to_string(),
            it.young.to_string(),
            it.orphans.to_string(),
            it.foreign.to_string(),
            if it.scanned { "yes".to_owned() } else { "no".to_owned() },
        ]);
    }
    table.print("no provider is set up");
    println!();
}

pub fn detail(found: &OrphanDetailView) -> u8 {
    let it = &found.orphan;
    let line = |text: &Option<String>| text.as_deref().map(one_line);
    show::pairs(&[
        ("provider", Some(one_line(&it.provider))),
        ("provider id", Some(one_line(&it.provider_id))),
        ("type", Some(one_line(&it.resource_type))),
        ("name", Some(one_line(&it.name))),
        ("section", Some(format!("{} ({})", it.section, it.severity))),
        ("status", Some(one_line(&it.status))),
        ("instance type", line(&it.instance_type)),
        ("region", Some(one_line(&it.region))),
        ("created", it.created_at.map(|at| format!("{} ({})", show::clock(at), show::ago(at)))),
        ("young", it.young.then(|| "its row may still be written".to_owned())),
        ("cost", Some(cost(it))),
        ("ip", line(&it.ip)),
        ("last seen", it.last_seen.map(show::ago)),
        ("control id", it.inferred_info.as_ref().map(|name| name.control_id.clone())),
        ("manifest", it.inferred_info.as_ref().map(|name| name.manifest_slug.clone().unwrap_or("none".into()))),
        ("instance", it.inferred_info.as_ref().map(|name| name.instance_slug.clone())),
        ("first seen", Some(show::ago(it.first_seen_at))),
        (
            "kept",
            it.whitelisted.as_ref().map(|kept| {
                let until = kept.expires_at.map_or_else(String::new, |at| format!(", until {}", show::clock(at)));
                format!("{} (by {}{until})", one_line(&kept.reason), one_line(&kept.acknowledged_by))
            }),
        ),
        ("notes", it.whitelisted.as_ref().and_then(|kept| kept.notes.as_deref().map(one_line))),
        ("ending", it.ending_at.map(show::ago)),
        ("not ended", line(&it.ending_error)),
    ]);
    println!("\nPossible matches:{}", if found.matches.is_empty() { " none" } else { "" });
    for row in &found.matches {
        println!("  {:>3}%  {}  {}  {}", row.confidence, row.instance, row.status, one_line(&row.name));
    }
    0
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use wire::api::{InferredView, TailscaleView};

    pub fn view(section: &str, id: &str, name: &str, age_ms: i64, cost: &str) -> OrphanView {
        OrphanView {
            provider: "aws".into(),
            provider_id: id.into(),
            resource_type: "instance".into(),
            name: name.into(),
            section: section.into(),
            severity: "INFO".into(),
            inferred_info: None::<InferredView>,
            created_at: None,
            age_ms: Some(age_ms),
            likely_current_session: false,
            young: false,
            estimated_hourly_cost: Some(cost.into()),
            estimated_hourly_cost_micro: None,
            status: "running".into(),
            instance_type: None,
            region: "here".into(),
            ip: None,
            last_seen: None,
            first_seen_at: 0,
            seen_at: 0,
            whitelisted: None,
            ending_at: None,
            ending_error: None,
            tailscale: None,
        }
    }

    #[test]
    fn the_report_is_as_it_is_documented() {
        let three_hours_ago = show::now_ms() - 3 * 3_600_000;
        let machine = TailscaleView {
            machine_id: "m1".into(),
            machine_name: "repl-v2a1b2c3-5p6q".into(),
            tailscale_ip: Some("100.64.0.15".into()),
            instance_id_slug: Some("5p6q".into()),
            last_seen: Some(three_hours_ago),
            age_ms: None,
        };
        let found = [
            view("unknown", "i-2", "repl-old\u{1b}[2J", 1000, "0"),
            OrphanView { tailscale: Some(machine), ..view("tailscale", "m1", "repl-v2a1b2c3-5p6q", 0, "0") },
            view("current_session", "i-0abc123def456", "repl-v2a1b2c3-9ix-1h2i", 900_000, "1.23"),
            view("other_sessions", "i-0xyz789abc012", "repl-v2a1b2c3-none-2j3k", 187_200_000, "0.45"),
        ];
        let text = text(&found);
        let expected = "Orphaned Resources (4 found)

CURRENT SESSION (WARNING):
  [aws] i-0abc123def456  repl-v2a1b2c3-9ix-1h2i
        Age: 15m | Est. Cost: 1.23 credits/hr | Type: instance

OTHER SESSIONS (INFO):
  [aws] i-0xyz789abc012  repl-v2a1b2c3-none-2j3k
        Age: 2d 4h | Est. Cost: 0.45 credits/hr | Type: instance

TAILSCALE:
  [ts] repl-v2a1b2c3-5p6q
       IP: 100.64.0.15 | Last Seen: 3h ago | Id: m1

UNKNOWN (CAUTION):
";
        assert!(text.starts_with(expected), "{text}");
        assert!(!text.contains('\u{1b}'), "a provider's text draws nothing: {text:?}");
    }
}
