//! `repl status` and `repl why`: one run from its top to the last step, and the reason it is where it is.

use crate::args::Json;
use crate::complaint::Done;
use crate::control_plane::ControlPlane;
use crate::say::one_line;
use crate::settings::Settings;
use crate::show::{self, Colour, paint};
use crate::{lookup, ps, summary};
use wire::api::{AgentView, ErrorView, JobView, RunView, StepView, TaskView, Tree, Why};
use wire::model::time::show_duration;

/// Show a run: its parts, where each runs, where time and credits went
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  repl status
  repl status -v
  repl status run_9ix --json | jq .run.exit_code")]
pub struct StatusArgs {
    /// Id, beginning of an id, name, or @last
    #[arg(default_value = lookup::LAST)]
    run: String,
    /// Its agents, tasks, steps and jobs too, although there is only one of each
    #[arg(short, long)]
    verbose: bool,
    #[command(flatten)]
    json: Json,
}

/// Say why a run waits or failed, and what to do
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  repl why
  repl why train")]
pub struct WhyArgs {
    /// Id, beginning of an id, name, or @last
    #[arg(default_value = lookup::LAST)]
    run: String,
    #[command(flatten)]
    json: Json,
}

pub async fn status(settings: &Settings, args: StatusArgs) -> Done {
    let plane = ControlPlane::reach(settings).await?;
    let run = lookup::run(&plane, &args.run).await?;
    let tree: Tree = plane.get(&format!("/runs/{run}/tree")).await?;
    if args.json.json {
        return show::json(&tree);
    }
    head(&tree);
    if args.verbose || !is_plain(&tree) {
        tree.agents.iter().for_each(print_agent);
    }
    Ok(0)
}

pub async fn why(settings: &Settings, args: WhyArgs) -> Done {
    let plane = ControlPlane::reach(settings).await?;
    let run = lookup::run(&plane, &args.run).await?;
    let why: Why = plane.get(&format!("/runs/{run}/why")).await?;
    if args.json.json {
        return show::json(&why);
    }
    let state = ps::state_of(&why.status, why.phase.as_deref());
    println!("{} {state}: {}", paint(Colour::Bold, &why.run), one_line(&why.summary));
    for fact in &why.facts {
        println!("  {}", one_line(fact));
    }
    if !why.next.is_empty() {
        println!("what you can do:");
    }
    for next in &why.next {
        println!("  {}", one_line(next));
    }
    Ok(0)
}

/// One command and nothing else: all that its agent, task, step and job could tell is told of the run itself.
fn is_plain(tree: &Tree) -> bool {
    let ours = tree.agents.iter().filter(|agent| agent.kind != "system");
    ours.clone().count() <= 1 && ours.flat_map(|agent| &agent.tasks).map(|task| task.steps.len()).sum::<usize>() <= 1
}

fn head(tree: &Tree) {
    let run = &tree.run;
    let jobs = || tree.agents.iter().flat_map(|agent| &agent.jobs).filter(|job| job.attempt == run.attempt_number);
    let unenforced = jobs().find_map(|job| job.unenforced.clone());
    let cut =
        jobs().any(|job| job.log_cut).then(|| "its end is missing: the machine was lost before it arrived".to_owned());
    println!("{} {} {}", paint(Colour::Bold, &run.id), one_line(&run.name), ps::state(run));
    let ended = run.completed_at.or(run.cancelled_at);
    let machine = run.instance.as_ref().map(|instance| match run.warm {
        Some(true) => format!("{instance} (warm: it was waiting)"),
        Some(false) => format!("{instance} (started for this run)"),
        None => instance.clone(),
    });
    let held = run.hold_until.filter(|until| *until > show::now_ms());
    let kept = held.map(|until| format!(", kept {}", show::until(until))).unwrap_or_default();
    let synced = run.synced_blobs.map(|blobs| format!("{blobs} fetched by the machine"));
    let attempts = (run.attempt_number > 1).then(|| format!("{} of {}", run.attempt_number, run.max_attempts));
    show::pairs(&[
        ("command", Some(run.command.clone())),
        ("end", ended.map(|_| end(run))),
        ("error", run.last_error.as_ref().map(error)),
        ("created", Some(format!("{} ({})", show::clock(run.created_at), show::ago(run.created_at)))),
        ("time", Some(summary::times(run))),
        ("attempt", attempts),
        ("machine", machine),
        ("workdir", run.workdir.as_ref().map(|workdir| format!("{workdir}{kept}"))),
        ("limits", unenforced),
        ("blobs", synced),
        ("log", cut),
        ("credits", Some(credits(run))),
        ("late", (!run.late_evidence.is_empty()).then(|| run.late_evidence.join("; "))),
    ]);
}

/// How it ended, and what `repl run` made of it where that is not the same.
fn end(run: &RunView) -> String {
    let (verdict, code) = (summary::verdict(run), summary::exit_code(run));
    if verdict.contains("exit code") || code == 0 { verdict } else { format!("{verdict} (exit code {code})") }
}

fn credits(run: &RunView) -> String {
    let budget = run.budget.as_ref().map(|budget| format!(", budget {budget}")).unwrap_or_default();
    format!(
        "{} charged, {} reserved, {} given back{budget}",
        run.credits_charged, run.credits_reserved, run.credits_refunded
    )
}

fn print_agent(agent: &AgentView) {
    line(0, &[&agent.id, &agent.name], &agent.status, agent.started_at, agent.ended_at, agent.last_error.as_ref());
    for task in &agent.tasks {
        print_task(task);
    }
    for job in &agent.jobs {
        print_job(job);
    }
}

fn print_task(task: &TaskView) {
    line(1, &[&task.id, &task.name], &task.status, task.started_at, task.ended_at, task.last_error.as_ref());
    for step in &task.steps {
        print_step(step);
    }
}

fn print_step(step: &StepView) {
    let name = if step.uncertain { format!("{} (outcome unknown)", step.name) } else { step.name.clone() };
    line(2, &[&step.id, &name, &step.tool], &step.status, step.started_at, step.ended_at, step.last_error.as_ref());
}

fn print_job(job: &JobView) {
    let place = match (&job.instance, &job.allocation) {
        (Some(instance), Some(allocation)) => format!("on {instance} as {allocation}"),
        (Some(instance), None) => format!("on {instance}"),
        _ => "no machine yet".to_owned(),
    };
    let phase = job.phase.as_deref().filter(|phase| *phase != job.status).unwrap_or_default();
    let end = job.reason.as_deref().unwrap_or(phase);
    line(1, &[&job.id, &place, end], &job.status, job.started_at, job.ended_at, None);
    if let Some(message) = &job.message {
        println!("      {}", one_line(message));
    }
    if job.log_cut {
        println!("      the end of its log is missing");
    }
}

fn line(depth: usize, words: &[&str], status: &str, from: Option<i64>, to: Option<i64>, failed: Option<&ErrorView>) {
    let indent = "  ".repeat(depth + 1);
    let words: Vec<&str> = words.iter().copied().filter(|word| !word.is_empty()).collect();
    let took =
        from.map(|from| format!(" {}", show_duration(to.unwrap_or_else(show::now_ms) - from))).unwrap_or_default();
    println!("{indent}{} {}{}", one_line(&words.join(" ")), show::status(status), paint(Colour::Dim, &took));
    if let Some(failed) = failed {
        println!("{indent}  {}", one_line(&error(failed)));
    }
}

fn error(error: &ErrorView) -> String {
    match &error.cause {
        Some(cause) => format!("{} ({}): {cause}", error.message, error.code),
        None => format!("{} ({})", error.message, error.code),
    }
}
