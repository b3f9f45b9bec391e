//! `repl manifest`: lists manifests and the resources that each of them owns.

use crate::args::{Json, Listing};
use crate::complaint::Done;
use crate::control_plane::ControlPlane;
use crate::lookup;
use crate::settings::Settings;
use crate::show::{self, Table};
use wire::api::ManifestView;

#[derive(Debug, clap::Subcommand)]
pub enum Manifest {
    /// List manifests
    #[command(
        alias = "list",
        after_help = "Examples:
  repl manifest ls --limit 10"
    )]
    Ls(Listing),
    /// Show one manifest and what it owns
    #[command(aliases = ["describe", "inspect"], after_help = "Examples:
  repl manifest show mft_3")]
    Show {
        /// Id or beginning of an id
        manifest: String,
        #[command(flatten)]
        json: Json,
    },
}

pub async fn manifest(settings: &Settings, command: Manifest) -> Done {
    let plane = ControlPlane::reach(settings).await?;
    match command {
        Manifest::Ls(listing) => list(&plane, listing).await,
        Manifest::Show { manifest, json } => {
            let id = lookup::id(&plane, lookup::MANIFEST, &manifest).await?;
            let view: ManifestView = plane.get(&format!("/manifests/{id}")).await?;
            if json.json { show::json(&view) } else { Ok(print(&view)) }
        }
    }
}

async fn list(plane: &ControlPlane, listing: Listing) -> Done {
    let manifests: Vec<ManifestView> = plane.list("/manifests", listing.limit).await?;
    if listing.json {
        return show::json(&manifests);
    }
    let mut table = Table::new(["ID", "INTENT", "STATUS", "OUTCOME", "WORKFLOW", "AGE", "RETAINED"])
        .without_if_narrow(&["OUTCOME", "AGE"]);
    for it in &manifests {
        table.row([
            it.id.clone(),
            it.intent.clone(),
            show::status(&it.status),
            show::or_dash(it.outcome.as_ref()),
            it.workflow.clone(),
            show::ago(it.created_at),
            show::or_dash(it.retain_until.map(show::until)),
        ]);
    }
    table.print("no manifests");
    Ok(0)
}

fn print(it: &ManifestView) -> u8 {
    show::pairs(&[
        ("id", Some(it.id.clone())),
        ("intent", Some(it.intent.clone())),
        ("status", Some(show::status(&it.status))),
        ("outcome", it.outcome.clone()),
        ("workflow", Some(it.workflow.clone())),
        ("created", Some(show::clock(it.created_at))),
        ("sealed", it.sealed_at.map(show::clock)),
        ("retained", it.retain_until.filter(|_| it.deleted_at.is_none()).map(show::until)),
        ("cleaned up by", it.cleanup.clone()),
        ("deleted", it.deleted_at.map(show::clock)),
    ]);
    println!();
    let mut table = Table::new(["OWNS", "ID", "CLEAN-UP ORDER"]);
    let mut resources: Vec<_> = it.resources.iter().collect();
    resources.sort_by_key(|resource| std::cmp::Reverse(resource.priority));
    for (place, resource) in resources.iter().enumerate() {
        table.row([resource.kind.clone(), resource.id.clone(), (place + 1).to_string()]);
    }
    table.print("owns nothing");
    0
}
