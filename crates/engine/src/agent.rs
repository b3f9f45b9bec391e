//! The holder of an agent's work item: begins the steps that need no machine, calls their tools outside of any transaction, and records
//! each end in the commit that begins what comes next. If the holder dies, the next holder continues from the rows: a step that
//! may be repeated is tried again; about any other step a person is asked, after its time-out and the lease have passed.

mod act;
mod commit;
mod dialogues;
mod hints;
mod large;
mod pace;
mod text;
mod verify;

pub(crate) use act::{INVALID_OUTPUT, MAX_OUTPUT_BYTES, output_problem, schema_problem};
pub(crate) use commit::{collect_secrets, named_secrets};
pub(crate) use large::{MAX_BYTES, PutAway, reference};

use crate::Engine;
use crate::call_step::CallTool;
use crate::plan_limits::PlanLimits;
use crate::planner::history;
use crate::render::{Evaluated, Fresh, Planning, Renderer, Want};
use crate::step::{Place, step_plan};
use act::{Called, Ended, Found, OpenCall, Woken, cut_all, invalid_output, no_tool, poll_acts, poll_ended};
use adapters::{Tool, ToolAnswer, ToolCall};
use commit::{AtHand, Begin, Decided};
use dialogues::Talk;
use hints::RunHints;
use model::agent::{Agent, AgentKind};
use model::log::LogId;
use model::step::{StepTry, ToolKind};
use model::time::SECOND;
use model::{AgentId, Failure, Refused, RunId, StepId, Trouble, bug};
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use store::{Item, Lane, Tx, WorkKind};

/// A holder that has lost its item waits this long for its calls to end.
const LATE_ENDS_WITHIN_MS: i64 = SECOND;
/// While a call is under way, its holder checks at least this often whether to stop.
const LOOK_EVERY_MS: i64 = 5 * SECOND;

impl Engine {
    pub(crate) async fn reconcile_agent(&self, item: Item) -> Result<(), Failure> {
        let id = AgentId(item.subject);
        let found = self.store.read_inline("agent.find", move |tx| store::agent::find(tx, id)).await?;
        let Some(agent) = found else { return self.done(item).await };
        let renderer = self.renderer(agent).await?;
        let mut planned = renderer.plan.tasks.iter().flat_map(|task| &task.steps);
        let verifiable = planned.any(|step| step.verify.is_some());
        let holder = Holder {
            engine: self,
            item,
            run: renderer.run,
            id,
            renderer,
            evaluated: Arc::default(),
            acts: Vec::new(),
            talks: Vec::new(),
            verifies: Arc::default(),
            verifiable,
            texts: Arc::default(),
        };
        holder.work().await
    }

    async fn renderer(&self, agent: Agent) -> Result<Renderer, Failure> {
        let (at, kind) = ((agent.run, agent.plan_version, agent.sequence), agent.kind);
        let context = self.context.clone();
        let read = move |tx: &mut Tx| {
            let plan = store::plan::find(tx, at.0, at.1, at.2)?;
            let plan = plan.ok_or_else(|| Trouble::internal("an agent's plan is missing"))?;
            let run = store::run::find(tx, at.0)?.ok_or_else(|| Refused::not_found("run", at.0))?;
            let shared = store::plan::shared(tx, at.0)?;
            let planning = match kind {
                AgentKind::Planner => {
                    let limits = PlanLimits::of(tx, &context, &run, shared.document.clone())?;
                    let max_agents = run.spec.plan.max_agents;
                    let max_agents = limits.as_ref().map_or(max_agents, |limits| limits.told(max_agents));
                    Some(Planning { history: Arc::new(history(tx, &run)?), max_agents, limits })
                }
                _ => None,
            };
            Ok((plan, shared, (run.org, run.name), planning))
        };
        let (plan, shared, (org, run_name), planning) = self.store.read("agent.plan", read).await?;
        Ok(Renderer {
            org,
            run: agent.run,
            run_name,
            attempt: agent.attempt,
            agent: agent.id,
            agent_name: agent.name,
            plan: Arc::new(plan),
            shared: Arc::new(shared),
            planning,
        })
    }
}

struct Holder<'e> {
    engine: &'e Engine,
    item: Item,
    run: RunId,
    id: AgentId,
    renderer: Renderer,
    evaluated: Arc<Evaluated>,
    acts: Vec<OpenCall>,
    /// Dialogues with models that go on.
    talks: Vec<Talk>,
    /// What was evaluated of the `verify` of steps whose outcome is unknown.
    verifies: Arc<BTreeMap<StepId, verify::Prepared>>,
    /// Whether the agent's plan has a `verify` at all.
    verifiable: bool,
    /// Bytes of text that turns of an earlier holder have stored.
    texts: Arc<BTreeMap<StepTry, i64>>,
}

impl Holder<'_> {
    async fn work(mut self) -> Result<(), Failure> {
        let mut hints = RunHints::new(self.engine.store.hints(), self.run);
        let mut ended = Vec::new();
        loop {
            let mut decided = self.commit(ended).await?;
            self.acts.retain(|act| !decided.cut.contains(&act.of));
            for begin in std::mem::take(&mut decided.begin) {
                let act = self.call(begin);
                self.acts.push(act);
            }
            if decided.finished {
                return Ok(());
            }
            ended = Vec::new();
            let talked = self.listen(&mut decided).await?;
            if !decided.wanted.is_empty() {
                self.evaluate(&decided.wanted, Fresh::new()).await?;
                continue;
            }
            if !decided.checks.is_empty() {
                self.look_into(&decided.checks).await?;
                continue;
            }
            if !decided.unread.is_empty() {
                self.count_texts(&decided.unread).await?;
                continue;
            }
            if talked {
                continue;
            }
            ended = self.wait(decided.look_in_ms, (decided.version, decided.generation), &mut hints).await?;
        }
    }

    /// Evaluates expressions outside of any transaction that writes.
    async fn evaluate(&mut self, wants: &[Want], fresh: Fresh) -> Result<(), Failure> {
        let found = self.renderer.evaluate(self.engine, wants, fresh).await?;
        let evaluated = Arc::make_mut(&mut self.evaluated);
        evaluated.steps.extend(found.steps);
        evaluated.tasks.extend(found.tasks);
        Ok(())
    }

    /// How much text turns have stored whose holder is gone: it is part of what they cost.
    async fn count_texts(&mut self, turns: &[StepTry]) -> Result<(), Failure> {
        for turn in turns {
            let stored = self.engine.logs.reached(*turn, self.item.fence).await?.total;
            Arc::make_mut(&mut self.texts).insert(*turn, stored);
        }
        Ok(())
    }

    /// The steps that follow what has just ended begin in the commit that records it: their expressions are evaluated before, with the
    /// outputs that the commit will record. What follows a failure is evaluated when the commit has decided what the failure means.
    async fn evaluate_next(&mut self, ended: &[Ended]) -> Result<(), Failure> {
        let (mut next, mut fresh) = (Vec::new(), Fresh::new());
        for ended in ended {
            let (Found::Answer(answer), Some(place)) = (&ended.found, ended.place) else { continue };
            fresh.insert(place, answer.output.clone());
            let follows = Place { step: place.step + 1, ..place };
            next.extend(step_plan(&self.renderer.plan, follows).map(|_| Want::Step(follows)));
        }
        if next.is_empty() { Ok(()) } else { self.evaluate(&next, fresh).await }
    }

    /// What has begun needs its evaluated input no longer, so that the holder keeps only those of steps that are about to begin.
    fn call(&mut self, begin: Begin) -> OpenCall {
        let engine = self.engine;
        let step = begin.step;
        if let Some(place) = &begin.place {
            Arc::make_mut(&mut self.evaluated).steps.remove(place);
        }
        let timeout_ms = step.timeout_ms;
        let call = ToolCall { key: begin.key, input: begin.input, secrets: begin.secrets, timeout_ms };
        let tool = match step.tool {
            ToolKind::Call => {
                let (engine, org, run) = (engine.clone(), self.renderer.org, self.run);
                Some(Arc::new(CallTool { engine, org, run, attempt: step.attempt }) as Arc<dyn Tool>)
            }
            tool => engine.context.tools.get(&tool).cloned(),
        };
        let endpoint = tool.as_ref().and_then(|tool| tool.endpoint(&call.input));
        let kind = step.tool;
        let called = endpoint.zip(step.began_at).map(|(endpoint, began_at)| Called { endpoint, began_at });
        let target = text::Target {
            store: engine.store.clone(),
            logs: engine.logs.clone(),
            run: self.run,
            log: LogId::Step(step.present_try()),
            epoch: self.item.fence,
            said: Arc::default(),
        };
        let said = target.said.clone();
        let limit = timeout_ms.map(|ms| engine.context.timer.after(ms));
        let future = Box::pin(async move {
            match (begin.answer, tool) {
                (Some(output), _) => Ok(ToolAnswer { output, usage: None }),
                (None, Some(tool)) => text::call(target, tool, call).await,
                (None, None) => Err(no_tool(step.tool)),
            }
        });
        OpenCall {
            of: (step.id, step.tries),
            place: begin.place,
            idempotent: step.idempotent,
            called,
            tool: kind,
            said,
            future,
            limit,
        }
    }

    /// One transaction. What has ended is recorded even if another holder has taken the item over: it names its try.
    async fn commit(&mut self, mut ended: Vec<Ended>) -> Result<Decided, Failure> {
        let dialogues = self.speak(&mut ended);
        let ended: Vec<Ended> = ended.into_iter().map(|ended| self.checked(ended)).collect();
        let ended = self.put_away(ended).await?;
        self.evaluate_next(&ended).await?;
        let at_hand = AtHand {
            context: self.engine.context.clone(),
            item: self.item,
            org: self.renderer.org,
            run: self.run,
            agent: self.id,
            held: self.acts.iter().map(OpenCall::held).collect(),
            ended: Arc::new(ended),
            plan: self.renderer.plan.clone(),
            evaluated: self.evaluated.clone(),
            dialogues: Arc::new(dialogues),
            verifies: self.verifies.clone(),
            verifiable: self.verifiable,
            texts: self.texts.clone(),
        };
        let late = at_hand.clone();
        let turn = Lane::Normal.of(self.run);
        let decided = self.engine.store.write(turn, "agent.advance", move |tx| at_hand.advance(tx)).await;
        match decided {
            Err(Failure::Refused(Refused::Fenced { what })) => {
                self.report_late(late).await?;
                Err(Refused::Fenced { what }.into())
            }
            decided => decided,
        }
    }

    /// Another holder has taken the item over. Calls of this one that end within a short time are reported: no other process knows how
    /// they ended. The rest are dropped, so that this process can take the item again if the other holder dies.
    async fn report_late(&mut self, mut late: AtHand) -> Result<(), Failure> {
        let mut late_ends = self.engine.context.timer.after(LATE_ENDS_WITHIN_MS);
        loop {
            if !late.ended.is_empty() {
                let report = late.clone();
                let turn = Lane::Normal.of(self.run);
                self.engine.store.write(turn, "agent.report", move |tx| report.report(tx)).await?;
            }
            if self.acts.is_empty() {
                return Ok(());
            }
            let acts = &mut self.acts;
            let ended = poll_fn(|context| match poll_ended(acts, context) {
                Poll::Ready(ended) => Poll::Ready(Some(ended)),
                Poll::Pending => late_ends.as_mut().poll(context).map(|()| None),
            });
            let Some(ended) = ended.await else { return Ok(()) };
            let ended = ended.into_iter().map(|ended| self.checked(ended)).collect();
            late.ended = Arc::new(self.put_away(ended).await?);
        }
    }

    /// An output that does not match the schema of its step, that is too large, or that is a plan with mistakes, is a failure of a call
    /// that had its effect.
    fn checked(&self, ended: Ended) -> Ended {
        let Found::Answer(answer) = &ended.found else { return ended };
        let step = ended.place.and_then(|place| step_plan(&self.renderer.plan, place));
        let schema = step.and_then(|step| step.output.as_ref());
        let problem = match ended.is_to_be_put_away() {
            true => schema_problem(&answer.output, schema),
            false => output_problem(&answer.output, schema),
        };
        let problem = problem.or_else(|| {
            let limits = step.and(self.renderer.planning.as_ref())?.limits.as_ref()?;
            limits.problem(&self.engine.context, &answer.output).map(invalid_output)
        });
        match problem {
            None => ended,
            Some(failed) => Ended { found: Found::Failed(failed.using(answer.usage.clone())), ..ended },
        }
    }

    /// Until a call ends, the process is told to stop, or there may be something to see: a hint about the run that was followed by a
    /// change, or a time.
    async fn wait(
        &mut self,
        look_in_ms: Option<i64>,
        seen: (i64, i64),
        hints: &mut RunHints,
    ) -> Result<Vec<Ended>, Failure> {
        let mut deadline = look_in_ms.map(|ms| self.engine.context.timer.after(ms));
        let mut closing = pin!(self.engine.closing.asked());
        loop {
            let mut timer = self.engine.context.timer.after(LOOK_EVERY_MS);
            let acts = &mut self.acts;
            let woken =
                poll_fn(|context| poll_acts(acts, hints, &mut timer, &mut deadline, closing.as_mut(), context)).await;
            match woken {
                Woken::Ended(ended) => return Ok(ended),
                Woken::Time => return Ok(Vec::new()),
                Woken::Closing => {
                    let cut = cut_all(&mut self.acts);
                    return Ok(if bug!(cut_unrecorded) { Vec::new() } else { cut });
                }
                Woken::Look if changed(self.engine, self.run, self.id, seen).await? => return Ok(Vec::new()),
                Woken::Look => {}
            }
        }
    }
}

/// Whether anything of the run or of the agent's item has changed since this version and generation.
async fn changed(engine: &Engine, run: RunId, agent: AgentId, seen: (i64, i64)) -> Result<bool, Failure> {
    let read = move |tx: &mut Tx| {
        let now = store::run::find(tx, run)?.map(|run| run.version);
        let item = store::work::find(tx, WorkKind::Agent, agent.0)?.map(|item| item.generation);
        Ok((now, item))
    };
    let now = engine.store.read_inline("agent.look", read).await?;
    Ok(now != (Some(seen.0), Some(seen.1)))
}
