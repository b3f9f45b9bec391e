//! The workflow engine: one loop for every intent. Nodes that only change rows run here, inside the transaction; nodes that touch the
//! world are marked first and acted on by whoever holds the workflow's item. A node never blocks.

use crate::Engine;
use crate::intents::{launch_run, terminate_instance};
use crate::run::{Action, KeyedResponse};
use model::manifest::{Manifest, ManifestEvent, ManifestStatus};
use model::workflow::{Intent, Node, NodeStatus, Workflow, WorkflowConsequence, WorkflowEvent, WorkflowStatus};
use model::{Failure, ManifestId, OrgId, Outcome, Refused, Timestamp, WorkflowId};
use serde_json::Value;
use std::sync::Arc;
use store::idempotency::Key;
use store::{Item, Lane, Tx};

/// Turns a workflow into the bytes that are answered.
pub type WorkflowRender = Arc<dyn Fn(&Workflow) -> Vec<u8> + Send + Sync>;

/// What a look at a node found.
pub(crate) enum Verdict {
    Done(Value),
    /// Nothing to do until something happens, or this time comes.
    Waits(Timestamp),
    /// The world must be touched: the holder of the workflow's item does it, after "running" is committed.
    Act,
    Failed(String),
}

pub(crate) fn draft(
    id: WorkflowId,
    manifest: ManifestId,
    org: OrgId,
    intent: Intent,
    nodes: &[Arc<Node>],
    at: Timestamp,
) -> Workflow {
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
        nodes: nodes.to_vec(),
        error: None,
        created_at: at,
        ended_at: None,
        version: 1,
    }
}

/// Drawn once; every workflow begins by sharing it.
pub(crate) fn blueprint(nodes: Vec<Node>) -> Vec<Arc<Node>> {
    debug_assert!(model::workflow::check(&nodes).is_ok(), "a blueprint is a DAG");
    nodes.into_iter().map(Arc::new).collect()
}

/// The manifest stands before any node has begun.
pub(crate) fn open_manifest(tx: &mut Tx, workflow: &Workflow) -> Result<(), Failure> {
    let manifest = Manifest {
        id: workflow.manifest,
        org: workflow.org,
        workflow: workflow.id,
        intent: workflow.intent,
        status: ManifestStatus::Draft,
        outcome: None,
        created_at: workflow.created_at,
        sealed_at: None,
        retain_until: None,
        deleted_at: None,
    };
    store::manifest::insert(tx, &manifest)
}

/// What an event came to.
#[derive(Clone, Copy, Default)]
pub(crate) struct Applied {
    pub(crate) moved: bool,
    /// Something is to be compensated.
    compensates: bool,
}

/// One event of a workflow; sealing its manifest when it ends.
pub(crate) fn apply(
    tx: &mut Tx,
    workflow: &mut Workflow,
    event: WorkflowEvent,
    at: Timestamp,
) -> Result<Applied, Failure> {
    let Outcome::Moved { next, consequences } = model::workflow::apply(workflow, &event, at)? else {
        return Ok(Applied::default());
    };
    *workflow = next;
    let mut applied = Applied { moved: true, compensates: false };
    for consequence in consequences {
        match consequence {
            WorkflowConsequence::Compensate { .. } => applied.compensates = true,
            WorkflowConsequence::Ended { outcome } => seal(tx, workflow.manifest, outcome, at)?,
        }
    }
    Ok(applied)
}

fn seal(tx: &mut Tx, id: ManifestId, outcome: WorkflowStatus, at: Timestamp) -> Result<(), Failure> {
    let manifest = store::manifest::find(tx, id)?.ok_or_else(|| Refused::not_found("manifest", id))?;
    if let Outcome::Moved { next, .. } =
        model::manifest::apply(&manifest, &ManifestEvent::WorkflowEnded { outcome }, at)?
    {
        store::manifest::save(tx, &next)?;
    }
    Ok(())
}

/// What came of looking at all nodes.
#[derive(Clone, Copy, Default)]
pub(crate) struct Advanced {
    pub(crate) moved: bool,
    /// Somebody has to act.
    pub(crate) acts: bool,
}

/// Looks at every node that may begin or waits, until a round changes nothing.
pub(crate) fn advance(
    tx: &mut Tx,
    workflow: &mut Workflow,
    at: Timestamp,
    mut reconcile: impl FnMut(&mut Tx, &Workflow, &Node) -> Result<Verdict, Failure>,
) -> Result<Advanced, Failure> {
    let mut advanced = Advanced::default();
    if workflow.status == WorkflowStatus::Pending {
        advanced.moved = apply(tx, workflow, WorkflowEvent::Begun, at)?.moved;
    }
    loop {
        let (mut moved, mut acts) = (false, false);
        for name in open_nodes(workflow) {
            let node = workflow.nodes.iter().find(|node| node.name == name).expect("no node goes");
            let verdict = reconcile(tx, workflow, node)?;
            // Once a node has ended, what may begin is another question.
            let (event, ends) = match verdict {
                Verdict::Done(output) => (WorkflowEvent::NodeDone { node: name, output }, true),
                Verdict::Waits(until) => (WorkflowEvent::NodeWaits { node: name, until }, false),
                Verdict::Act => {
                    acts = true;
                    (WorkflowEvent::NodeBegun { node: name }, false)
                }
                Verdict::Failed(error) => (WorkflowEvent::NodeFailed { node: name, error }, true),
            };
            let applied = apply(tx, workflow, event, at)?;
            moved |= applied.moved;
            acts |= applied.compensates;
            if ends {
                break;
            }
        }
        advanced.moved |= moved;
        if !moved || workflow.status != WorkflowStatus::Running {
            return Ok(Advanced { acts: acts || workflow.status == WorkflowStatus::RollingBack, ..advanced });
        }
    }
}

/// Those that run, then those that may begin.
fn open_nodes(workflow: &Workflow) -> Vec<String> {
    let running = workflow.nodes.iter().filter(|n| n.status == NodeStatus::Running);
    running.chain(model::workflow::ready(workflow)).map(|node| node.name.clone()).collect()
}

/// Hash of the executed DAG's shape, for comparing runs of the same kind.
pub fn topology(workflow: &Workflow) -> String {
    let shape: Vec<String> = workflow
        .nodes
        .iter()
        .filter(|n| n.status != NodeStatus::Skipped)
        .map(|n| format!("{}<{}:{}", n.kind, n.after.join("+"), n.status))
        .collect();
    let mut hash = 0xcbf2_9ce4_8422_2325_u64; // FNV-1a: a label, not a proof
    for byte in shape.join(";").bytes() {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    }
    format!("{hash:016x}")
}

fn owned(tx: &mut Tx, org: OrgId, id: WorkflowId) -> Result<Workflow, Failure> {
    let found = store::workflow::find(tx, id)?.filter(|workflow| workflow.org == org);
    found.ok_or_else(|| Refused::not_found("workflow", id).into())
}

impl Engine {
    /// The holder of a workflow's item: does what must be done in the world, then writes down how it went.
    pub(crate) async fn reconcile_workflow(&self, item: Item) -> Result<(), Failure> {
        let id = WorkflowId(item.subject);
        let workflow = self.store.read_inline("workflow.find", move |tx| store::workflow::find(tx, id)).await?;
        match workflow {
            Some(workflow) if !workflow.status.is_end() => match workflow.intent {
                Intent::LaunchRun => launch_run::act(self, item, workflow).await,
                Intent::TerminateInstance => terminate_instance::act(self, item, workflow).await,
                Intent::CreateSnapshot | Intent::CleanupManifest => self.done(item).await,
            },
            _ => self.done(item).await,
        }
    }

    pub async fn workflows(&self, org: OrgId, before: i64, limit: i64) -> Result<Vec<Workflow>, Failure> {
        self.store.read("workflow.page", move |tx| store::workflow::page(tx, org, before, limit)).await
    }

    pub async fn workflow(&self, org: OrgId, id: WorkflowId) -> Result<Workflow, Failure> {
        self.store.read_inline("workflow.find", move |tx| owned(tx, org, id)).await
    }

    /// Cancelling what launches a run is cancelling the run; what terminates a machine is not called back.
    pub async fn cancel_workflow(
        &self,
        org: OrgId,
        id: WorkflowId,
        key: Option<Key>,
        render: WorkflowRender,
    ) -> Result<KeyedResponse, Failure> {
        let context = self.context.clone();
        self.keyed(Lane::Normal, "run.act", key, 200, move |tx| {
            let workflow = owned(tx, org, id)?;
            if workflow.status.is_end() {
                return Ok(render(&workflow));
            }
            let Some(job) = workflow.job.filter(|_| workflow.intent == Intent::LaunchRun) else {
                let why = "a termination that has begun is not called back".to_owned();
                return Err(Refused::Conflict { why }.into());
            };
            let job = store::job::find(tx, job)?.ok_or_else(|| Refused::not_found("job", job))?;
            crate::run::act(tx, &context, org, job.run, Action::Cancel { abort: false })?;
            Ok(render(&owned(tx, org, id)?))
        })
        .await
    }

    /// A new workflow with the same input: a failed one is never changed.
    pub async fn retry_workflow(
        &self,
        org: OrgId,
        id: WorkflowId,
        key: Option<Key>,
        render: WorkflowRender,
    ) -> Result<KeyedResponse, Failure> {
        self.keyed(Lane::Normal, "instance.terminate", key, 200, move |tx| {
            let workflow = owned(tx, org, id)?;
            let why = match (workflow.intent, workflow.status) {
                (Intent::TerminateInstance, WorkflowStatus::Failed) => {
                    let instance = workflow.instance.ok_or_else(|| Refused::not_found("instance", id))?;
                    let begun = terminate_instance::begin(tx, instance, "asked again")?;
                    return Ok(render(&owned(tx, org, begun)?));
                }
                (Intent::LaunchRun, _) => "retry the run instead: repl retry RUN",
                _ => "only a failed workflow can be tried again",
            };
            Err(Refused::Conflict { why: why.to_owned() }.into())
        })
        .await
    }

    pub async fn manifests(&self, org: OrgId, before: i64, limit: i64) -> Result<Vec<Manifest>, Failure> {
        self.store.read("manifest.page", move |tx| store::manifest::page(tx, org, before, limit)).await
    }

    pub async fn manifest(
        &self,
        org: OrgId,
        id: ManifestId,
    ) -> Result<(Manifest, Vec<(model::manifest::ResourceKind, i64)>), Failure> {
        self.store
            .read("manifest.find", move |tx| {
                let manifest = store::manifest::find(tx, id)?.filter(|m| m.org == org);
                let manifest = manifest.ok_or_else(|| Refused::not_found("manifest", id))?;
                let resources = store::manifest::resources(tx, id)?;
                Ok((manifest, resources))
            })
            .await
    }
}
