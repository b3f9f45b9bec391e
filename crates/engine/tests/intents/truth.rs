//! What the failure of a step means for the run, by the failure modes of its task, its agent and the run: every row of the table, on the
//! real engine.

use crate::agents::{agent, agents_spec, check, step, submit, task, tree};
use crate::bench::Bench;
use adapters::tool::fake::Fate;
use engine::run::Plans;
use model::agent::AgentStatus;
use model::plan::{AgentPlan, TaskPlan};
use model::recovery::ErrorClass;
use model::run::{RunOutcome, RunStatus};
use model::spec::FailureMode::{self, Continue, FailFast, Retry};
use model::spec::RunSpec;
use model::time::MINUTE;
use model::{Effect, RunId};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Modes of the run, the agent and the task; the run's end, its outcome, its attempts, and how often the failing step was called.
type Row = ((FailureMode, FailureMode, FailureMode), (RunStatus, Option<RunOutcome>, i64, u32));

const PARTIAL: Option<RunOutcome> = Some(RunOutcome::Partial);

/// A task, an agent and a run in mode `retry` have three tries each. What succeeded before answers from its record.
const TABLE: [Row; 27] = [
    ((FailFast, FailFast, FailFast), (RunStatus::Failed, None, 1, 1)),
    ((FailFast, FailFast, Continue), (RunStatus::Completed, PARTIAL, 1, 1)),
    ((FailFast, FailFast, Retry), (RunStatus::Failed, None, 1, 3)),
    ((FailFast, Continue, FailFast), (RunStatus::Completed, PARTIAL, 1, 1)),
    ((FailFast, Continue, Continue), (RunStatus::Completed, PARTIAL, 1, 1)),
    ((FailFast, Continue, Retry), (RunStatus::Completed, PARTIAL, 1, 3)),
    ((FailFast, Retry, FailFast), (RunStatus::Failed, None, 1, 3)),
    ((FailFast, Retry, Continue), (RunStatus::Completed, PARTIAL, 1, 1)),
    ((FailFast, Retry, Retry), (RunStatus::Failed, None, 1, 9)),
    ((Continue, FailFast, FailFast), (RunStatus::Completed, PARTIAL, 1, 1)),
    ((Continue, FailFast, Continue), (RunStatus::Completed, PARTIAL, 1, 1)),
    ((Continue, FailFast, Retry), (RunStatus::Completed, PARTIAL, 1, 3)),
    ((Continue, Continue, FailFast), (RunStatus::Completed, PARTIAL, 1, 1)),
    ((Continue, Continue, Continue), (RunStatus::Completed, PARTIAL, 1, 1)),
    ((Continue, Continue, Retry), (RunStatus::Completed, PARTIAL, 1, 3)),
    ((Continue, Retry, FailFast), (RunStatus::Completed, PARTIAL, 1, 3)),
    ((Continue, Retry, Continue), (RunStatus::Completed, PARTIAL, 1, 1)),
    ((Continue, Retry, Retry), (RunStatus::Completed, PARTIAL, 1, 9)),
    ((Retry, FailFast, FailFast), (RunStatus::Failed, None, 3, 3)),
    ((Retry, FailFast, Continue), (RunStatus::Completed, PARTIAL, 1, 1)),
    ((Retry, FailFast, Retry), (RunStatus::Failed, None, 3, 9)),
    ((Retry, Continue, FailFast), (RunStatus::Completed, PARTIAL, 1, 1)),
    ((Retry, Continue, Continue), (RunStatus::Completed, PARTIAL, 1, 1)),
    ((Retry, Continue, Retry), (RunStatus::Completed, PARTIAL, 1, 3)),
    ((Retry, Retry, FailFast), (RunStatus::Failed, None, 3, 9)),
    ((Retry, Retry, Continue), (RunStatus::Completed, PARTIAL, 1, 1)),
    ((Retry, Retry, Retry), (RunStatus::Failed, None, 3, 27)),
];

/// An agent that succeeds, and beside it one whose second task fails at its second step. Returns how often that step was called, too.
fn told((run, agents, tasks): (FailureMode, FailureMode, FailureMode)) -> (Bench, RunId, u32) {
    let mut bench = Bench::new();
    let calls = fails_and_counts(&bench);
    let bad = TaskPlan { mode: tasks, ..task("bad", vec![step("good"), step("bad")]) };
    let worse = AgentPlan { mode: agents, ..agent("worse", vec![task("first", vec![step("a")]), bad]) };
    let spec = RunSpec { failure_mode: run, ..agents_spec() };
    let plans = Plans { agents: vec![agent("fine", vec![task("all", vec![step("x")])]), worse], ..Plans::default() };
    let run = submit(&mut bench, spec, plans);
    bench.advance(10 * MINUTE);
    let calls = calls.load(Ordering::Relaxed);
    (bench, run, calls)
}

/// The tool fails every call of the step `bad`, and counts them.
fn fails_and_counts(bench: &Bench) -> Arc<AtomicU32> {
    let calls = Arc::new(AtomicU32::new(0));
    let counted = calls.clone();
    bench.tool.decide_by(Box::new(move |call, _| match call.input["of"] == "bad" {
        true => {
            counted.fetch_add(1, Ordering::Relaxed);
            Fate::fail(ErrorClass::Permanent, Effect::Done)
        }
        false => Fate::answer(call.input.clone()),
    }));
    calls
}

#[test]
fn what_a_failure_means_is_its_parents_to_say() {
    let modes: std::collections::BTreeSet<String> = TABLE.iter().map(|(modes, _)| format!("{modes:?}")).collect();
    assert_eq!(modes.len(), TABLE.len(), "each combination once");
    for (modes, expected) in TABLE {
        let (bench, run, calls) = told(modes);
        let found = bench.run(run);
        assert_eq!((found.status, found.outcome, found.attempt, calls), expected, "{modes:?}: {:?}", found.last_error);
        for (key, seen) in bench.tool.seen() {
            assert!(seen.effects == seen.calls, "every call here has its effect: {modes:?} {key} {seen:?}");
        }
        let others = bench.tool.seen().values().filter(|seen| seen.calls == 1).count();
        assert!(others >= 3, "{modes:?}: what succeeded is not called again");
        check(&bench);
    }
}

#[test]
fn a_run_all_of_whose_agents_were_skipped_completes_as_skipped() {
    let mut bench = Bench::new();
    let calls = fails_and_counts(&bench);
    let bad = |name: &str| agent(name, vec![task("all", vec![step("bad"), step("after")])]);
    let spec = RunSpec { failure_mode: Continue, ..agents_spec() };
    let run =
        submit(&mut bench, spec, Plans { agents: vec![bad("one"), bad("two"), bad("three")], ..Plans::default() });
    bench.advance(MINUTE);
    let found = bench.run(run);
    assert_eq!((found.status, found.outcome), (RunStatus::Completed, Some(RunOutcome::Skipped)));
    let agents = tree(&bench, run).agents;
    assert!(
        agents.iter().all(|agent| agent.status == AgentStatus::Completed && agent.outcome == Some(RunOutcome::Skipped)),
        "{agents:?}"
    );
    assert_eq!(calls.load(Ordering::Relaxed), 3);
    check(&bench);
}
