//! Any bytes: refused, or the canonical encoding of what they are read as.
#![no_main]

use calls::Object;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(object) = Object::decode(bytes) {
        assert_eq!(object.encode(), bytes, "two spellings of one object");
        let reference = object.reference();
        assert_eq!(Object::read(reference, bytes).expect("its own id"), object);
        drop((object.references(), object.blob()));
    }
});
