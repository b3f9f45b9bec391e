//! `repl logs`: the bytes a run wrote, unchanged, each stream where it belongs.

use crate::complaint::{Complaint, DETACHED, Done};
use crate::control_plane::ControlPlane;
use crate::follow::{self, Part, Sink};
use crate::live::Live;
use crate::settings::Settings;
use crate::{lookup, quantity, show};
use wire::api::Tree;

/// Print what a run wrote
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  repl logs
  repl logs train -f --tail 20
  repl logs run_9ix --stream stderr --since 10m")]
pub struct LogsArgs {
    /// Id, beginning of an id, name, or @last
    #[arg(default_value = lookup::LAST)]
    run: String,
    /// Go on until the run ends; Ctrl-C stops watching, not the run
    #[arg(short, long)]
    follow: bool,
    /// Only the last N lines
    #[arg(long, value_name = "N", value_parser = quantity::count, allow_negative_numbers = true)]
    tail: Option<usize>,
    /// Only what was written in this time, e.g. 10m
    #[arg(long, value_name = "DURATION", value_parser = quantity::duration, allow_negative_numbers = true)]
    since: Option<i64>,
    /// Only of this agent, by id or name
    #[arg(long)]
    agent: Option<String>,
    /// Only of this job
    #[arg(long)]
    job: Option<String>,
    #[arg(long, value_parser = ["stdout", "stderr", "runner"], help = "Only this stream")]
    stream: Option<String>,
}

pub async fn logs(settings: &Settings, args: LogsArgs) -> Done {
    let plane = ControlPlane::reach(settings).await?;
    let run = lookup::run(&plane, &args.run).await?;
    let live = Live::plain();
    let mut sink = Sink::new(&live);
    sink.waits_for_output = !args.follow;
    if let Some(agent) = &args.agent {
        sink.only = Some(jobs_of(&plane, &run, agent).await?);
    }
    let part = Part {
        follow: args.follow,
        tail: args.tail.map(|lines| lines as u64),
        since_ms: args.since.map(|ms| show::now_ms() - ms),
        job: args.job,
        stream: args.stream,
    };
    let end = tokio::select! {
        end = follow::logs(&plane, &run, &part, &mut sink) => end.map_err(|complaint| match &part.job {
            Some(_) if complaint.fix.is_none() => complaint.fix(format!("see `repl status {run} -v`")),
            _ => complaint,
        })?,
        _ = tokio::signal::ctrl_c() => return Ok(DETACHED),
    };
    follow::say_if_cut(&end);
    Ok(0)
}

async fn jobs_of(plane: &ControlPlane, run: &str, agent: &str) -> Done<Vec<String>> {
    let tree: Tree = plane.get(&format!("/runs/{run}/tree")).await?;
    let found = tree.agents.iter().filter(|it| it.id == agent || it.name == agent);
    let jobs: Vec<String> = found.flat_map(|it| it.jobs.iter().map(|job| job.id.clone())).collect();
    if jobs.is_empty() {
        let known: Vec<&str> = tree.agents.iter().map(|agent| agent.name.as_str()).collect();
        return Err(Complaint::refused(format!("{run} has no agent `{agent}` with a log"))
            .fix(crate::nearest::suggestion(agent, &known)));
    }
    Ok(jobs)
}
