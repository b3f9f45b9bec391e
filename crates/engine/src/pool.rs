//! Placement: one serial decision per pool, under the pool's lock. A submit places itself only if nobody waits; a freed slot wakes the pool.

use crate::intents::terminate_instance;
use crate::run_tx::{RunTx, Tracked};
use crate::{Engine, EngineContext};
use model::allocation::{Allocation, AllocationEvent, AllocationStatus};
use model::boot::{Boot, BootTimings};
use model::instance::{Instance, InstanceStatus};
use model::job::JobEvent;
use model::manifest::ResourceKind;
use model::names::ResourceName;
use model::pool::{Placement, Room, Wish};
use model::spec::Priority;
use model::{AllocationId, Failure, InstanceId, JobId, PoolId, Refused};
use serde::{Deserialize, Serialize};
use store::job::Head;
use store::pool::Pool;
use store::{Item, Lane, Tx, WorkKind};

/// How many waiting jobs one look at a pool tries to place before it lets others work.
const PLACED_AT_ONCE: i64 = 16;

/// A free slot on a machine that is ready.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct WarmSlot {
    pub(crate) instance: InstanceId,
    pub(crate) allocation: AllocationId,
}

/// How a job gets its machine.
pub(crate) enum Decision {
    Claim(WarmSlot),
    /// A machine is made for it.
    Spawn,
    /// It is in the waiting list, and the pool's item asks again.
    Wait,
}

impl RunTx<'_> {
    /// Gives a submitted job a machine, or a place in the list: the node of its workflow that waits for that decides.
    pub(crate) fn place(&mut self, id: JobId) -> Result<(), Failure> {
        let workflow = self.job(id)?.workflow;
        crate::workflow::advance_in(self, workflow, true)
    }

    /// Decides under the pool's lock. `lost`: slots that could not be claimed in this very transaction, which has the lock already
    /// and may hold instances, after which no pool is locked any more.
    pub(crate) fn decide_place(&mut self, id: JobId, lost: &[AllocationId]) -> Result<Decision, Failure> {
        let job = self.job(id)?.clone();
        let mut pool = if lost.is_empty() { store::pool::lock(self.tx, job.pool)? } else { self.pool_of(id)? };
        let head = store::job::head(self.tx, pool.id)?;
        if let Some(head) = head.filter(|head| head.id != id) {
            self.enqueue(id, &mut pool, Some(head))?;
            return Ok(Decision::Wait);
        }
        let wish = Wish {
            org: job.org,
            resources: self.run.spec.resources.clone(),
            init_checksum: self.run.spec.init_checksum.clone(),
        };
        let mut slots = store::allocation::available(self.tx, pool.id)?;
        slots.retain(|slot| !lost.contains(&slot.allocation));
        loop {
            match model::pool::place(&wish, &slots, room(self.tx, self.context, &pool)?) {
                Placement::Claim(slot) => {
                    let (instance, allocation) = (slot.instance, slot.allocation);
                    return Ok(Decision::Claim(WarmSlot { instance, allocation }));
                }
                Placement::Spawn => return Ok(Decision::Spawn),
                Placement::Retire(idle) => {
                    let machine = self.instance(idle)?.it.clone();
                    if crate::instance::held(self.tx, self.context, &machine)?.is_some() {
                        slots.retain(|other| other.instance != idle); // the hold needs the machine
                        continue;
                    }
                    self.enqueue(id, &mut pool, None)?;
                    terminate_instance::begin_in(self, idle, "somebody waits whom it does not fit")?;
                    return Ok(Decision::Wait);
                }
                Placement::Wait => {
                    self.enqueue(id, &mut pool, None)?;
                    return Ok(Decision::Wait);
                }
            }
        }
    }

    fn pool_of(&mut self, id: JobId) -> Result<Pool, Failure> {
        let pool = self.job(id)?.pool;
        store::pool::find(self.tx, pool)?.ok_or_else(|| Refused::not_found("pool", pool).into())
    }

    /// At the end of its turn in the list. Behind somebody who waits already nothing new can be placed, so nobody looks again.
    fn enqueue(&mut self, id: JobId, pool: &mut Pool, head: Option<Head>) -> Result<(), Failure> {
        if self.job(id)?.queue_seq.is_some() {
            return Ok(());
        }
        let turns = store::job::turns(self.tx, pool.id, self.run.spec.priority, self.run.org)?;
        let (turn, seq) = (model::pool::turn(turns), store::pool::next_seq(self.tx, pool)?);
        let behind = head.is_some_and(|head| self.run.spec.priority == Priority::Normal && Some(turn) >= head.turn);
        if !behind {
            self.wake(WorkKind::Pool, pool.id.0, self.at);
        }
        self.job_event(id, JobEvent::Queued { turn, seq }).map(drop)
    }

    /// Takes a warm slot: compare-and-set of the slot, and the machine is ready in the same transaction. False: the slot was taken,
    /// or its machine has left, before its row was locked.
    pub(crate) fn claim(&mut self, id: JobId, slot: &WarmSlot) -> Result<bool, Failure> {
        match self.try_claim(id, slot) {
            Ok(()) => Ok(true),
            Err(Failure::Refused(Refused::Stale { .. } | Refused::NotFrom { .. })) => Ok(false),
            Err(failure) => Err(failure),
        }
    }

    fn try_claim(&mut self, id: JobId, slot: &WarmSlot) -> Result<(), Failure> {
        let instance = self.instance(slot.instance)?;
        if instance.it.status != InstanceStatus::Ready {
            return Err(Refused::Stale { what: "the instance" }.into());
        }
        // Whoever freed the slot may have read the clock after us, and have had the pool's lock before us.
        let freed = self.allocation(slot.allocation)?.it.updated_at;
        self.at = self.tx.not_before(freed);
        self.allocation_event(slot.allocation, AllocationEvent::Claimed { job: id })?;
        self.unused_no_more(slot.instance)?;
        let mut machine = self.instance(slot.instance)?.it.clone();
        machine.idle_since = None;
        machine.manifest = self.manifest_of(id)?;
        let (price_micro, manifest) = (machine.price_micro, machine.manifest);
        self.instance(slot.instance)?.set(machine);
        let owned = [(ResourceKind::Instance, slot.instance.0), (ResourceKind::Allocation, slot.allocation.0)];
        store::manifest::own(self.tx, manifest, &owned)?;
        let placed = JobEvent::Placed { instance: slot.instance, allocation: slot.allocation, warm: true, price_micro };
        self.give_place(id, placed)
    }

    /// Announces a machine: its row, its name and its slot stand before the provider is asked to make it. The pool is locked.
    pub(crate) fn announce(&mut self, id: JobId) -> Result<(), Failure> {
        let pool = self.pool_of(id)?;
        let provider = self.context.provider(&pool.provider)?.clone();
        let capabilities = provider.capabilities();
        let manifest = self.manifest_of(id)?;
        let (instance, slot) = (InstanceId(self.tx.next_id()), AllocationId(self.tx.next_id()));
        let control_id = self.context.installation.control_id.clone();
        let name = ResourceName { control_id, manifest: Some(manifest.0), resource: instance.0 }.to_string();
        let price_micro = provider.price(&self.run.spec.resources).micro();
        self.instances.push(Tracked::new(Instance {
            id: instance,
            org: self.run.org,
            pool: pool.id,
            manifest,
            workflow: Some(self.job(id)?.workflow),
            provider: pool.provider.clone(),
            region: pool.region.clone(),
            nonce: nonce(self.context, &name, self.at),
            name,
            handle: None,
            status: InstanceStatus::Spawning,
            resources: provider.size_for(&self.run.spec.resources),
            init_checksum: self.run.spec.init_checksum.clone(),
            on_lost_control: self.run.spec.on_lost_control,
            price_micro,
            desired_version: 1,
            observed_version: 0,
            session: 0,
            workdirs: 1,
            created_at: self.at,
            ready_at: None,
            last_seen_at: None,
            lost_at: None,
            idle_since: None,
            unused_from: None,
            terminating_at: None,
            terminated_at: None,
            displaced: false,
            respawns: 0,
            host: None,
            runner_version: None,
            containment: None,
            version: 1,
        }));
        // Born claimed: nobody else can take it before the job it was made for (R94).
        self.allocations.push(Tracked::new(Allocation {
            id: slot,
            org: self.run.org,
            manifest: Some(manifest),
            instance,
            job: Some(id),
            status: AllocationStatus::Claimed,
            debug_hold_until: None,
            extensions: 0,
            account: Default::default(),
            user: capabilities.user,
            workdir: "work_1".into(),
            workdir_released: false,
            created_at: self.at,
            updated_at: self.at,
            completed_at: None,
            version: 1,
        }));
        let owned = [(ResourceKind::Instance, instance.0), (ResourceKind::Allocation, slot.0)];
        store::manifest::own(self.tx, manifest, &owned)?;
        self.wake(WorkKind::Instance, instance.0, self.at + model::instance::SPAWN_LIMIT_MS);
        self.give_place(id, JobEvent::Placed { instance, allocation: slot, warm: false, price_micro })
    }

    fn give_place(&mut self, id: JobId, placed: JobEvent) -> Result<(), Failure> {
        self.context.presence.place(id);
        self.job_event(id, placed).map(drop)
    }

    fn manifest_of(&mut self, id: JobId) -> Result<model::ManifestId, Failure> {
        let workflow = self.job(id)?.workflow;
        Ok(self.workflow(workflow)?.it.manifest)
    }
}

/// Secret to whoever does not have the installation's key, and new for every machine.
fn nonce(context: &EngineContext, name: &str, at: model::Timestamp) -> String {
    context.installation.runner_token(&format!("nonce {name} {}", at.ms())).chars().take(32).collect()
}

pub(crate) fn room(tx: &mut Tx, context: &EngineContext, pool: &Pool) -> Result<Room, Failure> {
    let open = store::instance::open_in(tx, pool.id)?;
    let ending =
        open.iter().filter(|i| matches!(i.status, InstanceStatus::Terminating | InstanceStatus::Draining)).count();
    let max_instances = context.provider(&pool.provider)?.capabilities().max_instances;
    Ok(Room { instances: open.len() as i64, max_instances, ending: ending as i64 })
}

/// What a machine is told when it is made.
pub(crate) fn boot(context: &EngineContext, instance: &Instance) -> Boot {
    let timings = &context.config.timings;
    Boot {
        name: instance.name.clone(),
        nonce: instance.nonce.clone(),
        instance: instance.id,
        control_id: context.installation.control_id.clone(),
        control_url: context.control_url.clone(),
        control_ca: context.control_ca.clone(),
        token: context.installation.runner_token(&instance.name),
        cpu_milli: instance.resources.cpu_milli,
        memory_bytes: instance.resources.memory_bytes,
        timings: BootTimings {
            heartbeat_every_ms: timings.heartbeat_every_ms,
            degraded_after_ms: timings.degraded_after_ms,
            panic_after_ms: timings.panic_after_ms,
            ..BootTimings::default()
        },
    }
}

impl Engine {
    /// Somebody waits and something may have become free: one transaction per placed job, in order, until nobody fits.
    pub(crate) async fn reconcile_pool(&self, item: Item) -> Result<(), Failure> {
        let id = PoolId(item.subject);
        for _ in 0..PLACED_AT_ONCE {
            let head = self.store.read_inline("pool.head", move |tx| Ok(store::job::waiting(tx, id, 1)?.pop())).await?;
            let Some(head) = head else { return self.done(item).await };
            let context = self.context.clone();
            let placed = self
                .store
                .write(Lane::Normal.of(head.run), "pool.place", move |tx| {
                    store::work::hold(tx, &item)?;
                    let mut run_tx = RunTx::open(tx, &context, head.run)?;
                    let waits = run_tx.job(head.id).is_ok_and(|job| job.queue_seq.is_some());
                    if waits {
                        run_tx.place(head.id)?;
                    }
                    let left = !run_tx.job(head.id).is_ok_and(|job| job.queue_seq.is_some());
                    run_tx.close()?;
                    Ok(left)
                })
                .await?;
            if !placed {
                return self.done(item).await; // the next freed slot wakes the pool again
            }
        }
        self.again(item).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::{Submission, fresh};
    use adapters::fake::{FakeProvider, FakeSettings, Fate};
    use model::job::{Job, JobStatus};
    use model::ledger::{Entry, EntryKind};
    use model::run::RunEvent;
    use model::spec::RunSpec;
    use model::workflow::NodeStatus;
    use model::{Credits, OrgId, RunId};
    use serde_json::json;
    use std::collections::BTreeMap;
    use std::sync::Arc;
    use store::{Database, Options, Store};

    fn submission(org: OrgId) -> Submission {
        let spec: RunSpec = serde_json::from_value(json!({
            "kind": "task", "command": { "shell": "true" }, "provider": "fake", "region": "here", "stop_duration_ms": 0,
            "priority": "normal", "on_lost_control": "finish", "failure_mode": "fail-fast",
        }))
        .unwrap();
        Submission { org, name: None, spec, start: true }
    }

    fn context(max_instances: i64) -> Arc<EngineContext> {
        let mut settings = FakeSettings::default();
        settings.capabilities.max_instances = max_instances;
        let provider = FakeProvider::new(settings, Box::new(|_, _| Fate::Obey));
        Arc::new(EngineContext {
            config: crate::Config::default(),
            installation: store::Installation::new("t3stt3st", [7; 32]),
            providers: BTreeMap::from([("fake".to_owned(), Arc::new(provider) as Arc<dyn adapters::Provider>)]),
            control_url: "test:".to_owned(),
            control_ca: None,
            presence: crate::Presence::alone(),
            timer: Arc::new(crate::workflow::tests::Never),
        })
    }

    fn submit(store: &Store, context: &Arc<EngineContext>, org: OrgId) -> (RunId, JobId) {
        let context = context.clone();
        let submitted = move |tx: &mut Tx| {
            let run = fresh(tx, &submission(org));
            let mut run_tx = RunTx::fresh(tx, &context, run);
            run_tx.run_event(RunEvent::Started)?;
            let submitted = (run_tx.run.id, run_tx.jobs[0].it.id);
            run_tx.close()?;
            Ok(submitted)
        };
        store.write_now("submit", submitted).unwrap()
    }

    /// A machine that has just become free, and a run that waits for it.
    fn freed(store: &Store, context: &Arc<EngineContext>) -> (RunId, JobId, Instance) {
        let org = store.write_now("org", |tx| {
            let org = store::org::create(tx, "test")?;
            tx.ledger(Entry::new(org, EntryKind::Topup, Credits(1 << 40), "first"));
            Ok(org)
        });
        let org = org.unwrap();
        let ((first, _), (run, job)) = (submit(store, context, org), submit(store, context, org));
        let context = context.clone();
        let free = move |tx: &mut Tx| {
            let mut run_tx = RunTx::open(tx, &context, first)?;
            let ended = run_tx.jobs[0].it.clone();
            let (instance, slot) = (ended.instance.unwrap(), ended.allocation.unwrap());
            run_tx.set_job(Job { status: JobStatus::Done, ..ended });
            let free =
                Allocation { status: AllocationStatus::Available, job: None, ..run_tx.allocation(slot)?.it.clone() };
            run_tx.allocation(slot)?.set(free);
            let machine = Instance { status: InstanceStatus::Ready, ..run_tx.instance(instance)?.it.clone() };
            run_tx.instance(instance)?.set(machine);
            run_tx.close()?;
            Ok(store::instance::find(tx, instance)?.unwrap())
        };
        (run, job, store.write_now("free", free).unwrap())
    }

    /// `leaves`: the list of slots was read before the machine's end was committed, and its lock shows what is true.
    fn check(leaves: bool, warm: bool, nodes: [NodeStatus; 3]) {
        let store = Store::inline(&Options::new(Database::Memory)).unwrap();
        let (full, roomy) = (context(1), context(2));
        let (run, job, machine) = freed(&store, &full);
        let placed = move |tx: &mut Tx| {
            let mut run_tx = RunTx::open(tx, &roomy, run)?;
            assert!(run_tx.job(job)?.queue_seq.is_some(), "it waits");
            if leaves {
                let leaving = Instance { status: InstanceStatus::Terminating, ..machine.clone() };
                run_tx.instances.push(Tracked::new(leaving));
            }
            run_tx.place(job)?;
            let placed = run_tx.job(job)?.clone();
            assert_eq!((placed.warm, placed.instance == Some(machine.id)), (warm, warm));
            let steps = &run_tx.workflow(placed.workflow)?.it.nodes;
            let named = |name| steps.iter().find(|node| node.name == name).unwrap().status;
            assert_eq!(["claim-warm-allocation", "spawn-instance", "wait-for-boot"].map(named), nodes);
            Ok(())
        };
        store.write_now("place", placed).unwrap();
    }

    #[test]
    fn a_lost_warm_claim_falls_back_to_a_machine_of_its_own() {
        use NodeStatus::{Completed, Failed, Pending, Running, Skipped};
        check(true, false, [Failed, Running, Pending]);
        check(false, true, [Completed, Skipped, Completed]);
    }
}
