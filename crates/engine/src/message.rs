//! Messages of people to agents that talk with a model. A message is a row first; the next turn of the agent's dialogue takes it, in the
//! commit that begins the turn.

use crate::durable::{Asker, open};
use crate::run::KeyedResponse;
use crate::run_tx::RunTx;
use crate::{Actor, Engine};
use model::agent::{Agent, AgentKind};
use model::hierarchy::Pick;
use model::spec::RunKind;
use model::step::ToolKind;
use model::{Failure, MessageId, Refused, RunId};
use std::sync::Arc;
use store::Lane;
use store::idempotency::Key;
pub use store::message::Message;

/// Bytes of one message.
pub const MAX_MESSAGE_BYTES: usize = 16 * 1024;
/// Messages to an agent that no turn has taken yet: they go into one prompt.
pub(crate) const MAX_WAITING: i64 = 20;
/// Messages of a run.
const MAX_MESSAGES: i64 = 1_000;
/// Agents of a run that are looked at for one that talks with a model.
const MOST_AGENTS: i64 = 1_000;
/// Names that a refusal lists.
const NAMED: usize = 10;

pub type MessageRender = Arc<dyn Fn(&Message) -> Vec<u8> + Send + Sync>;

impl Engine {
    /// Stores text for an agent of a run: the one of this name or id, or the only one that talks with a model.
    pub async fn send_message(
        &self,
        actor: impl Into<Actor>,
        run: RunId,
        agent: Option<String>,
        text: String,
        key: Option<Key>,
        render: MessageRender,
    ) -> Result<KeyedResponse, Failure> {
        if text.trim().is_empty() {
            return Err(Refused::invalid("text", "must say something").into());
        }
        if text.len() > MAX_MESSAGE_BYTES {
            return Err(Refused::TooLarge { what: "the text", limit: "16 KiB".into() }.into());
        }
        let (context, actor) = (self.context.clone(), actor.into());
        self.keyed(Lane::Normal.of(run), "message.send", key, 201, move |tx| {
            let mut run_tx = open(tx, &context, Asker::Org(actor.org), run)?;
            run_tx.by.clone_from(&actor.by);
            let message = run_tx.send(agent.as_deref(), &text)?;
            run_tx.close()?;
            Ok(render(&message))
        })
        .await
    }
}

impl RunTx<'_> {
    fn send(&mut self, agent: Option<&str>, text: &str) -> Result<Message, Failure> {
        if self.run.spec.kind != RunKind::Agents {
            let why = "only a run of `type: agents` has agents that read messages";
            return Err(Refused::Conflict { why: why.into() }.into());
        }
        if self.run.status.is_end() || self.run.termination.is_some() {
            return Err(Refused::not_from("run", self.run.status, "send", &[]).into());
        }
        let agent = self.addressee(agent)?;
        self.has_room_for_message(&agent)?;
        let message = Message {
            id: MessageId(self.tx.next_id()),
            org: self.run.org,
            run: self.run.id,
            agent: agent.name,
            at: self.at,
            text: text.to_owned(),
        };
        store::message::insert(self.tx, &message)?;
        let body = store::body!({ "message": message.id, "agent": message.agent, "text": message.text, "by": self.by });
        self.publish("message.sent", body);
        Ok(message)
    }

    fn has_room_for_message(&mut self, agent: &Agent) -> Result<(), Failure> {
        let waiting = store::message::waiting(self.tx, self.run.id, &agent.name, MAX_WAITING)?;
        if waiting.len() as i64 >= MAX_WAITING {
            let why =
                format!("{MAX_WAITING} messages wait for `{}` already: send again after its next turn", agent.name);
            return Err(Refused::Conflict { why }.into());
        }
        if store::message::count(self.tx, self.run.id)? >= MAX_MESSAGES {
            return Err(Refused::Conflict { why: format!("a run takes at most {MAX_MESSAGES} messages") }.into());
        }
        Ok(())
    }

    /// The agent that is meant: it has begun, has not ended, and its plan has a step of a model.
    fn addressee(&mut self, wanted: Option<&str>) -> Result<Agent, Failure> {
        let mut begun = Vec::new();
        for pick in [Pick::Running, Pick::Paused] {
            begun.extend(store::agent::pick(self.tx, self.run.id, self.run.attempt, pick, MOST_AGENTS)?);
        }
        begun.retain(|agent| matches!(agent.kind, AgentKind::Planned | AgentKind::Planner));
        if let Some(wanted) = wanted {
            let found = begun.into_iter().find(|agent| agent.name == wanted || agent.id.to_string() == wanted);
            let Some(agent) = found else {
                let why = format!("no agent `{wanted}` is at work in this run: see `repl status {}`", self.run.id);
                return Err(Refused::invalid("agent", why).into());
            };
            return match self.talks(&agent)? {
                true => Ok(agent),
                false => Err(Refused::Conflict { why: format!("agent `{wanted}` talks with no model") }.into()),
            };
        }
        let mut talking = Vec::new();
        for agent in begun {
            if self.talks(&agent)? {
                talking.push(agent);
            }
        }
        if talking.len() > 1 {
            let names: Vec<&str> = talking.iter().take(NAMED).map(|agent| agent.name.as_str()).collect();
            let more = if talking.len() > NAMED { ", …" } else { "" };
            let why = format!("several agents talk with a model: name one of {}{more}", names.join(", "));
            return Err(Refused::invalid("agent", why).into());
        }
        let none = || Refused::Conflict { why: "no agent of this run talks with a model now".into() };
        Ok(talking.pop().ok_or_else(none)?)
    }

    fn talks(&mut self, agent: &Agent) -> Result<bool, Failure> {
        let plan = store::plan::find(self.tx, self.run.id, agent.plan_version, agent.sequence)?;
        let mut steps = plan.iter().flat_map(|plan| &plan.tasks).flat_map(|task| &task.steps);
        Ok(steps.any(|step| step.tool == ToolKind::Llm))
    }
}
