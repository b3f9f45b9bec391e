//! Calls that an endpoint has refused because there were too many (HTTP 429): its pause is stored for all runs of the org, in the commit that
//! records their ends.

use super::act::{Called, Found};
use super::commit::AtHand;
use model::recovery::{ErrorClass, StepFailure};
use model::time::SECOND;
use model::{Failure, StepId};
use std::collections::{BTreeMap, BTreeSet};
use store::Tx;
use store::endpoint::Pause;

/// The pause that an endpoint gets which does not say how long.
const DEFAULT_PAUSE_MS: i64 = SECOND;

impl AtHand {
    /// Stores the pauses, and returns the steps whose failures are not counted: their calls were under way when another one was
    /// refused. Rows of endpoints are locked in their order, before the run is.
    pub(super) fn note_pauses(&self, tx: &mut Tx) -> Result<BTreeSet<StepId>, Failure> {
        let mut refused: BTreeMap<&str, Vec<(StepId, &Called, &StepFailure)>> = BTreeMap::new();
        for ended in self.ended.iter() {
            let (Found::Failed(failed), Some(called)) = (&ended.found, &ended.called) else { continue };
            if failed.failure.class == ErrorClass::RateLimited {
                refused.entry(&called.endpoint).or_default().push((ended.of.0, called, &failed.failure));
            }
        }
        let mut uncounted = BTreeSet::new();
        for (endpoint, calls) in refused {
            let (at, known) = (tx.at(), store::endpoint::find(tx, self.org, endpoint)?);
            let mut noted_at = known.map(|pause| pause.noted_at);
            let mut not_before = at;
            for (step, called, failure) in calls {
                not_before = not_before.max(at + failure.retry_after_ms.unwrap_or(DEFAULT_PAUSE_MS));
                match noted_at {
                    Some(noted) if called.began_at <= noted => drop(uncounted.insert(step)),
                    _ => noted_at = Some(at),
                }
            }
            store::endpoint::note(tx, self.org, endpoint, Pause { not_before, noted_at: noted_at.unwrap_or(at) })?;
        }
        Ok(uncounted)
    }
}
