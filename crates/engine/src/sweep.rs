//! Deletes what has expired: old idempotency keys, pauses of endpoints that are over, old logs, artifacts, files that no run uses,
//! work items of subjects that have ended. In small transactions, on the low-priority lane.

use crate::Engine;
use model::Failure;
use model::time::HOUR;
use store::blob::BlobName;
use store::{Item, Lane, Tx};

const AT_ONCE: i64 = 200;
/// A submission that was told the bytes are here comes within this.
const GONE_KEPT_MS: i64 = HOUR;

/// Calls that were under way when an endpoint asked for a pause have ended by then.
const ENDPOINTS_KEPT_MS: i64 = 24 * HOUR;

/// The item of the sweep that looks at kept results of calls.
const OF_RESULTS: i64 = 1;

impl Engine {
    /// The sweep has one item, made when the control plane starts.
    pub async fn arm_sweep(&self) -> Result<(), Failure> {
        let every_ms = self.context.config.timings.sweep_every_ms;
        self.store
            .write(Lane::Low, "sweep.arm", move |tx| {
                let at = tx.at();
                tx.wake(store::WorkKind::Sweep, 0, at + every_ms);
                tx.wake(store::WorkKind::Sweep, OF_RESULTS, at + every_ms);
                Ok(())
            })
            .await
    }

    pub(crate) async fn sweep(&self, item: Item) -> Result<(), Failure> {
        if item.subject == OF_RESULTS {
            return Box::pin(self.sweep_results(item)).await;
        }
        let contents_kept_ms = self.context.config.timings.contents_kept_ms;
        let most = self
            .store
            .write(Lane::Low, "sweep.keys", move |tx| {
                let at = tx.at();
                // During an outage a client could neither repeat a request nor use the files it had sent.
                let old_keys = store::worker::lived_since(tx, store::idempotency::KEPT_MS)?;
                let old_contents = store::worker::lived_since(tx, contents_kept_ms)?;
                let swept = [
                    store::endpoint::forget(tx, at - ENDPOINTS_KEPT_MS, AT_ONCE)?,
                    store::idempotency::expire(tx, old_keys, AT_ONCE)?,
                    store::work::sweep(tx, AT_ONCE)?,
                    store::content::condemn(tx, old_contents, AT_ONCE)?,
                    store::content::forget(tx, at - GONE_KEPT_MS, AT_ONCE)?,
                ];
                Ok(swept.into_iter().max().unwrap_or(0))
            })
            .await?;
        let logs = self.age_logs().await?;
        let (artifacts, contents) = (self.expire_artifacts().await?, self.delete_contents().await?);
        if most as i64 == AT_ONCE || logs || artifacts || contents {
            return self.again(item).await;
        }
        let now = self.store.read_inline("sweep.now", |tx| Ok(tx.at())).await?;
        self.at(item, now + self.context.config.timings.sweep_every_ms).await
    }

    /// Marked before, bytes now, row later: a crash between them is repeated harmlessly. True while there may be more.
    async fn delete_contents(&self) -> Result<bool, Failure> {
        let going = self.store.read("sweep.contents", |tx| store::content::going(tx, AT_ONCE)).await?;
        // What a tree that goes has named may go next.
        let more = !going.is_empty();
        for content in &going {
            // What a tree named may go once the tree does. A folder of many files is let go in pieces.
            loop {
                let tree = content.clone();
                let unlink = move |tx: &mut Tx| store::content::unlink(tx, &tree, AT_ONCE);
                if self.store.write(Lane::Low, "sweep.links", unlink).await? < AT_ONCE as u64 {
                    break;
                }
            }
            self.blobs.delete(&BlobName::Content { org: content.org, hash: content.hash.parse()? })?;
        }
        if !going.is_empty() {
            let mark = move |tx: &mut Tx| going.iter().try_for_each(|content| store::content::gone(tx, content));
            self.store.write(Lane::Low, "sweep.keys", mark).await?;
        }
        Ok(more)
    }

    /// Bytes first, mark second: a crash between them is repeated harmlessly. True while there may be more.
    async fn expire_artifacts(&self) -> Result<bool, Failure> {
        let expired = self
            .store
            .read("sweep.artifacts", |tx| {
                let at = tx.at();
                store::artifact::expired(tx, at, AT_ONCE)
            })
            .await?;
        for artifact in &expired {
            let name = BlobName::Artifact {
                org: artifact.org,
                run: artifact.run,
                attempt: artifact.attempt,
                artifact: artifact.id,
            };
            if !artifact.in_contents {
                self.blobs.delete(&name)?;
            }
            let id = (artifact.run, artifact.id);
            self.store.write(Lane::Low, "sweep.artifact", move |tx| store::artifact::deleted(tx, id)).await?;
        }
        Ok(expired.len() as i64 == AT_ONCE)
    }
}
