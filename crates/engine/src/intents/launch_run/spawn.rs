//! spawn-instance: the machine's row and name are committed first, then its provider is asked to make it, then the answer is
//! recorded. A machine that comes too late is ended by the worker that made it; one that may exist goes to terminate-instance.
//! An alternative is another offer: the job enters that provider's and region's pool like any other, and gets a row and a name of its own
//! there.

use super::{Claimed, MACHINE, Machine, RESOLVED, Tried, claim};
use crate::Engine;
use crate::instance_cleanup::is_there_again;
use crate::intents::terminate_instance;
use crate::run_tx::RunTx;
use crate::workflow::kind::{ActFuture, NodeError, NodeKind, NodeTx, Undo, Verdict, read_order, to_value};
use adapters::{Handle, Order, Provider};
use model::allocation::AllocationEvent;
use model::bug;
use model::instance::{Instance, InstanceEvent, InstanceStatus};
use model::job::{FreezeState, Job, JobEvent, JobStatus};
use model::manifest::ResourceKind;
use model::offer::Offer;
use model::workflow::gives_way;
use model::{Effect, Failure, InstanceId, JobId, ManifestId, Trouble, TroubleKind, crash_point};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use store::WorkKind;

pub(super) struct SpawnInstance;

/// Beside the machine in an order: an earlier try of it may have had its effect.
const TRIED: &str = "tried";

/// What the provider made.
#[derive(Serialize, Deserialize)]
struct Made {
    handle: String,
}

/// A machine that was made and is not wanted.
#[derive(Serialize, Deserialize)]
struct Unwanted {
    provider: String,
    handle: String,
    nonce: String,
}

impl NodeKind for SpawnInstance {
    /// A machine whose handle is stored, or whose runner has registered, exists; it does not matter which worker made the call.
    fn inside(&self, node: &mut NodeTx<'_, '_, '_>) -> Result<Verdict, NodeError> {
        let (alternative, asked, uncertain) = (node.parameters::<Tried>()?.offer, node.asked, node.node.uncertain);
        let first = node.read(&RESOLVED)?.offers.into_iter().next();
        let (is_alternative, manifest) = (alternative.is_some(), node.workflow.manifest);
        let (run_tx, id) = node.run()?;
        if run_tx.job(id)?.instance.is_none() {
            if run_tx.job(id)?.status.is_end() {
                return Ok(Verdict::Cancelled);
            }
            match (alternative, first) {
                (Some(offer), _) => {
                    if let Some(verdict) = place_elsewhere(run_tx, id, &offer, asked)? {
                        return Ok(verdict);
                    }
                }
                (None, Some(offer)) => run_tx.announce(id, &offer)?,
                (None, None) => return Err(NodeError::Fails("no machine was offered".into())),
            }
        }
        let job = run_tx.job(id)?.clone();
        let instance = peek(run_tx, job.instance)?;
        Ok(match instance {
            Some(instance) if instance.status != InstanceStatus::Spawning => {
                let (name, handle) = (Some(instance.name), instance.handle);
                MACHINE.done(&Machine { instance: instance.id, allocation: job.allocation, name, handle })
            }
            _ if job.status.is_end() => Verdict::Cancelled,
            Some(mut instance) => {
                if bug!(alternative_with_the_first_key) && is_alternative {
                    instance.name = name_of_the_first(run_tx, manifest)?;
                }
                let mut order = to_value(&instance);
                order[TRIED] = uncertain.into();
                Verdict::Act(order)
            }
            None => Verdict::Waits(None),
        })
    }

    fn act(&self, engine: &Engine, order: Value) -> ActFuture {
        let context = engine.context.clone();
        Box::pin(async move {
            let tried = order[TRIED] != Value::Bool(false);
            let instance: Instance = read_order(order)?;
            let provider =
                context.provider(&instance.provider).map_err(|refused| Trouble::internal(refused.to_string()))?;
            let order = crate::pool::order(&context, &instance);
            let handle = spawn(provider.as_ref(), &order, &instance, tried).await?;
            Ok(to_value(&Made { handle: handle.0 }))
        })
    }

    fn record(
        &self,
        node: &mut NodeTx<'_, '_, '_>,
        order: &Value,
        found: &Result<Value, Trouble>,
    ) -> Result<Verdict, NodeError> {
        let ordered: Instance = read_order(order.clone())?;
        let (run_tx, job) = node.run()?;
        let of_this_attempt = run_tx.job(job).is_ok();
        if found.is_err() && ordered.place.is_some() {
            crate::host::wake(run_tx.tx, run_tx.context, &ordered.provider)?; // is it the host that cannot be used?
        }
        match found {
            Ok(made) => {
                let made: Made = read_order(made.clone())?;
                // An earlier attempt's machine is looked after by its own item, as long as its row is open.
                let is_open = peek(run_tx, Some(ordered.id))?.is_some_and(|instance| instance.status.is_open());
                if !is_open {
                    is_there_again(run_tx.tx, ordered.id)?; // if this worker cannot end it, the instance's item does
                    let Instance { provider, nonce, .. } = ordered;
                    return Ok(Verdict::Unwanted(to_value(&Unwanted { provider, handle: made.handle, nonce })));
                }
                if of_this_attempt {
                    run_tx.instance_event(ordered.id, InstanceEvent::Bound { handle: made.handle })?;
                    // A machine whose runner never comes up is noticed by asking, not by waiting for the limit.
                    run_tx.wake(WorkKind::Instance, ordered.id.0, run_tx.at + crate::instance::ASK_AGAIN_MS);
                    if run_tx.context.is_linked(&ordered.provider) {
                        run_tx.wake(WorkKind::Link, ordered.id.0, run_tx.at);
                    }
                    return self.inside_if_open(node);
                }
                Ok(Verdict::Waits(None))
            }
            // Whatever the call said: its runner has come, or it was given up meanwhile.
            Err(_) if peek(run_tx, Some(ordered.id))?.is_none_or(|i| i.status != InstanceStatus::Spawning) => {
                if of_this_attempt {
                    self.inside_if_open(node)
                } else {
                    Ok(Verdict::Waits(None))
                }
            }
            // A region that is full now is full in two seconds: where there is another one, it is tried at once.
            Err(trouble) if trouble.kind == TroubleKind::Capacity && gives_way(node.workflow, node.node) => {
                let uncertain = trouble.effect == Effect::Perhaps;
                Ok(Verdict::Failed { error: trouble.what.clone(), uncertain })
            }
            Err(trouble) => Ok(node.troubled(trouble)),
        }
    }

    /// Where an alternative follows, the job gives its place up and waits for the next; else it ends for want of a machine. What may exist all the same is terminate-instance's from now on. All in one
    /// transaction, so that a runner that comes meanwhile finds nothing to begin, on a machine that gets no job.
    fn undo(&self, node: &mut NodeTx<'_, '_, '_>) -> Result<Undo, NodeError> {
        let (why, uncertain) = (node.node.error.clone().unwrap_or_default(), node.node.uncertain);
        let goes_on = gives_way(node.workflow, node.node);
        let (run_tx, job) = node.run()?;
        let refused = JobEvent::ProviderRefused { why: format!("no machine could be started: {why}") };
        let Some(id) = run_tx.job(job)?.instance else {
            if !goes_on && run_tx.job(job)?.status == JobStatus::Submitted {
                run_tx.job_event(job, refused)?;
            }
            return Ok(Undo::Done);
        };
        // The machine goes first: then, if there never was one, nothing of the job can be left anywhere.
        let registered = run_tx.instance(id)?.it.ready_at.is_some();
        if goes_on && !registered && run_tx.job(job)?.status == JobStatus::Provisioning {
            give_place_up(run_tx, job)?;
        }
        if run_tx.instance(id)?.it.status == InstanceStatus::Spawning {
            if uncertain && !bug!(uncertain_spawn_forgotten) {
                terminate_instance::begin(run_tx, id, "it may exist although its making failed")?;
                run_tx.wake(WorkKind::ScanName, id.0, run_tx.at);
            } else {
                run_tx.instance_event(id, InstanceEvent::SpawnFailed)?;
            }
        }
        if run_tx.job(job)?.status == JobStatus::Provisioning {
            run_tx.job_event(job, refused)?;
        }
        if run_tx.job(job)?.instance != Some(id) {
            return Ok(Undo::Done); // the job goes on elsewhere
        }
        // A runner that never registered was never given the job; one that did is stopped, or fenced.
        if !registered || !run_tx.instance(id)?.it.status.is_open() {
            run_tx.job_event(job, JobEvent::GaveUpOn)?;
        }
        Ok(Undo::Done)
    }

    /// Ends a machine that came so late that it had been given up.
    fn compensate(&self, engine: &Engine, order: Value) -> ActFuture {
        let context = engine.context.clone();
        Box::pin(async move {
            let Unwanted { provider, handle, nonce } = read_order(order)?;
            let provider = context.provider(&provider).map_err(|refused| Trouble::internal(refused.to_string()))?;
            let handle = Handle(handle);
            provider.terminate(&handle, &nonce).await?;
            provider.forget(&handle).await?;
            Ok(Value::Null)
        })
    }
}

impl SpawnInstance {
    /// A node that has ended has nothing to decide: its job may have another machine by now.
    fn inside_if_open(&self, node: &mut NodeTx<'_, '_, '_>) -> Result<Verdict, NodeError> {
        if node.node.status.is_end() { Ok(Verdict::Waits(None)) } else { self.inside(node) }
    }
}

/// The job has no machine any more. Its slot goes with the machine that was to have it.
fn give_place_up(run_tx: &mut RunTx<'_>, job: JobId) -> Result<(), Failure> {
    let slot = run_tx.job(job)?.allocation;
    run_tx.job_event(job, JobEvent::PlaceLost)?;
    if let Some(slot) = slot {
        run_tx.allocation_event(slot, AllocationEvent::LifecycleFailed { replenish: false, hold_until: None })?;
    }
    Ok(())
}

/// The first commit moves the job to the offer's pool; the next one, by the job's own item, places it there under that pool's
/// lock: on a slot that is free, on a new machine, or in the list. None: its machine is announced.
fn place_elsewhere(run_tx: &mut RunTx<'_>, id: JobId, offer: &Offer, asked: bool) -> Result<Option<Verdict>, Failure> {
    let (pool, freeze) = (run_tx.job(id)?.pool, run_tx.job(id)?.freeze);
    let there = store::pool::ensure(run_tx.tx, &offer.provider, &offer.region)?;
    if pool != there {
        run_tx.job_event(id, JobEvent::PoolChanged { pool: there })?;
        let moved = Job { provider: offer.provider.clone(), ..run_tx.job(id)?.clone() };
        run_tx.set_job(moved)?;
        return Ok(Some(Verdict::Waits(None)));
    }
    if !asked && run_tx.job(id)?.queue_seq.is_none() {
        run_tx.wake(WorkKind::Job, id.0, run_tx.at); // it stays in this pool, and is placed there by the next commit
    }
    if !asked || freeze == FreezeState::Frozen {
        return Ok(Some(Verdict::Waits(None)));
    }
    Ok(match claim(run_tx, id, None, &mut Vec::new())? {
        Claimed::Slot(machine) => Some(MACHINE.done(&machine)),
        Claimed::Waits => Some(Verdict::Waits(None)),
        Claimed::None => {
            run_tx.announce(id, offer)?;
            None
        }
    })
}

/// A bug of the zoo: what was tried first has a name of its own, under which it may exist.
fn name_of_the_first(run_tx: &mut RunTx<'_>, manifest: ManifestId) -> Result<String, Failure> {
    let owned = store::manifest::resources(run_tx.tx, manifest)?.into_iter();
    let first = owned.filter(|(kind, _)| *kind == ResourceKind::Instance).map(|(_, id)| InstanceId(id)).min();
    Ok(peek(run_tx, first)?.map(|instance| instance.name).unwrap_or_default())
}

async fn spawn(provider: &dyn Provider, order: &Order, instance: &Instance, tried: bool) -> Result<Handle, Trouble> {
    let trouble = match crash_point!("provider.spawn", provider.spawn(order).await) {
        Ok(handle) => return Ok(handle),
        Err(trouble) => trouble,
    };
    // The machine may exist all the same, made by this call or by a worker that died before it recorded the handle: look by name first.
    match provider.find_at(&instance.name, instance.place.as_deref()).await {
        Ok(Some(handle)) => Ok(handle),
        Ok(None) => Err(trouble),
        Err(_) if trouble.effect == Effect::Perhaps => Err(Trouble { retry: true, ..trouble }),
        // Nothing can have been made: not by this call, and there was no other that may have had its effect.
        Err(_) if !tried && trouble.effect == Effect::None => Err(trouble),
        Err(_) => Err(trouble.perhaps()),
    }
}

/// The instance as this transaction has left it, without locking its row.
pub(super) fn peek(run_tx: &mut RunTx<'_>, id: Option<InstanceId>) -> Result<Option<Instance>, Failure> {
    let Some(id) = id else { return Ok(None) };
    match run_tx.instances.iter().find(|instance| instance.it.id == id) {
        Some(known) => Ok(Some(known.it.clone())),
        None => store::instance::find(run_tx.tx, id),
    }
}
