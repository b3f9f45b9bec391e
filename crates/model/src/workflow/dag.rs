//! The graph of a workflow: which nodes may begin, which path a branch takes, what takes the place of a node that failed.

use super::pattern::{Application, PatternKind, stand_in};
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

/// The output under a logical name, whichever node produced it.
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

/// Done, by itself or by the alternative that took its place; or a branch that failed for itself alone.
fn has_passed(workflow: &Workflow, node: &Node) -> bool {
    match node.status {
        N::Completed => true,
        N::Failed => match stand_in(workflow, &node.name) {
            Some(other) => has_passed(workflow, other),
            None => node.isolated && node.compensated_at.is_some(),
        },
        _ => false,
    }
}

/// The branches that a node joins: of each the node that came last, with its output or its error.
pub fn branches_of<'w>(workflow: &'w Workflow, join: &str) -> Vec<&'w Arc<Node>> {
    let of_it = |n: &&Arc<Node>| {
        n.origin.as_ref().is_some_and(|origin| origin.pattern == PatternKind::ParallelFanOut && origin.of == join)
    };
    let last = |mut node: &'w Arc<Node>| {
        while let Some(other) = stand_in(workflow, &node.name) {
            node = other;
        }
        node
    };
    workflow.nodes.iter().filter(of_it).map(last).collect()
}

/// Hash of the executed DAG's shape, for comparing workflows of the same kind.
pub fn topology(workflow: &Workflow) -> String {
    let shape: Vec<String> = workflow
        .nodes
        .iter()
        .filter(|n| n.status != N::Skipped)
        .map(|n| format!("{}<{}:{}", n.kind, n.after.join("+"), n.status))
        .collect();
    let mut hash = 0xcbf2_9ce4_8422_2325_u64; // FNV-1a: a label, not a proof
    for byte in shape.join(";").bytes() {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    }
    format!("{hash:016x}")
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

pub(super) fn fall_back_of<'w>(workflow: &'w Workflow, node: &str) -> Option<&'w str> {
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
pub(super) fn fall_back(workflow: &mut Workflow, failed: &str, at: Timestamp) -> bool {
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
    let (pattern, by, target) = (PatternKind::ConditionalBranch, failed.to_owned(), opened[0].clone());
    for node in workflow.nodes.iter_mut().filter(|n| opened.contains(&n.name)).map(Arc::make_mut) {
        node.status = N::Pending;
        node.started_at = None;
        node.ended_at = None;
    }
    workflow.applied.push(Application { pattern, by, target, nodes: opened, at });
    true
}

/// The path that a decided branch did not take.
fn is_untaken(workflow: &Workflow, name: &str) -> bool {
    let mut decided = workflow.nodes.iter().filter(|n| n.status == N::Completed).filter_map(|n| n.branch.as_ref());
    decided.any(|b| b.then == name || b.otherwise == name)
}

fn logical_of<'n>(nodes: &'n [Node], name: &str) -> Option<&'n str> {
    nodes.iter().find(|n| n.name == name).map(|n| n.logical.as_str())
}
