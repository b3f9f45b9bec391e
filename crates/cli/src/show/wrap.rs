//! Long text on a terminal: broken between words, what follows indented. A pipe gets each text on one line.

use crate::say::width;

/// Less room than this is not worth breaking lines for.
const LEAST: usize = 20;

/// How many columns stdout has, if it is a terminal.
pub fn columns() -> Option<usize> {
    columns_of(&std::io::stdout())
}

/// The same of stderr.
pub fn columns_err() -> Option<usize> {
    columns_of(&std::io::stderr())
}

fn columns_of(stream: &(impl std::io::IsTerminal + std::os::fd::AsRawFd)) -> Option<usize> {
    size_of(stream).map(|size| usize::from(size.ws_col)).filter(|columns| *columns > 0)
}

/// How many rows stdout has, if it is a terminal.
pub fn rows() -> Option<usize> {
    size_of(&std::io::stdout()).map(|size| usize::from(size.ws_row)).filter(|rows| *rows > 0)
}

fn size_of(stream: &(impl std::io::IsTerminal + std::os::fd::AsRawFd)) -> Option<libc::winsize> {
    if !stream.is_terminal() {
        return None;
    }
    let mut size = libc::winsize { ws_row: 0, ws_col: 0, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: TIOCGWINSZ only writes the struct handed to it.
    let asked = unsafe { libc::ioctl(stream.as_raw_fd(), libc::TIOCGWINSZ, &mut size) };
    (asked == 0).then_some(size)
}

/// This text for a line of which `used` columns are taken; its further lines are indented by `indent`.
pub fn wrapped(text: &str, used: usize, indent: usize) -> String {
    match columns() {
        Some(columns) => broken(text, used, indent, columns),
        None => text.to_owned(),
    }
}

/// What is said on stderr, for the terminal that it is, if it is one.
pub fn wrapped_err(text: &str) -> String {
    match columns_err() {
        Some(columns) => text.split('\n').map(|line| hanging(line, columns)).collect::<Vec<_>>().join("\n"),
        None => text.to_owned(),
    }
}

/// A line whose further lines stand below its first word behind `error:`, `fix:` and the like. A command to type stays whole, so that it
/// can be copied.
fn hanging(line: &str, columns: usize) -> String {
    let spaces = line.len() - line.trim_start_matches(' ').len();
    let rest = &line[spaces..];
    if rest.starts_with("fix: repl ") {
        return line.to_owned();
    }
    let mark = ["error: ", "fix: ", "repl: "].iter().find(|mark| rest.starts_with(**mark)).map_or(2, |mark| mark.len());
    format!("{}{}", &line[..spaces], broken(rest, spaces, spaces + mark, columns))
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
        assert_eq!(hanging("error: one two three four five", 27), "error: one two three four\n       five");
        assert_eq!(hanging("  fix: one two three four five", 30), "  fix: one two three four five");
        assert_eq!(hanging("  fix: one two three four five", 29), "  fix: one two three four\n       five");
        assert_eq!(hanging("  fix: repl run -- one two three four", 27), "  fix: repl run -- one two three four");
        let painted = say::painted(say::Colour::Dim, text);
        assert_eq!(say::harmless(&broken(&painted, 4, 4, 24)), "\x1b[2mone two three four\n    five six seven\x1b[0m");
    }
}
