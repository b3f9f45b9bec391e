//! Leases of the steps that programs outside work on: begun by a request, renewed by heartbeats, looked at by one work item for the
//! children of each step. A step whose lease has run out is given up: it may begin again, or a person is asked what became of it.

use crate::Engine;
use crate::durable::{Answered, Asker, Request, check_lease};
use crate::run_tx::RunTx;
use model::hierarchy::{self, Rows, is_current};
use model::run::LastError;
use model::step::{Lease, Step};
use model::{Failure, JobId, StepId, Timestamp};
use store::{Item, Lane, WorkKind};

pub(crate) const LEASE_LOST: &str = "lease_lost";
/// Leases stand still while the run is paused: they are looked at again after this.
const LOOK_AGAIN_MS: i64 = 60_000;

/// What a heartbeat is answered with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Beat {
    Go,
    /// The run is to pause: it waits until this step has ended. Nothing else begins.
    Pause,
    /// The step is no longer this program's, or the run ends.
    Cancel,
}

impl Engine {
    pub async fn beat_step(
        &self,
        request: Request<Beat>,
        (id, fence): (StepId, i64),
        lease_ms: Option<i64>,
    ) -> Result<Answered<Beat>, Failure> {
        lease_ms.map_or(Ok(()), check_lease)?;
        let asker = request.asker;
        self.ask_about_steps("step.beat", request, move |run_tx| run_tx.beat(asker, id, fence, lease_ms)).await
    }

    /// The item of a step whose children programs work on, or that one works on itself.
    pub(crate) async fn reconcile_leases(&self, item: Item) -> Result<(), Failure> {
        let (id, context) = (StepId(item.subject), self.context.clone());
        let found = self.store.read_inline("step.find", move |tx| store::step::find(tx, id)).await?;
        let Some(run) = found.map(|step| step.run) else { return self.done(item).await };
        self.store
            .write(Lane::Normal.of(run), "step.leases", move |tx| {
                store::work::hold(tx, &item)?;
                let mut run_tx = RunTx::open(tx, &context, run)?;
                let next = run_tx.end_leases(id)?;
                run_tx.close()?;
                store::work::finish(tx, &item, next);
                Ok(())
            })
            .await
    }
}

impl RunTx<'_> {
    /// Begins or renews the lease: the program must renew it within this time.
    pub(crate) fn give_lease(&mut self, id: StepId, ms: i64, job: Option<(JobId, i64)>) -> Result<(), Failure> {
        let step = Rows::step(self, id)?;
        let until_active_ms = Rows::agent(self, step.agent)?.active_ms_at(self.at) + ms;
        let lease = Some(Lease { from: self.at, ms, until_active_ms, job });
        Rows::set_step(self, Step { lease, ..step.clone() });
        self.watch_leases(step.parent.unwrap_or(id), self.at + ms)
    }

    /// The item of the parent is woken if it would look too late.
    pub(crate) fn watch_leases(&mut self, parent: StepId, due: Timestamp) -> Result<(), Failure> {
        let step = Rows::step(self, parent)?;
        if step.leases_due.is_none_or(|looks| looks > due) {
            Rows::set_step(self, Step { leases_due: Some(due), ..step });
            self.wake(WorkKind::Lease, parent.0, due);
        }
        Ok(())
    }

    /// When the lease of a step that is worked on is over; never while its agent's clock stands still. Time in which no control plane
    /// was there to hear a heartbeat does not count.
    pub(crate) fn lease_ends(&mut self, step: &Step) -> Result<Option<Timestamp>, Failure> {
        let Some(lease) = &step.lease else { return Ok(None) };
        let agent = Rows::agent(self, step.agent)?;
        let Some(due) = agent.active_reaches(lease.until_active_ms) else { return Ok(None) };
        if due > self.at {
            return Ok(Some(due));
        }
        let outages = store::worker::outages(self.tx, lease.from)?;
        Ok(Some(model::time::deadline_without(lease.from, due.since(lease.from), &outages)))
    }

    fn beat(&mut self, asker: Asker, id: StepId, fence: i64, lease_ms: Option<i64>) -> Result<Beat, Failure> {
        let step = self.own_step(asker, id)?;
        let Some(lease) = step.lease.clone().filter(|_| is_current(&step, fence) && !step.uncertain) else {
            return Ok(Beat::Cancel);
        };
        if hierarchy::is_to_stop(self, &step)? {
            return Ok(Beat::Cancel);
        }
        self.give_lease(id, lease_ms.unwrap_or(lease.ms), lease.job)?;
        Ok(if self.run.pause_asked.is_some() { Beat::Pause } else { Beat::Go })
    }

    /// Gives up steps whose lease has expired, and ends steps whose time-out has passed. Returns when to look again.
    fn end_leases(&mut self, id: StepId) -> Result<Option<Timestamp>, Failure> {
        let mut leased = Rows::open_children(self, id)?;
        leased.push(id);
        let mut next: Option<Timestamp> = None;
        for id in leased {
            let step = Rows::step(self, id)?;
            if step.lease.is_none() || !crate::step::is_in_flight(&step) {
                continue;
            }
            let (ends, limit) = (self.lease_ends(&step)?, self.times_out(&step)?);
            match (ends, limit) {
                (_, Some(limit)) if limit <= self.at => {
                    hierarchy::fail_step(self, id, step.tries, &crate::offer::timed_out())?;
                }
                (Some(ends), _) if ends <= self.at => hierarchy::lose_step(self, id, step.tries, &lease_lost())?,
                (ends, limit) => {
                    let look = ends.unwrap_or(self.at + LOOK_AGAIN_MS);
                    next = next.into_iter().chain([look]).chain(limit).min();
                }
            }
        }
        let step = Rows::step(self, id)?;
        if step.leases_due != next {
            Rows::set_step(self, Step { leases_due: next, ..step });
        }
        Ok(next)
    }
}

pub(crate) fn lease_lost() -> LastError {
    let message = "the program that worked on it was silent for longer than its lease".into();
    LastError { code: LEASE_LOST.into(), message, cause: None }
}
