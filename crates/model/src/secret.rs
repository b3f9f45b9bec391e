//! Which parts of a secret's value are hidden in logs: the whole value, and each line of a value that has several, because
//! programs print files line by line. Never sees a log; the runner replaces, the server tells.

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
}
