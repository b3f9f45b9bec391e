//! Planners that are programs: a plan with mistakes is sent back with what is wrong, twice, as a model's is.

use crate::agents::{agent, agents_spec, check, found, step, submit, task, tree};
use crate::bench::{Bench, now, settings};
use crate::machines::Does;
use adapters::FakeProvider;
use adapters::fake::FakeSettings;
use adapters::tool::fake::Fate;
use engine::run::Plans;
use engine::{Config, Listing};
use model::plan::{AgentPlan, MachinePlan, RunPlan, StepPlan};
use model::recovery::ErrorClass;
use model::run::{RunReason, RunStatus};
use model::spec::{PlanRules, RunSpec};
use model::step::{StepStatus, ToolKind};
use model::time::MINUTE;
use model::{Effect, RunId};
use serde_json::{Value, json};
use std::sync::{Arc, Mutex};

/// A run with a goal, and this agent to plan for it.
fn begin(bench: &mut Bench, planner: AgentPlan) -> RunId {
    begin_by(bench, planner, PlanRules { goal: true, ..PlanRules::default() })
}

fn begin_by(bench: &mut Bench, planner: AgentPlan, rules: PlanRules) -> RunId {
    let spec = RunSpec { plan: rules, ..agents_spec() };
    let document =
        json!({ "type": "agents", "goal": "anything", "planner": { "exec": ["./plan"], "allow": ["http"] } });
    let shared = RunPlan { goal: Some("anything".into()), document: Some(document), ..RunPlan::default() };
    let run = submit(bench, spec, Plans { shared, planner: Some(planner), ..Plans::default() });
    bench.advance(MINUTE);
    run
}

fn good() -> Value {
    json!({ "agents": [{ "name": "one", "tasks": [{ "steps": [{ "http": { "url": "https://works.example/" } }] }] }] })
}

/// The n-th answers, what the run comes to, and how often the planner is called.
fn table() -> [(Vec<Value>, RunStatus, usize); 3] {
    let command = json!({ "agents": [{ "tasks": [{ "steps": [{ "name": "x", "command": "true" }] }] }] });
    [
        (vec![json!({ "agents": [] }), good()], RunStatus::Completed, 2),
        (vec![json!("no plan"), command.clone(), good()], RunStatus::Completed, 3),
        (vec![command.clone(), command.clone(), command, good()], RunStatus::Failed, 3),
    ]
}

#[track_caller]
fn ends_as(bench: &Bench, run: RunId, status: RunStatus, tries: usize) {
    let end = bench.run(run);
    assert_eq!(end.status, status, "{:?}", end.last_error);
    let attempt = bench.snapshot(run).attempt.unwrap();
    assert_eq!(attempt.tree.retries, 0, "what a planner is told uses up no retry");
    let plan = found(bench, run, "plan");
    assert_eq!(plan.tries, tries as i64);
    if status == RunStatus::Failed {
        assert_eq!(end.termination.unwrap().reason, RunReason::PlannerFailed);
        assert_eq!((plan.status, plan.last_error.unwrap().code.as_str()), (StepStatus::Failed, "invalid_output"));
    }
    check(bench);
}

#[test]
fn a_plan_with_mistakes_is_sent_back_with_them_twice() {
    for (answers, status, tries) in table() {
        let mut bench = Bench::new();
        let told = Arc::new(Mutex::new(Vec::new()));
        let (notes, mut answers) = (told.clone(), answers.into_iter());
        bench.tool.decide_by(Box::new(move |call, _| match call.input["of"] == "plan" {
            true => {
                notes.lock().unwrap().push(call.input["input"]["errors"].clone());
                Fate::answer(answers.next().unwrap())
            }
            false => Fate::answer(json!({})),
        }));
        let run = begin(&mut bench, agent("planner", vec![task("plan", vec![step("plan")])]));
        ends_as(&bench, run, status, tries);
        let plan = now(bench.engine.run_values(bench.org, run)).unwrap().plan;
        assert_eq!(plan, (status == RunStatus::Completed).then(good), "the run shows the plan that was made");
        let told = told.lock().unwrap().clone();
        assert_eq!((told.len(), &told[0]), (tries, &Value::Null), "the first try has made no mistake yet");
        for errors in &told[1..] {
            assert!(errors.as_str().is_some_and(|errors| errors.starts_with("its plan cannot be used: ")), "{told:?}");
        }
        let key = found(&bench, run, "plan").key.unwrap();
        assert_eq!(bench.tool.seen_of(&key).calls, tries as u32, "one question, one key");
    }
}

#[test]
fn the_plan_of_a_program_on_a_machine_is_sent_back_too() {
    for (answers, status, tries) in table() {
        let mut bench = Bench::new();
        let sizes = Arc::new(Mutex::new(Vec::new()));
        let (notes, mut answers) = (sizes.clone(), answers.into_iter());
        bench.runners.script = Some(Box::new(move |step| {
            notes.lock().unwrap().push(step.stdin.as_ref().unwrap().size);
            Does::answers(answers.next().unwrap())
        }));
        let exec = StepPlan {
            input: json!({ "argv": ["./plan"] }),
            idempotent: true,
            ..StepPlan::new("plan", ToolKind::Exec)
        };
        let planner = agent("planner", vec![task("plan", vec![exec])]);
        let run = begin(&mut bench, AgentPlan { machine: Some(MachinePlan::default()), ..planner });
        ends_as(&bench, run, status, tries);
        let sizes = sizes.lock().unwrap().clone();
        assert_eq!(sizes.len(), tries);
        assert!(sizes[1..].iter().all(|size| *size > sizes[0]), "it reads the errors: {sizes:?}");
    }
}

/// A worker dies while the planner thinks again: the next worker gives it the same errors.
#[test]
fn a_planner_that_is_asked_again_by_another_worker_is_told_the_same() {
    let mut bench = Bench::new();
    let told = Arc::new(Mutex::new(Vec::new()));
    let notes = told.clone();
    bench.tool.decide_by(Box::new(move |call, _| {
        if call.input["of"] != "plan" {
            return Fate::answer(json!({}));
        }
        let mut notes = notes.lock().unwrap();
        notes.push(call.input["input"]["errors"].clone());
        match notes.len() {
            1 => Fate::answer(json!("no plan")),
            2 => Fate::hang(),
            _ => Fate::answer(good()),
        }
    }));
    let planner = StepPlan { timeout_ms: 10 * MINUTE, ..step("plan") };
    let run = begin(&mut bench, agent("planner", vec![task("plan", vec![planner])]));
    assert_eq!(bench.tool.hanging().len(), 1);
    bench.restart();
    bench.advance(MINUTE);
    assert_eq!(bench.run(run).status, RunStatus::Completed, "{:?}", bench.run(run).last_error);
    let told = told.lock().unwrap().clone();
    assert!(told[1].is_string() && told[2..] == told[1..2], "{told:?}");
    check(&bench);
}

/// A bench whose machines have at most four processors, and beside them a provider that bills.
fn with_a_market() -> Bench {
    let mut own = settings(4);
    own.capabilities.largest.cpu_milli = Some(4_000);
    let bench = Bench::with(own, Config::default());
    let mut paid = FakeSettings { name: "paid".into(), ..settings(4) };
    paid.capabilities.bills = true;
    let paid = FakeProvider::new(paid, Box::new(|_, _| adapters::fake::Fate::Obey));
    bench.engine.context.providers.insert("paid".into(), Listing::of(Arc::new(paid)));
    bench
}

/// What a planner that answers with these plans is told before each of them, and what becomes of its step.
fn planned_by(document: Value, plans: Vec<Value>) -> (Vec<Value>, StepStatus) {
    let mut bench = with_a_market();
    let told = Arc::new(Mutex::new(Vec::new()));
    let (notes, mut answers) = (told.clone(), plans.into_iter());
    bench.tool.decide_by(Box::new(move |call, _| match call.input["of"] == "plan" {
        true => {
            notes.lock().unwrap().push(call.input["input"].clone());
            Fate::answer(answers.next().unwrap())
        }
        false => Fate::answer(json!({})),
    }));
    let shared = RunPlan { goal: Some("anything".into()), document: Some(document), ..RunPlan::default() };
    let planner = Some(agent("planner", vec![task("plan", vec![step("plan")])]));
    let spec = RunSpec { plan: PlanRules { goal: true, ..PlanRules::default() }, ..agents_spec() };
    let run = submit(&mut bench, spec, Plans { shared, planner, ..Plans::default() });
    bench.advance(MINUTE);
    let told = told.lock().unwrap().clone();
    (told, found(&bench, run, "plan").status)
}

fn on_a_machine(fields: Value) -> Value {
    let mut agent = json!({ "name": "one", "tasks": [{ "steps": [{ "name": "x", "command": "true" }] }] });
    agent.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    json!({ "agents": [agent] })
}

#[test]
fn a_plan_that_asks_for_what_is_not_here_is_sent_back_with_the_reason() {
    let allow = json!(["http", "command"]);
    let document = json!({ "type": "agents", "goal": "g", "planner": { "exec": ["./plan"], "allow": allow } });
    let model = json!({ "agents": [{ "name": "one", "tasks": [{ "steps": [{ "llm": { "model": "gpt-4", "prompt": "p" } }] }] }] });
    let table = [
        (model, "agents.one: step step-1: there is no model `gpt-4`"),
        (
            on_a_machine(json!({ "provider": "paid" })),
            "agents.one: provider: `paid` bills, and the run's file does not name it: choose one of fake",
        ),
        (on_a_machine(json!({ "provider": "elsewhere" })), "`elsewhere` is not set up here"),
        (on_a_machine(json!({ "region": "mars" })), "`mars` is not a region of fake"),
        (on_a_machine(json!({ "resources": { "cpu": 64 } })), "agents.one: asked for 64 cores"),
        (on_a_machine(json!({ "env": { "A": "x".repeat(200_000) } })), "agents.one.env: more than 128 KiB"),
    ];
    for (bad, why) in table {
        let (told, status) = planned_by(document.clone(), vec![bad, good()]);
        assert_eq!((told.len(), status), (2, StepStatus::Completed), "{why}");
        let errors = told[1]["errors"].as_str().unwrap();
        assert!(errors.starts_with("its plan cannot be used: ") && errors.contains(why), "{errors}");
    }
}

/// It is told so before it answers.
#[test]
fn a_planner_takes_a_provider_that_bills_only_if_the_file_says_so() {
    let own =
        json!({ "name": "fake", "regions": ["here", "there"], "bills": false, "default": true, "largest": "4 cores" });
    let paid = json!({ "name": "paid", "regions": ["here", "there"], "bills": true });
    let file =
        |allow: Value| json!({ "type": "agents", "goal": "g", "planner": { "exec": ["./plan"], "allow": allow } });
    let mut names = file(json!(["command"]));
    names.as_object_mut().unwrap().remove("goal");
    names["agents"] = on_a_machine(json!({ "provider": "paid" }))["agents"].clone();
    let table = [
        (file(json!(["command"])), 3, json!([own])),
        (file(json!(["command", "providers"])), 1, json!([own, paid])),
        (names, 1, json!([own, paid])),
    ];
    for (document, tries, providers) in table {
        let (told, status) = planned_by(document, vec![on_a_machine(json!({ "provider": "paid" })); 3]);
        let expected = if tries == 3 { StepStatus::Failed } else { StepStatus::Completed };
        assert_eq!((told.len(), status), (tries, expected));
        let tools = json!(["llm", "approval", "wait", "command"]);
        let may_use = json!({ "tools": tools, "models": [], "providers": providers, "secrets": false });
        assert_eq!(told[0]["may_use"], may_use);
    }
}

/// What an earlier plan did under the same names answers from its record, so the planner is told what that is: the plan as it was written,
/// how each agent ended, and the first fifty steps that have finished.
#[test]
fn a_planner_that_plans_again_is_told_what_was_planned_and_what_has_finished() {
    let get = |name: &str, host: &str| {
        let url = format!("https://{host}.example/{name}");
        json!({ "name": name, "http": { "url": url } })
    };
    let plan_of =
        |steps: Vec<Value>| json!({ "agents": [{ "name": "one", "tasks": [{ "name": "all", "steps": steps }] }] });
    let first: Vec<Value> = (0..60).map(|n| get(&format!("s{n}"), "works")).chain([get("last", "bad")]).collect();
    let first = plan_of(first);
    let second = plan_of(vec![get("s0", "works"), get("s1", "elsewhere"), get("new", "works")]);
    let mut bench = Bench::new();
    let told = Arc::new(Mutex::new(Vec::new()));
    let (notes, mut answers) = (told.clone(), vec![first.clone(), second].into_iter());
    bench.tool.decide_by(Box::new(move |call, _| match call.input["url"].as_str() {
        None => {
            notes.lock().unwrap().push(call.input["input"].clone());
            Fate::answer(answers.next().unwrap())
        }
        Some(url) if url.starts_with("https://bad.") => Fate::fail(ErrorClass::Permanent, Effect::Done),
        Some(_) => Fate::answer(json!({})),
    }));
    let rules = PlanRules { goal: true, replans: 1, ..PlanRules::default() };
    let run = begin_by(&mut bench, agent("planner", vec![task("plan", vec![step("plan")])]), rules);
    bench.advance(MINUTE);
    assert_eq!(bench.run(run).status, RunStatus::Completed, "{:?}", bench.run(run).last_error);
    let told = told.lock().unwrap().clone();
    assert_eq!((told.len(), &told[0]["goal"], &told[0]["previous"]), (2, &json!("anything"), &Value::Null));
    let (goal, previous) = (&told[1]["goal"], &told[1]["previous"]);
    assert_eq!((goal, &previous["plan"]), (&json!("anything"), &first));
    let agents = previous["agents"].as_array().unwrap();
    assert_eq!(agents.len(), 1, "the planner is none of them: {agents:?}");
    let one = &agents[0];
    assert_eq!(
        (&one["name"], &one["status"], &one["error"]["code"]),
        (&json!("one"), &json!("failed"), &json!("scripted"))
    );
    let finished: Vec<String> = (0..50).map(|n| format!("all/s{n}")).collect();
    assert_eq!(one["finished"], json!(finished), "sixty have finished");
    let tree = tree(&bench, run);
    let newest = tree.agents.iter().max_by_key(|agent| agent.plan_version).unwrap().id;
    let of_second = |name: &str| tree.steps.iter().find(|step| step.agent == newest && step.name == name).unwrap();
    for (name, replayed) in [("s0", true), ("s1", false), ("new", false)] {
        let step = of_second(name);
        assert_eq!((step.status, step.replayed), (StepStatus::Completed, replayed), "{name}");
        assert_eq!(bench.tool.seen_of(step.key.as_ref().unwrap()).calls, 1, "{name}");
    }
    check(&bench);
}
