//! Logs at their job's end: sealed, so that readers know the end, and gathered into one file.

use crate::Engine;
use model::{Failure, JobId};
use store::Item;

impl Engine {
    pub(crate) async fn gather(&self, item: Item) -> Result<(), Failure> {
        let id = JobId(item.subject);
        let job = self.store.glance("job.find", move |tx| store::job::find(tx, id)).await?;
        let Some(job) = job.filter(|job| job.status.is_end()) else { return self.done(item).await };
        let reached = self.logs.reached(id, job.epoch).await?.next_offset;
        let lost = job.final_offset.map_or(0, |end| (end - reached).max(0));
        self.logs.seal(id, lost).await?;
        self.logs.gather(job.org, id).await?;
        self.done(item).await
    }
}
