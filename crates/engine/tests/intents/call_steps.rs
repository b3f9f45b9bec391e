//! Steps that call a function: whatever dies, a step that wants no cache has its call executed once.

use crate::agents::{agent, submit_agents, task};
use crate::bench::{Bench, now, spec};
use engine::EngineContext;
use engine::run::{Plans, Submission};
use model::plan::StepPlan;
use model::run::RunStatus;
use model::spec::RunSpec;
use model::step::ToolKind;
use model::time::MINUTE;
use model::{CallId, Failure, OrgId, Refused, RunId};
use serde_json::{Value, json};

/// A function's input, the document of a run, is here its whole specification.
pub fn document(_: &EngineContext, (org, _): (OrgId, &str), document: Value) -> Result<Submission, Failure> {
    let spec = serde_json::from_value(document).map_err(|error| Refused::invalid("inputs", error.to_string()))?;
    Ok(Submission { org, by: None, name: None, spec, plans: Plans::default(), start: true })
}

fn calls(spec: RunSpec) -> StepPlan {
    let input = json!({ "function": "dml+exec://dml-exec-repl/run", "inputs": [spec], "cache": false });
    StepPlan { idempotent: true, max_tries: 3, timeout_ms: 10 * MINUTE, input, ..StepPlan::new("f", ToolKind::Call) }
}

/// Told around every write by `crashes`. The run that executes the call.
pub fn story(bench: &mut Bench) -> RunId {
    let run = submit_agents(bench, vec![agent("one", vec![task("all", vec![calls(spec())])])]);
    // The items of a worker that died, or that did not hear of its commit, are taken over meanwhile.
    bench.advance(3 * MINUTE);
    assert_eq!(bench.run(run).status, RunStatus::Completed);
    let executions = now(bench.engine.calls(bench.org, i64::MAX, 10)).unwrap();
    assert_eq!(executions.len(), 1, "one step, one execution: {executions:?}");
    now(bench.engine.called(bench.org, CallId(executions[0].id))).unwrap().run.unwrap()
}

#[test]
fn each_step_of_each_run_has_an_execution_of_its_own() {
    let mut bench = Bench::brief();
    let executions = |bench: &Bench| now(bench.engine.calls(bench.org, i64::MAX, 10)).unwrap().len();
    let again = StepPlan { name: "again".into(), ..calls(spec()) };
    let run = submit_agents(&mut bench, vec![agent("one", vec![task("all", vec![calls(spec()), again])])]);
    bench.advance(MINUTE);
    assert_eq!((bench.run(run).status, executions(&bench)), (RunStatus::Completed, 2), "the same call, asked twice");
    submit_agents(&mut bench, vec![agent("one", vec![task("all", vec![calls(spec())])])]);
    bench.advance(MINUTE);
    assert_eq!(executions(&bench), 3, "another run");
}
