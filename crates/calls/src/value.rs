//! A whole value in memory, with everything in it. Turns into datum records and back.

use crate::datum::{Datum, Element};
use crate::id::DatumId;
use crate::object::MAX_RECORD_BYTES;
use crate::read::{Fault, Read, Records, element};
use crate::scalar::{Bytes, Float, Text, TooLong};
use crate::uri::{BadUri, Uri};

/// Values inside of one another: as deep as a JSON document may be.
pub const MAX_DEPTH: usize = 128;
/// Values in one value. Shared elements are counted as often as they appear: a small dag of records may stand for a huge value.
pub const MAX_VALUES: usize = 1 << 22;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    Null,
    Bool(bool),
    Int(i64),
    Float(Float),
    Bytes(Bytes),
    String(Text),
    Uri(Uri),
    List(Vec<Value>),
    Set(Set),
    Map(Map),
}

/// Different values, ordered by their ids.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Set(Vec<(DatumId, Value)>);

/// Values by different keys, ordered by the ids of the keys.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Map(Vec<(DatumId, Value, Value)>);

/// What no value can be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadValue {
    #[error(transparent)]
    TooLong(#[from] TooLong),
    #[error(transparent)]
    Uri(#[from] BadUri),
    #[error("a set contains {} twice", crate::json::shown(.0))]
    ElementTwice(Value),
    #[error("a map has the key {} twice", crate::json::shown(.0))]
    KeyTwice(Value),
    #[error("values are nested deeper than {MAX_DEPTH}")]
    TooDeep,
    #[error("a list, set or map takes more than {MAX_RECORD_BYTES} bytes")]
    TooLarge,
}

impl Set {
    pub fn new(values: impl IntoIterator<Item = Value>) -> Result<Set, BadValue> {
        let with_id = |value: Value| Ok((value.id()?, value));
        let mut sorted: Vec<(DatumId, Value)> = values.into_iter().map(with_id).collect::<Result<_, BadValue>>()?;
        sorted.sort_by_key(|(id, _)| *id);
        match sorted.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            Some(twice) => Err(BadValue::ElementTwice(twice[0].1.clone())),
            None => Ok(Set(sorted)),
        }
    }
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Value> {
        self.0.iter().map(|(_, value)| value)
    }
}

impl Map {
    pub fn new(entries: impl IntoIterator<Item = (Value, Value)>) -> Result<Map, BadValue> {
        let with_id = |(key, value): (Value, Value)| Ok((key.id()?, key, value));
        let mut sorted: Vec<_> = entries.into_iter().map(with_id).collect::<Result<Vec<_>, BadValue>>()?;
        sorted.sort_by_key(|(id, ..)| *id);
        match sorted.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            Some(twice) => Err(BadValue::KeyTwice(twice[0].1.clone())),
            None => Ok(Map(sorted)),
        }
    }
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&Value, &Value)> {
        self.0.iter().map(|(_, key, value)| (key, value))
    }
    pub fn get(&self, key: &Value) -> Option<&Value> {
        self.iter().find_map(|(known, value)| (known == key).then_some(value))
    }
}

impl Value {
    pub fn text(text: &str) -> Result<Value, BadValue> {
        Ok(Value::String(Text::new(text)?))
    }
    pub fn bytes(bytes: impl Into<Vec<u8>>) -> Result<Value, BadValue> {
        Ok(Value::Bytes(Bytes::new(bytes)?))
    }
    pub fn set(values: impl IntoIterator<Item = Value>) -> Result<Value, BadValue> {
        Set::new(values).map(Value::Set)
    }
    pub fn map(entries: impl IntoIterator<Item = (Value, Value)>) -> Result<Value, BadValue> {
        Map::new(entries).map(Value::Map)
    }

    pub fn id(&self) -> Result<DatumId, BadValue> {
        Ok(self.datum(&mut Vec::new(), 0)?.id())
    }

    /// The records of this value, children first, and its id. The value itself is always a record.
    pub fn put(&self, records: &mut Records) -> Result<DatumId, BadValue> {
        let datum = self.datum(records, 0)?;
        let record = datum.record();
        let id = DatumId::of(&record);
        records.push((id.into(), record));
        Ok(id)
    }

    /// The value as it stands in another record, with the records it needs.
    pub fn element(&self, records: &mut Records) -> Result<Element, BadValue> {
        self.element_at(records, 0)
    }

    fn element_at(&self, records: &mut Records, depth: usize) -> Result<Element, BadValue> {
        let (element, own) = Element::of(self.datum(records, depth)?);
        if let Some((id, record)) = own {
            if record.len() > MAX_RECORD_BYTES {
                return Err(BadValue::TooLarge);
            }
            records.push((id.into(), record));
        }
        Ok(element)
    }

    fn datum(&self, records: &mut Records, depth: usize) -> Result<Datum, BadValue> {
        if depth >= MAX_DEPTH {
            return Err(BadValue::TooDeep);
        }
        let mut below = |value: &Value| value.element_at(records, depth + 1);
        Ok(match self {
            Value::Null => Datum::Null,
            Value::Bool(value) => Datum::Bool(*value),
            Value::Int(value) => Datum::Int(*value),
            Value::Float(value) => Datum::Float(*value),
            Value::Bytes(bytes) => Datum::Bytes(bytes.clone()),
            Value::String(text) => Datum::String(text.clone()),
            Value::Uri(uri) => Datum::Uri(uri.clone()),
            Value::List(values) => Datum::List(values.iter().map(below).collect::<Result<_, _>>()?),
            Value::Set(set) => Datum::Set(set.iter().map(below).collect::<Result<_, _>>()?),
            Value::Map(map) => {
                let entry = |(key, value)| Ok((below(key)?, below(value)?));
                Datum::Map(map.iter().map(entry).collect::<Result<_, BadValue>>()?)
            }
        })
    }

    /// Reads a value with everything below it.
    pub fn load<R: Read + ?Sized>(from: &mut R, id: DatumId) -> Result<Value, Fault<R::Error>> {
        let datum = crate::read::datum(from, id)?;
        Loader { from, left: MAX_VALUES }.value(datum, 0)
    }
    /// Reads the value that stands in another record.
    pub fn load_element<R: Read + ?Sized>(from: &mut R, of: &Element) -> Result<Value, Fault<R::Error>> {
        let datum = element(from, of)?;
        Loader { from, left: MAX_VALUES }.value(datum, 0)
    }
}

struct Loader<'r, R: ?Sized> {
    from: &'r mut R,
    left: usize,
}

impl<R: Read + ?Sized> Loader<'_, R> {
    fn value(&mut self, datum: Datum, depth: usize) -> Result<Value, Fault<R::Error>> {
        if depth >= MAX_DEPTH {
            return Err(Fault::TooLarge { what: "the depth of a value", limit: MAX_DEPTH });
        }
        self.left = self.left.checked_sub(1).ok_or(Fault::TooLarge { what: "a value", limit: MAX_VALUES })?;
        Ok(match datum {
            Datum::Null => Value::Null,
            Datum::Bool(value) => Value::Bool(value),
            Datum::Int(value) => Value::Int(value),
            Datum::Float(value) => Value::Float(value),
            Datum::Bytes(bytes) => Value::Bytes(bytes),
            Datum::String(text) => Value::String(text),
            Datum::Uri(uri) => Value::Uri(uri),
            Datum::List(elements) => Value::List(self.values(&elements, depth, |_, value| value)?),
            // The reader has checked their order.
            Datum::Set(elements) => Value::Set(Set(self.values(&elements, depth, |id, value| (id, value))?)),
            Datum::Map(entries) => {
                let mut map = Vec::new();
                for (key, value) in entries {
                    let id = key.id();
                    let key = self.below(&key, depth)?;
                    map.push((id, key, self.below(&value, depth)?));
                }
                Value::Map(Map(map))
            }
        })
    }

    fn below(&mut self, of: &Element, depth: usize) -> Result<Value, Fault<R::Error>> {
        let datum = element(self.from, of)?;
        self.value(datum, depth + 1)
    }

    fn values<T>(
        &mut self,
        elements: &[Element],
        depth: usize,
        made: impl Fn(DatumId, Value) -> T,
    ) -> Result<Vec<T>, Fault<R::Error>> {
        elements.iter().map(|of| Ok(made(of.id(), self.below(of, depth)?))).collect()
    }
}
