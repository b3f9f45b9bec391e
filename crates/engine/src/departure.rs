//! The end of a provider that is being removed: when the last of its machines is gone, what it has put on its hosts is removed, then its
//! row. A host that cannot be cleared now is asked again, less and less often, until it answers or a person gives it up.

use crate::Engine;
use crate::instance::ended_by_a_person;
use model::instance::InstanceStatus;
use model::provider_row::{Departure, ProviderRow, Stays};
use model::time::{MINUTE, SECOND};
use model::{Failure, PoolId, Refused, Timestamp, crash_point};
use store::{Item, Lane, Tx, WorkKind};

/// Hosts that could not be cleared are asked again after this, then after pauses that double.
const FIRST_PAUSE_MS: i64 = 5 * SECOND;
const LONGEST_PAUSE_MS: i64 = 10 * MINUTE;
/// While there are machines: the last one wakes this item, and should its wake come too early, this is when it is looked at again.
const IN_USE_MS: i64 = MINUTE;
/// What is left of machines that have ended goes by itself within this, unless a host cannot be asked.
const CLEARED_WITHIN_MS: i64 = 5 * SECOND;
/// With `--force`: holds that begin when jobs are cancelled are ended this soon.
const FORCED_MS: i64 = SECOND;

/// A provider that is being removed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Removal {
    /// It has machines, or folders that are held: it stays until those end.
    pub waits: bool,
    pub departure: Departure,
}

impl Engine {
    /// How far the removal of a provider has come. None: it is gone.
    pub async fn removal(&self, name: &str) -> Result<Option<Removal>, Failure> {
        let name = name.to_owned();
        self.store
            .read("provider.removal", move |tx| {
                let Some(row) = store::provider::find(tx, &name)? else { return Ok(None) };
                Ok(Some(Removal { waits: waits(tx, &name)?, departure: row.departure }))
            })
            .await
    }

    /// A person gives up what could not be removed from its hosts: the row goes all the same.
    pub async fn abandon_hosts(&self, name: &str) -> Result<(), Failure> {
        let named = name.to_owned();
        self.store
            .write(Lane::Normal, "provider.abandon", move |tx| {
                let row = store::provider::find(tx, &named)?.ok_or_else(|| Refused::not_found("provider", &named))?;
                if !row.leaving || waits(tx, &named)? || row.departure.stays.is_empty() {
                    let why = format!(
                        "only what could not be removed from hosts can be abandoned: repl provider remove {named}, and --force if it has machines"
                    );
                    return Err(Refused::Conflict { why }.into());
                }
                // No work item looks after what is left of its machines any more.
                for pool in store::pool::all(tx)?.into_iter().filter(|pool| pool.provider == named) {
                    for instance in store::provider::still_known(tx, pool.id)? {
                        store::work::forget(tx, WorkKind::Instance, instance.0)?;
                    }
                }
                remove(tx, &named)
            })
            .await?;
        self.read_providers().await
    }

    /// Works on the item of a provider that is being removed.
    pub(crate) async fn depart(&self, item: Item) -> Result<(), Failure> {
        let id = PoolId(item.subject);
        let read = move |tx: &mut Tx| {
            let Some(pool) = store::pool::find(tx, id)? else { return Ok(None) };
            let row = store::provider::find(tx, &pool.provider)?.filter(|row| row.leaving);
            row.map(|row| Ok((waits(tx, &row.name)?, in_use(tx, &row.name)?, tx.at(), row))).transpose()
        };
        match self.store.read("provider.departing", read).await? {
            None => self.done(item).await,
            Some((true, _, _, row)) => self.stay(item, row).await,
            // Its machines' own items remove what is left of them. If they cannot, the hosts are asked why.
            Some((false, true, now, row)) if !is_late(&row.departure, now) => self.stay(item, row).await,
            Some((false, _, _, row)) => self.clear_hosts(item, row).await,
        }
    }

    /// Ends its machines with what runs there. A machine that changes hands meanwhile is refused; the next look ends it.
    pub(crate) async fn force_out(&self, provider: &str, by: &str) -> Result<(), Failure> {
        let named = provider.to_owned();
        let read = move |tx: &mut Tx| {
            let mut open = Vec::new();
            for pool in store::pool::all(tx)?.into_iter().filter(|pool| pool.provider == named) {
                open.extend(store::instance::open_in(tx, pool.id)?);
            }
            open.retain(|machine| machine.status != InstanceStatus::Terminating);
            Ok(open)
        };
        for machine in self.store.read("provider.machines", read).await? {
            let (context, by) = (self.context.clone(), by.to_owned());
            let end = move |tx: &mut Tx| ended_by_a_person(tx, &context, (machine.org, &by), machine.id, true);
            match self.store.write(Lane::Normal, "provider.force", end).await {
                Err(Failure::Refused(refused)) => {
                    tracing::warn!(instance = %machine.name, %refused, "it could not be ended now");
                }
                ended => ended?,
            }
        }
        Ok(())
    }

    /// It has machines or held folders yet. With `--force` neither keeps it.
    async fn stay(&self, item: Item, row: ProviderRow) -> Result<(), Failure> {
        if let Some(by) = &row.departure.forced_by {
            self.force_out(&row.name, by).await?;
        }
        self.store
            .write(Lane::Normal, "provider.in_use", move |tx| {
                store::work::hold(tx, &item)?;
                let at = tx.at();
                let forced = row.departure.forced_by.is_some();
                if forced {
                    end_holds(tx, &row.name)?;
                }
                let clears = !waits(tx, &row.name)?;
                let known = store::provider::find(tx, &row.name)?;
                if let Some(known) = known.filter(|known| clears && known.departure.clearing_since.is_none()) {
                    let departure = Departure { clearing_since: Some(at), ..known.departure.clone() };
                    store::provider::put(tx, &ProviderRow { departure, ..known })?;
                }
                let pause_ms = match (clears, forced) {
                    (true, _) => CLEARED_WITHIN_MS,
                    (false, true) => FORCED_MS,
                    (false, false) => IN_USE_MS,
                };
                store::work::finish(tx, &item, Some(at + pause_ms));
                Ok(())
            })
            .await
    }

    async fn clear_hosts(&self, item: Item, row: ProviderRow) -> Result<(), Failure> {
        let control_id = self.context.installation.control_id.clone();
        let provider = self.context.providers.make(&row).map(|listing| listing.provider);
        let stays = match provider {
            Ok(provider) => crash_point!("provider.clear", provider.leave(&control_id).await)?,
            // As its row says it cannot be used any more, so no host can be asked.
            Err(refused) => {
                vec![Stays { host: row.name.clone(), what: String::new(), why: refused.to_string() }]
            }
        };
        for it in &stays {
            tracing::warn!(provider = %row.name, host = %it.host, why = %it.why, "what is ours could not be removed from it");
        }
        self.store
            .write(Lane::Normal, "provider.gone", move |tx| {
                store::work::hold(tx, &item)?;
                let at = tx.at();
                let known = store::provider::find(tx, &row.name)?.filter(|known| known.leaving);
                let next = match known {
                    None => None,
                    Some(known) if stays.is_empty() && in_use(tx, &known.name)? => Some(at + CLEARED_WITHIN_MS),
                    Some(known) if stays.is_empty() => {
                        remove(tx, &known.name)?;
                        None
                    }
                    Some(known) => {
                        let tries = known.departure.tries + 1;
                        let departure = Departure { tries, stays: stays.clone(), ..known.departure.clone() };
                        store::provider::put(tx, &ProviderRow { departure, ..known })?;
                        Some(at + pause_ms(tries))
                    }
                };
                store::work::finish(tx, &item, next);
                Ok(())
            })
            .await?;
        self.read_providers().await
    }
}

/// Wakes the work item that removes the provider. `region` names the pool that stands for it when there is none yet.
pub(crate) fn wake(tx: &mut Tx, provider: &str, region: &str) -> Result<(), Failure> {
    let first = store::pool::all(tx)?.into_iter().find(|pool| pool.provider == provider);
    let pool = match first {
        Some(pool) => pool.id,
        None => store::pool::ensure(tx, provider, region)?,
    };
    let at = tx.at();
    tx.wake(WorkKind::Departure, pool.0, at);
    Ok(())
}

/// The last thing of a machine is gone: if its provider is being removed, that may go on.
pub(crate) fn machine_gone(tx: &mut Tx, provider: &str) -> Result<(), Failure> {
    match store::provider::find(tx, provider)? {
        Some(row) if row.leaving => wake(tx, provider, provider),
        _ => Ok(()),
    }
}

/// Its row goes, and with it what its scans have found.
fn remove(tx: &mut Tx, provider: &str) -> Result<(), Failure> {
    let at = tx.at();
    for pool in store::pool::all(tx)?.into_iter().filter(|pool| pool.provider == provider) {
        tx.wake(WorkKind::Scan, pool.id.0, at);
    }
    store::provider::remove(tx, provider)
}

/// What is left of its machines should be gone by now.
fn is_late(departure: &Departure, now: Timestamp) -> bool {
    departure.clearing_since.is_some_and(|since| now.since(since) >= CLEARED_WITHIN_MS)
}

fn in_use(tx: &mut Tx, provider: &str) -> Result<bool, Failure> {
    for pool in store::pool::all(tx)?.into_iter().filter(|pool| pool.provider == provider) {
        if store::provider::is_in_use(tx, pool.id)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether something other than its own cleaning up keeps it.
fn waits(tx: &mut Tx, provider: &str) -> Result<bool, Failure> {
    for pool in store::pool::all(tx)?.into_iter().filter(|pool| pool.provider == provider) {
        if !store::instance::open_in(tx, pool.id)?.is_empty() {
            return Ok(true);
        }
        for instance in store::provider::still_known(tx, pool.id)? {
            if store::allocation::kept_on(tx, instance)?.iter().any(|slot| slot.hold().is_some()) {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

fn end_holds(tx: &mut Tx, provider: &str) -> Result<(), Failure> {
    for pool in store::pool::all(tx)?.into_iter().filter(|pool| pool.provider == provider) {
        for instance in store::provider::still_known(tx, pool.id)? {
            for slot in store::allocation::kept_on(tx, instance)?.iter().filter(|slot| slot.hold().is_some()) {
                crate::allocation::released(tx, &slot.org.into(), slot.id)?;
            }
        }
    }
    Ok(())
}

fn pause_ms(tries: i64) -> i64 {
    (FIRST_PAUSE_MS << (tries - 1).clamp(0, 10)).min(LONGEST_PAUSE_MS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_up_to_ten_minutes() {
        assert_eq!([1, 2, 3, 50].map(pause_ms), [5 * SECOND, 10 * SECOND, 20 * SECOND, 10 * MINUTE]);
    }
}
