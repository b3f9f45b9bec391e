//! Everything that can be refused by looking at a document alone. All problems are collected, up to a limit; the work is linear in the
//! document's size.

mod call;
#[cfg(test)]
mod tests;

use crate::document::{self, Agent, Document, Parallelism};
use crate::expression::Segment;
use crate::fields::{AGENT, RUN, TASK, Table};
use crate::nearest::{did_you_mean, suggestion};
use crate::output;
use crate::problem::{At, Problem, Problems};
use crate::reference::{Names, View};
use crate::shape::{Slot, check_table, each_template, get};
use crate::template::{Template, has_expression};
use model::plan::{MAX_PLANNED_STEPS, cycle};
use model::spec;
use model::step::ToolKind;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// Bytes of a document's text. A plan of 100,000 steps with short inputs fits.
pub const MAX_DOCUMENT_BYTES: usize = 10_000_000;

/// A document that may be run, and remarks on what has no effect in it.
#[derive(Debug, Clone, PartialEq)]
pub struct Checked {
    pub document: Document,
    pub warnings: Vec<Problem>,
}

/// Checks a document: the body of a request, or a file, as JSON.
pub fn check(value: &Value) -> Result<Checked, Vec<Problem>> {
    let mut problems = Problems::default();
    if size_exceeds(value, MAX_DOCUMENT_BYTES) {
        problems.add(At::Root, format!("the document is larger than {MAX_DOCUMENT_BYTES} bytes"));
        return Err(problems.into_list());
    }
    check_table(value, &RUN, At::Root, &mut problems);
    let mut document = document::read(value);
    let mut warnings = Problems::default();
    check_run(value, &document, &mut problems, &mut warnings);
    let agents = std::mem::take(&mut document.agents);
    let mut checker = Checker::new(&document, None, &mut problems, &mut warnings);
    let after = checker.agents(value, &agents);
    output_of_run(value, &document, &agents, &mut problems);
    document.agents = agents;
    finish(&mut document.agents, after);
    let problems = problems.into_list();
    if problems.is_empty() { Ok(Checked { document, warnings: warnings.into_list() }) } else { Err(problems) }
}

/// Only these fields are a planner's to say.
pub(crate) static PLANNED: Table = Table {
    what: "a planner's plan",
    fields: &[crate::fields::Field {
        name: "agents",
        kind: crate::fields::Kind::List(&AGENT, model::plan::MAX_PLANNED_AGENTS),
        about: "The agents.",
    }],
    required: &["agents"],
    exactly_one: &[],
    at_most_one: &[],
};

/// Checks the plan that a planner made for this document: as a file is checked, and within what the file allows.
pub fn check_planned(value: &Value, file: &Document) -> Result<Vec<Agent>, Vec<Problem>> {
    let (mut problems, mut warnings) = (Problems::default(), Problems::default());
    if size_exceeds(value, MAX_DOCUMENT_BYTES) {
        problems.add(At::Root, format!("the plan is larger than {MAX_DOCUMENT_BYTES} bytes"));
        return Err(problems.into_list());
    }
    check_table(value, &PLANNED, At::Root, &mut problems);
    let fields = document::Fields::of(value);
    let mut agents = document::read_agents(fields.list("agents"));
    if agents.len() as i64 > file.max_agents {
        problems.add(At::Root.key("agents"), format!("{} agents: `max_agents` is {}", agents.len(), file.max_agents));
    }
    let after = Checker::new(file, file.planner.as_ref(), &mut problems, &mut warnings).agents(value, &agents);
    finish(&mut agents, after);
    let problems = problems.into_list();
    if problems.is_empty() { Ok(agents) } else { Err(problems) }
}

fn finish(agents: &mut [Agent], after: Vec<Vec<Vec<usize>>>) {
    for (agent, after) in agents.iter_mut().zip(after) {
        for (task, after) in agent.tasks.iter_mut().zip(after) {
            task.after = after;
        }
    }
}

fn size_exceeds(value: &Value, most: usize) -> bool {
    fn spend(value: &Value, left: &mut usize) -> Option<()> {
        let own = match value {
            Value::String(text) => text.len() + 2,
            _ => 2,
        };
        *left = left.checked_sub(own)?;
        match value {
            Value::Array(list) => list.iter().try_for_each(|item| spend(item, left)),
            Value::Object(fields) => fields.iter().try_for_each(|(name, item)| {
                *left = left.checked_sub(name.len() + 2)?;
                spend(item, left)
            }),
            _ => Some(()),
        }
    }
    let mut left = most;
    spend(value, &mut left).is_none()
}

/// What stands at the top: paths, the planner, templates outside of agents.
fn check_run(value: &Value, document: &Document, problems: &mut Problems, warnings: &mut Problems) {
    let fields = document::Fields::of(value);
    for (index, file) in document.files.iter().enumerate() {
        if file.is_empty() || file.contains('\0') {
            problems.add(At::Root.key("files").index(index), "is not a path");
        }
    }
    secret_names(fields.list("secrets"), At::Root.key("secrets"), problems);
    if document.goal.is_some() && fields.get("planner").is_none() {
        problems.add(At::Root.key("goal"), "a goal needs a `planner`");
    }
    if document.goal.as_ref().is_some_and(|goal| goal.trim().is_empty()) {
        problems.add(At::Root.key("goal"), "the goal is empty");
    }
    if fields.inner("replan").flag("enabled") == Some(true) && fields.get("planner").is_none() {
        warnings.hint(At::Root.key("replan"), "has no effect without a planner", "add `planner:`");
    }
    if let Some(inputs) = fields.get("inputs") {
        no_secrets(inputs, At::Root.key("inputs"), problems);
    }
    let view = View::early(&document.inputs);
    for field in RUN.fields.iter().filter(|field| field.name != "output") {
        each_template(value, std::slice::from_ref(field), At::Root, &mut |value, slot, at| {
            template(value, slot, &view, at, problems);
        });
    }
}

fn output_of_run(value: &Value, document: &Document, agents: &[Agent], problems: &mut Problems) {
    let Some(output) = document::Fields::of(value).get("output") else { return };
    let names: BTreeMap<&str, Names<'_>> = agents.iter().map(|agent| (agent.name.as_str(), Names::of(agent))).collect();
    let view = View { agents: Some(&names), ..View::new(&document.inputs) };
    template(output, Slot::Value, &view, At::Root.key("output"), problems);
}

fn secret_names(list: &[Value], at: At<'_>, problems: &mut Problems) {
    for (index, name) in list.iter().enumerate() {
        if let Some(Err(why)) = name.as_str().map(spec::check_variable) {
            problems.add(at.index(index), why);
        }
    }
}

/// `{secret: NAME}` outside of headers and variables would be sent as it is, or stored.
fn no_secrets(value: &Value, at: At<'_>, problems: &mut Problems) {
    match value {
        Value::Object(fields)
            if fields.get("secret").is_some_and(Value::is_string)
                && fields.keys().all(|name| name == "secret" || name == "prefix") =>
        {
            problems.hint(at, "a secret is not possible here", "use it in `headers` or `env`");
        }
        Value::Object(fields) => fields.iter().for_each(|(name, item)| no_secrets(item, at.key(name), problems)),
        Value::Array(list) => {
            list.iter().enumerate().for_each(|(index, item)| no_secrets(item, at.index(index), problems))
        }
        _ => {}
    }
}

/// Checks the expressions of a value. Returns the positions of the tasks whose outputs they read.
fn template(value: &Value, slot: Slot, view: &View<'_>, at: At<'_>, problems: &mut Problems) -> Vec<usize> {
    if problems.full() {
        return Vec::new();
    }
    if slot == Slot::Value {
        no_secrets(value, at, problems);
    }
    if let (Slot::Text, Value::String(text)) = (slot, value)
        && !has_expression(text)
    {
        return Vec::new();
    }
    let parsed = match slot {
        Slot::Url => Template::for_tool(model::step::ToolKind::Http, &serde_json::json!({ "url": value })),
        _ => Template::parse(value),
    };
    match parsed {
        Err(bad) => {
            // The address was wrapped for its reader.
            let place = if slot == Slot::Url { &[] } else { &bad.place[..] };
            report(place, at, &mut |at| match &bad.error.hint {
                Some(hint) => problems.hint(at, &bad.error.why, hint),
                None => problems.add(at, &bad.error.why),
            });
            Vec::new()
        }
        Ok(template) => {
            let mut tasks = Vec::new();
            for reference in template.references() {
                match view.resolve(reference) {
                    Ok(task) => tasks.extend(task),
                    Err(no) => match no.hint {
                        Some(hint) => problems.hint(at, no.why, hint),
                        None => problems.add(at, no.why),
                    },
                }
            }
            tasks
        }
    }
}

fn report(place: &[Segment], at: At<'_>, say: &mut dyn FnMut(At<'_>)) {
    match place.split_first() {
        None => say(at),
        Some((Segment::Key(name), rest)) => report(rest, at.key(name), say),
        Some((Segment::Index(index), rest)) => report(rest, at.index(*index as usize), say),
    }
}

/// A condition or a list that is given by one expression.
fn whole(value: &Value, example: &str, at: At<'_>, problems: &mut Problems) {
    let Value::String(text) = value else { return };
    let trimmed = text.trim();
    let one = matches!(crate::template::scan(trimmed).as_deref(), Ok([crate::template::Piece::Value(_)]) | Err(_));
    if !one || !has_expression(trimmed) {
        problems.hint(at, "must be one expression", format!("write it like {example}"));
    }
}

/// The walk over agents, tasks and steps.
struct Checker<'c> {
    file: &'c Document,
    /// Set if a planner made the plan: then only what the file allows may be used.
    planner: Option<&'c document::Planner>,
    problems: &'c mut Problems,
    warnings: &'c mut Problems,
    schemas: output::GoodSchemas,
}

impl<'c> Checker<'c> {
    fn new(
        file: &'c Document,
        planner: Option<&'c document::Planner>,
        problems: &'c mut Problems,
        warnings: &'c mut Problems,
    ) -> Checker<'c> {
        Checker { file, planner, problems, warnings, schemas: output::GoodSchemas::default() }
    }

    /// Per agent and task, the positions of the tasks that it waits for.
    fn agents(&mut self, value: &Value, agents: &[Agent]) -> Vec<Vec<Vec<usize>>> {
        let at = At::Root.key("agents");
        let steps: usize = agents.iter().flat_map(|agent| &agent.tasks).map(steps_of).sum();
        if steps > MAX_PLANNED_STEPS {
            self.problems.add(at, format!("{steps} steps: a plan may have {MAX_PLANNED_STEPS}"));
            return Vec::new();
        }
        if self.planner.is_none() {
            self.tools(value);
        }
        self.unique(agents.iter().map(|agent| agent.name.as_str()), at);
        let list = document::Fields::of(value).list("agents");
        let mut after = Vec::with_capacity(agents.len());
        for (index, (agent, value)) in agents.iter().zip(list).enumerate() {
            if self.problems.full() {
                break;
            }
            after.push(self.agent(agent, value, at.index(index)));
        }
        after
    }

    fn unique<'n>(&mut self, names: impl Iterator<Item = &'n str>, at: At<'_>) {
        let mut seen = BTreeSet::new();
        for (index, name) in names.enumerate() {
            if !seen.insert(name) {
                self.problems.add(at.index(index).key("name"), format!("the name `{name}` is used twice"));
            }
        }
    }

    fn agent(&mut self, agent: &Agent, value: &Value, at: At<'_>) -> Vec<Vec<usize>> {
        let names = Names::of(agent);
        let tasks_at = at.key("tasks");
        if agent.max_concurrent_tasks.is_some() && agent.parallelism == Parallelism::Sequential {
            let hint = "add `parallelism: parallel` or `dag`";
            self.warnings.hint(
                at.key("max_concurrent_tasks"),
                "has no effect: its tasks run one after the other",
                hint,
            );
        }
        self.unique(agent.tasks.iter().map(|task| task.name.as_str()), tasks_at);
        secret_names(document::Fields::of(value).list("secrets"), at.key("secrets"), self.problems);
        self.planned_secrets(!agent.secrets.is_empty() || agent.env.values().any(names_secret), at);
        if let Some(dir) = agent.working_dir.as_ref().filter(|dir| !spec::is_inside(dir)) {
            self.problems.add(at.key("working_dir"), format!("`{dir}` must stay below the run's folder"));
        }
        let view = View::early(&self.file.inputs);
        each_template(value, AGENT.fields, at, &mut |value, slot, at| {
            template(value, slot, &view, at, self.problems);
        });
        let list = document::Fields::of(value).list("tasks");
        let mut after = Vec::with_capacity(agent.tasks.len());
        for (index, value) in list.iter().enumerate() {
            if self.problems.full() {
                return after;
            }
            after.push(self.task(&names, agent, index, value, tasks_at.index(index)));
        }
        let knot = cycle(after.iter().map(Vec::as_slice));
        if let Some(first) = knot.first() {
            let mut path: Vec<&str> = knot.iter().take(10).map(|task| agent.tasks[*task].name.as_str()).collect();
            path.push(if knot.len() > 10 { "…" } else { path[0] });
            let why = format!("the task waits, in the end, for itself: {}", path.join(" → "));
            self.problems.add(tasks_at.index(*first).key("depends_on"), why);
        }
        after
    }

    fn task(&mut self, names: &Names<'_>, agent: &Agent, index: usize, value: &Value, at: At<'_>) -> Vec<usize> {
        let task = &agent.tasks[index];
        let mut after = self.depends_on(names, agent, index, at.key("depends_on"));
        let calls = task.steps.iter().any(|step| step.call.tool == ToolKind::Llm && has(&step.call.input, "tools"));
        if task.max_concurrent_steps.is_some() && !task.parallel && !calls {
            let (why, hint) = ("has no effect: its steps run one after the other", "add `parallelism: parallel`");
            self.warnings.hint(at.key("max_concurrent_steps"), why, hint);
        }
        self.unique(task.steps.iter().map(|step| step.name.as_str()), at.key("steps"));
        let view = View { tasks: Some((names, index)), ..View::new(&self.file.inputs) };
        each_template(value, TASK.fields, at, &mut |value, slot, at| {
            after.extend(template(value, slot, &view, at, self.problems));
        });
        if let Some(condition) = &task.condition {
            whole(condition, "${{ tasks.NAME.steps.NAME.output.ok }}", at.key("if"), self.problems);
        }
        if let Some(list) = &task.for_each {
            whole(list, "${{ inputs.people }}, or as a list", at.key("for_each"), self.problems);
        }
        let steps_at = at.key("steps");
        let list = document::Fields::of(value).list("steps");
        for (position, (step, value)) in task.steps.iter().zip(list).enumerate() {
            if self.problems.full() {
                break;
            }
            let view = View { step: Some(position), item: task.for_each.is_some(), ..view };
            after.extend(self.step(step, value, &view, steps_at.index(position)));
        }
        after.sort_unstable();
        after.dedup();
        if agent.parallelism == Parallelism::Dag { after } else { Vec::new() }
    }

    fn depends_on(&mut self, names: &Names<'_>, agent: &Agent, index: usize, at: At<'_>) -> Vec<usize> {
        let task = &agent.tasks[index];
        if !task.depends_on.is_empty() && agent.parallelism != Parallelism::Dag {
            let hint = "write `parallelism: dag` at the agent";
            self.problems.hint(
                at,
                format!("tasks have dependencies only with `dag`; this agent is `{}`", agent.parallelism),
                hint,
            );
            return Vec::new();
        }
        let mut after = Vec::with_capacity(task.depends_on.len());
        for name in &task.depends_on {
            match names.task(name) {
                Some(before) => after.push(before),
                None if self.problems.full() => break,
                None => {
                    let near = did_you_mean(name, names.task_names());
                    let why = format!("no task is called `{name}`");
                    match near {
                        Some(near) => self.problems.hint(at, why, near),
                        None => self.problems.add(at, why),
                    }
                }
            }
        }
        after
    }

    /// What a planner writes may not name secrets, unless the file says so.
    fn planned_secrets(&mut self, named: bool, at: At<'_>) {
        if named && self.planner.is_some_and(|planner| !planner.allow_secrets) {
            self.problems.hint(
                at,
                "a planner's plan must not name secrets",
                "add `secrets` to the file's `planner.allow`",
            );
        }
    }
}

pub(crate) fn names_secret(value: &Value) -> bool {
    match value {
        Value::Object(fields) => {
            fields.get("secret").is_some_and(Value::is_string) || fields.values().any(names_secret)
        }
        Value::Array(list) => list.iter().any(names_secret),
        _ => false,
    }
}

/// A literal list multiplies the steps of its task. One that an expression gives is counted when it is expanded.
fn steps_of(task: &document::Task) -> usize {
    let items = task.for_each.as_ref().and_then(Value::as_array).map_or(1, Vec::len);
    task.steps.len().saturating_mul(items.max(1))
}

fn tool_names(file: &Document, name: &str) -> String {
    let names: Vec<&str> = file.tools.keys().map(String::as_str).collect();
    if names.is_empty() { "add it below `tools:`".to_owned() } else { suggestion(name, &names) }
}

fn has(value: &Value, name: &str) -> bool {
    value.as_object().is_some_and(|fields| get(fields, name).is_some())
}
