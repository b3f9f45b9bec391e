//! One connection to PostgreSQL and the transaction on it, driven by a runtime of its own so that a transaction is a synchronous
//! function. BEGIN and the clock are sent with the first statement, posted statements with the next one that is waited for, and the
//! last of them with COMMIT. Never retries; `may_try_again` tells the caller what can be.

use crate::pg_address::Address;
use crate::pg_error::{in_our_words, is_lost, met_another};
use crate::post::Posted;
use crate::sql::Sql;
use crate::value::{Row, Value};
use futures_util::TryStreamExt;
use model::{Failure, Timestamp, Trouble, TroubleKind};
use std::collections::HashMap;
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Duration;
use tokio::runtime::Runtime;
use tokio_postgres::{Client, Error, Statement};

/// Prepared statements that a connection keeps. There are about 200 texts, and of an insert of many rows one for each number of rows.
/// Beyond it the cache is emptied.
const CACHED_STATEMENTS: usize = 2048;
/// More posted statements than this are sent at once, before the next one that is waited for.
const POSTED_AT_ONCE: usize = 32;
/// How long the outcome of a COMMIT is asked for after its connection was lost.
const ASK_TRIES: u32 = 20;
const ASK_EVERY: Duration = Duration::from_millis(250);

const SESSION: &str =
    "SET lock_timeout = '3s'; SET statement_timeout = '10s'; SET idle_in_transaction_session_timeout = '5s';
                       SET timezone = 'UTC'; SET client_min_messages = 'warning'; SET synchronous_commit = 'on'";
/// Identifies a run of the server: after a crash it restarts its checkpointer.
const LIFE: &str = "SELECT backend_start::text FROM pg_stat_activity WHERE backend_type = 'checkpointer'";
const READ_CLOCK: &str = "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint, ''";
/// With the transaction's number, to ask for its outcome by.
const WRITE_CLOCK: &str = "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint, pg_current_xact_id()::text";

pub(crate) struct Pg {
    runtime: Runtime,
    address: Address,
    link: Option<Link>,
    open: Open,
    posted: Vec<Posted>,
    /// The last failure left nothing behind and may be tried again: a deadlock, or a connection that died while it was idle.
    again: bool,
}

struct Link {
    client: Client,
    statements: HashMap<String, Statement>,
    /// Which run of the server this is (`LIFE`); none if we lack the permission to see it.
    life: Option<String>,
}

/// The transaction that is under way, or about to be.
#[derive(Default)]
struct Open {
    read_only: bool,
    began: bool,
    at: Option<Timestamp>,
    xid: Option<String>,
}

/// A statement whose answer is waited for.
pub(crate) type Asked<'a> = (&'a str, &'a [Value]);
/// Its rows, and how many it changed.
pub(crate) type Answered = (Vec<Row>, u64);
type Sent<'a> = Pin<Box<dyn Future<Output = Result<Answered, Error>> + 'a>>;

impl Pg {
    pub(crate) fn new(address: Address) -> Result<Pg, Failure> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|e| Trouble::internal(format!("cannot start a runtime: {e}")))?;
        Ok(Pg { runtime, address, link: None, open: Open::default(), posted: Vec::new(), again: false })
    }

    /// Makes ready for a transaction; it begins with its first statement.
    pub(crate) fn prepare(&mut self, read_only: bool) -> Result<(), Failure> {
        (self.open, self.again) = (Open { read_only, ..Open::default() }, false);
        self.posted.clear();
        if self.link.as_ref().is_some_and(|link| link.client.is_closed()) {
            self.link = None;
        }
        if self.link.is_none() {
            self.link = Some(self.runtime.block_on(connect(&self.address))?);
        }
        Ok(())
    }

    /// Runs a statement in the transaction: its rows, and how many it changed.
    pub(crate) fn run(&mut self, text: &str, args: &[Value]) -> Result<Answered, Failure> {
        Ok(self.run_all(&[(text, args)])?.pop().expect("as many answers as questions"))
    }

    /// Sends what was posted and these, in this order, and waits for all answers at once.
    pub(crate) fn run_all(&mut self, asked: &[Asked<'_>]) -> Result<Vec<Answered>, Failure> {
        let posted = std::mem::take(&mut self.posted);
        let clock = if self.open.read_only { READ_CLOCK } else { WRITE_CLOCK };
        let begins = !self.open.began;
        let (link, begin) = (self.link.as_mut().expect("prepared"), self.open.begin());
        let sent = self.runtime.block_on(async {
            let mut texts: Vec<&str> = posted.iter().map(|posted| &*posted.text).collect();
            texts.extend(asked.iter().map(|(text, _)| *text));
            // Read after the first statements have their locks.
            texts.extend(begins.then_some(clock));
            let statements = link.statements(&texts).await?;
            let args = posted.iter().map(|posted| &*posted.args).chain(asked.iter().map(|(_, args)| *args));
            let mut sends: Vec<Sent<'_>> = Vec::new();
            if begins {
                sends.push(Box::pin(command(&link.client, begin)));
            }
            for (statement, args) in statements.iter().zip(args.chain([[].as_slice()])) {
                sends.push(Box::pin(query(&link.client, statement, args)));
            }
            Ok(in_order(sends).await)
        });
        let mut answers = sent.map_err(|error| self.failed(&error, "preparing a statement"))?.into_iter();
        let mut next = || answers.next().expect("as many answers as statements");
        if begins {
            next().map_err(|error| self.failed(&error, begin))?;
            self.open.began = true;
        }
        for posted in posted {
            let changed = next().map(|(_, changed)| changed).map_err(|error| self.failed(&error, &posted.text));
            posted.meaning.judge(changed)?;
        }
        let mut answered = Vec::with_capacity(asked.len());
        for (text, _) in asked {
            answered.push(next().map_err(|error| self.failed(&error, text))?);
        }
        if begins {
            let (rows, _) = next().map_err(|error| self.failed(&error, clock))?;
            self.open.note(rows);
        }
        Ok(answered)
    }

    /// Sent with the next statement that is waited for, or with the commit.
    pub(crate) fn post(&mut self, posted: Posted) -> Result<(), Failure> {
        self.posted.push(posted);
        if self.posted.len() >= POSTED_AT_ONCE { self.run_all(&[]).map(drop) } else { Ok(()) }
    }

    /// The database's time in this transaction.
    pub(crate) fn at(&mut self) -> Result<Timestamp, Failure> {
        if self.open.at.is_none() {
            self.run_all(&[])?;
        }
        Ok(self.open.at.expect("the clock was read"))
    }

    /// Everything that was posted, and COMMIT; on failure nothing is left open.
    pub(crate) fn commit(&mut self) -> Result<(), Failure> {
        let may_stop = self.posted.iter().any(|posted| posted.meaning.may_stop_the_commit());
        // The transaction's number must be known before COMMIT is sent, to ask for its outcome by.
        if !self.posted.is_empty() && (may_stop || !self.open.began) {
            self.run_all(&[]).inspect_err(|_| self.rollback())?;
        }
        if !self.open.began {
            return Ok(());
        }
        let posted = std::mem::take(&mut self.posted);
        let link = self.link.as_mut().expect("prepared");
        let texts: Vec<&str> = posted.iter().map(|posted| &*posted.text).collect();
        let statements = match self.runtime.block_on(link.statements(&texts)) {
            Ok(statements) => statements,
            Err(error) => {
                let failure = self.failed(&error, "preparing a statement");
                self.rollback();
                return Err(failure);
            }
        };
        let mut sends: Vec<Sent<'_>> = Vec::with_capacity(posted.len() + 1);
        for (statement, posted) in statements.iter().zip(&posted) {
            sends.push(Box::pin(query(&link.client, statement, &posted.args)));
        }
        sends.push(Box::pin(command(&link.client, "COMMIT")));
        let mut answers = self.runtime.block_on(in_order(sends));
        let committed = answers.pop().expect("COMMIT was sent");
        // After a failed statement the server turns COMMIT into ROLLBACK. A lost connection tells nothing.
        for (posted, answer) in posted.into_iter().zip(answers) {
            match answer {
                Err(error) if is_lost(&error) => break,
                answer => {
                    let changed = answer.map(|(_, changed)| changed).map_err(|e| self.failed(&e, &posted.text));
                    posted.meaning.judge(changed)?;
                }
            }
        }
        let Err(error) = committed else { return Ok(()) };
        if !is_lost(&error) || self.open.read_only {
            return Err(self.failed(&error, "COMMIT"));
        }
        let life = self.link.take().and_then(|link| link.life);
        self.ask_outcome(life.as_deref())
    }

    pub(crate) fn rollback(&mut self) {
        self.posted.clear();
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

    /// Gives `work` the client outside of any transaction: for migrations.
    pub(crate) fn with_client<T>(
        &mut self,
        work: impl AsyncFnOnce(&mut Client) -> Result<T, Error>,
    ) -> Result<T, Failure> {
        self.prepare(false)?;
        let link = self.link.as_mut().expect("prepared");
        let result = self.runtime.block_on(work(&mut link.client));
        result.map_err(|error| self.failed(&error, "setting up the database"))
    }

    /// The connection was lost during COMMIT: asks the server for the outcome of the transaction by its number. If the server has crashed
    /// since, `committed` proves nothing: numbers that never reached its disk are given out again, so it may be another transaction.
    /// `aborted` is reliable in either case.
    #[expect(
        clippy::disallowed_methods,
        reason = "there is no event to wait for: the dead session's transaction ends when the server notices"
    )]
    fn ask_outcome(&mut self, life: Option<&str>) -> Result<(), Failure> {
        let xid = self.open.xid.clone().expect("a write knows its number");
        let unknown =
            || Trouble::new(TroubleKind::Database, "the connection to PostgreSQL was lost during a commit").perhaps();
        for _ in 0..ASK_TRIES {
            let asked: Result<(Option<String>, bool), Failure> = self.runtime.block_on(async {
                let link = connect(&self.address).await?;
                let row = link.client.query_one("SELECT pg_xact_status($1::text::xid8)", &[&xid]).await;
                let same_life = life.is_some() && link.life.as_deref() == life;
                Ok((row.and_then(|row| row.try_get(0)).unwrap_or(None), same_life))
            });
            match asked.as_ref().map(|(status, same_life)| (status.as_deref(), *same_life)) {
                Ok((Some("committed"), true)) => return Ok(()),
                Ok((Some("committed"), false)) => break,
                Ok((Some("aborted"), _)) => {
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

    /// Maps an error to a `Failure`, and notes whether a retry is safe.
    fn failed(&mut self, error: &Error, doing: &str) -> Failure {
        let lost = is_lost(error);
        if lost {
            self.link = None;
        }
        self.again = met_another(error) || (lost && !self.open.began);
        in_our_words(error, doing)
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
    /// These, prepared; those that are new are prepared together.
    async fn statements(&mut self, texts: &[&str]) -> Result<Vec<Statement>, Error> {
        if self.statements.len() + texts.len() > CACHED_STATEMENTS {
            self.statements.clear();
        }
        let mut missing: Vec<&str> =
            texts.iter().copied().filter(|text| !self.statements.contains_key(*text)).collect();
        missing.sort_unstable();
        missing.dedup();
        let client = &self.client;
        let prepared = in_order(missing.iter().map(|text| Box::pin(client.prepare(text))).collect()).await;
        for (text, statement) in missing.into_iter().zip(prepared) {
            self.statements.insert(text.to_owned(), statement?);
        }
        Ok(texts.iter().map(|text| self.statements[*text].clone()).collect())
    }
}

async fn connect(address: &Address) -> Result<Link, Failure> {
    let (client, connection) = address.connect().await?;
    tokio::spawn(async move {
        // The client reports the end of the connection to its user.
        let _ = connection.await;
    });
    client.batch_execute(SESSION).await.map_err(|e| in_our_words(&e, "SET"))?;
    let life = client.query_opt(LIFE, &[]).await.map_err(|e| in_our_words(&e, LIFE))?;
    let life = life.and_then(|row| row.try_get(0).ok().flatten());
    Ok(Link { client, statements: HashMap::new(), life })
}

async fn command(client: &Client, text: &str) -> Result<Answered, Error> {
    client.batch_execute(text).await.map(|()| (Vec::new(), 0))
}

async fn query(client: &Client, statement: &Statement, args: &[Value]) -> Result<Answered, Error> {
    let mut answer = pin!(client.query_raw(statement, args).await?);
    let mut rows = Vec::new();
    while let Some(row) = answer.try_next().await? {
        rows.push(Row((0..row.len()).map(|i| row.try_get(i)).collect::<Result<_, _>>()?));
    }
    Ok((rows, answer.rows_affected().unwrap_or(0)))
}

/// Polls them in this order, so that what each sends leaves in this order; ends when all have their answer.
async fn in_order<T, F: Future<Output = T> + Unpin>(mut sends: Vec<F>) -> Vec<T> {
    let mut answers: Vec<Option<T>> = sends.iter().map(|_| None).collect();
    std::future::poll_fn(|cx| {
        for (send, answer) in sends.iter_mut().zip(&mut answers) {
            if answer.is_none()
                && let Poll::Ready(value) = Pin::new(send).poll(cx)
            {
                *answer = Some(value);
            }
        }
        if answers.iter().all(Option::is_some) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    answers.into_iter().flatten().collect()
}
