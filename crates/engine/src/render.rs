//! Evaluates what an agent's plan says with expressions: inputs of steps, conditions, items. Reads the outputs that expressions name, and
//! never runs inside a transaction that writes: a step begins with what was evaluated before its commit.

use crate::Engine;
use crate::plan_limits::PlanLimits;
use crate::planner::{planning_input, told_errors, with_errors, with_may_use};
use crate::step::{Call, Place, Prepared, PreparedTask, TaskPlace, step_plan};
use model::plan::{AgentPlan, RunPlan, TaskPlan};
use model::run::LastError;
use model::step::Step;
use model::task::Task;
use model::{AgentId, Failure, OrgId, RunId, bug};
use plan::expression::Reference;
use plan::{RenderError, Scope, Template};
use serde_json::{Map, Value, json};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use store::Tx;
use store::step::Data;

/// No agent of a file has this name.
const PLANNER: &str = "@planner";

/// An agent with its plan, and what all steps of its run share.
#[derive(Clone)]
pub(crate) struct Renderer {
    pub(crate) org: OrgId,
    pub(crate) run: RunId,
    pub(crate) run_name: String,
    pub(crate) attempt: i64,
    pub(crate) agent: AgentId,
    pub(crate) agent_name: String,
    pub(crate) plan: Arc<AgentPlan>,
    pub(crate) shared: Arc<RunPlan>,
    /// Of a planner.
    pub(crate) planning: Option<Planning>,
}

/// What a planner is told, and by what its plan is checked.
#[derive(Clone)]
pub(crate) struct Planning {
    /// What became of the plan so far.
    pub(crate) history: Arc<Value>,
    /// How many agents the next plan is to have at most.
    pub(crate) max_agents: i64,
    pub(crate) limits: Option<PlanLimits>,
}

/// What could begin if its expressions were evaluated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Want {
    Task(i64),
    Step(Place),
}

/// Outputs that are about to be recorded, by the place of their step.
pub(crate) type Fresh = BTreeMap<Place, Value>;

/// What has been evaluated for steps and tasks that may begin.
#[derive(Debug, Clone, Default)]
pub(crate) struct Evaluated {
    pub(crate) steps: BTreeMap<Place, Prepared>,
    pub(crate) tasks: BTreeMap<i64, PreparedTask>,
}

impl Renderer {
    /// Evaluates all of these; one read brings every output that they name.
    pub(crate) async fn evaluate(&self, engine: &Engine, wants: &[Want], fresh: Fresh) -> Result<Evaluated, Failure> {
        if let Some(planning) = &self.planning {
            let agent = self.agent;
            let errors = engine.store.read("agent.planner", move |tx| told_errors(tx, agent)).await?;
            let may_use = planning.limits.as_ref().map(|limits| limits.may_use(&engine.context));
            return Ok(self.planned(wants, planning, may_use, errors.as_ref()));
        }
        let mut parts = Vec::new();
        for want in wants {
            parts.extend(self.part(*want));
        }
        let reads: BTreeSet<Read> = parts.iter().flat_map(|part| part.reads(&self.plan)).collect();
        let values = self.values(engine, reads, fresh).await?;
        let mut evaluated = Evaluated::default();
        for part in parts {
            part.evaluate(self, &values, &mut evaluated);
        }
        Ok(evaluated)
    }

    async fn values(&self, engine: &Engine, reads: BTreeSet<Read>, fresh: Fresh) -> Result<Values, Failure> {
        if reads.is_empty() {
            return Ok(Values::default());
        }
        let agent = self.agent;
        engine.store.read("agent.values", move |tx| read(tx, agent, &reads, &fresh)).await
    }

    /// A template that stands beside a step's input, such as that of its `verify`. `more` is a name that only this template may read.
    pub(crate) async fn render_at(
        &self,
        engine: &Engine,
        place: Place,
        template: Parsed,
        more: Option<(&str, Value)>,
    ) -> Result<Result<Value, LastError>, Failure> {
        let task = &self.plan.tasks[place.task.sequence as usize];
        let item = task.for_each.as_ref().filter(|_| place.task.item.is_some()).map(value);
        let part = Part { want: Want::Step(place), condition: None, for_each: item, input: Some(template) };
        let reads = part.reads(&self.plan).into_iter().collect();
        let values = self.values(engine, reads, Fresh::new()).await?;
        let scope = part.scope(self, &values, place).map(|scope| match more {
            Some((name, value)) => scope.with(name, value),
            None => scope,
        });
        Ok(scope.and_then(|scope| part.render_input(&scope)))
    }

    /// A planner's step is given the goal, what its plan may use, what became of the plan so far, and what was wrong with its last answer.
    /// What it may use and the errors are not part of the key, so that the record of the plan answers in the next attempt.
    fn planned(
        &self,
        wants: &[Want],
        planning: &Planning,
        may_use: Option<Value>,
        errors: Option<&String>,
    ) -> Evaluated {
        let mut evaluated = Evaluated::default();
        for want in wants {
            let Want::Step(place) = want else { continue };
            let Some(step) = step_plan(&self.plan, *place) else { continue };
            let input = planning_input(step.tool, &step.input, &self.shared, planning.max_agents, &planning.history);
            let identity = plan::identity(PLANNER, "plan", &step.name, 1);
            let key = plan::key(self.run, &identity, step.tool, &input);
            let input = with_may_use(step.tool, input, may_use.clone().unwrap_or_default());
            let input = with_errors(input, errors.cloned());
            evaluated.steps.insert(*place, Prepared::Call(Call { identity: identity.to_string(), key, input }));
        }
        evaluated
    }

    fn part(&self, want: Want) -> Option<Part> {
        let of_task = |sequence: i64| self.plan.tasks.get(usize::try_from(sequence).ok()?);
        match want {
            Want::Task(sequence) => Some(Part { want, ..Part::of_task(of_task(sequence)?) }),
            Want::Step(place) => {
                let task = of_task(place.task.sequence)?;
                let step = task.steps.get(usize::try_from(place.step).ok()?)?;
                let item = task.for_each.clone().filter(|_| place.task.item.is_some());
                let input = Template::for_tool(step.tool, &step.input).map_err(|bad| bad.error.why);
                Some(Part {
                    want,
                    condition: step.condition.as_deref().map(text),
                    for_each: item.as_ref().map(value),
                    input: Some(input),
                })
            }
        }
    }

    /// The values that expressions of one place may name.
    fn scope(&self, values: &Values, at: Option<Place>) -> Scope {
        let goal = self.shared.goal.clone();
        let run = json!({ "id": self.run.to_string(), "name": self.run_name, "goal": goal });
        let scope = Scope::new().with("inputs", Value::Object(self.shared.inputs.clone())).with("run", run);
        let scope = scope.with("tasks", values.tasks(&self.plan));
        match at {
            Some(place) => scope.with("steps", values.steps(&self.plan, place.task)),
            None => scope,
        }
    }

    /// What expressions of tools that a model calls may name, beside its arguments.
    pub(crate) fn tool_scope(&self) -> Scope {
        self.scope(&Values::default(), None)
    }

    pub(crate) fn identity(&self, task: &TaskPlan, item: Option<i64>, step: &str, generation: i64) -> plan::Identity {
        let task = item.map_or_else(|| task.name.clone(), |item| format!("{}[{item}]", task.name));
        plan::identity(&self.agent_name, &task, step, generation)
    }
}

/// The expressions of one step or task.
struct Part {
    want: Want,
    condition: Option<Parsed>,
    for_each: Option<Parsed>,
    input: Option<Parsed>,
}

pub(crate) type Parsed = Result<Template, String>;

fn text(condition: &str) -> Parsed {
    value(&Value::String(condition.to_owned()))
}

fn value(value: &Value) -> Parsed {
    Template::parse(value).map_err(|bad| bad.error.why)
}

impl Part {
    fn of_task(task: &TaskPlan) -> Part {
        let condition = task.condition.as_deref().map(text);
        Part { want: Want::Task(0), condition, for_each: task.for_each.as_ref().map(value), input: None }
    }

    fn reads(&self, plan: &AgentPlan) -> Vec<Read> {
        let own = match self.want {
            Want::Step(place) => Some(place.task),
            Want::Task(_) => None,
        };
        let templates = [&self.condition, &self.for_each, &self.input].into_iter().flatten();
        let references = templates.filter_map(|parsed| parsed.as_ref().ok()).flat_map(Template::references);
        references.flat_map(|reference| Read::of(reference, plan, own)).collect()
    }

    fn evaluate(self, renderer: &Renderer, values: &Values, evaluated: &mut Evaluated) {
        match self.want {
            Want::Task(sequence) => {
                let ready = self.task(renderer, values).unwrap_or_else(PreparedTask::Refused);
                evaluated.tasks.insert(sequence, ready);
            }
            Want::Step(place) => {
                let prepared = self.step(renderer, values, place).unwrap_or_else(Prepared::Refused);
                evaluated.steps.insert(place, prepared);
            }
        }
    }

    fn task(&self, renderer: &Renderer, values: &Values) -> Result<PreparedTask, LastError> {
        let scope = renderer.scope(values, None);
        if !holds(&self.condition, &scope)? {
            return Ok(PreparedTask::NotNeeded);
        }
        match items(&self.for_each, &scope)? {
            Some(items) => Ok(PreparedTask::Each(items.len() as i64)),
            None => Ok(PreparedTask::Go),
        }
    }

    fn scope(&self, renderer: &Renderer, values: &Values, place: Place) -> Result<Scope, LastError> {
        let scope = renderer.scope(values, Some(place));
        let (Some(items), Some(at)) = (items(&self.for_each, &scope)?, place.task.item) else { return Ok(scope) };
        let item = items.into_iter().nth(at as usize);
        Ok(scope.with("item", item.ok_or_else(|| bad("its item is not in the list any more"))?))
    }

    fn render_input(&self, scope: &Scope) -> Result<Value, LastError> {
        match &self.input {
            Some(template) => parsed(template)?.render(scope).map_err(not_rendered),
            None => Ok(Value::Null),
        }
    }

    fn step(&self, renderer: &Renderer, values: &Values, place: Place) -> Result<Prepared, LastError> {
        let scope = self.scope(renderer, values, place)?;
        if !holds(&self.condition, &scope)? {
            return Ok(Prepared::NotNeeded);
        }
        let task = &renderer.plan.tasks[place.task.sequence as usize];
        let step = &task.steps[place.step as usize];
        let input = self.render_input(&scope)?;
        let generation = if step.rerun { renderer.attempt } else { 1 };
        let identity = renderer.identity(task, place.task.item, &step.name, generation);
        let mut key = plan::key(renderer.run, &identity, step.tool, &input);
        if bug!(row_id_in_a_key) {
            key.push_str(&renderer.agent.to_string());
        }
        Ok(Prepared::Call(Call { identity: identity.to_string(), key, input }))
    }
}

fn parsed(parsed: &Parsed) -> Result<&Template, LastError> {
    parsed.as_ref().map_err(|why| bad(why))
}

fn holds(condition: &Option<Parsed>, scope: &Scope) -> Result<bool, LastError> {
    let Some(condition) = condition else { return Ok(true) };
    match parsed(condition)?.render(scope).map_err(not_rendered)? {
        Value::Bool(holds) => Ok(holds),
        other => Err(bad(&format!("`if` must give true or false, and gave {}", short(&other)))),
    }
}

fn items(for_each: &Option<Parsed>, scope: &Scope) -> Result<Option<Vec<Value>>, LastError> {
    let Some(for_each) = for_each else { return Ok(None) };
    let most = plan::fields::MAX_FOR_EACH;
    match parsed(for_each)?.render(scope).map_err(not_rendered)? {
        Value::Array(items) if items.len() <= most => Ok(Some(items)),
        Value::Array(items) => Err(bad(&format!("`for_each` gave {} items: {most} are allowed", items.len()))),
        other => Err(bad(&format!("`for_each` must give a list, and gave {}", short(&other)))),
    }
}

fn short(value: &Value) -> String {
    let text = value.to_string();
    text.char_indices().nth(60).map_or(text.clone(), |(at, _)| format!("{}…", &text[..at]))
}

fn not_rendered(error: RenderError) -> LastError {
    bad(&error.to_string())
}

fn bad(why: &str) -> LastError {
    LastError { code: "invalid_input".into(), message: why.to_owned(), cause: None }
}

/// An output or a status that an expression names.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Read {
    task: i64,
    /// Of this item's task only; all of them otherwise.
    own: Option<TaskPlace>,
    /// All steps of the task if none is named.
    step: Option<i64>,
}

impl Read {
    pub(crate) fn of(reference: &Reference, plan: &AgentPlan, own: Option<TaskPlace>) -> Option<Read> {
        let step_of = |task: i64, name: Option<&str>| {
            let steps = &plan.tasks.get(task as usize)?.steps;
            steps.iter().position(|step| Some(step.name.as_str()) == name).map(|at| at as i64)
        };
        match reference.root.as_str() {
            "steps" => {
                let own = own?;
                let step = step_of(own.sequence, reference.key(0));
                Some(Read { task: own.sequence, own: Some(own), step })
            }
            "tasks" => {
                let name = reference.key(0)?;
                let task = plan.tasks.iter().position(|task| task.name == name)? as i64;
                // Behind a position in the list of a `for_each`, or at once.
                let step = [1, 2].into_iter().find(|at| reference.key(*at) == Some("steps"));
                let step = step.and_then(|at| step_of(task, reference.key(at + 1)));
                Some(Read { task, own: None, step })
            }
            _ => None,
        }
    }
}

/// What is known of steps, by the place of their task.
#[derive(Default)]
pub(crate) struct Values {
    tasks: BTreeMap<TaskPlace, (String, BTreeMap<i64, StepFacts>)>,
}

struct StepFacts {
    status: String,
    output: Option<Value>,
}

pub(crate) fn read(tx: &mut Tx, agent: AgentId, reads: &BTreeSet<Read>, fresh: &Fresh) -> Result<Values, Failure> {
    let mut values = Values::default();
    let mut rows: BTreeMap<i64, Vec<Task>> = BTreeMap::new();
    for read in reads {
        let tasks = match rows.entry(read.task) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(unknown) => unknown.insert(store::task::all_at(tx, agent, read.task)?),
        };
        for task in tasks.iter() {
            let place = TaskPlace::of(task);
            if read.own.is_some_and(|own| own != place) {
                continue;
            }
            let steps = match read.step {
                Some(sequence) => store::step::at(tx, task.id, sequence)?.into_iter().collect(),
                None => store::step::of_task(tx, task.id)?,
            };
            let (_, known) = values.tasks.entry(place).or_insert((task.status.to_string(), BTreeMap::new()));
            for step in steps {
                let at = Place { task: place, step: step.sequence };
                known.insert(step.sequence, facts_of(tx, &step, fresh.get(&at))?);
            }
        }
    }
    Ok(values)
}

fn facts_of(tx: &mut Tx, step: &Step, fresh: Option<&Value>) -> Result<StepFacts, Failure> {
    if let Some(output) = fresh {
        return Ok(StepFacts { status: "completed".into(), output: Some(output.clone()) });
    }
    let output = match step.answer {
        Some(answer) => store::step::data(tx, answer, Data::Output)?,
        None => None,
    };
    Ok(StepFacts { status: step.status.to_string(), output })
}

impl Values {
    fn steps(&self, plan: &AgentPlan, task: TaskPlace) -> Value {
        let Some((_, known)) = self.tasks.get(&task) else { return json!({}) };
        let steps = &plan.tasks[task.sequence as usize].steps;
        let named = known.iter().filter_map(|(sequence, known)| {
            let mut fields = Map::from_iter([("status".to_owned(), Value::from(known.status.clone()))]);
            fields.extend(known.output.clone().map(|output| ("output".to_owned(), output)));
            Some((steps.get(*sequence as usize)?.name.clone(), Value::Object(fields)))
        });
        Value::Object(named.collect())
    }

    pub(crate) fn tasks(&self, plan: &AgentPlan) -> Value {
        let mut tasks = Map::new();
        for (place, (status, _)) in &self.tasks {
            let name = &plan.tasks[place.sequence as usize].name;
            let task = json!({ "status": status, "steps": self.steps(plan, *place) });
            match place.item {
                // Items come in their order.
                Some(_) => {
                    if let Value::Array(items) = tasks.entry(name.clone()).or_insert_with(|| json!([])) {
                        items.push(task);
                    }
                }
                None => drop(tasks.insert(name.clone(), task)),
            }
        }
        Value::Object(tasks)
    }
}

/// When a step of the tool `wait` is over, for a step that begins now.
pub(crate) fn wait_until(input: &Value, now: model::Timestamp) -> Result<model::Timestamp, LastError> {
    match (input["for"].as_str(), input["until"].as_str()) {
        (Some(text), _) => match model::time::parse_duration(text) {
            Ok(ms) => Ok(now + ms),
            Err(why) => Err(bad(&format!("wait.for: {why}"))),
        },
        (None, Some(text)) => plan::parse_time(text)
            .ok_or_else(|| bad(&format!("wait.until: `{text}` is no time like 2030-01-31T08:00:00Z"))),
        (None, None) => Err(bad("wait: needs `for` or `until`")),
    }
}
