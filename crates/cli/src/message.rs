//! `repl send`: a word to an agent that talks with a model.

use crate::args::Json;
use crate::complaint::Done;
use crate::control_plane::ControlPlane;
use crate::say::one_line;
use crate::settings::Settings;
use crate::{lookup, show};
use wire::api::{EventView, MessageView, SendMessage};

/// Say something to a running agent: its model reads it at its next turn
#[derive(Debug, clap::Args)]
#[command(after_help = "`repl logs RUN -f` shows what the model does with it, and `repl events RUN`
which turn has read it.

Examples:
  repl send market 'Leave out figures before 2020.'
  repl send market --agent research 'The second source is wrong.'")]
pub struct SendArgs {
    /// The run's id, a beginning of it, its name, or @last
    #[arg(value_name = "RUN")]
    run: String,
    /// Which agent, if several talk with a model
    #[arg(long)]
    agent: Option<String>,
    /// At most 16 KiB
    #[arg(value_name = "TEXT")]
    text: String,
    #[command(flatten)]
    json: Json,
}

pub async fn send(settings: &Settings, args: SendArgs) -> Done {
    let plane = ControlPlane::reach(settings).await?;
    let run = lookup::run(&plane, &args.run).await?;
    let body = SendMessage { agent: args.agent, text: args.text };
    let view: MessageView = plane.post(&format!("/runs/{run}/messages"), &body).await?;
    if args.json.json {
        return show::json(&view);
    }
    println!("{} for {} of {}: read at its next turn", view.id, one_line(&view.agent), view.run);
    Ok(0)
}

/// What `repl logs` and `repl run` print about a message while they follow a run.
pub fn told(event: &EventView) -> Option<String> {
    let text = |field: &str| event.body.get(field).and_then(serde_json::Value::as_str);
    match event.kind.as_str() {
        "message.sent" => Some(format!("to {}: {}", one_line(text("agent")?), one_line(text("text")?))),
        "message.delivered" => Some(format!("{} reads {}", one_line(text("path")?), text("message")?)),
        _ => None,
    }
}
