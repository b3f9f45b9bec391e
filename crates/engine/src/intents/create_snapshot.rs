//! Create-snapshot: the machine's runner sends a workdir as a tree, and runs may start from it. Only the folder is sent: tokens, journal and
//! caches of the machine lie beside it. Its manifest owns the snapshot until a person deletes it. It never touches the run.

use crate::snapshot::{can_be_read, changed};
use crate::workflow;
use crate::workflow::kind::{Blueprint, NodeError, NodeKind, NodeTx, Port, Undo, Verdict, missing, to_value};
use model::manifest::ResourceKind;
use model::snapshot::{Snapshot, SnapshotEvent, SnapshotStatus};
use model::time::{HOUR, MINUTE};
use model::tree::TreeRef;
use model::workflow::{Intent, Node, Workflow};
use model::{AllocationId, Failure, InstanceId, ManifestId, OrgId, RunId, SnapshotId, WorkflowId};
use serde::{Deserialize, Serialize};
use std::sync::LazyLock;
use store::{NewEvent, Tx, WorkKind};

const VALIDATE: &str = "validate";
const PREPARE: &str = "prepare-instance";
const CREATE: &str = "create-provider-snapshot";
const REGISTER: &str = "register";
/// Deciding takes no time; a large folder does.
const PREPARE_LIMIT_MS: i64 = 5 * MINUTE;
const SEND_LIMIT_MS: i64 = HOUR;

pub(crate) static BLUEPRINT: LazyLock<Blueprint> = LazyLock::new(|| {
    Blueprint::of(Intent::CreateSnapshot)
        .node(Node::new(VALIDATE, &[], None), &Validate)
        .node(Node::new(PREPARE, &[VALIDATE], PREPARE_LIMIT_MS), &PrepareInstance)
        .node(Node::new(CREATE, &[PREPARE], SEND_LIMIT_MS), &CreateProviderSnapshot)
        .node(Node::new(REGISTER, &[CREATE], None), &Register)
        .checked()
});

/// The folder that is to be kept, and its tree if that is here already.
pub(crate) struct Source {
    pub(crate) org: OrgId,
    pub(crate) run: Option<RunId>,
    pub(crate) allocation: AllocationId,
    pub(crate) instance: InstanceId,
    pub(crate) workdir: String,
    pub(crate) tree: Option<TreeRef>,
}

#[derive(Serialize, Deserialize)]
struct Input {
    snapshot: SnapshotId,
}

/// The snapshot's row, its workflow and its owner stand in one commit.
pub(crate) fn begin(tx: &mut Tx, source: Source) -> Result<Snapshot, Failure> {
    let Source { org, run, allocation, instance, workdir, tree } = source;
    if let Some(tree) = &tree {
        store::content::pin(tx, org, &tree.hash)?;
    }
    let (at, id) = (tx.at(), SnapshotId(tx.next_id()));
    let (workflow, manifest) = (WorkflowId(tx.next_id()), ManifestId(tx.next_id()));
    let mut draft = BLUEPRINT.draft((workflow, manifest, org), &Input { snapshot: id }, at);
    draft.instance = Some(instance);
    workflow::open_manifest(tx, &draft)?;
    store::workflow::insert(tx, &draft)?;
    store::manifest::own(tx, manifest, &[(ResourceKind::Snapshot, id.0)])?;
    tx.wake(WorkKind::Workflow, workflow.0, at);
    let snapshot = Snapshot {
        id,
        org,
        status: SnapshotStatus::Making,
        run,
        allocation,
        instance,
        workdir,
        workflow,
        manifest,
        tree,
        asked: false,
        error: None,
        created_at: at,
        ready_at: None,
        deleted_at: None,
    };
    store::snapshot::insert(tx, &snapshot)?;
    Ok(snapshot)
}

/// A person tries a snapshot that failed again: another one, of the same folder as it is now.
pub(crate) fn begin_again(tx: &mut Tx, failed: &Workflow) -> Result<WorkflowId, Failure> {
    let input: Input = Deserialize::deserialize(&*failed.input)
        .map_err(|error| model::Trouble::internal(format!("the input of {}: {error}", failed.id)))?;
    let snapshot = store::snapshot::find(tx, input.snapshot)?.ok_or_else(|| missing("snapshot", input.snapshot))?;
    let Snapshot { org, run, allocation, instance, .. } = snapshot;
    let slot = store::allocation::find(tx, allocation)?.ok_or_else(|| missing("allocation", allocation))?;
    let machine = store::instance::find(tx, instance)?;
    can_be_read(&slot, machine.as_ref())?;
    let source = Source { org, run, allocation, instance, workdir: slot.workdir, tree: None };
    Ok(begin(tx, source)?.workflow)
}

/// The snapshot, or what becomes of a node whose snapshot is not made any more.
fn wanted(node: &mut NodeTx<'_, '_, '_>) -> Result<Result<Snapshot, Verdict>, NodeError> {
    let snapshot = found(node)?;
    match snapshot.status {
        SnapshotStatus::Making if node.workflow.cancel_asked => {
            let why = format!("cancelled: {}", node.workflow.cancel_reason.as_deref().unwrap_or_default());
            changed(node.scope.tx(), &snapshot, &SnapshotEvent::Failed { why })?;
            Ok(Err(Verdict::Cancelled))
        }
        SnapshotStatus::Making | SnapshotStatus::Ready => Ok(Ok(snapshot)),
        status => Err(NodeError::Fails(snapshot.error.unwrap_or_else(|| format!("it is {status}")))),
    }
}

fn found(node: &mut NodeTx<'_, '_, '_>) -> Result<Snapshot, NodeError> {
    let input: Input = Deserialize::deserialize(&*node.workflow.input)
        .map_err(|error| NodeError::Fails(format!("its input does not parse: {error}")))?;
    let found = store::snapshot::find(node.scope.tx(), input.snapshot)?;
    found.ok_or_else(|| NodeError::Fails(format!("{} does not exist", input.snapshot)))
}

/// Whichever node failed: the snapshot has. Nothing of it is kept, and its machine is not asked any more.
fn give_up(node: &mut NodeTx<'_, '_, '_>) -> Result<Undo, NodeError> {
    let why = node.node.error.clone().unwrap_or_default();
    let snapshot = found(node)?;
    if snapshot.status == SnapshotStatus::Making {
        changed(node.scope.tx(), &snapshot, &SnapshotEvent::Failed { why })?;
    }
    Ok(Undo::Done)
}

#[derive(Serialize)]
struct Nothing {}

/// The folder is there, or its tree is here already.
struct Validate;

impl NodeKind for Validate {
    fn inside(&self, node: &mut NodeTx<'_, '_, '_>) -> Result<Verdict, NodeError> {
        let snapshot = match wanted(node)? {
            Ok(snapshot) => snapshot,
            Err(verdict) => return Ok(verdict),
        };
        if snapshot.tree.is_none() {
            let tx = node.scope.tx();
            let slot = store::allocation::find(tx, snapshot.allocation)?;
            let slot = slot.ok_or_else(|| NodeError::Fails(format!("{} does not exist", snapshot.allocation)))?;
            let instance = store::instance::find(tx, snapshot.instance)?;
            can_be_read(&slot, instance.as_ref()).map_err(|refused| NodeError::Fails(refused.to_string()))?;
        }
        Ok(Verdict::Done(to_value(&Nothing {})))
    }
    fn undo(&self, node: &mut NodeTx<'_, '_, '_>) -> Result<Undo, NodeError> {
        give_up(node)
    }
}

/// The machine's desired document names the folder from now on, and nothing else of the machine.
struct PrepareInstance;

impl NodeKind for PrepareInstance {
    fn inside(&self, node: &mut NodeTx<'_, '_, '_>) -> Result<Verdict, NodeError> {
        let snapshot = match wanted(node)? {
            Ok(snapshot) => snapshot,
            Err(verdict) => return Ok(verdict),
        };
        changed(node.scope.tx(), &snapshot, &SnapshotEvent::Prepared)?;
        Ok(Verdict::Done(to_value(&Nothing {})))
    }
    fn undo(&self, node: &mut NodeTx<'_, '_, '_>) -> Result<Undo, NodeError> {
        give_up(node)
    }
}

/// Waits until the runner has sent the folder. Its report wakes the workflow, and so does the machine's end.
struct CreateProviderSnapshot;
const CREATED: Port<TreeRef> = Port::new(CREATE);

impl NodeKind for CreateProviderSnapshot {
    fn inside(&self, node: &mut NodeTx<'_, '_, '_>) -> Result<Verdict, NodeError> {
        let snapshot = match wanted(node)? {
            Ok(snapshot) => snapshot,
            Err(verdict) => return Ok(verdict),
        };
        if let Some(tree) = &snapshot.tree {
            return Ok(CREATED.done(tree));
        }
        let instance = store::instance::find(node.scope.tx(), snapshot.instance)?;
        Ok(match instance.filter(|instance| instance.status.is_open()) {
            Some(_) => Verdict::Waits(None),
            None => {
                let error = format!("{} ended before it had sent the folder", snapshot.instance);
                Verdict::Failed { error, uncertain: false }
            }
        })
    }
    fn undo(&self, node: &mut NodeTx<'_, '_, '_>) -> Result<Undo, NodeError> {
        give_up(node)
    }
}

/// Runs may start from it.
struct Register;

impl NodeKind for Register {
    fn inside(&self, node: &mut NodeTx<'_, '_, '_>) -> Result<Verdict, NodeError> {
        let snapshot = match wanted(node)? {
            Ok(snapshot) => snapshot,
            Err(verdict) => return Ok(verdict),
        };
        let tx = node.scope.tx();
        let ready = changed(tx, &snapshot, &SnapshotEvent::Registered)?;
        let body = store::body!({ "snapshot": ready.id, "run": ready.run, "tree": ready.tree });
        tx.event(NewEvent { org: ready.org, run: None, kind: "snapshot.ready", body });
        Ok(Verdict::Done(to_value(&Nothing {})))
    }
    fn undo(&self, node: &mut NodeTx<'_, '_, '_>) -> Result<Undo, NodeError> {
        give_up(node)
    }
}
