//! How things look to a person: tables, times, sizes, colours. Knows no noun; colour only on a terminal.

mod table;
mod when;
mod wrap;

pub use crate::say::Colour;
pub use table::Table;
pub use when::{ago, clock, midnight, now_ms, until};
pub use wrap::{columns, columns_err, rows, wrapped, wrapped_err};

use crate::complaint::{Complaint, Done};
use crate::say::{self, painted};
use serde::Serialize;
use std::io::IsTerminal as _;

/// One JSON document on stdout and nothing else.
pub fn json<T: Serialize + ?Sized>(value: &T) -> Done {
    let text = serde_json::to_string_pretty(value).map_err(|error| Complaint::refused(error.to_string()))?;
    say::json(&text);
    Ok(0)
}

/// One JSON document on one line, for listings without an end.
pub fn json_line<T: Serialize + ?Sized>(value: &T) -> Done {
    let text = serde_json::to_string(value).map_err(|error| Complaint::refused(error.to_string()))?;
    say::json(&text);
    Ok(0)
}

/// `-` where there is nothing to say: an empty cell looks like a mistake.
pub fn or_dash<T: ToString>(value: Option<T>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

/// Lines of `name  value`, aligned; those without a value are left out. The lines of a value that has several stand below
/// each other, so that none of them looks like one of ours.
pub fn pairs(pairs: &[(&str, Option<String>)]) {
    let width = pairs.iter().filter(|(_, value)| value.is_some()).map(|(name, _)| name.len()).max().unwrap_or(0);
    for (name, value) in pairs {
        if let Some(value) = value {
            let indent = width + 2;
            let lines: Vec<String> =
                value.trim_end_matches('\n').split('\n').map(|line| wrapped(line, indent, indent)).collect();
            let value = lines.join(&format!("\n{}", " ".repeat(indent)));
            println!("{} {value}", paint(Colour::Dim, &format!("{name:<width$} ")));
        }
    }
}

/// `1 file`, `2 files`.
pub fn count(number: i64, noun: &str) -> String {
    if number == 1 { format!("1 {noun}") } else { format!("{number} {noun}s") }
}

/// `1 credit`, `0.25 credits`.
pub fn credits(amount: &str) -> String {
    if amount == "1" { "1 credit".to_owned() } else { format!("{amount} credits") }
}

/// Bytes as people say them; 1024-based, like the sizes of `--memory`.
pub fn size(bytes: i64) -> String {
    let mut value = bytes as f64;
    for unit in ["B", "KB", "MB", "GB"] {
        if value < 1024.0 {
            return if unit == "B" || value >= 100.0 {
                format!("{value:.0} {unit}")
            } else {
                format!("{value:.1} {unit}")
            };
        }
        value /= 1024.0;
    }
    format!("{value:.1} TB")
}

pub fn paint(colour: Colour, text: &str) -> String {
    if colourful(std::io::stdout().is_terminal()) { painted(colour, text) } else { text.to_owned() }
}

pub fn paint_err(colour: Colour, text: &str) -> String {
    if colourful(std::io::stderr().is_terminal()) { painted(colour, text) } else { text.to_owned() }
}

fn colourful(terminal: bool) -> bool {
    let set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    terminal && !set("NO_COLOR") && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

/// Good news green, bad news red, what is under way yellow, the rest plain.
pub fn status(word: &str) -> String {
    match word {
        "completed" | "done" | "ready" | "COMPLETE" | "SEALED" => paint(Colour::Green, word),
        "failed" | "lost" | "FAILED" | "unreachable" => paint(Colour::Red, word),
        "running" | "ACTIVE" | "retrying" | "resuming" | "paused" => paint(Colour::Yellow, word),
        _ => word.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_read_as_people_say_them() {
        for (bytes, text) in
            [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KB"), (200 << 20, "200 MB"), (3 << 40, "3.0 TB")]
        {
            assert_eq!(size(bytes), text);
        }
    }
}
