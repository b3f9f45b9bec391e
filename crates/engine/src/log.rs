//! Logs at their job's end: sealed, so that readers know the end, and gathered into one file. And what becomes of old ones.

use crate::Engine;
use model::log::Aged;
use model::run::Run;
use model::time::show_duration;
use model::{Failure, JobId, Refused};
use store::Item;

/// Logs looked at in one go.
const AT_ONCE: i64 = 200;

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

    /// Rows of logs go when they are no longer hot, files when they are no longer kept (R148). Looks only at what is old by what
    /// was last known of its run, so that a log costs a look or two in its life. True while there may be more.
    pub(crate) async fn age_logs(&self) -> Result<bool, Failure> {
        let limits = &self.context.config.logs;
        let (old, at) = self.logs.old(limits.hot_ms, limits.keep_ms, AT_ONCE).await?;
        let mut more = old.len() as i64 >= AT_ONCE;
        let jobs: Vec<JobId> = old.iter().map(|log| log.job).collect();
        let runs = self.store.read("log.runs", move |tx| store::run::of_jobs(tx, &jobs)).await?;
        let mut kept = Vec::new();
        for (log, run) in old.into_iter().zip(runs) {
            // A log of nobody is as old as it is.
            let ended_at = run.map_or(Some(log.kept_from), |run| ended_at(&run));
            match limits.aged(ended_at, at) {
                _ if log.deleted => more |= self.logs.delete(log.org, log.job).await?,
                Aged::KeptFrom(from) => kept.push((log.job, from)),
                Aged::RowsGo => more |= self.logs.sweep(log.job).await?,
                Aged::Deleted => {
                    self.logs.mark_deleted(log.job).await?;
                    more |= self.logs.delete(log.org, log.job).await?;
                }
            }
        }
        if !kept.is_empty() {
            self.logs.keep_from(kept).await?;
        }
        Ok(more)
    }

    /// Refuses to read what was deleted, if nothing else is there to be read of these jobs.
    pub async fn log_is_kept(&self, run: &Run, jobs: Vec<JobId>) -> Result<(), Failure> {
        if !run.status.is_end() {
            return Ok(());
        }
        let deleted = self.logs.deleted(jobs).await?;
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

/// When the run ended, if it has: one that is tried again is open.
pub(crate) fn ended_at(run: &Run) -> Option<model::Timestamp> {
    run.completed_at.or(run.cancelled_at).filter(|_| run.status.is_end())
}
