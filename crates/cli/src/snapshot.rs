//! `repl snapshot`: keeps the folder of a run, lists and deletes what was kept. `repl run --snapshot` starts from one.

use crate::args::{Json, Listing};
use crate::complaint::Done;
use crate::control_plane::ControlPlane;
use crate::lookup;
use crate::settings::Settings;
use crate::show::{self, Table};
use wire::api::SnapshotView;

#[derive(Debug, clap::Subcommand)]
pub enum Snapshot {
    /// List snapshots
    #[command(
        alias = "list",
        after_help = "Examples:
  repl snapshot ls
  repl snapshot ls --json | jq -r '.[].id'"
    )]
    Ls(Listing),
    /// Show one snapshot
    #[command(aliases = ["describe", "inspect"], after_help = "Examples:
  repl snapshot show snp_7")]
    Show {
        /// Id, or beginning of an id
        snapshot: String,
        #[command(flatten)]
        json: Json,
    },
    /// Keep the folder of a run that works or is held, as it is now
    #[command(after_help = "Examples:
  repl snapshot create @last
  repl snapshot create train --json | jq -r .id")]
    Create {
        /// The run whose folder it is, or the id of its allocation
        #[arg(value_name = "RUN")]
        allocation: String,
        #[command(flatten)]
        json: Json,
    },
    /// Delete a snapshot; runs that have started from it keep their files
    #[command(
        visible_alias = "rm",
        alias = "remove",
        after_help = "Examples:
  repl snapshot delete snp_7"
    )]
    Delete {
        /// Id, or beginning of an id
        snapshot: String,
    },
}

pub async fn snapshot(settings: &Settings, command: Snapshot) -> Done {
    let plane = ControlPlane::reach(settings).await?;
    match command {
        Snapshot::Ls(listing) => list(&plane, listing).await,
        Snapshot::Show { snapshot, json } => {
            let id = lookup::id(&plane, lookup::SNAPSHOT, &snapshot).await?;
            let view: SnapshotView = plane.get(&format!("/snapshots/{id}")).await?;
            if json.json { show::json(&view) } else { Ok(print(&view)) }
        }
        Snapshot::Create { allocation, json } => {
            let id = lookup::allocation(&plane, &allocation).await?;
            let path = format!("/allocations/{id}/snapshot");
            let view: SnapshotView = plane.post(&path, &serde_json::json!({})).await?;
            if json.json { show::json(&view) } else { Ok(print(&view)) }
        }
        Snapshot::Delete { snapshot } => {
            let id = lookup::id(&plane, lookup::SNAPSHOT, &snapshot).await?;
            plane.delete(&format!("/snapshots/{id}")).await?;
            eprintln!("repl: {id} is deleted");
            Ok(0)
        }
    }
}

async fn list(plane: &ControlPlane, listing: Listing) -> Done {
    let snapshots: Vec<SnapshotView> = plane.list("/snapshots", listing.limit).await?;
    if listing.json {
        return show::json(&snapshots);
    }
    let mut table = Table::new(["ID", "STATUS", "RUN", "FILES", "SIZE", "AGE"]).without_if_narrow(&["FILES", "AGE"]);
    for it in &snapshots {
        table.row([
            it.id.clone(),
            show::status(&it.status),
            show::or_dash(it.run.as_ref()),
            show::or_dash(it.files),
            show::or_dash(it.bytes.map(show::size)),
            show::ago(it.created_at),
        ]);
    }
    table.print("no snapshots");
    Ok(0)
}

fn print(it: &SnapshotView) -> u8 {
    show::pairs(&[
        ("id", Some(it.id.clone())),
        ("status", Some(show::status(&it.status))),
        ("why", it.error.clone()),
        ("run", it.run.clone()),
        ("allocation", Some(it.allocation.clone())),
        ("files", it.files.map(|files| format!("{files} ({})", show::size(it.bytes.unwrap_or(0))))),
        ("workflow", Some(it.workflow.clone())),
        ("created", Some(show::clock(it.created_at))),
        ("ready", it.ready_at.map(show::clock)),
        ("deleted", it.deleted_at.map(show::clock)),
    ]);
    0
}
