//! Children of a step in the run's transaction: what they are called with, and what the journal, a person's word and their policy say
//! before they begin. A loop's holder and a program's requests begin them by the same way.

use crate::run_tx::RunTx;
use crate::step::{Call, input_changed};
use model::hierarchy::{self, NewChild, Ready, Rows};
use model::run::LastError;
use model::step::{Asked, Recorded, Step, ToolKind};
use model::{Credits, Failure, StepId};
use serde_json::Value;
use store::step::{Data, JournalRow};

/// What a child is called with, evaluated outside of any transaction.
#[derive(Debug, Clone)]
pub(crate) struct ChildInput {
    pub(crate) input: Value,
    pub(crate) key: String,
    /// A person has to approve this input first.
    pub(crate) ask: bool,
    /// The most that one try may cost, beside the price of its call.
    pub(crate) most: Credits,
    /// Of a model's turn.
    pub(crate) asked: Option<Asked>,
    /// Of a turn: tokens that its agent may use in all; 0 is no limit.
    pub(crate) max_tokens: i64,
    /// Its answer holds for the whole run. That of a `verify` does not: each time it is asked anew.
    pub(crate) recorded: bool,
    /// What it is sent to.
    pub(crate) endpoint: Option<String>,
}

impl RunTx<'_> {
    /// Begins the child of this name, or says what became of it: an open row of that name is gone on with, else one is made. What it is
    /// called with is in `child_inputs` afterwards: a person may have put another input in the place of this one.
    pub(crate) fn begin_child(&mut self, parent: StepId, child: NewChild, input: ChildInput) -> Result<Step, Failure> {
        let name = format!("{}/{}", Rows::step(self, parent)?.name, child.name);
        let id = match self.open_child(parent, &name, child.item.as_deref())? {
            Some(open) => open,
            None => hierarchy::add_child(self, parent, child)?,
        };
        let row = Rows::step(self, id)?;
        if row.tool.is_stdio(&input.input) && !row.stdio {
            Rows::set_step(self, Step { stdio: true, ..row });
        }
        self.child_inputs.insert(id, input);
        hierarchy::begin_child(self, id)
    }

    /// The open child of a full name. What is held in memory is newer than what the database has.
    pub(crate) fn open_child(
        &mut self,
        parent: StepId,
        name: &str,
        item: Option<&str>,
    ) -> Result<Option<StepId>, Failure> {
        let is_it = |step: &Step| step.parent == Some(parent) && step.name == name && step.item.as_deref() == item;
        let mut held = self.steps.iter().map(|held| &held.it).filter(|step| is_it(step));
        if let Some(open) = held.find(|step| !step.status.is_end()) {
            return Ok(Some(open.id));
        }
        let Some(found) = store::step::open_child(self.tx, parent, name, item)? else { return Ok(None) };
        let now = Rows::step(self, found.id)?; // it may have ended here
        Ok((!now.status.is_end()).then_some(now.id))
    }

    /// The journal's name of a child: that of its parent with its own path, in the generation of its parent.
    pub(crate) fn child_identity(&mut self, child: &Step) -> Result<String, Failure> {
        let (agent, task) = (Rows::agent(self, child.agent)?, Rows::task(self, child.task)?);
        let parent = child.parent.map(|parent| Rows::step(self, parent)).transpose()?;
        let generation = parent.as_ref().map_or(1, generation_of);
        let step = match &child.item {
            Some(item) => format!("{}#{item}", child.name),
            None => child.name.clone(),
        };
        Ok(plan::identity(&agent.name, &task.name, &step, generation).to_string())
    }

    /// What its record, its key and its policy say.
    pub(crate) fn child_readiness(&mut self, child: &Step) -> Result<Ready, Failure> {
        let Some(input) = self.child_inputs.get(&child.id).cloned() else { return Ok(Ready::Later) };
        let identity = self.child_identity(child)?;
        let recorded = match input.recorded {
            true => store::step::journal(self.tx, self.run.id, &identity)?,
            false => None,
        };
        let (key, approved) = self.approved_child(child, &identity, &input, recorded.as_ref())?;
        Ok(match recorded {
            Some(row) if row.key != key && !child.idempotent && !self.is_resumed(child)? => {
                Ready::Escalate(input_changed())
            }
            Some(row) if row.key == key && row.state == Recorded::Done => {
                self.answer_by(child, &row);
                Ready::Recorded
            }
            Some(row) if row.key == key && !child.idempotent => {
                self.claim_record(child, identity, row);
                Ready::Unknown
            }
            _ if !approved && self.has_to_ask(child, &identity, &input)? => Ready::Ask,
            _ => {
                // A person may have put another input in the place of the first.
                let input = self.child_inputs.get(&child.id).cloned().unwrap_or(input);
                match child.tool {
                    ToolKind::External if self.is_call_of_a_model(child)? => {
                        crate::offer::offer(self.run.org, &input.input)
                    }
                    _ if child.needs_machine() => {
                        let ready = self.readiness_on_machine(child, &input.input)?;
                        self.if_affordable(child, ready)?
                    }
                    _ if self.has_driver(child)? && self.has_enough_acts(child.agent)? => Ready::Later,
                    _ => match self.paced(child, input.endpoint.clone())? {
                        Ready::Go => self.affordable(child, &input)?,
                        wait => wait,
                    },
                }
            }
        })
    }

    /// Whether it is a call of a tool, which costs what the settings say. What a turn costs its model's prices say, and what a program's
    /// step costs the program.
    fn is_call(&mut self, child: &Step) -> Result<bool, Failure> {
        match child.tool {
            ToolKind::Llm => Ok(false),
            ToolKind::External => self.is_call_of_a_model(child),
            _ => Ok(true),
        }
    }

    /// Other children are begun by the program that asks for them.
    fn is_call_of_a_model(&mut self, child: &Step) -> Result<bool, Failure> {
        let parent = child.parent.map(|parent| Rows::step(self, parent)).transpose()?;
        Ok(parent.is_some_and(|parent| parent.tool == ToolKind::Llm))
    }

    /// What a model or a program may cost is set aside before it is asked, and so is the price of a call.
    fn affordable(&mut self, child: &Step, input: &ChildInput) -> Result<Ready, Failure> {
        let used = Rows::agent(self, child.agent)?.tokens;
        let message = if input.max_tokens > 0 && used >= input.max_tokens {
            format!("its agent has used {used} tokens: `max_tokens` is {}", input.max_tokens)
        } else if self.can_hold(child, input.most)? {
            let priced = self.is_call(child)?;
            return if priced { self.if_affordable(child, Ready::Go) } else { Ok(Ready::Go) };
        } else {
            format!("it may cost {} credits, and so much cannot be set aside", input.most)
        };
        Ok(Ready::Unaffordable(LastError { code: "budget".into(), message, cause: None }))
    }

    /// Begun by another row, with an unknown outcome: the journal takes over what a person answers about this row.
    fn claim_record(&mut self, child: &Step, identity: String, row: JournalRow) {
        let content = self.child_inputs.get(&child.id).and_then(|input| RunTx::content_of(child, &input.input));
        Rows::set_step(self, Step { key: Some(row.key), identity: Some(identity), content, ..child.clone() });
    }

    /// The key of what the child would be called with now, and whether it may be. What a person put in the place of its input is its input
    /// from here on.
    fn approved_child(
        &mut self,
        child: &Step,
        identity: &str,
        input: &ChildInput,
        recorded: Option<&JournalRow>,
    ) -> Result<(String, bool), Failure> {
        if !input.ask && !self.may_repeat_another(child)? {
            return Ok((input.key.clone(), true));
        }
        let call = Call { identity: identity.to_owned(), key: input.key.clone(), input: input.input.clone() };
        let (call, approved) = self.as_approved(call, recorded)?;
        if call.key != input.key {
            let endpoint = self.endpoint_of(child.tool, &call.input);
            let edited = ChildInput { input: call.input, key: call.key.clone(), endpoint, ..input.clone() };
            self.child_inputs.insert(child.id, edited);
        }
        Ok((call.key, approved))
    }

    /// Whether the holder of its agent's item calls it. A program of the user's works on its steps itself.
    fn has_driver(&mut self, child: &Step) -> Result<bool, Failure> {
        let Some(parent) = child.parent else { return Ok(true) };
        let parent = Rows::step(self, parent)?;
        Ok(parent.by_children && parent.tool != ToolKind::External)
    }

    /// By its policy, or because an earlier plan did the same.
    fn has_to_ask(&mut self, child: &Step, identity: &str, input: &ChildInput) -> Result<bool, Failure> {
        let call = Call { identity: identity.to_owned(), key: input.key.clone(), input: input.input.clone() };
        Ok(input.ask || self.same_step(child, &call)?.is_some())
    }

    pub(crate) fn note_child_begun(&mut self, child: &Step) -> Result<(), Failure> {
        let Some(input) = self.child_inputs.get(&child.id).cloned() else { return Ok(()) };
        // An offered one has not begun its first try yet.
        let first = if child.offer.is_some() { 0 } else { 1 };
        if child.tries == first {
            store::step::insert_data(self.tx, child.id, Data::Input, &input.input)?;
        }
        let identity = if input.recorded { Some(self.child_identity(child)?) } else { None };
        let content = RunTx::content_of(child, &input.input);
        let begun = Step { key: Some(input.key), identity, content, ..child.clone() };
        Rows::set_step(self, begun.clone());
        if child.needs_machine() {
            self.hold_call(&begun)?;
            let held = Rows::step(self, child.id)?;
            return self.begun_on_machine(&held, &input.input);
        }
        let begun = Step { asked: input.asked, ..begun };
        Rows::set_step(self, begun.clone());
        if self.is_call(child)? { self.hold_call(&begun) } else { self.hold_step(&begun, input.most) }
    }
}

/// Children are begun anew with their parent.
pub(crate) fn generation_of(parent: &Step) -> i64 {
    parent.identity.as_deref().and_then(|identity| identity.rsplit_once('#')?.1.parse().ok()).unwrap_or(1)
}
