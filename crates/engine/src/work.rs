//! One iteration of the worker loop: claims due work items and works on each. The caller (the server's worker, or the simulator) decides
//! when to call again.

use crate::config::WorkerLimits;
use crate::{Engine, idle_runs};
use model::run::RunEvent;
use model::{Failure, InstanceId, Refused, RunId, Timestamp, Trouble, WorkflowId};
use std::any::Any;
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::PoisonError;
use std::task::{Context, Poll};
use store::work::{Asking, InHand};
use store::{Item, Lane, WorkClass, WorkKind, Worker};

/// Items one turn leases.
pub const CLAIMED_AT_ONCE: usize = 32;
/// Due items one claim looks at: as many as bulk work may touch in one transaction.
const LOOKED_AT_AT_ONCE: i64 = 200;
/// An item without a run that killed its workers is tried again so much later.
const LEFT_ALONE_MS: i64 = 10 * model::time::MINUTE;
/// After trouble an item is tried again so much later.
const TROUBLED_MS: i64 = 1_000;
/// Permits that each provider has in one process: as many calls of it may be under way there, and as many may hang.
pub const ASKS_OF_ONE_PROVIDER: i64 = 16;
/// What other processes have parked is looked for so often.
const LOOKS_FOR_PARKED_EVERY_MS: i64 = 5_000;

/// What this process knows of items that wait for a permit of their provider.
#[derive(Debug, Default)]
pub(crate) struct Parked {
    /// By the last look, or because this process has parked some since.
    some: bool,
    looked_at: Timestamp,
}

impl Engine {
    pub async fn start_worker(&self, name: String) -> Result<Worker, Failure> {
        self.store.write(Lane::High, "worker.start", move |tx| store::worker::start(tx, &name)).await
    }

    /// Renews this worker's lease, and records an outage if no process has updated the monitor row for a while.
    pub async fn beat(&self, worker: &Worker) -> Result<(), Failure> {
        let worker = worker.clone();
        self.store
            .write(Lane::High, "worker.beat", move |tx| {
                store::worker::beat(tx)?;
                store::worker::renew(tx, &worker)
            })
            .await
    }

    /// Frees all items of this worker at once. An orderly stop does not count as a death of the items' worker.
    pub async fn stop_worker(&self, worker: &Worker) -> Result<(), Failure> {
        let worker = worker.clone();
        self.store.write(Lane::High, "worker.stop", move |tx| store::worker::stop(tx, &worker)).await
    }

    /// Each item that is claimed is to be worked on. Whatever is due and needs nothing is put off on the way, and so are acts of orgs that have their share, many at a time, so
    /// nothing claimed means that nothing is due, or not for us.
    /// `most`: for how many this worker has a permit.
    pub async fn claim(&self, worker: &Worker, class: WorkClass, most: usize) -> Result<Vec<Item>, Failure> {
        loop {
            let (worker, in_hand, limits) = (worker.clone(), self.in_hand(), self.context.config.limits);
            let (shares, asking) = (self.shares(), self.asking());
            let most = (LOOKED_AT_AT_ONCE, most.min(CLAIMED_AT_ONCE));
            let (looked_at, knows_some) = self.parked(|parked| (parked.looked_at, parked.some));
            let claimed = self.store.write(Lane::Normal, "work.claim", move |tx| {
                let looks = knows_some || tx.at().since(looked_at).abs() >= LOOKS_FOR_PARKED_EVERY_MS;
                let asking = Asking { brings_back: looks && class == WorkClass::Control, ..asking.clone() };
                let looked = asking.brings_back;
                let holding = store::work::give_back_unknown(tx, &worker, class, &in_hand)?.within(shares, asking);
                let resting = |tx: &mut store::Tx, items: &[_]| idle_runs::resting(tx, &limits, items);
                let claimed = store::work::claim_awake(tx, &worker, &holding, most, resting)?;
                let some = if looked { Some(!store::work::parked_of_providers(tx)?.is_empty()) } else { None };
                Ok((claimed, some.map(|some| (some, tx.at()))))
            });
            let (claimed, looked) = claimed.await?;
            self.parked(|parked| {
                if let Some((some, looked_at)) = looked {
                    *parked = Parked { some, looked_at };
                }
                parked.some |= class == WorkClass::Control && claimed.parked > 0;
            });
            if claimed.rested + claimed.parked == 0 || !claimed.items.is_empty() {
                let mut in_hand = self.in_hand.lock().unwrap_or_else(PoisonError::into_inner);
                in_hand.extend(claimed.items.iter().map(|item| ((item.kind, item.subject, item.fence), item.asks)));
                return Ok(claimed.items);
            }
        }
    }

    /// Whether an item may wait for a permit of its provider, so that the end of one with such a permit lets another begin.
    pub fn some_wait_for_providers(&self) -> bool {
        self.parked(|parked| parked.some)
    }

    fn parked<T>(&self, look: impl FnOnce(&mut Parked) -> T) -> T {
        look(&mut self.parked.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// What this process holds of the permits of providers.
    fn asking(&self) -> Asking {
        let mut held = BTreeMap::new();
        for provider in self.in_hand.lock().unwrap_or_else(PoisonError::into_inner).values().flatten() {
            *held.entry(*provider).or_default() += 1;
        }
        Asking { of_one_provider: ASKS_OF_ONE_PROVIDER, held, brings_back: false }
    }

    fn shares(&self) -> store::work::Shares {
        let WorkerLimits { act_permits, org_agents, .. } = self.context.config.worker;
        store::work::Shares { of_one_org: org_agents, of_one_worker: act_permits }
    }

    fn in_hand(&self) -> Vec<InHand> {
        self.in_hand.lock().unwrap_or_else(PoisonError::into_inner).keys().copied().collect()
    }

    pub async fn next_due(&self, class: WorkClass) -> Result<Option<Timestamp>, Failure> {
        let (shares, asking) = (self.shares(), self.asking());
        let knows_some = self.parked(|parked| parked.some);
        let read = move |tx: &mut store::Tx| {
            let (due, at) = (store::work::next_due(tx, class)?, tx.at());
            if due.is_some_and(|due| due <= at) {
                return Ok(due);
            }
            let back = match class {
                WorkClass::Act => store::work::may_bring_back(tx, shares)?,
                WorkClass::Control => knows_some && asking.may_bring_back(&store::work::parked_of_providers(tx)?),
                WorkClass::Link => false,
            };
            Ok(if back { Some(at) } else { due })
        };
        self.store.read_inline("work.next_due", read).await
    }

    /// Holders of acts cut them off, record each, and give their items back.
    pub fn cut_acts(&self) {
        self.closing.ask();
    }

    /// Holders of links end them and give their items back.
    pub fn cut_links(&self) {
        self.links.closing.ask();
    }

    /// How many items are due and not finished. For benchmarks.
    pub async fn count_due(&self) -> Result<i64, Failure> {
        self.store.read("work.count_due", store::work::count_due).await
    }

    /// Works on one claimed item. If that fails or panics, the item is tried again after a second; other items are not affected.
    pub async fn work_on(&self, item: Item) {
        let work = async { if item.dead { self.give_up(item).await } else { self.look_at(item).await } };
        let result = caught(pin!(work)).await;
        match result {
            Ok(()) => {}
            Err(Failure::Refused(Refused::Fenced { what })) => {
                tracing::info!(what, "another worker has taken the item over");
                if let Err(failure) = self.look_after(item).await {
                    tracing::warn!(kind = item.kind.as_str(), subject = item.subject, %failure, "the item of its machine could not be made due");
                }
            }
            Err(failure) => {
                tracing::warn!(kind = item.kind.as_str(), subject = item.subject, %failure, "work failed, and is tried again");
                if let Err(failure) = self.later(item).await {
                    tracing::warn!(kind = item.kind.as_str(), subject = item.subject, %failure, "it could not be put back");
                }
            }
        }
        let mut in_hand = self.in_hand.lock().unwrap_or_else(PoisonError::into_inner);
        in_hand.remove(&(item.kind, item.subject, item.fence));
    }

    /// A worker that lost its lease may have recreated a machine that another worker had terminated: the machine's item is made due
    /// again.
    async fn look_after(&self, item: Item) -> Result<(), Failure> {
        let read = move |tx: &mut store::Tx| match item.kind {
            WorkKind::Instance => Ok(Some(InstanceId(item.subject))),
            WorkKind::Workflow => machine_of(tx, WorkflowId(item.subject)),
            _ => Ok(None), // these touch rows only
        };
        match self.store.read_inline("work.run_of", read).await? {
            Some(machine) => self.look_again(machine).await,
            None => Ok(()),
        }
    }

    async fn look_at(&self, item: Item) -> Result<(), Failure> {
        match item.kind {
            WorkKind::Run => self.reconcile_run(item).await,
            WorkKind::Job => self.reconcile_job(item).await,
            // These ask providers, and remember much while they wait: the others need not be as large.
            WorkKind::Workflow => Box::pin(self.reconcile_workflow(item)).await,
            WorkKind::Instance => Box::pin(self.reconcile_instance(item)).await,
            WorkKind::Allocation => self.reconcile_allocation(item).await,
            WorkKind::Pool => self.reconcile_pool(item).await,
            WorkKind::Gather => self.gather(item).await,
            WorkKind::StepLog => self.seal_step_logs(item).await,
            WorkKind::Sweep => self.sweep(item).await,
            WorkKind::Agent => Box::pin(self.reconcile_agent(item)).await,
            WorkKind::Notify => Box::pin(self.notify(item)).await,
            WorkKind::Lease => self.reconcile_leases(item).await,
            WorkKind::Scan => Box::pin(self.scan_pool(item)).await,
            WorkKind::ScanName => Box::pin(self.scan_name(item)).await,
            WorkKind::Orphan => Box::pin(self.reconcile_orphan(item)).await,
            WorkKind::Manifest => self.reconcile_manifest(item).await,
            WorkKind::OrphanNotice => Box::pin(self.notify_orphans(item)).await,
            WorkKind::Link => Box::pin(self.hold_link(item)).await,
            WorkKind::Departure => Box::pin(self.depart(item)).await,
            WorkKind::Hosts => Box::pin(self.look_at_hosts(item)).await,
            WorkKind::Execution | WorkKind::Invocation => Box::pin(self.reconcile_execution(item)).await,
        }
    }

    /// An item that killed its workers five times alone fails its subject: the only way in which losing orchestrators fails a run.
    async fn give_up(&self, item: Item) -> Result<(), Failure> {
        tracing::error!(
            kind = item.kind.as_str(),
            subject = item.subject,
            "an item is dead: its workers died on it five times"
        );
        if matches!(item.kind, WorkKind::Execution | WorkKind::Invocation) {
            return self.give_up_execution(item).await;
        }
        let run = self.run_of(item).await?;
        let context = self.context.clone();
        let turn = run.map_or(Lane::Normal.into(), |run| Lane::Normal.of(run));
        self.store
            .write(turn, "work.give_up", move |tx| {
                store::work::hold(tx, &item)?;
                if let Some(run) = run {
                    let mut run_tx = crate::run_tx::RunTx::open(tx, &context, run)?;
                    let cause =
                        format!("{} {} stopped its workers five times", item.kind.as_str(), model::slug(item.subject));
                    if !run_tx.run.status.is_end() {
                        run_tx.run_event(RunEvent::WorkItemDied { cause })?;
                    }
                    run_tx.close()?;
                }
                // What belongs to no run (a machine on its way out, a pool) is never given up, only left alone for a while.
                let at = tx.at();
                store::work::finish(tx, &item, run.is_none().then_some(at + LEFT_ALONE_MS));
                Ok(())
            })
            .await
    }

    async fn run_of(&self, item: Item) -> Result<Option<RunId>, Failure> {
        self.store
            .read_inline("work.run_of", move |tx| {
                Ok(match item.kind {
                    WorkKind::Run => Some(RunId(item.subject)),
                    WorkKind::Agent => store::agent::find(tx, model::AgentId(item.subject))?.map(|agent| agent.run),
                    WorkKind::Lease => store::step::find(tx, model::StepId(item.subject))?.map(|step| step.run),
                    WorkKind::Job | WorkKind::Gather => {
                        store::job::find(tx, model::JobId(item.subject))?.map(|job| job.run)
                    }
                    WorkKind::StepLog => store::step::find(tx, model::StepId(item.subject))?.map(|step| step.run),
                    WorkKind::Workflow => {
                        match store::workflow::find(tx, model::WorkflowId(item.subject))?.and_then(|w| w.job) {
                            Some(job) => store::job::find(tx, job)?.map(|job| job.run),
                            None => None,
                        }
                    }
                    _ => None,
                })
            })
            .await
    }

    /// Nothing more to do until another transaction wakes it.
    pub(crate) async fn done(&self, item: Item) -> Result<(), Failure> {
        self.finish(item, |_| None).await
    }
    /// There is more, at once.
    pub(crate) async fn again(&self, item: Item) -> Result<(), Failure> {
        self.finish(item, Some).await
    }
    pub(crate) async fn at(&self, item: Item, at: Timestamp) -> Result<(), Failure> {
        self.finish(item, move |_| Some(at)).await
    }
    async fn later(&self, item: Item) -> Result<(), Failure> {
        self.finish(item, |now| Some(now + TROUBLED_MS)).await
    }

    pub(crate) async fn finish(
        &self,
        item: Item,
        next: impl Fn(Timestamp) -> Option<Timestamp> + Send + Sync + 'static,
    ) -> Result<(), Failure> {
        self.store
            .write(Lane::Normal, "work.finish", move |tx| {
                store::work::hold(tx, &item)?;
                let at = tx.at();
                store::work::finish(tx, &item, next(at));
                Ok(())
            })
            .await
    }
}

/// A panic is trouble of this item alone. The process lives on, and so does its lease: without this no worker could take the item.
async fn caught(mut work: Pin<&mut impl Future<Output = Result<(), Failure>>>) -> Result<(), Failure> {
    let mut poll = |context: &mut Context<'_>| catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(context)));
    poll_fn(|context| poll(context).unwrap_or_else(|panic| Poll::Ready(Err(panicked(&*panic))))).await
}

fn panicked(panic: &(dyn Any + Send)) -> Failure {
    Trouble::internal(format!("the work panicked: {}", store::panic_text(panic))).into()
}

fn machine_of(tx: &mut store::Tx, id: WorkflowId) -> Result<Option<InstanceId>, Failure> {
    let Some(workflow) = store::workflow::find(tx, id)? else { return Ok(None) };
    let of_job = workflow.job.map(|job| store::job::find(tx, job)).transpose()?.flatten();
    Ok(workflow.instance.or(of_job.and_then(|job| job.instance)))
}
