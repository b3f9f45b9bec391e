//! The fields of a document: what each may hold and what it means. The shape check and the JSON schema are both made from these tables,
//! so that an editor and the server refuse the same things.

use model::plan::MAX_PLANNED_AGENTS;
use model::spec::MAX_ATTEMPTS;

/// What a field may hold. `null` is as good as no field everywhere but inside of [`Kind::Any`].
#[derive(Debug, Clone, Copy)]
pub enum Kind {
    /// Exactly this word.
    Word(&'static str),
    /// 1 to 63 letters, digits, `-`, `_` or `.`.
    Name,
    /// A text without expressions.
    Text,
    /// A text that may hold expressions.
    Template,
    /// A text without expressions, for a shell.
    Shell,
    Flag,
    Count {
        min: i64,
        max: i64,
    },
    Number {
        min: f64,
        max: f64,
    },
    Credits,
    Duration,
    Memory,
    Cpu,
    Gpu,
    OneOf(&'static [&'static str]),
    /// A list of such words.
    SomeOf(&'static [&'static str]),
    /// A list of texts without expressions.
    Texts,
    /// A list of at least one text; each may hold expressions.
    Argv,
    /// Any JSON value, with expressions.
    Any,
    /// An object of any values, without expressions.
    Values,
    /// A list of at most so many values, with expressions.
    Items(usize),
    /// Name and value, each a text, number or flag; expressions are allowed.
    Scalars,
    /// As [`Kind::Scalars`], or `{secret: NAME}`. The names are those of HTTP headers.
    Headers,
    /// The same with names of variables.
    Variables,
    Secret,
    Schema,
    /// A JSON schema per name.
    Schemas,
    Inner(&'static Table),
    /// A list of at least one and at most so many.
    List(&'static Table, usize),
    Named(&'static Table),
    /// The first kind that takes the value's JSON type decides.
    Either(&'static [Kind]),
}

#[derive(Debug)]
pub struct Field {
    pub name: &'static str,
    pub kind: Kind,
    pub about: &'static str,
}

/// An object with a fixed set of fields.
#[derive(Debug)]
pub struct Table {
    /// As a sentence calls it: "a step".
    pub what: &'static str,
    pub fields: &'static [Field],
    pub required: &'static [&'static str],
    /// Of each group, exactly one field must be there.
    pub exactly_one: &'static [&'static [&'static str]],
    /// Of each group, no two fields may be there together.
    pub at_most_one: &'static [&'static [&'static str]],
}

impl Table {
    pub fn names(&self) -> Vec<&'static str> {
        self.fields.iter().map(|field| field.name).collect()
    }
}

const fn field(name: &'static str, kind: Kind, about: &'static str) -> Field {
    Field { name, kind, about }
}

const fn table(what: &'static str, fields: &'static [Field]) -> Table {
    Table { what, fields, required: &[], exactly_one: &[], at_most_one: &[] }
}

pub static SANDBOX: Table = Table {
    required: &["network"],
    ..table("a sandbox", &[field("network", Kind::OneOf(&["host", "none"]), "The machine's network, or none.")])
};

pub const MODES: &[&str] = &["fail-fast", "continue", "retry"];
pub const POLICIES: &[&str] = &["allow", "ask", "deny"];
pub const METHODS: &[&str] = &["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"];
/// The fields of a step that say which tool it invokes.
pub const STEP_TOOLS: &[&str] = &["command", "http", "llm", "mcp", "exec", "external", "call", "approval", "wait"];
/// The fields of an entry of `tools:` that do.
pub const MODEL_TOOLS: &[&str] = &["command", "http", "mcp", "exec", "external"];
/// The fields of a `verify` that do. A program that polls for its steps may never ask for one, and a model knows nothing of what happened.
pub const VERIFY_TOOLS: &[&str] = &["command", "http", "mcp", "exec"];
/// What `planner.allow` may name.
pub const ALLOWED: &[&str] = &["command", "http", "mcp", "exec", "external", "call", "secrets", "providers"];

pub const MAX_FOR_EACH: usize = 100;
const TRIES: Kind = Kind::Count { min: 1, max: MAX_ATTEMPTS };
const TOKENS: Kind = Kind::Count { min: 1, max: 1_000_000_000 };
const MODE: Field = field(
    "failure_mode",
    Kind::OneOf(MODES),
    "What happens when one of its children has failed for good: fail-fast (default), continue or retry.",
);
const ATTEMPTS: Field = field(
    "max_attempts",
    TRIES,
    "How often it is tried with `failure_mode: retry`, the first time included; default 3.",
);
const ENV: Field =
    field("env", Kind::Variables, "Variables of the processes that it starts; values may be `{secret: NAME}`.");
const SHARED_ENV: Field = field(
    "env",
    Kind::Variables,
    "Variables of all processes; values may be `{secret: NAME}`. Expressions may read `inputs`.",
);
const OUTPUT: Field = field("output", Kind::Schema, "The JSON schema that the output must match.");

pub static RUN: Table = Table {
    what: "a plan",
    required: &["type"],
    exactly_one: &[&["agents", "goal"]],
    at_most_one: &[],
    fields: &[
        field("type", Kind::Word("agents"), "The kind of run."),
        field("name", Kind::Name, "A name to find the run by. Unique among open runs."),
        field(
            "inputs",
            Kind::Values,
            "Values that expressions read as `inputs.NAME`. `--input NAME=VALUE` replaces one.",
        ),
        field("budget", Kind::Credits, "The most that the run may cost, in credits."),
        field("max_tokens", TOKENS, "Tokens that one agent may use; default 100,000."),
        MODE,
        ATTEMPTS,
        field(
            "max_agents",
            Kind::Count { min: 1, max: MAX_PLANNED_AGENTS as i64 },
            "Agents that run at once, and the most that a planner may return; default 10.",
        ),
        field(
            "on_exhausted",
            Kind::OneOf(&["abort", "escalate"]),
            "What follows when retries are used up; default abort.",
        ),
        field("replan", Kind::Inner(&REPLAN), "Whether the planner makes a new plan when too much has failed."),
        field("max_duration", Kind::Duration, "The longest that the run may be active; default 24h."),
        field("priority", Kind::OneOf(&["high", "normal"]), "Who goes first when machines are scarce; default normal."),
        field("tools", Kind::Named(&TOOL), "Tools that `llm` steps may call, by name."),
        field("agents", Kind::List(&AGENT, MAX_PLANNED_AGENTS), "The agents. They do not depend on each other."),
        field(
            "goal",
            Kind::Template,
            "What a planner makes a plan for, instead of `agents`. Expressions may read `inputs`.",
        ),
        field("planner", Kind::Inner(&PLANNER), "What makes the plan."),
        field("output", Kind::Any, "What the run answers. Expressions may read `agents`."),
        field(
            "sandbox",
            Kind::Either(&[Kind::Flag, Kind::OneOf(&["off"]), Kind::Inner(&SANDBOX)]),
            "Which processes run in a sandbox: default those that models ask for; `true` or `{network: none}` all; `off` none.",
        ),
        field("files", Kind::Texts, "Files and folders that go with the run, as PATH or PATH:DEST."),
        SHARED_ENV,
        field("secrets", Kind::Texts, "Secrets that every command gets as variables of the same name."),
        field(
            "rerun",
            Kind::OneOf(&["all", "none"]),
            "`all`: in a new attempt finished steps run again instead of answering from the journal; default none.",
        ),
    ],
};

pub static REPLAN: Table = table(
    "`replan`",
    &[
        field("enabled", Kind::Flag, "Default: true with `failure_mode: continue`."),
        field("max", Kind::Count { min: 0, max: 2 }, "How often; default 2."),
    ],
);

pub static PLANNER: Table = Table {
    what: "a planner",
    required: &[],
    exactly_one: &[&["llm", "exec"]],
    at_most_one: &[],
    fields: &[
        field("llm", Kind::Inner(&PLANNER_LLM), "A model that answers with a plan."),
        field(
            "exec",
            Kind::Argv,
            "A program: it reads the goal as JSON and writes a plan as JSON. Expressions may read `inputs`.",
        ),
        field("timeout", Kind::Duration, "The longest that it may take."),
        field(
            "allow",
            Kind::SomeOf(ALLOWED),
            "What its plans may use beside the file's tools: these tools, `secrets`, and with `providers` also machines that bill of providers that the file does not name.",
        ),
    ],
};

pub static PLANNER_LLM: Table = table(
    "`planner.llm`",
    &[
        field("model", Kind::Text, "The model; default `default`."),
        field("system", Kind::Template, "Instructions for the model. Expressions may read `inputs`."),
        field("max_output_tokens", TOKENS, "Tokens of the answer."),
        field("temperature", Kind::Number { min: 0.0, max: 2.0 }, "How freely the model answers."),
    ],
);

pub static AGENT: Table = Table {
    what: "an agent",
    required: &["tasks"],
    exactly_one: &[],
    at_most_one: &[],
    fields: &[
        field("name", Kind::Name, "Unique among the agents; default `agent-1` and so on."),
        field(
            "parallelism",
            Kind::OneOf(&["sequential", "parallel", "dag"]),
            "In which order its tasks run; default sequential.",
        ),
        field(
            "max_concurrent_tasks",
            Kind::Count { min: 1, max: 1_000 },
            "Tasks that run at once with `parallel` or `dag`; default 5.",
        ),
        field("timeout", Kind::Duration, "The longest that it may be active; default 6h."),
        MODE,
        ATTEMPTS,
        field("resources", Kind::Inner(&RESOURCES), "What its machine must have."),
        field("provider", Kind::Text, "Where its machine comes from."),
        field(
            "region",
            Kind::Text,
            "Where its machine stands; default the cheapest region of its provider, then others.",
        ),
        field("spot", Kind::Flag, "Its machine may be one that is cheaper and may be taken away at any time."),
        field("working_dir", Kind::Text, "The folder that its commands run in, below the workdir."),
        SHARED_ENV,
        field("secrets", Kind::Texts, "Secrets that its commands get as variables of the same name."),
        field("tasks", Kind::List(&TASK, usize::MAX), "What it does."),
    ],
};

pub static RESOURCES: Table = table(
    "`resources`",
    &[
        field("cpu", Kind::Cpu, "Processors, e.g. 2 or 0.5."),
        field("memory", Kind::Memory, "Memory, e.g. 512MB or 4GB."),
        field("gpu", Kind::Gpu, "GPUs, e.g. a100, a100:2, or 2 of any kind."),
    ],
);

pub static TASK: Table = Table {
    what: "a task",
    required: &["steps"],
    exactly_one: &[],
    at_most_one: &[],
    fields: &[
        field("name", Kind::Name, "Unique among the agent's tasks; default `task-1` and so on."),
        field("depends_on", Kind::Texts, "Tasks that must have ended before; only with `parallelism: dag`."),
        field("if", Kind::Either(&[Kind::Flag, Kind::Template]), "An expression; if it is false the task is skipped."),
        field(
            "for_each",
            Kind::Either(&[Kind::Items(MAX_FOR_EACH), Kind::Template]),
            "A list of at most 100 items, or an expression that gives one: the task is made once per item, which is `item` in its steps.",
        ),
        MODE,
        ATTEMPTS,
        field(
            "parallelism",
            Kind::OneOf(&["sequential", "parallel"]),
            "In which order its steps run; default sequential.",
        ),
        field(
            "max_concurrent_steps",
            Kind::Count { min: 1, max: 1_000 },
            "Steps that run at once with `parallel`, and calls of one turn of a model; default 3.",
        ),
        field("timeout", Kind::Duration, "The longest that it may be active; default 1h."),
        field("steps", Kind::List(&STEP, usize::MAX), "What it does."),
    ],
};

const COMMAND: Field = field(
    "command",
    Kind::Either(&[Kind::Shell, Kind::Argv]),
    "A text for a shell, without expressions, or a list of arguments.",
);
const HTTP_TOOL: Field = field("http", Kind::Inner(&HTTP), "An HTTP request.");
const MCP_TOOL: Field = field("mcp", Kind::Inner(&MCP), "A tool of an MCP server.");
static EXEC_FORMS: [Kind; 2] = [Kind::Argv, Kind::Inner(&EXEC)];
static EXTERNAL_FORMS: [Kind; 2] = [Kind::Text, Kind::Inner(&EXTERNAL)];
const EXEC_TOOL: Field = field("exec", Kind::Either(&EXEC_FORMS), "A program that reads JSON and writes JSON.");
const EXTERNAL_TOOL: Field =
    field("external", Kind::Either(&EXTERNAL_FORMS), "Work for a program of yours that polls for it.");
const TIMEOUT: Field = field("timeout", Kind::Duration, "The longest that one try may take.");
const IDEMPOTENT: Field = field(
    "idempotent",
    Kind::Flag,
    "Whether it may run again when its outcome is unknown; default true for `llm`, `call` and for http GET and HEAD.",
);

pub static STEP: Table = Table {
    what: "a step",
    required: &[],
    exactly_one: &[STEP_TOOLS],
    at_most_one: &[],
    fields: &[
        field(
            "name",
            Kind::Name,
            "Unique among the task's steps; default `step-1` and so on. A step that is not idempotent needs one.",
        ),
        COMMAND,
        HTTP_TOOL,
        field("llm", Kind::Inner(&LLM), "A language model, with tools if it names any."),
        MCP_TOOL,
        EXEC_TOOL,
        EXTERNAL_TOOL,
        field(
            "call",
            Kind::Inner(&CALL),
            "A function applied to values: executed once, then answered by its kept result.",
        ),
        field("approval", Kind::Either(&[Kind::Template, Kind::Inner(&APPROVAL)]), "Waits for a person's word."),
        field("wait", Kind::Either(&[Kind::Template, Kind::Inner(&WAIT)]), "Waits for a while, or until a time."),
        ENV,
        IDEMPOTENT,
        field(
            "verify",
            Kind::Inner(&VERIFY),
            "A step that finds out whether this one happened; it answers `done` or `not_done`.",
        ),
        field("files", Kind::Texts, "Files of a command that are restored in another workdir; `[]` if it needs none."),
        field("policy", Kind::OneOf(POLICIES), "Whether a person must agree first; default allow."),
        TIMEOUT,
        field(
            "retry",
            Kind::Either(&[TRIES, Kind::Inner(&RETRY)]),
            "How often it is tried, the first time included; default 3.",
        ),
        OUTPUT,
        field("if", Kind::Either(&[Kind::Flag, Kind::Template]), "An expression; if it is false the step is skipped."),
        field("rerun", Kind::Flag, "Whether it runs again in a new attempt instead of answering from the journal."),
    ],
};

pub static RETRY: Table = table(
    "`retry`",
    &[
        field("max_attempts", TRIES, "How often, the first time included; default 3."),
        field(
            "on_events",
            Kind::SomeOf(&["error", "interruption"]),
            "`interruption`: an interrupted try is repeated although the step is not idempotent.",
        ),
    ],
);

pub static VERIFY: Table = Table {
    what: "`verify`",
    required: &[],
    exactly_one: &[VERIFY_TOOLS],
    at_most_one: &[],
    fields: &[
        COMMAND,
        HTTP_TOOL,
        MCP_TOOL,
        EXEC_TOOL,
        ENV,
        TIMEOUT,
        field(
            "outcome",
            Kind::Template,
            "One expression over `output`, what the tool answered; gives `done`, `not_done` or {outcome, output}.",
        ),
    ],
};

pub static HTTP: Table = Table {
    what: "`http`",
    required: &["url"],
    exactly_one: &[],
    at_most_one: &[&["json", "body"]],
    fields: &[
        field("method", Kind::OneOf(METHODS), "Default GET; POST with `json` or `body`."),
        field("url", Kind::Template, "The address. Scheme and host take no expressions but `inputs` and `run`."),
        field("query", Kind::Scalars, "Added to the address, encoded."),
        field("headers", Kind::Headers, "Values may be `{secret: NAME}`."),
        field("json", Kind::Any, "The body, sent as JSON."),
        field("body", Kind::Template, "The body, sent as text."),
        TIMEOUT,
    ],
};

pub static LLM: Table = Table {
    what: "`llm`",
    required: &["prompt"],
    exactly_one: &[],
    at_most_one: &[],
    fields: &[
        field("model", Kind::Text, "The model; default `default`."),
        field("system", Kind::Template, "Instructions for the model."),
        field("prompt", Kind::Template, "What the model is asked."),
        field("tools", Kind::Texts, "Names of tools that it may call."),
        field(
            "max_turns",
            Kind::Count { min: 1, max: 1_000 },
            "Answers of the model until it must be done; default 12 with tools.",
        ),
        field("max_output_tokens", TOKENS, "Tokens of one answer."),
        field("temperature", Kind::Number { min: 0.0, max: 2.0 }, "How freely the model answers."),
        field("turn_timeout", Kind::Duration, "The longest that one answer may take; default 10m."),
        OUTPUT,
        TIMEOUT,
    ],
};

pub static MCP: Table = Table {
    what: "`mcp`",
    required: &[],
    exactly_one: &[&["url", "command"]],
    at_most_one: &[&["headers", "command"]],
    fields: &[
        field("url", Kind::Template, "The address of a server that speaks HTTP."),
        field(
            "command",
            Kind::Argv,
            "A program that is the server, on the agent's machine. Calls of one agent with the same program and variables ask the same process.",
        ),
        field("headers", Kind::Headers, "Values may be `{secret: NAME}`."),
        field(
            "tool",
            Kind::Text,
            "The server's tool that is called. In `tools:`, without it, a model may call all of them.",
        ),
        field("tools", Kind::Texts, "In `tools:`, which of the server's tools a model may call; default all."),
        field("arguments", Kind::Any, "What the tool is given."),
        TIMEOUT,
    ],
};

pub static EXEC: Table = Table {
    what: "`exec`",
    required: &["command"],
    exactly_one: &[],
    at_most_one: &[],
    fields: &[
        field("command", Kind::Argv, "The program and its arguments."),
        field("input", Kind::Any, "What it reads on its standard input, as JSON."),
    ],
};

pub static EXTERNAL: Table = Table {
    what: "`external`",
    required: &["tool"],
    exactly_one: &[],
    at_most_one: &[],
    fields: &[
        field("tool", Kind::Text, "The name that your program polls for."),
        field("input", Kind::Any, "What it is given."),
    ],
};

pub static CALL: Table = Table {
    what: "`call`",
    required: &["function"],
    exactly_one: &[],
    at_most_one: &[],
    fields: &[
        field("function", Kind::Text, "Its URI, `dml+exec://ADAPTER/PATH?QUERY`."),
        field("inputs", Kind::Any, "The list of values that it is applied to."),
        field("cache", Kind::Flag, "If false it is executed although a result is kept; default true."),
    ],
};

pub static APPROVAL: Table = Table {
    what: "`approval`",
    required: &["message"],
    exactly_one: &[],
    at_most_one: &[],
    fields: &[
        field("message", Kind::Template, "What the person is asked."),
        field("answer", Kind::Schema, "The JSON schema of the answer, if one is wanted."),
        field("expires", Kind::Duration, "After this long it counts as rejected; default 24h."),
    ],
};

pub static WAIT: Table = Table {
    what: "`wait`",
    required: &[],
    exactly_one: &[&["for", "until"]],
    at_most_one: &[],
    fields: &[
        field("for", Kind::Template, "How long, e.g. 10m."),
        field("until", Kind::Template, "A time in UTC, e.g. 2030-01-31T08:00:00Z."),
    ],
};

pub static TOOL: Table = Table {
    what: "a tool",
    required: &[],
    exactly_one: &[MODEL_TOOLS],
    at_most_one: &[],
    fields: &[
        COMMAND,
        HTTP_TOOL,
        MCP_TOOL,
        EXEC_TOOL,
        EXTERNAL_TOOL,
        field("description", Kind::Text, "What the model is told about it."),
        field(
            "args",
            Kind::Schemas,
            "The arguments that the model gives, each with its JSON schema; expressions read them as `args.NAME`.",
        ),
        field(
            "policy",
            Kind::OneOf(POLICIES),
            "Whether a person must agree to each call; default ask, allow for http GET.",
        ),
        IDEMPOTENT,
        ENV,
        TIMEOUT,
    ],
};

/// An object in place of a text, in headers and variables only.
pub static SECRET: Table = Table {
    what: "a secret",
    required: &["secret"],
    exactly_one: &[],
    at_most_one: &[],
    fields: &[
        field("secret", Kind::Secret, "The name of a secret."),
        field("prefix", Kind::Text, "A text in front of it, e.g. \"Bearer \"."),
    ],
};
