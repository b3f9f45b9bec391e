//! What the types alone do not say: which numbers, words and shapes a field takes. Each line repeats a rule that some check
//! enforces; the suite sends what these lines forbid and expects a refusal.

use crate::question::MAX_NOTE;
use engine::Scope;
use engine::offer::{MAX_TOOL_NAME, MAX_TOOLS};
use model::agent::AgentStatus;
use model::feature::MAX_FEATURES;
use model::run::{RunStatus, Ticket};
use model::spec::{
    GPU_PATTERN, MAX_INIT_BYTES, MAX_PATH_BYTES, MIN_MEMORY_BYTES, Network, OnLostControl, Priority, RetryEvent,
};
use model::step::StepStatus;
use model::task::TaskStatus;
use model::usage::UsageBy;
use model::workflow::MAX_CANCEL_REASON;
use serde_json::{Map, Value, json};

const HASH: &str = "^[0-9a-f]{64}$";
const VARIABLE: &str = "^[A-Za-z_][A-Za-z0-9_]*$";
/// The name of a variable or secret of a run; see `model::spec::is_reserved`.
const FREE_VARIABLE: &str = "^(?!REPL_)[A-Za-z_][A-Za-z0-9_]*$";
/// A decimal number of credits, more than nothing, with at most six digits behind the point.
const CREDITS: &str = "^(?=.*[1-9])[0-9]+(\\.[0-9]{1,6})?$";
/// The same, or nothing.
const COST: &str = "^[0-9]+(\\.[0-9]{1,6})?$";
/// No control characters.
const PLAIN: &str = "^[^\\x00-\\x1f\\x7f-\\x9f]+$";
/// The same, and not only spaces.
const REASON: &str = "^(?=[\\s\\S]*\\S)[^\\x00-\\x1f\\x7f-\\x9f]+$";
/// What a provider is called.
const PROVIDER: &str = "^[a-z0-9-]{1,32}$";
/// The number behind the prefix of an id, and a cursor of ours.
const SLUG: &str = "(0|[1-9a-z][0-9a-z]{0,12})";

/// `Type.field` and what its schema has in addition.
fn table() -> Vec<(&'static str, Value)> {
    let words = |all: &[&str]| json!({ "enum": all });
    let of_null = |all: Vec<&str>| {
        let mut all: Vec<Value> = all.into_iter().map(Value::from).collect();
        all.push(Value::Null);
        json!({ "enum": all })
    };
    let names = |all: &[&'static str]| all.to_vec();
    let priorities: Vec<&str> = Priority::ALL.iter().map(|word| word.as_str()).collect();
    let lost: Vec<&str> = OnLostControl::ALL.iter().map(|word| word.as_str()).collect();
    let networks: Vec<&str> = Network::ALL.iter().map(|word| word.as_str()).collect();
    let events: Vec<&str> = RetryEvent::ALL.iter().map(|word| word.as_str()).collect();
    let tickets: Vec<&str> = Ticket::ALL.iter().map(|word| word.as_str()).collect();
    let scopes: Vec<&str> = Scope::ALL.iter().map(|scope| scope.as_str()).collect();
    vec![
        ("Submit.name", json!({ "pattern": "^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$" })),
        ("Submit.type", of_null(names(&["task", "agents", "external"]))),
        ("Submit.plan", json!({ "type": ["object", "null"] })),
        ("Submit.env", json!({ "maxProperties": 500, "propertyNames": { "pattern": FREE_VARIABLE } })),
        ("Submit.secrets", json!({ "items": { "type": "string", "pattern": FREE_VARIABLE } })),
        ("Submit.working_dir", json!({ "minLength": 1, "maxLength": MAX_PATH_BYTES })),
        ("Submit.init", json!({ "pattern": r"\S", "maxLength": MAX_INIT_BYTES })),
        (
            "Submit.features",
            json!({ "maxItems": MAX_FEATURES, "uniqueItems": true, "items": { "type": "string", "minLength": 1 } }),
        ),
        ("Submit.artifacts", json!({ "items": { "type": "string", "minLength": 1, "maxLength": MAX_PATH_BYTES } })),
        ("Submit.max_duration_ms", json!({ "minimum": 1 })),
        ("Submit.stop_duration_ms", json!({ "minimum": 0 })),
        ("Submit.hold_ms", json!({ "minimum": 0, "maximum": model::time::DAY })),
        ("Submit.budget", json!({ "pattern": CREDITS })),
        ("Submit.priority", of_null(priorities)),
        ("Submit.on_lost_control", of_null(lost)),
        ("CacheTermsBody.salt", json!({ "maxLength": model::spec::MAX_SALT_BYTES / 4 })),
        ("AskCall.function", json!({ "pattern": "^dml\\+exec://[a-z0-9][a-z0-9-]{0,63}/.", "maxLength": 8192 })),
        ("AskCall.inputs", json!({ "maxItems": engine::call::MAX_INPUTS })),
        ("CollectGarbage.older_than_ms", json!({ "minimum": 0 })),
        ("CollectGarbage.max_bytes", json!({ "minimum": 0 })),
        ("SetRef.name", json!({ "minLength": 1 })),
        ("SetRef.from", json!({ "minLength": 1 })),
        ("SetRef.expect", json!({ "pattern": "^([0-9a-f]{64}|none)$" })),
        ("SandboxTermsBody.network", json!({ "enum": networks })),
        (
            "SendMessage.text",
            json!({ "minLength": 1, "maxLength": engine::message::MAX_MESSAGE_BYTES / 4, "pattern": "\\S" }),
        ),
        ("FilesBody.tree", json!({ "pattern": HASH })),
        ("FilesBody.files", json!({ "minimum": 0 })),
        ("FilesBody.bytes", json!({ "minimum": 0 })),
        ("StdinBody.hash", json!({ "pattern": HASH })),
        ("StdinBody.size", json!({ "minimum": 0, "maximum": model::spec::MAX_STDIN_BYTES })),
        ("ResourcesBody.cpu_milli", json!({ "minimum": 1 })),
        ("ResourcesBody.disk_bytes", json!({ "minimum": MIN_MEMORY_BYTES })),
        ("ResourcesBody.gpu", json!({ "pattern": GPU_PATTERN })),
        ("ResourcesBody.memory_bytes", json!({ "minimum": MIN_MEMORY_BYTES })),
        ("RetryBody.max_attempts", json!({ "minimum": 1, "maximum": 100 })),
        ("RetryBody.on_events", json!({ "items": { "type": "string", "enum": events } })),
        ("ExtendBody.duration_ms", json!({ "minimum": 1 })),
        ("BeginStep.name", json!({ "minLength": 1, "maxLength": 200, "pattern": PLAIN })),
        ("BeginStep.key", json!({ "minLength": 1, "maxLength": 1000, "pattern": PLAIN })),
        ("BeginStep.lease_ms", json!({ "minimum": 1000, "maximum": model::time::DAY })),
        ("BeginStep.wait_ms", json!({ "minimum": 0, "maximum": 60_000 })),
        ("BeginStep.max_cost", json!({ "pattern": COST })),
        ("CompleteStep.cost", json!({ "pattern": COST })),
        ("FailStep.effect", of_null(names(&["none", "perhaps", "done"]))),
        ("FailStep.class", of_null(names(crate::step::CLASSES))),
        (
            "PollSteps.tools",
            json!({ "minItems": 1, "maxItems": MAX_TOOLS,
                    "items": { "type": "string", "minLength": 1, "maxLength": MAX_TOOL_NAME, "pattern": PLAIN } }),
        ),
        ("PollSteps.wait_ms", json!({ "minimum": 0, "maximum": 60_000 })),
        ("PollSteps.lease_ms", json!({ "minimum": 1000, "maximum": model::time::DAY })),
        ("BeatStep.lease_ms", json!({ "minimum": 1000, "maximum": model::time::DAY })),
        ("BlobList.hashes", json!({ "items": { "type": "string", "pattern": HASH } })),
        ("BlobList.trees", json!({ "items": { "type": "string", "pattern": HASH } })),
        ("AddCredits.amount", json!({ "pattern": CREDITS })),
        ("SecretBody.value", json!({ "minLength": 1, "maxLength": 65536 })),
        ("NewToken.name", json!({ "minLength": 1, "maxLength": 100 })),
        ("NewToken.scopes", json!({ "minItems": 1, "items": { "type": "string", "enum": scopes } })),
        ("ResolveBody.action", words(&tickets)),
        ("ResolveBody.note", json!({ "maxLength": MAX_NOTE })),
        ("ApproveBody.note", json!({ "maxLength": MAX_NOTE })),
        ("CancelBody.reason", json!({ "maxLength": MAX_CANCEL_REASON, "pattern": REASON })),
        ("RejectBody.note", json!({ "maxLength": MAX_NOTE })),
        ("NewProvider.name", json!({ "pattern": PROVIDER })),
        ("WhitelistBody.provider_id", json!({ "minLength": 1 })),
        ("WhitelistBody.reason", json!({ "minLength": 1, "maxLength": model::orphan::MAX_REASON, "pattern": "\\S" })),
        ("WhitelistBody.notes", json!({ "maxLength": model::orphan::MAX_NOTES })),
        ("LogFrame.stream", words(&["stdout", "stderr", "runner"])),
    ]
}

/// Bodies that say nothing when they are empty.
pub(super) fn is_needed(body: &str) -> bool {
    !matches!(
        body,
        "Nothing"
            | "ActionBody"
            | "TerminateBody"
            | "CancelBody"
            | "ExtendBody"
            | "StopBody"
            | "ImportBody"
            | "ScanBody"
            | "CollectGarbage"
            | "BlobList"
            | "ApproveBody"
            | "RejectBody"
            | "FinishBody"
    )
}

pub(super) fn refine(schemas: &mut Value) {
    for (place, more) in table() {
        let (name, field) = place.split_once('.').expect("a type and a field");
        let schema = schemas.get_mut(name).and_then(|schema| schema["properties"].get_mut(field));
        add(schema.unwrap_or_else(|| panic!("{place} is described and not there")), more);
    }
    // One of the two says what to run, and the other nothing.
    let submit = &mut schemas["Submit"];
    // A task says what it runs; agents say it in their plan, and a run of a program outside says nothing.
    let has_none = json!({ "required": ["type"], "properties": { "type": { "enum": ["agents", "external"] } } });
    submit["if"] = has_none;
    submit["then"] = json!({});
    submit["else"] = json!({
        "if": { "required": ["commands"], "properties": { "commands": { "minItems": 1 } } },
        "then": { "properties": { "commands": { "contains": { "pattern": "\\S" } }, "argv": { "maxItems": 0 } } },
        "else": { "required": ["argv"], "properties": { "argv": { "minItems": 1, "prefixItems": [{ "minLength": 1 }] } } },
    });
    // Nothing is run unless something is said.
    if let Some(commands) = submit["properties"]["commands"].as_object_mut() {
        commands.remove("default");
        commands.insert("examples".into(), json!([["echo hello"]]));
    }
}

fn add(schema: &mut Value, more: Value) {
    let (Some(schema), Value::Object(more)) = (schema.as_object_mut(), more) else { return };
    schema.extend(more);
}

/// An id of its noun, a hash, or a name.
pub(super) fn of_path(path: &str, name: &str) -> Value {
    let id = |prefix: &str| json!({ "type": "string", "pattern": format!("^{prefix}_{SLUG}$") });
    let noun = path.split('/').nth(1).unwrap_or_default();
    match (name, noun) {
        ("hash", _) => json!({ "type": "string", "pattern": HASH }),
        ("name", _) => json!({ "type": "string", "pattern": FREE_VARIABLE, "maxLength": 255 }),
        ("artifact", _) => id(model::ArtifactId::PREFIX),
        ("step", _) => id(model::StepId::PREFIX),
        (_, "runs") => id(model::RunId::PREFIX),
        (_, "instances") => id(model::InstanceId::PREFIX),
        (_, "allocations") => id(model::AllocationId::PREFIX),
        (_, "workflows") => id(model::WorkflowId::PREFIX),
        (_, "manifests") => id(model::ManifestId::PREFIX),
        (_, "escalations" | "approvals") => id(model::QuestionId::PREFIX),
        (_, "tokens") => id(model::TokenId::PREFIX),
        (_, "calls") => id(model::CallId::PREFIX),
        (_, "snapshots") => id(model::SnapshotId::PREFIX),
        (_, "providers") => json!({ "type": "string", "pattern": PROVIDER }),
        // Of an orphan it is what its provider calls it, which may be any text.
        ("id", "orphans") => json!({ "type": "string", "minLength": 1 }),
        ("id", "cache") => {
            let prefixes = format!("({}|{})", model::RunId::PREFIX, model::CallId::PREFIX);
            id(&prefixes)
        }
        _ => json!({ "type": "string" }),
    }
}

fn one_of<'a>(words: impl Iterator<Item = &'a str>) -> Value {
    json!({ "enum": words.collect::<Vec<_>>() })
}

/// A parameter's own bounds; one that is not given is left out, so none is null.
pub(super) fn refine_parameter(path: &str, parameter: &mut Value) {
    let name = parameter["name"].as_str().unwrap_or_default().to_owned();
    let schema = &mut parameter["schema"];
    if let Some(kind) = schema["type"].as_array().and_then(|all| all.iter().find(|kind| *kind != "null")).cloned() {
        schema["type"] = kind;
    }
    let of = |prefix: &str| json!({ "pattern": format!("^{prefix}_{SLUG}$") });
    let more = match name.as_str() {
        "agent" => of(model::AgentId::PREFIX),
        "task" => of(model::TaskId::PREFIX),
        "run" => of(model::RunId::PREFIX),
        "status" if path.ends_with("/agents") => one_of(AgentStatus::ALL.iter().map(|word| word.as_str())),
        "status" if path.ends_with("/tasks") => one_of(TaskStatus::ALL.iter().map(|word| word.as_str())),
        "status" if path.ends_with("/steps") => one_of(StepStatus::ALL.iter().map(|word| word.as_str())),
        "status" => one_of(RunStatus::ALL.iter().map(|word| word.as_str())),
        "by" => one_of(UsageBy::ALL.iter().map(|word| word.as_str())),
        "order" => json!({ "enum": crate::question::ORDERS }),
        "stream" => json!({ "enum": ["stdout", "stderr", "runner"] }),
        "job" => json!({ "pattern": format!("^{}_{SLUG}$", model::JobId::PREFIX) }),
        "kind" if path == "/dag/refs" => one_of(crate::dag::KINDS.iter().map(|(kind, _)| *kind)),
        "cursor" if path == "/dag/refs" => json!({ "pattern": "^refs/" }),
        "expect" | "have" => json!({ "pattern": HASH }),
        "cursor" if path == "/secrets" => json!({ "pattern": VARIABLE, "maxLength": 255 }),
        "cursor" => json!({ "pattern": format!("^{SLUG}$") }),
        _ => Value::Object(Map::new()),
    };
    add(schema, more);
}

/// Where a stream goes on, as it named the place itself: of the log of a task the offsets of its jobs, of the log of a run of agents the
/// number of a frame, of the log of a cached run either offsets or a number of bytes, of events a number. Empty is the same as none.
pub(super) fn last_event_id(answer: &str) -> Value {
    let of_log = "the `id` of the last frame that came: `<job>:<offset>`, joined by commas, or a number";
    let (about, pattern) = match answer {
        "Stream" => {
            let one = format!("job_{SLUG}:[0-9]{{1,18}}");
            (of_log, format!("^([0-9]{{1,18}}|{one}(,{one})*)?$"))
        }
        _ => ("the `id` of the last event that came", "^[0-9]{0,18}$".to_owned()),
    };
    json!({ "name": "Last-Event-ID", "in": "header", "description": about,
            "schema": { "type": "string", "pattern": pattern } })
}
