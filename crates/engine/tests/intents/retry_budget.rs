//! What a run may spend on retries by itself: 20 of them, and a quarter of what is set aside for it (R40).

use crate::agents::{agent, agents_spec, check, submit, task, tree};
use crate::bench::{Bench, now};
use adapters::ToolUsage;
use adapters::tool::fake::Fate;
use engine::run::Plans;
use model::plan::{StepPlan, TaskPlan};
use model::recovery::{ErrorClass, OnExhausted};
use model::run::RunStatus;
use model::spec::{FailureMode, PlanRules, RunSpec};
use model::step::ToolKind;
use model::time::MINUTE;
use model::{Credits, Effect};
use serde_json::json;

/// Each try of the task asks a model once, for 2,000 micro-credits, and fails.
#[test]
fn retries_end_when_they_have_cost_a_quarter_of_what_is_set_aside() {
    for (estimate, on_exhausted, tries, status) in [
        // The second, third and fourth try have cost 6,000 by then.
        (20_000, OnExhausted::Abort, 4, RunStatus::Failed),
        (20_000, OnExhausted::Escalate, 4, RunStatus::Paused),
        (1_000_000, OnExhausted::Abort, 6, RunStatus::Failed),
    ] {
        let mut bench = Bench::new();
        bench.tool.decide_by(Box::new(|_, _| {
            let used = ToolUsage { of: "default/small".into(), input_tokens: 2_000, ..ToolUsage::default() };
            Fate::fail(ErrorClass::Permanent, Effect::Done).using(used)
        }));
        let input = json!({ "model": "default", "prompt": "go" });
        let talk = StepPlan { input, idempotent: true, ..StepPlan::new("talk", ToolKind::Llm) };
        let retried = TaskPlan { mode: FailureMode::Retry, max_tries: 6, ..task("all", vec![talk]) };
        let rules = PlanRules { estimate: Credits(estimate), on_exhausted, ..PlanRules::default() };
        let spec = RunSpec { plan: rules, ..agents_spec() };
        let agents = vec![agent("one", vec![retried])];
        let run = submit(&mut bench, spec, Plans { agents, ..Plans::default() });
        bench.advance(5 * MINUTE);
        let read = move |tx: &mut store::Tx| store::attempt::find(tx, run, 1);
        let (end, attempt) = (bench.run(run), now(bench.store.read("test.attempt", read)).unwrap().unwrap());
        assert_eq!((end.status, attempt.reserved), (status, Credits(estimate)), "{:?}", end.last_error);
        assert_eq!(tree(&bench, run).tasks[0].tries, tries, "{estimate} {on_exhausted}");
        let cost = Credits(2_000 * (tries - 1));
        assert_eq!(attempt.tree.retried_cost, cost, "all but the first");
        check(&bench);
    }
}
