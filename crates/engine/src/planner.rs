//! Plans that are made while a run goes on: a planner agent is opened when too much has failed, and what it answers becomes the run's next
//! plan version.

use crate::agent::INVALID_OUTPUT;
use crate::plan_limits::PlanLimits;
use crate::run_tx::RunTx;
use model::agent::{AgentKind, AgentStatus};
use model::children::{ChildState, Children};
use model::hierarchy::{self, Rows};
use model::plan::{AgentPlan, MAX_PLANNED_AGENTS, RunPlan, Totals};
use model::run::{LastError, Run, RunEvent, RunReason};
use model::step::{StepStatus, ToolKind};
use model::{AgentId, Failure, Refused, Trouble};
use serde_json::{Value, json};
use store::Tx;
use store::step::Data;

/// Where the plan of the planner itself is stored: no plan version has this number.
pub(crate) const PLANNERS_VERSION: i64 = 0;

impl RunTx<'_> {
    /// The planner works in the current version, so that the run keeps an open agent.
    pub(crate) fn add_planner(&mut self) -> Result<(), Failure> {
        let found = store::plan::find(self.tx, self.run.id, PLANNERS_VERSION, 0)?;
        let Some(plan) = found else {
            return Err(Trouble::internal("a run that may be planned again has no planner").into());
        };
        let sequence = store::plan::next_sequence(self.tx, self.run.id)?;
        store::plan::insert(self.tx, self.run.id, self.run.plan_version, sequence, &plan)?;
        let id = self.add_agent(AgentKind::Planner, sequence, &plan)?;
        let mut attempt = Rows::attempt(self)?;
        attempt.tree.planner = Some(id);
        Rows::set_attempt(self, attempt)?;
        hierarchy::begin_agents(self)
    }

    /// What the planner answered is checked as any plan is. A plan that is refused ends the run.
    pub(crate) fn next_plan(&mut self, planner: AgentId) -> Result<(), Failure> {
        match self.answered_plan(planner) {
            Ok((source, plans)) => self.replan(&source, &plans),
            Err(Failure::Refused(refused)) => {
                let error = LastError { code: "planner_failed".into(), message: refused.to_string(), cause: None };
                self.run_event(RunEvent::AgentFailed { reason: RunReason::PlannerFailed, error })
            }
            Err(failure) => Err(failure),
        }
    }

    fn answered_plan(&mut self, planner: AgentId) -> Result<(Value, Vec<AgentPlan>), Failure> {
        let bad = |why: String| Refused::invalid("plan", why);
        let task = Rows::task_at(self, planner, 0)?;
        let step = store::step::at(self.tx, task, 0)?.ok_or_else(|| Trouble::internal("a planner without a step"))?;
        let of = self.steps.iter().find(|held| held.it.id == step.id).map_or(step.answer, |held| held.it.answer);
        let output = match self.outputs.get(&step.id) {
            Some(output) => Some(output.clone()),
            None => of.map(|id| store::step::data(self.tx, id, Data::Output)).transpose()?.flatten(),
        };
        let source = output.unwrap_or(Value::Null);
        let document = store::plan::shared(self.tx, self.run.id)?.document;
        let limits = PlanLimits::of(self.tx, self.context, &self.run, document)?;
        let limits = limits.ok_or_else(|| Trouble::internal("a planner without a document"))?;
        let plans = limits.planned(self.context, &source).map_err(bad)?;
        Ok((source, plans))
    }

    fn replan(&mut self, source: &Value, plans: &[AgentPlan]) -> Result<(), Failure> {
        self.run_event(RunEvent::Replanned)?;
        let mut attempt = Rows::attempt(self)?;
        attempt.tree.superseded += attempt.tree.agents.open();
        attempt.tree.agents = Children::default();
        attempt.tree.failed_tasks = 0;
        attempt.tree.planner = None;
        Rows::set_attempt(self, attempt)?;
        let version = self.run.plan_version;
        let mut run = self.run.clone();
        run.planned = Totals::of(plans);
        self.set_run(run);
        store::plan::insert_source(self.tx, self.run.id, version, source)?;
        let first = store::plan::next_sequence(self.tx, self.run.id)?;
        for (sequence, plan) in (first..).zip(plans) {
            store::plan::insert(self.tx, self.run.id, version, sequence, plan)?;
            self.add_agent(AgentKind::Planned, sequence, plan)?;
        }
        self.supersede_older(version)?;
        hierarchy::begin_agents(self)
    }

    /// Open agents of earlier versions end. Their number is bounded by what a run may have in all.
    fn supersede_older(&mut self, version: i64) -> Result<(), Failure> {
        let open = Rows::agents(self, hierarchy::Pick::Open, MAX_PLANNED_AGENTS)?;
        for id in open {
            let agent = Rows::agent(self, id)?;
            if agent.plan_version < version && agent.status != AgentStatus::Completed {
                hierarchy::supersede_agent(self, id)?;
            }
        }
        Ok(())
    }
}

/// What was wrong with the last plan that the planner answered, in whichever of its tries.
pub(crate) fn told_errors(tx: &mut Tx, planner: AgentId) -> Result<Option<String>, Failure> {
    let steps = match store::task::of_agent(tx, planner)?.first() {
        Some(task) => store::step::of_task(tx, task.id)?,
        None => Vec::new(),
    };
    let Some(step) = steps.into_iter().next() else { return Ok(None) };
    let tries = store::step::tries(tx, step.id)?.into_iter().chain([step]);
    let mut errors = tries.filter_map(|step| step.last_error).filter(|error| error.code == INVALID_OUTPUT);
    Ok(errors.next_back().map(|error| error.message))
}

/// A program that is asked again is given what was wrong with its last answer. A model reads it in its dialogue.
pub(crate) fn with_errors(mut input: Value, errors: Option<String>) -> Value {
    if let (Some(given), Some(errors)) = (input.get_mut("input"), errors) {
        given["errors"] = errors.into();
    }
    input
}

/// What the plan may use is read where the planner is asked, and is no part of its key: the record of a plan answers also after the settings
/// have changed.
pub(crate) fn with_may_use(tool: ToolKind, mut input: Value, may_use: Value) -> Value {
    match (tool, input["prompt"].as_str()) {
        (ToolKind::Llm, Some(prompt)) => input["prompt"] = format!("{prompt}\n{MAY_USE}: {may_use}\n").into(),
        _ => input["input"]["may_use"] = may_use,
    }
    input
}

const MAY_USE: &str = "What a plan may use: `tools` are the tools of its steps, `models` what `llm` steps may name, `providers` where \
machines may come from, the one marked `default` for an agent that names none; `secrets` says whether it may name secrets";

/// Finished steps of an earlier plan that a planner is told of, per agent.
const TOLD_STEPS: usize = 50;
/// How an agent counts tasks of which steps may have finished.
const BEGUN: [ChildState; 5] =
    [ChildState::Completed, ChildState::Partial, ChildState::Failed, ChildState::Running, ChildState::Cancelled];

/// What became of the plan so far: the plan as it was written, and of each agent its end, its error and what it finished.
pub(crate) fn history(tx: &mut Tx, run: &Run) -> Result<Value, Failure> {
    let agents = store::agent::of_attempt(tx, run.id, run.attempt)?;
    let of_plan =
        |agent: &&model::agent::Agent| agent.plan_version == run.plan_version && agent.kind == AgentKind::Planned;
    let mut told = Vec::new();
    for agent in agents.iter().filter(of_plan) {
        let finished = finished(tx, agent.id)?;
        told.push(json!({
            "name": agent.name, "status": agent.status, "outcome": agent.outcome, "error": agent.last_error, "finished": finished,
        }));
    }
    if told.is_empty() {
        return Ok(Value::Null);
    }
    Ok(json!({ "plan": store::plan::source(tx, run.id, run.plan_version)?, "agents": told }))
}

/// The first steps of an agent that have finished. What is read does not grow with the agent.
fn finished(tx: &mut Tx, agent: AgentId) -> Result<Vec<String>, Failure> {
    let mut tasks = Vec::new();
    for state in BEGUN {
        tasks.extend(store::task::counted_as(tx, agent, state, TOLD_STEPS as i64)?);
    }
    tasks.sort_by_key(|task| (task.sequence, task.item));
    let mut finished = Vec::new();
    for task in tasks {
        let room = TOLD_STEPS - finished.len();
        if room == 0 {
            break;
        }
        let steps = store::step::in_state(tx, task.id, StepStatus::Completed, room as i64)?;
        finished.extend(steps.into_iter().map(|step| format!("{}/{}", task.name, step.name)));
    }
    Ok(finished)
}

/// What the planner's step is called with: a prompt for a model, or a document for a program.
pub(crate) fn planning_input(
    tool: ToolKind,
    input: &Value,
    shared: &RunPlan,
    max_agents: i64,
    history: &Value,
) -> Value {
    let described = shared.tools.iter().map(|(name, tool)| {
        json!({ "name": name, "description": tool.description, "args": tool.args, "policy": tool.policy })
    });
    let tools: Vec<Value> = described.collect();
    let mut given = input.clone();
    match tool {
        ToolKind::Llm => {
            given["prompt"] = prompt(shared, &tools, max_agents, history).into();
            given["max_turns"] = 1.into();
        }
        _ => {
            given["input"] = json!({
                "goal": shared.goal, "inputs": shared.inputs, "tools": tools, "max_agents": max_agents,
                "schema": plan::planned_schema(), "previous": history,
            });
        }
    }
    given
}

const HOW: &str = "Answer with one JSON object {\"agents\": [...]} that matches the schema. Agents work side by side and do not see each \
other's results. The tasks of an agent run in order; a step reads earlier outputs as ${{ tasks.NAME.steps.NAME.output }} or \
${{ steps.NAME.output }}, and inputs as ${{ inputs.NAME }}. A step that is not idempotent needs a name.";

fn prompt(shared: &RunPlan, tools: &[Value], max_agents: i64, history: &Value) -> String {
    let goal = shared.goal.as_deref().unwrap_or("what the earlier plan was for");
    let (inputs, tools) = (Value::Object(shared.inputs.clone()), Value::from(tools.to_vec()));
    let mut text = format!(
        "Make a plan of at most {max_agents} agents for this goal:\n{goal}\n\n{HOW}\n\nInputs: {inputs}\nTools that `llm` steps may name: {tools}\n"
    );
    if !history.is_null() {
        text.push_str(&format!("\nAn earlier plan failed: {history}\nMake another one.\n"));
    }
    text
}
