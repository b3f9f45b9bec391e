//! The `verify` of a step whose outcome is unknown, as the holder of its agent's item asks it: a child of the step, begun and ended as other
//! children are. What it is called with, and what its answer means, is evaluated between two commits.

use super::commit::{AtHand, Begin};
use super::{Holder, output_problem};
use crate::Engine;
use crate::child::ChildInput;
use crate::render::Renderer;
use crate::run_tx::RunTx;
use crate::step::{Place, step_plan};
use model::hierarchy::{self, NewChild, Pick, Rows, Verified};
use model::plan::StepPlan;
use model::run::LastError;
use model::step::{Step, StepStatus, ToolKind};
use model::{Credits, Failure, StepId};
use plan::Template;
use serde_json::Value;
use std::sync::Arc;
use store::step::Data;

/// The last part of the child's name.
const NAME: &str = "verify";
/// Characters of an answer that a ticket quotes.
const QUOTED: usize = 200;

/// A `verify` with which a transaction cannot go on before something is evaluated.
#[derive(Debug, Clone, Copy)]
pub(super) struct Check {
    step: StepId,
    place: Place,
    /// The child whose answer is to be understood. None: what to call it with is needed.
    answered: Option<StepId>,
}

/// What was evaluated of a step's `verify`.
#[derive(Debug, Clone)]
pub(super) enum Prepared {
    /// What it is called with.
    Input(Value),
    /// What the answer of a child means.
    Answer { child: StepId, found: Verified, output: Value },
    /// Its expressions cannot be evaluated.
    Refused(LastError),
}

impl Holder<'_> {
    pub(super) async fn look_into(&mut self, checks: &[Check]) -> Result<(), Failure> {
        for check in checks {
            let planned = step_plan(&self.renderer.plan, check.place).cloned();
            let Some(verify) = planned.as_ref().and_then(|planned| planned.verify.as_deref()) else { continue };
            let prepared = match check.answered {
                None => input(self.engine, &self.renderer, check.place, verify).await?,
                Some(child) => answer(self.engine, &self.renderer, check.place, verify, child).await?,
            };
            let prepared = valid(prepared, planned.as_ref().and_then(|planned| planned.output.as_ref()));
            Arc::make_mut(&mut self.verifies).insert(check.step, prepared);
        }
        Ok(())
    }
}

async fn input(engine: &Engine, renderer: &Renderer, place: Place, verify: &StepPlan) -> Result<Prepared, Failure> {
    let template = Template::for_tool(verify.tool, &verify.input).map_err(|bad| bad.error.why);
    let rendered = renderer.render_at(engine, place, template, None).await?;
    Ok(rendered.map_or_else(|error| Prepared::Refused(unclear(&error.message)), Prepared::Input))
}

async fn answer(
    engine: &Engine,
    renderer: &Renderer,
    place: Place,
    verify: &StepPlan,
    child: StepId,
) -> Result<Prepared, Failure> {
    let read = move |tx: &mut store::Tx| store::step::data(tx, child, Data::Output);
    let output = engine.store.read("agent.verify", read).await?.unwrap_or_default();
    let said = match &verify.outcome {
        None => Ok(by_itself(verify.tool, output)),
        Some(outcome) => {
            let template = Template::parse(&Value::from(outcome.as_str())).map_err(|bad| bad.error.why);
            renderer.render_at(engine, place, template, Some(("output", output))).await?
        }
    };
    let (found, output) = match said {
        Ok(said) => understood(said),
        Err(error) => (Verified::Unclear(unclear(&format!("`outcome`: {}", error.message))), Value::Null),
    };
    Ok(Prepared::Answer { child, found, output })
}

/// Where an answer stands if no `outcome` says so: in the body of a response, in what a command printed, or it is the output itself.
fn by_itself(tool: ToolKind, output: Value) -> Value {
    match (tool, output) {
        (ToolKind::Http, Value::Object(mut response)) => response.remove("body").unwrap_or_default(),
        (ToolKind::Command, Value::Object(mut ended)) if !ended.contains_key("outcome") => {
            ended.remove("stdout_tail").unwrap_or(Value::Object(ended))
        }
        (_, output) => output,
    }
}

/// `done` or `not_done`, or an object whose `outcome` is one of them; then its `output` is that of the step.
fn understood(said: Value) -> (Verified, Value) {
    let word = said.as_str().or_else(|| said.get("outcome")?.as_str()).map(str::trim);
    match word {
        Some("done") => (Verified::Done, said.get("output").cloned().unwrap_or_default()),
        Some("not_done") => (Verified::NotDone, Value::Null),
        _ => {
            let text: String = said.to_string().chars().take(QUOTED).collect();
            (Verified::Unclear(unclear(&format!("it answered neither `done` nor `not_done` but {text}"))), Value::Null)
        }
    }
}

/// What `verify` says that a step has answered must match the step's schema, as a person's word must.
fn valid(prepared: Prepared, schema: Option<&Value>) -> Prepared {
    let Prepared::Answer { child, found: Verified::Done, output } = prepared else { return prepared };
    let found = match output_problem(&output, schema) {
        None => Verified::Done,
        Some(problem) => {
            Verified::Unclear(unclear(&format!("it answered `done`, but {}", problem.failure.error.message)))
        }
    };
    Prepared::Answer { child, found, output }
}

fn unclear(why: &str) -> LastError {
    let message = format!("it is not known whether it had an effect, and its `verify` could not tell: {why}");
    LastError { code: "not_verified".into(), message, cause: None }
}

impl AtHand {
    /// Goes on with the `verify` of each step whose outcome is unknown. Returns those that need something evaluated first.
    pub(super) fn verify(&self, run_tx: &mut RunTx<'_>, begin: &mut Vec<Begin>) -> Result<Vec<Check>, Failure> {
        let mut checks = Vec::new();
        if !self.verifiable {
            return Ok(checks);
        }
        for step in self.verifying(run_tx)? {
            let place = Place::of(&Rows::task(run_tx, step.task)?, &step);
            let child = run_tx.verify_of(&step)?;
            let prepared = self.verifies.get(&step.id);
            match (child, prepared) {
                (Some(child), Some(Prepared::Answer { child: of, found, output }))
                    if child.status == StepStatus::Completed && *of == child.id =>
                {
                    run_tx.verified(&step, found, output)?;
                }
                (Some(child), _) if child.status == StepStatus::Completed => {
                    checks.push(Check { step: step.id, place, answered: Some(child.id) });
                }
                (Some(child), _) if child.status.is_end() => {
                    let why = child.last_error.map_or_else(|| child.status.to_string(), |error| error.message);
                    run_tx.verified(&step, &Verified::Unclear(unclear(&why)), &Value::Null)?;
                }
                (Some(child), _) if child.status != StepStatus::Pending => {}
                (_, Some(Prepared::Input(input))) => self.begin_verify(run_tx, &step, place, input, begin)?,
                (_, Some(Prepared::Refused(error))) => {
                    run_tx.verified(&step, &Verified::Unclear(error.clone()), &Value::Null)?;
                }
                _ => checks.push(Check { step: step.id, place, answered: None }),
            }
        }
        Ok(checks)
    }

    /// Steps of the agent whose `verify` is asked. What is about to end is not asked about any more.
    fn verifying(&self, run_tx: &mut RunTx<'_>) -> Result<Vec<Step>, Failure> {
        let agent = Rows::agent(run_tx, self.agent)?;
        let mut found = Vec::new();
        for task in Rows::tasks(run_tx, self.agent, Pick::Running, agent.parallel as usize)? {
            let most = Rows::task(run_tx, task)?.parallel as usize;
            for pick in [Pick::Running, Pick::Waiting] {
                for step in Rows::steps(run_tx, task, pick, most)? {
                    let step = Rows::step(run_tx, step)?;
                    if step.verifying && !hierarchy::is_to_stop(run_tx, &step)? {
                        found.push(step);
                    }
                }
            }
        }
        Ok(found)
    }

    fn begin_verify(
        &self,
        run_tx: &mut RunTx<'_>,
        step: &Step,
        place: Place,
        input: &Value,
        begin: &mut Vec<Begin>,
    ) -> Result<(), Failure> {
        let planned = step_plan(&self.plan, place).and_then(|planned| planned.verify.as_deref());
        let Some(verify) = planned else { return Ok(()) };
        let child = NewChild {
            name: NAME.to_owned(),
            item: Some(step.tries.to_string()),
            tool: verify.tool,
            idempotent: true,
            max_tries: verify.max_tries,
            timeout_ms: Some(verify.timeout_ms),
        };
        let key = run_tx.verify_key(step, verify.tool, input)?;
        let called_with = ChildInput {
            input: input.clone(),
            key: key.clone(),
            ask: false,
            most: Credits::ZERO,
            asked: None,
            max_tokens: 0,
            recorded: false,
            endpoint: run_tx.endpoint_of(verify.tool, input),
        };
        let child = run_tx.begin_child(step.id, child, called_with)?;
        let acts = child.status == StepStatus::Running && child.fence == self.item.fence;
        if acts && !child.tool.needs_machine() {
            begin.push(self.begin(run_tx, child, None, key, input.clone(), None)?);
        }
        Ok(())
    }
}

impl RunTx<'_> {
    /// The child that asks about the present try of a step, also one that has ended.
    fn verify_of(&mut self, step: &Step) -> Result<Option<Step>, Failure> {
        let (name, item) = (format!("{}/{NAME}", step.name), step.tries.to_string());
        let rows = store::step::children(self.tx, step.id)?;
        let found = rows.into_iter().rfind(|child| child.name == name && child.item.as_deref() == Some(&item));
        found.map(|child| Rows::step(self, child.id)).transpose()
    }

    /// Another one for each question: an answer to an earlier one says nothing about this.
    fn verify_key(&mut self, step: &Step, tool: ToolKind, input: &Value) -> Result<String, Failure> {
        let (agent, task) = (Rows::agent(self, step.agent)?, Rows::task(self, step.task)?);
        let path = format!("{}/{NAME}/{}", step.name, step.present_try());
        Ok(plan::key(self.run.id, &plan::identity(&agent.name, &task.name, &path, 1), tool, input))
    }

    fn verified(&mut self, step: &Step, found: &Verified, output: &Value) -> Result<(), Failure> {
        if *found == Verified::Done {
            self.note_output(step, output)?;
        }
        hierarchy::verified(self, step.id, found.clone())
    }
}
