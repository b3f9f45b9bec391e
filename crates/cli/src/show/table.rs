//! Rows under headings, aligned by what a terminal shows. On a terminal that is too narrow, columns that matter less are left out
//! and the last one is cut; a pipe gets everything.

use super::columns;
use crate::say::{self, width};

/// Columns of the last cell that are shown before other columns are left out for it.
const LEAST_OF_THE_LAST: usize = 16;
/// No column is cut to less than this.
const LEAST: usize = 8;
const GAP: usize = 2;

pub struct Table {
    heads: Vec<&'static str>,
    rows: Vec<Vec<String>>,
    /// Headings of the columns that a narrow terminal does without, the first to go first.
    expendable: &'static [&'static str],
    /// Of the last column, the end is what matters.
    ends_matter: bool,
}

impl Table {
    pub fn new<const N: usize>(heads: [&'static str; N]) -> Table {
        Table { heads: heads.to_vec(), rows: Vec::new(), expendable: &[], ends_matter: false }
    }

    pub fn without_if_narrow(mut self, expendable: &'static [&'static str]) -> Table {
        debug_assert!(expendable.iter().all(|head| self.heads.contains(head)), "columns of this table");
        self.expendable = expendable;
        self
    }

    /// The last column holds paths: a narrow terminal shows their ends.
    pub fn with_paths(mut self) -> Table {
        self.ends_matter = true;
        self
    }

    pub fn row<const N: usize>(&mut self, cells: [String; N]) {
        debug_assert_eq!(N, self.heads.len(), "a cell for each heading");
        // A cell is one line without escape sequences, whatever the name of a run contains.
        self.rows.push(cells.iter().map(|cell| say::one_line(cell)).collect());
    }

    /// Prints the table, or `nothing` on stderr when there are no rows: a pipe then reads nothing at all.
    pub fn print(&self, nothing: &str) {
        if self.rows.is_empty() {
            eprintln!("{nothing}");
            return;
        }
        for line in self.lines(columns()) {
            println!("{line}");
        }
    }

    fn lines(&self, columns: Option<usize>) -> Vec<String> {
        let heads: Vec<String> = self.heads.iter().map(|head| head.to_string()).collect();
        let all = || std::iter::once(&heads).chain(&self.rows);
        let widths: Vec<usize> =
            (0..heads.len()).map(|at| all().map(|row| width(&row[at])).max().unwrap_or(0)).collect();
        let shown = match columns {
            Some(columns) => self.fitting(&widths, columns),
            None => widths.iter().copied().enumerate().collect(),
        };
        all().map(|row| line(row, &shown, self.ends_matter)).collect()
    }

    /// Which columns are shown, and how wide.
    fn fitting(&self, widths: &[usize], columns: usize) -> Vec<(usize, usize)> {
        let mut shown: Vec<(usize, usize)> = widths.iter().copied().enumerate().collect();
        let mut expendable = self.expendable.iter();
        let total = |shown: &[(usize, usize)]| shown.iter().map(|it| it.1 + GAP).sum::<usize>().saturating_sub(GAP);
        let least = |shown: &[(usize, usize)]| {
            let last = shown.last().map_or(0, |it| it.1);
            total(shown) - last + last.min(LEAST_OF_THE_LAST)
        };
        while least(&shown) > columns
            && let Some(head) = expendable.next()
        {
            shown.retain(|(at, _)| self.heads[*at] != *head);
        }
        // The last gives way first, then whichever is widest; ids, which come first, never.
        let over = |shown: &[(usize, usize)]| total(shown).saturating_sub(columns);
        if let Some(excess) = Some(over(&shown)).filter(|excess| *excess > 0)
            && let Some(last) = shown.last_mut()
        {
            last.1 = last.1.saturating_sub(excess).max(last.1.min(LEAST_OF_THE_LAST));
        }
        while over(&shown) > 0
            && let Some(widest) = shown.iter_mut().skip(1).max_by_key(|it| it.1).filter(|it| it.1 > LEAST)
        {
            widest.1 -= 1;
        }
        shown
    }
}

fn line(row: &[String], shown: &[(usize, usize)], ends_matter: bool) -> String {
    let mut text = String::new();
    for (at, wide) in shown {
        let is_path = ends_matter && at + 1 == row.len();
        let cell = if is_path { end_of(&row[*at], *wide) } else { say::cut(&row[*at], *wide) };
        let gap = " ".repeat(wide - width(&cell) + GAP);
        text.push_str(&cell);
        text.push_str(&gap);
    }
    text.trim_end().to_owned()
}

/// The end of a plain text that fits into this many columns.
fn end_of(cell: &str, room: usize) -> String {
    match width(cell).checked_sub(room) {
        None | Some(0) => cell.to_owned(),
        Some(over) => std::iter::once('…').chain(cell.chars().skip(over + 1)).collect(),
    }
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
    fn a_narrow_terminal_gets_what_matters_most() {
        let mut table = table();
        table.rows[0][2] = "echo hello to everybody".into();
        let second = |table: &Table, columns| say::harmless(&table.lines(Some(columns))[1]);
        assert_eq!(second(&table, 80), "run_1    \x1b[32mcompleted\x1b[0m  echo hello to everybody");
        assert_eq!(second(&table, 28), "run_1    \x1b[32mcompleted\x1b[0m  echo he…");
        assert_eq!(second(&table, 27), "run_1    \x1b[32mcomplet…\x1b[0m  echo he…");
        let mut paths = Table::new(["ID", "PATH"]).with_paths();
        paths.row(["alc_1".into(), "/var/lib/remuda/instances/one/work_1".into()]);
        assert_eq!(paths.lines(Some(26))[1], "alc_1  …stances/one/work_1");
        let table = table.without_if_narrow(&["STATUS"]);
        assert_eq!(second(&table, 36), "run_1    \x1b[32mcompleted\x1b[0m  echo hello to e…");
        assert_eq!(second(&table, 35), "run_1    echo hello to everybody");
        for columns in 20..100 {
            assert!(table.lines(Some(columns)).iter().all(|line| width(line) <= columns), "{columns}");
        }
    }

    #[test]
    fn a_cell_does_nothing_to_the_terminal() {
        let mut table = Table::new(["NAME", "COMMAND"]);
        table.row(["\x1b[2Jx".into(), "\u{202e}y".into()]);
        assert_eq!(table.lines(None)[1], "\\x1b[2Jx  \\u{202e}y");
    }
}
