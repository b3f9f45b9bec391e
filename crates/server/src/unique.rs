//! Reads JSON in which no object has a key twice. Parsers disagree about which of two values counts, so that a proxy or an auditor could
//! see another request than the one that is carried out.

use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::map::Entry;
use serde_json::{Error, Map, Number, Value};

/// Why a text was not read.
#[derive(Debug)]
pub(crate) enum Unread {
    /// The path of the key that is there twice.
    Twice(String),
    Json(Error),
}

/// Costs what reading without this check costs: a key is looked for when it is inserted.
pub(crate) fn parse(text: &[u8]) -> Result<Value, Unread> {
    let mut reader = serde_json::Deserializer::from_slice(text);
    let mut twice = Vec::new();
    let read = Unique(&mut twice).deserialize(&mut reader).and_then(|value| reader.end().map(|()| value));
    twice.reverse();
    match read {
        Err(_) if !twice.is_empty() => Err(Unread::Twice(twice.join("."))),
        read => read.map_err(Unread::Json),
    }
}

/// The path of a key that was met twice, its last part first: each level adds its own on the way out of the failed parse.
struct Unique<'a>(&'a mut Vec<String>);

impl<'de> DeserializeSeed<'de> for Unique<'_> {
    type Value = Value;
    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> Result<Value, D::Error> {
        reader.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Unique<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a JSON value")
    }
    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }
    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }
    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }
    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }
    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Number::from_f64(value).map_or(Value::Null, Value::Number))
    }
    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_owned()))
    }
    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(Value::String(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<Value, A::Error> {
        let mut all = Vec::new();
        loop {
            match from.next_element_seed(Unique(&mut *self.0)) {
                Ok(Some(value)) => all.push(value),
                Ok(None) => return Ok(Value::Array(all)),
                Err(error) => return Err(self.within(all.len().to_string(), error)),
            }
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut from: A) -> Result<Value, A::Error> {
        let mut all = Map::new();
        while let Some(key) = from.next_key::<String>()? {
            match all.entry(key) {
                Entry::Occupied(there) => {
                    self.0.push(there.key().replace('\0', "\u{fffd}"));
                    return Err(A::Error::custom("a key is there twice"));
                }
                Entry::Vacant(free) => match from.next_value_seed(Unique(&mut *self.0)) {
                    Ok(value) => drop(free.insert(value)),
                    Err(error) => {
                        let key = free.key().clone();
                        return Err(self.within(key, error));
                    }
                },
            }
        }
        Ok(Value::Object(all))
    }
}

impl Unique<'_> {
    fn within<E>(self, part: String, error: E) -> E {
        if !self.0.is_empty() {
            self.0.push(part);
        }
        error
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_that_is_there_twice_is_named_by_its_path() {
        for (text, path) in [
            (r#"{"a":1,"a":1}"#, "a"),
            (r#"{"a":1,"b":2,"\u0061":3}"#, "a"),
            (r#"{"env":{"A":"x","B":"y","A":"z"}}"#, "env.A"),
            (r#"{"list":[{},{"x":[[1,{"k":0,"k":0}]]}]}"#, "list.1.x.0.1.k"),
            (r#"{"a":{"b":1},"a":{"c":2}}"#, "a"),
            (r#"{"":1,"":2}"#, ""),
        ] {
            assert!(matches!(parse(text.as_bytes()), Err(Unread::Twice(found)) if found == path), "{text}");
        }
    }

    #[test]
    fn everything_else_is_read_as_serde_json_reads_it() {
        let deep = format!("{}{}", "[".repeat(1000), "]".repeat(1000));
        for text in [
            r#"{"a":{"a":{"a":[]}},"b":[{"a":1},{"a":2}]}"#,
            r#"[null,true,-1,0,18446744073709551615,1.5,-0.0,1e300,"\u00e4\n"]"#,
            "",
            "{",
            r#"{"a":1,}"#,
            r#"{"a":1} x"#,
            r#"{"a":1e999}"#,
            &deep,
        ] {
            let (ours, theirs) = (parse(text.as_bytes()), serde_json::from_slice::<Value>(text.as_bytes()));
            match (ours, theirs) {
                (Ok(ours), Ok(theirs)) => assert_eq!(ours, theirs, "{text}"),
                (Err(Unread::Json(ours)), Err(theirs)) => assert_eq!(ours.to_string(), theirs.to_string(), "{text}"),
                other => panic!("{text}: {other:?}"),
            }
        }
    }
}
