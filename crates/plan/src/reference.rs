//! What a name in an expression stands for, at a place in a document: an input, a step's output, an argument. Finds names that do not
//! exist and values that are not there yet.

use crate::document::{Agent, Parallelism, Task};
use crate::expression::{Reference, Segment, attribute};
use crate::nearest::{did_you_mean, suggestion};
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// What is known of a run itself.
const OF_RUN: &[&str] = &["id", "name", "goal"];
const OF_TASK: &[&str] = &["steps", "status"];
const OF_STEP: &[&str] = &["output", "status"];

/// The names of one agent, for looking up. Made once per agent: a document has up to 100,000 steps.
pub struct Names<'d> {
    agent: &'d Agent,
    tasks: BTreeMap<&'d str, usize>,
    steps: Vec<BTreeMap<&'d str, usize>>,
}

impl<'d> Names<'d> {
    pub fn of(agent: &'d Agent) -> Names<'d> {
        let steps_of =
            |task: &'d Task| task.steps.iter().enumerate().map(|(at, step)| (step.name.as_str(), at)).collect();
        Names {
            agent,
            tasks: agent.tasks.iter().enumerate().map(|(at, task)| (task.name.as_str(), at)).collect(),
            steps: agent.tasks.iter().map(steps_of).collect(),
        }
    }

    pub fn task(&self, name: &str) -> Option<usize> {
        self.tasks.get(name).copied()
    }

    pub fn task_names(&self) -> impl Iterator<Item = &'d str> {
        self.tasks.keys().copied()
    }
}

/// What expressions may name at one place.
#[derive(Clone, Copy)]
pub struct View<'v> {
    pub inputs: &'v Map<String, Value>,
    /// Whether the run exists when the place is evaluated.
    pub run: bool,
    /// The tasks of the same agent, and the position of the task that the place belongs to.
    pub tasks: Option<(&'v Names<'v>, usize)>,
    /// The position of the step that the place belongs to.
    pub step: Option<usize>,
    pub item: bool,
    pub args: Option<&'v BTreeMap<String, Value>>,
    /// `output` is what a `verify` answered.
    pub output: bool,
    /// All agents by name, in the run's `output`. Nothing is known of them if a planner makes them.
    pub agents: Option<&'v BTreeMap<&'v str, Names<'v>>>,
}

/// Why a name is refused, and what to write instead.
pub struct Unresolved {
    pub why: String,
    pub hint: Option<String>,
}

fn no<T>(why: impl Into<String>, hint: impl Into<String>) -> Result<T, Unresolved> {
    Err(Unresolved { why: why.into(), hint: Some(hint.into()) })
}

impl<'v> View<'v> {
    pub fn new(inputs: &'v Map<String, Value>) -> View<'v> {
        View { inputs, run: true, tasks: None, step: None, item: false, args: None, output: false, agents: None }
    }

    /// Of a place that is evaluated when the run is submitted.
    pub fn early(inputs: &'v Map<String, Value>) -> View<'v> {
        View { run: false, ..View::new(inputs) }
    }

    fn roots(&self) -> Vec<&'static str> {
        let possible = [
            ("inputs", true),
            ("run", self.run),
            ("tasks", self.tasks.is_some()),
            ("steps", self.step.is_some()),
            ("item", self.item),
            ("args", self.args.is_some()),
            ("output", self.output),
            ("agents", self.agents.is_some()),
        ];
        possible.into_iter().filter(|(_, here)| *here).map(|(root, _)| root).collect()
    }

    /// The position of the task that has to end first, if the value comes from one.
    pub fn resolve(&self, reference: &Reference) -> Result<Option<usize>, Unresolved> {
        match reference.root.as_str() {
            "inputs" => self.input(reference).map(|()| None),
            "run" if self.run => known(reference, 0, OF_RUN).map(|()| None),
            "item" if self.item => Ok(None),
            "output" if self.output => Ok(None),
            "args" if self.args.is_some() => self.arg(reference).map(|()| None),
            "steps" if self.step.is_some() => self.step(reference).map(|()| None),
            "tasks" if self.tasks.is_some() => self.task(reference).map(Some),
            "agents" if self.agents.is_some() => self.agent(reference).map(|()| None),
            root => {
                let why = match root {
                    "item" => "`item` exists only in the steps of a task with `for_each`".to_owned(),
                    "output" => "`output` exists only in `verify.outcome`".to_owned(),
                    "args" => "`args` exists only in `tools`".to_owned(),
                    "agents" => {
                        "`agents` exists only in the run's `output`: agents do not depend on each other".to_owned()
                    }
                    "run" => "`run` cannot be read here: this is evaluated when the run is submitted".to_owned(),
                    "tasks" | "steps" => format!("`{root}` cannot be read here"),
                    other => format!("nothing is called `{other}`"),
                };
                no(why, suggestion(root, &self.roots()))
            }
        }
    }

    fn input(&self, reference: &Reference) -> Result<(), Unresolved> {
        let Some(name) = reference.key(0) else {
            return no("the name of the input is missing", "write it like inputs.topic");
        };
        if self.inputs.contains_key(name) {
            return Ok(());
        }
        let near = did_you_mean(name, self.inputs.keys().map(String::as_str));
        no(
            format!("no input is called `{name}`"),
            near.unwrap_or_else(|| format!("add it below `inputs:`, or give --input {name}=VALUE")),
        )
    }

    fn arg(&self, reference: &Reference) -> Result<(), Unresolved> {
        let args = self.args.into_iter().flatten().map(|(name, _)| name.as_str());
        match reference.key(0) {
            None => Ok(()),
            Some(name) if args.clone().any(|arg| arg == name) => Ok(()),
            Some(name) => no(format!("no argument is called `{name}`"), suggestion(name, &args.collect::<Vec<_>>())),
        }
    }

    /// `steps.NAME.output`: an earlier step of the same task.
    fn step(&self, reference: &Reference) -> Result<(), Unresolved> {
        let (Some((names, task)), Some(here)) = (self.tasks, self.step) else {
            return no("no step can be read here", "leave it out");
        };
        let step = find_step(names, task, reference, 0)?;
        let name = &names.agent.tasks[task].steps[step].name;
        if names.agent.tasks[task].parallel {
            return no(
                format!("the steps of a parallel task do not wait for each other: `{name}` has no output yet"),
                "leave out `parallelism: parallel`",
            );
        }
        if step >= here {
            return no(format!("`{name}` has no output yet: it does not run before this step"), "name an earlier step");
        }
        let output = names.agent.tasks[task].steps[step].output.as_ref();
        of_step(reference, 1, output)
    }

    /// `tasks.NAME.steps.NAME.output`: a step of another task of the same agent, which must have ended.
    fn task(&self, reference: &Reference) -> Result<usize, Unresolved> {
        let Some((names, here)) = self.tasks else { return no("no task can be read here", "leave it out") };
        let task = find_task(names, reference, 0)?;
        let name = &names.agent.tasks[task].name;
        match names.agent.parallelism {
            _ if task == here => {
                return no(format!("`{name}` is this task itself"), "write steps.NAME for its earlier steps");
            }
            Parallelism::Parallel => {
                return no(
                    format!("parallel tasks do not wait for each other: `{name}` has no output yet"),
                    "use `parallelism: dag`",
                );
            }
            Parallelism::Sequential if task > here => {
                return no(
                    format!("`{name}` has no output yet: it runs after this task"),
                    "change the order, or use `parallelism: dag`",
                );
            }
            _ => {}
        }
        below_task(names, task, reference, 1)?;
        Ok(task)
    }

    fn agent(&self, reference: &Reference) -> Result<(), Unresolved> {
        let Some(agents) = self.agents.filter(|agents| !agents.is_empty()) else { return Ok(()) };
        let Some(name) = reference.key(0) else {
            return no("the name of the agent is missing", "write it like agents.NAME.tasks.NAME.steps.NAME.output");
        };
        let Some(names) = agents.get(name) else {
            return no(format!("no agent is called `{name}`"), instead("agents", name, agents.keys().copied()));
        };
        known(reference, 1, &["tasks"])?;
        let task = find_task(names, reference, 2)?;
        below_task(names, task, reference, 3)
    }
}

fn find_task(names: &Names<'_>, reference: &Reference, at: usize) -> Result<usize, Unresolved> {
    let Some(name) = reference.key(at) else {
        return no("the name of the task is missing", "write it like tasks.NAME.steps.NAME.output");
    };
    match names.task(name) {
        Some(task) => Ok(task),
        None => no(format!("no task is called `{name}`"), instead("tasks", name, names.task_names())),
    }
}

/// Behind the task's name: `.steps.NAME.output`, or with `for_each` a position first.
fn below_task(names: &Names<'_>, task: usize, reference: &Reference, at: usize) -> Result<(), Unresolved> {
    let mut at = at;
    if names.agent.tasks[task].for_each.is_some() {
        match reference.rest.get(at) {
            None => return Ok(()),
            Some(Segment::Index(_)) => at += 1,
            Some(Segment::Key(_)) => {
                let name = attribute(&names.agent.tasks[task].name);
                return no(
                    "a task with `for_each` is a list",
                    format!("write it like tasks{name}[0].steps.NAME.output"),
                );
            }
        }
    }
    known(reference, at, OF_TASK)?;
    if reference.key(at) == Some("status") {
        return Ok(());
    }
    let step = find_step(names, task, reference, at + 1)?;
    of_step(reference, at + 2, names.agent.tasks[task].steps[step].output.as_ref())
}

fn find_step(names: &Names<'_>, task: usize, reference: &Reference, at: usize) -> Result<usize, Unresolved> {
    let Some(name) = reference.key(at) else {
        return no("the name of the step is missing", "write it like steps.NAME.output");
    };
    match names.steps[task].get(name) {
        Some(step) => Ok(*step),
        None => no(format!("no step is called `{name}`"), instead("steps", name, names.steps[task].keys().copied())),
    }
}

fn of_step(reference: &Reference, at: usize, schema: Option<&Value>) -> Result<(), Unresolved> {
    known(reference, at, OF_STEP)?;
    if reference.key(at) != Some("output") {
        return Ok(());
    }
    match schema {
        Some(schema) => in_schema(schema, &reference.rest[at + 1..]),
        None => Ok(()),
    }
}

/// Whether the output can have this part, by the properties that its schema lists. Schemas put together from others are not followed.
fn in_schema(schema: &Value, rest: &[Segment]) -> Result<(), Unresolved> {
    let open = ["$ref", "$dynamicRef", "allOf", "anyOf", "oneOf", "if", "patternProperties"]
        .iter()
        .any(|word| schema.get(word).is_some());
    let more = schema.get("additionalProperties").is_some_and(|more| *more != Value::Bool(false));
    let (Some(Segment::Key(name)), Some(properties), false) =
        (rest.first(), schema.get("properties").and_then(Value::as_object), open || more)
    else {
        return Ok(());
    };
    match properties.get(name) {
        Some(inner) => in_schema(inner, &rest[1..]),
        None => no(
            format!("the step's `output` schema has no `{name}`"),
            suggestion(name, &properties.keys().map(String::as_str).collect::<Vec<_>>()),
        ),
    }
}

fn known(reference: &Reference, at: usize, names: &[&str]) -> Result<(), Unresolved> {
    match reference.key(at) {
        Some(name) if names.contains(&name) => Ok(()),
        Some(name) => no(format!("`{reference}`: there is no `{name}` here"), suggestion(name, names)),
        None => {
            let shorter = Reference {
                root: reference.root.clone(),
                rest: reference.rest[..at.min(reference.rest.len())].to_vec(),
            };
            no(format!("`{reference}` is incomplete"), format!("write it like {shorter}.{}", names[0]))
        }
    }
}

/// `-` in a name is minus in an expression, so such names are written in brackets: `tasks["my-task"]`.
fn instead<'n>(root: &str, name: &str, names: impl Iterator<Item = &'n str>) -> String {
    let names: Vec<&str> = names.collect();
    let dashed = names.iter().find(|known| known.strip_prefix(name).is_some_and(|rest| rest.starts_with('-')));
    match dashed {
        Some(known) => format!("did you mean {root}{}?", attribute(known)),
        None if names.len() > 20 => did_you_mean(name, names).unwrap_or_else(|| "look at the names above".to_owned()),
        None => suggestion(name, &names),
    }
}
