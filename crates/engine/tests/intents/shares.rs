//! Shares of orgs in what workers do at once, and of agents in their steps: many of one org or agent do not delay another.

use crate::agents::{agent, check, step, submit_agents, task};
use crate::bench::{Bench, now, settings};
use adapters::tool::fake::Fate;
use engine::Config;
use model::OrgId;
use model::plan::{StepPlan, TaskPlan};
use model::run::RunStatus;
use model::time::{HOUR, MINUTE};
use serde_json::json;

fn bench(org_agents: i64, agent_steps: i64) -> Bench {
    let mut config = Config::default();
    (config.worker.org_agents, config.worker.agent_steps) = (org_agents, agent_steps);
    Bench::with(settings(4), config)
}

fn slow(name: &str) -> StepPlan {
    StepPlan { timeout_ms: HOUR, ..step(name) }
}

/// So many runs of one agent each, by this org.
fn many(bench: &mut Bench, org: OrgId, count: usize) -> Vec<model::RunId> {
    let before = std::mem::replace(&mut bench.org, org);
    let runs = (0..count).map(|_| submit_agents(bench, vec![agent("a", vec![task("t", vec![slow("s")])])])).collect();
    bench.org = before;
    runs
}

#[test]
fn an_org_with_many_due_agents_holds_its_share_and_delays_no_other() {
    let mut bench = bench(3, 50);
    bench.tool.decide_by(Box::new(|_, _| Fate::hang()));
    let (ours, other) = (bench.org, now(bench.engine.ensure_org("other")).unwrap());
    let first = many(&mut bench, ours, 60);
    bench.settle();
    assert_eq!(bench.tool.hanging().len(), 3, "three agents of one org at once");
    bench.tool.decide_by(Box::new(|call, _| Fate::answer(call.input.clone())));
    let second = many(&mut bench, other, 2);
    bench.settle();
    bench.org = other;
    for run in &second {
        assert_eq!(bench.run(*run).status, RunStatus::Completed);
    }
    bench.org = ours;
    // Those that wait begin when others have ended, also after a restart.
    bench.restart();
    bench.advance(10 * MINUTE);
    for run in &first {
        assert_eq!(bench.run(*run).status, RunStatus::Completed, "{:?}", bench.run(*run).last_error);
    }
    check(&bench);
}

#[test]
fn one_act_that_ends_makes_room_for_one_that_waits() {
    let mut bench = bench(2, 50);
    bench.tool.decide_by(Box::new(|_, _| Fate::hang()));
    let org = bench.org;
    many(&mut bench, org, 6);
    bench.settle();
    for left in [4, 3, 2] {
        assert_eq!(bench.tool.hanging().len(), 2, "{left} wait");
        let oldest = bench.tool.hanging()[0].number;
        bench.tool.tell(oldest, Fate::answer(json!(1)));
        bench.settle();
    }
    assert_eq!(bench.tool.hanging().len(), 2);
    check(&bench);
}

#[test]
fn an_agent_has_no_more_steps_under_way_than_its_share() {
    let mut bench = bench(128, 4);
    bench.tool.decide_by(Box::new(|_, _| Fate::hang()));
    let steps = (0..10).map(|n| slow(&n.to_string())).collect();
    let wide = TaskPlan { parallel: 10, ..task("all", steps) };
    let run = submit_agents(&mut bench, vec![agent("a", vec![wide])]);
    bench.settle();
    for _ in 0..10 {
        let hanging = bench.tool.hanging();
        assert!(hanging.len() <= 4, "{hanging:?}");
        bench.tool.tell(hanging[0].number, Fate::answer(json!(1)));
        bench.settle();
    }
    assert_eq!(bench.run(run).status, RunStatus::Completed);
    check(&bench);
}
