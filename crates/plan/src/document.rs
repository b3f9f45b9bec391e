//! A document as checked types. Reading is lenient: a field of a wrong shape reads as missing, since `shape` has complained about
//! it, so that the other checks can go on and all problems are shown together.

use crate::fields::{MODEL_TOOLS, STEP_TOOLS, VERIFY_TOOLS};
use crate::quantity;
use crate::shape::{duration, get};
use model::Credits;
use model::plan::{DEFAULT_MAX_AGENTS, Policy};
use model::recovery::OnExhausted;
use model::spec::{DEFAULT_MAX_DURATION_MS, FailureMode, Priority, Resources, SandboxAsked};
use model::step::ToolKind;
use model::string_enum;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::str::FromStr;

string_enum! {
    /// In which order the tasks of an agent run.
    pub enum Parallelism { Sequential = "sequential", Parallel = "parallel", Dag = "dag" }
}

pub const DEFAULT_MAX_TOKENS: i64 = 100_000;
pub const DEFAULT_REPLANS: i64 = 2;
pub const DEFAULT_MAX_TURNS: i64 = 12;
pub const APPROVAL_EXPIRES_MS: i64 = model::time::DAY;

#[derive(Debug, Clone, PartialEq)]
pub struct Document {
    pub name: Option<String>,
    pub inputs: Map<String, Value>,
    pub budget: Option<Credits>,
    pub max_tokens: i64,
    pub failure_mode: FailureMode,
    pub max_attempts: Option<i64>,
    pub max_agents: i64,
    pub on_exhausted: OnExhausted,
    /// How often a planner may make a new plan; 0 is never.
    pub replans: i64,
    pub max_duration_ms: i64,
    pub priority: Option<Priority>,
    pub tools: BTreeMap<String, Tool>,
    pub agents: Vec<Agent>,
    pub goal: Option<String>,
    pub planner: Option<Planner>,
    pub output: Option<Value>,
    /// As the file says it.
    pub sandbox: Option<SandboxAsked>,
    pub files: Vec<String>,
    pub env: BTreeMap<String, Value>,
    pub secrets: Vec<String>,
    pub rerun_all: bool,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Planner {
    pub tool: ToolKind,
    pub input: Value,
    pub timeout_ms: Option<i64>,
    pub allow: Vec<ToolKind>,
    pub allow_secrets: bool,
    /// Also providers that bill and that the file does not name.
    pub allow_providers: bool,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Agent {
    pub name: String,
    pub parallelism: Parallelism,
    pub max_concurrent_tasks: Option<i64>,
    pub timeout_ms: Option<i64>,
    pub failure_mode: FailureMode,
    pub max_attempts: Option<i64>,
    pub resources: Resources,
    pub provider: Option<String>,
    pub region: Option<String>,
    pub spot: bool,
    pub working_dir: Option<String>,
    pub env: BTreeMap<String, Value>,
    pub secrets: Vec<String>,
    pub tasks: Vec<Task>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Task {
    pub name: String,
    pub depends_on: Vec<String>,
    /// Positions of the tasks that it waits for: those it names, and those whose outputs it reads. Filled in by the check.
    pub after: Vec<usize>,
    pub condition: Option<Value>,
    pub for_each: Option<Value>,
    pub failure_mode: FailureMode,
    pub max_attempts: Option<i64>,
    pub parallel: bool,
    pub max_concurrent_steps: Option<i64>,
    pub timeout_ms: Option<i64>,
    pub steps: Vec<Step>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Step {
    pub name: String,
    /// Whether the document names it.
    pub named: bool,
    pub call: Call,
    pub idempotent: bool,
    pub verify: Option<Call>,
    /// An expression over the output of `verify`.
    pub verify_outcome: Option<String>,
    pub files: Option<Vec<String>>,
    pub policy: Option<Policy>,
    pub max_tries: Option<i64>,
    pub retry_interrupted: bool,
    pub output: Option<Value>,
    pub condition: Option<Value>,
    pub rerun: Option<bool>,
}

/// A tool with what it is given, in the one form that tools read.
#[derive(Debug, Clone, PartialEq)]
pub struct Call {
    pub tool: ToolKind,
    pub input: Value,
    pub timeout_ms: Option<i64>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Tool {
    pub call: Call,
    pub description: String,
    pub args: BTreeMap<String, Value>,
    pub policy: Policy,
    pub idempotent: bool,
}

impl Call {
    /// Whether it starts a process on the agent's machine.
    pub fn needs_machine(&self) -> bool {
        self.tool.needs_machine() || self.tool.is_stdio(&self.input)
    }

    /// http GET and HEAD, `llm`, and `call`, which finds by content what was begun; nothing else.
    pub fn is_idempotent(&self) -> bool {
        match self.tool {
            ToolKind::Llm | ToolKind::Call => true,
            ToolKind::Http => matches!(self.input["method"].as_str(), Some("GET" | "HEAD")),
            _ => false,
        }
    }
}

/// Reads the fields of an object; what has another shape reads as missing.
#[derive(Clone, Copy)]
pub(crate) struct Fields<'v>(Option<&'v Map<String, Value>>);

impl<'v> Fields<'v> {
    pub fn of(value: &'v Value) -> Fields<'v> {
        Fields(value.as_object())
    }
    pub fn get(&self, name: &str) -> Option<&'v Value> {
        self.0.and_then(|fields| get(fields, name))
    }
    pub fn inner(&self, name: &str) -> Fields<'v> {
        Fields(self.get(name).and_then(Value::as_object))
    }
    pub fn text(&self, name: &str) -> Option<String> {
        self.get(name).and_then(Value::as_str).map(str::to_owned)
    }
    pub fn flag(&self, name: &str) -> Option<bool> {
        self.get(name).and_then(Value::as_bool)
    }
    pub fn count(&self, name: &str) -> Option<i64> {
        self.get(name).and_then(Value::as_i64)
    }
    pub fn list(&self, name: &str) -> &'v [Value] {
        self.get(name).and_then(Value::as_array).map_or(&[], Vec::as_slice)
    }
    pub fn texts(&self, name: &str) -> Vec<String> {
        self.list(name).iter().filter_map(Value::as_str).map(str::to_owned).collect()
    }
    pub fn word<T: FromStr>(&self, name: &str) -> Option<T> {
        self.get(name).and_then(Value::as_str).and_then(|word| word.parse().ok())
    }
    fn duration(&self, name: &str) -> Option<i64> {
        self.get(name).and_then(Value::as_str).and_then(|text| duration(text).ok())
    }
    fn quantity<T>(&self, name: &str, read: fn(&str) -> Result<T, String>) -> Option<T> {
        self.get(name).and_then(|value| read(&scalar(value)?).ok())
    }
    fn map(&self, name: &str) -> BTreeMap<String, Value> {
        let fields = self.get(name).and_then(Value::as_object);
        fields.into_iter().flatten().map(|(name, value)| (name.clone(), value.clone())).collect()
    }
    /// Header or variable values: numbers and flags become text.
    fn variables(&self, name: &str) -> BTreeMap<String, Value> {
        let as_text = |value: Value| match value {
            Value::Object(_) => value,
            other => scalar(&other).map_or(Value::Null, Value::String),
        };
        self.map(name).into_iter().map(|(name, value)| (name, as_text(value))).collect()
    }
}

fn scalar(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(_) | Value::Bool(_) => Some(value.to_string()),
        _ => None,
    }
}

pub(crate) fn read(value: &Value) -> Document {
    let run = Fields::of(value);
    let failure_mode = run.word("failure_mode").unwrap_or(FailureMode::FailFast);
    let planner = run.get("planner").map(read_planner);
    let replan = run.inner("replan");
    let replans = match replan.flag("enabled").unwrap_or(failure_mode == FailureMode::Continue) {
        true if planner.is_some() => replan.count("max").unwrap_or(DEFAULT_REPLANS),
        _ => 0,
    };
    let tools = run.get("tools").and_then(Value::as_object);
    Document {
        name: run.text("name"),
        inputs: run.get("inputs").and_then(Value::as_object).cloned().unwrap_or_default(),
        budget: run.get("budget").and_then(scalar).and_then(|text| text.parse().ok()),
        max_tokens: run.count("max_tokens").unwrap_or(DEFAULT_MAX_TOKENS),
        failure_mode,
        max_attempts: run.count("max_attempts"),
        max_agents: run.count("max_agents").unwrap_or(DEFAULT_MAX_AGENTS),
        on_exhausted: run.word("on_exhausted").unwrap_or_default(),
        replans,
        max_duration_ms: run.duration("max_duration").unwrap_or(DEFAULT_MAX_DURATION_MS),
        priority: run.word("priority"),
        tools: tools.into_iter().flatten().map(|(name, tool)| (name.clone(), read_tool(tool))).collect(),
        agents: read_agents(run.list("agents")),
        goal: run.text("goal"),
        planner,
        output: run.get("output").cloned(),
        sandbox: run.get("sandbox").and_then(read_sandbox),
        files: run.texts("files"),
        env: run.variables("env"),
        secrets: run.texts("secrets"),
        rerun_all: run.text("rerun").as_deref() == Some("all"),
    }
}

/// `off` is another word for `false`.
fn read_sandbox(value: &Value) -> Option<SandboxAsked> {
    match value.as_str() {
        Some(_) => Some(SandboxAsked::Flag(false)),
        None => serde_json::from_value(value.clone()).ok(),
    }
}

fn read_planner(value: &Value) -> Planner {
    let planner = Fields::of(value);
    let allow = planner.texts("allow");
    let (tool, input) = match planner.get("exec") {
        Some(argv) => (ToolKind::Exec, json!({ "argv": argv })),
        None => (ToolKind::Llm, llm(planner.inner("llm"))),
    };
    Planner {
        tool,
        input,
        timeout_ms: planner.duration("timeout"),
        allow: allow.iter().filter_map(|word| word.parse().ok()).collect(),
        allow_secrets: allow.iter().any(|word| word == "secrets"),
        allow_providers: allow.iter().any(|word| word == "providers"),
    }
}

pub(crate) fn read_agents(list: &[Value]) -> Vec<Agent> {
    list.iter().enumerate().map(|(at, value)| read_agent(at, value)).collect()
}

fn read_agent(at: usize, value: &Value) -> Agent {
    let agent = Fields::of(value);
    let resources = agent.inner("resources");
    Agent {
        name: agent.text("name").unwrap_or_else(|| format!("agent-{}", at + 1)),
        parallelism: agent.word("parallelism").unwrap_or(Parallelism::Sequential),
        max_concurrent_tasks: agent.count("max_concurrent_tasks"),
        timeout_ms: agent.duration("timeout"),
        failure_mode: agent.word("failure_mode").unwrap_or(FailureMode::FailFast),
        max_attempts: agent.count("max_attempts"),
        resources: Resources {
            cpu_milli: resources.quantity("cpu", quantity::cpu),
            memory_bytes: resources.quantity("memory", quantity::memory),
            gpu: resources.quantity("gpu", |text| model::spec::Gpu::parse(text.trim())),
            disk_bytes: None,
        },
        provider: agent.text("provider"),
        region: agent.text("region"),
        spot: agent.flag("spot").unwrap_or(false),
        working_dir: agent.text("working_dir"),
        env: agent.variables("env"),
        secrets: agent.texts("secrets"),
        tasks: agent.list("tasks").iter().enumerate().map(|(at, value)| read_task(at, value)).collect(),
    }
}

fn read_task(at: usize, value: &Value) -> Task {
    let task = Fields::of(value);
    Task {
        name: task.text("name").unwrap_or_else(|| format!("task-{}", at + 1)),
        depends_on: task.texts("depends_on"),
        after: Vec::new(),
        condition: task.get("if").cloned(),
        for_each: task.get("for_each").cloned(),
        failure_mode: task.word("failure_mode").unwrap_or(FailureMode::FailFast),
        max_attempts: task.count("max_attempts"),
        parallel: task.text("parallelism").as_deref() == Some("parallel"),
        max_concurrent_steps: task.count("max_concurrent_steps"),
        timeout_ms: task.duration("timeout"),
        steps: task.list("steps").iter().enumerate().map(|(at, value)| read_step(at, value)).collect(),
    }
}

fn read_step(at: usize, value: &Value) -> Step {
    let step = Fields::of(value);
    let call = read_call(step, STEP_TOOLS);
    let retry = step.inner("retry");
    Step {
        name: step.text("name").unwrap_or_else(|| format!("step-{}", at + 1)),
        named: step.get("name").is_some(),
        idempotent: step.flag("idempotent").unwrap_or(call.is_idempotent()),
        call,
        verify: step.get("verify").map(|value| read_call(Fields::of(value), VERIFY_TOOLS)),
        verify_outcome: step.inner("verify").text("outcome"),
        files: step.get("files").map(|_| step.texts("files")),
        policy: step.word("policy"),
        max_tries: step.count("retry").or(retry.count("max_attempts")),
        retry_interrupted: retry.texts("on_events").iter().any(|event| event == "interruption"),
        output: step.get("output").or(step.inner("llm").get("output")).cloned(),
        condition: step.get("if").cloned(),
        rerun: step.flag("rerun"),
    }
}

fn read_tool(value: &Value) -> Tool {
    let tool = Fields::of(value);
    let call = read_call(tool, MODEL_TOOLS);
    let is_get = call.tool == ToolKind::Http && call.input["method"] == "GET";
    Tool {
        description: tool.text("description").unwrap_or_default(),
        args: tool.map("args"),
        policy: tool.word("policy").unwrap_or(if is_get { Policy::Allow } else { Policy::Ask }),
        idempotent: tool.flag("idempotent").unwrap_or(call.is_idempotent()),
        call,
    }
}

/// The first tool that is named; that there is exactly one is checked elsewhere.
fn read_call(fields: Fields<'_>, tools: &[&str]) -> Call {
    let name = tools.iter().find(|name| fields.get(name).is_some()).copied().unwrap_or("wait");
    let tool: ToolKind = name.parse().expect("the tables name tools");
    let value = fields.get(name).unwrap_or(&Value::Null);
    let inner = Fields::of(value);
    let mut input = match tool {
        ToolKind::Command => command(value),
        ToolKind::Http => http(inner),
        ToolKind::Llm => llm(inner),
        ToolKind::Mcp => mcp(inner),
        ToolKind::Exec if value.is_array() => json!({ "argv": value }),
        ToolKind::Exec => object([("argv", inner.get("command").cloned()), ("input", inner.get("input").cloned())]),
        ToolKind::External if value.is_string() => json!({ "tool": value }),
        ToolKind::External => object([("tool", inner.get("tool").cloned()), ("input", inner.get("input").cloned())]),
        ToolKind::Call => object([
            ("function", inner.get("function").cloned()),
            ("inputs", inner.get("inputs").cloned()),
            ("cache", inner.get("cache").cloned()),
        ]),
        ToolKind::Approval => object([
            ("message", if value.is_string() { Some(value.clone()) } else { inner.get("message").cloned() }),
            ("answer", inner.get("answer").cloned()),
            ("expires_ms", Some(json!(inner.duration("expires").unwrap_or(APPROVAL_EXPIRES_MS)))),
        ]),
        _ if value.is_string() => json!({ "for": value }),
        _ => object([("for", inner.get("for").cloned()), ("until", inner.get("until").cloned())]),
    };
    let env = fields.variables("env");
    if let (Some(input), false) = (input.as_object_mut(), env.is_empty()) {
        input.insert("env".to_owned(), json!(env));
    }
    Call { tool, input, timeout_ms: fields.duration("timeout").or(inner.duration("timeout")) }
}

fn object<const N: usize>(fields: [(&str, Option<Value>); N]) -> Value {
    let there = fields.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
    Value::Object(there.collect())
}

fn command(value: &Value) -> Value {
    if value.is_array() { json!({ "argv": value }) } else { json!({ "shell": value }) }
}

fn http(fields: Fields<'_>) -> Value {
    let has_body = fields.get("json").is_some() || fields.get("body").is_some();
    let method = fields.text("method").unwrap_or_else(|| if has_body { "POST" } else { "GET" }.to_owned());
    let headers = fields.variables("headers");
    object([
        ("method", Some(method.into())),
        ("url", fields.get("url").cloned()),
        ("query", fields.get("query").cloned()),
        ("headers", (!headers.is_empty()).then(|| json!(headers))),
        ("json", fields.get("json").cloned()),
        ("body", fields.get("body").cloned()),
    ])
}

fn llm(fields: Fields<'_>) -> Value {
    let tools = fields.texts("tools");
    let turns = if tools.is_empty() { 1 } else { DEFAULT_MAX_TURNS };
    object([
        ("model", Some(fields.text("model").unwrap_or_else(|| "default".to_owned()).into())),
        ("system", fields.get("system").cloned()),
        ("prompt", fields.get("prompt").cloned()),
        ("tools", (!tools.is_empty()).then(|| json!(tools))),
        ("max_turns", Some(json!(fields.count("max_turns").unwrap_or(turns)))),
        ("max_output_tokens", fields.get("max_output_tokens").cloned()),
        ("temperature", fields.get("temperature").cloned()),
        ("turn_timeout_ms", fields.duration("turn_timeout").map(Value::from)),
    ])
}

fn mcp(fields: Fields<'_>) -> Value {
    let headers = fields.variables("headers");
    object([
        ("url", fields.get("url").cloned()),
        ("argv", fields.get("command").cloned()),
        ("headers", (!headers.is_empty()).then(|| json!(headers))),
        ("tool", fields.get("tool").cloned()),
        ("tools", fields.get("tools").cloned()),
        ("arguments", fields.get("arguments").cloned()),
    ])
}
