//! What is tried again, by whom, with which money, after which pause; and what is not.

use crate::bench::{Bench, PRICE, now, spec};
use crate::machines::{Plan, ended};
use engine::run::Action;
use model::job::JobReason;
use model::run::{Phase, RunStatus};
use model::spec::{Retry, RetryEvent, RunSpec};
use model::time::{HOUR, MINUTE, SECOND};
use model::{Credits, Refused, RunId};

fn on(events: &[RetryEvent], max_attempts: i64) -> RunSpec {
    RunSpec {
        retry: Some(Retry { max_attempts, on_events: events.to_vec(), duration_ms: None, delay_ms: None }),
        ..spec()
    }
}

fn pauses(bench: &Bench, run: RunId) -> Vec<i64> {
    let jobs = bench.jobs(run);
    jobs.windows(2).map(|pair| pair[1].submitted_at.since(pair[0].ended_at.expect("it has ended")) / SECOND).collect()
}

#[test]
fn a_person_retries_a_failed_run_with_a_reservation_of_its_own() {
    let mut bench = Bench::new();
    bench.runners.plan = Some(Plan::Exit(1));
    let run = bench.submit(spec());
    bench.settle();
    bench.expect_end(run, RunStatus::Failed, Some("exited_with_error"));
    bench.runners.plan = Some(Plan::Exit(0));
    bench.act(run, Action::Retry { force: false }).unwrap();
    bench.settle();
    bench.expect_end(run, RunStatus::Completed, None);
    let jobs = bench.jobs(run);
    assert_eq!(jobs.iter().map(|job| (job.attempt, job.submission)).collect::<Vec<_>>(), [(1, 1), (2, 1)]);
    assert_eq!(bench.money(run, 1), (PRICE, Credits::ZERO, PRICE));
    assert_eq!(bench.money(run, 2), (PRICE, Credits(1), PRICE - Credits(1)));
    bench.check();
    let refused = bench.act(run, Action::Retry { force: false }).unwrap_err();
    assert!(matches!(refused.refused(), Some(Refused::NotFrom { .. })), "what completed is not retried: {refused:?}");
}

#[test]
fn errors_open_new_attempts_up_to_the_policy() {
    let mut bench = Bench::new();
    bench.runners.plan = Some(Plan::Exit(9));
    let run = bench.submit(on(&[RetryEvent::Error], 3));
    bench.settle();
    assert_eq!(bench.run(run).status, RunStatus::Retrying, "not at once");
    bench.advance(SECOND);
    bench.expect_end(run, RunStatus::Failed, Some("exited_with_error"));
    assert_eq!(bench.jobs(run).iter().map(|job| job.attempt).collect::<Vec<_>>(), [1, 2, 3]);
    assert_eq!(bench.runners.executions(run), 3);
    for attempt in 1..=3 {
        assert_eq!(bench.money(run, attempt).0, PRICE);
    }
    assert!(bench.act(run, Action::Retry { force: false }).is_err(), "all attempts are used");
    bench.check();
}

/// 100 ms × 2ⁿ, at most 30 s, ±10 %; and the same run waits the same time however often the decision is made.
#[test]
fn attempts_after_an_error_wait_longer_each_time() {
    let mut bench = Bench::new();
    bench.runners.plan = Some(Plan::Exit(9));
    let run = bench.submit(on(&[RetryEvent::Error], 12));
    bench.advance(5 * MINUTE);
    bench.expect_end(run, RunStatus::Failed, Some("exited_with_error"));
    let jobs = bench.jobs(run);
    let waited: Vec<i64> = jobs.windows(2).map(|pair| pair[1].submitted_at.since(pair[0].ended_at.unwrap())).collect();
    assert_eq!(waited.len(), 11);
    for (n, waited) in waited.iter().enumerate() {
        let usual = (100 << n).min(30_000);
        assert!((usual * 9 / 10..=(usual * 11 / 10).min(30_000)).contains(waited), "{n}: {waited} ms");
    }
    assert!(waited.iter().any(|ms| ms % 100 != 0), "with jitter: {waited:?}");
    bench.check();
}

#[test]
fn a_policy_may_say_how_long_to_wait() {
    for delay_ms in [0, 7 * SECOND] {
        let mut bench = Bench::new();
        bench.runners.plan = Some(Plan::Exit(9));
        let mut spec = on(&[RetryEvent::Error], 3);
        spec.retry.as_mut().unwrap().delay_ms = Some(delay_ms);
        let run = bench.submit(spec);
        bench.advance(MINUTE);
        bench.expect_end(run, RunStatus::Failed, Some("exited_with_error"));
        assert_eq!(pauses(&bench, run), [delay_ms / SECOND; 2]);
        bench.check();
    }
}

/// A person who asks has looked already.
#[test]
fn a_person_does_not_wait_for_a_retry() {
    let mut bench = Bench::new();
    bench.runners.plan = Some(Plan::Exit(9));
    let run = bench.submit(spec());
    bench.settle();
    bench.act(run, Action::Retry { force: false }).unwrap();
    bench.settle();
    assert_eq!(bench.runners.executions(run), 2);
    bench.check();
}

#[test]
fn a_retry_that_cannot_be_paid_leaves_the_run_failed() {
    let mut bench = Bench::new();
    bench.runners.plan = Some(Plan::Exit(9));
    let run = bench.submit(spec());
    bench.settle();
    // Another run holds all that is left.
    let rest = bench.balance().available;
    let hold = rest - PRICE + Credits(1);
    let org = bench.org;
    now(bench.store.write(store::Lane::Normal, "test.hold", move |tx| {
        tx.ledger(store::Entry::new(org, store::EntryKind::Charge, hold, "spent").from_available());
        Ok(())
    }))
    .unwrap();
    let before = bench.events(run);
    let refused = bench.act(run, Action::Retry { force: false }).unwrap_err();
    assert!(matches!(refused.refused(), Some(Refused::Unaffordable { .. })), "{refused:?}");
    bench.expect_end(run, RunStatus::Failed, Some("exited_with_error"));
    assert_eq!(bench.events(run), before, "nothing was written");
    bench.check();
}

/// The refund of the failed attempt pays for the next one, although both are written in the same transaction.
#[test]
fn what_an_attempt_gives_back_pays_for_the_next() {
    let mut bench = Bench::new();
    let (org, rest) = (bench.org, bench.balance().available - PRICE - Credits(5));
    now(bench.store.write(store::Lane::Normal, "test.spend", move |tx| {
        tx.ledger(store::Entry::new(org, store::EntryKind::Charge, rest, "spent").from_available());
        Ok(())
    }))
    .unwrap();
    bench.runners.plan = Some(Plan::Exit(9));
    let run = bench.submit(on(&[RetryEvent::Error], 2));
    bench.advance(SECOND);
    assert_eq!(bench.runners.executions(run), 2);
    bench.check();
}

#[test]
fn interruptions_resubmit_in_the_same_attempt_after_growing_pauses() {
    let mut bench = Bench::new();
    bench.runners.plan = Some(Plan::Run);
    let run = bench.submit(on(&[RetryEvent::Interruption], 7));
    for _ in 0..6 {
        bench.settle();
        bench.say(run, ended(JobReason::Interrupted, None, 0, 0));
        assert_eq!(bench.run(run).status, RunStatus::Retrying);
        bench.check();
        bench.advance(10 * MINUTE + SECOND);
    }
    bench.exits(run, 0);
    bench.expect_end(run, RunStatus::Completed, None);
    assert_eq!(pauses(&bench, run), [15, 30, 60, 120, 300, 600]);
    assert!(bench.jobs(run).iter().all(|job| job.attempt == 1));
    assert_eq!(bench.jobs(run).iter().map(|job| job.submission).collect::<Vec<_>>(), [1, 2, 3, 4, 5, 6, 7]);
    bench.check();
}

#[test]
fn without_a_policy_nothing_is_repeated_once_the_command_may_have_started() {
    let mut bench = Bench::new();
    bench.runners.plan = Some(Plan::Run);
    let run = bench.submit(spec());
    bench.settle();
    bench.say(run, ended(JobReason::Interrupted, None, 0, 0));
    bench.expect_end(run, RunStatus::Failed, Some("interrupted"));
    bench.check();
}

#[test]
fn a_machine_that_never_takes_the_job_is_given_up_three_times() {
    let mut bench = Bench::new();
    bench.runners.unborn = true;
    let run = bench.submit(spec());
    bench.advance(11 * MINUTE + 30 * SECOND);
    assert_eq!(bench.run(run).status, RunStatus::Running, "the second submission");
    assert_eq!(bench.jobs(run).len(), 2);
    bench.check();
    bench.advance(25 * MINUTE);
    bench.expect_end(run, RunStatus::Failed, Some("boot_limit"));
    assert_eq!(bench.jobs(run).len(), 3);
    assert_eq!(bench.money(run, 1), (PRICE, Credits::ZERO, PRICE));
    bench.check();
    bench.check_all_gone();
}

#[test]
fn files_that_never_come_are_given_up_three_times() {
    let mut bench = Bench::new();
    bench.runners.plan = Some(Plan::Pull);
    let run = bench.submit(spec());
    bench.advance(40 * MINUTE);
    bench.expect_end(run, RunStatus::Failed, Some("sync_limit"));
    assert_eq!(bench.jobs(run).len(), 3);
    assert_eq!(pauses(&bench, run), [15, 30]);
    bench.check();
    bench.check_all_gone();
}

/// A silent machine may have begun the command meanwhile: its replacement waits until the provider says that it is gone.
#[test]
fn a_replacement_waits_until_the_old_machine_is_surely_gone() {
    let mut bench = Bench::new();
    bench.runners.plan = Some(Plan::Pull);
    let retry = model::spec::Retry {
        max_attempts: 3,
        on_events: vec![model::spec::RetryEvent::NoCapacity],
        duration_ms: None,
        delay_ms: None,
    };
    let run = bench.submit(model::spec::RunSpec { retry: Some(retry), ..spec() });
    bench.settle();
    bench.cut_off(run);
    bench.fate(|call, _, _| match call {
        adapters::fake::Call::Terminate => adapters::fake::Fate::FailBefore(model::TroubleKind::Network),
        _ => adapters::fake::Fate::Obey,
    });
    bench.runners.plan = Some(Plan::Run);
    bench.advance(15 * MINUTE);
    assert_eq!(bench.run(run).status, RunStatus::Retrying, "fenced, and its machine is still there");
    assert_eq!(bench.jobs(run).len(), 1);
    let (_, why) = now(bench.engine.why(bench.org, run)).unwrap();
    assert!(why.summary.contains("surely gone"), "{}", why.summary);
    bench.check();
    bench.fate(|_, _, _| adapters::fake::Fate::Obey);
    bench.advance(2 * MINUTE);
    assert_eq!(bench.jobs(run).len(), 2);
    assert_eq!(bench.run(run).phase, Some(Phase::Running));
    bench.exits(run, 0);
    bench.expect_end(run, RunStatus::Completed, None);
    bench.check();
}

/// Without a policy nothing is repeated that may have begun unheard.
#[test]
fn a_job_whose_machine_took_it_and_fell_silent_is_not_repeated() {
    let mut bench = Bench::new();
    bench.runners.plan = Some(Plan::Pull);
    let run = bench.submit(spec());
    bench.settle();
    bench.cut_off(run);
    bench.advance(15 * MINUTE);
    bench.expect_end(run, RunStatus::Failed, Some("sync_limit"));
    assert_eq!(bench.jobs(run).len(), 1);
    bench.check();
}

/// Told of it by a process that is gone, before the clock was set back: whatever the times say, it may have begun.
#[test]
fn a_job_that_an_earlier_process_gave_out_is_not_repeated() {
    for set_back_ms in [0, HOUR] {
        let mut bench = Bench::new();
        bench.runners.plan = Some(Plan::Ignore);
        let run = bench.submit(spec());
        bench.settle();
        let name = bench.name_of(run);
        bench.outage(-set_back_ms);
        bench.provider.destroy(&name);
        bench.advance(2 * HOUR);
        bench.expect_end(run, RunStatus::Failed, Some("instance_lost"));
        assert_eq!(bench.jobs(run).len(), 1, "set back by {set_back_ms}");
        bench.check();
    }
}

/// A person who knows better need not wait.
#[test]
fn a_person_may_say_that_a_silent_machine_is_gone() {
    let mut bench = Bench::new();
    bench.runners.plan = Some(Plan::Run);
    let run = bench.submit(spec());
    bench.settle();
    bench.cut_off(run);
    bench.advance(3 * MINUTE);
    assert!(bench.act(run, Action::Retry { force: false }).is_err(), "it is still running, as far as anybody knows");
    bench.act(run, Action::Retry { force: true }).unwrap();
    bench.settle();
    let jobs = bench.jobs(run);
    assert_eq!(
        jobs.iter().map(|job| (job.attempt, job.reason)).collect::<Vec<_>>()[0],
        (1, Some(JobReason::InstanceLost))
    );
    assert_eq!((jobs[1].attempt, bench.run(run).phase), (2, Some(Phase::Running)));
    bench.exits(run, 0);
    bench.expect_end(run, RunStatus::Completed, None);
    bench.check();
}
