//! Dialogues of `llm` steps, as the holder of their agent's item leads them: turns and calls are children of the step, begun and ended in
//! the holder's commits. What a dialogue needs next is computed between two commits, from how its children ended.

use super::Holder;
use super::act::{Ended, Found, Try};
use super::commit::{AtHand, Begin, Decided};
use crate::Engine;
use crate::child::{ChildInput, generation_of};
use crate::dialogue::{self, ChildFailure, Dialogue, Next, Wanted};
use crate::message::MAX_WAITING;
use crate::plan_limits::PlanProblem;
use crate::price;
use crate::render::Renderer;
use crate::run_tx::RunTx;
use crate::step::{Place, step_plan};
use adapters::ToolAnswer;
use model::hierarchy::{self, NewChild, Pick, Rows};
use model::recovery::{ErrorClass, StepFailure};
use model::run::LastError;
use model::step::{Step, StepStatus, ToolKind};
use model::{Credits, Effect, Failure, MessageId, StepId};
use serde_json::Value;
use std::collections::BTreeMap;
use store::Tx;
use store::step::Data;

/// A dialogue of a step that runs.
pub(super) struct Talk {
    of: Try,
    place: Place,
    /// Of its step, and so of its turns and calls: a step that runs anew in a new attempt asks for everything anew.
    generation: i64,
    dialogue: Dialogue,
    /// Rows of its open children, by their names below the step.
    rows: BTreeMap<String, StepId>,
    /// Calls that may run at once.
    parallel: i64,
    /// Its end is on its way into the database.
    over: bool,
    /// Messages that its next turn, of this name, is to take.
    offered: Option<(String, Vec<MessageId>)>,
}

/// What a dialogue brings into a transaction: the children that have to end next.
#[derive(Clone)]
pub(super) struct Open {
    of: Try,
    parallel: i64,
    wanted: Vec<(Wanted, ChildInput, Option<StepId>)>,
    /// Messages that are part of the turn that is wanted.
    messages: Vec<MessageId>,
}

/// What a transaction tells of a child.
pub(super) struct News {
    parent: StepId,
    name: String,
    what: What,
}

enum What {
    Begun(StepId),
    Ended(StepId, dialogue::Ended),
    /// Its turn has not begun: first it is to take these messages, and no others.
    Messages(Vec<(MessageId, String)>),
}

impl News {
    /// Whether the dialogue can go on at once.
    pub(super) fn goes_on(&self) -> bool {
        !matches!(self.what, What::Begun(_))
    }
}

impl Holder<'_> {
    /// What each dialogue needs next. One that is over ends its step.
    pub(super) fn speak(&mut self, ended: &mut Vec<Ended>) -> Vec<Open> {
        let (mut open, models) = (Vec::new(), &self.engine.context.models);
        for talk in self.talks.iter_mut().filter(|talk| !talk.over) {
            let found = match talk.dialogue.next() {
                Next::Children(wanted) => {
                    let step = step_plan(&self.renderer.plan, talk.place).map_or("", |step| step.name.as_str());
                    let task = &self.renderer.plan.tasks[talk.place.task.sequence as usize];
                    let with_key = |wanted: Wanted| {
                        let path = format!("{step}/{}", wanted.name);
                        let identity = self.renderer.identity(task, talk.place.task.item, &path, talk.generation);
                        let key = plan::key(self.renderer.run, &identity, wanted.tool, &wanted.input);
                        let (most, asked) = if wanted.tool == ToolKind::Llm {
                            (price::most_of_turn(models, &wanted.input), Some(price::asked(&wanted.input)))
                        } else {
                            (Credits::ZERO, None)
                        };
                        let max_tokens = if wanted.tool == ToolKind::Llm { self.renderer.shared.max_tokens } else { 0 };
                        let (input, ask) = (wanted.kept.clone(), wanted.ask);
                        let tool = self.engine.context.tools.get(&wanted.tool);
                        let endpoint = tool.and_then(|tool| tool.endpoint(&wanted.input));
                        let input = ChildInput { input, key, ask, most, asked, max_tokens, recorded: true, endpoint };
                        let row = talk.rows.get(&wanted.name).copied();
                        (wanted, input, row)
                    };
                    let offered = talk.offered.as_ref().filter(|(turn, _)| wanted.iter().any(|it| it.name == *turn));
                    let messages = offered.map(|(_, messages)| messages.clone()).unwrap_or_default();
                    let wanted = wanted.into_iter().map(with_key).collect();
                    open.push(Open { of: talk.of, parallel: talk.parallel, wanted, messages });
                    continue;
                }
                Next::Done(output) => Found::Answer(ToolAnswer { output, usage: None }),
                Next::Failed(failed) => Found::Failed(failed),
                Next::ChildFailed(failed) => Found::ChildFailed(failed),
            };
            talk.over = true;
            let (of, place, tool) = (talk.of, Some(talk.place), ToolKind::Llm);
            ended.push(Ended { of, place, found, called: None, tool, said: 0, put_away: None });
        }
        open
    }

    /// Takes in what the transaction said. Whether a dialogue can go on at once.
    pub(super) async fn listen(&mut self, decided: &mut Decided) -> Result<bool, Failure> {
        self.talks.retain(|talk| !decided.over.contains(&talk.of.0));
        let mut goes_on = false;
        for news in std::mem::take(&mut decided.news) {
            let Some(talk) = self.talks.iter_mut().find(|talk| talk.of.0 == news.parent) else { continue };
            goes_on |= news.goes_on();
            match news.what {
                What::Begun(row) => drop(talk.rows.insert(news.name, row)),
                What::Ended(row, how) => {
                    talk.dialogue.ended(&news.name, how);
                    talk.rows.insert(news.name, row);
                }
                What::Messages(messages) => {
                    let (ids, texts) = messages.into_iter().unzip();
                    talk.dialogue.offer(&news.name, texts);
                    talk.offered = Some((news.name, ids));
                }
            }
        }
        for (step, place) in std::mem::take(&mut decided.adopted) {
            if !self.talks.iter().any(|talk| talk.of.0 == step.id) {
                let talk = adopt(self.engine, self.renderer.clone(), step, place).await?;
                self.talks.push(talk);
                goes_on = true;
            }
        }
        Ok(goes_on)
    }
}

/// A dialogue that runs, from the rows of its step and of its children.
async fn adopt(engine: &Engine, renderer: Renderer, step: Step, place: Place) -> Result<Talk, Failure> {
    let generation = generation_of(&step);
    let (id, name, of) = (step.id, step.name.clone(), (step.run, step.identity.clone().unwrap_or_default()));
    let read = move |tx: &mut Tx| Ok((rows(tx, id)?, store::message::taken(tx, of.0, &of.1)?));
    let ((input, children), taken) = engine.store.read("agent.dialogue", read).await?;
    let model = input["model"].as_str().unwrap_or("default");
    let context = engine.context.models.find(model).map_or(DEFAULT_CONTEXT, |found| found.limits.context);
    let plan = step_plan(&renderer.plan, place);
    let schema = plan.and_then(|plan| plan.output.clone());
    let parallel = renderer.plan.tasks[place.task.sequence as usize].calls_at_once();
    let dialogue = Dialogue::new(input, schema, &renderer.shared, renderer.tool_scope(), context);
    let mut dialogue = dialogue.tried(step.max_tries);
    if let Some(planning) = renderer.planning {
        let problem = planning.limits.map(|limits| {
            let context = engine.context.clone();
            Box::new(move |plan: &Value| limits.planned(&context, plan).err()) as PlanProblem
        });
        dialogue = dialogue.planning(problem);
    }
    taken.into_iter().for_each(|(turn, text)| dialogue.heard(&turn, text));
    let mut open = BTreeMap::new();
    for (child, how) in children {
        let below = child.name.strip_prefix(&name).and_then(|rest| rest.strip_prefix('/')).unwrap_or_default();
        match how {
            // It ended an earlier try of the step: in this one it is asked for again.
            Some(dialogue::Ended::Failed(_)) if is_asked_for(&child, below) && child.ended_at < step.began_at => {}
            Some(how) => dialogue.ended(below, how),
            None => drop(open.insert(below.to_owned(), child.id)),
        }
    }
    let of = (id, step.tries);
    Ok(Talk { of, place, generation, dialogue, rows: open, parallel, over: false, offered: None })
}

/// A turn, or a list of tools: without its answer the dialogue cannot go on. That of a call is the model's matter, whatever it is.
fn is_asked_for(child: &Step, below: &str) -> bool {
    child.tool == ToolKind::Llm || below.starts_with("tools/")
}

/// Of a model that the settings do not know any more.
const DEFAULT_CONTEXT: i64 = 8_000;

type Child = (Step, Option<dialogue::Ended>);

fn rows(tx: &mut Tx, parent: StepId) -> Result<(Value, Vec<Child>), Failure> {
    let input = store::step::data(tx, parent, Data::Input)?.unwrap_or_default();
    let mut children = Vec::new();
    for child in store::step::children(tx, parent)? {
        let how = if child.status.is_end() { Some(how_it_ended(tx, &child)?) } else { None };
        children.push((child, how));
    }
    Ok((input, children))
}

fn how_it_ended(tx: &mut Tx, child: &Step) -> Result<dialogue::Ended, Failure> {
    let output = match (child.status, child.answer) {
        (StepStatus::Completed, Some(answer)) => store::step::data(tx, answer, Data::Output)?,
        _ => None,
    };
    Ok(match output {
        Some(output) => dialogue::Ended::Answered(output),
        None => dialogue::Ended::Failed(how_it_failed(child)),
    })
}

/// A child that was not judged did not fail: a person has said what becomes of it.
fn how_it_failed(child: &Step) -> ChildFailure {
    let (class, effect) =
        child.judged.map_or((ErrorClass::Permanent, Effect::Done), |judged| (judged.class, judged.effect));
    let error = child.last_error.clone().unwrap_or_else(not_known);
    ChildFailure { failure: StepFailure { class, effect, retry_after_ms: None, error }, tries: child.tries }
}

/// A person has skipped it, or said that it was done and not what came of it.
fn not_known() -> LastError {
    LastError { code: "no_output".into(), message: "nothing is known of its output".into(), cause: None }
}

impl AtHand {
    /// Dialogues whose step has ended, is tried again, or waits for a person itself.
    pub(super) fn over(&self, run_tx: &mut RunTx<'_>) -> Result<Vec<StepId>, Failure> {
        let mut over = Vec::new();
        for dialogue in self.dialogues.iter() {
            let step = Rows::step(run_tx, dialogue.of.0)?;
            if !hierarchy::is_current(&step, dialogue.of.1) || step.uncertain {
                over.push(step.id);
            }
        }
        let ended = self.ended.iter().filter(|ended| ended.place.is_some()).map(|ended| ended.of.0);
        over.extend(ended);
        Ok(over)
    }

    /// Begins the children that dialogues need, as many as may run at once, and tells which have ended.
    pub(super) fn go_on(
        &self,
        run_tx: &mut RunTx<'_>,
        over: &[StepId],
        begin: &mut Vec<Begin>,
    ) -> Result<Vec<News>, Failure> {
        let mut news = Vec::new();
        for dialogue in self.dialogues.iter().filter(|dialogue| !over.contains(&dialogue.of.0)) {
            for (wanted, input, row) in &dialogue.wanted {
                // An earlier call may have ended the step: out of budget.
                let parent = Rows::step(run_tx, dialogue.of.0)?;
                if !hierarchy::is_current(&parent, dialogue.of.1) || hierarchy::is_to_stop(run_tx, &parent)? {
                    break;
                }
                let child = match row {
                    Some(row) => Some(Rows::step(run_tx, *row)?),
                    None => run_tx.open_child_of(&parent, &wanted.name)?,
                };
                if let Some(messages) =
                    run_tx.messages_for(&parent, child.as_ref(), wanted, input, &dialogue.messages)?
                {
                    news.push(News { parent: parent.id, name: wanted.name.clone(), what: What::Messages(messages) });
                    continue;
                }
                let room = parent.children.running + parent.children.waiting < dialogue.parallel;
                let child = match child {
                    Some(child) if child.status != StepStatus::Pending => child,
                    Some(child) if !room => child,
                    None if !room => continue,
                    before => {
                        let is_new = before.is_none_or(|before| before.tries == 0);
                        let child = self.begin_child(run_tx, &parent, wanted, input, begin)?;
                        if is_new && child.tries > 0 {
                            run_tx.take_messages(&parent, &child, &wanted.name, &dialogue.messages)?;
                        }
                        child
                    }
                };
                let what = match child.status.is_end() {
                    true => What::Ended(child.id, run_tx.ended_child(&child)?),
                    false => What::Begun(child.id),
                };
                news.push(News { parent: parent.id, name: wanted.name.clone(), what });
            }
        }
        Ok(news)
    }

    fn begin_child(
        &self,
        run_tx: &mut RunTx<'_>,
        parent: &Step,
        wanted: &Wanted,
        input: &ChildInput,
        begin: &mut Vec<Begin>,
    ) -> Result<Step, Failure> {
        let new = NewChild {
            name: wanted.name.clone(),
            item: None,
            tool: wanted.tool,
            idempotent: wanted.idempotent,
            max_tries: wanted.max_tries,
            timeout_ms: wanted.timeout_ms,
        };
        let child = run_tx.begin_child(parent.id, new, input.clone())?;
        let acts = child.status == StepStatus::Running && !child.uncertain && child.fence == self.item.fence;
        if acts && !child.needs_machine() {
            // A person may have put another input in the place of the first.
            let edited = run_tx.child_inputs.get(&child.id).filter(|now| now.key != input.key).cloned();
            let (key, called_with) = match edited {
                Some(edited) => (edited.key, edited.input),
                None => (input.key.clone(), wanted.input.clone()),
            };
            begin.push(self.begin(run_tx, child.clone(), None, key, called_with, None)?);
        }
        Ok(child)
    }

    /// Dialogues that run and that this holder does not lead yet.
    pub(super) fn adopted(&self, run_tx: &mut RunTx<'_>) -> Result<Vec<(Step, Place)>, Failure> {
        let agent = Rows::agent(run_tx, self.agent)?;
        let mut found = Vec::new();
        for task in Rows::tasks(run_tx, self.agent, Pick::Running, agent.parallel as usize)? {
            let task = Rows::task(run_tx, task)?;
            for pick in [Pick::Running, Pick::Waiting] {
                for step in Rows::steps(run_tx, task.id, pick, task.parallel as usize)? {
                    let step = Rows::step(run_tx, step)?;
                    let runs = step.status == StepStatus::Running && !step.is_unknown();
                    let led = self.dialogues.iter().any(|dialogue| dialogue.of.0 == step.id);
                    if step.tool == ToolKind::Llm && step.by_children && runs && !led {
                        let place = Place::of(&task, &step);
                        found.push((step, place));
                    }
                }
            }
        }
        Ok(found)
    }
}

impl RunTx<'_> {
    /// What people have said to the agent, if the turn that is wanted is to take something else than it would. A turn that has begun, in
    /// whichever attempt, keeps what it began with: else its record would not answer.
    fn messages_for(
        &mut self,
        parent: &Step,
        child: Option<&Step>,
        wanted: &Wanted,
        input: &ChildInput,
        offered: &[MessageId],
    ) -> Result<Option<Vec<(MessageId, String)>>, Failure> {
        // A turn that is asked again because it was too long is no new one.
        let is_turn = wanted.tool == ToolKind::Llm && !wanted.name.contains('/');
        if !is_turn || child.is_some_and(|child| child.tries > 0) {
            return Ok(None);
        }
        let agent = Rows::agent(self, parent.agent)?.name;
        let waiting = store::message::waiting(self.tx, self.run.id, &agent, MAX_WAITING)?;
        if waiting.iter().map(|(id, _)| id).eq(offered) || self.is_recorded(parent, wanted, input)? {
            return Ok(None);
        }
        Ok(Some(waiting))
    }

    fn is_recorded(&mut self, parent: &Step, wanted: &Wanted, input: &ChildInput) -> Result<bool, Failure> {
        let (path, generation) = parent.identity.as_deref().and_then(|it| it.rsplit_once('#')).unwrap_or_default();
        let recorded = store::step::journal(self.tx, self.run.id, &format!("{path}/{}#{generation}", wanted.name))?;
        Ok(recorded.is_some_and(|row| row.key == input.key))
    }

    /// In the commit that begins the turn they are part of.
    fn take_messages(
        &mut self,
        parent: &Step,
        child: &Step,
        turn: &str,
        messages: &[MessageId],
    ) -> Result<(), Failure> {
        let Some(dialogue) = &parent.identity else { return Ok(()) };
        for id in messages {
            store::message::take(self.tx, *id, dialogue, turn)?;
            self.publish("message.delivered", store::body!({ "message": id, "step": child.id, "path": child.name }));
        }
        Ok(())
    }

    fn open_child_of(&mut self, parent: &Step, name: &str) -> Result<Option<Step>, Failure> {
        let full = format!("{}/{name}", parent.name);
        self.open_child(parent.id, &full, None)?.map(|id| Rows::step(self, id)).transpose()
    }

    fn ended_child(&mut self, child: &Step) -> Result<dialogue::Ended, Failure> {
        match self.outputs.get(&child.id) {
            Some(output) if child.status == StepStatus::Completed => Ok(dialogue::Ended::Answered(output.clone())),
            _ => how_it_ended(self.tx, child),
        }
    }
}
