//! The threads of PostgreSQL: each owns a connection and runs queued closures on it. A closure is retried after a deadlock, and after an
//! idle connection turned out to be dead; every other failure is the answer.

use crate::conn::Conn;
use crate::crash::{self, Moment};
use crate::hint::Hint;
use crate::ids::TAKE_BLOCK;
use crate::installation::random;
use crate::pg::Pg;
use crate::pg_address::Address;
use crate::queue::{Job, Queue, run_caught};
use crate::tx::{Context, Tx};
use model::{Failure, crash_point};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

/// Retries of a closure after a deadlock or a dead connection.
const TRIES: u32 = 5;

/// One connection and its thread.
pub(crate) struct Server {
    conn: Option<Conn>,
    context: Arc<Context>,
}

/// What one try came to.
enum Tried {
    Done(BTreeSet<Hint>),
    Again(Failure),
    Failed(Failure),
}

impl Server {
    pub(crate) fn new(address: Address, context: Arc<Context>) -> Result<Server, Failure> {
        Ok(Server { conn: Some(Conn::Pg(Box::new(Pg::new(address)?))), context })
    }

    /// Until the queue is closed and empty; jobs of the first `lanes` lanes only.
    pub(crate) fn serve(mut self, queue: &Queue, lanes: usize) {
        while let Some(job) = queue.wait(lanes) {
            let turn = job.turn();
            self.answer(job);
            queue.done(turn);
        }
    }

    fn answer(&mut self, mut job: Box<dyn Job>) {
        let mut tries = 0;
        loop {
            tries += 1;
            match self.try_once(&mut *job) {
                Tried::Done(hints) => {
                    self.context.learn(&Ok(()), job.reads());
                    // Before the answer: so hints of writes that follow each other arrive in that order, on whichever threads they ran.
                    crash_point!("hints.tell", self.context.hints.committed(hints));
                    return job.answer(Ok(()));
                }
                Tried::Again(_) if tries < TRIES => step_aside(tries),
                Tried::Again(failure) | Tried::Failed(failure) => {
                    let verdict = Err(failure);
                    self.context.learn(&verdict, job.reads());
                    return job.answer(verdict);
                }
            }
        }
    }

    fn try_once(&mut self, job: &mut dyn Job) -> Tried {
        if let Err(failure) = self.make_ready(job.reads()) {
            return self.judged(failure);
        }
        let conn = self.conn.take().expect("the thread has its connection between closures");
        let mut tx = Tx::new(conn, self.context.clone(), job.access());
        let result = run_caught(job, &mut tx);
        let ended = tx.end();
        self.conn = Some(ended.conn);
        // A closure that ignored a statement's error has not succeeded.
        if let Err(failure) = result.and(ended.broken.map_or(Ok(()), Err)) {
            self.pg().rollback();
            return if ended.out_of_ids { Tried::Again(failure) } else { self.judged(failure) };
        }
        if !job.reads() {
            crash::reached(None, job.name(), Moment::Before);
        }
        if let Err(failure) = self.pg().commit() {
            return self.judged(failure);
        }
        if !job.reads() {
            self.context.tally.committed(false);
            crash::reached(None, job.name(), Moment::After);
        }
        Tried::Done(ended.hints)
    }

    fn make_ready(&mut self, reads: bool) -> Result<(), Failure> {
        if let Some(size) = self.context.ids.short_of().filter(|_| !reads) {
            let asked = self.context.ids.asked(size);
            let rows = crash_point!("ids.take", self.pg().at_once(&TAKE_BLOCK, &asked))?;
            self.context.ids.add(rows[0].int(0)?, size)?;
        }
        self.pg().prepare(reads)
    }

    fn judged(&mut self, failure: Failure) -> Tried {
        if self.pg().may_try_again() { Tried::Again(failure) } else { Tried::Failed(failure) }
    }

    fn pg(&mut self) -> &mut Pg {
        self.conn.as_mut().expect("the thread has its connection between closures").pg()
    }
}

/// Two that met once would meet again if both came back at once.
#[expect(clippy::disallowed_methods, reason = "nothing tells when the other has passed")]
fn step_aside(tries: u32) {
    let [luck] = random::<1>();
    std::thread::sleep(Duration::from_micros(u64::from(luck) * 20 * u64::from(tries)));
}
