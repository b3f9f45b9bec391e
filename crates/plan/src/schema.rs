//! The JSON schema of a document (draft 2020-12), made from the same tables as the check of its shape. What names and expressions mean is
//! beyond a schema.

use crate::check::PLANNED;
use crate::fields::{Kind, RUN, SECRET, Table};
use serde_json::{Map, Value, json};

const NO_EXPRESSION: &str = r"\$\{\{";
const VARIABLE: &str = "^[A-Za-z_][A-Za-z0-9_]*$";
const NAME: &str = "^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$";

pub fn schema() -> Value {
    let mut schema = whole(&RUN);
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema".into();
    schema["title"] = "Remuda run file, type: agents".into();
    schema["description"] = "A run of agents, each with tasks and steps.".into();
    schema
}

/// Of what a planner answers: the agents alone.
pub fn planned_schema() -> Value {
    whole(&PLANNED)
}

fn whole(table: &Table) -> Value {
    let mut definitions = Map::new();
    let mut schema = object(table, &mut definitions);
    schema["$defs"] = Value::Object(definitions);
    schema
}

fn object(table: &Table, definitions: &mut Map<String, Value>) -> Value {
    let properties: Map<String, Value> = table
        .fields
        .iter()
        .map(|field| {
            let mut schema = optional(of(field.kind, definitions));
            schema["description"] = field.about.into();
            (field.name.to_owned(), schema)
        })
        .collect();
    let mut all: Vec<Value> = table.required.iter().map(|name| present(name)).collect();
    for group in table.exactly_one {
        all.push(json!({ "oneOf": group.iter().map(|name| present(name)).collect::<Vec<_>>() }));
    }
    for group in table.at_most_one {
        all.push(json!({ "not": { "allOf": group.iter().map(|name| present(name)).collect::<Vec<_>>() } }));
    }
    let mut schema = json!({ "type": "object", "additionalProperties": false, "properties": properties });
    if !all.is_empty() {
        schema["allOf"] = all.into();
    }
    schema
}

/// A field with nothing behind it is as good as no field.
fn present(name: &str) -> Value {
    json!({ "required": [name], "properties": { name: { "not": { "type": "null" } } } })
}

fn optional(mut schema: Value) -> Value {
    match schema.get("type").cloned() {
        Some(Value::String(word)) if schema.get("enum").is_none() => {
            schema["type"] = json!([word, "null"]);
            schema
        }
        Some(Value::Array(mut words)) => {
            words.push("null".into());
            schema["type"] = words.into();
            schema
        }
        _ => json!({ "anyOf": [schema, { "type": "null" }] }),
    }
}

fn reference(table: &Table, definitions: &mut Map<String, Value>) -> Value {
    let name = table.what.trim_start_matches("an ").trim_start_matches("a ").replace('`', "").replace(' ', "_");
    if !definitions.contains_key(&name) {
        definitions.insert(name.clone(), Value::Null);
        let schema = object(table, definitions);
        definitions.insert(name.clone(), schema);
    }
    json!({ "$ref": format!("#/$defs/{name}") })
}

fn of(kind: Kind, definitions: &mut Map<String, Value>) -> Value {
    let plain = json!({ "type": "string", "not": { "type": "string", "pattern": NO_EXPRESSION } });
    let scalar = json!({ "type": ["string", "number", "boolean"] });
    match kind {
        Kind::Word(word) => json!({ "const": word }),
        Kind::Name => json!({ "type": "string", "pattern": NAME }),
        Kind::Secret => {
            json!({ "type": "string", "pattern": VARIABLE, "not": { "type": "string", "pattern": "^REPL_" } })
        }
        Kind::Text => plain,
        Kind::Shell => {
            json!({ "type": "string", "pattern": r"\S", "not": { "type": "string", "pattern": NO_EXPRESSION } })
        }
        Kind::Template => json!({ "type": "string" }),
        Kind::Flag => json!({ "type": "boolean" }),
        Kind::Count { min, max } => json!({ "type": "integer", "minimum": min, "maximum": max }),
        Kind::Number { min, max } => json!({ "type": "number", "minimum": min, "maximum": max }),
        Kind::Credits => json!({
            "type": ["number", "string"],
            "exclusiveMinimum": 0,
            "pattern": r"^(0\.[0-9]{0,5}[1-9][0-9]{0,5}|[1-9][0-9]*(\.[0-9]{1,6})?)$",
        }),
        Kind::Duration => json!({
            "type": "string",
            "pattern": r"^([0-9]+w)?([0-9]+d)?([0-9]+h)?([0-9]+m)?([0-9]+s)?([0-9]+ms)?$",
            "allOf": [{ "pattern": "[1-9]" }],
        }),
        Kind::Memory => {
            json!({ "type": "string", "pattern": r"^[0-9]+(\.[0-9]+)? ?([kKmMgGtT]([iI]?[bB]|[iI])?|[bB])$" })
        }
        Kind::Cpu => json!({
            "type": ["number", "string"],
            "minimum": 0.001,
            "exclusiveMaximum": 1_000_000,
            "pattern": r"^(0\.[0-9]*[1-9][0-9]*|[1-9][0-9]*(\.[0-9]+)?)m?$",
        }),
        Kind::Gpu => json!({
            "type": ["integer", "string"],
            "minimum": 1,
            "maximum": model::spec::MAX_GPUS,
            "pattern": model::spec::GPU_PATTERN,
        }),
        Kind::OneOf(words) => json!({ "enum": words }),
        Kind::SomeOf(words) => json!({ "type": "array", "minItems": 1, "items": { "enum": words } }),
        Kind::Texts => json!({ "type": "array", "items": plain }),
        Kind::Argv => json!({ "type": "array", "minItems": 1, "items": { "type": "string" } }),
        Kind::Any => json!({}),
        Kind::Values => json!({ "type": "object" }),
        Kind::Items(most) => json!({ "type": "array", "minItems": 1, "maxItems": most }),
        Kind::Scalars => json!({ "type": "object", "additionalProperties": scalar }),
        Kind::Headers => {
            let value = json!({ "anyOf": [scalar, reference(&SECRET, definitions)] });
            json!({ "type": "object", "propertyNames": { "pattern": "^[A-Za-z0-9!#$%&'*+.^_`|~-]+$" }, "additionalProperties": value })
        }
        Kind::Variables => {
            let value = json!({ "anyOf": [scalar, reference(&SECRET, definitions)] });
            let name = json!({ "pattern": VARIABLE, "not": { "pattern": "^REPL_" } });
            json!({ "type": "object", "propertyNames": name, "additionalProperties": value })
        }
        Kind::Schema => json!({ "type": ["object", "boolean"] }),
        Kind::Schemas => {
            json!({ "type": "object", "propertyNames": { "pattern": NAME }, "additionalProperties": { "type": ["object", "boolean"] } })
        }
        Kind::Inner(table) => reference(table, definitions),
        Kind::List(table, most) => {
            let mut schema = json!({ "type": "array", "minItems": 1, "items": reference(table, definitions) });
            if most < usize::MAX {
                schema["maxItems"] = most.into();
            }
            schema
        }
        Kind::Named(table) => {
            json!({ "type": "object", "propertyNames": { "pattern": NAME }, "additionalProperties": reference(table, definitions) })
        }
        Kind::Either(kinds) => json!({ "anyOf": kinds.iter().map(|kind| of(*kind, definitions)).collect::<Vec<_>>() }),
    }
}
