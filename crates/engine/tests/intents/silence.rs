//! Runners that fall silent, return, or are gone; and outages of the control plane, which prove nothing about a runner.

use crate::bench::{Bench, now, settings, spec};
use crate::machines::{Plan, ended};
use model::Credits;
use model::instance::InstanceStatus;
use model::job::JobReason;
use model::run::{Phase, RunReason, RunStatus};
use model::spec::{OnLostControl, Retry, RetryEvent, RunSpec};
use model::time::{HOUR, MINUTE, SECOND};

#[test]
fn silence_is_a_phase_and_never_an_end() {
    let mut bench = Bench::new();
    let run = bench.running(spec());
    let name = bench.cut_off(run);
    bench.advance(59 * SECOND);
    assert_eq!(bench.run(run).phase, Some(Phase::Running));
    bench.advance(6 * SECOND);
    assert_eq!(bench.run(run).phase, Some(Phase::Unreachable));
    bench.advance(14 * MINUTE + 10 * SECOND);
    assert_eq!(bench.run(run).phase, Some(Phase::Lost));
    bench.advance(2 * HOUR);
    assert_eq!((bench.run(run).status, bench.run(run).phase), (RunStatus::Running, Some(Phase::Lost)));
    bench.check();
    bench.reconnect(&name);
    bench.settle();
    assert_eq!(bench.run(run).phase, Some(Phase::Running), "it returned");
    bench.cut_off(run);
    bench.advance(70 * SECOND);
    assert_eq!(bench.run(run).phase, Some(Phase::Unreachable), "the next silence is noticed as soon");
    bench.reconnect(&name);
    bench.exits(run, 0);
    bench.expect_end(run, RunStatus::Completed, None);
    bench.check();
}

#[test]
fn an_outage_of_ours_changes_nothing() {
    let mut bench = Bench::new();
    let run = bench.running(RunSpec { max_duration_ms: Some(30 * MINUTE), ..spec() });
    bench.advance(5 * MINUTE);
    bench.outage(HOUR);
    // The runner has not dialled yet.
    bench.drain();
    assert_eq!((bench.run(run).status, bench.run(run).phase), (RunStatus::Running, Some(Phase::Running)));
    assert_eq!(bench.run(run).termination, None);
    bench.exits(run, 0); // it ended while we were away, in time
    bench.expect_end(run, RunStatus::Completed, None);
    bench.check();
}

#[test]
fn an_outage_of_ours_fails_nobody_who_waits() {
    let mut bench = Bench::new();
    bench.runners.plan = Some(Plan::Pull);
    let run = bench.submit(spec());
    bench.advance(9 * MINUTE);
    bench.outage(HOUR);
    bench.runners.plan = Some(Plan::Exit(0));
    bench.advance(30 * SECOND);
    bench.expect_end(run, RunStatus::Completed, None);
    assert_eq!(bench.jobs(run).len(), 1);
    bench.check();
}

#[test]
fn what_ran_beyond_its_reservation_during_an_outage_is_paid_on_return() {
    let mut bench = Bench::new();
    let run = bench.running(spec());
    bench.outage(3 * HOUR);
    bench.settle();
    bench.exits(run, 0);
    bench.expect_end(run, RunStatus::Completed, None);
    let (reserved, charged, refunded) = bench.money(run, 1);
    assert_eq!(charged, Credits(3 * 3600 * 10_000));
    assert_eq!(reserved, charged + refunded);
    bench.check();
}

#[test]
fn the_providers_word_ends_a_job_on_a_machine_that_is_gone() {
    let mut bench = Bench::new();
    let run = bench.running(spec());
    let name = bench.name_of(run);
    bench.provider.destroy(&name);
    bench.settle();
    bench.expect_end(run, RunStatus::Failed, Some("instance_lost"));
    bench.check();
    bench.check_all_gone();
}

#[test]
fn a_lost_machine_is_an_interruption_to_the_policy() {
    let mut bench = Bench::new();
    let retry = Retry { max_attempts: 2, on_events: vec![RetryEvent::Interruption], duration_ms: None, delay_ms: None };
    let run = bench.running(RunSpec { retry: Some(retry), ..spec() });
    let name = bench.name_of(run);
    bench.provider.destroy(&name);
    bench.advance(20 * SECOND);
    assert_eq!(bench.run(run).phase, Some(Phase::Running), "on another machine");
    assert_ne!(bench.name_of(run), name);
    bench.exits(run, 0);
    bench.expect_end(run, RunStatus::Completed, None);
    bench.check();
}

#[test]
fn a_runner_that_died_is_started_again_and_the_job_lives_on() {
    let mut bench = Bench::new();
    let run = bench.running(spec());
    let name = bench.name_of(run);
    bench.provider.kill_runner(&name);
    bench.advance(5 * SECOND);
    assert_eq!(bench.provider.machine(&name).unwrap().starts, 2);
    assert_eq!(bench.run(run).phase, Some(Phase::Running));
    bench.exits(run, 0);
    bench.expect_end(run, RunStatus::Completed, None);
    assert_eq!(bench.runners.executions(run), 1);
    bench.check();
}

#[test]
fn a_runner_that_dies_while_it_boots_is_started_again() {
    let mut bench = Bench::new();
    bench.runners.unborn = true;
    let run = bench.submit(spec());
    bench.settle();
    let name = bench.name_of(run);
    bench.provider.kill_runner(&name);
    bench.runners.unborn = false;
    bench.advance(10 * SECOND);
    bench.expect_end(run, RunStatus::Completed, None);
    bench.check();
}

#[test]
fn max_duration_is_enforced_by_us_a_minute_after_the_runner_should_have() {
    let mut bench = Bench::new();
    let run = bench.running(RunSpec { max_duration_ms: Some(10 * MINUTE), ..spec() });
    bench.advance(10 * MINUTE + 59 * SECOND);
    assert_eq!(bench.run(run).termination, None);
    bench.advance(2 * SECOND);
    bench.expect_end(run, RunStatus::Failed, Some("deadline"));
    assert_eq!(bench.job(run).reason, Some(JobReason::MaxDuration));
    bench.check();
}

/// R147: the runner ends the job in time also while it has no connection, and reports it when it returns.
#[test]
fn a_lost_job_that_finishes_by_itself_is_waited_for_5_minutes_longer() {
    let mut bench = Bench::new();
    let run = bench.running(RunSpec { max_duration_ms: Some(30 * MINUTE), stop_duration_ms: 0, ..spec() });
    bench.cut_off(run);
    bench.advance(34 * MINUTE + 50 * SECOND);
    assert_eq!((bench.run(run).termination, bench.run(run).phase), (None, Some(Phase::Lost)));
    bench.advance(20 * SECOND);
    assert_eq!(bench.run(run).termination.map(|termination| termination.reason), Some(RunReason::Deadline));
    bench.advance(MINUTE);
    bench.expect_end(run, RunStatus::Failed, Some("deadline"));
    bench.check();
}

#[test]
fn a_lost_job_that_returns_too_late_is_stopped_at_once() {
    let mut bench = Bench::new();
    let run = bench.running(RunSpec { max_duration_ms: Some(30 * MINUTE), ..spec() });
    let name = bench.cut_off(run);
    bench.advance(32 * MINUTE);
    assert_eq!(bench.run(run).termination, None);
    bench.reconnect(&name);
    bench.advance(SECOND);
    assert_eq!(bench.run(run).termination.map(|termination| termination.reason), Some(RunReason::Deadline));
    bench.check();
}

#[test]
fn a_machine_has_as_long_to_start_as_the_settings_say() {
    let mut config = engine::Config::default();
    config.limits.boot_ms = 2 * MINUTE;
    let mut bench = Bench::with(settings(4), config);
    bench.runners.unborn = true;
    let run = bench.submit(spec());
    bench.advance(MINUTE + 59 * SECOND);
    assert_eq!(bench.jobs(run)[0].reason, None);
    bench.advance(2 * SECOND);
    let job = bench.jobs(run).remove(0);
    assert_eq!(job.reason, Some(JobReason::BootLimit));
    assert_eq!(job.message.as_deref(), Some("the machine did not take the job within 2m"));
    bench.check();
}

#[test]
fn max_duration_counts_active_time_over_all_submissions() {
    let mut bench = Bench::new();
    let retry = Retry { max_attempts: 3, on_events: vec![RetryEvent::Interruption], duration_ms: None, delay_ms: None };
    let spec = RunSpec { retry: Some(retry), max_duration_ms: Some(10 * MINUTE), ..spec() };
    let run = bench.running(spec);
    bench.advance(6 * MINUTE);
    bench.say(run, ended(JobReason::Interrupted, None, 0, 6 * MINUTE));
    bench.advance(15 * SECOND); // the pause does not count
    assert_eq!(bench.run(run).phase, Some(Phase::Running));
    bench.advance(4 * MINUTE + 50 * SECOND);
    assert_eq!(bench.run(run).termination, None);
    bench.advance(20 * SECOND);
    bench.expect_end(run, RunStatus::Failed, Some("deadline"));
    bench.check();
}

#[test]
fn a_machine_that_stops_by_itself_is_ended_after_25_minutes_of_silence() {
    let mut bench = Bench::new();
    let run = bench.running(RunSpec { on_lost_control: OnLostControl::Stop, ..spec() });
    bench.cut_off(run);
    bench.advance(24 * MINUTE);
    assert_eq!(bench.run(run).phase, Some(Phase::Lost));
    bench.advance(MINUTE + 30 * SECOND);
    bench.advance(2 * MINUTE);
    bench.expect_end(run, RunStatus::Failed, Some("instance_lost"));
    bench.check();
    bench.check_all_gone();
}

/// Its job looks at the machine's state, and finds it ended: the job must learn all the same that its runner will not answer.
#[test]
fn a_machine_given_up_and_ended_at_one_look_takes_its_job_with_it() {
    let mut bench = Bench::new();
    let run = bench.running(RunSpec { on_lost_control: OnLostControl::Stop, ..spec() });
    bench.cut_off(run);
    bench.advance(2 * MINUTE);
    assert_eq!(bench.run(run).phase, Some(Phase::Unreachable));
    bench.pass(HOUR);
    bench.advance(5 * MINUTE);
    bench.expect_end(run, RunStatus::Failed, Some("instance_lost"));
    bench.check();
    bench.check_all_gone();
}

#[test]
fn a_clock_that_is_set_back_and_forward_loses_nobody() {
    let mut bench = Bench::new();
    bench.runners.plan = Some(Plan::Run);
    bench.advance(MINUTE);
    bench.jump(-HOUR);
    bench.advance(MINUTE);
    let run = bench.running(RunSpec { on_lost_control: OnLostControl::Stop, ..spec() });
    let name = bench.cut_off(run);
    bench.advance(10 * SECOND);
    bench.jump(HOUR);
    bench.advance(20 * SECOND);
    assert_eq!(bench.run(run).phase, Some(Phase::Running), "it was heard half a minute ago");
    bench.reconnect(&name);
    bench.exits(run, 0);
    bench.expect_end(run, RunStatus::Completed, None);
    bench.check();
}

#[test]
fn an_idle_machine_that_is_lost_ends_after_25_minutes() {
    let mut bench = Bench::new();
    bench.runners.plan = Some(Plan::Exit(0));
    let run = bench.submit(spec());
    bench.settle();
    bench.cut_off(run);
    bench.advance(20 * MINUTE);
    let status = |bench: &Bench| bench.snapshot(run).instance.unwrap().status;
    assert_eq!(status(&bench), InstanceStatus::Lost);
    bench.advance(6 * MINUTE);
    assert_eq!(status(&bench), InstanceStatus::Terminated);
    bench.check_all_gone();
}

#[test]
fn a_job_that_ends_on_an_unreachable_machine_leaves_it_usable() {
    let mut bench = Bench::new();
    let run = bench.running(spec());
    let name = bench.cut_off(run);
    bench.advance(2 * MINUTE);
    // Its report overtakes its heartbeat.
    let (job, instance) = (bench.job(run), bench.snapshot(run).instance.unwrap());
    assert_eq!(instance.status, InstanceStatus::Unreachable);
    let what = ended(JobReason::DoneByRunner, Some(0), 0, 0);
    let fact = crate::machines::fact(job.id, job.epoch, job.step, what);
    now(bench.engine.report(&instance, vec![fact], Vec::new())).unwrap();
    bench.expect_end(run, RunStatus::Completed, None);
    bench.check();
    bench.reconnect(&name);
    bench.settle();
    let next = bench.submit(spec());
    assert_eq!(bench.job(next).instance, Some(instance.id));
    bench.settle();
    bench.exits(next, 0);
    bench.check();
}
