//! What the failure of a step means for the run, by the failure modes of its task, its agent and the run: every row of the table, on the
//! real engine.

use crate::agents::{agent, agents_spec, check, step, submit, task, tree};
use crate::bench::Bench;
use adapters::tool::fake::Fate;
use engine::run::Plans;
use model::agent::AgentStatus;
use model::agent::AgentStatus as A;
use model::plan::{AgentPlan, TaskPlan};
use model::recovery::ErrorClass;
use model::run::{RunOutcome, RunStatus};
use model::spec::FailureMode::{self, Continue, FailFast, Retry};
use model::spec::RunSpec;
use model::step::StepStatus as S;
use model::task::TaskStatus as T;
use model::time::MINUTE;
use model::{Effect, RunId};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Modes of the run, the agent and the task; the run's end, its outcome, its attempts, and how often the failing step was called; what
/// becomes of that step, its task and its agent.
type Row = ((FailureMode, FailureMode, FailureMode), (RunStatus, Option<RunOutcome>, i64, u32), Below);
type Below = (S, T, A);

const PARTIAL: Option<RunOutcome> = Some(RunOutcome::Partial);

/// Where nothing goes on after a failure, the step, its task, its agent and the run have all failed (the first row). A parent that goes on
/// skips the child that failed. A task, an agent and a run in mode `retry` have three tries each. What succeeded before answers from its record.
const TABLE: [Row; 27] = [
    ((FailFast, FailFast, FailFast), (RunStatus::Failed, None, 1, 1), (S::Failed, T::Failed, A::Failed)),
    ((FailFast, FailFast, Continue), (RunStatus::Completed, PARTIAL, 1, 1), (S::Skipped, T::Completed, A::Completed)),
    ((FailFast, FailFast, Retry), (RunStatus::Failed, None, 1, 3), (S::Failed, T::Failed, A::Failed)),
    ((FailFast, Continue, FailFast), (RunStatus::Completed, PARTIAL, 1, 1), (S::Failed, T::Skipped, A::Completed)),
    ((FailFast, Continue, Continue), (RunStatus::Completed, PARTIAL, 1, 1), (S::Skipped, T::Completed, A::Completed)),
    ((FailFast, Continue, Retry), (RunStatus::Completed, PARTIAL, 1, 3), (S::Failed, T::Skipped, A::Completed)),
    ((FailFast, Retry, FailFast), (RunStatus::Failed, None, 1, 3), (S::Failed, T::Failed, A::Failed)),
    ((FailFast, Retry, Continue), (RunStatus::Completed, PARTIAL, 1, 1), (S::Skipped, T::Completed, A::Completed)),
    ((FailFast, Retry, Retry), (RunStatus::Failed, None, 1, 9), (S::Failed, T::Failed, A::Failed)),
    ((Continue, FailFast, FailFast), (RunStatus::Completed, PARTIAL, 1, 1), (S::Failed, T::Failed, A::Completed)),
    ((Continue, FailFast, Continue), (RunStatus::Completed, PARTIAL, 1, 1), (S::Skipped, T::Completed, A::Completed)),
    ((Continue, FailFast, Retry), (RunStatus::Completed, PARTIAL, 1, 3), (S::Failed, T::Failed, A::Completed)),
    ((Continue, Continue, FailFast), (RunStatus::Completed, PARTIAL, 1, 1), (S::Failed, T::Skipped, A::Completed)),
    ((Continue, Continue, Continue), (RunStatus::Completed, PARTIAL, 1, 1), (S::Skipped, T::Completed, A::Completed)),
    ((Continue, Continue, Retry), (RunStatus::Completed, PARTIAL, 1, 3), (S::Failed, T::Skipped, A::Completed)),
    ((Continue, Retry, FailFast), (RunStatus::Completed, PARTIAL, 1, 3), (S::Failed, T::Failed, A::Completed)),
    ((Continue, Retry, Continue), (RunStatus::Completed, PARTIAL, 1, 1), (S::Skipped, T::Completed, A::Completed)),
    ((Continue, Retry, Retry), (RunStatus::Completed, PARTIAL, 1, 9), (S::Failed, T::Failed, A::Completed)),
    ((Retry, FailFast, FailFast), (RunStatus::Failed, None, 3, 3), (S::Failed, T::Failed, A::Failed)),
    ((Retry, FailFast, Continue), (RunStatus::Completed, PARTIAL, 1, 1), (S::Skipped, T::Completed, A::Completed)),
    ((Retry, FailFast, Retry), (RunStatus::Failed, None, 3, 9), (S::Failed, T::Failed, A::Failed)),
    ((Retry, Continue, FailFast), (RunStatus::Completed, PARTIAL, 1, 1), (S::Failed, T::Skipped, A::Completed)),
    ((Retry, Continue, Continue), (RunStatus::Completed, PARTIAL, 1, 1), (S::Skipped, T::Completed, A::Completed)),
    ((Retry, Continue, Retry), (RunStatus::Completed, PARTIAL, 1, 3), (S::Failed, T::Skipped, A::Completed)),
    ((Retry, Retry, FailFast), (RunStatus::Failed, None, 3, 9), (S::Failed, T::Failed, A::Failed)),
    ((Retry, Retry, Continue), (RunStatus::Completed, PARTIAL, 1, 1), (S::Skipped, T::Completed, A::Completed)),
    ((Retry, Retry, Retry), (RunStatus::Failed, None, 3, 27), (S::Failed, T::Failed, A::Failed)),
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
    let modes: std::collections::BTreeSet<String> = TABLE.iter().map(|(modes, ..)| format!("{modes:?}")).collect();
    assert_eq!(modes.len(), TABLE.len(), "each combination once");
    for (modes, expected, below) in TABLE {
        let (bench, run, calls) = told(modes);
        let found = bench.run(run);
        assert_eq!((found.status, found.outcome, found.attempt, calls), expected, "{modes:?}: {:?}", found.last_error);
        let tree = tree(&bench, run);
        let step = tree.steps.iter().rfind(|step| step.name == "bad").unwrap().status;
        let task = tree.tasks.iter().rfind(|task| task.name == "bad").unwrap().status;
        let agent = tree.agents.iter().rfind(|agent| agent.name == "worse").unwrap().status;
        assert_eq!((step, task, agent), below, "{modes:?}");
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

/// Who hangs beside the step that fails: another step of its task, another task of its agent, another agent.
#[test]
fn a_failure_cancels_what_hangs_beside_it_and_waits_for_it() {
    for level in ["step", "task", "agent"] {
        let mut bench = Bench::new();
        bench.tool.decide_by(Box::new(|_, _| Fate::hang()));
        let wide = |name: &str, steps: &[&str]| TaskPlan {
            parallel: 2,
            ..task(name, steps.iter().map(|name| step(name)).collect())
        };
        let agents = match level {
            "step" => vec![agent("one", vec![wide("t", &["bad", "hangs"])])],
            "task" => {
                let tasks = vec![wide("t", &["bad"]), wide("u", &["hangs"])];
                vec![AgentPlan { parallel: 2, ..agent("one", tasks) }]
            }
            _ => vec![agent("one", vec![wide("t", &["bad"])]), agent("two", vec![wide("u", &["hangs"])])],
        };
        let run = submit(&mut bench, agents_spec(), Plans { agents, ..Plans::default() });
        bench.settle();
        let hanging = bench.tool.hanging();
        assert_eq!(hanging.len(), 2, "{level}");
        let bad = hanging.iter().find(|call| call.input["of"] == "bad").unwrap().number;
        bench.tool.tell(bad, Fate::fail(ErrorClass::Permanent, Effect::Done));
        bench.settle();
        let tree = tree(&bench, run);
        let step = |name: &str| tree.steps.iter().find(|step| step.name == name).unwrap();
        assert_eq!((step("bad").status, step("hangs").status), (S::Failed, S::Cancelled), "{level}");
        assert_eq!(bench.tool.seen_of(step("hangs").key.as_deref().unwrap()).cut, 1, "{level}: nobody waits for it");
        let statuses = (tree.tasks.iter().map(|task| task.status), tree.agents.iter().map(|agent| agent.status));
        let (tasks, agents): (Vec<_>, Vec<_>) = (statuses.0.collect(), statuses.1.collect());
        match level {
            "step" => assert_eq!((tasks, agents), (vec![T::Failed], vec![A::Failed])),
            "task" => assert_eq!((tasks, agents), (vec![T::Failed, T::Cancelled], vec![A::Failed])),
            _ => assert_eq!((tasks, agents), (vec![T::Failed, T::Cancelled], vec![A::Failed, A::Cancelled])),
        }
        assert_eq!(bench.run(run).status, RunStatus::Failed, "{level}");
        // Its end is told after those of everything below it.
        let told = bench.events(run);
        assert_eq!(told.last().map(String::as_str), Some("run.failed"), "{level}: {told:?}");
        check(&bench);
    }
}
