//! `repl ps`: lists runs.

use crate::args::Listing;
use crate::complaint::Done;
use crate::control_plane::ControlPlane;
use crate::settings::Settings;
use crate::show::{self, Table};
use crate::summary;
use wire::api::RunView;
use wire::model::time::show_duration;

/// List open runs
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  repl ps
  repl ps -a --limit 20
  repl ps --status failed --json | jq -r '.[].id'")]
pub struct PsArgs {
    /// Ended ones too
    #[arg(short, long)]
    all: bool,
    /// Only runs in this status
    #[arg(long, value_parser = ["created", "pending", "running", "paused", "resuming", "retrying", "completed", "failed", "cancelled"])]
    status: Option<String>,
    #[command(flatten)]
    listing: Listing,
}

pub async fn ps(settings: &Settings, args: PsArgs) -> Done {
    let plane = ControlPlane::reach(settings).await?;
    let mut path = format!("/runs?all={}", args.all || args.status.is_some());
    if let Some(status) = &args.status {
        path.push_str(&format!("&status={status}"));
    }
    let runs: Vec<RunView> = plane.list(&path, args.listing.limit).await?;
    if args.listing.json {
        return show::json(&runs);
    }
    let mut table = Table::new(["ID", "NAME", "STATUS", "CREATED", "RAN", "EXIT", "CREDITS", "COMMAND"])
        .without_if_narrow(&["CREDITS", "RAN"]);
    for run in &runs {
        table.row([
            run.id.clone(),
            run.name.clone(),
            state(run),
            show::ago(run.created_at),
            show::or_dash(run.running_ms.map(show_duration)),
            if run.completed_at.or(run.cancelled_at).is_some() {
                summary::exit_code(run).to_string()
            } else {
                "-".into()
            },
            run.credits_charged.clone(),
            run.command.clone(),
        ]);
    }
    table.print(if args.all { "no runs yet: repl run -c 'echo hello'" } else { "no open runs (repl ps -a shows all)" });
    Ok(0)
}

/// The status, and the phase where it says more. A run that waits for a machine is `queued`, whatever else is true of it.
pub fn state(run: &RunView) -> String {
    state_of(&run.status, run.phase.as_deref())
}

pub fn state_of(status: &str, phase: Option<&str>) -> String {
    match (status, phase) {
        ("running", Some("queued")) => show::status("queued"),
        ("running", Some(phase)) if phase != "running" => format!("{} ({phase})", show::status(status)),
        _ => show::status(status),
    }
}

#[test]
fn what_waits_is_queued() {
    let table = [
        ("running", Some("queued"), "queued"),
        ("running", Some("provisioning"), "running (provisioning)"),
        ("running", Some("running"), "running"),
        ("paused", Some("queued"), "paused"),
        ("completed", None, "completed"),
    ];
    for (status, phase, shown) in table {
        assert_eq!(state_of(status, phase), shown);
    }
}
