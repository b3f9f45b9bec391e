//! Cleans up after a machine that was terminated: when no folder on it is held any more, its provider deletes what it keeps of it. A machine
//! that its provider does not list may still appear, so it is looked for by name for 5 minutes. Never ends a machine whose row is open.

use crate::Engine;
use crate::instance::{ASK_AGAIN_MS, handle_of};
use adapters::{Handle, Provider, Seen};
use model::instance::Instance;
use model::time::{SECOND, deadline_without};
use model::workflow::COMPENSATION_LIMIT_MS;
use model::{Failure, InstanceId, Timestamp, Trouble, bug, crash_point};
use store::{Item, Lane, Tx, WorkKind};

/// A provider that cannot be asked is asked at least so often.
const LONGEST_PAUSE_MS: i64 = 10 * model::time::MINUTE;

impl Engine {
    pub(crate) async fn forget_instance(&self, item: Item, instance: &Instance) -> Result<(), Failure> {
        let (id, ended) = (instance.id, instance.terminated_at.max(instance.last_seen_at));
        let read = move |tx: &mut Tx| {
            let until = ended.map(|ended| missing_until(tx, ended)).transpose()?;
            Ok((store::allocation::kept_on(tx, id)?, until, tx.at()))
        };
        let (kept, looked_for_until, now) = self.store.read("allocation.kept", read).await?;
        if !kept.is_empty() {
            // A folder is still kept there: to the end of its hold, or until its job has ended.
            let until = kept.iter().filter_map(model::allocation::deadline).max();
            let soon = now + ASK_AGAIN_MS;
            return self.at(item, until.map_or(soon, |until| (until + SECOND).max(soon))).await;
        }
        if !instance.displaced {
            match self.ask_to_forget(instance).await {
                Ok(true) => {}
                Ok(false) => {
                    if let Some(next) = look_again_at(looked_for_until.unwrap_or(now), now) {
                        return self.at(item, next).await;
                    }
                }
                Err(Failure::Trouble(trouble)) => {
                    tracing::warn!(instance = %instance.name, %trouble, "what is left of it cannot be removed, and is tried again");
                    return self.at(item, now + next_pause(ended.unwrap_or(now), now)).await;
                }
                Err(failure) => return Err(failure),
            }
        }
        self.context.presence.forget(id);
        let provider = instance.provider.clone();
        self.store
            .write(Lane::Normal, "instance.forgotten", move |tx| {
                store::work::hold(tx, &item)?;
                crate::departure::machine_gone(tx, &provider)?;
                store::work::finish(tx, &item, None);
                Ok(())
            })
            .await
    }
}

impl Engine {
    /// False: its provider knows nothing of it.
    async fn ask_to_forget(&self, instance: &Instance) -> Result<bool, Failure> {
        let provider = self.context.provider(&instance.provider);
        let provider = provider.map_err(|refused| Trouble::internal(refused.to_string()))?;
        match self.in_time(Box::pin(handle_of(provider.as_ref(), instance))).await? {
            Some(handle) => self.forget_at(provider.as_ref(), &handle, instance).await.map(|()| true),
            None => Ok(false),
        }
    }

    async fn forget_at(&self, provider: &dyn Provider, handle: &Handle, instance: &Instance) -> Result<(), Failure> {
        // A spawn call of a worker that had lost its lease may have recreated the machine: it is terminated again.
        let seen = self.in_time(provider.inspect(handle, &instance.nonce)).await?;
        if matches!(seen, Seen::Alive | Seen::RunnerGone | Seen::Queued { .. }) {
            self.acts_in_time(provider.terminate(handle, &instance.nonce)).await?;
        }
        let forgotten = self.acts_in_time(provider.forget(handle));
        crash_point!("provider.forget", forgotten.await)?;
        Ok(())
    }
}

/// How long a provider that cannot be asked is left alone: as long as it could not be asked about this, from 5 s to 10 minutes. So pauses
/// double, and no count of tries is kept.
pub(crate) fn next_pause(since: Timestamp, now: Timestamp) -> i64 {
    now.since(since).clamp(ASK_AGAIN_MS, LONGEST_PAUSE_MS)
}

/// Until then "not found" is inconclusive for a machine that ended, or was to end, at `from`: the call that made it may take
/// effect late, and the provider's list may lag. Outages of the control plane do not count, because no worker could look.
pub(crate) fn missing_until(tx: &mut Tx, from: Timestamp) -> Result<Timestamp, Failure> {
    Ok(deadline_without(from, COMPENSATION_LIMIT_MS, &store::worker::outages(tx, from)?))
}

/// Something was made or heard under the name of a machine that has ended: it is looked for as long as if it had ended now.
pub(crate) fn is_there_again(tx: &mut Tx, id: InstanceId) -> Result<(), Failure> {
    let at = tx.at();
    store::instance::seen(tx, id, at, 0)?;
    tx.wake(WorkKind::Instance, id.0, at);
    Ok(())
}

/// When to look for the machine again, if "not found" is still inconclusive (see `missing_until`): after 5 s, then after pauses that
/// double.
fn look_again_at(until: Timestamp, now: Timestamp) -> Option<Timestamp> {
    let left_ms = until.since(now);
    let looks_on = left_ms > 0 && !bug!(unseen_is_forgotten);
    looks_on.then(|| now + (COMPENSATION_LIMIT_MS - left_ms).max(ASK_AGAIN_MS))
}
