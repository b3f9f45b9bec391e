//! Hides the values of secrets in what a tool hands back: outputs, errors and logs. The far side may have escaped or encoded
//! a value before it sent it back, so the usual encodings are hidden too.

use crate::tool::{ToolAnswer, ToolFailure, ToolLog};
use base64::Engine;
use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD};
use model::secret::{Masker, in_json, masked};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// What `encodeURIComponent` escapes, and what RFC 3986 says.
const COMPONENT: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'_')
    .remove(b'.')
    .remove(b'~')
    .remove(b'!')
    .remove(b'*')
    .remove(b'\'')
    .remove(b'(')
    .remove(b')');
const UNRESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// Hides the secrets of one call.
#[derive(Debug, Clone)]
pub struct Mask(Masker);

impl Mask {
    pub fn new(secrets: &BTreeMap<String, String>) -> Mask {
        let parts = secrets.values().flat_map(|value| masked(value));
        Mask(Masker::hiding(parts.flat_map(forms).collect()))
    }

    pub fn text(&self, text: &str) -> String {
        self.0.text(text)
    }

    pub fn value(&self, value: Value) -> Value {
        self.0.value(value)
    }

    pub fn result(&self, result: Result<ToolAnswer, ToolFailure>) -> Result<ToolAnswer, ToolFailure> {
        match result {
            Ok(answer) => Ok(ToolAnswer { output: self.value(answer.output), usage: answer.usage }),
            Err(mut failed) => {
                let error = &mut failed.failure.error;
                error.message = self.text(&error.message);
                error.cause = error.cause.as_deref().map(|cause| self.text(cause));
                Err(failed)
            }
        }
    }

    pub fn log<'a>(&self, log: &'a dyn ToolLog) -> MaskedLog<'a> {
        MaskedLog { log, masker: Mutex::new(self.0.clone()) }
    }
}

/// Writes to a step's log without its secrets, however its text is cut. What was held back is written when this is dropped.
pub struct MaskedLog<'a> {
    log: &'a dyn ToolLog,
    masker: Mutex<Masker>,
}

impl MaskedLog<'_> {
    fn show(&self, with: impl FnOnce(&mut Masker, &mut Vec<u8>)) {
        let mut shown = Vec::new();
        // Held while the text is written, so that two writers' texts keep their order.
        let mut masker = self.masker.lock().unwrap_or_else(PoisonError::into_inner);
        with(&mut masker, &mut shown);
        if !shown.is_empty() {
            self.log.write(&shown);
        }
    }
}

impl ToolLog for MaskedLog<'_> {
    fn write(&self, text: &[u8]) {
        self.show(|masker, shown| masker.feed(text, shown));
    }
}

impl Drop for MaskedLog<'_> {
    fn drop(&mut self) {
        self.show(|masker, shown| masker.finish(shown));
    }
}

/// The text as it is, percent-encoded, escaped in JSON, and in base64.
fn forms(text: &str) -> Vec<String> {
    let mut forms = vec![text.to_owned()];
    for set in [NON_ALPHANUMERIC, COMPONENT, UNRESERVED] {
        forms.push(utf8_percent_encode(text, set).to_string());
    }
    forms.push(url::form_urlencoded::byte_serialize(text.as_bytes()).collect());
    let lower: Vec<String> = forms[1..].iter().map(|form| lower_hex(form)).collect();
    forms.extend(lower);
    forms.extend(in_json(text));
    for engine in [STANDARD_NO_PAD, URL_SAFE_NO_PAD] {
        forms.extend((0..3).flat_map(|offset| base64_at(&engine, text, offset)));
    }
    forms.sort_unstable();
    forms.dedup();
    forms
}

fn lower_hex(encoded: &str) -> String {
    let mut bytes = encoded.as_bytes().to_vec();
    let escapes: Vec<usize> = encoded.match_indices('%').map(|(at, _)| at).collect();
    for at in escapes {
        bytes[at + 1..at + 3].make_ascii_lowercase();
    }
    String::from_utf8(bytes).unwrap_or_default()
}

/// The digits that this text has in base64 when `offset` bytes (modulo 3) stand before it, so that it is found in `user:password` of
/// basic authentication: up to its end, and without a last digit that depends on what follows.
fn base64_at(engine: &impl Engine, text: &str, offset: usize) -> [String; 2] {
    let mut bytes = vec![0; offset];
    bytes.extend_from_slice(text.as_bytes());
    let digits = engine.encode(&bytes);
    let from = (offset * 8).div_ceil(6).min(digits.len());
    let to = (bytes.len() * 8 / 6).max(from);
    [digits[from..].to_owned(), digits[from..to].to_owned()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use base64::engine::general_purpose::{STANDARD, URL_SAFE};
    use serde_json::json;

    const SECRET: &str = "p\u{e4}ss/w\"rd +1";

    fn mask(value: &str) -> Mask {
        Mask::new(&BTreeMap::from([("KEY".to_owned(), value.to_owned())]))
    }

    #[test]
    fn a_secret_is_hidden_in_every_usual_encoding() {
        let encoded = [
            SECRET.to_owned(),
            "p%C3%A4ss%2Fw%22rd%20%2B1".to_owned(),
            "p%c3%a4ss%2fw%22rd%20%2b1".to_owned(),
            "p%C3%A4ss%2Fw%22rd+%2B1".to_owned(),
            "p\u{e4}ss/w\\\"rd +1".to_owned(),
            r#"p\u00e4ss/w\"rd +1"#.to_owned(),
        ];
        for text in encoded {
            assert_eq!(mask(SECRET).text(&format!("a {text} b")), "a *** b", "{text}");
        }
    }

    #[test]
    fn base64_of_a_text_that_contains_it_shows_none_of_it() {
        for user in ["", "a", "ab", "abc", "someone"] {
            for tail in ["", "1", "12"] {
                let plain = format!("{user}:{SECRET}{tail}");
                for text in [STANDARD.encode(&plain), URL_SAFE.encode(&plain)] {
                    let shown = mask(SECRET).text(&text);
                    assert!(shown.contains("***") && shown.len() <= text.len() - SECRET.len(), "{text} shows {shown}");
                }
            }
        }
    }

    #[test]
    fn json_is_masked_in_strings_keys_and_numbers() {
        let masked = mask("12345678").value(json!({"a": ["x12345678y", 12345678, 1, null], "12345678": {"b": true}}));
        assert_eq!(masked, json!({"a": ["x***y", "***", 1, null], "***": {"b": true}}));
    }

    #[test]
    fn a_log_is_masked_across_its_pieces() {
        #[derive(Default)]
        struct Kept(Mutex<Vec<u8>>);
        impl ToolLog for Kept {
            fn write(&self, text: &[u8]) {
                self.0.lock().unwrap().extend_from_slice(text);
            }
        }
        for size in 1..20 {
            let kept = Kept::default();
            let log = mask("hunter22").log(&kept);
            "say hunter22 and aHVudGVyMjI= hunt".as_bytes().chunks(size).for_each(|piece| log.write(piece));
            drop(log);
            assert_eq!(String::from_utf8_lossy(&kept.0.lock().unwrap()), "say *** and ***= hunt", "pieces of {size}");
        }
    }
}
