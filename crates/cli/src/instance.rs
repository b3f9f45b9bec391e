//! `repl instance`: the machines, what they do, and ending one by a person's word.

use crate::args::{Json, Listing};
use crate::complaint::Done;
use crate::control_plane::ControlPlane;
use crate::lookup;
use crate::say::one_line;
use crate::settings::Settings;
use crate::show::{self, Table};
use wire::api::{FeatureView, InstanceView, TerminateBody};
use wire::client::encode;

#[derive(Debug, clap::Subcommand)]
pub enum Instance {
    /// List machines
    #[command(
        alias = "list",
        after_help = "Examples:
  repl instance ls
  repl instance ls --state launch-run:"
    )]
    Ls {
        /// Terminated ones too
        #[arg(short, long)]
        all: bool,
        /// Only those whose status or workflow state begins so, e.g. ready or launch-run:; terminated ones too
        #[arg(long, value_name = "STATE")]
        state: Option<String>,
        #[command(flatten)]
        listing: Listing,
    },
    /// Show one machine
    #[command(aliases = ["describe", "inspect"], after_help = "Examples:
  repl instance show ins_4")]
    Show {
        /// Id or beginning of an id
        instance: String,
        #[command(flatten)]
        json: Json,
    },
    /// Take a machine out of the pool: its job comes to its end, then the machine is ended
    #[command(after_help = "Examples:
  repl instance drain ins_4")]
    Drain {
        /// Id or beginning of an id
        instance: String,
        #[command(flatten)]
        json: Json,
    },
    /// End a machine; one that is busy, or whose hold needs it, only with --force (folders on this computer outlive their machine)
    #[command(visible_alias = "rm", aliases = ["kill", "delete"], after_help = "Examples:
  repl instance terminate ins_4
  repl instance terminate ins_4 --force")]
    Terminate {
        /// Id or beginning of an id
        instance: String,
        /// Even though a run or a hold ends with it
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        json: Json,
    },
}

pub async fn instance(settings: &Settings, command: Instance) -> Done {
    let plane = ControlPlane::reach(settings).await?;
    match command {
        Instance::Ls { all, state, listing } => list(&plane, all, state, listing).await,
        Instance::Show { instance, json } => {
            let id = lookup::id(&plane, lookup::INSTANCE, &instance).await?;
            let view: InstanceView = plane.get(&format!("/instances/{id}")).await?;
            if json.json { show::json(&view) } else { Ok(print(&view)) }
        }
        Instance::Drain { instance, json } => {
            let id = lookup::id(&plane, lookup::INSTANCE, &instance).await?;
            let view: InstanceView = plane.post(&format!("/instances/{id}/drain"), &serde_json::json!({})).await?;
            if json.json {
                return show::json(&view);
            }
            match &view.run {
                Some(run) => println!("{} {} until {run} has ended", view.id, show::status(&view.status)),
                None => println!("{} {}", view.id, show::status(&view.status)),
            }
            Ok(0)
        }
        Instance::Terminate { instance, force, json } => {
            let id = lookup::id(&plane, lookup::INSTANCE, &instance).await?;
            let view: InstanceView =
                plane.post(&format!("/instances/{id}/terminate"), &TerminateBody { force }).await?;
            if json.json {
                return show::json(&view);
            }
            println!("{} {}", view.id, show::status(&view.status));
            Ok(0)
        }
    }
}

async fn list(plane: &ControlPlane, all: bool, state: Option<String>, listing: Listing) -> Done {
    let state = state.map_or_else(String::new, |state| format!("&state={}", encode(&state)));
    let instances: Vec<InstanceView> = plane.list(&format!("/instances?all={all}{state}"), listing.limit).await?;
    if listing.json {
        return show::json(&instances);
    }
    let mut table = Table::new(["ID", "PROVIDER", "STATUS", "STATE", "RUN", "SIZE", "AGE", "HELD", "NAME"])
        .without_if_narrow(&["NAME", "PROVIDER", "SIZE"]);
    for it in &instances {
        table.row([
            it.id.clone(),
            format!("{}/{}", it.provider, it.region),
            show::status(&it.status),
            it.workflow_state.clone(),
            show::or_dash(it.run.as_ref()),
            size(it),
            show::ago(it.created_at),
            held(it.held_until),
            it.name.clone(),
        ]);
    }
    table.print("no machines (the first run starts one)");
    Ok(0)
}

fn print(it: &InstanceView) -> u8 {
    show::pairs(&[
        ("id", Some(it.id.clone())),
        ("name", Some(it.name.clone())),
        ("provider", Some(format!("{}/{}", it.provider, it.region))),
        ("status", Some(format!("{} ({})", show::status(&it.status), it.workflow_state))),
        ("size", Some(size(it))),
        ("price", Some(format!("{} credits an hour", it.price_per_hour))),
        ("run", it.run.clone()),
        ("job", it.job.clone()),
        ("manifest", Some(it.manifest.clone())),
        ("host", it.host.clone()),
        ("handle", it.handle.clone()),
        ("runner", it.runner_version.clone()),
        ("containment", it.containment.clone()),
        ("sandbox", it.sandbox.clone()),
        ("features", features(&it.features)),
        ("desired", Some(format!("version {}, seen {}", it.desired_version, it.observed_version))),
        ("created", Some(format!("{} ({})", show::clock(it.created_at), show::ago(it.created_at)))),
        ("ready", it.ready_at.map(show::clock)),
        ("last seen", it.last_seen_at.map(show::ago)),
        ("idle since", it.idle_since.map(show::ago)),
        ("busy since", it.busy_since.map(show::ago)),
        ("cost so far", Some(format!("{} credits", it.credits_so_far))),
        ("held", it.held_until.map(show::until)),
        ("terminated", it.terminated_at.map(show::clock)),
    ]);
    0
}

/// What it was made for; the host's whole unless asked otherwise.
fn size(it: &InstanceView) -> String {
    let cpu = it.cpu_milli.map(|milli| format!("{} cpu", milli as f64 / 1000.0));
    let memory = it.memory_bytes.map(show::size);
    let parts: Vec<String> = cpu.into_iter().chain(memory).collect();
    if parts.is_empty() { "whole host".to_owned() } else { parts.join(", ") }
}

fn held(until: Option<i64>) -> String {
    show::or_dash(until.filter(|until| *until > show::now_ms()).map(show::until))
}

/// Each with its state, unless it is simply there.
fn features(all: &[FeatureView]) -> Option<String> {
    let one = |it: &FeatureView| match (it.state.as_str(), &it.error) {
        ("installed", _) => one_line(&it.name),
        (state, None) => format!("{} ({state})", one_line(&it.name)),
        (state, Some(why)) => format!("{} ({state}: {})", one_line(&it.name), one_line(why)),
    };
    (!all.is_empty()).then(|| all.iter().map(one).collect::<Vec<_>>().join(", "))
}
