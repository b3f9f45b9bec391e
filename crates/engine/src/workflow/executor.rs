//! The one loop that drives every workflow. The holder of a workflow's item marks a node in a transaction, acts on it outside,
//! and records the result in the next transaction. Each transaction also advances the nodes that only change rows, takes over
//! acts whose worker died, and enforces time limits. A worker that dies at any point leaves rows from which the next one goes on.

use super::advance::{advance, apply, brought, failing, find, in_run, is_wanted, undo};
use super::kind::{ActFuture, NodeKind, NodeTx, Registry, Scope, Undo, Verdict, missing};
use crate::run_tx::RunTx;
use crate::{Engine, EngineContext};
use model::time::{SECOND, deadline_without};
use model::workflow::{COMPENSATION_LIMIT_MS, NodeStatus, Workflow, WorkflowEvent, WorkflowStatus};
use model::{Failure, RunId, Timestamp, Trouble, TroubleKind, WorkflowId};
use serde_json::Value;
use std::future::poll_fn;
use std::task::Poll;
use store::{Item, Lane, Tx};

/// The longest pause between two tries of a compensation: at least five of them fit into its 5 minutes.
const LONGEST_COMPENSATION_PAUSE_MS: i64 = 60 * SECOND;

/// Works on a workflow until nothing is to be done in the world.
pub(crate) async fn work(
    engine: &Engine,
    registry: &'static Registry,
    item: Item,
    run: Option<RunId>,
) -> Result<(), Failure> {
    let turn = run.map_or(Lane::Normal.into(), |run| Lane::Normal.of(run));
    let at_hand = AtHand { context: engine.context.clone(), registry, item, run };
    let mark = {
        let at_hand = at_hand.clone();
        move |tx: &mut Tx| at_hand.step(tx, &[], None)
    };
    let mut step = engine.store.write(turn, "workflow.mark", mark).await?;
    let mut acts: Vec<NodeAct> = Vec::new();
    loop {
        acts.retain(|act| !step.cut.contains(&act.key));
        for begin in step.begin {
            let future = if begin.key.compensates {
                begin.kind.compensate(engine, begin.order.clone())
            } else {
                begin.kind.act(engine, begin.order.clone())
            };
            acts.push(NodeAct { key: begin.key, order: begin.order, future });
        }
        if let Some((kind, order)) = step.unwanted {
            undo_now(engine, kind.compensate(engine, order)).await?;
        }
        if acts.is_empty() {
            return Ok(());
        }
        let news = next(&mut acts, step.look_in_ms.map(|ms| engine.context.timer.after(ms))).await;
        let held: Vec<Key> = acts.iter().map(|act| act.key.clone()).collect();
        let at_hand = at_hand.clone();
        let record = move |tx: &mut Tx| at_hand.step(tx, &held, news.as_ref());
        step = engine.store.write(turn, "workflow.record", record).await?;
    }
}

/// Undoes what came too late to be used. What it cannot undo in 5 minutes is left to the item of the resource, which `record` woke.
async fn undo_now(engine: &Engine, mut undo: ActFuture) -> Result<(), Trouble> {
    let mut limit = engine.context.timer.after(COMPENSATION_LIMIT_MS);
    let outcome = poll_fn(|context| match undo.as_mut().poll(context) {
        Poll::Ready(found) => Poll::Ready(found.map(drop)),
        Poll::Pending => limit.as_mut().poll(context).map(|()| {
            Err(Trouble::new(TroubleKind::Timeout, "what was not wanted any more could not be undone within 5 minutes"))
        }),
    });
    outcome.await
}

/// An act that is under way in this process.
struct NodeAct {
    key: Key,
    order: Value,
    future: ActFuture,
}

#[derive(Clone, PartialEq, Eq)]
struct Key {
    node: String,
    compensates: bool,
}

/// An act that came to its end.
struct Ended {
    key: Key,
    order: Value,
    found: Result<Value, Trouble>,
}

/// Waits for the first act that ends, or until the rows must be looked at (none).
async fn next(acts: &mut Vec<NodeAct>, mut timer: Option<crate::TimerFuture>) -> Option<Ended> {
    poll_fn(|context| {
        for i in 0..acts.len() {
            if let Poll::Ready(found) = acts[i].future.as_mut().poll(context) {
                let act = acts.swap_remove(i);
                return Poll::Ready(Some(Ended { key: act.key, order: act.order, found }));
            }
        }
        match timer.as_mut().map(|timer| timer.as_mut().poll(context)) {
            Some(Poll::Ready(())) => Poll::Ready(None),
            _ => Poll::Pending,
        }
    })
    .await
}

/// What a transaction decided about the world.
#[derive(Default)]
struct Step {
    begin: Vec<Begin>,
    /// Acts whose node has run out of time or was stopped: no node waits for their results any longer.
    cut: Vec<Key>,
    unwanted: Option<(&'static dyn NodeKind, Value)>,
    look_in_ms: Option<i64>,
}

struct Begin {
    key: Key,
    kind: &'static dyn NodeKind,
    order: Value,
}

#[derive(Clone)]
struct AtHand {
    context: std::sync::Arc<EngineContext>,
    registry: &'static Registry,
    item: Item,
    run: Option<RunId>,
}

impl AtHand {
    /// One transaction: checks that the item is still ours, takes the result in, advances, and finishes the item when nothing is
    /// under way.
    fn step(&self, tx: &mut Tx, held: &[Key], ended: Option<&Ended>) -> Result<Step, Failure> {
        let seen = store::work::hold(tx, &self.item)?;
        let id = WorkflowId(self.item.subject);
        let (mut decided, at);
        match self.run {
            Some(run) => {
                let mut run_tx = RunTx::open(tx, &self.context, run)?;
                let mut workflow = run_tx.workflow(id)?.it.clone();
                decided = in_run(&mut run_tx, id, |scope| self.decide(scope, &mut workflow, held, ended))?;
                if decided.moved {
                    run_tx.workflow(id)?.set(workflow);
                }
                at = run_tx.at;
                run_tx.close()?;
            }
            None => {
                let mut workflow = store::workflow::lock(tx, id)?;
                at = tx.at();
                let mut scope = Scope::Alone { tx, context: &self.context };
                decided = self.decide(&mut scope, &mut workflow, held, ended)?;
                if decided.moved {
                    store::workflow::save(tx, &workflow)?;
                }
            }
        }
        let under_way = held.iter().filter(|key| !decided.step.cut.contains(key)).count() + decided.step.begin.len();
        if under_way == 0 {
            // Everything was read again after `hold`, so wakes up to now are answered.
            store::work::finish(tx, &self.item.seen(seen), decided.next);
        } else {
            decided.step.look_in_ms = decided.next.map(|due| due.since(at).max(1));
        }
        Ok(decided.step)
    }

    fn decide(
        &self,
        scope: &mut Scope<'_, '_>,
        workflow: &mut Workflow,
        held: &[Key],
        ended: Option<&Ended>,
    ) -> Result<Decided, Failure> {
        let mut decided = Decided::default();
        if let Some(ended) = ended {
            decided.moved |= self.record(scope, workflow, ended, &mut decided.step)?;
        }
        // A failure is compensated to its end before anything else is decided.
        let may_cancel = matches!(workflow.status, WorkflowStatus::Pending | WorkflowStatus::Running);
        if may_cancel && !is_wanted(scope, workflow)? {
            let reason = "what began it does not wait for it any more".to_owned();
            apply(scope, workflow, WorkflowEvent::CancelWanted { reason })?;
            decided.moved |= apply(scope, workflow, WorkflowEvent::CancelAsked)?;
        }
        if !workflow.status.is_end() {
            decided.moved |= take_over(scope, workflow, held)?;
            decided.moved |= self.expire(scope, workflow)?;
            let advanced = advance(scope, self.registry, workflow, false)?;
            decided.moved |= advanced.moved;
            let compensations = advanced.undo.map(|(node, order)| (Key { node, compensates: true }, order));
            let acts = advanced.acts.into_iter().map(|(node, order)| (Key { node, compensates: false }, order));
            for (key, order) in acts.chain(compensations).filter(|(key, _)| !held.contains(key)) {
                let node = find(workflow, &key.node).ok_or_else(|| missing("node", &key.node))?;
                let Ok(kind) = self.registry.kind(workflow, node) else { continue };
                if !key.compensates {
                    let node = key.node.clone();
                    decided.moved |= apply(scope, workflow, WorkflowEvent::NodeActs { node })?;
                }
                decided.step.begin.push(Begin { key, kind, order });
            }
            decided.next = next_look(scope, workflow)?;
        }
        decided.step.cut = held.iter().filter(|key| is_cut(workflow, key)).cloned().collect();
        Ok(decided)
    }

    /// Takes the result of an act. Its node may have ended meanwhile: then only the kind's own rows change.
    fn record(
        &self,
        scope: &mut Scope<'_, '_>,
        workflow: &mut Workflow,
        ended: &Ended,
        step: &mut Step,
    ) -> Result<bool, Failure> {
        let name = ended.key.node.clone();
        if ended.key.compensates {
            return compensation_ended(scope, workflow, name, &ended.found);
        }
        let node = find(workflow, &name).cloned().ok_or_else(|| missing("node", &name))?;
        let Ok(kind) = self.registry.kind(workflow, &node) else { return Ok(false) };
        let at_node = &mut NodeTx { scope, workflow, node: &node, asked: false };
        let verdict = failing(kind.record(at_node, &ended.order, &ended.found))?;
        let verdict = match verdict {
            Verdict::Unwanted(order) => {
                step.unwanted = Some((kind, order));
                return Ok(false);
            }
            _ if node.status != NodeStatus::Running => return Ok(false),
            other => brought(scope, self.registry, workflow, &name, other)?.0,
        };
        let event = match verdict {
            Verdict::Done(output) | Verdict::With { output, .. } => WorkflowEvent::NodeDone { node: name, output },
            Verdict::Failed { error, uncertain } => WorkflowEvent::NodeFailed { node: name, error, uncertain },
            Verdict::Again { error, uncertain, at } => {
                WorkflowEvent::NodeTroubled { node: name, error, uncertain, until: at }
            }
            Verdict::Cancelled => WorkflowEvent::CancelAsked,
            // The act has ended and the node has not: it is looked at from the beginning.
            Verdict::Waits(_) | Verdict::Act(_) | Verdict::Child { .. } | Verdict::Unwanted(_) => {
                WorkflowEvent::NodeTakenOver { node: name }
            }
        };
        apply(scope, workflow, event)
    }

    /// What has run out of time fails; what could not be compensated in time is named as an orphan risk. Our own outages do not
    /// count.
    fn expire(&self, scope: &mut Scope<'_, '_>, workflow: &mut Workflow) -> Result<bool, Failure> {
        let mut moved = false;
        let limits: Vec<_> = workflow
            .nodes
            .iter()
            .filter_map(|node| Some((node.name.clone(), model::workflow::time_limit(node)?)))
            .collect();
        for (node, limit) in limits {
            if has_passed(scope, limit)? {
                moved |= apply(scope, workflow, WorkflowEvent::NodeTimedOut { node })?;
            }
        }
        while let Some(limit) = model::workflow::compensation_limit(workflow)
            && let Some(node) = model::workflow::uncompensated(workflow).cloned()
            && has_passed(scope, limit)?
        {
            let name = node.name.clone();
            let event = match undo(scope, self.registry, workflow, &node)? {
                Undo::Done => WorkflowEvent::Compensated { node: name },
                Undo::Act { resource, .. } => WorkflowEvent::CompensationTimedOut { node: name, resource },
            };
            moved |= apply(scope, workflow, event)?;
        }
        Ok(moved)
    }
}

#[derive(Default)]
struct Decided {
    step: Step,
    moved: bool,
    /// When the workflow must be looked at although nothing happens.
    next: Option<Timestamp>,
}

/// Nodes that are marked as being acted on, and by no act of this process: the worker that marked them is dead or has lost the
/// item.
fn take_over(scope: &mut Scope<'_, '_>, workflow: &mut Workflow, held: &[Key]) -> Result<bool, Failure> {
    let is_held = |name: &str| held.iter().any(|key| !key.compensates && key.node == name);
    let left: Vec<String> =
        workflow.nodes.iter().filter(|n| n.in_hand && !is_held(&n.name)).map(|n| n.name.clone()).collect();
    let mut moved = false;
    for node in left {
        tracing::info!(workflow = %workflow.id, node, "taken over: the worker that acted on it is gone");
        moved |= apply(scope, workflow, WorkflowEvent::NodeTakenOver { node })?;
    }
    Ok(moved)
}

fn compensation_ended(
    scope: &mut Scope<'_, '_>,
    workflow: &mut Workflow,
    node: String,
    found: &Result<Value, Trouble>,
) -> Result<bool, Failure> {
    let waits_for_it = model::workflow::uncompensated(workflow).is_some_and(|failed| failed.name == node);
    if !waits_for_it {
        return Ok(false);
    }
    let event = match found {
        Ok(_) => WorkflowEvent::Compensated { node },
        Err(trouble) => {
            // The longer it has been tried, the longer is the pause: 1 s, then as long as all tries together so far.
            let at = scope.at();
            let tried_ms = workflow.rolling_back_since.map_or(0, |since| at.since(since));
            let pause_ms = tried_ms.clamp(SECOND, LONGEST_COMPENSATION_PAUSE_MS);
            WorkflowEvent::CompensationTroubled { node, error: trouble.what.clone(), until: at + pause_ms }
        }
    };
    apply(scope, workflow, event)
}

/// A cancelled workflow's act goes on to its end, because only its result says what there is to undo.
fn is_cut(workflow: &Workflow, key: &Key) -> bool {
    if key.compensates {
        return model::workflow::uncompensated(workflow).is_none_or(|failed| failed.name != key.node);
    }
    let failed = find(workflow, &key.node).is_some_and(|node| node.status == NodeStatus::Failed);
    failed && workflow.status != WorkflowStatus::Cancelled
}

/// The next try or limit, our own outages taken out of limits.
fn next_look(scope: &mut Scope<'_, '_>, workflow: &Workflow) -> Result<Option<Timestamp>, Failure> {
    let mut next = model::workflow::next_try(workflow);
    let limits = workflow.nodes.iter().filter_map(|node| model::workflow::time_limit(node));
    for limit in limits.chain(model::workflow::compensation_limit(workflow)) {
        let due = deadline(scope, limit)?;
        next = Some(next.map_or(due, |next| next.min(due)));
    }
    Ok(next)
}

fn has_passed(scope: &mut Scope<'_, '_>, limit: (Timestamp, i64)) -> Result<bool, Failure> {
    let now = scope.at();
    // Outages can only make a limit later: most looks need not ask for them.
    Ok(limit.0 + limit.1 <= now && deadline(scope, limit)? <= now)
}

fn deadline(scope: &mut Scope<'_, '_>, (from, ms): (Timestamp, i64)) -> Result<Timestamp, Failure> {
    Ok(deadline_without(from, ms, &store::worker::outages(scope.tx(), from)?))
}
