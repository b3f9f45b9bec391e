//! Launch-run: from a submitted job to its end, one workflow a job. On a warm machine everything up to the sync is done inside the submit.

use crate::Engine;
use crate::instance_cleanup::is_there_again;
use crate::intents::terminate_instance;
use crate::run_tx::{RunTx, Tracked};
use crate::workflow::{self, Verdict};
use adapters::{Handle, Order, Provider};
use model::bug;
use model::instance::{Instance, InstanceEvent, InstanceStatus};
use model::job::{JobEvent, JobStatus};
use model::pool::Slot;
use model::time::{MINUTE, SECOND};
use model::workflow::{Branch, Intent, Node, NodeStatus, Workflow, WorkflowEvent, WorkflowStatus};
use model::{Effect, Failure, JobId, ManifestId, RunId, Timestamp, Trouble, WorkflowId, crash_point};
use serde_json::json;
use std::sync::{Arc, LazyLock};
use store::{Item, Lane, WorkKind};

/// Tries of a spawn that failed in a way worth trying again.
const SPAWN_TRIES: i64 = 3;
const SPAWN: &str = "spawn-instance";
const CLAIM: &str = "claim-warm-allocation";

static BLUEPRINT: LazyLock<Vec<Arc<Node>>> = LazyLock::new(|| {
    workflow::blueprint(vec![
        Node::new("check-budget", &[], MINUTE),
        Node::new("resolve-instance", &["check-budget"], model::job::WAIT_LIMIT_MS),
        Node::new("choose-machine", &["resolve-instance"], MINUTE).branching(Branch {
            decided_by: "resolve-instance".into(),
            field: "warm".into(),
            then: CLAIM.into(),
            otherwise: SPAWN.into(),
            on_error: true,
        }),
        Node::new(CLAIM, &["choose-machine"], MINUTE).as_logical("instance"),
        Node::new(SPAWN, &["choose-machine"], model::instance::SPAWN_LIMIT_MS).as_logical("instance"),
        Node::new("wait-for-boot", &[CLAIM, SPAWN], model::job::BOOT_LIMIT_MS),
        Node::new("create-allocation", &["wait-for-boot"], MINUTE),
        Node::new("sync-files", &["create-allocation"], model::job::SYNC_LIMIT_MS),
        Node::new("await-completion", &["sync-files"], i64::MAX),
        Node::new("finalize-run", &["await-completion"], MINUTE),
    ])
});

/// The workflow's row and manifest; its nodes advance with the job.
pub(crate) fn begin(run_tx: &mut RunTx<'_>, job: JobId, id: WorkflowId) -> Result<(), Failure> {
    let manifest = ManifestId(run_tx.tx.next_id());
    let mut workflow = workflow::draft(id, manifest, run_tx.run.org, Intent::LaunchRun, &BLUEPRINT, run_tx.at);
    workflow.job = Some(job);
    workflow.input = Arc::new(json!({ "run": run_tx.run.id, "attempt": run_tx.run.attempt, "job": job }));
    workflow::open_manifest(run_tx.tx, &workflow)?;
    run_tx.workflows.push(Tracked::new(workflow));
    Ok(())
}

/// A warm slot was chosen and somebody else was faster: the claim failed and left nothing to undo, and the branch falls back to
/// a machine of its own.
pub(crate) fn claim_lost(run_tx: &mut RunTx<'_>, id: JobId, slot: &Slot) -> Result<(), Failure> {
    let (workflow_id, at) = (run_tx.job(id)?.workflow, run_tx.at);
    advance(run_tx, id)?;
    let mut workflow = run_tx.workflow(workflow_id)?.it.clone();
    let chosen = json!({ "warm": true, "instance": slot.instance });
    let error = format!("{} was taken or its machine left before it could be claimed", slot.allocation);
    for event in [
        WorkflowEvent::NodeDone { node: "resolve-instance".into(), output: chosen },
        WorkflowEvent::NodeFailed { node: CLAIM.into(), error },
        WorkflowEvent::Compensated { node: CLAIM.into() },
    ] {
        workflow::apply(run_tx.tx, &mut workflow, event, at)?;
    }
    run_tx.workflow(workflow_id)?.set(workflow);
    Ok(())
}

/// Brings the nodes to where the job is. Called after every event of the job.
pub(crate) fn advance(run_tx: &mut RunTx<'_>, id: JobId) -> Result<(), Failure> {
    let job = run_tx.job(id)?.clone();
    let at = run_tx.at;
    let mut workflow = run_tx.workflow(job.workflow)?.it.clone();
    if workflow.status.is_end() {
        return Ok(());
    }
    let mut advanced =
        workflow::advance(run_tx.tx, &mut workflow, at, |tx, workflow, node| reconcile(tx, workflow, node, &job, at))?;
    if job.status.is_end() && !workflow.status.is_end() && workflow.status != WorkflowStatus::RollingBack {
        advanced.moved |= workflow::apply(run_tx.tx, &mut workflow, WorkflowEvent::CancelAsked, at)?.moved;
    }
    if advanced.acts {
        run_tx.wake(WorkKind::Workflow, workflow.id.0, at);
    }
    if advanced.moved {
        run_tx.workflow(job.workflow)?.set(workflow);
    }
    Ok(())
}

/// Rows only: what the job's state says about each node.
fn reconcile(
    tx: &mut store::Tx,
    workflow: &Workflow,
    node: &Node,
    job: &model::job::Job,
    at: Timestamp,
) -> Result<Verdict, Failure> {
    let wait = |ms: i64| Verdict::Waits(Timestamp(job.submitted_at.ms().saturating_add(ms)));
    let synced = job.running_at.is_some();
    Ok(match node.kind.as_str() {
        "check-budget" => Verdict::Done(json!({})), // the reservation stands, or the run would not have started
        "resolve-instance" if job.status == JobStatus::Submitted => wait(node.timeout_ms),
        "resolve-instance" => Verdict::Done(json!({ "warm": job.warm, "instance": job.instance })),
        CLAIM => Verdict::Done(json!({ "instance": job.instance, "allocation": job.allocation })),
        SPAWN => spawned(tx, node, job, at)?,
        "wait-for-boot" if job.accepted_at.is_some() || job.warm => Verdict::Done(json!({})),
        "wait-for-boot" => wait(node.timeout_ms),
        "create-allocation" => Verdict::Done(json!({ "allocation": job.allocation, "epoch": job.epoch })),
        "sync-files" if synced => Verdict::Done(json!({ "fetched_blobs": job.synced_blobs })),
        "sync-files" => wait(node.timeout_ms),
        "await-completion" if job.status.is_end() => {
            Verdict::Done(json!({ "reason": job.reason, "exit_code": job.exit_code }))
        }
        "await-completion" => wait(i64::MAX),
        "finalize-run" => Verdict::Done(json!({ "status": job.status })),
        other => Verdict::Failed(format!("launch-run has no node `{other}` ({})", workflow.id)),
    })
}

/// A machine that is bound or has registered is there, whoever made the call.
fn spawned(tx: &mut store::Tx, node: &Node, job: &model::job::Job, at: Timestamp) -> Result<Verdict, Failure> {
    let instance = job.instance.map(|id| store::instance::find(tx, id)).transpose()?.flatten();
    Ok(match instance {
        Some(i) if i.status == InstanceStatus::Spawning => match node.waiting_until {
            Some(until) if until > at => Verdict::Waits(until),
            _ => Verdict::Act,
        },
        Some(i) => Verdict::Done(json!({ "instance": i.id, "name": i.name, "handle": i.handle })),
        None => Verdict::Act, // announced in this very transaction; its row follows
    })
}

/// The holder of the item: makes the machine, or undoes a failed making.
pub(crate) async fn act(engine: &Engine, item: Item, workflow: Workflow) -> Result<(), Failure> {
    let job_id = workflow.job.expect("launch-run has a job");
    let job = engine
        .store
        .read_inline("job.find", move |tx| store::job::find(tx, job_id))
        .await?
        .expect("jobs are never deleted");
    let Some(instance_id) = job.instance else { return engine.done(item).await };
    let instance = engine.store.read_inline("instance.find", move |tx| store::instance::find(tx, instance_id)).await?;
    let instance = instance.expect("instances are never deleted");
    let provider = engine.context.provider(&instance.provider)?.clone();
    let spawning = instance.status == InstanceStatus::Spawning && running_spawn(&workflow).is_some();
    let outcome = match workflow.status {
        WorkflowStatus::RollingBack => Act::Undone,
        _ if spawning => spawn(engine, &*provider, &instance).await,
        // It has registered before the answer of its making was written down.
        _ if instance.handle.is_none() && instance.status.is_open() => {
            let found = provider.find_by_name(&instance.name).await.ok().flatten();
            found.map_or(Act::Nothing, Act::Spawned)
        }
        _ => Act::Nothing,
    };
    let made = match &outcome {
        Act::Spawned(handle) => Some(handle.clone()),
        _ => None,
    };
    let wanted = write_down(engine, item, job.run, job_id, outcome).await?;
    if let Some(handle) = made.filter(|_| !wanted) {
        // It came so late that it had been given up: whoever made it ends it.
        provider.terminate(&handle, &instance.nonce).await?;
        provider.forget(&handle).await?;
    }
    Ok(())
}

async fn spawn(engine: &Engine, provider: &dyn Provider, instance: &Instance) -> Act {
    let order = Order {
        boot: crate::pool::boot(&engine.context, instance),
        region: instance.region.clone(),
        resources: instance.resources.clone(),
    };
    match crash_point!("provider.spawn", provider.spawn(&order).await) {
        Ok(handle) => Act::Spawned(handle),
        // It may have happened, now or by somebody who died before saying so: look by name before anything else is believed.
        Err(trouble) => match provider.find_by_name(&instance.name).await {
            Ok(Some(handle)) => Act::Spawned(handle),
            Ok(None) => Act::Failed(trouble),
            Err(_) if trouble.effect == Effect::Perhaps => Act::Failed(Trouble { retry: true, ..trouble }),
            Err(_) => Act::Failed(trouble.perhaps()),
        },
    }
}

#[derive(Clone)]
enum Act {
    Nothing,
    Spawned(Handle),
    Failed(Trouble),
    Undone,
}

/// False: what was made is not wanted any more.
async fn write_down(engine: &Engine, item: Item, run: RunId, job: JobId, act: Act) -> Result<bool, Failure> {
    let context = engine.context.clone();
    engine
        .store
        .write(Lane::Normal.of(run), "launch_run.act", move |tx| {
            let seen = store::work::hold(tx, &item)?;
            let mut run_tx = RunTx::open(tx, &context, run)?;
            if run_tx.job(job).is_err() {
                // Of an earlier attempt: its machine is looked after by its own item, as long as it has a row that is open.
                store::work::finish(tx, &item, None);
                let machine = store::job::find(tx, job)?.and_then(|job| job.instance);
                let machine = machine.map(|id| store::instance::find(tx, id)).transpose()?.flatten();
                if let Some(machine) = machine.as_ref().filter(|machine| !machine.status.is_open()) {
                    is_there_again(tx, machine.id)?;
                }
                return Ok(machine.is_some_and(|machine| machine.status.is_open()));
            }
            let mut wanted = true;
            match &act {
                Act::Nothing => advance(&mut run_tx, job)?,
                Act::Spawned(handle) => wanted = bound(&mut run_tx, job, handle)?,
                Act::Failed(trouble) => failed(&mut run_tx, job, trouble)?,
                Act::Undone => undone(&mut run_tx, job)?,
            }
            let id = run_tx.job(job)?.workflow;
            let next = retry_at(&run_tx.workflow(id)?.it);
            run_tx.close()?;
            store::work::finish(tx, &item.seen(seen), next);
            Ok(wanted)
        })
        .await
}

/// When the spawn is tried again.
fn retry_at(workflow: &Workflow) -> Option<Timestamp> {
    running_spawn(workflow).and_then(|node| node.waiting_until)
}

fn running_spawn(workflow: &Workflow) -> Option<&Node> {
    workflow.nodes.iter().map(|n| &**n).find(|n| n.kind == SPAWN && n.status == NodeStatus::Running)
}

fn bound(run_tx: &mut RunTx<'_>, job: JobId, handle: &Handle) -> Result<bool, Failure> {
    if let Some(instance) = run_tx.job(job)?.instance {
        if !run_tx.instance(instance)?.it.status.is_open() {
            is_there_again(run_tx.tx, instance)?; // if whoever makes it cannot end it, its item does
            return Ok(false);
        }
        crate::instance::event_in(run_tx, instance, InstanceEvent::Bound { handle: handle.0.clone() })?;
        // A machine whose runner never comes up is noticed by asking, not by waiting for the limit.
        run_tx.wake(WorkKind::Instance, instance.0, run_tx.at + crate::instance::ASK_AGAIN_MS);
    }
    // The instance's row is written when the working set is written; the node is done by what it says now.
    of_spawn(run_tx, job, |node| WorkflowEvent::NodeDone { node, output: json!({ "handle": handle.0 }) })?;
    advance(run_tx, job)?;
    Ok(true)
}

fn failed(run_tx: &mut RunTx<'_>, job: JobId, trouble: &Trouble) -> Result<(), Failure> {
    if let Some(instance) = run_tx.job(job)?.instance
        && run_tx.instance(instance)?.it.status != InstanceStatus::Spawning
    {
        return advance(run_tx, job); // whatever the call said: its runner has come, or it was given up meanwhile
    }
    let id = run_tx.job(job)?.workflow;
    let tries = running_spawn(&run_tx.workflow(id)?.it).map_or(0, |node| node.tries);
    let until = run_tx.at + SECOND * (1 << tries.clamp(0, 6));
    let (error, uncertain) = (trouble.what.clone(), trouble.effect == Effect::Perhaps);
    of_spawn(run_tx, job, |node| WorkflowEvent::NodeTroubled { node, error: error.clone(), uncertain, until })?;
    if trouble.retry && tries < SPAWN_TRIES {
        return Ok(());
    }
    of_spawn(run_tx, job, |node| WorkflowEvent::NodeFailed { node, error: error.clone() })?;
    undone(run_tx, job)
}

/// A making that failed: the job ends for want of a machine, and what may exist all the same is terminate-instance's from now on. All
/// in one transaction, so that a runner that comes meanwhile finds nothing to begin, on a machine that nobody is given.
fn undone(run_tx: &mut RunTx<'_>, job: JobId) -> Result<(), Failure> {
    let (why, uncertain) = compensated(run_tx, job)?;
    let Some(id) = run_tx.job(job)?.instance else { return Ok(()) };
    // The machine goes first: then, if there never was one, nothing of the job can be left anywhere.
    let registered = run_tx.instance(id)?.it.ready_at.is_some();
    if run_tx.instance(id)?.it.status == InstanceStatus::Spawning {
        if uncertain && !bug!(uncertain_spawn_forgotten) {
            terminate_instance::begin_in(run_tx, id, "it may exist although its making failed")?;
        } else {
            crate::instance::event_in(run_tx, id, InstanceEvent::SpawnFailed)?;
        }
    }
    if run_tx.job(job)?.status == JobStatus::Provisioning {
        run_tx.job_event(job, JobEvent::ProviderRefused { why: format!("no machine could be started: {why}") })?;
    }
    // A runner that never registered was never given the job; one that did is stopped, or fenced.
    if !registered || !run_tx.instance(id)?.it.status.is_open() {
        run_tx.job_event(job, JobEvent::GaveUpOn)?;
    }
    Ok(())
}

/// Closes the failed node; returns why it failed, and whether it may have happened all the same.
fn compensated(run_tx: &mut RunTx<'_>, job: JobId) -> Result<(String, bool), Failure> {
    let id = run_tx.job(job)?.workflow;
    let mut workflow = run_tx.workflow(id)?.it.clone();
    let failed = workflow.nodes.iter().rev().find(|n| n.status == NodeStatus::Failed).cloned();
    let Some(failed) = failed else { return Ok((String::new(), true)) };
    workflow::apply(run_tx.tx, &mut workflow, WorkflowEvent::Compensated { node: failed.name.clone() }, run_tx.at)?;
    run_tx.workflow(id)?.set(workflow);
    Ok((failed.error.clone().unwrap_or_default(), failed.uncertain))
}

/// One event of the spawn that is under way, if one is.
fn of_spawn(run_tx: &mut RunTx<'_>, job: JobId, event: impl Fn(String) -> WorkflowEvent) -> Result<(), Failure> {
    let id = run_tx.job(job)?.workflow;
    let mut workflow = run_tx.workflow(id)?.it.clone();
    if let Some(node) = running_spawn(&workflow).map(|node| node.name.clone()) {
        workflow::apply(run_tx.tx, &mut workflow, event(node), run_tx.at)?;
        run_tx.workflow(id)?.set(workflow);
    }
    Ok(())
}
