//! Values as records: one datum per record, its elements inside it if they are small and named by id if they are not.
//! A whole value in memory is a [`crate::value::Value`].

use crate::cbor::{Next, Reader, Writer};
use crate::id::{DatumId, Id};
use crate::object::Kind;
use crate::scalar::{Bytes, Float, Text};
use crate::unreadable::{Flaw, bounds, kind, payload};
use crate::uri::Uri;

/// An element whose encoding is not longer than this is written in its place; a longer one is a record of its own.
pub const INLINE_BYTES: usize = 32;
/// Each level of values inside of one another takes three bytes, so no inlined one is deeper.
const MAX_INLINE_DEPTH: usize = INLINE_BYTES / 3 + 1;

const NULL: i64 = 1;
const BOOL: i64 = 2;
const INT: i64 = 3;
const FLOAT: i64 = 4;
const BYTES: i64 = 5;
const STRING: i64 = 6;
const URI: i64 = 7;
const LIST: i64 = 8;
const SET: i64 = 9;
const MAP: i64 = 10;

/// The content of one datum record. The elements of sets and the keys of maps are in the order of their ids.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Datum {
    Null,
    Bool(bool),
    Int(i64),
    Float(Float),
    Bytes(Bytes),
    String(Text),
    Uri(Uri),
    List(Vec<Element>),
    Set(Vec<Element>),
    Map(Vec<(Element, Element)>),
}

/// A datum inside of another record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Element {
    Inline(Datum),
    Id(DatumId),
}

impl Element {
    /// How a datum stands in another record, and its own record if it does not stand there whole.
    pub fn of(datum: Datum) -> (Element, Option<(DatumId, Vec<u8>)>) {
        let record = datum.record();
        if record.len() - Kind::HEADER_BYTES <= INLINE_BYTES {
            return (Element::Inline(datum), None);
        }
        let id = DatumId::of(&record);
        (Element::Id(id), Some((id, record)))
    }

    pub fn id(&self) -> DatumId {
        match self {
            Element::Inline(datum) => datum.id(),
            Element::Id(id) => *id,
        }
    }

    pub(crate) fn write(&self, to: &mut Writer) {
        match self {
            Element::Inline(datum) => datum.write(to),
            Element::Id(id) => to.bytes(&id.0.0),
        }
    }

    pub(crate) fn read(from: &mut Reader) -> Result<Element, Flaw> {
        Element::read_at(from, 0).map(|(element, _)| element)
    }

    /// The element, and the id by which sets and maps are ordered.
    fn read_with_id(from: &mut Reader, depth: usize) -> Result<(Element, DatumId), Flaw> {
        let (element, body) = Element::read_at(from, depth)?;
        let id = match &element {
            Element::Id(id) => *id,
            Element::Inline(_) => DatumId::of(&Kind::Datum.record(body)),
        };
        Ok((element, id))
    }

    fn read_at<'a>(from: &mut Reader<'a>, depth: usize) -> Result<(Element, &'a [u8]), Flaw> {
        let start = from.position();
        let element = match from.next()? {
            Next::Bytes => Element::Id(DatumId(read_id(from)?)),
            Next::Array if depth < MAX_INLINE_DEPTH => Element::Inline(Datum::read_at(from, depth + 1)?),
            Next::Array => return Err(payload("element_not_by_id")),
            _ => return Err(payload("not_an_element")),
        };
        let body = from.since(start);
        match element {
            Element::Inline(_) if body.len() > INLINE_BYTES => Err(payload("element_not_by_id")),
            element => Ok((element, body)),
        }
    }
}

pub(crate) fn read_id(from: &mut Reader) -> Result<Id, Flaw> {
    from.bytes()?.try_into().map(Id).map_err(|_| bounds("id_not_32_bytes"))
}

impl Datum {
    pub fn record(&self) -> Vec<u8> {
        let mut writer = Kind::Datum.writer();
        self.write(&mut writer);
        writer.0
    }
    pub fn id(&self) -> DatumId {
        DatumId::of(&self.record())
    }

    /// The elements, keys and values that are records of their own.
    pub fn references(&self) -> Vec<DatumId> {
        let by_id = |element: &Element| match element {
            Element::Id(id) => Some(*id),
            // Too small to hold an id.
            Element::Inline(_) => None,
        };
        match self {
            Datum::List(elements) | Datum::Set(elements) => elements.iter().filter_map(by_id).collect(),
            Datum::Map(entries) => entries.iter().flat_map(|(key, value)| [key, value]).filter_map(by_id).collect(),
            _ => Vec::new(),
        }
    }

    /// `[kind, payload]`.
    pub(crate) fn write(&self, to: &mut Writer) {
        let head = |to: &mut Writer, kind| {
            to.array(if kind == NULL { 1 } else { 2 });
            to.int(kind);
        };
        match self {
            Datum::Null => head(to, NULL),
            Datum::Bool(value) => {
                head(to, BOOL);
                to.bool(*value);
            }
            Datum::Int(value) => {
                head(to, INT);
                to.int(*value);
            }
            Datum::Float(value) => {
                head(to, FLOAT);
                to.float(value.get());
            }
            Datum::Bytes(bytes) => {
                head(to, BYTES);
                to.bytes(bytes.as_slice());
            }
            Datum::String(text) => {
                head(to, STRING);
                to.text(text.as_str());
            }
            Datum::Uri(uri) => {
                head(to, URI);
                to.text(uri.as_str());
            }
            Datum::List(elements) | Datum::Set(elements) => {
                head(to, if matches!(self, Datum::List(_)) { LIST } else { SET });
                to.array(elements.len());
                elements.iter().for_each(|element| element.write(to));
            }
            Datum::Map(entries) => {
                head(to, MAP);
                to.array(2 * entries.len());
                for (key, value) in entries {
                    key.write(to);
                    value.write(to);
                }
            }
        }
    }

    pub(crate) fn read(from: &mut Reader) -> Result<Datum, Flaw> {
        Datum::read_at(from, 0)
    }

    fn read_at(from: &mut Reader, depth: usize) -> Result<Datum, Flaw> {
        let fields = from.array()?;
        if fields == 0 {
            return Err(bounds("wrong_field_count"));
        }
        let number = from.int()?;
        if !(NULL..=MAP).contains(&number) {
            return Err(kind("datum_kind_unknown"));
        }
        if fields != if number == NULL { 1 } else { 2 } {
            return Err(bounds("wrong_field_count"));
        }
        Ok(match number {
            NULL => Datum::Null,
            BOOL => Datum::Bool(from.bool()?),
            INT => Datum::Int(from.int()?),
            FLOAT => Datum::Float(Float::new(from.float()?)),
            BYTES => Datum::Bytes(Bytes::new(from.bytes()?).map_err(|_| bounds("not_a_blob"))?),
            STRING => Datum::String(Text::new(from.text()?).map_err(|_| bounds("string_too_long"))?),
            URI => Datum::Uri(Uri::new(from.text()?).map_err(|bad| payload(bad.detail()))?),
            LIST => Datum::List(read_list(from, depth)?),
            SET => Datum::Set(read_set(from, depth)?),
            _ => Datum::Map(read_map(from, depth)?),
        })
    }
}

fn read_list(from: &mut Reader, depth: usize) -> Result<Vec<Element>, Flaw> {
    (0..from.array()?).map(|_| Element::read_at(from, depth).map(|(element, _)| element)).collect()
}

fn read_set(from: &mut Reader, depth: usize) -> Result<Vec<Element>, Flaw> {
    let mut last = None;
    let mut elements = Vec::new();
    for _ in 0..from.array()? {
        let (element, id) = Element::read_with_id(from, depth)?;
        if last.replace(id) >= Some(id) {
            return Err(payload("set_not_strictly_sorted"));
        }
        elements.push(element);
    }
    Ok(elements)
}

fn read_map(from: &mut Reader, depth: usize) -> Result<Vec<(Element, Element)>, Flaw> {
    let items = from.array()?;
    if items % 2 != 0 {
        return Err(bounds("map_count_mismatch"));
    }
    let mut last = None;
    let mut entries = Vec::new();
    for _ in 0..items / 2 {
        let (key, id) = Element::read_with_id(from, depth)?;
        if last.replace(id) >= Some(id) {
            return Err(payload("map_keys_not_strictly_sorted"));
        }
        entries.push((key, Element::read_at(from, depth)?.0));
    }
    Ok(entries)
}
