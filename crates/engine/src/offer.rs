//! Steps of the tool `external`. When such a step may begin it is offered: a row that programs of the same org find by the name of its
//! tool. The program that polls for it first begins it, in a commit before it is answered; from then on it is leased and reported about
//! as a durable step is. Waiting for a poller is no active time, and only the poll starts the step's own time-out.

use crate::Engine;
use crate::agent::{output_problem, schema_problem};
use crate::durable::{Answered, Asker, StepRender, check_lease, open};
use crate::run::KeyedResponse;
use crate::run_tx::RunTx;
use crate::step::{is_in_flight, step_plan};
use adapters::ToolFailure;
use model::hierarchy::{self, Ready, Rows};
use model::recovery::{ErrorClass, StepFailure};
use model::run::LastError;
use model::spec::RunKind;
use model::step::{Offer, Recorded, Step, StepWait, ToolKind};
use model::{AgentId, Effect, Failure, OrgId, Refused, RunId, StepId, Timestamp, Trouble};
use serde_json::Value;
use store::Lane;
use store::idempotency::{self, Key, Looked};
use store::step::Data;

/// Names that one poll may ask for.
pub const MAX_TOOLS: usize = 20;
pub const MAX_TOOL_NAME: usize = 200;
/// Offers that are read at once. Of a longer list the next ones are read when all of these were taken by others.
const PAGE: usize = 16;

/// What a program can do, and how long it may be silent once it has taken a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Poll {
    pub org: OrgId,
    pub tools: Vec<String>,
    pub lease_ms: i64,
}

/// A step that a program has taken.
#[derive(Debug, Clone, PartialEq)]
pub struct Taken {
    pub run: RunId,
    pub run_name: String,
    pub step: StepId,
    /// Its agent, task and name.
    pub path: String,
    pub tool: String,
    pub fence: i64,
    pub key: String,
    pub input: Value,
    pub idempotent: bool,
    pub lease_ms: i64,
    /// When its own time is up; heartbeats do not move it.
    pub deadline: Option<Timestamp>,
}

impl Poll {
    pub fn check(&self) -> Result<(), Refused> {
        if self.tools.is_empty() || self.tools.len() > MAX_TOOLS {
            let why = format!("must name 1 to {MAX_TOOLS} tools, e.g. [\"crm\"]");
            return Err(Refused::invalid("tools", why));
        }
        match self.tools.iter().find(|tool| !is_name(tool)) {
            Some(_) => Err(Refused::invalid("tools", names_are())),
            None => check_lease(self.lease_ms),
        }
    }
}

fn is_name(tool: &str) -> bool {
    !tool.is_empty() && tool.chars().count() <= MAX_TOOL_NAME && !tool.chars().any(char::is_control)
}

fn names_are() -> String {
    format!("a name has 1 to {MAX_TOOL_NAME} characters, none of them a control character")
}

impl Engine {
    /// The oldest step that is offered under one of these names, if there is one: it has begun when this returns.
    pub async fn poll_step(
        &self,
        poll: &Poll,
        key: Option<&Key>,
        render: &StepRender<Taken>,
    ) -> Result<Option<Answered<Taken>>, Failure> {
        poll.check()?;
        if let Some(before) = self.polled_before(key).await? {
            return Ok(Some(before));
        }
        let mut after = 0;
        loop {
            let found = self.offered(poll.clone(), after).await?;
            let Some((last, _)) = found.last() else { return Ok(None) };
            after = last.0;
            for (step, run) in found {
                match self.take(poll, (step, run), key.cloned(), render.clone()).await {
                    Ok(None) => {}
                    // Programs poll for the steps of all runs of their org: one step that cannot be begun does not stop them.
                    Err(Failure::Refused(refused)) if !matches!(refused, Refused::KeyBusy { .. }) => {
                        tracing::warn!(%run, %step, %refused, "an offered step could not be begun");
                    }
                    taken => return taken,
                }
            }
        }
    }

    async fn polled_before(&self, key: Option<&Key>) -> Result<Option<Answered<Taken>>, Failure> {
        let Some(key) = key.cloned() else { return Ok(None) };
        let known = self.store.read("step.polled", move |tx| idempotency::known(tx, &key)).await?;
        Ok(known.map(|(status, body)| Answered::Before(KeyedResponse { status, body, replayed: true })))
    }

    async fn offered(&self, poll: Poll, after: i64) -> Result<Vec<(StepId, RunId)>, Failure> {
        let read = move |tx: &mut store::Tx| {
            let mut found = Vec::new();
            for tool in &poll.tools {
                found.extend(store::step::offered(tx, poll.org, tool, after, PAGE as i64)?);
            }
            found.sort();
            found.dedup();
            found.truncate(PAGE);
            Ok(found)
        };
        self.store.read("step.offered", read).await
    }

    /// None: another program was first, or nothing of its run begins now.
    async fn take(
        &self,
        poll: &Poll,
        (step, run): (StepId, RunId),
        key: Option<Key>,
        render: StepRender<Taken>,
    ) -> Result<Option<Answered<Taken>>, Failure> {
        let (context, asker, lease_ms) = (self.context.clone(), Asker::Org(poll.org), poll.lease_ms);
        self.store
            .write(Lane::Normal.of(run), "step.take", move |tx| {
                let mut run_tx = open(tx, &context, asker, run)?;
                let taken = match run_tx.answered_meanwhile(step)? {
                    true => None,
                    false => run_tx.take_offered(step, lease_ms)?,
                };
                run_tx.close()?;
                let Some(taken) = taken else { return Ok(None) };
                if let (Some(key), Some(body)) = (&key, render(&taken)) {
                    // The same request has taken a step of another run meanwhile: this one is given back by the rollback.
                    if let Looked::Replay { .. } = idempotency::lookup(tx, key)? {
                        return Err(Refused::KeyBusy { after_ms: 0 }.into());
                    }
                    idempotency::record(tx, key, 200, &body)?;
                }
                Ok(Some(Answered::Now(taken)))
            })
            .await
    }
}

/// A step of the tool `external` may begin: from now on programs may take it.
pub(crate) fn offer(org: OrgId, input: &Value) -> Ready {
    match input["tool"].as_str() {
        Some(tool) if is_name(tool) => Ready::Offer(Offer { org, tool: tool.to_owned() }),
        _ => {
            let message = format!("`tool`: {}", names_are());
            Ready::Refused(LastError { code: "invalid_input".into(), message, cause: None })
        }
    }
}

impl RunTx<'_> {
    /// A program that had taken an earlier row of this step, and was given up, has reported that it was done (R151): it is not offered
    /// again.
    fn answered_meanwhile(&mut self, id: StepId) -> Result<bool, Failure> {
        let step = Rows::step(self, id)?;
        let Some(identity) = step.identity.clone().filter(|_| step.waits == Some(StepWait::Poller)) else {
            return Ok(false);
        };
        let row = store::step::journal(self.tx, self.run.id, &identity)?;
        let found =
            row.filter(|row| row.state == Recorded::Done && row.step != id && Some(&row.key) == step.key.as_ref());
        let Some(row) = found else { return Ok(false) };
        self.answer_by(&step, &row);
        hierarchy::answer_offered(self, id, Ready::Recorded)?;
        let at = self.at;
        Rows::wake_agent(self, step.agent, at);
        Ok(true)
    }

    fn take_offered(&mut self, id: StepId, lease_ms: i64) -> Result<Option<Taken>, Failure> {
        // First: what is reserved for a try that then does not begin would be reserved again, under the same key, at the next poll.
        if !hierarchy::may_be_taken(self, id)? {
            return Ok(None);
        }
        let offered = Rows::step(self, id)?;
        let price = self.call_price(offered.tool);
        if !price.is_zero() && !self.can_hold(&offered, price)? {
            let refused = Ready::Unaffordable(crate::tool_price::cannot_be_paid(offered.tool, price));
            hierarchy::answer_offered(self, id, refused)?;
            let at = self.at;
            Rows::wake_agent(self, offered.agent, at);
            return Ok(None);
        }
        if !hierarchy::take_step(self, id)? {
            return Ok(None);
        }
        let taken = Rows::step(self, id)?;
        self.hold_call(&taken)?;
        self.give_lease(id, lease_ms, None)?;
        let step = Rows::step(self, id)?;
        let deadline = step.timeout_ms.map(|ms| self.at + ms);
        if let Some(deadline) = deadline {
            self.watch_leases(step.parent.unwrap_or(id), deadline)?;
        }
        let (agent, task) = (Rows::agent(self, step.agent)?, Rows::task(self, step.task)?);
        let input = store::step::data(self.tx, id, Data::Input)?;
        let mut input = input.ok_or_else(|| Trouble::internal("an offered step has no input"))?;
        Ok(Some(Taken {
            run: self.run.id,
            run_name: self.run.name.clone(),
            step: id,
            path: format!("{}/{}/{}", agent.name, task.name, step.name),
            tool: input["tool"].as_str().unwrap_or_default().to_owned(),
            fence: step.tries,
            key: step.key.clone().unwrap_or_default(),
            input: input["input"].take(),
            idempotent: step.idempotent,
            lease_ms,
            deadline,
        }))
    }

    /// Whether it is a step of a plan, or a call of a model, that a program has taken by a poll. Others of its tool are durable steps,
    /// which their programs begin themselves.
    pub(crate) fn was_offered(&self, step: &Step) -> bool {
        let of_job = step.lease.as_ref().is_some_and(|lease| lease.job.is_some());
        self.run.spec.kind == RunKind::Agents && step.tool == ToolKind::External && !of_job
    }

    /// When the time of a step that a program has taken is up. Time in which no control plane could hear of its end does not count.
    pub(crate) fn times_out(&mut self, step: &Step) -> Result<Option<Timestamp>, Failure> {
        let Some((limit, began_at)) = step.timeout_ms.zip(step.began_at).filter(|_| self.was_offered(step)) else {
            return Ok(None);
        };
        if began_at + limit > self.at {
            return Ok(Some(began_at + limit));
        }
        let outages = store::worker::outages(self.tx, began_at)?;
        Ok(Some(model::time::deadline_without(began_at, limit, &outages)))
    }

    /// Why the output of a plan's step is none: it does not match the schema in the plan. `large`: its row refers to it.
    pub(crate) fn output_refused(
        &mut self,
        step: &Step,
        output: &Value,
        large: bool,
    ) -> Result<Option<ToolFailure>, Failure> {
        if step.parent.is_some() || !self.was_offered(step) {
            return Ok(None);
        }
        let (agent, task) = (Rows::agent(self, step.agent)?, Rows::task(self, step.task)?);
        let plan = self.plan_of(&agent)?;
        let schema = step_plan(&plan, crate::step::Place::of(&task, step)).and_then(|step| step.output.as_ref());
        Ok(if large { schema_problem(output, schema) } else { output_problem(output, schema) })
    }

    /// Steps that programs have taken and whose task, agent or run ends are cancelled: their programs learn it from the next heartbeat.
    /// Whether one that is not idempotent had its effect stays unknown.
    pub(crate) fn stop_taken(&mut self, agent: AgentId) -> Result<(), Failure> {
        for step in self.acted_on(agent)? {
            let taken = step.lease.is_some() && self.was_offered(&step) && is_in_flight(&step);
            if taken && hierarchy::is_to_stop(self, &step)? {
                hierarchy::cancel_step(self, step.id, step.tries, !step.idempotent)?;
            }
        }
        Ok(())
    }
}

pub(crate) fn timed_out() -> StepFailure {
    let message = "the program that took it did not end it within the step's time limit".into();
    let error = LastError { code: "timeout".into(), message, cause: None };
    StepFailure { class: ErrorClass::Transient, effect: Effect::Perhaps, retry_after_ms: None, error }
}
