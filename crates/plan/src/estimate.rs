//! What a run of agents may cost, before it starts: the tokens of the planner and of its agents at most, and one call of each of its steps.
//! Machines are charged by the hour and reserved apart from this; what further tries and the calls of models cost is set aside as they begin.

use crate::compile::Compiled;
use model::Credits;
use model::plan::{AgentPlan, StepPlan, TaskPlan};
use model::step::ToolKind;
use serde_json::Value;
use std::collections::BTreeMap;

/// Of models, credits per 1,000 tokens; where input and output differ, the higher price counts. Of tools, credits per call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prices {
    pub default: Credits,
    pub models: BTreeMap<String, Credits>,
    pub tools: BTreeMap<ToolKind, Credits>,
}

/// Items that a `for_each` may have.
const MOST_ITEMS: i64 = 100;

impl Default for Prices {
    fn default() -> Prices {
        Prices { default: Credits(1_000), models: BTreeMap::new(), tools: BTreeMap::new() }
    }
}

impl Prices {
    fn of(&self, model: &str) -> Credits {
        self.models.get(model).copied().unwrap_or(self.default)
    }

    fn highest(&self) -> Credits {
        self.models.values().copied().fold(self.default, Credits::max)
    }
}

/// The planner, and for each agent all the tokens it may use at the price of its dearest model; never more than the budget. Agents without a
/// model use no tokens. A planner's agents are not known yet: as many as it may return, at the highest price, without calls of tools.
pub fn estimate(plan: &Compiled, prices: &Prices) -> Credits {
    let planner = plan.planner.as_ref().filter(|planner| planner.tool == ToolKind::Llm && plan.goal.is_some());
    let planner = planner.map(|planner| cost(plan.max_tokens, prices.of(model_of(&planner.input))));
    let agents: i128 = if plan.agents.is_empty() {
        i128::from(plan.rules.max_agents) * cost(plan.max_tokens, prices.highest())
    } else {
        plan.agents.iter().filter_map(|agent| dearest(agent, prices)).map(|price| cost(plan.max_tokens, price)).sum()
    };
    let calls: i128 = plan.agents.iter().flat_map(|agent| &agent.tasks).map(|task| calls(task, prices)).sum();
    let all = planner.unwrap_or(0).saturating_add(agents).saturating_add(calls).min(i128::from(i64::MAX));
    let estimate = Credits(i64::try_from(all).unwrap_or(i64::MAX));
    plan.budget.map_or(estimate, |budget| budget.min(estimate))
}

/// In micro-credits, rounded up.
fn cost(tokens: i64, per_thousand: Credits) -> i128 {
    (i128::from(tokens.max(0)) * i128::from(per_thousand.micro().max(0)) + 999) / 1_000
}

/// One call of each step, for each item that a `for_each` has, or may have.
fn calls(task: &TaskPlan, prices: &Prices) -> i128 {
    let items = match &task.for_each {
        None => 1,
        Some(Value::Array(items)) => items.len() as i64,
        Some(_) => MOST_ITEMS,
    };
    let price = |step: &StepPlan| prices.tools.get(&step.tool).map_or(0, |price| i128::from(price.micro()));
    task.steps.iter().map(price).sum::<i128>() * i128::from(items)
}

fn dearest(agent: &AgentPlan, prices: &Prices) -> Option<Credits> {
    let steps = agent.tasks.iter().flat_map(|task| &task.steps);
    steps.filter(|step| step.tool == ToolKind::Llm).map(|step| prices.of(model_of(&step.input))).max()
}

fn model_of(input: &Value) -> &str {
    input["model"].as_str().unwrap_or("default")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{check, compile};
    use serde_json::json;

    fn of(document: Value, prices: &Prices) -> String {
        estimate(&compile(&check(&document).unwrap().document), prices).to_string()
    }

    #[test]
    fn tokens_are_counted_for_the_planner_and_each_agent_with_a_model() {
        let agent = |name: &str, model: &str| json!({ "name": name, "tasks": [{ "steps": [{ "llm": { "model": model, "prompt": "p" } }] }] });
        let silent = json!({ "name": "c", "tasks": [{ "steps": [{ "http": { "url": "https://h.example/" } }] }] });
        let prices = Prices { models: BTreeMap::from([("big".to_owned(), Credits(5_000))]), ..Prices::default() };
        let agents = json!([agent("a", "default"), agent("b", "big"), silent]);
        for (document, credits) in [
            (json!({ "type": "agents", "agents": agents }), "0.6"),
            (json!({ "type": "agents", "agents": agents, "max_tokens": 1 }), "0.000006"),
            (json!({ "type": "agents", "agents": agents, "budget": 0.5 }), "0.5"),
            (json!({ "type": "agents", "agents": [silent] }), "0"),
            (json!({ "type": "agents", "goal": "g", "planner": { "llm": {} }, "max_agents": 2 }), "1.1"),
            (json!({ "type": "agents", "goal": "g", "planner": { "exec": ["./plan"] }, "max_agents": 2 }), "1"),
        ] {
            assert_eq!(of(document.clone(), &prices), credits, "{document}");
        }
        let prices = Prices { tools: BTreeMap::from([(ToolKind::Http, Credits(1_000))]), ..prices };
        let each = |items: Value| json!({ "name": "e", "tasks": [{ "name": "t", "for_each": items, "steps": [{ "http": { "url": "https://h.example/" } }] }] });
        for (document, credits) in [
            (json!({ "type": "agents", "agents": [silent] }), "0.001"),
            (json!({ "type": "agents", "agents": agents }), "0.601"),
            (json!({ "type": "agents", "agents": [each(json!([1, 2, 3]))] }), "0.003"),
            (json!({ "type": "agents", "inputs": { "all": [] }, "agents": [each(json!("${{ inputs.all }}"))] }), "0.1"),
        ] {
            assert_eq!(of(document.clone(), &prices), credits, "{document}");
        }
        let dear = Prices { default: Credits(i64::MAX), ..Prices::default() };
        assert_eq!(of(json!({ "type": "agents", "agents": agents }), &dear), Credits(i64::MAX).to_string());
    }
}
