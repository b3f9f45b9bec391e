//! The life of a workflow and its nodes: a durable DAG held in one document. Patterns change the document; blueprints are data.

use crate::{JobId, ManifestId, OrgId, Outcome, Refused, Timestamp, WorkflowId, moved, string_enum, unchanged};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Arc;

string_enum! {
    pub enum Intent { LaunchRun = "launch-run", TerminateInstance = "terminate-instance", CreateSnapshot = "create-snapshot", CleanupManifest = "cleanup-manifest" }
}
string_enum! {
    pub enum WorkflowStatus {
        Pending = "pending", Running = "running", RollingBack = "rolling_back", Completed = "completed", Failed = "failed", Cancelled = "cancelled",
    }
}
string_enum! {
    pub enum NodeStatus { Pending = "pending", Running = "running", Completed = "completed", Failed = "failed", Skipped = "skipped" }
}

impl WorkflowStatus {
    pub fn is_end(self) -> bool {
        matches!(self, WorkflowStatus::Completed | WorkflowStatus::Failed | WorkflowStatus::Cancelled)
    }
}
impl NodeStatus {
    pub fn is_end(self) -> bool {
        !matches!(self, NodeStatus::Pending | NodeStatus::Running)
    }
}

/// Choose one of two nodes; with `on_error`, a failed first choice gives way to the second.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Branch {
    /// Logical name of the node whose output decides, and the boolean field in it.
    pub decided_by: String,
    pub field: String,
    pub then: String,
    pub otherwise: String,
    pub on_error: bool,
}

/// The same work with other parameters when a node has failed and was compensated.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Alternative {
    pub parameters: Value,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    pub name: String,
    /// What downstream looks outputs up by: an alternative or fall-back takes the place of what it replaces.
    pub logical: String,
    pub kind: String,
    pub after: Vec<String>,
    pub status: NodeStatus,
    pub idempotent: bool,
    pub timeout_ms: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub branch: Option<Branch>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub alternatives: Vec<Alternative>,
    #[serde(default)]
    pub parameters: Value,
    pub tries: i64,
    /// A try that failed may have happened all the same: whatever it made must be looked for.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub uncertain: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting_until: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<Timestamp>,
}

impl Node {
    pub fn new(name: &str, after: &[&str], timeout_ms: i64) -> Node {
        Node {
            name: name.to_owned(),
            logical: name.to_owned(),
            kind: name.to_owned(),
            after: after.iter().map(|a| (*a).to_owned()).collect(),
            status: NodeStatus::Pending,
            idempotent: true,
            timeout_ms,
            branch: None,
            alternatives: Vec::new(),
            parameters: Value::Null,
            tries: 0,
            uncertain: false,
            waiting_until: None,
            output: None,
            error: None,
            started_at: None,
            ended_at: None,
        }
    }
    pub fn as_logical(mut self, logical: &str) -> Node {
        self.logical = logical.to_owned();
        self
    }
    pub fn branching(mut self, branch: Branch) -> Node {
        self.branch = Some(branch);
        self
    }
    pub fn with_alternatives(mut self, alternatives: Vec<Alternative>) -> Node {
        self.alternatives = alternatives;
        self
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Workflow {
    pub id: WorkflowId,
    pub org: OrgId,
    pub intent: Intent,
    pub manifest: ManifestId,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<WorkflowId>,
    pub depth: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<JobId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance: Option<crate::InstanceId>,
    /// Never changes, so it is shared too.
    #[serde(with = "shared_value")]
    pub input: Arc<Value>,
    pub status: WorkflowStatus,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cancel_asked: bool,
    /// Shared between a workflow and what it was before: a step touches one or two of them.
    #[serde(with = "shared")]
    pub nodes: Vec<Arc<Node>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    pub created_at: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<Timestamp>,
    pub version: i64,
}

pub const MAX_SUBWORKFLOW_DEPTH: i64 = 3;
pub const MAX_ALTERNATIVES: usize = 3;
pub const MAX_FAN_OUT: usize = 16;
pub const COMPENSATION_LIMIT_MS: i64 = 5 * crate::time::MINUTE;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WorkflowEvent {
    Begun,
    NodeBegun {
        node: String,
    },
    NodeWaits {
        node: String,
        until: Timestamp,
    },
    /// A try failed in the world, and the next one comes at `until`.
    NodeTroubled {
        node: String,
        error: String,
        uncertain: bool,
        until: Timestamp,
    },
    NodeDone {
        node: String,
        output: Value,
    },
    NodeFailed {
        node: String,
        error: String,
    },
    /// The failed node's effects are undone, or left to the orphan scan.
    Compensated {
        node: String,
    },
    /// An idempotent node whose holder died is done again.
    NodeTakenOver {
        node: String,
    },
    CancelAsked,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WorkflowConsequence {
    Compensate {
        node: String,
    },
    /// The manifest is sealed, the parent told.
    Ended {
        outcome: WorkflowStatus,
    },
}

use NodeStatus as N;
use WorkflowConsequence as C;
use WorkflowEvent as E;
use WorkflowStatus as S;

type Step = Result<Outcome<Workflow, C>, Refused>;

pub fn apply(workflow: &Workflow, event: &WorkflowEvent, at: Timestamp) -> Step {
    if is_said_again(workflow, event) {
        return unchanged();
    }
    let mut next = workflow.clone();
    match (workflow.status, event) {
        (S::Pending, E::Begun) => {
            next.status = S::Running;
            settle_branches(&mut next, at);
            concluded(next, at)
        }
        (S::Running | S::RollingBack, E::Begun) => unchanged(),
        (S::Running, E::NodeBegun { node }) => {
            may_begin(workflow, node)?;
            let node = open(&mut next, node)?;
            node.status = N::Running;
            node.tries += 1;
            node.started_at = node.started_at.or(Some(at));
            moved(next, [])
        }
        // What runs beside a failed node goes on while that one is compensated; only nothing new begins.
        (S::Running | S::RollingBack, E::NodeWaits { node, until }) => {
            may_begin(workflow, node)?;
            let node = open(&mut next, node)?;
            if node.status == N::Pending {
                node.tries += 1;
                node.started_at = Some(at);
            }
            node.status = N::Running;
            node.waiting_until = Some(*until);
            moved(next, [])
        }
        (S::Running | S::RollingBack, E::NodeTroubled { node, error, uncertain, until }) => {
            let node = open(&mut next, node)?;
            if node.status == N::Pending {
                return Err(Refused::not_from("node", node.status, name(event), &[]));
            }
            node.tries += 1;
            node.uncertain |= uncertain;
            node.error = Some(error.clone());
            node.waiting_until = Some(*until);
            moved(next, [])
        }
        (S::Running | S::RollingBack, E::NodeDone { node, output }) => {
            if find(workflow, node)?.status.is_end() {
                return unchanged();
            }
            may_begin(workflow, node)?;
            close(&mut next, node, N::Completed, at);
            let done = open_any(&mut next, node);
            (done.output, done.error) = (Some(output.clone()), None);
            settle_branches(&mut next, at);
            concluded(next, at)
        }
        (S::Running | S::RollingBack, E::NodeFailed { node, error }) => {
            if find(workflow, node)?.status.is_end() {
                return unchanged();
            }
            may_begin(workflow, node)?;
            close(&mut next, node, N::Failed, at);
            open_any(&mut next, node).error = Some(error.clone());
            next.status = S::RollingBack;
            moved(next, [C::Compensate { node: node.clone() }])
        }
        (S::Running | S::RollingBack, E::Compensated { node }) if has_given_way(workflow, find(workflow, node)?) => {
            unchanged()
        }
        (S::RollingBack, E::Compensated { node }) if find(workflow, node)?.status == N::Failed => {
            if fall_back(&mut next, node) || alternative(&mut next, node) {
                let another = next.nodes.iter().any(|n| n.status == N::Failed && !has_given_way(&next, n));
                next.status = if another { S::RollingBack } else { S::Running };
                settle_branches(&mut next, at);
                return moved(next, []);
            }
            let error = find(workflow, node)?.error.clone();
            finish(next, S::Failed, error, at)
        }
        (S::Running | S::RollingBack, E::NodeTakenOver { node }) => {
            let node = open(&mut next, node)?;
            if node.status == N::Pending {
                return unchanged();
            }
            if !node.idempotent {
                return apply(
                    workflow,
                    &E::NodeFailed {
                        node: node.name.clone(),
                        error: "its worker died and it cannot be repeated".into(),
                    },
                    at,
                );
            }
            node.status = N::Pending;
            node.waiting_until = None;
            moved(next, [])
        }
        (S::Pending | S::Running | S::RollingBack, E::CancelAsked) => {
            next.cancel_asked = true;
            finish(next, S::Cancelled, Some("cancelled".into()), at)
        }
        (ended, _) if ended.is_end() => unchanged(), // evidence after the end changes nothing
        (state, event) => Err(Refused::not_from("workflow", state, name(event), &[])),
    }
}

/// A node that waits is looked at again and again: known before the whole document is copied.
fn is_said_again(workflow: &Workflow, event: &WorkflowEvent) -> bool {
    let runs = |name: &String| workflow.nodes.iter().find(|n| n.name == *name && n.status == N::Running);
    match (workflow.status, event) {
        (S::Running, E::NodeBegun { node }) => runs(node).is_some(),
        (S::Running | S::RollingBack, E::NodeWaits { node, until }) => {
            runs(node).is_some_and(|node| node.waiting_until == Some(*until))
        }
        _ => false,
    }
}

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

/// When a node that runs or waits is looked at again.
pub fn deadline(workflow: &Workflow) -> Option<Timestamp> {
    if workflow.status != S::Running {
        return None;
    }
    workflow.nodes.iter().filter(|n| n.status == N::Running).filter_map(|n| n.waiting_until).min()
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
fn may_begin(workflow: &Workflow, name: &str) -> Result<(), Refused> {
    let node = find(workflow, name)?;
    let held_back = node.status == N::Pending && (workflow.status != S::Running || !is_ready(workflow, node));
    if held_back { Err(Refused::not_from("node", node.status, "begin yet", &[])) } else { Ok(()) }
}

/// A failed node in whose place another already stands: its compensation was reported before.
fn has_given_way(workflow: &Workflow, node: &Node) -> bool {
    has_fallen_back(workflow, node) || has_alternative(workflow, node)
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
fn settle_branches(workflow: &mut Workflow, at: Timestamp) {
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
fn fall_back(workflow: &mut Workflow, failed: &str) -> bool {
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
fn alternative(workflow: &mut Workflow, failed: &str) -> bool {
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

fn concluded(next: Workflow, at: Timestamp) -> Step {
    let open = next.status == S::RollingBack || next.nodes.iter().any(|n| !n.status.is_end());
    if open { moved(next, []) } else { finish(next, S::Completed, None, at) }
}

fn finish(mut next: Workflow, outcome: WorkflowStatus, error: Option<String>, at: Timestamp) -> Step {
    for node in next.nodes.iter_mut().map(Arc::make_mut) {
        match node.status {
            N::Pending => node.status = N::Skipped,
            N::Running => {
                node.status = N::Failed;
                node.error = error.clone();
                node.ended_at = Some(at);
            }
            _ => {}
        }
        node.waiting_until = None;
    }
    next.status = outcome;
    next.error = error;
    next.ended_at = Some(at);
    moved(next, [C::Ended { outcome }])
}

fn logical_of<'n>(nodes: &'n [Node], name: &str) -> Option<&'n str> {
    nodes.iter().find(|n| n.name == name).map(|n| n.logical.as_str())
}

fn find<'w>(workflow: &'w Workflow, name: &str) -> Result<&'w Node, Refused> {
    workflow.nodes.iter().find(|n| n.name == name).map(|n| &**n).ok_or_else(|| Refused::not_found("node", name))
}

fn open<'w>(workflow: &'w mut Workflow, name: &str) -> Result<&'w mut Node, Refused> {
    let node = workflow.nodes.iter_mut().find(|n| n.name == name).ok_or_else(|| Refused::not_found("node", name))?;
    if node.status.is_end() {
        return Err(Refused::not_from("node", node.status, "begin", &[]));
    }
    Ok(Arc::make_mut(node))
}

fn open_any<'w>(workflow: &'w mut Workflow, name: &str) -> &'w mut Node {
    workflow.nodes.iter_mut().find(|n| n.name == name).map(Arc::make_mut).expect("looked up before")
}

fn close(workflow: &mut Workflow, name: &str, status: NodeStatus, at: Timestamp) {
    let open = workflow.nodes.iter_mut().find(|n| n.name == name && !n.status.is_end());
    if let Some(node) = open.map(Arc::make_mut) {
        node.status = status;
        node.waiting_until = None;
        node.started_at = node.started_at.or(Some(at));
        node.ended_at = Some(at);
    }
}

pub fn name(event: &WorkflowEvent) -> &'static str {
    match event {
        E::Begun => "begun",
        E::NodeBegun { .. } => "node_begun",
        E::NodeWaits { .. } => "node_waits",
        E::NodeTroubled { .. } => "node_troubled",
        E::NodeDone { .. } => "node_done",
        E::NodeFailed { .. } => "node_failed",
        E::Compensated { .. } => "compensated",
        E::NodeTakenOver { .. } => "node_taken_over",
        E::CancelAsked => "cancel",
    }
}

/// In the row a node is written out, whoever else has it.
mod shared_value {
    use super::{Arc, Value};
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub fn serialize<S: Serializer>(value: &Value, to: S) -> Result<S::Ok, S::Error> {
        value.serialize(to)
    }
    pub fn deserialize<'d, D: Deserializer<'d>>(from: D) -> Result<Arc<Value>, D::Error> {
        Value::deserialize(from).map(Arc::new)
    }
}

mod shared {
    use super::{Arc, Node};
    use serde::{Deserialize, Deserializer, Serializer};

    pub fn serialize<S: Serializer>(nodes: &[Arc<Node>], to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(nodes.iter().map(|node| &**node))
    }
    pub fn deserialize<'d, D: Deserializer<'d>>(from: D) -> Result<Vec<Arc<Node>>, D::Error> {
        Ok(Vec::<Node>::deserialize(from)?.into_iter().map(Arc::new).collect())
    }
}
