//! Finished allocations: how long they are kept, who may prolong or end that, and what becomes of their folders and machines.

use crate::bench::{Bench, now, settings, spec};
use crate::machines::Plan;
use adapters::fake::{Call, MachineState};
use engine::Config;
use engine::allocation::SlotRender;
use model::allocation::{Allocation, AllocationStatus};
use model::instance::InstanceStatus;
use model::spec::{Resources, RunSpec};
use model::time::{HOUR, MINUTE, SECOND};
use model::{AllocationId, Failure, Refused, RunId};
use std::sync::Arc;

pub fn slot_of(bench: &Bench, run: RunId) -> Allocation {
    let id = bench.job(run).allocation.expect("it was placed");
    now(bench.engine.allocation(bench.org, id)).unwrap().allocation
}

pub fn shown() -> SlotRender {
    Arc::new(|snapshot| snapshot.allocation.id.to_string().into_bytes())
}

pub fn extend(bench: &Bench, id: AllocationId, ms: Option<i64>) -> Result<(), Failure> {
    now(bench.engine.extend(bench.org, id, ms, None, shown())).map(drop)
}

pub fn finished(bench: &mut Bench, code: i32, spec: RunSpec) -> RunId {
    bench.runners.plan = Some(Plan::Exit(code));
    let run = bench.submit(spec);
    bench.settle();
    assert_eq!(slot_of(bench, run).status, AllocationStatus::Complete);
    run
}

#[test]
fn a_hold_lasts_by_outcome_or_as_asked() {
    let table = [(0, None, 5 * MINUTE), (1, None, 15 * MINUTE), (0, Some(HOUR), HOUR), (1, Some(0), 0)];
    for (code, hold_ms, lasts) in table {
        let mut bench = Bench::new();
        let run = finished(&mut bench, code, RunSpec { hold_ms, ..spec() });
        let slot = slot_of(&bench, run);
        assert_eq!(slot.debug_hold_until, Some(slot.completed_at.unwrap() + lasts), "{code} {hold_ms:?}");
        assert_eq!(slot.workdir_released, lasts == 0);
        bench.advance((lasts - SECOND).max(0));
        assert_eq!(slot_of(&bench, run).workdir_released, lasts == 0);
        bench.advance(2 * SECOND);
        assert!(slot_of(&bench, run).workdir_released);
        bench.check();
    }
}

#[test]
fn extending_is_capped_and_never_shortens() {
    let mut bench = Bench::new();
    let run = finished(&mut bench, 0, spec());
    let (id, completed) = (slot_of(&bench, run).id, slot_of(&bench, run).completed_at.unwrap());
    let until = |bench: &Bench| slot_of(bench, run).debug_hold_until.unwrap().since(completed);
    let start = bench.at().since(completed);
    extend(&bench, id, Some(MINUTE)).unwrap();
    assert_eq!(until(&bench), 5 * MINUTE, "a shorter wish shortens nothing");
    extend(&bench, id, None).unwrap();
    assert_eq!(until(&bench), start + 30 * MINUTE);
    extend(&bench, id, Some(6 * HOUR)).unwrap();
    assert_eq!(until(&bench), start + 6 * HOUR);
    extend(&bench, id, Some(48 * HOUR)).unwrap();
    assert_eq!(until(&bench), 24 * HOUR);
    bench.check();
    bench.advance(30 * MINUTE);
    assert!(!slot_of(&bench, run).workdir_released, "prolonged holds outlive the first end");
}

#[test]
fn a_released_hold_is_over_and_cannot_be_extended() {
    let mut bench = Bench::new();
    let run = finished(&mut bench, 0, spec());
    let id = slot_of(&bench, run).id;
    now(bench.engine.release(bench.org, id, None, shown())).unwrap();
    now(bench.engine.release(bench.org, id, None, shown())).unwrap(); // asked twice
    assert!(slot_of(&bench, run).workdir_released);
    let refused = extend(&bench, id, None).unwrap_err();
    assert!(matches!(refused.refused(), Some(Refused::Conflict { .. })), "{refused:?}");
    let desired = now(bench.engine.desired(slot_of(&bench, run).instance)).unwrap();
    assert_eq!(desired.kept_workdirs, ["work_2"], "only the next user's folder is kept");
    bench.check();
}

#[test]
fn a_machine_is_told_of_every_workdir_that_is_kept_and_of_no_other() {
    let mut bench = Bench::new();
    let mut runs: Vec<_> = (0..8).map(|_| finished(&mut bench, 0, spec())).collect();
    let machine = slot_of(&bench, runs[0]).instance;
    let named = |numbers: &[i64]| numbers.iter().map(|number| format!("work_{number}")).collect::<Vec<_>>();
    let told = |bench: &Bench| now(bench.engine.desired(machine)).unwrap().kept_workdirs;
    assert_eq!(told(&bench), named(&[1, 2, 3, 4, 5, 6, 7, 8, 9]), "the held ones and the next");
    runs.push(finished(&mut bench, 0, spec()));
    assert_eq!(told(&bench), named(&[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]));
    for run in [runs[8], runs[2]] {
        now(bench.engine.release(bench.org, slot_of(&bench, run).id, None, shown())).unwrap();
    }
    assert_eq!(told(&bench), named(&[1, 2, 4, 5, 6, 7, 8, 10]));
    bench.check();
}

#[test]
fn a_running_allocation_is_neither_extended_nor_released() {
    let mut bench = Bench::new();
    bench.runners.plan = Some(Plan::Run);
    let run = bench.submit(spec());
    bench.settle();
    let id = slot_of(&bench, run).id;
    assert!(extend(&bench, id, None).is_err());
    assert!(now(bench.engine.release(bench.org, id, None, shown())).is_err());
    bench.check();
}

#[test]
fn an_unused_machine_ends_after_its_idle_time() {
    let mut bench = Bench::new();
    let run = finished(&mut bench, 0, spec());
    let status = |bench: &Bench| bench.snapshot(run).instance.unwrap().status;
    bench.advance(30 * MINUTE - 5 * SECOND);
    assert_eq!(status(&bench), InstanceStatus::Ready);
    bench.advance(10 * SECOND);
    assert_eq!(status(&bench), InstanceStatus::Terminated);
    bench.check_all_gone();
}

/// Where the folder outlives the runner, the machine ends and the folder stays to the end of its hold.
#[test]
fn a_held_folder_outlives_its_machine_and_is_removed_afterwards() {
    let mut bench = Bench::new();
    let run = finished(&mut bench, 0, RunSpec { hold_ms: Some(2 * HOUR), ..spec() });
    let name = bench.name_of(run);
    bench.advance(HOUR);
    assert_eq!(bench.snapshot(run).instance.unwrap().status, InstanceStatus::Terminated);
    let machine = bench.provider.machine(&name).expect("not forgotten while a folder is held");
    assert_eq!((machine.state, machine.workdirs_removed.len()), (MachineState::Gone, 0));
    extend(&bench, slot_of(&bench, run).id, Some(3 * HOUR)).unwrap();
    bench.advance(2 * HOUR);
    assert_eq!(bench.provider.machine(&name).unwrap().workdirs_removed.len(), 0, "it was prolonged");
    bench.advance(MINUTE + HOUR);
    assert!(bench.calls.lock().unwrap().contains(&Call::RemoveWorkdir));
    assert_eq!(bench.provider.machine(&name), None, "forgotten with its last folder");
    bench.check();
}

pub fn cloud(max_instances: i64) -> Bench {
    let mut cloud = settings(max_instances);
    (cloud.capabilities.keeps_workdirs, cloud.capabilities.bills) = (false, true);
    Bench::with(cloud, Config::default())
}

/// Where the folder needs the machine, the hold keeps it.
#[test]
fn a_hold_that_needs_the_machine_keeps_it() {
    let mut bench = cloud(2);
    let run = finished(&mut bench, 0, RunSpec { hold_ms: Some(HOUR), ..spec() });
    let id = bench.job(run).instance.unwrap();
    bench.advance(59 * MINUTE);
    assert_eq!(bench.snapshot(run).instance.unwrap().status, InstanceStatus::Ready, "idle for long, but held");
    let refused = bench.terminate(id, false).unwrap_err();
    assert!(matches!(refused.refused(), Some(Refused::Held { .. })), "{refused:?}");
    bench.advance(2 * MINUTE);
    assert_eq!(bench.snapshot(run).instance.unwrap().status, InstanceStatus::Terminated);
    bench.check();
}

#[test]
fn a_person_with_force_ends_a_held_machine() {
    let mut bench = cloud(2);
    let run = finished(&mut bench, 0, RunSpec { hold_ms: Some(HOUR), ..spec() });
    bench.terminate(bench.job(run).instance.unwrap(), true).unwrap();
    bench.settle();
    assert_eq!(bench.snapshot(run).instance.unwrap().status, InstanceStatus::Terminated);
    assert!(extend(&bench, slot_of(&bench, run).id, None).is_err(), "its folder went with it");
    bench.check();
}

#[test]
fn somebody_who_waits_does_not_end_a_hold_that_needs_its_machine() {
    let mut bench = cloud(1);
    let small = Resources { memory_bytes: Some(1 << 30), ..Resources::default() };
    let large = Resources { memory_bytes: Some(4 << 30), ..Resources::default() };
    let held = finished(&mut bench, 0, RunSpec { hold_ms: Some(20 * MINUTE), resources: small, ..spec() });
    let waits = bench.submit(RunSpec { resources: large, ..spec() });
    bench.advance(19 * MINUTE);
    assert_eq!(bench.job(waits).instance, None);
    assert_eq!(bench.snapshot(held).instance.unwrap().status, InstanceStatus::Ready);
    bench.advance(2 * MINUTE);
    assert_eq!(bench.run(waits).status, model::run::RunStatus::Completed, "the hold is over");
    bench.check();
}

#[test]
fn a_person_ends_a_busy_machine_only_with_force() {
    let mut bench = Bench::new();
    bench.runners.plan = Some(Plan::Run);
    let run = bench.submit(spec());
    bench.settle();
    let id = bench.job(run).instance.unwrap();
    let refused = bench.terminate(id, false).unwrap_err();
    assert!(matches!(refused.refused(), Some(Refused::Conflict { .. })), "{refused:?}");
    bench.terminate(id, true).unwrap();
    bench.settle();
    bench.advance(15 * SECOND);
    assert_eq!(bench.run(run).status, model::run::RunStatus::Cancelled);
    assert_eq!(bench.snapshot(run).instance.unwrap().status, InstanceStatus::Terminated);
    bench.check();
    bench.check_all_gone();
}
