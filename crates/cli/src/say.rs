//! All messages of `repl` are printed here. Text from elsewhere (names, commands, paths, errors, answers of a server) may contain escape
//! sequences; they are printed escaped, so that a terminal does not act on them. Only a run's own output and JSON are printed elsewhere.
//!
//! The macros below replace those of `std` in this whole crate, so that nothing is printed without passing through this file.

use std::fmt;
use std::io::Write as _;
use std::sync::{LazyLock, OnceLock};

#[allow(unused_macros, reason = "those of std must not be reachable, whether or not they are used today")]
macro_rules! print {
    ($($said:tt)*) => { $crate::say::out(format_args!($($said)*), "") };
}
macro_rules! println {
    () => { $crate::say::out(format_args!(""), "\n") };
    ($($said:tt)*) => { $crate::say::out(format_args!($($said)*), "\n") };
}
macro_rules! eprint {
    ($($said:tt)*) => { $crate::say::err(format_args!($($said)*), "") };
}
macro_rules! eprintln {
    () => { $crate::say::err(format_args!(""), "\n") };
    ($($said:tt)*) => { $crate::say::err(format_args!($($said)*), "\n") };
}

pub fn out(said: fmt::Arguments<'_>, end: &str) {
    write_out(&format!("{}{end}", harmless(&said.to_string())));
}

pub fn err(said: fmt::Arguments<'_>, end: &str) {
    let text = format!("{}{end}", harmless(&crate::show::wrapped_err(&said.to_string())));
    // If stderr is closed, there is no other place for the message.
    std::io::stderr().lock().write_all(text.as_bytes()).ok();
}

/// Where roles write their log: a terminal, or a file that may be shown on one later. Names and errors in it come from elsewhere.
pub struct Log;

impl std::io::Write for Log {
    /// One call is one whole entry.
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let text = harmless(&String::from_utf8_lossy(bytes));
        std::io::stderr().lock().write_all(text.as_bytes()).map(|()| bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// A JSON document, exactly: what a terminal could obey is written as JSON's own escapes, which mean the same.
pub fn json(text: &str) {
    let mut exact = String::with_capacity(text.len() + 1);
    for c in text.chars() {
        // Outside of strings JSON is plain ASCII, and in them control characters below the space are escaped already.
        if c != '\n' && is_harmful(c) {
            let mut units = [0; 2];
            c.encode_utf16(&mut units).iter().for_each(|unit| exact.push_str(&format!("\\u{unit:04x}")));
        } else {
            exact.push(c);
        }
    }
    exact.push('\n');
    write_out(&exact);
}

static FAILED: OnceLock<String> = OnceLock::new();

fn write_out(text: &str) {
    let mut stdout = std::io::stdout().lock();
    if let Err(error) = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        FAILED.get_or_init(|| error.to_string());
    }
}

/// Lines in the place of the ones that were written last, on a terminal. Returns how many there are now.
pub fn redraw(lines: &[String], before: usize) -> usize {
    let mut text = if before > 0 { format!("\x1b[{before}A\x1b[J") } else { String::new() };
    for line in lines {
        text.push_str(&harmless(line));
        text.push('\n');
    }
    write_out(&text);
    lines.len()
}

/// Why something that was to be printed was not.
pub fn failed() -> Option<&'static str> {
    FAILED.get().map(String::as_str)
}

/// The text as a terminal may show it: every character that would act on the terminal, or turn the order of others, is
/// written out. Lines stay lines; our own colours stay colours.
pub fn harmless(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match c {
            c if c == *MARK => shown.extend(chars.next().and_then(code).map(|code| format!("\x1b[{code}m"))),
            '\n' | '\t' => shown.push(c),
            c if is_harmful(c) => shown.push_str(&written_out(c)),
            c => shown.push(c),
        }
    }
    shown
}

/// A text that must stay on its line: a cell of a table, a name, what a server says. A line break in it must not look like another message. Its
/// colours are still to be printed.
pub fn one_line(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' | '\t' | '\r' => shown.push(' '),
            c if is_harmful(c) => shown.push_str(&written_out(c)),
            c => shown.push(c),
        }
    }
    shown
}

fn written_out(c: char) -> String {
    match c {
        '\r' => "\\r".to_owned(),
        c if c.is_ascii() => format!("\\x{:02x}", u32::from(c)),
        c => format!("\\u{{{:x}}}", u32::from(c)),
    }
}

/// Whether a terminal would act on this character, or show something else than what is there.
pub fn is_harmful(c: char) -> bool {
    match c {
        // C0 with the escape character, DEL, and C1, whose U+009B is an escape sequence of its own.
        c if c.is_control() => true,
        // Marks that turn the direction of what follows: a name could look like another.
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => true,
        // Line breaks of Unicode, annotations, and characters that show nothing and hide text.
        '\u{2028}' | '\u{2029}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}' => true,
        _ => false,
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Colour {
    Bold,
    Dim,
    Red,
    Green,
    Yellow,
}

/// What our own colours begin with until they are printed: a private character chosen anew by every process, so that no text
/// from elsewhere can hold it.
static MARK: LazyLock<char> = LazyLock::new(|| {
    use std::hash::{BuildHasher as _, Hasher as _};
    let luck = std::collections::hash_map::RandomState::new().build_hasher().finish();
    char::from_u32(0x10_0000 + (luck % 0xfff0) as u32).expect("a character of the last plane")
});

/// This text in a colour, for `println!` and tables.
pub fn painted(colour: Colour, text: &str) -> String {
    let letter = match colour {
        Colour::Bold => 'b',
        Colour::Dim => 'd',
        Colour::Red => 'r',
        Colour::Green => 'g',
        Colour::Yellow => 'y',
    };
    format!("{mark}{letter}{text}{mark}.", mark = *MARK)
}

fn code(letter: char) -> Option<&'static str> {
    match letter {
        'b' => Some("1"),
        'd' => Some("2"),
        'r' => Some("31"),
        'g' => Some("32"),
        'y' => Some("33"),
        '.' => Some("0"),
        _ => None,
    }
}

/// Columns that a cell takes: characters, without colours.
pub fn width(cell: &str) -> usize {
    let mut chars = cell.chars();
    let mut count = 0;
    while let Some(c) = chars.next() {
        if c == *MARK {
            chars.next();
        } else {
            count += 1;
        }
    }
    count
}

/// The beginning of a cell that fits into this many columns, with a mark where something is missing. Its colour ends with it.
pub fn cut(cell: &str, room: usize) -> String {
    if width(cell) <= room {
        return cell.to_owned();
    }
    let (mut chars, mut shown, mut count) = (cell.chars(), String::new(), 0);
    while let Some(c) = chars.next() {
        if c == *MARK {
            shown.push(c);
            shown.extend(chars.next());
        } else {
            count += 1;
            match count.cmp(&room) {
                std::cmp::Ordering::Less => shown.push(c),
                std::cmp::Ordering::Equal => shown.push('…'),
                std::cmp::Ordering::Greater => {}
            }
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_would_obey_is_written_out() {
        for (text, shown) in [
            ("\x1b[31mred\x1b]0;title\x07", "\\x1b[31mred\\x1b]0;title\\x07"),
            ("over\rwritten\x08\x7f", "over\\rwritten\\x08\\x7f"),
            ("\u{9b}2J", "\\u{9b}2J"),
            ("a\u{202e}b\u{2066}c\u{200f}", "a\\u{202e}b\\u{2066}c\\u{200f}"),
            ("\u{e0041}\u{2028}", "\\u{e0041}\\u{2028}"),
            ("zwei\nZeilen\tмир 日本 🙂", "zwei\nZeilen\tмир 日本 🙂"),
            ("C:\\x1b is text", "C:\\x1b is text"),
        ] {
            assert_eq!(harmless(text), shown);
        }
        assert_eq!(one_line("a\r\nb\tc\x1b\u{9b}"), "a  b c\\x1b\\u{9b}");
    }

    #[test]
    fn our_own_colours_are_kept() {
        let text = painted(Colour::Red, "a\x1b[0mb");
        assert_eq!(harmless(&text), "\x1b[31ma\\x1b[0mb\x1b[0m");
        assert_eq!((width(&text), width("\x1b[31m")), (6, 5));
        assert_eq!(harmless(&cut(&painted(Colour::Red, "failed"), 4)), "\x1b[31mfai…\x1b[0m");
        assert_eq!((cut("failed", 6), cut("failed", 1)), ("failed".to_owned(), "…".to_owned()));
    }
}
