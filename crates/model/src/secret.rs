//! Which parts of a secret's value are hidden in logs: the whole value, and each line of a value that has several, because
//! programs print files line by line. [`Masker`] hides them in the output of jobs and tools.

use crate::bug;
use serde_json::Value;

/// Shorter texts are not hidden: they would blank out ordinary words.
pub const SHORTEST_MASKED: usize = 6;

/// Every text to replace, without those that are too short. A line counts without the spaces around it, so that it is
/// found however it is indented.
pub fn masked(value: &str) -> impl Iterator<Item = &str> {
    let lines = value.lines().map(str::trim).filter(move |line| line.len() < value.len());
    std::iter::once(value).chain(lines).filter(|text| text.len() >= SHORTEST_MASKED)
}

/// What an owner should know when this value is stored; nothing when all of it is hidden.
pub fn note(name: &str, value: &str) -> Option<String> {
    if value.len() < SHORTEST_MASKED {
        return Some(format!(
            "{name} has fewer than {SHORTEST_MASKED} bytes: too short to be hidden in logs, it is shown as it is"
        ));
    }
    let mut lines = value.lines().map(str::trim).filter(|line| !line.is_empty());
    let short = if value.trim().contains('\n') {
        lines.by_ref().filter(|line| line.len() < SHORTEST_MASKED).count()
    } else {
        0
    };
    let (what, verb) = if short == 1 { ("line", "has") } else { ("lines", "have") };
    (short > 0).then(|| {
        format!(
            "{short} {what} of {name} {verb} fewer than {SHORTEST_MASKED} bytes: hidden in logs only where the whole value appears"
        )
    })
}

/// The text as it is, and as it may stand in a JSON string: with the escapes that are needed, with `\/`, and with ASCII only.
pub fn in_json(text: &str) -> Vec<String> {
    let quoted = Value::String(text.to_owned()).to_string();
    let escaped = &quoted[1..quoted.len() - 1];
    let mut forms = vec![text.to_owned(), escaped.to_owned(), escaped.replace('/', "\\/"), ascii(escaped)];
    forms.sort_unstable();
    forms.dedup();
    forms
}

/// As encoders write it that send ASCII only.
fn ascii(escaped: &str) -> String {
    let mut text = String::with_capacity(escaped.len());
    for character in escaped.chars() {
        if character.is_ascii() {
            text.push(character);
        } else {
            let mut units = [0; 2];
            character.encode_utf16(&mut units).iter().for_each(|unit| text.push_str(&format!("\\u{unit:04x}")));
        }
    }
    text
}

const MASK: &str = "***";

/// Hides secret values in a stream of bytes, wherever its pieces are cut. Holds back no more than could still become a secret.
#[derive(Debug, Clone, Default)]
pub struct Masker {
    /// By their first byte: a value of many lines must not slow down every byte of the output. Longest first, so that a
    /// secret inside a longer one never shows the longer one's rest.
    secrets: Vec<Vec<Vec<u8>>>,
    held: Vec<u8>,
    /// How many of the held bytes are already hidden by a mask that was written.
    covered: usize,
}

impl Masker {
    /// Hides what [`masked`] says of each value, also where a program prints it as JSON.
    pub fn new(values: &[String]) -> Masker {
        Masker::hiding(values.iter().flat_map(|value| masked(value)).flat_map(in_json).collect())
    }

    /// Hides each of these texts, but for those that are too short.
    pub fn hiding(texts: Vec<String>) -> Masker {
        let mut all: Vec<Vec<u8>> = texts.into_iter().map(String::into_bytes).collect();
        all.retain(|text| text.len() >= SHORTEST_MASKED);
        all.sort_by(|a, b| b.len().cmp(&a.len()).then(a.cmp(b)));
        all.dedup();
        if all.is_empty() {
            return Masker::default();
        }
        let mut secrets = vec![Vec::new(); 256];
        for secret in all {
            secrets[usize::from(secret[0])].push(secret);
        }
        Masker { secrets, ..Masker::default() }
    }

    pub fn feed(&mut self, bytes: &[u8], shown: &mut Vec<u8>) {
        if self.secrets.is_empty() {
            return shown.extend_from_slice(bytes);
        }
        self.held.extend_from_slice(bytes);
        self.show(shown, false);
    }

    /// Nothing follows: what was held back is no secret.
    pub fn finish(&mut self, shown: &mut Vec<u8>) {
        self.show(shown, true);
    }

    /// A whole text.
    pub fn text(&self, text: &str) -> String {
        let (mut masker, mut shown) = (self.clone(), Vec::with_capacity(text.len()));
        masker.feed(text.as_bytes(), &mut shown);
        masker.finish(&mut shown);
        // Secrets are UTF-8, so whole characters were replaced.
        String::from_utf8(shown).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
    }

    /// In strings, in keys, and in numbers that are a secret.
    pub fn value(&self, value: Value) -> Value {
        match value {
            Value::String(text) => Value::String(self.text(&text)),
            Value::Array(items) => Value::Array(items.into_iter().map(|item| self.value(item)).collect()),
            Value::Object(fields) => {
                Value::Object(fields.into_iter().map(|(key, item)| (self.text(&key), self.value(item))).collect())
            }
            Value::Number(number) if self.text(&number.to_string()).contains(MASK) => Value::String(MASK.to_owned()),
            other => other,
        }
    }

    fn show(&mut self, shown: &mut Vec<u8>, last: bool) {
        let bytes = std::mem::take(&mut self.held);
        let (mut at, mut hidden_to) = (0, self.covered);
        while at < bytes.len() {
            match self.match_at(&bytes[at..], last) {
                Match::Perhaps => break,
                Match::Secret(length) => {
                    if at >= hidden_to {
                        shown.extend_from_slice(MASK.as_bytes());
                    }
                    hidden_to = hidden_to.max(at + length);
                }
                Match::Plain => {}
            }
            if at >= hidden_to {
                shown.push(bytes[at]);
            }
            at += 1;
        }
        self.covered = hidden_to.saturating_sub(at);
        self.held = bytes[at..].to_vec();
    }

    fn match_at(&self, rest: &[u8], last: bool) -> Match {
        for secret in self.secrets.get(usize::from(rest[0])).into_iter().flatten() {
            if rest.starts_with(secret) {
                return Match::Secret(secret.len());
            }
            if !last && secret.starts_with(rest) && !bug!(mask_within_a_chunk) {
                return Match::Perhaps;
            }
        }
        Match::Plain
    }
}

enum Match {
    Plain,
    Secret(usize),
    /// The bytes end where a secret may go on.
    Perhaps,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_hidden_whole_and_line_by_line() {
        let table: [(&str, &[&str]); 6] = [
            ("open sesame", &["open sesame"]),
            ("short", &[]),
            ("", &[]),
            ("first line\nsecond line\n", &["first line\nsecond line\n", "first line", "second line"]),
            ("{\r\n  \"key\": \"abcdef\"\r\n}", &["{\r\n  \"key\": \"abcdef\"\r\n}", "\"key\": \"abcdef\""]),
            (" padded ", &[" padded ", "padded"]),
        ];
        for (value, parts) in table {
            assert_eq!(masked(value).collect::<Vec<_>>(), parts, "{value:?}");
        }
    }

    #[test]
    fn what_is_too_short_to_hide_is_told() {
        assert!(note("PIN", "1234").unwrap().contains("PIN has fewer than 6 bytes"));
        assert!(note("KEY", "{\n\"key\": 123456\n}").unwrap().starts_with("2 lines of KEY have"));
        assert!(note("KEY", "abcdef\nghi\nabcdef").unwrap().starts_with("1 line of KEY has"));
        for fine in ["123456", "first line\nsecond line\n", "open sesame\n"] {
            assert_eq!(note("KEY", fine), None, "{fine:?}");
        }
    }

    fn check(secrets: &[&str], text: &str, expected: &str) {
        let secrets: Vec<String> = secrets.iter().map(|s| s.to_string()).collect();
        for size in 1..=text.len() {
            let (mut masker, mut shown) = (Masker::new(&secrets), Vec::new());
            for piece in text.as_bytes().chunks(size) {
                masker.feed(piece, &mut shown);
            }
            masker.finish(&mut shown);
            assert_eq!(String::from_utf8_lossy(&shown), expected, "{text} in pieces of {size}");
        }
    }

    #[test]
    fn secrets_are_hidden_wherever_the_bytes_are_cut() {
        check(&["hunter22"], "pass hunter22!\nhunter2 hunter22", "pass ***!\nhunter2 ***");
        check(&["hunter22", "hunter2233"], "hunter2233 hunter22 hunter223", "*** *** ***3");
        check(&["password1", "word1234"], "xpassword1234x", "x***x");
        check(&["aaaaaa"], "aaaaaaaaa b", "*** b");
        check(&["short"], "short", "short");
        check(&[], "anything", "anything");
        check(&["abcabcabd"], "abcabcabcabd", "abc***");
    }

    #[test]
    fn each_line_of_a_value_is_hidden() {
        let key = "-----BEGIN-----\nMIIEvQIBADAN\n  Bgkqhkid==  \nab\n-----END-----\n";
        check(&[key], key, "***");
        check(&[key], "1 MIIEvQIBADAN\n2 Bgkqhkid==\n3 ab\n", "1 ***\n2 ***\n3 ab\n");
        check(&[key], "-----BEGIN-----\r\nMIIEvQIBADAN\r\n", "***\r\n***\r\n");
    }

    #[test]
    fn a_secret_is_hidden_in_what_a_program_prints_as_json() {
        let secret = "pa\"ss/wörd";
        for text in [r#"{"a": "pa\"ss/wörd"}"#, r#"{"a": "pa\"ss\/wörd"}"#, r#"{"a": "pa\"ss/w\u00f6rd"}"#] {
            check(&[secret], text, r#"{"a": "***"}"#);
        }
        let masker = Masker::new(&[secret.to_owned(), "1234567".to_owned()]);
        let value = serde_json::json!({ secret: [format!("is {secret}"), 1_234_567, 1, null] });
        assert_eq!(masker.value(value), serde_json::json!({ "***": ["is ***", "***", 1, null] }));
    }

    #[test]
    fn only_what_could_become_a_secret_is_held_back() {
        let (mut masker, mut shown) = (Masker::new(&["hunter22".to_owned()]), Vec::new());
        masker.feed(b"ready: hunt", &mut shown);
        assert_eq!(shown, b"ready: ");
    }
}
