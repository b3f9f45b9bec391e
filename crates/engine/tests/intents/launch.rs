//! A run from its submission to the end of its machine, when nothing goes wrong: the story every other test bends.

use crate::bench::{Bench, PRICE, spec};
use crate::machines::Plan;
use model::Credits;
use model::job::JobStatus;
use model::run::RunStatus;
use model::time::{MINUTE, SECOND};

#[test]
fn a_cold_run_completes_and_its_machine_ends_when_nobody_uses_it() {
    let mut bench = Bench::new();
    let run = bench.submit(spec());
    bench.settle();
    bench.expect_end(run, RunStatus::Completed, None);
    assert_eq!(bench.run(run).exit_code, Some(0));
    assert_eq!(bench.job(run).status, JobStatus::Done);
    assert!(!bench.job(run).warm);
    assert_eq!(bench.runners.executions(run), 1);
    assert_eq!(bench.money(run, 1), (PRICE, Credits(1), PRICE - Credits(1)), "an hour ahead, the least charged");
    bench.check();
    bench.check_all_gone();
}

#[test]
fn a_second_run_goes_to_the_warm_machine() {
    let mut bench = Bench::new();
    let first = bench.submit(spec());
    bench.settle();
    let second = bench.submit(spec());
    assert_eq!(bench.job(second).status, JobStatus::Provisioning, "placed inside the submit");
    assert!(bench.job(second).warm);
    bench.settle();
    bench.expect_end(second, RunStatus::Completed, None);
    assert_eq!(bench.job(first).instance, bench.job(second).instance);
    assert_ne!(bench.job(first).allocation, bench.job(second).allocation);
    bench.check();
    bench.check_all_gone();
}

#[test]
fn a_running_job_is_charged_by_the_window_and_to_the_millisecond() {
    let mut bench = Bench::new();
    bench.runners.plan = Some(Plan::Run);
    let run = bench.submit(spec());
    bench.advance(2 * MINUTE + 30 * SECOND);
    assert_eq!(bench.money(run, 1).1, Credits(120 * 10_000));
    bench.exits(run, 0);
    bench.expect_end(run, RunStatus::Completed, None);
    assert_eq!(bench.money(run, 1).1, Credits(150 * 10_000));
    bench.check();
}
