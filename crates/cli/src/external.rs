//! `repl finish`: ends a run of `type: external`, whose end no runner can report.

use crate::args::Json;
use crate::complaint::{Complaint, Done};
use crate::control_plane::ControlPlane;
use crate::say::one_line;
use crate::settings::Settings;
use crate::{lookup, ps, show};
use wire::api::{FinishBody, RunView};

/// End a run whose program is elsewhere
#[derive(Debug, clap::Args)]
#[command(after_help = "Steps that are under way end with it.

Examples:
  repl finish import
  repl finish import --output '{\"rows\": 17}'
  repl finish import --failed 'the source is gone'")]
pub struct FinishArgs {
    /// The run's id, a beginning of it, its name, or @last
    #[arg(value_name = "RUN")]
    run: String,
    /// What it answers, as JSON
    #[arg(long, value_name = "JSON", conflicts_with = "failed")]
    output: Option<String>,
    /// It has failed, and why
    #[arg(long, value_name = "WHY")]
    failed: Option<String>,
    #[command(flatten)]
    json: Json,
}

pub async fn finish(settings: &Settings, args: FinishArgs) -> Done {
    let output = args.output.as_deref().map(serde_json::from_str).transpose();
    let output = output.map_err(|error| {
        Complaint::usage(format!("--output is not JSON: {error}"))
            .fix("text needs quotes of its own: --output '\"done\"'")
    })?;
    let plane = ControlPlane::reach(settings).await?;
    let run = lookup::run(&plane, &args.run).await?;
    let body = FinishBody { output, error: args.failed };
    let view: RunView = plane.post(&format!("/runs/{run}/finish"), &body).await?;
    if args.json.json {
        return show::json(&view);
    }
    println!("{} {} {}", view.id, one_line(&view.name), ps::state(&view));
    Ok(0)
}
