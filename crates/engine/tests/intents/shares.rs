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

/// Two organisations that could fill all permits leave some for a third one; and what becomes free goes to one that holds little.
#[test]
fn two_orgs_with_many_due_agents_leave_room_for_a_third() {
    const PERMITS: i64 = 20;
    let mut bench = bench(PERMITS / 2, 50);
    bench.config.worker.act_permits = PERMITS;
    bench.restart();
    bench.tool.decide_by(Box::new(|_, _| Fate::hang()));
    let names = ["one", "two", "three", "four"];
    let orgs = names.map(|name| now(bench.engine.ensure_org(name)).unwrap());
    let works = |bench: &mut Bench, runs: &[model::RunId], org: OrgId| {
        let before = std::mem::replace(&mut bench.org, org);
        let acting = |run: &&model::RunId| crate::agents::tree(bench, **run).agents[0].acting > 0;
        let count = runs.iter().filter(acting).count();
        bench.org = before;
        count
    };
    let first = many(&mut bench, orgs[0], 30);
    let second = many(&mut bench, orgs[1], 30);
    bench.settle();
    let held = (works(&mut bench, &first, orgs[0]), works(&mut bench, &second, orgs[1]));
    assert_eq!(held, (10, 9), "the second one leaves a permit free");
    let third = many(&mut bench, orgs[2], 1);
    bench.settle();
    assert_eq!(works(&mut bench, &third, orgs[2]), 1, "it begins at once");
    let fourth = many(&mut bench, orgs[3], 1);
    bench.settle();
    assert_eq!(works(&mut bench, &fourth, orgs[3]), 0, "all permits are held");
    let oldest = bench.tool.hanging()[0].number;
    bench.tool.tell(oldest, Fate::answer(json!(1)));
    bench.settle();
    assert_eq!(works(&mut bench, &fourth, orgs[3]), 1, "before what the others have had due for longer");
    assert_eq!(bench.tool.hanging().len() as i64, PERMITS);
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
