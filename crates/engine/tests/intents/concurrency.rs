//! How many agents, tasks and steps run at once: never more than their parents allow, and as many as they do.

use crate::agents::{agent, check, step, submit_agents, task, tree};
use crate::bench::Bench;
use adapters::tool::fake::Fate;
use model::agent::AgentStatus;
use model::plan::{AgentPlan, DEFAULT_MAX_AGENTS, DEFAULT_PARALLEL_STEPS, DEFAULT_PARALLEL_TASKS, TaskPlan};
use model::run::RunStatus;
use model::step::StepStatus;
use model::task::TaskStatus;
use serde_json::json;

const AGENTS: i64 = DEFAULT_MAX_AGENTS + 2;
const TASKS: i64 = DEFAULT_PARALLEL_TASKS + 2;
const STEPS: i64 = DEFAULT_PARALLEL_STEPS + 2;

/// The first agent has more tasks than may run at once, and each of them more steps.
fn plan(n: i64) -> AgentPlan {
    let wide = |n: i64| {
        let steps = (0..STEPS).map(|n| step(&format!("s{n}"))).collect();
        TaskPlan { parallel: DEFAULT_PARALLEL_STEPS, ..task(&format!("t{n}"), steps) }
    };
    match n {
        0 => AgentPlan { parallel: DEFAULT_PARALLEL_TASKS, ..agent("wide", (0..TASKS).map(wide).collect()) },
        _ => agent(&format!("a{n}"), vec![task("all", vec![step("s")])]),
    }
}

#[test]
fn ten_agents_five_tasks_and_three_steps_run_at_once_and_no_more() {
    assert_eq!((DEFAULT_MAX_AGENTS, DEFAULT_PARALLEL_TASKS, DEFAULT_PARALLEL_STEPS), (10, 5, 3));
    let mut bench = Bench::new();
    bench.tool.decide_by(Box::new(|_, _| Fate::hang()));
    let run = submit_agents(&mut bench, (0..AGENTS).map(plan).collect());
    bench.settle();
    let counted = |bench: &Bench| {
        let tree = tree(bench, run);
        let agents = tree.agents.iter().filter(|agent| agent.status == AgentStatus::Running).count() as i64;
        let wide = tree.agents.iter().find(|agent| agent.name == "wide").unwrap().id;
        let tasks: Vec<_> =
            tree.tasks.iter().filter(|task| task.agent == wide && task.status == TaskStatus::Running).collect();
        let steps = tasks.iter().map(|task| {
            let running = |step: &&model::step::Step| step.task == task.id && step.status == StepStatus::Running;
            tree.steps.iter().filter(running).count() as i64
        });
        (agents, tasks.len() as i64, steps.max().unwrap_or(0))
    };
    let most = (DEFAULT_MAX_AGENTS, DEFAULT_PARALLEL_TASKS, DEFAULT_PARALLEL_STEPS);
    assert_eq!(counted(&bench), most);
    while let Some(oldest) = bench.tool.hanging().first() {
        assert!(bench.tool.tell(oldest.number, Fate::answer(json!(1))));
        bench.settle();
        let now = counted(&bench);
        assert!(now.0 <= most.0 && now.1 <= most.1 && now.2 <= most.2, "{now:?}");
        check(&bench);
    }
    assert_eq!(bench.run(run).status, RunStatus::Completed);
}
