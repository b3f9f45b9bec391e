//! Values as JSON, for people. Integers are int, other numbers float. What JSON has no form for is an object with one key:
//! `{"$bytes": "<base64>"}`, `{"$uri": "…"}`, `{"$set": […]}`, `{"$map": [[key, value], …]}`, `{"$float": "nan" | "inf" | "-inf"}`.

use crate::scalar::Float;
use crate::uri::Uri;
use crate::value::{BadValue, Value};
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Value as Json, json};
use std::fmt;

/// A text that is not a value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadJson {
    #[error("not JSON: {0}")]
    Syntax(String),
    #[error("the integer {0} does not fit into 64 bits: write it as a string, or as a float")]
    Integer(String),
}

pub fn parse(text: &str) -> Result<Value, BadJson> {
    if let Some(number) = integers(text).find(|digits| digits.parse::<i64>().is_err()) {
        return Err(BadJson::Integer(number.to_owned()));
    }
    serde_json::from_str(text).map_err(|error| BadJson::Syntax(error.to_string()))
}

/// The first integer of a JSON text that the JSON library would round to a float, because it does not fit into 64 bits.
pub fn rounded(text: &str) -> Option<&str> {
    integers(text).find(|digits| digits.parse::<i64>().is_err() && digits.parse::<u64>().is_err())
}

/// The integers of a JSON text. The JSON library reads those that do not fit as floats, which would change them silently.
fn integers(text: &str) -> impl Iterator<Item = &str> {
    let bytes = text.as_bytes();
    let mut at = 0;
    std::iter::from_fn(move || {
        while at < bytes.len() {
            let start = at;
            match bytes[at] {
                b'"' => at = end_of_string(bytes, at),
                b'-' | b'0'..=b'9' => {
                    at += bytes[at..]
                        .iter()
                        .take_while(|c| matches!(c, b'0'..=b'9' | b'+' | b'-' | b'.' | b'e' | b'E'))
                        .count();
                    let number = &text[start..at];
                    if number.len() > 1 && !number.contains(['.', 'e', 'E']) {
                        return Some(number);
                    }
                }
                _ => at += 1,
            }
        }
        None
    })
}

fn end_of_string(bytes: &[u8], start: usize) -> usize {
    let mut at = start + 1;
    while at < bytes.len() && bytes[at] != b'"' {
        at += if bytes[at] == b'\\' { 2 } else { 1 };
    }
    (at + 1).min(bytes.len())
}

/// The form that [`parse`] reads back as the same value.
pub fn to_json(value: &Value) -> Json {
    match value {
        Value::Null => Json::Null,
        Value::Bool(value) => json!(value),
        Value::Int(value) => json!(value),
        Value::Float(value) => match value.get() {
            float if float.is_nan() => json!({"$float": "nan"}),
            float if float.is_infinite() => json!({"$float": if float > 0.0 { "inf" } else { "-inf" }}),
            float => json!(float),
        },
        Value::Bytes(bytes) => json!({"$bytes": BASE64.encode(bytes.as_slice())}),
        Value::String(text) => json!(text.as_str()),
        Value::Uri(uri) => json!({"$uri": uri.as_str()}),
        Value::List(values) => values.iter().map(to_json).collect(),
        Value::Set(set) => json!({"$set": set.iter().map(to_json).collect::<Json>()}),
        Value::Map(map) => {
            let texts: Option<Vec<(&str, &Value)>> = map.iter().map(|(key, value)| Some((word(key)?, value))).collect();
            // A single key with a dollar sign would be read as one of the forms above.
            match texts.filter(|texts| !matches!(texts[..], [(key, _)] if key.starts_with('$'))) {
                Some(texts) => {
                    Json::Object(texts.into_iter().map(|(key, value)| (key.into(), to_json(value))).collect())
                }
                None => {
                    let pair = |(key, value)| json!([to_json(key), to_json(value)]);
                    json!({"$map": map.iter().map(pair).collect::<Json>()})
                }
            }
        }
    }
}

fn word(key: &Value) -> Option<&str> {
    match key {
        Value::String(text) => Some(text.as_str()),
        _ => None,
    }
}

/// A value in one line, cut after 60 characters, for messages.
pub fn shown(value: &Value) -> String {
    let text = to_json(value).to_string();
    match text.char_indices().nth(60) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text,
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Value, D::Error> {
        d.deserialize_any(Values)
    }
}

struct Values;

impl<'de> Visitor<'de> for Values {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }
    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }
    fn visit_bool<E: Error>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }
    fn visit_i64<E: Error>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Int(value))
    }
    fn visit_u64<E: Error>(self, value: u64) -> Result<Value, E> {
        i64::try_from(value).map(Value::Int).map_err(|_| E::custom(BadJson::Integer(value.to_string())))
    }
    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        Ok(Value::Float(Float::new(value)))
    }
    fn visit_str<E: Error>(self, text: &str) -> Result<Value, E> {
        Value::text(text).map_err(E::custom)
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Value, A::Error> {
        let mut values = Vec::new();
        while let Some(value) = elements.next_element()? {
            values.push(value);
        }
        Ok(Value::List(values))
    }
    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut read: Vec<(String, Value)> = Vec::new();
        while let Some(entry) = entries.next_entry()? {
            read.push(entry);
        }
        match &mut read[..] {
            [(key, value)] if key.starts_with('$') => {
                let value = std::mem::replace(value, Value::Null);
                special(key, value).map_err(A::Error::custom)
            }
            _ => object(read).map_err(A::Error::custom),
        }
    }
}

fn object(entries: Vec<(String, Value)>) -> Result<Value, BadValue> {
    let entries: Vec<(Value, Value)> =
        entries.into_iter().map(|(key, value)| Ok((Value::text(&key)?, value))).collect::<Result<_, BadValue>>()?;
    Value::map(entries)
}

fn special(key: &str, value: Value) -> Result<Value, String> {
    let wrong = |expected: &str| Err(format!("`{key}` takes {expected}"));
    let said = |bad: BadValue| bad.to_string();
    match (key, value) {
        ("$bytes", Value::String(text)) => match BASE64.decode(text.as_str()) {
            Ok(bytes) => Value::bytes(bytes).map_err(said),
            Err(_) => wrong("base64 with padding"),
        },
        ("$uri", Value::String(text)) => Uri::new(text.as_str()).map(Value::Uri).map_err(|bad| bad.to_string()),
        ("$set", Value::List(values)) => Value::set(values).map_err(said),
        ("$map", Value::List(pairs)) => {
            let pair = |value| match value {
                Value::List(pair) => <[Value; 2]>::try_from(pair).map(|[key, value]| (key, value)).ok(),
                _ => None,
            };
            match pairs.into_iter().map(pair).collect::<Option<Vec<_>>>() {
                Some(entries) => Value::map(entries).map_err(said),
                None => wrong("a list of pairs [key, value]"),
            }
        }
        ("$float", Value::String(text)) => match text.as_str() {
            "nan" => Ok(Value::Float(Float::new(f64::NAN))),
            "inf" => Ok(Value::Float(Float::new(f64::INFINITY))),
            "-inf" => Ok(Value::Float(Float::new(f64::NEG_INFINITY))),
            _ => wrong("\"nan\", \"inf\" or \"-inf\""),
        },
        ("$bytes" | "$uri" | "$float", _) => wrong("a string"),
        ("$set" | "$map", _) => wrong("a list"),
        _ => Err(format!(
            "`{key}` is none of $bytes, $uri, $set, $map, $float; a map with this one key is {{\"$map\": [[\"{key}\", …]]}}"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_reads_back_as_it_was_shown() {
        for text in [
            "null",
            "[true,false]",
            "[0,-1,9223372036854775807,-9223372036854775808]",
            "[0.0,1.5,1e+300,100.0]",
            r#"{"a":1,"b":{"$bytes":"AAEC"}}"#,
            r#"{"$uri":"s3://bucket/key"}"#,
            r#"{"$set":[]}"#,
            r#"{"$map":[["$set",1]]}"#,
            r#"{"$map":[[1,2]]}"#,
            r#"[{"$float":"nan"},{"$float":"inf"},{"$float":"-inf"}]"#,
            r#""a 12345678901234567890 \" 99999999999999999999""#,
            r#"{"$a":1,"$b":2}"#,
        ] {
            let value = parse(text).unwrap();
            assert_eq!(to_json(&value).to_string(), text);
            assert_eq!(parse(&to_json(&value).to_string()), Ok(value));
        }
    }

    #[test]
    fn an_integer_that_would_be_rounded_is_found_wherever_it_stands() {
        for (text, found) in [
            ("18446744073709551616", Some("18446744073709551616")),
            (r#"{"a": [-99999999999999999999]}"#, Some("-99999999999999999999")),
            ("[18446744073709551615, -9223372036854775808, 1e20, 100000000000000000000.0, 0, -1]", None),
            (r#""99999999999999999999 \" 99999999999999999999""#, None),
            (r#"{"99999999999999999999": 1}"#, None),
        ] {
            assert_eq!(rounded(text), found, "{text}");
        }
    }

    #[test]
    fn what_is_no_value_is_refused_with_its_fix() {
        for (text, said) in [
            ("9223372036854775808", "does not fit into 64 bits"),
            ("[1, -99999999999999999999]", "does not fit into 64 bits"),
            (r#"{"$bytes": "A"}"#, "base64"),
            (r#"{"$uri": "HTTP://x"}"#, "scheme in lower case"),
            (r#"{"$uri": "dml:x"}"#, "reserved"),
            (r#"{"$set": [1, 1]}"#, "contains 1 twice"),
            (r#"{"a": 1, "a": 2}"#, r#"has the key "a" twice"#),
            ("{\"e\u{301}\": 1, \"\u{e9}\": 2}", "twice"),
            (r#"{"$map": [[1]]}"#, "pairs"),
            (r#"{"$what": 1}"#, "none of"),
            ("[1,", "not JSON"),
            ("1 2", "not JSON"),
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains(said), "{text}: {error}");
        }
    }
}
