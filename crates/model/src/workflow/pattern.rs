//! The four patterns: what changes a workflow's nodes while it runs. Each change is stored with the pattern that made it, in the same
//! document. A decided branch is stored in its own node; `applied` has the three others, and a branch that fell back.

use super::dag::fall_back_of;
use super::{Alternative, MAX_ALTERNATIVES, MAX_FAN_OUT, MAX_NODES, N, Node, Workflow, find};
use crate::{Refused, Timestamp, string_enum};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::sync::Arc;

string_enum! {
    pub enum PatternKind {
        InsertAndReconverge = "insert-and-reconverge", ConditionalBranch = "conditional-branch",
        ParallelFanOut = "parallel-fan-out", RetryWithAlternative = "retry-with-alternative",
    }
}
string_enum! {
    /// What the failure of one branch means for the others: their end, or nothing.
    pub enum FanOutMode { FirstFailure = "first-failure", Isolate = "isolate" }
}

/// A node that a pattern brings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Addition {
    pub name: String,
    pub kind: String,
    pub parameters: Value,
    pub timeout_ms: Option<i64>,
    pub idempotent: bool,
}

/// A change that a node asks for. Conditional branches stand in the blueprint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Pattern {
    /// These run beside each other, and `before` waits for all of them.
    Insert { before: String, nodes: Vec<Addition> },
    /// These follow the node that asks, independent of each other, and `join` follows them in its place.
    FanOut { join: String, branches: Vec<Addition>, mode: FanOutMode },
    /// What is tried in turn when `of` has failed and is compensated.
    Alternatives { of: String, alternatives: Vec<Alternative> },
}

/// Why a node that is not in the blueprint is there: `of` is the node that waits for it, or whose place it takes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    pub pattern: PatternKind,
    pub of: String,
}

/// A pattern that was applied: by which node (the one that asked, or that failed), on which, and the nodes that it brought or opened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Application {
    pub pattern: PatternKind,
    pub by: String,
    pub target: String,
    pub nodes: Vec<String>,
    pub at: Timestamp,
}

/// Applies what a node asks for. False: it was applied before.
pub(super) fn put(workflow: &mut Workflow, by: &str, pattern: &Pattern, at: Timestamp) -> Result<bool, Refused> {
    match pattern {
        Pattern::Insert { before, nodes } => {
            let after = place_of_inserted(workflow, by, before)?;
            let origin = Origin { pattern: PatternKind::InsertAndReconverge, of: before.clone() };
            add(workflow, by, nodes, (after, origin, false), at)
        }
        Pattern::FanOut { join, branches, mode } => {
            let origin = Origin { pattern: PatternKind::ParallelFanOut, of: join.clone() };
            let follows = find(workflow, join)?.after.iter().any(|before| before == by);
            if !follows && !is_applied(workflow, by, &origin) {
                return refuse(format!("{join} does not follow {by}, so it cannot join its branches"));
            }
            add(workflow, by, branches, (vec![by.to_owned()], origin, *mode == FanOutMode::Isolate), at)
        }
        Pattern::Alternatives { of, alternatives } => give(workflow, of, alternatives),
    }
}

/// What an inserted node follows: what the node that waits for it follows, but for what was inserted there before.
fn place_of_inserted(workflow: &Workflow, by: &str, before: &str) -> Result<Vec<String>, Refused> {
    let inserted = |node: &Node| node.origin.as_ref().is_some_and(|o| o.pattern == PatternKind::InsertAndReconverge);
    if inserted(find(workflow, before)?) || inserted(find(workflow, by)?) {
        return refuse(format!("{by} may not insert before {before}: insertions are one deep"));
    }
    let names = find(workflow, before)?.after.iter();
    Ok(names.filter(|name| !find(workflow, name).is_ok_and(inserted)).cloned().collect())
}

fn is_applied(workflow: &Workflow, by: &str, origin: &Origin) -> bool {
    workflow.applied.iter().any(|a| a.pattern == origin.pattern && a.by == by && a.target == origin.of)
}

/// New nodes directly before the one that waits for them.
fn add(
    workflow: &mut Workflow,
    by: &str,
    additions: &[Addition],
    (after, origin, isolated): (Vec<String>, Origin, bool),
    at: Timestamp,
) -> Result<bool, Refused> {
    if additions.is_empty() || is_applied(workflow, by, &origin) {
        return Ok(false);
    }
    let target = find(workflow, &origin.of)?;
    if target.status != N::Pending {
        return refuse(format!("{} is {}: only what has not begun can wait for more", origin.of, target.status));
    }
    if additions.len() > MAX_FAN_OUT || workflow.nodes.len() + additions.len() > MAX_NODES {
        let (count, most) = (additions.len(), MAX_FAN_OUT);
        return refuse(format!("{by} asks for {count} nodes: at most {most}, and {MAX_NODES} in a workflow"));
    }
    let names: Vec<String> = additions.iter().map(|addition| addition.name.clone()).collect();
    for (i, name) in names.iter().enumerate() {
        if names[..i].contains(name) || find(workflow, name).is_ok() {
            return refuse(format!("two nodes are named {name}"));
        }
    }
    let (pattern, target) = (origin.pattern, origin.of.clone());
    let place = workflow.nodes.iter().position(|n| n.name == target).unwrap_or(workflow.nodes.len());
    let waits = Arc::make_mut(&mut workflow.nodes[place]);
    if pattern == PatternKind::ParallelFanOut {
        waits.after.retain(|before| before != by);
    }
    waits.after.extend(names.iter().cloned());
    let made = additions.iter().map(|addition| {
        let mut node = Node::new(&addition.name, &[], addition.timeout_ms);
        node.kind.clone_from(&addition.kind);
        node.after.clone_from(&after);
        node.parameters.clone_from(&addition.parameters);
        (node.idempotent, node.isolated, node.origin) = (addition.idempotent, isolated, Some(origin.clone()));
        Arc::new(node)
    });
    workflow.nodes.splice(place..place, made.collect::<Vec<_>>());
    workflow.applied.push(Application { pattern, by: by.to_owned(), target, nodes: names, at });
    Ok(true)
}

fn give(workflow: &mut Workflow, of: &str, alternatives: &[Alternative]) -> Result<bool, Refused> {
    let node = find(workflow, of)?;
    if node.alternatives == alternatives {
        return Ok(false);
    }
    if node.status.is_end() && node.status != N::Skipped {
        return refuse(format!("{of} is {}: nothing can take its place any more", node.status));
    }
    if alternatives.len() >= MAX_ALTERNATIVES {
        return refuse(format!("{of} has more than {MAX_ALTERNATIVES} tries"));
    }
    let node = workflow.nodes.iter_mut().find(|n| n.name == of).map(Arc::make_mut).expect("found above");
    node.alternatives = alternatives.to_vec();
    Ok(true)
}

/// Retry-with-alternative: a new node under the same logical name, with its own parameters.
pub(super) fn alternative(workflow: &mut Workflow, failed: &str, at: Timestamp) -> bool {
    let Some(i) = workflow.nodes.iter().position(|n| n.name == failed) else { return false };
    if workflow.nodes[i].alternatives.is_empty() {
        return false;
    }
    let mut rest = workflow.nodes[i].alternatives.clone();
    let chosen = rest.remove(0);
    let template = &workflow.nodes[i];
    let (first, number) = first_of(workflow, template);
    let mut node = Node::new(&format!("{first}#{}", number + 1), &[], template.timeout_ms)
        .as_logical(&template.logical)
        .with_alternatives(rest);
    node.kind = template.kind.clone();
    node.after = template.after.clone();
    (node.idempotent, node.isolated) = (template.idempotent, template.isolated);
    node.parameters = chosen.parameters;
    let pattern = PatternKind::RetryWithAlternative;
    node.origin = Some(Origin { pattern, of: failed.to_owned() });
    let (by, target, nodes) = (failed.to_owned(), first, vec![node.name.clone()]);
    workflow.nodes.insert(i + 1, Arc::new(node));
    workflow.applied.push(Application { pattern, by, target, nodes, at });
    true
}

/// The name of the first try, and the how-manieth this one is.
fn first_of(workflow: &Workflow, node: &Node) -> (String, usize) {
    let (mut node, mut number) = (node, 1);
    while let Some(before) = replaced_by(node).and_then(|of| find(workflow, of).ok()) {
        (node, number) = (before, number + 1);
    }
    (node.name.clone(), number)
}

/// The node whose place it took.
fn replaced_by(node: &Node) -> Option<&str> {
    let origin = node.origin.as_ref().filter(|origin| origin.pattern == PatternKind::RetryWithAlternative)?;
    Some(&origin.of)
}

/// The node that took its place.
pub(super) fn stand_in<'w>(workflow: &'w Workflow, name: &str) -> Option<&'w Arc<Node>> {
    workflow.nodes.iter().find(|n| replaced_by(n) == Some(name))
}

/// Whether something takes the node's place once it has failed and is compensated: then what it works for goes on.
pub fn gives_way(workflow: &Workflow, node: &Node) -> bool {
    let skipped = |name: &str| find(workflow, name).is_ok_and(|n| n.status == N::Skipped);
    workflow.error.is_none()
        && (!node.alternatives.is_empty() || fall_back_of(workflow, &node.name).is_some_and(skipped))
}

/// A branch that has failed and has no alternative ends the whole fan-out, unless its failures are its own.
pub(super) fn ends_its_siblings(node: &Node) -> bool {
    let branches = |origin: &Origin| origin.pattern == PatternKind::ParallelFanOut;
    node.origin.as_ref().is_some_and(branches) && !node.isolated && node.alternatives.is_empty()
}

fn refuse<T>(why: String) -> Result<T, Refused> {
    Err(Refused::invalid("workflow", why))
}
