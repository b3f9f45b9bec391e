//! Rows under headings, aligned by what a terminal shows. The last column is cut to the terminal's width, no other is.

use crate::say::{self, width};
use std::io::IsTerminal as _;

pub struct Table {
    heads: Vec<&'static str>,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub fn new<const N: usize>(heads: [&'static str; N]) -> Table {
        Table { heads: heads.to_vec(), rows: Vec::new() }
    }

    pub fn row<const N: usize>(&mut self, cells: [String; N]) {
        debug_assert_eq!(N, self.heads.len(), "a cell for each heading");
        // A cell is one line and does nothing to a terminal, whatever somebody named their run.
        self.rows.push(cells.iter().map(|cell| say::one_line(cell)).collect());
    }

    /// Prints the table, or `nothing` on stderr when there are no rows: a pipe then reads nothing at all.
    pub fn print(&self, nothing: &str) {
        if self.rows.is_empty() {
            eprintln!("{nothing}");
            return;
        }
        let columns = if std::io::stdout().is_terminal() { terminal_columns() } else { None };
        for line in self.lines(columns) {
            println!("{line}");
        }
    }

    fn lines(&self, columns: Option<usize>) -> Vec<String> {
        let heads: Vec<String> = self.heads.iter().map(|head| head.to_string()).collect();
        let all = || std::iter::once(&heads).chain(&self.rows);
        let widths: Vec<usize> =
            (0..heads.len()).map(|at| all().map(|row| width(&row[at])).max().unwrap_or(0)).collect();
        all().map(|row| line(row, &widths, columns)).collect()
    }
}

fn line(row: &[String], widths: &[usize], columns: Option<usize>) -> String {
    let mut text = String::new();
    let mut used = 0;
    for (at, cell) in row.iter().enumerate() {
        if at + 1 == row.len() {
            text.push_str(&cut(cell, columns.map(|columns| columns.saturating_sub(used))));
        } else {
            text.push_str(cell);
            text.push_str(&" ".repeat(widths[at] - width(cell) + 2));
            used += widths[at] + 2;
        }
    }
    text.trim_end().to_owned()
}

/// Only plain text is cut: half a colour would colour the rest of the screen.
fn cut(cell: &str, room: Option<usize>) -> String {
    match room {
        Some(room) if room >= 8 && width(cell) > room && !say::is_painted(cell) => {
            cell.chars().take(room - 1).chain(['…']).collect()
        }
        _ => cell.to_owned(),
    }
}

fn terminal_columns() -> Option<usize> {
    let mut size = libc::winsize { ws_row: 0, ws_col: 0, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: TIOCGWINSZ only writes the struct handed to it.
    let asked = unsafe { libc::ioctl(libc::STDOUT_FILENO, libc::TIOCGWINSZ, &mut size) };
    (asked == 0 && size.ws_col > 0).then_some(size.ws_col as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let mut table = Table::new(["ID", "STATUS", "COMMAND"]);
        table.row(["run_1".into(), say::painted(say::Colour::Green, "completed"), "echo\nhello".into()]);
        table.row(["run_9ix".into(), "-".into(), "".into()]);
        table
    }

    #[test]
    fn columns_line_up_whatever_their_colour() {
        let lines: Vec<String> = table().lines(None).iter().map(|line| say::harmless(line)).collect();
        assert_eq!(
            lines,
            ["ID       STATUS     COMMAND", "run_1    \x1b[32mcompleted\x1b[0m  echo hello", "run_9ix  -"]
        );
    }

    #[test]
    fn only_the_last_column_gives_way_to_the_terminal() {
        let second = |columns| say::harmless(&table().lines(Some(columns))[1]);
        assert_eq!(second(28), "run_1    \x1b[32mcompleted\x1b[0m  echo he…");
        assert_eq!(second(10), "run_1    \x1b[32mcompleted\x1b[0m  echo hello");
    }

    #[test]
    fn a_cell_does_nothing_to_the_terminal() {
        let mut table = Table::new(["NAME", "COMMAND"]);
        table.row(["\x1b[2Jx".into(), "\u{202e}y".into()]);
        assert_eq!(table.lines(None)[1], "\\x1b[2Jx  \\u{202e}y");
    }
}
