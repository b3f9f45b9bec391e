//! What a reader sees of a line: its text without escape sequences, as plain text for the search and as escaped HTML with colours and marks.

use super::sgr::Style;
use std::borrow::Cow;
use std::fmt::Write as _;

/// A piece of a line.
#[derive(Debug, PartialEq, Eq)]
enum Piece<'a> {
    Text(&'a str),
    /// Parameters of `ESC [ … m`.
    Colours(&'a str),
    /// A character that is not seen, or changes where others are seen.
    Hidden(char),
}

/// The line as a reader sees it, without marks.
pub(crate) fn text(bytes: &[u8]) -> Cow<'_, [u8]> {
    if !bytes.contains(&0x1b) {
        return Cow::Borrowed(bytes);
    }
    let mut seen = String::with_capacity(bytes.len());
    pieces(&String::from_utf8_lossy(bytes), |piece| match piece {
        Piece::Text(text) => seen.push_str(text),
        Piece::Hidden(hidden) => seen.push(hidden),
        Piece::Colours(_) => {}
    });
    Cow::Owned(seen.into_bytes())
}

/// The line as escaped HTML: text, `span`s with the classes of colours, and `i` with the class `hidden` for what is not seen.
/// `style` is what earlier lines of its stream have set, and then what this one leaves.
pub(crate) fn html(bytes: &[u8], style: &mut Style) -> String {
    let line = String::from_utf8_lossy(bytes);
    let mut out = String::with_capacity(line.len() + 16);
    pieces(&line, |piece| match piece {
        Piece::Colours(parameters) => style.apply(parameters),
        Piece::Text(text) => in_style(&mut out, *style, |out| escape(out, text)),
        Piece::Hidden(hidden) => in_style(&mut out, *style, |out| mark(out, hidden)),
    });
    out
}

fn in_style(out: &mut String, style: Style, write: impl FnOnce(&mut String)) {
    match style.classes() {
        None => write(out),
        Some(classes) => {
            out.push_str("<span class=\"");
            out.push_str(&classes);
            out.push_str("\">");
            write(out);
            out.push_str("</span>");
        }
    }
}

fn escape(out: &mut String, text: &str) {
    for letter in text.chars() {
        match letter {
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '&' => out.push_str("&amp;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            letter => out.push(letter),
        }
    }
}

/// Control characters by their pictures, others by their numbers.
fn mark(out: &mut String, hidden: char) {
    let picture = char::from_u32(0x2400 + hidden as u32).filter(|_| hidden < ' ');
    let written = match picture {
        Some(picture) => write!(out, "<i class=\"hidden\">{picture}</i>"),
        None => write!(out, "<i class=\"hidden\">U+{:04X}</i>", hidden as u32),
    };
    written.expect("a string takes everything");
}

/// Cuts a line into what is seen, what colours it, and what is marked. Other escape sequences belong to no piece.
fn pieces<'a>(line: &'a str, mut piece: impl FnMut(Piece<'a>)) {
    let mut rest = line;
    while !rest.is_empty() {
        let plain = rest.find(|letter| letter == '\x1b' || is_hidden(letter)).unwrap_or(rest.len());
        if plain > 0 {
            piece(Piece::Text(&rest[..plain]));
        }
        let Some(letter) = rest[plain..].chars().next() else { return };
        let behind = &rest[plain + letter.len_utf8()..];
        if letter == '\x1b' {
            let (taken, colours) = sequence(behind);
            if let Some(parameters) = colours {
                piece(Piece::Colours(parameters));
            }
            rest = &behind[taken..];
        } else {
            piece(Piece::Hidden(letter));
            rest = behind;
        }
    }
}

/// How much of what follows an ESC belongs to its sequence, and what it says of colours. Of a sequence without an end only the beginning
/// is dropped: text that follows stays readable.
fn sequence(behind: &str) -> (usize, Option<&str>) {
    let bytes = behind.as_bytes();
    let run = |from: usize, of: std::ops::RangeInclusive<u8>| {
        bytes[from..].iter().take_while(|byte| of.contains(byte)).count() + from
    };
    match bytes.first() {
        Some(b'[') => {
            let parameters = run(1, b'0'..=b'?');
            let last = run(parameters, b' '..=b'/');
            match bytes.get(last) {
                Some(b'm') if last == parameters => (last + 1, Some(&behind[1..parameters])),
                Some(b'@'..=b'~') => (last + 1, None),
                _ => (last, None),
            }
        }
        // Titles, links, graphics: up to BEL or `ESC \`.
        Some(b']' | b'P' | b'X' | b'^' | b'_') => {
            let bell = behind.find('\x07').map(|at| (at, at + 1));
            let end = behind.find("\x1b\\").map(|at| (at, at + 2));
            (bell.into_iter().chain(end).min().map_or(1, |(_, behind)| behind), None)
        }
        // `ESC ( B` and the like; and two bytes for anything else of ASCII.
        Some(b' '..=b'~') => {
            let last = run(0, b' '..=b'/');
            (if matches!(bytes.get(last), Some(b'0'..=b'~')) { last + 1 } else { last }, None)
        }
        _ => (0, None),
    }
}

/// Characters that are not seen, or reorder what is: they could make a line read differently from what it says.
fn is_hidden(letter: char) -> bool {
    matches!(letter,
        '\0'..='\x08' | '\x0a'..='\x1a' | '\x1c'..='\x1f' | '\x7f'..='\u{9f}'
        | '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}' | '\u{180b}'..='\u{180e}'
        | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{3164}'
        | '\u{fe00}'..='\u{fe0d}' | '\u{feff}' | '\u{ffa0}' | '\u{fff9}'..='\u{fffb}'
        | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e0fff}')
}

#[cfg(test)]
mod tests {
    use super::super::LINE_BYTES;
    use super::*;
    use proptest::prelude::*;

    fn html(line: &[u8]) -> String {
        super::html(line, &mut Style::default())
    }

    fn check(line: &str, expected: &str) {
        assert_eq!(html(line.as_bytes()), expected, "{line:?}");
    }

    #[test]
    fn text_is_escaped() {
        check("a < b && \"c\" > 'd'", "a &lt; b &amp;&amp; &quot;c&quot; &gt; &#39;d&#39;");
        check("<script>alert(1)</script>", "&lt;script&gt;alert(1)&lt;/script&gt;");
        check("tab\tstays", "tab\tstays");
        assert_eq!(html(b"caf\xe9 \xff"), "caf\u{fffd} \u{fffd}");
    }

    #[test]
    fn colours_are_classes() {
        check("\x1b[1;31merror\x1b[0m: no", "<span class=\"ink1 bold\">error</span>: no");
        check("\x1b[38;2;0;0;0m<\x1b[m", "<span class=\"ink0\">&lt;</span>");
        check("\x1b[32m", "");
    }

    #[test]
    fn a_colour_holds_in_the_lines_that_follow() {
        let mut style = Style::default();
        super::html(b"\x1b[31mone", &mut style);
        assert_eq!(super::html(b"two", &mut style), "<span class=\"ink1\">two</span>");
    }

    #[test]
    fn other_sequences_are_dropped_and_what_has_no_end_stays_readable() {
        check("a\x1b[2K\x1b[1;1Hb\x1b[?25lc", "abc");
        check("\x1b]0;title\x07text", "text");
        check("\x1b]8;;http://evil\x1b\\link\x1b]8;;\x1b\\", "link");
        check("\x1b(Bplain\x1b7", "plain");
        check("\x1b]0;never ends", "0;never ends");
        check("\x1b[12", "");
        check("\x1b[3é", "é");
        check("\x1bé\x1b", "é");
    }

    #[test]
    fn what_is_not_seen_is_marked() {
        check("user\u{202e}gpj.exe", "user<i class=\"hidden\">U+202E</i>gpj.exe");
        check("a\u{200b}b\u{2066}", "a<i class=\"hidden\">U+200B</i>b<i class=\"hidden\">U+2066</i>");
        check("\x07\0", "<i class=\"hidden\">␇</i><i class=\"hidden\">␀</i>");
        check("\u{9b}31m", "<i class=\"hidden\">U+009B</i>31m");
        // An emoji's own selector hides nothing.
        check("⚠\u{fe0f} עברית", "⚠\u{fe0f} עברית");
    }

    #[test]
    fn the_search_sees_text_without_colours() {
        assert_eq!(text(b"\x1b[31mer\x1b[1mror\x1b[0m"), &b"error"[..]);
        assert!(matches!(text(b"error \xff"), Cow::Borrowed(b"error \xff")));
    }

    fn hostile() -> impl Strategy<Value = Vec<u8>> {
        let parts = prop_oneof![
            Just(b"\x1b[31m".to_vec()),
            Just(b"\x1b]".to_vec()),
            Just(b"\x07".to_vec()),
            Just(b"\x1b\\".to_vec()),
            Just(b"<b>".to_vec()),
            Just(b"&lt;".to_vec()),
            Just(b"\"'".to_vec()),
            Just("\u{202e}".as_bytes().to_vec()),
            Just(b"\x1b[38;5;".to_vec()),
            prop::collection::vec(any::<u8>(), 0..6),
        ];
        prop::collection::vec(parts, 0..200).prop_map(|parts| parts.concat())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn only_our_own_tags_come_out_and_their_number_is_bounded(line in hostile()) {
            let out = html(&line);
            let mut bare = out.replace("</span>", "").replace("</i>", "").replace("<i class=\"hidden\">", "");
            while let Some(at) = bare.find("<span class=\"") {
                let length = bare[at..].find("\">").unwrap() + 2;
                let classes = &bare[at + 13..at + length - 2];
                prop_assert!(classes.bytes().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b' '), "{}", classes);
                bare.replace_range(at..at + length, "");
            }
            prop_assert!(!bare.contains(['<', '>', '"', '\'', '\x1b']), "{}", bare);
            prop_assert!(!bare.contains(is_hidden), "{}", bare.escape_unicode());
            prop_assert_eq!(out.matches("<span").count(), out.matches("</span>").count());
            prop_assert!(out.len() <= 40 * line.len().max(1), "{} of {}", out.len(), line.len());
        }
    }

    /// The worst that fits into one line.
    #[test]
    fn a_line_is_bounded_whatever_is_in_it() {
        for part in ["\0", "\x1b[1;2;3;4;9;31;41ma", "\u{202e}", "\x1b[7m\0", "\""] {
            let line: Vec<u8> = part.bytes().cycle().take(LINE_BYTES).collect();
            assert!(html(&line).len() <= 40 * LINE_BYTES, "{part:?}: {}", html(&line).len());
        }
    }
}
