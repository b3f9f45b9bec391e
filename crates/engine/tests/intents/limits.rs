//! Limits of what a run of agents tries by itself: the window of errors, the budget of retries, and how often and how large it is planned
//! again.

use crate::agents::{agent, agents_spec, check, found, step, submit, task, tree};
use crate::bench::{Bench, now, settings};
use crate::dialogues;
use adapters::tool::fake::Fate;
use engine::Config;
use engine::run::Plans;
use model::agent::{AgentKind, AgentStatus};
use model::plan::{AgentPlan, RunPlan, StepPlan, TaskPlan};
use model::recovery::{Decided, ErrorClass, EscalationLimits, RETRY_BUDGET, Rule};
use model::run::{RunReason, RunStatus};
use model::spec::{FailureMode, PlanRules, RunSpec};
use model::step::{StepStatus, StepWait, ToolKind};
use model::time::MINUTE;
use model::{Effect, RunId};
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// The first so many calls of the step `bad` fail, nothing having happened; those after them succeed. Counts them.
fn fails_at_first(bench: &Bench, failures: u32) -> Arc<AtomicU32> {
    let calls = Arc::new(AtomicU32::new(0));
    let counted = calls.clone();
    bench.tool.decide_by(Box::new(move |call, _| {
        if call.input["of"] != "bad" || counted.fetch_add(1, Ordering::Relaxed) >= failures {
            return Fate::answer(call.input.clone());
        }
        Fate::fail(ErrorClass::Transient, Effect::None)
    }));
    calls
}

fn bench_with(escalation: EscalationLimits) -> Bench {
    Bench::with(settings(4), Config { escalation, ..Config::default() })
}

/// Three steps side by side that fail; each has more tries than the window of errors allows failures.
fn failing(bench: &mut Bench) -> RunId {
    let bad = |name: &str| StepPlan { input: json!({ "of": "bad" }), max_tries: 9, ..step(name) };
    let all = TaskPlan { parallel: 3, ..task("all", vec![bad("a"), bad("b"), bad("c")]) };
    submit(bench, agents_spec(), Plans { agents: vec![agent("one", vec![all])], ..Plans::default() })
}

#[test]
fn the_sixth_failure_of_plan_steps_within_five_minutes_is_a_persons_to_judge() {
    let mut bench = Bench::new();
    let calls = fails_at_first(&bench, 6);
    let run = failing(&mut bench);
    bench.advance(MINUTE);
    assert_eq!(bench.run(run).status, RunStatus::Paused);
    let waiting: Vec<_> = tree(&bench, run).steps.into_iter().filter(|it| it.status == StepStatus::Waiting).collect();
    let judged: Vec<_> = waiting.iter().filter_map(|step| step.judged.map(|it| (it.decision, it.rule))).collect();
    assert_eq!(judged, [(Decided::Escalate, Rule::TooManyErrors)], "the sixth and no other: {waiting:?}");
    assert!(calls.load(Ordering::Relaxed) >= 6);
    let open = now(bench.engine.questions(bench.org, StepWait::Ticket, true, i64::MAX, 10)).unwrap();
    assert_eq!(open.iter().map(|ticket| ticket.step).collect::<Vec<_>>(), [waiting[0].id]);
    check(&bench);

    // Five are no reason to ask.
    let mut bench = Bench::new();
    fails_at_first(&bench, 5);
    let run = failing(&mut bench);
    bench.advance(MINUTE);
    assert_eq!(bench.run(run).status, RunStatus::Completed);
    check(&bench);
}

#[test]
fn failures_that_are_further_apart_than_the_window_are_no_reason_to_ask() {
    let mut bench = Bench::new();
    bench.tool.decide_by(Box::new(|call, calls| match call.input["of"] == "bad" && calls <= 2 {
        true => Fate::fail(ErrorClass::Transient, Effect::None),
        false => Fate::answer(call.input.clone()),
    }));
    // Two failures each, and six minutes from one to the next.
    let pause = |name: &str| StepPlan { input: json!({ "for": "6m" }), ..StepPlan::new(name, ToolKind::Wait) };
    let bad = |name: &str| StepPlan { input: json!({ "of": "bad" }), ..step(name) };
    let steps = vec![bad("a"), pause("p"), bad("b"), pause("q"), bad("c"), pause("r"), bad("d")];
    let plans = Plans { agents: vec![agent("one", vec![task("all", steps)])], ..Plans::default() };
    let run = submit(&mut bench, agents_spec(), plans);
    bench.advance(25 * MINUTE);
    assert_eq!(bench.run(run).status, RunStatus::Completed, "{:?}", tree(&bench, run).steps);
    assert_eq!(bench.tool.seen().values().map(|seen| seen.calls).sum::<u32>(), 12, "each of the four three times");
    check(&bench);
}

#[test]
fn the_window_of_errors_is_what_the_settings_say() {
    let patient = EscalationLimits { max_errors: 100, min_samples: 100, ..EscalationLimits::default() };
    let mut bench = bench_with(patient);
    fails_at_first(&bench, 12);
    let run = failing(&mut bench);
    bench.advance(2 * MINUTE);
    assert_eq!(bench.run(run).status, RunStatus::Completed, "{:?}", tree(&bench, run).steps);
    check(&bench);

    let nervous = EscalationLimits { max_errors: 1, ..EscalationLimits::default() };
    let mut bench = bench_with(nervous);
    fails_at_first(&bench, 2);
    let run = failing(&mut bench);
    bench.advance(MINUTE);
    assert_eq!(bench.run(run).status, RunStatus::Paused);
    check(&bench);
}

#[test]
fn failed_calls_of_a_model_are_its_own_to_judge() {
    let mut bench = Bench::new();
    let failed = Arc::new(AtomicU32::new(0));
    let counted = failed.clone();
    bench.tool.decide_by(Box::new(move |call, _| match dialogues::turn(call) {
        Some(_) => dialogues::talks(call),
        None => {
            counted.fetch_add(1, Ordering::Relaxed);
            Fate::fail(ErrorClass::Transient, Effect::None)
        }
    }));
    let run = dialogues::begin(&mut bench);
    bench.advance(5 * MINUTE);
    assert_eq!(bench.run(run).status, RunStatus::Completed);
    assert_eq!(failed.load(Ordering::Relaxed), 6, "two calls with three tries each");
    check(&bench);
}

/// A step, task and agent that are all tried again draw on one budget.
#[test]
fn a_run_has_twenty_retries_for_its_steps_tasks_and_agents_together() {
    let mut bench =
        bench_with(EscalationLimits { max_errors: 1_000, min_samples: 1_000, ..EscalationLimits::default() });
    let calls = fails_at_first(&bench, u32::MAX);
    // Step by step: three retries of the step and one of its task, three times, the last of which is one of the agent.
    let bad = StepPlan { input: json!({ "of": "bad" }), max_tries: 4, ..step("bad") };
    let all = TaskPlan { mode: FailureMode::Retry, max_tries: 3, ..task("all", vec![bad]) };
    let one = AgentPlan { mode: FailureMode::Retry, max_tries: 3, ..agent("one", vec![all]) };
    let run = submit(&mut bench, agents_spec(), Plans { agents: vec![one], ..Plans::default() });
    bench.advance(10 * MINUTE);
    let found = bench.run(run);
    assert_eq!(found.status, RunStatus::Failed);
    assert_eq!(i64::from(calls.load(Ordering::Relaxed)), 1 + RETRY_BUDGET, "each retry is one more call");
    let tree = tree(&bench, run);
    let (step, task) = (tree.steps.iter().rfind(|step| !step.replaced), tree.tasks.iter().rfind(|task| !task.replaced));
    let (step, task, agent) = (step.unwrap(), task.unwrap(), &tree.agents[0]);
    // 20 = 12 for the agent's first try, its own retry included, and 8 for two tries of the task in its second.
    assert_eq!((agent.tries, task.tries, step.tries), (2, 3, 1));
    let judged = step.judged.map(|judged| (judged.decision, judged.rule));
    assert_eq!(judged, Some((Decided::Abort, Rule::RetriesUsed)), "the twenty-first is refused");
    check(&bench);
}

/// A run that is planned again: its first agents, and what its planner answers at each of its calls.
fn planned(
    bench: &mut Bench,
    (failure_mode, agents): (FailureMode, Vec<AgentPlan>),
    rules: PlanRules,
    answers: &'static [&'static str],
) -> RunId {
    let mut asked = 0;
    bench.tool.decide_by(Box::new(move |call, _| match call.input["of"].as_str() {
        Some("bad") => Fate::fail(ErrorClass::Permanent, Effect::Done),
        Some("hang") => Fate::hang(),
        Some("plan") => {
            asked += 1;
            Fate::answer(plan_of(answers.get(asked - 1).unwrap_or_else(|| panic!("asked for {asked} plans"))))
        }
        _ if call.input["url"] == "https://bad.example/" => Fate::fail(ErrorClass::Permanent, Effect::Done),
        _ => Fate::answer(call.input.clone()),
    }));
    let document = json!({ "type": "agents", "failure_mode": "continue", "max_agents": rules.max_agents,
        "planner": { "exec": ["./plan"], "allow": ["http"] }, "agents": [{ "tasks": [{ "steps": [{ "wait": "1s" }] }] }] });
    let shared = RunPlan { document: Some(document), ..RunPlan::default() };
    let planner = agent("planner", vec![task("plan", vec![step("plan")])]);
    let spec = RunSpec { failure_mode, plan: rules, ..agents_spec() };
    let run = submit(bench, spec, Plans { shared, agents, planner: Some(planner), ..Plans::default() });
    bench.advance(MINUTE);
    run
}

/// A plan of agents with one request each, to these hosts.
fn plan_of(hosts: &str) -> Value {
    let agent = |(n, host): (usize, &str)| {
        json!({ "name": format!("{host}-{n}"),
            "tasks": [{ "steps": [{ "http": { "url": format!("https://{host}.example/") } }] }] })
    };
    json!({ "agents": hosts.split(' ').enumerate().map(agent).collect::<Vec<_>>() })
}

fn bad(name: &str) -> AgentPlan {
    agent(name, vec![task("all", vec![step("bad")])])
}

fn hanging() -> StepPlan {
    StepPlan { timeout_ms: 30 * MINUTE, ..step("hang") }
}

fn planners(bench: &Bench, run: RunId) -> usize {
    tree(bench, run).agents.iter().filter(|agent| agent.kind == AgentKind::Planner).count()
}

#[test]
fn a_run_is_planned_again_as_often_as_it_may_be() {
    for (replans, answers) in [(1, &["bad"][..]), (2, &["bad", "bad"][..])] {
        let mut bench = Bench::new();
        let rules = PlanRules { replans, ..PlanRules::default() };
        let run = planned(&mut bench, (FailureMode::FailFast, vec![bad("one")]), rules, answers);
        let found = bench.run(run);
        assert_eq!((found.status, found.plan_version), (RunStatus::Failed, 1 + replans), "{:?}", found.last_error);
        assert_eq!(found.termination.unwrap().reason, RunReason::AgentFailed, "the last plan's failure is the run's");
        assert_eq!(planners(&bench, run), replans as usize);
        check(&bench);
    }
}

/// All plan versions together: planners count as agents.
#[test]
fn plans_make_three_times_as_many_agents_as_may_run_at_once_and_no_more() {
    // Three, a planner, three, a planner and one are nine of nine. A plan that is too large is sent back twice.
    const TOO_LARGE: &str = "good good";
    let table: [(&'static [&'static str], RunStatus); 3] = [
        (&["bad bad bad", "good"], RunStatus::Completed),
        (&["bad bad bad", TOO_LARGE, TOO_LARGE, "good"], RunStatus::Completed),
        (&["bad bad bad", TOO_LARGE, TOO_LARGE, TOO_LARGE, "good"], RunStatus::Failed),
    ];
    for (answers, end) in table {
        let mut bench = Bench::new();
        let rules = PlanRules { replans: 2, max_agents: 3, ..PlanRules::default() };
        let agents = (FailureMode::Continue, vec![bad("one"), bad("two"), bad("three")]);
        let run = planned(&mut bench, agents, rules, answers);
        let found = bench.run(run);
        assert_eq!((found.status, planners(&bench, run)), (end, 2), "{answers:?}: {:?}", found.last_error);
        if end == RunStatus::Failed {
            assert_eq!(found.termination.unwrap().reason, RunReason::PlannerFailed);
            assert!(
                found.last_error.as_ref().unwrap().message.contains("more than 9 agents"),
                "{:?}",
                found.last_error
            );
        }
        assert_eq!(bench.tool.seen().values().filter(|seen| seen.calls == 3).count(), usize::from(answers.len() > 2));
        check(&bench);
    }
}

/// One agent, a planner and one agent are three of three: another planner could not plan even one.
#[test]
fn a_planner_for_whose_plan_there_is_no_room_is_not_asked() {
    let mut bench = Bench::new();
    let rules = PlanRules { replans: 2, max_agents: 1, ..PlanRules::default() };
    let run = planned(&mut bench, (FailureMode::FailFast, vec![bad("one")]), rules, &["bad"]);
    let found = bench.run(run);
    assert_eq!((found.status, found.plan_version, planners(&bench, run)), (RunStatus::Failed, 2, 1));
    assert_eq!(found.termination.unwrap().reason, RunReason::AgentFailed, "the plan's failure is the run's");
    check(&bench);
}

/// Three agents of five are well, so only the number of failed tasks is a reason.
#[test]
fn more_than_ten_failed_tasks_are_a_reason_for_another_plan() {
    for (failed, plan_version, status) in [(9, 1, RunStatus::Failed), (10, 2, RunStatus::Completed)] {
        let mut bench = Bench::new();
        let tasks = (0..failed).map(|n| task(&format!("bad-{n}"), vec![step("bad")]));
        let tasks = tasks.chain([task("good", vec![step("good")])]).collect();
        let many = AgentPlan { mode: FailureMode::Continue, ..agent("many", tasks) };
        let fine = |name: &str| agent(name, vec![task("all", vec![step(name)])]);
        let last = agent("last", vec![task("all", vec![hanging()])]);
        let rules = PlanRules { replans: 1, ..PlanRules::default() };
        let agents = vec![many, fine("a"), fine("b"), fine("c"), last];
        let run = planned(&mut bench, (FailureMode::FailFast, agents), rules, &["good"]);
        let hanging = bench.tool.hanging();
        assert_eq!(hanging.len(), 1, "one agent is left");
        // With this one it is one more.
        assert!(bench.tool.tell(hanging[0].number, Fate::fail(ErrorClass::Permanent, Effect::Done)));
        bench.advance(MINUTE);
        let found = bench.run(run);
        assert_eq!((found.plan_version, found.status), (plan_version, status), "{failed}: {:?}", found.last_error);
        check(&bench);
    }
}

#[test]
fn an_agent_that_works_when_the_next_plan_comes_is_cancelled_and_what_it_did_is_unknown() {
    let mut bench = Bench::new();
    let busy = agent("busy", vec![task("all", vec![StepPlan { idempotent: false, ..hanging() }, step("after")])]);
    let rules = PlanRules { replans: 1, ..PlanRules::default() };
    let run = planned(&mut bench, (FailureMode::Continue, vec![busy, bad("one"), bad("two")]), rules, &["good"]);
    let hang = found(&bench, run, "hang");
    assert_eq!((hang.status, hang.outcome_unknown), (StepStatus::Cancelled, true), "{hang:?}");
    let seen = bench.tool.seen_of(&hang.key.unwrap());
    assert_eq!((seen.calls, seen.cut), (1, 1), "nobody waits for it any more");
    let tree = tree(&bench, run);
    let busy = tree.agents.iter().find(|agent| agent.name == "busy").unwrap();
    assert_eq!((busy.status, busy.plan_version), (AgentStatus::Cancelled, 1));
    assert!(tree.steps.iter().all(|step| step.name != "after" || step.began_at.is_none()));
    let run = bench.run(run);
    assert_eq!((run.status, run.plan_version), (RunStatus::Completed, 2), "{:?}", run.last_error);
    check(&bench);
}
