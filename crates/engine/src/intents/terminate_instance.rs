//! Terminate-instance: no job is left on the machine, the runner is told, the provider confirms. Until it has, the machine may cost
//! money, so the last node has no time limit and is tried until the provider answers.

mod features;

use crate::instance_cleanup::missing_until;
use crate::manifest::is_open;
use crate::transition::{Machines, instance_event};
use crate::workflow::kind::{ActFuture, Blueprint, NodeError, NodeKind, NodeTx, Port, Verdict, read_order, to_value};
use crate::{Engine, EngineContext, workflow};
use adapters::{Handle, Seen};
use features::{CleanupFeatures, RemoveFeature};
use model::bug;
use model::instance::{Instance, InstanceEvent, InstanceStatus};
use model::time::SECOND;
use model::workflow::{Intent, Node};
use model::{Failure, InstanceId, ManifestId, Refused, Timestamp, Trouble, WorkflowId, crash_point};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::sync::LazyLock;
use store::{NewEvent, Tx, WorkKind};

const VALIDATE: &str = "validate";
const DRAIN: &str = "drain-allocations";
const CLEAN_UP: &str = "cleanup-features";
const TERMINATE: &str = "terminate";

pub(crate) static BLUEPRINT: LazyLock<Blueprint> = LazyLock::new(|| {
    Blueprint::of(Intent::TerminateInstance)
        .node(Node::new(VALIDATE, &[], None), &Validate)
        .node(Node::new(DRAIN, &[VALIDATE], None), &DrainAllocations)
        .node(Node::new(CLEAN_UP, &[DRAIN], None), &CleanupFeatures)
        .kind(features::REMOVE, &RemoveFeature)
        .node(Node::new(TERMINATE, &[CLEAN_UP], None), &Terminate)
        .checked()
});

#[derive(Serialize)]
struct Input<'a> {
    instance: InstanceId,
    why: &'a str,
}

/// The machine is on its way out from this transaction on; the workflow does the rest. None: it was on its way out before. The caller
/// has checked who may end it.
pub(crate) fn begin(machines: &mut impl Machines, id: InstanceId, why: &str) -> Result<Option<WorkflowId>, Failure> {
    let instance = machines.machine(id)?;
    if matches!(instance.status, InstanceStatus::Terminating | InstanceStatus::Terminated) {
        return Ok(None);
    }
    let next = instance_event(machines, instance, InstanceEvent::TerminateAsked)?;
    let at = machines.tx().at();
    open(machines, next, why, at).map(Some)
}

/// For a machine that is made to be ended: its end is under way from its first row on, and comes at `due`, whichever workers live by then.
pub(crate) fn begin_at(tx: &mut Tx, id: InstanceId, why: &str, due: Timestamp) -> Result<WorkflowId, Failure> {
    let instance = tx.machine(id)?;
    let next = instance_event(tx, instance, InstanceEvent::TerminateAsked)?;
    open(tx, next, why, due)
}

/// A new workflow for a machine that an earlier one could not end.
pub(crate) fn begin_again(tx: &mut Tx, failed: WorkflowId, id: InstanceId, why: &str) -> Result<WorkflowId, Failure> {
    if let Some(begun) = begin(tx, id, why)? {
        return Ok(begun);
    }
    let instance = tx.machine(id)?;
    if instance.status == InstanceStatus::Terminated {
        return Err(Refused::Gone { what: "instance", why: "it is terminated already".into() }.into());
    }
    if let Some(other) = instance.workflow.filter(|other| *other != failed)
        && is_open(tx, Some(other))?
    {
        return Err(Refused::Conflict { why: format!("{other} ends {id} already") }.into());
    }
    let at = tx.at();
    open(tx, instance, why, at)
}

fn open(
    machines: &mut impl Machines,
    mut instance: Instance,
    why: &str,
    due: Timestamp,
) -> Result<WorkflowId, Failure> {
    let tx = machines.tx();
    let (at, id, manifest) = (tx.at(), WorkflowId(tx.next_id()), ManifestId(tx.next_id()));
    let input = Input { instance: instance.id, why };
    let mut workflow = BLUEPRINT.draft((id, manifest, instance.org), &input, at);
    workflow.instance = Some(instance.id);
    workflow::open_manifest(tx, &workflow)?;
    store::workflow::insert(tx, &workflow)?;
    tx.wake(WorkKind::Workflow, id.0, due);
    instance.workflow = Some(id);
    machines.set_machine(instance)?;
    Ok(id)
}

/// The machine, with its row locked: no other transaction claims or ends it while a node decides.
fn locked(node: &mut NodeTx<'_, '_, '_>) -> Result<Instance, NodeError> {
    let Some(id) = node.workflow.instance else {
        return Err(NodeError::Fails("its workflow has no instance".into()));
    };
    Ok(store::instance::lock(node.scope.tx(), id)?)
}

struct Validate;
const VALID: Port<Valid> = Port::new(VALIDATE);

#[derive(Serialize, Deserialize)]
struct Valid {
    name: String,
    handle: Option<String>,
    gone: bool,
}

impl NodeKind for Validate {
    fn inside(&self, node: &mut NodeTx<'_, '_, '_>) -> Result<Verdict, NodeError> {
        let instance = locked(node)?;
        let gone = !instance.status.is_open();
        Ok(VALID.done(&Valid { name: instance.name, handle: instance.handle, gone }))
    }
}

/// Waits for the job on the machine. It has no time limit of its own: the job's deadlines end it.
struct DrainAllocations;
const LOOK_AGAIN_MS: i64 = 10 * SECOND;

impl NodeKind for DrainAllocations {
    fn inside(&self, node: &mut NodeTx<'_, '_, '_>) -> Result<Verdict, NodeError> {
        let (instance, at) = (locked(node)?, node.at());
        let tx = node.scope.tx();
        Ok(match store::job::on_instance(tx, instance.id)? {
            // A job on a machine that is lost cannot leave it: it ends when the machine is surely gone.
            Some(job) if instance.status.is_open() && !job.lost => {
                tx.wake(WorkKind::Job, job.id.0, at);
                Verdict::Waits(Some(at + LOOK_AGAIN_MS))
            }
            _ => Verdict::Done(to_value(&Nothing {})),
        })
    }
}

#[derive(Serialize, Deserialize)]
struct Nothing {}

/// Ends the machine and waits until its provider confirms that it is gone.
struct Terminate;
const TERMINATED: Port<Terminated> = Port::new(TERMINATE);

#[derive(Serialize, Deserialize)]
struct Terminated {
    confirmed: bool,
}

impl NodeKind for Terminate {
    fn inside(&self, node: &mut NodeTx<'_, '_, '_>) -> Result<Verdict, NodeError> {
        let instance = locked(node)?;
        if !instance.status.is_open() {
            return Ok(TERMINATED.done(&Terminated { confirmed: true }));
        }
        Ok(Verdict::Act(to_value(&instance)))
    }

    fn act(&self, engine: &Engine, order: Value) -> ActFuture {
        let context = engine.context.clone();
        Box::pin(async move { Ok(to_value(&ask_provider(&context, &read_order::<Instance>(order)?).await)) })
    }

    fn record(
        &self,
        node: &mut NodeTx<'_, '_, '_>,
        _: &Value,
        found: &Result<Value, Trouble>,
    ) -> Result<Verdict, NodeError> {
        let said: Said = read_order(found.clone()?)?;
        let instance = locked(node)?;
        let at = node.at();
        if instance.status.is_open() {
            let unseen_until = may_appear_until(node.scope.tx(), &instance, at)?;
            let (tx, context) = node.scope.tx_and_context();
            match said {
                Said::Gone(handle) => gone(tx, context, instance, Some(&handle))?,
                Said::Unseen if at < unseen_until && !bug!(not_found_is_gone) => {
                    let why = "its provider does not list it, which is inconclusive for 5 minutes";
                    return Ok(node.again(why.into(), true, None));
                }
                Said::Unseen => gone(tx, context, instance, None)?,
                Said::Stranger => displaced(tx, context, instance)?,
                Said::NotYet { why, retry_after_ms } => return Ok(node.again(why, true, retry_after_ms)),
            }
        }
        Ok(TERMINATED.done(&Terminated { confirmed: true }))
    }
}

/// What the provider said, as far as it decides anything.
#[derive(Serialize, Deserialize)]
enum Said {
    /// It is gone; it had this handle.
    Gone(String),
    /// Nothing has its name.
    Unseen,
    /// Something has its name and not its nonce.
    Stranger,
    NotYet {
        why: String,
        retry_after_ms: Option<i64>,
    },
}

impl From<Trouble> for Said {
    fn from(trouble: Trouble) -> Said {
        Said::NotYet { why: trouble.what, retry_after_ms: trouble.retry_after_ms }
    }
}

async fn ask_provider(context: &EngineContext, instance: &Instance) -> Said {
    let provider = match context.provider(&instance.provider) {
        Ok(provider) => provider,
        Err(refused) => return Said::NotYet { why: refused.to_string(), retry_after_ms: None },
    };
    let handle = match &instance.handle {
        Some(handle) => Some(Handle(handle.clone())),
        None => match provider.find_at(&instance.name, instance.place.as_deref()).await {
            Ok(handle) => handle,
            Err(trouble) => return trouble.into(),
        },
    };
    let Some(handle) = handle else { return Said::Unseen };
    match crash_point!("provider.inspect", provider.inspect(&handle, &instance.nonce).await) {
        Ok(Seen::Stranger) => return Said::Stranger,
        Ok(Seen::Gone) => return Said::Gone(handle.0),
        Ok(Seen::Alive | Seen::RunnerGone | Seen::Queued { .. }) => {}
        Err(trouble) => return trouble.into(),
    }
    match crash_point!("provider.terminate", provider.terminate(&handle, &instance.nonce).await) {
        Ok(()) => Said::Gone(handle.0),
        Err(_) if bug!(failed_termination_believed) => Said::Gone(handle.0),
        Err(trouble) => trouble.into(),
    }
}

fn gone(tx: &mut Tx, context: &EngineContext, instance: Instance, handle: Option<&str>) -> Result<(), Failure> {
    let mut instance = match handle {
        // It may have been found by name only now: the cleanup of its folders needs the handle.
        Some(handle) => instance_event(tx, instance, InstanceEvent::Bound { handle: handle.to_owned() })?,
        None => instance,
    };
    instance = instance_event(tx, instance, InstanceEvent::ProviderConfirmedGone)?;
    store::instance::save(tx, &instance)?;
    context.presence.forget(instance.id);
    Ok(())
}

/// A spawn call whose end was never recorded may make the machine late: "not found" is inconclusive for 5 minutes after the
/// termination was asked for, our own outages taken out.
fn may_appear_until(tx: &mut Tx, instance: &Instance, at: Timestamp) -> Result<Timestamp, Failure> {
    missing_until(tx, instance.terminating_at.unwrap_or(at))
}

/// The machine that has its name now is not ours and is left alone. Ours is lost, which an event says.
fn displaced(tx: &mut Tx, context: &EngineContext, mut instance: Instance) -> Result<(), Failure> {
    instance.displaced = true;
    let body = store::body!({ "instance": instance.id, "name": instance.name, "why": "somebody else's machine bears its name" });
    tx.event(NewEvent { org: instance.org, run: None, kind: "instance.lost", body });
    gone(tx, context, instance, None)
}
