//! `repl status` and `repl why`: one run from its top to the last step, and the reason it is where it is.

use crate::args::Json;
use crate::complaint::{DETACHED, Done};
use crate::control_plane::ControlPlane;
use crate::say::{self, one_line};
use crate::settings::Settings;
use crate::show::{self, Colour, paint};
use crate::{cost, lookup, ps, summary, tree};
use serde::Serialize;
use std::time::Duration;
use wire::api::{AgentView, AttemptView, ErrorView, JobView, RunView, StepView, TaskView, Tree, Why};
use wire::model::time::show_duration;

/// A policy allows 100 of them; jobs may be submitted several times in each.
const MOST_ATTEMPTS: usize = 1_000;
const MOST_JOBS: usize = 10_000;
/// How often a watched tree is asked for.
const WATCHED_EVERY: Duration = Duration::from_secs(1);

/// Show a run: its parts, where each runs, where time and credits went
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  repl status
  repl status -v
  repl status market -w
  repl status market --cost
  repl status run_9ix --json | jq .run.exit_code")]
pub struct StatusArgs {
    /// Id, beginning of an id, name, or @last
    #[arg(default_value = lookup::LAST)]
    run: String,
    /// Its earlier attempts, and its agents, tasks, steps and jobs although there is only one of each
    #[arg(short, long)]
    verbose: bool,
    /// Show it again whenever something changes, until it ends; with --json one document per line
    #[arg(short, long)]
    watch: bool,
    /// What it has used: tokens, turns, machine time and credits by agent, model and step
    #[arg(long, conflicts_with_all = ["watch", "verbose"])]
    cost: bool,
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
    if args.cost {
        return cost::status(&plane, &run, args.json.json).await;
    }
    if args.watch {
        return tokio::select! {
            done = watch(&plane, &run, &args) => done,
            _ = tokio::signal::ctrl_c() => Ok(DETACHED),
        };
    }
    let tree: Tree = plane.get(&format!("/runs/{run}/tree")).await?;
    if args.json.json {
        let attempts = attempts(&plane, &run).await?;
        return show::json(&WithAttempts { tree: &tree, attempts: &attempts });
    }
    head(&tree, args.verbose);
    if args.verbose && tree.run.attempt_number > 1 {
        attempts(&plane, &run).await?.iter().for_each(|it| print_attempt(it, tree.run.max_attempts));
    }
    if tree.run.kind == "agents" {
        tree::lines(&tree, tree::MOST_LINES, show::now_ms()).iter().for_each(|line| println!("{line}"));
    } else if args.verbose || !is_plain(&tree) {
        tree.agents.iter().for_each(print_agent);
    }
    Ok(0)
}

/// Draws the tree in place on a terminal; elsewhere prints it again whenever a state has changed.
async fn watch(plane: &ControlPlane, run: &str, args: &StatusArgs) -> Done {
    let screen = show::rows();
    let (mut shown, mut before) = (0, String::new());
    loop {
        let tree: Tree = plane.get(&format!("/runs/{run}/tree")).await?;
        let ended = tree.run.completed_at.or(tree.run.cancelled_at);
        let now = ended.unwrap_or_else(show::now_ms);
        let changed = std::mem::replace(&mut before, states(&tree)) != before;
        if args.json.json {
            if changed {
                show::json_line(&tree)?;
            }
        } else if let Some(rows) = screen {
            shown = say::redraw(&picture(&tree, rows.saturating_sub(1), now), shown);
        } else if changed {
            picture(&tree, tree::MOST_LINES, now).iter().for_each(|line| println!("{line}"));
            println!();
        }
        if ["completed", "failed", "cancelled"].contains(&tree.run.status.as_str()) {
            return Ok(0);
        }
        tokio::time::sleep(WATCHED_EVERY).await;
    }
}

/// The run in one line, and its tree below.
fn picture(tree: &Tree, rows: usize, now: i64) -> Vec<String> {
    let run = &tree.run;
    let outcome = run.outcome.as_ref().map(|outcome| format!(", {outcome}")).unwrap_or_default();
    let took = run.started_at.map(|from| format!(" · {}", show_duration((now - from).max(0)))).unwrap_or_default();
    let cost = format!(" · {}", show::credits(&run.credits_charged));
    let top =
        format!("{} {} {}{outcome}{took}{cost}", paint(Colour::Bold, &run.id), one_line(&run.name), ps::state(run));
    let below = tree::lines(tree, rows.saturating_sub(1).max(1), now);
    let width = show::columns().unwrap_or(usize::MAX);
    std::iter::once(top).chain(below).map(|line| say::cut(&line, width)).collect()
}

/// All that is worth another picture, without times, which change by themselves.
fn states(tree: &Tree) -> String {
    let mut said = format!("{} {:?} {:?}", tree.run.status, tree.run.phase, tree.run.outcome);
    for agent in &tree.agents {
        said.push_str(&format!("\n{} {} {:?} {}", agent.id, agent.status, agent.task_counts, agent.tries));
        for task in &agent.tasks {
            said.push_str(&format!("\n{} {} {:?} {}", task.id, task.status, task.step_counts, task.tries));
            let steps = task.steps.iter();
            steps.for_each(|it| said.push_str(&format!("\n{} {} {:?} {}", it.id, it.status, it.waits, it.tries)));
        }
    }
    said
}

pub async fn why(settings: &Settings, args: WhyArgs) -> Done {
    let plane = ControlPlane::reach(settings).await?;
    let run = lookup::run(&plane, &args.run).await?;
    let why: Why = plane.get(&format!("/runs/{run}/why")).await?;
    if args.json.json {
        return show::json(&why);
    }
    let state = ps::state_of(&why.status, why.phase.as_deref());
    // `cancelled: it was cancelled` would say it twice.
    let restated = [format!("it {}", why.status), format!("it was {}", why.status)].contains(&why.summary);
    let because = if restated { String::new() } else { format!(": {}", one_line(&why.summary)) };
    let summary = format!("{} {state}{because}", paint(Colour::Bold, &why.run));
    println!("{}", show::wrapped(&summary, 0, 2));
    for fact in &why.facts {
        println!("  {}", show::wrapped(&one_line(fact), 2, 4));
    }
    if !why.next.is_empty() {
        println!("what you can do:");
    }
    for next in &why.next {
        println!("  {}", show::wrapped(&one_line(next), 2, 4));
    }
    Ok(0)
}

/// What `--json` shows: the tree is that of the last attempt.
#[derive(Serialize)]
struct WithAttempts<'a> {
    #[serde(flatten)]
    tree: &'a Tree,
    attempts: &'a [Attempt],
}

/// One attempt, and how its last job ended.
#[derive(Serialize)]
struct Attempt {
    #[serde(flatten)]
    view: AttemptView,
    job: Option<String>,
    instance: Option<String>,
    exit_code: Option<i32>,
    signal: Option<i32>,
    reason: Option<String>,
    message: Option<String>,
    running_ms: Option<i64>,
}

/// All attempts, the first first.
async fn attempts(plane: &ControlPlane, run: &str) -> Done<Vec<Attempt>> {
    let mut views: Vec<AttemptView> = plane.list(&format!("/runs/{run}/attempts"), MOST_ATTEMPTS).await?;
    let jobs: Vec<JobView> = plane.list(&format!("/runs/{run}/jobs"), MOST_JOBS).await?;
    views.sort_by_key(|view| view.number);
    Ok(views.into_iter().map(|view| attempt(view, &jobs)).collect())
}

fn attempt(view: AttemptView, jobs: &[JobView]) -> Attempt {
    let last = jobs.iter().filter(|job| job.attempt == view.number).max_by_key(|job| job.submission);
    Attempt {
        job: last.map(|job| job.id.clone()),
        instance: last.and_then(|job| job.instance.clone()),
        exit_code: last.and_then(|job| job.exit_code),
        signal: last.and_then(|job| job.signal),
        reason: last.and_then(|job| job.reason.clone()),
        message: last.and_then(|job| job.message.clone()),
        running_ms: last.and_then(|job| Some(job.ended_at? - job.started_at?)),
        view,
    }
}

fn print_attempt(it: &Attempt, of: i64) {
    let line = format!("attempt {} of {of} {}", it.view.number, show::status(&it.view.status));
    println!("  {}", show::wrapped(&format!("{line}{}", one_line(&attempt_end(it))), 2, 6));
}

/// How an attempt ended and what it took, after its status.
fn attempt_end(it: &Attempt) -> String {
    let because = match (it.signal, it.exit_code, &it.message, &it.reason) {
        (Some(signal), ..) => Some(format!("killed by {}", summary::signal_name(signal))),
        (None, Some(code), ..) => Some(format!("exit code {code}")),
        (None, None, Some(message), _) => Some(message.clone()),
        (None, None, None, reason) => reason.clone(),
    };
    // The runner's own words, where the code does not say it all.
    let more = it.message.clone().filter(|message| because.as_ref() != Some(message));
    let mut facts: Vec<String> = because.into_iter().chain(more).collect();
    facts.extend(it.running_ms.map(show_duration));
    facts.extend(it.job.as_ref().map(|job| match &it.instance {
        Some(instance) => format!("{job} on {instance}"),
        None => job.clone(),
    }));
    facts.push(show::credits(&it.view.credits_charged));
    format!(": {}", facts.join(", "))
}

/// One command and nothing else: all that its agent, task, step and job could tell is told of the run itself.
fn is_plain(tree: &Tree) -> bool {
    let ours = tree.agents.iter().filter(|agent| agent.kind != "system");
    ours.clone().count() <= 1 && ours.flat_map(|agent| &agent.tasks).map(|task| task.steps.len()).sum::<usize>() <= 1
}

fn head(tree: &Tree, verbose: bool) {
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
    let kept = held.map(|until| format!(", kept {}: repl allocation show {}", show::until(until), run.id));
    let kept = kept.unwrap_or_default();
    let synced = run.synced_blobs.filter(|blobs| *blobs > 0).map(|blobs| format!("{blobs} fetched by the machine"));
    let earlier = if verbose { "" } else { " (the earlier ones: -v)" };
    let attempts = (run.attempt_number > 1).then(|| format!("{} of {}{earlier}", run.attempt_number, run.max_attempts));
    let end = ended.map(|_| end(run));
    // What the end has said already is not said again.
    let said = |error: &ErrorView| match end.as_ref().is_some_and(|end| end.contains(&error.message)) {
        true => error.code.clone(),
        false => self::error(error),
    };
    let ticket = run.escalation_ticket_id.as_ref().map(|ticket| format!("{ticket}: repl escalation show {ticket}"));
    let plan = (run.plan_version > 1).then(|| format!("version {}", run.plan_version));
    show::pairs(&[
        ("command", (!run.command.is_empty()).then(|| run.command.clone())),
        ("goal", run.task.clone()),
        ("outcome", run.outcome.clone().filter(|_| run.kind == "agents")),
        ("ticket", ticket),
        ("plan", plan),
        ("end", end.clone()),
        ("error", run.last_error.as_ref().map(said)),
        (
            "result",
            run.cached_from
                .as_ref()
                .and_then(|from| Some(format!("{} (exec {})", summary::origin(run)?, &from.exec[..12]))),
        ),
        ("follows", run.follows.as_ref().map(|by| format!("{by}, which executes the same command: repl status {by}"))),
        ("created", Some(format!("{} ({})", show::clock(run.created_at), show::ago(run.created_at)))),
        ("time", Some(time(run)).filter(|_| run.cached_from.is_none() && run.follows.is_none())),
        ("attempt", attempts),
        ("machine", machine),
        ("workdir", run.workdir.as_ref().map(|workdir| format!("{workdir}{kept}"))),
        ("limits", unenforced),
        ("files", synced),
        ("log", cut),
        ("credits", Some(credits(run))),
        ("late", (!run.late_evidence.is_empty()).then(|| run.late_evidence.join("; "))),
    ]);
}

/// Where its time went.
fn time(run: &RunView) -> String {
    if run.kind == "agents" { span(run) } else { summary::times(run) }
}

/// How it ended, and what `repl run` made of it where that is not the same.
fn end(run: &RunView) -> String {
    let (verdict, code) = (summary::verdict(run), summary::exit_code(run));
    if verdict.contains("exit code") || code == 0 { verdict } else { format!("{verdict} (exit code {code})") }
}

/// From its start to its end: the agents of a run have times of their own.
fn span(run: &RunView) -> String {
    let end = run.completed_at.or(run.cancelled_at).unwrap_or_else(show::now_ms);
    run.started_at.map_or_else(|| "never started".to_owned(), |from| show_duration((end - from).max(0)))
}

fn credits(run: &RunView) -> String {
    let budget = run.budget.as_ref().map(|budget| format!(", budget {budget}")).unwrap_or_default();
    format!(
        "{} charged, {} reserved, {} given back{budget}",
        run.credits_charged, run.credits_reserved, run.credits_refunded
    )
}

fn print_agent(agent: &AgentView) {
    // An error goes up from the step that has it; where it began is where it is told.
    let below = agent.tasks.iter().any(|task| is_same(&agent.last_error, &task.last_error));
    let error = agent.last_error.as_ref().filter(|_| !below);
    line(0, &[&agent.id, &agent.name], &agent.status, agent.started_at, agent.ended_at, error);
    for task in &agent.tasks {
        print_task(task);
    }
    for job in &agent.jobs {
        let told = job.message.as_ref().is_some_and(|message| {
            agent
                .last_error
                .as_ref()
                .is_some_and(|error| error.message == *message || error.cause.as_ref() == Some(message))
        });
        print_job(job, told);
    }
}

fn is_same(one: &Option<ErrorView>, other: &Option<ErrorView>) -> bool {
    one.as_ref().zip(other.as_ref()).is_some_and(|(one, other)| one.code == other.code && one.message == other.message)
}

fn print_task(task: &TaskView) {
    let below = task.steps.iter().any(|step| is_same(&task.last_error, &step.last_error));
    let error = task.last_error.as_ref().filter(|_| !below);
    line(1, &[&task.id, &task.name], &task.status, task.started_at, task.ended_at, error);
    for step in &task.steps {
        print_step(step);
    }
}

fn print_step(step: &StepView) {
    let name = if step.uncertain { format!("{} (outcome unknown)", step.name) } else { step.name.clone() };
    line(2, &[&step.id, &name, &step.tool], &step.status, step.started_at, step.ended_at, step.last_error.as_ref());
}

/// `told`: its message is the error that was shown above.
fn print_job(job: &JobView, told: bool) {
    let place = match (&job.instance, &job.allocation) {
        (Some(instance), Some(allocation)) => format!("on {instance} as {allocation}"),
        (Some(instance), None) => format!("on {instance}"),
        _ => "no machine yet".to_owned(),
    };
    let phase = job.phase.as_deref().filter(|phase| *phase != job.status).unwrap_or_default();
    let end = job.reason.as_deref().unwrap_or(phase);
    line(1, &[&job.id, &place, end], &job.status, job.started_at, job.ended_at, None);
    if let Some(message) = job.message.as_ref().filter(|_| !told) {
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
    let text = format!("{} {}{}", one_line(&words.join(" ")), show::status(status), paint(Colour::Dim, &took));
    println!("{indent}{}", show::wrapped(&text, indent.len(), indent.len() + 4));
    if let Some(failed) = failed {
        println!("{indent}  {}", show::wrapped(&one_line(&error(failed)), indent.len() + 2, indent.len() + 4));
    }
}

fn error(error: &ErrorView) -> String {
    match error.cause.as_ref().filter(|cause| **cause != error.message) {
        Some(cause) => format!("{} ({}): {cause}", error.message, error.code),
        None => format!("{} ({})", error.message, error.code),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn job(attempt: i64, submission: i64, code: Option<i32>, message: Option<&str>) -> JobView {
        serde_json::from_value(json!({
            "id": format!("job_{attempt}{submission}"), "run": "run_1", "agent": "agt_1", "attempt": attempt,
            "submission": submission, "status": "failed", "phase": null, "reason": "exited_with_error", "message": message,
            "exit_code": code, "signal": null, "workflow": "wfl_1", "instance": "ins_1", "allocation": null, "warm": true,
            "epoch": 1, "submitted_at": 0, "placed_at": 0, "running_at": 5, "started_at": 5, "ended_at": 17,
            "final_offset": 0, "log_cut": false, "active_ms": 12, "unenforced": null,
        }))
        .unwrap()
    }

    #[test]
    fn an_attempt_ends_as_its_last_job_did() {
        let view = |number| AttemptView {
            run: "run_1".into(),
            number,
            status: "failed".into(),
            credits_reserved: "1".into(),
            credits_reserved_micro: 1_000_000,
            credits_charged: "0.5".into(),
            credits_charged_micro: 500_000,
            credits_refunded: "0.5".into(),
            credits_refunded_micro: 500_000,
            uncollected_micro: 0,
            opened_at: 0,
            ended_at: Some(20),
        };
        let jobs = [
            job(1, 2, Some(5), None),
            job(1, 1, Some(4), None),
            job(2, 1, Some(137), Some("the memory limit was reached")),
        ];
        assert_eq!(attempt_end(&attempt(view(1), &jobs)), ": exit code 5, 12ms, job_12 on ins_1, 0.5 credits");
        assert_eq!(
            attempt_end(&attempt(view(2), &jobs)),
            ": exit code 137, the memory limit was reached, 12ms, job_21 on ins_1, 0.5 credits"
        );
        assert_eq!(attempt_end(&attempt(view(3), &jobs)), ": 0.5 credits", "it never had a job");
    }

    #[test]
    fn an_error_is_told_in_one_way() {
        let view = |cause: Option<&str>| ErrorView {
            code: "limits_exceeded".into(),
            message: "the memory limit was reached".into(),
            cause: cause.map(str::to_owned),
        };
        assert_eq!(
            error(&view(Some("the memory limit was reached"))),
            "the memory limit was reached (limits_exceeded)"
        );
        assert_eq!(error(&view(Some("x"))), "the memory limit was reached (limits_exceeded): x");
    }
}
