//! The evaluator behind expressions: `minijinja` with a short list of filters and tests, and with limits on instructions and bytes. It has no
//! functions, no clock and no randomness, so an expression gives the same value each time.

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Environment, Error, ErrorKind, UndefinedBehavior, Value, filters, tests};
use serde_json::Value as Json;
use std::sync::LazyLock;

/// Instructions of one expression. An expression has no loops, so this is many times what one needs.
const FUEL: u64 = 10_000;
/// Bytes of the values that one expression may read, together.
pub const MAX_READ_BYTES: usize = 1 << 20;
/// Bytes of what one expression, and one template, may give.
pub const MAX_RENDERED_BYTES: usize = 1 << 20;
/// Levels of lists and objects in a value.
pub const MAX_DEPTH: usize = 64;

/// In the order in which they are suggested.
pub const FILTERS: &[&str] = &[
    "default", "length", "join", "split", "lines", "lower", "upper", "trim", "replace", "first", "last", "sort",
    "unique", "reverse", "list", "items", "map", "min", "max", "sum", "abs", "round", "int", "float", "bool", "string",
    "tojson",
];
pub const TESTS: &[&str] = &[
    "defined",
    "undefined",
    "none",
    "string",
    "number",
    "boolean",
    "sequence",
    "mapping",
    "odd",
    "even",
    "startingwith",
    "endingwith",
];

static EVALUATOR: LazyLock<Environment<'static>> = LazyLock::new(evaluator);

fn evaluator() -> Environment<'static> {
    let mut env = Environment::empty();
    env.set_undefined_behavior(UndefinedBehavior::Strict);
    env.set_fuel(Some(FUEL));
    env.add_filter("default", filters::default);
    env.add_filter("length", filters::length);
    env.add_filter("first", filters::first);
    env.add_filter("last", filters::last);
    env.add_filter("reverse", filters::reverse);
    env.add_filter("sort", filters::sort);
    env.add_filter("unique", filters::unique);
    env.add_filter("min", filters::min);
    env.add_filter("max", filters::max);
    env.add_filter("sum", filters::sum);
    env.add_filter("abs", filters::abs);
    env.add_filter("int", filters::int);
    env.add_filter("float", filters::float);
    env.add_filter("round", filters::round);
    env.add_filter("items", filters::items);
    env.add_filter("list", filters::list);
    env.add_filter("bool", filters::bool);
    // Those of the library take any value and write lists as text, quotes escaped: nested, each level would double the text.
    env.add_filter("lower", |text: &str| text.to_lowercase());
    env.add_filter("upper", |text: &str| text.to_uppercase());
    env.add_filter("trim", |text: &str| text.trim().to_owned());
    env.add_filter("lines", |text: &str| text.lines().map(Value::from).collect::<Vec<Value>>());
    env.add_filter("split", split);
    env.add_filter("replace", replace);
    env.add_filter("join", join);
    env.add_filter("map", map);
    env.add_filter("string", |value: Value| text(&value));
    env.add_filter("tojson", |value: Value| to_json(&value).map(|json| json.to_string()).map_err(failed));
    env.add_test("defined", tests::is_defined);
    env.add_test("undefined", tests::is_undefined);
    env.add_test("none", tests::is_none);
    env.add_test("string", tests::is_string);
    env.add_test("number", tests::is_number);
    env.add_test("boolean", tests::is_boolean);
    env.add_test("sequence", tests::is_sequence);
    env.add_test("mapping", tests::is_mapping);
    env.add_test("odd", tests::is_odd);
    env.add_test("even", tests::is_even);
    env.add_test("startingwith", |text: &str, with: &str| text.starts_with(with));
    env.add_test("endingwith", |text: &str, with: &str| text.ends_with(with));
    env
}

/// Whether the parser accepts it, or why not.
pub fn compiles(source: &str) -> Result<(), String> {
    EVALUATOR.compile_expression(source).map(|_| ()).map_err(|error| said(&error))
}

/// The value of an expression that was parsed before, over exactly what it reads.
pub fn evaluate(source: &str, context: &serde_json::Map<String, Json>) -> Result<Json, String> {
    let expression = EVALUATOR.compile_expression(source).map_err(|error| said(&error))?;
    let value = expression.eval(context).map_err(|error| said(&error))?;
    if value.is_undefined() {
        return Err("it has no value: something that it names does not exist".to_owned());
    }
    to_json(&value)
}

fn said(error: &Error) -> String {
    let kind = error.kind().to_string();
    match error.detail() {
        Some(detail) => format!("{kind}: {detail}"),
        None => kind,
    }
}

fn failed(why: String) -> Error {
    Error::new(ErrorKind::InvalidOperation, why)
}

fn too_large() -> String {
    format!("the value is larger than {MAX_RENDERED_BYTES} bytes")
}

/// Weighed before it is converted: a short expression can name a large value many times.
fn to_json(value: &Value) -> Result<Json, String> {
    let mut left = MAX_RENDERED_BYTES;
    weigh(value, &mut left, MAX_DEPTH)?;
    serde_json::to_value(value).map_err(|error| format!("not a JSON value: {error}"))
}

fn weigh(value: &Value, left: &mut usize, depth: usize) -> Result<(), String> {
    let Some(inner) = depth.checked_sub(1) else {
        return Err(format!("the value is nested deeper than {MAX_DEPTH} levels"));
    };
    let size = value.as_str().map_or(8, str::len);
    *left = left.checked_sub(size).ok_or_else(too_large)?;
    match value.kind() {
        ValueKind::Undefined => Err("a part of it has no value".to_owned()),
        ValueKind::Number if f64::try_from(value.clone()).is_ok_and(|n| !n.is_finite()) => {
            Err("the result is not a finite number".to_owned())
        }
        ValueKind::Seq | ValueKind::Iterable => {
            value.try_iter().map_err(|error| said(&error))?.try_for_each(|item| weigh(&item, left, inner))
        }
        ValueKind::Map => value.try_iter().map_err(|error| said(&error))?.try_for_each(|key| {
            let item = value.get_item(&key).map_err(|error| said(&error))?;
            weigh(&key, left, inner)?;
            weigh(&item, left, inner)
        }),
        _ => Ok(()),
    }
}

/// A text as it is; anything else as JSON.
fn text(value: &Value) -> Result<String, Error> {
    match value.as_str() {
        Some(text) => Ok(text.to_owned()),
        None => to_json(value).map(|json| json.to_string()).map_err(failed),
    }
}

fn split(text: &str, by: Option<&str>) -> Vec<Value> {
    match by {
        None => text.split_whitespace().map(Value::from).collect(),
        Some("") => text.chars().map(|c| Value::from(c.to_string())).collect(),
        Some(by) => text.split(by).map(Value::from).collect(),
    }
}

fn replace(text: &str, from: &str, to: &str) -> Result<String, Error> {
    let found = text.matches(from).count();
    let grown = found.saturating_mul(to.len()).saturating_add(text.len());
    if grown > MAX_RENDERED_BYTES { Err(failed(too_large())) } else { Ok(text.replace(from, to)) }
}

fn join(list: &Value, by: Option<&str>) -> Result<String, Error> {
    let mut joined = String::new();
    for (at, item) in list.try_iter()?.enumerate() {
        if at > 0 {
            joined.push_str(by.unwrap_or_default());
        }
        joined.push_str(&text(&item)?);
        if joined.len() > MAX_RENDERED_BYTES {
            return Err(failed(too_large()));
        }
    }
    Ok(joined)
}

/// `map(attribute="name")`: that attribute of each item. Another filter for each item is not offered, since its cost is not bounded.
fn map(list: &Value, kwargs: Kwargs) -> Result<Vec<Value>, Error> {
    let attribute: String = kwargs.get("attribute")?;
    kwargs.assert_all_used()?;
    list.try_iter()?.map(|item| item.get_attr(&attribute)).collect()
}

#[cfg(test)]
mod unit_tests {
    use super::*;
    use serde_json::json;

    fn check(source: &str, expected: Result<Json, &str>) {
        let context = json!({ "inputs": { "n": 3, "text": "a,b", "list": [{ "x": 1 }, { "x": 2 }], "none": null, "big": "\"".repeat(100_000) } });
        let found = evaluate(source, context.as_object().unwrap());
        match (found, expected) {
            (Ok(found), Ok(expected)) => assert_eq!(found, expected, "{source}"),
            (Err(found), Err(words)) => assert!(found.contains(words), "{source}: {found}"),
            (found, expected) => panic!("{source}: {found:?}, not {expected:?}"),
        }
    }

    #[test]
    fn values_keep_their_types() {
        for (source, value) in [
            ("inputs.n", json!(3)),
            ("inputs.n + 1 == 4", json!(true)),
            ("inputs.n / 2", json!(1.5)),
            ("inputs.none", json!(null)),
            ("inputs.list", json!([{ "x": 1 }, { "x": 2 }])),
            ("inputs.list|map(attribute='x')|sum", json!(3)),
            ("inputs.text|split(',')|join('-')|upper", json!("A-B")),
            ("inputs.missing|default('d')", json!("d")),
            ("'x' if inputs.missing is defined else 'y'", json!("y")),
            ("{'a': inputs.n}|tojson", json!("{\"a\":3}")),
            ("inputs.list[-1].x", json!(2)),
            ("inputs.text[0:1]", json!("a")),
            ("inputs.text is startingwith 'a'", json!(true)),
        ] {
            check(source, Ok(value));
        }
    }

    #[test]
    fn what_has_no_value_or_is_too_large_is_an_error() {
        for (source, words) in [
            ("inputs.missing", "no value"),
            ("inputs.missing.more", "undefined value"),
            ("[inputs.missing]", "a part of it has no value"),
            ("inputs.text|replace('', inputs.big)|replace('a', inputs.big)|replace('\"', inputs.big)", "larger"),
            ("inputs.big|split('')|join(inputs.big)", "larger"),
            ("inputs.big|tojson|tojson|tojson|tojson|tojson", "larger"),
            (
                "[inputs.big, inputs.big, inputs.big, inputs.big, inputs.big, inputs.big, inputs.big, inputs.big, inputs.big, inputs.big, inputs.big]",
                "larger",
            ),
            ("inputs.n / 0", "finite"),
            ("inputs.n // 0", ""),
            ("inputs.list|lower", ""),
            ("inputs.n + inputs.text", ""),
        ] {
            check(source, Err(words));
        }
    }
}
