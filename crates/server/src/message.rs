//! The route of messages to agents.

use crate::Shared;
use crate::auth::Writer;
use crate::problem::HandlerResult;
use crate::routes::{Asked, Path, answered, id};
use axum::extract::State;
use engine::message::Message;
use std::sync::Arc;
use wire::api::{MessageView, SendMessage};

pub(crate) async fn send(
    State(state): State<Shared>,
    writer: Writer,
    Path(run): Path<String>,
    asked: Asked<SendMessage>,
) -> HandlerResult {
    let SendMessage { agent, text } = asked.value.clone();
    let key = asked.key(writer.org());
    let render = Arc::new(|message: &Message| serde_json::to_vec(&view(message)).expect("a view is plain data"));
    answered(state.engine.send_message(&writer.0, id("run", &run)?, agent, text, key, render).await?)
}

fn view(message: &Message) -> MessageView {
    MessageView {
        id: message.id.to_string(),
        run: message.run.to_string(),
        agent: message.agent.clone(),
        at: message.at.ms(),
    }
}
