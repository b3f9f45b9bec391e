//! One connection to PostgreSQL and the transaction on it, driven by a runtime of its own so that a transaction stays a plain
//! function. BEGIN and the clock travel with the first statement. Never retries anything itself: it says what may be retried.

use crate::sql::Sql;
use crate::value::{Row, Value};
use futures_util::TryStreamExt;
use futures_util::future::join3;
use model::{Effect, Failure, Refused, Timestamp, Trouble, TroubleKind};
use std::collections::HashMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Runtime;
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, Config, Statement};
use tokio_postgres_rustls::MakeRustlsConnect;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// A peer that does not answer for so long is gone.
const TCP_USER_TIMEOUT: Duration = Duration::from_secs(15);
/// Statements are a few hundred, times the row counts of multi-row inserts; beyond it all are prepared anew.
const CACHED_STATEMENTS: usize = 2048;
/// How long the outcome of a COMMIT is asked for after its connection was lost.
const ASK_TRIES: u32 = 20;
const ASK_EVERY: Duration = Duration::from_millis(250);

const SESSION: &str =
    "SET lock_timeout = '3s'; SET statement_timeout = '10s'; SET idle_in_transaction_session_timeout = '5s';
                       SET timezone = 'UTC'; SET client_min_messages = 'warning'; SET synchronous_commit = 'on'";
const READ_CLOCK: &str = "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint, ''";
/// With the transaction's number, to ask for its outcome by.
const WRITE_CLOCK: &str = "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint, pg_current_xact_id()::text";

/// Where the database is and how to speak to it.
#[derive(Clone)]
pub(crate) struct Address {
    config: Config,
    tls: MakeRustlsConnect,
}

impl Address {
    pub(crate) fn parse(url: &str) -> Result<Address, Failure> {
        let refused = |e: tokio_postgres::Error| Refused::invalid("database", format!("not a PostgreSQL address: {e}"));
        let mut config: Config = url.parse().map_err(refused)?;
        config.connect_timeout(CONNECT_TIMEOUT).tcp_user_timeout(TCP_USER_TIMEOUT).application_name("remuda");
        let roots = rustls::RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() };
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls = rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let tls = tls.expect("ring speaks TLS").with_root_certificates(roots).with_no_client_auth();
        Ok(Address { config, tls: MakeRustlsConnect::new(tls) })
    }

    /// A connected session and the task that must be driven for it.
    pub(crate) async fn connect(
        &self,
    ) -> Result<(Client, tokio_postgres::Connection<impl Socket, impl Socket>), Failure> {
        let unreachable = |e: tokio_postgres::Error| {
            let why = std::error::Error::source(&e).map_or(e.to_string(), ToString::to_string);
            Failure::from(Trouble::new(TroubleKind::Database, format!("cannot reach PostgreSQL: {why}")))
        };
        self.config.connect(self.tls.clone()).await.map_err(unreachable)
    }
}

pub(crate) trait Socket: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static {}
impl<S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static> Socket for S {}

pub(crate) struct Pg {
    runtime: Runtime,
    address: Address,
    link: Option<Link>,
    open: Open,
    /// The last failure left nothing behind and may be tried again: a deadlock, or a connection that died while it was idle.
    again: bool,
}

struct Link {
    client: Client,
    statements: HashMap<String, Statement>,
}

/// The transaction that is under way, or about to be.
#[derive(Default)]
struct Open {
    read_only: bool,
    began: bool,
    at: Option<Timestamp>,
    xid: Option<String>,
}

impl Pg {
    pub(crate) fn new(address: Address) -> Result<Pg, Failure> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|e| Trouble::internal(format!("cannot start a runtime: {e}")))?;
        Ok(Pg { runtime, address, link: None, open: Open::default(), again: false })
    }

    /// Makes ready for a transaction; it begins with its first statement.
    pub(crate) fn prepare(&mut self, read_only: bool) -> Result<(), Failure> {
        (self.open, self.again) = (Open { read_only, ..Open::default() }, false);
        if self.link.as_ref().is_some_and(|link| link.client.is_closed()) {
            self.link = None;
        }
        if self.link.is_none() {
            self.link = Some(self.runtime.block_on(connect(&self.address))?);
        }
        Ok(())
    }

    /// Runs a statement in the transaction: its rows, and how many it changed.
    pub(crate) fn run(&mut self, text: &str, args: &[Value]) -> Result<(Vec<Row>, u64), Failure> {
        let (link, open) = (self.link.as_mut().expect("prepared"), &mut self.open);
        let result = self.runtime.block_on(async {
            let statement = link.statement(text).await?;
            if open.began {
                return query(&link.client, &statement, args).await;
            }
            let clock = link.statement(if open.read_only { READ_CLOCK } else { WRITE_CLOCK }).await?;
            let begin = link.client.batch_execute(open.begin());
            // Sent in this order, answered together: the clock is read after the first statement has its locks.
            let first = query(&link.client, &statement, args);
            let (begun, answer, clock) = join3(begin, first, query(&link.client, &clock, &[])).await;
            begun?;
            open.began = true;
            let answer = answer?;
            open.note(clock?.0);
            Ok(answer)
        });
        result.map_err(|error| self.failed(error, text))
    }

    /// The database's time in this transaction.
    pub(crate) fn at(&mut self) -> Result<Timestamp, Failure> {
        if self.open.at.is_none() {
            let clock = if self.open.read_only { READ_CLOCK } else { WRITE_CLOCK };
            let (rows, _) = self.run(clock, &[])?;
            self.open.note(rows);
        }
        Ok(self.open.at.expect("the clock was read"))
    }

    pub(crate) fn commit(&mut self) -> Result<(), Failure> {
        if !self.open.began {
            return Ok(());
        }
        let link = self.link.as_mut().expect("prepared");
        let Err(error) = self.runtime.block_on(link.client.batch_execute("COMMIT")) else { return Ok(()) };
        if !is_lost(&error) || self.open.read_only {
            return Err(self.failed(error, "COMMIT"));
        }
        self.link = None;
        self.ask_outcome()
    }

    pub(crate) fn rollback(&mut self) {
        if let Some(link) = self.link.as_mut().filter(|_| self.open.began) {
            // A connection that cannot even do that is not used again.
            if self.runtime.block_on(link.client.batch_execute("ROLLBACK")).is_err() {
                self.link = None;
            }
        }
    }

    /// A statement in a transaction of its own.
    pub(crate) fn at_once(&mut self, sql: &Sql, args: &[Value]) -> Result<Vec<Row>, Failure> {
        self.prepare(false)?;
        let rows = self.run(&sql.with_lock(), args).map(|(rows, _)| rows);
        match &rows {
            Ok(_) => self.commit()?,
            Err(_) => self.rollback(),
        }
        rows
    }

    pub(crate) fn may_try_again(&self) -> bool {
        self.again
    }

    /// Lets `work` speak to the client outside of any transaction of ours: for migrations.
    pub(crate) fn with_client<T>(
        &mut self,
        work: impl AsyncFnOnce(&mut Client) -> Result<T, tokio_postgres::Error>,
    ) -> Result<T, Failure> {
        self.prepare(false)?;
        let link = self.link.as_mut().expect("prepared");
        let result = self.runtime.block_on(work(&mut link.client));
        result.map_err(|error| self.failed(error, "setting up the database"))
    }

    /// The connection was lost while it committed. Every backend but ours knows how that ended.
    #[expect(
        clippy::disallowed_methods,
        reason = "there is no event to wait for: the dead session's transaction ends when the server notices"
    )]
    fn ask_outcome(&mut self) -> Result<(), Failure> {
        let xid = self.open.xid.clone().expect("a write knows its number");
        let unknown =
            || Trouble::new(TroubleKind::Database, "the connection to PostgreSQL was lost during a commit").perhaps();
        for _ in 0..ASK_TRIES {
            let asked: Result<Option<String>, Failure> = self.runtime.block_on(async {
                let link = connect(&self.address).await?;
                let row = link.client.query_one("SELECT pg_xact_status($1::text::xid8)", &[&xid]).await;
                Ok(row.and_then(|row| row.try_get(0)).unwrap_or(None))
            });
            match asked.ok().flatten().as_deref() {
                Some("committed") => return Ok(()),
                Some("aborted") => {
                    self.again = true;
                    return Err(Trouble::new(
                        TroubleKind::Database,
                        "the connection to PostgreSQL was lost before the commit",
                    )
                    .into());
                }
                _ => self.runtime.block_on(async { tokio::time::sleep(ASK_EVERY).await }),
            }
        }
        Err(unknown().into())
    }

    /// Puts an error into our words and remembers what may be done about it.
    fn failed(&mut self, error: tokio_postgres::Error, doing: &str) -> Failure {
        let lost = is_lost(&error);
        if lost {
            self.link = None;
        }
        let aborted = error
            .code()
            .is_some_and(|code| [SqlState::T_R_SERIALIZATION_FAILURE, SqlState::T_R_DEADLOCK_DETECTED].contains(code));
        self.again = aborted || (lost && !self.open.began);
        in_our_words(&error, doing)
    }
}

impl Open {
    fn begin(&self) -> &'static str {
        if self.read_only { "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY" } else { "BEGIN" }
    }

    fn note(&mut self, clock: Vec<Row>) {
        let row = clock.first().expect("the clock is a row");
        self.at = row.at(0).ok();
        self.xid = row.text(1).ok();
    }
}

impl Link {
    async fn statement(&mut self, text: &str) -> Result<Statement, tokio_postgres::Error> {
        if let Some(statement) = self.statements.get(text) {
            return Ok(statement.clone());
        }
        if self.statements.len() >= CACHED_STATEMENTS {
            self.statements.clear();
        }
        let statement = self.client.prepare(text).await?;
        self.statements.insert(text.to_owned(), statement.clone());
        Ok(statement)
    }
}

async fn connect(address: &Address) -> Result<Link, Failure> {
    let (client, connection) = address.connect().await?;
    tokio::spawn(async move {
        // Whoever uses the client hears of its end.
        let _ = connection.await;
    });
    client.batch_execute(SESSION).await.map_err(|e| in_our_words(&e, "SET"))?;
    Ok(Link { client, statements: HashMap::new() })
}

async fn query(
    client: &Client,
    statement: &Statement,
    args: &[Value],
) -> Result<(Vec<Row>, u64), tokio_postgres::Error> {
    let mut answer = pin!(client.query_raw(statement, args).await?);
    let mut rows = Vec::new();
    while let Some(row) = answer.try_next().await? {
        rows.push(Row((0..row.len()).map(|i| row.try_get(i)).collect::<Result<_, _>>()?));
    }
    Ok((rows, answer.rows_affected().unwrap_or(0)))
}

/// The session is over, whether the network or the server ended it.
fn is_lost(error: &tokio_postgres::Error) -> bool {
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

fn in_our_words(error: &tokio_postgres::Error, doing: &str) -> Failure {
    let doing = doing.split_whitespace().take(6).collect::<Vec<_>>().join(" ");
    let text = error.as_db_error().map_or_else(|| error.to_string(), |db| db.message().to_owned());
    let nothing = |kind, what: String| Failure::from(Trouble { kind, what, retry: true, effect: Effect::None });
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
