//! Expressions that are evaluated once, before any agent begins, over `inputs` alone: the goal, the program and the instructions of the
//! planner, and the variables of machines. What steps are given is rendered when they are ready.

use crate::compile::Compiled;
use crate::problem::Problem;
use crate::template::{Scope, Template};
use model::plan::{AgentPlan, MachinePlan};
use model::step::ToolKind;
use serde_json::{Map, Value, json};

/// The compiled document with these evaluated. Fails if an expression does, which the check of the document cannot foresee.
pub fn with_inputs(mut compiled: Compiled) -> Result<Compiled, Problem> {
    let scope = scope(&compiled.inputs);
    if let Some(text) = &compiled.goal {
        let goal = rendered(Template::parse(&Value::from(text.as_str())), &scope, || "goal".into())?;
        compiled.goal = Some(goal.as_str().map_or_else(|| goal.to_string(), str::to_owned));
    }
    if let Some(planner) = &mut compiled.planner {
        planner.input = rendered(Template::for_tool(planner.tool, &planner.input), &scope, || "planner".into())?;
        if let Some(machine) = &mut planner.machine {
            variables(machine, &scope, || "env".into())?;
        }
    }
    agents_with_inputs(&mut compiled.agents, &compiled.inputs)?;
    Ok(compiled)
}

pub(crate) fn agents_with_inputs(agents: &mut [AgentPlan], inputs: &Map<String, Value>) -> Result<(), Problem> {
    let scope = scope(inputs);
    for agent in agents {
        if let Some(machine) = &mut agent.machine {
            variables(machine, &scope, || format!("agents.{}.env", agent.name))?;
        }
    }
    Ok(())
}

fn scope(inputs: &Map<String, Value>) -> Scope {
    Scope::new().with("inputs", Value::Object(inputs.clone()))
}

/// Values stay text: an input does not become `{secret: NAME}` here.
fn variables(machine: &mut MachinePlan, scope: &Scope, path: impl Fn() -> String) -> Result<(), Problem> {
    let template = Template::for_tool(ToolKind::Command, &json!({ "env": machine.env }));
    let mut given = rendered(template, scope, path)?;
    if let Value::Object(env) = given["env"].take() {
        machine.env = env.into_iter().collect();
    }
    Ok(())
}

fn rendered(
    template: Result<Template, crate::template::BadTemplate>,
    scope: &Scope,
    path: impl Fn() -> String,
) -> Result<Value, Problem> {
    let template = template.map_err(|bad| Problem { path: path(), why: bad.error.why, hint: bad.error.hint })?;
    template.render(scope).map_err(|error| Problem { path: path(), why: error.to_string(), hint: None })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{check, check_planned, compile, compile_planned};

    fn document() -> Value {
        json!({
            "type": "agents", "goal": "Sell ${{ inputs.n }}", "inputs": { "n": 3, "list": ["a"], "word": "solar" },
            "env": { "ALL": "${{ inputs.n }}", "KEY": { "secret": "KEY" } }, "secrets": ["TOKEN"],
            "planner": { "exec": ["./plan", "--topic=${{ inputs.word }}", "${{ inputs.list }}"], "allow": ["command"] },
        })
    }

    fn compiled(document: &Value) -> Result<Compiled, Problem> {
        with_inputs(compile(&check(document).unwrap_or_else(|problems| panic!("{problems:?}")).document))
    }

    #[test]
    fn what_is_said_once_is_evaluated_over_the_inputs() {
        let plan = compiled(&document()).unwrap();
        assert_eq!(plan.goal.as_deref(), Some("Sell 3"));
        let planner = plan.planner.unwrap();
        assert_eq!(planner.input["argv"], json!(["./plan", "--topic=solar", "[\"a\"]"]));
        let machine = planner.machine.unwrap();
        assert_eq!(
            json!(machine.env),
            json!({ "ALL": "3", "KEY": { "secret": "KEY" } }),
            "as every process of the run"
        );
        assert_eq!(machine.secrets, ["TOKEN"]);

        let mut model = document();
        model["planner"] = json!({ "llm": { "system": "Be ${{ inputs.word }}." } });
        assert_eq!(compiled(&model).unwrap().planner.unwrap().input["system"], "Be solar.");

        let mut listed = document();
        listed.as_object_mut().unwrap().remove("goal");
        let tasks = json!([{ "steps": [{ "name": "x", "command": "env" }] }]);
        listed["agents"] = json!([{ "env": { "TOPIC": "on ${{ inputs.word }}" }, "tasks": tasks }]);
        let machine = compiled(&listed).unwrap().agents.remove(0).machine.unwrap();
        assert_eq!((&machine.env["ALL"], &machine.env["TOPIC"]), (&json!("3"), &json!("on solar")));

        let file = check(&document()).unwrap().document;
        let planned = check_planned(&json!({ "agents": listed["agents"] }), &file).unwrap();
        let planned = compile_planned(&planned, &file).unwrap().remove(0).machine.unwrap();
        assert_eq!(json!(planned.env), json!({ "ALL": "3", "TOPIC": "on solar" }));
    }

    #[test]
    fn what_cannot_be_evaluated_names_its_place() {
        for (field, value, place) in [
            ("goal", json!("${{ inputs.n / 0 }}"), "goal: "),
            ("env", json!({ "A": "${{ inputs.n / 0 }}" }), "env: "),
            ("planner", json!({ "exec": ["./plan", "${{ inputs.n / 0 }}"] }), "planner: "),
        ] {
            let mut document = document();
            document[field] = value;
            let problem = compiled(&document).unwrap_err().to_string();
            assert!(problem.starts_with(place), "{problem}");
        }
    }
}
