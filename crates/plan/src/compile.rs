//! From a checked document to what the engine stores and runs: names become positions, defaults are filled in. Templates stay text, because
//! they are rendered when a step is ready.

use crate::check::names_secret;
use crate::document::{Agent, Call, Document, Parallelism, Planner, Step, Task, Tool};
use crate::early::agents_with_inputs;
use crate::problem::Problem;
use model::Credits;
use model::plan::{
    AGENT_TIMEOUT_MS, AgentPlan, DEFAULT_PARALLEL_STEPS, DEFAULT_PARALLEL_TASKS, MachinePlan, PlannerPlan, Policy,
    STEP_TIMEOUT_MS, StepPlan, TASK_TIMEOUT_MS, TaskPlan, ToolPlan,
};
use model::recovery::MAX_TRIES;
use model::spec::{DEFAULT_MAX_ATTEMPTS, FailureMode, PlanRules, Priority, Sandbox};
use model::step::ToolKind;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};

/// A document, ready to run. It can be stored: what a later version adds has a default.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Compiled {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// None if a planner makes them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub agents: Vec<AgentPlan>,
    pub rules: PlanRules,
    pub failure_mode: FailureMode,
    pub max_attempts: i64,
    /// Tokens that one agent may use.
    pub max_tokens: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<Credits>,
    pub max_duration_ms: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<Priority>,
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub inputs: Map<String, Value>,
    /// A template over `agents`, `inputs` and `run`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<Value>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub tools: BTreeMap<String, ToolPlan>,
    /// A template over `inputs`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub goal: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub planner: Option<PlannerPlan>,
    /// As the file says them; the client that submits the run sends these files.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<Sandbox>,
}

pub fn compile(document: &Document) -> Compiled {
    Compiled {
        name: document.name.clone(),
        agents: compile_agents(&document.agents, document),
        rules: PlanRules {
            max_agents: document.max_agents,
            replans: document.replans,
            on_exhausted: document.on_exhausted,
            ..PlanRules::default()
        },
        failure_mode: document.failure_mode,
        max_attempts: document.max_attempts.unwrap_or(DEFAULT_MAX_ATTEMPTS),
        max_tokens: document.max_tokens,
        budget: document.budget,
        max_duration_ms: document.max_duration_ms,
        priority: document.priority,
        inputs: document.inputs.clone(),
        output: document.output.clone(),
        tools: document.tools.iter().map(|(name, tool)| (name.clone(), compile_tool(tool))).collect(),
        goal: document.goal.clone(),
        planner: document.planner.as_ref().map(|planner| compile_planner(planner, document)),
        files: document.files.clone(),
        sandbox: sandbox(document),
    }
}

/// What a model can start runs in a sandbox unless the file says otherwise.
fn sandbox(document: &Document) -> Option<Sandbox> {
    if let Some(asked) = document.sandbox {
        return asked.sandbox();
    }
    let called = document.tools.values().any(|tool| tool.call.needs_machine() && tool.policy != Policy::Deny);
    let starts = |tool: &ToolKind| matches!(tool, ToolKind::Command | ToolKind::Exec | ToolKind::Mcp);
    let planned = document.planner.as_ref().is_some_and(|planner| planner.allow.iter().any(starts));
    (called || planned).then_some(Sandbox { only_models: true, ..Sandbox::DEFAULT })
}

/// Agents of the document itself.
fn compile_agents(agents: &[Agent], file: &Document) -> Vec<AgentPlan> {
    agents.iter().map(|agent| compile_agent(agent, file)).collect()
}

/// Agents of a plan that the file's planner made. The file's secrets are not theirs, unless `planner.allow` says so; what such a plan itself
/// names is refused before: see [`crate::check_planned`].
pub fn compile_planned(agents: &[Agent], file: &Document) -> Result<Vec<AgentPlan>, Problem> {
    let mut plans = compile_agents(agents, file);
    if !file.planner.as_ref().is_some_and(|planner| planner.allow_secrets) {
        for machine in plans.iter_mut().filter_map(|plan| plan.machine.as_mut()) {
            machine.secrets.clear();
            machine.env.retain(|_, value| !names_secret(value));
        }
    }
    agents_with_inputs(&mut plans, &file.inputs)?;
    Ok(plans)
}

fn compile_agent(agent: &Agent, file: &Document) -> AgentPlan {
    AgentPlan {
        name: agent.name.clone(),
        mode: agent.failure_mode,
        parallel: match agent.parallelism {
            Parallelism::Sequential => 1,
            _ => agent.max_concurrent_tasks.unwrap_or(DEFAULT_PARALLEL_TASKS),
        },
        max_tries: agent.max_attempts.unwrap_or(MAX_TRIES),
        timeout_ms: agent.timeout_ms.unwrap_or(AGENT_TIMEOUT_MS),
        machine: needs_machine(agent, file).then(|| machine(agent, file)),
        tasks: agent.tasks.iter().map(|task| compile_task(task, file)).collect(),
    }
}

/// Also if a model of this agent may call a tool that starts a process.
fn needs_machine(agent: &Agent, file: &Document) -> bool {
    let called = |step: &Step| {
        let names = step.call.input["tools"].as_array().filter(|_| step.call.tool == ToolKind::Llm);
        names
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .any(|name| file.tools.get(name).is_some_and(|tool| tool.call.needs_machine()))
    };
    let mut steps = agent.tasks.iter().flat_map(|task| &task.steps);
    steps.any(|step| step.call.needs_machine() || step.verify.as_ref().is_some_and(Call::needs_machine) || called(step))
}

fn machine(agent: &Agent, file: &Document) -> MachinePlan {
    let secrets: BTreeSet<&String> = file.secrets.iter().chain(&agent.secrets).collect();
    let mut env = file.env.clone();
    env.extend(agent.env.clone());
    MachinePlan {
        resources: agent.resources.clone(),
        provider: agent.provider.clone(),
        region: agent.region.clone(),
        spot: agent.spot,
        env,
        secrets: secrets.into_iter().cloned().collect(),
        working_dir: agent.working_dir.clone(),
    }
}

fn compile_task(task: &Task, file: &Document) -> TaskPlan {
    let timeout_ms = task.timeout_ms.unwrap_or(TASK_TIMEOUT_MS);
    TaskPlan {
        name: task.name.clone(),
        mode: task.failure_mode,
        parallel: if task.parallel { task.max_concurrent_steps.unwrap_or(DEFAULT_PARALLEL_STEPS) } else { 1 },
        parallel_calls: task.max_concurrent_steps,
        max_tries: task.max_attempts.unwrap_or(MAX_TRIES),
        timeout_ms,
        after: task.after.clone(),
        condition: task.condition.as_ref().map(condition),
        for_each: task.for_each.clone(),
        steps: task.steps.iter().map(|step| compile_step(step, timeout_ms, file)).collect(),
    }
}

/// `true` and `false` are expressions too.
fn condition(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        flag => format!("${{{{ {flag} }}}}"),
    }
}

fn compile_step(step: &Step, task_timeout_ms: i64, file: &Document) -> StepPlan {
    let verify = step.verify.as_ref().map(|call| {
        let outcome = step.verify_outcome.clone();
        Box::new(StepPlan { idempotent: true, outcome, ..compile_call("verify", call, task_timeout_ms) })
    });
    StepPlan {
        idempotent: step.idempotent,
        max_tries: step.max_tries.unwrap_or(MAX_TRIES),
        condition: step.condition.as_ref().map(condition),
        policy: step.policy,
        verify,
        files: step.files.clone(),
        retry_interrupted: step.retry_interrupted,
        output: step.output.clone(),
        rerun: step.rerun.unwrap_or(file.rerun_all),
        ..compile_call(&step.name, &step.call, task_timeout_ms)
    }
}

fn compile_call(name: &str, call: &Call, task_timeout_ms: i64) -> StepPlan {
    let timeout_ms = call.timeout_ms.unwrap_or(default_timeout_ms(call.tool).unwrap_or(task_timeout_ms));
    StepPlan { timeout_ms, input: call.input.clone(), ..StepPlan::new(name, call.tool) }
}

/// Calls of other programs. The rest has no time-out of its own: only that of its task.
fn default_timeout_ms(tool: ToolKind) -> Option<i64> {
    let calls = matches!(tool, ToolKind::Http | ToolKind::Mcp | ToolKind::Exec | ToolKind::External);
    calls.then_some(STEP_TIMEOUT_MS)
}

fn compile_tool(tool: &Tool) -> ToolPlan {
    ToolPlan {
        tool: tool.call.tool,
        description: tool.description.clone(),
        args: tool.args.clone(),
        policy: tool.policy,
        idempotent: tool.idempotent,
        timeout_ms: tool.call.timeout_ms.or(default_timeout_ms(tool.call.tool)),
        input: tool.call.input.clone(),
    }
}

fn compile_planner(planner: &Planner, file: &Document) -> PlannerPlan {
    let machine = MachinePlan { env: file.env.clone(), secrets: file.secrets.clone(), ..MachinePlan::default() };
    PlannerPlan {
        tool: planner.tool,
        input: planner.input.clone(),
        timeout_ms: planner.timeout_ms,
        allow: planner.allow.clone(),
        allow_secrets: planner.allow_secrets,
        machine: (planner.tool == ToolKind::Exec).then_some(machine),
    }
}
