//! Runs of agents as people of the simulated world ask for them: modes at all levels, steps that may be repeated and steps that may
//! not, dialogues, people's words, commands with durable steps, planners.

use crate::cached_run;
use crate::chance::Chance;
use crate::client::plain;
use crate::machine::{Plan, Steps};
use crate::outsider::TOOL;
use engine::run::Plans;
use model::Credits;
use model::plan::{AgentPlan, LLM_TURN_TIMEOUT_MS, MachinePlan, Policy, RunPlan, StepPlan, TaskPlan, ToolPlan};
use model::recovery::OnExhausted;
use model::spec::{Command, FailureMode, PlanRules, Retry, RetryEvent, RunKind, RunSpec};
use model::step::ToolKind;
use model::time::{MINUTE, SECOND};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Where a step stands, and what its agent has.
struct Place {
    name: String,
    machine: bool,
    /// Its input names it, so that its key can be compared.
    path: String,
}

pub fn draw(number: u64, chance: &mut Chance) -> (RunSpec, Plans) {
    let agents: Vec<AgentPlan> = (0..chance.between(1, 4)).map(|n| agent(number, chance, format!("a{n}"))).collect();
    let planned = chance.one_in(4);
    let goal = planned && chance.one_in(2);
    let rules = PlanRules {
        max_agents: chance.pick(&[1, 2, 10]),
        on_exhausted: chance.pick(&[OnExhausted::Abort, OnExhausted::Abort, OnExhausted::Escalate]),
        replans: if planned { chance.pick(&[1, 2]) } else { 0 },
        goal,
        ..PlanRules::default()
    };
    let retry = chance.one_in(2).then(|| Retry {
        max_attempts: chance.between(2, 4),
        on_events: vec![RetryEvent::NoCapacity, RetryEvent::Interruption],
        duration_ms: None,
        delay_ms: None,
    });
    let spec = RunSpec {
        kind: RunKind::Agents,
        command: Command::Argv(Vec::new()),
        failure_mode: mode(chance),
        retry,
        // As for a task: the last ends the run within a minute of its machines.
        budget: chance.pick(&[None, None, None, Some(Credits(5_000)), Some(Credits(100))]),
        ..plain(String::new())
    };
    let document = planned.then(|| document(rules.max_agents, goal));
    let shared = RunPlan { tools: tools(), goal: goal.then(|| "anything".to_owned()), document, ..RunPlan::default() };
    let agents = if goal { Vec::new() } else { agents };
    let plans = Plans { shared, agents, planner: planned.then(planner), document: None };
    (RunSpec { plan: rules, ..spec }, plans)
}

fn mode(chance: &mut Chance) -> FailureMode {
    chance.pick(FailureMode::ALL)
}

fn agent(number: u64, chance: &mut Chance, name: String) -> AgentPlan {
    let machine = chance.one_in(2);
    let tasks = (0..chance.between(1, 4) as usize).map(|position| {
        let path = format!("{number}/{name}/t{position}");
        match chance.one_in(6) {
            true => TaskPlan {
                for_each: Some(chance.pick(&[&[][..], &[1, 2], &[1, 2, 3]]).into()),
                ..task(chance, position, &format!("{path}/${{{{ item }}}}"), machine)
            },
            false => task(chance, position, &path, machine),
        }
    });
    let tasks = tasks.collect();
    let machine = machine.then(MachinePlan::default);
    AgentPlan { mode: mode(chance), parallel: chance.between(1, 3), machine, ..AgentPlan::new(&name, tasks) }
}

fn task(chance: &mut Chance, position: usize, path: &str, machine: bool) -> TaskPlan {
    let steps = (0..chance.between(1, 4)).map(|n| {
        let name = format!("s{n}");
        let path = format!("{path}/{name}");
        step(chance, Place { name, machine, path })
    });
    let mut steps: Vec<StepPlan> = steps.collect();
    steps.iter_mut().for_each(|step| step.condition = condition(chance));
    let after = if position > 0 && chance.one_in(3) { vec![position - 1] } else { vec![] };
    let (mode, parallel) = (mode(chance), chance.between(1, 3));
    TaskPlan { mode, parallel, after, condition: condition(chance), ..TaskPlan::new(&format!("t{position}"), steps) }
}

/// Most are needed.
fn condition(chance: &mut Chance) -> Option<String> {
    let known = [None, None, None, None, Some("${{ 1 == 1 }}"), Some("${{ 1 == 2 }}")];
    chance.pick(&known).map(str::to_owned)
}

fn step(chance: &mut Chance, place: Place) -> StepPlan {
    if place.machine && chance.one_in(2) {
        return command(chance, place.name);
    }
    match chance.between(0, 20) {
        0..3 => dialogue(chance, &place.name),
        3 => approval(chance, &place.name),
        4 => StepPlan {
            input: json!({ "for": chance.pick(&["1s", "1m"]) }),
            ..StepPlan::new(&place.name, ToolKind::Wait)
        },
        16..18 => external(chance, place),
        18.. => cached_run::step(chance, &place.name),
        kind => request(chance, place, kind < 7),
    }
}

/// One that a program outside takes by a poll.
fn external(chance: &mut Chance, place: Place) -> StepPlan {
    let input = json!({ "tool": TOOL, "input": { "name": place.path } });
    StepPlan {
        verify: verify(chance, &place.path),
        idempotent: chance.one_in(2),
        timeout_ms: chance.pick(&[40 * SECOND, 10 * MINUTE]),
        input,
        ..StepPlan::new(&place.name, ToolKind::External)
    }
}

/// A request, perhaps of one that a person has to approve.
fn request(chance: &mut Chance, place: Place, asks: bool) -> StepPlan {
    let once = chance.one_in(2);
    // What fails although it did something may be done again by a retry of what is above it.
    let ends = if !once && chance.one_in(4) { "badly" } else { "well" };
    let mut input = json!({ "once": once, "ends": ends });
    // An input that a person has changed has another key.
    let verify = verify(chance, &place.path).filter(|_| !asks);
    let (field, value) = if asks { ("asks", true.into()) } else { ("name", Value::from(place.path)) };
    input[field] = value;
    let policy = asks.then_some(Policy::Ask);
    StepPlan { idempotent: !once, policy, input, verify, ..StepPlan::new(&place.name, ToolKind::Http) }
}

/// Asks the far side about the step of this name.
fn verify(chance: &mut Chance, path: &str) -> Option<Box<StepPlan>> {
    let input = json!({ "verifies": path });
    chance.one_in(3).then(|| StepPlan { idempotent: true, input, ..StepPlan::new("verify", ToolKind::Http) }.into())
}

/// A command on the agent's machine. What it leaves there may be needed later, or not kept.
fn command(chance: &mut Chance, name: String) -> StepPlan {
    let once = chance.one_in(2);
    let ms = chance.pick(&[0, SECOND, 15 * SECOND, MINUTE]);
    let exit_code = if !once && chance.one_in(5) { 1 } else { 0 };
    let text = Plan::text(ms, exit_code, chance.pick(&[0, 30, 3000]));
    let text = if chance.one_in(3) { Steps::draw(chance).after(text) } else { text };
    StepPlan {
        idempotent: !once,
        retry_interrupted: chance.one_in(4),
        files: chance.one_in(2).then(Vec::new),
        timeout_ms: chance.pick(&[30 * SECOND, 10 * MINUTE]),
        input: json!({ "shell": text }),
        ..StepPlan::new(&name, ToolKind::Command)
    }
}

fn dialogue(chance: &mut Chance, name: &str) -> StepPlan {
    let tools = chance.pick(&[&["look"][..], &["look", "act"], &["look", "act", "ask", "no"]]);
    let input = json!({ "model": "sim", "prompt": "go", "tools": tools, "max_turns": chance.pick(&[1, 2, 4]) });
    let output = chance.one_in(5).then(|| json!({ "type": "object", "required": ["n"] }));
    StepPlan { idempotent: true, input, output, timeout_ms: LLM_TURN_TIMEOUT_MS, ..StepPlan::new(name, ToolKind::Llm) }
}

/// Some wait for a word that never comes.
fn approval(chance: &mut Chance, name: &str) -> StepPlan {
    let expires_ms = chance.pick(&[MINUTE, 10 * MINUTE]);
    StepPlan { input: json!({ "text": "go on?", "expires_ms": expires_ms }), ..StepPlan::new(name, ToolKind::Approval) }
}

/// What models may call.
fn tools() -> BTreeMap<String, ToolPlan> {
    let tool = |policy: Policy, once: bool| ToolPlan {
        tool: ToolKind::Http,
        description: String::new(),
        args: BTreeMap::from([("n".to_owned(), json!({ "type": "integer" }))]),
        policy,
        idempotent: !once,
        timeout_ms: Some(30 * SECOND),
        input: json!({ "once": once, "asks": policy == Policy::Ask, "n": "${{ args.n }}" }),
    };
    let all = [
        ("look", tool(Policy::Allow, false)),
        ("act", tool(Policy::Allow, true)),
        ("ask", tool(Policy::Ask, true)),
        ("no", tool(Policy::Deny, true)),
    ];
    all.map(|(name, tool)| (name.to_owned(), tool)).into()
}

fn planner() -> AgentPlan {
    let input = json!({ "model": "sim" });
    let step =
        StepPlan { idempotent: true, input, timeout_ms: LLM_TURN_TIMEOUT_MS, ..StepPlan::new("plan", ToolKind::Llm) };
    AgentPlan::new("planner", vec![TaskPlan::new("plan", vec![step])])
}

/// By its rules what the planner answers is checked.
fn document(max_agents: i64, goal: bool) -> Value {
    let mut document = json!({ "type": "agents", "planner": { "llm": { "model": "sim" }, "allow": ["http"] }, "max_agents": max_agents });
    match goal {
        true => document["goal"] = "anything".into(),
        false => document["agents"] = json!([{ "tasks": [{ "steps": [{ "wait": "1s" }] }] }]),
    }
    document
}
