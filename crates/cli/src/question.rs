//! `repl escalation` and `repl approval`: what people are asked about steps, and how they answer.

use crate::args::{Json, Listing};
use crate::complaint::{Complaint, Done};
use crate::control_plane::ControlPlane;
use crate::lookup::{self, Noun};
use crate::say::one_line;
use crate::settings::Settings;
use crate::show::{self, Table};
use serde_json::Value;
use wire::api::{ApproveBody, EventView, QuestionDetailView, QuestionView, RejectBody, ResolveBody};

/// Lines of an input that are shown; `--json` has all.
const INPUT_LINES: usize = 40;

#[derive(Debug, clap::Subcommand)]
pub enum Escalation {
    /// List open tickets
    #[command(
        alias = "list",
        after_help = "Examples:
  repl escalation ls
  repl escalation ls --run market -a"
    )]
    Ls(LsArgs),
    /// Show a ticket: its step, its error, what it was called with
    #[command(aliases = ["describe", "inspect"], after_help = "Examples:
  repl escalation show qst_7")]
    Show {
        /// Id or beginning of an id
        escalation: String,
        #[command(flatten)]
        json: Json,
    },
    /// Decide what becomes of the step
    #[command(after_help = "Actions:
  resume    try the step again, or go on with it
  skip      go on without it
  retry     begin the run again; finished steps answer from their records
  abort     end the run
  done      it had its effect (only if its outcome is unknown)
  not_done  it had none, and is called again (only if its outcome is unknown)

Examples:
  repl escalation resolve qst_7 skip --note 'not needed today'
  repl escalation resolve qst_7 done --output '{\"id\": 7}'")]
    Resolve {
        /// Id or beginning of an id
        escalation: String,
        #[arg(value_parser = ["resume", "skip", "retry", "abort", "done", "not_done"], help = "What becomes of the step")]
        action: String,
        /// Why, for those who look at it later
        #[arg(long)]
        note: Option<String>,
        /// With `done`: what the step would have answered
        #[arg(long, value_name = "JSON")]
        output: Option<String>,
        #[command(flatten)]
        json: Json,
    },
}

#[derive(Debug, clap::Subcommand)]
pub enum Approval {
    /// List approvals that wait for a person
    #[command(
        alias = "list",
        after_help = "Examples:
  repl approval ls
  repl approval ls --run market -a"
    )]
    Ls(LsArgs),
    /// Show an approval: its step, and the input that it is about
    #[command(aliases = ["describe", "inspect"], after_help = "Examples:
  repl approval show qst_7")]
    Show {
        /// Id or beginning of an id
        approval: String,
        #[command(flatten)]
        json: Json,
    },
    /// Let the step begin with the input that was shown, or with another
    #[command(after_help = "Examples:
  repl approval approve qst_7
  repl approval approve qst_7 --input '{\"url\": \"https://mail.example/\"}'
  repl approval approve qst_7 --answer '{\"colour\": \"green\"}'")]
    Approve {
        /// Id or beginning of an id
        approval: String,
        /// What a step of the tool `approval` asks for: its output
        #[arg(long, value_name = "JSON", conflicts_with = "input")]
        answer: Option<String>,
        /// Call the step's tool with this input; the original one is kept beside it
        #[arg(long, value_name = "JSON")]
        input: Option<String>,
        /// Why, for those who look at it later
        #[arg(long)]
        note: Option<String>,
        #[command(flatten)]
        json: Json,
    },
    /// The step fails, and its tool is not called
    #[command(after_help = "Examples:
  repl approval reject qst_7 --note 'wrong address'")]
    Reject {
        /// Id or beginning of an id
        approval: String,
        /// Why, for those who look at it later
        #[arg(long)]
        note: Option<String>,
        #[command(flatten)]
        json: Json,
    },
}

#[derive(Debug, clap::Args)]
pub struct LsArgs {
    /// Also those that are answered, or need no answer any more
    #[arg(short, long)]
    all: bool,
    /// Only of this run
    #[arg(long)]
    run: Option<String>,
    #[command(flatten)]
    listing: Listing,
}

pub async fn escalation(settings: &Settings, command: Escalation) -> Done {
    let plane = ControlPlane::reach(settings).await?;
    match command {
        Escalation::Ls(args) => list(&plane, lookup::ESCALATION, args).await,
        Escalation::Show { escalation, json } => show(&plane, lookup::ESCALATION, &escalation, json).await,
        Escalation::Resolve { escalation, action, note, output, json } => {
            let output = output.as_deref().map(|text| value("--output", text)).transpose()?;
            let body = ResolveBody { action, note, output };
            answer(&plane, lookup::ESCALATION, &escalation, "resolve", &body, json).await
        }
    }
}

pub async fn approval(settings: &Settings, command: Approval) -> Done {
    let plane = ControlPlane::reach(settings).await?;
    match command {
        Approval::Ls(args) => list(&plane, lookup::APPROVAL, args).await,
        Approval::Show { approval, json } => show(&plane, lookup::APPROVAL, &approval, json).await,
        Approval::Approve { approval, answer: said, input, note, json } => {
            let said = said.as_deref().map(|text| value("--answer", text)).transpose()?;
            let input = input.as_deref().map(|text| value("--input", text)).transpose()?;
            let body = ApproveBody { answer: said, input, note };
            answer(&plane, lookup::APPROVAL, &approval, "approve", &body, json).await
        }
        Approval::Reject { approval, note, json } => {
            answer(&plane, lookup::APPROVAL, &approval, "reject", &RejectBody { note }, json).await
        }
    }
}

fn value(flag: &str, text: &str) -> Done<Value> {
    serde_json::from_str(text).map_err(|error| {
        Complaint::value(flag, &format!("`{text}` is not JSON: {error}"))
            .fix(format!("quote it like {flag} '{{\"a\": 1}}'"))
    })
}

async fn list(plane: &ControlPlane, noun: Noun, args: LsArgs) -> Done {
    let mut path = format!("{}?all={}", noun.path, args.all);
    if let Some(run) = &args.run {
        path.push_str(&format!("&run={}", lookup::run(plane, run).await?));
    }
    let found: Vec<QuestionView> = plane.list(&path, args.listing.limit).await?;
    if args.listing.json {
        return show::json(&found);
    }
    let mut table =
        Table::new(["ID", "STATUS", "RUN", "STEP", "TOOL", "AGE", "ABOUT"]).without_if_narrow(&["TOOL", "AGE"]);
    for it in &found {
        table.row([
            it.id.clone(),
            show::status(&it.status),
            it.run.clone(),
            it.path.clone(),
            it.tool.clone(),
            show::ago(it.asked_at),
            about(it),
        ]);
    }
    table.print(match args.all {
        true => "none",
        false => "none is open (all: -a)",
    });
    Ok(0)
}

/// Who answered what; until then, why it was asked or how long it may be answered.
fn about(it: &QuestionView) -> String {
    match (&it.answered_by, &it.error, it.expires_at) {
        (Some(by), ..) => match &it.action {
            Some(action) => format!("{action} by {by}"),
            None => format!("by {by}"),
        },
        (None, Some(error), _) => error.message.clone(),
        (None, None, Some(until)) if it.status == "open" => format!("open {}", show::until(until)),
        _ => String::new(),
    }
}

async fn show(plane: &ControlPlane, noun: Noun, said: &str, json: Json) -> Done {
    let id = lookup::id(plane, noun, said).await?;
    let detail: QuestionDetailView = plane.get(&format!("{}/{id}", noun.path)).await?;
    if json.json {
        return show::json(&detail);
    }
    print(&detail, noun);
    Ok(0)
}

fn print(detail: &QuestionDetailView, noun: Noun) {
    let it = &detail.question;
    let error = it.error.as_ref().map(|error| format!("{} ({})", error.message, error.code));
    let answered = it.answered_by.as_ref().map(|by| {
        let what = it.action.clone().unwrap_or_else(|| it.status.clone());
        format!("{what} by {by}, {}", it.answered_at.map(show::ago).unwrap_or_default())
    });
    show::pairs(&[
        ("id", Some(it.id.clone())),
        ("status", Some(show::status(&it.status))),
        ("severity", (noun == lookup::ESCALATION).then(|| it.severity.clone())),
        ("run", Some(format!("{} ({}), attempt {}", it.run, one_line(&detail.run_name), it.attempt))),
        ("step", Some(format!("{} ({}, {})", it.path, it.tool, it.step))),
        ("same as", it.same_as.as_ref().map(|same| format!("{same}, which was begun before"))),
        ("error", error),
        ("asked", Some(show::ago(it.asked_at))),
        ("expires", it.expires_at.filter(|_| it.status == "open").map(show::clock)),
        ("answered", answered),
        ("note", it.note.clone()),
        ("key", (!it.key.is_empty()).then(|| it.key.clone())),
        ("input", detail.input.as_ref().map(pretty)),
        ("edited", detail.edited_input.as_ref().map(pretty)),
        ("answer", detail.answer.as_ref().map(pretty)),
    ]);
    if !detail.allowed.is_empty() {
        println!();
        for line in commands(&it.id, noun, &detail.allowed) {
            println!("{line}");
        }
    }
}

fn pretty(value: &Value) -> String {
    let text = serde_json::to_string_pretty(value).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    match lines.len() {
        0..=INPUT_LINES => text,
        many => format!("{}\n… and {} more lines: --json", lines[..INPUT_LINES].join("\n"), many - INPUT_LINES),
    }
}

fn commands(id: &str, noun: Noun, allowed: &[String]) -> Vec<String> {
    if noun == lookup::ESCALATION {
        return vec![format!("repl escalation resolve {id} {}", allowed.join("|"))];
    }
    let line = |word: &str| match word {
        "answer" => format!("repl approval approve {id} --answer JSON"),
        "edit" => format!("repl approval approve {id} --input JSON"),
        verb => format!("repl approval {verb} {id}"),
    };
    allowed.iter().map(|word| line(word)).collect()
}

async fn answer<B: serde::Serialize>(
    plane: &ControlPlane,
    noun: Noun,
    said: &str,
    verb: &str,
    body: &B,
    json: Json,
) -> Done {
    let id = lookup::id(plane, noun, said).await?;
    let detail: QuestionDetailView = plane.post(&format!("{}/{id}/{verb}", noun.path), body).await?;
    if json.json {
        return show::json(&detail);
    }
    let it = &detail.question;
    let action = it.action.as_ref().map(|action| format!(": {action}")).unwrap_or_default();
    println!("{} {}{action} ({} of {})", it.id, show::status(&it.status), it.path, it.run);
    Ok(0)
}

/// The message about a new question for a user who follows the run, with the command that answers it.
pub fn told(event: &EventView) -> Option<String> {
    let text = |field: &str| event.body.get(field).and_then(Value::as_str);
    if event.kind != "question.asked" {
        return None;
    }
    let (id, path) = (text("question")?, one_line(text("path").unwrap_or("a step")));
    let error = event.body.get("error").and_then(|error| error.get("message")).and_then(Value::as_str);
    let error = error.map(|message| format!(": {}", one_line(message))).unwrap_or_default();
    Some(match text("kind")? {
        "approval" => format!("{path} waits for an approval: repl approval show {id}, then repl approval approve {id}"),
        _ => format!(
            "{path} needs a decision{error}: repl escalation show {id}, then repl escalation resolve {id} ACTION"
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn who_follows_a_run_is_told_the_command_that_answers() {
        let event = |kind: &str, body: Value| EventView { number: 1, at: 0, kind: kind.into(), run: None, body };
        let ticket = json!({ "question": "qst_7", "kind": "ticket", "path": "a/t/pay", "error": { "code": "x", "message": "cut\noff" } });
        let approval = json!({ "question": "qst_8", "kind": "approval", "path": "a/t/mail" });
        let table = [
            (
                "question.asked",
                ticket,
                Some(
                    "a/t/pay needs a decision: cut off: repl escalation show qst_7, then repl escalation resolve qst_7 ACTION",
                ),
            ),
            (
                "question.asked",
                approval.clone(),
                Some("a/t/mail waits for an approval: repl approval show qst_8, then repl approval approve qst_8"),
            ),
            ("question.closed", approval, None),
        ];
        for (kind, body, words) in table {
            assert_eq!(told(&event(kind, body)).as_deref(), words);
        }
    }

    #[test]
    fn a_long_input_is_cut_and_json_is_read_strictly() {
        let long = pretty(&json!((0..100).collect::<Vec<_>>()));
        assert!(long.ends_with("… and 62 more lines: --json"), "{long}");
        let complaint = value("--input", "{a: 1}").unwrap_err();
        assert!(complaint.text.contains("is not JSON"), "{complaint}");
    }
}
