//! Runs of agents on a tool in memory: what begins, what an end decides, what is never repeated. Plans are given compiled, without the
//! files that users write.

use crate::bench::{Bench, now, shown, spec};
use adapters::tool::fake::Fate;
use engine::question::{Verdict, Word};
use engine::run::{Action, Plans, Submission};
use engine::view::Tree;
use model::agent::AgentStatus;
use model::plan::{AgentPlan, RunPlan, StepPlan, TaskPlan};
use model::recovery::{ErrorClass, OnExhausted};
use model::run::{RunOutcome, RunReason, RunStatus, Ticket};
use model::spec::{Command, FailureMode, PlanRules, RunKind, RunSpec};
use model::step::{Step, StepStatus, StepWait, ToolKind};
use model::task::TaskStatus;
use model::time::{MINUTE, SECOND};
use model::{Effect, RunId};
use serde_json::json;

pub fn step(name: &str) -> StepPlan {
    StepPlan { input: json!({ "of": name }), idempotent: true, ..StepPlan::new(name, ToolKind::Http) }
}

/// One that must not be repeated.
pub fn once(name: &str) -> StepPlan {
    StepPlan { idempotent: false, ..step(name) }
}

pub fn task(name: &str, steps: Vec<StepPlan>) -> TaskPlan {
    TaskPlan::new(name, steps)
}

pub fn agent(name: &str, tasks: Vec<TaskPlan>) -> AgentPlan {
    AgentPlan::new(name, tasks)
}

pub fn agents_spec() -> RunSpec {
    RunSpec { kind: RunKind::Agents, command: Command::Argv(vec![]), ..spec() }
}

pub fn submit(bench: &mut Bench, spec: RunSpec, plans: Plans) -> RunId {
    let key = bench.key();
    loop {
        let submission =
            Submission { org: bench.org, by: None, name: None, spec: spec.clone(), plans: plans.clone(), start: true };
        let answer = now(bench.engine.submit(submission, Some(key.clone()), shown()));
        if !bench.revive() {
            return String::from_utf8(answer.unwrap().body).unwrap().parse().unwrap();
        }
    }
}

pub fn submit_agents(bench: &mut Bench, agents: Vec<AgentPlan>) -> RunId {
    submit(bench, agents_spec(), Plans { agents, ..Plans::default() })
}

pub fn tree(bench: &Bench, run: RunId) -> Tree {
    now(bench.engine.tree(bench.org, run)).unwrap()
}

pub fn found(bench: &Bench, run: RunId, name: &str) -> Step {
    tree(bench, run).steps.into_iter().rfind(|step| step.name == name).unwrap_or_else(|| panic!("no step {name}"))
}

/// The tool fails every call of the step of this name.
fn fails(bench: &Bench, name: &'static str, class: ErrorClass, effect: Effect) {
    bench.tool.decide_by(Box::new(move |call, _| match call.input["of"] == name {
        true => Fate::fail(class, effect),
        false => Fate::answer(call.input.clone()),
    }));
}

fn hangs(bench: &Bench, name: &'static str) {
    bench.tool.decide_by(Box::new(move |call, _| match call.input["of"] == name {
        true => Fate::hang(),
        false => Fate::answer(call.input.clone()),
    }));
}

fn effects(bench: &Bench) -> Vec<u32> {
    bench.tool.seen().values().map(|seen| seen.effects).collect()
}

pub fn open_ticket(bench: &Bench) -> model::QuestionId {
    let open = now(bench.engine.questions(bench.org, StepWait::Ticket, true, i64::MAX, 10)).unwrap();
    assert_eq!(open.len(), 1, "{open:?}");
    open[0].id
}

pub fn resolve(bench: &mut Bench, ticket: Ticket) {
    say(bench, Verdict::Resolve(ticket));
}

fn say(bench: &mut Bench, verdict: Verdict) {
    let (id, key) = (open_ticket(bench), bench.key());
    let word = Word { by: "laptop".into(), verdict, note: None };
    now(bench.engine.answer(bench.org, id, word, Some(key))).unwrap();
    bench.settle();
}

#[test]
fn a_plan_is_worked_through_and_each_step_is_called_once() {
    let mut bench = Bench::new();
    let tasks = || vec![task("first", vec![step("a"), step("b")]), task("second", vec![step("c")])];
    let run = submit_agents(&mut bench, vec![agent("one", tasks()), agent("two", tasks())]);
    bench.settle();
    let found = bench.run(run);
    assert_eq!((found.status, found.outcome), (RunStatus::Completed, Some(RunOutcome::Success)));
    assert_eq!((found.agent_count, found.task_count, found.step_count), (2, 4, 6));
    assert_eq!(effects(&bench), [1; 6]);
    check(&bench);
}

/// A tool that knows its limit can leave itself time to tell "not connected" from "not answered".
#[test]
fn a_tool_is_told_the_time_limit_of_its_step() {
    let mut bench = Bench::new();
    let told = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let notes = told.clone();
    bench.tool.decide_by(Box::new(move |call, _| {
        notes.lock().unwrap().push(call.timeout_ms);
        Fate::answer(json!({}))
    }));
    let steps =
        vec![StepPlan { timeout_ms: 5 * MINUTE, ..step("long") }, StepPlan { timeout_ms: 500, ..step("short") }];
    submit_agents(&mut bench, vec![agent("one", vec![task("all", steps)])]);
    bench.settle();
    assert_eq!(*told.lock().unwrap(), [Some(5 * MINUTE), Some(500)]);
}

#[test]
fn the_end_of_a_step_and_the_beginning_of_the_next_are_one_commit() {
    let mut bench = Bench::new();
    let steps = (0..10).map(|n| step(&n.to_string())).collect();
    submit_agents(&mut bench, vec![agent("one", vec![task("all", steps)])]);
    bench.crashes.count();
    bench.settle();
    let commits = bench.crashes.writes.lock().unwrap().iter().filter(|name| **name == "agent.advance").count();
    // Two to begin (the first learns what has to be evaluated), and one for each end.
    assert_eq!(commits, 12);
}

#[test]
fn finished_steps_answer_from_their_record_in_every_attempt() {
    let mut bench = Bench::new();
    fails(&bench, "bad", ErrorClass::Permanent, Effect::Done);
    let spec = RunSpec { failure_mode: FailureMode::Retry, ..agents_spec() };
    let plan = agent("one", vec![task("all", vec![once("paid"), step("bad")])]);
    let run = submit(&mut bench, spec, Plans { agents: vec![plan], ..Plans::default() });
    bench.advance(5 * MINUTE);
    assert_eq!((bench.run(run).status, bench.run(run).attempt), (RunStatus::Failed, 3));
    let paid = found(&bench, run, "paid");
    assert!(paid.replayed && paid.status == StepStatus::Completed, "{paid:?}");
    assert_eq!(bench.tool.seen_of(&paid.key.unwrap()).calls, 1, "three attempts, one call");
    check(&bench);
}

#[test]
fn transient_errors_are_tried_again_with_a_pause_and_only_if_nothing_happened() {
    let table = [
        (true, Effect::Perhaps, 3, StepStatus::Failed),
        (false, Effect::None, 3, StepStatus::Failed),
        (false, Effect::Done, 1, StepStatus::Failed),
        (false, Effect::Perhaps, 1, StepStatus::Running), // a person is asked
    ];
    for (idempotent, effect, calls, status) in table {
        let mut bench = Bench::new();
        fails(&bench, "s", ErrorClass::Transient, effect);
        let plan = agent("one", vec![task("all", vec![StepPlan { idempotent, ..step("s") }])]);
        let run = submit_agents(&mut bench, vec![plan]);
        bench.advance(MINUTE);
        let step = found(&bench, run, "s");
        assert_eq!((step.status, step.tries), (status, calls), "{idempotent} {effect:?}");
        assert_eq!(bench.tool.seen_of(&step.key.unwrap()).calls as i64, calls);
        check(&bench);
    }
}

#[test]
fn a_holder_that_dies_leaves_steps_that_are_repeated_or_asked_about() {
    for idempotent in [true, false] {
        let mut bench = Bench::new();
        hangs(&bench, "s");
        let plan = agent("one", vec![task("all", vec![StepPlan { idempotent, ..step("s") }, step("after")])]);
        let run = submit_agents(&mut bench, vec![plan]);
        bench.settle();
        assert_eq!(bench.tool.hanging().len(), 1);
        bench.restart();
        bench.tool.decide_by(Box::new(|call, _| Fate::answer(call.input.clone())));
        bench.advance(20 * SECOND);
        let step = found(&bench, run, "s");
        if idempotent {
            assert_eq!((step.status, step.tries), (StepStatus::Completed, 2));
            assert_eq!(bench.run(run).status, RunStatus::Completed);
            check(&bench);
            continue;
        }
        assert!(step.status == StepStatus::Running && !step.uncertain, "its holder may still report: {step:?}");
        // Its time limit and a lease have passed.
        bench.advance(2 * MINUTE);
        assert!(found(&bench, run, "s").uncertain);
        assert_eq!(bench.run(run).status, RunStatus::Paused);
        assert_eq!(bench.tool.seen_of(&step.key.unwrap()).calls, 1, "never silently repeated");
        resolve(&mut bench, Ticket::Done);
        bench.advance(SECOND);
        assert_eq!(bench.run(run).status, RunStatus::Completed);
        check(&bench);
    }
}

/// A failure whose effect is known leaves nothing to ask about, also where the step must not be repeated by itself.
#[test]
fn a_retried_task_calls_a_step_again_that_surely_failed() {
    for effect in [Effect::None, Effect::Done] {
        let mut bench = Bench::new();
        let calls = std::sync::atomic::AtomicU32::new(0);
        bench.tool.decide_by(Box::new(move |call, _| match calls.fetch_add(1, std::sync::atomic::Ordering::Relaxed) {
            0 => Fate::fail(ErrorClass::Permanent, effect),
            _ => Fate::answer(call.input.clone()),
        }));
        let retried = TaskPlan { max_tries: 2, mode: FailureMode::Retry, ..task("all", vec![once("bad")]) };
        let run = submit_agents(&mut bench, vec![agent("one", vec![retried])]);
        bench.advance(2 * MINUTE);
        assert_eq!(bench.run(run).status, RunStatus::Completed, "{effect:?}: {:?}", found(&bench, run, "bad"));
        assert_eq!(bench.tool.seen().values().map(|seen| seen.calls).sum::<u32>(), 2, "{effect:?}");
        check(&bench);
    }
}

/// One step of a task fails while another, which must not be repeated, is under way: that one is cut off, and when the
/// task is tried again a person is asked about it.
#[test]
fn a_retried_task_does_not_repeat_a_step_that_was_cut_off() {
    let mut bench = Bench::new();
    let failed = std::sync::atomic::AtomicBool::new(false);
    bench.tool.decide_by(Box::new(move |call, _| match call.input["of"].as_str() {
        Some("paid") => Fate::hang().happened(),
        Some("bad") if !failed.swap(true, std::sync::atomic::Ordering::Relaxed) => {
            Fate::fail(ErrorClass::Permanent, Effect::None)
        }
        _ => Fate::answer(call.input.clone()),
    }));
    let both = TaskPlan {
        parallel: 2,
        max_tries: 2,
        mode: FailureMode::Retry,
        ..task("both", vec![once("paid"), step("bad")])
    };
    let run = submit_agents(&mut bench, vec![agent("one", vec![both])]);
    bench.advance(2 * MINUTE);
    let paid = found(&bench, run, "paid");
    assert!(paid.uncertain, "whether it happened is a person's to say: {paid:?}");
    assert_eq!(bench.run(run).status, RunStatus::Paused);
    resolve(&mut bench, Ticket::Done);
    bench.advance(MINUTE);
    assert_eq!(bench.run(run).status, RunStatus::Completed, "{:?}", bench.run(run).last_error);
    let seen: Vec<(u32, u32)> = bench.tool.seen().values().map(|seen| (seen.calls, seen.effects)).collect();
    assert!(seen.contains(&(1, 1)), "called once, cut off, and never again: {seen:?}");
    assert_eq!(found(&bench, run, "bad").status, StepStatus::Completed);
    check(&bench);
}

#[test]
fn a_ticket_is_resolved_in_each_of_its_ways() {
    let table = [
        (Ticket::Resume, RunStatus::Completed, 2),
        (Ticket::NotDone, RunStatus::Completed, 2),
        (Ticket::Retry, RunStatus::Completed, 2),
        (Ticket::Skip, RunStatus::Completed, 1),
        (Ticket::Done, RunStatus::Completed, 1),
        (Ticket::Abort, RunStatus::Failed, 1),
    ];
    for (ticket, end, calls) in table {
        let mut bench = Bench::new();
        fails(&bench, "s", ErrorClass::Transient, Effect::Perhaps);
        let run = submit_agents(&mut bench, vec![agent("one", vec![task("all", vec![once("s"), step("after")])])]);
        bench.settle();
        assert_eq!(bench.run(run).status, RunStatus::Paused, "{ticket}");
        bench.tool.decide_by(Box::new(|call, _| Fate::answer(call.input.clone())));
        let key = found(&bench, run, "s").key.unwrap();
        match ticket {
            Ticket::Done => say(&mut bench, Verdict::Done { output: json!({ "id": 7 }) }),
            _ => resolve(&mut bench, ticket),
        }
        bench.advance(MINUTE);
        assert_eq!(bench.run(run).status, end, "{ticket}: {:?}", bench.run(run).last_error);
        assert_eq!(bench.tool.seen_of(&key).calls, calls, "{ticket}");
        let step = found(&bench, run, "s");
        let output = step.answer.map(|answer| {
            let read = move |tx: &mut store::Tx| store::step::data(tx, answer, store::step::Data::Output);
            now(bench.store.read("test.output", read)).unwrap().expect("it has one")
        });
        let (status, output_is, outcome) = match ticket {
            Ticket::Done => (StepStatus::Completed, Some(json!({ "id": 7 })), Some(RunOutcome::Success)),
            Ticket::Skip => (StepStatus::Skipped, None, Some(RunOutcome::Partial)),
            Ticket::Abort => (StepStatus::Cancelled, None, None),
            _ => (StepStatus::Completed, Some(json!({ "of": "s" })), Some(RunOutcome::Success)),
        };
        assert_eq!((step.status, output, bench.run(run).outcome), (status, output_is, outcome), "{ticket}");
        if ticket == Ticket::Abort {
            let reason = bench.run(run).termination.map(|termination| termination.reason);
            assert_eq!(reason, Some(RunReason::EscalationAborted));
        }
        check(&bench);
    }
}

#[test]
fn of_many_who_answer_a_ticket_one_is_heard() {
    let mut bench = Bench::new();
    fails(&bench, "s", ErrorClass::Transient, Effect::Perhaps);
    submit_agents(&mut bench, vec![agent("one", vec![task("all", vec![once("s")])])]);
    bench.settle();
    let id = open_ticket(&bench);
    let answers = (0..20).map(|n| {
        let word = Word { by: format!("person-{n}"), verdict: Verdict::Resolve(Ticket::Skip), note: None };
        now(bench.engine.answer(bench.org, id, word, None))
    });
    assert_eq!(answers.filter(Result::is_ok).count(), 1);
}

#[test]
fn a_cancel_cuts_acts_off_and_says_what_is_unknown() {
    for idempotent in [true, false] {
        let mut bench = Bench::new();
        hangs(&bench, "s");
        let plan = agent("one", vec![task("all", vec![StepPlan { idempotent, ..step("s") }])]);
        let run = submit_agents(&mut bench, vec![plan]);
        bench.settle();
        bench.cancel(run);
        bench.settle();
        assert_eq!(bench.run(run).status, RunStatus::Cancelled);
        let step = found(&bench, run, "s");
        assert_eq!((step.status, step.outcome_unknown), (StepStatus::Cancelled, !idempotent));
        assert_eq!(bench.tool.seen_of(&step.key.unwrap()).cut, 1, "nobody waits for it any more");
        check(&bench);
    }
}

#[test]
fn a_pause_waits_for_acts_and_nothing_runs_until_it_is_resumed() {
    let mut bench = Bench::new();
    hangs(&bench, "s");
    let run = submit_agents(&mut bench, vec![agent("one", vec![task("all", vec![once("s"), step("after")])])]);
    bench.settle();
    bench.act(run, Action::Pause).unwrap();
    bench.settle();
    assert_eq!(bench.run(run).status, RunStatus::Running, "an act is in flight");
    let hanging = bench.tool.hanging()[0].clone();
    assert!(bench.tool.tell(hanging.number, Fate::answer(json!({}))));
    bench.settle();
    assert_eq!(bench.run(run).status, RunStatus::Paused);
    bench.advance(10 * MINUTE);
    assert_eq!(bench.tool.seen().len(), 1, "nothing new begins");
    bench.act(run, Action::Resume).unwrap();
    bench.advance(SECOND);
    assert_eq!(bench.run(run).status, RunStatus::Completed);
    assert_eq!(effects(&bench), [1, 1]);
    check(&bench);
}

#[test]
fn time_limits_hold_at_every_level() {
    let limits = [
        (Some(5), 3_600, 21_600, "timeout"),
        (Some(10_000), 5, 21_600, "timeout"),
        (Some(10_000), 3_600, 5, "timeout"),
    ];
    for (step_s, task_s, agent_s, code) in limits {
        let mut bench = Bench::new();
        hangs(&bench, "s");
        let slow = StepPlan { timeout_ms: step_s.unwrap() * SECOND, max_tries: 1, ..step("s") };
        let all = TaskPlan { timeout_ms: task_s * SECOND, ..task("all", vec![slow]) };
        let plan = AgentPlan { timeout_ms: agent_s * SECOND, ..agent("one", vec![all]) };
        let run = submit_agents(&mut bench, vec![plan]);
        bench.advance(20 * SECOND);
        let found = bench.run(run);
        assert_eq!(found.status, RunStatus::Failed, "{step_s:?} {task_s} {agent_s}");
        assert_eq!(found.last_error.unwrap().code, code);
        check(&bench);
    }
}

#[test]
fn dependents_wait_and_are_skipped_with_what_they_wait_for() {
    for bad in [false, true] {
        let mut bench = Bench::new();
        if bad {
            fails(&bench, "first", ErrorClass::Permanent, Effect::Done);
        }
        let after = |name: &str, after: Vec<usize>| TaskPlan { after, ..task(name, vec![step(name)]) };
        let tasks = vec![after("first", vec![]), after("second", vec![0]), after("third", vec![1])];
        let plan = AgentPlan { parallel: 3, mode: FailureMode::Continue, ..agent("one", tasks) };
        let run = submit_agents(&mut bench, vec![plan]);
        bench.settle();
        let tree = tree(&bench, run);
        let ends: Vec<TaskStatus> = tree.tasks.iter().map(|task| task.status).collect();
        let expected = if bad { TaskStatus::Skipped } else { TaskStatus::Completed };
        assert_eq!(ends, [expected; 3]);
        assert_eq!(bench.tool.seen().len(), if bad { 1 } else { 3 });
        check(&bench);
    }
}

#[test]
fn a_planner_makes_the_next_plan_when_too_much_has_failed() {
    let mut bench = Bench::new();
    let better = json!({ "agents": [{ "name": "better", "tasks": [{ "steps": [{ "http": { "url": "https://works.example/" } }] }] }] });
    let run = replanned(&mut bench, better);
    let found = bench.run(run);
    assert_eq!((found.status, found.plan_version), (RunStatus::Completed, 2), "{:?}", found.last_error);
    let tree = tree(&bench, run);
    let better = tree.agents.iter().find(|agent| agent.name == "better").unwrap();
    assert_eq!((better.status, better.plan_version), (AgentStatus::Completed, 2));
    check(&bench);
}

/// A run whose two agents fail, and whose planner answers with this.
fn replanned(bench: &mut Bench, answer: serde_json::Value) -> RunId {
    bench.tool.decide_by(Box::new(move |call, _| match (call.input["of"].as_str(), call.input.get("input")) {
        (Some("bad"), _) => Fate::fail(ErrorClass::Permanent, Effect::Done),
        // What the planner is told of the plan that failed.
        (Some("plan"), Some(given)) if given["previous"]["agents"][0]["error"]["code"] == "scripted" => {
            Fate::answer(answer.clone())
        }
        (Some("plan"), _) => Fate::fail(ErrorClass::Permanent, Effect::Done),
        _ => Fate::answer(call.input.clone()),
    }));
    let rules = PlanRules { replans: 1, ..PlanRules::default() };
    let spec = RunSpec { failure_mode: FailureMode::Continue, plan: rules, ..agents_spec() };
    let planner = agent("planner", vec![task("plan", vec![step("plan")])]);
    let bad = |name: &str| agent(name, vec![task("all", vec![step("bad")])]);
    let document = json!({ "type": "agents", "failure_mode": "continue", "planner": { "exec": ["./plan"], "allow": ["http"] },
        "agents": [{ "tasks": [{ "steps": [{ "wait": "1s" }] }] }] });
    let shared = RunPlan { document: Some(document), ..RunPlan::default() };
    let run = submit(
        bench,
        spec,
        Plans { shared, agents: vec![bad("one"), bad("two")], planner: Some(planner), ..Plans::default() },
    );
    bench.advance(MINUTE);
    run
}

#[test]
fn a_bad_plan_of_the_planner_ends_the_run() {
    let command = json!({ "agents": [{ "tasks": [{ "steps": [{ "name": "x", "command": "true" }] }] }] });
    for answer in [json!({ "agents": [] }), json!("no plan"), command] {
        let mut bench = Bench::new();
        let run = replanned(&mut bench, answer);
        let found = bench.run(run);
        assert_eq!(found.status, RunStatus::Failed);
        assert_eq!(found.termination.unwrap().reason, RunReason::PlannerFailed);
        check(&bench);
    }
}

#[test]
fn what_is_exhausted_goes_to_a_person_if_asked() {
    let mut bench = Bench::new();
    fails(&bench, "s", ErrorClass::Transient, Effect::None);
    let rules = PlanRules { on_exhausted: OnExhausted::Escalate, ..PlanRules::default() };
    let spec = RunSpec { plan: rules, ..agents_spec() };
    let plan = agent("one", vec![task("all", vec![step("s")])]);
    let run = submit(&mut bench, spec, Plans { agents: vec![plan], ..Plans::default() });
    bench.advance(MINUTE);
    assert_eq!(bench.run(run).status, RunStatus::Paused);
    bench.tool.decide_by(Box::new(|call, _| Fate::answer(call.input.clone())));
    resolve(&mut bench, Ticket::Resume);
    bench.advance(MINUTE);
    assert_eq!(bench.run(run).status, RunStatus::Completed);
    check(&bench);
}

/// An attempt that fails is followed by another one; in the last one the step is still there to be tried again.
#[test]
fn a_run_whose_attempts_are_used_up_goes_to_a_person_if_asked() {
    for on_exhausted in [OnExhausted::Escalate, OnExhausted::Abort] {
        let mut bench = Bench::new();
        fails(&bench, "s", ErrorClass::Permanent, Effect::None);
        let rules = PlanRules { on_exhausted, ..PlanRules::default() };
        let spec = RunSpec { failure_mode: FailureMode::Retry, plan: rules, ..agents_spec() };
        let plan = agent("one", vec![task("all", vec![once("paid"), step("s")])]);
        let run = submit(&mut bench, spec, Plans { agents: vec![plan], ..Plans::default() });
        bench.advance(5 * MINUTE);
        let asked = on_exhausted == OnExhausted::Escalate;
        let status = if asked { RunStatus::Paused } else { RunStatus::Failed };
        assert_eq!((bench.run(run).status, bench.run(run).attempt), (status, 3));
        check(&bench);
        if asked {
            bench.tool.decide_by(Box::new(|call, _| Fate::answer(call.input.clone())));
            resolve(&mut bench, Ticket::Resume);
            bench.advance(MINUTE);
            assert_eq!((bench.run(run).status, bench.run(run).attempt), (RunStatus::Completed, 3));
            check(&bench);
        }
    }
}

/// The holder dies before and after each of its commits, and is started again: nothing is lost, nothing that must not be is repeated.
#[test]
fn dying_around_every_commit_of_agents_repeats_no_effect() {
    let story = |bench: &mut Bench| {
        let all = vec![once("paid"), step("a"), once("again"), step("b")];
        let two = TaskPlan { parallel: 2, ..task("two", vec![step("x"), once("y"), step("z")]) };
        submit_agents(bench, vec![agent("one", vec![task("all", all)]), agent("other", vec![two])])
    };
    let mut bench = Bench::new();
    bench.crashes.count();
    story(&mut bench);
    bench.advance(SECOND);
    let writes = bench.crashes.writes.lock().unwrap().len();
    assert!(writes > 10);
    for write in 0..writes {
        for moment in [store::Moment::Before, store::Moment::After] {
            let mut bench = Bench::new();
            bench.crashes.arm(write, moment);
            let run = story(&mut bench);
            for _ in 0..4 {
                bench.advance(2 * MINUTE);
                if bench.run(run).status == RunStatus::Paused {
                    resolve(&mut bench, Ticket::Skip); // it was begun, and its holder died
                }
            }
            assert_eq!(bench.run(run).status, RunStatus::Completed, "died at write {write} {moment:?}");
            for step in tree(&bench, run).steps.iter().filter(|step| !step.idempotent) {
                let seen = step.key.as_ref().map(|key| bench.tool.seen_of(key)).unwrap_or_default();
                assert!(seen.calls <= 1, "{step:?} was called {} times", seen.calls);
            }
            check(&bench);
        }
    }
}

/// The audit finds nothing.
pub fn check(bench: &Bench) {
    let audit = now(bench.engine.audit()).unwrap();
    assert!(audit.broken.is_empty(), "{:?}", audit.broken);
}
