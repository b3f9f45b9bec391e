//! Endpoints that answer 429: all steps of the org leave them alone, and one refusal counts.

use crate::agents::{agent, check, found, step, submit_agents, task};
use crate::bench::{Bench, now};
use crate::crashes::around_every_write;
use adapters::tool::fake::Fate;
use model::plan::{StepPlan, TaskPlan};
use model::recovery::{ErrorClass, EscalationLimits};
use model::run::RunStatus;
use model::step::{StepStatus, ToolKind};
use model::time::{MINUTE, SECOND};
use model::{Effect, RunId};
use serde_json::json;
use std::sync::atomic::{AtomicU32, Ordering};

fn at(name: &str, host: &str) -> StepPlan {
    StepPlan { input: json!({ "of": name, "url": format!("https://{host}/x?{name}") }), ..step(name) }
}

/// The first `refused` calls to busy.example are refused for half a minute.
fn refuses(bench: &Bench, refused: u32) {
    let calls = AtomicU32::new(0);
    bench.tool.decide_by(Box::new(move |call, _| {
        let busy = call.input["url"].as_str().is_some_and(|url| url.starts_with("https://busy.example/"));
        match busy && calls.fetch_add(1, Ordering::Relaxed) < refused {
            true => Fate::fail(ErrorClass::RateLimited, Effect::None).retry_after_ms(30 * SECOND),
            false => Fate::answer(call.input.clone()),
        }
    }));
}

/// A call of an MCP server's tool by a worker.
fn mcp_at(name: &str, host: &str) -> StepPlan {
    let input = json!({ "of": name, "url": format!("https://{host}/mcp"), "tool": "find", "arguments": {} });
    StepPlan { input, idempotent: true, ..StepPlan::new(name, ToolKind::Mcp) }
}

fn one(bench: &mut Bench, step: StepPlan) -> RunId {
    submit_agents(bench, vec![agent("one", vec![task("all", vec![step])])])
}

fn failures(bench: &Bench, run: RunId) -> i64 {
    let read = move |tx: &mut store::Tx| store::attempt::find(tx, run, 1);
    let attempt = now(bench.store.read("test.attempt", read)).unwrap().unwrap();
    attempt.tree.errors.errors(bench.run(run).last_at, EscalationLimits::default().window_ms).failed
}

#[test]
fn an_endpoint_that_asks_for_a_pause_is_left_alone_by_all_runs_of_the_org() {
    for of in [at, mcp_at] {
        a_pause_holds_for(of);
    }
}

fn a_pause_holds_for(at: fn(&str, &str) -> StepPlan) {
    let mut bench = Bench::new();
    refuses(&bench, 1);
    let first = one(&mut bench, at("first", "busy.example"));
    bench.advance(SECOND);
    let second = one(&mut bench, at("second", "busy.example"));
    let elsewhere = one(&mut bench, at("other", "free.example"));
    bench.advance(10 * SECOND);
    assert_eq!(bench.run(elsewhere).status, RunStatus::Completed);
    assert_eq!(bench.tool.seen().len(), 2, "one that was refused, and one elsewhere");
    let waits = found(&bench, second, "second");
    assert_eq!((waits.status, waits.tries), (StepStatus::Pending, 0));
    assert_eq!(waits.held_back_by.as_deref(), Some("https://busy.example"));
    let (_, why) = now(bench.engine.why(bench.org, second)).unwrap();
    let told = why.facts.iter().any(|fact| fact.starts_with("one/all/second is called in") && fact.contains("429"));
    assert!(told, "{:?}", why.facts);
    bench.restart();
    bench.advance(MINUTE);
    for run in [first, second] {
        assert_eq!(bench.run(run).status, RunStatus::Completed, "{:?}", bench.run(run).last_error);
    }
    assert_eq!(found(&bench, second, "second").held_back_by, None);
    check(&bench);
}

#[test]
fn many_refusals_at_once_count_as_one_failure_and_a_later_one_counts_again() {
    for (refused, expected) in [(3, 1), (4, 2)] {
        let mut bench = Bench::new();
        refuses(&bench, refused);
        let steps = ["a", "b", "c"].map(|name| at(name, "busy.example")).to_vec();
        let all = TaskPlan { parallel: 3, ..task("all", steps) };
        let run = submit_agents(&mut bench, vec![agent("one", vec![all])]);
        bench.advance(2 * MINUTE);
        assert_eq!(bench.run(run).status, RunStatus::Completed, "{:?}", bench.run(run).last_error);
        assert_eq!(failures(&bench, run), expected, "{refused} were refused");
        check(&bench);
    }
}

#[test]
fn dying_around_every_commit_of_a_pause_loses_no_wake_up() {
    let story = |bench: &mut Bench| {
        refuses(bench, 1);
        let runs = [one(bench, at("first", "busy.example")), one(bench, at("second", "busy.example"))];
        bench.advance(3 * MINUTE);
        runs
    };
    around_every_write(story, |bench, runs, place| {
        for run in runs {
            assert_eq!(bench.run(run).status, RunStatus::Completed, "{place}");
        }
        check(bench);
    });
}
