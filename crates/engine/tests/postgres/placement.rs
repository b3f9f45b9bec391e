//! Jobs of one run are placed in one transaction, on several machines.

use crate::postgres::Postgres;
use crate::{MOST_ROUNDS, control_plane, finish, register, submit, work};
use adapters::FakeProvider;
use adapters::fake::{FakeSettings, Fate};
use engine::Engine;
use engine::run::{Plans, Render, Submission};
use model::job::JobStatus;
use model::plan::{AgentPlan, MachinePlan, StepPlan, TaskPlan};
use model::run::RunStatus;
use model::spec::RunSpec;
use model::step::ToolKind;
use model::time::HOUR;
use model::{OrgId, RunId};
use serde_json::json;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use store::Database;

const MACHINES: usize = 6;
const CLIENTS: usize = 4;
/// Runs whose two jobs were placed in their submission, side by side with the runs of the other clients.
const PLACED_AT_ONCE: usize = 100;
/// A client that has submitted so many runs will not find two free machines often enough.
const MOST_RUNS_EACH: usize = 250;

/// One client: submits a run of two ranks, finishes what is placed, until it has completed.
async fn drive(engine: Arc<Engine>, worker: store::Worker, org: OrgId) -> bool {
    let run = submit(&engine, org, 2, 1).await;
    let placed = engine.jobs(org, run).await.unwrap().1.iter().all(|job| job.instance.is_some());
    for _ in 0..MOST_ROUNDS {
        let (seen, jobs) = engine.jobs(org, run).await.unwrap();
        if seen.status.is_end() {
            assert_eq!((seen.status, jobs.len()), (RunStatus::Completed, 2), "{seen:?}");
            assert_eq!(jobs.iter().map(|job| job.agent).collect::<BTreeSet<_>>().len(), 2);
            return placed;
        }
        for job in jobs.iter().filter(|job| job.status == JobStatus::Provisioning) {
            finish(&engine, job).await;
        }
        work(&engine, &worker).await;
        tokio::task::yield_now().await;
    }
    panic!("{run} never ends: {:?}", engine.jobs(org, run).await)
}

#[test]
fn two_ranks_of_a_run_are_placed_in_one_transaction_and_nobody_waits_in_a_circle() {
    let postgres = Postgres::start();
    let url = postgres.database();
    let mut settings = FakeSettings::default();
    settings.capabilities.max_instances = MACHINES as i64;
    let provider = Arc::new(FakeProvider::new(settings, Box::new(|_, _| Fate::Obey)));
    let blobs = tempfile::tempdir().unwrap();
    let engines = [(); 2].map(|()| control_plane(Database::Postgres(url.clone()), blobs.path(), &provider));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_all().build().unwrap();
    runtime.block_on(async {
        let org = engines[0].ensure_org("test").await.unwrap();
        let mut workers = Vec::new();
        for (engine, name) in engines.iter().zip(["one", "two"]) {
            let worker = engine.start_worker(name.to_owned()).await.unwrap();
            engine.beat(&worker).await.unwrap();
            workers.push(worker);
        }
        // The smaller machines fit better and are younger.
        let mut earlier = Vec::new();
        for gigabytes in [8, 4] {
            earlier.push(submit(&engines[0], org, MACHINES as i64 / 2, gigabytes).await);
        }
        work(&engines[0], &workers[0]).await;
        register(&engines[0], &provider, |_| true).await;
        for run in earlier {
            for job in engines[0].jobs(org, run).await.unwrap().1 {
                finish(&engines[0], &job).await;
            }
        }
        assert_eq!(provider.machines().len(), MACHINES);
        let at_once = Arc::new(AtomicUsize::new(0));
        let clients: Vec<_> = (0..CLIENTS)
            .map(|client| {
                let (engine, worker) = (engines[client % 2].clone(), workers[client % 2].clone());
                let at_once = at_once.clone();
                tokio::spawn(async move {
                    for _ in 0..MOST_RUNS_EACH {
                        if at_once.load(Ordering::Relaxed) >= PLACED_AT_ONCE {
                            return;
                        }
                        let placed = drive(engine.clone(), worker.clone(), org).await;
                        at_once.fetch_add(usize::from(placed), Ordering::Relaxed);
                    }
                })
            })
            .collect();
        for client in clients {
            client.await.unwrap();
        }
        let at_once = at_once.load(Ordering::Relaxed);
        assert!(at_once >= PLACED_AT_ONCE, "only {at_once} runs found two free machines in their submission");
        assert_eq!(postgres.deadlocks(), 0);
        let audit = engines[0].audit().await.unwrap();
        assert!(audit.broken.is_empty(), "{:#?}", audit.broken);
    });
}

const RUNS_EACH: usize = 10;

/// A run of two agents, each of which has commands for a machine in a region of its own.
async fn submit_to_two_regions(engine: &Engine, org: OrgId, regions: [&str; 2]) -> RunId {
    let spec: RunSpec = serde_json::from_value(json!({
        "kind": "agents", "command": { "argv": [] }, "provider": "fake", "region": "here", "stop_duration_ms": 0,
        "priority": "normal", "on_lost_control": "finish", "failure_mode": "fail-fast",
    }))
    .unwrap();
    let agents = regions.map(|region| {
        let command =
            StepPlan { input: json!({ "shell": "true" }), timeout_ms: HOUR, ..StepPlan::new("one", ToolKind::Command) };
        let machine = MachinePlan { region: Some(region.to_owned()), ..MachinePlan::default() };
        AgentPlan { machine: Some(machine), ..AgentPlan::new(region, vec![TaskPlan::new("all", vec![command])]) }
    });
    let render: Render = Arc::new(|snapshot| snapshot.run.id.to_string().into_bytes());
    let plans = Plans { agents: agents.into(), ..Plans::default() };
    let submission = Submission { org, by: None, name: None, spec, plans, start: true };
    let answer = engine.submit(submission, None, render).await.unwrap();
    String::from_utf8(answer.body).unwrap().parse().unwrap()
}

#[test]
fn agents_of_one_run_in_two_regions_get_a_machine_in_each_and_nobody_waits_in_a_circle() {
    let postgres = Postgres::start();
    let url = postgres.database();
    let mut settings = FakeSettings::default();
    settings.capabilities.max_instances = 2 * (CLIENTS * RUNS_EACH) as i64;
    let provider = Arc::new(FakeProvider::new(settings, Box::new(|_, _| Fate::Obey)));
    let blobs = tempfile::tempdir().unwrap();
    let engines = [(); 2].map(|()| control_plane(Database::Postgres(url.clone()), blobs.path(), &provider));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_all().build().unwrap();
    runtime.block_on(async {
        let org = engines[0].ensure_org("test").await.unwrap();
        let mut workers = Vec::new();
        for (engine, name) in engines.iter().zip(["one", "two"]) {
            let worker = engine.start_worker(name.to_owned()).await.unwrap();
            engine.beat(&worker).await.unwrap();
            workers.push(worker);
        }
        let clients: Vec<_> = (0..CLIENTS)
            .map(|client| {
                let (engine, worker) = (engines[client % 2].clone(), workers[client % 2].clone());
                tokio::spawn(async move {
                    let mut runs = Vec::new();
                    for _ in 0..RUNS_EACH {
                        // Half of the clients name the regions in the other order.
                        let regions = if client / 2 == 0 { ["here", "there"] } else { ["there", "here"] };
                        runs.push(submit_to_two_regions(&engine, org, regions).await);
                        work(&engine, &worker).await;
                    }
                    runs
                })
            })
            .collect();
        let mut runs = Vec::new();
        for client in clients {
            runs.extend(client.await.unwrap());
        }
        work(&engines[0], &workers[0]).await;
        for run in runs {
            let mut regions = Vec::new();
            for job in engines[0].jobs(org, run).await.unwrap().1 {
                let machine = engines[0].find_instance(job.instance.expect("there is room")).await.unwrap().unwrap();
                regions.push(machine.region);
            }
            regions.sort();
            assert_eq!(regions, ["here", "there"], "{run}");
        }
        assert_eq!(postgres.deadlocks(), 0);
        let audit = engines[0].audit().await.unwrap();
        assert!(audit.broken.is_empty(), "{:#?}", audit.broken);
    });
}
