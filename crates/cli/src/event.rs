//! `repl events`: the events of a run, numbered without gaps; past ones, or as they happen.

use crate::complaint::{DETACHED, Done};
use crate::control_plane::ControlPlane;
use crate::follow::Persistence;
use crate::live::Live;
use crate::settings::Settings;
use crate::show::{self, Colour, paint};
use crate::{lookup, quantity};
use wire::api::EventView;
use wire::client::ClientError;

/// Print what happened to a run
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  repl events
  repl events run_9ix -f --json | jq .kind")]
pub struct EventsArgs {
    /// Id, beginning of an id, name, or @last
    #[arg(default_value = lookup::LAST)]
    run: String,
    /// Go on until the run ends
    #[arg(short, long)]
    follow: bool,
    /// At most this many
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = quantity::count, allow_negative_numbers = true, conflicts_with = "follow")]
    limit: usize,
    /// A JSON array; with -f one object per line
    #[arg(long)]
    json: bool,
}

pub async fn events(settings: &Settings, args: EventsArgs) -> Done {
    let plane = ControlPlane::reach(settings).await?;
    let run = lookup::run(&plane, &args.run).await?;
    if args.follow {
        return tokio::select! {
            done = follow(&plane, &run, args.json) => done,
            _ = tokio::signal::ctrl_c() => Ok(DETACHED),
        };
    }
    let events: Vec<EventView> = plane.list(&format!("/runs/{run}/events"), args.limit).await?;
    if args.json {
        return show::json(&events);
    }
    events.iter().for_each(print);
    Ok(0)
}

async fn follow(plane: &ControlPlane, run: &str, json: bool) -> Done {
    let live = Live::none();
    let mut persistence = Persistence::default();
    let mut last: Option<String> = None;
    loop {
        let broken = match plane.events(&format!("/runs/{run}/events"), last.as_deref()).await {
            Ok(mut events) => loop {
                match events.next().await {
                    // A database that lost its end: the numbers begin again.
                    Ok(Some(event)) if event.event == "reset" => last = None,
                    Ok(Some(event)) => {
                        persistence.reset();
                        let view: EventView = serde_json::from_str(&event.data)
                            .map_err(|error| ClientError::Protocol(format!("{error} in an event")))?;
                        last = Some(event.id);
                        if json {
                            show::json_line(&view)?;
                        } else {
                            print(&view);
                        }
                    }
                    Ok(None) if is_over(plane, run).await? => return Ok(0),
                    Ok(None) => break ClientError::Unreachable("the stream ended early".to_owned()),
                    Err(error) => break error,
                }
            },
            Err(error) => error,
        };
        persistence.wait(plane, broken, &live).await?;
    }
}

/// A stream also ends when its server does; only the run can say which it was.
async fn is_over(plane: &ControlPlane, run: &str) -> Done<bool> {
    let run: wire::api::RunView = plane.get(&format!("/runs/{run}")).await?;
    Ok(matches!(run.status.as_str(), "completed" | "failed" | "cancelled"))
}

fn print(event: &EventView) {
    let body = match &event.body {
        serde_json::Value::Object(body) => body
            .iter()
            .filter(|(name, value)| !value.is_null() && !is_said(&event.kind, name, value))
            .map(|(name, value)| format!("{name}={}", shown(name, value)))
            .collect(),
        serde_json::Value::Null => Vec::new(),
        other => vec![plain(other)],
    };
    let number = format!("{:>4}", event.number);
    let begin = format!("{} {} ", paint(Colour::Dim, &number), show::clock(event.at));
    let indent = crate::say::width(&begin);
    let text = format!("{} {}", paint(Colour::Bold, &event.kind), body.join(" "));
    println!("{begin}{}", show::wrapped(&crate::say::one_line(text.trim_end()), indent, indent));
}

/// Left out as redundant: the user named the run, and a kind such as `run.failed` contains the status.
fn is_said(kind: &str, name: &str, value: &serde_json::Value) -> bool {
    name == "name" || (name == "status" && value.as_str().is_some_and(|status| kind.ends_with(&format!(".{status}"))))
}

/// A field as a person reads it; `--json` has it as it is.
fn shown(name: &str, value: &serde_json::Value) -> String {
    match (name, value) {
        ("last_error", serde_json::Value::Object(error)) => error.get("message").map_or_else(String::new, plain),
        (_, serde_json::Value::Number(at)) if name.ends_with("_at") => {
            at.as_i64().map_or_else(|| at.to_string(), show::clock)
        }
        _ => plain(value),
    }
}

fn plain(value: &serde_json::Value) -> String {
    match value {
        serde_json::Value::String(text) if !text.contains(char::is_whitespace) => text.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn fields_read_as_people_say_them() {
        for (name, value, text) in [
            ("last_error", json!({ "code": "x", "message": "it failed" }), "\"it failed\""),
            ("retry_at", json!(0), "1970-01-01 00:00:00Z"),
            ("exit_code", json!(5), "5"),
            ("reason", json!("job_failed"), "job_failed"),
        ] {
            assert_eq!(shown(name, &value), text);
        }
        assert!(is_said("run.failed", "status", &json!("failed")) && is_said("run.failed", "name", &json!("n")));
        assert!(!is_said("run.terminating", "status", &json!("running")) && !is_said("job.ended", "job", &json!("j")));
    }
}
