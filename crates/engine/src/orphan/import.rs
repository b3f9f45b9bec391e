//! Tracks again what was lost with the database: of a runner that is not listed, instance, job and run are written in one commit, before the
//! runner is told anything. By name and nonce, so a second time changes nothing. Never starts, ends or changes anything on a machine.

use super::ask::{Limit, NO_TIME, side_by_side};
use crate::Engine;
use crate::pool::WarmSlot;
use crate::run_tx::{RunTx, Tracked};
use crate::transition::slot_event;
use crate::{EngineContext, Provider};
use adapters::Handle;
use adapters::provider::Seen;
use model::allocation::{Allocation, AllocationEvent, AllocationStatus};
use model::feature::{Feature, FeatureSettings, FeatureState};
use model::instance::{Instance, InstanceEvent, InstanceStatus};
use model::job::JobEvent;
use model::run::{Run, RunEvent};
use model::spec::{Retry, RunContent, RunSpec};
use model::stub::Stub;
use model::time::MINUTE;
use model::{AllocationId, Credits, Failure, InstanceId, JobId, ManifestId, OrgId, Refused, RunId, Timestamp, names};
use std::sync::Arc;
use store::unlisted::{Unlisted, UnlistedJob};
use store::{Lane, Tx, WorkKind};

/// Runners that are read at once.
const PAGE: i64 = 100;
/// Runners whose machines are looked up at the same time.
const IMPORTED_AT_ONCE: usize = 16;
/// Whose machine is not found by then is left for the next import, which begins with those that were not asked for: a person waits for the
/// answer, and the command for a minute more.
pub const IMPORT_MS: i64 = 4 * MINUTE;

/// What became of one runner that is not listed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Import {
    pub name: String,
    pub outcome: ImportOutcome,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ImportOutcome {
    Imported(Imported),
    /// Nothing was written, and why.
    Left(String),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Imported {
    pub instance: InstanceId,
    pub run: RunId,
    pub run_name: String,
    pub job: JobId,
    pub org: String,
    /// The first byte of its log that is not lost.
    pub log_from: i64,
}

/// What a transaction that imports a job uses in place of what it would make.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Importing {
    pub(crate) job: JobId,
    pub(crate) epoch: i64,
    pub(crate) step: model::step::StepTry,
    pub(crate) slot: WarmSlot,
    /// Since when its machine has worked for it.
    pub(crate) started_at: Timestamp,
    pub(crate) price_micro: i64,
}

/// Everything that is known of the job that is imported.
#[derive(Debug, Clone)]
struct Found {
    runner: Unlisted,
    known: UnlistedJob,
    stub: Stub,
    handle: Handle,
}

impl Engine {
    /// Imports every runner that is not listed and has a sealed stub. `org` (a name or an id) takes the runs whose own org is not there.
    pub async fn import(&self, by: String, org: Option<String>) -> Result<Vec<Import>, Failure> {
        let fallback = match org {
            Some(org) => Some(self.store.read("orphan.org", move |tx| named_org(tx, &org)).await?),
            None => None,
        };
        let first = std::mem::take(&mut *self.turns.import.lock().expect("only assigned"));
        let (mut all, mut after, mut began, mut left_out) = (Vec::new(), first.clone(), None, None);
        let mut from_the_start = first.is_empty();
        loop {
            let from = after.clone();
            let read = move |tx: &mut Tx| Ok((store::unlisted::page(tx, &from, PAGE)?, tx.at()));
            let (mut page, at) = self.store.read("runner.unlisted", read).await?;
            if from_the_start && !first.is_empty() {
                page.retain(|runner| runner.name <= first); // those behind it came before
            }
            let Some(last) = page.last().map(|last| last.name.clone()) else {
                if !from_the_start {
                    (from_the_start, after) = (true, String::new());
                    continue;
                }
                break;
            };
            let left_ms = (IMPORT_MS - at.since(*began.get_or_insert(at))).max(0);
            let mut imports = Vec::with_capacity(page.len());
            for runner in page {
                imports.push(self.import_one(runner, (&by, fallback), self.limit(left_ms)));
            }
            for import in side_by_side(imports, IMPORTED_AT_ONCE).await {
                let (import, was_asked) = import?;
                let before = std::mem::replace(&mut after, import.name.clone());
                left_out = left_out.or((!was_asked).then_some(before));
                all.push(import);
            }
            after = last;
        }
        *self.turns.import.lock().expect("only assigned") = left_out.unwrap_or_default();
        all.sort_by(|one: &Import, other| one.name.cmp(&other.name));
        Ok(all)
    }

    /// And whether there was time for it.
    async fn import_one(
        &self,
        runner: Unlisted,
        by: (&str, Option<OrgId>),
        mut limit: Limit,
    ) -> Result<(Import, bool), Failure> {
        let name = runner.name.clone();
        if limit.is_spent().await {
            return Ok((Import { name, outcome: ImportOutcome::Left(NO_TIME.to_owned()) }, false));
        }
        let outcome = match self.import_runner(runner, by, limit).await {
            Ok(imported) => ImportOutcome::Imported(imported),
            Err(Failure::Refused(refused)) => ImportOutcome::Left(refused.to_string()),
            Err(Failure::Trouble(trouble)) if trouble.kind != model::TroubleKind::Database => {
                ImportOutcome::Left(trouble.what)
            }
            Err(failure) => return Err(failure),
        };
        Ok((Import { name, outcome }, true))
    }

    async fn import_runner(
        &self,
        runner: Unlisted,
        (by, fallback): (&str, Option<OrgId>),
        limit: Limit,
    ) -> Result<Imported, Failure> {
        let (known, stub) = self.chosen(&runner)?;
        let handle = self.handle_now(&runner, &stub, limit).await?;
        if let Some(lacks) = stub.lacks() {
            let why = format!(
                "{} {}: {lacks}: submit it anew, and end the machine with what runs there: repl orphans terminate {}",
                stub.run, stub.run_name, handle.0
            );
            return Err(Refused::Conflict { why }.into());
        }
        // Before the job is visible: what its runner still has is asked for from there.
        self.logs.begin_at(stub.job, stub.epoch, known.log_from).await?;
        let found = Arc::new(Found { runner, known, stub, handle });
        let (context, by) = (self.context.clone(), by.to_owned());
        let run = found.stub.run;
        self.store
            .write(Lane::Normal.of(run), "orphan.import", move |tx| write(tx, &context, &found, &by, fallback))
            .await
    }

    /// The job that is imported: one that runs before one that has ended.
    fn chosen(&self, runner: &Unlisted) -> Result<(UnlistedJob, Stub), Refused> {
        let left = |why: String| Err(Refused::Conflict { why });
        match names::parse(&runner.name) {
            Some(name) if name.control_id == self.context.installation.control_id => {}
            _ => return left("its name is of another installation".to_owned()),
        }
        let mut sealed: Vec<_> = self.sealed(runner).collect();
        sealed.sort_by_key(|(job, stub)| (job.ended, std::cmp::Reverse(stub.started_at)));
        let Some((job, stub)) = sealed.into_iter().next() else {
            let why = match runner.jobs.is_empty() {
                true => "it has no job",
                false => "no stub of it bears this installation's seal",
            };
            return left(why.to_owned());
        };
        if !job.started && stub.lacks().is_none() {
            return left("its command has not been started yet: ask again in a moment".to_owned());
        }
        Ok((job.clone(), stub))
    }

    /// What its provider calls the machine. It is looked up by name, because a list fails as a whole when one host of its provider is dead.
    /// Only the nonce proves that it is the one whose runner has spoken.
    async fn handle_now(&self, runner: &Unlisted, stub: &Stub, mut limit: Limit) -> Result<Handle, Failure> {
        let provider: Arc<dyn Provider> = self.context.provider(&stub.provider)?.clone();
        if let Some(handle) = self.within(provider.find_by_name(&runner.name), &mut limit).await? {
            match self.within(provider.inspect(&handle, &runner.nonce), &mut limit).await? {
                Seen::Alive | Seen::RunnerGone | Seen::Queued { .. } => return Ok(handle),
                Seen::Gone | Seen::Stranger => {}
            }
        }
        let why = format!("{} has no machine of its name and tag", stub.provider);
        Err(Refused::Conflict { why }.into())
    }
}

fn named_org(tx: &mut Tx, named: &str) -> Result<OrgId, Failure> {
    if let Some(org) = store::org::by_name(tx, named)? {
        return Ok(org.id);
    }
    let none = || Refused::Conflict { why: format!("there is no org `{named}`: name another one by --org") };
    let id = named.parse().map_err(|_| none())?;
    match store::org::find(tx, id) {
        Err(Failure::Refused(Refused::NotFound { .. })) => Err(none().into()),
        found => found.map(|org| org.id),
    }
}

/// All of it in one transaction.
fn write(
    tx: &mut Tx,
    context: &EngineContext,
    found: &Found,
    by: &str,
    fallback: Option<OrgId>,
) -> Result<Imported, Failure> {
    let stub = &found.stub;
    let conflict = |why: String| Failure::from(Refused::Conflict { why });
    if store::unlisted::find(tx, &stub.instance)?.is_none_or(|row| row.nonce != found.runner.nonce) {
        return Err(conflict("it is tracked already".to_owned()));
    }
    if store::run::find(tx, stub.run)?.is_some() || store::job::find(tx, stub.job)?.is_some() {
        return Err(conflict(format!("{} is known here already", stub.run)));
    }
    let (org, org_name) = org_of(tx, stub, fallback)?;
    let pool = store::pool::ensure(tx, &stub.provider, &stub.region)?;
    let row = store::instance::by_name(tx, &stub.instance)?;
    if let Some(row) = &row {
        check_row(tx, found, row)?;
    }
    let machine = match &row {
        Some(row) => row.id,
        None => InstanceId(names::parse(&stub.instance).map_or(0, |name| name.resource)),
    };
    if row.is_none() && store::instance::find(tx, machine)?.is_some() {
        return Err(conflict(format!("another machine is {machine} by now")));
    }
    let slot = AllocationId(tx.next_id());
    let run = fresh_run(tx, stub, org)?;
    let name = run.name.clone();
    let mut run_tx = RunTx::fresh(tx, context, run, content(stub));
    run_tx.importing = Some(Importing {
        job: stub.job,
        epoch: stub.epoch,
        step: stub.step.expect("only plain tasks are imported"),
        slot: WarmSlot { instance: machine, allocation: slot },
        started_at: stub.started_at,
        price_micro: stub.price_micro,
    });
    run_tx.publish("run.imported", store::body!({
        "name": name, "status": "created", "instance": machine, "job": stub.job, "log_from": found.known.log_from, "by": by,
    }));
    run_tx.run_event(RunEvent::Started)?;
    run_tx.pool(pool)?;
    add_machine(&mut run_tx, found, row.map(|row| row.id), (org, pool, slot))?;
    run_tx.place_waiting()?;
    run_tx.job_event(stub.job, JobEvent::Accepted)?;
    run_tx.job_event(stub.job, JobEvent::SyncComplete { blobs: 0 })?;
    run_tx.job_event(stub.job, JobEvent::CommandStarted { unenforced: None })?;
    run_tx.was_active_since(stub.started_at);
    let unreachable = run_tx.at + context.config.timings.unreachable_after_ms;
    run_tx.wake(WorkKind::Instance, machine.0, unreachable);
    if context.is_linked(&stub.provider) {
        run_tx.wake(WorkKind::Link, machine.0, run_tx.at);
    }
    let manifest = run_tx.instance(machine)?.it.manifest;
    debug_assert_ne!(manifest, ManifestId(0), "the claim has given it to the run's manifest");
    run_tx.close()?;
    store::unlisted::forget(tx, &stub.instance)?;
    store::orphan::remove(tx, &stub.provider, &found.handle.0)?;
    let (run, job, log_from) = (stub.run, stub.job, found.known.log_from);
    Ok(Imported { instance: machine, run, run_name: name, job, org: org_name, log_from })
}

/// Its own org by id and name, else the one of its name, else the one that was asked for.
fn org_of(tx: &mut Tx, stub: &Stub, fallback: Option<OrgId>) -> Result<(OrgId, String), Failure> {
    let own = store::org::by_name(tx, &stub.org_name)?;
    if let Some(org) = own {
        return Ok((org.id, org.name));
    }
    let Some(id) = fallback else {
        let why = format!("its org `{}` is not here: say which one takes its runs (--org)", stub.org_name);
        return Err(Refused::Conflict { why }.into());
    };
    let org = store::org::find(tx, id)?;
    Ok((org.id, org.name))
}

/// An older copy of the database knows the machine, and not what it does now.
fn check_row(tx: &mut Tx, found: &Found, row: &Instance) -> Result<(), Failure> {
    let conflict = |why: String| Err(Refused::Conflict { why }.into());
    if row.nonce != found.runner.nonce {
        return conflict(format!("{} bears its name with another tag", row.id));
    }
    if !matches!(row.status, InstanceStatus::Ready | InstanceStatus::Unreachable | InstanceStatus::Lost) {
        return conflict(format!("{} is {}", row.id, row.status));
    }
    match store::job::on_instance(tx, row.id)? {
        Some(job) => conflict(format!("{} is on {} as far as this database knows", job.id, row.id)),
        None => Ok(()),
    }
}

/// A machine of the run's org with one free slot, whose folder is the job's.
fn add_machine(
    run_tx: &mut RunTx<'_>,
    found: &Found,
    row: Option<InstanceId>,
    (org, pool, slot): (OrgId, model::PoolId, AllocationId),
) -> Result<(), Failure> {
    let (stub, at) = (&found.stub, run_tx.at);
    let number = stub.workdir.strip_prefix("work_").and_then(|number| number.parse().ok()).unwrap_or(1);
    let machine = match row {
        Some(id) => {
            run_tx.instance_event(id, InstanceEvent::Heard)?;
            free_of_slots(run_tx, id)?;
            let row = run_tx.instance(id)?.it.clone();
            Instance { workdirs: row.workdirs.max(number), org, ..row }
        }
        None => {
            let name = names::parse(&stub.instance).ok_or_else(|| Refused::invalid("name", "cannot be read"))?;
            let manifest = ManifestId(name.manifest.unwrap_or(0));
            let new = Instance::announced(InstanceId(name.resource), org, pool, manifest, stub.instance.clone(), at);
            Instance {
                provider: stub.provider.clone(),
                region: stub.region.clone(),
                nonce: found.runner.nonce.clone(),
                handle: Some(found.handle.0.clone()),
                place: run_tx.context.provider(&stub.provider)?.room_of(&found.handle),
                status: InstanceStatus::Ready,
                resources: run_tx.context.provider(&stub.provider)?.size_for(&stub.resources),
                on_lost_control: stub.on_lost_control,
                price_micro: stub.price_micro,
                workdirs: number,
                created_at: stub.started_at.min(at),
                ready_at: Some(at),
                last_seen_at: Some(found.runner.seen_at),
                host: Some(found.runner.host.clone()),
                runner_version: Some(found.runner.version.clone()),
                ..new
            }
        }
    };
    let machine = prepared(run_tx.context, stub, machine);
    let (id, user) = (machine.id, run_tx.context.provider(&stub.provider)?.capabilities().user);
    match row {
        Some(id) => run_tx.instance(id)?.set(machine),
        None => run_tx.instances.push(Tracked::new(machine)),
    }
    let free = Allocation::free(slot, org, id, user, at);
    run_tx.allocations.push(Tracked::new(Allocation { workdir: stub.workdir.clone(), ..free }));
    Ok(())
}

/// What the machine had when the job was sent to it: GPUs that no other machine of its host may get, and what is to be removed before it
/// ends. Its init has ended well, because only jobs whose command has been started are imported.
fn prepared(context: &EngineContext, stub: &Stub, machine: Instance) -> Instance {
    let with_script = |kept: &Feature| match context.config.features.get(&kept.name) {
        Some(FeatureSettings { remove, remove_ms, .. }) => {
            Feature { remove: remove.clone(), remove_ms: *remove_ms, ..kept.clone() }
        }
        None => {
            let why = "the settings do not have it any more, and what removes it was lost with the database";
            Feature { state: FeatureState::Left, error: Some(why.to_owned()), ..kept.clone() }
        }
    };
    Instance {
        gpus: stub.gpus.clone().or(machine.gpus),
        features: stub.features.iter().map(with_script).collect(),
        init_done: stub.init_checksum.is_some(),
        init_checksum: stub.init_checksum.clone(),
        ..machine
    }
}

/// The slot that the older database has is of a folder that is not the job's.
fn free_of_slots(run_tx: &mut RunTx<'_>, machine: InstanceId) -> Result<(), Failure> {
    use crate::transition::Machines as _;
    for slot in run_tx.slots_on(machine)? {
        if slot.status == AllocationStatus::Available {
            run_tx.allocation(slot.id)?;
            slot_event(run_tx, slot, AllocationEvent::LifecycleFailed { replenish: false, hold_until: None })?;
        }
    }
    Ok(())
}

fn fresh_run(tx: &mut Tx, stub: &Stub, org: OrgId) -> Result<Run, Failure> {
    let at = tx.at();
    let taken = store::run::by_name(tx, org, &stub.run_name)?.is_some_and(|run| !run.status.is_end());
    let name = if taken { format!("run-{}", stub.run.slug()) } else { stub.run_name.clone() };
    let run = Run::created(stub.run, org, name, spec(stub).terms(), at);
    Ok(Run { imported_at: Some(at), ..run })
}

/// What is left of what was asked for. Without files, environment and secrets it is not enough to run it again.
fn spec(stub: &Stub) -> RunSpec {
    RunSpec {
        working_dir: stub.working_dir.clone(),
        resources: stub.resources.clone(),
        max_duration_ms: stub.max_duration_ms,
        stop_duration_ms: stub.stop_duration_ms,
        retry: Some(Retry { max_attempts: 1, on_events: Vec::new(), duration_ms: None, delay_ms: None }),
        artifacts: stub.artifacts.clone(),
        merge: stub.merge,
        on_lost_control: stub.on_lost_control,
        ..RunSpec::task(stub.command.clone(), &stub.provider, &stub.region)
    }
}

fn content(stub: &Stub) -> RunContent {
    spec(stub).content()
}

impl RunTx<'_> {
    /// The time before the import counts for the limit of the run, and no org is charged for it.
    fn was_active_since(&mut self, started_at: Timestamp) {
        let mut run = self.run.clone();
        run.active_ms += self.at.since(started_at).max(0);
        self.set_run(run);
        self.rearm_run();
    }

    /// What the machine cost before it was tracked again is on us and on record, and so is what its org cannot pay: money never ends it.
    pub(crate) fn reserve_for_import(&mut self, importing: Importing, wanted: Credits) -> Result<Credits, Failure> {
        let before = Credits(importing.price_micro).per_hour_for(self.at.since(importing.started_at).max(0));
        let key = format!("{}:{}:import", self.run.id, self.run.attempt);
        self.money(model::attempt::AttemptEvent::Charged(before), key, "before the import")?;
        Ok(wanted.min(store::org::spendable(self.tx, self.run.org)?))
    }

    /// A step of an imported job has been tried before.
    pub(crate) fn tries_before_import(&self) -> i64 {
        self.importing.map_or(0, |importing| importing.step.number - 1)
    }

    pub(crate) fn refuse_retry_of_import(&self) -> Result<(), Refused> {
        if self.run.imported_at.is_none() {
            return Ok(());
        }
        let why = "it was imported after the loss of the database, and its files, environment and secrets are not known: submit it \
                   anew with `repl run`"
            .to_owned();
        Err(Refused::Conflict { why })
    }
}
