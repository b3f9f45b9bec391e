//! A plan: what the agents of a run do. One document per agent, checked whole before anything starts and never changed afterwards.

use crate::Refused;
use crate::recovery::MAX_TRIES;
use crate::spec::FailureMode;
use crate::step::Tool;
use crate::time::{HOUR, SECOND};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

pub const DEFAULT_MAX_AGENTS: i64 = 10;
pub const DEFAULT_PARALLEL_TASKS: i64 = 5;
pub const DEFAULT_PARALLEL_STEPS: i64 = 3;
pub const STEP_TIMEOUT_MS: i64 = 30 * SECOND;
pub const TASK_TIMEOUT_MS: i64 = HOUR;
pub const AGENT_TIMEOUT_MS: i64 = 6 * HOUR;
/// Agents that a plan may list.
pub const MAX_PLANNED_AGENTS: usize = 1_000;
/// Steps of all agents of a plan.
pub const MAX_PLANNED_STEPS: usize = 100_000;

#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct AgentPlan {
    pub name: String,
    pub mode: FailureMode,
    /// Tasks that may run at once; 1 is one after the other.
    pub parallel: i64,
    pub max_tries: i64,
    pub timeout_ms: i64,
    pub tasks: Vec<TaskPlan>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct TaskPlan {
    pub name: String,
    pub mode: FailureMode,
    /// Steps that may run at once; 1 is one after the other.
    pub parallel: i64,
    pub max_tries: i64,
    pub timeout_ms: i64,
    /// Positions of the tasks that must have ended before this one begins.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub after: Vec<usize>,
    pub steps: Vec<StepPlan>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct StepPlan {
    pub name: String,
    pub tool: Tool,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub idempotent: bool,
    pub max_tries: i64,
    pub timeout_ms: i64,
    /// What the tool is given.
    #[serde(default, skip_serializing_if = "serde_json::Value::is_null")]
    pub input: serde_json::Value,
}

impl AgentPlan {
    pub fn new(name: &str, tasks: Vec<TaskPlan>) -> AgentPlan {
        AgentPlan {
            name: name.to_owned(),
            mode: FailureMode::FailFast,
            parallel: 1,
            max_tries: MAX_TRIES,
            timeout_ms: AGENT_TIMEOUT_MS,
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
            max_tries: MAX_TRIES,
            timeout_ms: TASK_TIMEOUT_MS,
            after: Vec::new(),
            steps,
        }
    }
}

impl StepPlan {
    pub fn new(name: &str, tool: Tool) -> StepPlan {
        StepPlan {
            name: name.to_owned(),
            tool,
            idempotent: false,
            max_tries: MAX_TRIES,
            timeout_ms: STEP_TIMEOUT_MS,
            input: serde_json::Value::Null,
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

/// Takes away tasks whose dependencies are all taken away; what is left at the end waits for itself.
fn acyclic(at: &str, tasks: &[TaskPlan]) -> Result<(), Refused> {
    let mut open: BTreeSet<usize> = (0..tasks.len()).collect();
    if let Some(task) = tasks.iter().find(|task| task.after.iter().any(|before| !open.contains(before))) {
        return Err(Refused::invalid(format!("{at}.tasks.{}.after", task.name), "names a task that does not exist"));
    }
    loop {
        let free: Vec<usize> = open
            .iter()
            .copied()
            .filter(|task| !tasks[*task].after.iter().any(|before| open.contains(before)))
            .collect();
        if free.is_empty() {
            break;
        }
        open.retain(|task| !free.contains(task));
    }
    match open.first() {
        None => Ok(()),
        Some(task) => {
            Err(Refused::invalid(format!("{at}.tasks.{}.after", tasks[*task].name), "waits, in the end, for itself"))
        }
    }
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
        StepPlan::new(name, Tool::Http)
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
    fn dependents_are_the_dependencies_the_other_way_round() {
        let plan = AgentPlan::new("a", vec![task("x", &[]), task("y", &[0]), task("z", &[0, 1])]);
        assert_eq!(plan.dependents(), [vec![1, 2], vec![2], vec![]]);
    }
}
