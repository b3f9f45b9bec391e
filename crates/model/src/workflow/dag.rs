//! The graph of a workflow: which nodes may begin, which path a branch takes, what takes the place of a node that failed.

use super::{Branch, MAX_ALTERNATIVES, N, Node, S, Workflow, close, find};
use crate::{Refused, Timestamp};
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The nodes that may begin now, in the order of the document.
pub fn ready(workflow: &Workflow) -> Vec<&Arc<Node>> {
    if workflow.status != S::Running {
        return Vec::new();
    }
    workflow
        .nodes
        .iter()
        .filter(|node| node.status == N::Pending && node.branch.is_none() && is_ready(workflow, node))
        .collect()
}

/// The output under a logical name, whoever produced it.
pub fn output<'w>(workflow: &'w Workflow, logical: &str) -> Option<&'w Value> {
    workflow
        .nodes
        .iter()
        .rev()
        .filter(|n| n.logical == logical && n.status == N::Completed)
        .find_map(|n| n.output.as_ref())
}

/// Logical names with their outputs, for people.
pub fn outputs(workflow: &Workflow) -> BTreeMap<&str, &Value> {
    workflow.nodes.iter().filter_map(|n| n.output.as_ref().map(|o| (n.logical.as_str(), o))).collect()
}

/// Refuses what is not a DAG, names unknown nodes, or exceeds a pattern's limit.
pub fn check(nodes: &[Node]) -> Result<(), Refused> {
    let refuse = |why: String| Err(Refused::invalid("workflow", why));
    for (i, node) in nodes.iter().enumerate() {
        if nodes[..i].iter().any(|earlier| earlier.name == node.name) {
            return refuse(format!("two nodes are named {}", node.name));
        }
        // A node may only follow nodes before it: no cycle can be written down.
        if let Some(unknown) = node.after.iter().find(|after| !nodes[..i].iter().any(|earlier| earlier.name == **after))
        {
            return refuse(format!("{} follows {unknown}, which does not stand before it", node.name));
        }
        if node.alternatives.len() >= MAX_ALTERNATIVES {
            return refuse(format!("{} has more than {MAX_ALTERNATIVES} tries", node.name));
        }
        if let Some(branch) = &node.branch
            && !(nodes.iter().any(|n| n.name == branch.then) && nodes.iter().any(|n| n.name == branch.otherwise))
        {
            return refuse(format!("{} branches to a node that is not there", node.name));
        }
        if let Some(branch) = &node.branch
            && branch.on_error
            && logical_of(nodes, &branch.then) != logical_of(nodes, &branch.otherwise)
        {
            return refuse(format!("{} falls back to a node with another logical name", node.name));
        }
    }
    Ok(())
}

fn is_ready(workflow: &Workflow, node: &Node) -> bool {
    let before = || node.after.iter().filter_map(|name| workflow.nodes.iter().find(|n| n.name == *name));
    let open = before().any(|n| !has_passed(workflow, n) && !is_bypassed(workflow, n));
    !open && (node.after.is_empty() || before().any(|n| has_passed(workflow, n)))
}

/// Done, by itself or by the alternative that took its place.
fn has_passed(workflow: &Workflow, node: &Node) -> bool {
    let done = |n: &Arc<Node>| n.logical == node.logical && n.status == N::Completed;
    node.status == N::Completed || (has_alternative(workflow, node) && workflow.nodes.iter().any(done))
}

/// On a path that is not taken, or no longer.
fn is_bypassed(workflow: &Workflow, node: &Node) -> bool {
    node.status == N::Skipped || has_fallen_back(workflow, node)
}

/// A node that has not begun may begin, or end at once, only when everything before it is settled.
pub(super) fn may_begin(workflow: &Workflow, name: &str) -> Result<(), Refused> {
    let node = find(workflow, name)?;
    let held_back = node.status == N::Pending && (workflow.status != S::Running || !is_ready(workflow, node));
    if held_back { Err(Refused::not_from("node", node.status, "begin yet", &[])) } else { Ok(()) }
}

fn has_fallen_back(workflow: &Workflow, node: &Node) -> bool {
    let opened = |name: &str| workflow.nodes.iter().any(|n| n.name == name && n.status != N::Skipped);
    node.status == N::Failed && fall_back_of(workflow, &node.name).is_some_and(opened)
}

/// An alternative stands directly behind the node whose place it takes.
fn has_alternative(workflow: &Workflow, node: &Node) -> bool {
    let behind = || workflow.nodes.iter().skip_while(|n| n.name != node.name).nth(1);
    node.status == N::Failed && behind().is_some_and(|n| n.name.starts_with(&format!("{}#", node.logical)))
}

fn fall_back_of<'w>(workflow: &'w Workflow, node: &str) -> Option<&'w str> {
    let mut branches = workflow.nodes.iter().filter_map(|n| n.branch.as_ref());
    branches.find(|b| b.on_error && b.then == node).map(|b| b.otherwise.as_str())
}

/// Branches are decided as soon as what decides them is known; the path not taken is skipped, to its last node.
pub(super) fn settle_branches(workflow: &mut Workflow, at: Timestamp) {
    while decide_branches(workflow, at) || skip_unreachable(workflow, at) {}
}

/// A node all of whose predecessors are on paths not taken will never run.
fn skip_unreachable(workflow: &mut Workflow, at: Timestamp) -> bool {
    let bypassed = |name: &String| workflow.nodes.iter().any(|n| n.name == *name && is_bypassed(workflow, n));
    let unreachable = |n: &&Arc<Node>| n.status == N::Pending && !n.after.is_empty() && n.after.iter().all(bypassed);
    let Some(name) = workflow.nodes.iter().find(unreachable).map(|n| n.name.clone()) else { return false };
    close(workflow, &name, N::Skipped, at);
    true
}

fn decide_branches(workflow: &mut Workflow, at: Timestamp) -> bool {
    let due: Vec<(usize, Branch)> = workflow
        .nodes
        .iter()
        .enumerate()
        .filter(|(_, n)| n.branch.is_some() && n.status == N::Pending && is_ready(workflow, n))
        .filter_map(|(i, n)| n.branch.clone().map(|b| (i, b)))
        .collect();
    let decided = !due.is_empty();
    for (i, branch) in due {
        let first = output(workflow, &branch.decided_by)
            .and_then(|o| o.get(&branch.field))
            .and_then(Value::as_bool)
            .unwrap_or(false);
        let skipped = if first { &branch.otherwise } else { &branch.then };
        close(workflow, skipped, N::Skipped, at);
        let node = Arc::make_mut(&mut workflow.nodes[i]);
        node.status = N::Completed;
        node.started_at = Some(at);
        node.ended_at = Some(at);
        node.output = Some(serde_json::json!({ "took": if first { &branch.then } else { &branch.otherwise } }));
    }
    decided
}

/// Conditional branch with `on_error`: the other path is opened again, to its last node.
pub(super) fn fall_back(workflow: &mut Workflow, failed: &str) -> bool {
    let other = fall_back_of(workflow, failed).map(str::to_owned);
    let Some(first) = other.filter(|name| workflow.nodes.iter().any(|n| n.name == *name && n.status == N::Skipped))
    else {
        return false;
    };
    // Nodes stand after what they follow, so one pass finds all that were skipped because of the first.
    let mut opened = vec![first];
    for i in 0..workflow.nodes.len() {
        let node = &workflow.nodes[i];
        let follows = node.after.iter().any(|before| opened.contains(before));
        if node.status == N::Skipped && follows && !is_untaken(workflow, &node.name) {
            opened.push(node.name.clone());
        }
    }
    for node in workflow.nodes.iter_mut().filter(|n| opened.contains(&n.name)).map(Arc::make_mut) {
        node.status = N::Pending;
        node.started_at = None;
        node.ended_at = None;
    }
    true
}

/// The path that a decided branch did not take.
fn is_untaken(workflow: &Workflow, name: &str) -> bool {
    let mut decided = workflow.nodes.iter().filter(|n| n.status == N::Completed).filter_map(|n| n.branch.as_ref());
    decided.any(|b| b.then == name || b.otherwise == name)
}

/// Retry-with-alternative: a new node under the same logical name, with its own parameters.
pub(super) fn alternative(workflow: &mut Workflow, failed: &str) -> bool {
    let Some(i) = workflow.nodes.iter().position(|n| n.name == failed) else { return false };
    if workflow.nodes[i].alternatives.is_empty() {
        return false;
    }
    let mut rest = workflow.nodes[i].alternatives.clone();
    let chosen = rest.remove(0);
    let template = &workflow.nodes[i];
    let number = workflow.nodes.iter().filter(|n| n.logical == template.logical).count() + 1;
    let mut node = Node::new(&format!("{}#{number}", template.logical), &[], template.timeout_ms)
        .as_logical(&template.logical)
        .with_alternatives(rest);
    node.kind = template.kind.clone();
    node.after = template.after.clone();
    node.idempotent = template.idempotent;
    node.parameters = chosen.parameters;
    workflow.nodes.insert(i + 1, Arc::new(node));
    true
}

fn logical_of<'n>(nodes: &'n [Node], name: &str) -> Option<&'n str> {
    nodes.iter().find(|n| n.name == name).map(|n| n.logical.as_str())
}
