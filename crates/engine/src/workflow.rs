//! Workflows: the executor that drives them, and what the API does with them. `kind` says what an intent is made of, `advance`
//! does what happens inside a transaction, `executor` is the loop around it that acts in the world.

mod advance;
mod executor;
pub(crate) mod kind;
#[cfg(test)]
pub(crate) mod tests;

pub(crate) use crate::manifest::open_manifest;
pub(crate) use advance::{advance_of_run, fail_node};
pub use model::workflow::topology;

use crate::intents::{self, cleanup_manifest, create_snapshot, launch_run, terminate_instance};
use crate::run::KeyedResponse;
use crate::run_tx::RunTx;
use crate::{Actor, Engine, EngineContext};
use model::job::{Job, JobStatus};
use model::manifest::Manifest;
use model::run::RunEvent;
use model::workflow::{Intent, MAX_CANCEL_REASON, Workflow, WorkflowEvent, WorkflowStatus};
use model::{Failure, ManifestId, OrgId, Outcome, Refused, WorkflowId};
use std::sync::Arc;
use store::idempotency::Key;
use store::{Item, Lane, Tx, WorkKind};

/// Turns a workflow into the bytes that are answered.
pub type WorkflowRender = Arc<dyn Fn(&Workflow) -> Vec<u8> + Send + Sync>;

/// Every kind of node that a workflow of this release may have, with its intent.
pub fn node_kinds() -> Vec<(Intent, &'static str)> {
    intents::registry().kinds()
}

fn owned(tx: &mut Tx, org: OrgId, id: WorkflowId) -> Result<Workflow, Failure> {
    let found = store::workflow::find(tx, id)?.filter(|workflow| workflow.org == org);
    found.ok_or_else(|| Refused::not_found("workflow", id).into())
}

fn checked_reason(reason: &str) -> Result<String, Failure> {
    let too_long = reason.chars().count() > MAX_CANCEL_REASON;
    if reason.trim().is_empty() || too_long || reason.chars().any(char::is_control) {
        let why = format!("a reason is one line of 1 to {MAX_CANCEL_REASON} characters");
        return Err(Refused::invalid("reason", why).into());
    }
    Ok(reason.trim().to_owned())
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

    /// Cancelling what launches a run is cancelling the run. A snapshot and a cleanup end at their workflow's next step. What terminates a
    /// machine is not called back.
    pub async fn cancel_workflow(
        &self,
        actor: impl Into<Actor>,
        id: WorkflowId,
        reason: Option<String>,
        key: Option<Key>,
        render: WorkflowRender,
    ) -> Result<KeyedResponse, Failure> {
        let reason = reason.map(|reason| checked_reason(&reason)).transpose()?;
        let (context, actor) = (self.context.clone(), actor.into());
        self.keyed(Lane::Normal, "run.act", key, 200, move |tx| {
            let workflow = owned(tx, actor.org, id)?;
            if workflow.status.is_end() {
                return Ok(render(&workflow));
            }
            let job = match (workflow.intent, workflow.job) {
                (Intent::LaunchRun, Some(job)) => job,
                (Intent::CreateSnapshot | Intent::CleanupManifest, _) => {
                    let reason = reason.clone().unwrap_or_else(|| actor.said("asked"));
                    return Ok(render(&cancel_alone(tx, id, reason)?));
                }
                (intent, _) => {
                    let why = format!("{intent} that has begun is not called back");
                    return Err(Refused::Conflict { why }.into());
                }
            };
            let job = store::job::find(tx, job)?.ok_or_else(|| Refused::not_found("job", job))?;
            let mut run_tx = crate::run::open_for(tx, &context, &actor, job.run)?;
            if let Some(reason) = reason.clone() {
                let wanted = WorkflowEvent::CancelWanted { reason };
                if let Outcome::Moved { next, .. } = model::workflow::apply(&workflow, &wanted, run_tx.at)? {
                    run_tx.workflow(id)?.set(next);
                }
            }
            run_tx.run_event(RunEvent::CancelAsked { abort: false })?;
            run_tx.close()?;
            Ok(render(&owned(tx, actor.org, id)?))
        })
        .await
    }

    /// A new workflow with the same input: a failed one is never changed.
    pub async fn retry_workflow(
        &self,
        actor: impl Into<Actor>,
        id: WorkflowId,
        key: Option<Key>,
        render: WorkflowRender,
    ) -> Result<KeyedResponse, Failure> {
        let (context, actor) = (self.context.clone(), actor.into());
        self.keyed(Lane::Normal, "instance.terminate", key, 200, move |tx| {
            let workflow = owned(tx, actor.org, id)?;
            if workflow.status != WorkflowStatus::Failed {
                let why = format!("only a failed workflow can be tried again, and {id} is {}", workflow.status);
                return Err(Refused::Conflict { why }.into());
            }
            let begun = match workflow.intent {
                Intent::LaunchRun => launch_again(tx, &context, &actor, &workflow)?,
                Intent::TerminateInstance => {
                    let instance = workflow.instance.ok_or_else(|| Refused::not_found("instance", id))?;
                    terminate_instance::begin_again(tx, id, instance, &actor.said("asked again"))?
                }
                Intent::CreateSnapshot => create_snapshot::begin_again(tx, &workflow)?,
                Intent::CleanupManifest => cleanup_manifest::begin_again(tx, &workflow)?,
            };
            Ok(render(&owned(tx, actor.org, begun)?))
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

/// A workflow of no run is told by its row: its nodes see that it shall end.
fn cancel_alone(tx: &mut Tx, id: WorkflowId, reason: String) -> Result<Workflow, Failure> {
    let workflow = store::workflow::lock(tx, id)?;
    let at = tx.at();
    match model::workflow::apply(&workflow, &WorkflowEvent::CancelWanted { reason }, at)? {
        Outcome::Moved { next, .. } => {
            store::workflow::save(tx, &next)?;
            tx.wake(WorkKind::Workflow, id.0, at);
            Ok(next)
        }
        Outcome::Unchanged => Ok(workflow),
    }
}

/// Another launch-run for the same job, while the job is open and has no machine (R146).
fn launch_again(tx: &mut Tx, context: &EngineContext, actor: &Actor, failed: &Workflow) -> Result<WorkflowId, Failure> {
    let job = failed.job.map(|job| store::job::find(tx, job)).transpose()?.flatten();
    let job = job.ok_or_else(|| Refused::not_found("job", failed.id))?;
    let mut run_tx = RunTx::open(tx, context, job.run)?;
    let waits = |job: &Job| job.workflow == failed.id && job.status == JobStatus::Submitted;
    let job = match run_tx.job(job.id) {
        Ok(found) if waits(found) => found.clone(),
        _ => {
            let why = format!("{} has ended or has a machine: repl retry {}", job.id, job.run);
            return Err(Refused::Conflict { why }.into());
        }
    };
    let begun = WorkflowId(run_tx.tx.next_id());
    run_tx.set_job(Job { workflow: begun, ..job.clone() })?;
    launch_run::begin(&mut run_tx, job.id, begun)?;
    let body = store::body!({ "job": job.id, "workflow": begun, "instead_of": failed.id, "by": actor.by });
    run_tx.publish("workflow.retried", body);
    run_tx.to_place.push_back(job.id);
    run_tx.close()?;
    Ok(begun)
}
