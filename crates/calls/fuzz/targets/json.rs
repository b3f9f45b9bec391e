//! Any text: refused, or a value that has an id, a set of records and a JSON form which is read as the same value.
#![no_main]

use calls::{Memory, Value, json};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let Ok(value) = json::parse(text) else { return };
    let shown = json::to_json(&value).to_string();
    assert_eq!(json::parse(&shown).as_ref(), Ok(&value), "{shown}");
    let mut records = Vec::new();
    if let Ok(id) = value.put(&mut records) {
        let mut memory = Memory::default();
        memory.add(records);
        assert_eq!(Value::load(&mut memory, id).as_ref(), Ok(&value), "{shown}");
    }
});
