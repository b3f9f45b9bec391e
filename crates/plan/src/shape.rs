//! The shape of a document: known fields, types, words and bounds, by the tables of [`crate::fields`]. What names mean is checked in
//! [`crate::check`].

use crate::fields::{Field, Kind, RUN, SECRET, Table};
use crate::nearest::suggestion;
use crate::problem::{At, Problems};
use crate::quantity;
use crate::template::has_expression;
use model::spec;
use serde_json::{Map, Value};

/// `field:` with nothing behind it is as good as no field.
pub fn get<'v>(fields: &'v Map<String, Value>, name: &str) -> Option<&'v Value> {
    fields.get(name).filter(|value| !value.is_null())
}

/// What the JSON schema would refuse too.
pub fn shape_problems(value: &Value, at: At<'_>, problems: &mut Problems) {
    check_table(value, &RUN, at, problems);
}

pub fn check_table(value: &Value, table: &Table, at: At<'_>, problems: &mut Problems) {
    let Value::Object(fields) = value else {
        return problems.hint(
            at,
            format!("{} is an object, not {}", table.what, kind_of(value)),
            format!("fields: {}", table.names().join(", ")),
        );
    };
    for (name, value) in fields {
        if problems.full() {
            return;
        }
        match table.fields.iter().find(|field| field.name == name) {
            Some(field) if !value.is_null() => check_kind(value, field.kind, at.key(name), problems),
            Some(_) => {}
            None => unknown(name, table, at, problems),
        }
    }
    for name in table.required {
        if get(fields, name).is_none() {
            problems.add(at, format!("{} needs `{name}`", table.what));
        }
    }
    let there = |group: &[&'static str]| -> Vec<String> {
        group.iter().filter(|name| get(fields, name).is_some()).map(|name| format!("`{name}`")).collect()
    };
    for group in table.exactly_one {
        match &there(group)[..] {
            [_] => {}
            [] => problems.add(at, format!("{} needs one of {}", table.what, group.join(", "))),
            several => problems
                .add(at, format!("{} stand together: {} needs exactly one of them", several.join(" and "), table.what)),
        }
    }
    for group in table.at_most_one {
        let several = there(group);
        if several.len() > 1 {
            problems.add(at, format!("{} cannot stand together", several.join(" and ")));
        }
    }
}

fn unknown(name: &str, table: &Table, at: At<'_>, problems: &mut Problems) {
    problems.hint(at.key(name), format!("{} has no field `{name}`", table.what), suggestion(name, &table.names()));
}

fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "nothing",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

fn wrong_type(value: &Value, wanted: &str, at: At<'_>, problems: &mut Problems) {
    let why = format!("must be {wanted}, not {}", kind_of(value));
    match value {
        Value::Number(_) | Value::Bool(_) if wanted.contains("text") => {
            problems.hint(at, why, "write quotes around it")
        }
        _ => problems.add(at, why),
    }
}

fn check_kind(value: &Value, kind: Kind, at: At<'_>, problems: &mut Problems) {
    match kind {
        Kind::Either(kinds) => match kinds.iter().find(|kind| takes(**kind, value)) {
            Some(kind) => check_kind(value, *kind, at, problems),
            None => {
                let wanted: Vec<&str> = kinds.iter().map(|kind| wanted(*kind)).collect();
                wrong_type(value, &wanted.join(" or "), at, problems);
            }
        },
        kind if !takes(kind, value) => wrong_type(value, wanted(kind), at, problems),
        Kind::Inner(table) => check_table(value, table, at, problems),
        Kind::List(table, most) => {
            each_item(value, most, at, problems, |item, at, problems| check_table(item, table, at, problems));
        }
        Kind::Named(table) => each_name(value, at, problems, |name, item, at, problems| {
            if !spec::is_name(name) {
                problems.add(at, format!("`{name}` {}", spec::NAME_RULE));
            }
            check_table(item, table, at, problems);
        }),
        Kind::Items(most) => {
            if let Value::Array(list) = value
                && (list.is_empty() || list.len() > most)
            {
                problems.add(at, format!("{} items: 1 to {most} are allowed", list.len()));
            }
        }
        Kind::Argv => each_item(value, usize::MAX, at, problems, |item, at, problems| {
            check_kind(item, Kind::Template, at, problems)
        }),
        Kind::Texts => check_texts(value, at, problems),
        Kind::SomeOf(words) => {
            each_item(value, usize::MAX, at, problems, |item, at, problems| {
                check_kind(item, Kind::OneOf(words), at, problems)
            });
        }
        Kind::Scalars => each_name(value, at, problems, |_, item, at, problems| check_scalar(item, at, problems)),
        Kind::Headers => each_name(value, at, problems, |name, item, at, problems| {
            if name.is_empty() || !name.bytes().all(|b| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b)) {
                problems.add(at, format!("`{name}` is not the name of a header"));
            }
            check_scalar_or_secret(item, at, problems);
        }),
        Kind::Variables => each_name(value, at, problems, |name, item, at, problems| {
            if let Err(why) = spec::check_variable(name) {
                problems.add(at, why);
            }
            check_scalar_or_secret(item, at, problems);
        }),
        Kind::Schemas => each_name(value, at, problems, |name, item, at, problems| {
            if !spec::is_name(name) {
                problems.add(at, format!("`{name}` {}", spec::NAME_RULE));
            }
            check_kind(item, Kind::Schema, at, problems);
        }),
        Kind::Any | Kind::Values | Kind::Flag | Kind::Schema | Kind::Template => {}
        kind => check_word(value, kind, at, problems),
    }
}

/// Kinds that are one text or one number.
fn check_word(value: &Value, kind: Kind, at: At<'_>, problems: &mut Problems) {
    let text = match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let read = |problems: &mut Problems, read: Result<(), String>| {
        if let Err(why) = read {
            problems.quantity(at, &why);
        }
    };
    match kind {
        Kind::Shell if has_expression(&text) => problems.hint(
            at,
            "a text for a shell takes no expressions",
            "put the value into `env:` and write \"$NAME\", or write the command as a list",
        ),
        Kind::Shell if text.trim().is_empty() => problems.add(at, "the command is empty"),
        _ if has_expression(&text) => problems.add(at, "no expressions are possible here"),
        Kind::Word(word) if text != word => problems.add(at, format!("must be `{word}`")),
        Kind::OneOf(words) if !words.contains(&text.as_str()) => {
            problems.hint(at, format!("`{text}` is none of {}", words.join(", ")), suggestion(&text, words));
        }
        Kind::Name if !spec::is_name(&text) => problems.add(at, format!("`{text}` {}", spec::NAME_RULE)),
        Kind::Secret => read(problems, spec::check_variable(&text)),
        Kind::Count { min, max } if !value.as_i64().is_some_and(|number| (min..=max).contains(&number)) => {
            problems.add(at, format!("`{text}` is not a whole number from {min} to {max}"));
        }
        Kind::Number { min, max } if !value.as_f64().is_some_and(|number| (min..=max).contains(&number)) => {
            problems.add(at, format!("`{text}` is not a number from {min} to {max}"));
        }
        Kind::Credits => read(problems, quantity::credits(&text).map(|_| ())),
        Kind::Duration => read(problems, duration(&text).map(|_| ())),
        Kind::Memory => read(problems, memory(&text).map(|_| ())),
        Kind::Cpu => read(problems, quantity::cpu(&text).map(|_| ())),
        Kind::Gpu => read(problems, quantity::gpu(&text).map(|_| ())),
        _ => {}
    }
}

/// A length of time that is longer than nothing.
pub fn duration(text: &str) -> Result<i64, String> {
    match quantity::duration(text)? {
        0 => Err(format!("`{text}` is no time: write more than nothing, like 30s")),
        ms => Ok(ms),
    }
}

fn memory(text: &str) -> Result<i64, String> {
    match quantity::memory(text)? {
        bytes if bytes < spec::MIN_MEMORY_BYTES => Err(format!("`{text}` is too little: write at least 4MB")),
        bytes => Ok(bytes),
    }
}

fn check_texts(value: &Value, at: At<'_>, problems: &mut Problems) {
    for (index, item) in value.as_array().into_iter().flatten().enumerate() {
        check_kind(item, Kind::Text, at.index(index), problems);
    }
}

fn check_scalar(value: &Value, at: At<'_>, problems: &mut Problems) {
    match value {
        Value::Object(fields) if fields.contains_key("secret") => {
            problems.hint(at, "a secret is not possible here", "use it in `headers` or `env`")
        }
        Value::Array(_) | Value::Object(_) | Value::Null => {
            wrong_type(value, "a text, a number or true or false", at, problems)
        }
        _ => {}
    }
}

fn check_scalar_or_secret(value: &Value, at: At<'_>, problems: &mut Problems) {
    match value {
        Value::Object(_) => check_table(value, &SECRET, at, problems),
        value => check_scalar(value, at, problems),
    }
}

fn each_item(
    value: &Value,
    most: usize,
    at: At<'_>,
    problems: &mut Problems,
    mut check: impl FnMut(&Value, At<'_>, &mut Problems),
) {
    let Value::Array(list) = value else { return };
    if list.is_empty() {
        problems.add(at, "there must be at least one");
    }
    if list.len() > most {
        return problems.add(at, format!("{} of them: {most} are allowed", list.len()));
    }
    for (index, item) in list.iter().enumerate() {
        if problems.full() {
            return;
        }
        check(item, at.index(index), problems);
    }
}

fn each_name(
    value: &Value,
    at: At<'_>,
    problems: &mut Problems,
    mut check: impl FnMut(&str, &Value, At<'_>, &mut Problems),
) {
    for (name, item) in value.as_object().into_iter().flatten() {
        if problems.full() {
            return;
        }
        check(name, item, at.key(name), problems);
    }
}

/// Whether the value has a JSON type that the kind takes.
fn takes(kind: Kind, value: &Value) -> bool {
    match kind {
        Kind::Any => true,
        Kind::Flag => value.is_boolean(),
        Kind::Count { .. } | Kind::Number { .. } => value.is_number(),
        Kind::Credits | Kind::Cpu | Kind::Gpu => value.is_number() || value.is_string(),
        // A number without a unit is refused with a better reason than its type.
        Kind::Duration | Kind::Memory => value.is_string() || value.is_number(),
        Kind::Argv | Kind::Texts | Kind::SomeOf(_) | Kind::List(..) | Kind::Items(_) => value.is_array(),
        Kind::Values
        | Kind::Scalars
        | Kind::Headers
        | Kind::Variables
        | Kind::Schemas
        | Kind::Inner(_)
        | Kind::Named(_) => value.is_object(),
        Kind::Schema => value.is_object() || value.is_boolean(),
        Kind::Either(kinds) => kinds.iter().any(|kind| takes(*kind, value)),
        Kind::Word(_) | Kind::Name | Kind::Text | Kind::Template | Kind::Shell | Kind::OneOf(_) | Kind::Secret => {
            value.is_string()
        }
    }
}

fn wanted(kind: Kind) -> &'static str {
    match kind {
        Kind::Any => "a value",
        Kind::Flag => "true or false",
        Kind::Count { .. } => "a whole number",
        Kind::Number { .. } | Kind::Credits | Kind::Cpu | Kind::Gpu => "a number",
        Kind::Argv | Kind::Texts | Kind::SomeOf(_) => "a list of texts",
        Kind::List(..) | Kind::Items(_) => "a list",
        Kind::Values
        | Kind::Scalars
        | Kind::Headers
        | Kind::Variables
        | Kind::Schemas
        | Kind::Inner(_)
        | Kind::Named(_) => "an object",
        Kind::Schema => "a JSON schema",
        Kind::Either(_) => "one of several kinds",
        Kind::Duration => "a length of time",
        Kind::Memory => "a size",
        Kind::Word(_) | Kind::Name | Kind::Text | Kind::Template | Kind::Shell | Kind::OneOf(_) | Kind::Secret => {
            "a text"
        }
    }
}

/// A value that may hold expressions, and how it is read.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Slot {
    Value,
    /// Text whatever comes in: a header, a variable, an argument.
    Text,
    Url,
    /// Also reads `output`, what the tool beside it answered.
    Outcome,
}

/// Calls `found` for each value of an object that may hold expressions.
pub fn each_template<'v>(
    value: &'v Value,
    fields: &[Field],
    at: At<'_>,
    found: &mut dyn FnMut(&'v Value, Slot, At<'_>),
) {
    let Value::Object(map) = value else { return };
    for field in fields {
        if let Some(value) = get(map, field.name) {
            let slot = match field.name {
                "url" => Slot::Url,
                "outcome" => Slot::Outcome,
                _ => Slot::Value,
            };
            templates_of(value, field.kind, slot, at.key(field.name), found);
        }
    }
}

fn templates_of<'v>(
    value: &'v Value,
    kind: Kind,
    slot: Slot,
    at: At<'_>,
    found: &mut dyn FnMut(&'v Value, Slot, At<'_>),
) {
    match kind {
        Kind::Any | Kind::Items(_) => found(value, Slot::Value, at),
        Kind::Template if value.is_string() => found(value, slot, at),
        Kind::Argv => {
            for (index, item) in value.as_array().into_iter().flatten().enumerate() {
                found(item, Slot::Text, at.index(index));
            }
        }
        Kind::Scalars | Kind::Headers | Kind::Variables => {
            let slot = if matches!(kind, Kind::Scalars) { Slot::Value } else { Slot::Text };
            for (name, item) in value.as_object().into_iter().flatten().filter(|(_, item)| item.is_string()) {
                found(item, slot, at.key(name));
            }
        }
        Kind::Inner(table) => each_template(value, table.fields, at, found),
        Kind::Either(kinds) => {
            if let Some(kind) = kinds.iter().find(|kind| takes(**kind, value)) {
                templates_of(value, *kind, slot, at, found);
            }
        }
        // Lists of agents, tasks and steps, and the tools, have scopes of their own.
        _ => {}
    }
}
