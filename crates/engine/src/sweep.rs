//! What ends by time alone: old idempotency keys, gathered log rows, expired artifacts. In small pieces, on the low lane.

use crate::Engine;
use model::Failure;
use store::blob::BlobName;
use store::{Item, Lane};

const AT_ONCE: i64 = 200;

impl Engine {
    /// The sweep has one item, made when the control plane starts.
    pub async fn arm_sweep(&self) -> Result<(), Failure> {
        let every_ms = self.house.config.timings.sweep_every_ms;
        self.store
            .write(Lane::Low, "sweep.arm", move |tx| {
                let at = tx.at();
                tx.wake(store::WorkKind::Sweep, 0, at + every_ms);
                Ok(())
            })
            .await
    }

    pub(crate) async fn sweep(&self, item: Item) -> Result<(), Failure> {
        let keys = self
            .store
            .write(Lane::Low, "sweep.keys", |tx| {
                let before = tx.at() - store::idempotency::KEPT_MS;
                store::idempotency::expire(tx, before, AT_ONCE)
            })
            .await?;
        let logs = self.logs.sweep().await?;
        let artifacts = self.expire_artifacts().await?;
        if keys as i64 == AT_ONCE || logs || artifacts {
            return self.again(item).await;
        }
        let now = self.store.read("sweep.now", |tx| Ok(tx.at())).await?;
        self.at(item, now + self.house.config.timings.sweep_every_ms).await
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
            self.blobs.delete(&name)?;
            let id = artifact.id;
            self.store.write(Lane::Low, "sweep.artifact", move |tx| store::artifact::deleted(tx, id)).await?;
        }
        Ok(expired.len() as i64 == AT_ONCE)
    }
}
