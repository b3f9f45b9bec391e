//! What the types alone do not say: which numbers, words and shapes a field takes. Each line repeats a rule that some check
//! enforces; the suite sends what these lines forbid and expects a refusal.

use engine::store::token::Scope;
use model::run::RunStatus;
use model::spec::{MIN_MEMORY_BYTES, OnLostControl, Priority, RetryEvent};
use serde_json::{Map, Value, json};

const HASH: &str = "^[0-9a-f]{64}$";
const VARIABLE: &str = "^[A-Za-z_][A-Za-z0-9_]*$";
/// The name of a variable or secret of a run; see `model::spec::is_reserved`.
const FREE_VARIABLE: &str = "^(?!REPL_)[A-Za-z_][A-Za-z0-9_]*$";
/// A decimal number of credits, more than nothing, with at most six digits behind the point.
const CREDITS: &str = "^(?=.*[1-9])[0-9]+(\\.[0-9]{1,6})?$";
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
    let events: Vec<&str> = RetryEvent::ALL.iter().map(|word| word.as_str()).collect();
    let scopes: Vec<&str> = [Scope::Read, Scope::Write, Scope::Admin].iter().map(|scope| scope.as_str()).collect();
    vec![
        ("Submit.name", json!({ "pattern": "^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$" })),
        ("Submit.type", of_null(names(&["task"]))),
        ("Submit.env", json!({ "maxProperties": 500, "propertyNames": { "pattern": FREE_VARIABLE } })),
        ("Submit.secrets", json!({ "items": { "type": "string", "pattern": FREE_VARIABLE } })),
        ("Submit.working_dir", json!({ "minLength": 1, "maxLength": 4096 })),
        ("Submit.artifacts", json!({ "items": { "type": "string", "minLength": 1, "maxLength": 4096 } })),
        ("Submit.max_duration_ms", json!({ "minimum": 1 })),
        ("Submit.stop_duration_ms", json!({ "minimum": 0 })),
        ("Submit.hold_ms", json!({ "minimum": 0, "maximum": model::time::DAY })),
        ("Submit.budget", json!({ "pattern": CREDITS })),
        ("Submit.priority", of_null(priorities)),
        ("Submit.on_lost_control", of_null(lost)),
        ("FilesBody.tree", json!({ "pattern": HASH })),
        ("FilesBody.files", json!({ "minimum": 0 })),
        ("FilesBody.bytes", json!({ "minimum": 0 })),
        ("StdinBody.hash", json!({ "pattern": HASH })),
        ("StdinBody.size", json!({ "minimum": 0, "maximum": model::spec::MAX_STDIN_BYTES })),
        ("ResourcesBody.cpu_milli", json!({ "minimum": 1 })),
        ("ResourcesBody.memory_bytes", json!({ "minimum": MIN_MEMORY_BYTES })),
        ("RetryBody.max_attempts", json!({ "minimum": 1, "maximum": 100 })),
        ("RetryBody.on_events", json!({ "items": { "type": "string", "enum": events } })),
        ("ExtendBody.duration_ms", json!({ "minimum": 1 })),
        ("BlobList.hashes", json!({ "items": { "type": "string", "pattern": HASH } })),
        ("BlobList.trees", json!({ "items": { "type": "string", "pattern": HASH } })),
        ("AddCredits.amount", json!({ "pattern": CREDITS })),
        ("SecretBody.value", json!({ "minLength": 1, "maxLength": 65536 })),
        ("NewToken.name", json!({ "minLength": 1, "maxLength": 100 })),
        ("NewToken.scopes", json!({ "minItems": 1, "items": { "type": "string", "enum": scopes } })),
        ("LogFrame.stream", words(&["stdout", "stderr", "runner"])),
    ]
}

/// Bodies that say nothing when they are empty.
pub(super) fn is_needed(body: &str) -> bool {
    !matches!(body, "Nothing" | "ActionBody" | "TerminateBody" | "ExtendBody" | "StopBody" | "BlobList")
}

pub(super) fn refine(schemas: &mut Value) {
    for (place, more) in table() {
        let (name, field) = place.split_once('.').expect("a type and a field");
        let schema = schemas.get_mut(name).and_then(|schema| schema["properties"].get_mut(field));
        add(schema.unwrap_or_else(|| panic!("{place} is described and not there")), more);
    }
    // One of the two says what to run, and the other nothing.
    let submit = &mut schemas["Submit"];
    submit["if"] = json!({ "required": ["commands"], "properties": { "commands": { "minItems": 1 } } });
    submit["then"] =
        json!({ "properties": { "commands": { "contains": { "pattern": "\\S" } }, "argv": { "maxItems": 0 } } });
    submit["else"] = json!({ "required": ["argv"], "properties": { "argv": { "minItems": 1, "prefixItems": [{ "minLength": 1 }] } } });
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
        (_, "runs") => id(model::RunId::PREFIX),
        (_, "instances") => id(model::InstanceId::PREFIX),
        (_, "allocations") => id(model::AllocationId::PREFIX),
        (_, "workflows") => id(model::WorkflowId::PREFIX),
        (_, "manifests") => id(model::ManifestId::PREFIX),
        (_, "tokens") => id(model::TokenId::PREFIX),
        _ => json!({ "type": "string" }),
    }
}

/// A parameter's own bounds; one that is not given is left out, so none is null.
pub(super) fn refine_parameter(path: &str, parameter: &mut Value) {
    let name = parameter["name"].as_str().unwrap_or_default().to_owned();
    let schema = &mut parameter["schema"];
    if let Some(kind) = schema["type"].as_array().and_then(|all| all.iter().find(|kind| *kind != "null")).cloned() {
        schema["type"] = kind;
    }
    let more = match name.as_str() {
        "status" => json!({ "enum": RunStatus::ALL.iter().map(|word| word.as_str()).collect::<Vec<_>>() }),
        "stream" => json!({ "enum": ["stdout", "stderr", "runner"] }),
        "job" => json!({ "pattern": format!("^{}_{SLUG}$", model::JobId::PREFIX) }),
        "cursor" if path == "/secrets" => json!({ "pattern": VARIABLE, "maxLength": 255 }),
        "cursor" => json!({ "pattern": format!("^{SLUG}$") }),
        _ => Value::Object(Map::new()),
    };
    add(schema, more);
}

/// Of a log the offsets of its jobs, of events a number; empty is the same as none.
pub(super) fn last_event_id(answer: &str) -> Value {
    match answer {
        "Stream" => {
            let one = format!("job_{SLUG}:[0-9]{{1,18}}");
            json!({ "type": "string", "pattern": format!("^({one}(,{one})*)?$") })
        }
        _ => json!({ "type": "string", "pattern": "^[0-9]{0,18}$" }),
    }
}
