//! Charges an org for machines on which no job runs (holds and warm idle time), one time window after the other, and terminates a
//! machine whose next window cannot be paid. Does nothing for providers where such time is free (local, ssh). Never charges a run.

use crate::EngineContext;
use crate::transition::Machines;
use model::allocation::Allocation;
use model::idle_billing::{Holder, Payer};
use model::instance::{Instance, InstanceStatus};
use model::usage::Usage;
use model::{AllocationId, Credits, Failure, InstanceId, OrgId, Refused, Timestamp};
use store::usage::Spent;
use store::{Entry, EntryKind, NewEvent, Tx, WorkKind};

/// Whether a machine of this provider costs its org something while no job runs on it.
pub(crate) fn costs(context: &EngineContext, instance: &Instance) -> bool {
    let paid = context.providers.get(&instance.provider).is_some_and(|p| p.capabilities().bills);
    paid && instance.price_micro > 0
}

/// Charges what is owed up to `to` to the holds on the machine, or to idle time. The caller saves the machine.
pub(crate) fn pay(machines: &mut impl Machines, instance: &mut Instance, to: Timestamp) -> Result<(), Failure> {
    let Some(from) = instance.unused_from.filter(|from| *from < to) else { return Ok(()) };
    let kept = machines.slots_on(instance.id)?;
    for slot in charge(machines.tx(), instance, kept, from, to)? {
        machines.set_slot(slot)?;
    }
    instance.unused_from = Some(to);
    Ok(())
}

/// The machine's unused time is over: a job uses it, or it is on its way out. The caller saves the machine.
pub(crate) fn close(machines: &mut impl Machines, instance: &mut Instance) -> Result<(), Failure> {
    let to = existed_until(instance, machines.tx().at());
    pay(machines, instance, to)?;
    instance.unused_from = None;
    Ok(())
}

/// A silent machine may be gone, so its time counts only until its runner was last heard.
fn existed_until(instance: &Instance, at: Timestamp) -> Timestamp {
    match instance.status {
        InstanceStatus::Unreachable | InstanceStatus::Lost => instance.last_seen_at.unwrap_or(at).min(at),
        _ => at,
    }
}

/// One row a span, under a key that begins at its first millisecond. Returns the slots whose accounts were charged.
fn charge(
    tx: &mut Tx,
    instance: &Instance,
    kept: Vec<Allocation>,
    from: Timestamp,
    to: Timestamp,
) -> Result<Vec<Allocation>, Failure> {
    let (hourly, mut changed) = (Credits(instance.price_micro), Vec::<Allocation>::new());
    for span in model::idle_billing::spans(&holders(&kept), from, to) {
        let price = span.price(hourly);
        if let Payer::Extension(id) = span.payer {
            let known = changed.iter().position(|slot| slot.id == id);
            let at = known.unwrap_or_else(|| {
                changed.extend(kept.iter().find(|slot| slot.id == id).cloned());
                changed.len() - 1
            });
            let (amount, account) = changed[at].account.charged(price);
            changed[at].account = account;
            tx.ledger(Entry::new(instance.org, EntryKind::Charge, amount, hold_key(id, span.from)).memo("hold"));
            count(tx, instance, amount, span.to.since(span.from))?;
            continue;
        }
        let (key, memo) = match span.payer {
            Payer::Hold(id) | Payer::Extension(id) => (hold_key(id, span.from), "hold"),
            Payer::Idle => (format!("ins:{}:idle:{}", instance.id.slug(), span.from.ms()), "warm idle"),
        };
        // What the org has not got is not collected: the window before was the last that could be paid.
        let amount = price.min(store::org::spendable(tx, instance.org)?);
        tx.ledger(Entry::new(instance.org, EntryKind::Charge, amount, key).from_available().memo(memo));
        count(tx, instance, amount, span.to.since(span.from))?;
    }
    Ok(changed)
}

/// In the sums of usage each machine has rows of its own, so that two machines' transactions do not wait for each other.
fn count(tx: &mut Tx, instance: &Instance, charged: Credits, machine_ms: i64) -> Result<(), Failure> {
    let usage = Usage { charged, machine_ms, ..Usage::default() };
    let (subject, provider) = (instance.id.0, instance.provider.clone());
    store::usage::add(tx, &Spent { subject, provider, usage, ..Spent::of(instance.org) })
}

fn hold_key(id: AllocationId, from: Timestamp) -> String {
    format!("alc:{}:hold:{}", id.slug(), from.ms())
}

fn holders(kept: &[Allocation]) -> Vec<Holder> {
    let held = |slot: &Allocation| {
        let reserved_from = slot.account.from.filter(|_| slot.account.left() > Credits::ZERO);
        Some(Holder { allocation: slot.id, until: slot.hold()?.until, reserved_from })
    };
    kept.iter().filter_map(held).collect()
}

/// What the next look at an unused machine's account says.
pub(crate) enum Unused {
    /// Nothing is charged: its time is free, a job uses it, or its runner is silent.
    Nothing,
    PaidUntil(Timestamp),
    /// The next window cannot be paid: no hold keeps it any more, and it is to end.
    Unpaid,
}

/// Charges a full window and sees whether the next one can be paid: a hold that cannot ends, and with the last of them the machine.
pub(crate) fn reconcile(tx: &mut Tx, context: &EngineContext, instance: &mut Instance) -> Result<Unused, Failure> {
    let (at, window_ms) = (tx.at(), context.config.money.window_ms);
    let Some(from) = instance.unused_from.filter(|_| instance.status == InstanceStatus::Ready) else {
        return Ok(Unused::Nothing);
    };
    if at.since(from) >= window_ms {
        pay(tx, instance, at)?;
    }
    let from = instance.unused_from.unwrap_or(from);
    let price = Credits(instance.price_micro).per_hour_for(window_ms);
    loop {
        let kept = store::allocation::kept_on(tx, instance.id)?;
        let available = store::org::spendable(tx, instance.org)?;
        let payer = model::idle_billing::payer(&holders(&kept), at);
        match payer {
            Payer::Extension(_) => return Ok(Unused::PaidUntil(from + window_ms)),
            _ if available >= price => return Ok(Unused::PaidUntil(from + window_ms)),
            Payer::Hold(id) => {
                pay(tx, instance, at)?;
                unpaid_hold(tx, id, price, available)?;
                // The runner is told about the folder: that moved the row which the caller holds and will save.
                (instance.desired_version, instance.version) = (instance.desired_version + 1, instance.version + 1);
            }
            Payer::Idle => {
                let body = store::body!({ "instance": instance.id, "needed": price.to_string(), "available": available.to_string() });
                tx.event(NewEvent { org: instance.org, run: None, kind: "instance.unpaid", body });
                return Ok(Unused::Unpaid);
            }
        }
    }
}

fn unpaid_hold(tx: &mut Tx, id: AllocationId, needed: Credits, available: Credits) -> Result<(), Failure> {
    let slot = store::allocation::find(tx, id)?.ok_or_else(|| Refused::not_found("allocation", id))?;
    let body = store::body!({ "allocation": id, "needed": needed.to_string(), "available": available.to_string() });
    let run = crate::allocation::run_of(tx, &slot)?;
    tx.event(NewEvent { org: slot.org, run, kind: "allocation.hold_unpaid", body });
    let at = tx.at();
    tx.wake(WorkKind::Allocation, id.0, at);
    crate::allocation::end_hold(tx, &slot).map(drop)
}

/// Sets the price of a longer hold aside: `402` comes from the ledger, and then nothing of the extension is written.
pub(crate) fn reserve_extension(
    tx: &mut Tx,
    context: &EngineContext,
    instance: Option<&Instance>,
    mut slot: Allocation,
    from: Timestamp,
    until: Timestamp,
) -> Allocation {
    let Some(instance) = instance.filter(|i| i.status.is_open() && costs(context, i)) else { return slot };
    let amount = Credits(instance.price_micro).per_hour_for(until.since(from));
    if amount > Credits::ZERO {
        slot.account = slot.account.reserved(amount, from);
        tx.ledger(Entry::new(slot.org, EntryKind::Reserve, amount, extension_key(&slot)).memo("a longer hold"));
    }
    slot
}

/// The hold is over: what was set aside for it and not used goes back.
pub(crate) fn refund(tx: &mut Tx, mut slot: Allocation) -> Allocation {
    let (rest, account) = slot.account.closed();
    slot.account = account;
    if rest > Credits::ZERO {
        tx.ledger(Entry::new(slot.org, EntryKind::Refund, rest, extension_key(&slot)).memo("the end of a hold"));
    }
    slot
}

fn extension_key(slot: &Allocation) -> String {
    format!("alc:{}:extend:{}", slot.id.slug(), slot.extensions)
}

/// The slot that a ledger row without a run belongs to, if it set credits aside or used such.
pub(crate) fn slot_of(entry: &Entry) -> Option<AllocationId> {
    let mut parts = entry.key.split(':');
    let (kind, slug) = (parts.next()?, parts.next()?);
    let id = format!("{}_{slug}", kind).parse().ok()?;
    (kind == "alc" && !entry.from_available).then_some(id)
}

/// Pays what a machine owes, in a transaction that is about its slot.
pub(crate) fn pay_for(tx: &mut Tx, id: InstanceId, org: OrgId) -> Result<Option<Instance>, Failure> {
    let Some(known) = store::instance::find(tx, id)?.filter(|i| i.org == org) else { return Ok(None) };
    if known.unused_from.is_none() {
        return Ok(Some(known));
    }
    let mut instance = store::instance::lock(tx, id)?;
    let to = existed_until(&instance, tx.at());
    pay(tx, &mut instance, to)?;
    store::instance::save(tx, &instance)?;
    instance.version += 1;
    Ok(Some(instance))
}
