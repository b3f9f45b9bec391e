//! Terminate-instance: nobody lives there, the runner is told, the provider confirms. Until it has, the machine is somebody's to pay for.

use crate::run_tx::RunTx;
use crate::workflow::{self, Verdict};
use crate::{Engine, EngineContext};
use adapters::{Handle, Seen};
use model::bug;
use model::instance::{Instance, InstanceEvent, InstanceStatus};
use model::time::{MINUTE, SECOND};
use model::workflow::{Intent, Node, NodeStatus, Workflow, WorkflowEvent};
use model::{Failure, InstanceId, ManifestId, Refused, Timestamp, WorkflowId, crash_point};
use serde_json::json;
use std::sync::{Arc, LazyLock};
use store::{Item, Lane, NewEvent, Tx, WorkKind};

const TERMINATE: &str = "terminate";

static BLUEPRINT: LazyLock<Vec<Arc<Node>>> = LazyLock::new(|| {
    workflow::blueprint(vec![
        Node::new("validate", &[], MINUTE),
        Node::new("drain-allocations", &["validate"], 10 * MINUTE),
        Node::new("drain-ssh", &["drain-allocations"], MINUTE),
        Node::new("cleanup-features", &["drain-ssh"], MINUTE),
        Node::new(TERMINATE, &["cleanup-features"], 10 * MINUTE),
    ])
});

/// Inside a run's transaction: the machine is decided upon there, the workflow does the rest.
pub(crate) fn begin_in(run_tx: &mut RunTx<'_>, id: InstanceId, why: &str) -> Result<(), Failure> {
    if !crate::instance::terminate_in(run_tx, id)? {
        return Ok(());
    }
    let instance = run_tx.instance(id)?.it.clone();
    let workflow = open(run_tx.tx, &instance, why, run_tx.at)?;
    let mut next = instance;
    next.workflow = Some(workflow);
    run_tx.instance(id)?.set(next);
    Ok(())
}

/// In a transaction of its own. The caller has checked who may end it.
pub(crate) fn begin(tx: &mut Tx, id: InstanceId, why: &str) -> Result<WorkflowId, Failure> {
    let at = tx.at();
    let instance = store::instance::lock(tx, id)?;
    let mut next = match instance.status {
        InstanceStatus::Terminated => {
            return Err(Refused::Gone { what: "instance", why: "it is terminated already".into() }.into());
        }
        InstanceStatus::Terminating => instance,
        _ => crate::instance::event(tx, instance, InstanceEvent::TerminateAsked)?,
    };
    let workflow = open(tx, &next, why, at)?;
    next.workflow = Some(workflow);
    store::instance::save(tx, &next)?;
    Ok(workflow)
}

fn open(tx: &mut Tx, instance: &Instance, why: &str, at: Timestamp) -> Result<WorkflowId, Failure> {
    let (id, manifest) = (WorkflowId(tx.next_id()), ManifestId(tx.next_id()));
    let mut workflow = workflow::draft(id, manifest, instance.org, Intent::TerminateInstance, &BLUEPRINT, at);
    workflow.instance = Some(instance.id);
    workflow.input = Arc::new(json!({ "instance": instance.id, "why": why }));
    workflow::open_manifest(tx, &workflow)?;
    store::workflow::insert(tx, &workflow)?;
    tx.wake(WorkKind::Workflow, id.0, at);
    Ok(id)
}

fn reconcile(tx: &mut Tx, node: &Node, instance: &Instance, at: Timestamp) -> Result<Verdict, Failure> {
    Ok(match node.kind.as_str() {
        "validate" if instance.status.is_open() => {
            Verdict::Done(json!({ "name": instance.name, "handle": instance.handle }))
        }
        "validate" => Verdict::Done(json!({ "gone": true })),
        "drain-allocations" => match store::job::on_instance(tx, instance.id)? {
            // A job on a machine that is lost cannot leave it: it ends when the machine is surely gone.
            Some(job) if instance.status.is_open() && !job.lost => {
                tx.wake(WorkKind::Job, job.id.0, at);
                Verdict::Waits(at + 10 * SECOND)
            }
            _ => Verdict::Done(json!({})),
        },
        "drain-ssh" | "cleanup-features" => Verdict::Done(json!({})), // no sessions and no features exist on this kind of machine
        TERMINATE if !instance.status.is_open() => Verdict::Done(json!({ "confirmed": true })),
        TERMINATE => match node.waiting_until {
            Some(until) if until > at => Verdict::Waits(until),
            _ => Verdict::Act,
        },
        other => Verdict::Failed(format!("terminate-instance has no node `{other}`")),
    })
}

/// The holder of the item: rows first; then, if the machine is to go, the provider; then what it said.
pub(crate) async fn act(engine: &Engine, item: Item, known: Workflow) -> Result<(), Failure> {
    let id = known.id;
    let Some((workflow, instance)) = step(engine, item, id, None).await? else { return Ok(()) };
    let acts = workflow.nodes.iter().any(|n| n.kind == TERMINATE && n.status == NodeStatus::Running);
    if !acts || !instance.status.is_open() {
        return engine.done(item).await;
    }
    let said = ask_provider(engine, &instance).await;
    step(engine, item, id, Some(said)).await.map(drop)
}

/// What the provider said, as far as it decides anything.
#[derive(Clone)]
enum Said {
    Gone(Handle),
    /// Nothing bears its name.
    Unseen,
    Stranger,
    NotYet(String),
}

async fn ask_provider(engine: &Engine, instance: &Instance) -> Said {
    let provider = match engine.context.provider(&instance.provider) {
        Ok(provider) => provider,
        Err(refused) => return Said::NotYet(refused.to_string()),
    };
    let handle = match &instance.handle {
        Some(handle) => Some(Handle(handle.clone())),
        None => match provider.find_by_name(&instance.name).await {
            Ok(handle) => handle,
            Err(trouble) => return Said::NotYet(trouble.what),
        },
    };
    let Some(handle) = handle else { return Said::Unseen };
    match crash_point!("provider.inspect", provider.inspect(&handle, &instance.nonce).await) {
        Ok(Seen::Stranger) => return Said::Stranger,
        Ok(Seen::Gone) => return Said::Gone(handle),
        Ok(Seen::Alive | Seen::RunnerGone) => {}
        Err(trouble) => return Said::NotYet(trouble.what),
    }
    match crash_point!("provider.terminate", provider.terminate(&handle, &instance.nonce).await) {
        Ok(()) => Said::Gone(handle),
        Err(_) if bug!(failed_termination_believed) => Said::Gone(handle),
        Err(trouble) => Said::NotYet(trouble.what),
    }
}

/// One transaction: what is known goes in, the nodes advance, the item is finished unless the world is to be touched next.
async fn step(
    engine: &Engine,
    item: Item,
    id: WorkflowId,
    said: Option<Said>,
) -> Result<Option<(Workflow, Instance)>, Failure> {
    let context = engine.context.clone();
    engine
        .store
        .write(Lane::Normal, "terminate_instance.step", move |tx| {
            store::work::hold(tx, &item)?;
            let at = tx.at();
            let mut workflow = store::workflow::lock(tx, id)?;
            let mut instance =
                store::instance::lock(tx, workflow.instance.expect("terminate-instance has an instance"))?;
            let asked = said.is_some();
            match &said {
                None => {}
                Some(Said::Gone(handle)) => instance = gone(tx, &context, instance, Some(handle))?,
                Some(Said::Unseen) if may_still_appear(&instance, at) => {
                    not_yet(tx, &mut workflow, "it is not to be seen, which proves nothing yet", at)?;
                }
                Some(Said::Unseen) => instance = gone(tx, &context, instance, None)?,
                Some(Said::Stranger) => instance = displaced(tx, &context, instance)?,
                Some(Said::NotYet(why)) => not_yet(tx, &mut workflow, why, at)?,
            }
            let acts = workflow::advance(tx, &mut workflow, at, |tx, _, node| reconcile(tx, node, &instance, at))?.acts;
            store::workflow::save(tx, &workflow)?;
            if asked || !acts {
                store::work::finish(tx, &item, model::workflow::deadline(&workflow));
                return Ok(None);
            }
            Ok(Some((workflow, instance)))
        })
        .await
}

fn gone(
    tx: &mut Tx,
    context: &EngineContext,
    instance: Instance,
    handle: Option<&Handle>,
) -> Result<Instance, Failure> {
    let mut instance = match handle {
        // Found by name only now: whoever cleans up after it needs to know what it was.
        Some(handle) => crate::instance::event(tx, instance, InstanceEvent::Bound { handle: handle.0.clone() })?,
        None => instance,
    };
    instance = crate::instance::event(tx, instance, InstanceEvent::ProviderConfirmedGone)?;
    store::instance::save(tx, &instance)?;
    instance.version += 1;
    context.presence.forget(instance.id);
    Ok(instance)
}

/// A machine whose making nobody heard the end of may appear late: right after a call, *not found* proves nothing.
fn may_still_appear(instance: &Instance, at: Timestamp) -> bool {
    let asked = instance.terminating_at.unwrap_or(at);
    at.since(asked) < model::workflow::COMPENSATION_LIMIT_MS && !bug!(not_found_is_gone)
}

/// What bears its name now is not ours: hands off. Ours is lost, and whoever relied on it is told.
fn displaced(tx: &mut Tx, context: &EngineContext, mut instance: Instance) -> Result<Instance, Failure> {
    instance.displaced = true;
    let body = store::body!({ "instance": instance.id, "name": instance.name, "why": "somebody else's machine bears its name" });
    tx.event(NewEvent { org: instance.org, run: None, kind: "instance.lost", body });
    gone(tx, context, instance, None)
}

/// 1 s … 60 s: a machine that does not go is asked again and again, never forgotten.
fn not_yet(tx: &mut Tx, workflow: &mut Workflow, why: &str, at: Timestamp) -> Result<(), Failure> {
    let tries = workflow.nodes.iter().find(|n| n.kind == TERMINATE).map_or(0, |n| n.tries);
    let until = at + SECOND * (1 << tries.clamp(0, 6)).min(60);
    let (node, error) = (TERMINATE.to_owned(), why.to_owned());
    workflow::apply(tx, workflow, WorkflowEvent::NodeTroubled { node, error, uncertain: true, until }, at).map(drop)
}
