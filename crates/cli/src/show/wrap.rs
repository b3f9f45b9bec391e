//! Long text on a terminal: broken between words, what follows indented. A pipe gets each text on one line.

use crate::say::width;
use std::io::IsTerminal as _;

/// Less room than this is not worth breaking lines for.
const LEAST: usize = 20;

/// How many columns stdout has, if it is a terminal.
pub fn columns() -> Option<usize> {
    if !std::io::stdout().is_terminal() {
        return None;
    }
    let mut size = libc::winsize { ws_row: 0, ws_col: 0, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: TIOCGWINSZ only writes the struct handed to it.
    let asked = unsafe { libc::ioctl(libc::STDOUT_FILENO, libc::TIOCGWINSZ, &mut size) };
    (asked == 0 && size.ws_col > 0).then_some(size.ws_col as usize)
}

/// This text for a line of which `used` columns are taken; its further lines are indented by `indent`.
pub fn wrapped(text: &str, used: usize, indent: usize) -> String {
    match columns() {
        Some(columns) => broken(text, used, indent, columns),
        None => text.to_owned(),
    }
}

fn broken(text: &str, used: usize, indent: usize, columns: usize) -> String {
    if used + width(text) <= columns || indent + LEAST > columns {
        return text.to_owned();
    }
    let (mut lines, mut at, mut begun) = (String::new(), used, false);
    for word in text.split(' ') {
        let needed = width(word) + usize::from(begun);
        if at + needed > columns && (begun || used > indent) {
            lines.push('\n');
            lines.push_str(&" ".repeat(indent));
            at = indent + width(word);
        } else {
            if begun {
                lines.push(' ');
            }
            at += needed;
        }
        lines.push_str(word);
        begun = true;
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::say;

    #[test]
    fn lines_break_between_words() {
        let text = "one two three four five six seven";
        assert_eq!(broken(text, 4, 4, 80), text);
        assert_eq!(broken(text, 4, 4, 24), "one two three four\n    five six seven");
        assert_eq!(broken(text, 20, 2, 24), "one\n  two three four five\n  six seven");
        let path = format!("at {}", "x".repeat(40));
        assert_eq!(broken(&path, 4, 4, 30), format!("at\n    {}", "x".repeat(40)), "a word stays whole");
        assert_eq!(broken(text, 4, 4, 20), text, "too narrow");
        let painted = say::painted(say::Colour::Dim, text);
        assert_eq!(say::harmless(&broken(&painted, 4, 4, 24)), "\x1b[2mone two three four\n    five six seven\x1b[0m");
    }
}
