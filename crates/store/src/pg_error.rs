//! Maps PostgreSQL's errors to `Failure`, and tells which of them end the session.

use model::{Effect, Failure, Refused, Trouble, TroubleKind};
use tokio_postgres::error::SqlState;

/// The session is over, whether the network or the server ended it.
pub(crate) fn is_lost(error: &tokio_postgres::Error) -> bool {
    let Some(code) = error.code() else {
        return error.is_closed() || std::error::Error::source(error).is_some_and(|e| e.is::<std::io::Error>());
    };
    let ended = [
        SqlState::ADMIN_SHUTDOWN,
        SqlState::CRASH_SHUTDOWN,
        SqlState::CANNOT_CONNECT_NOW,
        SqlState::IDLE_IN_TRANSACTION_SESSION_TIMEOUT,
    ];
    ended.contains(code) || code.code().starts_with("08")
}

/// The database took the transaction back because of another: the same again may succeed.
pub(crate) fn met_another(error: &tokio_postgres::Error) -> bool {
    let met = [SqlState::T_R_SERIALIZATION_FAILURE, SqlState::T_R_DEADLOCK_DETECTED];
    error.code().is_some_and(|code| met.contains(code))
}

pub(crate) fn in_our_words(error: &tokio_postgres::Error, doing: &str) -> Failure {
    let doing = doing.split_whitespace().take(6).collect::<Vec<_>>().join(" ");
    let text = error.as_db_error().map_or_else(|| error.to_string(), |db| db.message().to_owned());
    let nothing =
        |kind, what: String| Failure::from(Trouble { retry: true, effect: Effect::None, ..Trouble::new(kind, what) });
    match error.code() {
        Some(&SqlState::UNIQUE_VIOLATION) => Refused::Conflict { why: format!("already there: {text}") }.into(),
        Some(&SqlState::LOCK_NOT_AVAILABLE | &SqlState::QUERY_CANCELED) => {
            nothing(TroubleKind::Timeout, format!("the database took too long at `{doing} …`: {text}"))
        }
        Some(&SqlState::DISK_FULL) => {
            nothing(TroubleKind::DiskFull, "the disk of the database is full: free some space".to_owned())
        }
        Some(
            &SqlState::T_R_SERIALIZATION_FAILURE | &SqlState::T_R_DEADLOCK_DETECTED | &SqlState::TOO_MANY_CONNECTIONS,
        ) => nothing(TroubleKind::Database, format!("the database was too busy at `{doing} …`: {text}")),
        _ if is_lost(error) => {
            nothing(TroubleKind::Database, format!("the connection to PostgreSQL was lost at `{doing} …`: {text}"))
        }
        _ => Trouble::internal(format!("`{doing} …`: {text}")).into(),
    }
}
