//! Values across several records: what is inlined, what is refused, and what is bounded.

use calls::datum::{Datum, Element, INLINE_BYTES};
use calls::read::element;
use calls::scalar::{Float, MAX_BYTES};
use calls::uri::Blob;
use calls::{Code, DatumId, Fault, Memory, Object, Reference, Value, json};

fn put(memory: &mut Memory, value: &Value) -> DatumId {
    let mut records = Vec::new();
    let id = value.put(&mut records).unwrap();
    memory.add(records);
    id
}

#[test]
fn an_element_of_32_bytes_is_inlined_and_one_of_33_is_not() {
    // Kind and length take four bytes.
    for (length, inlined) in [(28, true), (29, false)] {
        let element = Value::bytes(vec![7; length]).unwrap().element(&mut Vec::new()).unwrap();
        assert_eq!(matches!(element, Element::Inline(_)), inlined, "{length}");
    }
    assert_eq!(INLINE_BYTES, 32);
}

#[test]
fn what_should_have_been_inlined_is_refused_when_it_is_looked_up() {
    let mut memory = Memory::default();
    let small = put(&mut memory, &Value::Int(1));
    let list = Object::Datum(Datum::List(vec![Element::Id(small)]));
    let Reference { id, .. } = memory.put(&list);
    let fault = Value::load(&mut memory, DatumId(id)).unwrap_err();
    assert!(matches!(fault, Fault::Unreadable { why, .. } if why.detail == "element_not_inlined"), "{fault}");
    assert!(element(&mut memory, &Element::Inline(Datum::Null)).is_ok());
}

#[test]
fn a_missing_element_and_a_flawed_one_are_told_apart() {
    let mut memory = Memory::default();
    let long = Value::text("a text that is longer than thirty-two bytes").unwrap();
    let id = put(&mut memory, &Value::List(vec![long.clone()]));
    let below = Reference::from(long.id().unwrap());
    let bytes = memory.records.remove(&below).unwrap();
    let fault = Value::load(&mut memory, id).unwrap_err();
    assert_eq!((fault.may_pass(), fault), (true, Fault::Missing(below)));
    memory.records.insert(below, bytes[..20].to_vec());
    let fault = Value::load(&mut memory, id).unwrap_err();
    assert!(!fault.may_pass(), "{fault}");
    assert_eq!(fault.to_string(), format!("{below}: invalid_bounds: record_type=datum;detail=too_short"));
}

#[test]
fn a_small_dag_of_records_that_stands_for_a_huge_value_is_refused() {
    let mut memory = Memory::default();
    let mut id = put(&mut memory, &Value::text("a text that is longer than thirty-two bytes").unwrap());
    for _ in 0..40 {
        let twice = Object::Datum(Datum::List(vec![Element::Id(id), Element::Id(id)]));
        id = DatumId(memory.put(&twice).id);
    }
    assert!(matches!(Value::load(&mut memory, id), Err(Fault::TooLarge { what: "a value", .. })));
}

#[test]
fn depth_is_bounded_both_ways() {
    let mut deep = Value::Null;
    for _ in 0..127 {
        deep = Value::List(vec![deep]);
    }
    let mut memory = Memory::default();
    let id = put(&mut memory, &deep);
    assert_eq!(Value::load(&mut memory, id), Ok(deep.clone()));
    assert!(Value::List(vec![deep]).put(&mut Vec::new()).is_err());
}

#[test]
fn bytes_above_one_mebibyte_are_blobs() {
    assert!(Value::bytes(vec![0; MAX_BYTES]).is_ok());
    let refused = Value::bytes(vec![0; MAX_BYTES + 1]).unwrap_err().to_string();
    assert!(refused.contains("as a blob"), "{refused}");
    let mut record = vec![0x83, 2, 1, 0x82, 5, 0x5a];
    record.extend((MAX_BYTES as u32 + 1).to_be_bytes());
    record.resize(record.len() + MAX_BYTES + 1, 0);
    let why = Object::decode(&record).unwrap_err();
    assert_eq!((why.code, why.detail), (Code::InvalidBounds, "not_a_blob"));
    let blob = Blob::of(&vec![0; MAX_BYTES + 1]);
    assert_eq!(Object::Datum(Datum::Uri(blob.uri())).blob(), Some(blob));
}

#[test]
fn equal_values_have_one_id_however_they_were_written() {
    let same = [
        (r#"{"a": 1, "b": 2}"#, r#"{"b": 2, "a": 1}"#),
        (r#"{"$set": [1, 2, 3]}"#, r#"{"$set": [3, 1, 2]}"#),
        ("\"e\u{301}\"", "\"\u{e9}\""),
        ("-0.0", "0.0"),
        ("100.0", "1e2"),
    ];
    for (left, right) in same {
        let id = |text| json::parse(text).unwrap().id().unwrap();
        assert_eq!(id(left), id(right), "{left} {right}");
    }
    let all = ["1", "1.0", "true", "\"1\"", "[1]", r#"{"$set":[1]}"#, r#"{"$bytes":"AQ=="}"#, "null", "[]", "{}"];
    let ids: std::collections::BTreeSet<_> = all.iter().map(|text| json::parse(text).unwrap().id().unwrap()).collect();
    assert_eq!(ids.len(), all.len());
    assert_eq!(Value::Float(Float::new(-f64::NAN)).id(), Value::Float(Float::new(f64::NAN)).id());
}
