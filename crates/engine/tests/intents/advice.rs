//! What a person is told after an end: the reason by name, and only advice that will work.

use crate::bench::{Bench, now, shown, spec};
use crate::money::spend_all_but;
use engine::run::{Action, Submission};
use engine::why::Why;
use model::run::RunStatus;
use model::spec::RunSpec;
use model::time::{HOUR, MINUTE};
use model::{Credits, RunId};

const SECOND_COSTS: i64 = 10_000;

fn why(bench: &Bench, run: RunId) -> Why {
    now(bench.engine.why(bench.org, run)).unwrap().1
}

#[test]
fn a_budget_that_is_used_up_is_answered_with_a_larger_one() {
    let mut bench = Bench::new();
    let budget = Credits(10 * 60 * SECOND_COSTS);
    let run = bench.running(RunSpec { budget: Some(budget), ..spec() });
    bench.advance(11 * MINUTE);
    bench.expect_end(run, RunStatus::Failed, Some("budget"));
    let why = why(&bench, run);
    assert_eq!(why.summary, format!("its budget of {budget} credits is used up: it cost {budget}"));
    assert!(why.next[0].contains(&format!("submit it again with --budget above {budget}")), "{:?}", why.next);
    // What is refused is not advised.
    assert!(bench.act(run, Action::Retry { force: false }).is_err());
    assert!(!why.next.iter().any(|next| next.contains("repl retry") || next.contains("credits add")), "{:?}", why.next);
}

#[test]
fn a_run_that_was_never_started_is_answered_with_the_command_that_starts_it() {
    let mut bench = Bench::new();
    let submission =
        Submission { org: bench.org, by: None, name: None, spec: spec(), plans: Default::default(), start: false };
    let answer = now(bench.engine.submit(submission, None, shown())).unwrap();
    let run: RunId = String::from_utf8(answer.body).unwrap().parse().unwrap();
    bench.settle();
    let created = why(&bench, run);
    assert_eq!(created.summary, "it was created and never started");
    assert_eq!(created.next, [format!("start it: repl start {run}")]);
    // What is advised is accepted.
    bench.act(run, Action::Start).unwrap();
    bench.settle();
    bench.expect_end(run, RunStatus::Completed, None);
}

#[test]
fn an_org_without_credits_is_answered_with_more_of_them() {
    let mut bench = Bench::new();
    // A budget that was never met does not matter here.
    let run = bench.running(RunSpec { budget: Some(Credits(i64::MAX / 4)), ..spec() });
    spend_all_but(&bench, Credits::ZERO);
    bench.advance(HOUR + 3 * MINUTE);
    bench.expect_end(run, RunStatus::Failed, Some("budget"));
    let why = why(&bench, run);
    assert!(why.summary.contains("the organisation had no more credits"), "{}", why.summary);
    let next = why.next.join("\n");
    assert!(next.contains("repl credits add") && next.contains(&format!("repl retry {run}")), "{next}");
    assert!(!next.contains("--budget"), "{next}");
}

#[test]
fn a_machine_that_was_ended_by_force_is_told_with_who_did_it() {
    let mut bench = Bench::new();
    let run = bench.running(spec());
    let job = bench.job(run);
    let machine = job.instance.unwrap();
    bench.terminate(machine, true).unwrap();
    let by = format!("a test terminated {machine}, on which {} ran, with --force", job.id);
    assert_eq!(bench.run(run).ended_by.as_ref(), Some(&by));
    bench.settle();
    bench.expect_end(run, RunStatus::Cancelled, None);
    let why = why(&bench, run);
    assert_eq!(why.summary, format!("it was cancelled with its machine: {by}"));
    assert!(why.next.iter().any(|next| next.contains("submit it again")), "{:?}", why.next);
}

#[test]
fn who_ends_a_machine_after_a_cancel_did_not_end_the_run() {
    let mut bench = Bench::new();
    let run = bench.running(spec());
    let machine = bench.job(run).instance.unwrap();
    bench.cancel(run);
    bench.terminate(machine, true).unwrap();
    bench.settle();
    bench.expect_end(run, RunStatus::Cancelled, None);
    assert_eq!((bench.run(run).ended_by, why(&bench, run).summary), (None, "it was cancelled".to_owned()));
}
