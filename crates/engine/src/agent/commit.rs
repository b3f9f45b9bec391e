//! One transaction of the holder of an agent's work item. It records calls that have ended, takes over steps that an earlier holder began
//! and did not end, and begins the next steps.

use super::act::{Ended, Found, Held, Try, cut_off, holder_gone};
use super::dialogues::{News, Open};
use super::verify;
use crate::EngineContext;
use crate::render::{Evaluated, Want};
use crate::run_tx::RunTx;
use crate::step::{Acting, Place, is_in_flight};
use model::agent::{AgentKind, AgentStatus};
use model::hierarchy::{self, Rows};
use model::plan::AgentPlan;
use model::recovery::StepFailure;
use model::step::{Step, StepTry, ToolKind};
use model::{AgentId, Effect, Failure, OrgId, RunId, StepId, Timestamp, Trouble};
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Arc;
use store::{Item, Tx};

/// What a commit decided that the holder has to do outside of the transaction.
pub(super) struct Decided {
    pub(super) begin: Vec<Begin>,
    pub(super) cut: Vec<Try>,
    pub(super) wanted: Vec<Want>,
    /// Dialogues that an earlier holder began, or this one just now.
    pub(super) adopted: Vec<(Step, Place)>,
    /// Dialogues that are over.
    pub(super) over: Vec<StepId>,
    pub(super) news: Vec<News>,
    pub(super) checks: Vec<verify::Check>,
    /// Turns that an earlier holder began: how much text each has stored has to be read before it is paid.
    pub(super) unread: Vec<StepTry>,
    pub(super) look_in_ms: Option<i64>,
    /// The item was given back.
    pub(super) finished: bool,
    pub(super) version: i64,
    pub(super) generation: i64,
}

pub(super) struct Begin {
    pub(super) step: Step,
    pub(super) place: Option<Place>,
    pub(super) key: String,
    pub(super) input: Value,
    pub(super) secrets: BTreeMap<String, String>,
    /// What a person answered to a step that asks one.
    pub(super) answer: Option<Value>,
}

/// What a transaction of a holder knows.
#[derive(Clone)]
pub(super) struct AtHand {
    pub(super) context: Arc<EngineContext>,
    pub(super) item: Item,
    pub(super) org: OrgId,
    pub(super) run: RunId,
    pub(super) agent: AgentId,
    pub(super) held: Vec<Held>,
    pub(super) ended: Arc<Vec<Ended>>,
    pub(super) plan: Arc<AgentPlan>,
    pub(super) evaluated: Arc<Evaluated>,
    pub(super) dialogues: Arc<Vec<Open>>,
    pub(super) verifies: Arc<BTreeMap<StepId, verify::Prepared>>,
    pub(super) verifiable: bool,
    /// Bytes of text that turns of an earlier holder have stored.
    pub(super) texts: Arc<BTreeMap<StepTry, i64>>,
}

impl AtHand {
    pub(super) fn advance(&self, tx: &mut Tx) -> Result<Decided, Failure> {
        let seen = store::work::hold(tx, &self.item)?;
        let uncounted = self.note_pauses(tx)?;
        let mut run_tx = RunTx::open(tx, &self.context, self.run)?;
        run_tx.uncounted = uncounted;
        run_tx.acting = Some(Acting {
            agent: self.agent,
            fence: self.item.fence,
            again: false,
            look_at: None,
            plan: self.plan.clone(),
            evaluated: self.evaluated.clone(),
            wanted: Vec::new(),
        });
        self.record(&mut run_tx)?;
        let closing = self.ended.iter().any(|ended| matches!(ended.found, Found::Cut));
        let (waits, unread) = self.take_over(&mut run_tx)?;
        self.expire(&mut run_tx)?;
        let cut = self.cut(&mut run_tx)?;
        run_tx.stop_commands(self.agent)?;
        self.stop_taken(&mut run_tx)?;
        let mut begin = Vec::new();
        let checks = if closing { Vec::new() } else { self.verify(&mut run_tx, &mut begin)? };
        // What was woken up to here begins here.
        run_tx.acting.iter_mut().for_each(|acting| acting.again = false);
        let begun = if closing { Vec::new() } else { hierarchy::begin_steps(&mut run_tx, self.agent)? };
        begin.extend(self.begun(&mut run_tx, begun)?);
        let over = self.over(&mut run_tx)?;
        let news = if closing { Vec::new() } else { self.go_on(&mut run_tx, &over, &mut begin)? };
        let adopted = if closing { Vec::new() } else { self.adopted(&mut run_tx)? };
        let under_way = self.held.len() - cut.len() + begin.len();
        let deadline = self.deadline(&mut run_tx)?;
        let at = run_tx.at;
        let acting = run_tx.acting.take().map(|acting| (acting.again, acting.look_at, acting.wanted));
        let (again, look_at, wanted) = acting.unwrap_or_default();
        let agent = Rows::agent(&mut run_tx, self.agent)?;
        let put_off = agent.put_off.is_some_and(|until| until > at);
        let told = agent.kind == AgentKind::Planner; // asked again without a retry that is counted
        let timed = run_tx.attempt()?.it.tree.retries > 0 || agent.waiting > 0 || put_off || told;
        let version = run_tx.close()?.version;
        // Only a retry, or a step that waits or is put off, gives anything a time.
        let due = if timed { store::agent::next_due(tx, self.agent, at)? } else { None };
        let again = (again || closing).then_some(at);
        let next = again.into_iter().chain(look_at).chain(due).chain(waits).chain(deadline).min();
        let nothing_to_read = wanted.is_empty() && checks.is_empty() && unread.is_empty();
        let rests = nothing_to_read && adopted.is_empty() && !news.iter().any(News::goes_on);
        let finished = under_way == 0 && (rests || closing);
        if finished {
            // Everything was read again after `hold`, so wakes up to now are answered.
            store::work::finish(tx, &self.item.seen(seen), next);
        }
        let look_in_ms = next.map(|due| due.since(at).max(1));
        let generation = seen;
        Ok(Decided {
            begin,
            cut,
            wanted,
            adopted,
            over,
            news,
            checks,
            unread,
            look_in_ms,
            finished,
            version,
            generation,
        })
    }

    /// By a holder that has lost its item: the ends alone.
    pub(super) fn report(&self, tx: &mut Tx) -> Result<(), Failure> {
        let uncounted = self.note_pauses(tx)?;
        let mut run_tx = RunTx::open(tx, &self.context, self.run)?;
        run_tx.uncounted = uncounted;
        self.record(&mut run_tx)?;
        run_tx.close().map(drop)
    }

    fn record(&self, run_tx: &mut RunTx<'_>) -> Result<(), Failure> {
        for ended in self.ended.iter() {
            let (id, number) = ended.of;
            let step = Rows::step(run_tx, id)?;
            if !hierarchy::is_current(&step, number) {
                // Late evidence. What was evaluated with its output is evaluated again, with what is recorded.
                run_tx.acting.iter_mut().for_each(|acting| acting.evaluated = Arc::default());
                continue;
            }
            self.charge(run_tx, &step, ended)?;
            let step = Rows::step(run_tx, id)?;
            let is_child = step.parent.is_some();
            match &ended.found {
                Found::Answer(answer) => {
                    if let Some(kept) = &ended.put_away {
                        kept.finalise(run_tx.tx)?;
                    }
                    run_tx.note_output(&step, &answer.output)?;
                    if is_child {
                        hierarchy::complete_child(run_tx, id, number)?;
                    } else {
                        hierarchy::complete_step(run_tx, id, number)?;
                    }
                }
                Found::Failed(failure) if is_child => hierarchy::fail_child(run_tx, id, number, &failure.failure)?,
                Found::Failed(failure) => {
                    if step.tool == ToolKind::Llm {
                        Rows::set_step(run_tx, Step { talked_out: true, ..step });
                    }
                    hierarchy::fail_step(run_tx, id, number, &failure.failure)?;
                }
                Found::ChildFailed(failed) => {
                    hierarchy::fail_dialogue(run_tx, id, number, &failed.failure, failed.tries)?;
                }
                Found::Cut if is_child => hierarchy::lose_child(run_tx, id, number, &cut_off())?,
                Found::Cut => hierarchy::lose_step(run_tx, id, number, &cut_off())?,
            }
        }
        Ok(())
    }

    /// What a call used is paid, also one that failed. Of a turn whose connection was cut or whose time was up, only we can say how much
    /// that was.
    fn charge(&self, run_tx: &mut RunTx<'_>, step: &Step, ended: &Ended) -> Result<(), Failure> {
        let (usage, calls) = match &ended.found {
            Found::Answer(answer) => (answer.usage.as_ref(), asked_calls(&answer.output)),
            Found::Failed(failure) if failure.usage.is_none() && is_unanswered(&failure.failure) => {
                return run_tx.charge_unanswered(step, ended.said);
            }
            Found::Failed(failure) => (failure.usage.as_ref(), 0),
            Found::ChildFailed(_) => return Ok(()), // it has paid for its tries itself
            Found::Cut => return run_tx.charge_unanswered(step, ended.said),
        };
        usage.map_or(Ok(()), |usage| run_tx.charge_step(step, usage, calls))
    }

    /// Aborts calls whose task, agent or run ends. Whether a step that is not idempotent had its effect stays unknown.
    fn cut(&self, run_tx: &mut RunTx<'_>) -> Result<Vec<Try>, Failure> {
        let mut cut = Vec::new();
        for Held { of: (id, number), idempotent, said } in self.held.iter().copied() {
            let step = Rows::step(run_tx, id)?;
            if !hierarchy::is_current(&step, number) {
                cut.push((id, number));
            } else if hierarchy::is_to_stop(run_tx, &step)? {
                run_tx.charge_unanswered(&step, said)?;
                hierarchy::cancel_step(run_tx, id, number, !idempotent)?;
                cut.push((id, number));
            }
        }
        Ok(cut)
    }

    /// Steps that an earlier holder began and did not end. Returns when to look at those that may still be reported, and turns of which
    /// the stored text has to be counted first.
    fn take_over(&self, run_tx: &mut RunTx<'_>) -> Result<(Option<Timestamp>, Vec<StepTry>), Failure> {
        // Of what this holder has in hand, some may have just been ended by the end of a step above it: it counts no more.
        let mut in_hand = 0;
        for Held { of: (id, number), .. } in self.held.iter().copied() {
            in_hand += i64::from(hierarchy::is_current(&Rows::step(run_tx, id)?, number));
        }
        if Rows::agent(run_tx, self.agent)?.acting <= in_hand {
            return Ok((None, Vec::new()));
        }
        let (mut wait, mut unread) = (None, Vec::new());
        for step in run_tx.acted_on(self.agent)? {
            // A machine, or a program that has taken it, works on it and reports for itself.
            let theirs = step.needs_machine() || step.tool == ToolKind::External;
            if theirs || step.fence == self.item.fence || !is_in_flight(&step) || step.by_children {
                continue;
            }
            let surely_over = self.surely_over(&step);
            if !step.idempotent && surely_over > run_tx.at {
                wait = wait.into_iter().chain([surely_over]).min();
            } else if step.parent.is_some() {
                match self.texts.get(&step.present_try()) {
                    Some(said) => run_tx.charge_unanswered(&step, *said)?,
                    None if step.asked.is_some() => {
                        unread.push(step.present_try());
                        continue;
                    }
                    None => {}
                }
                hierarchy::lose_child(run_tx, step.id, step.tries, &holder_gone())?;
            } else {
                hierarchy::lose_step(run_tx, step.id, step.tries, &holder_gone())?;
            }
        }
        Ok((wait, unread))
    }

    /// Only plans with such steps, or with models that may call for them, look for any.
    fn stop_taken(&self, run_tx: &mut RunTx<'_>) -> Result<(), Failure> {
        let mut steps = self.plan.tasks.iter().flat_map(|task| &task.steps);
        let may_have = steps.any(|step| matches!(step.tool, ToolKind::External | ToolKind::Llm));
        if may_have && Rows::agent(run_tx, self.agent)?.acting > 0 { run_tx.stop_taken(self.agent) } else { Ok(()) }
    }

    /// The time until which an earlier holder may still be alive and report: the start of the call, plus its time-out, plus the lease.
    fn surely_over(&self, step: &Step) -> Timestamp {
        let began_at = step.began_at.unwrap_or(Timestamp(0));
        began_at + step.timeout_ms.unwrap_or(0) + self.context.config.timings.lease_ms
    }

    fn expire(&self, run_tx: &mut RunTx<'_>) -> Result<(), Failure> {
        if Rows::agent(run_tx, self.agent)?.waiting > 0 {
            run_tx.expire_approvals()?;
        }
        let agent = Rows::agent(run_tx, self.agent)?;
        if agent.deadline().is_some_and(|due| due <= run_tx.at) {
            return hierarchy::expire_agent(run_tx, self.agent);
        }
        for task in Rows::tasks(run_tx, self.agent, hierarchy::Pick::Running, agent.parallel as usize)? {
            let task = Rows::task(run_tx, task)?;
            if agent.deadline_of(&task).is_some_and(|due| due <= run_tx.at) {
                hierarchy::expire_task(run_tx, task.id)?;
            }
        }
        Ok(())
    }

    fn deadline(&self, run_tx: &mut RunTx<'_>) -> Result<Option<Timestamp>, Failure> {
        let agent = Rows::agent(run_tx, self.agent)?;
        if agent.status != AgentStatus::Running || agent.ending.is_some() {
            return Ok(None);
        }
        let expiry = if agent.waiting > 0 { run_tx.next_expiry()? } else { None };
        let mut due = agent.deadline().into_iter().chain(expiry).min();
        for task in Rows::tasks(run_tx, self.agent, hierarchy::Pick::Running, agent.parallel as usize)? {
            let task = Rows::task(run_tx, task)?;
            // One whose time is up may still wait for a machine to end its command.
            let its = agent.deadline_of(&task).filter(|_| task.ending.is_none());
            due = due.into_iter().chain(its).min();
        }
        Ok(due)
    }

    fn begun(&self, run_tx: &mut RunTx<'_>, begun: Vec<StepId>) -> Result<Vec<Begin>, Failure> {
        let mut all = Vec::new();
        for id in begun {
            let step = Rows::step(run_tx, id)?;
            if !is_in_flight(&step) || step.needs_machine() || step.by_children {
                continue;
            }
            let place = Place::of(&Rows::task(run_tx, step.task)?, &step);
            let call = run_tx.call_of(&step)?.ok_or_else(|| Trouble::internal("a step began without its input"))?;
            let answer = match step.tool {
                ToolKind::Approval => Some(run_tx.approved(&step)?),
                _ => None,
            };
            all.push(self.begin(run_tx, step, Some(place), call.key, call.input, answer)?);
        }
        Ok(all)
    }

    /// What a call needs, in the transaction that begins it.
    pub(super) fn begin(
        &self,
        run_tx: &mut RunTx<'_>,
        step: Step,
        place: Option<Place>,
        key: String,
        input: Value,
        answer: Option<Value>,
    ) -> Result<Begin, Failure> {
        let mut names = self.context.tools.get(&step.tool).map(|tool| tool.secrets(&input)).unwrap_or_default();
        collect_secrets(&input, &mut names);
        Ok(Begin { step, place, key, input, secrets: secrets(run_tx, names)?, answer })
    }
}

/// The request was sent, and nothing says how it ended. An answer with a status, such as 503, is none of these.
fn is_unanswered(failure: &StepFailure) -> bool {
    failure.effect == Effect::Perhaps && matches!(failure.error.code.as_str(), "timeout" | "cut")
}

/// Calls of tools that a model's answer asks for.
fn asked_calls(answer: &Value) -> i64 {
    answer["message"]["tool_calls"].as_array().map_or(0, |calls| calls.len() as i64)
}

/// Values of these secrets. One that was deleted meanwhile is missing there, as it is here.
fn secrets(run_tx: &mut RunTx<'_>, names: Vec<String>) -> Result<BTreeMap<String, String>, Failure> {
    let mut values = BTreeMap::new();
    for name in names {
        let (installation, org) = (&run_tx.context.installation, run_tx.run.org);
        if let Ok(value) = store::secret::open(run_tx.tx, installation, org, &name) {
            values.insert(name, value);
        }
    }
    Ok(values)
}

pub(crate) fn named_secrets(input: &Value) -> Vec<String> {
    let mut names = Vec::new();
    collect_secrets(input, &mut names);
    names
}

/// Secrets stand in an input as `{"secret": NAME}`, perhaps with a prefix.
pub(crate) fn collect_secrets(input: &Value, names: &mut Vec<String>) {
    match input {
        Value::Object(fields) => {
            if let Some(Value::String(name)) = fields.get("secret") {
                names.push(name.clone());
            }
            fields.values().for_each(|field| collect_secrets(field, names));
        }
        Value::Array(items) => items.iter().for_each(|item| collect_secrets(item, names)),
        _ => {}
    }
}
