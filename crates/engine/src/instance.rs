//! The work item of a machine: silence, idleness, a runner that died, termination. A machine counts as gone only when its provider says so.

use crate::idle_billing::Unused;
use crate::instance_cleanup::is_there_again;
use crate::intents::terminate_instance;
use crate::run::KeyedResponse;
use crate::run_tx::RunTx;
use crate::transition::instance_event;
use crate::{Engine, EngineContext};
use adapters::{Handle, Provider, Seen};
use model::bug;
use model::instance::{Instance, InstanceEvent, InstanceStatus, ProviderQueue};
use model::run::RunEvent;
use model::spec::OnLostControl;
use model::time::{MINUTE, SECOND, deadline_without};
use model::{Failure, InstanceId, OrgId, Refused, Timestamp, Trouble, crash_point};
use std::sync::Arc;
use store::idempotency::Key;
use store::{Item, Lane, NewEvent, Tx, WorkKind};

/// A runner whose stream is closed is asked about at this pace until it is back.
pub(crate) const ASK_AGAIN_MS: i64 = 5 * SECOND;
/// About a machine of which nothing is heard its provider is asked ever more rarely: after an eighth of its silence, and at least so often.
const ASK_AGAIN_MOST_MS: i64 = 5 * MINUTE;
const RESPAWN_MOST_MS: i64 = 60 * SECOND;

pub(crate) fn idle_after_ms(context: &EngineContext, provider: &str) -> i64 {
    if context.providers.is_leaving(provider) {
        return 0;
    }
    let paid = context.providers.get(provider).is_some_and(|p| p.capabilities().bills);
    let timings = &context.config.timings;
    if paid { timings.idle_duration_paid_ms } else { timings.idle_duration_ms }
}

/// The provider's handle of the machine: from its row, or found by its name if the worker that made the machine died before it stored
/// the handle.
pub(crate) async fn handle_of(provider: &dyn Provider, instance: &Instance) -> Result<Option<Handle>, Trouble> {
    match &instance.handle {
        Some(handle) => Ok(Some(Handle(handle.clone()))),
        None => provider.find_at(&instance.name, instance.place.as_deref()).await,
    }
}

impl Engine {
    /// Deletes a folder of a machine whose runner is gone; the machine itself is forgotten with its last folder.
    pub(crate) async fn remove_workdir(&self, instance: &Instance, workdir: &str) -> Result<(), Failure> {
        if instance.displaced {
            return Ok(()); // a machine with another nonce has its name now
        }
        let provider = self.context.provider(&instance.provider)?;
        if let Some(handle) = self.in_time(Box::pin(handle_of(provider.as_ref(), instance))).await? {
            let removed = self.acts_in_time(provider.remove_workdir(&handle, workdir));
            crash_point!("provider.remove_workdir", removed.await)?;
        }
        Ok(())
    }

    /// A machine's item is due: silence, idleness, a closed stream, or a machine that never came.
    pub(crate) async fn reconcile_instance(&self, item: Item) -> Result<(), Failure> {
        let id = InstanceId(item.subject);
        let Some(instance) = self.find_instance(id).await? else { return self.done(item).await };
        let may_ask = item.asks.is_some();
        if !instance.status.is_open() {
            return match may_ask {
                true => self.forget_instance(item, &instance).await,
                false => self.finish(item, |now| Some(now + ASK_AGAIN_MS)).await,
            };
        }
        let seen = if may_ask && is_expected(instance.status) && !self.context.presence.streaming(id) {
            self.ask_about(&instance).await
        } else {
            None
        };
        let context = self.context.clone();
        self.store
            .write(Lane::Normal, "instance.reconcile", move |tx| {
                store::work::hold(tx, &item)?;
                let next = reconcile(tx, &context, id, seen.clone())?;
                store::work::finish(tx, &item, next);
                Ok(())
            })
            .await
    }

    /// A closed stream proves nothing about the machine: its provider is asked, and a runner that is gone is started again by name.
    async fn ask_about(&self, instance: &Instance) -> Option<Seen> {
        let provider = self.context.provider(&instance.provider).ok()?;
        let handle = self.in_time(Box::pin(handle_of(provider.as_ref(), instance))).await.ok()??;
        let asked = self.in_time(provider.inspect(&handle, &instance.nonce));
        let seen = crash_point!("provider.inspect", asked.await);
        match seen {
            Ok(Seen::RunnerGone) => {
                let order = crate::pool::order(&self.context, instance);
                let spawned = self.acts_in_time(provider.spawn(&order));
                if let Err(trouble) = crash_point!("provider.spawn", spawned.await) {
                    tracing::warn!(instance = %instance.name, %trouble, "its runner could not be started again");
                }
                Some(Seen::RunnerGone)
            }
            Ok(seen) => Some(seen),
            Err(trouble) => {
                tracing::warn!(instance = %instance.name, %trouble, "its provider could not say how it is");
                None
            }
        }
    }

    pub async fn find_instance(&self, id: InstanceId) -> Result<Option<Instance>, Failure> {
        self.store.read_inline("instance.find", move |tx| store::instance::find(tx, id)).await
    }

    pub async fn instance(&self, org: OrgId, id: InstanceId) -> Result<Instance, Failure> {
        let found = self.find_instance(id).await?.filter(|i| i.org == org);
        found.ok_or_else(|| Refused::not_found("instance", id).into())
    }

    pub async fn list_instances(&self, org: OrgId, before: i64, limit: i64) -> Result<Vec<InstanceOverview>, Failure> {
        self.store
            .read("instance.page", move |tx| {
                let found = store::instance::page(tx, org, before, limit)?;
                found.into_iter().map(|instance| snapshot(tx, instance)).collect()
            })
            .await
    }

    pub async fn instance_picture(&self, org: OrgId, id: InstanceId) -> Result<InstanceOverview, Failure> {
        let found = self.instance(org, id).await?;
        self.store.read("instance.snapshot", move |tx| snapshot(tx, found.clone())).await
    }

    /// A person ends a machine. A live job, or a hold that needs it, is named and needs `force`. `by` is the person's token
    /// in words; the run that ends with the machine keeps it.
    pub async fn terminate_instance(
        &self,
        (org, by): (OrgId, String),
        id: InstanceId,
        force: bool,
        key: Option<Key>,
        render: InstanceRender,
    ) -> Result<KeyedResponse, Failure> {
        let context = self.context.clone();
        self.keyed(Lane::Normal, "instance.terminate", key, 200, move |tx| {
            ended_by_a_person(tx, &context, (org, &by), id, force)?;
            let ended = store::instance::find(tx, id)?.ok_or_else(|| Refused::not_found("instance", id))?;
            Ok(render(&snapshot(tx, ended)?))
        })
        .await
    }

    /// A person takes a machine out of the pool: no job is placed there any more, the one that runs comes to its end, and then the machine
    /// is terminated. Asked twice it is the same.
    pub async fn drain_instance(
        &self,
        (org, by): (OrgId, String),
        id: InstanceId,
        key: Option<Key>,
        render: InstanceRender,
    ) -> Result<KeyedResponse, Failure> {
        self.keyed(Lane::Normal, "instance.drain", key, 200, move |tx| {
            let known = store::instance::find(tx, id)?.filter(|i| i.org == org);
            known.ok_or_else(|| Refused::not_found("instance", id))?;
            let instance = store::instance::lock(tx, id)?; // a claim that races us is seen, or sees us
            let drains = instance_event(tx, instance.clone(), InstanceEvent::DrainAsked)?;
            if drains.status != instance.status {
                store::instance::save(tx, &drains)?;
                let (at, body) = (tx.at(), store::body!({ "instance": id, "by": by }));
                tx.wake(WorkKind::Instance, id.0, at);
                tx.event(NewEvent { org, run: None, kind: "instance.drain_asked", body });
            }
            let now = store::instance::find(tx, id)?.ok_or_else(|| Refused::not_found("instance", id))?;
            Ok(render(&snapshot(tx, now)?))
        })
        .await
    }

    /// Terminates every unused machine, for `repl control stop`. Returns how many are being terminated.
    pub async fn retire_idle(&self) -> Result<i64, Failure> {
        self.store
            .write(Lane::Normal, "instance.retire_idle", |tx| {
                let (mut ending, mut open) = (0, Vec::new());
                for pool in store::pool::all(tx)? {
                    open.extend(store::instance::open_in(tx, pool.id)?.into_iter().map(|instance| instance.id));
                }
                // Of all pools together: rows of instances are locked in the order of their ids.
                open.sort();
                for id in open {
                    let instance = store::instance::lock(tx, id)?;
                    let busy = store::job::on_instance(tx, id)?.is_some();
                    if instance.status != InstanceStatus::Terminating && !busy {
                        terminate_instance::begin(tx, id, "the control plane is closing")?;
                    }
                    ending += i64::from(!busy);
                }
                Ok(ending)
            })
            .await
    }

    /// Writes down what was heard since the last time: one statement a machine, one transaction for all.
    pub async fn flush_presence(&self) -> Result<(), Failure> {
        let heard = self.context.presence.unsaved();
        if heard.is_empty() {
            return Ok(());
        }
        self.store
            .write(Lane::High, "instance.seen", move |tx| {
                heard.iter().try_for_each(|(id, at, observed)| store::instance::seen(tx, *id, *at, *observed))
            })
            .await
    }

    /// A runner's stream was closed: its machine is looked at now.
    pub async fn stream_closed(&self, id: InstanceId) -> Result<(), Failure> {
        self.look_again(id).await
    }

    pub(crate) async fn look_again(&self, id: InstanceId) -> Result<(), Failure> {
        self.store
            .write(Lane::Normal, "instance.stream_closed", move |tx| {
                if store::instance::find(tx, id)?.is_some_and(|it| it.status == InstanceStatus::Terminated) {
                    return is_there_again(tx, id);
                }
                let at = tx.at();
                tx.wake(WorkKind::Instance, id.0, at);
                Ok(())
            })
            .await
    }

    /// When a server starts, no runner has a stream to it yet: the item of every open machine becomes due a little later.
    pub async fn look_for_everyone(&self) -> Result<(), Failure> {
        let context = self.context.clone();
        self.store
            .write(Lane::Normal, "instance.look_for_all", move |tx| {
                let at = tx.at();
                for pool in store::pool::all(tx)? {
                    tx.wake(WorkKind::Pool, pool.id.0, at);
                    let linked = context.is_linked(&pool.provider);
                    for instance in store::instance::open_in(tx, pool.id)? {
                        tx.wake(WorkKind::Instance, instance.id.0, at + 3 * SECOND);
                        if linked {
                            tx.wake(WorkKind::Link, instance.id.0, at);
                        }
                    }
                }
                Ok(())
            })
            .await
    }
}

/// A machine with what is shown beside it.
#[derive(Debug, Clone)]
pub struct InstanceOverview {
    pub instance: Instance,
    pub job: Option<model::job::Job>,
    /// `<workflow>:<phase>`, derived from the machine and what is changing it.
    pub workflow_state: String,
    pub held_until: Option<Timestamp>,
}

/// Turns a machine into the bytes that are answered.
pub type InstanceRender = Arc<dyn Fn(&InstanceOverview) -> Vec<u8> + Send + Sync>;

pub(crate) fn ended_by_a_person(
    tx: &mut Tx,
    context: &EngineContext,
    (org, by): (OrgId, &str),
    id: InstanceId,
    force: bool,
) -> Result<(), Failure> {
    let known = store::instance::find(tx, id)?.filter(|i| i.org == org);
    let known = known.ok_or_else(|| Refused::not_found("instance", id))?;
    if matches!(known.status, InstanceStatus::Terminating | InstanceStatus::Terminated) {
        return Ok(());
    }
    let stale = || Failure::from(Refused::Stale { what: "the instance" });
    match store::job::on_instance(tx, id)?.filter(|_| !bug!(terminate_overlooks_a_job)) {
        Some(job) if !force => {
            let why = format!("{id} runs {}: cancel it first, or use --force", job.run);
            Err(Refused::Conflict { why }.into())
        }
        // Its run ends in the same transaction; the machine is terminated when no job is left on it.
        Some(job) => {
            let mut run_tx = RunTx::open(tx, context, job.run)?;
            let ends_now = run_tx.run.termination.is_none();
            run_tx.by = Some(by.to_owned());
            run_tx.run_event(RunEvent::CancelAsked { abort: true })?;
            if ends_now {
                let mut run = run_tx.run.clone();
                run.ended_by = Some(format!("{by} terminated {id}, on which {} ran, with --force", job.id));
                run_tx.set_run(run);
            }
            terminate_instance::begin(&mut run_tx, id, &format!("{by} asked, with --force"))?;
            if store::job::on_instance(run_tx.tx, id)?.is_some_and(|other| other.run != job.run) {
                return Err(stale()); // it changed hands before its row was locked
            }
            run_tx.close().map(drop)
        }
        None => {
            let instance = store::instance::lock(tx, id)?; // a claim that races us is seen, or sees us
            if store::job::on_instance(tx, id)?.is_some() && !bug!(terminate_races_a_claim) {
                return Err(stale());
            }
            if !force && let Some((until, by)) = held(tx, context, &instance)? {
                let left_ms = until.since(tx.at());
                return Err(Refused::Held { until, left_ms, by }.into());
            }
            terminate_instance::begin(tx, id, &format!("{by} asked")).map(drop)
        }
    }
}

/// How each `workflow_state` begins.
pub const WORKFLOW_STATES: [&str; 4] = ["spawn:", "launch-run:", "idle:", "terminate:"];

fn snapshot(tx: &mut Tx, instance: Instance) -> Result<InstanceOverview, Failure> {
    let job = store::job::on_instance(tx, instance.id)?;
    let at = tx.at();
    let held = store::allocation::kept_on(tx, instance.id)?;
    let held_until = held.iter().filter_map(|slot| Some(slot.hold()?.until)).filter(|until| *until > at).max();
    let workflow_state = match (instance.status, &job) {
        (InstanceStatus::Spawning, _) => "spawn:pending".to_owned(),
        (InstanceStatus::Booting, _) => "launch-run:booting".to_owned(),
        (InstanceStatus::Terminating | InstanceStatus::Draining, _) => format!("terminate:{}", instance.status),
        (InstanceStatus::Terminated, _) if instance.displaced => "terminate:lost".to_owned(),
        (InstanceStatus::Terminated, _) => "terminate:complete".to_owned(),
        (status, Some(job)) => match model::job::phase(job) {
            Some(phase) => format!("launch-run:{phase}"),
            None => format!("launch-run:{status}"),
        },
        (status, None) => format!("idle:{status}"),
    };
    Ok(InstanceOverview { instance, job, workflow_state, held_until })
}

/// It is not being terminated: a job may get a slot on it, now or when its runner is heard again.
pub(crate) fn stays(status: InstanceStatus) -> bool {
    use InstanceStatus as I;
    !matches!(status, I::Draining | I::Terminating | I::Terminated)
}

/// A runner should be there and have its stream open.
fn is_expected(status: InstanceStatus) -> bool {
    use InstanceStatus as I;
    matches!(status, I::Booting | I::Ready | I::Unreachable | I::Lost | I::Draining)
}

/// When a machine that has left the pool ends: when no job is on it, and never under a hold that needs it. One that fell silent is not
/// waited for if its job stops by itself.
fn drained_at(tx: &mut Tx, context: &EngineContext, instance: &Instance) -> Result<Option<Timestamp>, Failure> {
    if instance.status != InstanceStatus::Draining {
        return Ok(None);
    }
    if store::job::on_instance(tx, instance.id)?.is_none() {
        return Ok(Some(held(tx, context, instance)?.map_or(tx.at(), |(until, _)| until)));
    }
    if instance.on_lost_control == OnLostControl::Finish {
        return Ok(None);
    }
    let from = instance.last_seen_at.unwrap_or(instance.created_at);
    let outages = store::worker::outages(tx, from)?;
    Ok(Some(deadline_without(from, context.config.timings.force_terminate_after_ms, &outages)))
}

/// Decides by rows and what the provider said; returns when to look again.
fn reconcile(
    tx: &mut Tx,
    context: &EngineContext,
    id: InstanceId,
    seen: Option<Seen>,
) -> Result<Option<Timestamp>, Failure> {
    let mut instance = store::instance::lock(tx, id)?;
    let at = tx.at();
    instance.last_seen_at = instance.last_seen_at.max(context.presence.last(id));
    let before = instance.clone();
    if seen == Some(Seen::Gone) {
        instance = instance_event(tx, instance, InstanceEvent::ProviderConfirmedGone)?;
        context.presence.forget(id);
        store::instance::save(tx, &instance)?;
        return Ok(None);
    }
    if let Some(event) = left_queue(&seen) {
        instance = instance_event(tx, instance, event)?;
    }
    let mut next: Vec<Timestamp> = Vec::new();
    if seen == Some(Seen::RunnerGone) {
        instance.respawns += 1;
        if context.is_linked(&instance.provider) {
            tx.wake(WorkKind::Link, id.0, at); // the runner that was started again may need one now
        }
        next.push(at + (SECOND << instance.respawns.clamp(0, 6)).min(RESPAWN_MOST_MS));
    } else if is_expected(instance.status) && !context.presence.streaming(id) {
        // Alive without a stream, or its provider could not say: asked until one of them speaks.
        next.push(at + ask_again_ms(tx, &instance, seen.as_ref())?);
    }
    if let Some((due, passed)) = silent_at(tx, context, &instance)?
        && due <= at
        && !(passed == InstanceEvent::GaveUpOn && many_fell_silent(tx, &instance)?)
    {
        instance = instance_event(tx, instance, passed)?;
    }
    if let Some((due, _)) = silent_at(tx, context, &instance)? {
        next.push(due.max(at + ASK_AGAIN_MS));
    }
    // A lost machine whose job works to its end (`on_lost_control: finish`) is waited for; one that stops its job, or has none, is not.
    let awaited = instance.on_lost_control == OnLostControl::Finish && store::job::on_instance(tx, id)?.is_some();
    if instance.status == InstanceStatus::Lost && !awaited {
        let from = instance.last_seen_at.unwrap_or(instance.created_at);
        let due =
            deadline_without(from, context.config.timings.force_terminate_after_ms, &store::worker::outages(tx, from)?);
        if due <= at {
            store::instance::save(tx, &instance)?;
            terminate_instance::begin(tx, id, "silent for 25 minutes")?;
            return Ok(None);
        }
        next.push(due);
    }
    if let Some(due) = drained_at(tx, context, &instance)? {
        if due <= at {
            store::instance::save(tx, &instance)?;
            terminate_instance::begin(tx, id, "drained")?;
            return Ok(None);
        }
        next.push(due);
    }
    match crate::idle_billing::reconcile(tx, context, &mut instance)? {
        Unused::Nothing => {}
        Unused::PaidUntil(due) => next.push(due),
        Unused::Unpaid => {
            store::instance::save(tx, &instance)?;
            terminate_instance::begin(tx, id, "its idle time cannot be paid")?;
            return Ok(None);
        }
    }
    if let Some(due) = idle_until(tx, context, &instance)? {
        if due <= at {
            store::instance::save(tx, &instance)?;
            terminate_instance::begin(tx, id, "unused")?;
            return Ok(None);
        }
        next.push(due);
    }
    if instance != before {
        store::instance::save(tx, &instance)?;
    }
    Ok(next.into_iter().min())
}

/// How long its provider is left alone. Where it does not answer, or the machine has long been lost, as long as an eighth of the silence, so
/// the pauses grow and no count of tries is kept. Our own outages are no silence.
fn ask_again_ms(tx: &mut Tx, instance: &Instance, seen: Option<&Seen>) -> Result<i64, Failure> {
    let (from, at) = (instance.last_seen_at.unwrap_or(instance.created_at), tx.at());
    let answers = seen.is_some() && instance.status != InstanceStatus::Lost;
    if answers || at.since(from) / 8 <= ASK_AGAIN_MS {
        return Ok(ASK_AGAIN_MS);
    }
    let outages = store::worker::outages(tx, from)?;
    let away_ms: i64 = outages.iter().map(|outage| outage.to.since(outage.from.max(from))).sum();
    Ok(((at.since(from) - away_ms) / 8).clamp(ASK_AGAIN_MS, ASK_AGAIN_MOST_MS))
}

/// What its provider's answer says of the queue that it may be in.
fn left_queue(seen: &Option<Seen>) -> Option<InstanceEvent> {
    match seen {
        Some(Seen::Queued { since, why }) => {
            Some(InstanceEvent::Queued(ProviderQueue { since: *since, why: why.clone() }))
        }
        Some(Seen::Alive | Seen::RunnerGone) => Some(InstanceEvent::Started),
        Some(Seen::Gone | Seen::Stranger) | None => None,
    }
}

/// When its silence means something, our own outages taken out.
fn silent_at(
    tx: &mut Tx,
    context: &EngineContext,
    instance: &Instance,
) -> Result<Option<(Timestamp, InstanceEvent)>, Failure> {
    let Some((from, _, passed)) = model::instance::deadline(instance) else { return Ok(None) };
    let timings = &context.config.timings;
    let ms = if passed == InstanceEvent::FellSilent { timings.unreachable_after_ms } else { timings.panic_after_ms };
    Ok(Some((deadline_without(from, ms, &store::worker::outages(tx, from)?), passed)))
}

/// Many machines falling silent together is more likely our own deafness: none of them counts as lost until some return.
fn many_fell_silent(tx: &mut Tx, instance: &Instance) -> Result<bool, Failure> {
    const TOGETHER_MS: i64 = 60 * SECOND;
    const AT_LEAST: usize = 3; // one or two silent machines are no pattern
    let open = store::instance::open_in(tx, instance.pool)?;
    let last = |i: &Instance| i.last_seen_at.unwrap_or(i.created_at);
    let silent = open
        .iter()
        .filter(|i| matches!(i.status, InstanceStatus::Unreachable))
        .filter(|i| (last(i).ms() - last(instance).ms()).abs() <= TOGETHER_MS)
        .count();
    Ok(silent >= AT_LEAST && silent * 10 > open.len() * 3)
}

/// When an unused machine ends: after its idle time, and never under a hold that needs it.
fn idle_until(tx: &mut Tx, context: &EngineContext, instance: &Instance) -> Result<Option<Timestamp>, Failure> {
    let Some(since) = instance.idle_since.filter(|_| instance.status == InstanceStatus::Ready) else { return Ok(None) };
    let due = since + idle_after_ms(context, &instance.provider);
    Ok(Some(held(tx, context, instance)?.map_or(due, |(until, _)| due.max(until))))
}

/// A hold that needs this machine: where the folder outlives the runner, none does.
pub(crate) fn held(
    tx: &mut Tx,
    context: &EngineContext,
    instance: &Instance,
) -> Result<Option<(Timestamp, String)>, Failure> {
    if context.providers.get(&instance.provider).is_some_and(|p| p.capabilities().keeps_workdirs) {
        return Ok(None);
    }
    let at = tx.at();
    let held = store::allocation::kept_on(tx, instance.id)?;
    let longest =
        held.iter().filter_map(|slot| Some((slot.hold()?.until, slot.id.to_string()))).filter(|(until, _)| *until > at);
    Ok(longest.max())
}
