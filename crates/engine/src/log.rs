//! Seals a log when its job ends, so that readers know its end, and gathers it into one file. Deletes old logs.

use crate::Engine;
use crate::step::is_in_flight;
use model::job::LOG_TAIL_LIMIT_MS;
use model::log::{Aged, LogId};
use model::run::Run;
use model::time::show_duration;
use model::{Failure, JobId, Refused, RunId, StepId, Timestamp};
pub use store::log::{Chunk, Logs, Page};
pub use store::log_file::{Frame, LogStream, Placed};
pub use store::run_log::RunFrame;
use store::step::Below;
use store::{Item, Tx};

/// Logs looked at in one go.
const AT_ONCE: i64 = 200;
/// Pages of steps among which a reader's request looks for those that have logs.
const PAGES: usize = 10;

impl Engine {
    pub(crate) async fn gather(&self, item: Item) -> Result<(), Failure> {
        let id = JobId(item.subject);
        let job = self.store.read_inline("job.find", move |tx| store::job::find(tx, id)).await?;
        let Some(job) = job.filter(|job| job.status.is_end()) else { return self.done(item).await };
        let reached = self.logs.reached(id, job.epoch).await?.next_offset;
        let lost = job.final_offset.map_or(0, |end| (end - reached).max(0));
        self.logs.seal(id, lost).await?;
        self.logs.gather(job.org, id).await?;
        self.done(item).await
    }

    /// Seals the logs of a command's tries that have ended. The one that ended last may still lack its tail for a while.
    pub(crate) async fn seal_step_logs(&self, item: Item) -> Result<(), Failure> {
        let id = StepId(item.subject);
        let read = move |tx: &mut store::Tx| {
            let Some(step) = store::step::find(tx, id)? else { return Ok(None) };
            let (mut tries, run, at) = (store::step::tries(tx, id)?, store::run::find(tx, step.run)?, tx.at());
            tries.push(step);
            Ok(run.map(|run| (tries, run.org, at)))
        };
        let Some((tries, org, at)) = self.store.read("step.tries", read).await? else { return self.done(item).await };
        let mut again: Option<Timestamp> = None;
        for row in tries {
            let Some(on) = row.on.as_ref().filter(|_| !is_in_flight(&row)) else { continue };
            let log = LogId::Step(row.present_try());
            let reached = self.logs.reached(log, on.epoch).await?.next_offset;
            let lost = on.log_end.map_or(0, |end| (end - reached).max(0));
            let waits_until = row.ended_at.or(row.began_at).unwrap_or(at) + LOG_TAIL_LIMIT_MS;
            if lost > 0 && waits_until > at {
                again = again.into_iter().chain([waits_until]).min();
                continue;
            }
            self.logs.seal(log, lost).await?;
            self.logs.gather(org, log).await?;
        }
        match again {
            Some(due) => self.at(item, due).await,
            None => self.done(item).await,
        }
    }

    /// Rows of logs go when they are no longer hot, files when they are no longer kept (R148). Looks only at what is old by what
    /// was last known of its run, so that a log costs a look or two in its life. True while there may be more.
    pub(crate) async fn age_logs(&self) -> Result<bool, Failure> {
        let limits = &self.context.config.logs;
        let (old, at) = self.logs.old(limits.hot_ms, limits.keep_ms, AT_ONCE).await?;
        let mut more = old.len() as i64 >= AT_ONCE;
        let logs: Vec<LogId> = old.iter().map(|old| old.log).collect();
        let runs = self.store.read("log.runs", move |tx| store::run::of_logs(tx, &logs)).await?;
        let mut kept = Vec::new();
        for (old, run) in old.into_iter().zip(runs) {
            // The log of a run that does not exist ages from when it was stored.
            let ended_at = run.map_or(Some(old.kept_from), |run| ended_at(&run));
            match limits.aged(ended_at, at) {
                _ if old.deleted => more |= self.logs.delete(old.org, old.log).await?,
                Aged::KeptFrom(from) => kept.push((old.log, from)),
                Aged::RowsGo => more |= self.logs.sweep(old.log).await?,
                Aged::Deleted => {
                    self.logs.mark_deleted(old.log).await?;
                    more |= self.logs.delete(old.org, old.log).await?;
                }
            }
        }
        if !kept.is_empty() {
            self.logs.keep_from(kept).await?;
        }
        Ok(more)
    }

    /// The same of a run of agents, whose steps have logs. All logs of a run age together, so the first of them say what became of the
    /// others.
    pub async fn step_logs_are_kept(&self, run: &Run) -> Result<(), Failure> {
        if !run.status.is_end() {
            return Ok(());
        }
        let (id, attempt) = (run.id, run.attempt);
        let logs = self.store.read("log.steps", move |tx| step_logs(tx, id, attempt)).await?;
        self.are_kept(run, logs).await
    }

    /// Refuses to read what was deleted, if nothing else is there to be read of these jobs.
    pub async fn log_is_kept(&self, run: &Run, jobs: Vec<JobId>) -> Result<(), Failure> {
        if !run.status.is_end() {
            return Ok(());
        }
        self.are_kept(run, jobs.into_iter().map(LogId::Job).collect()).await
    }

    async fn are_kept(&self, run: &Run, logs: Vec<LogId>) -> Result<(), Failure> {
        let deleted = self.logs.deleted(logs).await?;
        let Some(last) = deleted.iter().copied().max().flatten().filter(|_| deleted.iter().all(Option::is_some)) else {
            return Ok(());
        };
        let now = self.store.read_inline("log.now", |tx| Ok(tx.at())).await?;
        let (kept, ago) = (show_duration(self.context.config.logs.keep_ms), show_duration(now.since(last)));
        let why =
            format!("logs are kept for {kept} after the end of their run; that of {} was deleted {ago} ago", run.id);
        Err(Refused::Gone { what: "the log", why }.into())
    }
}

/// Logs of the first steps of an attempt that ran on machines, among so many steps as one request may read.
fn step_logs(tx: &mut Tx, run: RunId, attempt: i64) -> Result<Vec<LogId>, Failure> {
    let (mut logs, mut after) = (Vec::new(), 0);
    for _ in 0..PAGES {
        let page = store::step::page(tx, run, attempt, Below::Attempt, after, AT_ONCE)?;
        let Some(last) = page.last() else { break };
        after = last.id.0;
        let full = page.len() as i64 == AT_ONCE;
        let on_machines = page.iter().filter(|step| step.on.is_some());
        logs.extend(on_machines.map(|step| LogId::Step(step.present_try())));
        if !logs.is_empty() || !full {
            break;
        }
    }
    Ok(logs)
}

/// When the run ended, if it has: one that is tried again is open.
pub(crate) fn ended_at(run: &Run) -> Option<model::Timestamp> {
    run.completed_at.or(run.cancelled_at).filter(|_| run.status.is_end())
}
