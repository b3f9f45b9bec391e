//! Slots and holds: what follows when a slot is claimed, used, held, released or reopened, and how a user extends or ends a hold.

use crate::instance::ASK_AGAIN_MS;
use crate::run::KeyedResponse;
use crate::run_tx::{RunTx, Tracked};
use crate::transition::slot_event;
use crate::{Actor, Engine, EngineContext};
use model::allocation::{Allocation, AllocationEvent, AllocationStatus};
use model::hold::Extension;
use model::instance::{Instance, InstanceStatus};
use model::manifest::ResourceKind;
use model::{AllocationId, Failure, InstanceId, OrgId, Refused, RunId};
use std::sync::Arc;
use store::idempotency::Key;
use store::{Hint, Item, Lane, NewEvent, Tx, WorkKind};

/// Turns a changed slot into the bytes that are answered.
pub type SlotRender = Arc<dyn Fn(&AllocationOverview) -> Vec<u8> + Send + Sync>;

/// A slot with what is shown beside it.
#[derive(Debug, Clone)]
pub struct AllocationOverview {
    pub allocation: Allocation,
    pub run: Option<RunId>,
    pub path: Option<String>,
}

impl RunTx<'_> {
    /// A new slot on the same machine for the same org, in a folder of its own.
    pub(crate) fn open_next_slot(&mut self, used: AllocationId) -> Result<(), Failure> {
        let used = self.allocation(used)?.it.clone();
        if !crate::instance::stays(self.instance(used.instance)?.it.status) {
            return Ok(());
        }
        let (id, workdir) = (AllocationId(self.tx.next_id()), self.next_workdir(used.instance)?);
        let manifest = self.instance(used.instance)?.it.manifest;
        self.allocations.push(Tracked::new(fresh_slot(id, &used, workdir, self.at)));
        store::manifest::own(self.tx, manifest, &[(ResourceKind::Allocation, id.0)])?;
        self.machine_idle(used.instance)
    }

    pub(crate) fn next_workdir(&mut self, instance: InstanceId) -> Result<String, Failure> {
        let kept = self.instance(instance)?;
        let mut next = kept.it.clone();
        next.workdirs += 1;
        let workdir = format!("work_{}", next.workdirs);
        kept.set(next);
        Ok(workdir)
    }

    /// No job is on the machine: it may be claimed, and is terminated when it stays unused.
    pub(crate) fn machine_idle(&mut self, instance: InstanceId) -> Result<(), Failure> {
        let (at, context) = (self.at, self.context);
        let kept = self.instance(instance)?;
        let mut next = kept.it.clone();
        next.idle_since = Some(at);
        let costs = crate::idle_billing::costs(context, &next);
        next.unused_from = next.unused_from.or(costs.then_some(at));
        let (pool, provider) = (next.pool, next.provider.clone());
        kept.set(next);
        self.wake(WorkKind::Pool, pool.0, at);
        let after = if costs { 0 } else { crate::instance::idle_after_ms(self.context, &provider) };
        self.wake(WorkKind::Instance, instance.0, at + after); // where it costs something, at once: the first window is to be paid
        Ok(())
    }
}

fn fresh_slot(id: AllocationId, like: &Allocation, workdir: String, at: model::Timestamp) -> Allocation {
    let free = Allocation::free(id, like.org, like.instance, like.user.clone(), at);
    Allocation { manifest: like.manifest, workdir, ..free }
}

/// The end of a hold: its folder may be deleted, and the credits that were set aside for it are refunded.
/// What the machine cost up to now is the caller's to pay first.
pub(crate) fn end_hold(tx: &mut Tx, slot: &Allocation) -> Result<Allocation, Failure> {
    let closed = crate::idle_billing::refund(tx, slot.clone());
    slot_event(tx, closed, AllocationEvent::HoldEnded)
}

impl Engine {
    /// A hold has come to its end, unless it was prolonged meanwhile.
    pub(crate) async fn reconcile_allocation(&self, item: Item) -> Result<(), Failure> {
        let (id, context) = (AllocationId(item.subject), self.context.clone());
        let gone = self
            .store
            .write(Lane::Normal, "allocation.reconcile", move |tx| {
                store::work::hold(tx, &item)?;
                let Some(slot) = store::allocation::find(tx, id)? else {
                    store::work::finish(tx, &item, None);
                    return Ok(None);
                };
                let instance = crate::idle_billing::pay_for(tx, slot.instance, slot.org)?;
                let slot = store::allocation::find(tx, id)?.unwrap_or(slot); // its account may have paid
                let due = model::allocation::deadline(&slot);
                let in_vain = instance.as_ref().is_none_or(|i| !i.status.is_open() && !survives(&context, i));
                if due.is_some_and(|due| due > tx.at() && !in_vain) {
                    store::work::finish(tx, &item, due);
                    return Ok(None);
                }
                let released = if due.is_some() { end_hold(tx, &slot)? } else { slot };
                // While the runner lives it deletes the folder itself, told by its desired document.
                // One on its way out may not come to it: that is seen when it is gone.
                let ending = instance.as_ref().is_some_and(|i| i.status == InstanceStatus::Terminating);
                let orphaned = instance.filter(|i| i.status == InstanceStatus::Terminated && released.workdir_released);
                if orphaned.is_none() {
                    let next = (ending && released.workdir_released).then_some(tx.at() + ASK_AGAIN_MS);
                    store::work::finish(tx, &item, next);
                }
                Ok(orphaned.map(|instance| (instance, released.workdir.clone())))
            })
            .await?;
        let Some((instance, workdir)) = gone else { return Ok(()) };
        self.remove_workdir(&instance, &workdir).await?;
        self.done(item).await
    }

    /// Prolongs a hold. The org pays for it ahead where the machine costs money.
    pub async fn extend(
        &self,
        actor: impl Into<Actor>,
        id: AllocationId,
        ms: Option<i64>,
        key: Option<Key>,
        render: SlotRender,
    ) -> Result<KeyedResponse, Failure> {
        let (context, actor) = (self.context.clone(), actor.into());
        self.keyed(Lane::Normal, "allocation.extend", key, 200, move |tx| {
            let slot = extended(tx, &context, &actor, id, ms)?;
            Ok(render(&snapshot(tx, &context, slot)?))
        })
        .await
    }

    /// A person gives the hold up.
    pub async fn release(
        &self,
        actor: impl Into<Actor>,
        id: AllocationId,
        key: Option<Key>,
        render: SlotRender,
    ) -> Result<KeyedResponse, Failure> {
        let (context, actor) = (self.context.clone(), actor.into());
        self.keyed(Lane::Normal, "allocation.release", key, 200, move |tx| {
            let slot = released(tx, &actor, id)?;
            Ok(render(&snapshot(tx, &context, slot)?))
        })
        .await
    }

    pub async fn allocations(&self, org: OrgId, before: i64, limit: i64) -> Result<Vec<AllocationOverview>, Failure> {
        let context = self.context.clone();
        self.store
            .read("allocation.page", move |tx| {
                let found = store::allocation::page(tx, org, before, limit)?;
                found.into_iter().map(|slot| snapshot(tx, &context, slot)).collect()
            })
            .await
    }

    /// Those whose folder is held now.
    pub async fn held_allocations(
        &self,
        org: OrgId,
        before: i64,
        limit: i64,
    ) -> Result<Vec<AllocationOverview>, Failure> {
        let context = self.context.clone();
        self.store
            .read("allocation.held", move |tx| {
                let found = store::allocation::held_page(tx, org, before, limit)?;
                found.into_iter().map(|slot| snapshot(tx, &context, slot)).collect()
            })
            .await
    }

    pub async fn allocation(&self, org: OrgId, id: AllocationId) -> Result<AllocationOverview, Failure> {
        let context = self.context.clone();
        self.store
            .read_inline("allocation.find", move |tx| {
                let slot = owned(tx, org, id)?;
                snapshot(tx, &context, slot)
            })
            .await
    }
}

fn snapshot(tx: &mut Tx, context: &EngineContext, allocation: Allocation) -> Result<AllocationOverview, Failure> {
    let run = run_of(tx, &allocation)?;
    let instance = store::instance::find(tx, allocation.instance)?;
    let path = instance.and_then(|i| {
        let handle = adapters::Handle(i.handle?);
        context.providers.get(&i.provider)?.workdir_path(&handle, &allocation.workdir)
    });
    Ok(AllocationOverview { allocation, run, path })
}

fn extended(
    tx: &mut Tx,
    context: &EngineContext,
    actor: &Actor,
    id: AllocationId,
    ms: Option<i64>,
) -> Result<Allocation, Failure> {
    let org = actor.org;
    let known = owned(tx, org, id)?;
    let instance = crate::idle_billing::pay_for(tx, known.instance, org)?;
    let slot = owned(tx, org, id)?; // after its account has paid
    let Some(hold) = slot.hold() else {
        let why = format!(
            "{id} is {} without a hold: only a finished allocation that is still held can be extended",
            slot.status
        );
        return Err(Refused::Conflict { why }.into());
    };
    let by = ms.map_or(Extension::Asked, |ms| Extension::AskedFor { ms });
    let until = context.config.holds.extended(hold, by, tx.at());
    if let Some(gone) = instance.as_ref().filter(|i| !crate::instance::stays(i.status) && !survives(context, i)) {
        let why = format!("{id} was on {}, which is {}: its folder went with it", gone.id, gone.status);
        return Err(Refused::Conflict { why }.into());
    }
    let mut next = slot.clone();
    next.extensions += 1;
    let next = crate::idle_billing::reserve_extension(tx, context, instance.as_ref(), next, hold.until, until);
    let next = slot_event(tx, next, AllocationEvent::HoldExtended { until })?;
    tx.hint(Hint::Instance(next.instance));
    let (run, body) = (run_of(tx, &next)?, store::body!({ "allocation": id, "until": until, "by": actor.by }));
    tx.event(NewEvent { org, run, kind: "allocation.extended", body });
    Ok(next)
}

/// The run whose folder the slot keeps: what is done to it is told among the run's events.
pub(crate) fn run_of(tx: &mut Tx, slot: &Allocation) -> Result<Option<RunId>, Failure> {
    Ok(slot.job.map(|job| store::job::find(tx, job)).transpose()?.flatten().map(|job| job.run))
}

pub(crate) fn released(tx: &mut Tx, actor: &Actor, id: AllocationId) -> Result<Allocation, Failure> {
    let org = actor.org;
    let slot = owned(tx, org, id)?;
    if slot.status != AllocationStatus::Complete && slot.hold().is_none() {
        let why = format!("{id} is {}: only a finished allocation can be released", slot.status);
        return Err(Refused::Conflict { why }.into());
    }
    crate::idle_billing::pay_for(tx, slot.instance, org)?;
    let (at, slot) = (tx.at(), owned(tx, org, id)?); // after its account has paid
    tx.wake(WorkKind::Allocation, id.0, at);
    tx.wake(WorkKind::Instance, slot.instance.0, at); // it may have waited for this hold alone
    if slot.hold().is_some() {
        let (run, body) = (run_of(tx, &slot)?, store::body!({ "allocation": id, "by": actor.by }));
        tx.event(NewEvent { org, run, kind: "allocation.released", body });
    }
    end_hold(tx, &slot)
}

fn owned(tx: &mut Tx, org: OrgId, id: AllocationId) -> Result<Allocation, Failure> {
    let slot = store::allocation::find(tx, id)?.filter(|slot| slot.org == org);
    slot.ok_or_else(|| Refused::not_found("allocation", id).into())
}

/// Whether what a hold keeps outlives the machine.
fn survives(context: &EngineContext, instance: &Instance) -> bool {
    context.providers.get(&instance.provider).is_some_and(|p| p.capabilities().keeps_workdirs)
}
