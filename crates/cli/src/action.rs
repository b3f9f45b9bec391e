//! What one can do to a run: cancel, pause, resume, start, retry, delete. Asking for what has happened already is fine.

use crate::args::Json;
use crate::complaint::Done;
use crate::control_plane::ControlPlane;
use crate::settings::Settings;
use crate::{lookup, ps, show};
use wire::api::{ActionBody, RunView};

/// A run, and how to show it afterwards.
#[derive(Debug, clap::Args)]
pub struct Target {
    /// Ids, beginnings of ids, names, or @last
    #[arg(required = true, value_name = "RUN")]
    runs: Vec<String>,
    #[command(flatten)]
    json: Json,
}

/// End a run: asked to stop first, killed when its stop duration has passed
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  repl cancel @last
  repl cancel run_9ix --abort")]
pub struct CancelArgs {
    #[command(flatten)]
    target: Target,
    /// Kill it at once
    #[arg(long)]
    abort: bool,
}

/// End a run at once, without asking it first: the same as `cancel --abort`
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  repl kill @last
  repl kill train other")]
pub struct KillArgs {
    #[command(flatten)]
    target: Target,
}

/// Freeze a run where it is: its machine stays, its time stands still
#[derive(Debug, clap::Args)]
#[command(after_help = "A paused run keeps its machine, which is charged for; after 7 days it is cancelled.

Examples:
  repl pause @last
  repl resume @last")]
pub struct PauseArgs {
    #[command(flatten)]
    target: Target,
}

/// Let a paused run go on where it was
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  repl resume @last && repl attach @last")]
pub struct ResumeArgs {
    #[command(flatten)]
    target: Target,
}

/// Start a run that was only created
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  repl start run_9ix")]
pub struct StartArgs {
    #[command(flatten)]
    target: Target,
}

/// Try a failed run again
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  repl retry @last && repl attach @last")]
pub struct RetryArgs {
    #[command(flatten)]
    target: Target,
    /// Say that the old machine is surely gone, where nobody can know
    #[arg(long)]
    force: bool,
}

/// Hide a run that has ended; its place in the ledger stays
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  repl delete run_9ix")]
pub struct DeleteArgs {
    /// Ids, beginnings of ids, names, or @last
    #[arg(required = true, value_name = "RUN")]
    runs: Vec<String>,
}

pub async fn cancel(settings: &Settings, args: CancelArgs) -> Done {
    act(settings, args.target, "cancel", ActionBody { abort: args.abort, ..ActionBody::default() }).await
}
pub async fn kill(settings: &Settings, args: KillArgs) -> Done {
    act(settings, args.target, "cancel", ActionBody { abort: true, ..ActionBody::default() }).await
}
pub async fn start(settings: &Settings, args: StartArgs) -> Done {
    act(settings, args.target, "start", ActionBody::default()).await
}
pub async fn pause(settings: &Settings, args: PauseArgs) -> Done {
    act(settings, args.target, "pause", ActionBody::default()).await
}
pub async fn resume(settings: &Settings, args: ResumeArgs) -> Done {
    act(settings, args.target, "resume", ActionBody::default()).await
}
pub async fn retry(settings: &Settings, args: RetryArgs) -> Done {
    act(settings, args.target, "retry", ActionBody { force: args.force, ..ActionBody::default() }).await
}

pub async fn delete(settings: &Settings, args: DeleteArgs) -> Done {
    let plane = ControlPlane::reach(settings).await?;
    for said in &args.runs {
        let run = lookup::run(&plane, said).await?;
        plane.delete(&format!("/runs/{run}")).await?;
        eprintln!("repl: deleted {run}");
    }
    Ok(0)
}

async fn act(settings: &Settings, target: Target, verb: &str, body: ActionBody) -> Done {
    let plane = ControlPlane::reach(settings).await?;
    let mut views = Vec::new();
    for said in &target.runs {
        let run = lookup::run(&plane, said).await?;
        let view: RunView = plane.post(&format!("/runs/{run}/{verb}"), &body).await?;
        if !target.json.json {
            println!("{} {} {}", view.id, crate::say::one_line(&view.name), ps::state(&view));
        }
        views.push(view);
    }
    match (target.json.json, views.as_slice()) {
        (false, _) => Ok(0),
        (true, [one]) => show::json(one),
        (true, many) => show::json(many),
    }
}
