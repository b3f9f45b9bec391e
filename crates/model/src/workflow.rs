//! The life of a workflow and its nodes: a durable DAG held in one document. Patterns change the document; blueprints are data.
//! `dag` answers questions about the graph, `pattern` has what changes it; this file has the types and the moves.

mod dag;
mod pattern;

pub use dag::{branches_of, check, output, outputs, ready, topology};
pub use pattern::{Addition, Application, FanOutMode, Origin, Pattern, PatternKind, gives_way};

use crate::manifest::ResourceKind;
use crate::time::show_duration;
use crate::{JobId, ManifestId, OrgId, Outcome, Refused, Timestamp, WorkflowId, moved, string_enum, unchanged};
use dag::{fall_back, may_begin, settle_branches};
use pattern::alternative;
use serde::{Deserialize, Serialize};
use serde_json::Value;
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

/// The same work with other parameters when a node has failed and was compensated. It is of the same kind, so what it gives has the
/// same form.
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
    /// How long the node may run from its first try on, our own outages taken out. None: as long as it needs, because
    /// something else has the deadline (the job), or because giving up would leave a machine behind (`terminate`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub branch: Option<Branch>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub alternatives: Vec<Alternative>,
    #[serde(default)]
    pub parameters: Value,
    /// The pattern that brought it; none: it stands in the blueprint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<Origin>,
    /// A branch whose failure is its own: what joins the branches goes on without it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub isolated: bool,
    /// The workflow that does the node's work: it is done when that one has completed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub child: Option<WorkflowId>,
    pub tries: i64,
    /// A worker is acting on it outside of a transaction. Committed before the act, cleared with the act's result: a worker
    /// that finds it set and is not acting itself knows that another one died.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub in_hand: bool,
    /// A try that failed may have had its effect: whatever it made must be looked for.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub uncertain: bool,
    /// The next try of a running node, or of the compensation of a failed one.
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
    /// A failed node's effects were undone, or named as an orphan risk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compensated_at: Option<Timestamp>,
}

/// Something that a compensation could not undo in time and that may still exist. A person or the orphan scan looks for it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OrphanRisk {
    pub node: String,
    pub resource: Resource,
    /// Why the last try of the compensation failed, if one came to its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    pub at: Timestamp,
}

/// What a node makes in the world, by the name under which it can be found there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resource {
    pub kind: ResourceKind,
    pub name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider: Option<String>,
}

impl Node {
    pub fn new(name: &str, after: &[&str], timeout_ms: impl Into<Option<i64>>) -> Node {
        Node {
            name: name.to_owned(),
            logical: name.to_owned(),
            kind: name.to_owned(),
            after: after.iter().map(|a| (*a).to_owned()).collect(),
            status: NodeStatus::Pending,
            idempotent: true,
            timeout_ms: timeout_ms.into(),
            branch: None,
            alternatives: Vec::new(),
            parameters: Value::Null,
            origin: None,
            isolated: false,
            child: None,
            tries: 0,
            in_hand: false,
            uncertain: false,
            waiting_until: None,
            output: None,
            error: None,
            started_at: None,
            ended_at: None,
            compensated_at: None,
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
    /// Why it shall end, in the words of the person or process that asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cancel_reason: Option<String>,
    /// The patterns that have changed its nodes, in order, each stored with its change.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub applied: Vec<Application>,
    /// Shared between the versions of a workflow: an event changes one or two of them.
    #[serde(with = "shared")]
    pub nodes: Vec<Arc<Node>>,
    /// Why it failed. Set while it still rolls back, once nothing takes the place of the node that failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The last failure: what is not compensated 5 minutes later becomes an orphan risk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rolling_back_since: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub orphan_risks: Vec<OrphanRisk>,
    pub created_at: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<Timestamp>,
    pub version: i64,
}

impl Workflow {
    /// A workflow that has not begun. Its nodes are shared with the blueprint.
    pub fn new(id: WorkflowId, manifest: ManifestId, org: OrgId, intent: Intent, nodes: &[Arc<Node>]) -> Workflow {
        Workflow {
            id,
            org,
            intent,
            manifest,
            parent: None,
            depth: 0,
            job: None,
            instance: None,
            input: Arc::default(),
            status: WorkflowStatus::Pending,
            cancel_asked: false,
            cancel_reason: None,
            applied: Vec::new(),
            nodes: nodes.to_vec(),
            error: None,
            rolling_back_since: None,
            orphan_risks: Vec::new(),
            created_at: Timestamp(0),
            ended_at: None,
            version: 1,
        }
    }
}

pub const MAX_SUBWORKFLOW_DEPTH: i64 = 3;
/// Tries of a node altogether, the first one included.
pub const MAX_ALTERNATIVES: usize = 3;
pub const MAX_FAN_OUT: usize = 16;
/// The whole document is read and written with each event.
pub const MAX_NODES: usize = 64;
/// A reason is shown on one line.
pub const MAX_CANCEL_REASON: usize = 500;
pub const COMPENSATION_LIMIT_MS: i64 = 5 * crate::time::MINUTE;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WorkflowEvent {
    Begun,
    NodeBegun {
        node: String,
    },
    /// A worker is about to act on the node.
    NodeActs {
        node: String,
    },
    /// Nothing to do until something else happens, or until this time comes.
    NodeWaits {
        node: String,
        until: Option<Timestamp>,
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
        uncertain: bool,
    },
    /// The node's time limit has passed; its act, if one is under way, is abandoned.
    NodeTimedOut {
        node: String,
    },
    /// The failed node's effects are undone.
    Compensated {
        node: String,
    },
    /// A try of the compensation failed; the next one comes at `until`.
    CompensationTroubled {
        node: String,
        error: String,
        until: Timestamp,
    },
    /// The compensation took longer than 5 minutes: `resource` may still exist.
    CompensationTimedOut {
        node: String,
        resource: Resource,
    },
    /// The worker that acted on the node died: an idempotent node is begun again, any other one has failed.
    NodeTakenOver {
        node: String,
    },
    /// A node that is open asks for a change of the nodes behind it.
    PatternAsked {
        by: String,
        pattern: Pattern,
    },
    /// The node's work is done by another workflow from now on.
    ChildBegun {
        node: String,
        child: WorkflowId,
    },
    /// Its end was asked for; it ends when what it works for has ended.
    CancelWanted {
        reason: String,
    },
    CancelAsked,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WorkflowConsequence {
    /// An event for people and programs names what may still exist.
    OrphanRisk(OrphanRisk),
    /// The manifest is sealed, the parent told.
    Ended { outcome: WorkflowStatus },
}

use NodeStatus as N;
use WorkflowConsequence as C;
use WorkflowEvent as E;
use WorkflowStatus as S;

type Step = Result<Outcome<Workflow, C>, Refused>;

#[expect(clippy::too_many_lines, reason = "one flat match: the table of its transitions")]
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
        (S::Running | S::RollingBack, E::NodeActs { node }) => {
            let node = running(&mut next, node, event)?;
            node.in_hand = true;
            node.waiting_until = None;
            moved(next, [])
        }
        (S::Running | S::RollingBack, E::NodeWaits { node, until }) => {
            may_begin(workflow, node)?;
            let node = open(&mut next, node)?;
            if node.status == N::Pending {
                node.tries += 1;
                node.started_at = node.started_at.or(Some(at));
            }
            node.status = N::Running;
            node.waiting_until = *until;
            moved(next, [])
        }
        (S::Running | S::RollingBack, E::NodeTroubled { node, error, uncertain, until }) => {
            let node = running(&mut next, node, event)?;
            node.tries += 1;
            node.in_hand = false;
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
        (S::Running | S::RollingBack, E::NodeFailed { node, error, uncertain }) => {
            if find(workflow, node)?.status.is_end() {
                return unchanged();
            }
            may_begin(workflow, node)?;
            failed(next, node, error.clone(), *uncertain, at)
        }
        (S::Running | S::RollingBack, E::NodeTimedOut { node }) => {
            let limit_ms = running(&mut next, node, event)?.timeout_ms.unwrap_or(0);
            failed(next, node, format!("timed out after {}", show_duration(limit_ms)), true, at)
        }
        (S::Running | S::RollingBack, E::Compensated { node } | E::CompensationTimedOut { node, .. })
            if find(workflow, node)?.compensated_at.is_some() =>
        {
            unchanged()
        }
        (S::RollingBack, E::Compensated { node }) if find(workflow, node)?.status == N::Failed => {
            compensated(next, node, at)
        }
        (S::RollingBack, E::CompensationTimedOut { node, resource }) if find(workflow, node)?.status == N::Failed => {
            let error = find(workflow, node)?.error.clone();
            let risk = OrphanRisk { node: node.clone(), resource: resource.clone(), error, at };
            next.orphan_risks.push(risk.clone());
            let Outcome::Moved { next, mut consequences } = compensated(next, node, at)? else { return unchanged() };
            consequences.insert(0, C::OrphanRisk(risk));
            moved(next, consequences)
        }
        (S::RollingBack, E::CompensationTroubled { node, error, until })
            if uncompensated(workflow).is_some_and(|failed| failed.name == *node) =>
        {
            let node = open_any(&mut next, node);
            node.error = Some(error.clone());
            node.waiting_until = Some(*until);
            moved(next, [])
        }
        (S::Running | S::RollingBack, E::NodeTakenOver { node }) => {
            let node = open(&mut next, node)?;
            if node.status == N::Pending {
                return unchanged();
            }
            if node.in_hand && !node.idempotent {
                let name = node.name.clone();
                return failed(next, &name, "its worker died and it cannot be repeated".into(), true, at);
            }
            node.status = N::Pending;
            node.uncertain |= node.in_hand;
            node.in_hand = false;
            node.waiting_until = None;
            moved(next, [])
        }
        (S::Running | S::RollingBack, E::PatternAsked { by, pattern }) => {
            may_begin(workflow, by)?;
            open(&mut next, by)?;
            if pattern::put(&mut next, by, pattern, at)? { moved(next, []) } else { unchanged() }
        }
        (S::Running | S::RollingBack, E::ChildBegun { node, child }) => {
            may_begin(workflow, node)?;
            if workflow.depth >= MAX_SUBWORKFLOW_DEPTH {
                let why = format!("{node} is a workflow in more than {MAX_SUBWORKFLOW_DEPTH} others");
                return Err(Refused::invalid("workflow", why));
            }
            let node = open(&mut next, node)?;
            if node.child.is_some() {
                return unchanged(); // one node has one
            }
            if node.status == N::Pending {
                node.tries += 1;
                node.started_at = node.started_at.or(Some(at));
            }
            node.status = N::Running;
            node.child = Some(*child);
            moved(next, [])
        }
        (S::Pending | S::Running | S::RollingBack, E::CancelWanted { .. }) if workflow.cancel_reason.is_some() => {
            unchanged() // the first request has said why
        }
        (S::Pending | S::Running | S::RollingBack, E::CancelWanted { reason }) => {
            next.cancel_asked = true;
            next.cancel_reason = Some(reason.clone());
            moved(next, [])
        }
        (S::Pending | S::Running | S::RollingBack, E::CancelAsked) => {
            next.cancel_asked = true;
            let why = next.cancel_reason.as_ref().map_or_else(String::new, |reason| format!(": {reason}"));
            finish(next, S::Cancelled, Some(format!("cancelled{why}")), at)
        }
        (ended, _) if ended.is_end() => unchanged(), // evidence after the end changes nothing
        (state, event) => Err(Refused::not_from("workflow", state, name(event), &[])),
    }
}

/// A node that waits is looked at many times. Nothing new is recognised before the whole document is copied.
fn is_said_again(workflow: &Workflow, event: &WorkflowEvent) -> bool {
    let runs = |name: &String| workflow.nodes.iter().find(|n| n.name == *name && n.status == N::Running);
    match (workflow.status, event) {
        (S::Running | S::RollingBack, E::NodeBegun { node }) => runs(node).is_some(),
        (S::Running | S::RollingBack, E::NodeActs { node }) => runs(node).is_some_and(|node| node.in_hand),
        (S::Running | S::RollingBack, E::NodeWaits { node, until }) => {
            runs(node).is_some_and(|node| node.waiting_until == *until)
        }
        _ => false,
    }
}

/// When the node is out of time: so many milliseconds after that moment. The caller takes our own outages out.
pub fn time_limit(node: &Node) -> Option<(Timestamp, i64)> {
    node.started_at.filter(|_| node.status == N::Running).zip(node.timeout_ms)
}

/// When what is not compensated becomes an orphan risk. The caller takes our own outages out.
pub fn compensation_limit(workflow: &Workflow) -> Option<(Timestamp, i64)> {
    let since = workflow.rolling_back_since.filter(|_| workflow.status == S::RollingBack)?;
    Some((since, COMPENSATION_LIMIT_MS))
}

/// When the next try of a node or of a compensation comes.
pub fn next_try(workflow: &Workflow) -> Option<Timestamp> {
    let running = workflow.nodes.iter().filter(|n| n.status == N::Running && !workflow.status.is_end());
    running.filter_map(|n| n.waiting_until).chain(uncompensated(workflow).and_then(|n| n.waiting_until)).min()
}

/// The failed node that is to be compensated now: of several the last one, because it may depend on what the others made.
pub fn uncompensated(workflow: &Workflow) -> Option<&Arc<Node>> {
    if workflow.status != S::RollingBack {
        return None;
    }
    workflow.nodes.iter().rev().find(|n| n.status == N::Failed && n.compensated_at.is_none())
}

fn failed(mut next: Workflow, node: &str, error: String, uncertain: bool, at: Timestamp) -> Step {
    close(&mut next, node, N::Failed, at);
    let node = open_any(&mut next, node);
    node.error = Some(error.clone());
    node.uncertain |= uncertain;
    let (name, ends_all) = (node.name.clone(), pattern::ends_its_siblings(node));
    next.status = S::RollingBack;
    next.rolling_back_since = Some(at);
    if ends_all && next.error.is_none() {
        doom(&mut next, &name, error, at);
    }
    moved(next, [])
}

/// Nothing takes the failed node's place: the workflow fails once everything that ran beside it is compensated too.
fn doom(next: &mut Workflow, name: &str, error: String, at: Timestamp) {
    next.error = Some(error);
    next.rolling_back_since = Some(at);
    stop_nodes(next, &format!("stopped because {name} failed"), at);
}

/// Something takes the failed node's place, or the workflow fails. It fails when everything that ran beside the node is stopped
/// and compensated too; nodes that had completed keep their effects, which the manifest's cleanup removes (R97).
fn compensated(mut next: Workflow, name: &str, at: Timestamp) -> Step {
    let node = open_any(&mut next, name);
    node.compensated_at = Some(at);
    node.waiting_until = None;
    let (error, isolated) = (node.error.clone(), node.isolated);
    let doomed = next.error.is_some();
    if !doomed && (fall_back(&mut next, name, at) || alternative(&mut next, name, at) || isolated) {
        if uncompensated(&next).is_none() {
            next.status = S::Running;
            next.rolling_back_since = None;
        }
        settle_branches(&mut next, at);
        return moved(next, []);
    }
    if !doomed {
        doom(&mut next, name, error.unwrap_or_else(|| format!("{name} failed")), at);
    }
    if uncompensated(&next).is_some() {
        return moved(next, []);
    }
    let error = next.error.clone();
    finish(next, S::Failed, error, at)
}

/// Nothing new begins, and what runs has failed.
fn stop_nodes(next: &mut Workflow, error: &str, at: Timestamp) {
    for node in next.nodes.iter_mut().filter(|n| !n.status.is_end()).map(Arc::make_mut) {
        // One that was taken over may have had its effect before it was to begin again: it must be compensated.
        if node.status == N::Pending && !node.uncertain {
            node.status = N::Skipped;
            continue;
        }
        node.status = N::Failed;
        node.error = Some(error.to_owned());
        node.ended_at = Some(at);
        node.uncertain |= node.in_hand;
        node.in_hand = false;
        node.waiting_until = None;
    }
}

fn concluded(next: Workflow, at: Timestamp) -> Step {
    let open = next.status == S::RollingBack || next.nodes.iter().any(|n| !n.status.is_end());
    if open { moved(next, []) } else { finish(next, S::Completed, None, at) }
}

fn finish(mut next: Workflow, outcome: WorkflowStatus, error: Option<String>, at: Timestamp) -> Step {
    stop_nodes(&mut next, error.as_deref().unwrap_or_default(), at);
    next.status = outcome;
    next.error = error;
    next.rolling_back_since = None;
    next.ended_at = Some(at);
    moved(next, [C::Ended { outcome }])
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

/// A node that runs: only such a one acts, is troubled or runs out of time.
fn running<'w>(workflow: &'w mut Workflow, name: &str, event: &WorkflowEvent) -> Result<&'w mut Node, Refused> {
    let node = open(workflow, name)?;
    if node.status == N::Pending {
        return Err(Refused::not_from("node", node.status, self::name(event), &[]));
    }
    Ok(node)
}

fn open_any<'w>(workflow: &'w mut Workflow, name: &str) -> &'w mut Node {
    workflow.nodes.iter_mut().find(|n| n.name == name).map(Arc::make_mut).expect("looked up before")
}

fn close(workflow: &mut Workflow, name: &str, status: NodeStatus, at: Timestamp) {
    let open = workflow.nodes.iter_mut().find(|n| n.name == name && !n.status.is_end());
    if let Some(node) = open.map(Arc::make_mut) {
        node.status = status;
        node.in_hand = false;
        node.waiting_until = None;
        node.started_at = node.started_at.or(Some(at));
        node.ended_at = Some(at);
    }
}

pub fn name(event: &WorkflowEvent) -> &'static str {
    match event {
        E::Begun => "begun",
        E::NodeBegun { .. } => "node_begun",
        E::NodeActs { .. } => "node_acts",
        E::NodeWaits { .. } => "node_waits",
        E::NodeTroubled { .. } => "node_troubled",
        E::NodeDone { .. } => "node_done",
        E::NodeFailed { .. } => "node_failed",
        E::NodeTimedOut { .. } => "node_timed_out",
        E::Compensated { .. } => "compensated",
        E::CompensationTroubled { .. } => "compensation_troubled",
        E::CompensationTimedOut { .. } => "compensation_timed_out",
        E::NodeTakenOver { .. } => "node_taken_over",
        E::PatternAsked { .. } => "pattern_asked",
        E::ChildBegun { .. } => "child_begun",
        E::CancelWanted { .. } => "cancel_wanted",
        E::CancelAsked => "cancel",
    }
}

/// In the row a node is written out whole, also where it is shared in memory.
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
