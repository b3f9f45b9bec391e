//! Decodes JSON strictly: a type with named fields accepts only an object. (serde's derived types would also accept an array of
//! the fields' values in order, which the API description does not contain.)

use serde::de::value::{MapDeserializer, SeqDeserializer};
use serde::de::{Deserializer, Error as _, IntoDeserializer, Unexpected, Visitor};
use serde::forward_to_deserialize_any;
use serde_json::{Error, Value};

pub(crate) struct Exact(pub(crate) Value);

impl<'de> Deserializer<'de> for Exact {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.0 {
            Value::Array(all) => {
                let mut all = SeqDeserializer::new(all.into_iter().map(Exact));
                let read = visitor.visit_seq(&mut all)?;
                all.end().map(|()| read)
            }
            Value::Object(all) => {
                let mut all = MapDeserializer::new(all.into_iter().map(|(name, value)| (name, Exact(value))));
                let read = visitor.visit_map(&mut all)?;
                all.end().map(|()| read)
            }
            plain => plain.deserialize_any(visitor),
        }
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        match self.0 {
            Value::Array(_) => Err(Error::invalid_type(Unexpected::Seq, &visitor)),
            _ => self.deserialize_any(visitor),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.0 {
            Value::Null => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, _: &'static str, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.0.deserialize_enum(name, variants, visitor)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct seq tuple
        tuple_struct map identifier ignored_any
    }
}

impl IntoDeserializer<'_, Error> for Exact {
    type Deserializer = Exact;
    fn into_deserializer(self) -> Exact {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize as _;
    use serde_json::json;
    use wire::api::Submit;

    #[test]
    fn a_list_is_no_object_at_any_depth() {
        let table = [
            (json!({ "resources": { "cpu_milli": 1 } }), true),
            (json!({ "resources": [1, 2] }), false),
            (json!({ "retry": null, "argv": ["a"], "env": { "A": "b" }, "max_duration_ms": 5, "start": true }), true),
            (json!({ "retry": { "max_attempts": 1, "on_events": ["error"] } }), true),
            (json!({ "retry": [1, ["error"], null] }), false),
            (json!([]), false),
            (json!({ "argv": { "0": "a" } }), false),
        ];
        for (value, good) in table {
            assert_eq!(Submit::deserialize(Exact(value.clone())).is_ok(), good, "{value}");
        }
    }
}
