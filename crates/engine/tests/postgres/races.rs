//! Two that want one machine, one slot or one run at the same moment.

use crate::postgres::Postgres;
use crate::{MOST_ROUNDS, control_plane, finish, is_heard, one_warm_slot, register, submit, work};
use adapters::FakeProvider;
use adapters::fake::{Call, FakeSettings, Fate, MachineState};
use engine::Engine;
use engine::run::{Action, Render};
use model::instance::InstanceStatus;
use model::job::Job;
use model::run::RunStatus;
use model::time::HOUR;
use model::workflow::NodeStatus;
use model::{Failure, InstanceId, OrgId, PoolId, Refused, RunId};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, mpsc};
use store::{Database, Lane, Sql, args};

/// Of each two that race.
const RACES: usize = 20;
const CLAIMERS: usize = 100;

/// The one slot goes to one of a hundred runs that want it at the same moment; the others wait.
async fn one_claims(engines: &[Arc<Engine>], provider: &FakeProvider) {
    let org = engines[0].ensure_org("test").await.unwrap();
    let machine = one_warm_slot(&engines[0], org, provider).await.instance;
    let clients: Vec<_> = (0..CLAIMERS)
        .map(|client| {
            let engine = engines[client % engines.len()].clone();
            tokio::spawn(async move { submit(&engine, org, 1, 1).await })
        })
        .collect();
    let mut winners = Vec::new();
    for client in clients {
        let run = client.await.unwrap();
        let job = engines[0].jobs(org, run).await.unwrap().1.remove(0);
        assert!(job.instance.is_none() || job.instance == machine, "there is room for no other machine");
        winners.extend(job.instance.map(|_| run));
    }
    assert_eq!(winners.len(), 1, "{winners:?}");
    let audit = engines[0].audit().await.unwrap();
    assert!(audit.broken.is_empty(), "{:#?}", audit.broken);
}

/// A hold that needs its machine is extended and the machine terminated at the same moment.
async fn extend_and_end(
    engines: &[Arc<Engine>],
    org: OrgId,
    job: &Job,
    force: bool,
) -> (Result<(), Failure>, Result<(), Failure>) {
    let (slot, machine) = (job.allocation.unwrap(), job.instance.unwrap());
    let (one, other) = (engines[0].clone(), engines[engines.len() - 1].clone());
    let extends = tokio::spawn(async move {
        let shown = Arc::new(|_: &engine::allocation::AllocationOverview| Vec::new());
        one.extend(org, slot, Some(2 * HOUR), None, shown).await.map(drop)
    });
    let ends = tokio::spawn(async move {
        let shown = Arc::new(|_: &engine::instance::InstanceOverview| Vec::new());
        other.terminate_instance((org, "a test".to_owned()), machine, force, None, shown).await.map(drop)
    });
    (extends.await.unwrap(), ends.await.unwrap())
}

/// Without force one of both wins; with force a person does, and the hold is as long as it was then.
async fn one_of_both(engines: &[Arc<Engine>], provider: &FakeProvider) {
    let org = engines[0].ensure_org("test").await.unwrap();
    let job = one_warm_slot(&engines[0], org, provider).await;
    let until = || async {
        let slot = engines[0].allocation(org, job.allocation.unwrap()).await.unwrap().allocation;
        slot.debug_hold_until.unwrap()
    };
    let first = until().await;
    let (extended, ended) = extend_and_end(engines, org, &job, false).await;
    extended.unwrap();
    assert!(matches!(ended, Err(Failure::Refused(Refused::Held { .. }))), "the hold is named: {ended:?}");
    let second = until().await;
    assert!(second > first);
    let (extended, ended) = extend_and_end(engines, org, &job, true).await;
    ended.unwrap();
    match extended {
        Ok(()) => assert!(until().await >= second, "it came first"),
        Err(Failure::Refused(Refused::Conflict { why })) => {
            assert!(why.contains("went with it") || why.contains("without a hold"), "{why}");
            assert!(until().await <= second, "a loser has changed nothing");
        }
        Err(failure) => panic!("{failure:?}"),
    }
}

#[test]
fn of_a_hundred_claims_on_one_slot_and_of_an_extension_and_an_end_one_wins() {
    let postgres = Postgres::start();
    let folder = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_all().build().unwrap();
    let provider = || {
        let mut settings = FakeSettings::default();
        (settings.capabilities.max_instances, settings.capabilities.keeps_workdirs) = (1, false);
        Arc::new(FakeProvider::new(settings, Box::new(|_, _| Fate::Obey)))
    };
    let urls = [postgres.database(), postgres.database()];
    runtime.block_on(async {
        for (number, race) in [true, false].into_iter().enumerate() {
            let lite = provider();
            let file = Database::File(folder.path().join(format!("remuda-{number}.db")));
            let alone = [control_plane(file, folder.path(), &lite)];
            let (many, url) = (provider(), urls[number].clone());
            let open = || control_plane(Database::Postgres(url.clone()), folder.path(), &many);
            let shared = [open(), open()];
            match race {
                true => {
                    one_claims(&alone, &lite).await;
                    one_claims(&shared, &many).await;
                }
                false => {
                    one_of_both(&alone, &lite).await;
                    one_of_both(&shared, &many).await;
                }
            }
        }
    });
    assert_eq!(postgres.deadlocks(), 0);
}

/// A command ends well and its run is cancelled at the same moment, again and again on one machine: the run has one end, and who was told
/// that the cancel is accepted sees it cancelled.
async fn one_end(engines: &[Arc<Engine>], provider: &FakeProvider) {
    let engine = &engines[0];
    let org = engine.ensure_org("test").await.unwrap();
    one_warm_slot(engine, org, provider).await;
    let worker = engine.start_worker("two".to_owned()).await.unwrap();
    engine.beat(&worker).await.unwrap();
    for race in 0..RACES {
        let run = submit(engine, org, 1, 1).await;
        let mut job = engine.jobs(org, run).await.unwrap().1.remove(0);
        for _ in 0..MOST_ROUNDS {
            if job.instance.is_some() {
                break;
            }
            work(engine, &worker).await;
            job = engine.jobs(org, run).await.unwrap().1.remove(0);
        }
        let (one, other) = (engine.clone(), engines[engines.len() - 1].clone());
        let ends = async move { is_heard(&one, &job).await };
        let cancels = async move {
            let render: Render = Arc::new(|_| Vec::new());
            other.act_on(org, run, Action::Cancel { abort: false }, None, render).await.map(drop)
        };
        // Each of them is the first to be started in half of the races.
        let (ends, cancels) = if race % 2 == 0 {
            let ends = tokio::spawn(ends);
            (ends, tokio::spawn(cancels))
        } else {
            let cancels = tokio::spawn(cancels);
            (tokio::spawn(ends), cancels)
        };
        ends.await.unwrap();
        let cancelled = cancels.await.unwrap();
        work(engine, &worker).await;
        let status = engine.run(org, run).await.unwrap().status;
        let expected = match cancelled {
            Ok(()) => RunStatus::Cancelled,
            Err(Failure::Refused(Refused::NotFrom { .. })) => RunStatus::Completed,
            Err(failure) => panic!("{failure:?}"),
        };
        assert_eq!(status, expected, "race {race}");
        let read = move |tx: &mut store::Tx| store::event::after(tx, org, Some(run), 0, 1_000);
        let events = engine.store.read("test.events", read).await.unwrap();
        let ends =
            events.iter().filter(|event| ["run.completed", "run.failed", "run.cancelled"].contains(&&*event.kind));
        assert_eq!(ends.count(), 1, "race {race}: {events:?}");
    }
    let audit = engine.audit().await.unwrap();
    assert!(audit.broken.is_empty(), "{:#?}", audit.broken);
}

#[test]
fn a_run_that_completes_while_it_is_cancelled_has_one_end() {
    let postgres = Postgres::start();
    let url = postgres.database();
    let folder = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_all().build().unwrap();
    let provider = || {
        let mut settings = FakeSettings::default();
        settings.capabilities.max_instances = 1;
        Arc::new(FakeProvider::new(settings, Box::new(|_, _| Fate::Obey)))
    };
    runtime.block_on(async {
        let here = provider();
        let sqlite = Database::File(folder.path().join("race.db"));
        one_end(&[control_plane(sqlite, folder.path(), &here)], &here).await;
        let here = provider();
        let planes = [(); 2].map(|()| control_plane(Database::Postgres(url.clone()), folder.path(), &here));
        one_end(&planes, &here).await;
    });
    assert_eq!(postgres.deadlocks(), 0);
}

/// The pool may grow: one of a hundred runs gets the warm machine, and each of the others one of its own.
async fn each_has_its_own(engines: &[Arc<Engine>], provider: &FakeProvider, spawns: &Mutex<BTreeMap<String, usize>>) {
    let engine = &engines[0];
    let org = engine.ensure_org("test").await.unwrap();
    let warm = one_warm_slot(engine, org, provider).await.instance.unwrap();
    let clients: Vec<_> = (0..CLAIMERS)
        .map(|client| {
            let engine = engines[client % engines.len()].clone();
            tokio::spawn(async move { submit(&engine, org, 1, 1).await })
        })
        .collect();
    let mut runs = Vec::new();
    for client in clients {
        runs.push(client.await.unwrap());
    }
    let worker = engine.start_worker("two".to_owned()).await.unwrap();
    engine.beat(&worker).await.unwrap();
    work(engine, &worker).await;
    let mut machines = Vec::new();
    for run in &runs {
        machines.push(engine.jobs(org, *run).await.unwrap().1.remove(0).instance.expect("there is room for all"));
    }
    assert_eq!(machines.iter().filter(|machine| **machine == warm).count(), 1);
    assert_eq!(machines.iter().collect::<BTreeSet<_>>().len(), CLAIMERS, "no two have the same");
    assert_eq!(provider.machines().len(), CLAIMERS, "the warm one and one for each of the others");
    let spawns = spawns.lock().unwrap().clone();
    assert_eq!((spawns.len(), spawns.values().max()), (CLAIMERS, Some(&1)), "each name is made once: {spawns:?}");
    let audit = engine.audit().await.unwrap();
    assert!(audit.broken.is_empty(), "{:#?}", audit.broken);
}

#[test]
fn of_a_hundred_claims_where_the_pool_may_grow_each_gets_a_machine() {
    let postgres = Postgres::start();
    let folder = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_all().build().unwrap();
    let provider = || {
        let mut settings = FakeSettings::default();
        settings.capabilities.max_instances = CLAIMERS as i64;
        let spawns = Arc::new(Mutex::new(BTreeMap::new()));
        let counted = spawns.clone();
        let count = move |call: Call, name: &str| {
            if call == Call::Spawn {
                *counted.lock().unwrap().entry(name.to_owned()).or_insert(0) += 1;
            }
            Fate::Obey
        };
        (Arc::new(FakeProvider::new(settings, Box::new(count))), spawns)
    };
    runtime.block_on(async {
        let (here, spawns) = provider();
        let file = Database::File(folder.path().join("remuda.db"));
        each_has_its_own(&[control_plane(file, folder.path(), &here)], &here, &spawns).await;
        let ((here, spawns), url) = (provider(), postgres.database());
        let planes = [(); 2].map(|()| control_plane(Database::Postgres(url.clone()), folder.path(), &here));
        each_has_its_own(&planes, &here, &spawns).await;
    });
    assert_eq!(postgres.deadlocks(), 0);
}

async fn terminate(engine: Arc<Engine>, org: OrgId, machine: InstanceId, force: bool) -> Result<(), Failure> {
    let shown = Arc::new(|_: &engine::instance::InstanceOverview| Vec::new());
    engine.terminate_instance((org, "a test".to_owned()), machine, force, None, shown).await.map(drop)
}

/// Until the run has ended: machines that were made for it introduce themselves, and its command runs well.
async fn to_its_end(engine: &Engine, worker: &store::Worker, org: OrgId, provider: &FakeProvider, run: RunId) -> Job {
    for _ in 0..MOST_ROUNDS {
        work(engine, worker).await;
        let (seen, mut jobs) = engine.jobs(org, run).await.unwrap();
        let job = jobs.remove(0);
        if seen.status.is_end() && job.status.is_end() {
            return job;
        }
        let Some(machine) = job.instance else { continue };
        let row = engine.find_instance(machine).await.unwrap().unwrap();
        if row.status == InstanceStatus::Booting {
            register(engine, provider, |name| *name == row.name).await;
        } else if !job.status.is_end() {
            is_heard(engine, &job).await;
        }
    }
    panic!("{run} never ends: {:?}", engine.jobs(org, run).await)
}

/// A run is submitted onto a warm machine while a person terminates that machine. Without force one of both wins; with force the person
/// does, unless he is told that it changed hands, and a run that came first ends with its machine.
async fn a_claim_and_an_end(engines: &[Arc<Engine>], provider: &FakeProvider, force: bool) {
    let engine = &engines[0];
    let org = engine.ensure_org("test").await.unwrap();
    let worker = engine.start_worker("one".to_owned()).await.unwrap();
    engine.beat(&worker).await.unwrap();
    let mut warm = None;
    for race in 0..RACES {
        let machine = match warm.take() {
            Some(machine) => machine,
            None => {
                let run = submit(engine, org, 1, 1).await;
                to_its_end(engine, &worker, org, provider, run).await.instance.unwrap()
            }
        };
        let other = engines[engines.len() - 1].clone();
        let claims = |engine: Arc<Engine>| tokio::spawn(async move { submit(&engine, org, 1, 1).await });
        // Each of them is the first to be started in half of the races.
        let (run, ended) = if race % 2 == 0 {
            let claims = claims(engine.clone());
            let ends = tokio::spawn(terminate(other, org, machine, force));
            (claims.await.unwrap(), ends.await.unwrap())
        } else {
            let ends = tokio::spawn(terminate(other, org, machine, force));
            let claims = claims(engine.clone());
            (claims.await.unwrap(), ends.await.unwrap())
        };
        let at = format!("race {race}, force {force}, {ended:?}");
        let (seen, mut jobs) = engine.jobs(org, run).await.unwrap();
        let (job, row) = (jobs.remove(0), engine.find_instance(machine).await.unwrap().unwrap());
        let claimed = job.instance == Some(machine);
        match &ended {
            Ok(()) => {
                assert!(!claimed || force && seen.termination.is_some(), "{at}: {seen:?}");
                assert_ne!(row.status, InstanceStatus::Ready, "{at}");
            }
            Err(Failure::Refused(Refused::Conflict { .. } | Refused::Stale { .. })) => {
                assert!(claimed && seen.termination.is_none(), "{at}: {seen:?}");
                assert_eq!(row.status, InstanceStatus::Ready, "{at}");
            }
            Err(failure) => panic!("{failure:?}"),
        }
        check(engine).await;
        let job = to_its_end(engine, &worker, org, provider, run).await;
        let expected = if ended.is_ok() && claimed { RunStatus::Cancelled } else { RunStatus::Completed };
        assert_eq!(engine.run(org, run).await.unwrap().status, expected, "{at}");
        work(engine, &worker).await;
        check(engine).await;
        if ended.is_ok() {
            let gone = provider.machines().get(&row.name).is_none_or(|it| it.state != MachineState::Running);
            assert!(gone, "{at}: {row:?}");
        }
        warm = (expected == RunStatus::Completed).then_some(job.instance.unwrap());
    }
}

async fn check(engine: &Engine) {
    let audit = engine.audit().await.unwrap();
    assert!(audit.broken.is_empty(), "{:#?}", audit.broken);
}

#[test]
fn of_a_claim_and_a_termination_one_wins() {
    let postgres = Postgres::start();
    let folder = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_all().build().unwrap();
    let provider = || {
        let mut settings = FakeSettings::default();
        settings.capabilities.max_instances = 4 * RACES as i64;
        Arc::new(FakeProvider::new(settings, Box::new(|_, _| Fate::Obey)))
    };
    runtime.block_on(async {
        for force in [false, true] {
            let here = provider();
            let file = Database::File(folder.path().join(format!("{force}.db")));
            a_claim_and_an_end(&[control_plane(file, folder.path(), &here)], &here, force).await;
            let (here, url) = (provider(), postgres.database());
            let planes = [(); 2].map(|()| control_plane(Database::Postgres(url.clone()), folder.path(), &here));
            a_claim_and_an_end(&planes, &here, force).await;
        }
    });
    assert_eq!(postgres.deadlocks(), 0);
}

/// Two people terminate one machine at the same moment: both are told that it ends, and one workflow ends it.
async fn two_ends(engines: &[Arc<Engine>], provider: &FakeProvider, force: bool) {
    let engine = &engines[0];
    let org = engine.ensure_org("test").await.unwrap();
    let worker = engine.start_worker("one".to_owned()).await.unwrap();
    engine.beat(&worker).await.unwrap();
    for race in 0..RACES {
        let run = submit(engine, org, 1, 1).await;
        let machine = to_its_end(engine, &worker, org, provider, run).await.instance.unwrap();
        let before = ends_begun(engine, org, machine).await;
        let other = engines[engines.len() - 1].clone();
        let ends = [engine.clone(), other].map(|engine| tokio::spawn(terminate(engine, org, machine, force)));
        for end in ends {
            end.await.unwrap().unwrap_or_else(|failure| panic!("race {race}: {failure:?}"));
        }
        work(engine, &worker).await;
        check(engine).await;
        let row = engine.find_instance(machine).await.unwrap().unwrap();
        assert_eq!(row.status, InstanceStatus::Terminated, "race {race}");
        let gone = provider.machines().get(&row.name).is_none_or(|it| it.state != MachineState::Running);
        assert!(gone, "race {race}");
        assert_eq!(ends_begun(engine, org, machine).await, before + 1, "race {race}");
    }
}

async fn ends_begun(engine: &Engine, org: OrgId, machine: InstanceId) -> usize {
    let all = engine.workflows(org, i64::MAX, 10_000).await.unwrap();
    let of_machine = |it: &&model::workflow::Workflow| {
        it.intent == model::workflow::Intent::TerminateInstance && it.instance == Some(machine)
    };
    all.iter().filter(of_machine).count()
}

/// A command ends well while a person terminates its machine with force: the run has the one end or the other, and the machine is gone.
async fn an_end_and_a_report(engines: &[Arc<Engine>], provider: &FakeProvider) {
    let engine = &engines[0];
    let org = engine.ensure_org("test").await.unwrap();
    let worker = engine.start_worker("one".to_owned()).await.unwrap();
    engine.beat(&worker).await.unwrap();
    for race in 0..RACES {
        let run = submit(engine, org, 1, 1).await;
        work(engine, &worker).await;
        let mut job = engine.jobs(org, run).await.unwrap().1.remove(0);
        let machine = job.instance.unwrap();
        let name = engine.find_instance(machine).await.unwrap().unwrap().name;
        register(engine, provider, |it| *it == name).await;
        work(engine, &worker).await;
        job = engine.jobs(org, run).await.unwrap().1.remove(0);
        let (one, other, reported) = (engine.clone(), engines[engines.len() - 1].clone(), job.clone());
        let reports = async move { is_heard(&one, &reported).await };
        let ends = terminate(other, org, machine, true);
        // Each of them is the first to be started in half of the races.
        let (heard, ended) = if race % 2 == 0 {
            let (reports, ends) = (tokio::spawn(reports), tokio::spawn(ends));
            (reports.await.unwrap(), ends.await.unwrap())
        } else {
            let (ends, reports) = (tokio::spawn(ends), tokio::spawn(reports));
            (reports.await.unwrap(), ends.await.unwrap())
        };
        let at = format!("race {race}, heard {heard}, {ended:?}");
        // One whose machine changed hands under it is told so, and asks again.
        if ended.is_err() {
            terminate(engine.clone(), org, machine, true).await.unwrap_or_else(|failure| panic!("{at}: {failure:?}"));
        }
        to_its_end(engine, &worker, org, provider, run).await;
        work(engine, &worker).await;
        check(engine).await;
        let status = engine.run(org, run).await.unwrap().status;
        assert!(matches!(status, RunStatus::Completed | RunStatus::Cancelled), "{at}: {status}");
        let read = move |tx: &mut store::Tx| store::event::after(tx, org, Some(run), 0, 1_000);
        let events = engine.store.read("test.events", read).await.unwrap();
        let ends =
            events.iter().filter(|event| ["run.completed", "run.failed", "run.cancelled"].contains(&&*event.kind));
        assert_eq!(ends.count(), 1, "{at}");
        let row = engine.find_instance(machine).await.unwrap().unwrap();
        assert_eq!(row.status, InstanceStatus::Terminated, "{at}");
    }
}

#[test]
fn a_termination_meets_another_one_and_the_end_of_the_job() {
    let postgres = Postgres::start();
    let folder = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_all().build().unwrap();
    let provider = || {
        let mut settings = FakeSettings::default();
        settings.capabilities.max_instances = 4 * RACES as i64;
        Arc::new(FakeProvider::new(settings, Box::new(|_, _| Fate::Obey)))
    };
    runtime.block_on(async {
        for force in [false, true] {
            let (here, url) = (provider(), postgres.database());
            let planes = [(); 2].map(|()| control_plane(Database::Postgres(url.clone()), folder.path(), &here));
            two_ends(&planes, &here, force).await;
        }
        let (here, url) = (provider(), postgres.database());
        let planes = [(); 2].map(|()| control_plane(Database::Postgres(url.clone()), folder.path(), &here));
        an_end_and_a_report(&planes, &here).await;
    });
    assert_eq!(postgres.deadlocks(), 0);
}

/// Transactions of the whole cluster that wait for a row that another one has locked.
const WAITING: Sql = Sql::new(include_str!("waiting.sql"));
const MOST_LOOKS: usize = 100_000;

pub async fn waiting(engine: &Engine, many: i64) {
    for _ in 0..MOST_LOOKS {
        let read = |tx: &mut store::Tx| tx.row(&WAITING, &args![])?.expect("a count is a row").int(0);
        if engine.store.read("test.waiting", read).await.unwrap() == many {
            return;
        }
    }
    panic!("there were never {many} transactions that wait");
}

type Holds = tokio::task::JoinHandle<Result<(), Failure>>;

/// The machine's row is locked by a transaction that ends when the sender is dropped.
async fn row_is_held(engine: &Arc<Engine>, machine: InstanceId) -> (Holds, mpsc::Sender<()>) {
    is_held(engine, move |tx| store::instance::lock(tx, machine).map(drop)).await
}

async fn is_held(
    engine: &Arc<Engine>,
    lock: impl Fn(&mut store::Tx) -> Result<(), Failure> + Send + Sync + 'static,
) -> (Holds, mpsc::Sender<()>) {
    let ((has, is_held), (release, released)) = (mpsc::channel::<()>(), mpsc::channel::<()>());
    let (holder, channels) = (engine.clone(), Mutex::new((has, released)));
    let holds = tokio::spawn(async move {
        let hold = move |tx: &mut store::Tx| {
            lock(tx)?;
            let channels = channels.lock().unwrap();
            let _ = channels.0.send(());
            let _ = channels.1.recv(); // until the other end is dropped
            Ok(())
        };
        holder.store.write(Lane::Normal, "test.hold", hold).await
    });
    tokio::task::spawn_blocking(move || is_held.recv().unwrap()).await.unwrap();
    (holds, release)
}

/// The termination has seen no job on the machine, and waits for its row behind the claim of a run.
#[test]
fn a_termination_that_waits_for_a_claim_sees_it() {
    let postgres = Postgres::start();
    let folder = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_all().build().unwrap();
    runtime.block_on(async {
        for force in [false, true] {
            let here = Arc::new(FakeProvider::new(FakeSettings::default(), Box::new(|_, _| Fate::Obey)));
            let url = postgres.database();
            let planes = [(); 2].map(|()| control_plane(Database::Postgres(url.clone()), folder.path(), &here));
            let org = planes[0].ensure_org("test").await.unwrap();
            let machine = one_warm_slot(&planes[0], org, &here).await.instance.unwrap();
            let (holds, release) = row_is_held(&planes[0], machine).await;
            let claimer = planes[0].clone();
            let claims = tokio::spawn(async move { submit(&claimer, org, 1, 1).await });
            waiting(&planes[0], 1).await;
            let ends = tokio::spawn(terminate(planes[1].clone(), org, machine, force));
            waiting(&planes[0], 2).await;
            drop(release);
            holds.await.unwrap().unwrap();
            let run = claims.await.unwrap();
            let ended = ends.await.unwrap();
            let told = matches!(ended, Err(Failure::Refused(Refused::Stale { .. })));
            assert!(told, "it is told that the machine changed hands: {ended:?}");
            let (seen, jobs) = planes[0].jobs(org, run).await.unwrap();
            assert_eq!((jobs[0].instance, seen.termination), (Some(machine), None));
            check(&planes[0]).await;
            finish(&planes[0], &jobs[0]).await;
            let worker = planes[0].start_worker("two".to_owned()).await.unwrap();
            planes[0].beat(&worker).await.unwrap();
            work(&planes[0], &worker).await;
            let status = planes[0].run(org, run).await.unwrap().status;
            assert_eq!(status, RunStatus::Completed);
        }
    });
    assert_eq!(postgres.deadlocks(), 0);
}

/// The run has chosen the slot, and waits for the machine's row behind its termination: the claim is lost, and a machine is made for the run.
#[test]
fn a_claim_that_waits_for_a_termination_is_lost_and_a_machine_is_made() {
    let postgres = Postgres::start();
    let folder = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_all().build().unwrap();
    runtime.block_on(async {
        for force in [false, true] {
            let here = Arc::new(FakeProvider::new(FakeSettings::default(), Box::new(|_, _| Fate::Obey)));
            let url = postgres.database();
            let planes = [(); 2].map(|()| control_plane(Database::Postgres(url.clone()), folder.path(), &here));
            let engine = &planes[0];
            let org = engine.ensure_org("test").await.unwrap();
            let machine = one_warm_slot(engine, org, &here).await.instance.unwrap();
            let (holds, release) = row_is_held(engine, machine).await;
            let ends = tokio::spawn(terminate(planes[1].clone(), org, machine, force));
            waiting(engine, 1).await;
            let claimer = engine.clone();
            let claims = tokio::spawn(async move { submit(&claimer, org, 1, 1).await });
            waiting(engine, 2).await;
            drop(release);
            holds.await.unwrap().unwrap();
            ends.await.unwrap().unwrap();
            let run = claims.await.unwrap();
            let job = engine.jobs(org, run).await.unwrap().1.remove(0);
            assert_ne!(job.instance, Some(machine));
            check(engine).await;
            let worker = engine.start_worker("two".to_owned()).await.unwrap();
            engine.beat(&worker).await.unwrap();
            let job = to_its_end(engine, &worker, org, &here, run).await;
            assert!(job.instance.is_some_and(|made| made != machine));
            let workflow = engine.workflow(org, job.workflow).await.unwrap();
            let node = |name: &str| workflow.nodes.iter().find(|node| node.name == name).unwrap();
            let claim = node("claim-warm-allocation");
            assert_eq!(claim.status, NodeStatus::Failed);
            let error = claim.error.as_ref().unwrap();
            assert!(error.contains("was taken or its machine left before it could be claimed"), "{error}");
            assert_eq!(node("spawn-instance").status, NodeStatus::Completed);
            assert_eq!(engine.run(org, run).await.unwrap().status, RunStatus::Completed);
            check(engine).await;
        }
    });
    assert_eq!(postgres.deadlocks(), 0);
}

/// A trial chooses its host under the lock of the pool, as placements do.
#[test]
fn a_trial_of_a_provider_waits_for_a_placement() {
    let postgres = Postgres::start();
    let folder = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_all().build().unwrap();
    runtime.block_on(async {
        let here = Arc::new(FakeProvider::new(FakeSettings::default(), Box::new(|_, _| Fate::Obey)));
        let engine = control_plane(Database::Postgres(postgres.database()), folder.path(), &here);
        let org = engine.ensure_org("test").await.unwrap();
        let ensure = |tx: &mut store::Tx| {
            ["here", "there"].into_iter().map(|region| store::pool::ensure(tx, "fake", region)).collect()
        };
        let pools: Vec<PoolId> = engine.store.write(Lane::Normal, "test.pools", ensure).await.unwrap();
        let lock = move |tx: &mut store::Tx| pools.iter().try_for_each(|pool| store::pool::lock(tx, *pool).map(drop));
        let (holds, release) = is_held(&engine, lock).await;
        let tester = engine.clone();
        let tests = tokio::spawn(async move { tester.test_provider(org, "fake").await });
        waiting(&engine, 1).await;
        drop(release);
        holds.await.unwrap().unwrap();
        let (_, cases) = tests.await.unwrap().unwrap();
        assert!(cases.iter().all(|(_, result)| result.is_ok()), "{cases:?}");
    });
    assert_eq!(postgres.deadlocks(), 0);
}
