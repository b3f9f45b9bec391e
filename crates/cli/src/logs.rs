//! `repl logs`: prints the output of a run unchanged, its stdout to stdout and its stderr to stderr.

use crate::complaint::{Complaint, DETACHED, Done};
use crate::control_plane::ControlPlane;
use crate::follow::{self, Part, Sink, Steps};
use crate::live::Live;
use crate::settings::Settings;
use crate::{lookup, quantity, show};
use std::collections::BTreeMap;
use wire::api::{AgentView, RunView, StepView, TaskView, Tree};

/// Agents, tasks and steps among which a name is looked for.
const LOOKED_THROUGH: usize = 20_000;
const NAMES_SHOWN: usize = 20;

/// Print what a run wrote
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  repl logs
  repl logs train -f --tail 20
  repl logs run_9ix --stream stderr --since 10m
  repl logs market --agent research --step page -f")]
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
    /// Only of this task, by id or name
    #[arg(long)]
    task: Option<String>,
    /// Only of this step, by id or name
    #[arg(long)]
    step: Option<String>,
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
    let mut step = None;
    if args.agent.is_some() || args.task.is_some() || args.step.is_some() {
        let kind = plane.get::<RunView>(&format!("/runs/{run}")).await?.kind;
        match (&args.agent, kind.as_str(), args.task.is_some() || args.step.is_some()) {
            (Some(agent), "task", false) => sink.only = Some(jobs_of(&plane, &run, agent).await?),
            _ => {
                let steps = steps(&plane, &run, &args).await?;
                step = only_one(&steps, &args, kind == "agents").await?;
                sink.steps = Some(steps).filter(|_| step.is_none());
            }
        }
    }
    let part = Part {
        follow: args.follow,
        tail: args.tail.map(|lines| lines as u64),
        since_ms: args.since.map(|ms| show::now_ms() - ms),
        job: args.job,
        step,
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

/// The ids behind the names of an agent and a task.
async fn steps<'p>(plane: &'p ControlPlane, run: &str, args: &LogsArgs) -> Done<Steps<'p>> {
    let agent = match &args.agent {
        Some(said) => {
            let agents: Vec<AgentView> = plane.list(&format!("/runs/{run}/agents"), LOOKED_THROUGH).await?;
            let known = agents.iter().map(|it| (it.id.as_str(), it.name.as_str())).collect();
            Some(chosen("agent", run, said, known)?)
        }
        None => None,
    };
    let task = match &args.task {
        Some(said) => {
            let of = agent.as_ref().map(|agent| format!("?agent={agent}")).unwrap_or_default();
            let tasks: Vec<TaskView> = plane.list(&format!("/runs/{run}/tasks{of}"), LOOKED_THROUGH).await?;
            let known = tasks.iter().map(|it| (it.id.as_str(), it.name.as_str())).collect();
            Some(chosen("task", run, said, known)?)
        }
        None => None,
    };
    Ok(Steps { plane, run: run.to_owned(), agent, task, name: args.step.clone(), known: BTreeMap::new() })
}

fn chosen(noun: &str, run: &str, said: &str, known: Vec<(&str, &str)>) -> Done<String> {
    if let Some((id, _)) = known.iter().find(|(id, _)| *id == said) {
        return Ok((*id).to_owned());
    }
    let named: Vec<&str> = known.iter().filter(|(_, name)| *name == said).map(|(id, _)| *id).collect();
    match named.as_slice() {
        [id] => Ok((*id).to_owned()),
        [] => {
            let mut names: Vec<&str> = known.iter().map(|(_, name)| *name).collect();
            names.dedup();
            names.truncate(NAMES_SHOWN);
            Err(Complaint::refused(format!("{run} has no {noun} `{said}`"))
                .fix(crate::nearest::suggestion(said, &names)))
        }
        many => Err(Complaint::refused(format!("{run} has {} {noun}s called `{said}`", many.len()))
            .fix(format!("write its id: {}", many[..many.len().min(NAMES_SHOWN)].join(", ")))),
    }
}

/// The step, if only one is meant: then its control plane picks it. While a log of agents is followed others of that name may begin.
async fn only_one(steps: &Steps<'_>, args: &LogsArgs, is_of_agents: bool) -> Done<Option<String>> {
    let filters = [("agent", &steps.agent), ("task", &steps.task)];
    let asked: Vec<String> =
        filters.iter().filter_map(|(name, id)| id.as_ref().map(|id| format!("{name}={id}"))).collect();
    let path = format!("/runs/{}/steps?{}", steps.run, asked.join("&"));
    let all: Vec<StepView> = steps.plane.list(path.trim_end_matches('?'), LOOKED_THROUGH).await?;
    if let Some(exact) = all.iter().find(|it| steps.name.as_ref() == Some(&it.id)) {
        return Ok(Some(exact.id.clone()));
    }
    let fit: Vec<&StepView> = all.iter().filter(|it| steps.fits(it)).collect();
    match fit.as_slice() {
        [one] if !args.follow || !is_of_agents => Ok(Some(one.id.clone())),
        [] if !args.follow => {
            let said = steps.name.clone().unwrap_or_default();
            let mut names: Vec<&str> = all.iter().map(|it| it.name.as_str()).collect();
            names.truncate(NAMES_SHOWN);
            let complaint = Complaint::refused(format!("{} has no such step with a log: {said}", steps.run));
            Err(complaint.fix(crate::nearest::suggestion(&said, &names)))
        }
        many if args.tail.is_some() && many.len() > 1 => {
            let complaint =
                Complaint::usage(format!("--tail: {} steps are meant, and it counts the lines of one", many.len()));
            Err(complaint.fix("name one step, with --agent and --task if several have its name"))
        }
        many if !is_of_agents => Err(Complaint::refused(format!("{} steps are meant", many.len())).fix(format!(
            "write the id of one: {}",
            many.iter().map(|it| it.id.as_str()).collect::<Vec<_>>().join(", ")
        ))),
        _ => Ok(None),
    }
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
