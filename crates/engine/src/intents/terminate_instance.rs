//! Terminate-instance: nobody lives there, the runner is told, the provider confirms. Until it has, the machine is somebody's to pay for.

use crate::Engine;
use crate::scope::Scope;
use crate::workflow::{self, Verdict};
use adapters::{Handle, Seen};
use model::instance::{Instance, InstanceEvent, InstanceStatus};
use model::time::{MINUTE, SECOND};
use model::workflow::{Intent, Node, NodeStatus, Workflow, WorkflowEvent};
use model::{Failure, InstanceId, ManifestId, Refused, Timestamp, WorkflowId};
use serde_json::json;
use store::{Item, Lane, Tx, WorkKind};

fn blueprint() -> Vec<Node> {
    vec![
        Node::new("validate", &[], MINUTE),
        Node::new("drain-allocations", &["validate"], 10 * MINUTE),
        Node::new("drain-ssh", &["drain-allocations"], MINUTE),
        Node::new("cleanup-features", &["drain-ssh"], MINUTE),
        Node::new("terminate", &["cleanup-features"], 10 * MINUTE),
    ]
}

/// Inside a run's transaction: the machine is decided upon there, the workflow does the rest.
pub(crate) fn begin_in(scope: &mut Scope<'_>, id: InstanceId, why: &str) -> Result<(), Failure> {
    if !crate::instance::terminate_in(scope, id)? {
        return Ok(());
    }
    let instance = scope.instance(id)?.it.clone();
    let workflow = open(scope.tx, &instance, why, scope.at)?;
    let mut next = instance;
    next.workflow = Some(workflow);
    scope.instance(id)?.set(next);
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
    let mut workflow = workflow::draft(id, manifest, instance.org, Intent::TerminateInstance, blueprint(), at);
    workflow.instance = Some(instance.id);
    workflow.input = json!({ "instance": instance.id, "why": why });
    workflow::open_manifest(tx, &workflow)?;
    store::workflow::insert(tx, &workflow)?;
    tx.wake(WorkKind::Workflow, id.0, at);
    Ok(id)
}

fn look(tx: &mut Tx, node: &Node, instance: &Instance, at: Timestamp) -> Result<Verdict, Failure> {
    Ok(match node.kind.as_str() {
        "validate" if instance.status.is_open() => {
            Verdict::Done(json!({ "name": instance.name, "handle": instance.handle }))
        }
        "validate" => Verdict::Done(json!({ "gone": true })),
        "drain-allocations" => match store::job::on_instance(tx, instance.id)? {
            Some(job) if instance.status.is_open() => {
                tx.wake(WorkKind::Job, job.id.0, at);
                Verdict::Waits(at + 10 * SECOND)
            }
            _ => Verdict::Done(json!({})),
        },
        "drain-ssh" | "cleanup-features" => Verdict::Done(json!({})), // no sessions and no features exist on this kind of machine
        "terminate" if !instance.status.is_open() => Verdict::Done(json!({ "confirmed": true })),
        "terminate" => Verdict::Act,
        other => Verdict::Failed(format!("terminate-instance has no node `{other}`")),
    })
}

/// The holder of the item: rows first; then, if the machine is to go, the provider; then what it said.
pub(crate) async fn act(engine: &Engine, item: Item, known: Workflow) -> Result<(), Failure> {
    let id = known.id;
    let Some((workflow, instance)) = step(engine, item, id, None).await? else { return Ok(()) };
    let acts = workflow.nodes.iter().any(|n| n.kind == "terminate" && n.status == NodeStatus::Running);
    if !acts || !instance.status.is_open() {
        return engine.done(item).await;
    }
    let said = ask_provider(engine, &instance).await;
    step(engine, item, id, Some(said)).await.map(drop)
}

/// What the provider said, as far as it decides anything.
#[derive(Clone)]
enum Said {
    Gone,
    Stranger,
    NotYet(String),
}

async fn ask_provider(engine: &Engine, instance: &Instance) -> Said {
    let provider = match engine.house.provider(&instance.provider) {
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
    let Some(handle) = handle else { return Said::Gone };
    match provider.inspect(&handle, &instance.nonce).await {
        Ok(Seen::Stranger) => return Said::Stranger,
        Ok(Seen::Gone) => return Said::Gone,
        Ok(Seen::Alive | Seen::RunnerGone) => {}
        Err(trouble) => return Said::NotYet(trouble.what),
    }
    match provider.terminate(&handle, &instance.nonce).await {
        Ok(()) => Said::Gone,
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
    let house = engine.house.clone();
    engine
        .store
        .write(Lane::Normal, "terminate_instance.step", move |tx| {
            store::work::hold(tx, &item)?;
            let at = tx.at();
            let mut workflow = store::workflow::lock(tx, id)?;
            let mut instance =
                store::instance::lock(tx, workflow.instance.expect("terminate-instance has an instance"))?;
            let asked = said.is_some();
            let mut again = None;
            match &said {
                None => {}
                Some(Said::Gone) => {
                    instance = crate::instance::event(tx, instance, InstanceEvent::ProviderConfirmedGone)?;
                    store::instance::save(tx, &instance)?;
                    instance.version += 1;
                    house.presence.forget(instance.id);
                }
                Some(Said::Stranger) => {
                    let error = "what bears its name now is not ours: hands off".to_owned();
                    fail(tx, &mut workflow, error, at)?;
                }
                Some(Said::NotYet(_)) => again = Some(at + backoff(&workflow)),
            }
            if let Some(Said::NotYet(why)) = &said {
                note_try(&mut workflow, why);
            }
            let acts = workflow::advance(tx, &mut workflow, at, |tx, _, node| look(tx, node, &instance, at))?;
            store::workflow::save(tx, &workflow)?;
            if asked || !acts {
                store::work::finish(tx, &item, again.or_else(|| model::workflow::deadline(&workflow)));
                return Ok(None);
            }
            Ok(Some((workflow, instance)))
        })
        .await
}

fn fail(tx: &mut Tx, workflow: &mut Workflow, error: String, at: Timestamp) -> Result<(), Failure> {
    let node = "terminate".to_owned();
    workflow::apply(tx, workflow, WorkflowEvent::NodeFailed { node: node.clone(), error }, at)?;
    workflow::apply(tx, workflow, WorkflowEvent::Compensated { node }, at)?;
    Ok(())
}

fn note_try(workflow: &mut Workflow, why: &str) {
    for node in workflow.nodes.iter_mut().filter(|n| n.kind == "terminate" && n.status == NodeStatus::Running) {
        node.tries += 1;
        node.error = Some(why.to_owned());
    }
}

/// 1 s … 60 s: a machine that does not go is asked again and again, never forgotten.
fn backoff(workflow: &Workflow) -> i64 {
    let tries = workflow.nodes.iter().find(|n| n.kind == "terminate").map_or(0, |n| n.tries);
    SECOND * (1 << tries.clamp(0, 6)).min(60)
}
