//! What a run of agents was given and what it answers: its inputs, and its `output` evaluated with what its steps recorded. Evaluated when
//! it is asked for: what it reads never changes after the run has ended.

use crate::Engine;
use crate::render::{Fresh, Read, read};
use crate::view::owned;
use model::agent::Agent;
use model::plan::AgentPlan;
use model::run::{Run, RunStatus};
use model::spec::RunKind;
use model::{Failure, OrgId, RunId};
use plan::expression::Reference;
use plan::{Scope, Template};
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;
use store::Tx;
use store::step::Data;

/// Agents that are read at once.
const PAGE: i64 = 50;

/// The goal, the plan, the inputs and the answer of a run of agents.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RunValues {
    pub goal: Option<String>,
    /// The present plan as it was written, if a planner has made it or may make the next one.
    pub plan: Option<Value>,
    pub inputs: Option<Value>,
    pub output: Option<Value>,
    /// Why the output cannot be evaluated.
    pub output_error: Option<String>,
}

impl Engine {
    pub async fn run_values(&self, org: OrgId, id: RunId) -> Result<RunValues, Failure> {
        self.store
            .read("run.values", move |tx| {
                let run = owned(tx, org, id)?;
                match run.spec.kind {
                    RunKind::Agents => values(tx, &run),
                    RunKind::External => program_values(tx, &run),
                    _ => Ok(RunValues::default()),
                }
            })
            .await
    }
}

/// What its program said when it finished the run.
fn program_values(tx: &mut Tx, run: &Run) -> Result<RunValues, Failure> {
    let attempt = store::attempt::find(tx, run.id, run.attempt)?;
    let program = attempt.and_then(|attempt| attempt.tree.program);
    let output = program.map(|program| store::step::data(tx, program, Data::Output)).transpose()?.flatten();
    Ok(RunValues { output, ..RunValues::default() })
}

fn values(tx: &mut Tx, run: &Run) -> Result<RunValues, Failure> {
    let shared = store::plan::shared(tx, run.id)?;
    let (goal, inputs) = (shared.goal.clone(), Value::Object(shared.inputs));
    let plan = store::plan::source(tx, run.id, run.plan_version)?;
    let known = RunValues { goal: goal.clone(), plan, inputs: Some(inputs.clone()), ..RunValues::default() };
    let (RunStatus::Completed, Some(template)) = (run.status, shared.output) else { return Ok(known) };
    let template = match Template::parse(&template) {
        Ok(template) => template,
        Err(bad) => return Ok(RunValues { output_error: Some(bad.error.why), ..known }),
    };
    let scope = Scope::new()
        .with("inputs", inputs)
        .with("run", json!({ "id": run.id.to_string(), "name": run.name, "goal": goal }))
        .with("agents", agents(tx, run, &template)?);
    Ok(match template.render(&scope) {
        Ok(output) => RunValues { output: Some(output), ..known },
        Err(error) => RunValues { output_error: Some(error.to_string()), ..known },
    })
}

/// What the template names of each agent, and nothing else.
fn agents(tx: &mut Tx, run: &Run, template: &Template) -> Result<Value, Failure> {
    let references = template.references();
    let named: BTreeSet<&str> = references.iter().filter(|it| it.root == "agents").filter_map(|it| it.key(0)).collect();
    let mut agents = Map::new();
    if named.is_empty() {
        return Ok(Value::Object(agents));
    }
    for agent in of_names(tx, run, &named)? {
        let Some(plan) = store::plan::find(tx, run.id, agent.plan_version, agent.sequence)? else { continue };
        let reads = references.iter().filter_map(|reference| of_agent(reference, &agent.name, &plan)).collect();
        let values = read(tx, agent.id, &reads, &Fresh::new())?;
        agents.insert(agent.name, json!({ "tasks": values.tasks(&plan) }));
    }
    Ok(Value::Object(agents))
}

/// Agents of the present plan with these names. Reads on only until all of them are found.
fn of_names(tx: &mut Tx, run: &Run, named: &BTreeSet<&str>) -> Result<Vec<Agent>, Failure> {
    let (mut found, mut after) = (Vec::new(), 0);
    while found.len() < named.len() {
        let page = store::agent::page(tx, run.id, run.attempt, after, PAGE)?;
        let Some(last) = page.last() else { break };
        after = last.id.0;
        let is_meant = |agent: &Agent| agent.plan_version == run.plan_version && named.contains(agent.name.as_str());
        found.extend(page.into_iter().filter(is_meant));
    }
    Ok(found)
}

/// `agents.NAME.tasks…` is `tasks…` of that agent.
fn of_agent(reference: &Reference, agent: &str, plan: &AgentPlan) -> Option<Read> {
    if reference.key(0) != Some(agent) || reference.key(1) != Some("tasks") {
        return None;
    }
    let rest = reference.rest[2..].to_vec();
    Read::of(&Reference { root: "tasks".to_owned(), rest }, plan, None)
}
