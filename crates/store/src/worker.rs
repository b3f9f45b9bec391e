//! Workers: one lease row per process. Its items are free when the lease expires or a newer process takes over its name. Also the
//! monitor row, which any live control plane updates, and the outages, which are gaps between its updates.

use crate::args;
use crate::sql::{Rank, Sql};
use crate::tx::Tx;
use model::time::{Outage, SECOND};
use model::{Failure, Refused, Timestamp};
use std::collections::BTreeSet;

/// A lease that was not renewed for this long has expired; `Options::lease_ms` overrides it.
pub const LEASE_MS: i64 = 30 * SECOND;
/// Interval of renewals.
pub const RENEW_EVERY_MS: i64 = LEASE_MS / 3;
/// Six beats to a lease: some may be late or lost.
pub const BEAT_EVERY_MS: i64 = beat_every_ms(LEASE_MS);

pub const fn beat_every_ms(lease_ms: i64) -> i64 {
    lease_ms / 6
}

/// A worker that has not renewed for this long must renew before it claims; a gap of this length between beats of the monitor is an
/// outage.
fn stale_after_ms(tx: &Tx) -> i64 {
    tx.lease_ms() / 3 * 2
}

/// A process that leases work items. Its boot changes at every start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Worker {
    pub id: i64,
    pub boot: i64,
}

/// Takes over the lease of this name: the items of an earlier process of this name are free at once.
pub fn start(tx: &mut Tx, name: &str) -> Result<Worker, Failure> {
    let (id, at) = (tx.next_id(), tx.at());
    let row = tx.row(&START, &args![id, name, at])?.expect("an upsert returns its row");
    Ok(Worker { id: row.int(0)?, boot: row.int(1)? })
}

/// Renews the lease. Refused if a newer process has taken over the name: then this process must end.
pub fn renew(tx: &mut Tx, worker: &Worker) -> Result<(), Failure> {
    let at = tx.at();
    let renewed = tx.exec(&RENEW, &args![worker.id, worker.boot, at])?;
    if renewed == 0 { Err(superseded()) } else { Ok(()) }
}

/// An orderly end: releases all items, so that it does not count as a death.
pub fn stop(tx: &mut Tx, worker: &Worker) -> Result<(), Failure> {
    release(tx, worker)?;
    tx.post(&STOP, args![worker.id, worker.boot])?;
    tx.hint(crate::Hint::Work(Timestamp(0)));
    Ok(())
}

/// Releases all items of this worker, without counting a death.
pub(crate) fn release(tx: &mut Tx, worker: &Worker) -> Result<(), Failure> {
    tx.exec(&RELEASE, &args![worker.id, worker.boot]).map(drop)
}

/// Any live server is alive: notes the time, and the outage if there was a gap. A clock that was set back is followed: beats
/// and leases of a time that is still to come would hide every gap and every death until then.
pub fn beat(tx: &mut Tx) -> Result<Option<Outage>, Failure> {
    let last = tx.row(&LAST_BEAT, &args![])?.expect("the monitor row is made by a migration").at(0)?;
    let at = tx.at();
    if last.since(at) > stale_after_ms(tx) {
        tx.post(&BEAT, args![at])?;
        tx.post(&LEASES_SET_BACK, args![at])?;
        return Ok(None);
    }
    if at <= last {
        return Ok(None);
    }
    tx.post(&BEAT, args![at])?;
    let first_ever = last == Timestamp(0);
    if first_ever || at.since(last) <= stale_after_ms(tx) {
        return Ok(None);
    }
    tx.post(&NOTE_OUTAGE, args![last, at])?;
    Ok(Some(Outage { from: last, to: at }))
}

/// Outages that ended after `since`, in order and without overlap. One that lasts until now is included, although no beat has ended it yet.
pub fn outages(tx: &mut Tx, since: Timestamp) -> Result<Vec<Outage>, Failure> {
    let mut outages: Vec<Outage> = Vec::new();
    for row in tx.rows(&OUTAGES, &args![since])? {
        let (from, to) = (row.at(0)?, row.at(1)?);
        match outages.last_mut().filter(|last| last.to >= from) {
            Some(last) => last.to = last.to.max(to), // the clock was set back between the two
            None => outages.push(Outage { from, to }),
        }
    }
    let last = tx.row(&PEEK_BEAT, &args![])?.expect("the monitor row is made by a migration").at(0)?;
    let at = tx.at();
    if last > Timestamp(0) && at.since(last) > stale_after_ms(tx) {
        outages.push(Outage { from: last, to: at });
    }
    Ok(outages)
}

/// The time since which the control plane has been up for `ms`. Outages do not count, nor time that was skipped by setting the clock
/// forward: both are a gap between beats.
pub fn lived_since(tx: &mut Tx, ms: i64) -> Result<Timestamp, Failure> {
    let mut since = tx.at() - ms;
    loop {
        let away_ms: i64 = outages(tx, since)?.iter().map(|outage| outage.to.since(outage.from)).sum();
        let earlier = tx.at() - ms - away_ms;
        if earlier >= since {
            return Ok(since);
        }
        since = earlier; // further back there may have been more of them
    }
}

/// Before a claim: this process still has its name, and its lease was renewed recently.
pub(crate) fn check(tx: &mut Tx, worker: &Worker) -> Result<(), Failure> {
    let beat_at = tx.row(&CHECK, &args![worker.id, worker.boot])?.ok_or_else(superseded)?.at(0)?;
    if tx.at().since(beat_at) > stale_after_ms(tx) {
        return Err(Refused::Stale { what: "this worker's lease" }.into());
    }
    Ok(())
}

pub(crate) fn alive_since(tx: &Tx, at: Timestamp) -> Timestamp {
    at - tx.lease_ms()
}

/// When the lease of this process expires if it is not renewed. None: a newer process has its name, and it holds nothing any more.
pub fn lease_ends_at(tx: &mut Tx, (id, boot): (i64, i64)) -> Result<Option<Timestamp>, Failure> {
    let lease_ms = tx.lease_ms();
    tx.row(&CHECK, &args![id, boot])?.map(|row| Ok(row.at(0)? + lease_ms)).transpose()
}

/// (worker, boot) of every lease that is alive. Time in which no control plane was up does not count: a worker that could not renew has
/// the rest of its lease when the others are back.
pub(crate) fn living(tx: &mut Tx) -> Result<BTreeSet<(i64, i64)>, Failure> {
    let lease_ms = tx.lease_ms();
    let since = lived_since(tx, lease_ms)?;
    tx.rows(&LIVING, &args![since])?.iter().map(|row| Ok((row.int(0)?, row.int(1)?))).collect()
}

/// Since when the worker that has lived longest has been up.
pub fn session_began(tx: &mut Tx) -> Result<Option<Timestamp>, Failure> {
    let lease_ms = tx.lease_ms();
    let since = lived_since(tx, lease_ms)?;
    tx.row(&SESSION, &args![since])?.map_or(Ok(None), |row| row.opt_at(0))
}

fn superseded() -> Failure {
    Refused::Fenced { what: "this worker's lease".to_owned() }.into()
}

pub(crate) const ALL: &[&Sql] = &[
    &START,
    &RENEW,
    &RELEASE,
    &STOP,
    &CHECK,
    &LIVING,
    &SESSION,
    &LAST_BEAT,
    &PEEK_BEAT,
    &BEAT,
    &LEASES_SET_BACK,
    &NOTE_OUTAGE,
    &OUTAGES,
];

const START: Sql = Sql::new(
    "INSERT INTO workers (id, name, boot, beat_at, started_at) VALUES ($1, $2, 1, $3, $3)
         ON CONFLICT (name) DO UPDATE
        SET boot = workers.boot + 1, beat_at = excluded.beat_at, started_at = excluded.started_at
      RETURNING id, boot",
);
const RENEW: Sql = Sql::new(
    "UPDATE workers SET beat_at = CASE WHEN beat_at < $3 THEN $3 ELSE beat_at END WHERE id = $1 AND boot = $2",
);
const RELEASE: Sql = Sql::new("UPDATE work SET worker = NULL, boot = NULL, alone = 0 WHERE worker = $1 AND boot = $2");
const STOP: Sql = Sql::new("UPDATE workers SET beat_at = 0 WHERE id = $1 AND boot = $2");
const CHECK: Sql = Sql::new("SELECT beat_at FROM workers WHERE id = $1 AND boot = $2");
const LIVING: Sql = Sql::new("SELECT id, boot FROM workers WHERE beat_at > $1");
const SESSION: Sql = Sql::new("SELECT min(started_at) FROM workers WHERE beat_at > $1");
const LAST_BEAT: Sql = Sql::new("SELECT beat_at FROM monitor WHERE id = 1").no_key_update().locks(Rank::Monitor);
const PEEK_BEAT: Sql = Sql::new("SELECT beat_at FROM monitor WHERE id = 1");
const BEAT: Sql = Sql::new("UPDATE monitor SET beat_at = $1 WHERE id = 1");
const LEASES_SET_BACK: Sql = Sql::new("UPDATE workers SET beat_at = $1 WHERE beat_at > $1");
const NOTE_OUTAGE: Sql = Sql::new("INSERT INTO outages (from_at, to_at) VALUES ($1, $2)");
const OUTAGES: Sql = Sql::new("SELECT from_at, to_at FROM outages WHERE to_at > $1 ORDER BY from_at");
