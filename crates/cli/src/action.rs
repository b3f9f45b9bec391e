//! What one can do to a run: cancel, pause, resume, start, retry, delete. Asking for what has happened already is fine.

use crate::args::Json;
use crate::complaint::{Complaint, Done, REFUSED};
use crate::control_plane::ControlPlane;
use crate::say::one_line;
use crate::settings::Settings;
use crate::{lookup, meant, ps, show};
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
#[command(after_help = "A paused run keeps its machine, which is charged for; it is cancelled after 7
days.

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
        if let Err(complaint) = plane.delete(&format!("/runs/{run}")).await {
            return Err(explained(&plane, &run, "delete", complaint).await);
        }
        eprintln!("repl: deleted {run}");
    }
    Ok(0)
}

async fn act(settings: &Settings, target: Target, verb: &str, body: ActionBody) -> Done {
    let plane = ControlPlane::reach(settings).await?;
    let mut views = Vec::new();
    for said in &target.runs {
        let run = lookup::run(&plane, said).await?;
        if verb == "start" {
            must_be_startable(&plane, &run).await?;
        }
        let view: RunView = match plane.post(&format!("/runs/{run}/{verb}"), &body).await {
            Ok(view) => view,
            Err(complaint) => return Err(explained(&plane, &run, verb, complaint).await),
        };
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

/// Starting twice is fine while the run is under way. One that has ended is not run again by it, which the caller should hear.
async fn must_be_startable(plane: &ControlPlane, run: &str) -> Done<()> {
    let view: RunView = plane.get(&format!("/runs/{run}")).await?;
    match view.status.as_str() {
        "created" => Ok(()),
        "completed" | "failed" | "cancelled" => Err(refusal("start", &view, Complaint::refused(""))),
        _ => {
            eprintln!("repl: {} was started before: repl attach {}", view.id, view.id);
            Ok(())
        }
    }
}

/// A refusal in words of the command line, if the run can still be looked at.
async fn explained(plane: &ControlPlane, run: &str, verb: &str, complaint: Complaint) -> Complaint {
    let is_about_state = complaint.code == REFUSED && complaint.text.starts_with("run is ");
    if !is_about_state {
        return complaint;
    }
    match plane.get::<RunView>(&format!("/runs/{run}")).await {
        Ok(view) => refusal(verb, &view, complaint),
        Err(_) => complaint,
    }
}

fn refusal(verb: &str, run: &RunView, complaint: Complaint) -> Complaint {
    let is = format!("{} ({}) is {}", run.id, one_line(&run.name), run.status);
    match (verb, run.status.as_str()) {
        ("retry", "failed") => Complaint::refused(format!("{is}: all {} attempts are used", run.max_attempts))
            .fix(format!("submit it again: {}", submitted_again(run))),
        ("retry", "completed" | "cancelled") => Complaint::refused(format!("{is}: only a failed run is tried again"))
            .fix(format!("submit it again: {}", submitted_again(run))),
        ("start", _) => Complaint::refused(format!("{is}: it was started before"))
            .fix(format!("submit it again: {}", submitted_again(run))),
        _ => {
            let allowed = complaint.fix.as_deref().and_then(|fix| fix.strip_prefix("possible now: "));
            let fix = allowed.map(|allowed| {
                let commands: Vec<String> = allowed.split(", ").map(|it| format!("repl {it} {}", run.id)).collect();
                format!("possible now: {}", commands.join(", "))
            });
            let text = match complaint.text.strip_prefix("run is ") {
                Some(rest) => format!("{} ({}) is {rest}", run.id, one_line(&run.name)),
                None => complaint.text.clone(),
            };
            Complaint { text, fix: fix.or_else(|| complaint.fix.clone()), ..complaint }
        }
    }
}

/// The line that makes another run of the same command. Files and flags are not known here.
fn submitted_again(run: &RunView) -> String {
    /// A longer command is found in its own shell's history sooner than in an error.
    const LONGEST: usize = 60;
    if run.command.contains('\n') || run.command.len() > LONGEST {
        return "the `repl run` line or run file that it came from".to_owned();
    }
    let words = ["repl", "run", "-c", &run.command].map(str::to_owned);
    format!("{}, with the flags and files it had", one_line(&meant::quoted(&words)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_says_how_to_go_on() {
        let of =
            |status: &str| RunView { status: status.into(), command: "echo it's".into(), ..crate::summary::sample() };
        let state = |status: &str, fix: &str| Complaint::refused(format!("run is {status}: it cannot x")).fix(fix);
        let again = r"repl run -c 'echo it'\''s', with the flags and files it had";
        for (verb, status, fix, said) in [
            (
                "retry",
                "cancelled",
                "possible now: delete",
                format!("run_9ix (n) is cancelled: only a failed run is tried again\n  fix: submit it again: {again}"),
            ),
            (
                "retry",
                "completed",
                "possible now: delete",
                format!("run_9ix (n) is completed: only a failed run is tried again\n  fix: submit it again: {again}"),
            ),
            (
                "retry",
                "failed",
                "possible now: delete",
                format!("run_9ix (n) is failed: all 3 attempts are used\n  fix: submit it again: {again}"),
            ),
            (
                "start",
                "completed",
                "",
                format!("run_9ix (n) is completed: it was started before\n  fix: submit it again: {again}"),
            ),
            (
                "delete",
                "running",
                "possible now: pause, cancel",
                "run_9ix (n) is running: it cannot x\n  fix: possible now: repl pause run_9ix, repl cancel run_9ix"
                    .to_owned(),
            ),
        ] {
            assert_eq!(refusal(verb, &of(status), state(status, fix)).to_string(), format!("error: {said}"));
        }
        let long = RunView { command: "x".repeat(61), ..of("cancelled") };
        assert!(refusal("retry", &long, state("cancelled", "")).fix.unwrap().ends_with("that it came from"));
    }
}
