//! Machines that leave the pool, slots that failed and are held all the same, and workflows that are cancelled or tried again by a person.

use crate::bench::{Bench, now, settings, spec};
use crate::holds::{cloud, extend, finished, slot_of};
use crate::machines::{Plan, broken, fact};
use engine::Config;
use engine::instance::InstanceOverview;
use engine::runner::What;
use engine::workflow::WorkflowRender;
use model::allocation::AllocationStatus;
use model::instance::InstanceStatus;
use model::job::LifecycleError;
use model::run::RunStatus;
use model::spec::RunSpec;
use model::time::{HOUR, MINUTE, SECOND};
use model::workflow::WorkflowStatus;
use model::{Failure, InstanceId, OrgId, Refused, RunId};
use std::sync::Arc;

fn drain(bench: &Bench, id: InstanceId) -> Result<(), Failure> {
    let shown = Arc::new(|picture: &InstanceOverview| picture.workflow_state.clone().into_bytes());
    now(bench.engine.drain_instance((bench.org, "a test".into()), id, None, shown)).map(drop)
}

fn status(bench: &Bench, id: InstanceId) -> InstanceStatus {
    now(bench.engine.find_instance(id)).unwrap().unwrap().status
}

#[test]
fn a_drained_machine_gets_no_job_and_ends_with_the_one_it_has() {
    let mut bench = Bench::new();
    bench.runners.plan = Some(Plan::Run);
    let run = bench.submit(spec());
    bench.settle();
    let id = bench.job(run).instance.unwrap();
    drain(&bench, id).unwrap();
    drain(&bench, id).unwrap();
    bench.settle();
    bench.advance(HOUR);
    assert_eq!((status(&bench, id), bench.run(run).status), (InstanceStatus::Draining, RunStatus::Running));
    let other = bench.submit(spec());
    bench.settle();
    assert_ne!(bench.job(other).instance, Some(id), "it has left the pool");
    bench.runners.plan = Some(Plan::Exit(0));
    bench.settle();
    bench.expect_end(run, RunStatus::Completed, None);
    assert_eq!(status(&bench, id), InstanceStatus::Terminated, "nothing is left to wait for");
    bench.check();
}

#[test]
fn an_idle_machine_that_is_drained_ends_at_once_and_a_hold_that_needs_it_is_waited_for() {
    let mut bench = Bench::new();
    let run = finished(&mut bench, 0, spec());
    let id = bench.job(run).instance.unwrap();
    drain(&bench, id).unwrap();
    bench.settle();
    assert_eq!(status(&bench, id), InstanceStatus::Terminated, "its folder outlives it");

    let mut bench = cloud(2);
    let run = finished(&mut bench, 0, RunSpec { hold_ms: Some(HOUR), ..spec() });
    let (id, slot) = (bench.job(run).instance.unwrap(), slot_of(&bench, run).id);
    drain(&bench, id).unwrap();
    bench.advance(30 * MINUTE);
    assert_eq!(status(&bench, id), InstanceStatus::Draining);
    let refused = extend(&bench, slot, None).unwrap_err();
    assert!(matches!(refused.refused(), Some(Refused::Conflict { .. })), "{refused:?}");
    let refused = bench.terminate(id, false).unwrap_err();
    assert!(matches!(refused.refused(), Some(Refused::Held { by, .. }) if *by == slot.to_string()), "{refused:?}");
    bench.advance(31 * MINUTE);
    assert_eq!(status(&bench, id), InstanceStatus::Terminated);
    bench.check();
}

#[test]
fn only_a_machine_of_the_own_org_that_is_up_is_drained() {
    let mut bench = Bench::new();
    bench.runners.unborn = true;
    let run = bench.submit(spec());
    bench.settle();
    let id = bench.job(run).instance.unwrap();
    let refused = drain(&bench, id).unwrap_err();
    assert!(matches!(refused.refused(), Some(Refused::NotFrom { .. })), "{refused:?}");
    let shown = Arc::new(|_: &InstanceOverview| Vec::new());
    let other = now(bench.engine.drain_instance((OrgId(i64::MAX), "x".into()), id, None, shown)).unwrap_err();
    assert!(matches!(other.refused(), Some(Refused::NotFound { .. })), "{other:?}");
}

/// A run whose keeper is killed under it.
fn broken_run(hold_on_failure: bool) -> (Bench, RunId) {
    let mut config = Config::default();
    config.holds.hold_on_failure = hold_on_failure;
    let mut bench = Bench::with(settings(2), config);
    bench.runners.plan = Some(Plan::Run);
    let run = bench.submit(spec());
    bench.settle();
    let job = bench.job(run);
    let what: What = broken(LifecycleError::KeeperDied, SECOND);
    bench.report(job.instance.unwrap(), vec![fact(job.id, job.epoch, job.step, what)], Vec::new()).unwrap().unwrap();
    (bench, run)
}

#[test]
fn a_failed_slot_is_held_only_where_the_settings_say_so() {
    let (bench, run) = broken_run(false);
    let slot = slot_of(&bench, run);
    assert_eq!((slot.status, slot.hold(), slot.workdir_released), (AllocationStatus::Failed, None, true));

    let (mut bench, run) = broken_run(true);
    let slot = slot_of(&bench, run);
    assert_eq!(slot.status, AllocationStatus::Failed);
    assert_eq!(slot.hold().map(|hold| hold.until), Some(bench.at() + 15 * MINUTE));
    let kept = now(bench.engine.desired(slot.instance)).unwrap().kept_workdirs;
    assert!(kept.contains(&slot.workdir), "{kept:?}");
    assert_eq!(status(&bench, slot.instance), InstanceStatus::Ready, "a healthy machine stays, with a new slot");
    extend(&bench, slot.id, Some(30 * MINUTE)).unwrap();
    bench.advance(29 * MINUTE);
    assert!(!slot_of(&bench, run).workdir_released);
    bench.advance(2 * MINUTE);
    assert!(slot_of(&bench, run).workdir_released);
    bench.check();
}

fn named() -> WorkflowRender {
    Arc::new(|workflow| workflow.id.to_string().into_bytes())
}

#[test]
fn a_workflow_is_cancelled_with_a_reason_that_is_kept() {
    let mut bench = Bench::new();
    bench.runners.plan = Some(Plan::Run);
    let run = bench.submit(spec());
    bench.settle();
    let id = bench.job(run).workflow;
    for reason in ["", "two\nlines"] {
        let refused = now(bench.engine.cancel_workflow(bench.org, id, Some(reason.into()), None, named())).unwrap_err();
        assert!(matches!(refused.refused(), Some(Refused::Invalid { field, .. }) if field == "reason"), "{refused:?}");
    }
    let other = OrgId(i64::MAX);
    let refused = now(bench.engine.cancel_workflow(other, id, None, None, named())).unwrap_err();
    assert!(matches!(refused.refused(), Some(Refused::NotFound { .. })), "{refused:?}");
    now(bench.engine.cancel_workflow(bench.org, id, Some("too dear".into()), None, named())).unwrap();
    bench.settle();
    assert_eq!(bench.run(run).status, RunStatus::Cancelled);
    let workflow = now(bench.engine.workflow(bench.org, id)).unwrap();
    assert_eq!(workflow.status, WorkflowStatus::Cancelled);
    assert_eq!(
        (workflow.cancel_reason.as_deref(), workflow.error.as_deref()),
        (Some("too dear"), Some("cancelled: too dear"))
    );
    assert!(bench.job(run).status.is_end() && workflow.nodes.iter().all(|node| node.status.is_end()));
    bench.check();
}

/// A run that is cancelled has a cancelled workflow; one whose job ends by itself has not.
#[test]
fn the_launch_of_a_cancelled_run_is_cancelled_however_far_its_job_was() {
    for (plan, expected) in [(Plan::Run, WorkflowStatus::Cancelled), (Plan::Exit(0), WorkflowStatus::Completed)] {
        let mut bench = Bench::new();
        bench.runners.plan = Some(plan);
        let run = bench.submit(spec());
        bench.settle();
        let cancelled = bench.act(run, engine::run::Action::Cancel { abort: false });
        assert_eq!(cancelled.is_ok(), expected == WorkflowStatus::Cancelled);
        bench.settle();
        let workflow = now(bench.engine.workflow(bench.org, bench.job(run).workflow)).unwrap();
        assert_eq!((workflow.status, workflow.cancel_reason), (expected, None));
        bench.check();
    }
}

/// R146: a failed launch-run is begun again while its job waits; afterwards the run is what is retried.
#[test]
fn a_failed_launch_is_begun_again_while_its_job_is_open() {
    let mut bench = Bench::with(settings(1), Config::default());
    bench.runners.plan = Some(Plan::Run);
    let first = bench.submit(spec());
    let waits = bench.submit(spec());
    bench.settle();
    let job = bench.job(waits);
    assert_eq!(job.instance, None, "it waits for the only machine");
    let refused = now(bench.engine.retry_workflow(bench.org, job.workflow, None, named())).unwrap_err();
    assert!(refused.to_string().contains("only a failed workflow"), "{refused}");
    let id = job.workflow;
    now(bench.store.write(store::Lane::Normal, "test", move |tx| {
        let mut workflow = store::workflow::find(tx, id)?.unwrap();
        workflow.status = WorkflowStatus::Failed;
        store::workflow::save(tx, &workflow)
    }))
    .unwrap();
    now(bench.engine.retry_workflow(bench.org, id, None, named())).unwrap();
    let begun = bench.job(waits).workflow;
    assert_ne!(begun, id, "a failed one is never changed");
    let refused = now(bench.engine.retry_workflow(bench.org, id, None, named())).unwrap_err();
    assert!(refused.to_string().contains("repl retry"), "{refused}");
    bench.runners.plan = Some(Plan::Exit(0));
    bench.settle();
    bench.expect_end(first, RunStatus::Completed, None);
    bench.expect_end(waits, RunStatus::Completed, None);
    assert_eq!(now(bench.engine.workflow(bench.org, begun)).unwrap().status, WorkflowStatus::Completed);
}
