//! What was used, in sums: each grouping adds up to the total, and the total is what the ledger has charged.

use crate::agents::{agent, agents_spec, check, step, submit, task};
use crate::bench::{Bench, now, spec};
use crate::dialogues;
use crate::holds::cloud;
use crate::machines::Plan;
use adapters::ToolUsage;
use adapters::tool::fake::Fate;
use engine::run::Plans;
use engine::usage::{Groups, RunUsage};
use model::recovery::ErrorClass;
use model::run::RunStatus;
use model::spec::RunSpec;
use model::time::{DAY, HOUR, MINUTE};
use model::usage::{Usage, UsageBy};
use model::{Credits, Effect, OrgId, RunId, StepId, Timestamp};
use store::{Entry, EntryKind, Lane};

/// Each turn uses so many tokens; those of the second are only estimated.
fn count_tokens(bench: &Bench, input_tokens: i64) {
    bench.tool.decide_by(Box::new(move |call, _| match dialogues::turn(call) {
        None => dialogues::talks(call),
        Some(turn) => dialogues::talks(call).using(ToolUsage {
            of: "default/small".into(),
            input_tokens,
            output_tokens: 10,
            estimated: turn == 2,
        }),
    }));
}

fn charged(bench: &Bench, run: Option<RunId>) -> Credits {
    let rows = now(bench.engine.ledger(bench.org, 0, 10_000)).unwrap();
    let ours = rows.iter().filter(|row| row.entry.kind == EntryKind::Charge);
    ours.filter(|row| run.is_none() || row.entry.run == run).map(|row| row.entry.amount).sum()
}

fn of_run(bench: &Bench, run: RunId, after: StepId, limit: i64) -> RunUsage {
    now(bench.engine.run_usage(bench.org, run, after, limit)).unwrap()
}

fn sum(groups: &Groups) -> Usage {
    let shown: Usage = groups.shown.iter().map(|(_, usage)| *usage).sum();
    [shown, groups.others.unwrap_or_default()].into_iter().sum()
}

/// Every grouping of the run and of the org, against the ledger.
#[track_caller]
fn adds_up(bench: &Bench, runs: &[RunId]) {
    for run in runs {
        let usage = of_run(bench, *run, StepId(0), 1_000);
        assert_eq!(usage.total.charged, charged(bench, Some(*run)), "{run}");
        for groups in [&usage.agents, &usage.models, &usage.providers] {
            assert_eq!(sum(groups), usage.total, "{run}");
        }
        let steps: Usage = usage.steps.iter().map(|step| step.usage).chain([usage.beside_steps]).sum();
        assert_eq!(steps, usage.total, "{run}");
    }
    for by in UsageBy::ALL {
        let usage = now(bench.engine.org_usage(bench.org, Timestamp(0), bench.at(), *by)).unwrap();
        assert_eq!(usage.total.charged, charged(bench, None), "by {by}");
        assert_eq!(sum(&usage.groups), usage.total, "by {by}");
    }
}

#[test]
fn every_grouping_adds_up_to_what_the_ledger_has_charged() {
    let mut bench = cloud(2);
    count_tokens(&bench, 1_000);
    let talked = dialogues::begin(&mut bench);
    bench.settle();
    assert_eq!(bench.run(talked).status, RunStatus::Completed);
    // Machine time, a hold and idle time; more than one hour and day.
    bench.runners.plan = Some(Plan::Run);
    let held = bench.submit(RunSpec { hold_ms: Some(2 * MINUTE), ..spec() });
    bench.settle();
    bench.advance(3 * MINUTE);
    bench.exits(held, 0);
    bench.advance(26 * HOUR);
    let free = submit(
        &mut bench,
        agents_spec(),
        Plans { agents: vec![agent("f", vec![task("t", vec![step("s")])])], ..Plans::default() },
    );
    bench.settle();
    adds_up(&bench, &[talked, held, free]);
    let usage = of_run(&bench, talked, StepId(0), 10);
    let rows = now(bench.engine.ledger(bench.org, 0, 10_000)).unwrap();
    let memo = format!("llm default/small, prices {}", usage.prices);
    assert_eq!(rows.iter().filter(|row| row.entry.memo == memo).count(), 3, "each charge names its prices: {memo}");
    let models: Vec<(&str, i64, i64, i64, i64)> = usage
        .models
        .shown
        .iter()
        .map(|(name, it)| (name.as_str(), it.input_tokens, it.turns, it.calls, it.estimated))
        .collect();
    assert_eq!(models, [("default/small", 3_000, 3, 2, 1)]);
    assert_eq!(usage.providers.shown[0].0, "llm.default");
    let of_step: Vec<String> = usage.steps.iter().map(|it| it.step.as_ref().unwrap().name.clone()).collect();
    assert_eq!(of_step, ["talk"], "the turns are counted under their step");
    let machine = of_run(&bench, held, StepId(0), 10);
    assert!(machine.total.machine_ms > 0 && machine.beside_steps == machine.total, "{machine:?}");
    assert_eq!(of_run(&bench, free, StepId(0), 10).total.charged, Credits(1), "the least that a run costs");
    let days = now(bench.engine.org_usage(bench.org, Timestamp(0), bench.at(), UsageBy::Day)).unwrap();
    assert!(days.groups.shown.len() >= 2, "{days:?}");
    let last = now(bench.engine.org_usage(bench.org, bench.at() - HOUR, bench.at(), UsageBy::Run)).unwrap();
    assert_eq!(last.total.charged, Credits(1), "only what lies within the span");
    check(&bench);
}

#[test]
fn what_could_not_be_collected_is_in_no_sum() {
    let mut bench = Bench::new();
    // Far more than was set aside: the rest of what the turns cost is on us.
    count_tokens(&bench, 4_000_000);
    let run = dialogues::begin(&mut bench);
    bench.settle();
    adds_up(&bench, &[run]);
    let attempt = bench.snapshot(run).attempt.unwrap();
    assert!(attempt.uncollected > Credits::ZERO, "{attempt:?}");
    let used = crate::agents::found(&bench, run, "talk/t1").usage.unwrap();
    assert_eq!(used.input_tokens, 4_000_000);
    assert!(used.charged <= attempt.charged, "{used:?} {attempt:?}");
    check(&bench);
}

#[test]
fn a_span_shows_the_dearest_and_sums_the_others_and_steps_come_in_pages() {
    let bench = Bench::new();
    let (org, run) = (bench.org, bench_run(&bench));
    now(bench.store.write(Lane::Normal, "test.spend", move |tx| {
        for n in 1..=250_i64 {
            let usage = Usage { charged: Credits(n), turns: 1, ..Usage::default() };
            let spent = store::usage::Spent {
                run: Some(run),
                subject: n,
                agent: format!("a{n}"),
                usage,
                ..store::usage::Spent::of(org)
            };
            store::usage::add(tx, &spent)?;
            tx.ledger(Entry::new(org, EntryKind::Charge, Credits(n), format!("k{n}")).from_available());
        }
        Ok(())
    }))
    .unwrap();
    let usage = now(bench.engine.org_usage(org, bench.at() - DAY, bench.at(), UsageBy::Agent)).unwrap();
    assert_eq!((usage.groups.shown.len(), usage.groups.shown[0].0.as_str()), (200, "a250"));
    let others = usage.groups.others.unwrap();
    assert_eq!((others.turns, others.charged), (50, Credits((1..=50).sum())));
    assert_eq!(sum(&usage.groups).charged, charged(&bench, None));
    let (mut seen, mut after) = (0, StepId(0));
    loop {
        let page = of_run(&bench, run, after, 100);
        assert_eq!(page.total.turns, 250, "the sums are of the whole run");
        seen += page.steps.len();
        let Some(last) = page.steps.last() else { break };
        after = last.id;
    }
    assert_eq!(seen, 250);
    let stranger = now(bench.engine.run_usage(OrgId(org.0 + 1), run, StepId(0), 10));
    assert!(stranger.is_err(), "another org's run does not exist");
}

fn bench_run(bench: &Bench) -> RunId {
    let submission = engine::run::Submission {
        org: bench.org,
        by: None,
        name: None,
        spec: spec(),
        plans: Plans::default(),
        start: false,
    };
    let answer = now(bench.engine.submit(submission, None, crate::bench::shown())).unwrap();
    String::from_utf8(answer.body).unwrap().parse().unwrap()
}

/// A model that was asked was asked, whether its caller died, or was told to stop before the answer came.
#[test]
fn a_turn_that_nobody_has_the_answer_of_pays_what_it_asked_once() {
    for stops in [false, true] {
        let mut bench = Bench::new();
        let mut begun = 0;
        bench.tool.decide_by(Box::new(move |call, _| {
            begun += 1;
            if begun == 1 { Fate::hang().saying("nine byte") } else { dialogues::talks(call) }
        }));
        let run = dialogues::begin(&mut bench);
        bench.settle();
        if stops {
            bench.cancel(run);
        } else {
            bench.restart();
        }
        bench.advance(MINUTE);
        let status = if stops { RunStatus::Cancelled } else { RunStatus::Completed };
        assert_eq!(bench.run(run).status, status);
        let usage = of_run(&bench, run, StepId(0), 10).total;
        assert_eq!((usage.turns, usage.estimated), (1, 1), "only the lost one: the others report no usage");
        assert!(usage.input_tokens > 0 && usage.output_tokens == 3, "four bytes are one token: {usage:?}");
        assert!(crate::agents::found(&bench, run, "talk/t1").usage.is_some_and(|used| used.estimated));
        adds_up(&bench, &[run]);
        check(&bench);
    }
}

/// The step's time limit, or a connection that breaks before the head of the answer: the model was asked all the same. A status such as
/// 503 says that the server did not answer the question.
#[test]
fn a_turn_that_ends_without_an_answer_pays_what_it_asked_unless_the_server_refused_it() {
    let perhaps = |code: &str| Fate::fail(ErrorClass::Transient, Effect::Perhaps).coded(code).saying("five!");
    let table = [
        ("the time limit", Fate::hang().saying("five!"), (1, 2)),
        ("timeout", perhaps("timeout"), (1, 2)),
        ("cut", perhaps("cut"), (1, 2)),
        ("http_status", perhaps("http_status"), (0, 0)),
        ("not connected", Fate::fail(ErrorClass::Transient, Effect::None).coded("timeout"), (0, 0)),
    ];
    for (name, fate, (turns, output_tokens)) in table {
        let mut bench = Bench::new();
        let mut fate = Some(fate);
        bench.tool.decide_by(Box::new(move |call, _| fate.take().unwrap_or_else(|| dialogues::talks(call))));
        let run = dialogues::begin(&mut bench);
        bench.advance(12 * MINUTE);
        assert_eq!(bench.run(run).status, RunStatus::Completed, "{name}");
        let usage = of_run(&bench, run, StepId(0), 10).total;
        assert_eq!((usage.turns, usage.estimated, usage.output_tokens), (turns, turns, output_tokens), "{name}");
        assert_eq!(usage.input_tokens > 0, turns == 1, "{name}: {usage:?}");
        adds_up(&bench, &[run]);
        check(&bench);
    }
}
