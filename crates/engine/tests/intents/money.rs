//! Reserved ahead, charged by the window, given back: every movement with its key, never more than was set aside.

use crate::bench::{Bench, PRICE, now, settings, spec};
use crate::machines::ended;
use engine::run::Submission;
use engine::runner::What;
use model::job::JobReason;
use model::run::{Phase, RunStatus};
use model::spec::{Retry, RetryEvent, RunSpec};
use model::time::{HOUR, MINUTE, SECOND};
use model::{Credits, Refused, RunId};
use store::{Entry, EntryKind, Lane};

const SECOND_COSTS: i64 = 10_000;

pub fn spend_all_but(bench: &Bench, left: Credits) {
    let (org, amount) = (bench.org, bench.balance().available - left);
    now(bench.store.write(Lane::Normal, "test.spend", move |tx| {
        tx.ledger(Entry::new(org, EntryKind::Charge, amount, "spent").from_available());
        Ok(())
    }))
    .unwrap();
}

#[test]
fn what_a_start_reserves() {
    let table = [
        (None, None, PRICE),
        (Some(30 * MINUTE), None, Credits(1800 * SECOND_COSTS)),
        (Some(5 * HOUR), None, PRICE),
        (None, Some(Credits(7)), Credits(7)),
        (Some(1), None, Credits(10)),
    ];
    for (max_duration_ms, budget, reserved) in table {
        let mut bench = Bench::new();
        let run = bench.submit(RunSpec { max_duration_ms, budget, ..spec() });
        assert_eq!(bench.money(run, 1).0, reserved, "{max_duration_ms:?} {budget:?}");
        assert_eq!(bench.balance().reserved, reserved);
    }
}

#[test]
fn every_window_is_charged_under_its_own_key() {
    let mut bench = Bench::new();
    let run = bench.running(spec());
    bench.advance(3 * MINUTE + 20 * SECOND);
    bench.exits(run, 0);
    let job = bench.job(run).id;
    let rows = now(bench.engine.ledger_of_run(bench.org, run, 0, 100)).unwrap();
    let charges: Vec<(String, i64)> = rows
        .iter()
        .filter(|row| row.entry.kind == EntryKind::Charge)
        .map(|row| (row.entry.key.clone(), row.entry.amount.micro() / SECOND_COSTS))
        .collect();
    let key = |window: i64| format!("{run}:1:{job}:{window}");
    assert_eq!(charges, [(key(1), 60), (key(2), 60), (key(3), 60), (key(4), 20)]);
    bench.check();
}

#[test]
fn the_reservation_follows_the_run_an_hour_ahead() {
    let mut bench = Bench::new();
    let run = bench.running(spec());
    for _ in 0..5 {
        bench.advance(HOUR);
        let (reserved, charged, _) = bench.money(run, 1);
        let left = reserved - charged;
        assert!(left.micro() * 2 >= PRICE.micro() && left <= PRICE, "{left}");
        bench.check();
    }
    bench.exits(run, 0);
    assert_eq!(bench.money(run, 1).1, Credits(5 * 3600 * SECOND_COSTS));
    bench.check();
}

/// Top-ups of a second submission are other movements than those of the first.
#[test]
fn what_travels_after_the_command_has_ended_is_not_charged() {
    // (how long ago the machine says it ended, seconds that are charged of twenty)
    for (ended_ago_ms, charged) in [(0, 20), (15 * SECOND, 5), (HOUR, 0)] {
        let mut bench = Bench::new();
        let run = bench.running(spec());
        bench.advance(20 * SECOND);
        let mut end = ended(JobReason::DoneByRunner, Some(0), 0, 1);
        if let What::Ended { ended_ago_ms: ago, .. } = &mut end {
            *ago = ended_ago_ms;
        }
        bench.say(run, end);
        bench.expect_end(run, RunStatus::Completed, None);
        let least = Credits((charged * SECOND_COSTS).max(1));
        assert_eq!(bench.money(run, 1).1, least, "it ended {ended_ago_ms} ms before the report");
    }
}

#[test]
fn a_resubmitted_job_is_topped_up_like_the_first() {
    let mut bench = Bench::new();
    let retry = Retry { max_attempts: 3, on_events: vec![RetryEvent::Interruption], duration_ms: None, delay_ms: None };
    let run = bench.running(RunSpec { retry: Some(retry), ..spec() });
    for _ in 0..2 {
        bench.advance(100 * MINUTE);
        bench.say(run, ended(JobReason::Interrupted, None, 0, 0));
        bench.advance(MINUTE);
        assert_eq!(bench.run(run).phase, Some(Phase::Running));
    }
    bench.advance(100 * MINUTE);
    bench.exits(run, 0);
    bench.expect_end(run, RunStatus::Completed, None);
    bench.check();
}

#[test]
fn a_budget_that_is_used_up_stops_the_run_gracefully() {
    let mut bench = Bench::new();
    let budget = Credits(10 * 60 * SECOND_COSTS);
    let run = bench.running(RunSpec { budget: Some(budget), ..spec() });
    bench.advance(9 * MINUTE + 30 * SECOND);
    assert_eq!(bench.run(run).phase, Some(Phase::Running));
    bench.advance(MINUTE);
    bench.expect_end(run, RunStatus::Failed, Some("budget"));
    assert_eq!(bench.job(run).reason, Some(JobReason::Budget));
    assert_eq!(bench.money(run, 1), (budget, budget, Credits::ZERO));
    assert!(bench.events(run).contains(&"run.out_of_credits".to_owned()));
    bench.check();
}

#[test]
fn an_org_that_runs_dry_stops_its_runs_when_the_reservation_ends() {
    let mut bench = Bench::new();
    let run = bench.running(spec());
    spend_all_but(&bench, Credits(60 * SECOND_COSTS));
    bench.advance(HOUR - MINUTE);
    assert_eq!(bench.run(run).phase, Some(Phase::Running), "what was set aside is its own");
    bench.advance(3 * MINUTE);
    bench.expect_end(run, RunStatus::Failed, Some("budget"));
    let (reserved, charged, refunded) = bench.money(run, 1);
    assert_eq!((reserved, charged + refunded), (PRICE + Credits(60 * SECOND_COSTS), reserved));
    assert!(charged >= PRICE);
    bench.check();
}

#[test]
fn without_credits_nothing_is_written() {
    let mut bench = Bench::new();
    spend_all_but(&bench, PRICE - Credits(1));
    for start in [true, false] {
        let key = bench.key();
        let submission =
            Submission { org: bench.org, by: None, name: None, spec: spec(), plans: Default::default(), start };
        let refused =
            now(bench.engine.submit(submission, Some(key), crate::bench::shown())).expect_err("it cannot be paid");
        let expected = Refused::Unaffordable { needed: PRICE, available: PRICE - Credits(1) };
        assert_eq!(refused.refused(), Some(&expected));
    }
    let runs = now(bench.engine.list_runs(bench.org, engine::view::Which::All, i64::MAX, 10)).unwrap();
    assert!(runs.is_empty());
    assert!(bench.provider.machines().is_empty());
    bench.check();
    let cheaper = bench.submit(RunSpec { budget: Some(Credits(5)), ..spec() });
    bench.settle();
    bench.expect_end(cheaper, RunStatus::Completed, None);
}

#[test]
fn a_created_run_reserves_only_when_it_starts() {
    let mut bench = Bench::new();
    let submission =
        Submission { org: bench.org, by: None, name: None, spec: spec(), plans: Default::default(), start: false };
    let answer = now(bench.engine.submit(submission, None, crate::bench::shown())).unwrap();
    let run: RunId = String::from_utf8(answer.body).unwrap().parse().unwrap();
    bench.settle();
    assert_eq!((bench.run(run).status, bench.balance().reserved), (RunStatus::Created, Credits::ZERO));
    spend_all_but(&bench, Credits(1));
    let refused = bench.act(run, engine::run::Action::Start).unwrap_err();
    assert!(matches!(refused.refused(), Some(Refused::Unaffordable { .. })));
    assert_eq!(bench.run(run).status, RunStatus::Created, "402 leaves it as it was");
    bench.check();
}

fn warnings(bench: &Bench, run: RunId) -> usize {
    bench.events(run).iter().filter(|kind| *kind == "run.low_credits").count()
}

fn facts(bench: &Bench, run: RunId) -> String {
    let (_, why) = now(bench.engine.why(bench.org, run)).unwrap();
    format!("{} | {}", why.facts.join("; "), why.next.join("; "))
}

#[test]
fn low_credits_are_told_long_before_they_are_used_up() {
    let mut bench = Bench::new();
    let run = bench.running(spec());
    spend_all_but(&bench, Credits(60 * SECOND_COSTS));
    bench.advance(29 * MINUTE);
    assert_eq!((warnings(&bench, run), bench.run(run).credits_end_at), (0, None), "half of it is left");
    bench.advance(3 * MINUTE);
    assert_eq!(warnings(&bench, run), 1, "the top-up was refused");
    assert!(facts(&bench, run).contains("no more are available"), "{}", facts(&bench, run));
    bench.advance(10 * MINUTE);
    assert_eq!(warnings(&bench, run), 1, "once is enough");
    let ends = bench.run(run).credits_end_at.unwrap();
    bench.advance(ends.since(bench.at()) - SECOND);
    assert_eq!(bench.run(run).termination, None, "what was set aside is its own");
    bench.advance(2 * SECOND);
    assert_eq!(bench.run(run).termination.map(|t| t.reason), Some(model::run::RunReason::Budget));
    bench.advance(MINUTE);
    bench.expect_end(run, RunStatus::Failed, Some("budget"));
    bench.check();
}

#[test]
fn credits_that_come_in_time_let_the_run_go_on() {
    let mut bench = Bench::new();
    let run = bench.running(spec());
    spend_all_but(&bench, Credits::ZERO);
    bench.advance(40 * MINUTE);
    assert_eq!(warnings(&bench, run), 1);
    let shown = std::sync::Arc::new(|org: &store::org::Org| org.id.to_string().into_bytes());
    now(bench.engine.add_credits(bench.org, PRICE, "more".to_owned(), None, shown)).unwrap();
    bench.advance(MINUTE);
    assert_eq!(bench.run(run).credits_end_at, None);
    assert!(!facts(&bench, run).contains("credits"), "{}", facts(&bench, run));
    bench.advance(HOUR);
    assert_eq!(bench.run(run).phase, Some(Phase::Running));
    assert_eq!(warnings(&bench, run), 2, "and runs low again");
    bench.exits(run, 0);
    bench.check();
}

/// Time of machines uses up a budget as calls of models do.
#[test]
fn four_fifths_of_a_budget_are_told_once_whatever_they_were_spent_on() {
    let mut bench = Bench::new();
    let retry = Some(Retry { max_attempts: 2, on_events: vec![RetryEvent::Error], duration_ms: None, delay_ms: None });
    let run = bench.running(RunSpec { budget: Some(Credits(10 * 60 * SECOND_COSTS)), retry, ..spec() });
    let told = |bench: &Bench| bench.events(run).iter().filter(|kind| *kind == "run.budget_warning").count();
    bench.advance(4 * MINUTE);
    bench.exits(run, 1);
    bench.settle();
    bench.advance(3 * MINUTE + 30 * SECOND);
    assert_eq!((bench.run(run).attempt, told(&bench)), (2, 0), "seven of ten minutes, in two attempts");
    bench.advance(MINUTE);
    assert_eq!(told(&bench), 1);
    bench.exits(run, 0);
    bench.expect_end(run, RunStatus::Completed, None);
    assert_eq!(told(&bench), 1, "once");
    bench.check();
}

/// Its deadline ends it, not its money: there is nothing to warn of.
#[test]
fn a_run_whose_whole_time_is_paid_is_not_warned() {
    let mut bench = Bench::new();
    let run = bench.running(RunSpec { max_duration_ms: Some(50 * MINUTE), ..spec() });
    spend_all_but(&bench, Credits::ZERO);
    bench.advance(48 * MINUTE);
    assert_eq!((warnings(&bench, run), bench.money(run, 1).0), (0, Credits(50 * 60 * SECOND_COSTS)));
    bench.exits(run, 0);
    bench.expect_end(run, RunStatus::Completed, None);
    bench.check();
}

#[test]
fn a_budget_is_the_whole_runs_however_often_it_is_tried() {
    let mut bench = Bench::new();
    let retry = Some(Retry { max_attempts: 3, on_events: vec![RetryEvent::Error], duration_ms: None, delay_ms: None });
    let budget = Some(Credits(10 * 60 * SECOND_COSTS));
    let run = bench.running(RunSpec { budget, retry, ..spec() });
    bench.advance(4 * MINUTE);
    bench.exits(run, 1);
    bench.settle();
    assert_eq!(bench.run(run).attempt, 2);
    assert_eq!(bench.money(run, 2).0, Credits(6 * 60 * SECOND_COSTS), "what the first attempt left of it");
    bench.advance(2 * MINUTE);
    assert!(facts(&bench, run).contains("its budget of 6 credits ends in"), "{}", facts(&bench, run));
    bench.advance(5 * MINUTE);
    bench.expect_end(run, RunStatus::Failed, Some("budget"));
    let refused = bench.act(run, engine::run::Action::Retry { force: false }).unwrap_err();
    assert!(matches!(refused.refused(), Some(Refused::BudgetSpent { .. })), "{refused:?}");
    assert_eq!(bench.run(run).status, RunStatus::Failed, "402 leaves it as it was");
    let charged: Credits = [1, 2].iter().map(|attempt| bench.money(run, *attempt).1).sum();
    assert_eq!(Some(charged), budget);
    bench.check();
}

#[test]
fn a_policy_does_not_retry_beyond_the_budget() {
    let mut bench = Bench::new();
    let retry = Some(Retry { max_attempts: 3, on_events: vec![RetryEvent::Error], duration_ms: None, delay_ms: None });
    let budget = Some(Credits(60 * SECOND_COSTS));
    let run = bench.running(RunSpec { budget, retry, max_duration_ms: Some(MINUTE), ..spec() });
    bench.advance(MINUTE);
    bench.exits(run, 1);
    bench.expect_end(run, RunStatus::Failed, Some("exited_with_error"));
    assert_eq!(bench.run(run).attempt, 1);
    assert!(bench.events(run).contains(&"run.retry_unaffordable".to_owned()));
    bench.check();
}

/// R72, R153: an org that is nearly out of credits repeats nothing by itself, though it could pay for it.
#[test]
fn a_policy_does_not_retry_below_the_floor_of_credits() {
    for (floor, attempts) in [(10, 1), (8, 2)] {
        let mut config = engine::Config::default();
        config.money.first_topup = Credits::whole(9);
        config.limits.min_credits_to_retry = floor;
        let mut bench = Bench::with(settings(4), config);
        let on_events = vec![RetryEvent::Error];
        let retry = Some(Retry { max_attempts: 3, on_events, duration_ms: None, delay_ms: None });
        let run = bench.running(RunSpec { retry, max_duration_ms: Some(MINUTE), ..spec() });
        bench.exits(run, 1);
        bench.settle();
        assert_eq!(bench.run(run).attempt, attempts, "with a floor of {floor}");
        let told = bench.events(run).contains(&"run.retry_unaffordable".to_owned());
        assert_eq!(told, attempts == 1);
        bench.check();
    }
}
