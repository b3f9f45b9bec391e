//! A run that asked for no region gets its machine where there is one: the next region is tried after the first one's failure is
//! compensated, with a row and a name of its own, and nothing is left behind in the first.

use crate::bench::{Bench, PRICE, now, settings, spec};
use crate::machines::Plan;
use adapters::fake::{Call, Fate, MachineState};
use engine::Config;
use model::job::JobStatus;
use model::run::RunStatus;
use model::spec::RunSpec;
use model::time::{MINUTE, SECOND};
use model::workflow::{NodeStatus, PatternKind, Workflow, WorkflowStatus, output};
use model::{Credits, RunId, TroubleKind};
use std::sync::atomic::Ordering;

/// Whatever is made first meets this fate, each time it is tried: it is in the region that the run was submitted to.
pub fn full_here(bench: &mut Bench, fate: Fate) {
    let mut first: Option<String> = None;
    bench.fate(move |call, _, name| {
        let struck = call == Call::Spawn && *first.get_or_insert_with(|| name.to_owned()) == name;
        if struck { fate } else { Fate::Obey }
    });
}

fn anywhere() -> RunSpec {
    RunSpec { any_region: true, ..spec() }
}

fn workflow_of(bench: &Bench, run: RunId) -> Workflow {
    now(bench.engine.workflow(bench.org, bench.job(run).workflow)).unwrap()
}

fn spawns(bench: &Bench) -> usize {
    bench.calls.lock().unwrap().iter().filter(|call| **call == Call::Spawn).count()
}

/// The regions of the machines that are there.
fn regions(bench: &Bench) -> Vec<String> {
    let machines = bench.provider.machines().into_values();
    machines.filter(|machine| machine.state != MachineState::Gone).map(|machine| machine.region).collect()
}

#[test]
fn without_capacity_in_one_region_the_next_one_is_taken() {
    let mut bench = Bench::brief();
    bench.runners.plan = Some(Plan::Run);
    full_here(&mut bench, Fate::FailBefore(TroubleKind::Capacity));
    let run = bench.submit(anywhere());
    bench.settle();
    assert_eq!((regions(&bench), spawns(&bench)), (vec!["there".to_owned()], 2), "a full region is not asked again");
    bench.exits(run, 0);
    bench.settle();
    bench.expect_end(run, RunStatus::Completed, None);
    let (workflow, job) = (workflow_of(&bench, run), bench.job(run));
    assert_eq!(workflow.status, WorkflowStatus::Completed);
    assert_eq!(output(&workflow, "instance").unwrap()["instance"], serde_json::json!(job.instance));
    let status = |name: &str| workflow.nodes.iter().find(|node| node.name == name).unwrap().status;
    assert_eq!(["spawn-instance", "spawn-instance#2"].map(status), [NodeStatus::Failed, NodeStatus::Completed]);
    let applied = &workflow.applied[0];
    assert_eq!((applied.pattern, &*applied.by), (PatternKind::RetryWithAlternative, "spawn-instance"));
    assert_eq!(bench.jobs(run).len(), 1, "it is the same job");
    bench.check();
    bench.check_all_gone_after(5 * MINUTE);
}

#[test]
fn a_region_that_was_asked_for_is_the_only_one() {
    let mut bench = Bench::brief();
    full_here(&mut bench, Fate::FailBefore(TroubleKind::Capacity));
    let run = bench.submit(spec());
    bench.advance(MINUTE);
    bench.expect_end(run, RunStatus::Failed, Some("no_capacity"));
    assert!(workflow_of(&bench, run).applied.is_empty());
    bench.check_all_gone_after(MINUTE);
}

#[test]
fn when_every_region_refuses_the_run_ends_and_nothing_is_taken() {
    let mut bench = Bench::brief();
    bench.fate(|call, _, _| if call == Call::Spawn { Fate::FailBefore(TroubleKind::Capacity) } else { Fate::Obey });
    let run = bench.submit(anywhere());
    bench.advance(MINUTE);
    bench.expect_end(run, RunStatus::Failed, Some("no_capacity"));
    assert_eq!(bench.money(run, 1), (PRICE, Credits::ZERO, PRICE));
    bench.check();
    bench.check_all_gone_after(MINUTE);
}

/// The first machine exists and no worker heard so: it is ended, and the job runs once, in the other region.
#[test]
fn a_machine_that_was_made_unheard_is_ended_and_the_job_runs_once_elsewhere() {
    for kind in [TroubleKind::Capacity, TroubleKind::Auth, TroubleKind::Internal] {
        for runner_comes in [false, true] {
            let mut slow = settings(2);
            slow.list_lag_calls = 3;
            let mut bench = Bench::brief_with(slow);
            bench.runners.unborn = !runner_comes;
            full_here(&mut bench, Fate::FailAfter(kind));
            let run = bench.submit(anywhere());
            bench.advance(20 * SECOND);
            bench.check();
            bench.runners.unborn = false;
            bench.advance(MINUTE);
            eprintln!("{kind:?}, its runner comes: {runner_comes}: {:?}", bench.end(run));
            bench.expect_end(run, RunStatus::Completed, None);
            assert_eq!(bench.runners.executions(run), 1);
            bench.check();
            bench.check_all_gone_after(20 * MINUTE);
        }
    }
}

#[test]
fn a_warm_machine_in_the_other_region_is_taken() {
    let mut bench = Bench::new();
    let warm = bench.submit(RunSpec { region: "there".into(), ..spec() });
    bench.settle();
    bench.expect_end(warm, RunStatus::Completed, None);
    full_here(&mut bench, Fate::FailBefore(TroubleKind::Capacity));
    let run = bench.submit(anywhere());
    bench.settle();
    bench.expect_end(run, RunStatus::Completed, None);
    assert_eq!(spawns(&bench), 1, "only the one that failed");
    assert_eq!(bench.job(run).instance, bench.job(warm).instance);
    bench.check();
    bench.check_all_gone();
}

#[test]
fn where_the_other_region_is_full_too_the_job_waits_its_turn_there() {
    let mut bench = Bench::with(settings(1), Config::default());
    bench.runners.plan = Some(Plan::Run);
    let before = bench.submit(RunSpec { region: "there".into(), ..spec() });
    bench.settle();
    full_here(&mut bench, Fate::FailBefore(TroubleKind::Capacity));
    let run = bench.submit(anywhere());
    bench.settle();
    let job = bench.job(run);
    assert_eq!((job.status, job.queue_seq.is_some()), (JobStatus::Submitted, true));
    bench.check();
    bench.exits(before, 0);
    bench.settle();
    bench.exits(run, 0);
    bench.settle();
    bench.expect_end(run, RunStatus::Completed, None);
    bench.check();
}

#[test]
fn a_run_that_is_cancelled_between_two_regions_ends() {
    let mut bench = Bench::with(settings(1), Config::default());
    bench.runners.plan = Some(Plan::Run);
    bench.submit(RunSpec { region: "there".into(), ..spec() });
    bench.settle();
    full_here(&mut bench, Fate::FailBefore(TroubleKind::Capacity));
    let run = bench.submit(anywhere());
    bench.settle();
    bench.cancel(run);
    bench.settle();
    bench.expect_end(run, RunStatus::Cancelled, None);
    assert_eq!(workflow_of(&bench, run).status, WorkflowStatus::Cancelled);
    bench.check();
}

/// R145: the call in the first region never returns.
#[test]
fn a_call_that_never_returns_is_given_up_for_the_next_region() {
    let mut bench = Bench::brief();
    let (run, goes_on) = crate::provider_faults::a_spawn_in_hand(&mut bench, anywhere());
    bench.pass(10 * MINUTE + 19 * SECOND);
    goes_on();
    bench.spawns_hang.store(false, Ordering::Relaxed);
    bench.settle();
    bench.expect_end(run, RunStatus::Completed, None);
    let workflow = workflow_of(&bench, run);
    assert_eq!(
        workflow.nodes.iter().find(|node| node.name == "spawn-instance#2").unwrap().status,
        NodeStatus::Completed
    );
    bench.check();
    bench.check_all_gone_after(20 * MINUTE);
}
