//! What one can do to a run: cancel, pause, resume, start, retry, delete. Asking for something that has happened already succeeds.

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
    /// Declare that the old machine is surely gone, when its provider cannot say
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
    let (mut views, mut notes) = (Vec::new(), Vec::new());
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
            let (state, note) = under_way(verb, body.abort, &view);
            println!("{} {} {state}", view.id, one_line(&view.name));
            notes.extend(note.filter(|note| !notes.contains(note)));
        }
        views.push(view);
    }
    notes.iter().for_each(|note| eprintln!("repl: {note}"));
    match (target.json.json, views.as_slice()) {
        (false, _) => Ok(0),
        (true, [one]) => show::json(one),
        (true, many) => show::json(many),
    }
}

/// How a run is shown right after it was asked to do something, and what comes next: most of it takes a moment.
fn under_way(verb: &str, abort: bool, run: &RunView) -> (String, Option<String>) {
    let is_over = matches!(run.status.as_str(), "completed" | "failed" | "cancelled");
    let (state, note) = match (verb, run.status.as_str()) {
        ("pause", "running" | "pending") => ("pausing", "it is frozen in a moment; repl resume lets it go on"),
        ("cancel", _) if !is_over && abort => ("stopping", "its processes are being killed"),
        ("cancel", _) if !is_over => (
            "stopping",
            "it was asked to stop, and is killed if it has not ended within its stop duration (10s if not set)",
        ),
        _ => return (ps::state(run), None),
    };
    (show::status(state), Some(note.to_owned()))
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
            let text = format!("{is}: it cannot be {}", done(verb));
            Complaint { text, fix: fix.or_else(|| complaint.fix.clone()), ..complaint }
        }
    }
}

/// What a run is after a verb: `paused`, `deleted`.
fn done(verb: &str) -> String {
    match verb {
        "cancel" => "cancelled".to_owned(),
        "retry" => "tried again".to_owned(),
        verb => format!("{}ed", verb.trim_end_matches('e')),
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
    fn what_was_asked_is_told_and_what_comes_next() {
        let of = |status: &str| RunView { status: status.into(), ..crate::summary::sample() };
        for (verb, abort, status, state, note) in [
            ("pause", false, "running", "pausing", "frozen in a moment"),
            ("pause", false, "paused", "paused", ""),
            ("cancel", false, "running", "stopping", "asked to stop"),
            ("cancel", true, "paused", "stopping", "being killed"),
            ("cancel", true, "cancelled", "cancelled", ""),
            ("resume", false, "resuming", "resuming", ""),
        ] {
            let (said, next) = under_way(verb, abort, &of(status));
            assert_eq!((said.as_str(), next.is_some()), (state, !note.is_empty()), "{verb} {status}");
            assert!(next.unwrap_or_default().contains(note), "{verb} {status}");
        }
    }

    #[test]
    fn a_refusal_says_how_to_go_on() {
        let of =
            |status: &str| RunView { status: status.into(), command: "echo it's".into(), ..crate::summary::sample() };
        let state =
            |status: &str, fix: &str| Complaint::refused(format!("run is {status}, so x is not possible")).fix(fix);
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
                "run_9ix (n) is running: it cannot be deleted\n  fix: possible now: repl pause run_9ix, repl cancel run_9ix"
                    .to_owned(),
            ),
        ] {
            assert_eq!(refusal(verb, &of(status), state(status, fix)).to_string(), format!("error: {said}"));
        }
        assert_eq!(["pause", "resume", "cancel"].map(done), ["paused", "resumed", "cancelled"]);
        let long = RunView { command: "x".repeat(61), ..of("cancelled") };
        assert!(refusal("retry", &long, state("cancelled", "")).fix.unwrap().ends_with("that it came from"));
    }
}
