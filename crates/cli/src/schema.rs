//! `repl schema`: the JSON schema of a run file, made from the keys its reader knows, for editors and for programs that write run
//! files. `docs/task.schema.json`, `docs/agents.schema.json` and the tables of `docs/run-files.md` are the same, stored.

use crate::complaint::Done;
use crate::run_file::keys::{Key, TASK, Value};
use crate::show;
use serde_json::{Map, Value as Json, json};

/// Print the JSON schema of a run file
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  repl schema task > task.schema.json
  repl schema agents > agents.schema.json

An editor with a YAML language server uses it when a run file begins with
  # yaml-language-server: $schema=task.schema.json")]
pub struct SchemaArgs {
    /// The kind of run
    #[arg(value_parser = ["task", "agents"])]
    kind: String,
}

pub fn schema(args: &SchemaArgs) -> Done {
    show::json(&if args.kind == "agents" { plan::schema() } else { task() })
}

/// Draft 7: editors know it best.
pub fn task() -> Json {
    let mut schema = object(TASK);
    let fields = schema.as_object_mut().expect("made as one");
    fields.insert("$schema".into(), "http://json-schema.org/draft-07/schema#".into());
    fields.insert("title".into(), "Remuda run file, type: task".into());
    fields.insert("description".into(), "A run that executes commands once. See docs/run-files.md.".into());
    fields.insert("required".into(), json!(["type"]));
    fields.insert("type".into(), "object".into());
    schema
}

fn object(keys: &[Key]) -> Json {
    let properties: Map<String, Json> = keys.iter().map(|key| (key.name.to_owned(), property(key))).collect();
    // A key with nothing behind it is as good as no key.
    json!({ "type": ["object", "null"], "additionalProperties": false, "properties": properties })
}

fn property(key: &Key) -> Json {
    let mut schema = of(key.value);
    let fields = schema.as_object_mut().expect("made as one");
    let default = if key.value == Value::Type { String::new() } else { format!(" Without it: {}.", key.default) };
    fields.insert("description".into(), format!("{}{default}", key.about).into());
    let example: Json = serde_yaml_ng::from_str(key.example).expect("examples are YAML");
    fields.insert("examples".into(), json!([example]));
    schema
}

const SCALAR: [&str; 3] = ["string", "number", "boolean"];
const VARIABLE: &str = "^[A-Za-z_][A-Za-z0-9_]*$";

fn of(value: Value) -> Json {
    let scalar = json!({ "type": SCALAR });
    match value {
        Value::Type => json!({ "enum": ["task", "external"] }),
        Value::Name => {
            json!({ "type": ["string", "number", "boolean", "null"], "pattern": "^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$" })
        }
        Value::Text => json!({ "type": ["string", "number", "boolean", "null"] }),
        Value::Texts => json!({ "anyOf": [{ "type": "array", "items": scalar }, scalar, { "type": "null" }] }),
        Value::Variables => {
            let name = json!({ "pattern": VARIABLE, "not": { "pattern": "^REPL_" } });
            let entry =
                json!({ "type": "string", "pattern": "^[A-Za-z_][A-Za-z0-9_]*(=|$)", "not": { "pattern": "^REPL_" } });
            json!({ "anyOf": [
                { "type": "object", "propertyNames": name, "additionalProperties": scalar },
                { "type": "array", "items": entry },
                entry,
                { "type": "null" },
            ] })
        }
        Value::Duration => json!({
            "type": ["string", "null"],
            "minLength": 2,
            "pattern": "^([0-9]+w)?([0-9]+d)?([0-9]+h)?([0-9]+m)?([0-9]+s)?([0-9]+ms)?$",
        }),
        Value::Memory => json!({
            "type": ["string", "null"],
            "pattern": r"^[0-9]+(\.[0-9]+)? ?([kKmMgGtT]([iI]?[bB]|[iI])?|[bB])$",
        }),
        Value::Cpu => json!({
            "type": ["number", "string", "null"],
            "minimum": 0.001,
            "exclusiveMaximum": 1_000_000,
            "pattern": r"^(0\.[0-9]*[1-9][0-9]*|[1-9][0-9]*(\.[0-9]+)?)m?$",
        }),
        Value::Gpu => json!({
            "type": ["integer", "string", "null"],
            "minimum": 1,
            "maximum": wire::model::spec::MAX_GPUS,
            "pattern": wire::model::spec::GPU_PATTERN,
        }),
        Value::Credits => json!({
            "type": ["number", "string", "null"],
            "exclusiveMinimum": 0,
            "pattern": r"^(0\.[0-9]{0,5}[1-9][0-9]{0,5}|[1-9][0-9]*(\.[0-9]{1,6})?)$",
        }),
        Value::OneOf(words) => {
            json!({ "enum": words.iter().map(|word| json!(word)).chain([Json::Null]).collect::<Vec<_>>() })
        }
        Value::SomeOf(words) => {
            let word = json!({ "enum": words });
            json!({ "anyOf": [{ "type": "array", "items": word }, word, { "type": "null" }] })
        }
        Value::Flag => json!({ "type": ["boolean", "null"] }),
        Value::Attempts => json!({
            "type": ["integer", "string", "null"], "minimum": 1, "maximum": wire::model::spec::MAX_ATTEMPTS, "pattern": "^([1-9][0-9]?|100)$",
        }),
        Value::Retry(keys) => json!({ "anyOf": [
            { "type": "integer", "minimum": 1, "maximum": wire::model::spec::MAX_ATTEMPTS },
            object(keys),
        ] }),
        Value::Sandbox(keys) | Value::Cache(keys) => {
            json!({ "anyOf": [{ "type": ["boolean", "null"] }, object(keys)] })
        }
        Value::Inner(keys) => object(keys),
    }
}

#[cfg(test)]
mod plans;
#[cfg(test)]
mod tests;
