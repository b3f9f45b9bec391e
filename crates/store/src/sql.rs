//! Statements: a text for both databases, the row lock that only PostgreSQL needs, and the rank for the order of locks.

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt::Write as _;

/// `const SAVE: Sql = Sql::new("UPDATE …");` with `$1` placeholders, BIGINT, TEXT and BLOB columns only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sql {
    pub text: &'static str,
    pub lock: Lock,
    pub rank: Option<Rank>,
    pub(crate) order: ArgumentOrder,
}

/// Which argument each of SQLite's parameters takes: SQLite numbers `$2` by its first appearance, not by its digits. Computed at
/// compile time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ArgumentOrder {
    /// SQLite's parameters are in the order of the arguments.
    in_turn: bool,
    count: u8,
    numbers: [u8; ArgumentOrder::MOST],
}

impl ArgumentOrder {
    /// Statements with more parameters, such as inserts of many rows, are bound by the names of their parameters.
    const MOST: usize = 20;
    pub(crate) const UNKNOWN: ArgumentOrder =
        ArgumentOrder { in_turn: false, count: u8::MAX, numbers: [0; ArgumentOrder::MOST] };
    const IN_TURN: ArgumentOrder = ArgumentOrder { in_turn: true, ..ArgumentOrder::UNKNOWN };

    pub(crate) fn numbers(&self) -> Option<&[u8]> {
        self.numbers.get(..usize::from(self.count))
    }

    pub(crate) fn is_in_turn(&self) -> bool {
        self.in_turn
    }

    /// For an insert of many rows made from one of a single row.
    pub(crate) fn for_rows(&self, rows: usize) -> ArgumentOrder {
        match rows {
            1 => *self,
            _ if self.in_turn => ArgumentOrder::IN_TURN,
            _ => ArgumentOrder::UNKNOWN,
        }
    }

    const fn of(text: &str) -> ArgumentOrder {
        let (bytes, mut at) = (text.as_bytes(), 0);
        let mut order = ArgumentOrder { in_turn: true, count: 0, numbers: [0; ArgumentOrder::MOST] };
        while at < bytes.len() {
            at += 1;
            if bytes[at - 1] != b'$' {
                continue;
            }
            let mut number = 0;
            while at < bytes.len() && bytes[at].is_ascii_digit() {
                number = 10 * number + (bytes[at] - b'0');
                at += 1;
            }
            let mut known = 0;
            while known < order.count as usize && order.numbers[known] != number {
                known += 1;
            }
            if known == ArgumentOrder::MOST {
                return ArgumentOrder::UNKNOWN;
            }
            if known == order.count as usize {
                order.numbers[known] = number;
                order.count += 1;
                order.in_turn &= number == order.count;
            }
        }
        order
    }
}

/// Appended on PostgreSQL only: SQLite has one writer, so every row is locked there already.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Lock {
    None,
    /// Allows an update that does not change the key, blocks a claim.
    KeyShare,
    /// The lock of a row that is about to be changed.
    NoKeyUpdate,
    /// Locks and returns rows that are not locked, skips the others.
    SkipLocked,
}

/// The order in which one transaction may lock rows; those of one rank in the order of their ids. Debug builds assert it for statements
/// that name their rank and have the id as their first argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rank {
    /// When a control plane was last alive.
    Monitor,
    WorkItem,
    Endpoint,
    Execution,
    Index,
    Run,
    Agent,
    Task,
    Step,
    Job,
    Workflow,
    Pool,
    Allocation,
    Instance,
    Manifest,
    /// The head of a log, and then the numbers of its run's frames: on PostgreSQL they are rows of the same database.
    Log,
    RunLog,
    Org,
    Wakes,
}

impl Sql {
    pub const fn new(text: &'static str) -> Sql {
        Sql { text, lock: Lock::None, rank: None, order: ArgumentOrder::of(text) }
    }
    pub const fn key_share(self) -> Sql {
        Sql { lock: Lock::KeyShare, ..self }
    }
    pub const fn no_key_update(self) -> Sql {
        Sql { lock: Lock::NoKeyUpdate, ..self }
    }
    pub const fn skip_locked(self) -> Sql {
        Sql { lock: Lock::SkipLocked, ..self }
    }
    /// Names the entity this statement locks, so that the order of locks is asserted.
    pub const fn locks(self, rank: Rank) -> Sql {
        Sql { rank: Some(rank), ..self }
    }

    /// The text for PostgreSQL.
    pub fn with_lock(&self) -> Cow<'static, str> {
        let clause = match self.lock {
            Lock::None => return Cow::Borrowed(self.text),
            Lock::KeyShare => "FOR KEY SHARE",
            Lock::NoKeyUpdate => "FOR NO KEY UPDATE",
            Lock::SkipLocked => "FOR UPDATE SKIP LOCKED",
        };
        Cow::Owned(format!("{} {clause}", self.text))
    }

    /// A one-row `INSERT … VALUES ($1, …) …` as a statement of `rows` rows. The tuple's placeholders are renumbered for each row,
    /// so the rest of the statement may not use any.
    pub(crate) fn for_rows(&self, rows: usize, columns: usize) -> Cow<'static, str> {
        match rows {
            1 => Cow::Borrowed(self.text),
            ..=OFTEN => Cow::Borrowed(TEXTS.with_borrow_mut(|texts| {
                let known = texts.entry((self.text.as_ptr() as usize, rows));
                *known.or_insert_with(|| self.written_for(rows, columns).leak())
            })),
            _ => Cow::Owned(self.written_for(rows, columns)),
        }
    }

    fn written_for(&self, rows: usize, columns: usize) -> String {
        let start = self.text.find("VALUES (").expect("a multi-row insert has VALUES (…)") + "VALUES ".len();
        let end = start + closing(&self.text[start..]);
        let (head, tuple, tail) = (&self.text[..start], &self.text[start..end], &self.text[end..]);
        let mut text = String::with_capacity(self.text.len() + rows * (tuple.len() + 2 * columns));
        text.push_str(head);
        for row in 0..rows {
            text.push_str(if row == 0 { "" } else { ", " });
            renumber(&mut text, tuple, row * columns);
        }
        text + tail
    }
}

/// Texts for up to this many rows are made once for each thread and kept.
const OFTEN: usize = 16;

thread_local! {
    /// By the address of the statement's text and the number of rows.
    static TEXTS: RefCell<HashMap<(usize, usize), &'static str>> = RefCell::default();
}

/// Where the parenthesis that `text` opens with is closed.
fn closing(text: &str) -> usize {
    let mut depth = 0;
    for (at, letter) in text.char_indices() {
        match letter {
            '(' => depth += 1,
            ')' if depth == 1 => return at + 1,
            ')' => depth -= 1,
            _ => {}
        }
    }
    panic!("VALUES ( is never closed in: {text}");
}

fn renumber(out: &mut String, tuple: &str, by: usize) {
    let mut rest = tuple;
    while let Some(dollar) = rest.find('$') {
        let digits = rest[dollar + 1..].bytes().take_while(u8::is_ascii_digit).count();
        let number: usize = rest[dollar + 1..dollar + 1 + digits].parse().expect("a placeholder is $ and a number");
        out.push_str(&rest[..=dollar]);
        write!(out, "{}", number + by).expect("text grows");
        rest = &rest[dollar + 1 + digits..];
    }
    out.push_str(rest);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_row_becomes_many() {
        let one = Sql::new("INSERT INTO t (a, b, c) VALUES ($1, 1, coalesce($2, 0)) ON CONFLICT DO NOTHING");
        assert_eq!(
            one.for_rows(1, 2),
            "INSERT INTO t (a, b, c) VALUES ($1, 1, coalesce($2, 0)) ON CONFLICT DO NOTHING"
        );
        assert_eq!(
            one.for_rows(2, 2),
            "INSERT INTO t (a, b, c) VALUES ($1, 1, coalesce($2, 0)), ($3, 1, coalesce($4, 0)) ON CONFLICT DO NOTHING"
        );
    }

    #[test]
    fn arguments_are_numbered_by_first_appearance() {
        let order = |text: &'static str| Sql::new(text).order.numbers().map(<[u8]>::to_vec);
        assert_eq!(order("UPDATE t SET a = $3, b = coalesce($10, $3) WHERE c = $1"), Some(vec![3, 10, 1]));
        assert_eq!(order("SELECT 1"), Some(vec![]));
        let twenty = "$1 $2 $3 $4 $5 $6 $7 $8 $9 $10 $11 $12 $13 $14 $15 $16 $17 $18 $19 $20";
        assert_eq!(order(twenty), Some((1..=20).collect()));
        assert_eq!(order("$1 $2 $3 $4 $5 $6 $7 $8 $9 $10 $11 $12 $13 $14 $15 $16 $17 $18 $19 $20 $21"), None);
    }

    #[test]
    fn only_postgres_sees_the_lock() {
        let held = Sql::new("SELECT a FROM t").key_share();
        assert_eq!(held.text, "SELECT a FROM t");
        assert_eq!(held.with_lock(), "SELECT a FROM t FOR KEY SHARE");
    }
}
