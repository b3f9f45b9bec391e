//! One connection to one database: runs statements, returns rows, and maps database errors to `Failure`.
//! Never begins or ends a transaction; the thread that owns the connection does.

use crate::pg::Pg;
use crate::post::Posted;
use crate::sql::{ArgumentOrder, Sql};
use crate::value::{Row, Value};
use model::{Failure, Refused, Timestamp, Trouble, TroubleKind};
use rusqlite::types::ValueRef;
use rusqlite::{Connection, ErrorCode, Statement, StatementStatus};
use std::cell::Cell;

thread_local! {
    /// Steps of SQLite's virtual machine in statements of this thread, since they were last taken.
    static STEPS: Cell<u64> = const { Cell::new(0) };
}

/// What statements of this thread have cost SQLite since the last call, without a clock: a scan of more rows takes more steps.
pub(crate) fn take_steps() -> u64 {
    STEPS.take()
}

fn count_steps(statement: &Statement<'_>) {
    let steps = statement.reset_status(StatementStatus::VmStep);
    STEPS.set(STEPS.get() + u64::try_from(steps).unwrap_or_default());
}

pub(crate) enum Conn {
    Lite(Connection),
    Pg(Box<Pg>),
}

impl Conn {
    pub(crate) fn exec(&mut self, sql: &Sql, args: &[Value]) -> Result<u64, Failure> {
        match self {
            Conn::Lite(lite) => lite_exec(lite, sql.text, &sql.order, args),
            Conn::Pg(pg) => pg.run(&sql.with_lock(), args).map(|(_, changed)| changed),
        }
    }

    pub(crate) fn rows(&mut self, sql: &Sql, args: &[Value]) -> Result<Vec<Row>, Failure> {
        match self {
            Conn::Lite(lite) => lite_rows(lite, sql, args),
            Conn::Pg(pg) => pg.run(&sql.with_lock(), args).map(|(rows, _)| rows),
        }
    }

    /// The rows of each of these statements: on PostgreSQL one round trip for all of them.
    pub(crate) fn rows_of_each(&mut self, asked: &[(&Sql, Vec<Value>)]) -> Result<Vec<Vec<Row>>, Failure> {
        match self {
            Conn::Lite(lite) => asked.iter().map(|(sql, args)| lite_rows(lite, sql, args)).collect(),
            Conn::Pg(pg) => {
                let texts: Vec<_> = asked.iter().map(|(sql, _)| sql.with_lock()).collect();
                let asked: Vec<_> = texts.iter().zip(asked).map(|(text, (_, args))| (&**text, &**args)).collect();
                Ok(pg.run_all(&asked)?.into_iter().map(|(rows, _)| rows).collect())
            }
        }
    }

    pub(crate) fn post(&mut self, posted: Posted) -> Result<(), Failure> {
        match self {
            Conn::Lite(lite) => posted.meaning.judge(lite_exec(lite, &posted.text, &posted.order, &posted.args)),
            Conn::Pg(pg) => pg.post(posted),
        }
    }

    /// The text that this database gets: PostgreSQL with the row lock.
    pub(crate) fn text_of(&self, sql: &Sql) -> String {
        match self {
            Conn::Lite(_) => sql.text.to_owned(),
            Conn::Pg(_) => sql.with_lock().into_owned(),
        }
    }

    /// False when SQLite has ended the transaction by itself, as it does on a full disk.
    pub(crate) fn in_transaction(&self) -> bool {
        match self {
            Conn::Lite(lite) => !lite.is_autocommit(),
            // PostgreSQL begins with the first statement and refuses every one after an error.
            Conn::Pg(_) => true,
        }
    }

    /// The database's own clock, where it has one.
    pub(crate) fn at(&mut self) -> Result<Option<Timestamp>, Failure> {
        match self {
            Conn::Lite(_) => Ok(None),
            Conn::Pg(pg) => pg.at().map(Some),
        }
    }

    pub(crate) fn lite(&self) -> &Connection {
        match self {
            Conn::Lite(lite) => lite,
            Conn::Pg(_) => unreachable!("the threads of SQLite hold connections to SQLite"),
        }
    }

    pub(crate) fn into_lite(self) -> Connection {
        match self {
            Conn::Lite(lite) => lite,
            Conn::Pg(_) => unreachable!("the threads of SQLite hold connections to SQLite"),
        }
    }

    pub(crate) fn pg(&mut self) -> &mut Pg {
        match self {
            Conn::Pg(pg) => pg,
            Conn::Lite(_) => unreachable!("the threads of PostgreSQL hold connections to PostgreSQL"),
        }
    }
}

fn lite_exec(lite: &Connection, text: &str, order: &ArgumentOrder, args: &[Value]) -> Result<u64, Failure> {
    let run = || {
        let mut statement = lite.prepare_cached(text)?;
        bind(&mut statement, order, args)?;
        let changed = statement.raw_execute();
        count_steps(&statement);
        changed
    };
    run().map(|changed| changed as u64).map_err(|e| lite_failure(e, text))
}

fn lite_rows(lite: &Connection, sql: &Sql, args: &[Value]) -> Result<Vec<Row>, Failure> {
    let run = || rows_of(&mut *lite.prepare_cached(sql.text)?, &sql.order, args);
    run().map_err(|e| lite_failure(e, sql.text))
}

fn rows_of(statement: &mut Statement<'_>, order: &ArgumentOrder, args: &[Value]) -> rusqlite::Result<Vec<Row>> {
    bind(statement, order, args)?;
    let columns = statement.column_count();
    let (mut rows, mut found) = (statement.raw_query(), Vec::new());
    while let Some(row) = rows.next()? {
        let values = (0..columns).map(|i| row.get_ref(i).map(owned)).collect::<Result<_, _>>()?;
        found.push(Row(values));
    }
    drop(rows);
    count_steps(statement);
    Ok(found)
}

fn bind(statement: &mut Statement<'_>, order: &ArgumentOrder, args: &[Value]) -> rusqlite::Result<()> {
    if order.is_in_turn() {
        return (1..=statement.parameter_count()).try_for_each(|index| {
            debug_assert_eq!(named(statement, index), Some(index), "as SQLite numbers them");
            bind_one(statement, index, args.get(index - 1))
        });
    }
    if let Some(numbers) = order.numbers() {
        debug_assert_eq!(numbers.len(), statement.parameter_count(), "as SQLite counts them");
        for (index, number) in (1..).zip(numbers) {
            debug_assert_eq!(named(statement, index), Some(usize::from(*number)), "as SQLite numbers them");
            bind_one(statement, index, args.get(usize::from(*number) - 1))?;
        }
        return Ok(());
    }
    for index in 1..=statement.parameter_count() {
        let value = named(statement, index).and_then(|number| args.get(number - 1));
        bind_one(statement, index, value)?;
    }
    Ok(())
}

fn named(statement: &Statement<'_>, index: usize) -> Option<usize> {
    statement.parameter_name(index)?[1..].parse().ok()
}

fn bind_one(statement: &mut Statement<'_>, index: usize, value: Option<&Value>) -> rusqlite::Result<()> {
    match value.unwrap_or_else(|| panic!("a statement names more arguments than it was given")) {
        Value::Null => statement.raw_bind_parameter(index, rusqlite::types::Null),
        Value::Int(n) => statement.raw_bind_parameter(index, n),
        Value::Text(text) => statement.raw_bind_parameter(index, text),
        Value::Blob(bytes) => statement.raw_bind_parameter(index, bytes),
    }
}

fn owned(value: ValueRef<'_>) -> Value {
    match value {
        ValueRef::Null => Value::Null,
        ValueRef::Integer(n) => Value::Int(n),
        // The strict check first: it is many times as fast, and mostly all that is needed.
        ValueRef::Text(text) => Value::Text(
            std::str::from_utf8(text).map_or_else(|_| String::from_utf8_lossy(text).into_owned(), str::to_owned),
        ),
        ValueRef::Blob(bytes) => Value::Blob(bytes.to_vec()),
        ValueRef::Real(x) => {
            panic!("a statement answered with the real number {x}: columns are integers, text and bytes")
        }
    }
}

pub(crate) fn lite_failure(error: rusqlite::Error, doing: &str) -> Failure {
    use rusqlite::ffi::{SQLITE_CONSTRAINT_PRIMARYKEY, SQLITE_CONSTRAINT_UNIQUE};
    let code = error.sqlite_error().map(|e| (e.code, e.extended_code));
    let doing = doing.split_whitespace().take(6).collect::<Vec<_>>().join(" ");
    match code {
        Some((ErrorCode::DiskFull, _)) => {
            Trouble::new(TroubleKind::DiskFull, "the disk of the database is full: free some space").into()
        }
        Some((ErrorCode::ConstraintViolation, SQLITE_CONSTRAINT_UNIQUE | SQLITE_CONSTRAINT_PRIMARYKEY)) => {
            Refused::Conflict { why: format!("already there: {error}") }.into()
        }
        Some((ErrorCode::ConstraintViolation, _)) => {
            Trouble::internal(format!("the database's rules forbid `{doing} …`: {error}")).into()
        }
        Some((
            ErrorCode::SystemIoFailure | ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked | ErrorCode::CannotOpen,
            _,
        )) => Trouble::new(TroubleKind::Database, format!("the database failed at `{doing} …`: {error}")).into(),
        _ => Trouble::internal(format!("`{doing} …`: {error}")).into(),
    }
}
