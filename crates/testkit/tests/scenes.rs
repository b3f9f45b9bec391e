//! Scenes with one fault that lasts an hour: no run fails, and the results arrive.

use model::run::RunStatus;
use model::time::{HOUR, MINUTE, SECOND};
use testkit::scene::Scene;
use testkit::sim::Kind;

/// Runs that end before, during and after it.
fn check(kind: Kind, ms: i64) {
    let works_ms = vec![5 * SECOND, 10 * MINUTE, 90 * MINUTE];
    let count = works_ms.len();
    let report = Scene { works_ms, blow: (30 * SECOND, kind, ms) }.play();
    assert!(report.is_good(), "{}", report.story());
    assert_eq!(report.ends, vec![(RunStatus::Completed, Some(0)); count], "{}", report.trace.join("\n"));
    assert_eq!(report.executions, count, "each command ran once");
}

#[test]
fn the_control_plane_is_down_for_an_hour_while_machines_work() {
    check(Kind::Outage, HOUR);
}

#[test]
fn the_control_plane_stands_still_for_an_hour_while_machines_work() {
    check(Kind::Frozen, HOUR);
}

#[test]
fn a_laptop_sleeps_for_an_hour_with_everything_on_it() {
    check(Kind::Suspended, HOUR);
}

#[test]
fn a_machine_sleeps_for_an_hour() {
    check(Kind::MachineAsleep, HOUR);
}

#[test]
fn the_disk_is_full_for_an_hour() {
    check(Kind::DiskFull, HOUR);
}

#[test]
fn the_clock_is_set_an_hour_ahead_or_a_day_or_back() {
    check(Kind::ClockForward, HOUR);
    check(Kind::ClockForward, 25 * HOUR);
    check(Kind::ClockBack, HOUR);
}

#[test]
fn one_machine_is_heard_by_nobody_or_hears_nobody() {
    check(Kind::CutUp, HOUR);
    check(Kind::CutDown, HOUR);
}

#[test]
fn a_runner_is_killed_and_its_work_goes_on() {
    check(Kind::KillRunner, 1);
}
