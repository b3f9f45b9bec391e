//! The golden vectors. They never change: another encoding of the same object would be another id, and every pin would be lost.

use crate::samples::named;
use calls::object::{Meta, Tombstone};
use calls::{Id, Object, Unreadable, json};

const VALUES: &str = include_str!("../golden/values.txt");
const OBJECTS: &str = include_str!("../golden/objects.txt");
const REFUSED: &str = include_str!("../golden/refused.txt");

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub fn unhex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.chars().map(|c| c.to_digit(16).expect("a digit") as u8).collect();
    digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}

/// The lines of a file of vectors, without comments, in columns.
fn rows(text: &str) -> impl Iterator<Item = Vec<&str>> {
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.map(|line| line.split('\t').collect())
}

/// Every record of every vector, for tests that change them.
pub fn records() -> Vec<Vec<u8>> {
    let values = rows(VALUES).map(|row| unhex(row[2]));
    values.chain(rows(OBJECTS).map(|row| unhex(row[2]))).collect()
}

#[test]
fn a_value_has_the_bytes_and_the_id_it_always_had() {
    let mut report = String::new();
    for row in rows(VALUES) {
        let value = json::parse(row[0]).unwrap_or_else(|bad| panic!("{}: {bad}", row[0]));
        let mut records = Vec::new();
        let id = value.put(&mut records).unwrap();
        let record = &records.last().unwrap().1;
        let made = format!("{}\t{id}\t{}", row[0], hex(record));
        if made != row.join("\t") {
            report += &format!("{made}\n");
        }
    }
    assert!(report.is_empty(), "these differ from what is written:\n{report}");
}

#[test]
fn an_object_has_the_bytes_and_the_id_it_always_had() {
    let line = |name: &str, bytes: &[u8]| format!("{name}\t{}\t{}", Id::of(bytes), hex(bytes));
    let mut made: Vec<String> = named().iter().map(|(name, object)| line(name, &object.encode())).collect();
    let tombstone = Tombstone { reason: 7, message: "removed on request".into() };
    made.push(line("tombstone", &tombstone.encode()));
    made.push(line("meta", &Meta::CURRENT.encode()));
    let written: Vec<String> = rows(OBJECTS).map(|row| row.join("\t")).collect();
    assert_eq!(made, written, "\n{}\n", made.join("\n"));
}

#[test]
fn what_is_not_canonical_is_refused_with_code_type_and_detail() {
    let mut report = String::new();
    for row in rows(REFUSED) {
        let why = Object::decode(&unhex(row[1]));
        let made = match why {
            Err(Unreadable { code, record, detail }) => format!("{}\t{}\t{code}\t{record}\t{detail}", row[0], row[1]),
            Ok(object) => format!("{}\t{}\taccepted: {object:?}", row[0], row[1]),
        };
        if made != row.join("\t") {
            report += &format!("{made}\n");
        }
    }
    assert!(report.is_empty(), "these differ from what is written:\n{report}");
}

#[test]
fn a_tombstone_is_read_as_excised_and_tells_why_to_whom_asks_for_it() {
    let tombstone = Tombstone { reason: 7, message: "removed on request".into() };
    let why = Object::decode(&tombstone.encode()).unwrap_err();
    assert_eq!(why.to_string(), "invalid_payload: record_type=tombstone;detail=excised");
    assert_eq!(Tombstone::decode(&tombstone.encode()), Ok(tombstone));
    assert_eq!(Meta::decode(&Meta::CURRENT.encode()), Ok(Meta::CURRENT));
}
