//! What holds for every object: it reads back, in one spelling only, and only under its own id.

use crate::samples::{object, value};
use calls::{Code, Id, Kind, Memory, Object, Reference, Value, json};
use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn what_is_encoded_decodes_to_the_same(object in object()) {
        let bytes = object.encode();
        prop_assert_eq!(Object::decode(&bytes), Ok(object.clone()));
        prop_assert_eq!(Object::read(object.reference(), &bytes), Ok(object));
    }

    #[test]
    fn another_byte_is_refused_or_another_object(object in object(), at: prop::sample::Index, to: u8) {
        let bytes = object.encode();
        let mut changed = bytes.clone();
        changed[at.index(bytes.len())] = to;
        if changed != bytes {
            check_one_spelling(&object, &changed)?;
        }
    }

    #[test]
    fn a_byte_more_or_less_is_refused_or_another_object(object in object(), at: prop::sample::Index, byte: u8) {
        let bytes = object.encode();
        let (mut longer, mut shorter) = (bytes.clone(), bytes.clone());
        longer.insert(at.index(bytes.len() + 1), byte);
        shorter.remove(at.index(bytes.len()));
        check_one_spelling(&object, &longer)?;
        check_one_spelling(&object, &shorter)?;
        prop_assert!(Object::decode(&[&bytes[..], &[byte]].concat()).is_err(), "trailing bytes are refused");
        prop_assert!(Object::decode(&bytes[..at.index(bytes.len())]).is_err(), "a beginning is refused");
    }

    #[test]
    fn any_bytes_are_refused_or_canonical(head in 0usize..=12, rest in prop::collection::vec(any::<u8>(), 0..80)) {
        let bytes = [&[0x83, head as u8, 1][..], &rest].concat();
        if let Ok(object) = Object::decode(&bytes) {
            prop_assert_eq!(object.encode(), bytes);
        }
    }

    #[test]
    fn a_value_is_stored_and_loaded(value in value()) {
        let mut records = Vec::new();
        let id = value.put(&mut records).unwrap();
        prop_assert_eq!(value.id(), Ok(id));
        let mut memory = Memory::default();
        for (reference, bytes) in &records {
            let object = Object::read(*reference, bytes).unwrap();
            let known = object.references().into_iter().all(|below| memory.records.contains_key(&below));
            prop_assert!(known, "children come before parents");
            memory.add([(*reference, bytes.clone())]);
        }
        prop_assert_eq!(Value::load(&mut memory, id), Ok(value));
    }

    #[test]
    fn a_value_as_json_reads_back(value in value()) {
        prop_assert_eq!(json::parse(&json::to_json(&value).to_string()), Ok(value));
    }

    #[test]
    fn a_record_under_another_id_or_kind_is_refused(object in object(), other: [u8; 32]) {
        let bytes = object.encode();
        let misplaced = Reference { id: Id(other), ..object.reference() };
        prop_assert_eq!(Object::read(misplaced, &bytes).unwrap_err().detail, "id_mismatch");
        for kind in Kind::ALL.iter().filter(|kind| **kind != object.kind()) {
            let mistaken = Reference { kind: *kind, ..object.reference() };
            prop_assert_eq!(Object::read(mistaken, &bytes).unwrap_err().code, Code::InvalidKind);
        }
    }
}

fn check_one_spelling(object: &Object, changed: &[u8]) -> Result<(), TestCaseError> {
    if let Ok(other) = Object::decode(changed) {
        prop_assert_ne!(&other, object);
        prop_assert_eq!(other.encode(), changed);
    }
    Ok(())
}
