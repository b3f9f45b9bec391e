//! Any text as a URI, a function, a name, a ref and an id: refused, or it is shown as it was written.
#![no_main]

use calls::Id;
use calls::function::Function;
use calls::name::Name;
use calls::refs::RefName;
use calls::uri::Uri;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    if let Ok(uri) = Uri::new(text) {
        assert_eq!(uri.as_str(), text);
        assert!(uri.blob().is_none_or(|blob| blob.uri() == uri));
    }
    if let Ok(function) = Function::parse(text) {
        assert_eq!(function.uri().as_str(), text);
        assert!(!function.adapter().contains(['/', '.']), "an adapter is a name, not a path");
    }
    if let Ok(name) = Name::new(text) {
        assert_eq!(Name::decoded(&name.encoded()), Some(name));
    }
    if let Ok(name) = text.parse::<RefName>() {
        assert_eq!(name.to_string().parse::<RefName>().as_ref(), Ok(&name));
    }
    if let Ok(id) = text.parse::<Id>() {
        assert_eq!(id.to_string(), text);
    }
});
