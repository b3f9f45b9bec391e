//! A plan: what the agents of a run do. One document per agent, checked whole before anything starts and never changed afterwards.

use crate::recovery::MAX_TRIES;
use crate::spec::{FailureMode, Resources, Sandbox};
use crate::step::ToolKind;
use crate::time::{HOUR, MINUTE, SECOND};
use crate::{Refused, string_enum};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};

string_enum! {
    /// Whether a call of a tool needs a person's word.
    pub enum Policy { Allow = "allow", Ask = "ask", Deny = "deny" }
}

pub const DEFAULT_MAX_AGENTS: i64 = 10;
pub const DEFAULT_PARALLEL_TASKS: i64 = 5;
pub const DEFAULT_PARALLEL_STEPS: i64 = 3;
pub const STEP_TIMEOUT_MS: i64 = 30 * SECOND;
/// One answer of a model. The loop of an `llm` step has its task's time-out.
pub const LLM_TURN_TIMEOUT_MS: i64 = 10 * MINUTE;
pub const TASK_TIMEOUT_MS: i64 = HOUR;
pub const AGENT_TIMEOUT_MS: i64 = 6 * HOUR;
/// Agents of all plan versions of an attempt, planners included, as a multiple of those that may run at once (R81).
pub const AGENTS_IN_ALL: i64 = 3;
/// Agents that a plan may list.
pub const MAX_PLANNED_AGENTS: usize = 1_000;
/// Steps of all agents of a plan.
pub const MAX_PLANNED_STEPS: usize = 100_000;

/// What the agents of a run share. Written once, when the run is submitted.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunPlan {
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub inputs: Map<String, Value>,
    /// What a planner makes a plan for, with its expressions evaluated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub goal: Option<String>,
    /// A template over `agents`, `inputs` and `run`: what the run answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<Value>,
    /// Tools that models may call, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub tools: BTreeMap<String, ToolPlan>,
    /// Tokens that one agent may use; 0 is no limit.
    #[serde(default)]
    pub max_tokens: i64,
    /// The document itself, by which the plans of its planner are checked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub document: Option<Value>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct AgentPlan {
    pub name: String,
    pub mode: FailureMode,
    /// Tasks that may run at once; 1 is one after the other.
    pub parallel: i64,
    pub max_tries: i64,
    pub timeout_ms: i64,
    /// The machine that its commands run on. Without one, no step of the agent needs a machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<MachinePlan>,
    pub tasks: Vec<TaskPlan>,
}

/// How much a plan has. A task with a `for_each` counts once: how many items it has is known when it may begin.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Totals {
    pub agents: i64,
    pub tasks: i64,
    pub steps: i64,
}

impl Totals {
    pub fn of(agents: &[AgentPlan]) -> Totals {
        let tasks = || agents.iter().flat_map(|agent| &agent.tasks);
        let steps = tasks().map(|task| task.steps.len() as i64).sum();
        Totals { agents: agents.len() as i64, tasks: tasks().count() as i64, steps }
    }

    /// So many agents of one task with one step.
    pub fn single(agents: i64) -> Totals {
        Totals { agents, tasks: agents, steps: agents }
    }
}

/// What an agent asks of its machine.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct MachinePlan {
    #[serde(default)]
    pub resources: Resources,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub region: Option<String>,
    /// One that may be taken away at any time will do.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub spot: bool,
    /// Variables of every process that the agent starts there. Values are texts or `{secret: NAME}`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, Value>,
    /// Names of secrets that are set as variables of the same name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub secrets: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub working_dir: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct TaskPlan {
    pub name: String,
    pub mode: FailureMode,
    /// Steps that may run at once; 1 is one after the other.
    pub parallel: i64,
    /// Calls of one turn of a model that may run at once. Without it as many as steps, or 3 where steps run one after the other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parallel_calls: Option<i64>,
    pub max_tries: i64,
    pub timeout_ms: i64,
    /// Positions of the tasks that must have ended before this one begins.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub after: Vec<usize>,
    /// An expression; if it is false the task is skipped.
    #[serde(default, rename = "if", skip_serializing_if = "Option::is_none")]
    pub condition: Option<String>,
    /// A list, or an expression that gives one: the task is made once per item, with `item` in its expressions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub for_each: Option<Value>,
    pub steps: Vec<StepPlan>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct StepPlan {
    pub name: String,
    pub tool: ToolKind,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub idempotent: bool,
    pub max_tries: i64,
    pub timeout_ms: i64,
    /// What the tool is given. Texts may hold expressions, which are rendered when the step is ready.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub input: Value,
    /// An expression; if it is false the step is skipped.
    #[serde(default, rename = "if", skip_serializing_if = "Option::is_none")]
    pub condition: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<Policy>,
    /// A step that finds out whether this one happened when its outcome is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verify: Option<Box<StepPlan>>,
    /// Of a `verify`: an expression over its `output` that gives `done` or `not_done`. Without one its output says so itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<String>,
    /// Files that are restored in another workdir. Empty: it needs none. Without it, a command runs again there or escalates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub files: Option<Vec<String>>,
    /// An interrupted try is repeated although the step is not idempotent.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub retry_interrupted: bool,
    /// The JSON schema that its output must match.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<Value>,
    /// Runs again in each attempt instead of answering from the journal.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub rerun: bool,
}

/// A tool that `llm` steps may call.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ToolPlan {
    pub tool: ToolKind,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub description: String,
    /// A JSON schema per argument. An argument whose schema has no `default` must be given.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub args: BTreeMap<String, Value>,
    pub policy: Policy,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub idempotent: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<i64>,
    /// As in a step; expressions may also read `args`.
    pub input: Value,
}

/// What makes a plan from a goal.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PlannerPlan {
    /// `llm` or `exec`, with its input.
    pub tool: ToolKind,
    pub input: Value,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<i64>,
    /// Tools that steps of its plans may use directly, and whether they may name secrets.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allow: Vec<ToolKind>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub allow_secrets: bool,
    /// Of a program: the machine that it runs on, with the variables and secrets of the whole run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<MachinePlan>,
}

impl AgentPlan {
    pub fn new(name: &str, tasks: Vec<TaskPlan>) -> AgentPlan {
        AgentPlan {
            name: name.to_owned(),
            mode: FailureMode::FailFast,
            parallel: 1,
            max_tries: MAX_TRIES,
            timeout_ms: AGENT_TIMEOUT_MS,
            machine: None,
            tasks,
        }
    }

    /// For each task, the positions of those that wait for it.
    pub fn dependents(&self) -> Vec<Vec<i64>> {
        let mut dependents = vec![Vec::new(); self.tasks.len()];
        for (position, task) in self.tasks.iter().enumerate() {
            for before in &task.after {
                dependents[*before].push(position as i64);
            }
        }
        dependents
    }
}

impl TaskPlan {
    pub fn new(name: &str, steps: Vec<StepPlan>) -> TaskPlan {
        TaskPlan {
            name: name.to_owned(),
            mode: FailureMode::FailFast,
            parallel: 1,
            parallel_calls: None,
            max_tries: MAX_TRIES,
            timeout_ms: TASK_TIMEOUT_MS,
            after: Vec::new(),
            condition: None,
            for_each: None,
            steps,
        }
    }
}

impl AgentPlan {
    /// Whether a sandbox is around processes that it starts on its machine. `planned`: its plan was made by a planner.
    pub fn is_in_sandbox(&self, sandbox: Sandbox, planned: bool) -> bool {
        let calls_tools = |step: &StepPlan| {
            step.tool == ToolKind::Llm && step.input["tools"].as_array().is_some_and(|tools| !tools.is_empty())
        };
        let by_model = planned || self.tasks.iter().flat_map(|task| &task.steps).any(calls_tools);
        self.machine.is_some() && sandbox.around(by_model).is_some()
    }
}

impl TaskPlan {
    /// How many calls of one turn of a model run side by side.
    pub fn calls_at_once(&self) -> i64 {
        self.parallel_calls.unwrap_or(if self.parallel > 1 { self.parallel } else { DEFAULT_PARALLEL_STEPS })
    }
}

impl StepPlan {
    /// Runs on the agent's machine.
    pub fn needs_machine(&self) -> bool {
        self.tool.needs_machine() || self.tool.is_stdio(&self.input)
    }

    pub fn new(name: &str, tool: ToolKind) -> StepPlan {
        StepPlan {
            name: name.to_owned(),
            tool,
            idempotent: false,
            max_tries: MAX_TRIES,
            timeout_ms: STEP_TIMEOUT_MS,
            input: Value::Null,
            condition: None,
            policy: None,
            verify: None,
            outcome: None,
            files: None,
            retry_interrupted: false,
            output: None,
            rerun: false,
        }
    }
}

/// Everything that can be refused by looking at the plan alone. Errors name the place.
pub fn check(agents: &[AgentPlan]) -> Result<(), Refused> {
    if agents.is_empty() || agents.len() > MAX_PLANNED_AGENTS {
        return Err(Refused::invalid("agents", format!("a plan lists 1 to {MAX_PLANNED_AGENTS} agents")));
    }
    let steps: usize = agents.iter().flat_map(|agent| &agent.tasks).map(|task| task.steps.len()).sum();
    if steps > MAX_PLANNED_STEPS {
        let why = format!("{steps} steps: a plan may have {MAX_PLANNED_STEPS}");
        return Err(Refused::invalid("agents", why));
    }
    unique("agents", agents.iter().map(|agent| agent.name.as_str()))?;
    agents.iter().try_for_each(check_agent)
}

fn check_agent(agent: &AgentPlan) -> Result<(), Refused> {
    let at = format!("agents.{}", agent.name);
    some(&at, "tasks", agent.tasks.len())?;
    positive(&at, &[agent.parallel, agent.max_tries, agent.timeout_ms])?;
    unique(&format!("{at}.tasks"), agent.tasks.iter().map(|task| task.name.as_str()))?;
    for task in &agent.tasks {
        let at = format!("{at}.tasks.{}", task.name);
        some(&at, "steps", task.steps.len())?;
        positive(&at, &[task.parallel, task.max_tries, task.timeout_ms])?;
        unique(&format!("{at}.steps"), task.steps.iter().map(|step| step.name.as_str()))?;
        for step in &task.steps {
            positive(&format!("{at}.steps.{}", step.name), &[step.max_tries, step.timeout_ms])?;
        }
    }
    acyclic(&at, &agent.tasks)
}

/// Counts, per task, the dependencies that are still open, and takes away tasks that have none; what is left at the end waits for itself.
fn acyclic(at: &str, tasks: &[TaskPlan]) -> Result<(), Refused> {
    if let Some(task) = tasks.iter().find(|task| task.after.iter().any(|before| *before >= tasks.len())) {
        return Err(Refused::invalid(format!("{at}.tasks.{}.after", task.name), "names a task that does not exist"));
    }
    match cycle(tasks.iter().map(|task| task.after.as_slice())).first() {
        None => Ok(()),
        Some(task) => {
            Err(Refused::invalid(format!("{at}.tasks.{}.after", tasks[*task].name), "waits, in the end, for itself"))
        }
    }
}

/// Tasks that wait for each other, each for the next one and the last for the first; empty if there are none. `after` holds, per task,
/// positions that exist.
pub fn cycle<'a>(after: impl Iterator<Item = &'a [usize]>) -> Vec<usize> {
    let after: Vec<&[usize]> = after.collect();
    let mut dependents = vec![Vec::new(); after.len()];
    for (task, before) in after.iter().enumerate() {
        before.iter().for_each(|before| dependents[*before].push(task));
    }
    let mut open: Vec<usize> = after.iter().map(|before| before.len()).collect();
    let mut free: Vec<usize> = (0..after.len()).filter(|task| open[*task] == 0).collect();
    while let Some(task) = free.pop() {
        for dependent in &dependents[task] {
            open[*dependent] -= 1;
            if open[*dependent] == 0 {
                free.push(*dependent);
            }
        }
    }
    let Some(mut task) = open.iter().position(|left| *left > 0) else { return Vec::new() };
    // Each task that is left waits for one that is left, so the walk comes back to where it has been.
    let mut seen = vec![None; after.len()];
    let mut walk = Vec::new();
    while seen[task].is_none() {
        seen[task] = Some(walk.len());
        walk.push(task);
        task = *after[task].iter().find(|before| open[**before] > 0).expect("it waits for one that is left");
    }
    walk.split_off(seen[task].expect("the walk ended there"))
}

fn some(at: &str, what: &str, count: usize) -> Result<(), Refused> {
    if count == 0 { Err(Refused::invalid(format!("{at}.{what}"), "there must be at least one")) } else { Ok(()) }
}

fn positive(at: &str, numbers: &[i64]) -> Result<(), Refused> {
    if numbers.iter().all(|number| *number > 0) {
        return Ok(());
    }
    Err(Refused::invalid(at, "limits, tries and time-outs must be above zero"))
}

fn unique<'n>(at: &str, names: impl Iterator<Item = &'n str>) -> Result<(), Refused> {
    let mut seen = BTreeSet::new();
    for name in names {
        if name.is_empty() {
            return Err(Refused::invalid(at, "a name must not be empty"));
        }
        if !seen.insert(name) {
            return Err(Refused::invalid(at, format!("the name `{name}` is used twice")));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(name: &str) -> StepPlan {
        StepPlan::new(name, ToolKind::Http)
    }

    fn task(name: &str, after: &[usize]) -> TaskPlan {
        TaskPlan { after: after.to_vec(), ..TaskPlan::new(name, vec![step("s")]) }
    }

    #[test]
    fn a_plan_is_refused_with_the_place_and_the_reason() {
        let check = |tasks: Vec<TaskPlan>| check(&[AgentPlan::new("a", tasks)]).map_err(|refused| refused.to_string());
        let bad = |tasks: Vec<TaskPlan>, words: &str| {
            let refused = check(tasks).unwrap_err();
            assert!(refused.contains(words), "{refused} does not say {words}");
        };
        assert_eq!(check(vec![task("x", &[]), task("y", &[0]), task("z", &[0, 1])]), Ok(()));
        bad(vec![], "agents.a.tasks");
        bad(vec![task("x", &[]), task("x", &[])], "`x` is used twice");
        bad(vec![task("x", &[1]), task("y", &[0])], "agents.a.tasks.x.after");
        bad(vec![task("x", &[0])], "for itself");
        bad(vec![task("x", &[7])], "does not exist");
        bad(vec![TaskPlan { steps: vec![], ..task("x", &[]) }], "agents.a.tasks.x.steps");
        bad(vec![TaskPlan { parallel: 0, ..task("x", &[]) }], "above zero");
        bad(vec![TaskPlan { steps: vec![step("s"), step("s")], ..task("x", &[]) }], "agents.a.tasks.x.steps");
        let many: Vec<StepPlan> = (0..=MAX_PLANNED_STEPS).map(|n| step(&n.to_string())).collect();
        bad(vec![TaskPlan { steps: many, ..task("x", &[]) }], "100001 steps");
    }

    #[test]
    fn a_long_chain_is_checked_in_one_pass() {
        let chain: Vec<TaskPlan> = (0..50_000).map(|n| task(&n.to_string(), if n == 0 { &[] } else { &[0] })).collect();
        let mut chain = AgentPlan::new("a", chain);
        for n in 1..chain.tasks.len() {
            chain.tasks[n].after = vec![n - 1];
        }
        assert_eq!(check(&[chain.clone()]), Ok(()));
        chain.tasks[0].after = vec![49_999];
        assert!(check(&[chain]).is_err());
        let after = [vec![2], vec![0], vec![1], vec![0], vec![]];
        assert_eq!(cycle(after.iter().map(Vec::as_slice)), [0, 2, 1], "the fourth only waits for the cycle");
    }

    #[test]
    fn a_plan_that_was_stored_with_fewer_fields_is_still_read() {
        let stored = serde_json::json!({ "name": "a", "mode": "fail-fast", "parallel": 1, "max_tries": 3, "timeout_ms": 5, "tasks": [{
            "name": "t", "mode": "retry", "parallel": 1, "max_tries": 3, "timeout_ms": 5,
            "steps": [{ "name": "s", "tool": "http", "max_tries": 3, "timeout_ms": 30_000 }],
        }] });
        let plan: AgentPlan = serde_json::from_value(stored.clone()).unwrap();
        assert_eq!(plan.tasks[0].steps, [step("s")]);
        assert_eq!(serde_json::to_value(&plan).unwrap(), stored);
    }

    #[test]
    fn dependents_are_the_dependencies_the_other_way_round() {
        let plan = AgentPlan::new("a", vec![task("x", &[]), task("y", &[0]), task("z", &[0, 1])]);
        assert_eq!(plan.dependents(), [vec![1, 2], vec![2], vec![]]);
    }
}
