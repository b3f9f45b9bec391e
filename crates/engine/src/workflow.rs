//! Workflows: the executor that drives them, and what the API does with them. `kind` says what an intent is made of, `advance`
//! does what happens inside a transaction, `executor` is the loop around it that acts in the world.

mod advance;
mod executor;
pub(crate) mod kind;
#[cfg(test)]
pub(crate) mod tests;

pub(crate) use advance::{advance_in, open_manifest};

use crate::Engine;
use crate::intents::{self, terminate_instance};
use crate::run::{Action, KeyedResponse};
use model::manifest::Manifest;
use model::workflow::{Intent, NodeStatus, Workflow, WorkflowStatus};
use model::{Failure, ManifestId, OrgId, Refused, WorkflowId};
use std::sync::Arc;
use store::idempotency::Key;
use store::{Item, Lane, Tx};

/// Turns a workflow into the bytes that are answered.
pub type WorkflowRender = Arc<dyn Fn(&Workflow) -> Vec<u8> + Send + Sync>;

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
    /// The holder of a workflow's item drives it.
    pub(crate) async fn reconcile_workflow(&self, item: Item) -> Result<(), Failure> {
        let id = WorkflowId(item.subject);
        let read = move |tx: &mut Tx| {
            let Some(workflow) = store::workflow::find(tx, id)?.filter(|w| !w.status.is_end()) else { return Ok(None) };
            let job = workflow.job.map(|job| store::job::find(tx, job)).transpose()?.flatten();
            Ok(Some(job.map(|job| job.run)))
        };
        match self.store.read_inline("workflow.find", read).await? {
            Some(run) => executor::work(self, intents::registry(), item, run).await,
            None => self.done(item).await,
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
                    let begun = terminate_instance::begin_again(tx, instance, "asked again")?;
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
