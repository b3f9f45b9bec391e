//! Placement: one decision at a time per pool, under the lock of the pool's row. A submission claims a slot itself only if no job waits;
//! otherwise the pool's work item places the waiting jobs in order. A slot that becomes free wakes that item.

use crate::host::HostsNow;
use crate::intents::terminate_instance;
use crate::run_tx::{RunTx, Tracked};
use crate::{Engine, EngineContext};
use adapters::Order;
use model::allocation::{Allocation, AllocationEvent, AllocationStatus};
use model::boot::{Boot, BootTimings};
use model::host::Wanted;
use model::instance::{Instance, InstanceStatus};
use model::job::{Job, JobEvent, JobStatus};
use model::manifest::ResourceKind;
use model::names::ResourceName;
use model::offer::Offer;
use model::pool::{Placement, Room, Wish};
use model::spec::{Priority, Resources};
use model::{AllocationId, Failure, InstanceId, JobId, PoolId, Refused};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
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
        crate::workflow::advance_of_run(self, workflow, true)
    }

    /// Places the jobs that this transaction has submitted or released. One after the other, and each decision finds in the database
    /// what the one before it has changed.
    pub(crate) fn place_waiting(&mut self) -> Result<(), Failure> {
        if self.to_place.is_empty() {
            return Ok(());
        }
        self.lock_for_placement()?;
        let mut placed = false;
        while let Some(job) = self.to_place.pop_front() {
            if std::mem::replace(&mut placed, true) {
                self.write_placed()?;
            }
            self.place(job)?;
        }
        Ok(())
    }

    /// Locks all their pools and then, in the order of their ids, the machines that will be chosen. Of two transactions that place
    /// several jobs none waits for the other while the other waits for it.
    fn lock_for_placement(&mut self) -> Result<(), Failure> {
        let mut jobs: BTreeMap<PoolId, Vec<JobId>> = BTreeMap::new();
        for id in self.to_place.clone() {
            let job = self.job(id)?;
            if job.status == JobStatus::Submitted {
                jobs.entry(job.pool).or_default().push(id);
            }
        }
        for pool in jobs.keys() {
            self.pool(*pool)?;
        }
        if self.to_place.len() < 2 {
            return Ok(()); // the one machine is locked when it is chosen
        }
        let mut machines = BTreeSet::new();
        for (pool, jobs) in jobs {
            machines.extend(self.will_be_chosen(pool, &jobs)?);
        }
        for machine in machines {
            if self.may_lock(machine) {
                self.instance(machine)?;
            }
        }
        Ok(())
    }

    /// The machines whose slots these jobs of this run will be given, as far as there are free ones.
    fn will_be_chosen(&mut self, pool: PoolId, jobs: &[JobId]) -> Result<Vec<InstanceId>, Failure> {
        if store::job::head(self.tx, pool)?.is_some() {
            return Ok(Vec::new()); // who waits is served first
        }
        let pool = self.pool(pool)?.clone();
        let mut slots = store::allocation::available(self.tx, pool.id)?;
        let mut chosen = Vec::new();
        for job in jobs {
            let wish = self.wish(*job)?;
            let room = self.room_for(&pool, &mut slots, (*job, &wish.resources))?;
            let Placement::Claim(slot) = model::pool::place(&wish, &slots, room) else { break };
            chosen.push(slot.instance);
            slots.retain(|other| other.allocation != slot.allocation);
        }
        Ok(chosen)
    }

    /// What a job's machine must have: what its agent asks for, else what its run does.
    pub(crate) fn resources_of(&mut self, job: JobId) -> Result<Resources, Failure> {
        let asked = self.job(job)?.resources.clone();
        Ok(asked.unwrap_or_else(|| self.run.spec.resources.clone()))
    }

    fn wish(&mut self, job: JobId) -> Result<Wish, Failure> {
        let resources = self.resources_of(job)?;
        let (spot, init_checksum) = (self.run.spec.spot || self.job(job)?.spot, self.run.spec.init_checksum.clone());
        let features = self.context.wanted_features(&self.run.spec.features);
        Ok(Wish { org: self.run.org, resources, spot, init_checksum, features })
    }

    /// Decides under the pool's lock. `lost`: slots that could not be claimed in this very transaction.
    pub(crate) fn decide_place(&mut self, id: JobId, lost: &[AllocationId]) -> Result<Decision, Failure> {
        if let Some(importing) = self.importing {
            return Ok(Decision::Claim(importing.slot));
        }
        let pool = self.job(id)?.pool;
        let pool = self.pool(pool)?.clone();
        let head = store::job::head(self.tx, pool.id)?;
        if let Some(head) = head.filter(|head| head.id != id) {
            self.enqueue(id, pool.id, Some(head))?;
            return Ok(Decision::Wait);
        }
        let wish = self.wish(id)?;
        let mut slots = store::allocation::available(self.tx, pool.id)?;
        slots.retain(|slot| !lost.contains(&slot.allocation));
        loop {
            let room = self.room_for(&pool, &mut slots, (id, &wish.resources))?;
            match model::pool::place(&wish, &slots, room) {
                Placement::Claim(slot) => {
                    let (instance, allocation) = (slot.instance, slot.allocation);
                    return Ok(Decision::Claim(WarmSlot { instance, allocation }));
                }
                Placement::Spawn => return Ok(Decision::Spawn),
                // Locked out of turn it could wait for a transaction that waits for this one: the pool's item goes on.
                Placement::Retire(idle) if !self.may_lock(idle) => {
                    self.wake(WorkKind::Pool, pool.id.0, self.at);
                    self.enqueue(id, pool.id, None)?;
                    return Ok(Decision::Wait);
                }
                Placement::Retire(idle) => {
                    let machine = self.instance(idle)?.it.clone();
                    if crate::instance::held(self.tx, self.context, &machine)?.is_some() {
                        slots.retain(|other| other.instance != idle); // the hold needs the machine
                        continue;
                    }
                    self.enqueue(id, pool.id, None)?;
                    terminate_instance::begin(self, idle, "a job waits that does not fit on it")?;
                    return Ok(Decision::Wait);
                }
                Placement::Wait => {
                    self.enqueue(id, pool.id, None)?;
                    return Ok(Decision::Wait);
                }
            }
        }
    }

    /// What there is beside the slots for a job that asks for this; slots that are of no use to it go.
    fn room_for(
        &mut self,
        pool: &Pool,
        slots: &mut Vec<model::pool::Slot>,
        (job, asked): (JobId, &Resources),
    ) -> Result<Room, Failure> {
        let sandbox = self.wants_sandbox(job)?;
        let announced = self.instances.iter().map(|tracked| &tracked.it);
        let Some(hosts) = HostsNow::read(self.tx, self.context, pool, announced)? else {
            return room(self.tx, self.context, pool);
        };
        let wanted = Wanted { sandbox, ..self.run.spec.wanted(asked) };
        hosts.retain(slots, wanted);
        Ok(hosts.room(wanted))
    }

    /// Whether commands of this job run in a sandbox.
    pub(crate) fn wants_sandbox(&mut self, id: JobId) -> Result<bool, Failure> {
        Ok(self.run.spec.sandbox.is_some() && !self.job(id)?.no_sandbox)
    }

    fn may_lock(&self, machine: InstanceId) -> bool {
        self.instances.iter().any(|held| held.it.id == machine) || store::instance::may_lock(self.tx, machine)
    }

    /// Puts the job at the end of its turn in the waiting list. Behind a job that waits already it cannot be placed yet, so the pool's
    /// item is not woken.
    fn enqueue(&mut self, id: JobId, pool: PoolId, head: Option<Head>) -> Result<(), Failure> {
        if self.job(id)?.queue_seq.is_some() {
            return Ok(());
        }
        let turns = store::job::turns(self.tx, pool, self.run.spec.priority, self.run.org)?;
        let mut locked = self.pool(pool)?.clone();
        let (turn, seq) = (model::pool::turn(turns), store::pool::next_seq(self.tx, &mut locked)?);
        *self.pool(pool)? = locked;
        let behind = head.is_some_and(|head| self.run.spec.priority == Priority::Normal && Some(turn) >= head.turn);
        if !behind {
            self.wake(WorkKind::Pool, pool.0, self.at);
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
        if !self.may_lock(slot.instance) {
            return Err(Refused::Stale { what: "the instance" }.into()); // another job may have it: another slot is chosen
        }
        let instance = self.instance(slot.instance)?;
        if instance.it.status != InstanceStatus::Ready {
            return Err(Refused::Stale { what: "the instance" }.into());
        }
        // The transaction that freed the slot had the pool's lock before this one, but may have read the clock later.
        let freed = self.allocation(slot.allocation)?.it.updated_at;
        self.at = self.tx.not_before(freed);
        self.allocation_event(slot.allocation, AllocationEvent::Claimed { job: id })?;
        let mut machine = self.instance(slot.instance)?.it.clone();
        crate::idle_billing::close(self, &mut machine)?;
        machine.idle_since = None;
        machine.claimed_for(self.run.spec.init_checksum.as_ref());
        self.prepare(id, &mut machine)?;
        machine.manifest = self.manifest_of(id)?;
        let (price_micro, manifest) = (machine.price_micro, machine.manifest);
        self.instance(slot.instance)?.set(machine);
        let owned = [(ResourceKind::Instance, slot.instance.0), (ResourceKind::Allocation, slot.allocation.0)];
        store::manifest::own(self.tx, manifest, &owned)?;
        let placed = JobEvent::Placed { instance: slot.instance, allocation: slot.allocation, warm: true, price_micro };
        self.give_place(id, placed)
    }

    /// Announces a machine: its row, its name and its slot stand before the provider is asked to make it. The pool is locked.
    pub(crate) fn announce(&mut self, id: JobId, offer: &Offer) -> Result<(), Failure> {
        let pool = self.job(id)?.pool;
        let pool = self.pool(pool)?.clone();
        let provider = self.context.provider(&pool.provider)?;
        let capabilities = provider.capabilities();
        let (manifest, workflow) = (self.manifest_of(id)?, self.job(id)?.workflow);
        let (instance, slot) = (InstanceId(self.tx.next_id()), AllocationId(self.tx.next_id()));
        let control_id = self.context.installation.control_id.clone();
        let name = ResourceName { control_id, manifest: Some(manifest.0), resource: instance.0 }.to_string();
        let resources = self.resources_of(id)?;
        let price_micro = offer.price_micro;
        let sandbox = self.wants_sandbox(id)?;
        let announced = self.instances.iter().map(|tracked| &tracked.it);
        let hosts = HostsNow::read(self.tx, self.context, &pool, announced)?;
        let wanted = Wanted { sandbox, ..self.run.spec.wanted(&resources) };
        let place = hosts.and_then(|hosts| hosts.choose(wanted).0);
        let mut machine = Instance::announced(instance, self.run.org, pool.id, manifest, name, self.at);
        self.prepare(id, &mut machine)?;
        self.instances.push(Tracked::new(Instance {
            workflow: Some(workflow),
            provider: pool.provider.clone(),
            region: pool.region.clone(),
            nonce: nonce(self.context, &machine.name, self.at),
            resources: place.as_ref().map_or_else(|| provider.size_for(&resources), |place| place.resources.clone()),
            gpus: place.as_ref().and_then(|place| place.gpus.clone()),
            place: place.map(|place| place.host),
            init_checksum: self.run.spec.init_checksum.clone(),
            on_lost_control: self.run.spec.on_lost_control,
            price_micro,
            spot: offer.spot,
            instance_type: offer.instance_type.clone(),
            ..machine
        }));
        // Created as claimed: no other job can take it before the job it was made for (R94).
        let (claimed, job) = (AllocationStatus::Claimed, Some(id));
        let free = Allocation::free(slot, self.run.org, instance, capabilities.user, self.at);
        self.allocations.push(Tracked::new(Allocation { manifest: Some(manifest), status: claimed, job, ..free }));
        let owned = [(ResourceKind::Instance, instance.0), (ResourceKind::Allocation, slot.0)];
        store::manifest::own(self.tx, manifest, &owned)?;
        self.wake(WorkKind::Instance, instance.0, self.at + model::instance::SPAWN_LIMIT_MS);
        self.give_place(id, JobEvent::Placed { instance, allocation: slot, warm: false, price_micro })
    }

    /// The features that the job's run asks for are on the machine's row before its runner is told; until they are installed the job
    /// waits.
    fn prepare(&mut self, id: JobId, machine: &mut Instance) -> Result<(), Failure> {
        let wanted = self.context.features_to_install(&self.run.spec.features);
        let prepare_ms = machine.prepared_for(&wanted).unwrap_or(0);
        if self.job(id)?.prepare_ms != prepare_ms {
            let job = Job { prepare_ms, ..self.job(id)?.clone() };
            self.set_job(job)?;
        }
        Ok(())
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

/// Cannot be computed without the installation's key, and differs for every machine.
pub(crate) fn nonce(context: &EngineContext, name: &str, at: model::Timestamp) -> String {
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
        control_url: context.control_url(&instance.provider).to_owned(),
        control_ca: context.control_ca.clone(),
        token: context.installation.runner_token(&instance.name),
        cpu_milli: instance.resources.cpu_milli,
        memory_bytes: instance.resources.memory_bytes,
        gpus: instance.gpus.clone(),
        hidden: Vec::new(), // the provider knows
        timings: BootTimings {
            heartbeat_every_ms: timings.heartbeat_every_ms,
            degraded_after_ms: timings.degraded_after_ms,
            panic_after_ms: timings.panic_after_ms,
            ..BootTimings::default()
        },
    }
}

/// What its provider is asked for. Made from the row alone, so that every worker and every repetition asks for the same.
pub(crate) fn order(context: &EngineContext, instance: &Instance) -> Order {
    let labels =
        [("repl-control-id", context.installation.control_id.clone()), ("repl-instance", instance.id.to_string())];
    Order {
        spot: instance.spot,
        instance_type: instance.instance_type.clone(),
        place: instance.place.clone(),
        labels: labels.map(|(name, value)| (name.to_owned(), value)).into(),
        ..Order::new(boot(context, instance), instance.region.clone(), instance.resources.clone())
    }
}

impl Engine {
    /// Moves a job that has no machine to the pool of another provider or region. This commit gives up its turn and its place in the
    /// list; the next one, by the job's own item, enters the other pool under that pool's lock.
    pub async fn change_pool(&self, job: JobId, provider: &str, region: &str) -> Result<(), Failure> {
        let capabilities = self.context.provider(provider)?.capabilities();
        if !capabilities.regions.iter().any(|known| known == region) {
            let known = capabilities.regions.join(", ");
            let why = format!("`{region}` is not a region of {provider}: choose one of {known}");
            return Err(Refused::invalid("region", why).into());
        }
        let found = self.store.read_inline("job.find", move |tx| store::job::find(tx, job)).await?;
        let run = found.ok_or_else(|| Refused::not_found("job", job))?.run;
        let (context, place) = (self.context.clone(), (provider.to_owned(), region.to_owned()));
        self.store
            .write(Lane::Normal.of(run), "job.change_pool", move |tx| {
                let mut run_tx = RunTx::open(tx, &context, run)?;
                let asked = run_tx.resources_of(job)?;
                context.check_fit(&place.0, &asked)?;
                let pool = store::pool::ensure(run_tx.tx, &place.0, &place.1)?;
                run_tx.job_event(job, JobEvent::PoolChanged { pool })?;
                let moved = model::job::Job { provider: place.0.clone(), ..run_tx.job(job)?.clone() };
                run_tx.set_job(moved)?;
                run_tx.close().map(drop)
            })
            .await
    }

    /// Jobs wait and a slot may have become free: places them in order, one transaction per job, until the first cannot be placed.
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
        Submission { org, by: None, name: None, spec, plans: Default::default(), start: true }
    }

    fn context(max_instances: i64) -> Arc<EngineContext> {
        let mut settings = FakeSettings::default();
        settings.capabilities.max_instances = max_instances;
        let provider = FakeProvider::new(settings, Box::new(|_, _| Fate::Obey));
        Arc::new(EngineContext {
            config: crate::Config::default(),
            installation: store::Installation::new("t3stt3st", [7; 32]),
            providers: BTreeMap::from([("fake".to_owned(), Arc::new(provider) as Arc<dyn adapters::Provider>)]).into(),
            tools: Default::default(),
            models: Default::default(),
            control_urls: crate::ControlUrls::only("test:"),
            control_ca: None,
            presence: crate::Presence::alone(),
            blob_source: model::spec::BlobSource::ControlPlane,
            timer: Arc::new(crate::workflow::tests::Never),
        })
    }

    fn submit(store: &Store, context: &Arc<EngineContext>, org: OrgId) -> (RunId, JobId) {
        let context = context.clone();
        let submitted = move |tx: &mut Tx| {
            let (run, content) = (fresh(tx, &submission(org)), submission(org).spec.content());
            let mut run_tx = RunTx::fresh(tx, &context, run, content);
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
        let ((first, ending), (run, job)) = (submit(store, context, org), submit(store, context, org));
        let context = context.clone();
        let free = move |tx: &mut Tx| {
            let mut run_tx = RunTx::open(tx, &context, first)?;
            let ended = run_tx.job(ending)?.clone();
            let (instance, slot) = (ended.instance.unwrap(), ended.allocation.unwrap());
            run_tx.set_job(Job { status: JobStatus::Done, ..ended })?;
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
