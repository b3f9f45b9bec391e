//! The part of a workflow that happens inside a transaction: nodes are looked at until a round changes nothing. What must be
//! done in the world is only collected here; `executor` does it.

use super::kind::{NodeError, NodeTx, Registry, Scope, Undo, Verdict, to_value};
use crate::intents;
use crate::manifest::{self, open_manifest};
use crate::run_tx::RunTx;
use model::workflow::{
    Intent, Node, NodeStatus, OrphanRisk, Workflow, WorkflowConsequence, WorkflowEvent, WorkflowStatus,
};
use model::{Failure, ManifestId, Outcome, Refused, Timestamp, WorkflowId};
use serde_json::Value;
use std::sync::Arc;
use store::{NewEvent, WorkKind};

/// What came of looking at all nodes.
#[derive(Default)]
pub(crate) struct Advanced {
    pub(crate) moved: bool,
    /// Something new is to be done in the world.
    pub(crate) begun: bool,
    /// Running nodes that want an act, with their orders.
    pub(crate) acts: Vec<(String, Value)>,
    /// The failed node whose compensation wants an act.
    pub(crate) undo: Option<(String, Value)>,
}

/// Brings a run's workflow to where its rows are, inside the run's transaction. Called after every event of the workflow's job;
/// `asked`: a node that waits for a machine decides again.
pub(crate) fn advance_of_run(run_tx: &mut RunTx<'_>, id: WorkflowId, asked: bool) -> Result<(), Failure> {
    if let Some(again) = run_tx.advancing.get_mut(&id) {
        *again = true; // a node of this very workflow caused the event: the loop below it goes round once more
        return Ok(());
    }
    let mut workflow = run_tx.workflow(id)?.it.clone();
    if workflow.status.is_end() {
        return Ok(());
    }
    let advanced = in_run(run_tx, id, |scope| advance(scope, intents::registry(), &mut workflow, asked))?;
    if advanced.begun {
        run_tx.wake(WorkKind::Workflow, id.0, run_tx.at);
    } else if let Some(due) = first_limit(&workflow).filter(|_| advanced.moved) {
        run_tx.wake(WorkKind::Workflow, id.0, due);
    }
    if advanced.moved {
        run_tx.workflow(id)?.set(workflow);
    }
    Ok(())
}

/// Runs `f` on the workflow's transaction; meanwhile the events that its nodes cause do not advance it from within.
pub(crate) fn in_run<T>(
    run_tx: &mut RunTx<'_>,
    id: WorkflowId,
    f: impl FnOnce(&mut Scope<'_, '_>) -> Result<T, Failure>,
) -> Result<T, Failure> {
    run_tx.advancing.insert(id, false);
    let done = f(&mut Scope::Run(run_tx));
    run_tx.advancing.remove(&id);
    done
}

/// Fails a node that runs, and brings the workflow to what follows. A node that does not run stays as it is.
pub(crate) fn fail_node(run_tx: &mut RunTx<'_>, id: WorkflowId, node: &str, error: &str) -> Result<(), Failure> {
    let mut workflow = run_tx.workflow(id)?.it.clone();
    if find(&workflow, node).is_none_or(|node| node.status != NodeStatus::Running) {
        return Ok(());
    }
    let event = WorkflowEvent::NodeFailed { node: node.to_owned(), error: error.to_owned(), uncertain: false };
    if in_run(run_tx, id, |scope| apply(scope, &mut workflow, event))? {
        run_tx.workflow(id)?.set(workflow);
    }
    advance_of_run(run_tx, id, false)
}

/// When a node or a compensation must be looked at although nothing happens. Our own outages can only make that later.
fn first_limit(workflow: &Workflow) -> Option<Timestamp> {
    let limits = workflow.nodes.iter().filter_map(|node| model::workflow::time_limit(node));
    let limits = limits.chain(model::workflow::compensation_limit(workflow)).map(|(from, ms)| from + ms);
    limits.chain(model::workflow::next_try(workflow)).min()
}

/// Looks at every node that may begin or runs, and at the failed node that is to be compensated, until a round changes nothing.
pub(crate) fn advance(
    scope: &mut Scope<'_, '_>,
    registry: &Registry,
    workflow: &mut Workflow,
    mut asked: bool,
) -> Result<Advanced, Failure> {
    let mut advanced = Advanced::default();
    if workflow.status == WorkflowStatus::Pending {
        advanced.moved = apply(scope, workflow, WorkflowEvent::Begun)?;
    }
    loop {
        advanced.acts.clear();
        let mut moved = false;
        for name in open_nodes(workflow) {
            let looked = judge(scope, registry, workflow, &name, asked)?;
            let (verdict, brought) = brought(scope, registry, workflow, &name, looked)?;
            moved |= brought;
            asked = false; // answered by the first node that is open
            let Some((event, ends)) = event_of(scope, workflow, &mut advanced.acts, name, verdict) else { continue };
            let applied = apply(scope, workflow, event)?;
            moved |= applied;
            if applied && ends {
                break; // what may begin now is another question
            }
        }
        if !moved {
            (moved, advanced.undo) = compensate(scope, registry, workflow)?;
        }
        advanced.moved |= moved;
        moved |= take_again(scope, workflow.id);
        if !moved || workflow.status.is_end() {
            let nobody_acts = |(name, _): &(String, Value)| find(workflow, name).is_some_and(|node| !node.in_hand);
            let wanted = advanced.undo.is_some() || advanced.acts.iter().any(nobody_acts);
            advanced.begun = wanted && !workflow.status.is_end();
            return Ok(advanced);
        }
    }
}

/// The event that a verdict means, and whether it ends something. None: nothing has changed.
fn event_of(
    scope: &mut Scope<'_, '_>,
    workflow: &Workflow,
    acts: &mut Vec<(String, Value)>,
    node: String,
    verdict: Verdict,
) -> Option<(WorkflowEvent, bool)> {
    let in_pause =
        |at: Timestamp| find(workflow, &node).is_some_and(|n| n.waiting_until.is_some_and(|until| until > at));
    Some(match verdict {
        Verdict::Act(_) if in_pause(scope.at()) => return None,
        Verdict::Act(order) => {
            acts.push((node.clone(), order));
            (WorkflowEvent::NodeBegun { node }, false)
        }
        Verdict::Done(output) | Verdict::With { output, .. } => (WorkflowEvent::NodeDone { node, output }, true),
        Verdict::Child { .. } => (WorkflowEvent::NodeWaits { node, until: None }, false),
        Verdict::Waits(until) => (WorkflowEvent::NodeWaits { node, until }, false),
        Verdict::Again { error, uncertain, at } => {
            (WorkflowEvent::NodeTroubled { node, error, uncertain, until: at }, false)
        }
        Verdict::Failed { error, uncertain } => (WorkflowEvent::NodeFailed { node, error, uncertain }, true),
        // A failure is compensated to its end before anything else is decided.
        Verdict::Cancelled if workflow.status == WorkflowStatus::RollingBack => return None,
        Verdict::Cancelled => (WorkflowEvent::CancelAsked, true),
        Verdict::Unwanted(_) => return None,
    })
}

fn judge(
    scope: &mut Scope<'_, '_>,
    registry: &Registry,
    workflow: &Workflow,
    name: &str,
    asked: bool,
) -> Result<Verdict, Failure> {
    let Some(node) = find(workflow, name) else { return Ok(Verdict::Waits(None)) };
    if let Some(child) = node.child {
        return of_child(scope, workflow, child);
    }
    let looked =
        registry.kind(workflow, node).and_then(|kind| kind.inside(&mut NodeTx { scope, workflow, node, asked }));
    failing(looked)
}

/// What a verdict changes beside its node, and whether it did: patterns are applied, a child is begun. What the model refuses fails
/// the node.
pub(crate) fn brought(
    scope: &mut Scope<'_, '_>,
    registry: &Registry,
    workflow: &mut Workflow,
    name: &str,
    verdict: Verdict,
) -> Result<(Verdict, bool), Failure> {
    let brought = match verdict {
        Verdict::With { output, patterns } => {
            let mut events =
                patterns.into_iter().map(|pattern| WorkflowEvent::PatternAsked { by: name.to_owned(), pattern });
            let put: Result<bool, Failure> =
                events.try_fold(false, |put, event| Ok(apply(scope, workflow, event)? | put));
            put.map(|put| (Verdict::Done(output), put))
        }
        Verdict::Child { intent, input } => {
            begin_child(scope, registry, workflow, name, (intent, &input)).map(|begun| (Verdict::Waits(None), begun))
        }
        other => Ok((other, false)),
    };
    match brought {
        Err(Failure::Refused(refused)) => Ok((Verdict::Failed { error: refused.to_string(), uncertain: false }, false)),
        other => other,
    }
}

/// The child's row, manifest and item stand in the same commit as the node that waits for it.
fn begin_child(
    scope: &mut Scope<'_, '_>,
    registry: &Registry,
    workflow: &mut Workflow,
    node: &str,
    (intent, input): (Intent, &Value),
) -> Result<bool, Failure> {
    let blueprint = registry.blueprint(intent).ok_or_else(|| Refused::not_found("intent", intent))?;
    let (at, tx) = (scope.at(), scope.tx());
    let (id, manifest) = (WorkflowId(tx.next_id()), ManifestId(tx.next_id()));
    if !apply(scope, workflow, WorkflowEvent::ChildBegun { node: node.to_owned(), child: id })? {
        return Ok(false);
    }
    let mut child = blueprint.draft((id, manifest, workflow.org), input, at);
    (child.parent, child.depth) = (Some(workflow.id), workflow.depth + 1);
    let tx = scope.tx();
    open_manifest(tx, &child)?;
    store::workflow::insert(tx, &child)?;
    tx.wake(WorkKind::Workflow, id.0, at);
    Ok(true)
}

/// A node ends as its child does. What a child has made is its parent's from then on: its manifest is sealed.
fn of_child(scope: &mut Scope<'_, '_>, workflow: &Workflow, id: WorkflowId) -> Result<Verdict, Failure> {
    let tx = scope.tx();
    let child = store::workflow::find(tx, id)?.ok_or_else(|| Refused::not_found("workflow", id))?;
    match child.status {
        WorkflowStatus::Completed => {
            let made = store::manifest::resources(tx, child.manifest)?;
            store::manifest::own(tx, workflow.manifest, &made)?;
            Ok(Verdict::Done(to_value(&model::workflow::outputs(&child))))
        }
        WorkflowStatus::Failed | WorkflowStatus::Cancelled => {
            let why = child.error.unwrap_or_else(|| child.status.to_string());
            Ok(Verdict::Failed { error: format!("{id}: {why}"), uncertain: false })
        }
        _ => Ok(Verdict::Waits(None)),
    }
}

/// Whether the node that began this workflow still waits for it.
pub(crate) fn is_wanted(scope: &mut Scope<'_, '_>, workflow: &Workflow) -> Result<bool, Failure> {
    let Some(parent) = workflow.parent else { return Ok(true) };
    let parent = store::workflow::find(scope.tx(), parent)?;
    let waits = |n: &Arc<Node>| n.child == Some(workflow.id) && !n.status.is_end();
    Ok(parent.is_some_and(|parent| parent.nodes.iter().any(waits)))
}

/// What fails a node is its verdict; what breaks the transaction stays an error.
pub(crate) fn failing(looked: Result<Verdict, NodeError>) -> Result<Verdict, Failure> {
    match looked {
        Ok(verdict) => Ok(verdict),
        Err(NodeError::Fails(error)) => Ok(Verdict::Failed { error, uncertain: false }),
        Err(NodeError::Broken(failure)) => Err(failure),
    }
}

/// Compensates the failed node whose turn it is as far as rows can; the rest is returned as an order.
fn compensate(
    scope: &mut Scope<'_, '_>,
    registry: &Registry,
    workflow: &mut Workflow,
) -> Result<(bool, Option<(String, Value)>), Failure> {
    let Some(node) = model::workflow::uncompensated(workflow).cloned() else { return Ok((false, None)) };
    let now = scope.at();
    if node.waiting_until.is_some_and(|until| until > now) {
        return Ok((false, None));
    }
    match undo(scope, registry, workflow, &node)? {
        Undo::Done => Ok((apply(scope, workflow, WorkflowEvent::Compensated { node: node.name.clone() })?, None)),
        Undo::Act { order, .. } => Ok((false, Some((node.name.clone(), order)))),
    }
}

pub(crate) fn undo(
    scope: &mut Scope<'_, '_>,
    registry: &Registry,
    workflow: &Workflow,
    node: &Node,
) -> Result<Undo, Failure> {
    let undone =
        registry.kind(workflow, node).and_then(|kind| kind.undo(&mut NodeTx { scope, workflow, node, asked: false }));
    match undone {
        Ok(undo) => Ok(undo),
        // A kind that cannot say what it made has nothing to undo; the log names it.
        Err(NodeError::Fails(error)) => {
            tracing::error!(workflow = %workflow.id, node = node.name, error, "a failed node cannot be compensated");
            Ok(Undo::Done)
        }
        Err(NodeError::Broken(failure)) => Err(failure),
    }
}

/// One event of a workflow. Seals its manifest when it ends and publishes what may be left behind.
pub(crate) fn apply(scope: &mut Scope<'_, '_>, workflow: &mut Workflow, event: WorkflowEvent) -> Result<bool, Failure> {
    let at = scope.at();
    let Outcome::Moved { next, consequences } = model::workflow::apply(workflow, &event, at)? else {
        return Ok(false);
    };
    let was_open = |id| workflow.nodes.iter().any(|n| n.child == id && !n.status.is_end());
    let ended = next.nodes.iter().filter(|n| n.child.is_some() && n.status.is_end() && was_open(n.child));
    for child in ended.filter_map(|n| n.child).collect::<Vec<_>>() {
        scope.tx().wake(WorkKind::Workflow, child.0, at); // without a parent that waits for it, it ends too
    }
    *workflow = next;
    for consequence in consequences {
        match consequence {
            WorkflowConsequence::OrphanRisk(risk) => publish_risk(scope, workflow, &risk),
            WorkflowConsequence::Ended { outcome } => {
                let (tx, context) = scope.tx_and_context();
                manifest::seal(tx, context, workflow.manifest, outcome)?;
                if let Some(parent) = workflow.parent {
                    scope.tx().wake(WorkKind::Workflow, parent.0, at);
                }
            }
        }
    }
    Ok(true)
}

fn publish_risk(scope: &mut Scope<'_, '_>, workflow: &Workflow, risk: &OrphanRisk) {
    let resource = &risk.resource;
    tracing::warn!(workflow = %workflow.id, node = risk.node, kind = %resource.kind, name = resource.name, "it may still exist: its compensation took longer than 5 minutes");
    let body = store::body!({
        "workflow": workflow.id, "node": risk.node, "kind": resource.kind, "name": resource.name,
        "provider": resource.provider, "error": risk.error,
    });
    let run = match scope {
        Scope::Run(run_tx) => Some(run_tx.run.id),
        Scope::Alone { .. } => None,
    };
    scope.tx().event(NewEvent { org: workflow.org, run, kind: "workflow.orphan_risk", body });
}

/// Whether a node of this workflow has caused an event that must be looked at.
fn take_again(scope: &mut Scope<'_, '_>, id: WorkflowId) -> bool {
    match scope {
        Scope::Run(run_tx) => run_tx.advancing.get_mut(&id).is_some_and(std::mem::take),
        Scope::Alone { .. } => false,
    }
}

/// Those that run, then those that may begin.
fn open_nodes(workflow: &Workflow) -> Vec<String> {
    if workflow.status.is_end() {
        return Vec::new();
    }
    let running = workflow.nodes.iter().filter(|n| n.status == NodeStatus::Running);
    running.chain(model::workflow::ready(workflow)).map(|node| node.name.clone()).collect()
}

pub(crate) fn find<'w>(workflow: &'w Workflow, name: &str) -> Option<&'w Arc<Node>> {
    workflow.nodes.iter().find(|node| node.name == name)
}
